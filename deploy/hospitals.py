"""Five hospitals with a CSV file each, as nodes of a rehearsal: scikit-learn's breast cancer table, divided.

`make deploy-demo-tables` trains with it.
"""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np

from deploy.rehearsal import Rehearsal
from fedpriv.config.own_options import CONF
from fedpriv.data.table_schema import read_schema

#: Of nodes whose single rows are protected, in a secure sum of all of them.
ROWS_POLICY = """\
counter: {counter}
budgets:
  - {{unit: example, delta: 1.0e-4, max_epsilon: {max_epsilon}, adjacency: add-or-remove-one, observer: secure-sum}}
accountant: renyi
strategies: [dpsum, ask]
queries: {{kinds: [linear, survival, score], columns: [diagnosis, mean radius, mean area], share: 0.9}}
weights: []
bundles: [{bundle}]
schemas: [{schema}]
limits:
  min_noise_multiplier: 1.0
  max_round_epsilon: 1.0
  max_clip_norm: 1.0
  max_sampling_rate: 1.0
  max_batch_size: 64
  max_local_steps: 100
  max_rounds: 10
  min_survivors: 3
"""


class Hospitals(Rehearsal):
    """Of nodes that hold a CSV file each, every second one written with commas for points."""

    def write_data(self) -> list[int]:
        return write_tables(self.folder, self.nodes)

    def declared(self, number: int) -> tuple[str, ...]:
        comma = ("decimal=comma",) if number % 2 else ()
        return ("table=patients.csv", f"schema_file={self.folder / 'schema.yaml'}", *comma)

    @property
    def schema(self) -> str:
        return read_schema(self.folder / "schema.yaml").digest

    def overrides(self, run_dir: Path, *more: str) -> str:
        counts, nodes = ",".join(map(str, self.counts)), self.nodes
        own = (
            "strategy=dpsum strategy.secure_sum=protocol dataset=on_nodes model=linear privacy.delta=1e-4",
            f"dataset.schema_file={self.folder / 'schema.yaml'} dataset.schema_digest={self.schema}",
            f"dataset.examples=[{counts}] dataset.test_root={self.folder / 'server/test.csv'} run_dir={run_dir}",
            f"num_clients={nodes} clients_per_round={nodes} strategy.server.min_replies={nodes} num_rounds=6",
            "strategy.client.noise_multiplier=3.87 strategy.server.lr=6 engine.round_timeout=900",
        )
        return " ".join((*own, *more))

    def approve(self, trained: Path) -> None:
        """Every node gets a copy of a run's folder, and a policy that names its weights."""
        for number in range(self.nodes):
            place = shutil.copytree(trained, self.folder / f"model-{number}", ignore=shutil.ignore_patterns("private"))
            model = place / "model.safetensors"
            entry = f"{{sha256: {sha256(model.read_bytes()).hexdigest()}, file: {model}, trained_on: the hospitals}}"
            policy = self.policy(number)
            policy.write_text(policy.read_text().replace("weights: []", f"weights: [{entry}]"))

    def asking(self, trained: Path, run_dir: Path) -> str:
        """The options of a run that asks."""
        counts, model = ",".join(map(str, self.counts)), trained / "model.safetensors"
        return " ".join(
            (
                "strategy=ask strategy.secure_sum=protocol dataset=on_nodes privacy.delta=1e-4 num_rounds=1",
                "'strategy.client.questions=[linear:mean area:mean radius,survival:mean area:diagnosis,score:run]'",
                f"model.weights={model} model.weights_sha256={sha256(model.read_bytes()).hexdigest()}",
                "model.trained_on=hospitals strategy.client.noise_multiplier=1.5 engine.round_timeout=900",
                f"dataset.schema_file={self.folder / 'schema.yaml'} dataset.schema_digest={self.schema}",
                f"dataset.examples=[{counts}] num_clients={self.nodes} clients_per_round={self.nodes}",
                f"strategy.server.min_replies={self.nodes} run_dir={run_dir}",
            )
        )


def write_tables(folder: Path, nodes: int, rows: int | None = None) -> list[int]:
    """scikit-learn's breast cancer table as the CSV files of hospitals: folder/node-K/patients.csv for every node, its
    numbers written with a comma where K is odd, folder/server/test.csv, and the schema in folder/schema.yaml.

    rows: at most so many in each file. Returns the nodes' numbers of rows.
    """
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(found.target))
    parts = [part[:rows] for part in np.array_split(order, nodes + 1)]
    for number, part in enumerate(parts):
        place, comma = folder / ("server" if number == nodes else f"node-{number}"), number % 2 == 1 and number < nodes
        lines = [";".join((*found.feature_names, "diagnosis"))]
        for row in part:
            cells = [f"{value:g}".replace(".", "," if comma else ".") for value in found.data[row]]
            lines.append(";".join((*cells, found.target_names[found.target[row]])))
        place.mkdir(parents=True, exist_ok=True)
        (place / ("test.csv" if number == nodes else "patients.csv")).write_text("\n".join(lines) + "\n")
    shutil.copy(CONF / "schema/breast_cancer.yaml", folder / "schema.yaml")
    return [len(part) for part in parts[:nodes]]
