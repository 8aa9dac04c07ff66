"""Fed-CAD, server half: correlation-aware adaptive local differential privacy.

B. Zhu, S. Chang, G. Liang, H. Zhu, J. Xu (Algorithm 2).

The client adds the noise; the server sees each noisy update and knows who took part; nobody needs to be trusted.
The server publishes C, sigma, the initial Diff and gamma with the configuration; all else is the client's. Where a
clipping rule moves C, it is announced with every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.common.messages import FloatVector
from fedpriv.common.replies import Reply
from fedpriv.server.clip_rules import ClippingServer


class FedCAD(ClippingServer):
    """theta <- theta + mean of the noisy updates that arrived."""

    # theta_0, the rounds, the draw of K participants and their answers are the base's, for all methods.
    # [Fed-CAD, Alg. 2 lines 1 to 5, 7, 9, 10]
    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        return super().aggregate(theta, replies)  # [Fed-CAD, Alg. 2 line 8]

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """Mean over the round's clients of D, v (noise variance in units of sigma^2 C^2) and r."""
        names = ("diff", "noise_variance", "reuse")
        return {
            name: sum(reply.diagnostics[name] for reply in replies) / len(replies)
            for name in names
            if all(name in reply.diagnostics for reply in replies)
        }
