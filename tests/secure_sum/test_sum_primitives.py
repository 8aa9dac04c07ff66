"""What secure sums are made of, against published test vectors and plain definitions."""

from __future__ import annotations

import itertools
import json
import math
import random
from bisect import bisect
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import ECB
from project_copy import ROOT
from scipy import stats
from sum_talk import a_session

from fedpriv.common.errors import OptionError
from fedpriv.common.identities import KeyPair, KeyRefused, derive, new_identity, read_identity, verified
from fedpriv.common.sum_graph import _tails, default_threshold, graph_of, sparse_graph
from fedpriv.secure_sum import member, shamir
from fedpriv.secure_sum.member import add_masks, word_type
from fedpriv.secure_sum.shamir import PRIME, combine, split, weights_at_zero
from fedpriv.secure_sum.sum_session import group_of

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
SHARED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")


def test_x25519_is_that_of_rfc_7748() -> None:
    """Section 6.1, Diffie-Hellman."""
    alice, bob = KeyPair(ALICE), KeyPair(BOB)
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    keys = b"".join(sorted((alice.public, bob.public)))
    assert alice.agree(bob.public, b"for") == bob.agree(alice.public, b"for") == derive(SHARED, b"for" + keys)


def test_both_ends_of_a_simulated_pair_agree_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second end takes what the first computed: the same secret, of this pair alone. Nothing else is kept."""
    kept = dict[bytes, bytes]()
    alice, bob, carol = (KeyPair(private, kept) for private in (ALICE, BOB, bytes(range(32))))
    first = alice.agree(bob.public, b"for")
    assert list(kept.values()) == [first] == [KeyPair(ALICE).agree(bob.public, b"for")]
    assert carol.agree(bob.public, b"for") == KeyPair(bytes(range(32))).agree(bob.public, b"for") and len(kept) == 2
    monkeypatch.setattr("fedpriv.common.identities.X25519PublicKey", None)  # whoever agrees anew needs it
    assert bob.agree(alice.public, b"for") == first
    with pytest.raises(AttributeError):
        bob.agree(alice.public, b"other")
    with pytest.raises(AttributeError):
        KeyPair(BOB).agree(alice.public, b"for")
    with pytest.raises(AttributeError):
        alice.agree(carol.public, b"for")


def test_agreements_of_a_simulation_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.common.identities.MOST_AGREED", 2)
    kept = dict[bytes, bytes]()
    pairs = [KeyPair(bytes([number] * 32), kept) for number in range(1, 5)]
    keys = {(a, b): pairs[a].agree(pairs[b].public, b"") for a in range(4) for b in range(4) if a != b}
    assert len(kept) == 2 and all(keys[a, b] == keys[b, a] for a, b in keys)


@pytest.mark.parametrize(
    "key",
    [
        bytes(32),  # of small order: the shared secret would be zero
        (2**255 - 19).to_bytes(32, "little"),  # zero in another form
        (2**255 - 1).to_bytes(32, "little"),
        KeyPair(ALICE).public,
        b"short",
    ],
)
def test_keys_that_agree_on_nothing_are_refused(key: bytes) -> None:
    with pytest.raises(KeyRefused):
        KeyPair(ALICE).agree(key, b"")


def test_hkdf_is_that_of_rfc_5869() -> None:
    """Test case 3, without salt and info; what is derived for one purpose says nothing of another."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    assert derive(b"\x0b" * 22, b"", 42).hex() == expected
    assert derive(b"\x0b" * 22, b"another", 42).hex() != expected


def test_aes_in_counter_mode_is_that_of_nist() -> None:
    """SP 800-38A, F.5.5 CTR-AES256; and the first block under a zero key (H of GCM's test case 13)."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    found = Cipher(member.AES(key), member.CTR(counter)).encryptor().update(plain)
    assert found.hex() == "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
    total = np.zeros(4, np.uint32)
    add_masks(total, [bytes(32)])
    assert total.tobytes().hex() == "dc95c078a2408989ad48a21492842087"


@pytest.mark.parametrize("bits", [6, 16, 17, 32, 33, 56])
@pytest.mark.parametrize("size", [1, 7, member.CHUNK // 8, member.CHUNK + 5])
def test_masks_are_the_counters_blocks_and_wrap_around(bits: int, size: int) -> None:
    kind = word_type(bits)
    assert 8 * kind.itemsize >= bits
    keys = [bytes([n]) * 32 for n in range(3)]
    start = np.random.default_rng(0).integers(0, 2**bits, size).astype(kind)
    expected = start.copy()
    blocks = -(-size * kind.itemsize // 16)
    counters = b"".join(number.to_bytes(16, "big") for number in range(blocks))
    for key, sign in zip(keys, (1, 1, -1), strict=True):
        stream = Cipher(member.AES(key), ECB()).encryptor().update(counters)
        mask = np.frombuffer(stream, kind)[:size]
        expected = expected + mask if sign == 1 else expected - mask
    total = start.copy()
    add_masks(total, keys[:2], keys[2:])
    assert (total == expected).all() and (total != start).any()
    add_masks(total, keys[2:], keys[:2])
    assert (total == start).all()


@pytest.mark.parametrize(
    "key",
    [
        "01" + 31 * "00",
        "ec" + 30 * "ff" + "7f",  # of order 2
        32 * "00",  # of order 4, and with the other x
        31 * "00" + "80",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",  # of order 8
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "ee" + 30 * "ff" + "7f",  # the first one in another form
    ],
)
def test_a_peer_for_whom_anybody_can_sign_is_refused(key: str, tmp_path: Path) -> None:
    """Under a key of small order a signature of zeros fits one text in eight at least."""
    assert any(verified(bytes.fromhex(key), b"text %d" % n, b"\1" + bytes(63)) for n in range(200))
    private, public = new_identity(b"own")
    (tmp_path / "key").write_bytes(private)
    (tmp_path / "peers").write_text(json.dumps({"0": public.hex(), "1": key}))
    with pytest.raises(OptionError, match=r"peer-keys=.*anybody can sign"):
        read_identity(tmp_path / "key", tmp_path / "peers")


# --- Shamir ------------------------------------------------------------------------------------------------


def is_prime(number: int) -> bool:
    """Miller and Rabin with 40 random bases."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    rng = random.Random(1)
    for _ in range(40):
        value = pow(rng.randrange(2, number - 1), odd, number)
        if value in (1, number - 1):
            continue
        for _ in range(twos - 1):
            value = value * value % number
            if value == number - 1:
                break
        else:
            return False
    return True


def test_the_field_is_the_least_prime_above_all_secrets() -> None:
    assert PRIME > 2**256 and is_prime(PRIME)
    assert not any(is_prime(number) for number in range(2**256 + 1, PRIME, 2))


def test_every_threshold_of_shares_opens_the_secret_and_no_fewer_do() -> None:
    rng = random.Random(2)
    for count, threshold in [(3, 2), (5, 3), (6, 5), (4, 4)]:
        secret, points = rng.randbytes(32), rng.sample(range(1, 10**6), count)
        shares = split([(secret, rng.randbytes(32))], threshold, points)
        for some in itertools.combinations(points, threshold):
            assert combine({point: shares[point] for point in some}, threshold) == secret
        for fewer in itertools.combinations(points, threshold - 1):
            with pytest.raises(ValueError, match="are needed"):
                combine({point: shares[point] for point in fewer}, threshold)
            assert combine({point: shares[point] for point in fewer}, threshold - 1) != secret


def test_fewer_shares_fit_every_secret() -> None:
    """With t - 1 shares and any other secret there is one polynomial through them: nothing is told."""
    secret, points = bytes(range(32)), [3, 8, 21, 34]
    shares = split([(secret, b"k" * 32)], 4, points)
    known = points[:3]
    for guess in (bytes(32), b"\xff" * 32, secret):
        # the value at the fourth point for which the four open to the guess
        w = weights_at_zero(tuple(points))
        rest = sum(int.from_bytes(shares[point], "big") * weight for point, weight in zip(known, w[:3], strict=True))
        value = (int.from_bytes(guess, "big") - rest) * pow(w[3], -1, PRIME) % PRIME
        completed = {point: shares[point] for point in known} | {34: value.to_bytes(33, "big")}
        assert combine(completed, 4) == guess
        assert (completed[34] == shares[34]) == (guess == secret)


@pytest.mark.parametrize("largest", [3, 200, 2**31, 2**62 + 1, PRIME - 1])
@pytest.mark.parametrize("threshold", [1, 2, 40, 134])
def test_shares_are_the_polynomials_values(largest: int, threshold: int) -> None:
    """Each secret alone, by Horner's rule with a reduction in every step; coefficients of the largest size too."""
    secrets = [(b"\xff" * 32, b"k" * 32), (bytes(range(32)), b"l" * 32), (bytes(32), b"m" * 32)]
    points = [1, 2, largest]
    found = split(secrets, threshold, points)
    for place, (secret, key) in enumerate(secrets):
        drawn = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(48 * (threshold - 1)))
        for point in points:
            value = 0
            for start in range(0, len(drawn), 48):
                value = (value + int.from_bytes(drawn[start : start + 48], "big")) * point % PRIME
            value = (value + int.from_bytes(secret, "big")) % PRIME
            assert found[point][33 * place :][:33] == value.to_bytes(33, "big")


def test_no_lane_of_a_polynomial_reaches_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every coefficient as large as the field allows, at the largest point of each length in bits."""

    class Ones:
        def __init__(self, *_: object) -> None: ...

        def encryptor(self) -> Ones:
            return self

        def update(self, zeros: bytes) -> bytes:
            return (PRIME - 1).to_bytes(48, "big") * (len(zeros) // 48)

    monkeypatch.setattr(shamir, "Cipher", Ones)
    for bits in (2, 3, 7, 8, 20, 31, 63, 127, 200, 256):
        point = 2**bits - 1
        (share,) = split([(b"\xff" * 32, b"k" * 32)] * 2, 300, [point]).values()
        value = -sum(pow(point, power, PRIME) for power in range(1, 300)) + 2**256 - 1
        assert share == 2 * (value % PRIME).to_bytes(33, "big")


def test_a_share_alone_is_uniform_whatever_the_secret_is() -> None:
    for secret in (bytes(32), b"\xff" * 32):
        first = [split([(secret, number.to_bytes(32, "big"))], 2, [1, 2])[1][1] for number in range(4000)]
        assert stats.chisquare(np.bincount(first, minlength=256)).pvalue > 1e-4


def test_the_same_key_gives_the_same_shares_and_damaged_ones_are_seen() -> None:
    shares = split([(bytes(32), b"k" * 32)], 2, [1, 2, 3])
    assert shares == split([(bytes(32), b"k" * 32)], 2, [1, 2, 3]) != split([(bytes(32), b"l" * 32)], 2, [1, 2, 3])
    assert split([(bytes(32), b"k" * 32)], 2, [3]) == {3: shares[3]}  # asked again for one holder
    with pytest.raises(ValueError, match="another form"):
        combine({1: shares[1], 2: shares[2][:-1]}, 2)
    with pytest.raises(ValueError, match="another form"):
        combine({1: shares[1], 2: PRIME.to_bytes(33, "big")}, 2)
    for points in ([0, 1], [1, 1], [1, PRIME]):
        with pytest.raises(ValueError, match="points"):
            split([(bytes(32), b"k" * 32)], 2, points)
    for secret, threshold in ((bytes(31), 2), (bytes(32), 0)):
        with pytest.raises(ValueError, match="secrets have 32 bytes"):
            split([(secret, b"k" * 32)], threshold, [1, 2])
    large = {1: (PRIME - 1).to_bytes(33, "big"), 2: (PRIME - 1).to_bytes(33, "big")}
    assert combine(large, 2) is None  # the constant PRIME - 1 is no 32-byte secret
    assert shamir.SHARE_BYTES == 33


# --- the sparse graph --------------------------------------------------------------------------------------


def test_hypergeometric_tails_are_scipys() -> None:
    for population, marked, drawn in [(30, 6, 10), (999, 100, 46), (999, 200, 98)]:
        law = stats.hypergeom(population, marked, drawn)
        found = _tails(population, marked, drawn)
        for at_least in range(drawn + 1):
            assert found[at_least] == pytest.approx(law.sf(at_least - 1), rel=1e-6, abs=1e-300)


@pytest.mark.parametrize(("clients", "colluders"), [(201, 0), (300, 30), (1000, 50), (1000, 300), (3000, 30)])
def test_a_sparse_graph_keeps_its_bounds_and_a_smaller_one_does_not(clients: int, colluders: int) -> None:
    """The bounds of the proof in `rules`, by scipy's laws: 2^-40 over 2^64 rings of n windows, 2^-20 of dropouts."""
    k, t = sparse_graph(clients, colluders)

    def kept(k: int, t: int) -> bool:
        lying = stats.hypergeom(clients, colluders, k // 2).sf(t - k // 2 - 2)  # more than w = t - h - 2
        gone = stats.hypergeom(clients - 1, math.ceil(0.2 * clients), k).sf(k + 1 - t)  # fewer than t - 1 of k stay
        return bool(clients * lying <= 2.0**-104 and clients * gone <= 2.0**-20)

    assert k % 2 == 0 and k // 2 + 2 <= t <= k + 1 and kept(k, t) and not kept(k, t + 1)
    assert not any(kept(k - 2, other) for other in range((k - 2) // 2 + 2, k))


def test_where_no_sparse_graph_withstands_them_all_share_masks() -> None:
    refused = [(200, 10), (1000, 600), (300, 300), (300, 900)]
    assert [sparse_graph(*case) for case in refused] == [(0, 0)] * len(refused)
    assert graph_of(200, None, 10) == (0, 134) and graph_of(1000, 800, 0) == (0, 800)


def least_helpers(n: int, k: int, t: int, relayed: int) -> tuple[int, int]:
    """The fewest lying clients, in k/2 places in a row and altogether, with whom some sum opens that lacks a signer: by
    trying who of n on a ring signs, uploads without signing, lies or is gone, and every set of clients as that sum.

    Who signs masks with every neighbour in the survivor set; who does not, with whomever the server relays: ``relayed``
    others at least, and not always both of two. k = n - 1: every two are neighbours.
    """
    half, everybody, states = k // 2, 2**n - 1, np.arange(4**n)
    near = [sum(1 << (place + step) % n for step in range(-half, half + 1) if step) for place in range(n)]
    if k == n - 1:
        near = [everybody & ~(1 << place) for place in range(n)]
    count = np.array([place.bit_count() for place in range(2**n)])
    signing, silent, lying = (
        sum(((states // 4**place % 4 == kind) << place for place in range(n)), np.zeros_like(states))
        for kind in range(3)
    )
    gone = everybody & ~(signing | silent | lying)
    rows = [sum(1 << (place + step) % n for step in range(half)) for place in range(n)]
    in_a_row = np.max([count[lying & row] for row in rows], axis=0)
    opens = sum((count[(signing | lying) & (near[place] | 1 << place)] >= t) << place for place in range(n))
    found = [(n, n)]
    for part in range(1, 2**n, 2):  # one of its clients is at place 0
        some = np.flatnonzero((part & ~((signing | silent) & opens) == 0) & (signing & ~part != 0))
        for place in range(n):
            if part >> place & 1:
                unmatched = near[place] & (signing | silent)[some] & ~part
                without = count[near[place] & (part | (lying | gone)[some])] >= relayed
                some = some[np.where(signing[some] >> place & 1, unmatched == 0, without)]
        if some.size:
            found.append((int(in_a_row[some].min()), int(count[lying[some]].min())))
    return min(row for row, _ in found), min(helpers for _, helpers in found)


@pytest.mark.parametrize(("n", "k", "t"), [(8, 4, 4), (8, 4, 5), (8, 6, 5), (8, 6, 6), (6, 5, 4), (7, 6, 5)])
def test_no_server_splits_the_signers_of_a_sum(n: int, k: int, t: int) -> None:
    """The proof in `rules`, by brute force. It takes more than w = t - h - 2 helpers in h places in a row; in a
    complete graph 2t - n altogether, and one fewer if t - 2 relayed shares were enough (`senders`). With none, nobody
    need help.
    """
    if k == n - 1:
        assert [least_helpers(n, k, t, relayed)[1] for relayed in (t - 1, t - 2)] == [2 * t - n, 2 * t - n - 1]
    else:
        assert least_helpers(n, k, t, t - 1)[0] >= t - k // 2 - 1
        assert (least_helpers(n, k, t, 0)[0] == 0) == (t <= k)


def test_the_ring_is_unknown_until_all_keys_are_announced() -> None:
    """Else a server computes it days before, and asks those around one client for help."""
    session = a_session(300, neighbours=60, threshold=32)
    keys = {client: bytes(96) for client in session.members}
    others = [group_of(session, keys | {client: b"1" * 96}).peers(7) for client in (0, 150, 299)]
    found = [group_of(session, keys).peers(7), *others]
    assert len(set(found)) == len(found)
    fewer = {client: blob for client, blob in keys.items() if client != 150}
    assert set(group_of(session, fewer).peers(7)) != set(found[0]) - {150}


def test_whoever_is_left_out_leaves_a_gap_on_the_ring() -> None:
    """Of half of the members, half of a client's places are empty: helpers are no closer together than among all."""
    session = a_session(300, neighbours=60, threshold=32)
    half = {client: bytes(96) for client in session.members[::2]}
    counts = [len(group_of(session, half).peers(client)) for client in half]
    assert max(counts) < 45 and 28 < np.mean(counts) < 32


def test_the_pages_table_of_clients_and_colluders_is_computed() -> None:
    """docs/secure_sums.md: k, t, and how many helpers are too many, per clients n and colluders."""
    table = (ROOT / "docs" / "secure_sums.md").read_text().split("| clients n |")[1].split("\n\n")[0].splitlines()[2:]
    written = [[cell.strip().replace(",", "") for cell in line.split("|")[1:-1]] for line in table]
    assert [int(row[0]) for row in written] == [10, 30, 100, 200, 300, 1000, 3000, 10_000]

    def withstood(n: int, colluders: int) -> bool:
        k, t = graph_of(n, None, colluders)
        return k > 0 or 2 * t > n + colluders

    def too_many(n: int, k: int, t: int) -> int:
        if not k:
            return 2 * t - n
        # Places that are expected to be filled, by number of helpers: the more, the more.
        return bisect(range(n), False, key=lambda m: n * float(stats.hypergeom.sf(t - k // 2 - 2, n, m, k // 2)) >= 1)

    for row in written:
        n, most = int(row[0]), int(row[1])
        assert withstood(n, most) and not any(withstood(n, colluders) for colluders in range(most + 1, most + 3))
        for cell, percent in zip(row[2:], (0, 5, 20, 30), strict=True):
            k, t = graph_of(n, None, percent * n // 100)
            assert cell == f"{k or n - 1} {t} {too_many(n, k, t)}", (n, percent)


def test_small_rounds_have_the_complete_graph() -> None:
    assert default_threshold(200) == 134 and default_threshold(3) == 3 and default_threshold(2) == 2
    for n in range(2, 60):  # a third of colluders is not enough for two sets of signers
        t = default_threshold(n)
        assert 2 * t > n + max(0, (n - 1) // 3) and t <= n


def test_identities_of_a_simulation_follow_from_a_seed() -> None:
    assert new_identity(b"a") == new_identity(b"a") != new_identity(b"b")
    assert new_identity() != new_identity()
