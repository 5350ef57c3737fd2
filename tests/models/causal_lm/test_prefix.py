"""A prefix in causal LMs: what each token sees, in every backend, with documents and a cache."""

import pytest
import torch
from torch import Tensor

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.models import RecurrentLM, RecurrentLMConfig
from tests.fixtures.tiny_models import StackRunner, assert_same, backend, backends, tokens

kinds = pytest.mark.parametrize(
    "kind", ["causal", "causal_llama", "causal_qwen3", "causal_olmo2", "causal_cohere"]
)
N = 9


def prefixes(*lengths: int) -> Tensor:
    """Return (B, N) bool, True for the first `lengths[i]` tokens of row i."""
    return torch.arange(N) < torch.tensor(lengths)[:, None]


@kinds
@backends
def test_later_tokens_do_not_change_earlier_states(kind: str, name: str) -> None:
    model, ids = StackRunner(kind).model, tokens(3, N)
    prefix = prefixes(4, 1, N)
    with backend(name):
        before = model.hidden(ids, prefix=prefix)
        for row in range(3):
            for position in range(N):
                changed = ids.clone()
                changed[row, position] = (ids[row, position] + 1) % 29
                after = model.hidden(changed, prefix=prefix)
                first = 0 if prefix[row, position] else position
                assert torch.equal(after[row, :first], before[row, :first])
                assert not torch.isclose(after[row, first:], before[row, first:]).all(-1).any()
                others = [i for i in range(3) if i != row]
                assert torch.equal(after[others], before[others])


@kinds
@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_no_gradient_flows_to_tokens_after_the_prefix(kind: str, name: str) -> None:
    model, ids = StackRunner(kind).model, torch.arange(N)[None]  # each token occurs once
    with backend(name):
        model.hidden(ids, prefix=prefixes(4))[0, :2].sum().backward()
    gradient = model.embed.tokens.weight.grad[:N]
    assert (gradient[4:] == 0).all()
    assert (gradient[:4] != 0).any(-1).all()


@kinds
@backends
def test_a_prefix_of_one_token_is_causal(kind: str, name: str) -> None:
    """The first token is visible to every token in any case."""
    model, ids = StackRunner(kind).model, tokens(3, N)
    with backend(name):
        model.hidden(ids, prefix=prefixes(5, N, 3))  # FlexAttention must not reuse this mask
        causal = model.hidden(ids)
        for prefix in (prefixes(1, 0, 1), prefixes(0, 0, 0)):
            assert_same(model.hidden(ids, prefix=prefix), causal)


@kinds
@backends
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_the_states(kind: str, name: str, side: str) -> None:
    """Not even if the prefix contains the padding."""
    model, row, seen = StackRunner(kind).model, tokens(1, 6), prefixes(4)[:, :6]
    places = (3, 0) if side == "left" else (0, 3)
    pad = torch.nn.functional.pad
    mask = pad(torch.ones_like(row), places).bool()
    with backend(name):
        padded = model.hidden(
            pad(row, places, value=5), mask=mask, prefix=pad(seen, places, value=True)
        )
        assert_same(padded[mask][None], model.hidden(row, prefix=seen))


@kinds
@backends
def test_packed_documents_equal_separate_documents(kind: str, name: str) -> None:
    model, ids = StackRunner(kind).model, tokens(1, N)
    documents = torch.tensor([[3] * 4 + [4] + [5] * 4])
    prefix = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 1, 0]]).bool()
    with backend(name):
        packed = model.hidden(ids, documents=documents, prefix=prefix)
        for own in (slice(0, 4), slice(4, 5), slice(5, 9)):
            alone = model.hidden(ids[:, own], prefix=prefix[:, own])
            assert_same(packed[:, own], alone)


@kinds
@backends
@pytest.mark.parametrize("parts", [[4, 1, 1, 1, 1, 1], [5, 3, 1], [9]])
@pytest.mark.parametrize("packed", [False, True])
def test_a_cache_gives_the_same_states(
    kind: str, name: str, parts: list[int], packed: bool
) -> None:
    """The first call has the whole prefix; the later calls need none."""
    model, ids = StackRunner(kind).model, tokens(2, N)
    documents = torch.tensor([[0] * 2 + [1] * 7]).expand(2, N) if packed else None
    prefix, cache, found = prefixes(4, 2), KVCache(), []
    with backend(name):
        whole = model.hidden(ids, documents=documents, prefix=prefix)
        start = 0
        for length in parts:
            own = slice(start, start + length)
            given = {} if start else {"prefix": prefix[:, own]}
            numbers = None if documents is None else documents[:, own]
            found.append(model.hidden(ids[:, own], cache=cache, documents=numbers, **given))
            start += length
    assert_same(torch.cat(found, 1), whole)


def test_a_prefix_after_the_first_call_is_refused() -> None:
    """The tokens in the cache have not seen it."""
    model, ids, cache = StackRunner("causal").model, tokens(1, N), KVCache()
    model.hidden(ids[:, :3], cache=cache)
    with pytest.raises(InputError, match="prefix must have one column for each of 9 tokens, got 6"):
        model.hidden(ids[:, 3:], cache=cache, prefix=prefixes(6)[:, 3:])


def test_a_prefix_must_have_a_column_for_each_token() -> None:
    with pytest.raises(InputError, match="one column for each of 5 tokens, got 9"):
        StackRunner("causal").model.hidden(tokens(1, 5), prefix=prefixes(6))


@pytest.mark.parametrize("kind", ["causal_mistral", "causal_gemma3"])
def test_a_window_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="prefix needs a causal mask without a window"):
        StackRunner(kind).model.hidden(tokens(1, N), prefix=prefixes(3))


def test_a_recurrent_model_is_refused() -> None:
    model = RecurrentLM(RecurrentLMConfig(vocab_size=29, d_model=8, hidden_size=8, n_layers=1))
    with pytest.raises(InputError, match="prefix must be None for a recurrent model"):
        model.hidden(tokens(1, N), prefix=prefixes(3))
