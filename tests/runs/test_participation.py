"""Plans of participation: a run is priced at m, cohorts keep to it, and a client refuses the request after the m-th."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, ledger_of, rows_of

from fedpriv.client.contract import BudgetSpent
from fedpriv.client.memory import MemoryStore
from fedpriv.common.messages import Request
from fedpriv.config.compose import compose
from fedpriv.config.participation import cohort, participation_limit
from fedpriv.engines.worker import Worker
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.runs.planning import make_plan, with_target

ONCE = "strategy.server.participation=once"
BALANCED = "strategy.server.participation=balanced"
#: Four rounds of three: twelve participations.
SIZE = ("num_clients=12", "clients_per_round=3", "num_rounds=4", "engine=inprocess", "operations.report=false")


def times(folder: Path) -> Counter[int]:
    return Counter(line["client"] for line in ledger_of(folder))


def verified(folder: Path) -> float:
    return json.loads((folder / "summary.json").read_text())["privacy"]["verified_epsilon"]  # type: ignore[no-any-return]


def one_release(*options: str) -> float:
    return make_plan(config := compose([*SIZE, *options, "num_rounds=1"]), Worker(config)).verified_epsilon


@pytest.mark.parametrize("strategy", ["fedldp", "privunit", "fedags", "coqfl", "dpsgd"])
def test_everybody_takes_part_once_and_pays_for_that(strategy: str, run: Run) -> None:
    method = (f"strategy={strategy}", *(["strategy.client.group_size=3"] if strategy == "coqfl" else []))
    folder = run(*SIZE, *method, ONCE)
    rounds = {line["client"]: line["round"] for line in ledger_of(folder)}
    assert Counter(rounds.values()) == {1: 3, 2: 3, 3: 3, 4: 3}
    if strategy not in ("coqfl", "fedags"):  # whose price depends on the number of rounds
        assert verified(folder) == pytest.approx(one_release(*method), rel=1e-6)


def test_a_lottery_costs_more(run: Run) -> None:
    assert verified(run(*SIZE, "strategy=fedldp")) > verified(run(*SIZE, "strategy=fedldp", ONCE))


def test_balanced_cohorts_keep_the_price_at_its_limit(run: Run) -> None:
    """18 participations of 12 clients: some take part twice; all are priced at three where three are allowed."""
    six = ("num_rounds=6", "strategy=privunit", BALANCED)
    folder = run(*SIZE, *six)
    assert Counter(times(folder).values()) == {1: 6, 2: 6}
    for given, limit in ((), 2), (("strategy.server.participations=3",), 3):
        config = compose([*SIZE, *six, *given])
        assert participation_limit(config) == limit
        plan = make_plan(config, Worker(config))
        assert plan.verified_epsilon == pytest.approx(8 * limit, rel=1e-3)  # pure epsilon of 8 a release, basic


def test_a_target_is_met_at_the_limit() -> None:
    for plan, expected in ((ONCE, 6.0), (BALANCED, 3.0)):
        rounds = "num_rounds=4" if plan == ONCE else "num_rounds=8"
        config = with_target(compose([*SIZE, rounds, "strategy=privunit", plan, "privacy.target_epsilon=6"]))
        assert config.strategy.options.epsilon == pytest.approx(expected, rel=0.02)


def test_a_round_that_cannot_be_repeated_is_passed_over(run: Run, resumed: Callable[..., Path]) -> None:
    """With noise from the operating system, round 3 after the checkpoint of round 2 would be a second participation."""
    folder = resumed(*SIZE, "strategy=privunit", ONCE, "privacy.rng=secure", "checkpoint.every=2", after=3)
    rows = rows_of(folder)
    assert [(row["participants"], row["stopped"]) for row in rows] == [(3, 0), (3, 0), (0, 3), (3, 0)]
    assert set(times(folder).values()) == {1} and len(times(folder)) == 12 and verified(folder) <= 8


def test_a_lost_client_is_not_asked_again(run: Run) -> None:
    """Its release had left, so its one participation is spent; over-selected clients have spent theirs as well."""
    folder = run(*SIZE, "strategy=privunit", ONCE, f"engine.faults=[{{round:2,client:{second()},kind:drop}}]")
    assert [row["participants"] for row in rows_of(folder)] == [3, 2, 3, 3] and set(times(folder).values()) == {1}
    folder = run(*SIZE, "strategy=privunit", ONCE, "over_selection=1.3", "num_rounds=3")
    assert all(row["participants"] == 3 for row in rows_of(folder)) and max(times(folder).values()) == 1


def second() -> int:
    """A client of round 2."""
    return cohort(compose([*SIZE, "strategy=privunit", ONCE]), 2)[0]


# --- whatever a server asks ----------------------------------------------------------------------------------


class MemoryOnly(MemoryStore):
    def __init__(self) -> None:
        self.blob: Any = None

    def read(self) -> Any:
        return self.blob

    def keep(self, memory: Any) -> None:
        self.blob = memory.to_bytes()


@pytest.mark.parametrize("strategy", ["privunit", "fedldp", "adpfl", "dpsgd"])
@pytest.mark.parametrize("limit", [1, 2])
def test_a_client_refuses_the_request_after_the_last_it_may_answer(strategy: str, limit: int) -> None:
    """In another round, and in another attempt at the same one; the same request gets the same answer."""
    config = compose([*SIZE, f"strategy={strategy}", BALANCED, f"strategy.server.participations={limit}"])
    worker, store = Worker(config), MemoryOnly()
    theta = worker.initial_parameters()

    def ask(number: int, attempt: int = 0) -> np.ndarray:
        client = worker.client(0, store)
        if strategy == "adpfl":
            client.answer(Request(number, attempt, {"exchange": "statistics"}), theta)
        found = client.answer(Request(number, attempt, {}), theta if strategy != "adpfl" else None)
        assert found.release is not None
        return found.release

    for number in range(1, limit + 1):
        first = ask(number)
        assert strategy == "adpfl" or np.array_equal(first, ask(number))
    spent = compose_events(read(store).account.spent(worker.client(0, store).threat), 1e-5).epsilon
    for number, attempt in ((limit, 1), (limit + 1, 0), (9, 3)):
        with pytest.raises(BudgetSpent, match=f"client 0 has taken part {limit} times"):
            ask(number, attempt)
    assert compose_events(read(store).account.spent(worker.client(0, store).threat), 1e-5).epsilon == spent


def read(store: MemoryOnly) -> Any:
    from fedpriv.client.memory import read_memory

    return read_memory(store)


# --- options -------------------------------------------------------------------------------------------------


def test_a_plan_is_part_of_the_digest() -> None:
    config = compose([*SIZE, "strategy=privunit"])
    assert config.digest() != compose([*SIZE, "strategy=privunit", ONCE]).digest()
