"""Runs every job by fedpriv and by its peers, and writes parity/results.json and the table of docs/parity.md.

    python -m parity [JOB...] [seeds=FIRST-LAST]

JOB, seeds: measures these alone, prints the table and writes nothing outside build/. What was measured lies in
build/parity/DIGEST, with a digest of fedpriv, the jobs and the peers' modules: an interrupted call goes on, and a
changed line starts anew. Exit code 1 where a pair does not agree, 2 for an unknown argument.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedpriv
from fedpriv.config.compose import compose
from fedpriv.engines.worker import Worker
from fedpriv.training.sequential import normalise
from parity import rule
from parity.jobs import COMMON, JOBS, SEEDS

ROOT = Path(__file__).resolve().parents[1]
BUILD, RESULTS, PAGE = ROOT / "build/parity", ROOT / "parity/results.json", ROOT / "docs/parity.md"
BEGIN, END = "<!-- the table of parity/results.json, by `make parity` -->", "<!-- end of the table -->"
PYTHON = BUILD / "env/bin/python"


def export(options: Sequence[str], seeds: Iterable[int], folder: Path) -> None:
    """What the peers read (`parity.peers`): each seed's clients, rows and first model, and the job's numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        worker = Worker(compose([*COMMON, *options, f"seed={seed}"]))
        config, data, chosen = worker.config, worker.data, worker.config.strategy.options
        assert config.local.steps or config.local.epochs == 1, "peers know steps, or one epoch"
        train, test = data.dataset.train, data.dataset.test.chosen(data.test)
        owner = np.full(len(train), -1)
        for client in range(config.num_clients):
            owner[data.train_indices(client)] = client
        trained = owner >= 0
        layers = [parameter.detach().clone().numpy() for parameter in worker.model.module.parameters()]
        arrays: dict[str, Any] = {f"layer{number}": layer for number, layer in enumerate(layers)}
        arrays |= {"owner": owner[trained], "y": train.targets[trained].astype(np.int64)}
        arrays["y_test"] = test.targets.astype(np.int64)
        for name, inputs in (("x", train.inputs[trained]), ("x_test", test.inputs)):
            arrays[name] = normalise(inputs, data.dataset.mean, data.dataset.std).flatten(1).numpy()
        np.savez(folder / f"{seed}.npz", **arrays)
    adam = {"lr": chosen.lr, "betas": (chosen.beta1, chosen.beta2), "tau": chosen.tau}
    terms = {
        "method": config.strategy.name,
        "rounds": config.num_rounds,
        "clients": config.num_clients,
        "cohort": config.clients_per_round,
        "poisson": chosen.client_sampling == "poisson",
        "lr": config.local.lr,
        "batch": config.local.batch_size,
        "steps": config.local.steps,
        "local_steps": getattr(chosen, "local_steps", None),
        "mu": getattr(chosen, "proximal_mu", 0.0),
        "adam": adam if chosen.optimizer == "adam" else None,
        "clip": getattr(chosen, "clip_norm", None),
        "noise": getattr(chosen, "noise_multiplier", None),
        "delta": config.privacy.delta,
        "layers": len(layers),
        "rows": int(trained.sum()),
    }
    (folder / "terms.json").write_text(json.dumps(terms, indent=1))


def ours(options: Sequence[str], seeds: Iterable[int], folder: Path) -> dict[str, Any]:
    """fedpriv's accuracy of each seed, and the verified epsilon: None where it is infinite or not the same of all."""
    accuracy, epsilons = [], set()
    for seed in seeds:
        shutil.rmtree(folder, ignore_errors=True)
        summary = fedpriv.run([*COMMON, *options, f"seed={seed}"], folder=folder, quiet=True).summary
        accuracy.append(summary["accuracy"]["final"])
        epsilons.add(summary["privacy"]["verified_epsilon"])
    shutil.rmtree(folder)
    first, *others = epsilons
    return {"accuracy": accuracy, "epsilon": first if isinstance(first, float) and not others else None}


def theirs(peer: str, folder: Path) -> dict[str, Any]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [str(PYTHON), "-m", f"parity.by_{peer}", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def digest() -> str:
    """Of all that decides what is measured."""
    folders = ("fedpriv", "strategies", "clients", "conf")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".yaml")]
    files += [ROOT / "parity" / name for name in ("jobs.py", "peers.py", "requirements.txt")]
    files += (ROOT / "parity").glob("by_*.py")
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(files))).hexdigest()[:12]


def once(file: Path, make: Any) -> dict[str, Any]:
    if not file.exists():
        file.with_suffix(".tmp").write_text(json.dumps(make()))
        file.with_suffix(".tmp").replace(file)
    return dict(json.loads(file.read_text()))


def measured(job: str, folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    options, planted = JOBS[job].options, JOBS[job].planted
    if not (folder / "terms.json").exists():
        export(options, seeds, folder)
    found = {
        "fedpriv": once(folder / "fedpriv.json", lambda: ours(options, seeds, folder / "run")),
        "planted": once(folder / "planted.json", lambda: ours([*options, *planted], seeds, folder / "run")),
    }
    for peer in JOBS[job].peers:
        found[peer] = once(folder / f"{peer}.json", lambda peer=peer: theirs(peer, folder))
        print(f"parity: {job} by {peer} is done", flush=True)
    return found


def faults(results: dict[str, Any]) -> dict[tuple[str, str], str | None]:
    """(job, peer) -> what is wrong, or None."""
    found = {}
    for name, job in ((name, JOBS[name]) for name in results):
        mine = results[name]["fedpriv"]
        for peer, accountant in job.peers.items():
            other, planted = results[name][peer], results[name]["planted"]["accuracy"]
            epsilons = (None if accountant == "none" else mine["epsilon"], other["epsilon"])
            found[name, peer] = rule.fault(mine["accuracy"], other["accuracy"], planted, epsilons, accountant)
    return found


def table(results: dict[str, Any]) -> str:
    lines = ["| job | what it is | planted fault |", "|---|---|---|"]
    lines += [f"| `{name}` | {job.what} | `{' '.join(job.planted)}` |" for name, job in JOBS.items() if name in results]
    head = "| job | peer | fedpriv | peer | difference | with the planted fault | epsilon | peer | |"
    lines += ["", head, "|---|---|---|---|---|---|---|---|---|"]
    wrong = faults(results)
    for name, job in ((name, JOBS[name]) for name in results):
        mine, planted = results[name]["fedpriv"], results[name]["planted"]["accuracy"]
        for peer, accountant in job.peers.items():
            other = results[name][peer]
            means = [f"{np.mean(one['accuracy']):.3f}" for one in (mine, other)]
            gaps = [rule.difference(one, other["accuracy"]) for one in (mine["accuracy"], planted)]
            shown = [f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]" for gap in gaps]
            epsilons = ["", ""]
            if accountant != "none":
                epsilons = [f"{one['epsilon']:.3f}" for one in (mine, other)]
            verdict = "agrees" if wrong[name, peer] is None else f"**{wrong[name, peer]}**"
            lines.append("| " + " | ".join([f"`{name}`", peer, *means, *shown, *epsilons, verdict]) + " |")
    return "\n".join(lines) + "\n"


def write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n\n" + table(results) + "\n" + END + rest.partition(END)[2])


def main(arguments: Sequence[str]) -> int:
    jobs, seeds = [job for job in JOBS if job in arguments], SEEDS
    folder = BUILD / digest()
    for argument in (argument for argument in arguments if argument not in JOBS):
        if not (asked := re.fullmatch(r"seeds=(\d+)-(\d+)", argument)) or int(asked[2]) < int(asked[1]) + 4:
            print(f"parity: {argument}; allowed: {', '.join(JOBS)}, and seeds=FIRST-LAST, at least five")
            return 2
        seeds, folder = range(int(asked[1]), int(asked[2]) + 1), folder / argument
    results = {job: measured(job, folder / job, seeds) for job in jobs or JOBS}
    print(table(results))
    if not arguments:
        write(results)
    return int(any(faults(results).values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
