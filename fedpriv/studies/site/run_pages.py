"""The page of a run, from its record alone. A summary may lack any key: a plan has no accuracy, an audit no curve."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fedpriv.common.versions import made_by
from fedpriv.report.words import (
    Figure,
    figure,
    further_audits,
    number,
    other_threats,
    percent,
    pick,
    reasons,
    size,
    threat_sentence,
    threat_short,
    threat_table,
    three_figures,
    untrained_layers,
)
from fedpriv.studies.results import RunRecord
from fedpriv.studies.site.charts import accuracy_chart, loss_chart, norm_chart
from fedpriv.studies.site.wording import KINDS, elapsed, value_in_words

#: (key of the summary, what stands before and after its value), behind method and data
FACTS = (
    ("model", "model ", ""),
    ("num_parameters", "", " parameters"),
    ("num_clients", "", " clients"),
    ("clients_per_round", "", " per round"),
    ("rounds", "", " rounds"),
)


def run_row(run: RunRecord, file: str) -> dict[str, Any]:
    """A run in the list of its study."""
    accuracy, own, method = _accuracy(run), _own_accuracy(run), run.summary.get("strategy")
    return {
        "name": run.name,
        "file": f"{file}.html",
        "kind": run.kind,
        "method": "–" if method is None else str(method),
        "seed": run.seed,
        "accuracy": accuracy,
        "accuracy_words": percent(accuracy, "–"),
        "own": own,
        "own_words": percent(own, "–"),
        "seconds": run.seconds,
    }


def run_context(run: RunRecord) -> dict[str, Any]:
    privacy = _privacy(run)
    charts = (
        (accuracy_chart(run.curve), "Accuracy on the test set, where evaluated."),
        (loss_chart(run.curve), "Loss on the test set, where evaluated."),
        (
            norm_chart(run.norms),
            "Length of the clients’ updates, mean over a round; a diagnostic for the experimenter.",
        ),
    )
    return {
        "title": run.name,
        "kind": KINDS[run.kind],
        "subtitle": _subtitle(run),
        "run": run,
        "made_by": made_by(run.commit),
        "tiles": _tiles(run, privacy),
        "published": pick(privacy, "variant") == "published",
        "note": pick(run.summary, "note"),
        "layers": untrained_layers(run.summary),
        "privacy": _section(privacy) if privacy is not None else None,
        "others": [_section(other) for other in other_threats(privacy or {})],
        "attacks": _attacks(run.summary),
        "charts": [(chart, words) for chart, words in charts if chart],
        "figures": [(name.replace("_", " "), figure(value)) for name, value in run.figures.items()],
        "cost": _cost(run),
        "summary": json.dumps(dict(run.summary), indent=1, ensure_ascii=False, default=str),
    }


def _privacy(run: RunRecord) -> dict[str, Any] | None:
    privacy = pick(run.summary, "privacy")
    return dict(privacy) if isinstance(privacy, Mapping) else None


def _accuracy(run: RunRecord) -> float | None:
    """Of the summary, else the last of the curve."""
    for found in (pick(run.summary, "accuracy", "final"), pick(run.summary, "accuracy")):
        if (known := number(found)) is not None:
            return known
    evaluated = [accuracy for _, accuracy, _ in run.curve if number(accuracy) is not None]
    return evaluated[-1] if evaluated else None


def _own_accuracy(run: RunRecord) -> float | None:
    """Mean over the clients, each on its own test pictures."""
    return number(pick(run.summary, "accuracy", "personalised"))


def _subtitle(run: RunRecord) -> str:
    known = [(run.summary.get(key), before, after) for key, before, after in FACTS]
    words = [f"{before}{value_in_words(value)}{after}" for value, before, after in known if value is not None]
    what = " on ".join(str(run.summary[key]) for key in ("strategy", "dataset") if run.summary.get(key) is not None)
    return " · ".join([*filter(None, [what]), *words, f"seed {run.seed}"])


def _tiles(run: RunRecord, privacy: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    tiles = []
    if (accuracy := _accuracy(run)) is not None:
        tiles.append(_tile("accuracy", percent(accuracy), "global model, test set"))
    if (own := _own_accuracy(run)) is not None:
        tiles.append(_tile("personalised", percent(own), "mean of the clients' own tests"))
    if privacy is not None:
        tiles += [_tile(f"{f.name} epsilon", f.value, _about(f), f.name) for f in three_figures(privacy)]
    if run.seconds:
        tiles.append(_tile("time", elapsed(run.seconds), "of the whole run"))
    return tiles


def _tile(name: str, value: str, detail: str, kind: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "detail": detail, "kind": kind, "is_word": len(value) > 9}


def _about(shown: Figure) -> str:
    if shown.name == "verified" and shown.value == "∞":
        return "no finite bound"
    return f"for {shown.scope}" if shown.scope else shown.detail


def _section(privacy: Mapping[str, Any]) -> dict[str, Any]:
    infinite = math.inf in (number(privacy.get("verified_epsilon")), number(privacy.get("verified_at_claimed_scope")))
    return {
        "sentence": threat_sentence(privacy),
        "short": threat_short(privacy),
        "observer": str(privacy.get("observer")),
        "figures": [*three_figures(privacy), *further_audits(privacy)],
        "reasons": [] if infinite and len(reasons(privacy)) == 1 else reasons(privacy),
        "threat": threat_table(privacy),
    }


def _attacks(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(attack, what came of it) of the run's membership inference."""
    attacks = pick(summary, "attacks")
    if not isinstance(attacks, Mapping):
        return []
    kept = [(str(name), one) for name, one in attacks.items() if isinstance(one, Mapping)]
    return [
        (str(one.get("attack") or name), str(one.get("verdict") or one.get("reason") or "no verdict"))
        for name, one in kept
    ]


def _cost(run: RunRecord) -> list[tuple[str, str]]:
    timing, traffic = pick(run.summary, "timing"), pick(run.summary, "traffic")
    rows = [
        (f"Time, {str(name).removesuffix('_s').replace('_', ' ')}", elapsed(number(value)))
        for name, value in (timing.items() if isinstance(timing, Mapping) else ())
    ]
    for key, words in (("bytes_up", "Sent by the clients"), ("bytes_down", "Sent by the server")):
        if (count := number(pick(traffic, key))) is not None:
            rows.append((words, size(count)))
    if (peak := number(run.summary.get("peak_memory_mib"))) is not None:
        rows.append(("Peak memory", f"{peak:,.0f} MiB"))
    return rows
