"""More rounds for a run that has finished: priced anew before they begin, with all that it released before.

The ledger goes on: every release stays in it at its own price, and what is verified at the end is the whole of it. The
rounds to come are planned as if the run had had the larger number from the beginning, so the plan's epsilon is that of
all rounds. This needs a method whose releases do not depend on num_rounds (`Traits.bound_to_rounds`); the others are
refused by name. tests/contract/test_every_method.py holds every method to it: extended, a run has the model and the
ledger of one that was that long from the start. The exception is an allocation whose last pass the end cut and
which was paid as that: the extension begins another pass.

What the new epsilon means: it bounds what the whole run tells, first part and extension, also where the decision to
extend was taken from the first part's model, as long as no larger extension would have been chosen had that model been
another: "stop, or go on up to T'" tells no more than "go on up to T'", of which the first is a part. Whoever means to
decide again and again sets `privacy.max_epsilon` before the first round: a filter holds whatever is decided. For the
same reason, where the noise followed earlier outputs, a budget cannot be set or lowered afterwards: what was spent is
an odometer reading, and a filter set just above it would pass that off as a guarantee.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpriv.client.build import fixed_events_with_ends, make_client
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.files import locked
from fedpriv.common.run_files import fitting
from fedpriv.config.compose import parse, read_config
from fedpriv.config.owner import OWNER, PLACES, is_own
from fedpriv.config.schema import Config
from fedpriv.privacy.composition import compose
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.other_options import ONLOOKERS, said, with_options
from fedpriv.runs.planning import most_participations, target_price
from fedpriv.runs.preparation import check_budget

#: What an extension may change: whoever looks on, how often is looked, how far it goes, and what it may cost.
ALLOWED = ("num_rounds", "privacy.max_epsilon", "privacy.target_epsilon", "evaluate.every", "checkpoint", *ONLOOKERS)
WORDS = f"extend= changes {', '.join(ALLOWED)}, and where things are on this machine; rerun=RUN_FOLDER option=value "
WORDS += "repeats a run with other options"


def extend_run(path: Path, overrides: Sequence[str]) -> None:
    """Makes a finished run one that has rounds left; `fedpriv.runs.start.resume_run` does them.

    Raises `OptionError` or `RunFolderError` before anything is written. An interruption here leaves a finished run or
    one that resumes.
    """
    folder, before = RunFolder(path), read_config(path, said(overrides))
    with locked(folder.path), fitting(folder.path):
        summary = folder.read_summary()
        if summary is None:
            raise RunFolderError(f"{folder.path}: this run has not finished: resume={folder.path} goes on with it")
        if before.dataset.name == "on_nodes":
            words = "a deployment's clients keep their own accounts: start another run, which they price with this one"
            raise RunFolderError(f"{folder.path}: {words}")
        if summary["rounds"] < before.num_rounds:
            words, option = "its clients' budgets were spent", "privacy.max_epsilon"
            if before.evaluate.patience is not None:
                words, option = "its evaluations got no better", "evaluate.patience"
            words = f"this run ended after {summary['rounds']} of {before.num_rounds} rounds, {words}"
            raise RunFolderError(f"{folder.path}: {words}: rerun={folder.path} {option}=...")
        after = extended(before, overrides)
        _check_budget(before, after, folder)
        folder.refuse_unrepeatable(before)
        if before.num_rounds % make_client(before).rounds_at_once:
            folder.mark_disturbed("the run's end cut a pass, which was paid as that: the extension begins another")
        folder.add_stage(before, summary)
        own = is_own(folder.path, "config.yaml")
        folder.write_config(after)
        if not own:  # it stays somebody else's
            (folder.path / OWNER).unlink(missing_ok=True)


def extended(before: Config, overrides: Sequence[str]) -> Config:
    """The configuration of the longer run. Raises `OptionError` that names what stands against it."""
    for override in parse(overrides):
        key = override.key_or_group
        if not any(key == name or key.startswith(f"{name}.") for name in (*ALLOWED, *PLACES)):
            raise OptionError(key, override.get_value_string(), WORDS)
    if not any(override.key_or_group == "num_rounds" for override in parse(overrides)):
        raise OptionError("extend", "", f"how far? num_rounds=... , more than the {before.num_rounds} that are done")
    after = with_options(before, overrides)
    if after.num_rounds <= before.num_rounds:
        words = f"the run has {before.num_rounds} rounds already; allowed: more than that"
        raise OptionError("num_rounds", after.num_rounds, words)
    check_budget(after)
    _check_method(before, after)
    _check_target(before, after)
    return after


def _check_method(before: Config, after: Config) -> None:
    """Refuses a method whose past releases were made for a run of another length."""
    client, name = make_client(before), before.strategy.name
    reason = client.traits.bound_to_rounds
    if before.local.schedule != "constant":
        reason = f"local.schedule={before.local.schedule} gave its rounds the learning rates of {before.num_rounds}"
    if reason is None:  # or what a release costs follows from num_rounds, by options or in a method of one's own
        times, longer = most_participations(before), make_client(after)  # in as many rounds, whatever is told in others
        times -= times % client.rounds_at_once  # but those of a pass that the end cut
        if any(client.planned_events(times, one) != longer.planned_events(times, one) for one in client.accounts()):
            reason = "the price of its releases depends on num_rounds"
    if reason is not None:
        words = f"{name} cannot be extended: {reason}; rerun=RUN_FOLDER num_rounds={after.num_rounds} begins anew"
        raise OptionError("num_rounds", after.num_rounds, words)


def _check_budget(before: Config, after: Config, folder: RunFolder) -> None:
    """A filter bounds what a run tells if it was there, and no larger, while the noise was chosen."""
    old, new = before.privacy.max_epsilon, after.privacy.max_epsilon
    if new is None or (old is not None and old <= new):
        return
    if any(entry.adaptive or entry.realised is not None for entry in folder.ledger.read().entries):
        allowed = "null" if old is None else f"null, or {old} and more"
        words = f"rounds are done whose noise followed earlier outputs without this budget; allowed: {allowed}"
        raise OptionError("privacy.max_epsilon", new, words)


def _check_target(before: Config, after: Config) -> None:
    """The noise was chosen for a guarantee that more rounds break: only who says so gets them."""
    target = after.privacy.target_epsilon
    if target is None:
        return
    price, client = target_price(after), make_client(before)
    if before.num_rounds % client.rounds_at_once:
        price = compose(fixed_events_with_ends(after, [before.num_rounds]), after.privacy.delta).epsilon
    if price > target:
        words = (
            f"the noise was chosen for it over {before.num_rounds} rounds, and {after.num_rounds} rounds cost "
            f"{price:.4g}; privacy.target_epsilon=null accepts that"
        )
        raise OptionError("privacy.target_epsilon", target, words)
