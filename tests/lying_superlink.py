"""A SuperLink that forges what it sends to a node: one field of Run, Fab, Message and their neighbours at a time.

`lies` walks through the fields of Flower's own protocol buffers, so that a field of a later version is forged too.
`at_the_node` plays each lie to the SuperNode's own loop, `in_the_process` gives what it accepted to the process that
answers messages. Each has a process of its own: the first has threads, and the second forks.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto import message_pb2, runtime_pb2
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeResponse
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.run_pb2 import Run
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import (
    add_header_to_object_body,
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection
from flwr.supernode import start_client_internal as flower
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.servicer.runtime import runtime_handlers

from fedpriv.deployment.bundles import Approved

APP = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    with open(context.node_config["data"] + "/booked", "a") as file:
        file.write(f"NAME{context.run_config['overrides']}\\n")
    return Message(RecordDict({"ran": ConfigRecord({"app": "NAME"})}), reply_to=message)
"""
PROJECT = """\
[project]
name = "NAME"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "maker"
[tool.flwr.app.components]
serverapp = "client:app"
clientapp = "client:app"
[tool.flwr.app.config]
overrides = ""
"""
NODE, RUN = 5, 77


@dataclass(frozen=True)
class Only(Approved):
    """Digests that no file of a policy names."""

    digests: tuple[str, ...] = ()

    def __contains__(self, digest: object) -> bool:
        return digest in self.digests


Given = dict[str, Any]
Forge = Callable[[Given], None]


def make_bundle(folder: Path, name: str) -> bytes:
    """What `flwr build` makes of an app that books, and answers with, its name."""
    from flwr.cli.build import build_fab_from_disk

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "client.py").write_text(APP.replace("NAME", name))
    (folder / "pyproject.toml").write_text(PROJECT.replace("NAME", name))
    return build_fab_from_disk(folder)


class World:
    """A machine whose policy approves two bundles, and an attacker's, which lies unpacked where a path upwards leads.

    As Flower found it: below a folder of its apps, and under a name that ends in the digest's first eight digits.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.home = folder, folder / "data", folder / "flwr"
        self.data.mkdir(parents=True, exist_ok=True)
        names = ("approved", "second", "evil")
        self.approved, self.second, self.evil = (make_bundle(folder / "made" / name, name) for name in names)
        contents = (self.approved, self.second, self.evil)
        self.digests = dict(zip(names, (hashlib.sha256(content).hexdigest() for content in contents), strict=True))
        self.digest = self.digests["approved"]
        self.only = Only(folder / "policy.yaml", "", (self.digest, self.digests["second"]))
        make_bundle(folder / f"evil.{self.digest[:8]}", "evil")
        self.upwards = "1.0.0/" + "../" * 20 + str(folder)[1:] + "/evil"
        (self.home / "apps" / "maker.approved.1.0.0").mkdir(parents=True, exist_ok=True)

    def honest(self) -> Given:
        """What a SuperLink says of a message of the approved bundle, before any lie."""
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 2
        message = Message(RecordDict(), NODE, "train", group_id="1")
        inside, outside = message_to_proto(message), message_to_proto(message)
        outside.metadata.message_id = message.object_id
        run = Run(run_id=RUN, fab_id="maker/approved", fab_version="1.0.0", fab_hash=self.digest, series_id=3)
        run.federation, run.status.status, run.primary_task_type = "@none/default", "running", TaskType.SERVER_APP
        forged = {"Run": run, "Fab": Fab(hash_str=self.digest, content=self.approved), "Message": outside}
        # Inside: the same in the message's objects, which the process that answers reads.
        forged |= {"Inside": inside, "Activate": ActivateNodeResponse(node_id=NODE)}
        return forged | {"message": message, "Trees": None, "Objects": {}, "Messages": None}

    def values(self, field: Any, honest: Any) -> list[Any]:
        """Hostile values in the place of an honest one."""
        if field.message_type is not None:  # a map, or a list of records
            return [{key: self.upwards} for key in ("overrides", "other", "", "x" * 10**5)]
        if isinstance(honest, float):
            return [math.nan, math.inf, -1.0, 1e308]
        if isinstance(honest, int):
            return [0, 1, 2**63 - 1]
        if isinstance(honest, bytes):
            return [b"", self.evil, self.second, honest[:-1], honest + b"\0", b"PK\5\6" + bytes(18)]
        alike = [honest.replace("a", "\u0430").replace("e", "\u0435"), f"{honest}\n", f"{honest}\0", honest.upper()]
        others = [*self.digests.values(), "maker/second", TaskType.AGENT_APP]
        paths = [self.upwards, "..", str(self.folder / "evil")]
        return [value for value in (*paths, *alike, *others, "", "x" * 10**6) if value != honest]


def fields(message: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field that is no message itself, deep: where it is, and its descriptor."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and not field.is_repeated:
            yield from fields(getattr(message, field.name), (*path, field.name))
        else:
            yield (*path, field.name), field


def lies(world: World) -> Iterator[tuple[str, Forge]]:
    """Each with a name, PROTOBUF.FIELD NUMBER, and what it does to `World.honest`."""
    for kind in ("Run", "Fab", "Message", "Inside", "Activate"):
        message = world.honest()[kind]
        for path, field in fields(message):
            place = message
            for step in path:
                place = getattr(place, step)
            for number, value in enumerate(world.values(field, place)):
                yield f"{kind}.{'.'.join(path)} {number}", _forge(kind, path, value)
    yield from together(world)


def _forge(kind: str, path: tuple[str, ...], value: Any) -> Forge:
    def forge(given: Given) -> None:
        place = given[kind]
        for step in path[:-1]:
            place = getattr(place, step)
        if not isinstance(value, dict):
            return setattr(place, path[-1], value)
        ((key, text),) = value.items()
        entries = getattr(place, path[-1])
        if hasattr(entries, "add"):
            entries.add().key = key
        elif path[-1] == "override_config":
            entries[key].string = text
        else:
            entries[key] = text

    return forge


def together(world: World) -> Iterator[tuple[str, Forge]]:
    """Lies in several places at once."""

    def bundle(content: bytes, name: str, digest: str) -> Forge:
        def forge(given: Given) -> None:
            given["Run"].fab_id, given["Run"].fab_hash = f"maker/{name}", digest
            given["Fab"].hash_str, given["Fab"].content = digest, content

        return forge

    digests = world.digests
    yield "nothing", lambda given: None
    yield "second", bundle(world.second, "second", digests["second"])
    yield "another bundle", bundle(world.evil, "evil", digests["evil"])
    yield "another bundle, the approved digest", bundle(world.evil, "approved", world.digest)
    yield "the digest in capitals", bundle(world.approved, "approved", world.digest.upper())
    yield "the second's bytes, the first's name", bundle(world.second, "approved", digests["second"])
    yield "the right bytes, another's name", bundle(world.approved, "second", world.digest)
    yield "the right bytes, another's digest", bundle(world.approved, "second", digests["second"])
    yield "no message", lambda given: given.update(Messages=[], Trees=[])
    yield "two messages", lambda given: given.update(Messages=[given["Message"]] * 2)
    yield "no object", lambda given: given.update(Trees=[])
    yield "another object", lambda given: given.update(Trees=[ObjectTree(object_id="0" * 64)])
    yield "no hash", lambda given: given.update(Trees=[ObjectTree(object_id="../evil")])
    yield "no content", lambda given: given["Message"].ClearField("content")


class Server:
    """A SuperLink's answers to one node about one message, in the place of the connection."""

    def __init__(self, given: Given) -> None:
        message, inside, self.outside = given["message"], message_pb2.Message(), given["Message"]
        inside.CopyFrom(given["Inside"])  # as Flower's `Message.deflate`, also of what its constructor refuses
        inside.metadata.message_id = ""
        inside.ClearField("content")
        body = add_header_to_object_body(inside.SerializeToString(deterministic=True), message)
        tree = ObjectTree(object_id=get_object_id(body), children=get_object_tree(message).children)
        self.objects = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
        self.objects |= {tree.object_id: body}
        if self.outside.metadata.message_id == message.object_id:
            self.outside.metadata.message_id = tree.object_id
        self.trees = [tree] if given["Trees"] is None else given["Trees"]
        self.messages = [self.outside] if given["Messages"] is None else given["Messages"]
        self.given, self.asked = given, list[str]()

    def __call__(self, client: Any, *, path: str, request: Any, response_type: Any, **more: Any) -> Any:
        answer, name = response_type(), path.rpartition("/")[2]
        if name == "activate-node":
            answer.CopyFrom(self.given["Activate"])
        elif name == "pull-messages" and name not in self.asked:
            answer.messages_list.extend(self.messages)
            answer.message_object_trees.extend(self.trees)
        elif name == "get-run":
            answer.run.CopyFrom(self.given["Run"])
        elif name == "get-fab":
            answer.fab.CopyFrom(self.given["Fab"])
        elif name == "pull-object":
            answer.object_found = answer.object_available = request.object_id in self.objects
            answer.object_content = self.objects.get(request.object_id, b"")
        self.asked.append(name)
        return response_type.FromString(answer.SerializeToString())


class Node:
    """A SuperNode's state, and the loop's step for one message."""

    def __init__(self, world: World) -> None:
        self.world, self.state = world, NodeStateFactory(ObjectStoreFactory()).state()

    def play(self, given: Given) -> Given:
        """What came of it: replies by the node, or what the process that answers is given."""
        FleetHttpClient._unary_unary = partialmethod(Server(given))  # type: ignore[method-assign,assignment]
        with fleet_http_connection.http_request_response("localhost:9", True) as connection:
            node, receive, _, get_run, get_fab, pull_object, _, confirm = connection
            try:
                self.state.set_node_id(node)
                run = flower._pull_and_store_message(
                    state=self.state,
                    object_store=self.state.object_store,
                    node_config={"data": str(self.world.data), "policy": str(self.world.only.policy)},
                    receive=receive,
                    get_run=get_run,
                    get_fab=get_fab,
                    pull_object=pull_object,
                    confirm_message_received=confirm,
                    trusted_entities=None,
                )
            except Exception as error:
                return {"ends": repr(error)[:300]}
        replies = self.state.get_messages_legacy(is_reply=True)
        row: Given = {"refused": [reply.error.reason if reply.has_error() else None for reply in replies]}
        return row | {"waits": run is not None} | (self._input() if run is not None and not replies else {})

    def _input(self) -> Given:
        state = self.state
        for task in state.get_tasks():
            if task.type == TaskType.CLIENT_APP and state.claim_task(task.task_id):
                with suppress(Exception):  # then the process has nothing to answer
                    told = runtime_handlers.pull_task_input(runtime_pb2.PullTaskInputRequest(), state, task)
                    messages = runtime_handlers.pull_messages(runtime_pb2.PullAppMessagesRequest(), state, task)
                    objects = {key: entry.content.hex() for key, entry in state.object_store.store.items()}
                    answers = {"PullTaskInput": told, "PullMessages": messages}
                    shown = {name: answer.SerializeToString().hex() for name, answer in answers.items()}
                    return {"answers": shown, "objects": objects, "run": task.run_id}
        return {}


@contextmanager
def no_heartbeats() -> Iterator[None]:
    before, unary = fleet_http_connection.HeartbeatSender, FleetHttpClient._unary_unary
    silent = SimpleNamespace(start=lambda: None, stop=lambda: None, is_running=False)
    fleet_http_connection.HeartbeatSender = lambda *given: silent  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        fleet_http_connection.HeartbeatSender = before  # type: ignore[misc]
        FleetHttpClient._unary_unary = unary  # type: ignore[method-assign]


def at_the_node(folder: Path, guard: Callable[..., None]) -> None:
    """Plays every lie to a node of its own, and to one node two bundles in one series at once."""
    world, notes = World(folder), list[str]()
    guard(world.only, lambda code, reason: notes.append(f"{code.name}: {reason}"))
    second = dict(together(world))["second"]

    def of_run(run: int, name: str, given: Given) -> None:
        if name == "second":
            second(given)
        given["Run"].run_id = given["Message"].metadata.run_id = given["Inside"].metadata.run_id = run
        given["Run"].override_config["overrides"].string = f" run {run}"

    cases = [(Node(world), name, forge) for name, forge in lies(world)]
    one, turns = Node(world), ((1, "approved"), (2, "second"), (1, "approved"), (2, "second"))
    for turn, (run, name) in enumerate(turns):
        cases.append((one, f"turn {turn}", lambda given, run=run, name=name: of_run(run, name, given)))  # type: ignore[misc]
    with (folder / "node.jsonl").open("w") as file, no_heartbeats():
        for node, name, forge in cases:
            notes.clear()
            given = world.honest()
            forge(given)
            file.write(json.dumps({"lie": name, **node.play(given), "notes": list(notes)}) + "\n")


class Runtime:
    """The SuperNode's service as the process of one message sees it; what is pushed stands in ``out``."""

    def __init__(self, row: Given, out: Path) -> None:
        self.row, self.out = row, out

    def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        return lambda request: self.answer(name, request)

    def answer(self, name: str, request: Any) -> Any:
        called = name.replace("hMessages", "hAppMessages").replace("lMessages", "lAppMessages") + "Response"
        form = getattr(runtime_pb2, called, None) or getattr(message_pb2, called)
        if name in self.row["answers"]:
            return form.FromString(bytes.fromhex(self.row["answers"][name]))
        if name == "PullObject":
            content = self.row["objects"].get(request.object_id)
            there = content is not None
            return form(object_found=there, object_available=there, object_content=bytes.fromhex(content or ""))
        if name == "PushMessages":
            (reply,) = request.messages_list
            if reply.metadata.run_id != self.row["run"]:  # as Flower's handler
                raise ValueError("the reply is of another run")
            self.out.write_text(reply.error.reason if reply.HasField("error") else "answer")
            return form(objects_to_push=[tree.object_id for tree in request.message_object_trees], session_id="s")
        if name == "PushTaskOutput" and not self.out.exists():
            self.out.write_text(f"task {request.sub_status}")
        return form(stored=True) if name == "PushObject" else form()


def in_the_process(folder: Path, forks: Any, most: int) -> None:
    """Gives messages that the node accepted, ``most`` of each field, to a fork of this process; all is in rows.json."""
    from flwr.supercore.superexec.executor import ExecutionSpec
    from flwr.supernode.runtime import run_clientapp

    spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:9", "token", True, None, False, None, False, 1)
    booked, out = folder / "data" / "booked", folder / "pushed"
    silent = SimpleNamespace(start=lambda: None, stop=lambda: None, is_running=False)
    run_clientapp.HeartbeatSender = lambda *given: silent  # type: ignore[misc,assignment]
    rows = [json.loads(line) for line in (folder / "node.jsonl").read_text().splitlines()]
    given = Counter[str]()
    for row in rows:
        field, answers = row["lie"].partition(" ")[0], row.pop("answers", None)
        if answers and (given[field] < most or "." not in field):
            given[field] += 1
            booked.write_text("")
            out.unlink(missing_ok=True)
            runtime = Runtime(row | {"answers": answers}, out)
            client = SimpleNamespace(from_server_address=lambda runtime=runtime, **given: runtime)
            run_clientapp.RuntimeHttpClient = client  # type: ignore[misc,assignment]
            forks.launch(spec)
            os.wait()
            row |= {"booked": booked.read_text().splitlines(), "pushed": out.read_text() if out.exists() else None}
        row["accepted"] = bool(answers)
        row.pop("objects", None)
    (folder / "rows.json").write_text(json.dumps(rows))


def outcome(row: Given) -> str:
    """In a word: what a node made of a lie."""
    if "ends" in row:
        return "the node ends"
    if row["refused"]:
        return f"refused: {', '.join(map(str, row['refused']))}"
    if "booked" in row:
        return f"ran {', '.join(row['booked']) or 'nothing'}: {row['pushed']}"
    return "accepted" if row["accepted"] else "waits for ever" if row["waits"] else "passed over"
