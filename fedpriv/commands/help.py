"""`fedpriv help METHOD`: the options of one method, with ranges, defaults, meaning and the paper's letters.
`fedpriv help dataset`, `local`, `local.lr`: a group, a section, an option.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from fedpriv.commands.options_help import (
    GROUPS,
    Row,
    all_method_options,
    describe_options,
    options_class,
    rows_of,
    shown,
    usage,
)
from fedpriv.commands.table import COMMANDS, call
from fedpriv.common.command_line import DONE
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.config.options import MethodOptions
from fedpriv.config.own_options import choices, group_file
from fedpriv.config.spelling import meant
from fedpriv.config.symbols import COMMON, SYMBOLS


def main(arguments: Sequence[str]) -> int:
    """`fedpriv help [METHOD | COMMAND | OPTION]`. Raises `OptionError` for a word that is none of them."""
    words = [word for word in arguments if word not in ("-h", "--help", "help")]
    if not words:
        say(f"{usage()}\n\nfedpriv help METHOD tells the options of one method, fedpriv help dataset those of a group,")
        say("fedpriv help local.lr what one option is, fedpriv --help all options.")
        say(_wrapped(f"methods: {', '.join(choices('strategy'))}", _columns(), "  "))
        return DONE
    if words[0] in COMMANDS:
        return call(words[0], [*words[1:], "--help"])
    name, methods = words[0].removeprefix("strategy="), choices("strategy")
    if name == words[0] and len(words) == 1 and (found := option_help(name.partition("=")[0], _columns())):
        say(found)
        return DONE
    if name not in methods or len(words) > 1:
        wrong = words[1] if len(words) > 1 else name
        options = [row[0] for row in (*describe_options(), *all_method_options())]
        close = " or ".join(meant(wrong, options) or get_close_matches(wrong, [*methods, *COMMANDS], 2))
        hint = f"; did you mean {close}?" if close else "."
        known = f"methods: {', '.join(methods)}; commands: {', '.join(COMMANDS)}; or an option, as local.lr"
        said = f"there is no such method, command or option{hint} Allowed: one of the {known}"
        raise OptionError("help", wrong, said)
    schema = METHODS.get(name) or options_class(name)
    say(method_help(name, schema, _columns()))
    return DONE


def _columns() -> int:
    """Of the terminal ($COLUMNS); 80 where there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def option_help(name: str, columns: int = 80) -> str:
    """What an option, or each option of a section or group, is, with ranges and defaults; ``""`` where nothing is
    called so.
    """
    rows = [*describe_options(), *all_method_options()]
    rows = [row for row in rows if row[0] == name or row[0].startswith(f"{name}.")]
    lines = [_wrapped(f"{name}={'|'.join(choices(name))}", columns, "    ")] if name in GROUPS else []
    values: dict[str, Any] = compose([]).to_dict()
    for row in rows:
        try:
            lines += _option(row, _value(values, row[0]), COMMON.get(row[0]), columns)
        except KeyError:  # of another choice of the group
            lines += _option(row, None, COMMON.get(row[0]), columns)
    return "\n".join(lines)


def method_help(name: str, schema: type[MethodOptions], columns: int = 80) -> str:
    """schema: the method's options."""
    config = compose([f"strategy={name}"])
    values: dict[str, Any] = config.to_dict()
    symbols = {**COMMON, **SYMBOLS.get(name, {})}
    lines = [_wrapped(f"{name}: {summary_of(name)}", columns, "")]
    rows = rows_of(schema)
    for half in ("client", "server"):
        own = [row for row in rows if row[0].startswith(f"strategy.{half}.")]
        lines += ["", f"strategy.{half}.*{'' if own else ': none'}"]
        for row in own:
            short = row[0].removeprefix("strategy.")
            lines += _option(row, values["strategy"][half].get(row[0].rpartition(".")[2]), symbols.get(short), columns)
    known = {row[0]: row for row in describe_options()}
    lines += ["", _wrapped("of the options that all methods share, those with a letter in the paper", columns, "")]
    for option in (option for option in symbols if not option.startswith(("client.", "server."))):
        lines += _option(known[option], _value(values, option), symbols[option], columns)
    words = (
        f"Notes on it: docs/methods.md; its code: clients/{name}.py, strategies/{name}.py. All options: fedpriv --help."
    )
    lines += ["", _wrapped(words, columns, "")]
    return "\n".join(lines)


def summary_of(name: str) -> str:
    """The first remark of the method's YAML file."""
    lines = group_file("strategy", name).read_text(encoding="utf-8").splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith("# ") and "@package" not in line), None)
    if first is None:
        return "a method of one's own"
    end = next((n for n in range(first, len(lines)) if not lines[n].startswith("# ")), len(lines))
    return " ".join(line[2:].strip() for line in lines[first:end])


def _value(values: Mapping[str, Any], option: str) -> Any:
    for part in option.split("."):
        values = values[part]
    return values


def _option(row: Row, value: Any, symbol: str | None, columns: int) -> list[str]:
    """``option=default``, its range and letter; what it means, below."""
    option, kind, words = row
    facts = [kind] if kind != "Any" else []
    facts += [f"the paper's {symbol}"] if symbol else []
    head = f"  {option}={shown(value)}"
    beside = f"  ({'; '.join(facts)})" if facts else ""
    if len(head) + len(beside) <= columns:
        lines = [head + beside]
    else:
        lines = [head, _wrapped(beside.strip(), columns, "      ", "      ")]
    return [*lines, _wrapped(words, columns, "      ", "      ")]


def _wrapped(text: str, columns: int, indent: str, first: str = "") -> str:
    return textwrap.fill(
        text, columns, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
