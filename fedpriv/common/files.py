"""Files that survive a crash: whole-file replacement, line-by-line logs, and a lock per run folder."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

from fedpriv.common.errors import RunFolderError
from fedpriv.common.printing import plain
from fedpriv.common.systems import AS_IT_IS, ITSELF, fcntl, lock, unlock


def write_atomic(path: Path, content: bytes | str, durable: bool = True, mode: int = 0o666) -> None:
    """Replaces a file as a whole: a reader, or the next start after a crash, sees the old or the new one.

    durable=False: for files that are not needed after a crash of the machine; milliseconds faster. mode: less the
    umask; 0o600 for files that only their owner may read.
    Raises OSError that names ``path`` where the disk is full.
    """
    with staged(path, content, durable, mode):
        pass


@contextmanager
def staged(path: Path, content: bytes | str, durable: bool = True, mode: int = 0o666) -> Iterator[None]:
    """As `write_atomic`, in two steps: all bytes are on the disk when the context begins, and become ``path`` when it
    ends; where it ends with an exception, the old file stays.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        yield
        os.replace(temporary, path)
        if durable:
            fsync_folder(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def open_regular(path: str | Path) -> BufferedReader:
    """Opens a file that a user named. Raises OSError, also for a folder, a pipe, a socket or a device: reading some of
    those blocks forever.
    """
    return regular(os.open(path, os.O_RDONLY | AS_IT_IS), path)


def regular(descriptor: int, path: str | Path) -> BufferedReader:
    """An open descriptor as a file. Raises OSError, and closes it, where it is no regular file's."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_regular(path: str | Path) -> bytes:
    """The bytes of a file, opened as by `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def fsync_folder(folder: Path) -> None:
    """Syncs a folder: until then, a new name in it does not survive a power cut. Windows opens no folder."""
    if fcntl is None:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_figure(figure: Any, path: Path, **options: Any) -> None:
    """Saves a matplotlib figure as PNG as `write_atomic` writes files; options are those of ``savefig``."""
    write_atomic(path, drawn(figure, "png", **options), durable=False)


def drawn(figure: Any, kind: str, **options: Any) -> bytes:
    """A matplotlib figure as ``kind``. Names in it are anybody's, so they are plain text: no formula between two
    ``$``, no control character, which an SVG may not hold. A figure that cannot be drawn is one that says why: it
    never ends a run.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with rc_context({"text.parse_math": False}):  # also of labels that are made while it is drawn
        for text in figure.findobj(Text):
            text.set_parse_math(False)
            text.set_text(plain(text.get_text()))
        picture, dpi = BytesIO(), figure.dpi
        try:
            if "dpi" in options:
                figure.set_dpi(options.pop("dpi"))
            # Not savefig, which draws everything twice: once for the layout, which drawing settles as well.
            if kind == "svg":
                FigureCanvasSVG(figure).print_svg(picture, **options)
            else:
                FigureCanvasAgg(figure).print_png(picture, **options)
        except Exception as error:
            picture, instead = BytesIO(), Figure(figsize=(5.2, 3.3))
            instead.text(0.5, 0.5, f"This picture cannot be drawn:\n{error}", ha="center", va="center", wrap=True)
            instead.savefig(picture, format=kind)
        figure.set_dpi(dpi)
    return picture.getvalue()


class JsonLines:
    """An append-only file of JSON objects, one a line. A torn last line (a crash) is dropped by the next
    read or append; a damaged line before it raises `RunFolderError`.

    fsync: return from `append` only once the line is on the disk. mode: of a new file, less the umask.
    """

    def __init__(self, path: Path, fsync: bool = False, mode: int = 0o666) -> None:
        self.path, self.fsync, self.mode = path, fsync, mode
        self._whole = False  # whether the file is known to end with a complete line

    def append(self, row: dict[str, Any]) -> bytes:
        """Adds a row completely or not at all; returns its line. Raises OSError that names the file where the disk is
        full.
        """
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | ITSELF | AS_IT_IS, self.mode)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:  # unbuffered: a failed write is not retried on close
            if not self._whole:  # what an earlier process left behind
                self._cut_torn_line(descriptor)
                self._whole = True
            end = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if self.fsync:
                    os.fsync(file.fileno())
            except OSError as error:
                os.truncate(self.path, end)
                error.filename = str(self.path)
                raise
        return line

    def _cut_torn_line(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

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
        self.write([row for row in self.read() if wanted(row)])

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Rewrites the file with these rows."""
        content = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        write_atomic(self.path, content, mode=self.mode)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run folder for this process; a second run in it raises `RunFolderError`."""
    folder.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT | ITSELF | AS_IT_IS, 0o666), "w") as file:
        try:
            lock(file)
        except OSError:
            raise RunFolderError(f"{folder}: another run is writing into this folder") from None
        try:
            yield
        finally:  # not by closing alone: a process that another thread is just starting has the file too
            unlock(file)


def json_number(value: float) -> float | str:
    """JSON has no infinity; the summary writes the string "inf"."""
    return "inf" if math.isinf(value) else float(value)
