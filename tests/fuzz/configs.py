"""Invalid config files and command lines."""

import copy
from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import yaml
from hypothesis import strategies as st

from fourfold.models import CausalLMConfig, EncoderDecoderConfig, MaskedLMConfig, ViTConfig
from tests.fuzz.damage import ODD, Draw, changed, paths, spoilt
from tests.fuzz.invariant import Case, Files

if TYPE_CHECKING:
    from tests.fuzz.conftest import World

MODEL_CONFIGS = (CausalLMConfig, EncoderDecoderConfig, MaskedLMConfig, ViTConfig)
TRAINING = ("fit", "fit", "fit", "validate", "test", "predict", "plan", "plan")
# Small sizes and impossible sizes. Sizes in between would allocate large models.
NUMBERS = [
    "-1",
    "0",
    "1",
    "3",
    "2.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    str(10**18),
    str(2**63),
    "true",
    "null",
]
WORDS = [
    "",
    " ",
    "x",
    "[]",
    "[1, 2]",
    "{}",
    "{a: 1}",
    "{class_path: os.system}",
    "a: b: c",
    "\t",
    "é\u2028",
    "!!python/object:os.system {}",
    "'",
    "=",
    "--",
    "${HOME}",
    "y" * 3000,
]
# Options that start processes, wait for other machines or extend the training are not changed.
LEFT_ALONE = (
    "devices",
    "num_nodes",
    "strategy",
    "num_workers",
    "max_steps",
    "max_epochs",
    "min_epochs",
    "max_time",
    "limit_train_batches",
    "n_layers",
    "n_decoder_layers",
    "rows",
    "default_root_dir",
    "compile",  # torch compiles in other processes, for minutes
)
MORE = (
    "nothing",
    "model.nothing",
    "data.nothing.x",
    "help",
    "model.help",
    "config",
    "trainer.callbacks.x",
)
DEVICES = ("-1", "0", "1", "auto", "x", "[]", "[0, 0]", "1.5", "null")


# Values that are valid for some option.
MILD = ("0", "1", "2", "3", "4", "8", "0.1", "0.5", "1.0")
KNOWN = [
    "relu",
    "gelu",
    "silu",
    "glu",
    "mlp",
    "rms",
    "layer",
    "pre",
    "post",
    "learned",
    "sinusoidal",
    "none",
    "bpe",
    "byte_bpe",
    "char",
    "unigram",
    "word",
    "wordpiece",
    "truncate",
    "drop",
    "error",
    "line",
    "file",
    "paragraph",
    "linear",
    "cosine",
    "noam",
    "constant",
    "sgd",
    "adam",
    "adamw",
    "all",
    "matrices",
    "32-true",
    "bf16-mixed",
    "bf16-true",
    "64-true",
    "16-mixed",
    "min",
    "max",
    "norm",
    "value",
    "warn",
    "cpu",
    "auto",
    "simple",
    "bert",
    "gpt2",
    "vaswani",
    "builtin",
    "digits",
    "crops",
    "blocks",
    "documents",
    "segment_pairs",
    "full_sentences",
    "first",
    "mean",
    "cls",
    "val/loss",
    "val/top1",
    "never",
    "must",
    "last",
    "best",
]


def value_for(draw: Draw, good: Any) -> Any:
    """Return another value, mostly of the type of `good`."""
    kinds: list[Any] = [WORDS, NUMBERS, ODD]
    if isinstance(good, bool):
        kinds += [("true", "false")] * 9
    elif isinstance(good, int | float):
        kinds += [NUMBERS] * 4 + [MILD] * 8
    elif good is None:
        kinds += [MILD] * 5 + [KNOWN] * 5
    elif isinstance(good, str):
        kinds += [KNOWN] * 9
    return draw(st.sampled_from(draw(st.sampled_from(kinds))))


@st.composite
def yaml_text(draw: Draw, world: "World", family: str) -> str:
    """YAML text of a config with a changed value or a damaged line."""
    good = world.configs[family].read_text()
    way = draw(st.integers(0, 9))
    if way < 2:
        odd = st.sampled_from([*ODD, *NUMBERS, *WORDS])
        return str(yaml.safe_dump(draw(changed(yaml.safe_load(good), odd)), allow_unicode=True))
    if way < 8:
        tree = copy.deepcopy(world.whole[family])
        *above, last = draw(st.sampled_from(ways(tree)))
        inner = tree
        for key in above:
            inner = inner[key]
        value = value_for(draw, inner[last])
        inner[last] = yaml.safe_load(value) if value in (*NUMBERS, *MILD) else value
        return str(yaml.safe_dump(tree, allow_unicode=draw(st.booleans())))
    rows = good.splitlines()
    at = draw(st.integers(0, len(rows) - 1))
    wrong = draw(
        st.sampled_from(
            (
                rows[at],
                "\tx: 1",
                "a: b: c",
                "- x",
                "}",
                "<<: *none",
                "%YAML 9",
                "--- {}",
                "? [a]: b",
                "1: 2",
                "null: x",
                "? {a: 1}\n: 2",
                "x: &a [*a]",
                "\x07",
                "&b",
                "!!set {}",
            )
        )
    )
    return "\n".join([*rows[:at], wrong, *rows[at:]]) + "\n"


def ways(tree: Any, left_alone: Collection[str] = LEFT_ALONE) -> list[tuple[Any, ...]]:
    """Return the paths of options that may be changed safely; sections are less frequent."""
    found = []
    for way in paths(tree):
        value = tree
        for key in way:
            value = value[key]
        if not set(left_alone) & set(way):
            found += [way] * (1 if isinstance(value, dict) else 4)
    return found


@st.composite
def with_file(draw: Draw, world: "World") -> Case:
    """Command with an invalid config file."""
    verb = draw(st.sampled_from(TRAINING))
    family = draw(st.sampled_from(list(world.configs)))
    content: bytes | str | None
    way = draw(st.integers(0, 9))
    if way == 0:
        content = draw(
            st.sampled_from(
                (
                    b"",
                    b"\x00" * 90,
                    b"\xff\xfe",
                    None,
                    "c.yaml",
                    b"# only\n",
                    b"null",
                    b"7",
                    b"model: {}",
                    b"model: null\ndata: null\n",
                )
            )
        )
    elif way == 1:
        content = draw(spoilt(world.configs[family].read_bytes()))
    else:
        content = draw(yaml_text(world, family)).encode("utf-8", "surrogatepass")
    more = ["--run_dir", "r"] if verb != "plan" else []
    if verb in ("validate", "test", "predict"):
        more += ["--ckpt_path", str(world.runs[family] / "checkpoints/last.ckpt")]
    names = (
        "c.yaml",
        "checkpoint",
        "must be given",
        "arguments are required: ",
        "there is no such file",
        "to hold out",
        "/text/",
        *("trainer:", "optimizer.", "schedule.", "tuning."),  # options in messages of Python
        *(f"{field.name} must" for config in MODEL_CONFIGS for field in fields(config)),
    )
    return Case((verb, "--config", "c.yaml", *more), {"c.yaml": content}, names=names)


@st.composite
def with_options(draw: Draw, world: "World") -> Case:
    """Command with a valid config file and one or two invalid options."""
    verb = draw(st.sampled_from(TRAINING))
    family = draw(st.sampled_from(list(world.configs)))
    options = []
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        way = draw(st.sampled_from(ways(world.whole[family])))
        good = world.whole[family]
        for key in way:
            good = good[key]
        name, value = ".".join(map(str, way)), value_for(draw, good)
        special = draw(st.integers(0, 20))
        if special < 2:
            name, value = "trainer.devices", draw(st.sampled_from(DEVICES))
        elif special == 2:
            name = draw(st.sampled_from(MORE))
        if draw(st.booleans()):
            name = name.replace("init_args.", "")
        form = draw(st.sampled_from(("{}={}",) * 20 + ("{}", "{}+={}", "{} {}")))
        options += f"--{form.format(name, value)}".split(" ", 1)
    more = ["--run_dir", "r"] if verb != "plan" and draw(st.integers(0, 4)) else []
    if verb in ("validate", "test", "predict") and draw(st.integers(0, 5)):
        more += ["--ckpt_path", str(world.runs[family] / "checkpoints/last.ckpt")]
    return Case((verb, "--config", str(world.configs[family]), *more, *options))


@st.composite
def other_verbs(draw: Draw, world: "World") -> Case:
    """Invalid command lines of the commands without a config file."""
    mt, lm = (str(world.runs[name]) for name in ("mt", "lm"))
    model = str(world.exported["mlm"])
    word = st.sampled_from(
        [
            "",
            "x",
            "-x",
            "--x",
            "--x=1",
            "--help=3",
            "0",
            "f.ckpt",
            "d",
            "d/e/f",
            "\t",
            "f.ckpt/x",
            "owner/name",
            "y" * 300,
            "a\x01b",  # a system passes no NUL
            "é\u2028",
            ".",
            mt,
            model,
        ]
    )
    numbers = st.sampled_from([*NUMBERS, "x", "", "7"])
    verb = draw(
        st.sampled_from(
            (
                "import",
                "export",
                "translate",
                "generate",
                "fill",
                "classify",
                "seeds",
                "plan",
                "",
                "fti",
            )
        )
    )
    files: Files = {"f.ckpt": b"x", "d": None}
    if verb in ("import", "export"):
        good = draw(st.sampled_from(([], [], [model if verb == "import" else mt])))
        names = [*good, *draw(st.lists(word, min_size=2 - len(good), max_size=2 - len(good)))]
        return Case((verb, *names), files)
    if verb in ("translate", "generate", "fill", "classify"):
        run = draw(st.sampled_from((mt, lm, str(world.runs["mlm"]), draw(word))))
        names = (
            "beam",
            "length-penalty",
            "length-penalty-type",
            "max-new",
            "n-best",
            "num-return-sequences",
            "repetition-penalty",
            "no-repeat-ngram-size",
            "min-length",
            "min-new-tokens",
            "forced-bos-token-id",
            "min-p",
            "temperature",
            "top-k",
            "top-p",
            "seed",
            "batch-size",
            "device",
            "precision",
            "truncate",
        )
        chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
        options = [f"--{name}={draw(numbers | word)}" for name in chosen]
        if "max-new" not in chosen and verb in ("translate", "generate"):
            options.append("--max-new-tokens=3")
        return Case((verb, "--checkpoint", run, *options), files, stdin=b"one two\n[MASK] one\n\n")
    if verb == "seeds":
        seeds = draw(st.sampled_from(("", "x", "-1", "1,1", "1,,2", "²", "1.5", "--seeds")))
        return Case(
            (verb, f"--seeds={seeds}", *draw(st.sampled_from(((), ("--run_dir=r",))))), files
        )
    return Case((verb, *draw(st.lists(word, max_size=2))), files)


def cases(world: "World") -> st.SearchStrategy[Any]:
    """Return the strategy of config files, options and other commands."""
    kinds = (with_file, with_file, with_options, with_options, other_verbs)
    return st.sampled_from(kinds).flatmap(lambda kind: kind(world))
