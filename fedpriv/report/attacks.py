"""Membership inference in a run's report: its table, its controls in words, its ROC curves.

Reads ``attacks`` of summary.json and the curves in ``attacks/*.json``; independent of the attacks' code.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedpriv.common.run_files import is_file_in, mapping_in
from fedpriv.report.pictures import DOTS, INK, PALETTE, SOFT, Picture, remove_picture, save_themed
from fedpriv.report.words import NEXT_TO_NOTHING, WORTH, figure, mapping_at, number_at, pick, promises

FILE = "attack-roc.png"
INVERTED = "attack-inversion.png"

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


def inversion_section(summary: Mapping[str, Any] | None, folder: Path) -> dict[str, Any] | None:
    """What gradient inversion found: a sentence, and of a table the rows that it found best. None where it was not
    run, or may not be shown.
    """
    one = mapping_at(summary, "attacks", "inversion")
    found = mapping_at(one, "inversion")
    if not found or not one.get("shown"):
        return None
    (low, middle, high), (_, public, _) = found["found"], found["public"]
    nearer = found["nearer"]
    words = (
        f"From the updates of {found['clients']} clients, {found['sought']} examples were sought in each. Of the "
        f"{found['examples']} true examples, the share to which one of these is nearer than every public example is "
        f"{_estimate(nearer)}. The {found['measure']} of what was found is {middle:.1f} in the middle (quartiles "
        f"{low:.1f} and {high:.1f}); of the nearest of as many public examples it is {public:.1f}."
    )
    kept = _kept(folder, "inversion").get("samples", {})
    names, rows = list(kept.get("names", ())), []
    if len(kept.get("shape", ())) == 1:
        shown = min(len(kept["examples"][0]["true"]), 8)
        names = (names or [f"input {place}" for place in range(shown)])[:shown]
        for number, example in enumerate(kept["examples"][:4], 1):
            for part, said in (("true", "true"), ("found", "found in the update"), ("public", "nearest public")):
                rows.append([f"{number}, {said}", *(f"{value:.2f}" for value in example[part][:shown])])
    return {"words": words, "header": ["row", *names], "rows": rows}


def draw_inversion(folder: Path) -> Picture | None:
    """Draws attack-inversion.png from ``attacks/inversion.json``, of pixels only; an older picture is deleted."""
    kept = _kept(folder, "inversion")
    shape = kept.get("samples", {}).get("shape", ())
    if not kept.get("shown") or len(shape) != 3:
        remove_picture(folder / INVERTED)
        return None
    examples = kept["samples"]["examples"]
    canvas = Figure(figsize=(1.2 * len(examples) + 1, 3.9), layout="constrained")
    FigureCanvasAgg(canvas)
    parts = (("true", "true"), ("found", "found"), ("public", "public"))
    grid = canvas.subplots(len(parts), len(examples), squeeze=False)
    for row, (part, said) in enumerate(parts):
        for column, example in enumerate(examples):
            axes = grid[row][column]
            pixels = np.clip(np.asarray(example[part]).reshape(shape).transpose(1, 2, 0), 0, 1)
            axes.imshow(pixels[..., 0] if shape[0] == 1 else pixels[..., :3], cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        grid[row][0].set_ylabel(said, color=INK)
    save_themed(canvas, folder / INVERTED, dpi=100)
    return inversion_picture()


def inversion_picture() -> Picture:
    return Picture(
        INVERTED,
        "Training examples, what gradient inversion found of them in an update, and the nearest public examples",
        "The training examples that were found best, what was found, and the nearest of as many public examples.",
    )


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


def _kept(folder: Path, attack: str) -> dict[str, Any]:
    """What was kept of an attack; empty where nothing was."""
    name = f"attacks/{attack}.json"
    return mapping_in(folder, name) if is_file_in(folder, name) else {}


# --- the picture -----------------------------------------------------------------------------------------


def draw_attacks(folder: Path) -> Picture | None:
    """Draws attack-roc.png from ``attacks/*.json``; where no result may be shown, an older picture is deleted."""
    kept = [_kept(folder, path.stem) for path in sorted((folder / "attacks").glob("*.json"))]
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
