"""Compiled models and losses, the transforms of torch.func, and second derivatives."""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.library import opcheck

from fourfold.core.attention import attend, attention_backend
from fourfold.errors import InputError
from fourfold.kernels import cpu_attention, cross_entropy, dropout
from fourfold.losses import linear_cross_entropy, token_scores
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLM,
    MaskedLMConfig,
    ViT,
    ViTConfig,
)

N, D, V = 7, 4, 9
SHAPE: dict[str, Any] = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 16}
FAMILIES = ("causal", "masked", "vit", "encoder_decoder")
HAS_COMPILER = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
compiles = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="torch.compile needs a C++ compiler"),
]


@pytest.fixture(autouse=True)
def _no_graphs() -> Iterator[None]:
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def training_step(family: str, **options: Any) -> tuple[nn.Module, Callable[..., Tensor], Any]:
    """Build a model, the function from its inputs to the public loss, and a batch."""
    ids = torch.randint(3, 50, (3, 10))
    mask = torch.arange(10) < torch.tensor([[10], [7], [4]])
    model: Any
    if family == "vit":
        model = ViT(ViTConfig(**SHAPE, **options, image_size=8, patch_size=4, n_classes=3))
        batch = torch.randn(3, 3, 8, 8), torch.tensor([0, 2, 1])
        nn.init.normal_(model.heads[0].weight)
        return model, lambda x, y: nn.functional.cross_entropy(model(x), y), batch
    targets = ids.masked_fill(~mask, -100)
    if family == "causal":
        model = CausalLM(CausalLMConfig(**SHAPE, **options, vocab_size=50, max_len=16))
        return model, lambda x, y: model.head.loss(model.hidden(x), y), (ids, targets)
    if family == "masked":
        model = MaskedLM(MaskedLMConfig(**SHAPE, **options, vocab_size=50, max_len=16))
        step = lambda x, m, y: model.head.loss(model.hidden(x, mask=m), y)  # noqa: E731
        return model, step, (ids, mask, targets)
    model = EncoderDecoder(EncoderDecoderConfig(**SHAPE, **options, vocab_size=50, max_len=16))

    def translate(x: Tensor, m: Tensor, y: Tensor) -> Tensor:
        hidden = model.hidden(x, y[:, :-1], src_mask=m)
        return model.head.loss(hidden, y[:, 1:], label_smoothing=0.1)

    return model, translate, (ids, mask, torch.randint(3, 50, (3, 8)))


@pytest.mark.parametrize(
    ("family", "low", "backend"),
    [
        *((family, False, "aot_eager") for family in FAMILIES),
        ("causal", True, "aot_eager"),
        *(
            pytest.param(family, low, "inductor", marks=compiles)
            for family in FAMILIES
            for low in (False, True)
        ),
    ],
)
def test_compiled_step_equals_the_eager_step(family: str, low: bool, backend: str) -> None:
    """Compiled code draws the dropout masks of eager code, unless Inductor reorders the draws.

    Inductor does so for the masked LM, whose steps are therefore compared without dropout.
    """
    dropout = 0.0 if (family, backend) == ("masked", "inductor") else 0.1
    model, forward, batch = training_step(family, dropout=dropout, attn_dropout=dropout)

    def step(*inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            return forward(*inputs)

    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=False)
    losses, gradients = [], []
    for run in (step, compiled):
        torch.manual_seed(1)
        model.zero_grad()
        loss = run(*batch)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    tolerance = 2e-2 if low else 1e-5
    torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=0)
    assert (gradients[1] - gradients[0]).norm() <= tolerance * gradients[0].norm()


def test_graph_contains_no_unrolled_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", 50)
    monkeypatch.setattr(cpu_attention, "CAUSAL_SLICE", 2)
    _, step, batch = training_step("causal", dropout=0.0, attn_dropout=0.1)
    names = list[str]()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.compile(step, fullgraph=True, backend=backend)(*batch)
    operators = [name for name in names if "fourfold" in name]
    assert len(operators) == 2  # attention of one layer, and the loss
    assert not any("bmm" in name for name in names)


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    targets = torch.randint(1, V, (N,))
    targets[2] = -100
    hidden, weight, bias = (torch.randn(s, dtype=dtype) for s in ((N, D), (V, D), (V,)))
    weights = torch.rand(N, dtype=dtype)
    learned = [x.requires_grad_() for x in (hidden, weight, bias)]
    return learned[0], learned[1], learned[2], targets, weights.requires_grad_()


@pytest.mark.parametrize(
    "settings",
    [
        (0.8, 0.01, 0, 0.1, None, True, True, True),
        (1.0, 0.0, None, 0.0, torch.bfloat16, True, False, False),
        (1.0, 0.0, None, 0.2, None, False, False, True),
    ],
)
def test_loss_operator_is_registered_correctly(settings: tuple[Any, ...]) -> None:
    hidden, weight, bias, targets, weights = problem(torch.float32)
    needs_grad, needs_weight, _ = settings[-3:]
    if not needs_grad:
        hidden, bias = hidden.detach(), bias.detach()
    weight = weight if needs_weight else weight.detach()
    weights = weights if settings[-1] else weights.detach()
    opcheck(cross_entropy.operator, (hidden, weight, bias, targets, weights, *settings))
    opcheck(cross_entropy.operator, (hidden, weight, None, targets, weights, *settings))
    scored = hidden.detach(), weight.detach(), bias.detach(), targets, settings[4]
    opcheck(cross_entropy.score_operator, scored)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_operators_are_registered_correctly(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    monkeypatch.setattr(cpu_attention, "CAUSAL_SLICE", 3)
    q, k, v = (torch.randn(4, 8, D, requires_grad=True) for _ in range(3))
    bias = None if causal else torch.randn(1, 2, 8, 8, requires_grad=True)
    mask = None if causal else torch.rand(2, 1, 1, 8) > 0.3
    opcheck(cpu_attention._operator, (q, k, v, mask, bias, causal, 0.0, 2, True))
    random = ("test_schema", "test_faketensor")  # the others expect equal results of two calls
    opcheck(cpu_attention._operator, (q, k, v, mask, bias, causal, 0.4, 2, True), test_utils=random)
    opcheck(
        dropout._operator, ((3, 5), 2**14, torch.float32, torch.device("cpu")), test_utils=random
    )


@pytest.mark.parametrize(("p", "saved"), [(0.0, 2**18), (0.4, 0)])
def test_one_graph_of_attention_serves_all_lengths(
    monkeypatch: pytest.MonkeyPatch, p: float, saved: int
) -> None:
    monkeypatch.setattr(cpu_attention, "CAUSAL_SLICE", 3)
    monkeypatch.setattr(cpu_attention, "MAX_SAVED_WEIGHTS", saved)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, causal=True, dropout_p=p)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 7, 10):
        leaves = [torch.randn(2, 3, length, D).bfloat16().requires_grad_() for _ in range(3)]
        results = []
        for function in (run, compiled):
            torch.manual_seed(2)
            y = function(*leaves)
            results.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("target", "compiled"), [(-1, False), (-99, False), (V, False), (-1, True), (V, True)]
)
def test_target_outside_the_vocabulary_is_an_error(target: int, compiled: bool) -> None:
    hidden, weight, bias, targets, _ = problem()
    targets[4] = target
    for function in (linear_cross_entropy, token_scores):
        call: Any = function
        if compiled:
            call = torch.compile(function, fullgraph=True, backend="eager")
        with pytest.raises(InputError, match=rf"targets must be from 0 to 8, .*, got {target}$"):
            call(hidden, weight, bias, targets)


def plain_losses(hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    logits = nn.functional.linear(hidden, weight, bias)
    return nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=0.1)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_weights_get_the_loss_of_each_target(
    monkeypatch: pytest.MonkeyPatch, frozen: bool, compiled: bool
) -> None:
    monkeypatch.setattr(cross_entropy, "MAX_SLICE_LOGITS", 3 * V)
    monkeypatch.setattr(cross_entropy, "TILE_LOGITS_CPU", 4)
    hidden, weight, bias, targets, weights = problem()
    if frozen:
        hidden, weight, bias = hidden.detach(), weight.detach(), bias.detach()

    def loss(weights: Tensor) -> Tensor:
        return linear_cross_entropy(
            hidden, weight, bias, targets, weights=weights, label_smoothing=0.1, normalizer=2.0
        )

    run = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    found = torch.autograd.grad(run(weights), weights)[0]
    torch.testing.assert_close(found, plain_losses(hidden, weight, bias, targets).detach() / 2)
    assert torch.autograd.gradcheck(loss, weights)


def test_weights_without_gradient_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()
    plain = cross_entropy.cross_entropy_and_gradients
    monkeypatch.setattr(
        cross_entropy,
        "cross_entropy_and_gradients",
        lambda *given: [kept.append((r := plain(*given))[4].numel()), r][1],
    )
    hidden, weight, bias, targets, weights = problem()
    linear_cross_entropy(hidden, weight, bias, targets, weights=weights.detach()).backward()
    linear_cross_entropy(hidden, weight, bias, targets, weights=weights).backward()
    assert kept == [0, N]


@pytest.mark.parametrize("label_smoothing_type", ["uniform", "off_target", "off_target_pad"])
def test_functional_transforms_of_the_loss(label_smoothing_type: str) -> None:
    hidden, weight, bias, targets, weights = problem()

    def loss(hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return linear_cross_entropy(
            *(hidden, weight, bias, targets),
            weights=weights,
            label_smoothing=0.1,
            label_smoothing_type=label_smoothing_type,
        )

    wanted = torch.autograd.grad(loss(hidden, targets, weights), (hidden, weights))
    found = torch.func.grad(loss, argnums=(0, 2))(hidden, targets, weights)
    torch.testing.assert_close(found, wanted)
    double = torch.stack([hidden, hidden]), torch.stack([targets, targets]), weights
    rows = torch.vmap(torch.func.grad(loss), in_dims=(0, 0, None))(*double)
    torch.testing.assert_close(rows, torch.stack([wanted[0], wanted[0]]))
    assert torch.func.hessian(loss)(hidden, targets, weights).isfinite().all()


def test_gradient_of_each_sample_of_a_model() -> None:
    model, _, (ids, targets) = training_step("causal", dropout=0.0, attn_dropout=0.0)
    parameters = dict(model.named_parameters())
    bf16 = {name: p.detach().bfloat16() for name, p in parameters.items()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, parameters, (x[None],))
        return nn.functional.cross_entropy(logits[0].float(), y)

    for given in (parameters, bf16):
        rows = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(given, ids, targets)
        for i in range(len(ids)):
            one = torch.func.grad(loss)(given, ids[i], targets[i])
            for name, grad in one.items():
                torch.testing.assert_close(rows[name][i], grad, rtol=2e-2, atol=2e-3)


def test_second_derivative_names_what_supports_it() -> None:
    hidden, weight, bias, targets, _ = problem()
    loss = linear_cross_entropy(hidden, weight, bias, targets)
    with pytest.raises(InputError, match=r"linear_cross_entropy has no second .* F.cross_entropy"):
        torch.autograd.grad(loss, hidden, create_graph=True)
    q = torch.randn(1, 1, 3, D).bfloat16().requires_grad_()
    with pytest.raises(InputError, match=r"attention has no second .* attention_backend\('naive'"):
        torch.autograd.grad(attend(q, q, q).sum(), q, create_graph=True)
    with attention_backend("naive"):
        grad = torch.autograd.grad(attend(q, q, q).sum(), q, create_graph=True)[0]
    grad.sum().backward()
    assert q.grad.isfinite().all()
