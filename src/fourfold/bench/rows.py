"""What was found: a row for each way of each work, plain enough for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fourfold.bench.clock import ratios
from fourfold.bench.shapes import OURS


@dataclass(frozen=True)
class Row:
    """One way, measured in every round.

    Args:
        work: Of WORKS.
        family: Of FAMILIES.
        what: Which job of that work, where there are several.
        way: Ours or a peer, perhaps compiled.
        unit: Of the values.
        values: One a round.
        ratios: By the value of ours of the same round, as `fourfold fit` runs without being asked.
        shares: Of the rate of `ceiling`, one a round.
        ceiling: What could not be exceeded: matrix product or memory bandwidth.
        parameters: How many are trained.
        note: What else was found, or why there are no values.
        x: Where on its axis a growth stands.
    """

    work: str
    family: str
    way: str
    unit: str
    what: str = ""
    values: Sequence[float] = ()
    ratios: Sequence[float] = ()
    shares: Sequence[float] = ()
    ceiling: str = ""
    parameters: int | None = None
    note: str = ""
    x: int | None = field(default=None)


def against_ours(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Each way's time by ours, round by round: by that of our default, compiled or not."""
    return ratios(seconds, OURS)
