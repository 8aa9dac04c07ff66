"""What a certificate's epsilons rest on, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedpriv.config.schema import Config
from fedpriv.deployment.declaration import Declared, DeclaredTable
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.deployment.policy import Policy

EVERYWHERE = [
    "Whoever signed wrote down every release: a certificate shows that the ledger was not changed later, and what its "
    "lines cost. It does not show what was never written.",
    "The code that ran is the code with these digests, and it adds the noise that the ledger states.",
]
NOTHING_DECLARED = (
    "Nothing of the data was declared. Names and types of columns, folders' names and the number of shards are public."
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
        *summary["privacy"]["reasons"],
    ]


def of_node_in_words(policy: Policy, declared: Declared | DeclaredTable) -> list[str]:
    """Of a node under its policy."""
    filtered = {
        "gaussian": "the Gaussian filter of total mu^2 (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023)",
        "renyi": "the Renyi filter at one order, fixed before the first release (Feldman and Zrnic 2021)",
    }[policy.accountant]
    return [
        *EVERYWHERE,
        f"A server may choose each round after it has seen earlier ones. What is promised is therefore the limit, kept "
        f"by {filtered}; the epsilon is what was spent so far.",
        NOTHING_DECLARED
        if isinstance(declared, Declared) and not declared.classes
        else f"The number of examples, {declared.examples}, is public.",
        "Noise and sampling use the operating system's randomness, which no server knows.",
        *(f"The weights {one.sha256[:12]} hold nobody's private data: {one.trained_on}." for one in policy.weights),
        *(
            ["Only apps with one of the digests under code were run."]
            if policy.guard is None
            else _guarded(policy.guard)
        ),
    ]


def _guarded(rules: GuardPolicy) -> list[str]:
    """Of a node whose apps run under a guard."""
    confined = rules.sandbox == "namespaces"
    code = "Any app was run" if rules.apps == "any" else "Only apps with one of the digests under code were run"
    return [
        f"{code}, under a guard: its answers left as clipped sums with noise, and nothing else of it did.",
        "The kernel and the installed libraries kept apps in their sandbox, and each start from all others; where the "
        "machine gave no control group, the kernel's memory for an app was not limited as a sum."
        if confined
        else "Apps ran without a sandbox: their code is trusted to send nothing by itself.",
        "Each start of an app takes the same time, whatever its data."
        if rules.pad_seconds
        else "The time of an answer is not part of this account.",
    ]
