"""A target in an interpreter of its own, played by one archive while the judges stay here; lines, baselines, pairs."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.api.calls import check
from fedpriv.checking.lines import Lines
from fedpriv.checking.player import FILES
from fedpriv.checking.result import Check, log_lines, sarif
from fedpriv.commands.check import main
from fedpriv.common.command_line import DONE, FAILED
from fedpriv.common.errors import OptionError

ROOT = Path(__file__).parents[2]
TARGETS = """
import sys
import numpy as np


def release(update, rng):
    short = update / np.maximum(1.0, np.linalg.norm(update))
    return short + rng.normal(0, 3.73, update.shape)


def with_loss(update, rng):
    loss = float(np.mean(update**2))
    return {"update": release(update, rng), "loss": loss}


def one_noise(update):
    noise = np.random.default_rng(5).normal(0, 3.73, update.shape)
    return update / np.maximum(1.0, np.linalg.norm(update)) + noise


def ends(update, rng):
    sys.exit(3)


def killed(update, rng):
    import os
    os._exit(4)


def raises(update, rng):
    raise NotImplementedError("of no use")
"""
QUICK: dict[str, Any] = {"dims": (4,), "trials": 400, "seconds": 10}


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_code.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "their_code.py"


def faults(found: Check) -> set[str]:
    return {one.name for one in found.faults}


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("release", set()),
        ("with_loss", {"number-without-noise", "unbounded-sensitivity"}),
        ("one_noise", {"no-randomness"}),
    ],
)
def test_a_target_elsewhere_has_the_verdict_of_one_here(targets: Path, name: str, names: set[str]) -> None:
    here, there = (check(f"their_code:{name}", **QUICK, **more) for more in ({}, {"python": sys.executable}))
    both = faults(here) & faults(there)  # of a faulty target more may be found in more time
    assert names <= both and (names or not faults(here) | faults(there)), (str(here), str(there))
    assert here.facts["form"] == there.facts["form"]
    places = [{one.name: one.place for one in found.faults if one.name in names} for found in (here, there)]
    assert places[0] == places[1] and all(places[0].values())
    assert there.audited is not None and there.layers[1].ran


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ends", "SystemExit: 3"),
        ("killed", "the target's process ended (exit code 4)"),
        ("raises", "NotImplementedError: of no use"),
    ],
)
def test_what_ends_a_target_elsewhere_is_one_line(targets: Path, name: str, words: str) -> None:
    found = check(f"their_code:{name}", python=sys.executable, **QUICK)
    assert found.verdict == "could not check" and words in str(found)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 3 8", "is Python 3.8; allowed: 3.9 and newer"),
        ("echo no module named numpy >&2; exit 1", "must be an interpreter with numpy; it says: no module named numpy"),
    ],
)
def test_an_interpreter_that_will_not_do_is_named(targets: Path, script: str, words: str) -> None:
    python = targets.parent / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(OptionError, match=words.replace("(", r"\(")):
        check("their_code:release", python=python, **QUICK)
    with pytest.raises(OptionError, match="there is no such file or folder"):
        check("their_code:release", python=targets.parent / "none", **QUICK)
    with pytest.raises(OptionError, match=r"their_code has no nothing"):
        check("their_code:nothing", python=sys.executable, **QUICK)


@pytest.mark.parametrize("name", FILES)
def test_the_archive_is_of_python_3_9_and_needs_numpy_alone(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text(), feature_version=(3, 9))
    known = {*sys.stdlib_module_names, "numpy", "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {one.name.partition(".")[0] for one in node.names} <= known, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            ours = str(node.module).replace(".", "/") + ".py" in FILES or node.module == "fedpriv.checking"
            under = "fedpriv.privacy.events" in str(node.module)  # for the type checker
            assert ours or under or str(node.module).partition(".")[0] in known, ast.unparse(node)
        elif isinstance(node, ast.Call):
            name_of = getattr(node.func, "id", "")
            assert not (name_of == "zip" and node.keywords), "zip has no strict there"
            unions = name_of in ("isinstance", "issubclass") and isinstance(node.args[1], ast.BinOp)
            assert not unions, f"types are no union there: {ast.unparse(node)}"
    aliases = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    assert not any(
        isinstance(one, ast.BinOp) and isinstance(one.op, ast.BitOr) for alias in aliases for one in ast.walk(alias)
    )


def test_the_line_of_a_number_and_of_a_draw_is_found(targets: Path) -> None:
    import importlib

    sys.path.insert(0, str(targets.parent))
    module = importlib.import_module("their_code")
    sys.path.pop(0)
    update, lines = np.arange(4.0), TARGETS.splitlines()
    with Lines(str(targets), {"loss": [np.mean(update**2)]}) as seen:
        module.with_loss(update, np.random.default_rng(1))
    del sys.modules["their_code"]
    ((file, line),) = seen.numbers.values()
    assert file == str(targets) and "loss = float" in lines[line - 1]
    assert "rng.normal(0, 3.73" in lines[seen.draws[0][1] - 1]


def test_a_report_for_code_hosts_names_file_and_line(targets: Path) -> None:
    found = check("their_code:with_loss", **QUICK)
    bare = next(one for one in found.faults if one.name == "number-without-noise")
    assert bare.pair == "no update against one" and list(bare.records) == ["released.loss"]
    result = next(one for one in sarif(found)["runs"][0]["results"] if one["ruleId"] == "number-without-noise")
    where = result["locations"][0]["physicalLocation"]
    number = where["region"]["startLine"]
    line = TARGETS.splitlines()[number - 1]
    assert where["artifactLocation"]["uri"] == "their_code.py" and "loss = float" in line and result["level"] == "error"
    head = f"::error file=their_code.py,line={number},title=number-without-noise::"
    assert any(one.startswith(head) for one in log_lines(found))
    again = Check.from_json(json.loads(json.dumps(found.as_json())))
    assert [one.place for one in again.findings] == [one.place for one in found.findings]


def test_a_baseline_accepts_its_doubts_and_no_others(
    targets: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ["dims=4", "trials=400", "seconds=10", "out=o"]
    assert main(["their_code:release", *quick]) == DONE
    assert "doubts as of most programs: broken-number-leaves" in capsys.readouterr().out
    (targets.parent / "o/check.json").rename(targets.parent / "base.json")
    assert main(["their_code:release", *quick, "baseline=base.json"]) == DONE
    assert "accepted doubts: broken-number-leaves" in capsys.readouterr().out
    empty = json.loads((targets.parent / "base.json").read_text()) | {"findings": []}
    (targets.parent / "base.json").write_text(json.dumps(empty))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["their_code:release", *quick, "baseline=base.json"]) == FAILED
    said = capsys.readouterr().out
    assert "fails: base.json has no doubt broken-number-leaves" in said and "::warning title=broken-number" in said
    assert main(["their_code:with_loss", *quick, "baseline=base.json"]) == 2
    assert "is of their_code:release; allowed: a check of their_code:with_loss" in capsys.readouterr().err
    (targets.parent / "base.json").write_text("{}")
    assert main(["their_code:release", *quick, "baseline=base.json"]) == 2
    assert "must be the check.json of an earlier check" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], [f"python={sys.executable}"]])
def test_a_pair_is_shown_to_be_pasted(targets: Path, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["dims=4", "trials=400", "seconds=10", "out=o", *more]
    assert main(["their_code:with_loss", *quick, "show=no update against one"]) == FAILED
    said = capsys.readouterr().out
    assert (
        "left = array([0., 0., 0., 0.])" in said and "# released.loss = [0.0]" in said and "np.random.seed(1)" in said
    )
    assert main(["their_code:release", *quick, "show=none"]) == FAILED
    assert "show=none: there is no such pair of inputs; allowed: opposite updates; " in capsys.readouterr().out
