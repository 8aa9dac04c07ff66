"""A SuperLink that forges what it sends to a node: one field of Run, Fab, Message and their neighbours at a time.

`lies` walks through the fields of Flower's own protocol buffers, so that a field of a later version is forged too.
`at_the_node` plays each lie to the SuperNode's own loop, `in_the_process` to the process that answers a message; both
run in processes of their own, one after the other, because the first has threads and the second forks.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

APP = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    with open(context.node_config["data"] + "/booked", "a") as file:
        file.write("NAME\\n")
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


def make_bundle(folder: Path, name: str) -> bytes:
    """What `flwr build` makes of an app that books and answers with its name."""
    from flwr.cli.build import build_fab_from_disk

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "client.py").write_text(APP.replace("NAME", name))
    (folder / "pyproject.toml").write_text(PROJECT.replace("NAME", name))
    return build_fab_from_disk(folder)


class World:
    """One machine: the policy's bundle, another that it approves, one of an attacker, also unpacked where a path that
    goes upwards finds it.
    """

    def __init__(self, folder: Path) -> None:
        import hashlib

        self.folder, self.home, self.data = folder, folder / "flwr", folder / "data"
        self.data.mkdir(exist_ok=True)
        self.approved, self.second = (make_bundle(folder / "apps" / name, name) for name in ("approved", "second"))
        self.evil = make_bundle(folder / "apps" / "evil", "evil")
        self.digest, self.second_digest, self.evil_digest = (
            hashlib.sha256(content).hexdigest() for content in (self.approved, self.second, self.evil)
        )
        make_bundle(folder / f"evil.{self.digest[:8]}", "evil")
        self.upwards = "1.0.0/" + "../" * 9 + str(folder)[1:] + "/evil"
        # What the first parts of the path need: Flower's own folder of apps, with an app of this name.
        (self.home / "apps" / "maker.approved.1.0.0").mkdir(parents=True, exist_ok=True)

    def values(self, honest: Any) -> list[Any]:
        """Hostile values in the place of an honest one."""
        if isinstance(honest, bool):
            return [not honest]
        if isinstance(honest, int):
            return [0, 1, 2**63 - 1]
        if isinstance(honest, float):
            return [math.nan, math.inf, -1.0, 1e308, 0.0]
        if isinstance(honest, bytes):
            return [b"", self.evil, self.second, self.approved[:-1], self.approved + b"\0", b"PK\5\6" + bytes(18)]
        traversal = [self.upwards, f"../{self.folder.name}/evil", "..", "/", str(self.folder / "evil")]
        alike = [honest.replace("a", "\u0430").replace("e", "\u0435"), f"{honest}\n", f"{honest}\0", honest.upper()]
        others = [self.second_digest, self.evil_digest, self.digest, "maker/second", "maker/evil", "ServerApp"]
        return [value for value in (*traversal, *alike, *others, "", "0" * 64, "x" * 10**6) if value != honest]

    def honest(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of a run of the approved bundle: Run, Fab, the message outside and inside, its objects, the node's id."""
        from flwr.app import Message, RecordDict
        from flwr.common.serde import message_to_proto
        from flwr.proto.fab_pb2 import Fab
        from flwr.proto.fleet_pb2 import ActivateNodeResponse
        from flwr.proto.run_pb2 import Run
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 2
        message = Message(RecordDict(), NODE, "train", group_id="1")
        inner, outside = message_to_proto(message), message_to_proto(message)
        outside.metadata.message_id = message.object_id
        run = Run(run_id=RUN, fab_id="maker/approved", fab_version="1.0.0", fab_hash=self.digest, series_id=3)
        run.federation, run.status.status, run.primary_task_type = "@none/default", "running", "flwr-serverapp"
        return {
            "Run": run,
            "Fab": Fab(hash_str=self.digest, content=self.approved),
            "Message": outside,
            "Inner": inner,  # the same in the message's objects, which the process that answers reads
            "Activate": ActivateNodeResponse(node_id=NODE),
        }, {"message": message, "Trees": [], "Objects": {}, "Messages": []}


def fields(message: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every scalar field, deep: where it is, and its descriptor. A record's content goes no deeper than its items."""
    for field in message.DESCRIPTOR.fields:
        here = (*path, field.name)
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        if field.message_type is not None and not repeated:
            yield from fields(getattr(message, field.name), here)
        else:
            yield here, field


def lies(world: World) -> Iterator[tuple[str, Callable[[dict[str, Any]], None]]]:
    """Each with a name, PROTOBUF.FIELD=VALUE, and what it does to `World.honest`."""
    honest, _ = world.honest()
    yield "nothing", lambda given: None
    for kind, message in honest.items():
        for path, field in fields(message):
            example = message
            for step in path:
                example = getattr(example, step)
            for number, value in enumerate(_values(world, field, example)):
                shown = f"{value!r}"[:24] if isinstance(value, str) else number if isinstance(value, bytes) else value

                def forge(given: dict[str, Any], kind: str = kind, path: Any = path, value: Any = value) -> None:
                    place = given[kind]
                    for step in path[:-1]:
                        place = getattr(place, step)
                    _set(place, path[-1], value)

                yield f"{kind}.{'.'.join(path)}={shown}", forge
    yield from combined(world)


def _values(world: World, field: Any, example: Any) -> list[Any]:
    if field.message_type is None:
        return world.values(example)
    return (
        [{key: world.upwards} for key in ("overrides", "other", "", "x" * 10**5)]
        if field.name.endswith("config")
        else [{"valid_license": "x"}]
    )


def _set(place: Any, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        setattr(place, name, value)
        return
    for key, one in value.items():
        target = getattr(place, name)
        if hasattr(target, "add"):
            target.add().key = key
        elif isinstance(target, dict) or not hasattr(target[key], "string"):
            target[key] = one
        else:
            target[key].string = one


def combined(world: World) -> Iterator[tuple[str, Callable[[dict[str, Any]], None]]]:
    """Lies that need several fields at once."""

    def whole(content: bytes, name: str, digest: str) -> Callable[[dict[str, Any]], None]:
        def forge(given: dict[str, Any]) -> None:
            given["Run"].fab_id, given["Run"].fab_hash = f"maker/{name}", digest
            given["Fab"].hash_str, given["Fab"].content = digest, content

        return forge

    yield "honest second bundle", whole(world.second, "second", world.second_digest)
    yield "another bundle under its own digest", whole(world.evil, "evil", world.evil_digest)
    yield "another bundle under the approved digest", whole(world.evil, "approved", world.digest)
    yield "another bundle as a digest in capitals", whole(world.approved, "approved", world.digest.upper())
    yield "the second bundle's bytes under the first's name", whole(world.second, "approved", world.second_digest)
    yield "the right bytes under the second's name", whole(world.approved, "second", world.digest)
    yield "the right bytes under the second's digest", whole(world.approved, "second", world.second_digest)


class Server:
    """Answers of a SuperLink to one node about one message, in the place of the connection."""

    def __init__(self, given: dict[str, Any]) -> None:
        from flwr.proto.message_pb2 import ObjectTree
        from flwr.supercore.inflatable.inflatable_object import (
            add_header_to_object_body,
            get_all_nested_objects,
            get_object_id,
            get_object_tree,
        )

        self.given, self.outside, self.asked = given, given["Message"], False
        self.objects, self.trees = dict[str, bytes](), given["Trees"]
        message, inner = given["message"], type(self.outside)()
        inner.CopyFrom(given["Inner"])  # as Flower's `Message.deflate`, also of what its constructor refuses
        inner.metadata.message_id = ""
        inner.ClearField("content")
        body = add_header_to_object_body(inner.SerializeToString(deterministic=True), message)
        self.objects = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
        del self.objects[message.object_id]
        tree = ObjectTree(object_id=get_object_id(body), children=get_object_tree(message).children)
        self.objects[tree.object_id] = body
        if self.outside.metadata.message_id == message.object_id:
            self.outside.metadata.message_id = tree.object_id
        self.trees = self.trees or [tree]
        self.objects |= given["Objects"]

    def __call__(self, client: Any, *, path: str, request: Any, response_type: Any, **more: Any) -> Any:
        answer, name = response_type(), path.rpartition("/")[2]
        if name == "activate-node":
            answer.CopyFrom(self.given["Activate"])
        elif name == "pull-messages" and not self.asked:
            self.asked = True
            answer.messages_list.extend(self.given["Messages"] or [self.outside])
            answer.message_object_trees.extend(self.trees)
        elif name == "get-run":
            answer.run.CopyFrom(self.given["Run"])
        elif name == "get-fab":
            answer.fab.CopyFrom(self.given["Fab"])
        elif name == "pull-object":
            answer.object_found = answer.object_available = request.object_id in self.objects
            answer.object_content = self.objects.get(request.object_id, b"")
        return response_type.FromString(answer.SerializeToString())


def at_the_node(folder: Path, hook: Callable[[World, list[str]], None]) -> None:
    """Plays every lie to the SuperNode's loop, and writes what it would hand to the process that answers."""
    from types import SimpleNamespace

    from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullTaskInputRequest
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supernode import fleet_http_connection
    from flwr.supernode import start_client_internal as flower
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.nodestate import NodeStateFactory
    from flwr.supernode.servicer.runtime import runtime_handlers

    world, notes = World(folder), list[str]()
    hook(world, notes)
    fleet_http_connection.HeartbeatSender = lambda *given: SimpleNamespace(  # type: ignore[misc,assignment]
        start=lambda: None, stop=lambda: None, is_running=False
    )
    with (folder / "node.jsonl").open("w") as out:
        for name, forge in lies(world):
            notes.clear()
            honest, more = world.honest()
            given = honest | more
            forge(given)
            server = Server(given)
            FleetHttpClient._unary_unary = partialmethod(server)  # type: ignore[method-assign,assignment]
            factory = NodeStateFactory(ObjectStoreFactory())
            state = factory.state()
            row: dict[str, Any] = {"lie": name}
            with fleet_http_connection.http_request_response("localhost:9", True) as conn:
                node, receive, _, get_run, get_fab, pull_object, _, confirm = conn
                try:
                    state.set_node_id(node)
                    run = flower._pull_and_store_message(
                        state=state,
                        object_store=state.object_store,
                        node_config={"data": str(world.data)},
                        receive=receive,
                        get_run=get_run,
                        get_fab=get_fab,
                        pull_object=pull_object,
                        confirm_message_received=confirm,
                        trusted_entities=None,
                    )
                except Exception as error:
                    row["ends"] = repr(error)[:300]
                else:
                    replies = state.get_messages_legacy(is_reply=True)
                    row["replies"] = [
                        [reply.error.code, reply.error.reason] if reply.has_error() else None for reply in replies
                    ]
                    row["waits"] = run is not None
                    tasks = [task for task in state.get_tasks() if task.type == "flwr-clientapp"]
                    if tasks and run is not None and not replies:
                        (task,) = tasks
                        state.claim_task(task.task_id)
                        try:
                            row["input"] = runtime_handlers.pull_task_input(PullTaskInputRequest(), state, task)
                            row["messages"] = runtime_handlers.pull_messages(PullAppMessagesRequest(), state, task)
                            row["input"] = row["input"].SerializeToString().hex()
                            row["messages"] = row["messages"].SerializeToString().hex()
                            row["objects"] = {
                                key: state.object_store.get(key).hex() for key in state.object_store.store
                            }
                            row["run"] = task.run_id
                        except Exception as error:
                            row["input"] = None
                            row["hangs"] = repr(error)[:300]
            row["notes"] = list(notes)
            out.write(json.dumps(row) + "\n")


def in_the_process(folder: Path, executor: Any) -> None:
    """Gives every message that the node accepted to the process that answers it, a fork of this one."""
    from flwr.proto import message_pb2, runtime_pb2
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import ExecutionSpec
    from flwr.supernode.runtime import run_clientapp as flower

    rows = [json.loads(line) for line in (folder / "node.jsonl").read_text().splitlines()]
    spec = ExecutionSpec(TaskType.CLIENT_APP, "127.0.0.1:9", "token", True, None, False, None, False, 1)
    for number, row in enumerate(rows):
        if not row.get("input"):
            continue

        class Runtime:
            """The SuperNode's service, as the process of this message sees it."""

            current = row
            out = folder / "pushed" / f"{number}.json"

            def close(self) -> None:
                pass

            def __getattr__(self, name: str) -> Callable[[Any], Any]:
                def answer(request: Any) -> Any:
                    if name == "PullTaskInput":
                        return runtime_pb2.PullTaskInputResponse.FromString(bytes.fromhex(self.current["input"]))
                    if name == "PullMessages":
                        return runtime_pb2.PullAppMessagesResponse.FromString(bytes.fromhex(self.current["messages"]))
                    if name == "PullObject":
                        content = self.current["objects"].get(request.object_id)
                        return message_pb2.PullObjectResponse(
                            object_found=content is not None,
                            object_available=content is not None,
                            object_content=bytes.fromhex(content or ""),
                        )
                    if name == "PushMessages":
                        (reply,) = request.messages_list
                        if reply.metadata.run_id != self.current["run"]:  # as Flower's handler
                            raise ValueError("Run ID in message does not match authenticated task's run ID.")
                        error = [reply.error.code, reply.error.reason] if reply.HasField("error") else None
                        objects = [tree.object_id for tree in request.message_object_trees]
                        self.out.write_text(json.dumps({"error": error, "to": reply.metadata.reply_to_message_id}))
                        return runtime_pb2.PushAppMessagesResponse(objects_to_push=objects, session_id="s")
                    if name == "PushTaskOutput":
                        self.out.with_suffix(".end").write_text(request.sub_status)
                    return getattr(
                        runtime_pb2,
                        f"{name}Response",
                        getattr(message_pb2, f"{name}Response", runtime_pb2.PushTaskOutputResponse),
                    )()

                return answer

        (folder / "pushed").mkdir(exist_ok=True)
        flower.RuntimeHttpClient = type(  # type: ignore[misc]
            "Client", (), {"from_server_address": staticmethod(lambda Runtime=Runtime, **given: Runtime())}
        )
        flower.HeartbeatSender = lambda *given: type(  # type: ignore[misc,assignment]
            "Sender", (), {"start": lambda self: None, "stop": lambda self: None, "is_running": False}
        )()
        booked = folder / "data" / "booked"
        booked.write_text("")
        log = folder / "pushed" / f"{number}.log"
        sys.stdout.flush(), sys.stderr.flush()
        before = os.dup(1), os.dup(2)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1), os.dup2(descriptor, 2), os.close(descriptor)
        executor.launch(spec)
        os.wait()
        os.dup2(before[0], 1), os.dup2(before[1], 2)
        os.close(before[0]), os.close(before[1])
        row["booked"] = booked.read_text().split()
        pushed = folder / "pushed" / f"{number}.json"
        row["pushed"] = json.loads(pushed.read_text()) if pushed.exists() else None
        end = pushed.with_suffix(".end")
        row["end"] = end.read_text() if end.exists() else None
        row["log"] = log.read_text()[-3000:]
    for row in rows:
        for name in ("input", "messages", "objects"):
            row.pop(name, None)
    (folder / "rows.json").write_text(json.dumps(rows))
