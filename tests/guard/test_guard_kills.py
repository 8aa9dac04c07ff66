"""A guarded machine's process is killed, by SIGKILL, at every point at which its disk has changed; the machine goes on.

`test_guard_crashes` starts again from copies of the disk. Here the kernel ends the process itself there: locks that it
held, and what it had not written yet, are gone with it.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.strategy import FedAvg
from forked import TESTS, Forks, forks
from guarded import Boxed, GuardedMachines, MachinesGrid, weights
from test_guard_crashes import ALLOWED, EPSILON, SUM, Disk, check_goes_on, head

import fedpriv
from fedpriv.commands.node import main as node_command
from fedpriv.common.chain import chain_of
from fedpriv.common.messages import EXCHANGE, TRAIN
from fedpriv.engines.grid import identify_server
from fedpriv.guard import probe
from fedpriv.guard.guarded_message import GUARD
from fedpriv.mechanisms.secure_noise import SecureNoise

pytestmark = [pytest.mark.timeout(1800), pytest.mark.rotates(8)]
HERE = Path(__file__).parent
SCRIPT = "import sys; from test_guard_kills import victim; victim(*sys.argv[1:])"
#: More than there are points.
MOST = 200


class Killer(Disk):
    """Ends this process at the ``at``-th change."""

    def __init__(self, network: GuardedMachines, at: int) -> None:
        super().__init__(network, Path("/no-copies"))
        self.at, self.changes = at, -1

    def keep(self, where: str) -> None:
        if (now := self._now()) != self._last:
            self._last = now
            self.changes += 1
            if self.changes == self.at:
                print(where, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)


def again(folder: Path) -> GuardedMachines:
    """The machines that lie in ``folder``, in another process than the one that made them."""
    identify_server()
    network = object.__new__(GuardedMachines)
    identities = pickle.loads((folder / "identities").read_bytes())
    boxed = Boxed(lambda *given: (np.zeros(3), np.zeros(())))
    network.__dict__.update(folder=folder, count=len(identities), boxed=boxed, source=SecureNoise)
    network.__dict__.update(identities=identities, _ids=itertools.count(os.getpid() * 1000))
    return network


def victim(what: str, place: str, at: str) -> None:
    """Runs in a process of its own, and ends itself at the ``at``-th change. With 0, where there are fewer."""
    network = again(Path(place))
    killer = Killer(network, int(at))

    class Watching(MachinesGrid):
        """Of a secure sum: the first machine's upload is watched."""

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            found = []
            for message in messages:
                own = message.content.get(GUARD, {})
                first = message.metadata.dst_node_id == 900 and str(own.get(EXCHANGE, TRAIN)) == TRAIN
                if first and GUARD in message.content:
                    with killer.watched():
                        found += super().send_and_receive([message], timeout=timeout)
                else:
                    found += super().send_and_receive([message], timeout=timeout)
            return found

    if what == "upload":
        fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(Watching(network), weights(), num_rounds=1)
    else:
        with killer.watched():
            if what == "init":
                probe.probe = lambda: probe.Probed(0, 0, 0, (), 0.0)
                assert node_command(["init", f"policy={network.policy(0)}", f"data={network.data(0)}"]) == 0
            else:
                assert not network.ask().has_error()
    sys.exit(0)


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    folder = tmp_path_factory.mktemp("forked")
    with forks(folder, "test_guard_kills", path=(TESTS, HERE)) as started:
        yield started


def kills(
    forked: Forks, network: GuardedMachines, what: str, before: Path, first: int = 1, step: int = 1
) -> Iterator[str]:
    """Puts the disk back and kills a process at the next point, until one survives; yields where it was killed."""
    (network.folder / "identities").write_bytes(pickle.dumps(network.identities))
    disk = Disk(network, before.parent)
    for at in range(first, MOST, step):
        disk.put_back(before)
        code, printed = forked.run(SCRIPT, what, str(network.folder), str(at), folder=HERE, path=(TESTS, HERE))
        if code == 0:
            return
        assert code == -signal.SIGKILL, printed
        yield f"{at}, {printed.strip()}"
    raise AssertionError(f"no process survives {MOST} kills")


def copied(network: GuardedMachines, copies: Path) -> Path:
    disk = Disk(network, copies)
    disk.keep("now")
    return disk.found[0][1]


@pytest.mark.parametrize("sent", [0, 1])
def test_a_message_killed_at_every_change_of_the_disk(sent: int, forked: Forks, tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path / "site", epsilon=EPSILON, noise_multiplier=10.0)
    for _ in range(sent):
        assert not network.ask().has_error()
    points = 0
    for where in kills(forked, network, "message", copied(network, tmp_path / "copies")):
        assert sent <= len(network.booked()) <= sent + 1, where
        check_goes_on(network, sent, where, head(network))
        points += 1
    assert points > 3 and ALLOWED == 2
    assert len(network.booked()) == sent + 1  # of the process that survived


def test_init_killed_at_every_change_of_the_disk(forked: Forks, tmp_path: Path) -> None:
    network = GuardedMachines(tmp_path / "site", epsilon=EPSILON, noise_multiplier=10.0)
    nothing = tmp_path / "copies" / "nothing"
    for number in range(2):
        (nothing / str(number)).mkdir(parents=True)
    points = 0
    for where in kills(forked, network, "init", nothing):
        node_command(["init", f"policy={network.policy(0)}", f"data={network.data(0)}"])
        check_goes_on(network, 0, where, head(network))
        points += 1
    assert points > 5


@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_a_secure_sums_upload_killed_at_every_change_of_the_disk(first: int, forked: Forks, tmp_path: Path) -> None:
    """Each case has every fourth change."""
    network = GuardedMachines(tmp_path / "site", 2, **SUM)
    points = 0
    for where in kills(forked, network, "upload", copied(network, tmp_path / "copies"), first, 4):
        vouched, booked = head(network), len(network.booked())
        assert booked <= 1, where
        lines = (network.data(0) / ".fedpriv/ledger.jsonl").read_bytes().split(b"\n")[:-1]
        assert chain_of(lines[: vouched["lines"]]) == vouched["chain"], where
        fedpriv.guarded(FedAvg(fraction_evaluate=0.0)).start(MachinesGrid(network), weights(), num_rounds=1)
        assert len(network.booked()) == booked + 1, f"{where}: the machine does not go on"
        points += 1
    assert points > 2
