"""`generate` and `beam_search` on real models: alone or in a batch, with the cache or without."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fourfold
from fourfold.core.errors import InputError
from fourfold.generation import beam_search, generate
from fourfold.kernels.dropout import Dropout
from fourfold.models import (
    CausalLM,
    EncoderDecoder,
    MaskedLM,
    MaskedLMConfig,
    RecurrentLM,
    RecurrentLMConfig,
)

EOS = 2
SETTINGS = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.6, "top_k": 6, "top_p": 0.9, "seed": 4},
]


def up_to_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def test_the_names_are_public() -> None:
    assert fourfold.generate is generate
    assert fourfold.beam_search is beam_search


# --------------------------------------------------------------------------------- generate


def test_greedy_is_a_loop_over_argmax(causal_lm: CausalLM, sources: list[Tensor]) -> None:
    for prompt in sources:
        ids = prompt[None]
        for _ in range(12):
            ids = torch.cat([ids, causal_lm(ids)[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(generate(causal_lm, prompt[None], max_new=12), ids)
        eos = ids[0, len(prompt) + 6].item()
        length = len(prompt) + ids[0, len(prompt) :].tolist().index(eos) + 1
        assert torch.equal(generate(causal_lm, prompt[None], 12, eos), ids[:, :length])


def test_greedy_translation_is_a_loop_over_argmax(
    translator: EncoderDecoder, sources: list[Tensor]
) -> None:
    for src in sources:
        ids = torch.ones(1, 1, dtype=torch.long)
        while ids.shape[1] <= 30 and ids[0, -1] != EOS:
            ids = torch.cat([ids, translator(src[None], ids)[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(generate(translator, src[None], 30, EOS), ids)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_row_of_a_batch_is_what_it_is_alone(
    causal_lm: CausalLM,
    translator: EncoderDecoder,
    sources: list[Tensor],
    padded: tuple[Tensor, Tensor],
    settings: dict[str, float],
) -> None:
    ids, mask = padded
    for model, start in ((causal_lm, ids), (translator, torch.ones(len(ids), 1).long())):
        out = generate(model, ids, 14, EOS, mask=mask, pad_id=0, **settings)
        slow = generate(model, ids, 14, EOS, mask=mask, pad_id=0, use_cache=False, **settings)
        assert torch.equal(out, slow)
        assert torch.equal(out[:, : start.shape[1]], start)
        lengths = set()
        for row, prompt in zip(out[:, start.shape[1] :].tolist(), sources, strict=True):
            alone = generate(model, prompt[None], 14, EOS, **settings)[0].tolist()
            alone = alone[len(prompt) if model is causal_lm else 1 :]
            assert row == alone + [0] * (len(row) - len(alone))
            assert alone == up_to_eos(alone)
            lengths.add(len(alone))
        assert max(lengths) == out.shape[1] - start.shape[1]


def test_a_seed_repeats_and_copies_differ(causal_lm: CausalLM) -> None:
    prompt = torch.tensor([[4, 7, 5]]).expand(6, -1)
    first, again, other = (
        generate(causal_lm, prompt, 15, temperature=1.0, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({tuple(row) for row in first.tolist()}) > 1


def test_samples_follow_the_model(causal_lm: CausalLM) -> None:
    prompt, n = torch.tensor([[4, 7, 5]]), 4000
    out = generate(causal_lm, prompt.expand(n, -1), 1, temperature=2.0, seed=0)
    expected = (causal_lm(prompt)[0, -1] / 2.0).softmax(-1) * n
    counts = torch.bincount(out[:, -1], minlength=13)
    assert ((counts - expected) ** 2 / expected).sum() < 39.1  # 12 degrees: 1 in 10,000


def test_a_row_that_ended_repeats_eos_or_is_padded(causal_lm: CausalLM) -> None:
    prompts = torch.randint(3, 13, (6, 4))
    plain = generate(causal_lm, prompts, 10)[:, 4:]
    eos = plain[0, 2].item()
    for pad_id, filler in ((None, eos), (-1, -1)):
        out = generate(causal_lm, prompts, 10, eos, pad_id=pad_id)[:, 4:]
        for row, free in zip(out.tolist(), plain.tolist(), strict=True):
            kept = free[: free.index(eos) + 1] if eos in free else free
            assert row == kept + [filler] * (len(row) - len(kept))


# ------------------------------------------------------------------------------ beam search


def test_a_beam_of_one_is_greedy(translator: EncoderDecoder, padded: tuple[Tensor, Tensor]) -> None:
    src, mask = padded
    greedy = generate(translator, src, 25, EOS, mask=mask, pad_id=0)
    ids, _ = beam_search(translator, src, 1, src_mask=mask, max_len=25)
    assert torch.equal(ids, greedy)
    assert torch.equal(
        beam_search(translator, src, 1, src_mask=mask)[0],
        generate(translator, src, None, EOS, mask=mask, pad_id=0),
    )


def test_a_sentence_of_a_batch_is_what_it_is_alone(
    causal_lm: CausalLM,
    translator: EncoderDecoder,
    sources: list[Tensor],
    padded: tuple[Tensor, Tensor],
) -> None:
    options = {"beam": 4, "n_best": 3, "max_len": 16}
    src, mask = padded
    for model in (causal_lm, translator):
        ids, scores = beam_search(model, src, src_mask=mask, **options)
        slow = beam_search(model, src, src_mask=mask, use_cache=False, **options)
        assert torch.equal(ids, slow[0])
        torch.testing.assert_close(scores, slow[1])
        for i, row in enumerate(sources):
            alone, own = beam_search(model, row[None], **options)
            torch.testing.assert_close(scores[i], own[0])
            skip = (src.shape[1], len(row)) if model is causal_lm else (1, 1)
            new, alone = ids[i, :, skip[0] :], alone[0, :, skip[1] :]
            assert torch.equal(new, F.pad(alone, (0, new.shape[1] - alone.shape[1])))


@pytest.mark.parametrize(("penalty", "alpha"), [("gnmt", 0.6), ("power", 1.0), ("none", 0.3)])
def test_the_best_are_sorted_distinct_and_scored_as_the_model_does(
    translator: EncoderDecoder,
    sources: list[Tensor],
    normalise: Callable,
    penalty: str,
    alpha: float,
) -> None:
    for src in sources[:2]:
        options = {"beam": 5, "length_penalty": alpha, "penalty": penalty, "max_len": 16}
        ids, scores = beam_search(translator, src[None], n_best=5, **options)
        ended = [EOS in row for row in ids[0].tolist()]
        assert ended == sorted(ended, reverse=True)
        for group in (True, False):
            own = [s for s, e in zip(scores[0].tolist(), ended, strict=True) if e is group]
            assert own == sorted(own, reverse=True)
        assert len({tuple(row) for row in ids[0].tolist()}) == 5
        for row, score in zip(ids[0].tolist(), scores[0].tolist(), strict=True):
            tgt = torch.tensor([up_to_eos(row)])
            log_p = translator(src[None], tgt[:, :-1]).log_softmax(-1)
            total = log_p.gather(2, tgt[:, 1:, None]).sum().item()
            assert score == pytest.approx(normalise(penalty, alpha, tgt.shape[1] - 1, total))
        best = beam_search(translator, src[None], **options)
        n = best[0].shape[1]
        assert torch.equal(best[0], ids[:, 0, :n])
        assert torch.equal(best[1], scores[:, 0])


class Endless(nn.Module):
    """An encoder-decoder by its methods alone, which hardly ever ends."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=6)

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        return torch.zeros(*src.shape, 1)

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        cache: object = None,
    ) -> Tensor:
        return torch.zeros(*tgt.shape, 1)

    def logits(self, h: Tensor) -> Tensor:
        return torch.tensor([0.0, 1.0, -40.0, 2.0, 3.0, 0.5]).expand(*h.shape[:-1], 6)


@pytest.mark.parametrize("beam", [1, 2])
def test_targets_are_at_most_fifty_longer_than_their_source(beam: int) -> None:
    src = torch.full((3, 9), 3)
    mask = torch.arange(9) < torch.tensor([[4], [9], [1]])
    ids, _ = beam_search(Endless(), src, beam, src_mask=mask)
    greedy = generate(Endless(), src, None, EOS, mask=mask, pad_id=0)
    for out in (ids, greedy):
        assert out.shape == (3, 1 + 59)
        assert (out[:, 1:] != 0).sum(dim=1).tolist() == [54, 59, 51]


def test_the_model_s_own_limit_comes_first(make_translator: Callable) -> None:
    model, src = make_translator(9), torch.randint(3, 9, (5, 6))  # max_len 40
    with torch.no_grad():
        model.head.own.weight[EOS] = 0.0
    ids, _ = beam_search(model, src, 2)
    assert ids.shape[1] == 1 + 40
    assert beam_search(model, src, 2, max_len=40)[0].tolist() == ids.tolist()
    with pytest.raises(InputError, match=r"max_len is 41, .* no more than 40 tokens"):
        beam_search(model, src, 2, max_len=41)


# ------------------------------------------------------------------------ manners of a guest


def test_the_model_is_left_as_it_was(causal_lm: CausalLM, translator: EncoderDecoder) -> None:
    ids = torch.randint(3, 13, (2, 4))
    for model in (causal_lm, translator):
        quiet = generate(model, ids, 8), beam_search(model, ids, max_len=8)[0]
        model.train()
        frozen = next(module for module in model.modules() if isinstance(module, Dropout))
        frozen.eval()
        loud = generate(model, ids, 8), beam_search(model, ids, max_len=8)[0]
        assert torch.equal(quiet[0], loud[0])  # dropout was off
        assert torch.equal(quiet[1], loud[1])
        assert [m for m in model.modules() if not m.training] == [frozen]
        with pytest.raises(InputError):
            generate(model, ids, 1000)
        assert model.training
        assert torch.is_grad_enabled()


def test_what_was_written_can_be_trained_on(translator: EncoderDecoder) -> None:
    src = torch.randint(3, 13, (2, 4))
    ids, scores = beam_search(translator, src, max_len=8)
    sampled = generate(translator, src, 8, temperature=1.0, seed=0)
    for tgt in (ids, sampled):
        translator(src, tgt).sum().backward()
    assert not scores.is_inference()
    assert all(p.grad is not None for p in translator.parameters())


def test_bad_input_is_one_sentence(causal_lm: CausalLM, translator: EncoderDecoder) -> None:
    ids = torch.randint(3, 13, (2, 4))
    cases = [
        (lambda: generate(causal_lm, ids), "max_new is missing"),
        (lambda: generate(causal_lm, ids, -1), "max_new is -1"),
        (lambda: generate(causal_lm, ids, 5, temperature=-1.0), "temperature is -1.0"),
        (lambda: generate(causal_lm, ids, 38), "max_new is 38, .* no more than 37 tokens"),
        (lambda: generate(causal_lm, ids, 5, 13), "eos_id is 13, .* vocabulary of 13"),
        (
            lambda: generate(causal_lm, ids, 5, [2, 3]),
            r"eos_id is \[2, 3\], but must be the number",
        ),
        (lambda: beam_search(translator, ids, eos_id=None), "eos_id is None"),
        (lambda: generate(causal_lm, ids.clamp(max=11) + 2, 5), "largest id is 13"),
        (lambda: generate(causal_lm, ids - 9, 5), "smallest id is -"),
        (lambda: generate(causal_lm, ids.repeat(1, 11), 1), "row 0 has 44 tokens, .* max_len 40"),
        (lambda: generate(causal_lm, ids[0], 5), r"ids must be int64 .* not int64 \(4,\)"),
        (lambda: generate(causal_lm, ids[:0], 5), r"not int64 \(0, 4\)"),
        (lambda: generate(causal_lm, ids.float(), 5), "not float32"),
        (lambda: generate(causal_lm, ids, 5, mask=ids), r"mask must be bool \(2, 4\)"),
        (lambda: generate(causal_lm, ids, 5, mask=ids > ids), "row 0 has no real token"),
        (lambda: generate(translator, ids, 5, bos_id=99), "bos_id is 99"),
        (lambda: generate(translator, ids.repeat(1, 11)), "row 0 has 44 tokens, .* max_len 40"),
        (lambda: beam_search(translator, ids, 0), "beam is 0"),
        (lambda: beam_search(translator, ids, 14), "beam is 14, .* 13"),
        (lambda: beam_search(translator, ids, n_best=5), "n_best is 5, .* 4"),
        (lambda: beam_search(translator, ids, max_len=0), "max_len is 0"),
        (lambda: beam_search(translator, ids, penalty="google"), "penalty is 'google'"),
        (lambda: beam_search(translator, ids, length_penalty=math.nan), "length_penalty is nan"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()


def test_nothing_is_written_where_nothing_is_asked(causal_lm: CausalLM) -> None:
    ids = torch.randint(3, 13, (2, 4))
    assert torch.equal(generate(causal_lm, ids, 0), ids)
    full = torch.randint(3, 13, (1, 40))
    assert generate(causal_lm, full, 1).shape == (1, 41)  # the last token is never read


def test_a_model_that_does_not_write_is_refused() -> None:
    config = MaskedLMConfig(d_model=8, n_layers=1, n_heads=2, d_ff=8, vocab_size=9, max_len=8)
    with pytest.raises(InputError, match="not a MaskedLM"):
        generate(MaskedLM(config), torch.ones(1, 2, dtype=torch.long), 3)


def test_a_broken_model_is_told_from_one_that_writes(causal_lm: CausalLM) -> None:
    with torch.no_grad():
        causal_lm.embed.tokens.weight[3:] = math.nan
    ids = torch.randint(3, 13, (2, 4))
    for write in (lambda: generate(causal_lm, ids, 2, temperature=1.0),
                  lambda: generate(causal_lm, ids, 2),
                  lambda: beam_search(causal_lm, ids, 2, max_len=2)):  # fmt: skip
        with pytest.raises(InputError, match="gives NaN"):
            write()


def test_an_lstm_writes_without_a_cache() -> None:
    config = RecurrentLMConfig(d_model=8, n_heads=2, d_ff=12, vocab_size=13, max_len=40)
    model, ids = RecurrentLM(config), torch.randint(3, 13, (2, 4))
    whole = generate(model, ids, 5)
    assert torch.equal(whole, generate(model, ids, 5, use_cache=False))
    for row in (0, 1):
        assert torch.equal(generate(model, ids[row : row + 1], 5), whole[row : row + 1])
    assert beam_search(model, ids, 2, max_len=5)[0].shape[1] <= 9
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 0] = False
    with pytest.raises(InputError, match="prompts of one length"):
        generate(model, ids, 5, mask=mask)
