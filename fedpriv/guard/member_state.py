"""What a guarded machine keeps of a secure sum between its exchanges, in the ledger's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fedpriv.client.contract import Site
from fedpriv.client.masked_sum import MaskedSum, kept, make_room
from fedpriv.client.memory import ClientMemory
from fedpriv.common.files import fsync_folder, staged
from fedpriv.common.identities import Identity
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.guard.release import Terms

MOST_SUMS = 32  # runs whose state is kept


@dataclass
class SumStore:
    """A client's memory of one run's sums (`fedpriv.client.memory.MemoryStore`), while the ledger is held. book: what
    the ledger must hold before the memory becomes the state.
    """

    ledger: DataLedger
    run: str
    book: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        name = hashlib.sha256(self.run.encode()).hexdigest()[:32]
        self._folder = self.ledger.folder / "guard"
        self._path = self._folder / f"{name}.safetensors"

    def read(self) -> bytes | None:
        return kept(self._path)

    def keep(self, memory: ClientMemory) -> None:
        """Bytes, ledger, state, counter, each on the disk before the next."""
        if not self._folder.exists():
            self._folder.mkdir(mode=0o700)
            fsync_folder(self._folder.parent)
        make_room(self._path, MOST_SUMS)
        with ExitStack() as stack:
            stack.enter_context(staged(self._path, memory.to_bytes(), mode=0o600))
            if self.book is not None:
                self.book()
        if self.book is not None:
            self.ledger.confirm()


def masked_sum(store: SumStore, client: int, identity: Identity | None, terms: Terms, floor: int) -> MaskedSum:
    """This machine's part in a sum. floor: fewest survivors, by its policy."""
    nothing: Any = None
    site = Site(
        client,
        1,
        nothing,
        nothing,
        store,
        seed=0,
        rng="secure",
        delta=0.0,
        max_epsilon=None,
        identity=identity,
        guard=lambda charges: None,
        options_digest=terms.digest,
        fewest_survivors=floor,
        most_members=terms.sites,
        population=terms.sites,
    )
    options: Any = terms
    return MaskedSum(site, options)
