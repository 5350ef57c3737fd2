"""Exports after a conversion to CTranslate2: the same tokens and hidden states in fp32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer as Backend
from tokenizers import models

import fourfold
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLM,
    MaskedLMConfig,
)
from fourfold.tokenization.tokenizer import Tokenizer

ctranslate2 = pytest.importorskip("ctranslate2")

SIZES: Any = {"d_model": 32, "n_heads": 4, "d_ff": 48, "n_layers": 2, "vocab_size": 61}
LLAMA: Any = {"activation": "silu", "feed_forward": "glu", "norm": "rms", "bias": False}
LLAMA |= {"positions": "none", "rope_theta": 10_000.0, "n_kv_heads": 2}
PROMPTS = [[5, 6, 7], [20, 30], [40, 50, 25, 17, 9]]


def tokenizer(names: list[str]) -> Tokenizer:
    words = [f"w{i}" for i in range(len(names), 61)]
    ids = {name: i for i, name in enumerate([*names, *words])}
    backend = Backend(models.WordLevel(ids, unk_token=names[3]))
    backend.add_special_tokens(names)
    return Tokenizer(backend)


def prepare(model: Any, path: Path, names: list[str]) -> tuple[Any, list[str], str]:
    """Randomize and export a model and convert it; return the model, its tokens and the folder."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    model.eval().tokenizer = tokenizer(names)
    fourfold.save(model, path / "hf")
    return model, convert(path), str(path / "ct2")


def convert(path: Path) -> list[str]:
    ctranslate2.converters.TransformersConverter(str(path / "hf")).convert(str(path / "ct2"))
    found = hf.AutoTokenizer.from_pretrained(path / "hf")
    return found.convert_ids_to_tokens(range(61))


def decode(model: Any, ids: list[int], beams: int, alpha: float = 1.0) -> list[int]:
    source = torch.tensor([ids])
    if beams == 1:
        found = fourfold.generate(model, source, 12)
    else:
        penalty = {"length_penalty": alpha, "length_penalty_type": "power"}
        found = fourfold.beam_search(model, source, beams, **penalty, max_new_tokens=12)[0]
    return [x for x in found[0].tolist() if x not in (0, 1, 2, 60)]


@pytest.mark.parametrize("options", [{}, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_of_causal_lms_are_equal(options: Any, beams: int, tmp_path: Path) -> None:
    model = CausalLM(CausalLMConfig(**SIZES, max_len=40, tie_embeddings=False, **options))
    model, tokens, folder = prepare(model, tmp_path, ["<pad>", "<s>", "</s>", "<unk>"])
    generator = ctranslate2.Generator(folder, compute_type="float32")
    seen = set[int]()
    for ids in PROMPTS:
        prompt = [tokens[i] for i in ids]
        # With a penalty, an unfinished text of maximum length may win in CTranslate2 only.
        limits = {"max_length": 12, "beam_size": beams, "length_penalty": 0.0}
        found = generator.generate_batch([prompt], **limits, include_prompt_in_result=False)[0]
        wanted = decode(model, ids, beams, alpha=0.0)[len(ids) :]
        assert [x for x in found.sequences_ids[0] if x not in (0, 1, 2, 60)] == wanted
        seen |= {*wanted}
    assert len(seen) > 8


@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_of_a_trained_translator_are_equal(beams: int, tmp_path: Path) -> None:
    """With `norm_placement: pre`, after the first token of the target is corrected."""
    config = EncoderDecoderConfig(**SIZES, n_decoder_layers=2, max_len=40, norm_placement="pre")
    model, tokens, folder = prepare(
        EncoderDecoder(config), tmp_path, ["<pad>", "<s>", "</s>", "<unk>"]
    )
    file = Path(folder, "config.json")
    settings = json.loads(file.read_text())
    assert settings["decoder_start_token"] == "<pad>"
    file.write_text(json.dumps({**settings, "decoder_start_token": "<s>"}))
    check_translations(model, tokens, folder, beams)


def check_translations(model: Any, tokens: list[str], folder: str, beams: int) -> None:
    translator = ctranslate2.Translator(folder, compute_type="float32")
    limits = {"beam_size": beams, "max_decoding_length": 12}
    for ids in PROMPTS:
        source = [*ids, model.generation_defaults.eos_id] if model.generation_defaults else ids
        found = translator.translate_batch([[tokens[i] for i in source]], **limits)[0]
        written = [tokens[i] for i in decode(model, source, beams)]
        assert [x for x in found.hypotheses[0] if not x.startswith("<")] == written


@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_of_an_imported_marian_are_equal(beams: int, tmp_path: Path) -> None:
    sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 61}
    sizes |= {f"{side}_ffn_dim": 48 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_attention_heads": 4 for side in ("encoder", "decoder")}
    ids = {"pad_token_id": 60, "eos_token_id": 0, "decoder_start_token_id": 60}
    torch.manual_seed(0)
    config = hf.MarianConfig(**sizes, **ids, decoder_vocab_size=61, forced_eos_token_id=None)
    reference = hf.MarianMTModel(config)
    for name, parameter in reference.named_parameters():
        if "embed_positions" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        reference.model.shared.weight[60] = 0
        reference.final_logits_bias[0, 60] = -1e9  # padding is never generated
    reference.save_pretrained(tmp_path / "theirs")
    words = {f"w{i}": i for i in range(2, 60)}
    vocabulary = {"</s>": 0, "<unk>": 1, **words, "<pad>": 60}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.add_special_tokens(["</s>", "<unk>", "<pad>"])
    backend.save(str(tmp_path / "theirs/tokenizer.json"))
    model = fourfold.load(tmp_path / "theirs")
    fourfold.save(model, tmp_path / "hf")
    check_translations(model, convert(tmp_path), str(tmp_path / "ct2"), beams)


def test_hidden_states_of_bert_are_equal(tmp_path: Path) -> None:
    model = MaskedLM(MaskedLMConfig(**SIZES, max_len=40))
    names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    model, tokens, folder = prepare(model, tmp_path, names)
    encoder = ctranslate2.Encoder(folder, compute_type="float32")
    for ids in PROMPTS:
        found = np.array(encoder.forward_batch([[tokens[i] for i in ids]]).last_hidden_state)
        with torch.no_grad():
            wanted = model.encode(torch.tensor([ids]))
        torch.testing.assert_close(torch.tensor(found), wanted, rtol=1e-4, atol=1e-4)
