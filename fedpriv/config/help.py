"""The text of `python -m fedpriv --help`, made from the schema and the config tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedpriv.config.compose import CONF
from fedpriv.config.methods import METHODS
from fedpriv.config.options import Options
from fedpriv.config.schema import Config, PartitionConfig, StrategyConfig

USAGE = """fedpriv: differentially private federated learning whose privacy claims are checked

usage: python -m fedpriv [option=value ...]        one run; without options the default job (see conf/config.yaml)
       python -m fedpriv -m option=a,b ...          a sweep over all combinations
       python -m fedpriv plan=true [...]            what a run would cost; trains nothing
       python -m fedpriv resume=RUN_FOLDER          go on after an interruption
       python -m fedpriv rerun=RUN_FOLDER           repeat a run
       python -m fedpriv.report DIR...              compare runs
       python -m fedpriv.predict run=DIR PICTURE... use a model
       python -m fedpriv.audit run=DIR              attack a run's release code (its own --help)
       python -m fedpriv.attack run=DIR             membership inference against a run (its own --help)
       python -m fedpriv.new NAME                   a method of one's own: its files, to be changed (its own --help)
       python -m fedpriv.credentials FOLDER         certificates and keys of a deployment (its own --help)
       python -m fedpriv.dme [n=10 epsilon=1 ...]   mean estimation by every quantiser (its own --help)
       python -m fedpriv.leaderboard [board=NAME]   all methods at equal verified epsilon (its own --help)
flags: -m, --multirun   -h, --help   --version
exit:  0 done, 1 the run failed, 2 a mistake in the call, 130 interrupted, 143 stopped by SIGTERM

groups (group=choice, one file each in conf/):"""

FOLDERS = [
    ("hydra.run.dir", "folder", "where a run is written; default outputs/<date>/<time>-<strategy>-<dataset>"),
    ("hydra.sweep.dir", "folder", "where a sweep is written; default multirun/<date>/<time>"),
    ("hydra/launcher", "basic|joblib", "-m: one job after the other, or one per core (hydra.launcher.n_jobs=N)"),
]


def help_text(own: Mapping[str, tuple[type[Options], type[Options]]] | None = None) -> str:
    """Usage, groups with their choices, and every option with its range. ``own``: schemas of methods without a row."""
    lines = [USAGE]
    for group in ("strategy", "dataset", "features", "partition", "model", "engine", "experiment", "scale"):
        choices = sorted(file.stem for file in (CONF / group).glob("*.yaml") if file.stem != "base")
        lines.append(f"  {group:<12} {', '.join(choices)}")
    lines += ["", "options (option=value):"]
    rows = [*describe_options(), *_method_options(own or {}), *FOLDERS]
    names, kinds = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines += [f"  {option:<{names}}  {kind:<{kinds}}  {text}".rstrip() for option, kind, text in rows]
    return "\n".join(lines)


def describe_options() -> list[tuple[str, str, str]]:
    """(option, type and range, description) of every option but the methods' own."""
    return list(dict.fromkeys(_walk("", Config)))


def _walk(prefix: str, schema: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    for name, field in schema.model_fields.items():
        nested = field.annotation
        if name == "partition":
            for kind in get_args(get_args(PartitionConfig)[0]):
                yield from _walk(f"{prefix}{name}.", kind)
        elif isinstance(nested, type) and issubclass(nested, Options):
            yield from _walk(f"{prefix}{name}.", nested)
        elif (name not in ("run_dir", "name") and schema is not StrategyConfig) or name == "secure_sum":
            yield f"{prefix}{name}", _type_in_words(field), field.description or ""


def _method_options(own: Mapping[str, tuple[type[Options], type[Options]]]) -> list[tuple[str, str, str]]:
    """The options of the halves, each once, with the methods that have it."""
    users: dict[tuple[str, str, str], list[str]] = {}
    schemas: dict[str, tuple[type[Options], type[Options]]] = {**METHODS, **own}
    for method, halves in schemas.items():
        for half, schema in zip(("server", "client"), halves, strict=True):
            for row in _walk(f"strategy.{half}.", schema):
                users.setdefault(row, []).append(method)
    return [
        (option, kind, text if set(methods) >= set(METHODS) else f"{', '.join(methods)}: {text}")
        for (option, kind, text), methods in users.items()
    ]


def _type_in_words(field: FieldInfo) -> str:
    """``int >=1``, ``iid|dirichlet``, ``float|null >0 <1``."""
    kinds = [field.annotation] if get_origin(field.annotation) in (Literal, tuple, None) else get_args(field.annotation)
    words = "|".join(_kind(kind) for kind in kinds)
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [(sign, getattr(part, name, None)) for part in field.metadata for name, sign in signs.items()]
    return " ".join([words, *(f"{sign}{limit:g}" for sign, limit in limits if limit is not None)])


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
