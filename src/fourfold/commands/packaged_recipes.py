"""Recipes of the package (configs of trainings): lookup by name, and command `fourfold recipes`.

A checkout keeps the recipes in the top-level folder `configs`, a wheel in `fourfold/recipes`. A
name such as gpt2/tiny stands for the file gpt2/tiny.yaml in that folder.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

from fourfold.commands.option_parser import OptionParser
from fourfold.errors import InputError

PACKAGE = Path(__file__).resolve().parents[1]
SUFFIXES = (".yaml", ".yml", ".json")
SCHEMA_COMMENT = "# yaml-language-server:"  # names the JSON Schema to editors


def recipes_folder() -> Path:
    """Return the folder of the packaged recipes."""
    packaged = PACKAGE / "recipes"
    return packaged if packaged.is_dir() else PACKAGE.parents[1] / "configs"


def recipe_names() -> list[str]:
    """Return the names of all packaged recipes, such as "gpt2/tiny"."""
    folder = recipes_folder()
    files = folder.rglob("*.yaml")
    return sorted(file.relative_to(folder).with_suffix("").as_posix() for file in files)


def find_recipe(name: str) -> Path:
    """Return the path of the config file for a value of `--config`.

    Args:
        name: Path of an existing file, name of a packaged recipe such as gpt2/tiny, or path of the
            recipe in a checkout, such as configs/gpt2/tiny.yaml.
    """
    path = Path(name)
    if path.exists():
        return path
    recipe = name.removeprefix("configs/").removesuffix(".yaml")
    if recipe in recipe_names():
        return recipes_folder() / f"{recipe}.yaml"
    if path.suffix in SUFFIXES or path.is_absolute():
        raise InputError("the config file does not exist", file=name)
    close = get_close_matches(name, recipe_names(), n=3, cutoff=0.5)
    hint = f"; the closest names are {', '.join(close)}" if close else ""
    message = f"must be a file or a name that `fourfold recipes` lists, got {name!r}{hint}"
    raise InputError(message, option="--config")


def main(argv: Sequence[str]) -> int:
    """Print the name and the description of each packaged recipe that matches a pattern.

    Args:
        argv: A part of a name, or a glob such as 'gpt2/*'; nothing means all recipes.
    """
    description = "List the recipes of the package with the first line of each.\n"
    description += "`fourfold fit --config NAME` trains one of them."
    parser = OptionParser(prog="fourfold recipes", description=description)
    help_text = "part of a name, or a pattern such as 'gpt2/*'"
    parser.add_argument("pattern", nargs="?", default="*", help=help_text)
    pattern = parser.parse_args(list(argv)).pattern
    names = [name for name in recipe_names() if pattern in name or fnmatch(name, pattern)]
    if not names:
        raise InputError(f"must match a recipe, got {pattern!r}", option="PATTERN")
    width = max(map(len, names))
    for name in names:
        lines = (recipes_folder() / f"{name}.yaml").read_text(encoding="utf-8").split("\n")
        comment = lines[lines[0].startswith(SCHEMA_COMMENT)]
        print(f"{name:<{width}}  {comment.lstrip('# ').rstrip()}")
    return 0
