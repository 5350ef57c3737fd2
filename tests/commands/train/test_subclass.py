"""A user's script with a subclass of FourfoldCLI, and LightningCLI without a class of ours."""

import subprocess
import sys
from pathlib import Path

import torch
import yaml

SCRIPT = '''
import sys
from lightning.pytorch.callbacks import EarlyStopping
from fourfold.cli import run_main
from fourfold.commands.train.lightning_cli import FourfoldCLI
from fourfold.data import CausalTextData
from fourfold.tasks import CausalLanguageModeling

class Wide(CausalLanguageModeling):
    """The task of the script."""

class MyCLI(FourfoldCLI):
    def __init__(self, **options):
        super().__init__(Wide, CausalTextData, trainer_defaults={"max_steps": 2}, **options)

    def add_arguments_to_parser(self, parser):
        super().add_arguments_to_parser(parser)
        parser.add_lightning_class_args(EarlyStopping, "early_stopping")
        parser.set_defaults({"early_stopping.monitor": "train/loss"})
        parser.link_arguments("data.init_args.block_size", "model.init_args.config.max_len")

    def before_fit(self):
        stops = [x for x in self.trainer.callbacks if isinstance(x, EarlyStopping)]
        print("before fit", stops[0].patience, type(self.model).__name__)

if __name__ == "__main__":
    sys.exit(run_main(MyCLI.run, sys.argv[1:]))
'''


def call(here: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "train.py", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=here)


def test_subclass_has_linked_arguments_callbacks_hooks_and_resumes(
    configs: dict[str, Path], here: Path
) -> None:
    (here / "train.py").write_text(SCRIPT)
    content = yaml.safe_load(configs["lm"].read_text())
    del content["model"]["class_path"], content["data"]["class_path"]
    del content["trainer"]["max_steps"]
    (here / "mine.yaml").write_text(yaml.safe_dump(content))
    fit = ("fit", "-c", "mine.yaml", "--run-dir", "r", "--early_stopping.patience=7")
    done = call(here, *fit)
    assert done.returncode == 0, done.stderr
    assert "before fit 7 Wide" in done.stdout
    recorded = yaml.safe_load((here / "r/config.yaml").read_text())
    assert recorded["early_stopping"]["patience"] == 7
    assert recorded["model"]["class_path"] == "__main__.Wide"
    last = here / "r/checkpoints/last.ckpt"
    content = torch.load(last, weights_only=True)
    assert content["global_step"] == 2  # of trainer_defaults
    assert content["fourfold"]["model"]["config"]["max_len"] == 16  # linked to the data
    done = call(here, *fit, "--trainer.max_steps=3")
    assert done.returncode == 0, done.stderr
    assert torch.load(last, weights_only=True)["global_step"] == 3
    done = call(here, *fit, "--trainer.max_steps=x")
    assert done.returncode == 2
    assert done.stderr.startswith("fourfold: error: trainer.max_steps: Expected a <class 'int'>")


def test_lightning_cli_trains_a_task_without_a_class_of_ours(text: Path, here: Path) -> None:
    (here / "train.py").write_text(
        "from lightning.pytorch.cli import LightningCLI\n"
        "from fourfold.data import CausalTextData\n"
        "from fourfold.tasks import CausalLanguageModeling\n"
        "LightningCLI(CausalLanguageModeling, CausalTextData, auto_configure_optimizers=False)\n"
    )
    options = {
        "data.source": "files",
        **{f"data.{name}": text / f"{name}.en" for name in ("train", "val", "test")},
        "data.block_size": 16,
        "data.tokenizer.vocab_size": 300,
        "model.config.d_model": 16,
        "model.config.n_layers": 1,
        "model.config.n_heads": 2,
        "model.config.vocab_size": "null",
        "model.config.max_len": 16,
        "trainer.max_steps": 2,
        "trainer.accelerator": "cpu",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    done = call(here, "fit", *words)
    assert done.returncode == 0, done.stderr
    (file,) = here.rglob("*.ckpt")
    done = call(here, "validate", f"--ckpt_path={file}", *words)
    assert done.returncode == 0, done.stderr
    assert "val/loss" in done.stdout
