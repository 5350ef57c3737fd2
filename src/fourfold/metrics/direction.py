"""Which way a metric is to go."""


def less_is_better(name: str) -> bool:
    """Whether of a metric of this name, such as val/loss, the least value is the best."""
    return name.rsplit("/", 1)[-1].startswith(("loss", "ppl", "error", "nll"))
