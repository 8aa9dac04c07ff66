"""conf/ as it is read: the choices of each group, the user's strategies and experiments before the project's.

Of the user's folder only `GROUPS` count: a folder in which one works may have a conf/ that belongs to another program.
A group is a folder with a file for each choice, or one file with a section for each. Files have Hydra's form, since
Hydra too reads them, for the folders of runs (`find_own_methods`).
"""

from __future__ import annotations

import copy
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from fedpriv.common.errors import OptionError
from fedpriv.common.places import HOME, own_conf
from fedpriv.config.yaml_text import plain_values

CONF = HOME / "conf"
#: The groups in which a user's files count.
GROUPS = ("strategy", "experiment")
#: Groups whose sections hold options of every group.
GLOBAL = ("experiment", "scale")
SCHEME = "fedpriv-own"
PACKAGE = re.compile(r"#\s*@package\s+(\S+)")


class Choice(NamedTuple):
    """What conf/ has of ``group=name``: content, and the group to which it belongs ("": to all)."""

    package: str
    content: dict[str, Any]


def own_choices(group: str) -> Path | None:
    """The user's folder of a config group, where there is one."""
    own = own_conf() if group in GROUPS else None
    return None if own is None or not (folder := own / group).is_dir() else folder


def choices(group: str) -> list[str]:
    """The names that a config group offers here."""
    folders = [CONF / group, *([own] if (own := own_choices(group)) else [])]
    return sorted({name for folder in folders for name in group_choices(folder)})


def is_group(name: str) -> bool:
    return (CONF / name).is_dir() or (name != "config" and (CONF / f"{name}.yaml").is_file())


def group_choices(group: Path) -> list[str]:
    """The names that a config group offers, the folder ``group`` or the file beside it."""
    file = group.with_suffix(".yaml")
    names = [file.stem for file in group.glob("*.yaml")] if group.is_dir() else [*read(file)] if file.is_file() else []
    return sorted(name for name in names if name != "base")


def group_file(group: str, name: str) -> Path:
    """The file of a choice: the user's before the project's."""
    own = own_choices(group)
    return file if own is not None and (file := own / f"{name}.yaml").is_file() else CONF / group / f"{name}.yaml"


def read(file: Path) -> dict[str, Any]:
    """A file of conf/, read once while it stays as it is. Not to be changed."""
    return _file(file).content


def _file(file: Path) -> Choice:
    about = file.stat()
    return _read(file, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=256)
def _read(file: Path, changed: int, size: int) -> Choice:
    try:
        text = file.read_text(encoding="utf-8")
        content = plain_values(text)
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise OptionError("configuration", str(file), f"cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict | None):
        raise OptionError("configuration", str(file), "must be a mapping, {option: value, ...}")
    said = PACKAGE.match(text)
    return Choice(said[1] if said else "", content or {})


def choice(group: str, name: str) -> Choice:
    """The file or section of a choice. Raises `OptionError` where there is none."""
    file = group_file(group, name)
    if file.is_file():
        found = _file(file)
        return found._replace(package={"": group.replace("/", "."), "_global_": ""}.get(found.package, found.package))
    first, *parts = f"{group}/{name}".split("/")
    node: Any = read(CONF / f"{first}.yaml") if (CONF / f"{first}.yaml").is_file() else None
    for part in parts:
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        raise OptionError(group, name, f"allowed: {', '.join(choices(group))}")
    return Choice("" if first in GLOBAL else group, node)


# --- for Hydra ---------------------------------------------------------------------------------------------


class OwnStrategies(FileConfigSource):
    """Files below the `GROUPS` of one folder."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def is_group(self, config_path: str) -> bool:
        return config_path == "" or (_inside(config_path) and super().is_group(config_path))

    def is_config(self, config_path: str) -> bool:
        return _inside(config_path) and super().is_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if config_path == "":
            return list(GROUPS)
        return super().list(config_path, results_filter) if self.is_group(config_path) else []


def _inside(path: str) -> bool:
    return path.split("/")[0] in GROUPS


class Sections(ConfigSource):
    """The choices of groups that are one file of `CONF`: file/choice, of scales file/name/choice."""

    @staticmethod
    def scheme() -> str:
        return "fedpriv-sections"

    def available(self) -> bool:
        return True

    def _found(self, path: str) -> tuple[int, Any]:
        """(how many groups below it a choice has, its content); (0, None) where there is none."""
        first, *parts = path.removesuffix(".yaml").split("/")
        file = CONF / f"{first}.yaml"
        node: Any = read(file) if first != "config" and file.is_file() else None
        for part in parts:
            node = node.get(part) if isinstance(node, dict) else None
        deep = 2 if first == "scales" else 1
        return (deep - len(parts), node) if isinstance(node, dict) and len(parts) <= deep else (0, None)

    def is_group(self, config_path: str) -> bool:
        return config_path == "" or self._found(config_path)[0] > 0

    def is_config(self, config_path: str) -> bool:
        below, node = self._found(config_path)
        return below == 0 and node is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names = [file.stem for file in CONF.glob("*.yaml")] if config_path == "" else [*self._found(config_path)[1]]
        kinds = {ObjectType.GROUP: self.is_group, ObjectType.CONFIG: self.is_config, None: self.exists}
        return sorted(name for name in names if kinds[results_filter](f"{config_path}/{name}".lstrip("/")))

    def load_config(self, config_path: str) -> ConfigResult:
        package = "_global_" if config_path.partition("/")[0] in GLOBAL else None
        content = OmegaConf.create(self._found(config_path)[1])
        return ConfigResult(self.provider, self.path, content, {"package": package})


class OwnSearchPath(SearchPathPlugin):
    """Puts the user's folder before the project's, and sections after it."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="sections", path=f"{Sections.scheme()}://{CONF}")
        if (own := own_conf()) is not None and any(map(own_choices, GROUPS)):
            search_path.prepend(provider="own methods", path=f"{SCHEME}://{own}")


_load_sweep_config = ConfigLoaderImpl.load_sweep_config


def sweep_config(loader: ConfigLoaderImpl, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
    """Hydra's own config of a sweep's job, in the place of `ConfigLoaderImpl.load_sweep_config`: jobs that choose the
    same files share one composition, which takes longer than a small run, and each gets its own values.
    """
    parsed = OverridesParser.create().parse_overrides(sweep_overrides)
    values = [o for o in parsed if not (o.is_hydra_override() or loader.repository.group_exists(o.key_or_group))]
    files = tuple(str(o.input_line) for o in parsed if o not in values)
    composed = loader.__dict__.setdefault("composed", {})  # as long as Hydra keeps it: for one sweep
    if files not in composed:
        composed[files] = _load_sweep_config(loader, master_config, [*files])
    config: DictConfig = copy.deepcopy(composed[files])
    loader._apply_overrides_to_config(values, config)
    tasks = [override for override in parsed if not override.is_hydra_override()]
    config.hydra.overrides.task = [override.input_line for override in tasks]
    told = OmegaConf.to_container(config.hydra.job.config.override_dirname)
    config.hydra.job.override_dirname = get_overrides_dirname(tasks, **told)  # type: ignore[arg-type]
    OmegaConf.copy_cache(from_config=master_config, to_config=config)
    return config


def find_own_methods() -> None:
    """From now on Hydra's compositions in this process find sections, and look into the user's folder, while there is
    one.
    """
    if OwnSearchPath not in Plugins.instance().discover(SearchPathPlugin):
        for plugin in (Sections, OwnStrategies, OwnSearchPath):
            Plugins.instance().register(plugin)
    ConfigLoaderImpl.load_sweep_config = sweep_config  # type: ignore[method-assign, assignment]
