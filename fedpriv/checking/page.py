"""A check as one page, in Markdown and HTML, and as one JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedpriv.checking.result import Check, figure_in_words
from fedpriv.common.files import write_atomic
from fedpriv.report.rendering import rendered

FILES = ("check.json", "report.md", "report.html")


def figures(check: Check) -> list[tuple[str, str, str]]:
    """(name, figure, what it is) of each epsilon."""
    claim = check.claim
    claimed = "nothing was claimed" if claim is None else f"{claim.source}; of one {claim.scope}"
    most = "" if check.attainable is None else f"; the trials could show at most {check.attainable:.3g}"
    return [
        ("claimed", figure_in_words(check.claimed), claimed),
        ("verified", figure_in_words(check.verified), "an upper bound from what was recognised"),
        ("audited", figure_in_words(check.audited), f"a lower bound from outputs, {100 * check.confidence:g} %{most}"),
        ("measured", figure_in_words(check.measured), "an estimate: Gaussian noise, and what moved most in replays"),
    ]


def facts(check: Check) -> dict[str, Any]:
    return {"check": check, "figures": figures(check), "findings": list(check.findings), "layers": list(check.layers)}


def markdown(check: Check) -> str:
    lines = [f"# Check of {check.target}", "", f"**{check.last_line}**", "", f"A {check.kind}; delta {check.delta:g}."]
    lines += [
        "",
        "| epsilon | | |",
        "|---|---|---|",
        *(f"| {name} | {value} | {what} |" for name, value, what in figures(check)),
    ]
    for layer in check.layers:
        lines += ["", f"## {layer.name.capitalize()}", "", layer.words]
        if layer.could_show:
            lines += ["", f"It could show at most: {layer.could_show}."]
        if layer.cut:
            lines += ["", layer.cut_in_words]
        lines += _listed(check, layer.name)
    return "\n".join([*lines, ""])


def _listed(check: Check, layer: str) -> list[str]:
    lines: list[str] = []
    for one in check.findings:
        if one.layer == layer:
            lines += ["", f"- {one.severity} `{one.name}`: {one.text}"]
            if one.remedy:
                lines.append(f"  To mend it: {one.remedy}")
    return lines


def write_check(check: Check, folder: Path) -> list[Path]:
    """Writes `FILES` into ``folder`` and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = (
        json.dumps(check.as_json(), indent=1, allow_nan=False) + "\n",
        markdown(check),
        rendered("check.html", **facts(check)),
    )
    for name, content in zip(FILES, contents, strict=True):
        write_atomic(folder / name, content)
    return [folder / name for name in FILES]
