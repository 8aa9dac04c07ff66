"""Parts of every command: exit codes, errors as one line, ``option=value`` arguments."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedpriv.common.errors import FedprivError, OptionError, RunFailed
from fedpriv.common.stopping import signal_of
from fedpriv.common.verbosity import is_verbose

DONE, FAILED, MISTAKE = 0, 1, 2

#: Exit code of a process ended by a signal: this plus the signal's number (130, 143).
SIGNALLED = 128
#: Nobody reads the output any more, as in `fedpriv --help | head -1`.
BROKEN_PIPE = SIGNALLED + signal.SIGPIPE

#: Every exit code and what it means: in `--help`, and in docs/operations.md.
EXIT_CODES = {
    DONE: "done",
    FAILED: "a run or a check failed; what was computed is kept",
    MISTAKE: "a mistake in the call: nothing was begun",
    SIGNALLED + signal.SIGINT: "interrupted (Ctrl-C)",
    SIGNALLED + signal.SIGTERM: "stopped by SIGTERM",
    BROKEN_PIPE: "nobody read the output",
}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


WRONG_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EEXIST)


def guarded(work: Callable[[], int]) -> int:
    """Runs ``work``; errors that a user can fix become one line and an exit code."""
    code, message = outcome(work)
    if message:
        print(f"fedpriv: {message}", file=sys.stderr, flush=True)
    return code


def outcome(work: Callable[[], int]) -> tuple[int, str]:
    """(exit code, message for the user) of ``work``; errors that only a developer can fix are raised."""
    try:
        return work(), ""
    except RunFailed as error:
        traced()
        return FAILED, str(error)
    except FedprivError as error:
        traced()
        return MISTAKE, str(error)
    except KeyboardInterrupt as interruption:
        return SIGNALLED + signal_of(interruption), str(interruption) or how_it_stopped(interruption)
    except OSError as error:
        if error.errno in DISK_FULL:
            return FAILED, f"{error.filename or 'a file'}: {error.strerror}"
        if error.errno in WRONG_PATH and error.filename:
            return MISTAKE, f"{error.filename}: {error.strerror}"
        raise


def traced() -> None:
    """With ``-v``, where the error that is being handled came from."""
    if is_verbose():
        traceback.print_exc()


@contextmanager
def importing() -> Iterator[None]:
    """Context in which much is imported: the garbage collector would look again and again through objects that all
    stay, here and at each of its later passes.
    """
    collects, before = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        if collects:
            gc.enable()


def how_it_stopped(interruption: KeyboardInterrupt) -> str:
    signum = signal_of(interruption)
    return "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"


def command_options(
    arguments: Sequence[str], known: Mapping[str, str | None], command: str, may_be_empty: Sequence[str] = ()
) -> dict[str, str]:
    """``option=value`` arguments of a command over its defaults (None: must be given). Raises `OptionError`."""
    options = {**known, **dict(argument.partition("=")[::2] for argument in arguments)}
    if unknown := sorted(set(options) - set(known)):
        raise OptionError(unknown[0], options[unknown[0]], f"no such option; allowed: {', '.join(known) or 'none'}")
    if missing := [name for name, value in options.items() if not value and name not in may_be_empty]:
        raise OptionError(missing[0], "", f"is missing; `python -m {command} --help` shows the usage")
    return {name: str(value) for name, value in options.items()}


def whole_number(options: dict[str, str], name: str, least: int, most: int) -> int:
    """An option of a command that is a whole number. Raises `OptionError`."""
    if not options[name].isascii() or not options[name].isdigit() or not least <= int(options[name]) <= most:
        raise OptionError(name, options[name], f"must be a whole number from {least} to {most}")
    return int(options[name])


def path_of(text: str) -> str:
    """A path as given to an option: with or without the quotes that the options of a run need around a space."""
    quoted = len(text) > 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted and not os.path.exists(text) else text


def check_place(option: str, value: str) -> None:
    """Raises `OptionError` where no folder can be made or written, or none is named."""
    if not value.strip():
        raise OptionError(option, value, "is empty; it must be a folder's name")
    place = Path(value)
    if "${" in value or (place.is_dir() and os.access(place, os.W_OK)):
        return
    if place.is_file():
        raise OptionError(option, value, "is a file; it must be a folder, which is made if need be")
    above = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
    if not above.is_dir():
        raise OptionError(option, value, f"{above} is not a folder (Not a directory)")
    if not os.access(above, os.W_OK | os.X_OK):
        raise OptionError(option, value, f"{above} cannot be written by this user (Permission denied)")


def shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
