"""Several runs side by side: grouped over seeds, one table per threat model; as text, CSV and LaTeX.

**Who wins.** Rows with equal verified epsilon on the same data are a level; its best mean comes first. Every other row
is compared with it, paired over the seeds that both have. The best was chosen by these runs, so p is adjusted (Holm)
over all pairs of rows of a level, all levels of the table together: whichever pairs are shown, the chance of any wrong
"ahead" is at most `FAMILY_ERROR`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedpriv.common.errors import FedprivError
from fedpriv.common.printing import cell
from fedpriv.common.run_files import fitting
from fedpriv.config.methods import NOISE_OPTIONS
from fedpriv.privacy.events import OTHER_ADJACENCY
from fedpriv.report.epsilon_figures import unaudited
from fedpriv.report.over_seeds import FAMILY_ERROR, Spread, holm, paired, spread, two_sided_each
from fedpriv.report.reading import RunFolder, leaves, options_of_sweep, read_run
from fedpriv.report.run_summary import Privacy, Summary, number, pick
from fedpriv.report.words import (
    SCOPES,
    THREAT_KEYS,
    figure,
    in_metric,
    leading_of_round,
    many,
    promise,
    threat_sentence,
    threat_short,
    two_digits,
)

#: Options that may differ within a group: the seed, and where and by which engine the runs were computed.
NOT_COMPARED = ("seed", "run_dir", "engine", "operations", "tracking")
#: Of them, what changes results unless it has this value.
OF_ENGINE = {"faults": [], "precision": "float32"}
#: Shown for an option that a method does not have, and significant digits of a number where they tell all apart.
NOT_THERE, DIGITS = "–", 4
#: Options in front of a row; further ones stand behind its epsilons.
IN_FRONT = 3

#: Verified epsilons of one level differ by at most this share.
SAME_EPSILON = 0.02
#: Options that say on what a run was tested; of the sets that everybody has, the folder does not.
DATA, OWN_FILES = ("name", "hub_name", "subset", "path", "test_root"), ("table", "image_folder")
#: Options that move a method along its curve: rows that differ in nothing else are one method's.
BUDGETS = frozenset(("target_epsilon", "epsilon", "noise_multiplier", "noise_std"))
#: Rows that a sentence names; it counts the others.
NAMED = 6

#: Epsilons of a row, which are those of its threat model, and what is shown where a run has none.
EPSILONS = ("claimed_epsilon", "verified_epsilon", "audited_epsilon")
ABSENT = ("no claim", "not computed", "not audited")
#: Figure of a row -> how a run's is read.
FIGURES: Mapping[str, Callable[[Summary, Privacy], float | None]] = {
    "accuracy": lambda result, _: result.accuracy.get("final"),
    "metric": lambda result, _: result.leading[1],
    "worst_site": lambda result, _: result.worst_site and result.worst_site[1],
    "personalised": lambda result, _: result.accuracy.get("personalised"),
    "claimed_epsilon": lambda _, privacy: privacy.claimed_epsilon,
    "verified_epsilon": lambda _, privacy: privacy.verified_epsilon,
    "audited_epsilon": lambda _, privacy: privacy.audited_epsilon,
    "other_epsilon": lambda _, privacy: privacy.other_epsilon,
    "time_s": lambda result, _: result.timing.get("total_s"),
}

LATEX_NOTE = "Test results over seeds: mean ± standard deviation, and the 95 % interval of the mean (Student's t)."
LATEX_BEST = (
    "To the best: paired difference to the best row of equal verified ε, with its 95 % interval; p-values by Holm's "
    "procedure. "
)
#: Columns that a LaTeX table leaves to its caption where all rows agree.
MAY_BE_ALIKE = ("95 % interval", "to the best", "p", "claimed ε", "audited ε", "seeds")
WARNING = "Epsilons of different threat models are not comparable: each has a table of its own."
COMPARISON_NOTE = (
    "Rows of equal verified ε on the same data stand together, the best first. ± is one standard deviation over seeds; "
    "the interval is the 95 % interval of the mean (Student's t), not cut at 0 or 100. To the best: the difference to "
    "the best of them, paired over seeds, with its 95 % interval; p is adjusted for all such pairs of the table (Holm)."
)


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed only. ``options``: those that tell the groups apart, by full name, as shown;
    ``values``: the same, with all digits. ``named``: those in its name; None: all.
    """

    options: Mapping[str, str]
    runs: Sequence[RunFolder]
    values: Mapping[str, str]
    named: Sequence[str] | None = None

    @property
    def short_names(self) -> list[str]:
        """``strategy.client.diff`` as ``diff``, ``strategy.name`` as ``strategy``, where that is unambiguous."""
        short = [name.removesuffix(".name").rsplit(".", 1)[-1] for name in self.options]
        return [s if short.count(s) == 1 else name for s, name in zip(short, self.options, strict=True)]

    def label(self, without: Collection[str] = ()) -> str:
        """Its name: options in words, but for some, by full name."""
        named = self.options if self.named is None else self.named
        return self.name_by([name for name in named if name not in without]) or "all runs"

    def name_by(self, options: Collection[str]) -> str:
        """These options, by full name, in words."""
        words = [
            value if name.endswith(".name") else f"{short.replace('_', ' ')} {value}"
            for short, (name, value) in zip(self.short_names, self.options.items(), strict=True)
            if value != NOT_THERE and name in options
        ]
        return ", ".join(words)


@dataclass(frozen=True)
class Row:
    """A group under one threat model. figures: by name, ``metric`` is the leading one of the runs' task; leading: its
    name. scopes: of its claims; reasons: why a bound is not finite. to_best: its metric minus that of the best row
    of equal epsilon, and the adjusted p-value (none for that row itself); None: no other row has an equal epsilon.
    """

    group: Group
    figures: Mapping[str, Spread]
    scopes: Sequence[str]
    reasons: Sequence[str]
    leading: str = "accuracy"
    more_is_better: bool = True
    to_best: tuple[Spread, float | None] | None = None

    @property
    def epsilon(self) -> float:
        """The verified one; a row without any comes after those without a finite one."""
        found = self.figures["verified_epsilon"].mean
        return math.nan if found is None else found

    @property
    def by_seed(self) -> dict[Any, float]:
        """The leading metric of each run that has one."""
        found = {run.config.get("seed"): run.result.leading[1] for run in self.group.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    @property
    def data(self) -> list[str]:
        """What tells whether two rows were tested on the same."""
        dataset = self.group.runs[0].config.get("dataset") or {}
        names = (*DATA, "root") if dataset.get("name") in OWN_FILES else DATA
        return [str(dataset.get(name)) for name in names]

    @property
    def surely_behind(self) -> bool:
        """Whether the best row of its level is ahead of it."""
        gap, p = self.to_best or (Spread(0, None), None)
        return p is not None and p <= FAMILY_ERROR and ((gap.mean or 0.0) < 0) == self.more_is_better

    @property
    def rank(self) -> float:
        """Ascending from the best; runs without a value come last."""
        value = self.figures["metric"].mean
        return math.inf if value is None else -value if self.more_is_better else value


@dataclass(frozen=True)
class Comparison:
    """``tables``: threat model (of the first run that has it) and its rows."""

    groups: Sequence[Group]
    tables: Sequence[tuple[Privacy, Sequence[Row]]]
    left_out: Sequence[tuple[Path, str]]

    @property
    def warning(self) -> str | None:
        damaged = [
            f"{run.path}: {name}: {words}"
            for group in self.groups
            for run in group.runs
            for name, words in run.problems.items()
        ]
        return " ".join([*([WARNING] if len(self.tables) > 1 else []), *damaged]) or None


def compare(runs: Sequence[RunFolder]) -> Comparison:
    """Groups the runs that can be compared and lists the others with the reason. Of runs with the same configuration
    and seed the first that is whole counts: to repeat a seed adds nothing about the spread over seeds.
    """
    left_out = [(run.path, why) for run in runs if (why := run.why_not_comparable)]
    first: dict[tuple[str, Any], RunFolder] = {}
    members: dict[str, list[RunFolder]] = {}
    for run in sorted(runs, key=lambda run: len(run.problems)):
        if run.why_not_comparable is None:
            identity = json.dumps(_own(run.config), sort_keys=True, default=str)
            other = first.setdefault((identity, run.config.get("seed")), run)
            if other is run:
                members.setdefault(identity, []).append(run)
            else:
                left_out.append((run.path, f"same configuration and seed as {other.path}, which is counted"))
    groups = _groups(list(members.values()))
    threats: dict[tuple[Any, ...], tuple[Privacy, list[Row]]] = {}
    for group in groups:
        records: dict[tuple[Any, ...], list[tuple[Summary, Privacy]]] = {}
        for result in (run.result for run in group.runs):
            for privacy in (result.privacy, *result.privacy.others):
                records.setdefault(privacy.threat, []).append((result, privacy))
        for threat, found in records.items():
            threats.setdefault(threat, (found[0][1], []))[1].append(_row(group, found))
    tables = [(threat, _compared(rows)) for threat, rows in threats.values()]
    return Comparison(groups, tables, left_out)


def levels(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of equal verified epsilon on the same data, ascending."""
    found: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (math.isnan(row.epsilon), row.epsilon)):
        for level in found:
            first, missing = level[0].epsilon, math.isnan(row.epsilon)
            same = missing == math.isnan(first) and (missing or row.epsilon <= first * (1 + SAME_EPSILON))
            if same and row.data == level[0].data:
                level.append(row)
                break
        else:
            found.append([row])
    return found


def _compared(rows: Sequence[Row]) -> list[Row]:
    """The rows, level by level, the best first, each with its difference to that one."""
    if len({row.leading for row in rows}) > 1:
        return [row for level in levels(rows) for row in level]
    ordered = [sorted(level, key=lambda row: row.rank) for level in levels(rows)]
    seeds = {id(row): row.by_seed for row in rows}
    pairs = [
        (one, other, paired(seeds[id(other)], seeds[id(one)]))
        for level in ordered
        for place, one in enumerate(level)
        for other in level[place + 1 :]
    ]
    adjusted = holm(two_sided_each([found for *_, found in pairs]))
    best = {id(level[0]) for level in ordered}
    known = {
        (id(one), id(other)): (spread(found), p)
        for (one, other, found), p in zip(pairs, adjusted, strict=True)
        if id(one) in best
    }
    known |= {(id(one), id(one)): (Spread(len(seeds[id(one)]), 0.0), None) for one, *others in ordered if others}
    return [replace(row, to_best=known.get((id(level[0]), id(row)))) for level in ordered for row in level]


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


def _row(group: Group, records: Sequence[tuple[Summary, Privacy]]) -> Row:
    figures = {name: spread(read(result, privacy) for result, privacy in records) for name, read in FIGURES.items()}
    claims = (privacy.claimed_scope or "run" for _, privacy in records if privacy.claimed_epsilon is not None)
    why = dict.fromkeys(chain.from_iterable(privacy.reasons for _, privacy in records))
    if diverged := sum(bool(result.diverged) for result, _ in records):
        why[f"{diverged} of {len(records)} runs diverged"] = None
    leading, _, more = records[0][0].leading
    return Row(group, figures, list(dict.fromkeys(claims)), list(why), leading, more)


# --- options ---------------------------------------------------------------------------------------------


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted names, without those that never affect a result, and without noise that
    `privacy.target_epsilon` chose: where cohorts depend on the seed, so does that.
    """
    chosen = NOISE_OPTIONS if pick(config, "privacy", "target_epsilon") is not None else ()
    named = ((name, name.split("."), value) for name, value in leaves(config))
    return {
        name: value
        for name, parts, value in named
        if not (parts[0] in NOT_COMPARED and (parts[0] != "engine" or value == OF_ENGINE.get(parts[1], value)))
        and not (parts[0] == "strategy" and len(parts) == 3 and parts[2] in chosen)
    }


def _groups(members: Sequence[Sequence[RunFolder]]) -> list[Group]:
    configs = [_own(runs[0].config) for runs in members]
    configs = [{name: of for name, of in config.items() if not name.endswith("_target_")} for config in configs]
    names = telling(configs, varied([run.path for runs in members for run in runs]))
    values = [{name: in_text(config, name) for name in names} for config in configs]
    columns = {name: rounded([one[name] for one in values]) for name in names}
    named = naming(values, names)
    return [Group({name: columns[name][n] for name in names}, runs, values[n], named) for n, runs in enumerate(members)]


def naming(values: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[str]:
    """Of the options that differ, those that name the groups: all of a few, or method, data and as few more as tell as
    many apart, whether budgets count or not.
    """
    if len(names) <= IN_FRONT:
        return list(names)

    def kinds(chosen: Iterable[str]) -> int:
        return len({tuple(one[name] for name in chosen) for one in values})

    chosen = [name for name in names if name in ("strategy.name", "dataset.name")]
    others = [name for name in names if name.rpartition(".")[2] not in BUDGETS]
    for allowed in (others, names):
        while kinds(chosen) < kinds(allowed):
            chosen.append(max(allowed, key=lambda name: kinds([*chosen, name])))
    return [name for name in names if name in chosen]


def varied(runs: Sequence[Path]) -> list[str] | None:
    """Names of the options that the command of these runs' sweep gave; None where a run is of no sweep, or of one with
    another command, whose experiment's file may say what no option names.
    """
    first, *others = [options_of_sweep(folder) for folder in dict.fromkeys(run.parent for run in runs)] or [None]
    if first is None or any(options != first for options in others):
        return None
    return list(dict.fromkeys(option.partition("=")[0].lstrip("+") for option in first))


def telling(configs: Sequence[Mapping[str, Any]], asked: Sequence[str] | None) -> list[str]:
    """Names of the options to be shown for flat configurations, the method's first.

    asked: options that a sweep gave. Where those that differ tell all configurations apart, they are all: what follows
    from them (the noise of a target epsilon, a method's own options) need not be read. Else every option that differs:
    one that only some methods have is shown where its values differ among those; its mere presence is shown only where
    nothing else tells two configurations apart.
    """
    if len(configs) < 2:
        return []
    from pandas import DataFrame

    table = DataFrame([{name: json.dumps(value, default=str) for name, value in one.items()} for one in configs])
    table = table.drop(columns=[name for name in table if _repeats_another(name, table)])

    def apart(names: Sequence[str]) -> bool:
        return not table[names].fillna(NOT_THERE).duplicated().any() if names else len(table) < 2

    kinds = table.nunique()  # of those that have it
    names = [name for name in table if kinds[name] > 1]
    if not apart(names):
        names = [name for name in table if kinds[name] > 1 or table[name].isna().any()]
    names.sort(key=lambda name: name != "strategy.name")
    chosen = [name for name in names if any(_gives(option, name) for option in asked or ())]
    return chosen if chosen and apart(chosen) else names


def in_text(config: Mapping[str, Any], name: str) -> str:
    value = config.get(name, NOT_THERE)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def rounded(texts: Sequence[str]) -> list[str]:
    """Numbers of a column with `DIGITS` digits, or as many more as keep different numbers different."""

    def short(text: str, digits: int) -> str:
        value = _as_number(text)
        return text if value is None or "." not in text or not abs(value) < 1e6 else f"{value:.{digits}g}"

    digits = DIGITS
    while digits < 17 and len({short(text, digits) for text in texts}) < len(set(texts)):
        digits += 1
    return [short(text, digits) for text in texts]


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _gives(option: str, name: str) -> bool:
    """Whether an option of the command line sets this one; a half's option of a method has two spellings."""
    if name in (option, f"{option}.name"):
        return True
    halves = option.startswith("strategy.") and name.startswith("strategy.")
    return halves and option.rpartition(".")[2] == name.rpartition(".")[2]


def _repeats_another(name: str, table: Any) -> bool:
    """Whether a server option repeats the client's, or `privacy`'s, option of the same name."""
    half, _, option = name.rpartition(".")
    twins = [twin for twin in (f"strategy.client.{option}", f"privacy.{option}") if twin in table]
    having = table[name].notna()
    return half == "strategy.server" and any((table[twin] == table[name])[having].all() for twin in twins)


# --- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextTable:
    """A table ready to be shown. ``notes``: explanations of its rows in words, e.g. why a bound is not finite.
    ``winners``: for each epsilon with several rows, who is best and who is surely behind. ``alike``: options that all
    its rows share, where other tables' rows do not.
    """

    title: str
    sentence: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    winners: Sequence[str] = ()
    alike: str = ""


def comparison_tables(comparison: Comparison) -> list[TextTable]:
    """One table per threat model, a row per group: accuracy, its difference to the best, and the three epsilons."""
    shown = {name for _, rows in comparison.tables for row in rows for name, found in row.figures.items() if found.n}
    tables = []
    for threat, rows in comparison.tables:
        leading = {row.leading for row in rows}
        name = _in_unit(*leading, *leading) if len(leading) == 1 else "metric"
        beside = any(row.figures["other_epsilon"].n for row in rows)
        levelled = any(row.to_best for row in rows)
        said = [row.group.options for row in rows]
        apart = [one for one in said[0] if len({options[one] for options in said}) > 1] or [*said[0]][:1]
        named = [_comparison_row(row, threat, shown, name, beside, levelled, apart) for row in rows]
        of_all = rows[0].group.name_by([one for one, value in said[0].items() if one not in apart and value != "null"])
        about: dict[str, list[str]] = {}  # each reason once, with the groups that it concerns
        for row in rows:
            for reason in row.reasons:
                about.setdefault(reason, []).append(row.group.label())
        notes = [f"{'; '.join(labels)}: {reason}" for reason, labels in about.items()]
        header, cells = [name for name, _ in named[0]], [[text for _, text in row] for row in named]
        winners = [_winner(level) for level in levels(rows) if len(level) > 1 and len(leading) == 1]
        tables.append(TextTable(threat_short(threat), threat_sentence(threat), header, cells, notes, winners, of_all))
    return tables


def _in_unit(title: str, metric: str = "accuracy") -> str:
    """The column of a metric, whose cells have no unit."""
    return f"{title.replace('_', ' ')}{', %' * (metric == 'accuracy')}"


def _winner(level: Sequence[Row]) -> str:
    """Of rows with equal epsilon, the best first: who is ahead of whom."""
    best, *others = level
    known = [row for row in others if row.figures["metric"].mean is not None]
    behind, even = ([row for row in known if row.surely_behind == sure] for sure in (True, False))
    budgets = [name for name in best.group.options if name.rpartition(".")[2] in BUDGETS]
    if len({row.group.label(budgets) for row in level}) < len(level):
        budgets = []  # they alone tell the rows apart

    def named(rows: Sequence[Row]) -> str:
        labels = [row.group.label(budgets) for row in rows]
        more = f" and {many(len(labels) - NAMED, 'other')}" if len(labels) > NAMED else ""
        return ", ".join(labels[:NAMED]) + more

    epsilon = best.figures["verified_epsilon"].mean
    at = f"At ε {figure(epsilon)} ({promise(epsilon)})" if epsilon is not None else "Without a verified ε"
    if best.figures["metric"].mean is None:
        return f"{at}: no run was evaluated."
    mean = in_metric(best.leading, best.figures["metric"].mean)
    words = [f"{at}, {named([best])} is best with {mean}"]
    if behind:
        words.append(f"surely ahead of {named(behind)}")
    if even:
        seeds = max((len(row.by_seed) for row in level), default=0)
        why = "one seed tells nothing apart" if seeds < 2 else f"{seeds} seeds"
        words.append(f"not told apart from {named(even)} ({why})")
    return "; ".join(words) + "."


def _comparison_row(
    row: Row, threat: Privacy, shown: Collection[str], name: str, beside: bool, levelled: bool, apart: Sequence[str]
) -> list[tuple[str, str]]:
    """(column, cell). shown: figures that any row has; name: of the column of the leading metric; beside: whether a row
    of the table has an epsilon at the other adjacency; levelled: whether any has an equal epsilon; apart: options in
    which the table's rows differ.
    """
    metric, first = row.figures["metric"], row.group.runs[0].result.privacy
    partial = " (global part)" if any(run.result.untrained_layers for run in row.group.runs) else ""
    own = first.threat[:3] == threat.threat[:3]  # whose the offer is
    absent = (*ABSENT[:2], unaudited(first) if own else ABSENT[2])

    def epsilon(name: str, words: str) -> str:
        found, runs = row.figures[name], len(row.group.runs)
        some = f" ({found.n} of {runs} runs)" if 0 < found.n < runs else ""
        return figure(found.mean, words) + (f" ± {figure(found.std)}" if found.std else "") + some

    claimed, verified, audited = map(epsilon, EPSILONS, absent)
    if row.scopes and row.scopes != ["run"]:
        claimed += f" for {', '.join(SCOPES.get(scope, scope) for scope in row.scopes)}"
    short = dict(zip(row.group.options, row.group.short_names, strict=True))
    options = [(short[option], row.group.options[option]) for option in apart]
    further = {_in_unit("worst site", row.leading): (row.leading, "worst_site")}
    further |= {_in_unit("personalised"): ("accuracy", "personalised")}
    return [
        *options[:IN_FRONT],
        (name, _metric(row.leading, metric) + partial),
        ("95 % interval", _interval(row.leading, metric)),
        *(_difference(row) if levelled else ()),
        *((title, _metric(of, row.figures[key])) for title, (of, key) in further.items() if key in shown),
        ("claimed ε", claimed),
        ("verified ε", verified),
        *([(f"{OTHER_ADJACENCY[str(threat.adjacency)]} ε", epsilon("other_epsilon", NOT_THERE))] if beside else []),
        ("worth", promise(row.figures["verified_epsilon"].mean) or "–"),
        ("audited ε", audited),
        ("seeds", str(len(row.group.runs))),
        *options[IN_FRONT:],
    ]


def _metric(name: str, found: Spread) -> str:
    if found.mean is None:
        return "not evaluated" if name == "accuracy" else "–"
    if name == "accuracy":
        return f"{100 * found.mean:.1f}" + ("" if found.std is None else f" ± {100 * found.std:.1f}")
    return f"{found.mean:.4g}" + ("" if found.std is None else f" ± {found.std:.2g}")


def _interval(name: str, found: Spread) -> str:
    if found.mean is None or found.half_width is None:
        return "–"
    ends = found.mean - found.half_width, found.mean + found.half_width
    return " to ".join(f"{100 * end:.1f}" if name == "accuracy" else f"{end:.4g}" for end in ends)


def _difference(row: Row) -> list[tuple[str, str]]:
    """(column, cell) of the difference to the best row of equal epsilon, and of its p-value."""
    gap, p = row.to_best or (Spread(0, None), None)
    if row.to_best and gap.mean == 0 and p is None:
        found = "best"
    elif gap.mean is None or gap.half_width is None:
        found = "–"
    else:
        found = f"{_metric(row.leading, Spread(gap.n, gap.mean))} ({_interval(row.leading, gap)})"
    return [("to the best", found), ("p", NOT_THERE if p is None else two_digits(p))]


def write_csv(comparison: Comparison, file: Path) -> None:
    """One line per group and threat model; infinite is ``inf``, a missing value is empty, no text can be read as a
    formula.
    """
    from pandas import DataFrame

    parts = ("n", "mean", "std", "ci95_half_width")
    lines = []
    for threat, rows in comparison.tables:
        for row in rows:
            known = {name: dict(zip(parts, astuple(spread), strict=True)) for name, spread in row.figures.items()}
            facts = {**dict(zip(THREAT_KEYS, threat.threat, strict=True)), "claimed_scope": " ".join(row.scopes)}
            numbers = {f"{name}_{part}": known[name][part] for name in FIGURES for part in (*parts[1:], "n")}
            why = "; ".join(row.reasons)
            gap, p = row.to_best or (Spread(0, None), None)
            numbers |= {
                "to_best_mean": gap.mean,
                "to_best_ci95_half_width": gap.half_width,
                "to_best_n": gap.n,
                "to_best_p": p,
            }
            lines.append({**row.group.values, **facts, "leading_metric": row.leading, **numbers, "reasons": why})
    table = DataFrame(lines, dtype=object).map(cell).rename(columns=cell)
    table.to_csv(file, index=False, lineterminator="\r\n")


#: What LaTeX takes for a command, and signs that its fonts lack.
LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "ε": r"$\varepsilon$"}
    | {"±": r"$\pm$", "∞": r"$\infty$", "≤": r"$\le$", "≥": r"$\ge$", "–": "--"}
)


def latex_tables(tables: Sequence[TextTable]) -> str:
    """``\\input{comparison}``: one ``table`` for each threat model, with the columns in which rows differ. Its caption
    has what is equal in all, and names the threat model, so that no two are mixed up.
    """
    from pandas import DataFrame

    def in_latex(table: TextTable) -> str:
        every = dict(zip(table.header, zip(*table.rows, strict=True), strict=True))
        alike = {name: cells[0] for name, cells in every.items() if name in MAY_BE_ALIKE and len({*cells}) == 1}
        kept = {name: cells for name, cells in every.items() if name not in alike and name != "worth"}
        told = [f"{name} {cell}" for name, cell in alike.items() if cell not in (NOT_THERE, "best")]
        told += [table.alike] if table.alike else []
        same = f"Of all rows: {', '.join(told)}. " if told else ""
        best = LATEX_BEST if "to the best" in kept else ""
        caption = f"{LATEX_NOTE} {best}{same}Threat model: {table.title}."
        cells = DataFrame({name: [cell.translate(LATEX) for cell in column] for name, column in kept.items()})
        text: str = cells.to_latex(
            index=False,
            header=[name.translate(LATEX) for name in kept],
            caption=caption.translate(LATEX),
            column_format="l" * len(kept),
        )
        return text.replace("\\begin{table}\n", "\\begin{table}\n\\centering\n", 1)

    return "% Needs \\usepackage{booktabs}.\n" + "\n".join(map(in_latex, tables))


@dataclass(frozen=True)
class Cell:
    """text: as shown. value: what the column is sorted by: a number, infinite included; None: by the text, and a text
    in a column of numbers comes after them. link: relative, of a run's page.
    """

    text: str
    value: float | None = None
    link: str = ""

    @property
    def key(self) -> str:
        """As JavaScript reads it."""
        return "" if self.value is None else str(self.value).replace("inf", "Infinity")


def runs_table(comparison: Comparison, folder: Path) -> tuple[list[str], list[list[Cell]]]:
    """(header, a row for each run in the order of its folder's name), which a click on a column's head sorts; sizes are
    payloads of all messages, both ways. folder: where the page lies, which links to the runs' pages.
    """
    several = len(comparison.tables) > 1
    names = comparison.groups[0].short_names if comparison.groups else []
    runs = [(group, run) for group in comparison.groups for run in group.runs]
    runs.sort(key=lambda pair: pair[1].path.name)
    runs.sort(key=lambda pair: int(job) if (job := pair[1].path.name.partition("-")[0]).isdecimal() else math.inf)
    rows = []
    for group, run in runs:
        options = [Cell(group.options[name], _as_number(value)) for name, value in group.values.items()]
        page = "report.html" if (run.path / "report.html").is_file() else "summary.json"
        link = quote(f"{os.path.relpath(run.path, folder)}/{page}")
        front = [Cell(run.path.name, None, link), *options[:IN_FRONT]]
        seed = Cell(str(run.config.get("seed", "–")), number(run.config.get("seed")))
        seen_by = [Cell(threat_short(run.result.privacy))] if several else []
        rows.append([*front, seed, *_figures(run.result), *options[IN_FRONT:], *seen_by])
    leading = {run.result.leading[0] for _, run in runs}
    metric = _in_unit(*leading, *leading) if len(leading) == 1 else "metric"
    header = ["run", *names[:IN_FRONT], "seed", metric, "claimed ε", "verified ε", "audited ε", "sent, MiB", "time, s"]
    return [*header, *names[IN_FRONT:], *(["seen by"] if several else [])], rows


def _figures(result: Summary) -> list[Cell]:
    (leading, value, _), time, privacy = result.leading, result.timing.get("total_s"), result.privacy
    epsilons = zip(EPSILONS, (*ABSENT[:2], unaudited(privacy)), strict=True)
    up, down = result.traffic.get("bytes_up"), result.traffic.get("bytes_down")
    total = None if up is None or down is None else up + down
    return [
        Cell(_metric(leading, Spread(1, value)), value),
        *(Cell(figure(getattr(privacy, name), words), getattr(privacy, name)) for name, words in epsilons),
        Cell(figure(None if total is None else total / 2**20), total),
        Cell(figure(time), time),
    ]
