import json
import multiprocessing
import shutil
import sys

import numpy as np
import pytest

from fourfold.data.streaming import chunks as chunks_module
from fourfold.data.streaming.chunks import _DTYPES, ChunkCache, TokenChunks
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from tests.fixtures.chunk_files import write_chunks

SIZE = 1000


@pytest.fixture
def downloaded(tmp_path, monkeypatch):
    """Ten remote files, and the list of those that were downloaded."""
    folder = tmp_path / "remote"
    folder.mkdir()
    for i in range(10):
        (folder / f"{i}.bin").write_bytes(bytes([i]) * SIZE)
    names = []

    def fetch(address, file, size=0):
        assert size == SIZE
        names.append(int(address.rpartition("/")[2][0]))
        shutil.copy(folder / address.rpartition("/")[2], file)

    monkeypatch.setattr(chunks_module, "fetch", fetch)
    return names


def cached_bytes(cache: ChunkCache) -> int:
    return sum(file.stat().st_size for file in cache.folder.glob("*.bin"))


def content(cache: ChunkCache, number: int) -> int:
    with cache.open(f"s3://bucket/{number}.bin", SIZE) as file:
        data = file.read()
    assert len(data) == SIZE
    return data[0]


def test_cache_evicts_least_recently_used_within_limit(downloaded, tmp_path):
    cache = ChunkCache(tmp_path / "cache", 3 * SIZE + 10)
    for number in (0, 1, 2, 0, 3, 0, 1, 4):
        assert content(cache, number) == number
        assert cached_bytes(cache) <= 3 * SIZE
    assert downloaded == [0, 1, 2, 3, 1, 4]


def test_open_file_stays_readable_after_eviction(downloaded, tmp_path):
    cache = ChunkCache(tmp_path / "cache", SIZE)
    with cache.open("s3://bucket/1.bin", SIZE) as file:
        content(cache, 2)
        assert downloaded == [1, 2]
        assert file.read() == bytes([1]) * SIZE


def test_files_of_equal_name_are_cached_separately(downloaded, tmp_path):
    cache = ChunkCache(tmp_path / "cache", 9 * SIZE)
    for bucket in ("a", "b", "a"):
        cache.open(f"s3://{bucket}/1.bin", SIZE).close()
    assert downloaded == [1, 1]


def test_new_version_is_downloaded(downloaded, tmp_path):
    cache = ChunkCache(tmp_path / "cache", 9 * SIZE)
    for version in ("a", "b", "a"):
        cache.open("s3://bucket/1.bin", SIZE, version).close()
    assert downloaded == [1, 1]


def test_eviction_removes_partial_copies_and_keeps_other_files(downloaded, tmp_path):
    cache = ChunkCache(tmp_path / "cache", SIZE)
    content(cache, 1)
    (copy,) = cache.folder.glob("*.bin")
    copy.with_name(copy.name + ".part.tmp.123").write_bytes(b"half")
    for name in ("thesis.txt", "mine.bin"):
        (cache.folder / name).write_bytes(b"precious")
    content(cache, 2)
    names = {file.name for file in cache.folder.iterdir()} - {"cache.lock"}
    assert {"thesis.txt", "mine.bin"} < names
    assert len(names) == 3


def test_file_of_another_size_raises_and_is_not_kept(downloaded, tmp_path, monkeypatch):
    cache = ChunkCache(tmp_path / "cache", 3 * SIZE)
    monkeypatch.setattr(
        chunks_module, "fetch", lambda address, file, size: file.write_bytes(b"cut")
    )
    for _ in range(2):
        with pytest.raises(
            InputError, match=r"s3://bucket/1.bin: the file has 3 bytes, but its index lists 1000"
        ):
            cache.open("s3://bucket/1.bin", SIZE)


def _read_many(cache, seed, rounds, results):
    results.put([content(cache, (seed * i) % 10) == (seed * i) % 10 for i in range(rounds)])
    results.put(cached_bytes(cache))


def test_processes_share_cache(downloaded, tmp_path):
    cache = ChunkCache(tmp_path / "cache", 4 * SIZE)
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    processes = [fork.Process(target=_read_many, args=(cache, k, 60, results)) for k in (1, 3, 7)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in range(6)]
    for process in processes:
        process.join()
    contents = [x for x in found if isinstance(x, list)]
    sizes = [x for x in found if isinstance(x, int)]
    assert [len(x) for x in contents] == [60] * 3
    assert all(map(all, contents))
    assert len(sizes) == 3
    assert max(sizes) <= 4 * SIZE


def test_missing_litdata_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "litdata.streaming.downloader", None)
    with pytest.raises(InputError, match=r"s3://b/x.bin: .* pip install 'fourfold\[stream\]'"):
        chunks_module.fetch("s3://b/x.bin", tmp_path / "x")


def test_litdata_downloads_files(tmp_path):
    pytest.importorskip("litdata")
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote/x.bin").write_bytes(b"content")
    chunks_module.fetch(f"local:{tmp_path}/remote/x.bin", tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == b"content"
    with pytest.raises(InputError, match=r"remote/y.bin: the file cannot be downloaded: .*exist"):
        chunks_module.fetch(f"local:{tmp_path}/remote/y.bin", tmp_path / "y.bin")


STREAMS = [np.arange(20), np.arange(100, 107)]


@pytest.fixture
def folder(tmp_path):
    return write_chunks(tmp_path / "chunks", STREAMS)


def chunks(folder) -> TokenChunks:
    return TokenChunks(str(folder), ChunkCache(folder / "cache", 0))


def test_version_changes_with_index(folder):
    before = chunks(folder).version
    assert chunks(folder).version == before
    change(folder, chunk_bytes=1)
    assert chunks(folder).version != before


def change(folder, **config):
    index = json.loads((folder / "index.json").read_text())
    index["config"] |= config
    (folder / "index.json").write_text(json.dumps(index))


def test_read_stops_at_end_of_chunk(folder):
    found = chunks(folder)
    assert found.n_tokens.tolist() == [20, 7]
    assert [x.tolist() for x in found.read(0, [3, 16], 5)] == [
        [3, 4, 5, 6, 7],
        [16, 17, 18, 19],
    ]
    assert found.read(1, [5], 9)[0].tolist() == [105, 106]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"compression": "zstd"}, "does not list chunks of token ids: .*uncompressed"),
        ({"encryption": {}, "data_format": ["jpeg"]}, "does not list chunks of token ids"),
        ({"data_format": ["no_header_tensor:1"]}, "does not list chunks of token ids"),
        ({"data_format": ["int", "int"]}, "does not list chunks of token ids"),
    ],
)
def test_chunks_of_other_data_raise(folder, wrong, message):
    change(folder, **wrong)
    with pytest.raises(InputError, match=message):
        chunks(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"chunks": [\n', r"index.json:2: invalid JSON"),
        ("[]", "does not list chunks"),
        ('{"chunks": [], "config": {"data_format": ["no_header_tensor:20"]}}', "lists no chunks"),
        ('{"chunks": [{}], "config": {"data_format": ["no_header_tensor:20"]}}', "does not list"),
    ],
)
def test_invalid_index_raises(folder, text, message):
    (folder / "index.json").write_text(text)
    with pytest.raises(InputError, match=message):
        chunks(folder)


def test_missing_or_truncated_file_raises(folder):
    with pytest.raises(InputError, match=r"/nowhere/index.json: there is no such file"):
        TokenChunks("/nowhere", ChunkCache(folder, 0))
    found = chunks(folder)
    file = folder / "chunk-0-1.bin"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(
        InputError, match=r"chunk-0-1.bin: the file is shorter than index.json says"
    ):
        found.read(1, [0], 9)
    file.unlink()
    with pytest.raises(InputError, match=r"chunk-0-1.bin: there is no such file"):
        found.read(1, [0], 9)
    (folder / "index.json").unlink()
    with pytest.raises(InputError, match=r"index.json: there is no such file"):
        chunks(folder)


def test_dtype_numbers_are_those_of_litdata():
    constants = pytest.importorskip("litdata.constants")
    mappings = {
        "no_header_tensor": constants._TORCH_DTYPES_MAPPING,
        "no_header_numpy": constants._NUMPY_DTYPES_MAPPING,
    }
    for data_format, name in _DTYPES.items():
        serializer, number = data_format.split(":")
        assert str(mappings[serializer][int(number)]).removeprefix("torch.") == name


@pytest.mark.parametrize("content", [b"", b"{", None])
def test_damaged_tokenizer_beside_the_chunks_is_not_absent(folder, content):
    other = train_tokenizer(TokenizerConfig("char"), ["abc"], mask=False)
    chunks(folder).check_tokenizer(other)  # there is no tokenizer.json
    file = folder / "tokenizer.json"
    file.symlink_to("nowhere") if content is None else file.write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        chunks(folder).check_tokenizer(other)
