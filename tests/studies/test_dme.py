"""Distributed mean estimation: every quantiser against its closed form, and the command line end to end."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from reference.coq_fl import pair_covariance

from fedpriv.commands import dme
from fedpriv.common.command_line import hints_of, read_arguments, read_options
from fedpriv.common.errors import OptionError
from fedpriv.mechanisms import laws
from fedpriv.mechanisms.quantisation import high_probability, step
from fedpriv.studies import mean_estimation
from fedpriv.studies.mean_estimation import Options, Quantiser, estimate, expected_error, quantisers, squared_errors

MU = 1 - math.sqrt(0.75)  # lambda = 0.25
RADIUS, TRIALS, CLIENTS = 0.7, 400, 11

ALL = [*quantisers(1.0, 3, MU, (3, 4, 8), CLIENTS), Quantiser("pair of Suresh et al.", math.inf, 2, antithetic=False)]


def values(inputs: str, clients: int = CLIENTS, dimension: int = 60) -> torch.Tensor:
    return mean_estimation.draw_values(
        mean_estimation.Options(n=clients, dimension=dimension, radius=RADIUS, inputs=inputs)
    )


@pytest.mark.parametrize("quantiser", ALL, ids=lambda one: one.name)
@pytest.mark.parametrize("inputs", ["uniform", "gaussian", "same", "half"])
def test_every_quantiser_is_unbiased_and_has_the_error_of_its_closed_form(quantiser: Quantiser, inputs: str) -> None:
    """Eleven clients: every size but one leaves some over. The covariances' share of the error is many z-scores."""
    held = values(inputs)
    found = estimate(quantiser, held, RADIUS, TRIALS, np.random.default_rng(1))
    expected = expected_error(quantiser, held, RADIUS)
    bias = float((found - held.mean(0)).mean())
    assert abs(bias) <= 4 * math.sqrt(expected / found.numel())
    errors = squared_errors(quantiser, held, RADIUS, TRIALS, np.random.default_rng(2))
    deviation = float(errors.std()) / math.sqrt(TRIALS)
    assert abs(float(errors.mean()) - expected) <= 4 * deviation + 1e-12
    independent = expected_error(Quantiser("", quantiser.epsilon), held, RADIUS)
    assert quantiser.group_size == 1 or independent - expected > 20 * deviation


@pytest.mark.parametrize("epsilon", [0.5, math.log(3), 3.0, math.inf])
@pytest.mark.parametrize("bits", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("mu", [0.0, MU])
def test_variance_of_a_pair_over_a_grid_of_inputs(epsilon: float, bits: int, mu: float) -> None:
    """Each (w_a, w_b) is one coordinate: its squared error against the exact joint law, and against Lemma 2's limit."""
    held = torch.tensor(list(itertools.product(np.linspace(-1, 1, 6), repeat=2)), dtype=torch.float64).T
    pair, trials, length = Quantiser("pair", epsilon, 2, bits, mu), 3000, float(step(1.0, epsilon))
    law = pair_laws(pair, held)
    outcomes = (length * np.array([1.0, 0, 0, -1]) - held.mean(0).numpy()[:, None]) ** 2  # squared errors
    expected = (law * outcomes).sum(1)
    places = range(held.shape[1])
    closed = np.array([expected_error(pair, held[:, [place]], 1.0) for place in places])
    np.testing.assert_allclose(closed, expected, atol=1e-12 * length**2)
    deviation = np.sqrt(np.maximum(0, (law * outcomes**2).sum(1) - expected**2) / trials)
    found = estimate(pair, held, 1.0, trials, np.random.default_rng(bits)) - held.mean(0)
    away = found.square().mean(0).numpy() - expected
    assert (np.abs(away) <= 4.5 * deviation + 4 * outcomes.max(1) / trials).all()  # of a rare outcome, four more
    assert abs(away.sum()) <= 4 * np.sqrt((deviation**2).sum()) + 1e-9
    if mu == 0:
        p = high_probability(held, 0.0, 1.0, epsilon)
        limit = (2 * length**2 - held.square().sum(0) + 2 * pair_covariance(p[0], p[1], length)).numpy() / 4
        assert (closed - limit).min() >= -1e-9 and (closed - limit).max() <= length**2 / 2**bits / 2 + 1e-9


def pair_laws(pair: Quantiser, held: torch.Tensor) -> np.ndarray:
    p = high_probability(held, 0.0, 1.0, pair.epsilon).numpy()
    return np.stack([laws.pair_law(p_a, p_b, pair.independent_weight, pair.bits) for p_a, p_b in p.T])


def test_without_shared_bits_a_pair_is_ldp_fl() -> None:
    held = values("uniform")
    assert expected_error(Quantiser("", 1.0, 2, 0), held, RADIUS) == pytest.approx(
        expected_error(Quantiser("", 1.0), held, RADIUS), rel=1e-12
    )


def test_a_pair_at_the_centre_has_no_error() -> None:
    held = values("half", clients=6)
    for epsilon, bits in ((0.1, 1), (1.0, 8), (math.inf, 3)):
        pair = Quantiser("pair", epsilon, 2, bits)
        assert expected_error(pair, held, RADIUS) == 0
        assert float(squared_errors(pair, held, RADIUS, 50, np.random.default_rng(0)).max()) < 1e-24


def test_the_page_s_variances_at_joint_epsilon_2_28() -> None:
    """[coq-fl page, "Does it pay?"]: variance of the pair's mean at p = 1/2, in units of r^2."""
    held = torch.zeros(2, 1, dtype=torch.float64)
    for quantiser, variance in (
        (Quantiser("", 1.0, 2, 8, MU), 0.585),
        (Quantiser("", 1.345, 2, 8, 1 - math.sqrt(1 - 0.376)), 0.546),  # the page has 0.54
        (Quantiser("", 2.28), 0.754),
    ):
        assert expected_error(quantiser, held, 1.0) == pytest.approx(variance, abs=5e-4)
        assert quantiser.joint_epsilon("server") == pytest.approx(2.28, abs=0.005)


def test_pieces_of_a_long_vector_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    held, quantiser = values("uniform", clients=4), Quantiser("", 1.0, 4)
    monkeypatch.setattr(
        "fedpriv.studies.mean_estimation.STREAM", 4 * 7
    )  # 7 of 60 coordinates at a time, one trial each
    errors = squared_errors(quantiser, held, RADIUS, 150, np.random.default_rng(0))
    assert abs(float(errors.mean()) - expected_error(quantiser, held, RADIUS)) < 4 * float(errors.std()) / math.sqrt(
        150
    )


def test_joint_epsilons() -> None:
    by_name = {one.name: one for one in quantisers(1.0, 16, MU, (2, 4), 10)}
    assert list(by_name) == ["ldpfl", "sq", "coqfl", "coqfl-repaired", "coqfl-g4", "coqfl-g4-repaired", "corrquant"]
    found = {name: (one.joint_epsilon("server"), one.joint_epsilon("server+members")) for name, one in by_name.items()}
    assert found["ldpfl"] == (1, 1)
    for name in ("sq", "coqfl", "coqfl-g4", "corrquant"):
        assert found[name] == (math.inf, math.inf)
    assert found["coqfl-repaired"] == pytest.approx((2.28, 3.29), abs=0.01)
    low, high = laws.bit_extremes(1.0)
    members = math.log((1 - MU + MU * high) / (MU * low))
    assert found["coqfl-g4-repaired"] == pytest.approx((members, members))


# --- the command line ------------------------------------------------------------------------------------

TINY = ("n=5", "dimension=6", "trials=6", "group_size=3", "seed=4")


def run(folder: Path, *more: str) -> dict:
    assert dme.main([*TINY, *more, f"out={folder}"]) == 0
    return json.loads((folder / "dme.json").read_text())


def test_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(tmp_path / "a", "figure=all", "epsilon=1.5")
    printed = capsys.readouterr().out
    names = [row["quantiser"] for row in found["table"]]
    assert names == ["ldpfl", "sq", "coqfl", "coqfl-repaired", "coqfl-g3", "coqfl-g3-repaired", "corrquant"]
    lines = {line.split()[0]: line.split()[1:] for line in printed.splitlines()}
    assert lines["ldpfl"][-2:] == ["1.5", "1.5"] and lines["coqfl"][-2:] == ["infinite", "infinite"]
    assert float(lines["ldpfl"][2]) == pytest.approx(found["table"][0]["closed_form"], rel=1e-3)
    assert found["table"][2]["epsilon_server"] == "inf"
    assert [figure["axis"] for figure in found["figures"]] == ["epsilon", "n", "bits", "group_size"]
    places = {figure["axis"]: [point["x"] for point in figure["curves"][0]["points"]] for figure in found["figures"]}
    assert places["epsilon"] == [0.25, 0.5, 1, 1.5, 2, 4, 8] and places["n"] == [2, 4, 5, 8, 16, 32, 64]
    assert places["bits"] == list(range(9)) and places["group_size"] == [2, 3, 4, 5]
    for figure in found["figures"]:
        assert (tmp_path / "a" / figure["file"]).read_bytes().startswith(b"<?xml") and figure["alt"]
        for curve in figure["curves"]:
            line = dict(map(tuple, curve["line"]))
            assert all(point["closed_form"] == line[point["x"]] for point in curve["points"])
    groups = {curve["name"] for curve in found["figures"][3]["curves"]}
    assert groups == {"ldpfl", "coqfl", "coqfl-repaired"}


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    first, again = (run(tmp_path / name, "figure=1") for name in "ab")
    assert first["table"] == again["table"] and first["figures"] == again["figures"]
    other = run(tmp_path / "c", "figure=1", "seed=5")
    assert other["table"] != first["table"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["dme.json", "error-epsilon.svg"]


def test_without_privacy_and_without_any_error(tmp_path: Path) -> None:
    """Errors of exactly 0 have no place on a logarithmic axis and no ratio."""
    found = run(tmp_path / "a", "figure=2", "epsilon=inf", "inputs=half", "n=4")
    row = {row["quantiser"]: row for row in found["table"]}["coqfl"]
    assert row["error"] == row["closed_form"] == 0 and row["ratio"] is None
    assert found["options"]["epsilon"] == "inf" and (tmp_path / "a" / "error-n.svg").exists()


def test_default_group_sizes_that_do_not_fit_are_left_out() -> None:
    assert read_options(Options, {"n": "5"}).group_size == (4,)
    assert read_options(Options, {"n": "3"}).group_size == ()
    assert read_options(Options, {"group_size": "8,2,8"}).group_size == (2, 8)
    assert str(Options().out).startswith("outputs/dme/")


@pytest.mark.parametrize(
    ("word", "allowed"),
    [
        ("epsilon=0", "0.001 to 100, or inf"),
        ("epsilon=nan", "0.001 to 100, or inf"),
        ("epsilon=many", "0.001 to 100, or inf"),
        ("bits=40", "from 0 to 16"),
        ("bits=1.5", "from 0 to 16"),
        ("group_size=1", "from 2 to n"),
        ("group_size=4,11", "from 2 to n=10"),
        ("group_size=", "is empty"),
        ("radius=0", "1e-06 to 1000000"),
        ("radius=inf", "1e-06 to 1000000"),
        ("private_share=1.1", "from 0 to 1"),
        ("n=1", "from 2 to 1000"),
        ("dimension=0", "at least 1"),
        ("dimension=156251", "at most 156250 at n=10"),
        ("trials=1", "from 2 to 1000000"),
        ("trials", "is too much; allowed: n, dimension"),
        ("seed=-1", "at least 0"),
        ("inputs=ones", "uniform, gaussian, same, half"),
        ("figure=3", "1, 2, all"),
        ("out=", "is empty"),
        ("sigma=3", "no such option; allowed: n, dimension,"),
        ("--fast", "no such option"),
    ],
)
def test_wrong_values_name_option_value_and_what_is_allowed(
    word: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OptionError) as error:
        read_arguments(dme.main, [word])
    key, _, value = word.partition("=")
    assert (error.value.option, str(error.value.value)) == (key, value) and allowed in error.value.allowed
    assert dme.main([word]) == 2
    assert capsys.readouterr().err.startswith(f"fedpriv: {key}")


def test_an_earlier_result_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dme.json").write_text("{}")
    assert dme.main([*TINY, f"out={tmp_path}"]) == 2
    assert "without a dme.json" in capsys.readouterr().err and (tmp_path / "dme.json").read_text() == "{}"
    (tmp_path / "file").write_text("")
    assert dme.main([*TINY, f"out={tmp_path / 'file'}"]) == 2


def test_many_group_sizes_find_a_colour_each(tmp_path: Path) -> None:
    found = run(tmp_path / "a", "figure=1", "n=14", "group_size=3,4,5,6,7,8,9,10,11,12,13,14")
    assert len(found["figures"][0]["curves"]) == 2 * 12 + 5


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert dme.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"[{key}=" in printed for key in hints_of(Options))
