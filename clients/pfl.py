"""PFL, client half: ADP-FL without clipping, statistics and noise (table 2 of its paper).

Nobody adds noise; the server sees every update of the base layers as it is, and nothing of the personal ones.
"""

from __future__ import annotations

from fedpriv.client.base import LastBlocksStay


class PFLClient(LastBlocksStay):
    """Releases the update of the base layers as it is."""
