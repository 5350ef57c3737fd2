"""Tests of Llama, Mistral, Qwen2, Qwen3, OLMo 2 and Gemma beyond the tests of all models."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, pre_tokenizers, processors

import fourfold
from fourfold.cli import main
from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.hub import directory
from fourfold.json_files import read_json
from fourfold.models import CausalLM, CausalLMConfig
from tests.fixtures.hf_models import LLAMA, make_model, random_ids

NAMES = ("llama-yarn", "mistral", "qwen2-windows", "qwen3", "olmo2", "gemma2", "gemma3")
MODERN = CausalLMConfig(
    d_model=36,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    d_head=10,
    d_ff=50,
    activation="silu",
    feed_forward="glu",
    norm="rms",
    bias=False,
    rope_theta=700.0,
    vocab_size=61,
    max_len=23,
    positions="none",
    tie_embeddings=False,
)
GEMMA = {
    "activation": "gelu_tanh",
    "norm_placement": "sandwich",
    "qk_norm": "head",
    "window": 4,
    "window_pattern": "SSL",
    "rope_local_theta": 90.0,
    "embed_scale": 6.0,
    "attn_scale": 0.25,
    "tie_embeddings": True,
}
GEMMA2 = GEMMA | {"qk_norm": "none", "window_pattern": "SL", "rope_local_theta": None}
GEMMA2 |= {"score_cap": 2.0, "logit_cap": 3.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 9}
LONGROPE = {"type": "longrope", "long_factor": [1.0] * 5, "short_factor": [1.0] * 5}  # Phi-3
NATIVE: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "MistralForCausalLM": {"window": 4},
    "Qwen2ForCausalLM": {"qkv_bias": True, "window": 4, "window_pattern": "LSS"},
    "Qwen3ForCausalLM": {"qk_norm": "head", "qkv_bias": True, "out_bias": True},
    "Olmo2ForCausalLM": {"qk_norm": "all", "norm_placement": "inside"},
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA,
}


def edit(path: Path, *, remove: tuple[str, ...] = (), **entries: Any) -> None:
    """Change the entries of config.json."""
    config = read_json(path / "config.json") | entries
    kept = {key: value for key, value in config.items() if key not in remove}
    directory.write_json(path / "config.json", kept)


@pytest.mark.parametrize("name", NATIVE)
def test_native_model_is_exported_to_the_class_that_has_its_settings(
    name: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = CausalLM(replace(MODERN, **NATIVE[name])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    fourfold.save(model, tmp_path / "ours")
    theirs, report = hf.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert type(theirs).__name__ == name
    assert not any(report.values())
    ids = random_ids(2, 23)
    torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)
    theirs.save_pretrained(tmp_path / "again")
    ours, again = (directory.read_tensors(tmp_path / name) for name in ("ours", "again"))
    assert {k: x.shape for k, x in ours.items()} == {k: x.shape for k, x in again.items()}
    assert all(torch.equal(ours[key], again[key]) for key in ours)
    imported = fourfold.load(tmp_path / "ours")
    assert type(imported) is CausalLM
    torch.testing.assert_close(imported(ids), model(ids), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["llama-yarn", "llama-linear", "gemma3"])
def test_rotary_positions_are_read_and_written_under_old_and_new_names(
    name: str, tmp_path: Path
) -> None:
    theirs = make_model(name)
    theirs.save_pretrained(tmp_path / "new")
    config = fourfold.load(tmp_path / "new").config
    parameters = theirs.config.rope_parameters
    full = dict(parameters.get("full_attention", parameters))
    old: dict[str, Any] = {"rope_theta": full.pop("rope_theta")}
    if name == "gemma3":
        old |= {"rope_local_base_freq": parameters["sliding_attention"]["rope_theta"]}
        old |= {"sliding_window_pattern": 6}
    kind = full.pop("rope_type")
    edit(
        tmp_path / "new",
        remove=("rope_parameters", "layer_types"),
        rope_scaling={"type": kind, **full},
        **old,
    )
    model = fourfold.load(tmp_path / "new")
    assert model.config == config
    model.source = None
    fourfold.save(model, tmp_path / "both")
    ids = random_ids(2, 23)
    for removed in (("rope_parameters", "layer_types"), ("rope_theta", "rope_scaling")):
        again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "both")
        torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)
        edit(tmp_path / "both", remove=removed)
        if removed[0] == "rope_parameters":  # version 4 of transformers knows the old names only
            assert fourfold.load(tmp_path / "both").config == config
            fourfold.save(model, tmp_path / "both")
    assert fourfold.load(tmp_path / "both").config == config


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "rope_type must be default, linear"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "got dynamic; nearest"),
        ("llama", {"rope_scaling": LONGROPE}, "rope_type must be default, .*longrope; nearest"),
        ("llama", {"rope_scaling": {**YARN, "mscale": "1"}}, "mscale must be of type"),
        (
            "llama",
            {"rope_scaling": {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 2.0}},
            "factor",
        ),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ("qwen3", {"layer_types": ["linear_attention"] * 2}, "layer_types must name one of"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be null"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention must be"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be above 0"),
        ("llama", {"rope_parameters": 7}, "rope_parameters must be of type"),
        ("llama", {"num_key_value_heads": 3}, "n_kv_heads must divide n_heads"),
    ],
)
def test_option_that_is_not_supported_is_named(
    name: str, entries: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_model(name).save_pretrained(tmp_path)
    edit(tmp_path, **entries)
    with pytest.raises(InputError, match=rf"(config\.json: |: weights ).*{message}"):
        fourfold.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "section", "entries", "unread"),
    [
        ("llama", "rope_parameters", {"factor": 2.0}, "factor"),
        ("llama-linear", "rope_parameters", {"attention_factor": 2.0}, "attention_factor"),
        ("llama-yarn", "rope_parameters", {"finetuned": True, "mscale": 0.7}, "finetuned"),
        ("qwen3", "rope_scaling", {"type": "linear", "factor": 2.0, "new": 1}, "new"),
        ("gemma3", "rope_parameters.full_attention", {"new": 1}, "new"),
        ("gemma3", "rope_parameters.sliding_attention", {"factor": 2.0}, "factor"),
        ("modernbert", "rope_parameters.full_attention", {"factor": 2.0}, "factor"),
    ],
)
def test_keys_of_rotary_positions_that_have_no_effect_are_listed(
    name: str, section: str, entries: dict[str, Any], unread: str, tmp_path: Path
) -> None:
    make_model(name).save_pretrained(tmp_path)
    config = read_json(tmp_path / "config.json")
    part = config
    for key in section.split("."):
        part = part.setdefault(key, {})
    part |= entries
    directory.write_json(tmp_path / "config.json", config)
    with pytest.warns(UserWarning, match=rf"may change the outputs.*: {section}\.{unread}$"):
        model: Any = fourfold.load(tmp_path)
    theirs, ids = hf.AutoModel.from_pretrained(tmp_path), random_ids(2, 23)
    states = model.encode(ids) if name == "modernbert" else model.hidden(ids)
    torch.testing.assert_close(states, theirs(ids).last_hidden_state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "model_type"), [("Mixtral", "mixtral"), ("Phi3", "phi3"), ("Mamba", "mamba")]
)
def test_config_file_of_another_architecture_is_rejected_by_name(
    name: str, model_type: str, tmp_path: Path
) -> None:
    getattr(hf, f"{name}Config")().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=rf"model_type must be one of .*, got '{model_type}'"):
        fourfold.load(tmp_path)


@pytest.mark.parametrize(
    "scales",
    [
        {"mscale": 1.0, "mscale_all_dim": 0.8},
        {"mscale": 0.7},
        {"mscale": 1.0, "mscale_all_dim": 0.8, "attention_factor": 1.3},
    ],
)
def test_scales_of_yarn_have_the_effect_that_they_have_in_transformers(
    scales: dict[str, float], tmp_path: Path
) -> None:
    make_model("llama-yarn").save_pretrained(tmp_path)
    parameters = read_json(tmp_path / "config.json")["rope_parameters"]
    edit(tmp_path, rope_parameters={**parameters, **scales})
    theirs, ids = hf.AutoModelForCausalLM.from_pretrained(tmp_path), random_ids(2, 23)
    model = fourfold.load(tmp_path)
    torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)
    model.source = None  # the export then writes the factor that the keys imply
    fourfold.save(model, tmp_path / "again")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=1e-6, atol=1e-6)


def test_scale_of_embeddings_is_rounded_like_in_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = hf.Gemma3TextConfig(**{**LLAMA, "hidden_size": 52}, sliding_window=3)
    theirs = hf.Gemma3ForCausalLM(config).bfloat16()
    theirs.save_pretrained(tmp_path)
    model: Any = fourfold.load(tmp_path, dtype="bfloat16")
    ids = random_ids(2, 7)
    expected = theirs.model.embed_tokens(ids)
    assert torch.equal(model.embed(ids, slice(0, 7)), expected)
    assert not torch.equal(model.embed.tokens(ids) * 52**0.5, expected)


def test_tensors_that_fit_nothing_are_listed(tmp_path: Path) -> None:
    make_model("qwen3").save_pretrained(tmp_path)
    tensors = directory.read_tensors(tmp_path)
    moved = {key.replace("q_norm", "q_layernorm"): x for key, x in tensors.items()}
    directory.write_directory(tmp_path, read_json(tmp_path / "config.json"), moved)
    with pytest.raises(InputError) as error:
        fourfold.load(tmp_path)
    for i in range(2):
        assert f"stack.blocks.{i}.attn.q_norm.weight (10,)" in str(error.value)
        assert f"model.layers.{i}.self_attn.q_layernorm.weight" in str(error.value)


def test_trained_norm_of_gemma_is_exported_minus_1(tmp_path: Path) -> None:
    theirs = make_model("gemma3")
    with torch.no_grad():
        theirs.model.norm.weight.fill_(0.1)  # 1.1 - 1 is not 0.1 in fp32
    theirs.save_pretrained(tmp_path / "theirs")
    model: Any = fourfold.load(tmp_path / "theirs")
    with torch.no_grad():
        model.stack.blocks[0].attn_norm.weight.fill_(1.5)
    fourfold.save(model, tmp_path / "trained")
    written = directory.read_tensors(tmp_path / "trained")
    assert bool((written["model.layers.0.input_layernorm.weight"] == 0.5).all())
    assert bool((written["model.norm.weight"] == torch.tensor(0.1)).all())


@pytest.mark.parametrize("name", NAMES)
def test_cached_logits_equal_those_of_the_whole_text(name: str, tmp_path: Path) -> None:
    make_model(name).save_pretrained(tmp_path)
    model: Any = fourfold.load(tmp_path).double()
    ids = random_ids(2, 15)
    cache: KVCache = model.new_cache()
    with torch.no_grad():
        pieces = [model(part, cache=cache) for part in ids.split([4, 1, 1, 5, 1, 1, 1, 1], dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids), rtol=1e-10, atol=1e-10)


def make_tokenizer() -> Any:
    """Build a byte-level tokenizer with the special tokens of Llama 3."""
    alphabet = sorted("abcdefghijklmnopqrstuvwxyz.,Ġ")
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in names])
    begin = backend.token_to_id(names[0])
    template = processors.TemplateProcessing(
        single=f"{names[0]} $A", special_tokens=[(names[0], begin)]
    )
    backend.post_processor = template
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=names[0], eos_token=names[1]
    )


def test_generate_reads_a_directory_of_llama(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = make_model("llama-yarn")
    with torch.no_grad():
        theirs.lm_head.weight.mul_(3.0)
        theirs.lm_head.weight[len(make_tokenizer()) :] = 0.0  # only tokens of the tokenizer
    tokenizer = make_tokenizer()
    ends = [tokenizer.convert_tokens_to_ids(name) for name in ("<|end_of_text|>", "g")]
    theirs.generation_config = hf.GenerationConfig(eos_token_id=ends, bos_token_id=0)
    theirs.save_pretrained(tmp_path / "there")
    tokenizer.save_pretrained(tmp_path / "there")
    prompts = ["one two", "a", "three, four.", "so", "x y z", "ab", "bc", "cd"]
    expected = []
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt")
        ids = theirs.generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=8,
            do_sample=False,
            pad_token_id=ends[0],
        )
        expected.append(tokenizer.decode(ids[0], skip_special_tokens=True))
    pairs = zip(expected, prompts, strict=True)
    assert len({len(text) - len(prompt) for text, prompt in pairs}) > 1
    checkpoint = str(tmp_path / "imported.ckpt")
    assert main(["import", str(tmp_path / "there"), checkpoint]) == 0
    assert main(["export", checkpoint, str(tmp_path / "again")]) == 0
    capsys.readouterr()
    for name in ("generation_config.json", "config.json"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "there" / name).read_text()
    there = str(tmp_path / "there")
    for source, *options in ([there], [there, "--stream"], [checkpoint]):
        text = "\n".join(prompts).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        call = ["generate", "--checkpoint", source, "--max-new-tokens", "8", *options]
        assert main(call) == 0
        assert capsys.readouterr().out.splitlines() == expected
