"""Flower's own example apps under the guard (written after the public ones, a local file in the place of their loader):
which run as they are, and what a server reads of those that cannot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from guarded import GuardedMachines
from PIL import Image

from benchmarks.flower_apps import APPS, NETWORKS, ROOT, app_folder, cells, incomes, iris, lifetimes, write_table
from benchmarks.flower_dp import CENTRAL, LOCAL, flower_dp
from fedpriv.commands.node import Node, _check_tried
from fedpriv.common.errors import OptionError
from fedpriv.deployment.bundles import bundle_digest
from fedpriv.engines.grid import RUN_ID, stamp
from fedpriv.guard.guarded_message import Guard
from fedpriv.guard.shards import TRIALS
from fedpriv.guard.trial import try_app

pytestmark = pytest.mark.timeout(600)


def machine(folder: Path, app: str, **guard: Any) -> GuardedMachines:
    """One machine with data of the app's form."""
    network = GuardedMachines(folder / "machines")
    data = network.data(0)
    if app in NETWORKS:
        for number in range(60):
            (place := data / "pictures" / str(number % 3)).mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
    else:
        made = {"sklearn_iris": iris, "kaplan_meier": lifetimes}.get(app, incomes)(1)
        write_table(data / "data.csv", made[0], made[1][:150])
    table = "pictures" if app in NETWORKS else "data.csv"
    network.write_policy(0, **{"table": table, "shards": 3, "memory_mib": 8192} | guard)
    text = network.policy(0).read_text()
    network.policy(0).write_text(text.replace("max_parameters: 1000", "max_parameters: 1000000"))
    return network


def test_all_apps_are_here() -> None:
    names = {file.stem for file in APPS.glob("*.py")}
    assert names == {*RUN, *REFUSED, "kaplan_meier"}


RUN = {"sklearn_iris": {}, "fl_tabular": {}, "pytorch_cnn": {}, "opacus_cnn": {}, "personal_head": {}}


@pytest.mark.rotates(4)
@pytest.mark.parametrize("app", RUN)
def test_an_app_that_needs_its_loader_replaced_alone(app: str, tmp_path: Path) -> None:
    """Its model comes from its own ServerApp, and every shard answers, in the sandbox."""
    network = machine(tmp_path, app)
    starts = try_app(network.policy(0), network.data(0), app_folder(app, tmp_path / app)).starts["train"]
    assert (starts.answered, starts.started) == (3, 3), starts
    assert starts.memory_bytes > 2**24 and network.booked() == []


def test_a_row_of_codes_that_one_shard_lacks_changes_all_its_inputs(tmp_path: Path) -> None:
    """Why fl-tabular loses with shards: codes and scales are each shard's own, unless they are public."""
    import importlib.util

    names, rows = incomes(0, 200)
    spec = importlib.util.spec_from_file_location("fl_tabular", APPS / "fl_tabular.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))

    def inputs(kept: list[list[Any]], **public: Any) -> set[tuple[float, ...]]:
        file = write_table(tmp_path / "t.csv", names, kept)
        context = Context(1, 2, {"data-path": str(file), **public}, RecordDict(), {})
        return {tuple(row) for row in module.load_data(context).dataset.tensors[0][:, 6:].tolist()}

    fewer = [row for row in rows if row[6] != "v0"]
    assert inputs(fewer).isdisjoint(inputs(rows))
    told = {"public-codes": True}
    assert len(inputs(fewer, **told) & inputs(rows, **told)) > len(fewer) / 2


#: What each app's own first message gets.
REFUSED = {"xgboost_trees": "the model has no float arrays", "secure_aggregation": "its ServerApp gave no model"}


@pytest.mark.parametrize("app", REFUSED)
def test_an_app_that_cannot_work_is_refused_before_it_starts(app: str, tmp_path: Path) -> None:
    network = machine(tmp_path, app)
    with pytest.raises(OptionError, match=REFUSED[app]):
        try_app(network.policy(0), network.data(0), app_folder(app, tmp_path / app))
    assert not (network.data(0) / ".fedpriv" / TRIALS).exists()


def test_secure_aggregation_answers_without_its_mod(tmp_path: Path) -> None:
    network = machine(tmp_path, "secure_aggregation", api="numpy")
    app, model = app_folder("secure_aggregation", tmp_path / "app"), tmp_path / "model.npz"
    code = app / "secure_aggregation.py"
    code.write_text(code.read_text().replace(", mods=[secaggplus_mod]", ""))
    np.savez(model, np.zeros(3))
    starts = try_app(network.policy(0), network.data(0), app, model=model).starts["train"]
    assert (starts.answered, starts.started) == (3, 3), starts


@pytest.mark.parametrize("of", ["run", "ending"])
def test_the_page_prints_what_the_results_hold(of: str) -> None:
    page = (ROOT / "docs" / "guard_figures.md").read_text()
    assert [label for label, text in cells(of).items() if f" | {text} |" not in page] == []


def test_survival_counts_leave_and_times_and_events_do_not(tmp_path: Path) -> None:
    """Raw data in reply to `query` are refused; declared counts are the same app's, twelve lines longer."""
    query = {"metrics": {"at_risk": 20, "died": 20}, "clip": 400.0, "noise_multiplier": 0.015}
    app = app_folder("kaplan_meier", tmp_path / "app")
    rules = {"counts": {"query.survival": query}, "min_answered": 0.9, "apps": [bundle_digest(app)]}
    network = machine(tmp_path, "kaplan_meier", **rules)
    with pytest.raises(OptionError, match="nobody has tried it"):
        _check_tried(Node(network.policy(0), network.data(0)), "any", 0)
    trial = try_app(network.policy(0), network.data(0), app)
    assert (*trial.starts,) == ("query.survival",) and trial.starts["query.survival"].answered == 3, trial
    assert "gave no model" in trial.no_model
    _check_tried(Node(network.policy(0), network.data(0)), "any", 0)

    def ask(kind: str) -> Message:
        guard = Guard(0, network.policy(0), network.data(0), app, bundle_digest(app))
        stamp(message := Message(RecordDict(), 7, kind), kind)
        return guard(message, Context(RUN_ID, 7, {}, RecordDict(), {}))

    assert ask("query").error.reason == "policy: a query is not declared by this node's policy"
    found = ask("query.survival").content["metrics"]
    rows = np.array(lifetimes(1)[1][:150], float)
    assert found["at_risk"] == pytest.approx([(rows[:, 0] >= start).sum() for start in range(0, 80, 4)], abs=30)
    assert 0 < sum(found["died"]) < 300 and len(network.booked()) == 1


# --- flower's own differential privacy in the benchmark: its noise has the size whose epsilon is stated ---


APP = Path(__file__).parent / "apps" / "quickstart-sklearn"
CLIP, MULTIPLIER, SITES, COLUMNS = 0.5, 3.0, 4, 2000


@pytest.mark.parametrize(("form", "machines"), [(LOCAL, SITES), (CENTRAL, 1)])
def test_flowers_classes_add_the_noise_that_is_accounted(form: str, machines: int, tmp_path: Path) -> None:
    """Of the mean: 2 C m / sites from the server alone, sqrt(sites) times that from every machine."""
    names = ",".join(f"c{number}" for number in range(COLUMNS))
    rows = [",".join([str(label), *["0"] * (COLUMNS - 1), str(label)]) for label in (0, 1)]  # one column has signal
    table = tmp_path / "t.csv"
    table.write_text("\n".join([f"{names},y", *rows]) + "\n")
    start = ArrayRecord(numpy_ndarrays=[np.zeros((1, COLUMNS)), np.zeros(1)])
    given = {"form": form, "clip": CLIP, "multiplier": MULTIPLIER, "delta": 1e-4, "seed": 1}
    found = flower_dp(APP, [table] * SITES, start, 1, run_config={"local-epochs": 1}, **given)  # type: ignore[arg-type]
    noise = next(iter(found.values())).numpy()
    expected = 2 * CLIP * MULTIPLIER * machines**0.5 / SITES
    assert np.std(noise) == pytest.approx(expected, rel=0.08)
