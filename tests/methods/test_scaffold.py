"""SCAFFOLD under client-level privacy: the paper's loop, its limits, its price, and servers that send any c."""

from __future__ import annotations

import math
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, result_of, rows_of
from flwr.app import ArrayRecord
from reference.federation import BytesStore, client_data, linear_model, make_site, take_part
from reference.scaffold import plain_scaffold
from torch import Tensor

from clients.fedldp import FedLDPClient
from clients.scaffold import ControlState, ScaffoldClient
from fedpriv.client.build import make_client
from fedpriv.client.contract import Trained
from fedpriv.client.memory import ClientMemory
from fedpriv.common.messages import MalformedMessage, unpack_vector
from fedpriv.common.replies import Reply
from fedpriv.common.seeds import generator
from fedpriv.config.compose import compose
from fedpriv.config.schema import LocalConfig
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.server.round import Population, Round
from fedpriv.training.sequential import LocalData, SequentialTrainer, Training, draw_batches
from strategies.scaffold import Scaffold

CLIENTS, STEPS, LR = 6, 5, 0.3
LOCAL = LocalConfig(epochs=1, batch_size=8, lr=LR, momentum=0.0, sampler="shuffle", steps=STEPS)
COHORTS = [[0, 1, 2], [2, 3], [0, 4, 5], [1, 2, 5], [3, 4], [0, 1, 2, 3, 4, 5], [2, 5]]
CENTRAL = ("strategy.client.form=central", "strategy.server.client_sampling=poisson")


def unequal(client: int) -> LocalData:
    """Of two of the three classes, more or fewer pictures."""
    whole = client_data(client, 40 + 10 * client)
    rows = whole.targets != client % 3
    return LocalData(whole.inputs[rows], whole.targets[rows])


class Federation:
    """Clients and a server without an engine between them."""

    def __init__(self, noise: float = 0.0, clip_norm: float = 1e4, **options: Any) -> None:
        shared = {"steps": STEPS, "clip_norm": clip_norm, "noise_multiplier": noise, "control_norm": 1.0}
        shared |= {name: options.pop(name) for name in ("control_norm",) if name in options}
        self.trainer = SequentialTrainer(linear_model(), LOCAL)
        self.stores = [BytesStore() for _ in range(CLIENTS)]
        self.clients = [
            making.client(
                ScaffoldClient,
                site=make_site(k, self.trainer, self.stores[k], load_data=lambda k=k: unequal(k)),
                **shared | {"correction": 1.0} | options,
            )
            for k in range(CLIENTS)
        ]
        population = Population(3, CLIENTS, 3, lambda client: 40)
        self.server = making.server(Scaffold, population, learning_rate=LR, **shared)
        self.theta = linear_model().theta.detach().numpy().copy()
        self.round = 0

    def play(self, cohort: list[int]) -> None:
        self.round += 1
        self.server.current = Round(self.round, self.theta, cohort, asked=cohort)
        down = unpack_vector(self.server.coming_down(ArrayRecord()))
        replies = [Reply(k, take_part(self.clients[k], self.round, down), 40, {}, 0) for k in cohort]
        self.theta = self.server.aggregate(self.theta, replies)

    @property
    def control(self) -> Tensor:
        assert self.server.control is not None
        return torch.from_numpy(self.server.control)

    @property
    def own(self) -> list[Tensor]:
        """All c_i."""
        found = []
        for store in self.stores:
            state = ClientMemory.from_bytes(store.blob).state if store.blob else None
            found.append(torch.zeros(self.theta.size) if state is None else state["own"])
        return found


# --- the paper's algorithm, and its limits -----------------------------------------------------------------


def test_without_noise_and_clip_it_is_the_papers_loop() -> None:
    federation = Federation()
    for cohort in COHORTS:
        federation.play(cohort)

    def batches(client: int, number: int) -> list[np.ndarray]:
        drawn = generator(3, client, number, 0, "batches")
        return list(draw_batches(LOCAL, len(unequal(client)), drawn))

    model = linear_model().module
    x, c, own = plain_scaffold(model, [unequal(k) for k in range(CLIENTS)], COHORTS, batches, LR)
    assert torch.allclose(torch.from_numpy(federation.theta), x, atol=2e-5)
    assert torch.allclose(federation.control.float(), c, atol=2e-5)
    assert all(torch.allclose(one, other, atol=2e-5) for one, other in zip(federation.own, own, strict=True))
    assert float(c.norm()) > 0.05 and min(float(one.norm()) for one in own) > 0.1
    uncorrected = Federation(correction=0.0)
    for cohort in COHORTS:
        uncorrected.play(cohort)
    assert np.linalg.norm(uncorrected.theta - federation.theta) > 0.05


def test_clipped_c_is_still_the_mean_of_all_that_the_clients_remember() -> None:
    """They follow the clipped updates, as the server does, which sees nothing else."""
    federation = Federation(clip_norm=1.0)
    for cohort in COHORTS:
        federation.play(cohort)
    mean = torch.stack(federation.own).mean(0)
    assert torch.allclose(federation.control.float(), mean, atol=1e-6) and float(mean.norm()) > 0.01


@pytest.mark.parametrize("form", [(), CENTRAL], ids=["local", "central"])
def test_without_correction_it_is_dp_fedavg(form: tuple[str, ...], run: Run) -> None:
    """Bit for bit, noise and all."""
    common = ("num_clients=8", "clients_per_round=4", "strategy.client.noise_multiplier=0.5", *form)
    plain = run("strategy=dpfedavg", "strategy.server.weighting=uniform", *common)
    found = run("strategy=scaffold", "strategy.client.correction=0", *common)
    corrected = run("strategy=scaffold", *common)
    assert result_of(found)["model"] == result_of(plain)["model"] != result_of(corrected)["model"]
    assert all(row["figures"]["control_norm"] > 0 for row in rows_of(found))
    down = [sum(row["bytes_down"] for row in rows_of(folder)) for folder in (plain, found)]
    assert down[1] > 1.8 * down[0]


def test_without_correction_it_is_fed_ldp_in_other_units() -> None:
    """Its clients release updates, these gradients: -1/eta of them."""
    federation = Federation(clip_norm=2.0, correction=0.0)
    options = {"clip_norm": 2.0 * LR, "noise_multiplier": 0.0}
    site = make_site(1, federation.trainer, load_data=lambda: unequal(1))
    plain = making.client(FedLDPClient, site=site, **options)
    theta = federation.theta.copy()
    down = np.concatenate([theta, np.zeros_like(theta)])
    released = take_part(federation.clients[1], 1, down)
    assert np.allclose(-LR * released, take_part(plain, 1, theta), atol=1e-6)
    assert np.linalg.norm(released) == pytest.approx(2.0, rel=1e-4)


# --- what it costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), CENTRAL, ("strategy.server.min_replies=3",)], ids=" ".join)
def test_it_costs_what_dp_fedavg_costs(options: tuple[str, ...]) -> None:
    noisy = ("strategy.client.noise_multiplier=3", "num_clients=20", "clients_per_round=5", *options)
    found = make_client(compose(["strategy=scaffold", *noisy]))
    plain = make_client(compose(["strategy=dpfedavg", "strategy.server.weighting=uniform", *noisy]))
    state = ControlState(torch.ones(4))
    assert found.charges(state) == found.charges(None) == plain.charges(None)
    assert found.planned_events(7) == plain.planned_events(7) != []
    assert found.threat == plain.threat and found.accounts() == plain.accounts()
    if options != CENTRAL:
        ldp = make_client(compose(["strategy=fedldp", *noisy]))
        assert found.charges(None) == ldp.charges(None) and found.planned_events(7) == ldp.planned_events(7)


@pytest.mark.parametrize("variant", ["repaired", "published"])
def test_a_rounds_epsilon_is_what_it_says_in_both_variants(variant: str) -> None:
    """Neither paper has noise for whole clients, so there is none to be published."""
    overrides = ["strategy=scaffold", f"privacy.variant={variant}", "strategy.client.epsilon=2"]
    client, plain = make_client(compose(overrides)), make_client(compose(["strategy=dpfedavg", *overrides[2:]]))
    assert client.planned_events(1) == plain.planned_events(1) and client.claim(1, 1e-5) is None


# --- servers that send any c -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e38, 1.0])
def test_a_control_variate_that_no_honest_server_sends_is_refused(value: float) -> None:
    federation = Federation(clip_norm=1.0, noise=1.0)
    federation.play([0, 1])
    before = federation.stores[0].blob
    theta = federation.theta
    control = np.zeros_like(theta)
    control[3] = value
    with pytest.raises(MalformedMessage, match="control variate"):
        take_part(federation.clients[0], 2, np.concatenate([theta, control]))
    assert federation.stores[0].blob == before  # nothing released, nothing remembered, nothing booked


@pytest.mark.parametrize("theta", [0.0, 1e3, 1e38, math.nan])
def test_no_server_makes_a_release_longer_than_the_clip(theta: float) -> None:
    """What it may send at most, in every direction, round after round; the state takes the worst of it."""
    federation, rng = Federation(clip_norm=0.5), np.random.default_rng(1)
    size = federation.theta.size
    for number in range(1, 12):
        control = rng.normal(size=size)
        control *= 0.5 / STEPS / np.linalg.norm(control)
        down = np.concatenate([np.full(size, theta), control]).astype(np.float32)
        release = take_part(federation.clients[0], number, down).astype(np.float64)
        assert np.linalg.norm(release) <= 0.5
    assert bool(torch.isfinite(federation.own[0]).all())


@pytest.mark.parametrize("value", [1e30, math.inf, math.nan])
def test_the_guarantee_does_not_hang_on_that_refusal(value: float) -> None:
    """c within a client's training, past every check."""
    federation = Federation(clip_norm=0.5)
    client, theta = federation.clients[0], federation.theta
    for state in (None, torch.full((theta.size,), value)):
        client.control = torch.full((theta.size,), value)
        drift = client.local(None if state is None else ControlState(state)).drift
        assert client.site is not None and drift is not None
        update = federation.trainer.train(
            Training(torch.from_numpy(theta), unequal(0), np.random.default_rng(), 0.0, drift)
        )
        trained = Trained(update.update, None, {"train_loss": 0.0})
        found = client.releasing(torch.from_numpy(theta), trained, None, SeededNoise(1)).value
        assert bool(torch.isfinite(found).all()) and float(found.double().norm()) <= 0.5


# --- the server's c ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("control_norm", [1.0, 0.2])
def test_noise_takes_c_no_further_than_its_bound_and_clients_take_that(control_norm: float) -> None:
    federation = Federation(clip_norm=1.0, noise=1e4, control_norm=control_norm)
    for cohort in COHORTS:
        federation.play(cohort)  # would raise
    assert float(federation.control.norm()) == pytest.approx(control_norm / STEPS)


def test_less_than_the_whole_correction_takes_the_noise_in_c_back() -> None:
    """How far c is from the mean of the c_i after 30 rounds in which all take part, with s^2 = 1/(6 25) in each."""
    apart = {}
    for correction in (1.0, 0.5):
        federation = Federation(clip_norm=1.0, noise=1.0, correction=correction, control_norm=1e6)
        for _ in range(30):
            federation.play(list(range(CLIENTS)))
        difference = federation.control - torch.stack(federation.own).mean(0)
        apart[correction] = float(difference.square().mean()) * 6 * 25
    assert apart[1.0] == pytest.approx(30, rel=0.5)
    assert apart[0.5] == pytest.approx(1 / (1 - 0.25), rel=0.5)


def test_c_moves_by_the_share_of_clients_that_replied_or_that_was_expected() -> None:
    for form, share in (("local", 2 / 20), ("central", 5 / 20)):
        population = Population(3, 20, 5, lambda client: 10)
        options = {"form": form, "noise_multiplier": 0.0, "clip_norm": 10.0, "steps": 4, "control_norm": 1.0}
        server = making.server(Scaffold, population, **options)
        server.current = Round(1, np.zeros(3, np.float32), [0, 1, 2], asked=[0, 1, 2])
        replies = [Reply(k, np.array([1, 2, 3 * k], np.float32), 10, {}, 0) for k in (0, 2)]
        mean = np.array([2, 4, 6]) / (2 if form == "local" else 5)
        server.aggregate(np.zeros(3, np.float32), replies)
        assert server.control == pytest.approx(share * mean / 4)
