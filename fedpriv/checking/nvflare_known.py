"""NVFlare's own filters: what they claim, and what one result costs as it really runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fedpriv.checking.findings import Finding
from fedpriv.checking.flower_messages import Trained
from fedpriv.checking.flower_updates import plain
from fedpriv.checking.subject import Recognised
from fedpriv.privacy.events import CLIENT_TO_SERVER, ApproximateDP

_FILTERS = "nvflare.app_common.filters"
#: Filters without noise: module, class, what is done.
BARE = (
    ("percentile_privacy", "PercentilePrivacy", "sets small numbers to 0 and cuts the others to a bound"),
    ("exclude_vars", "ExcludeVars", "takes arrays out by name"),
    ("convert_weights", "ConvertWeights", "turns weights into differences"),
    ("dxo_blocker", "DXOBlocker", "lets through or blocks whole results by their kind"),
)


def known_filters(filters: Sequence[Any], size: int, once: Callable[[Trained], list[Any]]) -> list[Recognised]:
    """What is known of a chain for a model of ``size`` numbers, as one (or none). once: the filters after one result.

    What follows a filter with noise works on what that one released, and what comes before on what it bounds; so its
    own bound holds for the chain.
    """
    found = [one for place, part in enumerate(filters) if (one := _known(part, place, size, once)) is not None]
    if len(found) < 2:
        return found
    best = next((one for one in found if one.event is not None), found[0])
    words = "; then ".join(one.words for one in found)
    findings = [finding for one in found for finding in one.findings]
    return [
        Recognised(words, best.event, best.reason, best.claimed, best.delta, best.scope, best.calls, findings),
    ]


def _known(part: Any, place: int, size: int, once: Callable[[Trained], list[Any]]) -> Recognised | None:
    for module, name, does in BARE:
        if _is(part, module, name):
            return Recognised(f"a filter that {does}, without noise", None, "no noise is added")
    if _is(part, "svt_privacy", "SVTPrivacy"):
        return _sparse_vector(part, place, size, once)
    return None


def _is(part: Any, module: str, name: str) -> bool:
    """Whether an object is of a class of the package that is imported, and processes as that one does."""
    kind = getattr(sys.modules.get(f"{_FILTERS}.{module}"), name, None)
    if kind is None or not isinstance(part, kind):
        return False
    does = [getattr(one, "process_dxo", None) for one in (type(part), kind)]
    return does[0] is does[1] and type(part).process is kind.process


def sparse_vector_epsilon(size: int, uploads: int, threshold: float, query: float, release: float) -> float:
    """epsilon of one result under replace-one, at delta 0.

    Every one of d = ``size`` numbers is clipped to +-g, and its absolute value, which moves by at most g, is compared
    with one noisy threshold again and again, with new noise each time, until at least c = ``uploads`` numbers were
    above it. Proof: let the neighbour's threshold be higher by g, which costs ``threshold`` (Laplace noise of scale
    g / threshold). Then every "below" is at least as likely for the neighbour, and every "above" costs at most
    2 g / (2 g c / query) = query / c. A number is accepted once at most, but nothing stops a pass at c: up to d are
    accepted, at query d / c. Of them c are drawn without looking at the data, and each leaves once at most with
    Laplace noise of scale 2 g c / release, where clipped numbers move by 2 g: ``release`` in all.
    (Lyu, Su and Li 2017, Theorem 2, has query for at most c accepted numbers.)
    """
    return threshold + query * size / uploads + release


def _sparse_vector(part: Any, place: int, size: int, once: Callable[[Trained], list[Any]]) -> Recognised:
    spent: list[dict[str, Any]] = getattr(once(Trained(plain(size, 1.0)))[place], "get_privacy_ledger", list)()
    words = f"sparse vector technique on a model of {size} numbers"
    if not spent:
        return Recognised(words, None, "this version of the filter does not say how it divides its budget")
    line = spent[0]
    uploads = int(line["n_upload"])
    split = tuple(float(line[f"epsilon_{name}"]) for name in ("threshold", "query", "release"))
    claimed = float(line["epsilon_total"])
    epsilon = sparse_vector_epsilon(size, uploads, *split)
    words += (
        f": threshold {split[0]:.4g}, queries {split[1]:.4g}, release {split[2]:.4g} for {uploads} of them; the filter "
        f"claims epsilon {claimed:.4g} for one result"
    )
    findings = [
        Finding(
            "recognised",
            "budget-grows-with-the-model",
            "doubt",
            f"The release's epsilon is {split[2] / uploads:.4g} for each number that leaves: {split[2]:.4g} here, "
            f"{split[2] / uploads * math.ceil(uploads / size * 10**6):.4g} for a model of a million numbers.",
            "Set epsilon_release, or noise on the whole update by its norm.",
        )
        if getattr(part, "epsilon_release", None) is None
        else None,
        Finding(
            "recognised",
            "more-accepted-than-paid-for",
            "doubt",
            f"The queries' budget is for {uploads} accepted numbers, and a pass accepts all that are above: up to "
            f"{size}. The bound that covers them all is epsilon {epsilon:.4g}, the claim {claimed:.4g}.",
            "Stop a pass at the last number that is paid for.",
        ),
    ]
    event = ApproximateDP(threat=CLIENT_TO_SERVER, epsilon=epsilon, delta=0.0)
    return Recognised(words, event, claimed=claimed, delta=0.0, findings=[one for one in findings if one is not None])
