"""Targets under other names: of classes, functions, arguments, attributes and variables."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from typing import Any


class _Names(ast.NodeTransformer):
    """Gives all names that the source itself brings in another name."""

    def __init__(self, own: set[str]) -> None:
        self.other = {name: f"q{place}z" for place, name in enumerate(sorted(own))}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.other.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self.other.get(node.arg, node.arg)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == self.other.get("self", "self"):
            node.attr = self.other.get(node.attr, node.attr)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if not node.name.startswith("__"):
            node.name = self.other.get(node.name, node.name)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.name = self.other.get(node.name, node.name)
        return node


def renamed(target: Any) -> Any:
    """The same function or class, from a module of another name, with other names for all that it names itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(target)))
    own = {target.__name__, "self"}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    names = _Names(own - set(dir(builtins)))
    module = types.ModuleType("elsewhere")
    vars(module).update({k: v for k, v in vars(inspect.getmodule(target)).items() if not k.startswith("__")})
    exec(compile(ast.fix_missing_locations(names.visit(tree)), "elsewhere.py", "exec"), vars(module))
    return vars(module)[names.other[target.__name__]]
