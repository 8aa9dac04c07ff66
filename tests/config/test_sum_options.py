"""What members of a secure sum sign of a run's options, and which numbers a sum is possible with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fedpriv.common.errors import OptionError
from fedpriv.common.sum_graph import graph_of
from fedpriv.config.compose import compose
from fedpriv.config.schema import Config
from fedpriv.config.sum_checks import UNSIGNED, release_digest

PROTOCOL = ("strategy.secure_sum=protocol",)


def leaves(content: dict[str, Any], before: str = "") -> Iterator[str]:
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{before}{name}.")
        else:
            yield before + name


def told(config: Config, path: str) -> Config:
    """The same options but for one, which has a value that it never has."""

    class Other(Config):
        def to_dict(self) -> dict[str, Any]:
            content = config.to_dict()
            part, (*way, last) = content, path.split(".")
            for name in way:
                part = part[name]
            part[last] = "something else"
            return content

    return Other.model_construct(**dict(config))


def test_a_new_reason_to_leave_an_option_unsigned_is_given_here_too() -> None:
    """The list as it was thought over: nobody takes an option out by one line."""
    assert set(UNSIGNED) == {
        *("run_dir", "dataset.root", "dataset.test_root", "dataset.cache", "dataset.download", "model.name"),
        *("dataset.schema_file", "model.weights", "features.weights"),  # their digests are signed
        *("dataset.separator", "dataset.decimal", "dataset.encoding"),
        *("privacy.rng", "engine.name", "engine.workers", "engine.threads_per_client", "engine.trainer"),
        *("engine.address", "engine.device", "engine.gpus_per_worker", "engine.round_timeout"),
        *("engine.client_memory_mib", "engine.faults", "evaluate", "checkpoint"),
        *("attack", "audit", "operations", "tracking"),
    }


@pytest.mark.parametrize("strategy", ["ddgauss", "skellam", "cpsgd"])
def test_members_sign_every_option_but_those_with_a_reason(strategy: str) -> None:
    more = ("strategy.client.epsilon=8",) if strategy == "cpsgd" else ()
    config = compose([f"strategy={strategy}", *PROTOCOL, "features=backbone", *more])
    known, named = release_digest(config), list(leaves(config.to_dict()))
    assert len(named) > 90
    for path in named:
        left_out = any(path == name or path.startswith(f"{name}.") for name in UNSIGNED)
        assert (release_digest(told(config, path)) == known) == left_out, path
    for name, reason in UNSIGNED.items():
        assert reason and any(path == name or path.startswith(f"{name}.") for path in named), f"{name}: no such option"


@pytest.mark.parametrize(
    "name",
    [
        *("num_clients", "clients_per_round", "over_selection", "num_rounds", "seed", "strategy.name"),
        *("strategy.client.noise_multiplier", "strategy.client.clip_norm", "strategy.server.bits", "local.lr"),
        *("strategy.client.colluders", "strategy.server.min_replies", "strategy.server.threshold", "local.steps"),
        *("strategy.server.clipping", "privacy.delta", "privacy.variant", "local.epochs", "local.batch_size"),
    ],
)
def test_what_fixes_noise_grid_graph_or_training_is_signed(name: str) -> None:
    config = compose(["strategy=ddgauss", *PROTOCOL])
    assert name in leaves(config.to_dict()) and release_digest(told(config, name)) != release_digest(config)


def test_the_digest_is_that_of_the_signed_options() -> None:
    config = compose(["strategy=ddgauss", *PROTOCOL, "features=backbone"])
    content = {name: value for name, value in config.to_dict().items() if name not in UNSIGNED}
    for name in UNSIGNED:
        part, _, rest = name.partition(".")
        if rest:
            content[part].pop(rest)
    assert release_digest(config) == hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()


@pytest.mark.parametrize(
    ("clients", "colluders", "threshold"),
    [(1000, 600, None), (300, 102, None), (100, 34, None), (30, 4, 17), (4, 1, 2)],
)
def test_colluders_that_no_graph_withstands_are_refused(clients: int, colluders: int, threshold: int | None) -> None:
    size = (f"num_clients={clients}", f"clients_per_round={clients}", f"strategy.server.min_replies={clients}")

    def composed(colluders: int, threshold: int | None) -> None:
        chosen = [] if threshold is None else [f"strategy.server.threshold={threshold}"]
        compose(["strategy=ddgauss", *PROTOCOL, *size, f"strategy.client.colluders={colluders}", *chosen])

    option = "strategy.server.threshold" if threshold else "strategy.client.colluders"
    with pytest.raises(OptionError, match=f"{option}={threshold or colluders}"):
        composed(colluders, threshold)
    if threshold is None:
        composed(400 if clients == 1000 else colluders - 1, None)
    else:
        composed(colluders, threshold + 1)


def test_a_round_that_closes_before_enough_can_sign_is_refused() -> None:
    """In a sparse graph too, or every round is paid for nothing."""
    size = ("num_clients=1000", "over_selection=1.5", "strategy.client.colluders=400")

    def composed(replies: int) -> Config:
        named = (f"clients_per_round={replies}", "strategy.server.min_replies=600")
        return compose(["strategy=ddgauss", *PROTOCOL, *size, *named])

    t = graph_of(1000, None, 400)[1]
    with pytest.raises(
        OptionError, match=f"over_selection=1.5: unmasking needs {t} clients but rounds close at {t - 1}"
    ):
        composed(t - 1)
    composed(t)


def test_neighbours_are_no_option() -> None:
    with pytest.raises(OptionError, match="neighbours"):
        compose(["strategy=ddgauss", *PROTOCOL, "strategy.server.neighbours=2"])
