"""Shell completion: Hydra's own for the options of a run, and the subcommands with theirs."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fedpriv.common.command_line import DONE
from fedpriv.common.subcommands import DEPLOYMENT, RUN_OPTIONS, SUBCOMMANDS, Subcommand
from fedpriv.config.compose import REMOTE_GROUPS
from fedpriv.config.help import describe_options
from fedpriv.config.own_options import CONF, choices

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
FLAGS = ("-q", "-v", "-m", "--cfg", "--help", "--version")


def complete(what: str) -> int:
    """``install=SHELL`` prints the shell's part, ``query=bash`` the answers to $COMP_LINE, one a line."""
    if what.startswith("install="):
        print(f"{ZSH if what.endswith('zsh') else ''}{SCRIPT}")
        return DONE
    print("\n".join(answers(os.environ.get("COMP_LINE", ""))))
    return DONE


def answers(line: str) -> list[str]:
    """What may stand in place of the last word of a line, which is empty after a space."""
    words = line.split()[1:]
    word = words.pop() if words and not line.endswith(" ") else ""
    names = [given for given in words if not given.startswith("-")]
    if word.startswith("-"):
        return _fitting(FLAGS, word)
    first = names[0] if names else ""
    table, command = SUBCOMMANDS, SUBCOMMANDS.get(first)
    if first == "deploy" and len(names) > 1:
        table, command, names = DEPLOYMENT, DEPLOYMENT.get(names[1]), names[1:]
    offered: Iterable[str] = () if names else SUBCOMMANDS
    if command is None:
        return [] if table is DEPLOYMENT else sorted({*_fitting(offered, word), *_of_a_run(names, word)})
    if first == "help" and len(names) == 1:
        return _fitting([*choices("strategy"), *(name for name in SUBCOMMANDS if name != "help")], word)
    return sorted({*_of_a_command(command, word), *_of_a_run(names[1:], word, RUN_OPTIONS in command.options.split())})


def _of_a_command(command: Subcommand, word: str) -> list[str]:
    key, equals, value = word.partition("=")
    own = [option for option in command.options.split() if option != RUN_OPTIONS]
    if equals and f"{key}=" in own:
        return _paths(f"{key}=", value) if key in PATHS else []
    return _fitting(own, word)


def _of_a_run(words: list[str], word: str, wanted: bool = True) -> list[str]:
    """Groups, their choices and options by Hydra; the allowed values of an option by its schema."""
    if not wanted:
        return []
    key, equals, value = word.partition("=")
    if equals and (CONF / key).is_dir():
        before = value.rpartition(",")[0]  # of a sweep
        start = f"{key}={before}," if before else f"{key}="
        return _fitting([f"{start}{choice}" for choice in choices(key)], word)
    if equals:
        kinds = {option: (kind, text) for option, kind, text in describe_options()}
        kind, text = kinds.get(key, ("", ""))
        if key in PATHS or re.search(r"\bfolder\b|\bfile\b", text):
            return _paths(f"{key}=", value)
        if kind == "bool":
            return _fitting([f"{key}=true", f"{key}=false"], word)
        if re.fullmatch(r"[a-z0-9_+-]+(\|[a-z0-9_+-]+)+", kind) and not kind.startswith(("int|", "float|", "str|")):
            return _fitting([f"{key}={choice}" for choice in kind.split("|")], word)
    return [found for found in map(_choosing, _by_hydra(words, word)) if found]


def _choosing(found: str) -> str:
    """What Hydra offers, with ``=`` after a group that one chooses from; "" for what is not for the command line."""
    name = found.rstrip("=")
    if found.startswith("run_dir") or "_target_" in found or name in ("leaderboard", "reproduction", "hydra"):
        return ""
    return f"{name}=" if name in REMOTE_GROUPS else "" if (CONF / name).is_dir() else found


def _by_hydra(words: list[str], word: str) -> list[str]:
    from hydra import initialize_config_dir
    from hydra._internal.core_plugins.bash_completion import BashCompletion
    from hydra.core.global_hydra import GlobalHydra

    said = io.StringIO()
    before = os.environ.get("COMP_LINE")
    os.environ["COMP_LINE"] = " ".join(["fedpriv", *words, word])
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"), contextlib.redirect_stdout(said):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            BashCompletion(hydra.config_loader).query("config")
    except Exception:  # a line that is not finished may be anything; a shell waits for no error
        return []
    finally:
        os.environ.pop("COMP_LINE")
        if before is not None:
            os.environ["COMP_LINE"] = before
    return said.getvalue().split()


def _fitting(offered: Iterable[str], word: str) -> list[str]:
    return [name for name in offered if name.startswith(word)]


def _paths(before: str, value: str) -> list[str]:
    folder, _, start = value.rpartition("/")
    place = Path(folder or ("/" if value.startswith("/") else ".")).expanduser()
    try:
        found = sorted(place.iterdir())
    except OSError:
        return []
    head = f"{before}{folder}/" if "/" in value else before
    shown = [path for path in found if path.name.startswith(start) and (start or not path.name.startswith("."))]
    return [f"{head}{path.name}{'/' if path.is_dir() else ''}" for path in shown]
