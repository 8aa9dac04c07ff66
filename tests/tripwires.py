"""What reading a message or an option must never do. Python itself reports it (PEP 578), whoever's code it is.

`Tripped` is no `Exception`: code under test that swallows every error does not swallow it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Processes, the network, evaluation, pickle, and changes of the file system.
FORBIDDEN = frozenset(
    {
        *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "subprocess.Popen", "pty.spawn"),
        *("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "urllib.Request"),
        *("compile", "exec", "code.__new__", "pickle.find_class", "marshal.loads", "ctypes.dlopen"),
        *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate"),
        *("os.putenv", "os.unsetenv", "os.kill", "shutil.rmtree", "shutil.copyfile", "tempfile.mkdtemp"),
    }
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_state = {"armed": False, "hooked": False}


class Tripped(BaseException):
    """Something forbidden was about to happen."""


def _importing() -> bool:
    """Whether one of our own import statements is what runs code: modules are loaded when they are needed."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _state["armed"]:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITES and not _importing():
            raise Tripped(f"open for writing: {str(path)[:200]}")
    elif event == "import":
        if arguments[0].partition(".")[0] not in sys.modules:
            raise Tripped(f"import {arguments[0]}")
    elif event in FORBIDDEN and not _importing():
        raise Tripped(f"{event} {repr(arguments)[:200]}")


@contextmanager
def armed() -> Iterator[None]:
    """While this lasts, the first forbidden thing raises `Tripped`. An audit hook cannot be removed, only silenced."""
    if not _state["hooked"]:
        sys.addaudithook(_watch)
        _state["hooked"] = True
    _state["armed"] = True
    try:
        yield
    finally:
        _state["armed"] = False
