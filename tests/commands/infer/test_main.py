import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from PIL import Image

import fourfold
from fourfold import generation
from fourfold.checkpoints.files import read_file, write_file
from fourfold.commands.infer import main
from fourfold.commands.infer.generate import GrowingText
from fourfold.commands.infer.line_io import escape
from fourfold.errors import InputError

Run = Callable[..., Any]
Train = Callable[[str], Path]
Ask = Callable[..., list[str]]


@pytest.fixture
def ask(run: Run, trained: Train, here: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """A verb on some text, from a checkpoint alone in an empty directory."""

    def call(verb: str, family: str, text: str | bytes, *options: object) -> Any:
        checkpoint = trained(family) / "checkpoints/last.ckpt"
        content = text.encode() if isinstance(text, str) else text
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return run(verb, "--checkpoint", checkpoint, *options)

    return call


def lines(result: Any) -> list[str]:
    assert result.code == 0, result.err
    assert result.out.endswith("\n")
    found: list[str] = result.out.split("\n")[:-1]
    return found


TEXT = "one two three\n\nfour\n   \nfive six seven one two\nten\n"
FILLED = [True, False, True, False, True, True]


@pytest.mark.parametrize(
    ("verb", "family", "options"),
    [
        ("translate", "mt", ["--max-new-tokens", 8]),
        ("translate", "mt", ["--num-beams", 1, "--max-new-tokens", 8]),
        (
            "translate",
            "mt",
            [
                "--num-beams=3",
                "--length-penalty=1",
                "--length-penalty-type=power",
                "--num-return-sequences=2",
            ],
        ),
        ("generate", "lm", ["--max-new-tokens", 5]),
        ("generate", "lm", ["--temperature=1", "--top_k=9", "--top-p=.9", "--seed=1"]),
        (
            "generate",
            "lm",
            [
                "--num-beams",
                2,
                "--max-new-tokens",
                4,
                "--num-return-sequences",
                2,
                "--document-start",
            ],
        ),
        ("fill", "mlm", []),
    ],
)
def test_one_line_for_each_line(verb: str, family: str, options: list[object], ask: Ask) -> None:
    whole = lines(ask(verb, family, TEXT, *options))
    assert [bool(line.strip()) for line in whole] == FILLED
    # Neither the batch nor the neighbours matter.
    assert lines(ask(verb, family, TEXT, *options, "--batch-size", 1)) == whole
    alone = [lines(ask(verb, family, line + "\n", *options))[0] for line in TEXT.split("\n")[4:6]]
    assert alone == whole[4:6]
    n_best = (
        2 if "--num-return-sequences" in options or "--num-return-sequences=2" in options else 1
    )
    assert all(line.count("\t") == n_best - 1 for line in whole if line)


def test_translations_are_those_of_the_test(ask: Ask, run: Run, trained: Train, text: Path) -> None:
    folder = trained("mt")
    assert run("predict", "--config", folder / "config.yaml", "--ckpt_path=last").code == 0
    expected = (folder / "predictions.txt").read_text()
    assert ask("translate", "mt", (text / "test.en").read_text()).out == expected


def test_a_continuation_follows_its_prompt(ask: Ask) -> None:
    whole = lines(ask("generate", "lm", "one two\n", "--max-new-tokens", 6))[0]
    assert whole.startswith("one two")
    new = lines(ask("generate", "lm", "one two\n", "--max-new-tokens", 6, "--only-new"))[0]
    assert "one two" + new == whole
    drawn = ["--temperature", 2, "--seed", 1, "--num-return-sequences", 3]
    three = lines(ask("generate", "lm", "one\n", *drawn))[0].split("\t")
    assert len(set(three)) == 3
    assert lines(ask("generate", "lm", "one\n", *drawn))[0].split("\t") == three
    assert (
        "--num-return-sequences needs"
        in ask("generate", "lm", "one\n", "--num-return-sequences", 2).err
    )


def test_long_lines(ask: Ask) -> None:
    long = "one\n" + "seven " * 60 + "\n"
    for verb, family in (("translate", "mt"), ("generate", "lm"), ("fill", "mlm")):
        result = ask(verb, family, long, *(["--max-new-tokens", 4] if verb == "generate" else []))
        assert result.code == 2
        assert result.err.startswith("fourfold: error: <stdin>:2: ")
        assert "--truncate" in result.err
        assert len(lines(ask(verb, family, long, "--truncate"))) == 2


def test_masks_are_filled(ask: Ask) -> None:
    given = "one [MASK] three\n<mask> two\nno mask here\n[MASK] [MASK]\n"
    filled = lines(ask("fill", "mlm", given))
    assert filled[0].startswith("one")
    assert filled[0].endswith(" three")
    assert filled[1].endswith(" two")
    assert filled[2] == "no mask here"
    assert not any("mask" in line.lower() for line in (filled[0], filled[1], filled[3]))
    several = lines(ask("fill", "mlm", given, "--top-k", 3))
    assert [line.count("\t") for line in several] == [2, 2, 0, 2]
    assert [line.split("\t")[0] for line in several] == filled
    assert len(set(several[3].split("\t"))) == 3


def test_images_are_classified(ask: Ask, trained: Train, here: Path) -> None:
    for number in range(3):
        Image.new("L", (8, 8), number * 100).save(here / f"{number}.png")
    given = "0.png\n\n1.png\n2.png\n"
    found = [line.split("\t") for line in lines(ask("classify", "vit", given))]
    assert [row[0] for row in found] == ["0.png", "", "1.png", "2.png"]
    assert all(row[1] in "0123456789" and 0.1 <= float(row[2]) <= 1 for row in found if row[0])
    all_classes = lines(ask("classify", "vit", "0.png\n", "--top-k", 20))[0].split("\t")[1:]
    assert sorted(all_classes[::2]) == list("0123456789")
    for name, written in ((" a b .png", " a b .png"), ("tab\there.png", "tab\\there.png")):
        shutil.copy(here / "0.png", here / name)
        assert lines(ask("classify", "vit", f"{name}\n"))[0].split("\t")[0] == written
    assert sum(map(float, all_classes[1::2])) == pytest.approx(1, abs=1e-3)
    model, images = fourfold.load(trained("vit")), ["0.png", Image.open("1.png"), Path("2.png")]
    best = fourfold.classify(model, images, batch_size=2).max(-1)
    assert [model.artifacts["class_names"][i] for i in best.indices] == [
        r[1] for r in found if r[0]
    ]
    assert best.values.tolist() == pytest.approx([float(r[2]) for r in found if r[0]], abs=1e-4)
    (here / "3.png").write_bytes(b"no image")
    for name in ("3.png", "4.png"):
        result = ask("classify", "vit", f"0.png\n{name}\n")
        assert result.code == 2
        assert "<stdin>:2: " in result.err
        assert name in result.err


def test_images_are_captioned(ask: Ask, run: Run, trained: Train, here: Path) -> None:
    from fourfold.data.vision.sources import digits

    images = digits()["test"]
    for row in range(3):
        images.encoded(row).save(here / f"{row}.png")
    given = "0.png\n\n1.png\n2.png\n"
    found = [line.split("\t") for line in lines(ask("caption", "captions", given))]
    assert [row[0] for row in found] == ["0.png", "", "1.png", "2.png"]
    folder = trained("captions")
    assert run("predict", "--config", folder / "config.yaml", "--ckpt_path=last").code == 0
    expected = (folder / "predictions.txt").read_text().splitlines()[:3]
    assert [row[1] for row in found if row[0]] == expected
    three = lines(
        ask("caption", "captions", "0.png\n", "--num-return-sequences", 3, "--max-new-tokens", 4)
    )[0]
    assert len(three.split("\t")) == 4
    result = ask("caption", "captions", "0.png\nnowhere.png\n")
    assert result.code == 2
    assert "<stdin>:2: " in result.err


def test_sentences_and_pairs_are_classified(ask: Ask) -> None:
    given = "one two\ttwo one\n\nthree\tten\nfour five six\tfour five six\n"
    found = [line.split("\t") for line in lines(ask("classify", "classes", given))]
    assert [len(row) for row in found] == [2, 1, 2, 2]
    assert all(row[0] in ("same", "other") and 0.5 <= float(row[1]) <= 1 for row in found if row[0])
    both = lines(ask("classify", "classes", given, "--top-k", 5))[0].split("\t")
    assert sorted(both[::2]) == ["other", "same"]
    assert sum(map(float, both[1::2])) == pytest.approx(1, abs=1e-3)
    alone = [lines(ask("classify", "classes", f"{line}\n"))[0] for line in given.split("\n")[:-1]]
    assert alone == ["\t".join(row) for row in found]  # whatever stood beside it
    result = ask("classify", "classes", "one\ttwo\tthree\n")
    assert (result.code, "<stdin>:1: the line must have 2 texts" in result.err) == (2, True)
    result = ask("classify", "classes", "one\n")
    assert (result.code, "must have 2 texts separated by tabs, got 1" in result.err) == (
        2,
        True,
    )
    long = "one " * 40 + "\ttwo\n"
    result = ask("classify", "classes", long)
    assert (result.code, "the model reads 16" in result.err) == (2, True)
    assert len(lines(ask("classify", "classes", long, "--truncate"))) == 1


def test_python_function_classifies_as_the_command(ask: Ask, trained: Train) -> None:
    pairs = [("one two", "two one"), ("four five six", "four five six")]
    given = "".join(f"{a}\t{b}\n" for a, b in pairs)
    found = lines(ask("classify", "classes", given, "--top-k", 2))
    model = fourfold.load(trained("classes"))
    probabilities = fourfold.classify(model, pairs, batch_size=1)
    for line, row in zip(found, probabilities.tolist(), strict=True):
        named = dict(zip(model.artifacts["class_names"], row, strict=True))
        cells = line.split("\t")
        assert {k: float(p) for k, p in zip(cells[::2], cells[1::2], strict=True)} == pytest.approx(
            named, abs=1e-4
        )
    with pytest.raises(InputError, match="must have 2 texts"):
        fourfold.classify(model, ["one"])
    with pytest.raises(
        InputError, match="model must be a classifier of texts or images, got CausalLM"
    ):
        fourfold.classify(fourfold.load(trained("lm")), ["one"])


def test_words_are_tagged(ask: Ask) -> None:
    given = "one two  nine\n\nfive\n"
    found = [line.split() for line in lines(ask("classify", "tags", given))]
    assert [len(row) for row in found] == [3, 0, 1]
    assert all(tag in ("O", "B-low") for row in found for tag in row)
    cut = lines(ask("classify", "tags", "one " * 40 + "\n", "--truncate"))[0].split()
    assert 1 < len(cut) < 40


def test_classes_without_names_have_numbers(
    run: Run, trained: Train, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an import has it of a model whose config.json names none."""
    content = read_file(trained("vit") / "checkpoints/last.ckpt")
    content["fourfold"]["data"]["class_names"] = []
    torch.save(content, here / "x.ckpt")
    Image.new("L", (8, 8), 100).save(here / "0.png")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0.png\n")))
    assert re.match(r"0\.png\tLABEL_\d\t", lines(run("classify", "--checkpoint", "x.ckpt"))[0])
    assert run("export", "x.ckpt", "out").code == 0
    assert len(json.loads((here / "out/config.json").read_text())["id2label"]) == 10


@pytest.mark.parametrize(("flag", "chosen"), [(None, "32-true"), ("amx_bf16", "bf16-mixed")])
def test_auto_precision_is_the_fast_one_and_a_slow_one_is_reported(
    flag: str | None, chosen: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fourfold.core.precision.cpu_flag", lambda: flag)
    result = ask("fill", "mlm", "one [MASK]\n", "--precision", "auto")
    assert len(lines(result)) == 1
    assert f"--precision auto: {chosen}" in result.err
    explicit = ask("fill", "mlm", "one [MASK]\n", "--precision", "bf16-mixed")
    assert ("--precision bf16-mixed is slow" in explicit.err) == (flag is None)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_precisions(precision: str, ask: Ask, here: Path) -> None:
    Image.new("L", (8, 8), 100).save(here / "one.png")
    for verb, family in (("translate", "mt"), ("fill", "mlm")):
        assert len(lines(ask(verb, family, "one [MASK]\n", "--precision", precision))) == 1
    assert len(lines(ask("classify", "vit", "one.png\n", "--precision", precision))) == 1
    assert (
        "--precision must be one that a CPU computes"
        in ask("fill", "mlm", "one\n", "--precision", "16-mixed").err
    )


def test_a_run_directory_will_do(run: Run, trained: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
    assert len(lines(run("translate", "--checkpoint", trained("mt")))) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device=tpu"], "--device must be one of auto, cpu"),
        (["--device=cuda:99"], "--device must be one of auto, cpu"),
        (["--max-new-tokens=999"], "max_new_tokens must be at most 32 here"),
        (["--temperature=1"], "--temperature is not an option of"),
        (
            ["--length-penalty-type=gnm"],
            "--length-penalty-type: invalid choice: 'gnm' (choose from",
        ),
    ],
)
def test_wrong_options(options: list[str], said: str, ask: Ask) -> None:
    result = ask("translate", "mt", "one\n", *options)
    assert result.code == 2
    assert said in result.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--length-penalty=nan"],
            "length_penalty must be finite, got nan",
        ),
        (["--num-beams=2", "--n-best=4"], "or num_beams of that width, got 4"),
        (
            ["--length-penalty-type=google"],
            "--length-penalty-type: invalid choice: 'google' (choose from",
        ),
    ],
)
def test_wrong_option_of_the_search_is_reported(options: list[str], said: str, ask: Ask) -> None:
    result = ask("translate", "mt", "one\n", *options)
    assert (result.code, said in result.err) == (2, True)
    more = ask("generate", "lm", "one\n", "--temperature=1", "--top-p=2")
    assert (more.code, "top_p must be above 0 and at most 1, got 2.0" in more.err) == (2, True)


@pytest.mark.parametrize(
    ("verb", "family", "options"),
    [
        ("translate", "mt", []),
        ("generate", "lm", []),
        ("generate", "lm", ["--num-beams=2"]),
        ("generate", "lm", ["--temperature=1", "--seed=1"]),
    ],
)
def test_suppressed_tokens(
    verb: str, family: str, options: list[str], ask: Ask, trained: Train
) -> None:
    tokenizer = fourfold.load(trained(family)).tokenizer
    assert tokenizer is not None
    plain = lines(ask(verb, family, "one\n", *options))[0].removeprefix("one")
    unwanted = max(filter(str.isalnum, plain), key=plain.count)
    given = [f"--suppress-tokens={text}" for text in tokenizer.vocabulary if unwanted in text]
    found = lines(ask(verb, family, "one\n", *options, *given))[0].removeprefix("one")
    assert found
    assert unwanted not in found
    wrong = ask(verb, family, "one\n", "--suppress-tokens=<nothing>")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "--suppress-tokens must be a token of the vocabulary, got <nothing>" in wrong.err


def test_penalties_are_those_of_the_search() -> None:
    assert tuple(generation.LENGTH_PENALTIES) == main.LENGTH_PENALTIES


def test_wrong_checkpoints(ask: Ask, run: Run, trained: Train, here: Path) -> None:
    result = ask("fill", "mt", "one\n")
    assert result.code == 2
    assert "last.ckpt: model must be a masked LM, got EncoderDecoder" in result.err
    assert "there is no such" in run("fill", "--checkpoint", "nothing.ckpt").err
    (here / "empty").mkdir()
    assert "there is no checkpoint" in run("fill", "--checkpoint", "empty").err


@pytest.mark.parametrize(
    ("verb", "family"), [("generate", "lm"), ("fill", "mlm"), ("translate", "mt")]
)
def test_directory_of_transformers_needs_no_import(
    verb: str, family: str, ask: Ask, run: Run, trained: Train, here: Path, monkeypatch: Any
) -> None:
    text = "one two <mask>\nfour five <mask>\n" if verb == "fill" else "one two three\nfour\n"
    expected = lines(ask(verb, family, text))
    checkpoint = trained(family) / "checkpoints/last.ckpt"
    assert run("export", checkpoint, here / "there").code == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert lines(run(verb, "--checkpoint", here / "there")) == expected
    if verb == "generate":
        tokenizer = hf.AutoTokenizer.from_pretrained(here / "there")
        model = hf.AutoModelForCausalLM.from_pretrained(here / "there")
        for line, answer in zip(text.splitlines(), expected, strict=True):
            inputs = tokenizer(line, return_tensors="pt")
            inputs.pop("token_type_ids", None)
            limit = min(50, model.config.n_positions + 1 - inputs["input_ids"].shape[1])
            ids = model.generate(**inputs, max_new_tokens=limit, do_sample=False)
            assert tokenizer.decode(ids[0], skip_special_tokens=True) == answer
    result = run("classify", "--checkpoint", here / "there")
    assert result.code == 2
    assert "model must be a classifier of texts or images, got" in result.err


def test_stream_and_stop_texts(ask: Ask) -> None:
    text = "one two\nfour five six\n"
    whole = lines(ask("generate", "lm", text, "--only-new"))
    assert lines(ask("generate", "lm", text, "--only-new", "--stream")) == whole
    with_prompt = lines(ask("generate", "lm", text))
    assert lines(ask("generate", "lm", text, "--stream")) == with_prompt
    stop = whole[0][3:5]
    cut = [line[: line.index(stop)] if stop in line else line for line in whole]
    assert cut != whole
    for options in ([], ["--stream"], ["--batch-size=1"]):
        found = ask("generate", "lm", text, "--only-new", "--stop", stop, "--stop=@#", *options)
        assert lines(found) == cut
    beam = ask("generate", "lm", text, "--only-new", "--num-beams=2", "--stop", stop)
    assert all(stop not in line for line in lines(beam))


class Pieces:
    """Tokenizer whose tokens are given pieces of a text in UTF-8, also parts of a character."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_streamed_pieces_end_before_a_stop_text_that_spans_tokens(data: st.DataObject) -> None:
    text = data.draw(st.text("abé€", min_size=1, max_size=14))
    stops = data.draw(st.lists(st.text("abé€", min_size=1, max_size=4), max_size=2))
    content = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(content)))) | {len(content)})
    pieces = [content[i:j] for i, j in pairwise([0, *cuts])]
    growing, shown = GrowingText(Pieces(pieces), [], stops), ""  # type: ignore[arg-type]
    for i in range(len(pieces)):
        has_ended = growing.add([i])
        shown += growing.unshown()
        if has_ended:
            break
    shown += growing.unshown(is_last=True)
    found = b"".join(pieces[: i + 1]).decode(errors="replace")  # a stop text may end it
    starts = [found.index(stop) for stop in stops if stop in found]
    assert shown == (found[: min(starts)] if starts else text)


def test_broken_utf8_names_the_line(ask: Ask) -> None:
    result = ask("translate", "mt", b"one\ntwo \xff\n")
    assert result.code == 2
    assert "<stdin>:2: the line is not UTF-8" in result.err


def test_copies_of_a_prompt_differ_over_all_batches(ask: Ask) -> None:
    prompts = "one two\n" * 9
    drawn = ["--temperature=2", "--seed=3", "--max-new-tokens=8"]
    small = lines(ask("generate", "lm", prompts, *drawn, "--batch-size=2"))
    assert small == lines(ask("generate", "lm", prompts, *drawn, "--batch-size=64"))
    assert len(set(small)) > 6


@pytest.mark.parametrize(
    "options",
    [
        ["--length-penalty=1", "--num-beams=1"],
        ["--length-penalty-type=power", "--num-beams=1"],
        ["--length-penalty=1", "--length-penalty-type=none"],
    ],
)
def test_no_option_of_translate_is_idle(options: list[str], ask: Ask) -> None:
    result = ask("translate", "mt", "one\n", *options)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert options[0].partition("=")[0] in result.err


@pytest.mark.parametrize(
    "options",
    [
        ["--top-k=5"],
        ["--top-p=0.9"],
        ["--seed=1"],
        ["--length-penalty=1"],
        ["--length-penalty-type=gnmt"],
        ["--temperature=0.5", "--num-beams=3"],
    ],
)
def test_no_option_is_idle(options: list[str], ask: Ask) -> None:
    result = ask("generate", "lm", "one\n", *options)
    assert result.code == 2
    assert options[0].partition("=")[0] in result.err


def test_many_fillings_of_several_masks(ask: Ask) -> None:
    few = lines(ask("fill", "mlm", "[MASK] two [MASK] [MASK]\n", "--top-k=3"))[0].split("\t")
    many = lines(ask("fill", "mlm", "[MASK] two [MASK] [MASK]\n", "--top-k=100000"))[0].split("\t")
    assert few == many[:3]
    assert len(many) > 1000


def test_a_damaged_checkpoint_is_found_out(run: Run, trained: Train, here: Path) -> None:
    content = bytearray((trained("lm") / "checkpoints/last.ckpt").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 40] = bytes(255 - byte for byte in content[middle : middle + 40])
    (here / "x.ckpt").write_bytes(content)
    result = run("generate", "--checkpoint", "x.ckpt")
    assert result.code == 2
    assert "corrupted" in result.err


def test_a_byte_order_mark_is_no_text(ask: Ask) -> None:
    marked = ask("generate", "lm", b"\xef\xbb\xbfone two\n", "--max-new-tokens=4")
    assert lines(marked) == lines(ask("generate", "lm", "one two\n", "--max-new-tokens=4"))


@pytest.mark.parametrize(
    "option", ["--batch-size", "--max-new-tokens", "--num-beams", "--num-return-sequences"]
)
@pytest.mark.parametrize("value", [0, 10**21, "9" * 5000])
def test_impossible_number_is_rejected_before_the_checkpoint_is_read(
    option: str, value: Any, run: Run
) -> None:
    result = run("translate", "--checkpoint", "none.ckpt", option, value)
    assert result.code == 2
    assert result.err.startswith(f"fourfold: error: {option}")
    assert len(result.err.splitlines()) == 1


FAMILIES = {
    "translate": "mt",
    "generate": "lm",
    "fill": "mlm",
    "classify": "classes",
    "caption": "captions",
}
FUNCTIONS = """
import json, sys, fourfold
found, runs = {}, json.loads(sys.argv[1])
model = {name: fourfold.load(run) for name, run in runs.items()}
text = ["one two three", "four", "five six [MASK] one two"]
images = ["0.png", "1.png"]
found["translate"] = fourfold.translate(model["mt"], text)
found["beams"] = fourfold.translate(
    model["mt"], text, num_beams=3, length_penalty=1.0, num_return_sequences=2, max_new_tokens=8
)
found["generate"] = fourfold.generate_text(model["lm"], text)
sampled = {"temperature": 1.0, "seed": 1, "num_return_sequences": 2, "no_repeat_ngram_size": 1}
found["sampled"] = fourfold.generate_text(model["lm"], text, **sampled)
found["fill"] = fourfold.fill(model["mlm"], text, top_k=2)
found["tags"] = [" ".join(tags) for tags in fourfold.tag(model["tags"], text)]
found["caption"] = fourfold.caption(model["captions"], images)
pairs = [("one two", "two one"), ("six", "six")]
for name, inputs in (("classes", pairs), ("vit", images), ("yang2016/tiny", ["A line. Another."])):
    p = fourfold.classify(model[name], inputs)
    names = model[name].artifacts["class_names"]
    found[name] = [[names[i], f"{x:.4f}"] for x, i in zip(*(y.tolist() for y in p.max(-1)))]
slow = {"lightning", "torchmetrics", "transformers", "scipy"} & set(sys.modules)
assert not slow, slow
print(json.dumps(found))
"""


def test_python_functions_answer_as_the_commands_without_lightning(
    ask: Ask, run: Run, trained: Train, here: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        Image.new("L", (8, 8), number * 100).save(here / f"{number}.png")
    write_file(checkpoint_of("yang2016/tiny", trained, run, here), here / "documents.ckpt")
    families = ("mt", "lm", "mlm", "tags", "captions", "classes", "vit")
    runs = {name: str(trained(name)) for name in families}
    runs["yang2016/tiny"] = str(here / "documents.ckpt")
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", FUNCTIONS, json.dumps(runs)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=here)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    text = "one two three\nfour\nfive six [MASK] one two\n"
    images = "0.png\n1.png\n"
    beams = (
        "--num-beams=3",
        "--length-penalty=1",
        "--num-return-sequences=2",
        "--max-new-tokens=8",
    )
    drawn = ("--temperature=1", "--seed=1", "--num-return-sequences=2", "--no-repeat-ngram-size=1")
    answers = {
        "translate": ask("translate", "mt", text),
        "beams": ask("translate", "mt", text, *beams),
        "generate": ask("generate", "lm", text),
        "sampled": ask("generate", "lm", text, *drawn),
        "fill": ask("fill", "mlm", text, "--top-k=2"),
        "tags": ask("classify", "tags", text),
        "classes": ask("classify", "classes", "one two\ttwo one\nsix\tsix\n"),
    }
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A line. Another.\n")))
    answers["yang2016/tiny"] = run("classify", "--checkpoint", "documents.ckpt")
    for name, answer in answers.items():
        cells = [[x] if isinstance(x, str) else x for x in found[name]]
        assert ["\t".join(map(escape, row)) for row in cells] == lines(answer), name
    for name, verb, family in (("caption", "caption", "captions"), ("vit", "classify", "vit")):
        shown = [line.split("\t")[1:] for line in lines(ask(verb, family, images))]
        assert [[x] if isinstance(x, str) else x for x in found[name]] == shown


def test_no_command_imports_lightning(root: Path, trained: Train, here: Path) -> None:
    Image.new("L", (8, 8), 100).save(here / "one.png")
    calls = [(verb, "--checkpoint", str(trained(family))) for verb, family in FAMILIES.items()]
    code = (
        "import io, sys\nfrom fourfold.cli import main\n"
        f"for call in {calls}:\n"
        "    line = b'one.png' if call[0] == 'caption' else b'one\\ttwo'\n"
        "    sys.stdin = io.TextIOWrapper(io.BytesIO(line))\n"
        "    assert main(call) == 0\n"
        "slow = {'lightning', 'torchmetrics', 'transformers', 'scipy'} & set(sys.modules)\n"
        "sys.exit(str(slow) if slow else 0)"
    )
    env = {**os.environ, "PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=here
    )
    assert done.returncode == 0, done.stderr


def test_functions_refuse_other_models(trained: Train) -> None:
    translator, causal_lm = fourfold.load(trained("mt")), fourfold.load(trained("lm"))
    classifier = fourfold.load(trained("classes"))
    for call, needed in (
        (lambda: fourfold.translate(causal_lm, []), "an encoder-decoder of texts, got CausalLM"),
        (lambda: fourfold.caption(translator, []), "a captioning model, got EncoderDecoder"),
        (lambda: fourfold.generate_text(translator, []), "a causal LM, got EncoderDecoder"),
        (lambda: fourfold.fill(classifier, []), "a masked LM, got SequenceClassifier"),
        (lambda: fourfold.tag(classifier, []), "a tagger, got SequenceClassifier"),
    ):
        with pytest.raises(InputError, match=f"model must be {needed}"):
            call()
    with pytest.raises(InputError, match=r"inputs:2: the text has \d+ tokens"):
        fourfold.translate(translator, ["one", "seven " * 60])
    with pytest.raises(InputError, match="stream needs a single prompt"):
        fourfold.generate_text(causal_lm, ["one", "two"], stream=print)


def test_a_function_streams(trained: Train) -> None:
    model, pieces = fourfold.load(trained("lm")), list[str]()
    whole = fourfold.generate_text(model, ["one two"], stream=pieces.append)
    assert len(pieces) > 2
    assert "".join(pieces) == whole[0]


def test_stored_options_are_the_defaults_of_a_continuation(trained: Train) -> None:
    model, prompts = fourfold.load(trained("lm")), ["one two", "three"]
    sampled = fourfold.generate_text(model, prompts, temperature=2.0, top_k=5, seed=1)
    beams = fourfold.generate_text(model, prompts, num_beams=3)
    model.generation_defaults = replace(model.generation_defaults, num_beams=3)
    assert fourfold.generate_text(model, prompts) == beams
    model.generation_defaults = replace(model.generation_defaults, temperature=2.0, top_k=5)
    assert fourfold.generate_text(model, prompts, seed=1) == sampled
    assert fourfold.generate_text(model, prompts, num_beams=3) == beams
    greedy = fourfold.generate_text(model, prompts, temperature=0.0)
    model.generation_defaults = replace(model.generation_defaults, num_beams=None, temperature=None)
    assert fourfold.generate_text(model, prompts) == greedy


def test_old_options_are_accepted(ask: Ask) -> None:
    new = ask("translate", "mt", "one two\n", "--num-beams=2", "--max-new-tokens=5")
    old = ask("translate", "mt", "one two\n", "--beam", 2, "--max_new=5")
    assert lines(old) == lines(new)
    assert old.err == new.err


# Recipe of each task, and a line that its processor reads.
RECIPES = {
    "Translation": ("mt", "one two"),
    "CausalLanguageModeling": ("lm", "one two"),
    "MaskedLanguageModeling": ("mlm", "one [MASK] three"),
    "ImageClassification": ("vit", "0.png"),
    "DocumentClassification": ("yang2016/tiny", "One sentence. Another one."),
    "SequenceClassification": ("classes", "one\ttwo"),
    "TokenClassification": ("tags", "one two"),
    "Captioning": ("captions", "0.png"),
}
VERBS = {
    "Translation": "translate",
    "CausalLanguageModeling": "generate",
    "MaskedLanguageModeling": "fill",
    "Captioning": "caption",
}
ALL_PROCESSORS = [(VERBS.get(task, "classify"), task) for task in RECIPES]


def checkpoint_of(family: str, trained: Train, run: Run, here: Path) -> dict[str, Any]:
    """The content of a checkpoint of a recipe of this folder, or of the package."""
    if "/" in family:
        few = ["--trainer.max_steps=1", "--trainer.limit_val_batches=0", "--tensorboard=false"]
        assert run("fit", "--config", family, "--run_dir", here / "run", *few).code == 0
        return read_file(here / "run/checkpoints/last.ckpt")
    return read_file(trained(family) / "checkpoints/last.ckpt")


@pytest.mark.parametrize(("verb", "task"), ALL_PROCESSORS)
def test_nan_weights_end_with_one_line(
    verb: str, task: str, trained: Train, run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, line = RECIPES[task]
    content = checkpoint_of(family, trained, run, here)
    for tensor in content["state_dict"].values():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
    write_file(content, here / "nan.ckpt")
    Image.new("L", (8, 8), 100).save(here / "0.png")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{line}\n".encode())))
    result = run(verb, "--checkpoint", "nan.ckpt")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "model computes NaN or infinite logits: the training diverged" in result.err
    if verb == "classify" and task != "TokenClassification":
        given = [tuple(line.split("\t"))] if "\t" in line else [line]
        with pytest.raises(InputError, match="NaN or infinite logits"):
            fourfold.classify(fourfold.load("nan.ckpt"), given)


@pytest.mark.parametrize(("family", "line"), [("vit", "0.png"), ("classes", "a\tb"), ("tags", "a")])
def test_control_characters_of_class_names_are_escaped(
    family: str, line: str, trained: Train, run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = checkpoint_of(family, trained, run, here)
    names = content["fourfold"]["data"]["class_names"]
    content["fourfold"]["data"]["class_names"] = [
        f"{n}\n\r\t\x00\x1b[31m\x7f\x9b\\" for n in range(len(names))
    ]
    write_file(content, here / "names.ckpt")
    Image.new("L", (8, 8), 100).save(here / "0.png")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{line}\n".encode())))
    out = lines(run("classify", "--checkpoint", "names.ckpt"))
    assert len(out) == 1
    assert r"\n\r\t\x00\x1b[31m\x7f\x9b\\" in out[0]
    assert all(character.isprintable() or character == "\t" for character in out[0])


def test_translate_uses_all_stored_defaults(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults of `fourfold.load` come from generation_config.json for an imported model."""
    from fourfold.generation import text_model

    stored: dict[str, Any] = {
        "bos_id": 5,
        "eos_id": 6,
        "pad_id": 7,
        "num_beams": 3,
        "length_penalty": 0.25,
        "length_penalty_type": "power",
        "stop_ids": [8, 9],
    }
    defaults = generation.GenerationDefaults(**stored)
    monkeypatch.setattr("fourfold.checkpoints.load.stored_defaults", lambda *_: defaults)
    seen: dict[str, Any] = {}

    def search(model: Any, *arguments: Any, **options: Any) -> Any:
        seen.update(options, model=model)
        return original(model, *arguments, **options)

    original = text_model.beam_search
    monkeypatch.setattr(text_model, "beam_search", search)
    lines(ask("translate", "mt", "one two\n"))
    found = seen["model"].generation_defaults
    assert (found.bos_id, {found.eos_id, *found.stop_ids}) == (5, {6, 8, 9})
    # The search takes options that are None from the model.
    assert (seen["num_beams"], seen["length_penalty"], seen["length_penalty_type"]) == (None,) * 3
    for name in ("num_beams", "length_penalty", "length_penalty_type"):
        assert getattr(seen["model"].generation_defaults, name) == stored[name]
    lines(ask("translate", "mt", "one two\n", "--num-beams=2", "--length-penalty=0.75"))
    assert (seen["num_beams"], seen["length_penalty"]) == (2, 0.75)  # options have precedence
