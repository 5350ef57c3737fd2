"""Inputs whose counts, depths or sizes would need much more time or memory than their files."""

import copy
import io
import json
import struct
from typing import TYPE_CHECKING, Any

import torch
import yaml
from hypothesis import strategies as st

from tests.fuzz.checkpoints import VERBS, saved
from tests.fuzz.configs import ways
from tests.fuzz.damage import Draw, paths
from tests.fuzz.images import announced, made
from tests.fuzz.invariant import Case, Files

if TYPE_CHECKING:
    from tests.fuzz.conftest import World

HUGE = (10**9, 10**9, 2**31 - 1, 2**31, 2**63, 10**21, 10**400, -(10**21))
# Options that extend a valid training, start processes, or only name a value of another program.
LEFT_ALONE = {
    *("max_steps", "max_epochs", "min_epochs", "min_steps", "max_time", "devices", "num_nodes"),
    *("limit_train_batches", "limit_val_batches", "accumulate_grad_batches", "rows", "strategy"),
    *("limit_test_batches", "limit_predict_batches", "warmup_steps", "overfit_batches"),
    "num_workers",
}
INFERENCE = ("seed", "temperature", "top-p", "top-k")
PATTERNS = (r" ?\p{L}+| ?\p{N}+|\s+(?!\S)|\s+", r"\s*[\r\n]+", r".*.*x", "(" * 3000, "[", "")


def nested(draw: Draw) -> str:
    """Return a deeply nested value, in the syntax that YAML and JSON share."""
    n = draw(st.sampled_from((70, 900, 3000, 100_000)))
    begin, end = draw(st.sampled_from((("[", "]"), ('{"a": ', "}"), ("[", ""))))
    return begin * n + "1" * bool(end) + end * n


def digits(draw: Draw) -> str:
    """Return a number that Python does not convert, or only slowly."""
    n = draw(st.sampled_from((400, 5000, 1_000_000)))
    return draw(
        st.sampled_from(("9" * n, "-" + "9" * n, "0x" + "f" * n, "1:" * n + "1", "1e" + "9" * n))
    )


@st.composite
def recipes(draw: Draw, world: "World") -> Case:
    """Training whose config file or option has a huge value."""
    family = draw(st.sampled_from(list(world.configs)))
    verb = draw(st.sampled_from(("fit", "fit", "plan", "test")))
    good = world.configs[family].read_text()
    more = ["--run_dir", "r"] * (verb != "plan")
    way = draw(st.integers(0, 5))
    if way < 5:
        tree = copy.deepcopy(world.whole[family])
        numbers = [way for way in ways(tree, LEFT_ALONE) if _is_count(tree, way)]
        *above, last = draw(st.sampled_from(numbers))
        value = draw(st.sampled_from((*HUGE, 1000)))
        if way < 2:
            option = ".".join(map(str, (*above, last)))
            return Case(
                (verb, "--config", str(world.configs[family]), f"--{option}={value}", *more)
            )
        inner = tree
        for key in above:
            inner = inner[key]
        inner[last] = value
        text = str(yaml.safe_dump(tree))
    else:
        text = good + "\n".join(f"x{i}: 1" for i in range(50_000))
    return Case((verb, "--config", "c.yaml", *more), {"c.yaml": text.encode()})


def _is_count(tree: Any, way: tuple[Any, ...]) -> bool:
    for key in way:
        tree = tree[key]
    sizes = ("vocab_size", "n_classes", "max_tokens", "batch_size", "eval_batch_size")
    return way[-1] in sizes or (isinstance(tree, int) and not isinstance(tree, bool))


@st.composite
def asking(draw: Draw, world: "World") -> Case:
    """Inference command with huge options or lines."""
    verb, family = draw(
        st.sampled_from(
            (("translate", "mt"), ("generate", "lm"), ("fill", "mlm"), ("classify", "tags"))
        )
    )
    names = draw(st.lists(st.sampled_from(INFERENCE), min_size=0, max_size=2, unique=True))
    options = [f"--{name}={draw(st.sampled_from((*HUGE, '9' * 5000)))}" for name in names]
    if verb in ("translate", "generate"):
        options.append("--max-new-tokens=3")
    n = draw(st.sampled_from((1, 3, 20)))
    line = draw(
        st.sampled_from((b"one two [MASK]\n", b"a" * 20_000 + b"\n", b"a b " * 9000 + b"\n"))
    )
    return Case(
        (verb, "--checkpoint", str(world.runs[family]), "--truncate", *options), {}, line * n
    )


def tokenizer(draw: Draw, text: str) -> str:
    """Return a tokenizer.json with another pattern, a large id or nested values."""
    tree = json.loads(text)
    way = draw(st.integers(0, 4))
    pattern = draw(st.sampled_from(PATTERNS))
    replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "_"}
    if way < 2:
        split = {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        }
        tree["pre_tokenizer"] = split
    elif way == 2:
        tree[draw(st.sampled_from(("normalizer", "decoder")))] = replace
    elif way == 3:
        last = draw(st.sampled_from((70_000, 10**21)))
        if isinstance(tree["model"].get("vocab"), dict) and draw(st.booleans()):
            tree["model"]["vocab"]["zz"] = last
        elif tree.get("added_tokens"):
            tree["added_tokens"][-1]["id"] = last
    else:
        return text.replace('"normalizer"', f'"x": {nested(draw)}, "normalizer"', 1)
    return json.dumps(tree)


@st.composite
def tokenizers(draw: Draw, world: "World") -> Case:
    """Command that reads a hostile tokenizer."""
    family = draw(st.sampled_from(("mt", "lm", "mlm", "classes", "tags")))
    data = torch.load(io.BytesIO(world.checkpoint(family)), weights_only=True)
    text = tokenizer(draw, data["fourfold"]["data"]["tokenizer"])
    way = draw(st.integers(0, 2))
    if way == 0:
        fit = ("fit", "--config", str(world.configs[family]), "--run_dir", "r")
        return Case((*fit, "--data.tokenizer.file=t.json"), {"t.json": text.encode()})
    if way == 1 and family in world.exported:
        files: Files = {f"d/{p.name}": p.read_bytes() for p in world.exported[family].iterdir()}
        return Case(("import", "d", "out.ckpt"), {**files, "d/tokenizer.json": text.encode()})
    data["fourfold"]["data"]["tokenizer"] = text
    asked = (
        b"one two\ttwo\n" if family == "classes" else b"one two [MASK] aaaaaaaaaaaaaaaaaaaaaaa\n"
    )
    call = (VERBS[family], "--checkpoint", "f.ckpt")
    new = ("--max-new-tokens=3",) if family in ("mt", "lm") else ()
    return Case((*call, *new), {"f.ckpt": saved(data)}, asked)


@st.composite
def checkpoints(draw: Draw, world: "World") -> Case:
    """Command that reads a checkpoint whose counts or tensors are larger than its file."""
    family = draw(st.sampled_from(list(VERBS)))
    tree = torch.load(io.BytesIO(world.checkpoint(family)), weights_only=True)
    head, way = tree["fourfold"], draw(st.integers(0, 6))
    config = head["model"]["config"]
    if way < 3:
        counts = [name for name, x in config.items() if isinstance(x, int) and x is not True]
        for name in draw(st.lists(st.sampled_from(counts), min_size=1, max_size=2)):
            config[name] = draw(st.sampled_from((*HUGE, 1000, 500_000)))
    elif way == 3:
        name = draw(st.sampled_from(sorted(tree["state_dict"])))
        shape = draw(st.sampled_from(((2**31, 2**20), (2**20, 64), (10**9,))))
        kind = draw(st.sampled_from((torch.float32, torch.float16)))
        tree["state_dict"][name] = torch.zeros(1, dtype=kind).expand(*shape)
        if draw(st.booleans()):
            config.update({key: shape[0] for key in ("vocab_size", "max_len") if key in config})
    elif way == 4:
        value: Any = draw(st.sampled_from((10**5000, "x")))
        for _ in range(draw(st.sampled_from((25, 90)))):
            value = draw(st.sampled_from(([value, value], {"a": value, "b": value}, (value,))))
        sections = (head, head["model"], config, head["task"]["init_args"], head["data"])
        section = draw(st.sampled_from(sections))
        section[draw(st.sampled_from(sorted(section)))] = value
    elif way == 5:
        head["task"]["init_args"].update(dict.fromkeys(("num_beams", "max_new_tokens"), 10**9))
    else:
        tree["state_dict"] |= {f"model.x{i}": torch.zeros(0) for i in range(2000)}
        config.update(dict.fromkeys({"n_layers", "max_len"} & config.keys(), 1000))
    calls: list[tuple[str, ...]] = [
        ("export", "f.ckpt", "out"),
        (VERBS[family], "--checkpoint", "f.ckpt"),
        ("fit", "--config", str(world.configs[family]), "--run_dir=r", "--model.init_from=f.ckpt"),
        ("fit", "--config", str(world.configs[family]), "--run_dir=r", "--ckpt_path=f.ckpt"),
    ]
    asked = {"classes": b"one two\ttwo\n", "vit": b"good.png\n"}.get(family, b"one two [MASK]\n")
    files: Files = {"f.ckpt": saved(tree), "good.png": made("L", "PNG", (8, 8))}
    return Case(draw(st.sampled_from(calls)), files, asked)


@st.composite
def directories(draw: Draw, world: "World") -> Case:
    """Import of a directory whose config.json, header or index describes more than its files."""
    family = draw(st.sampled_from(list(world.exported)))
    files: Files = {f"d/{p.name}": p.read_bytes() for p in world.exported[family].iterdir()}
    weights, text = files["d/model.safetensors"], files["d/config.json"]
    assert isinstance(weights, bytes)
    assert isinstance(text, bytes)
    way = draw(st.integers(0, 5))
    if way < 3:
        tree = json.loads(text)
        counts = [way for way in paths(tree) if _is_count(tree, way)]
        for _ in range(draw(st.sampled_from((1, 1, 3)))):
            *above, last = draw(st.sampled_from(counts))
            inner = tree
            for key in above:
                inner = inner[key]
            inner[last] = draw(st.sampled_from((*HUGE, 1000, 500_000)))
        files["d/config.json"] = json.dumps(tree).encode()
    elif way == 3:
        odd = draw(st.sampled_from((nested, digits)))(draw)
        files["d/config.json"] = text.replace(b"{", b'{"x": ' + odd.encode() + b",", 1)
    elif way == 4:
        (n,) = struct.unpack("<Q", weights[:8])
        head = json.loads(weights[8 : 8 + n])
        name = draw(st.sampled_from(sorted(head.keys() - {"__metadata__"})))
        head[name]["shape"] = draw(st.sampled_from(([10**9], [10**9, 0], [2**62, 4], [2**31] * 2)))
        if draw(st.booleans()):
            head[name]["data_offsets"] = draw(st.sampled_from(([0, 0], [0, 2**40])))
        made_head = json.dumps(head).encode()
        files["d/model.safetensors"] = (
            struct.pack("<Q", len(made_head)) + made_head + weights[8 + n :]
        )
    else:
        name = draw(st.sampled_from(("../good.safetensors", "/dev/zero", "d/../../x", "..", "")))
        files["good.safetensors"] = files.pop("d/model.safetensors")
        files["d/model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
    return Case(("import", "d", "out.ckpt"), files)


@st.composite
def images(draw: Draw, world: "World") -> Case:
    """Classification of an image with many pixels."""
    side = draw(st.sampled_from((8500, 60_000, 2**30)))
    data = announced(side, side)
    call = ("classify", "--checkpoint", str(world.runs["vit"]))
    return Case(call, {"a.png": data}, b"a.png\n", names=("<stdin>:",))


def cases(world: "World") -> st.SearchStrategy[Any]:
    """Return the strategy of all inputs."""
    kinds = (recipes, recipes, recipes, asking, tokenizers, tokenizers, checkpoints, checkpoints)
    more = (directories, directories, images)
    return st.sampled_from((*kinds, *more)).flatmap(lambda kind: kind(world))
