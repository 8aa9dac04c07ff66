"""One update's way through the client side: which files it crosses between the engine's delivery and the reply.

Counted is the answer of the second client of a round in its second participation: what a worker builds, prices or looks
up once is there. Under the vectorised trainer a client is asked alone too, as Ray asks it.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord

from fedpriv.client.memory import ContextStore
from fedpriv.client.one_path import Asked
from fedpriv.common.messages import CLIP_NORM, Request, pack_vector
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.engines.grid import client_of, stamp
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, adopt, make_apps
from fedpriv.runs.preparation import make_strategy

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("num_rounds=2", "engine=inprocess", "dataset.train_examples=200", "num_clients=2", "clients_per_round=2")
PROTOCOL = ("strategy.secure_sum=protocol", "num_clients=6", "clients_per_round=6", "strategy.server.min_replies=4")
#: Method -> files at most with the sequential and the vectorised trainer. A file more is a reason to look for one less.
#:
#: FedAvg's 11 with the vectorised trainer are the parts that every way has: the worker (a message's way in and out),
#: messages, what a method says, the order of a participation, memory, the ledger's line, keys of batches, noise
#: (clipping); examples and batches, the trainer of a cohort, products of many models. A client that this trainer trains
#: alone goes there too, since its bits are those of a cohort.
#:
#: The longest, and what their further files hold:
#: ddgauss, skellam: whose C it is (gaussian), a sum modulo 2^bits (summing), exact noise (integer_noise), rotation and
#: rounding that keeps the norm (whole_numbers). The last two have proofs, and together more lines than a file may have.
#: dpfl_agn, agn, anr, dpsgd: the listing, which is one file, beside the family that prices examples. dpfedavg,
#: dpfedsnlc: the file of DP-FedAGS, whose noise they have.
#: dpzo, vectorised: steps along public directions stand beside the trainer of a cohort.
#: cpsgd: its paper's file, the family of gradients, sums, rotation and rounding to levels.
#: coqfl, corrquant: the paper's file, the family of one bit, the mathematics of bits, and keys with their cryptography.
#: dpsum, sequential: gradients of single examples stand in four files (per_example, bookkeeping, rowwise, tasks), three
#: of them with proofs, beside exact noise in a sum.
MOST = {
    "adpfl": (12, 12),
    "agn": (15, 15),
    "anr": (14, 14),
    "ask": (13, 13),
    "coqfl": (13, 15),
    "corrquant": (13, 15),
    "cpsgd": (13, 15),
    "ddgauss": (13, 15),
    "dpfedavg": (12, 14),
    "dpfedexp": (11, 13),
    "dpfedsam": (12, 14),
    "dpfedsnlc": (13, 15),
    "dpfl_agn": (14, 14),
    "dpftrl": (10, 12),
    "dpsgd": (14, 14),
    "dpsum": (14, 14),
    "dpzo": (13, 15),
    "fedags": (12, 14),
    "fedavg": (9, 11),
    "fedcad": (12, 14),
    "fedldp": (11, 13),
    "fedonce": (14, 14),
    "fedper": (11, 12),
    "fedprox": (10, 12),
    "fedvf": (11, 12),
    "ldpfl": (11, 13),
    "lgfedavg": (11, 12),
    "moments": (14, 14),
    "nbafl": (10, 12),
    "pfl": (11, 12),
    "privunit": (12, 14),
    "scaffold": (11, 13),
    "skellam": (13, 15),
}
GOAL = 15
#: Of the exchange `train` of a secure sum, whose masks, rules and state are five files more.
MOST_IN_PROTOCOL = {"cpsgd": 20, "ddgauss": 18, "skellam": 18}


@cache
def crossed(strategy: str, trainer: str, *further: str) -> frozenset[str]:
    """Files of the project in which something runs while a client answers."""
    config = compose([f"strategy={strategy}", *SMALL, *further, f"engine.trainer={trainer}"])
    worker = adopt(config, Worker(config))
    worker.__dict__["why_single_messages"] = "in this test"
    server, grid = make_strategy(config, worker), InProcessGrid(config, make_apps(config)[1])
    theta = pack_vector(worker.initial_parameters())
    list(grid.send_and_receive(server.configure_train(1, theta, ConfigRecord(), grid)))
    first, second, *_ = server.configure_train(2, theta, ConfigRecord(), grid)
    for number, message in enumerate((first, second)):
        stamp(message, f"message-{number}")
    assert grid.client_app(first, grid.context_of(client_of(first))).has_content()
    context, files = grid.context_of(client_of(second)), set[str]()

    def seen(frame: Any, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT) and ".venv" not in file.parts:
            files.add(file.relative_to(ROOT).as_posix())

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        reply = grid.client_app(second, context)
    finally:
        sys.setprofile(before)
    assert reply.has_content()
    return frozenset(file for file in files if file.startswith(("fedpriv/", "clients/")))


@pytest.mark.rotates(3)
@pytest.mark.parametrize("strategy", sorted(METHODS))
def test_an_updates_way_does_not_grow(strategy: str) -> None:
    for trainer, most in zip(("sequential", "vectorised"), MOST[strategy], strict=True):
        files = crossed(strategy, trainer)
        assert {"fedpriv/engines/worker.py", "fedpriv/client/one_path.py"} <= files
        assert len(files) <= most, sorted(files)
        # The options were checked before: no message has them read, composed or checked again.
        assert not [file for file in files if file.startswith(("fedpriv/config/", "fedpriv/client/build"))]


def test_ways_are_as_short_as_they_are_meant_to_be() -> None:
    """At most 12 files for FedAvg and 15 for any other, without an exception."""
    assert max(MOST["fedavg"]) <= 12
    assert not [method for method, most in MOST.items() if max(most) > GOAL]


@pytest.mark.parametrize("strategy", sorted(MOST_IN_PROTOCOL))
def test_the_way_of_a_share_in_a_secure_sum_does_not_grow(strategy: str) -> None:
    files = crossed(strategy, "sequential", *PROTOCOL)
    assert len(files) <= MOST_IN_PROTOCOL[strategy], sorted(files)


def test_a_price_is_shared_by_clients_that_declare_the_same_count_only() -> None:
    """DP-SGD's sampling rate is H / n_k, each client's own."""
    four = ("num_clients=4", "clients_per_round=4", "local.batch_size=5", "engine.trainer=sequential")
    config = compose(["strategy=dpsgd", *SMALL, *four, "partition=dirichlet", "partition.alpha=1"])
    worker = adopt(config, Worker(config))
    server, grid = make_strategy(config, worker), InProcessGrid(config, make_apps(config)[1])
    messages = server.configure_train(1, pack_vector(worker.initial_parameters()), ConfigRecord(), grid)
    assert all(reply.has_content() for reply in grid.send_and_receive(messages))
    rates = {entry.client: entry.event.sampling_rate for entry in grid.collect_entries(range(4))}  # type: ignore[attr-defined]
    assert rates == {client: min(1.0, 5 / worker.num_examples(client)) for client in range(4)}
    assert len(set(rates.values())) > 1


def test_what_a_participation_takes_from_its_request_stays_its_own() -> None:
    config = compose(["strategy=fedldp", *SMALL, "strategy.server.clipping=quantile"])
    worker = adopt(config, Worker(config))
    grid = InProcessGrid(config, make_apps(config)[1])
    request = Request(1, 0, {CLIP_NORM: 2 * worker.method_of(1).clip_norm})  # type: ignore[attr-defined]
    method = worker.half([Asked((0,), ContextStore(grid.context_of(0)), request)])
    method.prepare(request)
    assert method.clip_norm == 2 * worker.method_of(1).clip_norm  # type: ignore[attr-defined]
    assert method.site is not None and worker.method_of(1).site is None
