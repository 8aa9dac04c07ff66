"""The cache: found again by content, written whole or not at all, by one process or by two at once."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.data_schema import DatasetConfig, IidPartition
from fedpriv.data import cache, partition
from fedpriv.data.load import load_dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes of four pictures, all pixels of a picture being equal."""
    for label, name in enumerate("ab"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(4):
            save(tmp_path / "pictures" / name / f"{number}.png", 100 * label + number)
    return tmp_path / "pictures"


def save(path: Path, value: int) -> None:
    Image.fromarray(np.full((8, 8), value, dtype=np.uint8)).save(path, format="BMP")  # equal sizes on purpose


def config(root: Path, **options) -> DatasetConfig:
    given = {"name": "image_folder", "root": str(root), "download": False, "auxiliary": 0, "channels": 1}
    return DatasetConfig(**{**given, "cache": str(root.parent / "cache"), **options})


def entries(root: Path) -> list[Path]:
    """Everything in the cache of pictures, hidden or not."""
    folder = root.parent / "cache" / "pictures"
    return sorted(folder.iterdir()) if folder.exists() else []


def test_decoded_once_and_mapped_afterwards(root: Path, monkeypatch: pytest.MonkeyPatch):
    first = load_dataset(config(root), 0)
    monkeypatch.setattr(Image, "open", lambda path: pytest.fail("decoded a second time"))
    again = load_dataset(config(root), 0)
    np.testing.assert_array_equal(again.train.inputs, first.train.inputs)
    np.testing.assert_array_equal(again.test.targets, first.test.targets)
    assert again.classes == first.classes
    assert isinstance(again.train.inputs, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        again.train.inputs[0] = 0


def test_another_content_is_another_entry(root: Path):
    variants = [config(root), config(root, channels=3), config(root, size=4), config(root, test_fraction=0.5)]
    for number, variant in enumerate(variants, start=1):
        load_dataset(variant, 0)
        assert len(entries(root)) == number
    load_dataset(config(root), 1)  # the seed divides the pictures
    assert len(entries(root)) == 5
    load_dataset(config(root, auxiliary=3), 0)  # does not touch the pictures
    assert len(entries(root)) == 5
    save(root / "a" / "0.png", 77)  # same name and size, changed later
    data = load_dataset(config(root), 0)
    assert len(entries(root)) == 6
    assert 77 in np.concatenate([data.train.inputs, data.test.inputs])


def test_a_folder_with_equal_names_sizes_and_times_is_another_content(root: Path):
    """As after unpacking two sets with all times set to one value."""
    other = root.parent / "other"
    for file in root.rglob("*.png"):
        twin = other / file.relative_to(root)
        twin.parent.mkdir(parents=True, exist_ok=True)
        save(twin, 200)
        for path in (file, twin):
            os.utime(path, (0, 0))
    load_dataset(config(root), 0)
    assert np.unique(load_dataset(config(other), 0).train.inputs).tolist() == [200]


def test_a_changed_decoder_does_not_meet_old_pictures(root: Path, monkeypatch: pytest.MonkeyPatch):
    load_dataset(config(root), 0)
    monkeypatch.setattr(cache, "_code_version", lambda: "another")
    load_dataset(config(root), 0)
    assert len(entries(root)) == 2


@pytest.mark.parametrize("where", ["option", "environment", "home"])
def test_where_the_cache_is(where: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDPRIV_CACHE", "" if where == "home" else str(tmp_path / "environment"))
    load_dataset(config(root, cache=str(tmp_path / "option") if where == "option" else None), 0)
    expected = tmp_path / "home" / ".cache" / "fedpriv" if where == "home" else tmp_path / where
    assert len(list((expected / "pictures").iterdir())) == 1


# --- whole or not at all ---------------------------------------------------------------------------------


def fail_with(number: int):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("step", ["save", "rename", "fsync", "mkdir"])
def test_a_full_disk_leaves_nothing_behind(root: Path, step: str, monkeypatch: pytest.MonkeyPatch):
    owner = {"save": np, "rename": os, "fsync": os, "mkdir": Path}[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fail_with(errno.ENOSPC))
        with pytest.raises(DataError, match=r"the cache .*cache/pictures .*No space left on device.*dataset\.cache"):
            load_dataset(config(root), 0)
    assert entries(root) == []
    assert len(load_dataset(config(root), 0).train) == 6


def test_a_full_disk_while_dividing(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(np, "savez", fail_with(errno.ENOSPC))
    options = IidPartition(name="iid", test_fraction=0.0)
    with pytest.raises(DataError, match=r"the cache .*partitions .*No space left on device"):
        partition.partition_clients(np.arange(8) % 2, options, 2, 0, root.parent / "cache")
    assert list((root.parent / "cache" / "partitions").iterdir()) == []


def test_a_write_that_really_fails_in_the_middle(root: Path):
    """The operating system cuts the pictures' file off: an error in words, not a signal, and nothing left."""
    script = (
        "import resource, sys; from fedpriv.config.data_schema import DatasetConfig\n"
        "from fedpriv.data.load import load_dataset\n"
        "from fedpriv.common.errors import DataError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "try: load_dataset(DatasetConfig.model_validate_json(sys.argv[1]), 0)\n"
        "except DataError as error: print(error)\n"
    )
    done = run([script, config(root).model_dump_json()]).communicate()
    assert "File too large" in done[0], done
    assert entries(root) == []


def test_an_interrupted_decoding_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            load_dataset(config(root), 0)
    assert entries(root) == []


def test_broken_input_is_not_cached(root: Path):
    (root / "a" / "text.png").write_text("not a picture")
    for _ in range(2):
        with pytest.raises(DataError, match=r"text\.png"):
            load_dataset(config(root), 0)
    assert entries(root) == []
    (root / "a" / "text.png").unlink()
    Image.new("L", (9, 9)).save(root / "a" / "large.png")
    with pytest.raises(OptionError, match=r"dataset\.size"):
        load_dataset(config(root), 0)
    assert entries(root) == []


def test_what_a_killed_process_leaves_is_never_used_and_removed_after_a_day(root: Path):
    load_dataset(config(root), 0)
    (complete,) = entries(root)
    leftovers = [complete.with_name(f"{cache.UNFINISHED}{age}") for age in ("old", "young")]
    for leftover in leftovers:
        leftover.mkdir()
        (leftover / "images.npy").write_bytes(b"half a picture")
    yesterday = time.time() - cache.ABANDONED_AFTER - 60
    for path in (leftovers[0] / "images.npy", leftovers[0]):
        os.utime(path, (yesterday, yesterday))
    assert len(load_dataset(config(root, size=4), 0).train) == 6
    assert leftovers[0] not in entries(root)  # abandoned
    assert leftovers[1] in entries(root)  # perhaps at work
    assert len(entries(root)) == 3


@pytest.mark.parametrize("file", ["images.npy", "labels.npy", "about.json"])
def test_a_damaged_entry_is_named(root: Path, file: str):
    load_dataset(config(root), 0)
    (complete,) = entries(root)
    content = (complete / file).read_bytes()
    (complete / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=rf"{complete.name} is damaged .*delete this folder"):
        load_dataset(config(root), 0)


# --- two processes ---------------------------------------------------------------------------------------

RACER = """
import os, sys, time
from pathlib import Path
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data import cache
from fedpriv.data.load import load_dataset

ready, rename = Path(sys.argv[2]), os.rename

def rename_when_both_have_written(source, target):
    (ready / str(os.getpid())).touch()
    while len(list(ready.iterdir())) < 2:
        time.sleep(0.01)
    rename(source, target)

os.rename = rename_when_both_have_written
data = load_dataset(DatasetConfig.model_validate_json(sys.argv[1]), 0)
print(sorted(data.train.inputs[:, 0, 0, 0].tolist() + data.test.inputs[:, 0, 0, 0].tolist()))
"""


def run(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )


def test_two_processes_that_write_at_once(root: Path):
    """Neither renames before both have written: the second finds its place taken."""
    ready = root.parent / "ready"
    ready.mkdir()
    racers = [run([RACER, config(root).model_dump_json(), str(ready)]) for _ in range(2)]
    try:
        outputs = [racer.communicate()[0] for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
    assert [racer.returncode for racer in racers] == [0, 0], outputs
    assert len(list(ready.iterdir())) == 2  # both did write
    expected = [100 * label + number for label in range(2) for number in range(4)]
    assert [json.loads(output) for output in outputs] == [expected, expected]
    (complete,) = entries(root)
    assert not complete.name.startswith(cache.UNFINISHED)
