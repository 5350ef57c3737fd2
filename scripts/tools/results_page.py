"""Inserts the reproduced tables into results/README.md, and updates the page of each table.

    python scripts/tools/results_page.py [RESULTS]

RESULTS/PAPER/TABLE/TIER/table.md is generated from table.json and provenance.json in its folder and
from the table's definition. The same holds for statements.csv, the verdicts on the published
effects, which the tier laptop has even if it was not run. RESULTS/README.md keeps its prose; the
text between its two marks is generated from the tables and from finding.md, an optional paragraph
of interpretation.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from fourfold.reproduce.cells import Cell, count_verdicts
from fourfold.reproduce.load_tables import papers
from fourfold.reproduce.rank_correlation import RankCorrelation
from fourfold.reproduce.report import markdown, ours
from fourfold.reproduce.statements import as_csv, judge
from fourfold.reproduce.table_files import with_provenance
from fourfold.reproduce.tables import Paper, Table

ROOT = Path(__file__).resolve().parents[2]

BEGIN = "<!-- tables -->"
END = "<!-- end of tables -->"
HEADINGS = ("table", "tier", "cells", "published effects", "order of the rows")
ORDER = (
    'The column "published effects" counts the verdicts of the file statements.csv beside each'
    " table, which docs/reproduce.md explains."
    ' The column "order of the rows" contains Spearman\'s rank correlation between our means and'
    " the paper's numbers, the number of rows, and the 95 % interval of a bootstrap over the rows."
    " The interval does not include the variation over seeds."
)
Found = tuple[list[Cell], list[RankCorrelation]]


def section(results: Path) -> str:
    """Format the tables of all papers."""
    lines = [ORDER, ""]
    for paper in sorted(papers().values(), key=lambda paper: (paper.year, paper.name)):
        lines += [f"### {paper.name}", "", f"{paper.citation}.", ""]
        lines += [line(HEADINGS), line(["---"] * len(HEADINGS))]
        below: list[str] = []
        for table in paper.tables.values():
            if not table.obtainable:
                lines.append(line([heading(table), "-", "printed numbers only", "", ""]))
            for tier in table.obtainable:
                found = read(results / table.name / tier)
                lines.append(line(summary(table, tier, found)))
                if found is not None:
                    below += block(table, tier, found[0], results)
        lines += ["", *below]
    return "\n".join(lines).strip()


def pages(results: Path) -> dict[Path, str]:
    """Format the page of each reproduced table, and the verdicts on the published effects."""
    texts = {}
    for paper in papers().values():
        for table, tier in ((t, tier) for t in paper.tables.values() for tier in t.obtainable):
            folder = results / table.name / tier
            if found := read(folder):
                texts[folder / "table.md"] = _page(paper, table, tier, found, folder)
            judged = judge(table, tier, found[0] if found else [])
            if judged and (found or tier == "laptop"):
                texts[folder / "statements.csv"] = as_csv(table, judged)
    return texts


def _page(paper: Paper, table: Table, tier: str, found: Found, folder: Path) -> str:
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    return with_provenance(markdown(paper, table, tier, *found), provenance)


def read(folder: Path) -> Found | None:
    """Read the cells and rank correlations of a table in one tier; None if it was not run."""
    try:
        whole = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    known = {field.name for field in fields(Cell)}  # other entries are computed from these
    cells = [Cell(**{k: v for k, v in cell.items() if k in known}) for cell in whole["cells"]]
    return cells, [RankCorrelation(**order) for order in whole["order"]]


def line(cells: tuple[str, ...] | list[str]) -> str:
    """Format a row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def heading(table: Table) -> str:
    """Format number and title of a table."""
    return f"{table.name.partition('/')[2]}: {table.title}"


def summary(table: Table, tier: str, found: Found | None) -> list[str]:
    """Format the row of a table in one tier."""
    cells, order = found or ([], [])
    judged = judge(table, tier, cells) if found or tier == "laptop" else {}
    effects = count_verdicts(step.verdict for step in judged.values())
    if found is None:
        return [heading(table), tier, f"{len(table.cells(tier))} not run", effects, ""]
    correlations = [
        f"{o.column} {float(o.rho):.2f} of {o.rows} ({float(o.low):.2f} to {float(o.high):.2f})"
        for o in order
    ]
    link = f"[{tier}]({table.name}/{tier}/table.md)"
    counts = count_verdicts(cell.verdict for cell in cells)
    return [heading(table), link, counts, effects, ", ".join(correlations)]


def block(table: Table, tier: str, cells: list[Cell], results: Path) -> Iterator[str]:
    """Format deviations from the paper with their reasons, and the rows of trained tables."""
    name = f"**{table.name}, {tier}.**"
    for why in dict.fromkeys(cell.why for cell in cells if cell.why):
        same = [cell for cell in cells if cell.why == why]
        where = ", ".join(dict.fromkeys(table.columns[cell.column].title for cell in same))
        counts = count_verdicts(cell.verdict for cell in same)
        yield from (f"{name} {counts} ({where}): {why}", "")
    for cell in cells:
        if cell.verdict == "differs":
            row, column = table.rows[cell.row], table.columns[cell.column]
            what = f"{row.title}, {column.title}: printed {cell.printed}, here {ours(cell, column)}"
            yield from (f"{name} {what}. The cause is unknown.", "")
    finding = results / table.name / tier / "finding.md"
    if finding.is_file():
        yield from (f"{name} {finding.read_text(encoding='utf-8').strip()}", "")
    if tier in table.tiers and any(cell.values for cell in cells):
        theirs = "formula" if table.derived else "paper"
        what = f"{theirs} / ours" if table.source else "ours"
        yield from (f"<details><summary>{table.name}, {tier}, {what}</summary>", "")
        yield from (*grid(table, cells), "", "</details>", "")


def grid(table: Table, cells: list[Cell]) -> Iterator[str]:
    """Format rows by columns; the number of the paper precedes the reproduced one."""
    columns = list(dict.fromkeys(cell.column for cell in cells))
    found = {(cell.row, cell.column): cell for cell in cells}
    heads = [table.columns[name] for name in columns]
    yield line(["row", *(", ".join(filter(None, (c.title, c.unit))) for c in heads)])
    yield line(["---", *["---:"] * len(heads)])
    for row in dict.fromkeys(cell.row for cell in cells):
        texts = []
        for name, column in zip(columns, heads, strict=True):
            cell = found.get((row, name))
            printed = f"{cell.printed or '-'} / " if cell and table.source else ""
            texts.append(printed + ours(cell, column) if cell else "")
        yield line([table.rows[row].title, *texts])


def insert(page: Path, content: str) -> None:
    """Replace the text between the two marks of a page, which must contain them."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{page} has no {BEGIN}"
    assert end, f"{page} has no {END}"
    page.write_text(f"{before}{BEGIN}\n\n{content}\n\n{END}{after}", encoding="utf-8")
    print(f"wrote {page}")


def main() -> int:
    results = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results"
    for file, page in pages(results).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page, encoding="utf-8")
    insert(results / "README.md", section(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
