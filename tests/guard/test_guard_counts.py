"""Counts that a policy declares, in reply to evaluate and query: clipped, noised, booked, opened by the server."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from guarded import GuardedMachines, MachinesGrid, weights
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_guarded_strategy import SUM, one_more
from test_terms import SILENT

import fedpriv
from fedpriv.__main__ import main
from fedpriv.certificates import verify_certificate
from fedpriv.certificates.statement import of_node, signed
from fedpriv.commands.node import main as node_command
from fedpriv.common.chain import row_of
from fedpriv.common.errors import LedgerRefused, RunFailed
from fedpriv.common.identities import new_identity
from fedpriv.data.scores import Counts, Scores
from fedpriv.deployment.data_ledger import Balance, Signer
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.engines.grid import RUN_ID, identify_server, stamp
from fedpriv.guard.record import counts_of, reply_arrays
from fedpriv.guard.release import Terms, claimed_epsilon
from fedpriv.guard.reports import write_node_report
from fedpriv.guard.sandbox import Sandbox
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

COUNTS: dict[str, Any] = {
    "evaluate": {"metrics": {"right": 1, "rows": 1}, "clip": 50.0, "noise_multiplier": 2.0},
    "query.ages": {"metrics": {"ages": 3}, "clip": 4.0, "noise_multiplier": 3.0},
}


def told(**named: Any) -> Any:
    """What comes out of a sandbox of an app that replies with these metrics."""
    identify_server()
    asked = Message(RecordDict(), 7, "evaluate")
    return tuple(reply_arrays(Message(RecordDict({"metrics": MetricRecord(named)}), reply_to=_stamped(asked)), asked))


def _stamped(message: Message) -> Message:
    stamp(message, "asked")
    return message


def counter(message: Message, context: Context, rows: list[str]) -> Any:
    if message.metadata.message_type == "train":
        return one_more(message, context, rows)
    return told(right=len(rows) / 2, rows=len(rows), ages=[float(len(rows)), 0.0, 1.0], secret=4711)


def machines(folder: Path, count: int = 1, **guard: Any) -> GuardedMachines:
    network = GuardedMachines(folder, count, **{"counts": COUNTS} | guard)
    network.boxed.app = counter
    return network


def silent(folder: Path, **guard: Any) -> GuardedMachines:
    network = machines(folder, **guard)
    network.source = lambda: SILENT
    return network


# --- a node ---------------------------------------------------------------------------------------------------


def test_declared_counts_are_summed_over_shards_and_booked(tmp_path: Path) -> None:
    network = silent(tmp_path)
    found = dict(network.ask(kind="evaluate").content["metrics"])
    assert found == pytest.approx({"num-examples": 1, "right": 10, "rows": 20}, rel=1e-4)
    found = dict(network.ask(kind="query.ages").content["metrics"])
    whole, nothing, ones = found["ages"]  # 20, 0, 4 if shards were not clipped to length 4; how rows divide is chance
    assert 11 < whole < 16 and abs(nothing) < 1e-3 and 0 < ones < 4.01
    assert [booked.entries[0].event.multiplier for booked in network.booked()] == [2 / 2**0.5, 3 / 2**0.5]
    noisy = machines(tmp_path / "noisy").ask(kind="evaluate").content["metrics"]
    assert noisy["rows"] != pytest.approx(20, abs=1e-3)


@pytest.mark.parametrize(
    "answer",
    ["a crash", told(rows=3), told(right=1, rows=[1, 2]), (), (np.zeros(2),), told(right=-5, rows=-1), told(right=1)],
    ids=["crash", "one is missing", "longer", "nothing", "no names", "negative", "another"],
)
def test_what_is_not_declared_is_zero_and_costs_the_same(answer: Any, tmp_path: Path) -> None:
    network = silent(tmp_path)
    network.boxed.app = lambda *given: answer
    found = dict(network.ask(kind="evaluate").content["metrics"])
    assert found == {"num-examples": 1, "right": 0.0, "rows": 0.0} and len(network.booked()) == 1


def test_what_is_not_declared_does_not_run(tmp_path: Path) -> None:
    network = machines(tmp_path, counts={"query.ages": COUNTS["query.ages"]})
    network.boxed.app = lambda *given: pytest.fail("the app was started")
    assert dict(network.ask(kind="evaluate").content["metrics"]) == {"num-examples": 1}
    assert "is not declared by this node's policy" in network.ask(kind="query").error.reason
    assert not network.booked()


def test_counts_come_out_of_the_budget_of_everything(tmp_path: Path) -> None:
    network = machines(tmp_path, epsilon=gaussian_epsilon(2**0.5 / 2, 1e-5) * 1.01)
    assert not network.ask(kind="evaluate").has_error()
    for kind in ("evaluate", "query.ages", "train"):
        assert network.ask(kind=kind).error.reason.startswith("budget_spent: ")
    assert len(network.booked()) == 1


def test_a_sum_gives_no_counts_to_a_server_without_the_wrapper(tmp_path: Path) -> None:
    network = machines(tmp_path, 4, **SUM)
    assert network.ask(kind="evaluate").error.reason == "policy: this node answers in secure sums alone"


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"train": COUNTS["evaluate"]}, "guard.counts"),
        ({"query.a.b": COUNTS["evaluate"]}, "guard.counts"),
        ({"evaluate": {**COUNTS["evaluate"], "metrics": {}}}, "guard.counts.evaluate.metrics"),
        ({"evaluate": {**COUNTS["evaluate"], "metrics": {"a": 5000}}}, "guard.counts.evaluate.metrics"),
        ({"evaluate": {**COUNTS["evaluate"], "metrics": {"num-examples": 1}}}, "guard.counts.evaluate.metrics"),
        ({"evaluate": {**COUNTS["evaluate"], "clip": 0}}, "guard.counts.evaluate.clip"),
        ({"evaluate": {"metrics": {"a": 1}, "clip": 1.0}}, "guard.counts.evaluate.noise_multiplier"),
    ],
)
def test_wrong_declarations_are_named(
    counts: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines(tmp_path)
    network.write_policy(0, counts=counts)
    assert node_command(["status", f"policy={network.policy(0)}", f"data={network.data(0)}"]) == 2
    assert words in capsys.readouterr().err


# --- what one unit changes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("single", [False, True])
def test_two_data_sets_that_differ_in_one_row_are_apart_by_what_is_booked(single: bool, tmp_path: Path) -> None:
    """Brute force over the whole message: every row in turn, apps that do with it what they like."""
    query = {"metrics": {"right": 1, "rows": 2}, "clip": 2.0, "noise_multiplier": 30.0}
    network = silent(tmp_path, rows=4, shards=2, counts={"query": query}, single=single)
    network.write_policy(0, shards=8 if single else 2, counts={"query": query}, single=single)
    table = network.data(0) / "table.csv"
    header, *rows = table.read_text().splitlines()
    largest = 0.0

    def sum_of(kept: list[str], app: Any) -> np.ndarray:
        table.write_text("\n".join([header, *kept]) + "\n")
        network.boxed.app = app
        metrics = network.ask(kind="query").content["metrics"]
        return np.array([metrics["right"], *metrics["rows"]])

    for row in rows:
        apps = [
            lambda m, c, given, row=row: told(right=9.0 * (row in given), rows=[9.0 * (row not in given), 0.0]),
            lambda m, c, given, row=row: "crash" if row in given else told(right=9.0, rows=[9.0, 9.0]),
            lambda m, c, given, row=row: told(right=9.0 - 18 * (row in given), rows=[0.0, -9.0]),
            lambda m, c, given, row=row: told(right=float(len(given)), rows=[0.0, 1.0]),
        ]
        for app in apps:
            apart = sum_of(rows, app) - sum_of([other for other in rows if other != row], app)
            largest = max(largest, float(np.linalg.norm(apart)))
    bound = 2.0 if single else 2.0 * 2**0.5
    assert 0.999 * bound < largest <= bound * (1 + 1e-5)
    assert {booked.entries[0].event.multiplier for booked in network.booked()} == {30.0 * 2.0 / bound}


ANSWER = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=3, max_size=3).map(np.array)


@settings(deadline=None)
@example(np.array([9.0, 0, 0]), np.array([-9.0, 0, 0]), [], "own")
@example(np.array([9.0, 0, 0]), np.array([-9.0, 0, 0]), [], "ddgauss")
@example(np.array([9.0, 0, 0]), np.array([0, 9.0, 0]), [np.array([1.0, 1, 1])], "skellam")
@given(ANSWER, ANSWER, st.lists(ANSWER, max_size=3), st.sampled_from(["own", "ddgauss", "skellam"]))
def test_no_two_answers_of_a_shard_move_the_release_further(
    first: np.ndarray, second: np.ndarray, others: list[np.ndarray], noise: str
) -> None:
    more = {"noise": noise, "sites": 4, "min_replies": 3} if noise != "own" else {}
    rules = {"apps": (), "unit": "row", "shards": 4, "clip": 1.0, "noise_multiplier": 1.0, "counts": COUNTS} | more
    terms, size = Terms.of(GuardPolicy.model_validate(rules)).counted("query.ages")
    assert size == 3 and (terms.clip, terms.noise_multiplier, terms.moves) == (4.0, 3.0, 2**0.5)
    apart = (terms.release([first, *others], 3, SILENT) - terms.release([second, *others], 3, SILENT)).double().norm()
    if noise == "own":
        assert apart <= terms.moves * (1 + 1e-6) and terms.event(3).multiplier == 3.0 / terms.moves
    else:
        assert apart <= terms.event(3).l2
        assert terms.event(3).l2 == terms.moves * terms.grid(3).steps + 3**0.5


def test_the_formula_of_what_counts_move() -> None:
    """u, v of length C at most and not negative: |u - v|^2 = |u|^2 + |v|^2 - 2uv <= 2 C^2, reached by two axes."""
    grid = np.linspace(0, 1, 11)
    inside = [np.array(point) for point in product(grid, grid) if math.hypot(*point) <= 1]
    assert max(np.linalg.norm(u - v) for u in inside for v in inside) == pytest.approx(2**0.5)
    rules = {"apps": (), "unit": "row", "shards": 4, "clip": 1.0, "noise_multiplier": 1.0, "counts": COUNTS}
    terms = Terms.of(GuardPolicy.model_validate(rules | {"sampling": 0.5})).counted("evaluate")[0]
    assert (terms.moves, terms.sampling) == (2**0.5, 1.0)  # the law of sampled shards is for answers of both signs
    single = Terms.of(GuardPolicy.model_validate(rules | {"single": True})).counted("evaluate")[0]
    assert single.moves == 1.0 and replace(single, reply="difference", single=False).moves == 2.0


@pytest.mark.parametrize("noise", ["own", "ddgauss"])
def test_counts_by_class_and_score_say_how_well_a_model_does(noise: str, tmp_path: Path) -> None:
    """The example of docs/scores.md: shards of one row, a 1 where its class and its score's bin are."""
    asked = {"query.score": {"metrics": {"no": 4, "yes": 4}, "clip": 1.0, "noise_multiplier": 0.05}}
    sizes = {"rows": 60, "shards": 900, "single": True, "noise": noise, "counts": asked}
    network = GuardedMachines(tmp_path, 4, **(SUM | {"bits": 40} if noise == "ddgauss" else {}) | sizes)
    model, starts = Scores(("no", "yes"), threshold=0.5, bins=4), list[tuple[float, bool]]()

    def app(message: Message, context: Context, rows: list[str]) -> Any:
        (x, y) = map(float, rows[0].split(","))
        score = 1 / (1 + math.exp(1 - 2 * x))
        starts.append((score, y == 1))
        numbers = [float(model.edges[b] <= score < model.edges[b + 1]) for b in range(4)]
        return told(**{"no": [0.0] * 4, "yes": [0.0] * 4} | {"yes" if y == 1 else "no": numbers})

    network.boxed.app = app
    rng = np.random.default_rng(0)
    for node in range(4):
        x = rng.normal(size=60)
        y = rng.random(60) < 1 / (1 + np.exp(1 - 2 * x))
        lines = [f"{one:.6f},{int(other)}" for one, other in zip(x, y, strict=True)]
        (network.data(node) / "table.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    strategy = fedpriv.guarded(FedAvg(), run_dir=tmp_path / "run")
    sums = strategy.count(MachinesGrid(network), "query.score")
    std = 0.05 * (4 if noise == "own" else 1) ** 0.5
    counts = Counts(np.array([*sums["no"], *sums["yes"]]), std * np.eye(8))
    found = model.read(counts)
    answer = dict(zip(found["names"], found["values"], strict=True))
    score, ill = (np.array(column) for column in zip(*starts, strict=True))
    assert 150 < len(score) < 240 and answer["rows"] == pytest.approx(len(score), abs=2)
    assert answer["accuracy"] == pytest.approx(((score >= 0.5) == ill).mean(), abs=0.01)
    assert answer["share of yes"] == pytest.approx(ill.mean(), abs=0.01) and answer["AUC"] > 0.7


# --- what comes out of a sandbox ------------------------------------------------------------------------------


@example([np.frombuffer(b"a", np.uint8), np.frombuffer(b"xyz", np.uint8)])
@given(st.lists(st.binary(max_size=9).map(lambda raw: np.frombuffer(raw, np.uint8)), max_size=6))
def test_any_arrays_are_counts_or_none(arrays: list[np.ndarray]) -> None:
    found = counts_of(tuple(arrays), {"a": 2})
    assert found is None or (found.shape, found.dtype) == ((2,), np.float64)


def test_lists_numbers_and_arrays_are_counts_and_texts_are_not() -> None:
    asked = _stamped(Message(RecordDict(), 7, "query"))
    content = RecordDict(
        {
            "m": MetricRecord({"a": 3, "b": [1.5, 2.5]}),
            "c": ConfigRecord({"d": True, "text": "Smith", "raw": b"Smith", "texts": ["Smith"]}),
            "r": ArrayRecord({"e": Array(np.arange(4).reshape(2, 2))}),
        }
    )
    arrays = tuple(reply_arrays(Message(content, reply_to=asked), asked))
    assert counts_of(arrays, {"e": 4, "a": 1, "b": 2, "d": 1}) == pytest.approx([0, 1, 2, 3, 3, 1.5, 2.5, 1])
    assert not any(b"Smith" in array.tobytes() for array in arrays)
    assert all(counts_of(arrays, {name: 1}) is None for name in ("text", "raw", "texts", "z"))


@pytest.mark.parametrize("api", ["message", "numpy"])
def test_a_real_sandbox_counts(api: str, tmp_path: Path) -> None:
    apps = Path(__file__).parent / "apps"
    counts = {"evaluate": {"metrics": {"accuracy": 1, "num-rows": 1}, "clip": 50.0, "noise_multiplier": 2.0}}
    folder = tmp_path / "app"
    folder.mkdir()
    code = (apps / "quickstart-message" / "messageexample" / "client_app.py").read_text()
    code = code.replace('{"num-examples": len(labels), "accuracy"', '{"num-rows": len(labels), "accuracy"')
    if api == "numpy":
        code = (apps / "quickstart-sklearn" / "sklearnexample" / "client_app.py").read_text()
        code = code.replace(
            "\n\ndef client_fn",
            "\n    def evaluate(self, parameters, config):\n"
            "        return 0.5, 3, {'accuracy': float(len(parameters[0])), 'num-rows': len(self.labels)}\n"
            "\n\ndef client_fn",
        )
    name = "messageexample" if api == "message" else "sklearnexample"
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    (folder / name / "client_app.py").write_text(code)
    project = apps / ("quickstart-message" if api == "message" else "quickstart-sklearn") / "pyproject.toml"
    (folder / "pyproject.toml").write_text(project.read_text())
    network = silent(tmp_path / "machines", counts=counts, api=api)
    lines = [f"{number % 2 + number / 1000},{number % 2}" for number in range(20)]
    (network.data(0) / "table.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    guard = replace(network.guard(), app=folder, boxes=Sandbox)
    start = ArrayRecord({"weights": Array(np.ones(1)), "bias": Array(np.array([-0.5]))})
    message = _stamped(
        Message(RecordDict({"arrays": start, "config": ConfigRecord({"server-round": 1})}), 7, "evaluate")
    )
    reply = guard(message, Context(RUN_ID, 7, {}, RecordDict(), {"local-epochs": 1}))
    found = dict(reply.content["metrics"])
    assert found["num-rows"] == pytest.approx(20, rel=0.01) and 2 < found["accuracy"] <= 4.01


# --- the server -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["own", "ddgauss", "skellam"])
def test_a_strategy_opens_counts_and_the_folder_has_them(noise: str, tmp_path: Path) -> None:
    small = {name: {**query, "noise_multiplier": 0.02} for name, query in COUNTS.items()}
    network = machines(tmp_path, 4, **SUM | {"noise": noise, "counts": small, "bits": 40})

    def share(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        (content,) = replies
        metrics = content["metrics"]
        return MetricRecord({"share": metrics["right"] / metrics["rows"], "rows": metrics["rows"]})

    grid = MachinesGrid(network)
    strategy = fedpriv.guarded(FedAvg(evaluate_metrics_aggr_fn=share), run_dir=tmp_path / "run")
    found = strategy.start(grid, weights(), num_rounds=2)
    for number in (1, 2):
        metrics = found.evaluate_metrics_clientapp[number]
        assert (metrics["rows"], metrics["share"]) == (pytest.approx(80, abs=12), pytest.approx(0.5, abs=0.1))
    ages = strategy.count(grid, "query.ages")["ages"]
    assert ages == pytest.approx([16 * 5 / 26**0.5 * 2, 0, 16 / 26**0.5 * 2], abs=12)
    assert strategy.count(grid, "query.ages")["ages"] != ages
    assert [len(network.booked(client)) for client in range(4)] == [2 + 2 + 2] * 4
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    times = {"train": 2, "evaluate": 2, "query.ages": 2}
    cost = claimed_epsilon(strategy.terms[0], 4, times, 1e-5)
    privacy = summary["privacy"]
    assert privacy["claimed_epsilon"] == privacy["verified_epsilon"] == cost == plan["clients"]["3"]["epsilon"]
    assert cost > claimed_epsilon(strategy.terms[0], 4, {"train": 2}, 1e-5)
    assert summary["answers"] == {str(client): 6 for client in range(4)}
    assert "counts" in (tmp_path / "run" / "report.md").read_text()
    made = tmp_path / "made"
    assert main(["certificate", str(tmp_path / "run"), f"out={made}"]) == 0
    assert verify_certificate.main([str(made / "certificate.json")]) == 0


def test_a_nodes_certificate_and_report_say_which_counts_left(tmp_path: Path) -> None:
    """By its ledger's lines: those that were declared, how many messages opened them, and under which names."""
    network = machines(tmp_path)
    for kind in ("evaluate", "train", "evaluate"):
        assert not network.ask(kind=kind).has_error()
    network.write_policy(0, counts={"query": COUNTS["query.ages"]})
    assert not network.ask(kind="query").has_error()
    made = of_node(network.policy(0), network.data(0))
    assert [period["counts"] for period in made["policies"]] == [{"evaluate": 2}, {"query": 1}]
    words = "\n".join(made["assumptions"])
    assert (
        "Messages 1 to 3: Counts evaluate (right, rows) were declared, and left as clipped sums with noise in 2"
        in words
    )
    assert "Messages 1 to 3: Counts query.ages (ages) were declared, and none left." in words
    assert "Message 4: Counts query (ages) were declared, and left" in words
    signed_by_node = signed(made, Signer(new_identity(b"node")[0]), "the node")
    (tmp_path / "made.json").write_text(json.dumps(signed_by_node))
    assert verify_certificate.main([str(tmp_path / "made.json")]) == 0
    page = write_node_report(network.policy(0), network.data(0), tmp_path / "report.html").read_text()
    assert "train 1, evaluate 2, query 1" in page
    rows = [row_of(line) for line in (network.data(0) / ".fedpriv/ledger.jsonl").read_bytes().splitlines()]
    balance = Balance()
    with pytest.raises(LedgerRefused, match="opens counts evaluate, which the policy in force does not declare"):
        for row in rows:
            balance.add(row | ({"counts": "evaluate"} if "entries" in row else {}))


def test_queries_alone_need_no_model(tmp_path: Path) -> None:
    network = machines(tmp_path, 3)
    strategy = fedpriv.guarded(FedAvg(), run_dir=tmp_path / "run")
    strategy.count(MachinesGrid(network), "query.ages")
    privacy = json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]
    assert privacy["verified_epsilon"] == pytest.approx(gaussian_epsilon(2**0.5 / 3, 1e-5), rel=1e-3)
    with pytest.raises(RunFailed, match=r"no machine's policy declares query.names: .*evaluate, query.ages"):
        strategy.count(MachinesGrid(network), "query.names")


def test_counts_of_a_sum_that_stays_closed_are_none(tmp_path: Path) -> None:
    from test_guarded_strategy import lost

    network = machines(tmp_path, 4, **SUM)
    strategy = fedpriv.guarded(FedAvg(fraction_evaluate=0.0))
    with pytest.raises(RunFailed, match="the secure sum stays closed"):
        strategy.count(MachinesGrid(network, lost((1, 2), ("confirm", "unmask"))), "query.ages")


def test_a_plan_says_what_counts_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = machines(tmp_path)
    assert main(["plan", f"guard={network.policy(0)}", "parameters=4"]) == 0
    said = capsys.readouterr().out
    assert f"evaluate          2 counts, epsilon {gaussian_epsilon(2**0.5 / 2, 1e-5):.4g} of one answer" in said
