"""Who sees what of a run: the one table, and the cut that follows from it.

An epsilon holds against an observer who sees what the ledger charges. `RunFolder` writes the rest into the folder
`private/`, which only its owner may read, and gives monitors the rows without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.config.schema import Config

#: The folder within a run's folder that is not for publication: directories have mode 0700, files 0600.
PRIVATE = "private"

#: Observers, and what each sees of every kind of figure.
OBSERVERS = ("outsiders", "the server's operator", "who sees a secure sum", "a node's operator")
RELEASED, COHORT, DATA, NODE = "released", "cohort", "data", "node"
VIEWS = {
    RELEASED: ("yes", "yes", "yes", "yes"),
    COHORT: ("unless cohorts are secret", "yes", "yes", "of its own node"),
    DATA: ("no", "in a simulation", "no", "of its own node"),
    NODE: ("no", "no", "no", "of its own node"),
}
MEANINGS = {
    RELEASED: "follows from the global models, from what the ledger charges and from public facts",
    COHORT: "tells who or how many took part in a round: counts, codes, bytes, seconds",
    DATA: "computed from clients' examples, which no epsilon covers",
    NODE: "stays on the node",
}

#: Kinds by name, for names below a name as a mapping. A name that is not here is `DATA`.
Kinds = Mapping[str, Any]
_METHOD_FIGURES = {
    **dict.fromkeys(
        ("clip_norm", "clip_floor_held", "share_within_clip", "server_noise_norm", "sigma", "extrapolation"), RELEASED
    ),
    **dict.fromkeys(("public_loss", "centres", "radii", "control_norm", "step"), RELEASED),
    **dict.fromkeys(("groups", "keys_missing", "survivors", "dropped_before_upload", "dropped_after_upload"), COHORT),
}
#: Of a line of metrics.jsonl.
ROUND: Kinds = {
    **dict.fromkeys(("round", "accuracy", "loss", "metrics", "epsilon_so_far", "opacus_rdp_so_far"), RELEASED),
    **dict.fromkeys(("participants", "dropped", "late", "refused", "stopped", "seconds", "timings"), COHORT),
    **dict.fromkeys(("bytes_up", "bytes_down"), COHORT),
    **dict.fromkeys(("train_loss", "update_norm", "clipped_norm", "noise_norm", "personal_accuracy", "errors"), DATA),
    "figures": _METHOD_FIGURES,
}
#: Of summary.json.
SUMMARY: Kinds = {
    **dict.fromkeys(("strategy", "dataset", "model", "public_knowledge", "seed", "rounds", "num_clients"), RELEASED),
    **dict.fromkeys(("clients_per_round", "trained", "num_parameters", "num_shared", "loss", "answers"), RELEASED),
    **dict.fromkeys(("versions", "commit", "note", "stages", "lost", "diverged", "miscalibrated"), RELEASED),
    "coefficients": RELEASED,
    "accuracy": {"final": RELEASED, "best_on_test": RELEASED, "*": DATA},
    "best_round": RELEASED,
    "metrics": {"sites": DATA, "spread": DATA, "risks": DATA, "groups": DATA, "*": RELEASED},
    "asked": {"replied": COHORT},
    "privacy": {
        "clients_stopped": COHORT,
        "in_run_audit": {"seconds": COHORT, "share_of_rounds": COHORT, "*": RELEASED},
        "*": RELEASED,  # claimed, verified, and audited with canaries, which hold no client's data
    },
    "timing": {"*": COHORT},
    "traffic": {"*": COHORT},
    "peak_memory_mib": COHORT,
    "attacks": DATA,
    "untrained": DATA,
}
#: Of a run's folder. Tables below it hold for the two files of that name.
FILES: Mapping[str, str] = {
    **dict.fromkeys(("config.yaml", "ledger.jsonl", "model.safetensors", "classes.json", "tokenizer.json"), RELEASED),
    "best.safetensors": RELEASED,
    **dict.fromkeys(("metrics.jsonl", "summary*.json", "stages.json", "SHA256SUMS", "snapshots"), RELEASED),
    **dict.fromkeys(("report.html", "*.png", "*.svg", "answers.csv", "*certificate*", "run-name"), RELEASED),
    **dict.fromkeys(("tracking", "tracking.json", ".lock", ".start.json", ".owner", ".hydra", "attempt"), RELEASED),
    **dict.fromkeys((PRIVATE, "checkpoints", "failed.txt"), DATA),
}
#: Of what leaves a run otherwise.
ELSEWHERE: Mapping[str, str] = {
    "log, metrics for Prometheus, /healthz": RELEASED,
    "trackers (with tracking.private=true: all)": RELEASED,
    "console": RELEASED,
    "private/report.html, comparison.*, the Python API where private/ can be read": DATA,
    "DATA/.fedpriv, the counter and the log of a node": NODE,
}


def secret_cohorts(config: Config) -> bool:
    """Whether the verified epsilon rests on cohorts that outsiders do not know."""
    return bool(getattr(config.strategy.options, "secret_cohorts", False))


def split(content: Mapping[str, Any], kinds: Kinds, secret: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what outsiders may see, None in the place of the rest; the rest). secret: whether cohorts are."""
    shown: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, value in content.items():
        kind = kinds.get(name, kinds.get("*", DATA))
        if isinstance(kind, Mapping) and isinstance(value, Mapping):
            shown[name], below = split(value, kind, secret)
            if below:
                rest[name] = below
        elif kind == RELEASED or (kind == COHORT and not secret):
            shown[name] = value
        else:
            shown[name] = None
            if value is not None:
                rest[name] = value
    return shown, rest


def joined(shown: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """What `split` divided. Where both have a value, that of ``shown`` counts: it is the newer one."""
    found = dict(shown)
    for name, value in rest.items():
        before = found.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            found[name] = joined(before, value)
        elif before is None:
            found[name] = value
    return found


def seal(folder: Path) -> None:
    """Makes what is in a folder readable by its owner alone."""
    for base, _, files in os.walk(folder):
        os.chmod(base, 0o700)
        for name in files:
            os.chmod(Path(base, name), 0o600)


def private_folder(folder: Path) -> Path:
    """`PRIVATE` within a run's folder, made where it is not there."""
    found = folder / PRIVATE
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    return found
