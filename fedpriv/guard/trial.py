"""An app is started on a machine's own shards before it may answer anybody: nothing is booked, and nothing leaves.

An app that crashes on every shard sends zero updates with noise, looks like any other to its server, and spends the
budget. `try_app` counts on the operator's side alone how many starts answer. The model that goes to them is the one
that the app's own ServerApp sends first: it runs in the sandbox too, on an empty folder, before a grid that keeps its
first train message (`FIRST`). What is counted depends on the data: it goes to the operator and into the ledger's
folder, and to nobody else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
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
from fedpriv.common.files import write_atomic
from fedpriv.deployment.bundles import bundle_digest, bundle_files
from fedpriv.deployment.data_ledger import PRIVATE
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.deployment.policy import Policy, read_policy
from fedpriv.guard.arrays import Model, Unanswerable
from fedpriv.guard.guarded_message import RUN_OF_GUARD, Guard, _Answering
from fedpriv.guard.record import request_bytes
from fedpriv.guard.sandbox import Answer, Limits, Sandbox
from fedpriv.guard.shard_counts import SHARDS
from fedpriv.guard.shards import Shards, read_salt

#: In the ledger's folder: what the last trial of each app gave, under which rules.
TRIALS = "guard-trials.json"
#: Rules that decide whether a start answers.
_RULES = (
    *("unit", "table", "column", "shards", "repeat", "single", "sandbox", "memory_mib", "processor_seconds"),
    *("wall_seconds", "processes", "api", "node_config"),
)
#: Characters of a reason that are printed.
LONGEST = 200
#: A ClientApp that answers with the bytes of the first content that its app's ServerApp sends to a node to train with.
FIRST = '''
import sys, types
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.object_ref import load_app
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

class Sent(BaseException):
    """The first train message."""

class First(Grid):
    run = None
    def set_run(self, run): pass
    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type)
    def get_node_ids(self): return list(range(2, 102))
    def push_messages(self, messages):
        for message in messages:
            if message.metadata.message_type.startswith("train") and message.content.array_records:
                raise Sent(message.content)
        return []
    def pull_messages(self, message_ids): return []
    def send_and_receive(self, messages, *, timeout=None): return self.push_messages(messages)

app = ClientApp()

@app.train()
def first(message, context):
    try:
        import fedpriv
    except ImportError:
        fedpriv = sys.modules["fedpriv"] = types.ModuleType("fedpriv")
    fedpriv.guarded = lambda strategy, *given, **named: strategy
    start = Strategy.start  # a test set of the server's is not here
    Strategy.start = lambda self, *given, evaluate_fn=None, **named: start(self, *given, **named)
    try:
        load_app({server!r}, RuntimeError, ".")(grid=First(), context=context)
    except Sent as sent:
        found = recorddict_to_proto(sent.args[0]).SerializeToString()
        content = RecordDict({{"sent": ArrayRecord({{"0": Array(np.frombuffer(found, np.uint8))}})}})
        return Message(content, reply_to=message)
    raise RuntimeError("the ServerApp ended and sent no model")
'''


def _last_line(fault: str) -> str:
    """Of a traceback: what was raised."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()]
    return (lines or [""])[-1].removeprefix("the app failed: ")[:LONGEST]


@dataclass
class Starts:
    """How an app's starts went. reasons: of those that did not answer."""

    answered: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    processor_s: float = 0.0
    memory_bytes: int = 0

    def add(self, model: Model, answer: Answer | None) -> None:
        """answer: None: a shard without a start, which does not count."""
        if answer is None:
            return
        self.seconds.append(answer.seconds)
        self.processor_s = np.fmax(self.processor_s, answer.processor_s)
        self.memory_bytes = max(self.memory_bytes, answer.memory_bytes)
        fault = model.fault(answer.arrays)
        if fault is None:
            self.answered += 1
        else:
            self.reasons[_last_line(answer.fault or SHARDS[fault])] += 1

    @property
    def started(self) -> int:
        return self.answered + self.reasons.total()

    @property
    def share(self) -> float:
        return self.answered / self.started if self.started else 0.0

    def __str__(self) -> str:
        why = "; ".join(f"{count} x {reason}" for reason, count in self.reasons.most_common(10))
        words = f"{self.answered} of {self.started} starts answered ({100 * self.share:.1f} %)"
        return f"{words}: {why}" if why else words

    def enough(self, rules: GuardPolicy) -> bool:
        """Whether as many answered as the policy asks for."""
        return self.share >= rules.min_answered and (self.started > 0 or rules.min_answered == 0)


def try_app(policy_file: Path, data: Path, app: Path, client: int = 0, model: Path | None = None) -> Starts:
    """Starts an app once on each shard that a message would start it on, without padding, and notes the result.

    Args:
        app: its folder, or a .fab file. client: the machine's number, which the app sees as its partition-id.
        model: a .npz file of the arrays that the app trains; None: its ServerApp sends them.

    Raises:
        OptionError: the app cannot be read, or gives no model. LedgerRefused, DataError: as for a message.
    """
    digest, policy = bundle_digest(app), read_policy(policy_file)
    if policy.guard is None:
        raise OptionError("policy", policy_file, "has no section `guard` (docs/guard.md)")
    rules = policy.guard.model_copy(update={"apps": (digest,), "pad_seconds": None})
    policy = policy.model_copy(update={"guard": rules})
    starts = Starts()
    with tempfile.TemporaryDirectory(prefix="fedpriv-try-") as name:
        folder = _unpacked(app, Path(name))
        config = get_fused_config_from_dir(folder, {})
        content = _read_model(model) if model else _sent_first(folder, policy, config, Path(name))
        message = train_message(content)
        guard = Guard(client, policy_file, data, folder, digest)
        answering = _Answering(guard, policy, message, Context(1, 2, {}, RecordDict(), dict(config)))
        try:
            answering.model  # noqa: B018 - read here, so that what is wrong with it is not a shard's fault
        except Unanswerable as error:
            raise OptionError("guard", app, f"{error}: {NO_MODEL}") from None
        with answering.ledger.held() as ledger:
            shards = Shards(data, rules, read_salt(data, ledger.counter, used=lambda: ledger.holds_run(RUN_OF_GUARD)))
            files = shards.asked()
        for answer in answering.asked(shards.place, files):
            starts.add(answering.model, answer)
    _note(data, digest, rules, starts)
    return starts


NO_MODEL = "a guarded app trains one record of arrays; model=FILE.npz, with the arrays in their order, is another way"


def known_starts(data: Path, digest: str, rules: GuardPolicy) -> Starts | None:
    """Of the last trial of an app under these rules, if there was one."""
    try:
        found = _read(data)[digest]
        known = Starts(int(found["answered"]), Counter(found["reasons"]))
        return known if found["rules"] == _rules_digest(rules) else None
    except (KeyError, TypeError, ValueError):  # none, or a damaged file: tried again
        return None


def _note(data: Path, digest: str, rules: GuardPolicy, starts: Starts) -> None:
    counts = {"answered": starts.answered, "reasons": starts.reasons, "rules": _rules_digest(rules)}
    write_atomic(data / PRIVATE / TRIALS, json.dumps(_read(data) | {digest: counts}) + "\n", mode=0o600)


def _read(data: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((data / PRIVATE / TRIALS).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _rules_digest(rules: GuardPolicy) -> str:
    text = json.dumps({name: getattr(rules, name) for name in _RULES}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _unpacked(app: Path, into: Path) -> Path:
    if app.is_dir():
        return app
    for path, content in bundle_files(app.read_bytes()).items():
        (into / "bundle" / path).parent.mkdir(parents=True, exist_ok=True)
        (into / "bundle" / path).write_bytes(content)
    return into / "bundle"


def train_message(content: RecordDict, node: int = 2) -> Message:
    """A message as a node gets it, of no run."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(content, node, "train")
    message.metadata.__dict__.update({"_message_id": "try", "_run_id": 1})
    return message


def _read_model(file: Path) -> RecordDict:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            record = ArrayRecord({name: Array(arrays[name]) for name in arrays.files})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise OptionError("model", file, f"no .npz file of a model's arrays ({error})") from None
    return RecordDict({"arrays": record, "config": ConfigRecord({"server-round": 1})})


def _sent_first(app: Path, policy: Policy, config: dict[str, Any], folder: Path) -> RecordDict:
    """The content of the app's first train message."""
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto

    assert policy.guard is not None
    project, copy = get_project_config(app), folder / "server"
    (identifier, version), own = get_metadata_from_config(project), project["tool"]["flwr"]["app"]
    shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (copy / "fedpriv_first_message.py").write_text(FIRST.format(server=own["components"]["serverapp"]))
    lines = (
        *("[project]", f"name = {json.dumps(project['project']['name'])}", f"version = {json.dumps(version)}"),
        *("[tool.flwr.app]", f"publisher = {json.dumps(identifier.partition('/')[0])}"),
        *("[tool.flwr.app.components]", f"serverapp = {json.dumps(own['components']['serverapp'])}"),
        'clientapp = "fedpriv_first_message:app"',
    )
    (copy / "pyproject.toml").write_text("\n".join(lines) + "\n")
    (empty := folder / "empty").mkdir()
    rules, size = policy.guard, 16 * policy.limits.max_parameters + 2**20
    limits = Limits(rules.memory_mib * 2**20, rules.processor_seconds, rules.wall_seconds, size, None, rules.processes)
    context = Context(1, 1, {}, RecordDict(), dict(config))
    with Sandbox(copy, empty, limits, confined=rules.sandbox == "namespaces") as box:
        answer = box.ask(request_bytes(train_message(RecordDict()), context), None)
    if answer.arrays is None:
        raise OptionError("guard", app, f"its ServerApp gave no model ({_last_line(answer.fault or '')}): {NO_MODEL}")
    try:
        return recorddict_from_proto(Proto.FromString(answer.arrays[0].tobytes()))
    except Exception as error:  # whatever a foreign process wrote
        raise OptionError("guard", app, f"its ServerApp gave no model ({error!r}): {NO_MODEL}") from None
