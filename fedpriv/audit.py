"""`python -m fedpriv.audit`: attacks a method's real release code and holds the result against its claim.

    python -m fedpriv.audit run=RUN_FOLDER [trials=200000] [confidence=0.95] [level=mechanism|training]
    python -m fedpriv.audit strategy=fedcad strategy.client.noise_multiplier=4 [participations=1] ...

mechanism: the client's `release`, the very object that training uses, on worst-case pairs of neighbouring update
sequences, many independent trials in one vectorised call. training: a real run whose clients (or, where the unit is
one example, some of whose examples) are canaries; the server's view of every message is what the attacker has; it
takes neither trials nor participations. With ``run=`` the result goes into the run's summary and report.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.cli import DONE, guarded
from fedpriv.client import Client, Neighbours
from fedpriv.compose import compose, read_config
from fedpriv.config import Config
from fedpriv.errors import OptionError, RunFolderError
from fedpriv.planning import planned_events, schedule, with_target
from fedpriv.privacy.auditor import Audit, audit, verdict
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.mechanisms import one_coordinate as single_coordinate
from fedpriv.privacy.noise import SeededNoise
from fedpriv.run_folder import RunFolder, json_number
from fedpriv.worker import make_client

#: Coordinates of the audited release: the first carries the update, the others only noise.
DIMENSION = 2

#: Numbers held in memory at a time.
CHUNK_NUMBERS = 2**24


@dataclass(frozen=True)
class AuditedScope:
    """An audit of a number of participations beside what is claimed and verified for exactly these."""

    name: str
    participations: int
    pair: str
    audit: Audit
    claimed: float | None
    verified: float
    verdict: str


def audit_mechanism(
    client: Client,
    participations: int,
    *,
    delta: float,
    trials: int,
    confidence: float,
    seed: int,
    name: str = "",
    one_coordinate: bool = False,
) -> AuditedScope:
    """Audits ``participations`` releases of one client over all its worst-case pairs and keeps the largest bound.

    The error probability is divided among the pairs, so that the kept bound still has the stated confidence.
    """
    pairs = client.worst_case_pairs(participations)
    split = 1 - (1 - confidence) / len(pairs)
    found: list[tuple[Audit, str]] = []
    for index, pair in enumerate(pairs):
        one = audit(
            _sampler(client, pair, 1 if one_coordinate else DIMENSION),
            delta=delta,
            trials=trials,
            confidence=split,
            seed=seed * 1000 + index,
            structural=client.exact_leak(),
            chunk=max(1024, CHUNK_NUMBERS // (DIMENSION * max(1, participations))),
        )
        found.append((one, pair.name))
    best, pair_name = max(found, key=lambda item: (item[0].epsilon_lower, item[0].epsilon_sampled))
    best = replace(best, confidence=confidence)
    planned = client.planned_events(participations)
    verified = compose_events(map(single_coordinate, planned) if one_coordinate else planned, delta).epsilon
    claim = client.claim(participations, delta)
    claimed = claim.epsilon if claim else None
    # Several releases are what a claim about the run speaks of; one release is every scope at once, but for a claim
    # about single coordinates. Attacked at delta, a pure claim (delta 0) is refuted all the same.
    of_coordinates = claim is not None and claim.scope == "coordinate"
    same_scope = claim is not None and (participations == 1 or claim.scope == "run") and claim.delta <= delta
    same_scope &= one_coordinate or not of_coordinates
    words = "nothing is claimed" if claimed is None else verdict(best, claimed, same_scope)
    return AuditedScope(name or f"{participations} releases", participations, pair_name, best, claimed, verified, words)


def _sampler(client: Client, pair: Neighbours, dimension: int) -> Any:
    """sample(world, n, seed) -> releases [n, participations * features] of the client's own release code: so many
    coordinates, and every number that leaves beside them.
    """

    def sample(world: bool, trials: int, seed: int) -> NDArray[np.float32]:
        noise = SeededNoise(seed, int(world), "audit", pair.name)
        state, seen = None, []
        for length in pair.world1 if world else pair.world0:
            release = client.audit_release(length, state, (trials, dimension), noise)
            state = release.state
            seen.append(release.value)
            seen.extend(number.float().unsqueeze(1) for number in release.statistics.values())
        features: NDArray[np.float32] = torch.cat(seen, dim=1).numpy()
        return features

    return sample


def audit_config(
    config: Config,
    *,
    trials: int,
    confidence: float,
    seed: int,
    participations: int | None = None,
    released: int | None = None,
) -> list[AuditedScope]:
    """The whole run (``released`` releases where it has ended, else of the client asked most often), or
    ``participations``; and a single release.
    """
    client = make_client(config)
    most = participations or released or client.observed_rounds(max(schedule(config)))
    delta = config.privacy.delta
    common: dict[str, Any] = {"delta": delta, "trials": trials, "confidence": confidence, "seed": seed}
    names = {most: "whole run" if participations is None else f"{most} releases", 1: "one release"}
    scopes = [audit_mechanism(client, n, **common, name=names[n]) for n in sorted(names, reverse=True)]
    claim = client.claim(1, delta)
    if claim is not None and claim.scope == "coordinate":
        scopes.append(audit_mechanism(client, 1, **common, name="one coordinate", one_coordinate=True))
    return scopes


# --- the command -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AuditOptions:
    trials: int = 200_000
    confidence: float = 0.95
    seed: int = 0
    level: str = "mechanism"
    participations: int | None = None


def parse_options(arguments: Sequence[str]) -> tuple[AuditOptions, str | None, list[str]]:
    """(audit options, run folder, the other overrides); `OptionError` for a value that is not allowed."""
    options: dict[str, Any] = {}
    run, overrides = None, []
    readers: dict[str, tuple[Any, Any, str]] = {
        "trials": (int, lambda v: v >= 1000, "a whole number of at least 1000"),
        "confidence": (float, lambda v: 0.5 <= v < 1, "a number from 0.5 to below 1"),
        "participations": (int, lambda v: v >= 1, "a whole number of at least 1"),
        "level": (str, lambda v: v in ("mechanism", "training"), "mechanism or training"),
        "audit_seed": (int, lambda v: v >= 0, "a whole number"),
    }
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "run":
            run = value
        elif key in readers:
            kind, allowed, words = readers[key]
            try:
                parsed = kind(value)
            except ValueError:
                raise OptionError(key, value, f"must be {words}") from None
            if not allowed(parsed):
                raise OptionError(key, value, f"must be {words}")
            options["seed" if key == "audit_seed" else key] = parsed
        else:
            overrides.append(argument)
    return AuditOptions(**options), run, overrides


def main(arguments: Sequence[str]) -> int:
    return guarded(lambda: _main(list(arguments)))


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return DONE
    options, run, overrides = parse_options(arguments)
    if run is not None and overrides:
        key, _, value = overrides[0].partition("=")
        raise OptionError(key, value, "run= takes the run's own options")
    config = read_config(run) if run is not None else with_target(compose(overrides))
    folder = RunFolder(Path(run)) if run is not None else None
    if folder is not None and not folder.finished:
        raise RunFolderError(f"{run}: the run has not finished, it has no summary.json to write into")
    if options.level == "training":
        return _audit_training(config, options, folder)
    scopes = audit_config(
        config,
        trials=options.trials,
        confidence=options.confidence,
        seed=options.seed,
        participations=options.participations,
        released=None if folder is None else most_releases(folder),
    )
    _print(config, scopes)
    if folder is not None and options.participations is None:
        _write_into_run(folder, config, scopes)
        print(f"written into {folder.path / 'summary.json'} and report.html")
    return DONE


def most_releases(folder: RunFolder) -> int | None:
    """How often the client that released most did so, by the run's ledger: clients may have stopped early."""
    answered = {(entry.client, entry.round, entry.attempt) for entry in folder.ledger.read().entries}
    counts = Counter(client for client, _, _ in answered)
    return max(counts.values(), default=None)


def _audit_training(config: Config, options: AuditOptions, folder: RunFolder | None) -> int:
    from fedpriv.audit_training import audit_training
    from fedpriv.report.page import write_report

    found = audit_training(config, confidence=options.confidence, seed=options.seed)
    planned = planned_events(make_client(config), max(schedule(config)))
    verified = compose_events(planned, config.privacy.delta).epsilon
    print(f"canaries in a real run, {threat_in_words(config)}:\n{found}; verified epsilon <= {_shown(verified)}")
    if folder is not None:
        summary = folder.read_summary() or {}
        summary["privacy"]["training_audit"] = {
            "audited_epsilon": json_number(found.epsilon_lower),
            "audited_confidence": found.confidence,
            "verified_epsilon": json_number(verified),
            "canaries": found.canaries,
            "guesses": found.guesses,
            "correct": found.correct,
        }
        folder.write_summary(summary)
        write_report(folder.path)
        print(f"written into {folder.path / 'summary.json'} and report.html")
    return DONE


def threat_in_words(config: Config) -> str:
    threat = make_client(config).threat
    return f"unit {threat.unit}, {threat.adjacency}, observer {threat.observer}"


def _print(config: Config, scopes: Sequence[AuditedScope]) -> None:
    print(
        f"{config.strategy.name} ({config.privacy.variant}), {threat_in_words(config)}, delta {config.privacy.delta:g}"
    )
    header = ("scope", "audited >=", "claimed", "verified <=", "verdict")
    rows = [
        (scope.name, _shown(scope.audit.epsilon_lower), _shown(scope.claimed), _shown(scope.verified), scope.verdict)
        for scope in scopes
    ]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
    for scope in scopes:
        print(f"{scope.name}: {scope.audit}; worst pair: {scope.pair}")


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return "infinite" if math.isinf(value) else f"{value:.3g}"


def _write_into_run(folder: RunFolder, config: Config, scopes: Sequence[AuditedScope]) -> None:
    """The whole run's audit goes into the summary's audited_* keys, the picture and the report beside it."""
    from fedpriv.privacy.audit_plot import AuditRow, draw_audit
    from fedpriv.report.page import write_report

    summary = folder.read_summary() or {}
    whole = scopes[0]
    summary["privacy"] |= {
        "audited_epsilon": json_number(whole.audit.epsilon_lower),
        "audited_confidence": whole.audit.confidence,
        "audited_trials": whole.audit.trials,
        "audit_verdict": whole.verdict,
        "audits": [
            {
                "scope": scope.name,
                "participations": scope.participations,
                "audited_epsilon": json_number(scope.audit.epsilon_lower),
                "claimed_epsilon": None if scope.claimed is None else json_number(scope.claimed),
                "verified_epsilon": json_number(scope.verified),
                "verdict": scope.verdict,
                "rule": scope.audit.rule,
                "pair": scope.pair,
            }
            for scope in scopes
        ],
    }
    rows = [AuditRow(scope.name, scope.audit, scope.claimed, scope.verified) for scope in scopes]
    draw_audit(rows, folder.path / "audit.png", threat=threat_in_words(config))
    folder.write_summary(summary)
    write_report(folder.path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
