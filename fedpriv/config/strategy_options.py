"""A method's options between their two spellings and the one object that holds them.

An option is spelled ``strategy.client.NAME`` or ``strategy.server.NAME``: files and records have it once, under the one
that `spelled` gives; the other one sets the same value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedpriv.common.errors import OptionError
from fedpriv.config.explain import first_option_error
from fedpriv.config.methods import SecureSum
from fedpriv.config.options import MethodOptions, Options

Half = Literal["server", "client"]
HALVES: tuple[Half, Half] = ("server", "client")
Schema = TypeVar("Schema", bound=MethodOptions)


class OwnOptions(MethodOptions):
    """Of a method of one's own before its class is loaded: what its YAML file says, of any type."""

    model_config = ConfigDict(extra="allow")
    written: dict[str, Half] = Field(default_factory=dict, exclude=True, description="which half each stands under")


def _mark(schema: type[Options], field: str, mark: str) -> str:
    known = schema.model_fields.get(field)  # None: of a method of one's own whose class names no options
    extra = known and known.json_schema_extra
    return str(extra.get(mark, "")) if isinstance(extra, dict) else ""


def followed(schema: type[Options], field: str) -> str:
    """The option whose value a field has; "" for an option of its own."""
    return _mark(schema, field, "follows")


def spelled(schema: type[Options], field: str) -> str:
    """``strategy.client.noise_multiplier``."""
    return f"strategy.{_mark(schema, field, 'half') or 'client'}.{_mark(schema, field, 'name') or field}"


def field_of(schema: type[Options], half: str, name: str) -> str | None:
    """The field that ``strategy.HALF.NAME`` sets: of two with one name the half's own."""
    fields = _fields(schema)
    return fields.get(f"strategy.{half}.{name}") or next(
        (fields[option] for other in HALVES if (option := f"strategy.{other}.{name}") in fields), None
    )


@lru_cache(maxsize=512)
def _fields(schema: type[Options]) -> dict[str, str]:
    return {spelled(schema, field): field for field in schema.model_fields if field != "written"}


def home_of(schema: type[Options] | None, strategy: Mapping[str, Any], half: str, name: str) -> str:
    """Where files have ``strategy.HALF.NAME``, which may be named under either half. strategy: composed; of a method of
    one's own (schema None) an option is where it is.
    """
    if schema is not None:
        return spelled(schema, field) if (field := field_of(schema, half, name)) else f"strategy.{half}.{name}"
    there = [place for place in (half, *HALVES) if name in strategy.get(place, ())]
    return f"strategy.{(there or [half])[0]}.{name}"


# --- read ------------------------------------------------------------------------------------------------


def read_options(schema: type[MethodOptions] | None, raw: Mapping[str, Any], known: Options) -> MethodOptions:
    """raw: ``strategy`` of a composed configuration. known: the rest of it, which some options follow. schema: None for
    a method of one's own. Raises `OptionError`.
    """
    if schema is None:
        return checked(OwnOptions, _of_any_type(raw))
    return checked(schema, following(schema, _gathered(schema, raw), known))


def following(schema: type[Options], given: dict[str, Any], known: Options) -> dict[str, Any]:
    """With the options that follow others. Raises `OptionError` where another value was given."""
    for field in schema.model_fields:
        if option := followed(schema, field):
            value = _look(known, option)
            if given.setdefault(field, value) != value:
                raise OptionError(spelled(schema, field), given[field], f"must be {option}={value}")
    return given


def _written(raw: Mapping[str, Any]) -> Iterator[tuple[Half, str, Any]]:
    for half in HALVES:
        yield from ((half, name, value) for name, value in raw[half].items() if name != "_target_")


def _gathered(schema: type[Options], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Field -> value. Raises `OptionError` for an unknown option, and for two values of one."""
    found: dict[str, tuple[str, Any]] = {}
    for half, name, value in _written(raw):
        option, field = f"strategy.{half}.{name}", field_of(schema, half, name)
        if field is None:
            raise OptionError(option, "null" if value is None else value, "there is no such option here")
        other, before = found.setdefault(field, (option, value))
        if other != option and value != before:
            raise contradiction(option, value, other, before)
    return {field: value for field, (_, value) in found.items()}


def _of_any_type(raw: Mapping[str, Any]) -> dict[str, Any]:
    written: dict[str, Half] = {}
    found: dict[str, Any] = {}
    for half, name, value in _written(raw):
        if name in found and found[name] != value:
            other, instead = f"strategy.{written[name]}.{name}", ", or another name for an option of your own"
            raise contradiction(f"strategy.{half}.{name}", value, other, found[name], instead)
        written.setdefault(name, half)
        found.setdefault(name, value)
    return {**found, "written": written}


def contradiction(option: str, value: Any, other: str, before: Any, instead: str = "") -> OptionError:
    words = f"{other}={'null' if before is None else before} is the same option; allowed: one of the two{instead}"
    return OptionError(option, "null" if value is None else value, words)


def _look(known: Any, option: str) -> Any:
    for part in option.split("."):
        known = getattr(known, part)
    return known


def checked(schema: type[Schema], given: Mapping[str, Any], written: Mapping[str, str] | None = None) -> Schema:
    """The options as one frozen object. written: the half under which a YAML file of one's own has an option."""
    try:
        return schema.model_validate(dict(given))
    except ValidationError as error:
        found = first_option_error(error)
        field, dot, rest = found.option.partition(".")
        half = (written or {}).get(field)
        known = spelled(schema, field) if field in schema.model_fields else f"strategy.client.{field}"
        option = f"strategy.{half}.{field}" if half else known
        raise OptionError(f"{option}{dot}{rest}", found.value, found.allowed) from None


# --- written ---------------------------------------------------------------------------------------------


class StrategyConfig(Options):
    """A method: its name, the classes of its two halves, and the options that both read."""

    name: str
    secure_sum: SecureSum = Field(
        default="assumed", description="who adds up: nobody, the server in the open (ideal), or masks (protocol)"
    )
    server: str = Field(description="_target_ of the server half")
    client: str = Field(description="_target_ of the client half")
    options: MethodOptions

    def to_dict(self) -> dict[str, Any]:
        """With a mapping for each half, as YAML files have it: each option once, and none that follows another."""
        found: dict[str, Any] = {"server": {"_target_": self.server}, "client": {"_target_": self.client}}
        schema, own = type(self.options), getattr(self.options, "written", {})
        for field, value in self.options.model_dump(mode="json").items():
            if not followed(schema, field):
                _, half, name = ("", own[field], field) if field in own else spelled(schema, field).split(".")
                found[half][name] = value
        return {"name": self.name, "secure_sum": self.secure_sum, **found}


def check_named(schema: type[Options], options: Mapping[str, Any], whose: str) -> None:
    """Values of single options, by name, for whoever composes the rest later. whose: the method, or a group.

    Raises `OptionError` for an option that there is not, and for a value that its own range excludes.
    """
    for name, value in options.items():
        field = schema.model_fields.get(name)
        if field is None or followed(schema, name):
            known = ", ".join(one for one in schema.model_fields if not followed(schema, one))
            raise OptionError(name, value, f"{whose} has no such option; allowed: {known}")
        kind: Any = Annotated[field.annotation, *field.metadata, None]  # type: ignore[valid-type]
        try:
            TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False)).validate_python(value, strict=True)
        except ValidationError as error:
            raise OptionError(name, value, first_option_error(error).allowed) from None
