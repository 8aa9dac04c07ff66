"""Where a repository releases something: candidates for a check, and a file of targets that calls them.

Sources are parsed and never run. Names are looked at here to find places worth a check; no verdict rests on them.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.common.errors import OptionError

#: Folders that hold other people's code, or none; the largest file that is parsed, in bytes.
SKIPPED, LARGEST = re.compile(r"^(\..*|node_modules|site-packages|.*env|build|dist|__pycache__)$"), 2**20
#: What is called -> what it is a sign of, and how much that says.
SIGNS = (
    ("trains with Opacus", 4, r"^(PrivacyEngine|make_private\w*|DPOptimizer)$"),
    (
        "draws noise",
        3,
        r"^(standard_normal|randn(_like)?|normal_?|laplace|Laplace|Normal|gauss|normalvariate|exponential|geometric|"
        r"skellam|binomial|randomi[sz]e)$",
    ),
    ("calls what is named noise", 2, r"(?i)nois|laplac|gaussian"),
    ("computes with what is named so", 1, r"(?i)nois|sigma|epsilon|clip"),
    ("clips", 2, r"(?i)clip|clamp"),
    ("takes a norm", 1, r"^(norm|linalg_norm|minimum)$"),
)
#: Classes and objects that the check takes as they are, by a base class or by what makes them.
FRAMEWORK = (
    ("a Flower strategy", re.compile(r"(Strategy|Fed(Avg|Prox|Adam|Yogi|Opt|Median)\w*|DifferentialPrivacy\w+)$")),
    ("an NVFlare filter", re.compile(r"(DXO)?Filter$")),
    ("a Flower app", re.compile(r"^ClientApp$")),
)
#: Fewer signs than this, and a function releases nothing: a layer's initial weights are drawn too.
LEAST = 4
#: A file below the repository's folder, and from where it is imported.
Where = tuple[str, str]


@dataclass(frozen=True)
class Candidate:
    """A place of a repository.

    file: below the repository's folder. place: the folder from which it is imported, the first above without an
    ``__init__.py``. name: of the function, class or object, ``Class.method`` of a method. seen: in
    words. weight: of its signs. needed: arguments without a default, ``self`` left out; made: of its class.
    """

    file: str
    place: str
    line: int
    name: str
    seen: str
    weight: int
    needed: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    as_it_is: bool = False

    @property
    def module(self) -> str:
        return ".".join(Path(self.file).relative_to(self.place).with_suffix("").parts).removesuffix(".__init__")

    @property
    def target(self) -> str:
        """Its function in the file of targets."""
        return re.sub(r"\W", "_", f"{self.module.rpartition('.')[2]}_{self.name}").lower()

    @property
    def instance(self) -> str:
        """How an object of its class is made; an app or a mod is there."""
        made = ", ".join(f"{name}=..." for name in self.made)
        return self.name if self.seen in ("a Flower app", "a Flower mod") else f"{self.name}({made})"

    @property
    def arguments(self) -> str:
        """The update as it comes, a generator by its name, all else to be filled in."""
        others = (f"{name}={'rng' if re.search('rng|generator', name) else '...'}" for name in self.needed[1:])
        return ", ".join([*self.needed[:1], *others])


def candidates(root: Path) -> list[Candidate]:
    """Of all Python files below ``root``, the likeliest first. Raises `OptionError` where it is no folder."""
    if not root.is_dir():
        raise OptionError("PATH", root, "must be a folder of Python files")
    seen = [one for file in _files(root) for one in _of_file(file, root)]
    return sorted(seen, key=lambda one: (-one.weight, one.file, one.line))


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not SKIPPED.match(name))
        for name in sorted(files):
            file = Path(folder) / name
            if (
                name.endswith(".py")
                and file.stat().st_size <= LARGEST
                and not re.match(r"(test_.*|conftest|setup)\.py$", name)
            ):
                yield file


def _of_file(file: Path, root: Path) -> Iterator[Candidate]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # of another Python
        return
    place = next(above for above in file.parents if above == root or not (above / "__init__.py").exists())
    where = str(file.relative_to(root)), str(place.relative_to(root))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from _of_function(where, node)
        elif isinstance(node, ast.ClassDef):
            yield from _of_class(where, node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            names = [one.id for one in node.targets if isinstance(one, ast.Name)]
            yield from (one for name in names for one in _as_it_is(where, node.lineno, name, [node.value.func]))


def _of_class(where: Where, node: ast.ClassDef) -> Iterator[Candidate]:
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    made = next((_needed(one)[1:] for one in methods if one.name == "__init__"), ())
    whole = [replace(one, made=made) for one in _as_it_is(where, node.lineno, node.name, node.bases)]
    yield from whole
    for one in methods if not whole else ():
        for found in _of_function(where, one):
            yield replace(found, name=f"{node.name}.{one.name}", needed=found.needed[1:], made=made)


def _as_it_is(where: Where, line: int, name: str, calls: Sequence[ast.expr]) -> Iterator[Candidate]:
    for words, pattern in FRAMEWORK:
        if any(pattern.search(_last(call)) for call in calls):
            yield Candidate(*where, line, name, words, 5, as_it_is=True)
            return


def _of_function(where: Where, node: ast.FunctionDef) -> Iterator[Candidate]:
    called = {_last(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    read = {_last(one) for one in ast.walk(node)} - called
    signs = {
        words: weight
        for words, weight, pattern in SIGNS
        if any(re.search(pattern, name) for name in (read if words.startswith("computes") else called))
    }
    needed = _needed(node)
    if len(needed) == 3 and needed[2] == "call_next":
        yield Candidate(*where, node.lineno, node.name, "a Flower mod", 5, as_it_is=True)
    elif sum(signs.values()) >= LEAST and node.name != "__init__":
        yield Candidate(*where, node.lineno, node.name, ", ".join(signs), sum(signs.values()), needed)


def _needed(node: ast.FunctionDef) -> tuple[str, ...]:
    """Arguments without a default."""
    places, keywords = (
        [*node.args.posonlyargs, *node.args.args],
        zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    )
    first = places[: len(places) - len(node.args.defaults)]
    return tuple(one.arg for one in [*first, *(one for one, default in keywords if default is None)])


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# --- the file of targets ----------------------------------------------------------------------------------------------

_HEAD = '''"""Targets of `fedpriv check` in {root}.

Each function takes an update and a generator, or a small data set, calls the repository's own code, and returns all
that leaves. Fill in each `...`, delete what releases nothing, and check one by its name:

    fedpriv check {file}:{first} epsilon=1 delta=1e-5
"""

import sys

sys.path[:0] = {places}
'''


def targets(root: Path, found: Sequence[Candidate], file: str) -> str:
    """The text of a file with a target for each candidate. file: its name, for the reader."""
    names = _distinct(found)
    places = sorted({str(root / one.place) for one in found} | {str(root)})
    parts = [_HEAD.format(root=root.name, file=file, first=names[0], places=repr(places))]
    objects = []
    for name, one in zip(names, found, strict=True):
        head = f"# {one.file}:{one.line} {one.name}: {one.seen}\n"
        if one.as_it_is:
            objects.append(f"\n    {head}    if name == {name!r}:\n{_imported(one, one.name, 8)}{one.instance}")
        else:
            owner, _, method = one.name.rpartition(".")
            given = f"{one.needed[0]}, rng" if one.needed else ""
            called = f"{replace(one, name=owner).instance}.{method}" if owner else one.name
            parts.append(f"{head}def {name}({given}):\n{_imported(one, owner or one.name, 4)}{called}({one.arguments})")
    if objects:
        parts.append("\n".join([_OBJECTS, *objects, "\n    raise AttributeError(name)"]))
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


#: What is no function.
_OBJECTS = 'def __getattr__(name):\n    """Made when it is asked for: an import that fails leaves the others."""'


def _distinct(found: Sequence[Candidate]) -> list[str]:
    names: list[str] = []
    for one in found:
        same = sum(re.fullmatch(rf"{one.target}(_\d+)?", name) is not None for name in names)
        names.append(f"{one.target}_{same + 1}" if same else one.target)
    return names


def _imported(one: Candidate, name: str, indent: int) -> str:
    space = " " * indent
    return f"{space}from {one.module} import {name}\n\n{space}return "
