"""The head of a run's report: title, tiles with the three epsilons, and boxes with what a reader must not miss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.report.attacks import contradictions
from fedpriv.report.epsilon_figures import three_figures
from fedpriv.report.reading import RunFolder, read_run
from fedpriv.report.rendering import rendered
from fedpriv.report.words import (
    figure,
    further_metrics,
    in_metric,
    leading_metric,
    many,
    mapping_at,
    number,
    number_at,
    percent,
    pick,
    promise,
    reasons,
    threat_sentence,
    untrained_layers,
    worst_site,
    worth,
)

#: Of the subtitle, as far as they are known.
FACTS = {
    "model": "model {}", "num_parameters": "{} parameters", "num_clients": "{} clients",
    "trained": "trained: {}", "clients_per_round": "{} per round", "rounds": "{} rounds", "seed": "seed {}",
}  # fmt: skip


def head_of(folder: Path, link: str = "") -> str:
    """HTML of a run's head, for a notebook. link: address of the whole report."""
    run = read_run(folder)
    privacy = mapping_at(run.summary, "privacy")
    sentence = f"{threat_sentence(privacy)} {worth(privacy)}".strip() if privacy else ""
    return rendered("head.html", link=link, sentence=sentence, **head(run, run.problems))


def head(run: RunFolder, problems: Mapping[str, str]) -> dict[str, Any]:
    """What tiles.html and boxes.html say, with title and subtitle. problems: file -> what could not be read."""
    privacy, summary = mapping_at(run.summary, "privacy"), run.summary
    known = [value for row in run.rounds if (value := number(row.get("accuracy"))) is not None]
    accuracy = number_at(summary, "accuracy", "final") if summary is not None else next(reversed(known), None)
    metrics = dict(list(further_metrics(summary).items())[:1])  # the leading one, or of two classes auc
    worst = worst_site(summary)
    total = number_at(summary, "timing", "total_s")
    audited, verified = (number_at(privacy, f"{name}_epsilon") for name in ("audited", "verified"))
    refuted = audited is not None and verified is not None and audited > verified
    done, planned = len(run.rounds), pick(run.config, "num_rounds")
    going = summary is None and "summary.json" not in problems
    return {
        "title": _title(run, accuracy, metrics),
        "subtitle": _subtitle(run),
        "accuracy": accuracy,
        "answers": pick(summary, "answers"),
        "metrics": metrics,
        "worst": None if worst is None else [worst[0], in_metric(leading_metric(summary)[0], worst[1])],
        "personalised": number_at(summary, "accuracy", "personalised"),
        "worst_decile": number_at(summary, "accuracy", "personalised_worst_decile"),
        "epsilons": three_figures(privacy) if privacy else [],
        "spent": number(run.rounds[-1].get("epsilon_so_far")) if run.rounds else None,
        "time": sum(number(row.get("seconds")) or 0.0 for row in run.rounds) or None if total is None else total,
        "done": done,
        "planned": planned,
        "leaks": _leaks(run, privacy),
        "refuted": [figure(audited), figure(verified)] if refuted else [],
        "contradictions": contradictions(summary),
        "personal_layers": untrained_layers(summary),
        "stages": [_stage(stage) for stage in pick(summary, "stages") or ()],
        "diverged": pick(summary, "diverged"),
        "note": "; ".join(filter(None, (pick(summary, "note"), pick(summary, "untrained")))),
        "unfinished": f"{many(done, 'round')} of {planned or 'an unknown number'} so far." if going else "",
        "problems": [f"{name}: {problem}" for name, problem in problems.items()],
    }


def _title(run: RunFolder, accuracy: float | None, metrics: Mapping[str, str]) -> str:
    strategy = pick(run.summary, "strategy") or pick(run.config, "strategy", "name") or "unknown method"
    app = "a Flower app" if pick(run.config, "model", "name") == "app" else None
    dataset = pick(run.summary, "dataset") or app or pick(run.config, "dataset", "name") or "unknown data"
    so_far = "" if run.summary else " so far"
    known = "not evaluated yet" if not metrics else ", ".join(f"{name} {value}" for name, value in metrics.items())
    if (answers := pick(run.summary, "answers")) is not None:
        known = f"{many(len(answers), 'question')} answered"
    reached = known if accuracy is None else f"{percent(accuracy)} accuracy{so_far}"
    return f"{strategy} on {dataset}: {reached}"


def _subtitle(run: RunFolder) -> str:
    """Facts of the summary, or of the configuration while there is none."""
    features = pick(run.summary, "public_knowledge")
    options = {"model": ("model", "name"), "rounds": ("num_rounds",)}
    words = []
    for name, form in FACTS.items():
        value = pick(run.summary, name)
        value = pick(run.config, *options.get(name, (name,))) if value is None else value
        if value is not None:
            words.append(form.format(f"{value:,}" if isinstance(value, int) else value))
    return " · ".join([*words, *([f"public knowledge: {features}"] if features not in (None, "none") else [])])


def _leaks(run: RunFolder, privacy: Mapping[str, Any]) -> list[str]:
    """What the variant as published leaks; empty for another variant."""
    if (pick(privacy, "variant") or pick(run.config, "privacy", "variant")) != "published":
        return []
    return reasons(privacy) or ["The ledger records no reason." if privacy else "Known when the run ends."]


def _stage(stage: Mapping[str, Any]) -> str:
    verified = number(stage.get("verified_epsilon"))
    shown = "no finite bound" if verified is None else f"verified epsilon {figure(verified)} ({promise(verified)})"
    return f"It had ended after round {stage['rounds']}: {shown} until then."
