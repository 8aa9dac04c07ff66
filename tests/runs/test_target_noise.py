"""`privacy.target_epsilon` chooses the noise: noise that was asked for beside it is refused, and a default replaced."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Outcome, Run, page_of
from safetensors.numpy import load_file
from torch import nn

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose, read_config
from fedpriv.config.methods import METHODS, NOISE_OPTIONS
from fedpriv.config.remote import compose_remote
from fedpriv.report.tables import final_lines
from fedpriv.runs.other_options import config_for_rerun
from fedpriv.runs.planning import with_target
from fedpriv.runs.preparation import plan_rows, resolve

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
        assert str(caught.value).startswith(f"strategy.{half}.{name}=") and str(caught.value).endswith(ALLOWED)
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


# --- `privacy.accountant=opacus` and `local.clipping=opacus` in whole runs: one more figure, the same models, refusal


THREE = ("num_clients=3", "clients_per_round=3", "num_rounds=2", "engine=inprocess", "evaluate.every=0")
BY_OPACUS = "privacy.accountant=opacus"


def layer_norm(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Without a bias, of which Opacus has no formula."""
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(size, bias=False), nn.Linear(size, classes))


def test_the_figure_is_in_plan_metrics_summary_report_and_never_in_place_of_ours(run: Run) -> None:
    options = ("strategy=dpsgd", *THREE)
    plain, folder = run(*options), run(*options, BY_OPACUS)
    summaries = [json.loads((one / "summary.json").read_text()) for one in (plain, folder)]
    before, after = (summary["privacy"] for summary in summaries)
    found = after["opacus"]
    assert {name: value for name, value in after.items() if name != "opacus"} == before and "opacus" not in before
    assert found["adjacency"] == "add-or-remove-one" and found["library"].startswith("Opacus 1.")
    assert after["verified_epsilon"] <= found["prv"] <= after["verified_epsilon"] + 0.02 < found["rdp"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    so_far = [row["opacus_rdp_so_far"] for row in rows]
    assert so_far[-1] == found["rdp"] > so_far[0] > 0
    assert "opacus_rdp_so_far" not in (plain / "metrics.jsonl").read_text()
    planned = plan_rows(compose([*options, BY_OPACUS]))
    assert planned["Opacus' epsilon"].startswith(f"{found['prv']:.4g} by PRV, {found['rdp']:.4g} by RDP")
    assert planned.keys() - plan_rows(compose([*options])).keys() == {"Opacus' epsilon"}
    for text in (page_of(folder), "\n".join(final_lines(summaries[1]))):
        assert "for comparison, no verified bound" in text and "PRV accountant" in text
    assert "PRV accountant" not in page_of(plain)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["strategy=privunit"], "none: Opacus composes Gaussians, unsampled or over a Poisson sample, and no unit cap"),
        (["strategy=dpftrl"], r"none: .*correlated over rounds \(strategy.client.factor=banded\)"),
        (["strategy=dpftrl", "strategy.client.factor=identity"], r"by PRV, .* by RDP \(add-or-remove-one;"),
        (["strategy=fedldp"], r"by RDP \(replace-one;"),
        (["strategy=skellam"], "none: Opacus composes Gaussians.*no skellam"),
        (["strategy=fedavg"], "none: updates are sent without noise"),
    ],
)
def test_a_plan_says_what_opacus_makes_of_it(options: list[str], words: str) -> None:
    rows = plan_rows(compose([*options, *THREE, BY_OPACUS]))
    assert re.search(words, rows["Opacus' epsilon"]), rows["Opacus' epsilon"]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedldp", r"2 \(L2 bound C of a client's update; .*\)"),
        ("dpfedavg", r"2 \(C: .* gradient, update / local.lr: 0.1 of the update\)"),
        ("dpsgd", r"2 \(L2 bound Theta of one example's gradient\)"),
        ("dpzo", r"2 \(C: L2 bound of the K numbers, .*\)"),
    ],
)
def test_a_plan_says_what_a_clip_norm_bounds(method: str, words: str) -> None:
    rows = plan_rows(compose([f"strategy={method}", "strategy.client.clip_norm=2", "local.lr=0.05", *THREE]))
    assert re.fullmatch(words, rows["clip norm"]), rows["clip norm"]
    assert "clip norm" not in plan_rows(compose(["strategy=fedavg", *THREE]))


def test_budgets_and_targets_do_not_use_it() -> None:
    """Opacus' RDP is above this target; the noise is chosen by our own figure all the same."""
    options = ["strategy=dpsgd", *THREE, "privacy.target_epsilon=2", "privacy.max_epsilon=2"]
    ours, theirs = (resolve(compose([*options, f"privacy.accountant={name}"]), None) for name in ("fedpriv", "opacus"))
    assert ours[0].strategy == theirs[0].strategy and theirs[2].verified_epsilon <= 2
    assert theirs[2].by_opacus is not None and theirs[2].by_opacus.rdp is not None and theirs[2].by_opacus.rdp > 2


@pytest.mark.parametrize("strategy", ["dpsgd", "agn", "anr", "dpfl_agn"])
def test_clipping_by_opacus_trains_the_same_model(run: Run, strategy: str) -> None:
    options = (f"strategy={strategy}", *THREE, "model=mlp", "model.hidden=8")
    ours, theirs = (run(*options, f"local.clipping={name}") for name in ("fedpriv", "opacus"))
    assert (ours / "ledger.jsonl").read_bytes() == (theirs / "ledger.jsonl").read_bytes()
    one, other = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert all(np.allclose(one[name], other[name], rtol=0, atol=1e-5) for name in one)


@pytest.mark.parametrize(
    ("options", "option", "words"),
    [
        (["strategy=fedldp"], "local.clipping=opacus", "fedldp clips no gradients of single examples"),
        (["strategy=dpsgd", "engine.trainer=vectorised"], "engine.trainer=vectorised", "clips client by client"),
        (
            ["strategy=dpsgd", "model=custom", "model.path=test_target_noise.layer_norm"],
            "local.clipping=opacus",
            "LayerNorm",
        ),
    ],
)
def test_what_opacus_formulas_cannot_do_is_refused(options: list[str], option: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"{option}: .*{words}.*allowed: "):
        resolve(compose([*options, *THREE, "local.clipping=opacus"]), None)


@pytest.mark.parametrize("option", ["privacy.accountant", "local.clipping"])
def test_a_third_library_is_refused_and_the_second_is_part_of_the_digest(option: str) -> None:
    with pytest.raises(OptionError, match=rf"{option}=tf_privacy.*fedpriv.*opacus"):
        compose([f"{option}=tf_privacy"])
    plain = compose(["strategy=dpsgd"])
    assert compose(["strategy=dpsgd", f"{option}=opacus"]).digest() != plain.digest()
