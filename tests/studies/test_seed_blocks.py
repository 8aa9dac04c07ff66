"""Blocks of seeds whose differences do not agree."""

from __future__ import annotations

import pytest

from fedpriv.studies.experiments import Planned
from fedpriv.studies.jobs import Job
from fedpriv.studies.reproduction import Measured
from fedpriv.studies.results import Machine, RunRecord
from fedpriv.studies.seed_blocks import block_words
from fedpriv.studies.spec import load
from fedpriv.studies.verdicts import Values, better

#: By hand: means 1 and 5, 1 within each block; F = 24 on (1, 4) degrees of freedom, t = 4.899, p = 0.008.
APART = {0: 0.0, 1: 1.0, 2: 2.0, 10: 4.0, 11: 5.0, 12: 6.0}
BLOCKS = {seed: "early" if seed < 10 else "late" for seed in APART}


def test_blocks_that_differ_are_told() -> None:
    """Half widths by hand: t(2, 0.975) = 4.302653, over the root of 3."""
    words = block_words(APART, BLOCKS)
    assert words == ", blocks of seeds differ (p = 0.008): 1.0 ± 2.5 on seeds 0 to 2, 5.0 ± 2.5 on seeds 10 to 12"


@pytest.mark.parametrize(
    ("differences", "blocks"),
    [
        (APART, dict.fromkeys(APART, "one")),
        (APART, {}),
        (APART, {**BLOCKS, 11: "later", 12: "latest"}),  # one seed is no block
        ({0: 0.0, 1: 1.0, 10: 1.2, 11: 2.3}, BLOCKS),  # t = 1.68, p = 0.23
        ({0: 1.0, 1: 1.0, 10: 2.0, 11: 2.0}, BLOCKS),  # no spread to compare with
    ],
)
def test_others_are_not(differences: dict[int, float], blocks: dict[int, str]) -> None:
    assert block_words(differences, blocks) == ""


def test_a_verdict_names_the_blocks_of_its_pair() -> None:
    one = Values("A", APART, unit="%", blocks=BLOCKS)
    other = Values("B", dict.fromkeys(APART, 0.0), unit="%", blocks=dict.fromkeys(APART, "once"))
    assert better([(one, other)]).words.endswith(block_words(APART, BLOCKS))


def test_a_block_is_a_machine_and_a_date() -> None:
    def run(seed: int, processor: str, date: str) -> RunRecord:
        machine = Machine(processor=processor, cores=2, memory_gib=1.0, system="", python="")
        summary = {"accuracy": {"final": 0.5}}
        return RunRecord(
            name=str(seed), kind="train", options=(), seed=seed, command="", summary=summary, machine=machine, date=date
        )

    made = [run(0, "one", "Monday"), run(1, "one", "Monday"), run(2, "one", "Tuesday"), run(3, "two", "Monday")]
    jobs = {Job("train", (), record.seed): record for record in made}
    place = ("noise", "fedldp", "s01")
    found = Measured(load("fedcad"), Planned({place: list(jobs)}, {}), jobs, "literal").values(place).blocks
    assert found[0] == found[1] and len({found[seed] for seed in range(4)}) == 3
