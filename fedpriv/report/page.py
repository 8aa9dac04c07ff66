"""The HTML pages: one run's report, and the comparison of several.

A page needs nothing beside it, so that it can be mailed: its pictures are in it; no network, and no script but
the one that sorts a comparison's runs.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from fedpriv.common.files import write_atomic
from fedpriv.common.versions import made_by
from fedpriv.report.answers import HEADER as ANSWERS
from fedpriv.report.answers import NOTE as ANSWERS_NOTE
from fedpriv.report.answers import answer_rows, replies
from fedpriv.report.attacks import attack_section, inversion_picture, inversion_section, roc_picture
from fedpriv.report.compare import Comparison, mean_curve, write_csv
from fedpriv.report.epsilon_figures import all_figures
from fedpriv.report.latex import latex_tables
from fedpriv.report.overview import head
from fedpriv.report.pictures import Picture, shown
from fedpriv.report.plots import Band, draw_comparison, draw_private, draw_run
from fedpriv.report.reading import Releases, RunFolder, count_releases, read_run
from fedpriv.report.rendering import rendered
from fedpriv.report.runs_table import runs_table
from fedpriv.report.tables import COMPARISON_NOTE, comparison_tables
from fedpriv.report.tradeoff import draw_tradeoffs
from fedpriv.report.views import PRIVATE, seal
from fedpriv.report.words import (
    figure,
    further_metrics,
    in_metric,
    leading_metric,
    many,
    mapping_at,
    number,
    number_at,
    other_threats,
    pick,
    reasons,
    scale,
    seconds,
    size,
    threat_sentence,
    threat_short,
    threat_table,
    worth,
)

#: Examples of the sections on learning, and on spending and noise.
LEARNING = ("accuracy.png", "metric.png", "clients.png", "loss.png")
SPENDING = ("epsilon.png", "noise.png", "clipping.png", "significance.png")
AUDIT = Picture("audit.png", "Plot of the audit's lower bound", "The audit's lower bound.")
LABELS = Picture("labels.png", "Chart of the label distribution of each client", "Labels held by each client.")


def write_report(folder: Path, live: int | None = None) -> Path:
    """Writes ``report.html`` and its pictures into a run folder and returns the page's path. live: seconds after which
    the page reloads itself, while the run goes on. Where there is more than outsiders may see, the same page with all
    of it is written into the folder's `PRIVATE`, unless ``live``.

    Works with the files present so far: an active or interrupted run, or one without privacy, gets the page that its
    files allow. Raises `RunFolderError` where there is no run, `OSError` where nothing can be written.
    """
    run = read_run(folder, private=False)
    if live:  # a run that is extended has the summary of its first part
        run = replace(run, summary=None)
    drawn = draw_run(run.rounds, mapping_at(run.summary, "privacy"), folder)
    if (folder / AUDIT.file).is_file():
        drawn.append(AUDIT)
    pictures = {picture.file: shown(folder, picture) for picture in drawn}
    page = _run_page(run, folder, pictures, live)
    write_atomic(folder / "report.html", page)
    private = folder / PRIVATE
    if not live and private.is_dir():
        whole = read_run(folder)
        drawn = draw_private(whole.rounds, private)
        drawn += [one for one in (LABELS, roc_picture(), inversion_picture()) if (private / one.file).is_file()]
        pictures |= {picture.file: shown(private, picture) for picture in drawn}
        write_atomic(private / "report.html", _run_page(whole, folder, pictures, private=private), mode=0o600)
        seal(private)
    return folder / "report.html"


def _run_page(
    run: RunFolder, folder: Path, pictures: Mapping[str, Picture], live: int | None = None, private: Path | None = None
) -> str:
    problems = dict(run.problems if live is None else {})  # a line of a file may be half written
    releases = count_releases(folder / "ledger.jsonl", problems)
    privacy = mapping_at(run.summary, "privacy")
    others = other_threats(privacy)
    return rendered(
        "run.html",
        live=live,
        private=private is not None,
        secret=bool(run.rounds) and run.rounds[-1].get("participants") is None,
        now=datetime.now(UTC).strftime("%H:%M:%S UTC"),
        privacy=_privacy_section(privacy) if privacy else None,
        others=[_privacy_section(other) for other in others],
        secure_sum="secure-sum" in [record.get("observer") for record in (privacy, *others)],
        adder=privacy.get("secure_sum"),
        promises=scale(),
        pictures=pictures,
        learning=LEARNING,
        spending=SPENDING,
        releases=[_release_row(row) for row in releases],
        attacks=attack_section(run.summary),
        inversion=inversion_section(run.summary, private) if private else None,
        metrics_table=list(further_metrics(run.summary).items()),
        sites=_sites(run.summary),
        answer_rows=answer_rows(run.summary),
        answers_header=ANSWERS,
        answers_note=ANSWERS_NOTE,
        answered_by=replies(run.summary or {}),
        cost=_cost(run),
        method_figures=_method_figures(run),
        config_text=run.config_text or "config.yaml is not there.",
        versions=_versions(run),
        **head(run, problems),
    )


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes ``comparison.html``, ``.csv`` and ``.tex`` and, where there is something to draw, ``comparison.png``
    and ``tradeoff.png``, one for each threat model.
    """
    bands = [Band(group.label, *mean_curve(group)) for group in comparison.groups]
    picture = draw_comparison(bands, folder)
    write_csv(comparison, folder / "comparison.csv")
    header, rows = runs_table(comparison, folder)
    tables, tradeoffs = comparison_tables(comparison), draw_tradeoffs(comparison, folder)
    write_atomic(folder / "comparison.tex", latex_tables(tables))
    page = rendered(
        "comparison.html",
        title=f"{many(len(comparison.groups), 'configuration')}, {many(len(rows), 'run')}",
        warning=comparison.warning,
        tables=[(table, drawn and shown(folder, drawn)) for table, drawn in zip(tables, tradeoffs, strict=True)],
        note=COMPARISON_NOTE,
        promises=scale(),
        picture=shown(folder, picture) if picture else None,
        left_out=[(os.path.relpath(path, folder), reason) for path, reason in comparison.left_out],
        header=header,
        rows=rows,
    )
    write_atomic(folder / "comparison.html", page)
    drawn = [one.file for one in (picture, *tradeoffs) if one]
    names = ["comparison.html", "comparison.csv", "comparison.tex", *drawn]
    for name in (*names, *(str(Path(one).with_suffix(".svg")) for one in drawn)):
        (folder / name).chmod(0o600)  # it has what the runs' private folders hold: its maker decides who may see that
    return [folder / name for name in names]


def _sites(summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The leading metric site by site, the worst first."""
    leading, sites = leading_metric(summary)[0], pick(summary, "metrics", "sites")
    if not sites:
        return None
    rows = [[str(one["site"]), in_metric(leading, number_at(one, "value")), f"{one['examples']:,}"] for one in sites]
    return {"header": ["site", leading.replace("_", " "), "test examples"], "rows": rows}


def _privacy_section(privacy: Mapping[str, Any]) -> dict[str, Any]:
    infinite = math.inf in (number_at(privacy, "verified_epsilon"), number_at(privacy, "verified_at_claimed_scope"))
    return {
        "sentence": f"{threat_sentence(privacy)} {worth(privacy)}".strip(),
        "short": threat_short(privacy),
        "observer": str(privacy.get("observer")),
        "figures": all_figures(privacy),
        "reasons": [] if infinite and len(reasons(privacy)) == 1 else reasons(privacy),
        "threat": threat_table(privacy),
    }


def _release_row(row: Releases) -> list[str]:
    ranges = [(name, figure(low), figure(high)) for name, (low, high) in row.parameters.items()]
    return [
        row.mechanism.replace("_", " "),
        row.reason or ", ".join(f"{name} {a}" if a == b else f"{name} {a} to {b}" for name, a, b in ranges),
        f"{row.total:,}",
        "every client" if row.clients is None else f"{row.clients:,}",
        f"{row.most_by_one_client:,}",
        row.threat,
    ]


def _versions(run: RunFolder) -> list[tuple[str, str]]:
    named = [("fedpriv", made_by(str(found)))] if (found := pick(run.summary, "commit")) is not None else []
    return sorted([*named, *((str(name), str(text)) for name, text in mapping_at(run.summary, "versions").items())])


def _cost(run: RunFolder) -> list[tuple[str, str]]:
    def total(name: str) -> float | None:
        known = [value for row in run.rounds if (value := number(row.get(name))) is not None]
        return sum(known) if known else None

    def traffic(name: str) -> str:
        known = number_at(run.summary, "traffic", name)
        known = total(name) if known is None else known
        return "–" if known is None else size(known)

    def by_name(name: str) -> Counter[str]:
        found = Counter[str]()
        for row in run.rounds:
            for key, value in mapping_at(row, name).items():
                found[key] += number(value) or 0  # type: ignore[assignment]
        return found

    participants = [known for row in run.rounds if (known := number(row.get("participants"))) is not None]
    stopped, peak = number_at(run.summary, "privacy", "clients_stopped"), number_at(run.summary, "peak_memory_mib")
    refused = by_name("refused")
    kinds = ", ".join(f"{kind.replace('_', ' ')} {count:,.0f}" for kind, count in sorted(refused.items()))
    timing = {name.removesuffix("_s").replace("_", " "): t for name, t in mapping_at(run.summary, "timing").items()}
    dropped = total("dropped")
    return [
        *((f"Time, {name}", seconds(number(value))) for name, value in (*timing.items(), *by_name("timings").items())),
        ("Sent by the clients", traffic("bytes_up")),
        ("Sent by the server", traffic("bytes_down")),
        ("Participants per round", figure(fmean(participants)) if participants else "–"),
        ("Replies lost or dropped", "–" if dropped is None else f"{dropped:,.0f}"),
        ("Replies refused", "–" if dropped is None else f"{refused.total():,.0f}" + (f" ({kinds})" if kinds else "")),
        ("Clients stopped by their budget", "–" if stopped is None else f"{stopped:,.0f}"),
        ("Peak memory", "–" if peak is None else f"{peak:,.0f} MiB"),
        ("Engine", str(pick(run.config, "engine", "name") or "–")),
        ("Trainer", str(pick(run.config, "engine", "trainer") or "–")),
    ]


def _method_figures(run: RunFolder) -> list[tuple[str, str, str]]:
    """(name, first value, last value) of every figure that the strategy itself reports."""
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for row in run.rounds:
        figures = mapping_at(row, "figures")
        figures = {name: value for name, value in figures.items() if value is not None}
        first, last = figures | first, last | figures
    return [(name, _in_words(first[name]), _in_words(last[name])) for name in sorted(last)]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping | list):
        named = isinstance(value, Mapping)  # by client
        words = [f"{key}: {_in_words(value[key])}" if named else _in_words(key) for key in list(value)[:8]]
        return ", ".join(words) + (" …" if len(value) > 8 else "")
    known = number(value)
    return str(value) if known is None else figure(known)
