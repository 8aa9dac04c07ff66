"""CoQ-FL in whole rounds: keys, groups and those who are missing, faults and engines."""

from __future__ import annotations

import json
import math
import operator
from collections import Counter
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome, Run, ledger_of, result_of, rows_of
from flwr.app import ConfigRecord, Message
from reference.recording import Conversation

from fedpriv.common import identities
from fedpriv.common.messages import EXCHANGE, TRAIN, unpack_array
from fedpriv.runs.planning import make_plan
from fedpriv.training.sequential import LocalResult, SequentialTrainer, Training
from strategies.coqfl import draw_groups


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local training that changes nothing: every coordinate's probability is exactly 1/2."""

    def train(self: SequentialTrainer, asked: Training) -> LocalResult:
        return LocalResult(torch.zeros_like(asked.theta), 0.0)

    monkeypatch.setattr(SequentialTrainer, "train", train)


# --- shared bits in whole rounds -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=coqfl", "privacy.variant=published"),
        ("strategy=coqfl", "privacy.variant=published", "strategy.client.bits=3"),
        ("strategy=coqfl", "privacy.variant=published", "strategy.client.bits=13"),
        ("strategy=coqfl", "privacy.variant=published", "strategy.client.group_size=4"),
        ("strategy=corrquant",),
    ],
    ids=" ".join,
)
def test_at_the_centre_the_members_errors_cancel_exactly(options: tuple[str, ...], still: None) -> None:
    """At p = 1/2 a pair sends one high bit and one low one, a group as many high as low: the mean is exactly theta. So
    all members have derived the same bits.
    """
    talk = Conversation(*options, "num_rounds=2")
    assert all(np.abs(theta - talk.thetas[0]).max() < 1e-9 for theta in talk.thetas)


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=ldpfl",),
        ("strategy=coqfl", "strategy.client.bits=0"),
        ("strategy=coqfl",),  # repaired: private coins
        ("strategy=coqfl", "privacy.variant=published", "num_clients=3", "clients_per_round=3"),  # one is left over
    ],
    ids=" ".join,
)
def test_without_shared_bits_they_do_not_cancel(options: tuple[str, ...], still: None) -> None:
    talk = Conversation(*options, "num_rounds=1")
    moved = np.abs(talk.thetas[1] - talk.thetas[0])
    assert (moved > 1e-4).mean() > 0.2


def test_the_repaired_pair_disagrees_as_often_as_it_should(still: None) -> None:
    """At p = 1/2 a pair's bits are equal with probability lambda/2, lambda = 1 - 0.7^2 = 0.51."""
    talk = Conversation("strategy=coqfl", "num_clients=2", "clients_per_round=2", "num_rounds=20")
    equal = np.concatenate([np.abs(b - a) > 1e-6 for a, b in zip(talk.thetas, talk.thetas[1:], strict=False)])
    expected = 0.51 / 2
    assert abs(equal.mean() - expected) < 4.5 * math.sqrt(expected * (1 - expected) / equal.size)


def test_m_0_is_ldp_fl_bit_for_bit(run: Run) -> None:
    plain = result_of(run("strategy=ldpfl"))["model"]
    assert result_of(run("strategy=coqfl", "strategy.client.bits=0"))["model"] == plain
    assert result_of(run("strategy=coqfl"))["model"] != plain


def test_no_message_holds_a_secret() -> None:
    """Private keys, group seeds and what is derived from them are in no message in any form; public keys are."""
    kept: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("new_private_key", "derive"):  # agreed secrets are derived ones
            real = getattr(identities, name)
            patch.setattr(identities, name, lambda *a, real=real, **k: kept.append(real(*a, **k)) or kept[-1])
        talk = Conversation("strategy=coqfl", "strategy.client.group_size=4", "num_rounds=2")
    seen = b"".join(everything(message) for pair in talk.grid.seen for message in pair)
    assert len(kept) > 8 and not any(secret in seen for secret in kept)
    assert any(identities.public_key(secret) in seen for secret in kept)


def everything(message: Message) -> bytes:
    found = b""
    for record in message.content.values():
        if isinstance(record, ConfigRecord):
            for value in record.values():
                blobs = value if isinstance(value, list) else [value]
                found += b"|".join(blob for blob in blobs if isinstance(blob, bytes))
        elif hasattr(record, "numpy_ndarrays") or record.__class__.__name__ == "ArrayRecord":
            found += b"".join(bytes(array.data) for array in record.values())
    return found


def test_one_bit_per_coordinate_is_on_the_wire() -> None:
    """At most 1.05 d/8 bytes and 2 KiB for a client and round, keys and headers included."""
    talk = Conversation("strategy=coqfl", "dataset=digits", "model=mlp", "model.hidden=1000", "num_rounds=1")
    size = talk.thetas[0].size
    assert size > 70_000 and talk.bytes_up / 4 <= 1.05 * size / 8 + 2048
    releases = [answer for message, answer in talk.grid.seen if exchange_of(message) == TRAIN]
    assert len(releases) == 4
    assert all(unpack_array(answer.content).shape == (-(-size // 8),) for answer in releases)
    plan = make_plan(talk.config, talk.worker)
    assert plan.bytes_up == 4 * -(-size // 8)


def exchange_of(message: Message) -> str:
    return str(message.content["config"].get(EXCHANGE, TRAIN))  # type: ignore[union-attr]


def test_encoded_weights_come_back_as_weights(still: None) -> None:
    """With training that changes nothing the mean of the decoded weights is theta, up to the bits' own noise."""
    options = ("strategy=ldpfl", "strategy.client.encode=weights", "strategy.client.radius=0.5", "num_rounds=1")
    talk = Conversation(*options, "strategy.client.epsilon=8.0", "strategy.server.clip_factor=1.01")
    start, moved = talk.thetas[0], talk.thetas[1]
    radius = 1.01 * (start.max() - start.min()) / 2
    error = radius / math.sqrt(4 * start.size)  # of the mean over all coordinates, at most
    assert abs((moved - start).mean()) < 4.5 * error
    slope = float(start @ moved / (start @ start))  # 0 if updates were sent, 2 if theta were added once more
    assert abs(slope - 1) < 4.5 * error / float(start.std()) < 0.5


# --- groups and those who are missing ----------------------------------------------------------------------


@pytest.mark.parametrize(("cohort", "size", "sizes"), [(6, 2, [2, 2, 2]), (7, 2, [2, 2, 2, 1]), (10, 4, [4, 4, 2])])
def test_groups_are_a_cut_of_the_cohort(cohort: int, size: int, sizes: list[int]) -> None:
    ids = [3 * k + 1 for k in range(cohort)]
    seen = Counter()
    for number in range(400):
        groups = draw_groups(0, number, 0, ids, size)
        assert [len(group) for group in groups] == sizes and sorted(reduce(operator.iadd, groups, [])) == ids
        assert all(group == sorted(group) for group in groups)
        seen[tuple(groups[0])] += 1
    assert draw_groups(0, 5, 0, ids, size) == draw_groups(0, 5, 0, ids, size) != draw_groups(0, 5, 2, ids, size)
    assert len(seen) > 10  # drawn anew in every round


@pytest.mark.parametrize("exchange", ["keys", "train"])
def test_a_missing_partner(exchange: str, run: Run) -> None:
    """Without its key its partner uses own noise and says so; lost afterwards, the partner's bits stay as they are."""
    fault = f"engine.faults=[{{round:2,client:1,exchange:{exchange},kind:drop}}]"
    folder = run("strategy=coqfl", fault)
    rows = rows_of(folder)
    assert [row["figures"]["fallbacks"] for row in rows] == [0, exchange == "keys", 0]
    # Without its key a client still trains, with its own noise.
    assert [row["participants"] for row in rows] == [4, 4 if exchange == "keys" else 3, 4]
    alone = [line for line in ledger_of(folder) if "realised" in line and line["observer"] == "server"]
    assert [line["round"] for line in alone] == ([2] if exchange == "keys" else [])


def test_a_missing_leader_leaves_its_group_with_own_noise(run: Run) -> None:
    fault = "engine.faults=[{round:1,client:0,exchange:seeds,kind:raise}]"
    rows = rows_of(run("strategy=coqfl", "strategy.client.group_size=4", fault))
    assert [row["figures"]["fallbacks"] for row in rows] == [3, 0, 0]  # the leader has its own seed
    assert "planned" in rows[0]["errors"]["0"] or "raises" in rows[0]["errors"]["0"]


def test_a_member_without_a_key_leaves_the_rest_of_its_group_alone(run: Run) -> None:
    """Its leader has no seed for it, which is an empty answer, not the end of the run."""
    fault = "engine.faults=[{round:1,client:2,exchange:keys,kind:drop}]"
    rows = rows_of(run("strategy=coqfl", "strategy.client.group_size=4", fault))
    assert [row["participants"] for row in rows] == [4, 4, 4]
    assert [row["figures"]["fallbacks"] for row in rows] == [1, 0, 0]


@pytest.mark.parametrize(("clients", "size"), [(5, 2), (7, 4)])
def test_left_over_clients_are_realised_cheaper(clients: int, size: int, run: Run) -> None:
    options = (f"num_clients={clients}", f"clients_per_round={clients}", f"strategy.client.group_size={size}")
    folder = run("strategy=coqfl", *options)
    lines = [line for line in ledger_of(folder) if line["observer"] == "server"]
    assert sum("realised" in line for line in lines) == (3 if size == 2 else 0)  # of seven, three form a group
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["spent_so_far"] <= privacy["verified_epsilon"]
    (others,) = privacy["others"]
    assert others["observer"] == "server+members" and others["verified_epsilon"] >= privacy["verified_epsilon"]


# --- faults and engines --------------------------------------------------------------------------------------


def test_a_reply_with_too_few_bits_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.client import one_bit as one_bit_client

    real, calls = one_bit_client.pack, []

    def short(bits: Any) -> Any:
        calls.append(0)
        return real(bits)[:-1] if len(calls) == 2 else real(bits)

    monkeypatch.setattr(one_bit_client, "pack", short)
    rows = rows_of(run("strategy=coqfl"))
    assert [row["participants"] for row in rows] == [3, 4, 4]
    assert rows[0]["errors"]["1"] == "refused: arrays.vector: expected 82 bytes for 650 bits, got uint8 [81]"


def test_it_works_with_secure_noise_and_keys(run: Run) -> None:
    rows = rows_of(run("strategy=coqfl", "strategy.client.group_size=4", "privacy.rng=secure"))
    assert all(row["participants"] == 4 and row["figures"]["groups"] == 1 for row in rows)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["strategy=ldpfl", "strategy.client.epsilon=0"], "strategy.client.epsilon=0: must be more than 0"),
        (["strategy=coqfl", "strategy.client.radius=0.0"], "strategy.client.radius=0.0: must be from 1e-9"),
        (["strategy=coqfl", "strategy.client.radius=[0.1,-1]"], "radius=[0.1, -1]: must be from 1e-9"),
        (["strategy=coqfl", "strategy.client.radius=[0.1,0.2]"], "radius=[0.1, 0.2]: 2 radii for 1"),
        (["strategy=coqfl", "strategy.client.bits=40"], "strategy.client.bits=40: must be at most 16"),
        (["strategy=coqfl", "strategy.client.group_size=1"], "strategy.client.group_size=1: must be at least 2"),
        (["strategy=coqfl", "strategy.client.group_size=9"], "group_size=9: at most clients_per_round=4"),
        (["strategy=coqfl", "strategy.server.bits=17"], "strategy.client.bits=17: must be at most 16"),
        (["strategy=coqfl", "strategy.client.private_share=0.0"], "private_share=0.0: must be more than"),
        (["strategy=coqfl", "strategy.server.weighting=examples"], "weighting=examples: allowed: uniform"),
        (["strategy=ldpfl", "strategy.client.shuffle=true", "strategy.client.shuffle_delta=0.1"], "delta=0.1: must"),
        (["strategy=corrquant", "strategy.client.encode=bits"], "encode=bits: allowed: update or weights"),
        (["strategy=corrquant", "privacy.target_epsilon=3"], "target_epsilon=3.0: corrquant has no noise"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line(overrides: list[str], words: str, cli: Callable[..., Outcome]) -> None:
    outcome = cli(*overrides, "num_clients=4", "clients_per_round=4", "num_rounds=1", "plan=true")
    assert outcome.code == 2 and words in outcome.err and len(outcome.err.strip().splitlines()) == 1, outcome.err
