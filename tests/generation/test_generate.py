"""`generate` and `beam_search` on models: batched and alone, with and without a cache."""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fourfold
from fourfold.errors import InputError
from fourfold.generation import GenerationDefaults, beam_search, generate
from fourfold.kernels.dropout import Dropout
from fourfold.models import (
    CausalLM,
    EncoderDecoder,
    MaskedLM,
    MaskedLMConfig,
    Model,
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


def test_generate_and_beam_search_are_exported() -> None:
    assert fourfold.generate is generate
    assert fourfold.beam_search is beam_search


def test_greedy_search_is_a_loop_over_argmax(causal_lm: CausalLM, sources: list[Tensor]) -> None:
    for prompt in sources:
        ids = prompt[None]
        for _ in range(12):
            ids = torch.cat([ids, causal_lm(ids)[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(generate(causal_lm, prompt[None], max_new_tokens=12), ids)
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
def test_generated_rows_do_not_depend_on_the_batch(
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


def test_seed_reproduces_samples_and_copies_differ(causal_lm: CausalLM) -> None:
    prompt = torch.tensor([[4, 7, 5]]).expand(6, -1)
    first, again, other = (
        generate(causal_lm, prompt, 15, temperature=1.0, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({tuple(row) for row in first.tolist()}) > 1


def test_samples_follow_the_distribution_of_the_model(causal_lm: CausalLM) -> None:
    prompt, n = torch.tensor([[4, 7, 5]]), 4000
    out = generate(causal_lm, prompt.expand(n, -1), 1, temperature=2.0, seed=0)
    expected = (causal_lm(prompt)[0, -1] / 2.0).softmax(-1) * n
    counts = torch.bincount(out[:, -1], minlength=13)
    assert (
        (counts - expected) ** 2 / expected
    ).sum() < 39.1  # chi-squared with 12 degrees of freedom, p = 1e-4


def test_ended_rows_are_filled_with_eos_or_padding(causal_lm: CausalLM) -> None:
    prompts = torch.randint(3, 13, (6, 4))
    plain = generate(causal_lm, prompts, 10)[:, 4:]
    eos = plain[0, 2].item()
    for pad_id, filler in ((None, eos), (-1, -1)):
        out = generate(causal_lm, prompts, 10, eos, pad_id=pad_id)[:, 4:]
        for row, free in zip(out.tolist(), plain.tolist(), strict=True):
            kept = free[: free.index(eos) + 1] if eos in free else free
            assert row == kept + [filler] * (len(row) - len(kept))


def test_beam_of_one_is_greedy_search(
    translator: EncoderDecoder, padded: tuple[Tensor, Tensor]
) -> None:
    src, mask = padded
    greedy = generate(translator, src, 25, EOS, mask=mask, pad_id=0)
    ids, _ = beam_search(translator, src, 1, src_mask=mask, max_new_tokens=25)
    assert torch.equal(ids, greedy)
    assert torch.equal(
        beam_search(translator, src, 1, src_mask=mask)[0],
        generate(translator, src, None, EOS, mask=mask, pad_id=0),
    )


def test_beam_search_rows_do_not_depend_on_the_batch(
    causal_lm: CausalLM,
    translator: EncoderDecoder,
    sources: list[Tensor],
    padded: tuple[Tensor, Tensor],
) -> None:
    options: Any = {"num_beams": 4, "num_return_sequences": 3}
    options |= {"max_new_tokens": 16, "eos_id": EOS, "pad_id": 0}
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


@pytest.mark.parametrize(
    ("length_penalty_type", "alpha"), [("gnmt", 0.6), ("power", 1.0), ("none", 0.3)]
)
def test_n_best_are_sorted_distinct_and_scored_by_the_model(
    translator: EncoderDecoder,
    sources: list[Tensor],
    normalize: Callable,
    length_penalty_type: str,
    alpha: float,
) -> None:
    for src in sources[:2]:
        options = {
            "num_beams": 5,
            "length_penalty": alpha,
            "length_penalty_type": length_penalty_type,
            "max_new_tokens": 16,
        }
        ids, scores = beam_search(translator, src[None], num_return_sequences=5, **options)
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
            assert score == pytest.approx(
                normalize(length_penalty_type, alpha, tgt.shape[1] - 1, total)
            )
        best = beam_search(translator, src[None], **options)
        n = best[0].shape[1]
        assert torch.equal(best[0], ids[:, 0, :n])
        assert torch.equal(best[1], scores[:, 0])


class Endless(Model):
    """Encoder-decoder with the required methods only, which almost never generates EOS."""

    can_generate = True
    generation_defaults = GenerationDefaults(bos_id=1, eos_id=EOS, pad_id=0)

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
def test_targets_have_at_most_fifty_tokens_more_than_their_source(beam: int) -> None:
    src = torch.full((3, 9), 3)
    mask = torch.arange(9) < torch.tensor([[4], [9], [1]])
    ids, _ = beam_search(Endless(), src, beam, src_mask=mask)
    greedy = generate(Endless(), src, None, EOS, mask=mask, pad_id=0)
    for out in (ids, greedy):
        assert out.shape == (3, 1 + 59)
        assert (out[:, 1:] != 0).sum(dim=1).tolist() == [54, 59, 51]


def test_max_len_of_the_model_limits_new_tokens(make_translator: Callable) -> None:
    model, src = make_translator(9), torch.randint(3, 9, (5, 6))  # max_len 40
    with torch.no_grad():
        model.head.own.weight[EOS] = 0.0
    ids, _ = beam_search(model, src, 2)
    assert ids.shape[1] == 1 + 40
    assert beam_search(model, src, 2, max_new_tokens=40)[0].tolist() == ids.tolist()
    with pytest.raises(InputError, match=r"max_new_tokens must be at most 40 here, .* got 41"):
        beam_search(model, src, 2, max_new_tokens=41)


def test_decoding_restores_training_mode(causal_lm: CausalLM, translator: EncoderDecoder) -> None:
    ids = torch.randint(3, 13, (2, 4))
    for model in (causal_lm, translator):
        quiet = generate(model, ids, 8), beam_search(model, ids, max_new_tokens=8, eos_id=EOS)[0]
        model.train()
        frozen = next(module for module in model.modules() if isinstance(module, Dropout))
        frozen.eval()
        loud = generate(model, ids, 8), beam_search(model, ids, max_new_tokens=8, eos_id=EOS)[0]
        assert torch.equal(quiet[0], loud[0])  # dropout was off
        assert torch.equal(quiet[1], loud[1])
        assert [m for m in model.modules() if not m.training] == [frozen]
        with pytest.raises(InputError):
            generate(model, ids, 1000)
        assert model.training
        assert torch.is_grad_enabled()


def test_generated_targets_can_be_used_in_training(translator: EncoderDecoder) -> None:
    src = torch.randint(3, 13, (2, 4))
    ids, scores = beam_search(translator, src, max_new_tokens=8)
    sampled = generate(translator, src, 8, temperature=1.0, seed=0)
    for tgt in (ids, sampled):
        translator(src, tgt).sum().backward()
    assert not scores.is_inference()
    assert all(p.grad is not None for p in translator.parameters())


def test_suppressed_tokens_are_never_generated(
    causal_lm: CausalLM, translator: EncoderDecoder
) -> None:
    ids = torch.randint(3, 13, (6, 5))

    def common(tokens: Tensor) -> list[int]:
        """Return the tokens of the first two columns without the padding token."""
        found = sorted(set(tokens[:, :2].flatten().tolist()) - {0})
        assert found
        return found

    for model, start in ((causal_lm, 5), (translator, 1)):
        for options in SETTINGS:
            plain = generate(model, ids, 12, **options)[:, start:]
            empty = generate(model, ids, 12, **options, suppress_tokens=[])[:, start:]
            assert torch.equal(empty, plain)
            unwanted = common(plain)
            found = generate(model, ids, 12, **options, suppress_tokens=unwanted)[:, start:]
            assert not torch.isin(found, torch.tensor(unwanted)).any()
        search = partial(beam_search, model, ids, 3, eos_id=EOS, pad_id=0, max_new_tokens=6)
        unwanted = common(search()[0][:, start:])
        found = search(num_return_sequences=3, suppress_tokens=unwanted)[0][..., start:]
        assert not torch.isin(found, torch.tensor(unwanted)).any()
        # If a single token is left, a beam of three has two columns without a hypothesis.
        only, scores = search(suppress_tokens=[token for token in range(13) if token != 7])
        assert (only[:, start:] == 7).all()
        assert scores.isfinite().all()


def test_invalid_arguments_are_rejected(causal_lm: CausalLM, translator: EncoderDecoder) -> None:
    ids = torch.randint(3, 13, (2, 4))
    cases = [
        (lambda: generate(causal_lm, ids, -1), "max_new_tokens must be at least 0, got -1"),
        (
            lambda: generate(causal_lm, ids, 5, temperature=-1.0),
            "temperature must be at least 0, got -1.0",
        ),
        (lambda: generate(causal_lm, ids, 38), "max_new_tokens must be at most 37 here, .* got 38"),
        (lambda: generate(causal_lm, ids, 5, 13), "eos_id must be at least 0 and below 13, got 13"),
        (
            lambda: generate(causal_lm, ids, 5, [2, 13]),
            "eos_id must be at least 0 and below 13, got 13",
        ),
        (lambda: generate(causal_lm, ids, 5, "ab"), "eos_id must be of type int, got 'a'"),  # type: ignore[arg-type]
        (lambda: beam_search(causal_lm, ids, eos_id=2.5), "eos_id must be of type int, got '2.5'"),  # type: ignore[arg-type]
        (lambda: beam_search(causal_lm, ids), "eos_id must be given"),
        (
            lambda: generate(causal_lm, ids.clamp(max=11) + 2, 5),
            "ids must be at least 0 and at most 12, got 13",
        ),
        (lambda: generate(causal_lm, ids - 9, 5), "ids must be at least 0 and at most 12, got -"),
        (
            lambda: generate(causal_lm, ids.repeat(1, 11), 1),
            "ids .* max_len = 40 .* got 44 in row 0",
        ),
        (
            lambda: generate(causal_lm, ids[0], 5),
            r"ids must be int64 token ids \(B, T\), got torch.int64 \(4,\)",
        ),
        (lambda: generate(causal_lm, ids[:0], 5), r"got torch.int64 \(0, 4\)"),
        (lambda: generate(causal_lm, ids.float(), 5), "ids must be int64 .* got torch.float32"),
        (
            lambda: generate(causal_lm, ids, 5, mask=ids),
            r"mask must be a bool tensor \(2, 4\), got torch.int64",
        ),
        (
            lambda: generate(causal_lm, ids, 5, mask=ids > ids),
            "mask must mark a real token in each row, got none in row 0",
        ),
        (
            lambda: generate(translator, ids, 5, bos_id=99),
            "bos_id must be at least 0 and below 13, got 99",
        ),
        (
            lambda: beam_search(translator, ids.repeat(1, 11)),
            "src .* max_len = 40 .* got 44 in row 0",
        ),
        (
            lambda: beam_search(translator, ids, 0),
            "num_beams must be at least 1 and at most 13, got 0",
        ),
        (
            lambda: beam_search(translator, ids, 14),
            "num_beams must be at least 1 and at most 13, got 14",
        ),
        (
            lambda: beam_search(translator, ids, 4, num_return_sequences=5),
            "num_return_sequences needs .* num_beams of that width, got 5",
        ),
        (
            lambda: beam_search(translator, ids, max_new_tokens=0),
            "max_new_tokens must be at least 1, got 0",
        ),
        (
            lambda: beam_search(translator, ids, length_penalty_type="google"),
            "length_penalty_type must be one of gnmt, power, none, got 'google'",
        ),
        (
            lambda: beam_search(translator, ids, length_penalty=math.nan),
            "length_penalty must be finite, got nan",
        ),
        (
            lambda: generate(causal_lm, ids, 5, suppress_tokens=[3, 13]),
            "suppress_tokens must be at least 0 and below 13, got 13",
        ),
        (
            lambda: generate(causal_lm, ids, 5, suppress_tokens=[-1]),
            "suppress_tokens must be at least 0 and below 13, got -1",
        ),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()


def test_zero_new_tokens_return_the_prompts(causal_lm: CausalLM) -> None:
    ids = torch.randint(3, 13, (2, 4))
    assert torch.equal(generate(causal_lm, ids, 0), ids)
    full = torch.randint(3, 13, (1, 40))
    assert generate(causal_lm, full, 1).shape == (1, 41)  # the last token is not an input


def test_masked_lm_cannot_generate() -> None:
    config = MaskedLMConfig(d_model=8, n_layers=1, n_heads=2, d_ff=8, vocab_size=9, max_len=8)
    with pytest.raises(
        InputError, match="model must be a causal LM or an encoder-decoder, got MaskedLM"
    ):
        generate(MaskedLM(config), torch.ones(1, 2, dtype=torch.long), 3)


def test_nan_logits_raise(causal_lm: CausalLM) -> None:
    with torch.no_grad():
        causal_lm.embed.tokens.weight[3:] = math.nan
    ids = torch.randint(3, 13, (2, 4))
    calls = [
        lambda: generate(causal_lm, ids, 2, temperature=1.0),
        lambda: generate(causal_lm, ids, 2),
        lambda: beam_search(causal_lm, ids, 2, max_new_tokens=2, eos_id=EOS),
    ]
    for call in calls:
        with pytest.raises(InputError, match="NaN or infinite logits"):
            call()


def test_special_tokens_come_from_the_model(translator: EncoderDecoder) -> None:
    src = torch.randint(3, 13, (2, 4))
    ids, _ = beam_search(translator, src, max_new_tokens=8)
    translator.generation_defaults = None
    given = beam_search(translator, src, bos_id=1, eos_id=EOS, pad_id=0, max_new_tokens=8)[0]
    assert torch.equal(ids, given)
    translator.generation_defaults = GenerationDefaults(bos_id=5, eos_id=6, pad_id=7)
    ids, _ = beam_search(translator, src, bos_id=1, eos_id=EOS, pad_id=0, max_new_tokens=8)
    assert torch.equal(ids, given)  # arguments take precedence
    other = beam_search(translator, src, max_new_tokens=8)[0]
    assert (other[:, 0] == 5).all()
    assert set(other[other.roll(1, 1) == 6].tolist()) <= {5, 7}  # padding follows EOS


@pytest.mark.parametrize("name", ["bos_id", "eos_id"])
def test_unknown_special_tokens_raise(translator: EncoderDecoder, name: str) -> None:
    translator.generation_defaults = None
    tokens = {"bos_id": 1, "eos_id": EOS, "pad_id": 0}
    del tokens[name]
    with pytest.raises(InputError, match=f"{name} must be given") as raised:
        beam_search(translator, torch.randint(3, 13, (2, 4)), max_new_tokens=8, **tokens)
    assert raised.value.option == name


def test_eos_of_the_model_ends_generation(causal_lm: CausalLM) -> None:
    ids = torch.randint(3, 13, (1, 4))
    third = generate(causal_lm, ids, 10)[0, 6].item()
    causal_lm.generation_defaults = GenerationDefaults(eos_id=third)
    assert torch.equal(generate(causal_lm, ids, 10), generate(causal_lm, ids, 10, third))
    assert generate(causal_lm, ids, 10).shape[1] <= 7


def test_recurrent_model_generates_with_its_state() -> None:
    config = RecurrentLMConfig(d_model=8, hidden_size=12, vocab_size=13, max_len=40)
    model, ids = RecurrentLM(config), torch.randint(3, 13, (2, 4))
    whole = generate(model, ids, 5)
    assert torch.equal(whole, generate(model, ids, 5, use_cache=False))
    for row in (0, 1):
        assert torch.equal(generate(model, ids[row : row + 1], 5), whole[row : row + 1])
    assert beam_search(model, ids, 2, max_new_tokens=5, eos_id=EOS)[0].shape[1] <= 9
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 0] = False
    with pytest.raises(InputError, match="mask must not mark padding for a recurrent model"):
        generate(model, ids, 5, mask=mask)
