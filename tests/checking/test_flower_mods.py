"""Client mods as targets: what a play sees, what is recognised, and each claim about Flower's code played."""

from __future__ import annotations

import functools
import math
import signal
from typing import Any

import flwr.client.mod as older
import flwr.clientapp.mod as newer
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp.mod import localdp_mod
from flwr.supercore import differential_privacy

from fedpriv.checking import flower_messages
from fedpriv.checking.flower_messages import LARGE, Trained, plain
from fedpriv.checking.flower_mods import ModSubject, known_mods, local_std, recognises
from fedpriv.checking.reading import Numbers
from fedpriv.checking.subject import Question
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

SMALL_QUESTION = Question(dims=(16,))
UP, DOWN = Trained(plain(16, LARGE)), Trained(plain(16, -LARGE))


def subject(*mods: Any) -> ModSubject:
    found = recognises(list(mods), SMALL_QUESTION)
    assert isinstance(found, ModSubject)
    return found


def arrays(found: ModSubject, trained: Trained, seed: int) -> Numbers:
    numbers = found.play(trained, seed)[0].numbers
    return np.concatenate([numbers[name] for name in sorted(numbers) if name.startswith("arrays.")])


def names(found: ModSubject) -> set[str]:
    return {one.name for one in found.notes}


@pytest.mark.parametrize("api", [newer, older])
def test_the_event_of_local_noise_is_what_a_play_shows(api: Any) -> None:
    found = subject(api.LocalDpMod(1.5, 3.0, 0.9, 1e-5))
    (known,) = found.recognised
    moved = float(np.linalg.norm(arrays(found, UP, 1) - arrays(found, DOWN, 1)))
    noise = np.concatenate([arrays(found, UP, seed) for seed in range(40)]).std()
    spread = np.std([arrays(found, UP, seed) for seed in range(200)], axis=0).mean()
    assert moved == pytest.approx(3.0, rel=1e-4)  # two clips of 1.5
    assert noise > 0
    assert known.event is not None
    assert known.event.gaussian_multiplier == pytest.approx(spread / moved, rel=0.05)
    assert known.event.gaussian_multiplier == pytest.approx(local_std(3.0, 0.9, 1e-5) / 3.0)
    assert found.claim is not None
    assert (found.claim.epsilon, found.claim.scope) == (0.9, "call")
    assert not [one for one in known.findings if one.severity == "fault"]


def test_sensitivity_of_one_clip_is_a_fault_under_replace_one_and_none_with_two() -> None:
    for sensitivity, faults in ((1.0, ["moves-more-than-claimed"]), (2.0, [])):
        (known,) = known_mods([newer.LocalDpMod(1.0, sensitivity, 0.9, 1e-5)], "replace-one")
        assert [one.name for one in known.findings if one.severity == "fault"] == faults


def test_the_classical_formula_is_judged_by_the_exact_curve() -> None:
    for epsilon, faults in ((8.0, []), (20.0, ["formula-outside-its-range"])):
        mod = newer.LocalDpMod(1.0, 2.0, epsilon, 1e-5)
        (known,) = known_mods([mod], "replace-one")
        assert [one.name for one in known.findings if one.severity == "fault"] == faults
        assert (gaussian_epsilon(2.0 / local_std(2.0, epsilon, 1e-5), 1e-5) > epsilon) == bool(faults)


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(math.inf, 2.0), (1.0, 0.0)])
def test_local_noise_of_no_size_has_no_event(epsilon: float, sensitivity: float) -> None:
    (known,) = known_mods([newer.LocalDpMod(1.0, sensitivity, epsilon, 1e-5)], "replace-one")
    assert known.event is None
    assert [one.name for one in known.findings] == ["no-randomness"]


def test_a_subclass_with_its_own_call_and_a_closure_are_no_proof() -> None:
    class Own(newer.LocalDpMod):
        def __call__(self, msg: Message, ctxt: Context, call_next: Any) -> Message:
            return call_next(msg, ctxt)

    inside = newer.LocalDpMod(1.0, 2.0, 0.9, 1e-5)

    def closure(msg: Message, ctxt: Context, call_next: Any) -> Message:
        return inside(msg, ctxt, call_next)

    for mod in (Own(1.0, 2.0, 0.9, 1e-5), closure):
        (known,) = known_mods([mod], "replace-one")
        assert known.event is None
        assert known.claimed == 0.9
    (bare,) = known_mods([functools.partial(inside)], "replace-one")
    assert bare.event is not None


def test_a_stack_has_the_bound_of_its_noise_and_tells_a_clip_that_is_not_last() -> None:
    noise = newer.LocalDpMod(1.0, 2.0, 0.9, 1e-5)
    (known,) = known_mods([newer.message_size_mod, newer.fixedclipping_mod, noise], "replace-one")
    assert known.event is not None
    assert "clip-is-not-last" in [one.name for one in known.findings]
    (alone,) = known_mods([newer.fixedclipping_mod], "replace-one")
    assert alone.event is None
    assert not alone.findings


def added_noise(msg: Message, ctxt: Context, call_next: Any) -> Message:
    """Noise of standard deviation 1 on whatever comes."""
    reply = call_next(msg, ctxt)
    name, record = next(iter(reply.content.array_records.items()))
    noisy = {key: array.numpy() + np.random.normal(size=array.shape) for key, array in record.items()}  # noqa: NPY002
    reply.content[name] = ArrayRecord({key: Array(value.astype(np.float32)) for key, value in noisy.items()})
    return reply


def test_the_order_of_clip_and_noise_is_seen_by_playing() -> None:
    """Noise outside the clip covers it; noise inside is scaled away with the update."""
    right, wrong = subject(added_noise, newer.fixedclipping_mod), subject(newer.fixedclipping_mod, added_noise)
    spreads = [np.std([arrays(one, UP, seed) for seed in range(30)], axis=0).mean() for one in (right, wrong)]
    assert spreads[0] == pytest.approx(1.0, rel=0.2)
    assert spreads[1] < 1e-3


def test_a_state_in_the_context_or_in_the_mod_crosses_rounds_of_a_play_and_never_plays() -> None:
    class Counting:
        def __init__(self) -> None:
            self.count = 0

        def __call__(self, msg: Message, ctxt: Context, call_next: Any) -> Message:
            self.count += 1
            reply = call_next(msg, ctxt)
            reply.content.metric_records["metrics"]["count"] = self.count
            return reply

    found = subject(Counting())
    for _ in range(2):
        counts = [one.numbers["metrics.metrics.count"][0] for one in found.play(UP, 1, calls=3)]
        assert counts == [1.0, 2.0, 3.0]
    one, other = (found.series([first, UP], 1)[0].numbers for first in (UP, DOWN))
    assert not np.array_equal(one["arrays.arrays.weight"], other["arrays.arrays.weight"])


def test_what_leaves_bare_beside_the_arrays_is_told() -> None:
    assert {"metrics-bare", "count-bare"} <= names(subject(newer.LocalDpMod(1.0, 2.0, 0.9, 1e-5)))

    def count_alone(msg: Message, ctxt: Context, call_next: Any) -> Message:
        reply = call_next(msg, ctxt)
        metrics = reply.content.metric_records["metrics"]
        for key in [key for key in metrics if key != "num-examples"]:
            del metrics[key]
        return reply

    assert "metrics-bare" not in names(subject(count_alone, newer.LocalDpMod(1.0, 2.0, 0.9, 1e-5)))


@pytest.mark.parametrize("api", [newer, older])
def test_arrays_without_axes_and_updates_of_zero_are_told(api: Any) -> None:
    found = names(subject(api.LocalDpMod(1.0, 2.0, 0.9, 1e-5)))
    assert {"unusual-update", "update-of-zero"} <= found


def test_they_are_not_told_where_the_clip_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same mod with a clip of its own that takes every array and every norm."""

    def mended(param1: list[Any], param2: list[Any], clipping_norm: float) -> None:
        updates = [np.asarray(x, dtype=np.float32) - np.asarray(y) for x, y in zip(param1, param2, strict=True)]
        norm = math.sqrt(sum(float((one.astype(np.float64) ** 2).sum()) for one in updates))
        usable = math.isfinite(norm)
        scale = 0.0 if not usable else 1.0 if norm <= clipping_norm else clipping_norm / norm
        for place, (sent, update) in enumerate(zip(param2, updates, strict=True)):
            moved = np.nan_to_num(update, nan=0.0, posinf=0.0, neginf=0.0) * scale
            param1[place] = np.array(sent + moved, dtype=np.float32)

    def noised(arrays: list[Any], std: float) -> None:
        for place, array in enumerate(arrays):
            arrays[place] = array + np.random.normal(0, std, array.shape).astype(np.float32)  # noqa: NPY002

    monkeypatch.setattr(localdp_mod, "compute_clip_model_update", mended)
    monkeypatch.setattr(localdp_mod, "add_gaussian_noise_inplace", noised)
    assert differential_privacy.compute_clip_model_update is not mended
    found = names(subject(newer.LocalDpMod(1.0, 2.0, 0.9, 1e-5)))
    assert not {"unusual-update", "update-of-zero"} & found


def test_a_mod_that_never_answers_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(msg: Message, ctxt: Context, call_next: Any) -> Message:
        reply = call_next(msg, ctxt)
        record = next(iter(reply.content.array_records.values()))
        while any(np.isnan(array.numpy()).any() for array in record.values()):
            pass
        return added_noise(msg, ctxt, lambda *_: reply)

    monkeypatch.setattr(flower_messages, "SECONDS", 0.1)
    told = [one.text for one in subject(endless).notes if one.text.startswith("An update with NaN")]
    assert len(told) == 1
    assert "TimeoutError" in told[0]


def test_an_answer_ends_also_where_foreign_code_catches_the_first_alarm() -> None:
    caught = []
    with pytest.raises(TimeoutError, match=r"no answer in 0\.05 seconds"), flower_messages.at_most(0.05):
        while not caught:
            try:
                while True:
                    pass
            except Exception as error:
                caught.append(error)
        while True:
            pass
    assert len(caught) == 1
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_names_and_forms_decide_nothing() -> None:
    class Renamed(newer.LocalDpMod):
        pass

    one, other = subject(newer.LocalDpMod(1.0, 2.0, 0.9, 1e-5)), subject(Renamed(1.0, 2.0, 0.9, 1e-5))
    assert one.recognised == other.recognised
    assert one.notes == other.notes


def test_other_callables_are_no_mods() -> None:
    assert recognises(lambda update, rng: update, SMALL_QUESTION) is None
    assert recognises([], SMALL_QUESTION) is None
    assert recognises(newer.LocalDpMod, SMALL_QUESTION) is None
