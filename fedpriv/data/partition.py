"""Divisions of examples: into training and test rows, and among clients by flwr-datasets' partitioners over the labels,
computed once and cached.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.places import code_at
from fedpriv.common.versions import installed
from fedpriv.config.checks import check_resampled
from fedpriv.config.data_schema import (
    ColumnPartition,
    DirichletPartition,
    IidPartition,
    PartitionBase,
    PartitionerPartition,
    PathologicalPartition,
    ResampledPartition,
    ShardsPartition,
)
from fedpriv.config.source_files import files_of
from fedpriv.data.cache import stored
from fedpriv.data.types import Examples, Partition, generator
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
    """Partitions the training examples with these `labels` ([n], of `labels_of`) among the clients; all rows of a
    ``unit`` (int64 [n]) go to one client, and to one of its two parts. A unit's label is that of its first row.

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
        "labels": hashlib.sha256(np.ascontiguousarray(labels).tobytes()).hexdigest(),
        "partition": config.model_dump(),
        "num_clients": num_clients,
        "seed": seed,
        "versions": {library: installed(library) for library in ("flwr-datasets", "datasets", "numpy")},
    }
    named = config if isinstance(config, PartitionerPartition) else None
    if named is not None and "." in named.partitioner:
        identity["files"] = files_of(named.partitioner)

    def write(unfinished: Path) -> None:
        if named is None:
            clients = _with_flwr_datasets(labels, config, num_clients, seed)
        else:
            clients = _by_name(labels, named, num_clients, seed)
        partition = _split_each(clients, config.test_fraction, seed)
        np.savez(unfinished / "partition.npz", **vars(partition))

    def read(folder: Path) -> Partition:
        state = (folder / "partition.npz").stat()
        return _read(folder / "partition.npz", state.st_mtime_ns, state.st_size)

    return stored(cache / "partitions", identity, write, read)


def labels_of(examples: Examples, task: Task, config: PartitionBase, sites: tuple[str, ...] = ()) -> np.ndarray:
    """What a partition divides by ([n]): classes (int64); of other targets nothing, so that only some partitions can.
    A partitioner by name divides by targets as they are, or by its column (texts).
    """
    if isinstance(config, PartitionerPartition):
        if config.column is None:
            return examples.targets
        if examples.site is None or (examples.site < 0).any():
            raise OptionError("partition.column", config.column, "not every training example has a value of it")
        return np.array(sites)[examples.site]
    if isinstance(task, Classification):
        return examples.targets
    if not isinstance(config, IidPartition | ResampledPartition):
        words = f"task={task.name} has no classes to divide by; allowed: iid, resampled, column"
        raise OptionError("partition", config.name, words)  # type: ignore[attr-defined]
    return np.zeros(len(examples), np.int64)


def by_column(
    examples: Examples, config: ColumnPartition, sites: tuple[str, ...], num_clients: int, seed: int
) -> Partition:
    """Every value of the column `partition.column` is a client, in the order of their names. A person may be at several
    clients; their rows at one of them stay together. Raises `OptionError`.
    """
    if examples.site is None:
        raise OptionError(
            "partition", "column", "the examples have no columns; allowed with dataset=table, huggingface and custom"
        )
    if len(sites) != num_clients:
        shown = ", ".join(sites[:8]) + (", ..." if len(sites) > 8 else "")
        words = f"the column {config.column} has {len(sites)} values ({shown}): one client each"
        raise OptionError("num_clients", num_clients, words)
    if nobody := int((examples.site < 0).sum()):
        words = f"{nobody} of the examples that dataset.split trains on are of nobody with training examples of the set"
        raise OptionError("partition.column", config.column, words)
    unit = np.arange(len(examples)) if examples.unit is None else examples.unit
    persons = np.unique(unit, return_inverse=True)[1]
    _, first, member = np.unique(persons * len(sites) + examples.site, return_index=True, return_inverse=True)
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
        words = f"there are {num_test} test examples and one must remain for testing"
        raise OptionError("dataset.auxiliary", auxiliary, words)
    order = generator(seed, "auxiliary").permutation(num_test)
    return np.sort(order[:auxiliary]), np.sort(order[auxiliary:])


def _check(labels: np.ndarray, config: PartitionBase, num_clients: int) -> None:
    """Checks that need no partition."""
    examples, classes = len(labels), len(np.unique(labels))
    if num_clients > examples:
        raise OptionError("num_clients", num_clients, f"each client needs one of {examples} training examples")
    if isinstance(config, PathologicalPartition) and config.classes_per_client > classes:
        words = f"the training examples have {classes} classes"
        raise OptionError("partition.classes_per_client", config.classes_per_client, words)
    for kind, option, what in (
        (DirichletPartition, "min_examples", "training examples, there are {}"),
        (ShardsPartition, "shards_per_client", "shards, there are {} training examples"),
    ):
        if isinstance(config, kind) and (needed := getattr(config, option) * num_clients) > examples:
            words = f"{num_clients} clients would need {needed} {what.format(examples)}"
            raise OptionError(f"partition.{option}", getattr(config, option), words)


def _split_each(clients: list[np.ndarray], test_fraction: float, seed: int) -> Partition:
    """Separates every client's local test set; at least one example is left for training."""
    rng = generator(seed, "client-test")
    parts = []
    for rows in map(rng.permutation, clients):
        kept = len(rows) - _num_test(len(rows), test_fraction)
        parts += [np.sort(rows[:kept]), np.sort(rows[kept:])]
    return Partition.of_parts(parts)


def _num_test(examples: int, test_fraction: float) -> int:
    return min(round(examples * test_fraction), examples - 1)


# --- flwr-datasets ---------------------------------------------------------------------------------------


def _with_flwr_datasets(labels: np.ndarray, config: PartitionBase, num_clients: int, seed: int) -> list[np.ndarray]:
    """Rows (int64) of every client."""
    partitioner, parts_per_client = _partitioner(config, labels, num_clients, seed)
    try:
        parts = _parts(partitioner, labels, seed)
    except ValueError as error:
        raise _impossible(config, num_clients, len(labels), error) from error
    return [np.concatenate(parts[start : start + parts_per_client]) for start in range(0, len(parts), parts_per_client)]


def _parts(partitioner: Any, labels: np.ndarray, seed: int) -> list[np.ndarray]:
    """Rows (int64) of every part that a partitioner of flwr-datasets makes of the column "label"."""
    # Imported here: it loads pandas, pyarrow and seaborn, takes at least seven seconds, and is not needed by the
    # workers, which find the finished partition in the cache.
    import datasets

    # Shuffled before any partitioner: IidPartitioner hands out contiguous blocks: from a set sorted by class,
    # each client would get one class.
    order = generator(seed, "partition").permutation(len(labels))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one per attempt of Dirichlet; real problems are raised
        partitioner.dataset = datasets.Dataset.from_dict({"label": labels[order], "row": order})
        return [np.array(partitioner.load_partition(part)["row"][:]) for part in range(partitioner.num_partitions)]


def _partitioner(config: PartitionBase, labels: np.ndarray, num_clients: int, seed: int) -> tuple[Any, int]:
    """(the partitioner, how many of its consecutive parts make up a client)."""
    from flwr_datasets import partitioner as flwr

    # `shuffle` reorders a part's rows, which we reorder anyway.
    common = {"partition_by": "label", "shuffle": False, "seed": int(generator(seed, "partitioner").integers(2**31))}
    match config:
        case IidPartition():
            return flwr.IidPartitioner(num_clients), 1
        case DirichletPartition():
            least = config.min_examples
            return flwr.DirichletPartitioner(num_clients, alpha=config.alpha, min_partition_size=least, **common), 1
        case ShardsPartition():
            return flwr.ShardPartitioner(num_clients, num_shards_per_partition=config.shards_per_client, **common), 1
        case PathologicalPartition():
            # Client k holds class k (mod the number of classes), so no class goes unused; the others of its
            # classes are drawn by seed. This is the mode of the paper, arXiv:2102.02079.
            parts, classes, mode = 1, config.classes_per_client, "first-deterministic"
            if num_clients < len(np.unique(labels)):
                # With fewer clients than classes that mode leaves classes out. Dealing out single classes in turn,
                # classes_per_client to each client, uses every class as soon as there are enough places.
                parts, classes, mode = classes, 1, "deterministic"
            chosen = {"num_classes_per_partition": classes, "class_assignment_mode": mode}
            return flwr.PathologicalPartitioner(num_clients * parts, **chosen, **common), parts
    raise TypeError(f"no partitioner for {type(config).__name__}")


def _by_name(labels: np.ndarray, config: PartitionerPartition, num_clients: int, seed: int) -> list[np.ndarray]:
    """Rows (int64) of every client, by a partitioner of flwr-datasets or code of the user's. Raises `OptionError`."""
    from flwr_datasets import partitioner as flwr

    module, _, name = config.partitioner.rpartition(".")
    arguments = config.arguments or {}
    known = sorted(one for one in flwr.__all__ if one != "Partitioner" and not one.startswith("Vertical"))
    if not module and name not in known:
        words = f"no such partitioner of rows; allowed: {', '.join(known)}, or package.module.NAME"
        raise OptionError("partition.partitioner", config.partitioner, words)
    found = code_at("partition.partitioner", config.partitioner) if module else getattr(flwr, name)
    try:
        if isinstance(found, type) and issubclass(found, flwr.Partitioner):
            drawn = int(generator(seed, "partitioner").integers(2**31))
            usual = {"num_partitions": num_clients, "partition_by": "label", "seed": drawn}
            takes = inspect.signature(found).parameters
            partitioner = found(**{word: value for word, value in usual.items() if word in takes} | arguments)
            given = _parts(partitioner, labels, seed)
        else:
            given = found(labels, num_clients, seed, **arguments)
        parts = [np.asarray(rows, dtype=np.int64).ravel() for rows in given]
    except OptionError:
        raise
    except Exception as error:  # a library's or the user's code
        words = f"raised {type(error).__name__}: {error}"
        raise OptionError("partition.partitioner", config.partitioner, words) from error
    held = np.concatenate([np.zeros(0, np.int64), *parts])
    if len(parts) != num_clients:
        raise OptionError("num_clients", num_clients, f"{config.partitioner} makes {len(parts)} clients")
    if empty := [client for client, rows in enumerate(parts) if not len(rows)]:
        words = f"client {empty[0]} has no example"
    elif len(np.unique(held)) < len(held):
        words = "clients share examples"
    elif not 0 <= held.min() <= held.max() < len(labels):
        words = f"rows must be 0 to {len(labels) - 1}, not {held.min()} to {held.max()}"
    else:
        return parts
    raise OptionError("partition.partitioner", config.partitioner, words)


def _impossible(config: PartitionBase, num_clients: int, examples: int, error: ValueError) -> OptionError:
    if isinstance(config, DirichletPartition):
        words = f"in 10 attempts no division of {examples} training examples gave each of {num_clients} clients"
        ways = "raise alpha, or lower num_clients or partition.min_examples"
        return OptionError("partition.alpha", config.alpha, f"{words} {config.min_examples}; {ways}")
    if isinstance(config, PathologicalPartition):
        return OptionError("partition.classes_per_client", config.classes_per_client, f"{num_clients} clients: {error}")
    return OptionError("partition", config.model_dump(), str(error))


@dataclass(frozen=True)
class Split:
    """Disjoint rows (int64, ascending) of all examples, the set's training examples first.

    seed: seed of the pool, where the pool depends on one (image_folder, huggingface).
    """

    train: np.ndarray
    test: np.ndarray
    seed: int = 0


def divide_by_class(labels: np.ndarray, test_fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, test rows), the same share of every class, class after class and ascending in each.

    Every class keeps at least one training example and, if it has two or more, at least one test example. Raises
    `DataError` where no test example results.
    """
    rng = generator(seed, "train-test")
    train: list[np.ndarray] = []
    test: list[np.ndarray] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        num_test = min(max(round(len(rows) * test_fraction), 1), len(rows) - 1)
        test.append(np.sort(rows[:num_test]))
        train.append(np.sort(rows[num_test:]))
    if not sum(map(len, test)):
        raise DataError("dataset.root: every class has a single example, so that none is left for testing")
    return np.concatenate(train), np.concatenate(test)


def chosen_examples(available: int, wanted: int | None, seed: int) -> np.ndarray:
    """Rows of the training examples that are used, ascending; `OptionError` where there are fewer."""
    if wanted is None:
        return np.arange(available)
    if wanted > available:
        raise OptionError("dataset.train_examples", wanted, f"there are {available} training examples")
    return np.sort(generator(seed, "train-examples").permutation(available)[:wanted])


def at_most_each(unit: np.ndarray, most: int, seed: int) -> np.ndarray:
    """Positions, ascending, of rows with these persons (int64 [n]) such that nobody has more than ``most``.

    A cap leaks nothing: of a person with m rows those at the places P(seed, m) are kept, in the order of its own rows.
    That is a function of this person's rows and of public numbers, so whether another person is in the table changes
    nobody else's choice, and neighbours that differ in one person still do so after the cap. No value is looked at.
    """
    _, member, counts = np.unique(unit, return_inverse=True, return_counts=True)
    place, kept = places_of(member), np.ones(len(unit), bool)
    for rows in np.unique(counts[counts > most]):
        drawn = np.zeros(rows, bool)
        drawn[generator(seed, f"rows-per-person/{rows}").permutation(rows)[:most]] = True
        theirs = counts[member] == rows
        kept[theirs] = drawn[place[theirs]]
    return np.flatnonzero(kept)


def places_of(member: np.ndarray) -> np.ndarray:
    """int64 [n]: of each row its place among the rows of its person (``member``, int64 [n], numbered from 0)."""
    order, counts = np.argsort(member, kind="stable"), np.bincount(member)
    place = np.empty(len(member), np.int64)
    place[order] = np.arange(len(member)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place


def write_split(path: Path, split: Split) -> None:
    np.savez(path, train=split.train, test=split.test, seed=split.seed)


def read_split(path: str) -> Split:
    """Raises `OptionError` for a missing file or one without these rows."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            train, test = (np.sort(np.asarray(stored[part], dtype=np.int64)) for part in ("train", "test"))
            return Split(train, test, int(stored["seed"]) if "seed" in stored else 0)
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:
        reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise OptionError("dataset.split", path, f"must be a .npz file with rows `train` and `test`{reason}") from None


def check_split(path: str, split: Split, examples: int) -> None:
    """Raises `OptionError` for rows that are out of range, given twice, or on both sides."""
    rows = np.concatenate([split.train, split.test])
    if not len(split.train) or not len(split.test):
        raise OptionError("dataset.split", path, "at least one row of each side is needed")
    if rows.min() < 0 or rows.max() >= examples:
        raise OptionError("dataset.split", path, f"rows are 0 to {examples - 1}, found {rows.min()} to {rows.max()}")
    if len(np.unique(rows)) < len(rows):
        raise OptionError("dataset.split", path, "a row is given twice: train and test must not overlap")
