"""Halves of one's own that say `in_columns` and change what a cohort does in its own way: asked client by client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from test_columns import AT_ONCE, COLUMNS, ONE_BY_ONE, Told, config_of
from test_every_method import CASES

from clients.fedldp import FedLDPClient
from fedpriv.client.base import Client
from fedpriv.client.columns import OWN_STEPS, why_one_by_one
from fedpriv.client.contract import Release
from fedpriv.client.states import WithNorms
from fedpriv.engines.columns_trial import unlike
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.clipping import clip, l2_norm
from fedpriv.mechanisms.noise import add_normal

#: What a family may change of a participation (`Client`).
STEPS = ("answer", "work", "still_waiting")


def noisy_work(self: Any, theta: Any, state: Any, request: Any) -> Release:
    """Clipping and noise within `work`, as the base class invites to."""
    trained = self.train_locally(theta, request, self.drift(state))
    clipped = clip(trained.sent, self.clip_norm)
    value = add_normal(clipped, self.noise_multiplier * self.clip_norm, self.noise(request, "release"))
    return self.released(trained, Release(value, None))


class Bare(FedLDPClient):
    """Without what the half adds in `work`, an update leaves as it is."""

    in_columns = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        return Release(update, None)


class Overriding(Bare):
    in_columns = True
    work = noisy_work


class Mixin:
    work = noisy_work


class Mixed(Mixin, Bare):
    in_columns = True


class OfAnObject(Bare):
    in_columns = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.work = partial(noisy_work, self)  # type: ignore[method-assign]


class OfAnObjectAtWork(Bare):
    """Not seen on the object that is planned with, which has no site."""

    in_columns = True

    def __init__(self, options: Any, run: Any) -> None:
        super().__init__(options, run)
        if run.site is not None:
            self.work = partial(noisy_work, self)  # type: ignore[method-assign]


class SetLater(Bare):
    in_columns = True


SetLater.work = noisy_work  # type: ignore[method-assign]


def with_noise(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (kind,), {"work": noisy_work, "in_columns": True})


@with_noise
class Decorated(Bare):
    pass


class Partial(Bare):
    in_columns = True
    work = partialmethod(noisy_work)  # type: ignore[assignment]


class AsProperty(Bare):
    in_columns = True

    @property
    def work(self) -> Any:  # type: ignore[override]
        return partial(noisy_work, self)


class SaidByProperty(Bare):
    """A property of a class is an object, which is true whatever it would say."""

    work = noisy_work

    @property
    def in_columns(self) -> bool:  # type: ignore[override]
        return False


class Inherits(Overriding):
    """Says nothing for itself."""


class InheritsAndSays(Overriding):
    in_columns = True


class Looked(Bare):
    in_columns = True

    def __getattribute__(self, name: str) -> Any:
        return partial(noisy_work, self) if name == "work" else super().__getattribute__(name)


class InTraining(Bare):
    """Noise in a step that is not meant to be overridden."""

    in_columns = True

    def train_locally(self, theta: Any, *given: Any) -> Any:  # type: ignore[misc]
        trained = super().train_locally(theta, *given)
        noise = self.noise(given[0], "release")
        return replace(trained, sent=add_normal(clip(trained.sent, self.clip_norm), 0.1 * self.clip_norm, noise))


class ByTheMean(Bare):
    """Clips by the mean norm: of one client its own, of several everybody's."""

    in_columns = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        clipped = update * torch.clamp(self.clip_norm / l2_norm(update).mean(), max=1.0)
        return Release(add_normal(clipped, self.noise_multiplier * self.clip_norm, noise), None)


class OneDraw(Bare):
    """All have the noise of the first."""

    in_columns = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        drawn = noise.normal(update.shape, self.noise_multiplier * self.clip_norm)
        return Release(clip(update, self.clip_norm) + (drawn[0] if drawn.ndim > 1 else drawn), None)


class OnceMore(FedLDPClient):
    """Right at first: what it keeps is everybody's."""

    in_columns = True
    State = WithNorms

    def release(self, update: Any, state: Any, noise: Any) -> Release:
        kept = l2_norm(update).unsqueeze(-1) if state is None else state.norms
        bound = self.clip_norm if state is None else kept.mean() + self.clip_norm
        value = add_normal(clip(update, float(bound)), self.noise_multiplier * self.clip_norm, noise)
        return Release(value, WithNorms(None, kept))


WAYS = [
    ByTheMean,
    OneDraw,
    OnceMore,
    Overriding,
    Mixed,
    OfAnObject,
    OfAnObjectAtWork,
    SetLater,
    Decorated,
    Partial,
    AsProperty,
    SaidByProperty,
]
WAYS += [Inherits, InheritsAndSays, Looked, InTraining]


@pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.__name__)
def test_what_a_half_adds_in_its_own_steps_is_there_at_once_too(
    kind: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "Chosen", kind)
    config = config_of("strategy=fedldp", "strategy.client._target_=test_own_columns.Chosen", "num_rounds=2")
    told = Told(config)
    monkeypatch.setattr(Worker, "one_by_one", property(lambda self: "in this test"))
    assert told.rounds == Told(config).rounds


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_half_derived_from_any_method_is_asked_at_once_only_with_the_steps_of_all(case: tuple[str, ...]) -> None:
    """By class, by mixin, by object, for every step that a cohort takes itself, of every method and variant."""
    name, worker = case[0].partition("=")[2], Worker(config_of(*case))
    base, at_once = worker.maker.make(), case[0].partition("=")[2] in AT_ONCE and case not in ONE_BY_ONE
    kind: type[Any] = type(base)

    def reason(*bases: type[Any], **own: Any) -> str | None:
        return why_one_by_one(type("Own", (*bases, kind), {"in_columns": True, **own})(base.options, base.run))

    assert not at_once or reason() is None, name
    assert reason(in_columns=property(lambda self: True)) is not None
    for step in OWN_STEPS:

        def other(self: Any, *given: Any, step: str = step) -> Any:
            return getattr(kind, step)(self, *given)

        found = [reason(**{step: other}), reason(type("Mixin", (), {step: other}))]
        changed = type("Own", (kind,), {"in_columns": True})(base.options, base.run)
        setattr(changed, step, partial(other, changed))
        found.append(why_one_by_one(changed))
        assert None not in found
        assert not at_once or all(f"`{step}`" in str(words) for words in found)
    keeping = replace(kind.traits, keeps_layers=True)
    assert reason(traits=keeping) is not None and (not at_once or "layers" in str(reason(traits=keeping)))


def test_every_step_that_a_family_may_change_is_among_those_that_are_compared() -> None:
    """`Client` names them; none of the project's own that take part at once changes one."""
    assert Client.__doc__ is not None
    assert set(STEPS) <= set(OWN_STEPS) and all(f"`{step}`" in Client.__doc__ for step in ("answer", "work"))


def test_the_plan_says_which_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.runs.preparation import resolve

    target = "strategy.client._target_=test_own_columns.Overriding"
    _, _, plan = resolve(config_of("strategy=fedldp", target), None)
    assert "one by one: Overriding has its own `work`" in plan.trainer


@pytest.mark.parametrize("case", COLUMNS, ids=" ".join)
def test_the_trial_of_a_user_s_class_finds_nothing_in_the_project_s_own(case: tuple[str, ...]) -> None:
    assert unlike(Worker(config_of(*case))) is None


def test_a_half_of_ones_own_that_keeps_clients_apart_takes_part_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run's noise and budget are; one that differs only in what it keeps is seen to."""
    config = config_of("strategy=fedldp", "strategy.client._target_=test_own_columns.Chosen", "privacy.rng=secure")
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"max_epsilon": 1e-3})})
    monkeypatch.setitem(globals(), "Chosen", Careful)
    assert Worker(config).one_by_one is None
    for kind in (ByTheMean, OneDraw, OnceMore):
        monkeypatch.setitem(globals(), "Chosen", kind)
        assert kind.__name__ in str(Worker(config).one_by_one)


class Careful(FedLDPClient):
    in_columns = True


Chosen: Callable[..., Any]
