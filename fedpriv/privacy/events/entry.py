"""A line of a ledger: what one release was charged with, and where it stands; and one client's account of its lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.privacy.events.event import MOST_WHOLE, Event, Threat

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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_WHOLE:
                raise ValueError(f"{name}={value!r}: must be a whole number of at least {least}")
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


class Account:
    """What one client has spent: equal releases are counted, in the order of their first appearance.

    `fedpriv.privacy.event_json` makes it bytes, to be stored in one atomic step with the client's state and its reply.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        #: (event, what was realised, adaptive) -> how often.
        self.counts: dict[tuple[Event, Event | None, bool], int] = {}
        self.next_sequence = 0
        #: Participations charged so far, and the (round, attempt) of the last.
        self.participations, self.last = 0, (-1, -1)
        for entry in entries:
            self.charge(entry)

    def charge(self, entry: Entry) -> None:
        """Charges one entry. Entries are never merged by round: a repeated release was made twice."""
        key = (entry.event, entry.realised, entry.adaptive)
        self.counts[key] = self.counts.get(key, 0) + 1
        self.next_sequence = max(self.next_sequence, entry.sequence + 1)
        place = (entry.round, entry.attempt)
        self.participations, self.last = self.participations + (place != self.last), place

    def copy(self) -> Account:
        """An independent account; its events are immutable and shared."""
        twin = Account()
        twin.counts, twin.next_sequence = dict(self.counts), self.next_sequence
        twin.participations, twin.last = self.participations, self.last
        return twin

    def spent(self, threat: Threat | None = None) -> list[Event]:
        """What was actually spent (under one threat), for `Budget.admits`; equal releases as one event with a count."""
        events = [(realised or event, times) for (event, realised, _), times in self.counts.items()]
        return [_times(event, times) for event, times in events if threat in (None, event.threat)]

    def entries(self) -> list[Entry]:
        """One entry per distinct release with its count, for `composition.verify`; rounds and sequences are lost."""
        return [
            Entry(0, 0, 0, 0, _times(event, times), realised and _times(realised, times), adaptive)
            for (event, realised, adaptive), times in self.counts.items()
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and self._all() == other._all()

    def _all(self) -> tuple[Any, ...]:
        return [*self.counts.items()], self.next_sequence, self.participations, self.last

    __hash__ = None  # type: ignore[assignment]


def _times(event: Event, times: int) -> Event:
    return event if times == 1 else replace(event, count=event.count * times)
