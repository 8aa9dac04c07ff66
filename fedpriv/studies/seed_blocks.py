"""Seeds that were made in blocks, on other machines or dates: whether their differences agree.

docs/results/protocol.md, section 3: where they do not, each block's difference is given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping

from fedpriv.report.compare import spread
from fedpriv.report.words import plus_minus

#: A p-value below which blocks differ.
DIFFER = 0.05


def block_words(differences: Mapping[int, float], blocks: Mapping[int, Hashable]) -> str:
    """Each block's mean difference, if an analysis of variance tells blocks of two seeds or more apart; else nothing.

    differences, blocks: by seed.
    """
    parts: defaultdict[Hashable, dict[int, float]] = defaultdict(dict)
    for seed, difference in sorted(differences.items()):
        parts[blocks.get(seed)][seed] = difference
    some = [part for part in parts.values() if len(set(part.values())) > 1]
    if len(some) < 2:
        return ""
    from scipy.stats import f_oneway  # half a second to import

    p = float(f_oneway(*(list(part.values()) for part in some)).pvalue)
    if not p <= DIFFER:
        return ""
    listed = ", ".join(f"{_mean(part)} on seeds {min(part)} to {max(part)}" for part in some)
    return f", blocks of seeds differ (p = {p:.2g}): {listed}"


def _mean(differences: Mapping[int, float]) -> str:
    found = spread(differences.values())
    return plus_minus(found.mean or 0.0, found.half_width)
