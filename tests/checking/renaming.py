"""Targets under other names: of classes, functions, arguments, attributes and variables."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from typing import Any


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


def renamed(target: Any) -> Any:
    """The same function or class, from a module of another name, with other names for all that it names itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(target)))
    names = Renamed(tree, set(dir(builtins)))
    module = types.ModuleType("elsewhere")
    vars(module).update({k: v for k, v in vars(inspect.getmodule(target)).items() if not k.startswith("__")})
    exec(compile(ast.fix_missing_locations(names.visit(tree)), "elsewhere.py", "exec"), vars(module))
    return vars(module)[names.names[target.__name__]]
