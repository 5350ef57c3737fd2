"""Tests that imported models have the logits, losses and gradients of transformers."""

import json
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

import fourfold
from fourfold import json_files
from fourfold.data.loading.batches import CaptionBatch
from fourfold.errors import InputError
from fourfold.families import families
from fourfold.hub import directory, transformers_format
from fourfold.losses import IGNORE_INDEX
from fourfold.models import (
    CLIP,
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    MaskedLM,
    SequenceClassifier,
    SigLIP,
    SpanExtractor,
    TokenClassifier,
    ViT,
)
from fourfold.models.encoder_decoder.model import EncoderDecoderConfig
from fourfold.tasks import SigmoidContrastiveLearning
from tests.fixtures.hf_models import DINOV3, MODELS, make_model, padding_mask, random_ids, to_fp64

LENGTHS = {"short": [1, 1], "padded": [5, 11, 8], "longest": [23, 20]}
# Relative to the largest value.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def close(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    assert actual.shape == expected.shape
    limit = tolerance * expected.abs().max().clamp_min(1e-3)
    return bool((actual - expected).abs().max() <= limit)


def load_both(name: str, tmp_path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    hf_model = make_model(name)
    hf_model.save_pretrained(tmp_path / "theirs")
    model = fourfold.load(tmp_path / "theirs")
    return model.to(dtype), to_fp64(hf_model) if dtype == torch.float64 else hf_model


def run(
    model: nn.Module, hf_model: Any, lengths: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the outputs of both models at positions without padding, and their losses."""
    mask = padding_mask(lengths)
    x = random_ids(*mask.shape)
    if isinstance(model, SequenceClassifier | TokenClassifier | SpanExtractor):
        return run_downstream(model, hf_model, x, mask)
    if isinstance(model, MaskedLM):
        return run_masked(model, hf_model, x, mask)
    if isinstance(model, CausalLM):
        return run_causal(model, hf_model, x, padding_mask(lengths, left=True))
    if isinstance(model, EncoderDecoder):
        return run_encoder_decoder(model, hf_model, x, mask)
    if isinstance(model, SigLIP):
        return run_siglip(model, hf_model, x, mask)
    if isinstance(model, CLIP):
        return run_clip(model, hf_model, x, mask)
    assert isinstance(model, ViT)
    side, dtype = model.config.image_size, next(model.parameters()).dtype
    images = torch.randn(len(lengths), 3, side, side, dtype=dtype)
    labels = torch.arange(len(lengths))
    actual, reference = model(images), hf_model(pixel_values=images).logits
    return actual, reference, F.cross_entropy(actual, labels), F.cross_entropy(reference, labels)


def run_masked(model: MaskedLM, hf_model: Any, x: Tensor, mask: Tensor) -> Any:
    more, segments = {}, None
    if model.config.n_segments > 1:
        more["token_type_ids"] = segments = (torch.arange(x.shape[1]) > 3).long().expand_as(x)
    x = x.masked_fill(~mask, hf_model.config.pad_token_id)  # RoBERTa derives positions from padding
    if not model.config.head:
        out = hf_model(input_ids=x, attention_mask=mask.long(), **more).last_hidden_state
        h = model.encode(x, segments=segments, mask=mask)
        weights = torch.randn(h.shape, generator=torch.Generator().manual_seed(2)).to(h.dtype)
        losses = [(x * weights)[mask].square().sum() for x in (h, out)]  # without cancellation
        return h[mask], out[mask], *losses
    labels = x.masked_fill(~mask, IGNORE_INDEX)
    labels[:, ::2] = IGNORE_INDEX if x.shape[1] > 1 else labels[:, ::2]
    if model.config.next_sentence:
        follows = torch.arange(len(x)) % 2  # transformers: class 0 = B follows A
        out = hf_model(
            input_ids=x,
            attention_mask=mask.long(),
            labels=labels,
            next_sentence_label=follows,
            **more,
        )
        h = model.encode(x, segments=segments, mask=mask)
        pairs = model.next_sentence_logits(h)
        loss = F.cross_entropy(model.logits(h).flatten(0, 1), labels.flatten())
        loss = loss + F.cross_entropy(pairs, 1 - follows)
        actual = torch.cat([model.logits(h)[mask].flatten(), pairs.flip(1).flatten()])
        reference = torch.cat(
            [out.prediction_logits[mask].flatten(), out.seq_relationship_logits.flatten()]
        )
        return actual, reference, loss, out.loss
    out = hf_model(input_ids=x, attention_mask=mask.long(), labels=labels, **more)
    logits = model(x, segments=segments, mask=mask)
    losses = [F.cross_entropy(y.flatten(0, 1), labels.flatten()) for y in (logits, out.logits)]
    assert close(losses[1].to(out.loss.dtype), out.loss, 1e-6)  # some classes compute it in fp32
    return logits[mask], out.logits[mask], *losses


def run_downstream(model: Any, hf_model: Any, x: Tensor, mask: Tensor) -> Any:
    """Compare models with a classification, tagging or span head; one class means regression."""
    more, segments = {}, None
    if model.config.n_segments > 1:
        more["token_type_ids"] = segments = (torch.arange(x.shape[1]) > 3).long().expand_as(x)
    x = x.masked_fill(~mask, hf_model.config.pad_token_id)
    logits = model(x, segments=segments, mask=mask)
    if isinstance(model, SpanExtractor):
        ends = mask.sum(1) - 1
        starts = mask.sum(1) // 2
        more |= {"start_positions": starts, "end_positions": ends}
        out = hf_model(input_ids=x, attention_mask=mask.long(), **more)
        reference = torch.stack([out.start_logits, out.end_logits], -1)
        # The loss of transformers includes the logits of padding, which are undefined.
        losses = [
            (F.cross_entropy(start, starts) + F.cross_entropy(end, ends)) / 2
            for start, end in (
                z.masked_fill(~mask[..., None], -torch.inf).unbind(-1) for z in (logits, reference)
            )
        ]
        assert not mask.all() or close(losses[1], out.loss, 1e-6)
        return logits[mask], reference[mask], *losses
    if isinstance(model, TokenClassifier):
        labels = (x % 4).masked_fill(~mask, IGNORE_INDEX)
        out = hf_model(input_ids=x, attention_mask=mask.long(), labels=labels, **more)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return logits[mask], out.logits[mask], loss, out.loss
    number = model.config.n_classes == 1
    labels = torch.arange(len(x)).to(logits.dtype if number else torch.long)
    out = hf_model(input_ids=x, attention_mask=mask.long(), labels=labels, **more)
    loss = F.mse_loss(logits[:, 0], labels) if number else F.cross_entropy(logits, labels)
    return logits, out.logits, loss, out.loss


def run_causal(model: CausalLM, hf_model: Any, x: Tensor, mask: Tensor) -> Any:
    positions = (mask.long().cumsum(1) - 1).clamp_min(0)
    out = hf_model(input_ids=x, attention_mask=mask.long(), position_ids=positions)
    if hasattr(out, "logits"):
        actual, reference = model(x, mask=mask), out.logits
    else:
        actual, reference = model.hidden(x, mask=mask), out.last_hidden_state
    # Outputs at padded positions are undefined.
    weights = torch.randn(actual.shape, generator=torch.Generator().manual_seed(2)).to(actual.dtype)
    if actual.shape[-1] != 61 or x.shape[1] == 1:
        return (
            actual[mask],
            reference[mask],
            (actual * weights)[mask].sum(),
            (reference * weights)[mask].sum(),
        )
    labels = x[:, 1:].masked_fill(~mask[:, :-1], IGNORE_INDEX).flatten()
    losses = [F.cross_entropy(y[:, :-1].flatten(0, 1), labels) for y in (actual, reference)]
    return actual[mask], reference[mask], *losses


def run_encoder_decoder(model: EncoderDecoder, hf_model: Any, x: Tensor, mask: Tensor) -> Any:
    tgt = random_ids(len(x), max(1, x.shape[1] - 2), seed=3)
    labels = random_ids(*tgt.shape, seed=4)
    out = hf_model(input_ids=x, attention_mask=mask.long(), decoder_input_ids=tgt, labels=labels)
    logits = model(x, tgt, src_mask=mask)
    return logits, out.logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten()), out.loss


def run_clip(model: CLIP, hf_model: Any, x: Tensor, mask: Tensor) -> Any:
    eos = hf_model.config.text_config.eos_token_id
    ends = mask.sum(1, keepdim=True) - 1
    if eos == 2:  # pools at the highest token id
        x = x.masked_fill(~mask, 1)
    else:
        x = torch.where(x == eos, 8, x).scatter(1, ends, eos).masked_fill(~mask, eos)
    images = torch.randn(len(x), 3, 12, 12, dtype=next(model.parameters()).dtype)
    out = hf_model(input_ids=x, attention_mask=mask.long(), pixel_values=images, return_loss=True)
    logits, labels = model(images, x, mask=mask), torch.arange(len(x))
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    return logits, out.logits_per_image, loss, out.loss


def run_siglip(model: SigLIP, hf_model: Any, x: Tensor, mask: Tensor) -> Any:
    images = torch.randn(len(x), 3, 12, 12, dtype=next(model.parameters()).dtype)
    padded = F.pad(x.masked_fill(~mask, 1), (0, 23 - x.shape[1]), value=1)
    out = hf_model(input_ids=padded, pixel_values=images, return_loss=True)
    task = SigmoidContrastiveLearning(model.config)
    task.model = model
    total, count = task.step(CaptionBatch(images, x, mask, torch.arange(len(x))))
    return model(images, x, mask=mask), out.logits_per_image, total / count, out.loss


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_loss_and_all_gradients_match_transformers(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model, hf_model = load_both(name, tmp_path, dtype)
    tolerance = TOLERANCE[dtype]
    for lengths in LENGTHS.values():
        model.zero_grad()
        hf_model.zero_grad()
        actual, reference, loss, expected = run(model, hf_model, lengths)
        assert close(actual, reference, tolerance)
        assert close(loss, expected, tolerance)
        loss.backward()
        expected.backward()
        actual_gradients = gradients(model)
        expected_gradients = mapped_gradients(hf_model, model, tmp_path / "gradients")
        assert actual_gradients.keys() == expected_gradients.keys()
        largest = max(float(g.abs().max()) for g in expected_gradients.values())
        for key, gradient in actual_gradients.items():
            gap = float((gradient - expected_gradients[key]).abs().max())
            assert gap <= 2 * tolerance * largest, (key, gap, largest)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    # The output bias is a buffer in transformers.
    fixed = {"head.bias"} if isinstance(model, EncoderDecoder) else set()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
        if name not in fixed
    }


def mapped_gradients(hf_model: Any, model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """Return the gradients of transformers by native names.

    They are saved in place of the weights and read by the conversion tables.
    """
    values = [p.detach().clone() for p in hf_model.parameters()]
    with torch.no_grad():
        for p in hf_model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
    hf_model.save_pretrained(folder)
    read = directory.read_tensors(folder)
    candidates = transformers_format._architectures_of(json_files.read_json(folder / "config.json"))
    architecture = next(a for a in candidates if a.model_class is type(model))
    if model.source.is_base_model:
        read = {architecture.base_model_prefix + key: value for key, value in read.items()}
    mapped, _ = architecture.keymap.to_native(read, model.state_dict())
    zeros = {key: torch.zeros_like(value) for key, value in read.items()}
    constant, _ = architecture.keymap.to_native(zeros, model.state_dict())  # Gemma adds 1
    mapped = {key: value - constant[key] for key, value in mapped.items()}
    with torch.no_grad():
        for p, value in zip(hf_model.parameters(), values, strict=True):
            p.copy_(value)
    return {key: mapped[key] for key in gradients(model)}


@pytest.mark.parametrize("name", [*MODELS, "dinov3"])
def test_only_keys_that_may_be_relevant_and_are_ignored_are_listed(
    name: str, tmp_path: Path
) -> None:
    theirs = hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**DINOV3)) if name == "dinov3" else MODELS[name]()
    theirs.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # GPT-2's default end token is not in these small vocabularies.
        warnings.filterwarnings("ignore", message=".*end tokens.*")
        fourfold.load(tmp_path)
    file = tmp_path / "config.json"
    config = json_files.read_json(file) | {"attention_chunk_size": 8, "pruned_heads": {}}
    unread = "attention_chunk_size"
    if "text_config" in config:
        config["text_config"]["new_norm"] = False
        unread += ", text_config.new_norm"
    directory.write_json(file, config)
    with pytest.warns(UserWarning, match=rf"config\.json: keys that are ignored.*: {unread}$"):
        fourfold.load(tmp_path)


def test_gpt1_supports_fewer_activations(tmp_path: Path) -> None:
    """The class of transformers supports three activations, and "gelu" means the approximation."""
    shape = {"d_model": 12, "n_layers": 1, "n_heads": 2, "d_ff": 48, "vocab_size": 9, "max_len": 8}
    for activation in ("relu", "gelu_tanh", "silu"):
        config = CausalLMConfig(**shape, norm_placement="post", activation=activation)
        fourfold.save(CausalLM(config), tmp_path / activation)
        hf.AutoModelForCausalLM.from_pretrained(tmp_path / activation)
        assert fourfold.load(tmp_path / activation).config.activation == activation
    config = CausalLMConfig(**shape, norm_placement="post", activation="quick_gelu")
    with pytest.raises(InputError, match="openai-gpt does not support activation=quick_gelu"):
        transformers_format.write_model(CausalLM(config), tmp_path / "quick")


@pytest.mark.parametrize("positions", ["sinusoidal_halves", "learned"])
@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_exported_model_has_no_forced_last_token(
    positions: str, norm_placement: str, tmp_path: Path
) -> None:
    learned = positions == "learned"
    if learned and norm_placement == "pre":
        pytest.skip("transformers has no pre-norm model with learned positions")
    model = EncoderDecoder(
        EncoderDecoderConfig(
            d_model=8,
            n_heads=2,
            d_ff=16,
            n_layers=1,
            vocab_size=20,
            max_len=12,
            tie_embeddings="all",
            norm_eps=1e-5,
            positions=positions,
            embed_norm=learned,
            norm_placement=norm_placement,
            output_bias=True,
        )
    )
    transformers_format.write_model(model, tmp_path)
    hf_model = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert hf_model.generation_config.forced_eos_token_id is None
    # A forced token would replace the last of the four tokens.
    with torch.no_grad():
        hf_model.final_logits_bias[0, 7] = 1e4
        found = hf_model.generate(
            torch.tensor([[4, 5, 2]]), max_length=5, num_beams=1, do_sample=False
        )
    assert found[0, 1:].tolist() == [7] * 4


@pytest.mark.parametrize("name", MODELS)
def test_export_of_an_imported_model_restores_tensors_config_and_logits(
    name: str, tmp_path: Path
) -> None:
    model, hf_model = load_both(name, tmp_path, torch.float32)
    fourfold.save(model, tmp_path / "again")
    before, after = (directory.read_tensors(tmp_path / d) for d in ("theirs", "again"))
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert tensor.dtype == after[key].dtype
        assert torch.equal(tensor, after[key]), key
    assert json_files.read_json(tmp_path / "theirs" / "config.json") == json_files.read_json(
        tmp_path / "again" / "config.json"
    )
    again = type(hf_model).from_pretrained(tmp_path / "again").eval()
    for lengths in LENGTHS.values():
        torch.manual_seed(0)
        first = run(model, hf_model, lengths)[1]
        torch.manual_seed(0)
        # Weights are equal; the memory alignment of one-row matrices may change the rounding.
        torch.testing.assert_close(run(model, again, lengths)[1], first, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("outside", ["../secret.safetensors", "/dev/zero", "x/y"])
def test_index_that_names_a_file_outside_its_directory_is_rejected(
    outside: str, tmp_path: Path
) -> None:
    make_model("gpt2").save_pretrained(tmp_path / "theirs")
    weights = tmp_path / "theirs" / "model.safetensors"
    weights.rename(tmp_path / "secret.safetensors")
    index = weights.with_name("model.safetensors.index.json")
    index.write_text(json.dumps({"weight_map": {"a": outside}}))
    with pytest.raises(
        InputError, match=r"index.json: weight_map must name files in the directory"
    ):
        fourfold.load(tmp_path / "theirs")


@pytest.mark.parametrize(
    ("name", "key", "message"),
    [
        ("gpt2", "n_layer", "n_layers must be at most the number of tensors in the weights"),
        ("bert", "num_hidden_layers", "n_layers must be at most the number of tensors"),
        ("marian", "max_position_embeddings", "describes computed tables of"),
    ],
)
def test_count_beyond_the_weights_is_rejected_before_the_model_is_built(
    name: str, key: str, message: str, tmp_path: Path
) -> None:
    make_model(name).save_pretrained(tmp_path)
    config = json_files.read_json(tmp_path / "config.json")
    directory.write_json(tmp_path / "config.json", {**config, key: 1024 if "l" in key else 2**22})
    begin = time.process_time()
    with pytest.raises(InputError, match=rf"config\.json: .*{message}"):
        fourfold.load(tmp_path)
    assert time.process_time() - begin < 2


def test_compressed_pickle_is_rejected(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(10**6)}, tmp_path / "plain.bin")
    packed = tmp_path / "packed.bin"
    with ZipFile(tmp_path / "plain.bin") as old, ZipFile(packed, "w", ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    assert directory.read_pickle(tmp_path / "plain.bin").keys() == {"a"}
    with pytest.raises(InputError, match=r"packed.bin: corrupted: \S+ is compressed"):
        directory.read_pickle(packed)


# The first architecture of a model class that represents all settings of a model is exported, and
# the first one of a `model_type` whose tensors exist is imported.
ORDER_FOR_EXPORT = {
    "SequenceClassifier": ["bert", "roberta", "modernbert"],
    "TokenClassifier": ["bert", "roberta"],
    "SpanExtractor": ["bert", "roberta"],
    "MaskedLM": ["distilbert", "roberta", "bert", "modernbert"],
    "CausalLM": [
        *("gpt2", "openai-gpt", "llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma2"),
        "gemma3_text",
    ],
    "ViT": ["vit", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit"],
    "EncoderDecoder": ["marian", "pegasus", "bart"],
    "T5": ["t5"],
    "CLIP": ["clip"],
    "SigLIP": ["siglip"],
    "ElectraGenerator": ["electra"],
    "ElectraDiscriminator": ["electra"],
}
HEADS = ["SequenceClassifier", "TokenClassifier", "SpanExtractor", "MaskedLM"]
ORDER_FOR_IMPORT = {"bert": HEADS, "roberta": HEADS, "modernbert": [HEADS[0], HEADS[3]]}
ORDER_FOR_IMPORT["electra"] = ["ElectraGenerator", "ElectraDiscriminator"]


def test_order_of_the_architectures() -> None:
    by_class: dict[str, list[str]] = {}
    by_type: dict[str, list[str]] = {}
    modules = dict.fromkeys(path for family in families() for path in family.architectures.values())
    for architecture in [x for path in modules for x in import_module(path).ARCHITECTURES]:
        name, model_type = architecture.model_class.__name__, architecture.model_type
        by_class.setdefault(name, []).append(model_type)
        by_type.setdefault(model_type, []).append(name)
    assert by_class == ORDER_FOR_EXPORT
    assert {name: x for name, x in by_type.items() if len(x) > 1} == ORDER_FOR_IMPORT
