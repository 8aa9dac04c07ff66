"""A node's refusals, for its operator: the reason in the local log, and how often in a file beside the ledger.

A node's main process and `python -m fedpriv.node status` import this, and nothing that imports torch.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

from fedpriv.common.errors import LedgerRefused
from fedpriv.common.files import write_atomic
from fedpriv.common.messages import Refusal, shown_text
from fedpriv.deployment.data_ledger import PRIVATE, private_file, wait_for_lock

log = logging.getLogger("fedpriv")

REFUSALS = "refusals.json"  # beside the ledger
MOST_REASON = 2000  # characters of a refusal in the local log


def note_refusal(data: Path, code: Refusal, reason: str) -> None:
    """Writes the reason into the local log and counts the code in the data folder."""
    log.warning("refused, %s: %s", code.name.lower(), shown_text(reason, MOST_REASON))
    place = data / PRIVATE / REFUSALS
    # a full disk must not prevent a refusal from being sent; messages that are refused at once wait for each other
    with suppress(OSError, ValueError, LedgerRefused), private_file(place.with_name(f".{REFUSALS}.lock")) as file:
        wait_for_lock(file, place)
        counts = read_counts(data)
        counts[code.name.lower()] = counts.get(code.name.lower(), 0) + 1
        write_atomic(place, json.dumps(counts) + "\n", durable=False, mode=0o600)


def read_counts(data: Path) -> dict[str, int]:
    """How often this node refused, by code. For display: a file torn by a crash counts as empty."""
    try:
        found = json.loads((data / PRIVATE / REFUSALS).read_text())
        return {str(code): int(number) for code, number in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
