"""Membership inference in a run's report: its table, its controls in words, its ROC curves.

Reads ``attacks`` of summary.json and the curves in ``attacks/*.json``; independent of the attacks' code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpriv.report.pictures import DOTS, INK, PALETTE, SOFT, Picture, remove_picture, save_themed
from fedpriv.report.words import NEXT_TO_NOTHING, WORTH, figure, mapping_at, number_at, pick, promises

FILE = "attack-roc.png"

#: Smallest rate on the axes.
LEAST = 1e-4


def attack_section(summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the page says about the attacks of a summary, None where there were none."""
    kept = [one for one in mapping_at(summary, "attacks").values() if isinstance(one, Mapping)]
    if not kept:
        return None
    rates = dict.fromkeys(key for one in kept for key in mapping_at(one, "figures") if key.startswith("tpr_at_fpr_"))
    shown = [f"TPR at {100 * float(key.removeprefix('tpr_at_fpr_')):g} % FPR" for key in rates]
    return {
        "header": ["attack", "balanced accuracy", "AUC", *shown, "members + non-members"],
        "rows": [_row(one, rates) for one in kept],
        "guarantee": _guarantee(kept),
        "verdicts": [f"{one.get('attack')}: {one.get('verdict') or one.get('reason')}" for one in kept],
        "controls": [
            f"{one.get('attack')}, {control_in_words(control)}"
            for one in kept
            for control in filter(None, map(mapping_at, mapping_at(one, "controls").values()))
        ],
    }


def _guarantee(kept: Sequence[Mapping[str, Any]]) -> str:
    """What the guarantee that the attacks are held against allows, in one sentence."""
    promised = next((mapping_at(one, "guarantee") for one in kept if mapping_at(one, "guarantee")), {})
    epsilon, delta = number_at(promised, "epsilon"), number_at(promised, "delta") or 0.0
    if epsilon is None or math.isinf(epsilon):
        return "There is no finite guarantee to compare them with."
    if epsilon >= NEXT_TO_NOTHING:
        return (
            f"An epsilon of {figure(epsilon)} {promises(epsilon)} What any attack finds lies within it, so this "
            "comparison shows nothing: read the figures above."
        )
    most = min(1.0, (math.exp(epsilon) + delta) / (1 + math.exp(epsilon)))
    allowed = "more than 0.999" if most > 0.999 else f"{most:.3f}"
    little = " To lie within it shows little." if epsilon > WORTH[-1][0] else ""
    said = f"An epsilon of {figure(epsilon)} {promises(epsilon, delta)}"
    return f"{said} It allows a balanced accuracy of {allowed}.{little}"


def contradictions(summary: Mapping[str, Any] | None) -> list[str]:
    """Verdicts of attacks that no mechanism with the run's guarantee allows."""
    attacks = mapping_at(summary, "attacks").values()
    verdicts = [f"{pick(one, 'attack')} {pick(one, 'verdict')}" for one in attacks]
    return [verdict for verdict in verdicts if " contradicts the guarantee" in verdict]


def _row(kept: Mapping[str, Any], rates: Collection[str]) -> list[str]:
    name, found = str(kept.get("attack")), mapping_at(kept, "figures")
    if not kept.get("shown"):
        return [name, "not shown: a control failed", *[""] * (2 + len(rates))]
    counts = f"{found.get('members')} + {found.get('non_members')}"
    return [name, *(_estimate(found.get(key)) for key in ("balanced_accuracy", "auc", *rates)), counts]


def _estimate(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    middle, low, high = (number_at(value, key) for key in ("value", "low", "high"))
    if middle is None or low is None or high is None:
        return "–"
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def control_in_words(control: Mapping[str, Any]) -> str:
    accuracy, state = control.get("balanced_accuracy"), "passed" if control.get("passed") else "failed"
    return (
        f"{control.get('name')} control {state}: balanced accuracy {_estimate(accuracy)}, AUC "
        f"{_estimate(control.get('auc'))} on {control.get('members')} + {control.get('others')} examples"
    )


# --- the picture -----------------------------------------------------------------------------------------


def draw_attacks(folder: Path) -> Picture | None:
    """Draws attack-roc.png from ``attacks/*.json``; where no result may be shown, an older picture is deleted."""
    kept = [json.loads(path.read_text()) for path in sorted((folder / "attacks").glob("*.json"))]
    kept = [one for one in kept if one.get("shown")]
    if not kept:
        remove_picture(folder / FILE)
        return None
    canvas = Figure(figsize=(6, 5 + 0.1 * len(kept)), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    rates = np.logspace(math.log10(LEAST), 0, 200)
    axes.plot(rates, rates, color=DOTS, label="chance")
    promised = next((one["guarantee"] for one in kept if one.get("guarantee")), None)
    if promised:
        most = np.minimum(1.0, math.exp(min(promised["epsilon"], 700.0)) * rates + promised["delta"])
        label = f"most that epsilon {figure(promised['epsilon'])} allows (unit: {promised['unit']})"
        axes.plot(rates, most, color=INK, linestyle="--", label=label)
    for one, colour in zip(kept, PALETTE, strict=False):
        false, true = (np.asarray(one["roc"][f"{side}_positive_rate"]) for side in ("false", "true"))
        area = one["figures"]["auc"]["value"]
        label = f"{one['attack']} (AUC {area:.3f})"
        axes.step(np.maximum(false, LEAST), np.maximum(true, LEAST), where="post", color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1))
    axes.set_xlabel("false positive rate", color=INK)
    axes.set_ylabel("true positive rate", color=INK)
    axes.tick_params(which="both", colors=INK)
    canvas.legend(loc="outside lower left", frameon=False, fontsize=9, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    save_themed(canvas, folder / FILE, dpi=150)
    return roc_picture()


def roc_picture() -> Picture:
    return Picture(
        FILE,
        "ROC curves of the membership inference attacks, both axes logarithmic",
        "True against false positive rate of each attack. The dashed line, if any, is the most that epsilon allows.",
    )
