"""The head of a run's report: title, tiles with the three epsilons, and boxes with what a reader must not miss."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpriv.report.epsilon_figures import three_figures
from fedpriv.report.reading import RunFolder, read_run
from fedpriv.report.rendering import rendered
from fedpriv.report.run_summary import number, pick
from fedpriv.report.words import figure, in_metric, many, percent, threat_sentence, worth

#: Of the subtitle, as far as they are known: of the summary, or of the configuration while there is none.
FACTS = {
    "model": "model {}", "num_parameters": "{} parameter", "num_clients": "{} client",
    "trained": "trained: {}", "clients_per_round": "{} per round", "rounds": "{} round", "seed": "seed {}",
}  # fmt: skip
OPTIONS = {"model": ("model", "name"), "rounds": ("num_rounds",)}


def head_of(folder: Path, link: str = "") -> str:
    """HTML of a run's head, for a notebook. link: address of the whole report."""
    run = read_run(folder)
    privacy = run.result.privacy
    sentence = f"{threat_sentence(privacy)} {worth(privacy)}".strip() if privacy else ""
    return rendered("head.html", link=link, sentence=sentence, **head(run, run.problems))


def head(run: RunFolder, problems: Mapping[str, str]) -> dict[str, Any]:
    """What tiles.html and boxes.html say, with title and subtitle. problems: file -> what could not be read."""
    result, last = run.result, run.rounds[-1] if run.rounds else {}
    accuracy = result.accuracy.get("final")
    if run.summary is None:
        known = (number(row.get("accuracy")) for row in reversed(run.rounds))
        accuracy = next((value for value in known if value is not None), None)
    metrics = dict(list(result.further_metrics.items())[:1])  # the leading one, or of two classes auc
    worst, total, privacy = result.worst_site, result.timing.get("total_s"), result.privacy
    audited, verified = privacy.audited_epsilon, privacy.verified_epsilon
    refuted = audited is not None and verified is not None and audited > verified
    done, planned = len(run.rounds), pick(run.config, "num_rounds")
    published = (privacy.variant or pick(run.config, "privacy", "variant")) == "published"
    no_reason = "The ledger records no reason." if privacy else "Known when the run ends."
    going = run.summary is None and "summary.json" not in problems
    return {
        "title": _title(run, accuracy, metrics),
        "subtitle": _subtitle(run),
        "accuracy": accuracy,
        "answers": result.answers,
        "metrics": metrics,
        "worst": None if worst is None else [worst[0], in_metric(result.leading[0], worst[1])],
        "personalised": result.accuracy.get("personalised"),
        "worst_decile": result.accuracy.get("personalised_worst_decile"),
        "epsilons": three_figures(privacy) if privacy else [],
        "spent": number(last.get("epsilon_so_far")),
        "time": sum(number(row.get("seconds")) or 0.0 for row in run.rounds) or None if total is None else total,
        "done": done,
        "planned": planned,
        "leaks": (privacy.reasons or [no_reason]) if published else [],
        "refuted": [figure(audited), figure(verified)] if refuted else [],
        "contradictions": result.contradictions,
        "personal_layers": result.untrained_layers,
        "stages": result.stages,
        "diverged": result.diverged,
        "miscalibrated": result.miscalibrated,
        "note": "; ".join(filter(None, (result.note, result.untrained))),
        "unfinished": f"{many(done, 'round')} of {planned or 'an unknown number'} so far." if going else "",
        "problems": [f"{name}: {problem}" for name, problem in problems.items()],
    }


def _title(run: RunFolder, accuracy: float | None, metrics: Mapping[str, str]) -> str:
    result = run.result
    strategy = result.strategy or pick(run.config, "strategy", "name") or "unknown method"
    app = "a Flower app" if pick(run.config, "model", "name") == "app" else None
    dataset = result.dataset or app or pick(run.config, "dataset", "name") or "unknown data"
    reached = ", ".join(f"{name} {value}" for name, value in metrics.items()) or "not evaluated yet"
    if accuracy is not None:
        reached = f"{percent(accuracy)} accuracy{'' if run.summary else ' so far'}"
    elif result.answers is not None:
        reached = f"{many(len(result.answers), 'question')} answered"
    return f"{strategy} on {dataset}: {reached}"


def _subtitle(run: RunFolder) -> str:
    words = []
    nothing_learned = ("model", "num_parameters", "seed") if run.result.answers is not None else ()
    for name, form in FACTS.items():
        if name in nothing_learned:
            continue
        value = getattr(run.result, name)
        value = pick(run.config, *OPTIONS.get(name, (name,))) if value is None else value
        if value is not None:
            counts = form.startswith("{} ") and "per" not in form and isinstance(value, int)
            form = form if not counts else many(value, form.removeprefix("{} "))
            words.append(form.format(f"{value:,}" if isinstance(value, int) else value))
    known = run.result.public_knowledge
    return " · ".join([*words, *([f"public knowledge: {known}"] if known not in (None, "none") else [])])
