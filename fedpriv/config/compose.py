"""From YAML files and overrides to a checked `Config`, with every mistake turned into one readable line.

The one place that knows Hydra's composition. `compose` serves the command line (before Hydra itself starts),
every job of a sweep, `flwr run`, the audit and the tests.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.run_files import is_file_in, refuse_links
from fedpriv.config.checks import validate
from fedpriv.config.data_schema import OF_WAVES
from fedpriv.config.method_pairs import schema_for, with_mechanism
from fedpriv.config.own_options import CONF, choices, find_own_methods, is_group, once, own_folders, sections
from fedpriv.config.owner import is_own, own_code_only, refuse_code, refuse_places
from fedpriv.config.plain_values import host_known, with_scalars
from fedpriv.config.schema import Config
from fedpriv.config.spelling import as_typed, how_to_write, meant, refuse_noise_beside_target
from fedpriv.config.strategy_options import (
    HALVES,
    contradiction,
    field_of,
    followed,
    in_no_file,
    spelled,
    spelling,
)
from fedpriv.config.yaml_text import read_yaml

#: Keys of the command line that are not part of a run's configuration.
COMMANDS = ("resume", "rerun", "extend", "plan", "policy")

#: Options that are gone, at the values where they changed nothing.
OF_EARLIER_VERSIONS: dict[str, dict[str, object]] = {
    "features": OF_WAVES,
    "privacy": {"extrapolated_cohort": None, "extrapolated_population": None},
}

#: Groups of which a remote caller (`flwr run`) may choose.
REMOTE_GROUPS = ("strategy", "dataset", "features", "partition", "model", "engine", "experiment", "scale")
MECHANISM = "privacy.mechanism"
METHOD_OPTION = re.compile(r"strategy\.(server|client)\.([a-z]\w*)")


def compose(overrides: Sequence[str] = ()) -> Config:
    """The checked configuration for a list of ``key=value`` overrides (`COMMANDS` among them are left out).

    Raises `OptionError` for an unknown group, option or value, naming what is allowed.
    """
    parsed = parse(overrides)
    _check_choices(parsed)
    parsed = parse(at_home(overrides))
    wanted = [o.input_line for o in parsed if o.key_or_group not in COMMANDS and o.input_line and not _is_none(o)]
    raw = _compose_raw([*wanted, *model_by_name(parsed)])
    for command in COMMANDS:
        raw.pop(command, None)
    try:
        config = validate(raw)
    except OptionError as error:
        raise as_typed(error, parsed) from None
    refuse_noise_beside_target(config.privacy.target_epsilon, parsed)
    return config


def at_home(overrides: Sequence[str]) -> list[str]:
    """The same overrides, the method's options among them in the spelling of its YAML file: each may be named under
    either half. Raises `OptionError` for two values of one.
    """
    parsed = parse(overrides)
    if not any(METHOD_OPTION.fullmatch(override.key_or_group) for override in parsed):
        return list(overrides)
    try:
        chosen = _compose_raw([line for override in parsed if (line := _choice(override))])
    except OptionError:  # said where all of it is composed
        return list(overrides)
    strategy, mechanism = chosen["strategy"], chosen["privacy"]["mechanism"]
    found: list[str] = []
    seen: dict[str, tuple[str, str]] = {}
    for override in parsed:
        line, named = override.input_line or "", METHOD_OPTION.fullmatch(override.key_or_group)
        if named is not None and override.type == OverrideType.CHANGE:
            option, value = key_and_value(line)
            half, name = named.groups()
            home = spelling(strategy, half, name, mechanism)
            other, before = seen.setdefault(home, (option, value))
            if other != option and value != before:
                raise contradiction(option, value, other, before)
            line = f"{'++' * in_no_file(strategy, home, mechanism)}{home}={value}"
        found.append(line)
    return found


def _choice(override: Override) -> str:
    """``group=choice``, ``privacy.mechanism=name``, of a sweep the first one; "" for everything else."""
    chooses = override.key_or_group == MECHANISM or is_group(override.key_or_group)
    if override.package is not None or not chooses or _is_none(override):
        return ""
    value = override.value()
    if override.is_sweep_override():
        value = next(iter(override.sweep_string_iterator()))
    return f"{override.key_or_group}={'null' if value is None else value}"


def _is_none(override: Override) -> bool:
    """``experiment=null``, the default, which Hydra takes from a file only."""
    return override.key_or_group == "experiment" and override.get_value_element_as_str() == "null"


def model_by_name(given: Sequence[Override]) -> list[str]:
    """``model=mlp`` beside an experiment, whose scale names a network too: what was asked for comes last."""
    values = {override.key_or_group: override for override in given}
    if "experiment" not in values or "model" not in values or "model.name" in values:
        return []
    chosen = values["model"].get_value_element_as_str()
    return [] if chosen not in choices("model") else [f"model.name={chosen}"]


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parses ``key=value`` strings; a string that is none raises `OptionError`."""
    return [_parsed(line) for line in overrides]


@lru_cache(maxsize=4096)
def _parsed(line: str) -> Override:
    try:
        parsed = OverridesParser.create().parse_override(line)
        if not parsed.key_or_group:
            raise ValueError("no name")
    except (HydraException, ValueError):
        raise OptionError(*key_and_value(line), how_to_write(line)) from None
    return parsed


def key_and_value(line: str) -> tuple[str, str]:
    key, _, value = line.partition("=")
    return key, value


def _compose_raw(overrides: list[str]) -> dict[str, Any]:
    """What Hydra makes of the overrides. Choices of files take it a tenth of a second, which the same choices cost
    once; values are set afterwards, as it sets them.
    """
    parsed = parse(overrides)
    if any("${" in override for override in overrides):  # may ask for anything, also for the time
        return _resolved(_paired(_hydra_tree(overrides), _files()), overrides)
    values = [override for override in parsed if _is_plain_value(override)]
    chosen = _chosen(tuple(o.input_line or "" for o in parsed if o not in values), _files(), _host())
    found = with_scalars(chosen.known, values)
    if found is not None:
        return found
    tree = copy.deepcopy(chosen.tree)
    try:
        for override in values:
            OmegaConf.update(tree, override.key_or_group, override.value(), merge=True)
    except OmegaConfBaseException:
        tree = _hydra_tree(overrides)  # says what is wrong
    return _resolved(tree, overrides)


def _is_plain_value(override: Override) -> bool:
    """``option=value``: no choice of a file, no option of Hydra, nothing added or removed."""
    key = override.key_or_group
    plain = override.type == OverrideType.CHANGE and override.package is None and not override.is_sweep_override()
    chooses = "/" in key or key == MECHANISM or key.partition(".")[0] == "hydra" or is_group(key)
    return plain and not chooses


def _files() -> tuple[tuple[str, int, int], ...]:
    """What a composition depends on beside the choices."""

    def look() -> tuple[tuple[str, int, int], ...]:
        return tuple(file for folder in (CONF, *own_folders()) for file in _files_below(folder))

    found: tuple[tuple[str, int, int], ...] = once("files", look)
    return found


def _host() -> tuple[tuple[str, str], ...]:
    """The host's own variables, to which files refer."""
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith("FEDPRIV_")))


def _files_below(folder: str | Path) -> Iterator[tuple[str, int, int]]:
    """(path, time of change, size) of all YAML files."""
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir():
                yield from _files_below(entry.path)
            elif entry.name.endswith(".yaml"):
                stat = entry.stat()
                yield entry.path, stat.st_mtime_ns, stat.st_size


class _Chosen(NamedTuple):
    """A composition without values set: as Hydra's tree, and as plain values in which the host's variables are known
    (`_host`) and other options are referred to.
    """

    tree: DictConfig
    known: dict[str, Any]


@lru_cache(maxsize=256)
def _chosen(choices: tuple[str, ...], files: tuple[tuple[str, int, int], ...], host: tuple[Any, ...]) -> _Chosen:
    tree = _with_options_once(_composed(choices, files), files)
    known = host_known(OmegaConf.to_container(tree, resolve=False), tree)
    assert isinstance(known, dict)
    return _Chosen(tree, {str(name): value for name, value in known.items()})


def _with_options_once(tree: DictConfig, files: tuple[tuple[str, int, int], ...]) -> DictConfig:
    """An option of the method that a file names under its other half, as an experiment may: moved to where the method's
    own file has it. Raises `OptionError` where both were set, to different values.
    """
    tree, mechanism = _paired(tree, files), tree.privacy.get("mechanism")
    if (schema := schema_for(str(tree.strategy.get("name")), mechanism)) is None:
        return tree
    found, usual = tree, None
    for half, name in [(place, str(name)) for place in HALVES for name in tree.strategy[place]]:
        field = field_of(schema, half, name)
        option = f"strategy.{half}.{name}"
        home = option if field is None else spelled(schema, field)
        if option == home or followed(schema, str(field)):
            continue
        if usual is None:
            chosen = (f"strategy={tree.strategy.name}", f"{MECHANISM}={mechanism or 'null'}")
            usual, found = _paired(_composed(chosen, files), files), copy.deepcopy(tree)
        given, own = (OmegaConf.select(tree, place) for place in (option, home))
        if own not in (given, OmegaConf.select(usual, home)):
            raise contradiction(option, given, home, own)
        with open_dict(found):
            OmegaConf.update(found, home, given)
            del found.strategy[half][name]
    return found


def _paired(tree: DictConfig, files: tuple[tuple[str, int, int], ...]) -> DictConfig:
    """With the values of `privacy.mechanism`'s file."""
    return with_mechanism(tree, lambda name: _composed((f"strategy={name}",), files))


@lru_cache(maxsize=256)
def _composed(choices: tuple[str, ...], files: tuple[tuple[str, int, int], ...]) -> DictConfig:
    return _hydra_tree(list(choices))


def _hydra_tree(overrides: list[str]) -> DictConfig:
    try:
        with _fresh_hydra(), initialize_config_dir(str(CONF), version_base="1.3"):
            return hydra_compose("config", overrides=overrides)
    except HydraException as error:
        raise _translated(str(error), overrides) from None


def _resolved(tree: DictConfig, overrides: list[str]) -> dict[str, Any]:
    try:
        raw = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        first = str(error).splitlines()[0]
        for key, given in map(key_and_value, overrides):  # a group that is no mapping lacks what others point at
            if f"node `{key}` is not a container" in first:
                raise OptionError(key, given, "must be a mapping, {option: value, ...}") from None
        if isinstance(error, MissingMandatoryValue):
            raise OptionError(error.full_key or "", "", "has no default: give it a value") from None
        raise OptionError("configuration", "", first) from None
    assert isinstance(raw, dict)
    return {str(key): value for key, value in raw.items()}


def check_hydra(overrides: Sequence[str]) -> None:
    """Checks options of Hydra itself (``hydra.run.dir=...``, ``hydra/launcher=...``); raises `OptionError`."""
    if not overrides:  # a composition takes a tenth of a second
        return
    try:
        with _fresh_hydra(), initialize_config_dir(str(CONF), version_base="1.3"):
            hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error)
        wrong = next((line for line in overrides if key_and_value(line)[0].lstrip("+~") in text), overrides[0])
        choices = re.search(r"Available options in [^:]*:(.*)Config search path", text, re.DOTALL)
        allowed = f"allowed: {', '.join(choices.group(1).split())}" if choices else "not an option of Hydra"
        raise OptionError(*key_and_value(wrong), allowed) from None


@contextmanager
def _fresh_hydra() -> Iterator[None]:
    """Inside a Hydra job the outer composition must survive ours."""
    find_own_methods()
    state = GlobalHydra.instance()
    outer = state.hydra
    state.clear()
    try:
        yield
    finally:
        state.hydra = outer


def _check_choices(overrides: Iterable[Override]) -> None:
    """A group's value must be one of its files."""
    for override in overrides:
        group = override.key_or_group.partition("@")[0]
        if group and is_group(group) and not override.is_sweep_override():
            allowed = choices(group) + (["null"] if group == "experiment" else [])
            value = override.get_value_element_as_str()
            if value not in allowed and not value.startswith("{"):
                close = difflib.get_close_matches(value.lower(), allowed, 1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                raise OptionError(group, value, f"allowed: {', '.join(allowed)}{hint}")


def _translated(message: str, overrides: list[str]) -> OptionError:
    unknown = re.search(r"Could not override '([^']+)'", message)
    if unknown:
        option = unknown.group(1)
        value = next(
            (key_and_value(line)[1] for line in overrides if key_and_value(line)[0].lstrip("+~") == option), ""
        )
        known = option_names(overrides, option)
        close = meant(option, known)
        siblings = [name for name in known if name.rpartition(".")[0] == option.rpartition(".")[0]]
        hint = f"did you mean {' or '.join(close)}?" if close else f"options here: {', '.join(siblings or known[:12])}"
        group, _, name = option.partition(".")
        if group in REMOTE_GROUPS and group != "strategy" and name in _of_other_choices(group):
            chosen = _compose_raw([])[group]["name"] if group not in dict(map(key_and_value, overrides)) else ""
            chosen = chosen or dict(map(key_and_value, overrides))[group]
            hint = f"there is no such option with {group}={chosen}; options here: {', '.join(siblings)}"
            return OptionError(option, value, hint)
        return OptionError(option, value, f"there is no such option; {hint}")
    first = message.strip().splitlines()[0]
    return OptionError("configuration", " ".join(overrides), first)


def _of_other_choices(group: str) -> set[str]:
    """Names of the options that any choice of a group has in its file."""
    files = [read_yaml(file) for file in (CONF / group).glob("*.yaml")] or sections(CONF / f"{group}.yaml").values()
    return {str(name) for file in files for name in file}


def option_names(overrides: Sequence[str], without: str) -> list[str]:
    """Dotted names of all options of the composition, leaving out one faulty override."""
    good = [line for line in overrides if key_and_value(line)[0].lstrip("+~") != without]
    try:
        raw = _compose_raw(good)
    except OptionError:
        raw = _compose_raw([])

    def walk(prefix: str, node: Any) -> list[str]:
        if isinstance(node, dict) and node:
            return [name for key, child in node.items() for name in walk(f"{prefix}{key}.", child)]
        return [prefix[:-1]]

    return [name for name in walk("", raw) if "_target_" not in name]


def from_dict(raw: dict[str, Any]) -> Config:
    """A configuration stored by `Config.to_dict`, checked again.

    JSON and YAML know no tuples; the schema does. Options of earlier versions are left out where they changed nothing.
    """
    for group, gone in OF_EARLIER_VERSIONS.items():
        if isinstance(options := raw.get(group), dict):
            raw = raw | {group: {name: value for name, value in options.items() if (name, value) not in gone.items()}}
    return validate(raw)


def read_config(folder: str | Path, said: Collection[str] | None = None) -> Config:
    """The configuration of a run's folder, which may be anybody's (`fedpriv.config.owner`).

    said: the options that the user gave beside it, where the run is repeated, goes on, or is attacked or audited; None:
    it is looked at. Raises `RunFolderError` if there is none, it is broken, or it names what the user did not say.
    """
    path, place = Path(folder) / "config.yaml", Path(folder)
    if not str(folder):
        raise OptionError("run", "", "must be the folder of a run")
    if not place.is_dir():
        words = "a file, not a run folder" if place.exists() else "there is no such run folder"
        raise RunFolderError(f"{folder}: {words}")
    if not is_file_in(place, path.name):
        raise RunFolderError(f"{folder}: not a run folder, it has no config.yaml")
    own = is_own(place, path.name)
    if not own:
        refuse_links(place)
    try:
        raw = read_yaml(path)
    except Exception as error:
        raise RunFolderError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(raw, dict):
        raise RunFolderError(f"{path}: not a configuration")
    try:
        with nullcontext() if own else own_code_only(place):
            config = from_dict({str(key): value for key, value in raw.items()})
    except OptionError as error:
        raise RunFolderError(f"{path}: {error}") from None
    if own:
        return config
    refuse_code(config, place, said or ())
    config = config.model_copy(update={"run_dir": None})
    if said is None:  # looked at: all that is written is the user's own cache
        return config.model_copy(update={"dataset": config.dataset.model_copy(update={"cache": None})})
    refuse_places(config, place, said)
    return config
