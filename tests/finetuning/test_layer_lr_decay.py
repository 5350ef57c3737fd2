"""Layer index of parameters by their names."""

from fourfold.finetuning.layer_lr_decay import layer_ids
from fourfold.models import (
    CLIP,
    CausalLM,
    CausalLMConfig,
    CLIPConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    ResNet,
    ResNetConfig,
)

TINY = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 12}


def test_layer_ids_of_every_family() -> None:
    model = CausalLM(
        CausalLMConfig(**{**TINY, "n_layers": 3}, vocab_size=20, max_len=6, tie_embeddings=False)
    )
    found, top = layer_ids(model)
    assert top == 4
    assert found["embed.tokens.weight"] == found["embed.positions.weight"] == 0
    assert [found[f"stack.blocks.{i}.ff.up.bias"] for i in range(3)] == [1, 2, 3]
    assert found["stack.norm.weight"] == 3
    assert found["head.own.weight"] == 4
    pair, _ = layer_ids(
        EncoderDecoder(EncoderDecoderConfig(**TINY, n_decoder_layers=2, vocab_size=9))
    )
    assert pair["src_embed.tokens.weight"] == 0
    towers, _ = layer_ids(
        CLIP(
            CLIPConfig(
                **TINY,
                vocab_size=9,
                image_n_layers=1,
                image_d_model=8,
                image_n_heads=2,
                image_d_ff=8,
                image_size=32,
            )
        )
    )
    assert {towers[f"{t}_embed.positions.weight"] for t in ("text", "image")} == {0}
    assert (towers["image_norm.weight"], towers["image_stack.norm.bias"]) == (0, 1)
    assert towers["text_projection.weight"] == towers["log_scale"] == 2
    assert (pair["encoder.blocks.0.attn.q.weight"], pair["decoder.blocks.1.attn.q.bias"]) == (1, 2)
    stages, top = layer_ids(ResNet(ResNetConfig(image_size=32, n_classes=2)))
    assert top == 5
    assert stages["net.conv1.weight"] == stages["net.bn1.bias"] == 0
    assert [stages[f"net.layer{i}.0.conv1.weight"] for i in range(1, 5)] == [1, 2, 3, 4]
    assert {name for name, depth in stages.items() if depth == top} == {
        "net.fc.weight",
        "net.fc.bias",
    }
