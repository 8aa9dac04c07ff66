"""CoQ-FL, server half: it groups the round's clients and relays their public keys; it knows no shared bit.

The server sees each client's bits; with another client's secrets it would see more (observer server+members).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedpriv.common.cohort_messages import read_blobs_of_cohort
from fedpriv.common.messages import (
    EXCHANGE,
    KEY_ATTEMPT,
    KEYS,
    MEMBERS,
    PUBLIC_KEYS,
    SEALED,
    SEEDS,
    SIGNATURES,
    Options,
)
from fedpriv.common.replies import read_blobs
from fedpriv.common.seeds import generator
from fedpriv.config.methods import CoQFLOptions
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.one_bit import OneBitServer


def draw_groups(seed: int, server_round: int, attempt: int, cohort: Sequence[int], size: int) -> list[list[int]]:
    """The round's groups of ``size``, each sorted: a public permutation of the cohort, cut. The rest is a smaller
    group, or one client that is left alone.
    """
    order = generator(seed, server_round, attempt, "groups").permutation(len(cohort)).tolist()
    mixed = [cohort[place] for place in order]
    return [sorted(mixed[start : start + size]) for start in range(0, len(mixed), size)]


class CoQFL(OneBitServer):
    """Keys, in groups of more than two the leaders' sealed seeds, then theta down and bits up.

    A client that is left over, or whose key is missing, uses its own noise; the mean stays unbiased.
    """

    options: CoQFLOptions
    in_rows = True

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        cohort = self.begin(server_round, arrays)
        options, down = self.train_options(server_round), self.coming_down(arrays)
        if self.options.bits == 0:
            return self.messages(grid, cohort, down, options)
        seed, attempt = self.population.seed, self.population.attempt
        drawn = draw_groups(seed, server_round, attempt, cohort, self.options.group_size)
        groups = [group for group in drawn if len(group) > 1]
        keys = self._collect(grid, KEYS, {client: {MEMBERS: group} for group in groups for client in group})
        told = {client: self._of_peers(client, group, keys) for group in groups for client in group}
        if self.options.group_size > 2:
            leaders = {group[0]: told[group[0]] for group in groups if group[0] in keys}
            sealed = self._collect(grid, SEEDS, leaders)
            for group in groups:
                for member, seed_of in zip(group[1:], sealed.get(group[0], ()), strict=False):
                    told[member] |= {SEALED: seed_of} if seed_of else {}
        wanted = sum(len(group) for group in groups)
        self.current.figures |= {"groups": len(groups), "keys_missing": wanted - len(keys)}
        return self.messages(grid, cohort, down, options, told)

    def _collect(self, grid: ClientGrid, exchange: str, own: Mapping[int, Options]) -> dict[int, tuple[bytes, ...]]:
        """One exchange without parameters: client -> the byte strings of its answer."""
        messages = self.messages(grid, sorted(own), None, {EXCHANGE: exchange}, own)

        def read(message: Message, client: int) -> tuple[int, tuple[bytes, ...]]:
            return client, read_blobs(message, exchange, most=max(2, self.options.group_size - 1))

        found = dict(self.ask(grid, messages, read, partial(read_blobs_of_cohort, exchange=exchange)))
        self.current.bytes_up += sum(len(blob) for blobs in found.values() for blob in blobs)
        return found

    def _of_peers(self, client: int, group: Sequence[int], keys: Mapping[int, tuple[bytes, ...]]) -> Options:
        """What a member is told of the others: keys as they came, empty where one is missing."""
        answers = [keys.get(member, ()) for member in group if member != client]
        relayed: Options = {
            MEMBERS: list(group),
            KEY_ATTEMPT: self.population.attempt,
            PUBLIC_KEYS: [answer[0] if answer else b"" for answer in answers],
        }
        if any(len(answer) > 1 for answer in answers):
            relayed[SIGNATURES] = [answer[1] if len(answer) > 1 else b"" for answer in answers]
        return relayed
