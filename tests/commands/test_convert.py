"""A trained run goes to transformers with all that belongs to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from PIL import Image

from fourfold.data.vision.eval_transforms import eval_transform
from fourfold.tasks import load_task

Run = Callable[..., Any]
Train = Callable[[str], Path]


def exported(run: Run, checkpoint: Path, target: Path) -> str:
    result = run("export", checkpoint, target)
    assert result.code == 0, result.err
    return str(result.out)


@pytest.mark.parametrize(
    ("family", "auto", "around"),
    [
        ("mt", "AutoModelForSeq2SeqLM", (False, True)),
        ("lm", "AutoModelForCausalLM", (False, False)),
        ("mlm", "AutoModelForMaskedLM", (True, True)),
    ],
)
def test_text(
    family: str, auto: str, around: tuple[bool, bool], run: Run, trained: Train, here: Path
) -> None:
    checkpoint = trained(family) / "checkpoints/last.ckpt"
    out = exported(run, checkpoint, here / "there")
    task = load_task(checkpoint)
    tokenizer = hf.AutoTokenizer.from_pretrained(here / "there")
    own = task.tokenizer.encode("one two seven")
    before, after = around
    expected = [task.tokenizer.bos_id] * before + own + [task.tokenizer.eos_id] * after
    assert tokenizer("one two seven")["input_ids"] == expected
    assert tokenizer.decode(expected, skip_special_tokens=True).strip() == "one two seven"

    model = getattr(hf, auto).from_pretrained(here / "there").eval()
    x = torch.tensor([expected])
    with torch.no_grad():
        if family == "mt":
            assert "norm_eps changes from 1e-06 to 1e-05" in out
            tgt = torch.tensor([[task.tokenizer.bos_id, *own]])
            theirs = model(input_ids=x, decoder_input_ids=tgt).logits
            ours = task.model(x, tgt)
            assert model.config.decoder_start_token_id == task.tokenizer.bos_id
        else:
            theirs, ours = model(input_ids=x).logits, task.model(x)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
    assert model.config.pad_token_id == task.tokenizer.pad_id


def test_images(run: Run, trained: Train, here: Path) -> None:
    checkpoint = trained("vit") / "checkpoints/last.ckpt"
    exported(run, checkpoint, here / "there")
    task = load_task(checkpoint)
    model = hf.AutoModelForImageClassification.from_pretrained(here / "there").eval()
    assert list(model.config.id2label.values()) == task.artifacts["class_names"]
    image = Image.effect_noise((8, 8), 90)
    image.save(here / "x.png")
    pixels = eval_transform(task.artifacts)(str(here / "x.png"))[None]
    with torch.no_grad():
        torch.testing.assert_close(model(pixel_values=pixels).logits, task.model(pixels))
    # And back: a checkpoint that classifies.
    assert run("import", here / "there", here / "again.ckpt").code == 0
    again = load_task(here / "again.ckpt")
    assert again.artifacts == {
        **task.artifacts,
        "mean": again.artifacts["mean"],
        "std": again.artifacts["std"],
    }
