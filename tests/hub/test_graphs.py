"""`fourfold export --format torch-export|onnx`: graphs with the model's outputs, without fourfold.

The tests compare every output in a process that cannot import fourfold, for other sizes than those
with which the graph was traced.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.checkpoints import native_directory
from fourfold.cli import main
from fourfold.errors import InputError
from fourfold.hub import graph_files
from fourfold.hub.graphs import make_graphs
from fourfold.models import (
    CLIP,
    CausalClassifier,
    CausalClassifierConfig,
    CLIPConfig,
    CompositeEncoderDecoder,
    ImageToTextConfig,
    LadderLM,
    LadderLMConfig,
    RecurrentLM,
    RecurrentLMConfig,
    ResNet,
    ResNetConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    SigLIP,
    SigLIPConfig,
    SpanExtractor,
    SpanExtractorConfig,
    TokenClassifier,
    TokenClassifierConfig,
)
from tests.fixtures.tiny_models import CONFIGS, LANGUAGE, MODELS

CLASSES = {**LANGUAGE, "n_classes": 3}
TOWER = {"image_d_model": 12, "image_n_layers": 1, "image_n_heads": 3, "image_d_ff": 20}
IMAGES = {"image_size": 8, "patch_size": 2, "n_channels": 2}
FAMILIES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    **{name: (MODELS[name], config) for name, config in CONFIGS.items()},
    "window": (MODELS["causal"], replace(CONFIGS["causal"], window=3)),
    "decoder_heads": (
        MODELS["encoder_decoder"],
        replace(CONFIGS["encoder_decoder"], n_decoder_heads=1),  # type: ignore[call-arg]
    ),
    "sentences": (SequenceClassifier, SequenceClassifierConfig(**CLASSES, pool="mean")),
    "causal_encoder": (
        SequenceClassifier,
        SequenceClassifierConfig(**CLASSES, pool="last", causal=True, n_segments=0),
    ),
    "tags": (TokenClassifier, TokenClassifierConfig(**CLASSES, feature_layers=(0, 1))),
    "answers": (SpanExtractor, SpanExtractorConfig(**LANGUAGE)),
    "causal_classes": (CausalClassifier, CausalClassifierConfig(**CLASSES)),
    "captions": (
        CompositeEncoderDecoder,
        ImageToTextConfig(**LANGUAGE, encoder=CONFIGS["vit"]),  # type: ignore[arg-type]
    ),
    "clip": (CLIP, CLIPConfig(**LANGUAGE, **TOWER, **IMAGES, d_embed=6)),
    "siglip": (SigLIP, SigLIPConfig(**LANGUAGE, **TOWER, **IMAGES, d_embed=12)),
    "resnet": (ResNet, ResNetConfig(n_classes=5, stem="cifar", image_size=8)),
}
# Runs the graph of each saved call, as somebody without fourfold would.
WITHOUT_FOURFOLD = """
import json, sys, torch
from pathlib import Path

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "fourfold":
            raise ImportError("fourfold is hidden")

sys.meta_path.insert(0, Blocker())
try:
    import fourfold
except ImportError:
    pass
else:
    raise SystemExit("fourfold is not hidden")
folder = Path(sys.argv[1])
about = json.loads((folder / "export.json").read_text())
for name, inputs, expected in torch.load(folder / "calls.pt"):
    graph = about["graphs"][name]
    file = folder / graph["file"]
    if about["format"] == "onnx":
        import onnxruntime
        session = onnxruntime.InferenceSession(file)
        named = {x["name"]: y.numpy() for x, y in zip(graph["inputs"], inputs, strict=True)}
        outputs = [torch.from_numpy(y) for y in session.run(graph["outputs"], named)]
    else:
        outputs = torch.export.load(file).module(check_guards=False)(*inputs)
    for output, wanted in zip(outputs, expected, strict=True):
        limit = 1e-5 * max(1.0, wanted.abs().max().item())  # as the export itself requires
        torch.testing.assert_close(output, wanted, rtol=0, atol=limit)
    print(name, len(expected))
"""


def build(name: str) -> Any:
    model_class, config = FAMILIES[name]
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def export(model: Any, tmp_path: Path, file_format: str) -> Path:
    (tmp_path / "native").mkdir()
    native_directory.write(model, tmp_path / "native")
    out = tmp_path / "out"
    assert main(["export", str(tmp_path / "native"), str(out), "--format", file_format]) == 0
    return out


@torch.no_grad()
def calls(model: Any) -> list[tuple[str, list[Tensor], list[Tensor]]]:
    """Return graph name, inputs and outputs of calls.

    A decoder is called with earlier and with new tokens, and compared with the model without cache.
    """
    graphs = make_graphs(model)
    made: list[tuple[str, list[Tensor], list[Tensor]]] = []

    def run(name: str, inputs: list[Tensor]) -> list[Tensor]:
        made.append((name, inputs, list(graphs[name](*inputs))))
        return made[-1][2]

    for sizes in (
        {"batch": 4, "length": 6, "past": 5, "source": 3},
        {"batch": 1, "length": 1, "past": 1, "source": 1},
    ):
        total = sizes["past"] + sizes["length"]
        for name, graph in graphs.items():
            every = {**sizes, "length": total, "past + length": total, "past": 0}
            inputs = [x.sample(every if name == "decoder" else sizes) for x in graph.inputs]
            if name != "decoder":
                run(name, inputs)
                continue
            ids, mask, fixed = inputs[0], inputs[1], list[Tensor]()
            if "encoder" in graphs:
                _, (source, *masks), memories = made[-1]
                fixed = [*masks, *memories]
                expected = model(source, ids, src_mask=masks[0].bool() if masks else None)
            else:
                expected = model(ids, mask=mask.bool())
            start, past = (
                0,
                [x for x, spec in zip(inputs, graph.inputs, strict=True) if "past" in spec.shape],
            )
            for stop in (sizes["past"], total):
                given = [ids[:, start:stop], *(fixed or [mask[:, :stop]]), *past]
                logits, *past = run(name, given)
                torch.testing.assert_close(logits, expected[:, start:stop], rtol=1e-5, atol=1e-5)
                start = stop
    return made


QUICK = {("causal", "onnx"), ("masked", "torch-export")}
CASES = [
    pytest.param(name, kind, marks=[] if (name, kind) in QUICK else [pytest.mark.slow])
    for name in FAMILIES
    for kind in graph_files.FORMATS
]


@pytest.mark.parametrize(("name", "file_format"), CASES)
def test_graphs_run_without_fourfold(
    name: str, file_format: str, tmp_path: Path, capsys: Any
) -> None:
    model = build(name)
    out = export(model, tmp_path, file_format)
    assert "largest difference to the model" in capsys.readouterr().out
    made = calls(model)
    torch.save(made, out / "calls.pt")
    command = [sys.executable, "-I", "-c", WITHOUT_FOURFOLD, str(out)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert len(result.stdout.splitlines()) == len(made) >= 2
    graphs = json.loads((out / "export.json").read_text())["graphs"]
    assert sorted(x["file"] for x in graphs.values()) == sorted(
        path.name for path in out.iterdir() if path.suffix in (".pt2", ".onnx")
    )


def test_models_without_graphs_are_rejected_in_one_line(tmp_path: Path, capsys: Any) -> None:
    config = RecurrentLMConfig(d_model=8, n_layers=1, vocab_size=9)
    (tmp_path / "native").mkdir()
    native_directory.write(RecurrentLM(config).eval(), tmp_path / "native")
    arguments = ["export", str(tmp_path / "native"), str(tmp_path / "out"), "--format"]
    assert main([*arguments, "torch-export"]) == 2
    error = capsys.readouterr().err
    assert "--format must be transformers for a RecurrentLM" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert main([*arguments, "tflite"]) == 2
    assert "invalid choice: 'tflite'" in capsys.readouterr().err
    tagger = TokenClassifier(TokenClassifierConfig(**CLASSES, lstm_width=4)).eval()
    with pytest.raises(InputError, match="lstm_width must be 0 for a graph"):
        make_graphs(tagger)
    ladder = LadderLMConfig(rung="scaled", d_model=12, n_layers=1, vocab_size=9)
    with pytest.raises(InputError, match="rung must be one of the rungs with attention"):
        make_graphs(LadderLM(ladder))


def test_missing_packages_and_wrong_graphs_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("vit")
    with monkeypatch.context() as patch:
        patch.setattr(graph_files, "find_spec", lambda name: None)
        with pytest.raises(InputError, match=r"pip install 'fourfold\[onnx\]'"):
            graph_files.write_graphs(model, tmp_path, "onnx", {})
    with torch.no_grad():
        graph_files.write_graphs(model, tmp_path, "torch-export", {})
        model.heads[0].bias += 1e-3
        with pytest.raises(InputError, match=r"model\.pt2: the graph differs from the model by"):
            graph_files._compare(model, make_graphs(model), {"model": tmp_path / "model.pt2"})
