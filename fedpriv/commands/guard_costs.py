"""`fedpriv plan guard=POLICY`, `fedpriv audit guard=POLICY`: what foreign apps' guarded answers cost, and an attack.

    fedpriv plan guard=POLICY parameters=NUMBER [rounds=10] [epsilon=] [delta=]
    fedpriv audit guard=POLICY parameters=NUMBER [trials=] [confidence=0.95] [delta=] [audit_seed=0]

guard: a policy file with a section `guard`. parameters: of the app's model. epsilon: the noise that keeps to it is
printed. delta: default: of a plan that of the policy's first budget, of an audit the one at which a guard with half of
its noise shows best. trials: default: as many as find that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedpriv.common.command_line import DONE, FAILED, Existing, command
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say

if TYPE_CHECKING:
    from fedpriv.deployment.policy import Policy
    from fedpriv.guard.release import Terms

MOST_ROUNDS = 100_000


@dataclass(frozen=True)
class Guarded:
    """A policy whose guard answers for an app with so many parameters."""

    guard: Existing
    parameters: Annotated[int, Field(ge=1, le=2**31)]
    delta: Annotated[float | None, Field(gt=0, lt=1)] = None

    def terms(self) -> tuple[Policy, Terms, float]:
        """(policy, the guard's terms, delta). Raises `OptionError`."""
        from fedpriv.deployment.policy import read_policy
        from fedpriv.guard.release import Terms

        policy = read_policy(self.guard)
        if policy.guard is None:
            raise OptionError("guard", self.guard, "the policy has no section `guard` (docs/guard.md)")
        return policy, Terms.of(policy.guard), self.delta or policy.budgets[0].delta


def asks_for_guard(arguments: Sequence[str]) -> bool:
    return any(argument.partition("=")[0] == "guard" for argument in arguments)


@command
def plan(
    *,
    of: Guarded,
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] = 10,
    epsilon: Annotated[float | None, Field(gt=0)] = None,
    plan: bool = True,
) -> None:
    """Prints the cost of so many rounds."""
    policy, terms, delta = of.terms()
    from fedpriv.guard.release import claimed_epsilon, with_epsilon

    if epsilon:
        terms = with_epsilon(terms, of.parameters, rounds, delta, epsilon)
    for name, value in _rows(policy, terms, of.parameters, rounds, delta, claimed_epsilon).items():
        say(f"{name:<18}{value}")


def _rows(policy: Policy, terms: Terms, size: int, rounds: int, delta: float, cost: Any) -> dict[str, str]:
    threat, sampled = terms.threat, f", each drawn with probability {terms.sampling:g}" * (terms.sampling < 1)
    noises = terms.sites if terms.in_sum else 1
    # every number of the mean over shards has this noise; its length over all numbers, in units of the clip norm
    length = terms.noise_multiplier * noises**0.5 * size**0.5 / (terms.expected * noises)
    whose = f"in a secure sum of {terms.min_replies} to {terms.sites}" if terms.in_sum else "alone"
    rows = {
        "rounds": f"{rounds}, {size} numbers",
        "threat model": f"unit {threat.unit}, {threat.adjacency}, observer {threat.observer}, delta {delta:g}",
        "shards": f"{terms.shards}{sampled}; an answer is clipped to {terms.clip:g}, and one {terms.unit} moves their "
        f"sum by up to {'that: only shards with a single unit answer' if terms.single else 'twice that'}",
        "noise multiplier": f"{terms.noise_multiplier:.6g} (of each machine, standard deviation / clip), {whose}",
        "noise in the mean": f"of length {length:.3g} clip norms over all numbers, against 1 at most of the answers",
        "epsilon": f"{cost(terms, size, rounds, delta):.4g} claimed and verified; {cost(terms, size, 1, delta):.4g} "
        "of one round",
    }
    for kind, query in terms.counts.items():
        numbers = sum(query["metrics"].values())
        rows[kind] = f"{numbers} counts, epsilon {cost(terms, size, {kind: 1}, delta):.4g} of one answer"
    if terms.sandbox == "none":
        rows["sandbox"] = "none: the approved apps' code is trusted"
    for budget in policy.budgets:
        allowed = _affordable(policy, budget, terms, size)
        rows[f"budget {budget.max_epsilon:g}"] = (
            f"{allowed} rounds of a new ledger ({budget.name}, {policy.accountant})"
        )
    return rows


def _affordable(policy: Policy, budget: Any, terms: Terms, size: int) -> int:
    """Rounds that the policy's own filter admits, in a ledger that holds nothing."""
    from dataclasses import replace

    from fedpriv.deployment.policy import Booked, Spent

    fixed, booked = policy.accounting(None, Spent()), terms.booked(size, 0, 1)

    def admits(rounds: int) -> bool:
        entries = tuple(replace(one, event=replace(one.event, count=rounds)) for one in booked.entries)
        spent = Booked(entries, booked.own).under(budget.threat)
        return policy._filter(budget, fixed).admits([], spent)

    if not admits(1):
        return 0
    low, high = 1, 2
    while high < MOST_ROUNDS and admits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admits(middle) else (low, middle)
    return low


@command
def audit(
    *,
    of: Guarded,
    trials: Annotated[int | None, Field(ge=400, le=10**7)] = None,
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95,
    audit_seed: Annotated[int, Field(ge=0, le=2**31)] = 0,
) -> int:
    """Prints a lower bound on the epsilon of one answer beside the one that is booked."""
    _, terms, _ = of.terms()
    from fedpriv.attacks.guard_audit import audit_guard
    from fedpriv.privacy.auditor import BROKEN
    from fedpriv.report.live.task import task

    with task("audit"):
        audited = audit_guard(terms, of.parameters, of.delta, trials, confidence, audit_seed)
    say(f"one guarded answer, unit {terms.unit}, observer {terms.threat.observer}: {audited.audit}")
    most = f"at most {audited.audit.attainable:.3g} could show"
    say(f"verified epsilon <= {audited.verified:.4g}: {audited.verdict}; {most}")
    return FAILED if audited.verdict == BROKEN else DONE
