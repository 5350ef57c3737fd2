"""StreamedMaskedTextData: rows cover the chunks, and masks depend on seed, epoch and row alone."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.data import StreamedMaskedTextData
from fourfold.data.loading.batches import MaskedBatch
from fourfold.data.loading.sampler import Position
from fourfold.data.streaming import chunks as chunks_module
from fourfold.data.text.masking import MaskingConfig
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from tests.fixtures.chunk_files import write_chunks

TEXT = "one two three four five six seven eight nine ten\n" * 3
SIZES = [101, 64, 2, 90, 1, 77, 33]  # last rows of chunks are partial, full, or have one id


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("streamed_masked")
    tokenizer = train_tokenizer(TokenizerConfig("wordpiece", 60), [TEXT], mask=True)
    rng = np.random.default_rng(0)
    ordinary_ids = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
    streams = [rng.choice([*ordinary_ids, tokenizer.eos_id], size) for size in SIZES]
    tokenizer.save(write_chunks(root / "train", streams) / "tokenizer.json")
    ids = [*tokenizer.encode(TEXT), tokenizer.eos_id]
    write_chunks(root / "val", [ids, ids[:5]])
    return root


def make(folder: Path, prefix: str = "", **options: Any) -> StreamedMaskedTextData:
    splits = {"train": f"{prefix}{folder}/train", "val": f"{prefix}{folder}/val"}
    return StreamedMaskedTextData(
        **{"max_len": 10, "batch_size": 4, "shuffle_chunks": 2, "seed": 3, **splits, **options}
    )


def epoch_of(
    data: StreamedMaskedTextData, epoch: int, start: tuple[int, int] = (0, 0)
) -> list[Any]:
    loader = data._loader("train", Position(*start))
    loader.batch_sampler.set_epoch(epoch)
    return list(loader)


def rows_of(batches: list[MaskedBatch], *fields: str) -> list[list[list[int]]]:
    return [
        [getattr(batch, field)[i].tolist() for field in fields]
        for batch in batches
        for i in range(len(batch.ids))
    ]


def original_ids(batch: MaskedBatch) -> torch.Tensor:
    """Return the ids before masking."""
    return torch.where(batch.targets == IGNORE_INDEX, batch.ids, batch.targets)


def test_rows_cover_every_id_between_bos_and_eos(folder: Path) -> None:
    data = make(folder)
    tokenizer = data.tokenizer
    chunks = data.split("train").chunks
    found = []
    lengths = []
    for batch in epoch_of(data, 1):
        mask = torch.ones_like(batch.ids, dtype=torch.bool) if batch.mask is None else batch.mask
        assert batch.ids.shape[1] == 10 == data.split("train").max_length
        for ids, real in zip(original_ids(batch), mask, strict=True):
            n = int(real.sum())
            assert real[:n].all()
            assert ids[0] == tokenizer.bos_id
            assert ids[n - 1] == tokenizer.eos_id
            assert (ids[n:] == tokenizer.pad_id).all()
            found += ids[1 : n - 1].tolist()
            lengths.append(n - 2)
    streams = [chunks.read(i, [0], 999)[0] for i in range(len(SIZES))]
    assert sorted(found) == sorted(np.concatenate(streams).tolist())
    assert sorted(lengths) == sorted(
        length for size in SIZES for length in [8] * (size // 8) + [size % 8] * (size % 8 > 0)
    )


def test_targets_are_not_special_and_have_the_configured_fraction(folder: Path) -> None:
    data = make(
        folder,
        masking=MaskingConfig(mlm_probability=0.25, mask_replace_prob=1.0, random_replace_prob=0.0),
    )
    special = torch.tensor(data.tokenizer.special_ids)
    for batch in epoch_of(data, 0):
        is_target = batch.targets != IGNORE_INDEX
        assert not torch.isin(batch.targets[is_target], special).any()
        assert (batch.ids[is_target] == data.tokenizer.mask_id).all()
        for row, chosen in zip(original_ids(batch), is_target, strict=True):
            n_ordinary = int((~torch.isin(row, special)).sum())
            assert int(chosen.sum()) == (max(1, round(n_ordinary * 0.25)) if n_ordinary else 0)


def test_masks_depend_on_seed_epoch_and_row_alone(folder: Path) -> None:
    data = make(folder)
    rows = rows_of(epoch_of(data, 2), "ids", "targets")
    assert rows_of(epoch_of(make(folder, batch_size=3), 2), "ids", "targets") == rows
    assert rows_of(epoch_of(make(folder, seed=4), 2), "ids", "targets") != rows
    by_text = {}
    for epoch in (2, 3):
        for batch in epoch_of(data, epoch):
            for text, targets in zip(original_ids(batch), batch.targets, strict=True):
                by_text.setdefault(tuple(text.tolist()), []).append(targets.tolist())
    assert sum(a != b for a, b in (p for p in by_text.values() if len(p) == 2)) > len(by_text) / 2


def test_validation_masks_are_equal_in_all_epochs(folder: Path) -> None:
    data = make(folder)
    first, again = (rows_of(list(data.val_dataloader()), "ids", "targets") for _ in range(2))
    assert first == again
    text = torch.cat([original_ids(batch)[:, 1:-1].flatten() for batch in data.val_dataloader()])
    assert data.tokenizer.decode(text.tolist()).startswith("one two three four")


def test_documents_end_with_eos(folder: Path) -> None:
    data = make(folder, block_cross_document_attention=True)
    for batch in epoch_of(data, 0):
        assert (batch.documents[:, 0] == 0).all()
        ends = original_ids(batch)[:, :-1] == data.tokenizer.eos_id
        inside = original_ids(batch)[:, 1:] != data.tokenizer.pad_id
        steps = batch.documents.diff(dim=1)
        assert (steps[inside] == ends[inside].long()).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_from_store_restores_position(
    folder: Path, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(address: str, file: Path, size: int = 0) -> None:
        try:
            shutil.copy(address.removeprefix("store://"), file)
        except FileNotFoundError as error:
            raise InputError("there is no such file", file=address) from error

    monkeypatch.setattr(chunks_module, "fetch", fetch)
    monkeypatch.setattr("fourfold.data.streaming.chunks.fetch", fetch)
    expected = epoch_of(make(folder), 2)
    options = {"cache": str(tmp_path), "max_cache_gb": 600e-9, "num_workers": workers}
    data = make(folder, "store://", **options)
    for done in (0, 1, 7):
        rest = epoch_of(data, 2, start=(2, done))
        assert rows_of(rest, "ids", "targets") == rows_of(expected[done:], "ids", "targets")
        assert [batch.position for batch in rest] == [b.position for b in expected[done:]]


def test_resume_with_other_options_raises(folder: Path) -> None:
    state = make(folder).state_dict()
    make(folder).load_state_dict(state)
    for other in ({"shuffle_chunks": 3}, {"max_len": 11}, {"batch_size": 2}):
        with pytest.raises(InputError, match="other training data or batch sizes"):
            make(folder, **other).load_state_dict(state)


def test_invalid_option_raises(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_len must be at least 5, got 4"):
        make(folder, max_len=4)
    with pytest.raises(InputError, match=r"data\.train must be given for its tokenizer,"):
        make(folder, train=None).setup()
    train_tokenizer(TokenizerConfig("char", 20), ["one two"], mask=False).save(tmp_path / "t.json")
    with pytest.raises(InputError, match="must contain a mask token"):
        make(folder, tokenizer=TokenizerConfig(file=str(tmp_path / "t.json"))).setup()
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.copy(tmp_path / "t.json", copy / "train/tokenizer.json")
    with pytest.raises(InputError, match="tokenizer must have a mask token"):
        make(copy).setup()
