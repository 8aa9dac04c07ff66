"""What canaries in real runs find, beside what is verified for the same runs and what they could find at most.

python -m benchmarks.bench_canaries [seeds=2]
"""

from __future__ import annotations

import sys

from fedpriv.attacks.client_canaries import audit_training
from fedpriv.client.build import make_client
from fedpriv.config.compose import compose
from fedpriv.privacy.composition import compose as composed
from fedpriv.runs.planning import most_participations, planned_events

EXAMPLES = ["num_clients=6", "clients_per_round=6", "local.batch_size=40", "local.lr=0.5"]
NOISE = ((8, 10), (4, 10), (2, 10), (1, 10), (1, 40), (0.5, 10), (0.5, 40), (0.3, 40), (0.25, 60))
OTHERS = ("dpsgd model=mlp", 1, 40), ("dpsgd model=mlp", 0.5, 20), ("anr", 1, 20), ("dpfl_agn", 1, 20)
CLIENTS = ((5, 1), (5, 4), (10, 1), (10, 4), (20, 1))


def line(name: str, options: list[str], seeds: int) -> str:
    """One row of the table: the method, the verified epsilon, the bounds of each seed, and their ceiling."""
    config = compose([*options, "evaluate.every=0", "engine=inprocess"])
    events = planned_events(make_client(config), most_participations(config))
    verified = composed(events, config.privacy.delta).epsilon
    found = [audit_training(config, confidence=0.95, seed=seed) for seed in range(seeds)]
    bounds = ", ".join(f"{one.epsilon_lower:.2f}" for one in found)
    verdicts = ", ".join(sorted({one.verdict(verified) for one in found}))
    coins = f"{found[0].canaries} in {found[0].runs}"
    return f"| {name} | {coins} | {verified:.3g} | {bounds} | {found[0].attainable:.2f} | {verdicts} |"


def main(arguments: list[str]) -> None:
    seeds = int(dict(one.split("=", 1) for one in arguments).get("seeds", 2))
    print("| run | coins, runs | verified ≤ | audited ≥ | at most | verdict |\n|---|---|--:|---|--:|---|")
    for method, sigma, rounds in (*(("dpsgd", *one) for one in NOISE), *OTHERS):
        noise = [f"strategy.client.noise_multiplier={sigma}", f"num_rounds={rounds}"]
        name = f"{method}, sigma {sigma:g}, {rounds} rounds"
        print(line(name, [*EXAMPLES, *f"strategy={method}".split(), *noise], seeds), flush=True)
    for clients, sigma in CLIENTS:
        size = [f"num_clients={clients}", f"clients_per_round={clients}", "num_rounds=3"]
        noise = ["strategy=fedldp", f"strategy.client.noise_multiplier={sigma}"]
        print(line(f"fedldp, {clients} clients, sigma {sigma:g}, 3 rounds", [*size, *noise], seeds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
