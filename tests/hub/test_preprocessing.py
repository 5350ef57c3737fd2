"""Images that are not square: prepared as transformers prepares them, whoever wrote the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from PIL import Image

from fourfold.core.errors import InputError
from fourfold.data.sequences import join_segments
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer
from fourfold.data.transforms import eval_transform, scaled_side
from fourfold.hub.processing import read_images, write_images, write_tokenizer
from fourfold.models import MaskedLM, MaskedLMConfig

hf = pytest.importorskip("transformers")
WIDE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))


def artifacts(**changed: Any) -> dict[str, Any]:
    return {
        "image_size": 12, "n_channels": 3, "mean": [0.5, 0.4, 0.3], "std": [0.5, 0.2, 0.3],
        "eval_crop": 1.0, "squash": False, "interpolation": "bicubic",
    } | changed  # fmt: skip


def theirs(folder: Path) -> torch.Tensor:
    """(3, S, S) of their own processor."""
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    return processor(WIDE, return_tensors="pt")["pixel_values"][0]


@pytest.mark.parametrize("is_clip", [False, True])
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.75])  # of odd borders theirs may round the other half
def test_what_is_exported_prepares_images_as_we_do(
    is_clip: bool, squash: bool, share: float, tmp_path: Path
) -> None:
    if is_clip and squash:
        pytest.skip("its own class has no such way")
    ours = artifacts(eval_crop=share, squash=squash)
    write_images(tmp_path, ours, is_clip)
    torch.testing.assert_close(eval_transform(ours)(WIDE), theirs(tmp_path), atol=1e-5, rtol=0)
    back = read_images(tmp_path, {}, 12, 3)
    assert back["squash"] is squash
    assert torch.equal(eval_transform(back)(WIDE), eval_transform(ours)(WIDE))


@pytest.mark.parametrize(
    "processor",
    [
        lambda: hf.ViTImageProcessor(size={"height": 12, "width": 12}),
        lambda: hf.ViTImageProcessor(size={"height": 12, "width": 12}, do_normalize=False),
        lambda: hf.DeiTImageProcessor(
            size={"height": 16, "width": 16}, crop_size={"height": 12, "width": 12}
        ),
        lambda: hf.CLIPImageProcessor(
            size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12}
        ),
    ],
)
def test_what_is_imported_is_prepared_as_it_was(processor: Any, tmp_path: Path) -> None:
    processor().save_pretrained(tmp_path)
    found = read_images(tmp_path, {}, 12, 3)
    torch.testing.assert_close(eval_transform(found)(WIDE), theirs(tmp_path), atol=1e-5, rtol=0)


def test_one_number_is_read_as_its_class_means_it(tmp_path: Path) -> None:
    for kind, squash in (("ViTFeatureExtractor", True), ("CLIPFeatureExtractor", False)):
        said = {"feature_extractor_type": kind, "size": 12}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
        assert read_images(tmp_path, {}, 12, 3)["squash"] is squash


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"do_rescale": False}, "do_rescale is false, but pixels must be scaled by 1/255"),
        ({"rescale_factor": 1 / 127.5}, "rescale_factor is 0.0078"),
        ({"size": {"height": 12, "width": 16}}, "size is 12x16, but must be a square"),
    ],
)
def test_other_preparations_are_refused(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    with pytest.raises(InputError, match=words):
        read_images(tmp_path, {}, 12, 3)


@pytest.mark.parametrize(("side", "scaled"), [(224, 400), (224, 354), (384, 450), (224, 256)])
def test_the_side_before_the_crop_survives_its_share(side: int, scaled: int) -> None:
    assert scaled_side(side, side / scaled) == scaled
    assert scaled_side(224, 0.9) == 248


@pytest.mark.parametrize("separators", [1, 2])
@pytest.mark.parametrize("bytes_only", [False, True])
def test_an_exported_tokenizer_puts_around_a_text_what_training_did(
    bytes_only: bool, separators: int, tmp_path: Path
) -> None:
    """Also where a processor is there that adds nothing: that of a RoBERTa of one's own."""
    tokenizer = train_tokenizer(TokenizerConfig("byte_bpe", 300), ["one two three"], mask=True)
    if bytes_only:
        tokenizer.core.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    shape: Any = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, "max_len": 20}
    model = MaskedLM(MaskedLMConfig(**shape, vocab_size=tokenizer.vocab_size, n_segments=2))
    write_tokenizer(tmp_path, tokenizer.to_str(), model, 20, separators)
    texts = ["one two", "three"]
    parts = [tokenizer.encode_corpus([text]) for text in texts]
    rows, first = join_segments(parts, tokenizer, 20, separators)
    found = hf.AutoTokenizer.from_pretrained(tmp_path)(*texts)
    assert found["input_ids"] == rows.ids.tolist()
    assert found["token_type_ids"] == [int(i >= first[0]) for i in range(len(rows.ids))]
    alone = join_segments(parts[:1], tokenizer, 20, separators)[0]
    assert hf.AutoTokenizer.from_pretrained(tmp_path)(texts[0])["input_ids"] == alone.ids.tolist()
