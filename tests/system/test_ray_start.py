"""How Ray starts, also where that is hard, and what clusters of tests leave behind: nothing, however they end."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray_nodes
from conftest import Outcome, Run, page_of, result_of
from processes import state, wait_until
from ray._common.utils import get_ray_address_file
from rotation import together

from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.places import ROOT, import_path
from fedpriv.config.compose import compose, read_config
from fedpriv.engines import ray_pool
from fedpriv.engines.keeping import end_kept

TESTS = Path(__file__).resolve().parents[1]

SLOW = "The current node timed out during startup. This could happen because the raylet failed to startup."

#: A cluster, and somebody who waits in it for the end.
WAITS = """
import ray_nodes, time
with ray_nodes.cluster(cpus=1) as (address, head, folder):
    print(head.pid, folder, flush=True)
    time.sleep(600)
"""

#: What Flower's own commands do first: Ray is asked for without an address. That they run then is in test_engines.
RUNTIME = """
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
print("nodes", len(ray.nodes()), flush=True)
"""


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In the place of the machine's folder for temporary files. Short: Ray's sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="common-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def left() -> bool:
    """Whether there is what a ``ray.init()`` without an address reads, as in Flower's own commands."""
    return Path(get_ray_address_file(None)).exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.rotates(5, together(4))
def test_a_cluster_leaves_nothing_behind_and_flowers_runtime_starts_after_it(common: Path) -> None:
    with ray_nodes.cluster(cpus=1) as (address, head, folder):
        file = folder / "ray" / "ray_current_cluster"  # the last thing that `ray start` does
        while not (file.exists() and file.read_text()):
            assert head.poll() is None and not left()
            time.sleep(0.1)
        assert file.read_text().rpartition(":")[2] == address.rpartition(":")[2] and not left()
    assert not left() and not folder.exists() and head.poll() is not None
    environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, "-c", RUNTIME]
    done = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "nodes 1" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_cluster_ends_with_whoever_started_it(signum: signal.Signals, common: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", WAITS], cwd=TESTS, stdout=subprocess.PIPE, text=True)
    try:
        assert starter.stdout is not None
        pid, folder = starter.stdout.readline().split()
        nodes = [*ray_nodes.descendants(int(pid)), int(pid)]
        assert len(nodes) > 2 and Path(folder).is_dir()
    finally:
        starter.send_signal(signum)
        starter.wait()
    wait_until(lambda: all(state(node) in ("", "Z") for node in nodes) and not Path(folder).exists())
    assert not left()


# --- a start that fails ----------------------------------------------------------------------------------


class FakeRay:
    """In the place of `ray.init`, which fails ``failures`` times."""

    def __init__(self, failures: int, error: type[Exception] = Exception) -> None:
        self.failures, self.error = failures, error
        self.asked: list[dict[str, Any]] = []
        self.paths: list[str | None] = []
        self.stopped, self.folder = 0, Path("nowhere")

    def init(self, **options: Any) -> Any:
        self.asked.append(options)
        self.paths.append(os.environ.get("PYTHONPATH"))
        if len(self.asked) <= self.failures:
            raise self.error(f"{SLOW}\nSee the logs.")
        return SimpleNamespace(address_info={"session_dir": str(self.folder)})

    def shutdown(self) -> None:
        self.stopped += 1

    def put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
        end_kept()  # the real one: a pool that cannot see its Ray any more lets go of it, and that ends this process
        monkeypatch.setattr(ray, "init", self.init)
        monkeypatch.setattr(ray, "shutdown", self.shutdown)
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        return self


def started(**engine: Any) -> None:
    ray_pool._start_ray(compose(["engine=ray"]).engine.model_copy(update=engine))


def test_the_folder_of_a_runs_own_ray_is_its_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of logs and sockets; Ray makes it for everybody (0777)."""
    fake = FakeRay(0).put_in_place(monkeypatch)
    for number, (start, mode) in enumerate([(started, 0o700), (ray_of_flower, 0o700), (joined, 0o777)]):
        fake.folder = tmp_path / str(number)
        fake.folder.mkdir()
        fake.folder.chmod(0o777)
        start()
        assert stat.S_IMODE(fake.folder.stat().st_mode) == mode, start


def joined() -> None:
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        started(address=f"127.0.0.1:{cluster.getsockname()[1]}")


def ray_of_flower() -> None:
    with ray_pool.path_as_given():
        ray.init()


def test_a_start_that_timed_out_is_tried_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay(1).put_in_place(monkeypatch)
    started()
    assert len(fake.asked) == 2 and fake.asked[0] == fake.asked[1] and fake.stopped == 1
    assert fake.asked[0]["address"] == "local"  # whatever cluster was last started here, and is gone perhaps


@pytest.mark.parametrize("error", [Exception, ConnectionError])
def test_a_second_failure_is_one_line_that_names_the_option(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRay(3, error).put_in_place(monkeypatch)
    with pytest.raises(RunFailed) as caught:
        started()
    assert str(caught.value) == (
        f"engine=ray: Ray did not start, tried 2 times ({SLOW}); engine=inprocess works without Ray"
    )
    assert len(fake.asked) == fake.stopped == 2


def test_a_cluster_that_refuses_is_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay(3, ConnectionError).put_in_place(monkeypatch)
    monkeypatch.setattr(ray_pool, "_refuse_dead_address", lambda address: None)
    with pytest.raises(OptionError, match=r"engine\.address=127\.0\.0\.1:9: no Ray cluster answers"):
        started(address="127.0.0.1:9")
    assert [options["address"] for options in fake.asked] == ["127.0.0.1:9"] and "num_cpus" not in fake.asked[0]


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_workers_inherit_the_path_and_need_no_environment_made_for_them(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which only a cluster's agents can make, for machines that inherit nothing."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONPATH", before)
    fake = FakeRay(1).put_in_place(monkeypatch)
    monkeypatch.setattr(ray_pool, "_refuse_dead_address", lambda address: None)
    started()
    assert all("runtime_env" not in options for options in fake.asked)
    assert fake.paths == [os.pathsep.join(import_path())] * 2 and str(ROOT) in import_path()
    started(address="127.0.0.1:9")
    made = fake.asked[-1]["runtime_env"]["env_vars"]["PYTHONPATH"]
    assert made == os.pathsep.join(import_path()) and fake.paths[-1] == os.environ.get("PYTHONPATH") == before


def test_the_command_line_says_that_ray_did_not_start(
    cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeRay(2).put_in_place(monkeypatch)
    done = cli("engine=ray", "num_rounds=1", "num_clients=2", "clients_per_round=2", "hydra.run.dir=here")
    assert (
        done.code == 1 and done.err.startswith("fedpriv: engine=ray: Ray did not start") and "\n" not in done.err[:-1]
    )


@pytest.fixture
def auto_wants_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """``engine=auto`` chooses ray, which does not start."""
    fake = FakeRay(10).put_in_place(monkeypatch)
    found = {"auto": "ray"}
    monkeypatch.setattr(
        "fedpriv.runs.preparation.resolve_engine", lambda c, *_: found.get(c.engine.name, c.engine.name)
    )
    return fake


def test_auto_goes_on_without_ray_and_says_so(run: Run, auto_wants_ray: FakeRay) -> None:
    folder = run("engine=auto")
    assert len(auto_wants_ray.asked) == 2 and read_config(folder).engine.name == "inprocess"
    found, here = result_of(folder), result_of(run())
    note = found["summary"].pop("note")
    assert note.startswith("engine=auto took inprocess (engine=ray: Ray did not start, tried 2 times")
    assert here["summary"].pop("note") is None and found == here
    assert "engine=auto took inprocess" in page_of(folder)


def test_ray_that_was_asked_for_is_not_replaced(run: Run, auto_wants_ray: FakeRay, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="engine=ray: Ray did not start"):
        run("engine=ray", folder=tmp_path / "run")
    assert read_config(tmp_path / "run").engine.name == "ray"


def test_a_resumed_run_keeps_the_remark(resumed: Callable[..., Path], run: Run, auto_wants_ray: FakeRay) -> None:
    folder = resumed("engine=auto", "checkpoint.every=1", after=2)
    assert result_of(folder) == result_of(run("engine=auto", "checkpoint.every=1"))
    assert len(auto_wants_ray.asked) == 4  # resuming starts what config.yaml names


def test_flowers_runtime_gets_a_ray_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.engines.flower import run_on_flower

    asked: list[Any] = []
    runtime = SimpleNamespace(run_simulation=lambda *_, backend_config: asked.append(backend_config))
    monkeypatch.setitem(sys.modules, "flwr.simulation", runtime)
    run_on_flower(compose(["engine=flower", "engine.device=cpu"]), print)
    assert asked[0]["init_args"]["address"] == "local"


@pytest.mark.slow
@pytest.mark.rotates(5, together(4))
def test_ray_starts_where_a_dead_clusters_address_was_left(common: Path, run: Run) -> None:
    ray.shutdown()
    (common / "ray").mkdir()
    (common / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{ray_nodes.free_port()}")
    try:
        folder = run("engine=ray", "engine.workers=1", "num_rounds=1")
    finally:
        ray.shutdown()
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
