"""Drawings of recurrent translators: one vector for the source, and attention to all states."""

from drawings.canvas import Canvas

SOURCE, TARGET = ("Monday", ",", "June", "1", "2"), ("Montag", ",", "1", "2", ".")
PLACES = (34, 94, 154, 214, 274)  # the middles of the states
WEIGHTS = (0.02, 0.03, 0.12, 0.78, 0.05)  # of the third step of the decoder


def _encoder(canvas: Canvas) -> None:
    canvas.text(8, 12, "Encoder: one state per piece", 13, at="start", bold=True)
    for number, (x, piece) in enumerate(zip(PLACES, SOURCE, strict=True)):
        canvas.box(x - 26, 26, 52, 22, piece, "grey", size=11)
        canvas.path([(x, 48), (x, 62)])
        canvas.state(x, 79, f"h_{{{number + 1}}}", "blue")
        if number:
            canvas.path([(x - 45, 79), (x - 15, 79)], "blue")


def _decoder(canvas: Canvas, top: float, steps: int) -> None:
    for number, (x, piece) in enumerate(zip(PLACES[:steps], TARGET, strict=False)):
        canvas.state(x, top, f"s_{{{number + 1}}}", "green")
        if number:
            canvas.path([(x - 45, top), (x - 15, top)], "green")
        canvas.path([(x, top + 15), (x, top + 30)])
        canvas.box(x - 26, top + 31, 52, 22, piece, "yellow", size=11)
    canvas.text(8, top + 68, "Decoder: one step per piece", 13, at="start", bold=True)


def bottleneck() -> Canvas:
    """Draw a translator whose decoder gets the last state of the encoder only."""
    canvas = Canvas(290)
    _encoder(canvas)
    canvas.path([(289, 79), (320, 79), (320, 138), (266, 138)], "orange", kind="thick")
    canvas.box(
        74, 122, 190, 32, "all that the decoder gets:\none state, 64 numbers", "orange", size=11
    )
    canvas.path([(74, 138), (8, 138), (8, 208), (18, 208)], "orange", kind="thick")
    _decoder(canvas, 208, 5)
    return canvas


def attention() -> Canvas:
    """Draw the third step of a decoder with attention, and its weights."""
    canvas = Canvas(322)
    _encoder(canvas)
    x_context, y_context = PLACES[2], 166
    for x, weight in zip(PLACES, WEIGHTS, strict=True):
        canvas.line((x, 112), (x_context, y_context), "orange", 0.7 + 6 * weight)
        canvas.text(x, 104, f"{weight:.2f}", 11, color="orange", bold=weight > 0.5)
    canvas.state(x_context, y_context, "c_{3}", "orange")
    canvas.path([(x_context, y_context + 15), (x_context, 224)], "orange", kind="thick")
    canvas.path(
        [(PLACES[1], 225), (PLACES[1], y_context), (x_context - 16, y_context)],
        "green",
        kind="dashed",
    )
    canvas.text(PLACES[1] - 6, 192, "s_{2} asks", 14, at="end", color="green")
    canvas.lines(
        x_context + 26,
        184,
        ["context: the mean of", "all h, by these weights"],
        at="start",
        color="orange",
    )
    _decoder(canvas, 240, 3)
    return canvas
