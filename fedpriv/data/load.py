"""Examples: read, cached, and partitioned among clients.

>>> data = load_federated(config)
>>> rows = data.train_indices(client=3)

In a deployment (on_nodes) every node has its own examples and the server has test examples; neither sees the other's.
What all parties must agree on is public, in the run's options: how many training examples every client declares; of
pictures the classes in the order of their labels and the size of a picture, of a table the digest of its schema.

Heavy libraries (torch, torchvision, scikit-learn, datasets) are imported only where needed, so that every worker of a
run loads cached data within milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.data_schema import ColumnPartition, DatasetConfig, FeaturesConfig
from fedpriv.config.methods import AskOptions
from fedpriv.config.schema import Config
from fedpriv.data.asked import asks_of
from fedpriv.data.cache import cache_folder
from fedpriv.data.features import feature_rows
from fedpriv.data.partition import (
    at_most_each,
    by_column,
    check_split,
    chosen_examples,
    labels_of,
    partition_clients,
    read_split,
    split_test_set,
)
from fedpriv.data.sources import class_folders, find_source, load_pictures
from fedpriv.data.table_rows import blank_inputs, encoded_rows, load_table, schema_of_dataset, task_of
from fedpriv.data.types import Dataset, Examples, FederatedData, Partition, ResampledPartition, Source, generator
from fedpriv.mechanisms.tasks import of_classes

#: name -> (mean, standard deviation) per channel, as commonly used: public constants of public data sets.
NORMALISATION = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def load_dataset(
    config: DatasetConfig,
    seed: int,
    features: FeaturesConfig | None = None,
    site_column: str | None = None,
    whole: bool = False,
) -> Dataset:
    """The data set of the configuration, from the cache where it has been decoded before; with ``features`` that a
    model reads in place of the pictures. whole: of a table keep no rows for tests.

    `seed` determines the split into training and test examples of the user's own data and hub sets without one.
    Raises `DataError` or `OptionError` where the examples are missing, broken, or do not fit the options.
    """
    if config.is_table:
        return load_table(config, seed, site_column, whole)
    pool, classes, num_train, sites = _pictures(config, find_source(config, seed, site_column), features)
    return _of_pictures(config, pool.between(0, num_train), pool.between(num_train, len(pool)), classes, sites)


def load_pool(
    config: DatasetConfig, seed: int, features: FeaturesConfig | None = None, site_column: str | None = None
) -> Dataset:
    """All examples, training examples first, as both training and test examples: for the caller's own split."""
    if config.is_table:
        dataset = load_table(config, seed, site_column)
        both = dataset.train.and_then(dataset.test)
        return replace(dataset, train=both, test=both)
    pool, classes, _, sites = _pictures(config, find_source(config, seed, site_column), features)
    return _of_pictures(config, pool, pool, classes, sites)


def _pictures(
    config: DatasetConfig, source: Source, features: FeaturesConfig | None
) -> tuple[Examples, tuple[str, ...], int, tuple[str, ...]]:
    """`load_pictures`, with the pictures' features."""
    pictures, classes, num_train, sites = load_pictures(source, cache_folder(config))
    rows = feature_rows(features, pictures.inputs, source.identity, cache_folder(config))
    return replace(pictures, features=rows), classes, num_train, sites


def _of_pictures(
    config: DatasetConfig, train: Examples, test: Examples, classes: tuple[str, ...], sites: tuple[str, ...] = ()
) -> Dataset:
    channels = train.inputs.shape[1]
    # Constants, never the mean of the pictures at hand: those are private, and a statistic of them inside
    # every model would be a release that is in no ledger.
    mean, std = NORMALISATION.get(config.name, ((0.5,) * channels, (0.5,) * channels))
    shape = None if train.features is None else train.features.shape
    return Dataset(config.hub_name or config.name, train, test, of_classes(classes), mean, std, shape, sites)


def load_federated(config: Config, auxiliary: int = 0) -> FederatedData:
    """The data set partitioned among the clients, with `auxiliary` public examples taken from its test set.

    Raises `OptionError` with the numbers where the partition is impossible, and the errors of `load_dataset`. With
    strategy=ask there are questions in place of the task, about all rows of a table.
    """
    options, asks = config.dataset, isinstance(config.strategy.options, AskOptions)
    if asks and options.is_table:
        asks_of(config)  # refused before any row is read
    if options.name == "on_nodes":
        return _load_on_nodes(config, auxiliary)
    column = getattr(config.partition, "column", None)
    if options.split is None:
        dataset = load_dataset(options, config.seed, config.features, column, whole=asks)
        rows = chosen_examples(len(dataset.train), options.train_examples, config.seed)
        tested = np.arange(len(dataset.test))
    else:
        split = read_split(options.split)
        dataset = load_pool(options, split.seed, config.features, column)
        check_split(options.split, split, len(dataset.train))
        rows, tested = split.train, split.test
    public, reported = tested, tested
    if not asks or len(tested):
        public, reported = split_test_set(len(tested), auxiliary, config.seed)
    chosen = dataset.train.chosen(rows)
    if chosen.unit is not None and (most := config.privacy.rows_per_person) is not None:
        kept = at_most_each(chosen.unit, most, config.seed)
        rows, chosen = rows[kept], chosen.chosen(kept)
    if isinstance(config.partition, ColumnPartition):
        partition: Partition | ResampledPartition = by_column(
            chosen, config.partition, dataset.sites, config.num_clients, config.seed
        )
    else:
        labels = labels_of(chosen, dataset.task, config.partition, dataset.sites)
        partition = partition_clients(
            labels, config.partition, config.num_clients, config.seed, cache_folder(options), chosen.unit
        )
    dataset = replace(dataset, task=asks_of(config, dataset.task) or dataset.task)
    return FederatedData(dataset, partition.among(rows), auxiliary=tested[public], test=tested[reported])


# --- on nodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeclaredPartition:
    """num_train: clients' declared numbers of examples, or of persons (int64 [N]). Only this machine's client, if any,
    has ``rows`` here, so many.
    """

    num_train: np.ndarray
    rows: int

    @property
    def used(self) -> np.ndarray:
        return np.zeros(0, np.int64)

    @property
    def num_clients(self) -> int:
        return len(self.num_train)

    def train(self, client: int) -> np.ndarray:
        return np.arange(self.rows)

    def test(self, client: int) -> np.ndarray:
        return np.zeros(0, np.int64)


class DeclaredData(FederatedData):
    """Data of which the numbers of all clients are declared ones."""

    def counts(self, persons: bool) -> np.ndarray:
        """As declared: of persons where a table's schema names them, whatever the method counts; nobody else's rows are
        here to be counted.
        """
        return self.partition.num_train


def _load_on_nodes(config: Config, auxiliary: int) -> FederatedData:
    """On a node (dataset.root is set) its own examples; elsewhere the server's test examples, or none where only a plan
    is made. Raises `OptionError`, `DataError`.
    """
    options = config.dataset
    files = options.root, options.test_root if options.root is None else None
    if options.is_table:
        schema = schema_of_dataset(options)
        if options.schema_digest not in (None, schema.digest):
            words = f"the schema in {options.schema_file} is another, {schema.digest}"
            raise OptionError("dataset.schema_digest", options.schema_digest, words)
        task = task_of(schema)
        nothing = Examples(blank_inputs(schema, 0), np.zeros((0, *task.target_shape), task.target_dtype))
        train, test = (
            nothing if file is None else encoded_rows(options, file, schema, on_node=True)[0] for file in files
        )
        dataset = Dataset(options.name, train, test, task, schema=schema, vocabulary=schema.vocabulary)
    else:
        names = ("dataset.root", "dataset.test_root")
        train, test = (_of_folder(config, name, file) for name, file in zip(names, files, strict=True))
        dataset = _of_pictures(options, train, test, options.classes)
    dataset = replace(dataset, task=asks_of(config, dataset.task) or dataset.task)
    number = len(dataset.test)
    order = generator(config.seed, "auxiliary").permutation(number)
    if options.test_root is not None and options.root is None and auxiliary >= number:
        words = f"dataset.test_root holds {number} examples, and some are to be tested on"
        raise OptionError("dataset.auxiliary", auxiliary, words)
    partition = DeclaredPartition(np.array(options.examples, np.int64), len(dataset.train))
    return DeclaredData(dataset, partition, np.sort(order[:auxiliary]), np.sort(order[auxiliary:]))


def _of_folder(config: Config, option: str, folder: str | None) -> Examples:
    """Its pictures with their public features, which this machine computes itself and keeps in its own cache."""
    options = config.dataset
    if folder is None:
        assert options.size is not None
        nothing = np.zeros((0, options.channels, options.size, options.size), np.uint8)
        rows = feature_rows(config.features, nothing, None, cache_folder(options))
        return Examples(nothing, np.zeros(0, np.int64), rows)
    if not Path(folder).is_dir():
        raise DataError(f"{option}={folder}: there is no such folder; it must hold one folder per class")
    return _pictures(options, class_folders(options, Path(folder)), config.features)[0]


def check_declared(config: Config, client: int, data: FederatedData) -> None:
    """Raises `DataError` where a node's folder no longer holds what it declared: n_k is public and fixed."""
    train, declared = data.dataset.train, data.num_examples(client)
    number = len(train) if train.unit is None else len(np.unique(train.unit))
    if number != declared:
        what = "pictures" if not config.dataset.is_table else "rows" if train.unit is None else "persons"
        raise DataError(f"{config.dataset.root}: {number} {what}, declared were {declared}; declare the new number")
