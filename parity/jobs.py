"""The jobs: what fedpriv runs, by options alone, and which peers run the same.

Tuned with fedpriv alone, on seeds 100 to 104, for two things: training is not over when it ends, so that a wrong rate
or noise shows, and the planted fault shows beyond `rule.MARGIN`. Reported are seeds 0 to 19.
"""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = range(20)
TUNING_SEEDS = range(100, 105)

#: Of every run: digits (1,437 training and 360 test pictures), evaluated once.
COMMON = (
    "dataset=digits",
    "engine=inprocess",
    "evaluate.clients=false",
    "checkpoint.every=0",
    "operations.report=false",
)
UNEQUAL = ("num_clients=20", "clients_per_round=10", "partition=dirichlet", "partition.alpha=1", "model=mlp")
ADAM = ("strategy=fedavg", *UNEQUAL, "num_rounds=15", "strategy.server.optimizer=adam", "strategy.server.lr=0.01")
CENTRAL = (
    "strategy=dpfedavg",
    "strategy.client.form=central",
    "strategy.server.client_sampling=poisson",
    "model=linear",
)


@dataclass(frozen=True)
class Job:
    """what: in words. options: of fedpriv. planted: options of the fault. peers: module `by_NAME` -> its accountant
    (`rule`).
    """

    what: str
    options: tuple[str, ...]
    planted: tuple[str, ...]
    peers: dict[str, str]


JOBS = {
    "sgd": Job(
        "SGD on all rows: multinomial logistic regression",
        ("strategy=fedavg", "num_clients=1", "clients_per_round=1", "num_rounds=2", "model=linear", "local.lr=0.02"),
        ("local.lr=0.01",),
        {"sklearn": "none", "loop": "none"},
    ),
    "fedavg": Job(
        "federated averaging, 10 of 20 unequal clients a round",
        ("strategy=fedavg", *UNEQUAL, "num_rounds=15"),
        ("local.lr=0.05",),
        {"flower": "none", "pfl": "none", "loop": "none"},
    ),
    "fedprox": Job(
        "the same with a proximal term",
        ("strategy=fedprox", *UNEQUAL, "num_rounds=20", "strategy.client.proximal_mu=2"),
        ("strategy.client.proximal_mu=0",),
        {"flower": "none", "pfl": "none", "loop": "none"},
    ),
    "fedadam": Job(
        "Adam on the server, usual betas",
        ADAM,
        ("strategy.server.lr=0.0025",),
        {"loop": "none"},
    ),
    "fedadam_betas": Job(
        "Adam on the server, betas 0 and 0.5",
        (*ADAM, "strategy.server.beta1=0", "strategy.server.beta2=0.5"),
        ("strategy.server.lr=0.0025",),
        {"flower": "none", "loop": "none"},
    ),
    "scaffold": Job(
        "control variates, 15 of 20 very unequal clients a round, no noise",
        (
            *("strategy=scaffold", *UNEQUAL, "num_rounds=10", "local.steps=10", "strategy.client.correction=1"),
            *("clients_per_round=15", "partition.alpha=0.3"),
            *("strategy.client.clip_norm=1000", "strategy.client.noise_multiplier=1e-9"),
        ),
        ("strategy.client.correction=0",),
        {"loop": "none"},
    ),
    "central_dp": Job(
        "a trusted server's Gaussian noise, Poisson cohorts of 20 in 100",
        (
            *(*CENTRAL, "num_clients=100", "clients_per_round=20", "num_rounds=80", "local.steps=null"),
            *("strategy.client.clip_norm=2", "strategy.client.noise_multiplier=1"),
        ),
        ("strategy.client.noise_multiplier=2",),
        {"pfl": "tight", "loop": "none"},
    ),
    "central_dp_all": Job(
        "the same with all of 50 clients in every round",
        (
            *(*CENTRAL, "num_clients=50", "clients_per_round=50", "num_rounds=30", "local.steps=null"),
            *("strategy.client.clip_norm=4", "strategy.client.noise_multiplier=3"),
        ),
        ("strategy.client.noise_multiplier=6",),
        {"flower": "rényi", "pfl": "tight"},
    ),
    "dpsgd": Job(
        "DP-SGD on two clients: single examples' gradients, Poisson batches",
        (
            *("strategy=dpsgd", "num_clients=2", "clients_per_round=2", "num_rounds=20", "model=linear"),
            *("dataset.train_examples=1400", "strategy.client.local_steps=5", "local.batch_size=35", "local.lr=0.5"),
            *("strategy.client.noise_multiplier=1", "strategy.client.clip_norm=1"),
        ),
        ("strategy.client.noise_multiplier=2",),
        {"opacus": "tight"},
    ),
}
