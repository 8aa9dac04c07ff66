"""What a check concludes, with the three epsilons, as an object and as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.checking.findings import FAULTS, NOT_CHECKED, Finding, conclusion, json_number
from fedpriv.checking.subject import Claim
from fedpriv.common.errors import OptionError
from fedpriv.common.files import write_atomic
from fedpriv.report.rendering import rendered


@dataclass(frozen=True)
class Layer:
    """One layer of a check: whether it ran, what it did in words, and the most that it could have shown.

    cut: what was done less often than in a check that has all the time it wants, each with both numbers.
    """

    name: str
    ran: bool
    words: str
    could_show: str = ""
    cut: Sequence[str] = ()

    @property
    def cut_in_words(self) -> str:
        """Empty: the layer had the time it wanted."""
        if not self.cut:
            return ""
        return (
            f"Cut short by the time of the check ({'; '.join(self.cut)}): with more of it (seconds=), or on a quicker "
            "machine, more is seen, and the verdict may be another."
        )


@dataclass(frozen=True)
class Check:
    """What a check found: `fedpriv.check` and `fedpriv check`.

    claimed: epsilon that the user or the recognised wrapper claims; None: none. verified: an upper bound from what was
    recognised, None: nothing that has a proof was recognised; infinite: it has no bound. audited: the lower bound of
    sampling (infinite where a replay saw a number without noise), None: nothing was sampled; covered: of a pair that
    the claim covers, else of two units, twice. measured: what the largest move of such pairs that replays saw costs at
    least, if the noise is Gaussian as it seems. sharper: a lower bound that assumes a law of the noise, which it names
    (`fedpriv.privacy.trade_offs.SharperBound`). coverage: the share of a full check that was made.
    """

    target: str
    kind: str
    delta: float
    findings: Sequence[Finding] = ()
    layers: Sequence[Layer] = ()
    claim: Claim | None = None
    claimed: float | None = None
    verified: float | None = None
    audited: float | None = None
    attainable: float | None = None
    measured: float | None = None
    sharper: Mapping[str, Any] | None = None
    covered: bool = True
    coverage: float | None = None
    confidence: float = 0.95
    why_not: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """ "faults found", "no fault found" or "could not check"."""
        return conclusion(self.findings, self.why_not is None)

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "fault"]

    @property
    def last_line(self) -> str:
        """The whole check in one sentence."""
        three = (("claimed", self.claimed), ("verified", self.verified), ("audited", self.audited))
        figures = ", ".join(f"{name} {figure_in_words(value)}" for name, value in three)
        if self._cut_audit and self.attainable is not None:
            figures += f" of at most {self.attainable:.3g}"
        if self.coverage is not None and self.coverage < 0.995:
            figures += f"; looked at {100 * self.coverage:.0f} % of a full check"
        if self.verdict == FAULTS:
            names = ", ".join(dict.fromkeys(finding.name for finding in self.faults))
            return f"{FAULTS}: {names} (epsilon: {figures})"
        if self.verdict == NOT_CHECKED:
            return f"{NOT_CHECKED}: {self.why_not}"
        doubts = sum(finding.severity == "doubt" for finding in self.findings)
        beside = f", {doubts} doubt{'s' if doubts > 1 else ''}" if doubts else ""
        return f"{self.verdict}{beside} (epsilon: {figures})"

    def why_above(self, limit: float, unverified: str = "fail") -> str | None:
        """Why the check fails a limit on epsilon, in words, or None: it passes.

        unverified: "fail": without a verified epsilon the check fails; "pass": then the audited one alone counts.
        """
        if self.verdict != "no fault found":
            return self.last_line
        if self.coverage is not None and self.coverage < LEAST_COVERAGE:
            return f"it looked at {100 * self.coverage:.0f} % of a full check: give it more time with seconds="
        if self.audited is not None and self.audited > limit * (1 if self.covered else 2):
            return f"the audited epsilon {self.audited:.3g} is above {limit:g}"
        if self.verified is not None and self.verified > limit:
            return f"the verified epsilon {figure_in_words(self.verified)} is above {limit:g}"
        if self.measured is not None and self.measured > limit:
            return f"the epsilon of the noise that was measured, at least {self.measured:.3g}, is above {limit:g}"
        if self.verified is None and self.audited is None:
            made = next((layer.words for layer in self.layers if layer.name == "sampled"), "")
            return f"no epsilon is verified, and none is audited. {made}".strip()
        if self.verified is None and unverified == "fail":
            return "no epsilon is verified: nothing bounds it from above (unverified=pass lets this through)"
        if self.verified is None and self._cut_audit and (self.attainable or 0.0) <= limit:
            return f"the audit was cut short, and could show at most {self.attainable:.3g}: more time with seconds="
        return None

    @property
    def _cut_audit(self) -> bool:
        bound = self.audited is not None and math.isfinite(self.audited)
        return bound and any(layer.cut for layer in self.layers if layer.name == "sampled")

    def __str__(self) -> str:
        return self.last_line

    @property
    def report(self) -> str:
        """The page, as Markdown."""
        return markdown(self)

    def write(self, folder: str | Path) -> list[Path]:
        """Writes check.json, report.md and report.html, and returns their paths."""
        return write_check(self, Path(folder))

    def as_json(self) -> dict[str, Any]:
        """JSON has no infinity: it becomes the text "inf"."""
        found: dict[str, Any] = asdict(self) | {"verdict": self.verdict, "last_line": self.last_line}
        for holder in (found, found["claim"] or {}):
            holder |= {name: json_number(value) for name, value in holder.items() if isinstance(value, float)}
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Check:
        """Of `as_json`."""
        given = {name: part for name, part in value.items() if name not in ("verdict", "last_line")}
        given |= {name: float(given[name]) for name in FIGURES if given[name] is not None}
        claim = given["claim"] and Claim(**given["claim"] | {"epsilon": float(given["claim"]["epsilon"])})
        layers = [Layer(**one | {"cut": tuple(one["cut"])}) for one in given["layers"]]
        return cls(
            **given | {"claim": claim, "layers": layers, "findings": [Finding(**one) for one in given["findings"]]}
        )


#: A check that looked at less says nothing.
LEAST_COVERAGE = 0.1
#: Epsilons of a check, which may be infinite.
FIGURES = ("claimed", "verified", "audited", "attainable", "measured")


def figure_in_words(value: float | None) -> str:
    """None: nothing is known."""
    if value is None:
        return "none"
    return "infinite" if math.isinf(value) else f"{value:.3g}"


# --- page -------------------------------------------------------------------------------------------------------------
# A check as one page, in Markdown and HTML, and as one JSON file.

FILES = ("check.json", "check.sarif", "report.md", "report.html")


def figures(check: Check) -> list[tuple[str, str, str]]:
    """(name, figure, what it is) of each epsilon."""
    claim = check.claim
    claimed = "nothing was claimed" if claim is None else f"{claim.source}; of one {claim.scope}"
    most = "" if check.attainable is None else f"; the trials could show at most {check.attainable:.3g}"
    return [
        ("claimed", figure_in_words(check.claimed), claimed),
        ("verified", figure_in_words(check.verified), "an upper bound from what was recognised"),
        ("audited", figure_in_words(check.audited), f"a lower bound from outputs, {100 * check.confidence:g} %{most}"),
        ("measured", figure_in_words(check.measured), "at least, by the law of its noise: what moved most in replays"),
    ]


def facts(check: Check) -> dict[str, Any]:
    return {"check": check, "figures": figures(check), "findings": list(check.findings), "layers": list(check.layers)}


def markdown(check: Check) -> str:
    kind = f"A {check.kind}, taken as {check.facts.get('form', 'unknown')}; delta {check.delta:g}."
    lines = [f"# Check of {check.target}", "", f"**{check.last_line}**", "", kind]
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
            at = f" ({one.place})" if one.place else ""
            lines += ["", f"- {one.severity} `{one.name}`: {one.text}{at}"]
            if one.remedy:
                lines.append(f"  To mend it: {one.remedy}")
    return lines


#: SARIF 2.1.0 and GitHub's commands have words of their own for how much a finding weighs.
LEVELS = {"fault": "error", "doubt": "warning", "note": "note"}


def sarif(check: Check) -> dict[str, Any]:
    """The findings as SARIF 2.1.0 (OASIS), which code hosts show at the lines of the source."""
    rules, results = {}, []
    for one in check.findings:
        rules[one.name] = {
            "id": one.name,
            "shortDescription": {"text": one.name},
            "help": {"text": one.remedy or one.text},
        }
        found: dict[str, Any] = {"ruleId": one.name, "level": LEVELS[one.severity], "message": {"text": one.text}}
        if one.place:
            file, _, line = one.place.rpartition(":")
            where = {"artifactLocation": {"uri": _relative(file)}, "region": {"startLine": int(line)}}
            found["locations"] = [{"physicalLocation": where}]
        found["partialFingerprints"] = {"fedprivCheck/v1": f"{check.target} {one.layer} {one.name}"}
        results.append(found)
    driver = {"name": "fedpriv check", "rules": list(rules.values())}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {"$schema": schema, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def log_lines(check: Check) -> list[str]:
    """Faults and doubts as GitHub Actions reads them from a log."""
    lines = []
    for one in check.findings:
        if one.severity != "note":
            file, _, line = one.place.rpartition(":")
            place = f"file={_relative(file)},line={line}," if one.place else ""
            text = one.text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            lines.append(f"::{LEVELS[one.severity]} {place}title={one.name}::{text}")
    return lines


def _relative(file: str) -> str:
    relative = os.path.relpath(file)
    return (file if relative.startswith("..") else relative).replace(os.sep, "/")


def accepted(check: Check, baseline: Path) -> set[str]:
    """Names of the doubts that an earlier check of the target had. Raises `OptionError`."""
    try:
        earlier = Check.from_json(json.loads(baseline.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError("baseline", baseline, f"must be the check.json of an earlier check ({error})") from None
    if earlier.target != check.target:
        raise OptionError("baseline", baseline, f"is of {earlier.target}; allowed: a check of {check.target}")
    return {one.name for one in earlier.findings if one.severity == "doubt"}


def write_check(check: Check, folder: Path) -> list[Path]:
    """Writes `FILES` into ``folder`` and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = (
        json.dumps(check.as_json(), indent=1, allow_nan=False) + "\n",
        json.dumps(sarif(check), indent=1) + "\n",
        markdown(check),
        rendered("check.html", **facts(check)),
    )
    for name, content in zip(FILES, contents, strict=True):
        write_atomic(folder / name, content)
    return [folder / name for name in FILES]
