"""Tables and texts of the Hugging Face hub, by name, or from a folder in the hub's format.

    <folder>/data/train-00000-of-00001.parquet     or .arrow, .csv, .json, .jsonl
    <folder>/README.md                             names the splits (optional)

The schema says which columns are read; labels that the set keeps as numbers with names are read as their names. As of
pictures (`fedpriv.data.hub`), a set's code is neither fetched nor run, and the hub is contacted only with
dataset.download=true.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.cache import UNFINISHED, cache_folder
from fedpriv.data.hub import chosen_splits, found_files, reading, set_builder, set_folder
from fedpriv.data.table_files import check_names

if TYPE_CHECKING:
    import pyarrow as pa


def hub_identity(config: DatasetConfig) -> dict[str, Any]:
    """What the rows of a set follow from, for the cache. Fetches the set if that is asked for. Raises `DataError`."""
    files = found_files(config, set_folder(config))
    return {"files": files, "subset": config.subset, "datasets": version("datasets")}


def table_splits(config: DatasetConfig) -> tuple[str, str | None]:
    """(train, test): names of the splits; test is None where the training split is to be divided."""
    root = set_folder(config)
    found_files(config, root)
    with tempfile.TemporaryDirectory() as scratch, reading(config, root):
        builder = set_builder(config, root, scratch)
        return chosen_splits(config, [str(name) for name in builder.as_streaming_dataset()])


def read_split(config: DatasetConfig, names: Sequence[str], split: str) -> pa.Table:
    """These columns of a split. Raises `DataError` for a column that is not there."""
    root, folder = set_folder(config), cache_folder(config) / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    # A copy of the tables, which `datasets` maps into memory. The cache removes it too, where a process died.
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as scratch, reading(config, root):
        builder = set_builder(config, root, scratch)
        if hasattr(builder.config, "converters"):  # of a CSV file: texts as they are written, and no guess of pandas
            builder.config.converters = dict.fromkeys(names, str)
        builder.download_and_prepare()
        found = builder.as_dataset(split=split)
        check_names(f"{config.hub_name or root}, split {split}", found.column_names, names)
        return _with_names(found.select_columns(list(names)))


def _with_names(found: Any) -> pa.Table:
    """A set as a table in memory, with the names of classes for their numbers (-1: missing)."""
    import datasets
    import pyarrow as pa

    columns = {}
    for name, feature in found.features.items():
        column = found.data.column(name)
        if isinstance(feature, datasets.ClassLabel):
            texts = [feature.names[one] if one is not None and one >= 0 else None for one in column.to_pylist()]
            columns[name] = pa.array(texts, pa.string())
        else:
            columns[name] = pa.concat_arrays([_copied(chunk) for chunk in column.chunks])
    return pa.table(columns)


def _copied(chunk: Any) -> Any:
    """Apart from the file that it was mapped from."""
    import pyarrow as pa

    return chunk.take(pa.array(range(len(chunk)), pa.int64()))
