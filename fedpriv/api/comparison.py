"""Several runs side by side as an object: `Comparison`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.report import compare
from fedpriv.report.compare import COMPARISON_NOTE, TextTable, comparison_tables


@dataclass(frozen=True)
class Comparison:
    """Runs grouped over seeds. found: what was compared, and what was left out with the reason."""

    found: compare.Comparison

    @property
    def tables(self) -> Sequence[TextTable]:
        """One for each threat model, whose epsilons are not comparable with another's."""
        return comparison_tables(self.found)

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row for each configuration and threat model: options that differ, number of runs, and the mean and the
        standard deviation over seeds of every figure.
        """
        rows = []
        for threat, found in self.found.tables:
            for row in found:
                spreads = {
                    name: value
                    for figure, spread in row.figures.items()
                    for name, value in ((figure, spread.mean), (f"{figure}_std", spread.std))
                }
                facts = {"observer": threat.observer, "unit": threat.unit, "runs": len(row.group.runs)}
                rows.append({"configuration": row.group.label(), **row.group.values, **facts, **spreads})
        return rows

    def write(self, folder: str | Path) -> list[Path]:
        """comparison.html, .csv, .tex and its pictures in a folder; returns their paths."""
        from fedpriv.report.page import write_comparison

        Path(folder).mkdir(parents=True, exist_ok=True)
        return write_comparison(self.found, Path(folder))

    def _repr_html_(self) -> str:
        from fedpriv.report.rendering import rendered

        tables = [(found.title, found.header, found.rows) for found in self.tables]
        return rendered("tables.html", tables=tables, note=COMPARISON_NOTE)
