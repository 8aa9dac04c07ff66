"""Methods of one's own, without a row in `fedpriv.config.methods`: their constructors say which options they have.

A parameter is an option: its annotation is what is allowed (``Annotated[float, Field(ge=0, description="...")]`` for
a range and `--help`), its default what holds where the YAML file says nothing.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from pydantic import Field, PydanticSchemaGenerationError, TypeAdapter, ValidationError, create_model

from fedpriv.common.errors import OptionError
from fedpriv.config.explain import first_option_error
from fedpriv.config.methods import METHODS, ServerOptions
from fedpriv.config.options import Options
from fedpriv.config.schema import Config

if TYPE_CHECKING:
    pass

#: What a constructor gets from the project and not from the YAML file.
GIVEN = {"server": ("self", "population"), "client": ("self", "variant", "site", "facts")}


def check_own_half(config: Config, half: str, kind: type[Any]) -> None:
    """The options of one half against its constructor. Raises `OptionError`; a method with a row was checked before."""
    if config.strategy.name in METHODS:
        return
    options = config.server_options() if half == "server" else config.client_options()
    try:
        constructor_schema(kind, half).model_validate(options)  # type: ignore[arg-type]
    except ValidationError as error:
        raise first_option_error(error, prefix=("strategy", half)) from None


@lru_cache(maxsize=64)
def constructor_schema(kind: type[Any], half: str) -> type[Options]:
    """The options that a half's constructor takes; what every server half has is allowed what it is there."""
    fields: dict[str, Any] = {}
    for name, (annotation, default) in _parameters(kind, GIVEN[half]).items():
        words, annotation = None, _checkable(annotation)
        if half == "server" and name in ServerOptions.model_fields:
            common = ServerOptions.model_fields[name]
            annotation, words = common.annotation, common.description
            for part in common.metadata:
                annotation = Annotated[annotation, part]
        value: Any = ... if default is inspect.Parameter.empty else default
        fields[name] = (annotation, Field(value, description=words) if words else value)
    return create_model(f"{kind.__name__}Options", __base__=Options, **fields)


def _checkable(annotation: Any) -> Any:
    """A type that is none of YAML's is for the class that hands its options on to give, and cannot be checked."""
    try:
        TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        return Any
    return annotation


def _parameters(kind: type[Any], given: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    """name -> (annotation, default); behind ``**options`` those of the next class in line, which may all be left to the
    class that hands its options on.
    """
    found: dict[str, tuple[Any, Any]] = {}
    inherited = False
    for owner in kind.__mro__:
        if "__init__" not in vars(owner):
            continue
        constructor: Callable[..., None] = vars(owner)["__init__"]
        try:
            hints = get_type_hints(constructor, include_extras=True)
        except NameError as error:
            words = f"an annotation of its constructor cannot be read ({error})"
            raise OptionError("strategy", f"{owner.__module__}.{owner.__qualname__}", words) from None
        parameters = inspect.signature(constructor).parameters.values()
        for one in parameters:
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and one.name not in given:
                left_out = None if inherited and one.default is one.empty else one.default
                found.setdefault(one.name, (hints.get(one.name, Any), left_out))
        inherited = True
        if not any(one.kind == one.VAR_KEYWORD for one in parameters):
            break
    return found


def locate(target: str, option: str) -> type[Any]:
    """The class that a ``_target_`` names."""
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(option, target, f"cannot be imported ({error})") from None
    if not isinstance(found, type):
        raise OptionError(option, target, "is not a class")
    return found
