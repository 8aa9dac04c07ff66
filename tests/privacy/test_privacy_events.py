"""Events and entries: what is allowed, and that they survive JSON."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedpriv.privacy.composition import ORDERS, release_epsilon, renyi_curve
from fedpriv.privacy.dp_library import composed_epsilon
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    MECHANISMS,
    ZCDP,
    AllocatedGaussian,
    ApproximateDP,
    Binomial,
    DiscreteGaussianSum,
    Entry,
    Event,
    FixedSizeGaussian,
    Gaussian,
    GumbelTopK,
    Laplace,
    NoBound,
    PairedQuantisation,
    PoissonGaussian,
    RandomisedResponse,
    ReplacedGaussian,
    Shuffled,
    SkellamSum,
    Threat,
    UnitCap,
    entry_from_json,
    entry_to_json,
    event_from_json,
    event_to_json,
)

SERVER = CLIENT_TO_SERVER
EXAMPLE = Threat("example", "add-or-remove-one", "server")
PUBLIC = Threat("client", "replace-one", "public")
OUTSIDE = Threat("client", "add-or-remove-one", "trusted-server")
SUM = Threat("client", "replace-one", "secure-sum")
DELTA = 1e-5

EVENTS = [
    Gaussian(threat=SERVER, multiplier=0.05, count=3),
    Gaussian(threat=SERVER, multiplier=0),
    Laplace(threat=SERVER, multiplier=2.5),
    PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.01, count=1000),
    FixedSizeGaussian(threat=PUBLIC, multiplier=1.0, sample_size=10, population=100),
    AllocatedGaussian(threat=OUTSIDE, multiplier=2.0, rounds=10, count=3),
    ReplacedGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.1, count=50),
    ZCDP(threat=SERVER, rho=0.1),
    GumbelTopK(threat=SERVER, k=8020, epsilon=0.01),
    RandomisedResponse(threat=SERVER, epsilon=1.0, dimension=80202),
    RandomisedResponse(threat=SERVER, epsilon=math.inf),
    UnitCap(threat=SERVER, epsilon=8.0, inside=0.9, delta=1e-12, count=2),
    PairedQuantisation(threat=SERVER, epsilon=1.0, private_share=0.25, bits=8, dimension=10),
    Binomial(threat=SERVER, step=0.1, trials=2000, dimension=3, l1=1.0, l2=1.0, linf=1.0, delta=1e-6),
    DiscreteGaussianSum(threat=SUM, sigma=40.0, noises=90, dimension=1024, l2=300.0),
    SkellamSum(threat=SUM, variance=1600.0, noises=90, dimension=1024, l2=300.0, delta=1e-9),
    Shuffled(threat=SUM, epsilon=1.0, users=1000, delta=1e-8, dimension=5),
    ApproximateDP(threat=SERVER, epsilon=1.0, delta=0.0),
    NoBound(threat=SERVER, reason="98% of coordinates are sent without noise"),
]


def test_every_mechanism_is_covered_here():
    assert {type(event) for event in EVENTS} == set(MECHANISMS.values())


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.mechanism)
def test_accountants_get_an_answer_to_all_that_they_ask(event):
    curve, single = renyi_curve(event), event.one_coordinate()
    assert curve.shape == ORDERS.shape and (curve >= 0).all() and (np.diff(curve[np.isfinite(curve)]) >= 0).all()
    assert bool(event.why_unbounded()) == bool(np.isinf(curve).all())
    cut = 1e-12 * isinstance(event, AllocatedGaussian)  # ends of a law that is computed on a grid
    assert (event.delta_share > cut) == (getattr(event, "delta", 0.0) > 0)
    assert event.gaussian_multiplier in (None, getattr(event, "multiplier", None))
    assert type(single) is type(event) and single.threat == event.threat and single.count == single.coordinates == 1
    assert replace(event, count=1).pure_epsilon() == event.pure_epsilon() >= single.pure_epsilon()
    by_renyi, interval = release_epsilon(single, DELTA), 1e-4
    if 0 < by_renyi < 100 and (law := single.loss_distribution(interval)) is not None:
        assert composed_epsilon([(law, 1)], DELTA - single.delta_share) <= by_renyi * 1.001


def test_a_mechanism_without_a_reason_or_a_curve_is_none():
    class Forgotten(Event):
        mechanism = "forgotten"

    with pytest.raises(TypeError, match="abstract"):
        Forgotten(threat=SERVER)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.mechanism)
def test_json_round_trip(event):
    entry = Entry(round=3, client=7, sequence=0, attempt=1, event=event)
    text = json.dumps(entry_to_json(entry), allow_nan=False)
    assert entry_from_json(json.loads(text)) == entry
    assert event_from_json(event_to_json(event)) == event
    assert hash(event) == hash(event_from_json(event_to_json(event)))


def test_an_entry_is_one_flat_object():
    event = Gaussian(threat=SERVER, multiplier=0.05)
    assert entry_to_json(Entry(1, 2, 3, 0, event)) == {
        "round": 1,
        "client": 2,
        "sequence": 3,
        "attempt": 0,
        "mechanism": "gaussian",
        "multiplier": 0.05,
        "count": 1,
        "unit": "client",
        "adjacency": "replace-one",
        "observer": "server",
    }


def test_realised_and_adaptive_travel_too():
    bound, spent = Gaussian(threat=SERVER, multiplier=0.5), Gaussian(threat=SERVER, multiplier=0.75)
    entry = Entry(1, 2, 3, 0, bound, realised=spent, adaptive=True)
    flat = entry_to_json(entry)
    assert flat["realised"] == {"mechanism": "gaussian", "multiplier": 0.75, "count": 1} and flat["adaptive"] is True
    assert entry_from_json(flat) == entry
    assert entry.spent is spent and Entry(1, 2, 3, 0, bound).spent is bound


def test_reading_equal_objects_gives_one_instance():
    flat = event_to_json(EVENTS[0])
    assert event_from_json(dict(flat)) is event_from_json(dict(flat))  # counting histories relies on it


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(threat=SERVER, multiplier=math.nan),
        lambda: Gaussian(threat=SERVER, multiplier=-1.0),
        lambda: Gaussian(threat=SERVER, multiplier="1"),
        lambda: Gaussian(threat=SERVER, multiplier=True),
        lambda: Gaussian(threat=SERVER, multiplier=1.0, count=0),
        lambda: Gaussian(threat=SERVER, multiplier=1.0, count=1.5),
        lambda: Threat("household", "replace-one", "server"),
        lambda: Threat("client", "replace", "server"),
        lambda: Threat("client", "replace-one", "everybody"),
        lambda: PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=1.1),
        lambda: PoissonGaussian(
            threat=Threat("example", "replace-one", "server"), multiplier=1.0, sampling_rate=0.1
        ),  # no sound analysis here
        lambda: PoissonGaussian(
            threat=Threat("client", "zero-out", "server"), multiplier=1.0, sampling_rate=0.1
        ),  # the server knows who took part
        lambda: PoissonGaussian(
            threat=Threat("client", "zero-out", "secure-sum"), multiplier=1.0, sampling_rate=0.1
        ),  # so does who sees the sum
        lambda: FixedSizeGaussian(threat=SERVER, multiplier=1.0, sample_size=10, population=100),
        lambda: FixedSizeGaussian(threat=PUBLIC, multiplier=1.0, sample_size=101, population=100),
        lambda: FixedSizeGaussian(
            threat=Threat("client", "zero-out", "public"), multiplier=1.0, sample_size=10, population=100
        ),
        lambda: Shuffled(threat=SERVER, epsilon=1.0, users=1000, delta=1e-6),
        lambda: Shuffled(threat=SUM, epsilon=1.0, users=1000, delta=0.0),
        lambda: PairedQuantisation(threat=SERVER, epsilon=1.0, private_share=1.5),
        lambda: PairedQuantisation(threat=SERVER, epsilon=1.0, private_share=0.5, group_size=1),
        lambda: NoBound(threat=SERVER, reason=""),
        lambda: Entry(-1, 0, 0, 0, EVENTS[0]),
        lambda: Entry(1, 0, 0, 0, EVENTS[0], realised=EVENTS[3]),  # another threat
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(ValueError):
        make()


GOOD = entry_to_json(Entry(1, 2, 3, 0, EVENTS[0]))


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {key: value for key, value in GOOD.items() if key != "round"},
        {key: value for key, value in GOOD.items() if key != "multiplier"},
        {key: value for key, value in GOOD.items() if key != "observer"},
        GOOD | {"mechanism": "gausian"},
        GOOD | {"colour": "red"},
        GOOD | {"multiplier": [1]},
        GOOD | {"multiplier": float("nan")},
        GOOD | {"count": 3.0},
        GOOD | {"count": True},
        GOOD | {"round": "1"},
        GOOD | {"adaptive": "yes"},
        GOOD | {"realised": 3},
        GOOD | {"realised": {"mechanism": "gaussian"}},
    ],
)
def test_malformed_entries_raise_value_error(broken):
    with pytest.raises(ValueError):
        entry_from_json(broken)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("events", "numpy scipy torch dp_accounting"),
        ("ledger", "numpy scipy torch dp_accounting"),
        ("gaussian_dp", "numpy scipy torch dp_accounting"),
        ("composition", "scipy torch dp_accounting"),
        ("claimed", "scipy torch dp_accounting"),
        ("calibration", "scipy torch dp_accounting"),
    ],
)
def test_imports_are_light(module, heavy):
    code = f"import sys, fedpriv.privacy.{module}; print([m for m in {heavy.split()} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
