"""Small sets of pictures in the forms in which sets come: MNIST's files, the hub's parquet files."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = ("ape", "bee", "cow")
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def pictures(count: int, start: int = 0, size: tuple[int, int] = (6, 5)) -> np.ndarray:
    """uint8 [count, 3, h, w], all different, in no order that a label follows from."""
    return np.random.default_rng(start + 1).integers(0, 256, (count, 3, *size), dtype=np.uint8)


# --- MNIST -----------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def write_mnist(root: Path, train: int, test: int, size: tuple[int, int]) -> None:
    """MNIST's files below ``root``; a picture's pixels are all its own number, its label is that number mod 10."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, count in (("train", train), ("t10k", test)):
        numbers = np.arange(count)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(idx(np.tile(numbers[:, None, None], (1, *size))))
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(numbers % 10))


# --- the hub ---------------------------------------------------------------------------------------------


def as_png(picture: np.ndarray) -> dict[str, Any]:
    file = io.BytesIO()
    Image.fromarray(picture.transpose(1, 2, 0)).save(file, "png")
    return {"bytes": file.getvalue(), "path": "0.png"}


def write_parquet(path: Path, images: Sequence[Any], **columns: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [as_png(image) if isinstance(image, np.ndarray) else image for image in images]
    pq.write_table(pa.table({"img": pa.array(rows, IMAGE), **columns}), path, row_group_size=10)


CLASS_LABEL = ["class_label:", "  names:", *(f"    '{label}': {name}" for label, name in enumerate(CLASSES))]


def write_card(root: Path, labels: dict[str, str], splits: dict[str, int], image: str = "image") -> None:
    """The hub's README.md. labels: column -> class_label or a plain type; splits: name -> rows."""
    lines = ["dataset_info:", "  features:", "  - name: img", f"    dtype: {image}"]
    for column, kind in labels.items():
        lines += [f"  - name: {column}"]
        if kind == "class_label":
            lines += ["    dtype:", *(f"      {line}" for line in CLASS_LABEL)]
        else:
            lines += [f"    dtype: {kind}"]
    lines += ["  splits:"]
    for split, rows in splits.items():
        lines += [f"  - name: {split}", "    num_bytes: 1", f"    num_examples: {rows}"]
    lines += ["  download_size: 1", "  dataset_size: 1", "configs:", "- config_name: default", "  data_files:"]
    for split in splits:
        lines += [f"  - split: {split}", f"    path: data/{split}-*"]
    (root / "README.md").write_text("\n".join(["---", *lines, "---", "# A set", ""]))


def write_hub_set(root: Path, size: tuple[int, int] = (6, 5), **splits: int) -> None:
    """A set in the hub's own form; picture k of a split has label k mod 3."""
    for number, (split, rows) in enumerate(splits.items()):
        labels = np.arange(rows) % len(CLASSES)
        write_parquet(root / "data" / f"{split}-00000-of-00001.parquet", pictures(rows, number, size), label=labels)
    write_card(root, {"label": "class_label"}, splits)
