"""Drawings of attention: from tokens to queries, keys and values; heads; masks."""

import math
import random

from drawings.canvas import Canvas

WORDS = ("the", "bank", "raised", "its", "rates")
Matrix = list[list[float]]


def _product(a: Matrix, b: Matrix) -> Matrix:
    return [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)]
        for row in a
    ]


def _softmax(scores: Matrix) -> Matrix:
    raised = [[math.exp(score) for score in row] for row in scores]
    return [[value / sum(row) for value in row] for row in raised]


def _shade(matrix: Matrix):  # type: ignore[no-untyped-def]
    """Return the opacity of a cell: the larger the value, the darker."""
    low, high = min(map(min, matrix)), max(map(max, matrix))
    return lambda row, column: 0.08 + 0.85 * (matrix[row][column] - low) / (high - low)


def qkv() -> Canvas:
    """Draw the matrices of one head, with values that are computed from random tokens.

    With this seed, “its” reads mainly “bank”.
    """
    rng = random.Random(72)
    x, w_q, w_k, w_v = (
        [[rng.gauss(0, scale) for _ in range(width)] for _ in range(rows)]
        for rows, width, scale in ((5, 6, 1), (6, 3, 0.6), (6, 3, 0.6), (6, 3, 0.6))
    )
    q, k, v = (_product(x, w) for w in (w_q, w_k, w_v))
    transposed = [list(column) for column in zip(*k, strict=True)]
    scores = [[s / 3**0.5 for s in row] for row in _product(q, transposed)]
    weights = _softmax(scores)
    canvas, frame, cell = Canvas(478), 3, 13
    canvas.text(170, 10, "X, tokens (N × D)", 12, bold=True)
    canvas.grid(131, 22, 5, 6, cell, "grey", _shade(x), frame)
    for row, word in enumerate(WORDS):
        canvas.text(125, 28.5 + cell * row, word, 11, at="end", bold=row == frame)
    for middle, letter, name, color, matrix in (
        (52, "q", "queries", "blue", q),
        (170, "k", "keys", "orange", k),
        (288, "v", "values", "green", v),
    ):
        canvas.path([(170, 87), (170, 97), (middle, 97), (middle, 106)], "grey")
        canvas.box(middle - 22, 106, 44, 22, f"W_{{{letter}}}", color, size=14)
        canvas.path([(middle, 128), (middle, 158)], color)
        canvas.text(middle + 8, 144, name, 11, at="start", color=color)
        canvas.text(middle - 31, 193, letter.upper(), 14, bold=True)
        canvas.grid(
            middle - 19.5, 160, 5, 3, cell, color, _shade(matrix), frame if letter == "q" else None
        )
    canvas.path([(42, 225), (42, 276)], "blue")
    canvas.path([(170, 225), (170, 240), (62, 240), (62, 276)], "orange")
    canvas.text(108, 251, "Q K^{T} / √D_{k}", 14, at="start")
    canvas.grid(19.5, 278, 5, 5, cell, "grey", _shade(scores), frame)
    canvas.path([(86, 310), (136, 310)])
    canvas.text(111, 300, "softmax", 11)
    canvas.grid(138, 278, 5, 5, cell, "purple", lambda i, j: weights[i][j], frame)
    canvas.path([(205, 310), (266, 310)], "purple")
    canvas.text(236, 300, "A V", 12)
    canvas.path([(288, 225), (288, 276)], "green")
    canvas.grid(268.5, 278, 5, 3, cell, "grey", _shade(_product(weights, v)), frame)
    for x_text, name in ((52, "scores S"), (170, "weights A"), (288, "output Y")):
        canvas.text(x_text, 355, name, 11, bold=True)
    _bars(canvas, weights[frame], frame)
    return canvas


def _bars(canvas: Canvas, weights: list[float], query: int) -> None:
    """Draw the weights of one query below the matrices."""
    canvas.text(170, 382, f"What “{WORDS[query]}” reads: its row of A, which sums to 1", 12)
    for column, (word, weight) in enumerate(zip(WORDS, weights, strict=True)):
        middle = 50 + 60 * column
        canvas.rectangle(
            middle - 18,
            448 - 46 * weight / max(weights),
            36,
            46 * weight / max(weights),
            "purple",
            radius=1,
        )
        canvas.text(middle, 456, word, 11)
        canvas.text(middle, 470, f"{weight:.2f}", 11, color="muted")


# Weights of each head: the row is the query.
_PATTERNS = {
    "word before": lambda i, j: 0.9 if j == max(i - 1, 0) else 0.02,
    "first word": lambda i, j: 0.75 if j == 0 else 0.06,
    "near words": lambda i, j: 0.8 / 2 ** abs(i - j),
    "by content": lambda i, j: {(3, 1): 0.9, (1, 3): 0.5, (4, 3): 0.6}.get((i, j), 0.12),
}


def heads() -> Canvas:
    """Draw four heads with different patterns, and how their outputs are joined."""
    canvas, colors, cell = Canvas(466), ("blue", "orange", "green", "purple"), 9
    canvas.text(170, 10, "X (N × D)", 12, bold=True)
    canvas.grid(134, 22, 5, 8, cell, "grey", lambda i, j: 0.15 + 0.6 * ((3 * i + 5 * j) % 7) / 7)
    for number, ((name, pattern), color) in enumerate(zip(_PATTERNS.items(), colors, strict=True)):
        middle = 47 + 82 * number
        canvas.path([(170, 67), (170, 78), (middle, 78), (middle, 86)], color)
        canvas.text(middle, 97, f"head {number + 1}", 12, bold=True)
        canvas.grid(middle - 32.5, 108, 5, 5, 13, color, pattern)
        canvas.text(middle, 184, name, 11, color=color)
        canvas.path([(middle, 193), (middle, 210)], color)
        canvas.grid(middle - cell, 212, 5, 2, cell, color)
        target = 143 + 18 * number
        canvas.path(
            [
                (middle, 257),
                (middle, 268 + 4 * abs(1.5 - number)),
                (target, 268 + 4 * abs(1.5 - number)),
                (target, 288),
            ],
            color,
        )
        canvas.grid(134 + 18 * number, 290, 5, 2, cell, color)
    canvas.lines(124, 306, ["side by side", "(N × H D_{v})"], at="end")
    canvas.path([(170, 335), (170, 352)])
    canvas.box(106, 354, 128, 26, "W_{o} mixes heads", "grey")
    canvas.path([(170, 380), (170, 398)])
    canvas.grid(134, 400, 5, 8, cell, "grey", lambda i, j: 0.15 + 0.6 * ((5 * i + 3 * j) % 7) / 7)
    canvas.text(170, 456, "Y (N × D)", 12, bold=True)
    return canvas


def masks() -> Canvas:
    """Draw which keys each query may read under four masks."""
    documents = (0, 0, 0, 1, 1, 1)
    panels = (
        ("padding", lambda q, k: k < 4, ["keys 5 and 6 are padding:", "no query reads them"]),
        ("causal", lambda q, k: k <= q, ["query 4 reads 1 to 4,", "itself included"]),
        (
            "causal window of 3",
            lambda q, k: q - 3 < k <= q,
            ["query 4 reads itself and", "the two keys before it"],
        ),
        (
            "two documents",
            lambda q, k: documents[q] == documents[k],
            ["query 4 begins the next", "text: it reads 4, 5, 6"],
        ),
    )
    canvas, cell, colors = Canvas(414), 18, ("blue", "orange", "green", "purple")
    for number, ((name, allowed, text), color) in enumerate(zip(panels, colors, strict=True)):
        x, y = 38 + 172 * (number % 2), 50 + 212 * (number // 2)
        canvas.text(x + 54, y - 39, name, 13, bold=True)
        for i in range(6):
            canvas.text(x + cell * (i + 0.5), y - 9, str(i + 1), 11, color="muted")
            canvas.text(x - 9, y + cell * (i + 0.5), str(i + 1), 11, color="muted", bold=i == 3)
        canvas.grid(x, y, 6, 6, cell, color, lambda q, k, allowed=allowed: 0.7 * allowed(q, k), 3)
        canvas.lines(x + 54, y + 122, text, color="muted")
        if number % 2 == 0:
            canvas.text(x - 25, y + 54, "query", 11, turn=-90)
        canvas.text(x + 54, y - 22, "key", 11)
    return canvas
