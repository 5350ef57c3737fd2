"""StreamedCausalTextData: rows cover the chunks, and resume does not depend on the cache."""

import shutil

import numpy as np
import pytest
import torch

from fourfold.data import StreamedCausalTextData
from fourfold.data.loading.sampler import Position
from fourfold.data.streaming import chunks as chunks_module
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from tests.fixtures.chunk_files import write_chunks

TEXT = "one two three four five six seven eight nine ten\n" * 3
SIZES = [101, 64, 2, 90, 1, 77, 33]  # the chunk with a single id has no row


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Training chunks of random ids with their tokenizer, and two validation chunks of text."""
    root = tmp_path_factory.mktemp("streamed")
    tokenizer = train_tokenizer(TokenizerConfig("byte_bpe", 300), [TEXT], mask=False)
    rng = np.random.default_rng(0)
    streams = [rng.integers(0, tokenizer.vocab_size, size) for size in SIZES]
    tokenizer.save(write_chunks(root / "train", streams) / "tokenizer.json")
    ids = [*tokenizer.encode(TEXT), tokenizer.eos_id]
    write_chunks(root / "val", [ids, ids[:5]])
    return root


@pytest.fixture
def store(monkeypatch):
    """Object store `store://` over a folder; returns downloads and peak size of the cache."""
    usage = {"names": [], "peak_bytes": 0}

    def fetch(address, file, size=0):
        try:
            shutil.copy(address.removeprefix("store://"), file)
        except FileNotFoundError as error:
            raise InputError("there is no such file", file=address) from error
        usage["names"].append(address.rpartition("/")[2])
        cached = sum(f.stat().st_size for f in file.parent.glob("*.bin*"))
        usage["peak_bytes"] = max(usage["peak_bytes"], cached)

    monkeypatch.setattr(chunks_module, "fetch", fetch)
    monkeypatch.setattr("fourfold.data.streaming.chunks.fetch", fetch)
    return usage


def make(folder, prefix="", **options):
    splits = {"train": f"{prefix}{folder}/train", "val": f"{prefix}{folder}/val"}
    options = {"block_size": 8, "batch_size": 4, "shuffle_chunks": 2, "seed": 3} | splits | options
    return StreamedCausalTextData(**options)


def epoch_of(data, epoch, start=(0, 0)):
    loader = data._loader("train", Position(*start))
    loader.batch_sampler.set_epoch(epoch)
    return [(b.position, b.ids.tolist(), b.targets.tolist()) for b in loader]


def test_every_id_except_first_of_chunk_is_target_once(folder):
    data = make(folder)
    rows = [row for batch in data.train_dataloader() for row in batch.targets]
    targets = np.sort(torch.cat([row[row != IGNORE_INDEX] for row in rows]).numpy())
    chunks = data.split("train").chunks
    streams = [chunks.read(i, [0], 999)[0] for i in range(len(SIZES))]
    assert targets.tolist() == np.sort(np.concatenate([s[1:] for s in streams])).tolist()
    assert len(rows) == sum(-(-(size - 1) // 8) for size in SIZES)
    for batch in data.train_dataloader():
        inside = batch.targets[:, :-1] != IGNORE_INDEX
        assert (batch.ids[:, 1:][inside] == batch.targets[:, :-1][inside]).all()


def test_validation_reads_chunks_in_order(folder):
    data = make(folder)
    batches = list(data.val_dataloader())
    targets = torch.cat([b.targets[b.targets != IGNORE_INDEX] for b in batches])
    assert batches[0].ids[0, 0] == data.tokenizer.encode(TEXT)[0]
    assert data.tokenizer.decode(targets).startswith(TEXT[3:])
    assert data.split("val").max_length == 8


def test_documents_end_with_eos(folder):
    data = make(folder, block_cross_document_attention=True, val=f"{folder}/val")
    eos = data.tokenizer.eos_id
    for batch in data.train_dataloader():
        assert batch.documents.shape == batch.ids.shape
        assert ((batch.documents.diff(dim=1) == 1) == (batch.ids[:, 1:] == eos)).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_store_and_workers_give_the_same_batches_within_cache_limit(
    folder, store, tmp_path, workers
):
    local = make(folder)
    limit = 600  # bytes; all chunks have about 1,000, the largest two 420
    data = make(
        folder, "store://", cache=str(tmp_path), max_cache_gb=limit / 1e9, num_workers=workers
    )
    for epoch in (0, 2):
        uninterrupted = epoch_of(local, epoch)
        assert epoch_of(data, epoch) == uninterrupted
        for done in (1, 7, 11):
            assert epoch_of(data, epoch, start=(epoch, done)) == uninterrupted[done:]
    assert list(data.val_dataloader())
    cached = sum(file.stat().st_size for file in tmp_path.glob("*.bin"))
    assert 0 < cached <= limit < sum(file.stat().st_size for file in folder.glob("train/*.bin"))
    if not workers:  # worker processes have their own counters
        assert 0 < store["peak_bytes"] <= limit


def test_cache_of_two_windows_downloads_no_chunk_twice(folder, store, tmp_path):
    data = make(folder, "store://", cache=str(tmp_path), max_cache_gb=800e-9, val=None)
    epoch_of(data, 1)
    names = [name for name in store["names"] if name.endswith(".bin")]
    assert len(names) == len(set(names)) == sum(size > 1 for size in SIZES)


def test_litdata_downloads_chunks(folder, tmp_path):
    pytest.importorskip("litdata")
    data = make(folder, "local:", cache=str(tmp_path), max_cache_gb=600e-9)
    assert epoch_of(data, 1) == epoch_of(make(folder), 1)
    assert 0 < sum(file.stat().st_size for file in tmp_path.glob("*.bin")) <= 600


def test_resume_with_other_chunks_or_options_raises(folder, tmp_path):
    state = make(folder).state_dict()
    make(folder).load_state_dict(state)
    copy = shutil.copytree(folder, tmp_path / "copy")
    make(copy).load_state_dict(state)  # moved chunks are the same data
    for other in ({"shuffle_chunks": 3}, {"block_size": 9}, {"batch_size": 2}):
        with pytest.raises(InputError, match="other training data or batch sizes"):
            make(folder, **other).load_state_dict(state)
    shorter = np.zeros(SIZES[-1] - 1, np.uint16)  # equally many rows, one of them shorter
    write_chunks(copy / "train", [*map(np.zeros, SIZES[:-1]), shorter])
    with pytest.raises(InputError, match="other training data"):
        make(copy).load_state_dict(state)


def test_id_outside_vocabulary_raises(folder, tmp_path):
    small = train_tokenizer(TokenizerConfig("char", 20), ["one two"], mask=False)
    small.save(tmp_path / "t.json")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "train/tokenizer.json").unlink()
    data = make(copy, tokenizer=TokenizerConfig(file=str(tmp_path / "t.json")))
    with pytest.raises(InputError, match=r"chunk-0-\d.bin: the file has id \d+, but"):
        list(data.train_dataloader())


@pytest.mark.parametrize("split", ["train", "val"])
def test_chunks_of_another_tokenizer_raise(folder, tmp_path, split):
    copy = shutil.copytree(folder, tmp_path / "copy")
    other = train_tokenizer(TokenizerConfig("byte_bpe", 300), [TEXT[::-1]], mask=False)
    other.save(copy / split / "tokenizer.json")
    given = TokenizerConfig(file=str(folder / "train/tokenizer.json"))
    match = rf"copy/{split}/tokenizer.json: id \d+ of these chunks is '.*, but the tokenizer of"
    with pytest.raises(InputError, match=match):
        make(copy, tokenizer=given).setup()
    state = make(folder).state_dict()
    with pytest.raises(InputError, match=match):
        make(copy).load_state_dict(state)


def test_tokenizer_with_additional_tokens_reads_the_same_ids(folder, tmp_path):
    tokenizer = Tokenizer.from_str((folder / "train/tokenizer.json").read_text())
    tokenizer.backend.add_special_tokens(["<mask>"])
    tokenizer.save(tmp_path / "more.json")
    original = make(folder)
    data = make(folder, tokenizer=TokenizerConfig(file=str(tmp_path / "more.json")))
    assert data.vocab_size == original.vocab_size + 1
    assert epoch_of(data, 0) == epoch_of(original, 0)
    ids = torch.cat([batch.ids.flatten() for batch in data.val_dataloader()])
    assert data.tokenizer.decode(ids).startswith(TEXT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"max_cache_gb": 0.0}, "max_cache_gb must be above 0, got 0.0"),
        ({"train": None}, "data.train must be given for its tokenizer"),
        ({"train": "/nowhere"}, "/nowhere/index.json: there is no such file"),
        ({"shuffle_chunks": 0}, "shuffle_chunks must be at least 1, got 0"),
    ],
)
def test_invalid_option_raises(folder, options, message):
    with pytest.raises(InputError, match=message):
        make(folder, **options).setup()


def test_cache_smaller_than_window_raises(folder, store, tmp_path):
    with pytest.raises(InputError, match=r"max_cache_gb .* shuffle_chunks=2 .* got 3e-07"):
        make(folder, "store://", cache=str(tmp_path), max_cache_gb=300e-9).setup()


def test_chunks_without_tokenizer_raise(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "train/tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"train/tokenizer.json: there is no such file"):
        make(copy).setup()
