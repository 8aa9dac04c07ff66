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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.commands.superlink import check_proxies
from fedpriv.common.command_line import DONE, FAILED, LOST, command, command_options, nearest, whole_number
from fedpriv.common.errors import FedprivError, OptionError, RunFailed
from fedpriv.common.places import installed_code_only
from fedpriv.common.printing import say
from fedpriv.deployment.policy_template import TEMPLATE

if TYPE_CHECKING:
    from fedpriv.deployment.bundles import Approved
    from fedpriv.deployment.declaration import Declared, DeclaredTable
    from fedpriv.deployment.guard_policy import GuardPolicy
    from fedpriv.deployment.policy import Policy
    from fedpriv.deployment.signed_head import Signer
    from fedpriv.report.live.prometheus import NodeSnapshot


def _policy(options: dict[str, str]) -> None:
    say(TEMPLATE, end="")


def _bundle(options: dict[str, str]) -> None:
    from fedpriv.deployment.bundles import bundle_digest

    say(bundle_digest(_existing(options, "app")))


def _probe(options: dict[str, str]) -> None:
    from fedpriv.guard.probe import probe

    found = probe()
    say("\n  ".join([f"{found.in_words} ({found.seconds:.0f} s)", *found.differing]))
    if found.differing:
        raise RunFailed("the sandbox of this machine does not keep apps apart")


def _init(options: dict[str, str]) -> int:
    from fedpriv.deployment.data_ledger import DataLedger
    from fedpriv.deployment.policy import Spent, read_policy

    policy, data = read_policy(_existing(options, "policy")), _existing(options, "data")
    if policy.guard is not None:
        _check_shards(policy.guard, data)
        _check_sandbox(policy.guard)
    warnings: list[str] = []
    declared = _declared(options, data, warnings, policy.guard is not None)
    say(f"public, until `declare` changes it: {_in_words(declared, data)}")
    admits = "Gaussian noise alone, no secure sum" if policy.accountant == "gaussian" else "every mechanism"
    say(f"accountant {policy.accountant}: {admits}; it may be changed until the first message leaves")
    say(f"for good: one ledger, {data / '.fedpriv'}, with the counter {policy.counter}", flush=True)
    DataLedger.create(data, Path(policy.counter), declared, policy.accounting(None, Spent()))
    say("the ledger has begun" if policy.guard else f"{declared.number} declared; the ledger has begun")
    if policy.guard is not None:
        from fedpriv.guard.shards import read_salt

        read_salt(data, Path(policy.counter), used=lambda: False)  # a crash may have left one of its files
        say(f"guard: {policy.guard.shards} shards by unit {policy.guard.unit}, divided for good by a salt made now")
    return _warned(warnings)


def _warned(warnings: Sequence[str]) -> int:
    """Says what the operator has to know of the rows; the command's exit code."""
    say("".join(f"{words}\n" for words in warnings), end="", file=sys.stderr)
    return LOST if warnings else DONE


def _check_shards(guard: GuardPolicy, data: Path) -> None:
    """Raises `OptionError` for more shards than units, but with `single`; what is found stays on this machine."""
    from fedpriv.guard.shards import count_units

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


def _declare(options: dict[str, str]) -> int:
    from fedpriv.deployment.data_ledger import DataLedger
    from fedpriv.deployment.declaration import Declared
    from fedpriv.deployment.policy import read_policy

    policy, data = read_policy(_existing(options, "policy")), _existing(options, "data")
    signer = _signer(_existing(options, "credentials")) if options["credentials"] else None
    warnings: list[str] = []
    with DataLedger(data, Path(policy.counter), signer).held() as ledger:
        ledger.sign_on()
        before = ledger.declared()
        kept = {name: str(value) for name, value in vars(before).items() if name != "examples"}
        kept |= {"classes": ",".join(before.classes)} if isinstance(before, Declared) else {}
        now = _declared(options | kept | {name: value for name, value in options.items() if value}, data, warnings)
        if now != before:
            ledger.declare(now)
    say(f"{now.number} declared, {before.examples} before: {_in_words(now, data)}")
    return _warned(warnings)


#: Options of pictures, and of tables with their values where none is given.
PICTURES, TABLE = ("classes", "size", "channels"), {"separator": "auto", "decimal": "point", "encoding": "utf-8"}


def _declared(
    options: dict[str, str], data: Path, warnings: list[str], guarded: bool = False
) -> Declared | DeclaredTable:
    """What is declared of these data. warnings: gets those of a table. guarded: nothing need be, where foreign apps
    alone are to run. Raises `OptionError` for what no run could name, `DataError`.
    """
    if guarded and not any(options[name] for name in DECLARED):
        from fedpriv.deployment.declaration import Declared

        return Declared(0, (), 0, 0)
    table = [name for name in ("table", "schema_file", *TABLE) if options[name]]
    if not table:
        return _declared_pictures(options, data)
    if other := next((name for name in PICTURES if options[name]), None):
        raise OptionError(other, options[other], f"of pictures, and {table[0]} is of a table: one of them alone")
    return _declared_table(options, data, warnings)


def _declared_table(options: dict[str, str], data: Path, warnings: list[str]) -> DeclaredTable:
    from fedpriv.data.table_files import DECIMALS, SEPARATORS
    from fedpriv.deployment.declaration import DeclaredTable, count_rows

    for name in ("table", "schema_file"):
        if not options[name]:
            raise OptionError(name, "", "is missing: a table's file in the data folder, and the file of its schema")
    for name, allowed in (("separator", ("auto", *SEPARATORS)), ("decimal", tuple(DECIMALS))):
        if options[name] and options[name] not in allowed:
            raise OptionError(name, options[name], f"allowed: {', '.join(allowed)}")
    form = {name: options[name] or usual for name, usual in TABLE.items()}
    schema = _existing(options, "schema_file").absolute()
    declared = DeclaredTable(0, options["table"], str(schema), **form)
    return replace(declared, examples=count_rows(declared, data, warnings))


def _declared_pictures(options: dict[str, str], data: Path) -> Declared:
    from fedpriv.config.remote import REMOTE_VALUE
    from fedpriv.data.sources import chosen_classes
    from fedpriv.deployment.declaration import Declared

    for name in ("classes", "size"):
        if not options[name]:
            raise OptionError(
                name, "", "is missing; a table has table=NAME schema_file=FILE in place of classes and size"
            )
    options = options | {"channels": options["channels"] or "3"}
    classes = tuple(options["classes"].split(","))
    if (
        len(set(classes)) < max(2, len(classes))
        or not all(classes)
        or not REMOTE_VALUE.fullmatch(f"[{','.join(classes)}]")
    ):
        words = "at least 2 different names of class folders, as in cat,dog, of A-Z a-z 0-9 _ . + - alone"
        raise OptionError("classes", options["classes"], words)
    if options["channels"] not in ("1", "3"):
        raise OptionError("channels", options["channels"], "1 for grey or 3 for colour")
    size = whole_number(options, "size", 4, 1024)
    return Declared(len(chosen_classes(data, classes)), classes, size, int(options["channels"]))


def _in_words(declared: Declared | DeclaredTable, data: Path) -> str:
    """With the pictures of every class: a name that is mistyped has none."""
    from fedpriv.data.sources import chosen_classes
    from fedpriv.deployment.declaration import DeclaredTable

    if not isinstance(declared, DeclaredTable) and not declared.classes:
        return "nothing of the data; foreign apps alone are to run"
    if isinstance(declared, DeclaredTable):
        return f"{declared.number} of {declared.table}; schema {declared.digest}"
    found = Counter(file.label for file in chosen_classes(data, declared.classes))
    counts = ", ".join(f"{label} {name} ({found[name]} pictures)" for label, name in enumerate(declared.classes))
    return f"{counts}; {declared.size} x {declared.size} pixels, channels {declared.channels}"


def _status(options: dict[str, str]) -> None:
    from fedpriv.deployment.approved_weights import weights_in_words
    from fedpriv.deployment.node_audit import audits_in_words
    from fedpriv.deployment.policy import read_policy

    policy, data = _existing(options, "policy"), _existing(options, "data")
    now = snapshot(policy, data, thorough=True)
    _forget_changed(policy, data)
    say(f"{now.releases} messages left, {now.ledger_entries} entries")
    for budget, spent in now.epsilon_spent.items():
        say(f"{budget}: epsilon {spent:.4g} of {now.max_epsilon[budget]:g}")
    for line in audits_in_words(_existing(options, "policy"), _existing(options, "data")):
        say(f"audited: {line}")
    for line in weights_in_words(read_policy(_existing(options, "policy")).weights):
        say(f"weights: {line}")
    if now.refusals:
        say("refused: " + ", ".join(f"{code} {number}" for code, number in sorted(now.refusals.items())))
    if options["superlink"]:
        from fedpriv.deployment.clock import measured

        found = measured(options["superlink"], _there(Path(options["credentials"]).expanduser() / "ca.crt"))
        say(f"clock: {found or options['superlink'] + ' does not answer'}")


def _forget_changed(policy_file: Path, data: Path) -> None:
    """Of a guarded node: rows that were deleted since its last message leave the copies that its apps are given."""
    from fedpriv.deployment.data_ledger import PRIVATE, private_file, wait_for_lock
    from fedpriv.deployment.policy import read_policy
    from fedpriv.guard.shards import Shards, read_salt

    policy = read_policy(policy_file)
    if policy.guard is None or not (data / PRIVATE / "shards").exists():
        return
    with private_file(data / PRIVATE / "lock") as file:
        wait_for_lock(file, data)
        if Shards(data, policy.guard, read_salt(data, Path(policy.counter), used=lambda: True)).forget_changed():
            say("the data have changed since the last message: the copies of its shards are deleted")


def _report(options: dict[str, str]) -> None:
    from fedpriv.guard.node_report import write_node_report

    say(write_node_report(_existing(options, "policy"), _existing(options, "data"), Path(options["out"])))


def snapshot(policy_file: Path, data: Path, thorough: bool = False) -> NodeSnapshot:
    """State of a node as read from its files, for `status` and for metrics. thorough: read every line of the ledger.

    Raises `OptionError`, `LedgerRefused`.
    """
    from fedpriv.deployment.data_ledger import DataLedger
    from fedpriv.deployment.policy import read_policy
    from fedpriv.deployment.refusals import read_counts
    from fedpriv.report.live.prometheus import NodeSnapshot

    policy = read_policy(policy_file)
    with DataLedger(data, Path(policy.counter)).seen(thorough) as ledger:
        spent, last, entries = ledger.spent(), ledger.last_release(), ledger.num_entries()
    return NodeSnapshot(
        releases=spent.messages,
        refusals=read_counts(data),
        epsilon_spent=policy.spent(spent),
        max_epsilon={budget.name: budget.max_epsilon for budget in policy.budgets},
        last_release=last,
        ledger_entries=entries,
    )


def _run(options: dict[str, str]) -> None:
    from fedpriv.deployment.approved_weights import check_files
    from fedpriv.deployment.bundles import Approved, guard_bundles
    from fedpriv.deployment.clock import check_clock, explain_refusals
    from fedpriv.deployment.data_ledger import DataLedger
    from fedpriv.deployment.declaration import DeclaredTable, check_rows
    from fedpriv.deployment.policy import read_policy
    from fedpriv.deployment.refusals import note_refusal
    from fedpriv.deployment.supernode import run_supernode, wait_to_activate

    file, data, keys = (_existing(options, name).absolute() for name in ("policy", "data", "credentials"))
    client = whole_number(options, "client", 0, 2**31)
    port = whole_number(options, "port", 1024, 65535)
    policy = read_policy(file)
    check_files(policy.weights, file)
    with DataLedger(data, Path(policy.counter), _signer(keys)).held(thorough=True) as ledger:
        ledger.sign_on()
        ledger.settle(policy)  # refusals happen now, not in the first round
        if isinstance(declared := ledger.declared(), DeclaredTable):
            check_rows(declared, data)
    _forget_changed(file, data)

    approved = _guarded(options, policy, file) if options["guard"] else Approved(file)
    if options["guard"]:
        _check_tried(options, file)
    guard_bundles(approved, partial(note_refusal, data))
    warn = partial(say, file=sys.stderr, flush=True)
    check_proxies()
    check_clock(options["superlink"], _there(keys / "ca.crt"), warn)
    refused = explain_refusals(warn)
    wait_to_activate(warn)
    config = {"partition-id": client, "policy": str(file), "data": str(data)}
    for name, place in (("identity-key", keys / "identity.key"), ("peer-keys", keys / "peers.json")):
        config |= {name: str(place)} if place.exists() else {}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        with _metrics(options, file, data):
            run_supernode(
                [
                    *("--superlink", options["superlink"]),
                    *("--root-certificates", str(_there(keys / "ca.crt"))),
                    *("--auth-supernode-private-key", str(_there(keys / "node.key"))),
                    *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())),
                ],
                port,
                approved,
            )
    finally:
        if refused:  # Flower itself would end with exit code 0
            raise RunFailed(refused[0])


def _try(options: dict[str, str]) -> int:
    if options["guard"] == "any":
        raise OptionError("guard", "any", "one app: its folder or its .fab file")
    return DONE if _try_app(options, _existing(options, "policy")) else FAILED


def _try_app(options: dict[str, str], policy: Path) -> bool:
    """Prints how an app's starts went; whether as many answered as the policy asks for."""
    from fedpriv.deployment.policy import read_policy
    from fedpriv.guard.trial import try_app

    client = whole_number(options, "client", 0, 2**31)
    model = _existing(options, "model") if options.get("model") else None
    trial = try_app(policy, _existing(options, "data").absolute(), _existing(options, "guard"), client, model)
    rules = read_policy(policy).guard
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


def _check_tried(options: dict[str, str], file: Path) -> None:
    """Raises `OptionError` for an app of which too few starts answered, or that the policy lists and nobody has tried
    with these rules, data and packages. One that is given is tried now.
    """
    from fedpriv.deployment.bundles import bundle_digest
    from fedpriv.deployment.policy import read_policy
    from fedpriv.guard.shard_counts import known_trial, state_of, why_not

    policy, data, client = read_policy(file), _existing(options, "data"), whole_number(options, "client", 0, 2**31)
    rules = policy.guard
    assert rules is not None
    if rules.min_answered == 0:
        return
    state = state_of(data, policy)
    app = None if options["guard"] == "any" else bundle_digest(_existing(options, "guard"))
    digests = [app] if app else [] if rules.apps == "any" else rules.apps
    if app and ((known := known_trial(data, app, policy, client)) is None or known.state != state):
        _try_app(options, file)
    for digest in digests:
        if (why := why_not(data, digest, policy, client, state=state)) is not None:
            raise OptionError("guard.min_answered", rules.min_answered, f"{digest[:16]}: {why}")
    if rules.apps == "any" and not app:
        say(
            "guard: apps may run that nobody has tried here (fedpriv deploy node try): each start that fails is a zero "
            "update, and is spent",
            file=sys.stderr,
        )


def _guarded(options: dict[str, str], policy: Policy, file: Path) -> Approved:
    """Which apps may run under the guard. Raises `OptionError` where none can."""
    from fedpriv.deployment.bundles import Approved, bundle_digest
    from fedpriv.guard.sandbox import available

    if policy.guard is None:
        raise OptionError("guard", options["guard"], "needs a section `guard` in the policy (docs/guard.md)")
    if policy.guard.sandbox == "namespaces" and (lacking := available()) is not None:
        raise OptionError("guard.sandbox", "namespaces", lacking)
    _check_shards(policy.guard, _existing(options, "data"))
    approved = Approved(file, "any" if options["guard"] == "any" else bundle_digest(_existing(options, "guard")))
    if approved.guard != "any" and approved.guard not in approved:
        raise OptionError("guard", options["guard"], f"{approved.guard} is not among the policy's guard.apps")
    return approved


def _signer(credentials: Path) -> Signer | None:
    """Who signs the ledger's heads: the identity among a node's credentials, if there is one."""
    from fedpriv.deployment.signed_head import signer_of

    key = credentials / "identity.key"
    return signer_of(key, "credentials") if key.exists() else None


@contextmanager
def _metrics(options: dict[str, str], policy: Path, data: Path) -> Iterator[None]:
    """Serves `snapshot`, if a port is given. A node is healthy while it can still release something."""
    port = whole_number(options, "metrics_port", 0, 65535)
    if port == 0:
        yield
        return
    from fedpriv.report.live.prometheus import NodeMetrics, serve_metrics

    def healthy() -> tuple[bool, str]:
        try:
            return True, f"{snapshot(policy, data).releases} messages left"
        except (FedprivError, OSError, ValueError) as error:
            return False, str(error)

    registry = NodeMetrics(lambda: snapshot(policy, data)).registry
    names = ("metrics_address", "metrics_port")
    with serve_metrics(options["metrics_address"], port, registry, healthy, options=names):
        yield


def _there(path: Path) -> Path:
    if not path.exists():
        raise OptionError("credentials", str(path.parent), f"{path.name} is missing there")
    return path


def _existing(options: dict[str, str], name: str) -> Path:
    path = Path(options[name]).expanduser()
    if not path.exists():
        raise OptionError(name, options[name], "there is no such file or folder")
    return path


#: What is declared.
DECLARED = dict.fromkeys((*PICTURES, "table", "schema_file", *TABLE), "")
#: What each does, and its options; None: must be given.
COMMANDS: dict[str, tuple[Callable[[dict[str, str]], int | None], dict[str, str | None]]] = {
    "policy": (_policy, {}),
    "bundle": (_bundle, {"app": None}),
    "probe": (_probe, {}),
    "init": (_init, {"policy": None, "data": None, **DECLARED}),
    "declare": (_declare, {"policy": None, "data": None, "credentials": "", **DECLARED}),
    "status": (_status, {"policy": None, "data": None, "superlink": "", "credentials": ""}),
    "report": (_report, {"policy": None, "data": None, "out": "guard.html"}),
    "try": (_try, {"policy": None, "data": None, "guard": None, "model": "", "client": "0"}),
    "run": (
        _run,
        dict.fromkeys(("policy", "data", "superlink", "credentials", "client"))
        | {"port": "9094", "metrics_port": "0", "metrics_address": "127.0.0.1", "guard": ""},
    ),
}


@command(needs_arguments=True)
def main(arguments: Sequence[str]) -> int:
    installed_code_only()
    name, *given = arguments
    if name not in COMMANDS:
        raise OptionError("COMMAND", name, f"allowed: {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")
    if name == "bundle" and len(given) == 1 and "=" not in given[0]:
        given = [f"app={given[0]}"]
    work, known = COMMANDS[name]
    may_be_empty = [option for option, default in known.items() if default == ""]
    return work(command_options(given, known, "fedpriv.node", may_be_empty)) or DONE


def console() -> None:
    """The command `fedpriv-node`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
