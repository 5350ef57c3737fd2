import multiprocessing
import shutil
import sys

import pytest

from fourfold.data.streaming import chunk_cache
from fourfold.data.streaming.chunk_cache import ChunkCache
from fourfold.errors import InputError

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

    monkeypatch.setattr(chunk_cache, "fetch", fetch)
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
    monkeypatch.setattr(chunk_cache, "fetch", lambda address, file, size: file.write_bytes(b"cut"))
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
        chunk_cache.fetch("s3://b/x.bin", tmp_path / "x")


def test_litdata_downloads_files(tmp_path):
    pytest.importorskip("litdata")
    (tmp_path / "remote").mkdir()
    (tmp_path / "remote/x.bin").write_bytes(b"content")
    chunk_cache.fetch(f"local:{tmp_path}/remote/x.bin", tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == b"content"
    with pytest.raises(InputError, match=r"remote/y.bin: the file cannot be downloaded: .*exist"):
        chunk_cache.fetch(f"local:{tmp_path}/remote/y.bin", tmp_path / "y.bin")
