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

from fedpriv.common.messages import CLIP_NORM, EXCHANGE, KEY_ATTEMPT, Options, unpack_vector
from fedpriv.common.replies import read_blobs
from fedpriv.config.methods import ModularOptions
from fedpriv.secure_sum.collector import Add, Ask, Collector, SumFailed
from fedpriv.secure_sum.member import word_type
from fedpriv.secure_sum.sum_session import model_text, session_of
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
        model = hashlib.sha256(model_text(unpack_vector(arrays), options.get(CLIP_NORM))).digest()
        place, facts = (current.number, population.attempt), (population.options_digest, model)
        session = session_of(population.run, place, members, self.options, bits, numbers, facts)
        collector = self._collector = Collector(session, self.min_replies)
        ask = self._ask(current, grid, collector)
        sealed: dict[int, Options] = self._settled(current, lambda: collector.prepare(ask))
        told = options | {KEY_ATTEMPT: session.attempt}
        return self.exchange.messages(current, grid, list(sealed), arrays, told, sealed)

    def unmasked(
        self, current: Round, total: NDArray[np.uint64], survivors: Sequence[int], bits: int
    ) -> NDArray[np.uint64]:
        """CONFIRM and UNMASK; returns the sum of the survivors' numbers modulo 2^bits. Ends the run where too few
        clients are left: then nothing is opened.
        """
        collector, grid = self._collector, self.exchange.grid
        assert collector is not None and grid is not None, "`masked_training` comes first"
        for client in survivors:
            collector.note_upload(client)
        self._settled(current, lambda: collector.finish(self._ask(current, grid, collector)))
        words = total.astype(word_type(bits))
        self._settled(current, lambda: collector.take_off(words))
        current.figures |= {
            "survivors": len(collector.survivors),
            "dropped_before_upload": len(collector.session.members) - len(collector.survivors),
            "dropped_after_upload": len(collector.survivors) - collector.answers,
        }
        self._collector = None
        return words.astype(np.uint64) & np.uint64(2**bits - 1)

    def _settled(self, current: Round, settle: Callable[[], Any]) -> Any:
        try:
            return settle()
        except SumFailed as failed:
            current.lost = sorted(set(current.cohort) - set(current.stopped))
            self.exchange.give_up(current, failed.count, failed.least, str(failed))

    def _ask(self, current: Round, grid: ClientGrid, collector: Collector) -> Ask:
        """How an exchange without parameters travels."""

        def ask(exchange: str, asked: Sequence[int], told: Options, own: Mapping[int, Options], add: Add) -> None:
            options: Options = {KEY_ATTEMPT: collector.session.attempt, EXCHANGE: exchange, **told}
            messages = self.exchange.messages(current, grid, asked, None, options, own)

            def read(message: Message, client: int) -> int:
                blobs = read_blobs(message, exchange, max(1, collector.session.most_holders))
                add(client, blobs)
                return sum(map(len, blobs))

            replies = grid.receive(messages, self.population.round_timeout)
            current.bytes_up += sum(self.exchange.usable(current, replies, read))

        return ask
