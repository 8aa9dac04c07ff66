"""Two pages: of a guarded machine, for its operator, and of a guarded run, beside its ledger: what left, what it cost,
and what did not leave.
"""

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
from fedpriv.report.words import ADJACENCIES, OBSERVERS, UNITS, figure, number, promise

# --- of a machine ------------------------------------------------------------------------------------------------

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
OPEN_TIME = (
    "Time: how long an answer takes depends on the data, and an app can make it tell (pad_seconds is not set). No "
    "epsilon counts it."
)


def write_node_report(policy_file: Path, data: Path, out: Path) -> Path:
    """Writes one page and returns its path. Raises `OptionError`, `LedgerRefused`, `DataError`."""
    policy = read_policy(policy_file)
    if policy.guard is None:
        raise OptionError("policy", policy_file, "has no section `guard` (docs/guard.md)")
    if data.resolve() in (out.resolve(), *out.resolve().parents):
        raise OptionError("out", out, "must lie outside the data folder")
    with DataLedger(data, Path(policy.counter)).seen(thorough=True) as ledger:
        head, spent = ledger.head(), policy.spent(ledger.spent())
        lines = [json.loads(line) for line in read_regular(ledger.path).split(b"\n")[: head["lines"]]]
    budgets, costs = {budget.name: budget for budget in policy.budgets}, []
    for name, epsilon in spent.items():
        threat, limits = budgets[name].threat, (figure(budgets[name].max_epsilon), promise(epsilon))
        who = UNITS[threat.unit], ADJACENCIES[threat.adjacency], OBSERVERS[threat.observer]
        costs.append([figure(epsilon), *limits, f"{budgets[name].delta:g}", *who])
    became = [
        [named[1] if (named := RUN.fullmatch(run)) else run, *(str(counts.get(w, 0)) for w in ("messages", *SHARDS))]
        for run, counts in read_answers(data).items()
    ]
    rules = [[name, _shown(value)] for name, value in policy.guard.model_dump().items()]
    left = ["run", "app", "sandbox", "messages", "what they answered", "when"]
    spent_header = ["epsilon spent", "limit", "worth", "delta", "protected", "may be", "against"]
    page = rendered(
        "guarded.html",
        kicker=f"Guarded machine, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        title="What left this machine's data",
        lead=[PRIVATE_PAGE],
        sections=[
            {"name": "What it cost", "header": spent_header, "rows": costs},
            {"name": "What left, as it was booked", "header": left, "rows": _left(lines)},
            {"name": "What became of the shards", "header": ["run", "messages", *SHARDS], "rows": became},
            {"name": "In these columns", "rows": SHARDS.items()},
            {
                "name": "What was refused",
                "header": ["why", "how often"],
                "rows": [[code, str(times)] for code, times in sorted(read_counts(data).items())],
            },
            {"name": "What did not leave", "lines": NOT_LEFT},
            {"name": "The sandbox, and what it leaves open", "lines": _sandbox(policy.guard)},
            {"name": "The rules", "rows": rules},
            {"name": "The ledger", "rows": [[name, moment(name, value)] for name, value in head.items()]},
        ],
    )
    try:
        write_atomic(out, page)
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror})") from None
    return out


def _left(lines: Sequence[dict[str, Any]]) -> list[list[str]]:
    """One row a run, in order."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if line.get("entries"):
            runs.setdefault(str(line.get("run")), []).append(line)
    table = []
    for run, booked in runs.items():
        named, kinds = RUN.fullmatch(run), Counter({"train": 0})
        kinds.update(line.get("counts", "train") for line in booked)
        times = [f"{datetime.fromtimestamp(int(line['time']), UTC):%Y-%m-%d %H:%M}" for line in (booked[0], booked[-1])]
        words = [named[1], named[2][:16], named[3]] if named else [run, "this project's own", "none"]
        answered = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        table.append([*words, str(len(booked)), answered, " to ".join(dict.fromkeys(times))])
    return table


def _sandbox(rules: GuardPolicy) -> list[str]:
    padded = f"Every start of an app takes {rules.pad_seconds or 0:g} s, whatever its data: time tells nothing."
    return [
        *([CONFINED, groups.in_words()] if rules.sandbox == "namespaces" else [TRUSTED]),
        padded if rules.pad_seconds else OPEN_TIME,
        "Caches of the processor and of the kernel, which a clock can measure, are not closed.",
    ]


def moment(name: str, value: Any) -> str:
    """A field of a ledger's head; its time in UTC."""
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC" if name == "time" else str(value)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else "none" if value in (None, "", {}) else str(value)


# --- of a run ------------------------------------------------------------------------------------------------------

PROTECTED = {
    "example": "one row (or file) more or less in one machine's data",
    "person": "one person's rows more or less in one machine's data",
    "client": "all of one machine's data against any other",
}
FROM = {
    "server": "the server, which sees every machine's answers",
    "secure-sum": "the server, which sees sums over machines alone",
}
NOISES = {"own": "Gaussian", "ddgauss": "discrete Gaussian, in the secure sum", "skellam": "Skellam, in the secure sum"}
#: What is said of every run, after what depends on it.
STAYED = "Of an app's reply, metrics, names, further records and error texts stayed on the machine; a crash, a \
time-out, another shape or a NaN was a zero update, which nobody here can tell from another answer."
TIME = (
    "How long a machine took is not part of these epsilons; it tells nothing where the machine's policy sets "
    "pad_seconds, which its own certificate says."
)
ELSEWHERE = (
    "An answer that left a machine and did not arrive is in that machine's ledger, and not in this one.",
    "A server cannot check what a machine did; each machine's own ledger and certificate say it.",
)


def write_report(folder: Path, summary: dict[str, Any]) -> None:
    """``report.md`` and ``report.html``."""
    title = f"{summary['strategy']}, {summary['rounds']} rounds"
    privacy, lines, rows = summary["privacy"], in_words(summary), []
    for row in (privacy, *privacy["others"]):
        verified, observer = number(row["verified_epsilon"]), row["observer"]
        alone = privacy["observer"] == "secure-sum" and observer == "server"
        who = "whoever sees one machine's answer without its masks" if alone else FROM[observer]
        figures = f"{verified:.6g}", f"{number(row['claimed_epsilon']):.6g}", promise(verified), f"{row['delta']:g}"
        rows.append([*figures, PROTECTED[row["unit"]], who])
    text = [
        f"# {title}",
        "",
        "| verified epsilon | claimed epsilon | delta | protected | from |",
        "|---|---|---|---|---|",
        *("| " + " | ".join([*row[:2], *row[3:]]) + " |" for row in rows),
        "",
        "Claimed: from the machines' terms, before the run. Verified: composed from the ledger.",
        "",
        *(f"- {line}" for line in lines),
        "",
    ]
    write_atomic(folder / "report.md", "\n".join(text), durable=False)
    answers = [[f"machine {client}", str(times)] for client, times in summary["answers"].items()]
    header = ["verified epsilon", "claimed epsilon", "worth", "delta", "protected", "from"]
    page = rendered(
        "guarded.html",
        kicker="Guarded run",
        title=title,
        lead=["Claimed: from the machines' terms, before the run. Verified: composed from the server's ledger."],
        sections=[
            {"name": "Who is protected from whom", "header": header, "rows": rows},
            {"name": "What was booked", "header": ["machine", "answers"], "rows": answers},
            {"name": "What left, and what did not", "lines": lines},
            {"name": "Made by", "rows": summary["versions"].items()},
        ],
    )
    write_atomic(folder / "report.html", page, durable=False)


def in_words(summary: dict[str, Any]) -> list[str]:
    """What left and how much of it is believed, for the report and for a certificate."""
    terms = summary["terms"]
    sampled = "all of them" if terms["sampling"] == 1 else f"each with probability {terms['sampling']:g}"
    times = "that" if terms["single"] else "twice that"
    others = f"{summary['other_terms']} machines have other terms than these: plan.json has them."
    trusted = "The apps ran without a sandbox on at least one machine: its operator trusts their code."
    return [
        f"A machine divides its data among {terms['shards']} shards, {sampled} in a round; each shard's answer is "
        f"clipped to {terms['clip']:g}, and one unit more or less moves their sum by up to {times}.",
        f"Noise: {NOISES[terms['noise']]}, {terms['noise_multiplier']:g} times the clip norm from each machine.",
        *([others] if summary["other_terms"] else []),
        STAYED,
        *(
            f"Declared counts, in reply to {kind}: {', '.join(query['metrics'])}; a shard's are clipped to "
            f"{query['clip']:g}, with noise of {query['noise_multiplier']:g} times that. No other metric left."
            for kind, query in terms["counts"].items()
        ),
        trusted if "none" in summary["sandbox"] else "Each machine says that apps ran in a sandbox.",
        TIME,
        *(f"Not part of the model, but of the epsilons: {why}." for why in summary["closed_rounds"].values()),
        *ELSEWHERE,
    ]
