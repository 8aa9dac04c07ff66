"""Clients whose releases are rows of one computation give, bit for bit, what they give alone: models, ledgers, metrics,
memories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ledger_of
from flwr.app import ConfigRecord, Message
from test_every_method import CASES, METHODS, place

from clients.coqfl import CoQFLClient
from clients.fedldp import FedLDPClient
from fedpriv.client.base import Client
from fedpriv.client.build import final_names, make_client
from fedpriv.client.contract import LocalRule, Release
from fedpriv.client.memory import ContextStore, FileStore, Shelved, WithNorms, read_memory
from fedpriv.client.method import Traits
from fedpriv.client.one_path import Asked, Participation
from fedpriv.common.errors import DataError, OptionError, RunFailed
from fedpriv.common.messages import Refusal, Request, pack_vector
from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.engines import inprocess
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker, adopt, make_apps, unlike
from fedpriv.mechanisms.cohort_noise import CohortNoise
from fedpriv.mechanisms.noise import SeededNoise, add_normal, clip, grid_step, l2_norm
from fedpriv.mechanisms.secure_noise import SecureNoise
from fedpriv.runs.preparation import make_strategy, resolve
from fedpriv.runs.start import resume_run, start_run
from fedpriv.server.round import BudgetsSpent
from fedpriv.server.strategy import FederatedStrategy

COHORT = (
    "num_clients=14",
    "clients_per_round=9",
    "num_rounds=4",
    "engine=inprocess",
    "engine.trainer=vectorised",
    "model=linear",
    "operations.report=false",
    "evaluate.every=0",
)
#: Methods whose clients take part at once.
AT_ONCE = (
    *(
        "coqfl",
        "corrquant",
        "cpsgd",
        "ddgauss",
        "dpfedavg",
        "dpfedexp",
        "dpfedsam",
        "dpfedsnlc",
        "dpftrl",
        "dpzo",
        "fedags",
        "fedavg",
        "fedcad",
    ),
    *("fedldp", "fedprox", "ldpfl", "nbafl", "privunit", "scaffold", "skellam"),
)
ROWS = [case for case in CASES if case[0].partition("=")[2] in AT_ONCE]
SINGLY = ("engine.trainer=sequential", "num_rounds=2")
MODELS = {"fedonce": "softmax", "ask": "constant", "moments": "moments"}  # of those that cannot train the small network
UNEVEN = ("partition=dirichlet", "partition.alpha=0.3", "partition.min_examples=1", "num_clients=50")
UNIT_MECHANISMS = ("projunit", "sqkr", "gaussian")
LONG = ("num_clients=10", "num_rounds=6")
#: What else may move a round: budgets, statistics, uneven clients, those asked beyond need, local test sets, models.
FURTHER = [
    ("strategy=fedcad", "privacy.max_epsilon=400"),
    ("strategy=fedldp", "strategy.server.clipping=quantile"),
    ("strategy=fedcad", "strategy.server.clipping=adp"),
    ("strategy=fedcad", "strategy.client.obsolete_factor=0.5", "privacy.variant=published"),
    ("strategy=fedcad", "strategy.client.obsolete_factor=0.5", "strategy.client.sigma_diff=3"),
    (  # each client's own path decides what its release costs
        "strategy=fedcad",
        "privacy.variant=published",
        "strategy.client.obsolete_factor=0.5",
        "strategy.client.sigma_diff=0.5",
    ),
    ("strategy=fedags", "strategy.client.selection=gumbel", "strategy.client.loss_weights=true"),
    ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
    (
        *("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=allocated"),
        "clients_per_round=7",
    ),
    ("strategy=dpfedexp", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
    ("strategy=dpftrl", "strategy.server.client_sampling=poisson", "strategy.client.bandwidth=1"),
    ("strategy=dpftrl", "strategy.server.client_sampling=balls", "clients_per_round=7", "strategy.client.factor=bisr"),
    ("strategy=dpzo", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
    (  # clients that come again have a control variate of their own, beside those that never took part
        *("strategy=scaffold", *UNEVEN, "strategy.client.noise_multiplier=0.2", "strategy.client.form=central"),
        "strategy.server.client_sampling=poisson",
    ),
    ("strategy=ldpfl", "strategy.client.encode=weights"),
    ("strategy=fedldp", "partition=dirichlet", "partition.alpha=0.3", "local.momentum=0.9"),
    ("strategy=fedavg", "over_selection=1.4"),
    ("strategy=fedavg", "partition.test_fraction=0.3", "evaluate.clients=true"),
    ("strategy=nbafl", *UNEVEN, "partition.test_fraction=0.03", "evaluate.clients=true"),  # some have no test pictures
    ("strategy=fedavg", *UNEVEN, "partition.test_fraction=0.03", "evaluate.clients=true", "local.lr=1e30"),
    ("strategy=fedldp", *LONG, "strategy.server.clipping=adp", "privacy.variant=published"),  # a full window of norms
    ("strategy=fedldp", "model=mlp", "local.epochs=2", "local.batch_size=7"),
    ("strategy=fedcad", "model=cnn", "dataset=custom", "dataset.path=test_rows.larger_pictures", "num_rounds=2"),
    ("strategy=fedldp", "strategy.server.participation=once", "num_clients=36"),
    ("strategy=ddgauss", "strategy.server.clipping=quantile"),
    ("strategy=skellam", "strategy.server.clipping=adp", "strategy.client.noise_multiplier=1e-4"),
    ("strategy=cpsgd", "strategy.secure_sum=ideal"),
    ("strategy=cpsgd", *UNEVEN, "strategy.client.sensitivity=per_example", "privacy.variant=published"),
    ("strategy=corrquant", "strategy.client.encode=weights", "model=mlp"),
    ("strategy=corrquant", "over_selection=1.4"),
    *(("strategy=privunit", f"strategy.client.mechanism={name}") for name in UNIT_MECHANISMS),
    ("strategy=privunit", "strategy.client.epsilon=400", "model=mlp"),
    ("strategy=coqfl", "strategy.client.group_size=4", "strategy.client.encode=weights"),
    ("strategy=coqfl", "strategy.client.group_size=3", "over_selection=1.4", "model=mlp"),
    ("strategy=coqfl", "strategy.client.bits=0"),
]


def larger_pictures(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Random, 16x16: for a model that goes through torch.func."""
    rng, count = np.random.default_rng(split == "train"), 280 if split == "train" else 40
    return rng.integers(0, 256, (count, 1, 16, 16), dtype=np.uint8), rng.integers(0, 10, count)


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on every client is computed alone, and has a message of its own."""

    def now() -> None:
        monkeypatch.setattr(Worker, "why_single_messages", property(lambda self: "in this test"))
        monkeypatch.setattr(inprocess, "MOST_CLIENTS", 1)

    return now


def config_of(*case: str) -> Config:
    return compose([*COHORT, *case])


class Told:
    """A run without a folder: global models, ledger entries, metrics and memories."""

    def __init__(self, config: Config) -> None:
        self.config, worker, _ = resolve(config, None)
        adopt(self.config, worker)
        self.rounds: list[Any] = []
        grid = InProcessGrid(self.config, make_apps(self.config)[1])
        self.at_once = grid.carries_cohorts
        strategy = make_strategy(self.config, worker)
        self.entries: list[Any] = []

        def note(current: Any) -> None:
            self.entries += [*current.entries, *grid.collect_entries(current.cohort)]
            told = [(r.client, r.diagnostics, r.statistics, r.num_bytes) for r in current.replies]
            self.rounds.append(
                (
                    current.theta.tobytes(),
                    told,
                    current.lost,
                    current.stopped,
                    current.late,
                    current.errors,
                    current.codes,
                    current.bytes_up,
                    current.bytes_down,
                    current.figures,
                )
            )

        try:
            strategy.run_rounds(grid, pack_vector(worker.initial_parameters()), self.config.num_rounds, on_round=note)
        except BudgetsSpent as spent:
            self.rounds.append(str(spent))
        self.memories = dict(grid.memories())


def same(config: Config, one_by_one: Callable[[], None]) -> Told:
    at_once = Told(config)
    one_by_one()
    singly = Told(config)
    assert at_once.at_once and not singly.at_once
    assert at_once.rounds == singly.rounds and at_once.entries == singly.entries
    assert at_once.memories == singly.memories
    return at_once


@pytest.mark.rotates(2, place)
@pytest.mark.parametrize("case", [*ROWS, *FURTHER], ids=" ".join)
def test_a_cohort_gives_what_its_clients_give_alone(
    case: tuple[str, ...], one_by_one: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    told = same(config_of(*case), one_by_one)
    assert len(told.rounds) > 1 and "client by client" not in caplog.text


def test_a_budget_stops_some_of_a_cohort_and_not_the_others(one_by_one: Callable[[], None]) -> None:
    """Clients that were asked more often have spent it earlier, so cohorts are mixed."""
    once, twice = (compose_epsilon(times) for times in (1, 2))
    assert once < twice
    case = ("strategy=fedldp", f"privacy.max_epsilon={(once + twice) / 2}", "num_rounds=3", "num_clients=30")
    told = same(config_of(*case), one_by_one)
    stopped = [row[3] for row in told.rounds if not isinstance(row, str)]
    assert any(some and len(some) < 9 for some in stopped)


def compose_epsilon(times: int) -> float:
    from fedpriv.privacy.composition import compose as compose_events

    client = Worker(config_of("strategy=fedldp")).maker.make()
    return compose_events(client.planned_events(times), 1e-5).epsilon


def test_who_takes_part_at_once_is_who_says_so() -> None:
    cases = {name: (f"strategy={name}", f"model={MODELS.get(name, 'linear')}") for name in METHODS}
    found = {name for name in METHODS if make_client(config_of(*cases[name])).why_single is None}
    assert found == set(AT_ONCE)


def test_a_method_derived_from_one_says_so_for_itself() -> None:
    base = Worker(config_of("strategy=fedldp")).maker.make()
    derived = type("Derived", (type(base),), {})(base.options, base.run)
    assert "in_rows" in str(derived.why_single) and base.why_single is None


def test_a_method_cannot_replace_the_steps_that_all_share() -> None:
    """What a class does in a step that nobody calls, such as clipping and noise, would be left out unsaid."""
    for name in final_names():
        for bases in ((FedLDPClient,), (type("Mixin", (), {name: lambda *_: None}), FedLDPClient)):
            own = {name: lambda *_: None} if len(bases) == 1 else {}
            globals()["Own"] = type("Own", bases, {"in_rows": True, **own})
            with pytest.raises(OptionError, match=rf"_target_=Own: Own has its own `{name}`.*allowed"):
                Worker(config_of("strategy=fedldp", "strategy.client._target_=test_rows.Own")).maker  # noqa: B018


def test_a_client_that_has_no_key_to_tell_is_one_that_falls_back(
    monkeypatch: pytest.MonkeyPatch, one_by_one: Callable[[], None]
) -> None:
    """And so does its partner."""
    config, real = config_of("strategy=coqfl"), CoQFLClient._key
    broken = cohort_of_round(config)[0]

    def key(client: CoQFLClient, *asked: Any) -> list[bytes]:
        if client._site().client == broken:
            raise OSError(28, "no space left")
        return real(client, *asked)

    monkeypatch.setattr(CoQFLClient, "_key", key)
    told = same(config, one_by_one)
    assert told.rounds[0][9]["keys_missing"] == 1 and told.rounds[0][9]["fallbacks"] >= 2


class EverySecond(FederatedStrategy):
    """A server half that asks every second client of a cohort, by its messages."""

    def configure_train(self, *asked: Any) -> list[Message]:  # type: ignore[override]
        return list(super().configure_train(*asked))[::2]


def test_a_server_half_that_may_look_at_messages_has_one_for_each_client(one_by_one: Callable[[], None]) -> None:
    config = config_of("strategy=fedavg", "strategy.server._target_=test_rows.EverySecond")
    told = Told(config)
    assert not told.at_once and all(len(row[1]) == 5 for row in told.rounds)
    assert "one after the other: EverySecond.configure_train" in resolve(config, None)[2].trainer
    one_by_one()
    assert told.rounds == Told(config).rounds


@pytest.mark.parametrize("strategy", ["fedavg", "fedcad", "dpfedavg"])
def test_a_server_half_that_says_so_has_one_message_for_all(strategy: str) -> None:
    config, worker, _ = resolve(config_of(f"strategy={strategy}"), None)
    adopt(config, worker)
    grid, half = InProcessGrid(config, make_apps(config)[1]), make_strategy(config, worker)
    messages = half.configure_train(1, pack_vector(worker.initial_parameters()), ConfigRecord(), grid)
    assert len(list(messages)) == 1 and len(half.current.cohort) > 1


def test_the_plan_says_who_takes_part_one_by_one() -> None:
    _, _, plan = resolve(config_of("strategy=fedcad"), None)
    assert "release as rows" in plan.trainer
    _, _, plan = resolve(config_of("strategy=dpsgd"), None)
    assert "one after the other: DPSGDClient" in plan.trainer


def test_a_run_that_is_resumed_goes_on_at_once(tmp_path: Path, one_by_one: Callable[[], None]) -> None:
    """Interrupted after a checkpoint at once, resumed one by one: the same as neither."""
    options = [*COHORT, "strategy=fedcad", "checkpoint.every=2"]
    start_run(compose(options), tmp_path / "whole")
    broken = tmp_path / "broken"
    start_run(compose(options), broken)
    for path in (broken / "summary.json", broken / "model.safetensors"):
        path.unlink()
    one_by_one()
    resume_run(broken)
    assert ledger_of(broken) == ledger_of(tmp_path / "whole")
    models = [(folder / "model.safetensors").read_bytes() for folder in (broken, tmp_path / "whole")]
    assert models[0] == models[1]


def test_a_cohort_that_fails_is_computed_client_by_client(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, one_by_one: Callable[[], None]
) -> None:
    config = config_of("strategy=fedcad")

    def half(self: Any, groups: Any) -> Any:
        if sum(len(group.members) for group in groups) > 1:
            raise MemoryError("too many clients")
        return real(self, groups)

    real = Participation._computed
    monkeypatch.setattr(Participation, "_computed", half)
    told = Told(config)
    assert told.at_once and "too many clients" in caplog.text
    one_by_one()
    singly = Told(config)
    assert told.rounds == singly.rounds and told.memories == singly.memories


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (DataError("one client's"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False),
        (RuntimeError("a mistake of the trainer"), False),
    ],
)
def test_a_failure_of_the_trainer_is_not_hidden(
    error: Exception, alone: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only want of memory, and what may be one client's own, is tried again client by client."""

    def broken(self: Any, clients: Any, *more: Any) -> Any:
        if len(clients) > 1:
            raise error
        return real(self, clients, *more)

    real = Worker.train
    monkeypatch.setattr(Worker, "train", broken)
    config = config_of("strategy=fedldp", "num_rounds=1")
    if alone:
        assert Told(config).entries and type(error).__name__ in caplog.text
        return
    with pytest.raises(RunFailed, match=f"0 usable replies.*{error}"):
        Told(config)
    assert "client by client" not in caplog.text


def test_a_client_that_cannot_write_does_not_answer_and_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leaves that is not booked, and its ledger has no entry."""
    config, real = (
        config_of("strategy=fedper", "model=mlp", "num_rounds=1", "strategy.server.min_replies=1"),
        Shelved.keep,
    )
    broken = cohort_of_round(config)[0]

    def keep(store: Shelved, memory: Any) -> None:
        if memory.uncollected and store.clients == (broken,):
            raise OSError(28, "no space left")
        real(store, memory)

    monkeypatch.setattr(Shelved, "keep", keep)
    told = Told(config)
    assert {entry.client for entry in told.entries} == set(cohort_of_round(config)) - {broken}
    assert "no space left" in str(told.rounds[0][5][broken])


@pytest.mark.parametrize("together", [True, False])
def test_clients_that_have_spent_the_same_have_entries_of_their_own(tmp_path: Path, together: bool) -> None:
    """Where each one's memory is bytes of its own, as in files or on real machines."""
    config, worker, _ = resolve(config_of("strategy=fedldp"), None)
    adopt(config, worker)
    stores, theta = [FileStore(tmp_path, client) for client in range(3)], worker.initial_parameters()
    for number in (1, 2):
        asked = [Asked((client,), store, Request(number)) for client, store in enumerate(stores)]
        for some in [asked] if together else [[one] for one in asked]:
            assert not worker.participation.answer(some, theta).refused
        memories = [read_memory(store) for store in stores]
        assert [{entry.client for entry in memory.uncollected} for memory in memories] == [{0}, {1}, {2}]
        assert len({memory.account.key for memory in memories}) == 1


def cohort_of_round(config: Config) -> list[int]:
    config, worker, _ = resolve(config, None)
    adopt(config, worker)
    return list(make_strategy(config, worker).begin(1, pack_vector(worker.initial_parameters())))


def test_a_repeated_request_gets_the_same_bytes() -> None:
    """And an older one is refused, also where a message is for many."""
    config, worker, _ = resolve(config_of("strategy=fedldp"), None)
    adopt(config, worker)
    grid, strategy = InProcessGrid(config, make_apps(config)[1]), make_strategy(config, worker)
    theta = pack_vector(worker.initial_parameters())
    answers = []
    for number in (2, 2, 1):
        messages = strategy.messages(grid, strategy.begin(2, theta), theta, {})
        for message in messages:
            message.content["config"]["round"] = number
        answers.append(list(grid.send_and_receive(messages)))
    assert [len(found) for found in answers] == [1, 1, 1]
    first, again = (found[0].content["arrays"]["vector"].data[-4 * 9 * 650 :] for found in answers[:2])
    assert first == again
    assert set(answers[2][0].content["cohort"]["codes"]) == {Refusal.STALE} and "arrays" not in answers[2][0].content


@pytest.mark.rotates(3)
@pytest.mark.parametrize("name", METHODS)
def test_no_participation_writes_to_the_memory_that_it_read(name: str) -> None:
    """Memories are objects in a simulation: a tensor changed in place would change what a refused client keeps."""
    config, worker, _ = resolve(config_of(f"strategy={name}", f"model={MODELS.get(name, 'mlp')}", *SINGLY), None)
    adopt(config, worker)
    grid = InProcessGrid(config, make_apps(config)[1])
    strategy, theta = make_strategy(config, worker), worker.initial_parameters()
    kept: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def note(current: Any) -> None:
        if current.number == 1:
            for client in current.cohort:
                tensors = list(read_memory(ContextStore(grid.context_of(client))).tensors())
                kept[client] = [(tensor, tensor.clone()) for tensor in tensors]

    strategy.run_rounds(grid, pack_vector(theta), 2, on_round=note)
    for pairs in kept.values():
        assert all(torch.equal(tensor, before) for tensor, before in pairs), name


# --- noise -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (5,), (16,), (17,), (650,), (3, 7)])
def test_a_cohorts_noise_is_each_clients_own(shape: tuple[int, ...]) -> None:
    """Row by row, call after call, whatever is drawn in between."""
    together = CohortNoise([SeededNoise(1, client, "row") for client in range(4)])
    alone = [SeededNoise(1, client, "row") for client in range(4)]
    draws: list[Callable[[Any, tuple[int, ...]], torch.Tensor]] = [
        lambda noise, size: noise.normal(size),
        lambda noise, size: noise.uniform(size),
        lambda noise, size: noise.normal(size, 3.7),
        lambda noise, size: noise.gumbel(size, 0.3),
        lambda noise, size: noise.laplace(size, 2.0),
        lambda noise, size: noise.integers(-3, 9, size),
        lambda noise, size: noise.binomial(40, size),
        lambda noise, size: noise.fine_normal(size, 0.5),
        lambda noise, size: noise.normal(size, 0.1),
    ]
    for draw in draws:
        assert torch.equal(draw(together, (4, *shape)), torch.stack([draw(one, shape) for one in alone]))


@pytest.mark.parametrize("shape", [(), (400,)])
def test_a_cohorts_secure_noise_is_on_the_grid_of_its_deviation(shape: tuple[int, ...]) -> None:
    """Off it, the low bits of a release would tell which values are possible."""
    together, std = CohortNoise([SecureNoise() for _ in range(40)]), 0.3
    steps = together.normal((40, *shape), std).double() / grid_step(std)
    assert steps.shape == (40, *shape) and torch.equal(steps, steps.round()) and float(steps.std()) > 2**18


@pytest.mark.parametrize("shape", [(), (3,), (5, 4), 7])
def test_a_draw_that_is_nobodys_is_refused(shape: Any) -> None:
    noise = CohortNoise([SeededNoise(client) for client in range(4)])
    for draw in (noise.normal, noise.uniform, noise.laplace, noise.gumbel):
        with pytest.raises(ValueError, match="for 4 clients"):
            draw(shape)
    with pytest.raises(ValueError):
        noise.words(4)
    with pytest.raises(ValueError):
        noise.permutation(4)


# --- what must not touch another client ------------------------------------------------------------------


class OwnTraining(FedLDPClient):
    """mu, drift and start are each client's own; the second client has no drift."""

    in_rows = False

    def local(self, state: Any) -> LocalRule:
        client = self._site().client
        return LocalRule(0.1 * (client % 4), None if client % 2 else torch.full((650,), float(client)))

    def prepare(self, request: Request, down: Sequence[torch.Tensor] = ()) -> None:
        super().prepare(request, down)
        down[0][-1] += self._site().client  # the last class's bias, and in place


def test_what_training_takes_is_each_clients_own(one_by_one: Callable[[], None]) -> None:
    target = "strategy.client._target_=test_rows.OwnTraining"
    together = Told(config_of("strategy=fedldp", target, "num_rounds=2"))
    one_by_one()
    assert together.rounds == Told(config_of("strategy=fedldp", target, "num_rounds=2")).rounds


class Dearer(FedLDPClient):
    in_rows = True

    def charges(self, state: Any) -> Any:
        if self.site is not None and 3 in self.site.clients:
            raise ValueError("client 3 has no price")
        return super().charges(state)


def test_an_error_of_one_clients_price_is_its_own() -> None:
    told = Told(config_of("strategy=fedldp", "strategy.client._target_=test_rows.Dearer", "clients_per_round=14"))
    assert {client for row in told.rounds for client in row[5]} == {3}


@pytest.mark.parametrize("trainer", ["sequential", "vectorised"])
def test_a_model_of_another_length_is_refused_by_each_client(trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "why_single_messages", property(lambda self: "in this test"))
    config, worker, _ = resolve(config_of("strategy=coqfl", f"engine.trainer={trainer}"), None)
    adopt(config, worker)
    grid, half = InProcessGrid(config, make_apps(config)[1]), make_strategy(config, worker)
    short = pack_vector(worker.initial_parameters()[:-1])
    clients = half.begin(1, short)
    replies = list(grid.send_and_receive(half.messages(grid, clients, short, {})))
    assert len(replies) == len(clients) and all(reply.has_error() for reply in replies)


def test_groups_whose_clients_train_together_share_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under secure noise Flower's run id is in what they derive: in every exchange the same."""
    group = ("strategy=coqfl", "strategy.client.group_size=3", "privacy.rng=secure", "num_rounds=1")
    fallen: list[str] = []
    monkeypatch.setattr("clients.coqfl.log.warning", lambda words, *given: fallen.append(words % given))
    for trainer in ("sequential", "vectorised"):
        Told(config_of(*group, f"engine.trainer={trainer}", "num_clients=6", "clients_per_round=6"))
    assert fallen == []


# --- ---------------------------------------------------------------------------------------------------------------
# Classes of one's own that say `in_rows`: tried before the run, and computed apart where clients touch each other.


OWN = ("strategy=fedldp", "strategy.client._target_=test_rows.Chosen")


class ByTheMean(FedLDPClient):
    """Clips by the mean norm: of one client its own, of several everybody's."""

    in_rows = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        clipped = update * torch.clamp(self.clip_norm / l2_norm(update).mean(), max=1.0)
        return Release(add_normal(clipped, self.noise_multiplier * self.clip_norm, noise), None)


class OneDraw(FedLDPClient):
    """All have the noise of the first."""

    in_rows = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        drawn = noise.normal(update.shape, self.noise_multiplier * self.clip_norm)
        return Release(clip(update, self.clip_norm) + drawn[0], None)


class OnceMore(FedLDPClient):
    """Right at first: what it keeps is everybody's."""

    in_rows = True
    traits = Traits(State=WithNorms)

    def release(self, update: Any, state: Any, noise: Any) -> Release:
        kept = l2_norm(update).unsqueeze(-1) if state is None else state.norms
        bound = self.clip_norm if state is None else kept.mean() + self.clip_norm
        value = add_normal(clip(update, float(bound)), self.noise_multiplier * self.clip_norm, noise)
        return Release(value, WithNorms(None, kept))


class Careful(FedLDPClient):
    in_rows = True


class FirstNumbers(FedLDPClient):
    """Forgot that rows come first: of several clients it takes clients where it means coordinates."""

    in_rows = True

    def perturb(self, update: Any, state: Any, noise: Any) -> Release:
        return super().perturb(torch.cat([update[:1], update[1:]]) * 2 if len(update) > 3 else update, state, noise)


class Counted(ByTheMean):
    """Priced by its count: clients of other counts are no rows of one computation, but of the trial they are."""

    in_rows = True
    traits = replace(FedLDPClient.traits, needs_facts=True)


class Releasing(FedLDPClient):
    """Another release, in the one place where a participation makes it: no way around it."""

    in_rows = True

    def releasing(self, theta: Any, trained: Any, state: Any, noise: Any) -> Release:
        value = add_normal(clip(trained.sent, 0.5 * self.clip_norm), self.noise_multiplier * self.clip_norm, noise)
        return self.released(trained, Release(value, None))


@pytest.mark.parametrize("kind", [ByTheMean, OneDraw, OnceMore, Releasing], ids=lambda kind: kind.__name__)
def test_together_clients_give_what_they_give_apart(kind: type[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Chosen", kind)
    config = config_of(*OWN, "num_rounds=2")
    told = Told(config)
    assert told.at_once == (kind is Releasing)
    monkeypatch.setattr(Worker, "why_single_messages", property(lambda self: "in this test"))
    monkeypatch.setattr(inprocess, "MOST_CLIENTS", 1)
    assert told.rounds == Told(config).rounds


@pytest.mark.parametrize("case", ROWS, ids=" ".join)
def test_the_trial_finds_nothing_in_the_project_s_own(case: tuple[str, ...]) -> None:
    assert unlike(Worker(config_of(*case))) is None


def test_a_half_that_keeps_clients_apart_has_one_message_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run's noise and budget are."""
    config = config_of(*OWN, "privacy.rng=secure")
    config = config.model_copy(update={"privacy": config.privacy.model_copy(update={"max_epsilon": 1e-3})})
    monkeypatch.setitem(globals(), "Chosen", Careful)
    assert Worker(config).why_single_messages is None
    for kind in (ByTheMean, OneDraw, OnceMore, FirstNumbers, Counted):
        monkeypatch.setitem(globals(), "Chosen", kind)
        assert kind.__name__ in str(Worker(config).why_single_messages)


Chosen: Callable[..., Any]
