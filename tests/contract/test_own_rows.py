"""Classes of one's own that say `in_rows`: tried before the run, and computed apart where clients touch each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_rows import ROWS, Told, config_of

from clients.fedldp import FedLDPClient
from fedpriv.client.base import Client
from fedpriv.client.contract import Release
from fedpriv.client.memory import WithNorms
from fedpriv.client.method import Traits
from fedpriv.engines import inprocess
from fedpriv.engines.worker import Worker, unlike
from fedpriv.mechanisms.noise import add_normal, clip, l2_norm

OWN = ("strategy=fedldp", "strategy.client._target_=test_own_rows.Chosen")


class ByTheMean(FedLDPClient):
    """Clips by the mean norm: of one client its own, of several everybody's."""

    in_rows = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        clipped = update * torch.clamp(self.clip_norm / l2_norm(update).mean(), max=1.0)
        return Release(add_normal(clipped, self.noise_multiplier * self.clip_norm, noise), None)


class OneDraw(FedLDPClient):
    """All have the noise of the first."""

    in_rows = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        drawn = noise.normal(update.shape, self.noise_multiplier * self.clip_norm)
        return Release(clip(update, self.clip_norm) + drawn[0], None)


class OnceMore(FedLDPClient):
    """Right at first: what it keeps is everybody's."""

    in_rows = True
    traits = Traits(State=WithNorms)

    def release(self, update: Any, state: Any, noise: Any) -> Release:
        kept = l2_norm(update).unsqueeze(-1) if state is None else state.norms
        bound = self.clip_norm if state is None else kept.mean() + self.clip_norm
        value = add_normal(clip(update, float(bound)), self.noise_multiplier * self.clip_norm, noise)
        return Release(value, WithNorms(None, kept))


class Careful(FedLDPClient):
    in_rows = True


class FirstNumbers(FedLDPClient):
    """Forgot that rows come first: of several clients it takes clients where it means coordinates."""

    in_rows = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        return super().perturb(torch.cat([update[:1], update[1:]]) * 2 if len(update) > 3 else update, state, noise)


class Counted(ByTheMean):
    """Priced by its count: clients of other counts are no rows of one computation, but of the trial they are."""

    in_rows = True
    traits = replace(FedLDPClient.traits, needs_facts=True)


class Releasing(FedLDPClient):
    """Another release, in the one place where a participation makes it: no way around it."""

    in_rows = True

    def releasing(self, theta: Any, trained: Any, state: Any, noise: Any) -> Release:
        value = add_normal(clip(trained.sent, 0.5 * self.clip_norm), self.noise_multiplier * self.clip_norm, noise)
        return self.released(trained, Release(value, None))


@pytest.mark.parametrize("kind", [ByTheMean, OneDraw, OnceMore, Releasing], ids=lambda kind: kind.__name__)
def test_together_clients_give_what_they_give_apart(kind: type[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Chosen", kind)
    config = config_of(*OWN, "num_rounds=2")
    told = Told(config)
    assert told.at_once == (kind is Releasing)
    monkeypatch.setattr(Worker, "why_single_messages", property(lambda self: "in this test"))
    monkeypatch.setattr(inprocess, "MOST_CLIENTS", 1)
    assert told.rounds == Told(config).rounds


@pytest.mark.parametrize("case", ROWS, ids=" ".join)
def test_the_trial_finds_nothing_in_the_project_s_own(case: tuple[str, ...]) -> None:
    assert unlike(Worker(config_of(*case))) is None


def test_a_half_that_keeps_clients_apart_has_one_message_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run's noise and budget are."""
    config = config_of(*OWN, "privacy.rng=secure")
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"max_epsilon": 1e-3})})
    monkeypatch.setitem(globals(), "Chosen", Careful)
    assert Worker(config).why_single_messages is None
    for kind in (ByTheMean, OneDraw, OnceMore, FirstNumbers, Counted):
        monkeypatch.setitem(globals(), "Chosen", kind)
        assert kind.__name__ in str(Worker(config).why_single_messages)


Chosen: Callable[..., Any]
