"""The calls of `import fedpriv`: what the command line does, as functions that return objects and raise exceptions.

A call changes nothing of the process in which it runs: working directory, logging, signal handlers, number of torch's
threads and import path are as before when it returns. It can run where an event loop runs or Ray does.
"""

from __future__ import annotations

import inspect
import io
import logging
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, wraps
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray

from fedpriv.attacks.contract_check import Contract
from fedpriv.attacks.fit_audit import FitAudit
from fedpriv.attacks.release_audit import AuditedScope
from fedpriv.checking.asking import CheckOptions
from fedpriv.checking.checks import check_object
from fedpriv.checking.child import check_name
from fedpriv.checking.result import Check as CheckResult
from fedpriv.common.command_line import hints_of, read_option, read_options, take
from fedpriv.common.errors import DataError, OptionError, RunFolderError
from fedpriv.common.places import with_own_methods
from fedpriv.common.run_files import bytes_in, mapping_in
from fedpriv.common.stopping import stop
from fedpriv.common.verbosity import speaking
from fedpriv.config.compose import COMMANDS, compose, parse, read_config
from fedpriv.config.owner import trust
from fedpriv.config.question_words import ask_options, quoted
from fedpriv.config.schema import CODE, Config
from fedpriv.data.table_schema import TableSchema, schema_of
from fedpriv.privacy.canaries import CanaryAudit
from fedpriv.report import compare
from fedpriv.report.compare import COMPARISON_NOTE, TextTable, comparison_tables
from fedpriv.report.views import PRIVATE
from fedpriv.report.words import often

if TYPE_CHECKING:
    from fedpriv.certificates.making import Certificate
    from fedpriv.training.trained_model import TableModel, TrainedModel

F = TypeVar("F", bound=Callable[..., Any])
#: Options or questions. No Sequence[str]: a type checker takes one text for that, and a run does not.
Strings = list[str] | tuple[str, ...]


def checked(function: F) -> F:
    """A function whose arguments are held against its types when it is called. Raises `OptionError`, which names the
    first argument that is of another type, its value and what is allowed.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            bound = signature.bind(*given, **named)
        except TypeError:
            return function(*given, **named)  # too many, too few, unknown: as Python words it
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind != inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = read_option(name, value, hints_of(function)[name])
        return function(*bound.args, **bound.kwargs)

    return call  # type: ignore[return-value]


# --- what calls return -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A picture of the report; a notebook shows it. alt: what can be seen on it, in words."""

    path: Path
    alt: str = ""

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


class Run:
    """A run's folder as an object: finished, interrupted or still going on.

    Everything is read from the folder when it is asked for; `summary`, `metrics`, `ledger` and `figures` each time
    anew, so that an object of a running run follows it. In a notebook it is the head of its report.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises `RunFolderError` where there is no run, `OptionError` where ``folder`` is no path."""
        if not isinstance(folder, str | Path):
            raise OptionError("folder", repr(folder), "must be a str or a Path")
        self.folder = Path(folder).absolute()
        self.config: Config = read_config(self.folder)

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json: accuracy, privacy (the epsilons and their threat model), traffic, timing, versions; with what
        the folder has in private/ beside it.

        Raises `RunFolderError` for a run that has not finished.
        """
        try:
            found = mapping_in(self.folder, "summary.json")
        except FileNotFoundError:
            words = f"the run has not finished, fedpriv.resume_run({str(self.folder)!r}) goes on with it"
            raise RunFolderError(f"{self.folder}: {words}") from None
        except ValueError as error:
            raise RunFolderError(f"{self.folder / 'summary.json'}: cannot be read ({error})") from None
        from fedpriv.report.reading import read_run

        return dict(read_run(self.folder).summary or found)

    @property
    def claimed_epsilon(self) -> float | None:
        """Of the paper's own formula, with the scope that ``summary["privacy"]`` names; None: nothing is claimed."""
        return self._epsilon("claimed_epsilon")

    @property
    def verified_epsilon(self) -> float | None:
        """The upper bound for everything that was sent, over the whole run, for the client that sent most."""
        return self._epsilon("verified_epsilon")

    @property
    def audited_epsilon(self) -> float | None:
        """The lower bound that an audit measured; None until `fedpriv.audit_run`."""
        return self._epsilon("audited_epsilon")

    def _epsilon(self, name: str) -> float | None:
        value = (self.summary.get("privacy") or {}).get(name)
        return None if value is None else float(value)

    @property
    def metrics(self) -> Any:
        """metrics.jsonl, a row for each round, with what the folder has in private/ beside it: a pandas DataFrame, or a
        list of dicts where pandas is not installed.
        """
        from fedpriv.report.reading import read_run

        return _table([dict(row) for row in read_run(self.folder).rounds])

    @property
    def ledger(self) -> Any:
        """Every release: round, client, mechanism with its parameters, and what it may be seen by. A DataFrame, or a
        list of dicts.
        """
        from fedpriv.privacy.events import entry_to_json
        from fedpriv.privacy.ledger import LedgerFile

        entries = LedgerFile(self.folder / "ledger.jsonl", fsync=False).read().entries
        return _table([entry_to_json(entry) for entry in entries])

    @property
    def figures(self) -> Mapping[str, Figure]:
        """The report's pictures by name (``accuracy``, ``epsilon``, ``noise``, ...), as far as there are any."""
        found = {path.stem: path for folder in (self.folder, self.folder / PRIVATE) for path in folder.glob("*.png")}
        pictures = [found[name] for name in sorted(found)]
        return {path.stem: Figure(path, f"{path.stem} of {self.folder.name}") for path in pictures}

    @property
    def report(self) -> Path:
        """report.html, written now if it is not there."""
        page = self.folder / "report.html"
        if not page.is_file():
            from fedpriv.report.page import write_report

            write_report(self.folder)
        return page

    @cached_property
    def model(self) -> TrainedModel | TableModel:
        """The trained model: of pictures ``probabilities``, and ``read_picture`` of a file; of tables ``predict`` and
        ``probabilities`` of a DataFrame, columns or a file. Raises `RunFolderError` for a run that has not finished, or
        whose model is damaged.
        """
        from fedpriv.training.trained_model import load_model

        return load_model(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    def _repr_html_(self) -> str:
        from fedpriv.report.overview import head_of

        return head_of(self.folder, self.report.as_uri() if self.finished else "")


def folder_of(run: Run | str | Path) -> Path:
    if isinstance(run, Run):
        return run.folder
    if not str(run).strip():
        raise OptionError("folder", str(run), "is empty; it must be a folder's name")
    return Path(run).expanduser().absolute()


def _table(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def shown(value: float | None) -> str:
    """A figure for people."""
    if value is None:
        return "–"
    return "infinite" if math.isinf(value) else f"{value:.4g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """An HTML table of plain text."""
    from fedpriv.report.rendering import rendered

    return rendered("tables.html", tables=[(caption, header, rows)], note="")


@dataclass(frozen=True)
class Plan:
    """What a run would cost, before it: nothing was trained or released.

    config: with every ``auto`` resolved and the noise of `privacy.target_epsilon`. epsilons at `config.privacy.delta`,
    of the client that is asked most often; claimed: None where the paper claims nothing. bytes_up, bytes_down: payload
    of all messages. seconds: estimated local training on one worker. participations: of a client, least and most.
    """

    config: Config
    claimed_epsilon: float | None
    verified_epsilon: float
    verified_median: float
    accountant: str
    reasons: tuple[str, ...]
    participations: tuple[int, int]
    bytes_up: int
    bytes_down: int
    seconds: float

    @property
    def summary(self) -> dict[str, Any]:
        """The figures by name."""
        names = ("claimed_epsilon", "verified_epsilon", "verified_median", "accountant", "reasons", "participations")
        return {name: getattr(self, name) for name in (*names, "bytes_up", "bytes_down", "seconds")}

    def _repr_html_(self) -> str:
        rows = [
            ("claimed epsilon", shown(self.claimed_epsilon)),
            ("verified epsilon", f"{shown(self.verified_epsilon)} (median client {shown(self.verified_median)})"),
            ("audited epsilon", "–"),
            ("a client takes part", often(*self.participations)),
            ("bytes up / down", f"{self.bytes_up:,} / {self.bytes_down:,}"),
            ("estimated training", f"{self.seconds:.0f} s on one worker"),
            *(("reason", reason) for reason in self.reasons),
        ]
        of = self.config
        return table((), rows, f"plan: {of.method} on {of.dataset.name}, delta {of.privacy.delta:g}")


@dataclass(frozen=True)
class Audit:
    """Lower bounds on epsilon, measured by attacking the code. scopes: of the release function, the whole run first.
    training, fits: with ``level="training"``, of a real run with canaries and of one client's own fit. contract: of
    noise, in real rounds; its ``findings`` are empty for sound code.
    """

    scopes: tuple[AuditedScope, ...] = ()
    training: CanaryAudit | None = None
    fits: FitAudit | None = None
    contract: Contract | None = None

    @property
    def audited_epsilon(self) -> float:
        """Of the widest scope."""
        if self.scopes:
            return self.scopes[0].audit.epsilon_lower
        assert self.training is not None
        return self.training.epsilon_lower

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row for each scope."""
        rows: list[dict[str, Any]] = [
            {
                "scope": scope.name,
                "audited_epsilon": scope.audit.epsilon_lower,
                "claimed_epsilon": scope.claimed,
                "verified_epsilon": scope.verified,
                "verdict": scope.verdict,
            }
            for scope in self.scopes
        ]
        if self.training is not None:
            rows.append({"scope": "canaries in a real run", "audited_epsilon": self.training.epsilon_lower})
        if self.fits is not None:
            found = {"audited_epsilon": self.fits.audit.epsilon_lower, "verified_epsilon": self.fits.verified}
            rows.append({"scope": f"the client's own fit, {self.fits.scope}", **found})
        return rows

    def _repr_html_(self) -> str:
        header = ("scope", "audited epsilon ≥", "claimed", "verified ≤", "verdict")
        names = ("audited_epsilon", "claimed_epsilon", "verified_epsilon")
        rows = [
            (row["scope"], *(shown(row.get(name)) for name in names), row.get("verdict", "")) for row in self.summary
        ]
        return table(header, rows, "audit")


@dataclass(frozen=True)
class Attacks:
    """Membership inference against a run. records: attack -> what attacks/NAME.json holds."""

    records: Mapping[str, Mapping[str, Any]]

    @property
    def summary(self) -> dict[str, str]:
        """Attack -> its verdict in words."""
        return {name: str(record.get("verdict") or "not shown") for name, record in self.records.items()}

    def _repr_html_(self) -> str:
        from fedpriv.attacks.attack_records import HEADER, row

        return table(HEADER, [row(record) for record in self.records.values()], "membership inference")


@dataclass(frozen=True)
class Comparison:
    """Runs grouped over seeds. found: what was compared, and what was left out with the reason."""

    found: compare.Comparison

    @property
    def tables(self) -> Sequence[TextTable]:
        """One for each threat model, whose epsilons are not comparable with another's."""
        return comparison_tables(self.found)

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row for each configuration and threat model: options that differ, number of runs, and the mean and the
        standard deviation over seeds of every figure.
        """
        rows = []
        for threat, found in self.found.tables:
            for row in found:
                spreads = {
                    name: value
                    for figure, spread in row.figures.items()
                    for name, value in ((figure, spread.mean), (f"{figure}_std", spread.std))
                }
                facts = {"observer": threat.observer, "unit": threat.unit, "runs": len(row.group.runs)}
                rows.append({"configuration": row.group.label(), **row.group.values, **facts, **spreads})
        return rows

    def write(self, folder: str | Path) -> list[Path]:
        """comparison.html, .csv, .tex and its pictures in a folder; returns their paths."""
        from fedpriv.report.page import write_comparison

        Path(folder).mkdir(parents=True, exist_ok=True)
        return write_comparison(self.found, Path(folder))

    def _repr_html_(self) -> str:
        from fedpriv.report.rendering import rendered

        tables = [(found.title, found.header, found.rows) for found in self.tables]
        return rendered("tables.html", tables=tables, note=COMPARISON_NOTE)


@dataclass(frozen=True)
class Answer:
    """values, low, high: float64 [k]; ``of`` says what each is of. low and high: 95 % interval for the noise, of a
    quantile for its bin's edges too, of a regression or score for the sampling of rows too, as errors (standard errors)
    and p_values [k] are, which others have none of. remarks: how finely values are told apart, what is left out.
    """

    question: str
    of: tuple[str, ...]
    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    remarks: tuple[str, ...] = ()
    errors: NDArray[np.float64] | None = None
    p_values: NDArray[np.float64] | None = None

    @property
    def value(self) -> float:
        """Of an answer that is one number."""
        return float(self.values.item())


@dataclass(frozen=True)
class Answers(Mapping[str, Answer]):
    """Question -> answer, in the order that was asked. run: with ledger, epsilons and report."""

    run: Run
    answers: tuple[Answer, ...]

    def __getitem__(self, question: str) -> Answer:
        for one in self.answers:
            if one.question == question:
                return one
        raise KeyError(question)

    def __iter__(self) -> Iterator[str]:
        return iter([one.question for one in self.answers])

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def table(self) -> Any:
        """A pandas DataFrame with a row for each number: question, of, answer, low, high."""
        import pandas

        return pandas.read_csv(BytesIO(bytes_in(self.run.folder, "answers.csv")))


# --- the calls ---------------------------------------------------------------------------------------------

#: Calls for what the command line has an option for.
INSTEAD = {
    "resume": "fedpriv.resume_run(FOLDER)",
    "extend": "fedpriv.extend_run(FOLDER, [...])",
    "rerun": "fedpriv.rerun(FOLDER, [...])",
    "plan": "fedpriv.plan_run([...])",
    "policy": "`fedpriv plan policy=FILE ...` in a terminal",
}


def paths_of(code: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Options that name functions, by their dotted paths. Raises `OptionError` for one that no other process finds."""
    found = []
    for option, function in code.items():
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
        if option not in CODE:
            raise OptionError("code", option, f"names no code; allowed: {', '.join(CODE)}")
        if module in (None, "__main__") or getattr(sys.modules.get(str(module)), name, None) is not function:
            words = "must be a function of a module's top, which other processes import: write it into a file"
            raise OptionError(option, name or repr(function), words)
        found.append(f"{option}={module}.{name}")
    return found


@checked
def run(
    options: Strings = (),
    *,
    code: Mapping[str, Any] = MappingProxyType({}),
    folder: str | Path | None = None,
    quiet: bool = False,
) -> Run:
    """Trains. options: as on the command line, ``["strategy=fedcad", "num_rounds=10"]``. code: functions of yours by
    the option that names them, ``{"local.train": mine.train}``. folder: where the run is written; None:
    ``outputs/<date>/<time>-<strategy>-<dataset>``. quiet: no progress.

    Raises `OptionError` for a wrong option, `DataError` for data that cannot be read, `RunFolderError` for a folder in
    use, `RunFailed` where the run cannot go on. After KeyboardInterrupt (once: at the end of the round, twice: at once)
    and after `RunFailed` the folder is there: `resume_run` goes on from its last checkpoint.
    """
    with _guest(quiet):
        config = _one_run([*options, *paths_of(code)])
        target = folder_of(folder) if folder is not None else _new_folder(config)
        from fedpriv.runs.start import start_run

        with _resumable(target):
            start_run(config, target)
        return Run(target)


@checked
def resume_run(run: Run | str | Path, options: Strings = (), *, quiet: bool = False) -> Run:
    """Goes on with an interrupted run from its newest checkpoint; it ends as if nothing had happened, bit for bit.
    options: of operations.*, tracking.* and of places on this machine (``dataset.root``), and ``engine=inprocess`` or
    ``engine=ray`` with ``engine.workers``, which end with the same bits.

    Raises `RunFolderError` for a run that has finished, or whose code, options or versions are others now.
    """
    path = folder_of(run)
    with _guest(quiet), _resumable(path):
        from fedpriv.runs.start import resume_run as resumed

        resumed(path, options)
    return Run(path)


@checked
def extend_run(run: Run | str | Path, options: Strings, *, quiet: bool = False) -> Run:
    """More rounds for a run that has finished: ``["num_rounds=120"]``. They are priced, with all that was released
    before, before the first of them begins.

    Raises `OptionError` for an option that an extension cannot change, a method that cannot be extended, or an epsilon
    beyond `privacy.target_epsilon`; `RunFolderError` for a run that has not finished.
    """
    path = folder_of(run)
    with _guest(quiet):
        _check_overrides(options)
        from fedpriv.runs.extension import extend_run as extended
        from fedpriv.runs.start import resume_run as resumed

        with _resumable(path):
            extended(path, list(options))
            resumed(path)
    return Run(path)


@checked
def rerun(
    run: Run | str | Path, options: Strings = (), *, folder: str | Path | None = None, quiet: bool = False
) -> Run:
    """Repeats a run, finished or not, in a folder of its own, with other values where options say so:
    ``["local.lr=0.05", "seed=1"]``. folder: as in `run`.

    Raises as `run` does, and `RunFolderError` where there is no run.
    """
    with _guest(quiet):
        _check_overrides(options)
        from fedpriv.runs.other_options import config_for_rerun
        from fedpriv.runs.start import start_run

        config = config_for_rerun(folder_of(run), list(options))
        target = folder_of(folder) if folder is not None else _new_folder(config)
        with _resumable(target):
            start_run(config, target)
        return Run(target)


@checked
def plan_run(options: Strings = ()) -> Plan:
    """What a run would cost: epsilons, bytes, time. Trains nothing, releases nothing, writes nothing.

    Raises `OptionError`, `DataError`.
    """
    with _guest(quiet=False):
        from fedpriv.runs.preparation import resolve

        config, _, plan = resolve(_one_run(options), None)
        return Plan(
            config,
            None if plan.claim is None else plan.claim.epsilon,
            plan.verified_epsilon,
            plan.verified_median,
            plan.accountant,
            plan.reasons,
            plan.participations,
            plan.bytes_up,
            plan.bytes_down,
            plan.seconds,
        )


@checked
def audit_run(
    run: Run | str | Path | Strings,
    *,
    level: Literal["mechanism", "training"] = "mechanism",
    trials: int = 200_000,
    confidence: float = 0.95,
    participations: int | None = None,
    seed: int = 0,
    places: Strings = (),
) -> Audit:
    """Attacks the release code (``level="mechanism"``), or a real run with canaries (``"training"``).

    run: a finished run, whose summary and report get the result, or options. trials: releases of each kind. confidence:
    of the lower bounds. participations: only so many releases; the result is then not written. places: of a run,
    where things are on this machine, ``["dataset.root=/data"]``. Raises `OptionError`, `RunFolderError`.
    """
    with _guest(quiet=False):
        from fedpriv.attacks import auditing

        given = {"trials": trials, "confidence": confidence, "audit_seed": seed, "participations": participations}
        options = read_options(auditing.AuditOptions, given | {"level": level})
        if isinstance(run, Run | str | Path):
            audited = auditing.audit_run(_finished(run), places, options)
        else:
            _check_overrides(run)
            audited = auditing.audit_run(None, run, options)
        training = audited.training
        canaries, fits = (training.canaries, training.fits) if training else (None, None)
        return Audit(audited.scopes, canaries, fits, audited.contract)


@checked
def attack_run(
    run: Run | str | Path, attack: str = "all", *, quiet: bool = False, places: Strings = (), **options: Any
) -> Attacks:
    """Membership inference against a finished run, with controls. attack: names with commas, or ``all`` that the run
    allows. places: as of `audit_run`. options: members, known_share, shadows, workers, seed, control_models,
    control_examples, control_epochs.

    Results go into the run's attacks/, summary and report. Raises `OptionError`, `RunFolderError`, and `RunFailed`
    where a control fails: then what was found is not shown.
    """
    with _guest(quiet):
        from fedpriv.attacks.run import attack_run as attacked

        path = _finished(run)
        attacked(str(path), attack, options, places)
        names = sorted(Run(path).summary.get("attacks", {})) if attack == "all" else attack.split(",")
        return Attacks({name: mapping_in(path, f"{PRIVATE}/attacks/{name}.json") for name in names})


@checked
def certify_run(
    run: Run | str | Path, *, key: str | Path = "", out: str | Path = "", verifier: bool = False
) -> Certificate:
    """A signed file from which anybody can compute the run's epsilon again (docs/certificates.md). key: a file with the
    Ed25519 key that signs; the user's own where none is given. out: a folder; the run's own where none is given.
    verifier: the program that checks it goes there too.

    Raises `RunFolderError` for a run that has not finished, or whose ledger is not the one that it wrote.
    """
    from fedpriv.certificates.making import of_any

    with with_own_methods():
        return of_any(_finished(run), key=str(key), out=str(out), verifier=verifier)


@checked
def certify_node(
    data: str | Path, *, policy: str | Path, credentials: str | Path, out: str | Path = "", verifier: bool = False
) -> Certificate:
    """As `certify_run`, of a node's data folder, signed by its identity. out: a folder outside the data folder;
    ``certificate`` where none is given.

    Raises `LedgerRefused` where what was spent is not known.
    """
    from fedpriv.certificates.making import of_any

    return of_any(folder_of(data), policy=str(policy), credentials=str(credentials), out=str(out), verifier=verifier)


@checked
def load(folder: str | Path, *, trust_code: str = "") -> Run:
    """A run from its folder: finished, interrupted, or going on elsewhere. trust_code: code that a folder of somebody
    else's names and that you have read, ``package.module.name@SHA256`` of its file; several with commas. Raises
    `RunFolderError`, `OptionError`.
    """
    if trust_code:
        trust(trust_code)
    return Run(folder_of(folder))


@checked
def compare_runs(runs: Sequence[Run | str | Path]) -> Comparison:
    """Runs, or folders that hold some, side by side: grouped over seeds, one table for each threat model.

    Raises `RunFolderError` where there is nothing to compare.
    """
    from fedpriv.report.compare import compare_folders
    from fedpriv.report.reading import find_runs

    found = compare_folders(find_runs([folder_of(run) for run in runs]))
    if not found.groups:
        reasons = "; ".join(f"{path.name}: {why}" for path, why in found.left_out)
        raise RunFolderError(f"none of these runs can be compared ({reasons or 'there are none'})")
    return Comparison(found)


@checked
def ask(
    table: Any,
    questions: Strings,
    schema: TableSchema | Mapping[str, Any] | str | Path,
    epsilon: float,
    *,
    delta: float = 1e-5,
    options: Strings = (),
    folder: str | Path | None = None,
    quiet: bool = True,
) -> Answers:
    """Asks a table that lies in one place; whoever gets the answers sees them alone. Costs epsilon at delta, once for
    the whole list, of a row or, where the schema names a unit, of a person.

    table: a pandas DataFrame, a mapping of columns, or the path of a CSV or Parquet file. questions: as docs/
    statistics.md has them, ``["count", "mean:age"]``. schema: its file, or the same as a mapping. options: of the run,
    as on the command line; ``num_clients=5`` and ``strategy.client.form=ddgauss`` make simulated sites of the rows.
    The noise comes from the operating system, unless they say ``privacy.rng=seeded``. folder: as in `run`.

    Raises `OptionError` for a wrong question, schema or option, `DataError` for a table that cannot be read.
    """
    names = {override.key_or_group for override in parse(options)}
    held = not isinstance(table, str | Path)
    with tempfile.TemporaryDirectory(prefix="fedpriv-") as place:
        own = [
            "dataset=table",
            f"dataset.root={quoted(str(file := _file_of(table, Path(place))))}",
            f"dataset.schema_file={quoted(str(_schema_file(schema, Path(place))))}",
            f"privacy.target_epsilon={epsilon}",
            f"privacy.delta={delta}",
        ]
        if held:  # no copy of the rows stays
            own.append(f"dataset.cache={quoted(place)}")
        defaults = ("num_clients=1", "strategy.client.form=central", "engine=inprocess")
        own += [option for option in defaults if option.partition("=")[0] not in names]
        try:
            found = run(ask_options([*questions, *own, *options]), folder=folder, quiet=quiet)
        except DataError as error:
            raise DataError(str(error).replace(str(file), "the table") if held else str(error)) from None
    read = list[Answer]()
    for one in found.summary["answers"]:
        numbers = ("values", "low", "high", "errors", "p_values")
        given = {name: np.array(one[name], np.float64) for name in numbers if name in one}
        read.append(Answer(one["question"], tuple(one["of"]), remarks=tuple(one.get("remarks", ())), **given))
    return Answers(found, tuple(read))


def check(target: Any, **options: Any) -> CheckResult:
    """Checks a target: its name ("module:attribute", "path/file.py:attribute", "package.module.attribute"), which runs
    in a process of its own with limits, or the object itself, which runs in this process without any.

    options: as of `fedpriv check --help`, but for fail_above, unverified and out. Raises `OptionError`; what a target
    raises becomes the verdict "could not check".
    """
    read = read_options(CheckOptions, options)
    if isinstance(target, str):
        return check_name(target, read.question, read.limits)
    if target is None or isinstance(target, int | float | bytes | dict):
        raise OptionError("target", repr(target), "must be a name (module:attribute), or a function or object to check")
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return check_object(target, read.question, name=name, seconds=read.seconds)


# --- parts -----------------------------------------------------------------------------------------------


def _one_run(options: Strings) -> Config:
    _check_overrides(options)
    return compose(list(options))


def _check_overrides(options: Strings) -> None:
    """One value for each option, and nothing that is for the command line. Raises `OptionError`. Of an option that
    stands there twice the last one counts, which is told.
    """
    said: dict[str, str] = {}
    for override in parse(options):
        key, value = override.key_or_group, override.get_value_string() if not override.is_delete() else ""
        if key in INSTEAD:
            raise OptionError(key, value, f"is a call of its own: {INSTEAD[key]}")
        if override.is_sweep_override():
            raise OptionError(key, value, "one run has one value: call fedpriv.run for each")
        if key in COMMANDS or key.split(".")[0].split("/")[0] == "hydra":
            raise OptionError(key, value, "is for the command line; where a run is written says folder=")
        take(said, key, value)


def _new_folder(config: Config) -> Path:
    """A folder that is not there yet: several runs may begin within a second."""
    now = datetime.now()
    name = f"{now:%H-%M-%S}-{config.strategy.name}-{config.dataset.name}"
    folder = first = Path("outputs").absolute() / f"{now:%Y-%m-%d}" / name
    number = 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{name}-{number}")
    return folder


def _finished(run: Run | str | Path) -> Path:
    _ = (found := Run(folder_of(run))).summary
    return found.folder


@contextmanager
def _guest(quiet: bool) -> Iterator[None]:
    """In somebody else's process: what a run sets for itself is put back."""
    import torch

    threads, flower = torch.get_num_threads(), logging.getLogger("flwr")
    level = flower.level
    with ExitStack() as stack:
        stack.enter_context(with_own_methods())
        stack.enter_context(stop.handled())
        if quiet:
            stack.enter_context(speaking("quiet"))
            stack.enter_context(redirect_stdout(io.StringIO()))
            stack.enter_context(redirect_stderr(io.StringIO()))
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            flower.setLevel(level)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """An interruption, or a failure of the run, says how to go on; a refused run leaves no folder."""
    from fedpriv.runs.folder import remove_if_unused

    try:
        yield
    except BaseException as error:
        if (folder / "config.yaml").is_file() and not (folder / "summary.json").exists():
            error.add_note(f"fedpriv.resume_run({str(folder)!r}) goes on from the last checkpoint")
        raise
    finally:
        remove_if_unused(folder)


def _file_of(table: Any, place: Path) -> Path:
    """The file that holds a table; of one in memory a file in ``place``."""
    if isinstance(table, str | Path):
        return Path(table).expanduser().absolute()
    from pyarrow import parquet

    from fedpriv.data.table_files import frame_columns

    parquet.write_table(frame_columns(table), place / "table.parquet")
    return place / "table.parquet"


def _schema_file(schema: Any, place: Path) -> Path:
    """place: where one that is no file is written."""
    if isinstance(schema, str | Path):
        return Path(schema).expanduser().absolute()
    said = schema.model_dump(mode="json", exclude_none=True) if isinstance(schema, TableSchema) else dict(schema)
    schema_of(said, "a mapping", unfilled=True)
    (place / "schema.yaml").write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    return place / "schema.yaml"
