"""A node's code, from the bytes that its policy approves to their import.

A SuperLink sends an app as bytes, and names it: by a digest, an id and a version. Flower unpacks the bytes below
``FLWR_HOME``, and then loads the folder that the names lead to: those of somebody else's folder too. Here the SHA-256
of the bytes decides alone, and no name from the server is part of a path:

1. `guard_bundles`, in the SuperNode: bytes whose digest is not approved, or that have another name than the server
   says, are neither stored nor given on. Whatever else a server forges gets a code and a line for the operator.
2. `answer_with_approved`, in the process that answers a message: the digest is taken again and compared with the policy
   on the disk. The bytes are unpacked once for a node's life, into a folder that only its user may enter; before each
   import they are compared with what the folder holds.

The hooks are functions by which flwr 1.41 fetches and loads an app.
"""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
from flwr.app import Context, Error, Message
from flwr.common.config import get_fab_config, get_fused_config_from_fab, get_metadata_from_config
from flwr.common.constant import SubStatus
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import is_valid_sha256_hash, iterate_object_tree
from flwr.supercore.run import Run
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from fedpriv.common.errors import FedprivError, OptionError
from fedpriv.common.files import read_regular
from fedpriv.common.messages import Refusal, shown
from fedpriv.deployment.policy import read_policy

log = logging.getLogger("fedpriv")

#: Most bytes of an app's files: with ``guard=any`` a bundle is anybody's, and a small one may unpack to a full disk.
MOST_BYTES = 2**28
#: What answers a message in the place of a bundle's app: (folder of its files, its SHA-256) -> that.
Loader = Callable[[Path, str], Callable[[Message, Context], Message]]


class BundleRefused(FedprivError):
    """The policy does not approve these bytes, or they are not what the server says of them: nothing of them ran."""


@dataclass(frozen=True)
class Approved(Container[str]):
    """The digests that a policy approves, read from its file at every question.

    policy: its file. guard: "": its `bundles`; "any" or one digest: of apps for the guard, what `guard.apps` admits.
    """

    policy: Path
    guard: str = ""

    def __contains__(self, digest: object) -> bool:
        policy = read_policy(self.policy)
        if not self.guard:
            return digest in policy.bundles
        named = self.guard in ("any", digest)
        return named and policy.guard is not None and (policy.guard.apps == "any" or digest in policy.guard.apps)


def bundle_digest(app: Path) -> str:
    """SHA-256 of a bundle file, or of the bundle that ``flwr build`` makes of an app's folder. Raises `OptionError`."""
    from flwr.cli.build import build_fab_from_disk

    try:
        content = build_fab_from_disk(app) if app.is_dir() else _checked(read_regular(app))
    except (ValueError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, BundleRefused) as error:
        reason = " ".join(str(error).split())
    except (TypeError, AttributeError):  # Flower's checks take a table for granted
        reason = "pyproject.toml has something else where a table belongs"
    else:
        return hashlib.sha256(content).hexdigest()
    allowed = "allowed: a folder that `flwr build` can bundle, or a .fab file that it made"
    raise OptionError("app", app, f"no app ({reason}); {allowed}")


def _checked(content: bytes) -> bytes:
    """A bundle, after a node's checks, and those of its pyproject.toml and of the digest of each file."""
    get_fab_config(content)
    files = bundle_files(content)
    for line in files[PurePosixPath(".info/CONTENT")].decode().splitlines():
        name, digest, _ = line.rsplit(",", 2)
        if hashlib.sha256(files[PurePosixPath(name)]).hexdigest() != digest:
            raise ValueError(f"{name} is not the file that was bundled")
    return content


def bundle_files(content: bytes) -> dict[PurePosixPath, bytes]:
    """A bundle's files, by path. Raises `BundleRefused` for more than `MOST_BYTES`, or a path that leads out."""
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        files = {PurePosixPath(member.filename): member for member in bundle.infolist() if not member.is_dir()}
        if (size := sum(member.file_size for member in files.values())) > MOST_BYTES:
            raise BundleRefused(f"the app's files have {size} bytes: at most {MOST_BYTES} are unpacked")
        if out := [path for path in files if path.is_absolute() or ".." in path.parts]:
            raise BundleRefused(f"the app has a file {shown(str(out[0]))}, outside its own folder")
        return {path: bundle.read(member) for path, member in files.items()}


# --- in the SuperNode ----------------------------------------------------------------------------------------------


def guard_bundles(approved: Container[str], note: Callable[[Refusal, str], None]) -> None:
    """From now on, this process's SuperNode answers messages of unapproved apps with `Refusal.BUNDLE`, and those that
    Flower cannot give to an app with `Refusal.FAILED`; Flower would end, or wait for a reply that nobody makes.

    approved: holds digests. note: informs the operator.
    """
    original, finish = flower._pull_and_store_message, InMemoryNodeState.finish_task
    failed = Error(code=int(Refusal.FAILED), reason=Refusal.FAILED.name.lower())

    def pull(**given: Any) -> int | None:
        received: list[Message] = []
        runs: list[Run] = []
        state = given["state"]

        def receive() -> tuple[Message, ObjectTree] | None:
            found: tuple[Message, ObjectTree] | None = given["receive"]()
            if found is not None:
                _require_answerable(*found)
                received.append(found[0])
                known = state.get_run(found[0].metadata.run_id)
                if known is not None and known.fab_hash not in approved:  # approved when the run began
                    raise BundleRefused(f"the app {known.fab_hash} is no longer among the policy's bundles")
            return found

        def get_run(run_id: int) -> Run:
            run: Run = given["get_run"](run_id)
            if run.run_id != run_id or run.primary_task_type == TaskType.AGENT_APP:
                raise BundleRefused(f"of run {run_id} came run {run.run_id} of a {shown(run.primary_task_type)}")
            runs.append(run)
            return run

        def get_fab(fab_hash: str, run_id: int) -> Fab:
            fab: Fab = given["get_fab"](fab_hash, run_id)
            digest = hashlib.sha256(fab.content).hexdigest()
            if digest not in approved or not digest == fab.hash_str == fab_hash:
                raise BundleRefused(f"the app {digest} of run {run_id} is not among the policy's bundles")
            bundle_files(fab.content)
            name = get_metadata_from_config(get_fab_config(fab.content))
            if name != (called := (runs[-1].fab_id, runs[-1].fab_version)):
                raise BundleRefused(f"the app {digest} is {' '.join(name)}, and run {run_id} calls it {shown(called)}")
            return fab

        try:
            return original(**{**given, "receive": receive, "get_run": get_run, "get_fab": get_fab})
        except httpx.HTTPError:  # the connection, not what came
            raise
        except Exception as error:
            code = Refusal.BUNDLE if isinstance(error, BundleRefused) else Refusal.FAILED
            note(code, str(error) if code == Refusal.BUNDLE else f"what the SuperLink sent: {error!r}")
            if not received:
                return None
            reply = Message(Error(code=int(code), reason=code.name.lower()), reply_to=received[0])
            flower._insert_message(reply, state, given["object_store"])
            return received[0].metadata.run_id

    def finish_task(state: InMemoryNodeState, task_id: int, sub_status: str, details: str) -> bool:
        finished = finish(state, task_id, sub_status, details)
        if finished and sub_status == SubStatus.FAILED:  # a message that the process could not read has no reply yet
            held = len(state.msg_store)
            state._store_error_replies({task.run_id for task in state.get_tasks(task_ids=[task_id])}, failed)
            if len(state.msg_store) > held:
                note(Refusal.FAILED, details)
        return finished

    flower._pull_and_store_message = pull  # type: ignore[assignment]
    InMemoryNodeState.finish_task = finish_task  # type: ignore[method-assign,assignment]


def _require_answerable(message: Message, tree: ObjectTree) -> None:
    """Raises ValueError for a message whose answer Flower would not find: it goes by these names."""
    name, other = message.metadata.message_id, message.metadata.reply_to_message_id
    if (
        other
        or name != tree.object_id
        or not all(map(is_valid_sha256_hash, (n.object_id for n in iterate_object_tree(tree))))
    ):
        raise ValueError(f"a message {shown(name)} with an object {shown(tree.object_id)}, in reply to {shown(other)}")


# --- in the process that answers -------------------------------------------------------------------------------------


def answer_with_approved(approved: Approved, folder: Path, modules: Container[str], loader: Loader | None) -> None:
    """From now on, this process answers with the app of approved bytes, whatever the server calls it.

    A message for another policy is refused, too: a program that has the port of the node's service before the SuperNode
    does could send one. folder: of this node's user alone; holds the unpacked apps. modules: packages that a bundle
    brings, forgotten before its import. loader: what answers in the place of the bundle's app, of which nothing is
    imported.
    """
    from flwr.supernode.runtime import run_clientapp as flower

    pull, load = flower.pull_task_input, flower.get_load_client_app_fn

    def pull_task_input(client: Any) -> tuple[Message, Context, Run, Fab]:
        message, context, run, fab = pull(client)
        if (named := context.node_config.get("policy")) != str(approved.policy):
            raise BundleRefused(f"a message for the policy {shown(named)}, and this node's is {approved.policy}")
        # Runs of one series share a context, and what a message says inside need not be what it said outside.
        context.run_id = message.metadata.__dict__["_run_id"] = run.run_id
        context.run_config = get_fused_config_from_fab(fab.content, run)
        return message, context, run, fab

    def install(content: bytes, **named: Any) -> Path:
        digest = hashlib.sha256(content).hexdigest()
        if digest not in approved:
            raise BundleRefused(f"the app {digest} is not among the policy's bundles")
        app = unpacked(content, folder)

        def load_app(*names: str) -> Any:
            if loader is not None:
                answer = loader(app, digest)
                return lambda message, context: answer(message, context)
            sys.dont_write_bytecode = True
            for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
                del sys.modules[name]
            return load(default_app_ref="", app_path=str(app), multi_app=True)(*names)

        flower.get_project_dir = lambda *names: app
        flower.get_load_client_app_fn = lambda **given: load_app
        return app

    flower.pull_task_input, flower.install_from_fab = pull_task_input, install  # type: ignore[assignment]


def unpacked(content: bytes, folder: Path) -> Path:
    """The folder in ``folder`` that holds a bundle's files and nothing else, compared byte by byte at every call."""
    app, files = folder / hashlib.sha256(content).hexdigest(), bundle_files(content)
    if app.exists():
        if _holds(app, files):
            return app
        log.warning("%s was not what had been unpacked there: it is unpacked again", app)
        shutil.rmtree(app)
    fresh = Path(tempfile.mkdtemp(dir=folder))
    for path, text in files.items():
        (fresh / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (fresh / path).write_bytes(text)
    return fresh.rename(app)


def _holds(app: Path, files: dict[PurePosixPath, bytes]) -> bool:
    places = [path for path in app.rglob("*") if path.is_symlink() or not path.is_dir()]
    return {PurePosixPath(path.relative_to(app)) for path in places} == set(files) and all(
        not (app / path).is_symlink() and (app / path).read_bytes() == text for path, text in files.items()
    )
