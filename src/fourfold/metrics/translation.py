"""Scores of translations and captions."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from fourfold.metrics.by_row import ByRow


class CorpusScores(ByRow):
    """sacreBLEU, chrF and exact match of a whole test set, each sentence counted once."""

    def update(
        self, rows: list[int], hypotheses: list[str], references: Sequence[str | Sequence[str]]
    ) -> None:
        """Add texts of the given rows, and the reference of each or its several references."""
        self.rows.update(zip(rows, zip(hypotheses, references, strict=True), strict=True))

    def compute(self, language: str = "") -> dict[str, Any]:
        """bleu, chrf and exact_match in percent, 0 to 1 for the last, and the BLEU signature.

        Of several references a hypothesis may match any, as sacreBLEU has it.

        Args:
            language: Of the texts, like "de": where words are not apart (zh, ja, ko) BLEU needs to
                know it.
        """
        pairs = [pair for _, pair in sorted(self.gather().items())]
        hypotheses = [hypothesis for hypothesis, _ in pairs]
        several = [[given] if isinstance(given, str) else given for _, given in pairs]
        columns = list(zip_longest(*several)) or [()]
        bleu, chrf = _bleu(language), CHRF()
        scores: dict[str, Any] = {
            "bleu": bleu.corpus_score(hypotheses, columns).score,
            "chrf": chrf.corpus_score(hypotheses, columns).score,
            "exact_match": sum(h in r for h, r in zip(hypotheses, several, strict=True))
            / max(1, len(pairs)),
        }
        scores["bleu_signature"] = str(bleu.get_signature())
        return scores


def _bleu(language: str) -> BLEU:
    """sacreBLEU with its tokenizer for a language; by characters where that is not installed."""
    try:
        return BLEU(trg_lang=re.split("[-_]", language)[0].lower())
    except RuntimeError:  # Japanese and Korean need mecab
        return BLEU(tokenize="char")
