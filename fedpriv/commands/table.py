"""The commands of `fedpriv`: one line each. What they do is imported only when one is called."""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.common.command_line import DONE, importing, nearest
from fedpriv.common.errors import OptionError
from fedpriv.common.places import CONFIG_DIR
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
    "export": Command("run=RUN_FOLDER out=FILE.pt2|FILE.onnx", "a run's model for other programs"),
    "features": Command("FILE", "what a file of public weights holds (docs/public_weights.md)"),
    "leaf": Command("FOLDER out=SET", "a data set of LEAF, with its users (docs/your_data.md)"),
    "new": Command("NAME", "the files of a method of one's own, to be changed"),
    "reproduce": Command("paper=NAME", "a paper's experiments"),
    "leaderboard": Command("[board=NAME]", "all methods at equal verified epsilon"),
    "explain-epsilon": Command(
        "EPSILON rounds=N ...",
        "which reading of a setting gives a printed epsilon",
        "fedpriv.commands.explain_epsilon:main",
    ),
    "dme": Command("[n=10 ...]", "mean estimation by every quantiser"),
    "papers": Command("", "where each equation is in the code"),
    "deploy": Command(
        "credentials|superlink|node|doctor", "on real machines (docs/deploy.md)", "fedpriv.commands.table:deploy"
    ),
    "help": Command("[METHOD|COMMAND]", "options of one method; how a command is used", "fedpriv.commands.help:main"),
}

#: Of `fedpriv deploy`.
DEPLOYMENT: dict[str, Command] = {
    "credentials": Command("[server] FOLDER", "certificates and keys of a deployment"),
    "superlink": Command("credentials=DIR", "the server"),
    "node": Command("policy|bundle|init|declare|status|run", "a client's machine"),
    "doctor": Command("server|node", "what would stop a server or a node, before it does"),
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


#: What other programs call some of the commands.
MEANT = {"train": "run", "simulate": "run", "evaluate": "report", "infer": "predict"}


def unknown(word: str, choices: dict[str, Sequence[str]]) -> OptionError:
    """The answer to a first word that is no command. choices: group -> names that an option may have."""
    for group, names in choices.items():
        if word in names:
            return OptionError(word, "", f"there is no such command; did you mean {group}={word}?")
    if os.path.isdir(word):
        words = f"a folder is no command; did you mean fedpriv report {word}, or fedpriv resume={word}?"
        return OptionError(word, "", words)
    hint = re.sub("|".join(MEANT), lambda found: MEANT[found[0]], nearest(word, [*COMMANDS, *MEANT])) or "."
    return OptionError(word, "", f"there is no such command{hint} Commands: {', '.join(COMMANDS)}, or option=value")


# --- flags ---

#: Names, what may follow (None: nothing, a word: anything of that kind) and what each does. `fedpriv` itself takes the
#: first two, with every command.
FLAGS: tuple[tuple[str, str | tuple[str, ...] | None, str | None], ...] = (
    ("-q --quiet", None, "no progress: errors, and the last line of the result"),
    ("-v --verbose", None, "a log line for every event, also of level debug, on stderr; errors with a traceback"),
    ("-m --multirun", None, "a sweep: option=a,b gives one run for each combination"),
    ("-c --cfg", ("job", "hydra", "all"), "show the composed options, run nothing"),
    ("--resolve", None, "with --cfg: references resolved"),
    (
        "-i --info",
        ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
        "what Hydra composed and from where",
    ),
    (
        "--config-dir",
        "FOLDER",
        "your experiment/NAME.yaml and strategy/NAME.yaml (default: conf in the working directory)",
    ),
    (
        "-sc --shell-completion",
        ("install=bash", "install=zsh", "query=bash"),
        'eval "$(fedpriv -sc install=bash)" completes commands and options; also install=zsh',
    ),
    ("-h --help", None, "after a command: its options"),
    ("--version", None, None),
)
FLAG_NAMES = tuple(name for names, *_ in FLAGS for name in names.split())


def flag_parser(before: str = "", after: str = "") -> argparse.ArgumentParser:
    """before, after: what its help says around the flags."""
    layout = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, description=before, epilog=after, formatter_class=layout,
        add_help=False, allow_abbrev=False, exit_on_error=False,
    )  # fmt: skip
    group = made.add_argument_group("flags")
    for names, takes, words in FLAGS:
        how: dict[str, Any] = {"metavar": takes} if takes else {"action": "store_true"}
        if isinstance(takes, tuple):
            how = {"nargs": "?", "const": "", "choices": takes}
        group.add_argument(*names.split(), help=words, **how)
    return made


def flags_and_overrides(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(flags, the rest of a call). Raises `OptionError` for a flag or a value that there is not."""
    try:
        flags, rest = flag_parser().parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise OptionError(error.argument_name or "", "", error.message) from None
    if unknown := next((word for word in rest if word.startswith("-")), None):
        name, _, value = unknown.partition("=")
        words = f"there is no such flag; allowed: {', '.join(FLAG_NAMES)}{nearest(name, FLAG_NAMES)}"
        raise OptionError(name, value, words)
    if flags.resolve and not flags.cfg:
        raise OptionError("--resolve", "", "belongs to --cfg: fedpriv --cfg job --resolve")
    return flags, rest


def with_config_dir(folder: str | None, arguments: Sequence[str]) -> list[str]:
    """The arguments without the flag, whose folder, where there is one, counts from now on. Raises `OptionError` where
    it holds nothing that counts.
    """
    if folder is None:
        return list(arguments)
    from fedpriv.config.own_options import GROUPS  # with the options' schema: not needed for the help of a command

    own = Path(folder).absolute()
    if not any((own / group).is_dir() for group in GROUPS):
        allowed = " or ".join(f"{group}/NAME.yaml" for group in GROUPS)
        raise OptionError("--config-dir", folder, f"allowed: a folder that holds {allowed}")
    os.environ[CONFIG_DIR] = str(own)
    name = "--config-dir"
    kept = [word for n, word in enumerate(arguments) if word != folder or arguments[n - 1] != name]
    return [word for word in kept if word.partition("=")[0] != name]
