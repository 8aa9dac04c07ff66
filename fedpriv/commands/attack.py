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
controls. shadows: shadow models of lira and rmia, of which half hold an example (of an odd number one more or less).
workers: processes that train them (null: half of the cores). seed: draws examples and shadow models. control_models,
control_examples, control_epochs: the positive control. The last six are of single attacks (conf/config.yaml). The run's
own attack.* are the defaults. dataset.root and the like say where things are on this machine.

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
from pathlib import Path

from fedpriv.attacks.run import attack_run
from fedpriv.common.command_line import command
from fedpriv.common.places import use_own_methods
from fedpriv.config.compose import parse
from fedpriv.config.owner import PLACES


@command
def main(*overrides: str, run: Path, attack: str = "all") -> int:
    use_own_methods()
    given = {one.key_or_group.removeprefix("attack."): one for one in parse(overrides)}
    changes = {name: one.value() for name, one in given.items() if name not in PLACES}
    return attack_run(
        str(run), attack, changes, [one.input_line or "" for name, one in given.items() if name in PLACES]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
