"""What a paper says of its own tables, against the figures that it prints there. Nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fedpriv.report.words import figure
from fedpriv.studies.verdicts import FAILS, HOLDS, Outcome

#: More figures than so many are counted, not listed.
MANY = 9
#: So few comparisons that their figures are shown.
FEW = 4


def printed(gains: Sequence[float], says: Sequence[float], within: float) -> Outcome:
    """What a paper says of its tables, against them. Nothing was measured."""
    right = [abs(found - said) <= within for found, said in zip(gains, says, strict=True)]
    if len(says) > MANY:
        words = f"Of {len(says)} printed figures {sum(right)} are as the text says, within {within:g}"
        return Outcome(HOLDS if all(right) else FAILS, words, estimated=False)
    if not any(says):  # the text says that they are alike
        listed = ", ".join(f"{found:+.4g}" for found in gains)
        words = f"By the printed figures the difference{'s are' if len(says) > 1 else ' is'} {listed}"
        return Outcome(HOLDS if all(right) else FAILS, words, estimated=False)
    first, *rest = zip(says, gains, strict=True)
    words = f"{first[0]:+.4g} by the text and {first[1]:+.4g} by the tables"
    words = "; ".join([words, *(f"{said:+.4g} and {found:+.4g}" for said, found in rest)])
    return Outcome(HOLDS if all(right) else FAILS, f"Of the printed figures: {words}", estimated=False)


def ordered(rows: Sequence[Sequence[tuple[str, float]]], equal: bool) -> Outcome:
    """What a paper says of the order of its printed figures, (label, figure), largest first. Nothing was measured."""
    wrong = [
        f"{one} {figure(first)}, {other} {figure(second)}"
        for row in rows
        for (one, first), (other, second) in pairwise(row)
        if first < second or (first == second and not equal)
    ]
    count = sum(len(row) - 1 for row in rows)
    words = (
        f"Of {count} comparison{'s' if count > 1 else ''} of printed figures {count - len(wrong)} are as the text says"
    )
    if count <= FEW and not wrong:
        words += f" ({', '.join(' over '.join(figure(value) for _, value in row) for row in rows)})"
    return Outcome(FAILS if wrong else HOLDS, words + (f"; not {'; '.join(wrong)}" if wrong else ""), estimated=False)
