"""docs/upkeep.md on backups, rehearsed: copies made while server and nodes work, restored elsewhere, forget no cost."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from deployed import MACHINES, Machines, asker, codes
from flwr.app import Message

from fedpriv.commands.superlink import private_database
from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import Refusal
from fedpriv.deployment.policy import read_policy

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "upkeep.md").read_text()
DATABASE, RUN = "python -c", "tar -C /srv/fedpriv/runs/first --sort"
UNPACK = "tar -C RUN_FOLDER -xf"


def typed(beginning: str, **places: Path) -> int:
    """Runs the page's command that begins like this, with these folders in place of its own; its exit code."""
    shown = [line.strip() for line in PAGE.splitlines() if line.startswith("    ")] + re.findall(r"`([^`]*)`", PAGE)
    (command,) = [line for line in shown if line.startswith(beginning)]
    own = {"connect('superlink.db')": "connect('SERVER/superlink.db')", "/srv/fedpriv/runs/first": "RUN_FOLDER"}
    for word, place in (own | {"/backup": "BACKUP"}).items():
        command = command.replace(word, place)
    for word, folder in places.items():
        command = command.replace(word, str(folder))
    (mask,) = [line.split()[1] for line in shown if line.startswith("umask ")]
    arguments = shlex.split(command)
    arguments[0] = sys.executable if arguments[0] == "python" else arguments[0]
    return subprocess.run(arguments, capture_output=True, timeout=60, umask=int(mask, 8)).returncode


# --- the server --------------------------------------------------------------------------------------------------


def link_state(database: Path) -> Any:
    """Flower's, as its SuperLink opens it."""
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    return LinkStateFactory(str(database), NoOpFederationManager(), ObjectStoreFactory(str(database))).state()


def test_a_database_that_is_written_is_copied_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "server").mkdir()
    database = private_database(tmp_path / "server" / "superlink.db")
    state, ended, registered = link_state(database), threading.Event(), list[bytes]()

    def register() -> None:
        while not ended.is_set():
            key = b"key of node %d" % len(registered)
            state.create_node("", "", key, 30)
            registered.append(key)

    writer = threading.Thread(target=register)
    writer.start()
    try:
        while len(registered) < 5:
            ended.wait(0.01)
        certain = len(registered)
        assert typed(DATABASE, SERVER=tmp_path / "server", BACKUP=tmp_path / "backup") == 0
        assert (tmp_path / "backup/superlink.db").stat().st_mode & 0o777 == 0o600  # it holds tokens
    finally:
        ended.set()
        writer.join()
    (tmp_path / "elsewhere").mkdir()
    copy = private_database(Path(shutil.copy(tmp_path / "backup/superlink.db", tmp_path / "elsewhere/superlink.db")))
    with sqlite3.connect(copy) as opened:
        assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    restored = link_state(copy)
    known = [restored.get_node_id_by_public_key(key) is not None for key in registered]
    assert all(known[:certain]), "what was registered before the copy began is in it"
    assert known == sorted(known, reverse=True), "as of one moment"
    assert copy.stat().st_mode & 0o077 == 0


def crash(after: int) -> Callable[[int, Callable[[], Message]], Message]:
    """The server ends behind so many answers."""
    left = iter(range(after))

    def send(node: int, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        if next(left, None) is None:
            raise SystemExit(9)
        return reply

    return send


def spent(network: Machines, number: int, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of `status` about the budget."""
    capsys.readouterr()
    assert network.command("status", number) == 0
    return next(line for line in capsys.readouterr().out.splitlines() if "epsilon" in line)


@pytest.mark.parametrize("starts", [1, 2])
def test_a_run_that_is_copied_goes_on_elsewhere_and_forgets_no_cost(
    starts: int, machines: MACHINES, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copied in the middle of round 2, and lost in round 4; a second start, of which the copy does not know, too."""
    network = machines(2)
    text = network.overrides("num_rounds=4 checkpoint.every=1 strategy.server.min_replies=2")
    run, backup, calls = network.folder / "run", network.folder / "backup", iter(range(100))
    backup.mkdir()

    def copying(node: int, deliver: Callable[[], Message]) -> Message:
        reply, number = deliver(), next(calls)
        if number == 4:  # 2 queries, 2 of round 1, and node 0 of round 2
            assert typed(RUN, RUN_FOLDER=run, BACKUP=backup) == 0
        if number == 8:
            raise SystemExit(9)
        return reply

    with pytest.raises(SystemExit):
        network.serve(text, copying)
    if starts == 2:
        with pytest.raises(SystemExit):
            network.serve(text, crash(after=2))
    with tarfile.open(backup / "first.tar") as copied:
        names = copied.getnames()
    # A checkpoint is used only with a ledger that is at least as long as at its time.
    assert max(place for place, name in enumerate(names) if "/checkpoints" in name) < names.index("./ledger.jsonl")
    before, cost = network.booked(0), spent(network, 0, capsys)
    assert before == 3 + starts
    shutil.rmtree(run)
    restored = network.folder / "elsewhere"
    restored.mkdir()
    assert typed(UNPACK, RUN_FOLDER=restored, BACKUP=backup) == 0
    elsewhere = text.replace(f"run_dir={run}", f"run_dir={restored}")
    if starts == 2:
        with pytest.raises(RunFailed, match="stale"):  # node 0 had answered round 4; the page says to start again
            network.serve(elsewhere)
    assert codes(network.serve(elsewhere)) == ["sent"] * 6, "rounds 2 to 4 of two nodes"
    assert network.booked(0) == before + 3 and spent(network, 0, capsys) != cost
    assert (restored / "summary.json").exists()


# --- a node ------------------------------------------------------------------------------------------------------


def used(network: Machines, rounds: int, start: int = 1) -> Callable[..., Message]:
    ask = asker(network, network.overrides("num_rounds=9"))
    for number in range(start, start + rounds):
        assert not ask(number).has_error()
    return ask


def moved(network: Machines) -> Machines:
    """Node 0 on another machine: data folder, counter and policy copied as the page says, and deleted here."""
    there = network.folder / "there"
    (there / "counters").mkdir(parents=True)
    shutil.copytree(network.data(0), there / "data-0")
    counter = Path(read_policy(network.policy(0)).counter)
    shutil.copy(counter, there / "counters/0.json")
    policy = yaml.safe_load(network.policy(0).read_text()) | {"counter": str(there / "counters/0.json")}
    (there / "policy-0.yaml").write_text(yaml.safe_dump(policy))
    shutil.rmtree(network.data(0))
    counter.unlink()
    network.folder = there
    return network


def test_a_node_that_moves_keeps_its_cost_and_its_answers(
    machines: MACHINES, capsys: pytest.CaptureFixture[str]
) -> None:
    network = machines(1)
    ask = used(network, 2)
    answer, before = ask(2).content, spent(network, 0, capsys)
    moved(network)
    assert spent(network, 0, capsys) == before
    again = asker(network, network.overrides("num_rounds=9"))
    assert again(2).content == answer, "a repeated request is answered from the state that moved along"
    assert spent(network, 0, capsys) == before
    assert not again(3).has_error() and network.booked(0) == 3


@pytest.fixture
def kept(machines: MACHINES) -> tuple[Machines, Callable[..., Message], dict[str, bytes]]:
    """A node after three rounds, and its files after the first: `ledger`, `counter`."""
    network = machines(1)
    files = {"ledger": network.data(0) / ".fedpriv/ledger.jsonl", "counter": network.folder / "counters/0.json"}
    used(network, 1)
    old = {name: path.read_bytes() for name, path in files.items()}
    return network, used(network, 2, start=2), old


def put_back(network: Machines, old: dict[str, bytes], *names: str) -> None:
    places = {"ledger": network.data(0) / ".fedpriv/ledger.jsonl", "counter": network.folder / "counters/0.json"}
    for name in names:
        places[name].write_bytes(old[name])


def test_an_old_ledger_is_refused_with_words(kept: Any, capsys: pytest.CaptureFixture[str]) -> None:
    network, ask, old = kept
    put_back(network, old, "ledger")
    assert ask(4).error.code == Refusal.LEDGER
    for command in ("status", "declare"):
        capsys.readouterr()
        assert network.command(command, 0) == 2
        said = capsys.readouterr().err
        assert (
            "is not the ledger that" in said and "or an older copy of it" in said and "or an older copy of it" in PAGE
        )


def test_an_old_counter_forgets_nothing(kept: Any) -> None:
    network, ask, old = kept
    put_back(network, old, "counter")
    assert not ask(4).has_error() and network.booked(0) == 4


def test_an_old_ledger_with_its_old_counter_goes_unnoticed_as_the_page_says(kept: Any) -> None:
    """No node can tell; that is why the counter is on another volume, and never in the same backup."""
    network, _, old = kept
    put_back(network, old, "ledger", "counter")
    assert network.booked(0) == 1
    assert "the node cannot notice that it has forgotten what left since" in " ".join(PAGE.split())


@pytest.mark.parametrize("name", ["ledger", "counter"])
def test_a_node_without_ledger_or_counter_refuses(name: str, kept: Any) -> None:
    network, ask, _ = kept
    place = network.data(0) / ".fedpriv/ledger.jsonl" if name == "ledger" else network.folder / "counters/0.json"
    place.unlink()
    assert ask(4).error.code == Refusal.LEDGER
