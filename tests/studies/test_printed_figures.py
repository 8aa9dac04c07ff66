"""Every figure that a paper's file quotes stands in the paper's text, on the line that the file names."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

from fedpriv.studies import spec
from fedpriv.studies.claim_spec import AtLeast, AtMost, Better, Printed

PAPERS = ["adpfl", "agn", "coqfl", "fedags", "fedcad"]
#: A number that no other digit belongs to.
NUMBER = re.compile(r"(?<![\d.])\d+(?:\.\d+)?(?![\d]|\.\d)")
#: Gains that a text gives in words only, or that are another reading of it: why.
IN_WORDS = {
    "residual_printed": "six differences of a table, of which the text says that all are gains",
    "safer_printed": "“slightly higher” in words, read as within a point",
    "allocation_tenth_printed": "“less than 1 %” is read as 0.5 within half a point",
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
def test_a_claims_figures_stand_on_its_line(paper: str) -> None:
    text, found = lines(paper), spec.load(paper)
    for name, claim in found.claims.items():
        if not claim.line:
            assert not isinstance(claim.test, Printed) or name in IN_WORDS, name
            continue
        test = claim.test
        said = test.says if isinstance(test, Printed) else test.reported if isinstance(test, Better) else ()
        said = (test.bound,) if isinstance(test, AtLeast | AtMost) and isinstance(test.bound, float) else said
        there = {number for line in claim.line for number in numbers(text[line])}
        assert said and set(said) <= there, (name, said)


@pytest.mark.parametrize("paper", PAPERS)
def test_a_reported_gain_is_the_difference_of_reported_figures(paper: str) -> None:
    """Unless the text prints it (`line`)."""
    found = spec.load(paper)
    for name, claim in found.claims.items():
        if isinstance(claim.test, Better) and not claim.line:
            for (one, other), gain in zip(claim.test.pairs, claim.test.reported, strict=False):
                first, second = (found.tables[t].reported.get(r, {}).get(c) for t, r, c in (one, other))
                assert first is not None and second is not None, name
                assert gain == pytest.approx(first - second, abs=1e-6), name
        if isinstance(claim.test, AtLeast):
            table, row, column = claim.test.cell
            assert found.tables[table].reported[row][column] == claim.test.bound


def test_numbers_are_read_whole() -> None:
    assert numbers("0.1\tFedAvg\t88.34%\t-5 [15], 1.5.") == [0.1, 88.34, 5.0, 15.0, 1.5]
    assert follow([1.0, 3.0], [1.0, 2.0, 3.0]) and not follow([3.0, 1.0], [1.0, 2.0, 3.0])
