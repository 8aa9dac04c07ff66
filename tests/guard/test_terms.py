"""What a guarded answer costs and what leaves: the constant, by brute force with apps that go against it."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.common.errors import OptionError
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard.release import SENSITIVITY, Terms
from fedpriv.guard.shards import shard_of
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.events import DiscreteGaussianSum, Gaussian, ReplacedGaussian, SkellamSum

BASE: dict[str, Any] = {"apps": (), "unit": "row", "clip": 0.5, "noise_multiplier": 2.0, "shards": 4}
SUM = BASE | {"noise": "ddgauss", "sites": 5, "min_replies": 4, "colluders": 1}


def terms(**more: Any) -> Terms:
    return Terms.of(GuardPolicy.model_validate(BASE | more))


def answers(rows: list[int], shards: int, app: Any) -> list[np.ndarray]:
    parts: list[list[int]] = [[] for _ in range(shards)]
    for row in rows:
        parts[shard_of(b"salt", bytes([row]), shards)].append(row)
    return [app(part) for part in parts]


class Silent(SeededNoise):
    """No noise, but its grid."""

    def normal(self, shape, std=1.0):
        return torch.zeros(shape)

    def words(self, count):
        return np.full(count, 2**63, np.uint64)


SILENT = Silent(0)


def hostile(part: list[int]) -> np.ndarray:
    """+C while row 3 is not there, -C with it, and noise of its own rows otherwise."""
    return np.full(6, -7.0 if 3 in part else 7.0)


def parity(part: list[int]) -> np.ndarray:
    return np.full(6, 1e300 if len(part) % 2 else -3.0)


def crashing(part: list[int]) -> np.ndarray:
    return np.full(6, np.nan) if 3 in part else np.full(6, 1e-3)


def honest(part: list[int]) -> np.ndarray:
    return np.full(6, sum(part) / (1 + len(part)))


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("noise", ["own", "ddgauss", "skellam"])
def test_a_row_moves_the_sum_by_what_is_charged_and_no_more(noise: str, single: bool) -> None:
    """Every row of data sets taken away, apps that answer as they like: the largest move is twice C, and C where a
    shard is asked only while it holds one unit.
    """
    given = {"single": True} if single else {}
    found = terms(**given) if noise == "own" else terms(**SUM | {"noise": noise} | given)
    scale = 1.0 if noise == "own" else found.grid(6).steps
    bound = scale if single else SENSITIVITY * scale
    sizes = (1, 2, 3, 8, 9) if single else (1, 2, 8, 9)
    sets = [rows for size in sizes for rows in (itertools.combinations(range(9), size) if single else [range(size)])]
    worst = 0.0
    for app in (hostile, parity, crashing, honest):

        def asked(part: list[int], app: Any = app) -> np.ndarray:
            return app(part) if len(part) == 1 or not single else np.zeros(6)

        for rows in sets:
            whole = found.release(answers([*rows], 4, asked), 6, SILENT).double()
            for gone in rows:
                less = found.release(answers([row for row in rows if row != gone], 4, asked), 6, SILENT).double()
                worst = max(worst, float((whole - less).norm()))
    assert (0.99 if single else 0.999) * bound < worst <= bound + (0 if noise == "own" else 6**0.5)
    assert worst > 1.9 * scale or single  # so a bound of C would be false


@pytest.mark.parametrize("noise", ["own", "ddgauss"])
def test_single_units_are_charged_half(noise: str) -> None:
    found = terms(single=True) if noise == "own" else terms(**SUM | {"single": True})
    event = found.event(6)
    if noise == "own":
        assert event == Gaussian(threat=found.threat, multiplier=2.0)
    else:
        assert event.l2 == found.grid(6).steps + 6**0.5 and event.sigma == 2.0 * found.grid(6).steps  # type: ignore[union-attr]


@pytest.mark.parametrize("noise", ["own", "ddgauss"])
def test_what_is_charged_is_the_noise_over_that_move(noise: str) -> None:
    found = terms() if noise == "own" else terms(**SUM)
    event = found.event(6)
    if noise == "own":
        assert event == Gaussian(threat=found.threat, multiplier=1.0)
    else:
        assert isinstance(event, DiscreteGaussianSum) and event.noises == 3
        assert event.l2 == SENSITIVITY * found.grid(6).steps + 6**0.5
        assert event.sigma == 2.0 * found.grid(6).steps
        (own, alone) = found.booked(6, 0, 1).entries
        assert own.event == event and alone.event.noises == 1 and alone.event.threat.observer == "server"


def test_noise_has_the_size_that_is_charged() -> None:
    zero = [np.zeros(4000)] * 4
    own = terms().release(zero, 4000, SeededNoise(1))
    assert own.dtype == torch.float32 and float(own.std()) == pytest.approx(2.0, rel=0.05)
    for noise in ("ddgauss", "skellam"):
        found = terms(**SUM | {"noise": noise})
        whole = found.release(zero, 4000, SeededNoise(1))
        assert whole.dtype == torch.int64
        assert float(whole.double().std()) == pytest.approx(2.0 * found.grid(4000).steps, rel=0.05)
    assert isinstance(terms(**SUM | {"noise": "skellam"}).event(6), SkellamSum)


def test_broken_answers_are_zero_updates() -> None:
    found = terms()
    for broken in (np.nan, np.inf, -np.inf):
        answer = np.zeros(6)
        answer[2] = broken
        assert not found.clipped(answer).any()
    assert float(found.clipped(np.full(6, 1e308)).norm()) <= 0.5


def test_clipping_is_of_the_whole_vector() -> None:
    found = terms()
    assert float(found.clipped(np.full(100, 1.0)).norm()) == pytest.approx(0.5, rel=1e-5)
    short = np.full(100, 1e-3)
    assert np.array_equal(found.clipped(short).numpy(), short)


@pytest.mark.parametrize("noise", ["own", "ddgauss"])
def test_large_models_are_clipped_one_by_one_to_the_same_sum(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = terms() if noise == "own" else terms(**SUM)
    given = [np.full(6, 3.0), np.full(6, np.nan), np.full(6, 1e-3), np.zeros(6)]
    together = found.release(given, 6, SILENT)
    monkeypatch.setattr("fedpriv.guard.release.TOGETHER", 1)
    assert torch.equal(found.release(given, 6, SILENT), together) and together.abs().sum() > 0
    assert not found.release([], 6, SILENT).any()


@pytest.mark.parametrize("noise", ["own", "ddgauss"])
def test_answers_are_added_up_as_they_come(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory does not depend on how many shards answered."""
    found, given, most = terms() if noise == "own" else terms(**SUM), list[weakref.ref[np.ndarray]](), 0
    monkeypatch.setattr("fedpriv.guard.release.TOGETHER", 12)

    def answers() -> Iterator[np.ndarray]:
        nonlocal most
        for number in range(40):
            answer = np.full(6, float(number))
            given.append(weakref.ref(answer))
            most = max(most, sum(one() is not None for one in given))
            yield answer

    found.release(answers(), 6, SILENT)
    assert most <= 2


@pytest.mark.parametrize(("together", "before"), [(24, [0, 0, 0, 0]), (23, [0, 1, 2, 3])])
def test_no_shard_begins_after_the_work_on_several(
    together: int, before: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding leaves room for one answer between two starts (`fedpriv.guard.guarded_message.REST`)."""
    found, done, begun = terms(), list[int](), list[int]()
    monkeypatch.setattr("fedpriv.guard.release.TOGETHER", together)
    clipped = Terms.clipped
    monkeypatch.setattr(Terms, "clipped", lambda self, answer: done.extend([0] * len(answer)) or clipped(self, answer))

    def answers() -> Iterator[np.ndarray]:
        for _ in range(4):
            begun.append(len(done))
            yield np.ones(6)

    found.release(answers(), 6, SILENT)
    assert begun == before and len(done) == 4


def test_sampled_shards_are_charged_by_their_own_law_and_drawn_by_coins() -> None:
    found = terms(sampling=0.25, shards=400)
    event = found.event(6)
    assert event == ReplacedGaussian(threat=found.threat, multiplier=1.0, sampling_rate=0.25)
    drawn = [len(found.drawn(SeededNoise(seed))) for seed in range(20)]
    assert 80 < np.mean(drawn) < 120 and len(set(drawn)) > 1
    assert found.expected == 100 and terms().drawn(SILENT) == [0, 1, 2, 3]


def test_terms_survive_their_text_and_differ_in_every_number() -> None:
    found = terms(**SUM)
    assert Terms.from_json(found.to_json()) == found
    changes: dict[str, Any] = {
        "unit": "person",
        "shards": 5,
        "single": True,
        "sampling": 0.5,
        "clip": 0.6,
        "noise_multiplier": 2.1,
        "noise": "skellam",
        "reply": "reply",
        "sandbox": "none",
        "sites": 6,
        "min_replies": 5,
        "colluders": 2,
        "threshold": 3,
        "bits": 31,
        "counts": {"query": {"metrics": {"a": 1}, "clip": 1.0, "noise_multiplier": 1.0}},
    }
    assert set(changes) == set(Terms.__dataclass_fields__)
    digests = {found.digest, *(replace(found, **{name: value}).digest for name, value in changes.items())}
    assert len(digests) == len(changes) + 1
    with pytest.raises(OptionError, match="no terms of a guard"):
        Terms.from_json("{}")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"unit": "client"}, r"guard.shards=4: unit client has one shard"),
        ({"unit": "client", "shards": 1, "single": True}, r"guard.single=True: unit client has one shard"),
        ({"single": True, "sampling": 0.5}, r"guard.sampling=0.5: with single"),
        ({"unit": "person"}, r"guard.column=null: of unit person"),
        ({"column": "a"}, r"guard.column=a: of unit person"),
        ({"noise": "ddgauss", "sites": 3, "sampling": 0.5}, r"guard.sampling=0.5: no bound is known"),
        ({"sandbox": "none", "apps": "any"}, r"guard.apps=any: sandbox none"),
        ({"noise": "ddgauss", "sites": 1}, r"guard.min_replies=2: at most"),
        ({"colluders": 2}, r"guard.colluders=2: fewer than min_replies"),
        ({"apps": "any"}, r"guard.pad_seconds=null: apps any with several shards"),
        ({"pad_seconds": 1.0, "wall_seconds": 2.0}, r"guard.pad_seconds=1.0: above wall_seconds"),
        ({"table": "../t.csv"}, r"guard.table=../t.csv: a name in the data folder"),
    ],
)
def test_impossible_terms_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        terms(**more)


def test_no_two_rows_share_a_fate() -> None:
    """A row's shard does not depend on which others are there (exhaustive over small sets)."""
    alone = {row: shard_of(b"salt", bytes([row]), 4) for row in range(6)}
    for size in range(1, 7):
        for rows in itertools.combinations(range(6), size):
            assert {row: shard_of(b"salt", bytes([row]), 4) for row in rows} == {row: alone[row] for row in rows}
