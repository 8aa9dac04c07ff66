"""The reader of run folders: which files it opens, and how much of them it takes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fedpriv.common import run_files
from fedpriv.common.errors import RunFolderError
from fedpriv.common.run_files import DEPTH, DIGITS, MOST_VALUES, bytes_in, json_of, refuse_links
from fedpriv.config.yaml_text import read_yaml


def _elsewhere(place: Path) -> Path:
    (place / "outside").mkdir()
    (place / "outside" / "file").write_text("a secret")
    return place / "outside"


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "a link": lambda folder, outside: (folder / "a" / "file").symlink_to(outside / "file"),
    "a pipe": lambda folder, outside: os.mkfifo(folder / "a" / "file"),
    "a folder": lambda folder, outside: (folder / "a" / "file").mkdir(),
    "a device behind a link": lambda folder, outside: (folder / "a" / "file").symlink_to("/dev/zero"),
    "a linked folder": lambda folder, outside: (folder / "a").rmdir() or (folder / "a").symlink_to(outside),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_of_the_folder_is_refused(kind: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", _elsewhere(tmp_path)
    (folder / "a").mkdir(parents=True)
    KINDS[kind](folder, outside)
    with pytest.raises(OSError, match=r"link|regular|directory|Not a directory"):
        bytes_in(folder, "a/file")
    if kind != "a folder":
        with pytest.raises(RunFolderError, match=r"is a link|not a regular file"):
            refuse_links(folder)


def test_a_file_of_the_folder_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 100)
    assert bytes_in(tmp_path, "a/file", 100) == b"x" * 100
    with pytest.raises(OSError, match="has more than 99 bytes"):
        bytes_in(tmp_path, "a/file", 99)
    refuse_links(tmp_path)


def test_a_file_needs_no_more_memory_than_it_has_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python makes room for as many bytes as a file is asked for; one that grows meanwhile is read to its end."""
    (tmp_path / "file").write_bytes(b"all")
    assert bytes_in(tmp_path, "file", 2**60) == b"all"
    real = os.fstat

    def grown(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        with (tmp_path / "file").open("ab") as file:
            file.write(b" and more")
        return found

    monkeypatch.setattr("fedpriv.common.run_files.os.fstat", grown)
    assert bytes_in(tmp_path, "file", 100).startswith(b"all and more")
    with pytest.raises(OSError, match="more than 25 bytes"):
        bytes_in(tmp_path, "file", 25)


def test_a_folder_named_through_a_link_is_the_users_own_word(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").write_text("1")
    (tmp_path / "newest").symlink_to("run")
    assert bytes_in(tmp_path / "newest", "file") == b"1"


def test_more_files_than_a_run_has_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "MOST_FILES", 5)
    (tmp_path / "below").mkdir()
    for number in range(4):
        (tmp_path / "below" / str(number)).touch()
    refuse_links(tmp_path)
    (tmp_path / "one more").touch()
    with pytest.raises(RunFolderError, match="more than 5 files"):
        refuse_links(tmp_path)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("inside", "beyond"),
    [
        (nested(DEPTH), nested(DEPTH + 1)),
        ("9" * DIGITS, "9" * (DIGITS + 1)),
        ("1e308", "1e309"),
        ("[" + ",".join("1" * 1000) + "]", "[" + "1," * MOST_VALUES + "1]"),
        ('"\\ud83d\\ude00"', '"\\ud83d"'),
        ('"NaN"', "NaN"),
        ('"Infinity"', "-Infinity"),
        ("[1]", "[" * 100_000),
        ('{"a": 1}', '{"a": '),
    ],
)
def test_json_beyond_a_bound_is_refused(inside: str, beyond: str) -> None:
    assert json_of(inside) == json.loads(inside)
    with pytest.raises(ValueError):
        json_of(beyond.encode())


@pytest.mark.parametrize(
    "text",
    ["a: &a [1]\nb: *a\n", "a: &a 1\n", "a: !!python/name:os.system x\n", "a: !!str 1\n", f"a: {nested(DEPTH)}\n"],
)
def test_yaml_has_no_aliases_no_tags_and_an_end(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: [1, {b: 2}]\n")
    assert read_yaml(tmp_path / "config.yaml") == {"a": [1, {"b": 2}]}
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(yaml.YAMLError, match=r"aliases, anchors and tags|deeper than"):
        read_yaml(tmp_path / "config.yaml")
