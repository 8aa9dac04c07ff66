"""What comes from another machine is read or refused, and nothing else happens."""

from __future__ import annotations

import os
import pickle
import random
import tracemalloc
from collections import Counter
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from record_fuzz import SIZE, content, prepare, try_case
from tripwires import armed

from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import (
    CONFIG,
    DIAGNOSTICS,
    KEYS,
    METRICS,
    MOST_BLOB,
    MOST_BYTES,
    MOST_KEYS,
    MOST_NAME,
    MOST_REASON,
    MOST_RECORDS,
    MOST_ROUND,
    MOST_TEXT,
    VECTOR,
    MalformedMessage,
    Request,
    blobs_content,
    identity_content,
    pack_vector,
    read_request,
    reply_content,
    unpack_vector,
)
from fedpriv.common.replies import read_blobs, read_identity, read_reply, read_report, reason_of, train_content
from fedpriv.engines.grid import identify_server
from fedpriv.server.nodes import PATIENCE, ask_partitions, find_partitions

#: `make stress` tries a million.
CASES = int(os.environ.get("FEDPRIV_FUZZ_CASES", "10000"))


def test_damaged_and_invented_messages_are_read_or_refused() -> None:
    read = refused = 0
    prepare()
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


TOO_MUCH = [
    (RecordDict({str(n): MetricRecord() for n in range(MOST_RECORDS + 1)}), "9 records, at most 8"),
    (RecordDict({METRICS: MetricRecord({str(n): 1 for n in range(MOST_KEYS + 1)})}), "metrics: 1025 keys"),
    (RecordDict({METRICS: MetricRecord({"n" * (MOST_NAME + 1): 1})}), "metrics: a key of 129 characters"),
    (RecordDict({METRICS: MetricRecord({"n": [1.0] * (MOST_BYTES // 8 + 1)})}), "metrics: 8388617 bytes, at most"),
    (RecordDict({CONFIG: ConfigRecord({"n": "t" * (MOST_TEXT + 1)})}), r"config\.n: 1025 characters or bytes"),
    (RecordDict({CONFIG: ConfigRecord({"n": b"t" * (MOST_BLOB + 1)})}), r"config\.n: 4097 characters or bytes"),
    (RecordDict({CONFIG: ConfigRecord({"n": [b"", b"t" * 5000]})}), r"config\.n: 5000 characters or bytes"),
    (RecordDict({"more": pack_vector(np.zeros(SIZE, np.float32))}), "more: no arrays"),
    (RecordDict({"k\n" * 500: ConfigRecord({"n": "t" * 2000})}), "k k k k"),
]


@pytest.mark.parametrize(("content", "words"), TOO_MUCH, ids=[words[:12] for _, words in TOO_MUCH])
def test_more_than_a_message_may_hold_is_refused_by_every_reader_in_one_line(content: RecordDict, words: str) -> None:
    readers = (
        lambda: read_reply(message(content), 0, SIZE, 1),
        lambda: read_report(message(content), 0, ()),
        lambda: read_blobs(message(content), KEYS),
        lambda: read_identity(message(content)),
        lambda: read_request(content),
        lambda: unpack_vector(content, SIZE),
    )
    for read in readers:
        with pytest.raises(MalformedMessage, match=words) as refused:
            read()
        assert len(str(refused.value)) < 200 and str(refused.value).isprintable()


def test_what_is_just_allowed_passes() -> None:
    options = {f"o{n}": 1 for n in range(MOST_KEYS - 5)} | {"list": [1] * 1_000_000, "text": "t" * MOST_TEXT}
    content = train_content(None, Request(MOST_ROUND, MOST_ROUND, options | {"n" * MOST_NAME: b"b" * MOST_BLOB}))
    assert read_request(content).round == MOST_ROUND


def test_an_array_beyond_the_model_is_refused_before_it_is_copied() -> None:
    """A hundred times the model, in either form."""
    for dtype in (np.float32, np.uint8):
        content = reply_content(np.zeros(25_000_000, dtype), 1, None)
        tracemalloc.start()
        with pytest.raises(MalformedMessage, match=r"expected 5 values|expected float32|at most 80 are possible"):
            read_reply(message(content), 0, SIZE, 1)
        with pytest.raises(MalformedMessage, match="at most 80 are possible"):
            read_reply(message(content), 0, SIZE, 1, decode=lambda client, array: array)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
        tracemalloc.stop()


@pytest.mark.parametrize("number", [-1, MOST_ROUND + 1, 2**63, True, 1.0, "1"])
def test_a_round_is_a_number_of_a_round(number: Any) -> None:
    for key in ("round", "attempt"):
        content = RecordDict({CONFIG: ConfigRecord({"round": 1, "attempt": 0} | {key: number})})
        with pytest.raises(MalformedMessage, match=rf"config\.{key}: expected a whole number"):
            read_request(content)


def test_byte_strings_beyond_the_number_asked_for_are_refused() -> None:
    assert read_blobs(message(blobs_content(KEYS, [b"a", b"b"])), KEYS, most=2) == (b"a", b"b")
    with pytest.raises(MalformedMessage, match="keys: 3 byte strings, at most 2"):
        read_blobs(message(blobs_content(KEYS, [b"a", b"b", b"c"])), KEYS, most=2)


def test_a_clients_reason_is_kept_as_one_line() -> None:
    """It goes into logs and files of the server, and onto its terminal."""
    hostile = "\x1b[2J" + "line\n" * 10**6
    found = reason_of(Message(Error(code=100, reason=hostile), reply_to=message(RecordDict())))
    assert found.startswith(" [2Jline line ") and len(found) == MOST_REASON + 3


def message(content: RecordDict) -> Message:
    return Message(content, dst_node_id=1, message_type="train")


class Nodes:
    """A federation of two nodes; the second says what it wants when asked who it is."""

    def __init__(self, second: RecordDict) -> None:
        self.answers = (identity_content(0), second)
        self.waited: list[float | None] = []

    def get_node_ids(self) -> list[int]:
        return [10, 11]

    def send_and_receive(self, messages: list[Message], timeout: float | None = None) -> list[Message]:
        self.waited.append(timeout)
        return [Message(answer, reply_to=asked) for answer, asked in zip(self.answers, messages, strict=True)]


def test_a_simulated_client_may_take_its_time_to_start() -> None:
    """Two minutes were too few for Ray on a loaded machine. A real machine that says nothing has no more."""
    nodes = Nodes(identity_content(1))
    ask_partitions(nodes, 2, 3600.0)  # type: ignore[arg-type]
    find_partitions(nodes, 2, 3600.0, None, Counter())  # type: ignore[arg-type]
    assert nodes.waited == [3600.0, PATIENCE]


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
