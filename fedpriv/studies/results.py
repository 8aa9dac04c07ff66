"""What a study leaves behind: ``results.json`` and ``runs.jsonl`` in its folder, which tables and words are made
from. Infinite is the string "inf", as in summary.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from fedpriv.common.errors import RunFolderError
from fedpriv.common.files import write_atomic
from fedpriv.report.words import number

RESULTS_FILE, RUNS_FILE = "results.json", "runs.jsonl"


def _json(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


#: A number that may be infinite.
Number = Annotated[float, BeforeValidator(number), PlainSerializer(_json, when_used="json-unless-none")]

Verdict = Literal["holds", "does not hold", "not decided", "cannot be tested here"]


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
    """Where results come from, as their runs' records say. commits: that made the runs, that of most first, as
    `RunRecord` stores them. machine, versions: of most of the runs; others: of the rest, in words. remarks: what else a
    reader must know of how the runs were made, in words. date: of the last run.
    """

    commits: tuple[str, ...]
    machine: Machine
    versions: Mapping[str, str]
    others: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    date: str
    core_seconds: float = Field(description="time of all runs, summed")
    client_epochs: float = 0.0
    client_epoch_budget: float | None = None


class RunRecord(Stored):
    """One line of runs.jsonl.

    name: unique in the study, and a file name: the method, a digest of the options that matter, and the seed
    (`fedpriv.studies.jobs`). options: overrides of `python -m fedpriv`. curve: [round, accuracy or None, loss or None]
    where evaluated; norms: [round, mean length of the clients' updates]. summary: the run's summary.json. seconds: of
    all its parts, where it was interrupted.

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
    form: int = Field(default=1, description="of what a record of its kind holds")
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
    """Whether the order that the paper reports in a column is the measured one. Of its pairs: agreeing: as reported,
    beyond doubt (95 %); contradicted: the other way round beyond doubt; open: neither.
    """

    column: str
    reported: tuple[str, ...]
    measured: tuple[str, ...]
    agreeing: int
    contradicted: int
    open: int
    holds: bool


class Table(Stored):
    """computed: from options alone, with no chance in it; kind: of its runs, empty in older results; looks: seeds in
    all at each look that was planned.
    """

    name: str
    title: str
    source: str
    unit: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    orderings: tuple[Ordering, ...] = ()
    notes: tuple[str, ...] = ()
    computed: bool = False
    kind: str = ""
    looks: tuple[int, ...] = ()


class Figure(Stored):
    """file: relative to the study's folder; alt: for readers who do not see it."""

    name: str
    file: str
    alt: str
    caption: str


OTHER_SETTING = "Not the paper's setting: {}."


class Claim(Stored):
    """A claim of a paper and what became of it. difference: what the verdict rests on, where it is a difference
    (mean with its half_width), in the unit of the claim. p: how probable a result as sure as this is where the opposite
    is true, after the correction for looks and for all claims of the paper; None where nothing is left to chance.
    setting: in what the setting is not the paper's, which `words` end with. basis: what the verdict is about: the
    paper's own figures, training runs, or what else is computed, attacked or estimated; "" where it is about nothing.
    quote: the paper's own words; line: of its text. before: on the list before the protocol; rule: that moved it.
    beyond: why it is no claim of the paper; its verdict is then of no account.
    """

    name: str
    claim: str
    source: str
    verdict: Verdict
    words: str
    difference: Estimate | None = None
    unit: str = ""
    p: float | None = None
    setting: str = ""
    basis: Literal["printed", "computed", "runs", ""] = ""
    quote: tuple[str, ...] = ()
    line: tuple[int, ...] = ()
    before: Verdict | Literal["new"] | None = None
    rule: str = ""
    beyond: str = ""

    @property
    def found(self) -> str:
        """The words without the setting, which several claims share."""
        return self.words.removesuffix(f" {OTHER_SETTING.format(self.setting)}")


class PaperResults(Stored):
    """``results/<paper>/results.json``. command: what makes it. idea, leak, repair: the paper in words (plain text).
    seeds: most of a cell; each cell says its own.
    """

    paper: str
    title: str
    authors: str
    scale: Literal["small", "literal"]
    command: str = ""
    idea: str
    leak: str
    repair: str
    methods: tuple[str, ...]
    case: tuple[str, ...] = Field(default=(), description="the strongest fair case for the paper, in words")
    provenance: Provenance
    seeds: int
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]


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
    up and down and seconds of the whole run; chosen: what the search found; runs: names of its final runs. idea: of a
    paper, a plain method, or a rival that a paper compares itself with. tied: the paired difference to the best at this
    target may be nothing (95 %). tried: trials of the search that ran. superseded: why the entry is to be made anew,
    where its epsilon is of an account that has been replaced.
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
    at_edge: tuple[str, ...] = Field(default=(), description="options whose best value ends at an edge of its range")
    tuning: TuningCost | None = None
    better_at: float | None = Field(default=None, description="smaller target at which it is surely more accurate")
    own_plan: bool = Field(default=False, description="who takes part when is not as in the other rows of the board")
    worst_site: Estimate | None = Field(
        default=None, description="leading metric at the site where it is least, percent"
    )


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
    """One threat model: entries of other boards are not comparable. reference: the same setting without privacy.
    measure: whose accuracy. trials: of each search.
    """

    name: str
    title: str
    unit: str
    adjacency: str
    observer: str
    delta: float
    setting: str
    measure: Measure = "final"
    metric: str = Field(default="accuracy", description="name of what is ranked by")
    trials: int | None = None
    targets: tuple[float, ...]
    reference: Estimate
    on_features: Estimate | None = Field(default=None, description="the same setting without privacy, on the features")
    alone: Estimate | None = Field(default=None, description="every client trained by itself: epsilon 0")
    entries: tuple[Entry, ...]
    left: tuple[Left, ...] = ()
    plot: Figure | None = None
    verdicts: tuple[str, ...] = Field(
        default=(), description="whether ideas beat plain methods, and the best what clients have alone, in words"
    )
    duels: tuple[Duel, ...] = Field(default=(), description="what the verdicts rest on")
    chance: float | None = Field(default=None, description="accuracy of guessing, in percent")
    search: Mapping[str, str] = Field(default={}, description="what was tried for each method, by its name")
    searched: str | None = Field(default=None, description="how a search over ranges went, in words")


class Leaderboard(Stored):
    """``results/leaderboard/results.json``. search: the space in a sweep's words; note: what epsilon leaves out."""

    provenance: Provenance
    seeds: int
    trials: int
    search: str
    note: str
    boards: tuple[Board, ...]


Study = TypeVar("Study", PaperResults, Leaderboard)


def write_results(folder: Path, results: PaperResults | Leaderboard, runs: Sequence[RunRecord]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / RUNS_FILE, "".join(run.model_dump_json() + "\n" for run in runs))
    write_atomic(
        folder / RESULTS_FILE, json.dumps(results.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    )


def read_results(folder: Path, kind: type[Study]) -> tuple[Study, list[RunRecord]]:
    """Raises `RunFolderError` where there are none, or where they cannot be read."""
    return read_study(folder, kind), read_runs(folder)


def read_study(folder: Path, kind: type[Study]) -> Study:
    """The results without the runs. Raises `RunFolderError` as `read_results` does."""
    with _said(folder):
        return kind.model_validate_json((folder / RESULTS_FILE).read_text(encoding="utf-8"))


def read_runs(folder: Path) -> list[RunRecord]:
    """The records of a study's runs. Raises `RunFolderError` as `read_results` does."""
    with _said(folder):
        lines = (folder / RUNS_FILE).read_text(encoding="utf-8").removesuffix("\n").split("\n")
        return [RunRecord.model_validate_json(line) for line in lines if line]


@contextmanager
def _said(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder}: no results ({error.filename} is missing)") from None
    except ValidationError as error:
        first = error.errors()[0]
        words = f"{folder}: {RESULTS_FILE} or {RUNS_FILE}: {first['loc']}: {first['msg']}"
        raise RunFolderError(words) from None
