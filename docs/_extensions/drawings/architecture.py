"""Drawings of whole models: the encoder-decoder and the two placements of the norm in a block."""

from drawings.canvas import Canvas


def encoder_decoder() -> Canvas:
    """Draw the transformer that translates the start of a date."""
    canvas = Canvas(486)
    _encoder(canvas)
    _decoder(canvas)
    canvas.path([(148, 238), (168, 238), (168, 293), (186, 293)], "blue", kind="thick")
    canvas.lines(80, 201, ["keys and values for", "each cross-attention"], color="blue")
    return canvas


def _pieces(canvas: Canvas, x: float, y: float, pieces: list[tuple[str, float]]) -> float:
    """Draw pieces of a text side by side and return the position of the right end."""
    for piece, width in pieces:
        canvas.box(x, y, width, 20, piece, "grey", size=11)
        x += width + 3
    return x


def _encoder(canvas: Canvas) -> None:
    canvas.text(80, 20, "Encoder", 14, bold=True)
    canvas.lines(80, 40, ["reads the whole source", "at once, one time"], color="muted")
    _pieces(canvas, 10, 434, [("Monday", 48), (",", 16), ("June", 34), ("1", 17), ("2", 17)])
    canvas.text(80, 466, "source, S pieces", 11, color="muted")
    canvas.path([(80, 434), (80, 416)])
    canvas.box(14, 392, 132, 24, "vector + position", "grey")
    canvas.path([(80, 392), (80, 364)])
    canvas.rectangle(6, 274, 148, 106, "grey", kind="dashed bare", radius=9)
    canvas.box(20, 338, 120, 26, "self-attention", "orange")
    canvas.path([(80, 338), (80, 316)])
    canvas.box(20, 290, 120, 26, "MLP", "green")
    canvas.text(152, 266, "N blocks", 11, at="end", color="muted")
    canvas.path([(80, 290), (80, 252)])
    canvas.box(12, 226, 136, 26, "memory (S × D)", "blue", bold=True)


def _decoder(canvas: Canvas) -> None:
    middle = 253
    canvas.text(middle, 20, "Decoder", 14, bold=True)
    canvas.lines(middle, 40, ["runs again for each", "piece that it writes"], color="muted")
    end = _pieces(canvas, 181, 434, [("start", 36), ("Montag", 46), (",", 14), ("1", 15)])
    canvas.box(end, 434, 15, 20, "2", "yellow", size=11, kind="dashed")
    canvas.text(middle, 466, "target so far, T pieces", 11, color="muted")
    canvas.path([(middle, 434), (middle, 416)])
    canvas.box(187, 392, 132, 24, "vector + position", "grey")
    canvas.path([(middle, 392), (middle, 366)])
    canvas.rectangle(176, 200, 148, 180, "grey", kind="dashed bare", radius=9)
    canvas.box(187, 328, 132, 38, "self-attention,\nback in time only", "orange", size=11)
    canvas.path([(middle, 328), (middle, 308)])
    canvas.box(187, 278, 132, 30, "cross-attention", "blue")
    canvas.path([(middle, 278), (middle, 248)])
    canvas.box(187, 222, 132, 26, "MLP", "green")
    canvas.text(322, 192, "N blocks", 11, at="end", color="muted")
    canvas.path([(middle, 222), (middle, 176)])
    canvas.box(187, 150, 132, 26, "linear + softmax", "purple")
    canvas.path([(middle, 150), (middle, 132)])
    for number, (piece, share) in enumerate((("2", 0.93), ("1", 0.04), (".", 0.02))):
        y = 76 + 17 * number
        canvas.text(204, y + 7, piece, 11)
        canvas.rectangle(212, y, 60 * share, 13, "yellow", radius=2)
        canvas.text(217 + 60 * share, y + 7, f"{share:.2f}", 11, at="start", color="muted")
    canvas.path([(302, 82), (334, 82), (334, 444), (320, 444)], "yellow", kind="dashed")


def block() -> Canvas:
    """Draw one block with post-norm and one with pre-norm, side by side."""
    canvas = Canvas(412)
    canvas.text(84, 14, "Post-norm", 14, bold=True)
    canvas.text(84, 31, "Vaswani et al., BERT", 11, color="muted")
    canvas.text(258, 14, "Pre-norm", 14, bold=True)
    canvas.text(258, 31, "GPT-2, ViT", 11, color="muted")
    _post_norm(canvas, stream=42)
    _pre_norm(canvas, stream=196)
    for stream in (42, 196):
        canvas.text(stream + 10, 392, "x, N tokens (N × D)", 11, at="start", color="blue")
        canvas.text(stream + 10, 56, "to the next block", 11, at="start", color="blue")
    return canvas


def _post_norm(canvas: Canvas, stream: float) -> None:
    left, width = 70, 92
    middle = left + width / 2
    for top, name, color in (
        (236, "attention\nmixes tokens", "orange"),
        (76, "MLP\neach alone", "green"),
    ):
        canvas.path([(stream, top + 140), (stream, top + 35)], "blue", kind="thick", head=False)
        canvas.path([(stream, top + 118), (middle, top + 118), (middle, top + 92)])
        canvas.box(left, top + 52, width, 40, name, color)
        canvas.path([(middle, top + 52), (middle, top + 26), (stream + 9, top + 26)])
        canvas.plus(stream, top + 26, "blue")
        canvas.path([(stream, top + 17), (stream, top - 2)], "blue", kind="thick", head=False)
        canvas.box(stream - 38, top - 14, 76, 22, "LayerNorm", "purple", size=11)
    canvas.path([(stream, 222), (stream, 214)], "blue", kind="thick", head=False)
    canvas.path([(stream, 62), (stream, 44)], "blue", kind="thick")
    canvas.path([(stream, 402), (stream, 374)], "blue", kind="thick", head=False)


def _pre_norm(canvas: Canvas, stream: float) -> None:
    left, width = 226, 108
    middle = left + width / 2
    canvas.path([(stream, 402), (stream, 44)], "blue", kind="thick")
    for top, name, color in (
        (236, "attention\nmixes tokens", "orange"),
        (76, "MLP\neach token alone", "green"),
    ):
        canvas.path([(stream, top + 126), (middle, top + 126), (middle, top + 112)])
        canvas.box(left, top + 90, width, 22, "LayerNorm", "purple", size=11)
        canvas.path([(middle, top + 90), (middle, top + 74)])
        canvas.box(left, top + 34, width, 40, name, color)
        canvas.path([(middle, top + 34), (middle, top + 12), (stream + 9, top + 12)])
        canvas.plus(stream, top + 12, "blue")
