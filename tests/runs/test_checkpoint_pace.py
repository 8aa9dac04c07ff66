"""`checkpoint.every=auto`: a tenth of a run's time, whatever a checkpoint costs; no round's result depends on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Run, result_of

from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.runs.checkpoint_pace import CheckpointPace
from fedpriv.runs.session import Session


class Clock:
    """Seconds that pass when somebody says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def played(config: Config, round_seconds: Callable[[int], float], price: Callable[[int], float]) -> dict[int, float]:
    """The rounds with a checkpoint -> what it took. price: of one after a round."""
    clock = Clock()
    pace, written = CheckpointPace(config, clock), {}
    for number in range(1, config.num_rounds + 1):
        clock.now += round_seconds(number)
        if pace.due(number):
            with pace.writing(number):
                clock.now += price(number)
            written[number] = price(number)
    return written


@pytest.mark.parametrize("drawn", ["among all", "in turn"])
@pytest.mark.parametrize("seed", range(20))
def test_checkpoints_take_a_tenth_of_a_run_whose_clients_grow(seed: int, drawn: str) -> None:
    """With the one at the end, which is never left out, and the first, which tells the price: where a run has a third,
    all together took a tenth. A run long enough has more.
    """
    rng = np.random.default_rng(seed)
    clients, rounds = int(rng.integers(1, 30_000)), int(rng.integers(100, 3000))
    cohort = min(int(rng.integers(1, 300)), clients)
    sizes = (f"num_clients={clients}", f"clients_per_round={cohort}", f"num_rounds={rounds}")
    config = compose(["partition=resampled", "partition.examples_per_client=20", *sizes])
    each, fixed, seconds = 10 ** rng.uniform(-5, -3), 10 ** rng.uniform(-3, 0), 10 ** rng.uniform(-1, 1)

    def price(number: int) -> float:
        expected = clients * (1 - (1 - cohort / clients) ** number)
        return float(fixed + each * (expected if drawn == "among all" else min(clients, cohort * number)))

    written = played(config, lambda number: seconds, price)
    assert max(written) == rounds
    if len(written) > 2:
        assert sum(written.values()) <= 0.1 * (rounds * seconds + sum(written.values())) * (1 + 1e-9)
    assert len(written) >= min(rounds, 0.1 * rounds * seconds / price(rounds) - 12)


def test_the_rounds_of_a_run_whose_checkpoints_cost_a_second_each() -> None:
    """The first after a second. From then on (checkpoints so far + this one + the last) <= (time + both) / 10."""
    config = compose(["num_clients=5", "clients_per_round=5", "num_rounds=60"])
    # After the first the clock is number + checkpoints; n-th: n + 1 <= (number + (n - 1) + 2) / 10, number >= 9 n + 9
    assert list(played(config, lambda number: 1.0, lambda number: 1.0)) == [1, 27, 36, 45, 54, 60]


@pytest.mark.parametrize(("every", "expected"), [("0", []), ("1", [1, 2, 3, 4, 5]), ("2", [2, 4, 5]), ("9", [5])])
def test_a_number_of_rounds_is_kept_to_whatever_it_costs(every: str, expected: list[int]) -> None:
    config = compose(["num_rounds=5", f"checkpoint.every={every}"])
    assert list(played(config, lambda number: 0.001, lambda number: 1e6)) == expected


def test_it_is_the_default_and_no_result_is_another_for_it() -> None:
    default = compose([])
    assert (default.checkpoint.every, default.checkpoint.keep) == ("auto", 1)
    assert default.digest() == compose(["checkpoint.every=5", "checkpoint.keep=2"]).digest()


@pytest.mark.parametrize("seed", range(4))
def test_whichever_rounds_it_picks_a_resumed_run_is_the_same(
    seed: int, resumed: Callable[..., Path], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    options = (*SMALL, "clients_per_round=2", "num_rounds=6", "strategy.client.obsolete_factor=0.4", "evaluate.every=2")
    whole, picked = run(*options), list[int]()

    def due(self: CheckpointPace, number: int) -> bool:
        if number == self.last or rng.random() < 0.4:
            picked.append(number)
        return number in picked[-1:]

    monkeypatch.setattr(CheckpointPace, "due", due)
    assert result_of(resumed(*options, after=int(rng.integers(1, 6)))) == result_of(whole)
    assert picked[-1] == 6


def test_a_run_asks_it_and_tells_it_what_a_checkpoint_took(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of no length and checkpoints of a second: after the first that is due, the last alone."""
    clock, save = Clock(), Session._save_checkpoint
    written = list[int]()

    def saved(self: Session, current: object) -> None:
        clock.now += 1
        written.append(current.number)  # type: ignore[attr-defined]
        save(self, current)  # type: ignore[arg-type]

    def pace(config: Config) -> CheckpointPace:
        made = CheckpointPace(config, clock)
        clock.now += 1
        return made

    monkeypatch.setattr(Session, "_save_checkpoint", saved)
    monkeypatch.setattr("fedpriv.runs.session.CheckpointPace", pace)
    folder = run(*SMALL, "num_rounds=5")
    assert written == [1, 5]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["round-000005"]
