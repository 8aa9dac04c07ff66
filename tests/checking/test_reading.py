"""The one reader of what leaves: whatever a number is packed in, it is seen by name, or said to be not read."""

from __future__ import annotations

import array
import asyncio
import decimal
import io
import json
import struct
import subprocess
import sys
from collections import deque, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pydantic
import pytest
import torch

from fedpriv.checking.reading import played, released

VALUES, LOSS = np.linspace(0.5, 2.0, 6), 0.625
Pair = namedtuple("Pair", "sent loss")


@dataclass
class Data:
    sent: Any
    loss: Any


@attrs.define
class Slotted:
    sent: Any
    _loss: Any


class Hidden:
    __slots__ = ("__loss", "sent")

    def __init__(self, sent: Any, loss: Any) -> None:
        self.sent, self.__loss = sent, loss


class Model(torch.nn.Module):
    def __init__(self, sent: Any, loss: Any) -> None:
        super().__init__()
        self.sent, self.loss = torch.nn.Parameter(torch.tensor(sent)), loss


class Beside(torch.nn.Module):
    def __init__(self, sent: Any, loss: Any) -> None:
        super().__init__()
        self.sent = torch.nn.Parameter(torch.tensor(sent))
        self.register_buffer("loss", torch.tensor(loss), persistent=False)


class Typed(pydantic.BaseModel):
    sent: list[float]
    _loss: float = 0.0


class Parts(list[Any]):
    loss: Any


def typed(sent: Any, loss: Any) -> Any:
    made = Typed(sent=list(sent))
    made._loss = loss
    return made


def parts(sent: Any, loss: Any) -> Any:
    made = Parts([sent])
    made.loss = loss
    return made


def saved(sent: Any, loss: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, sent=sent, loss=loss)
    return file.getvalue()


def of_torch(sent: Any, loss: Any) -> bytes:
    file = io.BytesIO()
    torch.save({"sent": torch.tensor(sent), "loss": loss}, file)
    return file.getvalue()


def nested(sent: Any, loss: Any) -> Any:
    inner: Any = loss
    for _ in range(8):
        inner = [inner]
    return sent, inner


async def later(sent: Any, loss: Any) -> Any:
    await asyncio.sleep(0)
    return sent, loss


def table(sent: Any, loss: Any) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"sent": sent}, index=np.full(6, loss))


FORMS: dict[str, Any] = {
    "named tuple": Pair,
    "dataclass": Data,
    "slots of attrs": Slotted,
    "slots of a class's own": Hidden,
    "private attribute of pydantic": typed,
    "attribute of a list": parts,
    "attribute of a model": Model,
    "buffer beside a state": Beside,
    "index of a frame": table,
    "floats as bytes": lambda sent, loss: sent.tobytes() + struct.pack("<d", loss),
    "singles as bytes": lambda sent, loss: np.append(sent, loss).astype(np.float32).tobytes(),
    "an archive of arrays": saved,
    "a file of torch": of_torch,
    "json": lambda sent, loss: json.dumps({"sent": list(sent), "loss": loss}),
    "text": lambda sent, loss: f"sent {list(map(float, sent))}, loss={loss}",
    "deep lists": nested,
    "deque": lambda sent, loss: deque([sent, loss]),
    "generator": lambda sent, loss: (one for one in (sent, loss)),
    "coroutine": later,
    "decimal": lambda sent, loss: [sent, decimal.Decimal(loss)],
    "array of Python": lambda sent, loss: [sent, array.array("d", [loss])],
    "view of memory": lambda sent, loss: [sent, memoryview(np.array([loss]))],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_number_is_read_from(form: str) -> None:
    one = played("released", FORMS[form](VALUES, LOSS))
    assert one.unread == () and one.tells
    assert set(np.float32(VALUES).tolist()) <= set(np.float32(one.flat()).tolist())
    assert LOSS in one.flat() and one.flat().shape == played("released", FORMS[form](2 * VALUES, LOSS)).flat().shape
    other = played("released", FORMS[form](VALUES, 0.75))
    assert one.numbers.keys() == other.numbers.keys()
    assert [name for name in one.numbers if not np.array_equal(one.numbers[name], other.numbers[name])]


def test_what_is_not_read_is_told_with_its_place() -> None:
    secret = 3.0
    one = played("released", {"a": VALUES, "rng": np.random.default_rng(1), "f": lambda: secret})
    assert one.unread == ("Generator at released.rng", "function at released.f")
    assert played("released", lambda: secret).tells is False and played("released", []).tells is False
    assert played("released", np.random.default_rng(1).bytes(31)).unread == ("bytes at released",)


def test_names_without_a_state_are_compared_and_have_no_address() -> None:
    assert np.array_equal(played("x", object()).flat(), played("x", object()).flat())
    one = played("released", {"kind": torch.nn.Linear, "act": torch.relu})
    assert one.unread == () and set(one.numbers) == {"form.released", "released.act.text", "released.kind.text"}


def test_an_object_inside_itself_is_read_once() -> None:
    loop = Data(VALUES, LOSS)
    loop.more = loop  # type: ignore[attr-defined]
    assert set(played("released", loop).numbers) == {"form.released", "released.sent", "released.loss"}


def test_what_is_printed_and_written_is_read_where_it_is_asked_for() -> None:
    def call() -> Any:
        print("loss", LOSS)
        Path("loss.json").write_text(json.dumps({"loss": 2 * LOSS}))
        return VALUES

    one = released(call, ("printed", "files"))
    assert one.numbers["released.printed.numbers"] == LOSS
    assert one.numbers["released.files.loss.json.loss"] == 2 * LOSS
    assert not Path("loss.json").exists()


def test_what_plays_a_target_needs_numpy_alone() -> None:
    """Loading, inputs, plays and reading: what judges, and the libraries of targets, are not imported for them."""
    asked = "import sys, fedpriv.checking.functions; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "numpy" in imported and not imported & {"scipy", "torch", "pandas", "pydantic", "flwr", "fedpriv.privacy"}


def _file(values: Any, tail: bytes = b"") -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue() + tail


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (2**60, 2**60 + 1),
        (10**30, 10**30 + 1),
        (np.zeros(2, np.float32), np.zeros(2)),
        (np.ones(2, ">f8"), np.ones(2)),
        ("sent 1.50", "sent 1.5"),
        (_file(VALUES, b"x"), _file(VALUES, b"y")),
        (np.array([0x7FF8000000000000]).view(float), np.array([0x7FF8000000000001]).view(float)),
    ],
)
def test_what_equal_numbers_differ_in_is_read(one: Any, other: Any) -> None:
    first, second = (played("released", value).flat() for value in (one, other))
    assert not np.array_equal(first, second, equal_nan=True)
    assert np.array_equal(first, played("released", one).flat(), equal_nan=True)
