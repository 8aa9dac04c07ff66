"""The shared base of the clients that clip their update and add Gaussian noise, under any rule that moves C."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedpriv.client.base import Client
from fedpriv.client.clip_statistics import Measured, clip_statistic
from fedpriv.client.contract import Charge, Neighbours, Release, Request, Site, UnsafeClipNorm
from fedpriv.common.messages import CLIP_NORM, shown
from fedpriv.mechanisms.clipping import l2_norm
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.privacy.events import Event


@dataclass(frozen=True)
class WithNorms:
    """State of a client that also remembers the norms of its own updates: the method's state, norms [..., n]."""

    method: Any
    norms: Tensor


def split_state(state: Any) -> tuple[Any, Tensor | None]:
    """(the method's own state, the window of norms)."""
    return (state.method, state.norms) if isinstance(state, WithNorms) else (state, None)


def joined_state(method: Any, norms: Tensor | None) -> Any:
    return method if norms is None else WithNorms(method, norms)


_NORMS = "own_norms"  # where a client's memory holds them, beside the method's own state


class GaussianClient(Client):
    """Base of the clients that clip their update to ``clip_norm`` and add Gaussian noise.

    A method says what it releases at the C of this participation (`release`), what that costs (`charges`, and
    `planned_releases` for a whole run). How C moves is the server's rule (`fedpriv.server.clip_rules`); here is the
    client's side of it: the announced C is checked and taken, and the rule's statistic leaves beside the release, with
    its own price. Noise is at least noise_multiplier * C, so C changes no event of the release.

    noise_multiplier: the paper's sigma, standard deviation / clip_norm, per coordinate. clip_norm: the first C.
    clipping: fixed | quantile | geometric | adp. floor, norm_bound: the smallest and largest C that is accepted;
    norm_bound is also the B of a reported norm. count_noise: sigma_b. norm_noise: z_n. window: S_w. reports_norm: the
    (noisy) norm is needed whatever the rule is.
    """

    def __init__(
        self,
        *,
        noise_multiplier: float,
        clip_norm: float,
        clipping: str = "fixed",
        count_noise: float | None = None,
        norm_noise: float | None = None,
        norm_bound: float = 10.0,
        floor: float = 1e-3,
        window: int = 5,
        reports_norm: bool = False,
        variant: str = "repaired",
        site: Site | None = None,
    ):
        super().__init__(variant=variant, site=site)
        self.noise_multiplier, self.clip_norm, self.first_clip_norm = noise_multiplier, clip_norm, clip_norm
        self.clipping, self.floor, self.norm_bound = clipping, floor, norm_bound
        self.statistic = clip_statistic(
            clipping,
            variant=variant,
            noise_multiplier=noise_multiplier,
            count_noise=count_noise,
            norm_noise=norm_noise,
            norm_bound=norm_bound,
            window=window,
            reports_norm=reports_norm,
        )
        self.statistic_names = self.statistic.names
        self.keeps_budget = self.statistic.exact_leak() is None

    # --- the round's C -----------------------------------------------------------------------------------

    def prepare(self, request: Request) -> None:
        """Takes the announced C^t. Raises `UnsafeClipNorm` for anything outside the public bounds."""
        announced = request.options.get(CLIP_NORM, self.first_clip_norm)
        if isinstance(announced, bool) or not isinstance(announced, int | float) or not math.isfinite(announced):
            raise UnsafeClipNorm(f"the server announces the clip norm {shown(announced)}")
        fixed = self.clipping == "fixed"
        least, most = (self.first_clip_norm,) * 2 if fixed else (self.floor, self.norm_bound)
        if not least * (1 - 1e-9) <= announced <= most * (1 + 1e-9):
            raise UnsafeClipNorm(
                f"the server announces the clip norm {announced:g}, this client takes {least:g} to {most:g}"
            )
        self.clip_norm = self.first_clip_norm if fixed else float(announced)

    # --- what leaves, and what it costs ------------------------------------------------------------------

    def respond(self, update: Tensor, state: Any, noise: NoiseSource) -> Release:
        method, norms = split_state(state)
        release = self.release(update, method, noise)
        measured = self.measure(update, norms, noise)
        return replace(release, state=joined_state(release.state, measured.norms), statistics=measured.statistics)

    def measure(self, update: Tensor, norms: Tensor | None, noise: NoiseSource) -> Measured:
        """The rule's statistics of an update [..., d], and the window of norms [..., n] that it leaves."""
        return self.statistic.measure(l2_norm(update), self.clip_norm, norms, noise)

    def price(self, state: Any, request: Request) -> tuple[Charge, ...]:
        return (*self.charges(split_state(state)[0]), *self.statistic_charges())

    def statistic_charges(self) -> tuple[Charge, ...]:
        """What the statistics of one participation cost, whatever the data and C are."""
        return tuple(Charge(event) for event in self.statistic.events(self.threat))

    def planned_releases(self, participations: int) -> list[Event]:
        """The guarantee's events of the releases alone."""
        return super().planned_events(participations)

    def planned_events(self, participations: int) -> list[Event]:
        beside = self.statistic.events(self.threat) if participations else []
        return [
            *self.planned_releases(participations),
            *(replace(event, count=participations * event.count) for event in beside),
        ]

    def remarks(self) -> tuple[str, ...]:
        if self.statistic.in_words is None:
            return ()
        return (
            f"clipping={self.clipping}: beside every update a client sends {self.statistic.in_words}, which the "
            "guarantee counts and the paper's formula does not",
        )

    def load_state(self, tensors: dict[str, Tensor] | None) -> Any:
        if tensors is None or _NORMS not in tensors:
            return super().load_state(tensors)
        own = {name: tensor for name, tensor in tensors.items() if name != _NORMS}
        return WithNorms(super().load_state(own or None), tensors[_NORMS])

    def dump_state(self, state: Any) -> dict[str, Tensor] | None:
        if not isinstance(state, WithNorms):
            return super().dump_state(state)
        return {**(super().dump_state(state.method) or {}), _NORMS: state.norms}

    # --- what the auditor tries --------------------------------------------------------------------------

    def exact_leak(self) -> str | None:
        if self.noise_multiplier == 0:
            return "noise_multiplier=0: the clipped update is sent as it is"
        return self.statistic.exact_leak()

    def keeps_answer(self) -> bool:
        return self.noise_multiplier > 0 or bool(self.statistic.noise)

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        """Besides the pair that moves the update most, those that move the statistic most."""
        return [
            *super().worst_case_pairs(participations),
            *(
                Neighbours(name, (first,) * participations, (second,) * participations)
                for name, first, second in self.statistic.pairs(self.clip_norm)
            ),
        ]

    @staticmethod
    def figures(clipped: Tensor, noise: Tensor, **others: Tensor | float) -> dict[str, float]:
        """Diagnostics of a single release; empty for a batch of trials, where nobody reads them."""
        if clipped.ndim > 1:
            return {}
        norms = {"clipped_norm": float(l2_norm(clipped)), "noise_norm": float(l2_norm(noise))}
        return norms | {name: float(value) for name, value in others.items()}
