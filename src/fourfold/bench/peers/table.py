"""Which peers there are, what of ours they can do, and whether they are here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from fourfold.bench.peers import nanogpt, timm_models, torch_modules, transformers_models
from fourfold.bench.peers import x_transformers_models as x_models
from fourfold.bench.shapes import PEERS, Settings, Shape
from fourfold.bench.ways import Way

Build = Callable[[Shape, float], Way]


class Absent(Exception):
    """A peer cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Peer:
    """Somebody else's models.

    Args:
        package: What has to be installed.
        families: How to build each family that it has.
    """

    package: str
    families: Mapping[str, Build]


TABLE: dict[str, Peer] = {
    "transformers": Peer("transformers", transformers_models.FAMILIES),
    "timm": Peer("timm", timm_models.FAMILIES),
    "nanogpt": Peer("torch", {"causal_lm": nanogpt.needs_file}),
    "x_transformers": Peer("x_transformers", x_models.FAMILIES),
    "torch": Peer("torch", torch_modules.FAMILIES),
}
assert tuple(TABLE) == PEERS


def having(family: str, names: tuple[str, ...]) -> list[str]:
    """Those of the peers that have a family."""
    return [name for name in names if family in TABLE[name].families]


def require(name: str, settings: Settings) -> None:
    """Raise Absent unless a peer is here."""
    if find_spec(TABLE[name].package) is None:
        raise Absent("not installed")
    if TABLE[name].families.get("causal_lm") is nanogpt.needs_file and settings.nanogpt is None:
        raise Absent("not given: --nanogpt FILE")


def build_peer(name: str, family: str, shape: Shape, settings: Settings) -> Way:
    """A peer's model of a family.

    Raises:
        Absent: It is not installed.
        InputError: The file given for nanoGPT is another one.
    """
    require(name, settings)
    build = TABLE[name].families[family]
    if build is nanogpt.needs_file:
        return nanogpt.causal_lm(shape, settings.dropout, str(settings.nanogpt))
    try:
        return build(shape, settings.dropout)
    except ImportError as error:  # something that it needs itself
        raise Absent(f"cannot be imported: {error}") from error
