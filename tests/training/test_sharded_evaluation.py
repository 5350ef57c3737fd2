"""FSDP2: evaluation and weight averaging with sharded weights."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning import Callback, Trainer
from lightning.pytorch.strategies import StrategyRegistry
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, IterableDataset

from fourfold.callbacks.checkpointing.weight_averaging import ExponentialMovingAverage
from fourfold.data.loading.batches import CausalBatch
from fourfold.models import CausalLMConfig
from fourfold.optim import OptimizerConfig
from fourfold.tasks import CausalLanguageModeling
from fourfold.training.fsdp2 import FSDP2
from tests.fixtures.processes import together
from tests.fixtures.tiny_tasks import SGD, SMALL, causal, train

# Lightning allows 64-true for a name of a strategy, but not for an object.
StrategyRegistry.register("fsdp2_kept", FSDP2, reshard_after_forward=False)


class Unit:
    """Module with weights that are gathered together, in `test_any_order_of_units_ends`."""

    is_gathered = False
    n_gathered = 0

    def unshard(self) -> None:
        dist.barrier()  # fails, or times out, unless all ranks gather
        self.is_gathered = True
        self.n_gathered += 1

    def reshard(self) -> None:
        self.is_gathered = False


@pytest.mark.parametrize("reshard", [True, False])
def test_any_order_of_units_ends(reshard: bool, tmp_path: Path) -> None:
    """Each rank needs other units, in another order and number; one needs none."""

    def work(rank: int) -> None:
        dist.init_process_group("gloo")
        strategy: Any = FSDP2(reshard_after_forward=reshard)
        strategy.parallel_devices = [torch.device("cpu")]
        strategy.cluster_environment = None
        strategy._units = units = [Unit() for _ in range(6)]
        for evaluation in range(20):
            rng = random.Random(10 * evaluation + rank)
            strategy.on_validation_start()
            for _ in range(rank * rng.randrange(40)):
                strategy._await_turn(0)
                number = rng.randrange(1, 6)
                strategy._await_turn(number)
                assert units[0].is_gathered
                assert units[number].is_gathered
                others = [unit for unit in units[1:] if unit is not units[number]]
                if reshard:
                    assert not any(unit.is_gathered for unit in others)
                    units[number].reshard()  # as FSDP2 does after the forward pass
            strategy.end_evaluation()
            strategy.end_evaluation()
            assert not any(unit.is_gathered for unit in units)
        counts: list[Any] = [None] * 4
        dist.all_gather_object(counts, [unit.n_gathered for unit in units])
        assert counts == counts[:1] * 4

    ended = together(4, work, tmp_path, timeout=120)
    assert [end.code for end in ended] == [0] * 4, ended[0].out[-3000:]


class Observe(Callback):
    """Callback that stores metrics, and the weights that are gathered after validation batches."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, Any]] = []
        self.n_batches = 0
        self.gathered: set[str] = set()

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.n_batches += 1
        weights = pl_module.model.named_parameters()
        self.gathered |= {name for name, x in weights if not isinstance(x, DTensor)}

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.metrics.append(dict(pl_module.summary))
        if isinstance(trainer.strategy, FSDP2):
            assert all(isinstance(x, DTensor) for x in pl_module.model.parameters())


def validated(
    make: Any, texts: Path, folder: Path, rows: int, *callbacks: Callback, **options: Any
) -> tuple[dict[str, Any], Observe]:
    """Train for three epochs with validations, also one before the first step."""
    folder.mkdir(exist_ok=True)
    task, data = make(texts, max_rows=rows)
    task.optimizer = options.pop("optimizer", OptimizerConfig(lr=0.01))
    seen = Observe()
    settings = {"max_epochs": 3, "limit_val_batches": 1.0, "num_sanity_val_steps": 2}
    return train(task, data, folder, [*callbacks, seen], **settings | options), seen


@pytest.mark.parametrize("world", [2, 4])
def test_validation_keeps_blocks_sharded(world: int, texts: Path, tmp_path: Path) -> None:
    """Ranks have different numbers of batches, and training goes on as in one process."""

    def work(rank: int) -> None:
        mine = tmp_path / f"rank{rank}"
        two: Any = {"devices": world, "strategy": "fsdp2"}
        weights, seen = validated(causal, texts, mine, 7, ExponentialMovingAverage(0.5), **two)
        torch.save((weights, seen.metrics, seen.n_batches, seen.gathered), mine / "found.pt")

    ended = together(world, work, tmp_path, timeout=120)
    assert [end.code for end in ended] == [0] * world, ended[0].out[-3000:]
    found = [torch.load(tmp_path / f"rank{rank}/found.pt") for rank in range(world)]
    assert len({n for _, _, n, _ in found}) == 2
    average = ExponentialMovingAverage(0.5)
    expected, seen = validated(causal, texts, tmp_path / "alone", 7 * world, average)
    # The last batch of a rank ends the evaluation, so that also root weights are shards again.
    names = {name for _, _, _, gathered in found for name in gathered}
    assert names
    assert not any(".blocks." in name for name in names)
    for metrics, wanted in zip(found[0][1][1:], seen.metrics[1:], strict=True):
        assert metrics == pytest.approx(wanted, rel=1e-12)
    torch.testing.assert_close(found[0][0], expected, rtol=1e-12, atol=1e-12)


class SaveAfterTwoSteps(Callback):
    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 2:
            trainer.save_checkpoint(self.file)


def averaged(
    texts: Path, folder: Path, world: int, resume: Path | None = None, **options: Any
) -> Any:
    """Train with a moving average, and return its weights at the end."""
    save = SaveAfterTwoSteps(folder / "saved.ckpt")
    average = ExponentialMovingAverage(0.5)
    callbacks: list[Callback] = [average, save] if resume is None else [average]
    more = {"devices": world, "accumulate_grad_batches": 2 // world, **options}
    return validated(causal, texts, folder, 7, *callbacks, ckpt_path=resume, **more)[0]


def test_moving_average_of_sharded_weights(texts: Path, tmp_path: Path) -> None:
    """It is saved complete and resumed exactly, also by one process, as that of one process."""

    def work(rank: int) -> None:
        first = averaged(texts, tmp_path / "two", 2, strategy="fsdp2")
        one = tmp_path / "two/saved.ckpt"
        again = averaged(texts, tmp_path / "resumed", 2, one, strategy="fsdp2")
        other = averaged(texts, tmp_path / "gathered", 2, one, strategy="fsdp2_kept")
        # The state of this optimizer is empty.
        plain: Any = {"strategy": "fsdp2", "optimizer": replace(SGD, lr=0.1)}
        steps = averaged(texts, tmp_path / "plain", 2, **plain)
        rest = averaged(texts, tmp_path / "rest", 2, tmp_path / "plain/saved.ckpt", **plain)
        if rank == 0:
            torch.testing.assert_close(rest, steps, rtol=0, atol=0)
            torch.testing.assert_close(again, first, rtol=0, atol=0)
            torch.testing.assert_close(other, first, rtol=0, atol=0)
            torch.save(first, tmp_path / "first.pt")

    ended = together(2, work, tmp_path, timeout=200)
    assert [end.code for end in ended] == [0, 0], ended[0].out[-3000:]
    close: Any = {"rtol": 1e-12, "atol": 1e-12}
    expected = averaged(texts, tmp_path / "one", 1)
    torch.testing.assert_close(torch.load(tmp_path / "first.pt"), expected, **close)
    resumed = averaged(texts, tmp_path / "alone", 1, tmp_path / "two/saved.ckpt")
    torch.testing.assert_close(resumed, expected, **close)
    two, one = (torch.load(tmp_path / name / "saved.ckpt") for name in ("two", "one"))
    for kind in ("state_dict", "current_model_state", "averaging_state"):
        assert two[kind].keys() == one[kind].keys()
        torch.testing.assert_close(two[kind], one[kind], **close)
    assert any(
        not torch.equal(x, two["current_model_state"][k]) for k, x in two["state_dict"].items()
    )


class OnlyFirstRank(IterableDataset[CausalBatch]):
    """Dataset without a length, of which all ranks but the first have no batch."""

    def __iter__(self) -> Iterator[CausalBatch]:
        for ids in torch.arange(30).view(3, 2, 5) if dist.get_rank() == 0 else ():
            yield CausalBatch(ids[:, :-1], ids[:, 1:])


def test_a_rank_without_batches_takes_part(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        torch.manual_seed(0)
        shape: dict[str, Any] = {**SMALL, "vocab_size": 30, "max_len": 8}
        task = CausalLanguageModeling(CausalLMConfig(**shape))
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            strategy="fsdp2",
            logger=False,
            enable_progress_bar=False,
            default_root_dir=tmp_path,
        )
        trainer.test(task, DataLoader(OnlyFirstRank(), batch_size=None))
        assert task.summary["test/loss"] > 0

    ended = together(2, work, tmp_path, timeout=60)
    assert [end.code for end in ended] == [0, 0], ended[0].out[-3000:]
