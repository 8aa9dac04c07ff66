"""What a certificate states, as JSON; `verify_certificate.py` checks it, docs/certificates.md explains its fields.

The ledger's lines are in it, word for word: from them follow the table of releases and every epsilon. Everything else
(names, digests, assumptions, audits) is stated on the signer's word.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.certificates.assumptions import Period, of_node_in_words, of_run_in_words
from fedpriv.common.chain import chain_of, row_of
from fedpriv.common.errors import DataError, FedprivError, RunFolderError
from fedpriv.common.files import json_number, read_regular
from fedpriv.common.run_files import mapping_in
from fedpriv.config.compose import read_config
from fedpriv.deployment.data_ledger import Balance, DataLedger, Signer
from fedpriv.deployment.declaration import declaring_row, read_declared
from fedpriv.deployment.policy import read_policy
from fedpriv.guard.reports import RUN
from fedpriv.privacy.composition import Verified, compose
from fedpriv.privacy.events import EVERY_CLIENT, Threat
from fedpriv.privacy.ledger import LedgerContent, read_line
from fedpriv.runs.accounts import Accounts
from fedpriv.runs.folder import START, RunFolder

FORMAT, PURPOSE = "fedpriv certificate 2", b"fedpriv certificate 2\n"
#: Fields of a ledger's entry that say where it stands, and not what it costs.
PLACE = frozenset(
    ("round", "client", "clients", "sequence", "sequences", "attempt", "with_previous", "before", "realised", "count")
)
WORDS = ("unit", "adjacency", "observer")
#: Of each period of a node's messages: the policy in force, which messages, and how many opened which counts.
IN_FORCE = ("policy", "messages", "first", "last", "counts")
#: What a line counts as that cannot be read, or whose noise was chosen from earlier outputs.
NO_BOUND = {"mechanism": "no_bound", "reason": "torn, or noise chosen from earlier outputs"}


def canonical(value: Any) -> bytes:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def signed(statement: Mapping[str, Any], signer: Signer, role: str) -> dict[str, Any]:
    """A whole certificate. role: who the signer is, in words."""
    from fedpriv.common.identities import signature

    now = datetime.now(UTC).isoformat(timespec="seconds")
    whole = {"format": FORMAT, "issued": now, **statement, "signer": {"key": signer.public, "role": role}}
    return whole | {"signature": signature(signer.private, PURPOSE + canonical(whole)).hex()}


# --- a run ---------------------------------------------------------------------------------------------------------


def of_run(folder: Path) -> dict[str, Any]:
    """Of a finished run. Raises `RunFolderError`, `OptionError`."""
    run, config = RunFolder(folder), read_config(folder)
    summary = run.read_summary()
    if summary is None:
        raise RunFolderError(f"{folder}: has no summary.json: only a finished run has a certificate")
    lines = ledger_lines(run.ledger.path)
    content = run.ledger.read()
    if content.broken is not None:
        words = f"line {content.broken} does not follow from the lines before it"
        raise RunFolderError(f"{run.ledger.path}: {words}: it was changed since the run wrote it")
    if not content.torn:
        check_undivided(content, run.ledger.path)
    privacy = summary["privacy"]
    said = Threat(**{name: privacy[name] for name in WORDS})
    known = any(entry.event.threat == said for entry in content.entries)  # else the method is asked, and its data read
    accounts = Accounts(config, run, said if known else None)
    protections = [_protection(accounts.verified(), accounts.threat, config.privacy.max_epsilon, privacy)]
    others = accounts.under_further_threats().items()
    protections += [_protection(found, threat, None, None) | {"delta": privacy["delta"]} for threat, found in others]
    reported = [privacy["verified_epsilon"], *(other["verified_epsilon"] for other in privacy["others"])]
    if [float(row["epsilon"]) for row in protections] != [float(epsilon) for epsilon in reported]:
        words = f"the ledger costs {protections[0]['epsilon']}, summary.json says {reported[0]}"
        raise RunFolderError(f"{run.ledger.path}: {words}: one of them was changed since the run wrote it")
    subject = {name: summary[name] for name in ("strategy", "dataset", "model", "seed", "rounds", "num_clients")}
    subject |= {"across_sites": config.privacy.across_sites} if config.privacy.across_sites > 1 else {}
    return {
        "kind": "run",
        "subject": {"name": folder.name, "deployed": accounts.deployed, **subject},
        "protections": protections,
        "releases": releases([json.loads(line) if read_line(line) else None for line in lines], node=False),
        "assumptions": of_run_in_words(config, summary),
        "digests": {
            "config": _digest(folder / "config.yaml"),
            "code": hashlib.sha256(canonical(_files(folder))).hexdigest(),
            "commit": summary.get("commit"),
            "versions": summary["versions"],
        },
        "ledger": ledger_of(run.run_name(), lines),
        "heads": [],
    }


def _protection(
    found: Verified, threat: Threat, limit: float | None, privacy: Mapping[str, Any] | None
) -> dict[str, Any]:
    audit = None
    if privacy is not None and privacy.get("audited_epsilon") is not None:
        audit = {name: privacy.get(f"audited_{name}") for name in ("epsilon", "confidence", "trials")}
    return {
        **vars(threat),
        "delta": None if privacy is None else privacy["delta"],
        "epsilon": json_number(found.maximum),
        "accountant": found.accountant,
        "limit": limit,
        "audit": audit,
    }


def _files(folder: Path) -> dict[str, str]:
    """The source files of a run with their digests, as it noted them when it began."""
    try:
        return dict(mapping_in(folder, START)["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFolderError(f"{folder / START}: is missing or damaged: which code ran is not known") from None


# --- a node ---------------------------------------------------------------------------------------------------------


def of_node(policy_file: Path, data: Path) -> dict[str, Any]:
    """Of a node's data folder. Raises `OptionError`, `LedgerRefused`, `DataError`."""
    policy = read_policy(policy_file)
    ledger = DataLedger(data, Path(policy.counter))
    with ledger.seen(thorough=True):
        head = ledger.head()
        lines = ledger_lines(ledger.path)[: head["lines"]]
    if chain_of(lines) != head["chain"]:
        raise DataError(f"{ledger.path}: a message was answered meanwhile; try again")
    rows, balance = [row_of(line) for line in lines], Balance()
    for row in rows:  # of these lines alone: a message may have been answered since the ledger was checked
        balance.add(row)
    spent, accounting = balance.spent, balance.accounting
    declared, left = read_declared(balance.declaration), periods(rows)
    kept = {} if accounting is None else {"accountant": accounting.accountant, "share": accounting.share}
    later = balance.policy if left and left[-1].policy != balance.policy else None
    named = [period.policy for period in left if period.policy is not None]
    # A ledger of before there were such lines is asked about today's budgets: their limits are nobody's promise.
    asked = named or [{"budgets": [budget.model_dump() for budget in policy.budgets]}]
    budgets = dict.fromkeys(_of_budget(budget) for one in asked for budget in one["budgets"])
    last = left[-1].policy if left else None
    limits = dict[Any, float]()  # of two budgets of one threat both hold, so the lower one
    for budget in last["budgets"] if last else ():
        key = _of_budget(budget)
        limits[key] = min(budget["max_epsilon"], limits.get(key, budget["max_epsilon"]))
    totals = {key: compose(spent.totals(Threat(*key[:3])), float(key[3])) for key in budgets}
    return {
        "kind": "node",
        "subject": {"declared": declaring_row(declared), "messages": spent.messages, **kept},
        "protections": [
            {
                **dict(zip((*WORDS, "delta"), key, strict=True)),
                "epsilon": json_number(total.epsilon),
                "accountant": total.accountant,
                "limit": limits.get(key),
                "audit": None,
            }
            for key, total in totals.items()
        ],
        "policies": [{name: getattr(period, name) for name in IN_FORCE} for period in left],
        "releases": releases(rows, node=True),
        "assumptions": of_node_in_words(
            left, later["sha256"] if later else "", accounting.accountant if accounting else None, declared
        ),
        "digests": _of_policies(left),
        "ledger": ledger_of(head["ledger"], lines),
        "heads": [head] if "signature" in head else [],
    }


def periods(rows: Iterable[Mapping[str, Any]]) -> list[Period]:
    """What was in force when each message of a node's ledger left; messages under one policy together, in order."""
    found, policy = list[Period](), None
    for row in rows:
        policy = row.get("policy", policy)
        if "entries" not in row:
            continue
        if not found or found[-1].policy != policy:
            found.append(Period(policy, 0, row["time"], row["time"]))
        found[-1].messages, found[-1].last = found[-1].messages + 1, row["time"]
        if "counts" in row:
            found[-1].counts[row["counts"]] = found[-1].counts.get(row["counts"], 0) + 1
        if guarded := RUN.fullmatch(row["run"]):
            found[-1].sandboxes.append(guarded[3])
    return found


def _of_budget(budget: Mapping[str, Any]) -> tuple[Any, ...]:
    return (*(budget[word] for word in WORDS), budget["delta"])


def _of_policies(left: Sequence[Period]) -> dict[str, Any]:
    """Of all policies under which a message left."""
    found: dict[str, dict[str, Any]] = {"policy": {}, "code": {}, "schemas": {}, "weights": {}}
    for period in left:
        if period.policy is None:
            continue
        guard, guarded = period.policy["guard"], len(period.sandboxes)
        code = [] if not guarded or guard is None or guard["apps"] == "any" else guard["apps"]
        code = [*code, *(period.policy["bundles"] if guarded < period.messages else ())]
        known = {"policy": [period.policy["sha256"]], "code": code, "schemas": period.policy["schemas"]}
        for name, digests in known.items():
            found[name] |= dict.fromkeys(digests, None)
        found["weights"] |= {one["sha256"]: one for one in period.policy["weights"]}
    return {name: [*(one.values() if name == "weights" else one)] for name, one in found.items()}


# --- the ledger -----------------------------------------------------------------------------------------------------


def ledger_lines(path: Path) -> list[bytes]:
    """Of a ledger; a torn last line of a node's is none of its lines."""
    try:
        return [line for line in read_regular(path).split(b"\n") if line]
    except FileNotFoundError:
        raise RunFolderError(f"{path}: is not there: nothing was released that could be certified") from None
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror})") from None


def ledger_of(name: str, lines: Sequence[bytes]) -> dict[str, Any]:
    try:
        texts = [line.decode("ascii") for line in lines]
    except UnicodeDecodeError:
        raise RunFolderError("ledger.jsonl: damaged: it holds bytes that no ledger writes") from None
    return {"id": name, "count": len(lines), "head": chain_of(lines), "lines": texts}


def check_undivided(content: LedgerContent, ledger: Path) -> None:
    """Raises `RunFolderError` where a client's participations are not all booked under the same threats, equally often:
    what is divided between two threats is in neither epsilon whole. What is about every client is each one's too.
    """
    accounts = content.by_client()
    for client, entries in accounts.items():
        counts: dict[tuple[int, int, int], Counter[Threat]] = {}
        for entry in [*entries, *(accounts.get(EVERY_CLIENT, ()) if client != EVERY_CLIENT else ())]:
            place = entry.client, entry.round, entry.attempt
            counts.setdefault(place, Counter())[entry.event.threat] += entry.event.count
        known = {threat for found in counts.values() for threat in found}
        for (_, number, _), found in counts.items():
            if {*found} != known or len({*found.values()}) > 1:
                words = f"releases of client {client} in round {number} are divided between threats"
                raise RunFolderError(f"{ledger}: {words}: no epsilon counts all of them")


@dataclass
class _Row:
    releases: int
    first: int
    last: int


def releases(rows: Iterable[Mapping[str, Any] | None], node: bool) -> list[dict[str, Any]]:
    """What was released under which mechanism, how often, and when first and last (rounds of a run, Unix seconds of a
    node). rows: a ledger's lines, None where one cannot be read.
    """
    table: dict[bytes, _Row] = {}
    last = 0
    for row in rows:
        if row is None:
            charges, place = [(NO_BOUND, 1)], last
        else:
            place = row.get("time", 0) if node else row["round"]
            entries = row.get("entries", []) if node else [row]
            charges = [_charge(entry, node) for entry in entries]
        for event, number in charges:
            found = table.setdefault(canonical(event), _Row(0, place, place))
            found.releases, found.last = found.releases + number, place
        last = max(last, place)
    return [json.loads(event) | vars(row) for event, row in table.items()]


def _charge(entry: Mapping[str, Any], node: bool) -> tuple[dict[str, Any], int]:
    """(event, how often over all its clients): of a run as booked before it began, of a node as it was spent."""
    threat = {word: entry[word] for word in WORDS}
    clients = len(entry["clients"]) if "clients" in entry else 1
    if entry.get("adaptive") and not node:
        return NO_BOUND | threat, clients * entry.get("count", 1)
    used = entry["realised"] | threat if node and "realised" in entry else entry
    event = {name: value for name, value in used.items() if name not in PLACE and name != "adaptive"}
    return event, clients * used.get("count", 1)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path)).hexdigest()
    except OSError as error:
        raise FedprivError(f"{path}: cannot be read ({error.strerror})") from None
