"""The families against transformers' implementations: the same random weights, logits, gradients.

In fp64, so that "almost the same" is seen. The names are of the modules in memory and mapped here
on purpose apart from `hub`, whose own tests are of the format on disk.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fourfold.data.loading.batches import MaskedImageBatch
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    MaskedAutoencoder,
    MaskedAutoencoderConfig,
    MaskedLM,
    MaskedLMConfig,
    ViT,
    ViTConfig,
)
from fourfold.tasks import MaskedImageModeling

transformers = pytest.importorskip("transformers")

SHAPE: dict[str, Any] = {"d_model": 36, "n_layers": 3, "n_heads": 3, "d_ff": 50}
LANGUAGE: dict[str, Any] = {**SHAPE, "vocab_size": 53, "max_len": 19}
THEIR_SHAPE: dict[str, Any] = {
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
}
# Our key: theirs, and what makes theirs ours, weights and gradients alike.
Map = dict[str, tuple[str, Callable[[Tensor], Tensor]]]


def same(x: Tensor) -> Tensor:
    return x


def both(ours: str, theirs: str, change: Callable[[Tensor], Tensor] = same) -> Map:
    """Return weight and bias of a layer."""
    return {f"{ours}.{kind}": (f"{theirs}.{kind}", change) for kind in ("weight", "bias")}


def compare(ours: nn.Module, theirs: nn.Module, names: Map, run: Callable[[], Any]) -> None:
    """Copy random weights, run both models, and compare values and gradients."""
    their_parameters = dict(theirs.named_parameters())
    assert {name for name, _ in names.values()} == set(their_parameters), "not all are mapped"
    assert set(names) == set(ours.state_dict())
    with torch.no_grad():
        for parameter in their_parameters.values():
            parameter.normal_(std=0.3)
        ours.load_state_dict({key: f(their_parameters[name]) for key, (name, f) in names.items()})
    pairs = run()
    for mine, other in pairs:
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
    sum(mine.sin().sum() for mine, _ in pairs).backward()
    sum(other.sin().sum() for _, other in pairs).backward()
    for key, (name, change) in names.items():
        wanted = change(their_parameters[name].grad)
        gradient = ours.get_parameter(key).grad
        torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-8, msg=key)


def conv1d(x: Tensor) -> Tensor:
    """Return the transposed matrix, as GPT-2 stores it."""
    return x.T if x.dim() == 2 else x


def gpt2_names() -> Map:
    names: Map = {
        "embed.tokens.weight": ("transformer.wte.weight", same),
        "embed.positions.weight": ("transformer.wpe.weight", same),
        **both("stack.norm", "transformer.ln_f"),
    }
    for i in range(3):
        ours, theirs = f"stack.blocks.{i}", f"transformer.h.{i}"
        for part, letter in enumerate("qkv"):
            names |= both(
                f"{ours}.attn.{letter}",
                f"{theirs}.attn.c_attn",
                lambda x, part=part: conv1d(x).chunk(3)[part],
            )
        names |= both(f"{ours}.attn.out", f"{theirs}.attn.c_proj", conv1d)
        names |= both(f"{ours}.ff.up", f"{theirs}.mlp.c_fc", conv1d)
        names |= both(f"{ours}.ff.down", f"{theirs}.mlp.c_proj", conv1d)
        names |= both(f"{ours}.attn_norm", f"{theirs}.ln_1")
        names |= both(f"{ours}.ff_norm", f"{theirs}.ln_2")
    return names


@pytest.mark.parametrize("padding", [None, "left"])
def test_gpt2_equals_transformers(padding: str | None) -> None:
    config = transformers.GPT2Config(
        n_embd=36,
        n_layer=3,
        n_head=3,
        n_inner=50,
        vocab_size=53,
        n_positions=19,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    ours = CausalLM(CausalLMConfig(**LANGUAGE)).double().eval()
    ids, mask = torch.randint(53, (3, 7)), torch.ones(3, 7, dtype=torch.bool)
    if padding:
        mask[0, :3] = mask[2, :6] = False
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)

    def run() -> list[tuple[Tensor, Tensor]]:
        other = theirs(ids, attention_mask=mask.long(), position_ids=positions).logits
        return [(ours(ids, mask=mask if padding else None)[mask], other[mask])]

    compare(ours, theirs, gpt2_names(), run)


def bert_names(body: str, skipped_positions: int = 0) -> Map:
    names: Map = {
        "embed.tokens.weight": (f"{body}.embeddings.word_embeddings.weight", same),
        "embed.segments.weight": (f"{body}.embeddings.token_type_embeddings.weight", same),
        "embed.positions.weight": (
            f"{body}.embeddings.position_embeddings.weight",
            lambda x: x[skipped_positions:],
        ),
        **both("embed.norm", f"{body}.embeddings.LayerNorm"),
    }
    for i in range(3):
        ours, theirs = f"stack.blocks.{i}", f"{body}.encoder.layer.{i}"
        for letter, word in (("q", "query"), ("k", "key"), ("v", "value")):
            names |= both(f"{ours}.attn.{letter}", f"{theirs}.attention.self.{word}")
        names |= both(f"{ours}.attn.out", f"{theirs}.attention.output.dense")
        names |= both(f"{ours}.attn_norm", f"{theirs}.attention.output.LayerNorm")
        names |= both(f"{ours}.ff.up", f"{theirs}.intermediate.dense")
        names |= both(f"{ours}.ff.down", f"{theirs}.output.dense")
        names |= both(f"{ours}.ff_norm", f"{theirs}.output.LayerNorm")
    return names


def real(*lengths: int) -> Tensor:
    """Return a mask (B, T), True = real token, with padding on the right."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_bert_equals_transformers(activation: str) -> None:
    config = transformers.BertConfig(
        **THEIR_SHAPE,
        vocab_size=53,
        max_position_embeddings=19,
        hidden_act={"gelu_tanh": "gelu_new"}.get(activation, activation),
    )
    theirs = transformers.BertForPreTraining(config).double().eval()
    given = MaskedLMConfig(**LANGUAGE, next_sentence=True, activation=activation)
    ours = MaskedLM(given).double().eval()
    # Not 0: there, the row of padding learns nothing as an input.
    ids, mask = torch.randint(1, 53, (3, 9)), real(9, 4, 7)
    segments = (torch.arange(9) > 2).long().expand(3, -1)
    names = bert_names("bert") | {
        "head.bias": ("cls.predictions.bias", same),
        **both("head.transform", "cls.predictions.transform.dense"),
        **both("head.norm", "cls.predictions.transform.LayerNorm"),
        **both("next_sentence.pool", "bert.pooler.dense"),
        # There, class 0 says that the second sentence follows; here, 1 does.
        **both("next_sentence.classify", "cls.seq_relationship", lambda x: x.flip(0)),
    }

    def run() -> list[tuple[Tensor, Tensor]]:
        out = theirs(ids, attention_mask=mask.long(), token_type_ids=segments)
        h = ours.encode(ids, segments=segments, mask=mask)
        follows = ours.next_sentence_logits(h)
        words = out.prediction_logits
        return [
            (ours.logits(h)[mask], words[mask]),
            (follows, out.seq_relationship_logits.flip(1)),
        ]

    compare(ours, theirs, names, run)


def test_roberta_equals_transformers() -> None:
    """RoBERTa counts the positions of real tokens from 2; padding has the id 1."""
    config = transformers.RobertaConfig(
        **THEIR_SHAPE,
        vocab_size=53,
        max_position_embeddings=21,
        type_vocab_size=1,
        pad_token_id=1,
        layer_norm_eps=1e-5,
    )
    theirs = transformers.RobertaForMaskedLM(config).double().eval()
    ours = MaskedLM(MaskedLMConfig(**LANGUAGE, n_segments=1, norm_eps=1e-5)).double().eval()
    mask = real(9, 4, 7)
    ids = torch.where(mask, torch.randint(2, 53, (3, 9)), 1)
    names = bert_names("roberta", skipped_positions=2) | {
        "head.bias": ("lm_head.bias", same),
        **both("head.transform", "lm_head.dense"),
        **both("head.norm", "lm_head.layer_norm"),
    }

    def run() -> list[tuple[Tensor, Tensor]]:
        other = theirs(ids, attention_mask=mask.long()).logits
        return [(ours(ids, mask=mask)[mask], other[mask])]

    compare(ours, theirs, names, run)


def test_vit_equals_transformers() -> None:
    config = transformers.ViTConfig(
        **THEIR_SHAPE, image_size=12, patch_size=4, num_labels=5, layer_norm_eps=1e-6
    )
    theirs = transformers.ViTForImageClassification(config).double().eval()
    ours = ViT(ViTConfig(**SHAPE, image_size=12, patch_size=4, n_classes=5)).double().eval()
    names: Map = {
        "embed.prefix": ("vit.embeddings.cls_token", lambda x: x[0]),
        "embed.positions.weight": ("vit.embeddings.position_embeddings", lambda x: x[0]),
        **both("embed.patches", "vit.embeddings.patch_embeddings.projection"),
        **both("stack.norm", "vit.layernorm"),
        **both("heads.0", "classifier"),
    }
    for i in range(3):
        mine, other = f"stack.blocks.{i}", f"vit.layers.{i}"
        for letter, word in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o")):
            names |= both(f"{mine}.attn.{letter}", f"{other}.attention.{word}_proj")
        names |= both(f"{mine}.attn_norm", f"{other}.layernorm_before")
        names |= both(f"{mine}.ff_norm", f"{other}.layernorm_after")
        names |= both(f"{mine}.ff.up", f"{other}.mlp.fc1")
        names |= both(f"{mine}.ff.down", f"{other}.mlp.fc2")
    images = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    compare(ours, theirs, names, lambda: [(ours(images), theirs(images).logits)])


def test_masked_autoencoder_equals_transformers() -> None:
    """Predictions of all patches, and the loss of the masked patches, for the same noise."""
    config = transformers.ViTMAEConfig(
        **THEIR_SHAPE,
        image_size=12,
        patch_size=3,
        decoder_hidden_size=20,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=24,
        norm_pix_loss=True,
    )
    theirs = transformers.ViTMAEForPreTraining(config).double().eval()
    ours = MaskedAutoencoder(
        MaskedAutoencoderConfig(
            **SHAPE,
            norm_eps=1e-12,
            image_size=12,
            patch_size=3,
            decoder_d_model=20,
            n_decoder_layers=2,
            decoder_n_heads=2,
            decoder_d_ff=24,
        )
    )
    ours = ours.double().eval()
    # Fixed positions are buffers; transformers has them as parameters without a gradient.
    for table, module, name in (
        (ours.embed.positions, theirs.vit.embeddings, "position_embeddings"),
        (ours.decoder_positions, theirs.decoder, "decoder_pos_embed"),
    ):
        assert table is not None
        delattr(module, name)
        rows = torch.cat([torch.zeros_like(table.weight[:1]), table.weight])
        module.register_buffer(name, rows[None])
    names: Map = {
        "embed.prefix": ("vit.embeddings.cls_token", lambda x: x[0]),
        **both("embed.patches", "vit.embeddings.patch_embeddings.projection"),
        **both("stack.norm", "vit.layernorm"),
        **both("decoder_map", "decoder.decoder_embed"),
        "mask_token": ("decoder.mask_token", lambda x: x[0, 0]),
        **both("decoder_stack.norm", "decoder.decoder_norm"),
        **both("pixels", "decoder.decoder_pred"),
    }
    stacks = (("stack", "vit.layers", 3), ("decoder_stack", "decoder.decoder_layers", 2))
    for stack, layers, n_layers in stacks:
        for i in range(n_layers):
            mine, other = f"{stack}.blocks.{i}", f"{layers}.{i}"
            for letter, word in zip(("q", "k", "v", "out"), "qkvo", strict=True):
                names |= both(f"{mine}.attn.{letter}", f"{other}.attention.{word}_proj")
            names |= both(f"{mine}.attn_norm", f"{other}.layernorm_before")
            names |= both(f"{mine}.ff_norm", f"{other}.layernorm_after")
            names |= both(f"{mine}.ff.up", f"{other}.mlp.fc1")
            names |= both(f"{mine}.ff.down", f"{other}.mlp.fc2")
    images, noise = torch.randn(3, 3, 12, 12, dtype=torch.float64), torch.rand(3, 16)
    visible = noise.argsort(1)[:, :4].sort(1).values
    task = MaskedImageModeling(ours.config)
    task.model = ours

    def run() -> list[tuple[Tensor, Tensor]]:
        out = theirs(images, noise=noise)
        loss, count = task.step(MaskedImageBatch(images, visible, torch.arange(3)))
        return [(ours(images, visible=visible), out.logits), (loss / count, out.loss)]

    compare(ours, theirs, names, run)
