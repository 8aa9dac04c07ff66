"""Configurations as text: what OmegaConf would write, and what it would read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from fedpriv.config.compose import CONF
from fedpriv.config.yaml_text import read_yaml, yaml_of

#: Texts that are something else without quotes, and numbers and nests that are written in several ways.
HARD: list[Any] = [
    *("1e-3", "true", "off", "1_000", "null", "~", "0x1F", "2020-01-01", "1:30", ".5", "1.", "nan", ".inf", "-", ""),
    *("a: b", "#x", " before", "after ", "two\nlines\n", "tab\there", "'one' \"two\"", "[a, b]", "{x}", "!t", "*a"),
    *("&a", "%", "@", "`", "ü 你好", "word " * 40, "x" * 200, "\x07", "${other}"),
    *(1e-5, 1e300, 0.1, float("inf"), 10**20, True, None, [], {}, [1, [2, {"z": None}]]),
]


def test_a_configuration_is_written_as_by_omegaconf_and_read_as_it_was() -> None:
    content = {f"option{number}": value for number, value in enumerate(HARD)}
    assert yaml_of(content) == OmegaConf.to_yaml(OmegaConf.create(content))


@pytest.mark.parametrize(
    "file",
    sorted({*CONF.rglob("*.yaml")} - {*CONF.glob("reproduction/*")}),
    ids=lambda file: str(file.relative_to(CONF)),
)
def test_a_file_is_read_as_by_omegaconf(file: Path) -> None:
    """But those of studies, which have anchors and are read by `fedpriv.studies.spec` alone."""
    assert repr(read_yaml(file)) == repr(OmegaConf.to_container(OmegaConf.load(file)) or None)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml_of({"values": HARD}))
    assert repr(read_yaml(file)) == repr({"values": HARD})


@pytest.mark.parametrize(
    "text",
    ["a: 1\na: 2\n", "a: [", "\t", "a: !!python/object/apply:os.system [ls]\n", "a: \x01"],
    ids=["twice", "open", "tab", "object", "control"],
)
def test_what_is_no_configuration_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    for read in (read_yaml, OmegaConf.load):
        with pytest.raises(yaml.YAMLError):
            read(file)
