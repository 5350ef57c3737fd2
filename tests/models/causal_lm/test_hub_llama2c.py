"""Tests of llama2.c's files, which are made from Llama of transformers, and of a published one."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import fourfold
from fourfold.cli import main
from fourfold.errors import InputError
from fourfold.tokenization.sentencepiece_files import load_llama2c

SIZES = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "vocab_size": 263}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
PIECES = ["a", "b", " ", "ab"]
# The end of the text that doc/stories260K.md of llama2.c prints (256 tokens, greedy).
PUBLISHED = (
    "so she said, \"I'm sorry, mom. I didn't know what to do.\" Her mom said, \"Don't worry,"
    " Lily. We can help you."
)


def llama(tied: bool) -> Any:
    torch.manual_seed(0)
    config = hf.LlamaConfig(**SIZES, **HEADS, rms_norm_eps=1e-5, tie_word_embeddings=tied)
    return hf.LlamaForCausalLM(config).eval()


def interleaved(matrix: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Permute rows from the layout of transformers to that of llama2.c, as its export.py does."""
    rows, columns = matrix.shape
    return matrix.view(n_heads, 2, rows // n_heads // 2, columns).transpose(1, 2).reshape(rows, -1)


def write(path: Path, model: Any) -> Path:
    """Write a model as `legacy_export` of llama2.c does, with its tokenizer."""
    layers, tied = model.model.layers, model.config.tie_word_embeddings
    parts = [
        model.model.embed_tokens.weight,
        *(x.input_layernorm.weight for x in layers),
        *(interleaved(x.self_attn.q_proj.weight, 4) for x in layers),
        *(interleaved(x.self_attn.k_proj.weight, 2) for x in layers),
        *(x.self_attn.v_proj.weight for x in layers),
        *(x.self_attn.o_proj.weight for x in layers),
        *(x.post_attention_layernorm.weight for x in layers),
        *(x.mlp.gate_proj.weight for x in layers),
        *(x.mlp.down_proj.weight for x in layers),
        *(x.mlp.up_proj.weight for x in layers),
        model.model.norm.weight,
        torch.zeros(2, 16, 3),
        *([] if tied else [model.lm_head.weight]),
    ]
    header = struct.pack("<7i", 24, 20, 2, 4, 2, 263 if tied else -263, 16)
    numbers = torch.cat([x.detach().flatten() for x in parts])
    (path / "m.bin").write_bytes(header + numbers.numpy().tobytes())
    (path / "tok263.bin").write_bytes(tokenizer_content())
    return path / "m.bin"


def tokenizer_content() -> bytes:
    names = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{i:02X}>" for i in range(256)), *PIECES]
    scores = [0.0] * 259 + [-3.0, -2.0, -1.0, -0.0]
    items = zip(names, scores, strict=True)
    return struct.pack("<i", 6) + b"".join(
        struct.pack("<fi", score, len(x.encode())) + x.encode() for x, score in items
    )


@pytest.mark.parametrize("tied", [True, False])
def test_logits_match_and_export_is_a_llama(tied: bool, tmp_path: Path) -> None:
    reference = llama(tied)
    file = write(tmp_path, reference)
    assert main(["import", str(file), str(tmp_path / "x.ckpt")]) == 0
    assert main(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "there")]) == 0
    back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
    x = torch.randint(0, 263, (3, 11))
    for model in (fourfold.load(file), fourfold.load(tmp_path / "x.ckpt")):
        assert model.format_name in ("llama2.c", "")
        assert (model.generation_defaults.eos_id, model.generation_defaults.bos_id) == (1, 1)
        ids = model.tokenizer.encode("ab\u00e9 b")  # a space first, then pairs and single bytes
        assert ids == [261, 262, 3 + 0xC3, 3 + 0xA9, 261, 260]
        assert model.tokenizer.decode(ids) == "ab\u00e9 b"
        assert model.tokenizer.prepended_id == 1
        with torch.no_grad():
            expected = reference(x).logits
            torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(back(x).logits, expected, rtol=1e-5, atol=1e-5)
    assert back.generation_config.eos_token_id == 1


def sized(width: int, n_heads: int, n_kv_heads: int) -> bytes:
    """Return a file of zeros with one layer, whose length suits the sizes."""
    d_head = width // n_heads
    heads = (2 * n_heads + 2 * n_kv_heads) * d_head * width
    n = 7 * width + 3 * width + heads + 3 * 20 * width + 2 * 16 * (d_head // 2)
    return struct.pack("<7i", width, 20, 1, n_heads, n_kv_heads, 7, 16) + bytes(4 * n)


def test_damaged_model_is_rejected(tmp_path: Path, capsys: Any) -> None:
    """Every bit of the sizes, and every length, is checked; a number of a weight may be any."""
    file = write(tmp_path, llama(True))
    content = file.read_bytes()
    flipped = (
        content[: bit // 8] + bytes([content[bit // 8] ^ (1 << bit % 8)]) + content[bit // 8 + 1 :]
        for bit in range(7 * 32)
    )
    cut = (content[:n] for n in (0, 1, 3, 4, 27, 28, 29, 31, 32, 60, 1000, len(content) - 4))
    # Sizes that suit the length: an odd head width, heads that are no multiple.
    shapes = [(10, 2, 2), (24, 5, 5), (24, 4, 3)]
    odd = (sized(*shape) for shape in shapes)
    for changed in (*flipped, *cut, *odd, content + b"\0" * 4):
        file.write_bytes(changed)
        with pytest.raises(InputError, match=r"m\.bin"):
            fourfold.load(file)
    assert main(["import", str(file), str(tmp_path / "x.ckpt")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def load_changed(file: Path, content: bytes) -> str:
    """Return the message of the error of a changed tokenizer; its name if there is no error."""
    file.write_bytes(content)
    try:  # a changed score or character is valid, and the file may end after any token
        load_llama2c(str(file)).encode("abab")
    except InputError as error:
        return str(error)
    return str(file)


def test_damaged_tokenizer_is_rejected_or_read(tmp_path: Path) -> None:
    file, content = tmp_path / "tok263.bin", tokenizer_content()
    for bit in (*range(32, 800, 3), *range(31000, len(content) * 8, 3)):
        flipped = bytes([content[bit // 8] ^ (1 << bit % 8)])
        changed = content[: bit // 8] + flipped + content[bit // 8 + 1 :]
        assert load_changed(file, changed).startswith(str(file))
    for n in range(0, len(content) - 1, 37):
        assert load_changed(file, content[:n]).startswith(str(file))
    assert "ends in token 262" in load_changed(file, content[:-1])
    long = struct.pack("<fi", -9.0, 100_000) + b"a" * 100_000
    assert "at most 1,000 characters" in load_changed(file, content + long)


def test_tokenizer_of_another_model_is_rejected(tmp_path: Path) -> None:
    file = write(tmp_path, llama(True))
    content = (tmp_path / "tok263.bin").read_bytes()
    (tmp_path / "tok263.bin").unlink()
    assert fourfold.load(file).tokenizer is None
    (tmp_path / "tokenizer.bin").write_bytes(content + struct.pack("<fi", -9.0, 1) + b"c")
    with pytest.raises(InputError, match="has 264 tokens, but the model needs 263"):
        fourfold.load(file)


def test_published_text_is_generated(data_dir: Path) -> None:
    file = data_dir / "weights/stories260K/stories260K.bin"
    if not file.exists():
        pytest.skip("needs stories260K.bin")
    model = fourfold.load(file)
    text = model.tokenizer.decode(fourfold.generate(model, torch.tensor([[1]]), 256)[0].tolist())
    assert text.startswith("Once upon a time, there was a little girl named Lily. She loved to")
    assert text.endswith(PUBLISHED)
    for line in text.split("\n"):  # what was generated is what the text itself is encoded to
        assert model.tokenizer.decode(model.tokenizer.encode(line)) == line
