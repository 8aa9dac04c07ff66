"""What made a result: this project's commit, and the versions of its libraries."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedpriv.common.places import HOME, METHOD_PACKAGES, PACKAGE, ROOT

#: Folders and files that decide a result. Documents, tests and results themselves do not.
SOURCES = ("fedpriv", "strategies", "clients", "conf", "requirements.txt")

#: Packages and commands that make tables, pages and pictures of runs, and train nothing.
READERS = {"report", "studies", "site.py", "reproduce.py", "leaderboard.py", "new.py"}


VERSIONS = ("flwr", "torch", "numpy", "dp-accounting", "ray")


def library_versions() -> dict[str, str]:
    """Versions of the libraries that can change a result. Without those that are not installed: a computer that only
    simulates inside one process needs no Ray.
    """
    found = {name: installed(name) for name in VERSIONS}
    return {"python": platform.python_version()} | {name: number for name, number in found.items() if number}


@cache
def installed(name: str) -> str:
    """The version of a library, or "" where it is not installed. To read it from the library's own files takes
    milliseconds, and every run asks for several.
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def processor() -> str:
    """The processor's name."""
    return _cpu_facts().get("model name") or platform.processor() or platform.machine()


def _cpu_facts() -> dict[str, str]:
    """Of the first core, as Linux names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def kind_of_processor() -> dict[str, str]:
    """On what the last bits of a CPU's results depend, beside code, options, threads and versions: the processor's
    model (libraries take other instructions and other orders of summation on others), and what torch makes of it.
    """
    import torch

    facts = _cpu_facts()
    model = ", ".join(f"{name} {facts[name]}" for name in ("cpu family", "model") if name in facts)
    return {
        "processor": ", ".join(filter(None, (processor(), model))),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
    }


@cache
def commit() -> str:
    """The project's commit, 12 digits, with "+" where its sources differ from it; outside a checkout (an installed
    wheel) "version " and the package's version.

    Read once in a process, of the code that it has loaded: the checkout may move on meanwhile.
    """
    try:
        _git("ls-files", "--error-unmatch", "--", "fedpriv/common/versions.py")  # not some repository around us
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("status", "--porcelain", "--", *SOURCES) else "")
    except (OSError, subprocess.CalledProcessError):
        pass
    try:
        return f"version {version('fedpriv')}"
    except PackageNotFoundError:
        return "unknown"


def _git(*arguments: str) -> str:
    call = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()


def made_by(name: str) -> str:
    """A stored `commit` in words: "commit 0123456789ab with changes", "version 0.1.0"."""
    if name.startswith("version "):
        return name
    if name.strip("+") in ("", "unknown"):
        return "a commit that is not recorded"
    return f"commit {name.rstrip('+')[:12]}" + (" with changes" if name.endswith("+") else "")


@lru_cache(maxsize=1)
def code_digest() -> str:
    """SHA-256 of the project's source, without what only reads finished runs. For caches on one machine, whose contents
    are cheap to make again; a result is never identified by it, or no line could be moved.
    """
    folders = dict.fromkeys([PACKAGE, *(HOME / part for part in METHOD_PACKAGES)])
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    digest = hashlib.sha256()
    for path in files:
        if not READERS.intersection(path.relative_to(ROOT).parts):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]
