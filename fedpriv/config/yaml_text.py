"""A configuration as YAML text and back: as OmegaConf writes and reads it, without making a tree of its nodes first,
which takes longer than the first rounds of a small run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_omega_conf_dumper, get_yaml_loader

from fedpriv.common.run_files import DEPTH, MIB, text_in

#: The C library's, where PyYAML has it.
_Emitter: type[Any] = getattr(yaml, "CDumper", yaml.Dumper)
_Parser: tuple[type[Any], ...] = (getattr(yaml.cyaml, "CParser"),) if hasattr(yaml, "CLoader") else ()  # noqa: B009


class _Dumper(_Emitter):
    """Quotes what YAML 1.2 would read as a number or a truth value, as OmegaConf's does."""


class _Loader(*_Parser, get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's rules of what is a number, and its refusal of keys that are there twice."""

    def __init__(self, stream: str) -> None:
        if not _Parser:
            super().__init__(stream)
            return
        _Parser[0].__init__(self, stream)
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)


_Dumper.add_representer(str, get_omega_conf_dumper().str_representer)


def yaml_of(content: dict[str, Any]) -> str:
    """content: plain values, as JSON has them."""
    return str(yaml.dump(content, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_Dumper))


#: Bytes of a configuration, its values, and the signs of one of them.
MOST, MOST_EVENTS, LONGEST_SCALAR = 4 * MIB, 200_000, 10_000


def read_yaml(path: Path) -> Any:
    """Plain values; interpolations are texts. A file may be anybody's: it has no aliases (few of them make gigabytes),
    no tags, and at most `DEPTH` levels (the parser would leave its stack).

    Raises `yaml.YAMLError`, OSError, UnicodeDecodeError.
    """
    text = text_in(path.parent, path.name, MOST)
    level = 0
    for number, event in enumerate(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise yaml.YAMLError("aliases, anchors and tags are not allowed")
        if number > MOST_EVENTS or len(getattr(event, "value", "")) > LONGEST_SCALAR:
            raise yaml.YAMLError(f"more than {MOST_EVENTS} values, or one of more than {LONGEST_SCALAR} signs")
        if level > DEPTH:
            raise yaml.YAMLError(f"deeper than {DEPTH} levels")
    return plain_values(text)


def plain_values(text: str) -> Any:
    """What a YAML text holds. Raises `yaml.YAMLError`."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()  # SafeConstructor's: plain values, and no tag that makes an object
    finally:
        loader.dispose()


def with_tuples(value: Any) -> Any:
    """A YAML value as schemas have it: tuples for its lists."""
    if isinstance(value, list):
        return tuple(with_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: with_tuples(item) for key, item in value.items()}
    return value
