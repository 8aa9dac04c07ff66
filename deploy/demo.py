"""`make deploy-demo`: a deployment rehearsed on this machine; exits with 1 unless everything went as expected.

A SuperLink and four SuperNodes, TLS and node keys, four folders of pictures, three rounds of Fed-CAD; then a round
under a secure sum, in which one node is killed after its masked vector was booked. `make deploy-demo-tables`: five
hospitals with a CSV file each, whose single rows are protected in a secure sum of all five. Results and every node's
ledger are checked, and everything is stopped.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from deploy.hospitals import ROWS_POLICY, Hospitals
from deploy.rehearsal import SUM_POLICY, Failed, Rehearsal
from fedpriv.commands.predict import main as predict
from fedpriv.deployment.policy import read_policy

APP = Path(__file__).resolve().parents[1]
ROUNDS = 3
LEAST_ACCURACY = 0.5
NODES = 4
#: Fed-CAD's three rounds cost 747, by the filter of a Renyi order more.
MAX_EPSILON = 3000.0
#: The node that is killed.
KILLED = 3
#: Seconds for which the server waits for it.
PATIENCE = 40


#: Of the hospitals, and what a row may cost at most.
HOSPITALS, MAX_ROW_EPSILON, HOSPITAL_ROUNDS, LEAST_AUC = 5, 8.0, 6, 0.9


def main(course: str = "pictures") -> int:
    began = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {words}", flush=True)

    with tempfile.TemporaryDirectory(prefix="fedpriv-rehearsal-") as folder:
        try:
            {"pictures": rehearse, "tables": rehearse_tables}[course](Path(folder), say)
        except Failed as error:
            print(f"the rehearsal failed: {error}", file=sys.stderr)
            return 1
    say("everything is stopped")
    return 0


def rehearse(folder: Path, say: Callable[[str], None]) -> None:
    with Rehearsal(folder, APP, NODES, MAX_EPSILON, SUM_POLICY) as machines:
        say(f"credentials, policies and ledgers of {machines.nodes} nodes, {machines.counts} pictures")
        machines.start_superlink()
        say(f"SuperLink on port {machines.port}, TLS, node keys registered")
        for number in range(machines.nodes):
            machines.start_node(number)
        run_dir = folder / "run"
        machines.submit(machines.overrides(run_dir))
        say("four SuperNodes started, the job submitted")
        machines.wait_for_summary(run_dir)
        check(machines, run_dir, say)
        secure_sum(machines, folder / "sum", say)


def rehearse_tables(folder: Path, say: Callable[[str], None]) -> None:
    """Six rounds of dpsum on the hospitals' tables, and the predictions of its model for the server's own rows."""
    with Hospitals(folder, APP, HOSPITALS, MAX_ROW_EPSILON, ROWS_POLICY) as machines:
        say(f"credentials, policies and ledgers of {machines.nodes} nodes, {machines.counts} rows")
        say(f"one schema for all, {machines.schema}")
        machines.start_superlink()
        for number in range(machines.nodes):
            machines.start_node(number)
        run_dir = folder / "run"
        machines.submit(machines.overrides(run_dir))
        say("five SuperNodes started, the job submitted")
        machines.wait_for_summary(run_dir)
        check_tables(machines, run_dir, say)
        ask(machines, run_dir, folder / "asked", say)
    more = folder / "predicted.csv"
    if predict([f"run={run_dir}", str(folder / "server/test.csv"), f"out={more}"]):
        raise Failed("predict gave no table")
    first = next(csv.DictReader(more.read_text().splitlines(), delimiter=";"))
    say(f"predicted: {first['diagnosis predicted']} is the first row's class")


def check_tables(machines: Rehearsal, run_dir: Path, say: Callable[[str], None]) -> None:
    """Checks the result, and that every node booked what it sent."""
    summary = json.loads((run_dir / "summary.json").read_text())
    auc, accuracy = summary["metrics"]["final"]["auc"], summary["accuracy"]["final"]
    epsilon, unit = summary["privacy"]["verified_epsilon"], summary["privacy"]["unit"]
    say(f"{summary['rounds']} rounds, accuracy {accuracy:.3f}, AUC {auc:.3f}, epsilon {epsilon:.4g} for one {unit}")
    if summary["rounds"] != HOSPITAL_ROUNDS or not LEAST_AUC < auc <= 1:
        raise Failed(f"{summary['rounds']} rounds, AUC {auc}, more than {LEAST_AUC} was expected")
    for number in range(machines.nodes):
        with machines.ledger(number).held() as ledger:
            releases = ledger.releases()
        spent, *_ = read_policy(machines.policy(number)).spent(releases).values()
        say(f"node {number}: {len(releases)} messages booked, epsilon {spent:.4g}")
        if len(releases) != HOSPITAL_ROUNDS or abs(spent - epsilon) > 1e-9:
            raise Failed(f"node {number} booked {len(releases)} messages, epsilon {spent}")


def ask(machines: Hospitals, trained: Path, run_dir: Path, say: Callable[[str], None]) -> None:
    """A regression, curves (as if an area were a time) and the model's score, in one list."""
    machines.approve(trained)
    machines.submit(machines.asking(trained, run_dir))
    machines.wait_for_summary(run_dir)
    answers = [line.split(",") for line in (run_dir / "answers.csv").read_text().splitlines()[1:]]
    kinds = {answer[0].partition(":")[0] for answer in answers}
    say(f"asked: {len(answers)} answers about {', '.join(sorted(kinds))}")
    if kinds != {"linear", "survival", "score"}:
        raise Failed(f"answers are about {kinds}")


def secure_sum(machines: Rehearsal, run_dir: Path, say: Callable[[str], None]) -> None:
    """One round whose sum three nodes open, the fourth being killed between TRAIN and UNMASK."""
    method = f"strategy=ddgauss strategy.secure_sum=protocol strategy.server.min_replies={NODES - 1}"
    noise = f"strategy.client.noise_multiplier=1.0 num_rounds=1 engine.round_timeout={PATIENCE}"
    machines.submit(machines.overrides(run_dir, method, noise))
    machines.wait_until(lambda: has_signed(machines, KILLED), "nobody signed who is in the sum")
    machines.kill_node(KILLED)
    say(f"node {KILLED}, whose masked vector is in the sum, has signed for it and was killed")
    machines.wait_for_summary(run_dir)
    row = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    figures, privacy = row["figures"], json.loads((run_dir / "summary.json").read_text())["privacy"]
    survivors, after, epsilon = figures["survivors"], figures["dropped_after_upload"], privacy["verified_epsilon"]
    say(f"a sum of {survivors} vectors, opened by {survivors - after} nodes: epsilon {epsilon:.4g}")
    if (survivors, after) != (NODES, 1) or any(booked(machines, number) != ROUNDS + 1 for number in range(NODES)):
        raise Failed(f"{survivors} vectors are in the sum, and {after} nodes did not help to open it: one was killed")


def has_signed(machines: Rehearsal, number: int) -> bool:
    """Whether a node has written a survivor set to its disk, which it does before it signs it."""
    states = (machines.data(number) / ".fedpriv/runs").glob("*.safetensors")
    return any(b'"survivors":[0' in state.read_bytes() for state in states)


def booked(machines: Rehearsal, number: int) -> int:
    """Messages in a node's ledger, as its file stands."""
    lines = (machines.data(number) / ".fedpriv/ledger.jsonl").read_text().splitlines()
    return sum('"run"' in line for line in lines)


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
        spent, *_ = read_policy(machines.policy(number)).spent(releases).values()
        say(f"node {number}: {len(releases)} messages booked, epsilon {spent:.4g}")
        if len(releases) != ROUNDS or abs(spent - privacy["verified_epsilon"]) > 1e-9:
            raise Failed(f"node {number} booked {len(releases)} messages, epsilon {spent}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
