"""From YAML files and overrides to a checked `Config`, with every mistake turned into one readable line.

`compose` serves the command line (before Hydra itself starts), every job of a sweep, `flwr run`, the audit and the
tests. Files have Hydra's form, of which this reads what `_defaults` says: Hydra would take a third of a second.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from fedpriv.common.command_line import refuse_no_path
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.run_files import is_file_in, refuse_links
from fedpriv.config.checks import check, value_of
from fedpriv.config.explain import first_option_error
from fedpriv.config.feature_dims import with_dims
from fedpriv.config.method_pairs import check_pair, schema_for, why_not
from fedpriv.config.methods import METHODS, AskOptions
from fedpriv.config.options import MethodOptions
from fedpriv.config.own_options import CONF, choice, choices, find_own_methods, is_group, read
from fedpriv.config.owner import FILES, is_own, own_code_only, refuse_code, refuse_places
from fedpriv.config.schema import Config
from fedpriv.config.spelling import as_typed, how_to_write, meant, refuse_noise_beside_target
from fedpriv.config.strategy_options import HALVES, contradiction, field_of, home_of, read_options, spelled
from fedpriv.config.yaml_text import read_yaml

#: Keys of the command line that are not part of a run's configuration.
COMMANDS = ("resume", "rerun", "extend", "plan", "policy")

#: Options that are gone, at the values where they changed nothing: folders of earlier versions have them.
OF_EARLIER_VERSIONS: dict[str, dict[str, object]] = {
    "features": {"waves": 1000, "width": 1.0},
    "privacy": {"extrapolated_cohort": None, "extrapolated_population": None},
}

#: Groups of which a remote caller (`flwr run`) may choose.
REMOTE_GROUPS = ("strategy", "dataset", "features", "partition", "model", "engine", "experiment", "scale")
MECHANISM = "privacy.mechanism"
IN_DEFAULTS = "defaults may have _self_, NAME, /GROUP/NAME, /GROUP/NAME@_here_: NAME and override /GROUP: NAME"
METHOD_OPTION = re.compile(r"strategy\.(server|client)\.([a-z]\w*)")
#: ``${an.option}``, ``${oc.env:NAME,else}`` and ``${oc.decode:${oc.env:NAME,else}}``; OmegaConf resolves all others.
REFERENCE = re.compile(r"\$\{([a-z]\w*(?:\.\w+)*)\}")
HOST = re.compile(r"(\$\{oc\.decode:)?\$\{oc\.env:(FEDPRIV_\w+),([\w.]+)\}\}?")


def compose(overrides: Sequence[str] = ()) -> Config:
    """The checked configuration for a list of ``key=value`` overrides (`COMMANDS` among them are left out).

    Raises `OptionError` for an unknown group, option or value, naming what is allowed.
    """
    parsed = parse(overrides)
    raw = composed(parsed)
    try:
        config = validate({name: value for name, value in raw.items() if name not in COMMANDS})
    except OptionError as error:
        raise as_typed(error, parsed) from None
    refuse_noise_beside_target(config.privacy.target_epsilon, parsed)
    return config


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
    if "\0" in line:
        key, value = key_and_value(line)
        raise OptionError(key, value.replace("\0", "\\0"), "holds the character NUL, which no option takes")
    return parsed


def key_and_value(line: str) -> tuple[str, str]:
    key, _, value = line.partition("=")
    return key, value


# --- checks -----------------------------------------------------------------------------------------------


def validate(raw: dict[str, Any]) -> Config:
    """Checks a composed configuration (plain dictionaries and values).

    Raises `OptionError` naming the option, the value and what is allowed.
    """
    strategy = raw.get("strategy")
    if isinstance(strategy, dict):
        raw = raw | {"strategy": _without_options(strategy)}
    try:
        config = Config.model_validate(_freeze_lists(raw))
    except ValidationError as error:
        raise first_option_error(error) from None
    assert isinstance(strategy, dict)
    config = _with_method(config, strategy)
    check(config)
    for option in FILES:
        if (path := value_of(config, config.strategy.options, option)) is not None:
            refuse_no_path(option, path)
    if isinstance(config.strategy.options, AskOptions):  # answers in place of a model
        config = config.model_copy(update={"model": config.model.model_copy(update={"name": "constant"})})
    return with_dims(config)


#: Options whose values are lists.
LISTS = (("engine", "faults"), ("model", "lora_layers"), ("dataset", "classes"), ("dataset", "examples"))


def _freeze_lists(raw: dict[str, Any]) -> dict[str, Any]:
    """YAML and JSON know no tuples; the schema does."""
    for group, name in LISTS:
        options = raw.get(group)
        if isinstance(options, dict) and isinstance(options.get(name), list):
            raw = {**raw, group: {**options, name: tuple(options[name])}}
    engine = raw.get("engine")
    if not isinstance(engine, dict):
        return raw
    faults = engine.get("faults")
    if isinstance(faults, dict) and isinstance(faults.get("kinds"), list):
        faults = {**faults, "kinds": tuple(faults["kinds"])}
    return {**raw, "engine": {**engine, "faults": () if faults is None else faults}}


def _with_method(config: Config, raw: dict[str, Any]) -> Config:
    """The configuration with its method's options, checked. A method of the user's own has a name of its own; its
    options are checked when its halves are loaded (`fedpriv.config.halves`).
    """
    name = config.strategy.name
    package, _, rest = config.strategy.server.partition(".")
    file = rest.partition(".")[0]
    if package == "strategies" and file in METHODS and name != file:
        raise OptionError("strategy.name", name, f"this is the method {file}: choose it by strategy={file}")
    check_pair(name, config.privacy.mechanism)
    options = read_options(schema_for(name, config.privacy.mechanism), raw, config)
    return config.model_copy(update={"strategy": config.strategy.model_copy(update={"options": options})})


def _without_options(raw: dict[str, Any]) -> dict[str, Any]:
    """A composed ``strategy`` as the rest of the configuration is checked with it."""
    found = dict(raw)
    for half in HALVES:
        if half in raw and not isinstance(raw[half], dict):
            given = "null" if raw[half] is None else raw[half]
            raise OptionError(f"strategy.{half}", given, "must be a mapping, {option: value, ...}")
        found[half] = raw.get(half, {}).get("_target_", "")
    return {**found, "options": MethodOptions.model_construct()}


# --- files and overrides -----------------------------------------------------------------------------------

Layer = dict[str, Any]


def composed(overrides: Sequence[Override]) -> dict[str, Any]:
    """The options of files and overrides, as plain values. Raises `OptionError`."""
    given = [override for override in overrides if override.key_or_group not in COMMANDS]
    for override in given:
        if override.is_sweep_override():
            words = "several values need -m (a sweep)"
            raise OptionError(override.key_or_group, override.get_value_string(), words)
    try:
        composition = Composition(given)
    except RecursionError:
        raise OptionError("configuration", "defaults", "a file of conf/ is based on itself") from None
    for override in given:
        if override.key_or_group not in composition.chosen or isinstance(override.value(), dict):
            composition.put(override)
    return _resolved(composition.tree)


class Composition:
    """The options of the chosen files, each of the method's under the half of its spelling, and what is set in them.

    tree: plain values with references. chosen: group -> choice. schema: the class of the method's options; None for a
    method of one's own. given: all overrides. Raises `OptionError`.
    """

    def __init__(self, given: Sequence[Override]) -> None:
        self.given, primary = given, read(CONF / "config.yaml")
        self.chosen = {
            name: "null" if said is None else str(said)
            for entry in primary["defaults"]
            for name, said in (entry.items() if isinstance(entry, dict) else ())
            if name != "hydra" and not name.startswith("override ")
        }
        by_name = [o for o in given if o.key_or_group in self.chosen and not isinstance(o.value(), dict)]
        named = {override.key_or_group: _chosen(override) for override in by_name}
        self.chosen |= named
        scale = self.chosen["scale"]
        asked = _further("experiment", self.chosen["experiment"], scale) | named
        self.chosen |= _further("strategy", asked.get("strategy", self.chosen["strategy"]), scale) | asked
        layers = {group: list(_layers(group, name, scale)) for group, name in self.chosen.items()}
        if {"model", "experiment"} <= named.keys():  # a scale names a network too: what was asked for comes last
            layers["scale"].append({"model": {"name": named["model"]}})
        found = [{name: value for name, value in primary.items() if name != "defaults"}, *chain(*layers.values())]
        algorithm = str(_last(found, "strategy", "name"))
        mechanism = _last([*found, *map(_as_layer, given)], "privacy", "mechanism")
        self.schema = schema_for(algorithm, mechanism)
        if mechanism is not None and why_not(algorithm, str(mechanism)) is None:  # its file comes after the strategy's
            others = map(_of_mechanism, _layers("strategy", str(mechanism), scale))
            place = 1 + sum(len(layers[group]) for group in list(layers)[: list(layers).index("strategy") + 1])
            found[place:place] = others
        self.tree: Layer = {}
        for layer in found:
            self._merge(layer)
        self._seen: dict[str, tuple[str, str]] = {}

    def _merge(self, layer: Layer) -> None:
        """Each option of the method goes where it is spelled. Raises `OptionError` for two values of one."""
        strategy, seen = layer.get("strategy"), dict[str, tuple[str, Any]]()
        if self.schema is not None and isinstance(strategy, dict):
            found: Layer = {name: value for name, value in strategy.items() if name not in HALVES}
            for half in [half for half in HALVES if half in strategy]:
                if not isinstance(strategy[half], dict):
                    found[half] = strategy[half]
                    continue
                for name, value in strategy[half].items():
                    option, field = f"strategy.{half}.{name}", field_of(self.schema, half, name)
                    home = spelled(self.schema, field) if field else option
                    other, before = seen.setdefault(home, (option, value))
                    if other != option and value != before:
                        raise contradiction(option, value, other, before)
                    _, place, last = home.split(".", 2)
                    found.setdefault(place, {})[last] = value
            layer = layer | {"strategy": found}
        _merge(self.tree, layer)

    def home(self, override: Override) -> str:
        """Where the file has an option, which of a method may be named under either half. Raises `OptionError` for two
        values of one.
        """
        key = override.key_or_group
        if (named := METHOD_OPTION.fullmatch(key)) is None:
            return key
        home = home_of(self.schema, self.tree["strategy"], *named.groups())
        option, value = key_and_value((override.input_line or "").lstrip("+~"))
        before, first = self._seen.setdefault(home, (option, value))
        if before != option and value != first:
            raise contradiction(option, value, before, first)
        return home

    def put(self, override: Override) -> None:
        """Sets an option, adds one that there is not (+) or takes one away (~). Raises `OptionError`."""
        home, value, node = self.home(override), None if override.is_delete() else override.value(), self.tree
        *sections, name = home.split(".")
        adds = override.type in (OverrideType.ADD, OverrideType.FORCE_ADD)
        for section in sections:
            node = node.setdefault(section, {}) if adds else node.get(section, {})
            if not isinstance(node, dict):
                raise self._unknown(override)
        method = self.schema if METHOD_OPTION.fullmatch(home) else None
        if not (name in node or adds or (method and field_of(method, sections[1], name))):
            raise self._unknown(override)
        if override.is_delete():
            node.pop(name, None)
        elif isinstance(value, dict) and isinstance(node.get(name), dict):
            layer: Any = value
            for section in reversed([*sections, name]):
                layer = {section: layer}
            self._merge(layer)
        else:
            node[name] = value

    def _unknown(self, override: Override) -> OptionError:
        option, (_, value) = override.key_or_group, key_and_value(override.input_line or "")
        known = option_names([o.input_line or "" for o in self.given], option)
        close, above = meant(option, known), option.rpartition(".")[0]
        siblings = [name for name in known if name.rpartition(".")[0] == above]
        group, _, name = option.partition(".")
        choosing = choices(group) if group in self.chosen and group != "strategy" else ()
        if any(name in choice(group, one).content for one in choosing):
            words = f"there is no such option with {group}={self.chosen[group]}; options here: {', '.join(siblings)}"
            return OptionError(option, value, words)
        hint = f"did you mean {' or '.join(close)}?" if close else f"options here: {', '.join(siblings or known[:12])}"
        return OptionError(option, value, f"there is no such option; {hint}")


def _chosen(override: Override) -> str:
    """The choice of ``group=choice``, checked. Raises `OptionError`."""
    group, name = override.key_or_group, override.get_value_element_as_str()
    if group == "experiment" and override.is_delete():
        return "null"
    allowed = choices(group) + (["null"] if group == "experiment" else [])
    if name not in allowed:
        close = difflib.get_close_matches(name.lower(), allowed, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise OptionError(group, name, f"allowed: {', '.join(allowed)}{hint}")
    if override.type != OverrideType.CHANGE or override.package is not None:
        raise OptionError(group, name, f"a group has one choice, written {group}={name}")
    return name


def _further(group: str, name: str, scale: str) -> dict[str, str]:
    """What the file of a choice says of other groups: ``override /group: choice``."""
    found: dict[str, str] = {}
    for path, said, _ in _defaults(group, name, scale) if name != "null" else ():
        if path.startswith("override "):
            found[path.removeprefix("override ").strip(" /")] = str(said)
        elif path and not said:
            found = _further(*_below(group, path), scale) | found
    return found


def _defaults(group: str, name: str, scale: str) -> Iterator[tuple[str, str, str]]:
    """(path, choice, package) of each entry of a file's defaults; its own content is ("", "", "")."""
    entries = choice(group, name).content.get("defaults", [])
    if not isinstance(entries, list):
        raise OptionError(group, name, f"its file has {entries!r}; {IN_DEFAULTS}")
    for entry in [*entries, *(["_self_"] if "_self_" not in entries else [])]:
        key, said = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, "")
        path, _, package = str(key).partition("@")
        optional, path = path.startswith("optional "), path.removeprefix("optional ")
        if path.removeprefix("override ").strip(" /").startswith("hydra/"):  # of the program, which Hydra starts
            continue
        if package not in ("", "_here_") or not (said or isinstance(entry, str)):
            raise OptionError(group, name, f"its file has {entry!r}; {IN_DEFAULTS}")
        if optional and not _is_there(group, path, str(said).replace("${scale}", scale)):
            continue
        yield ("", "", "") if entry == "_self_" else (path, str(said).replace("${scale}", scale), package)


def _is_there(group: str, path: str, said: str) -> bool:
    """Whether there is what an optional entry of a file's defaults names."""
    whole = f"{path.removeprefix('override ').strip(' ')}/{said}".rstrip("/")
    try:
        choice(*_below("" if path.startswith("override ") else group, whole))
    except OptionError:
        return False
    return True


def _below(group: str, path: str) -> tuple[str, str]:
    """(group, name) of a path in the defaults of a file of ``group``."""
    above, _, name = (path[1:] if path.startswith("/") else f"{group}/{path}").rpartition("/")
    return above, name


def _layers(group: str, name: str, scale: str, package: str | None = None) -> Iterator[Layer]:
    """The options of a choice and of those it is based on, in the order in which they count. Raises `OptionError`."""
    if name == "null":
        return
    own, content = choice(group, name)
    package = own if package is None else package
    for path, said, where in _defaults(group, name, scale):
        if not path:
            others = ("defaults",) if package else ("defaults", "hydra")  # Hydra reads what it is told itself
            layer: Any = {key: value for key, value in content.items() if key not in others}
            for part in reversed(package.split(".") if package else []):
                layer = {part: layer}
            yield layer
        elif not path.startswith("override "):
            below = _below(group, f"{path}/{said}" if said else path)
            yield from _layers(*below, scale, package if where else None)


def _of_mechanism(layer: Layer) -> Layer:
    """What of a mechanism's file counts beside an algorithm's: how batches are drawn is its analysis' business."""
    strategy = {name: value for name, value in layer.get("strategy", {}).items() if name != "name"}
    for half in HALVES:
        strategy[half] = {name: value for name, value in strategy.get(half, {}).items() if name != "_target_"}
    return {"strategy": strategy, "local": layer.get("local", {})}


def _merge(tree: Layer, layer: Mapping[str, Any]) -> None:
    for name, value in layer.items():
        if isinstance(value, dict):
            if not isinstance(tree.get(name), dict):
                tree[name] = {}
            _merge(tree[name], value)
        else:
            tree[name] = value


def _last(found: Iterable[Layer], group: str, name: str) -> Any:
    value = None
    for layer in found:
        if isinstance(options := layer.get(group), dict) and name in options:
            value = options[name]
    return value


def _as_layer(override: Override) -> Layer:
    """An override of ``group`` or ``group.name``."""
    group, _, name = override.key_or_group.partition(".")
    value = None if override.is_delete() else override.value()
    return {group: {name: value} if name else value}


def _resolved(tree: Layer) -> dict[str, Any]:
    """The tree without references. Raises `OptionError` for one that cannot be followed, and for a missing value."""

    def plain(node: Any, *path: str) -> Any:
        if isinstance(node, dict):
            return {str(name): plain(value, *path, str(name)) for name, value in node.items()}
        if isinstance(node, list):
            return [plain(value, *path, str(number)) for number, value in enumerate(node)]
        if node == "???":
            raise OptionError(".".join(path), "", "has no default: give it a value")
        return _value_of(node, tree, ".".join(path)) if isinstance(node, str) and "${" in node else node

    found: dict[str, Any] = plain(tree)
    return found


def _value_of(text: str, tree: Layer, path: str) -> Any:
    """What a text with a reference stands for."""
    if (said := HOST.fullmatch(text)) is not None:
        value = os.environ.get(said[2], said[3])
        return None if value == "null" else int(value) if said[1] and value.isdigit() else value
    if (option := REFERENCE.fullmatch(text)) is not None:
        node: Any = tree
        for name in option[1].split("."):
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, int | float) or (isinstance(node, str) and "$" not in node and node != "???"):
            return node
    setup_globals()  # ${now:...}
    try:
        value = OmegaConf.select(OmegaConf.create(tree), path, throw_on_missing=True)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise OptionError(path, text, str(error).splitlines()[0]) from None


def option_names(overrides: Sequence[str], without: str) -> list[str]:
    """Dotted names of all options of the composition, leaving out one faulty override."""
    try:
        raw = composed([override for override in parse(overrides) if override.key_or_group != without])
    except OptionError:
        raw = composed([])

    def walk(prefix: str, node: Any) -> list[str]:
        if isinstance(node, dict) and node:
            return [name for key, child in node.items() for name in walk(f"{prefix}{key}.", child)]
        return [prefix[:-1]]

    return [name for name in walk("", raw) if "_target_" not in name]


# --- for Hydra -------------------------------------------------------------------------------------------


def at_home(overrides: Sequence[str]) -> list[str]:
    """The same overrides, the method's options among them as Hydra finds them in the method's file. Raises
    `OptionError` for two values of one.
    """
    parsed = parse(overrides)
    if not any(METHOD_OPTION.fullmatch(override.key_or_group) for override in parsed):
        return list(overrides)
    try:
        chosen = parse([line for override in parsed if (line := _choice(override))])
        composition = Composition(chosen)
        files = Composition([override for override in chosen if override.key_or_group != MECHANISM]).tree["strategy"]
    except OptionError:  # said where all of it is composed
        return list(overrides)
    found = []
    for line, override in zip(overrides, parsed, strict=True):
        if METHOD_OPTION.fullmatch(override.key_or_group) and override.type == OverrideType.CHANGE:
            home = composition.home(override)
            _, half, name = home.split(".")
            line = f"{'' if name in files[half] else '++'}{home}={key_and_value(line)[1]}"
        found.append(line)
    return found


def _choice(override: Override) -> str:
    """``group=choice``, ``privacy.mechanism=name``, of a sweep the first one; "" for everything else."""
    chooses = override.key_or_group == MECHANISM or is_group(override.key_or_group)
    if override.package is not None or not chooses or override.is_delete():
        return ""
    value = override.value()
    if override.is_sweep_override():
        value = next(iter(override.sweep_string_iterator()))
    return f"{override.key_or_group}={'null' if value is None else value}"


def model_by_name(given: Sequence[Override]) -> list[str]:
    """``model=mlp`` beside an experiment, whose scale names a network too: what was asked for comes last."""
    values = {override.key_or_group: override for override in given}
    if "experiment" not in values or "model" not in values or "model.name" in values:
        return []
    return [f"model.name={values['model'].get_value_element_as_str()}"]


def check_hydra(overrides: Sequence[str]) -> None:
    """Checks options of Hydra itself (``hydra.run.dir=...``, ``hydra/launcher=...``); raises `OptionError`."""
    if not overrides:  # a composition takes a third of a second
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


# --- folders of runs -------------------------------------------------------------------------------------


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
    refuse_no_path("run", str(folder))
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
