"""`make deploy-demo`: a deployment rehearsed on this machine; exits with 1 unless everything went as expected.

A SuperLink and three SuperNodes, TLS and node keys, three folders of pictures, three rounds of Fed-CAD; then the
result and every node's ledger are checked, and everything is stopped.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from deploy.rehearsal import Failed, Rehearsal
from fedpriv.deployment.policy import read_policy

APP = Path(__file__).resolve().parents[1]
ROUNDS = 3
LEAST_ACCURACY = 0.5


def main() -> int:
    began = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {words}", flush=True)

    with tempfile.TemporaryDirectory(prefix="fedpriv-rehearsal-") as folder:
        try:
            rehearse(Path(folder), say)
        except Failed as error:
            print(f"the rehearsal failed: {error}", file=sys.stderr)
            return 1
    say("everything is stopped")
    return 0


def rehearse(folder: Path, say: Callable[[str], None]) -> None:
    with Rehearsal(folder, APP) as machines:
        say(f"credentials, policies and ledgers of {machines.nodes} nodes, {machines.counts} pictures")
        machines.start_superlink()
        say(f"SuperLink on port {machines.port}, TLS, node keys registered")
        for number in range(machines.nodes):
            machines.start_node(number)
        run_dir = folder / "run"
        machines.submit(machines.overrides(run_dir))
        say("three SuperNodes started, the job submitted")
        machines.wait_for_summary(run_dir)
        check(machines, run_dir, say)


def check(machines: Rehearsal, run_dir: Path, say: Callable[[str], None]) -> None:
    """Checks the result, and that every node booked what it sent."""
    summary = json.loads((run_dir / "summary.json").read_text())
    privacy = summary["privacy"]
    rounds, accuracy = summary["rounds"], summary["accuracy"]["final"]
    say(f"{rounds} rounds, accuracy {accuracy:.3f}, verified epsilon {privacy['verified_epsilon']:.4g}")
    if rounds != ROUNDS or not LEAST_ACCURACY < accuracy <= 1:
        raise Failed(f"{rounds} rounds, accuracy {accuracy}, more than {LEAST_ACCURACY} was expected")
    for number in range(machines.nodes):
        with machines.ledger(number).held() as ledger:
            releases = ledger.releases()
        (spent,) = read_policy(machines.policy(number)).spent(releases).values()
        say(f"node {number}: {len(releases)} messages booked, epsilon {spent:.4g}")
        if len(releases) != ROUNDS or abs(spent - privacy["verified_epsilon"]) > 1e-9:
            raise Failed(f"node {number} booked {len(releases)} messages, epsilon {spent}")


if __name__ == "__main__":
    sys.exit(main())
