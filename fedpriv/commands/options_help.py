"""The text of `fedpriv --help`, made from the schema and the config tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedpriv.commands.flags import parser
from fedpriv.commands.table import COMMANDS, listed
from fedpriv.common.command_line import EXIT_CODES
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import PartitionConfig
from fedpriv.config.halves import method_options
from fedpriv.config.methods import METHODS
from fedpriv.config.options import MethodOptions, Options
from fedpriv.config.own_options import choices
from fedpriv.config.schema import Config
from fedpriv.config.strategy_options import StrategyConfig, followed, spelled

Row = tuple[str, str, str]

FORMS = """\
  fedpriv strategy=fedcad num_rounds=10   one run; without options the default job (conf/config.yaml)
  fedpriv -m option=a,b ...               a sweep over all combinations
  fedpriv resume=RUN_FOLDER               go on after an interruption (dataset.root=...: where things are now)
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
    return parser(before, f"exit codes:\n{codes}").format_help().rstrip()


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


def with_defaults(rows: list[Row], overrides: Sequence[str] = ()) -> list[Row]:
    """Rows whose description ends with the value that a composition gives the option, where it has it."""
    values = compose(list(overrides)).to_dict()
    return [(option, kind, f"{words}{_default(values, option)}") for option, kind, words in rows]


def _default(values: Any, option: str) -> str:
    for part in option.split("."):
        if not isinstance(values, dict) or part not in values:
            return ""
        values = values[part]
    return f" [{shown(values)}]" if values is None or isinstance(values, bool | int | float | str) else ""


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
    return " ".join(
        [
            words,
            *(
                f"{sign}{limit if isinstance(limit, int) else f'{limit:g}'}"
                for sign, limit in limits
                if limit is not None
            ),
        ]
    )


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
