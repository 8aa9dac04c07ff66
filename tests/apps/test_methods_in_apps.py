"""Every method inside a Flower app that knows nothing of this project, in each form of client that it allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from nodes_of_an_app import AppNodes
from safetensors.torch import load_file
from torch import nn

import fedpriv
from fedpriv import flower
from fedpriv.attacks.contract_check import check_contract
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.config.compose import compose
from fedpriv.config.methods import METHODS
from fedpriv.engines.worker import Worker
from fedpriv.privacy.events import Gaussian
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.privacy.ledger import LedgerFile
from fedpriv.runs.preparation import resolve

ROWS = torch.randn(24, 1, 4, 4, generator=torch.Generator().manual_seed(5)), torch.arange(24) % 3
#: Method -> forms that it has not.
BY_EXAMPLE = ("dpsgd", "agn", "anr", "dpfl_agn", "dpsum")
REFUSED = dict.fromkeys((*BY_EXAMPLE, "scaffold", "dpfedsam", "dpzo"), ("function", "mod", "numpy")) | dict.fromkeys(
    ("ask", "fedonce", "moments"), ("function", "mod", "numpy", "trainer")
)


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def initial() -> ArrayRecord:
    return ArrayRecord(net().state_dict())


def train(arrays: list[Any], config: dict[str, Any]) -> tuple[list[Any], int]:
    return [np.asarray(array) + 0.01 for array in arrays], 20


def trained(message: Message, context: Context) -> Message:
    """What Flower's own quickstart does with a train message."""
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    with torch.no_grad():
        for part in model.parameters():
            part += 0.01
    metrics = MetricRecord({"train_loss": 0.5, "num-examples": 20})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class Older(NumPyClient):
    """An app's client in Flower's older form."""

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        return *train(parameters, config), {}


def server(method: str) -> Any:
    return flower.strategy_of(method)


def client(method: str) -> Any:
    return flower.client_of(method)


def app(method: str, form: str, **given: Any) -> ClientApp:
    """A ClientApp with a method's client half in one of its forms."""
    kind = client(method)
    if form == "mod":
        found = ClientApp(mods=[kind.mod(**given)])
        found.train()(trained)
        return found
    if form == "numpy":
        return ClientApp(lambda context: Older().to_client(), mods=[kind.mod(**given)])
    if form == "message":
        found, half = ClientApp(), kind(train, **given)
        found.train()(half.train)
        return found
    work = flower.Trainer(net(), None, ROWS) if form == "trainer" else train
    return ClientApp(lambda context: kind(work, **given).to_client())


def started(method: str, nodes: AppNodes, num_rounds: int = 2, **options: Any) -> tuple[Any, Any]:
    """(strategy, result)."""
    if server(method).needs_public_loss:
        options = {"public_loss": lambda arrays: 1.0} | options
    strategy = server(method)(**{"min_available_nodes": len(nodes.contexts), "local": {"batch_size": 6}} | options)
    return strategy, strategy.start(nodes, initial(), num_rounds, timeout=30)


@pytest.mark.rotates(4)
@pytest.mark.parametrize("form", ["function", "mod", "numpy", "trainer"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_in_an_app_or_says_why_not(method: str, form: str) -> None:
    given: dict[str, Any] = {"num_examples": 24} if form != "trainer" else {}
    if method == "dpftrl":
        given["trusts_server"] = True
    if form in REFUSED.get(method, ()):
        with pytest.raises(OptionError):
            app(method, form, **given)(None, None) if form == "mod" else client(method)(train)
        return
    strategy, result = started(method, AppNodes(app(method, form, **given)))
    shapes = {name: tuple(part.shape) for name, part in net().state_dict().items()}
    assert {name: array.shape for name, array in result.arrays.items()} == shapes
    assert strategy.privacy.unit == ("example" if method in (*BY_EXAMPLE, "nbafl") else "client")
    finite = bool({"noise_multiplier", "epsilon"} & set(METHODS[method].model_fields)) and method != "corrquant"
    assert (strategy.privacy.verified < np.inf) == finite


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fedcad", {"obsolete_factor": 0.2, "noise_multiplier": 0.5}),
        ("coqfl", {}),
        ("fedags", {}),
        ("dpsgd", {}),
        ("adpfl", {"distillation_epochs": 0}),
        ("scaffold", {}),
    ],
)
def test_an_app_with_our_training_gives_the_bits_of_a_run(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    named = [f"strategy.{'server' if 'distil' in name else 'client'}.{name}={value}" for name, value in options.items()]
    run = ["num_clients=4", "clients_per_round=3", "num_rounds=2", "seed=3", "model=mlp", "operations.report=false"]
    overrides = [f"strategy={method}", *run, "engine=inprocess", "engine.trainer=sequential", *named]
    expected = fedpriv.run(overrides, folder=tmp_path / "run", quiet=True)
    config, worker, _ = resolve(compose(overrides), None)

    def node(number: int) -> ClientApp:
        own = Worker(config)
        rows = own.local_data(number)
        work = flower.Trainer(own.model.module, None, (rows.inputs, rows.targets))
        return ClientApp(lambda context: client(method)(work, seed=3).to_client())

    local = {name: getattr(config.local, name) for name in ("lr", "batch_size", "epochs", "sampler")}
    strategy = server(method)(min_available_nodes=4, fraction_train=0.75, seed=3, local=local, **options)
    start = ArrayRecord({name: part.detach() for name, part in worker.model.module.named_parameters()})
    result = strategy.start(AppNodes([node(number) for number in range(4)], 4), start, 2)
    model = load_file(str(tmp_path / "run/model.safetensors"))
    assert all(torch.equal(part, model[name]) for name, part in result.arrays.to_torch_state_dict().items())
    assert strategy.privacy.verified == expected.summary["privacy"]["verified_epsilon"]


def test_the_three_forms_release_the_same() -> None:
    found = []
    for form in ("function", "message", "mod", "numpy"):
        _, result = started("fedldp", AppNodes(app("fedldp", form, seed=7)), seed=7, noise_multiplier=0.5)
        found.append(np.concatenate([array.numpy().ravel() for array in result.arrays.values()]))
    assert all(np.allclose(found[0], other, atol=1e-6) for other in found[1:])


# --- what is written ---------------------------------------------------------------------------------------------


def test_a_folder_says_what_a_run_cost_and_can_be_audited(tmp_path: Path) -> None:
    nodes = AppNodes(app("fedcad", "function"))
    strategy, _ = started(
        "fedcad", nodes, 3, run_dir=tmp_path / "run", noise_multiplier=1.0, clip_norm=0.5, num_clients=3
    )
    run = fedpriv.load(tmp_path / "run")
    assert run.summary["privacy"]["verified_epsilon"] == strategy.privacy.verified
    assert run.summary["privacy"]["claimed_epsilon"] == strategy.privacy.claimed
    assert strategy.privacy.folder == tmp_path / "run"
    assert "fedcad on a Flower app" in (tmp_path / "run/report.html").read_text()
    entries = LedgerFile(tmp_path / "run/ledger.jsonl", fsync=False).read().entries
    assert len(entries) == 9 and {type(entry.event) for entry in entries} == {Gaussian}
    audit = fedpriv.audit_run(run, trials=2000)
    assert 0 < max(one.audit.epsilon_lower for one in audit.scopes) <= strategy.privacy.verified
    assert fedpriv.certify_run(run)
    with pytest.raises(Exception, match="holds a run already"):
        strategy.start(nodes, initial(), 3)


def test_an_interrupted_run_goes_on_with_its_clients_state(tmp_path: Path) -> None:
    nodes = AppNodes(app("fedcad", "function", seed=2))
    rounds: list[int] = []

    def stops(number: int, arrays: ArrayRecord) -> MetricRecord:
        rounds.append(number)
        if number == 2 and rounds.count(2) == 1:
            raise KeyboardInterrupt
        return MetricRecord({"accuracy": number / 10})

    def run() -> Any:
        strategy = server("fedcad")(run_dir=tmp_path / "run", seed=2, overrides=["checkpoint.every=1"])
        return strategy.start(nodes, initial(), 4, evaluate_fn=stops)

    with pytest.raises(KeyboardInterrupt):
        run()
    result = run()
    assert rounds == [0, 1, 2, 2, 3, 4] and max(result.evaluate_metrics_serverapp) == 4
    entries = LedgerFile(tmp_path / "run/ledger.jsonl", fsync=False).read().entries
    assert len(entries) == 3 * 5  # the round that was interrupted has left twice


def nodes_anew() -> AppNodes:
    return AppNodes(app("fedcad", "function", seed=2))


def test_what_is_kept_of_arrays_of_other_types() -> None:
    start = ArrayRecord(
        {
            "head.weight": flower_array(np.ones((2, 3), np.float16)),
            "steps": flower_array(np.array([7, 8])),
            "none": flower_array(np.zeros((0, 4), np.float32)),
            "wide": flower_array(np.zeros(2, np.float64)),
        }
    )
    strategy = server("fedldp")(noise_multiplier=0.1, seed=1)
    found = strategy.start(AppNodes(app("fedldp", "function", seed=1)), start, 1).arrays
    assert [found[name].dtype for name in start] == ["float16", "int64", "float32", "float64"]
    assert found["steps"].numpy().tolist() == [7, 8] and found["none"].shape == (0, 4)
    assert np.abs(found["wide"].numpy()).max() > 0


def flower_array(array: Any) -> Any:
    from flwr.app import Array

    return Array(array)


def test_nodes_are_the_clients_of_their_partitions_and_others_take_what_is_free() -> None:
    nodes = AppNodes(app("fedldp", "function"), 3)
    nodes.contexts[101].node_config["partition-id"] = 2
    nodes.contexts[103].node_config["partition-id"] = 2
    seen: list[int] = []
    strategy = server("fedldp")(min_available_nodes=3)
    strategy.start(nodes, initial(), 1)
    for message, _ in nodes.seen:
        content = message.content.config_records["fitins.config"]["fedpriv"]
        if b'"client"' in content:  # type: ignore[operator]
            seen.append((message.metadata.dst_node_id, flower_json(content)["client"]))  # type: ignore[arg-type]
    assert dict(seen) == {101: 2, 102: 1, 103: 0}  # type: ignore[arg-type]


def flower_json(content: Any) -> Any:
    import json

    return json.loads(content)


def test_a_node_that_leaves_and_comes_back_keeps_its_number() -> None:
    nodes, asked = AppNodes(app("fedcad", "function"), 3), []

    def note(number: int, arrays: ArrayRecord) -> MetricRecord:
        nodes.away = {102} if number == 1 else set()
        asked.append(number)
        return MetricRecord({"loss": 1.0})

    strategy = server("fedcad")(min_available_nodes=3)
    strategy.start(nodes, initial(), 3, evaluate_fn=note)
    clients = [
        (message.metadata.dst_node_id, flower_json(message.content.config_records["fitins.config"]["fedpriv"]))
        for message, _ in nodes.seen
    ]
    rounds = [(node, said["round"], said["client"]) for node, said in clients if "round" in said]
    assert sorted(number for node, number, _ in rounds if node == 102) == [1, 3]
    assert {said for node, _, said in rounds if node == 102} == {1}


@pytest.mark.parametrize(("failures", "takes_part"), [(2, True), (3, False)])
def test_a_node_that_errs_at_first_is_asked_again(failures: int, takes_part: bool) -> None:
    left = [failures]

    def errs(context: Context) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError("not yet")
        return flower.client_of("fedldp")(train).to_client()

    nodes = AppNodes([app("fedldp", "function"), app("fedldp", "function"), ClientApp(errs)], 3)
    server("fedldp")(min_available_nodes=2).start(nodes, initial(), 1)
    assert (103 in client_numbers(nodes)) == takes_part and {101, 102} <= set(client_numbers(nodes))


@pytest.mark.parametrize(
    "said", [{"partition-id": np.nan}, {"examples": np.inf}, {"examples": 1e300}, {"examples": -1.0}]
)
def test_what_a_node_says_of_itself_stops_nobody(said: dict[str, float]) -> None:
    import json

    from flwr.app import ConfigRecord

    hostile = ClientApp()

    @hostile.train()
    def answer(message: Message, context: Context) -> Message:
        own = {"exchange": "statistics", "examples": 1, "statistics": said, "blobs": [], "figures": {}}
        metrics = ConfigRecord({"fedpriv": json.dumps(own).encode()})
        return Message(RecordDict({"fitres.parameters": ArrayRecord(), "fitres.metrics": metrics}), reply_to=message)

    good = app("fedldp", "function")
    nodes = AppNodes([good, good, hostile])
    strategy = server("fedldp")()
    strategy.start(nodes, initial(), 1)
    asked = {message.metadata.dst_node_id for message, _ in nodes.seen[3:]}
    assert asked == {101, 102}


def test_privacy_is_of_the_last_run_alone_and_a_second_start_gets_no_old_answers() -> None:
    nodes, strategy = AppNodes(app("fedldp", "function")), server("fedldp")()
    strategy.start(nodes, initial(), 1)
    assert strategy.privacy is not None
    with pytest.raises(RunFailed, match="a second start of a strategy needs a run of its own"):
        strategy.start(nodes, initial(), 1)
    assert strategy.privacy is None


def test_an_interrupted_run_goes_on_with_its_own_options_alone(tmp_path: Path) -> None:
    def stops(number: int, arrays: ArrayRecord) -> None:
        if number == 1:
            raise KeyboardInterrupt

    def run(method: str = "fedcad", rounds: int = 2, **options: Any) -> Any:
        made = server(method)(run_dir=tmp_path / "run", overrides=["checkpoint.every=1"], **options)
        return made.start(nodes_anew(), initial(), rounds, evaluate_fn=stops)

    with pytest.raises(KeyboardInterrupt):
        run()
    for other in ({"noise_multiplier": 7.0}, {"method": "fedldp"}, {"rounds": 3}, {"delta": 0.1}, {"local": {"lr": 9}}):
        with pytest.raises(OptionError, match="holds an interrupted run whose"):
            run(**other)  # type: ignore[arg-type]


def test_nodes_keep_their_numbers_when_a_run_goes_on(tmp_path: Path) -> None:
    """Who takes another's number would release under an account that knows nothing of its own releases."""

    def stops(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number == 1 and 101 not in nodes.away:
            raise KeyboardInterrupt
        return None

    nodes = AppNodes(app("fedldp", "function"), 4, partitions=False)
    options = {"run_dir": tmp_path / "run", "num_clients": 4, "overrides": ["checkpoint.every=1"]}
    with pytest.raises(KeyboardInterrupt):
        server("fedldp")(**options).start(nodes, initial(), 2, evaluate_fn=stops)
    numbers = client_numbers(nodes)
    nodes = AppNodes(app("fedldp", "function"), 5, partitions=False)
    nodes.away = {101, 105}
    server("fedldp")(**options).start(nodes, initial(), 2, evaluate_fn=stops)
    assert client_numbers(nodes).items() < numbers.items() and len(client_numbers(nodes)) == 3


def client_numbers(nodes: AppNodes) -> dict[int, int]:
    """Node -> the number that it was told."""
    told = [
        (message.metadata.dst_node_id, flower_json(message.content.config_records["fitins.config"]["fedpriv"]))
        for message, _ in nodes.seen
    ]
    return {node: said["client"] for node, said in told if "client" in said}


Refuse = Callable[[], Any]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: server("fedcad")(sigma=3), r"sigma=3: fedcad has no such option; allowed: .*noise_multiplier"),
        (lambda: server("fedcad")(noise_multiplier=-1), r"noise_multiplier=-1: .*0"),
        (lambda: server("fedcad")(local={"rate": 1}), r"rate=1: local has no such option"),
        (lambda: server("fedcad")(fraction_train=0), r"fraction_train=0: more than 0"),
        (lambda: server("fedcad")(min_train_nodes=0), r"min_train_nodes=0: a whole number"),
        (lambda: server("fedcad")(target_epsilon=-1).start(nodes_anew(), initial(), 1), "privacy.target_epsilon=-1"),
        (
            lambda: server("fedper")(overrides=["privacy.mechanism=fedldp"]).start(nodes_anew(), initial(), 1),
            "overrides: privacy.mechanism=fedldp: in an app it is null",
        ),
        (
            lambda: server("fedcad")(overrides=["model=linear"]).start(nodes_anew(), initial(), 1),
            "overrides: model=linear: in an app it is app",
        ),
        (lambda: server("dpfl_agn")(), r"public_loss=None: dpfl_agn follows a loss"),
        (lambda: server("ask")(), r"strategy=ask: trains no model"),
        (
            lambda: server("fedldp")(overrides=["privacy.across_sites=2"]).start(nodes_anew(), initial(), 1),
            "overrides: privacy.across_sites=2: in an app it is 1",
        ),
        (
            lambda: server("fedcad")(overrides=["privacy.max_epsilon=1"]).start(nodes_anew(), initial(), 1),
            r"overrides: privacy.max_epsilon=1.0: in an app it is null",
        ),
        (lambda: server("fedcad")(num_clients=0), "num_clients=0: a whole number"),
        (lambda: client("fedcad")(3), r"train=int: a function"),
        (lambda: client("fedcad")(train, sigma=3), r"sigma=3: fedcad has no such option"),
        (lambda: client("fedcad")(train, max_epsilon=3), r"max_epsilon=3: a budget needs folder="),
        (lambda: client("fedcad")(train, variant="mended"), r"variant=mended: allowed: repaired, published"),
        (lambda: client("dpsgd")(train), r"train=train: dpsgd clips the gradient of each example"),
        (lambda: client("scaffold")(train), r"train=train: scaffold takes local steps of its own"),
        (lambda: flower.Trainer(net(), lambda a, b: 0, ROWS), r"loss=function: a loss of torch.nn"),
        (lambda: flower.Trainer(net(), None, 3), r"data=int: \(inputs, targets\)"),
        (lambda: server("fedcad")().start(nodes_anew(), ArrayRecord(), 1), "no float numbers"),
        (lambda: server("fedcad")().start(nodes_anew(), [1.0], 1), "initial_arrays=list: must be an ArrayRecord"),
        (
            lambda: server("fedcad")().start(nodes_anew(), ArrayRecord([np.array([np.nan])]), 1),
            "initial_arrays=not finite",
        ),
        (lambda: server("fedcad")().start(nodes_anew(), initial(), 1, evaluate_config={"a": 1}), "evaluate_config"),
    ],
)
def test_a_wrong_call_names_option_and_what_is_allowed(make: Refuse, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()


def test_too_few_nodes_end_a_run_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ClientApp()
    plain.train()(trained)
    monkeypatch.setattr("fedpriv.apps.server.PATIENCE", 0.0)
    with pytest.raises(
        RunFailed, match=r"0 nodes can take part, min_available_nodes=2 .*its app needs the client half of fedcad"
    ):
        server("fedcad")().start(AppNodes(plain), initial(), 1)
    with pytest.raises(RunFailed, match="3 nodes can take part, min_available_nodes=5 are needed"):
        server("fedcad")(min_available_nodes=5).start(nodes_anew(), initial(), 1)
    with pytest.raises(RunFailed, match="the server runs 'fedldp', and this client is FedCADClient"):
        server("fedldp")().start(nodes_anew(), initial(), 1)


def test_names_of_the_face() -> None:
    assert flower.FedCAD is server("fedcad") and flower.FedCADClient is client("fedcad")
    assert {"FedCAD", "FedCADClient", "fedcad_mod", "Trainer"} <= set(dir(flower))
    with pytest.raises(AttributeError, match=r"has no attribute 'FedCad'; it has .*FedCAD"):
        _ = flower.FedCad


def test_a_method_of_ones_own_runs_in_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedpriv.commands.new import main
    from fedpriv.common.places import with_own_methods

    monkeypatch.chdir(tmp_path)
    assert main(["mine"]) == 0
    with with_own_methods(tmp_path):
        strategy, _ = started("mine", AppNodes(app("mine", "function", noise_multiplier=4.0)), noise_multiplier=4.0)
        assert strategy.privacy.verified == pytest.approx(gaussian_epsilon(np.sqrt(2) * 2 / 4.0, 1e-5), rel=1e-6)
        with pytest.raises(OptionError, match=r"sigma=3: mine has no such option; allowed: .*noise_multiplier"):
            server("mine")(sigma=3)
        alone = strategy.config(1, 1)  # of one node: its release is held against others' all the same
        alone = alone.model_copy(update={"model": alone.model.model_copy(update={"arrays": (("w", (2, 3)),)})})
        assert check_contract(alone).clients == 16
        monkeypatch.setattr(client("mine").kind(), "charges", lambda *given: ())  # as where somebody forgot it
        with pytest.raises(RunFailed, match="charges nothing"):
            started("mine", AppNodes(app("mine", "function")))
        strategy, _ = started("mine", AppNodes(app("mine", "function", trusts_server=True)))
        assert strategy.privacy.verified == math.inf and "charges nothing" in str(strategy.privacy.reasons)


# --- what is trained -------------------------------------------------------------------------------------------------


def frozen_in_part() -> nn.Module:
    model = net()
    model[1].requires_grad_(False)
    return model


class Words(nn.Module):
    """Cross-entropy of each token."""

    reduction = "mean"

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction=self.reduction)


def gpt2() -> nn.Module:
    """Of 38,816 numbers, of which peft trains 1,024."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = transformers.GPT2Config(vocab_size=257, n_embd=32, n_layer=2, n_head=2, n_positions=128)
        config.update({"bos_token_id": None, "eos_token_id": None})
        lora = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(transformers.GPT2LMHeadModel(config), lora)


TEXTS = torch.randint(0, 257, (24, 9), generator=torch.Generator().manual_seed(5))
#: Model -> (it, its loss, its data, all numbers, numbers that are trained).
IN_PART = {
    "net": (frozen_in_part, None, ROWS, 163, 27),
    "gpt2": (gpt2, Words(), (TEXTS[:, :-1], TEXTS[:, 1:]), 38_816, 1_024),
}


@pytest.mark.parametrize("method", ["fedavg", "fedldp", "dpsgd"])
@pytest.mark.parametrize("name", IN_PART)
def test_what_requires_no_gradient_is_clipped_given_noise_and_sent_by_nobody(name: str, method: str) -> None:
    make, loss, data, whole, trained_numbers = IN_PART[name]
    model = make()
    assert sum(part.numel() for part in model.parameters()) == whole
    trained = {key: part for key, part in model.named_parameters() if part.requires_grad}
    frozen = {key: part.clone() for key, part in model.named_parameters() if not part.requires_grad}
    work = flower.Trainer(model, loss, data)
    nodes = AppNodes(ClientApp(lambda context: client(method)(work).to_client()), 1)
    start = ArrayRecord({key: part.detach().clone() for key, part in trained.items()})
    strategy = server(method)(min_available_nodes=1, local={"batch_size": 6})
    result = strategy.start(nodes, start, 1, timeout=60)
    sent = nodes.seen[-1][1].content.array_records["fitres.parameters"]["0"].numpy()
    assert sent.size == trained_numbers and sent.any()
    assert set(result.arrays) == set(trained)
    assert all(torch.equal(model.state_dict()[key], value) for key, value in frozen.items())


def test_a_server_that_sends_what_is_frozen_is_told_what_to_send() -> None:
    work = flower.Trainer(frozen_in_part(), None, ROWS)
    nodes = AppNodes(ClientApp(lambda context: client("fedldp")(work).to_client()), 1)
    words = r"this model's trained parameters: ArrayRecord\(\{name: p for name, p in"
    with pytest.raises(RunFailed, match=words):
        server("fedldp")(min_available_nodes=1).start(nodes, initial(), 1, timeout=30)


def test_a_trainer_of_a_model_that_is_frozen_whole_is_refused() -> None:
    with pytest.raises(OptionError, match="Sequential: no parameter is left to train: requires_grad is False"):
        flower.Trainer(net().requires_grad_(False), None, ROWS)
