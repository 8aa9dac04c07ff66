"""What an operator sees: log lines, metrics and health of a run and of a node, over real HTTP."""

from __future__ import annotations

import json
import logging
import math
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from conftest import SMALL, Outcome, Run, ledger_of, result_of, rows_of
from prometheus_client.parser import text_string_to_metric_families as families

from fedpriv.common.errors import OptionError
from fedpriv.common.messages import Refusal
from fedpriv.common.replies import MALFORMED, OTHER, refusal_name
from fedpriv.config.compose import compose
from fedpriv.config.remote import compose_remote
from fedpriv.report.live import monitor as monitor_module
from fedpriv.report.live.monitor import Monitor, configure_logging, watched
from fedpriv.report.live.prometheus import NodeMetrics, NodeSnapshot, RunMetrics, serve_metrics
from fedpriv.runs.session import Session

Cli = Callable[..., Outcome]


def get(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and text of a real request."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """(name, label values ...) -> value, as Prometheus reads it."""
    status, text = get(port, "/metrics")
    assert status == 200
    return {
        (sample.name.removeprefix("fedpriv_"), *sample.labels.values()): sample.value
        for family in families(text)
        for sample in family.samples
    }


def lines_of(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# --- a run -----------------------------------------------------------------------------------------------

FAULTS = "engine.faults=[{round:2,client:1,kind:raise},{round:2,client:2,kind:drop},{round:3,client:1,kind:raise}]"


def test_a_run_is_scraped_and_logged(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen, texts, real = [], [], Session._end_round

    def ends(session: Session, current: object) -> None:
        port = session.monitor.server.port  # type: ignore[union-attr]
        real(session, current)  # type: ignore[arg-type]
        seen.append(scrape(port) | {("port",): port})
        texts.append([get(port, path) for path in ("/healthz", "/readyz")])

    monkeypatch.setattr(Session, "_end_round", ends)
    log = tmp_path / "log.jsonl"
    options = ("operations.metrics_port=0", "operations.log_format=json", f"operations.log_file={log}")
    folder = run(FAULTS, "privacy.max_epsilon=1e6", "evaluate.every=2", *options)
    rows = rows_of(folder)

    last = seen[-1]
    assert [found["round",] for found in seen] == [1, 2, 3] and last["rounds_total",] == 3
    assert last["rounds_planned",] == 3
    assert last["participants",] == rows[-1]["participants"] == 3
    assert last["participations_total",] == 4 + 2 + 3 and last["dropped_total",] == 0 + 2 + 1
    assert last["refusals_total", "failed"] == 2 and last["refusals_total", "lost"] == 1
    assert last["received_bytes_total",] == sum(row["bytes_up"] for row in rows)
    assert last["sent_bytes_total",] == sum(row["bytes_down"] for row in rows)
    assert math.isnan(seen[0]["accuracy",]) and seen[1]["accuracy",] == rows[1]["accuracy"]
    assert last["accuracy",] == rows[2]["accuracy"] and last["loss",] == rows[2]["loss"]
    assert [found["epsilon_spent",] for found in seen] == [row["epsilon_so_far"] for row in rows]
    assert last["epsilon_max",] == 1e6 and ("epsilon_target",) not in last
    assert last["round_seconds_count",] == 3
    assert last["round_seconds_sum",] == pytest.approx(sum(row["seconds"] for row in rows))
    assert last["run_state", "running"] == 1 and last["run_state", "finished"] == 0
    assert texts[0] == [(200, "running, 1 of 3 rounds\n")] * 2
    with pytest.raises(urllib.error.URLError):  # the port is free again
        get(int(last["port",]), "/healthz")

    lines = lines_of(log)
    assert [line["event"] for line in lines] == [
        *("metrics_served", "run_started", "round_ended"),
        *("client_refused", "client_refused", "round_ended"),
        *("client_refused", "round_ended", "checkpoint_written", "run_finished"),
    ]
    assert {line["run"] for line in lines} == {folder.name}
    assert [(line["round"], line["client"], line["code"]) for line in lines if line["event"] == "client_refused"] == [
        (2, 1, "failed"),
        (2, 2, "lost"),
        (3, 1, "failed"),
    ]
    ended = [line for line in lines if line["event"] == "round_ended"]
    for line, row in zip(ended, rows, strict=True):
        assert (line["round"], line["participants"], line["dropped"]) == (
            row["round"],
            row["participants"],
            row["dropped"],
        )
        assert line["epsilon"] == row["epsilon_so_far"] and line.get("accuracy") == row["accuracy"]
        assert line["seconds"] == pytest.approx(row["seconds"], abs=1e-6) and line["level"] == "info"
    assert [line["refused"] for line in ended] == [0, 2, 1]
    # Nothing of a single client but its code: no loss or norm of the diagnostics, no text of an error.
    assert {key for line in ended for key in line} == {
        *("time", "level", "event", "run", "round", "participants", "refused", "replies_refused", "dropped"),
        *("epsilon", "accuracy", "seconds", "bytes_up", "bytes_down"),
    }
    assert rows[1]["errors"] and "PlannedFault" not in log.read_text()


def test_the_result_does_not_depend_on_who_looks_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    heard: list[Monitor] = []
    monkeypatch.setattr(Monitor, "heard", lambda self: heard.append(self))
    looked_on = run("operations.metrics_port=0", "operations.log_format=json", f"operations.log_file={tmp_path}/log")
    assert len(heard) >= 3 * (4 + 2)  # every reply is a sign of life
    assert result_of(looked_on) == result_of(run())
    assert compose(SMALL).digest() == compose([*SMALL, "operations.stop_grace=1"]).digest()


def test_how_a_run_ends_is_an_event(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    config = compose([*SMALL, "operations.log_format=json", f"operations.log_file={log}"])
    with watched(config, tmp_path / "a"):
        pass
    with pytest.raises(ValueError), watched(config, tmp_path / "b") as monitor:
        raise ValueError("no\nway")
    assert monitor.healthy() == (False, "failed: no\nway")
    with pytest.raises(KeyboardInterrupt), watched(config, tmp_path / "c"):
        raise KeyboardInterrupt
    shown = [(line["run"], line["event"], line["level"], line.get("reason")) for line in lines_of(log)]
    assert shown == [
        ("a", "run_finished", "info", None),
        ("b", "run_failed", "error", "no\nway"),
        ("c", "run_stopped", "warning", None),
    ]


def test_a_silent_run_is_unwell_only_while_rounds_go_on(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(monitor_module.time, "monotonic", lambda: now[0])
    config = compose([*SMALL, "engine.round_timeout=60"])
    monitor = Monitor(config, Path("here"), configure_logging(None))
    now[0] += 1000  # data may take longer to read than a round to come in
    assert monitor.healthy()[0] and not monitor.ready()[0]
    monitor.running(config, 7, 1.5)
    assert monitor.ready() == (True, "running, 7 of 3 rounds")
    now[0] += 60 + monitor_module.SLACK
    assert monitor.healthy()[0]
    now[0] += 1
    assert monitor.healthy() == monitor.ready() == (False, "round 8: nothing happened for 91 s")
    monitor.heard()
    assert monitor.ready()[0]
    monitor.finishing()
    now[0] += 1000
    assert monitor.healthy()[0] and not monitor.ready()[0]


def test_replies_that_cannot_be_used_have_a_counter_of_their_own():
    metrics = RunMetrics(5, target_epsilon=3.0)
    row = {"round": 4, "participants": 1, "dropped": 3, "bytes_up": 10, "bytes_down": 20, "seconds": 0.2}
    row |= {"accuracy": None, "loss": None}
    for _ in range(2):
        metrics.round_ended(row, {MALFORMED: 2, "stale": 1}, 5, math.inf)
    value = metrics.registry.get_sample_value
    assert value("fedpriv_replies_refused_total") == 4 and value("fedpriv_replies_ignored_total") == 10
    assert value("fedpriv_refusals_total", {"code": "stale"}) == 2
    assert value("fedpriv_refusals_total", {"code": MALFORMED}) is None
    assert value("fedpriv_epsilon_spent") == math.inf and value("fedpriv_epsilon_target") == 3.0


def test_codes_have_names_and_unknown_ones_a_single_one():
    assert refusal_name(Refusal.BUDGET_SPENT) == "budget_spent"
    assert {refusal_name(code) for code in (0, 7, -1, 10**9)} == {OTHER}  # a client cannot add series


# --- log lines -------------------------------------------------------------------------------------------


def test_json_lines_hold_whatever_they_are_given(tmp_path: Path):
    file = tmp_path / "log"
    with closing(configure_logging("json", file, run='a "b"\n')) as log:
        log.event("one", epsilon=math.inf, nothing=None, text="ü\n{}", codes={"3": "stale"})
    (line,) = lines_of(file)
    assert list(line) == ["time", "level", "event", "run", "epsilon", "text", "codes"]
    assert line["epsilon"] == "inf" and line["text"] == "ü\n{}" and line["run"] == 'a "b"\n'
    assert line["time"].endswith("Z") and len(line["time"]) == len("2026-01-31T12:00:00.000Z")


def test_plain_lines(tmp_path: Path):
    file = tmp_path / "log"
    with closing(configure_logging("plain", file, run="here")) as log:
        log.event("one", logging.WARNING, round=3, reason="two\nwords", epsilon=math.inf)
    (line,) = file.read_text().splitlines()
    assert line.split(" ", 1)[1] == 'warning one run=here round=3 reason="two\\nwords" epsilon=inf'


def test_levels_standard_error_and_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with closing(configure_logging("json", level="warning")) as log:
        log.event("unseen")
        log.event("seen", logging.ERROR)
    with closing(configure_logging(None)) as log:
        log.event("unseen", logging.ERROR)
    assert json.loads(capfd.readouterr().err)["event"] == "seen"


def test_records_of_other_loggers_and_a_rotated_file(tmp_path: Path):
    file = tmp_path / "log"
    with closing(configure_logging("json", file, run="node")) as log:
        log.adopt("fedpriv.tests")
        logging.getLogger("fedpriv.tests").warning("client %d", 3)
        file.rename(tmp_path / "log.1")
        log.event("after")
    logging.getLogger("fedpriv.tests").warning("not ours any more")
    (first,) = lines_of(tmp_path / "log.1")
    assert (first["event"], first["logger"], first["text"]) == ("log", "fedpriv.tests", "client 3")
    assert [line["event"] for line in lines_of(file)] == ["after"]


# --- HTTP and nodes --------------------------------------------------------------------------------------


def test_health_ready_and_what_is_not_there():
    state = {"healthy": (True, "well"), "ready": (False, "not yet")}
    registry = RunMetrics(1).registry
    with serve_metrics("127.0.0.1", 0, registry, lambda: state["healthy"], lambda: state["ready"]) as server:
        assert get(server.port, "/healthz") == (200, "well\n")
        assert get(server.port, "/readyz") == (503, "not yet\n")
        state["healthy"] = (False, "stuck")
        assert get(server.port, "/healthz") == (503, "stuck\n")
        del state["healthy"]
        assert get(server.port, "/healthz") == (503, "the check itself failed: KeyError\n")
        assert get(server.port, "/elsewhere")[0] == 404
        assert get(server.port, "/healthz", "POST")[0] == get(server.port, "/metrics", "POST")[0] == 405
        assert get(server.port, "/readyz", "HEAD") == (503, "")


def test_a_node_is_read_anew_for_every_scrape():
    now = [
        NodeSnapshot(
            releases=5,
            refusals={"budget_spent": 2},
            epsilon_spent={"run": 1.5, "life": math.inf},
            max_epsilon={"run": 8.0, "life": None},
            last_release=1.7e9,
            ledger_entries=6,
        )
    ]
    metrics = NodeMetrics(lambda: now[0])
    with serve_metrics("127.0.0.1", 0, metrics.registry, lambda: (True, "well")) as server:
        found = scrape(server.port)
        assert found["node_releases_total",] == 5 and found["node_refusals_total", "budget_spent"] == 2
        assert found["node_epsilon_spent", "run"] == 1.5 and found["node_epsilon_spent", "life"] == math.inf
        assert found["node_epsilon_max", "run"] == 8.0 and ("node_epsilon_max", "life") not in found
        assert found["node_last_release_timestamp_seconds",] == 1.7e9 and found["node_ledger_entries",] == 6
        assert found["node_readable",] == 1 and found["process_start_time_seconds",] > 0
        now[0] = NodeSnapshot()
        found = scrape(server.port)
        assert found["node_releases_total",] == 0 and ("node_last_release_timestamp_seconds",) not in found
        now.clear()  # the ledger cannot be read
        found = scrape(server.port)
        assert found["node_readable",] == 0 and ("node_releases_total",) not in found


@pytest.fixture
def taken() -> int:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_the_node_names_its_own_options(taken: int):
    registry, options = NodeMetrics(NodeSnapshot).registry, ("metrics.address", "metrics.port")
    with pytest.raises(OptionError, match=rf"^metrics\.port={taken}: Address already in use; allowed: a free port"):
        serve_metrics("127.0.0.1", taken, registry, lambda: (True, ""), options=options)
    with pytest.raises(OptionError, match=r"^metrics\.address=192\.0\.2\.1: is no address of this machine"):
        serve_metrics("192.0.2.1", 0, registry, lambda: (True, ""), options=options)


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("metrics_port={taken}", "Address already in use"),
        ("metrics_port=65536", "must be at most 65535"),
        ("metrics_port=http", "must be a whole number"),
        ("log_format=xml", "allowed: plain or json"),
        ("log_format=json operations.log_file=no/such/folder", "operations.log_file=no/such/folder: cannot be written"),
        ("log_file=no/such/folder", "operations.log_file=no/such/folder: cannot be written"),  # a file alone is plain
        ("stop_grace=-1", "must be at least 0"),
        ("metrics=1", "did you mean operations.metrics_port or operations.metrics_address?"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_begun(option: str, words: str, cli: Cli, tmp_path: Path, taken: int):
    outcome = cli(*SMALL, *f"operations.{option.format(taken=taken)}".split())
    assert outcome.code == 2 and words in outcome.err and outcome.err.count("\n") == 1
    assert not list(tmp_path.rglob("config.yaml")) and not list(tmp_path.rglob(".lock"))


def test_the_environment_of_the_host_sets_them_and_a_remote_caller_only_some(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDPRIV_METRICS_PORT", "9464")
    monkeypatch.setenv("FEDPRIV_METRICS_ADDRESS", "0.0.0.0")
    monkeypatch.setenv("FEDPRIV_LOG_FORMAT", "json")
    found = compose_remote(["operations.metrics_port=9465"]).operations
    assert (found.metrics_port, found.metrics_address, found.log_format) == (9465, "0.0.0.0", "json")
    for option in ("metrics_address=0.0.0.0", "log_file=/tmp/x"):
        with pytest.raises(OptionError, match="cannot be set from outside"):
            compose_remote([f"operations.{option}"])


def test_a_repeated_run_may_be_looked_on_otherwise(cli: Cli, tmp_path: Path, run: Run):
    folder = run()
    again = (f"rerun={folder}", "hydra.run.dir=again")
    outcome = cli(*again, "operations.stop_grace=-1")
    assert outcome.code == 2 and "operations.stop_grace=-1: must be at least 0" in outcome.err
    outcome = cli(*again, "operations.log_format=json", "operations.log_file=log")
    assert outcome.code == 0 and lines_of(tmp_path / "log")[-1]["event"] == "run_finished"
    assert result_of(tmp_path / "again") == result_of(folder) and ledger_of(folder)
