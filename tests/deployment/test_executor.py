"""A node's warm process: every message has a process of its own, and none of them outlives the node."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supercore.superexec.executor.types import LaunchResultStatus
from forked import Forks as Processes
from forked import forks
from processes import children, state, wait_until

from deploy.rehearsal import free_ports
from fedpriv.common.messages import Refusal
from fedpriv.deployment.bundles import Approved
from fedpriv.deployment.executor import Forks

#: A node without a SuperNode: what `client_processes` starts finds nobody to ask, and goes on asking.
NODE = """
import sys, time
from pathlib import Path
from fedpriv.deployment import executor
from fedpriv.deployment.bundles import Approved
with executor.client_processes(int(sys.argv[1]), Approved(Path("policy.yaml"))):
    print("started", flush=True)
    time.sleep(3600)
"""


def spec(kind: TaskType = TaskType.CLIENT_APP) -> ExecutionSpec:
    return ExecutionSpec(kind, "127.0.0.1:9", "token", True, None, False, None, False, 1)


@pytest.fixture
def node() -> Iterator[subprocess.Popen[str]]:
    """A process inside `client_processes`."""
    (port,) = free_ports(1)
    started = subprocess.Popen(
        [sys.executable, "-c", NODE, str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None and started.stdout.readline() == "started\n"
    yield started
    started.kill()
    started.communicate()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_killed_node_leaves_no_process_behind(node: subprocess.Popen[str], stopped: bool) -> None:
    """Nobody waits for the killed node meanwhile: its process id is still there, as in a container without an init."""
    (warm,) = wait_until(lambda: children(node.pid))
    if stopped:  # where a signal handler or a thread of its own would not come to act
        assert node.stderr is not None
        wait_until(lambda: "attempt failed" in node.stderr.readline())  # it asks for tasks
        os.kill(warm, signal.SIGSTOP)
    os.kill(node.pid, signal.SIGKILL)
    wait_until(lambda: state(node.pid) == "Z")
    wait_until(lambda: state(warm) in ("", "Z"))


@pytest.mark.timeout(300)
def test_a_node_ends_with_its_warm_process(node: subprocess.Popen[str]) -> None:
    (warm,) = wait_until(lambda: children(node.pid))
    os.kill(warm, signal.SIGKILL)
    wait_until(lambda: node.poll() is not None)
    assert node.returncode != 0


#: Two messages, one after the other, of a process that has imported an app and drawn random numbers: each prints what
#: it finds, or fails in the way that is asked for.
MESSAGES = """
import json, os, random, signal, sys
from pathlib import Path

import numpy as np
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supernode.runtime import run_clientapp as flower

import fedpriv.app
from fedpriv.deployment.bundles import Approved
from fedpriv.deployment.executor import Forks

random.seed(1)
np.random.seed(1)
signal.signal(signal.SIGTERM, lambda *given: None)


def answer(*given, **named):
    if error:
        raise eval(error)
    seen = {
        "pid": os.getpid(),
        "modules": [module for module in sys.modules if module.startswith(("fedpriv", "clients"))],
        "random": [random.random(), np.random.random()],
        "handler": str(signal.getsignal(signal.SIGTERM)),
    }
    print(json.dumps(seen), flush=True)


error = sys.argv[1] if len(sys.argv) > 1 else None
flower.run_clientapp = answer
for message in range(2):
    spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:9", "token", True, None, False, None, False, 1)
    Forks(Approved(Path("policy.yaml")), Path("apps")).launch(spec)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
assert sys.modules["fedpriv.app"] is fedpriv.app
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with forks(tmp_path_factory.mktemp("forked"), "flwr.supernode.runtime.run_clientapp") as started:
        yield started


def test_a_message_knows_nothing_of_the_one_before(forked: Processes, tmp_path: Path) -> None:
    """Neither modules of an app nor what they hold, nor random numbers, nor this process's signal handlers."""
    code, printed = forked.run(MESSAGES, folder=tmp_path)
    assert code == 0, printed
    one, first, two, second = map(json.loads, printed.splitlines())
    assert first == second == 0
    assert one["pid"] != two["pid"] and one["modules"] == two["modules"] == []
    assert not set(one["random"]) & set(two["random"])
    assert one["handler"] == str(signal.SIG_DFL)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("error", ["RuntimeError('of an app')", "SystemExit(1)", "KeyboardInterrupt()"])
def test_a_message_that_fails_ends_its_own_process_alone(error: str, forked: Processes, tmp_path: Path) -> None:
    code, printed = forked.run(MESSAGES, error, folder=tmp_path)
    assert code == 0 and [line for line in printed.splitlines() if line in "01"] == ["1", "1"], printed


#: A message whose type or whose machine is at fault, in Flower's own process for it, with the error that is sent.
FAULTS = """
import json, os, sys
from pathlib import Path
from types import SimpleNamespace

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.runtime import run_clientapp as flower

from fedpriv.app import client_app
from fedpriv.deployment import bundles
from fedpriv.deployment.executor import Forks

kind, fault = sys.argv[1:]
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
message = Message(RecordDict(), 2, kind)
message.metadata.__dict__["_message_id"] = "asked"
context = Context(1, 2, {"partition-id": 0, "policy": "/srv/secret", "data": "/srv/secret"}, RecordDict(), {})


def unpacked(content, folder):
    if fault:
        raise eval(fault)
    return Path("apps")


class Every(bundles.Approved):
    def __contains__(self, digest):
        return True


def load(*given):
    if fault == "load":
        raise flower.LoadClientAppError("/srv/secret")
    return client_app


run = SimpleNamespace(run_id=1, fab_id="a/b", fab_version="1")
flower.pull_task_input = lambda client: (message, context, run, SimpleNamespace(content=b"", hash_str=64 * "0"))
bundles.get_fused_config_from_fab = lambda content, run: {}
bundles.unpacked = unpacked if fault != "load" else lambda content, folder: Path("apps")
flower.get_load_client_app_fn = lambda **named: load
flower.HeartbeatSender = lambda *given: SimpleNamespace(start=lambda: None, stop=lambda: None, is_running=True)
flower.push_task_output = lambda **named: None
flower.push_message = lambda client, reply, context: print(
    "sent", json.dumps([reply.error.code, reply.error.reason]), flush=True
)
spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:9", "token", True, None, False, None, False, 1)
Forks(Every(Path("/srv/secret")), Path("apps")).launch(spec)
os.wait()
"""


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *((kind, "") for kind in ("train", "train.other", "evaluate", "query.x", "system")),
        ("train", "OSError(28, 'No space left on device', '/srv/secret')"),
        ("train", "load"),
    ],
)
def test_an_error_leaves_as_a_code_alone(kind: str, fault: str, forked: Processes, tmp_path: Path) -> None:
    """Also those that Flower catches, around the app: of message types that nobody knows, or a full disk."""
    _, printed = forked.run(FAULTS, kind, fault, folder=tmp_path)
    (sent,) = [json.loads(line[5:]) for line in printed.splitlines() if line.startswith("sent ")]
    assert sent[1] == Refusal(sent[0]).name.lower(), printed


def test_flower_still_sends_by_the_function_that_is_wrapped() -> None:
    from flwr.supernode.runtime import run_clientapp as flower

    assert "push_message(client, reply_message, context)" in inspect.getsource(flower.run_clientapp)


def test_a_node_runs_client_apps_alone() -> None:
    before = children(os.getpid())
    forks = Forks(Approved(Path("policy.yaml")), Path("apps"))
    assert forks.get_eligible_capacity(set(TaskType)) == ({TaskType.CLIENT_APP}, set())
    for kind in set(TaskType) - {TaskType.CLIENT_APP}:
        assert forks.launch(spec(kind)).status == LaunchResultStatus.FAILED
    assert children(os.getpid()) == before


@pytest.mark.parametrize("alive", [True, False])
def test_a_process_whose_parent_is_gone_does_not_begin(alive: bool) -> None:
    """Between a start and the first line of a program its parent may have ended."""
    parent = os.getpid() if alive else 1
    code = f"from fedpriv.deployment.executor import end_with; end_with({parent}); print('begun')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout == "begun\n") == alive
