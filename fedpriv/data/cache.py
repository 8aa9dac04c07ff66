"""The cache: results of slow work are stored under a key of their content.

    <cache>/pictures/<key>/    images.npy uint8 [n, c, h, w], labels.npy int64 [n], about.json
    <cache>/tables/<key>/      inputs.npy, rest.npz
    <cache>/features/<key>/    features.npy float32 [n, d]
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
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np

from fedpriv.common.errors import DataError
from fedpriv.config.data_schema import DatasetConfig

UNFINISHED = ".unfinished-"
ABANDONED_AFTER = 24 * 3600  # seconds without a change until an unfinished entry counts as left behind

#: Checksums of an entry's other files.
CHECKSUMS = "crc32.json"
#: What reading half a file, or another one, may raise.
DAMAGE = (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile)

log = logging.getLogger(__name__)

T = TypeVar("T")


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


def stored(folder: Path, identity: dict[str, Any], write: Callable[[Path], None], read: Callable[[Path], T]) -> T:
    """What ``read`` gives of an `entry`. Raises `DataError` that names a damaged one."""
    path = entry(folder, identity, write)
    try:
        return read(path)
    except DAMAGE as error:
        words = f"is damaged ({error}): delete this folder, it will be made again"
        raise DataError(f"the cache entry {path} {words}") from error


def remade(folder: Path, identity: dict[str, Any], write: Callable[[Path], None], read: Callable[[Path], T]) -> T:
    """As `stored`, but an entry of which a file is not as it was written is made again."""

    def write_with_checksums(fresh: Path) -> None:
        write(fresh)
        checksums = {file.name: _checksum(file) for file in fresh.iterdir()}
        (fresh / CHECKSUMS).write_text(json.dumps(checksums))

    for _ in range(2):
        path = entry(folder, identity, write_with_checksums)
        with contextlib.suppress(*DAMAGE):
            checksums = json.loads((path / CHECKSUMS).read_text())
            if checksums == {name: _checksum(path / name) for name in checksums}:
                return read(path)
        log.warning("%s is damaged and is made again", path)
        shutil.rmtree(path, ignore_errors=True)
    raise DataError(f"{folder}: an entry is damaged as soon as it is written")


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 24):
            checksum = zlib.crc32(block, checksum)
    return checksum


def write_rows(file: Path, rows: int, dtype: str, blocks: Iterable[np.ndarray]) -> None:
    """An array of so many ``rows`` as .npy, from its blocks. Written and not mapped: on a full disk a write raises an
    error, while a store into a mapped file ends the process (SIGBUS).
    """
    with file.open("wb") as stream:
        for number, block in enumerate(blocks):
            if not number:
                header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (rows, *block.shape[1:])}
                np.lib.format.write_array_header_1_0(stream, header)
            stream.write(np.ascontiguousarray(block, dtype).data)
