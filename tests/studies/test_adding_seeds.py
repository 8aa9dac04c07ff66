"""Seeds that are added look by look: until a claim is decided, or the looks or the core-minutes are used."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_paper import PAPER, with_paper

from fedpriv.commands import reproduce
from fedpriv.common.errors import OptionError
from fedpriv.data.splits import Split, write_split
from fedpriv.studies import job_kinds, spec
from fedpriv.studies.data import held_out
from fedpriv.studies.evidence import t_test
from fedpriv.studies.results import PaperResults, read_results

#: A row's options -> the mean of its figure, which is drawn by the seed with a standard deviation of 1.
MEANS = {"rival": 0.0, "far": 9.0, "near": 1.2, "same": 0.02}
#: Runs of a table where a claim on two of its four rows waits through all looks: 3, then up to 24 of these two.
ALL_LOOKS = 2 * 3 + 2 * 24


def value(name: str, seed: int) -> float:
    return MEANS[name] + float(np.random.default_rng([seed, len(name)]).standard_normal())


def table(**more: Any) -> dict[str, Any]:
    return {
        "title": "Drawn", "source": "s", "kind": "dme", "measure": "figure:drawn", "orderings": False,
        "rows": {name: {"label": name, "options": [f"of={name}"]} for name in MEANS},
        "columns": {"final": {"label": "drawn"}}, **more,
    }  # fmt: skip


def better(table: str, row: str) -> dict[str, Any]:
    test = {"kind": "better", "pairs": [[f"{table}/{row}/final", f"{table}/rival/final"]]}
    return {"claim": f"{row} is better", "source": "s", "test": test}


def similar(table: str, row: str) -> dict[str, Any]:
    test = {"kind": "similar", "pairs": [[f"{table}/{row}/final", f"{table}/rival/final"]], "within": 2.0}
    return {"claim": f"{row} is the same", "source": "s", "test": test}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs that were carried out, whose figures are drawn."""
    done: list[str] = []

    def work(job: Any, path: Path) -> dict[str, Any]:
        done.append(job.name)
        time.sleep(0.002)  # of which a table's core-minutes are made
        name = dict(option.split("=") for option in job.options)["of"]
        return {"drawn": value(name, job.seed)}

    monkeypatch.setitem(job_kinds.WORK, "dme", work)
    return done


Call = Callable[..., PaperResults]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    def made(claims: dict[str, Any], tables: dict[str, Any], *options: str, code: int = 0) -> PaperResults:
        paper = {"seeds": {"small": [3, 6, 24], "literal": 3}, "figures": {}, "tables": tables, "claims": claims}
        with_paper(tmp_path, monkeypatch, **paper)
        arguments = ["paper=made_up", "workers=1", f"out={tmp_path}", f"data={tmp_path}", *options]
        assert reproduce.main(arguments) == code
        return read_results(tmp_path / "made_up", PaperResults)[0]

    return made


def test_a_clear_difference_needs_one_look(drawn: list[str], call: Call) -> None:
    found = call({"far": better("t", "far")}, {"t": table()})
    assert found.claims[0].verdict == "holds" and len(drawn) == 3 * len(MEANS) and found.tables[0].looks == (3, 6, 24)
    words = "Looked at after 3 seeds, of 3, 6 and 24 that were planned: no claim waits for more."
    assert found.tables[0].notes == (words,)


def test_a_faint_one_needs_more_and_is_found_again(drawn: list[str], call: Call, tmp_path: Path) -> None:
    """Only cells for which a claim waits get more seeds; a second call makes nothing, and finds the same."""
    claims = {"far": better("other", "far"), "near": better("t", "near"), "same": similar("t", "same")}
    tables = {"t": table(), "other": table(options=["other=1"])}
    found = call(claims, tables)
    assert [claim.verdict for claim in found.claims] == ["holds"] * 3
    assert "No further seeds" not in " ".join(claim.words for claim in found.claims)
    assert all(claim.p is not None and claim.p <= 0.05 and "p = " in claim.words for claim in found.claims[1:])
    assert [len(row.cells[0].runs) for row in found.tables[0].rows] == [6, 3, 6, 6]  # nothing waits for "far" there
    assert len(drawn) == 6 + 3 + 6 + 6 + 3 * len(MEANS)
    words = "Looked at after 3 and 6 seeds, of 3, 6 and 24 that were planned (the later ones not of all cells): "
    assert found.tables[0].notes[0].startswith(words)
    assert "Looked at after 3 seeds" in found.tables[1].notes[0]
    drawn.clear()
    again = call(claims, tables)
    assert drawn == [] and again == found
    assert "corrected for looks, pairs and all claims" in (tmp_path / "made_up" / "README.md").read_text()


def test_a_difference_that_is_not_there_uses_all_looks(drawn: list[str], call: Call) -> None:
    found = call({"same": better("t", "same")}, {"t": table()})
    assert found.claims[0].verdict == "not decided" and len(drawn) == ALL_LOOKS
    assert found.claims[0].words.endswith("No further seeds: all looks are taken.")
    assert found.tables[0].notes[0].endswith("all looks are taken.")


def test_a_table_keeps_to_its_core_minutes(drawn: list[str], call: Call) -> None:
    """The first look is always made; another only if it fits at the pace of those before."""
    found = call({"same": better("t", "same")}, {"t": table(core_minutes={"small": 1e-9})})
    assert found.claims[0].verdict == "not decided" and len(drawn) == 3 * len(MEANS)
    assert re.search(
        r"with the next it would use [\d.e-]+ core-minutes, and 1e-09 are allowed\.$", found.tables[0].notes[0]
    )


def test_a_person_may_allow_more_core_minutes(drawn: list[str], call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    """In place of the file's, of the paper and of a table; what was run then counts also where it is read again."""
    claims, tables = {"same": better("t", "same")}, {"t": table(core_minutes={"small": 1e-9})}
    call(claims, tables)
    found = call(claims, tables, "core_minutes=1")
    assert len(drawn) == ALL_LOOKS and found.tables[0].notes[0].endswith("all looks are taken.")
    assert found.command.endswith(" scale=small core_minutes=1")
    for again in ("run=false", "run=true"):
        assert call(claims, tables, again).claims == found.claims
    assert len(drawn) == ALL_LOOKS
    for wrong in ("0", "many", "-1", "1.5"):
        assert call(claims, tables, f"core_minutes={wrong}", code=2).claims == found.claims
        assert f"core_minutes={wrong}: must be a whole number from 1 to" in capsys.readouterr().err


def test_what_was_begun_is_gone_on_with(drawn: list[str], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that ends between two looks; the next one makes only what is missing."""
    work = job_kinds.WORK["dme"]

    def fails(job: Any, path: Path) -> dict[str, Any]:
        if job.seed == 4:
            raise KeyboardInterrupt
        return work(job, path)

    claims, tables = {"same": better("t", "same")}, {"t": table()}
    with monkeypatch.context() as patch:
        patch.setitem(job_kinds.WORK, "dme", fails)
        with pytest.raises(Exception, match="no results"):
            call(claims, tables, code=130)
    before = list(drawn)
    assert 3 * len(MEANS) <= len(before) < 6 * len(MEANS)
    call(claims, tables)
    assert len(drawn) == ALL_LOOKS == len(set(drawn))


def test_what_is_there_is_evaluated_without_a_run(drawn: list[str], call: Call, tmp_path: Path) -> None:
    """Also what is marked to be made anew, which stays marked; looks that were not taken are not taken."""
    claims, tables = {"same": better("t", "same")}, {"t": table()}
    call(claims, tables, "seeds=3")
    drawn.clear()
    file = tmp_path / "made_up" / "runs.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["superseded"] = "its noise changed"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = call(claims, tables, "run=false")
    assert drawn == [] and found.claims[0].verdict == "not decided"
    assert found.tables[0].notes[0].endswith("the next look has not been run.")
    assert [row.cells[0].superseded for row in found.tables[0].rows] == ["its noise changed", None, None, None]
    assert found.tables[0].rows[1].cells[0].measured is not None
    missing = call(claims, {"t": table(), "new": table(options=["new=1"])}, "run=false")
    assert drawn == [] and "it has not been run yet" in str(missing.tables[1].rows[0].cells[0].missing)


def test_a_table_whose_next_look_is_there_has_it(drawn: list[str], call: Call, tmp_path: Path) -> None:
    """Also where another table's is not, or only in part."""
    claims = {"same": better("t", "same"), "also": better("other", "same")}
    tables = {"t": table(), "other": table(options=["other=1"])}
    call(claims, tables)
    file = tmp_path / "made_up" / "runs.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    kept = [line for line in lines if "other=1" not in line["options"] or line["seed"] < 7]
    assert len(lines) - len(kept) == 17 * 2
    file.write_text("".join(json.dumps(line) + "\n" for line in kept))
    found = call(claims, tables, "run=false")
    assert found.tables[0].notes[0].endswith("all looks are taken.")
    assert "Looked at after 3 and 6 seeds" in found.tables[1].notes[0]
    assert found.tables[1].notes[0].endswith("the next look has not been run.")


def test_a_cell_that_is_ahead_waits_for_the_others_of_its_claim(drawn: list[str], call: Call) -> None:
    """A claim's next look is of the cells that have the fewest seeds; what is there is used whoever asked for it."""
    claims, tables = {"near": better("t", "near")}, {"t": table()}
    assert [len(row.cells[0].runs) for row in call(claims, tables).tables[0].rows] == [6, 3, 6, 3]
    drawn.clear()
    found = call({"same": better("t", "same")}, tables, "core_minutes=1")
    assert [len(row.cells[0].runs) for row in found.tables[0].rows] == [24, 3, 6, 24]
    assert len(drawn) == 18 + 21 and found.tables[0].notes[0].endswith("all looks are taken.")


def test_one_claims_end_is_not_anothers(drawn: list[str], call: Call, tmp_path: Path) -> None:
    """In one table: one has all its looks, those of the other are not there."""
    claims, tables = {"same": better("t", "same"), "close": similar("t", "near")}, {"t": table()}
    call({"same": better("t", "same")}, tables)
    found = call(claims, tables, "run=false")
    assert [claim.verdict for claim in found.claims] == ["not decided"] * 2
    ends = ("all looks are taken.", "the next look has not been run.")
    assert all(claim.words.endswith(end) for claim, end in zip(found.claims, ends, strict=True))
    words = "all looks are taken; the next look has not been run."
    assert found.tables[0].notes[0].endswith(words)
    assert [len(row.cells[0].runs) for row in found.tables[0].rows] == [24, 3, 3, 24]


def test_cells_that_share_a_run_share_its_looks(drawn: list[str], call: Call) -> None:
    """A claim on the second column is decided, and its figures are of the runs that the first column's claim asked
    for: at once, and whoever asks again.
    """
    columns = {"final": {"label": "drawn"}, "again": {"label": "the same run"}}
    far = {"kind": "better", "pairs": [["t/far/again", "t/rival/again"]]}
    claims = {"same": better("t", "same"), "far": {"claim": "far", "source": "s", "test": far}}
    found = call(claims, {"t": table(columns=columns)})
    counts = {row.name: [len(cell.runs) for cell in row.cells] for row in found.tables[0].rows}
    assert counts == {"rival": [24, 24], "far": [3, 3], "near": [3, 3], "same": [24, 24]}
    for again in ("run=true", "run=false"):
        assert call(claims, {"t": table(columns=columns)}, again) == found


@pytest.mark.parametrize("killed_after", [13, 15, 18, 20])
def test_a_study_that_was_killed_ends_as_one_that_was_not(
    killed_after: int, drawn: list[str], call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the middle of a look one claim has its runs and another does not; it waits for it, since they are decided
    together.
    """
    work = job_kinds.WORK["dme"]

    def fails(job: Any, path: Path) -> dict[str, Any]:
        if len(drawn) == killed_after:
            raise KeyboardInterrupt
        return work(job, path)

    claims, tables = {"near": better("t", "near"), "same": similar("t", "same")}, {"t": table()}
    with monkeypatch.context() as patch:
        patch.setitem(job_kinds.WORK, "dme", fails)
        with pytest.raises(Exception, match="no results"):
            call(claims, tables, code=130)
    found, made = call(claims, tables), list(drawn)
    assert killed_after < len(made) == len(set(made))
    shutil.rmtree(tmp_path / "made_up")
    drawn.clear()
    assert call(claims, tables).claims == found.claims and sorted(drawn) == sorted(made)


def test_a_look_that_fails_leaves_what_was_there(
    drawn: list[str], call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The claim keeps its verdict and says why it got no more; runs of the look that were made are not lost."""
    work = job_kinds.WORK["dme"]

    def fails(job: Any, path: Path) -> dict[str, Any]:
        if job.seed == 5:
            raise OSError("disk full")
        return work(job, path)

    claims, tables = {"same": better("t", "same")}, {"t": table()}
    with monkeypatch.context() as patch:
        patch.setitem(job_kinds.WORK, "dme", fails)
        found = call(claims, tables, code=1)
    assert found.claims[0].verdict == "not decided" and "disk full" in found.claims[0].words
    assert [len(row.cells[0].runs) for row in found.tables[0].rows] == [3] * 4
    assert "Looked at after 3 seeds" in found.tables[0].notes[0] and "the next look failed" in found.tables[0].notes[0]
    before = len(drawn)
    assert before == 3 * len(MEANS) + 2 * 2
    assert call(claims, tables).claims[0].words.endswith("all looks are taken.")
    assert len(drawn) == ALL_LOOKS  # nothing twice
    file = tmp_path / "made_up" / "runs.jsonl"
    kept = [line for line in file.read_text().splitlines() if json.loads(line)["seed"] != 20]
    file.write_text("".join(line + "\n" for line in kept))
    call(claims, tables, "run=false")
    assert sorted(file.read_text().splitlines()) == sorted(kept)  # a look that is there in part


def test_a_claim_whose_runs_failed_is_still_corrected_for(
    drawn: list[str], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a mend of these runs would make another claim less sure."""
    work = job_kinds.WORK["dme"]

    def fails(job: Any, path: Path) -> dict[str, Any]:
        if "of=same" in job.options:
            raise OSError("disk full")
        return work(job, path)

    claims, tables = {"far": better("t", "far"), "same": better("t", "same")}, {"t": table(seeds=3)}
    with monkeypatch.context() as patch:
        patch.setitem(job_kinds.WORK, "dme", fails)
        found = call(claims, tables, code=1)
    assert found.claims[1].verdict == "cannot be tested here" and "disk full" in found.claims[1].words
    assert found.claims[1].p is None and found.claims[0].p == call(claims, tables).claims[0].p


def test_a_plan_says_what_would_be_run(drawn: list[str], call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exception, match="no results"):
        call({"same": better("t", "same")}, {"t": table()}, "plan=true")
    out = capsys.readouterr().out
    assert (
        drawn == []
        and "made_up: 12 runs, 12 of them to be made" in out
        and f"all looks, at most: {ALL_LOOKS} runs" in out
    )
    assert "made while it uses" not in out  # the made-up paper has no budget
    with pytest.raises(Exception, match="no results"):
        call({"same": better("t", "same")}, {"t": table()}, "plan=true", "core_minutes=7")
    assert ", made while it uses at most 7\n" in capsys.readouterr().out
    call({"same": better("t", "same")}, {"t": table()}, "seeds=3")
    call({"same": better("t", "same")}, {"t": table()}, "plan=true")
    assert "made_up: 12 runs, 0 of them to be made (about 0.0 core-minutes)" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [[3, 3], [6, 3], [], [0, 3], [1, 2, 3, 4, 5, 6]])
def test_looks_are_fixed_and_few(seeds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = with_paper(tmp_path, monkeypatch, seeds={"small": seeds, "literal": 3})
    with pytest.raises(OptionError, match="1 to 5 growing numbers"):
        spec.read(file)


def test_a_pair_is_looked_at_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = json.loads(json.dumps(PAPER))
    changed["tables"]["elsewhere"]["seeds"] = [2, 5]
    changed["claims"]["right"]["test"]["pairs"] = [["noise/little/final", "elsewhere/only/final"]]
    file = with_paper(tmp_path, monkeypatch, **changed)
    with pytest.raises(OptionError, match="noise and elsewhere have other seeds"):
        spec.read(file)


def test_pairs_of_one_claim_may_be_looked_at_apart(drawn: list[str], call: Call) -> None:
    """Each pair by the looks of its own table."""
    both = {**better("t", "far"), "test": {"kind": "better", "pairs": [
        ["t/far/final", "t/rival/final"], ["other/far/final", "other/rival/final"],
    ]}}  # fmt: skip
    found = call({"both": both}, {"t": table(), "other": table(seeds=[4, 8], options=["elsewhere=true"])})
    assert found.claims[0].verdict == "holds"
    assert [one.looks for one in found.tables] == [(3, 6, 24), (4, 8)]
    ahead = [value("far", seed) - value("rival", seed) for seed in range(4)]
    three, four = (float(t_test(ahead[:seeds])[0]) for seeds in (3, 4))
    assert found.claims[0].p == pytest.approx(2 * max(3 * three, 2 * four))  # both sides, three and two looks


def test_a_split_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that divides as many pictures as the set has is taken; another one, or a broken one, is written anew."""
    file, classes = held_out(("dataset=digits",), "digits", 300, 1000, tmp_path)
    content = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.data.load.load_dataset", None)
        assert held_out(("dataset=digits",), "digits", 300, 1000, tmp_path) == (file, classes) == (file, 10)
    for wrong in (Split(np.arange(1000), np.arange(1000, 1300)), Split(np.arange(1437), np.arange(1100, 1437))):
        write_split(file, wrong)
        assert held_out(("dataset=digits",), "digits", 300, 1000, tmp_path) == (file, 10)
        assert file.read_bytes() == content
    file.write_bytes(content[:100])
    assert held_out(("dataset=digits",), "digits", 300, 1000, tmp_path) == (file, 10) and file.read_bytes() == content
