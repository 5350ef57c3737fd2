import json

import numpy as np
import pytest

from fourfold.core.errors import InputError
from fourfold.data import token_chunks
from fourfold.data.chunk_cache import ChunkCache
from fourfold.data.token_chunks import TokenChunks
from tests.chunk_files import write_chunks

STREAMS = [np.arange(20), np.arange(100, 107)]


@pytest.fixture
def folder(tmp_path):
    return write_chunks(tmp_path / "chunks", STREAMS)


def chunks(folder) -> TokenChunks:
    return TokenChunks(str(folder), ChunkCache(folder / "cache", 0))


def test_another_index_is_another_version(folder):
    before = chunks(folder).version
    assert chunks(folder).version == before
    change(folder, chunk_bytes=1)
    assert chunks(folder).version != before


def change(folder, **config):
    index = json.loads((folder / "index.json").read_text())
    index["config"] |= config
    (folder / "index.json").write_text(json.dumps(index))


def test_stretches_come_back_and_end_with_their_chunk(folder):
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
        ({"compression": "zstd"}, "does not list chunks of tokens: .*uncompressed"),
        ({"encryption": {}, "data_format": ["jpeg"]}, "does not list chunks of tokens"),
        ({"data_format": ["no_header_tensor:1"]}, "does not list chunks of tokens"),
        ({"data_format": ["int", "int"]}, "does not list chunks of tokens"),
    ],
)
def test_chunks_of_something_else(folder, wrong, message):
    change(folder, **wrong)
    with pytest.raises(InputError, match=message):
        chunks(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"chunks": [\n', r"index.json, line 2: broken JSON"),
        ("[]", "does not list chunks"),
        ('{"chunks": [], "config": {"data_format": ["no_header_tensor:20"]}}', "lists no chunks"),
        ('{"chunks": [{}], "config": {"data_format": ["no_header_tensor:20"]}}', "does not list"),
    ],
)
def test_a_broken_index(folder, text, message):
    (folder / "index.json").write_text(text)
    with pytest.raises(InputError, match=message):
        chunks(folder)


def test_no_index_no_folder_no_chunk_and_half_a_chunk(folder):
    with pytest.raises(InputError, match="There is no file /nowhere"):
        TokenChunks("/nowhere", ChunkCache(folder, 0))
    found = chunks(folder)
    file = folder / "chunk-0-1.bin"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"chunk-0-1.bin is shorter than its index says"):
        found.read(1, [0], 9)
    file.unlink()
    with pytest.raises(InputError, match=r"There is no chunk-0-1.bin in .*chunks, though index"):
        found.read(1, [0], 9)
    (folder / "index.json").unlink()
    with pytest.raises(InputError, match=r"There is no index.json in .*chunks"):
        chunks(folder)


def test_types_are_numbered_as_litdata_does():
    constants = pytest.importorskip("litdata.constants")
    for number, name in token_chunks._FORMATS["no_header_tensor"].items():
        assert str(constants._TORCH_DTYPES_MAPPING[number]) == f"torch.{name}"
    for number, name in token_chunks._FORMATS["no_header_numpy"].items():
        assert constants._NUMPY_DTYPES_MAPPING[number] == np.dtype(name)
