"""What the demo's four models are measured against, each counted in seconds and without a gradient.

A baseline sees exactly what the model sees: the same tokens, the same test split, the same hidden
places. Shapes: B rows, T tokens, V vocabulary, N images, P pixels, K classes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

Gram = tuple[int, ...]
IGNORED = -100  # target where nothing is to be predicted


class KneserNey:
    """Interpolated Kneser-Ney n-grams over token ids (Kneser and Ney 1995; Chen and Goodman 1999).

    Orders below the highest count in how many different contexts a token was seen. The discount of
    an order is n1 / (n1 + 2 n2), from how many of its n-grams were seen once and twice. Below the
    unigrams stands the uniform distribution, so no token is impossible.

    Args:
        streams: Token ids; an n-gram does not reach from one stream into the next.
        vocab_size: V.
        order: n; 1 gives plain unigrams, 3 trigrams.
    """

    def __init__(self, streams: Iterable[Sequence[int]], vocab_size: int, order: int = 3) -> None:
        self.vocab_size, self.order = vocab_size, order
        counts: list[Counter[Gram]] = [Counter() for _ in range(order)]
        for stream in streams:
            counts[-1].update(zip(*(stream[k:] for k in range(order)), strict=False))
            for n in range(1, min(order, len(stream) + 1)):
                counts[n - 1][tuple(stream[:n])] += 1  # nothing before it: counted as a context
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
        """P(token | context); only the last n - 1 tokens of `context` matter."""
        p = float(self.unigram[token])
        for n, gram in self._known(context):
            seen, discount = self.followers[n][gram], self.discounts[n]
            kept = max(seen.get(token, 0) - discount, 0)
            p = (kept + discount * len(seen) * p) / self.totals[n][gram]
        return p

    def distribution(self, context: Sequence[int]) -> np.ndarray:
        """P(. | context) as (V,)."""
        p = self.unigram
        for n, gram in self._known(context):
            p = self._refine(p, n, gram)
        return p

    def _known(self, context: Sequence[int]) -> Iterator[tuple[int, Gram]]:
        """Lengths and contexts that were seen in training, from the shortest on."""
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


class BothSides:
    """Fills a hidden place by what makes the sentence most likely: a trigram model read both ways.

    P(x | left, right) is proportional to P(x | left) P(right | left, x), where of the right side
    two tokens matter; so this is exact for a trigram model that sees the neighbours. A neighbour
    that is hidden itself says nothing.

    Args:
        streams: Token ids of the training text.
        vocab_size: V.
        mask_id: The token that hides.
    """

    def __init__(self, streams: Iterable[Sequence[int]], vocab_size: int, mask_id: int) -> None:
        self.model, self.mask_id = KneserNey(streams, vocab_size), mask_id
        self._columns: dict[int, np.ndarray] = {}
        self._before: dict[int, list[int]] = defaultdict(list)
        for first, second in self.model.totals[2]:
            self._before[second].append(first)

    def distribution(self, left: Sequence[int], right: Sequence[int]) -> np.ndarray:
        """P(. | left, right) as (V,); both sides in reading order."""
        p = self.model.distribution(left)
        if right and right[0] != self.mask_id:
            p = p * self._next(left[-1:], right[0])
            if len(right) > 1 and right[1] != self.mask_id:
                p = p * self._next_but_one(right[0], right[1])
        return p / p.sum()

    def _next(self, left: Sequence[int], token: int) -> np.ndarray:
        """P(token | left, x) for each x, (V,)."""
        known = self.model.probability
        if token not in self._columns:
            ids = range(self.model.vocab_size)
            self._columns[token] = np.array([known([x], token) for x in ids])
        column = self._columns[token].copy()
        for x in self.model.followers[1].get(tuple(left), ()) if left else ():
            column[x] = known([*left, x], token)
        return column

    def _next_but_one(self, middle: int, token: int) -> np.ndarray:
        """P(token | x, middle) for each x, (V,)."""
        column = np.full(self.model.vocab_size, self.model.probability([middle], token))
        for x in self._before[middle]:
            column[x] = self.model.probability([x, middle], token)
        return column


def next_token_nll(model: KneserNey, ids: np.ndarray, targets: np.ndarray) -> float:
    """Summed nll in nats of a causal batch's targets (B, T), each given the `ids` (B, T) so far."""
    nll, reach = 0.0, model.order - 1
    for row, answers in zip(ids.tolist(), targets.tolist(), strict=True):
        for t, token in enumerate(answers):
            if token != IGNORED:
                context = row[max(0, t + 1 - reach) : t + 1]
                nll -= math.log(model.probability(context, token))
    return nll


def hidden_token_nll(
    model: BothSides | KneserNey, ids: np.ndarray, targets: np.ndarray, mask_id: int
) -> tuple[float, int]:
    """Summed nll in nats, and number of right guesses, of a masked batch's targets (B, T).

    Args:
        model: BothSides, or a KneserNey whose unigrams are asked.
        ids: (B, T) as the model sees them: hidden places show `mask_id`, a random or their token.
        targets: (B, T) true tokens at hidden places, IGNORED elsewhere.
        mask_id: The token that hides.
    """
    nll, right = 0.0, 0
    for b, t in np.argwhere(targets != IGNORED).tolist():
        row = ids[b].tolist()
        if isinstance(model, BothSides):
            p = model.distribution(row[max(0, t - 2) : t], row[t + 1 : t + 3])
        else:
            p = model.unigram
        p = given_what_is_shown(p, row[t], mask_id)
        nll -= math.log(p[targets[b, t]])
        right += int(p.argmax() == targets[b, t])
    return nll, right


def given_what_is_shown(p: np.ndarray, shown: int, mask_id: int) -> np.ndarray:
    """`p` (V,) after a look at the place itself (Devlin et al. 2019, 3.1).

    Of the places to predict, 8 in 10 show the mask, 1 in 10 a random token and 1 in 10 the true
    one: a token that is shown there is far more likely to be the answer than `p` says.
    """
    if shown == mask_id:
        return p
    evidence = np.full(len(p), 1.0 / len(p))
    evidence[shown] += 1.0
    p = p * evidence
    return p / p.sum()


def copied(sources: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Where the source itself is the right translation, as bools."""
    pairs = zip(sources, references, strict=True)
    return np.array([source.strip() == reference.strip() for source, reference in pairs])


def most_frequent(train: np.ndarray, test: np.ndarray) -> float:
    """Accuracy of always answering the class that occurs most often in training."""
    return float((test == np.bincount(train).argmax()).mean())


def nearest_mean(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray]
) -> float:
    """Accuracy of the class whose mean training image is nearest; (N, P) pixels and (N,) labels."""
    (pixels, labels), (unseen, answers) = train, test
    classes = np.unique(labels)
    means = np.stack([pixels[labels == k].mean(0) for k in classes])  # (K, P)
    distances = ((unseen[:, None] - means) ** 2).sum(-1)  # (N, K)
    return float((classes[distances.argmin(-1)] == answers).mean())
