"""An audit within a run, by canary clients (`audit.in_run`; `fedpriv.runs.canary_clients` says what they are).

Their messages are scored and dropped, so the model, the cohorts, the real clients' messages and ledger are those of the
same run without canaries, bit for bit.

**The guarantee is unchanged**: no real example is looked at, and nothing that a real client or the server sends
depends on a canary. A canary client's messages are about its own coins alone, and cost what its ledger entries say.

**What the coins bound.** Given the requests that the server sends (which depend on no coin), a twin's messages of the
run are the method's mechanism on the twin's data, and twins are independent. So they are private for one coin as a real
client's are for one unit, and bounds from right guesses hold for it, whatever the scores are: those of independent
coins (`fedpriv.privacy.independent_coins`) where each client is one coin with Gaussian noise of its own, else those
of coins in one release (`fedpriv.privacy.canaries`, `fedpriv.privacy.one_run`).

**Who attacks.** The server, which sees every message of a client and sends what an honest one sends, and knows all of a
client's data but one unit (unit client: chooses between two of its data sets). It is the ledger's own observer; where
that sees less (sums, models), there are no canary clients.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Message

from fedpriv.client.build import example_counts
from fedpriv.client.example_level import ExampleLevelClient
from fedpriv.common.cohort_messages import cohort_of_message
from fedpriv.common.files import json_number
from fedpriv.engines.worker import Worker
from fedpriv.privacy.auditor import BROKEN, ROUNDING, UNDECIDED
from fedpriv.privacy.canaries import CanaryAudit, audit_canaries
from fedpriv.privacy.events import BLIND_TO_COHORT
from fedpriv.privacy.independent_coins import audit_independent, planned_guesses
from fedpriv.privacy.one_shot import ASSUMES, SOURCE, estimated_epsilon
from fedpriv.privacy.scaled_noise import family_of
from fedpriv.privacy.trade_offs import GAUSSIAN, Family
from fedpriv.runs.canary_clients import CanaryClients
from fedpriv.runs.canary_plan import CURVES, LEAST_COINS, SHARE, planned_seconds
from fedpriv.runs.planning import schedule
from fedpriv.server.nodes import ClientGrid, Nodes
from fedpriv.server.strategy import FederatedStrategy

log = logging.getLogger("fedpriv")

#: Which part of the coins is guessed, and how many at least, fixed for all runs; and who is drawn less often in the
#: run can be seen to be in, hardly to be out: then all guesses are "in".
PART, LEAST_GUESSES, SELDOM = 8, LEAST_COINS * 5 // 6, 4.0
#: What the audited epsilon of such a run is of.
CANARIES = "canaries within the run"


class InRunAudit:
    """The canaries of one run, its time, and what is found; ``reason``: in words, why there is no audit."""

    def __init__(self, worker: Worker) -> None:
        config = worker.config
        self.config, self.seconds, self.requests, self.heard = config, 0.0, 0, 0
        self.reason = why_none(worker)
        if self.reason:
            return
        began = time.perf_counter()
        counts = schedule(config)
        sizes = example_counts(config) if worker.method.traits.needs_facts else np.ones(config.num_clients)
        self.twin = int(np.lexsort((sizes, -counts))[0])  # asked most often, of these the one with the fewest examples
        self.participations = int(counts[self.twin])
        self.canaries = CanaryClients(worker, self.twin, self.participations)
        self.seconds = time.perf_counter() - began

    def listening(self, grid: ClientGrid, strategy: FederatedStrategy) -> ClientGrid:
        """The grid, on which messages to the twin are heard."""
        return grid if self.reason else _Listening(grid, self, strategy)

    def hear(self, message: Message, strategy: FederatedStrategy) -> None:
        """A failure of the audit never ends the run."""
        if self.reason:
            return
        number, every = self.requests, max(1, self.participations)
        self.requests += 1
        if number * self.canaries.requests % every >= self.canaries.requests:  # evenly spread, the first one among them
            return
        began = time.perf_counter()
        try:
            self.canaries.ask(message, strategy)
            self.heard += 1
        except Exception as error:
            self._end(error)
        self.seconds += time.perf_counter() - began

    def found(self) -> tuple[CanaryAudit, CanaryAudit] | None:
        """The bounds, each with the stated confidence by itself, and with that confidence for all together, as a
        verdict on all of them needs (Bonferroni). None where there is no audit.
        """
        if self.reason or not self.heard:
            return None
        began = time.perf_counter()
        try:
            bounds = self._of_independent() if self.canaries.independent else self._of_joint()
        except Exception as error:
            self._end(error)
            return None
        self.seconds += time.perf_counter() - began
        return bounds

    def _of_independent(self) -> tuple[CanaryAudit, CanaryAudit]:
        config, canaries = self.config, self.canaries
        coins, delta, error = len(canaries.coins), config.privacy.delta, 1 - config.audit.confidence
        guesses = planned_guesses(coins, canaries.mu, delta, error)
        return tuple(  # type: ignore[return-value]
            audit_independent(canaries.coins, canaries.scores, delta=delta, confidence=1 - part, guesses=guesses)
            for part in (error, error / 2)
        )

    def _of_joint(self) -> tuple[CanaryAudit, CanaryAudit]:
        config, canaries = self.config, self.canaries
        coins, family = len(canaries.coins), self._family()
        families = [] if family is None else [family]
        return tuple(  # type: ignore[return-value]
            audit_canaries(
                canaries.coins,
                canaries.scores,
                delta=config.privacy.delta,
                confidence=1 - (1 - config.audit.confidence) / bounds,
                guesses=[max(coins // PART, min(coins, LEAST_GUESSES))],
                present=[1.0 if canaries.by_examples and canaries.draws(canaries.requests) < SELDOM else 0.5],
                families=families,
            )
            for bounds in (1, 1 + len(families))
        )

    def _estimate(self) -> dict[str, Any]:
        """The one-shot estimate, where canaries are clients: no bound, and named as what it is."""
        canaries = self.canaries
        if canaries.by_examples:
            return {}
        outside, inside = (canaries.scores[canaries.coins == side] for side in (False, True))
        value = estimated_epsilon(outside, inside, self.config.privacy.delta)
        if value is None:
            return {}
        return {"estimated": {"epsilon": json_number(value), "source": SOURCE, "assumes": ASSUMES}}

    def _end(self, error: Exception) -> None:
        log.warning("the audit in the run ends: %s", error)
        self.reason = f"it ended with {type(error).__name__}: {error}"

    def figures(self, privacy: Mapping[str, Any], rounds_seconds: float) -> dict[str, Any]:
        """Entries of the summary's privacy: of the audit, and the audited epsilon, which holds for any mechanism."""
        both, verified = self.found(), float(privacy["verified_epsilon"])
        record: dict[str, Any] = {"seconds": self.seconds, "share_of_rounds": self.seconds / max(rounds_seconds, 1e-9)}
        if both is None:
            return {"in_run_audit": record | {"reason": self.reason or "nobody asked the canaries' twin"}}
        found, joint = both
        shown = max([joint.epsilon_lower, *(bound.epsilon_lower for bound in joint.sharper)])
        verdict = BROKEN if shown > verified * (1 + ROUNDING) else UNDECIDED
        if verdict == UNDECIDED and found.attainable >= verified:
            verdict = "consistent with the verified epsilon"
        audited = {
            "audited_epsilon": json_number(found.epsilon_lower),
            "audited_confidence": found.confidence,
            "audited_at_most": json_number(found.attainable),
        }
        record |= audited | {
            "verified_epsilon": privacy["verified_epsilon"],
            "canaries": found.canaries,
            "clients": self.canaries.many,
            "of_whole_releases": self.canaries.wide,
            "twin_of": self.twin,
            "requests": self.heard,
            "guesses": found.guesses,
            "correct": found.correct,
            "sharper": [bound.to_json() for bound in found.sharper],
            **self._estimate(),
            "verdict": verdict,
        }
        return audited | {"audited_on": CANARIES, "audit_verdict": verdict, "in_run_audit": record}

    def _family(self) -> Family | None:
        """Of the ledger; None as well where its bound would take longer than the run can afford."""
        family = family_of(self.canaries.events)
        costly = family is not None and family is not GAUSSIAN and self.config.audit.canaries is None
        return None if costly and SHARE * planned_seconds(self.canaries) < 2 * CURVES else family


class _Listening:
    """A grid that shows the audit every message to the twin, and changes none."""

    def __init__(self, grid: ClientGrid, audit: InRunAudit, strategy: FederatedStrategy) -> None:
        self._grid, self._audit, self._strategy = grid, audit, strategy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    @property
    def carries_cohorts(self) -> bool:
        return self._grid.carries_cohorts

    def nodes(self) -> Nodes:
        return self._grid.nodes()

    def client_of(self, node: int) -> int:
        return self._grid.client_of(node)

    def receive(self, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
        return self._grid.receive(self._watched(messages), timeout)

    def _watched(self, messages: Iterable[Message]) -> Iterator[Message]:
        for message in messages:
            clients = cohort_of_message(message)
            if clients is None:
                clients = [self._grid.client_of(message.metadata.dst_node_id)]
            if self._audit.twin in clients:
                self._audit.hear(message, self._strategy)
            yield message


def why_none(worker: Worker) -> str:
    """Why this run cannot have canary clients, in words; empty where it can."""
    method = worker.method
    if worker.config.dataset.name == "on_nodes":
        return "this run's clients are real; each machine audits itself where its policy has in_run_audit"
    if method.threat.observer in BLIND_TO_COHORT:
        return f"the observer is {method.threat.observer}, who sees models and no client's messages"
    if method.threat.observer == "secure-sum" or worker.config.strategy.secure_sum != "assumed":
        return "whoever sees a secure sum alone sees no canary client's message"
    if method.threat.unit == "client" and method.threat.adjacency != "replace-one":
        return f"a canary's update is replaced by its opposite, and the guarantee is for {method.threat.adjacency}"
    if method.traits.shares_secrets:
        return "clients share noise in groups, and a canary client has none"
    if method.traits.keeps_layers and not isinstance(method, ExampleLevelClient):
        return "each client keeps layers, and a canary client's releases would change with the round"
    return ""
