"""From weights of another task, from the shell: init_from and resuming."""

import json
import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import torch.nn.functional as F
import transformers as hf
import yaml
from tokenizers import decoders, models, pre_tokenizers

import fourfold
from fourfold.finetuning.config import TuningConfig
from fourfold.models import ViT, ViTConfig
from fourfold.tokenization.tokenizer import Tokenizer

Run = Callable[..., Any]
Train = Callable[[str], Path]


@pytest.fixture
def pretrained(trained: Train) -> Path:
    """The run directory of a masked LM with vectors of its own size and words of its own."""
    return trained("mlm")


def config_of(run_dir: Path) -> Any:
    return yaml.safe_load((run_dir / "config.yaml").read_text())


def test_new_tokenizer_beside_a_source_is_reported(
    run: Run, configs: dict[str, Path], trained: Train, here: Path
) -> None:
    source = trained("lm")
    call = ["fit", "--config", configs["lm"], "--model.init_from", source, "--trainer.max_steps=1"]
    option = ("--data.tokenizer.file", source / "tokenizer.json")
    with pytest.warns(UserWarning, match="so a new tokenizer is trained") as warned:
        assert run(*call, "--run_dir=new").code == 0
    assert any(f"tokens that {source} lacks" in str(w.message) for w in warned)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run(*call, "--run_dir=new").code == 0  # a resumed training
        assert run(*call, "--run_dir=kept", *option).code == 0
    assert not any("new tokenizer" in str(w.message) for w in caught)
    kept = (here / "kept/tokenizer.json").read_text()
    assert kept == (source / "tokenizer.json").read_text()


def test_a_config_takes_shape_and_words_from_its_source(
    run: Run, configs: dict[str, Path], pretrained: Path, here: Path
) -> None:
    recipe = yaml.safe_load(configs["classes"].read_text())
    recipe["model"]["init_args"].pop("config")
    recipe["data"]["init_args"].pop("tokenizer")
    (here / "c.yaml").write_text(yaml.safe_dump(recipe))
    run_dir = here / "r"
    source = here / "source"
    shutil.copytree(pretrained, source)
    call = [
        "--config",
        here / "c.yaml",
        "--run_dir",
        run_dir,
        "--model.init_from",
        source,
        "--model.config.dropout",
        "0.25",
    ]
    result = run("fit", *call, "--trainer.max_steps", 3)
    assert result.code == 0, result.err
    assert "loaded    stack.blocks.0.attn.q.weight (16, 16)" in result.out
    assert "loaded    embed.tokens.weight" in result.out  # the words are the source's
    settled = config_of(run_dir)
    shape, theirs = settled["model"]["init_args"]["config"], fourfold.load(pretrained).config
    for name in ("d_model", "n_layers", "n_heads", "d_ff", "max_len", "vocab_size"):
        assert shape[name] == getattr(theirs, name), name
    assert shape["dropout"] == 0.25  # what is written stays
    assert shape["n_classes"] is None
    assert settled["data"]["init_args"]["tokenizer"]["file"] == str(run_dir / "tokenizer.json")
    planned = run("plan", "--config", here / "c.yaml", "--model.init_from", pretrained)
    assert planned.code == 0, planned.err
    size = sum(p.numel() for p in fourfold.load(run_dir).parameters())
    assert f"{size:,}" in planned.out
    # Measured, used and continued without the source.
    shutil.rmtree(source)
    for again in (
        run("fit", *call),
        run("test", *call),
        run("test", "--config", run_dir / "config.yaml"),
    ):
        assert again.code == 0, again.err
        assert "init_from" not in again.out
    assert "test/accuracy" in json.loads((run_dir / "metrics.json").read_text())


def test_what_a_run_began_with_may_be_gone_when_it_goes_on(
    run: Run, configs: dict[str, Path], pretrained: Path, here: Path
) -> None:
    source = here / "source"
    shutil.copytree(pretrained, source)
    call = [
        "fit",
        "--config",
        configs["classes"],
        "--run_dir",
        here / "r",
        "--model.init_from",
        source,
    ]
    assert run(*call, "--trainer.max_steps", 1).code == 0
    shutil.rmtree(source)
    result = run(*call, "--trainer.max_steps", 2)
    assert result.code == 0, result.err
    assert "init_from" not in result.out
    steps = torch.load(here / "r/checkpoints/last.ckpt", weights_only=True)["global_step"]
    assert steps == 2


def test_a_run_that_came_to_nothing_begins_anew_with_another_source(
    run: Run,
    configs: dict[str, Path],
    pretrained: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And with that one's words, not with those that the first try left behind."""
    text = here / "other.txt"
    text.write_text("quite another text of other words\n" * 40)
    other = ["--data.train", text, "--data.val", "null", "--data.test", "null"]
    made = run(
        "fit", "--config", configs["mlm"], *other, "--run_dir", here / "b", "--trainer.max_steps", 1
    )
    assert made.code == 0, made.err
    recipe = yaml.safe_load(configs["classes"].read_text())
    recipe["model"]["init_args"].pop("config")
    recipe["data"]["init_args"].pop("tokenizer")
    (here / "c.yaml").write_text(yaml.safe_dump(recipe))

    def words(folder: Path) -> dict[str, int]:
        return Tokenizer.from_str((folder / "tokenizer.json").read_text()).vocabulary

    assert words(pretrained) != words(here / "b")
    from fourfold.tasks import SequenceClassification

    def broken(self: Any, batch: Any, batch_idx: int) -> Any:
        raise KeyError("killed")

    call = ["fit", "--config", here / "c.yaml", "--run_dir", here / "r", "--trainer.max_steps", 1]
    with monkeypatch.context() as patch:
        patch.setattr(SequenceClassification, "training_step", broken)
        with pytest.raises(KeyError):
            run(*call, "--model.init_from", pretrained)
    assert words(here / "r") == words(pretrained)
    assert run(*call, "--model.init_from", here / "b").code == 0
    assert words(here / "r") == words(here / "b")
    assert run(*call, "--model.init_from", pretrained).code == 2
    assert words(here / "r") == words(here / "b")


def test_another_shape_than_the_sources_is_one_sentence(
    run: Run, configs: dict[str, Path], pretrained: Path, here: Path
) -> None:
    call = ["fit", "--config", configs["classes"], "--run_dir", here / "r"]
    sizes: dict[str, Any] = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, "image_size": 8}
    fourfold.save(ViT(ViTConfig(**sizes, patch_size=4, n_classes=2)), here / "images")
    for options, message in (
        (
            ["--model.init_from", here / "images"],
            "images: model.init_from must be a model that reads texts, got a ViT",
        ),
        (
            ["--model.init_from", pretrained, "--model.config.n_heads", 4],
            "n_heads of the source must be that of the model, 4, got 2",
        ),
        (["--model.init_from", here / "nothing.ckpt"], "there is no such checkpoint"),
    ):
        result = run(*call, *options)
        assert result.code == 2
        assert message in result.err
        assert not (here / "r").exists()


def test_weights_are_measured_as_they_are(
    run: Run, configs: dict[str, Path], pretrained: Path, here: Path
) -> None:
    """Without a run of its own a test measures what a training would begin with."""
    call = ["--config", configs["mlm"], "--run_dir"]
    assert run("test", *call, pretrained).code == 0
    expected = json.loads((pretrained / "metrics.json").read_text())["test/ppl_token"]
    file = pretrained / "checkpoints/best.ckpt"
    result = run("test", *call, here / "fresh", "--model.init_from", file)
    assert result.code == 0, result.err
    found = json.loads((here / "fresh/metrics.json").read_text())
    assert found["test/ppl_token"] == pytest.approx(expected)
    assert found["run"]["checkpoint"] == str(file)


@pytest.mark.parametrize("probe", [False, True])
def test_images_at_another_resolution(
    probe: bool, run: Run, configs: dict[str, Path], trained: Train, here: Path
) -> None:
    """Transfer of a ViT: positions are interpolated; of a linear probe the head alone moves."""
    options = [
        "--model.config.image_size",
        16,
        "--data.transform.size",
        16,
        "--model.tuning.pos_embed_interpolation",
        "zoom",
        "--trainer.max_steps",
        2,
    ]
    options += ["--model.tuning.freeze", "all"] if probe else []
    source = trained("vit")
    call = ["fit", "--config", configs["vit"], "--run_dir", here / "r"]
    result = run(*call, "--model.init_from", source, *options)
    assert result.code == 0, result.err
    assert "embed.positions.weight (5, 16): to (17, 16), zoom interpolation" in result.out
    before, after = (fourfold.load(place).state_dict() for place in (source, here / "r"))
    name = "stack.blocks.0.ff.up.weight"
    assert torch.equal(before[name], after[name]) == probe
    assert not torch.equal(before["heads.0.weight"], after["heads.0.weight"])


def test_any_text_is_measured_with_a_stride(
    run: Run, trained: Train, here: Path, text: Path, root: Path
) -> None:
    """Against windows cut one by one: each token once, with as much past as the stride leaves."""
    assert run("export", trained("lm") / "checkpoints/last.ckpt", here / "gpt2").code == 0
    config = root / "configs/gpt2/perplexity.yaml"
    call = [
        "test",
        "--config",
        config,
        "--run_dir",
        here / "r",
        "--model.init_from",
        here / "gpt2",
        "--data.test",
        text / "test.en",
    ]
    found = {}
    for past in (0, 12, 8):  # the model has 16 positions, and half of them are the default context
        result = run(*call, *(["--data.eval_context", past] if past != 8 else []))
        assert result.code == 0, result.err
        found[past] = json.loads((here / "r/metrics.json").read_text())
    model = fourfold.load(here / "gpt2")
    tokenizer = Tokenizer.from_str((here / "gpt2/tokenizer.json").read_text())
    raw = (text / "test.en").read_text()
    # So that each token has one before it, the text begins and ends with the end of a text.
    ids = torch.tensor([[tokenizer.eos_id, *tokenizer.encode(raw), tokenizer.eos_id]])
    for past, metrics in found.items():
        total, seen = 0.0, 0
        for begin in range(0, ids.shape[1] - 1, 16 - past):
            window = ids[:, begin : begin + 17]
            with torch.no_grad():
                nll = F.cross_entropy(model(window[:, :-1])[0], window[0, 1:], reduction="none")
            fresh = nll[past if begin else 0 :]
            total, seen = total + float(fresh.sum()), seen + len(fresh)
            if begin + 17 >= ids.shape[1]:
                break
        assert seen == ids.shape[1] - 1
        assert metrics["test/ppl_token"] == pytest.approx(math.exp(total / seen), rel=1e-5)
        n_bytes, n_words = len(raw.encode()), len(raw.split())
        assert metrics["test/ppl_byte"] == pytest.approx(math.exp(total / n_bytes), rel=1e-5)
        assert metrics["test/ppl_word"] == pytest.approx(math.exp(total / n_words), rel=1e-4)
    assert found[12]["test/loss"] != found[0]["test/loss"]
    result = run(
        "fit",
        "--config",
        config,
        "--run_dir",
        here / "s",
        "--data.test",
        text / "test.en",
        "--model.init_from",
        here / "gpt2",
        "--data.block_size",
        16,
        "--data.eval_context",
        0,
    )
    assert result.code == 2
    assert "data.train must be given" in result.err
    assert not (here / "s").exists()


def test_low_rank_trains_and_is_merged_for_transformers(
    run: Run, configs: dict[str, Path], pretrained: Path, here: Path
) -> None:
    call = ["--config", configs["classes"], "--run_dir", here / "r"]
    more = ["--model.init_from", pretrained, "--model.tuning.lora_rank", 2]
    assert run("fit", *call, *more).code == 0
    assert run("test", *call, *more).code == 0
    names = fourfold.load(here / "r").state_dict()
    assert not [name for name in names if name.endswith((".a", ".b"))]
    assert run("export", here / "r/checkpoints/last.ckpt", here / "out").code == 0


def tokenizer_of_llama() -> Any:
    """Build a byte-level tokenizer with the begin and end tokens of Llama 3."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({x: i for i, x in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ("<|begin_of_text|>", "<|end_of_text|>")
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in names])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=names[0], eos_token=names[1]
    )


def test_low_rank_updates_of_a_llama_directory(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    """The recipe needs neither sizes nor a tokenizer, and transformers reads the result."""
    tokenizer = tokenizer_of_llama()
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
    config = hf.LlamaConfig(
        **shape, **heads, vocab_size=len(tokenizer), max_position_embeddings=16, rope_theta=500.0
    )
    source = hf.LlamaForCausalLM(config)
    source.save_pretrained(here / "llama")
    tokenizer.save_pretrained(here / "llama")
    recipe = yaml.safe_load(configs["lm"].read_text())
    del recipe["model"]["init_args"]["config"]
    del recipe["data"]["init_args"]["tokenizer"]
    (here / "c.yaml").write_text(yaml.safe_dump(recipe))
    call = [
        "--config",
        here / "c.yaml",
        "--run_dir",
        here / "r",
        "--model.init_from",
        here / "llama",
    ]
    result = run("fit", *call, "--model.tuning.lora_rank", 2, "--model.optimizer.lr", 0.01)
    assert result.code == 0, result.err
    assert "loaded    stack.blocks.0-1.attn.k.weight (12, 16)" in result.out
    assert "new       " not in result.out
    content = torch.load(here / "r/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    updates = {name for name in content if name.endswith((".a", ".b"))}
    assert len(updates) == 2 * 2 * len(TuningConfig().lora_targets)
    assert all(content[name].any() for name in updates)
    assert run("export", here / "r", here / "out").code == 0
    theirs = hf.AutoModelForCausalLM.from_pretrained(here / "out").eval()
    before = source.state_dict()
    changed = {name for name, x in theirs.state_dict().items() if not torch.equal(x, before[name])}
    ends = ("q_proj", "v_proj")
    assert changed == {f"model.layers.{i}.self_attn.{end}.weight" for i in range(2) for end in ends}
    ids = torch.randint(len(tokenizer), (2, 9))
    with torch.no_grad():
        mine = fourfold.load(here / "r")(ids)
        torch.testing.assert_close(theirs(ids).logits, mine, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("probe", [False, True])
@pytest.mark.parametrize("n_registers", [0, 3])
def test_classification_starts_from_dinov2(
    probe: bool, n_registers: int, run: Run, configs: dict[str, Path], here: Path
) -> None:
    """The source has no head; the images have another size than those of the source."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2}
    images = {"image_size": 16, "patch_size": 4, "num_channels": 1}
    if n_registers:
        config = hf.Dinov2WithRegistersConfig(
            **shape, **images, num_register_tokens=n_registers, layerscale_value=0.5
        )
        source: Any = hf.Dinov2WithRegistersModel(config)
    else:
        source = hf.Dinov2Model(hf.Dinov2Config(**shape, **images, layerscale_value=0.5))
    source.save_pretrained(here / "dino")
    recipe = yaml.safe_load(configs["vit"].read_text())
    recipe["model"]["init_args"]["config"] = {"image_size": 8, "pool": "cls_mean"}
    (here / "c.yaml").write_text(yaml.safe_dump(recipe))
    call = [
        "--config",
        here / "c.yaml",
        "--run_dir",
        here / "r",
        "--model.init_from",
        here / "dino",
    ]
    options = ["--model.tuning.freeze", "all"] if probe else []
    result = run("fit", *call, *options, "--trainer.max_steps", 2)
    assert result.code == 0, result.err
    assert "embed.positions.weight (17, 16): to (5, 16)" in result.out
    assert "new       heads.0.weight" in result.out
    model: Any = fourfold.load(here / "r")
    assert (model.config.n_registers, model.config.layer_scale is None) == (n_registers, False)
    assert model.heads[0].weight.shape == (10, 32)  # class token and mean of the patches
    name = "stack.blocks.1.attn.q.weight"
    before = fourfold.load(here / "dino").state_dict()[name]
    assert torch.equal(model.state_dict()[name], before) == probe
    assert model.heads[0].weight.any()
    result = run("test", "--run_dir", here / "r")
    assert result.code == 0, result.err
    assert "test/top1" in json.loads((here / "r/metrics.json").read_text())


def test_what_the_user_writes_is_kept(
    run: Run, configs: dict[str, Path], pretrained: Path, here: Path
) -> None:
    """Also an option below a section, or a section written out; and words under an average."""
    recipe = yaml.safe_load(configs["classes"].read_text())
    recipe["model"]["init_args"].pop("config")
    recipe["data"]["init_args"].pop("tokenizer")
    (here / "c.yaml").write_text(yaml.safe_dump(recipe))
    call = [
        "fit",
        "--config",
        here / "c.yaml",
        "--model.init_from",
        pretrained,
        "--trainer.max_steps",
        1,
    ]
    result = run(*call, "--run_dir", "a", "--data.tokenizer.kind", "char", "--ema_decay", "0.9")
    assert result.code == 0, result.err
    assert "token by token" in result.out
    tokenizer = config_of(here / "a")["data"]["init_args"]["tokenizer"]
    assert (tokenizer["kind"], tokenizer["file"]) == ("char", None)
    result = run(*call, "--run_dir", "b", "--model.config", '{"dropout": 0.2}')
    assert result.code == 0, result.err
    shape = config_of(here / "b")["model"]["init_args"]["config"]
    assert (shape["dropout"], shape["d_model"]) == (0.2, 16)


def test_word_vectors_are_needed_at_the_start_only(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    """Resume and test do not read the file again; frozen token vectors keep their values."""
    file = here / "vectors.txt"
    file.write_text("".join(f"{word} {' '.join([str(i)] * 16)}\n" for i, word in enumerate("neio")))
    call = ["--config", configs["classes"], "--run_dir", here / "r", "--model.init_from", file]
    call += ["--data.tokenizer.kind", "char", "--model.tuning.freeze", "tokens"]
    untrained = run("test", *call)
    assert untrained.code == 2, "word vectors alone are no model to evaluate"
    result = run("fit", *call, "--trainer.max_steps", 1)
    assert result.code == 0, result.err
    assert "vectors for 4 of" in result.out
    file.unlink()
    for again in (run("fit", *call, "--trainer.max_steps", 2), run("test", *call)):
        assert again.code == 0, again.err
        assert "init_from" not in again.out
    model: Any = fourfold.load(here / "r" / "checkpoints" / "last.ckpt")
    table, ids = model.embed.tokens.weight, model.tokenizer.vocabulary
    assert [table[ids[letter]].unique().tolist() for letter in "neio"] == [[0], [1], [2], [3]]
