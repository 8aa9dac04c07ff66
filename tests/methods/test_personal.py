"""Clients that keep layers: what travels, what stays, and how well each client's own model does on its own tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import SMALL, Run, page_of, rows_of, summary_of
from flwr.app import Message
from reference.recording import Conversation, RecordingGrid
from safetensors.torch import load_file

import fedpriv
from clients.fedvf import FedVFClient
from fedpriv.client.memory import ContextStore, read_memory
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import MalformedMessage, Refusal, num_bytes, pack_vector, unpack_vector
from fedpriv.common.seeds import generator
from fedpriv.config.compose import CONF, compose
from fedpriv.config.own_options import group_choices
from fedpriv.config.schema import Config, ModelConfig
from fedpriv.engines.worker import Worker
from fedpriv.report.client_accuracy import last_known, round_figures, spread_over_clients, summary_figures
from fedpriv.report.compare import compare, comparison_tables
from fedpriv.report.reading import read_run
from fedpriv.report.tables import final_lines
from fedpriv.runs.planning import make_plan
from fedpriv.runs.preparation import resolve
from fedpriv.training.flat_model import Block, Layers, Layout, layout_of
from fedpriv.training.models import build_model
from fedpriv.training.sequential import Training

METHODS = ("fedper", "lgfedavg", "fedvf")
#: mlp on digits: block "hidden" is [0, 4160) of the flat vector, block "head" [4160, 4810).
HIDDEN, SIZE = 4160, 4810
BASE, HEAD, WHOLE = slice(0, HIDDEN), slice(HIDDEN, SIZE), slice(0, SIZE)
SKEWED = ("partition=pathological", "local.momentum=0.5")


def reference(
    config: Config, worker: Worker, layers_of: Callable[[int], Layers]
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Whole models everywhere; what goes up is averaged at the end of a round: (the server's model, the clients').

    A slow twin of all three methods: ``layers_of`` says which slices of the whole model are exchanged in a round.
    """
    initial = worker.initial_model.numpy().astype(np.float64)
    server, models = initial.copy(), {client: initial.copy() for client in range(config.num_clients)}
    weights = np.array([worker.data.num_examples(client) for client in models], dtype=float)
    for number in range(1, config.num_rounds + 1):
        layers = layers_of(number)
        for client, model in models.items():
            model[layers.down] = server[layers.down]
            rng = generator(config.seed, client, number, 0, "batches")
            start = torch.from_numpy(model.astype(np.float32))
            models[client] = (
                model + worker.trainer.train(Training(start, worker.local_data(client), rng)).update.numpy()
            )
        mean = np.average([models[client] for client in models], axis=0, weights=weights)
        server[layers.up] = mean[layers.up]
    return server, models


# --- the slices ------------------------------------------------------------------------------------------


def layout(name: str) -> Any:
    return layout_of(build_model(ModelConfig(name=name), (1, 28, 28), 10, 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "count", "first"),
    [("cnn", 2, "hidden"), ("cnn", 3, "conv2"), ("cnn", None, "hidden"), ("mlp", None, "head"), ("cnn", 1, "head")],
)
def test_the_last_blocks(name: str, count: int | None, first: str) -> None:
    found = layout(name)
    start = next(block.start for block in found.blocks if block.name == first)
    assert found.last_blocks(count, "x") == slice(start, found.num_parameters)


@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("cnn", 4, "x=4: the model has 4 named blocks (conv1, conv2, hidden, head): at most 3"),
        ("cnn", 7, "x=7: the model has 4 named blocks (conv1, conv2, hidden, head): at most 3"),
        ("mlp", 2, "x=2: the model has 2 named blocks (hidden, head): at most 1"),
        ("linear", None, "model=of one named block (head): x needs at least 2"),
    ],
)
def test_a_model_with_too_few_blocks_is_refused_in_numbers(name: str, count: int | None, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        layout(name).last_blocks(count, "x")
    assert str(caught.value) == words


def test_slices_seen_from_a_later_start() -> None:
    whole = Layers(slice(4, 9), slice(6, 9), slice(0, 4), slice(4, 9), slice(6, 8))
    assert whole.seen_from(4) == Layers(slice(0, 5), slice(2, 5), slice(0, 0), slice(0, 5), slice(2, 4))


@pytest.mark.rotates(2)
@pytest.mark.parametrize(
    ("strategy", "option"), [(s, "head_layers") for s in METHODS[1:]] + [("fedper", "personal_layers")]
)
def test_a_wrong_number_of_layers_is_a_mistake_in_the_call(strategy: str, option: str, cli: Callable[..., Any]) -> None:
    for value, model, words in (
        (0, "mlp", "at least 1"),
        (2, "mlp", "2 named blocks (hidden, head)"),
        (1, "linear", "model=of one named block (head)"),
    ):
        outcome = cli(
            *SMALL, f"strategy={strategy}", f"model={model}", f"strategy.client.{option}={value}", "hydra.run.dir=here"
        )
        assert outcome.code == 2 and outcome.err.count("\n") == 1
        assert f"strategy.client.{option}" in outcome.err and words in outcome.err
        assert not Path("here/metrics.jsonl").exists() and not Path("here/config.yaml").exists()


# --- what travels ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talks() -> dict[str, Conversation]:
    return {
        name: Conversation(
            f"strategy={name}", *SKEWED, *(["strategy.client.head_period=2", "num_rounds=5"] * (name == "fedvf"))
        )
        for name in METHODS
    }


@pytest.mark.parametrize(("strategy", "shared", "kept"), [("fedper", BASE, HEAD), ("lgfedavg", HEAD, BASE)])
def test_only_the_shared_part_is_in_any_message(
    talks: dict[str, Conversation], strategy: str, shared: slice, kept: slice
) -> None:
    talk = talks[strategy]
    assert len(talk.grid.seen) == 12
    for message, reply in talk.grid.seen:
        assert set(message.content) == {"arrays", "config"} and set(message.content["config"]) == {"round", "attempt"}  # type: ignore[call-overload]
        assert set(reply.content) == {"arrays", "metrics", "diagnostics"}
        assert set(reply.content["diagnostics"]) == {"train_loss", "update_norm", "local_accuracy"}  # type: ignore[call-overload]
    size = shared.stop - shared.start
    for number, _, down, up in talk.vectors():
        assert down.shape == up.shape == (size,)
        assert np.array_equal(down, talk.thetas[number - 1])
    for client in range(4):  # no number of a client's own layers is in what the server knows
        mine = talk.grid.kept(client)
        assert mine.shape == (SIZE - size,) and not np.array_equal(mine, talk.worker.initial_model.numpy()[kept])
        for _, _, down, up in talk.vectors():
            assert not np.isin(mine[mine != 0][:50], down).all() and not np.isin(mine[mine != 0][:50], up).all()


@pytest.mark.parametrize("strategy", METHODS)
def test_the_run_is_the_one_of_the_slow_twin(talks: dict[str, Conversation], strategy: str) -> None:
    """Local layers survive rounds, the shared ones are averaged, in the rounds in which they are and in no others."""
    talk = talks[strategy]
    layers = {
        "fedper": lambda number: Layers(BASE, BASE, HEAD, BASE),
        "lgfedavg": lambda number: Layers(HEAD, HEAD, BASE, HEAD),
        # P = 2: heads up in rounds 2 and 4, their mean down in rounds 3 and 5.
        "fedvf": lambda number: Layers(
            WHOLE if number in (3, 5) else BASE, WHOLE if number in (2, 4) else BASE, HEAD, WHOLE
        ),
    }
    server, models = reference(talk.config, talk.worker, layers[strategy])
    shared = {"fedper": BASE, "lgfedavg": HEAD, "fedvf": WHOLE}[strategy]
    np.testing.assert_allclose(talk.thetas[-1], server[shared], atol=2e-6)
    assert np.abs(server[shared] - talk.thetas[0]).max() > 0.01
    kept = BASE if strategy == "lgfedavg" else HEAD
    for client, model in models.items():
        np.testing.assert_allclose(talk.grid.kept(client), model[kept], atol=2e-6)
    assert np.abs(models[0][kept] - models[1][kept]).max() > 0.01


def test_the_head_of_fedvf_moves_every_head_period_rounds(talks: dict[str, Conversation]) -> None:
    talk = talks["fedvf"]
    heads = [theta[HEAD] for theta in talk.thetas]
    bases = [theta[BASE] for theta in talk.thetas]
    assert [not np.array_equal(old, new) for old, new in pairwise(heads)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert all(not np.array_equal(old, new) for old, new in pairwise(bases))
    sizes = {number: (down.size, up.size) for number, _, down, up in talk.vectors()}
    assert sizes == {1: (HIDDEN, HIDDEN), 2: (HIDDEN, SIZE), 3: (SIZE, HIDDEN), 4: (HIDDEN, SIZE), 5: (SIZE, HIDDEN)}


def test_fedvf_with_period_one_is_fedavg() -> None:
    both = [
        Conversation(*SKEWED, *options, "model=mlp", "partition.test_fraction=0.4")
        for options in (("strategy=fedvf", "strategy.client.head_period=1"), ("strategy=fedavg",))
    ]
    np.testing.assert_allclose(both[0].thetas[-1], both[1].thetas[-1], atol=1e-6)


@pytest.mark.parametrize("strategy", METHODS)
def test_plan_and_traffic_are_of_what_travels(talks: dict[str, Conversation], strategy: str) -> None:
    talk = talks[strategy]
    vectors = list(talk.vectors())
    assert talk.plan.bytes_down == sum(down.nbytes for _, _, down, _ in vectors)
    assert talk.plan.bytes_up == sum(up.nbytes for _, _, _, up in vectors)
    assert talk.bytes_down == sum(num_bytes(message.content) for message, _ in talk.grid.seen)
    assert talk.bytes_up == sum(num_bytes(reply.content) for _, reply in talk.grid.seen)
    assert 0 <= talk.bytes_up - talk.plan.bytes_up < 400 * len(vectors)


def test_a_vector_of_another_size_is_refused_on_both_sides(talks: dict[str, Conversation]) -> None:
    talk = talks["fedper"]
    with RecordingGrid(talk.config) as grid:
        message = talk.grid.seen[0][0]
        for size in (SIZE, 1, HIDDEN - 1):
            wrong = Message(message.content.copy(), grid.node_of_client[0], "train", group_id="1")
            wrong.content["arrays"] = pack_vector(np.zeros(size, np.float32))
            (reply,) = grid.send_and_receive([wrong])
            assert reply.error.code == Refusal.FAILED and f"expected {HIDDEN} values, got {size}" in reply.error.reason
    with pytest.raises(MalformedMessage, match="expected 650 values, got 4160"):
        unpack_vector(talk.grid.seen[0][1].content, 650)


def test_clients_outside_the_cohort_keep_their_layers(run: Run) -> None:
    """A client's layers change with its own participations only."""
    talk = Conversation("strategy=fedper", *SKEWED, "clients_per_round=1", "num_rounds=4")
    asked = [client for _, client, _, _ in talk.vectors()]
    assert set(asked) != set(range(4))
    for client in range(4):
        memory = read_memory(ContextStore(talk.grid.context_of(client)))
        assert (memory.kept is not None) == (client in asked)


# --- the saved model -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "untrained", "trained"), [("fedper", "head", "hidden"), ("lgfedavg", "hidden", "head")]
)
def test_the_saved_model_is_whole_with_initial_personal_layers(
    strategy: str, untrained: str, trained: str, run: Run
) -> None:
    folder = run(f"strategy={strategy}", *SKEWED)
    saved = load_file(folder / "model.safetensors")
    initial = dict(build_model(ModelConfig(name="mlp"), (1, 8, 8), 10, 0).named_parameters())  # type: ignore[arg-type]
    assert saved.keys() == initial.keys()
    for name, value in saved.items():
        assert torch.equal(value, initial[name]) == name.startswith(untrained)
        assert name.startswith((untrained, trained))
    model = fedpriv.load(folder).model
    assert model.probabilities(np.zeros((2, 1, 8, 8), np.uint8)).shape == (2, 10)
    summary = summary_of(folder)
    assert summary["num_parameters"] == SIZE and summary["num_shared"] == {"fedper": HIDDEN, "lgfedavg": 650}[strategy]
    assert "global part with untrained personal layers" in page_of(folder)
    assert any("global part with untrained personal layers, test set" in line for line in final_lines(summary))


def test_the_saved_model_of_fedavg_is_not_said_to_be_a_part(run: Run) -> None:
    assert "untrained" not in page_of(run("strategy=fedavg"))


# --- each client's own accuracy --------------------------------------------------------------------------


def accuracy_by_hand(config: Config, worker: Worker, client: int, start: np.ndarray) -> float:
    """One participation in round 1 and the share of right answers on the client's test pictures, in plain torch."""
    rng = generator(config.seed, client, 1, 0, "batches")
    theta = torch.from_numpy(start)
    local = theta + worker.trainer.train(Training(theta, worker.local_data(client), rng)).update
    module = build_model(worker.config.model, (1, 8, 8), 10, 0)
    torch.nn.utils.vector_to_parameters(local, module.parameters())
    dataset, rows = worker.data.dataset, worker.data.test_indices(client)
    assert rows.size > 10 and not set(rows) & set(worker.data.train_indices(client))
    pictures = (torch.from_numpy(dataset.train.inputs[rows].astype(np.float32)) / 255 - dataset.mean[0]) / dataset.std[
        0
    ]
    right = module(pictures).argmax(1).numpy() == dataset.train.targets[rows]
    return float(right.mean())


@pytest.mark.parametrize("strategy", ["fedavg", "fedper", "fedcad"])
def test_a_clients_accuracy_is_that_of_its_model_before_upload(strategy: str, run: Run) -> None:
    options = (
        f"strategy={strategy}",
        *SKEWED,
        "model=mlp",
        "partition.test_fraction=0.4",
        "num_rounds=1",
        "local.sampler=shuffle",
    )
    folder = run(*options)
    (row,) = rows_of(folder)
    config, worker, _ = resolve(compose([*SMALL, *options]), None)
    by_hand = {
        str(client): accuracy_by_hand(config, worker, client, worker.initial_model.numpy()) for client in range(4)
    }
    assert row["personal_accuracy"]["clients"] == pytest.approx(by_hand, abs=1e-6)
    assert len(set(by_hand.values())) > 1
    accuracy = summary_of(folder)["accuracy"]
    assert accuracy["personalised"] == pytest.approx(np.mean(list(by_hand.values())), abs=1e-6)
    assert accuracy["personalised_worst_decile"] == pytest.approx(min(by_hand.values()), abs=1e-6)
    assert accuracy["personalised_std"] == pytest.approx(np.std(list(by_hand.values())), abs=1e-6)


def test_the_report_shows_it(run: Run) -> None:
    on, off = (run("partition.test_fraction=0.4", f"evaluate.clients={word}") for word in ("true", "false"))
    shown = 'alt="Plot of accuracy by client'
    assert shown in page_of(on) and (on / "private" / "clients.png").is_file()
    assert shown not in page_of(off) and not (off / "private" / "clients.png").exists()


@pytest.mark.rotates(3)
@pytest.mark.parametrize("strategy", [name for name in group_choices(CONF / "strategy") if name != "ask"])
def test_every_method_has_it_and_nothing_else_changes(strategy: str, run: Run) -> None:
    on, off = (
        run(f"strategy={strategy}", "partition.test_fraction=0.4", "num_rounds=1", f"evaluate.clients={word}")
        for word in ("true", "false")
    )
    known = [rows_of(folder)[0]["personal_accuracy"] for folder in (on, off)]
    assert set(known[0]["clients"]) == {"0", "1", "2", "3"} and known[1] is None
    assert summary_of(off)["accuracy"]["personalised"] is None
    models = [hashlib.sha256((folder / "model.safetensors").read_bytes()).digest() for folder in (on, off)]
    assert models[0] == models[1]
    traffic = [summary_of(folder)["traffic"] for folder in (on, off)]
    assert traffic[0] == traffic[1]  # a diagnostic is no part of the message


@pytest.mark.parametrize(
    "options", [("privacy.rng=secure",), ("evaluate.clients=false",), ("partition.test_fraction=0",)]
)
def test_outside_simulation_and_where_it_is_off_no_client_looks(options: tuple[str, ...]) -> None:
    talk = Conversation("strategy=fedper", *SKEWED, "num_rounds=1", *options)
    secure = options == ("privacy.rng=secure",)
    for _, reply in talk.grid.seen:
        assert ("diagnostics" in reply.content) == (not secure)
        assert secure or "local_accuracy" not in reply.content["diagnostics"]  # type: ignore[operator]
    client = talk.worker.client(0, ContextStore(talk.grid.context_of(0)))
    assert client.site is not None and client.site.test is None


def test_personal_layers_beat_the_global_model_on_skewed_data(run: Run) -> None:
    """Two classes per client: one head for all must tell ten apart, a head of one's own two."""
    options = (
        "num_clients=10",
        "clients_per_round=10",
        "num_rounds=6",
        "partition=pathological",
        "partition.test_fraction=0.4",
        "model=mlp",
    )
    found = {name: summary_of(run(f"strategy={name}", *options))["accuracy"] for name in ("fedavg", *METHODS)}
    for name in METHODS:
        assert found[name]["personalised"] > found["fedavg"]["final"] + 0.15
        assert found[name]["personalised"] > 0.9


# --- figures ---------------------------------------------------------------------------------------------


def test_the_spread_over_clients() -> None:
    accuracies = {client: client / 20 for client in range(20)}
    found = spread_over_clients(accuracies)
    assert found == pytest.approx({"mean": 0.475, "worst_decile": 0.025, "std": np.std(list(accuracies.values()))})
    assert spread_over_clients({3: 0.5}) == {"mean": 0.5, "worst_decile": 0.5, "std": 0.0}
    assert spread_over_clients(dict(enumerate([0.9] * 10 + [0.1])))["worst_decile"] == pytest.approx(
        0.5
    )  # two of eleven
    assert round_figures({}) is None


def test_a_client_counts_with_its_last_known_accuracy() -> None:
    rows = [
        {"personal_accuracy": round_figures({0: 0.1, 1: 0.2})},
        {"personal_accuracy": None},
        {},
        {"personal_accuracy": round_figures({1: 0.6, 2: 0.8})},
    ]
    assert last_known(rows) == {0: 0.1, 1: 0.6, 2: 0.8}
    assert summary_figures(rows)["personalised"] == pytest.approx(0.5)
    assert summary_figures([{}]) == {"personalised": None, "personalised_worst_decile": None, "personalised_std": None}


def test_the_comparison_shows_it_where_it_exists(run: Run) -> None:
    own, plain = run("strategy=fedper", "num_rounds=1"), run("strategy=fedavg", "num_rounds=1", "model=mlp")
    (table,) = comparison_tables(compare([read_run(own), read_run(plain)]))
    place = table.header.index("personalised, %")
    by_strategy = {row[0]: row for row in table.rows}
    assert float(by_strategy["fedper"][place].split()[0]) > 0 and by_strategy["fedavg"][place] == "not evaluated"
    assert "global part" in by_strategy["fedper"][table.header.index("accuracy, %")]
    (table,) = comparison_tables(compare([read_run(plain)]))
    assert "personalised, %" not in table.header
    summary = summary_of(own)
    assert any(line.startswith("personalised") and "worst decile" in line for line in final_lines(summary))
    assert not any(line.startswith("personalised") for line in final_lines(summary_of(plain)))


def test_the_plan_of_a_run_that_shares_a_part(cli: Callable[..., Any]) -> None:
    outcome = cli(*SMALL, "strategy=fedper", "model=mlp", "plan=true")
    assert outcome.code == 0 and "4810, of which 4160 are shared" in outcome.out
    config = compose([*SMALL, "strategy=fedper", "model=mlp"])
    assert make_plan(config, Worker(config)).bytes_up == 4 * HIDDEN * 12
    assert f"{4 * HIDDEN * 12:,}" in outcome.out


@pytest.mark.parametrize(
    ("stage", "up", "down"),
    [(0, [3, 6], [4, 7]), (2, [1, 2, 3, 6], [2, 3, 4, 7]), (4, [1, 2, 3, 4, 6], [2, 3, 4, 5, 7])],
)
def test_fedvf_learns_global_features_in_its_earlier_stage(stage: int, up: list[int], down: list[int]) -> None:
    """All layers in rounds 1 to ``stage``, then the heads at their own frequency."""
    client = making.client(FedVFClient, head_period=3, head_layers=1, stage=stage)
    layout = Layout((Block("base", 0, 5), Block("head", 5, 8)), ("base", "head"), ((5,), (3,)))
    travels = {number: client.layers(layout, number) for number in range(1, 8)}
    assert [number for number, layers in travels.items() if layers.up.stop == 8] == up
    assert [number for number, layers in travels.items() if layers.down.stop == 8] == down
