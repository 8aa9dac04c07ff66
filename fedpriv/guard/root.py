"""The files that a foreign app sees: libraries, its own folder and one shard, read-only, and an empty /tmp.

Everything else of the machine is not hidden but absent: the root is a new tmpfs, and the old one is unmounted.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from fedpriv.guard import kernel

#: Where an app's process may write: gone when it ends.
WRITABLE = ("/tmp", "/dev/shm")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime")
#: /tmp while the root is built: the sources have been opened by then.
_BUILT_AT = "/tmp"


def libraries() -> list[str]:
    """The interpreter's own files and its installed packages; of nested folders the outer one."""
    named = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    named |= {f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")}
    found = sorted({os.path.realpath(path) for path in named if path and os.path.isdir(path)})
    return [path for path in found if not any(path != other and _within(path, other) for other in found)]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _links(path: str) -> Iterator[tuple[str, str]]:
    """Of ``path``, each part that is a symbolic link, with its target."""
    at = Path(path)
    for part in [*reversed(at.parents), at]:
        if part.is_symlink():
            yield str(part), os.readlink(part)


def build(app: str, data: str, shard: str, packages: list[str], tmp_bytes: int) -> None:
    """In a mount namespace of its own: replaces the root. shard: what appears at ``data``. Raises `OSError`."""
    system = [path for path in _SYSTEM if os.path.exists(path)]
    spelled = {
        sysconfig.get_path("purelib"),
        sysconfig.get_path("stdlib"),
        f"{sys.base_prefix}/lib",
        f"{sys.prefix}/lib",
    }
    links = dict(link for path in [*system, *sorted(spelled)] for link in _links(path))
    code = kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES
    sources = [(path, path, code) for path in [*system, *packages] if not os.path.islink(path)]
    sources.append((app, app, code))
    sources += [(path, path, kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_PROGRAMS) for path in DEVICES]
    sources.append((data, shard, code | kernel.NO_PROGRAMS))  # last: it may be in the app's folder
    trees = [(target, os.path.isdir(source), kernel.tree_of(source, flags)) for target, source, flags in sources]

    kernel.mount_tmpfs(_BUILT_AT, kernel.NO_SETUID | kernel.NO_DEVICES, "mode=755,size=1m")
    size = f"mode=1777,size={tmp_bytes}"
    for path in WRITABLE:
        os.makedirs(_BUILT_AT + path)
        kernel.mount_tmpfs(_BUILT_AT + path, kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_PROGRAMS, size)
    for path, target in links.items():
        if not os.path.lexists(_BUILT_AT + path):
            os.makedirs(os.path.dirname(_BUILT_AT + path), exist_ok=True)
            os.symlink(target, _BUILT_AT + path)
    for target, folder, tree in trees:
        _place(_BUILT_AT + target, folder)
        kernel.place_tree(tree, _BUILT_AT + target)
    os.chdir(_BUILT_AT)
    kernel.remount_read_only(_BUILT_AT, kernel.NO_SETUID | kernel.NO_DEVICES)


def _place(target: str, folder: bool) -> None:
    """Makes what something can be mounted on."""
    if os.path.exists(target):
        return
    os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
    if not folder:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))


def enter(pivot_root: int) -> None:
    """Makes the working directory, which `build` left, the root. pivot_root: the number of that call."""
    kernel.call(pivot_root, b".", b".", what="pivot_root")
    kernel.unmount(".")  # the old root, which is above the new one
    os.chdir("/")
