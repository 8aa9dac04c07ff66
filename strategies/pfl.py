"""PFL, server half: ADP-FL without clipping, statistics and noise (table 2 of its paper).

Nobody adds noise; the server sees every update of the base layers as it is, and nothing of the personal ones.
"""

from strategies.adpfl import Distilling


class PFL(Distilling):
    """Ens = theta + mean of the base layers' updates; theta <- distil(teacher Ens, student theta)."""
