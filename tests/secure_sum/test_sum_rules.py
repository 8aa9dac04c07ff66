"""The numbers that the rules of a secure sum compare, each at its border."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sum_talk import a_session

from fedpriv.secure_sum import rules
from fedpriv.secure_sum.sum_session import Group, SumRefused


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
