"""The HTML pages: one run's report, and the comparison of several.

A page needs only the picture files beside it: no network, no script. Everything that comes from a file is
escaped by the template engine.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined

from fedpriv.common.files import write_atomic
from fedpriv.common.versions import made_by
from fedpriv.report import templates
from fedpriv.report.attacks import attack_section, contradictions, roc_picture
from fedpriv.report.compare import Comparison, mean_curve, write_csv
from fedpriv.report.method_figures import method_figures
from fedpriv.report.plots import Band, Picture, draw_comparison, draw_run
from fedpriv.report.reading import Releases, RunFolder, count_releases, read_run
from fedpriv.report.tables import COMPARISON_NOTE, comparison_tables
from fedpriv.report.words import (
    Figure,
    figure,
    further_audits,
    number,
    other_threats,
    percent,
    pick,
    reasons,
    seconds,
    size,
    threat_sentence,
    threat_short,
    threat_table,
    three_figures,
    untrained_layers,
    worth,
)

_PAGES = Environment(
    loader=DictLoader(
        {
            "base": templates.BASE,
            "summary": templates.SUMMARY,
            "run": templates.RUN,
            "comparison": templates.COMPARISON,
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
#: Pictures of the section on spending and noise.
SPENDING = ("epsilon.png", "noise.png", "clipping.png", "significance.png")
#: Who added up, for figures against an observer of sums; by `strategy.secure_sum`.
SECURE_SUM = {
    "assumed": "Secure summation is assumed: nothing in this run kept single messages from the server.",
    "ideal": "The secure sum is ideal: the server added whole numbers in the open and used nothing but their sum.",
    "protocol": "Sums were opened by a masking protocol among the clients: what holds for sums is computational, and "
    "for no more colluders than said. The protocol is reviewed by tests, not audited.",
}


def write_report(folder: Path) -> Path:
    """Writes ``report.html`` and its pictures into a run folder and returns the page's path.

    Works with the files present so far: an active or interrupted run, or one without privacy, gets the page that its
    files allow. Raises `RunFolderError` where there is no run, `OSError` where nothing can be written.
    """
    run = read_run(folder)
    problems = dict(run.problems)
    releases = count_releases(folder / "ledger.jsonl", problems)
    privacy = _privacy(run)
    drawn = draw_run(run.rounds, privacy or {}, folder)
    page = _PAGES.get_template("run").render(
        title=_title(run),
        subtitle=_subtitle(run),
        tiles=_tiles(run, privacy),
        boxes=_boxes(run, privacy, problems),
        privacy=_privacy_section(privacy) if privacy else None,
        others=[_privacy_section(other) for other in other_threats(privacy or {})],
        assumptions=_assumptions(privacy or {}),
        learning=[picture for picture in drawn if picture.file in ("accuracy.png", "clients.png", "loss.png")],
        spending=[
            picture
            for picture in drawn
            if picture.file in ("epsilon.png", "noise.png", "clipping.png", "significance.png")
        ],
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
        title=f"{_many(len(comparison.groups), 'configuration')}, {_many(runs, 'run')}",
        subtitle="Runs that differ only in their seed form one row.",
        warning=comparison.warning,
        tables=comparison_tables(comparison),
        note=COMPARISON_NOTE,
        picture=picture,
        left_out=[(os.path.relpath(path, folder), reason) for path, reason in comparison.left_out],
        groups=[(group.label, [_link(run.path, folder) for run in group.runs]) for group in comparison.groups],
    )
    write_atomic(folder / "comparison.html", page)
    names = ["comparison.html", "comparison.csv", *([picture.file] if picture else [])]
    return [folder / name for name in names]


def head(folder: Path) -> dict[str, Any]:
    """Title, subtitle, tiles, boxes and the sentence on the threat model, for a shorter page of a run."""
    run = read_run(folder)
    privacy = _privacy(run)
    return {
        "title": _title(run),
        "subtitle": _subtitle(run),
        "tiles": _tiles(run, privacy),
        "boxes": _boxes(run, privacy, run.problems),
        "sentence": f"{threat_sentence(privacy)} {worth(privacy)}".strip() if privacy else "",
    }


# --- head ------------------------------------------------------------------------------------------------


def _title(run: RunFolder) -> str:
    strategy = pick(run.summary, "strategy") or pick(run.config, "strategy", "name") or "unknown method"
    dataset = pick(run.summary, "dataset") or pick(run.config, "dataset", "name") or "unknown data"
    accuracy = _accuracy(run)
    so_far = "" if run.summary else " so far"
    reached = "not evaluated yet" if accuracy is None else f"{percent(accuracy)} accuracy{so_far}"
    return f"{strategy} on {dataset}: {reached}"


def _subtitle(run: RunFolder) -> str:
    def fact(name: str, words: str, nested: str = "") -> str | None:
        value = pick(run.summary, name)
        value = pick(run.config, *(nested or name).split(".")) if value is None else value
        return None if value is None else words.format(f"{value:,}" if isinstance(value, int) else value)

    known = pick(run.summary, "public_knowledge")
    facts = (
        fact("model", "model {}", "model.name"),
        fact("num_parameters", "{} parameters"),
        fact("num_clients", "{} clients"),
        fact("clients_per_round", "{} per round"),
        fact("rounds", "{} rounds", "num_rounds"),
        fact("seed", "seed {}"),
        f"public features: {known}" if known not in (None, "none") else None,
    )
    return " · ".join(filter(None, facts))


def _accuracy(run: RunFolder) -> float | None:
    """The final accuracy, or the last one so far of a run without a summary."""
    if run.summary is not None:
        return number(pick(run.summary, "accuracy", "final"))
    known = [accuracy for row in run.rounds if (accuracy := number(row.get("accuracy"))) is not None]
    return known[-1] if known else None


def _privacy(run: RunFolder) -> dict[str, Any] | None:
    privacy = pick(run.summary, "privacy")
    return dict(privacy) if isinstance(privacy, Mapping) else None


def _tiles(run: RunFolder, privacy: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    done, planned = len(run.rounds), pick(run.config, "num_rounds")
    personalised = number(pick(run.summary, "accuracy", "personalised"))
    tiles = [_tile("accuracy", percent(_accuracy(run)), "global model, test set")]
    if personalised is not None:
        worst = percent(number(pick(run.summary, "accuracy", "personalised_worst_decile")), "unknown")
        tiles.append(_tile("personalised", percent(personalised), f"clients' own tests; worst decile {worst}"))
    if privacy is None:
        spent = number(run.rounds[-1].get("epsilon_so_far")) if run.rounds else None
        tiles.append(_tile("epsilon spent so far", figure(spent), "an odometer reading, not a guarantee", "verified"))
    else:
        tiles += [_tile(f"{f.name} epsilon", f.value, _about(f), f.name) for f in three_figures(privacy)]
    total = number(pick(run.summary, "timing", "total_s"))
    total = sum(number(row.get("seconds")) or 0.0 for row in run.rounds) if total is None else total
    return [*tiles, _tile("time", seconds(total), f"{done} of {planned} rounds" if planned else f"{done} rounds")]


def _tile(name: str, value: str, detail: str, kind: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "detail": detail, "kind": kind, "is_word": len(value) > 9}


def _about(shown: Figure) -> str:
    if shown.name == "verified" and shown.value == "∞":
        return "no finite bound"
    return f"for {shown.scope}" if shown.scope else shown.detail


# --- boxes, privacy --------------------------------------------------------------------------------------


def _boxes(run: RunFolder, privacy: Mapping[str, Any] | None, problems: Mapping[str, str]) -> list[dict[str, Any]]:
    boxes = []
    variant = pick(privacy, "variant") or pick(run.config, "privacy", "variant")
    if variant == "published":
        leaks = reasons(privacy or {}) or ["The account recorded no reason." if privacy else "Known when the run ends."]
        text = "This run follows the paper as printed, not the repaired default. What leaks:"
        boxes.append({"title": "Published variant.", "text": text, "lines": leaks})
    audited, verified = (number(pick(privacy, f"{name}_epsilon")) for name in ("audited", "verified"))
    if audited is not None and verified is not None and audited > verified:
        text = f"The audit measured {figure(audited)}, more than the bound {figure(verified)}: do not trust this run."
        boxes.append({"title": "The verified bound is wrong.", "text": text, "lines": []})
    if broken := contradictions(run.summary):
        text = "Membership inference succeeds more often than the verified bound allows: do not trust this run."
        boxes.append({"title": "An attack contradicts the guarantee.", "text": text, "lines": broken})
    if (layers := untrained_layers(run.summary)) is not None:
        boxes.append({"title": "Clients keep layers.", "text": layers, "lines": []})
    if stages := pick(run.summary, "stages"):
        boxes.append({"title": "This run was extended.", "text": EXTENDED, "lines": list(map(_stage, stages))})
    if note := pick(run.summary, "note"):
        boxes.append({"title": "Note.", "text": f"{note}.", "lines": []})
    if run.summary is None and "summary.json" not in problems:
        text = f"{_many(len(run.rounds), 'round')} of {pick(run.config, 'num_rounds') or 'an unknown number'} so far."
        boxes.append({"title": "This run is not finished.", "text": text, "lines": []})
    if problems:
        lines = [f"{name}: {problem}" for name, problem in problems.items()]
        boxes.append({"title": "Not everything could be read.", "text": "", "lines": lines})
    return boxes


EXTENDED = (
    "Every figure here is of all rounds together. They were priced before the first added round. That bounds what the "
    "whole run tells, if no larger extension would have been chosen after looking at the first part; whoever means to "
    "decide more than once sets privacy.max_epsilon before the first round."
)


def _stage(stage: Mapping[str, Any]) -> str:
    verified = number(stage.get("verified_epsilon"))
    shown = "no finite bound" if verified is None else f"verified epsilon {figure(verified)}"
    return f"It had ended after round {stage['rounds']}: {shown} until then."


def _privacy_section(privacy: Mapping[str, Any]) -> dict[str, Any]:
    rows = three_figures(privacy)
    middle = number(privacy.get("verified_median"))
    if middle is not None:
        rows.insert(
            2,
            Figure("median client", figure(middle), "the whole run", "the same bound for the client in the middle"),
        )
    spent = number(privacy.get("spent_so_far"))
    odometer = "what was really spent: an odometer reading, not a guarantee given beforehand"
    rows += further_audits(privacy)
    place = next(index for index, row in enumerate(rows) if row.name == "audited")
    rows.insert(place, Figure("spent so far", figure(spent, "not recorded"), "the whole run", odometer))
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


def _existing(folder: Path, picture: Picture) -> list[Picture]:
    return [picture] if (folder / picture.file).is_file() else []


def _mapping(source: Any, key: str) -> dict[str, Any]:
    value = pick(source, key)
    return dict(value) if isinstance(value, Mapping) else {}


def _link(run: Path, folder: Path) -> tuple[str, str]:
    name = os.path.relpath(run, folder)
    page = "report.html" if (run / "report.html").is_file() else "summary.json"
    return quote(f"{name}/{page}"), name


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
