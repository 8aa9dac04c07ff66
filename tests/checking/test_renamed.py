"""No verdict changes when the classes, functions, variables and the file of a mod, a filter, an app or a strategy are
called otherwise. What the libraries themselves call keeps its name.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from checking.gallery.patches import file_of
from checking.renaming import Renamed

from benchmarks.check_gallery import OPTIONS, claim_of
from fedpriv.checking.asking import CheckOptions
from fedpriv.checking.checks import subject_of
from fedpriv.checking.replay import replay
from fedpriv.checking.subject import Budget
from fedpriv.common.command_line import read_options

#: What NVFlare's own code calls or reads, where the package is not installed; and what a check is given by its name.
PUBLIC = {"process", "process_dxo", "data", "data_kind", "meta", "target", "CLAIM"}


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def of_libraries(module: ModuleType) -> set[str]:
    """Names that classes outside the module give to their parts: a subclass has to keep them."""
    classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    return {name for one in classes for base in one.__mro__ if base.__module__ != module.__name__ for name in dir(base)}


def findings(target: Any, claim: dict[str, Any]) -> set[tuple[str, str]]:
    options = {name: claim[name] for name in OPTIONS if claim.get(name) is not None}
    question = read_options(CheckOptions, {**options, "dims": "16"}).question
    subject = subject_of(target, question)
    assert subject is not None
    found = [*subject.notes, *replay(subject, question, Budget(2)).findings]
    return {(one.name, one.severity) for one in found if one.severity != "note"}


@pytest.mark.parametrize(
    "program",
    ["saar", "tagus", "cocker", "dane", "weser", "yonne", "murg", "unstrut", "tweed", "ure", "warta"],
)
@pytest.mark.rotates(4)
def test_other_names_change_no_verdict(program: str, tmp_path: Path) -> None:
    file = file_of(program)
    module = loaded(file)
    tree = ast.parse(file.read_text())
    transformer = Renamed(tree, PUBLIC | of_libraries(module))
    assert len(transformer.names) > 5
    other = tmp_path / "q.py"
    other.write_text(ast.unparse(transformer.visit(tree)))
    claim = dict(claim_of(file))
    before, after = findings(module.target, claim), findings(loaded(other).target, claim)
    assert before == after
