import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fourfold.data import StreamedCausalTextData
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/tools/stream_text.py"
TEXTS = {name: "".join(f"{name} {i}\n" for i in range(3000)) for name in ("one", "two", "three")}


@pytest.fixture
def files(tmp_path):
    tokenizer = train_tokenizer(TokenizerConfig("byte_bpe", 300), [TEXTS["one"]], mask=False)
    tokenizer.save(tmp_path / "t.json")
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(text)
    return tmp_path


def run(folder, *options):
    command = [sys.executable, str(SCRIPT), "--tokenizer", "t.json", "--out", "out", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
def test_chunks_decode_to_the_text(files):
    pytest.importorskip("litdata")
    result = run(files, *(f"{name}.txt" for name in TEXTS), "--chunk-mb", "0.02")
    assert result.returncode == 0, result.stderr
    assert "chunks" in result.stdout
    data = StreamedCausalTextData(train=str(files / "out"), block_size=64)
    chunks = data.split("train").chunks
    assert len(chunks.names) > 3
    ids = np.concatenate([chunks.read(i, [0], 1 << 20)[0] for i in range(len(chunks.names))])
    ends = np.flatnonzero(ids == data.tokenizer.eos_id)
    found = [data.tokenizer.decode(part) for part in np.split(ids, ends + 1)]
    assert sorted(found) == sorted([*TEXTS.values(), ""])
    again = run(files, "one.txt")
    assert (again.returncode, again.stderr) == (
        2,
        "stream_text: out: the folder already has chunks\n",
    )


@pytest.mark.slow
def test_input_error_is_one_line(files):
    pytest.importorskip("litdata")
    result = run(files, "four.txt")
    assert (result.returncode, result.stderr) == (
        2,
        "stream_text: four.txt: there is no such file\n",
    )
