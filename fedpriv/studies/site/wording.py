"""Numbers, verdicts and names of the site in words."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedpriv.common.versions import made_by
from fedpriv.report.words import figure, many, number, seconds
from fedpriv.studies.results import Estimate, Provenance, Verdict

#: The papers by the name of their study, in the order of the site.
PAPERS = {
    "fedcad": "Fed-CAD",
    "adpfl": "ADP-FL",
    "coqfl": "CoQ-FL",
    "fedags": "DP-FedAGS",
    "agn": "DPFL-AGN",
}
KINDS = {
    "train": "training run",
    "plan": "plan: what a run would cost",
    "audit": "audit of the release code",
    "attack": "membership inference",
    "dme": "mean estimation",
    "computed": "computed",
}
#: Pages of a folder of runs have their runs' names; its list has this one.
LIST = "index"


@dataclass(frozen=True)
class Badge:
    """A verdict as the pages show it: sign and word, never a colour alone. several: the word for more than one."""

    sign: str
    words: str
    several: str
    kind: str


BADGES: dict[Verdict, Badge] = {
    "holds": Badge("✓", "holds", "hold", "holds"),
    "does not hold": Badge("✗", "does not hold", "do not hold", "fails"),
    "not decided": Badge("?", "not decided", "not decided", "open"),
    "cannot be tested here": Badge("–", "cannot be tested here", "cannot be tested here", "untested"),
}


def count_verdicts(verdicts: Iterable[Verdict]) -> list[tuple[Badge, int]]:
    """How often each verdict was given, all four of them."""
    given = list(verdicts)
    return [(badge, given.count(verdict)) for verdict, badge in BADGES.items()]


def paper_name(name: str) -> str:
    return PAPERS.get(name, name)


def plain(value: float | None) -> str:
    """A number as a paper prints it."""
    if value is None:
        return "–"
    return figure(value) if math.isinf(value) else f"{value:,.6g}"


def measured(estimate: Estimate | None, signed: bool = False) -> str:
    """Mean ± half width of the 95 % interval, which decides the number of decimals."""
    if estimate is None or estimate.mean is None:
        return "–"
    mean, width = estimate.mean, estimate.half_width
    sign = "+" if signed and mean > 0 else ""
    if width is None or not math.isfinite(width) or not math.isfinite(mean):
        return sign + figure(mean)
    decimals = 0 if abs(mean) >= 1000 else _decimals(width)
    return f"{sign}{mean:,.{decimals}f} ± {width:,.{decimals}f}".replace("-", "−")


def _decimals(width: float) -> int:
    return min(max(-math.floor(math.log10(width)), 1), 4) if width > 0 else 1


def sortable(estimate: Estimate | None) -> str:
    """The mean for the script that sorts; empty where there is none."""
    return "" if estimate is None or estimate.mean is None else repr(estimate.mean)


def seeds(estimate: Estimate) -> str:
    return many(estimate.n, "seed")


def elapsed(value: float | None) -> str:
    return "∞" if value is not None and math.isinf(value) else seconds(value)


def duration(estimate: Estimate) -> str:
    """An estimate in seconds as time."""
    return elapsed(estimate.mean) + (f" ± {elapsed(estimate.half_width)}" if estimate.half_width else "")


def slug(text: str) -> str:
    """A name for files and anchors: the text itself where it is harmless, else what is harmless of it and a hash."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", text) and text != LIST:
        return text
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:80]
    return f"{kept or 'x'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def commits(origin: Provenance) -> str:
    return ", ".join(map(made_by, origin.commits)) or "not recorded"


def machine(origin: Provenance) -> str:
    here = origin.machine
    return f"{here.processor}, {many(here.cores, 'core')}, {here.memory_gib:g} GiB, {here.system}, Python {here.python}"


def provenance(origin: Provenance) -> list[tuple[str, str]]:
    budget = "" if origin.client_epoch_budget is None else f" of a budget of {origin.client_epoch_budget:,.0f}"
    rows = [
        ("Made by", commits(origin)),
        ("Date", origin.date),
        ("Machine", machine(origin)),
        ("Time of all runs", elapsed(origin.core_seconds)),
        ("Client epochs", f"{origin.client_epochs:,.0f}{budget}"),
        *([("Other machines, versions", "; ".join(origin.others))] if origin.others else []),
        ("Versions", ", ".join(f"{name} {version}" for name, version in sorted(origin.versions.items()))),
        *((f"Remark {place}", words) for place, words in enumerate(origin.remarks, 1)),
    ]
    return [(name, value or "not recorded") for name, value in rows]


def value_in_words(value: Any) -> str:
    """Anything that a summary may hold, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {value_in_words(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(value_in_words, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    known = number(value)
    return str(value) if known is None else figure(known)
