"""How a server reads what clients sent: a `Reply`, a `Report` or byte strings, each checked; and what it asks with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedpriv.common.messages import (
    ARRAYS,
    ATTEMPT,
    CLIENT,
    CONFIG,
    DIAGNOSTICS,
    METRICS,
    MOST_KEYS,
    MOST_PER_COORDINATE,
    MOST_REASON,
    NUM_EXAMPLES,
    ROUND,
    STATISTICS,
    VECTOR,
    FloatVector,
    MalformedMessage,
    Refusal,
    Refused,
    Request,
    get_record,
    num_bytes,
    shown,
    shown_text,
    sized,
    unpack_array,
    unpack_vector,
)

#: Beside the names of `Refusal`: the server could not use what came; the client gave a code from no list of ours.
MALFORMED, OTHER = "malformed", "other"
#: That a client may declare with a reply.
MOST_EXAMPLES = 2**40


def refusal_name(code: int) -> str:
    """A code as logs and metrics write it. Codes are a client's to choose, so what is unknown has one name."""
    return Refusal(code).name.lower() if code in Refusal._value2member_map_ else OTHER


@dataclass(frozen=True)
class Report:
    """A client's statistics by name, all finite, where they travel in an exchange of their own."""

    client: int
    statistics: dict[str, float]
    num_bytes: int


class Reported(Protocol):
    """What a clipping rule may know of a client: a `Reply` or a `Report`."""

    @property
    def client(self) -> int: ...

    @property
    def statistics(self) -> dict[str, float]: ...


#: In the place of a release that was used.
FORGOTTEN: FloatVector = np.zeros(0, np.float32)


@dataclass(slots=True)
class Reply:
    """A client's answer to a train message."""

    client: int
    release: FloatVector  # [d]
    num_examples: int
    diagnostics: dict[str, float]
    num_bytes: int
    statistics: dict[str, float] = field(default_factory=dict)  # by the names that the server asked for; finite

    def forgotten(self) -> Reply:
        """The same without its release."""
        return Reply(self.client, FORGOTTEN, self.num_examples, self.diagnostics, self.num_bytes, self.statistics)


def train_content(arrays: ArrayRecord | None, request: Request) -> RecordDict:
    """Content of a train message; ``arrays`` is shared by all messages of a round, not copied. None: this exchange
    goes on with what the client keeps of an earlier one.
    """
    config = ConfigRecord({ROUND: request.round, ATTEMPT: request.attempt, **request.options})
    return RecordDict({CONFIG: config} if arrays is None else {ARRAYS: arrays, CONFIG: config})


def read_reply(
    message: Message,
    client: int,
    size: int,
    num_examples: int | None,
    statistics: Sequence[str] = (),
    decode: Callable[[int, NDArray[Any]], FloatVector] | None = None,
) -> Reply:
    """A train reply of ``client`` with these ``statistics``; raises `MalformedMessage` for a wrong shape or dtype, a
    missing statistic, NaN or infinite values. decode: (client, the array that arrived) -> the release (float32 [size]);
    raises ValueError where it cannot.

    The declared ``num_examples`` is used, whatever the reply says; None: the reply declares it.
    """
    content = message.content
    if num_examples is None:
        num_examples = get_record(sized(content), METRICS, MetricRecord).get(NUM_EXAMPLES)
        if not isinstance(num_examples, int) or not 1 <= num_examples <= MOST_EXAMPLES:
            raise MalformedMessage(f"{METRICS}.{NUM_EXAMPLES}: expected a count, got {shown(num_examples)}")
    if decode is None:
        release = unpack_vector(content, size)
    else:
        release = decoded(decode, client, unpack_array(content, MOST_PER_COORDINATE * size))
    if not np.isfinite(release).all():
        raise MalformedMessage(f"{ARRAYS}.{VECTOR}: not finite", "not_finite")
    diagnostics = {}
    if DIAGNOSTICS in content:
        diagnostics = _numbers(content, DIAGNOSTICS)
    found = {name: _finite(content, name) for name in statistics}
    return Reply(client, release, num_examples, diagnostics, num_bytes(content), found)


def decoded(decode: Callable[[int, NDArray[Any]], FloatVector], client: int, array: NDArray[Any]) -> FloatVector:
    """A client's release (float32 [d]) from the array that arrived. Raises `MalformedMessage`."""
    try:
        return decode(client, array)
    except ValueError as error:
        raise MalformedMessage(f"{ARRAYS}.{VECTOR}: {error}", "wrong_shape") from None


def read_report(message: Message, client: int, names: Sequence[str]) -> Report:
    """The statistics of ``client``; raises `MalformedMessage` for a missing one, NaN or infinite values."""
    content = sized(message.content)
    found = {name: _finite(content, name, STATISTICS) for name in names}
    get_record(content, STATISTICS, MetricRecord)
    return Report(client, found, num_bytes(content))


def read_blobs(message: Message, exchange: str, most: int = MOST_KEYS) -> tuple[bytes, ...]:
    """The byte strings of an exchange, in order, ``most`` of them at most. Raises `MalformedMessage`."""
    record = get_record(sized(message.content), exchange, ConfigRecord)
    if len(record) > most:
        raise MalformedMessage(f"{exchange}: {len(record)} byte strings, at most {most} are possible", "oversized")
    found = tuple(record.get(str(index)) for index in range(len(record)))
    if not all(isinstance(blob, bytes) for blob in found):
        raise MalformedMessage(f"{exchange}: expected byte strings numbered from 0", "wrong_shape")
    return found


def _finite(content: RecordDict, name: str, record: str = METRICS) -> float:
    value = get_record(content, record, MetricRecord).get(name)
    if not isinstance(value, float) or not math.isfinite(value):
        kind: Refused = "not_finite" if isinstance(value, float) else "wrong_shape"
        raise MalformedMessage(f"{record}.{name}: expected a finite number, got {shown(value)}", kind)
    return value


def _numbers(content: RecordDict, record: str) -> dict[str, float]:
    """All numbers of a record; a loss that has diverged is one too."""
    found = dict(get_record(content, record, MetricRecord))
    for name, value in found.items():
        if not isinstance(value, int | float):
            raise MalformedMessage(f"{record}.{shown_text(name)}: expected a number, got {shown(value)}")
    return {name: float(value) for name, value in found.items()}


def read_label(text: str) -> tuple[int, int, str]:
    """(round, attempt, exchange) of a `label` of our own."""
    server_round, attempt, exchange = text.split("/")
    return int(server_round), int(attempt), exchange


def read_identity(message: Message) -> int:
    """Which partition a node says it is. Raises `MalformedMessage`."""
    value = get_record(sized(message.content), METRICS, MetricRecord).get(CLIENT)
    if not isinstance(value, int) or value < 0:
        raise MalformedMessage(f"{METRICS}.{CLIENT}: expected a whole number, got {shown(value)}")
    return value


def reason_of(message: Message) -> str:
    """Why a client sent no content, in its own words: one line, cut."""
    return shown_text(str(message.error.reason), MOST_REASON)
