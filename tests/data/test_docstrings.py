"""Docstrings as a table: the rule by which they are taken, and test rows from modules of their own."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fedpriv.common.errors import DataError
from fedpriv.config.compose import compose
from fedpriv.config.own_options import CONF
from fedpriv.data import installed_tables, table_rows
from fedpriv.data.installed_tables import OF_LIBRARY, OF_MODULE, SHORTEST, _order, module_files, table_of
from fedpriv.data.load import load_federated
from fedpriv.data.table_rows import encode
from fedpriv.data.table_schema import read_schema

LONG = "Words of a docstring that is long enough to be taken, since it has at least eighty characters: "


def source(folder: Path, name: str, *texts: str) -> Path:
    path = folder / f"{name}.py"
    body = "".join(f"def f{number}():\n    '''{text}'''\n\n" for number, text in enumerate(texts))
    path.write_text(f"raise SystemExit('imported')\n\n{body}")
    return path


def test_first_docstrings_of_a_module_are_taken_once_and_nothing_is_run(tmp_path: Path) -> None:
    first = source(tmp_path, "first", *(f"{LONG}{number}" for number in range(OF_MODULE + 3)), "short")
    second = source(tmp_path, "second", f"{LONG}0", f"{LONG.upper()}  1", f"{LONG}other")
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "module.py").write_text(f'"""{LONG}module."""\n\nclass A:\n    """{LONG}A."""\n')
    files = {"a": {"first": first, "broken": tmp_path / "broken.py"}, "b": {"second": second}}
    found = table_of(files | {"c": {"module": tmp_path / "module.py"}})
    assert Counter(found["library"].to_pylist()) == {"a": OF_MODULE, "b": 1, "c": 2}
    assert found["text"].to_pylist()[-3:] == [f"{LONG}other", f"{LONG}module.", f"{LONG}A."]
    assert set(found["module"].to_pylist()) == {"first", "second", "module"}


def test_a_library_has_a_limit_and_the_order_of_its_modules_is_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed_tables, "OF_LIBRARY", 15)
    files = {f"m{k}": source(tmp_path, f"m{k}", *(f"{LONG}{k} {n}" for n in range(12))) for k in range(4)}
    found = table_of({"a": files})["module"].to_pylist()
    order = sorted(files, key=_order)
    assert order != sorted(files) and found == [order[0]] * 10 + [order[1]] * 5
    with pytest.raises(DataError, match="no docstrings of b; its source files must be installed"):
        table_of({"a": files, "b": module_files("no_such_package")})


def test_libraries_are_read_without_being_imported() -> None:
    script = (
        "import sys; from fedpriv.data.installed_tables import module_files, LIBRARIES\n"
        "found = {name: len(module_files(package)) for name, (package, _) in LIBRARIES.items()}\n"
        "assert min(found.values()) > 100, found\n"
        "assert not any('.tests.' in name for name in module_files('numpy'))\n"
        "print([name for name in ('torch', 'scipy', 'sklearn') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of runs on twelve modules of made-up libraries."""
    files = {}
    for place, name in enumerate(("numpy", "python", "scikit-learn", "scipy", "torch")):
        files[name] = {
            f"{name}.m{k}": source(tmp_path, f"{name}{k}", *(f"{LONG}{name} item{k}with{n}" for n in range(2 + place)))
            for k in range(5)
        }
    made = table_of(files)
    monkeypatch.setattr(table_rows, "INSTALLED", {"docstrings": lambda: made, "docstrings_next": lambda: made})
    return ["dataset=docstrings", f"dataset.cache={tmp_path / 'cache'}", "strategy=fedavg", "model=linear"]


def test_a_module_is_on_one_side_and_seeds_choose_which(small: list[str]) -> None:
    made = table_rows.INSTALLED["docstrings"]()
    inputs = encode(made, read_schema(CONF / "schema/docstrings.yaml"), "made").inputs
    module_of = dict(zip((row.tobytes() for row in inputs), made["module"].to_pylist(), strict=True))
    sides = []
    for seed in (0, 1):
        data = load_federated(compose([*small, f"seed={seed}", "num_clients=2", "clients_per_round=2"])).dataset
        train, test = ({module_of[row.tobytes()] for row in part.inputs} for part in (data.train, data.test))
        assert not train & test and len(train) == 20 and len(test) == 5
        sides.append(test)
    assert sides[0] != sides[1]


def test_a_module_is_a_client_where_it_has_training_rows(small: list[str]) -> None:
    options = [*small, "partition=column", "partition.column=module", "num_clients=20", "clients_per_round=5"]
    data = load_federated(compose(options))
    assert sorted(Counter(data.partition.num_train.tolist())) == [2, 3, 4, 5, 6]
    assert len(data.dataset.sites) == 20 and data.dataset.test.site is None
    by_library = ["partition=column", "partition.column=library", "num_clients=5", "clients_per_round=5"]
    assert load_federated(compose([*small, *by_library])).dataset.sites[0] == "numpy"


def test_modules_are_persons_and_bytes_have_a_next_one(small: list[str]) -> None:
    units = "dataset.schema_file=conf/schema/docstrings_modules.yaml"
    data = load_federated(compose([*small, units, "num_clients=2", "clients_per_round=2"]))
    assert data.dataset.train.unit is not None and sum(data.counts(persons=True)) == 20
    following = ["dataset=docstrings_next", *small[1:3], "model=gru", "num_clients=2", "clients_per_round=2"]
    found = load_federated(compose(following)).dataset
    assert found.vocabulary == 257 and found.train.targets.shape == (len(found.train), 128)


def test_the_rule_is_that_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/text.md").read_text()
    assert f"first {OF_MODULE} docstrings of at least {SHORTEST} characters" in page and f"{OF_LIBRARY:,}" in page
