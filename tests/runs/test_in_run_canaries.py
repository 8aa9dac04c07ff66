"""Canaries within a run: the run stays as it is, the bounds are sound, and faults of the run's own code are seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.client.memory import ContextStore
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import Request, read_request
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.privacy.canaries import CanaryAudit
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.runs import in_run_canaries
from fedpriv.runs.start import resume_run, start_run

SIZE = ("num_clients=4", "clients_per_round=4", "num_rounds=3", "evaluate.every=0", "engine=inprocess")
NO_REPORT = ("operations.report=false", "checkpoint.every=0")


def run(path: Path, *options: str) -> dict[str, Any]:
    return start_run(compose([*SIZE, *NO_REPORT, *options]), path)


def model(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


FEDLDP = ("strategy=fedldp", "strategy.client.noise_multiplier=1")
#: Clients whose noise is not Gaussian: coins of one release.
JOINT = ("strategy=ldpfl",)
DPSGD = ("strategy=dpsgd", "strategy.client.noise_multiplier=0.5", "local.batch_size=60")


@pytest.mark.parametrize("options", [FEDLDP, DPSGD, (*FEDLDP, "engine.trainer=vectorised")])
def test_the_run_is_the_same_with_and_without_canaries(options: tuple[str, ...], tmp_path: Path) -> None:
    plain = run(tmp_path / "plain", *options)
    heard = run(tmp_path / "heard", *options, "audit.in_run=true", "audit.canaries=64")
    assert model(tmp_path / "plain") == model(tmp_path / "heard")
    for name in ("ledger.jsonl",):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "heard" / name).read_bytes()
    assert plain["accuracy"] == heard["accuracy"]
    assert plain["privacy"]["verified_epsilon"] == heard["privacy"]["verified_epsilon"]
    found = heard["privacy"]["in_run_audit"]
    assert found["requests"] == 3 and found["canaries"] >= 64 and "in_run_audit" not in plain["privacy"]
    assert found["audited_epsilon"] <= found["verified_epsilon"]
    assert found["verdict"] != "contradicts the verified epsilon"
    assert json.loads((tmp_path / "heard" / "summary.json").read_text())["privacy"]["audited_on"]


@pytest.mark.parametrize(("options", "least"), [(FEDLDP, 2.0), (DPSGD, 0.5)])
def test_the_bounds_show_something_and_never_too_much(options: tuple[str, ...], least: float, tmp_path: Path) -> None:
    found = run(tmp_path / "run", *options, "audit.in_run=true", "audit.canaries=600")["privacy"]["in_run_audit"]
    (sharper,) = found["sharper"]
    assert least <= found["audited_epsilon"] <= found["verified_epsilon"]
    assert least <= sharper["epsilon_lower"] <= found["verified_epsilon"]
    assert sharper["assumes"] and sharper["epsilon_lower"] <= sharper["attainable"]


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("clients.fedldp.add_normal", (*FEDLDP, "strategy.client.noise_multiplier=20")),
        ("clients.dpfl_agn.add_normal_finely", (*DPSGD, "strategy.client.noise_multiplier=4")),
    ],
)
def test_missing_noise_is_contradicted(
    place: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twentieth of the noise, in the run's own code."""
    import importlib

    module, name = place.rsplit(".", 1)
    real = getattr(importlib.import_module(module), name)
    monkeypatch.setattr(place, lambda value, sigma, noise: real(value, sigma / 20, noise))
    found = run(tmp_path / "run", *options, "audit.in_run=true", "audit.canaries=200")["privacy"]["in_run_audit"]
    assert found["verdict"] == "contradicts the verified epsilon"


def test_who_sees_no_messages_has_no_canary_clients_and_the_summary_says_why(tmp_path: Path) -> None:
    sampling = ("strategy.client.form=central", "strategy.server.client_sampling=poisson")
    options = ("strategy=dpfedavg", *sampling, "audit.in_run=true")
    found = run(tmp_path / "run", *options)["privacy"]
    assert "trusted-server" in found["in_run_audit"]["reason"] and found["audited_epsilon"] is None


def test_a_failing_audit_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*others: Any) -> None:
        raise RuntimeError("no memory left")

    monkeypatch.setattr(in_run_canaries.CanaryClients, "ask", broken)
    found = run(tmp_path / "run", *FEDLDP, "audit.in_run=true")["privacy"]
    assert "no memory left" in found["in_run_audit"]["reason"] and found["audited_epsilon"] is None


@pytest.mark.parametrize("wrong", ["audit.canaries=3", "audit.confidence=1", "audit.in_run=7"])
def test_wrong_options_are_named(wrong: str) -> None:
    with pytest.raises(OptionError, match=wrong.partition("=")[0]):
        compose([wrong])


def test_canaries_are_a_number_of_the_options_alone() -> None:
    config = compose([*SIZE, *FEDLDP, "audit.in_run=true"])
    first, second = (in_run_canaries.InRunAudit(Worker(config)).canaries for _ in range(2))
    assert first.many == second.many > 10 and np.array_equal(first.coins, second.coins)
    assert first.requests == second.requests
    assert compose(["audit.in_run=true"]).digest() == compose([]).digest()


# --- how many, and when they are heard -------------------------------------------------------------------------------


def planned(*options: str) -> in_run_canaries.CanaryClients:
    return in_run_canaries.InRunAudit(Worker(compose([*SIZE, *options, "audit.in_run=true"]))).canaries


def test_longer_training_affords_more_canaries_and_an_asked_number_hears_everything() -> None:
    short, long = planned(*FEDLDP, "num_rounds=60"), planned(*FEDLDP, "num_rounds=60", "local.epochs=60")
    assert short.many == short.wide == in_run_canaries.LEAST_COINS and 1 <= short.requests < 60
    assert long.many > 10_000 and long.requests == 60 and 1 <= long.wide <= in_run_canaries.LEAST_COINS
    middle = planned(*FEDLDP, "num_rounds=60", "num_clients=20", "clients_per_round=20")
    assert in_run_canaries.LEAST_SHORT <= middle.many < 3 * in_run_canaries.LEAST_SHORT and 20 < middle.requests < 60
    asked = planned(*FEDLDP, "num_rounds=60", "audit.canaries=500")
    assert (asked.many, asked.requests, asked.wide) == (500, 60, in_run_canaries.LEAST_COINS)
    joint = planned(*JOINT, "num_rounds=60", "audit.canaries=500")
    assert (joint.many, joint.requests, joint.wide) == (500, 60, 500) and not joint.short
    of_examples = planned(*DPSGD, "num_rounds=60")
    assert of_examples.many == 1 and 1 <= of_examples.requests < 60


@pytest.mark.parametrize(
    ("options", "each"),
    [(FEDLDP, in_run_canaries.ROWS + 24 * 650 * in_run_canaries.NUMBER), (DPSGD, in_run_canaries.WHOLE)],
)
def test_what_is_planned_takes_a_twentieth_of_the_rounds_at_most(options: tuple[str, ...], each: float) -> None:
    found = planned(*options, "num_rounds=60")
    assert (
        found.requests * each
        <= in_run_canaries.SHARE * in_run_canaries.planned_seconds(found)
        <= 2 * (found.requests + 1) * each + in_run_canaries.FIXED + in_run_canaries.FIRST
    )


def test_short_releases_are_planned_by_what_they_take() -> None:
    found = planned(*FEDLDP, "num_rounds=60", "num_clients=20", "clients_per_round=20")
    plan = in_run_canaries.Plan(found.many, found.requests, found.wide)
    assert 0.95 * in_run_canaries.SHARE < in_run_canaries.planned_share(found, plan) <= in_run_canaries.SHARE
    more = in_run_canaries.Plan(found.many + 10_000, found.requests, found.wide)
    assert in_run_canaries.planned_share(found, more) - in_run_canaries.planned_share(found, plan) == pytest.approx(
        found.requests * 10_000 * in_run_canaries.SHORT / in_run_canaries.planned_seconds(found)
    )


def test_a_part_of_the_requests_is_heard_evenly_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, real = [], in_run_canaries.CanaryClients.ask

    def watched(self: in_run_canaries.CanaryClients, message: Any, strategy: Any) -> None:
        heard.append(read_request(message.content).round)
        real(self, message, strategy)

    monkeypatch.setattr(in_run_canaries.CanaryClients, "ask", watched)
    plan = "fedpriv.runs.in_run_canaries.affordable"
    monkeypatch.setattr(plan, lambda *others: in_run_canaries.Plan(24, 3, 24))
    found = run(tmp_path / "run", *FEDLDP, "num_rounds=10", "audit.in_run=true")["privacy"]["in_run_audit"]
    assert heard == [1, 5, 8] and found["requests"] == 3 and found["clients"] == 24


def test_the_first_canary_goes_the_whole_way_once_and_the_others_in_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, real = [], in_run_canaries.CanaryClients._score

    def watched(self: in_run_canaries.CanaryClients, numbers: Any, releases: Any, *others: bool) -> None:
        sizes.append((int(numbers[0]), len(numbers), releases.shape[1]))
        real(self, numbers, releases, *others)

    monkeypatch.setattr(in_run_canaries.CanaryClients, "_score", watched)
    run(tmp_path / "run", *FEDLDP, "audit.in_run=true", "audit.canaries=30")
    assert sizes == [(0, 1, 650), (1, 23, 650)] + [(24, 6, 1)] * 3


def test_a_resumed_run_is_the_same_run_and_its_canaries_start_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*SIZE, NO_REPORT[0], *FEDLDP, "num_rounds=6", "checkpoint.every=2", "audit.in_run=true"]
    options.append("audit.canaries=200")
    start_run(compose(options), tmp_path / "whole")
    real = in_run_canaries.InRunAudit.hear

    def ctrl_c(self: in_run_canaries.InRunAudit, message: Any, strategy: Any) -> None:
        if read_request(message.content).round == 5:
            raise KeyboardInterrupt
        real(self, message, strategy)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(in_run_canaries.InRunAudit, "hear", ctrl_c)
        start_run(compose(options), tmp_path / "halted")
    privacy = resume_run(tmp_path / "halted")["privacy"]
    assert model(tmp_path / "whole") == model(tmp_path / "halted")
    assert privacy["in_run_audit"]["requests"] == 2 and privacy["in_run_audit"]["canaries"] == 200
    assert 0 < privacy["audited_epsilon"] <= privacy["verified_epsilon"]
    assert privacy["audit_verdict"] != "contradicts the verified epsilon"


# --- verdicts --------------------------------------------------------------------------------------------------------


def judged(correct: int, verified: Callable[[CanaryAudit, CanaryAudit], float]) -> dict[str, Any]:
    """What 200 coins say if so many of the 25 guesses are right."""
    audit = in_run_canaries.InRunAudit(Worker(compose([*SIZE, *FEDLDP, "audit.in_run=true", "audit.canaries=200"])))
    audit.canaries.__dict__["independent"] = False  # the bounds of coins in one release
    audit.heard = 1
    order, coins = np.arange(200), audit.canaries.coins
    right = np.where(coins, 1.0, -1.0) * (1000 - order)  # the clearest scores first
    ins, outs = np.flatnonzero(coins)[:12], np.flatnonzero(~coins)[:13]
    wrong = [*ins[: (25 - correct) // 2], *outs[: 25 - correct - (25 - correct) // 2]]
    audit.canaries.scores[:] = right
    audit.canaries.coins[wrong] = ~audit.canaries.coins[wrong]
    both = audit.found()
    assert both is not None and both[0].guesses == 25 and both[0].correct == correct
    figures = audit.figures({"verified_epsilon": verified(*both)}, 1.0)
    found: dict[str, Any] = figures["in_run_audit"]
    return found


def test_a_verdict_on_two_bounds_divides_the_error() -> None:
    """Each bound alone may be wrong once in twenty times; both together may not be more often."""

    def between(alone: CanaryAudit, joint: CanaryAudit) -> float:
        assert joint.confidence == pytest.approx(0.975) and joint.sharper[0].confidence == pytest.approx(0.975)
        assert joint.sharper[0].epsilon_lower < 0.98 * alone.sharper[0].epsilon_lower
        return (joint.sharper[0].epsilon_lower + alone.sharper[0].epsilon_lower) / 2

    assert judged(24, between)["verdict"] != "contradicts the verified epsilon"
    assert judged(24, lambda alone, joint: 0.98 * joint.sharper[0].epsilon_lower)["verdict"].startswith("contradicts")


def test_the_audited_epsilon_is_never_the_one_that_assumes_something() -> None:
    found = judged(25, lambda alone, joint: 100.0)
    assert found["audited_epsilon"] < found["sharper"][0]["epsilon_lower"] and found["sharper"][0]["assumes"]
    assert found["audited_epsilon"] <= found["audited_at_most"] and found["audited_confidence"] == 0.95


def test_scores_that_are_no_numbers_end_the_audit_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_run_canaries.CanaryClients, "_score", lambda self, *others: self.scores.fill(np.nan))
    found = run(tmp_path / "run", *FEDLDP, "audit.in_run=true")["privacy"]
    assert "finite score" in found["in_run_audit"]["reason"] and found["audited_epsilon"] is None


def test_a_canary_update_is_ten_clip_norms_long_so_that_missing_clipping_shows() -> None:
    found = planned(*FEDLDP, "strategy.client.clip_norm=0.3", "audit.canaries=30")
    updates, _ = found.train(range(found.first, found.first + 30))
    assert (updates.norm(dim=1) > 2 * 0.3).all()


# --- independent coins, short releases, the estimate -----------------------------------------------------------------


def test_short_releases_show_most_of_what_is_verified(tmp_path: Path) -> None:
    options = (*FEDLDP, "strategy.client.noise_multiplier=2", "audit.in_run=true", "audit.canaries=20000")
    found = run(tmp_path / "run", *options)["privacy"]["in_run_audit"]
    (sharper,) = found["sharper"]
    verified = found["verified_epsilon"]
    assert verified == pytest.approx(gaussian_epsilon(3**0.5, 1e-5))
    assert 0.95 * verified < sharper["epsilon_lower"] <= verified
    assert 0.45 * verified < found["audited_epsilon"] <= verified and found["canaries"] == 20000
    assert found["estimated"]["epsilon"] == pytest.approx(verified, rel=0.1) and found["estimated"]["assumes"]
    assert "audited" not in found["estimated"] and found["of_whole_releases"] == in_run_canaries.LEAST_COINS


def test_scores_of_coins_are_independent_and_of_the_law_that_the_ledger_says() -> None:
    found = planned(*FEDLDP, "strategy.client.noise_multiplier=3", "audit.canaries=4000")
    found.stores = [ContextStore(in_run_canaries._context(found.first + number)) for number in range(2)]
    for number in (1, 2, 3):
        found._hear_rows(Request(number), torch.zeros(650), first=number == 1)
    every = np.where(found.coins, 1, -1)[1:] * found.scores[1:]
    signed, whole = every[23:], every[:23]
    assert signed.mean() == pytest.approx(3.0, abs=0.3) and signed.std() == pytest.approx(3 * 3**0.5, rel=0.05)
    neighbours = np.corrcoef(signed[:-1], signed[1:])[0, 1]
    assert abs(neighbours) < 0.07 and len(np.unique(signed)) > 3960
    assert whole.std() == pytest.approx(3, rel=0.5) and abs(whole.mean() - 1) < 2.5  # of one message
    assert found.mu == pytest.approx(2 / 3 * 3**0.5)


def test_fewer_than_all_requests_have_their_own_mu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.runs.in_run_canaries.affordable", lambda *others: in_run_canaries.Plan(24, 15, 24))
    assert planned(*FEDLDP, "num_rounds=60").mu == pytest.approx(2 * 15**0.5)


def test_a_run_without_canaries_says_what_they_would_have_taken_and_shown(tmp_path: Path) -> None:
    long = ("num_rounds=60", "local.epochs=60", "strategy.client.noise_multiplier=10")
    offer = in_run_canaries.audit_offer(Worker(compose([*SIZE, *FEDLDP, *long])), 7.3)["in_run_offer"]
    assert offer["cheap"] and offer["coins"] > 10_000 and offer["share"] <= in_run_canaries.SHARE
    assert 3 < offer["would_show"] < offer["would_show_if_gaussian"] < gaussian_epsilon(2 / 10 * 60**0.5, 1e-5)
    assert run(tmp_path / "run", *FEDLDP)["privacy"]["in_run_offer"]["cheap"] is False
    of_examples = in_run_canaries.audit_offer(Worker(compose([*SIZE, *DPSGD])), 7.3)["in_run_offer"]
    assert "would_show" not in of_examples and of_examples["at_most"] > 0
    assert in_run_canaries.audit_offer(Worker(compose([*SIZE, *FEDLDP])), float("inf")) == {}


def test_an_offer_that_cannot_be_made_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*others: Any) -> None:
        raise RuntimeError("no schedule")

    monkeypatch.setattr("fedpriv.runs.in_run_canaries.InRunAudit", broken)
    assert in_run_canaries.audit_offer(Worker(compose([*SIZE, *FEDLDP])), 7.3) == {}
