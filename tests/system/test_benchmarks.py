"""`make bench` in the size of a test: the table it writes, and that the parts of a round are told apart."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rotation import together

from benchmarks import bench_text, gpu, population, speed
from benchmarks.__main__ import main
from benchmarks.job import Job
from benchmarks.shares import PARTS, Stopwatch
from benchmarks.speed import first_round_of
from benchmarks.statistics import median_interval


def asked_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Its first answer to equal questions: each costs a process that imports torch."""
    answers: dict[str, Any] = {}

    def answer(*arguments: Any) -> Any:
        key = repr(arguments)
        if key not in answers:
            answers[key] = function(*arguments)
        return answers[key]

    return answer


@pytest.mark.rotates(3, together(1))
def test_the_table_of_a_small_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_processor_seconds", asked_once(speed._processor_seconds))  # no warm-up
    assert (
        main(
            [
                f"out={tmp_path}",
                "rounds=2",
                "size=test",
                "jobs=linear",
                "parts=engines,start,scaling,shares,server,secure_sum",
            ]
        )
        == 0
    )
    results = json.loads((tmp_path / "speed.json").read_text())
    assert {"cores", "load", "versions", "rounds"} <= results["machine"].keys()
    for bare in ("bare loop, 1 process", "tuned bare loop, 1 process"):
        assert f"inprocess, sequential / {bare}" in results["seconds per round, linear"]
    assert results["seconds per round by population"].keys() == {"40 clients / 20 clients"}
    for what in ("own time per round in s", "peak memory of a round in MiB"):
        rows = results[f"server's {what}, 20 replies of 100 parameters"]
        assert set(rows) == {"all, in order", "the first of 1.3 times as many"}
    rows = results["secure sum, 6 clients, 300 parameters, 18 bits, 0 colluders, up to 20% dropouts"]
    assert rows["client: the packed vector, bytes"] == [1152] * 3
    assert {"client: masks, s (20% dropouts)", "server: whole round, s (0% dropouts)"} <= set(rows)
    starts = results["processor seconds per command, from a fresh process"]
    for refusal in ("a wrong choice", "a wrong value"):
        assert starts[f"{refusal} / import torch"][0] < starts["the default job, one round / import torch"][0]
    for strategy in ("fedavg", "fedcad"):
        found = results[f"share of a round, {strategy}"]
        assert tuple(found) == PARTS
        assert all(found[part][0] > 0 for part in PARTS)
        assert sum(found[part][0] for part in PARTS if part != "evaluation") == pytest.approx(1, abs=0.1)
    for figures in (rows for heading, rows in results.items() if heading != "machine"):
        assert all(low <= median <= high for median, low, high in figures.values())
    assert (tmp_path / "speed.png").stat().st_size > 1000


@pytest.mark.rotates(3, together(2))
def test_the_table_of_populations_and_late_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that the first round of the command line is timed. Processes are those of the smaller population alone."""
    run = asked_once(population._in_a_process)

    def timed(job: Job, *arguments: Any) -> float:
        began = time.perf_counter()
        found: float = first_round_of(job, *arguments)
        assert 1 < found < time.perf_counter() - began
        return found

    first_round = asked_once(lambda *arguments: timed(population.job(20), *arguments))
    monkeypatch.setattr(population, "_in_a_process", lambda clients, *arguments: run(20, *arguments))
    monkeypatch.setattr(population, "first_round_of", lambda job, *arguments: first_round(*arguments))
    assert main([f"out={tmp_path}", "rounds=2", "size=test", "parts=population", "rounds_of=60"]) == 0
    results = json.loads((tmp_path / "population.json").read_text())
    ratios = {"40 clients / 20 clients"}
    for heading in ("seconds per round", "a run's processor seconds per round", "a run's peak memory"):
        assert results[f"{heading} by population, fedavg"].keys() == ratios
    assert results["a run's peak memory in MiB, fedavg"]["40 clients"][0] > 100
    first = results["from a process's start to the end of its first round in s, fedavg"]
    assert set(first) == {"20 clients", "40 clients"} and all(low > 1 for _, low, _ in first.values())
    killed = results["20 clients took part when a run was killed, fedavg"]
    assert killed["s until the tenth begins again"][0] <= killed["s until it has ended"][0]
    late = results["late rounds / early rounds of a run of 60, fedavg"]
    assert set(late) == {"a whole round", "its end"} and all(low > 0 for _, low, _ in late.values())


def test_too_few_rounds_have_no_late_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="rounds_of=39: must be at least 40"):
        population.late_rounds(39, "fedavg")
    assert population.main(["rounds_off=1"]) == 2
    assert "rounds_off: no such option; allowed: rounds" in capsys.readouterr().err


def gpu_parts(out: Path, *more: str) -> int:
    return main([f"out={out}", "device=cpu", "size=test", "seconds=1", *more])


def test_parts_of_a_gpu_are_written_and_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the CPU, which has no memory of a device."""
    assert gpu_parts(tmp_path, "parts=gpu_steps,gpu_dpsgd") == 0
    steps, rounds = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("gpu_steps", "gpu_dpsgd"))
    kinds = {"ours", "ours, sum alone", "ours, noise alone", "plain", "Opacus hooks", "Opacus ghost"}
    assert steps["seconds"].keys() == {f"{kind} (cnn, 4 pictures)" for kind in kinds}
    assert "ours (cnn, 4 pictures) / plain (cnn, 4 pictures)" in steps["ratios"]
    assert rounds["ratios"].keys() == {"mlp, 2 clients, 2 steps, sequential / mlp, 2 clients, 2 steps, vectorised"}
    for part in (steps, rounds):
        assert part["machine"]["device"] == "cpu" and not part["failed"] and not part["warned"]
        assert all(0 < low <= median <= high for median, low, high in part["seconds"].values())
    before = (tmp_path / "gpu_steps.json").read_bytes()
    capsys.readouterr()
    assert gpu_parts(tmp_path, "parts=gpu_steps") == 0
    assert "is there already" in capsys.readouterr().out
    assert (tmp_path / "gpu_steps.json").read_bytes() == before


@pytest.mark.parametrize("fault", ["an error", "a warning"])
def test_a_part_that_failed_or_went_on_slower_is_incomplete(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part(meter: gpu.Meter) -> dict[str, Any]:
        if fault == "a warning":
            logging.getLogger("fedpriv").warning("a slower way")
        works = {"good": lambda: None, "bad": lambda: 1 / (fault == "a warning")}
        return gpu.told(meter.alternate(works), [("good", "bad")])

    monkeypatch.setitem(gpu.PARTS, "gpu_steps", part)
    assert gpu_parts(tmp_path, "parts=gpu_steps") == 1
    found = json.loads((tmp_path / "gpu_steps.incomplete.json").read_text())
    assert "good" in found["seconds"] and not (tmp_path / "gpu_steps.json").exists()
    if fault == "an error":
        assert found["failed"] == {"bad": "ZeroDivisionError: division by zero"} and found["ratios"] == {}
    else:
        assert found["warned"] == ["a slower way"]
    monkeypatch.setitem(gpu.PARTS, "gpu_steps", lambda meter: gpu.told(meter.alternate({"good": lambda: None}), []))
    assert gpu_parts(tmp_path, "parts=gpu_steps") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_steps.json"]


def test_parts_of_a_gpu_need_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"out={tmp_path}", "parts=gpu_step"]) == 2
    assert "parts=gpu_step: of a GPU there are gpu_all, gpu_cohort_cnn, " in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main([f"out={tmp_path}", "parts=gpu_all"]) == 2
        assert "parts=gpu_all: this machine has no GPU" in capsys.readouterr().err


def test_an_unknown_option_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"out={tmp_path}", "round=2"]) == 2
    assert "round: no such option; allowed: rounds" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_part_does_not_count_what_another_takes_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    watch = Stopwatch()
    inner = watch.timed("training", lambda: sleep(5))
    outer = watch.timed("privacy", lambda: (sleep(1), inner(), sleep(2)))
    outer()
    sleep(7)  # outside all parts
    watch.end_round()
    assert watch.rounds == [{"training": 5.0, "privacy": 3.0}]


def test_text_models_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    bench_text.main(["batch=4", "tokens=5", "repeats=1"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["bag", "gru", "transformer"]
    assert all(float(line.split()[-1]) > 0 for line in lines[1:4]) and "100 words of 65536" in lines[4]


def test_a_row_of_hashed_words_costs_what_its_words_cost() -> None:
    """Of 65,536 buckets: the gradients' sum over token ids is far from the cost of dense rows."""
    found = bench_text.hashed_words(64, 3)
    assert found["ids"] < found["dense"] / 1.5


def test_median_and_its_interval() -> None:
    """Of 21 values the binomial's 2.5% point is 6: the interval runs from the sixth to the sixteenth."""
    assert median_interval(list(range(21))) == (10, 5, 15)
    assert median_interval([3.0, 1.0]) == (2.0, 1.0, 3.0)
