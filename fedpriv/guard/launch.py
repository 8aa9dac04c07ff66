"""The start of a sandbox's processes (`fedpriv.guard.child`): by the process that answers a message, or by a lender."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from fedpriv.common.places import ROOT
from fedpriv.guard.child import LONGEST

#: The environment of an app's process: no library starts a thread at import.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}
#: Seconds that the processes have to start.
START = 300.0
_CODE = "import sys; sys.path.insert(0, {root!r}); from fedpriv.guard.child import main; main({descriptor})"


def started(given: Mapping[str, Any]) -> tuple[subprocess.Popen[bytes], socket.socket, dict[str, Any]]:
    """The launcher, the socket to the keeper, and what came when it was ready: {"left": ...} or {"failed": ...}.
    given: as `fedpriv.guard.sandbox.Sandbox` says it.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = _CODE.format(root=str(ROOT), descriptor=there.fileno())
    with there:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            pass_fds=[there.fileno()],
            env=ENVIRONMENT,
            cwd="/",
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    here.settimeout(START)
    try:
        here.send(json.dumps(dict(given)).encode())
        told = json.loads(here.recv(LONGEST) or b'{"failed": "the process ended before it was ready"}')
    except OSError as error:
        told = {"failed": str(error)}
    return process, here, dict(told)
