"""The noise contract of a run: its own method, options and model in two real rounds of a few clients.

Messages, training, clipping, noise keys and state are the run's own; the examples are chosen, and all clients hold the
same, so that everything that differs between them is noise (`fedpriv.attacks.noise_contract`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.attacks.noise_amounts import booked_distance, less_later, too_long
from fedpriv.attacks.noise_contract import (
    BROKEN,
    Heard,
    bare_low_bits,
    bare_numbers,
    differences,
    listen,
    presence,
    shared_noise,
    surplus,
    twin_numbers,
    unlike_samples,
)
from fedpriv.attacks.server_contract import FEW, check_server
from fedpriv.client.build import client_class, make_client
from fedpriv.common.doing import doing
from fedpriv.config.schema import Config
from fedpriv.privacy.events import BLIND_TO_COHORT, Binomial, DiscreteGaussianSum, Event, SkellamSum

#: Clients of a round: with sixteen or more, the spread of single numbers is judged.
CLIENTS = 16
#: Fewest numbers of a release whose standard deviation is compared between data sets.
NUMBERS = 500
#: Least noise in steps of its grid: rounding, of half a step at most, then changes its size by 1.4 %.
STEPS = 3.0
#: Pixel values of the examples that all clients hold: updates from within the clip norm to far beyond it.
LOUD = (100.0, -100.0, 1e9)


@dataclass(frozen=True)
class Contract:
    """findings: in words, none for a sound release. held: what was looked at; skipped: why nothing was."""

    findings: tuple[str, ...]
    held: tuple[str, ...]
    clients: int = 0
    numbers: int = 0
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"noise contract: not looked at, {self.skipped}"
        where = f"{self.clients} clients in real rounds, {self.numbers:,} numbers each"
        if not self.findings:
            return f"noise contract, {where}: {', '.join(self.held)}: all hold"
        return "\n".join([f"noise contract, {where}: BROKEN", *(f"  {words}" for words in self.findings)])


def check_contract(config: Config) -> Contract:
    """Real rounds of a few clients with the run's method, options and model."""
    kind = client_class(config)
    doing("the noise contract in real rounds")
    if make_client(config).threat.observer in BLIND_TO_COHORT:
        return _of_the_server(*_few(config, FEW))
    config, rounds = _few(config, CLIENTS)
    plain = BROKEN if kind.traits.clips_examples or kind.traits.canary_everywhere else 1.0
    real = listen(config, plain, rounds=rounds)
    if real.leaks:
        return Contract((), (), skipped=f"the ledger itself books no bound: {real.leaks[0]}")
    allowed, seeded = ["diagnostics leaves"] if config.privacy.rng == "seeded" else [], _seeded(config)
    heard, again, *others = (listen(seeded, value, rounds=rounds) for value in (plain, plain, BROKEN, LOUD[-1]))
    found = {
        "every number has noise": [*bare_numbers(real), *bare_low_bits(real)],
        "of its own": [*shared_noise(real), *twin_numbers(real)],
        "which the data do not seed": differences(heard, again),
        "nothing beside the release": [words for words in surplus(real) if words not in allowed],
        "no data decide whether or how much is sent": presence([heard, *others]),
    }
    if real.drawn:
        found["batches are samples"] = unlike_samples(real)
    numbers = heard.releases()[0].shape[1] if heard.releases() else 0
    if _additive(heard) and numbers >= NUMBERS and not any(found.values()):
        moved = too_long(seeded, [(value, 0) for value in LOUD])
        found["no data move it further, or change its noise"] = [*moved, *less_later(seeded, rounds)]
    findings = tuple(words for many in found.values() for words in _few_words(many))
    return Contract(findings, tuple(found), len(heard.clients), numbers)


def _of_the_server(config: Config, rounds: int) -> Contract:
    """Of a server that is trusted with what clients send: its models."""
    leak = make_client(config).exact_leak()
    if leak is not None:
        return Contract((), (), skipped=f"the ledger itself books no bound: {leak}")
    found, numbers = check_server(_seeded(config), config, rounds, LOUD)
    findings = tuple(words for many in found.values() for words in _few_words(many))
    return Contract(findings, tuple(found), config.num_clients, numbers)


def _seeded(config: Config) -> Config:
    """Secure noise never repeats: what compares releases under the same keys needs seeded ones."""
    if config.privacy.rng == "seeded":
        return config
    return config.model_copy(update={"privacy": config.privacy.model_copy(update={"rng": "seeded"})})


def _few(config: Config, least: int) -> tuple[Config, int]:
    """(the same method, privacy and model with a few clients that take one step, how many rounds to listen to)."""
    from fedpriv.config.compose import compose

    clients = max(least, config.strategy.options.min_replies)
    plain = compose(["engine=inprocess", f"num_clients={clients}", f"clients_per_round={clients}"])
    once = config.strategy.options.participation == "once" or config.strategy.options.participations == 1
    counts = config.dataset.examples  # of nodes, fewer than here: the others would not answer, and nothing be compared
    few = config.model_copy(
        update={
            "dataset": config.dataset.model_copy(update={"examples": (counts * clients)[:clients]}),
            "partition": plain.partition,
            "engine": plain.engine.model_copy(update={"device": "cpu", "trainer": config.engine.trainer}),
            "local": config.local.model_copy(update={"epochs": 1, "steps": 1, "momentum": 0.0}),
            "privacy": config.privacy.model_copy(update={"max_epsilon": None}),
            "num_clients": clients,
            "clients_per_round": clients,
            "over_selection": 1.0,
            "run_dir": None,
        }
    )
    return few, 1 if once else min(2, config.num_rounds)


def _additive(heard: Heard) -> bool:
    """Whether a release is its value and noise beside which rounding to the grid does not count."""
    if booked_distance(heard) is None:
        return False
    steps = [_steps(entry.event) for entry in heard.entries]
    return min(steps, default=math.inf) >= STEPS


def _steps(event: Event) -> float:
    """Standard deviation of whole-number noise in steps of its grid; infinite for any other."""
    if isinstance(event, DiscreteGaussianSum):
        return event.sigma
    if isinstance(event, SkellamSum):
        return math.sqrt(event.variance)
    return math.sqrt(event.trials) / 2 if isinstance(event, Binomial) else math.inf


def _few_words(findings: Sequence[str]) -> list[str]:
    """The first of many that say the same of other numbers, and how many there are."""
    more = len(findings) - 2
    return [*findings[:2], *([f"and {more:,} more of this kind"] if more > 0 else [])]
