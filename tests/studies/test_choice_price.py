"""What is left for one trial where its options decide what it releases."""

from __future__ import annotations

import pytest

from fedpriv.config.compose import compose
from fedpriv.privacy.private_selection import selection_epsilon, with_mean
from fedpriv.runs.preparation import resolve
from fedpriv.studies.choice_price import price, run_events

RUN = ("strategy=dpsgd", "num_clients=4", "clients_per_round=2", "num_rounds=1", "dataset.train_examples=200")
ASKED = ("trials=8", "law=geometric")


def cost(one: float, *more: str) -> float:
    config, *_ = resolve(compose([*RUN, f"privacy.target_epsilon={one}", *more]), None)
    return max(
        selection_epsilon(events, config.privacy.delta, with_mean("geometric", 8)) for events in run_events(config)
    )


def test_the_dearest_end_of_a_range_is_what_trials_are_priced_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller batches have the same epsilon with another Renyi curve: the choice among them costs more."""
    monkeypatch.setattr("fedpriv.studies.choice_price._CLOSE", 0.3)  # few steps: each chooses noise anew
    end = "local.batch_size=2"
    found = price((*RUN, "privacy.target_epsilon=3"), [*ASKED, f"end={end}"])
    one, chosen = float(str(found["one"])), found["chosen"]
    assert cost(one) < 0.95 * cost(one, end)
    assert chosen == pytest.approx(cost(one, end))
