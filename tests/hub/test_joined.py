"""BERT with GPT-2, and ViT with GPT-2, against transformers' own joined models."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import fourfold
from fourfold.models import CaptionerConfig, Joined, JoinedConfig
from fourfold.models.transfer import transfer
from tests.hub.foreign_models import BERT, GPT, IMAGE


def crossing(theirs: Any, ours: Joined) -> None:
    """What joins their parts, by hand: their GPT-2 keeps its matrices turned, keys with values."""
    state: dict[str, Tensor] = ours.state_dict()
    for i, block in enumerate(theirs.decoder.transformer.h):
        own = f"decoder.blocks.{i}.cross_attn"
        k, v = block.crossattention.c_attn.weight.T.chunk(2)
        k_bias, v_bias = block.crossattention.c_attn.bias.chunk(2)
        q, out = block.crossattention.q_attn, block.crossattention.c_proj
        state |= {
            f"{own}.q.weight": q.weight.T, f"{own}.q.bias": q.bias, f"{own}.k.weight": k,
            f"{own}.k.bias": k_bias, f"{own}.v.weight": v, f"{own}.v.bias": v_bias,
            f"{own}.out.weight": out.weight.T, f"{own}.out.bias": out.bias,
            f"{own}_norm.weight": block.ln_cross_attn.weight,
            f"{own}_norm.bias": block.ln_cross_attn.bias,
        }  # fmt: skip
    if hasattr(theirs, "enc_to_dec_proj"):
        state |= {f"memory_map.{k}": v for k, v in theirs.enc_to_dec_proj.state_dict().items()}
    ours.load_state_dict(state)


@pytest.mark.parametrize("width", [36, 24])
@pytest.mark.parametrize("kind", ["bert", "vit"])
def test_their_joined_models_are_ours(kind: str, width: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    reader: Any = {"bert": hf.BertConfig, "vit": hf.ViTConfig}[kind]
    shape = BERT | {"max_position_embeddings": 23} if kind == "bert" else IMAGE
    encoder = reader(**{**shape, "hidden_size": width, "num_hidden_layers": 2})
    decoder = hf.GPT2Config(**GPT, n_layer=3, add_cross_attention=True, is_decoder=True)
    joined: Any = hf.EncoderDecoderModel if kind == "bert" else hf.VisionEncoderDecoderModel
    both: Any = hf.EncoderDecoderConfig if kind == "bert" else hf.VisionEncoderDecoderConfig
    theirs = joined(both.from_encoder_decoder_configs(encoder, decoder)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    # Its halves as somebody would find them; a GPT-2 alone has nothing that crosses.
    whole = theirs.encoder
    if kind == "vit":
        whole = hf.ViTForImageClassification(encoder)
        whole.vit.load_state_dict(theirs.encoder.state_dict(), strict=False)  # but for a pooler
    whole.save_pretrained(tmp_path / "encoder")
    alone = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, n_layer=3))
    alone.load_state_dict(theirs.decoder.state_dict(), strict=False)
    alone.save_pretrained(tmp_path / "decoder")
    halves = [fourfold.load(tmp_path / part) for part in ("encoder", "decoder")]
    config: Any = JoinedConfig if kind == "bert" else CaptionerConfig
    ours = Joined(config(**vars(halves[1].config), encoder=halves[0].config)).eval()
    for half, role in zip(halves, ("encoder", "decoder"), strict=True):
        transfer(ours, half, role)
    crossing(theirs, ours)

    tgt, mask = torch.randint(61, (3, 7)), None
    if kind == "bert":
        src, mask = torch.randint(61, (3, 9)), torch.arange(9) < torch.tensor([[9], [4], [6]])
        given = {"input_ids": src, "attention_mask": mask.long()}
    else:
        src = torch.randn(3, 3, 12, 12)
        given = {"pixel_values": src}
    with torch.no_grad():
        expected = theirs(**given, decoder_input_ids=tgt).logits
        found = ours(src, tgt, mask)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1
