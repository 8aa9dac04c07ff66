"""Tables that every installation has: small ones of scikit-learn, one that is made, and texts of libraries.

**docstrings**: texts to predict which library they come from.

The docstrings of numpy, scipy, torch, scikit-learn and the standard library are read from their source files, which are
parsed and never imported or run. Public rule: modules without tests, in the order of a hash of their names; of a module
its first `OF_MODULE` docstrings of at least `SHORTEST` characters; of a library the first `OF_LIBRARY`. A text that
stands twice is taken once. Columns: text, library, module.

The rows follow from the versions of the libraries and of Python, and from nothing else.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import platform
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.errors import DataError
from fedpriv.common.versions import installed

if TYPE_CHECKING:
    import pyarrow as pa


#: Name of a library in the table -> (package that holds it, the distribution whose version is its own).
LIBRARIES = {
    "numpy": ("numpy", "numpy"),
    "python": (None, None),
    "scikit-learn": ("sklearn", "scikit-learn"),
    "scipy": ("scipy", "scipy"),
    "torch": ("torch", "torch"),
}
#: At most so many docstrings of a module and of a library, of at least so many characters.
OF_MODULE, OF_LIBRARY, SHORTEST = 10, 1000, 80
#: Folders whose files are not a library's own, or are its tests.
LEFT_OUT = {"test", "tests", "_tests", "testing", "idle_test", "site-packages", "_vendor", "externals"}


def docstrings_version() -> list[str]:
    """What the rows follow from, for the cache."""
    known = [f"{name} {installed(own)}" for name, (_, own) in LIBRARIES.items() if own is not None]
    return [*known, f"python {platform.python_version()}", f"{OF_MODULE} {OF_LIBRARY} {SHORTEST}"]


def docstrings() -> pa.Table:
    """Columns text, library, module. Raises `DataError` where a library's source files are not there."""
    return table_of({name: module_files(package) for name, (package, _) in LIBRARIES.items()})


def table_of(libraries: Mapping[str, Mapping[str, Path]]) -> pa.Table:
    """The table of libraries whose modules (dotted name -> source file) are given."""
    import pyarrow as pa

    rows: dict[str, list[str]] = {"text": [], "library": [], "module": []}
    known: set[str] = set()
    for library, files in libraries.items():
        number = 0
        for module in sorted(files, key=_order):
            for text in _texts(files[module], known):
                rows["text"].append(text)
                rows["library"].append(library)
                rows["module"].append(module)
                number += 1
                if number == OF_LIBRARY:
                    break
            if number == OF_LIBRARY:
                break
        if not number:
            raise DataError(f"dataset=docstrings: no docstrings of {library}; its source files must be installed")
    return pa.table(rows)


def module_files(package: str | None) -> dict[str, Path]:
    """Dotted name -> source file of a package's modules; None: of the standard library. Nothing is imported."""
    if package is None:
        base = Path(sysconfig.get_paths()["stdlib"])
        files = {name: path for name, path in _below(base) if name.partition(".")[0] in sys.stdlib_module_names}
        return files
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return {}
    return {f"{package}.{name}": path for name, path in _below(Path(found.submodule_search_locations[0]))}


def _below(base: Path) -> Iterator[tuple[str, Path]]:
    for path in base.rglob("*.py"):
        parts = path.relative_to(base).with_suffix("").parts
        if not LEFT_OUT & set(parts):
            yield ".".join(parts), path


def _order(module: str) -> bytes:
    return hashlib.sha256(module.encode()).digest()


def _texts(path: Path, known: set[str]) -> list[str]:
    """The first docstrings of a file that are not ``known`` yet, whatever their blanks and capitals, and are now."""
    found: list[str] = []
    for text in _docstrings(path):
        same = " ".join(text.lower().split())
        if len(text) >= SHORTEST and same not in known:
            known.add(same)
            found.append(text)
            if len(found) == OF_MODULE:
                break
    return found


def _docstrings(path: Path) -> Iterator[str]:
    """Of a file's module, classes and functions, in the order of the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings
            tree: Any = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):  # templates and files for other versions
        return
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(tree) if isinstance(node, holders)]
    for node in sorted(found, key=lambda one: getattr(one, "lineno", 0)):
        text = ast.get_docstring(node)
        if text is not None:
            yield text


def _breast_cancer() -> pa.Table:
    """W. H. Wolberg, W. N. Street, O. L. Mangasarian: Breast Cancer Wisconsin (Diagnostic), 569 rows."""
    import pyarrow as pa
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    columns = {str(name): column for name, column in zip(found.feature_names, found.data.T, strict=True)}
    return pa.table(columns | {"diagnosis": found.target_names[found.target]})


def _diabetes() -> pa.Table:
    """B. Efron, T. Hastie, I. Johnstone, R. Tibshirani: Least Angle Regression, 442 rows, in their own units."""
    import pyarrow as pa
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    columns = dict(zip(found.feature_names, found.data.T, strict=True))
    return pa.table(columns | {"progression": found.target})


def _practices() -> pa.Table:
    """Made, always the same 3,276 rows: in practice k of ten, x = z + 0.5 u_k with z and u_k normal in R^11, and the
    outcome is yes with the logistic probability of w x + b_k, |w| = 1.75, b_k from -2.2 to -0.2 in equal steps.
    """
    import pyarrow as pa

    rng, sites, dims = np.random.default_rng(0), 10, 11
    weights = rng.normal(size=dims)
    weights *= 1.75 / np.linalg.norm(weights)
    site = np.arange(3276) % sites
    inputs = rng.normal(size=(len(site), dims)) + 0.5 * rng.normal(size=(sites, dims))[site]
    chance = 1 / (1 + np.exp(-(inputs @ weights + np.linspace(-2.2, -0.2, sites)[site])))
    outcome = np.where(rng.random(len(site)) < chance, "yes", "no")
    columns: dict[str, Any] = {f"x{place + 1}": inputs[:, place] for place in range(dims)}
    return pa.table(columns | {"practice": [f"practice {number}" for number in site], "outcome": outcome})


INSTALLED: dict[str, Callable[[], pa.Table]] = {
    "breast_cancer": _breast_cancer,
    "diabetes": _diabetes,
    "docstrings": docstrings,
    "docstrings_next": docstrings,
    "practices": _practices,
}
