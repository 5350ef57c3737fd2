"""Drawings of generation: the cache of keys and values, and the tree of a beam search."""

from drawings.canvas import Canvas


def cache() -> Canvas:
    """Draw four steps of a decoder: what is computed, and what is read from the cache."""
    canvas, pieces = Canvas(434), ("start", "Montag", ",", "1", "2")
    for x, name in ((36, "input"), (92, "query"), (188, "keys and values"), (308, "output")):
        canvas.text(x, 12, name, 12, bold=True)
    for step in range(4):
        y = 28 + 82 * step
        canvas.box(6, y + 16, 60, 26, pieces[step], "grey")
        canvas.path([(66, y + 29), (78, y + 29)])
        canvas.box(79, y + 16, 28, 26, f"q_{{{step + 1}}}", "blue", size=14)
        for i in range(step + 1):
            for row, (letter, color) in enumerate((("k", "orange"), ("v", "green"))):
                new = i == step
                x = 120 + 36 * i
                canvas.rectangle(
                    x, y + 29 * row, 32, 26, color if new else "grey", kind="" if new else "dashed"
                )
                canvas.text(
                    x + 16,
                    y + 12 + 29 * row,
                    f"{letter}_{{{i + 1}}}",
                    14,
                    color="ink" if new else "muted",
                )
        canvas.path([(120 + 36 * step + 34, y + 29), (277, y + 29)])
        canvas.box(278, y + 16, 56, 26, pieces[step + 1], "yellow")
        if step < 3:
            canvas.path(
                [(306, y + 42), (306, y + 70), (36, y + 70), (36, y + 96)],
                "yellow",
                kind="dashed thin",
            )
    canvas.rectangle(8, 356, 14, 12, "orange", radius=2)
    canvas.rectangle(26, 356, 14, 12, "green", radius=2)
    canvas.text(48, 362, "computed in this step: one key, one value", 11, at="start")
    canvas.rectangle(26, 376, 14, 12, "grey", kind="dashed", radius=2)
    canvas.text(48, 382, "read from the cache", 11, at="start")
    canvas.text(8, 404, "Keys computed with the cache: 4", 12, at="start", bold=True)
    canvas.text(8, 422, "Without: 1 + 2 + 3 + 4 = 10", 12, at="start", bold=True)
    return canvas


# Probabilities of the next piece after a text.
_NEXT = {
    (): {"ein": 0.5, "der": 0.4, "das": 0.1},
    ("ein",): {"Tag": 0.35, "Hund": 0.33, "Mann": 0.32},
    ("der",): {"Tag": 0.9, "Hund": 0.06, "Mann": 0.04},
    ("ein", "Tag"): {"end": 0.6, "war": 0.25, "kam": 0.15},
    ("der", "Tag"): {"end": 0.7, "war": 0.2, "kam": 0.1},
}
Hypothesis = tuple[str, ...]


def extend(beams: dict[Hypothesis, float]) -> dict[Hypothesis, float]:
    """Return all extensions of the hypotheses by one piece, with their probabilities."""
    return {
        (*beam, piece): probability * share
        for beam, probability in beams.items()
        for piece, share in _NEXT[beam].items()
    }


def best(hypotheses: dict[Hypothesis, float], size: int) -> dict[Hypothesis, float]:
    """Return the most probable hypotheses, in their order."""
    limit = sorted(hypotheses.values())[-size]
    return {one: probability for one, probability in hypotheses.items() if probability >= limit}


def beam_tree() -> Canvas:
    """Draw three steps of a beam search of size 2 on the table, from left to right."""
    canvas, step = Canvas(378), 34
    kept: dict[Hypothesis, float] = {(): 1.0}
    places: dict[Hypothesis, tuple[float, float]] = {(): (4, 182)}
    canvas.box(4, 170, 40, 24, "start", "grey", size=11)
    for level, x in enumerate((58, 155, 252)):
        all_of_them = extend(kept)
        chosen = best(all_of_them, 2)
        canvas.text(x + 41, 14, f"step {level + 1}", 12, bold=True)
        tops = [182 + 92 * (number - 1) for number in range(3)] if level == 0 else [
            68 + step * number + 22 * (number // 3) for number in range(6)
        ]  # fmt: skip
        for (hypothesis, probability), y in zip(all_of_them.items(), tops, strict=True):
            color = "blue" if hypothesis in chosen else "grey"
            kind = "" if hypothesis in chosen else "dashed"
            x0, y0 = places[hypothesis[:-1]]
            end = x0 + (40 if level == 0 else 82)
            canvas.path(
                [(end, y0), (end + 8, y0), (x - 8, y), (x, y)],
                color,
                kind=kind + " thin",
                head=False,
            )
            canvas.rectangle(x, y - 13, 82, 26, color, kind=kind)
            canvas.text(x + 6, y, hypothesis[-1], 12, at="start", bold=hypothesis in chosen)
            canvas.text(
                x + 77,
                y,
                f"{probability:.3f}",
                11,
                at="end",
                color="ink" if hypothesis in chosen else "muted",
            )
            places[hypothesis] = (x, y)
        kept = chosen
    (greedy,) = best(extend(best(extend(best(extend({(): 1.0}), 1)), 1)), 1).items()
    ((words, probability),) = best(kept, 1).items()
    canvas.text(8, 300, f"Greedy search: {' '.join(greedy[0])}, {greedy[1]:.3f}", 12, at="start")
    text = f"Beam search: {' '.join(words)}, {probability:.3f}"
    canvas.text(8, 320, text, 12, at="start", bold=True)
    notes = ["Blue: kept. Dashed: dropped. A number is", "the product of all probabilities so far."]
    canvas.lines(8, 342, notes, at="start", color="muted")
    return canvas
