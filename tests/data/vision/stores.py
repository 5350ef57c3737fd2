"""Small image files and Parquet files for the tests of images."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fourfold.data.readers.labels import parse_labels
from fourfold.data.vision.image_stores import ImageStore
from fourfold.data.vision.sources import open_source


def write_png(path: Path, value: int, mode: str = "RGB", size: int = 4) -> bytes:
    """Write an image of one color, and return its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size, size), value if mode == "L" else (value, value, value)).save(path)
    return path.read_bytes()


def write_parquet(
    path: Path, images: list[Any], labels: list[Any], names: list[str] | None = None
) -> Path:
    """Write a Parquet file in the format of `datasets`, with two rows in each row group."""
    pa = pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    from pyarrow.parquet import write_table

    storage = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [image if isinstance(image, dict | None) else {"bytes": image} for image in images]
    table = pa.table({"image": pa.array(cells, storage), "label": labels})
    if names:
        features = {
            "image": {"_type": "Image"},
            "label": {"names": names, "_type": "ClassLabel"},
        }
        metadata = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": metadata})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, path, row_group_size=2)
    return path


def open_path(path: Path) -> dict[str, ImageStore]:
    return open_source(str(path), "image", "label", parse_labels)


def digests(images: ImageStore) -> set[bytes]:
    return {images.digest(row) for row in range(len(images))}
