"""Preprocessing as in transformers after import and export; precedence of generation defaults."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from PIL import Image

from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.text.segments import join_segments
from fourfold.data.vision.eval_transforms import eval_transform, resized_side
from fourfold.errors import InputError
from fourfold.generation import GenerationDefaults
from fourfold.hub.preprocessing import (
    generation_entries,
    parse_generation_defaults,
    read_image_preprocessing,
    write_image_preprocessing,
    write_tokenizer,
)
from fourfold.json_files import read_json
from fourfold.models import MaskedLM, MaskedLMConfig
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

hf = pytest.importorskip("transformers")
WIDE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))

SIZES = SimpleNamespace(image_size=12, n_channels=3)


def artifacts(**changed: Any) -> dict[str, Any]:
    return {
        "image_size": 12,
        "n_channels": 3,
        "mean": [0.5, 0.4, 0.3],
        "std": [0.5, 0.2, 0.3],
        "crop_pct": 1.0,
        "crop_mode": "center",
        "interpolation": "bicubic",
    } | changed


def hf_pixels(folder: Path) -> torch.Tensor:
    """Preprocess the image with transformers; returns (3, S, S)."""
    processor = hf.AutoImageProcessor.from_pretrained(folder)
    return processor(WIDE, return_tensors="pt")["pixel_values"][0]


@pytest.mark.parametrize("is_clip", [False, True])
@pytest.mark.parametrize("squash", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.75])  # crops with an even margin
def test_exported_preprocessor_matches_the_evaluation_transform(
    is_clip: bool, squash: bool, share: float, tmp_path: Path
) -> None:
    if is_clip and squash:
        pytest.skip("CLIPImageProcessor always keeps the aspect ratio")
    settings = artifacts(crop_pct=share, crop_mode="squash" if squash else "center")
    write_image_preprocessing(tmp_path, settings, is_clip)
    torch.testing.assert_close(
        eval_transform(settings)(WIDE), hf_pixels(tmp_path), atol=1e-5, rtol=0
    )
    back = read_image_preprocessing(tmp_path, SIZES)
    assert back["crop_mode"] == ("squash" if squash else "center")
    assert torch.equal(eval_transform(back)(WIDE), eval_transform(settings)(WIDE))


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
        lambda: hf.BitImageProcessor(  # DINOv2
            size={"shortest_edge": 16}, crop_size={"height": 12, "width": 12}
        ),
        lambda: hf.SiglipImageProcessor(size={"height": 12, "width": 12}),
        lambda: hf.DINOv3ViTImageProcessor(size={"height": 12, "width": 12}),
    ],
)
def test_imported_preprocessor_matches_transformers(processor: Any, tmp_path: Path) -> None:
    processor().save_pretrained(tmp_path)
    found = read_image_preprocessing(tmp_path, SIZES)
    # The processor of DINOv3 does not round resized pixels to 256 levels.
    atol = 1 / 255 / min(found["std"]) if "DINOv3" in type(processor()).__name__ else 1e-5
    torch.testing.assert_close(eval_transform(found)(WIDE), hf_pixels(tmp_path), atol=atol, rtol=0)


def test_one_number_is_read_as_its_class_means_it(tmp_path: Path) -> None:
    for kind, squash in (("ViTFeatureExtractor", True), ("CLIPFeatureExtractor", False)):
        settings = {"feature_extractor_type": kind, "size": 12}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
        assert read_image_preprocessing(tmp_path, SIZES)["crop_mode"] == (
            "squash" if squash else "center"
        )


@pytest.mark.parametrize(
    ("settings", "crop_pct"),
    [
        ({}, 1.0),
        ({"size": None, "crop_size": None, "do_center_crop": None}, 1.0),  # as DINOv3 is published
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, 224 / 256),
        ({"size": 256, "crop_size": 224}, 224 / 256),
        ({"crop_size": {"height": 224, "width": 224}}, 1.0),
        ({"size": {"shortest_edge": 256}}, 1.0),
    ],
)
def test_input_has_the_size_of_the_model(
    settings: dict[str, Any], crop_pct: float, tmp_path: Path
) -> None:
    content = {"do_center_crop": True, **settings}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    sizes = SimpleNamespace(image_size=518, n_channels=3)
    found = read_image_preprocessing(tmp_path, sizes)
    assert (found["image_size"], found["crop_pct"]) == (518, crop_pct)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_rescale": False}, "do_rescale must be True"),
        ({"rescale_factor": 1 / 127.5}, r"rescale_factor must be 0\.0039\d*, got 0\.0078"),
        (
            {"size": {"height": 12, "width": 16}},
            "size must be a square or the size of",
        ),
    ],
)
def test_unsupported_preprocessing_is_rejected(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message):
        read_image_preprocessing(tmp_path, SIZES)


@pytest.mark.parametrize(("side", "scaled"), [(224, 400), (224, 354), (384, 450), (224, 256)])
def test_the_side_before_the_crop_survives_its_share(side: int, scaled: int) -> None:
    assert resized_side(side, side / scaled) == scaled
    assert resized_side(224, 0.9) == 248


@pytest.mark.parametrize("n_separators", [1, 2])
@pytest.mark.parametrize("bytes_only", [False, True])
def test_exported_tokenizer_adds_the_special_tokens_of_training(
    bytes_only: bool, n_separators: int, tmp_path: Path
) -> None:
    """A ByteLevel post-processor, as of RoBERTa, must not prevent the template from being added."""
    tokenizer = train_tokenizer(TokenizerConfig("byte_bpe", 300), ["one two three"], mask=True)
    if bytes_only:
        tokenizer.backend.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    shape: Any = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, "max_len": 20}
    model = MaskedLM(MaskedLMConfig(**shape, vocab_size=tokenizer.vocab_size, n_segments=2))
    model.tokenizer, model.artifacts = tokenizer, {"n_separators": n_separators}
    write_tokenizer(tmp_path, model)
    texts = ["one two", "three"]
    parts = [RaggedArray.from_lengths(*tokenizer.encode_corpus([text])) for text in texts]
    rows, first = join_segments(parts, tokenizer, 20, n_separators)
    found = hf.AutoTokenizer.from_pretrained(tmp_path)(*texts)
    assert found["input_ids"] == rows.ids.tolist()
    assert found["token_type_ids"] == [int(i >= first[0]) for i in range(len(rows.ids))]
    alone = join_segments(parts[:1], tokenizer, 20, n_separators)[0]
    assert hf.AutoTokenizer.from_pretrained(tmp_path)(texts[0])["input_ids"] == alone.ids.tolist()


def write_json(
    folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None
) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def read_defaults(folder: Path) -> GenerationDefaults:
    files = (folder / "generation_config.json", folder / "config.json")
    return parse_generation_defaults([read_json(file, optional=True) for file in files])


def test_generation_config_has_precedence_over_config(tmp_path: Path) -> None:
    config = {"eos_token_id": 5, "pad_token_id": 6, "num_beams": 2}
    generation = {"eos_token_id": [1, 7], "num_beams": 4, "length_penalty": 1, "max_length": 512}
    found = read_defaults(write_json(tmp_path, config, generation))
    assert found == GenerationDefaults(
        eos_id=1,
        pad_id=6,
        num_beams=4,
        length_penalty=1.0,
        length_penalty_type="power",
        stop_ids=[7],
    )
    assert isinstance(found.length_penalty, float)


def test_sampling_is_read_if_the_model_samples(tmp_path: Path) -> None:
    options = {"temperature": 0.6, "top_k": 20, "top_p": 0.9}
    generation = {"max_new_tokens": 30, **options}
    found = read_defaults(write_json(tmp_path, {}, generation))
    assert found == GenerationDefaults(max_new_tokens=30)  # do_sample is false by default
    found = read_defaults(write_json(tmp_path, {}, generation | {"do_sample": True}))
    assert found == GenerationDefaults(max_new_tokens=30, **options)
    found = read_defaults(write_json(tmp_path, {}, {"do_sample": True, "top_k": 0}))
    assert found == GenerationDefaults(temperature=1.0)


@pytest.mark.parametrize("start", [None, 3])
def test_first_token_of_the_decoder_has_precedence_over_bos(
    start: int | None, tmp_path: Path
) -> None:
    config = {"bos_token_id": 7, "decoder_start_token_id": start}
    found = read_defaults(write_json(tmp_path, config))
    assert found == GenerationDefaults(bos_id=start or 7)


def test_token_ids_of_the_text_section_are_read(tmp_path: Path) -> None:
    config = {"text_config": {"eos_token_id": 3}, "vision_config": {}}
    assert read_defaults(write_json(tmp_path, config)) == GenerationDefaults(eos_id=3)


def test_value_of_a_wrong_type_is_rejected(tmp_path: Path) -> None:
    write_json(tmp_path, {"eos_token_id": "</s>"})
    with pytest.raises(InputError, match=r"config\.json: eos_token_id must be of type int or list"):
        read_defaults(tmp_path)


def test_options_of_decoding_are_read_as_transformers_reads_them() -> None:
    old = {"no_repeat_ngram_size": 1, "min_length": 6, "num_beams": 3, "eos_token_id": 2}
    found = parse_generation_defaults([{"bos_token_id": 1}, old])
    assert (found.bos_id, found.eos_id) == (1, 2)
    assert (found.no_repeat_ngram_size, found.min_length, found.num_beams) == (None, None, None)
    found = parse_generation_defaults([{}, old])
    assert (found.no_repeat_ngram_size, found.min_length, found.num_beams) == (1, 6, 3)
    # transformers samples from 50 tokens unless top_k says otherwise.
    for given, top_k in (({}, 50), ({"top_k": None}, 50), ({"top_k": 0}, None), ({"top_k": 7}, 7)):
        assert parse_generation_defaults([{"do_sample": True, **given}, {}]).top_k == top_k
        assert parse_generation_defaults([given, {}]).top_k is None


def test_changed_options_of_decoding_are_written_and_read_again() -> None:
    known = parse_generation_defaults(
        [{"num_beams": 2, "length_penalty": 2.0, "max_new_tokens": 9, "min_length": 3}, {}]
    )
    assert generation_entries(known, known) == {}
    for changes in (
        {"num_beams": 5, "length_penalty": 1.0, "max_new_tokens": 4},
        {"length_penalty": 0.5},
        {"temperature": 0.7},
        {"temperature": 0.7, "top_k": 30},
    ):
        wanted = replace(known, **changes)
        entries = generation_entries(wanted, known)
        stored = {"num_beams": 2, "length_penalty": 2.0, "max_new_tokens": 9, "min_length": 3}
        assert parse_generation_defaults([stored | entries, {}]) == wanted
