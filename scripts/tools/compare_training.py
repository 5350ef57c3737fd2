"""Compares trainings of the working tree with those of a commit, bit by bit.

    python scripts/tools/compare_training.py COMMIT [--steps 20] [--only NAME ...]

One tiny recipe of each family is trained by both trees on one thread in fp32, with the recipe
of the same tree. Compared are the weights, by name, and the rows of metrics.csv without speeds. A
refactoring leaves all of them equal; exit code 1 says that it did not.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.tools.kill_test import rows, unequal  # noqa: E402

# The encoder-decoder, masked LM, causal LM, ViT, CLIP, recurrent models (a translator, a language
# model, a reader of documents), a convolution, the masked autoencoder, captions, fine-tuning.
RECIPES = (
    *("vaswani2017/tiny", "t5/tiny", "bert/tiny", "gpt2/tiny", "llama/tiny", "vit/tiny"),
    *("clip/tiny", "luong2015/tiny", "recurrence/tiny", "yang2016/tiny", "convolution/tiny"),
    *("mae/tiny", "captions/tiny", "xu2015/tiny", "finetune/tiny"),
)
# In a process of its own for each tree, so that nothing is imported from the other.
TRAIN = """
import sys
from pathlib import Path
import fourfold
from fourfold.cli import main
tree, work, steps, *recipes = sys.argv[1:]
assert Path(fourfold.__file__).is_relative_to(tree), fourfold.__file__
for recipe in recipes:
    print(f"-- {recipe}", flush=True)
    code = main([
        "fit", f"--config={tree}/configs/{recipe}.yaml", f"--run_dir={work}/{recipe}",
        f"--trainer.max_steps={steps}", "--trainer.precision=32-true", "--trainer.accelerator=cpu",
        "--trainer.log_every_n_steps=1", f"--trainer.val_check_interval={int(steps) // 2}",
        "--trainer.check_val_every_n_epoch=null", "--trainer.limit_val_batches=2",
    ])
    print(f"-- exit code {code}", flush=True)
"""


def export(commit: str, folder: Path) -> Path:
    """Write the files of a commit that training needs to `folder`."""
    folder.mkdir()
    command = ["git", "-C", str(ROOT), "archive", commit, "src", "configs"]
    files = subprocess.run(command, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=files, check=True)
    return folder


def train(tree: Path, work: Path, steps: int, recipes: list[str]) -> None:
    """Train all recipes with the source of one tree; the output goes to `work`.log."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TRAIN, str(tree), str(work), str(steps), *recipes]
    with work.with_suffix(".log").open("w") as log:
        subprocess.run(command, env=environment, stdout=log, stderr=log, check=True)


def differences(before: Path, after: Path) -> list[str]:
    """Return what differs between two runs of one recipe."""
    files = [run / "checkpoints/last.ckpt" for run in (before, after)]
    if missing := [f"{file} does not exist" for file in files if not file.exists()]:
        return missing
    a, b = (torch.load(file, weights_only=True)["state_dict"] for file in files)
    found = [f"weight {n} only before" for n in a if n not in b]
    found += [f"weight {n} only after" for n in b if n not in a]
    found += [f"weight {n} differs" for n in a if n in b and unequal(a[n], b[n])]
    lines, others = rows(before), rows(after)
    if len(lines) != len(others):
        found.append(f"metrics.csv has {len(lines)} rows before and {len(others)} after")
    pairs = zip(lines, others, strict=False)
    columns = {name for line, other in pairs for name, _ in line.items() ^ other.items()}
    return found + [f"metric {name} differs" for name in sorted(columns)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commit")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=list(RECIPES), choices=RECIPES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        trees = {"before": export(options.commit, work / "tree"), "after": ROOT}
        for name, tree in trees.items():
            train(tree, work / name, options.steps, options.only)
        n_different = 0
        for recipe in options.only:
            found = differences(work / "before" / recipe, work / "after" / recipe)
            n_different += bool(found)
            print(f"{recipe}: {'; '.join(found) or 'equal'}", flush=True)
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
