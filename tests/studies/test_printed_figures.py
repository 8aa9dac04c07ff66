"""Every figure that a paper's file quotes stands in the paper's text, on the line that the file names."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.studies import papers as spec
from fedpriv.studies.papers import ClaimSpec, Paper
from fedpriv.studies.verdicts import FAILS, HOLDS, decide

PAPERS = ["adpfl", "agn", "coqfl", "fedags", "fedcad"]
#: A number that no other digit belongs to.
NUMBER = re.compile(r"(?<![\d.])\d+(?:\.\d+)?(?![\d]|\.\d)")
#: Figures that a text gives in words only, or that are another reading of it: why.
IN_WORDS = {
    "allocation_tenth_printed": "“less than 1 %” is read as 0.5 within half a point",
    "mnist_close_printed": "“about 1 %” at each of three α",
    "mnist_minimal_printed": "“minimal”: within a point of nothing",
    "comparable_printed": "“comparable”: within a point of nothing",
    "alike_mnist_printed": "“little difference”: within a point of nothing",
    "means_printed": "means of a table's own figures",
    "nbafl_above": "a difference of two figures of its line",
}


def lines(paper: str) -> list[str]:
    folder = Path(
        os.environ.get("FEDPRIV_PAPERS") or Path(__file__).resolve().parents[3] / "shared" / "papers" / "text"
    )
    return ["", *(folder / spec.load(paper).text).read_text(encoding="utf-8").split("\n")]


def numbers(line: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(line)]


def follow(wanted: list[float], there: list[float]) -> bool:
    """Whether all stand there, in this order."""
    rest = iter(there)
    return all(number in rest for number in wanted)


@pytest.mark.papers
@pytest.mark.parametrize("paper", PAPERS)
def test_a_reported_figure_stands_on_its_line(paper: str) -> None:
    """In the order of the table: by row or by column, as the paper prints it."""
    text, found = lines(paper), spec.load(paper)
    for name, table in found.tables.items():
        by_line: dict[int, list[float]] = defaultdict(list)
        for row, cells in table.reported.items():
            for column, value in cells.items():
                by_line[table.lines[row][column]].append(value)
        for line, values in by_line.items():
            there = numbers(text[line])
            prose = "\t" not in text[line]
            assert set(values) <= set(there) if prose else follow(values, there), (name, line, values, there)


@pytest.mark.papers
@pytest.mark.parametrize("paper", ["fedags"])
def test_a_table_is_of_the_method_and_data_that_it_names(paper: str) -> None:
    """Table IV has a column for each of three data sets, and a line for each method at each budget."""
    text, found = lines(paper), spec.load(paper)
    short = {"dpfedavg": "FedAvg", "cpsgd": "cpSGD", "dpfedsnlc": "FedSNLC", "fedags": "FedAGS"}
    for place, name in enumerate(("table4", "cifar10", "cifar100")):
        for row, cells in found.tables[name].reported.items():
            for column, value in cells.items():
                line = found.tables[name].lines[row][column]
                fields = text[line].split("\t")
                assert fields[1] == short[row] and fields[2 + place] == f"{value:.2f}%"
                budgets = [text[at].split("\t")[0] for at in range(line - 3, line + 1)]
                assert [one for one in budgets if one][-1].replace(".", "") == column[1:]


@pytest.mark.papers
@pytest.mark.parametrize("paper", PAPERS)
def test_a_claim_is_in_the_papers_own_words(paper: str) -> None:
    """Every claim that is the paper's has a quote, which stands on the line that it names."""
    text, found = lines(paper), spec.load(paper)
    for name, claim in found.claims.items():
        if claim.beyond:
            assert not claim.quote, name
            continue
        assert claim.quote and len(claim.quote) == len(claim.line), name
        for quote, line in zip(claim.quote, claim.line, strict=True):
            assert quote in text[line], (name, line, quote)


@pytest.mark.papers
@pytest.mark.parametrize("paper", PAPERS)
def test_a_claims_figures_stand_on_its_line(paper: str) -> None:
    """Of those that hold a figure against the paper."""
    text, found = lines(paper), spec.load(paper)
    for name, claim in found.claims.items():
        test = claim.test
        said = (test.bound,) if test.kind == "at_least" else test.says or test.reported
        if name in IN_WORDS or claim.beyond or not said:
            continue
        there = {number for line in claim.line for number in numbers(text[line])}
        tables = {abs(gain) for gain in _gains(found, claim)}
        assert set(said) <= there or set(said) <= {round(gain, 2) for gain in tables}, (name, said)


def _gains(found: Paper, claim: ClaimSpec) -> list[float]:
    """Differences of reported figures, of a claim on pairs."""
    gains = []
    for pair in claim.test.pairs if claim.test.kind == "better" else ():
        one, other = (_reported(found, cell) for cell in pair)
        if one is not None and other is not None:
            gains.append(one - other)
    return gains


def _reported(found: Paper, cell: Any) -> float | None:
    """Of a cell, or the mean of several."""
    known = [_printed(found, *place) for place in spec.places(cell)]
    return None if None in known else fmean(known)  # type: ignore[type-var]


def _printed(found: Paper, table: str, row: str, column: str) -> float | None:
    """In its own table, or in the one whose title it has with more words."""
    own = found.tables[table]
    alike = [one for one in found.tables.values() if own.title.startswith(one.title.partition(":")[0] + ",")]
    return next((one.reported[row][column] for one in (own, *alike) if column in one.reported.get(row, {})), None)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_reported_gain_is_the_difference_of_reported_figures(paper: str) -> None:
    """Where both figures are reported, and the text prints no other (as DPFL-AGN's 6.66)."""
    found = spec.load(paper)
    for name, claim in found.claims.items():
        if claim.test.kind == "better" and _gains(found, claim) and name != "dpfl_beats_dpsgd":
            for (one, other), gain in zip(claim.test.pairs, claim.test.reported, strict=False):
                first, second = _reported(found, one), _reported(found, other)
                if first is None or second is None:
                    continue
                assert gain == pytest.approx(first - second, abs=1e-6 if len(spec.places(one)) == 1 else 0.01), name
        if (
            claim.test.kind == "at_least" and claim.test.cell and name not in ("mnist_level", "level_rivals")
        ):  # “over 98 %”; figure 8
            table, row, column = claim.test.cell
            assert found.tables[table].reported[row][column] == claim.test.bound


def test_numbers_are_read_whole() -> None:
    assert numbers("0.1\tFedAvg\t88.34%\t-5 [15], 1.5.") == [0.1, 88.34, 5.0, 15.0, 1.5]
    assert follow([1.0, 3.0], [1.0, 2.0, 3.0]) and not follow([3.0, 1.0], [1.0, 2.0, 3.0])


def test_printed_gains_are_compared_in_the_mean() -> None:
    """By hand, from ADP-FL's Table 3 on CIFAR-10: mean gains of 1.42 at alpha = 0.1 and 2.13 at 0.5."""
    claim = spec.load("adpfl").claims["allocation_more_printed"]
    (gaps,) = claim.test.gaps
    reported = spec.load("adpfl").tables["table3"].reported
    means = [[sum(reported[row][column] for _, row, column in side) / 3 for side in gain] for gain in gaps]
    assert [round(one - other, 2) for one, other in means] == [1.42, 2.13]
    found = decide(claim, SimpleNamespace(paper=spec.load("adpfl")))  # type: ignore[arg-type]
    assert found.verdict == FAILS and " 1.42, the mean gain of " in found.words and found.words.endswith(" 2.13")
    largest = spec.load("fedags").claims["larger_printed"]
    found = decide(largest, SimpleNamespace(paper=spec.load("fedags")))  # type: ignore[arg-type]
    assert found.verdict == HOLDS and found.words.endswith("(6.47 over 3.01, 3.98 over 2.42)")
