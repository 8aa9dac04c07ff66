"""Answers of a client that no pair of plain updates has: further metrics, forms of arrays, values that are no numbers.

Whether an app's model has such arrays, and its training such answers, is not known from its mods: what is found here is
a doubt of them, with the case that shows it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_messages import Trained
from fedpriv.checking.flower_updates import LARGE, SMALL, plain
from fedpriv.checking.subject import Numbers, Subject

#: One play of a target on an answer: all numbers that leave in its first round, by name.
Play = Callable[[Trained, int], Mapping[str, Numbers]]
SEED = 12345
#: Processor time for one answer that is no usual one.
SECONDS = 2.0
#: Seeds under which an update of zero has to fail to be called a fault.
FAILS = tuple(range(11, 19))
Update = dict[str, NDArray[Any]]


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError after so many seconds of this process, and again after as many where foreign code has caught
    it, or Python has dropped it (in a destructor). Only where it may set an alarm.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = False

    def end(*_: Any) -> None:
        if not over:
            raise TimeoutError(f"no answer in {seconds:g} seconds of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def plays(subject: Subject) -> Play:
    return lambda trained, seed: subject.play(trained, seed)[0].numbers


def metrics_pass(play: Play) -> Iterator[Finding]:
    """A metric and a number of examples of the client's own, in the reply as they were."""
    update = plain(8, 1.0)
    low, high = (Trained(update, {"loss": value}) for value in (0.25, 0.75))
    more = replace(low, examples=31)
    try:
        one, other, counted = (play(trained, SEED) for trained in (low, high, more))
    except Exception:  # of foreign code: the layers say so
        return
    if _moved(one, other):
        yield _doubt(
            "metrics-bare",
            f"A metric of the app leaves as it is ({', '.join(_moved(one, other))}, 0.25 or 0.75 by the data): clip "
            f"and noise are of arrays alone.",
            "Report no metric, or one with noise of its own that is accounted.",
        )
    if _moved(one, counted):
        yield Finding(
            "recognised",
            "count-bare",
            "note",
            f"The number of examples leaves as it is ({', '.join(_moved(one, counted))}): public by assumption.",
            "Report a fixed number where it is not public.",
        )


def extremes(play: Play) -> Iterator[Finding]:
    """Forms and values of updates at which a clip or a noise may stop working, where plain updates leave with noise."""
    if _difference(play, plain(8, 1.0), plain(8, -1.0)):
        return
    for name, title, left, right, remedy in CASES:
        found = _difference(play, left(), right())
        if found and name == "update-of-zero" and _always_fails(play, left(), right()):
            text = f"{title}: {found} It did so under {len(FAILS)} of {len(FAILS)} seeds; epsilon is infinite."
            yield Finding("recognised", name, "fault", text, remedy)
        elif found:
            yield _doubt(name, f"{title}: {found}", remedy)


def _always_fails(play: Play, left: Update, right: Update) -> bool:
    """Whether the first update, an honest one, never has an answer and the second always has one."""

    def answers(update: Update, seed: int) -> bool:
        try:
            with np.errstate(all="ignore"), at_most(SECONDS):
                return "form.error" not in play(Trained(update), seed)
        except Exception:  # of foreign code
            return False

    return not any(answers(left, seed) for seed in FAILS) and all(answers(right, seed) for seed in FAILS)


def _difference(play: Play, left: Update, right: Update) -> str | None:
    """What tells two neighbouring answers apart with certainty, in words; None: nothing that was seen."""
    results: list[Mapping[str, Numbers] | str] = []
    for update in (left, right):
        try:
            with np.errstate(all="ignore"), at_most(SECONDS):
                results.append(play(Trained(update), SEED))
        except Exception as raised:  # of foreign code
            results.append(f"{type(raised).__name__}: {raised}")
    one, other = results
    if isinstance(one, str) or isinstance(other, str):
        if isinstance(one, str) and isinstance(other, str):
            return None  # fails for both: nothing leaves of either
        error = one if isinstance(one, str) else other
        return f"the call fails ({error}), and the answer that fails to come tells of the data."
    failed = "form.error" in one, "form.error" in other
    if failed[0] != failed[1]:
        return "the reply is an error, which tells of the data."
    if set(one) != set(other):
        return "other records leave."
    for name in one:
        told = _told(play, name, left, right, one[name], other[name])
        if told:
            return told
    return None


def _told(play: Play, name: str, left: Update, right: Update, one: Numbers, other: Numbers) -> str | None:
    if np.isfinite(one).all() != np.isfinite(other).all():
        return f"{name} leaves as no number."
    if name.startswith("form."):
        return None if np.array_equal(one, other) else f"{name} differs by the data."
    moves = float(np.max(np.abs(one - other), initial=0.0))
    if moves == 0:
        return None
    again = np.stack([one, *(play(Trained(left), SEED + number)[name] for number in range(1, 9))])
    still = np.all(again == again[0], axis=0) & (one != other)
    if still.any():
        size = float(np.max(np.abs(one - other)[still]))
        return f"{name} moves by {size:.4g} between two data sets and has no noise."
    noise = float(np.median(np.std(again, axis=0)))
    return f"{name} moves by {moves:.4g}, its noise is {noise:.3g}." if moves > 1000 * noise else None


def _moved(one: Mapping[str, Numbers], other: Mapping[str, Numbers]) -> list[str]:
    """Numbers that differ between two plays of one seed and one update."""
    return [
        name
        for name in one
        if not name.startswith("form.") and name in other and not np.array_equal(one[name], other[name])
    ]


def _doubt(name: str, text: str, remedy: str) -> Finding:
    return Finding("recognised", name, "doubt", text, remedy)


def _with(name: str, value: Any, length: float = SMALL) -> Callable[[], Update]:
    return lambda: {**plain(8, length), name: np.asarray(value)}


_WHOLE = np.array([3, -4], dtype=np.int64)

#: name, case, two neighbouring updates, remedy.
CASES: tuple[tuple[str, str, Callable[[], Update], Callable[[], Update], str], ...] = (
    (
        "array-without-axes",
        "A model with an array without axes (a single number, such as a temperature)",
        _with("scale", np.float32(LARGE)),
        _with("scale", np.float32(-LARGE)),
        "Give such parameters one axis, or keep them at the client.",
    ),
    (
        "whole-numbers",
        "A model with whole numbers (such as a counter of batches)",
        _with("counter", _WHOLE),
        _with("counter", 0 * _WHOLE),
        "Keep such arrays at the client, or send a public value.",
    ),
    (
        "whole-numbers-clipped",
        "A model with whole numbers, in an update that is clipped",
        _with("counter", _WHOLE, LARGE),
        _with("counter", _WHOLE),
        "Keep such arrays at the client.",
    ),
    (
        "update-of-zero",
        "An update of norm 0 (a client that learned nothing)",
        lambda: plain(8, 0.0),
        lambda: plain(8, SMALL),
        "Leave an update of norm 0 as it is, and add its noise.",
    ),
    (
        "update-of-no-number",
        "An update with NaN",
        lambda: plain(8, float("nan")),
        lambda: plain(8, SMALL),
        "Release the zero update with its noise where training gave no number.",
    ),
    (
        "update-of-infinity",
        "An update with infinity",
        lambda: plain(8, float("inf")),
        lambda: plain(8, SMALL),
        "Release the zero update with its noise where training gave no number.",
    ),
)
