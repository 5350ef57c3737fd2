from pathlib import Path

import pytest

from fourfold.commands.train.changed_options import describe_changes
from fourfold.errors import InputError

RECORD = """\
trainer: {devices: 1, callbacks: [{class_path: a.B, init_args: {patience: 3}}], max_steps: 5}
model: {class_path: a.C, init_args: {init_from: x, optimizer: {lr: 0.1, betas: [0.9, 0.999]}}}
"""


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("", "", []),
        ("devices: 1", "devices: '1', default_root_dir: a", []),
        ("devices: 1", "devices: 2", ["trainer.devices=2, recorded 1"]),
        ("patience: 3", "patience: 4", ["trainer.callbacks=[{class_path: a.B, init_args: {pat"]),
        ("0.999", "0.99", ["model.optimizer.betas=[0.9, 0.99], recorded [0.9, 0.999]"]),
        ("a.C", "a.D", ["model.class_path=a.D, recorded a.C"]),
        ("max_steps: 5", "another: true", ["trainer.max_steps=null", "trainer.another=true"]),
        ("init_from: x", "init_from: ./x", []),
    ],
)
def test_every_changed_option_has_one_line(
    old: str, new: str, lines: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(RECORD)
    found = describe_changes(RECORD.replace(old, new), tmp_path / "config.yaml")
    assert len(found) == len(lines)
    for line, expected in zip(found, lines, strict=True):
        assert line.startswith(f"resuming with {expected}")


@pytest.mark.parametrize("text", ["trainer: [1", ""])
def test_damaged_record_is_reported(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    (line,) = describe_changes(RECORD, tmp_path / "config.yaml")
    assert "is missing or damaged" in line


def test_other_source_of_the_weights_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(RECORD)
    with pytest.raises(InputError, match=r"model.init_from must be x, .*, got y"):
        describe_changes(RECORD.replace("init_from: x", "init_from: y"), file)


@pytest.mark.parametrize("name", ["optimizer", "lr_scheduler"])
def test_optimizer_of_torch_cannot_change(name: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"{RECORD}{name}: {{class_path: torch.optim.SGD}}\n")
    with pytest.raises(
        InputError, match=f"{name}.class_path must be torch.optim.SGD, .*, got null"
    ):
        describe_changes(RECORD, file)
