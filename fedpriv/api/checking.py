"""`fedpriv.check`: the three epsilons of other people's code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.checking.asking import OF_A_CALL, question_and_limits, read_options
from fedpriv.checking.checks import check_object
from fedpriv.checking.child import check_name
from fedpriv.checking.findings import Finding
from fedpriv.checking.result import Check, markdown, write_check
from fedpriv.common.errors import OptionError


@dataclass(frozen=True)
class CheckResult:
    """What a check found. verdict: "faults found", "no fault found" or "could not check"."""

    check: Check

    @property
    def verdict(self) -> str:
        return self.check.verdict

    @property
    def findings(self) -> list[Finding]:
        """Faults first, then doubts and notes."""
        return list(self.check.findings)

    @property
    def claimed(self) -> float | None:
        return self.check.claimed

    @property
    def verified(self) -> float | None:
        """An upper bound on epsilon from what was recognised; None: nothing was."""
        return self.check.verified

    @property
    def audited(self) -> float | None:
        """A lower bound on epsilon; infinite where a replay saw a number without noise."""
        return self.check.audited

    @property
    def report(self) -> str:
        """The page, as Markdown."""
        return markdown(self.check)

    def write(self, folder: str | Path) -> list[Path]:
        """Writes check.json, report.md and report.html, and returns their paths."""
        return write_check(self.check, Path(folder))

    def why_above(self, epsilon: float, unverified: str = "fail") -> str | None:
        """Why the target fails a limit on epsilon, in words; None: it passes. Faults fail every limit. unverified:
        "pass" lets a target through whose epsilon nothing bounds from above.
        """
        return self.check.why_above(epsilon, unverified)

    def __str__(self) -> str:
        return self.check.last_line


def check(target: Any, **options: Any) -> CheckResult:
    """Checks a target: its name ("module:attribute", "path/file.py:attribute", "package.module.attribute"), which runs
    in a process of its own with limits, or the object itself, which runs in this process without any.

    options: as of `fedpriv check --help`: epsilon, delta, scope, calls, adjacency, unit, bound, dims, trials,
    confidence, seed, seconds, memory. Raises `OptionError`; what a target raises becomes the verdict "could not check".
    """
    if wrong := next((name for name in options if name not in OF_A_CALL), None):
        raise OptionError(wrong, options[wrong], f"no such option of a check; allowed: {', '.join(OF_A_CALL)}")
    question, limits = question_and_limits(read_options(options))
    if isinstance(target, str):
        return CheckResult(check_name(target, question, limits))
    if target is None or isinstance(target, int | float | bytes | dict):
        raise OptionError("target", repr(target), "must be a name (module:attribute), or a function or object to check")
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return CheckResult(check_object(target, question, name=name, seconds=limits.seconds))
