"""Scores of given texts: definitions, slow loops, invariance, words, windows and bad input."""

import io
import math
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fourfold
from fourfold.data.loading.batches import CausalBatch, PairBatch
from fourfold.errors import InputError
from fourfold.generation.score import METHODS, Scorer, TextScore
from fourfold.losses import IGNORE_INDEX
from fourfold.models import (
    T5,
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLM,
    MaskedLMConfig,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
    RecurrentLM,
    RecurrentLMConfig,
    T5Config,
    ViT,
    ViTConfig,
)
from fourfold.tasks import CausalLanguageModeling, Translation
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import SPECIAL_TOKENS, TokenizerConfig, train_tokenizer

CORPUS = ["the cat sat on the mat.", "a dog ran away, and the cats slept", "cats can be unlikely"]
TEXTS = ["the cat sat.", "unlikely cats", "a dog ran away, and the cats slept", "dog"]
SHAPE: dict[str, Any] = {"d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 20}
LSTM: dict[str, Any] = {"d_model": 12, "hidden_size": 10, "n_layers": 1}


def make_tokenizer(
    kind: Any = "byte_bpe", *, mask: bool = True, sentinel: bool = True
) -> Tokenizer:
    names = [name for name in SPECIAL_TOKENS if mask or name != "<mask>"]
    config = TokenizerConfig(kind, vocab_size=290 if kind == "byte_bpe" else 60, min_frequency=1)
    special = [*names, *(["<extra_id_0>"] if sentinel else [])]
    return train_tokenizer(config, CORPUS * 4, mask=mask, special=special)


TOKENIZER = make_tokenizer()
WITHOUT_SENTINEL = make_tokenizer(sentinel=False)
V = TOKENIZER.vocab_size
SIZES: dict[str, Any] = {"vocab_size": V, "max_len": 40}


def build(kind: str, tokenizer: Tokenizer = TOKENIZER, **changes: Any) -> Any:
    """Create a model with random values in every parameter, in fp64."""
    sizes = {**SHAPE, **SIZES, "vocab_size": tokenizer.vocab_size, **changes}
    recurrent = {**LSTM, "vocab_size": tokenizer.vocab_size}
    models: dict[str, Callable[[], Any]] = {
        "causal": lambda: CausalLM(CausalLMConfig(**sizes)),
        "capped": lambda: CausalLM(CausalLMConfig(**sizes, logit_cap=2.0)),
        "lstm": lambda: RecurrentLM(RecurrentLMConfig(**recurrent)),
        "masked": lambda: MaskedLM(MaskedLMConfig(**sizes)),
        "pairs": lambda: EncoderDecoder(EncoderDecoderConfig(**sizes)),
        "bart": lambda: EncoderDecoder(EncoderDecoderConfig(**sizes, decoder_start_token_id=2)),
        "t5": lambda: T5(T5Config(**{**sizes, "max_len": None}, d_head=4)),
        "attention": lambda: RecurrentEncoderDecoder(
            RecurrentEncoderDecoderConfig(**recurrent, mix_outputs=True, input_feeding=False)
        ),
    }
    models["infilling"] = models["bart"]
    model = models[kind]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    model.tokenizer = WITHOUT_SENTINEL if kind == "infilling" else tokenizer
    return model


# Kind of model, method, and texts that it scores.
PAIRS = [("the mat", text) for text in TEXTS]
CASES: list[tuple[str, str, list[Any]]] = [
    ("causal", "causal", TEXTS),
    ("capped", "causal", PAIRS),
    ("lstm", "causal", TEXTS),
    ("masked", "masked", TEXTS),
    ("masked", "masked_l2r", TEXTS),
    ("masked", "masked_l2r", PAIRS),
    ("pairs", "conditional", PAIRS),
    ("bart", "conditional", PAIRS),
    ("attention", "conditional", PAIRS),
    ("t5", "prefix", TEXTS),
    ("t5", "prefix", PAIRS),
    ("t5", "masked", TEXTS),
    ("infilling", "prefix", PAIRS),
    ("causal", "mntp", TEXTS),
    ("causal", "mntp", PAIRS),
    ("causal", "fused", PAIRS),
]


def values(score: TextScore) -> list[float]:
    return [token.log_prob for token in score.tokens]


def test_cases_cover_all_methods() -> None:
    assert {method for _, method, _ in CASES} == {name for fit in METHODS.values() for name in fit}


@pytest.mark.parametrize(("kind", "method", "texts"), CASES)
def test_a_head_of_zeros_gives_the_logarithm_of_the_vocabulary(
    kind: str, method: str, texts: list[Any]
) -> None:
    model = build(kind)
    nn.init.zeros_(model.head.weight)
    if model.head.bias is not None:
        nn.init.zeros_(model.head.bias)
    expected = -math.log(V) * (1 + (method == "fused"))
    for found in fourfold.score(model, texts, method=method):
        assert found.total == pytest.approx(len(found.tokens) * expected, abs=1e-9)
        assert found.per_token == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "method", "texts"), CASES)
def test_batches_order_padding_and_duplicates_change_no_score(
    kind: str, method: str, texts: list[Any]
) -> None:
    model = build(kind)
    alone = [fourfold.score(model, [text], method=method)[0] for text in texts]
    for size, together in ((1, 1), (3, 1), (64, 1), (4, 2)):
        many = [*texts[::-1], *texts]
        options: dict[str, Any] = {"batch_size": size, "together": together}
        found = fourfold.score(model, many, method=method, **options)
        for a, b in zip(found, [*alone[::-1], *alone], strict=True):
            assert values(a) == pytest.approx(values(b), abs=1e-11)
            assert (a.text, a.is_greedy) == (b.text, b.is_greedy)


def test_fp32_batches_agree_to_1e_5_nats() -> None:
    model = build("causal").float()
    one, many = (fourfold.score(model, TEXTS, batch_size=size) for size in (1, 64))
    for a, b in zip(one, many, strict=True):
        assert values(a) == pytest.approx(values(b), abs=1e-5)


def test_dropout_is_off_and_the_model_stays_in_training_mode() -> None:
    model = build("causal")
    expected = fourfold.score(model, TEXTS)
    assert fourfold.score(model.train(), TEXTS) == expected
    assert model.training


def test_a_causal_score_with_eos_is_the_loss_of_the_task() -> None:
    model = build("capped")
    task = CausalLanguageModeling(model.config)
    task.model = model
    for text in TEXTS:
        ids = TOKENIZER.encode(text)
        row = torch.tensor([[TOKENIZER.eos_id, *ids, TOKENIZER.eos_id]])  # as in `TokenStream`
        loss, n = task.step(CausalBatch(row[:, :-1], row[:, 1:]))
        (found,) = fourfold.score(model, [text], eos=True)
        assert found.total == pytest.approx(-loss.item(), abs=1e-10)
        assert len(found.tokens) == n
        (shorter,) = fourfold.score(model, [text])
        assert values(found)[:-1] == pytest.approx(values(shorter), abs=1e-11)


@pytest.mark.parametrize("kind", ["pairs", "bart", "t5"])
def test_a_conditional_score_is_the_loss_of_the_task(kind: str) -> None:
    model = build(kind)
    task = Translation(model.config, label_smoothing=0.0)
    task.model, task.tokenizer = model, TOKENIZER
    for source, target in PAIRS:
        src = torch.tensor([[*TOKENIZER.encode(source), TOKENIZER.eos_id]])
        ids = [TOKENIZER.bos_id, *TOKENIZER.encode(target), TOKENIZER.eos_id]
        tgt = torch.tensor([ids])
        masks = torch.ones_like(src, dtype=torch.bool), torch.ones_like(tgt, dtype=torch.bool)
        loss, n = task.step(PairBatch(src, tgt, *masks, torch.zeros(1)))
        (found,) = fourfold.score(model, [(source, target)])
        assert found.total == pytest.approx(-loss.item(), abs=1e-10)
        assert len(found.tokens) == n


@pytest.mark.parametrize("kind", ["pairs", "attention"])
def test_the_score_of_a_beam_search_is_the_score_of_its_text(kind: str) -> None:
    tokenizer = make_tokenizer("char")  # decoding and encoding are inverse
    model, n_checked, eos = build(kind, tokenizer), 0, tokenizer.eos_id
    for source in TEXTS:
        src = torch.tensor([[*tokenizer.encode(source), eos]])
        options: dict[str, Any] = {"num_beams": 4, "max_new_tokens": 6, "num_return_sequences": 4}
        ids, scores = fourfold.beam_search(model, src, length_penalty_type="none", **options)
        for row, score in zip(ids.reshape(4, -1).tolist(), scores.flatten().tolist(), strict=True):
            tokens = row[1 : row.index(eos)] if eos in row else row[1:]
            text = tokenizer.decode(tokens)
            if text and tokenizer.encode(text) == tokens:  # no special tokens
                (found,) = fourfold.score(model, [(source, text)], eos=eos in row)
                assert found.total == pytest.approx(score, abs=1e-9)
                n_checked += 1
    assert n_checked > 3


def bigram_model(table: torch.Tensor, tokenizer: Tokenizer) -> CausalLM:
    """Return a causal LM whose log-probabilities after token i are the row i of `table`."""
    n = len(table)
    config = CausalLMConfig(
        **{**SHAPE, "d_model": n, "n_heads": 1, "n_layers": 1},
        vocab_size=n,
        positions="none",
        norm="rms",
        norm_eps=0.0,
        tie_embeddings=False,
        bias=False,
    )
    model = CausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.stack.blocks.parameters():
            parameter.zero_()  # so that the stack returns the norm of the embedding
        model.embed.tokens.weight.copy_(torch.eye(n))
        model.head.weight.copy_(table.T / n**0.5)
    model.tokenizer = tokenizer
    return model


def test_a_bigram_model_gives_the_sum_of_known_entries() -> None:
    tokenizer = make_tokenizer("word")
    n = tokenizer.vocab_size
    table = torch.randn(n, n, dtype=torch.float64).log_softmax(-1)
    model = bigram_model(table, tokenizer)
    for text in TEXTS:
        ids = [tokenizer.eos_id, *tokenizer.encode(text), tokenizer.eos_id]
        expected = [table[a, b].item() for a, b in pairwise(ids)]
        (found,) = fourfold.score(model, [text], eos=True)
        assert values(found) == pytest.approx(expected, abs=1e-6)
        greedy = all(int(table[a].argmax()) == b for a, b in pairwise(ids))
        assert found.is_greedy == greedy


def test_greedy_texts_are_marked() -> None:
    model = build("causal")
    ids = torch.tensor([[TOKENIZER.eos_id]])
    n_greedy = 0
    for _ in range(6):
        logits = model(ids)[0, -1]
        logits[TOKENIZER.special_ids] = -torch.inf
        ids = torch.cat([ids, logits.argmax().view(1, 1)], 1)
        text = TOKENIZER.decode(ids[0].tolist())
        if text and TOKENIZER.encode(text) == ids[0, 1:].tolist():
            best = model(ids[:, :-1])[0].argmax(-1)
            (found,) = fourfold.score(model, [text])
            assert found.is_greedy == bool((best == ids[0, 1:]).all())
            n_greedy += found.is_greedy
            assert not fourfold.score(model, [text + " zzz"])[0].is_greedy
    assert n_greedy


def slow_pll(model: Any, text: str, *, l2r: bool) -> list[float]:
    """Return the PLL of each token, one copy at a time."""
    tokenizer = model.tokenizer
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    found = []
    for i, token in enumerate(encoding.ids):
        masked = [
            tokenizer.mask_id if j == i or (l2r and j > i and word == encoding.word_ids[i]) else t
            for j, (t, word) in enumerate(zip(encoding.ids, encoding.word_ids, strict=True))
        ]
        ids = torch.tensor([[tokenizer.bos_id, *masked, tokenizer.eos_id]])
        found.append(model(ids)[0, i + 1].log_softmax(-1)[token].item())
    return found


@pytest.mark.parametrize("kind", ["byte_bpe", "bpe", "wordpiece"])
@pytest.mark.parametrize("l2r", [False, True])
def test_a_pll_is_that_of_a_slow_loop(kind: str, l2r: bool) -> None:
    model = build("masked", make_tokenizer(kind))
    method = "masked_l2r" if l2r else "masked"
    for text, found in zip(TEXTS, fourfold.score(model, TEXTS, method=method), strict=True):
        assert values(found) == pytest.approx(slow_pll(model, text, l2r=l2r), abs=1e-10)


def test_l2r_masks_the_rest_of_the_word_only() -> None:
    words = make_tokenizer("word")
    model = build("masked", words)
    plain, l2r = (fourfold.score(model, TEXTS, method=m) for m in ("masked", "masked_l2r"))
    assert plain == l2r  # each word is a token
    scorer = METHODS["masked"]["masked_l2r"](build("masked"))
    rows = scorer.rows("", "the unlikely.")
    ids, _, numbers = TOKENIZER.encode_with_words("the unlikely.")
    masks = [list(range(*row.masked)) for row in rows]
    expected = [
        [j + 1 for j in range(i, len(ids)) if numbers[j] == numbers[i]] for i in range(len(ids))
    ]
    assert masks == expected
    assert [len(mask) for mask in masks][-1] == 1  # the full stop is a word
    assert max(map(len, masks)) > 1


def test_the_default_method_of_a_masked_lm_is_l2r() -> None:
    model = build("masked")
    assert fourfold.score(model, TEXTS) == fourfold.score(model, TEXTS, method="masked_l2r")
    assert fourfold.score(model, TEXTS) != fourfold.score(model, TEXTS, method="masked")


def test_prefix_scores_are_those_of_the_sentinel_format() -> None:
    model = build("t5")
    sentinel = TOKENIZER.backend.token_to_id("<extra_id_0>")
    for context in ("", "the mat"):
        (found,) = fourfold.score(model, [(context, " dog ran")], method="prefix")
        before = TOKENIZER.encode(context)
        ids = TOKENIZER.encode(context + " dog ran")[len(before) :]
        src = torch.tensor([[*before, sentinel, TOKENIZER.eos_id]])
        tgt = torch.tensor([[TOKENIZER.bos_id, sentinel, *ids]])
        logits = model(src, tgt[:, :-1])[0, 1:]
        expected = -F.cross_entropy(logits, torch.tensor(ids), reduction="none")
        assert values(found) == pytest.approx(expected.tolist(), abs=1e-10)


def test_infilling_scores_are_those_of_the_mask_format() -> None:
    model, tokenizer = build("infilling"), WITHOUT_SENTINEL
    for context in ("", "the mat"):
        (found,) = fourfold.score(model, [(context, " dog ran")], method="prefix")
        before = tokenizer.encode(context)
        ids = tokenizer.encode(context + " dog ran")
        src = torch.tensor([[*before, tokenizer.mask_id, tokenizer.eos_id]])
        tgt = torch.tensor([[2, tokenizer.bos_id, *ids]])  # after the start token of the config
        logits = model(src, tgt[:, :-1])[0, 1:]
        expected = -F.cross_entropy(logits, torch.tensor(ids), reduction="none")
        assert values(found) == pytest.approx(expected.tolist()[len(before) :], abs=1e-10)


def test_masked_scores_of_an_encoder_decoder_are_those_of_a_slow_loop() -> None:
    model = build("t5")
    sentinel = TOKENIZER.backend.token_to_id("<extra_id_0>")
    for text, found in zip(TEXTS, fourfold.score(model, TEXTS, method="masked"), strict=True):
        ids = TOKENIZER.encode(text)
        expected = []
        for i, token in enumerate(ids):
            src = torch.tensor([[*ids[:i], sentinel, *ids[i + 1 :], TOKENIZER.eos_id]])
            logits = model(src, torch.tensor([[TOKENIZER.bos_id, sentinel]]))[0, -1]
            expected.append(logits.log_softmax(-1)[token].item())
        assert values(found) == pytest.approx(expected, abs=1e-10)


def test_mntp_scores_are_losses_of_masked_rows_of_the_task() -> None:
    model = build("causal")
    task = CausalLanguageModeling(model.config)
    task.model = model
    for text, found in zip(TEXTS, fourfold.score(model, TEXTS, method="mntp"), strict=True):
        ids = TOKENIZER.encode(text)
        expected = []
        for i, token in enumerate(ids):
            masked = [*ids[:i], TOKENIZER.mask_id, *ids[i + 1 :]]
            row = torch.tensor([[TOKENIZER.eos_id, *masked, TOKENIZER.eos_id]])
            targets = torch.full_like(row, IGNORE_INDEX)
            targets[0, i] = token  # from the position before the mask
            prefix, weights = torch.ones_like(row, dtype=torch.bool), torch.ones(1)
            batch = CausalBatch(row, targets, prefix=prefix, weights=weights)
            expected.append(-task.step(batch)[0].item())
        assert values(found) == pytest.approx(expected, abs=1e-10)
    one, other = (fourfold.score(model, TEXTS, method=method) for method in ("causal", "mntp"))
    for a, b, both in zip(one, other, fourfold.score(model, TEXTS, method="fused"), strict=True):
        assert both.total == pytest.approx(a.total + b.total, abs=1e-10)
        assert both.per_byte == pytest.approx(a.per_byte + b.per_byte, abs=1e-12)


@pytest.mark.parametrize("method", ["mntp", "fused"])
def test_models_that_cannot_see_later_tokens_have_no_mntp(method: str) -> None:
    with pytest.raises(InputError, match="prefix"):
        fourfold.score(build("lstm"), TEXTS, method=method)
    model = build("causal", make_tokenizer(mask=False))
    with pytest.raises(InputError, match="tokenizer without a mask token"):
        fourfold.score(model, TEXTS, method=method)


def test_context_and_continuation_add_up() -> None:
    model = build("causal")
    (whole,) = fourfold.score(model, ["the cat sat"])
    for context, rest in (("the cat", " sat"), ("the cat ", "sat"), ("", "the cat sat")):
        (found,) = fourfold.score(model, [(context, rest)])
        assert values(found) == pytest.approx(values(whole)[-len(found.tokens) :], abs=1e-11)
        assert found.tokens[-1].span[1] == 11
        assert found.per_byte == found.total / len(rest)
    # Spaces at the end of the context belong to the continuation, also as a token of their own.
    moved, given = fourfold.score(model, [("the cat  ", "sat"), ("the cat", "  sat")])
    assert values(moved) == pytest.approx(values(given), abs=1e-11)
    # A token of both parts belongs to the continuation, which is never empty.
    (found,) = fourfold.score(model, [("the ca", "t")])
    tokens = [token.text for token in found.tokens]
    assert tokens[0].endswith("cat") or tokens == ["t"]
    whole_tokens = [token.text for token in whole.tokens]
    if "cat" in whole_tokens:
        assert tokens == ["cat"]


def test_counts_and_spans() -> None:
    model = build("causal")
    text = "the cät  sat\n"
    (found,) = fourfold.score(model, [text])
    assert found.per_word == found.total / 3
    assert found.per_byte == found.total / len(text.encode())
    assert found.per_token == found.total / len(found.tokens)
    assert found.total == math.fsum(values(found))
    ends = [token.span[1] for token in found.tokens]
    assert ends == sorted(ends)
    assert ends[-1] == len(text)
    assert math.isnan(fourfold.score(model, [" \n"])[0].per_word)


def rolling(tokens: list[int], prefix: int, limit: int) -> list[tuple[list[int], list[int]]]:
    """Disjoint windows (inputs, targets), written after lm-eval's get_rolling_token_windows."""
    found = [([prefix, *tokens[: min(limit, len(tokens)) - 1]], tokens[:limit])]
    done = len(found[0][1])
    while done < len(tokens):
        n = min(len(tokens) - done, limit)
        end = done + n
        found.append((tokens[end - limit - 1 : end - 1], tokens[end - n : end]))
        done = end
    return found


@pytest.mark.parametrize("limit", [4, 7, 40])
def test_long_texts_are_scored_in_windows(limit: int) -> None:
    model = build("causal", max_len=limit)
    text = "the cat sat on the mat. a dog ran away"
    ids = TOKENIZER.encode(text)
    expected: list[float] = []
    for inputs, targets in rolling(ids, TOKENIZER.eos_id, limit):
        log_p = model(torch.tensor([inputs]))[0].log_softmax(-1)[-len(targets) :]
        expected += [log_p[i, token].item() for i, token in enumerate(targets)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (found,) = fourfold.score(model, [text])
    assert values(found) == pytest.approx(expected, abs=1e-10)
    assert [token.text for token in found.tokens] == [
        token.text for token in fourfold.score(build("causal"), [text])[0].tokens
    ]
    message = f"1 of 1 texts are longer than the model and are scored in windows of {limit} tokens"
    assert [str(w.message) for w in caught] == ([message] if len(ids) > limit else [])


def test_the_windows_of_the_docstring_of_lm_eval() -> None:
    scorer = Scorer(build("causal"))
    assert list(scorer.windows(0, 10, 4)) == [(0, 0, 4), (4, 4, 8), (6, 8, 10)]
    # A context that is too long loses its beginning: 3 tokens, continuation 2, limit 3.
    assert list(scorer.windows(3, 5, 3)) == [(2, 3, 5)]
    assert list(scorer.windows(3, 5, None)) == [(0, 3, 5)]


@pytest.mark.filterwarnings("ignore:1 of 1 texts")
def test_windows_of_a_masked_lm_score_each_token_once() -> None:
    model, text = build("masked", max_len=7), "the cat sat on the mat. a dog"
    (found,) = fourfold.score(model, [text], method="masked")
    ids = TOKENIZER.encode(text)
    assert len(found.tokens) == len(ids) > 10
    first = TOKENIZER.decode(ids[:5])
    assert values(found)[:5] == pytest.approx(slow_pll(model, first, l2r=False), abs=1e-10)


def test_probabilities_of_words_sum_to_1() -> None:
    # The words are a, b, ax and bx; after x, and after a word, a word begins or the text ends.
    vocabulary = ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "x", "Ġa", "Ġb", "Ġ"]
    import tokenizers
    from tokenizers import models, pre_tokenizers

    ids = {token: i for i, token in enumerate(vocabulary)}
    backend = tokenizers.Tokenizer(models.BPE(ids, [("Ġ", "a"), ("Ġ", "b")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(vocabulary[:4])
    tokenizer = Tokenizer(backend)
    logits = torch.randn(len(ids), len(ids), dtype=torch.float64)
    logits[:, [0, 1, 3, ids["Ġ"]]] = -60.0  # they belong to no word
    logits[ids["x"], [4, 5, 6]] = -60.0  # a word ends after "x"
    logits[[[4], [5], [7], [8]], [4, 5]] = -60.0
    logits[ids["</s>"], 6] = -60.0  # no text begins with "x"
    model = bigram_model(logits.log_softmax(-1), tokenizer)
    words = ["a", "b", "ax", "bx"]

    def probability(text: str, number: int) -> float:
        (found,) = fourfold.score(model, [text], eos=True, borders=True)
        return math.exp(-found.surprisals("word")[number][1])

    for context in ("", "a ", "bx ", "b ax "):
        n = len(context.split())
        following = sum(probability(context + word, n) for word in words)
        if context:
            end = probability(context.strip(), n)
        else:  # an empty text has no score
            p = logits[2].softmax(-1)
            end = float(p[2] / p[[2, 4, 5, 6]].sum())
        assert following + end == pytest.approx(1.0, abs=1e-6)


def test_the_correction_of_a_text_telescopes() -> None:
    model = build("causal")
    (found,) = fourfold.score(model, ["the cats sat."], borders=True)
    words = found.surprisals("word")
    assert [word for word, _ in words] == ["the", "cats", "sat."]
    ends = found.tokens[0].borders[0] - found.tokens[-1].borders[1]
    assert sum(value for _, value in words) == pytest.approx(-found.total + ends, abs=1e-10)
    plain = fourfold.score(model, ["the cats sat."])[0]
    assert values(found) == pytest.approx(values(plain), abs=1e-11)
    assert sum(value for _, value in plain.surprisals("word")) == pytest.approx(-plain.total)


def test_surprisals_of_windows_and_of_masked_lms() -> None:
    with pytest.warns(UserWarning, match="windows of 5 tokens"):
        (found,) = fourfold.score(build("causal", max_len=5), [CORPUS[0]], borders=True)
    assert [word for word, _ in found.surprisals("word")] == CORPUS[0].split()
    (found,) = fourfold.score(build("masked"), [CORPUS[0]], borders=True)
    assert sum(x for _, x in found.surprisals("word")) == pytest.approx(-found.total)


@pytest.mark.parametrize(
    ("kind", "options", "texts", "message"),
    [
        ("causal", {"method": "masked"}, TEXTS, "method must be one of causal, mntp, fused"),
        ("pairs", {}, TEXTS, "inputs:1: the text must be a source and a target"),
        ("pairs", {}, [*PAIRS, ("a", "cat " * 99)], "inputs:5: the text has more than 40 tokens"),
        ("pairs", {}, [("cat " * 99, "a")], "inputs:1: the text has more than 40 tokens"),
        ("masked", {"eos": True}, TEXTS, "eos must not be given for this method"),
        ("causal", {}, ["a", ""], "inputs:2: the scored text must have at least one token"),
        ("causal", {"batch_size": 0}, ["a"], "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_input(kind: str, options: Any, texts: list[Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        fourfold.score(build(kind), texts, **options)
    assert str(caught.value).startswith(message)


def test_missing_tokens_heads_and_finite_scores() -> None:
    plain = make_tokenizer(mask=False, sentinel=False)
    with pytest.raises(InputError, match="model has a tokenizer without a mask token"):
        fourfold.score(build("masked", plain), TEXTS)
    with pytest.raises(InputError, match="model has a vocabulary without the sentinel <extra_id_0"):
        fourfold.score(build("t5", plain), TEXTS, method="prefix")
    vit = ViT(ViTConfig(**SHAPE, image_size=8, patch_size=4, n_classes=3))
    for model in (vit, MaskedLM(MaskedLMConfig(**SHAPE, **SIZES, head=False))):
        with pytest.raises(InputError, match="model must be a language model with a vocabulary"):
            fourfold.score(model, TEXTS)
    small = CausalLM(CausalLMConfig(**SHAPE, vocab_size=20))
    small.tokenizer = TOKENIZER
    with pytest.raises(InputError, match=f"a tokenizer with {V} entries, but 20 embeddings"):
        fourfold.score(small, TEXTS)
    for value in (math.nan, math.inf):
        model = build("causal")
        with torch.no_grad():
            model.embed.tokens.weight[TOKENIZER.encode("dog")[0]] = value
        with pytest.raises(InputError, match="computes NaN or infinite logits"):
            fourfold.score(model, TEXTS)


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> Any:
    """`fourfold score` on some text."""

    def call(model: Any, text: str, *options: object) -> Any:
        fourfold.save(model.float(), tmp_path / "model")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return run("score", "--checkpoint", tmp_path / "model", *options)

    return call


def test_the_command_writes_four_numbers_for_each_line(ask: Any) -> None:
    model = build("causal").float()
    result = ask(model, "the cat\n\na dog\t ran away\n")
    expected = fourfold.score(model, ["the cat", ("a dog", " ran away")])
    rows = [
        f"{x.total:.6f}\t{x.per_token:.6f}\t{x.per_word:.6f}\t{x.per_byte:.6f}" for x in expected
    ]
    assert (result.code, result.out) == (0, f"{rows[0]}\n\n{rows[1]}\n"), result.err


@pytest.mark.parametrize("by", ["token", "word"])
def test_the_command_writes_surprisals(ask: Any, by: str) -> None:
    model = build("causal").float()
    result = ask(model, "the cat sat.\n", "--by", by, "--eos")
    (found,) = fourfold.score(model, ["the cat sat."], eos=True, borders=by == "word")
    cells = [cell for text, value in found.surprisals(by) for cell in (text, f"{value:.6f}")]
    assert result.out == "\t".join(cells) + "\n", result.err
    assert cells[-2] == "</s>"


@pytest.mark.parametrize(
    ("kind", "text", "options", "message"),
    [
        ("pairs", "a cat\tcat\na cat\n", [], "<stdin>:2: the text must be a source and a target"),
        ("causal", "a\n", ["--method=prefix"], "--method must be one of causal, mntp, fused"),
        ("masked", "a\n", ["--eos"], "--eos must not be given for this method"),
        ("masked", "a\t\n", [], "<stdin>:1: the scored text must have at least one token"),
        ("causal", "a\n", ["--by", "line"], "--by: invalid choice: 'line'"),
    ],
)
def test_bad_input_of_the_command(
    kind: str, text: str, options: list[str], message: str, ask: Any
) -> None:
    result = ask(build(kind), text, *options)
    assert result.code == 2
    assert result.err.startswith(f"fourfold: error: {message}"), result.err
    assert result.err.count("\n") == 1


@pytest.mark.skip(reason="needs the network: published weights of GPT-2 and BERT")
def test_values_of_mlm_scoring() -> None:
    # README of awslabs/mlm-scoring, "Hello world!"; its BERT is bert-base-en-cased of GluonNLP.
    gpt2 = fourfold.load("hf://openai-community/gpt2")
    (found,) = fourfold.score(gpt2, ["Hello world!"])
    assert values(found) == pytest.approx([-8.2939, -6.3876, -1.3139], abs=2e-3)
    bert = fourfold.load("hf://google-bert/bert-base-cased")
    (found,) = fourfold.score(bert, ["Hello world!"], method="masked")
    assert values(found) == pytest.approx([-6.1267, -5.5014, -0.7825], abs=2e-3)
