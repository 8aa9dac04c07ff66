"""Shell completion: commands, their options, and those of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from fedpriv.commands.flags import NAMES
from fedpriv.commands.options_help import FOLDERS, describe_options
from fedpriv.commands.table import COMMANDS, DEPLOYMENT
from fedpriv.common.command_line import DONE
from fedpriv.common.printing import say
from fedpriv.config.compose import REMOTE_GROUPS, option_names
from fedpriv.config.own_options import choices, is_group

#: bash divides the words of a line at = too: what the line has already is cut off the answers. zsh has bash's way.
SCRIPT = """\
_fedpriv() {
    local line="${COMP_LINE:0:COMP_POINT}" word IFS=$'\\n'
    word="${line##* }"
    COMPREPLY=($(COMP_LINE="$line" "${COMP_WORDS[0]/#\\~/$HOME}" -sc query=bash 2>/dev/null))
    if [[ "$COMP_WORDBREAKS" == *=* && "$word" == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*=}"}"}")
    fi
    if [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" == *[=./] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _fedpriv fedpriv"""
ZSH = "autoload -Uz bashcompinit && bashcompinit\n"

#: Options whose value is a path, beside those whose words say folder or file.
PATHS = ("run", "data", "out", "results", "policy", "credentials", "folder", "resume", "rerun", "hydra.run.dir")


def complete(what: str) -> int:
    """``install=SHELL`` prints the shell's part, ``query=bash`` the answers to $COMP_LINE, one a line."""
    if what.startswith("install="):
        say(f"{ZSH if what.endswith('zsh') else ''}{SCRIPT}")
        return DONE
    say("\n".join(answers(os.environ.get("COMP_LINE", ""))))
    return DONE


def answers(line: str) -> list[str]:
    """What may stand in place of the last word of a line, which is empty after a space."""
    words = line.split()[1:]
    word = words.pop() if words and not line.endswith(" ") else ""
    if word.startswith("-"):
        return _fitting(NAMES, word)
    names = [given for given in words if not given.startswith("-")]
    table = COMMANDS
    if names[:1] == ["deploy"] and names[1:2] and names[1] in DEPLOYMENT:
        table, names = DEPLOYMENT, names[1:]
    if not names or names[0] not in table:
        return sorted({*_fitting(COMMANDS if not names else (), word), *_of_a_run(names, word)})
    name, command = names[0], table[names[0]]
    if name == "help":
        return _fitting([*choices("strategy"), *(name for name in COMMANDS if name != "help")], word)
    key, equals, value = word.partition("=")
    own = command.offers(name)
    found = _paths(key, value) if equals and f"{key}=" in own and key in PATHS else _fitting(own, word)
    return sorted({*found, *(_of_a_run(names[1:], word) if command.run_options else ())})


def _of_a_run(words: list[str], word: str) -> list[str]:
    """Groups, their choices, options one level at a time, and the allowed values of an option."""
    key, equals, value = word.partition("=")
    if not equals:
        rows = [option for option, *_ in FOLDERS]
        names = [name for name in (*option_names(words, ""), *rows) if name.startswith(word) and name != "run_dir"]
        ends = (name.find(".", len(word)) + 1 for name in names)
        levels = [name[:end] if end else f"{name}=" for name, end in zip(names, ends, strict=True)]
        return [*levels, *_fitting([f"{group}=" for group in REMOTE_GROUPS], word)]
    if is_group(key):
        before = value.rpartition(",")[0]  # of a sweep
        return _fitting([f"{key}={before},{choice}" if before else f"{key}={choice}" for choice in choices(key)], word)
    kinds = {option: (kind, text) for option, kind, text in (*describe_options(), *FOLDERS)}
    kind, text = kinds.get(key, ("", ""))
    if key in PATHS or re.search(r"\bfolder\b|\bfile\b", text):
        return _paths(key, value)
    values = ["true", "false"] if kind == "bool" else kind.split("|")
    plain = all(re.fullmatch(r"[a-z0-9_+-]+", one) for one in values) and len(values) > 1
    known = plain and values[0] not in ("int", "float", "str", "list")
    return _fitting([f"{key}={one}" for one in values], word) if known else []


def _fitting(offered: Iterable[str], word: str) -> list[str]:
    return [name for name in offered if name.startswith(word)]


def _paths(option: str, value: str) -> list[str]:
    folder, _, start = value.rpartition("/")
    place = Path(folder or ("/" if value.startswith("/") else ".")).expanduser()
    try:
        found = sorted(place.iterdir())
    except OSError:
        return []
    head = f"{option}={folder}/" if "/" in value else f"{option}="
    shown = [path for path in found if path.name.startswith(start) and (start or not path.name.startswith("."))]
    return [f"{head}{path.name}{'/' if path.is_dir() else ''}" for path in shown]
