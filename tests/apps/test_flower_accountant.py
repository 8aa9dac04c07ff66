"""The accountant for Flower's own central-DP strategies: against closed forms, Flower's own, and Flower's wrapper."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import GaussianPrivacyEvent
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from nodes_of_an_app import AppNodes
from scipy.stats import norm

import fedpriv
from fedpriv.certificates.making import of_any
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.runs.flower_accountant import Accountant


def exact(multiplier: float, rounds: int, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8: of a Gaussian of mu = sqrt(rounds) / multiplier."""
    mu, low, high = math.sqrt(rounds) / multiplier, 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        spent = norm.cdf(mu / 2 - middle / mu) - math.exp(middle) * norm.cdf(-mu / 2 - middle / mu)
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


@pytest.mark.parametrize(("multiplier", "rounds", "flowers"), [(5.0, 20, 4.162), (20.0, 100, 2.166)])
def test_the_figure_is_exact_and_below_flowers(multiplier: float, rounds: int, flowers: float) -> None:
    found = fedpriv.accountant(100)
    found.compose(GaussianPrivacyEvent(multiplier, 10, 100), rounds)
    assert found.get_epsilon(1e-5) == pytest.approx(exact(multiplier, rounds, 1e-5), rel=1e-6)
    assert 1.06 * found.get_epsilon(1e-5) < flowers < 1.1 * found.get_epsilon(1e-5)
    assert found.get_delta(found.get_epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-3)
    assert found.get_delta(0.0) > found.get_delta(1.0)
    spent = found.get_privacy_spent()
    assert (spent.num_releases, spent.delta, spent.accounting_method) == (rounds, 1e-5, "fedpriv-gaussian")


def test_a_poisson_sample_costs_less_and_a_whole_cohort_as_much() -> None:
    found = [fedpriv.accountant(100, sampling="poisson") for _ in range(2)]
    for one, sample in zip(found, (10, 100), strict=True):
        one.compose(GaussianPrivacyEvent(2.0, sample, 100), 10)
    assert found[0].get_epsilon(1e-5) < 0.3 * found[1].get_epsilon(1e-5)
    assert found[1].get_epsilon(1e-5) == pytest.approx(exact(2.0, 10, 1e-5), rel=1e-6)


def test_the_noise_of_a_round_is_z_times_what_one_client_moves() -> None:
    from flwr.supercore.differential_privacy import compute_stdv

    z, clip, n = 5.0, 0.7, 4
    assert compute_stdv(z, clip, n) == pytest.approx(z * (clip / n))  # C / n: one of n clipped updates, or zero


def test_a_poisson_sample_keeps_its_noise() -> None:
    found = fedpriv.accountant(100, sampling="poisson", max_epsilon=5.0)
    found.compose(GaussianPrivacyEvent(2.0, 10, 100))
    for event in (GaussianPrivacyEvent(3.0, 10, 100), GaussianPrivacyEvent(2.0, 20, 100)):
        for call in (found.compose, found.would_exceed):
            with pytest.raises(ValueError, match="stay those of the first release"):
                call(event)


def test_a_budget_is_held_exactly_and_by_a_filter_where_the_noise_changes() -> None:
    event = GaussianPrivacyEvent(5.0, 10, 100)
    found = fedpriv.accountant(100, max_epsilon=exact(5.0, 3, 1e-5) * (1 + 1e-9))
    admitted = 0
    while not found.would_exceed(event):
        found.compose(event)
        admitted += 1
    assert admitted == 3
    other = fedpriv.accountant(100, max_epsilon=exact(5.0, 3, 1e-5))
    other.compose(event)
    assert not other.would_exceed(GaussianPrivacyEvent(10.0, 10, 100), count=7)
    assert other.would_exceed(GaussianPrivacyEvent(10.0, 10, 100), count=9)
    with pytest.raises(ValueError, match="max_epsilon: none was given"):
        fedpriv.accountant(100).would_exceed(event)


def client(update: Any = 1) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = {name: Array(array.numpy() + update) for name, array in message.content["arrays"].items()}  # type: ignore[union-attr]
        content: Any = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(content), reply_to=message)

    return app


def started(accountant: Accountant, rounds: int) -> Any:
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=4, min_train_nodes=4)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, 5.0, 1.0, 4, accountant=accountant)
    return strategy.start(AppNodes(client(), 4), ArrayRecord([np.zeros(3, np.float32)]), rounds)


def test_flowers_wrapper_books_here_and_stops_at_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    from flwr.serverapp.exception import PrivacyBudgetExhausted

    limit = exact(5.0, 3, 1e-5) * 1.01
    first = fedpriv.accountant(4, max_epsilon=limit, folder=tmp_path / "dp")
    started(first, 2)
    state = json.loads(json.dumps(first.state_dict()))
    second = fedpriv.accountant(4, max_epsilon=limit, folder=tmp_path / "dp")  # the server was started again
    assert second.num_releases == 2
    second.load_state_dict(state)
    with pytest.raises(PrivacyBudgetExhausted):
        started(second, 5)
    assert second.num_releases == 3
    with pytest.raises(ValueError, match=r"the state has 2 releases, the ledger .* 3: what was spent is what the"):
        second.load_state_dict(state)
    certificate = of_any(tmp_path / "dp", verifier=True)
    (protection,) = certificate.content["protections"]
    assert float(protection["epsilon"]) == pytest.approx(exact(5.0, 3, 1e-5), rel=1e-6)
    words = [sys.executable, "verify_certificate.py", "certificate.json", f"key={certificate.key}"]
    checked = subprocess.run(words, cwd=tmp_path / "dp", capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with pytest.raises(RunFolderError, match="holds the ledger of another accountant"):
        fedpriv.accountant(5, folder=tmp_path / "dp")


@pytest.mark.parametrize(("twin", "update"), [("Server", [np.nan, 1e6]), ("Client", [0.0, 1e6])])
def test_a_certificate_says_where_flowers_clip_is_none(twin: str, update: list[float], tmp_path: Path) -> None:
    """Flower scales an update whose norm is NaN by 1, and in the client-side twin the server clips nobody."""
    from flwr.serverapp import strategy

    wrapper = getattr(strategy, f"DifferentialPrivacy{twin}SideFixedClipping")
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=4, min_train_nodes=4)
    of_dp = wrapper(inner, 5.0, 1.0, 4, accountant=fedpriv.accountant(4, folder=tmp_path / "dp"))
    model = ArrayRecord([np.zeros(2, np.float32)])
    found = of_dp.start(AppNodes(client(np.asarray(update, np.float32)), 4), model, 1)
    assert found.arrays.to_numpy_ndarrays()[0][1] > 1e5  # C / n is 0.25, and the noise's deviation 1.25
    (told,) = [one for one in of_any(tmp_path / "dp").content["assumptions"] if "sees no update" in one]
    assert "each client clips, by the mod" in told and "nor clips one that holds a NaN" in told


def test_a_folder_is_what_was_spent_whoever_wrote_it_and_in_whatever_order(tmp_path: Path) -> None:
    first, second = (fedpriv.accountant(10, max_epsilon=5.0, folder=tmp_path / "dp") for _ in range(2))
    for noise in (5.0, 6.0, 5.0):
        first.compose(GaussianPrivacyEvent(noise, 5, 10))
    assert second.num_releases == 3 and second.get_epsilon(1e-5) == first.get_epsilon(1e-5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    limit = first.get_epsilon(1e-5)
    second.compose(GaussianPrivacyEvent(5.0, 5, 10))
    assert first.get_epsilon(1e-5) > limit and first.would_exceed(GaussianPrivacyEvent(5.0, 5, 10), limit)
    (tmp_path / "dp/ledger.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"ledger.jsonl is gone"):
        fedpriv.accountant(10, max_epsilon=5.0, folder=tmp_path / "dp")


def test_a_changed_ledger_costs_everything(tmp_path: Path) -> None:
    found = fedpriv.accountant(10, max_epsilon=5.0, folder=tmp_path / "dp")
    found.compose(GaussianPrivacyEvent(5.0, 5, 10), 3)
    ledger = tmp_path / "dp/ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(True)[1:]))
    again = fedpriv.accountant(10, max_epsilon=5.0, folder=tmp_path / "dp")
    assert again.get_epsilon(1e-5) == math.inf and again.would_exceed(GaussianPrivacyEvent(5.0, 5, 10))
    with pytest.raises(RunFolderError, match="is missing, changed or out of its place"):
        again.state_dict()


def test_wrong_calls_name_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"sampling=without-replacement: .*allowed: no-amplification, poisson"):
        fedpriv.accountant(10, sampling="without-replacement")
    with pytest.raises(OptionError, match="population_size must be a positive integer"):
        fedpriv.accountant(0)
    with pytest.raises(ValueError, match="population_size=9, this accountant's is 10"):
        fedpriv.accountant(10).compose(GaussianPrivacyEvent(1.0, 2, 9))
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    with pytest.raises(RunFolderError, match="must be a new folder"):
        fedpriv.accountant(10, folder=tmp_path / "used")
