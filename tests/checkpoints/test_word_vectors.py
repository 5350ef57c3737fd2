"""`init_from` a text file of word vectors: formats, tokens, widths, coverage, resume."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.checkpoints.init_from import initialize_from
from fourfold.checkpoints.word_vectors import read_vectors
from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    ViT,
    ViTConfig,
)
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
from fourfold.training.finetuning import apply_finetuning

SHAPE: dict[str, Any] = {"d_model": 4, "n_layers": 1, "n_heads": 2, "d_ff": 8, "max_len": 16}
TEXTS = ["The the the thing of of sing sing\n"] * 50


def write(folder: Path, lines: list[str], header: bool = False, end: str = "\n") -> str:
    width = len(lines[0].split(" ")) - 1
    first = [f"{len(lines)} {width}"] if header else []
    (folder / "vectors.txt").write_bytes("".join(line + end for line in first + lines).encode())
    return str(folder / "vectors.txt")


def causal(tokenizer: Any, **changes: Any) -> CausalLM:
    config = CausalLMConfig(**SHAPE, vocab_size=tokenizer.vocab_size)
    return CausalLM(replace(config, **changes))


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
def test_vectors_are_read_with_and_without_a_first_line(
    header: bool, end: str, tmp_path: Path
) -> None:
    path = write(tmp_path, ["the 1 -2.5", "of 1e-2 4", "unused 5 6"], header, end)
    found = read_vectors(path, {b"the", b"of", b"5"}, 2)
    assert {token: vector.tolist() for token, vector in found.items()} == {
        b"the": [1.0, -2.5],
        b"of": [np.float32(1e-2), 4.0],
    }


def test_tokens_may_contain_any_white_space(tmp_path: Path) -> None:
    """GloVe 840B has the token ". . ." and tokens with U+00A0, U+0085 and U+2028."""
    tokens = ["x", ". . .", "a\u00a0b", "a\u0085b", "a\u2028b", "7 8"]
    lines = [f"{token} {i} {-i}" for i, token in enumerate(tokens)]
    wanted = {token.encode() for token in tokens}
    found = read_vectors(write(tmp_path, lines), wanted, 2)
    assert found.keys() == wanted
    assert [found[token.encode()].tolist() for token in tokens] == [[i, -i] for i in range(6)]


def test_first_of_equal_tokens_is_used_and_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "v.vec.gz"
    path.write_bytes(gzip.compress(b"a 1 2\nb 3 4\na 5 6\n"))
    found = read_vectors(str(path), {b"a"}, 2)
    assert found[b"a"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2 3\nb 1 2 3\n", ":1: the vectors must have 2 numbers, the d_model .* got 3"),
        ("a 1 2\nb 1\n", ":2: the vectors must have 2 numbers, the d_model .* got 1"),
        ("2 5\na 1 2\n", ":1: the vectors must have 2 numbers, the d_model .* got 5"),
        ("1 2\na 1 x\n", ":2: the line must end with numbers"),
        ("a 1 nan\n", ":1: the vector must be finite"),
        ("3 2\na 1 2\n", ":1: the file has 1 vectors, but its first line gives 3"),
    ],
)
def test_invalid_files_are_rejected_with_the_line(
    content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(InputError, match=f"v.txt{message}"):
        read_vectors(str(tmp_path / "v.txt"), {b"a", b"b"}, 2)


def test_rows_of_a_model_are_found_by_token_by_text_and_in_lower_case(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=60), TEXTS, mask=False)
    ids = tokenizer.vocabulary
    assert {"▁the", "▁The", "▁of", "ing"} <= ids.keys()
    lines = ["the 1 2 3 4", "▁of 5 6 7 8", "of 0 0 0 1", "ing 9 9 9 8", "<pad> 7 7 7 7"]
    path = write(tmp_path, lines)
    model = causal(tokenizer)
    table = model.embed.tokens.weight
    padding = table[tokenizer.pad_id].clone()
    said = initialize_from(model, path, tokenizer.to_str(), "bicubic")
    rows = {token: [1, 2, 3, 4] for token in ("▁the", "▁The", "The")}
    rows |= {"▁of": [5, 6, 7, 8], "of": [0, 0, 0, 1], "ing": [9, 9, 9, 8]}
    for token, row in rows.items():
        assert table[ids[token]].tolist() == row, token
    assert torch.equal(table[tokenizer.pad_id], padding)
    assert "\n" not in said
    share = f"6 of {tokenizer.vocab_size} tokens ({6 / tokenizer.vocab_size:.1%})"
    assert f"vectors for {share}" in said
    std = np.std([*rows.values()])
    assert f"other rows with standard deviation {std:.3g}" in said
    others = table[[i for token, i in ids.items() if token not in rows and i != tokenizer.pad_id]]
    assert others.std().item() == pytest.approx(std, rel=0.3)


@pytest.mark.parametrize("kind", ["wordpiece", "byte_bpe"])
def test_word_boundary_markers_of_other_tokenizers(kind: Any, tmp_path: Path) -> None:
    config = TokenizerConfig(kind, 300, lowercase=kind == "wordpiece")
    tokenizer = train_tokenizer(config, TEXTS, mask=False)
    own, piece = {"wordpiece": ("the", "##g"), "byte_bpe": ("Ġthe", "Ġof")}[kind]
    path = write(tmp_path, ["the 1 2 3 4", f"{piece} 5 6 7 8"])
    model = causal(tokenizer)
    initialize_from(model, path, tokenizer.to_str(), "bicubic")
    table, ids = model.embed.tokens.weight, tokenizer.vocabulary
    assert table[ids[own]].tolist() == [1, 2, 3, 4]
    assert table[ids[piece]].tolist() == [5, 6, 7, 8]


def test_scaled_embeddings_return_the_vectors_of_the_file(tmp_path: Path) -> None:
    """Vaswani et al. 2017 multiply token vectors by sqrt(d_model)."""
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=60), TEXTS, mask=False)
    sizes = {**SHAPE, "d_model": 16}
    config = EncoderDecoderConfig(
        **sizes, vocab_size=tokenizer.vocab_size, tie_embeddings="decoder", dropout=0.0
    )
    model = EncoderDecoder(replace(config, embed_norm=False))
    path = write(tmp_path, ["the " + " ".join(map(str, range(16)))])
    before = model.tgt_embed.tokens.weight.clone()
    initialize_from(model, {"encoder": path}, tokenizer.to_str(), "bicubic")
    embed = model.src_embed
    x = embed(torch.tensor([[tokenizer.vocabulary["▁the"]]]), slice(0, 1))
    torch.testing.assert_close(x[0, 0] - embed.positions.weight[0], torch.arange(16.0))
    assert torch.equal(model.tgt_embed.tokens.weight, before)
    said = initialize_from(model, path, tokenizer.to_str(), "bicubic")
    assert said.endswith("in src_embed.tokens.weight and tgt_embed.tokens.weight")
    shared = EncoderDecoder(replace(config, tie_embeddings="all"))
    with pytest.raises(InputError, match="has no token embedding in tgt_embed"):
        initialize_from(shared, {"decoder": path}, tokenizer.to_str(), "bicubic")
    assert torch.equal(
        *(e.tokens.weight[tokenizer.vocabulary["▁the"]] for e in (embed, model.tgt_embed))
    )


def test_models_and_files_without_common_tokens_are_rejected(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(vocab_size=60), TEXTS, mask=False)
    text, path = tokenizer.to_str(), write(tmp_path, ["other 1 2 3 4"])
    with pytest.raises(InputError, match=r"vectors\.txt: the file has no token of the vocabulary"):
        initialize_from(causal(tokenizer), path, text, "bicubic")
    with pytest.raises(InputError, match="init_from must be a model, since the data have no tok"):
        initialize_from(causal(tokenizer), path, None, "bicubic")
    images = ViT(ViTConfig(d_model=4, n_layers=1, n_heads=2, d_ff=4, image_size=16, n_classes=2))
    with pytest.raises(InputError, match=r"since the ViT has no token embedding$"):
        initialize_from(images, path, text, "bicubic")
    with pytest.raises(InputError, match=r"none\.txt: there is no such file"):
        initialize_from(causal(tokenizer), str(tmp_path / "none.txt"), text, "bicubic")
    with pytest.raises(InputError, match="must not be tokens: a ViT has no token embedding"):
        apply_finetuning(images, TuningConfig(freeze="tokens"))


def test_token_embeddings_alone_can_be_frozen() -> None:
    model = causal(train_tokenizer(TokenizerConfig(kind="char"), ["ab"], mask=False))
    apply_finetuning(model, TuningConfig(freeze="tokens"))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {"embed.tokens.weight"}
