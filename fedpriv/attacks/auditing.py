"""An audit of a configuration or of a finished run, and its results in the run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedpriv.attacks.client_canaries import audit_training
from fedpriv.attacks.contract_check import Contract, check_contract
from fedpriv.attacks.fit_audit import FitAudit, audit_fits
from fedpriv.attacks.release_audit import AuditedScope, audit_config, most_releases, threat_in_words
from fedpriv.client.build import make_client
from fedpriv.common.doing import doing
from fedpriv.common.errors import RunFolderError
from fedpriv.common.files import json_number
from fedpriv.config.compose import compose, read_config
from fedpriv.config.schema import Config
from fedpriv.privacy.auditor import BROKEN, UNDECIDED
from fedpriv.privacy.canaries import CanaryAudit
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.other_options import said, with_operations
from fedpriv.runs.planning import most_participations, planned_events, with_target

VERIFIED = "verified epsilon"

#: Names of the audited code in the summary.
RELEASE_FUNCTION, OWN_FIT = "release function", "client's own fit"

#: Most participations in the audit of the client's own fit, each of which trains for real.
MOST_FITS = 2000


@dataclass(frozen=True)
class AuditOptions:
    trials: Annotated[int, Field(ge=1000)] = 200_000
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    participations: Annotated[int | None, Field(ge=1)] = None
    level: Literal["mechanism", "training"] = "mechanism"
    audit_seed: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class TrainingAudit:
    """An audit of a real run with canaries, whose epsilon is at most ``verified``, and of one client's own fit."""

    canaries: CanaryAudit
    verified: float
    fits: FitAudit

    @property
    def verdicts(self) -> tuple[str, str]:
        """Of the canaries and of the fits, against what is verified for the same."""
        fits = self.fits.audit
        return (
            against_verified(self.canaries.epsilon_lower, self.canaries.attainable, self.verified),
            against_verified(fits.epsilon_lower, fits.attainable, self.fits.verified),
        )


def against_verified(lower: float, attainable: float, verified: float) -> str:
    """What a measured lower bound says, which could have been ``attainable`` at most. Below what is verified, a perfect
    attack would have shown no contradiction either: then nothing can be told.
    """
    if lower > verified:
        return BROKEN
    return f"consistent with the {VERIFIED}" if attainable >= verified else UNDECIDED


@dataclass(frozen=True)
class Audited:
    """An audit's results: of the release code with its noise contract, or of a real training."""

    config: Config
    scopes: tuple[AuditedScope, ...] = ()
    contract: Contract | None = None
    training: TrainingAudit | None = None


def audit_run(run: str | Path | None, overrides: Sequence[str], options: AuditOptions) -> Audited:
    """Audits a finished run, whose summary and report get the result, or a configuration.

    Args:
        run: the run's folder; None: ``overrides`` are all options.
        overrides: of a run, where things are on this machine.

    Raises: `OptionError`, `RunFolderError`.
    """
    folder = None
    if run is None:
        config = with_target(compose(list(overrides)))
    else:
        config, folder = with_operations(read_config(run, said(overrides)), overrides), RunFolder(Path(run))
        if not folder.finished:
            raise RunFolderError(f"{run}: the run has not finished, it has no summary.json to write into")
    if options.level == "training":
        training = audit_training_of(config, options)
        if folder is not None:
            write_training_audit(folder, training)
        return Audited(config, training=training)
    contract = check_contract(config)
    scopes = audit_releases(config, options, folder)
    if folder is not None and options.participations is None:
        write_release_audit(folder, config, scopes, contract)
    return Audited(config, tuple(scopes), contract)


def audit_releases(config: Config, options: AuditOptions, folder: RunFolder | None) -> list[AuditedScope]:
    """Audits the release code, as often as a finished run's client released that released most."""
    return audit_config(
        config,
        trials=options.trials,
        confidence=options.confidence,
        seed=options.audit_seed,
        participations=options.participations,
        released=None if folder is None else most_releases(folder),
    )


def audit_training_of(config: Config, options: AuditOptions) -> TrainingAudit:
    """Trains for real, with canaries."""
    doing("a real run with canaries")
    found = audit_training(config, confidence=options.confidence, seed=options.audit_seed)
    planned = planned_events(make_client(config), most_participations(config))
    verified = compose_events(planned, config.privacy.delta).epsilon
    trials = min(options.trials, MOST_FITS)
    doing(f"{trials} participations of one client")
    fits = audit_fits(config, trials=trials, confidence=options.confidence, seed=options.audit_seed)
    return TrainingAudit(found, verified, fits)


def write_training_audit(folder: RunFolder, audit: TrainingAudit) -> None:
    """The training's audit goes into the summary and the report."""
    from fedpriv.report.page import write_report

    found, fits, summary = audit.canaries, audit.fits, _summary(folder)
    summary["privacy"]["training_audit"] = {
        "audited_epsilon": json_number(found.epsilon_lower),
        "audited_confidence": found.confidence,
        "verified_epsilon": json_number(audit.verified),
        "canaries": found.canaries,
        "guesses": found.guesses,
        "correct": found.correct,
        "runs": found.runs,
        "audited_at_most": json_number(found.attainable),
        "sharper": [bound.to_json() for bound in found.sharper],
        "verdict": audit.verdicts[0],
    }
    summary["privacy"]["fit_audit"] = {
        "audited_on": OWN_FIT,
        "scope": fits.scope,
        "audited_epsilon": json_number(fits.audit.epsilon_lower),
        "audited_confidence": fits.audit.confidence,
        "audited_trials": fits.audit.trials,
        "audited_at_most": json_number(fits.audit.attainable),
        "sharper": [bound.to_json() for bound in fits.audit.sharper],
        "verdict": audit.verdicts[1],
        "verified_epsilon": json_number(fits.verified),
    }
    folder.write_summary(summary)
    write_report(folder.path)


def _summary(folder: RunFolder) -> dict[str, Any]:
    """Of a finished run. Raises `RunFolderError` where it has no section on privacy to write into."""
    summary = folder.read_summary() or {}
    if not isinstance(summary.get("privacy"), dict):
        raise RunFolderError(f"{folder.path / 'summary.json'}: has no section `privacy` to write into")
    return summary


def write_release_audit(
    folder: RunFolder, config: Config, scopes: Sequence[AuditedScope], contract: Contract | None = None
) -> None:
    """The whole run's audit goes into the summary's audited_* keys, the plot and the report."""
    from fedpriv.report.attacks import AuditRow, draw_audit
    from fedpriv.report.page import write_report

    summary = _summary(folder)
    whole = scopes[0]
    summary["privacy"] |= {
        "audited_epsilon": json_number(whole.audit.epsilon_lower),
        "audited_confidence": whole.audit.confidence,
        "audited_trials": whole.audit.trials,
        "audited_at_most": json_number(whole.attainable),
        "audited_dimension": whole.dimension,
        "audited_code": whole.path,
        "audited_expected": json_number(whole.expected),
        "audited_on": RELEASE_FUNCTION,
        "audit_verdict": _worst(scopes, contract),
        "audits": [
            {
                "scope": scope.name,
                "participations": scope.participations,
                "audited_epsilon": json_number(scope.audit.epsilon_lower),
                "claimed_epsilon": None if scope.claimed is None else json_number(scope.claimed),
                "verified_epsilon": json_number(scope.verified),
                "audited_at_most": json_number(scope.attainable),
                "audited_dimension": scope.dimension,
                "audited_trials": scope.audit.trials,
                "looked_at": [list(size) for size in scope.sizes],
                "audited_expected": json_number(scope.expected),
                "verdict": scope.verdict,
                "sharper": [bound.to_json() for bound in scope.sharper],
                "rule": scope.audit.rule,
                "pair": scope.pair,
            }
            for scope in scopes
        ],
    }
    if contract is not None:
        summary["privacy"]["noise_contract"] = {
            "held": list(contract.held),
            "findings": list(contract.findings),
            "skipped": contract.skipped,
        }
    rows = [AuditRow(scope.name, scope.audit, scope.claimed, scope.verified) for scope in scopes]
    draw_audit(rows, folder.path / "audit.png", threat=threat_in_words(config))
    folder.write_summary(summary)
    write_report(folder.path)


def _worst(scopes: Sequence[AuditedScope], contract: Contract | None) -> str:
    """The whole run's verdict, or that of the part that contradicts what is verified."""
    if contract is not None and contract.findings:
        return f"{BROKEN}: {contract.findings[0]}"
    return BROKEN if any(scope.verdict == BROKEN for scope in scopes) else scopes[0].verdict
