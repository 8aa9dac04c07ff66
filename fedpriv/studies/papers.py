"""``conf/reproduction/<paper>.yaml``: the runs that reproduce a paper, the tables they fill, the claims they decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF
from fedpriv.config.explain import first_option_error
from fedpriv.studies.data import held_out, where
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import ClaimKind, Verdict

FOLDER = CONF / "reproduction"
#: More looks than this would cost more than they give (`fedpriv.studies.statistics`).
MOST_LOOKS = 5

Scale = Literal["small", "literal"]
Place = tuple[str, str, str]  # table, row, column

#: Where a figure of a table comes from: a path into summary.json; () of what is computed from the rounds.
MEASURES: Mapping[str, tuple[str, ...]] = {
    "accuracy": ("accuracy", "final"),
    "personalised": ("accuracy", "personalised"),
    "claimed_epsilon": ("privacy", "claimed_epsilon"),
    "verified_epsilon": ("privacy", "verified_epsilon"),
    "audited_epsilon": ("privacy", "audited_epsilon"),
    "bytes_up": ("traffic", "bytes_up"),
    "over_rounds": (),
    "over_first_third": (),
    "norm_first_third": (),
    "norm_last_third": (),
}
#: Measures that are shown in percent.
PERCENT = ("accuracy", "personalised", "over_rounds", "over_first_third")


class Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _several(value: Any) -> Any:
    return (value,) if isinstance(value, str | int) else value


def _cells(value: Any) -> Any:
    """Every "table/row/column" in nested lists as a tuple."""
    if isinstance(value, list):
        return tuple(map(_cells, value))
    return tuple(value.split("/")) if isinstance(value, str) else value


def _flat(value: Any) -> Iterator[Place]:
    """The cells in nested tuples."""
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _flat(part)


def _is_pair(value: Any) -> bool:
    """Whether these are two, and no two names."""
    return isinstance(value, tuple) and len(value) == 2 and not any(isinstance(one, str) for one in value)


def places(cell: Any) -> list[Place]:
    """A cell, or those whose mean stands for one."""
    return list(_flat(cell))


def _elsewhere(value: Any, tables: Mapping[str, str]) -> Any:
    """The same cells in other tables."""
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return (tables.get(value[0], value[0]), *value[1:])
    return tuple(_elsewhere(part, tables) for part in value) if isinstance(value, tuple) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_several)]
Numbers = Annotated[tuple[int, ...], BeforeValidator(_several)]
Nested = Annotated[tuple[Any, ...], BeforeValidator(_cells)]

#: Kind of a test -> what it needs, and what it may have.
TESTS: Mapping[str, tuple[set[str], set[str]]] = {
    "better": ({"pairs"}, {"reported", "smallest"}),
    "grows": ({"pairs"}, set()),
    "similar": ({"pairs", "within"}, {"size"}),
    "at_most": ({"cell", "bound"}, {"decides"}),
    "at_least": ({"cell", "bound"}, set()),
    "printed": ({"gains", "says"}, {"within"}),
    "ordered": (set(), {"rows", "gaps", "equal"}),
    "cannot": ({"why"}, set()),
}


class Test(Spec):
    """What decides a claim (`fedpriv.studies.verdicts`).

    better: of each of ``pairs`` of cells the first is larger, by a paired difference over seeds; a list of cells in
    place of one: the mean of them, seed by seed. reported: differences
    that the paper prints, in the order of the pairs. It fails also without an effect: where the difference lies within
    M of 0. M is the printed gain, else ``smallest``, the smallest gain that the paper prints for the same two methods
    elsewhere. grows: of each pair of pairs ((a, b), (c, d)): a - b is larger than c - d. similar: of each pair the
    values differ by at most ``within``; size: the paper prints how much, so it fails where `at_least` can.

    at_most: a figure is at most a number, or another cell. A verified epsilon is an upper bound, which refutes nothing
    above the claim unless ``decides`` says why it does here (it is exact, or a leak stands behind it); an audit refutes
    where the auditor says so, or ``decides`` says why. at_least: a mean reaches a printed value; missed only where the
    setting is the paper's and nothing is open that moves a level.

    printed: what a paper says of its own tables: of ``gains``, (cells, cells), the means differ by what ``says`` has in
    the same place, up to ``within``, which is for rounding. ordered: of each sequence in ``rows`` every printed figure
    is larger than the next (``equal``: or as large); gaps: the same of sequences of gains. cannot: ``why`` not.
    """

    kind: Literal["better", "grows", "similar", "at_most", "at_least", "printed", "ordered", "cannot"]
    pairs: Nested = ()
    reported: tuple[float, ...] = ()
    smallest: float | None = Field(default=None, gt=0)
    within: float = Field(default=0.0051, gt=0)
    size: bool = False
    cell: Annotated[Place | None, BeforeValidator(_cells)] = None
    bound: Annotated[float | Place | None, BeforeValidator(_cells)] = None
    decides: str = ""
    gains: Nested = ()
    says: tuple[float, ...] = ()
    rows: Nested = ()
    gaps: Nested = ()
    equal: bool = False
    why: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        needed, allowed = TESTS[self.kind]
        given = self.model_fields_set - {"kind"}
        if wrong := sorted((needed - given) | (given - needed - allowed)):
            raise ValueError(f"{self.kind} needs {', '.join(sorted(needed)) or 'rows or gaps'}: {', '.join(wrong)}")
        if empty := sorted(one for one in needed if getattr(self, one) in ((), "", None)):
            raise ValueError(f"{self.kind}: {', '.join(empty)} is empty")
        if self.kind == "ordered" and not (self.rows or self.gaps):
            raise ValueError("ordered needs rows or gaps")
        if self.kind == "at_least" and isinstance(self.bound, tuple):
            raise ValueError("at_least: bound must be a number")
        if self.kind == "printed" and len(self.says) != len(self.gains):
            raise ValueError("as many figures as gains are needed")
        if wrong_cell := next((cell for cell in (*self.cells, *self.printed) if len(cell) != 3), None):
            raise ValueError(f"{'/'.join(wrong_cell)}: a cell is table/row/column")
        inner = chain.from_iterable(self.pairs) if self.kind == "grows" else ()
        if not all(map(_is_pair, (*self.pairs, *inner))):
            raise ValueError(f"{self.kind}: pairs are lists of two" + " pairs" * (self.kind == "grows"))
        if len(self.reported) > len(self.pairs):
            raise ValueError("reported: at most one figure for each pair")
        return self

    @property
    def cells(self) -> list[Place]:
        return [*_flat(self.pairs), *_flat(self.cell), *_flat(self.bound)]

    @property
    def printed(self) -> list[Place]:
        return [*_flat(self.gains), *_flat(self.rows), *_flat(self.gaps)]


#: What would decide a claim that is not decided.
NEEDS = {
    "pictures": "pictures that are not here",
    "gpu": "hours on a GPU",
    "print": "what the paper does not print",
    "rival": "a rival that learns",
}


class ClaimSpec(Spec):
    """A row of a paper's claims. because: what explains the outcome; beside: cells that are quoted too. quote: the
    paper's own words, one part for each of ``line``, the lines of its text where they stand. beyond: why it is no claim
    of the paper, and has no verdict. before: the verdict of the list before the protocol, "new" for what was not on it;
    where it is another one, on runs, it counts only if fresh seeds confirm it (docs/results/protocol.md, section 6).
    rule: that moved it. late: the list's own verdict, too, came from a rule that was made after its seeds. confirm:
    table -> the table with fresh seeds. confirm_pair: the one pair, by its number, that these are for: it can confirm
    that the claim fails, and not that it holds. otherwise: a second reading, both over seeds; the better of the two
    counts. needs: what would decide it, of what nothing here tests (of `NEEDS`; missing pictures need not be named).
    """

    claim: str
    source: str
    test: Test
    quote: Words = ()
    line: Numbers = ()
    because: str = ""
    otherwise: Test | None = None
    beside: Nested = ()
    beyond: str = ""
    before: Verdict | Literal["new"] | None = None
    rule: str = ""
    late: bool = False
    confirm: Mapping[str, str] = {}
    confirm_pair: int | None = Field(default=None, ge=0)
    needs: Literal["gpu", "print", "rival"] | None = None

    def confirming(self) -> ClaimSpec | None:
        """The same on fresh seeds, if it is planned."""
        if not self.confirm:
            return None
        one = slice(None) if self.confirm_pair is None else slice(self.confirm_pair, self.confirm_pair + 1)
        tests = {
            name: test
            and test.model_copy(
                update={
                    "pairs": _elsewhere(test.pairs[one], self.confirm),
                    "reported": test.reported[one],
                    "cell": _elsewhere(test.cell, self.confirm),
                }
            )
            for name, test in (("test", self.test), ("otherwise", self.otherwise))
        }
        return self.model_copy(update=tests)

    @model_validator(mode="after")
    def _over_seeds(self) -> Self:
        kinds = {test.kind for test in (self.test, self.otherwise) if test and self.otherwise}
        if not kinds <= {"better", "similar", "grows"}:
            raise ValueError(f"otherwise: readings over seeds are compared, not {', '.join(sorted(kinds))}")
        if self.before is None and (self.rule or self.late or self.confirm):
            raise ValueError("before: is missing, the verdict before the rule (or new): rule, late and confirm need it")
        if len(self.quote) != len(self.line):
            raise ValueError(f"quote: one part for each line, not {len(self.quote)} for {len(self.line)}")
        if self.confirm_pair is not None and not (self.confirm and self.confirm_pair < len(self.test.pairs)):
            raise ValueError(f"confirm_pair {self.confirm_pair}: confirm and so many pairs are needed")
        return self

    @property
    def rests_on(self) -> list[Place]:
        """All cells of its verdict and its words."""
        fresh = self.confirming()
        second = self.otherwise.cells if self.otherwise else ()
        return [*self.test.cells, *second, *self.beside, *self.test.printed, *(fresh.test.cells if fresh else ())]


class Line(Spec):
    """A row or a column: overrides in YAML's own words, for all scales and for one. measure: where not the table's.
    best_of: "table/row" of a search (`TableSpec.held`): the options of its best column are added.
    """

    label: str
    best_of: Annotated[tuple[str, str] | None, BeforeValidator(_cells)] = None
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
    paper does not print, and what stands here in its place, by item (`Item`). seeds: in place of the paper's (`Paper`).
    first_seed: 100 for a table that confirms another with fresh seeds. lines: where reported figures stand in the text.
    """

    title: str
    source: str
    kind: Literal["train", "plan", "audit", "attack", "dme", "computed", "printed"] = "train"
    dataset: str | None = None
    measure: str = "accuracy"
    options: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    literal: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    scales: tuple[Scale, ...] = ("small", "literal")
    small_differs: str = ""
    differs: Words = ()
    open: Mapping[Item, str] = {}
    held: int | None = Field(default=None, ge=1)
    only_small: str = ""
    seeds: Mapping[Scale, Numbers] | Numbers | None = None
    first_seed: int = Field(default=0, ge=0)
    rows: Mapping[str, Line]
    columns: Mapping[str, Line]
    left_out: tuple[tuple[str, str], ...] = ()
    reported: Mapping[str, Mapping[str, float]] = {}
    lines: Mapping[str, Mapping[str, int]] = {}
    orderings: bool = True
    notes: tuple[str, ...] = ()

    @property
    def all_lines(self) -> list[Line]:
        return [*self.rows.values(), *self.columns.values()]

    @property
    def places(self) -> list[tuple[str, str]]:
        """(row, column)."""
        return [(row, column) for row in self.rows for column in self.columns]

    def differences(self, scale: Scale) -> list[str]:
        """In what the table's setting is not the paper's."""
        return [words for words in (*self.differs, self.small_differs if scale == "small" else "") if words]

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


class Paper(Spec):
    """One paper. text: the file of its own text, to which ``lines`` and ``line`` refer. case: the strongest fair case
    for it that the runs make, a paragraph each, with figures in braces: {table/row/column}, a difference of two of
    them, {printed} and {printed that hold}. seeds: of every cell, look by look.
    """

    paper: str
    text: str = ""
    title: str
    authors: str
    idea: str
    leak: str
    repair: str
    methods: tuple[str, ...]
    case: tuple[str, ...] = ()
    seeds: Mapping[Scale, Numbers]
    tables: Mapping[str, TableSpec]
    figures: Mapping[str, FigureSpec] = {}
    claims: Mapping[str, ClaimSpec]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for place, words in chain(self._wrong_tables(), self._wrong_claims(), self._wrong_figures()):
            raise ValueError(f"{place}: {words}")
        return self

    def _wrong_tables(self) -> Iterator[tuple[str, str]]:
        for name, table in self.tables.items():
            where, places = f"tables.{name}", set(table.places)
            printed, lines = ({(r, c) for r in part for c in part[r]} for part in (table.reported, table.lines))
            for place in (*table.left_out, *printed):
                if place not in places:
                    yield where, f"no such row and column: {', '.join(place)}"
            if self.text and printed != lines:
                yield where, "every reported figure has its line in `lines`, nothing else has one"
            for measure in (table.measure, *(line.measure for line in table.all_lines)):
                if measure and measure not in MEASURES and not measure.startswith("figure:"):
                    yield where, f"no such measure: {measure}; allowed: {', '.join(MEASURES)}, figure:NAME"
            for line in table.all_lines:
                search, row = line.best_of or (name, next(iter(table.rows)))
                if search not in self.tables or row not in self.tables[search].rows:
                    yield where, f"no such search: {search}/{row}"
                elif line.best_of and not self.tables[search].held:
                    yield where, f"{search} chooses by test pictures: give it `held`"
            for scale in self.seeds:
                looks = self.looks(name, scale)
                if not 1 <= len(looks) <= MOST_LOOKS or looks[0] < 1 or any(b <= a for a, b in pairwise(looks)):
                    yield where, f"seeds must be 1 to {MOST_LOOKS} growing numbers"

    def _wrong_claims(self) -> Iterator[tuple[str, str]]:
        for name, claim in self.claims.items():
            where = f"claims.{name}"
            for table, row, column in claim.rests_on:
                known = self.tables.get(table)
                if known is None or (row, column) not in known.places:
                    yield where, f"no such cell: {table}/{row}/{column}"
                elif (row, column) in known.left_out:
                    yield where, f"{table}/{row}/{column} is left out"
            second = claim.otherwise.cells if claim.otherwise else []
            if wrong := claim.confirm.keys() - {table for table, _, _ in (*claim.test.cells, *second)}:
                yield where, f"confirm: its tests have no table {', '.join(sorted(wrong))}"
            if (fresh := claim.confirming()) is not None:
                cells = fresh.test.cells + (fresh.otherwise.cells if fresh.otherwise else [])
                if seen := {table for table, _, _ in cells if not self.tables[table].first_seed}:
                    yield where, f"confirm: no fresh seeds in {', '.join(sorted(seen))} (first_seed: 100 makes them)"
            for table, row, column in claim.test.printed:
                if column not in self.tables[table].reported.get(row, {}):
                    yield where, f"nothing is reported in {table}/{row}/{column}"
            for pair in claim.test.pairs:  # compared seed by seed
                (first, *_), *others = _flat(pair)
                for table, *_ in others:
                    if any(self.looks(first, scale) != self.looks(table, scale) for scale in self.seeds):
                        yield where, f"{first} and {table} have other seeds"

    def _wrong_figures(self) -> Iterator[tuple[str, str]]:
        for name, figure in self.figures.items():
            where, table = f"figures.{name}", self.tables.get(figure.table)
            if table is None:
                yield where, f"no such table: {figure.table}"
                continue
            for row in (*figure.rows, *figure.against, *figure.against.values()):
                if row not in table.rows:
                    yield where, f"no such row: {row}"
            if figure.ylog and figure.against:
                yield where, "differences have no logarithm: ylog or against"
            if figure.kind != "lines" and figure.column not in table.columns:
                yield where, f"no such column: {figure.column}"
            if figure.kind == "lines" and len(figure.x) != len(table.columns):
                yield where, f"x has one number for each of {len(table.columns)} columns"

    def kind_of(self, claim: ClaimSpec) -> ClaimKind:
        """What decides a claim. One that nothing tests is of the kind of the cells beside it, without any of training,
        since it would take runs.
        """
        if claim.test.kind in ("printed", "ordered"):
            return "tables"
        cells = claim.test.cells or list(_flat(claim.beside))
        return "training" if not cells or any(map(self._is_learned, cells)) else "mathematics"

    def _is_learned(self, place: Place) -> bool:
        """Whether a figure is of a network that was trained. Bounds on privacy and counts of bytes follow from a run's
        options, whatever it learns; what is computed from pictures trains.
        """
        table, row, column = place
        spec = self.tables[table]
        counted = MEASURES.get(spec.measure_of(row, column), ())[:1] in (("privacy",), ("traffic",))
        return not counted and (spec.kind in ("train", "attack") or (spec.kind == "computed" and bool(spec.dataset)))

    def looks(self, table: str, scale: Scale, wanted: int | None = None) -> tuple[int, ...]:
        """Seeds in all at each look that is planned for a table; what is computed needs no spread. wanted: of the
        person who calls: one look, at so many, where a table has not fewer of its own.
        """
        spec = self.tables[table]
        if spec.kind in ("plan", "computed", "printed") or spec.held is not None:
            return (1,)
        looks = (spec.seeds.get(scale) if isinstance(spec.seeds, Mapping) else spec.seeds) or self.seeds[scale]
        if wanted is None or looks == (1,):
            return looks
        return (min(wanted, looks[-1]) if spec.seeds else wanted,)

    def only(self, names: Sequence[str]) -> Paper:
        """These tables alone, with the searches that they need, the figures of theirs, and the claims that rest on them
        alone. Raises `OptionError` for a table that there is not.
        """
        for name in names:
            if name not in self.tables:
                raise OptionError("table", name, f"{self.paper} has {', '.join(self.tables)}")
        kept = {name: self.tables[name] for name in names}
        for line in [line for table in kept.values() for line in table.all_lines if line.best_of]:
            kept.setdefault(line.best_of[0], self.tables[line.best_of[0]])  # type: ignore[index]
        rests = {name: {table for table, _, _ in claim.rests_on} for name, claim in self.claims.items()}
        claims = {name: self.claims[name] for name, tables in rests.items() if tables and tables <= kept.keys()}
        figures = {name: figure for name, figure in self.figures.items() if figure.table in kept}
        return self.model_copy(update={"tables": kept, "claims": claims, "figures": figures, "case": ()})


Model = TypeVar("Model", bound=BaseModel)


def read(file: Path, kind: type[Model], option: str) -> Model:
    """A study's file. Raises `OptionError` that names file, place and value."""
    try:
        return kind.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise OptionError(option, str(file), f"cannot be read ({' '.join(str(error).split())})") from None
    except ValidationError as error:
        raise refused(error, str(file), option) from None


def refused(error: ValidationError, file: str, option: str) -> OptionError:
    """The first thing that is wrong in a study's file, with its place and value."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        place = "".join(f"{part}." for part in first["loc"]).rstrip(".")
        return OptionError(option, file, ": ".join(filter(None, (place, str(first["ctx"]["error"])))))
    wrong = first_option_error(error)
    return OptionError(f"{option}={file}: {wrong.option}", wrong.value, wrong.allowed)


def papers() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(paper: str) -> Paper:
    """Raises `OptionError` for a paper that is not there, and for a file that is not as it must be."""
    if paper not in papers():
        raise OptionError("paper", paper, f"allowed: {', '.join([*papers(), 'all'])}")
    return read(FOLDER / f"{paper}.yaml", Paper, "paper")


# --- jobs --------------------------------------------------------------------------------------------------

#: Table and row of a search -> the options of its best column.
Best = Mapping[tuple[str, str], tuple[str, ...]]
#: Seeds of the runs among which is chosen: none of them is a seed of the runs that are shown as results.
SEARCH_SEED = 1000


def plan(
    paper: Paper,
    scale: Scale,
    data: Path,
    folder: Path,
    *,
    download: bool = False,
    seeds: int | None = None,
    best: Best | None = None,
) -> tuple[dict[Place, list[Job]], dict[Place, str]]:
    """(the jobs of every cell for all looks, seed by seed; why others have none). best: what the searches found; before
    they have run (None) each stands at its first column. folder: where the files lie that divide pictures for searches.
    """
    jobs: dict[Place, list[Job]] = {}
    missing: dict[Place, str] = {}
    for name, table in paper.tables.items():
        found = () if table.dataset is None else where(table.dataset, data, download)
        why = ""
        if table.kind == "printed":
            why = table.only_small
        elif scale not in table.scales:
            why = table.only_small or f"at scale={' or '.join(table.scales)} only"
        elif found is None:
            why = f"the pictures of {table.dataset} were not there (data=FOLDER, or download=true)"
        elif table.held is not None:
            dataset = table.dataset or "digits"
            split, _ = held_out(found or ("dataset=digits",), dataset, table.held, SEARCH_SEED, folder)
            found = (*found, f"dataset.split={split}")
        first = SEARCH_SEED if table.held is not None else table.first_seed
        for row, column in table.places:
            if (row, column) in table.left_out:
                continue
            searches = [line.best_of for line in (table.rows[row], table.columns[column]) if line.best_of]
            if best is not None and any(search not in best for search in searches):
                missing[name, row, column] = "its search found nothing"
            elif why:
                missing[name, row, column] = why
            else:
                chosen = [best[one] if best is not None else _first(paper, one[0], scale) for one in searches]
                options = options_of(table, row, column, scale, found or (), [o for some in chosen for o in some])
                last = first + paper.looks(name, scale, seeds)[-1]
                jobs[name, row, column] = [Job(table.kind, options, seed, table.extra) for seed in range(first, last)]
    return jobs, missing


def _first(paper: Paper, search: str, scale: Scale) -> tuple[str, ...]:
    """Stands for a search that has not run."""
    line = next(iter(paper.tables[search].columns.values()))
    return (*line.options, *getattr(line, scale))


def options_of(
    table: TableSpec, row: str, column: str, scale: Scale, pictures: Sequence[str], chosen: Sequence[str] = ()
) -> tuple[str, ...]:
    """General before special: a later override of an option takes the place of an earlier one; `scale=small` among
    those for scale=literal keeps a table small.
    """
    lines = (table, table.rows[row], table.columns[column])
    given = [*(option for line in lines for option in (*line.options, *getattr(line, scale))), *chosen]
    named = {option.partition("=")[0]: option for option in (*pictures, *given)}
    experiment = [named.pop("experiment"), named.pop("scale", f"scale={scale}")] if "experiment" in named else []
    return (*experiment, *named.values())
