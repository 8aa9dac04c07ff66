"""ANR, server half.

Jiao, Cai, Wang, Cheng, Gao: DPFL-AGN, section 3.2: plain SGD, noise that decays when a public loss
stops falling.

The clients add the noise; the server sees each client's model after each round; it is honest about nothing that the
clients' guarantee rests on: they check the noise that it announces.
"""

from strategies.dpfl_agn import DPFLAGN


class ANR(DPFLAGN):
    """theta <- sum n_j/n theta_j over the replies that arrived; sigma <- rho * sigma where
    v(theta_t) - v(theta_{t+1}) < mu, on public examples.
    """
