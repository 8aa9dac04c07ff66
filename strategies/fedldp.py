"""Fed-LDP, server half: the baseline of Fed-CAD (Zhu et al., section III-C).

The client adds the noise; the server sees each noisy update and knows who took part; nobody needs to be trusted.
"""

from fedpriv.server.clip_rules import ClippingServer


class FedLDP(ClippingServer):
    """theta <- theta + mean of the noisy updates that arrived."""
