"""Reads the files of a run's folder, which may be anybody's: as data, and no more of them than is expected.

A file is a regular one that lies in the folder itself: no link, pipe or device is on the way to it, also where the
folder changes meanwhile. It has at most so many bytes. JSON has at most `DEPTH` levels and `MOST_VALUES` values, its
numbers are finite, and its whole numbers have at most `DIGITS` digits. What else a file holds is the caller's to check:
`fitting` makes one line of what does not fit together.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from fedpriv.common.command_line import traced
from fedpriv.common.errors import FedprivError, RunFolderError
from fedpriv.common.files import regular
from fedpriv.common.systems import AS_IT_IS, ITSELF

MIB = 2**20
#: Bytes of a file that is read as a whole; of one line; of a model or a ledger.
MOST, LONGEST, LARGEST = 64 * MIB, 16 * MIB, 2**33
#: Bytes of a file of somebody else's folder, as a ledger.
WIDEST = 256 * MIB
#: Of JSON. The values are counted by the signs between them; the digits are those of 2^64 and some more.
DEPTH, MOST_VALUES, DIGITS = 64, 2_000_000, 24
#: Entries of a run's folder, with those of the folders in it.
MOST_FILES = 300_000

#: What work on values of another kind than expected raises.
WRONG = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def open_in(folder: Path, name: str) -> BufferedReader:
    """Opens a file of a folder. name: its path in it, with ``/``. Raises OSError, also for a link on the way."""
    if os.open not in os.supports_dir_fd or not ITSELF:  # Windows
        if any((folder / part).is_symlink() for part in (name, *map(str, Path(name).parents))):
            raise OSError(errno.ELOOP, "is a link", str(folder / name))
        return regular(os.open(folder / name, os.O_RDONLY | AS_IT_IS), folder / name)
    *parents, last = name.split("/")
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parents:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = below
        found = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | AS_IT_IS, dir_fd=place)
    except OSError as error:
        error.filename = str(folder / name)
        if error.errno == errno.ELOOP:
            error.strerror = "is a link, and a run's folder holds its files itself"
        raise
    finally:
        os.close(place)
    return regular(found, folder / name)


def bytes_in(folder: Path, name: str, most: int = MOST) -> bytes:
    """The bytes of a file of a folder. Raises OSError, also where there are more than ``most``."""
    with open_in(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(size + 1)  # for as many bytes as it is asked for, room is made
        if len(content) > size:  # it grows
            content += file.read(most - size)
        if max(len(content), os.fstat(file.fileno()).st_size) > most:
            raise OSError(errno.EFBIG, f"has more than {most} bytes", str(folder / name))
    return content


def is_file_in(folder: Path, name: str) -> bool:
    """Whether there is anything of this name: a link too, which reading it refuses."""
    return os.path.lexists(folder / name)


def text_in(folder: Path, name: str, most: int = MOST) -> str:
    """Raises OSError and UnicodeDecodeError."""
    return bytes_in(folder, name, most).decode("utf-8")


def json_in(folder: Path, name: str) -> Any:
    """The content of a JSON file of a folder. Raises OSError and ValueError."""
    return json_of(bytes_in(folder, name))


def mapping_in(folder: Path, name: str) -> dict[str, Any]:
    """As `json_in`, of a file that holds names and their values."""
    if not isinstance(found := json_in(folder, name), dict):
        raise ValueError("no mapping of names to values")
    return found


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def _fraction(text: str) -> float:
    if (value := float(text)) in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:DIGITS]} is no finite number")
    return value


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no finite number")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=_no_number)


def json_of(content: bytes | str) -> Any:
    """The value of a JSON text. Raises ValueError for one that is larger, deeper or stranger than this program's."""
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    opened = raw.count(b"[") + raw.count(b"{")
    if opened + raw.count(b",") > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES} values")
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"deeper than {DEPTH} levels") from None
    if opened > DEPTH and _deeper(value):
        raise ValueError(f"deeper than {DEPTH} levels")
    if _SURROGATE.search(raw):  # half of a pair: text that nobody can print
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _deeper(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH):
        parts = [part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole)]
        level = [part for part in parts if isinstance(part, dict | list)]
    return bool(level)


def shapes_in(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a safetensors file, by its header alone. Raises OSError and ValueError, also where
    the file has another length than its header says.
    """
    with open_in(folder, name) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MOST:
            raise ValueError(f"its header has more than {MOST} bytes")
        found = json_of(file.read(length))
        try:
            tensors = {name: about for name, about in found.items() if name != "__metadata__"}
            end = max((about["data_offsets"][1] for about in tensors.values()), default=0)
            shapes = {name: tuple(map(int, about["shape"])) for name, about in tensors.items()}
        except WRONG:
            raise ValueError("it has no header of tensors") from None
        if os.fstat(file.fileno()).st_size != 8 + length + end:
            raise ValueError("it has another length than its header says")
    return shapes


def tensors_in(folder: Path, name: str) -> dict[str, Any]:
    """The tensors of a safetensors file of a folder, of which there is room for two. Raises OSError and ValueError."""
    import psutil
    from safetensors import SafetensorError
    from safetensors.torch import load  # torch: a second that a report does without

    shapes_in(folder, name)
    content = bytes_in(folder, name, min(LARGEST, psutil.virtual_memory().available // 2))
    try:
        return dict(load(content))
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def refuse_links(folder: Path) -> None:
    """Raises `RunFolderError` where something in a run's folder is a link, a pipe or a device, or it has more than
    `MOST_FILES` entries: what is written beside its files would be written elsewhere. A file that holds no tensors has
    at most `WIDEST` bytes. What trackers keep in ``tracking`` is read by nobody here, and may be links.
    """
    waiting, left = [folder], MOST_FILES
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    raise RunFolderError(f"{folder}: it has more than {MOST_FILES} files")
                if entry.is_symlink() and not entry.path.startswith(str(folder / "tracking" / "")):
                    raise RunFolderError(f"{entry.path}: is a link, and a run's folder holds its files itself")
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                    raise RunFolderError(f"{entry.path}: not a regular file")
                elif not entry.name.endswith(".safetensors") and entry.stat(follow_symlinks=False).st_size > WIDEST:
                    raise RunFolderError(f"{entry.path}: has more than {WIDEST} bytes")


@contextmanager
def fitting(folder: Path) -> Iterator[None]:
    """Context of what is computed from the files of one folder: where they do not fit together, the error names it."""
    try:
        yield
    except FedprivError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a disk, which is not the folder's fault
            raise
        raise RunFolderError(f"{error.filename or folder}: cannot be read ({error.strerror})") from error
    except WRONG as error:
        traced()
        words = " ".join(str(error).split())[:200]
        raise RunFolderError(f"{folder}: its files do not fit together ({type(error).__name__}: {words})") from error
