"""A client's part in a secure sum that runs (`strategy.secure_sum=protocol`): messages in, `Member`'s answers out.

What the server may choose is the cohort, among the peers that this machine knows, and the moment; modulus, graph,
threshold and length follow from the run's options, and the survivor set is at least the floor that this client's
guarantee counts on. Its state of the sum waits in the client's memory between the exchanges, written before every
answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from fedpriv.client.contract import Site
from fedpriv.client.memory import Answer, ClientMemory, StaleRequest, Waiting, read_memory, repeated_answer
from fedpriv.common.files import write_atomic
from fedpriv.common.identities import Identity, new_identity
from fedpriv.common.messages import (
    ATTEMPTS_PER_START,
    CLIP_NORM,
    CONFIRM,
    KEY_ATTEMPT,
    KEYS,
    MEMBERS,
    MODEL_DIGEST,
    PUBLIC_KEYS,
    ROSTER,
    RUN,
    SEALED,
    SHARES,
    SIGNATURES,
    SIGNERS,
    SURVIVORS,
    UNMASK,
    Outgoing,
    Request,
    place,
    shown,
)
from fedpriv.config.methods import ModularOptions
from fedpriv.mechanisms.integer_noise import Residues
from fedpriv.mechanisms.noise import encode_key
from fedpriv.secure_sum import rules
from fedpriv.secure_sum.member import Member, join
from fedpriv.secure_sum.sum_session import SumRefused, SumSession, model_text, session_of

_STATE = "sum"  # where the memory holds it, among what waits
_CLOSED = ".closed"  # beside a state that made room: until where its sums are closed


class MaskedSum:
    """One client's view of the sum of this round."""

    def __init__(self, site: Site, options: ModularOptions) -> None:
        self.site, self.options = site, options
        #: After an upload: what is kept of it beside the release.
        self.waiting: Waiting | None = None
        self._upload: tuple[Member, Mapping[int, bytes], bytes | memoryview] | None = None

    @property
    def floor(self) -> int:
        """Fewest survivors: the account counts on so many, and the machine's policy may ask for more."""
        return max(self.options.min_replies, self.site.fewest_survivors)

    def answer(self, request: Request, bits: int, numbers: int) -> Outgoing:
        """Every exchange but TRAIN. bits, numbers: of a release on the wire. Raises `SumRefused`, `StaleRequest`."""
        memory = _with_upload(read_memory(self.site.store))
        if request.exchange == KEYS:
            after, blobs = self._keys(request, memory, self._session(request, bits, numbers))
        else:
            exchange = {SHARES: self._shares, CONFIRM: self._confirm, UNMASK: self._unmask}
            after, blobs = exchange[request.exchange](request, memory)
        stored = memory.waiting
        if stored is None or _STATE not in stored.tensors or _read(stored) != after:
            self.site.store.keep(replace(memory, waiting=_waiting(after)))
        return Outgoing(self.site.num_examples, blobs=blobs)

    def expect(self, request: Request, received: np.ndarray) -> None:
        """Before training in TRAIN: options and model are those that were signed, and nothing has left in this sum."""
        member = self._state(request, read_memory(self.site.store))
        if member.session.options != self.site.options_digest:  # of a guard, whose policy has changed
            raise SumRefused("this machine's options are others than the members of this sum have signed")
        theta = model_text(received, request.options.get(CLIP_NORM))
        sealed = _by_client(request, SEALED, member.settled_group().peers(self.site.client))
        rules.same_model(member.session, theta)
        rules.one_upload(member.uploaded)
        self._upload = member, {client: blob for client, blob in sealed.items() if blob}, theta

    def masked(self, residues: Residues) -> Residues:
        """What leaves of the residues [n]; `waiting` is to be written with it."""
        assert self._upload is not None, "`expect` comes before training"
        member, sealed, theta = self._upload
        after, found = member.mask(sealed, residues, theta)
        self.waiting = _waiting(after)
        return found

    def uploaded(self, memory: ClientMemory) -> ClientMemory:
        """The memory after an upload whose numbers are not kept."""
        assert self.waiting is not None, "`masked` comes first"
        place_alone = Answer(self.waiting.round, self.waiting.attempt, None)
        return replace(memory, waiting=self.waiting, answer=place_alone)

    # --- the exchanges ---------------------------------------------------------------------------------------

    def _keys(self, request: Request, memory: ClientMemory, session: SumSession) -> tuple[Member, tuple[bytes, ...]]:
        waiting = memory.waiting
        if repeated_answer(memory, request) is not None:
            raise StaleRequest(f"round {request.round} was answered already")
        asked = (session.round, session.attempt)
        if waiting is not None and place(*asked) <= place(waiting.round, waiting.attempt):
            if asked != (waiting.round, waiting.attempt) or _STATE not in waiting.tensors:
                raise StaleRequest(f"round {request.round} comes after round {waiting.round} has keys")
            member = _read(waiting)
            rules.same_session(member.session, session)
        else:
            seed = None
            if self.site.rng == "seeded":
                seed = encode_key("secure sum", self.site.seed, self.site.client, *asked)
            member = join(session, self.site.client, seed)
        rules.unanswered(member.answer)
        return member, (member.announce(self._identity),)

    def _shares(self, request: Request, memory: ClientMemory) -> tuple[Member, tuple[bytes, ...]]:
        member = self._state(request, memory)
        roster, own = _numbers(request, ROSTER), self.site.client
        announced = _by_client(request, PUBLIC_KEYS, [client for client in roster if client != own])
        after, sealed = member.share_out(roster, announced, self._identity)
        return after, tuple(sealed.values())

    def _confirm(self, request: Request, memory: ClientMemory) -> tuple[Member, tuple[bytes, ...]]:
        after, signature = self._state(request, memory).confirm(
            _numbers(request, SURVIVORS), self._identity, self.floor
        )
        return after, (signature,)

    def _unmask(self, request: Request, memory: ClientMemory) -> tuple[Member, tuple[bytes, ...]]:
        member = self._state(request, memory)
        signers, signatures = _numbers(request, SIGNERS), _blobs(request, SIGNATURES)
        if len(signers) != len(signatures):
            raise SumRefused("the server relays another number of signatures than of signers")
        told = dict(zip(signers, signatures, strict=True))
        after, shares = member.unmask(told, self._identity, self.floor)
        return after, tuple(shares.values())

    # --- what a request says ---------------------------------------------------------------------------------

    def _session(self, request: Request, bits: int, numbers: int) -> SumSession:
        """The context that the server's words and this client's own options make."""
        site, options = self.site, self.options
        members, attempt = _numbers(request, MEMBERS), _attempt(request)
        model = request.options.get(MODEL_DIGEST)
        if len(members) < 2:
            raise SumRefused(f"the server names {len(members)} members; a sum of one hides nothing")
        rules.members(members, {*self._identity.peers, site.client}, site.most_members)  # before their graph is sought
        run = str(request.options.get(RUN, ""))
        facts = site.options_digest, model if isinstance(model, bytes) else b""
        return session_of(run, (request.round, attempt), members, options, bits, numbers, facts)

    def _state(self, request: Request, memory: ClientMemory) -> Member:
        """What is kept of the sum of this round and attempt."""
        waiting, attempt = memory.waiting, _attempt(request)
        if waiting is None or _STATE not in waiting.tensors:
            raise StaleRequest(f"round {request.round}: there are no keys of this round")
        if (waiting.round, waiting.attempt) != (request.round, attempt):
            raise StaleRequest(f"round {request.round}: the keys are those of round {waiting.round}")
        member = _read(waiting)
        agreed = _agreed(member.session.digest) if self.site.rng == "seeded" else None
        return replace(member, agreed=agreed)

    @cached_property
    def _identity(self) -> Identity:
        """The machine's own; in a simulation one made from the seed: signatures are checked there too."""
        if self.site.identity is not None:
            return self.site.identity
        if self.site.guard is not None:
            raise SumRefused("this machine has no identity-key and peer-keys")
        seed = self.site.seed
        return Identity(_simulated(seed, self.site.client)[0], _Simulated(seed, self.site.population))


def kept(path: Path) -> bytes | None:
    """A run's state, or what `make_room` has left of it."""
    return next((one.read_bytes() for one in (path, path.with_suffix(_CLOSED)) if one.exists()), None)


def make_room(own: Path, most: int) -> None:
    """Keeps the newest states of the folder, ``most`` runs' with the ``own``. Of one that has uploaded in a sum, the
    place of its last upload stays, whatever keys it has made since: who joins a sum again answers for two groups, of
    which `fedpriv.secure_sum.rules` says one.
    """
    others = sorted((path for path in own.parent.glob("*.safetensors") if path != own), key=_changed)
    for path in others[: max(0, len(others) + 1 - most)]:
        with suppress(SafetensorError):  # a damaged one
            memory = _with_upload(ClientMemory.from_bytes(path.read_bytes()))
            if memory.answer is not None and memory.waiting is not None and _STATE in memory.waiting.tensors:
                place_alone = ClientMemory(answer=memory.answer.closed())
                write_atomic(path.with_suffix(_CLOSED), place_alone.to_bytes(), mode=0o600)
        path.unlink(missing_ok=True)


def _with_upload(memory: ClientMemory) -> ClientMemory:
    """The memory with the place of its upload, which guards of earlier versions kept in the sum's state alone."""
    waiting = memory.waiting
    if memory.answer is None and waiting is not None and _STATE in waiting.tensors and _read(waiting).uploaded:
        return replace(memory, answer=Answer(waiting.round, waiting.attempt, None))
    return memory


def _changed(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


@lru_cache(maxsize=1)
def _agreed(session: bytes) -> dict[bytes, bytes]:
    """What the members of a simulated sum that are in this process have agreed on, until the next sum."""
    return {}


@lru_cache(maxsize=4096)
def _simulated(seed: int, client: int) -> tuple[bytes, bytes]:
    return new_identity(encode_key("identity", seed, client))


class _Simulated(Mapping[int, bytes]):
    """Everybody's public key in a simulation, each made when it is needed."""

    def __init__(self, seed: int, population: int) -> None:
        self.seed, self.clients = seed, range(population)

    def __getitem__(self, client: int) -> bytes:
        if client not in self.clients:
            raise KeyError(client)
        return _simulated(self.seed, client)[1]

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)


def _by_client(request: Request, name: str, clients: Sequence[int]) -> dict[int, bytes]:
    """Byte strings of a request, one for each of these clients, in their order."""
    found = _blobs(request, name)
    if len(found) != len(clients):
        raise SumRefused(f"the server relays {len(found)} byte strings of {len(clients)} clients")
    return dict(zip(clients, found, strict=True))


def _waiting(member: Member) -> Waiting:
    state = torch.from_numpy(np.frombuffer(member.to_bytes(), np.uint8).copy())
    return Waiting(member.session.round, member.session.attempt, {_STATE: state})


def _read(waiting: Waiting) -> Member:
    return Member.from_bytes(waiting.tensors[_STATE].numpy().tobytes())


def _attempt(request: Request) -> int:
    """Of the sum: the server's at the round, which an engine's retry of one client does not change."""
    attempt = request.options.get(KEY_ATTEMPT)
    if type(attempt) is not int or not 0 <= request.attempt - attempt < ATTEMPTS_PER_START or attempt < 0:
        raise SumRefused(f"the server names the attempt {shown(attempt)}")
    if attempt // ATTEMPTS_PER_START != request.attempt // ATTEMPTS_PER_START:
        raise SumRefused(f"the server names the attempt {attempt} of an earlier start")
    return attempt


def _numbers(request: Request, name: str) -> list[int]:
    found = request.options.get(name)
    if not isinstance(found, list) or not all(type(number) is int for number in found):
        raise SumRefused(f"{name}: expected whole numbers, got {shown(found)}")
    return found


def _blobs(request: Request, name: str) -> list[bytes]:
    found = request.options.get(name)
    if not isinstance(found, list) or not all(isinstance(blob, bytes) for blob in found):
        raise SumRefused(f"{name}: expected byte strings, got {shown(found)}")
    return found
