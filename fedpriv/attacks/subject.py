"""Input and output of an attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.attacks.targets import Rows
from fedpriv.common.messages import FloatVector
from fedpriv.config.options import AttackConfig
from fedpriv.runs.round_updates import RoundUpdates


@dataclass(frozen=True)
class Trained:
    """A trained model: its parameters [d], earlier ones by round, the rows that it was trained on, and by round what
    its server saw of single clients.
    """

    theta: FloatVector
    snapshots: Mapping[int, FloatVector] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seen: Mapping[int, RoundUpdates] = field(default_factory=dict)

    @property
    def series(self) -> list[FloatVector]:
        """Global models in order of rounds, the final one last."""
        return [*(self.snapshots[number] for number in sorted(self.snapshots)), self.theta]


@dataclass(frozen=True)
class Subject:
    """An attacked model, the shadow models that were trained like it, by coins of their own, and the attack's options.
    public: rows that no model was trained on.
    """

    model: Trained
    shadows: Sequence[Trained] = ()
    options: AttackConfig = field(default_factory=AttackConfig)
    public: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True)
class Scored:
    """Scores of evaluated members and non-members, larger for likely members, and the threshold that
    the attack chose without them. found: of `inversion`, the examples that it found.
    """

    members: NDArray[np.float64]
    others: NDArray[np.float64]
    threshold: float
    found: Any = None

    @staticmethod
    def pooled(parts: Sequence[Scored]) -> Scored:
        """Scores of several attacked models, each relative to its own threshold."""
        return Scored(
            np.concatenate([part.members - part.threshold for part in parts]),
            np.concatenate([part.others - part.threshold for part in parts]),
            0.0,
        )
