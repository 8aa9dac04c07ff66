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

from benchmarks.check_gallery import OPTIONS, claim_of
from fedpriv.checking.asking import question_and_limits, read_options
from fedpriv.checking.checks import subject_of
from fedpriv.checking.replay import replay
from fedpriv.checking.subject import Budget

#: What NVFlare's own code calls or reads, where the package is not installed; and what a check is given by its name.
PUBLIC = {"process", "process_dxo", "data", "data_kind", "meta", "target", "CLAIM"}


class Renamed(ast.NodeTransformer):
    """Every name that the text itself gives becomes another: ``names`` has both."""

    def __init__(self, tree: ast.Module, kept: set[str]) -> None:
        self.own: set[str] = set()
        self.called: set[str] = set()
        given: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.called.add(node.name)
                given.append(node.name)
            elif isinstance(node, ast.arg):
                given.append(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                given.append(node.id)
            elif _of_self(node) and isinstance(node.ctx, ast.Store):  # type: ignore[attr-defined]
                self.own.add(node.attr)  # type: ignore[attr-defined]
        for klass in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for part in klass.body:
                targets = part.targets if isinstance(part, ast.Assign) else []
                self.own |= {part.name} if isinstance(part, ast.FunctionDef) else set()
                self.own |= {one.id for one in targets if isinstance(one, ast.Name)}
        kept = kept | {name for name in (*given, *self.own) if name.startswith("__")}
        every = dict.fromkeys([*given, *sorted(self.own)])
        self.names = {name: f"q{place}z" for place, name in enumerate(every) if name not in kept}

    def _new(self, name: str) -> str:
        return self.names.get(name, name)

    def visit_Name(self, node: ast.Name) -> Any:
        node.id = self._new(node.id)
        return node

    def visit_arg(self, node: ast.arg) -> Any:
        node.arg = self._new(node.arg)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.name = self._new(node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        node.name = self._new(node.name)
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if _of_self(node) and node.attr in self.own:
            node.attr = self._new(node.attr)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id in self.called:
            for keyword in node.keywords:
                keyword.arg = None if keyword.arg is None else self._new(keyword.arg)
        return self.generic_visit(node)


def _of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


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
    question, _ = question_and_limits(read_options({**options, "dims": "16"}))
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
