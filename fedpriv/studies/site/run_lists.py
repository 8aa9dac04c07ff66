"""The list of a study's runs: a line for each, with its accuracy and the words that repeat it.

Commands of a study are long and alike, so a list is divided by what comes before the method (the setting), a row is of
runs that differ in nothing but the seed, and each word stands once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from fedpriv.studies.results import RunRecord
from fedpriv.studies.site.addresses import RunKey
from fedpriv.studies.site.run_pages import accuracy_of, own_accuracy_of
from fedpriv.studies.site.wording import slug

METHOD = " strategy="


@dataclass
class Group:
    """Runs of the same command but for the seed, which ends their names and commands. options: behind the setting."""

    options: str
    runs: list[RunRecord] = field(default_factory=list)


@dataclass
class Setting:
    """command: what the commands of its runs begin with."""

    command: str
    groups: list[Group] = field(default_factory=list)


def settings_of(runs: Iterable[RunRecord]) -> list[Setting]:
    """All runs, in their order of appearance."""
    settings: dict[str, Setting] = {}
    groups: dict[tuple[str, str, str], Group] = {}
    for run in runs:
        command, options, name = _parts(run)
        setting = settings.setdefault(command, Setting(command))
        if (command, options, name) not in groups:
            groups[command, options, name] = Group(options)
            setting.groups.append(groups[command, options, name])
        groups[command, options, name].runs.append(run)
    return list(settings.values())


def _parts(run: RunRecord) -> tuple[str, str, str]:
    """(setting, options, name without the seed); a seed that is not at the end of both stays where it is."""
    command, name = run.command, run.name
    if command.endswith(f" seed={run.seed}") and name.endswith(f"-s{run.seed}"):
        command, name = command.removesuffix(f" seed={run.seed}"), name.removesuffix(f"-s{run.seed}")
    before, method, after = command.partition(METHOD)
    if method:
        return before, method.strip() + after, name
    words = command.split(" ", 3)  # python -m MODULE, and its options
    return " ".join(words[:3]), " ".join(words[3:]), name


def siblings_by_name(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    """Of each run those of the same command but for the seed, itself among them."""
    groups = (group.runs for setting in settings_of(runs) for group in setting.groups)
    return {run.name: alike for alike in groups for run in alike}


def list_context(study: str, runs: Sequence[RunRecord], pages: Set[RunKey]) -> list[dict[str, Any]]:
    """What the list shows, by setting."""
    return [
        {
            "command": setting.command,
            "own": any(own_accuracy_of(run) is not None for group in setting.groups for run in group.runs),
            "rows": [_row(study, group, pages) for group in setting.groups],
        }
        for setting in settings_of(runs)
    ]


def _row(study: str, group: Group, pages: Set[RunKey]) -> dict[str, Any]:
    several = len(group.runs) > 1
    return {
        "options": group.options,
        "accuracy": _percent(map(accuracy_of, group.runs)),
        "own": _percent(map(own_accuracy_of, group.runs)),
        "seconds": _mean((run.seconds for run in group.runs if run.seconds), "{:.1f}"),
        "runs": [
            {
                "name": run.name,
                "id": slug(run.name),
                "page": (study, run.name) in pages,
                "accuracy": _percent([accuracy_of(run)]) if several else "",
                "superseded": run.superseded,
            }
            for run in group.runs
        ],
    }


def _percent(found: Iterable[float | None]) -> str:
    return _mean((100 * value for value in found if value is not None), "{:.1f}")


def _mean(values: Iterable[float], form: str) -> str:
    """Empty where there is none."""
    known = list(values)
    return form.format(fmean(known)) if known else ""
