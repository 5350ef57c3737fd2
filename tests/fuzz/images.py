"""Damaged images and image folders."""

import io
import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz.damage import Draw, spoilt
from tests.fuzz.invariant import Case, Files

if TYPE_CHECKING:
    from tests.fuzz.conftest import World

FORMATS = {
    "png": "PNG",
    "jpg": "JPEG",
    "gif": "GIF",
    "bmp": "BMP",
    "tiff": "TIFF",
    "webp": "WEBP",
    "ppm": "PPM",
}
MODES = ("RGB", "RGB", "L", "1", "P", "LA", "RGBA", "CMYK", "I;16", "I", "F", "YCbCr")
SIZES = ((8, 8), (8, 8), (8, 8), (1, 1), (7, 9), (1, 40), (300, 2))
NAMES = ("cat", "dog", "a b", "é\u2028", "x" * 200, ".hidden", "-x", "0", "\udcff")


def made(mode: str, form: str, size: tuple[int, int], frames: int = 1) -> bytes:
    """Return an encoded image; another mode is used if the format does not support `mode`."""
    width, height = size
    grey = np.arange(width * height, dtype=np.uint16).reshape(height, width) % 251
    base = Image.fromarray(grey.astype(np.uint8))
    image = Image.fromarray(grey * 200) if mode == "I;16" else base.convert(mode)
    moves = frames > 1 and form in ("GIF", "TIFF", "WEBP")
    more = {"save_all": True, "append_images": [image] * (frames - 1)} if moves else {}
    for one, options in ((image, more), (base, more), (base, {})):
        out = io.BytesIO()
        try:
            one.save(out, form, **options)
        except (OSError, ValueError, KeyError):
            continue
        return out.getvalue()
    raise AssertionError(form)


def announced(width: int, height: int) -> bytes:
    """Return a PNG whose header gives a larger size than its data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@st.composite
def image(draw: Draw) -> tuple[bytes, str]:
    """Bytes of an image, possibly damaged, and a file extension, possibly wrong."""
    ending = draw(st.sampled_from(list(FORMATS)))
    way = draw(st.integers(0, 9))
    if way == 0:
        sides = draw(st.sampled_from(((60000, 60000), (2**31 - 1, 1), (0, 8), (9000, 9000))))
        return announced(*sides), "png"
    if way == 1:
        return draw(
            st.sampled_from((b"", b"GIF89a", b"hello", b"\xff\xd8\xff\xe0", bytes(64)))
        ), ending
    mode, size = draw(st.sampled_from(MODES)), draw(st.sampled_from(SIZES))
    data = made(mode, FORMATS[ending], size, draw(st.sampled_from((1, 1, 3))))
    if way == 2:
        ending = draw(st.sampled_from((*FORMATS, "txt", "PNG", "")))
    return (draw(spoilt(data)) if way < 5 else data), ending


@st.composite
def class_folders(draw: Draw) -> Files:
    """Image folder with one folder per class; some files are invalid."""
    root = draw(st.sampled_from(("d", "d", "d/train", "d/training")))
    files: Files = {}
    good = made("RGB", "PNG", (8, 8))
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=0, max_size=3, unique=True)):
        n = draw(st.sampled_from((0, 1, 4, 6)))
        files[f"{root}/{name}"] = None
        files |= {f"{root}/{name}/{i}.png": good + bytes([i]) for i in range(n)}
        if draw(st.integers(0, 2)) == 0:
            data, ending = draw(image())
            files[f"{root}/{name}/a.{ending}"] = data
        odd = draw(st.integers(0, 11))
        extra: list[Files] = [
            {f"{root}/{name}/loop": "."},
            {f"{root}/{name}/gone.png": "nowhere"},
            {f"{root}/{name}/dir.png": None},
            {f"{root}/{name}/in/b.png": good},
            {f"{root}/{name}/self.png": "self.png"},
            {f"{root}/{name}/\udcfe.png": good},
            {f"{root}/readme.txt": b"x"},
        ]
        files |= extra[odd] if odd < len(extra) else {}
    if root != "d" and draw(st.booleans()):
        other = draw(st.sampled_from((*NAMES[:3], "train")))
        files[f"d/val/{other}/0.png"] = good
    return files or {"d": None}


def archives(draw: Draw) -> tuple[str, Files]:
    """Return a value of `--data.source` with its files."""
    parquet = b"PAR1" + bytes(40) + b"PAR1"
    choices: list[tuple[str, Files]] = [
        ("datasets:", {}),
        ("", {}),
        (":", {}),
        ("d/train.parquet", {"d/train.parquet": draw(spoilt(parquet))}),
        ("d", {"d/train.parquet": parquet}),
        ("d", {"d/train.parquet": None}),
        ("d", {"d": b"no folder"}),
        ("d", {"d": "d"}),
        ("nothing", {}),
    ]
    return draw(st.sampled_from(choices))


@st.composite
def training(draw: Draw, world: "World") -> Case:
    """Training on an invalid image source."""
    way, source = draw(st.integers(0, 9)), "d"
    if way < 2:
        source, files = archives(draw)
    else:
        files = draw(class_folders())
    options = [f"--data.source={source}"]
    if draw(st.booleans()):
        options.append("--data.transform.size=8")
    if draw(st.integers(0, 2)):
        options += ["--data.val_fraction=0.3", "--data.test_fraction=0.3"]
    channels = draw(st.sampled_from(("1", "3", "null")))
    options += [f"--model.config.n_channels={channels.replace('null', '3')}"]
    options += [f"--data.n_channels={channels}"] if channels != "null" else []
    options.append("--data.cache=" + draw(st.sampled_from(("auto", "memory", "none"))))
    call = ("fit", "--config", str(world.configs["vit"]), "--run_dir", "r", *options)
    return Case(
        call,
        files,
        names=(source.rpartition(":")[2], "there is no such file"),
        env={"FOURFOLD_DATA": "."},
    )


@st.composite
def asking(draw: Draw, world: "World") -> Case:
    """Classification of invalid image files."""
    files: Files = {"good.png": made("L", "PNG", (8, 8)), "dir.png": None, "loop.png": "loop.png"}
    data, ending = draw(image())
    files[f"odd.{ending}"] = data
    paths = [
        f"odd.{ending}",
        *draw(
            st.lists(
                st.sampled_from(
                    (
                        "good.png",
                        "",
                        "dir.png",
                        "loop.png",
                        "none.png",
                        "a\x00b",
                        "x" * 5000,
                        "/",
                        "~",
                        "\t",
                    )
                ),
                max_size=1,
            )
        ),
    ]
    options = draw(st.sampled_from(((), ("--top-k", "3"), ("--batch-size", "1"))))
    text = "\n".join(["good.png", *paths]).encode()
    call = ("classify", "--checkpoint", str(world.runs["vit"]), *options)
    return Case(call, files, stdin=text, names=("<stdin>:",))


def cases(world: "World") -> st.SearchStrategy[Any]:
    """Return the strategy of trainings and classifications in equal parts."""
    return st.booleans().flatmap(lambda fit: training(world) if fit else asking(world))
