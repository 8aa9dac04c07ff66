"""An audit within a run, on a client's own machine, where its policy names `in_run_audit`. Nothing of it leaves.

Whenever this machine has released something, its release code releases canaries as well, as many as the policy says:
made-up updates ten clip norms long, each with a coin of its own for its sign, at the clip norm of this message, with
fresh noise from the operating system. They are scored and forgotten; coins and scores stay in the data folder, and
`python -m fedpriv.node status` says what they show. No real example is looked at, nothing is sent, so nothing is
booked.

A canary is one number long: the code that releases the update, on a model of one parameter. Each has a transcript of
its own, so the bounds are those of independent coins (`fedpriv.privacy.independent_coins`), for unit client and
replace-one at the run's messages to this machine. What does not pass through the release code is not looked at: local
training, the state, the ledger.

Shapes: m canaries.
"""

from __future__ import annotations

import io
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedpriv.client.base import Client
from fedpriv.common.files import write_atomic
from fedpriv.deployment.data_ledger import PRIVATE
from fedpriv.deployment.policy import read_policy
from fedpriv.mechanisms.noise import NoiseSource
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.scaled_noise import family_of
from fedpriv.privacy.trade_offs import GAUSSIAN

log = logging.getLogger("fedpriv")

#: Beside the ledger: one file for each run, the newest of which are kept.
FOLDER, MOST_KEPT = "audits", 32
#: Length of a canary in clip norms, so that skipped clipping shows.
LENGTH = 10.0
CONFIDENCE = 0.95


def why_none(client: Client) -> str:
    """Why the releases of this method cannot be audited so, in words; empty where they can."""
    traits, threat = client.traits, client.threat
    if (threat.unit, threat.adjacency, threat.observer) != ("client", "replace-one", "server"):
        return f"its guarantee is for one {threat.unit}, {threat.adjacency}, seen by {threat.observer}"
    if traits.State is not None or traits.keeps_layers or traits.measures_first:
        return "its releases depend on what a client keeps or has reported"
    if not traits.alike_at_any_dimension or traits.canary_everywhere or not hasattr(client, "clip_norm"):
        return "a release of one number is another mechanism than its own"
    if family_of(client.planned_events(1)) is not GAUSSIAN:
        return "its noise is not Gaussian"
    return ""


@dataclass
class NodeCanaries:
    """Of one run: coins bool [m], scores float64 [m], how many messages they heard, and the sum of their mu^2."""

    coins: NDArray[np.bool_]
    scores: NDArray[np.float64]
    messages: int = 0
    mu_square: float = 0.0

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        np.savez(file, coins=self.coins, scores=self.scores, facts=[self.messages, self.mu_square])
        return file.getvalue()

    @classmethod
    def read(cls, path: Path) -> NodeCanaries | None:
        """None where there are none, or the file is torn."""
        try:
            with np.load(path, allow_pickle=False) as file:
                facts = file["facts"]
                found = cls(file["coins"].astype(bool), file["scores"].astype(np.float64), int(facts[0]), facts[1])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None
        return found if found.coins.shape == found.scores.shape and found.coins.ndim == 1 else None

    def hear(self, client: Client, noise: NoiseSource) -> None:
        """Canaries at the parameters of the message that ``client`` has just answered."""
        clip_norm = float(client.clip_norm)  # type: ignore[attr-defined]
        for side in (True, False):
            numbers = np.flatnonzero(self.coins == side)
            if len(numbers):
                length = LENGTH if side else -LENGTH
                value = client.audit_release(length, None, (len(numbers), 1), noise).value
                self.scores[numbers] += value[:, 0].double().numpy() / clip_norm
        multipliers = [event.gaussian_multiplier or 0.0 for event in client.planned_events(1)]
        self.mu_square += sum(1 / multiplier**2 if multiplier else math.inf for multiplier in multipliers)
        self.messages += 1

    def says(self, delta: float) -> str:
        """What they show at delta, in a line."""
        from fedpriv.privacy.independent_coins import audit_independent, planned_guesses

        mu = math.sqrt(self.mu_square)
        guesses = planned_guesses(len(self.coins), mu, delta, 1 - CONFIDENCE)
        found = audit_independent(self.coins, self.scores, delta=delta, confidence=CONFIDENCE, guesses=guesses)
        (sharper,) = found.sharper
        return (
            f"{len(self.coins)} canaries beside {self.messages} messages of a run: epsilon >= {found.epsilon_lower:.3g}"
            f", >= {sharper.epsilon_lower:.3g} if the noise is Gaussian ({100 * CONFIDENCE:g} % confidence each); "
            f"booked for these {gaussian_epsilon(mu, delta):.3g} at delta {delta:g}"
        )


def hear(folder: Path, key: str, canaries: int, client: Client) -> None:
    """Adds canaries to those of a run (``key``). A failure is logged, and ends no answer."""
    from fedpriv.mechanisms.secure_noise import SecureNoise

    try:
        if reason := why_none(client):
            log.info("in_run_audit: none of %s: %s", type(client).__name__, reason)
            return
        noise, path = SecureNoise(), folder / FOLDER / f"{key}.npz"
        kept = NodeCanaries.read(path)
        if kept is None or len(kept.coins) != canaries:
            kept = NodeCanaries(noise.integers(0, 2, canaries).bool().numpy(), np.zeros(canaries))
        kept.hear(client, noise)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(path, kept.to_bytes(), durable=False, mode=0o600)
        for old in _newest_first(folder)[MOST_KEPT:]:
            old.unlink(missing_ok=True)
    except Exception as error:
        log.warning("in_run_audit: %s: %s", type(error).__name__, error)


def found(folder: Path, delta: float) -> list[str]:
    """A line for each audited run of a node's private folder, the newest first."""
    read = (NodeCanaries.read(path) for path in _newest_first(folder))
    return [one.says(delta) for one in read if one is not None and one.messages]


def audits_in_words(policy_file: Path, data: Path) -> list[str]:
    """What canaries on this machine show, run by run; nothing where the policy names none."""
    policy = read_policy(policy_file)
    return [] if policy.in_run_audit is None else found(data / PRIVATE, policy.budgets[0].delta)


def _newest_first(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("*.npz"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
