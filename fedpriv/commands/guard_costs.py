"""`fedpriv plan guard=POLICY`, `fedpriv audit guard=POLICY`: what foreign apps' guarded answers cost, and an attack.

    fedpriv plan guard=POLICY parameters=NUMBER [rounds=10] [epsilon=] [delta=]
    fedpriv audit guard=POLICY parameters=NUMBER [trials=] [confidence=0.95] [delta=] [audit_seed=0]

guard: a policy file with a section `guard`. parameters: of the app's model. epsilon: the noise that keeps to it is
printed. delta: default: of a plan that of the policy's first budget, of an audit the one at which a guard with half of
its noise shows best. trials: default: as many as find that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.common.command_line import DONE, FAILED, command_options, read_option, whole_number
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say

if TYPE_CHECKING:
    from fedpriv.deployment.policy import Policy
    from fedpriv.guard.release import Terms

MOST_ROUNDS, MOST_PARAMETERS = 100_000, 2**31


def asks_for_guard(arguments: Sequence[str]) -> bool:
    return any(argument.partition("=")[0] == "guard" for argument in arguments)


def _given(arguments: Sequence[str]) -> str:
    return next(argument.partition("=")[2] for argument in arguments if argument.partition("=")[0] == "guard")


def plan(arguments: Sequence[str]) -> int:
    """Prints the cost of so many rounds. Raises `OptionError`."""
    if {"-h", "--help"} & set(arguments):
        say(__doc__)
        return DONE
    if "plan=true" not in arguments:
        raise OptionError("guard", _given(arguments), "of fedpriv plan and fedpriv audit; a node takes it at its start")
    arguments = [argument for argument in arguments if argument != "plan=true"]
    known = {"guard": None, "parameters": None, "rounds": "10", "epsilon": "", "delta": ""}
    options = command_options(arguments, known, "fedpriv plan", ("epsilon", "delta"))
    policy, terms, size, delta = _terms(options)
    rounds = whole_number(options, "rounds", 1, MOST_ROUNDS)
    from fedpriv.guard.release import claimed_epsilon, with_epsilon

    if options["epsilon"]:
        target = read_option("epsilon", options["epsilon"], (float, lambda value: value > 0, "a number above 0"))
        terms = with_epsilon(terms, size, rounds, delta, target)
    for name, value in _rows(policy, terms, size, rounds, delta, claimed_epsilon).items():
        say(f"{name:<18}{value}")
    return DONE


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


def audit(arguments: Sequence[str]) -> int:
    """Prints a lower bound on the epsilon of one answer beside the one that is booked. Raises `OptionError`."""
    known = {"guard": None, "parameters": None, "trials": "", "confidence": "0.95", "delta": "", "audit_seed": "0"}
    options = command_options(arguments, known, "fedpriv audit", ("delta", "trials"))
    _, terms, size, given = _terms(options)
    delta = given if options["delta"] else None
    trials = whole_number(options, "trials", 400, 10**7) if options["trials"] else None
    seed = whole_number(options, "audit_seed", 0, 2**31)
    confidence = read_option(
        "confidence", options["confidence"], (float, lambda value: 0 < value < 1, "between 0 and 1")
    )
    from fedpriv.attacks.guard_audit import audit_guard
    from fedpriv.privacy.auditor import BROKEN
    from fedpriv.report.live.task import task

    with task("audit"):
        found = audit_guard(terms, size, delta, trials, confidence, seed)
    say(f"one guarded answer, unit {terms.unit}, observer {terms.threat.observer}: {found.audit}")
    say(f"verified epsilon <= {found.verified:.4g}: {found.verdict}; at most {found.audit.attainable:.3g} could show")
    return FAILED if found.verdict == BROKEN else DONE


def _terms(options: dict[str, str]) -> tuple[Policy, Terms, int, float]:
    """(policy, the guard's terms, parameters, delta)."""
    from fedpriv.deployment.policy import read_policy
    from fedpriv.guard.release import Terms

    place = Path(options["guard"]).expanduser()
    if not place.exists():
        raise OptionError("guard", options["guard"], "there is no such file: a policy with a section `guard`")
    policy = read_policy(place)
    if policy.guard is None:
        raise OptionError("guard", options["guard"], "the policy has no section `guard` (docs/guard.md)")
    size = whole_number(options, "parameters", 1, MOST_PARAMETERS)
    delta = policy.budgets[0].delta
    if options["delta"]:
        delta = read_option("delta", options["delta"], (float, lambda value: 0 < value < 1, "between 0 and 1"))
    return policy, Terms.of(policy.guard), size, delta
