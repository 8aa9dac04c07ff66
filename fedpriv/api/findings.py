"""What plans, audits and attacks found, as objects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.attacks.contract_check import Contract
from fedpriv.attacks.fit_audit import FitAudit
from fedpriv.attacks.release_audit import AuditedScope
from fedpriv.config.schema import Config
from fedpriv.privacy.canaries import CanaryAudit


def shown(value: float | None) -> str:
    """A figure for people."""
    if value is None:
        return "–"
    return "infinite" if math.isinf(value) else f"{value:.4g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """An HTML table of plain text."""
    from fedpriv.report.rendering import rendered

    return rendered("tables.html", tables=[(caption, header, rows)], note="")


@dataclass(frozen=True)
class Plan:
    """What a run would cost, before it: nothing was trained or released.

    config: with every ``auto`` resolved and the noise of `privacy.target_epsilon`. epsilons at `config.privacy.delta`,
    of the client that is asked most often; claimed: None where the paper claims nothing. bytes_up, bytes_down: payload
    of all messages. seconds: estimated local training on one worker. participations: of a client, least and most.
    """

    config: Config
    claimed_epsilon: float | None
    verified_epsilon: float
    verified_median: float
    accountant: str
    reasons: tuple[str, ...]
    participations: tuple[int, int]
    bytes_up: int
    bytes_down: int
    seconds: float

    @property
    def summary(self) -> dict[str, Any]:
        """The figures by name."""
        names = ("claimed_epsilon", "verified_epsilon", "verified_median", "accountant", "reasons", "participations")
        return {name: getattr(self, name) for name in (*names, "bytes_up", "bytes_down", "seconds")}

    def _repr_html_(self) -> str:
        rows = [
            ("claimed epsilon", shown(self.claimed_epsilon)),
            ("verified epsilon", f"{shown(self.verified_epsilon)} (median client {shown(self.verified_median)})"),
            ("audited epsilon", "–"),
            ("a client takes part", f"{self.participations[0]} to {self.participations[1]} times"),
            ("bytes up / down", f"{self.bytes_up:,} / {self.bytes_down:,}"),
            ("estimated training", f"{self.seconds:.0f} s on one worker"),
            *(("reason", reason) for reason in self.reasons),
        ]
        of = self.config
        return table((), rows, f"plan: {of.method} on {of.dataset.name}, delta {of.privacy.delta:g}")


@dataclass(frozen=True)
class Audit:
    """Lower bounds on epsilon, measured by attacking the code. scopes: of the release function, the whole run first.
    training, fits: with ``level="training"``, of a real run with canaries and of one client's own fit. contract: of
    noise, in real rounds; its ``findings`` are empty for sound code.
    """

    scopes: tuple[AuditedScope, ...] = ()
    training: CanaryAudit | None = None
    fits: FitAudit | None = None
    contract: Contract | None = None

    @property
    def audited_epsilon(self) -> float:
        """Of the widest scope."""
        if self.scopes:
            return self.scopes[0].audit.epsilon_lower
        assert self.training is not None
        return self.training.epsilon_lower

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row for each scope."""
        rows: list[dict[str, Any]] = [
            {
                "scope": scope.name,
                "audited_epsilon": scope.audit.epsilon_lower,
                "claimed_epsilon": scope.claimed,
                "verified_epsilon": scope.verified,
                "verdict": scope.verdict,
            }
            for scope in self.scopes
        ]
        if self.training is not None:
            rows.append({"scope": "canaries in a real run", "audited_epsilon": self.training.epsilon_lower})
        if self.fits is not None:
            found = {"audited_epsilon": self.fits.audit.epsilon_lower, "verified_epsilon": self.fits.verified}
            rows.append({"scope": f"the client's own fit, {self.fits.scope}", **found})
        return rows

    def _repr_html_(self) -> str:
        header = ("scope", "audited epsilon ≥", "claimed", "verified ≤", "verdict")
        names = ("audited_epsilon", "claimed_epsilon", "verified_epsilon")
        rows = [
            (row["scope"], *(shown(row.get(name)) for name in names), row.get("verdict", "")) for row in self.summary
        ]
        return table(header, rows, "audit")


@dataclass(frozen=True)
class Attacks:
    """Membership inference against a run. records: attack -> what attacks/NAME.json holds."""

    records: Mapping[str, Mapping[str, Any]]

    @property
    def summary(self) -> dict[str, str]:
        """Attack -> its verdict in words."""
        return {name: str(record.get("verdict") or "not shown") for name, record in self.records.items()}

    def _repr_html_(self) -> str:
        from fedpriv.attacks.attack_records import HEADER, row

        return table(HEADER, [row(record) for record in self.records.values()], "membership inference")
