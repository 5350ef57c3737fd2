"""Every flipped bit of a checkpoint is harmless or is detected."""

import random
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoints.files import DamagedFile, read_file, write_file
from fourfold.errors import InputError
from fourfold.models import CausalLMConfig
from fourfold.tasks import CausalLanguageModeling
from fourfold.training.loading import load_task, read_for_trainer
from scripts.tools.kill_test import unequal

MAX_SIZE = 16_384  # bytes


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Write a checkpoint of a tiny language model with its optimizer state."""
    torch.manual_seed(0)
    config = CausalLMConfig(vocab_size=5, max_len=4, d_model=2, n_layers=1, n_heads=1, d_ff=3)
    task = CausalLanguageModeling(config)
    task.configure_model()
    some = list(task.parameters())[:4]  # so that the file stays small
    optimizer = torch.optim.SGD(some, lr=0.1, momentum=0.9)
    sum(p.square().sum() for p in task.parameters()).backward()
    optimizer.step()
    content: dict[str, Any] = {
        "state_dict": task.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "loops": {"fit_loop": {"state_dict": {}}},
        "global_step": 1,
    }
    task.on_save_checkpoint(content)
    file = tmp_path / "tiny.ckpt"
    write_file(content, file)
    assert file.stat().st_size <= MAX_SIZE
    assert not unequal(dict(load_task(file).state_dict()), dict(task.state_dict()))
    return file


def flip_bits(file: Path, positions: list[int]) -> Counter[str]:
    """Flip one bit at a time, read the file, and count what happened.

    Args:
        file: A checkpoint.
        positions: Numbers of the bits to flip; bit 8 i + j is bit j of byte i.

    Returns:
        Number of flips after which the file was read with equal content ("equal"), was rejected
        ("rejected") or was read with other content ("wrong").
    """
    intact = read_for_trainer(file)
    data = bytearray(file.read_bytes())
    outcomes: Counter[str] = Counter()
    with file.open("r+b", buffering=0) as stream:
        for position in positions:
            byte, bit = divmod(position, 8)
            stream.seek(byte)
            stream.write(bytes([data[byte] ^ 1 << bit]))
            try:
                outcomes["wrong" if unequal(intact, read_for_trainer(file)) else "equal"] += 1
            except InputError:
                outcomes["rejected"] += 1
            stream.seek(byte)
            stream.write(data[byte : byte + 1])
    assert not unequal(intact, read_for_trainer(file))
    return outcomes


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_flipped_bit_is_harmless_or_detected(checkpoint: Path) -> None:
    outcomes = flip_bits(checkpoint, list(range(8 * checkpoint.stat().st_size)))
    print(f"{checkpoint.stat().st_size} bytes: {dict(outcomes)}")
    assert not outcomes["wrong"]
    assert outcomes["rejected"] > 4 * checkpoint.stat().st_size


def test_flipped_bits_of_each_part_are_harmless_or_detected(checkpoint: Path) -> None:
    n_bits = 8 * checkpoint.stat().st_size
    with zipfile.ZipFile(checkpoint) as archive:
        directory = 8 * archive.start_dir
    chosen = random.Random(0)
    positions = [
        *chosen.sample(range(directory), 700),
        *chosen.sample(range(directory, n_bits), 700),
    ]
    outcomes = flip_bits(checkpoint, positions)
    assert not outcomes["wrong"]
    assert outcomes["equal"] > 100
    assert outcomes["rejected"] > 700


@pytest.mark.parametrize("bit", [0, 4, 5, 31])
def test_flipped_bit_of_external_attributes(checkpoint: Path, bit: int) -> None:
    """The attributes of the largest tensor's entry are changed in the list of files."""
    with zipfile.ZipFile(checkpoint) as archive:
        directory = archive.start_dir
        names = [x.filename for x in archive.infolist() if "/data/" in x.filename]
    data = bytearray(checkpoint.read_bytes())
    intact = read_file(checkpoint)
    at = data.index(names[0].encode(), directory) - 46 + 38  # offset in the entry's 46 bytes
    data[at + bit // 8] ^= 1 << bit % 8
    checkpoint.write_bytes(data)
    if bit == 4:
        with pytest.raises(DamagedFile, match=f"corrupted: {names[0]} is a directory"):
            read_file(checkpoint)
    else:
        assert not unequal(read_file(checkpoint), intact)
