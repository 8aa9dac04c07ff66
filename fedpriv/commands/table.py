"""The commands of `fedpriv`: one line each. What they do is imported only when one is called."""

from __future__ import annotations

import ast
import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.common.command_line import DONE, importing, nearest
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Command:
    """usage, words: its line in the help. call: ``module:function`` of the arguments that follow.

    call="": the function `main` of the file of its name, whose docstring is its help, read without an import.
    run_options: it also takes the options of a run.
    """

    usage: str
    words: str
    call: str = ""
    run_options: bool = False

    def work(self, name: str) -> Callable[[Sequence[str]], int]:
        module, _, function = (self.call or f"{__package__}.{name}:main").partition(":")
        with importing():
            found: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
        return found

    def help(self, name: str) -> str:
        """Empty where the command itself answers ``--help``."""
        text = "" if self.call else (HERE / f"{name}.py").read_text(encoding="utf-8")
        return ast.get_docstring(ast.parse(text)) or ""

    def offers(self, name: str) -> list[str]:
        """What may follow it, for shell completion: the words that its usage gives to choose from, and every
        ``option=`` of its help.
        """
        words = self.usage.split("|") if re.fullmatch(r"[a-z]+(\|[a-z]+)+", self.usage) else []
        return [*words, *dict.fromkeys(re.findall(r"(?<![\w.])[a-z_]+=", self.help(name)))]


COMMANDS: dict[str, Command] = {
    "run": Command("[option=value ...]", "one run (`run` may be left out)", "fedpriv.commands.runs:main", True),
    "plan": Command(
        "[option=value ...]", "what a run would cost; trains nothing", "fedpriv.commands.runs:plan_main", True
    ),
    "ask": Command(
        "QUESTION... [option=value ...]", "statistics of the rows at sites (docs/statistics.md)", run_options=True
    ),
    "audit": Command("run=DIR | option=value ...", "attack the code that releases something", run_options=True),
    "check": Command("TARGET [option=value ...]", "the three epsilons of other people's code (docs/check.md)"),
    "attack": Command("run=DIR", "membership inference against a run"),
    "report": Command("DIR...", "write a run's report and say where it is", "fedpriv.report.__main__:main"),
    "compare": Command("DIR DIR...", "compare several runs", "fedpriv.report.__main__:compare_runs"),
    "certificate": Command("RUN | DATA policy=FILE ...", "a signed proof that others can check (docs/certificates.md)"),
    "predict": Command("run=DIR FILE...", "what a run's model says of pictures, or of a table's rows"),
    "schema": Command(
        "FILE | check FILE schema_file=FILE | fill FILE ask=DIR", "draft or try a table's schema (docs/tables.md)"
    ),
    "new": Command("NAME", "the files of a method of one's own, to be changed"),
    "reproduce": Command("paper=NAME", "a paper's experiments"),
    "leaderboard": Command("[board=NAME]", "all methods at equal verified epsilon"),
    "dme": Command("[n=10 ...]", "mean estimation by every quantiser"),
    "papers": Command("", "where each equation is in the code"),
    "deploy": Command(
        "credentials|superlink|node", "on real machines (docs/deploy.md)", "fedpriv.commands.table:deploy"
    ),
    "help": Command("[METHOD|COMMAND]", "options of one method; how a command is used", "fedpriv.commands.help:main"),
}

#: Of `fedpriv deploy`.
DEPLOYMENT: dict[str, Command] = {
    "credentials": Command("[server] FOLDER", "certificates and keys of a deployment"),
    "superlink": Command("credentials=DIR", "the server"),
    "node": Command("policy|bundle|init|declare|status|run", "a client's machine"),
}


def call(name: str, arguments: Sequence[str], table: dict[str, Command] = COMMANDS) -> int:
    """Runs a command and returns its exit code."""
    command = table[name]
    if {"-h", "--help"} & set(arguments) and (told := command.help(name)):
        say(told)
        return DONE
    return command.work(name)(arguments)


def deploy(arguments: Sequence[str]) -> int:
    """`fedpriv deploy NAME ...`. Raises `OptionError`."""
    if not arguments or arguments[0] in ("-h", "--help"):
        say(f"usage: fedpriv deploy {'|'.join(DEPLOYMENT)} ...\n\n{listed(DEPLOYMENT, 'fedpriv deploy ')}")
        say("\n`fedpriv deploy NAME --help` tells the options of each; docs/deploy.md goes step by step.")
        return DONE
    if arguments[0] not in DEPLOYMENT:
        words = f"allowed: {', '.join(DEPLOYMENT)}{nearest(arguments[0], DEPLOYMENT)}"
        raise OptionError("deploy", arguments[0], words)
    return call(arguments[0], arguments[1:], DEPLOYMENT)


def listed(table: dict[str, Command], before: str) -> str:
    """One line for each command of a table."""
    left = {name: f"{before}{name} {command.usage}".rstrip() for name, command in table.items()}
    width = max(map(len, left.values()))
    return "\n".join(f"  {left[name]:<{width}}  {command.words}" for name, command in table.items())


def unknown(word: str, choices: dict[str, Sequence[str]]) -> OptionError:
    """The answer to a first word that is no command. choices: group -> names that an option may have."""
    for group, names in choices.items():
        if word in names:
            return OptionError(word, "", f"there is no such command; did you mean {group}={word}?")
    if os.path.isdir(word):
        words = f"a folder is no command; did you mean fedpriv report {word}, or fedpriv resume={word}?"
        return OptionError(word, "", words)
    hint = nearest(word, COMMANDS) or "."
    return OptionError(word, "", f"there is no such command{hint} Commands: {', '.join(COMMANDS)}, or option=value")
