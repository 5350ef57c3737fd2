"""Tests of the JSON files of other programs: types of values, and absent or unreadable files."""

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import fourfold
from fourfold.errors import DiskError, InputError, reading
from fourfold.json_files import TYPES, read_json

# Values of each JSON type.
SAMPLES: list[Any] = [3, 0.5, "x", True, [0.5], [2], ["x"], [{}], {"a": 1}, {"a": "x"}]


def is_accepted(file: Path, key: str, value: Any) -> bool:
    file.write_text(json.dumps({key: value}))
    with suppress(InputError):
        return key in read_json(file)
    with pytest.raises(InputError) as caught:
        read_json(file)
    assert str(caught.value).startswith(f"{file}: {key} must be ")
    return False


@pytest.mark.parametrize("name", TYPES)
def test_every_key_has_values_that_are_accepted_and_values_that_are_not(
    name: str, tmp_path: Path
) -> None:
    for key in TYPES[name]:
        accepted = [is_accepted(tmp_path / name, key, value) for value in SAMPLES]
        assert 1 <= sum(accepted) < len(SAMPLES) - 3, key
        assert is_accepted(tmp_path / name, key, None)
        assert not is_accepted(tmp_path / name, key, math.nan)


@pytest.mark.parametrize("content", ["nowhere", None, b"", b"{", b"[]", b"\xff", b"\x00"])
def test_unreadable_optional_file_is_not_absent(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    assert read_json(file, optional=True) == {}
    with pytest.raises(InputError):
        read_json(file)
    if content is None:
        file.mkdir()
    elif isinstance(content, str):
        file.symlink_to(content)
    else:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"generation_config\.json"):
        read_json(file, optional=True)


def test_optional_file_in_the_data_folder_is_not_a_substitute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative link without a target is not looked up under $FOURFOLD_DATA."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.json").write_text("{}")
    (tmp_path / "config.json").symlink_to("nowhere")
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"config\.json"):
        read_json(Path("config.json"), optional=True)


@pytest.mark.parametrize(
    "name", ["best.ckpt", "model.safetensors", "fourfold.json", "tokenizer.json"]
)
def test_link_without_a_target_does_not_select_another_file(name: str, tmp_path: Path) -> None:
    """The pruned cache of a hub, or a moved checkpoint, must not change which weights are read."""
    folder = tmp_path / "model"
    fourfold.save(fourfold.create("gpt2", n_layers=1, d_model=8, n_heads=1, vocab_size=20), folder)
    weights = folder / "model.safetensors"
    if name == "best.ckpt":
        folder = tmp_path / "run"
        (folder / "checkpoints").mkdir(parents=True)
        torch.save({}, folder / "checkpoints" / "last.ckpt")
        (folder / "checkpoints" / name).symlink_to("nowhere")
    elif name == "model.safetensors":
        torch.save(fourfold.load(folder).source.unmapped_tensors, folder / "pytorch_model.bin")
        weights.unlink()
        weights.symlink_to("nowhere")
    else:
        fourfold.load(folder)
        (folder / name).symlink_to("nowhere")
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        fourfold.load(folder)


ERRORS = (KeyError("a"), IndexError(), TypeError("x\ny"), AttributeError(), OverflowError())


@pytest.mark.parametrize(
    "error", [*ERRORS, RecursionError(), OSError(36, "too long"), ValueError()]
)
def test_unexpected_error_of_a_reader_names_the_file_and_keeps_its_cause(error: Exception) -> None:
    with (
        pytest.raises(InputError, match=r"^f\.json: the content is invalid") as caught,
        reading("f.json"),
    ):
        raise error
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error", [DiskError("full"), MemoryError(), RuntimeError("a bug"), AssertionError()]
)
def test_other_errors_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, reading("f.json"):
        raise error
    assert caught.value is error


def test_errors_in_the_code_of_a_user_keep_their_class(tmp_path: Path) -> None:
    class Broken(fourfold.models.CausalLM):
        def __init__(self, config: fourfold.models.CausalLMConfig) -> None:
            if is_broken:
                raise KeyError("a fault of the user")
            super().__init__(config)

    is_broken = False
    config = fourfold.models.CausalLMConfig(n_layers=1, d_model=8, n_heads=1, vocab_size=20)
    fourfold.save(Broken(config), tmp_path / "m")
    assert isinstance(fourfold.load(tmp_path / "m", classes=[Broken]), Broken)
    is_broken = True
    with pytest.raises(KeyError, match="a fault of the user"):
        fourfold.load(tmp_path / "m", classes=[Broken])
