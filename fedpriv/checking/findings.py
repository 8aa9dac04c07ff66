"""What a check finds, and what it concludes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Layer = Literal["recognised", "replayed", "sampled"]
Severity = Literal["fault", "doubt", "note"]

#: What a check concludes.
FAULTS, NO_FAULT, NOT_CHECKED = "faults found", "no fault found", "could not check"


@dataclass(frozen=True)
class Finding:
    """One thing that a layer found.

    name: stable identifier in kebab-case, the same for the same fault in every target. severity: a fault breaks the
    claim or any bound; a doubt may, depending on what the check cannot see; a note is for the reader. text: what was
    seen, with its numbers. remedy: how to mend it.
    """

    layer: Layer
    name: str
    severity: Severity
    text: str
    remedy: str = ""

    def as_json(self) -> dict[str, str]:
        return {
            "layer": self.layer,
            "name": self.name,
            "severity": self.severity,
            "text": self.text,
            "remedy": self.remedy,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finding:
        return cls(value["layer"], value["name"], value["severity"], value["text"], value["remedy"])


def conclusion(findings: Sequence[Finding], checked: bool) -> str:
    """`FAULTS` where any finding is a fault; `NOT_CHECKED` where no layer could look; else `NO_FAULT`."""
    if any(finding.severity == "fault" for finding in findings):
        return FAULTS
    return NO_FAULT if checked else NOT_CHECKED


def json_number(value: float | None) -> float | str | None:
    """JSON has no infinity: it becomes the text "inf"."""
    return value if value is None or math.isfinite(value) else ("inf" if value > 0 else "-inf")
