"""Parts of every command: exit codes, errors as one line, ``option=value`` arguments."""

from __future__ import annotations

import difflib
import errno
import functools
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedpriv.common import systems
from fedpriv.common.errors import FedprivError, OptionError, RunFailed
from fedpriv.common.printing import say
from fedpriv.common.stopping import signal_of
from fedpriv.common.verbosity import is_verbose

DONE, FAILED, MISTAKE, LOST = 0, 1, 2, 3

#: Exit code of a process ended by a signal: this plus the signal's number (130, 143).
SIGNALLED = 128
#: Nobody reads the output any more, as in `fedpriv --help | head -1`.
BROKEN_PIPE = SIGNALLED + systems.BROKEN_PIPE

#: Every exit code and what it means: in `--help`, and in docs/operations.md.
EXIT_CODES = {
    DONE: "done",
    FAILED: "a run or a check failed; what was computed is kept",
    MISTAKE: "a mistake in the call: nothing was begun",
    LOST: "done, with a warning: more than a fifth of a table column's cells are lost or clipped",
    SIGNALLED + signal.SIGINT: "interrupted (Ctrl-C)",
    SIGNALLED + signal.SIGTERM: "stopped by SIGTERM",
    BROKEN_PIPE: "nobody read the output",
}

#: Packages of `fedpriv[simulation]` (pyproject.toml), which a node does without.
SIMULATION = (
    "datasets",
    "flwr_datasets",
    "h11",
    "huggingface_hub",
    "matplotlib",
    "mpmath",
    "ray",
    "torchvision",
    "uvicorn",
)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


WRONG_PATH = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EEXIST)


def guarded(work: Callable[[], int]) -> int:
    """Runs ``work``; errors that a user can fix become one line and an exit code."""
    code, message = outcome(work)
    if message:
        say(f"fedpriv: {message}", file=sys.stderr, flush=True)
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
    except ModuleNotFoundError as error:
        if error.name not in SIMULATION:
            raise
        return MISTAKE, f"this needs {error.name}, which a node does without: pip install 'fedpriv[simulation]'"
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


def command(needs_arguments: bool = False) -> Callable[[Callable[[list[str]], int]], Callable[[Sequence[str]], int]]:
    """Decorates what a command does with its arguments: errors become an exit code, and ``--help`` prints the
    docstring of its file. needs_arguments: so does a call without any, as a mistake.
    """

    def decorated(work: Callable[[list[str]], int]) -> Callable[[Sequence[str]], int]:
        @functools.wraps(work)
        def main(arguments: Sequence[str]) -> int:
            asked = bool({"-h", "--help"} & set(arguments))
            if asked or (needs_arguments and not arguments):
                say(work.__globals__["__doc__"])
                return DONE if asked else MISTAKE
            return guarded(lambda: work(list(arguments)))

        return main

    return decorated


def command_options(
    arguments: Sequence[str],
    known: Mapping[str, str | tuple[str, ...] | None],
    command: str,
    may_be_empty: Sequence[str] = (),
) -> dict[str, str]:
    """``option=value`` arguments of a command. known: option -> its default, a tuple of the values that are allowed
    (the first is the default), or None: it must be given. Raises `OptionError`.
    """
    choices = {name: default for name, default in known.items() if isinstance(default, tuple)}
    defaults = {name: default[0] if isinstance(default, tuple) else default for name, default in known.items()}
    options = {**defaults, **dict(argument.partition("=")[::2] for argument in arguments)}
    if unknown := sorted(set(options) - set(known)):
        hint = nearest(unknown[0], known)
        words = f"no such option; allowed: {', '.join(known) or 'none'}{hint}"
        raise OptionError(unknown[0], options[unknown[0]], words)
    if missing := [name for name, value in options.items() if not value and name not in may_be_empty]:
        raise OptionError(missing[0], "", f"is missing; `python -m {command} --help` shows the usage")
    if wrong := [name for name, allowed in choices.items() if options[name] not in allowed]:
        raise OptionError(wrong[0], options[wrong[0]], f"allowed: {', '.join(choices[wrong[0]])}")
    return {name: str(value) for name, value in options.items()}


#: How the text of an option is read (ValueError: it cannot be), which values are allowed, and both in words.
Reader = tuple[Callable[[str], Any], Callable[[Any], bool], str]


def read_option(name: str, text: str, reader: Reader) -> Any:
    """The value of a command's option. Raises `OptionError`."""
    read, allowed, words = reader
    try:
        if allowed(value := read(text)):
            return value
    except ValueError:
        pass
    raise OptionError(name, text, f"must be {words}")


def nearest(word: str, names: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing."""
    close = difflib.get_close_matches(word, list(names), 2, 0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def whole_number(options: dict[str, str], name: str, least: int, most: int) -> int:
    """An option of a command that is a whole number. Raises `OptionError`."""
    if not options[name].isascii() or not options[name].isdigit() or not least <= int(options[name]) <= most:
        raise OptionError(name, options[name], f"must be a whole number from {least} to {most}")
    return int(options[name])


def address_of(text: str) -> str:
    """An IP address as given to an option: ``[::1]``, as in a URL, is ``::1``."""
    return text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text


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
