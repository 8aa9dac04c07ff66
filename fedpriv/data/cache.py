"""The cache: results of slow work (decoding pictures, partitioning them) are stored under a key of their content.

    <cache>/pictures/<key>/    images.npy uint8 [n, c, h, w], labels.npy int64 [n], about.json
    <cache>/partitions/<key>/  partition.npz

An entry is written into a temporary folder and renamed when complete, so a partial entry is never visible: a process
that dies leaves a folder that is never read, and of two processes that start at once the first to finish wins and the
other discards its equal copy.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.common.errors import DataError
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.types import PictureArrays, PictureStream, Source

UNFINISHED = ".unfinished-"
ABANDONED_AFTER = 24 * 3600  # seconds without a change until an unfinished entry counts as left behind

log = logging.getLogger(__name__)


def cache_folder(config: DatasetConfig) -> Path:
    """Where decoded data are kept. What is made here is its user's alone; a folder that is there keeps its mode."""
    folder = Path(config.cache or os.environ.get("FEDPRIV_CACHE") or "~/.cache/fedpriv").expanduser()
    with contextlib.suppress(OSError):  # it is there; where it cannot be made, writing into it says so
        folder.mkdir(mode=0o700, parents=True)
    return folder


def content_key(identity: dict[str, Any]) -> str:
    """A key for everything that determines an entry's content, including this package's code."""
    content = json.dumps({"code": _code_version(), **identity}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


@functools.cache
def _code_version() -> str:
    """Digest of this package's source: a changed decoder never reads pictures of an earlier version."""
    code = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(code).hexdigest()


def entry(folder: Path, identity: dict[str, Any], write: Callable[[Path], None]) -> Path:
    """The entry of `identity` in `folder`; if it is not there, `write(new folder)` makes it first.

    Raises `DataError` with the folder and the reason where the disk is full or not writable.
    """
    target = folder / content_key(identity)
    if target.is_dir():
        return target
    unfinished = folder / f"{UNFINISHED}{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        unfinished.mkdir()
        write(unfinished)
        for file in unfinished.iterdir():
            _flush_to_disk(file)
        os.rename(unfinished, target)
    except OSError as error:
        if not target.is_dir():  # otherwise another process was first
            reason = error.strerror or str(error)
            raise DataError(
                f"the cache {folder} cannot be written ({reason}): make room or set dataset.cache to another folder"
            ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _flush_to_disk(file: Path) -> None:
    """Before the rename, so that a power cut cannot leave a complete name with half of the content."""
    with file.open("rb+") as stream:
        os.fsync(stream.fileno())


def _remove_abandoned(folder: Path) -> None:
    for leftover in folder.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):  # another process has just finished it
            changed = max(path.stat().st_mtime for path in (leftover, *leftover.iterdir()))
            if time.time() - changed > ABANDONED_AFTER:
                shutil.rmtree(leftover, ignore_errors=True)


# --- pictures --------------------------------------------------------------------------------------------


def load_arrays(source: Source, folder: Path) -> PictureArrays:
    """The pictures of `source`: memory-mapped from the cache `folder`, decoded into it first where needed.

    A source without an identity is decoded into memory only.
    """
    identity = source.identity
    if identity is None:
        stream = source.decode()
        return PictureArrays(stream.classes, np.concatenate(list(stream.blocks)), stream.labels, stream.num_train)

    def write(unfinished: Path) -> None:
        log.info("decoding the pictures of %s into %s", identity["name"], folder)
        _write_pictures(source.decode(), unfinished)

    found = entry(folder / "pictures", identity, write)
    try:
        about = json.loads((found / "about.json").read_text())
        images = np.load(found / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(found / "labels.npy", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise damaged(found, error) from error
    return PictureArrays(tuple(about["classes"]), images, labels, about["num_train"])


def damaged(found: Path, error: Exception) -> DataError:
    return DataError(f"the cache entry {found} is damaged ({error}): delete this folder, it will be made again")


def _write_pictures(stream: PictureStream, unfinished: Path) -> None:
    # Written, not memory-mapped: on a full disk a write raises an error, while a store into a mapped file
    # kills the process (SIGBUS).
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(stream.labels), *stream.shape)}
    with (unfinished / "images.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in stream.blocks:
            file.write(np.ascontiguousarray(block, dtype=np.uint8).data)
    np.save(unfinished / "labels.npy", stream.labels)
    about = {"classes": stream.classes, "num_train": stream.num_train}
    (unfinished / "about.json").write_text(json.dumps(about))
