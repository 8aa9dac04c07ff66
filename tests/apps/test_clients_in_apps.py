"""What a client half in an app decides itself, whatever its server, its app and its runtime do."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from nodes_of_an_app import AppNodes
from torch import Tensor, nn

from fedpriv import flower
from fedpriv.apps.form import Form
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.config.schema import LocalConfig
from fedpriv.privacy.composition import compose
from fedpriv.privacy.ledger import LedgerFile

START = ArrayRecord({"w": Array(np.zeros((3, 2), np.float32)), "b": Array(np.zeros(2, np.float32))})
CONFIG, ANSWER = "fitins.config", "fitres.metrics"


def train(arrays: list[Any], config: dict[str, Any]) -> tuple[list[Any], int]:
    return [array + 0.01 for array in arrays], 20


def app(work: Any = train, method: str = "fedcad", **given: Any) -> ClientApp:
    """given: of the client half, or from a context what is."""
    kind = flower.client_of(method)

    def client_fn(context: Context) -> Any:
        mine = {name: value(context) if callable(value) else value for name, value in given.items()}
        return kind(work, **mine).to_client()

    return ClientApp(client_fn)


def run(nodes: AppNodes, rounds: int = 2, method: str = "fedcad", **options: Any) -> Any:
    strategy = flower.strategy_of(method)(**{"min_available_nodes": 1, "noise_multiplier": 1.0} | options)
    return strategy.start(nodes, START, rounds, timeout=30), strategy


def said(message: Message, record: str) -> dict[str, Any]:
    return dict(json.loads(message.content.config_records[record]["fedpriv"]))  # type: ignore[arg-type]


def refusals(nodes: AppNodes) -> list[str]:
    """Why nodes released nothing, in order."""
    return [why for _, reply in nodes.seen if (why := said(reply, ANSWER).get("why")) is not None]


def test_a_loss_of_torchs_is_of_each_example_alone() -> None:
    """Of outputs [n, 1] and targets [n] its mean is over all pairs: one target moved the sum by 23 bounds."""
    torch.manual_seed(0)
    targets = torch.cat([torch.rand(31), torch.tensor([-1e4])])
    model = nn.Sequential(nn.Linear(4, 1))
    work = flower.Trainer(model, nn.MSELoss(), (torch.randn(32, 4), targets))
    trainer = work.of(
        Form.of(ArrayRecord(model.state_dict()))[0],
        LocalConfig(epochs=1, batch_size=32, lr=0.1, momentum=0.0, sampler="poisson"),
    )
    theta, rows = trainer.model.theta.clone(), (np.arange(31), np.arange(32))
    sums = [trainer.clipped_sum(theta, work.rows(some), 1.0).total for some in rows]
    assert 0 < float((sums[1] - sums[0]).norm()) <= 1


def test_a_class_that_a_loss_ignores_is_ignored() -> None:
    work = flower.Trainer(
        nn.Linear(2, 3), nn.CrossEntropyLoss(ignore_index=0), (torch.ones(2, 2), torch.tensor([0, 1]))
    )
    losses = work.task.losses(torch.zeros(2, 3), work.data.targets)
    assert losses[0] == 0 and losses[1] > 1


# --- what is booked and what a budget is ----------------------------------------------------------------------------


def test_a_budget_outlives_contexts_and_runs(tmp_path: Path) -> None:
    """Two updates at sigma 1 (multiplier 1/2) cost 14.9; a third costs more than 16."""
    given = {"folder": tmp_path / "client", "max_epsilon": 16.0}
    for number in (1, 2):
        run(AppNodes(app(**given), 1), 1)
        entries = LedgerFile(tmp_path / "client/ledger.jsonl", fsync=True).read().entries
        assert len(entries) == number
    assert compose([entry.event for entry in entries], 1e-5).epsilon < 16
    nodes = AppNodes(app(**given), 1)
    run(nodes, 1)
    assert refusals(nodes) == ["client 0: the next release would exceed epsilon 16.0"]
    assert len(LedgerFile(tmp_path / "client/ledger.jsonl", fsync=True).read().entries) == 2
    run(AppNodes(app(), 1), 1)  # without a budget of its own a client goes on


def test_a_line_is_on_the_disk_before_its_release_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(LedgerFile):
        def append(self, *_: Any, **__: Any) -> None:
            raise OSError("the disk is full")

    monkeypatch.setattr("fedpriv.apps.client.LedgerFile", Full)
    nodes = AppNodes(app(folder=tmp_path / "client"), 1)
    with pytest.raises(RunFailed, match="no client has answered: 1 x its own log says why"):
        run(nodes, 1)
    assert list(nodes.seen[-1][1].content.array_records["fitres.parameters"]) == ["_empty"]


def test_a_repeated_request_gets_the_same_bytes_and_a_stale_one_none() -> None:
    nodes = AppNodes(app(), 1)
    run(nodes, 2)
    (_, first), (message, second) = nodes.seen[-2:]
    again = nodes.apps[0](message, nodes.contexts[101])
    assert again.content["fitres.parameters"]["0"].data == second.content["fitres.parameters"]["0"].data  # type: ignore[index]
    older = nodes.apps[0](nodes.seen[-2][0], nodes.contexts[101])
    assert "comes after round 2 was answered" in said(older, ANSWER)["why"]
    assert first.content["fitres.parameters"]["0"].data != second.content["fitres.parameters"]["0"].data  # type: ignore[index]


# --- a hostile server -------------------------------------------------------------------------------------------------


def altered(nodes: AppNodes, change: Callable[[dict[str, Any]], None]) -> str | None:
    """Why the last message of a run, changed, is refused; None where it is answered."""
    message = nodes.seen[-1][0]
    content = said(message, CONFIG)
    content["round"] += 1
    change(content)
    record = ConfigRecord({**message.content.config_records[CONFIG], "fedpriv": json.dumps(content).encode()})
    arrays = message.content.array_records["fitins.parameters"]
    asked = Message(RecordDict({CONFIG: record, "fitins.parameters": arrays}), 101, "train")
    found = said(nodes.apps[0](asked, nodes.contexts[101]), ANSWER)
    return found["why"] if "refused" in found else None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda said: said["terms"]["options"].update(noise_multiplier=0.1), "others than at this client's first"),
        (lambda said: said["terms"]["options"].update(clip_norm=9.0), "others than at this client's first"),
        (lambda said: said["terms"].update(digest="00" * 32), "others than at this client's first"),
        (lambda said: said.update(client=3), "others than at this client's first"),
        (lambda said: said["terms"].update(variant="published"), "variant='published', this client is repaired"),
        (lambda said: said["terms"].update(method="fedavg"), "the server runs 'fedavg', and this client is FedCAD"),
        (lambda said: said["terms"]["options"].update(diff=5), "diff"),
        (
            lambda said: said["terms"].update(parts='[["w", [1000000, 1000000], "float32"]]'),
            "others than at this client's first",
        ),
        (lambda said: said["terms"].pop("facts"), "the server's terms cannot be read"),
        (lambda said: said.update(round=-1), ""),
    ],
)
def test_terms_that_a_server_changes_are_refused(change: Callable[[dict[str, Any]], None], words: str) -> None:
    nodes = AppNodes(app(), 1)
    run(nodes, 1)
    why = altered(nodes, change)
    assert why is not None and words in why
    assert altered(nodes, lambda said: None) is None


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("fedcad", {"noise_multiplier": 0.0}, "sigma=0|noise_multiplier 0|without noise|no noise"),
        ("dpfedavg", {"form": "central", "client_sampling": "poisson", "epsilon": 1.0}, "the server adds the noise"),
        ("dpftrl", {}, "the server adds the noise"),
    ],
)
def test_no_update_leaves_without_noise_unasked(method: str, options: dict[str, Any], words: str) -> None:
    options = {"noise_multiplier": 1.0} | options
    with pytest.raises(RunFailed, match=f"({words}).*does not say trusts_server=True"):
        run(AppNodes(app(method=method), 2), 1, method, min_train_nodes=2, **options)
    run(AppNodes(app(method=method, trusts_server=True), 2), 1, method, min_train_nodes=2, **options)


def first_contact(made: ClientApp, message: Message, change: Callable[[dict[str, Any]], None]) -> str | None:
    """Why a client that no server has asked before refuses a message, changed; None where it answers."""
    content = said(message, CONFIG)
    change(content)
    record = ConfigRecord({**message.content.config_records[CONFIG], "fedpriv": json.dumps(content).encode()})
    arrays = message.content.array_records["fitins.parameters"]
    asked = Message(RecordDict({CONFIG: record, "fitins.parameters": arrays}), 101, "train")
    return said(made(asked, Context(1, 101, {}, RecordDict(), {})), ANSWER).get("why")


def booked(folder: Path) -> list[Any]:
    return [entry.event for entry in LedgerFile(folder / "ledger.jsonl", fsync=True).read().entries]


def test_a_server_does_not_say_how_large_the_model_is(tmp_path: Path) -> None:
    """A private choice of coordinates costs nothing where all are sent, as of a model with one."""
    nodes = AppNodes(app(method="fedags", num_examples=20, folder=tmp_path / "told"), 1)
    run(nodes, 1, "fedags", selection="gumbel")
    other = app(method="fedags", num_examples=20, folder=tmp_path / "lied")
    lie = lambda said: said["terms"]["facts"].update(num_parameters=1, smallest=10**9)  # noqa: E731
    assert first_contact(other, nodes.seen[-1][0], lie) is None
    assert len(booked(tmp_path / "told")) == 2 and booked(tmp_path / "lied") == booked(tmp_path / "told")


def test_a_server_does_not_say_whose_data_a_budget_protects(tmp_path: Path) -> None:
    from torch import nn, ones, zeros

    start = ArrayRecord({"weight": Array(np.zeros((2, 3), np.float32)), "bias": Array(np.zeros(2, np.float32))})
    work = flower.Trainer(nn.Linear(3, 2), None, (ones(12, 3), zeros(12).long()))
    made = app(work, "dpsgd", folder=tmp_path)
    nodes = AppNodes(made, 1)
    strategy = flower.strategy_of("dpsgd")(min_available_nodes=1, local={"batch_size": 4})
    strategy.start(nodes, start, 1, timeout=30)
    assert first_contact(made, nodes.seen[-1][0], lambda said: said["terms"].update(unit="person")) is None
    assert {event.threat.unit for event in booked(tmp_path)} == {"example"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda said: said["request"].update(exchange="statistics"), "agn has no exchange 'statistics'"),
        (lambda said: said["request"].update(exchange=3), "agn has no exchange '3'"),
        (lambda said: said.update(round=2**70), "round and attempt: expected whole numbers"),
        (lambda said: said.update(attempt=-1), "round and attempt: expected whole numbers"),
    ],
)
def test_a_message_of_no_exchange_of_the_method_leaves_nothing_behind(
    change: Callable[[dict[str, Any]], None], words: str
) -> None:
    """Noisy steps that are not booked would stay in the moments, which the next release shows."""
    from torch import nn, ones, zeros

    start = ArrayRecord({"weight": Array(np.zeros((2, 3), np.float32)), "bias": Array(np.zeros(2, np.float32))})
    nodes = AppNodes(app(flower.Trainer(nn.Linear(3, 2), None, (ones(12, 3), zeros(12).long())), "agn"), 1)
    strategy = flower.strategy_of("agn")(min_available_nodes=1, local={"batch_size": 4})
    strategy.start(nodes, start, 1, timeout=30)
    before = nodes.contexts[101].state["memory"]
    why = altered(nodes, change)
    assert why is not None and words in why
    assert nodes.contexts[101].state["memory"] == before


def test_a_budget_is_of_all_releases_in_a_folder_whatever_the_method(tmp_path: Path) -> None:
    """Epsilons of two threat models are not added up, so a folder with a budget holds one of them."""
    given = {"folder": tmp_path, "max_epsilon": 20.0, "num_examples": 20}
    run(AppNodes(app(**given), 1), 1)
    with pytest.raises(RunFailed, match="holds releases under another threat model"):
        run(AppNodes(app(method="nbafl", **given), 1), 1, "nbafl")
    assert len(booked(tmp_path)) == 1
    run(AppNodes(app(method="nbafl", folder=tmp_path, num_examples=20), 1), 1, "nbafl")  # nothing is limited


def test_a_count_that_training_returned_does_not_leave_beside_a_private_release() -> None:
    with pytest.raises(RunFailed, match="weighting=examples needs a declared count: num_examples="):
        run(AppNodes(app(), 2), 1, weighting="examples")
    nodes = AppNodes(app(num_examples=33), 2)
    run(nodes, 1, weighting="examples")
    assert said(nodes.seen[-1][1], ANSWER)["examples"] == 33


@pytest.mark.parametrize("option", ["train", "loss"])
def test_a_server_names_no_function_that_runs_at_a_client(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be called with all examples as they are."""
    start = ArrayRecord({name: Array(part.detach().numpy()) for name, part in nn.Linear(4, 3).named_parameters()})
    data = torch.zeros(40, 4), torch.zeros(40, dtype=torch.int64)
    nodes = AppNodes(app(flower.Trainer(nn.Linear(4, 3), nn.CrossEntropyLoss(), data), "fedldp"), 1)
    strategy = flower.strategy_of("fedldp")(min_available_nodes=1)
    strategy.start(nodes, start, 1, timeout=30)
    nodes.contexts[101] = Context(1, 101, {}, RecordDict(), {})
    why = altered(nodes, lambda content: content["terms"]["local"].update({option: "builtins.print"}))
    assert why is not None and f"local.{option}='builtins.print'" in why and "tensor(" not in capsys.readouterr().out


def test_options_that_a_client_names_are_the_only_ones() -> None:
    with pytest.raises(RunFailed, match=r"the server asks for noise_multiplier=1.0, this client takes 2.0 alone"):
        run(AppNodes(app(noise_multiplier=2.0), 2))
    run(AppNodes(app(noise_multiplier=1.0, clip_norm=1.0), 2))


def test_a_trusted_servers_noise_keeps_no_budget_of_a_client(tmp_path: Path) -> None:
    given = {"folder": tmp_path, "max_epsilon": 5.0, "trusts_server": True}
    with pytest.raises(RunFailed, match="the server adds the noise, so no budget is kept here"):
        run(AppNodes(app(method="dpftrl", **given), 2), 1, "dpftrl")


def test_answers_to_other_messages_do_not_leave() -> None:
    asked: list[str] = []
    behind = ClientApp(mods=[flower.client_of("fedcad").mod()])

    @behind.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        asked.append("evaluate")
        return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)

    AppNodes(behind, 1)
    reply = behind(Message(RecordDict({"arrays": START}), 101, "evaluate"), Context(1, 101, {}, RecordDict(), {}))
    assert "would leave without noise" in said(reply, ANSWER)["why"] and asked == []


@pytest.mark.parametrize(
    "error", [ValueError("patient Mayer"), OptionError("patient", "Mayer", "none"), SystemExit("patient Mayer")]
)
def test_a_client_whose_training_raises_answers_like_the_others(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """By noise alone; without noise it has nothing to hide, and does not answer."""

    def fails(arrays: list[Any], config: dict[str, Any]) -> Any:
        raise error

    nodes = AppNodes([app(fails, seed=3), app(seed=3)], 2)
    with caplog.at_level(logging.ERROR, "fedpriv"):
        run(nodes, 1, seed=3)
    contents = [str(reply.content) for _, reply in nodes.seen]
    assert "Mayer" in caplog.text and refusals(nodes) == [] and not any("Mayer" in text for text in contents)
    with pytest.raises(RunFailed, match="its own log says why"):
        flower.strategy_of("fedavg")(min_available_nodes=1).start(AppNodes(app(fails, "fedavg"), 1), START, 1)


class Words(nn.Module):
    """Reads token ids below 10."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("method", "rows"), [("fedldp", slice(2)), ("dpsgd", slice(40)), ("dpsum", slice(30, 31))])
def test_a_client_whose_examples_a_model_cannot_read_answers_like_the_others(method: str, rows: slice) -> None:
    """Its first ones, by which nothing is tried, and those whose gradients are clipped one by one."""

    def work(broken: bool) -> flower.Trainer:
        ids = torch.randint(1, 10, (40, 5), generator=torch.Generator().manual_seed(1))
        if broken:
            ids[rows] = 12
        return flower.Trainer(Words(), nn.CrossEntropyLoss(), (ids, torch.zeros(40, dtype=torch.int64)))

    start = ArrayRecord({name: Array(part.detach().numpy()) for name, part in Words().named_parameters()})
    nodes = AppNodes([app(work(True), method), app(work(False), method)], 2)
    flower.strategy_of(method)(min_available_nodes=1).start(nodes, start, 1, timeout=30)
    assert refusals(nodes) == [] and sum(said(reply, ANSWER).get("exchange") == "train" for _, reply in nodes.seen) == 2


def test_nothing_of_training_leaves_but_the_release() -> None:
    def trains(arrays: list[Any], config: dict[str, Any]) -> Any:
        return [array + 0.01 for array in arrays], 20, {"train_loss": 0.123, "name": "Mayer"}

    nodes = AppNodes(app(trains), 1)
    run(nodes, 1)
    found = said(nodes.seen[-1][1], ANSWER)
    assert (found["examples"], found["figures"], found["statistics"]) == (1, {}, {})


# --- a hostile or broken app ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        lambda arrays, config: ([array[:1] for array in arrays], 20),  # as scikit-learn, where a class is missing
        lambda arrays, config: (arrays[:1], 20),
        lambda arrays, config: (arrays, 0),
        lambda arrays, config: arrays,
        lambda arrays, config: (arrays, 2.5),
    ],
)
def test_a_client_that_trains_another_model_answers_by_noise_alone_and_its_log_says_why(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The form of what training gives may tell of the data."""
    nodes = AppNodes([app(wrong), app(), app()], 3)
    with caplog.at_level(logging.ERROR, "fedpriv"):
        result, _ = run(nodes, 2, min_train_nodes=3, min_available_nodes=3)
    assert refusals(nodes) == [] and np.isfinite(result.arrays["w"].numpy()).all()
    assert caplog.text.count("its training raised") == 2


def test_numbers_that_are_not_finite_count_as_nothing() -> None:
    def diverges(arrays: list[Any], config: dict[str, Any]) -> Any:
        return [np.full_like(array, np.nan) for array in arrays], 20

    result, _ = run(AppNodes(app(diverges, seed=3), 1), 1, noise_multiplier=1e-6, seed=3)
    assert np.abs(result.arrays["w"].numpy()).max() < 1e-4


def behind_mods(*mods: Any, names: tuple[str, ...] = ("w", "b"), error: bool = False) -> ClientApp:
    found = ClientApp(mods=list(mods))

    @found.train()
    def trained(message: Message, context: Context) -> Message:
        arrays = [array.numpy() + 0.01 for array in message.content["arrays"].values()]  # type: ignore[union-attr]
        record = ArrayRecord(dict(zip(names, map(Array, arrays), strict=True)))
        content = {"arrays": record, "metrics": MetricRecord({"num-examples": 5})}
        return Message(RecordDict(content), reply_to=message)

    return found


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda mod: behind_mods(mod(), mod()), "its own log says why"),
        (lambda mod: behind_mods(mod(), names=("w", "bias")), "its own log says why"),
        (lambda mod: behind_mods(flower.client_of("fedldp").mod()), "the server runs 'fedcad', and this client is"),
        (lambda mod: behind_mods(), "KeyError"),
    ],
)
def test_a_mod_in_the_wrong_place_is_told_apart(
    made: Any, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedpriv.apps.server.PATIENCE", 0.0)
    with pytest.raises(RunFailed, match=words):
        run(AppNodes(made(flower.client_of("fedcad").mod), 1), 1)
    if words == "its own log says why":
        assert "is the mod there twice?" in caplog.text or "answers with the arrays ['w', 'bias']" in caplog.text


@pytest.mark.parametrize("others", [0, 2])
def test_a_mod_makes_the_apps_client_once_for_an_answer(others: int) -> None:
    made: list[int] = []

    class Own(NumPyClient):
        def fit(self, parameters: list[Any], config: dict[str, Any]) -> Any:
            return [array + 0.01 for array in parameters], 5, {}

    def client_fn(context: Context) -> Any:
        made.append(context.node_id)
        return Own().to_client()

    def beside(message: Message, context: Context, call_next: Any) -> Message:
        return call_next(message, context)  # type: ignore[no-any-return]

    nodes = AppNodes(ClientApp(client_fn, mods=[flower.client_of("fedcad").mod(), *[beside] * others]), 2)
    run(nodes, 2)
    assert sorted(made) == [101, 101, 102, 102]


def test_a_mod_after_another_dp_mod_releases_nothing() -> None:
    from flwr.clientapp.mod import fixedclipping_mod

    nodes = AppNodes(behind_mods(fixedclipping_mod, flower.client_of("fedcad").mod()), 1)
    with pytest.raises(RunFailed):
        run(nodes, 1)
    assert all(reply.has_error() or said(reply, ANSWER).get("exchange") != "train" for _, reply in nodes.seen)


def test_a_seed_is_refused_on_real_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, make in (
        ("flwr-clientapp", lambda: flower.client_of("fedcad")(train, seed=1)),
        ("flwr-serverapp", lambda: flower.strategy_of("fedcad")(seed=1)),
    ):
        monkeypatch.setattr(sys, "argv", [f"/somewhere/bin/{program}"])
        with pytest.raises(OptionError, match=r"seed=1: whoever knows a seed knows the noise"):
            make()


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("ddgauss", {}, "allowed: secure_sum=protocol"),
        ("ddgauss", {"secure_sum": "protocol"}, "needs identity keys: node-config identity-key and peer-keys"),
        ("coqfl", {"noise_multiplier": None}, "needs identity keys: node-config identity-key and peer-keys"),
    ],
)
def test_what_rests_on_other_clients_needs_keys_on_real_machines(
    method: str, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {name: value for name, value in ({"noise_multiplier": 1.0} | options).items() if value is not None}
    make = flower.strategy_of(method)
    monkeypatch.setattr(sys, "argv", ["flwr-clientapp"])
    with pytest.raises(RunFailed, match=words):
        make(min_available_nodes=4, **options).start(AppNodes(app(method=method), 4), START, 1, timeout=30)


def test_a_budget_is_not_kept_by_a_sum_that_the_server_sees_through(tmp_path: Path) -> None:
    given = {"folder": lambda context: tmp_path / str(context.node_id), "max_epsilon": 50.0}
    nodes = {"min_available_nodes": 4, "min_train_nodes": 4}
    with pytest.raises(RunFailed, match="allowed: secure_sum=protocol"):
        run(AppNodes(app(method="ddgauss", **given), 4), 1, "ddgauss", **nodes)
    run(AppNodes(app(method="ddgauss", seed=1, **given), 4), 1, "ddgauss", seed=1, **nodes)


def test_without_a_context_a_client_keeps_its_own() -> None:
    client = flower.client_of("fedcad")(train)
    nodes = AppNodes(ClientApp(lambda context: flower.client_of("fedcad")(train, context=context).to_client()), 1)
    run(nodes, 1)
    message = nodes.seen[-1][0]
    config = dict(message.content.config_records[CONFIG])
    arrays = [array.numpy() for array in message.content.array_records["fitins.parameters"].values()]
    first, second = client.fit(arrays, config), client.fit(arrays, config)
    assert np.array_equal(first[0][0], second[0][0])


def test_a_budget_of_sampled_examples_keeps_one_run_and_says_so(tmp_path: Path) -> None:
    from torch import nn

    def nodes() -> AppNodes:
        rows = np.zeros((40, 4), np.float32), np.arange(40) % 3
        work = flower.Trainer(nn.Linear(4, 3), None, rows)
        return AppNodes(app(work, "dpsgd", folder=tmp_path, max_epsilon=50.0), 1)

    start = ArrayRecord(nn.Linear(4, 3).state_dict())
    make = flower.strategy_of("dpsgd")
    make(min_available_nodes=1, min_train_nodes=1, local={"batch_size": 8}).start(nodes(), start, 1)
    with pytest.raises(RunFailed, match=r"max_epsilon= keeps one run, and this is a further one"):
        make(min_available_nodes=1, min_train_nodes=1, local={"batch_size": 8}).start(nodes(), start, 1)


def test_terms_stay_between_the_two_exchanges_of_a_round() -> None:
    nodes = AppNodes(app(method="adpfl", num_examples=20), 2)
    flower.strategy_of("adpfl")(min_available_nodes=2).start(nodes, START, 1, timeout=30)
    mine = [message for message, _ in nodes.seen if message.metadata.dst_node_id == 101]
    measures, releases = (one for one in mine if "request" in said(one, CONFIG))
    for change, refused in ((0.0, False), (0.1, True)):
        context = Context(1, 101, {"partition-id": 0}, RecordDict(), {})
        assert "why" not in said(nodes.apps[0](measures, context), ANSWER)
        content = said(releases, CONFIG)
        content["terms"]["options"]["floor"] += change
        record = ConfigRecord({**releases.content.config_records[CONFIG], "fedpriv": json.dumps(content).encode()})
        arrays = releases.content.array_records["fitins.parameters"]
        asked = Message(RecordDict({CONFIG: record, "fitins.parameters": arrays}), 101, "train")
        assert (
            "others than at this client's first" in said(nodes.apps[0](asked, context), ANSWER).get("why", "")
        ) == refused
