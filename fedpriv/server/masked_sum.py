"""The server's part in a secure sum that runs (`strategy.secure_sum=protocol`): `Collector`'s relays as messages.

KEYS and SHARES come before the models go down, CONFIRM and UNMASK after the masked vectors came up, over the same grid.
Whoever does not answer an exchange, answers too late or with what cannot be read has dropped out; its vector is in the
sum where it came before CONFIRM, and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from fedpriv.common.messages import (
    CLIP_NORM,
    CONFIRM,
    EXCHANGE,
    KEY_ATTEMPT,
    KEYS,
    MEMBERS,
    MODEL_DIGEST,
    PUBLIC_KEYS,
    ROSTER,
    SEALED,
    SHARES,
    SIGNATURES,
    SIGNERS,
    SURVIVORS,
    UNMASK,
    Options,
    unpack_vector,
)
from fedpriv.common.replies import read_blobs
from fedpriv.common.sum_graph import graph_of
from fedpriv.config.sum_methods import ModularOptions
from fedpriv.secure_sum.collector import Collector, SumFailed
from fedpriv.secure_sum.masks import word_type
from fedpriv.secure_sum.sum_session import SumSession, model_text
from fedpriv.server.exchange import Exchange
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import Population, Round


class MaskedSums:
    """Opens one sum in each round, on behalf of a server half."""

    def __init__(self, population: Population, options: ModularOptions, min_replies: int, exchange: Exchange) -> None:
        self.population, self.options, self.min_replies, self.exchange = population, options, min_replies, exchange
        self._collector: Collector | None = None

    def masked_training(
        self, current: Round, grid: ClientGrid, arrays: ArrayRecord, options: Options, bits: int, numbers: int
    ) -> list[Message]:
        """KEYS and SHARES; returns the messages of TRAIN. Ends the run where too few clients are left."""
        population = self.population
        members = tuple(sorted(current.cohort))
        if len(members) < 2:
            self.exchange.give_up(current, len(members), 2, "a secure sum")
        k, t = graph_of(len(members), self.options.threshold, population.colluders)
        model = hashlib.sha256(model_text(unpack_vector(arrays), options.get(CLIP_NORM))).digest()
        context = (members, t, k, population.colluders, bits, numbers, population.options_digest, model)
        session = SumSession(population.run, current.number, population.attempt, *context)
        collector = self._collector = Collector(session, self.min_replies)
        told: Options = {KEY_ATTEMPT: session.attempt}
        started: Options = {**told, EXCHANGE: KEYS, MEMBERS: list(members), MODEL_DIGEST: model}
        self._collect(current, grid, members, started, {}, collector.add_announcement)
        roster = self._settled(current, lambda: collector.group.roster)
        keys: dict[int, Options] = {client: {PUBLIC_KEYS: _listed(collector.announced_to(client))} for client in roster}
        sharing: Options = {**told, EXCHANGE: SHARES, ROSTER: list(roster)}
        self._collect(current, grid, roster, sharing, keys, collector.add_shares)
        senders = self._settled(current, lambda: collector.senders)
        sealed: dict[int, Options] = {client: {SEALED: _listed(collector.sealed_for(client))} for client in senders}
        return self.exchange.messages(current, grid, senders, arrays, options | told, sealed)

    def unmasked(
        self, current: Round, total: NDArray[np.uint64], survivors: Sequence[int], bits: int
    ) -> NDArray[np.uint64]:
        """CONFIRM and UNMASK; returns the sum of the survivors' numbers modulo 2^bits. Ends the run where too few
        clients are left: then nothing is opened.
        """
        collector, grid = self._collector, self.exchange.grid
        assert collector is not None and grid is not None, "`masked_training` comes first"
        told: Options = {KEY_ATTEMPT: collector.session.attempt}
        for client in survivors:
            collector.note_upload(client)
        known = self._settled(current, lambda: collector.survivors)
        confirming: Options = {**told, EXCHANGE: CONFIRM, SURVIVORS: list(known)}
        self._collect(current, grid, known, confirming, {}, collector.add_signature)
        signers = self._settled(current, lambda: collector.signers)
        signed: dict[int, Options] = {}
        for client in signers:
            found = collector.signatures_for(client)
            if found:
                signed[client] = {SIGNERS: list(found), SIGNATURES: _listed(found.values())}
        opening: Options = {**told, EXCHANGE: UNMASK}
        most = collector.session.most_holders
        self._collect(current, grid, sorted(signed), opening, signed, collector.add_unmasking, most)
        words = total.astype(word_type(bits))
        self._settled(current, lambda: collector.take_off(words))
        current.figures |= {
            "survivors": len(known),
            "dropped_before_upload": len(collector.session.members) - len(known),
            "dropped_after_upload": len(known) - collector.answers,
        }
        self._collector = None
        return words.astype(np.uint64) & np.uint64(2**bits - 1)

    def _settled(self, current: Round, settle: Callable[[], Any]) -> Any:
        try:
            return settle()
        except SumFailed as failed:
            current.lost = sorted(set(current.cohort) - set(current.stopped))
            self.exchange.give_up(current, failed.count, failed.least, str(failed))

    def _collect(
        self,
        current: Round,
        grid: ClientGrid,
        clients: Sequence[int],
        options: Options,
        own: Mapping[int, Options],
        add: Callable[[int, Sequence[bytes]], None],
        most: int = 1,
    ) -> None:
        """One exchange without parameters."""
        most = max(most, self._most())
        exchange = str(options[EXCHANGE])
        messages = self.exchange.messages(current, grid, clients, None, options, own)

        def read(message: Message, client: int) -> int:
            blobs = read_blobs(message, exchange, most)
            add(client, blobs)
            return sum(map(len, blobs))

        replies = grid.receive(messages, self.population.round_timeout)
        current.bytes_up += sum(self.exchange.usable(current, replies, read))

    def _most(self) -> int:
        assert self._collector is not None
        return self._collector.session.most_holders


def _listed(blobs: Any) -> list[bytes]:
    return list(blobs)
