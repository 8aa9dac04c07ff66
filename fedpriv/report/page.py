"""The HTML pages: one run's report, and the comparison of several.

A page needs nothing beside it, so that it can be mailed: its pictures are in it; no network, and no script but
the one that sorts a comparison's runs. Everything that comes from a file is escaped by the template engine.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from fedpriv.common.files import write_atomic
from fedpriv.common.versions import made_by
from fedpriv.report import runs_table, templates
from fedpriv.report.attacks import attack_section, roc_picture
from fedpriv.report.compare import Comparison, mean_curve, write_csv
from fedpriv.report.method_figures import method_figures
from fedpriv.report.overview import boxes_of, privacy_of, subtitle_of, tiles_of, title_of
from fedpriv.report.pictures import Picture, Shown, shown
from fedpriv.report.plots import Band, draw_comparison, draw_run
from fedpriv.report.reading import Releases, RunFolder, count_releases, read_run
from fedpriv.report.reloading import Live
from fedpriv.report.tables import COMPARISON_NOTE, comparison_tables
from fedpriv.report.words import (
    Figure,
    figure,
    further_audits,
    many,
    number,
    opacus_figure,
    other_threats,
    pick,
    promise,
    reasons,
    scale,
    seconds,
    size,
    threat_sentence,
    threat_short,
    threat_table,
    three_figures,
    worth,
)

_PAGES = Environment(
    loader=DictLoader(
        {
            "base": templates.BASE,
            "summary": templates.SUMMARY,
            "run": templates.RUN,
            "comparison": templates.COMPARISON,
            "runs": runs_table.TEMPLATE,
        }
    ),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)

ASSUMPTIONS = (
    "The number of examples of each client is public by assumption: it is declared once and never computed again.",
    "Training loss, norms and noise norms are diagnostics addressed to the experimenter. They exist in simulation only "
    "and are outside the ledger: whoever sees this page sees more than the observer of the threat model.",
    "Accuracies of clients on their own test pictures are such diagnostics too: in a deployment they are off.",
    "Accuracy and loss on the test set are computed for the experimenter and are outside the ledger as well.",
)
#: Pictures of the sections on learning, and on spending and noise.
LEARNING = ("accuracy.png", "clients.png", "loss.png")
SPENDING = ("epsilon.png", "noise.png", "clipping.png", "significance.png")
#: Who added up, for figures against an observer of sums; by `strategy.secure_sum`.
SECURE_SUM = {
    "assumed": "Secure summation is assumed: nothing in this run kept single messages from the server.",
    "ideal": "The secure sum is ideal: the server added whole numbers in the open and used nothing but their sum.",
    "protocol": "Sums were opened by a masking protocol among the clients: what holds for sums is computational, and "
    "for no more colluders than said. The protocol is reviewed by tests, not audited.",
}


def write_report(folder: Path, live: Live | None = None) -> Path:
    """Writes ``report.html`` and its pictures into a run folder and returns the page's path. live: the run goes on.

    Works with the files present so far: an active or interrupted run, or one without privacy, gets the page that its
    files allow. Raises `RunFolderError` where there is no run, `OSError` where nothing can be written.
    """
    run = read_run(folder)
    if live:  # a run that is extended has the summary of its first part
        run = replace(run, summary=None)
    problems = dict(run.problems if live is None else {})  # a line of a file may be half written
    releases = count_releases(folder / "ledger.jsonl", problems)
    privacy = privacy_of(run)
    drawn = draw_run(run.rounds, privacy or {}, folder)
    page = _PAGES.get_template("run").render(
        live=live,
        title=title_of(run),
        subtitle=subtitle_of(run),
        tiles=tiles_of(run, privacy),
        boxes=boxes_of(run, privacy, problems),
        privacy=_privacy_section(privacy) if privacy else None,
        others=[_privacy_section(other) for other in other_threats(privacy or {})],
        assumptions=_assumptions(privacy or {}),
        epsilons=scale(),
        learning=[shown(folder, picture) for picture in drawn if picture.file in LEARNING],
        spending=[shown(folder, picture) for picture in drawn if picture.file in SPENDING],
        releases=[_release_row(row) for row in releases],
        audit=_existing(folder, Picture("audit.png", "Plot of the audit's lower bound", "The audit's lower bound.")),
        attacks=attack_section(run.summary),
        attack_pictures=_existing(folder, roc_picture()),
        labels=_existing(
            folder,
            Picture("labels.png", "Chart of the label distribution of each client", "Labels held by each client."),
        ),
        cost=_cost(run),
        method_figures=method_figures(run),
        config_text=run.config_text or "config.yaml is not there.",
        versions=_versions(run),
    )
    write_atomic(folder / "report.html", page)
    return folder / "report.html"


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Writes ``comparison.html``, ``comparison.csv`` and (where there are accuracies) ``comparison.png``."""
    bands = [Band(group.label, *mean_curve(group)) for group in comparison.groups]
    picture = draw_comparison(bands, folder)
    write_csv(comparison, folder / "comparison.csv")
    runs = sum(len(group.runs) for group in comparison.groups)
    page = _PAGES.get_template("comparison").render(
        title=f"{many(len(comparison.groups), 'configuration')}, {many(runs, 'run')}",
        subtitle="Runs that differ only in their seed form one row.",
        warning=comparison.warning,
        tables=comparison_tables(comparison),
        note=COMPARISON_NOTE,
        epsilons=scale(),
        picture=shown(folder, picture) if picture else None,
        left_out=[(os.path.relpath(path, folder), reason) for path, reason in comparison.left_out],
        runs=runs_table.runs_table(comparison, folder),
    )
    write_atomic(folder / "comparison.html", page)
    names = ["comparison.html", "comparison.csv", *([picture.file] if picture else [])]
    return [folder / name for name in names]


# --- privacy ---------------------------------------------------------------------------------------------


def _privacy_section(privacy: Mapping[str, Any]) -> dict[str, Any]:
    rows = three_figures(privacy)
    middle = number(privacy.get("verified_median"))
    if middle is not None:
        rows.insert(
            2,
            Figure(
                "median client",
                figure(middle),
                "the whole run",
                "the same bound for the client in the middle",
                promise(middle),
            ),
        )
    spent = number(privacy.get("spent_so_far"))
    odometer = "what was really spent: an odometer reading, not a guarantee given beforehand"
    rows += [*further_audits(privacy), *opacus_figure(privacy)]
    place = next(index for index, row in enumerate(rows) if row.name == "audited")
    rows.insert(place, Figure("spent so far", figure(spent, "not recorded"), "the whole run", odometer, promise(spent)))
    infinite = math.inf in (number(privacy.get("verified_epsilon")), number(privacy.get("verified_at_claimed_scope")))
    return {
        "sentence": f"{threat_sentence(privacy)} {worth(privacy)}".strip(),
        "short": threat_short(privacy),
        "observer": str(privacy.get("observer")),
        "figures": rows,
        "reasons": [] if infinite and len(reasons(privacy)) == 1 else reasons(privacy),
        "threat": threat_table(privacy),
    }


def _assumptions(privacy: Mapping[str, Any]) -> list[str]:
    observers = {str(record.get("observer")) for record in (privacy, *other_threats(privacy))}
    summed = SECURE_SUM.get(str(privacy.get("secure_sum")), SECURE_SUM["assumed"])
    return [*ASSUMPTIONS, *([summed] if "secure-sum" in observers else [])]


def _release_row(row: Releases) -> dict[str, str]:
    ranges = [(name, figure(low), figure(high)) for name, (low, high) in row.parameters.items()]
    return {
        "mechanism": row.mechanism.replace("_", " "),
        "parameters": row.reason
        or ", ".join(f"{name} {a}" if a == b else f"{name} {a} to {b}" for name, a, b in ranges),
        "total": f"{row.total:,}",
        "clients": "every client" if row.clients is None else f"{row.clients:,}",
        "most": f"{row.most_by_one_client:,}",
        "threat": row.threat,
    }


# --- the rest --------------------------------------------------------------------------------------------


def _versions(run: RunFolder) -> list[tuple[str, str]]:
    named = [("fedpriv", made_by(str(found)))] if (found := pick(run.summary, "commit")) is not None else []
    return sorted([*named, *((str(name), str(text)) for name, text in _mapping(run.summary, "versions").items())])


def _cost(run: RunFolder) -> list[tuple[str, str]]:
    timing = _mapping(run.summary, "timing")

    def traffic(name: str) -> float:
        total = number(pick(run.summary, "traffic", name))
        return sum(number(row.get(name)) or 0.0 for row in run.rounds) if total is None else total

    def total(name: str) -> str:
        return f"{sum(number(row.get(name)) or 0 for row in run.rounds):,.0f}"

    participants = [known for row in run.rounds if (known := number(row.get("participants"))) is not None]
    stopped = number(pick(run.summary, "privacy", "clients_stopped"))
    peak = number(pick(run.summary, "peak_memory_mib"))
    timings = Counter[str]()
    for row in run.rounds:
        for name, value in _mapping(row, "timings").items():
            timings[name] += number(value) or 0.0  # type: ignore[assignment]
    return [
        *((f"Time, {name.removesuffix('_s').replace('_', ' ')}", seconds(number(t))) for name, t in timing.items()),
        *((f"Time, {name}", seconds(value)) for name, value in timings.items()),
        ("Sent by the clients", size(traffic("bytes_up"))),
        ("Sent by the server", size(traffic("bytes_down"))),
        ("Participants per round", figure(fmean(participants)) if participants else "–"),
        ("Replies lost or dropped", total("dropped")),
        ("Replies refused", _refused(run)),
        ("Clients stopped by their budget", "–" if stopped is None else f"{stopped:,.0f}"),
        ("Peak memory", "–" if peak is None else f"{peak:,.0f} MiB"),
        ("Engine", str(pick(run.config, "engine", "name") or "–")),
        ("Trainer", str(pick(run.config, "engine", "trainer") or "–")),
    ]


def _refused(run: RunFolder) -> str:
    """Number of refused replies, by reason."""
    kinds = Counter[str]()
    for row in run.rounds:
        for kind, count in _mapping(row, "refused").items():
            kinds[kind] += int(number(count) or 0)
    words = ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in sorted(kinds.items()))
    return f"{kinds.total():,}" + (f" ({words})" if words else "")


def _existing(folder: Path, picture: Picture) -> list[Shown]:
    return [shown(folder, picture)] if (folder / picture.file).is_file() else []


def _mapping(source: Any, key: str) -> dict[str, Any]:
    value = pick(source, key)
    return dict(value) if isinstance(value, Mapping) else {}
