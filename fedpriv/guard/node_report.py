"""The report of a guarded machine, for its operator: what left, what it cost, and what did not leave."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.files import read_regular, write_atomic
from fedpriv.deployment.data_ledger import DataLedger, read_counts
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.deployment.policy import read_policy
from fedpriv.guard import groups
from fedpriv.guard.shards import SHARDS, read_answers
from fedpriv.report.rendering import rendered
from fedpriv.report.words import ADJACENCIES, OBSERVERS, UNITS, figure, promise

#: What `guarded_message` writes as a line's run.
RUN = re.compile(r"guard ([0-9a-f]+) app ([0-9a-f]{64}) sandbox (\w+)")
PRIVATE_PAGE = (
    "This page is for the operator of this machine: how many shards answered depends on the data, and no epsilon "
    "protects it. To others goes the certificate (fedpriv certificate)."
)
NOT_LEFT = [
    "Metrics, the number of examples, names of arrays, further records, configurations and error texts of an app: "
    "dropped. The number of examples that leaves is 1.",
    "Replies to evaluate and query but for the counts in the rules below: not started, a fixed content; refused.",
    "context.state: empty at every start, and dropped after it.",
    "A zero update has the same noise and form as any other: nobody outside can tell it.",
]
CONFINED = (
    "Namespaces of users, processes, mounts, network, IPC and names; a list of allowed system calls; Landlock where "
    "the kernel has it; limits of memory, processor time, wall time and processes."
)
TRUSTED = "None: the code of the approved apps is trusted, and could have sent anything by itself."


def write_node_report(policy_file: Path, data: Path, out: Path) -> Path:
    """Writes one page and returns its path. Raises `OptionError`, `LedgerRefused`, `DataError`."""
    policy = read_policy(policy_file)
    if policy.guard is None:
        raise OptionError("policy", policy_file, "has no section `guard` (docs/guard.md)")
    if data.resolve() in (out.resolve(), *out.resolve().parents):
        raise OptionError("out", out, "must lie outside the data folder")
    with DataLedger(data, Path(policy.counter)).seen(thorough=True) as ledger:
        head, spent = ledger.head(), policy.spent(ledger.spent())
        rows = [json.loads(line) for line in read_regular(ledger.path).split(b"\n")[: head["lines"]]]
    left, refused = _left(rows), sorted(read_counts(data).items())
    known = {budget.name: budget for budget in policy.budgets}
    page = rendered(
        "guarded.html",
        kicker=f"Guarded machine, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        title="What left this machine's data",
        lead=[PRIVATE_PAGE],
        sections=[
            {
                "name": "What it cost",
                "header": ["epsilon spent", "limit", "worth", "delta", "protected", "may be", "against"],
                "rows": [
                    [
                        figure(epsilon),
                        figure((budget := known[name]).max_epsilon),
                        promise(epsilon),
                        f"{budget.delta:g}",
                        UNITS[budget.threat.unit],
                        ADJACENCIES[budget.threat.adjacency],
                        OBSERVERS[budget.threat.observer],
                    ]
                    for name, epsilon in spent.items()
                ],
            },
            {
                "name": "What left, as it was booked",
                "header": ["run", "app", "sandbox", "messages", "what they answered", "when"],
                "rows": left,
            },
            {"name": "What became of the shards", "header": ["run", *("messages", *SHARDS)], "rows": _shards(data)},
            {"name": "In these columns", "rows": [list(pair) for pair in SHARDS.items()]},
            {"name": "What was refused", "header": ["why", "how often"], "rows": [[c, str(n)] for c, n in refused]},
            {"name": "What did not leave", "lines": NOT_LEFT},
            {"name": "The sandbox, and what it leaves open", "lines": _sandbox(policy.guard)},
            {"name": "The rules", "rows": [[name, _shown(value)] for name, value in policy.guard.model_dump().items()]},
            {"name": "The ledger", "rows": [[name, moment(name, value)] for name, value in head.items()]},
        ],
    )
    try:
        write_atomic(out, page)
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror})") from None
    return out


def _left(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One row a run, in order."""
    found: dict[str, list[int]] = {}
    kinds: dict[str, Counter[str]] = {}
    for row in rows:
        if row.get("entries"):
            found.setdefault(str(row.get("run")), []).append(int(row["time"]))
            kinds.setdefault(str(row.get("run")), Counter({"train": 0}))[row.get("counts", "train")] += 1
    table = []
    for run, times in found.items():
        named = RUN.fullmatch(run)
        first, last = (
            datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M") for moment in (times[0], times[-1])
        )
        words = [named[1], named[2][:16], named[3]] if named else [run, "this project's own", "none"]
        answered = ", ".join(f"{kind} {number}" for kind, number in kinds[run].items())
        table.append([*words, str(len(times)), answered, first if first == last else f"{first} to {last}"])
    return table


def _shards(data: Path) -> list[list[str]]:
    return [
        [
            named[1] if (named := RUN.fullmatch(run)) else run,
            *(str(counts.get(word, 0)) for word in ("messages", *SHARDS)),
        ]
        for run, counts in read_answers(data).items()
    ]


def _sandbox(rules: GuardPolicy) -> list[str]:
    padded = f"Every start of an app takes {rules.pad_seconds or 0:g} s, whatever its data: time tells nothing."
    open_time = (
        "Time: how long an answer takes depends on the data, and an app can make it tell (pad_seconds is not set). No "
        "epsilon counts it."
    )
    return [
        *([CONFINED, groups.in_words()] if rules.sandbox == "namespaces" else [TRUSTED]),
        padded if rules.pad_seconds else open_time,
        "Caches of the processor and of the kernel, which a clock can measure, are not closed.",
    ]


def moment(name: str, value: Any) -> str:
    """A field of a ledger's head; its time in UTC."""
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC" if name == "time" else str(value)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else "none" if value in (None, "", {}) else str(value)
