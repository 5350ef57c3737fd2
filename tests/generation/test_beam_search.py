"""Beam search, compared with an exhaustive search and a simple search without early stopping."""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fourfold.core.kv_cache import KVCache
from fourfold.generation.beam_search import (
    LENGTH_PENALTIES,
    ActiveBeams,
    extend,
    gather_rows,
    search,
)
from fourfold.generation.step import Seq2SeqStep

EOS, PAD = 2, 0
EXPONENTS = [("gnmt", 0.6), ("gnmt", 2.0), ("power", 1.0), ("power", -2.0), ("none", 0.6)]


def run(step: Any, beam: int, length: int | list[int], **changes: Any) -> tuple[Any, Any]:
    limit = torch.tensor([length] * len(step.rows) if isinstance(length, int) else length)
    options = {
        "length_penalty_type": "gnmt",
        "alpha": 0.6,
        "eos_ids": [EOS],
        "pad_id": PAD,
    } | changes
    return search(
        step, torch.ones(len(limit), 1, dtype=torch.long), limit, num_beams=beam, **options
    )


def plain(table: Any, row: int, beam: int, length: int, n_best: int, score: Callable) -> list:
    """Return the hypotheses [(score, tokens), ...] of a simple search without early stopping."""
    live, ended = [(0.0, ())], []
    for t in range(length):
        candidates = []
        for log_p, tokens in live:
            for word, step_log_p in enumerate(table.next_log_p(row, (1, *tokens))):
                candidates.append((log_p + step_log_p, (*tokens, word)))
        candidates.sort(reverse=True)
        ended += [(score(t + 1, s), seq) for s, seq in candidates[:beam] if seq[-1] == EOS]
        if beam == 1 and ended:
            return ended
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][:beam]
    cut = [(score(length, s), seq) for s, seq in live]
    return (sorted(ended, reverse=True) + sorted(cut, reverse=True))[:n_best]


def test_length_penalties_grow_differently_with_the_same_alpha() -> None:
    n = torch.tensor([10.0, 20.0])
    factors = {name: (d := penalty(n, 0.6))[1] / d[0] for name, penalty in LENGTH_PENALTIES.items()}
    assert factors["gnmt"].item() == pytest.approx(1.36, abs=5e-3)
    assert factors["power"].item() == pytest.approx(1.52, abs=5e-3)
    assert factors["none"].item() == 1.0


@pytest.mark.parametrize(("length_penalty_type", "alpha"), EXPONENTS)
def test_exhaustive_beam_finds_the_best_sequence(
    table: Callable,
    ended_sequences: Callable[..., Iterator],
    normalize: Callable,
    length_penalty_type: str,
    alpha: float,
) -> None:
    toy, length, n_words = table(5, 4, 4), 4, 4
    ids, scores = run(
        toy, n_words**length, length, length_penalty_type=length_penalty_type, alpha=alpha, n_best=3
    )
    for row in range(5):
        every = []
        for tokens in ended_sequences(n_words, length, EOS):
            prefixes = [(1, *tokens[:i]) for i in range(len(tokens))]
            steps = [toy.next_log_p(row, p)[w] for p, w in zip(prefixes, tokens, strict=True)]
            every.append((normalize(length_penalty_type, alpha, len(tokens), sum(steps)), tokens))
        every.sort(reverse=True)
        assert scores[row].tolist() == pytest.approx([score for score, _ in every[:3]])
        for found, (_, tokens) in zip(ids[row].tolist(), every[:3], strict=True):
            assert found == list(tokens) + [PAD] * (len(found) - len(tokens))


@pytest.mark.parametrize(("length_penalty_type", "alpha"), EXPONENTS)
def test_exhaustive_beam_finds_the_best_sequence_of_a_model(
    make_translator: Callable,
    ended_sequences: Callable[..., Iterator],
    normalize: Callable,
    length_penalty_type: str,
    alpha: float,
) -> None:
    model, src, n_words, length = make_translator(5), torch.tensor([[3, 4, 3]]), 5, 3
    every = []
    for tokens in ended_sequences(n_words, length, EOS):
        tgt = torch.tensor([[1, *tokens]])
        log_p = model(src, tgt[:, :-1]).log_softmax(-1).gather(2, tgt[:, 1:, None]).sum().item()
        every.append((normalize(length_penalty_type, alpha, len(tokens), log_p), list(tokens)))
    every.sort(reverse=True)
    with torch.inference_mode():
        step = Seq2SeqStep(model, src, None, KVCache())
        step.rows = [0]
        ids, scores = run(
            step,
            n_words**length,
            length,
            length_penalty_type=length_penalty_type,
            alpha=alpha,
            n_best=4,
        )
    assert scores[0].tolist() == pytest.approx([score for score, _ in every[:4]])
    found = [row[: row.index(EOS) + 1] for row in ids[0].tolist()]
    assert found == [tokens for _, tokens in every[:4]]


@pytest.mark.parametrize(("length_penalty_type", "alpha"), EXPONENTS)
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (2, 1), (3, 3), (4, 2)])
def test_early_stopping_does_not_change_the_result(
    table: Callable,
    normalize: Callable,
    beam: int,
    n_best: int,
    length_penalty_type: str,
    alpha: float,
) -> None:
    lengths = [1, 2, 5, 9] * 4
    toy = table(len(lengths), 9, 6)
    ids, scores = run(
        toy, beam, lengths, length_penalty_type=length_penalty_type, alpha=alpha, n_best=n_best
    )
    for row, length in enumerate(lengths):
        want = plain(
            toy,
            row,
            beam,
            length,
            n_best,
            lambda n, log_p: normalize(length_penalty_type, alpha, n, log_p),
        )
        assert scores[row].tolist() == pytest.approx([score for score, _ in want])
        for found, (_, tokens) in zip(ids[row].tolist(), want, strict=True):
            assert found == list(tokens) + [PAD] * (len(found) - len(tokens))


def certain(toy: Any, row: int, path: list[int], log_odds: float) -> None:
    """Make a row of a table follow a path from the prompt 1, with these odds at each token."""
    prefix = [1, 1, *path]
    for t, word in enumerate(path):
        toy.logits[row, t, prefix[t] if t else 1, prefix[t + 1], word] = log_odds


def test_search_stops_when_no_active_hypothesis_can_win(table: Callable) -> None:
    toy = table(1, 40, 5, sharpness=0.1)
    certain(toy, 0, [3, 4, EOS], 12.0)
    ids, _ = run(toy, 2, 40)
    assert ids[0, 0].tolist() == [3, 4, EOS]
    assert len(toy.calls) < 10

    # The best ending is late: the first one to end is beaten only because lengths are rewarded.
    toy = table(1, 8, 5, sharpness=0.0)
    certain(toy, 0, [3, 4, 3, 3, 4, 4, EOS], 6.0)
    toy.logits[0, 0, 1, 1, EOS] = 7.0
    short = run(toy, 3, 8, length_penalty_type="none")[0]
    long = run(type(toy)(toy.logits), 3, 8, length_penalty_type="power", alpha=3.0)[0]
    greedy = run(type(toy)(toy.logits), 1, 8, length_penalty_type="power", alpha=3.0)[0]
    assert short[0, 0].tolist() == greedy[0, 0].tolist() == [EOS]
    assert long[0, 0].tolist() == [3, 4, 3, 3, 4, 4, EOS]

    # Where lengths are punished, what is open may win with its very next token.
    toy = table(1, 8, 5, sharpness=0.0)
    certain(toy, 0, [3, EOS], 6.0)
    toy.logits[0, 0, 1, 1, EOS] = 4.0
    assert run(toy, 2, 8, length_penalty_type="power", alpha=-2.0)[0][0, 0].tolist() == [3, EOS]


def test_finished_sequences_leave_the_batch(table: Callable) -> None:
    toy = table(3, 30, 5, sharpness=0.1)
    toy.logits[:2, :, :, :, EOS] = 20.0
    toy.logits[2, :, :, :, EOS] = -20.0
    run(toy, 3, 30)
    assert toy.calls[0] == 3  # the prompt is read once, not once for each hypothesis
    assert toy.calls[5:] == [3] * (30 - 5)


def test_hypotheses_with_eos_precede_better_ones_without(table: Callable) -> None:
    toy = table(1, 6, 5, sharpness=0.0)
    toy.logits[..., EOS] = -1.0  # no tie decides where else to end
    certain(toy, 0, [3, 4, 3, 4, 3, 4], 6.0)
    toy.logits[0, 0, 1, 1, EOS] = 3.0
    ids, scores = run(toy, 2, 6, length_penalty_type="power", alpha=1.0, n_best=2)
    assert ids[0].tolist() == [[EOS, *[PAD] * 5], [3, 4, 3, 4, 3, 4]]
    assert scores[0, 0] < scores[0, 1]


def test_missing_hypotheses_are_padding(table: Callable) -> None:
    toy = table(1, 4, 4, sharpness=0.0)
    for t, (before, last, word) in enumerate([(1, 1, 3), (1, 3, 3), (3, 3, EOS)]):
        toy.logits[0, t, before, last] = -math.inf
        toy.logits[0, t, before, last, word] = 0.0
    ids, scores = run(toy, 4, 4, n_best=3)
    assert ids[0].tolist() == [[3, 3, EOS], [PAD] * 3, [PAD] * 3]
    assert scores[0, 0] == 0.0
    assert (scores[0, 1:] == -math.inf).all()


def test_half_precision_log_probabilities_are_summed_in_fp32(table: Callable) -> None:
    toy = table(2, 5, 6)
    exact = run(toy, 3, 5, eos_ids=[5])[1]
    toy = type(toy)(toy.logits.bfloat16())
    rounded = run(toy, 3, 5, eos_ids=[5])[1]
    assert rounded.dtype == torch.float32
    assert rounded.double() == pytest.approx(exact, abs=0.1)
    assert exact.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_extend_returns_the_best_extensions(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys.modules["fourfold.generation.beam_search"], "CACHED_LOGITS", 100
    )  # a few rows at a time
    exact = torch.promote_types(dtype, torch.float32)
    for k, n_words, n in ((1, 50, 10), (5, 50, 10), (3, 4, 6), (2, 3, 20)):
        logits = torch.randperm(7 * k * n_words).view(7 * k, n_words).to(dtype) / 64
        scores = torch.randn(7, k, dtype=exact)
        ids = torch.randint(5, (7, k, 2))
        found = extend(ActiveBeams(ids, scores, torch.zeros_like(ids[..., 0])), logits, n)
        every = scores[..., None] + logits.to(exact).log_softmax(-1).unflatten(0, (-1, k))
        wanted = every.flatten(1).topk(min(n, k * n_words)).values
        torch.testing.assert_close(found.scores, wanted, rtol=0, atol=1e-5)
        again = every[torch.arange(7)[:, None], found.parents, found.ids[..., -1]]
        torch.testing.assert_close(found.scores, again, rtol=0, atol=1e-5)
        assert torch.equal(found.ids[..., :2], gather_rows(ids, found.parents))


def test_probable_end_tokens_leave_k_active_hypotheses(table: Callable) -> None:
    """All extensions of the first hypothesis that are among the K + 1 best ones end."""
    toy, ends = table(2, 4, 9), [3, 4, 5, 6]
    toy.logits[..., ends] += 8
    # A strong penalty prefers long hypotheses, so that the search does not stop early.
    options = {"length_penalty_type": "power", "alpha": 9.0, "eos_ids": ends, "n_best": 3}
    ids, scores = run(toy, 3, 4, **options)
    assert toy.calls == [2, 6, 6, 6]
    assert scores.isfinite().all()
    for row in ids.flatten(0, 1).tolist():
        assert [n for n, token in enumerate(row) if token in ends] == [3]
