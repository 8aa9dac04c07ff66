"""What the certificate of a guarded run states: of its server's folder (`fedpriv.guard.guarded_strategy`)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from fedpriv.certificates.assumptions import EVERYWHERE
from fedpriv.certificates.statement import check_undivided, ledger_lines, ledger_of, releases
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.files import read_regular
from fedpriv.guard.guarded_strategy import LEDGER, PLAN, SUMMARY
from fedpriv.guard.release import Terms, answers_of, figures
from fedpriv.guard.reports import in_words
from fedpriv.privacy.ledger import LedgerFile

SERVER = "The server's ledger says what arrived here. Machines were asked for their terms, and are believed."
KINDS = "The answers, by what each cost in this ledger (kinds that cost the same are one)"


def of_guarded_run(folder: Path) -> dict[str, Any]:
    """Of a guarded run's folder. Raises `RunFolderError` where its files do not belong together."""
    plan, summary = (_read(folder / name) for name in (PLAN, SUMMARY))
    ledger = folder / LEDGER
    content = LedgerFile(ledger, fsync=False).read()
    if content.broken is not None or content.torn:
        words = f"line {content.broken or content.torn[0]} is torn, or does not follow from the lines before it"
        raise RunFolderError(f"{ledger}: {words}: what it recorded is not known")
    check_undivided(content, ledger)
    try:
        delta = float(summary["privacy"]["delta"])
        planned = {int(client): dict(terms) for client, terms in plan["clients"].items()}
        limits = {client: terms.pop("epsilon") for client, terms in planned.items()}
        terms = {client: Terms.from_json(json.dumps(one)) for client, one in planned.items()}
        size = int(plan["numbers"])
        times = answers_of(content.entries, terms, size)
        answered = {client: sum(of.values()) for client, of in times.items()}
        found = figures(terms, times, ledger, size, delta)
        reported = [{**summary["privacy"]}, *summary["privacy"]["others"]]
        reported[0].pop("others")
        same = found == reported and (plan["delta"], len(plan["run"])) == (delta, 32)
        same = same and summary["answers"] == {str(client): times for client, times in sorted(answered.items())}
    except (KeyError, TypeError, ValueError, AttributeError, OptionError) as error:
        raise RunFolderError(f"{folder}: plan.json and ledger.jsonl do not belong together ({error!r:.200})") from None
    if not same:
        costs = [rows[0]["verified_epsilon"] for rows in (found, reported)]
        words = f"it has {answered} answers of epsilon {costs[0]}, summary.json {summary['answers']} of {costs[1]}"
        raise RunFolderError(f"{ledger}: {words}: one of them was changed since the run wrote it")
    if wrong := next((row for row in found if row["claimed_epsilon"] != row["verified_epsilon"]), None):
        words = f"claimed {wrong['claimed_epsilon']} from plan.json, verified {wrong['verified_epsilon']}"
        raise RunFolderError(f"{folder}: {words}: the plan is of another run")
    lines = ledger_lines(ledger)
    subject = {name: summary[name] for name in ("strategy", "rounds", "num_parameters", "answers")}
    limit, kinds = max(limits.values(), key=float), sum(map(Counter, times.values()), Counter())
    opened = ", ".join(f"{kind} {number}" for kind, number in kinds.items())
    return {
        "kind": "run",
        "subject": {"name": folder.name, "deployed": True, **subject, "closed_rounds": list(summary["closed_rounds"])},
        "protections": [
            {
                **{name: row[name] for name in ("unit", "adjacency", "observer", "delta", "accountant")},
                "epsilon": row["verified_epsilon"],
                "limit": limit if number == 0 else None,
                "audit": None,
            }
            for number, row in enumerate(found)
        ],
        "releases": releases([json.loads(line) for line in lines], node=False),
        "assumptions": [*EVERYWHERE, SERVER, f"{KINDS}: {opened}.", *in_words(summary)],
        "digests": {"plan": hashlib.sha256(read_regular(folder / PLAN)).hexdigest(), "versions": summary["versions"]},
        "ledger": ledger_of(str(plan["run"]), lines),
        "heads": [],
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(read_regular(path)))
    except (OSError, ValueError, TypeError):
        words = "is missing or damaged: only a guarded run in which something arrived has a certificate"
        raise RunFolderError(f"{path}: {words}") from None
