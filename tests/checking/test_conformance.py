"""The gallery as one JSON is whole, and each program in it loads from the JSON alone."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
from checking.gallery.patches import programs

from benchmarks import conformance


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> dict:
    file = tmp_path_factory.mktemp("suite") / "conformance.json"
    conformance.main([f"out={file}"])
    return json.loads(file.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_it_holds_every_program_with_its_verdict_and_every_fault_has_a_kind(suite: dict) -> None:
    assert {one["name"]: one["source"] for one in suite["programs"]} == programs()
    assert len(suite["programs"]) == len(programs())
    for one in suite["programs"]:
        assert one["verdict"] in ("faulty", "sound") and (one["kind"] is not None) == (one["verdict"] == "faulty"), one
        assert f"- {one['form']}" in suite["about"] or f"{one['form']}:" in suite["about"], one["form"]
        loss = math.inf if one["loss"] is None else one["loss"]
        assert (loss > one["claim"]["epsilon"]) == (one["verdict"] == "faulty"), one["name"]


@pytest.mark.filterwarnings("ignore")
def test_each_program_loads_from_the_json_alone(suite: dict) -> None:
    for one in suite["programs"]:
        module = ModuleType(f"suite_{one['name']}")
        sys.modules[module.__name__] = module
        try:
            exec(compile(one["source"], f"{one['name']}.py", "exec"), module.__dict__)
        finally:
            del sys.modules[module.__name__]
        assert module.target is not None
        assert one["claim"] == {"scope": "call", **module.CLAIM}, one["name"]


def test_another_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="one option is needed"):
        conformance.main([f"folder={tmp_path}"])
