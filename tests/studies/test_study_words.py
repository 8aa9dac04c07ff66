"""Words on a paper's page that need no run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpriv.report.words import plus_minus
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
    rows = [line for line in words.split("\n") if line.startswith("| c | ")]
    assert [row.rpartition("** | ")[2] for row in rows] == ["Fourth. |", "First. ¹ |", "Second. ² |", "Third. ¹ |"]
    own, _, another = words.partition("### In another setting")
    assert "Fourth." in own and "First." not in own and "First." in another
    assert "- In another setting: 3, 3 hold." in words and ": 1, 1 holds." in words
    assert "\n¹ Not the paper's setting: small.\n\n² Not the paper's setting: large.\n" in words


def of_claims(*claims: Claim, **changes: object) -> str:
    made = json.loads((RESULTS / "coqfl" / "results.json").read_text(encoding="utf-8"))
    return page(PaperResults.model_validate(made | {"claims": [one.model_dump() for one in claims]} | changes))


def test_a_page_opens_with_what_the_authors_would_say() -> None:
    words = of_claims(claim("holds"), case=["A case."])
    assert words.index("## What the authors would say\n\nA case.") < words.index("## What was found")
    assert "What the authors" not in of_claims(claim("holds"), case=[])


def test_quotes_stand_with_their_lines() -> None:
    quoted = claim("holds").model_copy(update={"quote": ("one", "two"), "line": (3, 3)})
    assert "| c | “one” … “two” (s, line 3) | **holds** |" in of_claims(quoted)


def test_what_the_protocol_moved_is_listed_with_its_old_verdict() -> None:
    moved = claim("not decided").model_copy(update={"before": "does not hold", "rule": "a rule"})
    same, new = (claim("holds").model_copy(update={"before": one}) for one in ("holds", "new"))
    words = of_claims(moved, same, new).partition("## What the protocol changed")[2]
    assert "| c | does not hold | not decided | a rule |" in words and words.count("| c | holds |") == 0
    assert "New on the list: 1 (1 holds)." in words
    assert "What the protocol changed" not in of_claims(same)


def test_a_finding_beyond_the_paper_has_no_verdict() -> None:
    beyond = claim("does not hold").model_copy(update={"beyond": "ours", "before": "holds", "claim": "b"})
    words = of_claims(claim("holds"), beyond)
    assert "| b | ours (before: holds) | It is so. |" in words and "does not hold" not in words
    assert ": 1, 1 holds." in words


def test_a_table_without_a_figure_is_a_line() -> None:
    made = json.loads((RESULTS / "coqfl" / "results.json").read_text(encoding="utf-8"))
    rows = (TableRow(name="r", label="R", cells=(Cell(missing="no pictures"),)),)
    table = Table(name="t", title="T", source="s", unit="%", columns=("a",), rows=rows)
    words = page(PaperResults.model_validate(made | {"tables": [table.model_dump()]}))
    assert "## Not run here\n\n- T (s): no pictures\n" in words and "| – |" not in words


@pytest.mark.parametrize(
    ("mean", "half_width", "words"),
    [
        (98.9234, 0.0312, "98.923 ± 0.031"),
        (30.21, 9.13, "30.2 ± 9.1"),
        (50.3, 12.4, "50.3 ± 12"),
        (0.3, 0.0, "0.3 ± 0.0"),
        (5.0, None, "5.0"),
        (98.9, 0.00001, "98.9000 ± 0.0000"),
    ],
)
def test_half_widths_have_two_digits(mean: float, half_width: float | None, words: str) -> None:
    assert plus_minus(mean, half_width) == words
