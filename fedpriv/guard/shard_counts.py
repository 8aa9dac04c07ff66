"""What became of a machine's shards, counted for its operator alone: it depends on the data, and never leaves.

Beside the ledger, and not part of it: what a message costs does not depend on how many shards answered. Of an app that
was tried (`fedpriv.guard.trial`) the last trial decides whether it may answer: the policy names a share of its starts.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.files import write_atomic
from fedpriv.deployment.data_ledger import PRIVATE
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.deployment.policy import Policy
from fedpriv.guard.shards import Shards, read_salt

if TYPE_CHECKING:  # flwr takes a second to import
    from fedpriv.guard.arrays import Model
    from fedpriv.guard.sandbox import Answer

#: In the ledger's folder: counts of shards by run, and what the last trial of each app gave.
ANSWERS, TRIALS = "guard-answers.json", "guard-trials.json"
#: Characters of a reason that are printed.
LONGEST = 200
#: Of a policy's section `guard`: what the answer of a start does not depend on.
_BESIDE_STARTS = {
    *("apps", "min_answered", "pad_seconds", "clip", "noise_multiplier", "noise", "sampling"),
    *("sites", "min_replies", "colluders", "threshold", "bits"),
}
#: What can become of a shard, by the word that `Model.fault` has for it.
SHARDS = {
    "answered": "an answer of the model's form, clipped",
    "not asked": "zero update: a shard without exactly one unit, where the policy says single",
    "no arrays": "zero update: no answer (a crash, a time-out, too much, no arrays)",
    "other form": "zero update: arrays of another number, shape or type",
    "not finite": "zero update: NaN or infinity",
}


def count_answers(data: Path, run: str, shards: Iterable[str]) -> None:
    """Adds one message's shards, each by its word."""
    with suppress(OSError, ValueError):  # a full disk must not change an answer
        counts = read_answers(data)
        of_run = counts.setdefault(run, {})
        for word in ("messages", *shards):
            of_run[word] = of_run.get(word, 0) + 1
        write_atomic(data / PRIVATE / ANSWERS, json.dumps(counts) + "\n", durable=False, mode=0o600)


def read_answers(data: Path) -> dict[str, dict[str, int]]:
    """By run: messages, and shards by their word. For display: a damaged file counts as empty."""
    try:
        found = json.loads((data / PRIVATE / ANSWERS).read_text())
        return {str(run): {str(word): int(number) for word, number in counts.items()} for run, counts in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


# --- trials -------------------------------------------------------------------------------------------------------


def last_line(fault: str) -> str:
    """Of a traceback: what was raised."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()]
    return (lines or [""])[-1].removeprefix("the app failed: ")[:LONGEST]


@dataclass
class Starts:
    """How an app's starts went. reasons: of those that did not answer."""

    answered: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    processor_s: float = 0.0
    memory_bytes: int = 0

    def add(self, model: Model, answer: Answer | None) -> None:
        """answer: None: a shard without a start, which does not count."""
        if answer is None:
            return
        self.seconds.append(answer.seconds)
        self.processor_s = np.fmax(self.processor_s, answer.processor_s)
        self.memory_bytes = max(self.memory_bytes, answer.memory_bytes)
        fault = model.fault(answer.arrays)
        if fault is None:
            self.answered += 1
        else:
            self.reasons[last_line(answer.fault or SHARDS[fault])] += 1

    @property
    def started(self) -> int:
        return self.answered + self.reasons.total()

    @property
    def share(self) -> float:
        return self.answered / self.started if self.started else 0.0

    def __str__(self) -> str:
        why = "; ".join(f"{count} x {reason}" for reason, count in self.reasons.most_common(10))
        words = f"{self.answered} of {self.started} starts answered ({100 * self.share:.1f} %)"
        return f"{words}: {why}" if why else words

    def enough(self, rules: GuardPolicy) -> bool:
        """Whether as many answered as the policy asks for."""
        return self.share >= rules.min_answered and (self.started > 0 or rules.min_answered == 0)


@dataclass
class Trial:
    """starts: by kind of message (train, or declared counts). no_model: why train is not among them. state: as
    `state_of`, when it was made.
    """

    starts: dict[str, Starts]
    no_model: str = ""
    state: str = ""

    def __str__(self) -> str:
        return "; ".join(f"{kind}: {starts}" for kind, starts in self.starts.items())

    def enough(self, rules: GuardPolicy) -> bool:
        return all(starts.enough(rules) for starts in self.starts.values())


def why_not(data: Path, digest: str, policy: Policy, client: int, kind: str = "", state: str = "") -> str | None:
    """Why an app may not answer, by its last trial; None: it may. kind: of the message; state: as `state_of`, empty
    where it does not matter. An app that nobody has tried may answer where the policy allows any.
    """
    rules = policy.guard
    assert rules is not None
    if rules.min_answered == 0:
        return None
    trial = known_trial(data, digest, policy, client)
    if trial is None or (state and state != trial.state) or (kind and kind not in trial.starts):
        since = "since its data or packages changed" if trial is not None and state else "under these rules"
        how = f"`fedpriv deploy node try guard=APP client={client}` does"
        return None if rules.apps == "any" else f"nobody has tried it {since}: {how}"
    if trial.enough(rules):
        return None
    return f"asks for more than this app has: {trial}; lower it, or see `fedpriv deploy node try`"


def known_trial(data: Path, digest: str, policy: Policy, client: int) -> Trial | None:
    """The last trial of an app under these rules, if there was one."""
    try:
        trial = _read(data)[digest]
        starts = {kind: Starts(int(one["answered"]), Counter(one["reasons"])) for kind, one in trial["starts"].items()}
        known = Trial(starts, state=str(trial["state"]))
        return known if trial["rules"] == _rules(policy, client) else None
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or a damaged file: tried again
        return None


def note_trial(data: Path, digest: str, policy: Policy, client: int, trial: Trial) -> None:
    """The caller holds the ledger: notes of several trials at once are all kept."""
    starts = {kind: {"answered": one.answered, "reasons": one.reasons} for kind, one in trial.starts.items()}
    noted = {"rules": _rules(policy, client), "state": trial.state, "starts": starts}
    write_atomic(data / PRIVATE / TRIALS, json.dumps(_read(data) | {digest: noted}) + "\n", mode=0o600)


def state_of(data: Path, policy: Policy) -> str:
    """A digest of the data and of the installed packages as they are. Raises `DataError`, `LedgerRefused`."""
    assert policy.guard is not None
    shards = Shards(data, policy.guard, read_salt(data, Path(policy.counter), used=lambda: True))
    packages = sorted(f"{package.name} {package.version}" for package in distributions())
    return hashlib.sha256(json.dumps([shards.state(), packages]).encode()).hexdigest()


def _rules(policy: Policy, client: int) -> str:
    """A digest of what is not the app's and decides what a start answers, but for `state_of`."""
    assert policy.guard is not None
    rules = policy.guard.model_dump(mode="json", exclude=_BESIDE_STARTS)
    return hashlib.sha256(json.dumps([rules, policy.limits.max_parameters, client]).encode()).hexdigest()


def _read(data: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((data / PRIVATE / TRIALS).read_text()))
    except (OSError, ValueError, TypeError):
        return {}
