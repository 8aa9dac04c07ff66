"""What every derived secret and every signed text of a secure sum is bound to: each fact that the proof counts on, one
by one. A test here fails where a purpose, a fact of the session, the group or a direction is left out of one of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import combinations

import pytest
from sum_talk import THETA, Talk, a_session, identities, vectors

from fedpriv.common.identities import KeyPair
from fedpriv.secure_sum import shamir
from fedpriv.secure_sum.member import Member, announced_text, commitment_to, mask_of, pair_key, survivors_text
from fedpriv.secure_sum.sum_session import SumRefused, SumSession, group_of

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
        holder: (both[: shamir.SHARE_BYTES], both[shamir.SHARE_BYTES :]) for holder, both in member._split.items()
    }
    return {
        "own mask": mask_of(group, 0, B),
        "pair mask": pair_key(group, PAIRS[0][0], ANNOUNCED[1][:32]),
        "seal for 1": member._seal_key(1, of=0),
        "seal from 1": member._seal_key(1, of=1),
        "survivors": survivors_text(group, (0, 1)),
        "other survivors": survivors_text(group, (0, 2)),
        # What a share adds to its secret is the polynomial alone.
        "polynomial of the key": _added(shares[1][0], member._mask_private),
        "polynomial of b": _added(shares[1][1], member._own_mask),
    }


def _added(share: bytes, secret: bytes) -> bytes:
    number = (int.from_bytes(share, "big") - int.from_bytes(secret, "big")) % shamir.PRIME
    return number.to_bytes(shamir.SHARE_BYTES, "big")


@pytest.mark.parametrize(
    "change",
    [
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
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_secret_and_every_text_is_of_one_session(change: dict[str, object]) -> None:
    one, other = a_session(CLIENTS), a_session(CLIENTS, **change)
    for first, second in (
        (before_the_roster(one), before_the_roster(other)),
        (after_the_roster(one, ANNOUNCED), after_the_roster(other, ANNOUNCED)),
    ):
        assert [name for name in first if first[name] == second[name]] == []


def test_what_comes_after_the_roster_is_of_one_set_of_keys() -> None:
    """The server may tell two sets of keys in one session: nothing of one group serves in the other."""
    first, second = (after_the_roster(a_session(CLIENTS), keys) for keys in (ANNOUNCED, SWAPPED))
    assert [name for name in first if first[name] == second[name]] == []


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
