"""Reader of captioned images, with a caption file of JSON lines or in a format of Flickr8k."""

import os
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.core.validation import check_choice
from fourfold.data.readers.text_table import TextTable, get_column, read_csv, read_json_lines
from fourfold.data.vision.image_stores import (
    FileStore,
    ImageStore,
    ZipStore,
    open_zip,
    stratified_split,
)
from fourfold.data.vision.sources import SPLITS
from fourfold.errors import InputError
from fourfold.text_files import read_lines, resolve

_NUMBERED = re.compile(r"(.+)#\d+\t(.*)")  # a line of Flickr8k.token.txt
# Name of an image, its captions, and the line number of its first caption in the caption file.
Record = tuple[str, list[str], int]


@dataclass(frozen=True)
class CaptionedImages:
    """N images of a split, with one or several captions each.

    `texts` has one column, the captions of all images, one image after the other; `counts` (N,) are
    the numbers of captions of each image, at least 1.
    """

    images: ImageStore
    texts: TextTable
    counts: np.ndarray


def read_captions(options: Any) -> dict[str, CaptionedImages]:
    """Read captioned images from a folder or zip archive, which also holds the caption file.

    "train" is always a key of the result; "val" and "test" are keys if the source has images of
    these splits.

    Args:
        options: `CaptionData`, whose options describe the source.

    Raises:
        InputError: The source is missing, a line is invalid, an image of a caption is missing, or
            an image of a split has no caption.
    """
    path = f"{options.source}/{options.captions}"
    opened = _Source(options.source, options.images)
    if {".jsonl", ".json"} & set(Path(path).suffixes):
        columns = (options.image_column, options.split_column, options.caption_column)
        splits = _read_json(path, columns)
    else:
        splits = _read_flickr(path, options, opened)
    if "train" not in splits:
        raise InputError(f"there are no training images, only {', '.join(splits)}", file=path)
    for name, _, line in chain(*splits.values()):
        if not opened.has(name):
            message = f"there is no image {opened.path(name)} in {options.source}"
            raise InputError(message, file=path, line=line)
    return {split: _captioned(opened, records, path) for split, records in splits.items()}


class _Source:
    """Folder or zip archive that holds images."""

    def __init__(self, source: str, folder: str) -> None:
        self.root = resolve(source)
        self.is_zip = self.root.suffix == ".zip"
        self.top = zipfile.Path(open_zip(str(self.root), os.getpid())) if self.is_zip else self.root
        self.folder = folder

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def has(self, name: str) -> bool:
        return bool((self.top / self.path(name)).is_file())

    def store(self, names: Sequence[str]) -> ImageStore:
        paths = tuple(map(self.path, names))
        open_store = ZipStore if self.is_zip else FileStore
        return open_store(paths, np.zeros(len(paths)), None, str(self.root))

    def image_names(self) -> list[str]:
        """Return the sorted names of the image files in the folder of images."""
        from torchvision.datasets.folder import IMG_EXTENSIONS

        folder: Any = self.top / self.folder if self.folder else self.top
        found = folder.iterdir() if folder.is_dir() else []
        return sorted(f.name for f in found if f.name.lower().endswith(IMG_EXTENSIONS))


def _captioned(opened: _Source, records: list[Record], path: str) -> CaptionedImages:
    names, texts, lines = zip(*records, strict=True)
    counts = np.array(list(map(len, texts)))
    table = TextTable.from_columns([list(chain(*texts))], f"{path}:", np.repeat(lines, counts))
    return CaptionedImages(opened.store(names), table, counts)


def _read_json(path: str, columns: tuple[str, str, str]) -> dict[str, list[Record]]:
    splits: dict[str, list[Record]] = defaultdict(list)
    for line, record in read_json_lines(path):
        location = f"{path}:{line}"
        image, split = (get_column(record, column, location) for column in columns[:2])
        if split not in SPLITS:
            raise InputError(f"the split must be train, val or test, got {split!r}", file=location)
        texts = record.get(columns[2])
        texts = [texts] if isinstance(texts, str) else texts
        is_list = isinstance(texts, list) and texts
        if not is_list or not all(isinstance(text, str) and text.strip() for text in texts):
            message = f"column {columns[2]!r} must be a text or a list of texts, got {texts!r}"
            raise InputError(message, file=location)
        splits[SPLITS[split]].append((image, texts, line))
    return splits


def _flickr_lines(path: str, image_column: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, image name and caption of each line of a caption file of Flickr8k."""
    lines, header = read_lines(path), [image_column, "caption"]
    is_numbered = bool(_NUMBERED.fullmatch(lines[0]))
    rows: Iterable[Sequence[str]] = read_csv(path)
    if is_numbered:
        matches = ((line, _NUMBERED.fullmatch(line)) for line in lines)
        rows = (x.groups() if x else [line] * bool(line.strip()) for line, x in matches)
    for number, row in enumerate(rows, 1):
        is_header = number == 1 and not is_numbered
        if len(row) not in (0, 2) or (is_header and row != header):
            message = f"must be IMAGE#NUMBER, a tab and a caption, or CSV with {','.join(header)}"
            raise InputError(f"the lines {message}, got {row}", file=path, line=number)
        if row and not is_header:
            yield number, row[0], row[1].strip()


def _read_flickr(path: str, options: Any, opened: _Source) -> dict[str, list[Record]]:
    """Read a caption file in a format of Flickr8k, and divide its images into splits."""
    records: dict[str, Record] = {}
    for line, name, text in _flickr_lines(path, options.image_column):
        if not text:
            raise InputError(f"the image {name} has an empty caption", file=path, line=line)
        records.setdefault(name, (name, [], line))[1].append(text)
    splits = {}
    for split, file in (options.split_files or {}).items():
        check_choice("data.split_files", split, list(SPLITS))
        names = [line.strip() for line in read_lines(f"{options.source}/{file}") if line.strip()]
        for number, name in enumerate(names, 1):
            if name not in records:
                message = f"the image {name} has no caption in {path}"
                raise InputError(message, file=f"{options.source}/{file}", line=number)
        splits[SPLITS[split]] = [records[name] for name in names]
    if splits:
        return splits
    for name in opened.image_names():  # a caption file may be cut off
        if name not in records:
            raise InputError(f"the image {opened.path(name)} has no caption", file=path)
    return _hold_out(list(records.values()), options, opened)


def _hold_out(records: list[Record], options: Any, opened: _Source) -> dict[str, list[Record]]:
    """Hold out shares of the images for val and test; identical images are put into one split."""
    names, splits = [name for name, _, _ in records], {}
    if not all(map(opened.has, names)):
        return {"train": records}  # `read_captions` reports the missing image
    rest, left = opened.store(names), 1.0
    for split, share in (("test", options.test_fraction), ("val", options.val_fraction)):
        if share:
            rest, held_out = stratified_split(rest, share / left, options.split_seed)
            splits[split] = [records[row] for row in held_out.rows]
            left -= share
    return {"train": [records[row] for row in rest.rows], **splits}
