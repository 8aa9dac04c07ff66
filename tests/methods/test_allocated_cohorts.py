"""Runs whose clients take part in one secret round of each pass: cohorts, ledger, budgets, resumed runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import making
import numpy as np
import pytest
from conftest import Run, ledger_of, rows_of

from fedpriv.certificates import statement, verify_certificate
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.identities import new_identity
from fedpriv.common.messages import pack_vector
from fedpriv.config.compose import compose
from fedpriv.deployment.data_ledger import Signer
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import EVERY_CLIENT, AllocatedGaussian
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS, SecretCohorts
from fedpriv.runs.extension import extend_run
from fedpriv.runs.planning import make_plan, with_target
from fedpriv.runs.start import resume_run
from fedpriv.server.round import Population
from strategies.dpfedavg import DPFedAvg

METHOD = ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=allocated")
RUN = (*METHOD, "num_clients=20", "clients_per_round=5", "num_rounds=6", "strategy.client.noise_multiplier=2.0")


def cost(count: int, multiplier: float = 2.0, *cut: int) -> float:
    """Of passes of four rounds, and of some that were cut after so many."""
    made = partial(AllocatedGaussian, threat=TO_OUTSIDERS, multiplier=multiplier, rounds=4)
    return compose_events([made(count=count), *(made(released=n) for n in cut)], 1e-5).epsilon


def half(rng: str = "seeded", attempt: int = 0, clients: int = 60, size: int = 12) -> DPFedAvg:
    options = {"form": "central", "epsilon": 1.0, "claimed_delta": 1e-5, "clip_norm": 1.0, "noise_multiplier": 2.0}
    population = Population(3, clients, size, lambda client: 10, rng=rng, attempt=attempt)
    return making.server(DPFedAvg, population, learning_rate=0.1, client_sampling="allocated", **options)


def drawn(server: DPFedAvg, first: int, last: int) -> list[tuple[int, ...]]:
    theta = pack_vector(np.zeros(3, np.float32))
    return [tuple(server.begin(number, theta)) for number in range(first, last + 1)]


# --- who takes part ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rng", ["seeded", "secure"])
def test_everybody_takes_part_once_in_every_pass(rng: str) -> None:
    cohorts = drawn(half(rng), 1, 15)
    for begin in (0, 5, 10):
        assert sorted(client for cohort in cohorts[begin : begin + 5] for client in cohort) == list(range(60))
    assert len({len(cohort) for cohort in cohorts}) > 2 and len(set(cohorts)) == 15
    assert (drawn(half(rng), 1, 15) == cohorts) is (rng == "seeded")
    assert drawn(half(rng), 3, 3)[0] != () and (drawn(half(), 3, 3)[0] == drawn(half(), 1, 3)[2])


def test_rounds_are_uniform_and_independent_of_other_clients_and_passes() -> None:
    """Chi-square of the pairs (own round, another's), and (own round, own round in the next pass), of 4,000 clients."""
    cohorts = drawn(half(clients=4000, size=1000), 1, 8)
    places = np.zeros((2, 4000), int)
    for number, cohort in enumerate(cohorts):
        places[number // 4, list(cohort)] = number % 4
    for one, other in ((places[0, ::2], places[0, 1::2]), (places[0], places[1])):
        counts = np.array(list(Counter(zip(one.tolist(), other.tolist(), strict=True)).values()))
        expected = len(one) / 16
        assert len(counts) == 16 and ((counts - expected) ** 2 / expected).sum() < 45  # 15 degrees: one in 10,000


def test_a_resumed_run_that_cannot_repeat_its_rounds_begins_a_pass_of_its_own() -> None:
    """Rounds 4 and 5 of the first pass have left: who takes part in them again must not be asked in 6 to 8 for both."""
    again = half(attempt=1)
    cohorts = drawn(again, 4, 8)
    assert sorted(client for cohort in cohorts for client in cohort) == list(range(60))
    assert cohorts[:2] != drawn(half(), 1, 5)[3:]
    assert [again.cohorts.begins_pass(number) for number in range(4, 10)] == [True, *[False] * 4, True]
    assert cohorts != drawn(half(attempt=2), 4, 8)


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_pass_is_booked_with_its_first_release(run: Run) -> None:
    folder = run(*RUN)
    lines = [(e["round"], e["client"], e["mechanism"], e["rounds"], e["released"]) for e in ledger_of(folder)]
    assert lines == [(1, EVERY_CLIENT, "allocated_gaussian", 4, 4), (5, EVERY_CLIENT, "allocated_gaussian", 4, 2)]
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == privacy["verified_median"] == pytest.approx(cost(1, 2.0, 2), rel=1e-6)
    assert privacy["verified_epsilon"] < 0.93 * cost(2)
    assert (privacy["observer"], privacy["adjacency"]) == ("trusted-server", "add-or-remove-one")
    rows = rows_of(folder)
    assert sum(row["participants"] for row in rows[:4]) == 20 and len({row["participants"] for row in rows}) > 1
    assert all(row["figures"]["server_noise_norm"] > 1 for row in rows)
    config = compose(list(RUN))
    plan = make_plan(config, Worker(config))
    assert plan.verified_epsilon == pytest.approx(cost(1, 2.0, 2), rel=1e-6)
    assert plan.bytes_down == sum(row["participants"] for row in rows) * 4 * 650


def test_the_verifier_computes_a_pass_by_its_own_method(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(*RUN)
    whole = statement.signed(statement.of_run(folder), Signer(new_identity(b"mine")[0]), "whoever ran it")
    (folder / "certificate.json").write_text(json.dumps(whole))
    assert verify_certificate.main([str(folder / "certificate.json")]) == 0
    assert "FALSE" not in capsys.readouterr().out


def test_secret_cohorts_that_are_redone_are_paid_again(resumed: Callable[..., Path]) -> None:
    folder = resumed(*RUN, "checkpoint.every=2", "privacy.rng=secure", after=3)
    assert [(entry["round"], entry["attempt"] > 0) for entry in ledger_of(folder)] == [(1, False), (3, True)]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["privacy"]["verified_epsilon"] == pytest.approx(cost(2), rel=1e-6)


def test_a_budget_ends_the_run_before_a_pass_that_exceeds_it(run: Run) -> None:
    limit = cost(4) * 1.0001
    folder = run(*RUN, "num_rounds=20", f"privacy.max_epsilon={limit}")
    summary = json.loads((folder / "summary.json").read_text())
    rounds = summary["rounds"]
    assert rounds in (4, 8, 12, 16) and f"round {rounds + 1}: the next global model" in summary["note"]
    assert summary["privacy"]["verified_epsilon"] <= limit and len(ledger_of(folder)) == rounds // 4


def test_an_extension_of_a_cut_pass_begins_and_pays_another(run: Run) -> None:
    """A client of round 5 or 6 was paid for as one that is in no later round: it must not be drawn by the same pass."""
    options = (*RUN, "checkpoint.every=2")
    folder, longer = run(*options), run(*RUN, "num_rounds=9")
    extend_run(folder, ["num_rounds=9"])
    resume_run(folder)
    lines = [(entry["round"], entry["released"], entry["attempt"] > 0) for entry in ledger_of(folder)]
    assert lines == [(1, 4, False), (5, 2, False), (7, 3, True)]
    asked, whole = ([row["participants"] for row in rows_of(one)] for one in (folder, longer))
    assert asked[:6] == whole[:6] and asked[6:] != whole[6:]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["privacy"]["verified_epsilon"] == pytest.approx(cost(1, 2.0, 2, 3), rel=1e-6)


def test_a_run_of_less_than_a_pass_is_extended(run: Run) -> None:
    folder = run(*RUN, "num_rounds=2", "checkpoint.every=2")
    extend_run(folder, ["num_rounds=6"])
    resume_run(folder)
    assert [(entry["round"], entry["released"]) for entry in ledger_of(folder)] == [(1, 2), (3, 4)]


def test_an_extension_at_the_end_of_a_pass_is_the_run_that_was_that_long(run: Run) -> None:
    folder = run(*RUN, "num_rounds=4", "checkpoint.every=2")
    extend_run(folder, ["num_rounds=6"])
    resume_run(folder)
    assert ledger_of(folder) == ledger_of(run(*RUN))


def test_an_extension_of_a_cut_pass_keeps_to_budget_and_target(run: Run) -> None:
    """The plan of an extended run has the cut pass and another, which cost more than a run of that length."""
    enough = cost(1, 2.0, 2, 3) * 1.0001
    folder = run(*RUN, "checkpoint.every=2", f"privacy.max_epsilon={enough}")
    extend_run(folder, ["num_rounds=9"])
    assert resume_run(folder)["rounds"] == 9
    free = [option for option in RUN if "noise_multiplier" not in option]
    folder = run(*free, "checkpoint.every=2", f"privacy.target_epsilon={cost(1, 2.0, 2)}")
    between = f"privacy.target_epsilon={(cost(2, 2.0, 1) + cost(1, 2.0, 2, 3)) / 2}"
    with pytest.raises(OptionError, match=r"privacy\.target_epsilon=.*9 rounds cost"):
        extend_run(folder, ["num_rounds=9", between])


def test_control_variates_and_moving_clip_norms_cost_the_same(run: Run) -> None:
    scaffold = run(*RUN, "strategy=scaffold")
    moving = run(*RUN, "strategy.server.clipping=quantile")
    for folder in (scaffold, moving):
        privacy = json.loads((folder / "summary.json").read_text())["privacy"]
        assert privacy["verified_epsilon"] == pytest.approx(cost(1, 2.0, 2), rel=1e-6)


# --- noise -----------------------------------------------------------------------------------------------------------


def test_noise_is_chosen_for_the_passes_of_a_run_or_for_one() -> None:
    free = [option for option in RUN if "noise_multiplier" not in option]
    chosen = with_target(compose([*free, "privacy.target_epsilon=3"])).strategy.options.noise_multiplier
    assert 2.95 <= cost(1, chosen, 2) <= 3
    client = make_client(compose([*free, "strategy.client.epsilon=1"]))
    assert 0.98 <= cost(1, client.noise_multiplier) <= 1


def test_an_audited_client_takes_part_once_in_every_pass() -> None:
    cohorts, state, among = SecretCohorts("allocated", 40, 10), None, []
    for number in range(8):
        there, state = cohorts.drawn(state, 4000, SeededNoise(number))
        among.append(there.numpy())
    first, second = np.array(among[:4]), np.array(among[4:])
    assert (first.sum(0) == 1).all() and (second.sum(0) == 1).all()
    counts = Counter(zip(first.argmax(0).tolist(), second.argmax(0).tolist(), strict=True))
    assert len(counts) == 16 and sum((count - 250) ** 2 / 250 for count in counts.values()) < 45
