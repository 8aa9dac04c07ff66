"""Coverage-guided: bytes from the network into everything that reads a message, on the server and on a client.

``python tests/fuzz_messages.py -runs=N -seed=S`` (libFuzzer's own options; the corpus that it grows lies in a temporary
folder). An input's first byte says how the rest becomes a message: as Flower's wire format, as damaged objects of
Flower's store, or as choices of the generator in record_fuzz.py.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from pathlib import Path

import atheris
from flwr.common.serde import recorddict_to_proto
from fuzz_bytes import Choices
from tripwires import armed

with atheris.instrument_imports(include=["fedpriv.common.messages", "fedpriv.mechanisms", "fedpriv.privacy.sum_grid"]):
    import record_fuzz  # the first to import any of them

from fedpriv.engines.grid import identify_server

#: How often each kind of message came out; Flower refused the others.
counts = {"wire": 0, "objects": 0, "choices": 0, "refused by Flower": 0}
KINDS = ("wire", "objects", "choices")


def one_input(data: bytes) -> None:
    kind, rest = KINDS[data[0] % 3] if data else "wire", data[1:]
    if kind == "wire":
        case = record_fuzz.from_wire(rest)
    elif kind == "objects":
        case = record_fuzz.from_objects(Choices(rest))
    else:
        case = record_fuzz.content(Choices(rest))
    counts[kind if case is not None else "refused by Flower"] += 1
    if case is not None:
        record_fuzz.try_case(case)


def first_inputs(folder: Path) -> None:
    """What the project itself sends, and a few random choices."""
    rng = random.Random(0)
    for number in range(60):
        wire = recorddict_to_proto(record_fuzz.valid(rng)).SerializeToString()
        (folder / f"wire{number}").write_bytes(b"\0" + wire)
        for kind in (1, 2):
            (folder / f"{KINDS[kind]}{number}").write_bytes(bytes([kind]) + rng.randbytes(200))


def main() -> None:
    logging.disable(logging.CRITICAL)
    identify_server()
    record_fuzz.prepare()
    with tempfile.TemporaryDirectory() as folder:
        first_inputs(Path(folder))
        limits = ["-timeout=20", "-malloc_limit_mb=256", "-rss_limit_mb=4096", "-max_len=4096", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *limits, *sys.argv[1:], folder], watched)
        atheris.Fuzz()


def watched(data: bytes) -> None:
    with armed():
        one_input(data)


if __name__ == "__main__":
    main()
