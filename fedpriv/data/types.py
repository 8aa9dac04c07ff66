"""Types of the data package: small frozen values that hold arrays.

Shapes: n pictures, c channels, h x w pixels, N clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from fedpriv.common.seeds import numbered
from fedpriv.data.table_schema import TableSchema
from fedpriv.mechanisms.tasks import Classification, Task


def generator(seed: int, purpose: str) -> np.random.Generator:
    """An independent generator for every pair of seed and purpose, the same on every machine; no global state."""
    return generators(seed, [purpose])[0]


def generators(seed: int, purposes: Iterable[str]) -> list[np.random.Generator]:
    """A `generator` for each purpose."""
    hashes = [hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16) for purpose in purposes]
    return numbered(np.random.PCG64, 4, hashes)


class Rows(Protocol):
    """Public features of pictures, float32 [n, d], read by rows. shape: of one example, as a model reads it."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...

    def between(self, start: int, stop: int) -> Rows: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class Examples:
    """inputs: of pictures uint8 [n, c, h, w], possibly a memory map (read-only), of a table float32 [n, d]; targets:
    int64 [n] of classes, else as `Task` has them; features: [n, d], where a model reads these in place of the inputs;
    unit: int64 [n], rows of one person have one number; None: a row is a unit; site: int64 [n], of a column that
    divides the rows among clients.
    """

    inputs: np.ndarray
    targets: np.ndarray
    features: Rows | None = None
    unit: np.ndarray | None = None
    site: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def chosen(self, rows: np.ndarray) -> Examples:
        """Targets, units and sites of these rows (int64 [b]); of inputs nothing is read."""
        parts = (None if part is None else part[rows] for part in (self.unit, self.site))
        return Examples(self.inputs, self.targets[rows], None, *parts)

    def digest(self) -> str:
        """Of all that these rows are, whichever file they come from: 32 hexadecimal digits."""
        found = hashlib.blake2b(digest_size=16)
        for part in (self.inputs, self.targets, self.unit, self.site):
            for start in range(0, 0 if part is None else len(part), 1 << 12):
                found.update(np.asarray(part)[start : start + (1 << 12)].tobytes())
        return found.hexdigest()

    def between(self, start: int, stop: int) -> Examples:
        """These rows with all that is known of them; arrays are shared."""
        features = None if self.features is None else self.features.between(start, stop)
        parts = (None if part is None else part[start:stop] for part in (self.unit, self.site))
        return Examples(self.inputs[start:stop], self.targets[start:stop], features, *parts)

    def and_then(self, others: Examples) -> Examples:
        """These rows and others of the same form. (Features: `load_pool` reads them itself.)"""
        pairs = ((self.inputs, others.inputs), (self.targets, others.targets))
        inputs, targets = (np.concatenate(pair) for pair in pairs)
        unit, site = (
            None if first is None or second is None else np.concatenate([first, second])
            for first, second in ((self.unit, others.unit), (self.site, others.site))
        )
        return Examples(inputs, targets, None, unit, site)


@dataclass(frozen=True)
class Dataset:
    """A data set with its task and, of pictures, public normalisation constants, one per channel (of pixels scaled to
    0..1).

    input_shape: what a model reads, where that is not the pictures: [d, 1, 1]. sites: names of the values of `site`.
    vocabulary: of text, public: inputs are rows of token ids [n, tokens] in [0, vocabulary), 0 is padding.
    schema: of a table. remarks: on the rows, for their holder's eyes.
    """

    name: str
    train: Examples
    test: Examples
    task: Task
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    input_shape: tuple[int, ...] | None = None
    sites: tuple[str, ...] = ()
    vocabulary: int | None = None
    schema: TableSchema | None = None
    remarks: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the model's outputs."""
        return self.task.labels

    @property
    def shape(self) -> tuple[int, ...]:
        """What a model reads of one example: itself, or its features."""
        return self.picture_shape if self.input_shape is None else self.input_shape

    @property
    def picture_shape(self) -> tuple[int, ...]:
        """Of one example as it is stored."""
        return self.train.inputs.shape[1:]


@dataclass(frozen=True)
class Partition:
    """Which training examples belong to which client.

    indices: int64 [examples in use], client after client, each client's training part before its test part;
    offsets: int64 [N + 1], client k holds indices[offsets[k]:offsets[k + 1]];
    num_train: int64 [N], how many of them are its training part (at least one).
    """

    indices: np.ndarray
    offsets: np.ndarray
    num_train: np.ndarray

    @property
    def num_clients(self) -> int:
        return len(self.num_train)

    @property
    def used(self) -> np.ndarray:
        """Rows that a client holds."""
        return self.indices

    def among(self, rows: np.ndarray) -> Partition:
        """The same partition, with these rows in place of 0, 1, ..."""
        return replace(self, indices=rows[self.indices])

    @classmethod
    def of_parts(cls, parts: Sequence[np.ndarray]) -> Partition:
        """Of each client its training rows and then its test rows."""
        lengths = np.array([len(part) for part in parts]).reshape(-1, 2)
        offsets = np.cumsum([0, *lengths.sum(axis=1)])
        return cls(np.concatenate(parts).astype(np.int64), offsets, lengths[:, 0].copy())

    def of_units(self, member: np.ndarray) -> Partition:
        """A partition of units as one of their rows: ``member`` (int64 [n]) is the unit of each row."""
        order = np.argsort(member, kind="stable")
        starts = np.searchsorted(member[order], np.arange(int(member.max()) + 2))
        parts = [part(client) for client in range(self.num_clients) for part in (self.train, self.test)]
        rows = ([order[starts[unit] : starts[unit + 1]] for unit in units] for units in parts)
        return self.of_parts([np.sort(np.concatenate([order[:0], *blocks])) for blocks in rows])

    def train(self, client: int) -> np.ndarray:
        start, split, _ = self._bounds(client)
        return self.indices[start:split]

    def test(self, client: int) -> np.ndarray:
        _, split, stop = self._bounds(client)
        return self.indices[split:stop]

    def _bounds(self, client: int) -> tuple[int, int, int]:
        if not 0 <= client < self.num_clients:
            raise IndexError(f"client {client} of {self.num_clients}")
        start, stop = self.offsets[client], self.offsets[client + 1]
        return start, start + self.num_train[client], stop


@dataclass(frozen=True)
class ResampledPartition:
    """Every client draws its own rows of the ``pool`` training examples, by (seed, client), only when
    requested. num_test of a client's ``examples`` are its test part.
    """

    pool: int
    examples: int
    num_test: int
    num_clients: int
    seed: int
    chosen: np.ndarray | None = None  # rows (int64 [pool]) if the pool is not 0..pool - 1

    @property
    def used(self) -> np.ndarray:
        """Rows that a client may hold."""
        return np.arange(self.pool) if self.chosen is None else self.chosen

    def among(self, rows: np.ndarray) -> ResampledPartition:
        """The same partition of these rows (int64 [pool])."""
        return replace(self, chosen=rows)

    @property
    def num_train(self) -> np.ndarray:
        """int64 [N], without memory for N numbers."""
        return np.broadcast_to(np.int64(self.examples - self.num_test), self.num_clients)

    def train(self, client: int) -> np.ndarray:
        return self.train_of([client])[0]

    def train_of(self, clients: Sequence[int]) -> np.ndarray:
        """Rows of each of these clients: int64 [clients, num_train]."""
        return np.sort(self._drawn(clients)[:, self.num_test :])

    def test(self, client: int) -> np.ndarray:
        return np.sort(self._drawn([client])[0, : self.num_test]) if self.num_test else np.zeros(0, np.int64)

    def _drawn(self, clients: Sequence[int]) -> np.ndarray:
        if not 0 <= min(clients) <= max(clients) < self.num_clients:
            raise IndexError(f"clients {min(clients)} to {max(clients)} of {self.num_clients}")
        rngs = generators(self.seed, [f"resampled/{client}" for client in clients])
        drawn = np.array([rng.choice(self.pool, self.examples, replace=False) for rng in rngs])
        return drawn if self.chosen is None else self.chosen[drawn]


class Division(Protocol):
    """Assignment of training examples: `Partition`, `ResampledPartition`, or what clients of a deployment declare."""

    @property
    def num_clients(self) -> int: ...

    @property
    def num_train(self) -> np.ndarray: ...

    @property
    def used(self) -> np.ndarray: ...

    def train(self, client: int) -> np.ndarray: ...

    def test(self, client: int) -> np.ndarray: ...


@dataclass(frozen=True)
class FederatedData:
    """A data set partitioned among clients.

    partition: rows of ``dataset.train``; auxiliary, test: disjoint rows (int64) of ``dataset.test``. The
    auxiliary examples are public, the test examples are those that accuracy is reported on.
    """

    dataset: Dataset
    partition: Division
    auxiliary: np.ndarray
    test: np.ndarray

    @property
    def num_clients(self) -> int:
        return self.partition.num_clients

    def train_indices(self, client: int) -> np.ndarray:
        """Rows of ``dataset.train`` that the client trains on, ascending."""
        return self.partition.train(client)

    def train_indices_of(self, clients: Sequence[int]) -> Sequence[np.ndarray]:
        """`train_indices` of each of some clients, at least one."""
        if isinstance(self.partition, ResampledPartition):
            return list(self.partition.train_of(clients))
        return [self.partition.train(client) for client in clients]

    def test_indices(self, client: int) -> np.ndarray:
        """Rows of ``dataset.train`` that the client keeps as its local test set, ascending, possibly none."""
        return self.partition.test(client)

    def untrained_classes(self) -> list[str]:
        """Classes of test examples that no training example has: none of these examples can be recognised."""
        if not isinstance(self.dataset.task, Classification):
            return []
        trained, tested = self.dataset.train.targets[self.partition.used], self.dataset.test.targets[self.test]
        return [self.dataset.classes[label] for label in np.setdiff1d(tested, trained)]

    def num_examples(self, client: int) -> int:
        """Number of examples that the client trains on."""
        return int(self.partition.num_train[client])

    def persons(self, client: int) -> np.ndarray:
        """Who each of the client's training rows is of: int64 [rows], as `train_indices` has them, the client's persons
        numbered from 0.
        """
        assert self.dataset.train.unit is not None, "the schema names a unit"
        numbers = np.unique(self.dataset.train.unit[self.train_indices(client)], return_inverse=True)[1]
        return numbers.astype(np.int64)

    def counts(self, persons: bool) -> np.ndarray:
        """How many examples, or ``persons``, each client trains on: int64 [N]."""
        if not persons:
            return self.partition.num_train
        return np.array([self.persons(client).max(initial=-1) + 1 for client in range(self.num_clients)])


@dataclass(frozen=True)
class PictureStream:
    """A data set while it is being decoded: the training examples first, then the test examples.

    labels: int64 [n]; blocks: uint8 [some, c, h, w] one after the other, n pictures in all, so that a set
    larger than memory can be written to disk. Errors in a picture are raised while iterating. owners: names [n] of a
    column that divides the pictures among clients.
    """

    classes: tuple[str, ...]
    labels: np.ndarray
    num_train: int
    blocks: Iterable[np.ndarray]
    owners: np.ndarray | None = None

    @property
    def sites(self) -> tuple[np.ndarray | None, tuple[str, ...]]:
        """(`Examples.site`, the owners' names): of those that have training pictures; -1 of anybody else's."""
        if self.owners is None:
            return None, ()
        names, numbers = np.unique(self.owners[: self.num_train], return_inverse=True)
        place = {name: number for number, name in enumerate(names)}
        others = [place.get(owner, -1) for owner in self.owners[self.num_train :]]
        return np.concatenate([numbers, np.array(others, np.int64)]), tuple(map(str, names))


@dataclass(frozen=True)
class Source:
    """A data set that has been found but not read.

    identity: JSON-serialisable; everything that determines the decoded pictures, used as the cache key; None where that
    is unknown, so that nothing may be cached. decode: reads the pictures (slow).
    """

    identity: dict[str, Any] | None
    decode: Callable[[], PictureStream]
