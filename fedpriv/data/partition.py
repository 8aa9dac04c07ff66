"""Partition of the examples among clients: flwr-datasets' partitioners over the labels, computed once and cached."""

from __future__ import annotations

import hashlib
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedpriv.common.errors import OptionError
from fedpriv.common.versions import installed
from fedpriv.config.checks import check_resampled
from fedpriv.config.data_schema import (
    ColumnPartition,
    DirichletPartition,
    IidPartition,
    PartitionBase,
    PathologicalPartition,
    ResampledPartition,
    ShardsPartition,
)
from fedpriv.data.cache import damaged, entry
from fedpriv.data.draws import generator
from fedpriv.data.types import Examples, Partition
from fedpriv.data.types import ResampledPartition as Resampled
from fedpriv.mechanisms.tasks import Classification, Task


def partition_clients(
    labels: np.ndarray,
    config: PartitionBase,
    num_clients: int,
    seed: int,
    cache: Path,
    unit: np.ndarray | None = None,
) -> Partition | Resampled:
    """Partitions the training examples with these `labels` (int64 [n]) among the clients; all rows of a ``unit`` (int64
    [n]) go to one client, and to one of its two parts. A unit's label is that of its first row.

    Deterministic in its arguments. With `iid` and `dirichlet` every example belongs to exactly one client. With
    `shards` those left over by the division into equal shards are unused, with `pathological` those of classes
    that no client holds. With `resampled` clients share examples, and nothing is assigned beforehand.

    Raises `OptionError` with the numbers where the request is impossible.
    """
    if unit is not None:
        _, first, member = np.unique(unit, return_index=True, return_inverse=True)
        found = partition_clients(labels[first], config, num_clients, seed, cache)
        if isinstance(found, Resampled):
            words = "clients would share persons, of whom the table has several rows; allowed: another partition"
            raise OptionError("partition", "resampled", words)
        return found.of_units(member)
    if isinstance(config, ResampledPartition):
        check_resampled(config, len(labels))
        examples = config.examples_per_client
        return Resampled(len(labels), examples, _num_test(examples, config.test_fraction), num_clients, seed)
    _check(labels, config, num_clients)
    identity = {
        "labels": hashlib.sha256(np.ascontiguousarray(labels, dtype=np.int64).tobytes()).hexdigest(),
        "partition": config.model_dump(),
        "num_clients": num_clients,
        "seed": seed,
        "versions": {library: installed(library) for library in ("flwr-datasets", "datasets", "numpy")},
    }

    def write(unfinished: Path) -> None:
        clients = _with_flwr_datasets(labels, config, num_clients, seed)
        partition = _split_each(clients, config.test_fraction, seed)
        np.savez(unfinished / "partition.npz", **vars(partition))

    stored = entry(cache / "partitions", identity, write)
    try:
        state = (stored / "partition.npz").stat()
        return _read(stored / "partition.npz", state.st_mtime_ns, state.st_size)
    except (OSError, ValueError, TypeError, BadZipFile) as error:
        raise damaged(stored, error) from error


def labels_of(examples: Examples, task: Task, config: PartitionBase) -> np.ndarray:
    """What a partition divides by (int64 [n]): classes; of other targets nothing, so that only some partitions can."""
    if isinstance(task, Classification):
        return examples.targets
    if not isinstance(config, IidPartition | ResampledPartition):
        words = f"task={task.name} has no classes to divide by; allowed: iid, resampled, column"
        raise OptionError("partition", config.name, words)  # type: ignore[attr-defined]
    return np.zeros(len(examples), np.int64)


def by_column(
    examples: Examples, config: ColumnPartition, sites: tuple[str, ...], num_clients: int, seed: int
) -> Partition:
    """Every value of the column `partition.column` is a client, in the order of their names. Raises `OptionError`."""
    if examples.site is None:
        raise OptionError("partition", "column", "only a table has columns; allowed with dataset=table")
    if len(sites) != num_clients:
        shown = ", ".join(sites[:8]) + (", ..." if len(sites) > 8 else "")
        words = f"the column {config.column} has {len(sites)} values ({shown}): one client each"
        raise OptionError("num_clients", num_clients, words)
    unit = np.arange(len(examples)) if examples.unit is None else examples.unit
    _, first, member = np.unique(unit, return_index=True, return_inverse=True)
    if (examples.site[first][member] != examples.site).any():
        moved = int(np.argmax(examples.site[first][member] != examples.site))
        words = f"the person of row {moved + 1} has rows at two clients; a person at two sites counts as two units"
        raise OptionError("partition.column", config.column, words)
    clients = [np.flatnonzero(examples.site[first] == site) for site in range(num_clients)]
    empty = [sites[site] for site, rows in enumerate(clients) if not len(rows)]
    if empty:
        raise OptionError("partition.column", config.column, f"no training row has {empty[0]}")
    return _split_each(clients, config.test_fraction, seed).of_units(member)


@lru_cache(maxsize=4)
def _read(file: Path, changed: int, size: int) -> Partition:
    """A stored partition, for all runs of this process and so not to be written to; read anew where it has changed."""
    with np.load(file, allow_pickle=False) as stored:
        arrays = dict(stored)
    for array in arrays.values():
        array.setflags(write=False)
    return Partition(**arrays)


def split_test_set(num_test: int, auxiliary: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(auxiliary, reported): disjoint rows of the test set, ascending, together all of it."""
    if auxiliary >= num_test:
        raise OptionError(
            "dataset.auxiliary", auxiliary, f"there are {num_test} test examples and one must remain for testing"
        )
    order = generator(seed, "auxiliary").permutation(num_test)
    return np.sort(order[:auxiliary]), np.sort(order[auxiliary:])


def _check(labels: np.ndarray, config: PartitionBase, num_clients: int) -> None:
    """Checks that need no partition."""
    examples, classes = len(labels), len(np.unique(labels))
    if num_clients > examples:
        raise OptionError("num_clients", num_clients, f"each client needs one of {examples} training examples")
    if isinstance(config, PathologicalPartition) and config.classes_per_client > classes:
        raise OptionError(
            "partition.classes_per_client", config.classes_per_client, f"the training examples have {classes} classes"
        )
    if isinstance(config, DirichletPartition) and config.min_examples * num_clients > examples:
        raise OptionError(
            "partition.min_examples",
            config.min_examples,
            f"{num_clients} clients would need {config.min_examples * num_clients} training examples, "
            f"there are {examples}",
        )
    if isinstance(config, ShardsPartition) and config.shards_per_client * num_clients > examples:
        raise OptionError(
            "partition.shards_per_client",
            config.shards_per_client,
            f"{num_clients} clients would need {config.shards_per_client * num_clients} shards, "
            f"there are {examples} training examples",
        )


def _split_each(clients: list[np.ndarray], test_fraction: float, seed: int) -> Partition:
    """Separates every client's local test set; at least one example is left for training."""
    rng = generator(seed, "client-test")
    indices, num_train = [], []
    for rows in clients:
        rows = rng.permutation(rows)
        kept = len(rows) - _num_test(len(rows), test_fraction)
        indices += [np.sort(rows[:kept]), np.sort(rows[kept:])]
        num_train.append(kept)
    offsets = np.cumsum([0, *(len(rows) for rows in clients)])
    return Partition(np.concatenate(indices).astype(np.int64), offsets, np.array(num_train))


def _num_test(examples: int, test_fraction: float) -> int:
    return min(round(examples * test_fraction), examples - 1)


# --- flwr-datasets ---------------------------------------------------------------------------------------


def _with_flwr_datasets(labels: np.ndarray, config: PartitionBase, num_clients: int, seed: int) -> list[np.ndarray]:
    """Rows (int64) of every client."""
    # Imported here: it loads pandas, pyarrow and seaborn, takes at least seven seconds, and is not needed by the
    # workers, which find the finished partition in the cache.
    import datasets

    # Shuffled before any partitioner: IidPartitioner hands out contiguous blocks: from a set sorted by class,
    # each client would get one class.
    order = generator(seed, "partition").permutation(len(labels))
    table = datasets.Dataset.from_dict({"label": labels[order], "row": order})
    partitioner, parts_per_client = _partitioner(config, labels, num_clients, seed)
    partitioner.dataset = table
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one per attempt of Dirichlet; real problems are raised
        try:
            parts = [np.array(partitioner.load_partition(part)["row"][:]) for part in range(partitioner.num_partitions)]
        except ValueError as error:
            raise _impossible(config, num_clients, len(labels), error) from error
    return [np.concatenate(parts[start : start + parts_per_client]) for start in range(0, len(parts), parts_per_client)]


def _partitioner(config: PartitionBase, labels: np.ndarray, num_clients: int, seed: int) -> tuple[Any, int]:
    """(the partitioner, how many of its consecutive parts make up a client)."""
    from flwr_datasets import partitioner as flwr

    # `shuffle` reorders a part's rows, which we reorder anyway.
    common = {"partition_by": "label", "shuffle": False, "seed": int(generator(seed, "partitioner").integers(2**31))}
    match config:
        case IidPartition():
            return flwr.IidPartitioner(num_clients), 1
        case DirichletPartition():
            return flwr.DirichletPartitioner(
                num_clients, alpha=config.alpha, min_partition_size=config.min_examples, **common
            ), 1
        case ShardsPartition():
            return flwr.ShardPartitioner(num_clients, num_shards_per_partition=config.shards_per_client, **common), 1
        case PathologicalPartition():
            num_classes = len(np.unique(labels))
            if num_clients >= num_classes:
                # Client k holds class k (mod the number of classes), so no class goes unused; the others of its
                # classes are drawn by seed. This is the mode of the paper, arXiv:2102.02079.
                return flwr.PathologicalPartitioner(
                    num_clients,
                    num_classes_per_partition=config.classes_per_client,
                    class_assignment_mode="first-deterministic",
                    **common,
                ), 1
            # With fewer clients than classes that mode leaves classes out. Dealing out single classes in turn,
            # classes_per_client to each client, uses every class as soon as there are enough places.
            return flwr.PathologicalPartitioner(
                num_clients * config.classes_per_client,
                num_classes_per_partition=1,
                class_assignment_mode="deterministic",
                **common,
            ), config.classes_per_client
    raise TypeError(f"no partitioner for {type(config).__name__}")


def _impossible(config: PartitionBase, num_clients: int, examples: int, error: ValueError) -> OptionError:
    if isinstance(config, DirichletPartition):
        return OptionError(
            "partition.alpha",
            config.alpha,
            f"in 10 attempts no division of {examples} training examples gave each of {num_clients} clients "
            f"{config.min_examples}; raise alpha, or lower num_clients or partition.min_examples",
        )
    if isinstance(config, PathologicalPartition):
        return OptionError("partition.classes_per_client", config.classes_per_client, f"{num_clients} clients: {error}")
    return OptionError("partition", config.model_dump(), str(error))
