"""`python -m fedpriv.attack`: who was in the training data of a finished run? Membership inference, with controls.

    python -m fedpriv.attack run=RUN_FOLDER [attack=all|NAME,NAME...] [members=2000] [shadows=16] [workers=1] ...

attack:
    confidence_series  the true class's confidence in the global models of several rounds; the run must have kept them
                       (attack.keep_snapshots=true)
    ml_leaks           the three largest posteriors of the final model; learns from one shadow model
    white_box          loss, gradient norms, activations, label; knows the membership of a participant's own pictures
    lira               likelihood ratio against shadow models that were trained without the example (offline)
    all                those of the four that the run allows (the default)
members: evaluated members at most, and as many non-members. known_share: share of the clients that the attacker is.
shadows: shadow models of lira. workers: processes that train them. seed: draws examples and shadow models.
control_models, control_examples, control_epochs: the positive control. The run's own attack.* are the defaults.

Every attack runs three times: on the run; on models that overfit without noise, where it must succeed; on a model that
was trained on other data, where it must not beat chance. Where one of these two controls fails, the result is not shown
and the exit code is 1. Non-members are test pictures and training pictures that no client has; with
dataset.train_examples a run leaves more of them. Results go into attacks/, summary.json and report.html of the run;
shadow models stay in attacks/shadows/ for the next attack.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedpriv.cli import DONE, guarded
from fedpriv.compose import read_config
from fedpriv.config import AttackConfig, first_option_error
from fedpriv.errors import OptionError, RunFailed
from fedpriv.files import locked, write_atomic
from fedpriv.run_folder import RunFolder

if TYPE_CHECKING:
    from fedpriv.attacks.experiment import Experiment

#: Options of a run that say nothing to this command.
OF_RUNS = ("keep_snapshots", "snapshot_every")


def parse_options(arguments: Sequence[str]) -> tuple[str, str, dict[str, Any]]:
    """(run folder, attack, changed options); `OptionError` for a value that is not allowed."""
    run, attack, changes = "", "all", {}
    known = [name for name in AttackConfig.model_fields if name not in OF_RUNS]
    for argument in arguments:
        key, _, value = argument.partition("=")
        name = key.removeprefix("attack.")
        if key == "run":
            run = value
        elif key == "attack":
            attack = value
        elif name in known:
            changes[name] = _number(value)
        else:
            raise OptionError(key, value, f"there is no such option here; allowed: run, attack, {', '.join(known)}")
    if not run:
        raise OptionError("run", run, "must be the folder of a finished run: python -m fedpriv.attack run=RUN_FOLDER")
    return run, attack, changes


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "null" else text


def changed(options: AttackConfig, changes: Mapping[str, Any]) -> AttackConfig:
    """The run's options with the command's; `OptionError` for a value out of range."""
    try:
        return AttackConfig.model_validate(options.model_dump() | dict(changes))
    except ValidationError as error:
        raise first_option_error(error, prefix=("attack",)) from None


def main(arguments: Sequence[str]) -> int:
    return guarded(lambda: _main(list(arguments)))


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return DONE
    run, attack, changes = parse_options(arguments)
    config = read_config(run)
    config = config.model_copy(update={"attack": changed(config.attack, changes)})

    from fedpriv.attacks.experiment import Experiment, attack_names  # torch and flwr: seconds
    from fedpriv.errors import RunFolderError

    names = attack_names(attack)
    folder = RunFolder(Path(run))
    with locked(folder.path):
        experiment = Experiment(folder, config, _progress)
        _print_setting(experiment)
        records = {}
        for name in names:
            try:
                experiment.check(name)
            except RunFolderError as error:
                if attack != "all":
                    raise
                print(f"{name}: left out. {error}", flush=True)
                continue
            records[name] = _attack(experiment, name)
            _keep(folder, records[name])
    _print(list(records.values()))
    _report(folder)
    print(f"written into {folder.path / 'summary.json'} and report.html")
    failed = [f"{name} is not shown: {kept['reason']}" for name, kept in records.items() if not kept["shown"]]
    if failed:
        raise RunFailed(". ".join(failed))
    return DONE


def _attack(experiment: Experiment, name: str) -> dict[str, Any]:
    from fedpriv.attacks.results import guarantee, record

    summary = experiment.folder.read_summary() or {}
    return record(experiment, experiment.run(name), guarantee(summary.get("privacy") or {}))


def _keep(folder: RunFolder, kept: Mapping[str, Any]) -> None:
    from fedpriv.attacks.results import short

    (folder.path / "attacks").mkdir(exist_ok=True)
    write_atomic(folder.path / "attacks" / f"{kept['attack']}.json", json.dumps(kept, indent=1, allow_nan=False) + "\n")
    summary = folder.read_summary() or {}
    summary["attacks"] = summary.get("attacks", {}) | {kept["attack"]: short(kept)}
    folder.write_summary(summary)


def _report(folder: RunFolder) -> None:
    from fedpriv.report.attacks import draw_attacks
    from fedpriv.report.page import write_report

    draw_attacks(folder.path)
    write_report(folder.path)


def _progress(what: str, ready: int, of: int) -> None:
    print(f"{what}: {ready} of {of} models trained", file=sys.stderr, flush=True)


def _print_setting(experiment: Experiment) -> None:
    targets, config = experiment.targets, experiment.config
    print(
        f"{config.strategy.name} ({config.privacy.variant}) on {config.dataset.name}, trained on "
        f"{experiment.trained_on} pictures; {len(targets.evaluated.members)} members and as many non-members are "
        f"evaluated, the attacker knows {len(targets.known.members)} of each, {len(targets.spare)} pictures are left "
        "for shadow models",
        flush=True,
    )


def _print(records: Sequence[Mapping[str, Any]]) -> None:
    from fedpriv.attacks.results import HEADER, row
    from fedpriv.report.attacks import control_in_words
    from fedpriv.report.tables import plain_table

    print("\n".join(plain_table(HEADER, [row(kept) for kept in records])))
    for kept in records:
        print(f"{kept['attack']}: {kept.get('verdict') or 'not shown'}")
        for control in kept["controls"].values():
            print(f"  {control_in_words(control)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
