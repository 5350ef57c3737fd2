"""Digests of checkpoints: every flipped bit changes them, and files without them can be read."""

import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoints.digests import KEY, compute_digests, find_mismatch
from fourfold.checkpoints.files import DamagedFile, read_file, write_file


def content() -> dict[str, Any]:
    weight = torch.arange(15.0).reshape(3, 5)
    return {
        "state_dict": OrderedDict(a=weight, b=weight[1:], c=torch.ones(3, dtype=torch.uint8)),
        "empty": torch.zeros(0),
        "sparse": torch.eye(2).to_sparse(),
        "step": 7,
        "rates": [0.1, (float("nan"), None), {"x", "y"}],
        3: {"half": torch.ones(5, dtype=torch.bfloat16)},
    }


def test_saved_content_has_the_same_digests(tmp_path: Path) -> None:
    file = tmp_path / "a.ckpt"
    write_file(content(), file)
    stored = torch.load(file, weights_only=True)
    digests = stored.pop(KEY)
    assert digests == compute_digests(content()) == compute_digests(stored)
    assert set(digests["tensors"]) == {
        *("state_dict.a", "state_dict.b", "state_dict.c", "empty", "3.half"),
    }
    assert read_file(file).keys() == content().keys()


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_checkpoint_that_was_loaded_can_be_saved_again(kind: type, tmp_path: Path) -> None:
    """Lightning's launcher saves a state dict, which is an OrderedDict."""
    file = tmp_path / "a.ckpt"
    write_file(kind(content()), file)
    write_file(torch.load(file, weights_only=True), file)
    assert read_file(file).keys() == content().keys()


def test_every_bit_of_a_tensor_counts() -> None:
    intact = content()
    digests = compute_digests(intact)
    for name in ("a", "c"):
        data = intact["state_dict"][name].view(torch.uint8).flatten()
        for i in range(len(data)):
            for bit in range(8):
                data[i] ^= 1 << bit
                assert find_mismatch(intact, digests) == f"state_dict.{name}"
                data[i] ^= 1 << bit
    assert not find_mismatch(intact, digests)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 8},
        {"step": 7.0},
        {"step": True},
        {"rates": [0.1, [float("nan"), None], {"x", "y"}]},
        {"rates": [0.1, (float("nan"), None), {"x", "z"}]},
        {"empty": torch.zeros(0, 2)},
        {"sparse": None},
        {"more": 1},
    ],
)
def test_every_value_counts(change: dict[str, Any]) -> None:
    assert find_mismatch({**content(), **change}, compute_digests(content())) == "values"


def test_missing_and_misread_tensors_are_named() -> None:
    digests = compute_digests(content())
    changed = content()
    del changed["state_dict"]["c"]
    assert find_mismatch(changed, digests) == "values"
    changed = content()
    changed[3]["half"] = torch.zeros(5, dtype=torch.bfloat16)
    assert find_mismatch(changed, digests) == "3.half"


def test_wrong_digest_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.ckpt"
    digests = compute_digests(content())
    digests["tensors"]["3.half"] += 1
    torch.save({**content(), KEY: digests}, file)
    with pytest.raises(DamagedFile, match=r"a\.ckpt: .*corrupted: digest of 3\.half is wrong"):
        read_file(file)
    torch.save({**content(), KEY: "junk"}, file)
    with pytest.raises(DamagedFile, match=r"a\.ckpt: "):
        read_file(file)


def test_file_without_digests_is_read(tmp_path: Path) -> None:
    """Earlier versions of fourfold and other programs save no digests."""
    torch.save({"step": 1}, tmp_path / "new.pt")
    torch.save({"step": 1}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert read_file(tmp_path / "new.pt") == read_file(tmp_path / "old.pt") == {"step": 1}


def test_compressed_file_is_rejected_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bomb.ckpt"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(20 << 20))

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("the file was unpacked")

    monkeypatch.setattr(zipfile.ZipFile, "testzip", fail)
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(DamagedFile, match="archive/data/0 is compressed"):
        read_file(file)


def test_overlapping_entries_are_rejected(tmp_path: Path) -> None:
    """Entries that share their bytes would unpack to more than the size of the file."""
    file = tmp_path / "shared.ckpt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data/0", bytes(5000))
        archive.filelist += archive.filelist * 3
    with pytest.raises(DamagedFile, match="entries overlap"):
        read_file(file)


def test_shared_containers_are_digested_once() -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]
    assert compute_digests({"nested": nested})["tensors"] == {}
