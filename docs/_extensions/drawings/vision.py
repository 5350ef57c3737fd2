"""Drawing of the way from an image to the tokens of a vision transformer."""

from functools import partial

from sklearn.datasets import load_digits

from drawings.canvas import Canvas


def _opacity(image: list[list[float]], top: int, left: int, row: int, column: int) -> float:
    return 0.9 * image[top + row][left + column] / 16


def patches() -> Canvas:
    """Draw a digit of scikit-learn that is cut into four patches."""
    image = load_digits().images[5].tolist()
    canvas, columns = Canvas(478), (38, 104, 170, 236, 302)
    canvas.text(170, 10, "image, 8 × 8 pixels", 12, bold=True)
    canvas.grid(118, 22, 8, 8, 13, "ink", partial(_opacity, image, 0, 0))
    for number, middle in enumerate(columns[1:]):
        top, left = 4 * (number // 2), 4 * (number % 2)
        canvas.rectangle(
            118 + 13 * left, 22 + 13 * top, 52, 52, "orange", kind="bare thick", radius=1
        )
        canvas.grid(middle - 20, 158, 4, 4, 10, "ink", partial(_opacity, image, top, left))
        canvas.text(middle, 150, f"patch {number + 1}", 11, color="orange")
        for i in range(16):
            shade = partial(_opacity, image, top + i // 4, left + i % 4)
            canvas.grid(middle - 28 + 3.5 * i, 206, 1, 1, 3.5, "ink", shade)
        canvas.path([(middle, 212), (middle, 226)])
        canvas.path([(middle, 252), (middle, 274)])
    canvas.lines(110, 58, ["cut into", "4 patches of", "4 × 4 pixels"], at="end", color="muted")
    canvas.text(38, 208, "16 numbers", 11, color="muted")
    canvas.box(76, 227, 256, 25, "one matrix for all patches: 16 numbers → D", "orange", size=11)
    for number, middle in enumerate(columns):
        canvas.box(
            middle - 26,
            275,
            52,
            24,
            "class" if number == 0 else f"token {number}",
            "purple" if number == 0 else "orange",
            size=11,
        )
        canvas.text(middle, 308, "+", 14)
        canvas.box(middle - 26, 317, 52, 24, f"p_{{{number}}}", "blue", size=14)
        canvas.path([(middle, 341), (middle, 360)])
    canvas.text(38, 263, "learned", 11, color="purple")
    canvas.box(6, 361, 328, 32, "transformer encoder, N blocks, no mask", "grey", bold=True)
    canvas.path([(38, 393), (38, 414)], "purple")
    canvas.box(6, 415, 104, 26, "linear → classes", "purple", size=11)
    canvas.text(58, 456, "“five”", 13, bold=True)
    for middle in columns[1:]:
        canvas.path([(middle, 393), (middle, 408)], kind="dashed")
    canvas.lines(
        226,
        424,
        ["outputs of the patches: not used", "for the class of the image"],
        color="muted",
    )
    return canvas
