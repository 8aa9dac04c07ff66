"""The leaderboard: every method calibrated to the same verified epsilon, tuned with the same effort, compared by
accuracy. One board for each threat model (`fedpriv.studies.boards`).

For every method and target: all trials of the search run with one seed on a part of the training pictures and are
tested on the others of these, so the choice sees no test picture (a board of personal models says what it sees); the
best is run with other seeds on the set's own split. What cannot reach a target, or has no finite verified epsilon under
the board's threat model, is found out by planning and listed with the plan's reason; so is what guesses in every trial.
All searches of a board that learns are widened by its rule while any of them ends at an edge.

**Privately** (`fedpriv.privacy.private_selection`): the choice is part of the guarantee. For each seed the number K of
trials is drawn; each trial draws its options from the ranges, independently, and runs with noise of its own at the
epsilon that the choice leaves for one; they are scored on pictures that belong to nobody; the model of the best is the
result. It is tested by repeating that trial, bit for bit, with the set's own test pictures in place of those. The price
is that of a release of the best alone: K and the other trials are secrets, so no entry says how many there were. A
study on public pictures still keeps all of their records, for its repetition (runs.parquet).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.privacy.events import Threat
from fedpriv.report.words import (
    ADJACENCIES,
    OBSERVERS,
    UNITS,
    figure,
    leading_metric,
    number,
    percent,
    pick,
    worst_site,
)
from fedpriv.studies import data, statistics
from fedpriv.studies.boards import BoardPlan, Method, Range, Search, Trial, begin, drawn, option_of
from fedpriv.studies.jobs import Job
from fedpriv.studies.results import Board, Entry, Estimate, Leaderboard, Left, RunRecord, TuningCost, provenance
from fedpriv.studies.runner import NOT_RUN, Failure, Found, Runs
from fedpriv.studies.statistics import GUESSING, Contender, estimate, paired

#: Rounding of what a finished ledger sums against what the plan did.
SLACK = 1 + 1e-9
#: Metrics of which more is better and 1 is most, so that they can stand where accuracies do.
SHARES = ("accuracy", "auc", "balanced_accuracy", "f1", "r2", "mean_auc")
#: Trial j of seed s runs with the seed (s + 1) * _APART + j: noise of its own.
_APART = 100_000

Do = Callable[[str, Sequence[Job]], Found]


@dataclass(frozen=True)
class Prepared:
    """A board and what its runs need. where: overrides by which a run finds the pictures; split: the file by which
    tuning runs divide the training examples; tested: one with the same training rows, and the set's own test examples;
    classes: of the examples; final: the file by which final runs are divided, where seeds would divide them otherwise.
    """

    name: str
    plan: BoardPlan
    where: tuple[str, ...] = ()
    split: Path = Path()
    tested: Path = Path()
    classes: int = 0
    final: Path | None = None

    @property
    def lines(self) -> list[Key]:
        """What has no target."""
        return [Key(self, line, None) for line in self.plan.lines]

    @property
    def keys(self) -> list[Key]:
        """The methods at their targets."""
        methods, targets = self.plan.methods, self.plan.targets
        return [Key(self, method, target) for method in methods for target in method.targets or targets]

    @property
    def published(self) -> dict[str, Job]:
        """Method -> the plan of its published variant."""
        plans = {method.name: Key(self, method, None).options() for method in self.plan.methods}
        seed = self.plan.seeds[0]
        return {name: Job("plan", (*own, "privacy.variant=published"), seed) for name, own in plans.items()}

    @property
    def chance(self) -> float:
        """Accuracy of guessing, in percent."""
        return 100 / self.classes


@dataclass(frozen=True, eq=False)
class Key:
    """A method of a board at a target; None: of a line without one. Equal by their names."""

    board: Prepared
    method: Method
    target: float | None

    @property
    def _names(self) -> tuple[str, str, float | None]:
        return self.board.name, self.method.name, self.target

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)

    @property
    def private(self) -> bool:
        """Whether the choice of its options is part of the guarantee."""
        return self.board.plan.tuning.private and self.target is not None

    @property
    def space(self) -> dict[str, Range]:
        """The ranges: the board's, with the method's own where it has some."""
        return {**self.board.plan.search, **self.method.search}

    def options(self, trial: Sequence[str] = (), target: float | None = None) -> tuple[str, ...]:
        """Overrides of a run; what comes later replaces what came before."""
        plan = self.board.plan
        calibrated = [f"privacy.delta={plan.delta:g}"]
        if target is not None:
            calibrated += [f"privacy.target_epsilon={target:g}", f"privacy.target_observer={plan.observer}"]
        planned = self.method.plan or plan.plan
        chosen = (*self.board.where, *plan.setting, *self.method.overrides, *planned, *trial, *calibrated)
        return tuple({option_of(override): override for override in chosen}.values())

    def planned(self, kind: str = "plan", *extra: str) -> Job:
        """What a run costs, or with ``extra`` what the choice of its options does."""
        return Job(kind, self.options(target=self.target), self.board.plan.seeds[0], extra)

    def tuning(self, trials: Sequence[Trial]) -> list[Job]:
        split, seed = f"dataset.split={self.board.split}", self.board.plan.tuning.seed
        return [Job("train", (*self.options(trial, self.target), split), seed) for trial in trials]

    def final(self, trial: Trial) -> dict[int, Job]:
        """Seed -> its run."""
        split = () if self.board.final is None else (f"dataset.split={self.board.final}",)
        return {seed: Job("train", (*self.options(trial, self.target), *split), seed) for seed in self.board.plan.seeds}


def prepare(name: str, plan: BoardPlan, pictures: Path, download: bool, folder: Path) -> Prepared:
    """Finds the pictures and writes the tuning split. Raises `OptionError` for a method that cannot be composed, and
    where the pictures are not there.
    """
    from fedpriv.config.compose import compose

    where, own = data.where(plan.dataset, pictures, download), plan.tuning
    if where is None:
        words = f"{plan.dataset} is not there: name its folder, or download=true"
        raise OptionError("data", str(pictures), words)
    board = Prepared(name, plan, where)
    for key in (*board.lines, *(Key(board, method, None) for method in plan.methods)):
        try:
            compose(Job("train", key.options(begin(key.space, own.trials, own.seed).trials[0]), own.seed).overrides)
        except OptionError as error:
            raise OptionError(f"{name}.yaml, {key.method.name}: {error.option}", error.value, error.allowed) from None
    try:
        split, classes = data.held_out(where, plan.dataset, own.pictures, own.seed, folder)
        tested = data.tested_elsewhere(where, split) if own.private else Path()
    except OptionError as error:
        raise OptionError(f"{name}.yaml: tuning.pictures", error.value, error.allowed) from None
    return replace(board, split=split, tested=tested, classes=classes, final=data.own_test(where, plan.dataset, folder))


def carry_out(boards: Sequence[Prepared], runs: Runs) -> tuple[Leaderboard, list[RunRecord]]:
    """Plans, tunes and runs. Raises `RunFailed` where the reference fails, and where a run is missing that may not be
    made.
    """

    def do(stage: str, jobs: Sequence[Job]) -> Found:
        found = runs.do(stage, jobs)
        missing = sum(isinstance(one, Failure) and one.words == NOT_RUN for one in found.values())
        if missing:
            raise RunFailed(f"run=false: {missing:,} of {len(found):,} runs ({stage}) are missing: run=true")
        return found

    plans = do("plan", plans_of(boards))
    keys = reachable(boards, plans)
    tuned = _searched([key for key in keys if not key.private], do) | _privately([k for k in keys if k.private], do)
    finals = do("final", [job for own in tuned.values() for job in own.final.values()])
    costs = _costs(tuned, do)
    made = [board_of(board, tuned, {**plans, **finals}, costs) for board in boards]
    records = [one if isinstance(one, RunRecord) else one.record for one in runs.made.values()]
    used = [record for record in records if record is not None]
    return Leaderboard(provenance=provenance(used), boards=tuple(made)), runs.records(used)


def plans_of(boards: Sequence[Prepared]) -> list[Job]:
    """What is asked before any run: what each method costs, and what it would cost as published."""
    return [job for board in boards for job in (*(key.planned() for key in board.keys), *board.published.values())]


def reachable(boards: Sequence[Prepared], plans: Found) -> list[Key]:
    """What is tuned and run: the lines without a target, and every method at every target that its plan meets."""
    return [
        key
        for board in boards
        for key in (*board.lines, *board.keys)
        if key.target is None or why_not(board.plan.threat, plans[key.planned()], key.target) is None
    ]


def effort(boards: Sequence[Prepared], runs: Runs) -> Iterator[str]:
    """A line for each board. Carries out the plans alone. What a search chooses is not known: a final run counts as one
    to be made.
    """
    plans = runs.do("plan", plans_of(boards))
    for board in boards:
        own, seeds, keys = board.plan.tuning, len(board.plan.seeds), reachable([board], plans)
        searched = [key for key in keys if not key.private]
        trials = [job for key in searched for job in key.tuning(begin(key.space, own.trials, own.seed).trials)]
        unknown = seeds * len(keys) + own.trials * seeds * (len(keys) - len(searched))
        wider = own.further * own.widenings * len(searched)
        words = f"{board.name}: {sum(key.target is not None for key in keys)} entries, {runs.effort(trials, unknown)}"
        yield f"{words}; at most {wider:,} more where searches are widened"


# --- why something has no place ----------------------------------------------------------------------------


def privacy_under(summary: Mapping[str, Any], threat: Threat) -> Mapping[str, Any] | None:
    """The privacy figures of a summary under a threat model, at its delta; None where it has none."""
    own, wanted = pick(summary, "privacy") or {}, (threat.unit, threat.adjacency, threat.observer)
    models = (own, *(own.get("others") or ()))
    return next((one for one in models if (one["unit"], one["adjacency"], one["observer"]) == wanted), None)


def why_not(threat: Threat, result: RunRecord | Failure, target: float | None = None) -> str | None:
    """Why a plan or run has no place at a target of a board; None where it has one."""
    if isinstance(result, Failure):
        return plainly(result.words)
    found = privacy_under(result.summary, threat)
    if found is None:
        own = pick(result.summary, "privacy")
        return (
            f"it protects {UNITS[own['unit']]} ({ADJACENCIES[own['adjacency']]}) against "
            f"{OBSERVERS[own['observer']]}: another threat model, whose epsilons are not comparable"
        )
    verified = number(found["verified_epsilon"])
    if verified is None or not math.isfinite(verified):
        return "; ".join(found["reasons"]) or "no finite bound"
    if target is not None and verified > target * SLACK:
        return f"its verified epsilon is {figure(verified)}, above the target"
    return None


def plainly(words: str) -> str:
    """An error without the target's own value, so that equal reasons are equal."""
    option, _, rest = words.partition(": ")
    return rest if option.startswith("privacy.target_epsilon=") and rest else words


def score(key: Key, result: RunRecord | Failure) -> float | None:
    """The accuracy, or another share, by which a board ranks; None where there is none."""
    if not isinstance(result, RunRecord):
        return None
    measure = key.board.plan.measure
    if measure in ("final", "personalised"):
        return number(pick(result.summary, "accuracy", measure))
    if measure != "leading":
        return number(pick(result.summary, "metrics", "final", measure))
    name, value, _ = leading_metric(result.summary)
    return value if name in SHARES else None


def _no_score(key: Key, run: str) -> str:
    measure = key.board.plan.measure
    if measure in ("final", "personalised"):
        return f"a {run} has no {measure} accuracy"
    return f"a {run} has no {measure} metric of which 1 is most ({', '.join(SHARES)})"


# --- tuning ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuned:
    """What a search came to. tried: trials that ran, None where their number is secret; chosen: option -> value; final:
    seed -> the run that counts, none where there is a reason; at_edge: options whose best value stands at an edge in
    the end; epsilon: of all trials and the choice among them, where they are private.
    """

    search: Search
    tried: int | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)
    final: Mapping[int, Job] = field(default_factory=dict)
    reason: str | None = None
    at_edge: tuple[str, ...] = ()
    epsilon: float | None = None


Tried = tuple[float, Trial]


def _searched(keys: Sequence[Key], do: Do) -> dict[Key, Tuned]:
    """Where all trials guess, the best of them is chance, and says nothing of its range."""
    tuning = {key: key.board.plan.tuning for key in keys}
    searches = {key: begin(key.space, own.trials, own.seed) for key, own in tuning.items()}
    results = dict(do("tune", [job for key in keys for job in key.tuning(searches[key].trials)]))
    for time in range(max((own.widenings for own in tuning.values()), default=0)):
        tried = {key: _tried(key, searches[key], results) for key in keys}
        best = {key: max(own, key=lambda one: one[0])[1] if own else None for key, own in tried.items()}
        wide = {key.board.name for key in keys if searches[key].sides(best[key]) and not _guesses(key, tried[key])}
        grow = [key for key in keys if key.board.name in wide and time < tuning[key].widenings]
        if not grow:
            break
        for key in grow:
            own = tuning[key]
            searches[key] = searches[key].further(best[key], own.further, own.seed, own.factor)
        results |= do(f"tune, wider ({time + 1})", [job for key in grow for job in key.tuning(searches[key].trials)])
    return {key: choose(key, searches[key], results) for key in keys}


def _tried(key: Key, search: Search, results: Found) -> list[Tried]:
    """(accuracy on the examples kept for tuning, trial) of the trials that ran and have one."""
    scores = (score(key, results[job]) for job in key.tuning(search.trials))
    return [(found, trial) for found, trial in zip(scores, search.trials, strict=True) if found is not None]


def _guesses(key: Key, tried: Sequence[Tried]) -> bool:
    board, best = key.board, max((accuracy for accuracy, _ in tried), default=0.0)
    return board.plan.measure == "final" and 100 * best < GUESSING * board.chance


def choose(key: Key, search: Search, results: Found) -> Tuned:
    """The trial with the highest accuracy, the first of equals."""
    tried = _tried(key, search, results)
    if not tried:
        failed = [one.words for job in key.tuning(search.trials) if isinstance(one := results[job], Failure)]
        return Tuned(search, reason=plainly(failed[0]) if failed else _no_score(key, "tuning run"))
    accuracy, trial = max(tried, key=lambda one: one[0])
    if key.target is not None and _guesses(key, tried):
        why = f": {key.method.why}" if key.method.why else ""
        reason = f"it guesses: the best of {len(tried)} trials has {percent(accuracy)} on held-out examples{why}"
        return Tuned(search, tried=len(tried), reason=reason)
    return Tuned(
        search,
        tried=len(tried),
        chosen=_options(trial),
        final=key.final(trial),
        at_edge=tuple(f"{option}, {side} end" for option, side in search.sides(trial).items()),
    )


def _options(trial: Trial) -> dict[str, str]:
    return {option: value for option, _, value in (override.partition("=") for override in trial)}


def _costs(tuned: Mapping[Key, Tuned], do: Do) -> dict[Key, TuningCost]:
    """What choosing the options of every entry would cost, had it been done on the training data that are protected;
    nothing for one whose plan cannot be priced so.
    """
    ranked = [key for key, own in tuned.items() if own.final and key.target is not None and not key.private]
    jobs = {key: key.planned("tuning", f"trials={len(tuned[key].search.trials)}") for key in ranked}
    results, found = do("cost of tuning", list(jobs.values())), {}
    for key, job in jobs.items():
        if isinstance(record := results[job], RunRecord):
            composed, random = (number(record.figures[name]) for name in ("composed", "random"))
            if composed is not None and random is not None:
                runs, law = len(tuned[key].search.trials) + 1, str(record.summary["law"])
                found[key] = TuningCost(runs=runs, composed=composed, random=random, law=law)
    return found


def _privately(keys: Sequence[Key], do: Do) -> dict[Key, Tuned]:
    """The final run of every seed is the repetition of its best trial."""
    prices, trials = {}, {}
    for key in keys:
        own = key.board.plan.tuning
        ends = [f"end={option}={value:g}" for option, one in key.space.items() for value in (one.low, one.high)]
        prices[key] = key.planned("tuning", f"trials={own.trials}", f"law={own.law}", *ends)
    priced = do("price of the choice", list(prices.values())) if keys else {}
    shares = {key: _share(priced[job]) for key, job in prices.items()}
    for key, share in shares.items():
        trials[key] = [] if isinstance(share, str) else _draw(key, share[0])
    results = do("tune privately", [one.scored for own in trials.values() for one in own]) if keys else {}
    return {key: _best_of_drawn(key, shares[key], trials[key], results) for key in keys}


def _share(record: RunRecord | Failure) -> tuple[float, float] | str:
    """(epsilon of one trial, epsilon of the choice), which meets the target, or why there is none."""
    if not isinstance(record, RunRecord):
        return record.words
    if (one := number(record.figures["one"])) and (chosen := number(record.figures["chosen"])):
        return one, chosen
    return "no epsilon of a trial leaves the choice among a random number of them within the target"


@dataclass(frozen=True)
class _Drawn:
    seed: int
    trial: Trial
    scored: Job
    tested: Job


def _draw(key: Key, epsilon: float) -> list[_Drawn]:
    """The trials of all seeds, in order."""
    from fedpriv.privacy.private_selection import with_mean

    board, own, found = key.board, key.board.plan.tuning, []
    law = with_mean(own.law, own.trials)
    for seed in board.plan.seeds:
        rng = np.random.default_rng([own.seed, seed, *key.method.name.encode()])
        for place in range(law.draw(rng)):
            trial = drawn(key.space, rng)
            options, run_seed = key.options(trial, epsilon), (seed + 1) * _APART + place
            splits = (board.split, board.tested)
            scored, tested = (Job("train", (*options, f"dataset.split={split}"), run_seed) for split in splits)
            found.append(_Drawn(seed, trial, scored, tested))
    return found


def _best_of_drawn(key: Key, share: tuple[float, float] | str, trials: Sequence[_Drawn], results: Found) -> Tuned:
    search = Search(key.space)
    if isinstance(share, str):
        return Tuned(search, reason=plainly(share))
    best: dict[int, tuple[float, _Drawn]] = {}
    for one in trials:
        found = score(key, results[one.scored])
        if found is not None and (one.seed not in best or found > best[one.seed][0]):
            best[one.seed] = (found, one)
    if missing := [seed for seed in key.board.plan.seeds if seed not in best]:
        return Tuned(search, reason=f"{_no_score(key, 'trial')} with seed {missing[0]}")
    values: dict[str, list[float]] = {}
    for option, value in (pair for _, one in best.values() for pair in _options(one.trial).items()):
        values.setdefault(option, []).append(float(value))
    chosen = {option: f"{min(own):g} to {max(own):g}" for option, own in values.items()}
    return Tuned(
        search,
        chosen=chosen | {"epsilon of a trial": f"{share[0]:g}"},
        final={seed: best[seed][1].tested for seed in key.board.plan.seeds},
        epsilon=share[1],
    )


# --- a board -----------------------------------------------------------------------------------------------

Records = Mapping[int, RunRecord]


def board_of(board: Prepared, tuned: Mapping[Key, Tuned], found: Found, costs: Mapping[Key, TuningCost]) -> Board:
    """found: what plans and runs gave. Raises `RunFailed` where the reference has no result."""
    plan, lines, left = board.plan, {}, list[Left]()
    for key in board.lines:
        ran = records_of(key, tuned[key], found)
        if isinstance(ran, str):
            raise RunFailed(f"{board.name}: {key.method.name} cannot be run: {ran}")
        lines[key.method.name] = accuracies(key, ran)
    records: dict[Key, Records] = {}
    contenders: dict[float, dict[str, Contender]] = {target: {} for target in plan.targets}
    by_target = sorted(board.keys, key=lambda key: plan.targets.index(key.target or 0.0))
    for key in by_target:
        method, target = key.method, key.target or 0.0
        own = why_not(plan.threat, found[key.planned()], target) or records_of(key, tuned[key], found)
        if isinstance(own, str):
            left.append(Left(method=method.name, label=method.label, reason=own, target=target))
        else:
            records[key] = own
            one = Contender(method.name, method.idea, accuracies(key, own), method.against)
            contenders[target][method.name] = one
    keys, entries, ahead = {(key.method.name, key.target): key for key in records}, [], {}
    alone = lines[plan.alone.name] if plan.alone else None
    for target, here in contenders.items():
        order = statistics.ranked(here.values())
        for rank, tied, one in order:
            key = keys[one.method, target]
            better_at = statistics.better_at(one, target, contenders)
            standing = {"rank": rank, "tied": tied, "better_at": better_at, "tuning": costs.get(key)}
            entries.append(entry_of(key, tuned[key], records[key]).model_copy(update=standing))
        if alone and order:
            ahead[target] = estimate(paired(order[0][2].accuracies, alone))
    return Board(
        name=board.name,
        title=plan.title,
        unit=plan.unit,
        adjacency=plan.adjacency,
        observer=plan.observer,
        delta=plan.delta,
        measure=plan.measure,
        metric=_metric(plan.measure, [run for runs in records.values() for run in runs.values()]),
        trials=max(len(own.search.trials) for key, own in tuned.items() if key.board.name == board.name),
        setting=plan.words,
        targets=plan.targets,
        reference=estimate(lines[plan.reference.name].values()),
        on_features=None if plan.on_features is None else estimate(lines[plan.on_features.name].values()),
        alone=None if alone is None else estimate(alone.values()),
        entries=tuple(entries),
        left=(*_collapsed(left, plan.targets), *_published(board, found)),
        ahead=ahead,
        duels=tuple(statistics.duels(contenders, board.chance)),
        chance=board.chance if plan.measure == "final" else None,  # own classes are fewer
        search={key.method.name: Search(key.space).in_words() for key in (*board.lines, *board.keys)},
        searched=plan.tuning.model_dump(),
        private=plan.tuning.private,
    )


def _metric(measure: str, runs: Sequence[RunRecord]) -> str:
    """Name of what a board ranks by."""
    names = {leading_metric(run.summary)[0] for run in runs} if measure == "leading" else set()
    return "accuracy" if measure in ("final", "personalised") else names.pop() if len(names) == 1 else measure


def records_of(key: Key, tuned: Tuned, found: Found) -> Records | str:
    """Seed -> its final run, or why there are none."""
    if tuned.reason is not None:
        return tuned.reason
    records: dict[int, RunRecord] = {}
    for seed, job in tuned.final.items():
        result = found[job]
        if key.target is not None and (reason := why_not(key.board.plan.threat, result, key.target)) is not None:
            return reason
        if isinstance(result, Failure):
            return plainly(result.words)
        if score(key, result) is None:
            return _no_score(key, "final run")
        records[seed] = result
    return records


def accuracies(key: Key, records: Records) -> dict[int, float]:
    """Seed -> percent."""
    return {seed: 100 * (score(key, record) or 0.0) for seed, record in records.items()}


def entry_of(key: Key, tuned: Tuned, records: Records) -> Entry:
    """Without its rank among others."""
    method, threat, runs = key.method, key.board.plan.threat, list(records.values())
    verified = [number((privacy_under(run.summary, threat) or {})["verified_epsilon"]) or 0.0 for run in runs]
    return Entry(
        method=method.name,
        label=method.label,
        paper=method.paper,
        target=key.target or 0.0,
        verified_epsilon=max(verified) if tuned.epsilon is None else tuned.epsilon,
        accuracy=estimate(accuracies(key, records).values()),
        bytes_up=fmean(run.summary["traffic"]["bytes_up"] for run in runs),
        bytes_down=fmean(run.summary["traffic"]["bytes_down"] for run in runs),
        seconds=estimate([run.summary["timing"]["total_s"] for run in runs]),
        chosen=tuned.chosen,
        rank=0,
        runs=tuple(run.name for run in runs),
        command=runs[0].command,
        idea=method.idea,
        tried=tuned.tried,
        at_edge=tuned.at_edge,
        own_plan=bool(method.plan),
        worst_site=_worst_site(runs),
        superseded=next((run.superseded for run in runs if run.superseded), None),
    )


def _worst_site(runs: Sequence[RunRecord]) -> Estimate | None:
    """The leading metric where it is least, in percent; None where a run tells no sites apart."""
    values = [100 * one[1] for run in runs if (one := worst_site(run.summary)) is not None]
    share = all(leading_metric(run.summary)[0] in SHARES for run in runs)
    return estimate(values) if len(values) == len(runs) and share else None


def _collapsed(left: Sequence[Left], targets: Sequence[float]) -> list[Left]:
    """One line in place of one for each target where the reason is the same at all of them."""
    found: list[Left] = []
    for one in left:
        same = [other for other in left if (other.method, other.reason) == (one.method, one.reason)]
        line = one.model_copy(update={"target": None}) if len(same) == len(targets) else one
        if line not in found:
            found.append(line)
    return found


def _published(board: Prepared, found: Found) -> list[Left]:
    """The published variants: planned, not trained."""
    left = []
    for method in board.plan.methods:
        result = found[board.published[method.name]]
        reason = why_not(board.plan.threat, result)
        if reason is None and isinstance(result, RunRecord):
            privacy = privacy_under(result.summary, board.plan.threat) or {}
            reason = f"epsilon {figure(number(privacy['verified_epsilon']))}"
        left.append(Left(method=method.name, label=method.label, reason=reason or "", variant="published"))
    return left
