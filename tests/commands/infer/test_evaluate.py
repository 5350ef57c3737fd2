"""Minimal pairs and last words: readers, ties, averages, comparisons, output and bad input."""

import itertools
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import fourfold
from fourfold.callbacks.monitoring.minimal_pairs import MinimalPairs
from fourfold.commands.infer import evaluate
from fourfold.errors import InputError
from fourfold.generation.minimal_pairs import Question, answer, items_by, read_questions, tabulate
from tests.commands.infer.test_score import bigram_model, build, make_tokenizer
from tests.fixtures.tiny_tasks import TASKS
from tests.test_lightning_internals import make_trainer

PAIRS = ["the cat sat.\tthe cat sat sat.", "a dog\ta dog", "cats slept\tthe cats slept slept"]
# Group sizes of BLiMP, and accuracies of BabyLM's baselines of 2023 by group with their mean, from
# the README of babylm/evaluation-pipeline-2023 (commit 17b3806).
SIZES = (2, 9, 7, 5, 8, 2, 7, 2, 8, 7, 4, 6)
BABYLM = {
    62.6: (63.8, 70.6, 67.1, 66.5, 78.5, 62.0, 63.8, 67.5, 48.6, 46.7, 59.6, 56.9),
    69.5: (81.5, 67.1, 67.3, 67.9, 90.8, 76.4, 63.5, 87.4, 39.9, 55.9, 70.5, 65.4),
    58.8: (68.9, 63.8, 60.4, 60.9, 72.2, 34.4, 48.2, 77.6, 45.6, 47.8, 61.2, 65.0),
}


def questions_of(*sizes: int, n: int = 1000) -> list[Question]:
    """Return n empty pairs for each of `sizes` paradigms of each group."""
    names = [
        (f"group {g}", f"paradigm {g}.{p}") for g, size in enumerate(sizes) for p in range(size)
    ]
    return [
        Question(group, paradigm, (("", ""), ("", "")))
        for group, paradigm in names
        for _ in range(n)
    ]


def answers(correct: np.ndarray) -> np.ndarray:
    """Return values (1, 2, N) in which the items `correct` (N,) are right."""
    return np.stack([np.full(len(correct), -9.0), np.where(correct, 1.0, -1.0)])[None]


@pytest.mark.parametrize("macro", BABYLM)
def test_the_mean_of_groups_is_that_of_babylm(macro: float) -> None:
    questions = questions_of(*SIZES)
    groups = items_by("group", questions)
    correct = np.zeros(len(questions), bool)
    for accuracy, items in zip(BABYLM[macro], groups.values(), strict=True):
        correct[items[: round(accuracy / 100 * len(items))]] = True
    rows = tabulate(questions, {"A": answers(correct)})["all"]
    assert [(row[""], row["n"]) for row in rows] == [
        ("all items", 67_000),
        ("mean of groups", 12),
        ("mean of paradigms", 67),
    ]
    assert rows[1]["A"] == pytest.approx(macro, abs=0.06)
    assert rows[2]["A"] == pytest.approx(rows[0]["A"])
    micro = sum(n * x for n, x in zip(SIZES, BABYLM[macro], strict=True)) / 67
    assert rows[0]["A"] == pytest.approx(micro, abs=0.01)


def test_ties_are_wrong_and_counted() -> None:
    questions = questions_of(1, n=4)
    values = np.array([[[-9.0] * 4, [0.0, 1e-5, -5e-5, 2.0]]])
    (row, *_) = tabulate(questions, {"A": values})["all"]
    assert (row["A"], row["A ties"], row["A near"], row["A nats"]) == (50.0, 1, 2, -9.0)


def test_p_values_of_paradigms_have_holms_correction() -> None:
    questions = questions_of(2, 1, n=100)
    first = np.zeros(300, bool)
    second = first.copy()
    second[:40] = True  # p = erfc(sqrt(20)); in the other paradigms 1
    tables = tabulate(questions, {"A": answers(first), "B": answers(second)})
    p = math.erfc(math.sqrt(20))
    assert [row["p(B-A)"] for row in tables["paradigms"]] == pytest.approx([3 * p, 1.0, 1.0])
    assert [row["p(B-A)"] for row in tables["groups"]] == pytest.approx([p, 1.0])
    assert [row["B-A"] for row in tables["groups"]] == pytest.approx([20.0, 0.0])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "words.tsv"
    file.write_text("\n".join(PAIRS) + "\n")
    return file


def test_a_constant_model_is_always_wrong(table: Path) -> None:
    model = build("causal", make_tokenizer("word"))
    nn.init.zeros_(model.head.weight)
    equal = [Question("g", "p", (("", a), ("", b))) for a, b in (("the cat", "cat the"),) * 3]
    difference = answer(model, equal)[1]
    assert (difference == 0).all()  # accuracy 0 strict, and 0.5 if ties were half right
    difference = answer(model, read_questions("pairs", str(table)))[1]
    assert (difference > 0).tolist() == [True, False, True]  # fewer tokens win


def test_pairs_are_decided_by_their_scores(table: Path) -> None:
    questions = read_questions("pairs", str(table))
    for kind in ("causal", "masked", "t5"):
        model = build(kind)
        method = "prefix" if kind == "t5" else None
        scores = [
            [fourfold.score(model, [text], method=method)[0].total for text in line.split("\t")]
            for line in PAIRS
        ]
        found = answer(model, questions, batch_size=3)
        assert found[0] == pytest.approx([a for a, _ in scores], abs=1e-10)
        assert found[1] == pytest.approx([a - b for a, b in scores], abs=1e-10)
        assert found[1][1] == 0  # equal sentences are exactly equal


def write_blimp(folder: Path) -> None:
    folder.mkdir()
    for name, term in (("a_1", "s-selection"), ("a_2", "argument_structure"), ("b", "binding")):
        row = {"sentence_good": "a cat", "sentence_bad": "cat a", "UID": name}
        text = json.dumps(row | {"linguistics_term": term}) + "\n"
        (folder / f"{name}.jsonl").write_text(text * 2)


def test_archives_folders_and_files_are_read_alike(tmp_path: Path) -> None:
    write_blimp(tmp_path / "data")
    found = read_questions("blimp", str(tmp_path / "data"))
    assert [(q.group, q.paradigm) for q in found[::2]] == [
        ("argument_structure", "a_1"),
        ("argument_structure", "a_2"),
        ("binding", "b"),
    ]
    assert {q.requests for q in found} == {(("", "a cat"), ("", "cat a"))}
    with zipfile.ZipFile(tmp_path / "blimp.zip", "w") as archive:
        for file in (tmp_path / "data").iterdir():
            archive.write(file, f"blimp-1/data/{file.name}")
        archive.writestr("blimp-1/README.md", "text")
    assert read_questions("blimp", str(tmp_path / "blimp.zip")) == found
    assert read_questions("blimp", str(tmp_path / "data" / "b.jsonl")) == found[4:]


def test_supplement_zorro_and_lambada(tmp_path: Path) -> None:
    file = tmp_path / "hypernym.jsonl"
    file.write_text('{"sentence_good": "a\\nb", "sentence_bad": "b"}\n')
    assert read_questions("blimp", str(file)) == [
        Question("hypernym", "hypernym", (("", "a\nb"), ("", "b")))
    ]
    file = tmp_path / "filler-gap-wh_question.txt"
    file.write_text("bad 1 .\ngood 1 .\nbad 2 .\ngood 2 .\n")
    found = read_questions("zorro", str(file))
    assert [q.requests for q in found] == [
        (("", f"good {i} ."), ("", f"bad {i} .")) for i in (1, 2)
    ]
    assert {(q.group, q.paradigm) for q in found} == {("filler-gap", "filler-gap-wh_question")}
    for name, text in (("l.jsonl", '{"text": "the cat sat "}\n'), ("l.txt", "the cat sat\n")):
        (tmp_path / name).write_text(text)
        assert read_questions("lambada", str(tmp_path / name)) == [
            Question("l", "l", (("the cat", " sat"),))
        ]


def test_the_published_files_have_their_sizes(data_dir: Path) -> None:
    blimp = read_questions("blimp", str(data_dir / "eval_lm/blimp/blimp_67x1000.zip"))
    assert len(blimp) == 67_000
    assert {len(items) for items in items_by("paradigm", blimp).values()} == {1000}
    sizes = sorted(len(items) // 1000 for items in items_by("group", blimp).values())
    assert sizes == sorted(SIZES)
    assert sum(q.requests[0] == q.requests[1] for q in blimp) == 7
    zorro = read_questions("zorro", str(data_dir / "eval_lm/zorro/zorro_babyberta.zip"))
    assert len(zorro) == 46_000
    assert len(items_by("paradigm", zorro)) == 23
    assert zorro[0].requests == (
        ("", "look at this purple thing ."),
        ("", "look at this purple things ."),
    )


def test_last_words_are_greedy_or_not() -> None:
    tokenizer = make_tokenizer("word")
    n = tokenizer.vocab_size
    cat, sat, dog = (tokenizer.encode(word)[0] for word in ("cat", "sat", "dog"))
    logits = torch.randn(n, n, dtype=torch.float64)
    logits[cat, sat] = 9.0
    table = logits.log_softmax(-1)
    model = bigram_model(table, tokenizer)
    questions = [Question("l", "l", (("the cat", f" {word}"),)) for word in ("sat", "dog")]
    found = answer(model, questions)
    expected = [table[cat, sat].item(), table[cat, dog].item()]
    assert found[0] == pytest.approx(expected)
    assert found[1].tolist() == [1.0, -1.0]
    with pytest.raises(InputError, match="model must be a causal LM or an encoder-decoder"):
        answer(build("masked"), questions)


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Two causal LMs, and a folder with two further ones as runs."""
    places = ["a", "b", "runs/seed_0", "runs/seed_1"]
    for place in places:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        fourfold.save(build("causal").float(), tmp_path / place)
    (tmp_path / "runs/seed_0.log").write_text("output of a parallel run")
    return [tmp_path / "a", tmp_path / "b", tmp_path / "runs"]


def test_the_command_prints_and_writes_its_results(
    table: Path, models: list[Path], run: Any, tmp_path: Path
) -> None:
    named = [x for path in models for x in ("--checkpoint", path)]
    result = run("evaluate", "pairs", table, *named, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    content = json.loads((tmp_path / "out/metrics.json").read_text())
    assert content["models"] == {x: str(path) for x, path in zip("ABC", models, strict=True)}
    assert content["intervals"].keys() == {"B-A", "C-A"}
    assert content["intervals"]["B-A"].keys() == {"items", "paradigms"}
    assert content["intervals"]["C-A"].keys() == {"items", "paradigms", "runs"}
    row = content["all"][0]
    questions = read_questions("pairs", str(table))
    for letter, path in zip("AB", models, strict=False):
        correct = answer(fourfold.load(path), questions)[1] > 0
        assert row[letter] == pytest.approx(100 * correct.mean())
        assert row[f"{letter} ties"] == 1
    assert row["C ties"] == 2  # of two runs
    assert f"C: {models[2]}, runs: 2" in result.out
    assert "C-A: " in result.out
    assert (tmp_path / "out/accuracy.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pairs", "a b\n", "the line must have two sentences (separated by a tab), got 'a b'"),
        ("pairs", "a\tb\nc\t \n", "{file}:2: the line must have two sentences"),
        ("pairs", "a\tb\tc\n", "the line must have two sentences"),
        ("zorro", "a\nb\nc\n", "{file}:2: the line must have two sentences"),
        ("blimp", '{"sentence_good": "a"}\n', "the line must have two sentences"),
        ("blimp", "[1]\n", "the line must have two sentences"),
        ("lambada", "word\n", "the line must have two words, got 'word'"),
    ],
)
def test_bad_lines(name: str, text: str, message: str, tmp_path: Path, run: Any) -> None:
    file = tmp_path / ("x.jsonl" if name == "blimp" else "x.txt")
    file.write_text(text)
    result = run("evaluate", name, file, "--checkpoint", tmp_path)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert message.format(file=file) in result.err


def test_bad_options(table: Path, models: list[Path], run: Any, tmp_path: Path) -> None:
    a = ["--checkpoint", models[0]]
    for arguments, message in (
        (["cola", table, *a], "benchmark: invalid choice"),
        (["pairs", tmp_path, *a, "--batch-size", 0], "--batch-size must be at least 1"),
        (["blimp", models[0], *a], "there is no file *.jsonl"),
        (["pairs", table, *a, "--method", "prefix"], f"{models[0]}: method must be one of causal"),
        (["pairs", table], "--checkpoint must be given"),
    ):
        result = run("evaluate", *arguments)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert message in result.err


def test_the_picture_has_a_row_for_each_group(tmp_path: Path, monkeypatch: Any) -> None:
    labels: list[str] = []

    class Spy(Figure):
        def savefig(self, *args: Any, **options: Any) -> None:
            labels.extend(label.get_text() for label in self.axes[0].get_yticklabels())
            super().savefig(*args, **options)

    monkeypatch.setattr("matplotlib.figure.Figure", Spy)
    tables = tabulate(questions_of(2, 1, n=5), {"A": answers(np.ones(15, bool))})
    evaluate.draw([tables["all"][0], *tables["groups"]], {"A": "run"}, tmp_path / "a.png")
    assert labels == ["all items", "group 0", "group 1"]


@pytest.mark.parametrize("name", ["lm", "mlm"])
def test_the_callback_logs_what_the_command_prints(
    name: str, run: Any, configs: dict[str, Path], here: Path
) -> None:
    pairs, plain, judged = here / "own.tsv", here / "plain", here / "judged"
    words = ("one", "two", "three", "four", "five")
    lines = [f"{a} {b} {c}\t{c} {a} {a}\n" for a in words for b in words for c in words]
    pairs.write_text("".join(lines))
    steps = ["--trainer.max_steps", 3, "--trainer.val_check_interval", 2]
    given = ["--config", configs[name], *steps, "--run_dir"]
    callback = "--trainer.callbacks"
    more = [f"{callback}+=fourfold.callbacks.monitoring.minimal_pairs.MinimalPairs"]
    more += [f"{callback}.benchmark=pairs", f"{callback}.file={pairs}", f"{callback}.limit=99"]
    assert run("fit", *given, plain).code == 0
    assert run("fit", *given, judged, *more).code == 0
    weights = (
        torch.load(x / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for x in (plain, judged)
    )
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    assert "val/pairs" in (judged / "metrics.csv").read_text()
    result = run("test", "--run_dir", judged)
    assert result.code == 0, result.err
    found = json.loads((judged / "metrics.json").read_text())
    pairs.write_text("".join(lines[:99]))
    assert run("evaluate", "pairs", pairs, "--checkpoint", judged, "--out", here / "o").code == 0
    printed = json.loads((here / "o/metrics.json").read_text())["all"][0]
    assert 0 < found["test/pairs"] < 1
    assert found["test/pairs"] == pytest.approx(printed["A"] / 100)
    assert found["test/pairs_ties"] == printed["A ties"] / 99
    assert found["test/pairs_own"] == found["test/pairs"]
    shown = run("test", "--run_dir", judged, f"{callback}.file={here / 'none.tsv'}")
    assert shown.code == 2
    assert "none.tsv" in shown.err


@pytest.mark.parametrize("name", ["causal LM", "hybrid LM", "span corruption"])
def test_two_processes_log_the_accuracy_of_one(name: str, texts: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    task, data = TASKS[name](texts)
    own = texts.joinpath("train.txt").read_text().split()[:40]
    pairs = tmp_path / "own.tsv"
    pairs.write_text("".join(f"{a} {b}\t{b} {a}\n" for a, b in itertools.pairwise(own)))
    found = []
    for options in ({}, {"devices": 2, "strategy": "ddp_fork"}):
        callback = MinimalPairs("pairs", str(pairs))
        trainer = make_trainer(tmp_path, callbacks=[callback], **options)
        trainer.test(task, data, verbose=False)
        found.append(float(trainer.callback_metrics["test/pairs"]))
    assert 0 < found[0] < 1
    assert found[0] == found[1]
