"""Attacks and audits in a run's report: tables, controls in words, and their pictures.

Reads ``attacks`` of summary.json and the curves in ``attacks/*.json``; independent of the attacks' code.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedpriv.common.errors import RunFolderError
from fedpriv.common.run_files import is_file_in, mapping_in
from fedpriv.report.pictures import (
    BLUE,
    DOTS,
    GREEN,
    INCHES,
    INK,
    PALETTE,
    SOFT,
    VERMILLION,
    Picture,
    remove_picture,
    save_themed,
)
from fedpriv.report.run_summary import Attack, Control, Summary
from fedpriv.report.words import NEXT_TO_NOTHING, WORTH, figure, promises

if TYPE_CHECKING:
    from fedpriv.privacy.auditor import Audit

ROC = Picture(
    "attack-roc.png",
    "ROC curves of the membership inference attacks, both axes logarithmic",
    "True against false positive rate of each attack. The dashed line, if any, is the most that epsilon allows.",
)
INVERTED = Picture(
    "attack-inversion.png",
    "Training examples, what gradient inversion found of them in an update, and the nearest public examples",
    "The training examples that were found best, what was found, and the nearest of as many public examples.",
)

#: Smallest rate on the axes.
LEAST = 1e-4
#: Rows that gradient inversion found, of each the columns, that a page shows.
MOST_ROWS, MOST_COLUMNS = 4, 8
#: Who an example of an inversion's record is: its key -> in words.
PARTS = {"true": "true", "found": "found in the update", "public": "nearest public"}


def attack_section(result: Summary) -> dict[str, Any] | None:
    """What the page says about the attacks of a summary, None where there were none."""
    kept = list(result.attacks.values())
    if not kept:
        return None
    rates = dict.fromkeys(key for one in kept for key in one.figures if key.startswith("tpr_at_fpr_"))
    said: dict[str, list[str]] = {}  # each verdict once, with the attacks that it is about
    for one in kept:
        said.setdefault(str(one.verdict or one.reason), []).append(str(one.attack))
    shown = [f"TPR at {100 * float(key.removeprefix('tpr_at_fpr_')):g} % FPR" for key in rates]

    def row(one: Attack) -> list[str]:
        if not one.shown:
            return [str(one.attack), "not shown: a control failed", *[""] * (2 + len(rates))]
        cells = [one.figures.get(key, "–") for key in ("balanced_accuracy", "auc", *rates, "members", "non_members")]
        return [str(one.attack), *cells[:-2], " + ".join(cells[-2:])]

    return {
        "header": ["attack", "balanced accuracy", "AUC", *shown, "members + non-members"],
        "rows": [row(one) for one in kept],
        "guarantee": _guarantee(kept),
        "verdicts": [f"{', '.join(attacks)}: {words}" for words, attacks in said.items()],
        "controls": [f"{one.attack}, {control_in_words(test)}" for one in kept for test in one.controls.values()],
    }


def control_in_words(record: Control | Mapping[str, Any]) -> str:
    control = Control.model_validate(record)
    return (
        f"{control.name} control {'passed' if control.passed else 'failed'}: balanced accuracy "
        f"{control.balanced_accuracy}, AUC {control.auc} on {control.members} + {control.others} examples"
    )


def _guarantee(kept: Sequence[Attack]) -> str:
    """What the guarantee that the attacks are held against allows, in one sentence."""
    promised = next((one.guarantee for one in kept if one.guarantee), {})
    epsilon, delta = promised.get("epsilon"), promised.get("delta") or 0.0
    if epsilon is None or math.isinf(epsilon):
        return "There is no finite guarantee to compare them with."
    said = f"An epsilon of {figure(epsilon)} {promises(epsilon, delta)}"
    if epsilon >= NEXT_TO_NOTHING:
        nothing = "so this comparison shows nothing: read the figures above."
        return f"{said} What any attack finds lies within it, {nothing}"
    most = min(1.0, (math.exp(epsilon) + delta) / (1 + math.exp(epsilon)))
    allowed = "more than 0.999" if most > 0.999 else f"{most:.3f}"
    little = " To lie within it shows little." if epsilon > WORTH[-1][0] else ""
    return f"{said} It allows a balanced accuracy of {allowed}.{little}"


def inversion_section(result: Summary, folder: Path) -> dict[str, Any] | None:
    """What gradient inversion found: a sentence, and of a table the rows that it found best. None where it was not
    run, or may not be shown.
    """
    one = result.attacks.get("inversion", Attack())
    inverted = one.inversion
    if not inverted or not one.shown:
        return None
    (low, middle, high), (_, public, _) = inverted.found, inverted.public
    words = (
        f"From the updates of {inverted.clients} clients, {inverted.sought} examples were sought in each. Of the "
        f"{inverted.examples} true examples, the share to which one of these is nearer than every public example is "
        f"{inverted.nearer}. The {inverted.measure} of what was found is {middle:.1f} in the middle (quartiles "
        f"{low:.1f} and {high:.1f}); of the nearest of as many public examples it is {public:.1f}."
    )
    kept = _kept(folder, "inversion").get("samples", {})
    names, rows = list(kept.get("names", ())), []
    if len(kept.get("shape", ())) == 1:
        shown = min(len(kept["examples"][0]["true"]), MOST_COLUMNS)
        names = (names or [f"input {place}" for place in range(shown)])[:shown]
        for number, example in enumerate(kept["examples"][:MOST_ROWS], 1):
            for part, said in PARTS.items():
                rows.append([f"{number}, {said}", *(f"{value:.2f}" for value in example[part][:shown])])
    return {"words": words, "header": ["row", *names], "rows": rows}


def _kept(folder: Path, attack: str) -> dict[str, Any]:
    """What was kept of an attack; empty where nothing was. Raises `RunFolderError`."""
    name = f"attacks/{attack}.json"
    try:
        return mapping_in(folder, name) if is_file_in(folder, name) else {}
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder / name}: not what `fedpriv attack` writes ({error}); delete it") from None


# --- pictures --------------------------------------------------------------------------------------------


def draw_inversion(folder: Path) -> Picture | None:
    """Draws attack-inversion.png from ``attacks/inversion.json``, of pixels only; an older picture is deleted."""
    kept = _kept(folder, "inversion")
    shape = kept.get("samples", {}).get("shape", ())
    if not kept.get("shown") or len(shape) != 3:
        remove_picture(folder / INVERTED.file)
        return None
    examples = kept["samples"]["examples"]
    canvas = Figure(figsize=(1.2 * len(examples) + 1, 3.9), layout="constrained")
    FigureCanvasAgg(canvas)
    grid = canvas.subplots(len(PARTS), len(examples), squeeze=False)
    for row, part in enumerate(PARTS):
        for axes, example in zip(grid[row], examples, strict=True):
            pixels = np.clip(np.asarray(example[part]).reshape(shape).transpose(1, 2, 0), 0, 1)
            axes.imshow(pixels[..., 0] if shape[0] == 1 else pixels[..., :3], cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        grid[row][0].set_ylabel(part, color=INK)
    save_themed(canvas, folder / INVERTED.file, dpi=100)
    return INVERTED


def draw_attacks(folder: Path) -> Picture | None:
    """Draws attack-roc.png from ``attacks/*.json``; where no result may be shown, an older picture is deleted."""
    kept = [_kept(folder, path.stem) for path in sorted((folder / "attacks").glob("*.json"))]
    kept = [one for one in kept if one.get("shown")]
    if not kept:
        remove_picture(folder / ROC.file)
        return None
    canvas = Figure(figsize=(INCHES, 4.4 + 0.2 * len(kept)), layout="constrained")
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    rates = np.logspace(math.log10(LEAST), 0, 200)
    axes.plot(rates, rates, color=DOTS, label="chance")
    promised = next((one["guarantee"] for one in kept if one.get("guarantee")), None)
    if promised:
        most = np.minimum(1.0, math.exp(min(promised["epsilon"], 700.0)) * rates + promised["delta"])
        label = f"most that epsilon {figure(promised['epsilon'])} allows \n(unit: {promised['unit']})"
        axes.plot(rates, most, color=INK, linestyle="--", label=label)
    for one, colour in zip(kept, PALETTE, strict=False):
        false, true = (np.asarray(one["roc"][f"{side}_positive_rate"]) for side in ("false", "true"))
        label = f"{one['attack']} (AUC {one['figures']['auc']['value']:.3f})"
        axes.step(np.maximum(false, LEAST), np.maximum(true, LEAST), where="post", color=colour, label=label)
    axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda tick, _: f"{100 * tick:g} %"))
    axes.set_xlabel("false positive rate", color=INK)
    axes.set_ylabel("true positive rate", color=INK)
    axes.tick_params(which="both", colors=INK)
    canvas.legend(loc="outside lower left", frameon=False, fontsize=10, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    save_themed(canvas, folder / ROC.file, dpi=150)
    return ROC


@dataclass(frozen=True)
class AuditRow:
    """One row of the plot; `claimed` and `verified` at the audit's scope and delta, None where there is none."""

    name: str
    audit: Audit
    claimed: float | None = None
    verified: float | None = None


def draw_audit(rows: Sequence[AuditRow], path: Path | str, *, threat: str) -> None:
    """Draw each row's audited lower bound (a bar), claimed and verified epsilon (marks) into a PNG at `path`, and an
    SVG beside it.

    All rows must share one threat model, which `threat` describes below the axis: epsilons of different threat
    models do not belong in one plot. Infinite figures are drawn at the right edge and labelled.
    """

    def how(audit: Audit) -> str:
        if audit.structural is not None:
            return f"infinite by structure; sampled >= {audit.epsilon_sampled:.2g}"
        return f"{100 * audit.confidence:g}% confidence, {audit.trials:,} trials"

    figures = [figure for row in rows for figure in (row.audit.epsilon_lower, row.claimed, row.verified)]
    finite = [figure for figure in figures if figure is not None and math.isfinite(figure)]
    infinity = 1.25 * max([*finite, 1.0])
    figure = Figure(figsize=(INCHES, 1.9 + 0.9 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for height, row in enumerate(rows):
        audited = min(row.audit.epsilon_lower, infinity)
        axes.barh(height, audited, height=0.5, color=BLUE, alpha=0.35)
        axes.plot(audited, height, marker=">", color=BLUE, markersize=8, linestyle="")
        for value, marker, colour in ((row.claimed, "D", VERMILLION), (row.verified, "s", GREEN)):
            if value is not None:
                at = min(value, infinity)
                axes.plot(at, height, marker=marker, color=colour, markersize=8, linestyle="", fillstyle="none", mew=2)
        axes.text(0, height - 0.3, f"{row.name}\n{how(row.audit)}", color=INK, fontsize=10, va="bottom")
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.6, -0.9)
    axes.set_xlim(0, 1.05 * infinity)
    if any(figure == math.inf for figure in figures):
        ticks = [tick for tick in axes.get_xticks() if tick < 0.95 * infinity]
        axes.set_xticks([*ticks, infinity], [*(f"{tick:g}" for tick in ticks), "infinite"])
    axes.tick_params(colors=INK)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.set_xlabel(
        textwrap.fill(f"epsilon at delta {rows[0].audit.delta:g} ({threat})" if rows else threat, 42), color=INK
    )
    for marker, colour, fill, label in (
        (">", BLUE, "full", "audited: at least"),
        ("D", VERMILLION, "none", "claimed"),
        ("s", GREEN, "none", "verified: at most"),
    ):
        axes.plot([], [], marker=marker, color=colour, fillstyle=fill, mew=2, linestyle="", label=label)
    figure.legend(loc="outside lower left", ncols=1, frameon=False, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    save_themed(figure, Path(path), dpi=150)
