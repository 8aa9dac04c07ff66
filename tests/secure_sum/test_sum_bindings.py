"""What every derived secret and every signed text of a secure sum is bound to: each fact that the proof counts on, one
by one. A test here fails where a purpose, a fact of the session, the group or a direction is left out of one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sum_talk import THETA, Talk, a_session, identities, vectors

from fedpriv.client.masked_sum import MaskedSum
from fedpriv.common.identities import KeyPair
from fedpriv.common.messages import KEY_ATTEMPT, MEMBERS, MODEL_DIGEST, Request
from fedpriv.common.sum_graph import sparse_graph
from fedpriv.secure_sum import rules, shamir
from fedpriv.secure_sum.member import (
    KEYS_BYTES,
    OPENED_BYTES,
    Member,
    announced_text,
    commitment_to,
    join,
    mask_of,
    pair_key,
    survivors_text,
)
from fedpriv.secure_sum.sum_session import Group, SumRefused, SumSession, group_of, model_text

CLIENTS, B = 6, bytes(range(32))
PAIRS = {client: (KeyPair(bytes([client + 1] * 32)), KeyPair(bytes([client + 9] * 32))) for client in range(CLIENTS)}
#: Client -> what it announced: the same whatever the session says, so that nothing but the session can tell.
ANNOUNCED = {client: masks.public + seals.public + bytes(32) for client, (masks, seals) in PAIRS.items()}
#: One announcement is another's: what the server tells the clients of a second group.
SWAPPED = ANNOUNCED | {5: ANNOUNCED[5][:64] + bytes([1] * 32)}


def before_the_roster(session: SumSession) -> dict[str, bytes]:
    member = Member(session, 0, B)
    return {
        "private key of masks": member._mask_private,
        "key of seals": member._seal_keys.public,
        "b": member._own_mask,
        "commitment": commitment_to(session, 0, B),
        "announcement": announced_text(session, 0, B),
    }


def after_the_roster(session: SumSession, announced: Mapping[int, bytes]) -> dict[str, bytes]:
    group = group_of(session, announced)
    member = Member(session, 0, B, group)
    shares = {
        holder: (both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES :]) for holder, both in member._split([1]).items()
    }
    return {
        "own mask": mask_of(group, 0, B),
        "pair mask": pair_key(group, PAIRS[0][0], ANNOUNCED[1][:32]),
        "seal": member._seal_key(1),
        "survivors": survivors_text(group, (0, 1)),
        "other survivors": survivors_text(group, (0, 2)),
        # What a share adds to its secret is the polynomial alone.
        "polynomial of the key": _added(shares[1][0], member._mask_private),
        "polynomial of b": _added(shares[1][1], member._own_mask),
    }


def _added(share: bytes, secret: bytes) -> bytes:
    number = (int.from_bytes(share, "big") - int.from_bytes(secret, "big")) % shamir.PRIME
    return number.to_bytes(shamir.SHARE_BYTES, "big")


CHANGES: list[dict[str, Any]] = [
    {"run": "another"},
    {"round": 4},
    {"attempt": 1},
    {"members": tuple(range(CLIENTS + 1))},
    {"threshold": 6},
    {"neighbours": 4},
    {"colluders": 1},
    {"bits": 19},
    {"size": 8},
    {"options": hashlib.sha256(b"other").digest()},
    {"model": hashlib.sha256(b"other").digest()},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_every_secret_and_every_text_is_of_one_session(change: dict[str, Any]) -> None:
    one, other = a_session(CLIENTS), a_session(CLIENTS, **change)
    rules.same_session(one, a_session(CLIENTS))
    with pytest.raises(SumRefused):
        rules.same_session(one, other)
    assert [a_session(CLIENTS, **more).digest for more in (*CHANGES, {})].count(other.digest) == 1
    # A signature for one context is none for another: whoever is told other facts is alone.
    known, signed = identities(CLIENTS), join(one, 1).announce(identities(CLIENTS)[1])
    with pytest.raises(SumRefused, match="not signed"):
        rules.signed(known[0], 1, announced_text(other, 1, signed[:KEYS_BYTES]), signed[KEYS_BYTES:])
    for first, second in (
        (before_the_roster(one), before_the_roster(other)),
        (after_the_roster(one, ANNOUNCED), after_the_roster(other, ANNOUNCED)),
    ):
        assert [name for name in first if first[name] == second[name]] == []


def test_what_comes_after_the_roster_is_of_one_set_of_keys() -> None:
    """The server may tell two sets of keys in one session: nothing of one group serves in the other."""
    first, second = (after_the_roster(a_session(CLIENTS), keys) for keys in (ANNOUNCED, SWAPPED))
    assert [name for name in first if first[name] == second[name]] == []


def test_what_a_client_sealed_does_not_open_where_it_comes_from() -> None:
    """Both directions of a pair have one key: under one nonce the server could give a client its own shares back, and
    two texts under it would show their difference.
    """
    session = a_session(CLIENTS)
    talk = Talk(session, identities(CLIENTS), vectors(session))
    talk.keys()
    talk.shares()
    last = CLIENTS - 1
    for client, place, peers in ((0, 0, range(1, CLIENTS)), (last, -1, range(last))):
        sealed = {peer: talk.server.sealed_for(peer)[place] for peer in peers}  # what this client sealed for each
        reflected, _ = talk.members[client].mask(sealed, talk.given[client], THETA)
        assert set(reflected.shares.values()) == {b""}
        honest, _ = talk.members[client].mask(talk.sealed_for(client), talk.given[client], THETA)
        assert {len(shares) for shares in honest.shares.values()} == {OPENED_BYTES}


def test_no_two_purposes_have_a_key_in_common() -> None:
    found = before_the_roster(a_session(CLIENTS)) | after_the_roster(a_session(CLIENTS), ANNOUNCED)
    assert [pair for pair in combinations(found, 2) if found[pair[0]] == found[pair[1]]] == []


def test_a_signature_of_survivors_counts_in_its_own_group_alone() -> None:
    """Client 5 is on the roster of one half and not of the other: the survivors are the same, the masks are not."""
    known, session = identities(CLIENTS), a_session(CLIENTS)
    named = (0, 1, 2, 3, 4)
    one, other = (Talk(session, known, vectors(session), drops) for drops in ({5: 2}, {5: 0}))
    for talk in (one, other):
        talk.keys()
        talk.shares()
    signed = {}
    for client in named:
        member, _ = one.members[client].mask(one.sealed_for(client), one.given[client], THETA)
        signed[client] = member.confirm(named, known[client], 1)[1]
    victim, _ = other.members[0].mask(other.sealed_for(0), other.given[0], THETA)
    victim, _ = victim.confirm(named, known[0], 1)
    with pytest.raises(SumRefused, match="1 clients have signed"):
        victim.unmask(signed, known[0], 1)


def test_only_survivors_sign_for_survivors() -> None:
    """The server's helpers outside of a sum are not among the colluders that its threshold counts with."""
    known, session = identities(CLIENTS), a_session(CLIENTS)
    talk = Talk(session, known, vectors(session), {5: 2})
    talk.through(talk.confirm)
    text = survivors_text(talk.server.group, talk.server.survivors)
    signed = {client: known[client].sign(text) for client in (1, 2, 3, 5)}
    with pytest.raises(SumRefused, match="4 clients have signed the survivor set, 5 are needed"):
        talk.members[0].unmask(signed, known[0], 1)
    talk.members[0].unmask(signed | {4: known[4].sign(text)}, known[0], 1)


# --- numbers that the rules compare, each at its border --------------------------------------------------------------


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
