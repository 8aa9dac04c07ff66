"""What a server, an operator or a clock may do to a guarded machine by mistake, or on purpose."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import APPS
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from guarded import GuardedMachines, weights
from test_terms import SILENT

from fedpriv.certificates import statement, verify_certificate
from fedpriv.commands.node import Node, _guarded
from fedpriv.common.errors import OptionError
from fedpriv.common.identities import new_identity
from fedpriv.common.messages import EXCHANGE, KEYS, ROUND
from fedpriv.deployment import data_ledger
from fedpriv.deployment.bundles import bundle_digest
from fedpriv.deployment.data_ledger import Signer
from fedpriv.deployment.policy import read_policy
from fedpriv.guard.guarded_message import GUARD
from fedpriv.guard.shards import read_answers
from fedpriv.privacy.gaussian_dp import gaussian_epsilon


def announced(shape: tuple[int, ...]) -> ArrayRecord:
    """An array that says it is so large, and brings nothing."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return ArrayRecord({"w": Array("float32", shape, "numpy.ndarray", head.getvalue())})


def left(reply: Message) -> bool:
    return reply.has_content() and "arrays" in reply.content


@pytest.mark.parametrize("shape", [(10**9,), (10**5, 10**4), (0, 10**9)], ids=str)
def test_a_model_of_a_billion_numbers_is_refused_and_costs_nothing(shape: tuple[int, ...], tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path)
    reply = network.ask(arrays=announced(shape))
    assert not left(reply) and network.booked() == [] and network.boxed.asked == []
    assert not network.ask().has_error()


def test_a_sum_over_a_billion_numbers_is_refused(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, noise="ddgauss", sites=2, threshold=2)
    own = ConfigRecord({EXCHANGE: KEYS, ROUND: 1, "size": 10**9})
    reply = network.deliver(Message(RecordDict({GUARD: own}), 7, "train"))
    assert not left(reply) and network.booked() == []


def test_a_shape_that_changes_between_rounds(tmp_path: Path) -> None:
    """What came down fixes what leaves: an app that goes on in the old form gives a zero update."""
    network = GuardedMachines(tmp_path, noise_multiplier=0.03)
    network.boxed.app = lambda *given: (np.arange(3.0) + 1, np.array(5.0))
    assert not network.ask().has_error()
    wider = network.ask(arrays=weights(np.zeros(2)))
    found = [array.numpy() for array in wider.content["arrays"].values()]
    assert [array.shape for array in found] == [(3,), (), (2,)]
    assert np.concatenate([array.ravel() for array in found]) == pytest.approx([0, 1, 2, 5, 0, 0], abs=0.1)
    (counts,) = read_answers(network.data(0)).values()
    assert (counts["answered"], counts["other form"]) == (4, 4) and len(network.booked()) == 2


def test_data_that_are_added_between_rounds_go_to_their_own_shard(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path)
    assert not network.ask().has_error()
    before = [rows for _, _, rows in network.boxed.asked]
    table = network.data(0) / "table.csv"
    table.write_text(table.read_text() + "999,7.5\n")
    network.boxed.asked.clear()
    assert not network.ask().has_error()
    after = [rows for _, _, rows in network.boxed.asked]
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    ((old, new),) = changed
    assert new == [*old, "999,7.5"] and len(network.booked()) == 2


def test_two_guards_on_one_folder_share_one_budget(tmp_path: Path) -> None:
    """Both have begun when neither has booked: one answers, the other is refused."""
    network = GuardedMachines(
        tmp_path, epsilon=gaussian_epsilon(2 / 10 * 1.5**0.5, 1e-5), noise_multiplier=10.0, shards=1
    )
    both = threading.Barrier(2, timeout=60)

    def app(*given: Any) -> Any:
        both.wait()
        return (np.zeros(3), np.zeros(()))

    network.boxed.app, replies = app, list[Message]()
    threads = [threading.Thread(target=lambda: replies.append(network.ask())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(left(reply) for reply in replies) == [False, True]
    assert len(network.booked()) == 1


def test_a_clock_that_is_set_back_renews_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = GuardedMachines(tmp_path, epsilon=gaussian_epsilon(2 / 10 * 2.5**0.5, 1e-5), noise_multiplier=10.0)
    moments = iter([2e9, 1e9])
    monkeypatch.setattr(data_ledger.time, "time", lambda: next(moments, 1e9))
    answered = [left(network.ask()) for _ in range(3)]
    assert answered == [True, True, False] and len(network.booked()) == 2
    monkeypatch.undo()
    signer = Signer(new_identity(b"node")[0])
    made = statement.signed(statement.of_node(network.policy(0), network.data(0)), signer, "node")
    (tmp_path / "certificate.json").write_text(json.dumps(made))
    assert verify_certificate.main([str(tmp_path / "certificate.json")]) == 0
    assert "the clock went back before line" in capsys.readouterr().out


@pytest.mark.parametrize("unit", ["row", "person"])
def test_two_data_sets_that_differ_in_one_row_are_2c_apart_at_most(unit: str, tmp_path: Path) -> None:
    """Brute force over the whole message: every row in turn, apps that do with it what they like."""
    more = {"column": "id"} if unit == "person" else {}
    network = GuardedMachines(tmp_path, rows=4, unit=unit, noise_multiplier=20.0, shards=2, clip=2.0, **more)
    network.source = lambda: SILENT
    table = network.data(0) / "table.csv"
    header, *rows = table.read_text().splitlines()
    whole, largest = dict[str, np.ndarray](), 0.0

    def apps(row: str) -> dict[str, Any]:
        def answer(number: float) -> Any:
            return (np.array([0, 1, 2 + number]), np.array(5.0))

        return {
            "turns": lambda message, context, given: answer(1e9 if row in given else -1e9),
            "crashes": lambda message, context, given: "crash" if row in given else answer(1e9),
            "counts": lambda message, context, given: answer(float(len(given))),
            "other shape": lambda message, context, given: (np.zeros(2),) if row in given else answer(-3.0),
        }

    def sum_of(app: Any) -> np.ndarray:
        network.boxed.app = app
        arrays = network.ask().content["arrays"].values()
        found = np.concatenate([array.numpy().ravel() for array in arrays]) - [0, 1, 2, 5]
        return np.asarray(found * 2, np.float64)  # of two shards

    for row in rows:
        for name, app in apps(row).items():
            table.write_text("\n".join([header, *rows]) + "\n")
            whole[name] = sum_of(app)
            table.write_text("\n".join([header, *[other for other in rows if other != row]]) + "\n")
            apart = float(np.linalg.norm(whole[name] - sum_of(app)))
            assert apart <= 2 * 2.0 * (1 + 1e-5), name
            largest = max(largest, apart)
    assert largest > 2 * 2.0 * 0.999


def test_which_apps_a_guarded_node_runs(tmp_path: Path) -> None:
    """`fedpriv deploy node run ... guard=any|APP`."""
    app, other = APPS / "quickstart-message", APPS / "quickstart-sklearn"
    digest, another = bundle_digest(app), bundle_digest(other)
    network = GuardedMachines(tmp_path, apps=[digest, another])

    def approved(guard: Path | str) -> Container[str]:
        return _guarded(Node(network.policy(0), network.data(0)), str(guard))

    every, one = approved("any"), approved(app)
    assert digest in every and another in every and "c" * 64 not in every
    assert digest in one and another not in one
    network.write_policy(0, apps=[another])  # read again for every message
    assert digest not in every and digest not in one
    with pytest.raises(OptionError, match=f"{digest} is not among the policy's guard.apps"):
        approved(app)
    network.write_policy(0, apps="any", pad_seconds=700.0)
    assert "c" * 64 in approved("any") and "c" * 64 not in approved(app) and digest in approved(app)
    bare = Node(network.policy(0), network.data(0))
    vars(bare)["rules"] = read_policy(network.policy(0)).model_copy(update={"guard": None})
    with pytest.raises(OptionError, match="needs a section `guard`"):
        _guarded(bare, "any")
    with pytest.raises(OptionError):
        approved(tmp_path / "nowhere")
