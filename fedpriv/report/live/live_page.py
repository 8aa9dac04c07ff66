"""report.html while its run goes on, drawn by a process of its own.

Matplotlib takes a second to import and as long to draw: a run does not wait for that. The process has the least
priority, is at work for a fifth of its time at most, and draws what is newest when it is free; the run only writes one
byte.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from fedpriv.common.files import write_atomic
from fedpriv.common.places import ROOT
from fedpriv.common.printing import say

#: Seconds after which a live page looks for a newer one, and how long the process rests for each second of work.
RELOAD, REST = 5, 4.0
#: Threads of libraries that a page has no use for.
FEW = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
#: What of a page is there only while its run goes on (run.html).
_LIVE = re.compile(r"<!--live-->.*?<!--/live-->", re.DOTALL)


def hold_still(page: Path) -> None:
    """Turns a live page into one of a run that has stopped: it no longer reloads itself. Others stay as they are."""
    if page.is_file() and (found := page.read_text(encoding="utf-8")) != (still := _LIVE.sub("", found)):
        write_atomic(page, still, durable=False)


class LivePage:
    """A run's report after every ``every`` rounds (0: never). A context: outside it no live page is left.

    A page that cannot be drawn, as on a full disk, is said once on stderr by the process; the run goes on.
    """

    def __init__(self, folder: Path, every: int) -> None:
        self._folder, self._every = folder, every
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LivePage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def round_ended(self, number: int) -> None:
        """Has the page redrawn if this round's turn has come; waits for nothing."""
        if not self._every or number % self._every:
            return
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        with suppress(BlockingIOError, BrokenPipeError):  # it has enough to do; or it has ended
            self._process.stdin.write(b".")

    def close(self) -> None:
        """Ends the process; a page of it no longer says that the run goes on."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
        hold_still(self._folder / "report.html")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", __name__, str(self._folder.absolute()), str(os.getpid())]
        places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(  # a session of its own: Ctrl-C is the run's
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, start_new_session=True,
            env=os.environ | FEW | {"PYTHONPATH": os.pathsep.join(places)},
        )  # fmt: skip
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return process


def main(folder: Path, run: int) -> None:
    """Draws the page for every byte on stdin, until it is closed or the process ``run`` has ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # half a file is removed
    os.nice(19)
    from fedpriv.report.page import write_report

    said = False
    while _asked(run):
        began = time.monotonic()
        try:
            write_report(folder, RELOAD)
        except OSError as error:
            if not said:
                say(f"fedpriv: no live report: {error}", file=sys.stderr, flush=True)
            said = True
        time.sleep(REST * (time.monotonic() - began))
    with suppress(OSError):
        hold_still(folder / "report.html")  # the run was killed


def _asked(run: int) -> bool:
    """Waits for the next byte; False at the end."""
    while os.getppid() == run:
        if select.select([0], [], [], 1.0)[0]:
            return os.read(0, 1 << 16) != b""
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
