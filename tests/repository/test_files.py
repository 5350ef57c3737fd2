"""Contents of a clone: no path of the machine that made it, no large file, no dead link."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fourfold import __version__

# Written in pieces, so that this file does not find itself.
FORBIDDEN = re.compile(
    "|".join(
        [
            r"index" + r"[-_]url\b",
            r"find" + r"[-_]links\b",
            r"trusted" + r"[-_]host\b",
            r"\b(pypi" + r"|pythonhosted|download\.pytorch)\.(org|python\.org)\b",
            r"(?<![\w.])/(work" + r"|root|home/\w+|Users/\w+|opt/pypi)/",
        ]
    )
)
CODE_BLOCK = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)
RUNS = "run_0_2_0"  # of tests/fixtures
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".cfg", ".json", ".csv", ""}


@pytest.fixture(scope="module")
def tracked(root: Path) -> list[Path]:
    """Files of the clone: tracked ones, and new ones that git does not ignore."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [f for name in listing.stdout.split("\0") if name and (f := root / name).is_file()]


def test_no_registry_and_no_machine_is_named(tracked: list[Path]) -> None:
    found = [
        f"{file}:{number}: {line.strip()}"
        for file in tracked
        if file.suffix in TEXT
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1)
        if FORBIDDEN.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "pip install --extra-ind" + "ex-url x torch",
        "see files.python" + "hosted.org/packages",
        'path = "/ro' + 'ot/data"',
        "data_dir: /ho" + "me/someone/data",
    ],
)
def test_a_machine_would_be_found(line: str) -> None:
    assert FORBIDDEN.search(line)


def test_nothing_large_is_carried(tracked: list[Path]) -> None:
    assert not {str(f): size for f in tracked if (size := f.stat().st_size) > 1 << 20}


def test_no_training_is_carried(tracked: list[Path]) -> None:
    """Weights lie in run directories, which git does not follow, except the runs of 0.2.0."""
    weights = {".ckpt", ".pt", ".pth", ".bin", ".safetensors"}
    carried = [file for file in tracked if file.suffix in weights]
    assert not [str(file) for file in carried if RUNS not in file.parts]
    assert sum(file.stat().st_size for file in tracked if RUNS in file.parts) < 300_000


def test_links_between_pages_hold(tracked: list[Path]) -> None:
    broken = [
        f"{page}: {target}"
        for page in tracked
        if page.suffix == ".md"
        for target in re.findall(
            r"\]\(([^)#\s]+)", CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))
        )
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def test_every_requirement_is_pinned_within_its_range(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(line for extra in extras for line in extra)]
    pins = {}
    for line in (root / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), (
            f"not a plain pin: {line}"
        )
        name, version = line.split("==")
        pins[canonicalize_name(name)] = version
    for requirement in map(Requirement, wanted):
        if requirement.name != project["name"]:
            version = pins.get(canonicalize_name(requirement.name))
            assert version, f"{requirement.name} is not in constraints.txt; run `make lock`"
            assert requirement.specifier.contains(version), f"{requirement} against {version}"


def test_all_files_state_the_same_version(root: Path) -> None:
    cited = yaml.safe_load((root / "CITATION.cff").read_text())["version"]
    heading = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading
    assert cited == heading[1] == __version__
