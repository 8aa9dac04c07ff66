"""What the guard's sandbox adds to an answer of a Flower app, in milliseconds on one core: medians with 95 % intervals.

    python benchmarks/bench_sandbox.py

`start`: from `ask` to the app's first line. `answer`: the whole of `ask`. `bare`: the app called in this process, which
has imported it. `new interpreter`: what a shard costs without a warm process, the import of the app's libraries.
Target: a start of at most 50 ms.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.clientapp.utils import get_load_client_app_fn

from benchmarks.statistics import machine, median_interval
from fedpriv.guard.record import request_bytes
from fedpriv.guard.sandbox import Limits, Sandbox

TESTS = Path(__file__).resolve().parent.parent / "tests" / "guard"
TARGET, REPEATS, ROWS = 50.0, 40, 200
RUN = {"local-epochs": 1, "learning-rate": 0.1, "num-server-rounds": 3}
STARTS = {
    "quickstart-message": {"weights": np.zeros(4), "bias": np.zeros(1)},
    "quickstart-sklearn": [np.zeros((1, 4)), np.zeros(1)],
    "quickstart-torch": [np.ones(shape, "f4") / 9 for shape in ((16, 4), (16,), (2, 16), (2,))],
}


def shown(seconds: list[float]) -> str:
    return "{:.0f} [{:.0f}, {:.0f}]".format(*(1e3 * value for value in median_interval(seconds)))


def main() -> None:
    sys.path.insert(0, str(TESTS))
    from asking import context_of, message_of, write_rows  # type: ignore[import-not-found]

    facts = machine()
    print(f"{facts['date']}, {facts['cores']} cores, load {facts['load']:.1f}, {ROWS} rows, {REPEATS} answers")
    heads = ("start", "answer", "bare", "not confined", "new interpreter")
    print(f"{'ms':22s}" + "".join(f"{head:>24s}" for head in heads))
    with tempfile.TemporaryDirectory() as folder:
        data = write_rows(Path(folder) / "data.csv", ROWS)
        for name, arrays in STARTS.items():
            app, limits = TESTS / "apps" / name, Limits(1 << 30, 60, 100, 1 << 20)
            message, context = message_of(arrays), context_of(data, RUN)
            request = request_bytes(message, context)
            loaded = get_load_client_app_fn("", str(app), True)(f"example/{name}", "1.0.0", "")
            loaded(message, context)
            bare = []
            for _ in range(REPEATS):
                since = time.perf_counter()
                loaded(message, context)
                bare.append(time.perf_counter() - since)
            since = time.perf_counter()
            with Sandbox(app, data, limits) as one:
                imported = time.perf_counter() - since
                one.ask(request, data)
                answers = [one.ask(request, data) for _ in range(REPEATS)]
            with Sandbox(app, data, limits, confined=False) as other:
                other.ask(request, data)
                trusted = [other.ask(request, data).seconds for _ in range(REPEATS)]
            assert all(answer.arrays for answer in answers), answers[0].fault
            starts = [answer.start_s for answer in answers]
            cells = [
                *map(shown, (starts, [answer.seconds for answer in answers], bare, trusted)),
                f"{1e3 * imported:.0f}",
            ]
            missed = " MISSED" * (1e3 * float(np.median(starts)) > TARGET)
            print(f"{name:22s}" + "".join(f"{cell:>24s}" for cell in cells) + missed)


if __name__ == "__main__":
    main()
