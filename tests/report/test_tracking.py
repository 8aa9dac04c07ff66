"""A run is tracked by the real tools, without a network, and what they show is read back through their own readers."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, Run, result_of, rows_of

from fedpriv.commands.runs import main
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.remote import compose_remote
from fedpriv.report.live import tracking
from fedpriv.report.live.tracking import IDS, Tool, Tracker, of_round, of_summary, options
from fedpriv.runs.other_options import with_operations
from fedpriv.runs.start import start_run

#: A line of metrics.jsonl but for its round.
ROW: dict[str, Any] = {
    **dict.fromkeys(("participants", "dropped", "late", "stopped", "seconds", "bytes_up", "bytes_down"), 1),
    **dict.fromkeys(("accuracy", "train_loss", "update_norm", "clipped_norm", "noise_norm", "personal_accuracy")),
    "loss": 0.5,
    "epsilon_so_far": 1.0,
    "refused": {},
    "figures": {},
}
ALL = "tracking.kinds=[tensorboard,mlflow,wandb]"


@pytest.fixture(autouse=True, scope="module")
def _no_network() -> Iterator[None]:
    """Only this machine may be talked to (wandb's own process listens on a socket file or the loopback)."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), address
        real(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        yield


# --- reading back ----------------------------------------------------------------------------------------


def tensorboard_of(folder: Path) -> tuple[dict[str, dict[int, float]], dict[str, str]]:
    """Scalars by tag and step, and the last text of each tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    scalars: dict[str, dict[int, float]] = {}
    for tag in tags["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert len(steps) == len(set(steps)), f"{tag} has a step twice"
        scalars[tag] = {event.step: event.value for event in events.Scalars(tag)}
    texts = {
        tag.removesuffix("/text_summary"): events.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
        for tag in tags["tensors"]
    }
    return scalars, texts


def mlflow_of(folder: Path, experiment: str = "fedpriv") -> tuple[Any, list[Any]]:
    """The client, and the runs of an experiment in a file store."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(folder.as_uri())
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return client, list(client.search_runs([found.experiment_id]))


def log_records(log: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format in blocks of 32 KiB, behind a header of 7 bytes."""
    place, parts = 7, b""
    while place + 7 <= len(log):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", log, place)  # checksum, length, whole|first|middle|last
        parts += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def wandb_of(folder: Path) -> tuple[Any, list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """(run, history, last summary, config) of an offline run's folder."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("*.wandb")
    run: Any = None
    history, summary, config = [], {}, {}

    def values(items: Any) -> dict[str, Any]:
        return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}

    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            config |= values(record.run.config.update)
        elif kind == "history":
            history.append(values(record.history.item))
        elif kind == "summary":
            summary |= values(record.summary.update)
        elif kind == "config":
            config |= values(record.config.update)
    return run, history, summary, config


# --- what is tracked -------------------------------------------------------------------------------------


OPTIONS = ("num_clients=4", "clients_per_round=4", "num_rounds=3", "engine=inprocess", "local.steps=2")
OPTIONS += ("partition.test_fraction=0.2", "evaluate.every=2")


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that all tools have tracked."""
    folder = tmp_path_factory.mktemp("tracked") / "run"
    start_run(compose([*OPTIONS, ALL, "tracking.private=true"]), folder)
    return folder


def test_every_tool_shows_what_the_run_wrote(tracked: Path):
    folder = tracked
    rows, summary = rows_of(folder), json.loads((folder / "summary.json").read_text())
    epsilon = summary["privacy"]["verified_epsilon"]
    model = (folder / "model.safetensors").as_uri()
    place, ids = folder / "private" / "tracking", json.loads((folder / IDS).read_text())
    assert ids["tensorboard"] == folder.name

    scalars, texts = tensorboard_of(place / "tensorboard" / folder.name)
    assert scalars["epsilon"] == pytest.approx({row["round"]: row["epsilon_so_far"] for row in rows})
    assert scalars["accuracy"] == pytest.approx({n: rows[n - 1]["accuracy"] for n in (2, 3)})
    assert scalars["participants"] == {1: 4, 2: 4, 3: 4}
    assert scalars["diagnostics/update_norm"][1] == pytest.approx(rows[0]["update_norm"])
    assert scalars["diagnostics/personal_accuracy.mean"].keys() == {1, 2, 3}
    assert scalars["summary/privacy.verified_epsilon"] == pytest.approx({3: epsilon})
    assert "num_clients: 4" in texts["config"] and str(folder) not in texts["config"]
    assert texts["summary/privacy.audited_epsilon"] == "not audited" and texts["model"] == model

    client, (shown,) = mlflow_of(place / "mlflow")
    assert shown.info.run_id == ids["mlflow"] and shown.info.run_name == folder.name
    assert shown.info.status == "FINISHED"
    assert shown.data.params["num_clients"] == "4" and shown.data.params["privacy.variant"] == "repaired"
    assert shown.data.metrics["summary/privacy.verified_epsilon"] == epsilon
    assert shown.data.tags["summary/privacy.audited_epsilon"] == "not audited"
    assert shown.data.tags["model"] == model and shown.data.tags["summary/note"] if summary["note"] else True
    history = client.get_metric_history(shown.info.run_id, "bytes_up")
    assert {point.step: point.value for point in history} == {row["round"]: row["bytes_up"] for row in rows}
    assert client.list_artifacts(shown.info.run_id) == []  # the model stays where it is

    (offline,) = (place / "wandb").glob("offline-run-*")
    about, points, last, config = wandb_of(offline)
    assert (about.run_id, about.project, about.display_name) == (ids["wandb"], "fedpriv", folder.name)
    assert not about.host and [point["round"] for point in points] == [1, 2, 3]
    assert [point["loss"] for point in points if "loss" in point] == [row["loss"] for row in rows[1:]]
    assert last["summary/privacy.verified_epsilon"] == epsilon and last["model"] == model
    assert config["num_clients"] == "4"
    assert not [file for file in offline.rglob("*") if file.suffix in (".safetensors", ".py")]


def test_an_infinite_epsilon_is_a_text_and_no_number(swept: Path):
    assert rows_of(swept / "here" / "0-fedavg-digits")[0]["epsilon_so_far"] == "inf"
    scalars, texts = tensorboard_of(swept / "board" / "tensorboard" / "same")
    assert "epsilon" not in scalars and "summary/privacy.verified_epsilon" not in scalars
    assert texts["epsilon"] == texts["summary/privacy.verified_epsilon"] == "inf"
    _, (shown, _) = mlflow_of(swept / "board" / "mlflow", "seeds")
    assert "epsilon" not in shown.data.metrics
    assert shown.data.tags["epsilon"] == shown.data.tags["summary/privacy.verified_epsilon"] == "inf"
    assert shown.data.tags["summary/privacy.claimed_epsilon"] == "nothing is claimed"


def test_figures_that_are_no_numbers_never_pass_for_some():
    row = ROW | {"loss": float("nan"), "epsilon_so_far": "inf", "refused": {"stale": 2, "x": 1}, "round": 1}
    row |= {"figures": {"sigma": 2.0, "weights": [1, 2]}, "errors": {"3": "a client's text"}}
    figures, texts = of_round(row)
    assert figures["refused"] == 3 and figures["figures/sigma"] == 2.0
    assert not {"accuracy", "loss", "epsilon", "figures/weights"} & figures.keys()
    assert texts == {"loss": "nan", "epsilon": "inf"}
    _, words = of_summary({"privacy": {"verified_epsilon": "inf", "claimed_epsilon": None}})
    assert words["summary/privacy.verified_epsilon"] == "inf"
    assert words["summary/privacy.claimed_epsilon"] == "nothing is claimed"


def test_nothing_is_tracked_unless_asked_and_nothing_of_the_result_changes(tracked: Path, run: Run):
    plain = run(*OPTIONS)
    assert not (plain / IDS).exists() and not (plain / "tracking").exists()
    assert result_of(plain) == result_of(tracked)


def test_places_on_this_machine_are_not_tracked():
    table = ["dataset=table", "dataset.test_root=/secret/test", "dataset.schema_file=/secret/schema.yaml"]
    for given in (
        ["dataset.root=/secret/root", "dataset.cache=/secret/cache", "tracking.folder=/secret"],
        [*table, "model.weights=/secret/model.pt"],
        ["features=backbone", "features.weights=/secret/backbone.pt"],
    ):
        shown = options(compose(given))
        assert "secret" not in str(shown) and "_target_" not in str(shown)
        assert shown["seed"] == "0" and shown["strategy.client.clip_norm"]


# --- resumed runs, sweeps, failures ----------------------------------------------------------------------


def test_a_resumed_run_goes_on_under_its_ids(resumed: Callable[..., Path]):
    folder = resumed(ALL, "num_rounds=4", "checkpoint.every=2", after=3)
    place, ids = folder / "tracking", json.loads((folder / IDS).read_text())
    scalars, _ = tensorboard_of(place / "tensorboard" / ids["tensorboard"])  # round 3 is there once
    assert scalars["loss"] == pytest.approx({row["round"]: row["loss"] for row in rows_of(folder)})
    client, (shown,) = mlflow_of(place / "mlflow")
    assert shown.info.run_id == ids["mlflow"] and shown.info.status == "FINISHED"
    steps = [point.step for point in client.get_metric_history(ids["mlflow"], "loss")]
    assert set(steps) == {1, 2, 3, 4}
    offline = [wandb_of(part) for part in sorted((place / "wandb").glob("offline-run-*"))]
    assert {about.run_id for about, *_ in offline} == {ids["wandb"]}
    assert {point["round"] for _, points, *_ in offline for point in points} == {1, 2, 3, 4}


def test_a_tool_that_comes_in_at_a_resume_gets_the_earlier_rounds(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    config = compose(["tracking.kinds=[tensorboard]"])
    (folder / "metrics.jsonl").write_text("".join(json.dumps({**ROW, "round": n}) + "\n" for n in (1, 2)))
    tracker = Tracker(config.tracking, folder, lambda kind, reason: pytest.fail(reason))
    tracker.start(config, 2)
    tracker.round(ROW | {"round": 3})
    tracker.finish("stopped")
    scalars, texts = tensorboard_of(folder / "tracking" / "tensorboard" / "run")
    assert scalars["loss"].keys() == {1, 2, 3} and texts["state"] == "stopped"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two runs without privacy were made in ``here`` and tracked in ``board``."""
    place = tmp_path_factory.mktemp("swept")
    shared = ("tracking.kinds=[tensorboard,mlflow]", "tracking.folder=board", "tracking.experiment=seeds")
    small = ("num_clients=2", "clients_per_round=2", "num_rounds=1", "engine=inprocess", "strategy=fedavg")
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.chdir(place)
        assert main(["-m", *small, *shared, "seed=0,1", "hydra.sweep.dir=here", "tracking.run_name=same"]) == 0
    assert said.getvalue() == ""
    return place


def test_a_sweep_is_one_tracked_run_per_job(swept: Path):
    assert {path.name for path in (swept / "board" / "tensorboard").iterdir()} == {"same", "same-2"}
    _, runs = mlflow_of(swept / "board" / "mlflow", "seeds")
    assert sorted(shown.data.params["seed"] for shown in runs) == ["0", "1"]
    assert {path.name for path in swept.iterdir()} == {"here", "board"}


class Broken:
    """A tool that fails at one of its three calls."""

    def __init__(self, at: str) -> None:
        self.at, self.calls = at, []

    def called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.at:
            raise RuntimeError("the disk of\nthe tool is full")

    def __call__(self, *_: Any) -> Tool:
        self.called("start")
        return Tool("id", lambda *_: self.called("round"), lambda *_: self.called("finish"))


@pytest.mark.parametrize("at", ["start", "round", "finish"])
def test_a_tool_that_fails_is_left_alone_and_the_others_go_on(at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tools = {"mlflow": Broken(at), "tensorboard": Broken("nowhere")}
    monkeypatch.setattr(tracking, "TOOLS", tools)
    config, said = compose(["tracking.kinds=[mlflow,tensorboard]"]), []
    tracker = Tracker(config.tracking, tmp_path, lambda *warning: said.append(warning))
    tracker.start(config, 0)
    tracker.round(ROW | {"round": 1})
    tracker.round(ROW | {"round": 2})
    tracker.finish("failed")
    tracker.finish("failed")
    assert said == [("mlflow", "RuntimeError: the disk of the tool is full")]
    assert tools["mlflow"].calls[-1] == at
    assert tools["tensorboard"].calls == ["start", "round", "round", "finish"]


def test_a_run_goes_on_without_its_tools(run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setitem(tracking.TOOLS, "mlflow", Broken("round"))
    folder = run("tracking.kinds=[mlflow]", "num_rounds=2", "local.steps=1")
    words = "mlflow no longer tracks this run; the run goes on (RuntimeError: the disk of the tool is full)"
    assert [line for line in capfd.readouterr().err.splitlines() if "track" in line] == [f"fedpriv: {words}"]
    assert len(rows_of(folder)) == 2 and (folder / "summary.json").exists()


def test_a_warning_is_a_log_line_where_there_is_a_log(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "taken").write_text("a file where a folder should be")
    log = tmp_path / "log.jsonl"
    run(
        "tracking.kinds=[tensorboard]",
        f"tracking.folder={tmp_path / 'taken'}",
        "operations.log_format=json",
        f"operations.log_file={log}",
        "num_rounds=1",
    )
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (failed,) = [event for event in events if event["event"] == "tracking_failed"]
    assert failed["kind"] == "tensorboard" and failed["level"] == "warning" and failed["reason"]
    assert "track" not in capfd.readouterr().err and events[-1]["event"] == "run_finished"


# --- options ---------------------------------------------------------------------------------------------


def test_a_tool_that_is_not_installed_is_named_before_any_work(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "no_tool").mkdir()  # a folder of that name where one works is not the package
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind, package in (("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny"), ("wandb", "wandb")):
        monkeypatch.setitem(tracking.PACKAGES, kind, ("no_tool", tracking.PACKAGES[kind][1]))
        with pytest.raises(OptionError, match=f"tracking.kinds={kind}: needs the package {package}: make install, or"):
            Tracker(compose([f"tracking.kinds={kind}"]).tracking, tmp_path, lambda *_: None)
    outcome = cli("num_rounds=1", "tracking.kinds=[wandb]", "hydra.run.dir=here")
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and "tracking.kinds=wandb" in outcome.err
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("override", "option", "words"),
    [
        ("tracking.kinds=[comet]", "tracking.kinds.0", "allowed: tensorboard, mlflow or wandb"),
        ("tracking.kinds=3", "tracking.kinds", "must be a list"),
        ("tracking.wandb_mode=sometimes", "tracking.wandb_mode", "allowed: offline or online"),
        ("tracking.run_name=a/b", "tracking.run_name", "without slashes"),
        ("tracking.experiment=''", "tracking.experiment", "must not be empty"),
        ("tracking.kind=wandb", "tracking.kind", "did you mean tracking.kinds?"),
    ],
)
def test_a_wrong_option_is_one_line(override: str, option: str, words: str):
    with pytest.raises(OptionError, match=r"^tracking\.") as caught:
        compose([override])
    assert caught.value.option == option and words in str(caught.value)


def test_the_host_may_choose_by_its_environment_and_nobody_from_outside(monkeypatch: pytest.MonkeyPatch):
    assert compose().tracking.kinds == ()
    monkeypatch.setenv("FEDPRIV_TRACKING", "tensorboard, mlflow")
    monkeypatch.setenv("FEDPRIV_TRACKING_FOLDER", "/srv/board")
    chosen = compose_remote(["seed=1"]).tracking
    assert chosen.kinds == ("tensorboard", "mlflow") and chosen.folder == "/srv/board"
    for name in (
        "kinds=[wandb]",
        "folder=/tmp/x",
        "mlflow_address=x",
        "wandb_mode=online",
        "run_name=x",
        "experiment=x",
    ):
        with pytest.raises(OptionError, match="cannot be set from outside"):
            compose_remote([f"tracking.{name}"])


def test_a_run_can_be_resumed_and_repeated_with_other_tools(cli: Callable[..., Outcome]):
    config = compose(["tracking.kinds=[mlflow]"])
    assert config.digest() == compose().digest()  # the same run
    assert with_operations(config, ["tracking.kinds=[wandb]", "tracking.run_name=x"]).tracking.kinds == ("wandb",)
    for command in ("resume", "rerun"):
        assert "nowhere: there is no such run folder" in cli(f"{command}=nowhere", "tracking.kinds=[]").err
