"""Words on a paper's page that need no run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpriv.studies.results import Cell, Claim, Estimate, PaperResults, Table, TableRow, Verdict
from fedpriv.studies.study_words import counted, page

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def claim(verdict: Verdict, words: str = "It is so.", setting: str = "") -> Claim:
    return Claim(name="n", claim="c", source="s", verdict=verdict, words=words, setting=setting)


def test_verdicts_are_counted_in_words() -> None:
    assert counted([claim("holds"), claim("not decided")]) == "1 holds, 1 is not decided"
    several = [claim("does not hold")] * 2 + [claim("holds")] * 3 + [claim("cannot be tested here")] * 2
    assert counted(several) == "3 hold, 2 do not hold, 2 cannot be tested here"


def of(unit: str, kind: str, *seeds: int, computed: bool = False) -> str:
    """What the page says of a table with cells of so many seeds."""
    made = json.loads((RESULTS / "coqfl" / "results.json").read_text(encoding="utf-8"))
    cells = tuple(Cell(measured=Estimate(n=n, mean=1.0) if n else None) for n in seeds)
    table = Table(
        name="t", title="T", source="figure 1", unit=unit, columns=tuple("abc"[: len(seeds)]), kind=kind,
        rows=(TableRow(name="r", label="R", cells=cells),), computed=computed,
    )  # fmt: skip
    words = page(PaperResults.model_validate(made | {"tables": [table.model_dump()]}))
    return words.partition("## T\n\nfigure 1. ")[2].partition("\n")[0]


@pytest.mark.parametrize(
    ("unit", "kind", "seeds", "words"),
    [
        ("%", "train", (3, 3), "In %, mean ± half width of the 95 % interval over 3 seeds."),
        ("", "dme", (3, 5), "Mean ± half width of the 95 % interval over 5 seeds (n: where there are fewer)."),
        ("%", "train", (1,), "In %, one seed."),
        ("", "attack", (1, 1), "One seed."),
        ("", "audit", (1,), "What was audited is a lower bound from one audit; the rest is computed."),
        ("%", "train", (0, 0), "Not run here."),
    ],
)
def test_a_table_says_what_its_figures_are(unit: str, kind: str, seeds: tuple[int, ...], words: str) -> None:
    assert of(unit, kind, *seeds) == words


def test_what_is_computed_has_no_seeds() -> None:
    assert of("", "plan", 1, computed=True) == "Computed."


def test_claims_of_one_setting_share_a_footnote() -> None:
    made = json.loads((RESULTS / "coqfl" / "results.json").read_text(encoding="utf-8"))
    claims = [
        claim("holds", "First. Not the paper's setting: small.", "small"),
        claim("holds", "Second. Not the paper's setting: large.", "large"),
        claim("holds", "Third. Not the paper's setting: small.", "small"),
        claim("holds", "Fourth."),
    ]
    words = page(PaperResults.model_validate(made | {"claims": [one.model_dump() for one in claims]}))
    rows = [line for line in words.split("\n") if line.startswith("| c | s |")]
    assert [row.rpartition("** | ")[2] for row in rows] == ["First. ¹ |", "Second. ² |", "Third. ¹ |", "Fourth. |"]
    assert "\n¹ Not the paper's setting: small.\n\n² Not the paper's setting: large.\n" in words
