"""How the releases in a data folder's ledger add up, and why that may change once.

It is fixed before the first release: who chose it after seeing outputs would choose what admits more. One change stays
open, once and for good: from ``gaussian`` to ``renyi``, which admits more kinds of mechanism (those of secure sums).

*Why it is sound*, whoever decides on it, and whatever they saw. A ledger that begins with ``gaussian`` keeps to
(1 - `RESERVED`) delta and notes the Renyi order of a later change. Let L be the privacy loss of all that left and
h(L) = (1 - exp(max_epsilon - L))_+, so that what is to be shown is E[h(L)] <= delta.

- Histories that end before a change are those of the Gaussian filter, stopped: E[h(L); no change] is at most
  (1 - `RESERVED`) delta, since h >= 0.
- After a change *everything* in the ledger, the Gaussians before it too, has at most the Renyi cost R at the
  order a that was noted before the first release. exp((a - 1) (L - cost so far)) is a supermartingale from the
  first release on, and h(L) <= c exp((a - 1) L), where R is the cost with c exp((a - 1) R) = `RESERVED` delta:
  so E[h(L); change] <= `RESERVED` delta.

Without the two shares it would not be: a server that makes a node change only where the outputs so far are
unlikely gets 1.14 delta with one look (`tests/privacy/test_accountant.py` plays this game), 1.26 with four. So a
ledger that was begun without a reserve (share 1) keeps to its accountant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

#: The part of delta that a ledger of Gaussians leaves for a later change to ``renyi``.
RESERVED = 0.1


@dataclass(frozen=True)
class Accounting:
    """How a ledger's releases are composed. orders: the Renyi order of each budget by its name, for ``renyi`` or for a
    later change to it. share: of each budget's delta, what the filter keeps to.
    """

    accountant: Literal["gaussian", "renyi"]
    orders: Mapping[str, float] = field(default_factory=dict)
    share: float = 1.0
