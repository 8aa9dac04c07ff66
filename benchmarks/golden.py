"""Digests of what every method computes: `python -m benchmarks.golden OUT.json [NAME ...]`.

A change that is to move no bit has equal files before and after. Each case is a seeded run of a few rounds: its plan,
model, ledger, rounds and privacy, and what the auditor sees of two participations.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

from fedpriv.client.build import make_client
from fedpriv.common.errors import FedprivError
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.runs.planning import make_plan
from fedpriv.runs.preparation import resolve
from fedpriv.runs.start import start_run

SIZE = "num_clients=5 clients_per_round=4 num_rounds=3 engine=inprocess operations.report=false checkpoint.every=0"
#: Of methods that train no network of several layers.
MODELS = {"fedonce": "softmax", "ask": "constant", "moments": "moments"}
WAYS = [*(f"engine.trainer={name}" for name in ("sequential", "vectorised")), "strategy.secure_sum=ideal"]
WAYS.append("strategy.secure_sum=protocol")
#: Branches that the defaults do not enter.
FURTHER = {
    "fedcad": "client.obsolete_factor=0.4;server.clipping=geometric;"
    "client.obsolete_factor=0.4 client.diff_source=unclipped client.sigma_diff=0.5",
    "fedags": "client.selection=gumbel client.loss_weights=true;client.noise=laplace client.gaussian_eps=eps3;"
    "client.significance=magnitude client.threshold=text;client.svt_scale=section4 client.epsilon_split=[1,2,3]",
    "adpfl": "client.allocation=fixed;server.clipping=fixed;server.distillation_loss=mse;server.window=2;"
    "client.noise_multiplier=0",
    "coqfl": "client.group_size=3;client.bits=0;client.encode=weights;client.epsilon=null",
    "dpfl_agn": "client.clipping=adaptive client.local_steps=2;client.clipping=median;server.threshold=9",
    "anr": "server.threshold=9",
}


def cases(names: list[str]) -> Iterator[str]:
    """Overrides, as one line."""
    for name in names or METHODS:
        further = ["", *filter(None, FURTHER.get(name, "").split(";"))]
        for more, variant, way in product(further, ("repaired", "published"), WAYS):
            start = f"strategy={name} model={MODELS.get(name, 'auto')} privacy.variant={variant}"
            yield " ".join([start, *(f"strategy.{one}" for one in more.split()), way])


def computed(overrides: str, folder: Path) -> dict[str, str]:
    """Digests of one case; of one that is refused, the words."""
    try:
        config = compose([*SIZE.split(), "dataset.train_examples=200", *overrides.split()])
        resolved, worker, _ = resolve(config, folder)
        plan, client = make_plan(resolved, worker), make_client(resolved)
        summary = start_run(config, folder)
    except FedprivError as refused:
        return {"refused": str(refused)}
    seen, state = list[Any](), None
    for participation in range(2):
        release = client.audit_release(1.0, state, (8, 4), SeededNoise(0, "golden", participation))
        seen, state = [*seen, release.value.tolist(), sorted(release.statistics)], release.state
    lines = "".join((folder / part / "metrics.jsonl").read_text() for part in ("", "private")).splitlines()
    rounds = [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "timings")} for line in lines]
    privacy = {name: value for name, value in summary["privacy"].items() if name != "in_run_offer"}
    figures = {"plan": (plan.verified_epsilon, repr(plan.claim)), "rounds": rounds, "privacy": privacy, "audit": seen}
    contents = {name: (folder / name).read_bytes() for name in ("model.safetensors", "ledger.jsonl")}
    contents |= {name: json.dumps(value, default=repr).encode() for name, value in figures.items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def main(out: str, *names: str) -> None:
    """Writes the digests of all cases, or of these methods'."""
    found = {}
    for overrides in cases(list(names)):
        with tempfile.TemporaryDirectory() as place, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            found[overrides] = computed(overrides, Path(place) / "run")
    Path(out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
