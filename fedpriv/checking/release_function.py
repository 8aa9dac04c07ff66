"""Adapter of functions ``release(update, rng)``."""

from __future__ import annotations

from typing import Any

from fedpriv.checking.subject import Question, Subject


def recognises(target: Any, question: Question) -> Subject | None:
    return None
