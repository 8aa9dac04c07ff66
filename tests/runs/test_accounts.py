"""What a run books, and that rounds late in a run cost what early ones do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from conftest import SMALL, ledger_of

from fedpriv.common.files import JsonLines
from fedpriv.common.seeds import draw_cohort
from fedpriv.config.compose import compose
from fedpriv.privacy.composition import compose_clients
from fedpriv.privacy.events import CLIENT_TO_SERVER, EVERY_CLIENT, Entry, Event, Gaussian
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.ledger import LedgerFile
from fedpriv.runs.accounts import Accounts, PlannedAccounts
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import planned_histories, schedule
from fedpriv.runs.session import Session
from fedpriv.runs.start import start_run

ON_NODES = (
    "strategy=fedldp",
    "dataset=on_nodes",
    "dataset.classes=[a,b]",
    "dataset.examples=[20,20,20,20]",
    "dataset.size=8",
    "dataset.channels=1",
    "model=linear",
    "privacy.rng=secure",
    "num_clients=4",
    "clients_per_round=4",
)


@pytest.mark.parametrize(("options", "lines"), [(("strategy=fedldp",), 1), (ON_NODES, 4)], ids=["simulation", "nodes"])
def test_clients_share_a_line_in_a_simulation_alone(options: tuple[str, ...], lines: int, tmp_path: Path):
    accounts = Accounts(compose(options), RunFolder(tmp_path))
    accounts.book([Entry(1, client, 0, 0, Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)) for client in range(4)])
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == lines
    assert [entry["client"] for entry in ledger_of(tmp_path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("by_filter", [False, True])
def test_a_plan_hides_no_release_beyond_it(by_filter: bool, tmp_path: Path):
    """Only where clients stop before they exceed it, it bounds what they have spent."""
    accounts = Accounts(compose(["strategy=fedldp"]), RunFolder(tmp_path))
    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
    accounts.plan((frozenset({(event, 1)}),), 0.5, by_filter)
    for sequence in range(2):
        accounts.book([Entry(1 + sequence, 0, sequence, 0, event)])
        spent = gaussian_epsilon((1 + sequence) ** 0.5, accounts.config.privacy.delta)
        assert spent > 4 and accounts.epsilon_so_far() == (0.5 if by_filter else pytest.approx(spent))


def test_a_release_under_another_attempt_is_booked_and_the_same_one_is_not(tmp_path: Path):
    """A run that cannot repeat its rounds goes on from a checkpoint with other noise: the client's memory there gives
    the same number once more, to another release.
    """
    accounts, event = (
        Accounts(compose(["strategy=fedldp"]), RunFolder(tmp_path)),
        Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0),
    )
    first = Entry(1, 3, 0, 0, event)
    accounts.book_what_is_new([first])
    for new, booked in (
        (first, 1),
        (Entry(1, 3, 0, 1, event), 2),
        (Entry(1, 4, 0, 0, event), 3),
        (Entry(2, 3, 1, 0, event), 4),
    ):
        accounts.book_what_is_new([new])
        accounts.book_what_is_new([new])
        assert len(ledger_of(tmp_path)) == booked


def test_a_client_pays_what_a_trusted_server_tells_of_all_and_what_it_tells_itself(tmp_path: Path):
    accounts, event = (
        Accounts(compose(["strategy=fedldp"]), RunFolder(tmp_path)),
        Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0),
    )
    accounts.book([Entry(1, client, 0, 0, event) for client in (EVERY_CLIENT, 3, 3)])
    assert accounts.verified().maximum == pytest.approx(gaussian_epsilon(3**0.5, 1e-5))
    alone = tmp_path / "alone"
    alone.mkdir()
    of_all = Accounts(compose(["strategy=fedldp"]), RunFolder(alone))
    of_all.book([Entry(1, EVERY_CLIENT, 0, 0, event)])
    assert of_all.verified().maximum == of_all.verified().median == pytest.approx(gaussian_epsilon(1.0, 1e-5))


def test_a_server_books_for_a_node_every_attempt_of_a_round_once():
    """It cannot read a node's ledger, and a second attempt is a second release; a restart forgets nothing of it."""
    config = compose([*ON_NODES, "strategy.client.noise_multiplier=1"])
    planned = PlannedAccounts(config, [])
    booked = [planned.ask([0], number, attempt) for number, attempt in ((1, 0), (1, 0), (1, 1), (2, 0), (2, 1))]
    assert [len(found) for found in booked] == [len(booked[0]), 0, *[len(booked[0])] * 3] and booked[0]
    entries = [entry for found in booked for entry in found]
    assert [entry.sequence for entry in entries] == list(range(len(entries)))
    again = PlannedAccounts(config, entries)
    assert not again.ask([0], 1, 1) and again.ask([0], 1, 2)[0].sequence == len(entries)


@pytest.mark.parametrize("strategy", ["fedcad", "dpsgd"])
def test_no_round_but_the_last_reads_what_the_run_has_written(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whatever is read or looked at again in every round makes a run's cost grow with the square of its rounds."""
    ending, read, looked = [0], list[int](), Counter[int]()
    real = Session._end_round

    def end_round(session: Session, current: Any) -> None:
        ending[0] = current.number
        try:
            real(session, current)
        finally:
            ending[0] = 0

    def watched(method: Any) -> Any:
        return lambda *given: (read.append(ending[0]) if ending[0] else None, method(*given))[1]

    def hashed(event: Event) -> int:
        looked[ending[0]] += 1
        return hash((event.mechanism, event.threat))

    monkeypatch.setattr(Session, "_end_round", end_round)
    monkeypatch.setattr(LedgerFile, "read", watched(LedgerFile.read))
    monkeypatch.setattr(JsonLines, "read", watched(JsonLines.read))
    monkeypatch.setattr(Gaussian, "__hash__", hashed)
    size = ("num_rounds=40", "operations.report=false", "evaluate.every=0", "model=linear", "local.batch_size=20")
    start_run(compose([*SMALL, f"strategy={strategy}", *size]), tmp_path / "run")
    assert set(read) == {40}
    early, late = (median(looked[number] for number in numbers) for numbers in (range(5, 10), range(35, 40)))
    assert late <= 1.1 * early


def test_a_plan_counts_clients_by_how_often_they_are_asked_and_what_they_hold():
    config = compose(
        ["strategy=dpsgd", "num_clients=30", "clients_per_round=10", "num_rounds=9", "partition=dirichlet"]
    )
    counts = schedule(config)
    cohorts = [draw_cohort(config.seed, number, 30, 10, "fixed") for number in range(1, 10)]
    assert counts.tolist() == [sum(client in cohort for cohort in cohorts) for client in range(30)]
    histories, times = planned_histories(config, counts)
    assert sum(times.values()) == 30 and 3 < len(histories) <= 30
    assert all(isinstance(number, int) for number in times.values())
    json.dumps([event.count for events in histories.values() for event in events])  # whole numbers, not numpy's


def test_the_median_over_clients_is_that_of_a_list_of_all_of_them():
    rng = np.random.default_rng(0)
    for _ in range(40):
        kinds = int(rng.integers(1, 6))
        histories = {
            k: [Gaussian(threat=CLIENT_TO_SERVER, multiplier=float(rng.uniform(0.5, 9)))] for k in range(kinds)
        }
        times = {k: int(rng.integers(1, 5)) for k in range(kinds)}
        spread = {number: histories[k] for number, k in enumerate(k for k in times for _ in range(times[k]))}
        for refined in (True, False):
            alone = [compose_clients({0: own}, 1e-5, refined=refined).maximum for own in spread.values()]
            found = compose_clients(histories, 1e-5, refined=refined, times=times)
            assert found.median == median(alone) and found.maximum == max(alone)
