"""TranslationScores: BLEU, chrF and exact match of translations, summaries and captions."""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from fourfold.metrics.base import RowMetric
from fourfold.metrics.bleu_tokenizer import bleu_tokenizer


class TranslationScores(RowMetric):
    """Corpus-level BLEU and chrF of sacreBLEU, and share of exact matches, of generated texts."""

    def update(
        self, rows: list[int], hypotheses: list[str], references: Sequence[str | Sequence[str]]
    ) -> None:
        """Add the generated texts of a batch, each with one or several reference texts."""
        self.rows += zip(rows, zip(hypotheses, references, strict=True), strict=True)

    def compute(
        self, language: str = "", groups: Mapping[str, Collection[int]] | None = None
    ) -> dict[str, Any]:
        """Return bleu and chrf (0 to 100), exact_match (0 to 1) and bleu_signature by name.

        With several references, a generated text may match any of them, as in sacreBLEU.

        Args:
            language: Code of the target language, such as "de" or "zho_Hans"; "" if it is unknown.
            groups: Rows by the name of a group that has an entry bleu_NAME, if it has a row.
        """
        scored = sorted(self.gather().items())
        hypotheses, references, columns = _columns([pair for _, pair in scored])
        bleu = _bleu(language)
        by_group = {}
        for name, rows in (groups or {}).items():
            if pairs := [pair for row, pair in scored if row in rows]:
                chosen, _, sides = _columns(pairs)
                by_group[f"bleu_{name}"] = bleu.corpus_score(chosen, sides).score
        n_equal = sum(h in several for h, several in zip(hypotheses, references, strict=True))
        return {
            "bleu": bleu.corpus_score(hypotheses, columns).score,
            "chrf": CHRF().corpus_score(hypotheses, columns).score,
            "exact_match": n_equal / max(1, len(scored)),
            **by_group,
            "bleu_signature": str(bleu.get_signature()),  # known after the score
        }


def _columns(pairs: list[Any]) -> tuple[list[str], list[Sequence[str]], list[Any]]:
    """Return the generated texts, the references of each, and the references by number.

    The last are the first reference of each example, then the second, and so on, as for sacreBLEU;
    None stands for a missing reference.
    """
    references = [[given] if isinstance(given, str) else given for _, given in pairs]
    return [text for text, _ in pairs], references, list(zip_longest(*references)) or [()]


def _bleu(language: str) -> BLEU:
    """Return sacreBLEU's BLEU with the tokenizer for the code `language`, such as "de".

    Without the packages that its tokenizers of Japanese and Korean need, it divides into
    characters.
    """
    try:
        return BLEU(tokenize=bleu_tokenizer(language))
    except RuntimeError:  # Japanese and Korean need mecab
        return BLEU(tokenize="char")
