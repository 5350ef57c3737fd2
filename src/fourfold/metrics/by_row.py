"""What a metric keeps of each row, so that no row counts twice, in whatever order they come."""

from typing import Any

import torch.distributed as dist
from torchmetrics import Metric


class ByRow(Metric):
    """Base of metrics that need whole rows: texts, tags, answers.

    Rows are kept by their number, so that neither the order nor a duplicate on another device
    changes the score.
    """

    full_state_update = False
    rows: dict[Any, Any]

    def __init__(self) -> None:
        super().__init__()
        self.rows = {}

    def reset(self) -> None:
        """Forget all rows."""
        super().reset()
        self.rows = {}

    def gather(self) -> dict[Any, Any]:
        """The rows of all ranks, by their number."""
        return {row: kept for part in gather(self.rows) for row, kept in part.items()}


def gather(mine: Any) -> list[Any]:
    """What each rank has."""
    if not (dist.is_available() and dist.is_initialized()):
        return [mine]
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return parts
