"""From what a YAML file says of a half to the half's own frozen options, checked once, by one schema.

A half names its schema by an annotation, ``options: FedCADClientOptions``. The project's own are rows of
`fedpriv.config.methods`; a method of one's own has a class in its own file. Where a half names none, its options are
what its YAML file says, of any type.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import Field, ValidationError, create_model

from fedpriv.common.errors import OptionError
from fedpriv.common.places import load_module
from fedpriv.config.explain import first_option_error
from fedpriv.config.methods import METHODS, ServerOptions
from fedpriv.config.options import Options
from fedpriv.config.schema import Config

Half = Literal["server", "client"]
Schema = TypeVar("Schema", bound=Options)


def half_options(config: Config, half: Half, kind: type[Any]) -> Options:
    """The options of a configured half. Raises `OptionError`, naming the option, its value and what is allowed."""
    given = config.server_options() if half == "server" else config.client_options()
    if (row := METHODS.get(config.strategy.name)) is not None:
        return checked(row[half == "client"], half, given)
    return checked(schema_of(kind, half, given), half, given)


def checked(schema: type[Schema], half: Half, given: dict[str, Any]) -> Schema:
    """The options as one frozen object."""
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        raise first_option_error(error, prefix=("strategy", half)) from None


def schema_of(kind: type[Any], half: Half, given: dict[str, Any]) -> type[Options]:
    """The schema that a half names; where it names none of its own, one of what is given."""
    found = _named(kind)
    if found not in (None, Options, ServerOptions):
        assert found is not None
        return found
    base = ServerOptions if half == "server" else Options
    further: Any = {name: (Any, Field()) for name in given if name not in base.model_fields}
    return create_model(f"{kind.__name__}Options", __base__=base, **further) if further else base


def _named(kind: type[Any]) -> type[Options] | None:
    """What the nearest class in line annotates its ``options`` with."""
    for owner in kind.__mro__:
        annotation = vars(owner).get("__annotations__", {}).get("options")
        if annotation is None:
            continue
        names = vars(sys.modules[owner.__module__]) | vars(owner)
        try:
            hint = get_type_hints(SimpleNamespace(__annotations__={"options": annotation}), names)["options"]
        except NameError as error:
            words = f"the annotation of its options cannot be read ({error})"
            raise OptionError("strategy", f"{owner.__module__}.{owner.__qualname__}", words) from None
        if not (isinstance(hint, type) and issubclass(hint, Options)):
            words = "its options must be a subclass of fedpriv.config.options.Options"
            raise OptionError("strategy", f"{owner.__module__}.{owner.__qualname__}", words)
        return hint
    return None


def locate(target: str, option: str) -> type[Any]:
    """The class that a ``_target_`` names."""
    module, _, name = target.rpartition(".")
    try:
        found = getattr(load_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(option, target, f"cannot be imported ({error})") from None
    if not isinstance(found, type):
        raise OptionError(option, target, "is not a class")
    return found
