"""Tables as data sets: the user's own file, small ones that are installed anyway, and one that is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.versions import installed
from fedpriv.config.data_schema import HUB_TABLES, DatasetConfig
from fedpriv.config.own_options import CONF
from fedpriv.data.cache import cache_folder, damaged, entry
from fedpriv.data.docstrings import docstrings, docstrings_version
from fedpriv.data.draws import generator
from fedpriv.data.hub_tables import hub_identity, read_split, table_splits
from fedpriv.data.splits import divide_by_class
from fedpriv.data.table_files import DECIMALS, SEPARATORS, Form, column_names, read_columns
from fedpriv.data.table_rows import Encoded, encode, lost_columns, numbered
from fedpriv.data.table_schema import TableSchema, read_schema
from fedpriv.data.types import Dataset, Examples
from fedpriv.mechanisms.tasks import Multilabel, NextToken, Regression, Task, of_classes

if TYPE_CHECKING:
    import pyarrow as pa


#: Names of data sets that are the user's own files.
OWN_FILES = ("table", "on_nodes")
HUB = "huggingface"
#: How cells are read: a cache holds rows that were encoded so.
CELLS = 2
#: Built-in tables whose rows are divided into training and test rows by a column, all rows of a value on one side.
GROUPED = {"docstrings": "module", "docstrings_next": "module"}


def schema_of_dataset(config: DatasetConfig) -> TableSchema:
    """The public schema of a table. Raises `OptionError`."""
    if config.name in OWN_FILES:
        if config.schema_file is None:
            raise OptionError(
                "dataset.schema_file", "null", f"dataset={config.name} needs a schema; `fedpriv schema` drafts one"
            )
        return read_schema(config.schema_file)
    own = HUB_TABLES[str(config.hub_name)] if config.name == HUB and config.schema_file is None else config.name
    return read_schema(config.schema_file or CONF / "schema" / f"{own}.yaml")


def task_of(schema: TableSchema) -> Task:
    """What a model of this table predicts."""
    target = schema.target
    if target.task == "classification":
        assert isinstance(target.classes, tuple)
        return of_classes(target.classes, target.positive)
    if target.task == "multilabel":
        return Multilabel(target.columns)
    if target.task == "next_token":
        assert schema.tokens is not None and schema.tokens.length is not None
        return NextToken(schema.tokens.rule.names, schema.tokens.length)
    assert target.column is not None and isinstance(target.range, tuple)
    return Regression((target.column,), *target.range)


class SaysForm(Protocol):
    """Options that say how CSV files are written."""

    @property
    def separator(self) -> str: ...

    @property
    def decimal(self) -> str: ...

    @property
    def encoding(self) -> str: ...


def form_of(config: SaysForm) -> Form:
    """How CSV files are written."""
    return Form(SEPARATORS.get(config.separator), DECIMALS[config.decimal], config.encoding)


def load_table(config: DatasetConfig, seed: int, site_column: str | None = None, whole: bool = False) -> Dataset:
    """The table of the configuration, from the cache where it was encoded before, divided into training and test rows
    by `seed`: of every class the same share, and all rows of a person on one side.

    site_column: a column whose values divide the rows among clients. whole: all rows are training rows. Raises
    `DataError` and `OptionError`.
    """
    schema = schema_of_dataset(config)
    dataset = _divided_table(config, seed, schema, site_column, whole)
    return dataset if schema.tokens is None else replace(dataset, vocabulary=schema.vocabulary)


def _divided_table(
    config: DatasetConfig, seed: int, schema: TableSchema, site_column: str | None, whole: bool
) -> Dataset:
    if config.name in GROUPED and not whole:
        return _grouped(config, schema, seed, site_column)
    first, second = table_splits(config) if config.name == HUB else (config.root, config.test_root)
    found, sites, remarks = encoded_rows(config, first, schema, site_column)
    train, test = found, _rows(found, np.zeros(0, np.int64))
    if second is not None and not whole:
        other, _, more = encoded_rows(config, second, schema, option="dataset.test_root")
        both, remarks = found.and_then(other), remarks + more
        test = _rows(both, np.arange(len(found.targets), len(both.targets)))
    elif not whole:
        train, test = (_rows(found, rows) for rows in _divided(found, task_of(schema), config.test_fraction, seed))
    return Dataset(config.name, train, test, task_of(schema), sites=sites, schema=schema, remarks=remarks)


def _grouped(config: DatasetConfig, schema: TableSchema, seed: int, site_column: str | None) -> Dataset:
    """As `load_table`: groups are divided as persons are. A site that is a group has training or test rows alone, and
    is a client where it has training rows.
    """
    group, task = GROUPED[config.name], task_of(schema)
    by_group, names, remarks = encoded_rows(config, None, schema, group)
    train, test = _divided(replace(by_group, unit=by_group.site), task, config.test_fraction, seed)
    found, sites, _ = encoded_rows(config, None, schema, site_column)
    parts = _rows(found, train), _rows(found, test)
    dataset = Dataset(config.name, *parts, task, sites=sites, schema=schema, remarks=remarks)
    if site_column != group:
        return dataset
    assert dataset.train.site is not None
    trained, numbers = np.unique(dataset.train.site, return_inverse=True)  # type: ignore[arg-type]
    own = replace(dataset.train, site=numbers.astype(np.int64))
    sites = tuple(names[number] for number in trained)
    return replace(dataset, train=own, test=replace(dataset.test, site=None), sites=sites)


def _rows(found: Examples, rows: np.ndarray) -> Examples:
    own = found.chosen(rows)
    return Examples(found.inputs[rows], own.targets, None, own.unit, own.site)


def _divided(found: Examples, task: Task, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows), ascending."""
    first = member = np.arange(len(found))  # of each unit its first row, of each row its unit
    if found.unit is not None:
        _, first, member = np.unique(found.unit, return_index=True, return_inverse=True)
    if found.targets.dtype == np.int64 and found.targets.ndim == 1:
        train, test = divide_by_class(found.targets[first], fraction, seed)
    else:
        order = generator(seed, "train-test").permutation(len(first))
        number = max(1, round(fraction * len(first)))
        train, test = order[number:], order[:number]
    if not len(train) or not len(test):
        raise DataError(f"dataset.root: {len(first)} units are too few to train and to test on")
    if found.unit is None:
        return np.sort(train), np.sort(test)
    tested = np.isin(member, test)
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def encoded_rows(
    config: DatasetConfig,
    root: str | None,
    schema: TableSchema,
    site_column: str | None = None,
    option: str = "dataset.root",
    on_node: bool = False,
) -> tuple[Examples, tuple[str, ...], tuple[str, ...]]:
    """All rows of the file ``root``, which ``option`` names (of a set of the hub: of the split ``root``), or of a
    built-in table, the names of their sites, and a warning for each column of which many cells are lost; from the cache
    where they were encoded before. on_node: nothing that the cells say ends a run, which a server would see; `init`
    has refused lost columns. Raises `DataError` (a column is lost, too) and `OptionError`.
    """
    identity: dict[str, Any] = {"name": config.name, "schema": schema.digest, "site": site_column, "cells": CELLS}
    if config.name in OWN_FILES:
        if root is None:
            raise OptionError(option, "null", "dataset=table needs a CSV or Parquet file")
        path = Path(root)
        if not path.is_file():
            words = "is a folder; allowed: a CSV or Parquet file" if path.is_dir() else "there is no such file"
            raise DataError(f"{option}={root}: {words}")
        state, form = path.stat(), form_of(config)
        identity |= {"file": str(path.resolve()), "size": state.st_size, "changed": state.st_mtime_ns, **vars(form)}
    elif config.name == HUB:
        identity |= hub_identity(config) | {"split": root}
    else:
        identity |= {"made of": docstrings_version() if config.name in GROUPED else installed("scikit-learn")}

    def write(folder: Path) -> None:
        table = _read(config, root, schema, site_column)
        found = encode(table, schema, str(root or config.name), decimal=form_of(config).decimal)
        sites = None
        if site_column is not None:
            words = "no client is named; each row needs one"
            sites = numbered(table, schema, site_column, str(root or config.name), words, form_of(config).decimal)
        _write(folder, found, sites, str(root or config.name))

    folder = entry(cache_folder(config) / "tables", identity, write)
    try:
        inputs = np.load(folder / "inputs.npy", mmap_mode="r", allow_pickle=False)
        with np.load(folder / "rest.npz", allow_pickle=False) as rest:
            parts = dict(rest)
    except (OSError, ValueError) as error:
        raise damaged(folder, error) from error
    if not on_node and (refused := str(parts["refused"])):
        raise DataError(refused)
    sites, warnings = (tuple(map(str, parts.get(name, ()))) for name in ("sites", "warnings"))
    return Examples(inputs, parts["targets"], None, parts.get("unit"), parts.get("site")), sites, warnings


def _write(folder: Path, found: Encoded, sites: tuple[np.ndarray, list[str]] | None, name: str) -> None:
    np.save(folder / "inputs.npy", found.inputs)
    assert found.targets is not None
    rest = {"targets": found.targets, "refused": np.array("")}
    try:
        rest["warnings"] = np.array(lost_columns(found, name), str)
    except DataError as error:
        rest["refused"] = np.array(str(error))
    if found.unit is not None:
        rest["unit"] = found.unit
    if sites is not None:
        order = np.argsort(sites[1])
        rest |= {"site": np.argsort(order)[sites[0]], "sites": np.array(sites[1])[order]}
    np.savez(folder / "rest.npz", **rest)  # type: ignore[arg-type]


def _read(config: DatasetConfig, root: str | None, schema: TableSchema, site_column: str | None) -> pa.Table:
    names = dict.fromkeys([*schema.needed, *([] if site_column is None else [site_column])])
    if config.name in OWN_FILES:
        assert root is not None
        if site_column is not None and site_column not in (found := column_names(Path(root), form_of(config))):
            words = f"{root} has no such column; its columns: {', '.join(found[:12])}"
            raise OptionError("partition.column", site_column, words)
        return read_columns(Path(root), tuple(names), form_of(config), schema)
    if config.name == HUB:
        return read_split(config, tuple(names), str(root))
    table = _BUILT_IN[config.name]()
    if (lacking := next((name for name in names if name not in table.column_names), None)) is not None:
        words = f"{config.name} has no such column; its columns: {', '.join(table.column_names)}"
        raise OptionError("partition.column" if lacking == site_column else "dataset.schema_file", lacking, words)
    return table.select(list(names))


def _breast_cancer() -> pa.Table:
    """W. H. Wolberg, W. N. Street, O. L. Mangasarian: Breast Cancer Wisconsin (Diagnostic), 569 rows."""
    import pyarrow as pa
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = {str(name): column for name, column in zip(found.feature_names, found.data.T, strict=True)}
    return pa.table(columns | {"diagnosis": found.target_names[found.target]})


def _diabetes() -> pa.Table:
    """B. Efron, T. Hastie, I. Johnstone, R. Tibshirani: Least Angle Regression, 442 rows, in their own units."""
    import pyarrow as pa
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    columns = dict(zip(found.feature_names, found.data.T, strict=True))
    return pa.table(columns | {"progression": found.target})


def _practices() -> pa.Table:
    """Made, always the same 3,276 rows: in practice k of ten, x = z + 0.5 u_k with z and u_k normal in R^11, and the
    outcome is yes with the logistic probability of w x + b_k, |w| = 1.75, b_k from -2.2 to -0.2 in equal steps.
    """
    import pyarrow as pa

    rng, sites, dims = np.random.default_rng(0), 10, 11
    weights = rng.normal(size=dims)
    weights *= 1.75 / np.linalg.norm(weights)
    site = np.arange(3276) % sites
    inputs = rng.normal(size=(len(site), dims)) + 0.5 * rng.normal(size=(sites, dims))[site]
    chance = 1 / (1 + np.exp(-(inputs @ weights + np.linspace(-2.2, -0.2, sites)[site])))
    outcome = np.where(rng.random(len(site)) < chance, "yes", "no")
    columns: dict[str, Any] = {f"x{place + 1}": inputs[:, place] for place in range(dims)}
    return pa.table(columns | {"practice": [f"practice {number}" for number in site], "outcome": outcome})


_BUILT_IN = {
    "breast_cancer": _breast_cancer,
    "diabetes": _diabetes,
    "docstrings": docstrings,
    "docstrings_next": docstrings,
    "practices": _practices,
}
