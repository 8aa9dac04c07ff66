"""A claim for a larger population than is simulated: its formula, its target, and that nothing is verified by it."""

from __future__ import annotations

import json

import pytest
from conftest import Run

from fedpriv.attacks.release_audit import audit_mechanism
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import PoissonGaussian
from fedpriv.privacy.secret_cohorts import TO_OUTSIDERS
from fedpriv.report.epsilon_figures import all_figures
from fedpriv.report.run_summary import Privacy
from fedpriv.runs.planning import claim_of, target_price, with_target

CENTRAL = ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson")
RUN = (*CENTRAL, "num_clients=20", "clients_per_round=5", "num_rounds=4")
LARGER = ("privacy.extrapolated_cohort=500", "privacy.extrapolated_population=100000")


def of(multiplier: float, rate: float) -> float:
    event = PoissonGaussian(threat=TO_OUTSIDERS, multiplier=multiplier, sampling_rate=rate, count=4)
    return compose_events([event], 1e-5).epsilon


def test_the_claim_is_that_of_the_larger_mean_and_the_ledger_is_the_runs(run: Run) -> None:
    """The mean of 500 has the noise of the mean of 5 where its sum has a hundred times the noise."""
    folder = run(*RUN, *LARGER, "strategy.client.noise_multiplier=0.05")
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["claimed_epsilon"] == pytest.approx(of(0.05 * 100, 500 / 100000), rel=1e-9)
    assert privacy["claimed_scope"] == "extrapolated" and privacy["verified_at_claimed_scope"] is None
    assert privacy["verified_epsilon"] == pytest.approx(of(0.05, 5 / 20), rel=1e-6)
    assert privacy["verified_epsilon"] > 500 and privacy["claimed_epsilon"] < 0.5
    claimed, verified = all_figures(Privacy.model_validate(privacy))[:2]
    assert claimed.scope == "a larger population that was not simulated" and "500 of 100,000" in claimed.detail
    assert "scope" not in verified.detail and "500" not in verified.detail
    assert "extrapolated" not in json.dumps(privacy["others"])


def test_noise_is_chosen_for_the_claim() -> None:
    target = ("privacy.target_epsilon=2", "privacy.target_observer=extrapolated")
    config = with_target(compose([*RUN, *LARGER, *target]))
    chosen = config.strategy.options.noise_multiplier
    assert 1.98 <= of(chosen * 100, 0.005) <= 2 and target_price(config) == pytest.approx(of(chosen * 100, 0.005))
    own = with_target(compose([*RUN, *LARGER, "privacy.target_epsilon=2"]))
    assert own.strategy.options.noise_multiplier > 50 * chosen


def test_an_audit_of_what_was_simulated_says_nothing_of_the_claim() -> None:
    config = compose([*RUN, *LARGER, "strategy.client.noise_multiplier=0.5"])
    found = audit_mechanism(make_client(config), 1, delta=1e-5, trials=20_000, confidence=0.95, seed=0)
    assert found.claimed is None and found.verdict == "nothing is claimed"
    assert found.audit.epsilon_lower > claim_of(config, make_client(config), 4).epsilon


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LARGER[:1], r"extrapolated_population=null: requires privacy\.extrapolated_cohort=500"),
        (
            LARGER[1:],
            r"extrapolated_cohort=null: allowed: clients_per_round=5 to pri",
        ),
        ((*LARGER, "privacy.extrapolated_cohort=4"), r"extrapolated_cohort=4: allowed: clients_per_round=5"),
        ((*LARGER, "privacy.extrapolated_population=499"), r"extrapolated_cohort=500: allowed"),
        ((*LARGER, "strategy.client.form=local", "strategy.server.client_sampling=fixed"), "allowed here: null"),
        ((*LARGER, "strategy.server.client_sampling=allocated"), "allowed here: null"),
        ((*LARGER, "strategy=fedldp"), "allowed here: null"),
        (
            ("privacy.target_epsilon=2", "privacy.target_observer=extrapolated"),
            "extrapolated: requires",
        ),
    ],
)
def test_it_is_refused_where_it_means_nothing(options: tuple[str, ...], words: str) -> None:
    chosen = [*RUN, *options]
    if "strategy=fedldp" in options:
        chosen = [*LARGER, "strategy=fedldp"]
    with pytest.raises(OptionError, match=words):
        compose(chosen)
