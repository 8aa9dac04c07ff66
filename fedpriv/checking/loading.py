"""A target by its name: `module:attribute`, `path/file.py:attribute`, or dotted, `package.module.attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fedpriv.common.command_line import nearest
from fedpriv.common.errors import OptionError

FORMS = "allowed: module:attribute, path/file.py:attribute, or dotted as in package.module.attribute"


def load_target(name: str) -> Any:
    """Imports what ``name`` says. Raises `OptionError`; what the target's module raises at its import goes through."""
    place, colon, attribute = name.rpartition(":")
    if name.endswith(".py") and not colon:
        return _only(_file(name), name)
    if colon and place.endswith(".py"):
        return _attribute(_file(place), attribute, name)
    if not name or not all(part.isidentifier() for part in name.replace(":", ".").split(".")):
        raise OptionError("target", name, FORMS)
    if colon:
        return _attribute(_module(place, name), attribute, name)
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        prefix = ".".join(parts[:count])
        if _exists(prefix):
            module = _module(prefix, name)
            return _attribute(module, ".".join(parts[count:]), name) if count < len(parts) else _only(module, name)
    raise OptionError(
        "target", name, f"there is no module {parts[0]} in {os.getcwd()} or among what is installed; {FORMS}"
    )


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError, AttributeError):
        return False


def _module(module: str, name: str) -> ModuleType:
    if not _exists(module):
        raise OptionError("target", name, f"there is no module {module}; {FORMS}")
    return importlib.import_module(module)


def _file(place: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        raise OptionError("target", place, f"there is no such file; {FORMS}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OptionError("target", place, f"is no Python file; {FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, attribute: str, name: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [one for one in vars(found) if not one.startswith("_")] if hasattr(found, "__dict__") else []
            shown = ", ".join(known[:12]) or "nothing"
            raise OptionError(
                "target", name, f"{module.__name__} has no {attribute}{nearest(part, known)}; it has {shown}"
            )
        found = getattr(found, part)
    return _only(found, name) if isinstance(found, ModuleType) else found


def _only(module: ModuleType, name: str) -> Any:
    """The one function or object of a module's own. Raises `OptionError` where there are several."""
    own = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (getattr(value, "__module__", None) == module.__name__ or not hasattr(value, "__name__"))
        and callable(value)
        and not inspect.ismodule(value)
    }
    if len(own) != 1:
        shown = ", ".join(own) or "no function"
        raise OptionError("target", name, f"is a module; say what of it is checked: {name}:NAME (it has {shown})")
    return next(iter(own.values()))
