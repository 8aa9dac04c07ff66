"""dpsum: what an example changes of a site's whole numbers, what a round costs, and that it learns from a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from pytest import approx
from reference.federation import make_site
from safetensors.torch import load_file

import fedpriv
from fedpriv.attacks.release_audit import audit_config, further_pairs
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import Request
from fedpriv.config.compose import compose
from fedpriv.data.load import load_federated
from fedpriv.mechanisms import integer_noise
from fedpriv.mechanisms.clipped_sums import LARGEST_BATCH
from fedpriv.mechanisms.integer_noise import LONGER
from fedpriv.mechanisms.noise import SeededNoise, clip_factors, fine_step
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.recalibration import Curve, closer, counted, first_curve, fit, recalibrated, two_likeliest
from fedpriv.mechanisms.scaling import Scaling, clipped_rows
from fedpriv.mechanisms.tasks import Classification
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import EVERY_CLIENT, Threat
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.sum_grid import RowSumGrid
from fedpriv.runs.start import resume_run, start_run
from fedpriv.server.optimizers import Optimizer
from fedpriv.server.round import Round
from fedpriv.training.sequential import LocalData
from fedpriv.training.task_metrics import calibration
from strategies.dpsum import DPSum
from tools import risks_figure

SMALL = (
    "strategy=dpsum", "dataset=breast_cancer", "model=linear", "num_clients=5", "clients_per_round=5", "num_rounds=4",
    "engine=inprocess", "operations.report=false", "privacy.delta=1e-4", "strategy.server.min_replies=5",
)  # fmt: skip

HOSTILE = [0.0, 1e30, -1e30, float("nan"), float("inf")]


def grid(**changes: Any) -> RowSumGrid:
    return RowSumGrid(
        **({"form": "ddgauss", "dimension": 62, "rows": 455, "sites": 5, "bits": 32, "multiplier": 0.0} | changes)
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
    """At epsilon 1 over 100 rounds: the Gaussian's noise, and at most 2 % more for the grid."""
    config = compose([*SMALL, "num_rounds=100"])
    client = make_client(config)
    chosen = type(client).chosen_for(1.0, 1e-4, 100, lambda **changes: make_client(config, **changes))
    events = make_client(config, **chosen).planned_events(100)
    assert 0.99 < compose_events(events, 1e-4).epsilon <= 1.0
    total = math.sqrt(5) * chosen["noise_multiplier"]
    assert 0.97 < gaussian_epsilon(math.sqrt(100) / total, 1e-4) <= 1.0


FORMS = ("ddgauss", "skellam", "central", "local")
TRIALS = 1500


def audited(form: str, trials: int = TRIALS, across: int = 1, **changes: Any) -> tuple[float, float]:
    """(audited, verified) epsilon of one round whose sum has little noise."""
    multiplier = 0.55 if form in ("ddgauss", "skellam") else 1.2
    given = {"form": form, "noise_multiplier": multiplier} | changes
    options = [f"strategy.client.{name}={value}" for name, value in given.items()]
    config = compose([*SMALL, *options, "num_rounds=1", f"privacy.across_sites={across}"])
    found = audit_config(config, trials=trials, confidence=0.95, seed=0)[0]
    return found.audit.epsilon_lower, found.verified


honest = cache(audited)  # of no planted fault


@pytest.mark.parametrize("form", FORMS)
def test_an_audit_finds_a_quarter_of_the_noise_and_not_the_whole(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    epsilon, verified = honest(form)
    assert 0 < epsilon <= verified
    whole, gaussian = RowSumGrid.noise, integer_noise.add_normal_finely
    monkeypatch.setattr(RowSumGrid, "noise", lambda self, shape, noise: whole(self, shape, noise) // 4)
    monkeypatch.setattr(integer_noise, "add_normal_finely", lambda values, std, noise: gaussian(values, std / 4, noise))
    assert audited(form)[0] > verified


@pytest.mark.parametrize("form", FORMS)
def test_an_audit_finds_a_grid_whose_rounding_is_not_paid_for(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few bits a row moves every coordinate by a whole step: sqrt(d) in place of R."""
    noise = 1.5 if form in ("ddgauss", "skellam") else 3.0
    coarse = {"bits": 10, "noise_multiplier": noise}
    monkeypatch.setattr(RowSumGrid, "l2", lambda self, excess=0.0: self.steps * (1 + excess))
    epsilon, verified = audited(form, **coarse)
    assert epsilon > verified


@pytest.mark.parametrize("form", ["ddgauss", "skellam"])
def test_an_audit_finds_one_noise_for_all_sites(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Priced as if each of five sites had added it."""
    plain = RowSumGrid.noise
    drawn: list[int] = []

    def once(self: RowSumGrid, shape: torch.Size, noise: Any) -> torch.Tensor:
        drawn.append(1)
        return plain(self, shape, noise) if len(drawn) % 5 == 1 else torch.zeros(shape, dtype=torch.int64)

    verified = honest(form)[1]
    monkeypatch.setattr(RowSumGrid, "noise", once)
    assert audited(form, trials=12_000)[0] > verified


def test_an_audit_finds_a_sample_that_is_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilon, verified = audited("central", sampling_rate=0.1)
    assert epsilon <= verified < honest("central")[1] / 2
    monkeypatch.setattr(SeededNoise, "uniform", lambda self, shape: torch.zeros(shape, dtype=torch.float64))
    assert audited("central", sampling_rate=0.1)[0] > verified


def test_gaussian_noise_costs_what_the_exact_gaussian_does() -> None:
    """But for the grid. A site's sum and the trusted server's have the same price; a sample costs less."""
    for form, observer in (("central", "trusted-server"), ("local", "server")):
        options = [*SMALL, f"strategy.client.form={form}", "strategy.client.noise_multiplier=3"]
        (charge,) = make_client(compose(options)).charges(None)
        assert charge.event.threat.observer == observer and charge.event.threat.unit == "example"
        assert 3 / (1 + 1.001 * LONGER) <= charge.event.multiplier < 3  # type: ignore[attr-defined]
        (sampled,) = make_client(compose([*options, "strategy.client.sampling_rate=0.1"])).charges(None)
        costs = [compose_events([one.event] * 20, 1e-4).epsilon for one in (charge, sampled)]
        assert costs[1] < costs[0] / 3


def test_a_sum_beyond_the_modulus_comes_back_with_its_noise() -> None:
    """What a server makes of T mod 2^b is what it would make of T, whole numbers far beyond 2^b included."""
    own = grid(form="central", bits=16, multiplier=2.0)
    total = torch.tensor([2**15 - 1, -(2**15), 5, 2**15 + 40])
    found = [own.noisy(part, SeededNoise(0, 0, 1, 0, "x")) for part in (total, total + 3 * 2**16, total - 2**16)]
    assert torch.allclose(found[0], found[1], atol=1e-6) and torch.allclose(found[0], found[2], atol=1e-6)
    assert float(found[0].abs().max()) <= 2**15


@pytest.mark.parametrize("unit", [None, torch.arange(41) // 2])
@pytest.mark.parametrize("value", [0.1, 1.0, -1e30, float("nan"), float("inf")])
def test_one_row_or_person_moves_a_sum_of_rows_by_less_than_the_bound(value: float, unit: torch.Tensor | None) -> None:
    rows = torch.rand(41, 30, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rows[-1] = value
    whole = clipped_rows(rows, 0.7, unit).total
    less = clipped_rows(rows[:-1], 0.7, None if unit is None else unit[:-1]).total
    assert torch.isfinite(whole).all()
    assert float(torch.linalg.vector_norm(whole - less)) < 0.7 * (1 - 2.0**-12)


def test_a_scaled_model_is_the_same_function() -> None:
    rng = np.random.default_rng(0)
    theta, shift, scale = rng.normal(size=3 * 5 + 3 + 2), rng.normal(size=5), rng.uniform(0.1, 2, 5)
    rows = torch.from_numpy(rng.normal(size=(7, 5))).float()
    scaling = Scaling(shift, np.log(scale), 3)
    moved = scaling.forward(theta.astype(np.float32))

    def logits(theta: Any, rows: torch.Tensor) -> np.ndarray:
        return rows.numpy() @ np.asarray(theta)[:15].reshape(3, 5).T + np.asarray(theta)[15:18]

    assert np.allclose(logits(theta, rows), logits(moved, scaling.inputs(rows)), atol=1e-4)
    assert np.allclose(moved[18:], theta[18:])  # what lies behind the first layer stays
    update = rng.normal(size=20)
    again = scaling.forward((theta + scaling.back(update)).astype(np.float32))
    assert np.allclose(again, moved + update, atol=1e-5)
    same = Scaling(np.zeros(5), np.zeros(5), 3)
    assert np.array_equal(same.inputs(rows).numpy(), rows.numpy()) and np.array_equal(same.back(update), update)


def test_the_learning_rate_follows_the_noise() -> None:
    """eta nu sqrt(T) = 12, up to 6 (0.6 for a regression); an lr that is given is taken."""
    strategy = DPSum.__new__(DPSum)
    people: dict[str, Any] = {
        "num_clients": 5,
        "clients_per_round": 5,
        "risk_classes": 0,
        "num_examples": staticmethod(lambda client: 91),
    }
    strategy.population = type("Population", (), people)()  # type: ignore[assignment]

    def step(*options: str, classes: int = 2) -> float:
        strategy.population.classes = classes  # type: ignore[misc]
        strategy.options = compose([*SMALL, "num_rounds=20", *options]).strategy.options  # type: ignore[assignment]
        return strategy.step(62)

    eta = step("strategy.client.noise_multiplier=60")
    assert eta * (60 * math.sqrt(5) * math.sqrt(62) / 455) * math.sqrt(20) == pytest.approx(12.0)
    central = step("strategy.client.noise_multiplier=60", "strategy.client.form=central")
    assert central == pytest.approx(eta * math.sqrt(5))
    assert step("strategy.client.noise_multiplier=0.1") == 6.0
    assert step("strategy.client.noise_multiplier=0.1", classes=1) == pytest.approx(0.6)
    assert step("strategy.client.noise_multiplier=20", "strategy.server.lr=3.0") == 1.0


def test_the_last_model_is_the_mean_of_the_last_rounds() -> None:
    config = compose([*SMALL, "strategy.server.average=0.5"])
    strategy = DPSum.__new__(DPSum)
    strategy.options, strategy.summed, strategy.count = config.strategy.options, None, 0  # type: ignore[assignment]
    people: dict[str, Any] = {"travelling": None, "num_clients": 5, "clients_per_round": 5, "classes": 2}
    people |= {"flat_inputs": 30, "outputs": 2, "risk_classes": 0}
    people["num_examples"] = staticmethod(lambda client: 91)
    strategy.population = type("Population", (), people)()  # type: ignore[assignment]
    models = [np.full(3, float(number), np.float32) for number in range(1, 5)]
    for number, model in enumerate(models, 1):
        strategy.current = type("Round", (), {"number": number})()  # type: ignore[assignment]
        strategy.move = lambda theta, update, model=model: model  # type: ignore[method-assign, misc, assignment]
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


def test_the_first_rounds_tell_the_inputs_means_and_deviations(tmp_path: Path) -> None:
    """Without noise, and with rows that nothing clips: those of the training rows themselves."""
    quiet = ("strategy.client.noise_multiplier=0", "num_rounds=10", "evaluate.every=0")
    config = compose([*SMALL, *quiet, "dataset=practices", "checkpoint.every=10"])
    start_run(config, tmp_path / "run")
    kept = (tmp_path / "run" / "checkpoints").rglob("*.safetensors")
    vectors = {name: vector for file in kept for name, vector in load_file(file).items()}
    rows = torch.from_numpy(np.array(load_federated(config).dataset.train.inputs))
    rows = rows * clip_factors(rows.double().norm(dim=1), math.sqrt(11 / 3)).unsqueeze(1)
    shift, deviation = vectors["shift"], vectors["deviation"]
    assert np.allclose(shift, rows.mean(0), atol=1e-3)
    assert np.allclose(deviation, (rows - shift).abs().mean(0), atol=0.01)


def served(rounds: int, layers: int = 1) -> DPSum:
    """The server half with noise, of 5 x 91 rows with 30 inputs."""
    strategy = DPSum.__new__(DPSum)
    options = [*SMALL, f"num_rounds={rounds}", "strategy.client.noise_multiplier=20"]
    strategy.options = compose(options).strategy.options  # type: ignore[assignment]
    strategy.optimizer = Optimizer(strategy.options)
    people: dict[str, Any] = {"num_clients": 5, "clients_per_round": 5, "classes": 2, "flat_inputs": 30, "outputs": 2}
    people |= {"risk_classes": 0, "num_examples": staticmethod(lambda client: 91), "layers": (slice(0, 62),) * layers}
    strategy.population = type("Population", (), people)()  # type: ignore[assignment]
    return strategy


def test_each_statistic_of_the_inputs_is_the_mean_of_its_rounds() -> None:
    """Of 20 rounds two each, with noise less by sqrt(2) in the mean. Checkpoints hold them; a linear theta is zero."""
    rng, strategy = np.random.default_rng(0), served(20)
    theta, means = rng.normal(size=62).astype(np.float32), rng.uniform(0.1, 0.3, (4, 62))
    bound = math.sqrt(30 / 3)
    for number, mean in enumerate(means, 1):
        strategy.current = Round(number, theta)
        strategy.mean = lambda size, replies, mean=mean: mean  # type: ignore[method-assign, misc]
        assert not strategy.aggregate(theta, []).any()
        found = strategy.input_sums
        assert found is not None and found[1] == approx(20 * math.sqrt(5) * bound / math.sqrt(min(number, 2)))
        if number == 3:  # a run may go on here
            again = served(20)
            again.load_vectors(strategy.vectors())
            strategy = again
    scaling = strategy.scaling
    assert scaling is not None
    assert np.allclose(scaling.shift, means[:2, :30].mean(0) * bound, atol=1e-6)
    hidden = 2 * (20 * math.sqrt(5) / 455) / math.sqrt(2) * bound
    assert np.allclose(np.exp(scaling.log_scale), means[2:, :30].mean(0) * bound + hidden + 1e-3, rtol=1e-5)
    strategy = served(20, layers=2)  # an mlp would not move from zero
    strategy.mean = lambda size, replies: means[0]  # type: ignore[method-assign]
    strategy.current = Round(1, theta)
    assert np.array_equal(strategy.aggregate(theta, []), theta)
    assert [served(rounds).input_rounds for rounds in (9, 10, 19, 20, 40)] == [0, 1, 1, 2, 4]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_row_moves_what_leaves_a_site_in_a_round_of_statistics_by_the_bound_at_most(value: float) -> None:
    """Rounds 1 and 2 of 20 sum the inputs, 3 and 4 their distances from what came down."""
    noiseless = ("num_rounds=20", "strategy.client.form=local", "strategy.client.noise_multiplier=0")
    config, rng = compose([*SMALL, *noiseless]), np.random.default_rng(0)
    inputs, shift = torch.from_numpy(rng.uniform(-1, 1, (41, 30))).float(), rng.uniform(-1, 1, 30)
    inputs[-1] = value

    def leaving(rows: int, number: int) -> torch.Tensor:
        data = LocalData(inputs[:rows], torch.zeros(rows, dtype=torch.int64))
        client = make_client(config, make_site(load_data=lambda _: data))
        client.scaling = Scaling(shift, np.zeros(30), 2)  # type: ignore[attr-defined]
        try:
            next(client.steps(torch.zeros(62), None, Request(number)))  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value.value.double()  # type: ignore[no-any-return]
        raise AssertionError("gradients")

    grid = make_client(config).grid  # type: ignore[attr-defined]
    for number in range(1, 5):
        whole, without = leaving(41, number), leaving(40, number)
        assert float(torch.linalg.vector_norm(whole - without)) <= grid.l2() / grid.steps
        rows = inputs[:40] if number <= 2 else (inputs[:40] - torch.from_numpy(shift).float()).abs()
        rows = rows * clip_factors(rows.double().norm(dim=1), math.sqrt(10)).unsqueeze(1)
        assert np.allclose(without[:30], rows.sum(0) / math.sqrt(10), atol=1e-3)
    with pytest.raises(AssertionError, match="gradients"):
        leaving(40, 5)


@pytest.mark.parametrize("form", FORMS)
def test_defaults_are_of_use_for_a_regression(form: str, tmp_path: Path) -> None:
    options = ["experiment=hospitals", "dataset=diabetes", "privacy.target_epsilon=8", "evaluate.every=0"]
    start_run(compose([*options, f"strategy.client.form={form}", "operations.report=false"]), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"]["final"]["r2"] > 0.2
    assert summary["privacy"]["verified_epsilon"] <= 8.0
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert ({line.get("client") for line in lines} == {EVERY_CLIENT}) == (form == "central")


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


# --- a person at several sites -----------------------------------------------------------------------------

SUM_OF_PERSONS = Threat("person", "add-or-remove-one", "secure-sum")


def delta_of(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    """The exact delta of two laws (numbers of equal places), the larger of both directions."""
    scale = math.exp(epsilon)
    return float(max(np.maximum(p - scale * q, 0).sum() for p, q in ((first, second), (second, first))))


@pytest.mark.parametrize("dimension", [1, 7, 62])
@pytest.mark.parametrize("across", [2, 3, 5])
def test_a_person_at_several_sites_moves_their_sum_by_as_many_times_the_bound(dimension: int, across: int) -> None:
    """Other vectors at each site, or the same one; each site rounds its own numbers, in the way that moves most."""
    own, rng, longest = grid(dimension=dimension, bits=24), np.random.default_rng(1), 0.0
    for trial in range(200):
        moved, same = np.zeros(dimension), rng.normal(size=dimension) if trial % 3 else np.ones(dimension)
        for _ in range(across):
            total = (np.round(rng.normal(0, 3, dimension) * own.steps) + 0.5 - 1e-9) / own.steps
            change = same if trial % 2 else rng.normal(size=dimension)
            change = change * ((1 - 2.0**-12) / np.linalg.norm(change))
            first, second = (own.whole(torch.from_numpy(vector)).numpy() for vector in (total, total + change))
            moved += second - first
        longest = max(longest, float(np.linalg.norm(moved)))
    event = own.event(SUM_OF_PERSONS, 5, 1e-6, across=across)
    assert longest <= event.l2 == across * own.l2()
    assert longest > across * own.steps * (1 - 2.0**-11)  # no smaller number of sites would do


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("across", [1, 2, 5])
def test_what_a_person_at_several_sites_costs_is_the_formula(form: str, across: int) -> None:
    options = [*SMALL, f"strategy.client.form={form}", "strategy.client.noise_multiplier=3"]
    client = make_client(compose([*options, f"privacy.across_sites={across}"]), examples=90)
    own, first = client.grid, client.charges(None)[0].event  # type: ignore[attr-defined]
    moved = own.steps + math.sqrt(62)
    if form in ("ddgauss", "skellam"):
        alone = client.charges(None)[1].event
        assert (first.l2, first.dimension, first.count) == (approx(across * moved), across * 62, 1)  # type: ignore[attr-defined]
        assert (alone.l2, alone.dimension, alone.count) == (approx(moved), 62, across)  # type: ignore[attr-defined]
        assert alone.count * alone.delta_share == approx(first.delta_share)
        return
    step = fine_step(own.sigma) * math.sqrt(62)
    if form == "local":
        assert (first.multiplier, first.count) == (approx(own.sigma / (moved + step), rel=1e-13), across)  # type: ignore[attr-defined]
        return
    assert (first.multiplier, first.count) == (approx(own.sigma / (across * moved + step), rel=1e-13), 1)  # type: ignore[attr-defined]
    assert first.sampling_rate == 1  # type: ignore[attr-defined]
    sampled = make_client(compose([*options, f"privacy.across_sites={across}", "strategy.client.sampling_rate=0.1"]))
    assert sampled.charges(None)[0].event.sampling_rate == approx(1 - 0.9**across, rel=1e-12)  # type: ignore[attr-defined]


def test_the_exact_law_of_a_person_at_two_sites_keeps_to_its_price_and_breaks_that_of_one() -> None:
    """Five sites' discrete Gaussians, convolved: one coordinate moves by what a person at two sites may change."""
    delta = 1e-4
    for across, keeps in ((1, False), (2, True)):
        event = grid(dimension=1, multiplier=0.6).event(SUM_OF_PERSONS, 5, 1e-9, across=across)
        epsilon = compose_events([event], delta).epsilon
        sigma, both = event.sigma, int(2 * grid(dimension=1, multiplier=0.6).l2())  # type: ignore[union-attr]
        places = np.arange(-int(12 * sigma), int(12 * sigma) + 1)
        one = np.exp(-(places**2) / (2 * sigma**2))
        law = one = one / one.sum()
        for _ in range(4):
            law = np.convolve(law, one)
        exact = delta_of(np.pad(law, (both, 0)), np.pad(law, (0, both)), epsilon)
        assert (exact <= delta) == keeps, (across, exact)
        assert keeps is False or exact > 0.8 * delta  # and the price is near


@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize("across", [2, 4])
def test_the_exact_law_of_samples_at_several_sites_keeps_to_its_price(rate: float, across: int) -> None:
    """A trusted sum of S sites that each draw the person by a coin: a mixture over how many did."""
    check_samples_at_sites(rate, across, 2.0, (1e-2, 1e-4))
    if rate == 0.05:  # so little noise that what counts is whether the person is there at all: at any of the sites
        check_samples_at_sites(rate, across, 0.3, (0.05,))


def check_samples_at_sites(rate: float, across: int, multiplier: float, deltas: tuple[float, ...]) -> None:
    own = grid(form="central", dimension=1, multiplier=multiplier)
    event = own.gaussian_event(SUM_OF_PERSONS, rate, across=across)
    y = np.linspace(-14, 14 + across / multiplier, 400_001)
    normal, step = (lambda mean: np.exp(-((y - mean) ** 2) / 2) / math.sqrt(2 * math.pi)), y[1] - y[0]
    mixed = sum(
        math.comb(across, n) * rate**n * (1 - rate) ** (across - n) * normal(n / multiplier) for n in range(across + 1)
    )
    for delta in deltas:
        epsilon = compose_events([event], delta).epsilon
        assert delta_of(mixed * step, normal(0.0) * step, epsilon) <= delta
        alone = compose_events([own.gaussian_event(SUM_OF_PERSONS, rate)], delta).epsilon
        assert delta_of(mixed * step, normal(0.0) * step, alone) > delta


@pytest.mark.parametrize("form", ["ddgauss", "skellam"])
def test_sites_in_different_rounds_cost_a_person_no_more_than_all_in_each(form: str) -> None:
    """S R rounds with one site each against R rounds with all S, where what each coordinate adds counts most: little
    noise (T) in many coordinates.
    """
    own = grid(form=form, dimension=4000, bits=8, rows=4, multiplier=4.0, sites=2)
    shapes = ((own, 1e-9),) if form == "skellam" else ((own, 1e-9), (replace(own, multiplier=0.9), 1e-9))
    for shape, share in shapes:
        for across, rounds in ((2, 3), (5, 1)):
            single = shape.event(SUM_OF_PERSONS, 2, share)
            together = shape.event(SUM_OF_PERSONS, 2, share, across=across)
            # a window that S d coordinates leave with delta is left by d of them with delta/S
            if form == "skellam":
                single = replace(single, delta=share / across)  # type: ignore[type-var]
            apart = compose_events([single] * (across * rounds), 1e-4).epsilon
            assert apart <= compose_events([together] * rounds, 1e-4).epsilon * (1 + 1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_an_audit_of_a_person_at_two_sites_keeps_to_their_price_and_breaks_that_of_one(form: str) -> None:
    """Through the release code of both sites."""
    more = {"noise_multiplier": 0.8} if form in ("ddgauss", "skellam") else {"noise_multiplier": 1.5}
    alone = audited(form, trials=200, **more)[1]
    epsilon, verified = audited(form, trials=40_000 if form == "local" else 6000, across=2, **more)
    assert alone < epsilon <= verified


# --- recalibration ---------------------------------------------------------------------------------------------


def made_risks(rows: int, slope: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Inputs [n, 6], classes, and theta of a model whose log odds are ``slope`` times too long, and 0.5 too high."""
    rng = np.random.default_rng(seed)
    inputs, weights = rng.uniform(-1, 1, (rows, 6)), np.array([3.0, -2.0, 1.0, 0.5, 0.0, 1.0])
    targets = rng.random(rows) < 1 / (1 + np.exp(1.0 - inputs @ weights))
    theta = np.concatenate([-slope * weights / 2, slope * weights / 2, [0.0, -slope + 0.5]])
    return torch.from_numpy(inputs).float(), torch.from_numpy(targets).long(), theta


def curve_of(inputs: torch.Tensor, targets: torch.Tensor, theta: np.ndarray, outputs: int = 2) -> Curve:
    """Exact counts, asked twice: where the rows are expected, and where they are."""
    asked = first_curve(theta, outputs, np.zeros(inputs.shape[1]), np.full(inputs.shape[1], 0.5))
    for _ in range(2):
        asked = closer(asked, outputs == 2)
        counts = counted(inputs, targets, theta, outputs, asked.centre, asked.width).sum(0).numpy()
        asked = replace(asked, counts=counts.reshape(2, -1))
    return asked


@pytest.mark.parametrize("slope", [0.3, 1.0, 4.0])
def test_counts_give_the_calibration_that_the_rows_give(slope: float) -> None:
    """Intercept and slope by all log odds, computed otherwise (`task_metrics.calibration`)."""
    inputs, targets, theta = made_risks(20_000, slope)
    odds = inputs.double().numpy() @ (theta[6:12] - theta[:6]) + theta[13] - theta[12]
    exact = calibration(odds, targets.numpy())
    assert exact is not None
    found = fit([curve_of(inputs, targets, theta)])
    assert found[1] == pytest.approx(exact[1], rel=0.02) and found[0] == pytest.approx(exact[0], abs=0.03)
    mended = recalibrated(theta, 2, *found)
    risks = 1 / (1 + np.exp(-(inputs.double().numpy() @ (mended[6:12] - mended[:6]) + mended[13] - mended[12])))
    assert risks.mean() == pytest.approx(float(targets.double().mean()), abs=0.005)
    assert np.allclose(np.argsort(risks), np.argsort(odds))  # who is above whom stays


def test_the_temperature_of_three_classes_is_that_of_their_likelihood() -> None:
    rng = np.random.default_rng(1)
    inputs, weights = rng.uniform(-1, 1, (30_000, 5)), 2 * rng.normal(size=(3, 5))
    scores = inputs @ weights.T
    targets = (scores + rng.gumbel(size=scores.shape)).argmax(1)
    theta = np.concatenate([2.5 * weights.ravel(), np.zeros(3)])
    intercept, slope = fit(
        [curve_of(torch.from_numpy(inputs).float(), torch.from_numpy(targets), theta, 3)], intercept=False
    )
    assert intercept == 0.0 and 2.5 * slope == pytest.approx(1.0, abs=0.04)
    assert np.allclose(recalibrated(theta, 3, 0.0, slope), theta * slope)


def test_noise_moves_a_calibration_to_no_side() -> None:
    inputs, targets, theta = made_risks(5_000, 2.5)
    exact, rng = curve_of(inputs, targets, theta), np.random.default_rng(0)
    truth = fit([exact])[1]

    def noisy(noise: float) -> list[float]:
        curves = [replace(exact, noise=noise, counts=exact.counts + rng.normal(0, noise, (2, 7))) for _ in range(80)]
        return [fit([curve])[1] for curve in curves]

    slopes = noisy(15.0)
    assert np.mean(slopes) == pytest.approx(truth, rel=0.03) and np.std(slopes) < 0.1 * truth
    assert 0.4 < np.median(noisy(1e4)) < 2.0  # nothing but noise: the prior keeps the model near what it was


@pytest.mark.parametrize("unit", [None, torch.arange(41) // 2])
@pytest.mark.parametrize("value", HOSTILE)
def test_a_row_or_person_moves_the_counts_by_less_than_one(value: float, unit: torch.Tensor | None) -> None:
    """Whatever the row holds, and whatever model, centre and width a server sends; others' rows count as they did."""
    inputs, targets, honest = made_risks(41, 1.0)
    inputs[-1] = value
    for theta in (honest, np.full(14, value), honest * 1e300):
        for centre, width in ((0.0, 1.0), (value, 1.0), (0.0, value), (value, value)):
            vectors = counted(inputs, targets, theta, 2, centre, width)
            assert torch.equal(counted(inputs[:-1], targets[:-1], theta, 2, centre, width), vectors[:-1])
            assert float(vectors.norm(dim=1).max()) <= 1 + 1e-12 and bool((vectors >= 0).all())
            whole = clipped_rows(vectors, 1.0, unit).total
            less = clipped_rows(vectors[:-1], 1.0, None if unit is None else unit[:-1]).total
            assert float(torch.linalg.vector_norm(whole - less)) < 1 - 2.0**-12


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 33, 1000])
def test_a_rows_log_odds_do_not_depend_on_how_many_rows_there_are(rows: int) -> None:
    """Under a theta whose terms cancel but for their rounding, which alone says where a row counts."""
    rng = np.random.default_rng(0)
    half, weights = rng.uniform(-1, 1, (1000, 50)), 1e16 * rng.normal(size=50)
    inputs, targets = torch.from_numpy(np.hstack([half, half])).float(), torch.from_numpy(rng.integers(0, 2, 1000))
    theta = np.concatenate([np.zeros(100), weights, -weights, [0.0, 0.0]])
    vectors = counted(inputs, targets, theta, 2, 0.0, 10.0)
    assert int((vectors.sum(0) > 20).sum()) >= 8  # they lie all over the knots
    assert torch.equal(counted(inputs[:rows], targets[:rows], theta, 2, 0.0, 10.0), vectors[:rows])
    order = torch.from_numpy(rng.permutation(1000))
    assert torch.equal(counted(inputs[order], targets[order], theta, 2, 0.0, 10.0), vectors[order])


def test_the_two_likeliest_classes_are_those() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [2.0, 3.0, 1.0], [1.0, 1.0, 1.0], [0.0, 5.0, 5.0]])
    best, second = two_likeliest(scores)
    assert best.tolist() == [2, 0, 1, 0, 1] and second.tolist() == [1, 2, 0, 1, 2]


def test_recalibration_costs_a_round_each_and_is_refused_where_there_are_no_risks() -> None:

    def made(*options: str) -> Any:
        return make_client(compose([*SMALL, "num_rounds=20", *options]))

    client, plain = made(), made("strategy.client.recalibration=0")
    assert client.counts_from == 19 and plain.counts_from == 21  # of a run without there is no such round
    assert plain.planned_events(20) == client.planned_events(20)
    assert made("num_rounds=9").counts_from == 10
    # noise sqrt(5) sigma against 2 % of 456 rows; a given number of rounds does not ask
    assert [made(f"strategy.client.noise_multiplier={sigma}").counts_from for sigma in (4.06, 4.08)] == [19, 21]
    assert made("strategy.client.noise_multiplier=9", "strategy.client.recalibration=3").counts_from == 18
    central = ("strategy.client.form=central", "strategy.client.sampling_rate=0.5")
    assert [made(*central, f"strategy.client.noise_multiplier={sigma}").counts_from for sigma in (4.5, 4.6)] == [
        19,
        21,
    ]
    unscaled = made("strategy.client.scale_inputs=false")  # its first rounds are no sums of inputs
    assert unscaled.traits.vectors_down == 3 and (unscaled.input_rounds, client.input_rounds) == (0, 2)
    for options in (["dataset=diabetes"], ["model=mlp"], ["dataset=digits"]):
        with pytest.raises(OptionError, match=r"recalibration=2: .*model=linear .* allowed: null, 0"):
            make_client(compose([*SMALL, "strategy.client.recalibration=2", *options]))
    with pytest.raises(OptionError, match="recalibration=4: leaves no round"):
        make_client(compose([*SMALL, "strategy.client.recalibration=4"]))


@pytest.mark.parametrize("options", [(), ("strategy.client.scale_inputs=false",), ("strategy.client.form=local",)])
def test_a_tables_risks_are_right_where_clipping_alone_makes_them_wrong(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    given = ["experiment=hospitals", "dataset=practices", "operations.report=false", "privacy.target_epsilon=2"]
    finals = []
    for name, more in (("with", ()), ("without", ("strategy.client.recalibration=0",))):
        start_run(compose([*given, "evaluate.every=0", *options, *more]), tmp_path / name)
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        assert summary["privacy"]["verified_epsilon"] <= 2.0
        finals.append(summary["metrics"]["final"])
    assert 0.8 < finals[0]["slope"] < 1.25
    assert abs(math.log(finals[0]["slope"])) < abs(math.log(finals[1]["slope"]))
    assert finals[0]["brier"] < finals[1]["brier"] + 1e-3


def test_a_run_that_ends_between_its_counts_goes_on_to_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first counts are in the checkpoint. And masks change no bit of a recalibrated model."""
    options = [*SMALL, "num_rounds=12", "checkpoint.every=1", "evaluate.every=0"]
    start_run(compose(options), tmp_path / "whole")
    start_run(compose([*options, "strategy.secure_sum=protocol"]), tmp_path / "masked")
    plain = DPSum._recalibrated

    def cut(self: DPSum, theta: Any, mean: Any) -> Any:
        if self.current.number == 12:
            raise KeyboardInterrupt
        return plain(self, theta, mean)

    monkeypatch.setattr(DPSum, "_recalibrated", cut)
    with pytest.raises(KeyboardInterrupt):
        start_run(compose(options), tmp_path / "cut")
    monkeypatch.setattr(DPSum, "_recalibrated", plain)
    resume_run(tmp_path / "cut")
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "masked", "cut")]
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name]) and torch.equal(tensor, models[2][name])
    lines = [(tmp_path / name / "ledger.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    assert len(lines[0]) == len(lines[1])


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("value", HOSTILE)
def test_a_row_moves_what_leaves_a_site_in_a_round_of_counts_by_the_bound_at_most(value: float, persons: bool) -> None:
    """Of the client itself, whatever comes down; and an honest row moves it by nearly as much as it may."""
    noiseless = ("num_rounds=12", "strategy.client.form=local", "strategy.client.noise_multiplier=0")
    noiseless += ("strategy.client.scale_inputs=false",)
    config, rng = compose([*SMALL, *noiseless, "strategy.client.clip_norm=0.01"]), np.random.default_rng(0)
    inputs, targets = torch.from_numpy(rng.uniform(-1, 1, (41, 30))).float(), torch.from_numpy(rng.integers(0, 2, 41))
    inputs[-1] = value
    persons_of = torch.arange(41) // 2 if persons else None

    def leaving(rows: int, theta: np.ndarray, number: int = 12) -> torch.Tensor:
        data = LocalData(inputs[:rows], targets[:rows], None if persons_of is None else persons_of[:rows])
        client = make_client(config, make_site(load_data=lambda _: data))
        client.scaling = Scaling(np.full(30, value), np.zeros(30), 2)  # type: ignore[attr-defined]
        try:
            next(client.steps(torch.from_numpy(theta).float(), None, Request(number)))  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value.value.double()  # type: ignore[no-any-return]
        raise AssertionError("a round of counts asks for no gradients")

    with pytest.raises(AssertionError, match="gradients"), np.errstate(invalid="ignore"):
        leaving(40, rng.normal(size=62), 1)  # scale_inputs=false: the first rounds are of gradients
    grid = make_client(config).grid  # type: ignore[attr-defined]
    for theta in (rng.normal(size=62), np.full(62, value)):
        moved = float(torch.linalg.vector_norm(leaving(41, theta) - leaving(40, theta)))
        assert moved <= grid.l2() / grid.steps
        assert persons or moved > 0.7


def test_the_server_knows_the_noise_in_its_counts() -> None:
    """sqrt(5) sigma in a count of rows, of a sample or not, that are divided by the expected rows on the way."""
    for rate, form, noise in ((1.0, "ddgauss", 3 * math.sqrt(5)), (0.5, "central", 3.0)):
        people: dict[str, Any] = {"num_clients": 5, "clients_per_round": 5, "risk_classes": 2, "outputs": 2}
        people |= {"num_examples": staticmethod(lambda client: 2000), "flat_inputs": 30}
        given = (f"strategy.client.sampling_rate={rate}", f"strategy.client.form={form}", "num_rounds=20")
        strategy = DPSum.__new__(DPSum)
        strategy.options = compose([*SMALL, *given, "strategy.client.noise_multiplier=3"]).strategy.options  # type: ignore[assignment]
        strategy.population = type("Population", (), people)()  # type: ignore[assignment]
        assert strategy.trained == 18
        theta, counts = np.ones(62, np.float32), np.arange(20.0)
        strategy.current = type("Round", (), {"number": 19, "theta": theta})()  # type: ignore[assignment]
        strategy.coming_down(ArrayRecord())
        assert strategy._recalibrated(theta, np.pad(counts, (0, 42)) / (10_000 * rate)) is theta
        assert strategy.curves[0].noise == pytest.approx(noise) and np.allclose(
            strategy.curves[0].counts.ravel(), counts
        )


def test_the_tool_prints_ranks_and_risks(capsys: pytest.CaptureFixture[str]) -> None:
    risks_figure.main(["splits=1", "dataset=practices", "privacy.target_epsilon=8"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    table = {name: cells for name, *cells in rows}
    assert list(table)[2:] == ["dpsum", "without recalibration", "no privacy", "difference"]
    slopes = {name: float(table[name][3]) for name in list(table)[2:5]}
    assert abs(slopes["dpsum"] - 1) < 0.25 and slopes["without recalibration"] < 0.75
    assert all(float(table[name][1].split()[0]) > 0.75 for name in slopes)


@pytest.mark.parametrize("own", ["lr=3.0", "optimizer=adam", "optimizer=momentum"])
def test_a_step_of_ones_own_is_taken_by_a_linear_model_too(own: str, tmp_path: Path) -> None:
    """Also in the rounds that ask for the inputs, in which nothing moves, and in those that recalibrate."""
    made = [one for one in SMALL if not one.startswith("num_rounds")]
    options = [
        *made,
        "num_rounds=12",
        "strategy.client.recalibration=2",
        "privacy.target_epsilon=8",
        f"strategy.server.{own}",
    ]
    assert fedpriv.run(options, folder=tmp_path / "run", quiet=True).finished


def test_an_optimizer_that_a_method_never_asks_is_refused_and_a_resumed_run_is_not(
    tmp_path: Path, resumed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rounds recalibrate and take no step, also where a run begins with one of them."""
    rounds = ["num_rounds=12", "strategy.client.recalibration=2", "privacy.target_epsilon=8", "checkpoint.every=1"]
    options = [*SMALL, *rounds, "strategy.server.optimizer=adam"]
    assert (resumed(*options, after=11) / "summary.json").exists()
    monkeypatch.setattr(DPSum, "aggregate", lambda self, theta, replies: theta)
    with pytest.raises(OptionError, match=r"optimizer=adam: DPSum\.aggregate takes a step of its own"):
        start_run(compose(options), tmp_path / "other")
