"""SyntheticSequenceData: definitions of the tasks, losses without memory, and exact resume."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fourfold.data import SyntheticSequenceData
from fourfold.data.loading.batches import CausalBatch, SequenceBatch
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX

ROWS = np.arange(1000)


def data(task: Any, length: int, **options: Any) -> SyntheticSequenceData:
    return SyntheticSequenceData(task, length=length, eval_rows=len(ROWS), **options)


def texts(module: SyntheticSequenceData, ids: torch.Tensor) -> list[str]:
    return [module.tokenizer.decode(row) for row in ids.tolist()]


def batch_of(module: SyntheticSequenceData, split: str = "test", epoch: int = 0) -> Any:
    return module.split(split).batch(ROWS, epoch, 7)


def test_copy_repeats_ten_symbols_after_the_delimiter() -> None:
    module = data("copy", 6)
    batch = batch_of(module)
    assert (batch.epoch, batch.position) == (0, 7)
    for given, wanted in zip(texts(module, batch.ids), texts(module, batch.targets), strict=True):
        symbols = given[:10]
        assert set(symbols) <= set("abcdefgh")
        assert given == symbols + "-----:" + 10 * "-"
        assert wanted == 16 * "-" + symbols
    counts = batch.ids[:, :10].unique(return_counts=True)[1]
    assert len(counts) == 8
    assert counts.min() > 0.9 * counts.max()


def test_recall_asks_each_key_once_and_wants_its_value() -> None:
    module = data("recall", 3)
    batch = batch_of(module)
    last_targets = batch.targets[:, -1:]
    rows = texts(module, torch.cat([batch.ids, last_targets], dim=1))
    for text, targets in zip(rows, batch.targets.tolist(), strict=True):
        pairs = [text[i : i + 2] for i in range(0, 12, 2)]
        assert len({pair[0] for pair in pairs[:3]}) == 3
        assert sorted(pairs[:3]) == sorted(pairs[3:])
        assert [i for i, target in enumerate(targets) if target != IGNORE_INDEX] == [6, 8, 10]
        kept = [target for target in targets if target != IGNORE_INDEX]
        assert module.tokenizer.decode(kept) == "".join(pair[1] for pair in pairs[3:])
    assert len({text[6] + text[0] for text in rows}) > 26  # the order of the keys changes


def test_adding_sums_the_two_marked_numbers() -> None:
    module = data("adding", 7)
    batch = batch_of(module)
    assert isinstance(batch, SequenceBatch)
    assert module.n_classes == 1
    assert batch.ids[:, [0, -1]].unique(dim=0).tolist() == [
        [module.tokenizer.bos_id, module.tokenizer.eos_id]
    ]
    for text, label in zip(texts(module, batch.ids), batch.labels.tolist(), strict=True):
        marked = [ord(character) - ord("a") for character in text if character.isalpha()]
        assert len(text) == 7
        assert len(marked) == 2
        assert label == pytest.approx(sum(marked) / 10)


def sums(module: SyntheticSequenceData, split: str) -> list[str]:
    """Texts of all problems of a split, each with its answer."""
    batch = module.split(split).batch(np.arange(module.rows[split]), 0, 0)
    return texts(module, torch.cat([batch.ids, batch.targets[:, -1:]], dim=1))


@pytest.mark.parametrize(("task", "step"), [("addition", 1), ("reversed_addition", -1)])
def test_additions_are_right_and_wanted_from_the_last_given_digit_on(task: str, step: int) -> None:
    module = data(task, 2)
    assert module.rows == {"train": 9000, "val": 1000, "test": 1000}
    for text in sums(module, "train"):
        assert int(text[:2]) + int(text[2:4]) == int(text[4:][::step])
    targets = batch_of(module).targets
    assert targets.shape == (len(ROWS), module.n_tokens)
    assert (targets[:, :3] == IGNORE_INDEX).all()
    assert (targets[:, 3:] != IGNORE_INDEX).all()


def test_the_held_out_sums_are_those_of_mingpt_and_are_not_trained() -> None:
    module = data("addition", 2, train_rows=20_000)
    train, test = set(sums(module, "train")), sums(module, "test")
    assert len(train | set(test)) == 10_000
    assert not train & set(test)
    # As in play_math.ipynb of minGPT.
    permuted = np.random.RandomState(1337).permutation(10_000)[:1000]
    assert test == [f"{i // 100:02}{i % 100:02}{i // 100 + i % 100:03}" for i in permuted]
    assert sums(module, "val") == test
    assert sums(data("addition", 2, seed=5), "test") == test
    few = data("addition", 2, train_rows=50)
    assert len(set(sums(few, "train"))) == 50


def test_predictions_without_memory_have_the_losses_of_the_docstrings() -> None:
    batch = batch_of(data("copy", 12))
    is_blank = batch.targets == batch.targets[0, 0]
    symbols = batch.targets[~is_blank].unique()
    logits = torch.full((*batch.ids.shape, int(batch.targets.max()) + 1), -math.inf)
    logits[is_blank] = logits[is_blank].index_fill(-1, batch.targets[0, 0], 0.0)
    logits[~is_blank] = logits[~is_blank].index_fill(-1, symbols, 0.0)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    assert loss == pytest.approx(10 * math.log(8) / 32)

    targets = batch_of(data("recall", 5)).targets
    counts = targets[targets != IGNORE_INDEX].unique(return_counts=True)[1]
    assert len(counts) == 26
    shares = counts / counts.sum()
    assert -(shares * shares.log()).sum() == pytest.approx(math.log(26), rel=0.01)

    labels = batch_of(data("adding", 5)).labels
    assert (labels - 0.9).square().mean() == pytest.approx(0.165, rel=0.05)


@pytest.mark.parametrize("task", ["adding", "copy", "recall"])
def test_a_sequence_depends_only_on_seed_epoch_split_and_row(task: str) -> None:
    module = data(task, 4, seed=3)
    train, val = module.split("train"), module.split("val")
    rows = np.array([5, 2, 9])
    batch = train.batch(rows, 1, 0)
    single = data(task, 4, seed=3, batch_size=2).split("train").batch(rows[2:], 1, 0)
    assert torch.equal(batch.ids[2:], single.ids)
    assert torch.equal(batch[1][2:], single[1])
    others = [train.batch(rows, 0, 0), val.batch(rows, 1, 0), data(task, 4).split("train")]
    others[2] = others[2].batch(rows, 1, 0)
    assert not any(torch.equal(batch.ids, other.ids) for other in others)
    assert train.max_length == batch.ids.shape[1]


def test_resume_reads_the_batches_that_were_not_trained() -> None:
    whole = list(data("copy", 3, train_rows=20, batch_size=4).train_dataloader())
    first, resumed = (data("copy", 3, train_rows=20, batch_size=4) for _ in range(2))
    first.mark_trained(0, 2)
    resumed.load_state_dict(first.state_dict())
    rest = list(resumed.train_dataloader())
    assert len(rest) == 3
    for expected, batch in zip(whole[2:], rest, strict=True):
        assert isinstance(batch, CausalBatch)
        assert torch.equal(batch.ids, expected.ids)
        assert batch.position == expected.position


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "addition", "length": 4}, "length must be .*3, got 4"),
        ({"task": "addition", "length": 1, "eval_rows": 100}, "eval_rows must be .*100, got 100"),
        ({"task": "recall", "length": 27}, "length must be .*26, got 27"),
        ({"task": "adding", "length": 1}, "length must be at least 2.*, got 1"),
        ({"length": 0}, "length must be at least 1.*, got 0"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        SyntheticSequenceData(**options)
