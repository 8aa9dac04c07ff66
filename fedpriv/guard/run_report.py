"""The report of a guarded run: a page of Markdown and one of HTML beside its ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedpriv.common.files import write_atomic
from fedpriv.report.rendering import rendered
from fedpriv.report.words import number, promise

UNITS = {
    "example": "one row (or file) more or less in one machine's data",
    "person": "one person's rows more or less in one machine's data",
    "client": "all of one machine's data against any other",
}
OBSERVERS = {
    "server": "the server, which sees every machine's answers",
    "secure-sum": "the server, which sees sums over machines alone",
}
NOISES = {"own": "Gaussian", "ddgauss": "discrete Gaussian, in the secure sum", "skellam": "Skellam, in the secure sum"}
ALONE = "whoever sees one machine's answer without its masks"
TRUSTED = "The apps ran without a sandbox on at least one machine: its operator trusts their code."
CONFINED = "Each machine says that apps ran in a sandbox."
TIME = (
    "How long a machine took is not part of these epsilons; it tells nothing where the machine's policy sets "
    "pad_seconds, which its own certificate says."
)
ELSEWHERE = "A server cannot check what a machine did; each machine's own ledger and certificate say it."
LOST = "An answer that left a machine and did not arrive is in that machine's ledger, and not in this one."
SHARES = "Of an app's reply, metrics, names, further records and error texts stayed on the machine; a crash, a \
time-out, another shape or a NaN was a zero update, which nobody here can tell from another answer."


def write_report(folder: Path, summary: dict[str, Any]) -> None:
    """``report.md`` and ``report.html``."""
    title = f"{summary['strategy']}, {summary['rounds']} rounds"
    privacy, lines = summary["privacy"], in_words(summary)
    text = [
        f"# {title}",
        "",
        "| verified epsilon | claimed epsilon | delta | protected | from |",
        "|---|---|---|---|---|",
        *("| " + " | ".join([*row[:2], *row[3:]]) + " |" for row in _epsilons(privacy)),
        "",
        "Claimed: from the machines' terms, before the run. Verified: composed from the ledger.",
        "",
        *(f"- {line}" for line in lines),
        "",
    ]
    write_atomic(folder / "report.md", "\n".join(text), durable=False)
    answers = [[f"machine {client}", str(times)] for client, times in summary["answers"].items()]
    page = rendered(
        "guarded.html",
        kicker="Guarded run",
        title=title,
        lead=["Claimed: from the machines' terms, before the run. Verified: composed from the server's ledger."],
        sections=[
            {
                "name": "Who is protected from whom",
                "header": ["verified epsilon", "claimed epsilon", "worth", "delta", "protected", "from"],
                "rows": _epsilons(privacy),
            },
            {"name": "What was booked", "header": ["machine", "answers"], "rows": answers},
            {"name": "What left, and what did not", "lines": lines},
            {"name": "Made by", "rows": [list(pair) for pair in summary["versions"].items()]},
        ],
    )
    write_atomic(folder / "report.html", page, durable=False)


def in_words(summary: dict[str, Any]) -> list[str]:
    """What left and how much of it is believed, for the report and for a certificate."""
    terms = summary["terms"]
    sampled = "all of them" if terms["sampling"] == 1 else f"each with probability {terms['sampling']:g}"
    times = "that" if terms["single"] else "twice that"
    others = f"{summary['other_terms']} machines have other terms than these: plan.json has them."
    return [
        f"A machine divides its data among {terms['shards']} shards, {sampled} in a round; each shard's answer is "
        f"clipped to {terms['clip']:g}, and one unit more or less moves their sum by up to {times}.",
        f"Noise: {NOISES[terms['noise']]}, {terms['noise_multiplier']:g} times the clip norm from each machine.",
        *([others] if summary["other_terms"] else []),
        SHARES,
        *(
            f"Declared counts, in reply to {kind}: {', '.join(query['metrics'])}; a shard's are clipped to "
            f"{query['clip']:g}, with noise of {query['noise_multiplier']:g} times that. No other metric left."
            for kind, query in terms["counts"].items()
        ),
        TRUSTED if "none" in summary["sandbox"] else CONFINED,
        TIME,
        *(f"Not part of the model, but of the epsilons: {why}." for why in summary["closed_rounds"].values()),
        LOST,
        ELSEWHERE,
    ]


def _epsilons(privacy: dict[str, Any]) -> list[list[str]]:
    in_sum = privacy["observer"] == "secure-sum"
    return [
        [
            f"{number(row['verified_epsilon']):.6g}",
            f"{number(row['claimed_epsilon']):.6g}",
            promise(number(row["verified_epsilon"])),
            f"{row['delta']:g}",
            UNITS[row["unit"]],
            ALONE if in_sum and row["observer"] == "server" else OBSERVERS[row["observer"]],
        ]
        for row in (privacy, *privacy["others"])
    ]
