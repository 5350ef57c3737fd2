"""Damaged and malicious checkpoints and Hugging Face directories."""

import io
import json
import pickle
import struct
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load, save

from tests.fuzz.damage import ODD, Draw, changed, paths, spoilt
from tests.fuzz.images import made
from tests.fuzz.invariant import Case, Files

if TYPE_CHECKING:
    from tests.fuzz.conftest import World

VERBS = {
    "mt": "translate",
    "lm": "generate",
    "mlm": "fill",
    "classes": "classify",
    "tags": "classify",
    "vit": "classify",
}
# Values for config.json. None is a valid size that would allocate a large model.
SIZES = [
    0,
    -1,
    1,
    3,
    2.5,
    "x",
    None,
    [],
    {},
    True,
    10**18,
    "relu",
    "bert",
    "16",
    1e400,
    float("nan"),
    [16],
]


class Hostile:
    """Object that creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("pwned", "w")


def saved(content: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(content, out, **options)
    return out.getvalue()


@st.composite
def tensor(draw: Draw, x: torch.Tensor) -> Any:
    """Tensor of another shape, type or content than `x`, or None."""
    ways = (
        "nan",
        "inf",
        "shape",
        "empty",
        "int",
        "half",
        "scalar",
        "complex",
        "bool",
        "double",
        "sparse",
        "none",
        "wide",
    )
    way = draw(st.sampled_from(ways))
    return {
        "nan": lambda: torch.full_like(x, float("nan")) if x.is_floating_point() else x,
        "inf": lambda: torch.full_like(x, float("inf")) if x.is_floating_point() else x,
        "shape": lambda: x.flatten()[:-1].clone(),
        "empty": lambda: x[:0].clone() if x.ndim else x,
        "int": lambda: x.long(),
        "half": lambda: x.half(),
        "scalar": lambda: torch.zeros(()),
        "complex": lambda: x.to(torch.complex64),
        "bool": lambda: x.bool(),
        "double": lambda: x.double(),
        "sparse": lambda: x.to_sparse(),
        "none": lambda: None,
        "wide": lambda: torch.cat([x, x]) if x.ndim else x,
    }[way]()


@st.composite
def content(draw: Draw, data: bytes) -> bytes:
    """Checkpoint with one changed value or another structure."""
    tree = torch.load(io.BytesIO(data), weights_only=True)
    way = draw(st.integers(0, 5))
    if way == 0:
        name = draw(st.sampled_from([k for k, x in tree["state_dict"].items()]))
        tree["state_dict"][name] = draw(tensor(tree["state_dict"][name]))
    elif way == 1:
        x = torch.zeros(2)
        tree = draw(
            st.sampled_from(
                (
                    [],
                    7,
                    {},
                    {"a": 1},
                    {"state_dict": {}},
                    {"fourfold": None},
                    {"fourfold": {}},
                    tree["state_dict"],
                    x,
                )
            )
        )
    else:
        section = draw(
            st.sampled_from(
                ("fourfold", "fourfold", "state_dict", "loops", "ResumableDataModule", "")
            )
        )
        section = next((key for key in tree if key.startswith(section) and section), "")
        part = tree[section] if isinstance(tree.get(section), dict) and tree[section] else tree
        made = draw(changed(part, st.sampled_from([*ODD[:30], *SIZES])))
        tree = {**tree, section: made} if part is not tree else made
    return saved(tree, _use_new_zipfile_serialization=draw(st.integers(0, 7)) > 0)


@st.composite
def archive(draw: Draw, data: bytes) -> bytes:
    """Checkpoint whose zip archive lacks a member or contains a damaged member."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen = draw(st.sampled_from(names))
        way = draw(st.sampled_from(("gone", "empty", "spoilt", "twice", "renamed", "packed")))
        for name in names:
            kept = old.read(name)
            if name != chosen:
                new.writestr(name, kept)
            elif way == "empty":
                new.writestr(name, b"")
            elif way == "spoilt":
                new.writestr(name, draw(spoilt(kept)))
            elif way == "packed":
                new.writestr(name, kept, zipfile.ZIP_DEFLATED)
            elif way in ("twice", "renamed"):
                new.writestr("x/" + name, kept)
                with warnings.catch_warnings(action="ignore"):
                    new.writestr(name if way == "twice" else "y", kept)
    return out.getvalue()


def hostile(draw: Draw) -> bytes:
    """Return a pickle that runs code, or bytes that are not a checkpoint."""
    options = (
        saved({"fourfold": Hostile(), "state_dict": {}}),
        saved(Hostile()),
        saved({"state_dict": Hostile()}, _use_new_zipfile_serialization=False),
        pickle.dumps(Hostile()),
        pickle.dumps({"fourfold": {}}),
        b"",
        b"PK\x03\x04",
        b"\x80\x02.",
        b"hello",
        bytes(5000),
        b"\x93NUMPY\x01\x00",
    )
    return bytes(draw(st.sampled_from(options)))


@st.composite
def ours(draw: Draw, world: "World") -> Case:
    """Command that reads a damaged checkpoint of fourfold."""
    family = draw(st.sampled_from(list(VERBS)))
    data = world.checkpoint(family)
    way = draw(st.integers(0, 9))
    if way < 5:
        data = draw(content(data))
    elif way < 7:
        data = draw(spoilt(data))
    else:
        data = draw(archive(data)) if way < 9 else hostile(draw)
    fit = ("fit", "--config", str(world.configs[family]), "--run_dir", "r")
    calls: list[tuple[str, ...]] = [
        ("test", "--config", str(world.configs[family]), "--run_dir", "r", "--ckpt_path", "f.ckpt"),
        ("export", "f.ckpt", "out"),
        ("import", "f.ckpt", "out.ckpt"),
        (*fit, "--ckpt_path", "f.ckpt", "--trainer.max_steps=2", "--trainer.max_epochs=2"),
        (*fit, "--model.init_from", "f.ckpt"),
        (VERBS[family], "--checkpoint", "f.ckpt"),
        (VERBS[family], "--checkpoint", "f.ckpt"),
        (
            "fit",
            "--config",
            str(world.configs["mt"]),
            "--run_dir",
            "r",
            "--data.tokenizer.file=f.ckpt",
        ),
    ]
    asked = {"classes": b"one two\ttwo\n", "vit": b"good.png\n"}.get(family, b"one two [MASK]\n")
    files: Files = {"f.ckpt": data, "good.png": made("L", "PNG", (8, 8))}
    return Case(draw(st.sampled_from(calls)), files, asked, ("f.ckpt", "the checkpoint"))


@st.composite
def weights(draw: Draw, data: bytes) -> bytes:
    """Damaged model.safetensors."""
    way = draw(st.integers(0, 5))
    if way == 0:
        return draw(spoilt(data))
    (n,) = struct.unpack("<Q", data[:8])
    if way == 1:
        wrong = draw(st.sampled_from((0, n - 1, n + 1, 2**62, len(data))))
        return struct.pack("<Q", wrong) + data[8:]
    if way == 2:
        head = draw(changed(json.loads(data[8 : 8 + n]), st.sampled_from([*SIZES, "F99", "I64"])))
        text = json.dumps(head).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + n :]
    tensors = load(data)
    name = draw(st.sampled_from(sorted(tensors)))
    found = draw(tensor(tensors[name]))
    if way == 3 or found is None or found.is_sparse:
        del tensors[name]
        extra = {"odd": torch.zeros(2)} if draw(st.booleans()) else {}
        return save({**tensors, **extra})
    return save({**tensors, name: found.contiguous()})


@st.composite
def theirs(draw: Draw, world: "World") -> Case:
    """Command that reads a Hugging Face directory with one damaged file."""
    family = draw(st.sampled_from(list(world.exported)))
    files: Files = {f"d/{p.name}": p.read_bytes() for p in world.exported[family].iterdir()}
    name = draw(
        st.sampled_from(["d/config.json"] * 3 + ["d/model.safetensors"] * 2 + sorted(files))
    )
    data = files[name]
    assert isinstance(data, bytes)
    way = draw(st.integers(0, 9))
    if way == 0:
        del files[name]
    elif way == 1:
        files[name] = draw(spoilt(data))
    elif way == 2:
        del files["d/model.safetensors"]
        files["d/pytorch_model.bin"] = hostile(draw)
    elif way == 3:
        files[name] = None
    elif name.endswith(".safetensors"):
        files[name] = draw(weights(data))
    elif name.endswith(".md"):  # nothing reads the model card
        files[name] = draw(spoilt(data))
    else:
        tree = json.loads(data)
        assert paths(tree)
        files[name] = json.dumps(draw(changed(tree, st.sampled_from([*ODD[:30], *SIZES])))).encode()
    config = world.configs[family if family != "classes" else "mlm"]
    fit = ("fit", "--config", str(config), "--run_dir", "r", "--model.init_from", "d")
    calls = (("import", "d", "out.ckpt"), ("import", "d", "out.ckpt"), fit)
    return Case(draw(st.sampled_from(calls)), files, names=("d/", "d:"))


def cases(world: "World") -> st.SearchStrategy[Any]:
    """Return the strategy of damaged checkpoints and Hugging Face directories."""
    return st.booleans().flatmap(lambda mine: ours(world) if mine else theirs(world))
