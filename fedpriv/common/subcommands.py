"""The subcommands of `fedpriv`: one line each. What they do is imported only when one is called."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.common.command_line import DONE, importing
from fedpriv.common.errors import OptionError


@dataclass(frozen=True)
class Subcommand:
    """call: ``module:function`` of the arguments that follow. usage, words: its line in the help. options: what shell
    completion offers after it, besides files; `RUN_OPTIONS` stands for every option of a run.

    own_help: it answers ``--help`` itself. Otherwise its module's docstring is the answer, and nothing is imported.
    """

    call: str
    usage: str
    words: str
    options: str = ""
    own_help: bool = False

    def work(self) -> Callable[[Sequence[str]], int]:
        module, _, function = self.call.partition(":")
        with importing():
            found: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
        return found

    def help(self) -> str:
        """The docstring of its module, read without importing it."""
        spec = importlib.util.find_spec(self.call.partition(":")[0])
        assert spec is not None and spec.origin is not None
        return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


RUN_OPTIONS = "*"
_STUDY = "data= download= workers= out="

SUBCOMMANDS: dict[str, Subcommand] = {
    "run": Subcommand("fedpriv.cli:main", "[option=value ...]", "one run (`run` may be left out)", RUN_OPTIONS, True),
    "plan": Subcommand("fedpriv.cli:plan", "[option=value ...]", "what a run would cost; trains nothing", "*", True),
    "audit": Subcommand(
        "fedpriv.audit:main",
        "run=DIR | option=value ...",
        "attack the code that releases something",
        "* run= trials= confidence= level= participations= audit_seed=",
    ),
    "attack": Subcommand(
        "fedpriv.attack:main",
        "run=DIR",
        "membership inference against a run",
        "run= attack= members= known_share= shadows= control_models= control_examples= control_epochs= workers= seed=",
    ),
    "report": Subcommand(
        "fedpriv.report.__main__:main", "DIR...", "write a run's report and say where it is", "", True
    ),
    "compare": Subcommand("fedpriv.report.__main__:compare_runs", "DIR DIR...", "compare several runs", "--out", True),
    "predict": Subcommand("fedpriv.predict:main", "run=DIR PICTURE...", "classify pictures with a run's model", "run="),
    "new": Subcommand("fedpriv.new:main", "NAME", "the files of a method of one's own, to be changed", "folder="),
    "reproduce": Subcommand(
        "fedpriv.reproduce:main", "paper=NAME", "a paper's experiments", f"paper= scale= seeds= plan= run= {_STUDY}"
    ),
    "leaderboard": Subcommand(
        "fedpriv.leaderboard:main", "[board=NAME]", "all methods at equal verified epsilon", f"board= {_STUDY}"
    ),
    "dme": Subcommand(
        "fedpriv.dme:main",
        "[n=10 ...]",
        "mean estimation by every quantiser",
        "n= dimension= epsilon= bits= group_size= private_share= radius= inputs= trials= seed= figure= out=",
    ),
    "papers": Subcommand("fedpriv.papers:command", "", "where each equation is in the code"),
    "deploy": Subcommand(
        "fedpriv.common.subcommands:deploy",
        "credentials|superlink|node",
        "on real machines (docs/deploy.md)",
        "credentials superlink node",
        True,
    ),
    "help": Subcommand(
        "fedpriv.cli:help_on", "[METHOD|COMMAND]", "options of one method; how a command is used", "", True
    ),
}

#: Of `fedpriv deploy`.
DEPLOYMENT: dict[str, Subcommand] = {
    "credentials": Subcommand(
        "fedpriv.credentials:main", "[server] FOLDER", "certificates and keys of a deployment", "host= nodes= days="
    ),
    "superlink": Subcommand(
        "fedpriv.superlink:main",
        "credentials=DIR",
        "the server",
        "credentials= host= port= control= database= max_message= max_messages= max_connections=",
    ),
    "node": Subcommand(
        "fedpriv.node:main",
        "policy|bundle|init|declare|status|run",
        "a client's machine",
        "policy bundle init declare status run policy= data= classes= size= channels= superlink= credentials= client= "
        "port= metrics_port= metrics_address=",
    ),
}


def call(name: str, arguments: Sequence[str], table: dict[str, Subcommand] = SUBCOMMANDS) -> int:
    """Runs a subcommand and returns its exit code."""
    command = table[name]
    if not command.own_help and {"-h", "--help"} & set(arguments):
        print(command.help())
        return DONE
    return command.work()(arguments)


def deploy(arguments: Sequence[str]) -> int:
    """`fedpriv deploy NAME ...`. Raises `OptionError`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: fedpriv deploy {'|'.join(DEPLOYMENT)} ...\n\n{listed(DEPLOYMENT, 'fedpriv deploy ')}")
        print("\n`fedpriv deploy NAME --help` tells the options of each; docs/deploy.md goes step by step.")
        return DONE
    if arguments[0] not in DEPLOYMENT:
        raise OptionError(
            "deploy", arguments[0], f"allowed: {', '.join(DEPLOYMENT)}{nearest(arguments[0], DEPLOYMENT)}"
        )
    return call(arguments[0], arguments[1:], DEPLOYMENT)


def listed(table: dict[str, Subcommand], before: str) -> str:
    """One line for each subcommand of a table."""
    left = {name: f"{before}{name} {command.usage}".rstrip() for name, command in table.items()}
    width = max(map(len, left.values()))
    return "\n".join(f"  {left[name]:<{width}}  {command.words}" for name, command in table.items())


def nearest(word: str, names: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing."""
    close = difflib.get_close_matches(word, list(names), 2, 0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def unknown(word: str, choices: dict[str, Sequence[str]]) -> OptionError:
    """The answer to a first word that is no subcommand. choices: group -> names that an option may have."""
    for group, names in choices.items():
        if word in names:
            return OptionError(word, "", f"there is no such command; did you mean {group}={word}?")
    if os.path.isdir(word):
        words = f"a folder is no command; did you mean fedpriv report {word}, or fedpriv resume={word}?"
        return OptionError(word, "", words)
    hint = nearest(word, SUBCOMMANDS) or "."
    return OptionError(word, "", f"there is no such command{hint} Commands: {', '.join(SUBCOMMANDS)}, or option=value")
