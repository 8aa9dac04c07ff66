"""A run's stored configuration with other options: to repeat it, or to look at it in another way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF, MECHANISM, compose, from_dict, parse, read_config
from fedpriv.config.method_pairs import schema_for
from fedpriv.config.own_options import group_choices, is_group
from fedpriv.config.owner import PLACES
from fedpriv.config.schema import Config
from fedpriv.config.strategy_options import home_of

#: Sections that decide nothing of a result.
ONLOOKERS = ("operations", "tracking")
#: Where clients are computed; a resumed run may move there, beside `engine.address`, which is a place.
MOVES, ENGINES = ("engine", "engine.workers"), ("inprocess", "ray")


def with_operations(config: Config, overrides: Sequence[str], moves: bool = False) -> Config:
    """The configuration with other options of operations and tracking, and other places. moves: also computed
    elsewhere (`MOVES`), which changes no bit. Raises `OptionError`.
    """
    for override in parse(overrides):
        name, value = override.key_or_group, override.get_value_string()
        known = name.partition(".")[0] in ONLOOKERS or name in PLACES or (moves and name in MOVES)
        if not known or override.is_sweep_override():
            words = "only operations.*, tracking.* and where things are on this machine can be changed"
            raise OptionError(name, value, words)
        if name == "engine":
            if value not in ENGINES:
                raise OptionError(name, value, f"a run moves to one of {', '.join(ENGINES)}")
            config = config.model_copy(
                update={"engine": config.engine.model_copy(update={"name": value, "workers": None, "address": None})}
            )
    return with_options(config, [override for override in overrides if not override.startswith("engine=")])


def with_options(config: Config, overrides: Sequence[str]) -> Config:
    """The configuration with other values; a group (``strategy=fedldp``) is taken from its file as a whole. Raises
    `OptionError` for an option that it does not have, a value out of range, and a sweep.
    """
    raw, parsed = config.to_dict(), parse(overrides)
    for override in parsed:
        if override.is_sweep_override():
            words = "several values need a sweep (-m), which starts from options and not from a run"
            raise OptionError(override.key_or_group, override.get_value_string(), words)
    groups = {name for name in raw if is_group(name) and group_choices(CONF / name)}
    chosen = [override for override in parsed if override.key_or_group in groups]
    paired = [override for override in parsed if override.key_or_group == MECHANISM]
    if chosen or paired:
        pair = (f"strategy={config.strategy.name}", f"{MECHANISM}={config.privacy.mechanism or 'null'}")
        new = compose([*pair, *map(_line, (*chosen, *paired))]).to_dict()
        for group in dict.fromkeys([override.key_or_group for override in chosen] + ["strategy"] * bool(paired)):
            raw[group] = new[group]
    for override in parsed:
        if override in paired:
            raw["privacy"]["mechanism"] = new["privacy"]["mechanism"]
        elif override not in chosen:
            _put(raw, override)
    return from_dict(raw)


def _line(override: Override) -> str:
    return override.input_line or ""


def _put(raw: dict[str, Any], override: Override) -> None:
    """Sets one value. An option that is not there is left to the schema to accept (a default that files leave out)."""
    *sections, name = override.key_or_group.split(".")
    if sections[:1] == ["strategy"] and len(sections) == 2:
        schema = schema_for(raw["strategy"]["name"], raw["privacy"].get("mechanism"))
        *sections, name = home_of(schema, raw["strategy"], sections[1], name).split(".")
    place: Any = raw
    for section in sections:
        place = place.setdefault(section, {}) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        raise OptionError(override.key_or_group, override.get_value_string(), "the run has no such option")
    place[name] = override.value()


def config_for_rerun(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a run, for a new folder, with other values where ``overrides`` say so."""
    return with_options(read_config(path, said(overrides)), overrides).model_copy(update={"run_dir": None})


def said(overrides: Sequence[str]) -> list[str]:
    """The names of the options that a user gave."""
    return [override.key_or_group for override in parse(overrides)]
