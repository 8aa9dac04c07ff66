"""What a guarded message costs beside the app alone: seconds of a whole train message, medians with 95 % intervals.

    chrt -f 10 python -m benchmarks.bench_guard_message
    chrt -f 10 python -m benchmarks.bench_guard_message pairs  # `app` and `guarded` alone, in turn first: their ratio
    python -m benchmarks.bench_guard_message chain  # processor seconds of signed heads and chained lines, in pairs

One machine with 200 rows, its own noise, unit client (no shards). Every message is answered by a fork of a process that
has the libraries, as `fedpriv.deployment.executor` does it. `app`: such a fork that loads the app and calls it, without
a guard. `guarded`: policy, ledger, sandbox, clipping, noise and booking, with a sandbox that stands between messages.
`first`: with a sandbox of its own, as the first message has. `Flower's own`: the app alone in a new interpreter, which
flower-supernode starts for each message. The app works as long as its epochs say: few, and many.

`chain`: two machines answer in turn, one whose identity signs its ledger's heads, and one without one. Processor
seconds of the process that answers, without those of the sandbox: the share is of less than the whole message. The hash
of a line is timed by itself.
"""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict

from benchmarks.statistics import machine, median_interval
from fedpriv.engines.grid import stamp
from fedpriv.guard.guarded_message import Boxes
from fedpriv.guard.processes import Lender
from fedpriv.guard.sandbox import LATER, Sandbox

TESTS = Path(__file__).resolve().parent.parent / "tests" / "guard"
SHAPES = {
    "quickstart-message": ((4,), (1,)),
    "quickstart-sklearn": ((1, 4), (1,)),
    "quickstart-torch": ((16, 4), (16,), (2, 16), (2,)),
}
MANY = {"quickstart-message": 20_000, "quickstart-sklearn": 1, "quickstart-torch": 300}
REPEATS, SLOW, ROWS, PAIRS = 15, 5, 200, 40


def forked(answer: Callable[[], Any]) -> float:
    """Wall seconds of one answer in a fork of this process."""
    since = time.perf_counter()
    if (child := os.fork()) == 0:
        status = 1
        try:
            status = 0 if answer() is not None else 2
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    return time.perf_counter() - since


def processor_seconds(answer: Callable[[], Any]) -> float:
    """Of one answer in a fork of this process."""
    if (child := os.fork()) == 0:
        status = 1
        try:
            status = 0 if answer() is not None else 2
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status, used = os.wait4(child, 0)
    assert status == 0, status
    return used.ru_utime + used.ru_stime


def chained() -> None:
    """Pairs of messages, after each other and in turn first."""
    from fedpriv.common.chain import followed
    from fedpriv.deployment.data_ledger import DataLedger, Signer
    from fedpriv.deployment.policy import read_policy

    app, lender = TESTS / "apps" / "quickstart-message", Lender()
    standing = partial(Sandbox, lender=lender)
    with tempfile.TemporaryDirectory() as name, redirect_stdout(io.StringIO()):
        signed, plain = (Case(app, 1, Path(name) / which) for which in ("signed", "plain"))
        identity = signed.machines.identities[0]
        counter = Path(read_policy(signed.machines.policy(0)).counter)
        with DataLedger(signed.machines.data(0), counter, Signer(identity.private)).held() as ledger:
            ledger.sign_on()
        plain.machines.identities.clear()
        for case in (signed, plain):
            forked(partial(case.guarded, standing, -1))

        pairs = []
        for number in range(PAIRS):
            order = [(0, partial(signed.guarded, standing, number)), (1, partial(plain.guarded, standing, number))]
            both = [0.0, 0.0]
            for place, answer in order if number % 2 else order[::-1]:
                both[place] = processor_seconds(answer)
            pairs.append(both)
    more = [with_it - without for with_it, without in pairs]
    whole = float(np.median([without for _, without in pairs]))
    middle, low, high = median_interval(more)
    print(
        f"{PAIRS} pairs: {1e3 * whole:.2f} ms of processor time without, {1e3 * middle:.2f} ms more with: "
        f"{middle / whole:.1%} [{low / whole:.1%}, {high / whole:.1%}]"
    )
    since = time.process_time()
    link = ""
    for _ in range(10_000):
        link = followed(link, bytes(1000))
    print(f"a line of 1,000 bytes into the chain: {(time.process_time() - since) * 100:.1f} microseconds")
    lender.asks.close()


def shown(seconds: list[float]) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*median_interval(seconds))


@dataclass(frozen=True)
class Case:
    """An app with so many local epochs, and a guarded machine with data for it."""

    app: Path
    epochs: int
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()

    @cached_property
    def machines(self) -> Any:
        from asking import write_rows  # type: ignore[import-not-found]
        from guarded import GuardedMachines  # type: ignore[import-not-found]

        api = "message" if self.named else "numpy"
        found = GuardedMachines(self.folder, unit="client", shards=1, api=api)
        write_rows(found.data(0) / "table.csv", ROWS)
        return found

    @property
    def named(self) -> bool:
        return "message" in self.app.name

    @property
    def kind(self) -> str:
        return "f4" if "torch" in self.app.name else "f8"

    def arrays(self) -> Any:
        values = [np.full(shape, 0.1, self.kind) for shape in SHAPES[self.app.name]]
        return dict(zip(("weights", "bias"), values, strict=True)) if self.named else values

    def message(self) -> Message:
        from asking import message_of

        asked: Message = message_of(self.arrays())
        return asked

    def context(self, config: dict[str, Any]) -> Context:
        run = {"local-epochs": self.epochs, "learning-rate": 0.1, "num-server-rounds": 3}
        return Context(1, 2, config, RecordDict(), run)  # type: ignore[arg-type]

    def alone(self) -> Message:
        from asking import bare

        found: Message = bare(
            self.app, self.message(), self.context({"data-path": str(self.machines.data(0) / "table.csv")})
        )
        return found

    def guarded(self, boxes: Boxes, number: int) -> Message | None:
        message = self.message()
        stamp(message, f"m{number}")
        guard = replace(self.machines.guard(0), boxes=boxes, app=self.app)
        reply = guard(message, self.context({}))
        return None if reply.has_error() else reply

    def new_interpreter(self) -> float:
        data = self.machines.data(0) / "table.csv"
        arrays, run = self.arrays(), dict(self.context({}).run_config)
        plain = {name: array.tolist() for name, array in arrays.items()} if self.named else [a.tolist() for a in arrays]
        code = f"""
import sys; sys.path.insert(0, {str(TESTS)!r})
import flwr.supernode.runtime.run_clientapp
import numpy as np
from pathlib import Path
from asking import bare, context_of, message_of
plain, kind = {plain!r}, {self.kind!r}
arrays = {{k: np.array(v, kind) for k, v in plain.items()}} if {self.named} else [np.array(v, kind) for v in plain]
bare(Path({str(self.app)!r}), message_of(arrays), context_of(Path({str(data)!r}), {run!r}))
"""
        since = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - since


def paired() -> None:
    """Pairs of a guarded message and of the app alone, after each other and in turn first."""
    prepare()
    print(f"load {machine()['load']:.1f}, {PAIRS // 2} pairs")
    with tempfile.TemporaryDirectory() as name:
        lender = Lender()
        standing = partial(Sandbox, lender=lender)
        for app, epochs in ((each, number) for each in SHAPES for number in sorted({1, MANY[each]})):
            case = Case(TESTS / "apps" / app, epochs, Path(name) / f"{app}-{epochs}")
            with redirect_stdout(io.StringIO()):
                assert case.machines
            forked(partial(case.guarded, standing, -1))
            forked(case.alone)
            ratios = []
            for number in range(PAIRS // 2):
                order: list[tuple[str, Callable[[], Any]]] = [
                    ("app", case.alone),
                    ("guarded", partial(case.guarded, standing, number)),
                ]
                took = {which: forked(answer) for which, answer in (order if number % 2 else order[::-1])}
                ratios.append(took["guarded"] / took["app"])
            middle, low, high = median_interval(ratios)
            print(f"{f'{app} {epochs} epochs':36s}guarded / app {middle:.2f} [{low:.2f}, {high:.2f}]", flush=True)
        lender.asks.close()


def prepare() -> None:
    """Libraries are there, so that `app` is the app's own work."""
    sys.path.insert(0, str(TESTS))
    for library in ("torch", "sklearn", *(module for modules in LATER.values() for module in modules)):
        importlib.import_module(library)


def main() -> None:
    prepare()
    facts = machine()
    print(
        f"{facts['date']}, {facts['cores']} cores, load {facts['load']:.1f}, "
        f"{REPEATS} messages, of the last two columns {SLOW}"
    )
    heads = ("app", "guarded", "first", "Flower's own")
    print(f"{'seconds':36s}" + "".join(f"{head:>24s}" for head in heads))
    with tempfile.TemporaryDirectory() as name:
        lender = Lender()
        standing = partial(Sandbox, lender=lender)
        for app in SHAPES:
            for epochs in sorted({1, MANY[app]}):
                case = Case(TESTS / "apps" / app, epochs, Path(name) / f"{app}-{epochs}")
                with redirect_stdout(io.StringIO()):
                    assert case.machines
                found: dict[str, list[float]] = {head: [] for head in heads}
                forked(partial(case.guarded, standing, -1))
                for number in range(REPEATS):
                    found["app"].append(forked(case.alone))
                    found["guarded"].append(forked(partial(case.guarded, standing, number)))
                    if number < SLOW:
                        found["first"].append(forked(partial(case.guarded, Sandbox, 100 + number)))
                        found["Flower's own"].append(case.new_interpreter())
                ratio = float(np.median(found["guarded"]) / np.median(found["app"]))
                cells = "".join(f"{shown(times):>24s}" for times in found.values())
                print(f"{f'{app} {epochs} epochs':36s}" + cells + f"  guarded / app {ratio:.2f}", flush=True)
        lender.asks.close()


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    {"chain": chained, "pairs": paired}.get(" ".join(sys.argv[1:]), main)()
