"""What a certificate's epsilons rest on, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpriv.config.schema import Config
from fedpriv.deployment.declaration import Declared, DeclaredTable

EVERYWHERE = [
    "Whoever signed wrote down every release: a certificate shows that the ledger was not changed later, and what its "
    "lines cost. It does not show what was never written.",
    "The code that ran is the code with these digests, and it adds the noise that the ledger states.",
]
NOTHING_DECLARED = (
    "Nothing of the data was declared. Names and types of columns, folders' names and the number of shards are public."
)


@dataclass
class Period:
    """Messages of a node that left one after the other under one policy.

    policy: as `fedpriv.deployment.policy.Policy.in_force`; None: no line said it. first, last: their Unix times in
    seconds. counts: how many messages opened each declared kind of counts. sandboxes: as the line of each guarded
    message names it.
    """

    policy: dict[str, Any] | None
    messages: int
    first: float
    last: float
    counts: dict[str, int] = field(default_factory=dict)
    sandboxes: list[str] = field(default_factory=list)


AT_TWO_NODES = (
    "What was spent is about data of this machine. A unit with data at two machines has spent both: where each adds "
    "noise of its own twice the Renyi divergence (of Gaussians mu times the square root of 2), in a sum twice the "
    "distance (mu times 2). Runs with privacy.across_sites=S were charged for data at up to S machines, as they "
    "declared, at which the same options run; no machine sees another's data or options to check it."
)
OF_SUMS = {
    "ideal": "The server adds up in the clear: the epsilon of a sum holds against whoever sees no more than sums.",
    "assumed": "Where the observer is secure-sum, a secure summation is assumed and was not carried out.",
    "protocol": "Clients masked their sums; no more of them colluded with the server than were allowed for.",
}


def of_run_in_words(config: Config, summary: Mapping[str, Any]) -> list[str]:
    """Of a run, with the reasons and remarks of its report."""
    seeded = config.privacy.rng == "seeded"
    return [
        *EVERYWHERE,
        "This was a simulation: its clients were processes of one machine, and whoever ran it had all their data."
        if config.dataset.name != "on_nodes"
        else "Clients were other machines. The server charged each when it was asked; their own ledgers are theirs.",
        *(["Noise came from a seed: who knows it can subtract it. That suits experiments alone."] if seeded else []),
        "The numbers of clients and of their examples are public.",
        OF_SUMS[config.strategy.secure_sum],
        *(
            f"Against {one['observer']}, {one['adjacency']}, the releases cost {one['verified_epsilon']:.4g}; where "
            f"neighbours are {one['other_adjacency']} the same lines cost {one['other_epsilon']:.4g}. Hold neither "
            "against a figure for the other."
            for one in (summary["privacy"], *summary["privacy"]["others"])
            if isinstance(one.get("other_epsilon"), float) and isinstance(one["verified_epsilon"], float)
        ),
        *summary["privacy"]["reasons"],
    ]


def of_node_in_words(
    periods: Sequence[Period], later: str, accountant: str | None, declared: Declared | DeclaredTable
) -> list[str]:
    """Of a node, by what its ledger says was in force when each message left.

    Args:
        periods: As `fedpriv.certificates.statement.periods`.
        later: SHA-256 of a policy that is in force since the last message; empty: there is none.
        accountant: That of the ledger; None: it names none.
        declared: The newest declaration.
    """
    filtered = {
        "gaussian": "the Gaussian filter of total mu^2 (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023)",
        "renyi": "the Renyi filter at one order, fixed before the first release (Feldman and Zrnic 2021)",
        None: "a filter that this ledger does not name",
    }[accountant]
    policies = [period.policy for period in periods if period.policy is not None]
    weights = {one["sha256"]: one["trained_on"] for policy in policies for one in policy["weights"]}
    words = [
        *EVERYWHERE,
        f"A server may choose each round after it has seen earlier ones. What is promised is therefore the limit, kept "
        f"by {filtered}; the epsilon is what was spent so far.",
        "Limits, code and sandbox are those of the policy that the ledger names as in force when a message left.",
        NOTHING_DECLARED
        if isinstance(declared, Declared) and not declared.classes
        else f"The number of examples, {declared.examples}, is public.",
        "Noise and sampling use the operating system's randomness, which no server knows.",
        AT_TWO_NODES,
        *(f"The weights {digest[:12]} hold nobody's private data: {what}." for digest, what in weights.items()),
    ]
    number = 0
    for period in periods:
        first, number = number + 1, number + period.messages
        which = f"message {first}: " if first == number else f"messages {first} to {number}: "
        words += [(which.capitalize() if len(periods) > 1 else "") + line for line in _in_force(period)]
    return words + [f"Another policy, {later[:12]}, is in force since the last message: nothing left under it."] * bool(
        later
    )


def _in_force(period: Period) -> list[str]:
    """Of the messages of one period."""
    policy, named = period.policy, Counter(period.sandboxes)
    if policy is None:
        boxes = ", ".join(f"{box} ({times})" for box, times in sorted(named.items()))
        said = f" Their lines name the sandbox of guarded apps: {boxes}." if boxes else ""
        return [f"Which policy was in force is not known: this ledger's lines did not say so then.{said}"]
    rules = policy["guard"]
    only, unguarded = "Only apps with one of the digests under code were run", period.messages - sum(named.values())
    if rules is None or not named:
        return [f"{only}."]
    return [
        *([f"{only}, without a guard, for {unguarded} of the messages."] if unguarded else []),
        ("Any app was run" if rules["apps"] == "any" else only)
        + ", under a guard: its answers left as clipped sums with noise, and nothing else of it did.",
        *(
            f"Counts {kind} ({', '.join(query['metrics'])}) were declared, and "
            + (f"left as clipped sums with noise in {times} of the messages." if times else "none left.")
            for kind, query in rules["counts"].items()
            for times in [period.counts.get(kind, 0)]
        ),
        "The kernel and the installed libraries kept apps in their sandbox, and each start from all others; where the "
        "machine gave no control group, the kernel's memory for an app was not limited as a sum."
        if {*named} == {"namespaces"} and rules["sandbox"] == "namespaces"
        else "Apps ran without a sandbox: their code is trusted to send nothing by itself.",
        "Each start of an app takes the same time, whatever its data."
        if rules["pad_seconds"]
        else "The time of an answer is not part of this account.",
    ]
