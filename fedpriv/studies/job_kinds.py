"""What is done for a job of each kind: it is given the job and its folder, and returns the record's figures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedpriv.common.command_line import guarded
from fedpriv.common.errors import RunFailed, RunFolderError
from fedpriv.common.stopping import stop
from fedpriv.report.views import PRIVATE
from fedpriv.studies.jobs import Job

#: What a record of each kind holds; raised where `WORK` writes something new, or a figure that means something else, so
#: that older records are made again.
FORMS = {"train": 1, "plan": 1, "dme": 1, "computed": 1, "audit": 3, "attack": 2, "tuning": 1}


def _train(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.config.compose import compose
    from fedpriv.runs.start import resume_run, start_run

    if (path / "summary.json").exists():  # finished, whichever commit made it: its summary says which
        return {}
    if (path / "config.yaml").exists():
        try:
            resume_run(path)
            return {}
        except RunFolderError:  # begun by other code or with other libraries: its rounds cannot be repeated
            shutil.rmtree(path)
    start_run(compose(job.overrides), path)
    return {}


def _attack(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.attacks.run import attack_run

    _train(job, path)
    (name,) = job.extra
    file = path / PRIVATE / "attacks" / f"{name}.json"
    file.unlink(missing_ok=True)  # of an earlier call, which this one's failure must not be taken for
    code = guarded(lambda: attack_run(str(path), name, {}))
    stop.check()
    if not file.exists():
        raise RunFailed(f"the attack {name} ended with exit code {code}")
    return attack_figures(json.loads(file.read_text(encoding="utf-8")))


def attack_figures(kept: Mapping[str, Any]) -> dict[str, float]:
    """Of a file of ``attacks/``: the balanced accuracy in percent with its interval, where the controls passed."""
    figures = {"shown": float(bool(kept["shown"]))}
    if kept["shown"]:
        accuracy = kept["figures"]["balanced_accuracy"]
        figures |= {f"attack_accuracy{end}": 100 * accuracy[key] for end, key in ENDS.items()}
        figures["attack_auc"] = kept["figures"]["auc"]["value"]
    return figures


ENDS = {"": "value", "_low": "low", "_high": "high"}


def _plan(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.common.files import json_number
    from fedpriv.config.compose import compose
    from fedpriv.report.words import THREAT_KEYS
    from fedpriv.runs.planning import plan_elsewhere
    from fedpriv.runs.preparation import resolve

    config, _, plan = resolve(compose(job.overrides), None)
    privacy = {key: getattr(plan.threat, key, None) for key in THREAT_KEYS} | {
        "delta": config.privacy.delta,
        "variant": config.privacy.variant,
        "claimed_epsilon": json_number(plan.claim.epsilon) if plan.claim else None,
        "claimed_scope": plan.claim.scope if plan.claim else None,
        "claimed_equation": plan.claim.equation if plan.claim else None,
        "verified_epsilon": json_number(plan.verified_epsilon),
        "verified_median": json_number(plan.verified_median),
        "accountant": plan.accountant,
        "reasons": list(plan.reasons),
        "others": [
            {key: getattr(other.threat, key, config.privacy.delta) for key in THREAT_KEYS}
            | {
                "verified_epsilon": json_number(other.verified_epsilon),
                "verified_median": json_number(other.verified_median),
                "accountant": other.accountant,
                "reasons": list(other.reasons),
            }
            for other in plan_elsewhere(config)
        ],
    }
    summary = {
        "strategy": config.method,
        "dataset": config.dataset.name,
        "model": config.model.name,
        "rounds": config.num_rounds,
        "num_clients": config.num_clients,
        "clients_per_round": config.clients_per_round,
        "privacy": privacy,
        "traffic": {"bytes_up": plan.bytes_up, "bytes_down": plan.bytes_down},
    }
    return {"summary": summary}


def _audit(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.attacks.release_audit import audit_config
    from fedpriv.common.files import json_number
    from fedpriv.config.compose import compose

    given = dict(option.split("=", 1) for option in job.extra)
    config = compose(job.overrides)
    participations = int(given["participations"]) if "participations" in given else None
    scopes = audit_config(
        config,
        trials=int(given.get("trials", 200_000)),
        confidence=float(given.get("confidence", 0.99)),
        seed=job.seed,
        participations=participations,
    )
    figures: dict[str, Any] = {}
    words = []
    for scope in scopes:
        short = scope.name.replace(" ", "_")
        figures |= {f"audited_{short}": scope.audit.epsilon_lower, f"verified_{short}": scope.verified}
        figures |= {} if scope.claimed is None else {f"claimed_{short}": scope.claimed}
        words.append(f"{scope.name}: {scope.verdict}")
    largest = max(scopes, key=lambda scope: scope.audit.epsilon_lower)
    privacy = {
        "delta": config.privacy.delta,
        "variant": config.privacy.variant,
        "claimed_epsilon": None if largest.claimed is None else json_number(largest.claimed),
        "verified_epsilon": json_number(largest.verified),
        "audited_epsilon": json_number(largest.audit.epsilon_lower),
        "audited_confidence": largest.audit.confidence,
        "audited_trials": largest.audit.trials,
        "reasons": words,
    }
    summary = {"strategy": config.method, "dataset": config.dataset.name, "privacy": privacy}
    refuted = any(scope.verdict.startswith("refutes") for scope in scopes)
    return {"summary": summary, "refuted": float(refuted), **figures}


def _dme(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.studies.mean_estimation import parse_options, table

    options = parse_options([*job.options, f"seed={job.seed}", f"out={path / 'dme'}"])
    figures: dict[str, Any] = {}
    for row in table(options):
        figures |= {f"{row.quantiser} error": row.error, f"{row.quantiser} epsilon": row.epsilon_server}
    return {"summary": {"strategy": "dme", "privacy": {}}, **figures}


def _tuning(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.studies.choice_price import price

    return price(job.overrides, job.extra)


def _computed(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.studies.computations import compute

    return {"summary": {"strategy": "computed", "privacy": {}}, **compute(job.options)}


WORK: dict[str, Callable[[Job, Path], dict[str, Any]]] = {
    "train": _train,
    "plan": _plan,
    "audit": _audit,
    "attack": _attack,
    "dme": _dme,
    "tuning": _tuning,
    "computed": _computed,
}
