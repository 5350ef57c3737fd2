"""Models of transformers read back as ours: the same logits, losses and gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import fourfold
from fourfold.core.errors import InputError
from fourfold.hub import directory, foreign
from fourfold.losses import IGNORED
from fourfold.models import (
    CLIP,
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    MaskedLM,
    SequenceClassifier,
    SpanExtractor,
    TokenClassifier,
    ViT,
)
from fourfold.models.encoder_decoder import EncoderDecoderConfig
from tests.hub.foreign_models import MODELS, exact, ids, make, padding

LENGTHS = {"short": [1, 1], "padded": [5, 11, 8], "longest": [23, 20]}
# fp32 relative to the largest value; fp64.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    assert ours.shape == theirs.shape
    return bool((ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp_min(1e-3))


def both(name: str, tmp_path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    theirs = make(name)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = fourfold.load(tmp_path / "theirs")
    return ours.to(dtype), exact(theirs) if dtype == torch.float64 else theirs


def run(ours: nn.Module, theirs: Any, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Our output, theirs, our loss, theirs; outputs where there is something to compare."""
    mask = padding(lengths)
    x = ids(*mask.shape)
    if isinstance(ours, SequenceClassifier | TokenClassifier | SpanExtractor):
        return run_head(ours, theirs, x, mask)
    if isinstance(ours, MaskedLM):
        return run_masked(ours, theirs, x, mask)
    if isinstance(ours, CausalLM):
        return run_causal(ours, theirs, x, padding(lengths, left=True))
    if isinstance(ours, EncoderDecoder):
        return run_pairs(ours, theirs, x, mask)
    if isinstance(ours, CLIP):
        return run_towers(ours, theirs, x, mask)
    assert isinstance(ours, ViT)
    side, dtype = ours.config.image_size, next(ours.parameters()).dtype
    images = torch.randn(len(lengths), 3, side, side, dtype=dtype)
    labels = torch.arange(len(lengths))
    mine, their = ours(images), theirs(pixel_values=images).logits
    return mine, their, F.cross_entropy(mine, labels), F.cross_entropy(their, labels)


def run_masked(ours: MaskedLM, theirs: Any, x: Tensor, mask: Tensor) -> Any:
    more, segments = {}, None
    if ours.config.n_segments > 1:
        more["token_type_ids"] = segments = (torch.arange(x.shape[1]) > 3).long().expand_as(x)
    x = x.masked_fill(~mask, theirs.config.pad_token_id)  # RoBERTa counts positions by it
    if not ours.config.head:
        out = theirs(input_ids=x, attention_mask=mask.long(), **more).last_hidden_state
        h = ours.encode(x, segments, mask)
        weights = torch.randn(h.shape, generator=torch.Generator().manual_seed(2)).to(h.dtype)
        return h[mask], out[mask], (h * weights)[mask].sum(), (out * weights)[mask].sum()
    labels = x.masked_fill(~mask, IGNORED)
    labels[:, ::2] = IGNORED if x.shape[1] > 1 else labels[:, ::2]
    if ours.config.next_sentence:
        follows = torch.arange(len(x)) % 2  # transformers counts: 0 = it follows
        out = theirs(
            input_ids=x, attention_mask=mask.long(), labels=labels,
            next_sentence_label=follows, **more,
        )  # fmt: skip
        h = ours.encode(x, segments, mask)
        pairs = ours.next_sentence_logits(h)
        loss = F.cross_entropy(ours.logits(h).flatten(0, 1), labels.flatten())
        loss = loss + F.cross_entropy(pairs, 1 - follows)
        mine = torch.cat([ours.logits(h)[mask].flatten(), pairs.flip(1).flatten()])
        their = torch.cat([out.prediction_logits[mask].flatten(),
                           out.seq_relationship_logits.flatten()])  # fmt: skip
        return mine, their, loss, out.loss
    out = theirs(input_ids=x, attention_mask=mask.long(), labels=labels, **more)
    logits = ours(x, segments, mask)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return logits[mask], out.logits[mask], loss, out.loss


def run_head(ours: Any, theirs: Any, x: Tensor, mask: Tensor) -> Any:
    """The heads of downstream tasks; a model of theirs with one class learns a number."""
    more, segments = {}, None
    if ours.config.n_segments > 1:
        more["token_type_ids"] = segments = (torch.arange(x.shape[1]) > 3).long().expand_as(x)
    x = x.masked_fill(~mask, theirs.config.pad_token_id)
    logits = ours(x, segments, mask)
    if isinstance(ours, SpanExtractor):
        places = mask.sum(1) - 1, mask.sum(1) // 2
        more |= {"start_positions": places[1], "end_positions": places[0]}
        out = theirs(input_ids=x, attention_mask=mask.long(), **more)
        their = torch.stack([out.start_logits, out.end_logits], -1)
        # Theirs lets padding compete, whose scores are nobody's business.
        losses = [
            (F.cross_entropy(start, places[1]) + F.cross_entropy(end, places[0])) / 2
            for start, end in (
                z.masked_fill(~mask[..., None], -torch.inf).unbind(-1) for z in (logits, their)
            )
        ]
        assert not mask.all() or close(losses[1], out.loss, 1e-6)
        return logits[mask], their[mask], *losses
    if isinstance(ours, TokenClassifier):
        labels = (x % 4).masked_fill(~mask, IGNORED)
        out = theirs(input_ids=x, attention_mask=mask.long(), labels=labels, **more)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return logits[mask], out.logits[mask], loss, out.loss
    number = ours.config.n_classes == 1
    labels = torch.arange(len(x)).to(logits.dtype if number else torch.long)
    out = theirs(input_ids=x, attention_mask=mask.long(), labels=labels, **more)
    loss = F.mse_loss(logits[:, 0], labels) if number else F.cross_entropy(logits, labels)
    return logits, out.logits, loss, out.loss


def run_causal(ours: CausalLM, theirs: Any, x: Tensor, mask: Tensor) -> Any:
    places = (mask.long().cumsum(1) - 1).clamp_min(0)
    out = theirs(input_ids=x, attention_mask=mask.long(), position_ids=places)
    if hasattr(out, "logits"):
        mine, their = ours(x, mask), out.logits
    else:
        mine, their = ours.hidden(x, mask), out.last_hidden_state
    # What a padded place would say is nobody's business.
    weights = torch.randn(mine.shape, generator=torch.Generator().manual_seed(2)).to(mine.dtype)
    if mine.shape[-1] != 61 or x.shape[1] == 1:
        return mine[mask], their[mask], (mine * weights)[mask].sum(), (their * weights)[mask].sum()
    labels = x[:, 1:].masked_fill(~mask[:, :-1], IGNORED).flatten()
    losses = [F.cross_entropy(y[:, :-1].flatten(0, 1), labels) for y in (mine, their)]
    return mine[mask], their[mask], *losses


def run_pairs(ours: EncoderDecoder, theirs: Any, x: Tensor, mask: Tensor) -> Any:
    tgt = ids(len(x), max(1, x.shape[1] - 2), seed=3)
    labels = ids(*tgt.shape, seed=4)
    out = theirs(
        input_ids=x, attention_mask=mask.long(), decoder_input_ids=tgt, labels=labels
    )  # fmt: skip
    logits = ours(x, tgt, mask)
    return logits, out.logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten()), out.loss


def run_towers(ours: CLIP, theirs: Any, x: Tensor, mask: Tensor) -> Any:
    eos = theirs.config.text_config.eos_token_id
    ends = mask.sum(1, keepdim=True) - 1
    if eos == 2:  # by the highest number, wherever it stands
        x = x.masked_fill(~mask, 1)
    else:
        x = torch.where(x == eos, 8, x).scatter(1, ends, eos).masked_fill(~mask, eos)
    images = torch.randn(len(x), 3, 12, 12, dtype=next(ours.parameters()).dtype)
    out = theirs(input_ids=x, attention_mask=mask.long(), pixel_values=images, return_loss=True)
    logits, labels = ours(images, x, mask), torch.arange(len(x))
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    return logits, out.logits_per_image, loss, out.loss


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_every_gradient(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    ours, theirs = both(name, tmp_path, dtype)
    tolerance = TOLERANCE[dtype]
    for lengths in LENGTHS.values():
        ours.zero_grad()
        theirs.zero_grad()
        mine, their, loss, expected = run(ours, theirs, lengths)
        assert close(mine, their, tolerance)
        assert close(loss, expected, tolerance)
        loss.backward()
        expected.backward()
        found, wanted = gradients(ours), mapped_gradients(theirs, ours, tmp_path / "gradients")
        assert found.keys() == wanted.keys()
        largest = max(float(g.abs().max()) for g in wanted.values())
        for key, gradient in found.items():
            gap = float((gradient - wanted[key]).abs().max())
            assert gap <= 2 * tolerance * largest, (key, gap, largest)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    fixed = {"head.bias"} if isinstance(model, EncoderDecoder) else set()  # a buffer of theirs
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
        if name not in fixed
    }


def mapped_gradients(theirs: Any, ours: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Their gradients under our names: written in the place of their weights, and read back."""
    values = [p.detach().clone() for p in theirs.parameters()]
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    theirs.save_pretrained(folder)
    read = directory.read_tensors(folder)
    candidates = foreign._known(directory.read_config(folder), folder)
    architecture = next(a for a in candidates if a.family is type(ours))
    if ours.origin.bare:
        read = {architecture.prefix + key: value for key, value in read.items()}
    mapped, _ = architecture.keys.read(read, ours.state_dict(), "")
    with torch.no_grad():
        for p, value in zip(theirs.parameters(), values, strict=True):
            p.copy_(value)
    return {key: mapped[key] for key in gradients(ours)}


def test_gpt_1_has_its_own_words_for_activations(tmp_path: Path) -> None:
    """Its code knows no others, not even those that config.json may hold elsewhere."""
    shape = {"d_model": 12, "n_layers": 1, "n_heads": 2, "d_ff": 48, "vocab_size": 9, "max_len": 8}
    for activation in ("relu", "gelu_tanh", "silu"):
        config = CausalLMConfig(**shape, norm_placement="post", activation=activation)
        fourfold.save(CausalLM(config), tmp_path / activation)
        hf.AutoModelForCausalLM.from_pretrained(tmp_path / activation)
        assert fourfold.load(tmp_path / activation).config.activation == activation
    config = CausalLMConfig(**shape, norm_placement="post", activation="quick_gelu")
    with pytest.raises(InputError, match="openai-gpt cannot have 'quick_gelu'"):
        fourfold.save(CausalLM(config), tmp_path / "quick")


@pytest.mark.parametrize("positions", ["sinusoidal_halves", "learned"])
@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_no_last_word_is_forced_on_what_is_exported(
    positions: str, norm_placement: str, tmp_path: Path
) -> None:
    learned = positions == "learned"
    if learned and norm_placement == "pre":
        pytest.skip("no architecture of theirs")
    model = EncoderDecoder(
        EncoderDecoderConfig(
            d_model=8, n_heads=2, d_ff=16, n_layers=1, vocab_size=20, max_len=12,
            tie="all", norm_eps=1e-5, positions=positions, embed_norm=learned,
            norm_placement=norm_placement, output_bias=True,
        )
    )  # fmt: skip
    foreign.write(model, tmp_path)
    theirs = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert theirs.generation_config.forced_eos_token_id is None
    # Else its last place would hold padding, or the begin of a sentence.
    with torch.no_grad():
        theirs.final_logits_bias[0, 7] = 1e4
        found = theirs.generate(
            torch.tensor([[4, 5, 2]]), max_length=5, num_beams=1, do_sample=False
        )
    assert found[0, 1:].tolist() == [7] * 4


@pytest.mark.parametrize("name", MODELS)
def test_round_trip_gives_the_same_bytes_and_the_same_logits(name: str, tmp_path: Path) -> None:
    ours, theirs = both(name, tmp_path, torch.float32)
    fourfold.save(ours, tmp_path / "again")
    before, after = (directory.read_tensors(tmp_path / d) for d in ("theirs", "again"))
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert tensor.dtype == after[key].dtype
        assert torch.equal(tensor, after[key]), key
    assert directory.read_config(tmp_path / "theirs") == directory.read_config(tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    for lengths in LENGTHS.values():
        torch.manual_seed(0)
        first = run(ours, theirs, lengths)[1]
        torch.manual_seed(0)
        # Of the same bytes; only where a matrix has one row may another alignment round otherwise.
        torch.testing.assert_close(run(ours, again, lengths)[1], first, rtol=1e-6, atol=1e-6)
