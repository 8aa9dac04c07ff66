"""Files that survive a crash: whole-file replacement, line-by-line logs, and a lock per run folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from fedpriv.errors import RunFolderError


def write_atomic(path: Path, content: bytes | str, durable: bool = True) -> None:
    """Replaces a file as a whole: a reader, or the next start after a crash, sees the old or the new one.

    durable=False: for what nobody reads after a crash of the machine; milliseconds faster.
    Raises OSError that names ``path`` where the disk is full.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if durable:
            fsync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def fsync_folder(folder: Path) -> None:
    """A new name in a folder survives a power cut only once the folder itself is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """A picture of matplotlib's, as `write_atomic` writes files; options as its ``savefig`` has them."""
    picture = BytesIO()
    figure.savefig(picture, format="png", **options)
    write_atomic(path, picture.getvalue(), durable=False)


class JsonLines:
    """An append-only file of JSON objects, one a line. A torn last line (a crash) is dropped by whoever reads or
    appends next; a damaged line before it raises `RunFolderError`.

    fsync: return from `append` only once the line is on the disk.
    """

    def __init__(self, path: Path, fsync: bool = False) -> None:
        self.path, self.fsync = path, fsync
        self._whole = False  # known to end with a whole line

    def append(self, row: dict[str, Any]) -> None:
        """Adds a row as a whole or not at all. Raises OSError that names the file where the disk is full."""
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        with self.path.open("ab", buffering=0) as file:  # unbuffered: what failed is not tried again on closing
            if not self._whole:  # what an earlier process left behind
                os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
                self._whole = True
            end = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                os.truncate(self.path, end)
                error.filename = str(self.path)
                raise
            if self.fsync:
                os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        rows = []
        for number, line in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise RunFolderError(f"{self.path}: line {number} is damaged") from None
        return rows

    def keep(self, wanted: Any) -> None:
        """Rewrites the file with the rows for which ``wanted(row)`` holds."""
        rows = [row for row in self.read() if wanted(row)]
        write_atomic(self.path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run folder for this process; a second run in it raises `RunFolderError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunFolderError(f"{folder}: another run is writing into this folder") from None
        yield
