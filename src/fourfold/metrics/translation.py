"""TranslationScores: BLEU, chrF and exact match of translations, summaries and captions."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from fourfold.metrics.base import RowMetric


class TranslationScores(RowMetric):
    """Corpus-level sacreBLEU, chrF and exact match; each row of the split counts once."""

    def update(
        self, rows: list[int], hypotheses: list[str], references: Sequence[str | Sequence[str]]
    ) -> None:
        """Add hypotheses of the given rows, with one reference or several for each."""
        self.rows += zip(rows, zip(hypotheses, references, strict=True), strict=True)

    def compute(self, language: str = "") -> dict[str, Any]:
        """Return bleu and chrf (0 to 100), exact_match (0 to 1) and the signature of BLEU.

        With several references a hypothesis may match any of them, as in sacreBLEU.

        Args:
            language: Target language such as "de". BLEU splits words accordingly in languages
                without spaces (zh, ja, ko).
        """
        pairs = [pair for _, pair in sorted(self.gather().items())]
        hypotheses = [hypothesis for hypothesis, _ in pairs]
        references = [[given] if isinstance(given, str) else given for _, given in pairs]
        columns = list(zip_longest(*references)) or [()]
        bleu = _bleu(language)
        n_equal = sum(h in several for h, several in zip(hypotheses, references, strict=True))
        scores: dict[str, Any] = {
            "bleu": bleu.corpus_score(hypotheses, columns).score,
            "chrf": CHRF().corpus_score(hypotheses, columns).score,
            "exact_match": n_equal / max(1, len(pairs)),
        }
        scores["bleu_signature"] = str(bleu.get_signature())  # known after the score
        return scores


def _bleu(language: str) -> BLEU:
    """Return sacreBLEU with its tokenizer for a language, or by characters if it is missing."""
    try:
        return BLEU(trg_lang=re.split("[-_]", language)[0].lower())
    except RuntimeError:  # Japanese and Korean need mecab
        return BLEU(tokenize="char")
