"""Faults planted in the real code, each found by a check that is silent about the code as it is.

The checks are those of the contract of noise, the audit of release functions, and the audit of the clients' own fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import clients.coqfl
import clients.fedags
import clients.fedcad
import clients.fedldp
import fedpriv.client.method
import fedpriv.common.messages
import fedpriv.mechanisms.per_example
import fedpriv.training.stacked_gradients
from clients.fedcad import FedCADClient
from clients.fedldp import FedLDPClient
from fedpriv.attacks.fit_audit import audit_fits
from fedpriv.attacks.noise_amounts import too_long
from fedpriv.attacks.noise_contract import BROKEN, bare_numbers, listen, shared_noise, surplus, wrong_batches
from fedpriv.attacks.release_audit import audit_mechanism
from fedpriv.client.build import make_client
from fedpriv.client.contract import Charge
from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.mechanisms.noise import NoiseSource, SeededNoise, add_normal, add_normal_finely, l2_norm
from fedpriv.privacy.events import Gaussian

Patch = pytest.MonkeyPatch
Check = Callable[[], list[str]]


def few(*more: str) -> Config:
    size = ("num_clients=8", "clients_per_round=8", "num_rounds=1", "local.batch_size=1000", "model=linear")
    return compose([*size, *more])


# --- checks: findings in words, none for the code as it is ------------------------------------------------


@cache
def lengths(*case: str) -> Check:
    pictures = [(sign * value, 0) for value in (0.1, 3.0, 100.0, 250.0, 500.0, 1e9) for sign in (1, -1)]
    return lambda: too_long(few(*case), pictures)


@cache
def contract(*case: str, value: float = 1.0) -> Check:
    def check() -> list[str]:
        heard = listen(few("num_clients=16", "clients_per_round=16", "num_rounds=4", *case), value)
        assert not heard.leaks
        return [*bare_numbers(heard), *shared_noise(heard)]

    return check


def sampling() -> list[str]:
    return wrong_batches(listen(few("num_rounds=20", "local.batch_size=12", "strategy=dpsgd")))


@cache
def audited(*case: str) -> Check:
    def check() -> list[str]:
        found = audit_mechanism(make_client(compose([*case])), 1, delta=1e-5, trials=100_000, confidence=0.999, seed=3)
        above = found.audit.epsilon_lower > found.verified
        return [f"audited {found.audit.epsilon_lower:.3g}, verified {found.verified:.3g}"] if above else []

    return check


@cache
def audited_fit(*case: str, trials: int = 1000) -> Check:
    def check() -> list[str]:
        found = audit_fits(compose([*case]), trials=trials, confidence=0.999, seed=3)
        above = found.audit.epsilon_lower > found.verified
        return [f"audited {found.audit.epsilon_lower:.3g}, verified {found.verified:.3g}"] if above else []

    return check


@cache
def silent(check: Check) -> bool:
    """Whether it says nothing of the code as it is; a check that several faults share is asked once."""
    return check() == []


def deployed() -> list[str]:
    return surplus(listen(few("strategy=fedldp", "privacy.rng=secure")))


def correlation() -> list[str]:
    """Fed-CAD's noise of a round is as like that of the round before as its coefficients say, and no other round's
    than that implies: corr(mu_i, mu_j) = prod r sqrt(v_j / v_i).
    """
    config = few("num_clients=16", "clients_per_round=16", "num_rounds=4", "strategy=fedcad")
    client = make_client(config)
    assert isinstance(client, FedCADClient)
    noises = [values - values.mean(0) for values in listen(config).releases()]
    variance = torch.ones((), dtype=torch.float64)
    covariance, found = [[1.0]], []
    for late in range(1, 4):
        reuse, _, variance = FedCADClient.repaired_coefficients(
            torch.tensor(client.options.diff, dtype=torch.float64), variance
        )
        covariance.append([float(reuse) * covariance[late - 1][early] for early in range(late)] + [float(variance)])
        for early in range(late + 1):
            measured = float((noises[late] * noises[early]).mean()) * 16 / 15
            planned = covariance[late][early] * (client.noise_multiplier * client.clip_norm) ** 2
            scale = planned / covariance[late][early]
            if abs(measured - planned) > 0.05 * scale:
                found.append(
                    f"rounds {early + 1} and {late + 1}: covariance {measured / scale:.2f}, planned "
                    f"{planned / scale:.2f}"
                )
    return found


# --- faults ----------------------------------------------------------------------------------------------


def halved(patch: Patch) -> None:
    patch.setattr(clients.fedldp, "add_normal", lambda values, std, noise: add_normal(values, std / 2, noise))


def halved_step(patch: Patch) -> None:
    half = lambda values, std, noise: add_normal_finely(values, std / 2, noise)  # noqa: E731
    patch.setattr("clients.dpfl_agn.add_normal_finely", half)


def clip_skipped(patch: Patch) -> None:
    real = clients.fedldp.clip

    def clip(x: torch.Tensor, bound: float) -> torch.Tensor:
        norm = l2_norm(x).unsqueeze(-1)
        return torch.where((norm > 50 * bound) & (norm < 500 * bound), x, real(x, bound))

    patch.setattr(clients.fedldp, "clip", clip)


def bare(index: int) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        def without(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
            found = add_normal(values, std, noise)
            found[..., index] = values[..., index]
            return found

        patch.setattr(clients.fedldp, "add_normal", without)

    return plant


def reused(patch: Patch) -> None:
    def source(seed: int, client: int, server_round: int, *rest: Any) -> NoiseSource:
        return SeededNoise(seed, client, server_round - server_round % 2, *rest)

    patch.setattr(fedpriv.client.method, "SeededNoise", source)


def reused_turned(patch: Patch) -> None:
    """Noise of the round before with the other sign: the sum of the two releases is bare."""
    reused(patch)
    calls: dict[int, int] = {}

    def add(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
        drawn = noise.normal(values.shape, std)
        key = hash(drawn.numpy().tobytes())
        calls[key] = calls.get(key, 0) + 1
        return values + drawn if calls[key] % 2 else values - drawn

    patch.setattr(clients.fedldp, "add_normal", add)


def same_key(patch: Patch) -> None:
    patch.setattr(fedpriv.client.method, "SeededNoise", lambda seed, client, *rest: SeededNoise(seed, *rest))


def wrong_sensitivity(patch: Patch) -> None:
    def charges(self: FedLDPClient, state: Any) -> tuple[Charge, ...]:
        return (Charge(Gaussian(threat=self.threat, multiplier=self.noise_multiplier / 2**0.5)),)

    patch.setattr(FedLDPClient, "charges", charges)


def stale_state(patch: Patch) -> None:
    real = FedCADClient.perturb

    def perturb(self: FedCADClient, update: torch.Tensor, state: Any, noise: NoiseSource) -> Any:
        found = real(self, update, state, noise)
        return found if state is None else replace(found, state=state)

    patch.setattr(FedCADClient, "perturb", perturb)


def stale_start(patch: Patch) -> None:
    """The vector that the next change is measured from, and that is subtracted, is an older one."""
    real = FedCADClient.perturb

    def perturb(self: FedCADClient, update: torch.Tensor, state: Any, noise: NoiseSource) -> Any:
        found = real(self, update, state, noise)
        return found if state is None else replace(found, state=replace(found.state, released=state.released))

    patch.setattr(FedCADClient, "perturb", perturb)


class _Batches:
    """A client's batch generator whose uniforms are changed before they are compared with the rate."""

    def __init__(self, real: Any, change: Callable[[np.ndarray], np.ndarray]) -> None:
        self.real, self.change = real, change

    def random(self, n: int) -> np.ndarray:
        return self.change(self.real.random(n))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def _drawn_otherwise(patch: Patch, change: Callable[[np.ndarray], np.ndarray]) -> None:
    kind = fedpriv.client.method.Method
    real = kind.batches_of
    patch.setattr(kind, "batches_of", lambda self, *asked: [_Batches(one, change) for one in real(self, *asked)])


def fixed_size(patch: Patch) -> None:
    """The k smallest of n uniforms, whatever they are: ranks in their place."""
    _drawn_otherwise(patch, lambda uniforms: (np.argsort(np.argsort(uniforms)) + 0.5) / len(uniforms))


def rate_doubled(patch: Patch) -> None:
    _drawn_otherwise(patch, lambda uniforms: uniforms / 2)


def gumbel(patch: Patch) -> None:
    real = SeededNoise.gumbel
    patch.setattr(SeededNoise, "gumbel", lambda self, shape, scale=1.0: real(self, shape, scale / 100))


def bare_loss(patch: Patch) -> None:
    patch.setattr(clients.fedags.FedAGSClient, "reported_loss", lambda self, shape, noise: self.loss.expand(shape))


def no_coins(patch: Patch) -> None:
    def pair(p: Any, cell: Any, own: Any, bits: int, first: bool, private_share: float) -> torch.Tensor:
        return clients.coqfl.pair_bits(p, cell, own, bits, first)

    patch.setattr(clients.coqfl, "mixed_pair_bits", pair)


def short_norms(patch: Patch) -> None:
    for module in (fedpriv.mechanisms.per_example, fedpriv.training.stacked_gradients):
        patch.setattr(module, "clip_factors", lambda norms, bound, real=module.clip_factors: real(norms / 3, bound))


def silent_zero(patch: Patch) -> None:
    real = FedLDPClient.release

    def release(self: FedLDPClient, update: torch.Tensor, state: Any, noise: NoiseSource) -> Any:
        found = real(self, update, state, noise)
        return found if bool(update.any()) else replace(found, value=update)

    patch.setattr(FedLDPClient, "release", release)


def diagnostic(patch: Patch) -> None:
    real = fedpriv.common.messages.reply_content

    def reply_content(release: Any, examples: int, diagnostics: Any, statistics: Any) -> Any:
        return real(release, examples, {"train_loss": 0.5} if diagnostics is None else diagnostics, statistics)

    patch.setattr(fedpriv.common.messages, "reply_content", reply_content)


def metric(patch: Patch) -> None:
    real = fedpriv.common.messages.reply_content

    def reply_content(release: Any, examples: int, diagnostics: Any, statistics: Any) -> Any:
        return real(release, examples, diagnostics, {**statistics, "norm": 0.5})

    patch.setattr(fedpriv.common.messages, "reply_content", reply_content)


LOUD = "strategy.client.noise_multiplier=8"
PICK = (
    "strategy=dpfedsnlc",
    "strategy.client.selection=gumbel",
    "strategy.client.noise_multiplier=4",
    "strategy.client.selection_share=0.05",
)


LOSSES = ("strategy=fedags", "strategy.client.loss_weights=true")


@dataclass(frozen=True)
class Planted:
    name: str
    plant: Callable[[Patch], None]
    found_by: str
    check: Check


PLANTED = [
    Planted("noise halved", halved, "lengths", lengths("strategy=fedldp")),
    Planted(
        "noise halved", halved, "audit of the release", audited("strategy=fedldp", "strategy.client.noise_multiplier=2")
    ),
    Planted("noise halved in a DP-SGD step", halved_step, "lengths", lengths("strategy=dpsgd")),
    Planted("clip skipped for 50 to 500 C", clip_skipped, "lengths", lengths("strategy=fedldp")),
    Planted("first coordinate bare", bare(0), "contract", contract("strategy=fedldp")),
    Planted("third coordinate bare", bare(2), "contract", contract("strategy=fedldp")),
    Planted("last coordinate bare", bare(-1), "contract", contract("strategy=fedldp")),
    Planted("first coordinate bare", bare(0), "audit of the release", audited("strategy=fedldp", LOUD)),
    Planted("third coordinate bare", bare(2), "audit of the release", audited("strategy=fedldp", LOUD)),
    Planted("last coordinate bare", bare(-1), "audit of the release", audited("strategy=fedldp", LOUD)),
    Planted("noise reused every second round", reused, "contract", contract("strategy=fedldp")),
    Planted("noise reused with the other sign", reused_turned, "contract", contract("strategy=fedldp")),
    Planted("sensitivity wrong by sqrt(2)", wrong_sensitivity, "lengths", lengths("strategy=fedldp")),
    Planted("Fed-CAD state stale", stale_state, "correlation", correlation),
    Planted("Fed-CAD last release stale", stale_start, "correlation", correlation),
    Planted("Poisson replaced by fixed size", fixed_size, "sampling", sampling),
    Planted("Poisson rate doubled", rate_doubled, "sampling", sampling),
    Planted("Gumbel noise / 100", gumbel, "audit of the release", audited(*PICK)),
    Planted(
        "loss sent without noise",
        bare_loss,
        "contract",
        contract(*LOSSES),
    ),
    Planted("CoQ-FL shared path without coins", no_coins, "audit of the fit", audited_fit("strategy=coqfl")),
    Planted("third coordinate bare", bare(2), "audit of the fit", audited_fit("strategy=fedldp", LOUD)),
    Planted("ghost norm / 3", short_norms, "lengths", lengths("strategy=dpsgd")),
    Planted("no noise on a zero update", silent_zero, "contract", contract("strategy=fedldp", value=BROKEN)),
    Planted("no noise on a zero update", silent_zero, "lengths", lengths("strategy=fedldp")),
    Planted("same key for two clients", same_key, "contract", contract("strategy=fedldp")),
    Planted("a diagnostic leaves a deployment", diagnostic, "deployed", deployed),
    Planted("a metric leaves a deployment", metric, "deployed", deployed),
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.name} ({planted.found_by})")
def test_planted_fault_is_found(planted: Planted, monkeypatch: Patch) -> None:
    start = time.process_time()
    assert silent(planted.check)
    with monkeypatch.context() as patch:
        planted.plant(patch)
        findings = planted.check()
    print(f"| {planted.name} | {planted.found_by} | {time.process_time() - start:.1f} s | {findings[:1]} |")
    assert findings
