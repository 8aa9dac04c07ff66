"""Whether the attacks tell settings that leak from settings that do not.

    python -m benchmarks.attack_settings [root=FOLDER] [out=FOLDER] [seeds=4] [first=1] [shadows=16] [attacks=NAME,...]

Three settings leak (no noise, or so little that epsilon is in the thousands), three have a verified epsilon of at most
8. root: a folder with MNIST's files: 4,000 digits of 20 clients; without it the built-in digits, 700 of 10 clients. The
members are chosen by coins (dataset.train_examples). Seed 0 served to choose the options of the attacks, and is no seed
of the table. The last columns pool the scores of all seeds, each relative to its threshold.

Each attack on each run is kept in out as soon as it is done, and a second call goes on with those that are missing. The
table at the end is of all that is there.
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


def attacked(folder: Path, options: Sequence[str], attacks: Sequence[str], shadows: int) -> None:
    """Trains a run and attacks it; writes ATTACK.npz (scores of members and others, less the threshold) and ATTACK.json
    (AUC, verdict or the reason why nothing is shown, CPU seconds of this process) for each attack.
    """
    from fedpriv.attacks import experiment
    from fedpriv.attacks.attack_records import guarantee, record
    from fedpriv.attacks.run import changed
    from fedpriv.config.compose import compose, read_config
    from fedpriv.runs.folder import RunFolder
    from fedpriv.runs.planning import with_target
    from fedpriv.runs.start import start_run

    missing = [name for name in attacks if not (folder / f"{name}.json").exists()]
    if not missing:
        return
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet):
        if not (folder / "summary.json").exists():
            start_run(with_target(compose([*ROUNDS, *options])), folder)
        config = read_config(folder)
        changes = {"shadows": shadows, "members": 10_000, "workers": 1}
        config = config.model_copy(update={"attack": changed(config.attack, changes)})
        work = experiment.Experiment(RunFolder(folder), config)
        summary = work.folder.read_summary() or {}
        for name in missing:
            began = time.process_time()
            result = work.run(name)
            kept = record(work, result, guarantee(summary["privacy"], name))
            scored = result.scored
            if result.shown:
                members, others = scored.members - scored.threshold, scored.others - scored.threshold
                np.savez_compressed(folder / f"{name}.npz", members=members, others=others)
            said = str(kept.get("verdict") or kept.get("reason"))
            area = kept["figures"]["auc"]["value"] if result.shown else None
            facts = {"auc": area, "said": said, "seconds": time.process_time() - began}
            (folder / f"{name}.json").write_text(json.dumps(facts))


def row(folders: Sequence[Path], attack: str) -> list[str] | None:
    """Cells of one attack on these runs; None where it is done on none of them."""
    from fedpriv.attacks.metrics import judge

    done = [folder for folder in folders if (folder / f"{attack}.json").exists()]
    if not done:
        return None
    facts = [json.loads((folder / f"{attack}.json").read_text()) for folder in done]
    shown = [np.load(folder / f"{attack}.npz") for folder in done if (folder / f"{attack}.npz").exists()]
    areas = ", ".join(f"{one['auc']:.3f}" for one in facts if one["auc"] is not None)
    cells = [areas, f"{len(shown)} of {len(done)}", "–", "–", "–"]
    if shown:
        members, others = (np.concatenate([one[side] for one in shown]) for side in ("members", "others"))
        judged = judge(members, others, 0.0)
        points = [judged.at_rates[rate] for rate in (0.01, 0.001)]
        cells[2:] = [str(judged.auc), *("too few" if one is None else str(one.true_positives) for one in points)]
    return [*cells, f"{np.mean([one['seconds'] for one in facts]):.0f}"]


def main(arguments: Sequence[str]) -> None:
    options = dict(argument.split("=", 1) for argument in arguments)
    root, out = options.get("root"), Path(options.get("out") or tempfile.mkdtemp())
    first, seeds = int(options.get("first", 1)), int(options.get("seeds", 4))
    attacks, shadows = options.get("attacks", ATTACKS).split(","), int(options.get("shadows", 16))
    source = (
        ("dataset=mnist", f"dataset.root={root}", "dataset.train_examples=4000", "num_clients=20")
        if root
        else ("dataset.train_examples=700", "num_clients=10")
    )
    size = (*source, f"clients_per_round={20 if root else 10}", "model=mlp", "model.hidden=32")
    folders = {
        name: [out / f"{number}-{seed}" for seed in range(first, first + seeds)] for number, name in enumerate(SETTINGS)
    }
    for place, seed in enumerate(range(first, first + seeds)):
        for name, (_, own) in SETTINGS.items():
            attacked(folders[name][place], (*size, *own, f"seed={seed}", f"attack.seed={seed}"), attacks, shadows)
    print("| setting | leaks | attack | AUC of each seed | shown | AUC | TPR at 1 % FPR | TPR at 0.1 % FPR | CPU s |")
    print("|---|---|---|---|--:|--:|--:|--:|--:|")
    for name, (leaks, _) in SETTINGS.items():
        for attack in attacks:
            cells = row(folders[name], attack)
            if cells is not None:
                print(f"| {name} | {'yes' if leaks else 'no'} | {attack} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
