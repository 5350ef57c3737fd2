"""Model directories, chat templates, tokenizers and word vectors from somebody else."""

import io
import json
import math
import struct
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load, save

from fourfold.json_files import TYPES
from tests.fuzz.checkpoints import VERBS, saved
from tests.fuzz.damage import ODD, Draw, changed, paths
from tests.fuzz.images import made
from tests.fuzz.invariant import Case, Files

if TYPE_CHECKING:
    from tests.fuzz.conftest import World


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# One value or more of every type, and values at the bounds of the types.
VALUES: list[Any] = [
    *(None, True, False, [], [1, "x"], [None], [[]], {}, {"x": 1}, {"0": []}),
    *(-1, 0, 1, 7, 2**31, 2**63, 10**30, -(2**63), 30_000),
    *(0.5, -0.5, 1e-300, 1e308, math.nan, math.inf, -math.inf),
    *("", "x", "\ud800", "y" * 5000, "a\x00\x1b[31m\nb\u2028", "../../x", "1e999"),
    *(_deep(5), _deep(90), [0.5] * 3, [2, 3], {"height": 8, "width": 8}, {"shortest_edge": 30_000}),
]
# Optional files that the import reads, by family. The file is in the place of an absent one.
OPTIONAL = {
    "vit": ("preprocessor_config.json", "generation_config.json"),
    "lm": (
        *("generation_config.json", "tokenizer_config.json", "chat_template.jinja"),
        "tokenizer.json",
    ),
    **dict.fromkeys(("mt", "mlm", "classes"), ("generation_config.json", "tokenizer.json")),
}
# A link without a target, a folder, nothing, and content that is neither JSON nor text.
BROKEN = ("nowhere", None, b"", b"\xff\xfe{")
NO_JSON = (b"{", b"[]", b'{"a": 1e', b"7", b"null")
TEMPLATES = (
    *('{{ "\\ud800" }}', '{{ "\\udc80" * 9 }}', "{{ messages[0].content }}", "{{ x.y.z }}", "{%"),
    *("{% for i in range(10 ** 9) %}{% endfor %}", "{{ ''.__class__ }}"),
    *("{{ raise_exception('no\\nway\\x1b[31m') }}", "{{ 1 / 0 }}", "{{ messages | tojson }}"),
    *("{% set x = namespace(a=1) %}{% set x.a = x %}{{ x }}", "{% include 'x' %}", "\x00", "{#"),
    *("{{ messages.pop() }}", "{{ self.__init__.__globals__ }}", "{% macro m() %}{{ m() }}"),
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    *(
        "{{ strftime_now(messages) }}",
        "{{ strftime_now('%' * 999) }}",
        "{{ range(9) | max(1, 2) }}",
    ),
)


def files_of(world: "World", family: str) -> Files:
    """Return the files of an exported directory, and further optional files."""
    files: Files = {f"d/{p.name}": p.read_bytes() for p in world.exported[family].iterdir()}
    files.setdefault("d/generation_config.json", b'{"eos_token_id": [2, 1], "num_beams": 1}')
    if family == "lm":
        files["d/chat_template.jinja"] = b"{{ messages[0].content }}"
    return files


def call_of(draw: Draw, family: str) -> tuple[str, ...]:
    """Return a command that reads the directory `d`."""
    new = ("--max-new-tokens=3",) if family in ("mt", "lm") else ()
    return draw(
        st.sampled_from((("import", "d", "out.ckpt"), (VERBS[family], "--checkpoint", "d", *new)))
    )


def stdin_of(family: str) -> bytes:
    return {"classes": b"one two\ttwo\n", "vit": b"good.png\n"}.get(family, b"one two [MASK]\n")


@st.composite
def settings(draw: Draw, world: "World") -> Case:
    """Directory in which one value of a JSON file has another type or size."""
    family = draw(st.sampled_from(list(world.exported)))
    files = files_of(world, family)
    files["good.png"] = made("L", "PNG", (8, 8))
    names = [name for name in files if name.removeprefix("d/") in TYPES]
    name = draw(st.sampled_from([*names, "d/config.json", "d/preprocessor_config.json"]))
    tree = json.loads(files.get(name) or b"{}")  # type: ignore[arg-type]
    known = [(key,) for key in TYPES[name.removeprefix("d/")]]
    *above, last = draw(st.sampled_from([*(paths(tree) if tree else ()), *known]))
    inner = tree
    for key in above:
        inner = inner[key]
    inner[last] = draw(st.sampled_from(VALUES))
    files[name] = json.dumps(tree).encode()
    return Case(call_of(draw, family), files, stdin_of(family), names=("d/", "d:", "--"))


@st.composite
def optional(draw: Draw, world: "World") -> Case:
    """Directory in which an optional file is present, but cannot be read."""
    family = draw(st.sampled_from(list(OPTIONAL)))
    name = draw(st.sampled_from(OPTIONAL[family]))
    broken = BROKEN if name.endswith(".jinja") else (*BROKEN, *NO_JSON)
    files = files_of(world, family) | {f"d/{name}": draw(st.sampled_from(broken))}
    files["good.png"] = made("L", "PNG", (8, 8))
    return Case(call_of(draw, family), files, stdin_of(family), names=(name,), refused=True)


def unsuitable(draw: Draw, x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the shape of `x` that is no floating-point tensor with its own storage."""
    made: dict[str, torch.Tensor] = {
        "int": x.to(draw(st.sampled_from((torch.int32, torch.int64, torch.int8, torch.uint8)))),
        "bool": x.bool(),
        "complex": x.to(torch.complex64),
        "meta": x.to("meta"),
        "sparse": torch.sparse_coo_tensor(
            torch.zeros(x.ndim, 0, dtype=torch.long), torch.zeros(0), x.shape
        ),
        "expanded": torch.zeros(1).expand(x.shape),
    }
    return made[draw(st.sampled_from(list(made)))]


@st.composite
def tensors(draw: Draw, world: "World") -> Case:
    """Directory or checkpoint with a tensor that must not become a weight."""
    family = draw(st.sampled_from(list(world.exported)))
    files = files_of(world, family)
    files["good.png"] = made("L", "PNG", (8, 8))
    data = files.pop("d/model.safetensors")
    assert isinstance(data, bytes)
    weights = load(data)
    names = [n for n, x in weights.items() if x.is_floating_point() and x.numel() > 1]
    name = draw(st.sampled_from(sorted(names)))
    way = draw(st.integers(0, 4))
    call = call_of(draw, family)
    if way == 0:  # the header names another type of the same width
        (n,) = struct.unpack("<Q", data[:8])
        head = json.loads(data[8 : 8 + n])
        head[name]["dtype"] = draw(st.sampled_from(("I32", "U32")))
        text = json.dumps(head).encode()
        data = struct.pack("<Q", len(text)) + text + data[8 + n :]
        files["d/model.safetensors"] = data
    elif way == 1:
        x = weights[name]
        kinds = (x.int(), x.bool(), x.to(torch.complex64), x.long())
        files["d/model.safetensors"] = save({**weights, name: draw(st.sampled_from(kinds))})
    elif way == 2:
        files["d/pytorch_model.bin"] = saved({**weights, name: unsuitable(draw, weights[name])})
    else:
        tree = torch.load(io.BytesIO(world.checkpoint(family)), weights_only=True)
        state = tree["state_dict"]
        name = draw(st.sampled_from(sorted(n for n, x in state.items() if x.numel() > 1)))
        state[name] = unsuitable(draw, state[name])
        files = {"f.ckpt": saved(tree), "good.png": files["good.png"]}
        config = str(world.configs[family])
        fit = ("fit", "--config", config, "--run_dir", "r", "--trainer.max_steps=2")
        call = draw(
            st.sampled_from(
                (
                    ("export", "f.ckpt", "out"),
                    (VERBS[family], "--checkpoint", "f.ckpt"),
                    (*fit, "--ckpt_path", "f.ckpt", "--trainer.max_epochs=2"),
                    (*fit, "--model.init_from", "f.ckpt"),
                    ("test", "--config", config, "--run_dir", "r", "--ckpt_path", "f.ckpt"),
                )
            )
        )
    return Case(call, files, stdin_of(family), names=("d/", "d:", "f.ckpt"), refused=True)


@st.composite
def shared(draw: Draw, world: "World") -> Case:
    """Small file with many tensors that share one storage, and a config of a large model."""
    family = draw(st.sampled_from(("lm", "mlm", "vit")))
    tree = torch.load(io.BytesIO(world.checkpoint(family)), weights_only=True)
    config = tree["fourfold"]["model"]["config"]
    n_layers = draw(st.sampled_from((50, 400)))
    state, config["n_layers"] = tree["state_dict"], n_layers
    for name in [name for name in state if ".blocks.0." in name]:
        for i in range(n_layers):
            state[name.replace(".blocks.0.", f".blocks.{i}.")] = state[name]
    call = draw(
        st.sampled_from((("export", "f.ckpt", "out"), (VERBS[family], "--checkpoint", "f.ckpt")))
    )
    return Case(call, {"f.ckpt": saved(tree)}, stdin_of(family), names=("f.ckpt",), refused=True)


@st.composite
def sources(draw: Draw, world: "World") -> Case:
    """Checkpoint of an import whose record of the original directory is invalid."""
    family = draw(st.sampled_from(list(world.exported)))
    tree = torch.load(io.BytesIO(world.checkpoint(family)), weights_only=True)
    good = json.loads((world.exported[family] / "config.json").read_text())
    source = {"config": good, "unmapped_tensors": {}, "is_base_model": False}
    source["generation_config"] = {"eos_token_id": 2}
    odd = st.sampled_from(VALUES)
    tree["source"] = draw(st.sampled_from((draw(odd), draw(changed(source, odd)))))
    call = draw(
        st.sampled_from((("export", "f.ckpt", "out"), (VERBS[family], "--checkpoint", "f.ckpt")))
    )
    files: Files = {"f.ckpt": saved(tree), "good.png": made("L", "PNG", (8, 8))}
    return Case(call, files, stdin_of(family))


@st.composite
def tokenizers(draw: Draw, world: "World") -> Case:
    """Directory or training with a tokenizer.json that has one invalid value."""
    family = draw(st.sampled_from(("mt", "lm", "mlm", "classes")))
    files = files_of(world, family)
    tree = json.loads(files["d/tokenizer.json"])  # type: ignore[arg-type]
    way = draw(st.integers(0, 4))
    if way == 0:
        tree["model"]["unk_token"] = draw(st.sampled_from(("zz", "", None, "y" * 5000)))
    elif way == 1:
        tree["added_tokens"] = tree.get("added_tokens", [])[: draw(st.integers(0, 3))]
    else:
        tree = draw(changed(tree, st.sampled_from([*VALUES, *ODD[:30]])))
    files["d/tokenizer.json"] = json.dumps(tree).encode()
    if draw(st.booleans()):
        call = call_of(draw, family)
    else:
        fit = ("fit", "--config", str(world.configs[family]), "--run_dir", "r")
        call = (*fit, "--data.tokenizer.file=d/tokenizer.json")
    return Case(call, files, b"one two\ttwo [MASK] \xc3\xa9\xe2\x82\xac\n")


@st.composite
def templates(draw: Draw, world: "World") -> Case:
    """Conversation with a hostile chat template."""
    files = files_of(world, "lm")
    text = draw(st.sampled_from(TEMPLATES))
    if draw(st.booleans()):
        text = draw(st.sampled_from(("a ", "{{ bos_token }}", "é"))) + text
    if draw(st.booleans()):
        files["d/chat_template.jinja"] = text.encode()
    else:
        del files["d/chat_template.jinja"]
        config = json.loads(files.get("d/tokenizer_config.json") or b"{}")  # type: ignore[arg-type]
        listed = [{"name": "default", "template": text}]
        config["chat_template"] = draw(st.sampled_from((text, listed, [], [7], {}, [{}])))
        files["d/tokenizer_config.json"] = json.dumps(config).encode()
    call = ("generate", "--chat", "--checkpoint", "d", "--max-new-tokens=3", "--truncate")
    return Case(call, files, b'one two\n[{"role": "user", "content": "one"}]\n')


@st.composite
def vectors(draw: Draw, world: "World") -> Case:
    """Training whose token embeddings come from an invalid file of word vectors."""
    width = 8
    number = st.sampled_from(
        (b"0.5", b"1", b"9" * 5000, b"1e" + b"9" * 5000, b"nan", b"x", b"", b"-")
    )
    header = draw(
        st.sampled_from(
            (b"", b"2 8\n", b"9" * 5000 + b" 8\n", b"2 " + b"9" * 5000 + b"\n", b"-1 8\n")
        )
    )
    rows = []
    for word in (b"one", b"two"):
        numbers = [b"0.5"] * draw(st.sampled_from((width, width, width, 0, 3)))
        if numbers:
            numbers[draw(st.integers(0, len(numbers) - 1))] = draw(number)
        rows.append(b" ".join([word, *numbers]) + b"\n")
    fit = ("fit", "--config", str(world.configs["lm"]), "--run_dir", "r")
    sizes = (f"--model.config.d_model={width}", "--model.config.n_heads=2")
    content = header + b"".join(rows)
    return Case((*fit, *sizes, "--model.init_from=v.txt"), {"v.txt": content}, names=("v.txt",))


def cases(world: "World") -> st.SearchStrategy[Any]:
    """Return the strategy of all of these inputs."""
    kinds = (settings, settings, settings, optional, tensors, tensors, shared, sources, tokenizers)
    more = (tokenizers, templates, vectors)
    return st.sampled_from((*kinds, *more)).flatmap(lambda kind: kind(world))
