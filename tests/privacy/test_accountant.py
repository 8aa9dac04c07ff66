"""How a ledger's releases are added up is fixed before the first of them, whatever a policy says later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployed import POLICY, Machines, asker
from scipy import stats

from fedpriv.common.errors import LedgerRefused
from fedpriv.common.messages import Refusal
from fedpriv.deployment.accounting import RESERVED, Accounting
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.declaration import Declared
from fedpriv.deployment.policy import Booked, Policy, Spent, read_policy
from fedpriv.privacy.composition import ORDERS, Budget, compose, gaussian_mu
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Event, Gaussian, RandomisedResponse

GAUSSIAN = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
BITS = RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.1, dimension=10)
CLIENT = "client, replace-one, server, delta 1e-05"


def booked(event: Event) -> Booked:
    return Booked((Entry(1, 0, 0, 0, event),), CLIENT_TO_SERVER)


def changed(network: Machines, **entries: Any) -> Policy:
    """Node 0's policy with other entries."""
    network.write_policy(0, POLICY | entries)
    return read_policy(network.policy(0))


@pytest.fixture
def network(tmp_path: Path) -> Machines:
    return Machines(tmp_path, 1)


def head(network: Machines) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((network.data(0) / ".fedpriv/ledger.jsonl").read_text().splitlines()[0])
    return found


def released(ledger: DataLedger, *events: Event) -> None:
    for event in events:
        with ledger.held():
            ledger.append(booked(event), "run")
            ledger.confirm()


def test_it_is_in_the_ledgers_head(network: Machines, tmp_path: Path) -> None:
    found = head(network)
    assert found["accountant"] == "gaussian" and found["share"] == 0.9 and found["orders"].keys() == {CLIENT}
    renyi = Machines(tmp_path / "renyi", 1, POLICY | {"accountant": "renyi", "order": 6.0})
    found = head(renyi)
    assert (found["accountant"], found["orders"], found["share"]) == ("renyi", {CLIENT: 6.0}, 1.0)


def test_before_the_first_release_any_may_be_chosen(network: Machines) -> None:
    for entries in ({"accountant": "renyi"}, {"accountant": "renyi", "order": 6.0}, {}, {"accountant": "renyi"}):
        policy = changed(network, **entries)
        with network.ledger(0).held(thorough=True) as ledger:
            assert ledger.settle(policy) == policy.accounting(None, Spent())


def test_gaussian_becomes_renyi_once_for_good(network: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    ask = asker(network, network.overrides("num_rounds=3"))
    assert not ask(1).has_error()
    changed(network, accountant="renyi", order=6.0)  # another order than the one that was noted at the beginning
    assert ask(2).error.code == Refusal.LEDGER and network.booked(0) == 1
    policy = changed(network, accountant="renyi")
    noted = head(network)["orders"][CLIENT]
    assert not ask(2).has_error() and network.booked(0) == 2
    with network.ledger(0).held(thorough=True) as ledger:
        fixed = ledger.settle(policy)
        assert (fixed.accountant, dict(fixed.orders)) == ("renyi", {CLIENT: noted})
        assert fixed.share == pytest.approx(0.1) and fixed.share + head(network)["share"] <= 1
    changed(network)
    assert ask(3).error.code == Refusal.LEDGER and network.booked(0) == 2
    options = ("superlink=127.0.0.1:1", f"credentials={network.folder}", "client=0")
    assert network.command("run", 0, *options) == 2
    assert "accountant=gaussian: the ledger adds up by renyi" in capsys.readouterr().err


def test_after_the_change_all_that_ever_left_counts_at_the_noted_order(network: Machines) -> None:
    """In a tenth of delta: what the filter of Gaussians would still admit need not fit."""
    policy = changed(network)
    (budget,) = policy.budgets
    with network.ledger(0).held() as ledger:
        fixed = ledger.settle(policy)
    spent = Spent()
    while policy.refusal(spent, booked(GAUSSIAN), fixed=fixed) is None:
        spent.add(booked(GAUSSIAN))
    events = spent.totals(CLIENT_TO_SERVER)
    assert spent.messages > 1 and compose(events, 0.9 * budget.delta).epsilon <= budget.max_epsilon
    assert compose([*events, GAUSSIAN], 0.9 * budget.delta).epsilon > budget.max_epsilon
    later = changed(network, accountant="renyi", limits=POLICY["limits"] | {"max_round_epsilon": 100.0})
    after = later.accounting(fixed, spent)
    assert later.refusal(spent, booked(BITS), fixed=after) is not None
    few = Spent([booked(GAUSSIAN)])
    same = Budget(budget.max_epsilon, 0.1 * budget.delta, rule="rdp", order=fixed.orders[CLIENT])
    for more in (1, 10, 100, 1000):
        many = booked(replace(BITS, count=more))
        admitted = bool(same.admits([GAUSSIAN], [replace(BITS, count=more)]))
        assert (later.refusal(few, many, fixed=later.accounting(fixed, few)) is None) is admitted
    assert not admitted


def test_a_ledger_without_a_reserve_keeps_to_its_accountant(network: Machines) -> None:
    """Those that were begun before there was one."""
    old = Accounting("gaussian")
    policy = changed(network, accountant="renyi")
    with pytest.raises(LedgerRefused, match="accountant=renyi: the ledger adds up by gaussian"):
        policy.accounting(old, Spent([booked(GAUSSIAN)]))
    assert changed(network).accounting(old, Spent([booked(GAUSSIAN)])) == old


def test_an_order_is_fixed_with_it(tmp_path: Path) -> None:
    """null is an order too: it depends on max_epsilon, which may change; the order may not."""
    budget = {"unit": "client", "delta": 1e-5}
    small, large = ({"accountant": "renyi", "budgets": [budget | {"max_epsilon": most}]} for most in (2.0, 200.0))
    network = Machines(tmp_path, 1, POLICY | small)
    first = network.ledger(0)
    with first.held():
        fixed = first.settle(read_policy(network.policy(0)))
    released(first, BITS)
    raised = changed(network, **large)
    other = raised.accounting(None, Spent()).orders[CLIENT]
    assert other != fixed.orders[CLIENT], "or this test shows nothing"
    with network.ledger(0).held() as ledger:
        assert ledger.settle(raised) == fixed
        assert raised._filter(raised.budgets[0], fixed).fixed_order() == fixed.orders[CLIENT]
        with pytest.raises(LedgerRefused, match="order=64: the ledger has fixed"):
            ledger.settle(changed(network, order=64.0, **large))
        assert ledger.settle(changed(network, order=fixed.orders[CLIENT], **large)) == fixed


def test_a_new_budget_gets_its_order_once(tmp_path: Path) -> None:
    network = Machines(tmp_path, 1, POLICY | {"accountant": "renyi"})
    example = {"unit": "example", "adjacency": "add-or-remove-one", "delta": 1e-6, "max_epsilon": 2.0}
    found = []
    released(network.ledger(0), BITS)
    for most in (2.0, 300.0):
        policy = changed(network, accountant="renyi", budgets=[*POLICY["budgets"], example | {"max_epsilon": most}])
        with network.ledger(0).held() as ledger:
            found.append(ledger.settle(policy))
    assert found[0] == found[1] and len(found[0].orders) == 2
    with network.ledger(0).held(thorough=True) as ledger:
        assert ledger.settle(policy) == found[0]


# --- ledgers that name none --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "renyi", "kept"),
    [([GAUSSIAN], False, "gaussian"), ([GAUSSIAN, BITS], True, "renyi")],
)
def test_a_ledger_without_one_takes_what_admitted_all_its_releases(
    left: list[Event], renyi: bool, kept: str, tmp_path: Path
) -> None:
    ledger, policies = _nameless(tmp_path, left)
    with ledger.held():
        assert ledger.settle(policies[renyi]).accountant == kept
    assert json.loads((ledger.folder / "ledger.jsonl").read_text().splitlines()[-1])["accountant"] == kept
    with ledger.held(thorough=True), pytest.raises(LedgerRefused, match="accountant="):
        ledger.settle(policies[not renyi])


@pytest.mark.parametrize(("left", "renyi"), [([GAUSSIAN], True), ([BITS], False), ([GAUSSIAN, BITS], False)])
def test_a_ledger_without_one_refuses_a_choice_after_outputs(left: list[Event], renyi: bool, tmp_path: Path) -> None:
    ledger, policies = _nameless(tmp_path, left)
    before = (ledger.folder / "ledger.jsonl").read_bytes()
    with ledger.held(), pytest.raises(LedgerRefused, match="accountant="):
        ledger.settle(policies[renyi])
    assert (ledger.folder / "ledger.jsonl").read_bytes() == before


def _nameless(folder: Path, left: list[Event]) -> tuple[DataLedger, list[Policy]]:
    (folder / "data").mkdir()
    ledger = DataLedger.create(folder / "data", folder / "kept" / "counter.json", Declared(12, ("a", "b"), 8, 1))
    released(ledger, *left)
    network = Machines(folder / "machines", 1)
    return ledger, [changed(network), changed(network, accountant="renyi")]


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2, 0.3])
def test_the_filter_of_gaussians_is_the_larger_one(delta: float) -> None:
    """The rule for Gaussians alone: whatever a Renyi filter admitted, at any order, the exact filter admits."""
    for most in (0.1, 1.0, 8.0, 100.0):
        for order in (1.1, 2.0, 6.0, 31.0, 64.0, "gaussian"):
            renyi = Budget(most, delta, rule="rdp", order=order)  # type: ignore[arg-type]
            for multiplier in (0.3, 1.0, 5.0, 40.0):
                low, high = 0, 2**22
                while high - low > 1:  # the most that the Renyi filter admits
                    middle = (low + high) // 2
                    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=multiplier, count=middle)
                    low, high = (middle, high) if renyi.admits([], [event]) else (low, middle)
                if low:
                    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=multiplier, count=low)
                    assert Budget(most, delta, rule="gaussian").admits([], [event])
                    assert compose([event], delta).epsilon <= most * (1 + 1e-9)


def test_the_fixed_order_is_the_filters(network: Machines) -> None:
    """Of all releases, whatever their kinds."""
    policy = changed(network, accountant="renyi")
    fixed = policy.accounting(None, Spent())
    by_null, by_number = policy._filter(policy.budgets[0]), policy._filter(policy.budgets[0], fixed)
    for events in ([GAUSSIAN] * 3, [BITS] * 30, [GAUSSIAN, BITS]):
        assert by_null._order(by_null._renyi_limits(5e-6), events) == by_number._order(
            by_number._renyi_limits(5e-6), events
        )
    assert fixed == Accounting("renyi", {CLIENT: by_null.fixed_order()})


# --- the game that the two shares of delta are there for ------------------------------------------------------------


def stays(rest: float, gaps: np.ndarray) -> np.ndarray:
    """E[(1 - exp(gap - X))_+] for the loss X of a Gaussian with mu^2 = rest."""
    mu = np.sqrt(rest)
    found: np.ndarray = stats.norm.cdf(mu / 2 - gaps / mu) - np.exp(gaps) * stats.norm.cdf(-mu / 2 - gaps / mu)
    return found


def changes(order: float, rest: float, gap: float) -> float:
    """The largest E[(1 - exp(gap - X))_+] of a mechanism with two outcomes and Renyi cost ``rest``: with probability p
    its loss is j > gap.
    """
    if rest <= 0:
        return 0.0
    j = gap + np.geomspace(1e-3, 20, 60)
    low, high = np.zeros_like(j), np.minimum(1, np.exp(j)) * (1 - 1e-12)
    for _ in range(30):
        p = (low + high) / 2
        other = np.exp((order - 1) * (np.log1p(-p) - np.log1p(-p * np.exp(-j))))
        fits = p * np.exp((order - 1) * j) + (1 - p) * other <= np.exp((order - 1) * rest)
        low, high = np.where(fits, p, low), np.where(fits, high, p)
    return float(np.max(low * (1 - np.exp(gap - j))))


def game(epsilon: float, delta: float, shares: tuple[float, float], part: float) -> float:
    """delta at epsilon of who releases a Gaussian of ``part`` of the budget, looks, and then goes on with the rest of
    the Gaussian filter's, or changes and spends the rest of the Renyi filter's on two outcomes, whichever is worse.
    """
    total = gaussian_mu(epsilon, delta * shares[0]) ** 2
    budget = Budget(epsilon, delta * shares[1], rule="rdp", order="gaussian")
    limits = budget._renyi_limits(delta * shares[1])
    place = budget._order(limits, ())
    order, rest = float(ORDERS[place]), float(limits[place]) - float(ORDERS[place]) * part * total / 2
    z = np.linspace(-8, 8, 81)
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    gaps = epsilon - (part * total / 2 + np.sqrt(part * total) * z)
    after = np.array([changes(order, rest, gap) for gap in gaps])
    return float(weights @ np.maximum(stays((1 - part) * total, gaps), after))


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_change_after_looking_breaks_delta_without_the_shares_and_keeps_it_with_them(epsilon: float) -> None:
    for delta, part in ((1e-2, 0.3), (1e-5, 0.3), (1e-5, 0.5)):
        assert game(epsilon, delta, (1.0, 1.0), part) > 1.06 * delta
        assert game(epsilon, delta, (1.0, 0.5), part) > 1.02 * delta  # with the half that pairs leave
        assert game(epsilon, delta, (1 - RESERVED, RESERVED), part) <= delta
