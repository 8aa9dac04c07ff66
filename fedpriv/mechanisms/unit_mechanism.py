"""What every mechanism for unit vectors has; `fedpriv.mechanisms.unit_vectors` is the list of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.mechanisms.privunit import CapLaw, PrivUnit
from fedpriv.mechanisms.unit_projections import Key


class UnitMechanism(ABC):
    """law: what a release costs; None: a Gaussian's, which its standard deviation says."""

    law: CapLaw | None

    @abstractmethod
    def release(self, vectors: Tensor, key: Key, noise: NoiseSource) -> Tensor:
        """What is sent for vectors [..., d], of which the direction alone counts: [..., numbers or bytes]."""

    @abstractmethod
    def decode(self, sent: Tensor, key: Key) -> Tensor:
        """The estimate of u (float32 [..., d])."""

    @property
    @abstractmethod
    def second_moment(self) -> float:
        """E|estimate|^2."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Length of what is sent."""

    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Capped(UnitMechanism):
    """PrivUnit, of the direction or of a projection of it: its law is the release's."""

    setting: PrivUnit

    @property
    def law(self) -> CapLaw:  # type: ignore[override]
        return self.setting.law

    @property
    def width(self) -> int:
        return self.setting.cap.dimension
