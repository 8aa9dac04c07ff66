"""Every key that appears in a message, and the only code that puts values into messages or takes them out.

The server sends a `Request`, the client an `Outgoing`; how the server reads that: `fedpriv.common.replies`. A message
has named records, one of them with one array: a flat vector [d] in the bytes that ``np.save`` writes, float32 for
parameters and updates, uint8 for packed releases. What arrives comes from another machine: shape, dtype and sizes are
checked before anything is copied or decoded, nothing is evaluated, and no text of a message is repeated in full.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from io import BytesIO
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

ARRAYS, CONFIG, METRICS, DIAGNOSTICS = "arrays", "config", "metrics", "diagnostics"
#: What a message may hold at most, beside its one array: more than any of ours does.
MOST_RECORDS = 8
MOST_KEYS = 1024  # of a record
MOST_NAME = 128  # characters of a key
MOST_TEXT = 1024  # characters of a text
MOST_BLOB = 4096  # bytes of a byte string: a key, a signature, a sealed seed
MOST_BYTES = 2**23  # of a record in all; a list of a million clients
MOST_ROUND = 2**31 - 1  # round or attempt
MOST_REASON = 500  # characters of a client's reason that are kept
#: Why a server refuses a reply: it cannot be read, is larger than any reply can be, has another shape than asked for,
#: holds NaN or infinite numbers, belongs to another round or exchange, comes again, or comes from nobody who was asked.
Refused = Literal["corrupt", "oversized", "wrong_shape", "not_finite", "stale", "duplicate", "unasked"]

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
LOCAL_ACCURACY = "local_accuracy"  # among the diagnostics: the client's own model on its own test examples

#: Which attempts at a round one start of a run may use: an engine may retry a client once (attempt + 1).
ATTEMPTS_PER_START = 2

#: On our own grids node = FIRST_NODE + client (Flower reserves 0 and 1 for itself).
FIRST_NODE = 2


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


#: What a node's operator can do about its own refusal. The other codes are those of simulations.
NODE_REMEDIES = {
    Refusal.FAILED: "mend what this names; the server may ask again",
    Refusal.BUDGET_SPENT: "`fedpriv plan policy=FILE` finds a run that costs less; whether policy.yaml has a larger "
    "max_epsilon or other limits is this machine's decision",
    Refusal.STALE: "the server went back: let it resume its run from the newest checkpoint",
    Refusal.UNSAFE_NOISE: "the server must keep to the noise_multiplier that the run's options name",
    Refusal.UNSAFE_CLIP_NORM: "the server must keep to the clip_norm that the run's options name",
    Refusal.POLICY: "submit the run with what is allowed, or change policy.yaml, which is read at the next message",
    Refusal.LEDGER: "wait for another process with these data; docs/upkeep.md says what may be put back of a ledger "
    "and its counter",
    Refusal.BUNDLE: "read the app, then put its digest (`fedpriv deploy node bundle APP`) into policy.yaml: bundles",
    Refusal.UNSAFE_SUM: "options, peers.json and limits.min_survivors must fit together on all machines",
}


def refusal_line(code: Refusal, reason: str) -> str:
    """One line for the log of the node that refuses."""
    return f"refused, {code.name.lower()}: {reason}; remedy: {NODE_REMEDIES[code]}"


def place(server_round: int, attempt: int) -> tuple[int, int, int]:
    """Sort key of requests: a server that was started again may go back to an earlier round, and it is a later request
    all the same.
    """
    return attempt // ATTEMPTS_PER_START, server_round, attempt


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


def statistics_content(statistics: Mapping[str, float]) -> RecordDict:
    """Content of a reply that holds statistics and nothing else."""
    return RecordDict({STATISTICS: MetricRecord(dict(statistics))})


def blobs_content(exchange: str, blobs: Sequence[bytes]) -> RecordDict:
    """Content of a reply that holds byte strings and nothing else, such as a public key."""
    return RecordDict({exchange: ConfigRecord({str(index): blob for index, blob in enumerate(blobs)})})


def label(server_round: int, attempt: int, exchange: str) -> str:
    """What a train message and its reply bear outside their content (Flower's ``group_id``, which a reply copies): the
    round, the server's attempt at it, and the exchange.
    """
    return f"{server_round}/{attempt}/{exchange}"


def identity_content(client: int) -> RecordDict:
    """Content of a reply to ``query``: which partition this node is."""
    return RecordDict({METRICS: MetricRecord({CLIENT: client})})


def refusal(code: Refusal, message: Message, reason: str | None = None) -> Message:
    """An error reply; ``reason`` is for simulation only, where the experimenter owns both sides."""
    return Message(Error(code=int(code), reason=reason or code.name.lower()), reply_to=message)


# --- records ---------------------------------------------------------------------------------------------


class MalformedMessage(ValueError):
    """A message does not hold what it must; says which key. kind: what is wrong, for counting."""

    def __init__(self, words: str, kind: Refused = "corrupt") -> None:
        super().__init__(words)
        self.kind: Refused = kind


def most_bytes(size: int) -> int:
    """More than any reply about ``size`` coordinates has: the widest, cpSGD's at most levels, has 14 bytes each."""
    return 16 * size + 2**16


def check_size(content: RecordDict, size: int) -> None:
    """Raises `MalformedMessage` for a content beyond `most_bytes`, before anything of it is decoded."""
    arrays = (array for record in content.values() if isinstance(record, ArrayRecord) for array in record.values())
    found = sum(len(array.data) for array in arrays)
    if found > most_bytes(size):
        raise MalformedMessage(f"{found} bytes, at most {most_bytes(size)} are expected", "oversized")
    sized(content)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def shown(value: object) -> str:
    """A value that came in a message, for an error: its repr, cut."""
    return _short.repr(value)


def shown_text(text: str, most: int = 60) -> str:
    """A text that came in a message, for an error: one line without control characters, cut."""
    cut = text[:most] + "..." if len(text) > most else text
    return "".join(letter if letter.isprintable() else " " for letter in cut)


def num_bytes(content: RecordDict) -> int:
    """Bytes of a message's content as sent (without diagnostics, which do not exist outside simulation).

    Raises `MalformedMessage` where Flower cannot count them: an empty text or list is in no message of ours.
    """
    try:
        return sum(record.count_bytes() for key, record in content.items() if key != DIAGNOSTICS)
    except (ValueError, IndexError) as error:
        raise MalformedMessage(f"a record cannot be counted: {error}") from None


def bytes_of_options(options: Options) -> int:
    """What they add to `num_bytes` of a message that tells a client them too."""
    return sum(len(name) + _bytes_of(value) for name, value in options.items())


def _bytes_of(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_bytes_of, value))
    return len(value) if isinstance(value, str | bytes) else 1 if isinstance(value, bool) else 8


def get_record(content: RecordDict, key: str, kind: type[Any]) -> Any:
    record = content.get(key)
    if not isinstance(record, kind):
        raise MalformedMessage(f"{key}: missing or of the wrong kind")
    return record


def sized(content: RecordDict) -> RecordDict:
    """The content itself. Raises `MalformedMessage` where it holds more than a message may; the size of the array that
    is read is checked where the model is known.
    """
    if len(content) > MOST_RECORDS:
        raise MalformedMessage(f"{len(content)} records, at most {MOST_RECORDS} are possible", "oversized")
    for key, record in content.items():
        if isinstance(record, ArrayRecord):
            if key != ARRAYS:
                raise MalformedMessage(f"{shown_text(key)}: no arrays are expected here")
            continue
        if len(record) > MOST_KEYS:
            raise MalformedMessage(
                f"{shown_text(key)}: {len(record)} keys, at most {MOST_KEYS} are possible", "oversized"
            )
        total = 0
        for name, value in record.items():
            if len(name) > MOST_NAME:
                raise MalformedMessage(f"{shown_text(key)}: a key of {len(name)} characters", "oversized")
            total += len(name) + _size(value, key, name)
        if total > MOST_BYTES:
            raise MalformedMessage(f"{shown_text(key)}: {total} bytes, at most {MOST_BYTES} are possible", "oversized")
    return content


def _size(value: Any, record: str, name: str) -> int:
    """Bytes of a value. Raises `MalformedMessage` for a text or a byte string that is too long."""
    if isinstance(value, list):
        if not value or not isinstance(value[0], str | bytes):  # all of one type: Flower checks that
            return 8 * len(value)
        return len(value) + sum(_size(one, record, name) for one in value)
    if isinstance(value, str | bytes):
        if len(value) > (MOST_TEXT if isinstance(value, str) else MOST_BLOB):
            words = f"{len(value)} characters or bytes are too long"
            raise MalformedMessage(f"{shown_text(record)}.{shown_text(name)}: {words}", "oversized")
        return len(value)
    return 8


# --- the one array ---------------------------------------------------------------------------------------

FloatVector = NDArray[np.float32]
VECTOR = "vector"  # the one array of an ArrayRecord
#: Bytes per coordinate of the model that a release in another form than float32 may have.
MOST_PER_COORDINATE = 16


def pack_vector(*parts: NDArray[Any]) -> ArrayRecord:
    """One flat vector [d] as an ArrayRecord, or several of one type, one behind the other: each is copied once."""
    arrays = [np.ascontiguousarray(part) for part in parts]
    dtype, shape = arrays[0].dtype, (sum(map(len, arrays)),)
    data = b"".join((_npy_header(dtype, shape), *(array.data for array in arrays)))
    record = ArrayRecord()
    record[VECTOR] = Array(dtype=dtype.name, shape=shape, stype="numpy.ndarray", data=data)
    return record


@lru_cache(maxsize=64)
def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """What ``np.save`` writes before an array's numbers; Flower calls it for every message, most of the work."""
    file = BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
    return file.getvalue()


def unpack_vector(record: RecordDict | ArrayRecord, size: int | None = None) -> FloatVector:
    """The flat vector of a message (or of its ArrayRecord); raises `MalformedMessage` unless it is float32 [size]."""
    vector = _array(record)
    if vector.dtype != np.float32:
        words = f"{ARRAYS}.{VECTOR}: expected float32 [d], got {vector.dtype} {list(vector.shape)}"
        raise MalformedMessage(words, "wrong_shape")
    if size is not None and vector.size != size:
        raise MalformedMessage(f"{ARRAYS}.{VECTOR}: expected {size} values, got {vector.size}", "wrong_shape")
    return vector.copy()


def view_array(record: RecordDict | ArrayRecord) -> NDArray[Any]:
    """The one array of a message as it lies there: float32 [n] or uint8 [n], not to be written to. Raises
    `MalformedMessage`.
    """
    return _array(record)


def unpack_array(record: RecordDict | ArrayRecord, most_bytes: int | None = None) -> NDArray[Any]:
    """The one array of a message, float32 [n] or uint8 [n], of ``most_bytes`` at most. Raises `MalformedMessage`."""
    array = _array(record)
    if most_bytes is not None and array.nbytes > most_bytes:
        raise MalformedMessage(
            f"{ARRAYS}.{VECTOR}: {array.nbytes} bytes, at most {most_bytes} are possible", "oversized"
        )
    return array.copy()


#: What ``np.save`` writes before the numbers of an array that we send. Every other form is refused unread: numpy's own
#: reader would hand the text to Python's parser.
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(..)\{'descr': '(<f4|\|u1)', 'fortran_order': False, 'shape': \((\d{1,15}),\), \} *\n",
    re.DOTALL,
)


def _array(record: RecordDict | ArrayRecord) -> NDArray[Any]:
    """As `unpack_array`, but a view of the message's own bytes: nothing is copied."""
    arrays = record if isinstance(record, ArrayRecord) else get_record(sized(record), ARRAYS, ArrayRecord)
    if len(arrays) != 1 or VECTOR not in arrays:
        raise MalformedMessage(f"{ARRAYS}: expected the one array {VECTOR!r}")
    data = arrays[VECTOR].data
    header = _HEADER.match(data)
    if header is None or int.from_bytes(header[1], "little") != header.end() - 10:
        raise MalformedMessage(f"{ARRAYS}.{VECTOR}: cannot be decoded, expected float32 or uint8 [d]")
    dtype, count = np.dtype(header[2].decode()), int(header[3])
    if len(data) - header.end() != count * dtype.itemsize:
        raise MalformedMessage(f"{ARRAYS}.{VECTOR}: cannot be decoded, {count} values of {dtype} are other bytes")
    return np.frombuffer(data, dtype, offset=header.end())
