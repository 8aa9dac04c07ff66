"""The HTML pages: one run's report, and the comparison of several.

A page needs nothing beside it, so that it can be mailed: its pictures are in it; no network, and no script but
the one that sorts a comparison's runs.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from fedpriv.common.files import write_atomic
from fedpriv.common.versions import made_by
from fedpriv.config.yaml_text import yaml_of
from fedpriv.report.attacks import INVERTED, ROC, attack_section, inversion_section
from fedpriv.report.compare import (
    COMPARISON_NOTE,
    Comparison,
    comparison_tables,
    latex_tables,
    runs_table,
    write_csv,
)
from fedpriv.report.epsilon_figures import all_figures
from fedpriv.report.overview import head
from fedpriv.report.pictures import Picture, shown
from fedpriv.report.plots import draw_answers, draw_comparison, draw_private, draw_risks, draw_run, draw_tradeoffs
from fedpriv.report.reading import Releases, RunFolder, count_releases, read_run
from fedpriv.report.rendering import rendered
from fedpriv.report.run_summary import Privacy, mapping_of, number, pick
from fedpriv.report.tables import HEADER, NOTE, answer_rows, confusion_rows, cross_tables, group_rows, replies
from fedpriv.report.views import PRIVATE, seal
from fedpriv.report.words import (
    OBSERVERS,
    figure,
    in_metric,
    many,
    scale,
    seconds,
    size,
    threat_sentence,
    threat_short,
    threat_table,
    unit_words,
    worth,
)

#: Pictures of the sections on learning, and on spending and noise.
LEARNING = ("accuracy.png", "metric.png", "clients.png", "loss.png", "roc.png", "calibration.png")
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
    drawn = [
        *draw_run(run.rounds, run.result.privacy, folder),
        *draw_answers(run.result.answers or (), folder),
        *filter(lambda one: (folder / one.file).is_file(), [AUDIT]),
    ]
    pictures = {picture.file: shown(folder, picture) for picture in drawn}
    write_atomic(folder / "report.html", _run_page(run, folder, pictures, live))
    private = folder / PRIVATE
    if not live and private.is_dir():
        whole = read_run(folder)
        drawn = draw_private(whole.rounds, private) + draw_risks(whole.result.metrics.risks, private)
        drawn += [picture for picture in (LABELS, ROC, INVERTED) if (private / picture.file).is_file()]
        pictures |= {picture.file: shown(private, picture) for picture in drawn}
        write_atomic(private / "report.html", _run_page(whole, folder, pictures, private=private), mode=0o600)
        seal(private)
    return folder / "report.html"


def _run_page(
    run: RunFolder, folder: Path, pictures: Mapping[str, Picture], live: int | None = None, private: Path | None = None
) -> str:
    problems = dict(run.problems if live is None else {})  # a line of a file may be half written
    releases, result = count_releases(folder / "ledger.jsonl", problems), run.result
    privacy, leading, tables = result.privacy, result.leading[0], cross_tables(result)
    versions = {"fedpriv": made_by(result.commit) if result.commit is not None else None, **result.versions}
    return rendered(
        "run.html",
        live=live,
        private=private is not None,
        secret=bool(run.rounds) and run.rounds[-1].get("participants") is None,
        seeded=pick(run.config, "privacy", "rng") == "seeded",
        now=datetime.now(UTC).strftime("%H:%M:%S UTC"),
        privacy=_privacy_section(privacy) if privacy else None,
        others=[_privacy_section(other) for other in privacy.others],
        secure_sum="secure-sum" in [record.observer for record in (privacy, *privacy.others)],
        adder=privacy.secure_sum,
        promises=scale(),
        pictures=pictures,
        learning=LEARNING,
        spending=SPENDING,
        releases=[_release_row(row) for row in releases],
        attacks=attack_section(result),
        inversion=inversion_section(result, private) if private else None,
        metrics_table=list(result.further_metrics.items()),
        sites_header=["site", leading.replace("_", " "), "test examples"],
        sites=[
            [str(one.site), in_metric(leading, one.value), f"{one.examples or 0:,.0f}"] for one in result.metrics.sites
        ],
        spread={name.replace("_", " "): in_metric(leading, value) for name, value in result.metrics.spread.items()},
        confusion=confusion_rows(result.metrics.risks),
        threshold=figure(result.metrics.risks.threshold),
        groups=group_rows(result),
        coefficient=result.coefficients[0].kind if result.coefficients else None,
        coefficients=[[str(one.column), str(one.change), figure(one.value)] for one in result.coefficients],
        answer_rows=answer_rows(result, [question for question, _, _ in tables]),
        cross_tables=tables,
        answer_pictures=[name for name in pictures if name.startswith("answer-")],
        answers_header=HEADER,
        answers_note=NOTE,
        answered_by=replies(result),
        cost=_cost(run),
        method_figures=_method_figures(run),
        config_text=(run.config_text if private else run.config and yaml_of(_handed_on(run.config)))
        or "config.yaml is not there.",
        versions=sorted((name, str(version)) for name, version in versions.items() if version is not None),
        **head(run, problems),
    )


#: Where something is on one machine, or in its network.
PLACE = re.compile(r"/|~/|\\\\|[A-Za-z]:[\\/]|[a-z]+://")


def _handed_on(value: Any) -> Any:
    """Options without the places of the machine that ran them, which are nobody else's business."""
    if isinstance(value, Mapping):
        return {name: _handed_on(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_handed_on(part) for part in value]
    return "(a place of the machine that ran it)" if isinstance(value, str) and PLACE.match(value) else value


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes ``comparison.html``, ``.csv`` and ``.tex`` and, where there is something to draw, ``comparison.png``
    and ``tradeoff.png``, one for each threat model.
    """
    picture = draw_comparison(comparison, folder)
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


def _privacy_section(privacy: Privacy) -> dict[str, Any]:
    infinite = float("inf") in (privacy.verified_epsilon, privacy.verified_at_claimed_scope)
    return {
        "sentence": threat_sentence(privacy),
        "worth": worth(privacy),
        "finite": privacy.verified_epsilon is not None and not infinite,
        "observer_words": OBSERVERS.get(str(privacy.observer), f"“{privacy.observer}”"),
        "unit_words": unit_words(privacy),
        "short": threat_short(privacy),
        "observer": str(privacy.observer),
        "figures": all_figures(privacy),
        "reasons": [] if infinite and len(privacy.reasons) == 1 else privacy.reasons,
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


def _cost(run: RunFolder) -> list[tuple[str, str]]:
    def known(name: str) -> list[float]:
        return [value for row in run.rounds if (value := number(row.get(name))) is not None]

    def count(value: float | None) -> str:
        return "–" if value is None else f"{value:,.0f}"

    def by_name(name: str) -> Counter[str]:
        total = Counter[str]()
        for row in run.rounds:
            total.update({key: number(value) or 0 for key, value in mapping_of(row.get(name)).items()})  # type: ignore
        return total

    def traffic(name: str) -> str:
        total = result.traffic.get(name)
        return size(sum(known(name)) if total is None and known(name) else total)

    result, participants, dropped, refused = run.result, known("participants"), known("dropped"), by_name("refused")
    kinds = ", ".join(f"{kind.replace('_', ' ')} {count:,.0f}" for kind, count in sorted(refused.items()))
    timing = {name.removesuffix("_s").replace("_", " "): value for name, value in result.timing.items()}
    peak = result.peak_memory_mib
    return [
        *((f"Time, {name}", seconds(value)) for name, value in (*timing.items(), *by_name("timings").items())),
        ("Sent by the clients", traffic("bytes_up")),
        ("Sent by the server", traffic("bytes_down")),
        ("Participants per round", figure(fmean(participants)) if participants else "–"),
        ("Replies lost or dropped", count(sum(dropped) if dropped else None)),
        ("Replies refused", f"{refused.total():,.0f}" + (f" ({kinds})" if kinds else "") if dropped else "–"),
        ("Clients stopped by their budget", count(result.privacy.clients_stopped)),
        ("Peak memory", "–" if peak is None else f"{peak:,.0f} MiB"),
        ("Engine", str(pick(run.config, "engine", "name") or "–")),
        ("Trainer", str(pick(run.config, "engine", "trainer") or "–")),
    ]


def _method_figures(run: RunFolder) -> list[tuple[str, str, str]]:
    """(name, first value, last value) of every figure that the strategy itself reports."""
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for row in run.rounds:
        figures = {name: value for name, value in mapping_of(row.get("figures")).items() if value is not None}
        first, last = figures | first, last | figures
    return [(name, _in_words(first[name]), _in_words(last[name])) for name in sorted(last)]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping | list):
        named = isinstance(value, Mapping)  # by client
        words = [f"{key}: {_in_words(value[key])}" if named else _in_words(key) for key in list(value)[:8]]
        return ", ".join(words) + (" …" if len(value) > 8 else "")
    known = number(value)
    return str(value) if known is None else figure(known)
