"""Philox and its Gaussians: known answers, the law, and operations that every device rounds alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from randomgen import Philox
from scipy import special, stats
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv.mechanisms import cohort_noise, noise, philox
from fedpriv.mechanisms.cohort_noise import CohortNoise
from fedpriv.mechanisms.noise import MANY, SeededNoise, add_normal_finely

CPU = torch.device("cpu")
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)]
ALL = 2**32 - 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [  # of the authors' library, kat_vectors
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ALL, ALL, ALL, ALL), (ALL, ALL), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: str, device: torch.device) -> None:
    start = (counter[0] | counter[1] << 32) - (counter[1] >> 31 << 64)  # as two's complement
    found = philox.words(key, (counter[2], counter[3]), start, 1, device)
    assert [f"{word:08x}" for word in found.tolist()] == answer.split()


def test_words_are_those_of_another_library() -> None:
    key, stream = (123, 456), (7, 2**31 + 5)
    found = philox.words(key, stream, 5, 9, CPU).numpy()
    peer = Philox(counter=0, key=key[0] | key[1] << 32, number=4, width=32)
    peer.state = {**peer.state, "state": {**peer.state["state"], "counter": np.array([4, 0, *stream], np.uint32)}}
    np.testing.assert_array_equal(found, peer.random_raw(36).astype(np.int64))


def test_gaussians_are_the_inverse_of_the_normal_distribution() -> None:
    edges = [0, 1, 2**31 - 1, 2**31, ALL - 1, ALL, int(0.075 * 2**32), int(0.925 * 2**32)]
    drawn = torch.cat([torch.tensor(edges), philox.words((1, 2), (3, 4), 0, 50_000, CPU)])
    expected = special.ndtri((drawn.numpy() + 0.5) / 2.0**32)
    np.testing.assert_allclose(philox.gaussians(drawn).numpy(), expected, rtol=2e-14, atol=1e-16)
    assert 6.2 < float(philox.gaussians(torch.tensor([ALL]))) < 6.4
    assert stats.kstest(philox.gaussians(drawn[8:]).numpy(), "norm").pvalue > 1e-3


#: Exact on whole numbers and on moves; of float64 correctly rounded, on CPUs and GPUs.
EXACT = {
    *(
        "arange",
        "full_like",
        "stack",
        "view",
        "where",
        "_to_copy",
        "nonzero",
        "select",
        "index",
        "index_copy_",
        "abs",
        "neg",
        "empty",
        "detach",
    ),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "__rshift__", "bitwise_right_shift", "__and__", "__or__", "__xor__"),
    *("le", "lt", "gt", "add", "add_", "mul_", "sub", "rsub", "mul", "div", "sqrt"),
}


def test_every_operation_is_exact_or_correctly_rounded() -> None:
    seen: set[str] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.add(func.overloadpacket.__name__)
            floats = [x for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()]
            assert all(x.dtype == torch.float64 for x in floats)
            alpha = (kwargs or {}).get("alpha", args[2] if len(args) > 2 and "add" in str(func) else 1)
            assert alpha == 1, "a product and a sum in one operation"
            return func(*args, **(kwargs or {}))

    with Watch():
        philox.gaussians(philox.words((1, 2), (3, 4), 0, 64, CPU))
    assert seen <= EXACT, seen - EXACT


@pytest.mark.parametrize("device", DEVICES)
def test_bits_depend_on_no_block_and_no_device(device: torch.device) -> None:
    whole = philox.gaussians(philox.words((1, 2), (3, 4), 0, 1000, CPU))
    parts = [philox.gaussians(philox.words((1, 2), (3, 4), start, 8, device)).cpu() for start in range(0, 1000, 8)]
    assert torch.equal(torch.cat(parts), whole)


def test_a_source_continues_its_stream_and_no_two_share_one() -> None:
    """`SeededNoise` on a device, here the CPU: draws of different calls, sources and purposes are different."""
    one, again, other = (SeededNoise(0, client, 1, 0, "steps") for client in (1, 1, 2))
    first, second = one.on_device((3, 5), 2.0, CPU), one.on_device(7, 1.0, CPU)
    both = again.on_device(16, 1.0, CPU)
    assert first.dtype == torch.float32 and torch.equal(first.view(-1), 2 * both[:15].float())
    assert not set(second.tolist()) & set(both.tolist())  # the next call starts at the next counter
    assert not set(other.on_device(16, 1.0, CPU).tolist()) & set(both.tolist())
    drawn = torch.cat([SeededNoise(0, client, 1, 0, "x").on_device(500, 1.0, CPU) for client in range(40)])
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3


def test_noise_is_drawn_where_the_sum_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing as long as the model is drawn on the CPU for a sum on a GPU, or moved there; a fake device counts."""
    drawn: list[tuple[str, int]] = []

    def counted(self: SeededNoise, shape: torch.Size, std: float, device: torch.device) -> torch.Tensor:
        drawn.append((device.type, shape.numel()))
        return torch.empty(shape, device=device)

    monkeypatch.setattr(SeededNoise, "on_device", counted)
    monkeypatch.setattr(SeededNoise, "normal", lambda *_: pytest.fail("drawn on the CPU"))
    found = add_normal_finely(torch.zeros(MANY, device="meta", dtype=torch.float64), 1.0, SeededNoise(0))
    assert drawn == [("meta", MANY)] and found.device.type == "meta" and found.dtype == torch.float64


@pytest.mark.parametrize("device", DEVICES)
def test_long_noise_is_the_same_on_every_device(device: torch.device) -> None:
    """Below `MANY` the CPU's, moved; from there on each device's own, of the same bits."""
    for length in (MANY - 1, MANY):
        here, there = SeededNoise(0, "x").fine_normal(length, 0.5), SeededNoise(0, "x").fine_normal(length, 0.5, device)
        assert there.device.type == device.type and torch.equal(here, there.cpu()) and here.dtype == torch.float64
    assert torch.equal(here, SeededNoise(0, "x").on_device(length, 0.5, CPU).double())
    trials = SeededNoise(0, "x").fine_normal((4, MANY // 2), 0.5)  # an audit's, of a model that is drawn on the CPU
    assert torch.equal(trials, SeededNoise(0, "x").normal((4, MANY // 2), 0.5).double())
    drawn = add_normal_finely(torch.ones(MANY, dtype=torch.float64, device=device), 3.0, SeededNoise(1)).cpu()
    assert abs(float(drawn.mean()) - 1) < 0.03 and float(drawn.std()) == pytest.approx(3, rel=0.01)


def test_a_long_release_has_the_same_noise_alone_and_in_a_cohort(monkeypatch: pytest.MonkeyPatch) -> None:
    """From `HUGE` numbers on that of the counter, below it that of `normal`; a vector's own length decides."""
    for module in (noise, cohort_noise):
        monkeypatch.setattr(module, "HUGE", 64)
    for length in (63, 64):
        rows = CohortNoise([SeededNoise(0, client) for client in range(3)]).normal_at((3, length), 2.0, CPU)
        alone = [SeededNoise(0, client).normal_at(length, 2.0, CPU) for client in range(3)]
        source = SeededNoise(0, 1)
        drawn = source.on_device(length, 2.0, CPU) if length == 64 else source.normal(length, 2.0)
        assert torch.equal(rows, torch.stack(alone)) and torch.equal(alone[1], drawn) and rows.dtype == torch.float32
