"""The report of a guarded run, in words: one page of Markdown beside its ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

UNITS = {
    "example": "one row (or file) more or less in one machine's data",
    "person": "one person's rows more or less in one machine's data",
    "client": "all of one machine's data against any other",
}
OBSERVERS = {
    "server": "the server, which sees every machine's answers",
    "secure-sum": "the server, which sees sums over machines alone",
}
TRUSTED = "The apps ran without a sandbox on at least one machine: its operator trusts their code."


def write_report(folder: Path, summary: dict[str, Any]) -> None:
    privacy, terms = summary["privacy"], summary["terms"]
    sampled = "all of them" if terms["sampling"] == 1 else f"each with probability {terms['sampling']:g}"
    times = "that" if terms["single"] else "twice that"
    lines = [
        f"# {summary['strategy']}, {summary['rounds']} rounds",
        "",
        "| | epsilon |",
        "|---|---|",
        f"| claimed (from the machines' terms, before the run) | {privacy['claimed_epsilon']:.6g} |",
        f"| verified (composed from the ledger) | {privacy['verified_epsilon']:.6g} |",
        "",
        f"- Protected: {UNITS[privacy['unit']]}.",
        f"- From: {OBSERVERS[privacy['observer']]}; delta {privacy['delta']:g}.",
        f"- A machine divides its data among {terms['shards']} shards, {sampled} in a round; each shard's answer is "
        f"clipped to {terms['clip']:g}, and one row more or less moves their sum by up to {times}.",
        f"- Noise: {terms['noise']}, {terms['noise_multiplier']:g} times the clip norm from each machine.",
        f"- {TRUSTED}" if "none" in summary["sandbox"] else "- Each machine says that apps ran in a sandbox.",
        *(f"- Not part of the model, but of both epsilons: {why}." for why in summary["closed_rounds"].values()),
        "- A server cannot check what a machine did; each machine's own ledger and certificate say it.",
        "",
    ]
    (folder / "report.md").write_text("\n".join(lines))
