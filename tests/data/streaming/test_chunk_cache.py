import multiprocessing
import shutil
import sys

import pytest

from fourfold.core.errors import InputError
from fourfold.data import chunk_cache
from fourfold.data.chunk_cache import ChunkCache

SIZE = 1000


@pytest.fixture
def far(tmp_path, monkeypatch):
    """Ten files far away, and a transport that notes what it brings."""
    folder = tmp_path / "far"
    folder.mkdir()
    for i in range(10):
        (folder / f"{i}.bin").write_bytes(bytes([i]) * SIZE)
    brought = []

    def fetch(address, file, size=0):
        assert size == SIZE
        brought.append(int(address.rpartition("/")[2][0]))
        shutil.copy(folder / address.rpartition("/")[2], file)

    monkeypatch.setattr(chunk_cache, "fetch", fetch)
    return brought


def held(cache: ChunkCache) -> int:
    return sum(file.stat().st_size for file in cache.folder.glob("*.bin"))


def content(cache: ChunkCache, number: int) -> int:
    with cache.open(f"s3://bucket/{number}.bin", SIZE) as file:
        data = file.read()
    assert len(data) == SIZE
    return data[0]


def test_it_never_holds_more_than_its_limit_and_drops_what_was_not_used_for_longest(far, tmp_path):
    cache = ChunkCache(tmp_path / "cache", 3 * SIZE + 10)
    for number in (0, 1, 2, 0, 3, 0, 1, 4):
        assert content(cache, number) == number
        assert held(cache) <= 3 * SIZE
    assert far == [0, 1, 2, 3, 1, 4]


def test_a_file_that_makes_room_can_be_read_to_its_end(far, tmp_path):
    cache = ChunkCache(tmp_path / "cache", SIZE)
    with cache.open("s3://bucket/1.bin", SIZE) as file:
        content(cache, 2)
        assert far == [1, 2]
        assert file.read() == bytes([1]) * SIZE


def test_files_of_one_name_from_two_places_are_two(far, tmp_path):
    cache = ChunkCache(tmp_path / "cache", 9 * SIZE)
    for place in ("a", "b", "a"):
        cache.open(f"s3://{place}/1.bin", SIZE).close()
    assert far == [1, 1]


def test_what_was_written_anew_at_the_same_place_is_fetched_anew(far, tmp_path):
    cache = ChunkCache(tmp_path / "cache", 9 * SIZE)
    for version in ("a", "b", "a"):
        cache.open("s3://bucket/1.bin", SIZE, version).close()
    assert far == [1, 1]


def test_what_a_killed_process_left_is_removed_and_what_is_not_ours_stays(far, tmp_path):
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


def test_a_file_of_another_size_is_not_kept(far, tmp_path, monkeypatch):
    cache = ChunkCache(tmp_path / "cache", 3 * SIZE)
    monkeypatch.setattr(chunk_cache, "fetch", lambda address, file, size: file.write_bytes(b"cut"))
    for _ in range(2):
        with pytest.raises(InputError, match=r"s3://bucket/1.bin has 3 bytes, but its index says"):
            cache.open("s3://bucket/1.bin", SIZE)


def _many(cache, seed, rounds, results):
    results.put([content(cache, (seed * i) % 10) == (seed * i) % 10 for i in range(rounds)])
    results.put(held(cache))


def test_processes_share_it(far, tmp_path):
    cache = ChunkCache(tmp_path / "cache", 4 * SIZE)
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    others = [fork.Process(target=_many, args=(cache, k, 60, results)) for k in (1, 3, 7)]
    for other in others:
        other.start()
    found = [results.get(timeout=60) for _ in range(6)]
    for other in others:
        other.join()
    assert all(all(x) if isinstance(x, list) else x <= 4 * SIZE for x in found)


def test_without_litdata_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "litdata.streaming.downloader", None)
    with pytest.raises(InputError, match=r"s3://b/x.bin needs .* pip install -e '\.\[stream\]'"):
        chunk_cache.fetch("s3://b/x.bin", tmp_path / "x")


def test_litdata_fetches_and_says_what_is_missing(tmp_path):
    pytest.importorskip("litdata")
    (tmp_path / "far").mkdir()
    (tmp_path / "far/x.bin").write_bytes(b"content")
    chunk_cache.fetch(f"local:{tmp_path}/far/x.bin", tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == b"content"
    with pytest.raises(InputError, match=r"far/y.bin cannot be fetched: .*exist"):
        chunk_cache.fetch(f"local:{tmp_path}/far/y.bin", tmp_path / "y.bin")
