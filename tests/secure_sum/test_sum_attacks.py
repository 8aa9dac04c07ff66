"""What a server that lies tries on clients of a secure sum. Each attack is refused by a rule; with that rule removed,
and nothing else, it succeeds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sum_talk import THETA, Talk, a_session, ideal, identities, vectors

from fedpriv.common.identities import KeyPair, new_identity
from fedpriv.secure_sum import collector, rules, shamir
from fedpriv.secure_sum import member as member_module
from fedpriv.secure_sum.member import (
    KEYS_BYTES,
    Member,
    add_masks,
    announced_text,
    join,
    mask_of,
    pair_key,
    point_of,
    seal_nonce,
    word_type,
)
from fedpriv.secure_sum.sum_session import Group, SumRefused, SumSession

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
