"""Somebody else's run folder is data: no command that reads one runs what it names, writes elsewhere, hangs, takes a
gigabyte, or ends in a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hostile_folders
import pytest
from forked import Forks, forks
from rotation import is_part

import fedpriv

PREPARED = ("fedpriv.commands.runs", "fedpriv.runs.start", "fedpriv.report.page", "fedpriv.runs.trained_model")
#: Of the generated folders, so many runs of the tests take all in turn.
PARTS = 60
COMMANDS = ("load", *hostile_folders.COMMANDS)
#: What names code, elsewhere or without end is given to every command each time, the others in turn.
ALWAYS = [(name, command) for name in list(hostile_folders.SPECIAL)[:1] for command in COMMANDS]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = ["strategy=fedldp", "num_rounds=1", "num_clients=4", "clients_per_round=2", "model=linear"]
    return fedpriv.run(options, folder=tmp_path_factory.mktemp("sound") / "run", quiet=True).folder


@pytest.fixture(scope="module")
def players(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(tmp_path_factory.mktemp("players"), *PREPARED) as prepared:
        yield prepared


PAIRS = {f"{command} {name}": (change, command) for name, change, command in hostile_folders.pairs()}


@pytest.mark.parametrize("pair", [pair for place, pair in enumerate(PAIRS) if is_part(place, PARTS)])
def test_a_hostile_folder_is_read_or_refused(pair: str, sound: Path, players: Forks, tmp_path: Path) -> None:
    change, command = PAIRS[pair]
    assert hostile_folders.play(command, change, sound, tmp_path / "case", players) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_sound_folder_of_another_user_serves_every_command(
    command: str, sound: Path, players: Forks, tmp_path: Path
) -> None:
    def another(folder: Path, _: Path) -> None:
        (folder / ".owner").unlink()

    assert hostile_folders.play(command, another, sound, tmp_path / "case", players, sound_too=True) == []
