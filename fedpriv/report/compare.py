"""Several runs side by side: grouped over seeds, mean and spread, one table per threat model."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedpriv.common.printing import cell
from fedpriv.config.methods import NOISE_OPTIONS
from fedpriv.report.differing import NOT_THERE, in_text, rounded, telling, varied
from fedpriv.report.reading import RunFolder
from fedpriv.report.words import (
    leading_metric,
    leading_of_round,
    leaves,
    mapping_at,
    number,
    number_at,
    other_threats,
    pick,
    reasons,
    threat_key,
    worst_site,
)

#: Options that may differ within a group: the seed, and where and by which engine the runs were computed.
NOT_COMPARED = ("seed", "run_dir", "engine", "operations", "tracking")

#: Figures of a row; the epsilons are those of the row's threat model.
EPSILONS = ("claimed_epsilon", "verified_epsilon", "audited_epsilon")
#: Shown where a run has none of them.
ABSENT = ("no claim", "not computed", "not audited")
FIGURES = ("accuracy", "metric", "worst_site", "personalised", *EPSILONS, "time_s")

WARNING = "Epsilons of different threat models are not comparable: each has a table of its own."


@dataclass(frozen=True)
class Spread:
    """Mean over ``n`` seeds with spread. ``std`` (n - 1 in the denominator) and ``half_width`` of the 95% interval
    of the mean (Student's t) are None for a single seed and where a value is infinite."""

    n: int
    mean: float | None
    std: float | None = None
    half_width: float | None = None


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only. ``options``: those that tell the groups apart, by full name, as shown;
    ``values``: the same, with all digits.
    """

    options: Mapping[str, str]
    runs: Sequence[RunFolder]
    values: Mapping[str, str]

    @property
    def short_names(self) -> list[str]:
        """``strategy.client.diff`` as ``diff``, ``strategy.name`` as ``strategy``, where that is unambiguous."""
        short = [name.removesuffix(".name").rsplit(".", 1)[-1] for name in self.options]
        return [s if short.count(s) == 1 else name for s, name in zip(short, self.options, strict=True)]

    @property
    def label(self) -> str:
        return self.label_without(frozenset())

    def label_without(self, names: Collection[str]) -> str:
        """The options but these, by full name, in words."""
        words = [
            value if name.endswith(".name") else f"{short.replace('_', ' ')} {value}"
            for short, (name, value) in zip(self.short_names, self.options.items(), strict=True)
            if value != NOT_THERE and name not in names
        ]
        return ", ".join(words) or "all runs"


@dataclass(frozen=True)
class Row:
    """A group under one threat model. figures: by name, ``metric`` is the leading one of the runs' task; leading: its
    name. scopes: of its claims; reasons: why a bound is not finite.
    """

    group: Group
    figures: Mapping[str, Spread]
    scopes: Sequence[str]
    reasons: Sequence[str]
    leading: str = "accuracy"
    more_is_better: bool = True

    @property
    def rank(self) -> float:
        """Ascending from the best; runs without a value come last."""
        value = self.figures["metric"].mean
        return math.inf if value is None else -value if self.more_is_better else value


@dataclass(frozen=True)
class Comparison:
    """``tables``: threat model (a mapping with unit, adjacency, observer, delta) and its rows."""

    groups: Sequence[Group]
    tables: Sequence[tuple[Mapping[str, Any], Sequence[Row]]]
    left_out: Sequence[tuple[Path, str]]

    @property
    def warning(self) -> str | None:
        return WARNING if len(self.tables) > 1 else None


def compare(runs: Sequence[RunFolder]) -> Comparison:
    """Groups the runs that can be compared and lists the others with the reason."""
    left_out = [(run.path, run.why_not_comparable) for run in runs]
    usable, repeated = _one_per_seed([run for run in runs if run.why_not_comparable is None])
    groups = _groups(usable)
    threats: dict[str, tuple[Mapping[str, Any], list[Row]]] = {}
    for group in groups:
        for key, privacies in _by_threat(group.runs).items():
            _, rows = threats.setdefault(key, (privacies[0][1], []))
            rows.append(_row(group, privacies))
    for _, rows in threats.values():
        if len({row.leading for row in rows}) == 1:
            rows.sort(key=lambda row: row.rank)
    return Comparison(groups, list(threats.values()), [*((path, why) for path, why in left_out if why), *repeated])


def spread(values: Iterable[float | None]) -> Spread:
    """Mean, standard deviation and half width of the 95% t-interval; missing values are ignored."""
    known = [value for value in values if value is not None]
    n = len(known)
    if n == 0:
        return Spread(0, None)
    if n == 1 or not all(map(math.isfinite, known)):
        return Spread(n, mean(known))
    from scipy.special import stdtrit  # half a second to import, for which the end of a single run need not wait

    std = stdev(known)
    return Spread(n, mean(known), std, float(stdtrit(n - 1, 0.975)) * std / math.sqrt(n))


def mean_curve(group: Group) -> tuple[list[int], list[float], list[float], str]:
    """(rounds, mean, standard deviation, name) of the leading metric over the group's runs, where any has a value."""
    values: dict[int, list[float]] = {}
    metric = "accuracy"
    for row in chain.from_iterable(run.rounds for run in group.runs):
        name, value = leading_of_round(row)
        if value is not None:
            metric = name
            values.setdefault(row["round"], []).append(value)
    rounds = sorted(values)
    spreads = [spread(values[i]) for i in rounds]
    return rounds, [s.mean or 0.0 for s in spreads], [s.std or 0.0 for s in spreads], metric


def write_csv(comparison: Comparison, file: Path) -> None:
    """One line per group and threat model; infinite is ``inf``, a missing value is empty, no text can be read as a
    formula.
    """
    options = list(comparison.groups[0].options) if comparison.groups else []
    parts = ("mean", "std", "ci95_half_width", "n")
    header = [*options, "unit", "adjacency", "observer", "delta", "claimed_scope", "leading_metric"]
    header += [f"{figure}_{part}" for figure in FIGURES for part in parts] + ["reasons"]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        writer.writerow(map(cell, header))
        for threat, rows in comparison.tables:
            for row in rows:
                spreads = (row.figures[figure] for figure in FIGURES)
                cells = chain.from_iterable((s.mean, s.std, s.half_width, s.n) for s in spreads)
                scopes, why = " ".join(row.scopes), "; ".join(row.reasons)
                line = (*row.group.values.values(), *threat_key(threat), scopes, row.leading, *cells, why)
                writer.writerow(map(cell, line))


# --- grouping --------------------------------------------------------------------------------------------


def _one_per_seed(runs: Sequence[RunFolder]) -> tuple[list[RunFolder], list[tuple[Path, str]]]:
    """The first run of each seed: repeating a seed adds nothing about the spread over seeds."""
    first: dict[tuple[str, Any], RunFolder] = {}
    repeated = []
    for run in runs:
        other = first.setdefault((_identity(run), run.config.get("seed")), run)
        if other is not run:
            repeated.append((run.path, f"same configuration and seed as {other.path}, which is counted"))
    return list(first.values()), repeated


def _groups(runs: Sequence[RunFolder]) -> list[Group]:
    members: dict[str, list[RunFolder]] = {}
    for run in runs:
        members.setdefault(_identity(run), []).append(run)
    configs = [_flat(group[0].config) for group in members.values()]
    names = telling(configs, varied([run.path for run in runs]))
    values = [{name: in_text(config, name) for name in names} for config in configs]
    columns = {name: rounded([one[name] for one in values]) for name in names}
    return [
        Group({name: columns[name][n] for name in names}, group, values[n]) for n, group in enumerate(members.values())
    ]


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted names, without those that never affect a result, and without noise that
    `privacy.target_epsilon` chose: where cohorts depend on the seed, so does that.
    """
    chosen = NOISE_OPTIONS if mapping_at(config, "privacy").get("target_epsilon") is not None else ()
    named = ((name, name.split("."), value) for name, value in leaves(config))
    return {
        name: value
        for name, parts, value in named
        if parts[0] not in NOT_COMPARED and not (parts[0] == "strategy" and len(parts) == 3 and parts[2] in chosen)
    }


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """`_own` without class paths."""
    return {name: value for name, value in _own(config).items() if not name.endswith("_target_")}


def _identity(run: RunFolder) -> str:
    return json.dumps(_own(run.config), sort_keys=True, default=str)


# --- rows ------------------------------------------------------------------------------------------------


def _by_threat(runs: Sequence[RunFolder]) -> dict[str, list[tuple[RunFolder, Mapping[str, Any]]]]:
    """The privacy records of the runs by threat model, including further threat models."""
    found: dict[str, list[tuple[RunFolder, Mapping[str, Any]]]] = {}
    for run in runs:
        own = mapping_at(run.summary, "privacy")
        for privacy in (own, *other_threats(own)):
            found.setdefault(repr(threat_key(privacy)), []).append((run, privacy))
    return found


def _row(group: Group, privacies: Sequence[tuple[RunFolder, Mapping[str, Any]]]) -> Row:
    figures = {
        "accuracy": spread(number_at(run.summary, "accuracy", "final") for run, _ in privacies),
        "metric": spread(leading_metric(run.summary)[1] for run, _ in privacies),
        "worst_site": spread(worst[1] if (worst := worst_site(run.summary)) else None for run, _ in privacies),
        "personalised": spread(number_at(run.summary, "accuracy", "personalised") for run, _ in privacies),
        "time_s": spread(number_at(run.summary, "timing", "total_s") for run, _ in privacies),
    }
    figures |= {name: spread(number(privacy.get(name)) for _, privacy in privacies) for name in EPSILONS}
    claims = [privacy for _, privacy in privacies if number(privacy.get("claimed_epsilon")) is not None]
    scopes = dict.fromkeys(str(privacy.get("claimed_scope") or "run") for privacy in claims)
    why = dict.fromkeys(chain.from_iterable(reasons(privacy) for _, privacy in privacies))
    if diverged := sum(bool(pick(run.summary, "diverged")) for run, _ in privacies):
        why[f"{diverged} of {len(privacies)} runs diverged"] = None
    leading, _, more = leading_metric(privacies[0][0].summary)
    return Row(group, figures, list(scopes), list(why), leading, more)
