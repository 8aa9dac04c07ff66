"""`privacy.accountant=opacus` and `local.clipping=opacus` in whole runs: one more figure, the same models, refusals."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from conftest import Run, page_of
from safetensors.numpy import load_file
from torch import nn

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.report.tables import final_lines
from fedpriv.runs.plan_table import plan_rows
from fedpriv.runs.preparation import resolve

SMALL = ("num_clients=3", "clients_per_round=3", "num_rounds=2", "engine=inprocess", "evaluate.every=0")
BY_OPACUS = "privacy.accountant=opacus"


def layer_norm(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Without a bias, of which Opacus has no formula."""
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(size, bias=False), nn.Linear(size, classes))


def test_the_figure_is_in_plan_metrics_summary_report_and_never_in_place_of_ours(run: Run) -> None:
    options = ("strategy=dpsgd", *SMALL)
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
    rows = plan_rows(compose([*options, *SMALL, BY_OPACUS]))
    assert re.search(words, rows["Opacus' epsilon"]), rows["Opacus' epsilon"]


def test_budgets_and_targets_do_not_use_it() -> None:
    """Opacus' RDP is above this target; the noise is chosen by our own figure all the same."""
    options = ["strategy=dpsgd", *SMALL, "privacy.target_epsilon=2", "privacy.max_epsilon=2"]
    ours, theirs = (resolve(compose([*options, f"privacy.accountant={name}"]), None) for name in ("fedpriv", "opacus"))
    assert ours[0].strategy == theirs[0].strategy and theirs[2].verified_epsilon <= 2
    assert theirs[2].by_opacus is not None and theirs[2].by_opacus.rdp is not None and theirs[2].by_opacus.rdp > 2


@pytest.mark.parametrize("strategy", ["dpsgd", "agn", "anr", "dpfl_agn"])
def test_clipping_by_opacus_trains_the_same_model(run: Run, strategy: str) -> None:
    options = (f"strategy={strategy}", *SMALL, "model=mlp", "model.hidden=8")
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
            ["strategy=dpsgd", "model=custom", "model.path=test_opacus_options.layer_norm"],
            "local.clipping=opacus",
            "LayerNorm",
        ),
    ],
)
def test_what_opacus_formulas_cannot_do_is_refused(options: list[str], option: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"{option}: .*{words}.*allowed: "):
        resolve(compose([*options, *SMALL, "local.clipping=opacus"]), None)


@pytest.mark.parametrize("option", ["privacy.accountant", "local.clipping"])
def test_a_third_library_is_refused_and_the_second_is_part_of_the_digest(option: str) -> None:
    with pytest.raises(OptionError, match=rf"{option}=tf_privacy.*fedpriv.*opacus"):
        compose([f"{option}=tf_privacy"])
    plain = compose(["strategy=dpsgd"])
    assert compose(["strategy=dpsgd", f"{option}=opacus"]).digest() != plain.digest()
