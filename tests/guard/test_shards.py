"""A machine's data among virtual clients: whose unit goes where, and what a shard may know of the rest."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from guarded import GuardedMachines

from fedpriv.commands.node import main as node_command
from fedpriv.common.errors import DataError, LedgerRefused, OptionError
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard.shards import Shards, _table, count_units, read_salt

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


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder", "person"])
def test_with_single_a_shard_is_asked_only_while_it_holds_one_unit(kind: str, tmp_path: Path) -> None:
    """Units taken away one by one: only the shard of the one that went changes, and between asked and not asked or not
    at all.
    """

    def asked(units: list[int]) -> list[bytes | None]:
        folder = tmp_path / f"{kind}-{'-'.join(map(str, units))}"
        (folder / ".fedpriv").mkdir(parents=True)
        name, more = "t.csv", {}
        if kind == "folder":
            name = "pictures"
            (folder / name).mkdir()
            for unit in units:
                (folder / name / f"{unit}.txt").write_text(f"picture {unit}")
        elif kind == "parquet":
            name = "t.parquet"
            schema = pyarrow.schema([("a", pyarrow.int64())])
            pyarrow.parquet.write_table(
                pyarrow.Table.from_pylist([{"a": unit} for unit in units], schema=schema), folder / name
            )
        else:
            twice = 2 if kind == "person" else 1
            rows = [f"{unit};{visit}" for visit in range(twice) for unit in units]
            (folder / name).write_text("\n".join(["a;b", *rows]) + "\n")
            more = {"unit": "person", "column": "a"} if kind == "person" else {}
        places = Shards(folder, policy(table=name, shards=6, single=True, **more), SALT).asked()
        return [None if place is None else b"".join(_content(place)) for place in places]

    found = [asked(list(range(count))) for count in range(1, 10)]
    seen: set[tuple[bool, bool]] = set()
    for before, after in itertools.pairwise(found):
        changed = [(was, now) for was, now in zip(before, after, strict=True) if was != now]
        assert len(changed) <= 1 and all(None in pair for pair in changed)
        seen |= {(was is None, now is None) for was, now in changed} or {(True, True)}
    assert seen == {(False, True), (True, False), (True, True)}, "one comes alone, makes a second, or a third"


def _content(place: Path) -> list[bytes]:
    return [place.read_bytes()] if place.is_file() else [file.read_bytes() for file in sorted(place.rglob("*.txt"))]


def test_without_single_every_shard_is_asked(tmp_path: Path) -> None:
    csv(tmp_path / "one", ROWS[:3])
    shards = Shards(tmp_path / "one", policy(table="t.csv", shards=8), SALT)
    assert shards.asked() == shards.files()


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


def test_names_that_are_no_utf8_are_persons_of_their_own(tmp_path: Path) -> None:
    """With `single`, two persons taken for one would be asked together: one of them moves the answer by 2C."""
    (tmp_path / "t.csv").write_bytes("name,a\nMüller,1\nMöller,2\nMüller,3\n".encode("latin-1"))
    rules = policy(table="t.csv", shards=64, unit="person", column="name", single=True)
    assert count_units(tmp_path, rules) == 2
    divided(tmp_path, "t.csv", shards=64, unit="person", column="name", single=True)
    asked = [place.read_bytes() for place in Shards(tmp_path, rules, SALT).asked() if place is not None]
    assert sorted(asked) == ["name,a\nMöller,2\n".encode("latin-1"), "name,a\nMüller,1\nMüller,3\n".encode("latin-1")]


def test_repeated_rows_are_the_shards_own_and_no_other_shard_changes(tmp_path: Path) -> None:
    once = csv(tmp_path / "one", ROWS)
    often = divided(tmp_path / "one", "t.csv", shards=8, repeat=3)
    for before, after in zip(once, often, strict=True):
        header, *rows = before.splitlines()
        assert after.splitlines() == [header, *rows * 3]
    pyarrow.parquet.write_table(pyarrow.table({"a": list(range(20))}), tmp_path / "one" / "t.parquet")
    for repeat, known in ((1, 20), (4, 80)):
        parts = divided(tmp_path / "one", "t.parquet", shards=5, repeat=repeat)
        found = [pyarrow.parquet.read_table(pyarrow.BufferReader(part))["a"].to_pylist() for part in parts]
        assert sum(map(len, found)) == known
        assert all(part == part[: len(part) // repeat] * repeat for part in found)


def test_files_of_a_folder_are_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.txt").write_text("a")
    (tmp_path / ".fedpriv").mkdir()
    rules = policy(table="pictures", shards=2, repeat=2)
    with pytest.raises(DataError, match=r"guard\.repeat=2 needs a table; of a folder it is 1"):
        Shards(tmp_path, rules, SALT).files()
    with pytest.raises(DataError, match=r"guard\.repeat=2"):
        count_units(tmp_path, rules)
    with pytest.raises(OptionError, match=r"guard\.repeat=2: unit client"):
        policy(unit="client", repeat=2)


def test_parquet_shards_know_nothing_of_the_rest(tmp_path: Path) -> None:
    """Pandas' metadata count all rows, and a dictionary names values of other rows: also one of lists or structs."""

    def written(name: str, rows: list[int]) -> list[bytes]:
        folder = tmp_path / name
        folder.mkdir()
        names = pyarrow.array([f"n{row}" for row in rows]).dictionary_encode()
        places = pyarrow.array(range(len(rows) + 1), pyarrow.int32())
        columns = {"a": rows, "b": names, "list": pyarrow.ListArray.from_arrays(places, names)}
        columns["struct"] = pyarrow.StructArray.from_arrays([names], ["value"])
        columns["map"] = pyarrow.MapArray.from_arrays(places, names, pyarrow.array(rows))
        table = pyarrow.table(columns)
        table = table.replace_schema_metadata({"pandas": f'{{"stop": {len(rows)}}}'})
        pyarrow.parquet.write_table(table, folder / "t.parquet")
        return divided(folder, "t.parquet", shards=4)

    before, after = written("one", list(range(40))), written("two", [*range(11), *range(12, 40)])
    assert sum(first != second for first, second in zip(before, after, strict=True)) == 1
    ends = written("three", [*range(40), 99])  # the largest name of all
    assert sum(first != second for first, second in zip(before, ends, strict=True)) == 1
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
    first = read_salt(tmp_path / "data", counter, used=lambda: False)
    assert len(first) == 32 and read_salt(tmp_path / "data", counter, used=lambda: True) == first
    (tmp_path / "data" / ".fedpriv" / "guard.salt").write_text("00" * 32 + "\n")
    with pytest.raises(LedgerRefused, match="another salt"):
        read_salt(tmp_path / "data", counter, used=lambda: True)
    (tmp_path / "data" / ".fedpriv" / "guard.salt").unlink()
    with pytest.raises(LedgerRefused, match="go together"):
        read_salt(tmp_path / "data", counter, used=lambda: True)


HEIGHTS = [f'{number};5\'{number}";"a ""b"" {number}"' for number in range(40)]


def test_a_quote_within_a_field_swallows_no_other_row(tmp_path: Path) -> None:
    """Readers of CSV files take it for a letter; pairing quotes would join this row to all after it."""
    before = csv(tmp_path / "one", HEIGHTS)
    assert sorted(line for part in before for line in part.splitlines()[1:]) == sorted(row.encode() for row in HEIGHTS)
    for gone in range(40):
        after = csv(tmp_path / "two", HEIGHTS[:gone] + HEIGHTS[gone + 1 :])
        os.utime(tmp_path / "two" / "t.csv")
        assert sum(first != second for first, second in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a;b\r1;2\r3;4\r", r"line 1: lines must end with .* alone"),
        ("a;b\n1;2\r3;4\n", r"line 2: lines must end with"),
        ('a;b\n1;"2\n3;4\n', "never closed"),
        ('a;b\n1;"2\n3;"4"\n', r"line 3: after a closing quote comes ';'"),
        ("1;2.5\n3;4\n", "the first line must name the columns"),
    ],
    ids=["old line ends", "one old line end", "open", "two open", "no header"],
)
def test_a_table_in_which_rows_run_together_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode())
    with pytest.raises(DataError, match=words):
        divided(tmp_path, "t.csv", shards=3)


def test_every_sequence_of_good_records_is_read_as_these(tmp_path: Path) -> None:
    """By all sequences of up to three short records: one record more changes one shard."""
    records = ["1;2", '"1";2', '1;"a\nb"', '1;"a;""b"', '1";2', '"\n"', '"";x"y"']
    for first, second in itertools.product(records, repeat=2):
        (tmp_path / "t.csv").write_text(f"a;b\n{first}\r\n\n{second}")
        found = [*_table(tmp_path / "t.csv")[2]]
        assert found == [first.encode(), second.encode()]


def test_the_shard_of_a_row_follows_from_the_salt(tmp_path: Path) -> None:
    """Who does not know the salt cannot fill a shard by choosing rows: places differ from salt to salt."""
    folder = tmp_path / "one"
    csv(folder, ROWS)
    places = {
        tuple(file.read_bytes() for file in Shards(folder, policy(table="t.csv", shards=8), bytes([salt]) * 32).files())
        for salt in range(4)
    }
    assert len(places) == 4
    hashed = hmac.digest(SALT, ROWS[5].encode(), hashlib.sha256)
    part = csv(tmp_path / "two", ROWS)[int.from_bytes(hashed, "big") % 8]
    assert ROWS[5].encode() + b"\n" in part


def test_a_row_that_python_cannot_hold_is_a_row(tmp_path: Path) -> None:
    """A time in the year 318,857, beyond what Python's own has: it must not end the message. All others stay in their
    shards, byte for byte; it is in one.
    """
    times = pyarrow.array([*range(20), 10**19 % 2**63], pyarrow.timestamp("us"))
    for name, rows in (("with", times), ("without", times[:20])):
        (tmp_path / name).mkdir()
        table = pyarrow.table(
            {"a": list(range(len(rows))), "when": rows, "who": [f"p{n % 9}" for n in range(len(rows))]}
        )
        pyarrow.parquet.write_table(table, tmp_path / name / "t.parquet")
        assert count_units(tmp_path / name, policy(table="t.parquet", shards=4)) == len(rows)
    for more in ({}, {"unit": "person", "column": "who"}, {"unit": "person", "column": "when"}):
        given, left = (divided(tmp_path / name, "t.parquet", shards=4, **more) for name in ("with", "without"))
        (changed,) = (n for n in range(4) if given[n] != left[n])
        read = [pyarrow.parquet.read_table(pyarrow.BufferReader(part[changed])) for part in (given, left)]
        assert [read[0].num_rows, read[1].num_rows + 1] == [len(read[0])] * 2
        assert set(read[1]["a"].to_pylist()) == set(read[0]["a"].to_pylist()) - {20}
        assert count_units(tmp_path / "with", policy(table="t.parquet", shards=4, **more)) > 8


def test_a_row_that_is_deleted_leaves_the_shards_with_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = GuardedMachines(tmp_path, noise_multiplier=10.0)
    assert not network.ask().has_error()
    shards, table = network.data(0) / ".fedpriv/shards", network.data(0) / "table.csv"
    given = [f"policy={network.policy(0)}", f"data={network.data(0)}"]
    monkeypatch.chdir(network.data(0))
    for again in (given, [given[0], "data=."]):  # however the folder is named, its data are the same
        assert node_command(["status", *again]) == 0 and shards.exists()
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if not line.startswith("7,")))
    assert node_command(["status", *given]) == 0 and not [*shards.iterdir()]
    assert "the copies of its shards are deleted" in capsys.readouterr().out
    assert not network.ask().has_error() and not any("7,0.7" in file.read_text() for file in shards.rglob("*.csv"))


def test_copies_stay_while_a_message_is_at_them(tmp_path: Path) -> None:
    """The data change under it, `status` deletes what it can, and another message divides them anew."""
    network = GuardedMachines(tmp_path, noise_multiplier=10.0)
    shards, table = network.data(0) / ".fedpriv/shards", network.data(0) / "table.csv"
    given, seen = [f"policy={network.policy(0)}", f"data={network.data(0)}"], list[str]()

    def app(message: Any, context: Any, rows: list[str]) -> str:
        seen.extend(rows)
        if len(network.boxed.asked) == 1:
            table.write_text("".join(line for line in lines if not line.startswith("7,")))
            assert node_command(["status", *given]) == 0
            network.ask()
        return "none"

    lines, network.boxed.app = table.read_text().splitlines(keepends=True), app
    assert not network.ask().has_error()
    assert len(seen) == 20 + 19 and sum(row.startswith("7,") for row in seen) == 1
    assert node_command(["status", *given]) == 0
    assert len([*shards.iterdir()]) == 1 and not any("7,0.7" in file.read_text() for file in shards.rglob("*.csv"))
