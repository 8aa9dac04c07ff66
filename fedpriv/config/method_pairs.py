"""An algorithm with another method's mechanism: ``strategy=fedprox privacy.mechanism=fedldp``.

How clients train is the algorithm's (`Method.local`, `Method.layers`), and what its server makes of the mean; what
leaves, what that costs and how the server reads it are the mechanism's. The tables of which pairs there are stand here.

Why a pair costs what its mechanism costs. A release is M(u), where u is what the client's training gives in this round,
and the mechanism's event bounds M(u) against M(u') for any two vectors of the update's length: it says nothing of how
they came about. What the algorithm adds to training (a proximal term; the client's own layers, which start at public
values and never leave) is a part of the function of the client's data that gives u. This function may also depend on
earlier releases, as FedAvg's does through the global model: the mechanisms' composition is adaptive. Given earlier
releases and the randomness of the batches, own layers are a function of the client's data; mixing over the batches'
randomness, whose law is the same for neighbours, raises no divergence. form=central: whether a client is drawn depends
on nothing it keeps; so with the others' randomness fixed a round is a mixture, over its own layers, of Poisson-sampled
Gaussians, no worse than the worst of them (as in `clients.scaffold`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, get_args

from pydantic import create_model

from fedpriv.common.errors import OptionError
from fedpriv.config.methods import METHODS
from fedpriv.config.options import MethodOptions
from fedpriv.config.own_options import choice

#: `privacy.mechanism`.
Mechanism = Literal["fedldp", "fedcad", "privunit", "ldpfl", "coqfl", "ddgauss", "skellam", "cpsgd", "dpfedavg"]
MECHANISMS: tuple[str, ...] = get_args(Mechanism)
#: `strategy` beside it.
ALGORITHMS = ("fedavg", "fedprox", "fedper", "lgfedavg", "fedvf", "pfl")
#: Those that are no algorithm of a pair, and why. All others without a row are mechanisms: they train as FedAvg does.
NO_ALGORITHM = {
    "scaffold": "its control variates are means of what its own clipped gradients release",
    **dict.fromkeys(
        ("dpsgd", "agn", "anr", "dpfl_agn"), "noise is in every local step, so there is no update without noise"
    ),
    **dict.fromkeys(("dpfedexp", "dpfedsam", "dpzo"), "its training, its release and its server's step are one method"),
    "adpfl": "its clip norms, budgets and own layers are one method; pfl is it without noise",
    "nbafl": "its clients release clipped weights, and its server adds noise too",
    "fedonce": "its clients send one message, of statistics and not of an update",
    "dpftrl": "its noise is a trusted server's, correlated over all rounds",
    **dict.fromkeys(("dpsum", "ask", "moments"), "its sites send sums over their rows and train no model"),
}
#: Those that are no mechanism of a pair, and why.
NO_MECHANISM = {
    **dict.fromkeys((*ALGORITHMS, "corrquant"), "it adds no noise"),
    **NO_ALGORITHM,
    "adpfl": "its noise follows its own layers and its own exchange of statistics",
    "nbafl": "its noise is made for its own proximal term and for its server's noise",
    "fedags": "its choice of coordinates and its weights follow the losses of its own training",
    "dpfedsnlc": "its choice of coordinates is not tried with another algorithm",
}
NAMED_BLOCKS = "its intervals are those of the whole model's named blocks, and some layers never travel"
SOME_ROUNDS = (
    "the number of coordinates that travel changes with strategy.client.head_period, and its {} has one length"
)
#: (algorithm, mechanism) that do not go together, and why.
NO_PAIR = {
    **{(name, bits): NAMED_BLOCKS for name in ("fedper", "lgfedavg", "fedvf", "pfl") for bits in ("ldpfl", "coqfl")},
    ("fedvf", "fedcad"): SOME_ROUNDS.format("reused noise"),
    ("fedvf", "privunit"): SOME_ROUNDS.format("unit vector"),
    **{("fedvf", name): SOME_ROUNDS.format("grid") for name in ("ddgauss", "skellam", "cpsgd")},
    ("fedvf", "dpfedavg"): "its server takes gradients, and the heads travel as values",
}


def why_not(algorithm: str, mechanism: str) -> str | None:
    """Why these two are no pair, in words; None where they are one."""
    if mechanism not in MECHANISMS:
        return f"{mechanism} is no mechanism of a pair: {NO_MECHANISM.get(mechanism, 'there is none of this name')}"
    if algorithm not in ALGORITHMS:
        own = "it has noise of its own" if algorithm in METHODS else "of methods of one's own no pairs are made"
        return f"strategy={algorithm} takes no other mechanism: {NO_ALGORITHM.get(algorithm, own)}"
    why = NO_PAIR.get((algorithm, mechanism))
    return None if why is None else f"not with strategy={algorithm}: {why}"


def check_pair(algorithm: str, mechanism: str | None) -> None:
    """Raises `OptionError` for two that are no pair."""
    if mechanism is None or (why := why_not(algorithm, mechanism)) is None:
        return
    fitting = [name for name in MECHANISMS if why_not(algorithm, name) is None]
    raise OptionError("privacy.mechanism", mechanism, f"{why}; allowed: {', '.join([*fitting, 'null'])}")


def in_words(algorithm: str, mechanism: str | None) -> str:
    """What a run's records call the method."""
    return algorithm if mechanism is None else f"{algorithm} with {mechanism}'s mechanism"


@lru_cache(maxsize=256)
def schema_for(algorithm: str, mechanism: str | None = None) -> type[MethodOptions] | None:
    """The class of the method's options, of a pair both methods'; None for a method of one's own."""
    own = METHODS.get(algorithm)
    if mechanism is None or own is None or why_not(algorithm, mechanism) is not None:
        return own
    bases: Any = tuple(dict.fromkeys((METHODS[mechanism], own)))
    pair: type[MethodOptions] = create_model("PairOptions", __base__=bases)
    return pair


def target(mechanism: str, half: str) -> str:
    """_target_ of a half of the mechanism's method."""
    content = choice("strategy", mechanism).content
    return str(content.get("strategy", content)[half]["_target_"])


@lru_cache(maxsize=256)
def joined(algorithm: type[Any], mechanism: type[Any], **own: Any) -> type[Any]:
    """A half of a pair: the algorithm's places before the mechanism's. own: what the class says for itself."""
    rows = all(vars(kind).get("in_rows", False) for kind in (algorithm, mechanism))
    name = f"{algorithm.__name__}With{mechanism.__name__}"
    return type(name, (algorithm, mechanism), {"__module__": __name__, "in_rows": rows, **own})


def table() -> str:
    """All pairs, in Markdown: docs/methods.md has it, and tests/contract/test_pairs.py compares."""
    notes: dict[str, int] = {}
    lines = [f"| `privacy.mechanism=` | {' | '.join(f'`{name}`' for name in ALGORITHMS)} |", "|---" * 7 + "|"]
    for mechanism in MECHANISMS:
        whys = [why_not(algorithm, mechanism) for algorithm in ALGORITHMS]
        cells = ["yes" if why is None else f"no ({notes.setdefault(_why(why), len(notes) + 1)})" for why in whys]
        lines.append(f"| `{mechanism}` | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {why}" for why, number in notes.items())]
    both = {name: why for name, why in NO_ALGORITHM.items() if NO_MECHANISM.get(name) == why}
    for of, refused in (
        ("`strategy=` and as `privacy.mechanism=`", both),
        ("`strategy=`", NO_ALGORITHM),
        ("`privacy.mechanism=`", NO_MECHANISM),
    ):
        by_reason: dict[str, list[str]] = {}
        for name, why in refused.items():
            if name not in both or refused is both:
                by_reason.setdefault(why, []).append(f"`{name}`")
        lines += ["", f"Refused as {of}:", ""]
        lines += [f"- {', '.join(names)}: {why}" for why, names in by_reason.items()]
    return "\n".join(lines)


def _why(text: str) -> str:
    return text.partition(": ")[2]
