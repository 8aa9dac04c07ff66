"""A plot of audits beside the claimed and verified epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from fedpriv.privacy.auditor import Audit
from fedpriv.report.pictures import BLUE, GREEN, INK, SOFT, VERMILLION, save_themed


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
    figures = [figure for row in rows for figure in (row.audit.epsilon_lower, row.claimed, row.verified)]
    finite = [figure for figure in figures if figure is not None and math.isfinite(figure)]
    infinity = 1.25 * max([*finite, 1.0])
    figure = Figure(figsize=(8, 1.6 + 0.55 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for height, row in enumerate(rows):
        audited = min(row.audit.epsilon_lower, infinity)
        axes.barh(height, audited, height=0.5, color=BLUE, alpha=0.35)
        axes.plot(audited, height, marker=">", color=BLUE, markersize=8, linestyle="")
        for value, marker, colour in ((row.claimed, "D", VERMILLION), (row.verified, "s", GREEN)):
            if value is not None:
                at = min(value, infinity)
                axes.plot(at, height, marker=marker, color=colour, markersize=8, linestyle="", fillstyle="none", mew=2)
    axes.set_yticks(range(len(rows)), [f"{row.name}\n{_small_print(row.audit)}" for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.05 * infinity)
    if any(figure == math.inf for figure in figures):
        ticks = [tick for tick in axes.get_xticks() if tick < 0.95 * infinity]
        axes.set_xticks([*ticks, infinity], [*(f"{tick:g}" for tick in ticks), "infinite"])
    axes.tick_params(colors=INK)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.set_xlabel(f"epsilon at delta {rows[0].audit.delta:g} ({threat})" if rows else threat, color=INK)
    for marker, colour, fill, label in (
        (">", BLUE, "full", "audited: at least"),
        ("D", VERMILLION, "none", "claimed"),
        ("s", GREEN, "none", "verified: at most"),
    ):
        axes.plot([], [], marker=marker, color=colour, fillstyle=fill, mew=2, linestyle="", label=label)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    save_themed(figure, Path(path), dpi=150)


def _small_print(audit: Audit) -> str:
    how = f"{100 * audit.confidence:g}% confidence, {audit.trials:,} trials"
    return how if audit.structural is None else f"infinite by structure; sampled >= {audit.epsilon_sampled:.2g}"
