"""Run folders of somebody who means harm, made by rules from two that a run left: every file of them x every kind of
harm, and what a configuration may name; and a process that gives one to a command and tells what came of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from forked import Forks

#: The files of a folder that a command may read.
FILES = (
    *("config.yaml", "summary.json", "metrics.jsonl", "ledger.jsonl", "classes.json", "model.safetensors"),
    *("SHA256SUMS", ".start.json", "run-name", "attempt", "stages.json", "sweep.json", "private/summary.json"),
    *("private/metrics.jsonl", "private/attacks/inversion.json", "labels.svg", "audit.png"),
    *("checkpoints/round-000001/checkpoint.json", "checkpoints/round-000001/clients.safetensors"),
)
DEEP = 100_000


def _tensors(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


#: What a file may hold instead. Text of one line, so that it is a line of a ledger too.
CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "zeros": bytes(1000),
    "no text": b"\xff\xfe\xfa" * 300,
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep mappings": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep rounds": b'{"round":1,"a":' + b"[" * 900 + b"]" * 900 + b"}",
    "a list": b"[1, 2, 3]",
    "a number": b"7",
    "null": b"null",
    "not a number": b'{"round": NaN, "count": NaN, "accuracy": NaN}',
    "infinity": b'{"round": 1, "count": Infinity, "accuracy": Infinity, "mechanism": "gaussian", "client": Infinity}',
    "beyond floats": b'{"round": 1, "accuracy": 1e999, "seconds": 1e308}',
    "400 digits": b'{"round": ' + b"9" * 400 + b', "accuracy": ' + b"9" * 400 + b"}",
    "9999 digits": b'{"round": ' + b"9" * 9999 + b"}",
    "half of a pair": b'{"round": 1, "strategy": "\\ud800", "accuracy": 0.5}',
    "controls": b'{"round": 1, "strategy": "\\u001b]0;owned\\u0007\\u202e", "accuracy": 0.5}',
    "many values": b"[" + b"[]," * 6_000_000 + b"[]]",
    "aliases": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (b, b, b", ".join([b"*%c" % a] * 8)) for a, b in pairwise(b"abcdefghij")),
    "a tag": b"!!python/object/apply:os.system ['touch PWNED']\n",
    "a merge": b"<<: {round: 1}\nround: 2\n",
    "a pickle": b"cos\nsystem\n(S'touch PWNED'\ntR.",
    "a false header": _tensors(
        b'{"theta":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}', bytes(4)
    ),
    "a long header": struct.pack("<Q", 2**40) + b"{}",
    "a script": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>",
}


def _fifo(path: Path, case: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, case: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(here)


#: What may stand in the place of a file.
KINDS: dict[str, Callable[[Path, Path], None]] = {
    "a pipe": _fifo,
    "a socket": _socket,
    "a folder": lambda path, case: path.mkdir(),
    "a link to zeros": lambda path, case: path.symlink_to("/dev/zero"),
    "a link to the victim": lambda path, case: path.symlink_to(case / "outside" / "victim"),
    "a link to itself": lambda path, case: path.symlink_to(path.name),
    "a hole of 80 GB": lambda path, case: os.truncate(path.open("wb").name, 80 * 10**9),
}

#: What a configuration may say: option -> value.
PWNED = "subprocess.check_output"
NAMED: dict[str, dict[str, Any]] = {
    "a model's code": {"model.name": "custom", "model.path": PWNED},
    "a model of the folder": {"model.name": "custom", "model.path": "theirs.evil.net"},
    "data's code": {"dataset.name": "custom", "dataset.path": "os.system"},
    "a server's code": {"strategy.server._target_": "os.system"},
    "a client's class": {"strategy.client._target_": "theirs.evil.Client"},
    "a method of the folder": {"strategy.client._target_": "clients.evil.Client"},
    "a network's code": {
        "features": {"name": "backbone", "architecture": "theirs.evil.net", "weights": "w.safetensors", "layer": None}
    },
    "a division's code": {
        "partition": {"name": "partitioner", "test_fraction": 0.0, "partitioner": PWNED, "arguments": {}}
    },
    "a wide layer": {"model.name": "mlp", "model.hidden": 2_000_000_000},
    "a log": {"operations.log_file": "outside/log"},
    "a cache": {"dataset.cache": "outside/cache"},
    "a tracker": {"tracking.kinds": ["tensorboard"], "tracking.folder": "outside/tracking"},
    "an address": {"engine.name": "ray", "engine.address": "ray://127.0.0.1:9"},
    "a port": {"operations.metrics_port": 0, "operations.metrics_address": "0.0.0.0"},
    "a run's place": {"run_dir": "outside/run"},
    "data elsewhere": {"dataset.name": "image_folder", "dataset.root": "outside"},
    "many clients": {"num_clients": 2**31 - 1, "clients_per_round": 2**31 - 1},
    "many rounds": {"num_rounds": 2**31 - 1},
    "an interpolation": {"dataset.root": "${oc.env:HOME}", "seed": "${oc.env:HOME}"},
    "an unknown section": {"evil": {"_target_": "os.system"}},
}


def _put(raw: dict[str, Any], option: str, value: Any) -> None:
    *sections, name = option.split(".")
    for section in sections:
        raw = raw[section]
    raw[name] = value


def _named(options: dict[str, Any]) -> Callable[[Path, Path], None]:
    def change(folder: Path, case: Path) -> None:
        raw = yaml.safe_load((folder / "config.yaml").read_text())
        for option, value in options.items():
            _put(raw, option, value)
        (folder / "config.yaml").write_text(yaml.safe_dump(raw))

    return change


def _facts(**changes: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, case: Path) -> None:
        if not (folder / "classes.json").exists():  # of a run that has not finished
            return
        facts = json.loads((folder / "classes.json").read_text())
        (folder / "classes.json").write_text(json.dumps(facts | changes))
        (folder / "SHA256SUMS").unlink(missing_ok=True)  # the sender's own

    return change


def _custom(folder: Path, case: Path) -> None:
    """The two files of which one names a function and the other its arguments."""
    _named(NAMED["a model's code"])(folder, case)
    _facts(shape=["sh", "-c", f"touch {case}/PWNED"])(folder, case)


def _sweep(folder: Path, case: Path) -> None:
    options = ["num_rounds=1", f"hydra.launcher._target_={PWNED}", "model=custom", "model.path=os.system"]
    (folder / "sweep.json").write_text(json.dumps({"jobs": 1, "options": options, "config_dir": str(folder)}))


def _many(folder: Path, case: Path) -> None:
    for number in range(310_000):
        os.mknod(folder / f"f{number}")


def _inside(name: str) -> Callable[[Path, Path], None]:
    def change(folder: Path, case: Path) -> None:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(case / "outside", target_is_directory=True)

    return change


def _field(file: str, path: tuple[str, ...], value: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, case: Path) -> None:
        if not (folder / file).exists():
            return
        content = json.loads((folder / file).read_text())
        part = content
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value
        (folder / file).write_text(json.dumps(content))

    return change


SPECIAL: dict[str, Callable[[Path, Path], None]] = {
    **{f"config.yaml names {name}": _named(options) for name, options in NAMED.items()},
    "code and its arguments": _custom,
    "a sweep's options": _sweep,
    "310,000 files": _many,
    "a name of 255 bytes": lambda folder, case: os.mknod(folder / ("n" * 251 + ".png")),
    "a link of the folder to itself": _inside("loop"),
    **{f"{name} is a link": _inside(name) for name in ("private", "checkpoints", "attacks", "snapshots", ".lock")},
    **{
        f"shape is {value}": _facts(shape=value)
        for value in ([2**31, 2**31, 9], [1, 8], [-1, 8, 8], [1, 8, 8.5], "x", {})
    },
    "no class": _facts(classes=[]),
    "classes that are numbers": _facts(classes=[1, 2]),
    "a mean without end": _facts(mean=["inf"]),
    "a schema of nonsense": _facts(schema={"columns": {"a": 3}}),
    **{
        f"summary's {name} is a list": _field("summary.json", (name,), [1])
        for name in ("privacy", "timing", "strategy", "traffic")
    },
    **{
        f"summary's {name} is a text": _field("summary.json", ("privacy", name), "<b>")
        for name in ("verified_epsilon", "delta", "others")
    },
}


def cases() -> Iterator[tuple[str, Callable[[Path, Path], None]]]:
    """Every hostile folder: its name, and what makes it of a sound one (of a folder, with the case's own folder)."""
    for name, change in SPECIAL.items():
        yield name, change
    for file in FILES:
        for name, content in CONTENTS.items():
            yield f"{file} holds {name}", _written(file, content)
        for name, make in KINDS.items():
            yield f"{file} is {name}", _replaced(file, make)


def pairs() -> Iterator[tuple[str, Callable[[Path, Path], None], str]]:
    """Every hostile folder with every command. To repeat very many rounds takes the time that it takes."""
    for name, change in cases():
        for command in ("load", *COMMANDS):
            if not ("many rounds" in name and command in ("rerun", "attack")):
                yield name, change, command


def _written(file: str, content: bytes) -> Callable[[Path, Path], None]:
    def change(folder: Path, case: Path) -> None:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)

    return change


def _replaced(file: str, make: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    def change(folder: Path, case: Path) -> None:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).unlink(missing_ok=True)
        make(folder / file, case)

    return change


#: Command -> its arguments. The last one is given a run that has not finished.
COMMANDS: dict[str, list[str]] = {
    "report": ["report", "theirs"],
    "compare": ["compare", "theirs", "sound", "--out", "compared"],
    "predict": ["predict", "run=theirs", "picture.png"],
    "certificate": ["certificate", "theirs"],
    "rerun": ["-q", "rerun=theirs", "hydra.run.dir=again"],
    "audit": ["audit", "run=theirs", "trials=2000"],
    "attack": ["attack", "run=theirs", "attack=ml_leaks", "members=20", "control_models=2", "control_epochs=10"],
    "extend": ["-q", "extend=theirs", "num_rounds=2"],
    "resume": ["-q", "resume=theirs"],
}
LOAD = """
import fedpriv
for name in ("summary", "metrics", "ledger", "model", "_repr_html_"):
    try:
        found = getattr(fedpriv.load("theirs"), name)
        found() if name == "_repr_html_" else repr(found)
    except (fedpriv.FedprivError, OSError) as error:
        print(name, error, file=sys.stderr)
"""

#: Of the processor, and of memory, that a command may take beyond what it has imported.
SECONDS, MOST_MIB = 10, 1024

#: Runs in a process of its own, forked from one that has imported the product.
PLAYER = """
import os, resource, signal, sys
seconds, load, *arguments = sys.argv[1:]
os.dup2(os.open("err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
os.environ["FEDPRIV_HOME"] = os.environ["XDG_CONFIG_HOME"] = os.path.abspath("user")
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_PROF, float(seconds))  # of the processor: another's work is no hang
signal.signal(signal.SIGPROF, signal.SIG_DFL)
signal.alarm(300)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def told():
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print("GREW", grown // 1024, flush=True)
import atexit; atexit.register(told)
try:
    if arguments == ["load"]:
        exec(load)
        code = 0
    else:
        from fedpriv.__main__ import main
        code = main(arguments)
finally:
    told()
sys.exit(code)
"""


#: What code of the sender's would do.
EVIL = """
import os
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "PWNED"), "w").close()
def net(*_): raise SystemExit
class Client: pass
"""


def case_of(change: Callable[[Path, Path], None], sound: Path, place: Path, unfinished: bool) -> None:
    """Lays out a case: `theirs`, the hostile folder; `sound`, one without harm; `outside`, where nothing may change."""
    for name in ("sound", "theirs"):
        shutil.copytree(sound, place / name)
    theirs = place / "theirs"
    if unfinished:
        for name in ("summary.json", "private/summary.json", "model.safetensors", "classes.json"):
            (theirs / name).unlink()
    for folder in (theirs, place / "clients", place / "outside"):
        folder.mkdir(exist_ok=True)
    for file in (theirs / "evil.py", place / "clients" / "evil.py"):
        file.write_text(EVIL)
    (place / "outside" / "victim").write_text("a secret\n")
    shutil.copy(sound / "accuracy.png", place / "picture.png")
    change(theirs, place)


def play(
    command: str,
    change: Callable[[Path, Path], None],
    sound: Path,
    place: Path,
    players: Forks,
    sound_too: bool = False,
) -> list[str]:
    """What is wrong with what a command does of a hostile folder; nothing where it answers, or refuses in a line.
    sound_too: the folder is none, so it must answer.
    """
    case_of(change, sound, place, unfinished=command == "resume")
    before = _seen(place / "outside")
    arguments = ["load"] if command == "load" else COMMANDS[command]
    code, said = players.run(PLAYER, str(SECONDS), LOAD, *arguments, folder=place)
    err = (place / "err").read_text(errors="replace")
    wrong = []
    if "Traceback" in err:
        named = [line for line in err.splitlines() if re.match(r"[A-Za-z_.]*(Error|Exception|Interrupt)\b", line)]
        wrong.append(f"traceback: {(named or err.splitlines())[-1][:160]}")
    weak = command == "attack" and "is not shown: positive control" in err  # so small an attack finds nothing
    if sound_too and ((code and not weak) or (command == "load" and err)):
        wrong.append(f"exit code {code}: {err[-500:]}")
    if code < 0:
        wrong.append("hang" if code in (-14, -27) else f"killed by signal {-code}")
    grown = [int(line.split()[1]) for line in said.splitlines() if line.startswith("GREW")]
    if max(grown, default=0) > MOST_MIB:
        wrong.append(f"{max(grown)} MiB")
    if list(place.rglob("PWNED")):
        wrong.append("executed")
    if (after := _seen(place / "outside")) != before:
        wrong.append(f"wrote outside: {sorted(dict(set(after.items()) ^ set(before.items())))}")
    shutil.rmtree(place)
    return wrong


def _seen(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Name -> mode, size and time of change of all that is in a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):
            about = path.lstat()
            found[str(path.relative_to(folder))] = about.st_mode, about.st_size, about.st_mtime_ns
    return found
