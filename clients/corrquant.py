"""Correlated quantisation, client half (Suresh, Sun, Ro and Yu, ICML 2022): the baseline without privacy of CoQ-FL.

Nobody adds noise for privacy; the round's clients are one group whose permutations everybody knows.

Symbols: n -> the round's clients, pi(j) -> rank, gamma_j -> own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fedpriv.client.one_bit import OneBitClient, of_layer
from fedpriv.common.identities import stream
from fedpriv.common.messages import MEMBERS, SEALED, Request
from fedpriv.config.methods import OneBitOptions
from fedpriv.mechanisms.quantisation import all_ranks, group_bits, independent_bits, rank_bytes, ranks_of


class CorrQuantClient(OneBitClient):
    """One bit per coordinate at epsilon = infinity; high where (pi(j) + gamma_j)/n lies below p."""

    options: OneBitOptions
    traits = replace(OneBitClient.traits, shares_secrets=True)
    in_rows = True
    #: The round's group and its public seed.
    members: tuple[int, ...] = ()
    seed: bytes = b""
    _ranks: Mapping[int, Tensor] = MappingProxyType({})

    def prepare(self, request: Request, down: Sequence[Tensor] = ()) -> None:
        super().prepare(request, down)
        members, seed = request.options.get(MEMBERS), request.options.get(SEALED)
        among = [isinstance(seed, bytes) and self._is_group(members, client) for client in self._clients]
        if any(among) and not all(among):
            raise ValueError("the group has some of these clients and not the others")  # each alone knows what to do
        self.members = tuple(members) if all(among) else ()  # type: ignore[arg-type]
        self.seed, self._ranks = seed if isinstance(seed, bytes) else b"", {}

    @property
    def _clients(self) -> tuple[int, ...]:
        site = self._site()
        return site.clients or (site.client,)

    def _is_group(self, members: Any, client: int) -> bool:
        """Different clients, this one among them, and no more than a round can have: the ranks of a group cost memory
        by its size. Poisson samples exceed the bound once in 1e20 rounds.
        """
        if not isinstance(members, list) or len(members) > 2 * self.facts.clients_per_round + 32:
            return False
        sound = all(type(member) is int for member in members) and len(set(members)) == len(members)
        return sound and client in members

    def quantise(self, p: Tensor, own: Tensor, layer: int, piece: slice) -> Tensor:
        if len(self.members) < 2:
            return independent_bits(p, own)
        if layer not in self._ranks:
            part, size = self._layers(self.facts.num_parameters)[layer], len(self.members)
            found = stream(self.seed, of_layer(layer), rank_bytes(part.stop - part.start, size))
            places = [self.members.index(client) for client in self._clients]
            ranks = ranks_of(found, size, places[0]) if p.ndim == 1 else all_ranks(found, size)[places]
            self._ranks = {layer: ranks}
        return group_bits(p, self._ranks[layer][..., piece], own, len(self.members))
