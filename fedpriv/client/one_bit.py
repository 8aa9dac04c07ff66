"""The shared base of clients that send one bit per coordinate (LDP-FL's encoding; CoQ-FL page, eq. 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.contract import Charge, Neighbours, Release, Trained, UnsafeNoise
from fedpriv.client.method import Method, Traits
from fedpriv.common.messages import CENTRES, RADII, Request, shown
from fedpriv.config.methods import OneBitOptions
from fedpriv.mechanisms.noise import NoiseSource, encode_key, finite_or_zero
from fedpriv.mechanisms.quantisation import CHUNK, clamped_share, high_probability, independent_bits, pack, per_layer
from fedpriv.privacy.events import Event, NoBound, Threat
from fedpriv.training.flat_model import Layers, Layout

#: Against the server together with the other members of a pair or group, whose shared bits it then knows.
WITH_MEMBERS = Threat("client", "replace-one", "server+members")
AT_AN_END = "epsilon=null: bits without noise for privacy, a value at an end of the interval is sent as it is"
#: Largest centre and radius that is accepted; 1 / MOST: smallest radius. Neither leaves float32, where values are held.
MOST = 1e30

#: Goes into all that is derived for shared bits.
PROTOCOL = "fedpriv coqfl 1"


@dataclass(frozen=True)
class Session:
    """What all members of a group that shares bits know and the server chose: a public context of every derivation.

    run: Flower's run id. attempt: the round's public one, the same for all members. members: sorted ids of the group;
    the first draws its seed and is Alice of a pair.
    """

    run: int
    round: int
    attempt: int
    members: tuple[int, ...]

    def info(self, *more: int | str) -> bytes:
        """Of one purpose in this session."""
        return encode_key(PROTOCOL, self.run, self.round, self.attempt, len(self.members), *self.members, *more)

    def signed(self, client: int, ephemeral: bytes) -> bytes:
        """What a member signs: run, round, attempt, members, its own id and its public key."""
        return self.info("identity", client) + ephemeral


@lru_cache(maxsize=256)
def of_layer(layer: int) -> bytes:
    """What the stream of bits for a layer is derived for."""
    return encode_key(PROTOCOL, "layer", layer)


class OneBitClient(Client):
    """Clamp to [c - r, c + r], then one bit per coordinate.

    epsilon: of one coordinate; None: infinite, stochastic quantisation without privacy. encode: update (c = 0, the
    radius is a public constant) | weights (c and r of each layer are announced, from released weights). radius: r, one
    for all named blocks or one for each.
    """

    options: OneBitOptions
    traits = Traits(needs_facts=True, canary_everywhere=True)
    #: The announced interval of each named block, of this participation.
    centres: Sequence[float] = ()
    radii: Sequence[float] = ()

    @cached_property
    def epsilon(self) -> float:
        """Of one coordinate; infinite where the method has no such option."""
        given = getattr(self.options, "epsilon", None)
        return math.inf if given is None else given

    @property
    def encode_weights(self) -> bool:
        return self.options.encode == "weights"

    @property
    def radius(self) -> Any:
        return self.options.radius

    def layers(self, layout: Layout, server_round: int) -> Layers:
        per_layer(self.radius, len(layout.blocks))  # refused before the run
        return super().layers(layout, server_round)

    # --- the release -------------------------------------------------------------------------------------

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        """Takes the layers' centres and radii. No announcement can weaken the guarantee: values are clamped.

        Raises `UnsafeNoise` for what is no interval.
        """
        layers = len(self._layers(self.facts.num_parameters))
        if not self.encode_weights:
            self.centres, self.radii = [0.0] * layers, per_layer(self.radius, layers)
            return
        centres, radii = request.options.get(CENTRES), request.options.get(RADII)
        for found in (centres, radii):
            sound = isinstance(found, list) and len(found) == layers and all(map(_is_number, found))
            if not sound or (found is radii and min(radii) < 1 / MOST):  # type: ignore[arg-type]
                raise UnsafeNoise(f"the server announces {shown(found)} for {layers} named blocks")
        self.centres, self.radii = list(centres), list(radii)  # type: ignore[arg-type]

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        values = finite_or_zero(theta + trained.sent) if self.encode_weights else trained.sent
        release = self.release(values, state, noise)
        return self.released(trained, replace(release, value=torch.from_numpy(pack(release.value))))

    def release(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        """Bits [..., d] (bool) of values [..., d]; of them `work` sends eight in a byte."""
        bits, clamped = [], torch.zeros(update.shape[:-1], dtype=torch.float64)
        for layer, part in enumerate(self._layers(update.shape[-1])):
            values = update[..., part]
            centre, radius = (self.centres[layer], self.radii[layer]) if self.radii else (0.0, self._first_radius())
            clamped += clamped_share(values, centre, radius) * values.shape[-1]
            for start in range(0, values.shape[-1], CHUNK):  # a chunk's intermediate vectors stay in the cache
                piece = slice(start, start + CHUNK)
                p = high_probability(values[..., piece], centre, radius, self.epsilon)
                bits.append(self.quantise(p, noise.uniform(tuple(p.shape)), layer, piece))
        share = clamped / update.shape[-1]
        told = share.ndim == 0 or self.site is not None
        return Release(torch.cat(bits, dim=-1), state, {"clamped": share} if told else {})

    def probability(self, values: Tensor) -> Tensor:
        """p(w) [..., d] at the first layer's interval: for the auditor."""
        return high_probability(values, 0.0, self._first_radius(), self.epsilon)

    def quantise(self, p: Tensor, own: Tensor, layer: int, piece: slice) -> Tensor:
        """Bits of a piece of a layer from their probabilities and the client's own uniforms in (0, 1)."""
        return independent_bits(p, own)

    def _layers(self, dimension: int) -> list[slice]:
        """The named blocks; without a site everything is one."""
        layout = self.site.layout if self.site is not None else None
        if layout is None:
            return [slice(0, dimension)]
        return [slice(block.start, block.stop) for block in layout.blocks]

    def _first_radius(self) -> float:
        return self.radius if isinstance(self.radius, int | float) else float(self.radius[0])

    # --- what it costs and what the auditor tries --------------------------------------------------------

    @property
    def dimension(self) -> int:
        return max(1, self.facts.num_parameters)

    @classmethod
    def chosen_for(
        cls,
        target: float,
        delta: float,
        participations: int,
        make: Callable[..., Method],
        threat: Threat | None = None,
    ) -> dict[str, float]:
        """The largest epsilon of a coordinate that meets the target."""
        from fedpriv.privacy.calibration import calibrate  # loads the accountants

        def events(noise: float) -> list[Event]:
            return make(epsilon=1 / noise).planned_events(participations, threat)

        return {"epsilon": 1 / calibrate(events, target, delta).noise_multiplier}

    def release_bytes(self, size: int, server_round: int = 1) -> int:
        return -(-size // 8)

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """At epsilon = infinity; a method with noise says what that costs."""
        return self._exact

    @cached_property
    def _exact(self) -> tuple[Charge, ...]:
        return (Charge(NoBound(threat=self.threat, reason=AT_AN_END), exact=True),)

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        return [Neighbours("all values at opposite ends", (1.0,) * participations, (-1.0,) * participations)]

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """Every coordinate at the same end of its interval: the bits as numbers."""
        found = self.release(torch.full(shape, length * self._first_radius()), state, noise)
        return replace(found, value=found.value.float())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST
