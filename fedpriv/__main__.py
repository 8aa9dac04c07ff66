"""The command `fedpriv`, which is `python -m fedpriv` too: `-q`, `-v`, and which command is called."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from fedpriv.commands.table import COMMANDS, call, unknown
from fedpriv.common import systems
from fedpriv.common.command_line import BROKEN_PIPE, guarded
from fedpriv.common.errors import OptionError
from fedpriv.common.places import use_own_methods
from fedpriv.common.systems import cores
from fedpriv.common.verbosity import Verbosity, speaking

_VERBOSITY: dict[str, Verbosity] = {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}


#: Code that a folder of somebody else's names and that the user has read (`fedpriv.config.owner`).
TRUST = "trust_code="


def main(arguments: Sequence[str]) -> int:
    """Runs one call and returns its exit code. Without a command it is `run`."""
    given = list(arguments)
    chosen = [argument for argument in given if argument in _VERBOSITY]
    trusted = [argument for argument in given if argument.startswith(TRUST)]
    given = [argument for argument in given if argument not in (*_VERBOSITY, *trusted)]
    verbosity = _VERBOSITY[chosen[-1]] if chosen else "normal"
    with speaking(verbosity):
        return guarded(lambda: _dispatch(given, [argument.removeprefix(TRUST) for argument in trusted]))


def _dispatch(given: list[str], trusted: list[str]) -> int:
    place = next((n for n, word in enumerate(given) if word not in ("-m", "--multirun")), len(given))
    word = given[place] if place < len(given) else ""
    if word in COMMANDS:
        name, rest = word, [*given[:place], *given[place + 1 :]]
    elif word and "=" not in word and word[0] not in "-~+":
        raise _no_such(word)
    else:
        name, rest = "run", given
    if name != "deploy":
        use_own_methods(at_once=name == "check")
    elif systems.fcntl is None:
        raise OptionError("deploy", "", "needs Linux or macOS; on Windows, run it in WSL")
    for said in trusted:
        from fedpriv.config.owner import trust  # the options' schema: not needed for --help

        trust(said)
    return call(name, rest)


def _no_such(word: str) -> OptionError:
    from fedpriv.config.compose import option_names
    from fedpriv.config.own_options import choices

    if word in option_names([], ""):
        return OptionError(word, "", f"is an option and needs a value: {word}=...")
    return unknown(word, {group: choices(group) for group in ("strategy", "experiment", "dataset")})


def console() -> int:
    """The command as it is installed."""
    if "deploy" not in sys.argv[1:3]:
        os.environ.setdefault("PYTHONSAFEPATH", "1")  # no child process looks into the working directory first
    return command()


def command() -> int:
    if os.path.lexists("matplotlibrc"):  # of the working directory, which may be somebody else's folder
        place = os.getcwd()
        os.chdir(os.path.dirname(__file__))
        with suppress(ImportError):
            importlib.import_module("matplotlib")  # which looks for that file once
        os.chdir(place)
    if (number := cores()) < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(number))  # torch and NumPy would start a thread a machine's core
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `fedpriv --help | head`: who read has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


if __name__ == "__main__":
    sys.exit(command())
