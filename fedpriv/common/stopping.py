"""Graceful stop: after the first signal the current round is finished, a second one ends the run at once.

Signals are per process, so there is one `stop` object. Code that works in rounds runs within `stop.graceful` and
checks `stop.requested` between them; everywhere else a signal stops at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

#: Seconds between two looks at whether the grace rests.
STEP = 0.125

#: Environment variable: path of a file whose existence asks a sweep's jobs, which are separate processes, to stop.
STOP_FILE = "FEDPRIV_STOP_FILE"


class Stopped(KeyboardInterrupt):
    """A signal ended the work; results so far are kept."""

    def __init__(self, signum: int, *words: str) -> None:
        super().__init__(*words)
        self.signum = signum

    def __reduce__(self) -> tuple[type[Stopped], tuple[Any, ...]]:
        """A worker process hands it to the one that waits for it."""
        return type(self), (self.signum, *self.args)


def signal_of(stop: KeyboardInterrupt) -> int:
    """The signal that caused an interruption; Python's own KeyboardInterrupt is a Ctrl-C."""
    return stop.signum if isinstance(stop, Stopped) else signal.SIGINT


class Stop:
    """Whether this process was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self._signum: int | None = None
        self._handled = False
        self._grace: float | None = None  # seconds, while a first signal only sets the flag
        self._forwards: Path | None = None
        self._timer: threading.Timer | None = None
        self._asked = self._due = 0.0  # when the first signal came, and when its grace is over: on the monotonic clock
        self._rests = self._overdue = False  # the grace rests; its end is why the next signal comes

    @property
    def requested(self) -> int | None:
        """The signal that requested a stop, or None."""
        if self._signum is None and (file := os.environ.get(STOP_FILE)) and os.path.exists(file):
            self._signum = signal.SIGTERM
        return self._signum

    def request(self, signum: int = signal.SIGTERM) -> None:
        """Acts like a first signal: the current round may finish."""
        self._signum = self._signum or signum

    def check(self) -> None:
        """Raises `Stopped` if a stop was requested."""
        if (signum := self.requested) is not None:
            self._cancel()
            raise Stopped(signum)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Context that handles signals here; a no-op when nested, and in a thread, where Python allows no handlers.

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
        """Reinstalls our handlers, if they were installed: Ray replaces SIGTERM's as it starts with one that prints a
        trace and aborts the process after three seconds.
        """
        if self._handled and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._on_signal)

    @contextmanager
    def graceful(self, seconds: float) -> Iterator[None]:
        """Context in which a first signal only sets the flag that `check` reads; if the work has not ended after
        ``seconds``, it is stopped at once.
        """
        self._grace = seconds
        try:
            yield
        finally:
            self._grace = None
            self._cancel()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Context whose time does not count towards the grace: a checkpoint that is being written is written whole. A
        second signal still stops at once.
        """
        began, self._rests = time.monotonic(), True
        try:
            yield
        finally:
            self._rests = False
            if self._timer is not None:
                self._due += time.monotonic() - max(began, self._asked)
                self._start_timer()

    def wait(self, ended: threading.Event, grace: float) -> None:
        """Waits until ``ended``, or for ``grace`` seconds in which nothing rests (`resting`)."""
        while grace > 0 and not ended.wait(min(STEP, grace)):
            grace -= 0 if self._rests else STEP

    @contextmanager
    def forwarded(self) -> Iterator[None]:
        """Context in which a first signal is forwarded to processes started within it: they stop after their current
        round, and the work inside ends with them.
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
        signal.alarm(0)  # cancels Ray's alarm, if its handler ran before ours
        overdue, self._overdue = self._overdue, False
        if overdue and self._rests:
            return
        if first and self._forwards is not None:
            self._forwards.touch()
            _say("stopping when the current rounds end; a second signal stops at once")
        elif first and self._grace is not None:
            _say(f"stopping when this round ends, after {self._grace:g} s at the latest; a second signal stops at once")
            self._asked = time.monotonic()
            self._due = self._asked + self._grace
            self._start_timer()
        else:
            self._cancel()
            raise Stopped(self._signum)

    def _start_timer(self) -> None:
        self._cancel()
        self._timer = threading.Timer(max(0.0, self._due - time.monotonic()), self._end_grace)
        self._timer.daemon = True
        self._timer.start()

    def _end_grace(self) -> None:
        """A real signal, so that a blocking call in the main thread is interrupted."""
        if not self._rests:  # or the rest's end starts the timer anew
            self._overdue = True
            os.kill(os.getpid(), self._signum or signal.SIGTERM)

    def _cancel(self) -> None:
        """No forced stop any more: the work is ending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def end_with_parent(grace: float = 0.0) -> None:
    """From now on this process does not outlive the one that started it: its work is asked to stop, and ``grace``
    seconds later the process ends, whatever it waits for. A second call changes nothing.
    """
    if not any(thread.name == _watch.__name__ for thread in threading.enumerate()):
        threading.Thread(target=_watch, name=_watch.__name__, args=(os.getppid(), grace), daemon=True).start()


def _watch(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    stop.request()
    stop.wait(threading.Event(), grace)
    os._exit(1)


def _say(words: str) -> None:
    os.write(2, f"fedpriv: {words}\n".encode())  # `print` may be what was interrupted, and is not reentrant


stop = Stop()
