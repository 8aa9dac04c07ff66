"""Fed-CAD, server half: correlation-aware adaptive local differential privacy.

B. Zhu, S. Chang, G. Liang, H. Zhu, J. Xu (Algorithm 2).

The client adds the noise; the server sees each noisy update and knows who took part; nobody needs to be trusted.
The server publishes C, sigma, the initial Diff and gamma with the configuration; all else is the client's. Where a
clipping rule moves C, it is announced with every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.common.replies import Reply
from fedpriv.server.clip_rules import ClippingServer


class FedCAD(ClippingServer):
    """theta <- theta + mean of the noisy updates that arrived.  # [Fed-CAD, Alg. 2 line 8]"""

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """Mean over the round's clients of D, v (noise variance in units of sigma^2 C^2) and r."""
        names = ("diff", "noise_variance", "reuse")
        return {
            name: sum(reply.diagnostics[name] for reply in replies) / len(replies)
            for name in names
            if all(name in reply.diagnostics for reply in replies)
        }
