"""Whether the attacks tell settings that leak from settings that do not.

    python -m benchmarks.attack_settings [root=FOLDER] [out=FOLDER] [seeds=4] [first=1] [shadows=16] [attacks=NAME,...]

Three settings leak (no noise, or so little that epsilon is in the thousands), three have a verified epsilon of at most
8. root: a folder with MNIST's files: 4,000 digits of 20 clients; without it the built-in digits, 700 of 10 clients. The
members are chosen by coins (dataset.train_examples). Seed 0 served to choose the options of the attacks, and is no seed
of the table. The last columns pool the scores of all seeds, each relative to its threshold.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

FEDAVG = ("strategy=fedavg",)
DPSGD = ("strategy=dpsgd", "local.lr=0.5")
FEDLDP = ("strategy=fedldp",)
#: name -> (whether it leaks, overrides)
SETTINGS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "fedavg, no noise": (True, FEDAVG),
    "fedavg, no noise, 5 local epochs": (True, (*FEDAVG, "local.epochs=5")),
    "dpsgd, noise multiplier 0.02": (True, (*DPSGD, "strategy.client.noise_multiplier=0.02")),
    "dpsgd, epsilon 8": (False, (*DPSGD, "privacy.target_epsilon=8")),
    "dpsgd, epsilon 1": (False, (*DPSGD, "privacy.target_epsilon=1")),
    "fedldp, epsilon 8 for a client": (False, (*FEDLDP, "privacy.target_epsilon=8")),
}
ROUNDS = ("num_rounds=10", "attack.keep_updates=true", "attack.update_every=3", "evaluate.every=0", "engine=inprocess")
ATTACKS = "ml_leaks,white_box,lira,rmia,update_product,update_cosine,update_likelihood"


def attacked(
    folder: Path, options: Sequence[str], attacks: str, shadows: int
) -> dict[str, tuple[dict[str, Any], Any, float]]:
    """Trains and attacks a run. Attack -> (record, scores, CPU seconds of this process)."""
    from fedpriv.attacks import experiment
    from fedpriv.attacks.attack_records import guarantee, record
    from fedpriv.attacks.run import changed
    from fedpriv.config.compose import compose, read_config
    from fedpriv.runs.folder import RunFolder
    from fedpriv.runs.planning import with_target
    from fedpriv.runs.start import start_run

    found = {}
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet):
        if not (folder / "summary.json").exists():
            start_run(with_target(compose([*ROUNDS, *options])), folder)
        config = read_config(folder)
        changes = {"shadows": shadows, "members": 10_000, "workers": 1}
        config = config.model_copy(update={"attack": changed(config.attack, changes)})
        work = experiment.Experiment(RunFolder(folder), config)
        summary = work.folder.read_summary() or {}
        for name in attacks.split(","):
            began = time.process_time()
            result = work.run(name)
            kept = record(work, result, guarantee(summary["privacy"], name))
            found[name] = (kept, result.scored if result.shown else None, time.process_time() - began)
    return found


def main(arguments: Sequence[str]) -> None:
    from fedpriv.attacks.metrics import judge
    from fedpriv.attacks.subject import Scored

    options = dict(argument.split("=", 1) for argument in arguments)
    root, out = options.get("root"), Path(options.get("out") or tempfile.mkdtemp())
    first, seeds = int(options.get("first", 1)), int(options.get("seeds", 4))
    attacks, shadows = options.get("attacks", ATTACKS), int(options.get("shadows", 16))
    source = (
        ("dataset=mnist", f"dataset.root={root}", "dataset.train_examples=4000", "num_clients=20")
        if root
        else ("dataset.train_examples=700", "num_clients=10")
    )
    size = (*source, f"clients_per_round={20 if root else 10}", "model=mlp", "model.hidden=32")
    print("| setting | leaks | attack | AUC of each seed | shown | AUC | TPR at 1 % FPR | TPR at 0.1 % FPR | CPU s |")
    print("|---|---|---|---|--:|--:|--:|--:|--:|")
    for number, (name, (leaks, own)) in enumerate(SETTINGS.items()):
        seen: dict[str, list[tuple[dict[str, Any], Any, float]]] = {}
        for seed in range(first, first + seeds):
            folder = out / f"{number}-{seed}"
            found = attacked(folder, (*size, *own, f"seed={seed}", f"attack.seed={seed}"), attacks, shadows)
            for attack, one in found.items():
                seen.setdefault(attack, []).append(one)
        for attack, runs in seen.items():
            shown = [scored for _, scored, _ in runs if scored is not None]
            line = [name, "yes" if leaks else "no", attack]
            areas = [kept["figures"]["auc"]["value"] for kept, scored, _ in runs if scored is not None]
            line += [", ".join(f"{area:.3f}" for area in areas), f"{len(shown)} of {len(runs)}"]
            if shown:
                pooled = Scored.pooled(shown)
                judged = judge(pooled.members, pooled.others, 0.0)
                points = [judged.at_rates[rate] for rate in (0.01, 0.001)]
                line += [
                    str(judged.auc),
                    *("too few" if point is None else str(point.true_positives) for point in points),
                ]
            else:
                line += ["–"] * 3
            print(f"| {' | '.join(line)} | {np.mean([seconds for *_, seconds in runs]):.0f} |", flush=True)
            verdicts = [str(kept.get("verdict") or kept.get("reason")).partition(":")[0] for kept, *_ in runs]
            (out / f"{number}-{attack}.json").write_text(json.dumps({"setting": name, "verdicts": verdicts}))


if __name__ == "__main__":
    main(sys.argv[1:])
