"""DP-FedAGS and its rivals: the server's part and whole runs."""

from __future__ import annotations

import json
import math
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run, ledger_of, page_of, rows_of
from reference.federation import make_site
from reference.recording import Conversation
from test_fedags import ROUNDS, D, fedags, gradient

from clients.fedags import FedAGSClient, scheduled_rank
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import TRAIN_LOSS, MalformedMessage
from fedpriv.common.replies import Reply
from fedpriv.config.compose import compose
from fedpriv.config.schema import LocalConfig
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.gaussian_dp import gaussian_epsilon, gaussian_mu
from fedpriv.runs.preparation import resolve
from fedpriv.server.round import Population, Round
from fedpriv.training.sequential import draw_batches
from strategies.fedags import FedAGS

# --- the server ----------------------------------------------------------------------------------------------


def server(variant: str = "published", loss_weights: bool | None = None, selection: str = "random") -> FedAGS:
    population = Population(3, 4, 2, lambda client: 100 * (client + 1))
    made = making.server(
        FedAGS,
        population,
        rounds=ROUNDS,
        threshold="equation",
        loss_weights=loss_weights,
        selection=selection,
        variant=variant,
        learning_rate=0.5,
        weighting="examples",
    )
    made.current = Round(10, np.zeros(D, np.float32))
    return made


def reply(client: int, release: np.ndarray, loss: float | None) -> Reply:
    statistics = {} if loss is None else {TRAIN_LOSS: loss}
    return Reply(client, release, 100 * (client + 1), {}, 0, statistics)


def test_the_step_is_equation_3_with_the_weights_of_equation_37():
    first, second, theta = np.full(D, 1.0, np.float32), np.full(D, -2.0, np.float32), np.full(D, 0.5, np.float32)
    made = server()
    moved = made.aggregate(theta, [reply(0, first, 3.0), reply(1, second, 1.0)])
    gamma = [(100 * 4 + 300 * 3) / (2 * 300 * 4), (200 * 4 + 300 * 1) / (2 * 300 * 4)]
    assert moved == pytest.approx(0.5 - 0.5 * (gamma[0] * 1.0 + gamma[1] * -2.0), abs=1e-6)
    assert made.current.figures["loss_weights"] == pytest.approx(gamma, abs=1e-6)
    plain = server("repaired").aggregate(theta, [reply(0, first, None), reply(1, second, None)])
    assert plain == pytest.approx(0.5 - 0.5 * (1 / 3 - 4 / 3), abs=1e-6)


def test_a_negative_loss_refuses_the_reply():
    with pytest.raises(MalformedMessage, match=f"metrics.{TRAIN_LOSS}: a loss of -0.1"):
        server().check(reply(0, np.zeros(D, np.float32), -0.1))
    server().check(reply(0, np.zeros(D, np.float32), 0.0))
    assert server("repaired").statistics == () and server("repaired", True).statistics == (TRAIN_LOSS,)


@pytest.mark.parametrize("selection", ["random", "gumbel"])
def test_the_server_reads_what_a_repaired_client_sends(selection: str):
    client = fedags("repaired", selection=selection, epsilon=1e6, site=make_site(client=2))
    client.round = 10
    released = client.release(gradient(), None, SeededNoise(9)).value
    made = server("repaired", selection=selection)
    assert made.decode is not None
    decoded = made.decode(2, client.encode(released).numpy())
    assert np.array_equal(decoded, released.nan_to_num(0.0).numpy())
    with pytest.raises(ValueError, match="expected"):
        made.decode(2, client.encode(released).numpy()[:-1])


@pytest.mark.parametrize("loss", [-1.0, math.nan, math.inf])
def test_a_round_goes_on_without_a_reply_whose_loss_is_impossible(loss: float, run: Run, monkeypatch: Any):
    reported = FedAGSClient.reported_loss

    def lying(self: FedAGSClient, shape: Any, noise: Any) -> torch.Tensor:
        wrong = torch.tensor(loss, dtype=torch.float64)
        return wrong if self._site().client == 1 and self.round == 2 else reported(self, shape, noise)

    monkeypatch.setattr(FedAGSClient, "reported_loss", lying)
    folder = run("strategy=fedags", "privacy.variant=published", "strategy.server.min_replies=3")
    rows = rows_of(folder)
    assert [row["participants"] for row in rows] == [4, 3, 4] and "train-loss" in rows[1]["errors"]["1"]
    assert sum(entry["client"] == 1 for entry in ledger_of(folder)) == 3  # what left is spent


# --- whole runs ----------------------------------------------------------------------------------------------


def test_what_travels_is_what_the_plan_says():
    for overrides in (("strategy=fedags",), ("strategy=dpfedsnlc", "strategy.client.selection=gumbel")):
        talk = Conversation(*overrides, "num_rounds=4")
        sent = sum(reply.content["arrays"]["vector"].data.__len__() for _, reply in talk.grid.seen)  # type: ignore[index]
        header = 128 * len(talk.grid.seen)  # numpy's own
        assert talk.plan.bytes_up == sent - header
        assert all("train-loss" not in dict(reply.content["metrics"]) for _, reply in talk.grid.seen)  # type: ignore[call-overload]


def test_a_run_says_what_it_promises_and_what_it_measured(run: Run):
    folder = run("strategy=fedags", "strategy.client.epsilon=0.5", "privacy.delta=0.001")
    summary = json.loads((folder / "summary.json").read_text())["privacy"]
    assert summary["claimed_scope"] == "round" and summary["verified_at_claimed_scope"] == 0
    mu = gaussian_mu(0.5, 0.001)
    assert summary["verified_epsilon"] == pytest.approx(gaussian_epsilon(mu * math.sqrt(3), 0.001), rel=1e-6)
    assert any("at delta 0.001 a round costs 0.5" in reason for reason in summary["reasons"])
    shares = [row["figures"]["share_perturbed"] for row in rows_of(folder)]
    d = 650
    assert shares == pytest.approx([(d - scheduled_rank(t, 3, d) + 1) / d for t in (1, 2, 3)])
    report = page_of(folder)
    assert "share_perturbed" in report and "scheduled_share" in report


def test_a_published_run_says_what_leaks(run: Run):
    folder = run("strategy=fedags", "privacy.variant=published")
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == "inf" and privacy["claimed_epsilon"] == 0.5
    (leak, claim) = privacy["reasons"]
    assert "33% to 90% by the schedule" in leak and "training loss is sent as it is" in leak
    assert "e^-epsilon = 0.607" in claim
    assert "sent without noise" in page_of(folder)


@pytest.mark.parametrize(
    ("overrides", "option", "words"),
    [
        (["strategy.client.noise=laplace"], "strategy.client.noise", "privacy.variant=published"),
        (["strategy.client.sensitivity=per_example"], "strategy.client.sensitivity", "privacy.variant=published"),
        (["strategy.client.epsilon_split=[0.1,0.1,0.3]"], "strategy.client.epsilon_split", "allowed: null, or"),
        (
            ["privacy.variant=published", "strategy.client.epsilon_split=[0.1,0.1,0.2]"],
            "strategy.client.epsilon_split",
            "must sum to strategy.client.epsilon=0.5, the sum is 0.4",
        ),
        (
            ["privacy.variant=published", "strategy.client.epsilon_split=[0.5,0.0]"],
            "strategy.client.epsilon_split",
            "three positive numbers",
        ),
        (["strategy.client.score_bound=2"], "strategy.client.score_bound", "at most strategy.client.clip_norm=1.0"),
        (["strategy.server.selection=some"], "strategy.client.selection", "allowed: random or gumbel"),
        (["strategy.server.rounds=50"], "strategy.server.rounds", "must be num_rounds=60"),
        (["local.momentum=0.9"], "local.momentum", "plain SGD"),
        (["local.steps=0"], "local.steps", "at least 1"),
        (["strategy.client.epsilon=0"], "strategy.client.epsilon", "at least 1e-06"),
        (["strategy.client.values_share=1.0"], "strategy.client.values_share", "less than 1"),
        (
            ["strategy.client.loss_weights=true", "strategy.client.loss_share=0.96"],
            "strategy.client.loss_share",
            "leave something",
        ),
        (["privacy.variant=published", "privacy.max_epsilon=5"], "privacy.max_epsilon", "no budget can be kept"),
    ],
)
def test_impossible_options_are_named(overrides: list[str], option: str, words: str):
    with pytest.raises(OptionError) as refused:
        resolve(compose(["strategy=fedags", *overrides]), None)
    assert refused.value.option == option and words in str(refused.value)


def test_local_steps_are_batches_however_many_epochs_they_need():
    for sampler, sizes in (("shuffle", [4, 4, 2, 4, 4]), ("poisson", None)):
        config = LocalConfig(epochs=1, steps=5, batch_size=4, lr=0.1, momentum=0.0, sampler=sampler)
        batches = list(draw_batches(config, 10, np.random.default_rng(0)))
        assert len(batches) == 5
        if sizes:
            assert [len(batch) for batch in batches] == sizes
            assert sorted(np.concatenate(batches[:3]).tolist()) == list(range(10))


def test_the_report_draws_the_share_beside_the_schedule(run: Run):
    folder = run("strategy=fedags", "privacy.variant=published")
    assert "share of coordinates with noise" in page_of(folder)
    assert (folder / "private" / "significance.png").stat().st_size > 5000
