"""Registry of peer libraries: families that each has, and whether it is installed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from scripts.benchmarks.contenders import Contender, fourfold_contender
from scripts.benchmarks.peers import litgpt, nanogpt, timm, transformers
from scripts.benchmarks.workloads import FOURFOLD, PEER_NAMES, Settings, Shape


class PeerUnavailable(Exception):
    """A peer cannot be measured; the message states the reason."""


@dataclass(frozen=True)
class Peer:
    """A library that fourfold is compared with."""

    package: str  # must be installed
    families: Mapping[str, Callable[..., Contender]]  # build a model from shape and dropout rate


PEERS: dict[str, Peer] = {
    "transformers": Peer("transformers", transformers.FAMILIES),
    "timm": Peer("timm", timm.FAMILIES),
    "nanogpt": Peer("torch", nanogpt.FAMILIES),
    "litgpt": Peer("litgpt", litgpt.FAMILIES),
    "lm_eval": Peer("lm_eval", {}),  # scores only
    "minicons": Peer("minicons", {}),
}
assert tuple(PEERS) == PEER_NAMES


def peers_with(family: str, names: tuple[str, ...]) -> list[str]:
    """Return the peers among `names` that have a family."""
    return [name for name in names if family in PEERS[name].families]


def check_available(name: str, settings: Settings) -> None:
    """Raise PeerUnavailable if a peer is not installed."""
    if find_spec(PEERS[name].package) is None:
        raise PeerUnavailable("not installed")
    if name == "nanogpt" and settings.nanogpt is None:
        raise PeerUnavailable("requires --nanogpt FILE")


def available(names: Iterable[str], settings: Settings) -> tuple[list[str], dict[str, str]]:
    """Return the chosen peers among `names`, and by name why others are unavailable."""
    peers, unavailable = [], {}
    for name in (name for name in names if name in settings.peers):
        try:
            check_available(name, settings)
            peers.append(name)
        except PeerUnavailable as error:
            unavailable[name] = str(error)
    return peers, unavailable


def build_contender(name: str, family: str, shape: Shape, settings: Settings) -> Contender:
    """Build the model of a family of fourfold or of a peer, or raise PeerUnavailable."""
    if name == FOURFOLD:
        return fourfold_contender(family, shape, settings.dropout)
    check_available(name, settings)
    more = (settings.nanogpt,) if name == "nanogpt" else ()
    try:
        return PEERS[name].families[family](shape, settings.dropout, *more)
    except ImportError as error:  # a package that the peer requires
        raise PeerUnavailable(f"cannot be imported: {error}") from error
