"""Checks of functions: every planted fault is found by its name, no sound release is called faulty, whatever they are
called.
"""

from __future__ import annotations

import ast
import pickle
import re
import sys
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
import pytest
import torch
from checking.check_targets import DOUBTFUL, FAULTY, SOUND, clipped, noisy, rare_flips, secure
from checking.renaming import renamed

import fedpriv
from fedpriv.api.calls import check
from fedpriv.checking.checks import check_object
from fedpriv.checking.findings import KINDS, Finding
from fedpriv.checking.functions import NotTaken, recognises_update
from fedpriv.checking.generators import seeded
from fedpriv.checking.reading import played
from fedpriv.checking.replay import calls_of, replay
from fedpriv.checking.result import Check, Layer
from fedpriv.checking.subject import Budget, Claim, Question
from fedpriv.common.errors import OptionError

SMALL = Question(dims=(8,), trials=1000)


def replayed(target: Any, question: Question = SMALL) -> list[Finding]:
    subject = recognises_update(target, question)
    assert subject is not None
    found = replay(subject, question, Budget(20))
    return [*found.findings, *calls_of(subject, question, found.repeatable, Budget(20))]


def faults(findings: list[Finding]) -> set[str]:
    return {one.name for one in findings if one.severity == "fault"}


@pytest.mark.parametrize("target", FAULTY, ids=lambda target: target.__name__)
@pytest.mark.rotates(3)
def test_a_planted_fault_is_found_by_its_name(target: Any) -> None:
    assert FAULTY[target] <= faults(replayed(target))


@pytest.mark.parametrize("target", SOUND, ids=lambda target: target.__name__)
@pytest.mark.rotates(3)
def test_a_sound_release_has_no_fault(target: Any) -> None:
    assert faults(replayed(target)) == set()


@pytest.mark.parametrize("target", DOUBTFUL, ids=lambda target: target.__name__)
@pytest.mark.rotates(3)
def test_what_may_be_wrong_is_a_doubt(target: Any) -> None:
    found = replayed(target)
    assert faults(found) == set() and DOUBTFUL[target] in {one.name for one in found if one.severity == "doubt"}


def test_every_sentence_of_the_table_is_said_with_all_that_it_holds() -> None:
    room, used = Path(fedpriv.__file__).parent / "checking", set[str]()
    for node in (node for file in room.glob("*.py") for node in ast.walk(ast.parse(file.read_text()))):
        used |= {node.value} & set(KINDS) if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()
        name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
        if name not in ("finding", "says") or not isinstance(node.args[0], ast.Constant):
            continue
        key, given = node.args[0].value, {one.arg for one in node.keywords}
        places = {place for part in KINDS[key][2:] for _, place, _, _ in Formatter().parse(part) if place}
        assert None in given or {place.partition(".")[0] for place in places} == given - {"records"}, key
    assert used == set(KINDS)


@pytest.mark.parametrize(("grows", "names"), [(False, set()), (True, {"noise-depends-on-data"})])
def test_noise_that_goes_around_a_modulus_has_one_scale(grows: bool, names: set[str]) -> None:
    def modular(update: Any, rng: Any) -> Any:
        length = np.linalg.norm(update)
        whole = np.trunc(64 * update / max(1.0, length)).astype(np.int64)
        scale = 128.0 * (1 + min(length, 100.0) * grows)
        return (whole + np.rint(rng.normal(0.0, scale, whole.shape)).astype(np.int64)) % 2**20

    assert faults(replayed(modular)) & {"noise-depends-on-data"} == names


def test_a_pickle_is_read_and_not_run() -> None:
    """Its numbers, and the floats of an array in it; what it would call is not called."""
    made = pickle.dumps({"loss": 0.25, "update": np.array([1.5, -2.0])})
    numbers = played("x", made).numbers
    assert any(0.25 in values for values in numbers.values()) and any(-2.0 in values for values in numbers.values())
    assert played("x", b"\x80\x04cbuiltins\nexit\n(tR.").numbers  # exit() where it is run


def test_noise_that_cancels_refutes_a_cost_per_call() -> None:
    target = next(one for one, name in DOUBTFUL.items() if name == "noise-cancels-between-calls")
    question = Question(claim=Claim(8.0, 1e-5), dims=(8,))
    assert "noise-cancels-between-calls" in faults(replayed(target, question))


@pytest.mark.parametrize("seed", range(1, 3))
@pytest.mark.rotates(2)
def test_other_seeds_call_no_sound_release_faulty(seed: int) -> None:
    for target in (noisy, SOUND[1], SOUND[7]):
        assert faults(replayed(target, Question(dims=(8,), seed=seed))) == set()


def test_a_claim_is_refuted_by_what_moves_and_by_samples() -> None:
    # sensitivity 1, deviation 4: epsilon 0.95 at 1e-5 for one update against none
    close = check(noisy, epsilon=0.93, dims=(8,), trials=400, seconds=10)
    assert [one.name for one in close.findings if one.severity == "fault"] == []
    low = check(noisy, epsilon=0.5, dims=(8,), trials=400, seconds=10)
    assert low.verdict == "faults found" and "moves-more-than-claimed" in {one.name for one in low.findings}
    both = check(noisy, epsilon=1.2, adjacency="replace-one", dims=(8,), trials=400, seconds=10)
    assert both.verdict == "faults found"
    run = check(noisy, epsilon=2, scope="run", calls=100, dims=(8,), trials=400, seconds=10)
    assert run.verdict == "faults found"

    def laplace(update: Any, rng: Any) -> Any:  # pure epsilon 4 in truth
        return np.clip(update[:1], -1, 1) + rng.laplace(0, 0.25, 1)

    sampled = check(laplace, epsilon=2, dims=(2,), trials=5000, seconds=10)
    found = {one.name for one in sampled.findings if one.severity == "fault"}
    assert found and found <= {
        "claim-refuted",
        "moves-more-than-claimed",
    }  # the price of Laplace noise needs no samples
    fine = check(laplace, epsilon=8, adjacency="replace-one", dims=(2,), trials=5000, seconds=10)
    assert fine.verdict == "no fault found" and fine.audited is not None and 4 < fine.audited < 8


@pytest.mark.parametrize("target", (noisy, *FAULTY, *DOUBTFUL), ids=lambda target: target.__name__)
@pytest.mark.rotates(6)
def test_renaming_changes_no_verdict(target: Any) -> None:
    """Every name of a function or class, its arguments, variables and attributes is changed."""
    before, after = replayed(target), replayed(renamed(target))
    assert [(one.name, one.severity) for one in before] == [(one.name, one.severity) for one in after]


def test_the_state_of_the_process_is_put_back() -> None:
    def meddles(update: Any) -> Any:
        np.random.seed(5)  # noqa: NPY002
        return update * 0 + np.random.normal(0, 1, update.shape)  # noqa: NPY002

    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]  # noqa: NPY002
    found = check(meddles, dims=(8,), trials=400)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index, arg-type]  # noqa: NPY002
    assert "seeds-global-generator" in {one.name for one in found.findings}


def test_a_seeded_play_begins_torch_where_its_own_seeding_does_and_ends_where_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    before = torch.get_rng_state()
    with seeded(5):
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_torch_that_a_play_imports_is_left_as_an_import_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the play has seeded it: two processes would have the same noise."""
    drawn, state = [], torch.get_rng_state()
    for _ in range(2):
        monkeypatch.delitem(sys.modules, "torch")
        with seeded(1):
            monkeypatch.setitem(sys.modules, "torch", torch)
            torch.manual_seed(7)
        drawn.append(torch.rand(4).tolist())
    torch.set_rng_state(state)
    assert drawn[0] != drawn[1]


def test_an_update_that_is_not_finite_is_a_doubt() -> None:
    def python_max(update: Any, rng: Any) -> Any:
        return update / max(1.0, float(np.linalg.norm(update))) + rng.normal(0, 4, update.shape)

    found = {one.name: one.severity for one in replayed(python_max)}
    assert found["broken-number-switches-off-clipping"] == "doubt"
    assert "broken-number-switches-off-clipping" not in {one.name for one in replayed(noisy)}


@pytest.mark.parametrize("bare", [False, True])
def test_noise_that_short_floats_swallow_was_added(bare: bool) -> None:
    """Beside a broken number the clipping is off, and what is as long as 1e8 has no place for noise of 0.05."""

    def target(update: torch.Tensor) -> torch.Tensor:
        short = update.float() * min(1.0, 0.05 / torch.linalg.vector_norm(update.float()))
        return short if bare and short.isnan().any() else short + torch.normal(0.0, 0.05, size=short.shape)

    found = replayed(target)
    assert faults(found) == ({"number-without-noise"} if bare else set())
    assert "broken-number-switches-off-clipping" in {one.name for one in found}


def test_what_a_target_raises_is_one_line() -> None:
    def broken(update: Any) -> Any:
        raise ZeroDivisionError("of no use")

    found = check(broken)
    assert found.verdict == "could not check" and str(found) == "could not check: ZeroDivisionError: of no use"
    assert check(lambda update, weights, model, rng: update).verdict == "could not check"
    assert check(object()).verdict == "could not check"
    with pytest.raises(NotTaken, match="no update"):
        recognises_update(lambda: 3, SMALL)


def test_every_form_is_told_with_its_own_error_the_most_telling_first() -> None:
    def broken(update: Any, rng: Any) -> Any:
        if not isinstance(update, np.ndarray):
            return update.nothing
        raise KeyError("missing")

    words = str(check(broken).why_not)
    assert words.startswith("KeyError: 'missing' (with a NumPy array and a NumPy generator; ")
    assert "a dict of NumPy arrays" in words and "AttributeError: 'dict' object has no attribute 'nothing'" in words


def test_every_call_gets_a_seed_of_its_own() -> None:
    def by_seed(update: Any, seed: Any) -> Any:
        return clipped(update) + np.random.RandomState(seed).normal(0, 4, update.shape)

    def by_torch(update: Any, seed: int) -> Any:
        return clipped(update) + torch.randn(8, generator=torch.Generator().manual_seed(seed)).numpy() * 4

    for target in (by_seed, by_torch):
        subject = recognises_update(target, SMALL)
        assert subject is not None and subject.name.endswith("and a seed")
        trials = subject.trials(np.ones(8), 20, 1)[:, 1:]
        calls = [one.flat()[1:] for one in subject.play(np.ones(8), 1, calls=20)]
        assert len(np.unique(trials, axis=0)) == len(np.unique(calls, axis=0)) == 20


def test_a_notebooks_function_is_checked() -> None:
    """No file, a module whose names another cell binds, and two classes of one name."""
    cells = """
class Sent:
    def __init__(self, values): self.values = values
First = Sent
class Sent:
    def __init__(self, values): self.others = values
def release(update, rng):
    noise = rng.normal(0, 6, (2, *update.shape))
    return [First(clipped(update) + noise[0]), Sent(clipped(update) + noise[1])]
"""
    names: dict[str, Any] = {"__name__": "__main__", "clipped": clipped}
    exec(cells, names)
    found = check(names["release"], epsilon=1, dims=(8,), trials=400, seconds=10)
    assert found.verdict == "no fault found", found.last_line


def test_rare_flips_are_no_missing_noise() -> None:
    assert all(one.severity != "fault" for one in replayed(rare_flips))
    assert "no-randomness" not in {one.name for one in replayed(rare_flips)}


def test_what_was_measured_is_the_lower_end_of_pairs_that_the_claim_covers() -> None:
    """One update against none costs 0.95; opposite ones, 2 apart, cost 2.0 and are not what is claimed."""
    found = check(noisy, epsilon=1, adjacency="zero-out", dims=(8,), trials=400, seconds=10)
    assert found.measured is not None and 0.7 < found.measured < 0.95
    assert found.why_above(1, "pass") is None
    both = check(noisy, epsilon=2.1, adjacency="replace-one", dims=(8,), trials=400, seconds=10)
    assert both.measured is not None and 1.6 < both.measured < 2.01


def test_a_low_bit_of_a_number_with_noise_is_seen() -> None:
    def marked(update: Any, rng: Any) -> Any:
        sent = noisy(update, rng).astype(np.float32)
        bits = sent.view(np.int32)
        bits[0] = bits[0] & ~1 | int(update[0] > 0)
        return sent

    assert faults(replayed(marked)) == {"number-without-noise"}
    assert faults(replayed(lambda update, rng: noisy(update, rng).astype(np.float32))) == set()


def test_inputs_with_which_the_target_raises_do_not_end_the_check() -> None:
    def picky(update: Any, rng: Any) -> Any:
        if abs(update[0]) > 100 and abs(update[0]) < 5000:  # opposite updates, which come first
            raise ValueError("too long")
        return {"sent": noisy(update, rng), "loss": float(update[0])}

    found = check(picky, epsilon=1, dims=(8,), trials=400, seconds=10)
    said = {one.name for one in found.findings}
    assert {"number-without-noise", "raises"} <= said and found.audited == np.inf


@pytest.mark.parametrize("way", ["opposite", "none"])
def test_a_pair_with_one_side_of_which_the_target_raises_is_left_out_and_told(way: str) -> None:
    """opposite: of the first pair; none: of later ones."""

    def target(update: Any, rng: Any) -> Any:
        if update[1] < -1 if way == "opposite" else not update.any():
            raise ValueError("of no use")
        return noisy(update, rng)

    question = Question(claim=Claim(4.4, 1e-5, adjacency="replace-one"), dims=(8,), trials=400)
    found = check_object(target, question, seconds=15)
    told = [one.text for one in found.findings if one.name == "raises"]
    assert found.verdict == "no fault found" and found.audited is not None and len(told) == 1
    assert "with one of two neighbouring inputs and not with the other (ValueError: of no use)" in told[0]
    sampled = next(one for one in found.layers if one.name == "sampled")
    assert sampled.words.startswith("2 pairs" if way == "opposite" else "4 pairs")


def test_a_limit_fails_what_is_above_it_and_what_nobody_verified() -> None:
    base: dict[str, Any] = {"target": "t", "kind": "k", "delta": 1e-5}
    assert Check(**base, verified=3.0, audited=1.0).why_above(8) is None
    assert "verified" in str(Check(**base, verified=9.0, audited=1.0).why_above(8))
    assert "audited" in str(Check(**base, verified=3.0, audited=9.0).why_above(8))
    assert "no epsilon is verified" in str(Check(**base, audited=1.0).why_above(8))
    assert Check(**base, audited=1.0).why_above(8, "pass") is None
    assert "measured" in str(Check(**base, audited=1.0, measured=9.0).why_above(8, "pass"))
    assert Check(**base, audited=12.0, covered=False).why_above(8, "pass") is None  # of two units, where one is claimed
    assert "looked at 9 %" in str(Check(**base, audited=1.0, coverage=0.09).why_above(8, "pass"))
    cut = Check(**base, audited=0.0, attainable=2.3, coverage=0.4, layers=[Layer("sampled", True, "", cut=["few"])])
    assert "could show at most 2.3" in str(cut.why_above(8, "pass")) and cut.why_above(2, "pass") is None
    assert "audited 0 of at most 2.3; looked at 40 % of a full check" in cut.last_line
    assert "none is audited" in str(Check(**base).why_above(8, "pass"))
    fault = Finding("replayed", "no-randomness", "fault", "text")
    assert "faults found" in str(Check(**base, verified=3.0, findings=[fault]).why_above(8))
    assert "could not" in str(Check(**base, verified=3.0, why_not="it hangs").why_above(8))


def test_a_check_is_read_back_from_its_json() -> None:
    found = check_object(noisy, Question(claim=Claim(np.inf, 1e-5), dims=(8,), trials=400), name="release")
    again = Check.from_json(found.as_json())
    assert again.as_json() == found.as_json() and again.claimed == np.inf and again.verdict == "no fault found"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epsilon": -1}, "epsilon=-1: must be a number of at least 0"),
        ({"scope": "call"}, "scope=call: says what a claim is about"),
        ({"epsilon": 1, "scope": "run"}, "needs calls=N"),
        ({"dims": "8,x"}, "dims=8,x: must be lengths"),
        ({"epsilom": 3}, "epsilom=3: no such option"),
        ({"trials": 10}, "trials=10: must be a whole number from 400"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)):
        fedpriv.check(noisy, **options)


def test_a_play_begins_with_the_memory_of_the_start() -> None:
    calls, sums = [0], {"all": np.zeros(8)}

    def counts(update: Any, rng: Any) -> Any:
        calls[0] += 1
        sums["all"] = sums["all"] + update
        return np.append(sums["all"], calls[0])

    subject = recognises_update(counts, SMALL)
    assert subject is not None
    first, second = (subject.play(np.ones(8), 1, calls=2) for _ in range(2))
    assert [one.flat()[-1] for one in first] == [one.flat()[-1] for one in second] == [1.0, 2.0]
    assert np.array_equal(first[1].flat(), second[1].flat())


# --- bad input ----------------------------------------------------------------------------------------------------


def test_randomness_that_cannot_be_seeded_is_said_and_sampled() -> None:
    found = check(secure, epsilon=1, dims=(8,), trials=400)
    said = next(one for one in found.findings if one.name == "cannot-be-seeded")
    assert said.severity == "note" and "sampling goes on" in said.text
    assert found.verdict == "no fault found" and found.audited is not None


def test_other_shapes_in_each_call_are_said() -> None:
    def grows(update: Any, rng: Any) -> Any:
        return rng.normal(0, 4, int(rng.integers(3, 9)))

    said = next(one for one in check(grows, dims=(8,), trials=400).findings if one.name == "other-shapes")
    assert said.severity == "doubt" and "another shape in each call" in said.text


def test_no_randomness_is_an_infinite_epsilon() -> None:
    asked = Question(claim=Claim(8.0, 1e-5), dims=(8,), trials=400)
    found = check_object(lambda update: np.clip(update, -1, 1), asked)
    assert found.audited == np.inf and any("epsilon is infinite" in one.text for one in found.faults)


def test_an_infinite_epsilon_claims_nothing() -> None:
    found = check(noisy, epsilon=np.inf, adjacency="replace-one", dims=(8,), trials=400)
    assert found.verdict == "no fault found" and found.claimed == np.inf


# --- sharper bounds -----------------------------------------------------------------------------------------------


def test_the_bound_of_gaussian_noise_is_given_beside_the_one_that_assumes_nothing() -> None:
    """mu 1/2 for opposite updates: epsilon 2.0 at 1e-5."""
    claim = Claim(4.0, 1e-5, adjacency="replace-one")
    found = check_object(noisy, Question(claim=claim, dims=(4,), trials=8000), seconds=20)
    assert found.sharper is not None and found.audited is not None
    assert "all noise is Gaussian" in found.sharper["assumes"] and found.sharper["family"] == "Gaussian"
    assert found.audited < found.sharper["epsilon_lower"] < 2.006 < found.sharper["attainable"]
    sampled = next(layer for layer in found.layers if layer.name == "sampled")
    assert "By the curves of Gaussian noise" in sampled.words and "would have shown" in sampled.words
    assert Check.from_json(found.as_json()).sharper == found.sharper

    def laplace(update: Any, rng: Any) -> Any:
        return update / max(1.0, np.abs(update).sum()) + rng.laplace(0, 2.0, update.shape)

    assert check_object(laplace, Question(dims=(4,), trials=800), seconds=10).sharper is None


def test_a_check_without_time_for_two_pairs_has_checked_nothing() -> None:
    """A target with noise of a twentieth of what is claimed: not looked at, it must not pass."""

    def bare(update: Any, rng: Any) -> Any:
        return update / max(1.0, float(np.linalg.norm(update))) + rng.normal(0, 0.2, np.shape(update))

    none = check_object(bare, Question(claim=Claim(1.0, 1e-5), dims=(8,)), seconds=0.001)
    assert none.verdict == "could not check"
    assert "of a full check" in str(none.why_not)
    assert (
        check_object(bare, Question(claim=Claim(1.0, 1e-5), dims=(8,), trials=400), seconds=10).verdict
        == "faults found"
    )


def test_a_network_or_file_that_is_not_there_is_told_after_one_call() -> None:
    calls = []

    def fetches(update: Any, rng: Any = None) -> Any:
        calls.append(1)
        raise OSError("<urlopen error [Errno -3] Temporary failure in name resolution>")

    found = check_object(fetches, Question(claim=Claim(1.0, 1e-5)), seconds=10)
    assert found.verdict == "could not check"
    assert "a check has no network" in str(found.why_not)
    assert len(calls) == 1
