"""Nothing that outsiders may read of a run depends on what its verified epsilon takes for unknown."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from conftest import Run, page_of, result_of, rows_of, summary_of
from prometheus_client import generate_latest
from safetensors import safe_open
from scipy.stats import binom, norm

import fedpriv
from fedpriv.certificates.making import of_any
from fedpriv.client.memory import FileStore
from fedpriv.config.compose import compose, read_config
from fedpriv.config.owner import is_own
from fedpriv.engines.grid import memory_folder
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.composition import compose as composed
from fedpriv.privacy.secret_cohorts import SecretCohorts
from fedpriv.report import views
from fedpriv.report.live.monitor import Monitor
from fedpriv.report.live.progress import RunProgress
from fedpriv.runs.sweep import FAILURE_FILE
from fedpriv.server.strategy import Cohorts

CENTRAL = ("strategy.client.form=central", "strategy.server.client_sampling=poisson")
ALLOCATED = ("strategy.client.form=central", "strategy.server.client_sampling=allocated", "clients_per_round=2")
#: Every form whose cohorts are secret.
SECRET = {
    "poisson": ("strategy=dpfedavg", *CENTRAL),
    "quantile": ("strategy=dpfedavg", *CENTRAL, "strategy.server.clipping=quantile"),
    "allocated": ("strategy=dpfedavg", *ALLOCATED),
    "scaffold": ("strategy=scaffold", *CENTRAL),
    "extrapolated": ("strategy=dpfedexp", *CENTRAL),
    "balls": ("strategy=dpftrl", "strategy.server.client_sampling=balls", "clients_per_round=2"),
    "groups": (
        *("strategy=dpftrl", "strategy.server.client_sampling=poisson", "strategy.client.bandwidth=2"),
        "clients_per_round=2",
    ),
}
#: Everything that can be written.
ALL = (
    *("operations.metrics_port=0", "operations.log_format=json"),
    *("tracking.kinds=[tensorboard]", "checkpoint.every=1", "attack.keep_snapshots=true"),
)


def of_folder(folder: Path) -> dict[str, Any]:
    """Every file of a run's folder: name -> content without the times at which it was written."""
    found: dict[str, Any] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = str(file.relative_to(folder)), file.read_bytes()
        if "tfevents" in name:  # a record has the time at which it was written
            name, content = "tracking", of_tensorboard(file.parent)
        if name == ".owner":  # of config.yaml, where the folder's own place stands
            content = str(is_own(folder, "config.yaml")).encode()
        found[name] = content.replace(str(folder.parent).encode(), b"") if isinstance(content, bytes) else content
    return found


def of_tensorboard(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    scalars = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    texts = {tag: [one.tensor_proto.string_val[0] for one in events.Tensors(tag)] for tag in events.Tags()["tensors"]}
    return {tag: str(value).replace(str(folder.parents[3]), "") for tag, value in (scalars | texts).items()}


def of_api(folder: Path) -> dict[str, Any]:
    run = fedpriv.Run(folder)
    found = {"summary": run.summary, "metrics": run.metrics.to_json(), "ledger": run.ledger.to_json()}
    return found | {"figures": sorted(run.figures), "head": run._repr_html_().replace(str(folder), "")}


@pytest.fixture
def seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any]
) -> Callable[..., tuple[dict[str, Any], Path]]:
    """``seen("a", {1, 2}, *options)``: all that outsiders read of a run in whose cohorts these clients are never, by
    name; and the folder that its private/ was moved to. Sums are zero, so the models do not depend on the cohorts.
    """

    from fedpriv.server import gradient

    real, draw, monitors = gradient.noisy_sum, Cohorts.draw, list[Monitor]()
    monkeypatch.setattr(gradient, "noisy_sum", lambda sent, *rest: real(map(torch.zeros_like, sent), *rest))
    for name, number in list(gradient.NUMBERS.items()):
        nothing = replace(number, of=lambda sent, clip_norm: torch.zeros(()))
        monkeypatch.setitem(gradient.NUMBERS, name, nothing)
    monkeypatch.setattr("strategies.dpftrl.clip", lambda vector, bound: torch.zeros_like(vector))
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", "0")
    begin = Monitor.__init__

    def remember(self: Monitor, *arguments: Any) -> None:
        begin(self, *arguments)
        monitors.append(self)

    monkeypatch.setattr(Monitor, "__init__", remember)

    def start(name: str, without: set[int], *options: str) -> tuple[dict[str, Any], Path]:
        folder, log = tmp_path / name / "run", tmp_path / name / "log"
        folder.parent.mkdir()
        monkeypatch.setattr(Cohorts, "draw", lambda *key: [one for one in draw(*key) if one not in without])
        sizes = ("num_clients=6", "clients_per_round=3", "num_rounds=3", "engine=inprocess")
        places = (f"hydra.run.dir={folder}", f"operations.log_file={log}")
        outcome = cli(*sizes, *ALL, *places, *options)
        assert outcome.code == 0, outcome.err
        private = folder.parent / views.PRIVATE
        shutil.move(folder / views.PRIVATE, private)
        shutil.move(folder / "checkpoints", private)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        port = ("time", "port", "options", "digest")
        return {
            **of_folder(folder),
            **{f"api: {key}": value for key, value in of_api(folder).items()},
            "gauges": re.sub(r"(?m)^.*_created.*$", "", generate_latest(monitors[-1].metrics.registry).decode()),
            "log": [{key: value for key, value in line.items() if key not in port} for line in lines],
            "console": (outcome.out + outcome.err).replace(str(folder), "").replace(f"{name}/run", ""),
        }, private

    return start


@pytest.mark.parametrize("name", SECRET)
def test_nothing_public_depends_on_a_secret_cohort(name: str, seen: Callable[..., Any]) -> None:
    """Two runs that differ in their cohorts alone write the same, bit for bit; what differs is in private/."""
    (one, private), (other, _) = seen("a", set(), *SECRET[name]), seen("b", {0, 3}, *SECRET[name])
    assert one.keys() == other.keys() and len(one) > 20
    for key in one:
        assert one[key] == other[key], key
    counts = [[json.loads(line)["participants"] for line in (private.parent.parent / run / "private" / "metrics.jsonl")
               .read_text().splitlines()] for run in "ab"]  # fmt: skip
    assert counts[0] != counts[1]


def test_which_lines_a_console_shows_tells_no_time_of_a_secret_cohort(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines(pace: float, seconds: float | None) -> list[str]:
        clock = itertools.count(0.0, pace)
        monkeypatch.setattr("fedpriv.report.live.progress.time.monotonic", lambda: next(clock))
        progress = RunProgress("dpfedavg", 300)
        for number in range(1, 301):
            progress.round(number, {}, 1.0, seconds)
        return capsys.readouterr().out.splitlines()

    assert lines(0.01, None) == lines(10.0, None) and len(lines(0.01, None)) == 100
    assert len(lines(0.01, 0.01)) < len(lines(10.0, 10.0)) == 300


@pytest.mark.parametrize("options", [("strategy=fedldp",), SECRET["poisson"]], ids=["known", "secret"])
def test_who_took_part_is_public_where_it_is_assumed_to_be(options: tuple[str, ...], run: Run) -> None:
    folder = run(*options, "tracking.kinds=[tensorboard]")
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    page_of(folder)
    summary, page = json.loads((folder / "summary.json").read_text()), (folder / "report.html").read_text()
    known = options == ("strategy=fedldp",)
    for value in (row["participants"], row["bytes_up"], row["seconds"], summary["traffic"]["bytes_up"]):
        assert (value is not None) is known
    assert ("rests on cohorts that outsiders do not know" in page) is not known
    assert summary_of(folder)["traffic"]["bytes_up"] > 0 and rows_of(folder)[0]["participants"] > 0


def test_data_of_clients_are_private_whatever_the_method(run: Run) -> None:
    folder = run("strategy=fedper", "partition.test_fraction=0.3", "operations.report=true")
    text = "".join(path.read_text() for path in (folder / "metrics.jsonl", folder / "summary.json"))
    whole = rows_of(folder)[-1]
    assert whole["train_loss"] > 0 and whole["personal_accuracy"]["clients"] and whole["update_norm"] > 0
    for number in (whole["train_loss"], whole["update_norm"], whole["personal_accuracy"]["mean"]):
        assert str(number) not in text and str(number) in (folder / "private" / "metrics.jsonl").read_text()
    private = {path.name for path in (folder / "private").iterdir()}
    assert {"labels.png", "clients.png", "noise.png", "report.html"} <= private
    assert not private & {path.name for path in folder.glob("*.png")} - {"loss.png", "clipping.png"}
    assert "labels.png" not in (folder / "report.html").read_text()
    assert summary_of(folder)["accuracy"]["personalised"] > 0


@pytest.mark.parametrize("report", ["true", "false"])
def test_private_files_are_their_owners(report: str, run: Run) -> None:
    folder = run("strategy=fedldp", f"operations.report={report}", "attack.keep_updates=true")
    private, checkpoints = folder / views.PRIVATE, folder / "checkpoints"
    for path in (private, *private.rglob("*"), checkpoints, *checkpoints.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    names = {path.name for path in private.iterdir()}
    assert {"metrics.jsonl", "summary.json", "updates"} <= names and ("report.html" in names) is (report == "true")


@pytest.mark.parametrize(
    "name", ["fedcad", "adpfl", "coqfl", "fedags", "scaffold", "nbafl", "fedonce", "anr", "ddgauss"]
)
def test_the_table_has_all_that_is_written(name: str, run: Run, tmp_path: Path) -> None:
    """A key that nobody has looked at is private, and named here."""
    folder = run(f"strategy={name}", "num_rounds=2", "operations.report=true")
    for row in rows_of(folder):
        assert row.keys() <= views.ROUND.keys()
    summary = summary_of(folder)
    assert summary.keys() <= views.SUMMARY.keys()
    shown = json.loads((folder / "summary.json").read_text())
    assert shown["privacy"] == summary["privacy"] and shown["accuracy"]["final"] == summary["accuracy"]["final"]
    (tmp_path / "key").write_bytes(bytes(32))
    of_any(folder, key=tmp_path / "key", verifier=True)
    for name in (FAILURE_FILE, *(path.name for path in folder.iterdir())):
        assert any(fnmatch(name, pattern) for pattern in views.FILES), name


def test_what_clients_keep_on_flowers_runtime_is_private(tmp_path: Path) -> None:
    """Their files stay after the run, and hold updates without noise (Fed-CAD's x)."""
    store = FileStore(memory_folder(compose([f"run_dir={tmp_path}", "engine=flower"])), 0)
    store.write(b"an update without noise")
    top = next(path for path in store.path.parents if path.parent == tmp_path)
    assert views.FILES[top.name] == views.DATA and stat.S_IMODE(top.stat().st_mode) == 0o700


@pytest.mark.parametrize("rng", ["seeded", "secure"])
def test_the_page_says_that_a_published_seed_takes_the_noise_away(rng: str, run: Run) -> None:
    """What lies beside it gives theta^0, the noise and the model: the cohort's sum without noise is one subtraction."""
    folder = run(*SECRET["poisson"], f"privacy.rng={rng}", "num_rounds=1")
    page_of(folder)
    said = "came from a seed" in (folder / "report.html").read_text()
    config = read_config(folder)
    line, options = json.loads((folder / "ledger.jsonl").read_text()), config.strategy.options
    with safe_open(folder / "model.safetensors", "numpy") as model:
        theta = np.concatenate([model.get_tensor(name).ravel() for name in Worker(config).model.layout.names])
    std = line["multiplier"] * options.clip_norm
    noise = SeededNoise(config.seed, -1, 1, 0, "server").normal(theta.size, std).double().numpy()
    noisy = (Worker(config).initial_parameters() - theta.astype(float)) * config.clients_per_round
    left = np.linalg.norm(noisy / options.learning_rate - noise)
    assert np.linalg.norm(noise) > (longest := config.num_clients * options.clip_norm)
    assert bool(left <= longest) is said is (rng == "seeded")


def named(kinds: views.Kinds, before: str = "") -> Iterator[tuple[str, str]]:
    for name, kind in kinds.items():
        yield from [(before + name, kind)] if isinstance(kind, str) else named(kind, f"{before}{name}.")


@pytest.mark.parametrize("secret", [False, True])
def test_a_name_that_no_table_has_is_private(secret: bool) -> None:
    for kinds in (views.ROUND, views.SUMMARY):
        assert views.split({"of_tomorrow": 1}, kinds, secret) == ({"of_tomorrow": None}, {"of_tomorrow": 1})


def test_the_page_has_the_codes_table() -> None:
    def row(*cells: str) -> str:
        return f"| {' | '.join(cells)} |"

    page = (Path(__file__).parents[2] / "docs" / "protection.md").read_text().splitlines()
    assert row("kind", "what it is", *views.OBSERVERS) in page
    for kind, sees in views.VIEWS.items():
        assert row(kind, views.MEANINGS[kind], *sees) in page
    places = {"a line of metrics.jsonl": views.ROUND, "summary.json": views.SUMMARY, "the run's folder": views.FILES}
    for place, kinds in places.items():
        cells = (", ".join(f"`{name}`" for name, of in named(kinds) if of == kind) for kind in list(views.VIEWS)[:3])
        assert row(place, *cells) in page, place
    cells = (", ".join(name for name, of in views.ELSEWHERE.items() if of == kind) for kind in list(views.VIEWS)[:3])
    assert row("elsewhere", *cells) in page


def test_a_resumed_run_keeps_both_files(resumed: Callable[..., Path], run: Run) -> None:
    options = (*SECRET["poisson"], "checkpoint.every=1", "operations.report=false", "engine.trainer=sequential")
    assert result_of(resumed(*options, after=2)) == result_of(run(*options))


def test_a_published_folder_is_read_without_private(run: Run) -> None:
    folder = run(*SECRET["poisson"])
    shutil.rmtree(folder / views.PRIVATE)
    assert rows_of(folder)[0]["participants"] is None and summary_of(folder)["timing"]["total_s"] is None
    assert "Participants per round" in page_of(folder) and not (folder / views.PRIVATE).exists()


# --- the attack --------------------------------------------------------------------------------------------------

#: (N, K, noise multiplier, rounds) -> (what is verified without counts, what counts and sums show at least)
COUNTED = {
    (20, 4, 2.28, 5): (0.994, 1.90),
    (100, 10, 3.8, 100): (1.04, 1.81),
    (20, 4, 2.0, 50): (3.49, 5.98),
    (10, 2, 4.0, 30): (1.11, 5.11),
    (50, 5, 2.0, 20): (1.075, 1.64),
}


def epsilon_with_counts(clients: int, size: int, multiplier: float, rounds: int, delta: float) -> float:
    """At least the epsilon of who sees the noisy sum and the number of clients of every round: the exact law of both,
    losses rounded down onto a grid.

    With the client, who is drawn with probability q and adds 1 to the sum, against without: a count n of the others is
    binomial. Of count n the loss at sum y is log(1 - q + q B(n - 1)/B(n) exp((2 y - 1)/(2 z^2))), increasing in y.
    """
    rate, step, low, high, length = size / clients, 1e-4, -12.0, 12.0, 1 << 20
    grid = np.arange(low, high, step)
    below = np.zeros(grid.size + 1)  # P(loss < grid point), and certain in the end
    certain = 0.0
    for count in range(clients + 1):
        others, one_less = (binom.pmf(number, clients - 1, rate) for number in (count, count - 1))
        if max(others, one_less) < 1e-25:
            continue
        if others == 0:  # so many are there only with the client
            certain += rate * one_less
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            inner = (np.exp(grid) - (1 - rate)) * others / (rate * one_less) if one_less else np.full(grid.size, -1.0)
            sums = np.where(inner > 0, multiplier**2 * np.log(np.maximum(inner, 1e-300)) + 0.5, -np.inf)
        if one_less == 0:
            sums = np.where(grid > math.log(1 - rate), np.inf, -np.inf)
        below[:-1] += (1 - rate) * others * norm.cdf(sums / multiplier)
        below[:-1] += rate * one_less * norm.cdf((sums - 1) / multiplier)
    below[-1] = 1 - certain
    law = np.diff(below)  # of the loss rounded down
    total = np.fft.irfft(np.fft.rfft(np.roll(np.pad(law, (0, length - law.size)), round(low / step))) ** rounds)
    losses = step * (np.arange(length) - length * (np.arange(length) >= length // 2))
    seen_for_certain = 1 - (1 - certain) ** rounds

    def divergence(epsilon: float) -> float:
        gain = np.where(losses > epsilon, -np.expm1(np.minimum(epsilon - losses, 0)), 0)
        return float(gain @ np.maximum(total, 0)) + seen_for_certain

    least, most = 0.0, 30.0
    while most - least > 1e-3:
        middle = (least + most) / 2
        least, most = (middle, most) if divergence(middle) > delta else (least, middle)
    return least


@pytest.mark.parametrize("setting", COUNTED, ids=str)
def test_counts_beside_the_sums_refute_the_verified_epsilon(setting: tuple[int, int, float, int]) -> None:
    """Why they are private: with them the epsilon is another one."""
    clients, size, multiplier, rounds = setting
    event = SecretCohorts("poisson", clients, size).event(multiplier)
    verified = composed([event] * rounds, 1e-5).epsilon
    assert verified == pytest.approx(COUNTED[setting][0], rel=0.01)
    assert epsilon_with_counts(*setting, 1e-5) >= COUNTED[setting][1] > verified
