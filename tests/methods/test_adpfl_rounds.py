"""ADP-FL and PFL in whole runs: who gets which message, who drops out, distillation, engines, wrong options."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Outcome, Run, ledger_of, page_of, rows_of
from flwr.app import Message
from reference.recording import Conversation

from fedpriv.client.build import make_client
from fedpriv.client.clip_statistics import Measured, NoisyNorm
from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import (
    CLIP_CHANGE,
    CLIP_NORM,
    CLIP_REPORTED_NORM,
    EXCHANGE,
    LEAST_NORM,
    STATISTICS,
    num_bytes,
    unpack_vector,
)
from fedpriv.config.compose import compose
from fedpriv.engines.grid import client_of
from fedpriv.mechanisms.distillation_loss import distillation_loss
from fedpriv.training.distillation import DistillationOptions, Distiller
from fedpriv.training.sequential import SequentialTrainer

ADPFL = ("strategy=adpfl", "partition=dirichlet", "strategy.server.window=2")
MLP = ("model=mlp",)
#: mlp on digits: block "hidden" is [0, 4160) of the flat vector, block "head" [4160, 4810) stays with the client.
HIDDEN = 4160


# --- messages --------------------------------------------------------------------------------------------


def exchanges(talk: Conversation) -> tuple[list[tuple[Message, Message]], list[tuple[Message, Message]]]:
    """(first exchanges, second exchanges) of all rounds."""
    first = [pair for pair in talk.grid.seen if pair[0].content["config"].get(EXCHANGE) == STATISTICS]
    return first, [pair for pair in talk.grid.seen if pair not in first]


@pytest.mark.parametrize("variant", ["published", "repaired"])
def test_each_server_gets_its_own_messages(variant: str) -> None:
    """Statistics hold no parameters, releases no statistics, and personal layers are in neither."""
    talk = Conversation(*ADPFL, *MLP, f"privacy.variant={variant}")
    first, second = exchanges(talk)
    assert len(first) == len(second) == 12
    for message, answer in first:
        assert unpack_vector(message.content).size == HIDDEN
        assert set(answer.content) == {STATISTICS}
        names = {CLIP_REPORTED_NORM} | ({CLIP_CHANGE} if variant == "published" else set())
        assert set(answer.content[STATISTICS]) == names
    for message, answer in second:
        assert set(message.content) == {"config"}
        assert set(message.content["config"]) == {"round", "attempt", CLIP_NORM, LEAST_NORM}
        assert unpack_vector(answer.content).size == HIDDEN
        assert set(answer.content["metrics"]) == {"num-examples"}
    assert talk.thetas[-1].size == HIDDEN and all(talk.grid.kept(client).size == 4810 - HIDDEN for client in range(4))
    sent = np.concatenate([unpack_vector(answer.content) for _, answer in second])
    assert not np.isin(talk.grid.kept(0), sent).any()


def test_bytes_count_both_exchanges() -> None:
    talk = Conversation(*ADPFL, *MLP, "num_rounds=1")
    assert talk.bytes_up == sum(num_bytes(answer.content) for _, answer in talk.grid.seen)
    assert talk.bytes_down == sum(num_bytes(message.content) for message, _ in talk.grid.seen)


class NoisyNormStays(NoisyNorm):
    """The noisy norm does not move with the update: as if the noise had made up for the change."""

    def measure(self, norm: Any, clip_norm: float, norms: Any, noise: Any) -> Measured:
        return super().measure(torch.tensor(1.5, dtype=torch.float64), clip_norm, norms, noise)


def test_repaired_messages_know_a_raw_norm_only_through_its_noisy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 2's raw update changes, its noisy norm does not: every message stays as it was but client 2's release."""
    monkeypatch.setattr("fedpriv.client.clip_statistics.NoisyNorm", NoisyNormStays)
    options = (*ADPFL, *MLP, "num_rounds=1")
    plain, real = Conversation(*options), SequentialTrainer.train

    def longer(self: SequentialTrainer, asked: Any) -> Any:
        found = real(self, asked)
        calls.append(0)
        if len(calls) == 3:  # clients train in order
            object.__setattr__(found, "update", found.update * 1.7)
        return found

    calls: list[int] = []
    monkeypatch.setattr(SequentialTrainer, "train", longer)
    other = Conversation(*options)
    differ = []
    for (message, answer), (message2, answer2) in zip(plain.grid.seen, other.grid.seen, strict=True):
        assert contents(message) == contents(message2)
        if contents(answer) != contents(answer2):
            differ.append((client_of(message), EXCHANGE in message.content["config"]))
    assert len(calls) == 4 and differ == [(2, False)]


def contents(message: Message) -> dict[str, Any]:
    """All that travels, without the diagnostics of a simulation."""
    return {
        key: unpack_vector(message.content).tobytes() if key == "arrays" else dict(record)  # type: ignore[call-overload]
        for key, record in message.content.items()
        if key != "diagnostics"
    }


def test_published_messages_show_a_raw_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same change, published: the test above could fail."""
    options, real = (*ADPFL, *MLP, "num_rounds=1", "privacy.variant=published"), SequentialTrainer.train
    plain = Conversation(*options)

    def longer(self: SequentialTrainer, asked: Any) -> Any:
        found = real(self, asked)
        object.__setattr__(found, "update", found.update * 1.7)
        return found

    monkeypatch.setattr(SequentialTrainer, "train", longer)
    other = Conversation(*options)
    assert [contents(a) for _, a in exchanges(plain)[0]] != [contents(a) for _, a in exchanges(other)[0]]
    assert [contents(m) for m, _ in exchanges(plain)[1]] != [contents(m) for m, _ in exchanges(other)[1]]


# --- the round -------------------------------------------------------------------------------------------


def test_without_noise_and_clipping_it_is_pfl() -> None:
    common = ("num_rounds=3", *MLP, "partition=dirichlet", "local.lr=0.5", "strategy.server.distillation_lr=0.5")
    pfl = Conversation("strategy=pfl", *common)
    adpfl = Conversation(
        "strategy=adpfl",
        *common,
        "strategy.client.noise_multiplier=0.0",
        "strategy.client.norm_noise=1.0",
        "strategy.client.clip_norm=1e6",
        "strategy.server.norm_bound=1e7",
    )
    for ours, theirs in zip(adpfl.thetas, pfl.thetas, strict=True):
        assert np.abs(ours - theirs).max() < 1e-6
    assert all(np.abs(adpfl.grid.kept(k) - pfl.grid.kept(k)).max() < 1e-6 for k in range(4))
    assert np.abs(pfl.thetas[-1] - pfl.thetas[0]).max() > 1e-3


def test_pfl_without_distillation_is_fedper() -> None:
    common = ("num_rounds=3", *MLP, "partition=dirichlet", "strategy.server.weighting=examples")
    pfl = Conversation("strategy=pfl", "strategy.server.distillation_epochs=0", *common)
    fedper = Conversation("strategy=fedper", *common)
    assert all(np.array_equal(a, b) for a, b in zip(pfl.thetas, fedper.thetas, strict=True))


def test_distillation_moves_the_student_towards_a_noiseless_ensemble() -> None:
    """theta^1 against theta^0 beside Ens = theta^0 + mean of the releases, by the answers on the auxiliary pictures."""
    talk = Conversation("strategy=pfl", *MLP, "num_rounds=1", "local.lr=0.5", "strategy.server.distillation_lr=0.5")
    releases = [unpack_vector(answer.content) for _, answer in talk.grid.seen]
    ensemble = talk.thetas[0] + np.mean(releases, axis=0, dtype=np.float64).astype(np.float32)
    answers = Distiller(talk.worker, DistillationOptions(1, 64, 0.1, "kl", 2.0))._answers

    def distance(theta: np.ndarray) -> float:
        teacher = answers(talk.worker.whole_model(ensemble))
        return float(distillation_loss(answers(talk.worker.whole_model(theta)), teacher, "kl", 2.0))

    assert distance(talk.thetas[1]) < 0.7 * distance(talk.thetas[0])
    assert distance(talk.thetas[1]) > 0.01 * distance(talk.thetas[0])  # distilled, not copied


def test_the_time_of_distillation_is_recorded(run: Run) -> None:
    rows = rows_of(run("strategy=pfl", "partition=dirichlet"))
    assert all(0 < row["timings"]["distillation"] < row["seconds"] for row in rows)
    rows = rows_of(run("strategy=pfl", "partition=dirichlet", "strategy.server.distillation_epochs=0"))
    assert all(row["timings"] == {} for row in rows)


@pytest.mark.parametrize("exchange", ["statistics", "train"])
def test_a_client_that_drops_out_of_a_round(exchange: str, run: Run) -> None:
    """Between the exchanges it is charged for its norm alone, before them for what it made; the others go on."""
    fault = f"engine.faults=[{{round:2,client:1,exchange:{exchange},kind:drop}}]"
    folder = run(*ADPFL, *MLP, fault, "strategy.server.distillation_epochs=0", "strategy.client.epsilon=1e9")
    rows = rows_of(folder)
    assert [row["participants"] for row in rows] == [4, 3, 4] and [row["dropped"] for row in rows] == [0, 1, 0]
    assert sorted(rows[1]["figures"]["round_epsilon"]) == ["0", "2", "3"]
    reported = sorted(rows[1]["figures"]["reported_norms"])
    assert reported == (["0", "2", "3"] if exchange == "statistics" else ["0", "1", "2", "3"])
    booked = [line for line in ledger_of(folder) if line["client"] == 1 and line["observer"] == "server"]
    # A reply that is lost on its way was made all the same.
    assert [line["round"] for line in booked] == ([1, 1, 2, 3, 3] if exchange == "statistics" else [1, 1, 2, 2, 3, 3])


def test_a_dropped_client_is_not_averaged_in() -> None:
    """Round 1 without client 1: theta^1 is theta^0 plus the mean of three releases."""
    fault = "engine.faults=[{round:1,client:1,exchange:statistics,kind:raise}]"
    talk = Conversation(*ADPFL, *MLP, fault, "num_rounds=1", "strategy.server.distillation_epochs=0")
    _, second = exchanges(talk)
    assert [client_of(message) for message, _ in second] == [0, 2, 3]
    mean = np.mean([unpack_vector(answer.content) for _, answer in second], axis=0, dtype=np.float64)
    assert np.allclose(talk.thetas[1], talk.thetas[0] + mean, atol=1e-5)


def test_too_few_reports_end_the_run_before_any_release(tmp_path: Path, run: Run) -> None:
    faults = ",".join(f"{{round:2,client:{client},exchange:statistics,kind:raise}}" for client in (0, 1, 2))
    with pytest.raises(RunFailed, match=r"round 2: 1 usable replies of 4, strategy\.server\.min_replies=2"):
        run(*ADPFL, f"engine.faults=[{faults}]", "strategy.server.min_replies=2", folder=tmp_path / "run")
    second_round = [line for line in ledger_of(tmp_path / "run") if line["round"] == 2]
    assert {(line["client"], line["sequence"]) for line in second_round} == {(3, 4), (3, 5)}  # its norm, twice observed


def test_a_client_that_reports_nonsense_is_out_of_the_round(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = NoisyNorm.measure
    calls: list[int] = []

    def broken(self: NoisyNorm, norm: Any, *rest: Any) -> Measured:
        calls.append(0)
        found = real(self, norm, *rest)
        return Measured({CLIP_REPORTED_NORM: torch.tensor(math.nan)}) if len(calls) == 2 else found

    monkeypatch.setattr(NoisyNorm, "measure", broken)
    rows = rows_of(run(*ADPFL))
    assert [row["participants"] for row in rows] == [3, 4, 4]
    assert rows[0]["errors"] == {"1": "refused: statistics.clip-norm: expected a finite number, got nan"}


def test_the_floor_holds_and_the_run_says_so(run: Run) -> None:
    falling = ("strategy.server.clipping=geometric", "strategy.server.decay=0.01", "strategy.server.floor=0.1")
    folder = run(*ADPFL, *falling)
    figures = [row["figures"] for row in rows_of(folder)]
    assert [row["clip_norm"] for row in figures] == pytest.approx([4.0, 0.1, 0.1])
    assert [row["clip_floor_held"] for row in figures] == [False, True, True]
    assert "clip_floor_held" in page_of(folder)


@pytest.mark.parametrize("variant", ["published", "repaired"])
def test_it_works_where_no_diagnostics_travel(variant: str, run: Run) -> None:
    folder = run(*ADPFL, "privacy.rng=secure", f"privacy.variant={variant}")
    rows = rows_of(folder)
    assert all(row["participants"] == 4 and row["update_norm"] is None for row in rows)
    assert all(row["figures"]["round_epsilon"] == {} for row in rows)
    assert ("reported_norms" in rows[0]["figures"]) == (variant == "repaired")


# --- what a user can get wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["strategy.server.window=0"], "strategy.server.window=0: must be at least 2"),
        (["strategy.client.base_share=1.5"], "strategy.client.base_share=1.5: must be at most 1"),
        (["strategy.client.min_replies=9"], "strategy.server.min_replies=9: at most clients_per_round=4"),
        (["strategy.client.colluders=1"], "strategy.client.colluders=1: must be less"),
        (["strategy.server.weighting=examples"], "strategy.server.weighting=examples: allowed: uniform"),
        (["model=linear"], "model=of one named block (head): strategy.client.personal_layers needs at least 2"),
        (["strategy.client.epsilon=1e300"], "strategy.client.epsilon=1e300: must be at most"),
        (["strategy.client.epsilon=0"], "strategy.client.epsilon=0: must be more than 0"),
        (["strategy.client.allocation=some"], "strategy.client.allocation=some: allowed: adaptive or fixed"),
        (["dataset.auxiliary=0"], "dataset.auxiliary=0: adpfl distils on public examples"),
        (["dataset.auxiliary=360"], "dataset.auxiliary=360: there are 360 test examples"),
        (["strategy.client.personal_layers=2", "model=mlp"], "personal_layers=2: the model has 2 named"),
        (["strategy.client.clip_norm=20.0"], "strategy.client.clip_norm=20.0: must be from"),
        (["strategy.server.temperature=0.0"], "strategy.server.temperature=0.0: must be more than 0"),
        (["strategy.server.distillation_loss=l1"], "strategy.server.distillation_loss=l1: allowed: kl or mse"),
        (["engine.faults=[{round:1,client:0,exchange:keys,kind:drop}]"], "exchange=keys: adpfl has: statistics, train"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_line(overrides: list[str], words: str, cli: Callable[..., Outcome]) -> None:
    outcome = cli("strategy=adpfl", "num_clients=4", "clients_per_round=4", "num_rounds=1", "plan=true", *overrides)
    assert outcome.code == 2 and words in outcome.err and len(outcome.err.strip().splitlines()) == 1


def test_without_distillation_no_public_pictures_are_needed(run: Run) -> None:
    run(*ADPFL, "dataset.auxiliary=0", "strategy.server.distillation_epochs=0", "num_rounds=1")


def test_an_exchange_that_the_method_does_not_have_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedpriv.server.strategy.FederatedStrategy.train_options", lambda self, number: {EXCHANGE: STATISTICS}
    )
    with pytest.raises(RunFailed, match="fedavg has no exchange 'statistics'"):
        run("strategy=fedavg")


def test_plan_and_client_agree_on_who_adds_what() -> None:
    client = make_client(compose([*ADPFL, "num_clients=8", "clients_per_round=5", "privacy.variant=published"]))
    assert client.sensitivity == pytest.approx(2 / 5)  # type: ignore[attr-defined]
