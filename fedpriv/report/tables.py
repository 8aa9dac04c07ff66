"""Tables for the terminal: with rich in a terminal, as aligned plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedpriv.common.errors import FedprivError
from fedpriv.common.printing import plain
from fedpriv.common.run_files import fitting
from fedpriv.report.answers import HEADER, NOTE, answer_rows, replies
from fedpriv.report.compare import ABSENT, EPSILONS, Comparison, Group, Row, Spread, compare, mean_curve
from fedpriv.report.epsilon_figures import opacus_figure, three_figures, unaudited
from fedpriv.report.reading import read_run
from fedpriv.report.words import (
    SCOPES,
    figure,
    further_metrics,
    in_metric,
    leading_metric,
    mapping_at,
    number_at,
    other_threats,
    percent,
    promise,
    seconds,
    threat_sentence,
    threat_short,
    untrained_layers,
    worst_site,
    worth,
)

#: Options in front of a row; further ones stand behind its epsilons.
IN_FRONT = 3
COMPARISON_NOTE = (
    "± is one standard deviation over seeds; the interval is the 95% interval of the mean (Student's t). "
    "comparison.csv has both for every column, comparison.tex is for a LaTeX document (booktabs)."
)


@dataclass(frozen=True)
class TextTable:
    """A table ready to be shown. ``notes``: explanations of its rows in words, e.g. why a bound is not finite."""

    title: str
    sentence: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]


def final_table(summary: Mapping[str, Any]) -> Table:
    """The table printed at the end of a run: accuracy, the three epsilons with their meaning, the time."""
    return rich_table(_title(summary), ("", "", ""), _final_rows(summary), _caption(summary))


def final_lines(summary: Mapping[str, Any]) -> list[str]:
    """The same as plain text, for output that is not a terminal."""
    rows = answer_rows(summary)
    told = [*plain_table(HEADER, rows), NOTE, ""] if rows else []
    return [_title(summary), *told, *plain_table((), _final_rows(summary)), _caption(summary)]


def rich_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Table:
    """A table of plain strings: square brackets in them are not markup."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_header=any(header))
    table.title, table.title_justify = Text(plain(title), "bold"), "left"
    table.caption, table.caption_justify = Text(plain(caption)), "left"
    for name in header:
        table.add_column(Text(plain(name)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    return table


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned by spaces, not truncated; an empty header is left out."""
    lines = [header, *rows] if any(header) else list(rows)
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def records(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """One line of text per row, for a terminal that is too narrow for the table."""
    return [" · ".join(f"{name} {cell}" for name, cell in zip(header, row, strict=True)) for row in rows]


def _title(summary: Mapping[str, Any]) -> str:
    on = f"{summary.get('strategy', '?')} on {summary.get('dataset', '?')}"
    return f"{on}, {replies(summary)}" if "answers" in summary else f"{on}, {summary.get('rounds', '?')} rounds"


def _final_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    privacy = mapping_at(summary, "privacy")
    mean, worst = (number_at(summary, "accuracy", name) for name in ("personalised", "personalised_worst_decile"))
    words = f"clients' own models and tests, mean; worst decile {percent(worst)}"
    rounds = seconds(number_at(summary, "timing", "median_round_s"))
    model = "global part with untrained personal layers" if untrained_layers(summary) else "global model"
    further, accuracy = further_metrics(summary), number_at(summary, "accuracy", "final")
    worst_of, leading = worst_site(summary), leading_metric(summary)[0]
    nothing = accuracy is None and (further or "answers" in summary)
    told = [] if nothing else [("accuracy", percent(accuracy), f"{model}, test set")]
    return [
        *told,
        *((name, value, f"{model}, test set") for name, value in further.items()),
        *([] if worst_of is None else [("worst site", in_metric(leading, worst_of[1]), f"{leading} of {worst_of[0]}")]),
        *([] if mean is None else [("personalised", percent(mean), words)]),
        *(
            (f"{f.name} epsilon", f.value, f"{f.scope}; {f.detail}" if f.scope else f.detail)
            for f in (*three_figures(privacy), *opacus_figure(privacy))
        ),
        ("time", seconds(number_at(summary, "timing", "total_s")), f"{rounds} per round (median)"),
    ]


def _caption(summary: Mapping[str, Any]) -> str:
    privacy = mapping_at(summary, "privacy")
    further = ", ".join(str(other.get("observer")) for other in other_threats(privacy))
    more = f"Further threat models, not comparable with these, in the report: {further}." if further else ""
    sentences = " ".join(filter(None, [f"Epsilons: {threat_short(privacy)}.", more]))
    return "\n".join(filter(None, [sentences, worth(privacy)]))


# --- comparison ------------------------------------------------------------------------------------------


def compare_folders(paths: Sequence[Path]) -> Comparison:
    """`compare` of the runs in these folders. One that cannot be read, or whose files do not fit together, is left out
    with the reason.
    """
    runs, left_out = [], []
    for path in paths:
        try:
            with fitting(path):
                run = read_run(path)
                comparison_tables(compare([run]))
                mean_curve(Group({}, [run], {}))
        except (FedprivError, OSError) as error:
            left_out.append((path, str(error).removeprefix(f"{path}: ")))
        else:
            runs.append(run)
    found = compare(runs)
    return replace(found, left_out=[*found.left_out, *left_out])


def comparison_tables(comparison: Comparison) -> list[TextTable]:
    """One table per threat model, a row per group: accuracy, the three epsilons and the time over seeds."""
    shown = {name for _, rows in comparison.tables for row in rows for name, found in row.figures.items() if found.n}
    tables = []
    for threat, found in comparison.tables:
        same = len({row.leading for row in found}) == 1
        rows = [
            _comparison_row(row, threat, shown, row.leading.replace("_", " ") if same else "metric") for row in found
        ]
        header, cells = [name for name, _ in rows[0]], [[cell for _, cell in row] for row in rows]
        tables.append(TextTable(threat_short(threat), threat_sentence(threat), header, cells, _reasons(found)))
    return tables


def _comparison_row(row: Row, threat: Mapping[str, Any], shown: Collection[str], name: str) -> list[tuple[str, str]]:
    """(column, cell). shown: figures that any row has; name: of the column of the leading metric."""
    metric, n = row.figures["metric"], len(row.group.runs)
    partial = any(untrained_layers(run.summary) for run in row.group.runs)
    time = row.figures["time_s"]
    first = mapping_at(row.group.runs[0].summary, "privacy")
    own = all(first.get(key) == threat.get(key) for key in ("unit", "adjacency", "observer"))  # whose the offer is
    absent = (*ABSENT[:2], unaudited(first) if own else ABSENT[2])
    claimed, verified, audited = (
        _mean_and_std(row.figures[name], n, words) for name, words in zip(EPSILONS, absent, strict=True)
    )
    if row.scopes and row.scopes != ["run"]:
        claimed += f" for {', '.join(SCOPES.get(scope, scope) for scope in row.scopes)}"
    options = list(zip(row.group.short_names, row.group.options.values(), strict=True))
    return [
        *options[:IN_FRONT],
        (name, _metric(row.leading, metric) + (" (global part)" if partial else "")),
        ("95% interval", _interval(row.leading, metric)),
        *([("worst site", _metric(row.leading, row.figures["worst_site"]))] if "worst_site" in shown else []),
        *([("personalised", _metric("accuracy", row.figures["personalised"]))] if "personalised" in shown else []),
        ("claimed ε", claimed),
        ("verified ε", verified),
        ("worth", promise(row.figures["verified_epsilon"].mean) or "–"),
        ("audited ε", audited),
        ("time", seconds(time.mean) + ("" if time.std is None else f" ± {seconds(time.std)}")),
        ("seeds", str(n)),
        *options[IN_FRONT:],
    ]


def _reasons(rows: Sequence[Row]) -> list[str]:
    """Each reason once, with the groups that it concerns."""
    about: dict[str, list[str]] = {}
    for row in rows:
        for reason in row.reasons:
            about.setdefault(reason, []).append(row.group.label)
    return [f"{'; '.join(labels)}: {reason}" for reason, labels in about.items()]


def _metric(name: str, found: Spread) -> str:
    absent = "not evaluated" if name == "accuracy" else "–"
    if found.std is None:
        return in_metric(name, found.mean, absent)
    return in_metric(name, found.mean) + (f" ± {100 * found.std:.1f}" if name == "accuracy" else f" ± {found.std:.2g}")


def _interval(name: str, found: Spread) -> str:
    if found.mean is None or found.half_width is None:
        return "–"
    low, high = found.mean - found.half_width, found.mean + found.half_width
    if name != "accuracy":
        return f"{low:.4g} to {high:.4g}"
    return f"{100 * max(0.0, low):.1f}–{percent(min(1.0, high))}"


def _mean_and_std(spread: Spread, runs: int, absent: str) -> str:
    some = f" ({spread.n} of {runs} runs)" if 0 < spread.n < runs else ""
    return figure(spread.mean, absent) + (f" ± {figure(spread.std)}" if spread.std else "") + some
