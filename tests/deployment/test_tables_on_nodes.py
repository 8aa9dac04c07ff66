"""Tables on nodes: each site its own file, one public schema, and what the server learns of a file that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from deployed import MACHINES, codes, refused
from hospital_nodes import EXAMPLE, POLICY, RUN, Hospitals

import fedpriv
from deploy.hospitals import write_tables
from fedpriv.certificates.statement import of_node
from fedpriv.client.build import unit_of
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.config.compose import compose
from fedpriv.config.own_options import CONF
from fedpriv.config.remote import compose_remote_text
from fedpriv.data.table_schema import read_schema
from fedpriv.engines.worker import Worker
from fedpriv.runs.start import start_run
from fedpriv.training.sequential import LocalData


@pytest.fixture
def network(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


def test_hospitals_learn_from_their_own_tables_in_a_secure_sum(network: Hospitals) -> None:
    """Every site has its own file and form; what nodes booked is what the run says, and the model can be used."""
    grid = network.serve(network.overrides(RUN.format(noise=3.0, rounds=2, lr=10.0)))
    assert codes(grid) == ["sent"] * network.count * 5 * 2
    summary = json.loads((network.folder / "run/summary.json").read_text())
    privacy = summary["privacy"]
    assert (privacy["unit"], privacy["observer"]) == ("example", "secure-sum") and 0.5 < privacy["verified_epsilon"] < 3
    assert [network.booked(number) for number in range(network.count)] == [2] * network.count
    model = fedpriv.load(network.folder / "run").model
    test = pandas.read_csv(network.folder / "server/test.csv", sep=";")
    right = model.predict(test.drop(columns="diagnosis")) == test["diagnosis"].to_numpy()
    assert float(np.mean(right)) == pytest.approx(summary["accuracy"]["final"])


class Persons(Hospitals):
    """Nodes whose tables have two rows of each patient, or ``times`` as many."""

    times = 1

    def write_data(self) -> None:
        super().write_data()
        schema = self.folder / "schema.yaml"
        schema.write_text("unit: patient\n" + schema.read_text())
        self.digest = read_schema(schema).digest
        for file in (*(self.table(number) for number in range(self.count)), self.folder / "server/test.csv"):
            head, *rows = file.read_text().splitlines()
            named = [f"{row};p{place // 2}" for place, row in enumerate(rows)] * self.times
            file.write_text("\n".join([f"{head};patient", *named, ""]))
        self.counts = [number // 2 for number in self.counts]


@pytest.mark.parametrize("times", [1, 2])
def test_nodes_declare_persons_and_learn_from_all_rows_of_them(times: int, tmp_path: Path) -> None:
    """Twice the rows of each patient change neither what is declared nor epsilon nor noise."""
    Persons.times = times
    network = Persons(tmp_path)
    budget = EXAMPLE | {"observer": "secure-sum", "unit": "person"}
    for number in range(network.count):
        network.write_policy(number, POLICY | {"budgets": [budget]})
    seen: list[int] = []
    rows_of = Worker.local_data

    def local_data(worker: Worker, client: int, chosen: np.ndarray | None = None) -> LocalData:
        seen.append(len(found := rows_of(worker, client, chosen)))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Worker, "local_data", local_data)
        assert set(codes(network.serve(network.overrides()))) == {"sent"}
    assert sorted(seen) == [2 * times * count for count in network.counts] == [40 * times] * 3
    privacy = json.loads((network.folder / "run/summary.json").read_text())["privacy"]
    assert privacy["unit"] == "person" and privacy["verified_epsilon"] == pytest.approx(0.19123, abs=1e-5)
    with pytest.raises(RunFailed):  # rows are what nobody has declared
        network.serve(network.overrides(f"dataset.examples=[{','.join(str(40 * times) for _ in range(3))}]", run="two"))


def test_nodes_charge_for_persons_at_as_many_sites_as_the_run_declares(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No fewer than their policies ask for; ledger and certificate of each count all of these sites."""
    Persons.times = 1
    network = Persons(tmp_path)
    budgets = [EXAMPLE | {"observer": observer, "unit": "person"} for observer in ("secure-sum", "server")]
    for number in range(network.count):
        limits = POLICY["limits"] | {"min_across_sites": 2}
        network.write_policy(number, POLICY | {"budgets": budgets, "limits": limits})
    assert refused(network, network.overrides()) == {"POLICY"}
    assert "privacy.across_sites=1: at least 2 (limits.min_across_sites)" in caplog.text
    assert set(codes(network.serve(network.overrides("privacy.across_sites=2", run="two")))) == {"sent"}
    privacy = json.loads((network.folder / "two/summary.json").read_text())["privacy"]
    assert privacy["across_sites"] == 2 and privacy["verified_epsilon"] > 2 * 0.19123
    assert any("no node sees another's rows" in reason for reason in privacy["reasons"])
    found = of_node(network.policy(0), network.data(0))
    assert found["protections"][0]["epsilon"] == pytest.approx(privacy["verified_epsilon"], rel=1e-6)
    assert any("A unit with data at two machines has spent both" in words for words in found["assumptions"])


def test_a_site_that_adds_its_own_noise_needs_no_secure_sum(network: Hospitals) -> None:
    """Its account is against the server, which sees its numbers; no other form's numbers are sent in the open."""
    for number in range(network.count):
        budgets = [EXAMPLE | {"observer": "server"}, EXAMPLE | {"observer": "secure-sum"}]
        network.write_policy(number, POLICY | {"budgets": budgets})
    open_sum = "strategy.secure_sum=ideal strategy.client.form="
    assert set(codes(network.serve(network.overrides(open_sum + "local")))) == {"sent"}
    for number, form in enumerate(("ddgauss", "skellam", "central")):
        assert refused(network, network.overrides(open_sum + form, run=f"in-the-open-{number}")) == {"POLICY"}


def test_rows_are_no_unit_where_nodes_have_declared_persons(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "target: {column: ill, task: classification, classes: [no, yes]}\nunit: p\ncolumns: {age: {range: [0, 9]}}\n"
    )
    plan = ["strategy=dpsum", "dataset=on_nodes", "dataset.examples=[9,9]", "num_clients=2", "clients_per_round=2"]
    for option in ("privacy.unit=row", "privacy.rows_per_person=3"):
        with pytest.raises(OptionError, match=rf"{option}: nodes have declared how many persons \(p\) they hold"):
            unit_of(compose([*plan, f"dataset.schema_file={tmp_path}/s.yaml", "model=linear", option]))


def test_a_schema_that_differs_by_a_comment_is_the_same(network: Hospitals) -> None:
    own = network.folder / "own.yaml"
    own.write_text("# ours\n" + (network.folder / "schema.yaml").read_text().replace("[5, 30]}", "[5.0, 3e1]} # cm"))
    assert network.command("declare", 1, f"schema_file={own}") == 0
    assert set(codes(network.serve(network.overrides()))) == {"sent"}


def test_a_schema_that_differs_by_a_range_is_refused_and_both_are_named(
    network: Hospitals, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    own = network.folder / "own.yaml"
    own.write_text((network.folder / "schema.yaml").read_text().replace("[5, 30]", "[5, 31]"))
    other = read_schema(own).digest
    for number in range(network.count):
        network.write_policy(number, POLICY | {"schemas": [network.digest, other]})  # approved, and not the run's
        assert network.command("declare", number, f"schema_file={own}") == 0
    assert refused(network, network.overrides()) == {"POLICY"}
    assert f"dataset.schema_digest={network.digest}: this machine's schema {own} is another, {other}" in caplog.text
    # The server's own copy is held against the run's digest, too.
    with pytest.raises(
        OptionError, match=f"dataset.schema_digest={other}: the schema in .* is another, {network.digest}"
    ):
        network.serve(network.overrides(run="two").replace(network.digest, other))


def test_a_policy_names_the_schemas_that_may_be_used(network: Hospitals, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(network.count):
        network.write_policy(number, POLICY | {"schemas": []})
    assert refused(network, network.overrides()) == {"POLICY"}
    assert f"schemas: [] does not approve of {network.folder / 'schema.yaml'}, {network.digest}" in caplog.text


def changed(text: str, cell: str) -> str:
    """The table with another first cell."""
    head, first, rest = text.split("\n", 2)
    return "\n".join([head, cell + ";" + first.partition(";")[2], rest])


#: What a site may do to its file, and what its operator reads. Every cell here is a secret.
BAD = {
    "renamed": (lambda text: text.replace("mean radius", "mean-radius", 1), "has no column mean radius"),
    "missing": (
        lambda text: "\n".join(line.partition(";")[2] for line in text.split("\n")),
        "has no column mean radius",
    ),
    "twice": (lambda text: text.replace("mean texture", "mean radius", 1), "has no column mean texture"),
    "empty": (lambda text: "", "the first line is empty"),
    "no rows": (lambda text: text.partition("\n")[0] + "\n", "has no rows"),
    "ragged": (lambda text: text + "SECRET;1\n", "2 cells, and the first line names 31 columns"),
    "text": (lambda text: changed(text, "SECRET"), "'SECRET' is not a number"),
    "formula": (lambda text: changed(text, "=SECRET(1)"), "a formula's value must be in the file"),
    "infinite": (lambda text: changed(text, "inf"), "inf is an infinite number"),
    "date": (lambda text: changed(text, "2020-01-31"), "row 1 holds a date"),
    "quote": (lambda text: changed(text, '"SECRET'), "is a quote not closed"),
    "packed": (lambda text: "PK\x03\x04SECRET", "is a zip archive"),
    "thousands": (lambda text: changed(text, "1'234"), "signs for thousands are not read"),
    "class": (lambda text: text.replace(";benign", ";SECRET", 1), "'SECRET' is none of the classes"),
    "no target": (lambda text: text.replace(";benign", ";", 1), "the target is missing"),
    "a row more": (lambda text: text + text.strip().rpartition("\n")[2] + "\n", "41 rows, declared were 40"),
    "other encoding": (lambda text: changed(text, "\udce9"), "is not utf-8"),
    "parquet": (lambda text: "PAR1 SECRET", "is not a readable Parquet file"),
    "wide": (lambda text: ";".join(f"c{i}" for i in range(20_000)), "at most 10000 are allowed"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_refused_in_one_line_that_stays_at_the_node(
    kind: str, network: Hospitals, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = BAD[kind]
    text = network.table(0).read_text()
    network.table(0).write_bytes(change(text).encode("utf-8", "surrogateescape"))
    with pytest.raises(RunFailed) as failed:
        network.serve(network.overrides())
    (line,) = [record.getMessage() for record in caplog.records if "refused, failed" in record.getMessage()]
    assert words in line and "\n" not in line
    assert "SECRET" not in str(failed.value) and "patients.csv" not in str(failed.value)
    assert network.booked(0) == 0
    # Its operator is told before the node is started, too.
    capsys.readouterr()
    code = network.command("run", 0, "superlink=127.0.0.1:1", f"credentials={network.folder}", "client=0")
    printed = capsys.readouterr().err
    assert code == 2 and words in printed and printed.count("\n") == 1


def test_tables_and_pictures_are_not_mistaken_for_each_other(
    network: Hospitals, caplog: pytest.LogCaptureFixture
) -> None:
    pictures = network.overrides().replace("dataset.schema", "+dataset.schema")
    pictures = " ".join(word for word in pictures.split() if not word.startswith(("+dataset", "dataset.test_root")))
    assert refused(network, f"{pictures} dataset.classes=[benign,malignant] dataset.size=8") == {"POLICY"}
    assert "the run trains on pictures, and this machine has declared a table" in caplog.text


def test_a_node_with_pictures_trains_on_no_table(machines: MACHINES, caplog: pytest.LogCaptureFixture) -> None:
    network = machines(1)
    schema = network.folder / "schema.yaml"
    schema.write_text((CONF / "schema/breast_cancer.yaml").read_text())
    text = network.overrides(f"dataset.schema_file={schema} dataset.schema_digest={read_schema(schema).digest}")
    write_tables(network.folder, 1, 3)
    text = text.replace(str(network.folder / "server"), str(network.folder / "server/test.csv"))
    assert refused(network, text.replace("[a,b,c]", "[]")) == {"POLICY"}
    assert "this machine has declared pictures and no table" in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("table=../x.csv", "table=../x.csv: must be the name of a file in"),
        ("table=nowhere.csv", "table=nowhere.csv: must be the name of a file in"),
        ("schema_file=nowhere.yaml", "schema_file=nowhere.yaml: there is no such file"),
        ("decimal=semicolon", "decimal=semicolon: allowed: point, comma"),
        ("separator=;", "separator=;: allowed: auto"),
        ("encoding=nonsense", "encoding=nonsense: is no encoding of texts"),
        ("classes=a,b", "classes=a,b: of pictures"),
    ],
)
def test_what_no_table_is_declared_as(
    given: str, words: str, network: Hospitals, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert network.command("declare", 0, given) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("dataset.schema_digest=null", "dataset.schema_digest=null"),
        ("dataset.schema_digest=abc", "dataset.schema_digest=abc"),
        ("dataset.classes=[a,b]", "the schema names a table's classes"),
        ("features=gradients", "is a table"),
        ("partition=dirichlet", "leave it at iid"),
        ("dataset.schema_file=schema.yaml", "cannot be set from outside"),
    ],
)
def test_what_no_run_of_tables_says(given: str, words: str, network: Hospitals) -> None:
    with pytest.raises((OptionError, RunFailed), match=r"dataset|features|partition") as caught:
        network.serve(network.overrides(given))
    assert words in str(caught.value)


def test_a_plan_needs_no_rows(network: Hospitals) -> None:
    from fedpriv.runs.preparation import resolve

    words = network.overrides().split()
    config = compose([word for word in words if not word.startswith(("dataset.test_root", "run_dir"))])
    _, _, plan = resolve(config, None)
    assert plan is not None
    assert compose_remote_text(network.overrides()).dataset.is_table
    with pytest.raises(OptionError, match="flwr run"):
        start_run(config, network.folder / "here")
