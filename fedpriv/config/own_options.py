"""conf/strategy and conf/experiment of the user's folder, as Hydra finds them: before the project's.

Nothing else of that folder's conf counts: a folder in which one works may have a conf/ that belongs to another program.
A group of the project is a folder with a file for each choice, or one file with a section for each (`sections`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fedpriv.common.places import HOME, own_conf
from fedpriv.config.yaml_text import read_yaml

CONF = HOME / "conf"
#: The groups in which a user's files count.
GROUPS = ("strategy", "experiment")
SCHEME = "fedpriv-own"


_seen: dict[str, Any] | None = None


@contextmanager
def files_stay() -> Iterator[None]:
    """Inside, the options' files are looked at once: for thousands of compositions in a row, whose files stay as they
    are. Not for threads that want different files.
    """
    global _seen
    outer, _seen = _seen, {} if _seen is None else _seen
    try:
        yield
    finally:
        _seen = outer


def once(what: str, look: Callable[[], Any]) -> Any:
    """What a look at the files finds; inside `files_stay`, what the first one under this name found."""
    if _seen is None:
        return look()
    if what not in _seen:
        _seen[what] = look()
    return _seen[what]


def own_choices(group: str) -> Path | None:
    """The user's folder of a config group, where there is one."""
    own = own_conf() if group in GROUPS else None
    return None if own is None or not (folder := own / group).is_dir() else folder


def own_folders() -> list[Path]:
    return [folder for group in GROUPS if (folder := own_choices(group)) is not None]


def choices(group: str) -> list[str]:
    """The names that a config group offers here."""

    def look() -> list[str]:
        folders = [CONF / group, *([own] if (own := own_choices(group)) else [])]
        return sorted({name for folder in folders for name in group_choices(folder)})

    return list(once(f"choices of {group}", look))


def is_group(name: str) -> bool:
    return (CONF / name).is_dir() or (name != "config" and (CONF / f"{name}.yaml").is_file())


def group_choices(group: Path) -> list[str]:
    """The names that a config group offers, the folder ``group`` or the file beside it."""
    names = [file.stem for file in group.glob("*.yaml")] if group.is_dir() else [*sections(group.with_suffix(".yaml"))]
    return sorted(name for name in names if name != "base")


def sections(file: Path) -> dict[str, dict[str, Any]]:
    """Choice -> its options, of a group that is one file. Not to be changed."""
    return _sections(file, file.stat().st_mtime_ns) if file.is_file() else {}


@lru_cache(maxsize=32)
def _sections(file: Path, changed: int) -> dict[str, dict[str, Any]]:
    """Also puts them where Hydra finds what is in no file."""
    found: dict[str, dict[str, Any]] = read_yaml(file)
    for name, options in found.items():
        if file.stem == "scales":
            for scale, values in options.items():
                ConfigStore.instance().store(scale, values, f"scales/{name}")
        else:
            ConfigStore.instance().store(name, options, file.stem)
    return found


def group_file(group: str, name: str) -> Path:
    """The file of a choice: the user's before the project's."""
    own = own_choices(group)
    return file if own is not None and (file := own / f"{name}.yaml").is_file() else CONF / group / f"{name}.yaml"


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


class OwnSearchPath(SearchPathPlugin):
    """Puts the user's folder before the project's."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if own_folders():
            search_path.prepend(provider="own methods", path=f"{SCHEME}://{own_folders()[0].parent}")


def find_own_methods() -> None:
    """From now on Hydra's compositions in this process find sections, and look into the user's folder, while there is
    one.
    """
    for file in CONF.glob("*.yaml"):
        if file.stem != "config":
            sections(file)
    if own_folders() and OwnSearchPath not in Plugins.instance().discover(SearchPathPlugin):
        Plugins.instance().register(OwnStrategies)
        Plugins.instance().register(OwnSearchPath)
