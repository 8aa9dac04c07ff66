"""``conf/reproduction/<paper>.yaml``: the runs that reproduce a paper, the tables they fill, the claims they decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF
from fedpriv.studies.claim_spec import (
    ClaimSpec,
    Ordered,
    Printed,
    Spec,
    one_look,
    one_text,
    reference,
)
from fedpriv.studies.evidence import MOST_LOOKS

FOLDER = CONF / "reproduction"

Scale = Literal["small", "literal"]
Kind = Literal["train", "plan", "audit", "attack", "dme", "computed", "printed"]

#: Where a figure of a table comes from: a path into summary.json, or a figure of the job.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "accuracy": ("accuracy", "final"),
    "personalised": ("accuracy", "personalised"),
    "claimed_epsilon": ("privacy", "claimed_epsilon"),
    "verified_epsilon": ("privacy", "verified_epsilon"),
    "audited_epsilon": ("privacy", "audited_epsilon"),
    "bytes_up": ("traffic", "bytes_up"),
    "over_rounds": (),  # of the curve, not of the summary
    "over_first_third": (),
    "norm_first_third": (),  # of the mean lengths of the updates
    "norm_last_third": (),
}
#: Measures that are shown in percent.
PERCENT = ("accuracy", "personalised", "over_rounds", "over_first_third")


def _looks(value: tuple[int, ...]) -> tuple[int, ...]:
    if not 1 <= len(value) <= MOST_LOOKS or value[0] < 1 or any(b <= a for a, b in pairwise(value)):
        raise ValueError(f"seeds must be 1 to {MOST_LOOKS} growing numbers")
    return value


#: Seeds in all at each look, fixed before: a number for one look, or several of them.
Looks = Annotated[tuple[int, ...], BeforeValidator(one_look), AfterValidator(_looks)]


class Line(Spec):
    """A row or a column: overrides in YAML's own words, for all scales and for one. measure: where not the table's.
    best_of: "table/row" of a search (`TableSpec.held`): the options of its best column are added.
    """

    label: str
    best_of: Annotated[tuple[str, str] | None, BeforeValidator(reference)] = None
    options: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    literal: tuple[str, ...] = ()
    measure: str | None = None


#: Items of a setting (docs/results/protocol.md, section 2).
Item = Literal["data", "network", "clients", "rounds", "local training", "clip norm", "noise", "mechanism"]
#: A level or a printed size is held against a paper only if none of these is open.
MOVES_LEVELS: frozenset[Item] = frozenset({"data", "network", "rounds", "local training", "clip norm", "noise"})


class TableSpec(Spec):
    """rows x columns of jobs; of kind printed: what a paper prints and nothing here is run for (`only_small` says why).
    dataset: where a run's pictures are is added by the command (null: no data needed, or the digits). experiment's
    scale is added too, unless `literal` has scale=small. scales: at which of them the table is made at all.
    small_differs: in what scale=small is not the paper's setting, in words; empty where it is. held: so many pictures
    of the training set are kept from training, and accuracy is that on them: for tables in which an option is chosen.
    differs: in what no scale is the paper's setting, one part or several: printed there, and other here. open: what the
    paper does not print, and what stands here in its place, by item (`Item`). seeds, core_minutes: in place of the
    paper's (`Reproduction`). first_seed: 100 for a table that confirms another with fresh seeds.
    """

    title: str
    source: str
    kind: Kind = "train"
    dataset: str | None = None
    measure: str = "accuracy"
    options: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    literal: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    scales: tuple[Scale, ...] = ("small", "literal")
    small_differs: str = ""
    differs: Annotated[tuple[str, ...], BeforeValidator(one_text)] = ()
    open: Mapping[Item, str] = {}
    held: int | None = Field(default=None, ge=1)
    only_small: str = Field(default="", description="why there is nothing at a scale that is not named")
    seeds: Mapping[Scale, Looks] | Looks | None = None
    first_seed: int = Field(default=0, ge=0)
    core_minutes: Mapping[Scale, Annotated[float, Field(gt=0)]] = {}
    rows: Mapping[str, Line]
    columns: Mapping[str, Line]
    left_out: tuple[tuple[str, str], ...] = ()
    reported: Mapping[str, Mapping[str, float]] = {}
    lines: Mapping[str, Mapping[str, int]] = Field(default={}, description="where these stand in the paper's text")
    orderings: bool = True
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        known = {(row, column) for row in self.rows for column in self.columns}
        printed = [(row, column) for row, cells in self.reported.items() for column in cells]
        named = [*self.left_out, *printed]
        if wrong := [place for place in named if tuple(place) not in known]:
            raise ValueError(f"no such row and column: {', '.join(map(str, wrong[0]))}")
        measures = [self.measure, *(line.measure for line in (*self.rows.values(), *self.columns.values()))]
        if wrong_measures := [m for m in measures if m and m not in MEASURES and not m.startswith("figure:")]:
            raise ValueError(f"no such measure: {wrong_measures[0]}; allowed: {', '.join(MEASURES)}, figure:NAME")
        return self

    @property
    def trains(self) -> bool:
        """Whether its figures come from training (and not from plans, audits of release code or mean estimation)."""
        return self.kind in ("train", "attack")

    def differences(self, scale: Scale) -> list[str]:
        """In what the table's setting is not the paper's."""
        return [words for words in (*self.differs, self.small_differs if scale == "small" else "") if words]

    def percent(self, row: str, column: str) -> bool:
        return self.measure_of(row, column) in PERCENT

    def measure_of(self, row: str, column: str) -> str:
        return self.rows[row].measure or self.columns[column].measure or self.measure


class FigureSpec(Spec):
    """curves: accuracy over rounds of a table's rows in one column. lines: a table's cells over numbers x of its
    columns. norms: the mean length of the clients' updates over rounds. against: row -> the row that is subtracted from
    it, seed by seed, for curves that would lie on each other. skip_guessing: rows that only guess, while others learn,
    are named in the caption and not drawn. log, ylog: logarithmic axes.
    """

    kind: Literal["curves", "lines", "norms"]
    table: str
    title: str
    caption: str
    column: str | None = None
    rows: tuple[str, ...] = ()
    x: tuple[float, ...] = ()
    xlabel: str = "round"
    ylabel: str = "test accuracy in %"
    log: bool = False
    ylog: bool = False
    against: Mapping[str, str] = {}
    skip_guessing: bool = False


def _printed(table: TableSpec) -> tuple[Mapping[str, Mapping[str, Any]], ...]:
    return table.reported, table.lines


class Reproduction(Spec):
    """One paper. case: the strongest fair case for it that the runs make, a paragraph each, with figures in braces
    (`fedpriv.studies.fair_case`). seeds: of every cell, look by look.
    core_minutes: that a table may use; a cell gets its next look only
    while a claim that rests on it is open and this is not used up, and its first one always. client_epochs: at most so
    many epochs of 600 pictures are trained, at each scale.
    """

    paper: str
    text: str = Field(default="", description="the paper's own text, to which `lines` and `line` refer")
    title: str
    authors: str
    idea: str
    leak: str
    repair: str
    methods: tuple[str, ...]
    case: tuple[str, ...] = ()
    seeds: Mapping[Scale, Looks]
    core_minutes: Mapping[Scale, Annotated[float, Field(gt=0)]] = {}
    client_epochs: Mapping[Scale, float]
    tables: Mapping[str, TableSpec]
    figures: Mapping[str, FigureSpec] = {}
    claims: Mapping[str, ClaimSpec]

    @model_validator(mode="after")
    def _references_exist(self) -> Self:
        for name, table_spec in self.tables.items() if self.text else ():
            where = [{(row, column) for row in part for column in part[row]} for part in _printed(table_spec)]
            if where[0] != where[1]:
                raise ValueError(f"tables.{name}: every reported figure has its line in `lines`, nothing else has one")
        for name, claim in self.claims.items():
            fresh = claim.confirming()
            for table, row, column in (*claim.cells, *claim.beside, *(fresh.cells if fresh else ())):
                known = self.tables.get(table)
                if known is None or row not in known.rows or column not in known.columns:
                    raise ValueError(f"claims.{name}: no such cell: {table}/{row}/{column}")
                if (row, column) in known.left_out:
                    raise ValueError(f"claims.{name}: {table}/{row}/{column} is left out")
            if isinstance(claim.test, Printed | Ordered):
                for table, row, column in claim.test.printed:
                    if table not in self.tables or column not in self.tables[table].reported.get(row, {}):
                        raise ValueError(f"claims.{name}: nothing is reported in {table}/{row}/{column}")
                if isinstance(claim.test, Printed) and len(claim.test.says) != len(claim.test.gains):
                    raise ValueError(f"claims.{name}: as many figures as gains are needed")
            for (first, _, _), *others in claim.compared:  # seed by seed
                for table, _, _ in others:
                    if any(self.looks(first, scale) != self.looks(table, scale) for scale in self.seeds):
                        raise ValueError(f"claims.{name}: {first} and {table} have other seeds")
        for name, table_spec in self.tables.items():
            for line in (*table_spec.rows.values(), *table_spec.columns.values()):
                search, row = line.best_of or (name, next(iter(table_spec.rows)))
                if search not in self.tables or row not in self.tables[search].rows:
                    raise ValueError(f"tables.{name}: no such search: {search}/{row}")
                if line.best_of and not self.tables[search].held:
                    raise ValueError(f"tables.{name}: {search} chooses by test pictures: give it `held`")
        for name, figure in self.figures.items():
            shown = self.tables.get(figure.table)
            if shown is None:
                raise ValueError(f"figures.{name}: no such table: {figure.table}")
            named = [*figure.rows, *figure.against, *figure.against.values()]
            if unknown := [row for row in named if row not in shown.rows]:
                raise ValueError(f"figures.{name}: no such row: {unknown[0]}")
            if figure.ylog and figure.against:
                raise ValueError(f"figures.{name}: differences have no logarithm: ylog or against")
            if figure.kind != "lines" and figure.column not in shown.columns:
                raise ValueError(f"figures.{name}: no such column: {figure.column}")
            if figure.kind == "lines" and len(figure.x) != len(shown.columns):
                raise ValueError(f"figures.{name}: x has one number for each of {len(shown.columns)} columns")
        return self

    def looks(self, table: str, scale: Scale) -> tuple[int, ...]:
        """Seeds in all at each look that is planned for a table; what is computed needs no spread."""
        found = self.tables[table]
        if found.kind in ("plan", "computed", "printed") or found.held is not None:
            return (1,)
        own = found.seeds.get(scale) if isinstance(found.seeds, Mapping) else found.seeds
        return own or self.seeds[scale]

    def with_core_minutes(self, minutes: float) -> Reproduction:
        """The same, where every table may use so many. What is decided stays sound: `fedpriv.studies.evidence`."""
        tables = {name: table.model_copy(update={"core_minutes": {}}) for name, table in self.tables.items()}
        return self.model_copy(update={"core_minutes": dict.fromkeys(self.seeds, minutes), "tables": tables})

    def only(self, names: Sequence[str]) -> Reproduction:
        """These tables alone, with the searches that they need, the figures of theirs, and the claims that rest on them
        alone. Raises `OptionError` for a table that there is not.
        """
        for name in names:
            if name not in self.tables:
                raise OptionError("table", name, f"{self.paper} has {', '.join(self.tables)}")
        kept = {name: self.tables[name] for name in names}
        for table in list(kept.values()):
            for line in (*table.rows.values(), *table.columns.values()):
                if line.best_of:
                    kept.setdefault(line.best_of[0], self.tables[line.best_of[0]])
        claims = {name: one for name, one in self.claims.items() if one.tables and one.tables <= kept.keys()}
        figures = {name: figure for name, figure in self.figures.items() if figure.table in kept}
        return self.model_copy(update={"tables": kept, "claims": claims, "figures": figures, "case": ()})

    def budget(self, table: str, scale: Scale) -> float:
        """Core-seconds."""
        return 60 * self.tables[table].core_minutes.get(scale, self.core_minutes.get(scale, math.inf))


def papers() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(paper: str) -> Reproduction:
    """Raises `OptionError` for a paper that is not there, and for a file that is not as it must be."""
    if paper not in papers():
        raise OptionError("paper", paper, f"allowed: {', '.join([*papers(), 'all'])}")
    return read(FOLDER / f"{paper}.yaml")


def read(file: Path) -> Reproduction:
    """Raises `OptionError` that names file, place and value."""
    try:
        return Reproduction.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise OptionError("paper", file, " ".join(str(error).split())) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise OptionError("paper", file, f"{place}: {first['msg']}") from None
