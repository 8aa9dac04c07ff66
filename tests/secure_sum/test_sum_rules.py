"""The numbers that the rules of a secure sum compare, each at its border."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sum_talk import a_session

from fedpriv.client.masked_sum import MaskedSum
from fedpriv.common.messages import KEY_ATTEMPT, MEMBERS, MODEL_DIGEST, Request
from fedpriv.common.sum_graph import sparse_graph
from fedpriv.secure_sum import rules
from fedpriv.secure_sum.sum_session import Group, SumRefused, model_text


def test_each_rule_at_its_border() -> None:
    """The last value that is refused and the first that passes, for every number that a rule compares."""

    def refused(rule: Callable[..., None], *given: Any) -> bool:
        try:
            rule(*given)
        except SumRefused:
            return True
        return False

    def group(clients: int, **changes: Any) -> Group:
        session = a_session(clients, **changes)
        return Group(session, session.members, {}, b"")

    for t, colluders, too_low in (
        (4, 0, False),
        (4, 1, False),
        (4, 2, True),
        (5, 3, False),
        (5, 4, True),
        (3, 0, True),
    ):
        assert refused(rules.threshold, group(6, threshold=t, colluders=colluders), 6) is too_low  # 2t > n + m
    assert refused(rules.threshold, group(6, threshold=5), 4) and not refused(rules.threshold, group(6, threshold=5), 5)
    assert [refused(rules.members, range(6), range(10), most) for most in (5, 6)] == [True, False]
    assert [refused(rules.members, range(6), range(known), 6) for known in (5, 6)] == [True, False]
    sealed = dict.fromkeys(range(1, 6), b"")
    for t, count in ((5, 3), (4, 2)):  # t - 1 others and this client open a secret
        session = a_session(6, threshold=t)
        assert refused(rules.senders, session, sealed, dict(list(sealed.items())[:count]))
        assert not refused(rules.senders, session, sealed, dict(list(sealed.items())[: count + 1]))
    five = group(6, threshold=4)
    assert refused(rules.survivors, five, 0, (1, 2, 3), (0, 1, 2, 3, 4), 1)  # the shares of 4 never came
    assert not refused(rules.survivors, five, 0, (1, 2, 3, 4), (0, 1, 2, 3, 4), 1)
    assert [refused(rules.survivors, five, 0, range(6), (0, 1, 2, 3, 4), floor) for floor in (5, 6)] == [False, True]
    assert [refused(rules.confirmed, 5, signers) for signers in (4, 5)] == [True, False]
    # A signer more than half of roster and colluders together; in a complete graph the threshold is that.
    assert five.signers(6) == 4
    sparse = {"threshold": 6, "neighbours": 8}
    assert [group(24, colluders=m, **sparse).signers(1) for m in (0, 1, 2, 3)] == [13, 13, 14, 14]
    assert group(24, **sparse).signers(20) == 20


def test_the_clip_norm_of_a_round_is_signed_with_its_model() -> None:
    theta = np.arange(3, dtype=np.float32)
    texts = [bytes(model_text(theta, clip_norm)) for clip_norm in (None, 0.5, np.nextafter(0.5, 1), np.float64(0.25))]
    assert texts[0] == theta.tobytes() and len(set(texts)) == len(texts)
    for wrong in ("0.5", 1, True, [0.5]):
        with pytest.raises(SumRefused, match="clip norm"):
            model_text(theta, wrong)


@pytest.mark.parametrize(
    ("clients", "colluders", "threshold"), [(300, 0, None), (300, 15, None), (300, 15, 200), (9, 2, 6)]
)
def test_a_clients_own_options_say_graph_threshold_and_colluders(
    clients: int, colluders: int, threshold: int | None
) -> None:
    """Whatever the server says: it names the members alone."""
    run: dict[str, Any] = {"client": 0, "identity": None, "guard": None, "seed": 0, "options_digest": bytes(32)}
    site: Any = SimpleNamespace(**run, population=clients, most_members=clients)
    options: Any = SimpleNamespace(threshold=threshold, colluders=colluders)
    asked = {MEMBERS: list(range(clients)), KEY_ATTEMPT: 0, MODEL_DIGEST: bytes(32), "neighbours": 2, "threshold": 2}
    found = MaskedSum(site, options)._session(Request(1, 0, asked), 18, 7)
    graph = sparse_graph(clients, colluders) if threshold is None else (0, threshold)
    assert (found.neighbours, found.threshold, found.colluders) == (*graph, colluders)


@pytest.mark.parametrize(("run", "policy"), [(80, 1), (80, 90), (1, 1)])
def test_the_floor_is_the_larger_of_the_runs_and_the_policys(run: int, policy: int) -> None:
    """The account counts on the run's; both are checked before a sum, and a client that is in one asks for both."""
    site: Any = SimpleNamespace(fewest_survivors=policy)
    options: Any = SimpleNamespace(min_replies=run)
    assert MaskedSum(site, options).floor == max(run, policy)
