"""A certificate's files: certificate.json, a page to print, and on request the program that checks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedpriv.common.files import write_atomic
from fedpriv.report.rendering import rendered
from fedpriv.report.words import ADJACENCIES, OBSERVERS, UNITS, at_clients, figure, number, promise

VERIFIER = "verify_certificate.py"
#: Declared by a node that runs foreign apps alone.
NOTHING = {"examples": 0, "classes": [], "size": 0, "channels": 0}


def write(certificate: Mapping[str, Any], folder: Path, verifier: bool) -> list[Path]:
    """Writes into a folder, which is made; returns the files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, str] = {
        "certificate.json": json.dumps(certificate, indent=1) + "\n",
        "certificate.html": page(certificate),
    }
    if verifier:
        content[VERIFIER] = (files("fedpriv.certificates") / VERIFIER).read_text(encoding="utf-8")
    for name, text in content.items():
        write_atomic(folder / name, text)
    return [folder / name for name in content]


def page(certificate: Mapping[str, Any]) -> str:
    """The certificate without its ledger's lines, to be read and printed."""
    return rendered(
        "certificate.html",
        certificate=certificate,
        promises=[_promise(row, certificate["subject"].get("across_sites")) for row in certificate["protections"]],
        releases=[_release(row, certificate["kind"] == "node") for row in certificate["releases"]],
        subject=[
            (name.replace("_", " "), "nothing of the data" if value == NOTHING else _shown(value))
            for name, value in certificate["subject"].items()
        ],
        digests=[(name, _shown(value)) for name, value in certificate["digests"].items()],
    )


def _promise(row: Mapping[str, Any], across: int | None) -> dict[str, str]:
    epsilon, audit = number(row["epsilon"]), row["audit"]
    return {
        "unit": at_clients(UNITS[row["unit"]], across),
        "adjacency": ADJACENCIES[row["adjacency"]],
        "observer": OBSERVERS[row["observer"]],
        "epsilon": figure(epsilon),
        "delta": f"{row['delta']:g}",
        "worth": promise(epsilon),
        "limit": "none" if row["limit"] is None else figure(number(row["limit"])),
        "audit": "no audit was made" if audit is None else f"at least {figure(number(audit['epsilon']))}",
    }


def _release(row: Mapping[str, Any], dated: bool) -> list[str]:
    shown = ("mechanism", "releases", "first", "last", "unit", "adjacency", "observer")
    values = ", ".join(f"{name} {_shown(value)}" for name, value in row.items() if name not in shown)
    moments = [_date(row[name]) if dated else f"round {row[name]}" for name in ("first", "last")]
    threat = ", ".join(str(row[word]) for word in ("unit", "adjacency", "observer") if word in row)
    return [str(row["mechanism"]).replace("_", " "), values, threat, f"{row['releases']:,}", " to ".join(moments)]


def _date(moment: int) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return {"True": "yes", "False": "no", "None": "not known"}.get(text := str(value), text)  # 1 == True, and no "yes"
