import shutil

import numpy as np
import pytest
import torch

from fourfold.core.errors import InputError
from fourfold.data import StreamedTextData, chunk_cache
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer
from fourfold.losses import IGNORED
from tests.chunk_files import write_chunks

TEXT = "one two three four five six seven eight nine ten\n" * 3
SIZES = [101, 64, 2, 90, 1, 77, 33]  # one chunk holds a single id: no row


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Chunks of random ids with their tokenizer, and a hidden text of two chunks."""
    folder = tmp_path_factory.mktemp("streamed")
    tokenizer = train_tokenizer(TokenizerConfig("byte_bpe", 300), [TEXT], mask=False)
    rng = np.random.default_rng(0)
    streams = [rng.integers(0, tokenizer.vocab_size, size) for size in SIZES]
    tokenizer.save(write_chunks(folder / "train", streams) / "tokenizer.json")
    ids = [*tokenizer.encode(TEXT), tokenizer.eos_id]
    write_chunks(folder / "val", [ids, ids[:5]])
    return folder


@pytest.fixture
def far(monkeypatch):
    """`far://` is a folder that can only be copied from; what was copied, and the peak of bytes."""
    seen = {"copied": [], "peak": 0}

    def fetch(address, file, size=0):
        try:
            shutil.copy(address.removeprefix("far://"), file)
        except FileNotFoundError as error:
            raise InputError(f"{address} cannot be fetched: it is not there.") from error
        seen["copied"].append(address.rpartition("/")[2])
        held = sum(f.stat().st_size for f in file.parent.glob("*.bin*"))
        seen["peak"] = max(seen["peak"], held)

    monkeypatch.setattr(chunk_cache, "fetch", fetch)
    monkeypatch.setattr("fourfold.data.token_chunks.fetch", fetch)
    return seen


def make(place, prefix="", **options):
    parts = {"train": f"{prefix}{place}/train", "val": f"{prefix}{place}/val"}
    options = {"block_size": 8, "batch_size": 4, "window": 2, "seed": 3} | parts | options
    return StreamedTextData(**options)


def epoch_of(data, epoch, start=(0, 0)):
    loader = data._loader("train", start)
    loader.batch_sampler.set_epoch(epoch)
    return [(b.position, b.ids.tolist(), b.targets.tolist()) for b in loader]


def test_every_id_but_the_first_of_a_chunk_is_a_target_once(place):
    data = make(place)
    rows = [row for batch in data.train_dataloader() for row in batch.targets]
    targets = np.sort(torch.cat([row[row != IGNORED] for row in rows]).numpy())
    chunks = data.split("train").chunks
    streams = [chunks.read(i, [0], 999)[0] for i in range(len(SIZES))]
    assert targets.tolist() == np.sort(np.concatenate([s[1:] for s in streams])).tolist()
    assert len(rows) == sum(-(-(size - 1) // 8) for size in SIZES)
    for batch in data.train_dataloader():
        inside = batch.targets[:, :-1] != IGNORED
        assert (batch.ids[:, 1:][inside] == batch.targets[:, :-1][inside]).all()


def test_validation_reads_the_text_in_order(place):
    data = make(place)
    batches = list(data.val_dataloader())
    targets = torch.cat([b.targets[b.targets != IGNORED] for b in batches])
    assert batches[0].ids[0, 0] == data.tokenizer.encode(TEXT)[0]
    assert data.tokenizer.decode(targets).startswith(TEXT[3:])
    assert data.split("val").longest == 8


def test_documents_end_with_eos(place):
    data = make(place, mark_documents=True, val=f"{place}/val")
    eos = data.tokenizer.eos_id
    for batch in data.train_dataloader():
        assert batch.documents.shape == batch.ids.shape
        assert ((batch.documents.diff(dim=1) == 1) == (batch.ids[:, 1:] == eos)).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_from_far_away_the_batches_are_the_same_and_the_cache_stays_small(
    place, far, tmp_path, workers
):
    near = make(place)
    limit = 600  # of about 1,000 bytes; the largest two take 420
    data = make(place, "far://", cache=str(tmp_path), cache_gb=limit / 1e9, num_workers=workers)
    for epoch in (0, 2):
        whole = epoch_of(near, epoch)
        assert epoch_of(data, epoch) == whole
        for done in (1, 7, 11):
            assert epoch_of(data, epoch, start=(epoch, done)) == whole[done:]
    assert list(data.val_dataloader())
    held = sum(file.stat().st_size for file in tmp_path.glob("*.bin"))
    assert 0 < held <= limit < sum(file.stat().st_size for file in place.glob("train/*.bin"))
    if not workers:  # else others copied
        assert 0 < far["peak"] <= limit


def test_two_windows_in_the_cache_fetch_no_chunk_twice(place, far, tmp_path):
    data = make(place, "far://", cache=str(tmp_path), cache_gb=800e-9, val=None)
    epoch_of(data, 1)
    copied = [name for name in far["copied"] if name.endswith(".bin")]
    assert len(copied) == len(set(copied)) == sum(size > 1 for size in SIZES)


def test_litdata_brings_what_is_far_away(place, tmp_path):
    pytest.importorskip("litdata")
    data = make(place, "local:", cache=str(tmp_path), cache_gb=600e-9)
    assert epoch_of(data, 1) == epoch_of(make(place), 1)
    assert 0 < sum(file.stat().st_size for file in tmp_path.glob("*.bin")) <= 600


def test_the_state_knows_the_chunks(place, tmp_path):
    state = make(place).state_dict()
    make(place).load_state_dict(state)
    copy = shutil.copytree(place, tmp_path / "copy")
    make(copy).load_state_dict(state)  # the same chunks elsewhere are the same data
    for other in ({"window": 3}, {"block_size": 9}, {"batch_size": 2}):
        with pytest.raises(InputError, match="other training data, or with batches"):
            make(place, **other).load_state_dict(state)
    shorter = np.zeros(SIZES[-1] - 1, np.uint16)  # as many rows, one of them shorter
    write_chunks(copy / "train", [*map(np.zeros, SIZES[:-1]), shorter])
    with pytest.raises(InputError, match="other training data"):
        make(copy).load_state_dict(state)


def test_a_tokenizer_that_does_not_fit(place, tmp_path):
    small = train_tokenizer(TokenizerConfig("char", 20), ["one two"], mask=False)
    small.save(tmp_path / "t.json")
    copy = shutil.copytree(place, tmp_path / "copy")
    (copy / "train/tokenizer.json").unlink()
    data = make(copy, tokenizer=TokenizerConfig(file=str(tmp_path / "t.json")))
    with pytest.raises(InputError, match=r"chunk-0-\d.bin holds ids up to \d+, but the tok"):
        list(data.train_dataloader())


@pytest.mark.parametrize("part", ["train", "val"])
def test_ids_of_another_tokenizer_are_refused_where_theirs_lies_beside_them(place, tmp_path, part):
    """Their numbers would be there, only as other words."""
    copy = shutil.copytree(place, tmp_path / "copy")
    other = train_tokenizer(TokenizerConfig("byte_bpe", 300), [TEXT[::-1]], mask=False)
    other.save(copy / part / "tokenizer.json")
    given = TokenizerConfig(file=str(place / "train/tokenizer.json"))
    match = rf"copy/{part}/tokenizer.json says .*, and to it \d+ is '.*; to the tokenizer given"
    with pytest.raises(InputError, match=match):
        make(copy, tokenizer=given).setup()
    state = make(place).state_dict()
    with pytest.raises(InputError, match=match):
        make(copy).load_state_dict(state)


def test_a_tokenizer_that_knows_more_words_reads_the_ids(place, tmp_path):
    own = Tokenizer.from_str((place / "train/tokenizer.json").read_text())
    own.core.add_special_tokens(["<mask>"])
    own.save(tmp_path / "more.json")
    make(place, tokenizer=TokenizerConfig(file=str(tmp_path / "more.json"))).setup()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0"),
        ({"cache_gb": 0.0}, "cache_gb=0"),
        ({"train": None}, "needs `train`, or a tokenizer.file"),
        ({"train": "/nowhere"}, "There is no file /nowhere"),
    ],
)
def test_bad_options(place, options, message):
    with pytest.raises(InputError, match=message):
        make(place, **options).setup()


def test_a_cache_smaller_than_a_window(place, far, tmp_path):
    with pytest.raises(InputError, match=r"2 chunks of far://.*, more than cache_gb=3e-07"):
        make(place, "far://", cache=str(tmp_path), cache_gb=300e-9).setup()


def test_chunks_without_their_tokenizer(place, tmp_path):
    copy = shutil.copytree(place, tmp_path / "copy")
    (copy / "train/tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"There is no tokenizer.json in .*train"):
        make(copy).setup()
