"""MinimalPairs: accuracy on minimal pairs or last words, in validation and test."""

from typing import Any, Literal

from lightning import Callback, LightningModule, Trainer

from fourfold.generation.minimal_pairs import answer, items_by, read_questions, tabulate
from fourfold.generation.step import eval_copy


class MinimalPairs(Callback):
    """Callback that logs the accuracy of a language model on BLiMP, Zorro, LAMBADA or own pairs.

    `val/blimp` and `test/blimp` are means over the paradigms of what `fourfold evaluate` prints, as
    fractions. They may be the metric of `--checkpoint.monitor`. A test also logs the accuracy of
    each group, such as `test/blimp_ellipsis`, and `test/blimp_ties`, the share of pairs with equal
    scores. Each rank scores all pairs, and the training itself does not change. The callback does
    not support sharded weights (FSDP2).

    Args:
        benchmark: Name of the benchmark, which is also that of the metric.
        file: Zip archive, folder or file, also looked up under $FOURFOLD_DATA.
        limit: Number of pairs of each paradigm, from its beginning; None means all.
        method: Method of `fourfold.score`, which then follows the name: `val/blimp_mntp`.
        batch_size: Number of inputs of the model in a batch.

    Raises:
        InputError: There is no such file, or a line is invalid.
    """

    def __init__(
        self,
        benchmark: Literal["blimp", "zorro", "pairs", "lambada"],
        file: str,
        limit: int | None = None,
        method: str | None = None,
        batch_size: int = 64,
    ) -> None:
        questions = read_questions(benchmark, file)
        items = items_by("paradigm", questions).values()
        self.questions = [questions[i] for own in items for i in own[:limit]]
        self.name = benchmark if method is None else f"{benchmark}_{method}"
        self.options = {"method": method, "batch_size": batch_size}

    def measure(self, module: Any, split: str) -> dict[str, float]:
        """Return the metrics of the model of a task, with the name of a split before theirs."""
        model = eval_copy(module.model)
        model.tokenizer, model.artifacts = module.tokenizer, module.artifacts
        values = answer(model, self.questions, **self.options)
        tables = tabulate(self.questions, {"A": values[None]})
        shares = {row[""]: row["A"] / 100 for row in tables["groups"]}
        shares["ties"] = tables["all"][0]["A ties"] / len(self.questions)
        name = f"{split}/{self.name}"
        groups = {f"{name}_{group}": share for group, share in shares.items()}
        return {name: tables["all"][-1]["A"] / 100, **(groups if split == "test" else {})}

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            pl_module.log_dict(self.measure(pl_module, "val"))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.found = self.measure(pl_module, "test")
        pl_module.log_dict(self.found)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        summary: Any = pl_module.summary
        summary.update(self.found)
