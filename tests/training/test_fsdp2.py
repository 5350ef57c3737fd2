"""FSDP2: sharded weights make the same steps as replicated ones."""

from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.functional import cosine_similarity

from fourfold.callbacks.checkpointing.weight_averaging import ExponentialMovingAverage
from fourfold.callbacks.runtime.compile_blocks import compile_blocks
from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.optim import MuonAdamW, OptimizerConfig
from fourfold.training.fsdp2 import FSDP2, prepare_for_strategy
from fourfold.training.sharded_init import ShardedInit
from tests.fixtures.processes import together
from tests.fixtures.tiny_tasks import (
    FAMILIES,
    TASKS,
    causal,
    image_and_text,
    sentence_pairs,
    train,
)


def with_low_rank(texts: Path, **options: Any) -> Any:
    task, data = causal(texts, **options)
    task.tuning = TuningConfig(lora_rank=2)
    return task, data


# Tied embeddings, decoders with a memory, heads of all kinds, frozen weights, a scalar.
QUICK = {
    "translation": FAMILIES["translation"],
    "sentence_pairs": sentence_pairs,
    "low_rank": with_low_rank,
    "image_and_text": image_and_text,
}


def same_step(families: dict[str, Any], texts: Path, folder: Path, **options: Any) -> None:
    def halves(rank: int) -> None:
        for family, make in families.items():
            rows = -(-len(make(texts)[1].split("train")) // 2)
            pair = make(texts, max_rows=rows)
            mine = folder / f"{family}{rank}"
            mine.mkdir()
            weights = train(*pair, mine, devices=2, strategy="fsdp2", **options)
            torch.save(weights, mine / "weights.pt")

    ended = together(2, halves, folder, timeout=250)
    assert [end.code for end in ended] == [0, 0], ended[1].out[-3000:]
    for family, make in families.items():
        whole = train(*make(texts, max_rows=2000), folder, **options)
        found = torch.load(folder / f"{family}0" / "weights.pt")
        assert found.keys() == whole.keys()
        for name, weight in whole.items():
            torch.testing.assert_close(
                found[name], weight, rtol=1e-12, atol=1e-12, msg=f"{family} {name}"
            )


def test_sharded_weights_make_the_same_step(texts: Path, tmp_path: Path) -> None:
    same_step(QUICK, texts, tmp_path, gradient_clip_val=0.01)


def step_on_ranks(
    family: str, strategy: str, texts: Path, folder: Path, world: int, callbacks: Any = ()
) -> dict[str, Any]:
    """Make a step of two micro-batches on each rank, of which blocks run again."""
    make = TASKS[family]
    # Pairs are compared with those of the same micro-batch on all ranks.
    micro_batches = 1 if family == "image and text" else 2
    rows = -(-len(make(texts)[1].split("train")) // (world * micro_batches))
    task, data = make(texts, max_rows=rows)
    if not task.model_class.is_recurrent and family != "documents":
        task.activation_checkpointing = "block"
    shape: Any = {"devices": world, "strategy": strategy, "gradient_clip_val": 0.01}
    shape["limit_val_batches"] = len(callbacks)  # also with compiled blocks
    return train(task, data, folder, callbacks, accumulate_grad_batches=micro_batches, **shape)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", [2, 4])
def test_all_tasks_make_the_step_of_one_process(world: int, texts: Path, tmp_path: Path) -> None:
    """With accumulation, clipping by the norm of all gradients, and activation checkpointing."""

    def work(rank: int) -> None:
        mine = tmp_path / f"rank{rank}"
        mine.mkdir()
        for family in TASKS:
            for strategy in ("ddp", "fsdp2"):
                weights = step_on_ranks(family, strategy, texts, mine, world)
                torch.save(weights, mine / f"{strategy} {family}.pt")

    ended = together(world, work, tmp_path, timeout=1500)
    assert [end.code for end in ended] == [0] * world, ended[1].out[-3000:]
    for family, make in TASKS.items():
        whole = train(*make(texts, max_rows=2000), tmp_path, gradient_clip_val=0.01)
        for strategy in ("ddp", "fsdp2"):
            found = torch.load(tmp_path / f"rank0/{strategy} {family}.pt")
            assert found.keys() == whole.keys()
            for name, weight in whole.items():
                message = f"{strategy} {family} {name}"
                torch.testing.assert_close(found[name], weight, rtol=1e-12, atol=1e-12, msg=message)


class Compile(Callback):
    """Callback that compiles the blocks with another backend than `CompileBlocks`."""

    def __init__(self, dynamic: bool | None = None, **options: Any) -> None:
        self.dynamic, self.options = dynamic, options

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, **self.options))
            compile_blocks(pl_module, dynamic=self.dynamic)


def test_a_sharded_block_is_one_graph(texts: Path, tmp_path: Path) -> None:
    """torch raises an error if hooks or anything else divide the graph of a block."""

    def work(rank: int) -> None:
        rows = -(-len(causal(texts)[1].split("train")) // 2)
        mine = tmp_path / f"rank{rank}"
        mine.mkdir()
        for precision in ("32-true", "bf16-mixed"):
            whole = Compile(fullgraph=True, backend="aot_eager")
            options: Any = {"strategy": "fsdp2", "precision": precision, "limit_val_batches": 1}
            train(*causal(texts, max_rows=rows), mine, [whole], devices=2, **options)

    ended = together(2, work, tmp_path, timeout=200)
    assert [end.code for end in ended] == [0, 0], ended[0].out[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("families", "backend"),
    [(tuple(TASKS), "aot_eager"), (("causal LM", "translation", "images"), "inductor")],
    ids=["all", "inductor"],
)
def test_compiled_blocks_make_the_same_step(
    families: tuple[str, ...], backend: str, texts: Path, tmp_path: Path
) -> None:
    def work(rank: int) -> None:
        mine = tmp_path / f"rank{rank}"
        mine.mkdir()
        for family in families:
            # With graphs of other models, a block that runs again may find another graph than its
            # forward pass, which torch reports as an error.
            torch.compiler.reset()
            for name in ("eager", "compiled"):
                callbacks = [Compile(dynamic=True, backend=backend)] * (name == "compiled")
                weights = step_on_ranks(family, "fsdp2", texts, mine, 2, callbacks)
                torch.save(weights, mine / f"{name} {family}.pt")

    ended = together(2, work, tmp_path, timeout=1500)
    assert [end.code for end in ended] == [0, 0], ended[0].out[-3000:]
    for family in families:
        eager, compiled = (
            torch.load(tmp_path / f"rank0/{name} {family}.pt") for name in ("eager", "compiled")
        )
        for name, weight in eager.items():
            message = f"{family} {name}"
            torch.testing.assert_close(compiled[name], weight, rtol=1e-10, atol=1e-12, msg=message)


StrategyRegistry.register("fsdp2_gathered", FSDP2, reshard_after_forward=False)
StrategyRegistry.register("fsdp2_late_sync", FSDP2, sync_each_micro_batch=False)
STRATEGIES = ("ddp", "fsdp2", "fsdp2_gathered", "fsdp2_late_sync")


class ObserveSharding(Callback):
    """Callback that stores when weights are gathered, their dtypes, and when gradients arrive."""

    def __init__(self) -> None:
        self.gathered: dict[str, torch.dtype] = {}
        self.has_gradient: list[bool] = []

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        weights = pl_module.model.stack.blocks.named_parameters()
        self.gathered = {n: w.dtype for n, w in weights if not isinstance(w, DTensor)}

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        weights = pl_module.model.stack.blocks.parameters()
        self.has_gradient.append(all(weight.grad is not None for weight in weights))


def steps_of_strategies(
    make: Any, texts: Path, folder: Path, *, micro_batches: int, recompute: Any, **options: Any
) -> dict[str, Any]:
    """Return the weights and observations of a step on two ranks, by strategy."""

    def halves(rank: int) -> None:
        rows = -(-len(make(texts)[1].split("train")) // (2 * micro_batches))
        for strategy in STRATEGIES:
            task, data = make(texts, max_rows=rows)
            task.activation_checkpointing = recompute
            seen = ObserveSharding()
            mine = folder / f"{strategy}{rank}"
            mine.mkdir()
            several = {"accumulate_grad_batches": micro_batches, "devices": 2, **options}
            weights = train(task, data, mine, [seen], strategy=strategy, **several)
            torch.save((weights, seen.gathered, seen.has_gradient), folder / f"{strategy}{rank}.pt")

    ended = together(2, halves, folder, timeout=250)
    assert [end.code for end in ended] == [0, 0], ended[1].out[-3000:]
    return {strategy: torch.load(folder / f"{strategy}0.pt") for strategy in STRATEGIES}


@pytest.mark.parametrize("recompute", ["block", "attention"])
def test_options_do_not_change_the_step(recompute: str, texts: Path, tmp_path: Path) -> None:
    shape: Any = {"micro_batches": 2, "recompute": recompute, "gradient_clip_val": 0.01}
    found = steps_of_strategies(causal, texts, tmp_path, **shape)
    whole = train(*causal(texts, max_rows=2000), tmp_path, gradient_clip_val=0.01)
    for strategy, (weights, _, _) in found.items():
        for name, weight in whole.items():
            torch.testing.assert_close(
                weights[name], weight, rtol=1e-12, atol=1e-12, msg=f"{strategy} {name}"
            )
    gathered = {strategy: bool(names) for strategy, (_, names, _) in found.items()}
    assert gathered == {
        "ddp": True,
        "fsdp2": False,
        "fsdp2_gathered": True,
        "fsdp2_late_sync": False,
    }
    assert found["fsdp2"][2] == [True, True]
    assert found["fsdp2_late_sync"][2] == [False, True]


def test_mixed_precision_is_that_of_ddp(texts: Path, tmp_path: Path) -> None:
    """The linear layers of blocks are gathered in bf16, and norms in fp32, as under autocast."""
    shape: Any = {"micro_batches": 2, "recompute": "block", "precision": "bf16-mixed"}
    found = steps_of_strategies(causal, texts, tmp_path, **shape)
    expected = found["ddp"][0]
    for strategy, (weights, _, _) in found.items():
        for name, weight in expected.items():
            assert weights[name].dtype == torch.float32
            torch.testing.assert_close(
                weights[name], weight, rtol=1e-6, atol=1e-7, msg=f"{strategy} {name}"
            )
    dtypes = found["fsdp2_gathered"][1]
    assert dtypes["0.attn.q.weight"] == torch.bfloat16
    assert dtypes["0.attn_norm.weight"] == torch.float32


def test_older_torch_gathers_all_weights_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not gather the matrices of a block in bf16 and its norms in fp32 without hooks."""
    strategy = FSDP2()
    strategy.precision_plugin = MixedPrecision("bf16-mixed", "cpu")
    assert strategy._precision_policy().param_dtype == torch.bfloat16
    monkeypatch.delattr(MixedPrecisionPolicy, "param_dtype_override_fn")
    policy = strategy._precision_policy()
    assert policy.param_dtype is None
    assert policy.reduce_dtype == torch.float32


class EndOfTraining(Exception):
    """Raised to end a training before its first step."""


class KeepInitialWeights(Callback):
    """Callback that stores the weights when training starts, and ends the training."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        state = trainer.strategy.lightning_module_state_dict()
        self.weights = {name: tensor.clone() for name, tensor in state.items()}
        raise EndOfTraining


def initial_weights(make: Any, texts: Path, folder: Path, **options: Any) -> dict[str, Any]:
    keep = KeepInitialWeights()
    with suppress(EndOfTraining):
        train(*make(texts), folder, [keep], precision="32-true", **options)
    return keep.weights


def same_initial_weights(
    families: dict[str, Any], texts: Path, folder: Path, world: int = 2
) -> None:
    def built(rank: int) -> None:
        mine = folder / f"rank{rank}"
        mine.mkdir()
        found = {
            family: initial_weights(make, texts, mine, devices=world, strategy="fsdp2")
            for family, make in families.items()
        }
        torch.save(found, folder / f"initial{rank}.pt")

    ended = together(world, built, folder, timeout=250)
    assert [end.code for end in ended] == [0] * world, ended[1].out[-3000:]
    found = torch.load(folder / "initial0.pt")
    for family, make in families.items():
        expected = initial_weights(make, texts, folder)
        assert found[family].keys() == expected.keys()
        for name, weight in expected.items():
            assert torch.equal(found[family][name], weight), f"{family} {name}"


def test_initial_weights_are_those_of_one_device(texts: Path, tmp_path: Path) -> None:
    quick = ("masked LM", "causal LM", "masked images")
    families = {name: TASKS[name] for name in quick}
    same_initial_weights({**families, "low rank": with_low_rank}, texts, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_initial_weights_are_those_of_one_device_in_every_family(
    world: int, texts: Path, tmp_path: Path
) -> None:
    same_initial_weights(TASKS, texts, tmp_path, world)


def test_a_rank_holds_only_its_shard_of_a_new_model(tmp_path: Path) -> None:
    """A fill needs memory for one weight at a time, and a change of a part of a weight is lost."""

    def build(rank: int) -> None:
        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        with ShardedInit(mesh, torch.device("cpu")):
            layer = nn.Linear(5, 3)
            nn.init.trunc_normal_(layer.weight)
            with pytest.raises(InputError, match="part of a weight"):
                layer.weight.data[0].zero_()
        assert isinstance(layer.weight, DTensor)
        local = layer.weight.to_local()
        assert local.shape == ((2, 5), (1, 5))[rank]
        assert local.untyped_storage().nbytes() == 4 * local.numel()

    ended = together(2, build, tmp_path)
    assert [end.code for end in ended] == [0, 0], ended[0].out


def test_muon_updates_sharded_matrices(tmp_path: Path) -> None:
    """Muon makes orthogonal the whole matrix, and not the rows of one device."""

    def update(rank: int) -> None:
        torch.distributed.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        gradient = torch.randn(24, 16, generator=torch.Generator().manual_seed(0))
        whole, sharded = (nn.Linear(16, 24, bias=False) for _ in range(2))
        nn.init.zeros_(whole.weight)
        sharded.weight = nn.Parameter(distribute_tensor(whole.weight.detach(), mesh, [Shard(0)]))
        whole.weight.grad = gradient.clone()
        sharded.weight.grad = distribute_tensor(gradient, mesh, [Shard(0)])
        for layer in (whole, sharded):
            groups = [{"params": [layer.weight], "weight_decay": 0.0, "lr": 1.0, "muon": True}]
            MuonAdamW(groups, OptimizerConfig("muon"), fused=True).step()
        found, expected = sharded.weight.full_tensor(), whole.weight
        # The iterations of Muon amplify the rounding of bf16.
        assert cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.995
        assert expected.norm() > 3

    ended = together(2, update, tmp_path)
    assert [end.code for end in ended] == [0, 0], ended[0].out


@pytest.mark.parametrize(
    ("callback", "precision", "problem"),
    [
        (EMAWeightAveraging(), "32-true", "must not contain EMAWeightAveraging"),
        (ExponentialMovingAverage(0.9), "bf16-true", "cannot average sharded weights in bf16-true"),
    ],
)
def test_averages_that_cannot_be_sharded_are_rejected(
    callback: Any, precision: str, problem: str
) -> None:
    strategy = FSDP2()
    trainer = SimpleNamespace(callbacks=[callback], precision=precision)
    strategy._lightning_module = SimpleNamespace(trainer=trainer)  # type: ignore[assignment]
    with pytest.raises(InputError, match=problem):
        strategy.setup_environment()


def test_other_sharding_strategies_are_rejected() -> None:
    trainer: Any = SimpleNamespace(strategy=ModelParallelStrategy())
    with pytest.raises(InputError, match=r"trainer\.strategy must be fsdp2"):
        prepare_for_strategy(torch.nn.Linear(2, 2), trainer)
