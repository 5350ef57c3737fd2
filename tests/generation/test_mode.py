"""Decoding does not change the mode of a model, in several threads and with foreign modules."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fourfold
from fourfold import models
from fourfold.finetuning.config import TuningConfig
from fourfold.finetuning.lora import add_lora
from fourfold.generation import beam_search, generate
from fourfold.generation.step import decoding_mode, eval_copy
from fourfold.layers.base_model import Model

V, N_ROUNDS = 23, 20
SIZES: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "dropout": 0.5}
TEXT: dict[str, Any] = {"vocab_size": V, "max_len": 40}
RECURRENT: dict[str, Any] = {"d_model": 12, "hidden_size": 16, "dropout": 0.5, **TEXT}


class Foreign(Model):
    """A user's model: dropout and batch norm of torch, and references outside of the modules."""

    can_generate = True

    def __init__(self) -> None:
        super().__init__()
        self.config = models.CausalLMConfig(**SIZES, **TEXT)
        self.embed = nn.Embedding(V, 12)
        self.body = nn.Sequential(nn.Dropout(0.5), nn.Linear(12, 12), nn.BatchNorm1d(12))
        self.rnn = nn.LSTM(12, 12, num_layers=2, dropout=0.5, batch_first=True)
        self.parts = [self.body]
        self.by_name = {"rnn": self.rnn}
        self.drop = self.body[0].forward
        self.out = nn.Linear(12, V)

    def new_cache(self) -> Any:
        return None

    def hidden(self, ids: Tensor, mask: Tensor | None = None, cache: Any = None) -> Tensor:
        x = self.drop(self.embed(ids))
        for layer in self.parts[0]:
            x = layer(x.mT).mT if isinstance(layer, nn.BatchNorm1d) else layer(x)
        found: Tensor = self.by_name["rnn"](x)[0]
        return found

    def logits(self, h: Tensor) -> Tensor:
        found: Tensor = self.out(h)
        return found


def with_lora() -> Any:
    model = models.CausalLM(models.CausalLMConfig(**SIZES, **TEXT))
    add_lora(model, TuningConfig(lora_rank=2, lora_dropout=0.5))
    return model


def compiled_blocks() -> Any:
    """Compilation is lazy, so a call of a compiled module would be noticed by its duration."""
    model = models.CausalLM(models.CausalLMConfig(**SIZES, **TEXT))
    for block in model.stack.blocks:
        block.compile(backend="eager")
    model.stack.blocks[1] = torch.compile(model.stack.blocks[1], backend="eager")  # type: ignore[assignment]
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "causal": lambda: models.CausalLM(models.CausalLMConfig(**SIZES, **TEXT, drop_path=0.4)),
    "encoder-decoder": lambda: models.EncoderDecoder(
        models.EncoderDecoderConfig(**SIZES, **TEXT, tie_embeddings="all")
    ),
    "t5": lambda: models.T5(models.T5Config(**SIZES, d_head=8, vocab_size=V)),
    "recurrent": lambda: models.RecurrentLM(models.RecurrentLMConfig(**RECURRENT)),
    "recurrent-encoder-decoder": lambda: models.RecurrentEncoderDecoder(
        models.RecurrentEncoderDecoderConfig(**RECURRENT)
    ),
    "lora": with_lora,
    "compiled": compiled_blocks,
    "foreign": Foreign,
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    model = MODELS[request.param]()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(std=0.4)
    return model


def decoders(model: Any) -> list[Callable[[], Tensor]]:
    ids = torch.randint(3, V, (2, 5), generator=torch.Generator().manual_seed(1))
    options: dict[str, Any] = {"bos_id": 1, "pad_id": 0}
    use_cache = not isinstance(model, Foreign)
    return [
        partial(generate, model, ids, 8, eos_id=[], use_cache=use_cache, **options),
        partial(generate, model, ids, 8, temperature=1.0, seed=2, use_cache=use_cache, **options),
        lambda: beam_search(
            model, ids, 3, eos_id=2, max_new_tokens=8, use_cache=use_cache, **options
        )[0],
    ]


def test_two_threads_decode_from_a_model_in_training_mode(model: Any) -> None:
    expected = [decode() for decode in decoders(model.eval())]
    model.train()
    frozen = next(x for x in model.modules() if isinstance(x, nn.Dropout))
    frozen.eval()
    modes = [x.training for x in model.modules()]
    calls = []
    handle = model.get_submodule("embed" if hasattr(model, "embed") else "tgt_embed")
    handle = handle.register_forward_hook(lambda *_: calls.append([*map(bool, modes)] == modes))
    seen = []
    barrier = Barrier(2)

    def decode_all(_: int) -> list[Tensor]:
        barrier.wait(60)
        found = []
        for decode in decoders(model):
            found.append(decode())
            seen.append([x.training for x in model.modules()] == modes)
        return found

    with ThreadPoolExecutor(2) as pool:
        for _ in range(N_ROUNDS):
            for found in pool.map(decode_all, range(2)):
                assert all(map(torch.equal, found, expected))
    handle.remove()
    assert all(seen)
    assert len(seen) == 2 * N_ROUNDS * len(expected)
    assert len(calls) >= len(seen)
    assert [x.training for x in model.modules()] == modes
    assert torch.is_grad_enabled()


def test_a_model_in_eval_mode_is_not_copied() -> None:
    model = MODELS["causal"]().eval()
    with decoding_mode(model) as quiet:
        assert quiet is model
    with decoding_mode(model.train()) as quiet:
        assert quiet is not model


def test_copies_share_tensors_hooks_and_later_changes(model: Any) -> None:
    model.train()
    quiet = eval_copy(model)
    assert not any(x.training for x in quiet.modules())
    assert all(x.training for x in model.modules())
    own = {name: x.data_ptr() for name, x in model.state_dict().items()}
    found = {name.replace("_orig_mod.", ""): x for name, x in quiet.state_dict().items()}
    assert {n.replace("_orig_mod.", ""): x for n, x in own.items()} == {
        name: x.data_ptr() for name, x in found.items()
    }
    mine = {id(x) for x in model.modules()}
    assert not mine & {id(x) for x in quiet.modules()}
    assert not any(x._compiled_call_impl for x in quiet.modules())
    parameter = next(model.parameters())
    assert any(x is parameter for x in quiet.parameters())


def test_attention_maps_do_not_change_the_mode() -> None:
    model = MODELS["encoder-decoder"]().train()
    ids = torch.randint(3, V, (2, 5))
    expected = fourfold.attention_maps(model.eval(), ids, ids)
    model.train()
    first = lambda module, *_: seen.append(module.training)  # noqa: E731
    seen: list[bool] = []
    model.encoder.register_forward_pre_hook(first)
    found = fourfold.attention_maps(model, ids, ids)
    assert seen == [False]
    assert all(x.training for x in model.modules())
    assert all((found[name] == expected[name]).all() for name in expected)
