"""The page of a run, from its record alone. A summary may lack any key: a plan has no accuracy, an audit no curve."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html import escape as escape_html
from typing import Any

from markupsafe import Markup

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

#: Keys of a summary, and of its privacy, that the page shows in words.
SHOWN = {
    "strategy", "dataset", "model", "seed", "rounds", "num_clients", "clients_per_round", "num_parameters", "timing",
    "traffic", "peak_memory_mib", "versions", "commit", "note",
}  # fmt: skip
SHOWN_OF_PRIVACY = {
    "unit", "adjacency", "observer", "delta", "variant", "claimed_scope", "claimed_equation", "reasons", "others",
}  # fmt: skip


def run_context(run: RunRecord, alike: Sequence[RunRecord]) -> dict[str, Any]:
    """alike: the runs that differ from it in nothing but the seed, itself among them."""
    privacy = _privacy(run)
    curve = run.curve if len(run.curve) > 1 else ()
    charts = (
        (accuracy_chart(curve), "Accuracy on the test set, where evaluated."),
        (loss_chart(curve), "Loss on the test set, where evaluated."),
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
        "alike": [_seed_row(other, other is run) for other in alike] if len(alike) > 1 else [],
        "tiles": _tiles(run, privacy),
        "published": pick(privacy, "variant") == "published",
        "note": pick(run.summary, "note"),
        "layers": untrained_layers(run.summary),
        "privacy": _section(privacy) if privacy is not None else None,
        "others": [_section(other) for other in other_threats(privacy or {})],
        "attacks": _attacks(run.summary),
        "charts": [(chart, words) for chart, words in charts if chart],
        "evaluated_once": _evaluated_once(run) if len(run.curve) == 1 else "",
        "figures": [(name.replace("_", " "), figure(value)) for name, value in run.figures.items()],
        "cost": _cost(run),
        "summary": _as_text(_further(run.summary)),
    }


def _privacy(run: RunRecord) -> dict[str, Any] | None:
    privacy = pick(run.summary, "privacy")
    return dict(privacy) if isinstance(privacy, Mapping) else None


def _further(summary: Mapping[str, Any]) -> str:
    """What a page does not show elsewhere, one key a line."""
    left = {key: value for key, value in summary.items() if key not in SHOWN}
    if isinstance(privacy := left.get("privacy"), Mapping):
        left["privacy"] = {key: value for key, value in privacy.items() if key not in SHOWN_OF_PRIVACY}
    return "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}" for key, value in left.items())


def _as_text(words: str) -> Markup:
    """For between tags, where quotes may stay as they are, in a third of the bytes."""
    return Markup(escape_html(words, quote=False))


def _evaluated_once(run: RunRecord) -> str:
    """A curve of one point in words."""
    ((round_number, accuracy, loss),) = run.curve
    known = [percent(accuracy) if accuracy is not None else "", f"loss {figure(loss)}" if loss is not None else ""]
    words = ", ".join(filter(None, known))
    return f"Evaluated once: {words} in round {round_number:,}." if words else ""


def _seed_row(run: RunRecord, shown: bool) -> dict[str, Any]:
    privacy = _privacy(run)
    verified = number(privacy.get("verified_epsilon")) if privacy else None
    return {
        "name": run.name,
        "shown": shown,
        "accuracy": percent(accuracy_of(run), "–"),
        "own": percent(own_accuracy_of(run), ""),
        "verified": "–" if verified is None else figure(verified),
        "seconds": elapsed(run.seconds) if run.seconds else "–",
    }


def accuracy_of(run: RunRecord) -> float | None:
    """Of the summary, else the last of the curve."""
    for found in (pick(run.summary, "accuracy", "final"), pick(run.summary, "accuracy")):
        if (known := number(found)) is not None:
            return known
    evaluated = [accuracy for _, accuracy, _ in run.curve if number(accuracy) is not None]
    return evaluated[-1] if evaluated else None


def own_accuracy_of(run: RunRecord) -> float | None:
    """Mean over the clients, each on its own test pictures."""
    return number(pick(run.summary, "accuracy", "personalised"))


def _subtitle(run: RunRecord) -> str:
    known = [(run.summary.get(key), before, after) for key, before, after in FACTS]
    words = [f"{before}{value_in_words(value)}{after}" for value, before, after in known if value is not None]
    what = " on ".join(str(run.summary[key]) for key in ("strategy", "dataset") if run.summary.get(key) is not None)
    return " · ".join([*filter(None, [what]), *words, f"seed {run.seed}"])


def _tiles(run: RunRecord, privacy: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    tiles = []
    if (accuracy := accuracy_of(run)) is not None:
        tiles.append(_tile("accuracy", percent(accuracy), "global model, test set"))
    if (own := own_accuracy_of(run)) is not None:
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
