"""DPFL-AGN and its kin: noisy steps, moments, decaying noise, adaptive Theta."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import making
import numpy as np
import pytest
import torch
from agn_clients import BATCH, EXAMPLES, LOCAL, ask, at_work, rows_drawn, some, theta
from reference.adam import PlainAdam
from reference.federation import BytesStore, booked, linear_model
from reference.per_example import clipped_sum

from clients.agn import AGNClient
from clients.anr import ANRClient
from clients.dpfl_agn import DPFLAGNClient
from clients.dpsgd import DPSGDClient
from fedpriv.client.contract import UnsafeNoise
from fedpriv.client.memory import read_memory
from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.noise import KEPT_BACK, SeededNoise
from fedpriv.mechanisms.trusted_sums import with_count
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import NoBound, PoissonGaussian
from fedpriv.training.sequential import SequentialTrainer
from strategies.dpfl_agn import DPFLAGN

# --- steps against plain twins ---------------------------------------------------------------------------


def test_noisy_adam_steps_equal_a_plain_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of two steps each: batches, clipping, noise, /H, moments over rounds, from plain parts."""
    client = at_work(AGNClient, local_steps=2, clip_norm=0.5)
    batches = rows_drawn(monkeypatch, client)
    model, twin = linear_model(), PlainAdam(0.9, 0.999, LOCAL.lr)
    for server_round in (1, 2):
        release = ask(client, server_round)
        noise = SeededNoise(3, 0, server_round, 0, "steps")
        moved = np.zeros(len(release))
        for rows in batches[-2:]:
            model.load(torch.from_numpy((theta() + moved).astype(np.float32)))
            data = some(rows)
            total, _ = clipped_sum(model.module, data.inputs, data.targets, 0.5)
            gradient = (np.asarray(total) + 0.5 * noise.normal(len(release), 1.0).numpy()) / BATCH
            moved += twin.step(gradient.tolist())
        assert release == pytest.approx(moved, rel=1e-3, abs=2e-4)


def test_without_noise_and_clipping_it_is_torchs_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    client = at_work(AGNClient, noise_multiplier=0.0, clip_norm=1e6, local_steps=6)
    batches = rows_drawn(monkeypatch, client)
    release = ask(client, 1)
    module = linear_model().module
    optimiser = torch.optim.Adam(module.parameters(), lr=LOCAL.lr, betas=(0.9, 0.999), eps=1e-8)
    for rows in batches:
        data = some(rows)
        optimiser.zero_grad()
        (torch.nn.functional.cross_entropy(module(data.inputs), data.targets, reduction="sum") / BATCH).backward()
        optimiser.step()
    end = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
    assert release == pytest.approx(end - theta(), rel=1e-3, abs=1e-4)


def test_plain_sgd_divides_by_the_expected_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    client = at_work(DPSGDClient, noise_multiplier=0.0, clip_norm=0.3)
    batches = rows_drawn(monkeypatch, client)
    release = ask(client, 1)
    data = some(batches[0])
    total, _ = clipped_sum(linear_model().module, data.inputs, data.targets, 0.3 * (1 - KEPT_BACK))
    assert len(batches[0]) != BATCH  # or dividing by the size drawn would be the same
    assert release == pytest.approx(-LOCAL.lr * np.asarray(total) / BATCH, abs=1e-6)


def test_adam_against_torch_on_given_gradients() -> None:
    gradients = torch.randn(7, 5, generator=torch.Generator().manual_seed(2))
    parameter = torch.zeros(5, requires_grad=True)
    theirs = torch.optim.Adam([parameter], lr=0.01, betas=(0.8, 0.95))
    adam, ours = at_work(AGNClient, adam_beta1=0.8, adam_beta2=0.95), torch.zeros(5)
    state = adam.fresh_state(ours)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        theirs.step()
        change, state = adam.descend(gradient, state, 0.01)
        ours = ours + change
        assert torch.allclose(ours, parameter.detach(), atol=1e-6)
    assert state.steps == 7
    plain, after = at_work(DPSGDClient).descend(gradients[0], state, 0.5)
    assert torch.equal(plain, -0.5 * gradients[0]) and after.steps == 8


def test_the_noises_second_moment_is_taken_off_and_weights_decay_as_adamws() -> None:
    """Gradients of 0.01 and 0.0001 behind noise of 0.5: Adam's steps follow the noise, the corrected ones the sign."""
    client = at_work(AGNClient, noise_corrected=True, correction_floor=1e-9, noise_multiplier=1.0)
    noise = client.sigma * client.clip_norm / client.facts.batch_size
    random = torch.Generator().manual_seed(3)
    true = torch.tensor([0.4, -0.1]).repeat(4000)
    plain, state, kept = at_work(AGNClient), client.fresh_state(true), client.fresh_state(true)
    for _ in range(3000):
        gradient = true + noise * torch.randn(len(true), generator=random)
        change, state = client.descend(gradient, state, 1.0)
        biased, kept = plain.descend(gradient, kept, 1.0)
    v_hat = state.v / (1 - client.options.adam_beta2**state.steps)
    found = [float((v_hat - noise**2)[place::2].mean()) for place in (0, 1)]
    assert found == pytest.approx([0.16, 0.01], rel=0.2)
    ratio = lambda steps: float(steps[0::2].mean() / steps[1::2].mean())  # noqa: E731
    assert ratio(biased) < -1.5 and abs(ratio(change) + 1) < abs(ratio(biased) + 1)  # Adam's own: -1, the signs
    parameter = torch.full((5,), 2.0, requires_grad=True)
    theirs = torch.optim.AdamW([parameter], lr=0.01, betas=(0.9, 0.999), weight_decay=0.1)
    decaying, ours = at_work(AGNClient, weight_decay=0.1), torch.full((5,), 2.0)
    state = decaying.fresh_state(ours)
    for gradient in torch.randn(6, 5, generator=random):
        parameter.grad = gradient.clone()
        theirs.step()
        change, state = decaying.descend(gradient, state, 0.01, ours)
        ours = ours + change
        assert torch.allclose(ours, parameter.detach(), atol=1e-6)
    with pytest.raises(OptionError, match="noise_corrected=true: clipping=adaptive moves the noise"):
        at_work(AGNClient, noise_corrected=True, clipping="adaptive")


def test_an_empty_batch_still_releases_noise() -> None:
    client = at_work(DPSGDClient)
    client.site = replace(client.site, load_data=lambda rows: some([]))
    release = ask(client, 1)
    expected = LOCAL.lr * 1.0 / BATCH
    assert 0.7 * expected < release.std() < 1.3 * expected and len(booked(client)) == 1


def test_a_broken_global_model_gets_noise_alone() -> None:
    """Whether and how a client answers depends on nothing but public values."""
    release = ask(at_work(DPSGDClient), 1, start=np.full_like(theta(), np.nan))
    assert np.isfinite(release).all() and release.std() > 0


def test_poisson_batch_sizes_have_the_binomial_law(monkeypatch: pytest.MonkeyPatch) -> None:
    client = at_work(DPSGDClient, local_steps=3000)
    batches = rows_drawn(monkeypatch, client)
    client.site = replace(client.site, load_data=lambda rows: (batches.append(rows), some(rows[:0]))[1])
    ask(client, 1)
    sizes, q = np.array([len(rows) for rows in batches]), BATCH / EXAMPLES
    deviation = math.sqrt(EXAMPLES * q * (1 - q))
    assert abs(sizes.mean() - BATCH) < 4 * deviation / math.sqrt(len(sizes))
    assert sizes.var() == pytest.approx(deviation**2, rel=0.12)
    together = np.mean([0 in rows and 1 in rows for rows in batches])
    assert together == pytest.approx(q * q, abs=4 * q / math.sqrt(len(sizes)))  # independent of each other


# --- what the client keeps -------------------------------------------------------------------------------


def test_moments_survive_rounds_and_restarts_and_are_in_no_message() -> None:
    store = BytesStore()
    whole = at_work(DPFLAGNClient, decay=0.9, floor=0.5)
    for server_round in (1, 2):
        first = ask(at_work(DPFLAGNClient, store, decay=0.9, floor=0.5), server_round)  # a new object every time
        assert np.array_equal(first, ask(whole, server_round))
    state = read_memory(store).state
    assert state is not None and state["steps"] == 2 and state["m"].shape == state["v"].shape == (len(theta()),)
    _, _, diagnostics = at_work(DPFLAGNClient, decay=0.9, floor=0.5).fit([theta()], {"round": 1, "attempt": 0})
    assert all(isinstance(value, float) for value in diagnostics.values()) and len(first) == len(theta())
    fresh = at_work(DPFLAGNClient, decay=0.9, floor=0.5)
    assert not np.array_equal(ask(fresh, 2), first)  # without the first round's moments it is another step


# --- decaying noise --------------------------------------------------------------------------------------


def test_anr_on_a_hand_written_loss_sequence() -> None:
    losses = [2.0, 1.5, 1.4995, 1.6, 1.599, 1.5, float("nan"), 1.0]
    expected = [4.0, 2.0, 1.0, 1.0, 1.0, 0.5, 0.25]  # falls of 0.5, 0.0005, -0.1, 0.001, 0.099, nan, nan
    server, seen = FixedStep.server([], decay=0.5, threshold=0.0009, variant="published"), []
    for before, after in pairwise(losses):
        server.reduce_noise(before, after)
        seen.append(server.sigma)
    assert seen == expected


class FixedStep:
    """A population and losses for a server half without a federation."""

    @staticmethod
    def server(losses: list[float], **options: Any) -> DPFLAGN:
        from fedpriv.server.round import Hooks, Population

        given = {"noise_multiplier": 4.0, "decay": 0.5, "threshold": 0.001, "floor": 0.2, "variant": "repaired"}
        remaining = iter(losses)
        hooks = Hooks(public_loss=lambda theta: next(remaining))
        return making.server(DPFLAGN, Population(0, 2, 2, lambda _: 10), hooks=hooks, **given | options)


def after(server: DPFLAGN, rounds: int) -> list[float]:
    from fedpriv.common.replies import Reply

    zero = np.zeros(3, np.float32)
    seen = []
    for number in range(rounds):
        seen.append(server.train_options(number + 1)["noise_multiplier"])
        server.aggregate(zero, [Reply(0, zero, 10, {}, 0)])
    return seen  # type: ignore[return-value]


def test_the_server_announces_decaying_noise_and_keeps_the_floor() -> None:
    losses = [2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert after(FixedStep.server(losses), 5) == [4.0, 4.0, 2.0, 1.0, 0.8]
    assert after(FixedStep.server(losses, variant="published"), 5) == [4.0, 4.0, 2.0, 1.0, 0.5]


def test_the_servers_state_survives() -> None:
    losses = [2.0, 1.0, 1.0, 0.9999]
    whole = after(FixedStep.server(losses), 3)
    first = FixedStep.server(losses)
    after(first, 2)
    second = FixedStep.server(losses[3:])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert after(second, 1) == whole[2:]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 0.49, True, "1.0"])
def test_noise_below_the_clients_own_bound_is_refused_and_nothing_happens(bad: Any) -> None:
    client = at_work(ANRClient, decay=0.9, floor=0.5)
    with pytest.raises(UnsafeNoise):
        ask(client, 1, noise_multiplier=bad)
    assert client.site.store.read() is None
    assert ask(client, 1, noise_multiplier=0.5).any()


@pytest.mark.parametrize("kind", [DPSGDClient, AGNClient])
def test_constant_noise_takes_no_less_than_its_own(kind: Any) -> None:
    with pytest.raises(UnsafeNoise):
        ask(at_work(kind), 1, noise_multiplier=0.999)
    client = at_work(kind)
    ask(client, 1, noise_multiplier=2.0)  # more is welcome, and costs less
    (entry,) = booked(client)
    assert (entry.event.multiplier, entry.realised.multiplier) == (1.0, 2.0)


@pytest.mark.parametrize("kind", [DPSGDClient, AGNClient])
def test_a_site_of_several_releases_with_its_own_noise_alone(kind: Any) -> None:
    """Many rounds with more noise at one site and one round at another cost a person more than twice either."""
    client = at_work(kind)
    client.run = replace(client.run, across_sites=2)
    with pytest.raises(UnsafeNoise, match="sites that all release with the same"):
        ask(client, 1, noise_multiplier=2.0)
    ask(client, 1, noise_multiplier=1.0)
    (entry,) = booked(client)
    assert entry.event.count == 2 * client.local_steps and entry.realised is None
    sampled = partial(PoissonGaussian, threat=entry.event.threat, sampling_rate=0.01)
    dear, cheap = sampled(multiplier=0.4), sampled(multiplier=2.0, count=27_160)
    alone = [epsilon_of([replace(event, count=2 * event.count)]) for event in (dear, cheap)]
    assert epsilon_of([dear, cheap]) > 1.2 * max(alone)


def epsilon_of(events: list[Any]) -> float:
    return compose_events(events, 1e-5).epsilon


def test_published_noise_may_decay_as_fast_as_it_says_and_no_faster() -> None:
    client = at_work(ANRClient, decay=0.5, floor=0.9, variant="published")
    for server_round, sigma in ((1, 1.0), (2, 0.5), (3, 0.3)):
        ask(client, server_round, noise_multiplier=sigma)
    with pytest.raises(UnsafeNoise):
        ask(client, 4, noise_multiplier=0.1)
    assert [entry.event.multiplier for entry in booked(client)] == [1.0, 0.5, 0.25]
    assert [entry.spent.multiplier for entry in booked(client)] == [1.0, 0.5, 0.3]


# --- adaptive Theta --------------------------------------------------------------------------------------


def test_theta_goes_to_the_quantile(monkeypatch: pytest.MonkeyPatch) -> None:
    client = at_work(
        DPSGDClient, clipping="adaptive", clip_norm=30.0, noise_multiplier=0.01, count_noise=0.1, local_steps=300
    )
    client.site = replace(client.site, trainer=SequentialTrainer(linear_model(), LOCAL.model_copy(update={"lr": 1e-9})))
    ask(client, 1)
    model, data = linear_model(), some()
    _, norms = clipped_sum(model.module, data.inputs, data.targets, 1.0)
    found = read_memory(client.site.store).state["clip_norm"].item()  # type: ignore[index]
    assert np.quantile(norms, 0.3) < found < np.quantile(norms, 0.7)


def test_theta_moves_by_the_pages_formula() -> None:
    """All 5 drawn are within Theta: b = (5 - 5/2)/H, and one example more or less moves b by 1/(2H)."""
    client = at_work(DPSGDClient, clipping="adaptive", count_noise=1e-9, clip_lr=0.2, target_quantile=0.5)
    one = torch.tensor(1.0, dtype=torch.float64)
    step = client.noisy_step(torch.zeros(3), torch.tensor(2.5, dtype=torch.float64), 1.0, one, SeededNoise(0))
    assert float(client.next_clip_norm(one, step)) == pytest.approx(math.exp(-0.2 * 2.5 / BATCH), rel=1e-6)


def test_gradient_and_count_together_are_one_gaussian() -> None:
    assert with_count(1.0, 3.0) == pytest.approx((1 + 1 / 36) ** -0.5)
    client = at_work(DPSGDClient, clipping="adaptive", count_noise=3.0)
    (event,) = {client.planned_events(1)[0]}
    assert isinstance(event, PoissonGaussian) and event.multiplier == pytest.approx(with_count(1.0, 3.0))


def test_the_raw_median_is_for_published_runs() -> None:
    client = at_work(DPSGDClient, clipping="median", variant="published")
    ask(client, 1)
    (entry,) = booked(client)
    assert isinstance(entry.event, NoBound) and "median" in entry.event.reason
