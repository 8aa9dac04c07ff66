"""`fedpriv help METHOD`: the options of one method, with ranges, defaults, meaning and the paper's letters.
`fedpriv help dataset`, `local`, `local.lr`: a group, a section, an option. Also `fedpriv --help`, and shell completion.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedpriv.commands.table import COMMANDS, DEPLOYMENT, FLAG_NAMES, call, flag_parser, listed
from fedpriv.common.command_line import DONE, EXIT_CODES
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say
from fedpriv.config.compose import REMOTE_GROUPS, compose, option_names
from fedpriv.config.data_schema import PartitionConfig
from fedpriv.config.halves import method_options
from fedpriv.config.methods import METHODS
from fedpriv.config.options import MethodOptions, Options
from fedpriv.config.own_options import choices, group_file, is_group
from fedpriv.config.schema import Config
from fedpriv.config.spelling import meant
from fedpriv.config.strategy_options import StrategyConfig, followed, spelled
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
    rows, values = [*describe_options(), *all_method_options()], compose([]).to_dict()
    lines = [_wrapped(f"{name}={'|'.join(choices(name))}", columns, "    ")] if name in GROUPS else []
    for row in (row for row in rows if row[0] == name or row[0].startswith(f"{name}.")):
        lines += _option(row, COMMON.get(row[0]), columns, values)
    return "\n".join(lines)


def method_help(name: str, schema: type[MethodOptions], columns: int = 80) -> str:
    """schema: the method's options."""
    symbols, rows = {**COMMON, **SYMBOLS.get(name, {})}, rows_of(schema)
    lines = [_wrapped(f"{name}: {summary_of(name)}", columns, "")]
    told = partial(_option, columns=columns, values=compose([f"strategy={name}"]).to_dict())
    for half in ("client", "server"):
        of_half = [row for row in rows if row[0].startswith(f"strategy.{half}.")]
        lines += ["", f"strategy.{half}.*{'' if of_half else ': none'}"]
        for row in of_half:
            lines += told(row, symbols.get(row[0].removeprefix("strategy.")))
    shared = {row[0]: row for row in describe_options()}
    lines += ["", _wrapped("of the options that all methods share, those with a letter in the paper", columns, "")]
    for option in (option for option in symbols if not option.startswith(("client.", "server."))):
        lines += told(shared[option], symbols[option])
    words = (
        f"Notes on it: docs/methods.md; its code: clients/{name}.py, strategies/{name}.py. All options: fedpriv --help."
    )
    return "\n".join([*lines, "", _wrapped(words, columns, "")])


def summary_of(name: str) -> str:
    """The first remark of the method's YAML file."""
    lines = group_file("strategy", name).read_text(encoding="utf-8").splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith("# ") and "@package" not in line), None)
    if first is None:
        return "a method of one's own"
    end = next((n for n in range(first, len(lines)) if not lines[n].startswith("# ")), len(lines))
    return " ".join(line[2:].strip() for line in lines[first:end])


def _option(row: Row, symbol: str | None, columns: int, values: Any) -> list[str]:
    """``option=default``, its range and letter; what it means, below."""
    option, kind, words = row
    facts = [kind] * (kind != "Any") + [f"the paper's {symbol}"] * bool(symbol)
    try:
        value = _value(values, option)
    except KeyError:
        value = None
    head, beside = f"  {option}={shown(value)}", f"  ({'; '.join(facts)})" if facts else ""
    if len(head) + len(beside) > columns:
        head, beside = f"{head}\n{_wrapped(beside.strip(), columns, '      ', '      ')}", ""
    return [head + beside, _wrapped(words, columns, "      ", "      ")]


def _wrapped(text: str, columns: int, indent: str, first: str = "") -> str:
    return textwrap.fill(
        text, columns, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


# --- all options ---

Row = tuple[str, str, str]

FORMS = """\
  fedpriv strategy=fedcad num_rounds=10   one run; without options the default job (conf/config.yaml)
  fedpriv -m option=a,b ...               a sweep over all combinations
  fedpriv resume=RUN_FOLDER               go on after a stop (dataset.root=..., engine=ray: where things are now)
  fedpriv rerun=RUN_FOLDER [option=value] repeat a run, with other options where you name some
  fedpriv extend=RUN_FOLDER num_rounds=120   more rounds for a finished run, priced with the old ones
  ... trust_code=PATH@SHA256              code that somebody else's run folder names and that you have read"""


def usage() -> str:
    """Commands, flags and exit codes."""
    codes = "\n".join(f"  {code:<4} {words}" for code, words in EXIT_CODES.items())
    before = (
        "fedpriv: differentially private federated learning whose privacy claims are checked\n\n"
        f"usage: fedpriv [COMMAND] [option=value ...]        (python -m fedpriv is the same)\n{FORMS}\n\n"
        f"commands (COMMAND --help tells their options):\n{listed(COMMANDS, '')}"
    )
    return flag_parser(before, f"exit codes:\n{codes}").format_help().rstrip()


GROUPS = ("strategy", "dataset", "features", "partition", "model", "engine", "experiment", "scale")

FOLDERS = [
    ("hydra.run.dir", "folder", "where a run is written; default outputs/<date>/<time>-<strategy>-<dataset>"),
    ("hydra.sweep.dir", "folder", "where a sweep is written; default multirun/<date>/<time>"),
    ("hydra/launcher", "basic|joblib", "-m: one job after the other, or one per core (hydra.launcher.n_jobs=N)"),
]


def help_text() -> str:
    """Usage, groups with their choices, and every option with its range."""
    lines = [usage(), "", "groups (group=choice, each a file or a section of a file in conf/):"]
    for group in GROUPS:
        lines.append(f"  {group:<12} {', '.join(choices(group))}")
    lines += ["", "options (option=value), with [the default]:"]
    rows = [*with_defaults(describe_options()), *with_defaults(all_method_options()), *FOLDERS]
    names, kinds = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines += [f"  {option:<{names}}  {kind:<{kinds}}  {text}".rstrip() for option, kind, text in rows]
    return "\n".join(lines)


def with_defaults(rows: list[Row]) -> list[Row]:
    """Rows whose description ends with the default of the option, where it is one value."""
    values = compose([]).to_dict()
    return [(option, kind, f"{words}{_default(values, option)}") for option, kind, words in rows]


def _default(values: Any, option: str) -> str:
    try:
        value = _value(values, option)
    except KeyError:  # of another choice of its group
        return ""
    return f" [{shown(value)}]" if value is None or isinstance(value, bool | int | float | str) else ""


def _value(values: Any, option: str) -> Any:
    for part in option.split("."):
        if not isinstance(values, dict):
            raise KeyError(option)
        values = values[part]
    return values


def shown(value: Any) -> Any:
    """A value as it is written on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else value


def describe_options() -> list[Row]:
    """(option, type and range, description) of every option but the methods' own."""
    return list(dict.fromkeys(_walk("", Config)))


def rows_of(schema: type[MethodOptions]) -> list[Row]:
    """(option, type and range, description) of a method's options, in its class's order."""
    return [
        (spelled(schema, name), _type_in_words(field), field.description or "")
        for name, field in schema.model_fields.items()
        if name != "written" and not followed(schema, name)
    ]


def _walk(prefix: str, schema: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.model_fields.items():
        nested = field.annotation
        if name == "partition":
            for kind in get_args(get_args(PartitionConfig)[0]):
                yield from _walk(f"{prefix}{name}.", kind)
        elif isinstance(nested, type) and issubclass(nested, Options) and not issubclass(nested, MethodOptions):
            yield from _walk(f"{prefix}{name}.", nested)
        elif (name not in ("run_dir", "name") and schema is not StrategyConfig) or name == "secure_sum":
            yield f"{prefix}{name}", _type_in_words(field), field.description or ""


def all_method_options() -> list[Row]:
    """The options of all methods, each once, with the methods that have it."""
    users: dict[tuple[str, str, str], list[str]] = {}
    for method, schema in {**METHODS, **own_methods()}.items():
        for row in rows_of(schema):
            users.setdefault(row, []).append(method)
    return [(option, kind, f"{_who(methods)}{text}") for (option, kind, text), methods in users.items()]


def _who(methods: list[str]) -> str:
    """The methods that have an option, or the fewer that have it not; ``""`` for all."""
    others = [name for name in METHODS if name not in methods]
    if not others:
        return ""
    return f"{', '.join(methods)}: " if len(methods) <= len(others) else f"not {', '.join(others)}: "


def _type_in_words(field: FieldInfo) -> str:
    """``int >=1``, ``iid|dirichlet``, ``float|null >0 <1``."""
    kinds = [field.annotation] if get_origin(field.annotation) in (Literal, tuple, None) else get_args(field.annotation)
    words = "|".join(_kind(kind) for kind in kinds)
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [(sign, getattr(part, name, None)) for part in field.metadata for name, sign in signs.items()]
    shown = (
        f"{sign}{limit if isinstance(limit, int) else f'{limit:g}'}" for sign, limit in limits if limit is not None
    )
    return " ".join([words, *shown])


def _kind(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "|".join(str(value) for value in get_args(kind))
    if get_origin(kind) is tuple:
        return "list"
    if isinstance(kind, type) and issubclass(kind, Options):
        return "mapping"
    return "null" if kind is type(None) else str(kind.__name__)


def options_class(name: str) -> type[MethodOptions]:
    """The class of the options of a method that is not in `METHODS`: heavy modules are loaded. Raises `OptionError`."""
    return type(method_options(compose([f"strategy={name}"])))


def own_methods() -> dict[str, type[MethodOptions]]:
    """Options of the methods that are not in `METHODS`."""
    found: dict[str, type[MethodOptions]] = {}
    for name in choices("strategy"):
        if name not in METHODS:
            with suppress(OptionError, SyntaxError):  # an unfinished file must not break the help on others
                found[name] = options_class(name)
    return found


# --- completion ---

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
        return _fitting(FLAG_NAMES, word)
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
