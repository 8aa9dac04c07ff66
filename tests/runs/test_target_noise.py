"""`privacy.target_epsilon` chooses the noise: noise that was asked for beside it is refused, and a default replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import SMALL, Outcome, Run

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose, read_config
from fedpriv.config.methods import METHODS, NOISE_OPTIONS
from fedpriv.config.remote import compose_remote
from fedpriv.runs.changed import config_for_rerun
from fedpriv.runs.planning import with_target

TARGET = "privacy.target_epsilon=8"
ALLOWED = "privacy.target_epsilon=8 chooses it; allowed: one of the two"

#: (method, option) for all options of this kind.
NOISY = [
    (method, name) for method, options in METHODS.items() for name in NOISE_OPTIONS if name in options.model_fields
]
#: Methods whose noise a target can choose.
WITH_NOISE = sorted({method for method, _ in NOISY})


def value_of(name: str) -> str:
    return {"trials": "4096", "private_share": "0.5"}.get(name, "0.7")


@pytest.mark.parametrize(("method", "name"), NOISY)
def test_noise_beside_a_target_is_refused_with_both_names(method: str, name: str) -> None:
    for half in ("client", "server"):
        given = [f"strategy={method}", f"strategy.{half}.{name}={value_of(name)}"]
        with pytest.raises(OptionError) as caught:
            compose([*given, TARGET])
        assert str(caught.value).startswith(f"strategy.client.{name}=") and str(caught.value).endswith(ALLOWED)
        compose([*given, "privacy.target_epsilon=null"])


@pytest.mark.parametrize(
    "given",
    [
        "++strategy.client.noise_multiplier=3",
        "strategy.client={noise_multiplier: 3}",
        "+strategy={client: {noise_multiplier: 3}}",
        "strategy.client.noise_multiplier=3.0",
    ],
)
def test_however_it_is_written(given: str) -> None:
    for order in ([given, TARGET], [TARGET, given], ["privacy={target_epsilon: 8}", given]):
        with pytest.raises(OptionError, match=r"strategy\.client\.noise_multiplier=3.*privacy\.target_epsilon=8"):
            compose(["strategy=fedldp", *order])


def test_what_is_no_noise_may_stand_beside_it() -> None:
    compose(["strategy=fedldp", TARGET, "strategy.client.clip_norm=2", "strategy.server.clip_norm=2"])


def test_defaults_and_experiments_are_replaced() -> None:
    """Their noise is a value of YAML, and so may be the target itself."""
    default = compose(["strategy=fedldp"]).strategy.options.noise_multiplier
    assert with_target(compose([*SMALL, "strategy=fedldp", TARGET])).strategy.options.noise_multiplier != default
    experiment = "experiment=agn_mnist_private"
    assert compose([experiment]).privacy.target_epsilon == 8
    for composed in (compose, compose_remote):
        with pytest.raises(OptionError, match=r"^strategy\.client\.noise_multiplier=2: privacy\.target_epsilon=8 "):
            composed([experiment, "strategy.client.noise_multiplier=2"])
    compose([experiment, "strategy.client.noise_multiplier=2", "privacy.target_epsilon=null"])


@pytest.mark.rotates(3)
@pytest.mark.parametrize("method", WITH_NOISE)
def test_a_target_replaces_no_other_options(method: str) -> None:
    """Were there more, they could be replaced silently."""
    config = compose([*SMALL, f"strategy={method}", "num_rounds=2", "privacy.target_epsilon=2000"])
    found = with_target(config)
    before, after = config.strategy.options.model_dump(), found.strategy.options.model_dump()
    different = {name for name in after if after[name] != before[name]}
    assert different and different <= set(NOISE_OPTIONS)
    assert found.strategy.model_copy(update={"options": config.strategy.options}) == config.strategy


@pytest.mark.parametrize("method", [method for method in WITH_NOISE if method not in ("ldpfl", "coqfl")])
def test_an_epsilon_beside_a_target_would_have_no_effect(method: str) -> None:
    """Which is why it is refused although the target chooses another option."""
    config = compose([*SMALL, f"strategy={method}", "num_rounds=2", "privacy.target_epsilon=2000"])
    if not hasattr(config.strategy.options, "epsilon"):
        return
    other = config.with_options(epsilon=3 * config.strategy.options.epsilon)
    chosen, again = (with_target(each).strategy.options.model_dump() for each in (config, other))
    assert {k: v for k, v in chosen.items() if k != "epsilon"} == {k: v for k, v in again.items() if k != "epsilon"}


def test_the_command_line_refuses_runs_plans_and_sweeps(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    noise = "strategy.client.noise_multiplier"
    for more in (
        (f"{noise}=2",),
        (f"{noise}=2", "plan=true"),
        ("-m", f"{noise}=1,2"),
        ("-m", f"{noise}=2", "seed=0,1"),
    ):
        done = cli(
            "strategy=fedldp", *[option for option in more if option != "-m"], TARGET, *more[:1][: more[0] == "-m"]
        )
        assert done.code == 2 and done.err.count("\n") == 1, done
        assert done.err.startswith(f"fedpriv: {noise}=") and done.err.strip().endswith(ALLOWED)
    assert not list(tmp_path.iterdir())


def test_a_run_with_chosen_noise_is_repeated(run: Run) -> None:
    """Its config.yaml has both."""
    folder = run("strategy=fedldp", TARGET, "operations.report=false")
    config = read_config(folder)
    assert config.privacy.target_epsilon == 8 and config.strategy.options.noise_multiplier > 1
    again = config_for_rerun(folder)
    assert again.strategy.options == config.strategy.options
