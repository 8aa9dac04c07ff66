"""Examples: read, cached, and partitioned among clients.

>>> data = load_federated(config)
>>> rows = data.train_indices(client=3)

Heavy libraries (torch, torchvision, scikit-learn, datasets) are imported only where needed, so that every worker of a
run loads cached data within milliseconds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedpriv.common.errors import DataError
from fedpriv.config.data_schema import ColumnPartition, DatasetConfig, FeaturesConfig
from fedpriv.config.methods import AskOptions
from fedpriv.config.schema import Config
from fedpriv.data.asked import asks_of
from fedpriv.data.cache import cache_folder, load_arrays
from fedpriv.data.feature_rows import feature_arrays
from fedpriv.data.partition import by_column, labels_of, partition_clients, split_test_set
from fedpriv.data.sources import find_source
from fedpriv.data.splits import at_most_each, check_split, chosen_examples, read_split
from fedpriv.data.table_source import load_table
from fedpriv.data.types import Dataset, Examples, FederatedData, Partition, ResampledPartition
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
    source = find_source(config, seed)
    arrays = load_arrays(source, cache_folder(config))
    channels, total = arrays.images.shape[1], len(arrays.labels)
    # Constants, never the mean of the pictures at hand: those are private, and a statistic of them inside
    # every model would be a release that is in no ledger.
    mean, std = NORMALISATION.get(config.name, ((0.5,) * channels, (0.5,) * channels))
    found = feature_arrays(features, arrays.images, source.identity, cache_folder(config))

    def part(start: int, stop: int) -> Examples:
        rows = None if found is None else found.rows(start, stop)
        return Examples(arrays.images[start:stop], arrays.labels[start:stop], rows)

    return Dataset(
        name=config.hub_name or config.name,
        train=part(0, arrays.num_train),
        test=part(arrays.num_train, total),
        task=of_classes(arrays.classes),
        mean=mean,
        std=std,
        input_shape=None if found is None else found.input_shape,
    )


def load_federated(config: Config, auxiliary: int = 0) -> FederatedData:
    """The data set partitioned among the clients, with `auxiliary` public examples taken from its test set.

    Raises `OptionError` with the numbers where the partition is impossible, and the errors of `load_dataset`. With
    strategy=ask there are questions in place of the task, about all rows of a table.
    """
    options, asks = config.dataset, isinstance(config.strategy.options, AskOptions)
    if asks and options.is_table:
        asks_of(config)  # refused before any row is read
    if options.name == "on_nodes":
        from fedpriv.data.on_nodes import load_on_nodes  # deployments only

        return load_on_nodes(config, auxiliary)
    if options.split is None:
        column = config.partition.column if isinstance(config.partition, ColumnPartition) else None
        dataset = load_dataset(options, config.seed, config.features, column, whole=asks)
        rows = chosen_examples(len(dataset.train), options.train_examples, config.seed)
        tested = np.arange(len(dataset.test))
    else:
        split = read_split(options.split)
        column = config.partition.column if isinstance(config.partition, ColumnPartition) else None
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
        labels = labels_of(chosen, dataset.task, config.partition)
        partition = partition_clients(
            labels, config.partition, config.num_clients, config.seed, cache_folder(options), chosen.unit
        )
    asked = asks_of(config, dataset.task)
    dataset = dataset if asked is None else replace(dataset, task=asked)
    return FederatedData(dataset, partition.among(rows), auxiliary=tested[public], test=tested[reported])


def check_declared(config: Config, client: int, data: FederatedData) -> None:
    """Raises `DataError` where a node's folder no longer holds what it declared: n_k is public and fixed."""
    train, declared = data.dataset.train, data.num_examples(client)
    found = len(train) if train.unit is None else len(np.unique(train.unit))
    if found != declared:
        what = "pictures" if not config.dataset.is_table else "rows" if train.unit is None else "persons"
        raise DataError(f"{config.dataset.root}: {found} {what}, declared were {declared}; declare the new number")


def load_pool(
    config: DatasetConfig, seed: int, features: FeaturesConfig | None = None, site_column: str | None = None
) -> Dataset:
    """All examples, training examples first, as both training and test examples: for the caller's own split."""
    if config.is_table:
        own = load_table(config, seed, site_column)
        both = own.train.and_then(own.test)
        return replace(own, train=both, test=both)
    source = find_source(config, seed)
    arrays = load_arrays(source, cache_folder(config))
    own = load_dataset(config, seed, features)
    found = feature_arrays(features, arrays.images, source.identity, cache_folder(config))
    pictures = Examples(arrays.images, arrays.labels, None if found is None else found.rows(0, len(arrays.labels)))
    return replace(own, train=pictures, test=pictures)
