"""A job that prices the choice of options: what a run's events cost many times over, or the best of a random number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpriv.config.schema import Config
    from fedpriv.privacy.events import Event
    from fedpriv.privacy.private_selection import Trials

#: Laws of the number of trials; which of them is cheapest follows from the options alone.
LAWS = ("poisson", "geometric", "logarithmic")
#: How close the epsilon of one run is brought to what the choice leaves for it.
_CLOSE = 1e-3


def price(options: Sequence[str], extra: Iterable[str]) -> dict[str, object]:
    """Figures of a job of this kind. trials alone: what that many trials and the last run cost composed, and what the
    best of a random number with that mean. With a law: which epsilon one of its trials may have for the choice to meet
    privacy.target_epsilon. end=OPTION=VALUE: the ends of the ranges that trials draw from. An option may change what a
    run of the same epsilon releases, and so what the choice costs: the dearest end counts, and what lies between two
    ends is taken to cost no more than one of them.
    """
    from fedpriv.config.compose import compose
    from fedpriv.privacy.private_selection import composed_epsilon, selection_epsilon, with_mean
    from fedpriv.runs.preparation import resolve

    given = [option.split("=", 1) for option in extra]
    asked, ends = dict(given), [value for name, value in given if name == "end"]
    config, trials = compose(list(options)), int(asked["trials"])
    delta, target = config.privacy.delta, config.privacy.target_epsilon
    assert target is not None, "a job of a target"
    if "law" not in asked:
        events = run_events(resolve(config, None)[0])
        priced = {law: max(selection_epsilon(one, delta, with_mean(law, trials)) for one in events) for law in LAWS}
        law = min(priced, key=lambda name: priced[name])
        composed = max(composed_epsilon(one, delta, trials + 1) for one in events)
        return {"summary": {"law": law}, "composed": composed, "random": priced[law]}
    law_of_trials, kinds = with_mean(asked["law"], trials), [config]
    plain = run_events(resolve(config, None)[0])
    for end in ends:
        other = compose([*options, end])
        if run_events(resolve(other, None)[0]) != plain:
            kinds.append(other)

    def chosen(one: float) -> float:
        return max(_of_choice(kind, one, law_of_trials) for kind in kinds)

    low, high, found = 0.0, target, 0.0
    while high - low > _CLOSE * target:
        middle = (low + high) / 2
        if (cost := chosen(middle)) <= target:
            low, found = middle, cost
        else:
            high = middle
    one = float(f"{low:.4g}")
    while one > 0 and (found := chosen(one)) > target:  # rounding may have gone up
        one = float(f"{one * (1 - _CLOSE):.4g}")
    return {"summary": {"law": asked["law"]}, "one": one, "chosen": found if one > 0 else None}


def _of_choice(config: Config, epsilon: float, trials: Trials) -> float:
    from fedpriv.privacy.private_selection import selection_epsilon
    from fedpriv.runs.preparation import resolve

    with_epsilon = config.model_copy(update={"privacy": config.privacy.model_copy(update={"target_epsilon": epsilon})})
    resolved = resolve(with_epsilon, None)[0]
    return max(selection_epsilon(events, config.privacy.delta, trials) for events in run_events(resolved))


def run_events(config: Config) -> list[list[Event]]:
    """All that a client releases in a run against `privacy.target_observer`, for each kind of client."""
    from fedpriv.client.build import make_client
    from fedpriv.runs.planning import most_participations, planned_histories, schedule, target_threat

    client = make_client(config)
    threat = target_threat(config, client)
    if threat != client.threat:
        return [client.planned_events(most_participations(config), threat)]
    return list(planned_histories(config, schedule(config))[0].values())
