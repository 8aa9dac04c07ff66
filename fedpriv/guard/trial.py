"""An app is started on a machine's own shards before it may answer anybody: nothing is booked, and nothing leaves.

An app that crashes on every shard sends zero updates with noise, looks like any other to its server, and spends the
budget. `try_app` counts on the operator's side alone how many starts answer. The messages that go to them are those
that the app's own ServerApp sends first: it runs in the sandbox too, on an empty folder, before a grid that keeps its
first message of each kind (`FIRST`). What is counted depends on the data: it goes to the operator and into the ledger's
folder, and to nobody else.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.config import (
    get_fused_config_from_dir,
    get_metadata_from_config,
    get_project_config,
)

from fedpriv.common.errors import OptionError
from fedpriv.deployment.bundles import bundle_digest, bundle_files
from fedpriv.deployment.policy import Policy, read_policy
from fedpriv.guard.arrays import Unanswerable, model_of
from fedpriv.guard.guarded_message import RUN_OF_GUARD, Guard, _Answering
from fedpriv.guard.record import request_bytes
from fedpriv.guard.release import TRAIN
from fedpriv.guard.sandbox import Limits, Sandbox
from fedpriv.guard.shards import Shards, Starts, Trial, last_line, note_trial, read_salt, state_of

#: A ClientApp that answers with the kinds, and the bytes of the first content of each, that its app's ServerApp sends.
FIRST = '''
import sys, types
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.object_ref import load_app
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
#: Kinds of messages; looks for replies after which the ServerApp waits for nothing.
WANTED, PULLS = {wanted!r}, 20

class Enough(BaseException):
    """All that is wanted was sent, or the ServerApp waits for replies."""

class First(Grid):
    run, sent, pulled = None, {{}}, 0
    def set_run(self, run): pass
    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type)
    def get_node_ids(self): return list(range(2, 102))
    def push_messages(self, messages):
        new = {{}}
        for message in messages:
            kind = message.metadata.message_type
            kind = "train" if kind.startswith("train") and message.content.array_records else kind
            if kind in WANTED:
                new.setdefault(kind, message.content)
        again = any(kind in self.sent for kind in new)
        self.sent.update({{kind: content for kind, content in new.items() if kind not in self.sent}})
        if again or len(self.sent) == len(WANTED):
            raise Enough
        return []
    def pull_messages(self, message_ids):
        self.pulled += 1
        if self.pulled > PULLS:
            raise Enough
        return []
    def send_and_receive(self, messages, *, timeout=None): return self.push_messages(messages)
    def count(self, kind, config=None, arrays=None):
        """As the count of fedpriv.guarded."""
        records = {{"config": ConfigRecord({{"server-round": 1, **(config or {{}})}})}}
        content = RecordDict(records if arrays is None else {{"arrays": arrays, **records}})
        self.push_messages([Message(content, 2, kind)])

app = ClientApp()

@app.train()
def first(message, context):
    try:
        import fedpriv
    except ImportError:
        fedpriv = sys.modules["fedpriv"] = types.ModuleType("fedpriv")
    def guarded(strategy, *given, **named):
        strategy.count = lambda grid, *given, timeout=0, **named: grid.count(*given, **named)
        return strategy
    fedpriv.guarded, grid = guarded, First()
    start = Strategy.start  # a test set of the server's is not here
    Strategy.start = lambda self, *given, evaluate_fn=None, **named: start(self, *given, **named)
    try:
        load_app({server!r}, RuntimeError, ".")(grid=grid, context=context)
    except Enough:
        pass
    except Exception:
        if not grid.sent:
            raise
    texts = [text for kind, content in grid.sent.items()
             for text in (kind.encode(), recorddict_to_proto(content).SerializeToString())]
    if texts:
        arrays = {{str(place): Array(np.frombuffer(text, np.uint8)) for place, text in enumerate(texts)}}
        return Message(RecordDict({{"sent": ArrayRecord(arrays)}}), reply_to=message)
    raise RuntimeError("the ServerApp ended and sent no model")
'''


def try_app(policy_file: Path, data: Path, app: Path, client: int = 0, model: Path | None = None) -> Trial:
    """Starts an app as its messages would, to train and for each kind of counts that the policy declares: once on each
    shard, without padding. Notes the result.

    Args:
        app: its folder, or a .fab file. client: the machine's number, which the app sees as its partition-id.
        model: a .npz file of the arrays that the app trains; None: its ServerApp sends them.

    Raises:
        OptionError: the app cannot be read, or there is nothing to try: it gives no model, and the policy declares no
            counts. LedgerRefused, DataError: as for a message.
    """
    digest, policy = bundle_digest(app), read_policy(policy_file)
    if policy.guard is None:
        raise OptionError("policy", policy_file, "has no section `guard` (docs/guard.md)")
    rules, noted = policy.guard.model_copy(update={"apps": (digest,), "pad_seconds": None}), policy
    policy = policy.model_copy(update={"guard": rules})
    with tempfile.TemporaryDirectory(prefix="fedpriv-try-") as name, ExitStack() as stack:
        folder = _unpacked(app, Path(name))
        config = dict(get_fused_config_from_dir(folder, {}))
        contents, no_model = _first_contents(app, folder, policy, config, Path(name), model)
        guard, context = Guard(client, policy_file, data, folder, digest), Context(1, 2, {}, RecordDict(), config)
        asked = {
            kind: _Answering(guard, policy, message_of(content, kind), context) for kind, content in contents.items()
        }
        ledger, trial = next(iter(asked.values())).ledger, Trial({}, no_model)
        with ledger.held() as held:
            salt = read_salt(data, held.counter, used=lambda: held.holds_run(RUN_OF_GUARD))
            shards, trial.state = Shards(data, rules, salt), state_of(data, policy)
            files = stack.enter_context(shards.lent())
        for kind, answering in asked.items():
            starts = trial.starts[kind] = Starts()
            for answer in answering.asked(shards.place, files):
                starts.add(answering.model, None if answer is None else answering.taken(answer))
        with ledger.held():
            note_trial(data, digest, noted, client, trial)
    return trial


NO_MODEL = "a guarded app trains one record of arrays; model=FILE.npz, with the arrays in their order, is another way"


def _unpacked(app: Path, into: Path) -> Path:
    if app.is_dir():
        return app
    for path, content in bundle_files(app.read_bytes()).items():
        (into / "bundle" / path).parent.mkdir(parents=True, exist_ok=True)
        (into / "bundle" / path).write_bytes(content)
    return into / "bundle"


def message_of(content: RecordDict, kind: str = TRAIN, node: int = 2) -> Message:
    """A message as a node gets it, of no run."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(content, node, kind)
    message.metadata.__dict__.update({"_message_id": "try", "_run_id": 1})
    return message


def _read_model(file: Path) -> RecordDict:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            record = ArrayRecord({name: Array(arrays[name]) for name in arrays.files})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise OptionError("model", file, f"no .npz file of a model's arrays ({error})") from None
    return RecordDict({"arrays": record} | _first_round())


def _first_round() -> dict[str, Any]:
    return {"config": ConfigRecord({"server-round": 1})}


def _first_contents(
    app: Path, folder: Path, policy: Policy, config: dict[str, Any], place: Path, model: Path | None
) -> tuple[dict[str, RecordDict], str]:
    """Content of the first message of each kind that the app may answer, and why there is none to train. Of counts that
    the app's ServerApp asks for by itself it is its own; of others what this project's server sends.
    """
    assert policy.guard is not None
    sent, why = ({TRAIN: _read_model(model)}, "") if model else _sent_first(folder, policy, config, place)
    start = {TRAIN: sent[TRAIN]} if TRAIN in sent else {}
    try:
        model_of(start.get(TRAIN, RecordDict()), policy.limits.max_parameters)
    except Unanswerable as error:
        start, why = {}, str(error) if start else why
    if not start and not policy.guard.counts:
        raise OptionError("guard", app, f"{why}: {NO_MODEL}")

    def content(kind: str) -> RecordDict:
        return sent.get(kind, start.get(TRAIN if kind.startswith("evaluate") else "", RecordDict(_first_round())))

    return start | {kind: content(kind) for kind in policy.guard.counts}, why


def _sent_first(app: Path, policy: Policy, config: dict[str, Any], folder: Path) -> tuple[dict[str, RecordDict], str]:
    """By kind the content of the first message that the app's ServerApp sends; and why none to train."""
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto

    assert policy.guard is not None
    project, copy = get_project_config(app), folder / "server"
    (identifier, version), own = get_metadata_from_config(project), project["tool"]["flwr"]["app"]
    shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (copy / "fedpriv_first_message.py").write_text(
        FIRST.format(server=own["components"]["serverapp"], wanted=[TRAIN, *policy.guard.counts])
    )
    lines = (
        *("[project]", f"name = {json.dumps(project['project']['name'])}", f"version = {json.dumps(version)}"),
        *("[tool.flwr.app]", f"publisher = {json.dumps(identifier.partition('/')[0])}"),
        *("[tool.flwr.app.components]", f"serverapp = {json.dumps(own['components']['serverapp'])}"),
        'clientapp = "fedpriv_first_message:app"',
    )
    (copy / "pyproject.toml").write_text("\n".join(lines) + "\n")
    (empty := folder / "empty").mkdir()
    limits = Limits.of(policy.guard, 16 * policy.limits.max_parameters + 2**20)
    context = Context(1, 1, {}, RecordDict(), dict(config))
    with Sandbox(copy, empty, limits, confined=policy.guard.sandbox == "namespaces") as box:
        answer = box.ask(request_bytes(message_of(RecordDict()), context), None)
    named, why = answer.arrays or (), f"its ServerApp gave no model ({last_line(answer.fault or 'it ended before')})"
    try:
        pairs = [[one.tobytes() for one in pair] for pair in zip(named[::2], named[1::2], strict=True)]
        return {kind.decode(): recorddict_from_proto(Proto.FromString(content)) for kind, content in pairs}, why
    except Exception as error:  # whatever a foreign process wrote
        return {}, f"its ServerApp gave no model ({error!r})"
