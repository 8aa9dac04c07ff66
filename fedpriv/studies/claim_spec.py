"""A paper's claims in ``conf/reproduction/<paper>.yaml``: words, place, and what decides them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from fedpriv.studies.results import Verdict


class Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def one_look(value: Any) -> Any:
    return (value,) if isinstance(value, int) else value


def one_text(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def reference(value: Any) -> Any:
    return tuple(value.split("/")) if isinstance(value, str) else value


#: A cell, "table/row/column".
Reference = Annotated[tuple[str, str, str], BeforeValidator(reference)]


class Better(Spec):
    """Of each pair the first is larger (accuracies in percent), by a paired difference over seeds. reported: the
    differences that the paper prints, in the order of the pairs; they are quoted. It fails also without an effect:
    where the difference lies within M of 0. M is the printed gain; of pairs without one it is ``smallest``, the
    smallest gain that the paper prints for the same two methods elsewhere (docs/results/protocol.md).
    """

    kind: Literal["better"]
    pairs: tuple[tuple[Reference, Reference], ...] = Field(min_length=1)
    reported: tuple[float, ...] = ()
    smallest: float | None = Field(default=None, gt=0)


class Grows(Spec):
    """Of each pair of pairs the first difference is larger than the second, by a paired difference over seeds:
    ((a, b), (c, d)): a - b is larger than c - d. It has no M. A rival b or d that guesses decides nothing.
    """

    kind: Literal["grows"]
    pairs: tuple[tuple[tuple[Reference, Reference], tuple[Reference, Reference]], ...] = Field(min_length=1)


class Similar(Spec):
    """Of each pair the values differ by at most ``within``. size: the sentence prints how much they differ, so that it
    fails where `AtLeast` can, in the paper's setting alone.
    """

    kind: Literal["similar"]
    pairs: tuple[tuple[Reference, Reference], ...] = Field(min_length=1)
    within: float = Field(gt=0)
    size: bool = False


class AtMost(Spec):
    """A value is at most a bound (a number, or another cell): how a stated epsilon is held against a verified or an
    audited one. A verified epsilon is an upper bound, and above the claim it refutes nothing, unless `decides` says why
    it does here (it is exact, or a leak stands behind it); an audit refutes where the auditor says so, or `decides`
    says why its figure is one about the claim.
    """

    kind: Literal["at_most"]
    cell: Reference
    bound: float | Reference
    decides: str = ""


class AtLeast(Spec):
    """A mean reaches a value that the paper prints. Missed only where the setting is the paper's (no `differs`, no
    `small_differs`) and nothing is `open` that moves a level.
    """

    kind: Literal["at_least"]
    cell: Reference
    bound: float


class Printed(Spec):
    """What a paper says of its own tables against what they hold, by the printed figures alone. gains: (cells, cells),
    whose means differ by so much as `says` has in the same place, up to `within`, which is for rounding.
    """

    kind: Literal["printed"]
    gains: tuple[tuple[tuple[Reference, ...], tuple[Reference, ...]], ...] = Field(min_length=1)
    says: tuple[float, ...]
    within: float = Field(default=0.0051, gt=0)

    @property
    def printed(self) -> list[tuple[str, str, str]]:
        return [cell for gain in self.gains for side in gain for cell in side]


class Ordered(Spec):
    """What a paper says of its own tables without numbers: of each sequence of printed figures every one is larger than
    the next; with ``equal``, or as large. gaps: the same of sequences of gains, each (cells, cells), whose means are
    subtracted.
    """

    kind: Literal["ordered"]
    rows: tuple[tuple[Reference, ...], ...] = ()
    gaps: tuple[tuple[tuple[tuple[Reference, ...], tuple[Reference, ...]], ...], ...] = ()
    equal: bool = False

    @property
    def printed(self) -> list[tuple[str, str, str]]:
        compared = [cell for gaps in self.gaps for gain in gaps for side in gain for cell in side]
        return [*(cell for row in self.rows for cell in row), *compared]


class Cannot(Spec):
    kind: Literal["cannot"]
    why: str


class ClaimSpec(Spec):
    """because: what explains the outcome, in words; added to the verdict's own. beside: cells that are quoted too.
    quote: the paper's own words, one part for each of ``line``, the lines of its text where they stand. beyond: a
    finding that is no claim of the paper, which has no verdict; the reason why. before: the verdict of the list before
    the protocol, "new" for what was not on it; where it is another one, on runs, it counts only if fresh seeds confirm
    it (docs/results/protocol.md, section 6). rule: that moved it, in words. late: the list's own verdict, too, came
    from a rule that was made after its seeds. confirm: table -> the table with fresh
    seeds.
    """

    claim: str
    source: str
    test: Annotated[
        Better | Grows | Similar | AtMost | AtLeast | Printed | Ordered | Cannot, Field(discriminator="kind")
    ]
    quote: Annotated[tuple[str, ...], BeforeValidator(one_text)] = ()
    line: Annotated[tuple[int, ...], BeforeValidator(one_look)] = ()
    because: str = ""
    beside: tuple[Reference, ...] = ()
    beyond: str = ""
    before: Verdict | Literal["new"] | None = None
    rule: str = ""
    late: bool = False
    confirm: Mapping[str, str] = {}

    def confirming(self) -> ClaimSpec | None:
        """The same on fresh seeds, if it is planned."""
        if not self.confirm or not isinstance(self.test, Better | Grows | Similar | AtLeast):
            return None
        fresh = {name: (self.confirm.get(name[0], name[0]), *name[1:]) for name in self.cells}
        changed: dict[str, Any]
        match self.test:
            case AtLeast(cell=cell):
                changed = {"cell": fresh[cell]}
            case Grows(pairs=gains):
                changed = {"pairs": tuple(tuple((fresh[a], fresh[b]) for a, b in gain) for gain in gains)}
            case Better(pairs=pairs) | Similar(pairs=pairs):
                changed = {"pairs": tuple((fresh[one], fresh[other]) for one, other in pairs)}
        return self.model_copy(update={"test": self.test.model_copy(update=changed)})

    @property
    def tables(self) -> frozenset[str]:
        """All that its verdict and its words rest on."""
        fresh = self.confirming()
        printed = self.test.printed if isinstance(self.test, Printed | Ordered) else ()
        return frozenset(cell[0] for cell in (*self.cells, *self.beside, *printed, *(fresh.cells if fresh else ())))

    @property
    def compared(self) -> list[list[tuple[str, str, str]]]:
        """Those cells whose runs are compared seed by seed."""
        match self.test:
            case Better(pairs=pairs) | Similar(pairs=pairs):
                return [list(pair) for pair in pairs]
            case Grows(pairs=gains):
                return [[cell for pair in gain for cell in pair] for gain in gains]
        return []

    @property
    def cells(self) -> list[tuple[str, str, str]]:
        match self.test:
            case Better() | Similar() | Grows():
                return [cell for cells in self.compared for cell in cells]
            case AtMost(cell=cell, bound=bound):
                return [cell, bound] if isinstance(bound, tuple) else [cell]
            case AtLeast(cell=cell):
                return [cell]
        return []
