"""Choices that bytes make: a generator of random cases becomes one that a coverage-guided fuzzer can steer."""

from __future__ import annotations

import random


class Choices(random.Random):
    """Every draw takes the next bytes; behind the last byte everything is zero."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.data, self.place = data, 0

    def __new__(cls, data: bytes) -> Choices:
        return super().__new__(cls, 0)

    def getrandbits(self, k: int) -> int:
        length = -(-k // 8)
        taken = self.data[self.place : self.place + length].ljust(length, b"\0")
        self.place += length
        return int.from_bytes(taken, "big") >> (8 * length - k)

    def random(self) -> float:
        return self.getrandbits(16) / 2**16
