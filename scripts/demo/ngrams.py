"""Simple baselines of the demo: n-gram language models, class means, and copying the source.

A baseline gets the same tokens, test split and masked positions as the model. Training one takes
seconds and needs no gradients.
Shapes: B rows, T tokens, V vocabulary, N images, P pixels, K classes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

Gram = tuple[int, ...]
IGNORE_INDEX = -100  # target of positions without a prediction


class KneserNey:
    """Interpolated Kneser-Ney n-grams over token ids (Kneser and Ney 1995; Chen and Goodman 1999).

    Orders below the highest count the distinct contexts of a token. The discount of an order is
    n1 / (n1 + 2 n2), where n1 and n2 are the numbers of n-grams that occur once and twice. Unigrams
    are interpolated with the uniform distribution, so that no token has probability 0. N-grams do
    not cross the boundaries of the `streams` of token ids.
    """

    def __init__(self, streams: Iterable[Sequence[int]], vocab_size: int, order: int = 3) -> None:
        self.vocab_size, self.order = vocab_size, order
        counts: list[Counter[Gram]] = [Counter() for _ in range(order)]
        for stream in streams:
            counts[-1].update(zip(*(stream[k:] for k in range(order)), strict=False))
            for n in range(1, min(order, len(stream) + 1)):
                counts[n - 1][tuple(stream[:n])] += 1  # the start of a stream is a context
        for n in range(order - 1, 0, -1):
            counts[n - 1].update(gram[1:] for gram in counts[n])
        self.discounts = [_discount(counts[n]) for n in range(order)]
        self.followers = [_followers(counts[n]) for n in range(order)]
        self.totals = [
            {context: sum(seen.values()) for context, seen in table.items()}
            for table in self.followers
        ]
        self.unigram = np.full(vocab_size, 1.0 / vocab_size)
        self.unigram = self._refine(self.unigram, 0, ())

    def probability(self, context: Sequence[int], token: int) -> float:
        """Return P(token | context), which depends on the last n - 1 tokens of `context`."""
        p = float(self.unigram[token])
        for n, gram in self._seen_contexts(context):
            seen, discount = self.followers[n][gram], self.discounts[n]
            kept = max(seen.get(token, 0) - discount, 0)
            p = (kept + discount * len(seen) * p) / self.totals[n][gram]
        return p

    def distribution(self, context: Sequence[int]) -> np.ndarray:
        """Return P(. | context) as an array (V,)."""
        p = self.unigram
        for n, gram in self._seen_contexts(context):
            p = self._refine(p, n, gram)
        return p

    def _seen_contexts(self, context: Sequence[int]) -> Iterator[tuple[int, Gram]]:
        """Yield lengths and contexts that occur in the training text, from the shortest."""
        for n in range(1, min(self.order - 1, len(context)) + 1):
            gram = tuple(context[-n:])
            if gram not in self.totals[n]:
                return
            yield n, gram

    def _refine(self, p: np.ndarray, n: int, gram: Gram) -> np.ndarray:
        seen, discount, total = self.followers[n][gram], self.discounts[n], self.totals[n][gram]
        finer = p * (discount * len(seen) / total)
        ids = np.fromiter(seen, np.int64, len(seen))
        given = np.fromiter(seen.values(), np.float64, len(seen))
        finer[ids] += np.maximum(given - discount, 0) / total
        return finer


def _discount(counts: Counter[Gram]) -> float:
    of_counts = Counter(counts.values())
    once, twice = of_counts[1], of_counts[2]
    return once / (once + 2 * twice) if once else 0.5


def _followers(counts: Counter[Gram]) -> dict[Gram, dict[int, int]]:
    table: dict[Gram, dict[int, int]] = defaultdict(dict)
    for gram, count in counts.items():
        table[gram[:-1]][gram[-1]] = count
    return dict(table)


class BidirectionalTrigrams:
    """Trigram model that predicts a masked token from its left and right context.

    P(x | left, right) is proportional to P(x | left) P(right | left, x), where only two tokens of
    the right context matter. Masked neighbors are ignored.
    """

    def __init__(self, streams: Iterable[Sequence[int]], vocab_size: int, mask_id: int) -> None:
        self.model, self.mask_id = KneserNey(streams, vocab_size), mask_id
        self._columns: dict[int, np.ndarray] = {}
        self._before: dict[int, list[int]] = defaultdict(list)
        for first, second in self.model.totals[2]:
            self._before[second].append(first)

    def distribution(self, left: Sequence[int], right: Sequence[int]) -> np.ndarray:
        """Return P(. | left, right) as an array (V,); both contexts are in reading order."""
        p = self.model.distribution(left)
        if right and right[0] != self.mask_id:
            p = p * self._next(left[-1:], right[0])
            if len(right) > 1 and right[1] != self.mask_id:
                p = p * self._next_but_one(right[0], right[1])
        return p / p.sum()

    def _next(self, left: Sequence[int], token: int) -> np.ndarray:
        """Return P(token | left, x) for each x as an array (V,)."""
        probability = self.model.probability
        if token not in self._columns:
            ids = range(self.model.vocab_size)
            self._columns[token] = np.array([probability([x], token) for x in ids])
        column = self._columns[token].copy()
        for x in self.model.followers[1].get(tuple(left), ()) if left else ():
            column[x] = probability([*left, x], token)
        return column

    def _next_but_one(self, middle: int, token: int) -> np.ndarray:
        """Return P(token | x, middle) for each x as an array (V,)."""
        column = np.full(self.model.vocab_size, self.model.probability([middle], token))
        for x in self._before[middle]:
            column[x] = self.model.probability([x, middle], token)
        return column


def next_token_nll(model: KneserNey, ids: np.ndarray, targets: np.ndarray) -> float:
    """Return the summed negative log-likelihood in nats of the targets (B, T) of a causal batch."""
    nll, reach = 0.0, model.order - 1
    for row, answers in zip(ids.tolist(), targets.tolist(), strict=True):
        for t, token in enumerate(answers):
            if token != IGNORE_INDEX:
                context = row[max(0, t + 1 - reach) : t + 1]
                nll -= math.log(model.probability(context, token))
    return nll


def masked_token_nll(
    model: BidirectionalTrigrams | KneserNey, ids: np.ndarray, targets: np.ndarray, mask_id: int
) -> float:
    """Return the summed negative log-likelihood in nats of the targets of a masked batch.

    Of a KneserNey, the unigrams are used. The targets (B, T) are IGNORE_INDEX where nothing is
    predicted; elsewhere the ids (B, T) are the mask token, a random token or the original.
    """
    nll = 0.0
    for b, t in np.argwhere(targets != IGNORE_INDEX).tolist():
        row = ids[b].tolist()
        if isinstance(model, BidirectionalTrigrams):
            p = model.distribution(row[max(0, t - 2) : t], row[t + 1 : t + 3])
        else:
            p = model.unigram
        p = update_by_input_token(p, row[t], mask_id)
        nll -= math.log(p[targets[b, t]])
    return nll


def update_by_input_token(p: np.ndarray, shown: int, mask_id: int) -> np.ndarray:
    """Return the posterior of `p` (V,) given the input token (Devlin et al. 2019, 3.1).

    80 % of the positions to predict hold the mask token, 10 % a random token and 10 % the original.
    An input token other than the mask is therefore likely to be the original.
    """
    if shown == mask_id:
        return p
    evidence = np.full(len(p), 1.0 / len(p))
    evidence[shown] += 1.0
    p = p * evidence
    return p / p.sum()


def is_copied(sources: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return a bool for each pair: the source equals the reference."""
    pairs = zip(sources, references, strict=True)
    return np.array([source.strip() == reference.strip() for source, reference in pairs])


def most_frequent_class_accuracy(train: np.ndarray, test: np.ndarray) -> float:
    """Return the accuracy of predicting the most frequent class of the training data."""
    return float((test == np.bincount(train).argmax()).mean())


def nearest_mean_accuracy(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]
) -> float:
    """Return the accuracy of the class with the nearest mean; pixels (N, P) and labels (N,)."""
    pixels, labels = train
    test_pixels, test_labels = test
    classes = np.unique(labels)
    means = np.stack([pixels[labels == k].mean(0) for k in classes])  # (K, P)
    distances = ((test_pixels[:, None] - means) ** 2).sum(-1)  # (N, K)
    return float((classes[distances.argmin(-1)] == test_labels).mean())
