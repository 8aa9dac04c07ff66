"""privacy.unit in runs: whose data the ledger counts, what changes neither epsilon nor noise, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedpriv.attacks import fit_audit
from fedpriv.attacks.experiment import Experiment
from fedpriv.attacks.noise_amounts import too_long
from fedpriv.attacks.noise_contract import BROKEN
from fedpriv.certificates import statement, verify_certificate, writing
from fedpriv.client.build import example_counts, make_client, unit_of, unit_remarks
from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.identities import new_identity
from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.data.load import load_federated
from fedpriv.data.table_schema import schema_of
from fedpriv.deployment.data_ledger import Signer
from fedpriv.deployment.policy import Booked, UnitBudget
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.clipped_sums import Members
from fedpriv.mechanisms.noise import fine_step
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import Entry, PoissonGaussian, Threat, event_from_json, event_to_json
from fedpriv.privacy.gaussian_dp import gaussian_epsilon
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import make_plan
from fedpriv.runs.preparation import plan_rows
from fedpriv.runs.start import start_run
from fedpriv.training import persons as product_sums

SCHEMA = """target: {column: ill, task: classification, classes: [no, yes]}
columns: {a: {range: [-4, 4]}, b: {range: [-4, 4]}}
missing: refuse
"""
PERSON, EXAMPLE = (Threat(unit, "add-or-remove-one", "server") for unit in ("person", "example"))


def table(
    folder: Path, times: int = 1, unit: str = "unit: patient\n", ids: str = "p{}", persons: int = 40
) -> list[str]:
    """Options of a run on persons with 1 to 4 rows, each row ``times`` times."""
    folder.mkdir(exist_ok=True)
    rng, lines = np.random.default_rng(0), ["patient,a,b,ill"]
    for person in range(persons):
        middle = rng.normal(0, 1, 2)
        for _ in range(rng.integers(1, 5)):
            a, b = np.clip(middle + rng.normal(0, 0.5, 2), -4, 4)
            row = f"{ids.format(person - 5)},{a:.3f},{b:.3f},{'yes' if middle[0] > 0 else 'no'}"
            lines += [row] * times
    (folder / "people.csv").write_text("\n".join(lines))
    (folder / "schema.yaml").write_text(SCHEMA + unit)
    own = (f"dataset.root={folder}/people.csv", f"dataset.schema_file={folder}/schema.yaml")
    sizes = ("num_clients=2", "clients_per_round=2", "num_rounds=2", "engine=inprocess", "operations.report=false")
    return ["dataset=table", *own, *sizes, "model=linear", "local.batch_size=6", "engine.trainer=vectorised"]


def run(folder: Path, options: list[str]) -> tuple[dict[str, Any], str, np.ndarray]:
    """(summary, ledger, theta)."""
    start_run(compose(options), folder)
    made = RunFolder(folder)
    theta = torch.cat([part.flatten() for part in load_file(folder / "model.safetensors").values()])
    return made.read_summary() or {}, (folder / "ledger.jsonl").read_text(), theta.numpy()


SUM = ["strategy=dpsum", "strategy.server.min_replies=2"]
FORMS = [[*SUM, f"strategy.client.form={form}"] for form in ("ddgauss", "skellam", "local", "central")]


@pytest.mark.parametrize("method", FORMS, ids=lambda method: method[-1].rpartition("=")[2])
def test_a_run_costs_persons_what_its_plan_says(tmp_path: Path, method: list[str]) -> None:
    """Whoever adds the noise: what a trusted server releases is of persons, too."""
    options = [*method, *table(tmp_path)]
    summary, ledger, _ = run(tmp_path / "run", options)
    assert '"unit":"person"' in ledger and '"unit":"example"' not in ledger
    config = compose(options)
    planned = make_plan(config, Worker(config)).verified_epsilon
    assert summary["privacy"]["verified_epsilon"] == pytest.approx(planned) and planned > 0.5


@pytest.mark.parametrize("method", [["strategy=dpsgd"], ["strategy=agn", "strategy.client.clipping=adaptive"], SUM])
def test_twice_the_rows_of_each_person_change_neither_epsilon_nor_noise(tmp_path: Path, method: list[str]) -> None:
    """Entry for entry; and the model is the same but for rounding: same persons drawn, same means, same noise."""
    once, ledger, theta = run(tmp_path / "run", [*method, *table(tmp_path / "once")])
    twice, again, other = run(tmp_path / "more", [*method, *table(tmp_path / "twice", times=2)])
    assert ledger == again and '"unit":"person"' in ledger and '"unit":"example"' not in ledger
    for name in ("verified_epsilon", "unit", "person", "others"):
        assert once["privacy"][name] == twice["privacy"][name]
    assert once["privacy"]["person"] == "patient" and math.isfinite(once["privacy"]["verified_epsilon"])
    assert np.allclose(theta, other, atol=2e-3) and np.linalg.norm(theta) > 0.01


def test_as_rows_twice_the_rows_are_other_counts_and_another_epsilon(tmp_path: Path) -> None:
    one, two = (
        compose(["strategy=dpsgd", "privacy.unit=row", *table(tmp_path / str(times), times)]) for times in (1, 2)
    )
    assert (2 * example_counts(one) == example_counts(two)).all()
    assert make_client(one).threat == EXAMPLE and make_client(one).planned_events(1) != make_client(two).planned_events(
        1
    )


def test_questions_are_about_all_persons_whatever_was_counted_before(tmp_path: Path) -> None:
    of_table = [option for option in table(tmp_path) if option != "model=linear"]
    counts = [
        example_counts(compose([*method, *of_table])).sum()
        for method in (["strategy=dpsgd"], ["strategy=ask", "strategy.client.questions=[count]"])
    ]
    assert counts == [32, 40]  # a fifth of the rows is kept for tests of a model


def test_counts_and_sampling_are_of_persons(tmp_path: Path) -> None:
    config = compose(["strategy=dpsgd", *table(tmp_path)])
    counts, data = example_counts(config), load_federated(config)
    assert counts.sum() == 32  # of 40, a fifth is tested on
    assert counts.tolist() == [len(np.unique(data.dataset.train.unit[data.train_indices(k)])) for k in (0, 1)]  # type: ignore[index]
    (event,) = make_client(config, examples=16).planned_events(1)
    assert isinstance(event, PoissonGaussian) and event.threat == PERSON and event.sampling_rate == 6 / 16
    worker = Worker(config)
    assert worker.num_examples(0) == counts[0]
    drawn = worker.local_data(0, np.array([1, 4]))
    assert drawn.unit is not None and drawn.unit.unique().tolist() == [1, 4]
    every = worker.local_data(0)
    for person in (1, 4):  # all rows of whoever is drawn
        assert torch.equal(drawn.inputs[drawn.unit == person], every.inputs[every.unit == person])
    assert len(worker.local_data(0, np.zeros(0, np.int64))) == 0


@pytest.mark.parametrize("ids", ["{}", "Ä {}", "00{}"])
def test_negative_and_text_ids_are_the_same_persons(tmp_path: Path, ids: str) -> None:
    counts = [
        example_counts(compose(["strategy=dpsgd", *table(tmp_path / k, ids=i)])) for k, i in (("1", ids), ("2", "p{}"))
    ]
    assert counts[0].tolist() == counts[1].tolist()


def test_a_row_of_nobody_is_refused(tmp_path: Path) -> None:
    options = table(tmp_path)
    with (tmp_path / "people.csv").open("a") as file:
        file.write("\n,0,0,no")
    with pytest.raises(DataError, match="nobody is named"):
        example_counts(compose(["strategy=dpsgd", *options]))


def test_one_person_with_all_rows_trains(tmp_path: Path) -> None:
    """One person trains, one is tested on; the site's sum is as long as one person may make it."""
    options = [
        *SUM,
        *table(tmp_path, persons=4),
        "num_clients=1",
        "clients_per_round=1",
        "strategy.server.min_replies=1",
    ]
    rows = [f"one,{n % 7 / 3},1,{'yes' if n % 2 else 'no'}" for n in range(200)] + ["two,0,0,no"]
    (tmp_path / "people.csv").write_text("\n".join(["patient,a,b,ill", *rows]))
    (tmp_path / "test.csv").write_text("patient,a,b,ill\nthree,0,0,no\nfour,1,0,yes")
    config = compose([*options, f"dataset.test_root={tmp_path}/test.csv"])
    assert example_counts(config).tolist() == [2]
    start_run(config, tmp_path / "run")


def test_a_cap_is_kept_and_changes_no_count(tmp_path: Path) -> None:
    plain, capped = (compose(["strategy=dpsgd", *table(tmp_path), f"privacy.rows_per_person={n}"]) for n in ("null", 2))
    assert example_counts(plain).tolist() == example_counts(capped).tolist()
    data = load_federated(capped)
    assert all(np.bincount(data.persons(client)).max() == 2 for client in (0, 1))
    assert len(data.dataset.test) == len(load_federated(plain).dataset.test)
    assert any("2 training rows at most" in row for row in plan_rows(capped).values())


def test_plan_and_report_say_whose_data(tmp_path: Path) -> None:
    options = ["strategy=dpsgd", *table(tmp_path)]
    assert "unit person (all rows of one patient)" in plan_rows(compose(options))["threat model"]
    rows = plan_rows(compose([*options, "privacy.unit=row", "privacy.rows_per_person=3"]))
    (said,) = (row for name, row in rows.items() if name.startswith("reason"))
    assert "k = 3 rows is protected by k times this epsilon" in said and "unit example" in rows["threat model"]
    start_run(compose([*options, "operations.report=true"]), tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "all training rows of one patient at one client" in page
    with pytest.raises(OptionError, match=r"privacy.unit=person: coins choose single rows"):
        Experiment(RunFolder(tmp_path / "run"), compose(options))


WORDS = [
    ("dpsgd", "client", "nothing bounds what all of a client's data change; allowed: null, person, row"),
    ("fedldp", "person", "protects all of a client's data, every row and person in it; allowed: null, client"),
    ("fedldp", "row", "allowed: null, client"),
    ("nbafl", "null", "clips no gradients, so a person's cannot be clipped together; allowed: row"),
    ("nbafl", "person", "clips no gradients"),
    ("dpsgd", "patient", "allowed"),
]


@pytest.mark.parametrize(("strategy", "unit", "words"), WORDS)
def test_what_a_method_does_not_protect_is_refused(tmp_path: Path, strategy: str, unit: str, words: str) -> None:
    with pytest.raises(OptionError, match=r"privacy\.unit") as refused:
        make_client(compose([f"strategy={strategy}", *table(tmp_path), f"privacy.unit={unit}"]))
    assert words in str(refused.value)


def test_persons_need_a_schema_that_names_them(tmp_path: Path) -> None:
    nobody = table(tmp_path, unit="")
    for option in ("privacy.unit=person", "privacy.rows_per_person=3"):
        for data in (nobody, ["dataset=digits"]):
            with pytest.raises(OptionError, match=r"whose schema names the column of persons \(unit\)"):
                make_client(compose(["strategy=dpsgd", *data, option]))
    with pytest.raises(OptionError, match="rows_per_person"):
        compose(["privacy.rows_per_person=0"])
    assert unit_of(compose(["strategy=dpsgd", *nobody])) == "example"
    assert unit_of(compose(["strategy=fedldp", *table(tmp_path)])) == "client"


def test_the_word_of_a_person_is_the_columns_or_the_schemas_own() -> None:
    said: dict[str, Any] = {"target": {"column": "y", "task": "classification", "classes": ["a", "b"]}}
    said["columns"] = {"x": {"range": [0, 1]}}
    assert schema_of(said, "s").person is None
    assert schema_of(said | {"unit": "patient_id"}, "s").person == "patient"
    own = schema_of(said | {"unit": "mrn", "word": "patient"}, "s")
    assert own.person == "patient" and own.digest == schema_of(said | {"unit": "mrn"}, "s").digest
    for wrong in ({"word": "patient"}, {"unit": "mrn", "word": "<b>"}):
        with pytest.raises(OptionError, match="word"):
            schema_of(said | wrong, "s")


# --- a person at several clients ---------------------------------------------------------------------------


def at_sites(folder: Path, sites: int = 3, more: int = 0) -> list[str]:
    """As `table`, with a client for each value of `hospital`: patient p is at the first 1 + p % ``sites`` of them, one
    row each, and ``more`` more patients are at all.
    """
    options, rng = table(folder), np.random.default_rng(1)
    lines = ["patient,hospital,a,b,ill"]
    for person in range(48 + more):
        for site in range(sites if person >= 48 else 1 + person % sites):
            a, b = np.clip(rng.normal(0, 1, 2), -4, 4)
            lines.append(f"p{person},h{site},{a:.3f},{b:.3f},{'yes' if a > 0 else 'no'}")
    (folder / "people.csv").write_text("\n".join(lines))
    many = (f"num_clients={sites}", f"clients_per_round={sites}")
    return [*options, "partition=column", "partition.column=hospital", *many]


@pytest.mark.parametrize("method", [*FORMS, ["strategy=dpsgd"]], ids=lambda method: method[-1].rpartition("=")[2])
def test_a_person_at_several_clients_runs_where_the_sites_are_declared(tmp_path: Path, method: list[str]) -> None:
    options = [*method, *at_sites(tmp_path)]
    with pytest.raises(
        OptionError, match=r"privacy.across_sites=1: \d+ persons are held by more .* one by 3; allowed: 3 or more"
    ):
        make_plan(compose(options), Worker(compose(options)))
    with pytest.raises(
        OptionError, match=r"privacy.across_sites=2: \d+ persons are held by more .* allowed: 3 or more"
    ):
        example_counts(compose([*options, "privacy.across_sites=2"]))
    config = compose([*options, "privacy.across_sites=3"])
    data = load_federated(config)
    held = [set(data.dataset.train.unit[data.train_indices(client)]) for client in range(3)]  # type: ignore[index]
    assert held[2] < held[1] < held[0] and example_counts(config).tolist() == [len(one) for one in held]
    summary, ledger, _ = run(tmp_path / "run", [*options, "privacy.across_sites=3"])
    planned = make_plan(config, Worker(config)).verified_epsilon
    assert summary["privacy"]["verified_epsilon"] == pytest.approx(planned) and '"unit":"person"' in ledger
    single = run(tmp_path / "alone", [*method, *table(tmp_path / "one"), "num_clients=3", "clients_per_round=3"])[0]
    assert planned > 1.2 * single["privacy"]["verified_epsilon"] or method == ["strategy=dpsgd"]
    assert any("may be at up to 3 clients" in reason for reason in summary["privacy"]["reasons"])
    others = summary["privacy"]["others"]  # of the server, beside the sum's: as comparable, and in the same words
    assert all((other["across_sites"], other["person"]) == (3, "patient") for other in others)
    assert len(others) == (method in FORMS[:2])


def test_report_and_certificate_say_at_how_many_clients_a_person_may_be(tmp_path: Path) -> None:
    """And the certificate's own reader counts all of them from the ledger's lines."""
    options = [*FORMS[2], *at_sites(tmp_path), "strategy.client.noise_multiplier=3", "operations.report=true"]
    at_three, said = [*options, "privacy.across_sites=3"], "patient at up to 3 clients"
    assert f"unit person (all rows of one {said.replace(' at', ') at')}" in plan_rows(compose(at_three))["threat model"]
    start_run(compose(at_three), tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"all training rows of one {said}" in page and "at one client" not in page
    assert "unit person (patient) at up to 3 clients, add-or-remove-one, seen by server" in page
    found = statement.of_run(tmp_path / "run")
    assert found["subject"]["across_sites"] == 3 and any(said[8:] in words for words in found["assumptions"])
    assert found["protections"][0]["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2 * 3) / 3, 1e-5), rel=5e-3)
    signer = Signer(new_identity(b"mine")[0])
    signed = statement.signed(found, signer, "whoever carried out this run")
    assert f"all training rows of one person {said[8:]}" in writing.page(signed)
    (tmp_path / "certificate.json").write_text(json.dumps(signed))
    assert verify_certificate.main([str(tmp_path / "certificate.json")]) == 0
    found["protections"][0]["epsilon"] = gaussian_epsilon(math.sqrt(2) / 3, 1e-5)  # of a person at one site
    (tmp_path / "certificate.json").write_text(json.dumps(statement.signed(found, signer, "who")))
    assert verify_certificate.main([str(tmp_path / "certificate.json")]) == 1
    alone = unit_remarks(compose([*options, "privacy.unit=person"]))
    assert "who is at two has the epsilon of twice as many rounds (privacy.across_sites=2 counts it)" in alone[0]
    in_sum = unit_remarks(compose([*FORMS[0], *at_sites(tmp_path)]))
    assert "who is at two has the epsilon of half of the noise" in in_sum[0]


def test_whose_unit_is_no_person_needs_no_sites(tmp_path: Path) -> None:
    """Rows are at one client each, and a client is its own unit; what follows for a person is said of rows."""
    options = at_sites(tmp_path)
    assert example_counts(compose(["strategy=dpsgd", "privacy.unit=row", *options])).sum() > 60
    start_run(compose(["strategy=fedldp", *options]), tmp_path / "run")
    assert (
        "a patient with rows at k clients has group privacy" in unit_remarks(compose(["strategy=fedldp", *options]))[0]
    )


def test_unlike_sites_are_priced_as_the_smallest(tmp_path: Path) -> None:
    """The ledger of either client bounds a person at both: coins of two rates, composed."""
    options = ["strategy=dpsgd", "strategy.client.noise_multiplier=1", "strategy.client.local_steps=40"]
    config = compose([*options, *at_sites(tmp_path, 2), "privacy.across_sites=2"])
    alone = compose([*options, *at_sites(tmp_path, 2), "privacy.across_sites=1", "privacy.unit=row"])
    counts = example_counts(config)
    assert counts[0] > 1.5 * counts[1]
    both = [event for size in counts for event in make_client(alone, examples=size).planned_events(1)]
    (small, large) = (make_client(config, examples=size).planned_events(1) for size in counts)
    assert small == large and small[0].count == 80
    assert small[0].sampling_rate == 6 / counts[1]  # type: ignore[attr-defined]
    exact, priced = compose_events(both, 1e-5).epsilon, compose_events(small, 1e-5).epsilon
    single = compose_events(both[1:], 1e-5).epsilon
    assert single < exact <= priced < 1.5 * exact


@pytest.mark.parametrize("method", [["strategy=dpsgd"], FORMS[0], FORMS[2]], ids=["dpsgd", "ddgauss", "local"])
def test_what_rounding_adds_is_that_of_all_persons_where_sites_must_be_alike(tmp_path: Path, method: list[str]) -> None:
    """Beyond 65,536 persons at one site a sum's rounding counts; of several sites none may have less than another."""
    made = make_client(compose([*method, *table(tmp_path), "privacy.across_sites=2"]))
    facts = replace(made.facts, total_examples=10**8)
    client: Any = type(made)(made.options, replace(made.run, facts=facts))
    event, longer = client.charges(None)[0].event, 1 + 2 * (10**8 - 2**16) * (2.0**-28 + 2.0**-33)
    if method[0] == "strategy=dpsgd":
        assert event.multiplier == pytest.approx(client.noise_multiplier / longer, rel=1e-9)
        return
    grid, root = client.grid, math.sqrt(client.facts.num_parameters)
    moved = grid.steps * longer + root
    if isinstance(event, PoissonGaussian):
        assert event.multiplier == pytest.approx(grid.sigma / (moved + root * fine_step(grid.sigma)), rel=1e-9)
    else:
        assert event.l2 == pytest.approx(2 * moved, rel=1e-9)


REFUSED = [
    (["strategy=fedldp"], "fedldp protects all of a client's data, and a client is one site; allowed: 1"),
    (["strategy=ldpfl", "strategy.client.shuffle=true"], "a client is one site; allowed: 1"),
    (["strategy=fedper"], "a client is one site; allowed: 1"),
    (["strategy=nbafl", "privacy.unit=row"], "nbafl clips no gradients"),
    (["strategy=dpfl_agn"], "changes its noise over rounds"),
    (["strategy=anr"], "changes its noise over rounds"),
    (["strategy=dpsgd", "num_clients=1", "clients_per_round=1"], "no more sites than num_clients; allowed: 1 to 1"),
]


@pytest.mark.parametrize(("method", "words"), REFUSED, ids=lambda value: str(value)[:30])
def test_a_method_without_a_price_for_several_sites_says_so(tmp_path: Path, method: list[str], words: str) -> None:
    with pytest.raises(OptionError, match=r"privacy\.across_sites=2") as refused:
        make_client(compose([*table(tmp_path), *method, "privacy.across_sites=2"]))
    assert words in str(refused.value)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "two", "null", "1001"])
def test_sites_are_a_whole_number(value: str) -> None:
    with pytest.raises(OptionError, match=r"privacy\.across_sites"):
        compose([f"privacy.across_sites={value}"])


def test_rows_that_clients_share_are_priced_for_as_many_sites(tmp_path: Path) -> None:
    """partition=resampled: each client draws of one pool, and the most clients of one row are counted."""
    given = ["strategy=dpsgd", *table(tmp_path, unit=""), "num_clients=6", "clients_per_round=6", "partition=resampled"]
    options = [*given, "partition.examples_per_client=20"]
    with pytest.raises(OptionError, match=r"partition=resampled: .*or privacy\.across_sites"):
        make_client(compose(options))
    with pytest.raises(
        OptionError, match=r"privacy.across_sites=2: \d+ rows are held by more .* one by (\d)"
    ) as refused:
        example_counts(compose([*options, "privacy.across_sites=2"]))
    most = int(str(refused.value).partition("one by ")[2][0])
    assert 2 < most <= 6
    config = compose([*options, f"privacy.across_sites={most}"])
    data = load_federated(config)
    drawn = np.concatenate([data.train_indices(client) for client in range(6)])
    assert np.bincount(drawn).max() == most
    (event,) = make_client(config).planned_events(1)
    assert event.count % most == 0


# --- policies and audits ---------------------------------------------------------------------------------


def test_a_policys_budget_for_persons_covers_no_other_unit_and_no_other_covers_it() -> None:
    event = PoissonGaussian(threat=PERSON, multiplier=1.0, sampling_rate=0.1)
    booked = Booked((Entry(1, 0, 0, 0, event),), PERSON)
    budget = UnitBudget(unit="person", delta=1e-5, max_epsilon=1.0, adjacency="add-or-remove-one")
    assert budget.threat == PERSON and booked.under(budget.threat) == [event]
    assert booked.under(EXAMPLE)[0].why_unbounded() is not None  # a person may change by two contributions
    as_row = PoissonGaussian(threat=EXAMPLE, multiplier=1.0, sampling_rate=0.1)
    assert Booked((Entry(1, 0, 0, 0, as_row),), EXAMPLE).under(PERSON)[0].why_unbounded() is not None


class RowByRow:
    """A person's rows as if each were of another one."""

    of = staticmethod(lambda unit: Members.of(torch.arange(len(unit))))


def audited(tmp_path: Path, method: list[str]) -> Config:
    wide = ["model=mlp", "model.hidden=128", "strategy.client.noise_multiplier=1", "strategy.client.clip_norm=1"]
    return compose([*method, *table(tmp_path), *wide])


@pytest.mark.parametrize("method", [["strategy=dpsgd"], SUM])
def test_the_noise_contract_finds_a_person_whose_rows_are_clipped_one_by_one(
    tmp_path: Path, method: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person with eight loud rows, in the run's own rounds, code and size."""
    config = audited(tmp_path, method)
    assert too_long(config, [(100.0, 0), (BROKEN, 0)]) == []

    monkeypatch.setattr(product_sums, "Members", RowByRow)
    assert "standard deviations apart, the ledger counts on" in too_long(config, [(100.0, 0), (BROKEN, 0)])[0]


def test_the_audit_of_a_clients_own_fit_tries_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noisy = ("strategy.client.noise_multiplier=4", "strategy.client.local_steps=1", "local.batch_size=64")
    config = compose(["strategy=dpsgd", *table(tmp_path), *noisy])
    monkeypatch.setattr(fit_audit, "PILOT", 20)
    monkeypatch.setattr(product_sums, "Members", RowByRow)
    broken = fit_audit.audit_fits(config, trials=110, confidence=0.95, seed=0)
    assert broken.audit.epsilon_lower > broken.verified


def test_an_old_ledger_is_read_as_before() -> None:
    line = {"mechanism": "gaussian", "count": 1, "multiplier": 2.0} | vars(EXAMPLE)
    assert event_from_json(line).threat == EXAMPLE
    persons = event_to_json(event_from_json(line | {"unit": "person"}))
    assert persons["unit"] == "person" and event_from_json(persons).threat == PERSON
    with pytest.raises(ValueError, match="unit='patient'"):
        event_from_json(line | {"unit": "patient"})
