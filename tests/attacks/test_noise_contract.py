"""Every number that leaves varies with the noise key, and with nothing else; over all methods, on real messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.attacks import noise_contract
from fedpriv.attacks.noise_amounts import too_long
from fedpriv.client.build import client_class
from fedpriv.config.compose import CONF, compose
from fedpriv.config.own_options import group_choices
from fedpriv.config.schema import Config

TWINS = ("num_clients=24", "clients_per_round=24", "num_rounds=2", "local.batch_size=1000")


def cases() -> list[tuple[str, ...]]:
    """Every method in both variants, and the options by which more leaves. dpftrl's clients add no noise: their server
    is trusted with the updates, and tests/methods/test_dpftrl.py is about its noise.
    """
    variants = ("repaired", "published")
    found = [
        (f"strategy={name}", f"privacy.variant={variant}")
        for name in group_choices(CONF / "strategy")
        if name != "dpftrl"
        for variant in variants
    ]
    for rule in ("quantile", "geometric", "adp"):
        found.append(("strategy=fedldp", f"strategy.server.clipping={rule}"))
    found.append(("strategy=fedcad", "strategy.client.obsolete_factor=0.4", "strategy.server.clipping=quantile"))
    found.append(("strategy=fedags", "strategy.client.loss_weights=true"))
    found.append(("strategy=fedags", "strategy.client.selection=gumbel"))
    found.append(("strategy=dpfedsnlc", "strategy.client.selection=gumbel"))
    found.append(("strategy=dpsgd", "strategy.client.clipping=adaptive"))
    found.append(("strategy=coqfl", "strategy.client.group_size=4"))
    return found


def twins(*case: str) -> Config:
    return compose([*TWINS, *case])


def heard_of(config: Config) -> noise_contract.Heard:
    """Where an optimizer or one bit stands between noise and release, no gradient may hide the noise behind it."""
    kind = client_class(config)
    return noise_contract.listen(
        config, noise_contract.BROKEN if kind.traits.clips_examples or kind.traits.canary_everywhere else 1.0
    )


@pytest.mark.rotates(3)
@pytest.mark.parametrize("case", cases(), ids=" ".join)
def test_every_number_that_leaves_has_noise_of_its_own(case: tuple[str, ...]) -> None:
    config = twins(*case)
    heard = heard_of(config)
    assert len(heard.releases()) == 2 and len(heard.clients) == 24
    if heard.leaks:  # the ledger itself says so: the total is infinite, with these reasons
        assert all(heard.leaks)
    else:
        assert heard.entries and noise_contract.bare_numbers(heard) == [] and noise_contract.shared_noise(heard) == []
    torch.manual_seed(1)  # whatever else is drawn in this process
    np.random.seed(1)  # noqa: NPY002
    assert noise_contract.differences(heard, heard_of(config)) == []


def test_what_leaves_bare_without_a_word_in_the_ledger_would_be_found() -> None:
    """Methods that are bare by design: the check sees it, the ledger declares it."""
    for name in ("fedavg", "fedags"):
        heard = noise_contract.listen(twins(f"strategy={name}", "privacy.variant=published"))
        assert heard.leaks and noise_contract.bare_numbers(heard)


#: Updates from far within the clip norm to 1e8 times as long, both ways; and pictures without a number in them.
PICTURES = [(sign * value, 0) for value in (0.1, 3.0, 100.0, 250.0, 500.0, 1e3, 1e9) for sign in (1, -1)]
FEW = ("num_clients=8", "clients_per_round=8", "num_rounds=1", "local.batch_size=1000", "model=linear")


@pytest.mark.parametrize(
    "case",
    [
        ("strategy=fedldp",),
        ("strategy=fedcad",),
        ("strategy=dpfedavg",),
        ("strategy=scaffold",),
        ("strategy=fedags",),
        ("strategy=dpfedsnlc",),
        ("strategy=nbafl",),
        ("strategy=dpsgd",),
        ("strategy=anr",),
    ],
    ids=" ".join,
)
def test_no_data_move_a_release_further_than_the_ledger_counts_on(case: tuple[str, ...]) -> None:
    assert too_long(compose([*FEW, *case]), PICTURES) == []


SAMPLED = ("num_clients=8", "clients_per_round=8", "num_rounds=20", "local.batch_size=12", "strategy=dpsgd")


def test_batches_are_the_samples_that_the_ledger_counts_on() -> None:
    assert noise_contract.wrong_batches(noise_contract.listen(compose([*SAMPLED]))) == []


@pytest.mark.parametrize("strategy", ["fedldp", "dpsgd", "fedags", "adpfl", "coqfl"])
def test_no_diagnostics_leave_outside_simulation(strategy: str) -> None:
    small: Any = ("num_clients=4", "clients_per_round=4", "num_rounds=1", f"strategy={strategy}")
    assert noise_contract.surplus(noise_contract.listen(compose([*small]))) == ["diagnostics leaves"]
    heard = noise_contract.listen(compose([*small, "privacy.rng=secure"]))
    assert noise_contract.surplus(heard) == [] and len(heard.releases()) == 1


@pytest.mark.parametrize("numbers", [2, 14, 62, 5000])
def test_models_of_few_numbers_have_noises_that_are_alike_by_chance(numbers: int) -> None:
    """Of a table of ten columns every fourth run has two clients that look alike; two with one noise are found."""
    random = np.random.default_rng(0)
    config = compose(["strategy=dpsum"])

    def said(values: list[np.ndarray]) -> list[str]:
        stub = type("Stub", (), {"config": config, "clients": range(16), "releases": lambda self: values})
        return noise_contract.shared_noise(stub())  # type: ignore[arg-type]

    for _ in range(3 if numbers > 1000 else 100):
        rounds = [random.normal(size=(16, numbers)) for _ in range(6)]
        assert said(rounds) == []
    rounds[2][5] = rounds[2][9]
    assert said(rounds) == ["round 3: clients 5 and 9 share their noise"]
