"""strategy.secure_sum=protocol in whole rounds: the model of `ideal`, bit for bit, whoever drops out, or none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, ledger_of, result_of, rows_of
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from reference.recording import Conversation
from scipy import stats

from fedpriv.common import identities
from fedpriv.common.errors import RunFailed
from fedpriv.common.messages import CONFIRM, EXCHANGE, KEYS, SHARES, SUM_EXCHANGES, TRAIN, UNMASK, unpack_array
from fedpriv.config.compose import compose
from fedpriv.mechanisms.integer_noise import unpack_residues
from fedpriv.runs.start import start_run

IDEAL, PROTOCOL = "strategy.secure_sum=ideal", "strategy.secure_sum=protocol"
SIZE = ("num_clients=5", "clients_per_round=5", "num_rounds=2", "model=softmax", "local.batch_size=16")
NOISY = ("strategy.client.noise_multiplier=1", "strategy.server.min_replies=3")
DDGAUSS = ("strategy=ddgauss", *SIZE, *NOISY)

Model = Callable[..., Any]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Digest of the model that a run ends with, made once."""

    @cache
    def made(*options: str) -> Any:
        folder = tmp_path_factory.mktemp("whole") / "run"
        start_run(compose(["engine=inprocess", "operations.report=false", *options]), folder)
        return result_of(folder)["model"]

    return made


def dropping(client: int, exchange: str, kind: str = "drop", round: int = 2) -> str:
    return f"engine.faults=[{{round:{round},client:{client},exchange:{exchange},kind:{kind}}}]"


@pytest.mark.parametrize(
    "options",
    [
        DDGAUSS,
        ("strategy=skellam", *SIZE, *NOISY),
        ("strategy=cpsgd", *SIZE, "strategy.client.epsilon=8", "strategy.server.min_replies=3"),
        (*DDGAUSS, "strategy.server.clipping=quantile"),
        (*DDGAUSS, "strategy.server.threshold=4"),
        (*DDGAUSS, "num_clients=8", "clients_per_round=4", "over_selection=1.5", "strategy.server.threshold=4"),
        (*DDGAUSS, "engine.trainer=vectorised"),
    ],
    ids=lambda options: " ".join(option for option in options if option not in (*SIZE, *NOISY)),
)
def test_the_protocol_gives_the_model_of_ideal_bit_for_bit(options: tuple[str, ...], model_of: Model) -> None:
    assert model_of(*options, PROTOCOL) == model_of(*options, IDEAL)


@pytest.mark.parametrize(("rng", "agreements"), [("seeded", 2 * 2 * 10), ("secure", 2 * 3 * 20)])
def test_a_pair_agrees_once_in_a_simulation_and_each_client_by_itself_elsewhere(
    rng: str, agreements: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of five clients: in a simulation one agreement for the seals of a pair and one for its mask; under the
    operating system's randomness, as on real machines, each end makes both, and that of the seals again to open them.
    """
    counted: list[bytes] = []
    monkeypatch.setattr(identities, "X25519PublicKey", CountedKey(counted))
    run(*DDGAUSS, PROTOCOL, f"privacy.rng={rng}", "checkpoint.every=0")
    assert len(counted) == agreements


class CountedKey:
    """Stands for `X25519PublicKey`, and notes every key that an agreement loads."""

    def __init__(self, counted: list[bytes]) -> None:
        self.counted = counted

    def from_public_bytes(self, key: bytes) -> X25519PublicKey:
        self.counted.append(key)
        return X25519PublicKey.from_public_bytes(key)


@pytest.mark.parametrize("exchange", SUM_EXCHANGES)
def test_a_client_that_drops_out_is_in_the_sum_if_its_vector_came(exchange: str, run: Run, model_of: Model) -> None:
    """Before, it is as if it had never replied; later nothing changes. Its own ledger has what left it."""
    folder = run(*DDGAUSS, PROTOCOL, "strategy.server.threshold=4", dropping(1, exchange))
    counts = exchange in (CONFIRM, UNMASK)
    expected = () if counts else (dropping(1, TRAIN),)
    assert result_of(folder)["model"] == model_of(*DDGAUSS, IDEAL, *expected)
    figures = rows_of(folder)[-1]["figures"]
    assert figures["survivors"] == (5 if counts else 4) and figures["dropped_after_upload"] == (1 if counts else 0)
    lines = Counter((line["client"], line["round"]) for line in ledger_of(folder))
    assert ((1, 2) in lines) == (exchange not in (KEYS, SHARES))


@pytest.mark.parametrize("exchange", SUM_EXCHANGES)
def test_below_the_threshold_a_round_ends_with_what_is_missing(exchange: str, run: Run, tmp_path: Path) -> None:
    faults = ",".join(f"{{round:2,client:{client},exchange:{exchange},kind:drop}}" for client in (0, 3))
    with pytest.raises(RunFailed, match=r"round 2: 3 usable replies of 5, 3 of 5 clients .* 4 are needed") as failed:
        run(*DDGAUSS, PROTOCOL, f"engine.faults=[{faults}]", "strategy.server.threshold=4", folder=tmp_path / "r")
    assert re.findall(r"client (\d): no reply", str(failed.value)) == ["0", "3"]  # the others did reply
    # What left in the round that was given up stays booked.
    booked = Counter(line["round"] for line in ledger_of(tmp_path / "r"))
    assert (booked[2] > 0) == (exchange not in (KEYS, SHARES))


@pytest.mark.parametrize("kind", ["raise", "disk_full", "corrupt", "wrong_shape", "stale", "duplicate"])
def test_whatever_goes_wrong_in_an_exchange_the_round_survives(kind: str, run: Run, model_of: Model) -> None:
    """One client, in CONFIRM; whatever it answers or not, its vector is in the sum."""
    folder = run(*DDGAUSS, PROTOCOL, "strategy.server.threshold=4", dropping(2, CONFIRM, kind))
    assert result_of(folder)["model"] == model_of(*DDGAUSS, IDEAL)


@pytest.mark.parametrize("exchange", [KEYS, TRAIN, UNMASK])
def test_a_worker_that_dies_is_asked_again_in_the_same_sum(exchange: str, run: Run, model_of: Model) -> None:
    """Its keys are those of the attempt that all others have; its noise, in TRAIN, is another's."""
    folder = run(*DDGAUSS, PROTOCOL, dropping(2, exchange, "kill"))
    expected = (dropping(2, TRAIN, "kill"),) if exchange == TRAIN else ()
    assert result_of(folder)["model"] == model_of(*DDGAUSS, IDEAL, *expected)
    assert rows_of(folder)[-1]["figures"]["survivors"] == 5


def test_a_round_that_cannot_be_repeated_is_a_new_sum(resumed: Callable[..., Path]) -> None:
    """With secure noise: another attempt, other keys, and its own lines in the ledger."""
    folder = resumed(*DDGAUSS, "num_rounds=4", PROTOCOL, "privacy.rng=secure", "checkpoint.every=2", after=3)
    attempts = {(line["round"], line["attempt"]) for line in ledger_of(folder)}
    assert attempts >= {(1, 0), (2, 0), (3, 0)} and any(attempt == 2 for _, attempt in attempts)
    assert [row["figures"]["survivors"] for row in rows_of(folder)] == [5, 5, 5, 5]


# --- what the server sees --------------------------------------------------------------------------------------


def test_the_server_sees_masked_vectors_and_announcements_alone() -> None:
    """What travels up in TRAIN has nothing of what travels up in the open; UNMASK opens one share of each peer."""
    size = (*SIZE[2:], "num_clients=3", "clients_per_round=3", "num_rounds=1", *NOISY)
    seen = {}
    for how in (IDEAL, PROTOCOL):
        talk = Conversation("strategy=ddgauss", *size, how)
        replies = [reply for message, reply in talk.grid.seen if exchange_of(message) == TRAIN]
        seen[how] = [unpack_residues(unpack_array(reply.content), 18, 1024) for reply in replies]
    assert len(seen[IDEAL]) == len(seen[PROTOCOL]) == 3
    for clear, masked in zip(seen[IDEAL], seen[PROTOCOL], strict=True):
        spread = [np.bincount(vector >> 14, minlength=16) for vector in (clear, masked)]  # sixteenths of the modulus
        assert stats.chisquare(spread[0]).pvalue < 1e-20 and stats.chisquare(spread[1]).pvalue > 1e-4
        assert (masked != clear).mean() > 0.99
    total = [sum(vectors) % 2**18 for vectors in seen.values()]
    assert (total[0] != total[1]).mean() > 0.99  # each client's own mask is still in the sum


def exchange_of(message: Any) -> str:
    return str(message.content["config"].get(EXCHANGE, TRAIN))
