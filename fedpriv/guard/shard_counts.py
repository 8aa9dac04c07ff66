"""What became of a machine's shards, counted for its operator alone: it depends on the data, and never leaves.

Beside the ledger, and not part of it: what a message costs does not depend on how many shards answered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedpriv.common.files import write_atomic
from fedpriv.deployment.data_ledger import PRIVATE

ANSWERS = "guard-answers.json"
#: What can become of a shard, by the word that `Model.fault` has for it.
SHARDS = {
    "answered": "an answer of the model's form, clipped",
    "not asked": "zero update: a shard without exactly one unit, where the policy says single",
    "no arrays": "zero update: no answer (a crash, a time-out, too much, no arrays)",
    "other form": "zero update: arrays of another number, shape or type",
    "not finite": "zero update: NaN or infinity",
}


def count_answers(data: Path, run: str, shards: Iterable[str]) -> None:
    """Adds one message's shards, each by its word."""
    with suppress(OSError, ValueError):  # a full disk must not change an answer
        counts = read_answers(data)
        of_run = counts.setdefault(run, {})
        for word in ("messages", *shards):
            of_run[word] = of_run.get(word, 0) + 1
        write_atomic(data / PRIVATE / ANSWERS, json.dumps(counts) + "\n", durable=False, mode=0o600)


def read_answers(data: Path) -> dict[str, dict[str, int]]:
    """By run: messages, and shards by their word. For display: a damaged file counts as empty."""
    try:
        found = json.loads((data / PRIVATE / ANSWERS).read_text())
        return {str(run): {str(word): int(number) for word, number in counts.items()} for run, counts in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
