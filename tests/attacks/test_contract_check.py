"""Faults in what an audit of a release does not run: the noise contract finds them in real rounds, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import clients.dpfl_agn
import clients.fedldp as fedldp
import fedpriv.client.example_level as example_level
import fedpriv.mechanisms.per_example as per_example
import fedpriv.server.gradient as noisy_gradient
import fedpriv.training.stacked_gradients as stacked_gradients
import strategies.dpfedexp as dpfedexp
import strategies.dpftrl as dpftrl
from clients.cpsgd import CpSGDClient
from fedpriv.attacks.contract_check import check_contract
from fedpriv.attacks.noise_amounts import booked_distance, less_later, too_long
from fedpriv.attacks.noise_contract import Heard, TwinWorker, bare_low_bits, listen, unlike_samples
from fedpriv.client.build import make_client
from fedpriv.client.example_level import EXAMPLE_TO_SERVER
from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.events import Entry, PoissonGaussian
from fedpriv.privacy.sum_grid import BinomialGrid, SumGrid
from fedpriv.runs.planning import with_target
from fedpriv.server.round import Population

Patch = pytest.MonkeyPatch

SMALL = ("num_rounds=2", "num_clients=8", "clients_per_round=8", "model=linear", "privacy.target_epsilon=4")
CENTRAL = (
    "strategy=dpfedavg",
    "strategy.client.form=central",
    "strategy.server.client_sampling=poisson",
    "strategy.server.weighting=uniform",
)


@cache
def config_of(*case: str) -> Config:
    return with_target(compose([*SMALL, *case]))


def moved(*case: str) -> list[str]:
    return too_long(config_of(*case), [(100.0, 0), (-100.0, 0)])


# --- what a client moves -------------------------------------------------------------------------------------------


def examples_unclipped(patch: Patch) -> None:
    for room in (per_example, stacked_gradients):
        patch.setattr(room, "clip_factors", lambda norms, bound: torch.ones_like(norms))


def quarter_of_the_noise(patch: Patch) -> None:
    real = clients.dpfl_agn.add_normal_finely
    patch.setattr(clients.dpfl_agn, "add_normal_finely", lambda values, std, noise: real(values, std / 4, noise))


def few_trials(patch: Patch) -> None:
    real = BinomialGrid.noisy_levels

    def noisy(self: BinomialGrid, vector: torch.Tensor, signs: torch.Tensor, noise: Any) -> Any:
        few = BinomialGrid(self.dimension, self.clip_norm, self.levels, self.trials // 16)
        numbers, beyond = real(few, vector, signs, noise)
        return numbers + self.trials // 2 - few.trials // 2, beyond

    patch.setattr(BinomialGrid, "noisy_levels", noisy)


def gradients_unclipped(patch: Patch) -> None:
    patch.setattr(CpSGDClient, "clipped", lambda self, update: update)


def quarter_of_whole_noise(patch: Patch) -> None:
    real = SumGrid.noise
    patch.setattr(SumGrid, "noise", lambda self, sigma, *rest: real(self, sigma / 4, *rest))


AGN, CPSGD, DDGAUSS = ("strategy=agn",), ("strategy=cpsgd",), ("strategy=ddgauss",)
MOVED: list[tuple[str, tuple[str, ...], Callable[[Patch], None]]] = [
    ("agn, examples unclipped", AGN, examples_unclipped),
    ("agn, a quarter of the noise", AGN, quarter_of_the_noise),
    ("cpsgd, a sixteenth of the trials", CPSGD, few_trials),
    ("cpsgd, gradients unclipped", CPSGD, gradients_unclipped),
    ("ddgauss, a quarter of the noise", DDGAUSS, quarter_of_whole_noise),
]


@pytest.mark.parametrize("fault", MOVED, ids=lambda fault: fault[0])
def test_a_client_that_moves_a_release_too_far_is_found(
    fault: tuple[str, tuple[str, ...], Callable[[Patch], None]], monkeypatch: Patch
) -> None:
    """Behind Adam, on the grid of a secure sum, with binomial noise: the audit draws from the law or steps itself."""
    _, case, plant = fault
    assert moved(*case) == []
    plant(monkeypatch)
    assert moved(*case)


def test_an_example_in_every_step_of_a_release_is_what_the_ledger_counts_on() -> None:
    """Drawn in nearly all of nine steps it moves their sum three times as far, in units of its noise, as in one."""
    case = ("strategy=dpsgd", "strategy.client.local_steps=9", "local.batch_size=200")
    assert moved(*case) == []
    plain = ("strategy=dpsgd", "privacy.target_epsilon=null")
    one, nine = (
        booked_distance(listen(config_of(*plain, f"strategy.client.local_steps={steps}"), rounds=1)) for steps in (1, 9)
    )
    assert one is not None and nine is not None and math.isclose(nine, 3 * one)


def test_of_what_is_not_added_noise_no_distance_is_booked() -> None:
    assert booked_distance(listen(config_of("strategy=privunit"), rounds=1)) is None


def test_low_bits_that_no_key_moves_are_found(monkeypatch: Patch) -> None:
    real = SumGrid.whole_numbers

    def odd(self: SumGrid, vector: torch.Tensor, *rest: Any) -> torch.Tensor:
        return (real(self, vector, *rest) & ~1) | int(vector.sum() > 0)

    case = ("strategy=ddgauss", "num_clients=16", "clients_per_round=16")
    assert bare_low_bits(listen(config_of(*case), rounds=1)) == []
    monkeypatch.setattr(SumGrid, "whole_numbers", odd)
    assert bare_low_bits(listen(config_of(*case), rounds=1))


def test_low_bits_of_floats_are_the_last_eight() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((16, 600)).astype(np.float32)
    assert bare_low_bits(Heard(config_of(*AGN), rounds=[{"arrays": values.astype(np.float64)}])) == []
    ends = ((values.view(np.int32) & ~0xFF) | 0x3A).view(np.float32).astype(np.float64)
    assert bare_low_bits(Heard(config_of(*AGN), rounds=[{"arrays": ends}]))


# --- later rounds, and batches --------------------------------------------------------------------------------


def test_less_noise_in_later_rounds_is_found(monkeypatch: Patch) -> None:
    """Also behind Adam. Noise that decays as it is booked is no finding."""
    real = example_level.ExampleLevelClient.prepare

    def less(self: Any, asked: Any, down: Any = ()) -> None:
        real(self, asked, down)
        self.sigma /= asked.round

    for name in ("fedldp", "anr", "dpfl_agn"):
        assert less_later(config_of(f"strategy={name}"), 2) == []
    with monkeypatch.context() as patch:
        patch.setattr(example_level.ExampleLevelClient, "prepare", less)
        assert "are booked" in less_later(config_of("strategy=dpfl_agn"), 2)[0]
    before = fedldp.add_normal
    rounds = iter([1] * 8 + [4] * 8)
    monkeypatch.setattr(fedldp, "add_normal", lambda values, std, noise: before(values, std / next(rounds), noise))
    assert "of the noise that" in less_later(config_of("strategy=fedldp"), 2)[0]


def sampled(*rows: list[int]) -> Heard:
    """A client of 40 examples that drew these batches at the rate 1/4."""
    event = PoissonGaussian(threat=EXAMPLE_TO_SERVER, multiplier=1.0, sampling_rate=0.25, count=len(rows))
    drawn = [(0, np.array(batch)) for batch in rows]
    return Heard(config_of(*AGN), [0], entries=[Entry(1, 0, 0, 0, event)], drawn=drawn, examples=np.array([40]))


def test_noise_that_clients_share_where_they_are_computed_together_is_found(monkeypatch: Patch) -> None:
    """The contract takes the run's own trainer: its clients release as rows."""
    config, real = config_of("strategy=fedldp", "engine.trainer=vectorised"), fedldp.add_normal

    def shared(values: torch.Tensor, *others: Any) -> torch.Tensor:
        noisy = real(values, *others)
        return torch.cat([noisy[:-1], noisy[:1]]) if noisy.ndim == 2 else noisy

    assert not check_contract(config).findings
    monkeypatch.setattr(fedldp, "add_normal", shared)
    assert "share their noise" in str(check_contract(config))


def test_batches_that_are_no_samples_are_found() -> None:
    few, others = [1, 4, 7, 9, 12, 20, 22, 30, 31], [0, 4, 8, 9, 13, 20, 21, 25, 32, 37, 38]
    assert unlike_samples(sampled(few, others)) == []
    assert "drew 80 of 80" in unlike_samples(sampled([*range(40)], [*range(40)]))[0]
    assert "drew 0 of 120" in unlike_samples(sampled([], [], []))[0]
    assert "1 of its 2 batches twice" in unlike_samples(sampled(few, few))[0]


# --- a trusted server's models ----------------------------------------------------------------------------


def fifth_of_the_servers_noise(patch: Patch) -> None:
    real = noisy_gradient.noisy_sum
    patch.setattr(noisy_gradient, "noisy_sum", lambda sent, n, c, z, noise: real(sent, n, c, z / 5, noise))


def no_noise_of_the_server(patch: Patch) -> None:
    real = noisy_gradient.noisy_sum
    patch.setattr(noisy_gradient, "noisy_sum", lambda sent, n, c, z, noise: real(sent, n, c, 0.0, noise))


def key_without_the_round(patch: Patch) -> None:
    server = noisy_gradient.NoisyGradientServer
    patch.setattr(server, "own_noise", lambda self: SeededNoise(self.population.seed, "server"))


def one_key(patch: Patch) -> None:
    patch.setattr(Population, "noise", lambda self, *key: SeededNoise(1))


def tenth_of_the_rows(patch: Patch) -> None:
    real = dpftrl.MatrixMechanism.std_for
    patch.setattr(dpftrl.MatrixMechanism, "std_for", lambda self, size: real(self, size) / 10)


def nobody_clips(patch: Patch) -> None:
    patch.setattr(dpftrl, "clip", lambda vector, bound: vector)
    patch.setattr("clients.dpftrl.clip", lambda vector, bound: vector)


def exact_number(patch: Patch) -> None:
    """The step uses the clients' squared norms as they are, in the place of the noisy number."""
    real = dpfedexp.DPFedEXP.gradient

    def gradient(self: Any, size: int, replies: Any) -> Any:
        replies = list(replies)
        vars(self)["seen"] = sum(float(np.square(reply.release, dtype=float).sum()) for reply in replies)
        return real(self, size, replies)

    patch.setattr(dpfedexp.DPFedEXP, "gradient", gradient)
    patch.setattr(dpfedexp.DPFedEXP, "learn", lambda self, number, mean: self.extrapolate(self.seen, mean))


DPFTRL = ("strategy=dpftrl",)
DPZO, DPFEDEXP = ((f"strategy={name}", *CENTRAL[1:3]) for name in ("dpzo", "dpfedexp"))
SERVERS: list[tuple[str, tuple[str, ...], Callable[[Patch], None]]] = [
    ("dpfedavg, a fifth of the noise", CENTRAL, fifth_of_the_servers_noise),
    ("dpfedavg, no noise", CENTRAL, no_noise_of_the_server),
    ("dpfedavg, the same noise in all rounds", CENTRAL, key_without_the_round),
    ("dpfedexp, an exact number", DPFEDEXP, exact_number),
    ("dpzo, a fifth of the noise", DPZO, fifth_of_the_servers_noise),
    ("dpftrl, one key", DPFTRL, one_key),
    ("dpftrl, a tenth of the noise", DPFTRL, tenth_of_the_rows),
    ("dpftrl, nobody clips", DPFTRL, nobody_clips),
]


@cache
def silent(case: tuple[str, ...]) -> bool:
    contract = check_contract(config_of(*case))
    return not contract.findings and not contract.skipped and len(contract.held) == 4 + (case != DPFTRL)


@pytest.mark.parametrize("fault", SERVERS, ids=lambda fault: fault[0])
def test_a_fault_of_a_trusted_server_is_found(
    fault: tuple[str, tuple[str, ...], Callable[[Patch], None]], monkeypatch: Patch
) -> None:
    _, case, plant = fault
    assert silent(case)
    plant(monkeypatch)
    assert check_contract(config_of(*case)).findings


def test_what_a_server_releases_without_noise_is_booked_as_that() -> None:
    config = compose([*SMALL[:-1], "strategy=dpftrl", "strategy.client.noise_multiplier=0"])
    assert make_client(config).exact_leak() and "books no bound" in check_contract(config).skipped


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["dpsgd", "dpsum"])
def test_a_text_that_contributes_nothing(strategy: str) -> None:
    """Token ids are never NaN: padding whose targets are unknown has no gradient, and other texts have one."""
    options = ["dataset=docstrings_next", "model=gru", "num_clients=4", "clients_per_round=4", "num_rounds=1"]
    contract = check_contract(with_target(compose([*options, f"strategy={strategy}", "privacy.target_epsilon=4"])))
    assert contract.findings == ()
    for value, moves in ((math.nan, False), (3.0, True)):
        worker = TwinWorker(config_of("strategy=dpsgd", *options), value, 0)
        data = worker.local_data(0, np.arange(2))
        found = worker.trainer.clipped_sum(worker.initial_model, data, 1.0)
        assert data.inputs.dtype == torch.int64 and bool(found.total.abs().sum() > 0) == moves
