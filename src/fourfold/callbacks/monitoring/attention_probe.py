"""AttentionProbe: callback that logs statistics of the attention of each layer during training.

The callback also warns if the attention of a layer collapses, which means that nearly all weight of
a query is on few keys.
"""

import time
import warnings
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from fourfold.analysis.attention_maps import LayerAttention, visit_attention
from fourfold.analysis.attention_statistics import LABELS, head_label, head_statistics
from fourfold.callbacks.checkpointing.exact_resume import resumable_data
from fourfold.errors import InputError
from fourfold.generation.step import decoding_mode
from fourfold.loggers.wandb_logger import WandbRunLogger

COLLAPSE = 0.1  # entropy of a layer, as a fraction of the entropy of uniform attention
MAX_SHARE = 0.01  # largest share of the training time that measurements and pages may take
LOGGED = ("entropy", "distance", "first")


class AttentionProbe(Callback):
    """Callback that logs statistics of attention by layer after every N-th validation.

    The statistics are means over the heads, the queries and the first examples of the validation
    split. The name of a statistic begins with `attention/`, the kind of attention and the layer,
    such as `attention/self.0/`. It ends with one of the following:

    - `entropy`: entropy of the attention weights in nats.
    - `entropy_share`: entropy divided by the entropy of uniform attention.
    - `distance`: mean distance of query and key in tokens, for self-attention only.
    - `first`: weight on the first key. A large weight is called an attention sink.
    - `heads_first_token` and `heads_broad`: number of heads with this label of `head_label`.
    - `heads_previous`, `heads_self` and `heads_next`: the same number for further labels, for
      self-attention only.

    A warning is given once for each layer whose `entropy_share` is below 10 % in two successive
    measurements. The page of `fourfold look` for the same examples replaces `val/look.html` in the
    root directory of the Trainer, and is logged to W&B. TensorBoard, which shows no HTML, logs the
    path of the page. Nothing is logged for sharded weights, or without a `ResumableDataModule` and
    a validation split. The training itself does not change.

    The first measurement writes a page. A later one writes a page only if all measurements and
    pages together then take at most 1 % of the time since the beginning of the training.

    Args:
        every_n_validations: Number of validations from one measurement to the next.
        n_rows: Number of examples. Each example is a batch of its own, without padding.
        page: Write the page of attention maps.
    """

    def __init__(self, every_n_validations: int = 1, n_rows: int = 4, page: bool = True) -> None:
        self.every_n_validations = every_n_validations
        self.n_rows = n_rows
        self.page = page
        self.n_validations = 0
        self.n_low: dict[str, int] = {}  # successive measurements with low entropy, by layer
        self._begin = self._seconds = self._page_seconds = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"n_validations": self.n_validations, "n_low": dict(self.n_low)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.n_validations, self.n_low = state_dict["n_validations"], dict(state_dict["n_low"])

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        self.n_validations += 1
        data = resumable_data(trainer)
        has_all_weights = type(trainer.strategy) in (SingleDeviceStrategy, DDPStrategy)
        is_due = self.n_validations % self.every_n_validations == 0
        if not is_due or not has_all_weights or not trainer.is_global_zero:
            return
        if data is None or "val" not in data.splits:
            return
        begin = time.perf_counter()
        metrics = self.measure(trainer, pl_module, data.split("val"))
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=trainer.global_step)
        self._warn(metrics)
        measured = time.perf_counter()
        self._seconds += measured - begin
        expected = self._seconds + self._page_seconds
        is_allowed = expected <= MAX_SHARE * (measured - self._begin) or not self._page_seconds
        if self.page and metrics and is_allowed:
            self._write_page(trainer, pl_module)
            self._page_seconds = time.perf_counter() - measured
            self._seconds += self._page_seconds

    def _write_page(self, trainer: Trainer, module: Any) -> None:
        try:
            page = module.look("val", self.n_rows, f"step {trainer.global_step}")
        except InputError as error:
            self.page = False
            warnings.warn(f"there is no page of attention maps: {error}", stacklevel=1)
            return
        file = Path(trainer.default_root_dir, "val", "look.html")
        file.parent.mkdir(parents=True, exist_ok=True)
        page.save(file, overwrite=True)
        for logger in trainer.loggers:
            if isinstance(logger, WandbRunLogger):
                logger.log_media("val/look", None, [file], trainer.global_step)
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("val/look", str(file), trainer.global_step)

    def measure(self, trainer: Trainer, module: Any, dataset: Any) -> dict[str, float]:
        """Return the statistics of attention for the first rows of a dataset, by name."""
        found: dict[str, list[float]] = defaultdict(list)
        labels: Counter[str] = Counter()

        def visit(record: LayerAttention) -> None:
            weights = record.weights.float()
            is_self = weights.shape[2] == weights.shape[3] and record.name != "cross"
            statistics = head_statistics(weights, record.allowed, is_self=is_self)
            prefix = f"attention/{record.name}.{record.layer}"
            for name in LOGGED:
                if name in statistics:
                    found[f"{prefix}/{name}"].append(float(statistics[name].value.mean()))
            uniform = float(statistics["entropy"].uniform.mean())
            if uniform > 0:
                share = found[f"{prefix}/entropy"][-1] / uniform
                found[f"{prefix}/entropy_share"].append(share)
            kinds: Counter[str | None] = Counter()
            for head in range(weights.shape[1]):
                own = {n: (x.value[:, head], x.uniform[:, head]) for n, x in statistics.items()}
                means = {n: (float(x.mean()), float(y.mean())) for n, (x, y) in own.items()}
                kinds[head_label(means)] += 1
            for label in ("broad", *(LABELS[name] for name in LABELS if name in statistics)):
                labels[f"{prefix}/heads_{label.replace(' ', '_')}"] += kinds[label]

        n_rows = min(self.n_rows, len(dataset))
        with trainer.precision_plugin.forward_context(), decoding_mode(module) as quiet:
            for row in range(n_rows):
                batch = dataset.batch(np.array([row]), 0, 0)
                batch = trainer.precision_plugin.convert_input(batch)
                batch = trainer.strategy.batch_to_device(batch)
                visit_attention(quiet.model, partial(quiet.step, batch), visit)
        means = {name: float(np.mean(values)) for name, values in found.items()}
        return means | {name: count / n_rows for name, count in labels.items()}

    def _warn(self, metrics: dict[str, float]) -> None:
        for name, share in metrics.items():
            if not name.endswith("/entropy_share"):
                continue
            self.n_low[name] = self.n_low.get(name, 0) + 1 if share < COLLAPSE else 0
            if self.n_low[name] == 2:
                layer = name.split("/")[1]
                warnings.warn(
                    f"the attention of layer {layer} has collapsed: its entropy is {share:.1%} of"
                    " that of uniform attention, and was below 10 % at the previous probe, too",
                    stacklevel=1,
                )
