"""Small language models to decode from: a table, and one of each family in fp64."""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from fourfold.models import CausalLM, CausalLMConfig, EncoderDecoder, EncoderDecoderConfig

SHAPE = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "dropout": 0.4}
KINDS = [
    {"norm_placement": "pre", "positions": "learned"},
    {"norm_placement": "post", "positions": "sinusoidal"},
    {"norm_placement": "pre", "positions": "none", "norm": "rms", "feed_forward": "glu"},
]


class Table:
    """A language model that looks its logits up by row, time and the last two tokens.

    As a step function it also counts the rows of each call.

    Args:
        logits: (B, L, V, V, V).
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits, self.calls = logits, []
        self.rows = torch.arange(len(logits))
        self.ids: Tensor | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)
        assert len(self.ids) == len(self.rows)
        self.calls.append(len(self.ids))
        before = self.ids[:, -2] if self.ids.shape[1] > 1 else self.ids[:, -1]
        return self.logits[self.rows, self.ids.shape[1] - 1, before, self.ids[:, -1]]

    def reorder(self, rows: Tensor) -> None:
        self.ids, self.rows = self.ids[rows], self.rows[rows]

    def next_log_p(self, row: int, prefix: tuple[int, ...]) -> list[float]:
        """Log-probabilities (V,) after a prefix that starts with the prompt."""
        before = prefix[-2] if len(prefix) > 1 else prefix[-1]
        return self.logits[row, len(prefix) - 1, before, prefix[-1]].log_softmax(-1).tolist()


@pytest.fixture
def table() -> Callable[..., Table]:
    """Tables of random logits; `sharpness` is their standard deviation."""

    def make(n_rows: int, length: int, vocab_size: int, sharpness: float = 1.5) -> Table:
        shape = (n_rows, length, vocab_size, vocab_size, vocab_size)
        return Table(torch.randn(shape, dtype=torch.float64) * sharpness)

    return make


def lively(model: nn.Module) -> nn.Module:
    """In fp64 and with weights so large that what comes next depends on what was before."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(std=0.5)
    return model.double().eval()


@pytest.fixture(params=KINDS, ids=lambda kind: kind["norm_placement"] + "-" + kind["positions"])
def kind(request: pytest.FixtureRequest) -> dict[str, str]:
    return request.param


@pytest.fixture
def causal_lm(kind: dict[str, str]) -> CausalLM:
    return lively(CausalLM(CausalLMConfig(**SHAPE, **kind, vocab_size=13, max_len=40)))


@pytest.fixture
def translator(kind: dict[str, str]) -> EncoderDecoder:
    config = EncoderDecoderConfig(**SHAPE, **kind, vocab_size=13, max_len=40, tie="decoder")
    return lively(EncoderDecoder(config))


@pytest.fixture
def make_translator() -> Callable[[int], EncoderDecoder]:
    """One of a given vocabulary size."""

    def make(vocab_size: int) -> EncoderDecoder:
        config = EncoderDecoderConfig(**SHAPE, vocab_size=vocab_size, max_len=40, tie="none")
        return lively(EncoderDecoder(config))

    return make


@pytest.fixture
def sources() -> list[Tensor]:
    """Four rows of unequal length, without the three special tokens."""
    return [torch.randint(3, 13, (n,)) for n in (5, 2, 7, 4)]


@pytest.fixture(params=["left", "right"])
def padded(request: pytest.FixtureRequest, sources: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The rows as a batch (B, T) with its mask, padded on one side."""
    width = max(len(row) for row in sources)
    ids = torch.zeros(len(sources), width, dtype=torch.long)
    mask = torch.zeros(len(sources), width, dtype=torch.bool)
    for i, row in enumerate(sources):
        at = slice(width - len(row), width) if request.param == "left" else slice(0, len(row))
        ids[i, at], mask[i, at] = row, True
    return ids, mask


@pytest.fixture
def ended_sequences() -> Callable[[int, int, int], Iterator[tuple[int, ...]]]:
    """All sequences of at most `length` tokens that end with the only `eos_id` in them."""

    def every(vocab_size: int, length: int, eos_id: int) -> Iterator[tuple[int, ...]]:
        words = [word for word in range(vocab_size) if word != eos_id]
        for n in range(length):
            for start in itertools.product(words, repeat=n):
                yield (*start, eos_id)

    return every


@pytest.fixture
def normalise() -> Callable[[str, float, int, float], float]:
    """A log-probability divided by the length penalty, written down a second time."""

    def score(penalty: str, alpha: float, n: int, log_p: float) -> float:
        if penalty == "gnmt":
            return log_p / (math.pow(5 + n, alpha) / math.pow(6, alpha))
        return log_p / math.pow(n, alpha) if penalty == "power" else log_p

    return score
