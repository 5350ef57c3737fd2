"""Corpus BLEU-1 to BLEU-4 of captions as in the COCO evaluation, with confidence intervals."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from sacrebleu.metrics import BLEU

from fourfold.metrics.translation import TranslationScores

# Matches a word, which may contain hyphens, or an English contraction such as 's or n't.
_TOKENS = re.compile(r"n't\b|'(?:s|re|ve|ll|d|m)\b|\w+?(?=n't\b)|\w+(?:-\w+)*")
N_RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)


def caption_tokens(text: str) -> list[str]:
    """Return the words of a caption in lower case, without punctuation.

    The words are those of the Penn Treebank tokenizer of the COCO evaluation: hyphens inside a word
    are kept, and contractions are divided, as in "do n't" and "man 's".

    Example:
        >>> caption_tokens("A man's T-shirt doesn't fit, obviously.")
        ['a', 'man', "'s", 't-shirt', 'does', "n't", 'fit', 'obviously']
    """
    return _TOKENS.findall(text.lower())


class CaptionScores(TranslationScores):
    """Scores of `TranslationScores`, and the corpus BLEU-1 to BLEU-4 of the COCO evaluation.

    BLEU-n is the geometric mean of the precisions of 1-grams to n-grams in all captions together,
    with the brevity penalty for the reference that is closest in length, without smoothing. Texts
    are divided by `caption_tokens`. Scores computed with NLTK, without the brevity penalty (Xu et
    al. 2015), or from teacher-forced words differ by several points.
    """

    def compute(self, *options: Any) -> dict[str, Any]:
        """Return the scores of `TranslationScores` and the following by name.

        - bleu1 to bleu4: corpus BLEU, from 0 to 100.
        - bleu1_low, bleu1_high and so on: bounds of the 95 % interval of each BLEU from a bootstrap
          over the images, always with the same 1000 resamples.
        - length_ratio: number of generated words divided by the number of reference words.
        - n_distinct: number of different captions.
        """
        pairs = [pair for _, pair in sorted(self.gather().items())]
        table = caption_counts(pairs)
        scores = super().compute(*options)
        n = len(table)
        # How often each resample contains each image.
        drawn = np.random.default_rng(0).multinomial(n, [1 / n] * n, N_RESAMPLES)
        sums, resampled = table.sum(0), bleu_of_counts(drawn @ table)
        for order, value in enumerate(bleu_of_counts(sums), start=1):
            low, high = np.percentile(resampled[:, order - 1], PERCENTILES)
            names = (f"bleu{order}", f"bleu{order}_low", f"bleu{order}_high")
            scores |= zip(names, map(float, (value, low, high)), strict=True)
        scores["length_ratio"] = float(sums[8] / max(1, sums[9]))
        scores["n_distinct"] = len({hypothesis for hypothesis, _ in pairs})
        return scores


def caption_counts(pairs: Sequence[tuple[str, str | list[str]]]) -> np.ndarray:
    """Count the n-grams and words of the caption of each image, for `bleu_of_counts`."""
    bleu, rows = BLEU(tokenize="none", effective_order=True), []  # only to count
    for hypothesis, references in pairs:
        several = [references] if isinstance(references, str) else references
        texts = [" ".join(caption_tokens(text)) for text in (hypothesis, *several)]
        score = bleu.sentence_score(texts[0], texts[1:])
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, dtype=np.float64)


def bleu_of_counts(counts: np.ndarray) -> np.ndarray:
    """Compute BLEU-1 to BLEU-4 (..., 4), from 0 to 100, from counts that are summed over a corpus.

    The last dimension of the counts (..., 10) holds the numbers of matching 1-grams to 4-grams (4
    entries), of generated 1-grams to 4-grams (4 entries), of generated words, and of reference
    words.
    """
    matches, totals, generated, references = np.split(counts, [4, 8, 9], axis=-1)
    with np.errstate(divide="ignore"):  # the logarithm of 0 is -inf, which gives a BLEU of 0
        precisions = np.log(matches / np.maximum(totals, 1))
    penalty = np.minimum(0, 1 - references / np.maximum(generated, 1))
    return 100 * np.exp(precisions.cumsum(-1) / np.arange(1, 5) + penalty)
