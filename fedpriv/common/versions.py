"""What identifies the software of a run: versions of libraries, and a digest of the code."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

#: Packages and commands that make tables, pages and pictures of runs, and train nothing.
READERS = {"report", "studies", "site.py", "reproduce.py", "leaderboard.py", "new.py"}


VERSIONS = ("flwr", "torch", "numpy", "dp-accounting", "ray")


def versions() -> dict[str, str]:
    """Versions as a summary and a study's record state them: libraries and code."""
    return library_versions() | {"code": code_digest()}


def library_versions() -> dict[str, str]:
    """Versions of the libraries that can change a result."""
    return {"python": platform.python_version()} | {name: version(name) for name in VERSIONS}


@lru_cache(maxsize=1)
def code_digest() -> str:
    """SHA-256 of the project's source, without what only reads finished runs, whether or not a run uses it: results of
    many methods are compared under one code version.
    """
    root = Path(__file__).resolve().parents[2]
    files = [path for part in ("fedpriv", "strategies", "clients") for path in sorted((root / part).rglob("*.py"))]
    digest = hashlib.sha256()
    for path in files:
        if not READERS.intersection(path.relative_to(root).parts):
            digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]
