"""TranslationScores: BLEU, chrF and exact match of translations, summaries and captions."""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from fourfold.metrics.base import RowMetric
from fourfold.metrics.bleu_tokenizer import bleu_tokenizer


class TranslationScores(RowMetric):
    """Corpus-level BLEU and chrF of sacreBLEU, and share of exact matches, of generated texts.

    An example that several ranks have added counts once.

    Example:
        >>> metric = TranslationScores()
        >>> metric.update([0], ["the house is small"], ["the house is small"])
        >>> scores = metric.compute(language="en")
        >>> round(scores["bleu"], 1), scores["exact_match"]
        (100.0, 1.0)
    """

    def update(
        self, rows: list[int], hypotheses: list[str], references: Sequence[str | Sequence[str]]
    ) -> None:
        """Add the generated texts of a batch.

        Args:
            rows: Index of each example in the split.
            hypotheses: Generated text of each example.
            references: Reference text, or list of reference texts, of each example.
        """
        self.rows += zip(rows, zip(hypotheses, references, strict=True), strict=True)

    def compute(
        self, language: str = "", groups: Mapping[str, Collection[int]] | None = None
    ) -> dict[str, Any]:
        """Return the scores by name: bleu and chrf (0 to 100), and exact_match (0 to 1).

        The entry bleu_signature is sacreBLEU's description of the settings of BLEU. If an example
        has several references, its generated text may match any of them, as in sacreBLEU.

        Args:
            language: Code of the target language, such as "de" or "zho_Hans"; "" if it is unknown.
                The tokenizer of BLEU is that of `bleu_tokenizer` for this code.
            groups: Indices of examples by the name of a group. The entry bleu_NAME is the BLEU of
                the examples of a group. A group without an example in the split has no entry.

        Raises:
            InputError: The language is unknown, or there is no example.
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
    """Convert examples to the lists that sacreBLEU expects.

    Args:
        pairs: Pair (generated text, reference text or list of reference texts) of each example.

    Returns:
        The list of generated texts, the list of references of each example, and the references by
        number: the first reference of each example, then the second of each, and so on. None stands
        for a missing reference.
    """
    references = [[given] if isinstance(given, str) else given for _, given in pairs]
    return [text for text, _ in pairs], references, list(zip_longest(*references)) or [()]


def _bleu(language: str) -> BLEU:
    """Return sacreBLEU's BLEU with the tokenizer for the code `language`, such as "de".

    sacreBLEU's tokenizers of Japanese and Korean need packages that may not be installed. Without
    such a package, BLEU divides the texts into characters.
    """
    try:
        return BLEU(tokenize=bleu_tokenizer(language))
    except RuntimeError:  # Japanese and Korean need mecab
        return BLEU(tokenize="char")
