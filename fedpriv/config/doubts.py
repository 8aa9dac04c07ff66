"""What is allowed and probably not meant."""

from __future__ import annotations

from fedpriv.config.data_schema import KNOWN_SETS
from fedpriv.config.methods import ExampleLevelOptions
from fedpriv.config.schema import Config


def doubts(config: Config) -> list[str]:
    """A sentence for each doubt."""
    target, delta = config.privacy.target_epsilon, config.privacy.delta
    found = []
    if target is not None and target < delta:
        words = f"privacy.target_epsilon={target:g} is below privacy.delta={delta:g}: delta alone is the guarantee"
        found.append(words)
    units, what = _units(config)
    # Handing out all data of one unit in n, drawn by chance, is (0, 1/n)-private: epsilon does not speak of it.
    if units > 1 and delta >= 1 / units:
        found.append(
            f"privacy.delta={delta:g} is not below 1 / {units:,} {what}: whoever publishes all of one, drawn "
            f"by chance, keeps to any epsilon at this delta; usual is far less"
        )
    elif delta > LARGEST_DELTA:
        found.append(f"privacy.delta={delta:g} is large: with this probability epsilon may promise nothing")
    return found


#: Above it, whatever the number of units, a guarantee fails more often than people expect.
LARGEST_DELTA = 0.01


def _units(config: Config) -> tuple[int, str]:
    """(number of privacy units, what they are). Of examples 0 where their number is not known before they are read."""
    if not isinstance(config.strategy.options, ExampleLevelOptions):
        return config.num_clients, "clients"
    known, _ = KNOWN_SETS.get(config.dataset.name, (0, 0))
    return config.dataset.train_examples or sum(config.dataset.examples) or known, "examples"
