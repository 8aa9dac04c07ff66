"""Small releases for the tests of checks: sound ones, and ones with a planted fault each."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

NOISE = 4.0
_OF_THE_MODULE = np.random.default_rng(7)


def clipped(update: Any, norm: float = 1.0) -> Any:
    return update / np.maximum(1.0, np.linalg.norm(update) / norm)


def noisy(update: Any, rng: Any) -> Any:
    return clipped(update) + rng.normal(0, NOISE, update.shape)


# --- sound --------------------------------------------------------------------------------------------------------


def laplace(update: Any, rng: Any) -> Any:
    return update / max(1.0, np.abs(update).sum()) + rng.laplace(0, 2.0, update.shape)


def bits(update: Any, rng: Any) -> Any:
    return (update > 0) ^ (rng.random(update.shape) < 1 / (1 + math.exp(2)))


def rare_flips(update: Any, rng: Any) -> Any:
    return (update > 0) ^ (rng.random(update.shape) < 1 / (1 + math.exp(7)))


def whole(update: Any, rng: Any) -> Any:
    count, chance = np.rint(np.clip(update, -1, 1)), 1 - math.exp(-1.0)
    return count + rng.geometric(chance, count.shape) - rng.geometric(chance, count.shape)


def masked(update: Any, rng: Any) -> Any:
    return (rng.random(update.shape) < 0.2) * noisy(update, rng)


def signs(update: Any, rng: Any) -> Any:
    return np.sign(noisy(update, rng))


def cut_off(update: Any, rng: Any) -> Any:
    return np.clip(clipped(update) + rng.normal(0, 1, update.shape), -1, 1)


def with_copies(update: Any, rng: Any) -> Any:
    sent = noisy(update, rng)
    return {"sent": sent, "mean": float(sent.mean()), "twice": 2 * sent, "length": float(np.linalg.norm(sent))}


def layers(update: Any, *, rng: Any) -> Any:
    factor = 1 / max(1.0, math.sqrt(sum(float((part**2).sum()) for part in update.values())))
    return {name: part * factor + rng.normal(0, NOISE, part.shape) for name, part in update.items()}


def secure(update: Any) -> Any:
    return clipped(update) + np.array([random.SystemRandom().gauss(0, NOISE) for _ in update])


def other_noise(update: Any, rng: Any) -> Any:
    return clipped(update) + rng.normal(0, 1, len(update)) * np.linspace(4, 12, len(update))


def by_seed(update: Any, seed: int) -> Any:
    return noisy(update, np.random.RandomState(seed))


class Parcel:
    """What a release sends, as attributes and in a slot."""

    __slots__ = ("__dict__", "values")

    def __init__(self, values: Any, **beside: Any) -> None:
        self.values = values
        self.__dict__.update(beside)


def in_object(update: Any, rng: Any) -> Any:
    return Parcel(noisy(update, rng), note="sent", of=np.ndarray)


SOUND = (
    by_seed,
    in_object,
    noisy,
    laplace,
    bits,
    rare_flips,
    whole,
    masked,
    signs,
    cut_off,
    with_copies,
    layers,
    secure,
    other_noise,
)

# --- faults -------------------------------------------------------------------------------------------------------


def without_noise(update: Any) -> Any:
    return clipped(update)


def same_seed(update: Any) -> Any:
    return noisy(update, np.random.default_rng(0))


def seeded_by_data(update: Any) -> Any:
    return noisy(update, np.random.default_rng(int(abs(update).sum() * 1e6) + int(update[0] > 0)))


def unclipped(update: Any, rng: Any) -> Any:
    return update + rng.normal(0, NOISE, update.shape)


def scaled_noise(update: Any, rng: Any) -> Any:
    return clipped(update) + rng.normal(0, NOISE * np.linalg.norm(clipped(update)), update.shape)


def clipped_last(update: Any, rng: Any) -> Any:
    return clipped(update + rng.normal(0, NOISE, update.shape))


def one_noise(update: Any, rng: Any) -> Any:
    return clipped(update) + rng.normal(0, NOISE)


def half_noisy(update: Any, rng: Any) -> Any:
    sent = clipped(update)
    sent[: len(sent) // 2] = noisy(update, rng)[: len(sent) // 2]
    return sent


def noise_beside(update: Any, rng: Any) -> Any:
    noise = rng.normal(0, NOISE, update.shape)
    return clipped(update) + noise, noise


def with_loss(update: Any, rng: Any) -> Any:
    return {"sent": noisy(update, rng), "loss": float(np.tanh(np.mean(update**2)))}


def bare_in_object(update: Any, rng: Any) -> Any:
    return Parcel(noisy(update, rng), loss=float(np.tanh(update[0])))


def bare_in_slot(update: Any, rng: Any) -> Any:
    return Parcel(clipped(update))


def with_text(update: Any, rng: Any) -> Any:
    return {"sent": noisy(update, rng), "log": f"norm {np.linalg.norm(update):.0f}"}


def other_length(update: Any, rng: Any) -> Any:
    sent = noisy(update, rng)
    return sent if update[0] > 0 else sent[1:]


def few_seeds(update: Any, rng: Any) -> Any:
    return noisy(update, np.random.default_rng(rng.integers(300)))


def grows_slowly(update: Any, rng: Any) -> Any:
    return np.append(noisy(update, rng), np.log1p(np.linalg.norm(update)) + rng.normal(0, NOISE))


class Skips:
    """No noise in every fifth call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, update: Any, rng: Any) -> Any:
        self.calls += 1
        return noisy(update, rng) if self.calls % 5 else clipped(update)


class Keeps:
    """The same noise in every call."""

    def __init__(self) -> None:
        self.noise: Any = None

    def __call__(self, update: Any, rng: Any) -> Any:
        self.noise = rng.normal(0, NOISE, update.shape) if self.noise is None else self.noise
        return clipped(update) + self.noise


class Fades:
    """Less noise in every call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, update: Any, rng: Any) -> Any:
        self.calls += 1
        return clipped(update) + rng.normal(0, NOISE / self.calls**2, update.shape)


#: target -> the findings of which one names its fault.
# Tables are read-only: what a check's target can change it copies before every call.
FAULTY: Mapping[Any, set[str]] = MappingProxyType(
    {
        without_noise: {"no-randomness"},
        same_seed: {"no-randomness"},
        seeded_by_data: {"no-randomness"},
        unclipped: {"unbounded-sensitivity"},
        scaled_noise: {"noise-depends-on-data"},
        clipped_last: {"noise-depends-on-data"},
        one_noise: {"shared-noise"},
        half_noisy: {"number-without-noise"},
        noise_beside: {"shared-noise"},
        with_loss: {"number-without-noise"},
        bare_in_object: {"number-without-noise"},
        bare_in_slot: {"no-randomness"},
        with_text: {"number-without-noise"},
        other_length: {"form-depends-on-data"},
        few_seeds: {"noise-repeats"},
        grows_slowly: {"unbounded-sensitivity"},
        Skips: {"number-without-noise"},
        Keeps: {"noise-repeats-between-calls"},
        Fades: {"noise-fades"},
    }
)

# --- doubts -------------------------------------------------------------------------------------------------------


def of_the_process(update: Any) -> Any:
    return clipped(update) + np.random.normal(0, NOISE, update.shape)  # noqa: NPY002


class Accumulates:
    """What earlier updates were is in every later release."""

    def __init__(self) -> None:
        self.sum: Any = 0.0

    def __call__(self, update: Any, rng: Any) -> Any:
        self.sum = self.sum + clipped(update)
        return self.sum + rng.normal(0, 0.5, update.shape)


class Cancels:
    """The noise of a call is taken away by the next."""

    def __init__(self) -> None:
        self.last: Any = 0.0

    def __call__(self, update: Any, rng: Any) -> Any:
        before, self.last = self.last, rng.normal(0, NOISE, update.shape)
        return clipped(update) + self.last - before


DOUBTFUL: Mapping[Any, str] = MappingProxyType(
    {
        of_the_process: "global-generator",
        Accumulates: "state-crosses-calls",
        Cancels: "noise-cancels-between-calls",
    }
)

# --- by name, in a process of their own ---------------------------------------------------------------------------


def of_the_module(update: Any) -> Any:
    return clipped(update) + _OF_THE_MODULE.normal(0, NOISE, update.shape)


class Holder:
    """An instance with a generator of its own, which a constant of 128 bits seeds."""

    def __init__(self) -> None:
        self.own = np.random.default_rng(2**127 + 1)

    def __call__(self, update: Any) -> Any:
        return clipped(update) + self.own.normal(0, NOISE, update.shape)


of_an_instance = Holder()


def forks(update: Any, rng: Any) -> Any:
    import os

    os.fork()  # the copy goes on as well
    return noisy(update, rng)


def chats(update: Any, rng: Any) -> Any:
    print("." * 1_000_000)
    return noisy(update, rng)


def leaves_a_child(update: Any) -> Any:
    import os
    import subprocess
    import sys

    told = f"import os, time; open({os.environ['LEFT']!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(3600)"
    subprocess.Popen([sys.executable, "-c", told], start_new_session=True).wait()


def hangs(update: Any) -> Any:
    import threading

    threading.Event().wait()


def spins(update: Any) -> Any:
    while True:
        pass


def leaves(update: Any) -> Any:
    raise SystemExit(3)


def dies(update: Any) -> Any:
    import os

    os.abort()


def eats(update: Any) -> Any:
    return np.ones(2**33)


def fetches(update: Any) -> Any:
    import socket

    socket.create_connection(("192.0.2.1", 80), timeout=5)


def needs_a_file(update: Any) -> Any:
    with open("weights-that-are-not-there.bin") as file:
        return file.read()


def needs_a_gpu(update: Any) -> Any:
    raise RuntimeError("Found no NVIDIA driver on your system")


def needs_more(update: Any, weights: Any, mask: Any, rng: Any) -> Any:
    return update
