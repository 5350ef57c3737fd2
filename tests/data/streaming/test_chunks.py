import json

import numpy as np
import pytest

from fourfold.data.streaming.chunk_cache import ChunkCache
from fourfold.data.streaming.chunks import _NUMPY_DTYPES, _TORCH_DTYPES, TokenChunks
from fourfold.errors import InputError
from tests.fixtures.chunk_files import write_chunks

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
    with pytest.raises(InputError, match="/nowhere: there is no such file"):
        TokenChunks("/nowhere", ChunkCache(folder, 0))
    found = chunks(folder)
    file = folder / "chunk-0-1.bin"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(
        InputError, match=r"chunk-0-1.bin: the file is shorter than index.json says"
    ):
        found.read(1, [0], 9)
    file.unlink()
    with pytest.raises(
        InputError, match=r"chunk-0-1.bin: there is no such file, although index.json"
    ):
        found.read(1, [0], 9)
    (folder / "index.json").unlink()
    with pytest.raises(InputError, match=r"index.json: there is no such file"):
        chunks(folder)


def test_dtype_numbers_are_those_of_litdata():
    constants = pytest.importorskip("litdata.constants")
    for number, name in _TORCH_DTYPES.items():
        assert str(constants._TORCH_DTYPES_MAPPING[number]) == f"torch.{name}"
    for number, name in _NUMPY_DTYPES.items():
        assert constants._NUMPY_DTYPES_MAPPING[number] == np.dtype(name)
