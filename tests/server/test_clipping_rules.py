"""Rules that move the clip norm: equations, what a client accepts, whole runs; and what they cost."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import SMALL, Outcome, Run, page_of, result_of, rows_of
from fake_grid import SIZE, FakeGrid, build
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.federation import BytesStore, FixedUpdates, booked, make_site
from torch import Tensor

from clients.adpfl import EXACT_CHANGE, window_change
from clients.fedcad import FedCADClient
from clients.fedldp import FedLDPClient
from fedpriv.attacks.release_audit import DIMENSION, audit_mechanism
from fedpriv.client.base import Client
from fedpriv.client.build import make_client
from fedpriv.client.clip_statistics import NoisyBit, NoisyNorm
from fedpriv.client.contract import BudgetSpent, UnsafeClipNorm
from fedpriv.client.gaussian import GaussianClient
from fedpriv.client.memory import read_memory
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.messages import (
    CLIP_BIT,
    CLIP_CHANGE,
    CLIP_NORM,
    CLIP_REPORTED_NORM,
    MalformedMessage,
    Request,
    pack_vector,
    reply_content,
    unpack_vector,
)
from fedpriv.common.replies import Reply, read_reply
from fedpriv.config.checks import OWN_STEP
from fedpriv.config.compose import CONF, compose
from fedpriv.config.own_options import group_choices
from fedpriv.config.remote import compose_remote
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.clip_thresholds import geometric, push, quantile_step
from fedpriv.mechanisms.noise import KeyRegistry, NoiseSource, SeededNoise
from fedpriv.privacy.auditor import audit
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import CLIENT_TO_SERVER, Gaussian
from fedpriv.runs.planning import make_plan, with_target
from fedpriv.server.clip_rules import ClippingServer, Geometric, Quantile
from fedpriv.server.optimizers import Optimizer
from fedpriv.server.round import Population
from fedpriv.server.strategy import FederatedStrategy
from strategies.adpfl import AdaptiveWindow, PublishedWindow, adp_step
from strategies.fedavg import FedAvg
from strategies.fedldp import FedLDP
from strategies.fedvf import FedVF
from strategies.nbafl import NbAFL

DELTA = 1e-5
RULES = ("quantile", "geometric", "adp")


# --- the equations, by hand ------------------------------------------------------------------------------


def test_quantile_step() -> None:
    """C exp(-0.2 (0.75 - 0.5)) = 2 exp(-0.05)."""
    assert quantile_step(2.0, 0.75, 0.2, 0.5) == pytest.approx(1.9024588490)
    assert quantile_step(2.0, 0.25, 0.2, 0.5) == pytest.approx(2.1025421928)
    assert quantile_step(2.0, 0.5, 0.2, 0.5) == 2.0 == quantile_step(2.0, 0.9, 0.0, 0.5)
    assert quantile_step(2.0, 1e300, 0.2, 0.5) < 1e-300 and quantile_step(2.0, -1e300, 0.2, 0.5) > 1e300


def test_geometric_decay() -> None:
    assert [geometric(4.0, 0.5, rounds) for rounds in range(4)] == [4.0, 2.0, 1.0, 0.5]


def test_both_signs_of_the_windows_change() -> None:
    """1..5: mean 3, population variance (4 + 1 + 0 + 1 + 4)/5 = 2."""
    window = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    assert float(window_change(window, 4.0, 5)) == pytest.approx(math.sqrt(2))  # mean below C: C falls
    assert float(window_change(window, 2.0, 5)) == pytest.approx(-math.sqrt(2))
    assert float(window_change(window, 3.0, 5)) == pytest.approx(-math.sqrt(2))  # not below
    assert float(window_change(window, 4.0, 6)) == 0.0  # not full
    assert float(window_change(window[:0], 4.0, 5)) == 0.0
    assert push(window, torch.tensor(9.0, dtype=torch.float64), 5).tolist() == [2, 3, 4, 5, 9]
    assert push(window[:0], torch.tensor(9.0, dtype=torch.float64), 5).tolist() == [9]


def test_the_step_is_the_mean_of_those_who_reported() -> None:
    assert adp_step(4.0, [1.0, -0.5, 0.0]) == pytest.approx(4 - 0.5 / 3)
    assert adp_step(1.0, [3.0]) == -2.0


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(st.floats(0, 1e3), min_size=2, max_size=8), st.floats(1e-3, 1e3))
def test_the_change_is_that_of_the_standard_library(norms: list[float], clip_norm: float) -> None:
    mean, spread = statistics.fmean(norms), statistics.pstdev(norms)
    found = float(window_change(torch.tensor(norms, dtype=torch.float64), clip_norm, len(norms)))
    assert abs(found) == pytest.approx(spread, abs=1e-9)
    if abs(mean - clip_norm) > 1e-9:
        assert found == pytest.approx(spread if mean < clip_norm else -spread, abs=1e-9)


# --- the server's rules ----------------------------------------------------------------------------------


def replies(name: str, values: dict[int, float]) -> list[Reply]:
    return [Reply(client, np.zeros(2, np.float32), 10, {}, 0, {name: value}) for client, value in values.items()]


def test_quantile_rule() -> None:
    rule = Quantile(1.0, 0.1, 2.0, clip_lr=0.2, target=0.5)
    assert rule.learn(replies(CLIP_BIT, {0: 1.4, 1: 0.2, 2: -0.1})) == {"share_within_clip": pytest.approx(0.5)}
    assert rule.clip_norm == pytest.approx(1.0)
    rule.learn(replies(CLIP_BIT, {0: -1e308, 1: -1e308}))
    assert rule.clip_norm == 2.0 and not rule.floor_held
    rule.learn(replies(CLIP_BIT, {0: 1e308, 1: 1e308}))
    assert rule.clip_norm == 0.1 and rule.floor_held


def test_geometric_rule_counts_rounds_and_keeps_its_floor() -> None:
    rule, found = Geometric(1.0, 0.3, 10.0, decay=0.5), []
    for server_round in (1, 2, 3, 7):
        rule.begin(server_round)
        found.append((rule.clip_norm, rule.floor_held))
    assert found == [(1.0, False), (0.5, False), (0.3, True), (0.3, True)]


def test_adaptive_window_rule_by_hand() -> None:
    """S_w = 2. Client 0: window (1, 3): mean 2, s 1. Client 1: late in round 1, so its window is not full: 0."""
    rule = AdaptiveWindow(2.5, 0.5, 10.0, window=2)
    assert rule.learn(replies(CLIP_REPORTED_NORM, {0: 1.0})) == {"norm_changes": {"0": 0.0}} and rule.clip_norm == 2.5
    rule.learn(replies(CLIP_REPORTED_NORM, {0: 3.0, 1: -7.0}))  # clamped to 0
    assert rule.clip_norm == pytest.approx(2.5 - 1 / 2)
    # Round 3, client 0 silent. Client 1: window (0, 99 -> 10): mean 5, s 5, not below C = 2: C rises.
    assert rule.learn(replies(CLIP_REPORTED_NORM, {1: 99.0})) == {"norm_changes": {"1": -5.0}}
    assert rule.clip_norm == pytest.approx(7.0)
    assert rule.norms == {0: [1.0, 3.0], 1: [0.0, 10.0]}
    rule.learn(replies(CLIP_REPORTED_NORM, {1: 0.0, 0: 3.0}))  # s = 5 (mean 5 < 7) and 0
    assert rule.clip_norm == pytest.approx(4.5) and not rule.floor_held
    again = AdaptiveWindow(2.5, 0.5, 10.0, window=2)
    again.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    assert (again.clip_norm, again.norms) == (rule.clip_norm, rule.norms)
    for _ in range(2):
        for one in (rule, again):
            one.learn(replies(CLIP_REPORTED_NORM, {1: 8.0}))
    assert again.clip_norm == rule.clip_norm


def test_published_window_rule_and_its_floor() -> None:
    rule = PublishedWindow(1.0, 1e-3, 10.0, window=5)
    rule.learn(replies(CLIP_CHANGE, {0: 0.5, 1: -0.1}))
    assert rule.clip_norm == pytest.approx(0.8)
    rule.learn(replies(CLIP_CHANGE, {0: 5.0}))
    assert rule.clip_norm == 1e-3 and rule.floor_held


def reply_with(**metrics: float) -> Any:
    arrays = ArrayRecord({"vector": Array(np.zeros(2, np.float32))})
    return SimpleNamespace(content=RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1, None])
def test_a_reply_without_a_finite_statistic_is_refused(value: Any) -> None:
    metrics = {"num-examples": 4} | ({} if value is None else {CLIP_BIT: value})
    with pytest.raises(MalformedMessage, match=rf"metrics.{CLIP_BIT}: expected a finite number"):
        read_reply(reply_with(**metrics), 1, 2, 10, (CLIP_BIT,))
    sound = read_reply(reply_with(**{"num-examples": 4, CLIP_BIT: 0.25, "more": 1.0}), 1, 2, 10, (CLIP_BIT,))
    assert sound.statistics == {CLIP_BIT: 0.25}


# --- the client ------------------------------------------------------------------------------------------

UPDATE = torch.tensor([0.6, 0.0, -0.8, 0.0])  # norm 1


def at_site(kind: type[GaussianClient] = FedLDPClient, max_epsilon: float | None = None, **options: Any) -> Any:
    settled = {"noise_multiplier": 2.0, "clip_norm": 1.0} | options
    return making.client(
        kind, **settled, site=make_site(0, FixedUpdates(lambda _: UPDATE), BytesStore(), max_epsilon=max_epsilon)
    )


def ask(client: Client, server_round: int, clip_norm: Any = None, attempt: int = 0) -> list[np.ndarray]:
    """One participation; all arrays that leave."""
    announced = {} if clip_norm is None else {CLIP_NORM: clip_norm}
    arrays, _, _ = client.fit([np.zeros(4, np.float32)], {"round": server_round, "attempt": attempt} | announced)
    return arrays


@pytest.mark.parametrize("rule", RULES)
def test_the_announced_clip_norm_is_used(rule: str) -> None:
    """Bit for bit the release of a client whose own C that is, with the same noise; a later round's is used then."""
    client = at_site(clipping=rule)
    for server_round, clip_norm in ((1, 0.5), (2, 0.03), (3, 7)):
        release = ask(client, server_round, clip_norm)[0]
        twin = making.client(FedLDPClient, noise_multiplier=2.0, clip_norm=clip_norm)
        noise = SeededNoise(3, 0, server_round, 0, "release")
        assert np.array_equal(release, twin.release(UPDATE, None, noise).value.numpy())


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0, 1e9, 10.1, 1e-9, True, "1.0", None])
@pytest.mark.parametrize("kind", [FedLDPClient, FedCADClient])
def test_an_unsafe_clip_norm_is_refused_and_nothing_is_released(kind: type[GaussianClient], bad: Any) -> None:
    options = {"diff": 0.5} if kind is FedCADClient else {}
    for rule in RULES:
        client = at_site(kind, clipping=rule, **options)
        ask(client, 1, 0.5)
        before = client.site.store.read()
        with KeyRegistry() as registry, pytest.raises(UnsafeClipNorm, match="clip norm"):
            client.fit([np.zeros(4, np.float32)], {"round": 2, "attempt": 0, CLIP_NORM: bad})
        assert client.site.store.read() == before and registry.keys == []


def test_a_fixed_clip_norm_cannot_be_moved_by_the_server() -> None:
    client = at_site()
    with pytest.raises(UnsafeClipNorm, match=r"clip norm 0\.5, this client takes 1 to 1"):
        ask(client, 1, 0.5)
    assert client.site.store.read() is None
    assert np.array_equal(ask(client, 1, 1.0)[0], ask(at_site(), 1)[0])


def test_a_server_that_announces_nonsense_gets_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Geometric, "begin", lambda self, server_round: setattr(self, "clip_norm", math.nan))
    with pytest.raises(RunFailed, match="the server announces the clip norm nan"):
        run("strategy=fedldp", "strategy.server.clipping=geometric", folder=tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_the_statistics_are_what_the_rules_need() -> None:
    noise, draws = SeededNoise(5), SeededNoise(5)
    norms = torch.tensor([0.0, 0.99, 1.0, 1.01, 50.0], dtype=torch.float64)
    found = NoisyBit(0.5).measure(norms, 1.0, None, noise).statistics[CLIP_BIT]
    assert torch.allclose(found, torch.tensor([1.0, 1, 1, 0, 0]) + draws.normal(5, 0.5), atol=1e-5)
    found = NoisyNorm(0.5, 20.0).measure(norms, 1.0, None, noise).statistics[CLIP_REPORTED_NORM]
    assert torch.allclose(found, torch.tensor([0.0, 0.99, 1, 1.01, 20]) + 20 * draws.normal(5, 0.5), atol=1e-4)


def test_published_clients_keep_their_own_window() -> None:
    """Norms 3, 1, 4 in a window of 2 (C = 1, 1, 9): s = 0, -1, +1.5; they never leave as they are."""
    client = at_site(clipping="adp", variant="published", window=2)
    norms = iter((3.0, 1.0, 4.0))
    client.site = replace(client.site, trainer=FixedUpdates(lambda _: UPDATE * next(norms)))
    found = [float(ask(client, number, c)[1][0]) for number, c in ((1, 1.0), (2, 1.0), (3, 9.0))]
    assert found == pytest.approx([0, -1, 1.5], abs=1e-6)
    assert client.load_state(read_memory(client.site.store).state).norms.tolist() == pytest.approx([1, 4])


@pytest.mark.parametrize("kind", [FedLDPClient, FedCADClient])
def test_a_window_and_the_methods_own_state_come_back(kind: type[GaussianClient]) -> None:
    options = {"diff": 0.5} if kind is FedCADClient else {}
    client = at_site(kind, clipping="adp", variant="published", **options)
    ask(client, 1, 1.0)
    state = client.load_state(read_memory(client.site.store).state)
    assert state.norms.tolist() == pytest.approx([1.0]) and (state.method is None) == (kind is FedLDPClient)


@pytest.mark.parametrize(
    ("rule", "variant", "noise_multiplier"),
    [
        ("quantile", "repaired", 2.0),
        ("quantile", "repaired", 0.0),  # noise on the bit alone: its key must not meet a second update either
        ("adp", "repaired", 2.0),
        ("adp", "repaired", 0.0),
        ("adp", "published", 2.0),
    ],
)
def test_a_repeated_request_gets_the_same_statistic(rule: str, variant: str, noise_multiplier: float) -> None:
    noises = {"count_noise": 1.0, "norm_noise": 1.0}
    client = at_site(clipping=rule, variant=variant, noise_multiplier=noise_multiplier, **noises)
    with KeyRegistry() as registry:
        first = ask(client, 1, 1.0)
        client.site = replace(client.site, trainer=FixedUpdates(lambda _: 100 * UPDATE))
        again = ask(client, 1, 2.0)
        assert len(registry.keys) == 1
    assert [a.tobytes() for a in again] == [a.tobytes() for a in first] and len(first) == 2


# --- whole runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedldp", "fedcad"])
def test_fixed_is_the_same_run_as_without_any_of_this(method: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (f"strategy={method}", "num_clients=5", "clients_per_round=3", "checkpoint.every=2")
    folder = run(*options)
    for name in ("train_options", "aggregate", "state_dict", "load_state_dict"):
        monkeypatch.setattr(ClippingServer, name, getattr(FederatedStrategy, name))
    for name in ("prepare", "statistics"):
        monkeypatch.setattr(GaussianClient, name, getattr(Client, name))
    monkeypatch.setattr(GaussianClient, "release", lambda self, *given: self.perturb(*given))
    assert result_of(run(*options)) == result_of(folder)
    row = rows_of(folder)[0]
    assert "clip_norm" not in row["figures"]
    assert making.server(FedLDP, Population(0, 4, 4, lambda _: 1)).state_dict() == {}


def test_metrics_hold_each_rounds_clip_norm_and_the_floor(run: Run) -> None:
    folder = run(
        "strategy=fedldp",
        "strategy.server.clipping=geometric",
        "strategy.server.decay=0.5",
        "strategy.server.floor=0.3",
    )
    rows = [row["figures"] for row in rows_of(folder)]
    assert [(row["clip_norm"], row["clip_floor_held"]) for row in rows] == [(1.0, False), (0.5, False), (0.3, True)]
    assert "clip_norm" in page_of(folder)


def test_a_client_that_drops_out_does_not_contribute(run: Run) -> None:
    """Client 1 never answers: no window of it, and C follows the others'."""
    faults = ",".join(f"{{round:{number},client:1,kind:drop}}" for number in (1, 2, 3))
    seen: list[AdaptiveWindow] = []
    with pytest.MonkeyPatch.context() as patch:
        real = AdaptiveWindow.learn
        patch.setattr(AdaptiveWindow, "learn", lambda self, given: seen.append(self) or real(self, given))
        folder = run("strategy=fedldp", "strategy.server.clipping=adp", f"engine.faults=[{faults}]")
    assert sorted(seen[-1].norms) == [0, 2, 3] and all(len(norms) == 3 for norms in seen[-1].norms.values())
    rows = rows_of(folder)
    assert [len(row["figures"]["norm_changes"]) for row in rows] == [3, 3, 3]


@pytest.mark.parametrize("rule", ["quantile", "adp"])
def test_the_statistic_travels_where_no_diagnostics_do(rule: str, run: Run) -> None:
    folder = run("strategy=fedldp", f"strategy.server.clipping={rule}", "privacy.rng=secure")
    rows = rows_of(folder)
    assert all(row["participants"] == 4 and row["update_norm"] is None for row in rows)
    assert rows[-1]["figures"]["clip_norm"] > 0


# --- options ---------------------------------------------------------------------------------------------

REFUSED = [
    (["strategy.server.clipping=median"], "strategy.server.clipping", "fixed, quantile, geometric or adp"),
    (["strategy.server.window=0"], "strategy.server.window", "at least 2"),
    (["strategy.server.window=2.5"], "strategy.server.window", "a whole number"),
    (["strategy.server.decay=1.5"], "strategy.server.decay", "at most 1"),
    (["strategy.server.decay=0"], "strategy.server.decay", "more than 0"),
    (["strategy.server.floor=0"], "strategy.server.floor", "more than 0"),
    (["strategy.server.norm_bound=0"], "strategy.server.norm_bound", "more than 0"),
    (["strategy.server.clip_lr=-1"], "strategy.server.clip_lr", "at least 0"),
    (["strategy.server.target_quantile=2"], "strategy.server.target_quantile", "at most 1"),
    (["strategy.client.count_noise=0"], "strategy.client.count_noise", "more than 0"),
    (["strategy.client.norm_noise=0"], "strategy.client.norm_noise", "more than 0"),
    (["strategy.client.norm_noise=nan"], "strategy.client.norm_noise", "finite"),
    (["strategy.server.clip_norm=0"], "strategy.client.clip_norm", "at least 1e-06"),
    (["strategy.client.clipping=some"], "strategy.server.clipping", "fixed, quantile, geometric or adp"),
    (["strategy.client.floor=0"], "strategy.server.floor", "more than 0"),
    (
        ["strategy.server.clipping=adp", "strategy.client.clip_norm=11"],
        "strategy.client.clip_norm",
        "from strategy.server.floor=0.001 to strategy.server.norm_bound=10.0",
    ),
]


@pytest.mark.parametrize("method", ["fedldp", "fedcad"])
@pytest.mark.parametrize(("overrides", "option", "words"), REFUSED, ids=str)
def test_a_wrong_value_is_one_line(overrides: list[str], option: str, words: str, method: str) -> None:
    with pytest.raises(OptionError) as caught:
        compose([f"strategy={method}", *overrides])
    assert caught.value.option == option
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_command_line_refuses_with_two(cli: Callable[..., Outcome]) -> None:
    outcome = cli("strategy=fedldp", "strategy.server.decay=1.5")
    assert outcome.code == 2 and outcome.err.count("\n") == 1 and "strategy.server.decay=1.5" in outcome.err


def test_rules_can_be_chosen_from_outside() -> None:
    config = compose_remote(["strategy=fedldp", "strategy.server.clipping=quantile", "strategy.client.count_noise=2"])
    client = make_client(config)
    assert isinstance(client, GaussianClient) and client.statistics.names == (CLIP_BIT,)
    assert config.strategy.options.clipping == "quantile"


# --- the server's optimizer: the papers' formulas by hand, what is told of it, resumed runs, and who refuses it ---


METHODS = group_choices(CONF / "strategy")
#: Of each of three rounds, one number for each coordinate: large, small, of changing sign, and none.
UPDATES = np.array([[1.0, 0.01, -2.0, 0.0, 0.5, 3.0], [1.0, -0.01, 2.0, 0.0, -4.0, 3.0], [-0.5, 0.01, 1.0, 0.0, 1, 1]])


def rounds(kind: type[FederatedStrategy] = FedAvg, updates: np.ndarray = UPDATES, **options: Any) -> list[np.ndarray]:
    """theta after each round in which every client's release is the round's row."""
    strategy, theta, found = build(kind, **options), np.zeros(SIZE, np.float32), []
    for number, update in enumerate(updates, 1):
        grid = FakeGrid()
        grid.answer = lambda message, client, update=update: answered(message, update)
        messages = strategy.configure_train(number, pack_vector(theta), ConfigRecord(), grid)
        arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert arrays is not None
        theta = unpack_vector(arrays)
        found.append(theta)
    return found


def answered(message: Message, update: np.ndarray) -> Message:
    return Message(reply_content(update.astype(np.float32), 10, {}), reply_to=message)


# --- the formulas ------------------------------------------------------------------------------------------------


def by_hand(name: str, updates: list[float], lr: float) -> list[float]:
    """One coordinate, number by number, from the papers' pages."""
    x, m, v, places = 0.0, 0.0, 0.001**2, []
    for delta in updates:
        if name == "momentum":
            v = delta if not places else 0.9 * v + delta
            x += lr * v
        else:
            m = 0.9 * m + 0.1 * delta
            if name == "adam":
                v = 0.99 * v + 0.01 * delta**2
            else:
                v = v - 0.01 * delta**2 * math.copysign(1.0, v - delta**2) * (v != delta**2)
            x += lr * m / (math.sqrt(v) + 0.001)
        places.append(x)
    return places


@pytest.mark.parametrize("name", ["momentum", "adam", "yogi"])
def test_three_rounds_by_hand(name: str) -> None:
    found = np.array(rounds(optimizer=name, lr=0.3))
    for coordinate in range(SIZE):
        expected = by_hand(name, UPDATES[:, coordinate].tolist(), 0.3)
        np.testing.assert_allclose(found[:, coordinate], expected, rtol=1e-6)


def test_figures_of_two_rounds_worked_out_on_paper() -> None:
    """An update of 1, twice. Momentum: 1, then 1.9 more. Adam: m = 0.1, v = 0.01 + 0.99e-6; m = 0.19."""
    ones = np.ones((2, SIZE))
    assert rounds(updates=ones, optimizer="momentum")[1][0] == pytest.approx(2.9)
    first = 0.1 / (math.sqrt(0.01 + 0.99e-6) + 0.001)
    assert first == pytest.approx(0.99005, abs=1e-5)
    assert rounds(updates=ones[:1], optimizer="adam", lr=1.0)[0][0] == pytest.approx(first)
    yogi = rounds(updates=ones, optimizer="yogi", lr=1.0)  # v = 1e-6 + 0.01, then + 0.01
    assert yogi[1][0] == pytest.approx(0.1 / (math.sqrt(0.010001) + 0.001) + 0.19 / (math.sqrt(0.020001) + 0.001))


def test_a_yogi_of_shrinking_updates_comes_down_slower_than_adam() -> None:
    """v falls by (1 - beta2) Delta^2 in place of (1 - beta2) v, so its steps stay shorter."""
    updates = np.repeat([[10.0], [0.1], [0.1], [0.1]], SIZE, axis=1)
    adam, yogi = (rounds(updates=updates, optimizer=name, beta1=0.0, lr=1.0) for name in ("adam", "yogi"))
    assert adam[3][0] - adam[0][0] > yogi[3][0] - yogi[0][0] > 0


def test_sgd_at_one_adds_the_update_itself() -> None:
    plain = rounds()
    for more in ({"lr": 1.0}, {"optimizer": "momentum", "momentum": 0.0}):
        assert all(np.array_equal(one, other) for one, other in zip(rounds(**more), plain, strict=True))
    np.testing.assert_allclose(np.array(rounds(lr=0.25)), 0.25 * np.array(plain))


def test_a_null_rate_is_the_optimizers_own() -> None:
    for name, usual in (("sgd", 1.0), ("momentum", 1.0), ("adam", 0.01), ("yogi", 0.01)):
        null, named = rounds(optimizer=name), rounds(optimizer=name, lr=usual)
        assert all(np.array_equal(one, other) for one, other in zip(null, named, strict=True))


# --- where the mean is no update, and where theta is a part --------------------------------------------------------


def test_only_the_part_that_goes_up_moves_on() -> None:
    """Three rounds about the first half, then one about all: the other half's momentum begins there."""
    half = Optimizer(build(FedAvg, optimizer="momentum").options)
    for _ in range(3):
        half.step(np.ones(2), slice(0, 2), 4)
    np.testing.assert_allclose(half.step(np.ones(4), slice(0, 4), 4), [3.439, 3.439, 1.0, 1.0])


def test_weights_become_the_update_that_leads_to_them() -> None:
    """`move` with ``whole``: a mean of weights 5 from theta 2 is an update of 3."""
    strategy = build(FedVF, optimizer="sgd", lr=0.5)
    theta, mean = np.array([2.0, 2.0], np.float32), np.array([5.0, 5.0])
    strategy.begin(1, pack_vector(theta))
    assert strategy.move(theta, mean, whole=slice(0, 1)).tolist() == [3.5, 4.5]
    plain = build(FedVF)
    plain.begin(1, pack_vector(theta))
    assert plain.move(theta, mean, whole=slice(0, 1)).tolist() == [5.0, 7.0]


def test_noise_of_the_server_is_there_before_the_step() -> None:
    """Otherwise theta would show it: with lr=0.5 the noise that outsiders count on would be twice the data's share."""
    noise = {"exposures": 1, "rounds": 10, "epsilon": 50.0}
    full, half = (rounds(NbAFL, UPDATES[:1], **noise, lr=lr)[0] for lr in (1.0, 0.5))
    assert abs(full - UPDATES[0]).min() > 1e-3
    np.testing.assert_allclose(half, 0.5 * full, rtol=1e-5)


class OwnStep(FedAvg):
    """A user's method that adds the mean by itself."""

    def aggregate(self, theta: np.ndarray, replies: Any) -> np.ndarray:
        return (theta + self.mean(theta.size, replies)).astype(np.float32)


def test_a_method_that_would_ignore_the_option_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "aggregate", OwnStep.aggregate)
    rounds()
    with pytest.raises(OptionError, match=r"strategy\.server\.optimizer=adam: FedAvg\.aggregate takes a step of its"):
        rounds(optimizer="adam")


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.mark.rotates(3)
@pytest.mark.parametrize("method", sorted(set(METHODS) - set(OWN_STEP)))
def test_every_method_takes_its_step_by_the_optimizer_or_refuses_it(method: str, run: Run) -> None:
    """Half the rate gives another model in the first round; nobody ignores it."""
    options = (f"strategy={method}", "num_rounds=1")
    assert result_of(run(*options, "strategy.server.lr=0.5"))["model"] != result_of(run(*options))["model"]


def test_it_costs_no_privacy(run: Run) -> None:
    plain, moved = (
        result_of(run("strategy=fedldp", *more))["summary"]["privacy"]
        for more in ((), ("strategy.server.optimizer=adam",))
    )
    assert plain == moved


# --- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("optimizer=lion", "optimizer=lion: allowed: sgd, momentum, adam or yogi"),
        ("lr=0", "lr=0: must be more than 0"),
        ("lr=-1.0", r"lr=-1\.0: must be more than 0"),
        ("momentum=1.0", r"momentum=1\.0: must be less than 1"),
        ("beta1=-0.1", r"beta1=-0\.1: must be at least 0"),
        ("beta2=1.5", r"beta2=1\.5: must be less than 1"),
        ("tau=0.0", r"tau=0\.0: must be more than 0"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(option: str, words: str) -> None:
    with pytest.raises(OptionError, match=rf"strategy\.server\.{words}"):
        compose(["strategy=fedavg", f"strategy.server.{option}"])


@pytest.mark.parametrize("method", sorted(OWN_STEP))
def test_a_step_of_its_own_is_refused_by_name(method: str) -> None:
    with pytest.raises(OptionError, match=r"strategy\.server\.optimizer=adam: the .* (rule|sum) .*; allowed: sgd"):
        compose([f"strategy={method}", "strategy.server.optimizer=adam"])
    with pytest.raises(OptionError, match=r"strategy\.server\.lr=0\.5: .*; allowed: null or 1"):
        compose([f"strategy={method}", "strategy.server.lr=0.5"])


def test_it_is_part_of_the_digest() -> None:
    plain = compose(["strategy=fedavg"])
    for other in ("optimizer=adam", "lr=0.5"):
        assert compose(["strategy=fedavg", f"strategy.server.{other}"]).digest() != plain.digest()


# --- ---------------------------------------------------------------------------------------------------------------
# What a clip norm that moves costs: its statistic, Fed-CAD's new beginnings, and audits that find what is not paid.


# --- what it costs ---------------------------------------------------------------------------------------

BESIDE = {
    "fixed": [],
    "geometric": [],
    "quantile": [Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.7)],
    "adp": [Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.9)],
}


@pytest.mark.parametrize("rule", BESIDE)
def test_the_ledgers_events_are_the_rules(rule: str) -> None:
    """Also after a move of C, since noise is always sigma C; and the plan is what is booked."""
    client = at_site(clipping=rule, count_noise=0.7, norm_noise=0.9)
    for server_round, clip_norm in ((1, 1.0), (2, 1.0 if rule == "fixed" else 0.3)):
        ask(client, server_round, clip_norm)
    update = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
    entries = booked(client)
    assert [entry.event for entry in entries] == [update, *BESIDE[rule]] * 2
    assert [entry.sequence for entry in entries] == list(range(len(entries)))
    planned = compose_events(client.planned_events(2), DELTA)
    assert compose_events([entry.event for entry in entries], DELTA) == planned
    assert client.planned_events(0) == []


@pytest.mark.parametrize("rule", ["quantile", "adp"])
def test_by_default_the_statistic_costs_at_most_a_tenth_of_the_update(rule: str) -> None:
    update, beside = at_site(clipping=rule).planned_events(1)
    assert 0.09 < (update.multiplier / beside.multiplier) ** 2 <= 0.1


def test_a_statistic_without_noise_is_infinite() -> None:
    for options in ({"clipping": "quantile", "count_noise": 0.0}, {"clipping": "adp", "norm_noise": 0.0}):
        client = at_site(**options)
        assert math.isinf(compose_events(client.planned_events(1), DELTA).epsilon)
        assert not client.keeps_budget and "no noise is added" in (client.exact_leak() or "")


def test_a_budget_counts_the_statistic() -> None:
    """Two updates would be within it; two updates with their bits are not."""
    limit = compose_events(at_site().planned_events(2), DELTA).epsilon * 1.001
    plain, noisy = at_site(max_epsilon=limit), at_site(max_epsilon=limit, clipping="quantile", count_noise=1.0)
    for client in (plain, noisy):
        ask(client, 1, 1.0)
    ask(plain, 2, 1.0)
    before = noisy.site.store.read()
    with pytest.raises(BudgetSpent):
        ask(noisy, 2, 1.0)
    assert noisy.site.store.read() == before


def test_published_adp_is_infinite_with_its_reason(run: Run) -> None:
    options = ("strategy=fedldp", "strategy.server.clipping=adp", "privacy.variant=published")
    folder = run(*options)
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == "inf" and privacy["reasons"] == [EXACT_CHANGE]
    assert EXACT_CHANGE in (folder / "ledger.jsonl").read_text()
    with pytest.raises(OptionError, match=r"no budget can be kept: .*clipping=adp as published"):
        run(*options, "privacy.max_epsilon=100")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", [("strategy=fedldp",), ("strategy=fedcad", "strategy.client.obsolete_factor=0.4")])
def test_a_run_costs_what_was_planned(run: Run, rule: str, method: tuple[str, ...]) -> None:
    options = (*method, f"strategy.server.clipping={rule}", "strategy.client.noise_multiplier=2", "num_rounds=8")
    folder = run(*options)
    config = compose([*SMALL, *options])
    verified = json.loads((folder / "summary.json").read_text())["privacy"]["verified_epsilon"]
    assert verified == pytest.approx(make_plan(config, Worker(config)).verified_epsilon, rel=1e-9)


def test_a_target_counts_the_statistic() -> None:
    config = with_target(compose([*SMALL, "strategy.server.clipping=quantile", "privacy.target_epsilon=8"]))
    assert 7.9 < make_plan(config, Worker(config)).verified_epsilon <= 8


# --- Fed-CAD starts anew ---------------------------------------------------------------------------------


def fed_cad(**options: Any) -> Any:
    settled = {"diff": 0.3, "obsolete_factor": 0.4, "clipping": "quantile", "count_noise": 0.7} | options
    return at_site(FedCADClient, **settled)


def state_of(client: Client) -> Any:
    return client.load_state(read_memory(client.site.store).state)  # type: ignore[union-attr]


def test_fed_cadstarts_anew_when_the_clip_norm_moves() -> None:
    client = fed_cad()
    ask(client, 1, 1.0)
    ask(client, 2, 1.0)
    assert float(state_of(client).variance) < 1
    release = ask(client, 3, 0.5)[0]
    state = state_of(client)
    fresh = making.client(FedCADClient, noise_multiplier=2.0, clip_norm=0.5, diff=0.3, obsolete_factor=0.4)
    expected = fresh.release(UPDATE, None, SeededNoise(3, 0, 3, 0, "release"))
    assert np.array_equal(release, expected.value.numpy()) and torch.equal(state.x, expected.state.x)
    assert (float(state.variance), float(state.diff), state.clip_norm) == (1.0, 0.3, 0.5)
    ask(client, 4, 0.5)
    assert float(state_of(client).variance) < 1  # and goes on from there


def test_fed_cad_is_charged_alike_on_every_path_of_the_clip_norm() -> None:
    """Who starts anew is decided by earlier outputs: the price must not depend on it. A later participation is the
    dearest, so that is what is planned and booked.
    """
    paths = ((1.0, 1.0, 1.0, 1.0), (1.0, 0.5, 0.25, 2.0), (1.0, 1.0, 0.5, 0.5))
    books = []
    for path in paths:
        client = fed_cad()
        for server_round, clip_norm in enumerate(path, 1):
            ask(client, server_round, clip_norm)
        books.append([entry.event for entry in booked(client)])
    update, bit = (Gaussian(threat=CLIENT_TO_SERVER, multiplier=m) for m in (1.0, 0.7))
    norm = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.6 * 2.0)
    assert books[0] == [update, bit, *[update, norm, bit] * 3] == books[1] == books[2]
    assert compose_events(books[0], DELTA) == compose_events(client.planned_events(4), DELTA)


def test_published_fed_cad_pays_the_price_of_a_start() -> None:
    client = fed_cad(variant="published", sigma_diff=0.2, clipping="geometric")
    for server_round, clip_norm in enumerate((1.0, 1.0, 0.5), 1):
        ask(client, server_round, clip_norm)
    entries = [(entry.round, entry.event.multiplier) for entry in booked(client)]  # type: ignore[attr-defined]
    assert [number for number, _ in entries] == [1, 2, 2, 3] and entries[-1][1] == 1.0


def moving_audit(kind: type[FedCADClient], clip_norms: tuple[float, ...]) -> tuple[float, float]:
    """(audited, verified) of releases whose C moves along a given path: updates far beyond every C, with both signs."""
    client = making.client(
        kind, noise_multiplier=4.0, clip_norm=1.0, diff=0.3, obsolete_factor=0.4, clipping="geometric"
    )

    def sample(world: bool, trials: int, seed: int) -> np.ndarray:
        noise, state, seen = SeededNoise(seed, int(world)), None, []
        update = torch.zeros(trials, DIMENSION)
        update[:, 0] = -100.0 if world else 100.0
        for server_round, clip_norm in enumerate(clip_norms, 1):
            client.prepare(Request(server_round, 0, {CLIP_NORM: clip_norm}))
            release = client.release(update, state, noise)
            state = release.state
            seen.append(release.value / clip_norm)
        return torch.cat(seen, dim=1).numpy()

    found = audit(sample, delta=DELTA, trials=60_000, confidence=0.999, seed=2)
    return found.epsilon_lower, compose_events(client.planned_events(len(clip_norms)), DELTA).epsilon


class GoesOn(FedCADClient):
    """Reuses noise and x_prev of another C."""

    def starts_anew(self, state: Any) -> bool:
        return False


@pytest.mark.parametrize("clip_norms", [(1.0, 0.1, 0.1), (0.1, 1.0, 0.5), (1.0, 1.0, 1.0)])
def test_audit_of_a_moving_clip_norm(clip_norms: tuple[float, ...]) -> None:
    audited, verified = moving_audit(FedCADClient, clip_norms)
    assert 0.25 * verified < audited <= verified


def test_a_client_that_goes_on_under_another_clip_norm_is_found() -> None:
    audited, verified = moving_audit(GoesOn, (1.0, 0.1, 0.1))
    assert audited > verified


# --- audits that must not be blind -----------------------------------------------------------------------


class BareBit(NoisyBit):
    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Any:
        return NoisyBit(0.0).measure(norm, clip_norm, norms, noise)


class QuietNorm(NoisyNorm):
    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Any:
        return NoisyNorm(self.noise / 10, self.norm_bound).measure(norm, clip_norm, norms, noise)


class LongNorm(NoisyNorm):
    """Reports norms up to 100 B, with the noise of norms up to B."""

    def measure(self, norm: Tensor, clip_norm: float, norms: Tensor | None, noise: NoiseSource) -> Any:
        return NoisyNorm(self.noise / 100, 100 * self.norm_bound).measure(norm, clip_norm, norms, noise)

    def pairs(self, clip_norm: float) -> Any:
        return [("no update against a far too long one", 0.0, 10 * self.norm_bound / clip_norm)]


@pytest.mark.rotates(2)
@pytest.mark.parametrize("method", ["fedldp", "fedcad"])
@pytest.mark.parametrize(("rule", "faulty"), [("quantile", BareBit), ("adp", QuietNorm), ("adp", LongNorm)])
def test_a_statistic_with_too_little_noise_is_found(method: str, rule: str, faulty: type) -> None:
    client = make_client(
        compose([f"strategy={method}", f"strategy.server.clipping={rule}", "strategy.client.noise_multiplier=4"])
    )
    assert isinstance(client, GaussianClient)
    settings: Any = {"delta": DELTA, "trials": 60_000, "confidence": 0.999, "seed": 5}
    sound = audit_mechanism(client, 1, **settings)
    assert sound.audit.epsilon_lower <= sound.verified
    client.statistic = faulty(**vars(client.statistic))
    found = audit_mechanism(client, 1, **settings)
    assert found.audit.epsilon_lower > found.verified
