"""A machine's data among virtual clients: whose unit goes where, and what a shard may know of the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from fedpriv.common.errors import DataError, LedgerRefused
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard.shards import Shards, read_salt

SALT = bytes(range(32))
ROWS = [f"{number % 7};{number * 1.5};'x{number}'" for number in range(60)]


def policy(**more: Any) -> GuardPolicy:
    return GuardPolicy.model_validate({"apps": (), "unit": "row", "clip": 1.0, "noise_multiplier": 1.0, **more})


def divided(folder: Path, name: str, **more: Any) -> list[bytes]:
    (folder / ".fedpriv").mkdir(exist_ok=True)
    return [file.read_bytes() for file in Shards(folder, policy(table=name, **more), SALT).files()]


def csv(folder: Path, rows: list[str], ending: str = "\n") -> list[bytes]:
    folder.mkdir(exist_ok=True)
    (folder / "t.csv").write_bytes(ending.join(["a;b;c", *rows]).encode() + b"\n")
    return divided(folder, "t.csv", shards=8)


def test_a_row_less_changes_one_shard_by_that_row(tmp_path: Path) -> None:
    before = csv(tmp_path / "one", ROWS)
    assert sorted(line for part in before for line in part.splitlines()[1:]) == sorted(row.encode() for row in ROWS)
    assert all(part.startswith(b"a;b;c\n") for part in before)
    for gone in (0, 17, 59):
        after = csv(tmp_path / f"without-{gone}", ROWS[:gone] + ROWS[gone + 1 :])
        changed = [place for place in range(8) if before[place] != after[place]]
        (place,) = changed
        assert before[place].replace(f"{ROWS[gone]}\n".encode(), b"") == after[place]


def test_rows_in_another_order_go_to_the_same_shards(tmp_path: Path) -> None:
    before, after = csv(tmp_path / "one", ROWS), csv(tmp_path / "two", ROWS[::-1], ending="\r\n")
    assert [sorted(part.splitlines()) for part in before] == [sorted(part.splitlines()) for part in after]


def test_a_record_may_have_line_breaks_in_quotes(tmp_path: Path) -> None:
    found = csv(tmp_path / "one", ['1;2;"a\nb"', "3;4;c"])
    assert sum(b'1;2;"a\nb"\n' in part for part in found) == 1


def test_all_rows_of_a_person_are_in_one_shard(tmp_path: Path) -> None:
    csv(tmp_path, ROWS)
    parts = divided(tmp_path, "t.csv", shards=5, unit="person", column="a")
    places = {}
    for place, part in enumerate(parts):
        for line in part.splitlines()[1:]:
            places.setdefault(line.split(b";")[0], set()).add(place)
    assert len(places) == 7 and all(len(found) == 1 for found in places.values())
    with pytest.raises(DataError, match=r"guard.column=name: the table has a, b, c"):
        divided(tmp_path, "t.csv", shards=5, unit="person", column="name")


def test_parquet_shards_know_nothing_of_the_rest(tmp_path: Path) -> None:
    """Pandas' metadata count all rows, and a dictionary names values of other rows."""

    def written(name: str, rows: list[int]) -> list[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        names = pyarrow.array([f"n{row}" for row in rows]).dictionary_encode()
        table = pyarrow.table({"a": rows, "b": names})
        table = table.replace_schema_metadata({"pandas": f'{{"stop": {len(rows)}}}'})
        pyarrow.parquet.write_table(table, folder / "t.parquet")
        return divided(folder, "t.parquet", shards=4)

    before, after = written("one", list(range(40))), written("two", [*range(11), *range(12, 40)])
    assert sum(first != second for first, second in zip(before, after, strict=True)) == 1
    tables = [pyarrow.parquet.read_table(pyarrow.BufferReader(part)) for part in before]
    assert sorted(value for table in tables for value in table["a"].to_pylist()) == list(range(40))


def test_folders_are_divided_by_their_files(tmp_path: Path) -> None:
    for number in range(30):
        place = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes([number]))
    (tmp_path / "pictures" / "empty").mkdir()
    (tmp_path / ".fedpriv").mkdir()
    found = Shards(tmp_path, policy(table="pictures", shards=4), SALT).files()
    assert all(sorted(place.name for place in shard.iterdir()) == ["a", "b", "empty"] for shard in found)
    files = [file.relative_to(shard) for shard in found for file in shard.rglob("*.png")]
    assert len(files) == len(set(files)) == 30


def test_where_a_shard_lies_and_when_it_was_made_say_nothing(tmp_path: Path) -> None:
    def places(rows: list[str]) -> list[tuple[str, float]]:
        csv(tmp_path, rows)
        files = Shards(tmp_path, policy(table="t.csv", shards=8), SALT).files()
        return [(str(file), file.stat().st_mtime) for file in files]

    assert places(ROWS) == places(ROWS[1:])


def test_shards_are_kept_until_the_data_change(tmp_path: Path) -> None:
    csv(tmp_path, ROWS)
    shards = Shards(tmp_path, policy(table="t.csv", shards=3), SALT)
    first = [file.stat().st_ino for file in shards.files()]
    assert [file.stat().st_ino for file in shards.files()] == first
    csv(tmp_path, ROWS[1:])
    os.utime(tmp_path / "t.csv")
    content = b"".join(file.read_bytes() for file in shards.files())
    assert content.count(b"\n") == 59 + 3


def test_the_salt_is_made_once_and_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data" / ".fedpriv").mkdir(parents=True)
    counter = tmp_path / "counter.json"
    first = read_salt(tmp_path / "data", counter)
    assert len(first) == 32 and read_salt(tmp_path / "data", counter) == first
    (tmp_path / "data" / ".fedpriv" / "guard.salt").write_text("00" * 32 + "\n")
    with pytest.raises(LedgerRefused, match="another salt"):
        read_salt(tmp_path / "data", counter)
    (tmp_path / "data" / ".fedpriv" / "guard.salt").unlink()
    with pytest.raises(LedgerRefused, match="go together"):
        read_salt(tmp_path / "data", counter)
