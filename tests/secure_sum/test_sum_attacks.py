"""What a server that lies tries on clients of a secure sum. Each attack is refused by a rule; with that rule removed,
and nothing else, it succeeds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sum_talk import THETA, Talk, a_session, ideal, identities, vectors

from fedpriv.client.masked_sum import MaskedSum
from fedpriv.common.identities import KeyPair, new_identity
from fedpriv.common.messages import KEY_ATTEMPT, MEMBERS, MODEL_DIGEST, Request
from fedpriv.common.sum_graph import sparse_graph
from fedpriv.secure_sum import collector, rules, shamir
from fedpriv.secure_sum import member as member_module
from fedpriv.secure_sum.member import (
    KEYS_BYTES,
    OPENED_BYTES,
    Member,
    add_masks,
    announced_text,
    commitment_to,
    join,
    mask_of,
    pair_key,
    point_of,
    seal_nonce,
    survivors_text,
    word_type,
)
from fedpriv.secure_sum.sum_session import Group, SumRefused, SumSession, group_of, model_text

KNOWN = identities(6)
VICTIM = 0
#: What an attack gives: vectors, and what they must be if it succeeded.
Loot = tuple[np.ndarray, np.ndarray]


def a_talk(**changes: Any) -> Talk:
    session = a_session(6, **changes)
    return Talk(session, KNOWN, vectors(session, 7))


def answers(talk: Talk, clients: Iterable[int], named: tuple[int, ...]) -> dict[int, dict[int, bytes]]:
    """What clients open after signing one survivor set: client -> whose secret -> share."""
    signed = {}
    for client in clients:
        talk.members[client], signed[client] = talk.members[client].confirm(named, KNOWN[client], 1)
    return {client: dict(talk.members[client].unmask(signed, KNOWN[client], 1)[1]) for client in signed}


def opened(talk: Talk, shares: dict[int, dict[int, bytes]], owner: int) -> bytes:
    """A secret of a client from t holders' shares."""
    held = {point_of(holder): found[owner] for holder, found in shares.items() if found.get(owner)}
    secret = shamir.combine(held, talk.session.threshold)
    assert secret is not None
    return secret


def uncovered(talk: Talk, masked: np.ndarray, private: bytes | None, b: bytes | None) -> np.ndarray:
    """The victim's vector from its masked one, its private key and its b."""
    group, total = talk.server.group, masked.astype(word_type(talk.session.bits))
    keys = {
        peer: pair_key(group, KeyPair(private), group.announced[peer][:32])
        for peer in (group.peers(VICTIM) if private is not None else ())
    }
    plus = [key for peer, key in keys.items() if peer > VICTIM] + ([mask_of(group, VICTIM, b)] if b else [])
    add_masks(total, [key for peer, key in keys.items() if peer < VICTIM], plus)
    return (total & (talk.session.modulus - 1)).astype(np.uint32)


# --- the attacks -----------------------------------------------------------------------------------------------


def both_shares() -> Loot:
    """The same clients are told that the victim survived, and then that it dropped out."""
    talk = a_talk()
    for exchange in (talk.keys, talk.shares, talk.train):
        exchange()
    others = talk.session.members[1:]
    of_b = answers(talk, others, talk.session.members)
    of_key = answers(talk, others, others)
    found = uncovered(talk, talk.uploads[VICTIM], opened(talk, of_key, VICTIM), opened(talk, of_b, VICTIM))
    return found, talk.given[VICTIM]


def two_sets_under_a_low_threshold() -> Loot:
    """One half of the clients is told one survivor set, the other half another; each client answers once."""
    talk = a_talk(threshold=3)
    for exchange in (talk.keys, talk.shares, talk.train):
        exchange()
    of_b = answers(talk, (0, 1, 2), talk.session.members)
    of_key = answers(talk, (3, 4, 5), talk.session.members[1:])
    found = uncovered(talk, talk.uploads[VICTIM], opened(talk, of_key, VICTIM), opened(talk, of_b, VICTIM))
    return found, talk.given[VICTIM]


def swapped_keys() -> Loot:
    """The victim is told keys of the server's own in the place of its peers': all shares are sealed for the server."""
    talk = a_talk()
    talk.keys()
    session, roster = talk.session, talk.session.members
    mine = {client: join(session, client, b"server %d" % client) for client in roster[1:]}
    told = {client: one.announce(identities(6)[VICTIM]) for client, one in mine.items()}
    victim, sealed = talk.members[VICTIM].share_out(roster, told, KNOWN[VICTIM])
    group = victim.group
    assert group is not None
    held: dict[str, dict[int, bytes]] = {"key": {}, "b": {}}
    for client, one in mine.items():
        one = replace(one, group=group)
        cipher = member_module.ChaCha20Poly1305(one._seal_key(VICTIM))
        both = cipher.decrypt(seal_nonce(VICTIM, client), sealed[client], None)
        held["key"][point_of(client)], held["b"][point_of(client)] = both[:33], both[33:]
    private, b = (shamir.combine(shares, session.threshold) for shares in held.values())
    assert private is not None and b is not None
    _, masked = victim.mask(dict.fromkeys(roster[1:], bytes(82)), talk.given[VICTIM], THETA)
    talk.server.__dict__["group"] = group
    return uncovered(talk, masked, private, b), talk.given[VICTIM]


def the_same_masks_twice() -> Loot:
    """The same round and attempt, asked again: another vector under the same masks."""
    talk = a_talk()
    for exchange in (talk.keys, talk.shares, talk.train):
        exchange()
    second = (talk.given[VICTIM] + np.arange(talk.session.size, dtype=np.uint32)) % talk.session.modulus
    _, masked = talk.members[VICTIM].mask(talk.sealed_for(VICTIM), second.astype(np.uint32), THETA)
    difference = (masked - talk.uploads[VICTIM]) % talk.session.modulus
    return difference, np.arange(talk.session.size, dtype=np.uint32)


def another_model_for_one() -> Loot:
    """All others get a model from which their update is known: the sum is the victim's."""
    talk = a_talk()
    talk.given = {client: np.zeros(talk.session.size, np.uint32) for client in talk.session.members}
    talk.given[VICTIM] = vectors(talk.session)[VICTIM]
    talk.keys()
    talk.shares()
    for client in talk.server.senders:
        theta = b"another" if client == VICTIM else THETA
        talk.members[client], masked = talk.members[client].mask(talk.sealed_for(client), talk.given[client], theta)
        talk.server.add_upload(client, masked)
    talk.confirm()
    talk.unmask()
    return talk.server.total(), talk.given[VICTIM]


def too_small_a_sum() -> Loot:
    """A sum of fewer clients than the guarantee counts on: those above the floor are called dropouts."""
    talk = a_talk()
    for exchange in (talk.keys, talk.shares, talk.train):
        exchange()
    some = talk.session.members[:5]
    for client in some:
        talk.members[client], signature = talk.members[client].confirm(some, KNOWN[client], 6)
        talk.server._signatures[client] = signature
    server = collector.Collector(talk.session)
    server._announced, server._sealed = talk.server._announced, talk.server._sealed
    for client in some:
        server.add_upload(client, talk.uploads[client])
        server._signatures[client] = talk.server._signatures[client]
    assert server.survivors == some
    for client in some:
        _, found = talk.members[client].unmask(server.signatures_for(client), KNOWN[client], 6)
        server.add_unmasking(client, [found.get(held, b"") for held in server.holdings(client)])
    return server.total(), ideal(talk.session, talk.given, some)


def no_signatures() -> Loot:
    """Clients are told different sets, of which only one's own signature is shown: each answers alone."""
    talk = a_talk()
    for exchange in (talk.keys, talk.shares, talk.train):
        exchange()
    found = {}
    for client in talk.session.members[1:]:
        member, _ = talk.members[client].confirm(talk.session.members, KNOWN[client], 1)
        found[client] = dict(member.unmask({}, KNOWN[client], 1)[1])
    return np.frombuffer(opened(talk, found, VICTIM), np.uint8), np.frombuffer(talk.members[VICTIM]._own_mask, np.uint8)


def two_rosters() -> Loot:
    """A second roster in the same sum: the victim's secrets go out in shares of a second polynomial, with another key
    for client 5, an identity of the server's own.
    """
    talk = a_talk()
    talk.keys()
    talk.shares()
    roster = talk.session.members[:5]
    told = {client: talk.server._announced[client] for client in roster[1:]}
    after, sealed = talk.members[VICTIM].share_out(roster, told, KNOWN[VICTIM])
    assert after.group is not None and len(sealed) == 4
    return np.array(after.group.roster), np.array(roster)


def a_copied_key() -> Loot:
    """A colluder announces the victim's own keys as its own, and its identity signs them: who is who is unclear."""
    talk = a_talk()
    talk.keys()
    keys = talk.server._announced[2][:KEYS_BYTES]
    told = dict(talk.server._announced)
    told[5] = keys + KNOWN[5].sign(announced_text(talk.session, 5, keys))
    told.pop(VICTIM)
    after, _ = talk.members[VICTIM].share_out(talk.session.members, told, KNOWN[VICTIM])
    assert after.group is not None
    pair = KeyPair(after._mask_private)
    keys_of = [pair_key(after.group, pair, after.group.announced[client][:32]) for client in (2, 5)]
    return np.frombuffer(keys_of[0], np.uint8), np.frombuffer(keys_of[1], np.uint8)


def shares_relayed_one_way() -> Loot:
    """The victim is relayed nobody's shares, so no mask but its own hides it; all others are relayed the victim's."""
    talk = a_talk()
    talk.keys()
    talk.shares()
    _, masked = talk.members[VICTIM].mask({}, talk.given[VICTIM], THETA)
    others = talk.session.members[1:]
    for client in others:
        talk.members[client], _ = talk.members[client].mask(talk.sealed_for(client), talk.given[client], THETA)
    of_b = answers(talk, others, talk.session.members)
    return uncovered(talk, masked, None, opened(talk, of_b, VICTIM)), talk.given[VICTIM]


ATTACKS: list[tuple[Callable[[], Loot], str]] = [
    (both_shares, "one_survivor_set"),
    (two_sets_under_a_low_threshold, "threshold"),
    (swapped_keys, "signed"),
    (the_same_masks_twice, "one_upload"),
    (another_model_for_one, "same_model"),
    (too_small_a_sum, "survivors"),
    (no_signatures, "confirmed"),
    (two_rosters, "same_roster"),
    (a_copied_key, "distinct"),
    (shares_relayed_one_way, "senders"),
]


@pytest.mark.parametrize(("attack", "rule"), ATTACKS)
def test_an_attack_is_refused_and_succeeds_once_its_rule_is_gone(
    attack: Callable[[], Loot], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SumRefused):
        attack()
    monkeypatch.setattr(rules, rule, lambda *given: None)
    found, expected = attack()
    assert (found == expected).all()


def test_every_rule_has_an_attack_or_a_test_of_its_own() -> None:
    named = {name for name, value in vars(rules).items() if callable(value) and value.__module__ == rules.__name__}
    alone = {"member", "members", "same_session", "roster", "peers", "unanswered"}
    assert named == {rule for _, rule in ATTACKS} | alone


def test_lists_that_are_not_of_this_sum_are_refused() -> None:
    talk = a_talk()
    talk.keys()
    announced = dict(talk.server._announced)
    announced.pop(VICTIM)
    victim = talk.members[VICTIM]
    for roster in ((1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 9), (1, 0, 2, 3, 4, 5), (0, 0, 1, 2, 3, 4), (0, 1, 2, True, 4, 5)):
        with pytest.raises(SumRefused):
            victim.share_out(roster, announced, KNOWN[VICTIM])
    for wrong in ({}, {1: announced[1]}, announced | {9: announced[1]}, announced | {3: b"short"}):
        with pytest.raises(SumRefused):
            victim.share_out(talk.session.members, wrong, KNOWN[VICTIM])
    talk.shares()
    victim = talk.members[VICTIM]
    for sealed in ({}, {9: bytes(82)}, {VICTIM: bytes(82)}):
        with pytest.raises(SumRefused):
            victim.mask(sealed, talk.given[VICTIM], THETA)
    talk.train()
    victim = talk.members[VICTIM]
    for survivors in ((), (1, 2, 3, 4, 5), (0, 9), (5, 4, 3, 2, 1, 0), (0, 1, 2, 3)):
        with pytest.raises(SumRefused):
            victim.confirm(survivors, KNOWN[VICTIM], 1)
    with pytest.raises(SumRefused, match="not among the members"):
        join(talk.session, 9)


def test_members_that_were_told_different_facts_open_nothing_even_without_signatures() -> None:
    """Their masks do not cancel and their shares do not open: without identities too."""
    session = a_session(4, threshold=3)
    given = vectors(session)
    talk = Talk(session, {}, given)
    other = replace(session, model=hashlib.sha256(b"another").digest())
    talk.members[VICTIM] = join(other, VICTIM, b"seed")
    talk.keys()
    talk.shares()
    for client in talk.server.senders:
        theta = b"another" if client == VICTIM else THETA
        talk.members[client], masked = talk.members[client].mask(talk.sealed_for(client), given[client], theta)
        talk.server.add_upload(client, masked)
    assert all(not blob for blob in talk.members[VICTIM].shares.values())
    talk.confirm()
    talk.unmask()
    with pytest.raises(collector.SumFailed):
        talk.server.total()


# --- a late masked vector: the second mask ----------------------------------------------------------------------


def a_late_upload() -> Loot:
    """The victim was called a dropout, its private key was opened, and its vector comes after all."""
    talk = a_talk()
    talk.keys()
    talk.shares()
    for client in talk.server.senders:
        talk.members[client], talk.uploads[client] = talk.members[client].mask(
            talk.sealed_for(client), talk.given[client], THETA
        )
        if client != VICTIM:
            talk.server.add_upload(client, talk.uploads[client])
    talk.confirm()
    talk.unmask()
    assert (talk.server.total() == ideal(talk.session, talk.given, (1, 2, 3, 4, 5))).all()
    shares = dict(talk.server._opened[VICTIM])
    private = shamir.combine(shares, talk.session.threshold)
    return uncovered(talk, talk.uploads[VICTIM], private, None), talk.given[VICTIM]


def test_a_late_masked_vector_keeps_the_mask_that_nobody_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = a_late_upload()
    assert (found != expected).all()
    real = member_module.add_masks
    monkeypatch.setattr(member_module, "add_masks", lambda total, plus, minus: real(total, plus[1:], minus))
    monkeypatch.setattr(collector, "mask_of", lambda *given: b"")
    monkeypatch.setattr(collector, "add_masks", lambda total, plus, minus: real(total, plus, [k for k in minus if k]))
    found, expected = a_late_upload()
    assert (found == expected).all()


# --- whatever the server says, in any order ----------------------------------------------------------------------


def test_no_sequence_of_requests_gets_both_shares_of_anybody() -> None:
    """400 servers that tell everything in random order and with random sets. Whatever a client answers: one survivor
    set, one vector, one kind of share of each peer.
    """
    opened_any = 0
    for seed in range(400):
        rng = random.Random(seed)
        talk = TEMPLATES[seed % len(TEMPLATES)]
        member, own = talk.members[seed % 6], seed % 6
        seen: dict[int, set[bytes]] = {}
        sets, uploads = set(), 0
        for _ in range(12):
            try:
                member, what = a_step(rng, talk, member, own)
            except SumRefused:
                continue
            if what == "upload":
                uploads += 1
            elif isinstance(what, tuple):
                sets.add(what)
            elif isinstance(what, dict):
                opened_any += 1
                for peer, share in what.items():
                    seen.setdefault(peer, set()).add(share)
        assert len(sets) <= 1 and uploads <= 1
        assert all(len(shares) == 1 for shares in seen.values())
    assert opened_any > 100


def a_template(seed: int) -> Talk:
    session = a_session(6, size=3)
    talk = Talk(session, KNOWN, vectors(session, seed))
    talk.keys()
    talk.shares()
    return talk


TEMPLATES = [a_template(seed) for seed in range(2)]


def a_step(rng: random.Random, talk: Talk, member: Member, own: int) -> tuple[Member, Any]:
    session, group = talk.session, talk.server.group
    kind = rng.choice(("share", "mask", "confirm", "confirm", "unmask", "unmask"))
    named = tuple(sorted(rng.sample(session.members, rng.choice((5, 6, 6)))))
    if kind == "share":
        told = {peer: talk.server._announced[peer] for peer in named if peer != own}
        return member.share_out(named, told, KNOWN[own])[0], None
    if kind == "mask":
        found, _ = member.mask(talk.sealed_for(own), talk.given[own], rng.choice((THETA, THETA, b"x")))
        return found, "upload"
    if kind == "confirm":
        found, _ = member.confirm(named, KNOWN[own], rng.choice((1, 5)))
        return found, named
    text = member_module.survivors_text(group, named)
    signatures = {peer: KNOWN[peer].sign(text) for peer in named if peer != own}
    member, shares = member.unmask(signatures, KNOWN[own], 1)
    return member, dict(shares)


def test_strangers_sign_for_nobody() -> None:
    talk = a_talk()
    member = talk.through(talk.confirm).members[1]
    text = member_module.survivors_text(talk.server.group, talk.server.survivors)
    stranger = replace(KNOWN[2], private=new_identity(b"stranger")[0])
    with pytest.raises(SumRefused, match="1 clients have signed"):
        member.unmask({client: stranger.sign(text) for client in (0, 2, 3, 4, 5)}, KNOWN[1], 1)
    assert isinstance(talk.session, SumSession) and isinstance(talk.server.group, Group)


# --- ---------------------------------------------------------------------------------------------------------------
# What every derived secret and every signed text of a secure sum is bound to: each fact that the proof counts on, one
# by one. A test here fails where a purpose, a fact of the session, the group or a direction is left out of one of
# them.


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
