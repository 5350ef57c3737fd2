"""Models from checkpoints, run directories and directories, without Lightning."""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from lightning import Trainer
from torch import Tensor
from torch.overrides import TorchFunctionMode

import fourfold
from fourfold.checkpoints.classes import class_path
from fourfold.checkpoints.init_from import initialize_from
from fourfold.errors import InputError
from fourfold.layers.init import INITS
from fourfold.models import CausalLM, CausalLMConfig
from fourfold.models.vit.task import read_teacher
from fourfold.tasks import CausalLanguageModeling
from fourfold.tasks.convert import import_checkpoint
from fourfold.tokenization.pretrained import make_tokenizer
from fourfold.tokenization.training import TokenizerConfig
from fourfold.training.loading import load_task
from tests.fixtures.tiny_tasks import FAMILIES, FLAT, SGD, SMALL, causal

MAX_MODULES = 76  # core.edits is one


def train(task: Any, data: Any, folder: Path) -> Path:
    trainer = Trainer(
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )
    trainer.fit(task, data)
    path = folder / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    trainer.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def checkpoint(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    task, data = causal(texts)
    return train(task, data, tmp_path_factory.mktemp("causal"))


def test_load_imports_neither_lightning_nor_datamodules(checkpoint: Path) -> None:
    code = (
        "import sys, fourfold\n"
        f"model = fourfold.load({str(checkpoint)!r})\n"
        "assert model.tokenizer is not None\n"
        "modules = [name for name in sys.modules if name.split('.')[0] == 'fourfold']\n"
        "packages = ('lightning', 'torchmetrics', 'torchvision', 'sympy', 'transformers')\n"
        "heavy = [name for name in sys.modules if name.split('.')[0] in packages\n"
        "         or 'datamodule' in name or name.startswith('fourfold.tasks')]\n"
        "assert not heavy, heavy\n"
        "print(len(modules))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < MAX_MODULES


def test_model_has_tokenizer_and_special_tokens(checkpoint: Path) -> None:
    for path in (checkpoint, checkpoint.parents[1]):
        model: Any = fourfold.load(path)
        assert not model.training
        assert model.tokenizer.decode(model.tokenizer.encode("one two")) == "one two"
        assert model.generation_defaults.eos_id == model.tokenizer.eos_id
        assert model.generation_defaults.num_beams is None
        assert "tokenizer" in model.artifacts


def test_generation_defaults_come_from_the_task(texts: Path, tmp_path: Path) -> None:
    task, data = FAMILIES["translation"](texts)
    model: Any = fourfold.load(train(task, data, tmp_path))
    defaults = model.generation_defaults
    assert (defaults.num_beams, defaults.length_penalty) == (2, 0.6)
    assert defaults.length_penalty_type == "gnmt"
    assert defaults.bos_id == model.tokenizer.bos_id


def test_dtype_and_device_are_set(checkpoint: Path) -> None:
    assert {p.dtype for p in fourfold.load(checkpoint).parameters()} == {torch.float32}
    for dtype in ("bfloat16", "torch.bfloat16", torch.bfloat16):
        model = fourfold.load(checkpoint, device="cpu", dtype=dtype)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    with pytest.raises(InputError, match=r"dtype must be one of float32, .* got 'bf16'"):
        fourfold.load(checkpoint, dtype="bf16")


def test_checkpoint_of_an_earlier_version_is_rejected(checkpoint: Path, tmp_path: Path) -> None:
    content = torch.load(checkpoint, weights_only=True)
    saved = content["fourfold"]
    content["fourfold"] = {
        "version": 1,
        "task": "CausalLanguageModeling",
        "init_args": saved["task"]["init_args"],
        "data": saved["data"],
    }
    torch.save(content, tmp_path / "old.ckpt")
    with pytest.raises(InputError, match=r"old\.ckpt: .* by an earlier version of fourfold"):
        fourfold.load(tmp_path / "old.ckpt")


@dataclass(frozen=True)
class ShiftedConfig(CausalLMConfig):
    shift: float = 1.0


class ShiftedLM(CausalLM):
    """A user's model: the states of a causal LM plus a constant."""

    config_class = ShiftedConfig

    def hidden(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().hidden(*args, **kwargs) + self.config.shift


class ShiftedTask(CausalLanguageModeling):
    """A user's task."""

    model_class = ShiftedLM
    config_class = ShiftedConfig


def test_model_class_of_the_user_must_be_allowed(texts: Path, tmp_path: Path) -> None:
    _, data = causal(texts)
    config = ShiftedConfig(**SMALL, vocab_size=None, max_len=64, shift=3.0)
    task = ShiftedTask(config, SGD, FLAT)
    path = train(task, data, tmp_path)
    name = class_path(ShiftedLM)
    with pytest.raises(InputError, match=rf"last\.ckpt: .*--allow_class {name}"):
        fourfold.load(path)
    model = fourfold.load(path, classes=[ShiftedLM])
    assert type(model) is ShiftedLM
    assert model.config.shift == 3.0
    ids = torch.randint(data.vocab_size, (2, 5))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), task.model.eval()(ids))
    fourfold.save(model, tmp_path / "saved")
    with pytest.raises(InputError, match=r"fourfold\.json: .*--allow_class"):
        fourfold.load(tmp_path / "saved")
    again = fourfold.load(tmp_path / "saved", classes=[ShiftedLM])
    assert again.config == model.config


def huge_layers(content: dict[str, Any]) -> None:
    content["fourfold"]["model"]["config"]["n_layers"] = 1000


def huge_table(content: dict[str, Any]) -> None:
    content["fourfold"]["model"]["config"]["vocab_size"] = 10**7


def huge_positions(content: dict[str, Any]) -> None:
    config = content["fourfold"]["model"]["config"]
    config |= {"positions": "sinusoidal", "max_len": 2**22}


def expanded_tensor(content: dict[str, Any]) -> None:
    state = content["state_dict"]
    state["model.embed.tokens.weight"] = torch.zeros(1).expand(10**7, SMALL["d_model"])
    content["fourfold"]["model"]["config"]["vocab_size"] = 10**7


def shared_lists(content: dict[str, Any]) -> None:
    value: Any = "x"
    for _ in range(40):
        value = [value, value]
    content["fourfold"]["task"]["init_args"]["optimizer"] = value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (huge_layers, r"n_layers must be at most the number of tensors in the weights \(\d+\)"),
        (huge_table, r"the config describes a model of \d+ numbers, but the weights have \d+"),
        (huge_positions, r"the config describes computed tables of \d+ numbers"),
        (expanded_tensor, r"embed.tokens.weight has \d+ elements, more than its storage holds"),
        (shared_lists, "must have at most 10000000 values once shared parts are written out"),
    ],
)
@pytest.mark.parametrize("reader", [fourfold.load, load_task])
def test_counts_beyond_the_file_are_rejected_before_the_model_is_built(
    change: Callable[[dict[str, Any]], None],
    message: str,
    reader: Callable[[Path], Any],
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fourfold.hub.directory.MIN_TABLE_LIMIT", 1 << 20)
    content = torch.load(checkpoint, weights_only=True)
    change(content)
    torch.save(content, tmp_path / "x.ckpt")
    begin = time.process_time()
    with pytest.raises(InputError, match=rf"x\.ckpt: .*{message}"):
        reader(tmp_path / "x.ckpt")
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("first", [19, 30_000, -2])
def test_first_token_outside_the_vocabulary_is_dropped_with_a_warning(
    first: int, tmp_path: Path
) -> None:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 8}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = hf.MarianConfig(
        vocab_size=19, pad_token_id=0, decoder_start_token_id=3, **sizes, **heads
    )
    hf.MarianMTModel(config).save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoder_start_token_id": first}))
    with pytest.warns(UserWarning, match=f"decoder_start_token_id {first} is outside the voc"):
        model = fourfold.load(tmp_path)
    assert model.generation_defaults.bos_id is None
    src = torch.tensor([[4, 5]])
    with pytest.raises(InputError, match="bos_id must be given"):
        fourfold.generate(model, src, max_new_tokens=3)
    assert fourfold.generate(model, src, max_new_tokens=3, bos_id=3).shape[0] == 1


@pytest.mark.parametrize("forced", [19, -1, 2**63])
def test_a_forced_token_outside_the_vocabulary_is_dropped_with_a_warning(
    forced: int, tmp_path: Path
) -> None:
    config = hf.GPT2Config(vocab_size=19, n_embd=12, n_layer=1, n_head=2, eos_token_id=1)
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": 1, "forced_bos_token_id": forced}))
    with pytest.warns(UserWarning, match=f"{tmp_path.name}: forced_bos_token_id {forced} is out"):
        model = fourfold.load(tmp_path)
    assert model.generation_defaults.forced_bos_token_id is None
    assert fourfold.generate(model, torch.tensor([[2]]), max_new_tokens=2).shape[0] == 1


@pytest.mark.parametrize("ends", [50256, [50256, 3, 19, 5], [-1], 18])
@pytest.mark.parametrize("is_imported", [False, True])
def test_end_tokens_outside_the_vocabulary_are_dropped_with_a_warning(
    ends: int | list[int], is_imported: bool, tmp_path: Path
) -> None:
    """As in a config of GPT-2 with another vocabulary, whose end token keeps its default."""
    config = hf.GPT2Config(vocab_size=19, n_embd=12, n_layer=1, n_head=2, eos_token_id=ends)
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    path = tmp_path / "gpt2"
    given = [ends] if isinstance(ends, int) else ends
    kept = [token for token in given if 0 <= token < 19]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        if is_imported:
            path = tmp_path / "x.ckpt"
            import_checkpoint(tmp_path / "gpt2", path)
        model = fourfold.load(path)
    texts = {str(w.message).partition(": ")[2] for w in found if "end tokens" in str(w.message)}
    dropped = ", ".join(str(token) for token in given if token not in kept)
    assert texts == (
        {f"end tokens outside the vocabulary of 19, ignored: {dropped}"} if dropped else set()
    )
    assert model.generation_defaults.end_ids == tuple(kept)
    ids = fourfold.generate(model, torch.tensor([[1, 2]]), max_new_tokens=4)
    free = fourfold.generate(model, torch.tensor([[1, 2]]), max_new_tokens=4, eos_id=[])
    assert torch.equal(ids, free[:, : ids.shape[1]])
    assert free.shape == (1, 6)


NAMES = ("owner/name", "gpt2", "hf:/", "hf://name", "https://huggingface.co/owner/name")


@pytest.mark.parametrize("name", NAMES)
def test_the_hub_is_only_asked_for_names_of_its_own_form(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Models, sources of `init_from`, teachers and tokenizers with other names are paths."""
    asked = []

    def ask(*arguments: Any, **options: Any) -> None:
        asked.append(arguments)
        raise OSError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", ask)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", ask)
    monkeypatch.setattr("socket.socket.connect", ask)
    model = fourfold.create("gpt2", n_layers=1, d_model=8, n_heads=1, vocab_size=20)
    readers: list[Callable[[], Any]] = [
        lambda: fourfold.load(name),
        lambda: load_task(name),
        lambda: import_checkpoint(Path(name), tmp_path / "x.ckpt"),
        lambda: initialize_from(model, name, None, "bicubic"),
        lambda: read_teacher(name, {}),
        lambda: make_tokenizer(TokenizerConfig(file=name), [], mask=False),
    ]
    for read in readers:
        with pytest.raises(InputError):
            read()
    assert not asked
    with pytest.raises(InputError, match="cannot be downloaded"):
        fourfold.load("hf://owner/name")
    assert asked


@pytest.mark.parametrize("family", list(FAMILIES))
def test_weights_in_another_type_are_those_in_fp32_rounded(
    family: str, texts: Path, tmp_path: Path
) -> None:
    task, data = FAMILIES[family](texts)
    path = train(task, data, tmp_path)
    whole, half = fourfold.load(path), fourfold.load(path, dtype="bfloat16")
    for found, expected in ((whole, task.model), (half, whole)):
        state, wanted = found.state_dict(), expected.state_dict()
        assert state.keys() == wanted.keys()
        assert all(torch.equal(x, wanted[name].to(x.dtype)) for name, x in state.items())
        tables = dict(found.named_buffers())
        for name, x in expected.named_buffers():
            assert torch.equal(tables[name], x.to(tables[name].dtype)), name
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


class UsedMemory(TorchFunctionMode):
    """Mode in which memory that is not initialized holds 1e9."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found.fill_(1e9) if func in (torch.empty, torch.empty_like) else found


@pytest.mark.timeout(60)
@pytest.mark.parametrize("init", ["vit", "bounds"])
def test_fills_that_draw_until_values_are_in_bounds_end(
    init: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bounds(model: torch.nn.Module) -> None:
        for x in model.parameters():
            torch.nn.init.trunc_normal_(x, 5.0, 1.0, 4.0, 6.0)

    monkeypatch.setitem(INITS, "bert", bounds)  # as an initialization of a user
    options: Any = {"positions": "sincos2d", "init": "bert" if init == "bounds" else "vit"}
    model = fourfold.create(
        "vit_tiny_patch16_224", n_layers=1, n_classes=2, image_size=32, **options
    )
    fourfold.save(model, tmp_path / "m")
    with UsedMemory():
        found = fourfold.load(tmp_path / "m")
    for (name, x), y in zip(found.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(x, y), name
    assert all(map(torch.equal, found.buffers(), model.buffers()))
    assert fourfold.create("gpt2", n_layers=1, d_model=8, n_heads=1).embed.tokens.weight.std() > 0


def test_loaded_weights_do_not_depend_on_their_file(checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a.ckpt"
    copy.write_bytes(checkpoint.read_bytes())
    fourfold.save(fourfold.load(copy), tmp_path / "m")
    for path in (copy, tmp_path / "m"):
        model = fourfold.load(path)
        before = {name: x.clone() for name, x in model.state_dict().items()}
        file = path if path.is_file() else path / "model.safetensors"
        with file.open("r+b") as stream:
            stream.write(bytes(file.stat().st_size))
        assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_load_draws_no_random_numbers(checkpoint: Path) -> None:
    state = torch.get_rng_state()
    fourfold.load(checkpoint)
    assert torch.equal(torch.get_rng_state(), state)
