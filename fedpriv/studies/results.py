"""What a study leaves behind: ``results.json`` (tables, verdicts, boards) and ``runs.parquet`` (a row for each run).

Infinite is the string "inf", as in summary.json. A column of ``runs.parquet`` is a field of `RunRecord`; what is no
text or number is JSON there.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from fedpriv.common.errors import RunFolderError
from fedpriv.common.files import write_atomic
from fedpriv.common.systems import cores
from fedpriv.common.versions import commit, kind_of_processor, library_versions, made_by, processor
from fedpriv.report.words import many, number

RESULTS_FILE, RUNS_FILE = "results.json", "runs.parquet"


def _json(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


#: A number that may be infinite.
Number = Annotated[float, BeforeValidator(number), PlainSerializer(_json, when_used="json-unless-none")]

Verdict = Literal["holds", "does not hold", "not decided", "cannot be tested here"]

#: What decides a claim: the tables that its paper prints, mathematics (proofs, exact prices, counts, audits of a
#: mechanism, errors without training), or networks that were trained.
ClaimKind = Literal["training", "mathematics", "tables"]


class Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Estimate(Stored):
    """Mean over ``n`` seeds; std and half_width of the 95 % t-interval are None for one seed or infinite values."""

    n: int
    mean: Number | None
    std: float | None = None
    half_width: float | None = None


class Machine(Stored):
    processor: str
    cores: int
    memory_gib: float
    system: str
    python: str


class Provenance(Stored):
    """Where results come from, as their runs' records say. commits: that made the runs, that of most first. machine,
    versions: of most of the runs; remarks: of the rest, in words. date: of the last run. core_seconds: of all runs.
    """

    commits: tuple[str, ...]
    machine: Machine
    versions: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    date: str
    core_seconds: float


class RunRecord(Stored):
    """A run of a study.

    name: unique in the study, and a file name: the method, a digest of the options that matter, and the seed
    (`fedpriv.studies.jobs`). options: overrides of `python -m fedpriv`. curve: [round, accuracy or None, loss or None]
    where evaluated; norms: [round, mean length of the clients' updates]. summary: the run's summary.json. seconds: of
    all its parts, where it was interrupted. form: of what a record of its kind holds (`fedpriv.studies.jobs.FORMS`).

    commit: that made it, "+" after it: with changes that it does not hold; "version 0.1.0" outside a checkout.
    machine, versions, date: where and when. arithmetic: where it is equal, the same code gives the same bits; empty in
    older records, whose versions have a digest of the commit's sources ("code") instead. superseded: why the run is to
    be made anew, where today's code gives something else.
    """

    name: str
    kind: Literal["train", "plan", "audit", "attack", "dme", "computed", "tuning"]
    options: tuple[str, ...]
    seed: int
    command: str
    summary: Mapping[str, Any]
    figures: Mapping[str, Number | None] = {}
    curve: tuple[tuple[int, float | None, float | None], ...] = ()
    norms: tuple[tuple[int, float], ...] = ()
    seconds: float = 0.0
    commit: str = ""
    form: int = 1
    machine: Machine | None = None
    versions: Mapping[str, str] = {}
    arithmetic: Mapping[str, str] = {}
    date: str = ""
    superseded: str | None = None


class Cell(Stored):
    """One place of a table, in its unit. runs: names of the runs that it is of; missing: why there is none;
    superseded: why its runs are to be made anew, where they are.
    """

    measured: Estimate | None = None
    reported: Number | None = None
    runs: tuple[str, ...] = ()
    missing: str | None = None
    superseded: str | None = None


class TableRow(Stored):
    name: str
    label: str
    cells: tuple[Cell, ...]


class Ordering(Stored):
    """Pairs of a column's rows. agreeing: ordered as reported, beyond doubt (95 %); contradicted: the other way round
    beyond doubt; open: neither.
    """

    column: str
    agreeing: int
    contradicted: int
    open: int


class Table(Stored):
    """kind: of its runs; another: whether its setting is not the paper's; looks: seeds in all at each planned look."""

    name: str
    title: str
    source: str
    unit: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    orderings: tuple[Ordering, ...] = ()
    notes: tuple[str, ...] = ()
    kind: str = ""
    another: bool = False
    looks: tuple[int, ...] = ()

    @property
    def cells(self) -> list[tuple[str, str, Cell]]:
        """(row's label, column's label, cell)."""
        return [(row.label, c, cell) for row in self.rows for c, cell in zip(self.columns, row.cells, strict=True)]


class Figure(Stored):
    """file: relative to the study's folder; alt: for readers who do not see it."""

    name: str
    file: str
    alt: str
    caption: str


class Claim(Stored):
    """A claim of a paper and its verdict. difference: what the verdict rests on, where it is one difference, in the
    unit of the claim. p: corrected for looks and for all claims of the paper; None where nothing is left to chance.
    setting: in what the setting is not the paper's. quote: the paper's own words; line: of its text. before: on the
    list before the protocol; rule: that moved it. beyond: why it is no claim of the paper and has no verdict. needs:
    what would decide it, where nothing here did.
    """

    name: str
    claim: str
    source: str
    verdict: Verdict
    words: str
    kind: ClaimKind
    difference: Estimate | None = None
    unit: str = ""
    p: float | None = None
    setting: str = ""
    quote: tuple[str, ...] = ()
    line: tuple[int, ...] = ()
    before: Verdict | Literal["new"] | None = None
    rule: str = ""
    beyond: str = ""
    needs: str = ""

    @property
    def place(self) -> Literal["own", "another", "not"]:
        """Where it was tested; the two settings are never added up (docs/results/protocol.md, section 2)."""
        return "not" if self.verdict == "cannot be tested here" else "another" if self.setting else "own"

    @property
    def section(self) -> tuple[str, str]:
        """(kind, where it was tested): under what it is counted; of all that is not tested here together."""
        return "" if self.place == "not" else self.kind, self.place


class PaperResults(Stored):
    """``results/<paper>/results.json``. command: what makes it. idea, leak, repair: the paper in words (plain text);
    case: the strongest fair case for it.
    """

    paper: str
    title: str
    authors: str
    scale: Literal["small", "literal"]
    command: str
    idea: str
    leak: str
    repair: str
    case: tuple[str, ...] = ()
    provenance: Provenance
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]

    @property
    def listed(self) -> list[Claim]:
        """All claims but findings beyond the paper."""
        return [claim for claim in self.claims if not claim.beyond]


class TuningCost(Stored):
    """What an entry's search would have cost on the training data themselves. runs: of the search and the last one;
    composed: epsilon of all of them; random: of the best of a random number of trials with this mean, by ``law``.
    """

    runs: int
    composed: Number
    random: Number
    law: str


#: By what a board ranks (`fedpriv.studies.boards.BoardPlan`).
Measure = Literal["final", "personalised", "leading", "auc", "balanced_accuracy", "f1", "r2"]


class Entry(Stored):
    """A calibrated method at one target. figures in their units: accuracy (or what a board ranks by) in percent, bytes
    up and down and seconds of the whole run; chosen: what the search found; at_edge: options whose best value ends at
    an edge of its range; runs: names of its final runs. idea: of a paper, a plain method, or a rival that a paper
    compares itself with. tied: the paired difference to the best at this target may be nothing (95 %). better_at:
    smaller target at which it is surely more accurate. tried: trials of the search that ran. superseded: why the entry
    is to be made anew. own_plan: who takes part when is not as in the other rows. worst_site: leading metric at the
    site where it is least, in percent.
    """

    method: str
    label: str
    paper: str
    target: float
    verified_epsilon: Number
    accuracy: Estimate
    bytes_up: float
    bytes_down: float
    seconds: Estimate
    chosen: Mapping[str, str]
    rank: int
    runs: tuple[str, ...]
    command: str
    idea: Literal["plain", "paper", "rival"] = "paper"
    tied: bool = False
    tried: int | None = None
    superseded: str | None = None
    at_edge: tuple[str, ...] = ()
    tuning: TuningCost | None = None
    better_at: float | None = None
    own_plan: bool = False
    worst_site: Estimate | None = None


class Duel(Stored):
    """A paper's idea against a plain method at the same target: the paired difference of accuracy over equal seeds, in
    points, its p-value, that value adjusted for all duels of the board (Holm; None of a single seed), and what it says
    at 5 %. method_at, against_at: the smaller target whose runs the one or the other has here, where it is behind and
    these are its best; p is the largest over all that it has.
    """

    target: float
    method: str
    against: str
    difference: Estimate
    outcome: Literal["beats", "loses to", "not decided"]
    p: float | None = None
    adjusted: float | None = None
    method_at: float | None = None
    against_at: float | None = None


class Left(Stored):
    """What is listed and not ranked, with the reason. target: None for all targets."""

    method: str
    label: str
    reason: str
    variant: str = "repaired"
    target: float | None = None


class Board(Stored):
    """One threat model: entries of other boards are not comparable. reference: the same setting without privacy;
    on_features: the same on the features; alone: every client trained by itself, epsilon 0. measure: whose accuracy;
    metric: name of what is ranked by. trials: of each search; search: ranges of each method; private: whether the
    choice of options is within epsilon. chance: accuracy of guessing, in percent. ahead: target -> by how much its best
    is above what clients have alone.
    """

    name: str
    title: str
    unit: str
    adjacency: str
    observer: str
    delta: float
    setting: str
    measure: Measure = "final"
    metric: str = "accuracy"
    trials: int | None = None
    targets: tuple[float, ...]
    reference: Estimate
    on_features: Estimate | None = None
    alone: Estimate | None = None
    entries: tuple[Entry, ...]
    left: tuple[Left, ...] = ()
    ahead: Mapping[float, Estimate] = {}
    duels: tuple[Duel, ...] = ()
    chance: float | None = None
    search: Mapping[str, str] = {}
    searched: Mapping[str, Any] = {}
    private: bool = False

    def at(self, target: float) -> list[Entry]:
        """Entries of a target, the best first."""
        return sorted((entry for entry in self.entries if entry.target == target), key=lambda entry: entry.rank)


class Leaderboard(Stored):
    """``results/leaderboard/results.json``."""

    provenance: Provenance
    boards: tuple[Board, ...]


Study = TypeVar("Study", PaperResults, Leaderboard)


def write_results(folder: Path, results: PaperResults | Leaderboard, runs: Sequence[RunRecord]) -> None:
    import pandas as pd  # a second to import

    folder.mkdir(parents=True, exist_ok=True)
    rows = (run.model_dump(mode="json") for run in runs)
    texts = [
        {key: one if isinstance(one, str | int | float) else _text(one) for key, one in row.items()} for row in rows
    ]
    table = io.BytesIO()
    pd.DataFrame(texts, columns=list(RunRecord.model_fields)).to_parquet(
        table, index=False, compression="zstd", compression_level=12
    )
    write_atomic(folder / RUNS_FILE, table.getvalue())
    write_atomic(folder / RESULTS_FILE, _text(results.model_dump(mode="json", exclude_defaults=True), indent=0) + "\n")


def _text(content: Any, **layout: Any) -> str:
    return json.dumps(content, ensure_ascii=False, **(layout or {"separators": (",", ":")}))


def read_study(folder: Path, kind: type[Study]) -> Study:
    """The results without the runs. Raises `RunFolderError` where there are none, or where they cannot be read."""
    with _readable(folder):
        return kind.model_validate_json((folder / RESULTS_FILE).read_text(encoding="utf-8"))


def read_runs(folder: Path) -> list[RunRecord]:
    """The records of a study's runs. Raises `RunFolderError` as `read_study` does."""
    import pandas as pd

    plain = {name for name, field in RunRecord.model_fields.items() if field.annotation in (str, int, float)} | {"kind"}
    with _readable(folder):
        rows = pd.read_parquet(io.BytesIO((folder / RUNS_FILE).read_bytes())).to_dict("records")
        return [
            RunRecord.model_validate({key: one if key in plain else _value(one) for key, one in row.items()})
            for row in rows
        ]


def _value(text: Any) -> Any:
    """What `_text` wrote; ``superseded`` is plain text, or null."""
    return json.loads(text) if str(text)[:1] in ("{", "[") or text == "null" else text


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder}: no results ({error.filename} is missing)") from None
    except (ValidationError, ValueError, OSError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": "", "msg": str(error)}
        raise RunFolderError(f"{folder}: {RESULTS_FILE} or {RUNS_FILE}: {first['loc']}: {first['msg']}") from None


# --- where results come from -------------------------------------------------------------------------------


@cache
def machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        processor=" and ".join(filter(None, (processor(), _gpu()))),
        cores=cores(),
        memory_gib=round(memory, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
    )


@cache
def _gpu() -> str:
    """The name of the GPU on which runs train by default (`engine.device=auto`); "" without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def arithmetic() -> dict[str, str]:
    """On what the last bits of a result depend, beside the code and the options: `kind_of_processor`, threads, a GPU,
    versions. Where it is equal, the same code gives the same bits on a CPU. Asked after a job, which sets its threads.
    """
    import torch

    versions = {name: version for name, version in library_versions().items() if name in ("python", "torch", "numpy")}
    return {
        **kind_of_processor(),
        "threads": str(torch.get_num_threads()),
        **({"gpu": _gpu()} if _gpu() else {}),
        **versions,
    }


def here() -> dict[str, Any]:
    """What a record says of where it was made."""
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    return {"commit": commit(), "machine": machine(), "versions": library_versions(), "date": date}


#: A key of the versions of records that were made before results were known by commit and options.
DIGEST = "code"


def provenance(runs: Sequence[RunRecord]) -> Provenance:
    """Of a study's runs, whichever call of it made them, on whichever machine."""
    machines = Counter(run.machine for run in runs if run.machine)
    libraries = Counter(
        tuple((name, version) for name, version in run.versions.items() if name != DIGEST)
        for run in runs
        if run.versions
    )
    main, *other_machines = [one for one, _ in machines.most_common()] or [machine()]
    most, *other_libraries = [one for one, _ in libraries.most_common()] or [tuple(library_versions().items())]
    old = [run for run in runs if DIGEST in run.versions]
    anew = Counter((run.superseded, str(run.summary.get("strategy", run.kind))) for run in runs if run.superseded)
    changed = {one: ", ".join(f"{n} {v}" for n, v in one if (n, v) not in most) for one in other_libraries}
    digests = dict.fromkeys(run.versions[DIGEST] for run in old)
    early = "made before results were named by commit and options, with a digest of the sources"
    return Provenance(
        commits=tuple(name for name, _ in Counter(run.commit for run in runs).most_common()),
        machine=main,
        versions=dict(most),
        remarks=(
            *(f"{many(machines[one], 'run')} on {one.processor}, {one.cores} cores" for one in other_machines),
            *(f"{many(libraries[one], 'run')} with {words}" for one, words in changed.items()),
            *([f"{early} ({', '.join(digests)}): {many(len(old), 'run')} of {len(runs):,}"] if old else []),
            *(f"to be made anew: {count} of {name}: {reason}" for (reason, name), count in anew.items()),
        ),
        date=max((run.date for run in runs), default=""),
        core_seconds=round(sum(run.seconds for run in runs), 1),
    )


def commits_in_words(origin: Provenance) -> str:
    return ", ".join(map(made_by, origin.commits)) or made_by("")
