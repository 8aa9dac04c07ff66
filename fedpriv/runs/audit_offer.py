"""What an audit within a run would take and show, for a run that had none: in place of a bare "not audited".

Canaries are no default, although they cost little. Of an exactly Gaussian mechanism a bound with 95 % confidence lies
above the truth once in twenty runs, so sound runs would be reported as refuted, without anybody having asked; a run
that was interrupted and resumed would no longer have the summary of one that was not, since its canaries start anew;
and every run would take longer. So a report says what one option more would give.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from fedpriv.common.files import json_number
from fedpriv.engines.worker import Worker
from fedpriv.privacy.canaries import one_run_epsilon
from fedpriv.privacy.independent_coins import expected_independent
from fedpriv.runs.canary_plan import affordable, planned_share
from fedpriv.runs.in_run_canaries import LEAST_GUESSES, PART, InRunAudit

log = logging.getLogger("fedpriv")

#: As in_run=true takes at most, beyond which nothing is said to be cheap.
CHEAP = 0.05


def audit_offer(worker: Worker, verified: float) -> dict[str, Any]:
    """{"in_run_offer": ...} for a summary's privacy: of an audit within this run its coins, requests and planned share
    of the rounds' CPU time, and what it would show of a mechanism at the ledger's noise, or at most; or the reason why
    there can be none. Empty where there is no finite epsilon to be held against. Never fails.
    """
    if not math.isfinite(verified) or verified <= 0:
        return {}
    try:
        return {"in_run_offer": _offer(worker)}
    except Exception as error:
        log.debug("what an audit within the run would show is not known: %s", error)
        return {}


def _offer(worker: Worker) -> dict[str, Any]:
    audit = InRunAudit(worker)
    if audit.reason:
        return {"reason": audit.reason}
    canaries, config = audit.canaries, worker.config
    plan, coins = affordable(canaries, audit.participations), len(canaries.coins)
    share, confidence = planned_share(canaries, plan), config.audit.confidence
    found: dict[str, Any] = {"coins": coins, "requests": plan.requests, "share": share, "cheap": share <= CHEAP}
    if canaries.independent:
        shown, assuming = expected_independent(coins, canaries.mu, config.privacy.delta, confidence)
        return found | {"would_show": json_number(shown), "would_show_if_gaussian": json_number(assuming)}
    guesses = max(coins // PART, min(coins, LEAST_GUESSES))
    most = one_run_epsilon(coins, guesses, guesses, config.privacy.delta, 1 - confidence)
    return found | {"at_most": json_number(most)}
