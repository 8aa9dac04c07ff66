"""policy.yaml: its schema, what a bound under one threat says under another, and its filters."""

from __future__ import annotations

import copy
import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import MACHINES, POLICY, codes

from fedpriv.client.build import make_client
from fedpriv.commands.node import TEMPLATE
from fedpriv.commands.node import main as node_command
from fedpriv.commands.runs import main as runs_main
from fedpriv.commands.runs import plan_main
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.config.compose import compose
from fedpriv.config.remote import compose_remote_text
from fedpriv.config.schema import Config
from fedpriv.data.table_schema import read_schema
from fedpriv.deployment.gate import would_refuse
from fedpriv.deployment.policy import Booked, Policy, Spent, UnitBudget, objections, read_policy, too_dear
from fedpriv.privacy.composition import compose as composed
from fedpriv.privacy.composition import gaussian_epsilon
from fedpriv.privacy.events import (
    CLIENT_TO_SERVER,
    Entry,
    Event,
    Gaussian,
    NoBound,
    PoissonGaussian,
    RandomisedResponse,
    Threat,
)

EXAMPLE = Threat("example", "add-or-remove-one", "server")
MEMBERS = Threat("client", "replace-one", "server+members")


def policy_of(tmp_path: Path, **changes: Any) -> Policy:
    raw = copy.deepcopy(POLICY) | {"counter": str(tmp_path / "counter.json")}
    for name, value in changes.items():
        raw[name] = raw.get(name, {}) | value if isinstance(value, dict) else value
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(raw))
    return read_policy(path)


def test_a_guard_keeps_to_what_a_run_must_count(tmp_path: Path) -> None:
    """Its answers are booked for a person at one machine, and for the colluders that it names itself."""
    alone = {"apps": [], "unit": "row", "clip": 1.0, "noise_multiplier": 4.0}
    in_sum = alone | {"noise": "ddgauss", "sites": 5, "min_replies": 4}
    for guard, limits, words in (
        (alone, {"min_across_sites": 2}, r"limits\.min_across_sites=2: 1 with a guard"),
        (in_sum, {"min_colluders": 2}, r"guard\.colluders=0: at least 2 \(limits\.min_colluders\)"),
    ):
        assert policy_of(tmp_path, guard=guard).guard is not None
        with pytest.raises(OptionError, match=words):
            policy_of(tmp_path, guard=guard, limits=limits)
    assert policy_of(tmp_path, guard=in_sum | {"colluders": 2}, limits={"min_colluders": 2}).guard is not None


def booked(*events: Event, shares_secrets: bool = False) -> Booked:
    entries = tuple(Entry(1, 0, number, 0, event) for number, event in enumerate(events))
    return Booked(entries, events[0].threat, shares_secrets)


# --- the file ------------------------------------------------------------------------------------------------


def test_the_template_is_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert node_command(["policy"]) == 0
    (tmp_path / "policy.yaml").write_text(capsys.readouterr().out)
    found = read_policy(tmp_path / "policy.yaml")
    assert found.budgets[0].max_epsilon == 8.0 and found.bundles == () and found.variants == ("repaired",)
    assert TEMPLATE.count("\n") < 25


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"budgets": []}, "budgets"),
        ({"budgets": [{"unit": "hospital", "delta": 1e-5, "max_epsilon": 1.0}]}, "budgets.0.unit=hospital: allowed"),
        ({"budgets": [{"unit": "client", "delta": 1.0, "max_epsilon": 1.0}]}, "budgets.0.delta=1.0: must be less"),
        ({"budgets": [{"unit": "client", "delta": 1e-5}]}, "budgets.0.max_epsilon: the option has no value"),
        ({"strategies": ["fedcat"]}, "strategies=fedcat: allowed: adpfl"),
        ({"variants": ["as printed"]}, "variants.0=as printed: allowed"),
        ({"bundles": ["sha"]}, "bundles.0=sha: must be a SHA-256: 64 digits of 0-9 and a-f"),
        ({"counter": "here.json"}, "counter=here.json: must be an absolute path"),
        ({"accountant": "renyi", "order": 1.23}, "order=1.23: allowed"),
        ({"limits": {"max_sampling_rate": 1.5}}, "limits.max_sampling_rate=1.5: must be at most 1"),
        ({"limits": {"max_clip": 1.5}}, "limits.max_clip=1.5: there is no such option here; allowed: min_noise"),
    ],
)
def test_a_mistake_names_file_entry_value_and_what_is_allowed(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError) as error:
        policy_of(tmp_path, **change)
    assert str(error.value).startswith(str(tmp_path / "policy.yaml")) and words in str(error.value)


def test_a_policy_that_is_no_yaml_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("accountant: gaussian\nlimits: [\n")
    with pytest.raises(OptionError, match=r"policy\.yaml: cannot be read \(.*line 3"):
        read_policy(tmp_path / "policy.yaml")


@pytest.mark.parametrize("content", ["", "- 1", "a: [", "\x00", "counter: ${oc.env:HOME}"])
def test_what_is_no_policy_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(content)
    with pytest.raises(OptionError, match="policy"):
        read_policy(tmp_path / "policy.yaml")
    with pytest.raises(OptionError, match="cannot be read"):
        read_policy(tmp_path / "missing.yaml")


# --- what is a bound where -----------------------------------------------------------------------------------


def test_a_bound_for_the_whole_client_is_one_for_each_of_its_examples() -> None:
    event = Gaussian(threat=CLIENT_TO_SERVER, multiplier=2.0)
    for adjacency in ("replace-one", "zero-out", "add-or-remove-one"):
        (found,) = booked(event).under(Threat("example", adjacency, "server"))
        assert isinstance(found, Gaussian) and found.multiplier == 2.0


@pytest.mark.parametrize(
    ("event", "asked"),
    [
        (PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.1), CLIENT_TO_SERVER),
        (Gaussian(threat=EXAMPLE, multiplier=1.0), Threat("example", "replace-one", "server")),
        (Gaussian(threat=Threat("client", "zero-out", "server"), multiplier=1.0), CLIENT_TO_SERVER),
        (Gaussian(threat=Threat("example", "replace-one", "server"), multiplier=1.0), CLIENT_TO_SERVER),
        (Gaussian(threat=Threat("client", "replace-one", "secure-sum"), multiplier=9.0), CLIENT_TO_SERVER),
        (Gaussian(threat=Threat("client", "replace-one", "trusted-server"), multiplier=9.0), CLIENT_TO_SERVER),
    ],
)
def test_what_promises_less_counts_as_no_promise(event: Event, asked: Threat) -> None:
    (found,) = booked(event).under(asked)
    assert isinstance(found, NoBound) and math.isinf(composed([found], 1e-5).epsilon)


def test_other_clients_help_the_server_only_where_they_share_randomness() -> None:
    alone = Gaussian(threat=CLIENT_TO_SERVER, multiplier=2.0)
    assert isinstance(booked(alone).under(MEMBERS)[0], Gaussian)
    assert isinstance(booked(alone, shares_secrets=True).under(MEMBERS)[0], NoBound)
    together = (alone, Gaussian(threat=MEMBERS, multiplier=0.5))
    (found,) = booked(*together, shares_secrets=True).under(MEMBERS)
    assert isinstance(found, Gaussian) and found.multiplier == 0.5


def test_a_second_account_of_the_same_release_is_not_added() -> None:
    """cpSGD books what the server learns, and what a secure sum would show: one release, not two."""
    both = booked(
        Gaussian(threat=CLIENT_TO_SERVER, multiplier=2.0),
        Gaussian(threat=Threat("client", "replace-one", "secure-sum"), multiplier=4.0),
    )
    assert len(both.under(CLIENT_TO_SERVER)) == 1


# --- budgets ---------------------------------------------------------------------------------------------------


def test_the_budget_is_kept_to_the_last_release(tmp_path: Path) -> None:
    """Against the closed form: as many releases as its epsilon allows, and not one more."""
    policy = policy_of(tmp_path, budgets=[{"unit": "client", "delta": 1e-5, "max_epsilon": 20.0}])
    one = booked(Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.5))
    spent: list[Booked] = []
    while policy.refusal(spent, one) is None:
        spent.append(one)
    totals = [
        composed([Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.5, count=count)], 1e-5).epsilon
        for count in (len(spent), len(spent) + 1)
    ]
    assert totals[0] <= 20.0 < totals[1]
    assert policy.spent(spent) == {policy.budgets[0].name: pytest.approx(totals[0])}
    assert "budget of 20" in str(policy.refusal(spent, one))


def test_every_budget_counts(tmp_path: Path) -> None:
    example = {"unit": "example", "adjacency": "add-or-remove-one", "delta": 1e-5, "max_epsilon": 4.5}
    both = [{"unit": "client", "delta": 1e-5, "max_epsilon": 100.0}, example]
    policy = policy_of(tmp_path, budgets=both)
    one = booked(Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0))  # 4.377
    assert policy.refusal([], one) is None
    assert "example" in str(policy.refusal([one], one))


def test_only_what_the_accountant_can_add_up_is_admitted(tmp_path: Path) -> None:
    bits = booked(RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.1, dimension=10))
    assert "budget" in str(policy_of(tmp_path).refusal([], bits))
    renyi = policy_of(tmp_path, accountant="renyi")
    assert renyi.refusal([], bits) is None


def test_one_message_of_epsilon_eight_and_no_second(tmp_path: Path) -> None:
    """As SECURITY.md has it: whatever participation a run announces, the budget admits one message over all runs."""
    client = make_client(compose(["strategy=fedonce", "strategy.client.epsilon=8"]))
    message = booked(client.planned_events(1)[0])
    budget = {"unit": "client", "delta": 1e-5, "max_epsilon": 8.0}

    def refusal(before: list[Booked], **changes: Any) -> str | None:
        policy = policy_of(tmp_path, accountant="renyi", budgets=[budget | changes], order=1e6)
        return policy.refusal(before, message)

    assert refusal([]) is None
    assert "would be exceeded" in str(refusal([message])) and "would be exceeded" in str(refusal([], max_epsilon=7.9))
    usual = {"accountant": "renyi", "limits": {"max_round_epsilon": 20.0}}
    for most, admitted in ((12.5, False), (14.0, True)):
        policy = policy_of(tmp_path, **usual, budgets=[budget | {"max_epsilon": most}])
        assert (policy.refusal([], message) is None) == admitted


def test_a_renyi_order_does_not_move_with_what_is_released(tmp_path: Path) -> None:
    """Kinds of mechanism chosen after seeing outputs must not choose the order: admitted in one order of arrival is
    admitted in the other.
    """
    policy = policy_of(tmp_path, accountant="renyi", limits={"min_noise_multiplier": 0.1})
    gaussian = booked(Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0))
    bits = booked(RandomisedResponse(threat=CLIENT_TO_SERVER, epsilon=0.5, dimension=8))
    for count in range(0, 40, 3):
        spent = [gaussian] * count + [bits] * count
        assert (policy.refusal(spent, gaussian) is None) == (policy.refusal(spent[::-1], gaussian) is None)
    found = {
        policy._filter(budget)._order(policy._filter(budget)._renyi_limits(budget.delta), events)
        for budget in policy.budgets
        for events in ([gaussian.entries[0].event], [bits.entries[0].event])
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.4), "min_noise_multiplier"),
        (Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.0), "min_noise_multiplier"),
        (NoBound(threat=CLIENT_TO_SERVER, reason="sent as it is"), "sent as it is"),
        (Gaussian(threat=CLIENT_TO_SERVER, multiplier=0.5, count=40), "max_round_epsilon"),
    ],
)
def test_one_round_has_bounds_of_its_own(event: Event, words: str, tmp_path: Path) -> None:
    policy = policy_of(tmp_path, budgets=[{"unit": "client", "delta": 1e-5, "max_epsilon": 1e6}])
    assert words in str(policy.refusal([], booked(event)))


def test_a_sampling_rate_has_a_bound(tmp_path: Path) -> None:
    budget = {"unit": "example", "adjacency": "add-or-remove-one", "delta": 1e-5, "max_epsilon": 1e6}
    policy = policy_of(tmp_path, budgets=[budget], accountant="renyi")
    event = PoissonGaussian(threat=EXAMPLE, multiplier=2.0, sampling_rate=0.7)
    assert "sampling rate 0.7" in str(policy.refusal([], booked(event)))


@pytest.mark.parametrize("count", [1, 7, 100])
def test_a_release_of_many_steps_counts_as_often_as_it_says(count: int, tmp_path: Path) -> None:
    """A line of 100 steps in the ledger is 100 releases in its total: against the closed form of k Gaussians."""
    policy = policy_of(tmp_path, limits={"max_round_epsilon": 1e6})
    one = booked(Gaussian(threat=CLIENT_TO_SERVER, multiplier=9.0, count=count))
    for messages in (1, 3):
        (found,) = policy.spent([one] * messages).values()
        mu = math.sqrt(count * messages) / 9.0
        assert found == pytest.approx(gaussian_epsilon(mu, 1e-5))
        budget = {"unit": "client", "delta": 1e-5}
        for share, admitted in ((1.001, True), (0.999, False)):
            limited = policy_of(
                tmp_path, budgets=[budget | {"max_epsilon": share * found}], limits={"max_round_epsilon": 1e6}
            )
            assert (limited.refusal([one] * (messages - 1), one) is None) == admitted
    (total,) = Spent([one, booked(Gaussian(threat=CLIENT_TO_SERVER, multiplier=9.0, count=5))]).totals(CLIENT_TO_SERVER)
    assert total.count == count + 5
    several = Spent()
    several.add(one, times=4)
    assert [event.count for event in several.totals(CLIENT_TO_SERVER)] == [4 * count] and several.messages == 4


# --- a run's options -------------------------------------------------------------------------------------------


def test_a_trusted_servers_noise_is_no_clients_promise(tmp_path: Path) -> None:
    config = compose(["strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson"])
    budget = {"unit": "client", "delta": 1e-5, "max_epsilon": 1e6}
    assert too_dear(policy_of(tmp_path, budgets=[budget]), make_client(config)) == [
        "clients send what only a trusted server protects, and do not book it"
    ]


def test_one_participation_may_be_too_dear(tmp_path: Path) -> None:
    """What members know together is priced when it is released; everything else before the run."""
    client = make_client(compose(["strategy=coqfl"]))
    for observer, found in (("server", 1), ("server+members", 0)):
        budget = {"unit": "client", "delta": 1e-5, "max_epsilon": 1e6, "observer": observer}
        said = too_dear(policy_of(tmp_path, accountant="renyi", budgets=[budget]), client)
        assert len(said) == found and all("max_round_epsilon is 50" in words for words in said)
    cheap = policy_of(tmp_path, accountant="renyi", limits={"max_round_epsilon": 1e6})
    assert not too_dear(cheap, client)


def test_objections_name_the_option_and_the_bound(tmp_path: Path) -> None:
    config = compose(["strategy=fedldp", "local.batch_size=10", "num_rounds=12", "strategy.client.clip_norm=7"])
    found = objections(policy_of(tmp_path), config, 12)
    assert found == [
        "num_rounds=12: at most 10 (limits.max_rounds)",
        "local.batch_size=10: at most 8 (limits.max_batch_size)",
        "strategy.client.clip_norm=7: at most 5 (limits.max_clip_norm)",
        "local.batch_size=10 of 12: q at most 0.6 (limits.max_sampling_rate)",
    ]
    limits = ["strategy=fedldp", "local.batch_size=6", "num_rounds=10", "strategy.client.clip_norm=5"]
    assert not objections(policy_of(tmp_path), compose(limits), 10)  # all at their limits, 6 of 10 as well
    words = "local.batch_size=6 local.epochs={}: batches in a round={}: at most 10 (limits.max_local_steps)"
    words += "; local.{} keeps to it"
    for epochs, examples, found in (
        (3, 13, []),  # of 13 pictures, 6 at a time: 3 batches
        (4, 13, [words.format(4, 12, "batch_size=7")]),
        (4, 17, [words.format(4, 12, "steps=10")]),  # two passes admit batches of 9, and the policy 8
        (11, 13, [words.format(11, 33, "steps=10")]),
    ):
        config = compose(["strategy=fedldp", "local.batch_size=6", "num_rounds=2", f"local.epochs={epochs}"])
        assert objections(policy_of(tmp_path), config, examples) == found
    for option in ("local.batch_size=7", "local.steps=10"):  # the remedies
        config = compose(["strategy=fedldp", "local.batch_size=6", "num_rounds=2", "local.epochs=4", option])
        assert not objections(policy_of(tmp_path), config, 13)
    counted = policy_of(tmp_path, limits={"min_across_sites": 2}, strategies=["dpsgd"])
    for across, found in ((1, ["privacy.across_sites=1: at least 2 (limits.min_across_sites)"]), (2, []), (3, [])):
        given = ["strategy=dpsgd", "local.batch_size=6", "num_rounds=2", f"privacy.across_sites={across}"]
        assert objections(counted, compose(given), 13) == found
    config = compose(["strategy=fedldp", "local.batch_size=6", "num_rounds=2", "local.steps=11"])
    assert objections(policy_of(tmp_path), config, 13) == ["local.steps=11: at most 10 (limits.max_local_steps)"]
    walked = compose([*limits, "local.sampler=shuffle", "num_rounds=2"])  # each picture once an epoch: no rate
    assert not objections(policy_of(tmp_path), walked, 7)
    steps = compose(["strategy=dpfl_agn", "local.batch_size=4", "num_rounds=2", "strategy.client.local_steps=11"])
    policy = policy_of(tmp_path, strategies=["dpfl_agn"], limits={"max_clip_norm": 1e6})
    assert objections(policy, steps, 12) == ["strategy.client.local_steps=11: at most 10 (limits.max_local_steps)"]
    assert not objections(policy_of(tmp_path, strategies=["dpfl_agn"], limits={"max_local_steps": 11}), steps, 12)
    for radius, words in (
        ("7", ["strategy.client.radius=7: at most 5 (limits.max_clip_norm)"]),
        ("[0.1,7,1]", ["strategy.client.radius=7: at most 5 (limits.max_clip_norm)"]),
        ("[0.1,5]", []),
    ):
        bits = compose(["strategy=ldpfl", "local.batch_size=6", "num_rounds=2", f"strategy.client.radius={radius}"])
        assert objections(policy_of(tmp_path, strategies=["ldpfl"]), bits, 12) == words  # of the widest layer
    assert UnitBudget(unit="client", delta=1e-5, max_epsilon=1.0).threat == CLIENT_TO_SERVER


# --- before a run --------------------------------------------------------------------------------------------

PAGES = Path(__file__).resolve().parents[2] / "docs"
SCHEMA = """\
target: {column: ill, task: classification, classes: ['no', 'yes']}
columns:
  id: {ignore: true}
  age: {range: [18, 100]}
  sex: {values: [f, m]}
  pressure: {range: [60, 200]}
"""


def page_run(page: str, rows: int | None, **places: str) -> Config:
    """The run that a page submits, by as many examples at each node as are given."""
    (overrides,) = re.findall(r"flwr run .*?overrides=\"(.*?)\"", (PAGES / page).read_text())
    if rows is not None:
        overrides = re.sub(r"dataset\.examples=\S+", f"dataset.examples=[{rows},{rows},{rows}]", overrides)
    overrides = re.sub(r" dataset\.test_root=\S+", "", overrides)
    for name, value in places.items():
        overrides = re.sub(rf"dataset\.{name}=\S+", f"dataset.{name}={value}", overrides)
    return compose_remote_text(overrides)


def page_policy(folder: Path, digest: str = "a" * 64, text: str = "") -> Policy:
    """The template with what a page changes, its bundle and schema filled in."""
    raw = yaml.safe_load(TEMPLATE) | yaml.safe_load(text or "{}") | {"bundles": ["b" * 64], "schemas": [digest]}
    (folder / "policy.yaml").write_text(yaml.safe_dump(raw))
    return read_policy(folder / "policy.yaml")


@pytest.mark.parametrize("rows", [200, 1_200, 20_000, 200_000])
def test_the_policy_of_the_tables_page_admits_its_run(rows: int, tmp_path: Path) -> None:
    file = tmp_path / "schema.yaml"
    file.write_text(SCHEMA)
    digest = read_schema(file).digest
    (changes,) = re.findall(r"```yaml\n(budgets.*?)```", (PAGES / "tables.md").read_text(), re.DOTALL)
    config = page_run("tables.md", rows, schema_file=str(file), schema_digest=digest)
    assert would_refuse(page_policy(tmp_path, digest, changes), config, config.num_rounds) == []
    (wrong,) = would_refuse(page_policy(tmp_path, "c" * 64, changes), config, config.num_rounds)
    assert digest in wrong and "schemas" in wrong


def test_the_template_admits_the_run_of_its_page_twice(tmp_path: Path) -> None:
    config, policy = page_run("deploy.md", None), page_policy(tmp_path)
    assert would_refuse(policy, config, 2 * config.num_rounds) == []
    (wrong,) = would_refuse(policy, config, 3 * config.num_rounds)
    assert wrong.startswith("of clients with 800, 650, 900 examples: participation 45 of 60: the budget of 8")
    assert would_refuse(policy.model_copy(update={"bundles": ()}), config, 20) == [
        "bundles: []: this policy approves of no app"
    ]
    here = compose(["strategy=fedldp", "num_rounds=2"])
    assert would_refuse(policy, here, 2) == ["dataset=digits: this machine trains on its own examples, on_nodes"]


@pytest.mark.parametrize(
    "changes",
    [
        {"strategies": ["fedcad"]},
        {"variants": ["published"]},
        {"limits": {"max_local_steps": 2}},
        {"limits": {"max_parameters": 10}},
        {"limits": {"min_noise_multiplier": 2.0}},
        {"limits": {"max_round_epsilon": 0.1}},
        {"budgets": [{"unit": "client", "delta": 1e-5, "max_epsilon": 5.0}]},
        {"budgets": [{"unit": "example", "adjacency": "zero-out", "delta": 1e-5, "max_epsilon": 5.0}]},
        {},
    ],
)
def test_a_plan_says_what_the_node_then_says(
    changes: dict[str, Any], machines: MACHINES, caplog: pytest.LogCaptureFixture
) -> None:
    network = machines(1, changes | {"bundles": ["b" * 64]})
    overrides = network.overrides()
    planned = compose_remote_text(re.sub(r" dataset\.test_root=\S+", "", overrides))
    wrong = would_refuse(read_policy(network.policy(0)), planned, planned.num_rounds)
    if not wrong:
        assert changes == {} and set(codes(network.serve(overrides))) == {"sent"}
        return
    with suppress(RunFailed):  # a budget that ends in mid-run ends the run, whose result is kept
        network.serve(overrides)
    for words in wrong:
        assert words.removeprefix("of clients with 12 examples: ").rpartition("of 2: ")[2] in caplog.text
    booked_before = re.findall(r"participation (\d) of 2", str(wrong))
    assert network.booked(0) == (int(booked_before[0]) - 1 if booked_before else 0)


def test_plan_prints_it_and_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page_policy(tmp_path)
    own = [
        "strategy=fedldp",
        "dataset=on_nodes",
        "dataset.classes=[a,b]",
        "dataset.examples=[800,9000]",
        "model=linear",
    ]
    run = [*own, "num_clients=2", "clients_per_round=2", "num_rounds=2", "strategy.client.noise_multiplier=8"]
    policy = f"policy={tmp_path / 'policy.yaml'}"
    assert plan_main([*run, "local.batch_size=32", policy]) == 1
    (wrong,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("the policy refuses")]
    assert "of clients with 9000 examples: local.batch_size=32" in wrong and "local.batch_size=90 keeps to it" in wrong
    assert plan_main([*run, "local.batch_size=90", policy]) == 0
    assert "admits this run, on a ledger without releases" in capsys.readouterr().out
    assert runs_main([*run, policy]) == 2
    assert "policy.yaml: goes with plan=true" in capsys.readouterr().err
    assert plan_main([*run, f"policy={tmp_path / 'none.yaml'}"]) == 2
