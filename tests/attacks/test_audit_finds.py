"""Faults planted in releases, each found by `fedpriv audit` as users call it; it is silent about the code as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import clients.fedldp
import fedpriv.client.method
import fedpriv.mechanisms.privunit as privunit
from clients.fedldp import FedLDPClient
from fedpriv.client.contract import BudgetSpent
from fedpriv.commands.audit import main
from fedpriv.mechanisms.noise import NoiseSource, SeededNoise, add_normal, l2_norm
from fedpriv.mechanisms.privunit import direction

Patch = pytest.MonkeyPatch
Add = Callable[[torch.Tensor, float, NoiseSource], torch.Tensor]

LOCAL = ("strategy=fedldp", "strategy.client.noise_multiplier=8", "num_rounds=2")
UNIT = ("strategy=privunit", "strategy.client.epsilon=2", "num_rounds=1")


def audited(case: tuple[str, ...]) -> int:
    return main([*case, "trials=1000", "confidence=0.999"])


@cache
def silent(case: tuple[str, ...]) -> bool:
    return audited(case) == 0


def noise_of(add: Add) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(clients.fedldp, "add_normal", add)


def scaled_by_norm(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    return values + noise.normal(values.shape, std) * l2_norm(values).float().unsqueeze(-1)


def on_half(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    found = add_normal(values, std, noise)
    found[..., ::2] = values[..., ::2]
    return found


def from_the_65th(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    found = add_normal(values, std, noise)
    found[..., 64:] = values[..., 64:]
    return found


def low_bits(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    bits = add_normal(values, std, noise).view(torch.int32)
    return ((bits & ~0xFF) | torch.where(values > 0, 0xA7, 0x13).int()).view(torch.float32)


def sign_kept(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    return values + noise.normal(values.shape, std).abs() * values.sign()


def zero_is_bare(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    return torch.where(values == 0, values, add_normal(values, std, noise))


def a_fifth(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    return add_normal(values, std / 5, noise)


def seeded_by_data(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    return add_normal(values, std, SeededNoise("data", int(1e6 * float(values.double().sum()))))


def only_where_data_are(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    """Noise of the size of each coordinate's own value."""
    return values + noise.normal(values.shape, std) * (values.abs() > 1e-4 * std)


def in_pairs(values: torch.Tensor, std: float, noise: NoiseSource) -> torch.Tensor:
    drawn = noise.normal(values.shape, std)
    drawn[..., 1::2] = drawn[..., 0::2]
    return values + drawn


def clipped_last(patch: Patch) -> None:
    real = clients.fedldp.clip
    patch.setattr(clients.fedldp, "clip", lambda x, bound: x)
    noisy = lambda values, std, noise: real(add_normal(values, std, noise), std / 8)  # noqa: E731
    patch.setattr(clients.fedldp, "add_normal", noisy)


def without_noise_in_many_dimensions(patch: Patch) -> None:
    real = privunit.release_unit

    def release(vectors: torch.Tensor, setting: Any, noise: NoiseSource) -> torch.Tensor:
        return real(vectors, setting, noise) if vectors.shape[-1] <= 64 else direction(vectors).float()

    patch.setattr(privunit, "release_unit", release)


def length_kept(patch: Patch) -> None:
    real = privunit.release_unit

    def release(vectors: torch.Tensor, setting: Any, noise: NoiseSource) -> torch.Tensor:
        return real(vectors, setting, noise) * l2_norm(vectors).float().clamp(min=1e-3).unsqueeze(-1)

    patch.setattr(privunit, "release_unit", release)


def key_without(client: bool) -> Callable[[Patch], None]:
    def source(seed: int, number: int, *rest: Any) -> NoiseSource:
        return SeededNoise(seed, *rest) if client else SeededNoise(seed, number)

    return lambda patch: patch.setattr(fedpriv.client.method, "SeededNoise", source)


def answers_only_with_an_update(patch: Patch) -> None:
    real = FedLDPClient.release

    def release(self: FedLDPClient, update: torch.Tensor, state: Any, noise: NoiseSource) -> Any:
        if self.site is not None and not bool(update.any()):
            raise BudgetSpent("nothing to say")
        return real(self, update, state, noise)

    patch.setattr(FedLDPClient, "release", release)


FAULTS: list[tuple[str, tuple[str, ...], Callable[[Patch], None]]] = [
    ("no noise above 64 coordinates, privunit", UNIT, without_noise_in_many_dimensions),
    ("length leaks", UNIT, length_kept),
    ("no noise from the 65th coordinate on", LOCAL, noise_of(from_the_65th)),
    ("noise scaled by the norm", LOCAL, noise_of(scaled_by_norm)),
    ("noise on half the coordinates", LOCAL, noise_of(on_half)),
    ("low bits leak", LOCAL, noise_of(low_bits)),
    ("sign kept", LOCAL, noise_of(sign_kept)),
    ("no noise where the update is zero", LOCAL, noise_of(zero_is_bare)),
    ("noise only where the update is large", LOCAL, noise_of(only_where_data_are)),
    ("a fifth of the noise", LOCAL, noise_of(a_fifth)),
    ("seed from the data", LOCAL, noise_of(seeded_by_data)),
    ("clip after noise", LOCAL, clipped_last),
    ("same noise for all clients", LOCAL, key_without(client=True)),
    ("same noise in all rounds", LOCAL, key_without(client=False)),
    ("presence visible", LOCAL, answers_only_with_an_update),
    ("each number's noise used twice", LOCAL, noise_of(in_pairs)),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_the_audit_finds_it(
    fault: tuple[str, tuple[str, ...], Callable[[Patch], None]], monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, case, plant = fault
    assert silent(case)
    capsys.readouterr()
    plant(monkeypatch)
    assert audited(case) == 1
    said = capsys.readouterr().out
    assert "contradicts the verified epsilon" in said or "BROKEN" in said
