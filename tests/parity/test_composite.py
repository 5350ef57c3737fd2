"""Tests that BERT or ViT with GPT-2 matches (Vision)EncoderDecoderModel of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import fourfold
from fourfold.finetuning.weight_transfer import transfer
from fourfold.models import CompositeEncoderDecoder, ImageToTextConfig, TextToTextConfig
from tests.fixtures.hf_models import BERT, GPT, IMAGE


def copy_cross_attention(hf_model: Any, model: CompositeEncoderDecoder) -> None:
    """Copy cross-attention; GPT-2 of transformers stores transposed weights, keys with values."""
    state: dict[str, Tensor] = model.state_dict()
    for i, block in enumerate(hf_model.decoder.transformer.h):
        prefix = f"decoder.blocks.{i}.cross_attn"
        k, v = block.crossattention.c_attn.weight.T.chunk(2)
        k_bias, v_bias = block.crossattention.c_attn.bias.chunk(2)
        q, out = block.crossattention.q_attn, block.crossattention.c_proj
        state |= {
            f"{prefix}.q.weight": q.weight.T,
            f"{prefix}.q.bias": q.bias,
            f"{prefix}.k.weight": k,
            f"{prefix}.k.bias": k_bias,
            f"{prefix}.v.weight": v,
            f"{prefix}.v.bias": v_bias,
            f"{prefix}.out.weight": out.weight.T,
            f"{prefix}.out.bias": out.bias,
            f"{prefix}_norm.weight": block.ln_cross_attn.weight,
            f"{prefix}_norm.bias": block.ln_cross_attn.bias,
        }
    if hasattr(hf_model, "enc_to_dec_proj"):
        state |= {f"memory_map.{k}": v for k, v in hf_model.enc_to_dec_proj.state_dict().items()}
    model.load_state_dict(state)


@pytest.mark.parametrize("width", [36, 24])
@pytest.mark.parametrize("encoder_kind", ["bert", "vit"])
def test_logits_match_composite_models_of_transformers(
    encoder_kind: str, width: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    encoder_config: Any = {"bert": hf.BertConfig, "vit": hf.ViTConfig}[encoder_kind]
    shape = BERT | {"max_position_embeddings": 23} if encoder_kind == "bert" else IMAGE
    encoder = encoder_config(**{**shape, "hidden_size": width, "num_hidden_layers": 2})
    decoder = hf.GPT2Config(**GPT, n_layer=3, add_cross_attention=True, is_decoder=True)
    composite: Any = (
        hf.EncoderDecoderModel if encoder_kind == "bert" else hf.VisionEncoderDecoderModel
    )
    config_class: Any = (
        hf.EncoderDecoderConfig if encoder_kind == "bert" else hf.VisionEncoderDecoderConfig
    )
    hf_model = composite(config_class.from_encoder_decoder_configs(encoder, decoder)).eval()
    with torch.no_grad():
        for parameter in hf_model.parameters():
            parameter.normal_(std=0.3)
    # Save encoder and decoder separately, as released checkpoints are.
    encoder_model = hf_model.encoder
    if encoder_kind == "vit":
        encoder_model = hf.ViTForImageClassification(encoder)
        encoder_model.vit.load_state_dict(
            hf_model.encoder.state_dict(), strict=False
        )  # without the pooler
    encoder_model.save_pretrained(tmp_path / "encoder")
    decoder_model = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, n_layer=3))
    decoder_model.load_state_dict(hf_model.decoder.state_dict(), strict=False)
    decoder_model.save_pretrained(tmp_path / "decoder")
    parts = [fourfold.load(tmp_path / part) for part in ("encoder", "decoder")]
    config: Any = TextToTextConfig if encoder_kind == "bert" else ImageToTextConfig
    model = CompositeEncoderDecoder(config(**vars(parts[1].config), encoder=parts[0].config)).eval()
    for part, role in zip(parts, ("encoder", "decoder"), strict=True):
        transfer(model, part, role)
    copy_cross_attention(hf_model, model)

    tgt, mask = torch.randint(61, (3, 7)), None
    if encoder_kind == "bert":
        src, mask = torch.randint(61, (3, 9)), torch.arange(9) < torch.tensor([[9], [4], [6]])
        inputs = {"input_ids": src, "attention_mask": mask.long()}
    else:
        src = torch.randn(3, 3, 12, 12)
        inputs = {"pixel_values": src}
    with torch.no_grad():
        expected = hf_model(**inputs, decoder_input_ids=tgt).logits
        actual = model(src, tgt, src_mask=mask)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1
