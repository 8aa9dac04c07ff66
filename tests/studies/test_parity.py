"""Parity with peers: the rule on made-up numbers, the committed results, and a loop that has no chance in it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedpriv
from parity import rule
from parity.__main__ import BEGIN, END, PAGE, RESULTS, ROOT, export, faults, main, table
from parity.by_loop import trained
from parity.jobs import ADAM, CENTRAL, COMMON, JOBS, SEEDS, UNEQUAL
from parity.peers import Seed

PEER = [0.90, 0.91, 0.89, 0.90, 0.92, 0.88]
SAME = [0.91, 0.90, 0.89, 0.91, 0.92, 0.88]
WORSE = [accuracy - 0.05 for accuracy in PEER]


def test_what_agrees() -> None:
    assert rule.fault(SAME, PEER, WORSE, (None, None), "none") is None
    assert rule.fault(SAME, PEER, WORSE, (2.0, 2.019), "tight") is None
    assert rule.fault(SAME, PEER, WORSE, (2.0, 2.2), "rényi") is None
    found = rule.difference(SAME, PEER)  # of 0.01, -0.01, 0, 0.01, 0, 0: mean 1/600, t(5) at 95 % 2.015
    assert (found.mean, found.high) == pytest.approx((0.0016667, 0.0016667 + 2.01505 * 0.0075277 / 6**0.5), abs=1e-6)


@pytest.mark.parametrize(
    ("ours", "planted", "epsilons", "accountant", "words"),
    [
        ([one - 0.021 for one in PEER], WORSE, (None, None), "none", "accuracy differs by -0.021"),
        ([one - 0.018 for one in SAME], WORSE, (None, None), "none", "accuracy differs"),  # its interval leaves
        ([0.95, 0.85, 0.95, 0.85, 0.95, 0.85], WORSE, (None, None), "none", "accuracy differs"),  # nothing is known
        (SAME, SAME, (None, None), "none", "the planted fault is not seen"),
        (SAME, WORSE, (2.0, 2.03), "tight", "epsilon 2.0 beside 2.03"),
        (SAME, WORSE, (2.03, 2.0), "tight", "epsilon"),
        (SAME, WORSE, (2.2, 2.0), "rényi", "epsilon"),
        (SAME, WORSE, (2.0, None), "tight", "epsilon"),
        (SAME, WORSE, (None, 2.0), "none", "epsilon"),
    ],
)
def test_what_does_not(ours: list, planted: list, epsilons: tuple, accountant: str, words: str) -> None:
    assert (rule.fault(ours, PEER, planted, epsilons, accountant) or "").startswith(words)


@pytest.mark.parametrize("ours", [PEER[:5], [*PEER[:5], float("nan")]])
def test_no_verdict_of_missing_accuracies(ours: list[float]) -> None:
    with pytest.raises(ValueError, match=r"5 and 6 seeds|not finite"):
        rule.difference(ours, PEER)
    with pytest.raises(ValueError, match="at least five"):
        rule.difference(PEER[:4], PEER[:4])


@pytest.mark.parametrize("wrong", ["fedavgg", "seeds=3", "seeds=3-6", "seeds=9-3"])
def test_an_unknown_argument_is_named(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fedavg", wrong]) == 2
    assert f"parity: {wrong}; allowed: sgd, fedavg, " in capsys.readouterr().out


def test_the_page_shows_the_committed_results() -> None:
    results = json.loads(RESULTS.read_text())
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == table(results).strip()
    assert results.keys() == JOBS.keys() and {pair: words for pair, words in faults(results).items() if words} == {}
    of = [found["accuracy"] for job in JOBS for name, found in results[job].items()]
    assert {len(accuracies) for accuracies in of} == {len(SEEDS)}
    assert all(set(results[job]) == {"fedpriv", "planted", *JOBS[job].peers} for job in JOBS)


def test_the_peers_have_our_versions_of_what_both_use() -> None:
    locks = [(ROOT / name).read_text() for name in ("requirements.txt", "parity/requirements.txt")]
    assert "--hash=sha256:" in locks[1] and not re.search(r"https?://|--(extra-)?index-url|--find-links", locks[1])
    ours, theirs = (dict(re.findall(r"(?m)^([\w.-]+)==([^\s;]+)", lock)) for lock in locks)
    shared = ("torch", "flwr", "opacus", "scikit-learn")
    assert "pfl" in theirs and [ours[name] for name in shared] == [theirs[name] for name in shared]


ALL = ("clients_per_round=20", "local.batch_size=1000", "num_rounds=3", "partition.alpha=0.3")
NO_NOISE = ("strategy.client.clip_norm=1000", "strategy.client.noise_multiplier=1e-9")


@pytest.mark.parametrize(
    "options",
    [
        ("strategy=fedavg", *UNEQUAL),
        ("strategy=fedprox", *UNEQUAL, "local.steps=3", "strategy.client.proximal_mu=2"),
        ADAM,
        ("strategy=scaffold", *UNEQUAL, *NO_NOISE, "strategy.client.correction=1", "local.steps=4"),
        (*CENTRAL, *UNEQUAL, "strategy.client.clip_norm=0.3", "strategy.client.noise_multiplier=1e-9"),
    ],
    ids=lambda options: options[0].removeprefix("strategy=") if "adam" not in " ".join(options) else "fedadam",
)
def test_a_plain_loop_without_chance_ends_where_fedpriv_does(options: tuple[str, ...], tmp_path: Path) -> None:
    """Batches are whole, and all clients take part."""
    chosen = [*options, *ALL]
    export(chosen, [3], tmp_path / "job")
    terms = json.loads((tmp_path / "job/terms.json").read_text())
    assert terms["cohort"] == terms["clients"] == 20
    seed = Seed(3, terms, dict(np.load(tmp_path / "job/3.npz")))
    run = fedpriv.run([*COMMON, *chosen, "seed=3"], folder=tmp_path / "run", quiet=True)
    ours = load_file(run.folder / "model.safetensors")
    ends = dict(zip(("hidden.1.weight", "hidden.1.bias", "head.0.weight", "head.0.bias"), trained(seed), strict=True))
    assert ends.keys() == ours.keys()
    for name, array in ends.items():
        assert np.abs(array.numpy() - ours[name]).max() < 2e-5, name
    moved = [
        np.abs(array.numpy() - start.numpy()).max() for array, start in zip(ends.values(), seed.start, strict=True)
    ]
    assert min(moved) > 1e-3
