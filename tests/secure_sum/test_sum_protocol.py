"""The whole protocol in memory: it opens the sum of those who uploaded, bit for bit, or nothing."""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sum_talk import (
    KEYS,
    NEVER,
    SHARES,
    THETA,
    TRAIN,
    UNMASK,
    Talk,
    a_session,
    ideal,
    identities,
    vectors,
)

from fedpriv.common.messages import MalformedMessage
from fedpriv.secure_sum.collector import Collector, SumFailed
from fedpriv.secure_sum.member import Member, join
from fedpriv.secure_sum.sum_session import SumRefused, SumSession

STRESS = "FEDPRIV_STRESS" in os.environ
KNOWN = identities(6)


def expected(session: SumSession, drops: dict[int, int]) -> tuple[int, ...] | None:
    """Who is in the sum, by counting alone; None where nothing may open."""
    members = session.members
    stays = [sum(drops.get(client, NEVER) > exchange for client in members) for exchange in range(NEVER)]
    survivors = tuple(client for client in members if drops.get(client, NEVER) > TRAIN)
    return survivors if min(stays) >= session.threshold else None


def check(session: SumSession, drops: dict[int, int], seed: int = 0) -> bool:
    """Whether the sum opened, as it must."""
    given, survivors = vectors(session, seed), expected(session, drops)
    talk = Talk(session, KNOWN, given, drops)
    if survivors is None:
        with pytest.raises(SumFailed):
            talk.total()
        return False
    assert (talk.total() == ideal(session, given, survivors)).all(), drops
    assert talk.server.survivors == survivors
    return True


def test_every_subset_of_dropouts_at_every_exchange_of_three_and_four() -> None:
    """All 6^3 ways that three clients drop out; of four, at the least threshold that is safe, one of each kind."""
    three, four = a_session(3, size=3, threshold=2), a_session(4, size=3, threshold=3)
    opened = [check(three, dict(enumerate(way))) for way in itertools.product(range(6), repeat=3)]
    kinds = list(itertools.combinations_with_replacement(range(6), 4))
    opened += [check(four, dict(enumerate(way))) for way in kinds]
    assert opened.count(True) == 16 + 6  # at most one of them drops out, at any of five exchanges, or nobody


def test_dropouts_of_five_and_six() -> None:
    """Who drops out where, up to names: clients of a kind are alike, and which they are is drawn. `make stress` tries
    all 6^6.
    """
    rng = random.Random(3)
    for count, threshold in ((5, 3), (6, 4)):
        session = a_session(count, size=3, threshold=threshold)
        kinds = itertools.combinations_with_replacement(range(6), count)
        ways = itertools.product(range(6), repeat=count) if STRESS else kinds
        opened = [
            check(session, dict(zip(rng.sample(range(count), count), way, strict=True)), seed)
            for seed, way in enumerate(ways)
        ]
        assert opened.count(True) > 15 and opened.count(False) > 15


@pytest.mark.parametrize(("count", "share"), [(40, 0.1), (100, 0.3)])
def test_random_dropouts_of_many(count: int, share: float) -> None:
    """Without signatures, which take most of the time."""
    rng, session = random.Random(count), a_session(count, bits=20)
    chosen = rng.sample(session.members, int(share * count))
    drops = {client: rng.randrange(NEVER) for client in chosen}
    given = vectors(session)
    talk = Talk(session, {}, given, drops)
    survivors = expected(session, drops)
    assert survivors is not None and (talk.total() == ideal(session, given, survivors)).all()


@pytest.mark.parametrize("bits", [6, 16, 18, 32, 40, 56])
def test_sums_of_every_width(bits: int) -> None:
    session = a_session(4, bits=bits, size=50, threshold=3)
    rng = np.random.default_rng(1)
    given = {client: rng.integers(0, 2**bits, 50, dtype=np.uint64) for client in session.members}
    talk = Talk(session, KNOWN, given, {2: TRAIN})
    assert (talk.total() == (given[0] + given[1] + given[3]) % 2**bits).all()
    assert all(int(vector.max()) < 2**bits for vector in talk.uploads.values())


def test_a_sparse_graph_opens_the_same_sum() -> None:
    """24 clients with 8 neighbours each; the shares of one who drops out lie with its neighbours alone."""
    session = a_session(24, neighbours=8, threshold=6, size=5)
    for drops in ({}, {3: TRAIN, 11: KEYS}, {0: SHARES, 7: TRAIN, 8: UNMASK}):
        given = vectors(session)
        talk = Talk(session, {}, given, drops)
        total = talk.total()
        assert (total == ideal(session, given, talk.server.survivors)).all()
        assert len(talk.server.survivors) == 24 - sum(drop <= TRAIN for drop in drops.values())
        group = talk.server.group
        fewest = 8 - sum(drop == KEYS for drop in drops.values())
        assert all(fewest <= len(group.peers(client)) <= 8 for client in group.roster)
        assert not any(client in group.peers(client) for client in group.roster)
        assert all(client in group.peers(peer) for client in group.roster for peer in group.peers(client))
    # Above the threshold of one neighbourhood: all who could open client 3 are gone.
    silent = dict.fromkeys(talk.server.group.peers(3)[:5], UNMASK)
    with pytest.raises(SumFailed, match="shares of client"):
        Talk(session, {}, given, silent).total()


# --- below the threshold nothing opens -------------------------------------------------------------------------


def test_below_the_threshold_no_mask_comes_off() -> None:
    """One answer short of it the total is what it was, and what the server holds opens no secret of anybody."""
    session = a_session(6, threshold=4, size=400)
    talk = Talk(session, KNOWN, vectors(session), {4: TRAIN})
    talk.through(talk.confirm)
    for client in talk.server.signers[:3]:
        _, found = talk.members[client].unmask(talk.server.signatures_for(client), KNOWN[client], 1)
        talk.server.add_unmasking(client, [found.get(held, b"") for held in talk.server.holdings(client)])
    masked = sum(vector.astype(np.uint64) for vector in talk.uploads.values()).astype(np.uint32)
    total = masked.copy()
    with pytest.raises(SumFailed, match="3 of 6 clients have opened their shares, 4 are needed"):
        talk.server.take_off(total)
    assert (total == masked).all()
    assert all(len(shares) == 3 for shares in talk.server._opened.values())


@pytest.mark.parametrize("last", [KEYS, SHARES, TRAIN])
def test_the_server_goes_on_with_as_many_as_its_floor_and_no_fewer(last: int) -> None:
    """The floor is above the threshold: fewer clients are not asked for a sum that none of them would open."""
    session, known = a_session(7, threshold=5), identities(7)
    for dropped in (1, 2):
        talk = Talk(session, known, vectors(session), dict.fromkeys(range(dropped), last), floor=6)
        if dropped == 1:
            assert len(talk.through().server.survivors) == 6
        else:
            with pytest.raises(SumFailed, match="6 are needed"):
                talk.through()


def test_masked_vectors_are_uniform_and_say_nothing_of_the_vector() -> None:
    """Every client's masked coordinates are uniform whatever its vector is, and independent of it; so is the difference
    of two clients'.
    """
    session = a_session(5, bits=6, size=20_000, threshold=4)
    rng = np.random.default_rng(5)
    given = {
        0: np.zeros(session.size, np.uint32),
        1: np.full(session.size, 63, np.uint32),
        2: np.arange(session.size, dtype=np.uint32) % 64,
        3: (rng.random(session.size) < 0.5).astype(np.uint32) * 32,
        4: np.zeros(session.size, np.uint32),
    }
    talk = Talk(session, KNOWN, given, {4: TRAIN}).through()
    assert set(talk.uploads) == {0, 1, 2, 3}
    for client, masked in talk.uploads.items():
        assert stats.chisquare(np.bincount(masked, minlength=64)).pvalue > 1e-4
        table = np.histogram2d(masked, talk.given[client], bins=[64, 64], range=[[0, 64]] * 2)[0]
        table = table[:, table.any(axis=0)]
        if table.shape[1] > 1:
            assert stats.chi2_contingency(table).pvalue > 1e-4
    for one, other in itertools.combinations(talk.uploads, 2):
        difference = (talk.uploads[one] - talk.uploads[other]) % 64
        assert stats.chisquare(np.bincount(difference, minlength=64)).pvalue > 1e-4
    # The same test sees a vector in the sum once it is opened.
    opened = talk.server.total()
    table = np.histogram2d(opened, given[2], bins=[64, 64], range=[[0, 64]] * 2)[0]
    assert stats.chi2_contingency(table).pvalue < 1e-10


def test_two_attempts_have_no_mask_in_common() -> None:
    session = a_session(3, size=20_000, bits=6)
    masked = []
    for attempt in (0, 2):
        members = replace(session, attempt=attempt)
        talk = Talk(members, KNOWN, vectors(session))
        talk.members = {client: join(members, client) for client in members.members}
        masked.append(talk.through(talk.train).uploads[1])
    assert stats.chisquare(np.bincount((masked[0] - masked[1]) % 64, minlength=64)).pvalue > 1e-4


# --- wrong shares, damaged and invented blobs ------------------------------------------------------------------


def test_a_liar_among_more_than_the_threshold_is_passed_over() -> None:
    session = a_session(6, threshold=4)
    given = vectors(session)
    talk = Talk(session, KNOWN, given, {5: TRAIN}).through()
    talk.server._answered.clear()
    talk.server._opened.clear()
    for client in talk.server.signers:
        _, found = talk.members[client].unmask(talk.server.signatures_for(client), KNOWN[client], 1)
        told = [found.get(held, b"") for held in talk.server.holdings(client)]
        if client == 0:
            told = [bytes(33) for _ in told]
        talk.server.add_unmasking(client, told)
    assert (talk.server.total() == ideal(session, given, (0, 1, 2, 3, 4))).all()


def test_too_many_wrong_shares_end_in_an_error_and_not_in_a_wrong_sum() -> None:
    session = a_session(4, threshold=3)
    talk = Talk(session, KNOWN, vectors(session)).through()
    for shares in talk.server._opened.values():
        for point in list(shares)[:2]:
            shares[point] = bytes(33)
    with pytest.raises(SumFailed, match="do not fit what it announced"):
        talk.server.total()


@pytest.mark.parametrize(
    ("method", "blobs"),
    [
        ("add_announcement", [b""]),
        ("add_announcement", [bytes(160)] * 2),
        ("add_announcement", []),
        ("add_announcement", [bytes(160)]),  # one key twice
        ("add_shares", [bytes(82)] * 3),
        ("add_shares", [bytes(81)] * 2),
        ("add_signature", [bytes(63)]),
        ("add_unmasking", [bytes(33)] * 2),
        ("add_unmasking", [bytes(32)] * 3),
        ("add_unmasking", [b"\xff" * 33] * 3),
    ],
)
def test_what_cannot_be_read_is_refused(method: str, blobs: list[bytes]) -> None:
    session = a_session(3)
    talk = Talk(session, KNOWN, vectors(session), {0: KEYS if method == "add_announcement" else NEVER})
    if method == "add_announcement":
        server = Collector(session)
    else:
        last = {"add_shares": talk.keys, "add_signature": talk.train, "add_unmasking": talk.confirm}[method]
        server = talk.through(last).server
    with pytest.raises(MalformedMessage):
        getattr(server, method)(0, blobs)


def test_nobody_answers_twice_or_unasked() -> None:
    session = a_session(4, threshold=3)
    talk = Talk(session, KNOWN, vectors(session), {3: TRAIN}).through()
    server = talk.server
    calls = {
        "add_announcement": [bytes(32) + b"k" * 128],
        "add_shares": [bytes(82)] * 3,
        "add_signature": [bytes(64)],
        "add_unmasking": [bytes(33)] * 4,
    }
    for method, blobs in calls.items():
        for client in (0, 3, 9) if method in ("add_signature", "add_unmasking") else (0, 9):
            with pytest.raises((MalformedMessage, KeyError)):
                getattr(server, method)(client, blobs)
    for client in (0, 3, 9):  # again, too late, and nobody
        with pytest.raises(MalformedMessage):
            server.add_upload(client, np.zeros(session.size, np.uint32))


@pytest.mark.parametrize(
    "changes",
    [
        {"members": (1, 0)},
        {"members": (0, 0)},
        {"members": (0, -1)},
        {"members": (True, 2)},
        {"members": ()},
        {"threshold": 1},
        {"threshold": 5},
        {"bits": 0},
        {"bits": 65},
        {"size": 0},
        {"neighbours": 3},
        {"model": b""},
        {"options": bytes(31)},
        {"round": -1},
        {"attempt": 2**80},
        {"threshold": 2.0},
    ],
)
def test_a_session_that_makes_no_sense_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SumRefused):
        a_session(4, **changes)  # type: ignore[arg-type]


def test_a_member_survives_its_disk_between_any_two_exchanges() -> None:
    session = a_session(4, threshold=3)
    given = vectors(session)
    talk = Talk(session, KNOWN, given, {2: TRAIN})
    for exchange in (talk.keys, talk.shares, talk.train, talk.confirm, talk.unmask):
        exchange()
        again = {client: Member.from_bytes(member.to_bytes()) for client, member in talk.members.items()}
        assert again == talk.members
        talk.members = again
    assert (talk.server.total() == ideal(session, given, (0, 1, 3))).all()


def test_no_state_shows_its_secrets() -> None:
    member = join(a_session(3), 1, b"seed")
    assert member.secret.hex() not in repr(member) and repr(member.secret) not in repr(member)
    assert THETA == b"theta"
