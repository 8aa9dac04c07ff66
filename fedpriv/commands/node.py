"""`fedpriv deploy node COMMAND ...`: a client's machine in a deployment (docs/deploy.md).

    policy                                       print a policy.yaml to fill in
    bundle APP                                   print the SHA-256 of an app, a folder or a .fab file
    probe                                        try whether guarded apps can tell each other anything on this kernel
    init    policy=FILE data=FOLDER classes=A,B size=32 [channels=3]
    init    policy=FILE data=FOLDER table=NAME schema_file=FILE [separator=auto] [decimal=point] [encoding=utf-8]
                                                 begin the data folder's ledger, once; declares its pictures or table
                                                 (exit code 3: of a column more than a fifth of the cells are lost)
    declare policy=FILE data=FOLDER [any of these options] [credentials=FOLDER]
                                                 declare the number of pictures or rows that the folder now holds, and
                                                 what is given besides; nothing that was spent is forgotten
    status  policy=FILE data=FOLDER [superlink=HOST:PORT credentials=FOLDER]
                                                 what was spent of each budget; how far this clock is from the server's
    report  policy=FILE data=FOLDER [out=guard.html]
                                                 of a guarded node, a page for its operator: what left, what it cost
    try     policy=FILE data=FOLDER guard=APP [model=FILE.npz] [client=0]
                                                 start an app on this machine's shards; nothing leaves, nothing is
                                                 booked, and `run` refuses an app of which too few starts answered
    run     policy=FILE data=FOLDER superlink=HOST:PORT credentials=FOLDER client=NUMBER [port=9094]
            [metrics_port=0] [metrics_address=127.0.0.1] [guard=any|APP]
                                                 answer a server; Ctrl-C or SIGTERM stops

DATA/<class>/* are the pictures, DATA/NAME is the table (CSV or Parquet). credentials: a node's folder from
`fedpriv deploy credentials`. port: of Flower's own service on this machine, a different one for each node.
metrics_port: Prometheus metrics and health; 0: none.
guard: any, or an app (a folder or a .fab file): foreign apps answer under the policy's section `guard` (docs/guard.md).
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from fedpriv.commands.schema import Decimal, FormOptions, Separator
from fedpriv.commands.superlink import check_proxies
from fedpriv.common.command_line import (
    DONE,
    FAILED,
    LOST,
    Existing,
    Folder,
    command,
    hints_of,
    nearest,
    read_option,
    read_options,
)
from fedpriv.common.errors import FedprivError, OptionError, RunFailed
from fedpriv.common.places import installed_code_only
from fedpriv.common.printing import say
from fedpriv.config.remote import REMOTE_VALUE
from fedpriv.deployment.data_ledger import PRIVATE, DataLedger, Signer, private_file, signer_of, wait_for_lock
from fedpriv.deployment.declaration import Declared, DeclaredTable, check_rows, count_rows
from fedpriv.deployment.policy import Policy, Spent, read_policy
from fedpriv.deployment.policy_template import TEMPLATE
from fedpriv.guard.shards import Shards, count_units, read_salt

if TYPE_CHECKING:
    from fedpriv.deployment.bundles import Approved
    from fedpriv.deployment.guard_policy import GuardPolicy
    from fedpriv.report.live.prometheus import NodeSnapshot


Client = Annotated[int, Field(ge=0, le=2**31)]
SuperLink = Annotated[
    str,
    Field(
        pattern=r"^(\[[\w:.%]+\]|[^\s/:@\[\]]+):([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])$",
        description="HOST:PORT, as in server.example:8000",
    ),
]


@dataclass(frozen=True)
class Node:
    """A client's machine: its policy, and the data folder with its ledger."""

    policy: Existing
    data: Folder

    @cached_property
    def rules(self) -> Policy:
        return read_policy(self.policy)

    def ledger(self, signer: Signer | None = None) -> DataLedger:
        return DataLedger(self.data, Path(self.rules.counter), signer)


@dataclass(frozen=True)
class Declaration:
    """What is declared of the data: pictures, or a table."""

    classes: str = ""
    size: Annotated[int | None, Field(ge=4, le=1024)] = None
    channels: Annotated[Literal["1", "3"] | None, Field(description="1 for grey or 3 for colour")] = None
    table: str = ""
    schema_file: Existing | None = None
    separator: Separator | None = None
    decimal: Decimal | None = None
    encoding: str = ""

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value}

    def declared(self, data: Path, warnings: list[str], guarded: bool = False) -> Declared | DeclaredTable:
        """What no run can be told otherwise. warnings: gets those of a table. guarded: nothing need be, where foreign
        apps alone are to run. Raises `OptionError` for what no run could name, `DataError`.
        """
        from fedpriv.data.sources import chosen_classes

        given = self.given()
        if guarded and not given:
            return Declared(0, (), 0, 0)
        if of_table := next((name for name in given if name not in PICTURES), None):
            if other := next((name for name in PICTURES if name in given), None):
                raise OptionError(other, given[other], f"of pictures, and {of_table} is of a table: one of them alone")
            if missing := next((name for name in ("table", "schema_file") if name not in given), None):
                words = "is missing: a table's file in the data folder, and the file of its schema"
                raise OptionError(missing, "", words)
            form = vars(FormOptions()) | {name: given[name] for name in vars(FormOptions()) if name in given}
            table = DeclaredTable(0, self.table, str(Path(given["schema_file"]).absolute()), **form)
            return replace(table, examples=count_rows(table, data, warnings))
        if missing := next((name for name in ("classes", "size") if name not in given), None):
            words = "is missing; a table has table=NAME schema_file=FILE in place of classes and size"
            raise OptionError(missing, "", words)
        classes, text = tuple(self.classes.split(",")), f"[{self.classes}]"
        if len(set(classes)) < max(2, len(classes)) or not all(classes) or not REMOTE_VALUE.fullmatch(text):
            words = "at least 2 different names of class folders, as in cat,dog, of A-Z a-z 0-9 _ . + - alone"
            raise OptionError("classes", self.classes, words)
        return Declared(len(chosen_classes(data, classes)), classes, given["size"], int(self.channels or 3))


#: Options of pictures; the others are of tables.
PICTURES = ("classes", "size", "channels")


@command
def policy() -> None:
    say(TEMPLATE, end="")


@command
def bundle(app: Existing) -> None:
    from fedpriv.deployment.bundles import bundle_digest

    say(bundle_digest(app))


@command
def probe() -> None:
    from fedpriv.guard.probe import probe

    found = probe()
    say("\n  ".join([f"{found.in_words} ({found.seconds:.0f} s)", *found.differing]))
    if found.differing:
        raise RunFailed("the sandbox of this machine does not keep apps apart")


@command
def init(*, node: Node, declaration: Declaration) -> int:
    policy, data = node.rules, node.data
    if policy.guard is not None:
        check_shards(policy.guard, data)
        _check_sandbox(policy.guard)
    warnings: list[str] = []
    declared = declaration.declared(data, warnings, policy.guard is not None)
    say(f"public, until `declare` changes it: {_in_words(declared, data)}")
    admits = "Gaussian noise alone, no secure sum" if policy.accountant == "gaussian" else "every mechanism"
    say(f"accountant {policy.accountant}: {admits}; it may be changed until the first message leaves")
    say(f"for good: one ledger, {data / '.fedpriv'}, with the counter {policy.counter}", flush=True)
    DataLedger.create(data, Path(policy.counter), declared, policy.accounting(None, Spent()))
    say("the ledger has begun" if policy.guard else f"{declared.number} declared; the ledger has begun")
    if policy.guard is not None:
        read_salt(data, Path(policy.counter), used=lambda: False)  # a crash may have left one of its files
        say(f"guard: {policy.guard.shards} shards by unit {policy.guard.unit}, divided for good by a salt made now")
    return _warned(warnings)


def _warned(warnings: Sequence[str]) -> int:
    """Says what the operator has to know of the rows; the command's exit code."""
    say("".join(f"{words}\n" for words in warnings), end="", file=sys.stderr)
    return LOST if warnings else DONE


def check_shards(guard: GuardPolicy, data: Path) -> None:
    """Raises `OptionError` for more shards than units, but with `single`; what is found stays on this machine."""
    if (found := count_units(data, guard)) < guard.shards and not guard.single:
        raise OptionError("guard.shards", guard.shards, f"at most one for each {guard.unit}, and there are {found}")


def _check_sandbox(guard: GuardPolicy) -> None:
    """Says what the probe found. Raises `OptionError` where apps could tell each other something."""
    from fedpriv.guard import groups
    from fedpriv.guard.probe import probe
    from fedpriv.guard.sandbox import SandboxUnavailable

    if guard.sandbox == "none":
        return
    try:
        found = probe()
    except SandboxUnavailable as error:
        say(f"sandbox: no app can run on this machine, as it is: {error}")
        return
    if found.differing:
        raise OptionError("guard.sandbox", guard.sandbox, f"must keep apps apart, and here: {found.in_words}")
    say(f"sandbox: {found.in_words}. {groups.in_words()}")


@command
def declare(*, node: Node, declaration: Declaration, credentials: Existing | None = None) -> int:
    warnings: list[str] = []
    with node.ledger(identity_of(credentials) if credentials else None).held() as ledger:
        ledger.sign_on()
        before = ledger.declared()
        kept = {name: value for name, value in vars(before).items() if name in hints_of(Declaration)}
        if isinstance(before, Declared) and not before.classes:
            kept = {}  # of a guarded node that declared nothing
        elif isinstance(before, Declared):
            kept |= {"classes": ",".join(before.classes), "channels": str(before.channels)}
        now = read_options(Declaration, kept | declaration.given()).declared(node.data, warnings)
        if now != before:
            ledger.declare(now)
    say(f"{now.number} declared, {before.examples} before: {_in_words(now, node.data)}")
    return _warned(warnings)


def _in_words(declared: Declared | DeclaredTable, data: Path) -> str:
    """With the pictures of every class: a name that is mistyped has none."""
    from fedpriv.data.sources import chosen_classes

    if not isinstance(declared, DeclaredTable) and not declared.classes:
        return "nothing of the data; foreign apps alone are to run"
    if isinstance(declared, DeclaredTable):
        return f"{declared.number} of {declared.table}; schema {declared.digest}"
    found = Counter(file.label for file in chosen_classes(data, declared.classes))
    counts = ", ".join(f"{label} {name} ({found[name]} pictures)" for label, name in enumerate(declared.classes))
    return f"{counts}; {declared.size} x {declared.size} pixels, channels {declared.channels}"


@command
def status(*, node: Node, superlink: str = "", credentials: Path = Path()) -> None:
    from fedpriv.deployment.approved_weights import weights_in_words
    from fedpriv.deployment.node_audit import audits_in_words

    now = snapshot(node.policy, node.data, thorough=True)
    _forget_changed(node)
    say(f"{now.releases} messages left, {now.ledger_entries} entries")
    for budget, spent in now.epsilon_spent.items():
        say(f"{budget}: epsilon {spent:.4g} of {now.max_epsilon[budget]:g}")
    for line in audits_in_words(node.policy, node.data):
        say(f"audited: {line}")
    for line in weights_in_words(node.rules.weights):
        say(f"weights: {line}")
    if now.refusals:
        say("refused: " + ", ".join(f"{code} {number}" for code, number in sorted(now.refusals.items())))
    if superlink:
        from fedpriv.deployment.clock import measured

        say(f"clock: {measured(superlink, there(credentials / 'ca.crt')) or superlink + ' does not answer'}")


def _forget_changed(node: Node) -> None:
    """Of a guarded node: rows that were deleted since its last message leave the copies that its apps are given."""
    policy, data = node.rules, node.data
    if policy.guard is None or not (data / PRIVATE / "shards").exists():
        return
    with private_file(data / PRIVATE / "lock") as file:
        wait_for_lock(file, data)
        if Shards(data, policy.guard, read_salt(data, Path(policy.counter), used=lambda: True)).forget_changed():
            say("the data have changed since the last message: the copies of its shards are deleted")


@command
def report(*, node: Node, out: Path = Path("guard.html")) -> None:
    from fedpriv.guard.reports import write_node_report

    say(write_node_report(node.policy, node.data, out))


def snapshot(policy_file: Path, data: Path, thorough: bool = False) -> NodeSnapshot:
    """State of a node as read from its files, for `status` and for metrics. thorough: read every line of the ledger.

    Raises `OptionError`, `LedgerRefused`.
    """
    from fedpriv.deployment.data_ledger import read_counts
    from fedpriv.report.live.prometheus import NodeSnapshot

    node = Node(policy_file, data)
    policy = node.rules
    with node.ledger().seen(thorough) as ledger:
        spent, last, entries = ledger.spent(), ledger.last_release(), ledger.num_entries()
    return NodeSnapshot(
        releases=spent.messages,
        refusals=read_counts(data),
        epsilon_spent=policy.spent(spent),
        max_epsilon={budget.name: budget.max_epsilon for budget in policy.budgets},
        last_release=last,
        ledger_entries=entries,
    )


@command
def run(
    *,
    node: Node,
    superlink: SuperLink,
    credentials: Folder,
    client: Client,
    port: Annotated[int, Field(ge=1024, le=65535)] = 9094,
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0,
    metrics_address: str = "127.0.0.1",
    guard: str = "",
) -> None:
    from fedpriv.deployment.approved_weights import check_files
    from fedpriv.deployment.bundles import Approved, guard_bundles
    from fedpriv.deployment.clock import check_clock, explain_refusals
    from fedpriv.deployment.data_ledger import note_refusal
    from fedpriv.deployment.supernode import run_supernode, wait_to_activate

    file, data, keys = (path.absolute() for path in (node.policy, node.data, credentials))
    node = Node(file, data)
    check_files(node.rules.weights, file)
    with node.ledger(identity_of(keys)).held(thorough=True) as ledger:
        ledger.sign_on()
        ledger.settle(node.rules)  # refusals happen now, not in the first round
        if isinstance(declared := ledger.declared(), DeclaredTable):
            check_rows(declared, data)
    _forget_changed(node)

    approved = _guarded(node, guard) if guard else Approved(file)
    if guard:
        _check_tried(node, guard, client)
    guard_bundles(approved, partial(note_refusal, data))
    warn = partial(say, file=sys.stderr, flush=True)
    check_proxies()
    check_clock(superlink, there(keys / "ca.crt"), warn)
    refused = explain_refusals(warn)
    wait_to_activate(warn)
    config = {"partition-id": client, "policy": str(file), "data": str(data)}
    for name, place in (("identity-key", keys / "identity.key"), ("peer-keys", keys / "peers.json")):
        config |= {name: str(place)} if place.exists() else {}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        with _metrics(metrics_address, metrics_port, node):
            run_supernode(
                [
                    *("--superlink", superlink),
                    *("--root-certificates", str(there(keys / "ca.crt"))),
                    *("--auth-supernode-private-key", str(there(keys / "node.key"))),
                    *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())),
                ],
                port,
                approved,
            )
    finally:
        if refused:  # Flower itself would end with exit code 0
            raise RunFailed(refused[0])


@command
def try_(*, node: Node, guard: str, model: Existing | None = None, client: Client = 0) -> int:
    if guard == "any":
        raise OptionError("guard", "any", "one app: its folder or its .fab file")
    return DONE if _try_app(node, _app(guard), client, model) else FAILED


def _app(guard: str) -> Path:
    app: Path = read_option("guard", guard, Existing)
    return app


def _try_app(node: Node, app: Path, client: int, model: Path | None = None) -> bool:
    """Prints how an app's starts went; whether as many answered as the policy asks for."""
    from fedpriv.guard.trial import try_app

    trial = try_app(node.policy, node.data.absolute(), app, client, model)
    rules = node.rules.guard
    assert rules is not None
    for kind, starts in trial.starts.items():
        say(f"{kind}: {starts}")
    if trial.no_model:
        say(f"train: not tried, and messages to train are refused, since {trial.no_model}; model=FILE.npz gives one")
    if all_starts := [starts for starts in trial.starts.values() if starts.seconds]:
        seconds, used = [one for starts in all_starts for one in starts.seconds], max(s.processor_s for s in all_starts)
        mean, most = sum(seconds) / len(seconds), max(seconds)
        say(f"seconds of a start: {mean:.2f}, {most:.2f} at most; of the processor {used:.2f} at most")
        memory = max(starts.memory_bytes for starts in all_starts)
        say(f"memory of a start: {memory / 2**20:.0f} MiB at most, libraries included")
    say("nothing was booked, and nothing left; what is said here depends on the data: keep it on this machine")
    return trial.enough(rules)


def _check_tried(node: Node, guard: str, client: int) -> None:
    """Raises `OptionError` for an app of which too few starts answered, or that the policy lists and nobody has tried
    with these rules, data and packages. One that is given is tried now.
    """
    from fedpriv.deployment.bundles import bundle_digest
    from fedpriv.guard.shards import known_trial, state_of, why_not

    policy, data = node.rules, node.data
    rules = policy.guard
    assert rules is not None
    if rules.min_answered == 0:
        return
    state = state_of(data, policy)
    app = None if guard == "any" else bundle_digest(_app(guard))
    digests = [app] if app else [] if rules.apps == "any" else rules.apps
    if app and ((known := known_trial(data, app, policy, client)) is None or known.state != state):
        _try_app(node, _app(guard), client)
    for digest in digests:
        if (why := why_not(data, digest, policy, client, state=state)) is not None:
            raise OptionError("guard.min_answered", rules.min_answered, f"{digest[:16]}: {why}")
    if rules.apps == "any" and not app:
        say(
            "guard: apps may run that nobody has tried here (fedpriv deploy node try): each start that fails is a zero "
            "update, and is spent",
            file=sys.stderr,
        )


def _guarded(node: Node, guard: str) -> Approved:
    """Which apps may run under the guard. Raises `OptionError` where none can."""
    from fedpriv.deployment.bundles import Approved, bundle_digest
    from fedpriv.guard.sandbox import available

    rules = node.rules.guard
    if rules is None:
        raise OptionError("guard", guard, "needs a section `guard` in the policy (docs/guard.md)")
    if rules.sandbox == "namespaces" and (lacking := available()) is not None:
        raise OptionError("guard.sandbox", "namespaces", lacking)
    check_shards(rules, node.data)
    approved = Approved(node.policy, "any" if guard == "any" else bundle_digest(_app(guard)))
    if approved.guard != "any" and approved.guard not in approved:
        raise OptionError("guard", guard, f"{approved.guard} is not among the policy's guard.apps")
    return approved


def identity_of(credentials: Path) -> Signer | None:
    """Who signs the ledger's heads: the identity among a node's credentials, if there is one."""
    key = credentials / "identity.key"
    return signer_of(key, "credentials") if key.exists() else None


@contextmanager
def _metrics(address: str, port: int, node: Node) -> Iterator[None]:
    """Serves `snapshot`, if a port is given. A node is healthy while it can still release something."""
    if port == 0:
        yield
        return
    from fedpriv.report.live.prometheus import NodeMetrics, serve_metrics

    def healthy() -> tuple[bool, str]:
        try:
            return True, f"{snapshot(node.policy, node.data).releases} messages left"
        except (FedprivError, OSError, ValueError) as error:
            return False, str(error)

    registry = NodeMetrics(lambda: snapshot(node.policy, node.data)).registry
    names = ("metrics_address", "metrics_port")
    with serve_metrics(address, port, registry, healthy, options=names):
        yield


def there(path: Path) -> Path:
    if not path.exists():
        raise OptionError("credentials", str(path.parent), f"{path.name} is missing there")
    return path


#: Of each word that follows, its command.
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "policy": policy,
    "bundle": bundle,
    "probe": probe,
    "init": init,
    "declare": declare,
    "status": status,
    "report": report,
    "try": try_,
    "run": run,
}


@command
def main(*overrides: str) -> int:
    installed_code_only()
    name, *given = overrides
    if name not in COMMANDS:
        raise OptionError("COMMAND", name, f"allowed: {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")
    if name == "bundle":
        given = [word.removeprefix("app=") for word in given]
    return COMMANDS[name](given)


def console() -> None:
    """The command `fedpriv-node`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
