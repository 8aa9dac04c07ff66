"""The opening of a paper's page: the strongest fair case for it, in words whose figures come from the runs.

In braces: {table/row/column} is what was measured there, {table/row/column - table/row/column} a paired difference over
seeds, {printed} the number of claims about the paper's own tables, {printed that hold} that of those that hold.
"""

from __future__ import annotations

import re

from fedpriv.report.words import plus_minus
from fedpriv.studies.claim_spec import Ordered, Printed
from fedpriv.studies.deciding import Measured, outcome
from fedpriv.studies.experiments import Place
from fedpriv.studies.results import Estimate
from fedpriv.studies.verdicts import HOLDS, paired_difference, shown

BRACES = re.compile(r"\{([^{}]+)\}")


def fair_case(paragraph: str, found: Measured) -> str:
    return BRACES.sub(lambda match: _figure(match[1], found), paragraph)


def places(paragraph: str) -> list[Place]:
    """Every cell that a paragraph names."""
    figures = [inner for inner in BRACES.findall(paragraph) if not inner.startswith("printed")]
    return [_place(part) for inner in figures for part in inner.split(" - ")]


def _place(text: str) -> Place:
    table, row, column = text.strip().split("/")
    return table, row, column


def _figure(inner: str, found: Measured) -> str:
    if inner.startswith("printed"):
        claims = [one for one in found.paper.claims.values() if isinstance(one.test, Printed | Ordered)]
        return str(sum(inner == "printed" or outcome(one, found).verdict == HOLDS for one in claims))
    values = [found.values(_place(part)) for part in inner.split(" - ")]
    if len(values) == 1:
        return _in_unit(values[0].estimate, values[0].unit)
    return _in_unit(paired_difference(*values), "points" if values[0].unit == "%" else values[0].unit, sign=True)


def _in_unit(estimate: Estimate, unit: str, sign: bool = False) -> str:
    if estimate.mean is None:
        return "nothing yet"
    if unit not in ("%", "points"):
        return shown(estimate).split(" (")[0]
    words = plus_minus(estimate.mean, estimate.half_width)
    return f"{'+' if sign and estimate.mean > 0 else ''}{words} {unit}"
