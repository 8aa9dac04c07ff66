"""The order of a participation: budget, release, one atomic write, reply; and what a repeated request gets."""

from __future__ import annotations

from dataclasses import replace

import making
import numpy as np
import pytest
import torch
from reference.federation import NEVER_EMPTY, FixedUpdates

from clients.fedcad import FedCADClient
from clients.fedldp import FedLDPClient
from fedpriv.client.base import Client
from fedpriv.client.contract import BudgetSpent, Site
from fedpriv.client.memories import collect_entries
from fedpriv.client.memory import Answer, ClientMemory, StaleRequest, read_memory
from fedpriv.common.messages import ATTEMPTS_PER_START, Request
from fedpriv.mechanisms.noise import KeyRegistry
from fedpriv.privacy.composition import compose
from fedpriv.training.sequential import LocalData

SIZE = 5


class MemoryOnly:
    blob: bytes | None = None
    writes = 0

    def read(self) -> bytes | None:
        return self.blob

    def keep(self, memory: ClientMemory) -> None:
        self.blob, self.writes = memory.to_bytes(), self.writes + 1


def at_site(client: Client, max_epsilon: float | None = None) -> Client:
    nothing = LocalData(torch.zeros(0), torch.zeros(0))
    client.site = Site(3, 7, lambda: nothing, None, MemoryOnly(), 0, "seeded", 1e-5, max_epsilon)  # type: ignore[arg-type]
    return with_update(client, torch.ones(SIZE))


def with_update(client: Client, update: torch.Tensor) -> Client:
    assert client.site is not None
    client.site = replace(client.site, trainer=FixedUpdates(lambda _: update, NEVER_EMPTY))  # type: ignore[arg-type]
    return client


def ask(client: Client, server_round: int, attempt: int = 0) -> np.ndarray:
    (release,), examples, _ = client.fit([np.zeros(SIZE, np.float32)], {"round": server_round, "attempt": attempt})
    assert examples == 7
    return release


def fedldp() -> FedLDPClient:
    return making.client(FedLDPClient, noise_multiplier=1.0, clip_norm=1.0)


def test_the_same_request_gets_the_same_bytes_whatever_the_update() -> None:
    client = at_site(fedldp())
    with KeyRegistry():  # a second release under the same key would raise
        first = ask(client, 4)
        again = ask(with_update(client, -torch.ones(SIZE)), 4)
    assert first.tobytes() == again.tobytes()
    assert client.site is not None and len(read_memory(client.site.store).uncollected) == 1  # one release, one entry


def test_no_answer_outlives_its_round() -> None:
    """A simulation's server has collected the round's entries: nobody asks again, and d numbers a client are free."""
    client = at_site(fedldp())
    ask(client, 4)
    assert client.site is not None
    store, kept = client.site.store, read_memory(client.site.store).num_bytes
    assert len(collect_entries([store])) == 1
    memory = read_memory(store)
    assert memory.answer == Answer(4, 0, None) and memory.num_bytes == kept - 4 * SIZE
    for server_round in (3, 4):
        with pytest.raises(StaleRequest):
            ask(client, server_round)
    ask(client, 5)


def test_an_older_request_is_refused_and_a_new_attempt_has_fresh_noise() -> None:
    client = at_site(fedldp())
    first = ask(client, 4)
    second = ask(client, 4, attempt=1)
    assert not np.array_equal(first, second)
    for server_round, attempt in ((3, 0), (4, 0), (3, 1)):
        with pytest.raises(StaleRequest):
            ask(client, server_round, attempt)
    ask(client, 3, attempt=ATTEMPTS_PER_START)  # a server that was started again goes back: fresh noise, and booked
    assert client.site is not None
    entries = read_memory(client.site.store).uncollected
    booked = [(entry.round, entry.attempt, entry.sequence) for entry in entries]
    assert booked == [(4, 0, 0), (4, 1, 1), (3, ATTEMPTS_PER_START, 2)]


def test_entry_state_account_and_reply_are_one_write() -> None:
    client = at_site(making.client(FedCADClient, noise_multiplier=1.0, clip_norm=1.0, diff=0.5, obsolete_factor=0.4))
    for server_round in (1, 2):
        release = ask(client, server_round)
        assert client.site is not None
        store = client.site.store
        memory = read_memory(store)
        assert store.writes == server_round  # type: ignore[attr-defined]
        assert memory.answer is not None and np.array_equal(memory.answer.release.numpy(), release)
        assert memory.state is not None
        assert torch.equal(memory.state["released"], torch.from_numpy(release))
    assert [entry.sequence for entry in memory.uncollected] == [0, 1, 2]  # the second participation costs two events


def test_a_client_stops_before_its_budget_is_exceeded_and_releases_nothing_then() -> None:
    two = compose(fedldp().planned_events(2), 1e-5).epsilon
    client = at_site(fedldp(), max_epsilon=two * 1.001)
    ask(client, 1)
    ask(client, 2)
    assert client.site is not None
    before = client.site.store.read()
    with pytest.raises(BudgetSpent):
        ask(client, 3)
    assert client.site.store.read() == before
    assert np.array_equal(ask(client, 2), read_memory(client.site.store).answer.release.numpy())  # type: ignore[union-attr]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_update_is_released_as_a_noised_zero(broken: float) -> None:
    """Whether and how a client answers never depends on its data."""
    update = torch.ones(SIZE)
    update[1] = broken
    zero = ask(with_update(at_site(fedldp()), torch.zeros(SIZE)), 1)
    assert np.array_equal(ask(with_update(at_site(fedldp()), update), 1), zero)


def test_secure_batches_come_from_a_cipher_and_no_seed() -> None:
    """Whoever knows the seed, the round and the attempt still knows nothing of a sample."""
    client = at_site(making.client(FedLDPClient, noise_multiplier=1.0, clip_norm=1.0))
    assert client.site is not None
    seeded = [client.batches(Request(1, 0)).random(4).tolist() for _ in range(2)]
    assert seeded[0] == seeded[1]
    client.site = replace(client.site, rng="secure")
    drawn = [client.batches(Request(1, 0)) for _ in range(2)]
    assert drawn[0].random(4).tolist() != drawn[1].random(4).tolist()
    assert {type(each.bit_generator).__name__ for each in drawn} == {"ChaCha"}
    assert sorted(drawn[0].permutation(50).tolist()) == list(range(50))


def test_the_key_of_secure_batches_has_256_bits() -> None:
    """Every bit of the cipher's key is 0 in one of 64 keys and 1 in another: a key of 16 bits is found in a second."""
    client = at_site(making.client(FedLDPClient, noise_multiplier=1.0, clip_norm=1.0))
    assert client.site is not None
    client.site = replace(client.site, rng="secure")
    states = [client.batches(Request(1, 0)).bit_generator.state["state"] for _ in range(64)]
    keys = [int.from_bytes(np.asarray(state["keysetup"], "<u4").tobytes(), "little") for state in states]
    ever, always = 0, 2**256 - 1
    for key in keys:
        ever, always = ever | key, always & key
    assert (ever, always) == (2**256 - 1, 0) and {state["rounds"] for state in states} == {20}
