"""Obtain the numbers of a published table and print them beside the paper's.

These are mean and standard deviation over seeds, origin, deviation, and the cause of the deviation
where it is known. Rows that were not run are shown as not run. TABLE is PAPER/TABLE such as
vaswani2017/table3, a PAPER, or all.

A stopped command resumes when it is run again. Finished runs, also those recorded under --out, are
skipped. A run whose config, options, data or start has changed is reported and repeated; its old
directory has to be removed first. A failed run only prevents the runs that start from it.
"""

# Options are checked before torch is imported, so that mistakes are reported without delay.
# `tables` explains the terms.
import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from fourfold.commands.option_parser import OptionParser
from fourfold.core.validation import check_choice, check_positive
from fourfold.errors import InputError
from fourfold.reproduce.load_tables import find_tables, list_tables
from fourfold.reproduce.tables import RECIPES, TIERS, Row, Table

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}  # seconds


def main(argv: Sequence[str]) -> int:
    """Compute, time or train the numbers of published tables, then print and write the tables.

    The exit code is 0, or that of a training or test that failed or was stopped.

    Raises:
        InputError: A table, tier or row is unknown, or data files are missing.
    """
    options = make_parser().parse_intermixed_args(list(argv))
    if options.list:
        list_tables(find_tables(options.tables or ["all"]), Path(options.out))
        return 0
    if not options.tables:
        message = "must be a table such as vaswani2017/table3, a paper, or all, before --rows"
        raise InputError(f"{message}; --list shows all", option="TABLE")
    options.tier = options.tier or ("laptop" if options.effect else "exact")
    check_positive("--seeds", options.seeds)
    seconds = None if options.budget is None else parse_budget(options.budget)
    tables = _with_tier(options)
    rows = {table.name: _rows(table, options) for table in tables}
    from fourfold.reproduce.fill_tables import fill_tables, show_commands  # imports torch

    if options.commands:
        check_choice("--tier of --commands", options.tier, RECIPES)
        show_commands(tables, rows, options)
        return 0
    return fill_tables(tables, rows, options, shlex.join(["fourfold", "reproduce", *argv]), seconds)


def make_parser() -> OptionParser:
    """Return the parser of the options of `fourfold reproduce`."""
    parser = OptionParser(prog="fourfold reproduce", description=__doc__)
    add = parser.add_argument
    add("tables", nargs="*", metavar="TABLE", help="PAPER/TABLE, PAPER or all")
    add("--list", action="store_true", help="list tables, tiers and how many cells have results")
    help_text = "exact (default; computed without training), measured (timed on this machine),"
    help_text += " weights (official weights), laptop, single-gpu or paper (the published recipe)"
    add("--tier", choices=TIERS, help=help_text)
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--rows", nargs="+", metavar="ROW", help="run only these rows")
    help_text = "run only the rows of a published effect (tier: laptop)"
    selection.add_argument("--effect", metavar="NAME", help=help_text)
    add("--seeds", type=int, default=1, metavar="N", help="seeds 0 to N - 1, or rounds of measured")
    add("--budget", metavar="TIME", help="start no run expected to end later: 90s, 30m, 2h")
    add("--machine", metavar="FILE", help="Trainer config, whose devices share the batches")
    add("--memory", type=float, metavar="GIB", help="memory of one device, to fit batches into")
    add("--commands", action="store_true", help="print the commands in order and run none")
    add("--out", default="results", metavar="DIR", help="directory of the tables (%(default)s)")
    add("--runs", default="runs/reproduce", metavar="DIR", help="directory of runs (%(default)s)")
    return parser


def parse_budget(text: str) -> float:
    """Convert a duration such as 90s, 30m, 2h or 1h30m to seconds.

    Raises:
        InputError: The text is not a duration.

    Example:
        >>> parse_budget("1h30m")
        5400.0
    """
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", text):
        message = f"must be a duration such as 90s, 30m or 2h, got {text!r}"
        raise InputError(message, option="--budget")
    return sum(float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.]+)([smhd])", text))


def _with_tier(options: Namespace) -> list[Table]:
    """Return the tables on the command line that have cells for the option `--tier`."""
    for name in options.tables:
        tiers = {tier for table in find_tables([name]) for tier in table.obtainable}
        known = tuple(tier for tier in TIERS if tier in tiers)
        check_choice(f"--tier of {name}", options.tier, known or ("none",))
    return [t for t in find_tables(options.tables) if options.tier in t.obtainable]


def _rows(table: Table, options: Namespace) -> list[Row]:
    """Return the rows of a table that `--rows` or `--effect` names, in the order of the table."""
    available = {row.name: row for row, _ in table.cells(options.tier)}
    words = options.rows or available
    if options.effect:
        check_choice(f"{table.name}, --effect", options.effect, (*table.statements,) or ("none",))
        words = table.statements[options.effect].rows
    wanted = [name for word in words for name in word.split(",") if name]
    for name in wanted:
        check_choice(f"{table.name}, --rows", name, tuple(available))
    return [row for name, row in available.items() if name in wanted]
