"""Coverage-guided: bytes from outside into what reads them, until libFuzzer has tried as many as it was told.

``python tests/fuzz.py messages -runs=N -seed=S`` (libFuzzer's own options; the corpus that it grows lies in a temporary
folder). A function of `FUZZERS` writes first inputs into a folder and returns what is tried with every input.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris
from tripwires import armed

Tried = Callable[[bytes], None]


class Choices(random.Random):
    """Choices that bytes make: every draw takes the next bytes; behind the last byte everything is zero."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.data, self.place = data, 0

    def __new__(cls, data: bytes) -> Choices:
        return super().__new__(cls, 0)

    def getrandbits(self, k: int) -> int:
        length = -(-k // 8)
        taken = self.data[self.place : self.place + length].ljust(length, b"\0")
        self.place += length
        return int.from_bytes(taken, "big") >> (8 * length - k)

    def random(self) -> float:
        return self.getrandbits(16) / 2**16


def messages(folder: Path) -> Tried:
    """Bytes from the network into everything that reads a message, on the server and on a client. An input's first byte
    says how the rest becomes a message: as Flower's wire format, as damaged objects of Flower's store, or as choices.
    """
    with atheris.instrument_imports(
        include=["fedpriv.common.messages", "fedpriv.mechanisms", "fedpriv.privacy.sum_grid"]
    ):
        import record_fuzz  # the first to import any of them
    from flwr.common.serde import recorddict_to_proto

    from fedpriv.engines.grid import identify_server

    identify_server()
    record_fuzz.prepare()
    rng = random.Random(0)
    for number in range(60):
        wire = recorddict_to_proto(record_fuzz.valid(rng)).SerializeToString()
        (folder / f"wire{number}").write_bytes(b"\0" + wire)
        for kind in (1, 2):
            (folder / f"{kind} {number}").write_bytes(bytes([kind]) + rng.randbytes(200))
    kinds = (
        record_fuzz.from_wire,
        lambda rest: record_fuzz.from_objects(Choices(rest)),
        lambda rest: record_fuzz.content(Choices(rest)),
    )

    def tried(data: bytes) -> None:
        with armed():
            case = kinds[data[0] % 3 if data else 0](data[1:])
            if case is not None:  # Flower itself refused it otherwise
                record_fuzz.try_case(case)

    return tried


def clients(folder: Path) -> Tried:
    """What a server sends, through the app's adapter into every method's client half. An input's first bytes choose the
    method and where in a round its client is; the others are the request, as wire format or as choices.
    """
    with atheris.instrument_imports(include=["fedpriv", "clients"]):
        import client_fuzz
    from record_fuzz import from_wire

    from fedpriv.engines.grid import identify_server

    identify_server()
    methods, rng = client_fuzz.prepare_all(), random.Random(0)
    for number in range(4 * len(methods)):
        start = bytes([number % len(methods), rng.randrange(4)])
        (folder / str(number)).write_bytes(start + rng.randbytes(120))

    def tried(data: bytes) -> None:
        choice, form, rest = data[:1] or b"\0", data[1:2] or b"\0", data[2:]
        method = methods[choice[0] % len(methods)]
        case = from_wire(rest) if form[0] >= 0xC0 else client_fuzz.content(Choices(rest), method.size)
        if case is not None:
            with armed():
                client_fuzz.try_request(method, form[0] % 64, case)

    return tried


def options(folder: Path) -> Tried:
    """Texts from outside into the composition of a run inside the app. An input's first byte says whether the rest is
    the text itself or steers the generator.
    """
    with atheris.instrument_imports(
        include=["fedpriv.config.compose", "fedpriv.config.schema", "fedpriv.config.methods", "shlex"]
    ):
        import option_fuzz

    option_fuzz.set_traps()
    rng = random.Random(0)
    for number in range(40):
        text = option_fuzz.text(rng).encode("utf-8", "surrogatepass")
        (folder / f"text{number}").write_bytes(b"\0" + text[:500])
        (folder / f"choices{number}").write_bytes(b"\xff" + rng.randbytes(60))
    for number, line in enumerate(option_fuzz.FORBIDDEN):
        (folder / f"line{number}").write_bytes(b"\0" + line.encode())

    def tried(data: bytes) -> None:
        spelled = data[:1] < b"\x80"
        option_fuzz.try_text(
            data[1:].decode("utf-8", "surrogateescape") if spelled else option_fuzz.text(Choices(data[1:]))
        )

    return tried


def folders(folder: Path) -> Tried:
    """Bytes into the files of a run's folder, and what a report and a comparison make of it. An input's first byte
    names the file.
    """
    import pandas  # noqa: F401 - a comparison imports it when it is made

    with atheris.instrument_imports(include=["fedpriv.common.run_files", "fedpriv.config.yaml_text", "fedpriv.report"]):
        from fedpriv.common.errors import FedprivError
        from fedpriv.common.run_files import fitting
        from fedpriv.report.compare import compare, comparison_tables
        from fedpriv.report.reading import count_releases, read_run
        from fedpriv.report.tables import final_lines
    import report_runs
    from hostile_folders import CONTENTS

    run_folder = report_runs.full_run(folder.parent / "run", rounds=3, clients=3)
    files = [run_folder / name for name in ("config.yaml", "summary.json", "metrics.jsonl", "ledger.jsonl")]

    def tried(data: bytes) -> None:
        file = files[data[0] % len(files) if data else 0]
        before = file.read_bytes()
        file.write_bytes(data[1:])
        try:
            with armed(), fitting(run_folder):
                run = read_run(run_folder)
                count_releases(run_folder / "ledger.jsonl", {})
                comparison_tables(compare([run]))
                final_lines(dict(run.summary or {}))
        except FedprivError as error:
            str(error).encode()
        finally:
            file.write_bytes(before)

    tried(b"\0")  # what is imported late is
    for number, file in enumerate(files):
        (folder / file.name).write_bytes(bytes([number]) + file.read_bytes())
        for word, content in CONTENTS.items():
            (folder / f"{file.name} {word}").write_bytes(bytes([number]) + content[:60_000])
    return tried


#: Name -> what makes it, and libFuzzer's limits: seconds, MiB of one allocation and of all, bytes of an input.
FUZZERS = {
    "messages": (messages, 20, 256, 4096, 4096),
    "clients": (clients, 60, 1024, 6000, 2048),
    "options": (options, 30, 256, 4096, 9000),
    "folders": (folders, 30, 512, 4096, 60_000),
}


def main(name: str, *arguments: str) -> None:
    make, timeout, allocation, memory, longest = FUZZERS[name]
    if name in ("messages", "clients"):
        logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as cache:
        os.environ["FEDPRIV_CACHE"] = cache
        inputs = Path(place) / "inputs"
        inputs.mkdir()
        tried = make(inputs)
        limits = [f"-timeout={timeout}", f"-malloc_limit_mb={allocation}", f"-rss_limit_mb={memory}"]
        limits += [f"-max_len={longest}", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *limits, *arguments, str(inputs)], tried)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
