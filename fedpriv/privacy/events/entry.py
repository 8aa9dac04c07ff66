"""A line of a ledger: what one release was charged with, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.privacy.events.event import Event, check_whole

#: Client id of an entry for a sum released by a trusted server: it counts for every client, sampled or not.
EVERY_CLIENT = -2


@dataclass(frozen=True)
class Entry:
    """One line of a ledger.

    event: the bound fixed before the run; realised: what was spent, where that differs.
    adaptive: a parameter of ``event`` was chosen from earlier outputs, so it is a guarantee only under a filter.
    client: `EVERY_CLIENT` for a release of a trusted server about all of them; -1 where a torn line hides the client.
    """

    round: int
    client: int
    sequence: int
    attempt: int
    event: Event
    realised: Event | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        for name, least in (("round", 0), ("client", EVERY_CLIENT), ("sequence", 0), ("attempt", 0)):
            check_whole(name, getattr(self, name), least)
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive={self.adaptive!r}: must be true or false")
        if self.realised is not None and self.realised.threat != self.event.threat:
            raise ValueError("an entry's event and what was realised have the same threat")

    @property
    def spent(self) -> Event:
        """What this release actually cost."""
        return self.realised or self.event

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key of a ledger: (round, client, sequence, attempt)."""
        return self.round, self.client, self.sequence, self.attempt
