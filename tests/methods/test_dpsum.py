"""dpsum: what an example changes of a site's whole numbers, what a round costs, and that it learns from a table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.attacks.release_audit import audit_config, further_pairs
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.mechanisms.clipped_sums import LARGEST_BATCH
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.tasks import Classification
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.row_sum import LONGER, RowSumGrid
from fedpriv.runs.start import start_run
from strategies.dpsum import DPSum

SMALL = (
    "strategy=dpsum", "dataset=breast_cancer", "model=linear", "num_clients=5", "clients_per_round=5", "num_rounds=4",
    "engine=inprocess", "operations.report=false", "privacy.delta=1e-4", "strategy.server.min_replies=5",
)  # fmt: skip


def grid(**changes: Any) -> RowSumGrid:
    return RowSumGrid(
        **({"law": "gaussian", "dimension": 62, "rows": 455, "sites": 5, "bits": 32, "multiplier": 0.0} | changes)
    )


@pytest.mark.parametrize("dimension", [1, 62, 3000])
@pytest.mark.parametrize("bits", [16, 24, 32])
def test_whole_numbers_of_neighbours_are_within_the_bound(dimension: int, bits: int) -> None:
    """Sums whose difference is as long as an example may make it, in the directions that rounding likes most."""
    own, rng, longest = grid(dimension=dimension, bits=bits), np.random.default_rng(0), 0.0
    for trial in range(200):
        total = rng.normal(0, 3, dimension)
        if trial % 2:  # just below a border between two whole numbers, in every coordinate
            total = (np.round(total * own.steps) + 0.5 - 1e-9) / own.steps
        change = np.ones(dimension) if trial % 4 > 1 else rng.normal(size=dimension)
        change *= (1 - 2.0**-12) / np.linalg.norm(change)
        first, second = (
            own.whole_numbers(torch.from_numpy(vector), SeededNoise(0, 0, 1, 0, "release")).numpy()
            for vector in (total, total + change)
        )
        longest = max(longest, float(np.linalg.norm(second - first)))
    assert longest <= own.l2()
    assert longest > own.steps * (1 - 2.0**-11)  # the bound is not far away


def test_the_grid_is_as_fine_as_bits_and_the_laws_table_allow() -> None:
    assert grid().l2() / grid().steps - 1 <= LONGER * (1 + 1e-9)
    assert grid(multiplier=10.0).steps == pytest.approx(
        2.0**16 / 10 if math.sqrt(62) / LONGER > 6554 else math.sqrt(62) / LONGER
    )
    assert grid(bits=12).steps < grid(bits=24).steps <= grid(bits=32).steps
    with pytest.raises(OptionError, match=r"strategy\.server\.bits=8"):
        _ = grid(bits=8, rows=1000).steps
    with pytest.raises(OptionError, match=r"up to 2\^39"):
        _ = grid(rows=2**38, dimension=2**20).steps


@pytest.mark.parametrize("value", [1.0, 1e6, float("nan"), float("inf")])
def test_one_example_moves_a_sites_numbers_by_the_bound_at_most(value: float) -> None:
    """Through the clipping code itself, at a hostile theta, whatever the example holds."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 2))
    for parameter in model.parameters():
        parameter.data.mul_(1e4)
    gradients = PerExampleGradients(model, task=Classification(("no", "yes")))
    inputs, targets, clip = torch.randn(40, 30), torch.randint(0, 2, (40,)), 0.1
    more = torch.cat([inputs, torch.full((1, 30), value)]), torch.cat([targets, torch.ones(1, dtype=torch.int64)])
    own = grid()
    noise = SeededNoise(0, 0, 1, 0, "release")
    numbers = [
        own.whole_numbers(gradients.clipped_sum(*rows, clip).total / clip, noise) for rows in ((inputs, targets), more)
    ]
    assert float(torch.linalg.vector_norm((numbers[1] - numbers[0]).double())) <= own.l2()


def test_a_sums_noise_is_that_of_all_sites_but_the_colluders() -> None:
    base = make_client(compose([*SMALL, "strategy.client.noise_multiplier=2"]))
    fewer = make_client(compose([*SMALL, "strategy.client.noise_multiplier=2", "strategy.client.colluders=2"]))
    sums, servers = base.charges(None)
    assert (sums.event.noises, servers.event.noises) == (5, 1)  # type: ignore[attr-defined]
    assert fewer.charges(None)[0].event.noises == 3  # type: ignore[attr-defined]
    assert sums.event.threat.unit == "example" and sums.event.threat.observer == "secure-sum"
    # The price of the exact Gaussian with the noise of five sites and the sensitivity C, but for the grid.
    rho = sums.event.rho  # type: ignore[attr-defined]
    assert 1 / (2 * 5 * 2.0**2) <= rho <= 1.003 / (2 * 5 * 2.0**2)


def test_a_site_of_more_rows_than_a_batch_may_have_pays_for_its_rounding() -> None:
    """The clipped sum's own bound beyond 65,536 examples (`clipped_sums.excess`), in the event that is booked."""
    for examples in (455, LARGEST_BATCH, LARGEST_BATCH + 1, 10**8):
        client = make_client(compose([*SMALL]), examples=examples)
        for charge in client.charges(None):
            own = client.grid  # type: ignore[attr-defined]
            expected = own.steps * (1 + 2 * max(0, examples - 2**16) * (2.0**-28 + 2.0**-33)) + math.sqrt(62)
            assert charge.event.l2 == pytest.approx(expected, rel=1e-14)  # type: ignore[attr-defined]


def test_the_noise_that_a_target_needs_is_close_to_the_exact_central_gaussians() -> None:
    """At epsilon 1 over 100 rounds: zCDP's noise, and at most 2 % more for the grid."""
    config = compose([*SMALL, "num_rounds=100"])
    client = make_client(config)
    chosen = type(client).chosen_for(1.0, 1e-4, 100, lambda **changes: make_client(config, **changes))
    events = make_client(config, **chosen).planned_events(100)
    assert 0.99 < compose_events(events, 1e-4).epsilon <= 1.0
    total = math.sqrt(5) * chosen["noise_multiplier"]
    epsilon = 100 / (2 * total**2) + 2 * math.sqrt(100 / (2 * total**2) * math.log(1e4))
    assert 0.95 < epsilon < 1.35  # the bound of Bun and Steinke at this noise: the accountants are sharper


@pytest.mark.parametrize("law", ["ddgauss", "skellam"])
def test_an_audit_finds_a_quarter_of_the_noise_and_not_the_whole(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose([*SMALL, f"strategy.client.law={law}", "strategy.client.noise_multiplier=0.4", "num_rounds=1"])

    def audited() -> tuple[float, float]:
        found = audit_config(config, trials=4000, confidence=0.95, seed=0)[0]
        return found.audit.epsilon_lower, found.verified

    epsilon, verified = audited()
    assert 0 < epsilon <= verified
    plain = RowSumGrid.noise
    monkeypatch.setattr(RowSumGrid, "noise", lambda self, shape, noise: plain(self, shape, noise) // 4)
    assert audited()[0] > verified


def test_the_last_model_is_the_mean_of_the_last_rounds() -> None:
    config = compose([*SMALL, "strategy.server.average=0.5"])
    strategy = DPSum.__new__(DPSum)
    strategy.options, strategy.summed, strategy.count = config.strategy.options, None, 0  # type: ignore[assignment]
    strategy.population = type("Population", (), {"travelling": None})()  # type: ignore[assignment]
    models = [np.full(3, float(number), np.float32) for number in range(1, 5)]
    for number, model in enumerate(models, 1):
        strategy.current = type("Round", (), {"number": number})()  # type: ignore[assignment]
        strategy.move = lambda theta, update, whole, model=model: model  # type: ignore[method-assign, misc, assignment]
        strategy.mean = lambda size, replies: np.zeros(3)  # type: ignore[method-assign, assignment]
        last = strategy.aggregate(model, [])
        assert number == 4 or last.tolist() == model.tolist()
    assert last.tolist() == [3.5] * 3
    assert strategy.count == 2


def test_the_hospitals_run(tmp_path: Path) -> None:
    start_run(compose(["experiment=hospitals", "num_rounds=3", "operations.report=false"]), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0.9 < summary["privacy"]["verified_epsilon"] <= 1.0
    assert 0.5 < summary["accuracy"]["final"] < 1.0


PEOPLE = """patient,age,sex,ill
{rows}
"""
SCHEMA = """target: {column: ill, task: classification, classes: [no, yes]}
columns: {age: {range: [0, 100]}, sex: {values: [f, m]}}
"""


def people(tmp_path: Path) -> list[str]:
    """Options of a run on a file of one's own: 60 rows."""
    rows = "\n".join(f"p{n // 2},{20 + n},{'fm'[n % 2]},{'yes' if n > 30 else 'no'}" for n in range(60))
    (tmp_path / "people.csv").write_text(PEOPLE.format(rows=rows))
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    own = (f"dataset.root={tmp_path}/people.csv", f"dataset.schema_file={tmp_path}/schema.yaml")
    sizes = ("num_clients=3", "clients_per_round=3", "num_rounds=2", "engine=inprocess", "operations.report=false")
    return ["dataset=table", *own, *sizes, "model=linear"]


def test_a_table_of_ones_own_is_learned_from(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start_run(compose(["strategy=dpsum", *people(tmp_path)]), folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["metrics"]["leading"] == "accuracy" and 0 <= summary["metrics"]["final"]["auc"] <= 1
    assert summary["privacy"]["unit"] == "example" and math.isfinite(summary["privacy"]["verified_epsilon"])


def test_no_audit_takes_opposite_gradients_for_neighbours() -> None:
    client = make_client(compose([*SMALL]))
    pairs = client.worst_case_pairs(2)
    assert all(not any(pair.world0) for pair in (*pairs, *further_pairs(client, pairs)))
