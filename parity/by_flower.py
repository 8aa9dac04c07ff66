"""Flower's own strategies on a grid within this process: FedAvg, FedProx, FedAdam, central DP with fixed clipping."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg, FedProx, Strategy
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity

from parity.peers import Seed, Theta, main

logging.getLogger("flwr").setLevel(logging.CRITICAL)


class Grid:
    """What a strategy asks of a grid; node number k + 1 is client k. Flower's SuperLink would fill in the ids."""

    def __init__(self, seed: Seed) -> None:
        self.seed = seed
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.seed.terms["clients"] + 1))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.answer(number, message) for number, message in enumerate(messages)]

    def answer(self, number: int, message: Message) -> Message:
        private: dict[str, Any] = message.metadata.__dict__
        private["_message_id"], private["_run_id"] = str(number), 1
        client, record = message.metadata.dst_node_id - 1, message.content.array_records["arrays"]
        theta = [torch.from_numpy(array.copy()) for array in record.to_numpy_ndarrays()]
        mu = message.content.config_records["config"].get("proximal-mu", 0.0)
        delta = self.seed.local(theta, client, float(mu))  # type: ignore[arg-type]
        uniform = self.seed.terms["method"] == "dpfedavg"
        metrics = MetricRecord({"num-examples": 1 if uniform else len(self.seed.rows[client])})
        content = RecordDict({"arrays": record_of([a + b for a, b in zip(theta, delta, strict=True)]), "m": metrics})
        reply = Message(content, reply_to=message)
        reply.metadata.__dict__["_message_id"] = f"r{number}"
        return reply


def record_of(theta: Theta) -> ArrayRecord:
    return ArrayRecord([array.numpy() for array in theta])


def run(seed: Seed) -> float:
    terms = seed.terms
    common: dict[str, Any] = {"fraction_train": terms["cohort"] / terms["clients"], "fraction_evaluate": 0.0}
    strategy: Strategy = FedAvg(**common)
    if terms["method"] == "fedprox":
        strategy = FedProx(**common, proximal_mu=terms["mu"])
    if terms["adam"] is not None:
        beta_1, beta_2 = terms["adam"]["betas"]
        found = {"eta": terms["adam"]["lr"], "beta_1": beta_1, "beta_2": beta_2, "tau": terms["adam"]["tau"]}
        strategy = FedAdam(**common, **found)
    if terms["method"] == "dpfedavg":
        clip = terms["lr"] * terms["clip"]
        strategy = DifferentialPrivacyServerSideFixedClipping(strategy, terms["noise"], clip, terms["cohort"])
    grid: Any = Grid(seed)
    arrays = strategy.start(grid=grid, initial_arrays=record_of(seed.start), num_rounds=terms["rounds"]).arrays
    return seed.accuracy([torch.from_numpy(array.copy()) for array in arrays.to_numpy_ndarrays()])


def epsilon(terms: dict[str, Any]) -> float | None:
    """By Flower's accountant: Rényi divergences of the rounds, no amplification by sampling."""
    if terms["method"] != "dpfedavg":
        return None
    everyone = terms["clients"]
    assert terms["cohort"] == everyone
    relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    accountant = RdpAccountant(PrivacyConfig(terms["delta"], everyone, relation, sampling))
    accountant.compose(GaussianPrivacyEvent(terms["noise"], everyone, everyone), terms["rounds"])
    return accountant.get_epsilon(terms["delta"])


if __name__ == "__main__":
    main(run, epsilon)
