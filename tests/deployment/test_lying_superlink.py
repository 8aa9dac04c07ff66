"""A SuperLink that forges any field of what it sends: a node runs approved bytes or refuses, and says so."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import ssl
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from deployed import Machines
from flwr.app import Error
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState
from flwr.supernode.runtime import run_clientapp
from forked import forks
from lying_superlink import RUN, Node, Server, World, lies, no_heartbeats, outcome
from processes import wait_until
from rotation import together

from deploy.rehearsal import free_ports
from fedpriv.commands.credentials import make_credentials
from fedpriv.common.messages import Refusal
from fedpriv.deployment import bundles
from fedpriv.deployment.bundles import Approved, BundleRefused, bundle_files, guard_bundles, unpacked

ROOT = Path(__file__).resolve().parents[2]
#: Where Flower's requests to a SuperLink are found by their names.
ROOMS = (fleet_pb2, message_pb2, run_pb2, fab_pb2, heartbeat_pb2)
SUPERNODE = """
import sys
from pathlib import Path
from fedpriv.deployment.bundles import guard_bundles
from lying_superlink import at_the_node
at_the_node(Path(sys.argv[1]), guard_bundles)
"""
PROCESS = """
import sys
from pathlib import Path
from fedpriv.deployment.executor import Forks
from lying_superlink import World, in_the_process
folder, unpacked = Path(sys.argv[1]), Path(sys.argv[1]) / "unpacked"
unpacked.mkdir(mode=0o700)
in_the_process(folder, Forks(World(folder).only, unpacked), 1)
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, dict[str, dict[str, Any]], set[str]]:
    """The machine; what came of every lie, by its name; and the files that are new."""
    folder = tmp_path_factory.mktemp("lies")
    world = World(folder / "machine")
    before = {str(path) for path in folder.rglob("*")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_HOME", str(world.home))
        tests = (Path(__file__).resolve().parents[1],)
        with forks(tmp_path_factory.mktemp("forks"), "lying_superlink", "numpy", path=tests) as processes:
            for script in (SUPERNODE, PROCESS):
                code, printed = processes.run(script, str(world.folder), folder=tmp_path_factory.mktemp("at"))
                assert code == 0, printed[-3000:]
    rows = {row["lie"]: row for row in json.loads((world.folder / "rows.json").read_text())}
    return world, rows, {str(path.relative_to(world.folder)) for path in folder.rglob("*") if str(path) not in before}


@pytest.mark.timeout(900)
def test_a_node_runs_approved_bytes_or_refuses_with_a_line(played: Any) -> None:
    world, rows, _ = played
    assert set(rows) > {name for name, _ in lies(world)} and len(rows) > 400
    for name, row in rows.items():
        found = outcome(row)
        if found in ("refused: bundle", "refused: failed", "passed over"):
            assert row["notes"] or name == "no message", f"{name}: the operator learns nothing"
        elif found == "ran nothing: task failed":  # the node replies with a code: see below
            assert name.startswith("Inside.metadata.message_type"), name
        else:
            ran = "second" if name in ("second", "turn 1", "turn 3") else "approved"
            assert found == "accepted" or (found.startswith(f"ran {ran}") and found.endswith(": answer")), (name, found)
            assert len(row.get("booked", "1")) == 1, f"{name}: more is booked than was answered"


def test_no_name_from_the_server_leads_to_code(played: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.common.config import get_project_dir

    world, rows, _ = played
    monkeypatch.setenv("FLWR_HOME", str(world.home))
    theirs = get_project_dir("maker/approved", world.upwards, world.digest)
    assert "evil" in (theirs / "client.py").read_text(), "where Flower by itself would load from"
    for field in ("Run.fab_id", "Run.fab_version", "Run.fab_hash", "Run.run_id", "Fab.hash_str", "Fab.content"):
        of = [outcome(row) for name, row in rows.items() if name.startswith(f"{field} ")]
        assert set(of) == {"refused: bundle"} and len(of) > 2, field
    assert {outcome(row) for name, row in rows.items() if "another" in name} == {"refused: bundle", "passed over"}


def test_two_bundles_in_one_series_each_run_under_their_own_options(played: Any) -> None:
    _, rows, _ = played
    turns = [rows[f"turn {number}"]["booked"] for number in range(4)]
    assert turns == [["approved run 1"], ["second run 2"], ["approved run 1"], ["second run 2"]]


def test_a_node_writes_into_its_own_folders_alone(played: Any) -> None:
    world, _, new = played
    own = ("unpacked", "data/booked", "node.jsonl", "rows.json", "pushed", "flwr/source")  # the last is Flower's own
    assert [name for name in new if not name.startswith(own)] == []
    (approved, second) = sorted(path.name for path in (world.folder / "unpacked").iterdir())
    assert {approved, second} == {world.digest, world.digests["second"]}, "once a process, named by the whole digest"
    assert not [path for path in new if path.endswith(".pyc")], "code that no digest covers"


# --- step by step ---------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_approval_can_be_taken_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has begun goes on only as long as its app is approved."""
    monkeypatch.setattr(flower, "_pull_and_store_message", flower._pull_and_store_message)  # put back afterwards
    monkeypatch.setattr(InMemoryNodeState, "finish_task", InMemoryNodeState.finish_task)
    approved, notes = {world.digest}, list[tuple[Refusal, str]]()
    guard_bundles(approved, lambda code, words: notes.append((code, words)))
    node = Node(world)
    with no_heartbeats():
        assert node.play(world.honest())["answers"] and not notes
        approved.clear()
        assert outcome(node.play(world.honest())) == "refused: bundle"
    assert [code for code, _ in notes] == [Refusal.BUNDLE] and "no longer" in notes[0][1]


def test_a_message_that_its_process_cannot_read_is_answered_with_a_code(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "_pull_and_store_message", flower._pull_and_store_message)
    monkeypatch.setattr(InMemoryNodeState, "finish_task", InMemoryNodeState.finish_task)
    notes: list[tuple[Refusal, str]] = []
    guard_bundles({world.digest}, lambda code, words: notes.append((code, words)))
    node = Node(world)
    with no_heartbeats():
        node.play(world.honest())
    (task,) = node.state.get_tasks()
    node.state.activate_task(task.task_id)
    assert not node.state.get_messages_legacy(is_reply=True)
    assert node.state.finish_task(task.task_id, SubStatus.FAILED, "it was killed")
    (reply,) = node.state.get_messages_legacy(is_reply=True)
    assert reply.error == Error(int(Refusal.FAILED), "failed") and reply.error.code != ErrorCode.UNKNOWN
    assert notes == [(Refusal.FAILED, "it was killed")]


def test_the_process_that_answers_asks_the_policy_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program on its port may hand it anything. The guard's loader gets the same folder."""
    for name in ("pull_task_input", "install_from_fab", "get_project_dir", "get_load_client_app_fn"):
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    apps, asked = world.folder / "apps", list[tuple[Path, str]]()
    apps.mkdir()

    def guarded(app: Path, digest: str) -> Any:
        asked.append((app, digest))
        return lambda message, context: message

    told = SimpleNamespace(node_config={"policy": "/tmp/theirs.yaml"}, run_id=RUN)
    run_clientapp.pull_task_input = lambda client: (None, told, None, None)  # type: ignore[assignment]
    bundles.answer_with_approved(world.only, apps, (), guarded)
    with pytest.raises(BundleRefused, match=f"'/tmp/theirs.yaml', and this node's is {world.only.policy}"):
        run_clientapp.pull_task_input(object())  # type: ignore[arg-type]
    with pytest.raises(BundleRefused, match=world.digests["evil"]):
        run_clientapp.install_from_fab(world.evil, skip_prompt=True)
    assert not list(apps.iterdir())
    run_clientapp.install_from_fab(world.approved, skip_prompt=True)
    assert run_clientapp.get_project_dir("../..", world.upwards, "") == apps / world.digest
    run_clientapp.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)(
        "maker/evil", world.upwards, world.digests["evil"]
    )
    assert asked == [(apps / world.digest, world.digest)]


def test_an_app_is_loaded_from_its_own_folder_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from a module of its name that the process has imported meanwhile, as it read the policy."""
    for name in ("pull_task_input", "install_from_fab", "get_project_dir"):
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    monkeypatch.setitem(sys.modules, "of_the_app.part", sys)
    asked: list[Any] = []
    monkeypatch.setattr(run_clientapp, "get_load_client_app_fn", lambda **given: lambda *names: asked.append(given))
    bundles.answer_with_approved(world.only, world.data, ("of_the_app",), None)
    run_clientapp.install_from_fab(world.approved, skip_prompt=True)
    run_clientapp.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)("maker/approved", "1", "")
    assert asked == [{"default_app_ref": "", "app_path": str(world.data / world.digest), "multi_app": True}]
    assert "of_the_app.part" not in sys.modules and sys.dont_write_bytecode


def test_unpacked_files_are_compared_before_every_import(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = os.umask(0)
    try:
        app = unpacked(world.approved, world.data)
    finally:
        os.umask(before)
    assert stat.S_IMODE(app.stat().st_mode) == 0o700 and app.name == hashlib.sha256(world.approved).hexdigest()
    honest, place = (app / "client.py").read_bytes(), app.stat().st_ino
    assert unpacked(world.approved, world.data).stat().st_ino == place and not caplog.records

    def link() -> None:
        (app / "client.py").unlink()
        (app / "client.py").symlink_to(world.folder / "made" / "approved" / "client.py")

    def elsewhere() -> None:
        (app / "flwr").symlink_to(world.folder / "made" / "evil")

    changes = (
        lambda: (app / "client.py").write_bytes(honest[:-1] + b"#"),
        lambda: (app / "client.py").unlink(),
        lambda: (app / "flwr.py").write_text("evil"),
        link,
        elsewhere,
    )
    for change in changes:
        change()
        caplog.clear()
        assert unpacked(world.approved, world.data) == app
        assert {path: (app / path).read_bytes() for path in bundle_files(world.approved)} == bundle_files(
            world.approved
        )
        assert not (app / "flwr.py").exists() and not (app / "flwr").exists()
        assert not (app / "client.py").is_symlink() and len(caplog.records) == 1


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "a/../../evil.py"])
def test_a_bundle_stays_in_its_folder(name: str, world: World) -> None:
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        bundle.writestr(name, "evil")
    with pytest.raises(BundleRefused, match="outside its own folder"):
        unpacked(content.getvalue(), world.data)
    assert not list(world.data.iterdir())


def test_a_small_bundle_does_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("a.py", b"0" * 10**6)
    assert bundle_files(content.getvalue()) == {PurePosixPath("a.py"): b"0" * 10**6}
    assert bundles.MOST_BYTES == 256 * 2**20
    monkeypatch.setattr(bundles, "MOST_BYTES", 10**6 - 1)
    with pytest.raises(BundleRefused, match="at most 999999 are unpacked"):
        bundle_files(content.getvalue())


def test_what_is_approved_is_read_at_every_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = SimpleNamespace(bundles=("a",), guard=None)
    monkeypatch.setattr(bundles, "read_policy", lambda path: policy)
    plain, every, one = (Approved(tmp_path, guard) for guard in ("", "any", "b"))
    assert "a" in plain and "a" not in every and "b" not in one
    policy.guard = SimpleNamespace(apps=("a", "b"))
    assert "b" not in plain and "b" in every and "b" in one and "a" not in one
    policy.guard.apps = "any"
    assert "c" in every and "b" in one and "c" not in one


def test_flower_still_calls_the_functions_that_are_hooked() -> None:
    """A contract with flwr 1.41: by name in their modules, and the bundle comes from ``get_fab`` alone."""
    source = inspect.getsource(flower.start_client_internal)
    assert "_pull_and_store_message(\n" in source and "get_fab=get_fab" in source and "receive=receive" in source
    body = inspect.getsource(flower._pull_and_store_message)
    assert body.count("get_fab(") == 1 and body.index("get_fab(") < body.index("state.store_fab(")
    assert body.count("get_run(run_id)") == 2  # the state's, then the SuperLink's
    process = inspect.getsource(run_clientapp.run_clientapp)
    for call in ("pull_task_input(client)", "install_from_fab(fab.content", "get_load_client_app_fn("):
        assert process.count(call) == 1, call


# --- a real node, whose certificate, key and process are as in a deployment ------------------------------------------


class LyingServer(ThreadingHTTPServer):
    """A SuperLink on loopback that tells one lie after the other, the next when the node asks again."""

    def __init__(self, world: World, forges: Sequence[Any], keys: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server" / "server.crt", keys / "server" / "server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.world, self.forges, self.replies = world, list(forges), list[str]()
        self.told, self.over = Server(world.honest()), threading.Event()
        self.told.asked.append("pull-messages")
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def next_lie(self) -> None:
        if not self.forges:
            return self.over.set()
        given = self.world.honest()
        number = RUN + len(self.forges)
        given["Run"].run_id = given["Message"].metadata.run_id = given["Inside"].metadata.run_id = number
        self.forges.pop(0)(given)
        self.told = Server(given)

    def answer(self, name: str, body: bytes) -> bytes:
        words = "".join(map(str.title, name.split("-")))
        room = next(room for room in ROOMS if hasattr(room, f"{words}Response"))
        request, form = getattr(room, f"{words}Request").FromString(body), getattr(room, f"{words}Response")
        if name == "send-node-heartbeat":
            return bytes(form(success=True).SerializeToString())
        if name == "pull-messages" and name in self.told.asked:
            self.next_lie()
        if name == "push-messages":
            (reply,) = request.messages_list
            self.replies.append(reply.error.reason if reply.HasField("error") else "answer")
        return bytes(self.told(None, path=name, request=request, response_type=form).SerializeToString())


class Handler(BaseHTTPRequestHandler):
    server: LyingServer

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.answer(self.server.answer(self.path.rpartition("/")[2], body))

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *given: Any) -> None:
        pass


@pytest.mark.timeout(900)
@pytest.mark.rotates(3, together(1))
def test_a_real_node_stands_through_lies(tmp_path: Path) -> None:
    world, machine = World(tmp_path / "machine"), Machines(tmp_path / "node", 1)
    policy = yaml.safe_load(machine.policy(0).read_text())
    machine.policy(0).write_text(yaml.safe_dump(policy | {"bundles": [world.digest]}))
    make_credentials(tmp_path / "keys", ["localhost"], 1, 1)
    every = dict(lies(world))
    names = ("nothing", "Run.fab_version 0", "another bundle", "Message.metadata.message_id 0")
    names += ("Inside.metadata.message_type 0", "Run.primary_task_type 11", "nothing")
    server = LyingServer(world, [every[name] for name in names], tmp_path / "keys")
    (port,) = free_ports(1)
    options = (f"policy={machine.policy(0)}", f"data={machine.data(0)}", f"credentials={tmp_path / 'keys/node-0'}")
    where = (f"superlink=localhost:{server.server_address[1]}", "client=0", f"port={port}")
    environment = os.environ | {"FLWR_HOME": str(world.home), "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen(
            [sys.executable, "-m", "fedpriv.node", "run", *options, *where], env=environment, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: server.over.is_set() or node.poll() is not None)
        said = (tmp_path / "log").read_text()
        assert node.poll() is None, said
        assert server.replies == ["answer", "bundle", "bundle", "failed", "bundle", "answer"], said
        assert (machine.data(0) / "booked").read_text().splitlines() == ["approved", "approved"]
        assert stat.S_IMODE((machine.data(0) / "booked").stat().st_mode) == 0o600
        assert said.count("refused, bundle: ") == 3 and said.count("refused, failed: what the SuperLink sent") == 1
        assert [path.name for path in (world.home / "apps").iterdir()] == ["maker.approved.1.0.0"], "nothing is there"
    finally:
        node.terminate()
        node.wait()
        server.shutdown()
        server.server_close()
