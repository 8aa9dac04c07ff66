"""LDP-FL, server half (Sun, Qian and Chen, IJCAI 2021): the base and the baseline of CoQ-FL.

Every coordinate is released as one bit by randomised response; the server sees each client's bits; nobody needs to be
trusted.
"""

from fedpriv.config.methods import LDPFLOptions
from fedpriv.server.one_bit import OneBitServer


class LDPFL(OneBitServer):
    """The unweighted mean of the decoded bits."""

    options: LDPFLOptions
