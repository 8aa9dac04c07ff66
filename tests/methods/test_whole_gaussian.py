"""ddgauss and skellam: releases in whole numbers, the sum and what it says, the floor, the account."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, rows_of
from reference.federation import FixedUpdates, make_site
from safetensors.numpy import load_file

from clients.ddgauss import DDGaussClient
from clients.fedldp import FedLDPClient
from clients.skellam import SkellamClient
from fedpriv.client.contract import PublicFacts
from fedpriv.client.gaussian import WholeGaussianClient
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.messages import CLIP_BIT, CLIP_REPORTED_NORM, Request
from fedpriv.config.compose import compose
from fedpriv.mechanisms.integer_noise import add_residues, centred, unpack_residues
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import CLIENT_TO_SERVER, SECURE_SUM, DiscreteGaussianSum, Gaussian, SkellamSum
from fedpriv.privacy.sum_grid import SumGrid
from fedpriv.runs.planning import plan_elsewhere
from fedpriv.runs.preparation import resolve
from fedpriv.server.round import Population
from fedpriv.server.whole_gaussian import WholeGaussianServer
from strategies.ddgauss import DDGauss
from strategies.skellam import Skellam

D, N, DELTA = 50, 6, 1e-5
FACTS = PublicFacts(60, 60, 10, 4, N, D, N)
HALVES: dict[str, tuple[type[WholeGaussianClient], type[WholeGaussianServer]]] = {
    "ddgauss": (DDGaussClient, DDGauss),
    "skellam": (SkellamClient, Skellam),
}
both = pytest.mark.parametrize("method", HALVES)


def update_of(client: int) -> torch.Tensor:
    """Lengths 0.4, 0.8, ..., against C = 1."""
    drawn = torch.randn(D, generator=torch.Generator().manual_seed(client))
    return drawn * (0.4 * (client + 1) / drawn.norm())


def uploads(method: str, **options: Any) -> list[np.ndarray]:
    """What six clients send in round 1 (uint8)."""
    kind, found = HALVES[method][0], []
    for client in range(N):
        site = make_site(client, FixedUpdates(lambda _, client=client: update_of(client)))
        half = making.client(kind, site=site, facts=FACTS, **options)
        found.append(half.answer(Request(1, 0), np.zeros(D, np.float32)).release)
    return found  # type: ignore[return-value]


def decoded(method: str, sent: list[np.ndarray], **options: Any) -> tuple[np.ndarray, dict[str, float]]:
    population = Population(making.client(DDGaussClient, site=make_site(), facts=FACTS)._site().seed, N, N, lambda _: 1)
    server = making.server(HALVES[method][1], population, **options)
    server.current.number, server.current.theta = 1, np.zeros(D, np.float32)
    total = np.zeros(server.numbers(D), np.uint64)
    for packed in sent:
        add_residues(total, unpack_residues(packed, server.bits, server.numbers(D)), server.bits)
    found = server.decode_sum(centred(total, server.bits), len(sent), D)
    return found.mean, dict(found.statistics)


@both
def test_a_sum_is_the_mean_of_clipped_updates_and_the_noise_of_all(method: str) -> None:
    clipped = torch.stack([update_of(client) / max(1.0, 0.4 * (client + 1)) for client in range(N)]).mean(0).numpy()
    almost, _ = decoded(method, uploads(method, noise_multiplier=1e-9, bits=32), noise_multiplier=1e-9, bits=32)
    assert np.abs(almost - clipped).max() < 1e-6
    options = {"noise_multiplier": 0.7, "bits": 20}
    sent = uploads(method, **options)
    assert {packed.shape for packed in sent} == {(64 * 20 // 8,)} and sent[0].dtype == np.uint8
    noisy, _ = decoded(method, sent, **options)
    assert np.std(noisy - clipped) == pytest.approx(0.7 / math.sqrt(N), rel=0.35)


@pytest.mark.parametrize(("rule", "name"), [("quantile", CLIP_BIT), ("adp", CLIP_REPORTED_NORM)])
@both
def test_what_moves_the_clip_norm_is_a_number_of_the_sum(method: str, rule: str, name: str) -> None:
    level = {"quantile": "count_noise", "adp": "norm_noise"}[rule]
    options = {"clipping": rule, "noise_multiplier": 1e-6, "bits": 40, level: 1e-6}
    _, told = decoded(method, uploads(method, **options), **options)
    norms = [0.4 * (client + 1) for client in range(N)]
    expected = np.mean([norm <= 1 for norm in norms]) if rule == "quantile" else np.mean(norms)
    assert told == {name: pytest.approx(expected, abs=1e-3)}


def test_the_statistic_costs_a_tenth_of_the_vector_in_the_sum_as_alone() -> None:
    """Charged one by one it cost more than everything else (91 % of the board's budget)."""
    client = making.client(DDGaussClient, facts=FACTS, clipping="quantile", min_replies=6, noise_multiplier=1.0)
    vector, bit = (charge.event for charge in client.charges(None) if charge.event.threat == SECURE_SUM)
    assert isinstance(vector, DiscreteGaussianSum) and isinstance(bit, DiscreteGaussianSum)
    assert (bit.dimension, bit.noises) == (1, 6) and bit.multiplier == pytest.approx(1.6 * math.sqrt(6), rel=1e-3)
    assert (vector.multiplier / bit.multiplier) ** 2 == pytest.approx(0.1, rel=0.05)
    gaussian = making.client(FedLDPClient, clipping="quantile", min_replies=6)
    (_, summed) = gaussian.planned_events(1, SECURE_SUM)
    assert summed.multiplier == pytest.approx(1.6 * gaussian.noise_multiplier * math.sqrt(6))  # type: ignore[attr-defined]


# --- the account -----------------------------------------------------------------------------------------------------


@both
def test_the_account_is_that_of_the_floor_less_the_colluders(method: str) -> None:
    options = {"noise_multiplier": 1.0, "min_replies": 5, "colluders": 2}
    client = making.client(HALVES[method][0], facts=FACTS, **options)
    in_sum, alone = (charge.event for charge in client.all_charges())
    kind = DiscreteGaussianSum if method == "ddgauss" else SkellamSum
    assert isinstance(in_sum, kind) and isinstance(alone, kind)
    assert (in_sum.threat, in_sum.noises, alone.threat, alone.noises) == (SECURE_SUM, 3, CLIENT_TO_SERVER, 1)
    assert client.threat == SECURE_SUM and client.accounts() == (SECURE_SUM, CLIENT_TO_SERVER)
    # rounding adds little at 18 bits, so it is nearly the Gaussian's: 2C against sqrt(3) sigma
    gaussian = Gaussian(threat=SECURE_SUM, multiplier=math.sqrt(3) / 2)
    found, exact = (compose_events([event], DELTA).epsilon for event in (in_sum, gaussian))
    assert exact < found < 1.12 * exact
    assert client.planned_events(4, SECURE_SUM) == [replace(in_sum, count=4)]
    assert making.client(HALVES[method][0], facts=FACTS, noise_multiplier=0.0).exact_leak() is not None


@pytest.mark.parametrize("rule", ["fixed", "quantile"])
def test_all_that_a_run_sums_shares_one_part_of_delta(rule: str) -> None:
    """Vectors and what is told beside them, in every round: together a hundredth."""
    options = {"noise_multiplier": 1.0, "clipping": rule, "claimed_delta": DELTA, "min_replies": 5}
    client = making.client(SkellamClient, facts=FACTS, **options)
    events = client.planned_events(FACTS.num_rounds, SECURE_SUM)
    assert len(events) == (1 if rule == "fixed" else 2)
    assert sum(event.count * event.delta for event in events) == pytest.approx(0.01 * DELTA)  # type: ignore[attr-defined]


@both
def test_a_target_is_met_for_sums_and_for_the_server(method: str) -> None:
    size = (
        f"strategy={method}",
        "num_clients=8",
        "clients_per_round=8",
        "num_rounds=3",
        "strategy.server.min_replies=6",
    )
    for observer in ("secure-sum", "server"):
        target = ("privacy.target_epsilon=20", f"privacy.target_observer={observer}")
        config, _, plan = resolve(compose([*size, *target, "engine=inprocess", "model=linear"]), None)
        (elsewhere,) = plan_elsewhere(config)
        met = plan.verified_epsilon if observer == "secure-sum" else elsewhere.verified_epsilon
        assert 19.7 <= met <= 20 and plan.verified_epsilon < elsewhere.verified_epsilon


def test_the_noise_of_many_clients_is_drawn_in_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for law in ("gaussian", "skellam"):
        grid = SumGrid(law, 50, 100, 20, 1.0)  # type: ignore[arg-type]
        drawn = grid.noise(40.0, (20_000,), SeededNoise(law), 25).double()
        assert float(drawn.std()) == pytest.approx(200, rel=0.03)
        monkeypatch.setattr("fedpriv.mechanisms.whole_numbers.MOST_STEPS", 90.0)  # of one table: five pieces
        several = grid.noise(40.0, (20_000,), SeededNoise(law, "several"), 25).double()
        assert float(several.std()) == pytest.approx(200, rel=0.03) and not torch.equal(several, drawn)


# --- rounds ----------------------------------------------------------------------------------------------------------

SIZE = ("num_clients=6", "clients_per_round=6", "num_rounds=3", "evaluate.every=0", "operations.report=false")


@both
def test_a_round_survives_to_the_floor_and_fails_clearly_below(method: str, run: Run) -> None:
    faults = "engine.faults=[{round: 2, client: 1, kind: drop}, {round: 2, client: 4, kind: raise}]"
    folder = run(f"strategy={method}", *SIZE, faults, "strategy.server.min_replies=4")
    assert [row["participants"] for row in rows_of(folder)] == [6, 4, 6]
    with pytest.raises(RunFailed, match=r"4 usable replies of 6, strategy\.server\.min_replies=5"):
        run(f"strategy={method}", *SIZE, faults, "strategy.server.min_replies=5", folder=folder.parent / "below")


def test_a_round_that_is_given_up_stays_charged(run: Run, tmp_path: Any) -> None:
    faults = "engine.faults=[{round: 2, client: 1, kind: drop}]"
    options = ("strategy=ddgauss", *SIZE, "strategy.server.min_replies=6", "checkpoint.every=1")
    with pytest.raises(RunFailed):
        run(*options, faults, folder=tmp_path / "run")
    charged = [line for line in ledger_of(tmp_path / "run") if line["observer"] == "secure-sum" and line["round"] == 2]
    assert {line["client"] for line in charged} == set(range(6)) and {line["noises"] for line in charged} == {6}


def test_a_rule_gets_one_number_of_a_round(run: Run) -> None:
    """One window, of the round's mean norm."""
    folder = run("strategy=skellam", "strategy.server.clipping=adp", "strategy.server.window=2", *SIZE, "num_rounds=4")
    figures = [row["figures"] for row in rows_of(folder)]
    assert set(figures[1]["norm_changes"]) == {"-1"} and len({row["clip_norm"] for row in figures}) > 1


def test_both_trainers_agree(run: Run, tmp_path: Any) -> None:
    """Within a grid step or two: a number at the edge of two steps may be rounded either way."""
    options = ("strategy=ddgauss", *SIZE, "model=linear", "num_rounds=1", "strategy.client.noise_multiplier=0.01")
    models = [
        load_file(run(*options, f"engine.trainer={trainer}", folder=tmp_path / trainer) / "model.safetensors")
        for trainer in ("sequential", "vectorised")
    ]
    for name, values in models[0].items():
        assert np.abs(values - models[1][name]).max() < 2e-3


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("strategy=ddgauss", "strategy.secure_sum=assumed"), "secure_sum=assumed: "),
        (("strategy=ddgauss", "strategy.server.secure_sum=protocol"), "must be strategy.secure_sum=ideal"),
        (("strategy=ddgauss", "strategy.client.bits=20", "strategy.server.bits=18"), "bits=20 is the same option"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], words: str) -> None:
    with pytest.raises(OptionError) as error:
        compose(list(options))
    assert words in str(error.value)


def test_who_adds_up_is_part_of_the_digest() -> None:
    summed = compose(["strategy=cpsgd", "strategy.secure_sum=ideal"])
    assert summed.digest() != compose(["strategy=cpsgd"]).digest()


# --- cpSGD in a sum --------------------------------------------------------------------------------------------------


def test_cpsgd_gives_the_same_mean_from_a_sum(run: Run, tmp_path: Any) -> None:
    """Client by client, or from the sum of their numbers: as close as float32 is; the sum is charged as before."""
    options = ("strategy=cpsgd", "strategy.client.epsilon=50", *SIZE, "strategy.server.min_replies=4")
    folders = [run(*options, f"strategy.secure_sum={how}", folder=tmp_path / how) for how in ("assumed", "ideal")]
    models = [load_file(folder / "model.safetensors") for folder in folders]
    for name, values in models[0].items():
        assert np.allclose(values, models[1][name], atol=1e-5)
    one, other = (json.loads((folder / "summary.json").read_text())["privacy"] for folder in folders)
    assert (one["observer"], other["observer"]) == ("server", "secure-sum")
    assert other["verified_epsilon"] == one["others"][0]["verified_epsilon"]
    assert other["others"][0]["verified_epsilon"] == one["verified_epsilon"]


def test_cpsgd_says_how_wide_a_number_of_its_sum_is() -> None:
    wide = ("strategy=cpsgd", "strategy.secure_sum=ideal", "strategy.client.trials=1125899906842624")
    config = compose([*wide, "num_clients=100", "clients_per_round=100"])
    with pytest.raises(OptionError, match=r"strategy\.server\.bits=null: sums of 100 clients need 57 bits"):
        resolve(config.model_copy(update={"engine": compose(["engine=inprocess"]).engine}), None)
