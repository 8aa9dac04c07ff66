"""SHA256SUMS: a folder's files and their digests, as `sha256sum -c SHA256SUMS` reads them.

A model file with a changed byte still loads: only a digest shows that the weights differ.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fedpriv.common.files import write_atomic
from fedpriv.common.run_files import open_in, text_in

SUMS = "SHA256SUMS"
#: The files of a finished run's model.
MODEL_FILES = ("model.safetensors", "classes.json")
#: The tokenizer file of a model on token ids; its digest is in classes.json.
TOKENIZER = "tokenizer.json"
#: Bytes above which a file may be a hole.
LARGE = 2**30
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\n]+)\n")


def write_sums(folder: Path, names: Sequence[str], known: Mapping[str, str] = MappingProxyType({})) -> None:
    """Writes the digests of these files as they are on the disk now, or as they are ``known``. Raises OSError."""
    lines = (f"{known.get(name) or _digest(folder, name)}  {name}\n" for name in names)
    write_atomic(folder / SUMS, "".join(lines))


def read_sums(folder: Path) -> dict[str, str]:
    """Name -> digest, as a folder's SHA256SUMS has them; empty where it has none that can be read."""
    try:
        lines = [_LINE.fullmatch(line) for line in text_in(folder, SUMS).splitlines(keepends=True)]
    except (OSError, ValueError):
        return {}
    return {line[2]: line[1] for line in lines if line}


def damage(folder: Path, names: Sequence[str]) -> str | None:
    """What is wrong with a folder whose SHA256SUMS must list exactly these files; None if nothing is."""
    try:
        text = text_in(folder, SUMS)
        lines = [_LINE.fullmatch(line) for line in text.splitlines(keepends=True)]
        known = {line[2]: line[1] for line in lines if line}
        if len(known) != len(lines) or known.keys() != set(names):
            return f"{SUMS} does not list {', '.join(names)}"
        changed = [name for name in names if _digest(folder, name) != known[name]]
    except OSError as error:
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    except ValueError:
        return f"{SUMS} is not text"
    return f"{', '.join(changed)}: not the bytes that {SUMS} names" if changed else None


def _digest(folder: Path, name: str) -> str:
    """In hex; "" of a large file that is a hole: nobody here writes one, and it takes minutes to read."""
    with open_in(folder, name) as file:
        about = os.fstat(file.fileno())
        if about.st_size > LARGE and getattr(about, "st_blocks", about.st_size) * 512 < about.st_size // 1000:
            return ""
        return hashlib.file_digest(file, "sha256").hexdigest()
