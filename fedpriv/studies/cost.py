"""How much a run trains, in client-epochs: passes over 600 pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fedpriv.config.compose import compose
from fedpriv.config.data_schema import KNOWN_SETS
from fedpriv.config.schema import Config

PICTURES_PER_EPOCH = 600


@dataclass(frozen=True)
class Size:
    """Of a run. epochs: client-epochs; clients of unequal size are taken at their mean."""

    strategy: str
    model: str
    rounds: int
    epochs: float


@cache
def size(overrides: tuple[str, ...]) -> Size:
    """Of a run with these overrides, from its options alone."""
    config = compose(overrides)
    steps = getattr(config.strategy.options, "local_steps", config.local.steps)
    per_client = _pictures(config) / config.num_clients
    pictures = steps * config.local.batch_size if steps else config.local.epochs * per_client
    epochs = float(config.num_rounds * config.clients_asked * pictures / PICTURES_PER_EPOCH)
    return Size(config.strategy.name, config.model.name, config.num_rounds, epochs)


def _pictures(config: Config) -> float:
    """Pictures that all clients together train on."""
    each = getattr(config.partition, "examples_per_client", None)
    if each is not None:
        return float(each * config.num_clients)
    dataset = config.dataset
    known = dataset.train_examples or KNOWN_SETS.get(dataset.name, (0, 0))[0] or _files(str(dataset.root))
    return known * (1 - config.partition.test_fraction)


@cache
def _files(root: str) -> int:
    """Pictures in class folders."""
    folder = Path(root)
    folder = folder / "train" if (folder / "train").is_dir() else folder
    return sum(1 for path in folder.glob("*/*") if path.is_file())
