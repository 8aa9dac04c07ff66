"""Every key that appears in a message, and the only code that puts values into messages or takes them out.

The server sends a `Request`, the client an `Outgoing`, which the server reads as a `Reply`, a `Report` or byte strings.
What arrives is checked here (shape, dtype, finite), because a message comes from another machine: a client's from the
server as much as the server's from a client. Sizes: `fedpriv.common.records`. Vectors: `fedpriv.common.vectors`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedpriv.common.records import (
    ARRAYS,
    CONFIG,
    DIAGNOSTICS,
    METRICS,
    MOST_KEYS,
    MOST_REASON,
    MOST_ROUND,
    MalformedMessage,
    Refused,
    get_record,
    num_bytes,
    shown,
    shown_text,
    sized,
)
from fedpriv.common.vectors import MOST_PER_COORDINATE, VECTOR, FloatVector, pack_vector, unpack_array, unpack_vector

#: What an option of a train message may be.
Value = float | int | str | bool | bytes | list[int] | list[float] | list[bytes]
Options = dict[str, Value]

ROUND, ATTEMPT = "round", "attempt"
RUN = "run"  # the server's own name for its run, which outlives a restart; in a deployment only
#: Which exchange of a round a train message belongs to, in its options; without the key it is TRAIN.
EXCHANGE, TRAIN, STATISTICS, KEYS, SEEDS = "exchange", "train", "statistics", "keys", "seeds"
#: Further ones of a secure sum, whose order is this.
SHARES, CONFIRM, UNMASK = "shares", "confirm", "unmask"
SUM_EXCHANGES = (KEYS, SHARES, TRAIN, CONFIRM, UNMASK)
SIGMA = "noise_multiplier"  # the round's sigma_t, in a train message's options
CLIP_NORM = "clip_norm"  # the round's C^t, in a train message's options where it moves
#: Beside a release, so that C can move: a noisy 1[norm <= C], a noisy norm, or s_i without noise (published ADP-FL).
CLIP_BIT, CLIP_REPORTED_NORM, CLIP_CHANGE = "clip-bit", "clip-norm", "clip-change"
CENTRES, RADII = "centres", "radii"  # one for each named block, where they follow the released weights
#: A group that shares bits: members, their public keys and signatures, the leader's sealed seed, the round's attempt.
MEMBERS, PUBLIC_KEYS, SIGNATURES, SEALED, KEY_ATTEMPT = "members", "public-keys", "signatures", "sealed", "key-attempt"
#: A secure sum: SHA-256 of theta and C^t, who has announced keys, whose vectors are in the sum, who signed for that.
MODEL_DIGEST, ROSTER, SURVIVORS, SIGNERS = "model-digest", "roster", "survivors", "signers"
TRAIN_LOSS = "train-loss"  # a release beside the gradient: what loss-weighted aggregation asks of a client
LEAST_NORM = "least_norm"  # min_j of the reported norms, beside C^t where clients divide a round's budget
NUM_EXAMPLES, CLIENT = "num-examples", "client"
LOCAL_ACCURACY = "local_accuracy"  # among the diagnostics: the client's own model on its own test pictures


class Refusal(IntEnum):
    """Why a client sent no content: a code from this list, never text computed from data."""

    FAILED = 100  # the client raised; its own log says what
    BUDGET_SPENT = 101  # the next release would exceed privacy.max_epsilon
    LOST = 102  # planned by engine.faults: the reply never arrives
    WORKER_LOST = 103  # the process that ran the client died twice
    STALE = 104  # an older round than the last one answered
    UNSAFE_NOISE = 105  # the server asked for less noise than the client's guarantee counts on
    UNSAFE_CLIP_NORM = 106  # the server announced a clip norm outside the public bounds
    POLICY = 107  # the node's policy.yaml does not allow what the run asks for
    LEDGER = 108  # the data folder's ledger is missing, older than its counter, or in use
    BUNDLE = 109  # the node has not approved the app that the server sends
    LATE = 110  # planned by engine.faults: the reply comes after the deadline
    UNSAFE_SUM = 111  # the server broke a rule of the secure sum


#: Which attempts at a round one start of a run may use: an engine may retry a client once (attempt + 1).
ATTEMPTS_PER_START = 2


def place(server_round: int, attempt: int) -> tuple[int, int, int]:
    """Sort key of requests: a server that was started again may go back to an earlier round, and it is a later request
    all the same.
    """
    return attempt // ATTEMPTS_PER_START, server_round, attempt


#: Beside the names of `Refusal`: the server could not use what came; the client gave a code from no list of ours.
MALFORMED, OTHER = "malformed", "other"


def refusal_name(code: int) -> str:
    """A code as logs and metrics write it. Codes are a client's to choose, so what is unknown has one name."""
    return Refusal(code).name.lower() if code in Refusal._value2member_map_ else OTHER


@dataclass(frozen=True)
class Request:
    """What the server asks a client for in one exchange, besides the parameters: the round, the attempt at it, and what
    the method's server half added.
    """

    round: int
    attempt: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exchange(self) -> str:
        """Which exchange of the round this is; TRAIN unless the options name another."""
        return str(self.options.get(EXCHANGE, TRAIN))


@dataclass(frozen=True)
class Outgoing:
    """What leaves a client in one exchange.

    release: the vector of the exchange TRAIN, None in others. statistics: by name, of TRAIN or STATISTICS. blobs: byte
    strings of all other exchanges. figures: for the experimenter, in simulation only.
    """

    num_examples: int  # declared
    release: NDArray[Any] | None = None
    statistics: Mapping[str, float] = field(default_factory=dict)
    blobs: tuple[bytes, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Reply:
    """A client's answer to a train message."""

    client: int
    release: FloatVector  # [d]
    num_examples: int
    diagnostics: dict[str, float]
    num_bytes: int
    statistics: dict[str, float] = field(default_factory=dict)  # by the names that the server asked for; finite


def train_content(arrays: ArrayRecord | None, request: Request) -> RecordDict:
    """Content of a train message; ``arrays`` is shared by all messages of a round, not copied. None: this exchange
    goes on with what the client keeps of an earlier one.
    """
    config = ConfigRecord({ROUND: request.round, ATTEMPT: request.attempt, **request.options})
    return RecordDict({CONFIG: config} if arrays is None else {ARRAYS: arrays, CONFIG: config})


def read_request(content: RecordDict) -> Request:
    """Raises `MalformedMessage` where round or attempt are missing or not whole numbers."""
    config = dict(get_record(sized(content), CONFIG, ConfigRecord))
    number, attempt = config.pop(ROUND, None), config.pop(ATTEMPT, None)
    for key, value in ((ROUND, number), (ATTEMPT, attempt)):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_ROUND:
            raise MalformedMessage(f"{CONFIG}.{key}: expected a whole number, got {shown(value)}")
    return Request(int(number), int(attempt), config)  # type: ignore[call-overload,arg-type]


def run_name(request: Request) -> str:
    """The server's own name for its run: 32 hexadecimal digits. Raises `MalformedMessage`."""
    name = request.options.get(RUN)
    if not isinstance(name, str) or re.fullmatch("[0-9a-f]{32}", name) is None:
        raise MalformedMessage(f"{CONFIG}.{RUN}: expected 32 hexadecimal digits")
    return name


def outgoing_content(exchange: str, outgoing: Outgoing, simulation: bool) -> RecordDict:
    """Content of a client's reply to an exchange; in simulation with diagnostics beside a release."""
    if exchange == STATISTICS:
        return statistics_content(outgoing.statistics)
    if exchange != TRAIN:
        return blobs_content(exchange, outgoing.blobs)
    assert outgoing.release is not None, "the exchange `train` ends with a release"
    diagnostics = outgoing.figures if simulation else None
    return reply_content(outgoing.release, outgoing.num_examples, diagnostics, outgoing.statistics)


def reply_content(
    release: NDArray[Any],
    num_examples: int,
    diagnostics: Mapping[str, float] | None,
    statistics: Mapping[str, float] = MappingProxyType({}),
) -> RecordDict:
    """Content of a train reply. ``diagnostics`` exist in simulation only (privacy.rng=seeded); ``statistics`` are
    releases, with an event of their own in the client's ledger.
    """
    metrics = MetricRecord({NUM_EXAMPLES: num_examples, **statistics})
    content = RecordDict({ARRAYS: pack_vector(release), METRICS: metrics})
    if diagnostics is not None:
        content[DIAGNOSTICS] = MetricRecord({key: float(value) for key, value in diagnostics.items()})
    return content


def read_reply(
    message: Message,
    client: int,
    size: int,
    num_examples: int,
    statistics: Sequence[str] = (),
    decode: Callable[[int, NDArray[Any]], FloatVector] | None = None,
) -> Reply:
    """A train reply of ``client`` with these ``statistics``; raises `MalformedMessage` for a wrong shape or dtype, a
    missing statistic, NaN or infinite values. decode: (client, the array that arrived) -> the release (float32 [size]);
    raises ValueError where it cannot.

    The declared ``num_examples`` is used, whatever the reply says.
    """
    content = message.content
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


def statistics_content(statistics: Mapping[str, float]) -> RecordDict:
    """Content of a reply that holds statistics and nothing else."""
    return RecordDict({STATISTICS: MetricRecord(dict(statistics))})


def read_report(message: Message, client: int, names: Sequence[str]) -> Report:
    """The statistics of ``client``; raises `MalformedMessage` for a missing one, NaN or infinite values."""
    content = sized(message.content)
    found = {name: _finite(content, name, STATISTICS) for name in names}
    get_record(content, STATISTICS, MetricRecord)
    return Report(client, found, num_bytes(content))


def blobs_content(exchange: str, blobs: Sequence[bytes]) -> RecordDict:
    """Content of a reply that holds byte strings and nothing else, such as a public key."""
    return RecordDict({exchange: ConfigRecord({str(index): blob for index, blob in enumerate(blobs)})})


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


def label(server_round: int, attempt: int, exchange: str) -> str:
    """What a train message and its reply bear outside their content (Flower's ``group_id``, which a reply copies): the
    round, the server's attempt at it, and the exchange.
    """
    return f"{server_round}/{attempt}/{exchange}"


def read_label(text: str) -> tuple[int, int, str]:
    """(round, attempt, exchange) of a `label` of our own."""
    server_round, attempt, exchange = text.split("/")
    return int(server_round), int(attempt), exchange


def identity_content(client: int) -> RecordDict:
    """Content of a reply to ``query``: which partition this node is."""
    return RecordDict({METRICS: MetricRecord({CLIENT: client})})


def read_identity(message: Message) -> int:
    """Which partition a node says it is. Raises `MalformedMessage`."""
    value = get_record(sized(message.content), METRICS, MetricRecord).get(CLIENT)
    if not isinstance(value, int) or value < 0:
        raise MalformedMessage(f"{METRICS}.{CLIENT}: expected a whole number, got {shown(value)}")
    return value


def refusal(code: Refusal, message: Message, reason: str | None = None) -> Message:
    """An error reply; ``reason`` is for simulation only, where the experimenter owns both sides."""
    return Message(Error(code=int(code), reason=reason or code.name.lower()), reply_to=message)


def reason_of(message: Message) -> str:
    """Why a client sent no content, in its own words: one line, cut."""
    return shown_text(str(message.error.reason), MOST_REASON)


#: On our own grids node = FIRST_NODE + client (Flower reserves 0 and 1 for itself).
FIRST_NODE = 2
