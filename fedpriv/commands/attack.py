"""`fedpriv attack`: who was in the training data of a finished run? Membership inference, with controls.

    fedpriv attack run=RUN_FOLDER [attack=all|NAME,NAME...] [members=2000] [known_share=0.25] [shadows=16]
                   [control_models=10] [control_examples=60] [control_epochs=300] [workers=null] [seed=0]
                   [rmia_gamma=1.0] [references=256] [inverted_examples=8] [inverted_clients=8]
                   [inverted_steps=300] [inverted_smoothness=0.01] [dataset.root=FOLDER ...]

attack:
    confidence_series  the true class's confidence in the global models of several rounds; the run must have kept them
                       (attack.keep_snapshots=true)
    ml_leaks           the three largest posteriors of the final model; learns from one shadow model
    white_box          loss, gradient norms, activations, label; knows the membership of a participant's own examples
    lira               likelihood ratio of shadow models that were trained with the example and without it
    rmia               as lira, in comparison with other examples (Zarifzadeh, Liu and Shokri 2024)
    update_product     inner product of an example's gradient with its client's updates; the run must have kept them
                       (attack.keep_updates=true), as for the three below
    update_cosine      the cosine of the two
    update_likelihood  likelihood ratio of the updates over the rounds, with the example and without it
    inversion          looks for the examples in a client's first update (clients with few examples)
    all                those that the run allows (the default)
members: evaluated members at most, and as many non-members. known_share: share of the clients that the attacker
controls. shadows: shadow models of lira and rmia. workers: processes that train them (null: half of the cores). seed:
draws examples and shadow models. control_models, control_examples, control_epochs: the positive control. The last
six are of single attacks (conf/config.yaml). The run's own attack.* are the
defaults. dataset.root and the like say where things are on this machine.

Every attack runs three times: on the run; on models that give much away (they overfit without
noise, or a few examples make their updates), where it must succeed; on a model that
was trained with other members, where it must be at chance. Where one of these two controls fails, the result is not
shown and the exit code is 1. Shadow models train on members and non-members alike. The verdict on the verified epsilon
is "contradicts", "consistent" or "cannot tell". Only a run with dataset.train_examples=N, at most half of the training
examples, can be contradicted: there coins chose the members. Results go into attacks/, summary.json and report.html of
the run; shadow models stay in attacks/shadows/ for the next attack.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from fedpriv.attacks.run import OF_RUNS, attack_run
from fedpriv.common.command_line import command, path_of
from fedpriv.common.errors import OptionError
from fedpriv.common.places import use_own_methods
from fedpriv.config.options import AttackConfig
from fedpriv.config.owner import PLACES


def parse_options(arguments: Sequence[str]) -> tuple[str, str, dict[str, Any], list[str]]:
    """(run folder, attack, changed options, places of this machine); `OptionError` for a value that is not allowed."""
    run, attack, changes, places = "", "all", dict[str, Any](), list[str]()
    known = [name for name in AttackConfig.model_fields if name not in OF_RUNS]
    for argument in arguments:
        key, _, value = argument.partition("=")
        name = key.removeprefix("attack.")
        if key == "run":
            run = path_of(value)
        elif key == "attack":
            attack = value
        elif name in known:
            changes[name] = _number(value)
        elif key in PLACES:
            places.append(argument)
        else:
            raise OptionError(key, value, f"there is no such option here; allowed: run, attack, {', '.join(known)}")
    if not run:
        raise OptionError("run", run, "must be the folder of a finished run: fedpriv attack run=RUN_FOLDER")
    return run, attack, changes, places


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "null" else text


@command(needs_arguments=True)
def main(arguments: Sequence[str]) -> int:
    use_own_methods()
    return attack_run(*parse_options(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
