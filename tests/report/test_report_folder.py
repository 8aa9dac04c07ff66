"""Reading run folders, and numbers in words."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from html import unescape

import pytest
import yaml
from report_runs import THREAT, make_run

from fedpriv.common.errors import RunFolderError
from fedpriv.report import reading
from fedpriv.report.compare import compare
from fedpriv.report.page import write_report
from fedpriv.report.reading import SWEEP_FILE, count_releases, damage_of, find_runs, read_run
from fedpriv.report.words import figure, number, seconds, size


def test_a_whole_folder_has_no_problems(tmp_path):
    run = read_run(make_run(tmp_path / "run", rounds=5))
    assert run.problems == {} and run.why_not_comparable is None
    assert [row["round"] for row in run.rounds] == [1, 2, 3, 4, 5]
    assert run.config["num_clients"] == 100 and run.summary["privacy"]["claimed_epsilon"] == 12.3


@pytest.mark.parametrize("cut", [1, 2, 40, 300])
def test_a_torn_last_line_is_left_out_with_a_note(tmp_path, cut):
    folder = make_run(tmp_path / "run", rounds=5)
    file = folder / "metrics.jsonl"
    whole = file.read_bytes().removesuffix(b"\n")
    file.write_bytes(whole[:-cut])
    run = read_run(folder)
    assert len(run.rounds) == 4
    assert "torn" in run.problems["metrics.jsonl"]


def test_a_last_line_without_newline_is_whole(tmp_path):
    folder = make_run(tmp_path / "run", rounds=5)
    file = folder / "metrics.jsonl"
    file.write_bytes(file.read_bytes().removesuffix(b"\n"))
    assert len(read_run(folder).rounds) == 5 and not read_run(folder).problems


def test_a_broken_line_in_the_middle_is_named_and_the_rest_is_kept(tmp_path):
    folder = make_run(tmp_path / "run", rounds=5)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[2] = '{"round": "three"}'
    lines[3] = "\x00\x00"
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read_run(folder)
    assert [row["round"] for row in run.rounds] == [1, 2, 5]
    assert "3, 4" in run.problems["metrics.jsonl"]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("summary.json", '{"strategy": "fed', "summary.json: cannot be read"),
        ("summary.json", "[1, 2]", "summary.json: cannot be read"),
        ("config.yaml", "a: [b", "config.yaml: cannot be read"),
        ("config.yaml", "just words", "config.yaml: cannot be read"),
        ("summary.json", None, "unfinished: 3 rounds"),
        ("config.yaml", None, "config.yaml: missing"),
    ],
)
def test_why_a_run_cannot_be_compared(tmp_path, file, content, reason):
    folder = make_run(tmp_path / "run", rounds=3)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    assert read_run(folder).why_not_comparable.startswith(reason)


def test_runs_are_found_in_the_order_of_a_sweep_and_once(tmp_path):
    for name in ("0", "2", "10", "9-x", "12-x"):
        make_run(tmp_path / "sweep" / name, rounds=1)
    (tmp_path / "sweep" / "0" / "checkpoints").mkdir()
    (tmp_path / "sweep" / "0" / "checkpoints" / "config.yaml").write_text("")
    (tmp_path / "sweep" / ".submitit" / "config.yaml").parent.mkdir()
    (tmp_path / "sweep" / ".submitit" / "config.yaml").write_text("")
    (tmp_path / "sweep" / "11" / ".hydra").mkdir(parents=True)
    (tmp_path / "sweep" / SWEEP_FILE).write_text("{}")
    found = find_runs([tmp_path / "sweep", tmp_path / "sweep" / "2"])
    assert [run.name for run in found] == ["0", "2", "9-x", "10", "11", "12-x"]
    assert read_run(found[-2]).why_not_comparable == "config.yaml: missing"


def test_folders_of_other_programs_are_no_runs(tmp_path, capsys):
    """Where nobody named them: what another program of Hydra's left is told, and left out."""
    run = make_run(tmp_path / "a" / "run", rounds=1)
    (tmp_path / "b" / ".hydra").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.yaml").write_text("model: bert\n")
    assert find_runs([tmp_path]) == [run]
    told = f"fedpriv: left out, as no run of fedpriv: {tmp_path / 'b'}, {tmp_path / 'c'}\n"
    assert capsys.readouterr().err == told
    with pytest.raises(RunFolderError, match="c: its files are of another program"):  # no report is written there
        find_runs([tmp_path / "c"])
    (tmp_path / "c" / "config.yaml").write_text("model: [")  # may be a run's that was damaged
    assert find_runs([tmp_path / "c"]) == [tmp_path / "c"]
    with pytest.raises(RunFolderError, match="no run in it"):
        (tmp_path / "d" / "e" / ".hydra").mkdir(parents=True)
        find_runs([tmp_path / "d"])


def test_a_large_folder_is_not_walked_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_FOLDERS", 3)
    for name in "abcd":
        (tmp_path / name / "x").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="more than 3 folders; name a run's folder, or a sweep's"):
        find_runs([tmp_path])


def test_a_wrong_path_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, words in (("nowhere", "no such folder"), ("file", "not a folder"), ("empty", "no run in it")):
        with pytest.raises(RunFolderError, match=f"{name}: {words}"):
            find_runs([tmp_path / name])


def test_a_finished_run_with_fewer_rounds_than_it_had(tmp_path):
    """Its report and a comparison say so."""
    run = make_run(tmp_path / "run", rounds=3)
    assert "metrics.jsonl" not in read_run(run).problems
    kept = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(kept[:2]))
    words = "ends with round 2 of 3"
    assert damage_of(read_run(run))["metrics.jsonl"] == words
    assert compare([read_run(run)]).warning == f"{run}: metrics.jsonl: {words}"


BARE = {"mechanism": "no_bound", "reason": "sent bare"}


def test_releases_are_counted_per_mechanism_and_client(tmp_path):
    entry = {"round": 1, "client": 7, "sequence": 0, "attempt": 0, "mechanism": "gaussian", "multiplier": 0.05}
    entry |= {key: THREAT[key] for key in ("unit", "adjacency", "observer")}
    lines = [
        entry,
        entry | {"round": 2, "count": 3, "multiplier": 0.2},
        entry | {"client": 8},
        entry | {"client": -1, "multiplier": "inf"},
        {name: value for name, value in entry.items() if name != "multiplier"} | BARE,
    ]
    file = tmp_path / "ledger.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round": 3, "cl')
    problems: dict[str, str] = {}
    gaussian, bare = count_releases(file, problems)
    assert (gaussian.mechanism, gaussian.total, gaussian.clients, gaussian.most_by_one_client) == ("gaussian", 6, 2, 4)
    assert gaussian.parameters == {"multiplier": (0.05, math.inf)} and gaussian.threat == "client, replace-one, server"
    assert (bare.mechanism, bare.reason, bare.total, bare.parameters) == ("no_bound", "sent bare", 1, {})
    assert "counts a torn line as spent" in problems["ledger.jsonl"]


def test_a_page_to_hand_on_names_no_place_of_its_machine(tmp_path):
    """The page of `private/`, which stays, has the configuration as it is."""
    folder = make_run(tmp_path / "run")
    places = {
        "root": f"/home/quirin/{'patients of the clinic ' * 9}.csv",
        "cache": "~/cache",
        "split": ["D:\\quirin\\split.csv", "\\\\nas\\quirin"],
        "address": "ray://quirin.clinic.lan:10001",
    }
    options = yaml.safe_load((folder / "config.yaml").read_text()) | {"run_dir": "/home/quirin/run", "dataset": places}
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    write_report(folder)
    page, private = (unescape((folder / name).read_text()) for name in ("report.html", "private/report.html"))
    assert "quirin" not in page and "clinic" not in page and "clients_per_round: 10" in page and "split:" in page
    assert private.count("quirin") == 5


def test_numbers_of_a_summary():
    assert number("inf") == math.inf and number(3) == 3.0
    assert [number(value) for value in (None, True, math.nan, "12", [1])] == [None] * 5
    assert [figure(value) for value in (None, math.inf, 12.34, 0.0, 12345.6, 2.5e7, 0.0004)] == [
        "–", "∞", "12.3", "0", "12,346", "2.50e+07", "4.00e-04",
    ]  # fmt: skip
    assert [seconds(value) for value in (0.25, 31.04, 125.4, 3700)] == ["250 ms", "31.0 s", "2 min 5 s", "1 h 1 min"]
    assert [size(value) for value in (12, 2048, 3 * 2**30)] == ["12 B", "2.0 KiB", "3.0 GiB"]


def test_a_start_imports_no_table_no_plot_and_no_template():
    """Of a command, a run, a node, or of what reads a run."""
    late = ("matplotlib", "jinja2", "pandas")
    for modules in ("fedpriv.commands.runs, fedpriv.runs.start", "fedpriv.commands.node", "fedpriv.report.__main__"):
        code = f"import sys, {modules}; print([name for name in {late} if name in sys.modules])"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
