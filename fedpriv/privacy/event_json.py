"""Events, ledger entries and accounts as JSON, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from fedpriv.privacy.events import MECHANISMS, Entry, Event, Threat
from fedpriv.privacy.events.entry import Account


def event_to_json(event: Event, with_threat: bool = True) -> dict[str, Any]:
    """Flat object: mechanism, its parameters, count, and the threat's three words."""
    flat: dict[str, Any] = {"mechanism": event.mechanism}
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name != "threat":
            flat[field.name] = "inf" if value == math.inf else value
    return flat | vars(event.threat) if with_threat else flat


def event_from_json(flat: Mapping[str, Any], threat: Threat | None = None) -> Event:
    """The event of a flat object (threat: where the object has none). Equal objects give the same instance.

    Raises ValueError on anything malformed, unknown keys included.
    """
    try:
        return _event(threat, tuple((key, type(value), value) for key, value in flat.items()))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not an event: {dict(flat)}: {error}") from None


@lru_cache(maxsize=100_000)
def _event(threat: Threat | None, items: tuple[tuple[str, type, Any], ...]) -> Event:
    values: dict[str, Any] = {key: math.inf if value == "inf" else value for key, _, value in items}
    if threat is None:
        threat = Threat(values.pop("unit"), values.pop("adjacency"), values.pop("observer"))
    kind = MECHANISMS.get(values.pop("mechanism"))
    if kind is None:
        raise ValueError(f"unknown mechanism in {items}")
    return kind(threat=threat, **values)


_ENTRY_KEYS = ("round", "client", "sequence", "attempt")


def charge_to_json(event: Event, realised: Event | None, adaptive: bool) -> dict[str, Any]:
    """What one release is charged with, as one flat object; ``realised`` is nested and shares the event's threat."""
    flat = event_to_json(event)
    if realised is not None:
        flat["realised"] = event_to_json(realised, with_threat=False)
    if adaptive:
        flat["adaptive"] = True
    return flat


def charge_from_json(flat: Mapping[str, Any]) -> tuple[Event, Event | None, bool]:
    """Inverse of `charge_to_json`. Raises ValueError on anything malformed, unknown keys included."""
    rest = dict(flat)
    realised, adaptive = rest.pop("realised", None), rest.pop("adaptive", False)
    event = event_from_json(rest)
    try:
        return event, event_from_json(realised, event.threat) if "realised" in flat else None, adaptive
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not what was realised: {realised!r}: {error!r}") from None


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """One flat object: the entry's place in the ledger, and `charge_to_json`."""
    place = {key: getattr(entry, key) for key in _ENTRY_KEYS}
    return place | charge_to_json(entry.event, entry.realised, entry.adaptive)


def entry_from_json(flat: Mapping[str, Any]) -> Entry:
    """Inverse of `entry_to_json`. Raises ValueError on anything malformed."""
    try:
        rest = dict(flat)
        place = {key: rest.pop(key) for key in _ENTRY_KEYS}
        event, realised, adaptive = charge_from_json(rest)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a ledger entry: {flat!r}: {error!r}") from None
    return Entry(**place, event=event, realised=realised, adaptive=adaptive)


def account_to_bytes(account: Account) -> bytes:
    """JSON."""
    lines = []
    for (event, realised, adaptive), times in account.counts.items():
        spent = None if realised is None else event_to_json(realised, with_threat=False)
        lines.append({"event": event_to_json(event), "realised": spent, "adaptive": adaptive, "times": times})
    head = {"next_sequence": account.next_sequence, "participations": account.participations, "last": account.last}
    return json.dumps(head | {"lines": lines}, separators=(",", ":")).encode()


def account_from_bytes(content: bytes) -> Account:
    """Inverse of `account_to_bytes`. Raises ValueError on anything malformed: a broken one is never an empty one."""
    return _account(content).copy()


@lru_cache(maxsize=256)  # clients with equally many participations have spent the same
def _account(content: bytes) -> Account:
    """As `account_from_bytes`; shared, so do not modify it."""
    account = Account()
    try:
        stored = json.loads(content)
        account.next_sequence = _count(stored["next_sequence"], least=0)
        account.participations = _count(stored["participations"], least=0)
        server_round, attempt = stored["last"]
        account.last = _count(server_round, least=-1), _count(attempt, least=-1)
        for line in stored["lines"]:
            event = event_from_json(line["event"])
            realised = None if line["realised"] is None else event_from_json(line["realised"], event.threat)
            account.counts[event, realised, line["adaptive"]] = _count(line["times"], least=1)
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"not an account: {error!r}") from None
    return account


def _count(value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{value!r} is not a whole number of at least {least}")
    return value
