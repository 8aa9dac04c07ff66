"""The head of a run's report: title, tiles with the three epsilons, and boxes with what a reader must not miss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.report.attacks import contradictions
from fedpriv.report.reading import RunFolder, read_run
from fedpriv.report.words import (
    Figure,
    figure,
    many,
    number,
    percent,
    pick,
    promise,
    reasons,
    seconds,
    threat_sentence,
    three_figures,
    untrained_layers,
    worth,
)


def head(folder: Path) -> dict[str, Any]:
    """Title, subtitle, tiles, boxes and the sentence on the threat model, for a shorter page of a run."""
    run = read_run(folder)
    privacy = privacy_of(run)
    return {
        "title": title_of(run),
        "subtitle": subtitle_of(run),
        "tiles": tiles_of(run, privacy),
        "boxes": boxes_of(run, privacy, run.problems),
        "sentence": f"{threat_sentence(privacy)} {worth(privacy)}".strip() if privacy else "",
    }


# --- head ------------------------------------------------------------------------------------------------


def title_of(run: RunFolder) -> str:
    strategy = pick(run.summary, "strategy") or pick(run.config, "strategy", "name") or "unknown method"
    dataset = pick(run.summary, "dataset") or pick(run.config, "dataset", "name") or "unknown data"
    accuracy = _accuracy(run)
    so_far = "" if run.summary else " so far"
    reached = "not evaluated yet" if accuracy is None else f"{percent(accuracy)} accuracy{so_far}"
    return f"{strategy} on {dataset}: {reached}"


def subtitle_of(run: RunFolder) -> str:
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


def privacy_of(run: RunFolder) -> dict[str, Any] | None:
    privacy = pick(run.summary, "privacy")
    return dict(privacy) if isinstance(privacy, Mapping) else None


def tiles_of(run: RunFolder, privacy: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    done, planned = len(run.rounds), pick(run.config, "num_rounds")
    personalised = number(pick(run.summary, "accuracy", "personalised"))
    tiles = [_tile("accuracy", percent(_accuracy(run)), "global model, test set")]
    if personalised is not None:
        worst = percent(number(pick(run.summary, "accuracy", "personalised_worst_decile")), "unknown")
        tiles.append(_tile("personalised", percent(personalised), f"clients' own tests; worst decile {worst}"))
    if privacy is None:
        spent = number(run.rounds[-1].get("epsilon_so_far")) if run.rounds else None
        words = "; ".join(filter(None, ("an odometer reading, not a guarantee", promise(spent))))
        tiles.append(_tile("epsilon spent so far", figure(spent), words, "verified"))
    else:
        tiles += [_tile(f"{f.name} epsilon", f.value, _about(f), f.name) for f in three_figures(privacy)]
    total = number(pick(run.summary, "timing", "total_s"))
    total = sum(number(row.get("seconds")) or 0.0 for row in run.rounds) if total is None else total
    return [*tiles, _tile("time", seconds(total), f"{done} of {planned} rounds" if planned else f"{done} rounds")]


def _tile(name: str, value: str, detail: str, kind: str = "") -> dict[str, Any]:
    return {"name": name, "value": value, "detail": detail, "kind": kind, "is_word": len(value) > 9}


def _about(shown: Figure) -> str:
    if shown.name == "verified" and shown.value == "∞":
        return "no finite bound: no promise"
    return f"for {shown.scope}: {shown.promise}" if shown.scope else shown.detail


def boxes_of(run: RunFolder, privacy: Mapping[str, Any] | None, problems: Mapping[str, str]) -> list[dict[str, Any]]:
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
        text = f"{many(len(run.rounds), 'round')} of {pick(run.config, 'num_rounds') or 'an unknown number'} so far."
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
    shown = "no finite bound" if verified is None else f"verified epsilon {figure(verified)} ({promise(verified)})"
    return f"It had ended after round {stage['rounds']}: {shown} until then."
