"""What runs in a target's process: it loads the target, finds the form that it takes, plays it and reads what leaves.

Where the target's libraries are in another interpreter (``python=PATH``), `RemoteTarget` packs this file and those that
it imports into one archive and starts it there with two pipes. It needs Python 3.9 and numpy; data stay where they are
made, and what comes back are numbers.
"""

from __future__ import annotations

import builtins
import difflib
import importlib
import importlib.util
import inspect
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import numpy as np

from fedpriv.checking import subject as subjects
from fedpriv.checking.functions import NotTaken, recognises
from fedpriv.checking.generators import Held
from fedpriv.checking.reading import Numbers, Played
from fedpriv.checking.subject import Claim, Pair, Probe, Question, Subject
from fedpriv.common.errors import FedprivError, OptionError

#: Files of the archive, beside empty ones that make them packages.
FILES = (
    *(
        f"fedpriv/checking/{name}.py"
        for name in ("findings", "functions", "generators", "lines", "player", "reading", "subject")
    ),
    "fedpriv/common/errors.py",
)
OLDEST = (3, 9)


def question_of(value: Mapping[str, Any]) -> Question:
    """Of `dataclasses.asdict`, through JSON."""
    claim = value["claim"]
    lists = {name: tuple(value[name]) for name in ("dims", "also")}
    return Question(**{**value, **lists, "claim": Claim(**claim) if claim else None})


# --- messages ---------------------------------------------------------------------------------------------------------
# A length of four bytes, so many bytes of JSON, and the arrays that it describes: (place in JSON, dtype, shape).


def send(pipe: IO[bytes], message: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> None:
    head = json.dumps({**message, "arrays": [(one.dtype.str, one.shape) for one in arrays]}).encode()
    pipe.write(struct.pack("<I", len(head)) + head)
    for one in arrays:
        pipe.write(np.ascontiguousarray(one).tobytes())
    pipe.flush()


def receive(pipe: IO[bytes]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Raises EOFError where the other side ended."""
    (length,) = struct.unpack("<I", _exactly(pipe, 4))
    message = json.loads(_exactly(pipe, length))
    arrays: list[np.ndarray] = []
    for dtype, shape in message.pop("arrays"):
        if dtype not in ("<f8", "<i8"):
            raise EOFError(f"an array of {dtype}")
        size = 8 * int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(_exactly(pipe, size), dtype).reshape(shape))
    return message, arrays


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    read = pipe.read(size)
    if len(read) != size:
        raise EOFError("the target's process ended")
    return read


# --- the target's side ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    """descriptors of the pipes to read from and to write to, and the target's name."""
    with os.fdopen(int(arguments[0]), "rb") as asked, os.fdopen(int(arguments[1]), "wb") as answers:
        _serve(arguments[2], asked, answers)
        os._exit(0)  # what a target left running ends here


def _serve(name: str, asked: IO[bytes], answers: IO[bytes]) -> None:
    target, subject = None, None
    sys.path.insert(0, "")
    while True:
        try:
            message, _ = receive(asked)
        except EOFError:
            return
        arrays: list[np.ndarray] = []
        try:
            if message["do"] == "load":
                target, reply = load_target(name), {}
            elif message["do"] == "recognise":
                subject = recognises(target, question_of(message["question"]))
                reply = _described(subject)
            else:
                assert subject is not None
                reply, arrays = _played(subject, message)
        except OptionError as error:
            reply = {"mistake": [error.option, str(error.value), error.allowed]}
        except BaseException as error:
            kind = "NotTaken" if isinstance(error, NotTaken) else type(error).__name__
            reply = {"raised": [kind, " ".join(str(error).split())[:1000]]}
        send(answers, {**reply, "cpu": time.process_time(), "held": Held.found}, arrays)


def _described(subject: Subject | None) -> dict[str, Any]:
    """Names and laws of its inputs, and none of the inputs."""
    if subject is None:
        return {}
    pairs = [{part: getattr(one, part) for part in ("name", "adjacency", "unit")} for one in subject.pairs]
    probes = [
        {"name": one.name, "kind": one.kind, "lengths": list(one.lengths), "many": len(one.data)}
        for one in subject.probes
    ]
    return {"name": subject.name, "kind": subject.kind, "pairs": pairs, "probes": probes,
            "series": type(subject).series is not Subject.series}  # fmt: skip


def _played(subject: Subject, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
    data, seed = [_input(subject, one) for one in message["data"]], message["seed"]
    if message["do"] == "trials":
        return {}, [subject.trials(data[0], message["n"], seed)]
    if message["do"] == "text":
        return {"text": subject.text(data[0])}, []
    if message["do"] == "lines":
        return {"lines": subject.lines(data[0], seed, message["values"])}, []
    if message["do"] == "unseeded":
        play, states = subject.unseeded(data[0], seed)
        plays, more = [play], {"states": states}
    else:
        plays = subject.series(data, seed) if message["do"] == "series" else subject.play(data[0], seed, message["n"])
        more = {}
    heads = [{"numbers": list(one.numbers), "exact": list(one.exact), "unread": list(one.unread)} for one in plays]
    arrays = [part for one in plays for part in (*one.numbers.values(), *one.exact.values())]
    return {"plays": heads, **more}, arrays


def _input(subject: Subject, place: Sequence[Any]) -> Any:
    kind, number, which = place
    one = subject.pairs[number] if kind == "pair" else subject.probes[number]
    return getattr(one, which) if isinstance(one, Pair) else one.data[which]


# --- the check's side -------------------------------------------------------------------------------------------------


class RemoteTarget:
    """A target in another interpreter. Raises `OptionError` where that has no numpy or is too old, or has no such
    target, and what the target's module raises.
    """

    def __init__(self, python: str, name: str) -> None:
        version = _version(python)
        if version < OLDEST:
            words = f"is Python {'.'.join(map(str, version))}; allowed: 3.9 and newer"
            raise OptionError("python", python, words)
        self.process = _Process(python, name)
        self.process.ask({"do": "load"})

    def subject(self, question: Question) -> Subject | None:
        """Raises `NotTaken` with the target's own errors."""
        reply, _ = self.process.ask({"do": "recognise", "question": asdict(question)})
        if not reply:
            return None
        pairs = [
            Pair(one["name"], ("pair", n, "left"), ("pair", n, "right"), one["adjacency"], one["unit"])
            for n, one in enumerate(reply["pairs"])
        ]
        probes = [
            Probe(one["name"], one["kind"], [("probe", n, place) for place in range(one["many"])], one["lengths"])
            for n, one in enumerate(reply["probes"])
        ]
        kind = RemoteSeries if reply["series"] else RemoteSubject
        return kind(name=reply["name"], pairs=pairs, probes=probes, claim=question.claim, process=self.process)


def _version(python: str) -> tuple[int, ...]:
    code = "import sys, numpy; print(*sys.version_info[:2])"
    try:
        said = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OptionError("python", python, f"cannot be started ({error}); it must be an interpreter") from None
    if said.returncode:
        last = (said.stderr.strip().splitlines() or ["no word"])[-1]
        raise OptionError("python", python, f"must be an interpreter with numpy; it says: {last}")
    return tuple(int(part) for part in said.stdout.split())


class _Process:
    def __init__(self, python: str, name: str) -> None:
        self._folder = tempfile.TemporaryDirectory()  # until the check ends
        archive = os.path.join(self._folder.name, "player.pyz")
        pack(archive)
        to, asked = os.pipe()
        answers, back = os.pipe()
        command = [python, archive, str(to), str(back), name]
        self._child = subprocess.Popen(command, pass_fds=(to, back), stdin=subprocess.DEVNULL)
        os.close(to)
        os.close(back)
        self._asked, self._answers, self._cpu = os.fdopen(asked, "wb"), os.fdopen(answers, "rb"), 0.0

    def ask(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Raises what the target raised, by its name, and `FedprivError` where its process ended."""
        try:
            send(self._asked, message)
            reply, arrays = receive(self._answers)
        except (EOFError, OSError) as error:
            code = self._child.wait()
            raise FedprivError(f"the target's process ended (exit code {code}): {error}") from None
        subjects.Elsewhere.seconds += reply.pop("cpu") - self._cpu
        self._cpu, Held.found = subjects.Elsewhere.seconds, reply.pop("held")
        if "mistake" in reply:
            raise OptionError(*reply["mistake"])
        if "raised" in reply:
            kind, text = reply["raised"]
            if kind == "NotTaken":
                raise NotTaken(text)
            known = getattr(builtins, kind, None)
            raise (
                known(text)
                if inspect.isclass(known) and issubclass(known, Exception)
                else type(kind, (Exception,), {})(text)
            )
        return reply, arrays


def pack(archive: str) -> None:
    """Writes the files as one archive, which an interpreter runs."""
    root = Path(__file__).parents[2]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in FILES:
            packed.write(root / name, name)
        for folder in ("fedpriv", "fedpriv/checking", "fedpriv/common"):
            packed.writestr(f"{folder}/__init__.py", "")
        packed.writestr("__main__.py", "import sys; from fedpriv.checking.player import main; main(sys.argv[1:])")


@dataclass
class RemoteSubject(Subject):
    """What `recognises` found in the target's process; inputs are places there."""

    process: _Process = field(default=None)  # type: ignore[assignment]

    def _plays(self, **message: Any) -> tuple[list[Played], dict[str, Any]]:
        reply, arrays = self.process.ask(message)
        rest, plays = iter(arrays), []
        for one in reply["plays"]:
            numbers = {name: next(rest) for name in one["numbers"]}
            plays.append(Played(numbers, {name: next(rest) for name in one["exact"]}, tuple(one["unread"])))
        return plays, reply

    def play(self, data: Any, seed: int | None, calls: int = 1) -> list[Played]:
        return self._plays(do="play", data=[data], seed=seed, n=calls)[0]

    def trials(self, data: Any, n: int, seed: int) -> Numbers:
        _, (values,) = self.process.ask({"do": "trials", "data": [data], "seed": seed, "n": n})
        return values

    def unseeded(self, data: Any, seed: int) -> tuple[Played, Sequence[str]]:
        (play,), reply = self._plays(do="unseeded", data=[data], seed=seed)
        return play, tuple(reply["states"])

    def text(self, data: Any) -> str:
        reply, _ = self.process.ask({"do": "text", "data": [data], "seed": None})
        return str(reply["text"])

    def lines(self, data: Any, seed: int, values: Mapping[str, Any]) -> dict[str, Any]:
        listed = {name: np.asarray(value).tolist() for name, value in values.items()}
        reply, _ = self.process.ask({"do": "lines", "data": [data], "seed": seed, "values": listed})
        return dict(reply["lines"])


class RemoteSeries(RemoteSubject):
    """One of which several calls can be played."""

    def series(self, data: Sequence[Any], seed: int | None) -> list[Played]:
        return self._plays(do="series", data=list(data), seed=seed)[0]


# --- loading ----------------------------------------------------------------------------------------------------------
# A target by its name: `module:attribute`, `path/file.py:attribute`, or dotted, `package.module.attribute`.

FORMS = "allowed: module:attribute, path/file.py:attribute, or dotted as in package.module.attribute"


def load_target(name: str) -> Any:
    """Imports what ``name`` says. Raises `OptionError`; what the target's module raises at its import goes through."""
    place, colon, attribute = name.rpartition(":")
    if name.endswith(".py") and not colon:
        return _only(_file(name), name)
    if colon and place.endswith(".py"):
        return _attribute(_file(place), attribute, name)
    if not name or not all(part.isidentifier() for part in name.replace(":", ".").split(".")):
        raise OptionError("target", name, FORMS)
    if colon:
        return _attribute(_module(place, name), attribute, name)
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        prefix = ".".join(parts[:count])
        if _exists(prefix):
            module = _module(prefix, name)
            return _attribute(module, ".".join(parts[count:]), name) if count < len(parts) else _only(module, name)
    raise OptionError(
        "target", name, f"there is no module {parts[0]} in {os.getcwd()} or among what is installed; {FORMS}"
    )


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError, AttributeError):
        return False


def _module(module: str, name: str) -> ModuleType:
    if not _exists(module):
        raise OptionError("target", name, f"there is no module {module}; {FORMS}")
    return importlib.import_module(module)


def _file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise OptionError("target", place, f"there is no such file; {FORMS}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OptionError("target", place, f"is no Python file; {FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [one for one in vars(found) if not one.startswith("_")] if hasattr(found, "__dict__") else []
            shown = ", ".join(known[:12]) or "nothing"
            raise OptionError(
                "target", name, f"{module.__name__} has no {attribute}{_nearest(part, known)}; it has {shown}"
            )
        found = getattr(found, part)
    return _only(found, name) if isinstance(found, ModuleType) else found


def _only(module: ModuleType, name: str) -> Any:
    """The one function or object of a module's own. Raises `OptionError` where there are several."""
    own = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (getattr(value, "__module__", None) == module.__name__ or not hasattr(value, "__name__"))
        and callable(value)
        and not inspect.ismodule(value)
    }
    if len(own) != 1:
        shown = ", ".join(own) or "no function"
        raise OptionError("target", name, f"is a module; say what of it is checked: {name}:NAME (it has {shown})")
    return next(iter(own.values()))


def _nearest(word: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, names, 2, 0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""
