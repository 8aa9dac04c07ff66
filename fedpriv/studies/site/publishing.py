"""The site's folder: replaced as a whole, and never a folder that is something else."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpriv.common.errors import OptionError

#: In every site that we made, and in nothing else.
MARKER = ".fedpriv-site"


def check_target(results: Path, out: Path) -> None:
    """Raises `OptionError` where ``out`` must not be replaced by a site."""
    if out.is_symlink():
        raise OptionError("out", out, "is a link; it must be a folder")
    if out.exists() and not out.is_dir():
        raise OptionError("out", out, "is a file; it must be a folder")
    if out.is_dir() and not (out / MARKER).is_file() and any(out.iterdir()):
        raise OptionError(
            "out", out, f"holds something else than a site ({MARKER} is missing there); take a new folder"
        )
    source, target = results.resolve(), out.resolve()
    if target == source or target in source.parents or source in target.parents:
        raise OptionError("out", out, f"must lie outside of the results, and they outside of it (results={results})")


@contextmanager
def replace_site(out: Path) -> Iterator[Path]:
    """Gives a new folder to write into; at the end it takes the place of ``out``. An error leaves ``out`` as it was."""
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    unique = uuid.uuid4().hex[:8]
    new, old = (out.with_name(f".{out.name}.{word}-{unique}") for word in ("new", "old"))
    try:
        new.mkdir()
        (new / MARKER).write_text("Made by python -m fedpriv.site, which may replace this folder.\n", encoding="utf-8")
        yield new
        if out.exists():
            os.rename(out, old)
        try:
            os.rename(new, out)
        except OSError:
            if old.exists():
                os.rename(old, out)
            raise
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
