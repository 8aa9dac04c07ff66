"""DP-SGD, server half.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang: Deep Learning with Differential
Privacy. ACM CCS 2016. The first baseline of DPFL-AGN.

The clients add the noise; the server sees each client's model after each round; it is honest about nothing that the
clients' guarantee rests on: they check the noise that it announces.
"""

from strategies.dpfl_agn import AnnouncedNoise


class DPSGD(AnnouncedNoise):
    """theta <- sum n_j/n theta_j over the replies that arrived. The same noise in every round."""
