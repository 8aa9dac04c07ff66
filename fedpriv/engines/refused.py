"""What leaves a client in the place of a reply when its half raises: a code from a fixed list."""

from __future__ import annotations

from fedpriv.client.contract import BudgetSpent, UnsafeClipNorm, UnsafeNoise
from fedpriv.client.memory import StaleRequest
from fedpriv.common.errors import LedgerRefused, PolicyRefused
from fedpriv.common.messages import Refusal
from fedpriv.secure_sum.sum_session import SumRefused

#: For each kind of exception; for all others `Refusal.FAILED`.
CODES: dict[type[Exception], Refusal] = {
    BudgetSpent: Refusal.BUDGET_SPENT,
    StaleRequest: Refusal.STALE,
    UnsafeNoise: Refusal.UNSAFE_NOISE,
    UnsafeClipNorm: Refusal.UNSAFE_CLIP_NORM,
    PolicyRefused: Refusal.POLICY,
    LedgerRefused: Refusal.LEDGER,
    SumRefused: Refusal.UNSAFE_SUM,
}


def refused_as(error: Exception) -> tuple[Refusal, str]:
    """The code for what a client raised, and its words, which leave it in simulation only."""
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), Refusal.FAILED)
    return code, str(error) if code != Refusal.FAILED else f"{type(error).__name__}: {error}"
