"""The pages of a guarded machine and of a guarded run: what left, what was booked, what stayed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from guarded import GuardedMachines, MachinesGrid, weights

import fedpriv
from fedpriv.commands.node import main as node_command
from fedpriv.guard.reports import moment
from fedpriv.guard.shards import read_answers


def words_of(page: Path) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.read_text().partition("</style>")[2]).split())


def report(network: GuardedMachines, out: Path) -> str:
    given = ["report", f"policy={network.policy(0)}", f"data={network.data(0)}", f"out={out}"]
    assert node_command(given) == 0
    return words_of(out)


def test_an_operator_sees_what_left_and_what_did_not(tmp_path: Path) -> None:
    answers = iter(["crashed: Smith", (np.zeros(2), np.zeros(())), (np.full(3, np.nan), np.zeros(()))])
    network = GuardedMachines(tmp_path, noise_multiplier=20.0, epsilon=5.0)
    network.boxed.app = lambda *given: next(answers, (np.zeros(3), np.zeros(())))
    for kind in ("train", "train", "query"):
        network.ask(kind=kind)
    (counts,) = read_answers(network.data(0)).values()
    assert counts == {"messages": 2, "no arrays": 1, "other form": 1, "not finite": 1, "answered": 5}
    text = report(network, tmp_path / "page.html")
    (spent,) = re.findall(r"against (\S+) 5 a strong promise 1e-05 one training example", text)
    assert float(spent) == pytest.approx(0.54, abs=0.1) and f" {'a' * 16} namespaces 2 " in text
    assert re.search(r"[0-9a-f]+ 2 5 0 1 1 1 In these columns", text), text
    assert "policy 1" in text and "pad_seconds is not set" in text and "sandbox namespaces" in text
    assert "Smith" not in text and "no epsilon protects it" in text


def test_a_signed_heads_time_is_a_date() -> None:
    assert (moment("time", 1795642365), moment("bytes", 1795642365)) == ("2026-11-25 21:32:45 UTC", "1795642365")


def test_what_is_not_confined_and_what_is_padded_is_said(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path, noise_multiplier=20.0, sandbox="none", pad_seconds=700.0)
    text = report(network, tmp_path / "page.html")
    assert "the code of the approved apps is trusted" in text and "takes 700 s, whatever its data" in text
    assert "What left, as it was booked run app sandbox messages what they answered when Nothing." in text


@pytest.mark.parametrize("noise", ["own", "ddgauss"])
def test_a_runs_page_says_who_is_protected_from_whom(noise: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"noise": noise, "sites": 2, "min_replies": 2, "threshold": 2, "sandbox": "none"}
    network = GuardedMachines(tmp_path, 2, noise_multiplier=8.0, **more)
    fedpriv.guarded(FedAvg(fraction_evaluate=0.0), run_dir=tmp_path / "run").start(
        MachinesGrid(network), weights(), num_rounds=1
    )
    text = words_of(tmp_path / "run/report.html")
    figures = re.findall(r"(\S+) (\S+) a [a-z ]+ promise 1e-05 one row", text)
    assert len(figures) == (1 if noise == "own" else 2) and all(claimed == verified for claimed, verified in figures)
    assert ("sums over machines alone" in text, "answer without its masks" in text) == (noise != "own",) * 2
    assert ("Noise: Gaussian, 8" if noise == "own" else "Noise: discrete Gaussian, in the secure sum, 8") in text
    assert "machine 0 1 machine 1 1" in text and "without a sandbox on at least one machine" in text
    assert "How long a machine took is not part of these epsilons" in text and "did not arrive" in text


def test_a_page_is_written_where_nobody_trains_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network = GuardedMachines(tmp_path)
    inside = network.data(0) / "page.html"
    given = ["report", f"policy={network.policy(0)}", f"data={network.data(0)}"]
    assert node_command([*given, f"out={inside}"]) != 0 and not inside.exists()
    assert "must lie outside the data folder" in capsys.readouterr().err
    assert node_command([*given, f"out={tmp_path / 'none' / 'page.html'}"]) != 0
    assert "cannot be written" in capsys.readouterr().err
