"""A comparison's tables for a LaTeX document: ``\\input{comparison}``, with ``\\usepackage{booktabs}``."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.report.tables import TextTable

_LETTERS = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "–": "--",
}


def latex_tables(tables: Sequence[TextTable]) -> str:
    """One ``table`` for each threat model: its caption names the threat model, so that no two are mixed up."""
    return "% Needs \\usepackage{booktabs}.\n" + "\n".join(map(_table, tables))


def in_latex(text: str) -> str:
    return "".join(_LETTERS.get(letter, letter) for letter in text)


def _table(table: TextTable) -> str:
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{in_latex(table.title)}}}",
        rf"\begin{{tabular}}{{{'l' * len(table.header)}}}",
        r"\toprule",
        _line(table.header),
        r"\midrule",
        *map(_line, table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(in_latex, cells)) + r" \\"
