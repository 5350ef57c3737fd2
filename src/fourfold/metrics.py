"""Metrics that torchmetrics lacks or that must not depend on how the data were cut.

Each is a torchmetrics Metric: sums over batches and ranks, divided once at the end.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor
from torchmetrics import Metric


def less_is_better(name: str) -> bool:
    """Whether of a metric of this name, such as val/loss, the least value is the best."""
    return name.rsplit("/", 1)[-1].startswith(("loss", "ppl", "error", "nll"))


class Perplexity(Metric):
    """exp(total nll / number of units) per token, per word and per byte of the same text.

    Per what matters: one model has a different perplexity for each tokenizer, but only one per
    byte (field: "GPT-2 perplexities do not match"). Words and bytes are those of the raw text.
    """

    full_state_update = False
    nll: Tensor
    tokens: Tensor
    words: Tensor
    bytes: Tensor
    correct: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("nll", "tokens", "words", "bytes", "correct"):
            zero = torch.zeros((), dtype=torch.float64)
            self.add_state(name, default=zero, dist_reduce_fx="sum")

    def update(
        self, nll: Tensor, n_tokens: Tensor, n_words: int, n_bytes: int, n_correct: Tensor
    ) -> None:
        """Add the summed nll in nats of some text, and how much text it was."""
        self.nll += nll.double()
        self.tokens += n_tokens
        self.words += n_words
        self.bytes += n_bytes
        self.correct += n_correct

    def compute(self) -> dict[str, float]:
        """loss, accuracy, ppl_token and, where words and bytes were counted, those too."""
        nll, tokens = self.nll.item(), max(1.0, self.tokens.item())
        result = {"loss": nll / tokens, "accuracy": self.correct.item() / tokens}
        units = {"token": tokens, "word": self.words.item(), "byte": self.bytes.item()}
        for name, count in units.items():
            if count:
                # A model this bad overflows a float; infinity says so and stops nothing.
                exponent = nll / count
                result[f"ppl_{name}"] = math.exp(exponent) if exponent < 700 else math.inf
        return result


class CorpusScores(Metric):
    """sacreBLEU, chrF and exact match of a whole test set, each sentence counted once.

    Sentences are kept by their row, so that neither the order nor a duplicate on another device
    changes the score.
    """

    full_state_update = False
    hypotheses: dict[int, tuple[str, str]]

    def __init__(self) -> None:
        super().__init__()
        self.hypotheses = {}

    def update(self, rows: list[int], hypotheses: list[str], references: list[str]) -> None:
        """Add translations and references of the given rows."""
        self.hypotheses.update(zip(rows, zip(hypotheses, references, strict=True), strict=True))

    def reset(self) -> None:
        """Forget all sentences."""
        super().reset()
        self.hypotheses = {}

    def compute(self) -> dict[str, Any]:
        """bleu, chrf and exact_match in percent, 0 to 1 for the last, and the BLEU signature."""
        pairs = [pair for _, pair in sorted(self.gather().items())]
        hypotheses, references = [p[0] for p in pairs], [p[1] for p in pairs]
        bleu, chrf = BLEU(), CHRF()
        scores: dict[str, Any] = {
            "bleu": bleu.corpus_score(hypotheses, [references]).score,
            "chrf": chrf.corpus_score(hypotheses, [references]).score,
            "exact_match": sum(h == r for h, r in pairs) / max(1, len(pairs)),
        }
        scores["bleu_signature"] = str(bleu.get_signature())
        return scores

    def gather(self) -> dict[int, tuple[str, str]]:
        """The sentences of all ranks, by row."""
        if not (dist.is_available() and dist.is_initialized()):
            return self.hypotheses
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, self.hypotheses)
        return {row: pair for part in parts for row, pair in part.items()}


class ClassScores(Metric):
    """Accuracy, F1 and Matthews' correlation of K classes, all from one confusion matrix.

    F1 is that of class 1 where there are two classes (GLUE's MRPC and QQP), and the mean over the
    classes (macro) of more. What is divided by 0 is 0, as in scikit-learn.

    Args:
        n_classes: K.
    """

    full_state_update = False
    confusion: Tensor

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        zero = torch.zeros(n_classes, n_classes, dtype=torch.float64)
        self.add_state("confusion", default=zero, dist_reduce_fx="sum")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add logits (B, K) and classes (B,)."""
        k = len(self.confusion)
        cells = torch.bincount(labels * k + logits.argmax(-1), minlength=k * k)
        self.confusion += cells.view(k, k)

    def compute(self) -> dict[str, float]:
        """accuracy, f1 (f1_macro of more than two classes) and matthews (Gorodkin 2004 of more)."""
        table = self.confusion.cpu()
        total, correct = table.sum(), table.diag().sum()
        true, guessed = table.sum(1), table.sum(0)
        f1 = 2 * table.diag() / (true + guessed).clamp(min=1)
        spread = (total**2 - guessed.square().sum()) * (total**2 - true.square().sum())
        matthews = (correct * total - true @ guessed) / spread.sqrt() if spread > 0 else 0.0
        two = len(table) == 2
        return {
            "accuracy": float(correct / total.clamp(min=1)),
            "f1" if two else "f1_macro": float(f1[1] if two else f1.mean()),
            "matthews": float(matthews),
        }


class NumberScores(Metric):
    """Pearson's and Spearman's correlation of predicted and true numbers (GLUE's STS-B)."""

    full_state_update = False
    pairs: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("pairs", default=[], dist_reduce_fx="cat")

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Add numbers (B, 1) or (B,) and labels (B,)."""
        self.pairs.append(torch.stack([predictions.flatten().double(), labels.double()], dim=1))

    def compute(self) -> dict[str, float]:
        """pearson and spearman, 0 where one side does not vary; equal numbers share their rank."""
        pairs = self.pairs if isinstance(self.pairs, Tensor) else torch.cat(self.pairs)
        ranks = torch.stack([_ranks(column) for column in pairs.T], dim=1)
        return {"pearson": _correlation(pairs), "spearman": _correlation(ranks)}


def _ranks(values: Tensor) -> Tensor:
    """Mean rank of each number among all, from 1."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1) / 2)[place]


def _correlation(pairs: Tensor) -> float:
    """Pearson's correlation of the two columns of (N, 2)."""
    centred = pairs - pairs.mean(0)
    sizes = centred.square().sum(0)
    return float((centred[:, 0] @ centred[:, 1]) / sizes.prod().sqrt()) if sizes.prod() > 0 else 0.0
