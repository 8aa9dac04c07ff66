"""A real SuperLink and two guarded SuperNodes: an app that nobody changed, its own server or one with `guarded`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from rotation import together

from deploy.rehearsal import Rehearsal
from fedpriv.commands.node import main as node_command
from fedpriv.common.messages import Refusal

ROOT = Path(__file__).resolve().parents[2]
APPS = Path(__file__).parent / "apps"
pytestmark = [pytest.mark.timeout(1200), pytest.mark.rotates(5, together(4))]

POLICY = """\
counter: {counter}
budgets:
  - {{unit: example, delta: 1.0e-5, max_epsilon: {max_epsilon}, adjacency: add-or-remove-one, observer: OBSERVER}}
accountant: renyi
limits:
  min_noise_multiplier: 0.01
  max_round_epsilon: 1000.0
  max_clip_norm: 5.0
  max_sampling_rate: 1.0
  max_batch_size: 64
  max_local_steps: 100
  max_rounds: 10
guard:
  apps: [{bundle}]
  unit: row
  table: patients.csv
  shards: 3
  clip: 1.0
  noise_multiplier: 0.5
"""
SUM = """\
  noise: ddgauss
  sites: 2
  min_replies: 2
  threshold: 2
"""


class Guarded(Rehearsal):
    node_options: ClassVar[dict[str, str]] = {"guard": "any"}

    def __init__(self, folder: Path, app: Path, in_sum: bool) -> None:
        policy = POLICY.replace("OBSERVER", "secure-sum" if in_sum else "server") + (SUM if in_sum else "")
        super().__init__(folder, app, 2, 1000.0, policy)
        self._environment["PYTHONPATH"] = str(ROOT)
        for number in range(2):  # a node runs no app that nobody has tried
            options = {"policy": self.policy(number), "data": self.data(number), "guard": app, "client": number}
            assert node_command(["try", *(f"{name}={value}" for name, value in options.items())]) == 0

    def write_data(self) -> list[int]:
        for number in range(self.nodes):
            rng = np.random.default_rng(number)
            rows = rng.normal(size=(60, 4))
            labels = rows.sum(1) > 0
            lines = [
                ",".join(f"{value:.3f}" for value in [*row, label]) for row, label in zip(rows, labels, strict=True)
            ]
            self.data(number).mkdir(parents=True)
            (self.data(number) / "patients.csv").write_text("\n".join(["a,b,c,d,y", *lines]) + "\n")
        return [60, 60]

    def declared(self, number: int) -> tuple[str, ...]:
        return ()


@pytest.mark.rotates(2)
@pytest.mark.parametrize("in_sum", [True, False], ids=["sum", "own"])
def test_an_app_that_nobody_changed_runs_on_guarded_nodes(in_sum: bool, tmp_path: Path) -> None:
    app = tmp_path / "app"
    shutil.copytree(APPS / "quickstart-message", app, ignore=shutil.ignore_patterns("__pycache__"))
    run = tmp_path / "run"
    if in_sum:  # the two lines that a server changes
        server = app / "messageexample" / "server_app.py"
        text = server.read_text().replace("FedAvg()", f"fedpriv.guarded(FedAvg(), run_dir={str(run)!r})")
        server.write_text(text.replace("import numpy as np", "import fedpriv\nimport numpy as np"))
    with Guarded(tmp_path / "machines", app, in_sum) as network:
        network.start_superlink()
        for number in range(2):
            network.start_node(number)
        network._finished_before = network._finished()
        network.flwr("run", str(app), "rehearsal")
        network.wait_for_end()
        log = network.server_log()
        assert len(re.findall(r"aggregate_train: Received [12] results and 0 failures", log)) == 3, log
        for number in range(2):
            with network.ledger(number).held(thorough=True) as ledger:
                assert len(ledger.releases()) == 3, network.log(f"node-{number}")
            refused = network.data(number) / ".fedpriv" / "refusals.json"
            assert not refused.exists() or Refusal.FAILED.name.lower() not in json.loads(refused.read_text())
            assert "counts as a zero update" not in network.log(f"node-{number}", 10**6)
    if in_sum:
        privacy = json.loads((run / "summary.json").read_text())["privacy"]
        assert privacy["claimed_epsilon"] == privacy["verified_epsilon"] < 1000
        assert privacy["observer"] == "secure-sum"
