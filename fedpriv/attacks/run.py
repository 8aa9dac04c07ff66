"""Membership inference against a finished run, and its results in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedpriv.common.command_line import DONE
from fedpriv.common.doing import doing
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.files import locked, write_atomic
from fedpriv.common.printing import say
from fedpriv.common.run_files import fitting
from fedpriv.config.compose import read_config
from fedpriv.config.explain import first_option_error
from fedpriv.config.options import AttackConfig
from fedpriv.config.question_words import refuse_answers
from fedpriv.report.live.task import task
from fedpriv.report.views import private_folder
from fedpriv.runs.folder import RunFolder

if TYPE_CHECKING:
    from fedpriv.attacks.experiment import Experiment


#: Options of a run that do not apply to this command.
OF_RUNS = ("keep_snapshots", "snapshot_every", "keep_updates", "update_every")


def changed(options: AttackConfig, changes: Mapping[str, Any]) -> AttackConfig:
    """The run's options with the command's; `OptionError` for a value out of range."""
    try:
        return AttackConfig.model_validate(options.model_dump() | dict(changes))
    except ValidationError as error:
        raise first_option_error(error, ("attack",), AttackConfig) from None


def attack_run(run: str, attack: str, changes: Mapping[str, Any], places: Sequence[str] = ()) -> int:
    """Attacks the model of a finished run. places: overrides that say where things are on this machine. Raises
    `OptionError`, `RunFolderError`, and `RunFailed` where a control fails.
    """
    from fedpriv.runs.other_options import said, with_operations

    known = [name for name in AttackConfig.model_fields if name not in OF_RUNS]
    if wrong := next((name for name in changes if name not in known), None):
        words = f"there is no such option here; allowed: run, attack, {', '.join(known)}"
        raise OptionError(wrong, str(changes[wrong]).lower(), words)
    config = with_operations(read_config(run, said(places)), places)
    refuse_answers(config, run)
    config = config.model_copy(update={"attack": changed(config.attack, changes)})

    from fedpriv.attacks.experiment import Experiment, attack_names  # torch and flwr: seconds
    from fedpriv.common.errors import RunFolderError

    names = attack_names(attack)
    folder = RunFolder(Path(run))
    with locked(folder.path), task("attack"):
        doing("choosing the examples")
        with fitting(folder.path):
            experiment = Experiment(folder, config, _progress)
        _print_setting(experiment)
        records = {}
        for name in names:
            try:
                experiment.check(name)
            except RunFolderError as error:
                if attack != "all":
                    raise
                say(f"{name}: left out. {error}", flush=True)
                continue
            doing(f"{name} and its two controls")
            records[name] = _attack(experiment, name)
            _keep(folder, records[name])
    _print(list(records.values()))
    _report(folder)
    say(f"written into {folder.path / 'summary.json'} and private/report.html")
    failed = [f"{name} is not shown: {kept['reason']}" for name, kept in records.items() if not kept["shown"]]
    if failed:
        raise RunFailed(". ".join(failed))
    return DONE


def _attack(experiment: Experiment, name: str) -> dict[str, Any]:
    from fedpriv.attacks.attack_records import guarantee, record

    summary = experiment.folder.read_summary() or {}
    return record(experiment, experiment.run(name), guarantee(summary.get("privacy") or {}, name))


def _keep(folder: RunFolder, kept: Mapping[str, Any]) -> None:
    from fedpriv.attacks.attack_records import short

    place = private_folder(folder.path) / "attacks"
    place.mkdir(mode=0o700, exist_ok=True)
    write_atomic(place / f"{kept['attack']}.json", json.dumps(kept, indent=1, allow_nan=False) + "\n", mode=0o600)
    summary = folder.read_summary() or {}
    summary["attacks"] = summary.get("attacks", {}) | {kept["attack"]: short(kept)}
    folder.write_summary(summary)


def _report(folder: RunFolder) -> None:
    from fedpriv.report.attacks import draw_attacks, draw_inversion
    from fedpriv.report.page import write_report

    draw_attacks(private_folder(folder.path))
    draw_inversion(private_folder(folder.path))
    write_report(folder.path)


def _progress(what: str, ready: int, of: int) -> None:
    doing(f"{what}: models trained", ready, of)


def _print_setting(experiment: Experiment) -> None:
    targets, config = experiment.targets, experiment.config
    say(
        f"{config.method} ({config.privacy.variant}) on {config.dataset.name}, trained on "
        f"{experiment.trained_on} examples; of {len(targets.pairs)} pairs of a member and a non-member "
        f"{len(targets.evaluated)} are evaluated and the attacker knows {len(targets.known)}; the members were chosen "
        f"{'by coins' if targets.by_coin else 'not by coins'}; {experiment.inputs}",
        flush=True,
    )


def _print(records: Sequence[Mapping[str, Any]]) -> None:
    from fedpriv.attacks.attack_records import HEADER, row
    from fedpriv.report.attacks import control_in_words
    from fedpriv.report.tables import plain_table

    say("\n".join(plain_table(HEADER, [row(kept) for kept in records])))
    for kept in records:
        say(f"{kept['attack']}: {kept.get('verdict') or 'not shown'}")
        for control in kept["controls"].values():
            say(f"  {control_in_words(control)}")
