"""The flags of a run: the project's own, and those that are passed to Hydra."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.common.errors import OptionError
from fedpriv.common.subcommands import nearest

#: Flags of a run; those with a value are Hydra's own. `fedpriv` itself takes -q and -v.
FLAGS = ("-m", "--multirun", "-h", "--help", "--version", "--cfg", "--resolve", "--info", "-sc")
VALUES = {
    "--cfg": ("job", "hydra", "all"),
    "--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
    "-sc": ("install=bash", "install=zsh", "query=bash"),
}
#: Hydra's other spellings.
SPELLINGS = {"-c": "--cfg", "-i": "--info", "--shell-completion": "-sc"}


def flags_and_overrides(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """(flag -> its value or "", the rest of a call). Raises `OptionError` for a flag or a value that there is not."""
    flags: dict[str, str] = {}
    overrides: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        name, equals, value = word.partition("=")
        flag = SPELLINGS.get(name, name)
        if flag not in FLAGS or (equals and flag not in VALUES):
            allowed = ", ".join(FLAGS)
            raise OptionError(name, value, f"there is no such flag; allowed: {allowed}{nearest(name, FLAGS)}")
        if flag in VALUES:
            given = value if equals else waiting.pop(0) if waiting else ""
            if given not in VALUES[flag]:
                raise OptionError(name, given, f"allowed: {', '.join(VALUES[flag])}")
            value = given
        flags[flag] = value
    if "--resolve" in flags and "--cfg" not in flags:
        raise OptionError("--resolve", "", "belongs to --cfg: fedpriv --cfg job --resolve")
    return flags, overrides
