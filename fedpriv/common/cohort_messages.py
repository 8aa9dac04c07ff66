"""One message for many clients of a simulation: what they are asked, and what they answer, as columns.

Only our own grids carry such messages, from one part of a process to another, or to its workers; a real node neither
sends nor reads them. A reply holds the releases of all as one flat array, and lists beside it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedpriv.common.messages import (
    ARRAYS,
    CONFIG,
    MOST_BLOB,
    FloatVector,
    MalformedMessage,
    Options,
    Request,
    num_bytes,
    pack_vector,
    read_request,
    reply_content,
    view_array,
)
from fedpriv.common.replies import Reply, decoded

COHORT = "cohort"  # the record that makes a message one for many
_CLIENTS, _RELEASED, _LENGTHS, _CODES, _REASONS = "clients", "released", "lengths", "codes", "reasons"
_OWN, _HEX, _BLOBS = "own", "hex", "blobs"
_STATISTICS, _FIGURES = "cohort-statistics", "cohort-figures"
_FIGURES_OF = "cohort-figures-of"  # the places of those who have a figure, where some have none

#: (client, the array of its release) -> its release (float32 [d]).
Decode = Callable[[int, NDArray[Any]], FloatVector]


@dataclass(frozen=True)
class Refused:
    """In the place of a client's reply: the code and the words of its error."""

    code: int
    reason: str


def for_cohort(
    content: RecordDict, clients: Sequence[int], own: Mapping[int, Options] = MappingProxyType({})
) -> RecordDict | None:
    """The content of a train message to all these clients; own: what one of them is told beside the same records. None
    where that is too long for it, or in the place of something that all are told.
    """
    who: dict[str, Any] = {_CLIENTS: list(clients)}
    if own:
        common = content[CONFIG].keys()
        who[_OWN] = [_as_bytes(own.get(client, {})) for client in clients]
        if max(map(len, who[_OWN])) > MOST_BLOB or any(told.keys() & common for told in own.values()):
            return None
    return RecordDict({**content, COHORT: ConfigRecord(who)})


def _as_bytes(options: Options) -> bytes:
    return json.dumps(options, default=lambda value: {_HEX: value.hex()}).encode()


def requests_of(content: RecordDict, clients: Sequence[int]) -> list[tuple[Request, Sequence[int]]]:
    """What these clients are asked by a message for many, and who is asked it. Raises `MalformedMessage`."""
    common = read_request(content)
    who: Any = content[COHORT]
    if _OWN not in who:
        return [(common, clients)]
    own = dict(zip(who[_CLIENTS], who[_OWN], strict=True))
    return [(replace(common, options={**common.options, **_as_options(own[client])}), [client]) for client in clients]


def _as_options(text: bytes) -> Options:
    found: Options = json.loads(text, object_hook=lambda value: bytes.fromhex(value[_HEX]) if _HEX in value else value)
    return found


def blobs_of_cohort(
    exchange: str, clients: Sequence[int], told: Mapping[int, Sequence[bytes]], refused: Mapping[int, Refused]
) -> RecordDict:
    """The content of a reply of ``clients`` to an exchange of byte strings, of those who answered."""
    answered = [client for client in clients if client in told]
    who = _who(clients, answered, refused)
    if answered:
        who[_LENGTHS] = [len(told[client]) for client in answered]
    content = RecordDict({COHORT: ConfigRecord(who)})
    if blobs := [blob for client in answered for blob in told[client]]:
        content[exchange] = ConfigRecord({_BLOBS: blobs})
    return content


def read_blobs_of_cohort(
    message: Message, exchange: str
) -> Iterator[tuple[int, Refused | Callable[[], tuple[int, tuple[bytes, ...]]]]]:
    """(client, what gives it and its byte strings, or why it has none), in the order in which they were asked."""
    who: Any = message.content[COHORT]
    record: Any = message.content.get(exchange, {})
    blobs, refused = iter(record.get(_BLOBS, ())), _refused(who)
    lengths = dict(zip(who.get(_RELEASED, ()), who.get(_LENGTHS, ()), strict=True))
    for client in who[_CLIENTS]:
        if client in refused:
            yield client, refused[client]
        else:
            told = client, tuple(itertools.islice(blobs, lengths[client]))
            yield client, partial(tuple, told)  # type: ignore[arg-type]


def part_of_cohort(content: RecordDict, part: slice) -> RecordDict:
    """The content of a message for many, for some of them: by their places in it."""
    who: Any = content[COHORT]
    return RecordDict({**content, COHORT: ConfigRecord({name: who[name][part] for name in who})})


def cohort_of_message(message: Message) -> list[int] | None:
    """Whom a message is for; None where it is for one client alone."""
    record = message.content.get(COHORT) if message.has_content() else None
    return list(record[_CLIENTS]) if isinstance(record, ConfigRecord) else None  # type: ignore[arg-type]


def cohort_content(
    clients: Sequence[int],
    released: Sequence[int],
    releases: Sequence[NDArray[Any]],
    statistics: Mapping[str, list[float]],
    figures: Mapping[str, list[float | None]] | None,
    refused: Mapping[int, Refused],
) -> RecordDict:
    """The content of a reply of ``clients``: of each of the ``released`` a release [n], all of one type, a number of
    every statistic, and of every figure, or None; of the others why not. figures: None outside simulation.
    """
    who, lengths = _who(clients, released, refused), list(map(len, releases))
    if len(set(lengths)) > 1:
        who[_LENGTHS] = lengths
    content = RecordDict({COHORT: ConfigRecord(who)})
    if released:
        content[ARRAYS] = pack_vector(*releases)
        content[_STATISTICS] = ConfigRecord({name: _packed(values) for name, values in statistics.items()})
        if figures is not None:
            told = {name: [value for value in values if value is not None] for name, values in figures.items()}
            content[_FIGURES] = ConfigRecord({name: _packed(values) for name, values in told.items()})
            some = {name: values for name, values in figures.items() if len(told[name]) < len(released)}
            if some:
                of = {name: [n for n, value in enumerate(values) if value is not None] for name, values in some.items()}
                content[_FIGURES_OF] = ConfigRecord(of)  # type: ignore[arg-type]
    return content


def _packed(values: Sequence[float]) -> bytes:
    """Numbers as one value of a record: Flower looks at each of a list."""
    return np.asarray(values, np.float64).tobytes()


def _who(clients: Sequence[int], released: Sequence[int], refused: Mapping[int, Refused]) -> dict[str, Any]:
    who: dict[str, Any] = {_CLIENTS: list(clients)}
    if released:
        who[_RELEASED] = list(released)
    if refused:
        others = [client for client in clients if client in refused]
        who |= {_CODES: [refused[client].code for client in others]}
        who |= {_REASONS: [refused[client].reason or " " for client in others]}
    return who


def _refused(who: Any) -> dict[int, Refused]:
    released = set(who.get(_RELEASED, ()))
    others = [client for client in who[_CLIENTS] if client not in released]
    told = zip(others, who.get(_CODES, []), who.get(_REASONS, []), strict=True)
    return {client: Refused(code, reason) for client, code, reason in told}


def read_cohort(
    message: Message,
    size: int,
    num_examples: Callable[[int], int],
    statistics: Sequence[str] = (),
    decode: Decode | None = None,
) -> Iterator[tuple[int, Reply | Refused | MalformedMessage]]:
    """(client, its reply, or what was wrong with it), in the order in which they were asked; as `read_reply` reads them
    one by one.
    """
    content = message.content
    who: Any = content[COHORT]
    clients, released = list(who[_CLIENTS]), list(who.get(_RELEASED, []))
    refused, lengths = _refused(who), who.get(_LENGTHS)
    rows = iter(_replies(content, released, lengths, size, num_examples, statistics, decode))
    for client in clients:
        yield client, refused[client] if client in refused else next(rows)


def _replies(
    content: RecordDict,
    released: Sequence[int],
    lengths: Sequence[int] | None,
    size: int,
    num_examples: Callable[[int], int],
    statistics: Sequence[str],
    decode: Decode | None,
) -> Iterator[Reply | MalformedMessage]:
    if not released:
        return
    flat = view_array(content).copy()  # at once, for all
    releases = flat.reshape(len(released), -1) if lengths is None else np.split(flat, np.cumsum(lengths)[:-1])
    packed: Any = content[_STATISTICS]
    beside = {name: np.frombuffer(values) for name, values in packed.items()}
    figures = _figures(content, len(released))
    first = {name: float(values[0]) for name, values in beside.items()}
    weights = {}  # of each alone, by the length of its release
    for release in releases[:1] if lengths is None else releases:
        if len(release) not in weights:
            weights[len(release)] = num_bytes(reply_content(release, num_examples(released[0]), None, first))
    finite: Any = np.isfinite([*(beside[name] for name in statistics), np.zeros(len(released))]).all(0)
    if matrix := decode is None and lengths is None:
        finite &= np.isfinite(releases).all(1)
    for place, (client, release, good) in enumerate(zip(released, releases, list(finite), strict=True)):
        weight, wrong = weights[len(release)], None
        try:
            if decode is not None:
                release = decoded(decode, client, release)
            elif release.dtype != np.float32 or release.size != size:
                words = f"{ARRAYS}: expected float32 [{size}], got {release.dtype} {list(release.shape)}"
                wrong = MalformedMessage(words, "wrong_shape")
            good &= matrix or bool(np.isfinite(release).all())
        except MalformedMessage as error:
            wrong = error
        if wrong is None and not good:
            wrong = MalformedMessage(f"{ARRAYS}: not finite", "not_finite")
        told = {name: float(beside[name][place]) for name in statistics}
        yield wrong or Reply(client, release, num_examples(client), figures[place], weight, told)


def _figures(content: RecordDict, released: int) -> list[dict[str, float]]:
    """Of each of those who released; all are empty outside simulation."""
    found: list[dict[str, float]] = [{} for _ in range(released)]
    named: Any = content.get(_FIGURES, {})
    of: Any = content.get(_FIGURES_OF, {})
    for name, values in named.items():
        for place, value in zip(of.get(name, range(released)), np.frombuffer(values).tolist(), strict=True):
            found[place][name] = value
    return found
