"""The jobs: what fedpriv runs, by options alone, and which peers run the same.

Tuned with fedpriv alone, on seeds 100 to 104, for two things: training is not over when it ends, so that a wrong rate
or noise shows, and the planted fault shows well beyond `rule.MARGIN`. Reported are seeds 0 to 9.
"""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = range(10)
TUNING_SEEDS = range(100, 105)

#: Of every run: digits (1,437 training and 360 test pictures), evaluated once.
COMMON = (
    "dataset=digits",
    "engine=inprocess",
    "evaluate.clients=false",
    "checkpoint.every=0",
    "operations.report=false",
)
UNEQUAL = ("num_clients=20", "clients_per_round=10", "partition=dirichlet", "partition.alpha=0.3", "model=mlp")
CENTRAL = ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson")


@dataclass(frozen=True)
class Job:
    """options: of fedpriv. planted: options of the fault. peers: module `by_NAME` -> its accountant (`rule`)."""

    options: tuple[str, ...]
    planted: tuple[str, ...]
    peers: dict[str, str]


JOBS = {
    "sgd": Job(
        ("strategy=fedavg", "num_clients=1", "clients_per_round=1", "num_rounds=2", "model=linear", "local.lr=0.02"),
        ("local.lr=0.01",),
        {"sklearn": "none", "loop": "none"},
    ),
    "fedavg": Job(
        ("strategy=fedavg", *UNEQUAL, "num_rounds=6", "local.lr=0.1"),
        ("local.lr=0.05",),
        {"flower": "none", "pfl": "none", "loop": "none"},
    ),
    "fedprox": Job(
        ("strategy=fedprox", *UNEQUAL, "num_rounds=6", "local.lr=0.1", "strategy.client.proximal_mu=2"),
        ("strategy.client.proximal_mu=1",),
        {"flower": "none", "pfl": "none", "loop": "none"},
    ),
    "fedadam": Job(
        (
            *("strategy=fedavg", *UNEQUAL, "num_rounds=10", "local.lr=0.1"),
            *("strategy.server.optimizer=adam", "strategy.server.lr=0.02"),
        ),
        ("strategy.server.lr=0.01",),
        {"loop": "none", "flower": "none"},
    ),
    "scaffold": Job(
        (
            *("strategy=scaffold", *UNEQUAL, "num_rounds=10", "local.lr=0.1", "local.steps=10"),
            *("strategy.client.clip_norm=1000", "strategy.client.noise_multiplier=1e-9"),
            *("strategy.client.correction=1", "privacy.variant=repaired"),
        ),
        ("strategy.client.correction=0",),
        {"loop": "none"},
    ),
    "central_dp": Job(
        (
            *(*CENTRAL, "num_clients=100", "clients_per_round=20", "num_rounds=30", "model=linear"),
            *("local.steps=null", "local.lr=0.1", "strategy.client.clip_norm=4", "strategy.client.noise_multiplier=1"),
        ),
        ("strategy.client.noise_multiplier=2",),
        {"pfl": "tight", "loop": "none"},
    ),
    "central_dp_all": Job(
        (
            *(*CENTRAL, "num_clients=50", "clients_per_round=50", "num_rounds=20", "model=linear"),
            *("local.steps=null", "local.lr=0.1", "strategy.client.clip_norm=4", "strategy.client.noise_multiplier=4"),
            "strategy.server.weighting=uniform",
        ),
        ("strategy.client.noise_multiplier=8",),
        {"flower": "rényi", "pfl": "tight"},
    ),
    "dpsgd": Job(
        (
            *("strategy=dpsgd", "num_clients=2", "clients_per_round=2", "num_rounds=10", "model=linear"),
            *("strategy.client.local_steps=5", "local.batch_size=60", "local.lr=0.5"),
            *("strategy.client.noise_multiplier=1", "strategy.client.clip_norm=1"),
        ),
        ("strategy.client.noise_multiplier=2",),
        {"opacus": "tight"},
    ),
}
