"""Fed-LDP and DP-FedAvg against whoever sees a round's sum only, and `privacy.target_observer`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Outcome, Run, page_of
from pytest import approx

from fedpriv.certificates import statement
from fedpriv.client.base import Client
from fedpriv.client.build import make_client
from fedpriv.client.gaussian import GaussianClient
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import CLIP_BIT
from fedpriv.config.compose import compose, read_config
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.auditor import audit
from fedpriv.privacy.composition import at_other_adjacency
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import CLIENT_TO_SERVER, SECURE_SUM, Gaussian
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.report.words import figure
from fedpriv.runs.planning import plan_elsewhere, with_target
from fedpriv.runs.preparation import plan_rows, resolve

DELTA = 1e-5
SIZE = ("num_clients=6", "clients_per_round=6", "num_rounds=3", "model=linear")
FORMS = {
    "fedldp": ("strategy=fedldp", "strategy.client.noise_multiplier=3.0"),
    "dpfedavg": ("strategy=dpfedavg", "strategy.server.weighting=uniform", "strategy.client.noise_multiplier=3.0"),
}


def client_of(*options: str) -> Client:
    return make_client(compose([*SIZE, *options]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("replies", "colluders", "noises"), [(4, 0, 4), (5, 2, 3)])
def test_the_noises_that_nobody_knows_add_up(form: str, replies: int, colluders: int, noises: int) -> None:
    client = client_of(*FORMS[form], f"strategy.server.min_replies={replies}", f"strategy.client.colluders={colluders}")
    assert client.accounts() == (CLIENT_TO_SERVER, SECURE_SUM)
    own, in_sum = (charge.event for charge in client.all_charges())
    assert own == Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.5)
    assert in_sum == Gaussian(threat=SECURE_SUM, multiplier=math.sqrt(noises) * 1.5)
    # T rounds of a vector that moves by 2C under N(0, noises sigma^2 C^2): mu = 2 sqrt(T) / (sqrt(noises) sigma).
    planned = compose_events(client.planned_events(7, SECURE_SUM), DELTA).epsilon
    assert planned == approx(gaussian_epsilon(2 * math.sqrt(7) / (math.sqrt(noises) * 3.0), DELTA), rel=1e-6)
    assert client.planned_events(0, SECURE_SUM) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "options",
    [
        ("strategy.server.min_replies=1",),
        ("strategy.server.min_replies=5", "strategy.client.colluders=4"),
        ("strategy.server.min_replies=5", "strategy.server.weighting=examples"),
    ],
    ids=str,
)
def test_a_client_with_its_own_noise_alone_has_the_servers_account(form: str, options: tuple[str, ...]) -> None:
    """By examples: a release of weight w among others of weight 0 has nobody else's noise."""
    client = client_of(*FORMS[form], *options)
    assert client.accounts() == (CLIENT_TO_SERVER,)
    (own,) = (charge.event for charge in client.all_charges())
    assert own == Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.5)
    chosen = ("privacy.target_epsilon=30", "privacy.target_observer=secure-sum")
    with pytest.raises(OptionError, match=r"a single unknown noise .* strategy\.server\.min_replies"):
        with_target(compose([*SIZE, *FORMS[form][:-1], *options, *chosen]))


def test_a_rule_on_sums_is_priced_in_the_sum_and_one_on_single_clients_one_by_one() -> None:
    four = "strategy.server.min_replies=4"
    bits = client_of(*FORMS["fedldp"], "strategy.server.clipping=quantile", "strategy.client.count_noise=2.0", four)
    update = Gaussian(threat=SECURE_SUM, multiplier=3.0, count=2)
    assert bits.planned_events(2, SECURE_SUM) == [update, Gaussian(threat=SECURE_SUM, multiplier=4.0, count=2)]
    norms = client_of(*FORMS["fedldp"], "strategy.server.clipping=adp", "strategy.client.norm_noise=2.0", four)
    assert norms.planned_events(2, SECURE_SUM) == [update, Gaussian(threat=SECURE_SUM, multiplier=2.0, count=2)]


def test_with_its_own_noise_the_bit_takes_a_tenth_of_the_budget_in_the_sum_as_alone() -> None:
    client = client_of(*FORMS["fedldp"], "strategy.server.clipping=quantile", "strategy.server.min_replies=4")
    for threat in (CLIENT_TO_SERVER, SECURE_SUM):
        update, bit = (event.multiplier**-2 for event in client.planned_events(1, threat))  # type: ignore[attr-defined]
        assert 0.08 < bit / (update + bit) <= 0.1


def test_the_sum_of_real_bits_keeps_to_its_account() -> None:
    """Four clients' own statistics, of which one update lies within C in one world and beyond it in the other."""
    options = ("strategy.server.clipping=quantile", "strategy.client.count_noise=0.5", "strategy.server.min_replies=4")
    client = client_of(*FORMS["fedldp"], *options)
    assert isinstance(client, GaussianClient)

    def sums(world: int, trials: int, seed: int) -> np.ndarray:
        total = torch.zeros(trials)
        for member in range(4):
            length = (0.5, 3.0)[world] if member == 0 else 0.7
            update = torch.zeros(trials, 2)
            update[:, 0] = length
            total += client.measure(update, None, SeededNoise(seed, int(world), member, "bits")).statistics[CLIP_BIT]
        return total[:, None].numpy()

    (event,) = client.statistic.events_in_sum(4)
    verified = compose_events([event], DELTA).epsilon
    found = audit(sums, delta=DELTA, trials=200_000, confidence=0.999, seed=1).epsilon_lower
    assert 0.3 * verified < found <= verified < compose_events(client.statistic.events(SECURE_SUM), DELTA).epsilon


@pytest.mark.parametrize("form", FORMS)
def test_the_sum_of_real_releases_keeps_to_its_account(form: str) -> None:
    """The sum of four clients' own release code, one client's update C or -C: its law is the account's, and an audit
    finds no more than is verified, and most of it.
    """
    client = client_of(*FORMS[form], "strategy.server.min_replies=4")

    def sums(world: int, trials: int, seed: int) -> np.ndarray:
        total = torch.zeros(trials, 2)
        for member in range(4):  # the others' updates are what they are, in both worlds
            length = (1.0, -1.0)[world] if member == 0 else 0.5
            noise = SeededNoise(seed, int(world), member, form)
            total += client.audit_release(length, None, (trials, 2), noise).value
        return total.numpy()

    first, second = sums(0, 100_000, 7), sums(1, 100_000, 7)
    assert (first - second).mean(axis=0) == approx([2 / math.sqrt(2)] * 2, abs=0.1)  # 2 C on all axes alike, C = 1
    assert first.std(axis=0) == approx([6.0, 6.0], rel=0.02)  # sqrt(4) sigma
    verified = compose_events(client.planned_events(1, SECURE_SUM), DELTA).epsilon
    alone = compose_events(client.planned_events(1, CLIENT_TO_SERVER), DELTA).epsilon
    found = audit(sums, delta=DELTA, trials=200_000, confidence=0.999, seed=1).epsilon_lower
    assert 0.3 * verified < found <= verified < alone


# --- the option ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=fedldp",),
        ("strategy=fedldp", "strategy.server.clipping=adp"),
        ("strategy=dpfedavg", "strategy.server.weighting=uniform"),
        ("strategy=cpsgd",),
        ("strategy=adpfl", "model=mlp"),
    ],
    ids=str,
)
def test_the_target_is_met_for_the_observer_named(options: tuple[str, ...], run: Run) -> None:
    """By the plan, and the same by the finished run's ledger; against the server it costs more than that."""
    chosen = ("privacy.target_epsilon=30", "privacy.target_observer=secure-sum", "strategy.server.min_replies=6")
    given = (*SIZE, *options, *chosen, "evaluate.every=0")
    config, _, plan = resolve(compose([*given, "engine=inprocess"]), None)
    (elsewhere,) = plan_elsewhere(config)
    assert elsewhere.threat == SECURE_SUM and 29.6 <= elsewhere.verified_epsilon <= 30 < plan.verified_epsilon
    summary = json.loads((run(*given) / "summary.json").read_text())
    (other,) = summary["privacy"]["others"]
    assert other["observer"] == "secure-sum" and other["verified_epsilon"] == approx(elsewhere.verified_epsilon)
    assert summary["privacy"]["verified_epsilon"] == approx(plan.verified_epsilon)


def test_the_methods_own_observer_is_what_null_means() -> None:
    own = with_target(compose([*SIZE, "strategy=fedcad", "privacy.target_epsilon=30"]))
    named = with_target(
        compose([*SIZE, "strategy=fedcad", "privacy.target_epsilon=30", "privacy.target_observer=server"])
    )
    assert own.strategy == named.strategy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("strategy=fedcad",), "fedcad has an account for server: a client reuses the noise of its own last release"),
        (("strategy=fedags",), "fedags has an account for server"),
        (("strategy=dpsgd",), "dpsgd has an account for server"),
        (
            ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
            "dpfedavg has an account for trusted-server",
        ),
    ],
)
def test_an_observer_without_an_account_is_refused(options: tuple[str, ...], words: str) -> None:
    chosen = ("privacy.target_epsilon=30", "privacy.target_observer=secure-sum")
    with pytest.raises(OptionError) as error:
        with_target(compose([*SIZE, *options, *chosen]))
    assert error.value.option == "privacy.target_observer" and words in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("privacy.target_observer=secure-sum",),
            "privacy.target_observer=secure-sum: requires privacy.target_epsilon",
        ),
        (("privacy.target_epsilon=3", "privacy.target_observer=nobody"), "privacy.target_observer=nobody: allowed"),
        (("strategy=fedldp", "strategy.client.weighting=some"), "weighting=some: allowed: uniform or examples"),
        (("strategy=fedldp", "strategy.client.colluders=1"), "must be less than strategy.server.min_replies=1"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], words: str) -> None:
    with pytest.raises(OptionError) as error:
        compose(list(options))
    assert words in str(error.value)


def test_a_plan_shows_every_observer(cli: Callable[..., Outcome]) -> None:
    said = cli("plan=true", *SIZE, *FORMS["fedldp"], "strategy.server.min_replies=4")
    assert said.code == 0 and "and against secure-sum" in said.out, said.err


def test_the_folder_says_who_added_up(run: Run) -> None:
    folder: Path = run("strategy=fedldp", "strategy.server.min_replies=2", "num_rounds=1")
    assert "Secure summation is assumed: nothing in this run" in page_of(folder)
    folder = run("strategy=ddgauss", "strategy.server.min_replies=2", "num_rounds=1")
    assert "The secure sum is ideal: the server added whole numbers in plaintext" in page_of(folder)
    assert json.loads((folder / "summary.json").read_text())["privacy"]["secure_sum"] == "ideal"


def test_noises_of_other_sizes_hide_nobody() -> None:
    """Published with 2C/n_k every client's sigma is its own: a small client's times sqrt(K) would be no guarantee."""
    options = ("privacy.variant=published", "strategy.client.sensitivity=per_example", "strategy.server.min_replies=5")
    own = client_of("strategy=dpfedavg", "strategy.server.weighting=uniform", *options)
    assert own.accounts() == (CLIENT_TO_SERVER,)
    fixed = client_of(*FORMS["dpfedavg"], *options)  # one sigma for all, given
    assert fixed.accounts() == (CLIENT_TO_SERVER, SECURE_SUM)


@pytest.mark.parametrize("form", ["fedldp", "ddgauss", "central"])
def test_a_sum_of_clients_shows_both_adjacencies(form: str, run: Run) -> None:
    """In plan, summary, report and certificate: the closed forms of one noise at both distances."""
    options = {
        "fedldp": ("strategy=fedldp", "strategy.server.min_replies=2", "strategy.client.noise_multiplier=8"),
        "ddgauss": ("strategy=ddgauss", "strategy.server.min_replies=2", "strategy.client.noise_multiplier=8"),
        "central": (
            "strategy=dpfedavg", "strategy.client.form=central", "strategy.client.noise_multiplier=2",
            "strategy.server.client_sampling=poisson",
        ),
    }[form]  # fmt: skip
    folder: Path = run(*options, "num_rounds=2", "num_clients=2", "clients_per_round=2")
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    found = privacy["others"][0] if form == "fedldp" else privacy
    # std/C of a round's sum: sqrt(2) * 8, or 2; a replaced client moves it by 2C; two rounds
    mu = math.sqrt(2) / (2.0 if form == "central" else math.sqrt(2) * 8)
    ends = {"replace-one": gaussian_epsilon(2 * mu, 1e-5), "zero-out": gaussian_epsilon(mu, 1e-5)}
    ends["add-or-remove-one"] = ends["zero-out"]
    named = ("zero-out", "replace-one")[form == "central"]
    assert (found["adjacency"] == "replace-one") == (named == "zero-out") == (found["other_adjacency"] == "zero-out")
    assert found["verified_epsilon"] == pytest.approx(ends[found["adjacency"]], rel=0.02)
    assert found["other_epsilon"] == pytest.approx(ends[found["other_adjacency"]], rel=0.02)
    assert ("other_epsilon" in privacy) == (form != "fedldp")  # against the server there is no sum
    rows = plan_rows(read_config(folder))
    line = rows["and against secure-sum" if form == "fedldp" else "verified epsilon"]
    assert line.endswith(f"); {named} {found['other_epsilon']:.4g}")
    page = page_of(folder)
    assert f"verified, {named}" in page and f"{figure(found['other_epsilon'])}" in page
    said = [one for one in statement.of_run(folder)["assumptions"] if f"neighbours are {named}" in one]
    assert len(said) == 1 and f"{found['other_epsilon']:.4g}" in said[0]


def test_a_bit_beside_an_update_moves_as_far_where_the_update_becomes_zero() -> None:
    """One round of six noises: mu^2 of the update's half distance, and of the bit's whole range."""
    client = client_of("strategy=fedldp", "strategy.server.clipping=quantile", "strategy.server.min_replies=6")
    update, bit = (one.event for one in client.all_charges() if one.event.threat == SECURE_SUM)
    assert isinstance(update, Gaussian) and isinstance(bit, Gaussian) and update.multiplier != bit.multiplier
    found = at_other_adjacency({0: [update, bit]}, DELTA, client.at_other_adjacency)
    mu = math.hypot(1 / (2 * update.multiplier), 1 / bit.multiplier)
    assert found == ("zero-out", approx(gaussian_epsilon(mu, DELTA), rel=1e-9))
    assert at_other_adjacency({0: [replace(update, count=4)]}, DELTA, client.at_other_adjacency) == (
        "zero-out",
        approx(gaussian_epsilon(1 / update.multiplier, DELTA), rel=1e-9),
    )
