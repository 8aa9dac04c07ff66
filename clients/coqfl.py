"""CoQ-FL, client half: one-bit private quantisation whose errors cancel between the members of a pair or group.

An unfinished draft; its equations are restored from its words and from LDP-FL. Every coordinate is one bit; the
members of a group share random bits that the server does not know; the server sees each client's bits.

Symbols: eps -> epsilon (of one coordinate), r -> radius, M -> bits, g -> group_size, mu -> private_share,
lambda = 1 - (1 - mu)^2, u -> cell, pi(j) -> rank, Alice -> the member with the smallest id.

Where this departs from the draft:
- Published (mu = 0), a pair's two bits together can show on which side of the centre a member's value lies, so nothing
  is private jointly. Repaired, each client takes for every coordinate with probability mu a uniform of its own.
- Groups of more than two, which the draft leaves open, share a permutation per coordinate and keep their own uniforms.
- Whatever is wrong with a partner, its key or its signature: the client falls back to its own noise, which is unbiased.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fedpriv.client.contract import Charge, Release, Trained
from fedpriv.client.memory import ClientMemory, StaleRequest, Waiting, read_memory, repeated_answer
from fedpriv.client.method import Method
from fedpriv.client.one_bit import WITH_MEMBERS, OneBitClient, Session, of_layer
from fedpriv.common import identities as keys_of
from fedpriv.common.identities import KeyPair, KeyRefused
from fedpriv.common.messages import (
    KEY_ATTEMPT,
    KEYS,
    MEMBERS,
    PUBLIC_KEYS,
    SEALED,
    SEEDS,
    SIGNATURES,
    TRAIN,
    Outgoing,
    Request,
    place,
    shown,
)
from fedpriv.config.methods import CoQFLOptions
from fedpriv.mechanisms import laws
from fedpriv.mechanisms.noise import NoiseSource, encode_key
from fedpriv.mechanisms.quantisation import (
    cell_bytes,
    cells_of,
    group_bits,
    group_covariance,
    rank_bytes,
    ranks_of,
    tanh_half,
)
from fedpriv.privacy import claimed
from fedpriv.privacy.events import PairedQuantisation, RandomisedResponse, Threat

log = logging.getLogger("fedpriv")

#: Values of one member in the average over their interval.
GRID = 64
#: What `privacy.target_epsilon` chooses from: lambda = 1 - (1 - mu)^2 from 0.04 to 1.
PRIVATE_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)


def pair_bits(p: Tensor, cell: Tensor, own: Tensor, bits: int, first: bool) -> Tensor:
    """A pair's bits, bool [..., d]: high with probability clip(t_a - u, 0, 1), t_a = p N, for the first member (Alice),
    clip(u + 1 - t_b, 0, 1), t_b = (1 - p) N, for the second. ``cell``: u in {0..N-1}, the same for both.
    """
    cells = 2**bits  # equally likely sequences  [CoQ-FL, Alg. 1 step 2]
    # Bob's cell is promoted to float first: in uint8, as the shared stream has it, 255 + 1 would be 0
    edge = p * cells - cell if first else cell + (1 - (1 - p) * cells)  # [CoQ-FL, Alg. 1 step 3]
    return own < edge  # [CoQ-FL, Alg. 1 step 4]


# --- the repair: with probability mu a coordinate uses a uniform of the client alone ------------------------------


def with_private_coins(p: Tensor, own: Tensor, private_share: float) -> tuple[Tensor, Tensor, Tensor]:
    """(coin, bits under the coin, uniforms without it): with probability mu a coordinate uses a private uniform.

    One private uniform serves as the coin and, rescaled to (0, 1), as the next step's uniform: given the coin, it
    is uniform again. Bits and uniforms that the coin rules out mean nothing.
    """
    coin = own < private_share
    if private_share == 0:
        return coin, coin, own
    if private_share == 1:
        return coin, own < p, own
    scaled, fresh = own / private_share, (own - private_share) / (1 - private_share)
    return coin, scaled < p, fresh


def mixed_pair_bits(p: Tensor, cell: Tensor, own: Tensor, bits: int, first: bool, private_share: float) -> Tensor:
    """The repaired pair: the antithetic bit, or with probability mu an independent one."""
    coin, alone, fresh = with_private_coins(p, own, private_share)
    return _by_coin(coin, alone, pair_bits(p, cell, fresh, bits, first))


def mixed_group_bits(p: Tensor, rank: Tensor, own: Tensor, size: int, private_share: float) -> Tensor:
    """The repaired group: the permutation's bit, or with probability mu an independent one."""
    coin, alone, fresh = with_private_coins(p, own, private_share)
    return _by_coin(coin, alone, group_bits(p, rank, fresh, size))


def _by_coin(coin: Tensor, alone: Tensor, shared: Tensor) -> Tensor:
    """`torch.where` for bits, without a branch for each."""
    return (coin & alone) | (shared & ~coin)


class CoQFLClient(OneBitClient):
    """Antithetic pairs (group_size 2) or permutation groups. bits: M; 0: LDP-FL."""

    options: CoQFLOptions
    traits = replace(OneBitClient.traits, shares_secrets=True, own_requests=True, exchanges=(KEYS, SEEDS, TRAIN))
    in_rows = True
    #: The group's secret of this participation; None: own noise.
    secret: bytes | None = None
    members: tuple[int, ...] = ()
    member: int = 0
    fallback: str | None = None
    _streams: Mapping[int, Tensor] = MappingProxyType({})

    @property
    def bits(self) -> int:
        return self.options.bits

    @property
    def group_size(self) -> int:
        return self.options.group_size

    @property
    def private_share(self) -> float:
        """mu. The repair: with none, a pair's two bits together are not private."""
        return self.options.private_share if self.repaired else 0.0

    # --- the exchanges -----------------------------------------------------------------------------------

    def further(self, request: Request) -> Outgoing:
        """``keys``: tells the public key, or it and its signature. ``seeds``, to a group's first member: a sealed seed
        for each other member, in order. Raises `StaleRequest` for what comes too late.
        """
        site = self._site()
        memory = read_memory(site.store)
        if repeated_answer(memory, request) is not None:
            raise StaleRequest(f"round {request.round} was answered already")
        told = self._key(request, memory) if request.exchange == KEYS else self._seeds(request, memory)
        return Outgoing(site.num_examples, blobs=tuple(told))

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        super().prepare(request, down)
        self._join(request)

    def _key(self, request: Request, memory: ClientMemory) -> list[bytes]:
        """A fresh key pair for this round; the private half waits in the client's memory until its release."""
        site, waiting = self._site(), memory.waiting
        asked = (request.round, request.attempt)
        if waiting is None or place(*asked) > place(waiting.round, waiting.attempt):
            seed = None
            if site.rng == "seeded" and site.identity is None:
                seed = encode_key("ephemeral key", site.seed, site.client, *asked)
            private = keys_of.new_private_key(seed)
            waiting = Waiting(*asked, {"private": torch.frombuffer(bytearray(private), dtype=torch.uint8)})
            site.store.keep(replace(memory, waiting=waiting))
        elif asked != (waiting.round, waiting.attempt):
            raise StaleRequest(f"round {request.round} comes after round {waiting.round} has a key")
        public = KeyPair(_private(waiting)).public
        if site.identity is None:
            return [public]
        session = self._session(request, request.attempt)
        return [public, site.identity.sign(session.signed(site.client, public))]

    def _seeds(self, request: Request, memory: ClientMemory) -> list[bytes]:
        """The group's seed, sealed for every other member; an empty one where the member's key cannot be used."""
        waiting = memory.waiting
        if waiting is None or waiting.round != request.round:
            raise StaleRequest(f"round {request.round}: a seed is asked for, but there is no key of this round")
        session = self._session(request, _attempt(request))
        if self._site().client != min(session.members):  # sealed by both of a pair, one nonce would serve two seeds
            raise KeyRefused("seeds are asked of the group's first member alone")
        private, sealed = _private(waiting), []
        for member, key in self._peer_keys(request, session).items():
            try:
                pair = KeyPair(private).agree(self._checked(key, member, request, session), session.info("seed"))
                sealed.append(keys_of.seal(pair, self._group_seed(private, session), session.info("seed")))
            except KeyRefused:
                sealed.append(b"")
        return sealed

    def _join(self, request: Request) -> None:
        """Derives the group's secret, or says why the client falls back to its own noise."""
        self.secret, self.fallback, self._streams = None, None, {}
        if self.bits == 0 or MEMBERS not in request.options:
            return  # planned: nobody to pair with
        try:
            self.secret = self._group_secret(request, read_memory(self._site().store))
        except KeyRefused as refused:
            self.fallback = str(refused)
            log.warning("client %d uses its own noise in round %d: %s", self._site().client, request.round, refused)

    def _group_secret(self, request: Request, memory: ClientMemory) -> bytes:
        waiting, own = memory.waiting, self._site().client
        if waiting is None or (waiting.round, _attempt(request)) != (request.round, request.attempt):
            raise KeyRefused("there is no key of this round and attempt")
        session = self._session(request, request.attempt)
        self.members, self.member = session.members, session.members.index(own)
        private, keys = _private(waiting), self._peer_keys(request, session)
        if self.group_size == 2:
            ((partner, key),) = keys.items()
            return KeyPair(private).agree(self._checked(key, partner, request, session), session.info("pair"))
        leader = min(session.members)
        if own == leader:
            return self._group_seed(private, session)
        key = keys.get(leader, b"")
        pair = KeyPair(private).agree(self._checked(key, leader, request, session), session.info("seed"))
        return keys_of.unseal(pair, _blob(request.options.get(SEALED)), session.info("seed"))

    def _session(self, request: Request, attempt: int) -> Session:
        """The public context. Raises `KeyRefused` for a group that cannot be this client's."""
        members = request.options.get(MEMBERS)
        own = self._site().client
        sound = isinstance(members, list) and all(type(member) is int for member in members)
        if not sound or own not in members or sorted(set(members)) != members:  # type: ignore[operator,arg-type]
            raise KeyRefused(f"the server names the group {shown(members)}")
        if not 2 <= len(members) <= self.group_size:  # type: ignore[arg-type]
            raise KeyRefused(f"the server names {len(members)} members, group_size is {self.group_size}")  # type: ignore[arg-type]
        return Session(self._site().run_id, request.round, attempt, tuple(members))  # type: ignore[arg-type]

    def _peer_keys(self, request: Request, session: Session) -> Mapping[int, bytes]:
        """The other members' public keys as the server relays them, in order; an empty one is missing."""
        keys, others = request.options.get(PUBLIC_KEYS), [m for m in session.members if m != self._site().client]
        if not isinstance(keys, list) or len(keys) != len(others):
            raise KeyRefused("the server relays another number of keys")
        return {member: _blob(key) for member, key in zip(others, keys, strict=True)}

    def _checked(self, key: bytes, member: int, request: Request, session: Session) -> bytes:
        """A peer's key after its signature was verified, where this client has an identity."""
        identity = self._site().identity
        if identity is not None:
            signatures = request.options.get(SIGNATURES)
            others = [m for m in session.members if m != self._site().client]
            sound = isinstance(signatures, list) and len(signatures) == len(others)
            signature = _blob(signatures[others.index(member)]) if sound else b""  # type: ignore[index]
            identity.verify(member, session.signed(member, key), signature, "key")
        return key

    def _group_seed(self, private: bytes, session: Session) -> bytes:
        """Known to the leader alone: derived from its private key of this round, so nothing more must be kept."""
        return keys_of.derive(private, session.info("group seed"))

    # --- the bits ----------------------------------------------------------------------------------------

    def quantise(self, p: Tensor, own: Tensor, layer: int, piece: slice) -> Tensor:
        if self._each:
            return self._quantise_each(p, own, layer, piece)
        if self.secret is None:
            return super().quantise(p, own, layer, piece)
        return self.mixed(p, self._shared(layer, piece), own, len(self.members), self.member == 0)

    def _quantise_each(self, p: Tensor, own: Tensor, layer: int, piece: slice) -> Tensor:
        """Bits [clients, n]: those whose bits have one rule side by side."""
        rules: dict[tuple[bool, int, bool], list[int]] = {}
        for row, one in enumerate(self._each):
            rule = one.secret is not None, len(one.members), one.member == 0 and self.group_size == 2
            rules.setdefault(rule, []).append(row)
        bits = torch.empty(p.shape, dtype=torch.bool)
        for (secret, size, first), rows in rules.items():
            if secret:
                shared = torch.stack([self._each[row]._shared(layer, piece) for row in rows])
                bits[rows] = self.mixed(p[rows], shared, own[rows], size, first)
            else:
                bits[rows] = super().quantise(p[rows], own[rows], layer, piece)
        return bits

    def mixed(self, p: Tensor, shared: Tensor, own: Tensor, size: int, first: bool) -> Tensor:
        """The bits of one member of a group of so many, from its cells or ranks and its own uniforms."""
        if self.group_size == 2:
            return mixed_pair_bits(p, shared, own, self.bits, first, self.private_share)
        return mixed_group_bits(p, shared, own, size, self.private_share)

    def _shared(self, layer: int, piece: slice) -> Tensor:
        """u or pi(j) of a piece of a layer."""
        if layer not in self._streams:
            assert self.secret is not None
            part = self._layers(self.facts.num_parameters)[layer]
            size = part.stop - part.start
            if self.group_size == 2:
                length = cell_bytes(size, self.bits)
                found = keys_of.stream(self.secret, of_layer(layer), length)  # [CoQ-FL, Alg. 1 step 1]
                self._streams = {layer: cells_of(found, self.bits)}
            else:
                found = keys_of.stream(self.secret, of_layer(layer), rank_bytes(size, len(self.members)))
                self._streams = {layer: ranks_of(found, len(self.members), self.member)}
        return self._streams[layer][piece]

    def releasing(self, theta: Tensor, trained: Trained, state: Any, noise: NoiseSource) -> Release:
        if any((one.centres, one.radii) != (self.centres, self.radii) for one in self._each):
            raise ValueError("clients that are rows were told different intervals")  # each alone keeps to its own
        release = super().releasing(theta, trained, state, noise)
        fallbacks = [float(one.fallback is not None) for one in self._each or (self,)]
        found = torch.tensor(fallbacks, dtype=torch.float64) if self._each else fallbacks[0]
        return replace(release, figures={**release.figures, "fallback": found})

    # --- what it costs (unit client, replace-one; observers server and server+members) --------------------

    def charges(self, state: Any) -> tuple[Charge, ...]:
        """The price of a shared participation, also where a client is left over: that is decided in public, and own
        noise costs less (`realised`).
        """
        if math.isinf(self.epsilon):
            return super().charges(state)
        own = self.site is not None and self.secret is None
        return tuple(Charge(shared, alone if own else None) for shared, alone in self._events)

    @cached_property
    def _events(self) -> list[tuple[PairedQuantisation, RandomisedResponse]]:
        """(of a shared participation, of one with own noise) against each observer."""
        return [
            (
                PairedQuantisation(
                    threat=threat,
                    epsilon=self.epsilon,
                    private_share=self.private_share,
                    bits=self.bits,
                    dimension=self.dimension,
                    group_size=self.group_size,
                ),
                RandomisedResponse(threat=threat, epsilon=self.epsilon, dimension=self.dimension),
            )
            for threat in (self.threat, WITH_MEMBERS)
        ]

    def claim(self, participations: int, delta: float) -> claimed.Claim | None:
        return None if math.isinf(self.epsilon) else claimed.coqfl(self.epsilon)

    @classmethod
    def chosen_for(
        cls,
        target: float,
        delta: float,
        participations: int,
        make: Callable[..., Method],
        threat: Threat | None = None,
    ) -> dict[str, float]:
        """(epsilon, private_share) that meet the target with the least `mean_variance`, from public quantities alone.
        private_share 1 is LDP-FL. Where one coordinate is all, nothing shared helps below a joint epsilon of ln 4; over
        many, at delta > 0, it does.
        """
        best, least = dict[str, float](), math.inf
        for private_share in PRIVATE_SHARES:
            changed = partial(make, private_share=private_share)
            found = super().chosen_for(target, delta, participations, changed, threat)
            client = make(private_share=private_share, **found)
            assert isinstance(client, CoQFLClient)
            variance = mean_variance(client.epsilon, client.bits, client.group_size, private_share)
            if variance < least:
                best, least = found | {"private_share": private_share}, variance
        return best

    # --- what the auditor tries --------------------------------------------------------------------------

    def audit_release(self, length: float, state: Any, shape: tuple[int, int], noise: NoiseSource) -> Release:
        """The client's bits beside those of its whole group: the server sees all. The others' values are known, at
        the upper end.
        """
        if self.bits == 0:
            return super().audit_release(length, state, shape, noise)
        size, radius, seen = self.group_size, self._first_radius(), []
        cell = noise.integers(0, 2**self.bits, shape)
        ranks = noise.uniform((size, *shape)).argsort(dim=0).argsort(dim=0)
        for member, value in enumerate([length * radius] + [radius] * (size - 1)):
            p, own = self.probability(torch.full(shape, value)), noise.uniform(shape)
            shared = cell if size == 2 else ranks[member]
            seen.append(self.mixed(p, shared, own, size, member == 0).float())
        return Release(torch.cat(seen, dim=-1), state)


def mean_variance(epsilon: float, bits: int, size: int, private_share: float) -> float:
    """Variance of a group's mean in units of r^2, for values uniform over their interval.

    At the centre alone a small share of private uniforms would look better than it is: the further from it the values
    lie, and the larger the group, the less of the members' errors cancels.
    """
    length, low = 1 / tanh_half(epsilon), (1 - tanh_half(epsilon)) / 2
    p = low + (1 - 2 * low) * (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    alone = 4 * length**2 * (p * (1 - p)).mean()
    a, b = p.unsqueeze(1), p.unsqueeze(0)
    if size == 2:
        weight = 1 - (1 - private_share) ** 2
        joint = torch.from_numpy(laws.both_high(a.numpy(), b.numpy(), weight, bits))
        together = 4 * length**2 * (joint - a * b).mean()  # at M bits  [CoQ-FL, Lemma 2]
    else:
        together = group_covariance(a, b, size, length, private_share).mean()
    return float(alone + (size - 1) * together) / size


def _blob(value: Any) -> bytes:
    """What a server relays, where it is a byte string; empty otherwise."""
    return value if isinstance(value, bytes) else b""


def _attempt(request: Request) -> int:
    """Of the round whose keys were relayed. Raises `KeyRefused` where the server says none."""
    attempt = request.options.get(KEY_ATTEMPT)
    if not isinstance(attempt, int) or isinstance(attempt, bool):
        raise KeyRefused(f"the server names the attempt {shown(attempt)}")
    return attempt


def _private(waiting: Waiting) -> bytes:
    return waiting.tensors["private"].numpy().tobytes()
