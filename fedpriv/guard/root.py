"""The files that a foreign app sees: libraries, its own folder and one shard, read-only, and an empty /tmp.

Everything else of the machine is not hidden but absent: the root is a new tmpfs, and the old one is unmounted. What is
the same for every shard is mounted once, by the warm process (`Root.build`).
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from fedpriv.guard import kernel

#: Where an app's process may write: gone when it ends.
WRITABLE = ("/tmp", "/dev/shm")
#: Files and folders that fit into each of them at least.
FEWEST_FILES = 1024
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime")
#: Where the new root is built, in a namespace of its own: a folder that every machine has, and that holds no data.
_BUILT_AT = "/sys"
_CODE = kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_DEVICES
_DATA = _CODE | kernel.NO_PROGRAMS
_DEVICE = kernel.READ_ONLY | kernel.NO_SETUID | kernel.NO_PROGRAMS
_EMPTY = kernel.NO_SETUID | kernel.NO_DEVICES | kernel.NO_PROGRAMS


def libraries() -> list[str]:
    """The interpreter's own files and its installed packages; of nested folders the outer one."""
    named = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    named |= {f"{prefix}/{name}" for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")}
    found = sorted({os.path.realpath(path) for path in named if path and os.path.isdir(path)})
    return [path for path in found if not any(path != other and _within(path, other) for other in found)]


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _links(path: str) -> Iterator[tuple[str, str]]:
    """Each symbolic link on the way to ``path``, with its target; those on the way to the target, too."""
    at = Path(path)
    for part in [*reversed(at.parents), at]:
        if part.is_symlink():
            folder, target = os.path.realpath(part.parent), os.readlink(part)
            yield os.path.join(folder, part.name), target
            yield from _links(os.path.normpath(os.path.join(folder, target)))


def _place(target: str, folder: bool) -> None:
    """Makes what something can be mounted on, where it is not there."""
    if os.path.exists(target):
        return
    os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
    if not folder:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))


class Root:
    """The root of one app's shards. app, data: where the app and its data appear. packages: folders of libraries."""

    def __init__(self, app: str, data: str, packages: list[str]) -> None:
        self.app, self.data = app, data
        system = [path for path in _SYSTEM if os.path.exists(path)]
        prefixes = [f"{prefix}/lib" for prefix in (sys.prefix, sys.base_prefix)]
        self.links = dict(link for path in [*system, *prefixes] for link in _links(path))
        self.sources = [(path, _CODE) for path in [*system, *packages, app] if not os.path.islink(path)]
        self.sources += [(path, _DEVICE) for path in DEVICES]
        #: Places in folders that are new for every shard, where they are mounted anew.
        self.again = [source for source in self.sources if any(_within(source[0], path) for path in WRITABLE)]

    def build(self, data_is_folder: bool) -> None:
        """In the warm process's namespace of mounts: all but the data. Raises `OSError`."""
        kernel.mount_tmpfs(_BUILT_AT, kernel.NO_SETUID | kernel.NO_DEVICES, "mode=755,size=1m")
        for path in WRITABLE:
            os.makedirs(_BUILT_AT + path)
        self._link()
        for source in self.sources:
            self._show(*source)
        _place(_BUILT_AT + self.data, data_is_folder)
        kernel.remount_read_only(_BUILT_AT, kernel.NO_SETUID | kernel.NO_DEVICES)

    def _link(self, below: str = "/") -> None:
        """The symbolic links of the old root, at and ``below`` a folder."""
        for path, target in self.links.items():
            if _within(path, below) and not os.path.lexists(_BUILT_AT + path):
                os.makedirs(os.path.dirname(_BUILT_AT + path), exist_ok=True)
                os.symlink(target, _BUILT_AT + path)

    def _show(self, path: str, flags: int) -> None:
        tree = kernel.tree_of(path, flags)
        _place(_BUILT_AT + path, os.path.isdir(path))
        kernel.place_tree(tree, _BUILT_AT + path)

    def enter(self, shard: str, as_copy: bool, tmp_bytes: int, answer_bytes: int, pivot_root: int) -> int:
        """In a shard's own namespace of mounts: replaces the root. shard: what appears at the place of the data, itself
        or (as_copy) a new copy. pivot_root: the number of that call. Returns a descriptor of the file for the answer,
        whose file system nothing else is in and nobody can name. Raises `OSError`.
        """
        folder, tree = os.path.isdir(shard), self._copy(shard) if as_copy else kernel.tree_of(shard, _DATA)
        for path in WRITABLE:
            files = max(FEWEST_FILES, tmp_bytes // 4096)  # the kernel's memory for them is not in the size
            kernel.mount_tmpfs(_BUILT_AT + path, _EMPTY, f"mode=1777,size={tmp_bytes},nr_inodes={files}")
            self._link(path)
        for source in self.again:
            self._show(*source)
        _place(_BUILT_AT + self.data, folder)
        kernel.place_tree(tree, _BUILT_AT + self.data)
        os.chdir(_BUILT_AT)
        kernel.call(pivot_root, b".", b".", what="pivot_root")
        kernel.unmount(".")  # the old root, which is above the new one
        os.chdir("/")
        place = WRITABLE[0]
        kernel.mount_tmpfs(place, _EMPTY, f"mode=755,size={answer_bytes + 4096},nr_inodes=2")
        answer = os.open(place + "/answer", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        kernel.unmount(place)
        return answer

    def _copy(self, shard: str) -> int:
        """A tree of a copy in a new tmpfs: inode numbers, order in folders, sizes and free space follow from this shard
        alone. Those of the machine's disk tell of files that were written before it: of other shards.
        """
        place = _BUILT_AT + WRITABLE[0]
        kernel.mount_tmpfs(place, _EMPTY, f"mode=755,size={bytes_of(shard) + 2**20},nr_inodes=0")
        copy_in_order(shard, place + "/data")
        tree = kernel.tree_of(place + "/data", _DATA)
        kernel.unmount(place)
        return tree


def bytes_of(shard: str) -> int:
    """Of a file system's whole pages."""
    folders = os.walk(shard) if os.path.isdir(shard) else [(os.path.dirname(shard), [], [os.path.basename(shard)])]
    sizes = [os.path.getsize(f"{folder}/{name}") for folder, _, names in folders for name in names]
    return sum(-(-size // 4096) * 4096 for size in sizes)


def copy_in_order(source: str, target: str) -> None:
    """A file, or a folder with all in it by name; read-only, from 1970. What is neither is left out."""
    if os.path.isdir(source):
        os.mkdir(target, 0o755)
        for name in sorted(os.listdir(source)):
            if not os.path.islink(f"{source}/{name}"):
                copy_in_order(f"{source}/{name}", f"{target}/{name}")
    elif os.path.isfile(source):
        shutil.copyfile(source, target)
        os.chmod(target, 0o444)
    else:
        return
    os.utime(target, (0, 0))
