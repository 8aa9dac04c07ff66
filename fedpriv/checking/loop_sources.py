"""What a data loader's sampler is: known by its class, if that is the library's own and draws as the library does."""

from __future__ import annotations

from typing import Any

from fedpriv.checking.loop_record import Source


def source_of(loader: Any, data_set: int) -> Source:
    """The law of a loader's batches. Only torch's and Opacus' own classes are known; a subclass that draws otherwise is
    `unknown`, whatever its name.
    """
    from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
    from torch.utils.data import BatchSampler, IterableDataset

    from fedpriv.checking.loop_objects import base_sampler

    sampler = base_sampler(loader.batch_sampler if loader.batch_sampler is not None else loader.sampler)
    if isinstance(loader.dataset, IterableDataset):
        return Source("unknown", "a stream without positions", data_set)
    population = len(loader.dataset)
    if draws_as(sampler, UniformWithReplacementSampler):
        covered = int(sampler.num_samples)
        words = f"each of {covered:,} examples by a coin of {sampler.sample_rate:.6g} (Poisson)"
        return Source("poisson", words, data_set, population, float(sampler.sample_rate))
    if draws_as(sampler, DistributedUniformWithReplacementSampler):
        workers = int(sampler.num_replicas)
        words = f"each of {population:,} examples by a coin of {sampler.sample_rate:.6g} on one of {workers} workers"
        return Source("poisson", words, data_set, population, float(sampler.sample_rate), workers=workers)
    if draws_as(sampler, BatchSampler):
        return _of_batches(sampler, data_set, population)
    if loader.batch_sampler is None:
        return _of_singles(sampler, data_set, population, 1, False)
    return Source("unknown", "a sampler of the loop's own", data_set, population)


def draws_as(sampler: Any, kind: type) -> bool:
    """Whether the sampler is of this class and iterates as this class does."""
    return isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__  # type: ignore[attr-defined]


def _of_batches(sampler: Any, data_set: int, population: int) -> Source:
    return _of_singles(sampler.sampler, data_set, population, int(sampler.batch_size), bool(sampler.drop_last))


def _of_singles(sampler: Any, data_set: int, population: int, batch_size: int, drop_last: bool) -> Source:
    from torch.utils.data import (
        DistributedSampler,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    last = ", the last incomplete one dropped" if drop_last and population % max(batch_size, 1) else ""
    batches = f"batches of {batch_size:,} of {population:,} examples{last}"
    common: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last}
    if draws_as(sampler, RandomSampler):
        # more draws than examples start over within one pass
        if sampler.replacement or sampler.num_samples > population:
            return Source("with-replacement", f"{batches}, drawn with replacement", data_set, population, **common)
        return Source("without-replacement", f"{batches}, shuffled in each pass", data_set, population, **common)
    if draws_as(sampler, SequentialSampler):
        return Source("without-replacement", f"{batches}, in fixed order", data_set, population, **common)
    if draws_as(sampler, SubsetRandomSampler) and len(set(map(int, sampler.indices))) == len(sampler.indices):
        return Source("without-replacement", f"{batches}, shuffled in each pass", data_set, population, **common)
    if draws_as(sampler, DistributedSampler) and (
        sampler.drop_last or population % sampler.num_replicas == 0  # otherwise some examples are given twice
    ):
        words = f"{batches}, shuffled over {sampler.num_replicas} workers"
        return Source("without-replacement", words, data_set, population, workers=int(sampler.num_replicas), **common)
    if draws_as(sampler, WeightedRandomSampler) and not sampler.replacement:
        return Source("without-replacement", f"{batches}, drawn by weight", data_set, population, **common)
    if draws_as(sampler, WeightedRandomSampler):
        return Source("with-replacement", f"{batches}, drawn by weight, repeatedly", data_set, population, **common)
    return Source("unknown", f"{batches}, in an order of the loop's own", data_set, population, **common)
