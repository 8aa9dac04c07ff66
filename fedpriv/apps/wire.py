"""The messages between the two halves inside an app, in the form that reaches every kind of Flower client.

A message of our own (`fedpriv.common.messages`) becomes one of Flower's older form, ``fitins``: the only one that a
`NumPyClient` understands, which a mod and a message function read as well. Its arrays are the flat vector, then the
arrays that are no float; what the method says is one byte string of JSON, since the older form knows no lists.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedpriv.apps.form import Form
from fedpriv.common.messages import (
    ARRAYS,
    MOST_ROUND,
    FloatVector,
    MalformedMessage,
    Outgoing,
    Refusal,
    Request,
    outgoing_content,
    read_request,
    refusal,
    unpack_vector,
)

#: Keys of the older form, and ours among its scalars.
FIT_PARAMETERS, FIT_CONFIG = "fitins.parameters", "fitins.config"
ANSWER_PARAMETERS, ANSWER_METRICS = "fitres.parameters", "fitres.metrics"
OURS = "fedpriv"
#: The first exchange with a node: who it is.
HELLO = "hello"
#: What a node says of itself there: its partition in Flower's node-config (-1: none), its examples (0: not known yet).
PARTITION, EXAMPLES = "partition-id", "examples"
#: Bytes of what the halves say beside the arrays.
MOST_SAID = 2**23


@dataclass(frozen=True)
class Terms:
    """What a run's server half tells every client, the same in every message.

    method, variant, unit, options: of the configuration. facts: `PublicFacts`, but for the client's own count. local:
    `LocalConfig`. parts: `Form.parts`. seed: of what is public.
    """

    method: str
    variant: str
    unit: str
    options: Mapping[str, Any]
    facts: Mapping[str, Any]
    local: Mapping[str, Any]
    parts: str
    digest: str
    members: int
    seed: int


@dataclass(frozen=True)
class Told:
    """A message as the client half reads it. client: the number by which the server knows it; config: the user's own
    scalars; arrays: what came down, the vector first.
    """

    terms: Terms
    client: int
    request: Request
    config: Mapping[str, Any]
    arrays: list[NDArray[Any]] = field(default_factory=list)


def to_app(message: Message, terms: Terms, client: int, config: Mapping[str, Any], arrays: ArrayRecord) -> RecordDict:
    """The content of one message of ours in the older form. arrays: `down`."""
    request = read_request(message.content)
    said = {"terms": vars(terms), "client": client, "round": request.round, "attempt": request.attempt}
    ours = json.dumps(said | {"request": _plain(request.options)}).encode()
    return RecordDict({FIT_PARAMETERS: arrays, FIT_CONFIG: ConfigRecord({**config, OURS: ours})})


def down(message: Message, form: Form, whole: Callable[[FloatVector], FloatVector]) -> ArrayRecord:
    """The arrays of one message of ours: the flat vector, then the form's fixed arrays; none where it brings none.
    whole: what comes down of theta -> all of it.
    """
    if ARRAYS not in message.content:
        return ArrayRecord()
    vector = whole(unpack_vector(message.content))
    return ArrayRecord({str(place): Array(array) for place, array in enumerate((vector, *form.fixed.values()))})


def hello(node: int) -> Message:
    """Asks a node who it is."""
    said = json.dumps({HELLO: True}).encode()
    content = RecordDict(
        {FIT_PARAMETERS: ArrayRecord([np.zeros(0, np.float32)]), FIT_CONFIG: ConfigRecord({OURS: said})}
    )
    return Message(content, node, "train")


def said_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the other half wrote among the scalars of a message. Raises `MalformedMessage` where it wrote nothing."""
    said = config.get(OURS)
    try:
        found = json.loads(said) if isinstance(said, bytes) and len(said) <= MOST_SAID else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        words = "the message is none of this method's: is its mod there twice, or another strategy at the server?"
        raise MalformedMessage(words)
    return found


def told(config: Mapping[str, Any], arrays: list[NDArray[Any]]) -> Told:
    """A message that came. Raises `MalformedMessage`."""
    said = said_in(config)
    own = {name: value for name, value in config.items() if name != OURS}
    try:
        places = said["round"], said["attempt"]
        if any(type(place) is not int or not 0 <= place <= MOST_ROUND for place in places):
            raise ValueError("round and attempt: expected whole numbers")
        request = Request(*places, _unplain(said["request"]))
        return Told(Terms(**said["terms"]), int(said["client"]), request, own, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedMessage(f"the server's terms cannot be read ({error})") from None


def answer(outgoing: Outgoing, exchange: str) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
    """A client's answer as a NumPyClient returns it."""
    said = {
        "exchange": exchange,
        "examples": outgoing.num_examples,
        "statistics": dict(outgoing.statistics),
        "blobs": [base64.b64encode(blob).decode() for blob in outgoing.blobs],
        "figures": dict(outgoing.figures),
    }
    arrays = [] if outgoing.release is None else [outgoing.release]
    return arrays, outgoing.num_examples, {OURS: json.dumps(said).encode()}


def refused(code: Refusal, words: str) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
    """In place of an answer. words: of what the server said and the client's own limits, of no data."""
    return [], 0, {OURS: json.dumps({"refused": int(code), "why": words}).encode()}


def from_app(reply: Message, most: int) -> Message:
    """A reply in our own form: the same message with another content, or an error in its place. most: bytes."""
    if reply.has_error():
        return reply
    record = reply.content.array_records.get(ANSWER_PARAMETERS) or ArrayRecord()
    if sum(len(array.data) for array in record.values()) > most:
        return _error(reply, Refusal.FAILED, f"the reply is larger than {most} bytes")
    try:
        said = said_in(reply.content.config_records.get(ANSWER_METRICS) or {})
    except MalformedMessage:
        return _error(reply, Refusal.FAILED, "this node's app has no client half of this method")
    try:
        if "refused" in said:
            return _error(reply, Refusal(int(said["refused"])), str(said["why"]))
        arrays = [array.numpy() for name, array in record.items() if not name.startswith("_")]
        outgoing = Outgoing(
            int(said["examples"]),
            arrays[0] if arrays else None,
            {str(name): float(value) for name, value in said["statistics"].items()},
            tuple(base64.b64decode(blob) for blob in said["blobs"]),
            {str(name): float(value) for name, value in said["figures"].items()},
        )
        reply.content = outgoing_content(str(said["exchange"]), outgoing, bool(outgoing.figures))
    except Exception as error:  # from another machine: nothing of it may stop the server
        return _error(reply, Refusal.FAILED, f"the reply cannot be read ({type(error).__name__})")
    return reply


def _error(reply: Message, code: Refusal, words: str) -> Message:
    found = refusal(code, reply, words)
    found.metadata.__dict__.update(reply.metadata.__dict__)  # it stands in the reply's place
    return found


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a request as JSON."""
    return {name: _encoded(value) for name, value in options.items()}


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    return [_encoded(one) for one in value] if isinstance(value, list | tuple) else value


def _unplain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _decoded(value) for name, value in options.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(value["bytes"])
    return [_decoded(one) for one in value] if isinstance(value, list) else value
