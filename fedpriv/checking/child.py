"""A check in a process of its own: a fresh interpreter without a network, with a limit on time and memory.

The child writes JSON lines to a pipe: where it is, and the check after each layer. Whatever becomes of it, the parent
has a check: the last one that was told, or one line of words.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from fedpriv.checking.checks import check_object, could_not, merged, no_price, with_hint
from fedpriv.checking.findings import finding
from fedpriv.checking.player import RemoteTarget, load_target, question_of
from fedpriv.checking.result import Check, Layer
from fedpriv.checking.subject import Question
from fedpriv.common.errors import FedprivError, OptionError
from fedpriv.common.places import ROOT
from fedpriv.common.systems import fcntl, resource

_CODE = "import sys; sys.path[:0] = ['', {root!r}]; from fedpriv.checking.child import main; main({descriptor})"
#: What the environment of a target says: one thread, no GPU.
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    "CUDA_VISIBLE_DEVICES": "",
}
#: Seconds between two looks at a child; without any CPU time for so long, it waits for something.
LOOK, IDLE = 0.2, 25.0
#: Wall seconds for each second of CPU: other processes may need the machine too.
PATIENCE = 6.0
#: For a target that takes long.
SHORTER = "give it fewer steps and fewer data, or more time with seconds="
#: Bytes of what a target prints that are kept.
MOST_SAID = 2**26
#: Seconds that a child keeps for writing down what it found.
RESERVE = 3.0


@dataclass(frozen=True)
class Limits:
    """seconds: of CPU, the target's imports included. memory: GiB. idle: seconds of the clock without any CPU time.
    python: the interpreter that has the target's libraries; None: this one.
    """

    seconds: float = 45.0
    memory: float = 8.0
    idle: float = IDLE
    python: Path | None = None


def check_name(
    target: str, question: Question, limits: Limits = Limits(), stage: Callable[[str], None] = lambda words: None
) -> Check:
    """Checks the target that ``target`` names (`fedpriv.checking.child`) in a child process.

    stage: told what the child does. Raises `OptionError` for a target that there is not.
    """
    last, why = _run(target, question, limits, stage, first_only=False)
    if last is None:
        return could_not(target, question, why or "its process ended without a word")
    if why is not None:
        missing = [name for name in ("replayed", "sampled") if name not in {layer.name for layer in last.layers}]
        if "replayed" in missing and not last.faults and not any(one.layer == "replayed" for one in last.findings):
            return could_not(target, question, why, last.kind)
        layers = [*last.layers, *(Layer(name, False, f"Not ended: {why}.") for name in missing)]
        last = replace(last, layers=layers, why_not=no_price(last, why) if "sampled" in missing else last.why_not)
    names = {one.name for one in last.findings}
    if names & {"cannot-be-seeded", "global-generator", "held-generator"} and "no-randomness" not in names:
        last = _in_another_process(last, target, question, limits, stage)
    return last


def _in_another_process(
    check: Check, target: str, question: Question, limits: Limits, stage: Callable[[str], None]
) -> Check:
    """Compares the first release with that of a second process: noise of a generator seeded at import repeats."""
    stage("a second process")
    other, _ = _run(target, question, limits, lambda words: None, first_only=True)
    first = check.facts.get("first_release")
    if other is None or first is None or first != other.facts.get("first_release"):
        return check
    fault = finding("noise-repeats-between-processes")
    return replace(check, findings=merged([*check.findings, fault]), audited=float("inf"))


def _run(
    target: str, question: Question, limits: Limits, stage: Callable[[str], None], first_only: bool
) -> tuple[Check | None, str | None]:
    """(the last check that the child told, why it ended before its time, in words)."""
    reading, writing = os.pipe()
    given = {
        "target": target, "question": asdict(question), "seconds": limits.seconds, "memory": limits.memory,
        "first_only": first_only, "python": limits.python and str(limits.python),
    }  # fmt: skip
    import psutil

    code, below = _CODE.format(root=str(ROOT), descriptor=writing), set[Any]()
    with tempfile.TemporaryFile() as said, os.fdopen(reading, "rb", buffering=0) as pipe, _ended_by_signals():
        if fcntl is not None:
            fcntl.fcntl(said, fcntl.F_SETFL, fcntl.fcntl(said, fcntl.F_GETFL) | os.O_APPEND)
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            env={**os.environ, **_ENVIRONMENT},
            start_new_session=True,
        )
        try:
            os.close(writing)
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.write(json.dumps(given).encode())
                child.stdin.close()
            return _watch(child, pipe, said, limits, stage, below)
        finally:
            _cpu(child.pid, below)
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            for one in below:  # also those that left its group
                with suppress(psutil.Error):
                    one.kill()
            child.wait()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the block as an error does, so that no child is left."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _watch(
    child: subprocess.Popen[bytes],
    pipe: IO[bytes],
    said: IO[bytes],
    limits: Limits,
    stage: Callable[[str], None],
    below: set[Any],
) -> tuple[Check | None, str | None]:
    """below: gets the processes that the child has begun."""
    last: Check | None = None
    where, rest, ended = "starting", b"", False
    began = worked = time.monotonic()
    cpu = 0.0
    while True:
        ready, _, _ = select.select([pipe], [], [], LOOK)
        if ready:
            part = pipe.read(1 << 16)
            if not part:
                break
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                told = json.loads(line)
                if "mistake" in told:
                    raise OptionError(*told["mistake"])
                where = told.get("stage", where)
                last = Check.from_json(told["check"]) if "check" in told else last
                ended = ended or bool(told.get("ended"))
                stage(where)
        now, used = time.monotonic(), _cpu(child.pid, below)
        if os.fstat(said.fileno()).st_size > MOST_SAID:
            said.truncate(0)
        if used > cpu + 0.05:
            cpu, worked = used, now
        if used > limits.seconds + RESERVE:
            return last, f"it had not ended after {limits.seconds:g} s of CPU ({where}): {SHORTER}"
        if now - worked > limits.idle:
            return last, f"it waits for something that does not come: no work for {limits.idle:g} s ({where})"
        if now - began > PATIENCE * limits.seconds:
            return last, f"it had not ended after {now - began:.0f} s ({where}): {SHORTER}"
    code = child.wait()
    if ended:
        return last, None
    if code == -signal.SIGXCPU or code == -signal.SIGKILL:
        return last, f"it had not ended after {limits.seconds:g} s of CPU, or needed too much memory ({where})"
    said.seek(0)
    tail = " ".join(said.read()[-400:].decode(errors="replace").split()[-40:])
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return last, with_hint(f"its process ended with {how} ({where}){': ' + tail if tail else ''}")


def _cpu(pid: int, below: set[Any]) -> float:
    """Seconds of CPU that a process and its descendants have used; what has ended counts for its parent. below: gets
    the descendants.
    """
    import psutil

    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        below |= (found := set(process.children(recursive=True)))
        for one in (process, *found):
            with suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


# --- the child ----------------------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """The child: reads what is asked from its standard input, and writes lines to ``descriptor``."""
    given = json.loads(sys.stdin.buffer.read())
    network = _without_network()
    _limit(given["seconds"], given["memory"])
    pipe = os.fdopen(descriptor, "w")

    def tell(**told: Any) -> None:
        pipe.write(json.dumps(told) + "\n")
        pipe.flush()

    question, name = question_of(given["question"]), given["target"]
    try:
        tell(stage="loading")
        target = RemoteTarget(given["python"], name) if given["python"] else load_target(name)
    except OptionError as error:
        tell(mistake=[error.option, str(error.value), error.allowed])
        return
    except FedprivError as error:
        tell(check=could_not(name, question, str(error)).as_json(), ended=True)
        return
    except BaseException as error:
        words = with_hint(f"it cannot be imported: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        tell(check=could_not(name, question, words).as_json(), ended=True)
        return

    def told(check: Check) -> None:
        tell(stage=f"after {len(check.layers)} of 3 layers", check=check.as_json())

    tell(stage="first calls")
    try:
        if given["first_only"]:
            told(check_object(target, question, name=name, first_only=True))
        else:
            seconds = max(1.0, given["seconds"] - time.process_time() - RESERVE)
            check = check_object(target, question, name=name, seconds=seconds, told=told)
            tell(check=replace(check, facts={**check.facts, "network": network}).as_json())
        tell(ended=True)
    except BaseException as error:  # also what a target raises to end the process
        words = f"it ended the check with {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        tell(check=could_not(name, question, words).as_json(), ended=True)
    pipe.flush()
    os._exit(0)  # what a target left running ends here


def _limit(seconds: float, memory: float) -> None:
    most = int(memory * 2**30)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(ValueError, OSError):
        hard = int(seconds + RESERVE) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard + 2))
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _without_network() -> str:
    """A network namespace of its own, where the system gives one to its users."""
    try:
        from fedpriv.guard import kernel

        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(kernel.NEW_USERS | kernel.NEW_NETWORK, "users, network")
        kernel.own_users(uid, gid, uid)
    except OSError as error:
        return f"open: this system gives no namespaces ({error.strerror})"
    return "cut off"
