"""Small language models for decoding: a table of logits, and one model of each family in fp64."""

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from fourfold.generation import GenerationDefaults
from fourfold.models import CausalLM, CausalLMConfig, EncoderDecoder, EncoderDecoderConfig

SHAPE = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24, "dropout": 0.4}
OPTIONS = [
    {"norm_placement": "pre", "positions": "learned"},
    {"norm_placement": "post", "positions": "sinusoidal"},
    {"norm_placement": "pre", "positions": "none", "norm": "rms", "feed_forward": "glu"},
]


class Table:
    """Language model that looks up logits by row, step and the last two tokens.

    It is a step function, and records the number of rows of each call.

    Args:
        logits: (B, L, V, V, V).
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        self.calls: list[int] = []
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
    """Return a function that makes tables of logits with standard deviation `sharpness`."""

    def make(n_rows: int, length: int, vocab_size: int, sharpness: float = 1.5) -> Table:
        shape = (n_rows, length, vocab_size, vocab_size, vocab_size)
        return Table(torch.randn(shape, dtype=torch.float64) * sharpness)

    return make


def sharpen(model: nn.Module) -> nn.Module:
    """Convert to fp64, with weights so large that the next token depends on the previous ones."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.normal_(std=0.5)
    return model.double().eval()


def with_special_tokens(model: EncoderDecoder) -> EncoderDecoder:
    model.generation_defaults = GenerationDefaults(bos_id=1, eos_id=2, pad_id=0)
    return model


@pytest.fixture(
    params=OPTIONS, ids=lambda options: options["norm_placement"] + "-" + options["positions"]
)
def options(request: pytest.FixtureRequest) -> dict[str, str]:
    return request.param


@pytest.fixture
def causal_lm(options: dict[str, str]) -> CausalLM:
    return sharpen(CausalLM(CausalLMConfig(**SHAPE, **options, vocab_size=13, max_len=40)))


@pytest.fixture
def translator(options: dict[str, str]) -> EncoderDecoder:
    config = EncoderDecoderConfig(
        **SHAPE, **options, vocab_size=13, max_len=40, tie_embeddings="decoder"
    )
    return with_special_tokens(sharpen(EncoderDecoder(config)))


@pytest.fixture
def make_translator() -> Callable[[int], EncoderDecoder]:
    """Return a function that makes a translator of a given vocabulary size."""

    def make(vocab_size: int) -> EncoderDecoder:
        config = EncoderDecoderConfig(
            **SHAPE, vocab_size=vocab_size, max_len=40, tie_embeddings="none"
        )
        return with_special_tokens(sharpen(EncoderDecoder(config)))

    return make


@pytest.fixture
def sources() -> list[Tensor]:
    """Return four rows of unequal length without special tokens."""
    return [torch.randint(3, 13, (n,)) for n in (5, 2, 7, 4)]


@pytest.fixture(params=["left", "right"])
def padded(request: pytest.FixtureRequest, sources: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the rows as a batch (B, T), padded on one side, with its mask."""
    width = max(len(row) for row in sources)
    ids = torch.zeros(len(sources), width, dtype=torch.long)
    mask = torch.zeros(len(sources), width, dtype=torch.bool)
    for i, row in enumerate(sources):
        at = slice(width - len(row), width) if request.param == "left" else slice(0, len(row))
        ids[i, at], mask[i, at] = row, True
    return ids, mask


@pytest.fixture
def ended_sequences() -> Callable[[int, int, int], Iterator[tuple[int, ...]]]:
    """Return an iterator over all sequences of at most `length` tokens that end with EOS."""

    def sequences(vocab_size: int, length: int, eos_id: int) -> Iterator[tuple[int, ...]]:
        tokens = [token for token in range(vocab_size) if token != eos_id]
        for n in range(length):
            for start in itertools.product(tokens, repeat=n):
                yield (*start, eos_id)

    return sequences


@pytest.fixture
def normalize() -> Callable[[str, float, int, float], float]:
    """Return an independent implementation of the length penalty."""

    def score(length_penalty_type: str, alpha: float, n: int, log_p: float) -> float:
        if length_penalty_type == "gnmt":
            return log_p / (math.pow(5 + n, alpha) / math.pow(6, alpha))
        return log_p / math.pow(n, alpha) if length_penalty_type == "power" else log_p

    return score
