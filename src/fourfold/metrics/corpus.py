"""Scores of translations."""

from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from fourfold.metrics.by_row import ByRow


class CorpusScores(ByRow):
    """sacreBLEU, chrF and exact match of a whole test set, each sentence counted once."""

    def update(self, rows: list[int], hypotheses: list[str], references: list[str]) -> None:
        """Add translations and references of the given rows."""
        self.rows.update(zip(rows, zip(hypotheses, references, strict=True), strict=True))

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
