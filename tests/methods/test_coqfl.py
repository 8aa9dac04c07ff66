"""CoQ-FL, LDP-FL and correlated quantisation: one client, what it costs, its intervals."""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Outcome, Run, ledger_of, result_of, rows_of
from flwr.app import ConfigRecord, Message
from reference.federation import BytesStore, FixedUpdates, make_site
from reference.recording import Conversation

from clients.coqfl import PRIVATE_SHARES, CoQFLClient, mean_variance, mixed_group_bits, mixed_pair_bits
from fedpriv.attacks.release_audit import audit_config
from fedpriv.client.build import make_client
from fedpriv.client.contract import PublicFacts, UnsafeNoise
from fedpriv.client.memory import StaleRequest, read_memory
from fedpriv.client.one_bit import WITH_MEMBERS, Session, of_layer
from fedpriv.common import identities
from fedpriv.common.errors import OptionError
from fedpriv.common.identities import Identity, KeyPair, KeyRefused, new_identity, read_identity
from fedpriv.common.messages import (
    ATTEMPT,
    CENTRES,
    EXCHANGE,
    KEY_ATTEMPT,
    KEYS,
    MEMBERS,
    PUBLIC_KEYS,
    RADII,
    ROUND,
    SEALED,
    SEEDS,
    SIGNATURES,
    TRAIN,
    unpack_array,
)
from fedpriv.config.compose import compose
from fedpriv.engines.grid import empty_context
from fedpriv.engines.worker import Worker, _identity
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.mechanisms.quantisation import (
    cells_of,
    decode,
    high_probability,
    per_layer,
    ranks_of,
)
from fedpriv.privacy.calibration import calibrate
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import CLIENT_TO_SERVER, PairedQuantisation, RandomisedResponse
from fedpriv.runs.planning import make_plan
from fedpriv.training.flat_model import Block, Layout
from fedpriv.training.sequential import LocalResult, SequentialTrainer, Training
from strategies.coqfl import draw_groups

DELTA = 1e-5


# --- one client --------------------------------------------------------------------------------------------

LAYOUT = Layout((Block("a", 0, 20), Block("b", 20, 33)), ("a.w", "b.w"), ((20,), (13,)))


def a_client(number: int, store: Any = None, identity: Identity | None = None, **options: Any) -> CoQFLClient:
    given: dict[str, Any] = {"epsilon": 1.0, "encode": "update", "radius": 0.5, "bits": 8, "group_size": 2}
    given |= {"private_share": 0.3} | options
    trainer = FixedUpdates(lambda _: torch.linspace(-0.4, 0.4, 33))
    site = make_site(number, trainer, store or BytesStore(), layout=LAYOUT, identity=identity)
    return making.client(CoQFLClient, facts=PublicFacts(40, 40, 8, 10, 2, num_parameters=33), site=site, **given)


def key_of(client: CoQFLClient, members: list[int], server_round: int = 1, attempt: int = 0) -> list[bytes]:
    config = {ROUND: server_round, ATTEMPT: attempt, EXCHANGE: KEYS, MEMBERS: members}
    return [array.tobytes() for array in client.fit([], config)[0]]


def bits_of(client: CoQFLClient, server_round: int = 1, attempt: int = 0, **told: Any) -> tuple[bytes, Any]:
    names = {name.replace("_", "-"): value for name, value in told.items()}
    config = {ROUND: server_round, ATTEMPT: attempt, **names}
    arrays, _, figures = client.fit([np.zeros(33, np.float32)], config)
    return arrays[0].tobytes(), figures


def told(client: int, members: list[int], keys: dict[int, list[bytes]], attempt: int = 0) -> dict[str, Any]:
    others = [keys.get(member, [b""]) for member in members if member != client]
    found: dict[str, Any] = {MEMBERS: members, KEY_ATTEMPT: attempt, PUBLIC_KEYS: [blobs[0] for blobs in others]}
    if any(len(blobs) > 1 for blobs in others):
        found[SIGNATURES] = [blobs[1] if len(blobs) > 1 else b"" for blobs in others]
    return {name.replace("-", "_"): value for name, value in found.items()}


def test_both_halves_derive_the_same_secret() -> None:
    alice, bob = a_client(3), a_client(8)
    keys = {3: key_of(alice, [3, 8]), 8: key_of(bob, [3, 8])}
    for client, number in ((alice, 3), (bob, 8)):
        assert bits_of(client, **told(number, [3, 8], keys))[1]["fallback"] == 0.0
    assert alice.secret is not None and alice.secret == bob.secret and (alice.member, bob.member) == (0, 1)
    eve = a_client(9)
    keys |= {9: key_of(eve, [3, 9])}
    bits_of(eve, **told(9, [3, 9], keys))
    assert eve.secret != alice.secret


@pytest.mark.parametrize(
    "change",
    [
        {"public_keys": [bytes(32)]},  # all zero
        {"public_keys": [b"short"]},
        {"public_keys": [b""]},
        {"public_keys": []},
        {"public_keys": "own"},
        {"members": [3, 3]},
        {"members": [4, 8]},  # not this client's
        {"members": [3, 8, 9]},  # more than group_size
        {"members": [8, 3]},
        {"members": "3,8"},
        {"key_attempt": 1},
        {"public_keys": [10**12]},
        {"public_keys": [1.5]},
        {"public_keys": "own in another form"},
    ],
    ids=str,
)
def test_whatever_is_wrong_with_the_keys_the_client_uses_its_own_noise(change: dict[str, Any]) -> None:
    alice, bob = a_client(3), a_client(8)
    keys = {3: key_of(alice, [3, 8]), 8: key_of(bob, [3, 8])}
    own = keys[3][0]
    if change == {"public_keys": "own"}:
        change = {"public_keys": [own]}
    if change == {"public_keys": "own in another form"}:
        change = {"public_keys": [own[:31] + bytes([own[31] | 0x80])]}
    bits, figures = bits_of(alice, **told(3, [3, 8], keys) | change)
    assert figures["fallback"] == 1.0 and alice.secret is None and alice.fallback
    twin = a_client(3)
    assert bits == bits_of(twin)[0] and bits_of(a_client(3))[1]["fallback"] == 0.0  # nobody to pair with is planned


def test_a_round_is_answered_once() -> None:
    """The same bytes again, whatever is told now; afterwards the key is gone, and a retry uses own noise."""
    alice, bob = a_client(3), a_client(8)
    keys = {3: key_of(alice, [3, 8]), 8: key_of(bob, [3, 8])}
    first, _ = bits_of(alice, **told(3, [3, 8], keys))
    assert alice.site is not None and read_memory(alice.site.store).waiting is None
    other = a_client(8)
    again = told(3, [3, 8], keys | {8: key_of(other, [3, 8], attempt=5)})
    assert bits_of(alice, **again)[0] == first
    bits, figures = bits_of(alice, attempt=1, **told(3, [3, 8], keys))
    assert bits != first and figures["fallback"] == 1.0
    for late in ({"attempt": 0}, {"attempt": 1}):
        with pytest.raises(StaleRequest):
            key_of(alice, [3, 8], 1, **late)
    with pytest.raises(StaleRequest):
        bits_of(alice, server_round=0)


def test_a_key_belongs_to_its_round() -> None:
    alice = a_client(3)
    first = key_of(alice, [3, 8])
    assert key_of(alice, [3, 8]) == first  # repeated
    assert key_of(alice, [3, 8], server_round=2) != first
    with pytest.raises(StaleRequest, match="has a key"):
        key_of(alice, [3, 8], server_round=1)
    with pytest.raises(StaleRequest, match="no key of this round"):
        alice.fit([], {ROUND: 3, ATTEMPT: 0, EXCHANGE: SEEDS, MEMBERS: [3, 8], KEY_ATTEMPT: 0, PUBLIC_KEYS: [b""]})


def test_a_group_shares_what_its_first_member_drew() -> None:
    group = [2, 5, 7]
    clients = {number: a_client(number, group_size=4) for number in group}
    keys = {number: key_of(client, group) for number, client in clients.items()}
    config = {ROUND: 1, ATTEMPT: 0, EXCHANGE: SEEDS} | {
        name.replace("_", "-"): value for name, value in told(2, group, keys).items()
    }
    sealed = [array.tobytes() for array in clients[2].fit([], config)[0]]
    for place, number in enumerate((5, 7)):
        bits_of(clients[number], **told(number, group, keys), **{SEALED: sealed[place]})
    bits_of(clients[2], **told(2, group, keys))
    secrets = {client.secret for client in clients.values()}
    assert len(secrets) == 1 and None not in secrets
    assert not any(clients[2].secret in blob for blob in sealed)  # type: ignore[operator]
    for blob in (sealed[0], b"", sealed[1][:-1] + b"x"):  # another member's, missing, tampered with
        late = a_client(7, group_size=4)
        key_of(late, group)
        assert bits_of(late, **told(7, group, keys), **{SEALED: blob})[1]["fallback"] == 1.0


def test_a_server_that_swaps_keys_is_detected_by_identities() -> None:
    (private3, public3), (private8, public8), (_, stranger) = (new_identity() for _ in range(3))
    alice = a_client(3, identity=Identity(private3, {8: public8}))
    bob = a_client(8, identity=Identity(private8, {3: public3}))
    keys = {3: key_of(alice, [3, 8]), 8: key_of(bob, [3, 8])}
    assert all(len(blobs) == 2 for blobs in keys.values())
    assert bits_of(bob, **told(8, [3, 8], keys))[1]["fallback"] == 0.0
    # The server in the middle relays a key of its own with the signature that it has.
    forged = identities.public_key(identities.new_private_key())
    assert bits_of(alice, **told(3, [3, 8], {8: [forged, keys[8][1]]}))[1]["fallback"] == 1.0
    assert "not signed by its identity" in str(alice.fallback)
    # One that leaves the signatures out does not get around them.
    late = a_client(3, identity=Identity(private3, {8: public8}))
    key_of(late, [3, 8])
    assert bits_of(late, **told(3, [3, 8], {8: [keys[8][0]]}))[1]["fallback"] == 1.0
    # Without identities nobody notices: an honest-but-curious server is all that is covered then.
    naive = a_client(3)
    key_of(naive, [3, 8])
    assert bits_of(naive, **told(3, [3, 8], {8: [forged]}))[1]["fallback"] == 0.0
    session = Session(0, 1, 0, (3, 8))
    with pytest.raises(KeyRefused, match="not on the list"):
        Identity(private3, {}).verify(8, session.signed(8, keys[8][0]), keys[8][1], "key")
    with pytest.raises(KeyRefused, match="not signed"):
        Identity(private3, {8: stranger}).verify(8, session.signed(8, keys[8][0]), keys[8][1], "key")
    for other in (replace(session, round=2), replace(session, members=(3, 8, 9)), replace(session, run=1)):
        with pytest.raises(KeyRefused, match="not signed"):
            Identity(private3, {8: public8}).verify(8, other.signed(8, keys[8][0]), keys[8][1], "key")


def a_signed_group() -> tuple[dict[int, CoQFLClient], dict[int, list[bytes]]]:
    """Three clients with identities, and their signed keys."""
    group = [2, 5, 7]
    identities = {number: new_identity() for number in group}
    peers = {number: public for number, (_, public) in identities.items()}
    clients = {n: a_client(n, group_size=4, identity=Identity(identities[n][0], peers)) for n in group}
    return clients, {number: key_of(client, group) for number, client in clients.items()}


def seeds_of(client: CoQFLClient, number: int, group: list[int], keys: dict[int, list[bytes]]) -> list[bytes]:
    options = {name.replace("_", "-"): value for name, value in told(number, group, keys).items()}
    return [array.tobytes() for array in client.fit([], {ROUND: 1, ATTEMPT: 0, EXCHANGE: SEEDS, **options})[0]]


def test_only_a_groups_first_member_seals_seeds() -> None:
    """Two seeds under one key and one nonce: what the server relays would show their difference."""
    clients, keys = a_signed_group()
    assert seeds_of(clients[2], 2, [2, 5, 7], keys)
    with pytest.raises(KeyRefused, match="first member alone"):
        seeds_of(clients[5], 5, [2, 5, 7], keys)


def test_a_groups_seed_is_sealed_for_signed_keys_alone_and_taken_from_a_signed_leader_alone() -> None:
    group = [2, 5, 7]
    clients, keys = a_signed_group()
    private = identities.new_private_key()
    forged = identities.public_key(private)
    # The server hands the leader its own key for member 5: nothing is sealed to it, and 7 is served all the same.
    sealed = seeds_of(clients[2], 2, group, keys | {5: [forged, keys[5][1]]})
    assert sealed[0] == b"" and len(sealed[1]) > 32
    # It plays the leader towards member 5, with a seed of its own.
    session = Session(0, 1, 0, tuple(group))
    pair = KeyPair(private).agree(keys[5][0], session.info("seed"))
    false = identities.seal(pair, bytes(32), session.info("seed"))
    _, figures = bits_of(clients[5], **told(5, group, keys | {2: [forged, keys[2][1]]}), **{SEALED: false})
    assert figures["fallback"] == 1.0
    _, figures = bits_of(clients[7], **told(7, group, keys), **{SEALED: sealed[1]})
    assert figures["fallback"] == 0.0


def test_identities_are_read_from_the_clients_own_disk(tmp_path: Path) -> None:
    private, public = new_identity()
    (tmp_path / "key").write_bytes(private)
    (tmp_path / "peers").write_text(json.dumps({"4": public.hex()}))
    found = read_identity(tmp_path / "key", tmp_path / "peers")
    assert found.private == private and found.peers == {4: public}
    (tmp_path / "peers").write_text("[]")
    with pytest.raises(OptionError, match="node-config peer-keys"):
        read_identity(tmp_path / "key", tmp_path / "peers")
    with pytest.raises(OptionError, match="node-config identity-key"):
        read_identity(tmp_path / "nothing", tmp_path / "peers")


def test_node_config_gives_a_client_its_identity_in_a_deployment_alone(tmp_path: Path) -> None:
    private, public = new_identity()
    (tmp_path / "key").write_bytes(private)
    (tmp_path / "peers").write_text(json.dumps({"1": public.hex()}))
    context = empty_context(77, 5, 0, 2)
    context.node_config["identity-key"] = str(tmp_path / "key")
    with pytest.raises(OptionError, match="node-config peer-keys"):
        _identity(compose(["strategy=coqfl"]), context)
    context.node_config |= {"identity-key": str(tmp_path / "key"), "peer-keys": str(tmp_path / "peers")}
    secure = compose(["strategy=coqfl", "privacy.rng=secure"])
    assert _identity(secure, context) == (Identity(private, {1: public}), 77)
    assert _identity(compose(["strategy=coqfl"]), context) == _identity(secure, context)  # whatever the run says
    assert _identity(compose(["strategy=coqfl"]), empty_context(77, 5, 0, 2)) == (None, 0)
    assert _identity(secure, empty_context(77, 5, 0, 2)) == (None, 77)
    client = Worker(secure).client(0, BytesStore(), *_identity(secure, context))
    assert client.site is not None and client.site.identity is not None and client.site.run_id == 77


def test_secrets_differ_by_everything_that_is_public() -> None:
    a, b = identities.new_private_key(), identities.new_private_key()
    base = Session(1, 2, 0, (3, 8))
    others: list[dict[str, Any]] = [{"run": 2}, {"round": 3}, {"attempt": 1}, {"members": (3, 9)}]
    sessions = [base, *(replace(base, **other) for other in others)]
    secrets = {KeyPair(a).agree(identities.public_key(b), session.info("pair")) for session in sessions}
    secrets.add(KeyPair(a).agree(identities.public_key(b), base.info("seed")))
    assert len(secrets) == 6
    key = KeyPair(a).agree(identities.public_key(b), base.info("pair"))
    assert key == KeyPair(b).agree(identities.public_key(a), base.info("pair"))
    streams = [identities.stream(key, of_layer(layer), 64) for layer in (0, 1)]
    assert streams[0] != streams[1] and identities.stream(key, of_layer(0), 32) == streams[0][:32]
    assert len(set(identities.stream(key, of_layer(0), 100_000))) == 256


# --- what it costs -----------------------------------------------------------------------------------------


def test_what_is_booked() -> None:
    client = a_client(3)
    bits_of(client)
    assert client.site is not None
    entries = read_memory(client.site.store).uncollected
    common = {"epsilon": 1.0, "private_share": 0.3, "bits": 8, "dimension": 33, "group_size": 2}
    assert [entry.event for entry in entries] == [
        PairedQuantisation(threat=threat, **common) for threat in (CLIENT_TO_SERVER, WITH_MEMBERS)
    ]
    alone = [RandomisedResponse(threat=t, epsilon=1.0, dimension=33) for t in (CLIENT_TO_SERVER, WITH_MEMBERS)]
    assert [entry.realised for entry in entries] == alone


def test_published_pairs_are_infinite_and_ldp_fl_is_not(run: Run) -> None:
    folder = run("strategy=coqfl", "privacy.variant=published", "num_rounds=1")
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == "inf" and privacy["claimed_epsilon"] == 1.0
    assert privacy["claimed_scope"] == "coordinate" and "not jointly private" in privacy["reasons"][0]
    with pytest.raises(OptionError, match=r"privacy\.max_epsilon=9"):
        run("strategy=coqfl", "privacy.variant=published", "privacy.max_epsilon=9")
    plain = run("strategy=coqfl", "privacy.variant=published", "strategy.client.bits=0", "num_rounds=1")
    assert json.loads((plain / "summary.json").read_text())["privacy"]["verified_at_claimed_scope"] == 1.0


def test_the_pages_own_figures() -> None:
    """eps = 1: joint epsilon 2.28 and 3.29 at lambda = 0.25; one round of 80,202 coordinates at eps = 0.01: 802, 17."""
    mu = 1 - math.sqrt(0.75)
    for threat, expected in ((CLIENT_TO_SERVER, 2.28), (WITH_MEMBERS, 3.29)):
        event = PairedQuantisation(threat=threat, epsilon=1.0, private_share=mu, bits=16)
        assert compose_events([event], 1e-12).epsilon == pytest.approx(expected, abs=0.01)
    weak = RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.01, dimension=80_202)
    assert compose_events([weak], DELTA).epsilon == pytest.approx(17, abs=0.5)


def planned_pair(dimension: int, **changes: Any) -> CoQFLClient:
    given: dict[str, Any] = {"epsilon": 1.0, "encode": "update", "radius": 0.5, "bits": 16, "group_size": 2}
    facts = PublicFacts(40, 40, 8, 1, 2, num_parameters=dimension)
    return making.client(CoQFLClient, facts=facts, **given | {"private_share": 0.3} | changes)


def test_the_share_is_chosen_for_the_least_variance() -> None:
    """Against a search by hand: no other share does better at the same joint epsilon."""
    target, found = 3.0, {}
    for share in PRIVATE_SHARES:

        def plan(noise: float, share: float = share) -> list[Any]:
            return planned_pair(40, private_share=share, epsilon=1 / noise, bits=4).planned_events(1)

        found[share] = mean_variance(1 / calibrate(plan, target, DELTA).noise_multiplier, 4, 2, share)
    chosen = CoQFLClient.chosen_for(target, DELTA, 1, partial(planned_pair, 40, bits=4))
    assert chosen["private_share"] == min(found, key=lambda share: found[share]) < 1
    # One coordinate alone, pure epsilon below ln 4: nothing shared helps.
    assert CoQFLClient.chosen_for(1.0, 1e-9, 1, partial(planned_pair, 1, bits=4))["private_share"] == 1.0


@pytest.mark.parametrize(("bits", "size", "share"), [(8, 2, 0.0), (3, 2, 0.3), (8, 2, 1.0), (8, 4, 0.2), (8, 8, 0.0)])
def test_mean_variance_is_what_is_measured(bits: int, size: int, share: float) -> None:
    """By sampling values, shared randomness and bits."""
    rng, draws, epsilon = np.random.default_rng(5), 400_000, 1.3
    values = torch.from_numpy(rng.uniform(-1, 1, (size, draws)))
    own = torch.from_numpy(rng.uniform(size=(size, draws)))
    stream = rng.bytes(8 * size * draws)
    errors = torch.zeros(draws, dtype=torch.float64)
    for member in range(size):
        p = high_probability(values[member], 0.0, 1.0, epsilon)
        if size == 2:
            sent = mixed_pair_bits(p, cells_of(stream[:draws], bits), own[member], bits, member == 0, share)
        else:
            sent = mixed_group_bits(p, ranks_of(stream, size, member), own[member], size, share)
        errors += (decode(sent.double(), 0.0, 1.0, epsilon) - values[member]) / size
    spread = float((errors**2).std()) / math.sqrt(draws)
    assert abs(float((errors**2).mean()) - mean_variance(epsilon, bits, size, share)) < 4.5 * spread + 1e-3


def test_over_many_coordinates_sharing_pays_below_ln_4_too() -> None:
    """Against the page: composed at delta > 0, what counts is the law and not its largest ratio. At one target for the
    whole run the pair's mean has half the variance that independent bits have.
    """
    shared = CoQFLClient.chosen_for(20.0, DELTA, 10, partial(planned_pair, 80_202, bits=8))
    alone = CoQFLClient.chosen_for(20.0, DELTA, 10, partial(planned_pair, 80_202, bits=0))
    ratio = mean_variance(shared["epsilon"], 8, 2, shared["private_share"]) / mean_variance(alone["epsilon"], 8, 2, 1.0)
    assert shared["private_share"] < 0.1 and 0.45 < ratio < 0.56


def test_shuffled_bits_are_accounted_where_amplification_holds() -> None:
    many = ("strategy=ldpfl", "strategy.client.shuffle=true", "num_rounds=1", "strategy.client.epsilon=0.1")
    config = compose(
        [*many, "num_clients=700", "clients_per_round=700", "local.batch_size=1", "strategy.server.min_replies=700"]
    )
    own, counts = make_client(config).charges(None)
    assert counts.event.threat.observer == "secure-sum"
    one, shuffled = (compose_events([c.event], DELTA).epsilon for c in (own, counts))
    assert shuffled < one
    assert counts.event.users == 700  # type: ignore[attr-defined]
    few = make_client(compose([*many, "num_clients=4", "clients_per_round=4"])).charges(None)
    assert compose_events([few[1].event], DELTA).epsilon >= compose_events([few[0].event], DELTA).epsilon * 0.99


def test_the_audit_refutes_the_published_claim_and_not_the_repaired_bound() -> None:
    def one_coordinate(*options: str) -> Any:
        config = compose(["strategy=coqfl", "num_clients=4", "clients_per_round=4", *options])
        return audit_config(config, trials=20_000, confidence=0.99, seed=1, participations=1)[-1]

    published = one_coordinate("privacy.variant=published")
    assert published.audit.epsilon_lower > 3 and published.verdict == "refutes the claim"
    assert math.isinf(published.verified)
    repaired = one_coordinate()
    assert 1.3 < repaired.audit.epsilon_lower <= repaired.verified < 1.65
    assert repaired.verdict == "refutes the claim"  # jointly a pair costs more than a bit's own eps
    honest = one_coordinate("strategy.client.bits=0")
    assert 0.85 < honest.audit.epsilon_lower <= honest.verified == pytest.approx(1.0, abs=1e-4)
    assert honest.verdict == "consistent with the claim"
    group = one_coordinate("privacy.variant=published", "strategy.client.group_size=4")
    assert group.audit.epsilon_lower > 2 and group.verdict == "refutes the claim"


# --- intervals ---------------------------------------------------------------------------------------------


def test_weights_are_encoded_in_intervals_that_follow_released_weights(run: Run) -> None:
    options = ("strategy=ldpfl", "strategy.client.encode=weights", "strategy.client.radius=0.4", "num_rounds=8")
    figures = [row["figures"] for row in rows_of(run(*options))]
    radii = [row["radii"][0] for row in figures]
    assert all(later <= earlier for earlier, later in itertools.pairwise(radii)) and radii[0] < 0.4
    assert all(0 <= row["clamped_share"] <= 1 for row in figures)


def test_no_shared_cell_is_used_for_two_coordinates() -> None:
    """Two layers of which one is longer than a piece: the cells that work() takes never repeat a stretch."""
    layers = (("a", 0, 40_000), ("b", 40_000, 80_000))
    layout = Layout(tuple(Block(*layer) for layer in layers), ("a.w", "b.w"), ((40_000,), (40_000,)))
    client = a_client(3)
    assert client.site is not None
    client.site = replace(client.site, layout=layout)
    client.run = replace(client.run, facts=replace(client.facts, num_parameters=80_000))
    client.secret = bytes(32)
    starts = range(0, 40_000, 8_000)
    taken = [client._shared(layer, slice(start, start + 8_000)) for layer in (0, 1) for start in starts]
    whole = torch.cat(taken)
    assert whole.numel() == 80_000 and len({piece.numpy().tobytes() for piece in taken}) == 10
    seen: list[torch.Tensor] = []
    real = client._shared
    client._shared = lambda layer, piece: seen.append(real(layer, piece)) or seen[-1]  # type: ignore[method-assign,func-returns-value]
    client.radii, client.centres = [0.5, 0.5], [0.0, 0.0]
    client.release(torch.zeros(80_000), None, SeededNoise(1))
    assert torch.equal(torch.cat(seen), whole)


def test_checkpoints_hold_no_private_key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of a client that never got to its release, so that its key still waits."""
    real = CoQFLClient.prepare

    def prepare(client: CoQFLClient, request: Any, down: Any = ()) -> None:
        if (client._site().client, request.round) == (0, 2):
            raise RuntimeError("in the middle of a round")
        real(client, request, down)

    monkeypatch.setattr(CoQFLClient, "prepare", prepare)
    folder = run("strategy=coqfl", "privacy.rng=secure", "checkpoint.every=1")
    files = list((folder / "checkpoints").rglob("*"))
    assert len(files) > 2 and not any(b"waiting" in file.read_bytes() for file in files if file.is_file())


def test_a_constant_layer_keeps_the_smallest_radius() -> None:
    from fedpriv.server.round import Population
    from strategies.ldpfl import LDPFL

    population = Population(0, 2, 2, lambda _: 10, layers=(slice(0, 4), slice(4, 6)))
    server = making.server(
        LDPFL, population, epsilon=1.0, encode="weights", radius=[0.5, 0.2], radius_floor=0.01, clip_factor=1.5
    )
    server.follow(np.array([0.1, 0.3, -0.1, 0.2, 7.0, 7.0], np.float32))
    assert server.centres == pytest.approx([0.1, 7.0]) and server.radii == pytest.approx([0.3, 0.01])
    server.follow(np.array([-9, 9, 0, 0, 1, 2], np.float32))
    assert server.radii == pytest.approx([0.3, 0.01])  # never above what it was
    again = making.server(
        LDPFL, population, epsilon=1.0, encode="weights", radius=[0.5, 0.2], radius_floor=0.01, clip_factor=1.5
    )
    again.load_state_dict(json.loads(json.dumps(server.state_dict())))
    assert (again.centres, again.radii) == (server.centres, server.radii)


@pytest.mark.parametrize("bad", [{RADII: [0.1, 0.0]}, {RADII: [0.1]}, {CENTRES: [0.0, math.nan]}, {RADII: "0.1"}, {}])
def test_an_announced_interval_that_is_none_is_refused(bad: dict[str, Any]) -> None:
    announced = {CENTRES: [0.0, 0.0], RADII: [0.1, 0.1]} | bad if bad else {}
    client = a_client(3, encode="weights")
    with pytest.raises(UnsafeNoise, match="for 2 named blocks"):
        bits_of(client, **announced)
    assert client.site is not None and client.site.store.read() is None
    bits_of(client, **{CENTRES: [0.0, 0.0], RADII: [0.1, 0.2]})


def test_radii_per_block() -> None:
    assert per_layer(0.5, 3) == [0.5] * 3 and per_layer([1, 2.0], 2) == [1.0, 2.0]
    with pytest.raises(OptionError, match="2 radii for 3 named blocks"):
        per_layer([1, 2], 3)


# --- CoQ-FL in whole rounds: keys, groups and those who are missing, faults and engines ----------------------------


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local training that changes nothing: every coordinate's probability is exactly 1/2."""

    def train(self: SequentialTrainer, asked: Training) -> LocalResult:
        return LocalResult(torch.zeros_like(asked.theta), 0.0)

    monkeypatch.setattr(SequentialTrainer, "train", train)


# --- shared bits in whole rounds -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=coqfl", "privacy.variant=published"),
        ("strategy=coqfl", "privacy.variant=published", "strategy.client.bits=3"),
        ("strategy=coqfl", "privacy.variant=published", "strategy.client.bits=13"),
        ("strategy=coqfl", "privacy.variant=published", "strategy.client.group_size=4"),
        ("strategy=corrquant",),
    ],
    ids=" ".join,
)
def test_at_the_centre_the_members_errors_cancel_exactly(options: tuple[str, ...], still: None) -> None:
    """At p = 1/2 a pair sends one high bit and one low one, a group as many high as low: the mean is exactly theta. So
    all members have derived the same bits.
    """
    talk = Conversation(*options, "num_rounds=2")
    assert all(np.abs(theta - talk.thetas[0]).max() < 1e-9 for theta in talk.thetas)


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=ldpfl",),
        ("strategy=coqfl", "strategy.client.bits=0"),
        ("strategy=coqfl",),  # repaired: private coins
        ("strategy=coqfl", "privacy.variant=published", "num_clients=3", "clients_per_round=3"),  # one is left over
    ],
    ids=" ".join,
)
def test_without_shared_bits_they_do_not_cancel(options: tuple[str, ...], still: None) -> None:
    talk = Conversation(*options, "num_rounds=1")
    moved = np.abs(talk.thetas[1] - talk.thetas[0])
    assert (moved > 1e-4).mean() > 0.2


def test_the_repaired_pair_disagrees_as_often_as_it_should(still: None) -> None:
    """At p = 1/2 a pair's bits are equal with probability lambda/2, lambda = 1 - 0.7^2 = 0.51."""
    talk = Conversation("strategy=coqfl", "num_clients=2", "clients_per_round=2", "num_rounds=20")
    equal = np.concatenate([np.abs(b - a) > 1e-6 for a, b in zip(talk.thetas, talk.thetas[1:], strict=False)])
    expected = 0.51 / 2
    assert abs(equal.mean() - expected) < 4.5 * math.sqrt(expected * (1 - expected) / equal.size)


def test_m_0_is_ldp_fl_bit_for_bit(run: Run) -> None:
    plain = result_of(run("strategy=ldpfl"))["model"]
    assert result_of(run("strategy=coqfl", "strategy.client.bits=0"))["model"] == plain
    assert result_of(run("strategy=coqfl"))["model"] != plain


def test_no_message_holds_a_secret() -> None:
    """Private keys, group seeds and what is derived from them are in no message in any form; public keys are."""
    kept: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("new_private_key", "derive"):  # agreed secrets are derived ones
            real = getattr(identities, name)
            patch.setattr(identities, name, lambda *a, real=real, **k: kept.append(real(*a, **k)) or kept[-1])
        talk = Conversation("strategy=coqfl", "strategy.client.group_size=4", "num_rounds=2")
    seen = b"".join(everything(message) for pair in talk.grid.seen for message in pair)
    assert len(kept) > 8 and not any(secret in seen for secret in kept)
    assert any(identities.public_key(secret) in seen for secret in kept)


def everything(message: Message) -> bytes:
    found = b""
    for record in message.content.values():
        if isinstance(record, ConfigRecord):
            for value in record.values():
                blobs = value if isinstance(value, list) else [value]
                found += b"|".join(blob for blob in blobs if isinstance(blob, bytes))
        elif hasattr(record, "numpy_ndarrays") or record.__class__.__name__ == "ArrayRecord":
            found += b"".join(bytes(array.data) for array in record.values())
    return found


def test_one_bit_per_coordinate_is_on_the_wire() -> None:
    """At most 1.05 d/8 bytes and 2 KiB for a client and round, keys and headers included."""
    talk = Conversation("strategy=coqfl", "dataset=digits", "model=mlp", "model.hidden=1000", "num_rounds=1")
    size = talk.thetas[0].size
    assert size > 70_000 and talk.bytes_up / 4 <= 1.05 * size / 8 + 2048
    releases = [answer for message, answer in talk.grid.seen if exchange_of(message) == TRAIN]
    assert len(releases) == 4
    assert all(unpack_array(answer.content).shape == (-(-size // 8),) for answer in releases)
    plan = make_plan(talk.config, talk.worker)
    assert plan.bytes_up == 4 * -(-size // 8)


def exchange_of(message: Message) -> str:
    return str(message.content["config"].get(EXCHANGE, TRAIN))  # type: ignore[union-attr]


def test_encoded_weights_come_back_as_weights(still: None) -> None:
    """With training that changes nothing the mean of the decoded weights is theta, up to the bits' own noise."""
    options = ("strategy=ldpfl", "strategy.client.encode=weights", "strategy.client.radius=0.5", "num_rounds=1")
    talk = Conversation(*options, "strategy.client.epsilon=8.0", "strategy.server.clip_factor=1.01")
    start, moved = talk.thetas[0], talk.thetas[1]
    radius = 1.01 * (start.max() - start.min()) / 2
    error = radius / math.sqrt(4 * start.size)  # of the mean over all coordinates, at most
    assert abs((moved - start).mean()) < 4.5 * error
    slope = float(start @ moved / (start @ start))  # 0 if updates were sent, 2 if theta were added once more
    assert abs(slope - 1) < 4.5 * error / float(start.std()) < 0.5


# --- groups and those who are missing ----------------------------------------------------------------------


@pytest.mark.parametrize(("cohort", "size", "sizes"), [(6, 2, [2, 2, 2]), (7, 2, [2, 2, 2, 1]), (10, 4, [4, 4, 2])])
def test_groups_are_a_cut_of_the_cohort(cohort: int, size: int, sizes: list[int]) -> None:
    ids = [3 * k + 1 for k in range(cohort)]
    seen = Counter()
    for number in range(400):
        groups = draw_groups(0, number, 0, ids, size)
        assert [len(group) for group in groups] == sizes and sorted(reduce(operator.iadd, groups, [])) == ids
        assert all(group == sorted(group) for group in groups)
        seen[tuple(groups[0])] += 1
    assert draw_groups(0, 5, 0, ids, size) == draw_groups(0, 5, 0, ids, size) != draw_groups(0, 5, 2, ids, size)
    assert len(seen) > 10  # drawn anew in every round


@pytest.mark.parametrize("exchange", ["keys", "train"])
def test_a_missing_partner(exchange: str, run: Run) -> None:
    """Without its key its partner uses own noise and says so; lost afterwards, the partner's bits stay as they are."""
    fault = f"engine.faults=[{{round:2,client:1,exchange:{exchange},kind:drop}}]"
    folder = run("strategy=coqfl", fault)
    rows = rows_of(folder)
    assert [row["figures"]["fallbacks"] for row in rows] == [0, exchange == "keys", 0]
    # Without its key a client still trains, with its own noise.
    assert [row["participants"] for row in rows] == [4, 4 if exchange == "keys" else 3, 4]
    alone = [line for line in ledger_of(folder) if "realised" in line and line["observer"] == "server"]
    assert [line["round"] for line in alone] == ([2] if exchange == "keys" else [])


def test_a_missing_leader_leaves_its_group_with_own_noise(run: Run) -> None:
    fault = "engine.faults=[{round:1,client:0,exchange:seeds,kind:raise}]"
    rows = rows_of(run("strategy=coqfl", "strategy.client.group_size=4", fault))
    assert [row["figures"]["fallbacks"] for row in rows] == [3, 0, 0]  # the leader has its own seed
    assert "planned" in rows[0]["errors"]["0"] or "raises" in rows[0]["errors"]["0"]


def test_a_member_without_a_key_leaves_the_rest_of_its_group_alone(run: Run) -> None:
    """Its leader has no seed for it, which is an empty answer, not the end of the run."""
    fault = "engine.faults=[{round:1,client:2,exchange:keys,kind:drop}]"
    rows = rows_of(run("strategy=coqfl", "strategy.client.group_size=4", fault))
    assert [row["participants"] for row in rows] == [4, 4, 4]
    assert [row["figures"]["fallbacks"] for row in rows] == [1, 0, 0]


@pytest.mark.parametrize(("clients", "size"), [(5, 2), (7, 4)])
def test_left_over_clients_are_realised_cheaper(clients: int, size: int, run: Run) -> None:
    options = (f"num_clients={clients}", f"clients_per_round={clients}", f"strategy.client.group_size={size}")
    folder = run("strategy=coqfl", *options)
    lines = [line for line in ledger_of(folder) if line["observer"] == "server"]
    assert sum("realised" in line for line in lines) == (3 if size == 2 else 0)  # of seven, three form a group
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["spent_so_far"] <= privacy["verified_epsilon"]
    (others,) = privacy["others"]
    assert others["observer"] == "server+members" and others["verified_epsilon"] >= privacy["verified_epsilon"]


# --- faults and engines --------------------------------------------------------------------------------------


def test_a_reply_with_too_few_bits_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.client import one_bit as one_bit_client

    real, calls = one_bit_client.pack, []

    def short(bits: Any) -> Any:
        calls.append(0)
        return real(bits)[:-1] if len(calls) == 2 else real(bits)

    monkeypatch.setattr(one_bit_client, "pack", short)
    rows = rows_of(run("strategy=coqfl"))
    assert [row["participants"] for row in rows] == [3, 4, 4]
    assert rows[0]["errors"]["1"] == "refused: arrays.vector: expected 82 bytes for 650 bits, got uint8 [81]"


def test_it_works_with_secure_noise_and_keys(run: Run) -> None:
    rows = rows_of(run("strategy=coqfl", "strategy.client.group_size=4", "privacy.rng=secure"))
    assert all(row["participants"] == 4 and row["figures"]["groups"] == 1 for row in rows)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["strategy=ldpfl", "strategy.client.epsilon=0"], "strategy.client.epsilon=0: must be more than 0"),
        (["strategy=coqfl", "strategy.client.radius=0.0"], "strategy.client.radius=0.0: must be from 1e-9"),
        (["strategy=coqfl", "strategy.client.radius=[0.1,-1]"], "radius=[0.1, -1]: must be from 1e-9"),
        (["strategy=coqfl", "strategy.client.radius=[0.1,0.2]"], "radius=[0.1, 0.2]: 2 radii for 1"),
        (["strategy=coqfl", "strategy.client.bits=40"], "strategy.client.bits=40: must be at most 16"),
        (["strategy=coqfl", "strategy.client.group_size=1"], "strategy.client.group_size=1: must be at least 2"),
        (["strategy=coqfl", "strategy.client.group_size=9"], "group_size=9: at most clients_per_round=4"),
        (["strategy=coqfl", "strategy.server.bits=17"], "strategy.client.bits=17: must be at most 16"),
        (["strategy=coqfl", "strategy.client.private_share=0.0"], "private_share=0.0: must be more than"),
        (["strategy=coqfl", "strategy.server.weighting=examples"], "weighting=examples: allowed: uniform"),
        (["strategy=ldpfl", "strategy.client.shuffle=true", "strategy.client.shuffle_delta=0.1"], "delta=0.1: must"),
        (["strategy=corrquant", "strategy.client.encode=bits"], "encode=bits: allowed: update or weights"),
        (["strategy=corrquant", "privacy.target_epsilon=3"], "target_epsilon=3.0: corrquant has no noise"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line(overrides: list[str], words: str, cli: Callable[..., Outcome]) -> None:
    outcome = cli(*overrides, "num_clients=4", "clients_per_round=4", "num_rounds=1", "plan=true")
    assert outcome.code == 2 and words in outcome.err and len(outcome.err.strip().splitlines()) == 1, outcome.err
