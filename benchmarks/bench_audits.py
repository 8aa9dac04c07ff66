"""What an audit shows of every method at the run's own dimension, and whether it sees a fault.

    python -m benchmarks.bench_audits [--trials 6000] [--write docs/results/attacks.md]

Every method as it comes, with 20 clients in 2 rounds on digits, at epsilon 4 where its noise can be chosen. Audit
seed 0, confidence 0.95. `expected` is what the best attack on the verified privacy curve shows in 95 % of audits. The
fault: a quarter of the noise is released with, or at four times the epsilon.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpriv.attacks.contract_check import check_contract
from fedpriv.attacks.release_audit import AuditedScope, audit_mechanism, release_size
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF, compose
from fedpriv.config.own_options import group_choices
from fedpriv.config.schema import Config
from fedpriv.runs.planning import most_participations, with_target

SIZE = ("num_rounds=2", "num_clients=20", "clients_per_round=20")
#: What is released with, in place of what is booked.
FAULTS: dict[str, Callable[[Any], Any]] = {
    "noise_multiplier": lambda given: given / 4,
    "trials": lambda given: given // 16,
    "epsilon": lambda given: given * 4,
}
BEGIN, END = "<!-- audits: written by benchmarks/bench_audits.py -->", "<!-- end of audits -->"


def config_of(name: str) -> Config:
    try:
        return with_target(compose([f"strategy={name}", *SIZE, "privacy.target_epsilon=4"]))
    except OptionError:
        return compose([f"strategy={name}", *SIZE])


def row(name: str, trials: int) -> str:
    """A row of the table."""
    config = config_of(name)
    client = make_client(config)
    many = client.observed_rounds(most_participations(config))
    settings: dict[str, Any] = {"delta": config.privacy.delta, "confidence": 0.95, "seed": 0}
    settings |= {"own": release_size(config, client), "trials": trials}
    sound = audit_mechanism(client, many, **settings)
    contract = check_contract(config)
    held = "–" if contract.skipped else "BROKEN" if contract.findings else f"{len(contract.held)} hold"
    fault = {name: change(given) for name, change in FAULTS.items() if (given := getattr(client.options, name, None))}
    faulty = audit_mechanism(make_client(config, **fault), many, **settings) if fault else sound
    return "| " + " | ".join([f"`{name}`", *figures(sound), seen(faulty, sound.verified), held]) + " |"


def figures(scope: AuditedScope) -> list[str]:
    shown = [f"{scope.audit.trials:,}", word(scope.verified), word(scope.expected), word(scope.audit.epsilon_lower)]
    return [f"{scope.dimension:,}", *shown]


def seen(faulty: AuditedScope, verified: float) -> str:
    """Whether the faulty release contradicts what is verified of the method."""
    found = faulty.audit.epsilon_sampled
    if math.isinf(verified):
        return "–"
    return f"found ({found:.3g})" if found > verified else f"not found ({found:.3g})"


def word(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=6000)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    rows = [
        "| method | numbers | trials | verified | expected | audited | fault | contract |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in group_choices(CONF / "strategy"):
        start = time.process_time()
        rows.append(row(name, asked.trials))
        print(rows[-1], f"{time.process_time() - start:.0f} s", flush=True)
    if asked.write:
        text = asked.write.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        asked.write.write_text("\n".join([before + BEGIN, *rows, END + after]))


if __name__ == "__main__":
    main()
