"""What `fedpriv attack` says of runs whose guarantee is known to hold, and of runs without it.

    python -m benchmarks.attack_verdicts [shifts] [faults] [root=FOLDER] [out=FOLDER] [seeds=1]

shifts: a sound run (DP-SGD, verified 0.5) whose members and non-members differ in one way (`benchmarks.attack_shifts`):
no attack may contradict it. faults: runs whose members coins chose (dataset.train_examples), sound or with a planted
fault: faults must be contradicted. root: a folder with MNIST's files; without it, digits. out: where runs are kept.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.attack_shifts import SHIFTS

RUN = ("strategy=dpsgd", "engine=inprocess", "evaluate.every=0", "model=mlp", "num_clients=5", "clients_per_round=5")
CHEAP = {"workers": 1, "control_models": 6, "shadows": 16}
CLAIM = "privacy.target_epsilon=0.5"
DIGITS = ["dataset.train_examples=700"]
FAULTS = {"sound": 1.0, "a tenth of the noise": 0.1, "no noise": 0.0}
NOISE = "clients.dpfl_agn.add_normal_finely"


def quieter(share: float) -> Callable[..., Any]:
    """Noise of ``share`` of the standard deviation that is charged for."""
    from clients.dpfl_agn import add_normal_finely as honest

    def add(value: Any, sigma: Any, noise: Any) -> Any:
        return honest(value, sigma * share, noise) if share else value

    return add


def attacked(folder: Path, options: Sequence[str], share: float = 1.0) -> list[dict[str, Any]]:
    """Trains and attacks a run; the records of all its attacks. Shadow models have the run's fault: an attacker
    knows the code.
    """
    from fedpriv.attacks.run import attack_run
    from fedpriv.common.command_line import guarded
    from fedpriv.config.compose import compose
    from fedpriv.runs.planning import with_target
    from fedpriv.runs.start import start_run

    with patch(NOISE, quieter(share)), open(os.devnull, "w") as quiet, redirect_stdout(quiet), redirect_stderr(quiet):
        if not (folder / "summary.json").exists():
            start_run(with_target(compose([*RUN, *options])), folder)
        guarded(lambda: attack_run(str(folder), "lira,ml_leaks,white_box", CHEAP))
    return [json.loads(path.read_text()) for path in sorted((folder / "attacks").glob("*.json"))]


def line(name: str, kept: dict[str, Any]) -> str:
    verdict = str(kept.get("verdict") or "not shown")
    area = kept["figures"]["auc"]["value"] if kept["shown"] else None
    bound = kept.get("bound") or {}
    figures = [f"{area:.3f}" if area is not None else "–"]
    figures += [f"{bound[key]:.2f}" if key in bound else "–" for key in ("epsilon_lower", "allowed", "attainable")]
    inputs = f"{kept['setting']['inputs_p_value']:.2g}" if "inputs_p_value" in kept["setting"] else "–"
    return f"| {name} | {kept['attack']} | {' | '.join(figures)} | {inputs} | {verdict.partition(':')[0]} |"


def main(arguments: Sequence[str]) -> None:
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    wanted = [argument for argument in arguments if "=" not in argument] or ["shifts", "faults"]
    root, out = options.get("root"), Path(options.get("out") or tempfile.mkdtemp())
    if root:
        os.environ["FEDPRIV_SHIFTED"] = root
    print("| run | attack | AUC | audited ≥ | allowed | at most | p of the inputs | verdict |")
    print("|---|---|--:|--:|--:|--:|--:|---|")
    if "shifts" in wanted:
        for name in SHIFTS:
            shifted = ("dataset=custom", f"dataset.path=benchmarks.attack_shifts.{name}", "dataset.auxiliary=0")
            size = ("model=linear", "num_rounds=60", f"local.batch_size={500 if root else 60}", "local.lr=2.0")
            for kept in attacked(out / name, [*shifted, *size, CLAIM]):
                print(line(name, kept), flush=True)
    if "faults" in wanted:
        source = ["dataset=mnist", f"dataset.root={root}", "dataset.train_examples=2000"] if root else DIGITS
        size = ("num_rounds=40", "strategy.client.local_steps=20", "local.batch_size=50", "local.lr=4.0")
        for seed in range(int(options.get("seeds", 1))):
            for name, share in FAULTS.items():
                for kept in attacked(out / f"{share:g}-{seed}", [*source, *size, CLAIM, f"seed={seed}"], share):
                    print(line(f"{name}, seed {seed}", kept), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
