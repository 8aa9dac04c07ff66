"""Parts of every command: exit codes, errors as one line, ``option=value`` arguments."""

from __future__ import annotations

import difflib
import errno
import functools
import gc
import inspect
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from fedpriv.common import systems
from fedpriv.common.errors import FedprivError, OptionError, RunFailed
from fedpriv.common.printing import say
from fedpriv.common.stopping import signal_of
from fedpriv.common.verbosity import is_quiet, is_verbose

T = TypeVar("T")

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


#: Beside the type of a path: something is there.
MUST_EXIST = "there is no such file or folder"
Existing = Annotated[Path, MUST_EXIST]
A_FOLDER = "must be a folder"
Folder = Annotated[Path, MUST_EXIST, A_FOLDER]


def command(work: Callable[..., int | None]) -> Callable[[Sequence[str]], int]:
    """Makes a command of a function, whose arguments are those of `read_arguments`. Errors become an exit code.

    ``--help`` prints the docstring of the function's file; so does a call without anything where something is needed,
    as a mistake.
    """

    @functools.wraps(work)
    def main(arguments: Sequence[str]) -> int:
        asked = bool({"-h", "--help"} & set(arguments))
        if asked or (not arguments and (options_of(work).rest or options_of(work).needed)):
            say(work.__globals__["__doc__"])
            return DONE if asked else MISTAKE

        def called() -> int:
            words, options = read_arguments(work, arguments)
            return work(*words, **options) or DONE

        return guarded(called)

    return main


def read_arguments(work: Callable[..., Any], arguments: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """(words, options) of a call, of the types that a function's parameters have.

    Parameters before ``*`` are words; the others are options ``name=value``, also written ``--name value``. Of a
    parameter that is a dataclass each field is an option. ``*overrides`` is what the command itself has no option for.
    Raises `OptionError`.
    """
    of = options_of(work)
    given, others = _split(arguments, list(of.options), of.rest == "overrides")
    extra = others[len(of.words) :]
    if extra and not of.rest:
        raise OptionError(" ".join(extra), "", f"is too much; allowed: {', '.join(of.options) or 'nothing'}")
    first = {
        name: read_option(name.upper(), text, of.words[name]) for name, text in zip(of.words, others, strict=False)
    }
    read = {name: read_option(name, text, of.options[name]) for name, text in given.items()}
    if missing := [name for name in of.needed if name not in first | read]:
        name = missing[0].upper() if missing[0] in of.words else missing[0]
        shown = re.search(rf"\b{name}=[^\s\]`]+", work.__globals__["__doc__"] or "")
        raise OptionError(name, "", f"is missing{f': {shown[0]}' if shown else ''}; --help shows the usage")
    for name, group in of.groups.items():
        read[name] = group(**{field: read.pop(field) for field in hints_of(group) if field in read})
    return [*first.values(), *extra], read


class Parameters(NamedTuple):
    """Of a command's function. words, options: types by name. rest: the name after ``*``. groups: dataclasses by
    parameter. needed: what must be given.
    """

    words: dict[str, Any]
    options: dict[str, Any]
    groups: dict[str, Any]
    rest: str
    needed: list[str]


@functools.cache
def options_of(work: Callable[..., Any]) -> Parameters:
    words, options, groups, rest, needed = dict[str, Any](), dict[str, Any](), dict[str, Any](), "", list[str]()
    for name, one in inspect.signature(work).parameters.items():
        hint = hints_of(work)[name]
        if one.kind == one.VAR_POSITIONAL:
            rest = name
        elif is_dataclass(hint):
            groups[name] = hint
            options |= hints_of(hint)
            needed += [f.name for f in fields(hint) if f.default is MISSING and f.default_factory is MISSING]
        else:
            (words if one.kind == one.POSITIONAL_OR_KEYWORD else options)[name] = hint
            needed += [name] * (one.default is one.empty)
    return Parameters(words, options, groups, rest, needed)


def read_options(kind: type[T], given: Mapping[str, Any]) -> T:
    """A dataclass of options from values or texts; None is the default. Raises `OptionError`."""
    hints = hints_of(kind)
    if wrong := next((name for name in given if name not in hints), None):
        raise no_such_option(wrong, given[wrong], list(hints))
    read = {name: read_option(name, value, hints[name]) for name, value in given.items() if value is not None}
    return kind(**read)


def _split(arguments: Sequence[str], names: Sequence[str], overrides: bool) -> tuple[dict[str, str], list[str]]:
    """(options by name, the other words). overrides: these may be options of a run. Raises `OptionError`."""
    given, others, rest = dict[str, str](), list[str](), list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        dashes, name = word.startswith("--"), name.replace("-", "_") if word.startswith("--") else name
        name = short if (short := name.removeprefix("dataset.")) in names and equals else name  # as a run has it
        if name in names and (equals or dashes):
            if not equals and not rest:
                raise OptionError(word, "", "needs a value")
            take(given, name, value if equals else rest.pop(0))
        elif overrides or not (word.startswith("-") or (equals and (not name or name.isidentifier()))):
            others.append(word)
        else:
            raise no_such_option(word.partition("=")[0], value, names)
    return given, others


def take(said: dict[str, str], name: str, value: str) -> None:
    """Notes an option's value; tells where it had another."""
    if said.get(name, value) != value and not is_quiet():
        say(f"fedpriv: {name} is given as {said[name]} and as {value}: the last one counts", file=sys.stderr)
    said[name] = value


def no_such_option(name: str, value: object, names: Sequence[str]) -> OptionError:
    words = f"no such option; allowed: {', '.join(names) or 'none'}{nearest(name.lstrip('-'), names)}"
    return OptionError(name, value, words)


def hints_of(work: Any) -> dict[str, Any]:
    """The types of a function's parameters or of a dataclass's fields."""
    named = {name: hint for name, hint in work.__annotations__.items() if name != "return"}  # that may not be imported
    module = sys.modules[work.__module__]
    return get_type_hints(SimpleNamespace(__annotations__=named), vars(module), include_extras=True)


@functools.cache
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))


def read_option(name: str, value: Any, hint: Any) -> Any:
    """An option as its type has it; a text may be ``true``, ``false``, ``null`` or a path in quotes. Raises
    `OptionError`.
    """
    kinds, beside = _parts(hint)
    read = value
    if Path in kinds and isinstance(value, str | Path):
        refuse_no_path(name, value)
    if isinstance(value, str) and str not in kinds:
        if value == "" and get_origin(kinds[0]) is not Literal:
            raise OptionError(name, "", "is empty: leave it out, or give a value")
        if bool in kinds:
            read = {"true": True, "false": False}.get(value, [])  # pydantic takes yes, on and 1 too
        elif value == "null" and type(None) in kinds:
            read = None
        elif Path in kinds:
            read = os.path.expanduser(path_of(value))
    try:
        read = _adapter(hint).validate_python(read)
    except ValueError:
        raise OptionError(name, value, _allowed(hint, value)) from None
    if isinstance(read, Path) and MUST_EXIST in beside and not read.exists():
        raise OptionError(name, value, MUST_EXIST)
    if isinstance(read, Path) and A_FOLDER in beside and not read.is_dir():
        raise OptionError(name, value, A_FOLDER)
    return read


def _parts(hint: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """The types that are allowed, and what stands beside them: ranges, or words in place of all."""
    if get_origin(hint) in (Union, UnionType):
        parts = [_parts(kind) for kind in get_args(hint)]
        return tuple(kind for kinds, _ in parts for kind in kinds), [one for _, beside in parts for one in beside]
    if get_origin(hint) is Annotated:
        kinds, beside = _parts(get_args(hint)[0])
        return kinds, [*beside, *get_args(hint)[1:]]
    return (hint,), []


def _allowed(hint: Any, value: Any) -> str:
    kinds, beside = _parts(hint)
    if words := next((field.description for field in beside if getattr(field, "description", None)), None):
        return f"must be {words}"
    if get_origin(kinds[0]) is Literal or kinds[0] is bool:
        names = ["true", "false"] if kinds[0] is bool else list(map(str, get_args(kinds[0])))
        return f"allowed: {', '.join(names)}{nearest(str(value), names)}"
    if isinstance(value, str) and get_origin(kinds[-1]) in (Sequence, tuple):
        return f'must be a list: ["{value}"]'
    signs = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    limits = [limit for field in beside for limit in getattr(field, "metadata", ())]
    found = {sign: getattr(limit, sign) for limit in limits for sign in signs if hasattr(limit, sign)}
    between = " of " + " and ".join(f"{signs[sign]} {limit}" for sign, limit in found.items()) if found else ""
    if found.keys() == {"ge", "le"}:
        between = f" from {found['ge']} to {found['le']}"
    return f"must be {_in_words(kinds)}{between}"


def _in_words(kinds: Sequence[Any]) -> str:
    """ "a Run, a str or a list, each item a str" """
    usual = {int: "a whole number", float: "a number"}
    names = [
        f"a list, each item {_in_words(_parts(get_args(kind)[0])[0])}"
        if get_origin(kind) in (Sequence, list)
        else usual.get(kind) or f"a {getattr(kind, '__name__', kind)}"
        for kind in kinds
        if kind is not type(None) and get_origin(kind) is not tuple  # beside a list
    ]
    return " or ".join([", ".join(names[:-1]), names[-1]][len(names) == 1 :])


def nearest(word: str, names: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing."""
    close = difflib.get_close_matches(word, list(names), 2, 0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def address_of(text: str) -> str:
    """An IP address as given to an option: ``[::1]``, as in a URL, is ``::1``."""
    return text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text


def path_of(text: str) -> str:
    """A path as given to an option: with or without the quotes that the options of a run need around a space."""
    quoted = len(text) > 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted and not os.path.exists(text) else text


def refuse_no_path(option: str, value: str | Path) -> None:
    """Raises `OptionError` for what no system takes for a path, whatever is there."""
    try:
        os.lstat(value)
    except ValueError:
        raise OptionError(
            option, str(value).replace("\0", "\\0"), "must be a path: it holds the character NUL"
        ) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            words = "must be a path: it, or a name in it, is longer than this system allows"
            raise OptionError(option, value, words) from None


def check_place(option: str, value: str) -> None:
    """Raises `OptionError` where no folder can be made or written, or none is named."""
    if not value.strip():
        raise OptionError(option, value, "is empty; it must be a folder's name")
    if "${" not in value:
        refuse_no_path(option, value)
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
