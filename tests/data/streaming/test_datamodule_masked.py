"""Chunks of ids as rows with hidden tokens: each id once, and nothing depends on batches."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.core.errors import InputError
from fourfold.data import StreamedMaskedData, chunk_cache
from fourfold.data.batch import MaskedBatch
from fourfold.data.masking import MaskingConfig
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer
from fourfold.losses import IGNORED
from tests.chunk_files import write_chunks

TEXT = "one two three four five six seven eight nine ten\n" * 3
SIZES = [101, 64, 2, 90, 1, 77, 33]  # of the last row of a chunk some, all or one id are there


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streamed_masked")
    tokenizer = train_tokenizer(TokenizerConfig("wordpiece", 60), [TEXT], mask=True)
    rng = np.random.default_rng(0)
    words = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
    streams = [rng.choice([*words, tokenizer.eos_id], size) for size in SIZES]
    tokenizer.save(write_chunks(folder / "train", streams) / "tokenizer.json")
    ids = [*tokenizer.encode(TEXT), tokenizer.eos_id]
    write_chunks(folder / "val", [ids, ids[:5]])
    return folder


def make(place: Path, prefix: str = "", **options: Any) -> StreamedMaskedData:
    parts = {"train": f"{prefix}{place}/train", "val": f"{prefix}{place}/val"}
    return StreamedMaskedData(
        **{"max_len": 10, "batch_size": 4, "window": 2, "seed": 3, **parts, **options}
    )


def epoch_of(data: StreamedMaskedData, epoch: int, start: tuple[int, int] = (0, 0)) -> list[Any]:
    loader = data._loader("train", start)
    loader.batch_sampler.set_epoch(epoch)
    return list(loader)


def rows_of(batches: list[MaskedBatch], *fields: str) -> list[list[list[int]]]:
    return [[getattr(b, field)[i].tolist() for field in fields]
            for b in batches for i in range(len(b.ids))]  # fmt: skip


def whole(batch: MaskedBatch) -> torch.Tensor:
    """What stood there before tokens were hidden."""
    return torch.where(batch.targets == IGNORED, batch.ids, batch.targets)


def test_every_id_is_in_one_row_between_its_ends(place: Path) -> None:
    data = make(place)
    tokens, chunks = data.tokenizer, data.split("train").chunks
    found, lengths = [], []
    for batch in epoch_of(data, 1):
        mask = torch.ones_like(batch.ids, dtype=torch.bool) if batch.mask is None else batch.mask
        assert batch.ids.shape[1] == 10 == data.split("train").longest
        for ids, real in zip(whole(batch), mask, strict=True):
            n = int(real.sum())
            assert real[:n].all()
            assert ids[0] == tokens.bos_id
            assert ids[n - 1] == tokens.eos_id
            assert (ids[n:] == tokens.pad_id).all()
            found += ids[1 : n - 1].tolist()
            lengths.append(n - 2)
    streams = [chunks.read(i, [0], 999)[0] for i in range(len(SIZES))]
    assert sorted(found) == sorted(np.concatenate(streams).tolist())
    assert sorted(lengths) == sorted(
        length for size in SIZES for length in [8] * (size // 8) + [size % 8] * (size % 8 > 0)
    )


def test_what_is_hidden_is_never_special_and_as_much_as_was_asked(place: Path) -> None:
    data = make(place, masking=MaskingConfig(rate=0.25, masked=1.0, random=0.0))
    special = torch.tensor(data.tokenizer.special_ids)
    for batch in epoch_of(data, 0):
        hidden = batch.targets != IGNORED
        assert not torch.isin(batch.targets[hidden], special).any()
        assert (batch.ids[hidden] == data.tokenizer.mask_id).all()
        for row, chosen in zip(whole(batch), hidden, strict=True):
            n_words = int((~torch.isin(row, special)).sum())
            assert int(chosen.sum()) == (max(1, round(n_words * 0.25)) if n_words else 0)


def test_masks_follow_from_seed_epoch_and_row_alone(place: Path) -> None:
    data = make(place)
    rows = rows_of(epoch_of(data, 2), "ids", "targets")
    assert rows_of(epoch_of(make(place, batch_size=3), 2), "ids", "targets") == rows
    assert rows_of(epoch_of(make(place, seed=4), 2), "ids", "targets") != rows
    by_text = {}
    for epoch in (2, 3):
        for batch in epoch_of(data, epoch):
            for text, targets in zip(whole(batch), batch.targets, strict=True):
                by_text.setdefault(tuple(text.tolist()), []).append(targets.tolist())
    assert sum(a != b for a, b in (p for p in by_text.values() if len(p) == 2)) > len(by_text) / 2


def test_validation_hides_the_same_each_time(place: Path) -> None:
    data = make(place)
    first, again = (rows_of(list(data.val_dataloader()), "ids", "targets") for _ in range(2))
    assert first == again
    text = torch.cat([whole(batch)[:, 1:-1].flatten() for batch in data.val_dataloader()])
    assert data.tokenizer.decode(text.tolist()).startswith("one two three four")


def test_documents_end_with_eos(place: Path) -> None:
    data = make(place, mark_documents=True)
    for batch in epoch_of(data, 0):
        assert (batch.documents[:, 0] == 0).all()
        ends = whole(batch)[:, :-1] == data.tokenizer.eos_id
        inside = whole(batch)[:, 1:] != data.tokenizer.pad_id
        steps = batch.documents.diff(dim=1)
        assert (steps[inside] == ends[inside].long()).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_anywhere_and_from_far_away(
    place: Path, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(address: str, file: Path, size: int = 0) -> None:
        try:
            shutil.copy(address.removeprefix("far://"), file)
        except FileNotFoundError as error:
            raise InputError(f"{address} is not there") from error

    monkeypatch.setattr(chunk_cache, "fetch", fetch)
    monkeypatch.setattr("fourfold.data.token_chunks.fetch", fetch)
    expected = epoch_of(make(place), 2)
    more = {"cache": str(tmp_path), "cache_gb": 600e-9, "num_workers": workers}
    data = make(place, "far://", **more)
    for done in (0, 1, 7):
        rest = epoch_of(data, 2, start=(2, done))
        assert rows_of(rest, "ids", "targets") == rows_of(expected[done:], "ids", "targets")
        assert [batch.position for batch in rest] == [b.position for b in expected[done:]]


def test_the_state_knows_the_rows(place: Path) -> None:
    state = make(place).state_dict()
    make(place).load_state_dict(state)
    for other in ({"window": 3}, {"max_len": 11}, {"batch_size": 2}):
        with pytest.raises(InputError, match="other training data, or with batches"):
            make(place, **other).load_state_dict(state)


def test_what_it_cannot_is_one_sentence(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_len=4"):
        make(place, max_len=4)
    with pytest.raises(InputError, match=r"StreamedMaskedData needs `train`, or a tokenizer\.file"):
        make(place, train=None).setup()
    train_tokenizer(TokenizerConfig("char", 20), ["one two"], mask=False).save(tmp_path / "t.json")
    with pytest.raises(InputError, match="has no mask token"):
        make(place, tokenizer=TokenizerConfig(file=str(tmp_path / "t.json"))).setup()
    copy = shutil.copytree(place, tmp_path / "copy")
    shutil.copy(tmp_path / "t.json", copy / "train/tokenizer.json")
    with pytest.raises(InputError, match="The tokenizer has no mask token"):
        make(copy).setup()
