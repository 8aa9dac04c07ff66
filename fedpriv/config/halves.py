"""The classes of a configured method: its two halves, and the options that both read.

The project's own methods have a row in `fedpriv.config.methods`. A method of one's own has a class of options in one of
its files, named by an annotation, ``options: MyOptions``. What is written under a half that names none may be of any
type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import Field, create_model

from fedpriv.common.errors import OptionError
from fedpriv.common.places import code_at, load_module
from fedpriv.config.method_pairs import joined, target
from fedpriv.config.methods import ExampleLevelOptions
from fedpriv.config.options import MethodOptions, Options
from fedpriv.config.schema import Config
from fedpriv.config.strategy_options import HALVES, Half, OwnOptions, checked, field_of, following


def method_options(config: Config) -> MethodOptions:
    """The options of the configured method, checked. Raises `OptionError`, naming option, value and what is allowed."""
    given = config.strategy.options
    if not isinstance(given, OwnOptions):
        return given
    server, client = config.strategy.server, config.strategy.client
    schema = schema_of(locate(server, "strategy.server._target_"), locate(client, "strategy.client._target_"), given)
    if schema is OwnOptions:
        return given
    given_values = given.model_dump(mode="json")
    values = {field_of(schema, half, name) or name: given_values[name] for name, half in given.written.items()}
    return checked(schema, following(schema, values, config), given.written)


def schema_of(server: type[Any], client: type[Any], given: OwnOptions) -> type[MethodOptions]:
    """The options' class that the two halves name; `OwnOptions` where neither names one."""
    named = {half: _named(kind) for half, kind in zip(HALVES, (server, client), strict=True)}
    kinds = [kind for kind in named.values() if kind not in (None, Options, MethodOptions)]
    kinds = [kind for kind in kinds if not any(other is not kind and issubclass(other, kind) for other in kinds)]
    if not kinds:
        return OwnOptions
    silent = {half for half, kind in named.items() if kind in (None, Options, MethodOptions)}
    bases: Any = (*dict.fromkeys(kinds), MethodOptions)
    base: type[MethodOptions] = create_model("OwnOptions", __base__=bases)
    further: Any = {
        name: (Any, Field(json_schema_extra={"half": half}))
        for name, half in given.written.items()
        if half in silent and field_of(base, half, name) is None
    }
    return create_model("OwnOptions", __base__=base, **further)


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
            words = "its options must be a subclass of fedpriv.config.options.MethodOptions"
            raise OptionError("strategy", f"{owner.__module__}.{owner.__qualname__}", words)
        return hint
    return None


def half_class(
    config: Config, half: Half, own: Callable[[type[Any], type[Any]], dict[str, Any]] = lambda *_: {}
) -> type[Any]:
    """The class of a half of the configured method; of a pair both classes in one. own: what it says for itself of the
    algorithm's and the mechanism's. Raises `OptionError`.
    """
    algorithm, mechanism = getattr(config.strategy, half), config.privacy.mechanism
    option = f"strategy.{half}._target_"
    found = locate(algorithm, option)
    if mechanism is None:
        return found
    if algorithm != target(config.strategy.name, half):
        raise OptionError(option, algorithm, f"beside privacy.mechanism={mechanism} it must be the method's own class")
    other = locate(target(mechanism, half), option)
    return joined(found, other, **own(found, other))  # type: ignore[arg-type]  # classes are hashable


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


def check_local(config: Config) -> None:
    """Raises `OptionError` where the method does not admit what the user said of local training: an own function
    may do anything with a client's examples, so only what hides whole clients hides what it does.
    """
    traits, local = half_class(config, "client").traits, config.local
    for option, path in config.code.items():
        if option.startswith(("local.", "evaluate.", "strategy.")) and not callable(code_at(option, path)):
            raise OptionError(option, path, "must be a function")
    no_steps = traits.clips_examples and not isinstance(config.strategy.options, ExampleLevelOptions)
    without = "makes no local steps"
    by_examples = "protects single examples, whose gradients it clips itself"
    by_gradient = "releases the gradient of its steps, whatever the rate"
    for option, value, usual, why in (
        ("train", local.train, None, by_examples if traits.clips_examples else ""),
        ("train", local.train, None, by_gradient if traits.releases_gradient else ""),
        ("schedule", local.schedule, "constant", by_gradient if traits.releases_gradient else ""),
        ("schedule", local.schedule, "constant", without if no_steps else ""),
        ("clipping", local.clipping, "fedpriv", "knows its own losses" if local.loss is not None else ""),
    ):
        if value != usual and why:
            words = f"strategy={config.strategy.name} {why}" if option != "clipping" else f"{why}, not local.loss"
            raise OptionError(f"local.{option}", value, f"{words}; allowed: {'null' if usual is None else usual}")


#: An auxiliary split larger than this says no more about a loss that is read every round.
MOST_FOR_LOSS = 1000


def auxiliary_examples(config: Config) -> int:
    """Public examples that the method's server half needs: `dataset.auxiliary` for distillation, at most a thousand of
    them for a public loss, otherwise none. Raises `OptionError` where it needs some and there are none.
    """
    if config.model.name == "app":  # its user has functions for them
        return 0
    kind, wanted = half_class(config, "server"), 0
    purpose = None
    if getattr(kind, "needs_public_loss", False):
        purpose, wanted = "follows a loss on public examples", min(MOST_FOR_LOSS, config.dataset.auxiliary)
    if getattr(config.strategy.options, "distillation_epochs", 0) > 0:
        purpose, wanted = "distils on public examples (strategy.server.distillation_epochs)", config.dataset.auxiliary
    if purpose is not None and wanted == 0:
        raise OptionError("dataset.auxiliary", 0, f"{config.strategy.name} {purpose}: at least 1")
    return wanted
