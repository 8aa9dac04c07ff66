"""Numbers and threat models in words; the only place that decides how an epsilon is displayed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from fedpriv.mechanisms.tasks import TASKS
from fedpriv.privacy.events import OTHER_ADJACENCY
from fedpriv.report.run_summary import Privacy, leading_metric, mapping_of, number, pick, worst_site  # noqa: F401

# Studies and commands import the readers of a summary from here.

#: The one definition of each term; docs/epsilons.md shows it.
UNITS = {
    "client": "all data of one client",
    "example": "one training example",
    "person": "all training rows of one person at one client",
}
ADJACENCIES = {
    "replace-one": "replaced by any other of the same public size",
    "zero-out": "replaced by a contribution of zero",
    "add-or-remove-one": "in the data or not",
}
OBSERVERS = {
    "server": "the server, which sees the messages of each client one by one",
    "server+members": "the server together with other clients, whose secrets it knows",
    "secure-sum": "whoever sees only the sum of a round's messages and knows who took part",
    "trusted-server": "outsiders, who see the global models; a trusted server adds the noise",
    "public": "the public, which sees the global models and all broadcasts",
}
SCOPES = {
    "run": "the whole run",
    "round": "one round",
    "coordinate": "one coordinate of one message",
}
THREAT_KEYS = ("unit", "adjacency", "observer", "delta")
#: Leading metrics of all tasks.
LEADING = tuple(dict.fromkeys(task.leading for task in TASKS.values()))


def leading_of_round(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """(name, value) of the leading metric in a line of metrics.jsonl: accuracy, where a class is rare auc, or another
    task's own.
    """
    metrics = mapping_of(row.get("metrics"))
    if (named := row.get("leading")) in LEADING:
        return str(named), number(metrics.get(named))
    if (accuracy := row.get("accuracy")) is not None:
        return "accuracy", number(accuracy)
    name = next((name for name in LEADING if name in metrics), "accuracy")
    return name, number(metrics.get(name))


# --- numbers ---------------------------------------------------------------------------------------------


def many(count: int, noun: str) -> str:
    """ "1 run", "2,000 runs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def often(least: int, most: int) -> str:
    """ "once", "3 times", "1 to 4 times"."""
    if least == most:
        return "once" if most == 1 else f"{most:,} times"
    return f"{least:,} to {most:,} times"


def figure(value: float | None, absent: str = "–") -> str:
    """Three significant digits, ∞ for infinite."""
    if value is None:
        return absent
    if math.isinf(value):
        return "∞"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def two_digits(value: float) -> str:
    """Two significant digits, a last 0 among them."""
    return f"{value:#.2g}".rstrip(".")


def percent(value: float | None, absent: str = "not evaluated") -> str:
    return absent if value is None else f"{100 * value:.1f} %"


def in_metric(name: str, value: float | None, absent: str = "–") -> str:
    """A metric's value as people read it: accuracies in percent."""
    return absent if value is None else percent(value) if name == "accuracy" else f"{value:.4g}"


def seconds(value: float | None, absent: str = "–") -> str:
    if value is None:
        return absent
    if value < 1:
        return f"{1000 * value:.0f} ms"
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(value: float | None, absent: str = "–") -> str:
    """Bytes in powers of 1024."""
    if value is None:
        return absent
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def plus_minus(mean: float, half_width: float | None, least: int = 1) -> str:
    """ "98.92 ± 0.031": two digits of the half width, and the mean with as many decimals, at least ``least``."""
    if half_width is None or not math.isfinite(half_width):
        return f"{mean:.{least}f}"
    decimals = 1 - math.floor(math.log10(half_width)) if half_width > 0 else least
    decimals = max(least if half_width < 10 else 0, min(decimals, 4))
    return f"{mean:.{max(least, decimals)}f} ± {half_width:.{decimals}f}"


# --- threat models ---------------------------------------------------------------------------------------


def _words(privacy: Privacy) -> list[str]:
    *words, delta = privacy.threat
    return ["not stated" if word is None else word for word in (*words, None if delta is None else f"{delta:g}")]


def at_clients(unit: str, across: float | None) -> str:
    """The words of `UNITS` for data at up to so many clients (`privacy.across_sites`; None: one)."""
    return unit if across is None else f"{unit.removesuffix(' at one client')} at up to {across:g} clients"


def unit_words(privacy: Privacy) -> str:
    """Whose data are protected; of persons by the word that the table's schema has for one."""
    words = at_clients(UNITS.get(str(privacy.unit), f"the unit “{privacy.unit}”"), privacy.across_sites)
    named = (privacy.person or "").removesuffix("id").rstrip("_- ")  # a column's name
    return words.replace("one person", f"one {named or 'person'}")


def threat_short(privacy: Privacy) -> str:
    unit, adjacency, observer, delta = _words(privacy)
    kind, at, clients = unit.partition(" at up to ")
    person = f" ({privacy.person})" if privacy.person else ""
    return f"unit {kind}{person}{at}{clients}, {adjacency}, seen by {observer}, delta {delta}"


def threat_sentence(record: Privacy | Mapping[str, Any]) -> str:
    """The question that these epsilons answer, in words."""
    privacy = Privacy.model_validate(record)
    unit, adjacency, observer, delta = _words(privacy)
    return (
        f"How well can an observer tell whether {unit_words(privacy)} {'were' if unit.startswith('person') else 'was'} "
        f"{ADJACENCIES.get(adjacency, f'changed (“{adjacency}”)')}? "
        f"The observer: {OBSERVERS.get(observer, f'“{observer}”')}. "
        f"The smaller the epsilon, the less it can tell; delta = {delta} is the additive slack."
    )


def both_adjacencies(adjacency: str, epsilons: Iterable[float], delta: float) -> str:
    """Of a sum of clients: what epsilons of Gaussian noise without sampling are where neighbours are the other kind, by
    the closed form (Balle and Wang 2018, Theorem 8) at half of the distance or twice of it.
    """
    from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu  # scipy

    far, factor = ("half", 0.5) if adjacency == "replace-one" else ("twice", 2.0)
    others = ((one, gaussian_epsilon(factor * gaussian_mu(one, delta), delta)) for one in epsilons)
    named = "; ".join(f"{figure(one)} is {figure(other)}" for one, other in others)
    words = f"Under {OTHER_ADJACENCY[adjacency]} a client moves the sum {far} as far: of Gaussian noise without "
    return f"{words}sampling, epsilon {named}."


def threat_table(privacy: Privacy) -> list[tuple[str, str, str]]:
    """(term, the word used, what it means) for unit, adjacency, observer and delta, as docs/epsilons.md has them."""
    unit, adjacency, observer, delta = _words(privacy)
    slack = "the additive slack in (epsilon, delta)-differential privacy; well below one over the number of units"
    return [
        ("Privacy unit", unit, unit_words(privacy)),
        ("Adjacency", adjacency, f"the unit was {ADJACENCIES.get(adjacency, 'changed')}"),
        ("Observer", observer, OBSERVERS.get(observer, "")),
        ("Delta", delta, slack),
    ]


# --- what an epsilon is worth ----------------------------------------------------------------------------

#: Up to each epsilon: what it promises. The project's only scale, which docs/epsilons.md shows.
WORTH = ((1.0, "a strong promise"), (4.0, "a real promise"), (10.0, "a modest promise"))
NEXT_TO_NOTHING = 100.0
#: Epsilons at which a page says what they promise, for readers who see one for the first time.
SCALE = (0.1, 1.0, 2.0, 4.0, 8.0, 20.0, NEXT_TO_NOTHING)


def promise(epsilon: float | None) -> str:
    """What a bound of epsilon is, in two or three words; empty where there is none."""
    if epsilon is None:
        return ""
    if math.isinf(epsilon):
        return "no promise"
    if epsilon >= NEXT_TO_NOTHING:
        return "next to no promise"
    return next((words for most, words in WORTH if epsilon <= most), "a weak promise")


def still_wrong(epsilon: float, delta: float = 0.0) -> str:
    """The least error of an observer of two equally likely worlds: (1 - delta) / (1 + e^epsilon)."""
    return f"{100 * (1 - delta) / (1 + math.exp(epsilon)):.2g} %"


def promises(epsilon: float, delta: float = 0.0) -> str:
    """The end of a sentence that begins with a finite epsilon."""
    if epsilon >= NEXT_TO_NOTHING:
        return "promises next to nothing."
    if epsilon > WORTH[-1][0]:
        return f"is {promise(epsilon)}: in the worst case an observer is all but certain."
    observer = "an observer who at first held both possibilities equally likely is still wrong in at least"
    return f"is {promise(epsilon)}: after the run, {observer} {still_wrong(epsilon, delta)} of cases."


def worth(privacy: Privacy) -> str:
    """What the verified epsilon of a run is worth, in one sentence; empty where there is none."""
    epsilon = privacy.verified_epsilon
    if epsilon is None:
        return ""
    if math.isinf(epsilon):
        return "No finite epsilon holds: nothing is promised."
    return f"An epsilon of {figure(epsilon)} {promises(epsilon, privacy.delta or 0.0)}"


def scale() -> list[tuple[str, str, str]]:
    """(epsilon, what it is, least error of an observer's guess) of a few epsilons, at delta 0."""
    rows = [(figure(epsilon), promise(epsilon), still_wrong(epsilon)) for epsilon in SCALE]
    return [*rows[:-1], (f"{rows[-1][0]} and more", rows[-1][1], "never")]
