"""AGN, server half.

Jiao, Cai, Wang, Cheng, Gao: DPFL-AGN, section 3.1: Adam on the noisy gradient, constant noise.

The clients add the noise; the server sees each client's model after each round; it is honest about nothing that the
clients' guarantee rests on: they check the noise that it announces.
"""

from strategies.dpfl_agn import AnnouncedNoise


class AGN(AnnouncedNoise):
    """theta <- sum n_j/n theta_j over the replies that arrived. The same noise in every round."""
