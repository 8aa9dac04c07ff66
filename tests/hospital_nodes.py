"""Hospitals with a CSV file each as nodes in one process (`deployed.Machines`)."""

from __future__ import annotations

from pathlib import Path

from deployed import Machines

from deploy.hospitals import write_tables
from fedpriv.data.table_schema import read_schema

ROWS = 40
EXAMPLE = {"unit": "example", "delta": 1e-4, "max_epsilon": 5.0, "adjacency": "add-or-remove-one"}
POLICY = {
    "budgets": [EXAMPLE | {"observer": "secure-sum"}],
    "strategies": ["dpsum"],
    "bundles": [],
    "accountant": "renyi",
    "limits": {
        "min_noise_multiplier": 0.5,
        "max_round_epsilon": 4.0,
        "max_clip_norm": 1.0,
        "max_sampling_rate": 1.0,
        "max_batch_size": 64,
        "max_local_steps": 10,
        "max_rounds": 20,
        "min_survivors": 3,
    },
}
#: Of a run with the rounds and the noise of its own.
RUN = (
    "strategy=dpsum strategy.secure_sum=protocol strategy.client.noise_multiplier={noise} "
    "num_rounds={rounds} privacy.delta=1e-4 strategy.server.lr={lr}"
)


class Hospitals(Machines):
    """Nodes with a CSV file each; every second one writes its numbers with a comma."""

    def __init__(self, folder: Path, count: int = 3, rows: int | None = ROWS) -> None:
        self.most = rows
        super().__init__(folder, count, POLICY)
        self.introduce()

    def write_data(self) -> None:
        self.counts = write_tables(self.folder, self.count, self.most)
        self.digest = read_schema(self.folder / "schema.yaml").digest

    def data(self, number: int) -> Path:
        return self.folder / f"node-{number}"

    def table(self, number: int) -> Path:
        return self.data(number) / "patients.csv"

    def write_policy(self, number: int, policy: dict[str, object]) -> None:
        super().write_policy(number, {"schemas": [self.digest], **policy})

    def declared(self, number: int) -> tuple[str, ...]:
        decimal = ("decimal=comma",) if number % 2 else ()
        return ("table=patients.csv", f"schema_file={self.folder / 'schema.yaml'}", *decimal)

    def overrides(self, *more: str, run: str = "run") -> str:
        own = (
            "dataset=on_nodes model=linear",
            f"dataset.schema_file={self.folder / 'schema.yaml'} dataset.schema_digest={self.digest}",
            f"dataset.examples=[{','.join(map(str, self.counts))}]",
            f"dataset.test_root={self.folder / 'server/test.csv'} run_dir={self.folder / run}",
            f"num_clients={self.count} clients_per_round={self.count} strategy.server.min_replies={self.count}",
            "engine.round_timeout=60 operations.report=false",
            RUN.format(noise=8.0, rounds=1, lr=3.0),
        )
        return " ".join((*own, *more))
