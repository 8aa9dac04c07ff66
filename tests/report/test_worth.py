"""What an epsilon is worth, in words: against the least error of the best test."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome
from scipy.optimize import brentq

from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.report.run_summary import Privacy
from fedpriv.report.words import (
    ADJACENCIES,
    NEXT_TO_NOTHING,
    OBSERVERS,
    UNITS,
    WORTH,
    both_adjacencies,
    promise,
    still_wrong,
    worth,
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "epsilons.md").read_text()


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.5, "a strong promise"),
        (1.0, "a strong promise"),
        (2.0, "a real promise"),
        (8.0, "a modest promise"),
        (12.0, "a weak promise"),
        (99.0, "a weak promise"),
        (100.0, "promises next to nothing"),
        (3540.0, "promises next to nothing"),
        ("inf", "nothing is promised"),
    ],
)
def test_the_words(epsilon: float | str, words: str) -> None:
    assert words in worth(Privacy.model_validate({"verified_epsilon": epsilon, "delta": 1e-5}))


@pytest.mark.parametrize("nothing", [{}, {"verified_epsilon": None}, {"verified_epsilon": "unknown"}])
def test_without_an_epsilon_nothing_is_said(nothing: dict[str, object]) -> None:
    assert worth(Privacy.model_validate(nothing)) == ""


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_the_error_is_that_of_randomised_response(epsilon: float) -> None:
    """Which attains it: its best test errs as often as the answer is turned."""
    random = np.random.default_rng(1)
    truth = random.random(400_000) < 0.5
    seen = truth ^ (random.random(len(truth)) < 1 / (1 + math.exp(epsilon)))
    found = re.search(r"([\d.]+) % of cases", worth(Privacy(verified_epsilon=epsilon, delta=0.0)))
    assert found is not None and float(found[1]) == pytest.approx(100 * float((seen != truth).mean()), rel=0.05)


def test_a_run_says_it_last_and_in_its_report(tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    folder = tmp_path / "run"
    outcome = cli("num_clients=4", "clients_per_round=4", "num_rounds=1", "strategy=fedldp", f"hydra.run.dir={folder}")
    words = "promises next to nothing."
    assert words in outcome.out and words in (folder / "report.html").read_text()


def test_the_page_has_the_same_scale() -> None:
    rows = dict(re.findall(r"^\| ([\w ]+) \| (\w[\w ]* promise) \|", PAGE, re.MULTILINE))
    top = WORTH[-1][0]
    assert rows == {
        **{f"up to {epsilon:g}": words for epsilon, words in WORTH},
        f"above {top:g}": promise(top + 1),
        f"{NEXT_TO_NOTHING:g} and more": promise(NEXT_TO_NOTHING),
    }
    errors = re.findall(r"\| ([\d.]+ %) at epsilon (\d+) \|", PAGE)
    assert errors == [(still_wrong(epsilon), f"{epsilon:g}") for epsilon, _ in WORTH]


def test_the_page_defines_every_term_in_the_words_of_the_reports() -> None:
    for term, words in {**ADJACENCIES, **OBSERVERS}.items():
        assert f"| `{term}` | {words}" in PAGE
    for term, words in UNITS.items():
        assert f"`{term}`: {words}" in PAGE


def test_a_boards_targets_at_the_other_adjacency_are_the_closed_forms() -> None:
    """At half of a Gaussian's distance and at twice of it; the page on epsilons has the same figures."""
    said = both_adjacencies("replace-one", (0.5, 1.0, 2.0, 8.0), 1e-5)
    assert said.startswith("Under zero-out a client moves the sum half as far")
    figures = re.findall(r"([\d.]+) is ([\d.]+\d)", said)
    for epsilon, other in figures:
        mu = brentq(lambda m, epsilon=epsilon: gaussian_epsilon(m, 1e-5) - float(epsilon), 1e-3, 10)
        assert float(other) == pytest.approx(gaussian_epsilon(mu / 2, 1e-5), rel=2e-3)
    assert [epsilon for epsilon, _ in figures] == ["0.5", "1", "2", "8"]
    shown = re.search(r"epsilon of ([\d., or]+) is ([\d., or]+) under `zero-out`", PAGE)
    assert shown is not None
    pairs = zip(*(re.findall(r"[\d.]+\d|\d", part) for part in shown.groups()), strict=True)
    for (epsilon, other), (first, second) in zip(pairs, figures, strict=True):
        assert epsilon == first and float(other) == pytest.approx(float(second), abs=5e-3)
    back = both_adjacencies("add-or-remove-one", (0.469,), 1e-5)
    assert back.startswith("Under replace-one a client moves the sum twice as far") and "0.469 is 1." in back
