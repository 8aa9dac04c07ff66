"""on_nodes: data in a deployment. Every node has its own examples, the server has test examples; neither sees the
other's.

What all parties must agree on is public, in the run's options: how many training examples every client declares; of
pictures the classes in the order of their labels and the size of a picture, of a table the digest of its schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.config.schema import Config
from fedpriv.data.asked import asks_of
from fedpriv.data.cache import cache_folder, load_arrays
from fedpriv.data.draws import generator
from fedpriv.data.feature_rows import feature_arrays
from fedpriv.data.features import model_input
from fedpriv.data.folders import chosen_classes, class_folders
from fedpriv.data.table_rows import blank_inputs
from fedpriv.data.table_source import encoded_rows, schema_of_dataset, task_of
from fedpriv.data.types import Dataset, Examples, FederatedData
from fedpriv.mechanisms.tasks import of_classes


class DeclaredPartition:
    """Clients' declared numbers of examples, or of persons (int64 [N]). Only this machine's client, if any, has rows
    here, so many.
    """

    def __init__(self, declared: Sequence[int], rows: int) -> None:
        self._declared, self._rows = np.array(declared, dtype=np.int64), rows

    @property
    def num_train(self) -> np.ndarray:
        return self._declared

    @property
    def used(self) -> np.ndarray:
        return np.zeros(0, np.int64)

    @property
    def num_clients(self) -> int:
        return len(self._declared)

    def train(self, client: int) -> np.ndarray:
        return np.arange(self._rows)

    def test(self, client: int) -> np.ndarray:
        return np.zeros(0, np.int64)


class DeclaredData(FederatedData):
    """Data of which the numbers of all clients are declared ones."""

    def counts(self, persons: bool) -> np.ndarray:
        """As declared: of persons where a table's schema names them, whatever the method counts; nobody else's rows are
        here to be counted.
        """
        return self.partition.num_train


def load_on_nodes(config: Config, auxiliary: int) -> FederatedData:
    """On a node (dataset.root is set) its own examples; elsewhere the server's test examples, or none where only a plan
    is made. Raises `OptionError`, `DataError`.
    """
    options = config.dataset
    dataset = _table(options) if options.is_table else _pictures(config)
    if (asked := asks_of(config, dataset.task)) is not None:
        dataset = replace(dataset, task=asked)
    number = len(dataset.test)
    rows = generator(config.seed, "auxiliary").permutation(number)
    if options.test_root is not None and options.root is None and auxiliary >= number:
        words = f"dataset.test_root holds {number} examples, and some are to be tested on"
        raise OptionError("dataset.auxiliary", auxiliary, words)
    partition = DeclaredPartition(options.examples, len(dataset.train))
    return DeclaredData(dataset, partition, np.sort(rows[:auxiliary]), np.sort(rows[auxiliary:]))


def count_pictures(folder: Path, classes: Sequence[str]) -> int:
    """Number of picture files in a node's folder. Raises `DataError`."""
    return len(chosen_classes(folder, classes))


def _table(options: DatasetConfig) -> Dataset:
    schema = schema_of_dataset(options)
    if options.schema_digest not in (None, schema.digest):
        words = f"the schema in {options.schema_file} is another, {schema.digest}"
        raise OptionError("dataset.schema_digest", options.schema_digest, words)
    task = task_of(schema)

    def part(file: str | None) -> Examples:
        if file is not None:
            return encoded_rows(options, file, schema, on_node=True)[0]
        targets = np.zeros((0, *task.target_shape), task.target_dtype)
        return Examples(blank_inputs(schema, 0), targets)

    train, test = part(options.root), part(options.test_root if options.root is None else None)
    return Dataset(options.name, train, test, task, schema=schema, vocabulary=schema.vocabulary)


def _pictures(config: Config) -> Dataset:
    options, constants = config.dataset, (0.5,) * config.dataset.channels  # public; never a mean of pictures
    train = _part(config, "dataset.root", options.root)
    test = _part(config, "dataset.test_root", options.test_root if options.root is None else None)
    shape = (options.channels, train.inputs.shape[2], train.inputs.shape[3])
    read = None if train.features is None else model_input(config.features, shape)
    return Dataset(options.name, train, test, of_classes(options.classes), constants, constants, read)


def _part(config: Config, option: str, folder: str | None) -> Examples:
    """With their public features, which this machine computes itself and keeps in its own cache."""
    options, cache = config.dataset, cache_folder(config.dataset)
    if folder is None:
        shape = (0, options.channels, options.size, options.size)
        nothing: np.ndarray = np.zeros(shape, np.uint8)  # type: ignore[arg-type, type-var]
        return _with_features(config, nothing, np.zeros(0, np.int64), None)
    if not Path(folder).is_dir():
        raise DataError(f"{option}={folder}: there is no such folder; it must hold one folder per class")
    source = class_folders(options, Path(folder))
    arrays = load_arrays(source, cache)
    return _with_features(config, arrays.images, arrays.labels, source.identity)


def _with_features(config: Config, images: np.ndarray, labels: np.ndarray, identity: dict[str, Any] | None) -> Examples:
    found = feature_arrays(config.features, images, identity, cache_folder(config.dataset))
    return Examples(images, labels, None if found is None else found.rows(0, len(labels)))
