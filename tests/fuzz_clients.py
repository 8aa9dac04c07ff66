"""Coverage-guided: what a server sends, through the app's adapter into every method's client half.

``python tests/fuzz_clients.py -runs=N -seed=S`` (libFuzzer's own options). An input's first bytes choose the method and
where in a round its client is; the others are the request, as wire format or as choices (client_fuzz.py).
"""

from __future__ import annotations

import logging
import os
import random
import sys
import tempfile
from pathlib import Path

import atheris
from fuzz_bytes import Choices
from tripwires import armed

with atheris.instrument_imports(include=["fedpriv", "clients"]):
    import client_fuzz

from record_fuzz import from_wire

from fedpriv.engines.grid import identify_server

METHODS: list[client_fuzz.Method] = []


def one_input(data: bytes) -> None:
    choice, form, rest = data[:1] or b"\0", data[1:2] or b"\0", data[2:]
    method = METHODS[choice[0] % len(METHODS)]
    wire = form[0] >= 0xC0
    case = from_wire(rest) if wire else client_fuzz.content(Choices(rest), method.size)
    if case is None:
        return
    with armed():
        client_fuzz.try_request(method, form[0] % 64, case)


def main() -> None:
    logging.disable(logging.CRITICAL)
    identify_server()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        os.environ["FEDPRIV_CACHE"] = cache
        METHODS.extend(client_fuzz.prepare_all())
        rng = random.Random(0)
        for number in range(4 * len(METHODS)):
            start = bytes([number % len(METHODS), rng.randrange(4)])
            (Path(folder) / str(number)).write_bytes(start + rng.randbytes(120))
        limits = ["-timeout=60", "-malloc_limit_mb=1024", "-rss_limit_mb=6000", "-max_len=2048", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *limits, *sys.argv[1:], folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
