"""`fedpriv check` still says of the gallery's programs what it said when it was measured: by its command, in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checking.gallery.patches import file_of, programs

from benchmarks.check_gallery import checked

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "check_gallery.jsonl"
RIGHT = ("faults found", "no fault found")


def rows() -> list[dict[str, Any]]:
    """Of the programs of which it was right."""
    found = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    return [one for one in found if one["verdict"] == RIGHT[0 if one["faulty"] else 1]]


def test_what_was_measured_is_of_the_whole_gallery() -> None:
    assert {json.loads(line)["file"] for line in MEASURED.read_text().splitlines()} == set(programs())


@pytest.mark.rotates(120)
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["file"])
def test_a_program_is_judged_as_before(row: dict[str, Any]) -> None:
    found = checked(file_of(row["file"]), row["seconds"])
    assert found["verdict"] == row["verdict"], found
