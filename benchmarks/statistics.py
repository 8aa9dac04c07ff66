"""Statistics of a benchmark: medians with intervals, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
from scipy import stats

#: A median and the ends of its 95% interval.
Figure = tuple[float, float, float]


def median_interval(values: Sequence[float]) -> Figure:
    """Median and its distribution-free 95% interval (for fewer than six values: the smallest and the largest)."""
    ordered = np.sort(values)
    low = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    return (
        float(np.median(ordered)),
        float(ordered[max(0, low - 1)]),
        float(ordered[min(len(ordered) - 1, len(ordered) - low)]),
    )


def machine(**facts: Any) -> dict[str, Any]:
    """Where and when figures were measured; ``load``: average number of runnable processes in the minute before."""
    from fedpriv.common.versions import commit, library_versions

    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "load": os.getloadavg()[0],
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        "commit": commit(),
        "versions": library_versions(),
        **facts,
    }


def shown(figure: Figure) -> str:
    return "{:.3f} [{:.3f}, {:.3f}]".format(*figure)
