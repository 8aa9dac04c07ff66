"""The flags of a run: the project's own, and those that are passed to Hydra."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv.common.command_line import nearest
from fedpriv.common.errors import OptionError
from fedpriv.common.places import CONFIG_DIR
from fedpriv.config.own_options import GROUPS

YES: dict[str, Any] = {"action": "store_true"}
CFG, INFO = ("job", "hydra", "all"), ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")

#: `fedpriv` itself takes the first two, with every command.
FLAGS: dict[tuple[str, ...], dict[str, Any]] = {
    ("-q", "--quiet"): YES | {"help": "no progress: errors, and the last line of the result"},
    ("-v", "--verbose"): YES
    | {"help": "a log line for every event, also of level debug, on stderr; errors with a traceback"},
    ("-m", "--multirun"): YES | {"help": "a sweep: option=a,b gives one run for each combination"},
    ("-c", "--cfg"): {"nargs": "?", "const": "", "choices": CFG, "help": "show the composed options, run nothing"},
    ("--resolve",): YES | {"help": "with --cfg: references resolved"},
    ("-i", "--info"): {
        "nargs": "?",
        "const": "",
        "choices": INFO,
        "help": "what Hydra composed and from where",
    },
    ("--config-dir",): {
        "metavar": "FOLDER",
        "help": "your experiment/NAME.yaml and strategy/NAME.yaml (default: conf in the working directory)",
    },
    ("-sc", "--shell-completion"): {
        "nargs": "?",
        "const": "",
        "choices": ("install=bash", "install=zsh", "query=bash"),
        "help": 'eval "$(fedpriv -sc install=bash)" completes commands and options; also install=zsh',
    },
    ("-h", "--help"): YES | {"help": "after a command: its options"},
    ("--version",): YES,
}
NAMES = tuple(name for names in FLAGS for name in names)


def parser(before: str = "", after: str = "") -> argparse.ArgumentParser:
    """before, after: what its help says around the flags."""
    layout = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, description=before, epilog=after, formatter_class=layout,
        add_help=False, allow_abbrev=False, exit_on_error=False,
    )  # fmt: skip
    group = made.add_argument_group("flags")
    for names, how in FLAGS.items():
        group.add_argument(*names, **how)
    return made


def flags_and_overrides(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """(flags, the rest of a call). Raises `OptionError` for a flag or a value that there is not."""
    try:
        flags, rest = parser().parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise OptionError(error.argument_name or "", "", error.message) from None
    if unknown := next((word for word in rest if word.startswith("-")), None):
        name, _, value = unknown.partition("=")
        words = f"there is no such flag; allowed: {', '.join(NAMES)}{nearest(name, NAMES)}"
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
    own = Path(folder).absolute()
    if not any((own / group).is_dir() for group in GROUPS):
        allowed = " or ".join(f"{group}/NAME.yaml" for group in GROUPS)
        raise OptionError("--config-dir", folder, f"allowed: a folder that holds {allowed}")
    os.environ[CONFIG_DIR] = str(own)
    name = "--config-dir"
    kept = [word for n, word in enumerate(arguments) if word != folder or arguments[n - 1] != name]
    return [word for word in kept if word.partition("=")[0] != name]
