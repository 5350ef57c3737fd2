"""`fourfold reproduce`: words, files, and trainings that are killed and gone on with."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fourfold.cli import main
from fourfold.commands import subprocess_runs
from fourfold.commands.config_files import fingerprints
from fourfold.commands.recipe import make_parser, parse
from fourfold.commands.run_directory import RunDirectory
from fourfold.errors import InputError
from fourfold.reproduce import load_tables
from fourfold.reproduce.command import parse_budget
from fourfold.reproduce.load_tables import find_tables, read_paper
from fourfold.reproduce.runs.plan import options, plan_runs
from fourfold.reproduce.runs.required_data import find_files, hashes
from fourfold.reproduce.runs.run import Machine, Run

RUNNING = [t for t in find_tables(["all"]) if t.tiers]


def n_runs(table: Any) -> int:
    return sum(len(row.runs) for row in table.rows.values())


PAPER = """
title: T
authors: A, B
venue: V
year: 2000
sources: {read: somewhere}
tables:
  t:
    title: Sizes
    source: [read]
    columns: {ppl: {title: perplexity}, bleu: {title: BLEU}}
    rows:
      one: {laptop: {}, ppl: 5.0, bleu: 20.0}
      two: {laptop: {config: {n_heads: 2}}, ppl: 6.0}
      three: {ppl: 7.0}
    tiers:
      laptop:
        config: configs/vaswani2017/tiny.yaml
        columns: {ppl: test/ppl_token, bleu: test/bleu}
        about: tiny
        options: {trainer: {max_steps: 2, max_epochs: -1}, model: {num_beams: 1},
                  run: {tensorboard: false}}
        test: {run: {ckpt_path: last}}
"""


@pytest.fixture
def here(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the recipes, and one small paper."""
    (tmp_path / "configs").symlink_to(root / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", PAPER)})
    return tmp_path


class Children:
    """Stands for trainings: notes what was asked for, and writes what a test would."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.stop_at: int | None = None
        self.slow = 0.0

    def __call__(self, verb: str, given: list[str], environment: Any, limit: float | None) -> int:
        folder = Path(given[given.index("--run_dir") + 1])
        self.asked.append((verb, f"{folder.parent.name}/{folder.name}"))
        if len(self.asked) == self.stop_at:
            return 75
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints/last.ckpt").touch()
        time.sleep(self.slow if limit is None else min(self.slow, limit))
        if limit is not None and self.slow > limit:
            return 75
        if verb == "test":
            command = " ".join(["fourfold", "test", *given])
            run = {"command": command, "configs": fingerprints(given)}
            seed = int(given[given.index("--seed_everything") + 1])
            heads = 2 if "--model.init_args.config.n_heads" in given else 1
            found = {"test/ppl_token": 4.0 + heads + seed, "test/bleu": 20.0, "run": run}
            (folder / "metrics.json").write_text(json.dumps(found))
        return 0


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    found = Children()
    monkeypatch.setattr(subprocess_runs, "run", found)
    return found


def cells(folder: Path) -> dict[tuple[str, str], list[float]]:
    whole = json.loads((folder / "table.json").read_text())
    return {(c["row"], c["column"]): c["values"] for c in whole["cells"]}


def test_the_list_shows_every_table_and_what_is_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path)]
    assert main(["reproduce", "--list", *out]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == [
        table.name for table in find_tables(["all"])
    ]
    assert main(["reproduce", "gpt2_2019/table2", *out]) == 0
    capsys.readouterr()
    assert main(["reproduce", "--list", "gpt2_2019", *out]) == 0
    assert "exact 4/4" in capsys.readouterr().out


def test_the_list_is_light() -> None:
    code = (
        "import sys; from fourfold.cli import main; main(['reproduce', '--list']);"
        "print({'torch', 'lightning', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_exact_tier_writes_what_it_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["reproduce", "vit2020", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in ("table1", "table6"):
        folder = tmp_path / "vit2020" / name / "exact"
        assert {f.name for f in folder.iterdir()} == {
            "table.md",
            "table.csv",
            "table.json",
            "table.png",
            "provenance.json",
        }
        assert (folder / "table.md").read_text().partition("\n`fourfold")[0] in printed
        about = json.loads((folder / "provenance.json").read_text())
        assert about["command"] == f"fourfold reproduce vit2020 --out {tmp_path}"
        assert {"seconds", "finished", "machine", "versions"} <= about.keys()
    assert not (tmp_path / "vit2020" / "table8").exists()  # has no exact cell


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["vaswani2017/table7"], "TABLE must be one of bahdanau2015, "),
        (
            ["bert2018/table5"],
            "--tier of bert2018/table5 must be one of laptop, paper, got 'exact'",
        ),
        (
            ["gpt2_2019/table2", "--tier", "laptop"],
            "--tier of gpt2_2019/table2 must be one of exact, got 'laptop'",
        ),
        (
            ["gpt2_2019", "--tier", "big"],
            "--tier: invalid choice: 'big' (choose from",
        ),
        (
            ["gpt2_2019/table2", "--rows", "smal"],
            "gpt2_2019/table2, --rows must be one of small, medium, large, xl, got",
        ),
        (["gpt2_2019", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (
            ["bert2018/table5", "--tier", "laptop", "--budget", "soon"],
            "--budget must be a duration such as 90s, 30m or 2h, got 'soon'",
        ),
        (["gpt2_2019", "--bugdet", "3m"], "did you mean --budget"),
        (["gpt2_2019", "--commands"], "--tier of --commands must be one of weights, laptop,"),
        ([], "TABLE must be a table such as vaswani2017/table3, a paper, or all, before --rows"),
        (
            ["--rows", "small", "gpt2_2019/table2"],
            "TABLE must be a table such as vaswani2017/table3, a paper, or all, before --rows",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("table", "tier", "name", "origin"),
    [
        ("vaswani2017/table3", "laptop", "translation/multi30k/train.en.gz", "Multi30k, task 1"),
        ("bert2018/table5", "paper", "vocab/bert-base-uncased.vocab.txt", "SQuAD 1.1 (Raj"),
        (
            "roberta2019/table3",
            "paper",
            "glue/MNLI/train.tsv.gz",
            "Wikipedia is downloaded from the hub",
        ),
        ("deit2020/table8", "paper", "imagenet/train", "with one folder per class"),
    ],
)
def test_data_that_are_not_here_are_asked_for(
    table: str,
    tier: str,
    name: str,
    origin: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    if "glue" in name:  # what stands before it is there
        (tmp_path / "vocab").mkdir()
        (tmp_path / "vocab/bert-base-uncased.vocab.txt").touch()
    assert main(["reproduce", table, "--tier", tier, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"{name}: the file is required by" in error
    assert origin in error


def test_glue_may_lie_there_plain_and_images_in_folders(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(here / "data"))
    text = PAPER.replace("about: tiny", "about: tiny\n        files: [glue/X/dev.tsv.gz, pictures]")
    table = read_paper("p.yaml", text).tables["t"]
    picture = here / "data/pictures/cats/1.jpg"
    for file in (here / "data/glue/X/dev.tsv", picture):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"a")

    def now() -> dict[str, str]:
        return hashes(find_files(table, "laptop"))

    first = now()
    assert first.keys() == {"glue/X/dev.tsv", "pictures"}
    assert first["glue/X/dev.tsv"] == hashlib.sha256(b"a").hexdigest()
    assert now() == first
    picture.write_bytes(b"smaller")
    second = now()
    picture.rename(picture.with_name("2.jpg"))
    assert len({first["pictures"], second["pictures"], now()["pictures"]}) == 3


def test_what_trains_nothing_is_only_tested(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAPER.replace("about: tiny", "about: tiny\n        train: false")
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", text)})
    assert main(["reproduce", "p/t", "--tier", "laptop", "--rows", "one"]) == 0
    assert children.asked == [("test", "one/seed_0")]


def test_layers_are_timed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """{title: T, authors: A, venue: V, year: 2000, sources: {}, tables: {t: {
        title: Lengths, columns: {gru: {title: GRU, measured: gru}},
        rows: {small: {setup: {d: 8, longest: 32}}}}}}"""
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", text)})
    assert main(["reproduce", "p/t", "--tier", "measured", "--seeds", "2"]) == 0
    assert cells(here / "results/p/t/measured")["small", "gru"]
    about = json.loads((here / "results/p/t/measured/provenance.json").read_text())
    assert [(run["row"], run["seed"]) for run in about["runs"]] == [("small", 0), ("small", 1)]
    assert about["runs"][1]["seconds_by_length"]["32"]["self_attention"] > 0


def test_a_signal_at_a_trainings_end_ends_the_rest_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ending:
        def __init__(self, *given: Any, **more: Any) -> None:
            pass

        def wait(self, limit: float | None = None) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return 0

        def terminate(self) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", Ending)
    assert subprocess_runs.run("fit", [], {}) == 128 + signal.SIGTERM


@pytest.mark.parametrize("end", [0, 1, -signal.SIGINT, 75])
def test_ctrl_c_ends_the_rest_whatever_the_training_makes_of_it(
    end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def __init__(self, *given: Any, **more: Any) -> None:
            pass

        def wait(self, limit: float | None = None) -> int:
            os.kill(os.getpid(), signal.SIGINT)
            return end

        def terminate(self) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    assert subprocess_runs.run("test", [], {}) == (75 if end == 75 else 130)


def test_a_training_that_is_killed_does_not_keep_the_rest_from_being_run(
    here: Path,
    children: Children,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def some(verb: str, given: list[str], *more: Any) -> int:
        is_one = "one/seed_0" in given[given.index("--run_dir") + 1]
        return 128 + signal.SIGKILL if is_one else children(verb, given, *more)

    monkeypatch.setattr(subprocess_runs, "run", some)
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 137
    assert (
        "row one, seed 0: was killed by signal 9, possibly for lack of memory"
        in capsys.readouterr().out
    )
    assert len(children.asked) == 2  # of the other row
    code = subprocess_runs._wait(subprocess.Popen(["sh", "-c", "kill -KILL $$"]), None)
    assert (code, subprocess_runs.is_stop(code)) == (137, False)


def test_the_data_are_known_by_their_hashes(
    here: Path,
    children: Children,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = PAPER.replace("about: tiny", "about: tiny\n        files: [words.txt]")
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", text)})
    (here / "words.txt").write_text("a")
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 0
    about = json.loads((here / "results/p/t/laptop/provenance.json").read_text())
    assert about["data"] == {"words.txt": hashlib.sha256(b"a").hexdigest()}
    # What others are on record with counts only for the same data.
    for words, asked in (("a", 0), ("b", 4)):
        shutil.rmtree("runs", ignore_errors=True)
        children.asked.clear()
        (here / "words.txt").write_text(words)
        assert main(["reproduce", "p/t", "--tier", "laptop"]) == 0
        assert len(children.asked) == asked
    # What is still there was learned from the other file.
    (here / "words.txt").write_text("c")
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 2
    assert "the data have changed since runs/" in capsys.readouterr().err


def test_rows_that_are_done_are_not_run_again(here: Path, children: Children) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    assert main([*command, "--rows", "two"]) == 0
    assert children.asked == [("fit", "two/seed_0"), ("test", "two/seed_0")]
    folder = here / "results/p/t/laptop"
    assert cells(folder) == {
        ("one", "ppl"): [],
        ("one", "bleu"): [],
        ("two", "ppl"): [6.0],
        ("two", "bleu"): [20.0],
    }
    children.asked.clear()
    assert main([*command, "--seeds", "2"]) == 0
    assert [asked for verb, asked in children.asked if verb == "fit"] == [
        "one/seed_0",
        "one/seed_1",
        "two/seed_1",
    ]
    assert cells(folder)["two", "ppl"] == [6.0, 7.0]
    runs = json.loads((folder / "provenance.json").read_text())["runs"]
    assert [(run["row"], run["seed"]) for run in runs] == [
        ("one", 0),
        ("two", 0),
        ("one", 1),
        ("two", 1),
    ]
    assert all(run["commands"][0].startswith("fourfold fit --config") for run in runs)


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4])
def test_what_was_stopped_goes_on_to_the_same_table(
    here: Path, children: Children, stop_at: int
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    children.stop_at = stop_at
    assert main(command) == 75
    there = here / "results/p/t/laptop"
    if stop_at > 2:
        assert sum(bool(v) for v in cells(there).values()) == 2
    else:  # nothing was obtained, and of nothing there is no page
        assert not there.exists()
    children.stop_at = None
    assert main(command) == 0
    page = (here / "results/p/t/laptop/table.json").read_text()
    # The same as of one that was never stopped.
    assert main([*command, "--runs", "others", "--out", "elsewhere"]) == 0
    assert (here / "elsewhere/p/t/laptop/table.json").read_text() == page


def test_a_cut_off_measurement_is_made_again(here: Path, children: Children) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "one"]
    assert main(command) == 0
    file = here / "runs/reproduce/p/t/laptop/one/seed_0/metrics.json"
    file.write_text(file.read_text()[:40])
    shutil.rmtree(here / "results")  # which knows what it was, too
    children.asked.clear()
    assert main(command) == 0
    assert len(children.asked) == 2
    assert cells(here / "results/p/t/laptop")["one", "ppl"] == [5.0]


def test_a_budget_ends_before_a_run_that_does_not_fit(
    here: Path, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    children.slow = 0.6  # twice a run
    assert main([*command, "--budget", "2s"]) == 0
    assert len(children.asked) == 2
    assert "1 runs remain" in capsys.readouterr().out
    assert main([*command, "--budget", "1s"]) == 0
    printed = capsys.readouterr().out
    assert "p/t, row two, seed 0: postponed; expected to take 0.02" in printed
    assert len(children.asked) == 2


TIMES = PAPER.replace("one: {laptop: {}", "one: {laptop: {minutes: 280}").replace(
    "about: tiny", "about: tiny\n        minutes: 3"
)


def test_a_budget_is_used_by_whichever_run_fits(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", TIMES)})
    command = ["reproduce", "p/t", "--tier", "laptop", "--budget"]
    assert main([*command, "2m"]) == 0
    assert not children.asked
    assert "p/t, row two, seed 0: postponed; expected to take 3 minutes" in capsys.readouterr().out
    assert not (here / "results/p").exists()
    assert main([*command, "30m"]) == 0
    assert children.asked == [("fit", "two/seed_0"), ("test", "two/seed_0")]
    assert "1 runs remain" in capsys.readouterr().out
    assert main([*command, "30m"]) == 0
    assert "postponed; expected to take 280 minutes" in capsys.readouterr().out


def test_what_starts_from_a_run_that_does_not_fit_is_left_with_it(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = CHAIN.replace("base: {laptop: {}", "base: {laptop: {minutes: 280, task: {minutes: 1}}")
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", text)})
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "base", "scratch"]
    assert main([*command, "--budget", "30m"]) == 0
    assert children.asked == [("fit", "task/seed_0"), ("test", "task/seed_0")]
    assert {row for (row, _), v in cells(Path("results/p/t/laptop")).items() if v} == {"scratch"}


def test_a_run_that_outlasts_the_budget_is_stopped_and_gone_on_with(
    here: Path, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "one"]
    children.slow = 1.0
    assert main([*command, "--budget", "0.4s"]) == 0
    assert children.asked == [("fit", "one/seed_0")]
    said = capsys.readouterr().out
    assert "no run of p/t, tier laptop, is finished: no table is written" in said
    assert "the budget is spent" in said
    assert not (here / "results/p").exists()
    children.slow = 0.0
    assert main(command) == 0
    assert cells(here / "results/p/t/laptop")["one", "ppl"] == [5.0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("1d", 86400)],
)
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


def test_a_row_is_really_trained_and_tested(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "two"]
    # Stopped by its budget somewhere in start or training, and gone on with.
    assert main([*command, "--budget", "4s"]) == 0
    assert main(command) == 0
    found = cells(here / "results/p/t/laptop")
    assert found["two", "ppl"][0] > 1
    run = here / "runs/reproduce/p/t/laptop/two/seed_0"
    assert (run / "checkpoints/last.ckpt").is_file()
    assert json.loads(run.with_name(".seed_0.json").read_text())["seconds"] > 1
    monkeypatch.setattr(subprocess_runs, "run", lambda *given: pytest.fail("was done"))
    assert main(command) == 0
    assert cells(here / "results/p/t/laptop") == found


def test_another_at_the_same_run_is_waited_for(tmp_path: Path) -> None:
    code = f"""if True:
        import time
        from pathlib import Path
        from fourfold.commands.run_directory import RunDirectory
        with RunDirectory(Path({str(tmp_path / "run")!r})).lock():
            print("held", flush=True)
            time.sleep(1)
            Path({str(tmp_path / "done")!r}).touch()
    """
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    subprocess_runs.wait_until_unlocked(tmp_path / "run")
    assert (tmp_path / "done").exists()
    assert other.wait() == 0


def test_changes_become_options() -> None:
    assert options({"config": {"n_heads": 2}, "model": {"a.b": None}, "run": {"x": "y"}}) == [
        "--model.init_args.config.n_heads",
        "2",
        "--model.init_args.a.b",
        "null",
        "--x",
        "y",
    ]


def local_data(given: dict[str, Any]) -> set[str]:
    """Files and directories that a config's data are read from, but for what runs leave."""
    if "task" in given and "folder" in given:  # GLUE's, by their directory
        found = {f"{given['folder']}/{given['task']}"}
    elif given.get("source") == "hub":
        found = set()
    else:
        parts = [given.get(part) for part in ("train", "val", "test", "source")]
        found = {part for part in parts if isinstance(part, str) and part != "files"}
    words = (given.get("tokenizer") or {}).get("file")
    found |= {words} if words and not words.startswith("runs/") else set()
    return {name.replace("{lang}", lang) for name in found for lang in ("en", "de")}


@pytest.mark.parametrize(
    "table",
    [pytest.param(t, marks=[pytest.mark.slow] * (n_runs(t) > 7)) for t in RUNNING],
    ids=lambda table: table.name,
)
def test_every_row_of_every_tier_is_a_recipe_that_parses(table: Any, root: Path) -> None:
    from fourfold.commands.recipe import make_parser, parse

    parser = make_parser("test")
    for tier, recipe in table.tiers.items():
        if not recipe.train:
            continue  # would ask for the weights
        rows = [row for row in table.rows.values() if tier in row.runs]
        runs = plan_runs(table, tier, rows, 1, Path("runs"), Machine())
        trained: set[int] = set()
        for run in runs:
            both = [run.test]  # what is trained, and a few options more
            if id(run.recipe) not in trained:
                both.append(run.fit)
            trained.add(id(run.recipe))
            for given in filter(None, both):
                if "--model.init_from" in given:  # weights that would be read
                    place = given.index("--model.init_from")
                    given = [*given[:place], *given[place + 2 :]]
                config = parse(parser, given)
                assert config["run_dir"] == str(run.folder)
                for needed in local_data(config["data"]["init_args"]):
                    assert any(f"{name}/".startswith(f"{needed}/") for name in recipe.files), needed
            assert {*run.fit[::2]} <= {*run.test[::2]}


def test_the_laptop_rows_differ_from_their_base_in_one_thing(root: Path) -> None:
    from fourfold.analysis.flops import parameters
    from fourfold.commands.recipe import make_parser, parse, read_recipe

    (table,) = [t for t in RUNNING if t.name == "vaswani2017/table3"]
    parser = make_parser("test")
    counts = {}
    for run in plan_runs(table, "laptop", table.rows.values(), 1, Path("runs"), Machine()):
        config = parse(parser, [*run.fit, "--model.init_args.config.vocab_size", "6000"])
        counts[run.row] = parameters(read_recipe(parser, config).task.model).total
    base = counts["base"]
    same = {row for row, count in counts.items() if count == base}
    assert same == {
        "base",
        "A_h1",
        "A_h4",
        "A_h16",
        "A_h32",
        "D_drop0.0",
        "D_drop0.2",
        "D_ls0.0",
        "D_ls0.2",
    }
    # Smaller and larger as in the paper.
    for row, printed in ((n, r.printed.get("params")) for n, r in table.rows.items()):
        if printed is not None and row != "base":
            assert (counts[row] > base) == (float(printed) > 65), row


def test_a_budget_ends_the_wait_for_another_process(
    here: Path,
    children: Children,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RunDirectory, "is_locked", lambda self: True)
    assert main(["reproduce", "p/t", "--tier", "laptop", "--budget", "1s"]) == 0
    printed = capsys.readouterr()
    assert "waiting for another process" in printed.err
    assert "the budget is spent" in printed.out
    assert not children.asked


CHAIN = """
title: T
authors: A, B
venue: V
year: 2000
sources: {read: somewhere}
tables:
  t:
    title: Learned from weights
    source: [read]
    columns: {ppl: {title: perplexity}, bleu: {title: BLEU}}
    rows:
      base: {laptop: {}, ppl: 5.0, bleu: 20.0}
      wide: {laptop: {each: {config: {d_ff: 64}}, task: {data: {batch_size: 4}}}, bleu: 21.0}
      other: {laptop: {start: base, task: {config: {dropout: 0.5}}}, bleu: 22.0}
      scratch: {laptop: {start: random}, bleu: 3.0}
      worded: {laptop: {start: random, words: base}, bleu: 4.0}
    tiers:
      laptop:
        config: configs/vaswani2017/tiny.yaml
        columns: {ppl: test/ppl_token}
        about: tiny
        then:
          task:
            config: configs/vaswani2017/base.yaml
            columns: {bleu: test/bleu}
            options: {config: {dropout: 0.25}}
"""


@pytest.fixture
def chain(here: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    paper = read_paper("p.yaml", CHAIN)
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": paper})
    return paper.tables["t"]


def test_what_is_learned_from_a_rows_weights_comes_after_them(
    chain: Any, children: Children
) -> None:
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 0
    trained = [run for verb, run in children.asked if verb == "fit"]
    assert trained == ["base/seed_0", "task/seed_0", "wide/seed_0", *["task/seed_0"] * 4]
    found = cells(Path("results/p/t/laptop"))
    assert {key for key, values in found.items() if values} == {
        ("base", "ppl"),
        ("wide", "ppl"),
        ("other", "ppl"),
        ("base", "bleu"),
        ("wide", "bleu"),
        ("other", "bleu"),
        ("scratch", "bleu"),
        ("worded", "bleu"),
    }
    assert not {("scratch", "ppl"), ("worded", "ppl")} & found.keys()
    assert found["other", "ppl"] == found["base", "ppl"]
    kept = json.loads(Path("results/p/t/laptop/provenance.json").read_text())["runs"]
    assert [(run["row"], run["part"]) for run in kept] == [
        ("base", ""),
        ("base", "task"),
        ("wide", ""),
        ("wide", "task"),
        ("other", "task"),
        ("scratch", "task"),
        ("worded", "task"),
    ]
    asked = len(children.asked)
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 0
    assert len(children.asked) == asked


def test_what_a_lost_machine_did_is_known_from_its_tables(
    chain: Any, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    assert main(command) == 0
    file = Path("results/p/t/laptop/provenance.json")
    before, table = json.loads(file.read_text()), file.with_name("table.json").read_text()
    shutil.rmtree("runs")
    children.asked.clear()
    assert main(command) == 0
    assert not children.asked
    assert "7 runs are on record and are not repeated" in capsys.readouterr().out
    assert file.with_name("table.json").read_text() == table
    assert json.loads(file.read_text())["runs"] == before["runs"]
    # What starts from weights that are gone has them trained again; what needs none does not.
    before["runs"] = [
        run for run in before["runs"] if (run["row"], run["part"]) != ("wide", "task")
    ]
    file.write_text(json.dumps(before))
    assert main(command) == 0
    assert [asked for verb, asked in children.asked if verb == "fit"] == [
        "wide/seed_0",
        "task/seed_0",
    ]
    assert file.with_name("table.json").read_text() == table
    # Wherever the directories are; with another --out nothing is known.
    children.asked.clear()
    shutil.rmtree("runs")
    assert main([*command, "--runs", "elsewhere"]) == 0
    assert not children.asked
    assert file.with_name("table.json").read_text() == table
    assert main([*command, "--rows", "scratch", "--out", "anew"]) == 0
    assert len(children.asked) == 2


def own_recipes(here: Path) -> Path:
    """Copies of the recipes in place of the repository's; the file of the tiny one."""
    there = (here / "configs").resolve()
    (here / "configs").unlink()
    shutil.copytree(there, here / "configs")
    return here / "configs/vaswani2017/tiny.yaml"


def test_a_recipe_that_has_changed_is_run_again(
    here: Path, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    recipe = own_recipes(here)
    assert main(command) == 0
    shutil.rmtree("runs")
    children.asked.clear()
    recipe.write_text("# Other words about the same.\n" + recipe.read_text())
    assert main(command) == 0
    assert not children.asked
    capsys.readouterr()
    recipe.write_text(recipe.read_text().replace("d_ff: ", "d_ff: 1"))
    assert main(command) == 0
    assert [verb for verb, _ in children.asked] == ["fit", "test"] * 2
    said = capsys.readouterr().out
    assert "2 recorded runs are outdated" in said
    assert "changed: p/t, row one, seed 0; p/t, row two, seed 0" in said
    # Where the directories still are, nothing is thrown away unasked.
    recipe.write_text(recipe.read_text().replace("d_ff: ", "d_ff: 1"))
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "the config, the options or the runs that it starts from have changed since" in said
    assert said.endswith(
        "seed_0 was started; remove the directory to train again, or name another one with --runs\n"
    )


@pytest.mark.parametrize("stop_at", [1, 2])
def test_what_is_half_done_does_not_go_on_as_something_else(
    here: Path, children: Children, stop_at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "one"]
    recipe, folder = own_recipes(here), here / "runs/reproduce/p/t/laptop/one/seed_0"
    children.stop_at = stop_at
    assert main(command) == 75
    folder.mkdir(exist_ok=True)  # a training that is stopped leaves a checkpoint
    before = recipe.read_text()
    recipe.write_text(before.replace("d_ff: ", "d_ff: 1"))
    children.asked.clear()
    assert main(command) == 2
    assert not children.asked
    assert "have changed since" in capsys.readouterr().err
    recipe.write_text(before)
    children.stop_at = None
    assert main(command) == 0


def test_what_starts_from_another_training_is_outdated_with_it(
    chain: Any, here: Path, children: Children
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    recipe = own_recipes(here)  # of the first trainings, and not of what is learned from them
    assert main(command) == 0
    recipe.write_text(recipe.read_text().replace("d_ff: ", "d_ff: 1"))
    file = Path("results/p/t/laptop/provenance.json")
    kept = {(r["row"], r["part"]): r["stamp"] for r in json.loads(file.read_text())["runs"]}
    shutil.rmtree("runs")
    children.asked.clear()
    assert main(command) == 0
    assert len([verb for verb, _ in children.asked if verb == "fit"]) == 6
    now = {(r["row"], r["part"]): r["stamp"] for r in json.loads(file.read_text())["runs"]}
    assert [key for key in now if now[key] == kept[key]] == [("scratch", "task")]


def test_a_start_without_its_weights_is_trained_again(chain: Any, children: Children) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "base"]
    assert main(command) == 0
    place = Path("runs/reproduce/p/t/laptop/base")
    shutil.rmtree(place / "seed_0/checkpoints")
    children.asked.clear()
    assert main(command) == 0
    assert not children.asked  # nothing needs them
    shutil.rmtree(place / "task")
    shutil.rmtree("results")
    assert main(command) == 0
    assert [run for verb, run in children.asked if verb == "fit"] == ["base/seed_0", "task/seed_0"]


def test_a_directory_that_was_made_by_hand_counts(
    here: Path, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "one"]
    recipe = own_recipes(here)
    assert main(command) == 0
    children.asked.clear()
    (here / "runs/reproduce/p/t/laptop/one/.seed_0.json").unlink()
    shutil.rmtree("results")
    assert main(command) == 0
    assert not children.asked
    assert cells(here / "results/p/t/laptop")["one", "ppl"] == [5.0]
    recipe.write_text(recipe.read_text().replace("d_ff: ", "d_ff: 1"))
    assert main(command) == 2
    assert "configs/vaswani2017/tiny.yaml: the config has changed since" in capsys.readouterr().err


def test_from_another_directory_the_record_is_the_same(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    assert main([*command, "--runs", "a"]) == 0
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    children.asked.clear()
    assert main([*command, "--out", "../results"]) == 0
    assert not children.asked


def test_what_was_not_run_again_keeps_how_it_was_obtained(here: Path, children: Children) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    assert main(command) == 0
    files = [here / "results/p/t/laptop" / name for name in ("provenance.json", "table.md")]
    before = [file.read_text() for file in files]
    assert main([*command, "--budget", "3h"]) == 0
    assert [file.read_text() for file in files] == before


def test_an_older_table_does_not_hide_what_another_has_of_the_same_run(
    here: Path, children: Children
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    recipe = own_recipes(here)
    assert main(command) == 0
    for name in ("a", "z"):
        shutil.copytree("results/p/t", f"results/{name}/t")
    shutil.rmtree("runs")
    recipe.write_text(recipe.read_text().replace("d_ff: ", "d_ff: 1"))
    assert main(command) == 0
    shutil.rmtree("runs")
    children.asked.clear()
    assert main(command) == 0
    assert not children.asked


def test_outdated_record_is_kept_until_another_run_replaces_it(
    here: Path, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command, recipe = ["reproduce", "p/t", "--tier", "laptop"], own_recipes(here)
    assert main(command) == 0
    shutil.rmtree("runs")
    before, text = cells(here / "results/p/t/laptop"), recipe.read_text()
    recipe.write_text(text.replace("d_ff: ", "d_ff: 1"))
    for _ in range(2):  # the second command reads the record of the first one
        main([*command, "--budget", "0.001s"])
    assert not any(cells(here / "results/p/t/laptop").values())
    recipe.write_text(text)  # the change is reverted
    children.asked.clear()
    assert main(command) == 0
    assert not children.asked
    assert cells(here / "results/p/t/laptop") == before
    assert "outdated" not in json.loads(Path("results/p/t/laptop/provenance.json").read_text())


def test_what_another_process_adds_meanwhile_stays(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fourfold.reproduce.runs import scheduler

    command = ["reproduce", "p/t", "--tier", "laptop"]
    assert main([*command, "--runs", "theirs"]) == 0
    file = Path("results/p/t/laptop/provenance.json")
    both = file.read_text()
    shutil.rmtree("results/p")
    run_all = scheduler.run_all

    def meanwhile(*given: Any) -> int:
        code = run_all(*given)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(both)
        return code

    monkeypatch.setattr(scheduler, "run_all", meanwhile)
    assert main([*command, "--rows", "one", "--runs", "ours"]) == 0
    assert all(cells(here / "results/p/t/laptop").values())


def test_a_damaged_record_is_named(
    chain: Any, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    assert main([*command, "--rows", "base"]) == 0
    file = Path("results/p/t/laptop/provenance.json")
    file.write_text(file.read_text()[:100])
    capsys.readouterr()
    assert main(command) == 2
    assert re.search(rf"{file}:\d+: invalid JSON", capsys.readouterr().err)


def test_a_table_is_written_while_it_goes_on(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def look(verb: str, *given: Any) -> int:
        file = here / "results/p/t/laptop/table.json"
        found.append(cells(file.parent)["one", "ppl"] if file.exists() else None)
        return children(verb, *given)

    monkeypatch.setattr(subprocess_runs, "run", look)
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 0
    assert found == [None, None, [5.0], [5.0]]


def test_where_each_part_starts_and_what_it_changes(chain: Any) -> None:
    runs = {
        (run.row, run.part): run
        for run in plan_runs(chain, "laptop", chain.rows.values(), 1, Path("runs"), Machine())
    }

    def of(run: tuple[str, str], option: str) -> str | None:
        given = runs[run].fit
        return given[given.index(option) + 1] if option in given else None

    start = "--model.init_from"
    assert of(("base", ""), start) is None
    assert of(("base", "task"), start) == "runs/p/t/laptop/base/seed_0"
    assert of(("wide", "task"), start) == "runs/p/t/laptop/wide/seed_0"
    assert of(("other", "task"), start) == "runs/p/t/laptop/base/seed_0"
    assert of(("scratch", "task"), start) is None
    assert of(("worded", "task"), start) is None
    words = "--data.tokenizer.file"
    assert of(("worded", "task"), words) == "runs/p/t/laptop/base/seed_0/checkpoints/last.ckpt"
    assert of(("other", "task"), words) is None
    width, dropout = "--model.init_args.config.d_ff", "--model.init_args.config.dropout"
    assert [of(("wide", part), width) for part in ("", "task")] == ["64", "64"]
    assert [of((row, "task"), dropout) for row in ("base", "other")] == ["0.25", "0.5"]
    assert of(("wide", "task"), "--data.init_args.batch_size") == "4"


TAUGHT = """
title: T
authors: A, B
venue: V
year: 2000
sources: {read: somewhere}
tables:
  t:
    title: Students of a row
    source: [read]
    columns: {acc: {title: accuracy}}
    rows:
      hard: {laptop: {teacher: master}}
      head: {laptop: {start: hard, columns: {acc: test/bleu}}}
      master: {laptop: {recipe: configs/vit/tiny.yaml}}
    tiers:
      laptop:
        config: configs/deit/tiny.yaml
        columns: {acc: test/ppl_token}
        about: tiny
"""


def test_a_teacher_is_a_row_that_is_trained_before_its_students(
    here: Path,
    children: Children,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paper = read_paper("p.yaml", TAUGHT)
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": paper})
    assert main(["reproduce", "p/t", "--tier", "laptop", "--rows", "hard"]) == 0
    trained = [run for verb, run in children.asked if verb == "fit"]
    assert trained == ["master/seed_0", "hard/seed_0"]
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 0
    found = cells(Path("results/p/t/laptop"))
    assert found["hard", "acc"] == [5.0]
    assert found["head", "acc"] == [20.0]  # another metric of the same test
    kept = json.loads(Path("results/p/t/laptop/provenance.json").read_text())["runs"]
    assert {run["row"]: run["used_by"] for run in kept} == {
        "hard": ["hard", "head"],
        "master": ["master"],
    }
    table = paper.tables["t"]
    runs = plan_runs(table, "laptop", table.rows.values(), 1, Path("runs"), Machine())
    given = {run.row: run.fit for run in runs}
    assert given.keys() == {"master", "hard"}
    place = given["hard"].index("--model.teacher") + 1
    assert given["hard"][place] == "runs/p/t/laptop/master/seed_0"
    assert "--model.teacher" not in given["master"]
    wrong = read_paper("p.yaml", TAUGHT.replace("teacher: master", "teacher: mister"))
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": wrong})
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 2
    assert "p/t, row hard: teacher must be one of hard, master, got" in capsys.readouterr().err


BESIDE = """
title: T
authors: A, B
venue: V
year: 2000
sources: {read: somewhere}
tables:
  t:
    title: Columns that take a training each
    source: [read]
    columns: {few: {title: few}, more: {title: more}, most: {title: most}}
    rows:
      one: {laptop: {each: {recipe: configs/vaswani2017/base.yaml, config: {d_ff: 64}}}}
      two: {laptop: {start: one, more: null}}
    tiers:
      laptop:
        config: configs/vaswani2017/tiny.yaml
        columns: {few: test/ppl_token}
        about: tiny
        also:
          more: {config: configs/vaswani2017/tiny.yaml, columns: {more: test/ppl_token}}
          most: {config: configs/vaswani2017/tiny.yaml, columns: {most: test/ppl_token}}
"""


def test_a_column_may_take_a_training_of_its_own(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = read_paper("p.yaml", BESIDE)
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": paper})
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 0
    trained = [run for verb, run in children.asked if verb == "fit"]
    assert trained == ["one/seed_0", "more/seed_0", "most/seed_0", "most/seed_0"]
    assert cells(Path("results/p/t/laptop")).keys() == {
        ("one", "few"),
        ("one", "more"),
        ("one", "most"),
        ("two", "few"),
        ("two", "most"),
    }
    table = paper.tables["t"]
    for run in plan_runs(table, "laptop", table.rows.values(), 1, Path("runs"), Machine()):
        assert "--model.init_from" not in run.fit
        assert ("base.yaml" in run.fit[1]) == (run.row == "one")
        assert ("--model.init_args.config.d_ff" in run.fit) == (run.row == "one")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "start: base",
            "start: bose",
            "p/t, row other: start must be one of base, wide, got 'bose';",
        ),
        (
            "start: base",
            "start: scratch",
            "p/t, row other: start must be one of base, wide, got 'scratch'",
        ),
        ("start: base", "start: q/t/base", "TABLE must be one of p, all, p/t, got 'q/t'"),
        (
            "words: base",
            "words: bose",
            "p/t, row worded: words must be one of base, wide, got 'bose';",
        ),
    ],
)
def test_a_row_that_names_nothing_says_so(
    old: str,
    new: str,
    says: str,
    chain: Any,
    children: Children,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paper = read_paper("p.yaml", CHAIN.replace(old, new))
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": paper})
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 2
    assert says in capsys.readouterr().err
    assert not children.asked


EFFECT = """
    statements:
      heads: {order: one > two, column: ppl, source: table 1}
    tiers:"""


def test_an_effect_runs_only_its_rows_and_gets_a_verdict(
    here: Path,
    children: Children,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = PAPER.replace("three: {ppl: 7.0}", "three: {laptop: {}, ppl: 7.0}")
    text = text.replace("{title: perplexity}", "{title: perplexity, better: lower}")
    paper = read_paper("p.yaml", text.replace("\n    tiers:", EFFECT))
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": paper})
    command = ["reproduce", "p/t", "--effect", "heads"]
    assert main([*command, "--commands"]) == 0
    assert "three" not in capsys.readouterr().out
    assert main(command) == 0  # the tier is laptop
    assert {folder.partition("/")[0] for _, folder in children.asked} == {"one", "two"}
    assert "- `heads`: one > two, perplexity: not resolved, by 1. Source" in capsys.readouterr().out
    assert main([*command, "--seeds", "3"]) == 0
    assert len(children.asked) == 2 * 2 * 3
    assert "- `heads`: one > two, perplexity: seen, by 1 (1 to 1), 3 s" in capsys.readouterr().out
    verdicts = (here / "results/p/t/laptop/statements.csv").read_text().splitlines()
    assert verdicts[1:] == ["heads,ppl,lower,one > two,table 1,seen,3,1,1,1"]
    assert main([*command, "--rows", "one"]) == 2
    assert "--rows: not allowed with argument --effect" in capsys.readouterr().err
    assert main(["reproduce", "p/t", "--effect", "head"]) == 2
    assert "p/t, --effect must be one of heads, got 'head'" in capsys.readouterr().err


def test_a_narrower_command_takes_nothing_from_a_table(
    here: Path, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    assert main([*command, "--seeds", "2"]) == 0
    folder = here / "results/p/t/laptop"
    table = (folder / "table.json").read_text()
    assert main([*command, "--rows", "two"]) == 0
    assert (folder / "table.json").read_text() == table
    shutil.rmtree(here / "runs")
    assert main(command) == 0
    assert (folder / "table.json").read_text() == table


def test_an_exact_table_is_whole_whichever_rows_are_asked_for(tmp_path: Path) -> None:
    command = ["reproduce", "gpt2_2019/table2", "--out", str(tmp_path)]
    assert main(command) == 0
    table = (tmp_path / "gpt2_2019/table2/exact/table.json").read_text()
    assert main([*command, "--rows", "small"]) == 0
    assert (tmp_path / "gpt2_2019/table2/exact/table.json").read_text() == table


@pytest.mark.parametrize(
    "spoilt",
    ["[]", '{"run": 3}', '{"run": {"command": 3}}', '{"run": {"command": "a \'b"}}', "\xff"],
)
def test_a_spoilt_measurement_is_made_again(here: Path, children: Children, spoilt: str) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "one"]
    folder = here / "runs/reproduce/p/t/laptop/one/seed_0"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(spoilt, encoding="latin-1")
    assert main(command) == 0
    assert len(children.asked) == 2
    assert cells(here / "results/p/t/laptop")["one", "ppl"] == [5.0]


def test_a_directory_may_be_spelled_in_two_ways(here: Path, children: Children) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop"]
    assert main([*command, "--runs", "r"]) == 0
    shutil.rmtree(here / "results")
    children.asked.clear()
    assert main([*command, "--runs", str(here / "r")]) == 0
    assert not children.asked
    assert cells(here / "results/p/t/laptop")["one", "ppl"] == [5.0]


def test_what_fails_keeps_only_what_starts_from_it(
    chain: Any, children: Children, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def some(verb: str, given: list[str], *more: Any) -> int:
        if "wide/seed_0" in given[given.index("--run_dir") + 1]:
            return 1
        return children(verb, given, *more)

    monkeypatch.setattr(subprocess_runs, "run", some)
    assert main(["reproduce", "p/t", "--tier", "laptop"]) == 1
    printed = capsys.readouterr().out
    assert "p/t, row wide, seed 0: failed with exit code 1" in printed
    assert (
        "p/t, row wide, task, seed 0: skipped, because a run that it starts from failed" in printed
    )
    missing = {key for key, values in cells(Path("results/p/t/laptop")).items() if not values}
    assert missing == {("wide", "ppl"), ("wide", "bleu")}


SECOND = PAPER.partition("tables:\n")[2].replace("  t:", "  u:", 1)


def test_the_same_training_of_two_tables_is_run_once(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PAPER + SECOND.replace("one:", "uno:")
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", text)})
    assert main(["reproduce", "p", "--tier", "laptop"]) == 0
    assert len(children.asked) == 4
    assert cells(here / "results/p/u/laptop")["uno", "ppl"] == [5.0]


def test_a_budget_is_for_all_tables_together(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    longer = SECOND.replace("max_steps: 2", "max_steps: 3")
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", PAPER + longer)})
    children.slow = 1.0
    assert main(["reproduce", "p", "--tier", "laptop", "--budget", "0.4s"]) == 0
    assert children.asked == [("fit", "one/seed_0")]
    assert "4 runs remain" in capsys.readouterr().out
    # What does not fit of the first table keeps nothing of the second from being run.
    children.slow = 0.0
    children.asked.clear()
    timed = PAPER.replace("about: tiny", "about: tiny\n        minutes: 280") + longer
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", timed)})
    assert main(["reproduce", "p", "--tier", "laptop", "--budget", "30m"]) == 0
    assert [run for verb, run in children.asked if verb == "fit"] == ["one/seed_0", "two/seed_0"]
    assert not (here / "results/p/t").exists()
    assert cells(here / "results/p/u/laptop")["one", "ppl"] == [5.0]


def test_what_a_later_table_lacks_is_said_before_the_first_is_run(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    text = PAPER + SECOND.replace("about: tiny", "about: tiny\n        files: [gone.gz]")
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", text)})
    assert main(["reproduce", "p", "--tier", "laptop"]) == 2
    assert (
        "gone.gz: the file is required by p/u, tier laptop; put it into the current"
        in capsys.readouterr().err
    )
    assert not children.asked


def test_rows_that_are_not_timed_again_stay(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """{title: T, authors: A, venue: V, year: 2000, sources: {}, tables: {t: {
        title: Lengths, columns: {gru: {title: GRU, measured: gru}},
        rows: {small: {setup: {d: 8, longest: 32}}, other: {setup: {d: 4, longest: 16}}}}}}"""
    monkeypatch.setattr(load_tables, "papers", lambda: {"p": read_paper("p.yaml", text)})
    command = ["reproduce", "p/t", "--tier", "measured"]
    assert main([*command, "--rows", "other"]) == 0
    before = cells(here / "results/p/t/measured")
    assert before["other", "gru"]
    assert before["small", "gru"] == []
    assert main([*command, "--rows", "small", "--seeds", "2"]) == 0
    after = cells(here / "results/p/t/measured")
    assert after["small", "gru"]
    assert after["other", "gru"] == before["other", "gru"]
    file = here / "results/p/t/measured/provenance.json"
    runs = json.loads(file.read_text())["runs"]
    assert all(run["machine"]["processor"] and run["finished"] for run in runs)
    assert main([*command, "--rows", "small"]) == 2
    assert "--seeds must be at least 2, the number of rounds of small in" in capsys.readouterr().err
    file.write_text(file.read_text()[:100])
    assert main(command) == 2
    assert re.search(r"provenance.json:\d+: invalid JSON", capsys.readouterr().err)


@pytest.mark.parametrize("memory", [None, 8, 24, 80])
@pytest.mark.parametrize("file", [None, "gpu", "ddp"])
def test_a_batch_is_cut_for_the_machine(
    memory: int | None, file: str | None, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "deit2020/table8", "--tier", "paper", "--rows", "none", "--commands"]
    command += ["--memory", str(memory)] if memory else []
    command += ["--machine", str(root / f"configs/trainer/{file}.yaml")] if file else []
    assert main(command) == 0
    fit, test = (line.split() for line in capsys.readouterr().out.splitlines())
    key = "--trainer.accumulate_grad_batches"
    accumulation, micro = map(int, fit[fit.index(key) + 1 :: 2]) if key in fit else (1, 1024)
    assert accumulation * micro * (8 if file == "ddp" else 1) == 1024
    assert (accumulation > 1) if memory == 8 else (memory or accumulation == 1)
    # What does not fit in training would not in a test.
    assert test[-2:] == fit[-2:] if micro < 1024 else "--data.init_args.batch_size" not in test
    configs = [word for word in test if word.endswith(".yaml")]
    assert [Path(name).stem for name in configs] == ["b", *([file] if file else [])]
    assert [word for word in fit if word.endswith(".yaml")] == configs
    assert "--trainer.accumulate_grad_batches" not in test


def test_a_machine_overrules_what_a_recipe_says_of_another(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "vaswani2017/table3", "--tier", "single-gpu", "--rows", "base"]
    command += ["--commands"]
    assert main(command) == 0
    fit = capsys.readouterr().out.splitlines()[0].split()
    assert fit[fit.index("--trainer.devices") + 1] == "1"
    tokens, parts = (
        int(fit[fit.index(key) + 1])
        for key in ("--data.init_args.max_tokens", "--trainer.accumulate_grad_batches")
    )
    assert main([*command, "--machine", str(root / "configs/trainer/ddp.yaml")]) == 0
    for line in capsys.readouterr().out.splitlines():
        words = line.split()
        recipe = parse(make_parser("fourfold fit"), words[2:])
        assert recipe["trainer"]["devices"] == 8
        assert recipe["data"]["init_args"]["max_tokens"] == tokens * parts // 8
    assert words[1] == "test"


def test_a_teacher_of_what_a_row_starts_from_is_trained_first() -> None:
    (table,) = find_tables(["deit2020/table3"])
    plan = plan_runs(table, "laptop", [table.rows["token_class"]], 1, Path("runs"), Machine())
    assert [(run.row, run.part) for run in plan] == [("teacher", ""), ("token_both", "")]
    assert plan[1].start is not None
    assert plan[1].start.folder == plan[0].folder


def test_a_run_that_cannot_be_cut_keeps_no_other_from_being_run(
    here: Path, children: Children, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def cut(run: Run) -> dict[str, int]:
        if run.row == "one":
            raise InputError("a batch of 12 cannot be shared by 8 devices")
        return {}

    monkeypatch.setattr(Run, "batch_split", property(cut))
    assert main(["reproduce", "p/t", "--tier", "laptop", "--rows", "one,two"]) == 2
    said = capsys.readouterr().err
    assert "p/t, row one, seed 0: a batch of 12 cannot be shared" in said
    assert cells(here / "results/p/t/laptop")["two", "ppl"]


def test_what_was_begun_with_another_cut_is_not_gone_on_with(
    here: Path, children: Children, capsys: Any
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "one"]
    folder = here / "runs/reproduce/p/t/laptop/one"
    (folder / "seed_0").mkdir(parents=True)
    note = folder / ".seed_0.json"
    children.stop_at = 1
    assert main(command) == 75
    assert json.loads(note.read_text())["cut"] == {}
    assert main([*command, "--machine", "configs/trainer/ddp_cpu.yaml"]) == 2
    assert "seed_0 was started with the batch split for another machine" in capsys.readouterr().err
    assert json.loads(note.read_text())["cut"] == {}
    assert main(command) == 0


def test_where_a_run_is_trained_is_no_part_of_what_it_is(here: Path, children: Children) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "one"]
    machine = ["--machine", "configs/trainer/ddp_cpu.yaml"]
    assert main([*command, *machine]) == 0
    file = here / "results/p/t/laptop/provenance.json"
    (entry,) = json.loads(file.read_text())["runs"]
    fit, test = entry["commands"]
    assert "--config configs/trainer/ddp_cpu.yaml" in fit
    assert "--config configs/trainer/ddp_cpu.yaml" in test
    assert "--data.init_args.max_tokens" in fit
    children.asked.clear()
    for given in (command, [*command, *machine], [*command, "--out", "again"]):
        assert main(given) == 0
    assert not children.asked
    again = json.loads((here / "again/p/t/laptop/provenance.json").read_text())["runs"]
    assert again[0]["commands"] == entry["commands"]
    assert again[0]["stamp"] == entry["stamp"]
    # As if the commands had been given to a cluster by hand.
    (here / "runs/reproduce/p/t/laptop/one/.seed_0.json").unlink()
    assert main([*command, *machine, "--out", "by_hand"]) == 0
    assert not children.asked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "trainer:\n  max_steps: 3",
            "m.yaml:2: trainer.max_steps belongs to the recipe; --machine takes",
        ),
        (
            "data:\n  init_args:\n    seed: 3",
            "m.yaml:3: data.seed belongs to the recipe; --machine takes",
        ),
        (
            "trainer: {devices: auto}",
            "m.yaml:1: trainer.devices must be a number by which the batch can be",
        ),
        (
            "trainer: {devices: -1}",
            "m.yaml:1: trainer.devices must be a number by which the batch can be",
        ),
    ],
)
def test_a_machine_changes_no_recipe(
    text: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "m.yaml").write_text(text)
    command = ["reproduce", "p/t", "--tier", "laptop", "--machine", "m.yaml"]
    for more in ([], ["--commands"]):
        assert main([*command, *more]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--tier laptop --machine nowhere.yaml",
            "nowhere.yaml: the config file does not exist",
        ),
    ],
)
def test_no_such_machine(
    words: str, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "p/t", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_batch_that_cannot_be_cut_is_said(
    here: Path, children: Children, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "p/t", "--tier", "laptop", "--rows", "one", "--memory", "0.0001"]
    assert main([*command, "--commands"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# p/t, row one, seed 0: the batch cannot be split yet: ")
    assert main(command) == 2
    assert "not even the smallest micro-batch fits" in capsys.readouterr().err
    assert not children.asked
