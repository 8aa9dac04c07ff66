"""What comes from another machine is read or refused, and nothing else happens."""

from __future__ import annotations

import os
import pickle
import random
from io import BytesIO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from record_fuzz import SIZE, content, try_case
from tripwires import armed

from fedpriv.engines.grid import identify_server
from fedpriv.errors import RunFailed
from fedpriv.records import (
    DIAGNOSTICS,
    VECTOR,
    MalformedMessage,
    identity_content,
    read_reply,
    reply_content,
    unpack_vector,
)
from fedpriv.server import ask_partitions

#: `make stress` tries a million.
CASES = int(os.environ.get("FEDPRIV_FUZZ_CASES", "20000"))


def test_damaged_and_invented_messages_are_read_or_refused() -> None:
    read = refused = 0
    with armed():
        for seed in range(CASES):
            for found in try_case(content(random.Random(seed))):
                read, refused = read + (found is not None), refused + (found is None)
    assert read > CASES // 4 and refused > CASES  # both happen, often


@pytest.fixture(autouse=True)
def _as_the_server() -> None:
    identify_server()


class Bomb:
    """Says that it was unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("unpickled",)


def test_no_pickle_is_read() -> None:
    file = np.lib.format.header_data_from_array_1_0(np.array([None]))  # type: ignore[no-untyped-call]
    assert file["descr"] == "|O"
    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {**file, "shape": (1,)})  # type: ignore[no-untyped-call]
    for data in (stream.getvalue() + pickle.dumps(Bomb()), pickle.dumps(Bomb())):
        record = ArrayRecord({VECTOR: Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=data)})
        with pytest.raises(MalformedMessage):
            unpack_vector(record)


def test_a_shape_that_promises_more_than_came_takes_no_memory() -> None:
    data = reply_content(np.zeros(SIZE, np.float32), 1, None)["arrays"][VECTOR].data
    huge = data.replace(b"(5,)", b"(999999999999,)", 1)
    record = ArrayRecord({VECTOR: Array(dtype="float32", shape=(10**12,), stype="numpy.ndarray", data=huge)})
    with pytest.raises(MalformedMessage):
        unpack_vector(record)


def test_an_empty_text_beside_a_release_does_not_end_the_round() -> None:
    """Flower's own count of a record's bytes raises ValueError for it."""
    content = reply_content(np.zeros(SIZE, np.float32), 1, None)
    content["more"] = ConfigRecord({"text": ""})
    with pytest.raises(MalformedMessage, match="cannot be counted"):
        read_reply(message(content), 0, SIZE, 1)


@pytest.mark.parametrize("value", [[1.0], [1, 2], []])
def test_a_diagnostic_that_is_no_number_is_refused(value: list[float]) -> None:
    content = reply_content(np.zeros(SIZE, np.float32), 1, {})
    content[DIAGNOSTICS] = MetricRecord({"train_loss": value})
    with pytest.raises(MalformedMessage, match=r"diagnostics\.train_loss"):
        read_reply(message(content), 0, SIZE, 1)


def message(content: RecordDict) -> Message:
    return Message(content, dst_node_id=1, message_type="train")


class Nodes:
    """A federation of two nodes; the second says what it wants when asked who it is."""

    def __init__(self, second: RecordDict) -> None:
        self.answers = (identity_content(0), second)

    def get_node_ids(self) -> list[int]:
        return [10, 11]

    def send_and_receive(self, messages: list[Message], timeout: float | None = None) -> list[Message]:
        return [Message(answer, reply_to=asked) for answer, asked in zip(self.answers, messages, strict=True)]


def test_a_node_that_does_not_say_who_it_is_ends_the_run_in_one_line() -> None:
    assert ask_partitions(Nodes(identity_content(1)), 2, 1.0) == {0: 10, 1: 11}  # type: ignore[arg-type]
    for wrong in (
        identity_content(-1),
        identity_content(0),
        RecordDict(),
        RecordDict({"metrics": MetricRecord({"client": [1]})}),
    ):
        with pytest.raises(RunFailed, match=r"2 nodes were asked for their partition, the answers were \[0\]"):
            ask_partitions(Nodes(wrong), 2, 1.0)  # type: ignore[arg-type]
