"""A stop that loses no round: the first signal lets the round end, the second ends the run at once.

Signals belong to the process, so there is one `stop` for all of it. Who works in rounds does so within
`stop.graceful` and looks at `stop.requested` between them; everywhere else a signal stops at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)

#: Names a file whose existence asks the jobs of a sweep, which run in processes of their own, to stop.
STOP_FILE = "FEDPRIV_STOP_FILE"


class Stopped(KeyboardInterrupt):
    """A signal ended the work; what it had is kept."""

    def __init__(self, signum: int, *words: str) -> None:
        super().__init__(*words)
        self.signum = signum


def signal_of(stop: KeyboardInterrupt) -> int:
    """The signal behind an interruption; Python's own is a Ctrl-C."""
    return stop.signum if isinstance(stop, Stopped) else signal.SIGINT


class Stop:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._handled = False
        self._grace: float | None = None  # seconds, while a first signal only leaves a note
        self._forwards: Path | None = None
        self._timer: threading.Timer | None = None

    @property
    def requested(self) -> int | None:
        """The signal that asked for it, None where nobody did."""
        if self._signum is None and (file := os.environ.get(STOP_FILE)) and os.path.exists(file):
            self._signum = signal.SIGTERM
        return self._signum

    def request(self, signum: int = signal.SIGTERM) -> None:
        """As a first signal: the round that is going on may end."""
        self._signum = self._signum or signum

    def check(self) -> None:
        """Raises `Stopped` if somebody asked for it."""
        if (signum := self.requested) is not None:
            self._cancel()
            raise Stopped(signum)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """While inside, signals come here; a no-op within another, and in a thread, where Python allows no handlers.

        A signal that the process was started to ignore (``nohup``) is still ignored.
        """
        if self._handled or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        self._signum, self._handled = None, True
        try:
            self.rearm()
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._signum, self._handled = None, False

    def rearm(self) -> None:
        """Takes the signals again, if they are ours: Ray replaces SIGTERM's handler as it starts, by one that prints a
        trace and aborts the process after three seconds.
        """
        if self._handled and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._on_signal)

    @contextmanager
    def graceful(self, seconds: float) -> Iterator[None]:
        """While inside, a first signal only leaves a note for `check`; after so many further seconds it stops at once
        after all.
        """
        self._grace = seconds
        try:
            yield
        finally:
            self._grace = None
            self._cancel()

    @contextmanager
    def forwarded(self) -> Iterator[None]:
        """While inside, a first signal is handed on to processes that were started since: they stop behind their
        rounds, and the work inside ends with them.
        """
        with TemporaryDirectory(prefix="fedpriv-") as folder:
            self._forwards = Path(folder) / "stop"
            os.environ[STOP_FILE] = str(self._forwards)
            try:
                yield
            finally:
                self._forwards = None
                del os.environ[STOP_FILE]

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        first, self._signum = self._signum is None, self._signum or signum
        signal.alarm(0)  # Ray's, where it heard of this before us
        if first and self._forwards is not None:
            self._forwards.touch()
            _say("stopping when the rounds that are going on end; a second signal stops at once")
        elif first and self._grace is not None:
            _say(f"stopping when this round ends, after {self._grace:g} s at the latest; a second signal stops at once")
            # A real signal, so that whatever the main thread waits for is interrupted.
            self._timer = threading.Timer(self._grace, os.kill, (os.getpid(), signum))
            self._timer.daemon = True
            self._timer.start()
        else:
            self._cancel()
            raise Stopped(self._signum)

    def _cancel(self) -> None:
        """Whoever is ending already is not hurried."""
        if self._timer is not None:
            self._timer.cancel()


def _say(words: str) -> None:
    os.write(2, f"fedpriv: {words}\n".encode())  # `print` may be what was interrupted, and is not reentrant


stop = Stop()
