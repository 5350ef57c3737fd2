"""A trained run goes to transformers, and to the hub, with all that belongs to it."""

import json
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
import torch
import transformers as hf
from huggingface_hub import HfApi
from huggingface_hub.utils import filter_repo_objects
from PIL import Image

from fourfold.checkpoints.save import write_transformers
from fourfold.data.vision.eval_transforms import eval_transform
from fourfold.tasks import load_task

Run = Callable[..., Any]
Train = Callable[[str], Path]


def exported(run: Run, checkpoint: Path, target: Path) -> str:
    result = run("export", checkpoint, target)
    assert result.code == 0, result.err
    return str(result.out)


@pytest.mark.parametrize(
    ("family", "auto", "around"),
    [
        ("mt", "AutoModelForSeq2SeqLM", (False, True)),
        ("lm", "AutoModelForCausalLM", (False, False)),
        ("mlm", "AutoModelForMaskedLM", (True, True)),
    ],
)
def test_text(
    family: str, auto: str, around: tuple[bool, bool], run: Run, trained: Train, here: Path
) -> None:
    checkpoint = trained(family) / "checkpoints/last.ckpt"
    out = exported(run, checkpoint, here / "there")
    task = load_task(checkpoint)
    tokenizer = hf.AutoTokenizer.from_pretrained(here / "there")
    own = task.tokenizer.encode("one two seven")
    before, after = around
    expected = [task.tokenizer.bos_id] * before + own + [task.tokenizer.eos_id] * after
    assert tokenizer("one two seven")["input_ids"] == expected
    assert tokenizer.decode(expected, skip_special_tokens=True).strip() == "one two seven"

    model = getattr(hf, auto).from_pretrained(here / "there").eval()
    x = torch.tensor([expected])
    with torch.no_grad():
        if family == "mt":
            assert "norm_eps changes from 1e-06 to 1e-05" in out
            tgt = torch.tensor([[task.tokenizer.bos_id, *own]])
            theirs = model(input_ids=x, decoder_input_ids=tgt).logits
            ours = task.model(x, tgt)
            assert model.config.decoder_start_token_id == task.tokenizer.bos_id
        else:
            theirs, ours = model(input_ids=x).logits, task.model(x)
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
    assert model.config.pad_token_id == task.tokenizer.pad_id


def test_images(run: Run, trained: Train, here: Path) -> None:
    checkpoint = trained("vit") / "checkpoints/last.ckpt"
    exported(run, checkpoint, here / "there")
    task = load_task(checkpoint)
    model = hf.AutoModelForImageClassification.from_pretrained(here / "there").eval()
    assert list(model.config.id2label.values()) == task.artifacts["class_names"]
    image = Image.effect_noise((8, 8), 90)
    image.save(here / "x.png")
    pixels = eval_transform(task.artifacts)(str(here / "x.png"))[None]
    with torch.no_grad():
        torch.testing.assert_close(model(pixel_values=pixels).logits, task.model(pixels))
    # And back: a checkpoint that classifies.
    assert run("import", here / "there", here / "again.ckpt").code == 0
    again = load_task(here / "again.ckpt")
    assert again.artifacts == {
        **task.artifacts,
        "mean": again.artifacts["mean"],
        "std": again.artifacts["std"],
    }


@pytest.mark.parametrize("family", ["mt", "lm", "mlm", "vit"])
def test_verified_export_has_a_certificate(
    family: str, run: Run, trained: Train, here: Path
) -> None:
    result = run("export", trained(family), here / "there", "--verify")
    assert result.code == 0, result.err
    last = result.out.splitlines()[-1]
    assert last.startswith("compared: ")
    assert "outputs" in last
    assert ("greedy search" in last) == (family in ("mt", "lm"))
    assert json.loads((here / "there" / "verification.json").read_text())["passed"]
    assert "has passed" in (here / "there" / "README.md").read_text()


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """`write_transformers` writes a tokenizer that converts texts to lower case."""

    def write(model: Any, folder: Path) -> str:
        name = write_transformers(model, folder)
        file = folder / "tokenizer.json"
        content = json.loads(file.read_text()) | {"normalizer": {"type": "Lowercase"}}
        file.write_text(json.dumps(content))
        return name

    monkeypatch.setattr("fourfold.tasks.convert.write_transformers", write)


@pytest.mark.usefixtures("damaged")
def test_failed_verification_leaves_the_directory(run: Run, trained: Train, here: Path) -> None:
    result = run("export", trained("lm"), here / "there", "--verify")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert f"fourfold: error: {here / 'there'}: the text " in result.err
    assert "has the input_ids [" in result.err
    certificate = json.loads((here / "there" / "verification.json").read_text())
    assert not certificate["passed"]
    assert certificate["failure"] in result.err
    assert (here / "there" / "model.safetensors").exists()
    assert "has failed" in (here / "there" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "RUN", "x.ckpt", "--format", "checkpoint", "--verify"], "--verify needs a --f"),
        (["export", "RUN", "x", "--format", "timm", "--verify"], "got timm"),
        (["import", "RUN", "x", "--verify"], "--verify is not an option of `fourfold import`"),
        (["export", "RUN", "x", "--private"], "--private is not an option of `fourfold export`"),
        (["push", "RUN", "owner/name"], "the repository must be hf://OWNER/NAME, got owner/name"),
        (["push", "RUN", "hf://name"], "the repository must be hf://OWNER/NAME, got hf://name"),
        (["push", "RUN", "hf://a/b/c"], "must be hf://OWNER/NAME, got hf://a/b/c"),
        (["push", "RUN", "hf://a b/c"], "must be hf://OWNER/NAME, got hf://a b/c"),
        (["push", "RUN"], "hf://OWNER/NAME must be given"),
        (["push", "nothing", "hf://a/b"], "nothing: there is no such checkpoint"),
        (["push", "RUN", "hf://a/b", "--format", "checkpoint"], "invalid choice: 'checkpoint'"),
    ],
)
def test_invalid_arguments_are_one_line_and_nothing_is_written(
    arguments: list[str],
    message: str,
    run: Run,
    trained: Train,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_stub")
    monkeypatch.chdir(here)
    source = str(trained("lm"))
    before = sorted(here.iterdir())
    result = run(*(source if x == "RUN" else x for x in arguments))
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message in result.err
    assert sorted(here.iterdir()) == before


class Hub:
    """Hub that records what is uploaded, and has one public repository."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.api = mock.create_autospec(HfApi, instance=True)
        for name in ("create_repo", "create_branch"):
            getattr(self.api, name).side_effect = partial(self.record, name)
        self.api.upload_folder.side_effect = self.upload
        self.api.repo_info.side_effect = lambda name: mock.Mock(private="public" not in name)

    def record(self, method: str, name: str, **options: Any) -> None:
        self.calls.append((f"{method} {name}", options))

    def upload(
        self, *, repo_id: str, folder_path: Path, revision: str | None, delete_patterns: list[str]
    ) -> None:
        self.record("upload_folder", repo_id, revision=revision)
        stale = set(filter_repo_objects(self.files, allow_patterns=delete_patterns))
        self.files = {name: x for name, x in self.files.items() if name not in stale}
        self.files |= {x.name: x.read_bytes() for x in Path(folder_path).iterdir()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    stub = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: stub.api)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_stub")
    return stub


def test_push_uploads_the_export(run: Run, trained: Train, here: Path, hub: Hub) -> None:
    result = run("push", trained("lm"), "hf://me/model")
    assert (result.code, result.err) == (0, "")
    assert hub.calls == [
        ("create_repo me/model", {"private": None, "exist_ok": True}),
        ("upload_folder me/model", {"revision": None}),
    ]
    assert result.out.splitlines()[1:] == ["wrote hf://me/model"]
    run("export", trained("lm"), here / "there")
    written = {x.name: x.read_bytes() for x in (here / "there").iterdir()}
    card, other = hub.files.pop("README.md").decode(), written.pop("README.md").decode()
    assert hub.files == written
    assert card == other.replace('"there"', '"me/model"', 2).replace(
        'load("there"', 'load("hf://me/model"'
    ).replace("# there", "# me/model")
    assert str(here) not in card
    with TemporaryDirectory() as folder:  # the upload is a model of transformers
        for name, content in hub.files.items():
            Path(folder, name).write_bytes(content)
        assert hf.AutoModelForCausalLM.from_pretrained(folder).config.model_type == "gpt2"


def test_push_deletes_files_of_other_weights(run: Run, trained: Train, hub: Hub) -> None:
    stale = ["verification.json", "model.onnx", "vocab.json", "1_Pooling/config.json"]
    stale += ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "fourfold.json"]
    own = ["notes.txt", "data/config.json", "results.json", "LICENSE"]
    hub.files = dict.fromkeys(stale + own, b"")
    assert run("push", trained("lm"), "hf://me/model").code == 0
    assert hub.files.keys() >= {*own, "model.safetensors"}
    assert not hub.files.keys() & set(stale)


def test_options_of_push(run: Run, trained: Train, hub: Hub) -> None:
    options = ("--private", "--revision", "step-1", "--verify")
    result = run("push", trained("lm"), "hf://me/model", *options)
    assert (result.code, result.err) == (0, "")
    assert hub.calls == [
        ("create_repo me/model", {"private": True, "exist_ok": True}),
        ("create_branch me/model", {"branch": "step-1", "exist_ok": True}),
        ("upload_folder me/model", {"revision": "step-1"}),
    ]
    assert json.loads(hub.files["verification.json"])["passed"]


def test_private_weights_are_not_uploaded_to_a_public_repository(
    run: Run, trained: Train, hub: Hub
) -> None:
    result = run("push", trained("lm"), "hf://me/public", "--private")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "hf://me/public: the upload failed: --private needs a private" in result.err
    assert not hub.files


@pytest.mark.usefixtures("damaged")
def test_push_uploads_nothing_that_differs(run: Run, trained: Train, hub: Hub) -> None:
    result = run("push", trained("lm"), "hf://me/model", "--verify")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "hf://me/model: the text " in result.err
    assert not hub.calls


def test_push_without_a_token_exports_nothing(
    run: Run, trained: Train, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    monkeypatch.setattr("fourfold.tasks.convert.export_checkpoint", None)
    result = run("push", trained("lm"), "hf://me/model")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "hf://me/model needs a token: `hf auth login` or HF_TOKEN" in result.err
    assert not hub.calls


def test_network_failure_is_one_line(
    run: Run, trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as unused:  # a port at which nobody listens
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.HfApi", partial(HfApi, endpoint=endpoint))
        monkeypatch.setenv("HF_TOKEN", "hf_stub")
        result = run("push", trained("lm"), "hf://me/model")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "fourfold: error: hf://me/model: the upload failed: " in result.err
