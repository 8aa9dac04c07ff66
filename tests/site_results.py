"""Made-up folders of results with everything that a study may leave behind, for the tests of the site."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report_runs import LEAKS, privacy

from fedpriv.studies.results import (
    Board,
    Cell,
    Claim,
    Entry,
    Estimate,
    Figure,
    Leaderboard,
    Left,
    Machine,
    Ordering,
    PaperResults,
    Provenance,
    RunRecord,
    Table,
    TableRow,
    write_results,
)
from fedpriv.studies.site.wording import PAPERS

HOSTILE = """<script>alert("x")</script> & <img src=x onerror=alert(1)> '{{ 7 * 7 }}'"""
LONG = "a method whose name goes on and on " + "without_any_place_to_break_it_" * 5

#: (strategy, label, paper)
METHODS = (
    ("fedcad", "Fed-CAD", "fedcad"),
    ("fedldp", "Fed-LDP, fresh noise", "fedcad"),
    ("dpfedavg", "DP-FedAvg", "fedags"),
    ("adpfl", "ADP-FL", "adpfl"),
    ("dpfedavg", "DP-FedAvg, larger steps", ""),
)


def estimate(mean: float | None, width: float | None = None, n: int = 3) -> Estimate:
    return Estimate(n=n, mean=mean, std=None if width is None else width / 2.5, half_width=width)


def provenance(**changes: Any) -> Provenance:
    machine = Machine(processor="A Processor 9000", cores=2, memory_gib=7.6, system="Linux 6.1", python="3.11.7")
    given = {
        "commits": ("0123456789abcdef0123456789abcdef01234567", "fedcba9876543210fedcba9876543210fedcba98+"),
        "machine": machine,
        "versions": {"torch": "2.15.0", "flwr": "1.41.0"},
        "date": "2026-11-20",
        "core_seconds": 7384.0,
        "client_epochs": 120_000.0,
        "client_epoch_budget": 150_000.0,
    }
    return Provenance(**{**given, **changes})


def picture(width: int = 640, height: int = 400) -> bytes:
    """A PNG of one colour with a darker band."""
    rows = b"".join(
        b"\0" + (b"\xe6\xee\xf4" if row * 3 // height != 1 else b"\x7f\xae\xcf") * width for row in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def train_run(name: str, seed: int = 0, accuracy: float = 0.87, **changes: Any) -> RunRecord:
    curve = tuple(
        (
            i,
            None if i % 2 else 0.1 + (accuracy - 0.1) * (1 - math.exp(-i / 6)),
            None if i % 2 else 2.3 * math.exp(-i / 9),
        )
        for i in range(1, 31)
    )
    given = {
        "name": name,
        "kind": "train",
        "options": ("strategy=fedcad", "dataset=mnist", f"seed={seed}"),
        "seed": seed,
        "command": f"python -m fedpriv strategy=fedcad dataset=mnist seed={seed}",
        "summary": {
            "strategy": "fedcad", "dataset": "mnist", "model": "cnn", "seed": seed, "rounds": 30, "num_clients": 100,
            "clients_per_round": 10, "num_parameters": 80202,
            "accuracy": {"final": accuracy, "personalised": None},
            "privacy": privacy(others=[privacy(observer="secure-sum", verified_epsilon=4.2)]),
            "timing": {"total_s": 31.0, "rounds_s": 28.0}, "traffic": {"bytes_up": 96242400, "bytes_down": 96242400},
            "peak_memory_mib": 900,
        },
        "figures": {"drift_norm": 0.25, "nothing": None, "endless": math.inf},
        "curve": curve,
        "norms": tuple((i, 1.4 + i / 100) for i in range(1, 31)),
        "seconds": 31.0,
        "commit": "0123456789abcdef0123456789abcdef01234567",
    }  # fmt: skip
    return RunRecord(**{**given, **changes})


def odd_runs() -> list[RunRecord]:
    """Records that lack nearly everything, hold what nobody expects, or have names that are no file names."""
    bare = {"options": (), "seed": 0, "command": "python -m fedpriv plan=true", "summary": {}}
    attacks = {"lira": {"attack": "lira", "verdict": f"agrees with the guarantee {HOSTILE}"}, "odd": None}
    leaks = {"privacy": LEAKS | {"audited_epsilon": "inf"}, "attacks": attacks}
    strange = {
        "privacy": [],
        "accuracy": {"final": "high", "personalised": 0.91},
        "note": "to be read",
        "timing": {"total_s": "inf", "x": None},
        "traffic": 3,
        "rounds": {"a": [1]},
    }
    return [
        RunRecord(name="plan-bare", kind="plan", **bare),
        RunRecord(
            name="audit-published", kind="audit", **{**bare, "summary": leaks}, figures={"audited_epsilon": math.inf}
        ),
        RunRecord(name="dme-strange", kind="dme", **{**bare, "summary": strange}, seconds=7300.0),
        RunRecord(name="index", kind="attack", **{**bare, "summary": {"privacy": {}}}),
        RunRecord(name=f"../up {HOSTILE}?a#b%41", kind="plan", **{**bare, "command": HOSTILE, "options": (HOSTILE,)}),
        RunRecord(name="one-point" + "x" * 200, kind="train", **bare, curve=((7, 0.5, None),)),
        RunRecord(name="not-evaluated", kind="train", **bare, curve=((1, None, None), (2, None, None))),
    ]


def paper_results(name: str, runs: Sequence[RunRecord]) -> PaperResults:
    names = tuple(run.name for run in runs)
    full = Cell(measured=estimate(87.23, 0.83), reported=92.43, runs=names[:3])
    large = Cell(measured=estimate(1979.4, 3.2), reported=math.inf, runs=names[:1])
    lost = Cell(measured=estimate(84.1), reported=90.0, runs=("was-lost",))
    endless, unknown = Cell(measured=estimate(math.inf)), Cell(measured=Estimate(n=0, mean=None))
    rows = (
        TableRow(name="fedcad", label="Fed-CAD, adaptive", cells=(full, large)),
        TableRow(name="fedldp", label="Fed-LDP", cells=(lost, endless)),
        TableRow(
            name="hostile row", label=f"{HOSTILE} {LONG}", cells=(Cell(missing="too slow for this machine"), Cell())
        ),
        TableRow(name="short", label="DP-FedAvg", cells=(unknown,)),
    )
    order = {"reported": ("Fed-CAD", "Fed-LDP"), "measured": ("Fed-CAD", "Fed-LDP")}
    orderings = (
        Ordering(column="sigma 0.1", **order, agreeing=3, contradicted=0, open=0, holds=True),
        Ordering(column="sigma 1.0", **order, agreeing=1, contradicted=1, open=1, holds=False),
        Ordering(column="sigma 9", **order, agreeing=0, contradicted=0, open=3, holds=False),
    )
    table = Table(
        name="accuracy", title="Accuracy by noise", source="Table II", unit="percent",
        columns=("sigma 0.1", "sigma 1.0"), rows=rows, orderings=orderings, notes=(f"A note {HOSTILE}",),
    )  # fmt: skip
    odd = Table(
        name="odd", title="Odd records", source="Table IX", unit="", columns=("figure",),
        rows=tuple(
            TableRow(name=f"odd {place}", label=f"Odd {place}", cells=(Cell(measured=estimate(1.0), runs=(one,)),))
            for place, one in enumerate(one for one in names if not one.startswith(f"{name}-"))
        ),
    )  # fmt: skip
    other = Table(name=HOSTILE, title="Cost", source="Figure 4", unit="", columns=("MiB",), rows=())
    claims = (
        Claim(name="better", claim="Correlated noise reaches a higher accuracy than fresh noise at the same sigma.",
              source="Section VII-B, Table II", verdict="holds", words="Measured over three seeds, beyond doubt.",
              difference=estimate(3.13, 1.02), unit="points"),
        Claim(name="private", claim="The run is (12.3, 1e-5)-differentially private.", source="Theorem VI.1",
              verdict="does not hold", words="Diff follows the norm of the update without noise.",
              difference=estimate(math.inf)),
        Claim(name="faster", claim="It converges in fewer rounds.", source="Figure 3", verdict="not decided",
              words="The interval holds zero.", difference=estimate(-0.2, 0.9), unit="rounds"),
        Claim(name=f"odd {HOSTILE}", claim=f"{HOSTILE} {LONG}", source=HOSTILE, verdict="cannot be tested here",
              words=f"It needs a data set that nobody can get. {HOSTILE}"),
    )  # fmt: skip
    return PaperResults(
        paper=name, title=f"A title of {PAPERS[name]}: private federated learning with correlated noise",
        authors="A. Author, B. Author and C. Author", scale="small",
        idea="A client sends the change of its noise, so that the noise of earlier rounds cancels in the sum.",
        leak=f"A client’s step follows the norm of its update, which is sent without noise. {HOSTILE}",
        repair="The step follows a public schedule. The verified epsilon is finite.",
        methods=("fedcad", "fedldp"), provenance=provenance(), seeds=3, tables=(table, other, odd),
        figures=(
            Figure(name="accuracy", file="figures/accuracy.png", alt="Two lines of accuracy over rounds",
                   caption="Accuracy."),
            Figure(name="odd one", file="figures/odd name.png", alt=HOSTILE, caption=HOSTILE),
        ),
        claims=claims,
    )  # fmt: skip


def board(name: str, observer: str, runs: Sequence[str], best: float, **changes: Any) -> Board:
    entries = tuple(
        Entry(
            method=method, label=label, paper=paper, target=target, verified_epsilon=target * 0.98,
            accuracy=estimate(best - 9.2 / target - 2.4 * rank, 0.4 + 0.3 * rank),
            bytes_up=9.6e7 / rank, bytes_down=9.6e7, seconds=estimate(30.0 + 9 * rank, 2.0),
            chosen={"learning_rate": "0.1", "clip_norm": f"{rank}.5"}, rank=rank, runs=tuple(runs),
            command=f"python -m fedpriv strategy={method} privacy.target_epsilon={target:g}",
        )
        for target in (2.0, 8.0)
        for rank, (method, label, paper) in enumerate(METHODS[: 5 if target == 8 else 3], 1)
    )  # fmt: skip
    given: dict[str, Any] = {
        "name": name, "title": f"One client’s data, seen by {observer}", "unit": "client", "adjacency": "replace-one",
        "observer": observer, "delta": 1e-5, "setting": "MNIST, 1,000 clients, 50 per round, 40 rounds, a small CNN.",
        "targets": (2.0, 8.0, 50.0), "reference": estimate(97.4, 0.2), "entries": entries,
        "left": (
            Left(method="fedags", label="DP-FedAGS", reason="no finite bound: the loss is sent in clear",
                 variant="published"),
            Left(method="cpsgd", label=HOSTILE, reason=f"takes too long {LONG}", target=2.0),
        ),
        "plot": Figure(
            name=name, file="figures/board.png", alt="Accuracy over epsilon", caption="Accuracy by epsilon."
        ),
        "verdicts": ("Correlated noise beats fresh noise at epsilon 8 by 2.4 ± 0.9 points.", HOSTILE),
    }  # fmt: skip
    return Board(**{**given, **changes})


def leaderboard(runs: Sequence[str]) -> Leaderboard:
    boards = (
        board("client-server", "server", runs, 88.0),
        board("client outsiders", "trusted-server", runs, 95.0),
        board(
            "empty",
            "public",
            (),
            0.0,
            entries=(),
            left=(),
            plot=None,
            verdicts=(),
            targets=(),
            reference=estimate(None),
        ),
        board("hostile", HOSTILE, ("was-lost",), 90.0, plot=None),
    )
    return Leaderboard(
        provenance=provenance(client_epoch_budget=None), seeds=3, trials=16,
        search="strategy.client.learning_rate: 0.01 .. 1 (log)\nstrategy.client.clip_norm: 0.1 .. 10 (log)",
        note="The epsilon of an entry is of its final run.", boards=boards,
    )  # fmt: skip


def add_figures(folder: Path, *names: str) -> None:
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / "figures" / name).write_bytes(picture())


def make_paper(folder: Path, name: str, more_runs: int = 0) -> Path:
    runs = [train_run(f"{name}-s{seed}", seed, 0.86 + 0.01 * seed) for seed in range(3)]
    runs += [train_run(f"{name}-more-{number}", number) for number in range(more_runs)] + odd_runs()
    write_results(folder / name, paper_results(name, runs), runs)
    add_figures(folder / name, "accuracy.png", "odd name.png")
    return folder / name


def make_leaderboard(folder: Path) -> Path:
    runs = [train_run(f"final-{seed}", seed) for seed in range(3)]
    write_results(folder / "leaderboard", leaderboard([run.name for run in runs]), runs)
    add_figures(folder / "leaderboard", "board.png")
    return folder / "leaderboard"


def make_results(folder: Path) -> Path:
    """All five papers and the leaderboard."""
    for name in PAPERS:
        make_paper(folder, name)
    make_leaderboard(folder)
    return folder
