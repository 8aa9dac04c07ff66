"""What a kill leaves of a guarded message, at every point at which the disk has changed.

A message is traced: whenever a line of the project's code finds the ledger's folder or the counters changed, a copy of
them is kept. That copy is what a kill between these two lines leaves; no point is listed by hand. Of each file that has
grown, a torn half is tried too. From every such state the machine starts again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from guarded import GuardedMachines, MachinesGrid, weights

import fedpriv
from fedpriv.commands.node import main as node_command
from fedpriv.common.chain import chain_of
from fedpriv.common.messages import EXCHANGE, TRAIN
from fedpriv.deployment.data_ledger import DataLedger
from fedpriv.deployment.policy import read_policy
from fedpriv.guard.guarded_message import GUARD
from fedpriv.guard.shards import read_salt
from fedpriv.privacy.gaussian_dp import gaussian_epsilon

PROJECT = str(Path(fedpriv.__file__).parent)
#: Rooms of pure mathematics: what changed inside would be seen at the next line of who called them.
QUIET = tuple(f"{PROJECT}/{room}/" for room in ("mechanisms", "secure_sum", "privacy", "config"))
#: Messages that the budget allows.
ALLOWED = 2


class Disk:
    """All that a machine keeps, and the copies of it that `watched` makes."""

    def __init__(self, network: GuardedMachines, copies: Path) -> None:
        self.places = [network.data(0) / ".fedpriv", network.folder / "counters"]
        self.copies, self.found = copies, list[tuple[str, Path]]()
        self._last: Any = None

    def _now(self) -> Any:
        state = []
        for place in self.places:
            for folder, _, names in os.walk(place):
                state.append((folder, 0, 0, 0))
                for name in names:
                    if name != "lock":
                        stat = os.stat(os.path.join(folder, name))
                        state.append((folder + name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
        return sorted(state)

    def keep(self, where: str) -> None:
        if (now := self._now()) == self._last:
            return
        self._last = now
        copy = self.copies / str(len(self.found))
        for number, place in enumerate(self.places):
            if place.exists():
                shutil.copytree(place, copy / str(number))
            else:
                (copy / str(number)).mkdir(parents=True)
        self.found.append((where, copy))

    def put_back(self, copy: Path) -> None:
        for number, place in enumerate(self.places):
            shutil.rmtree(place, ignore_errors=True)
            if any((copy / str(number)).iterdir()):
                shutil.copytree(copy / str(number), place)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks before and after every line of the project."""

        def look(frame: Any, event: str, value: Any) -> Any:
            file = frame.f_code.co_filename
            if not file.startswith(PROJECT) or file.startswith(QUIET):
                return None
            if event in ("line", "return"):
                self.keep(f"{Path(file).name}:{frame.f_lineno}")
            return look

        self.keep("before")
        before = sys.gettrace()
        sys.settrace(look)
        try:
            yield
        finally:
            sys.settrace(before)
        self.keep("after")

    def torn(self) -> None:
        """Of every file that grew between two states, half of what was added."""
        for (_, before), (where, after) in list(zip(self.found, self.found[1:], strict=False)):
            for file in [file for file in after.rglob("*") if file.is_file() and not file.name.startswith("account")]:
                old = before / file.relative_to(after)
                was, now = old.stat().st_size if old.exists() else 0, file.stat().st_size
                if now > was + 1 and (was or file.name.startswith(".")):
                    copy = self.copies / f"torn-{len(self.found)}"
                    shutil.copytree(after, copy)
                    os.truncate(copy / file.relative_to(after), (was + now) // 2)
                    self.found.append((f"{where}, torn {file.name}", copy))


def head(network: GuardedMachines) -> dict[str, Any]:
    return dict(json.loads((network.folder / "counters/0.json").read_text()))


def lines(network: GuardedMachines) -> list[bytes]:
    return (network.data(0) / ".fedpriv/ledger.jsonl").read_bytes().split(b"\n")[:-1]


def check_goes_on(network: GuardedMachines, left: int, where: str, before: dict[str, Any] | None) -> None:
    """From the state that lies there: left: replies that have left so far; before: the head that lay there."""
    booked = network.booked()
    assert left <= len(booked) <= left + 1, where
    for _ in range(ALLOWED + 2):
        reply = network.ask()
        left += not reply.has_error() and "arrays" in reply.content
        now = network.booked()
        assert left <= len(now) <= ALLOWED, where
    assert len(network.booked()) == ALLOWED, f"{where}: the machine does not go on"
    assert left >= ALLOWED - 1, where
    if before is not None:  # what was vouched for once is a beginning of what is there now: no second head
        assert chain_of(lines(network)[: before["lines"]]) == before["chain"], where
        assert before["ledger"] == head(network)["ledger"], where
    policy = read_policy(network.policy(0))
    with DataLedger(network.data(0), Path(policy.counter)).held(thorough=True) as ledger:
        assert ledger.spent().messages == ALLOWED


#: A budget for so many messages with noise of ten times the clip norm, and for no more.
EPSILON = gaussian_epsilon(2 / 10 * (ALLOWED + 0.5) ** 0.5, 1e-5)


#: Every third state, in turn by commit: which others there are does not change what comes of one.
in_turn = pytest.mark.rotates(3)
thirds = pytest.mark.parametrize("part", range(3))


@in_turn
@thirds
def test_killed_at_every_point_of_a_message(part: int, tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path / "site", epsilon=EPSILON, noise_multiplier=10.0)
    disk = Disk(network, tmp_path / "copies")
    with disk.watched():
        assert not network.ask().has_error()
    first = len(disk.found)
    with disk.watched():
        assert not network.ask().has_error()
    states = [(where, copy, int(number >= first - 1)) for number, (where, copy) in enumerate(disk.found)]
    whole = len(disk.found)
    disk.torn()
    states += [(where, copy, -1) for where, copy in disk.found[whole:]]
    assert whole > 12 and len(disk.found) > whole, [where for where, _ in disk.found]
    assert {"files.py", "shards.py"} <= {where.partition(":")[0] for where, _ in disk.found}
    for number, (where, copy, left) in list(enumerate(states))[part::3]:
        disk.put_back(copy)
        vouched = head(network)
        if left < 0:  # torn: the counter says how much had left
            left = max(0, sum(b'"entries"' in line for line in lines(network)[: vouched["lines"]]))
        if number == whole - 1:
            left = ALLOWED
        check_goes_on(network, left, where, vouched)


def test_killed_at_every_point_of_init(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path / "site", epsilon=EPSILON, noise_multiplier=10.0)
    disk = Disk(network, tmp_path / "copies")
    for place in disk.places:
        shutil.rmtree(place)
    init = ["init", f"policy={network.policy(0)}", f"data={network.data(0)}"]
    with disk.watched():
        assert node_command(init) == 0
    assert len(disk.found) > 6, [where for where, _ in disk.found]
    for where, copy in disk.found:
        disk.put_back(copy)
        node_command(init)
        check_goes_on(network, 0, where, head(network))


def test_a_salt_is_made_again_before_the_first_message_alone(tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path / "site", noise_multiplier=10.0)
    data, counter = network.data(0), network.folder / "counters/0.json"
    files = [data / ".fedpriv/guard.salt", network.folder / "counters/0.json.salt"]
    for file in files:
        old = read_salt(data, counter, used=lambda: False)
        file.unlink()
        if file is files[0]:
            assert read_salt(data, counter, used=lambda: False) != old
        else:
            assert not network.ask().has_error()
    for gone in (files[:1], files[1:], files):  # the last: nothing tells that there was a salt but the ledger
        kept = {file: file.read_bytes() for file in gone}
        for file in gone:
            file.unlink()
        assert network.ask().has_error() and len(network.booked()) == 1
        for file, content in kept.items():
            file.write_bytes(content)
    assert not network.ask().has_error()


SUM = {"noise": "ddgauss", "sites": 2, "min_replies": 2, "threshold": 2, "shards": 2, "noise_multiplier": 30.0}


@in_turn
@thirds
def test_killed_at_every_point_of_a_secure_sums_upload(part: int, tmp_path: Path) -> None:
    """The upload is asked again after the restart: what leaves is booked, and never twice for one booking."""
    network = GuardedMachines(tmp_path / "site", 2, **SUM)
    disk = Disk(network, tmp_path / "copies")
    uploads: list[Message] = []

    class Watching(MachinesGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            found = []
            for message in messages:
                own = message.content.get(GUARD, {})
                first = message.metadata.dst_node_id == 900 and str(own.get(EXCHANGE, TRAIN)) == TRAIN
                if first and GUARD in message.content:
                    uploads.append(Message(RecordDict(dict(message.content)), 900, "train"))
                    with disk.watched():
                        found += super().send_and_receive([message], timeout=timeout)
                else:
                    found += super().send_and_receive([message], timeout=timeout)
            return found

    fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(Watching(network), weights(), num_rounds=1)
    (upload,) = uploads
    whole = len(disk.found)
    disk.torn()
    assert whole > 8 and len(network.booked()) == 1
    answered, states = 0, list(enumerate(disk.found))[part::3]
    for number, (where, copy) in states:
        disk.put_back(copy)
        vouched, left = head(network), int(number == whole - 1)
        booked = len(network.booked())
        assert left <= booked <= 1, where
        for _ in range(2):
            reply = network.deliver(Message(RecordDict(dict(upload.content)), 900, "train"))
            left += not reply.has_error() and "arrays" in reply.content
            answered += not reply.has_error()
            assert left <= len(network.booked()) <= 2 and left <= 1, where
        assert chain_of(lines(network)[: vouched["lines"]]) == vouched["chain"], where
        if number < whole:
            fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(MachinesGrid(network), weights(), num_rounds=1)
            assert len(network.booked()) > booked, f"{where}: the machine does not go on"
    assert 0 < answered < 2 * len(states)
