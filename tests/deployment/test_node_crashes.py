"""What a kill, or a failing disk, leaves of an ordinary node's message, at every point at which its disk changes.

Each message of a run to node 0 is watched: before and after every call that changes a file, a copy of what it keeps is
taken where that has changed. A copy is what a kill leaves there; of a line or a file that has grown half of it is tried
too. From each the node starts again and is asked the same. Then each of these calls fails in turn. No point is listed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deployed import MACHINES, Machines
from flwr.app import Message

from fedpriv.common.chain import chain_of
from fedpriv.common.messages import ATTEMPT, EXCHANGE, KEYS, ROUND, STATISTICS, TRAIN

NODES = 3
CHANGES = ("open", "fsync", "replace", "unlink", "mkdir", "truncate")
#: Exchanges whose answers have fresh randomness, unless one to the same request lies on the disk.
FRESH = (TRAIN, STATISTICS, KEYS)
QUANTILE = "strategy.server.clipping=quantile strategy.server.norm_bound=5.0"
SUM = "strategy.secure_sum=protocol strategy.server.min_replies=2 strategy.server.threshold=2"
RUNS = {
    "statistics beside the update": f"strategy=fedldp {QUANTILE} model=linear strategy.client.noise_multiplier=2.0",
    "statistics before the update": "strategy=adpfl dataset.auxiliary=4 model=mlp privacy.delta=0.001",
    "a secure sum": f"strategy=ddgauss {SUM} {QUANTILE} model=linear strategy.client.noise_multiplier=1.0",
    "shared randomness": "strategy=coqfl strategy.client.group_size=3 model=linear",
}


class Disk:
    """What node 0 keeps, and its copies. fails: at which call an error is raised; 0: at none."""

    def __init__(self, network: Machines, copies: Path) -> None:
        self.places = [network.data(0) / ".fedpriv", network.folder / "counters"]
        self.copies, self.found = copies, list[Path]()
        self.calls = self.fails = 0
        self._last: Any = None

    def keep(self) -> None:
        files = [path for place in self.places for path in sorted(place.rglob("*")) if "cache" not in path.parts]
        state = [(str(path), path.stat().st_size, path.stat().st_mtime_ns, path.stat().st_ino) for path in files]
        state = [one for one in state if not one[0].endswith("lock")]
        if state != self._last:
            self._last = state
            self.found.append(self.copies / str(len(self.found)))
            for number, place in enumerate(self.places):
                shutil.copytree(place, self.found[-1] / str(number), ignore=shutil.ignore_patterns("cache"))

    def put_back(self, copy: Path) -> None:
        for number, place in enumerate(self.places):
            shutil.rmtree(place)
            shutil.copytree(copy / str(number), place)

    @contextmanager
    def watched(self, fails: int = 0) -> Iterator[None]:
        """fails=0: keeps copies; else the call of that number raises."""
        self.calls, first = 0, not fails

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*given: Any, **named: Any) -> Any:
                self.calls += 1
                if self.calls == fails:
                    raise OSError(errno.EIO, "the disk fails") if fails % 2 else KeyboardInterrupt
                if first:
                    with pytest.MonkeyPatch.context() as still:
                        for name, own in known.items():
                            still.setattr(os, name, own)
                        self.keep()
                        result = call(*given, **named)
                        self.keep()
                    return result
                return call(*given, **named)

            return called

        known = {name: getattr(os, name) for name in CHANGES}
        with pytest.MonkeyPatch.context() as patched:
            for name, own in known.items():
                patched.setattr(os, name, around(own))
            yield
        if first:
            self.keep()

    def torn(self) -> Iterator[Path]:
        """Copies in which half of what was added to a line or a new file is missing."""
        for before, after in zip(self.found, self.found[1:], strict=False):
            for file in [path for path in after.rglob("*") if path.name == "ledger.jsonl" or path.name.startswith(".")]:
                old = before / file.relative_to(after)
                was, now = old.stat().st_size if old.exists() else 0, file.stat().st_size
                if now > was + 1:
                    copy = self.copies / f"torn-{file.name}-{after.name}"
                    shutil.copytree(after, copy)
                    os.truncate(copy / file.relative_to(after), (was + now) // 2)
                    yield copy


def content(reply: Message) -> str:
    """All of a reply but what is for display."""
    if reply.has_error():
        return f"error {reply.error.code}"
    arrays = {name: bytes(one.data) for name, one in reply.content.get("arrays", {}).items()}  # type: ignore[union-attr]
    others = {name: dict(record) for name, record in reply.content.items() if name != "arrays"}  # type: ignore[call-overload]
    return repr((arrays, others))


@pytest.mark.rotates(len(RUNS))
@pytest.mark.parametrize("run", RUNS)
def test_no_crash_lets_out_what_is_not_booked_nor_two_answers(run: str, machines: MACHINES, tmp_path: Path) -> None:
    budget = {"unit": "client", "delta": 1e-3, "max_epsilon": 1e6}
    limits = {"max_round_epsilon": 1e6, "min_noise_multiplier": 1e-3, "max_clip_norm": 1e3, "min_survivors": 2}
    policy = {"budgets": [budget], "limits": limits, "strategies": ["fedldp", "adpfl", "ddgauss", "coqfl"]}
    network = machines(NODES, policy | {"accountant": "renyi", "order": 1.1})
    network.introduce()
    tried: Counter[str] = Counter()

    def booked(place: tuple[int, int]) -> int:
        rows = [json.loads(line) for line in lines()]
        return sum(bool(row.get("entries")) and places_of(row) == {place} for row in rows)

    def lines() -> list[bytes]:
        return (network.data(0) / ".fedpriv/ledger.jsonl").read_bytes().split(b"\n")[:-1]

    def answered(deliver: Callable[[], Message], place: tuple[int, int], most: int, releases: bool) -> str:
        """What the node answers now, and again; at most so many releases of the exchange are booked then."""
        head = json.loads((network.folder / "counters/0.json").read_text())
        assert chain_of(lines()[: head["lines"]]) == head["chain"]
        first, again = content(deliver()), content(deliver())
        assert first == again and not first.startswith("error"), (first[:200], again[:200])
        assert not releases or 1 <= booked(place) <= most
        assert chain_of(lines()[: head["lines"]]) == head["chain"], "a second head"
        with network.ledger(0).held(thorough=True) as ledger:
            assert ledger.spent().messages == sum(b'"entries"' in line for line in lines())
        return first

    def send(node: int, deliver: Callable[..., Message]) -> Message:
        message = deliver.__defaults__[0]  # type: ignore[index]
        if node or message.metadata.message_type != "train":
            return deliver()
        config = message.content["config"]
        exchange, place = str(config.get(EXCHANGE, TRAIN)), (int(config[ROUND]), int(config[ATTEMPT]))
        before, releases = booked(place), exchange in (TRAIN, STATISTICS)
        disk = Disk(network, tmp_path / f"copies-{len(tried)}-{sum(tried.values())}")
        with disk.watched():
            reply = deliver()
        left, found = content(reply), Counter[str]()
        for copy in [*disk.found[1:], *disk.torn()]:
            disk.put_back(copy)
            found[answered(deliver, place, before + 2, releases)] += 1
            tried[exchange] += 1
        for copy, same in ((disk.found[0], exchange not in FRESH), (disk.found[-1], True)):
            disk.put_back(copy)
            words = "what had left is not what leaves again, or what had not left leaves of the same noise or key"
            assert (answered(deliver, place, before + 1, releases) == left) == same, words
        number = 0
        while number == 0 or disk.calls >= number:
            number += 1
            disk.put_back(disk.found[0])
            with disk.watched(fails=number):
                try:
                    told = content(deliver())
                except KeyboardInterrupt:
                    told = "error"
            after = answered(deliver, place, before + 2, releases)
            assert told.startswith("error") or after == told, "two answers to one request"
            found[after] += 1
            tried[exchange] += 1
        others = {answer: times for answer, times in found.items() if answer != left}
        assert max(others.values(), default=1) == 1, "one noise, or key, for two computations"
        assert exchange in FRESH or not others, "two sets of shares of one secret"
        disk.put_back(disk.found[-1])
        return reply

    text = network.overrides().replace("model=linear", "").replace("strategy.client.noise_multiplier=2.0", "")
    network.serve(f"{text} {RUNS[run]}", send)
    assert min(tried.values()) > 10 and network.booked(0) >= 2


def places_of(row: dict[str, Any]) -> set[tuple[int, int]]:
    return {(entry["round"], entry["attempt"]) for entry in row["entries"]}
