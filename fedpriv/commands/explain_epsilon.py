"""`fedpriv explain-epsilon`: which reading of a paper's setting gives the epsilon that it prints.

    fedpriv explain-epsilon 2.72 rounds=30 batch=60 n=600 delta=1e-5 sigma=0.3
    fedpriv explain-epsilon 2.72,1.5,3.97 sigma=0.3,0.5,0.3 rounds=30,30,60 batch=60 n=600 cohort=10 clients=100

Accountants, sampling rates, numbers of compositions and what the noise multiplier is relative to sigma are tried; a
reading that gives every printed epsilon, to its last digit, is listed. Several epsilons with commas are explained
together, each by its own value of an option with as many; one epsilon alone fits many readings by chance.
Accountants: Opacus' Renyi accountant, the moments accountant, the exact Gaussian and zCDP (both without sampling),
the classical Gaussian with epsilons added or with the root of their number, and advanced composition of it.

rounds=   of the training
delta=    at which the epsilon is printed (1e-5)
sigma=    the paper's noise; without it, the noise multiplier that would be needed is given
batch=    examples in a local batch, of the n= examples of a client
cohort=   clients in a round, of all clients=
epochs=   local epochs in a round (1), of batches of batch=

A reading says how a number was computed and not that it is a guarantee: `fedpriv plan` computes what a run costs.
Exit code 1: no reading gives the epsilons.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from fedpriv.common.command_line import DONE, FAILED, command
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say


def _split(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Counts = Annotated[
    tuple[Count, ...], BeforeValidator(_split), Field(description="whole numbers of at least 1, with commas")
]
Printed = Annotated[
    tuple[Annotated[str, Field(pattern=r"^(0*[1-9]\d*(\.\d+)?|0+\.\d*[1-9]\d*)$", max_length=20)], ...],
    BeforeValidator(_split),
    Field(description="printed numbers above 0 of at most 20 digits with commas, as 2.72 or 2.72,1.5"),
]


@command
def main(
    epsilon: Printed,
    *,
    rounds: Counts,
    delta: Annotated[
        tuple[Annotated[float, Field(ge=1e-100, lt=1)], ...],
        BeforeValidator(_split),
        Field(description="numbers between 0 and 1, of at least 1e-100"),
    ] = (1e-5,),
    sigma: Annotated[
        tuple[Positive, ...], BeforeValidator(_split), Field(description="positive numbers with commas")
    ] = (),
    batch: Counts = (),
    n: Counts = (),
    cohort: Counts = (),
    clients: Counts = (),
    epochs: Counts = (1,),
) -> int:
    from fedpriv.privacy.readings import readings, settings_of

    for first, second, one, other in (("batch", "n", batch, n), ("cohort", "clients", cohort, clients)):
        if bool(one) != bool(other):
            raise OptionError(second if one else first, "", f"is missing: {first}= and {second}= belong together")
    if epochs != (1,) and not batch:
        raise OptionError(
            "epochs", ",".join(map(str, epochs)), "needs batch= and n=, which say how many steps they are"
        )
    given: dict[str, Sequence[float]] = {"rounds": rounds, "delta": delta, "sigma": sigma, "batch": batch, "n": n}
    given |= {"cohort": cohort, "clients": clients, "epochs": epochs}
    found = readings(settings_of(epsilon, {name: values for name, values in given.items() if values}))
    unit = " x sigma" if sigma else ""
    for number, reading in enumerate(found, 1):
        multiplier = reading.named or f"{reading.ratio:.6g}{unit}"
        epsilons = ", ".join(f"{value:.4g}" for value in reading.epsilons)
        say(f"{number}. {reading.accountant}, {reading.sampling}, {reading.composed}: epsilon {epsilons}")
        allowed = f" (allowed: {reading.ratios[0]:.4g} to {reading.ratios[1]:.4g}{unit})" if reading.ratios else ""
        say(f"   noise multiplier {multiplier}{allowed}")
    if not found:
        say(f"no reading that was tried gives {','.join(epsilon)}")
        return FAILED
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
