"""`fedpriv explain-epsilon`: a setting's epsilons are explained by the reading that made them, and by no other."""

from __future__ import annotations

import math
from typing import Any

import pytest
from opacus.accountants import RDPAccountant

from fedpriv.commands.explain_epsilon import main
from fedpriv.common.command_line import DONE, FAILED, MISTAKE
from fedpriv.privacy.readings import ACCOUNTANTS, Setting, opacus_renyi, readings, settings_of, simplest

#: Three runs of one paper.
RUNS: dict[str, Any] = {"rounds": [30, 30, 60], "sigma": [0.3, 0.5, 0.3], "delta": [1e-5], "batch": [60], "n": [600]}
COHORTS: dict[str, Any] = {"cohort": [10], "clients": [100]}


def test_fed_cads_epsilons_are_of_ten_local_steps_a_round_with_ten_times_the_noise() -> None:
    found = readings(settings_of(["2.72", "1.5", "3.97"], RUNS | COHORTS))
    assert [(one.accountant, one.sampling, one.composed) for one in found] == [
        ("Opacus' RDP accountant", "Poisson batches", "every local step of all rounds")
    ]
    assert found[0].ratios == pytest.approx((9.997, 10.017), abs=1e-3) and "local steps x sigma" in found[0].named
    assert found[0].epsilons == pytest.approx((2.722, 1.496, 3.973), abs=1e-3)


@pytest.mark.parametrize("name", [name for name in ACCOUNTANTS if name != "Opacus' RDP accountant"])
def test_a_reading_is_found_again_from_what_it_prints(name: str) -> None:
    settings = settings_of(["1", "1", "1"], RUNS | COHORTS)
    given = [ACCOUNTANTS[name](one.sigma * 60, 1.0, one.rounds, one.delta) for one in settings]  # type: ignore[operator]
    found = readings(settings_of([f"{value:.3f}" for value in given], RUNS | COHORTS))
    wanted = next(one for one in found if (one.accountant, one.composed) == (name, "every round"))
    assert "batch x sigma" in wanted.named and wanted.epsilons == pytest.approx(given, abs=5e-4)


@pytest.mark.parametrize(
    ("multiplier", "rate", "count"), [(3.0, 0.1, 300), (1.1, 0.1, 30), (0.6, 0.01, 3), (9.0, 1.0, 5)]
)
def test_a_few_orders_give_what_opacus_gives_by_all(multiplier: float, rate: float, count: int) -> None:
    accountant = RDPAccountant()
    accountant.history = [(multiplier, rate, count)]
    assert opacus_renyi(multiplier, rate, count, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-12)


def test_settings_may_differ_in_what_they_sample_and_in_their_batches() -> None:
    """Of full batches, or of all clients, an option's words stay; the multiplier follows each one's own batch."""
    given: dict[str, Any] = {"rounds": [30], "sigma": [0.05], "delta": [1e-5], "batch": [60, 600], "n": [600]}
    for more in ({}, {"cohort": [100, 10], "clients": [100]}):
        both = settings_of(["1", "1"], given | more)
        epsilons = [opacus_renyi(one.sigma * one.batch, one.batch / 600, one.rounds, 1e-5) for one in both]  # type: ignore[operator]
        found = readings(settings_of([f"{value:.3f}" for value in epsilons], given | more))
        (one,) = [one for one in found if one.accountant == "Opacus' RDP accountant"]
        assert (one.sampling, one.composed, one.named) == ("Poisson batches", "every round", "batch x sigma")
        assert one.ratios is None and one.epsilons == pytest.approx(epsilons)


def test_equal_readings_are_listed_once_and_no_noise_is_named_that_is_not_printed() -> None:
    found = readings(settings_of(["2.72"], {"rounds": [1], "delta": [1e-5], "batch": [600], "n": [600]}))
    assert len(found) == len({one.accountant for one in found}) == 7
    assert all(not one.named for one in readings(settings_of(["2.722"], {**RUNS, "rounds": [30], "sigma": [None]})))


@pytest.mark.parametrize(
    ("epsilon", "sigma"), [("2.7182818284", None), ("20000000", None), ("2.72", 1e-300), ("2.72", 1e300)]
)
def test_many_digits_and_any_noise_are_read(epsilon: str, sigma: float | None) -> None:
    found = readings(settings_of([epsilon], {"rounds": [3], "delta": [1e-5], "sigma": [sigma]}))
    assert found and all(one.epsilons[0] == pytest.approx(float(epsilon), abs=6e-3, rel=1e-7) for one in found)


def test_what_is_printed_is_an_interval() -> None:
    assert Setting("2.72", 1, 1e-5).interval == pytest.approx((2.715, 2.725))
    assert Setting("3", 1, 1e-5).interval == (2.5, 3.5)
    assert simplest(9.996, 10.02) == 10 and simplest(2.998, 3.007) == 3 and simplest(0.2312, 0.2391) == 0.232
    assert simplest(1.5, 1.5) == 1.5


def test_classical_formulas_are_those_of_the_books() -> None:
    epsilon, one = ACCOUNTANTS["classical Gaussian, epsilons added"], math.sqrt(2 * math.log(1.25e5))
    assert epsilon(2.0, 1.0, 3, 1e-5) == pytest.approx(3 * one / 2)
    assert epsilon(2.0, 0.1, 3, 1e-5) == pytest.approx(3 * math.log(1 + 0.1 * (math.exp(one / 2) - 1)))
    assert ACCOUNTANTS["classical Gaussian, root of the number"](2.0, 0.1, 9, 1e-5) == pytest.approx(0.1 * 3 * one / 2)
    assert ACCOUNTANTS["zCDP"](10.0, 1.0, 4, 1e-5) == pytest.approx(0.02 + 2 * math.sqrt(0.02 * math.log(1e5)))
    small = math.sqrt(2 * math.log(1.25 * 8 / 1e-5)) / 10
    advanced = math.sqrt(8 * math.log(2e5)) * small + 4 * small * math.expm1(small)
    assert ACCOUNTANTS["advanced composition"](10.0, 1.0, 4, 1e-5) == pytest.approx(advanced)


def test_the_command_lists_readings_and_says_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1.46", "rounds=1", "sigma=0.5"]) == DONE
    said = capsys.readouterr().out
    assert "zCDP, no sampling, once: epsilon 1.46" in said and "x sigma (allowed: " in said
    assert main(["1.00,1.00", "rounds=10,20", "sigma=0.5,2"]) == FAILED
    assert "no reading that was tried gives 1.00,1.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["2.7x", "rounds=30"], "EPSILON=2.7x: must be printed numbers above 0 of at most 20 digits with commas"),
        (["2.72", "rounds=30", "batch=60"], "n: is missing: batch= and n= belong together"),
        (["2.72", "rounds=30", "batch=60", "n=30"], "batch=60: is more than n=30"),
        (["2.72,1", "rounds=30", "batch=60", "n=600,30"], "batch=60: is more than n=30"),
        (["2.72", "rounds=30", "epochs=5"], "epochs=5: needs batch= and n="),
        (["0.00", "rounds=30"], "EPSILON=0.00: must be printed numbers above 0"),
        (["9" * 400, "rounds=30"], "of at most 20 digits"),
        (["2.72", "rounds=30,40"], "rounds=30,40: must be one value: epsilon is one"),
        (["2.72", "rounds=30", "delta=1e-320"], "must be numbers between 0 and 1, of at least 1e-100"),
        (["2.72,1", "rounds=30,20,10"], "must be one value, or 2: one for each epsilon"),
        (["2.72", "rounds=0"], "rounds=0: must be whole numbers of at least 1, with commas"),
        (["2.72", "rounds=30", "delta=2"], "delta=2: must be numbers between 0 and 1"),
        (["2.72"], "rounds: is missing"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == MISTAKE and words in capsys.readouterr().err
