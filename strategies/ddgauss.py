"""The distributed discrete Gaussian, server half (P. Kairouz, Z. Liu, T. Steinke, ICML 2021, arXiv 2102.06387).

The client adds the noise, in whole numbers; the server learns their sum modulo 2^bits over those who stayed, undoes the
rotation and takes the mean. It is trusted with keeping to `min_replies` where the sum is ideal.
"""

from fedpriv.server.whole_gaussian import WholeGaussianServer


class DDGauss(WholeGaussianServer):
    """theta <- theta + mean of the updates, decoded from their sum."""

    law = "gaussian"
