"""What a server sends is answered or refused as declared by every method's client half, whatever it is."""

from __future__ import annotations

import os
import random

import client_fuzz
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from tripwires import armed

from fedpriv.common.messages import ARRAYS, ATTEMPT, CONFIG, EXCHANGE, ROUND, Refusal, pack_vector
from fedpriv.engines.grid import identify_server
from fedpriv.engines.worker import _guarded

#: `make stress` tries a hundred thousand, and as many that are found by coverage.
CASES = 100_000 if "FEDPRIV_STRESS" in os.environ else 2000


def test_requests_are_answered_or_refused() -> None:
    identify_server()
    methods, answered = client_fuzz.prepare_all(), 0
    names = {method.config.strategy.name for method in methods}
    assert names == set(client_fuzz.METHODS)
    for seed in range(CASES):
        rng = random.Random(seed)
        method = methods[seed % len(methods)]
        case = client_fuzz.content(rng, method.size)
        with armed():
            answered += client_fuzz.try_request(method, rng.randrange(6), case)
    assert CASES // 20 < answered < CASES // 2  # both happen, often


def test_a_hostile_request_costs_a_client_one_short_refusal() -> None:
    """A model of another size, an exchange that does not exist, and more options than there are."""
    identify_server()
    method = client_fuzz.prepare(("fedldp",))
    content = client_fuzz.request(pack_vector(np.zeros(method.size, np.float32)), 2, 0)
    wrong = {
        "expected 310": {ARRAYS: pack_vector(np.zeros(10**6, np.float32))},
        "has no exchange": {CONFIG: ConfigRecord({ROUND: 2, ATTEMPT: 0, EXCHANGE: "x" * 1000})},
        "at most 1024": {CONFIG: ConfigRecord({str(n): n for n in range(2000)})},
    }
    for words, records in wrong.items():
        case = RecordDict(dict(content.items()) | records)
        message = Message(case, dst_node_id=1, message_type="train")
        reply = _guarded(lambda context: method.config, message, method.context(None))
        assert reply.error.code == Refusal.FAILED and words in str(reply.error.reason)
        assert len(str(reply.error.reason)) < 200
