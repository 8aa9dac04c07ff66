"""Runs behind README's table of what can be had at which epsilon, and the choice of the constants behind it, repeated.

    python -m tools.private_runs figures DATA [SEEDS]     # docs/figures/private_runs.jsonl
    python -m tools.private_runs choices DATA [SEEDS]     # docs/figures/private_choices.jsonl

DATA: the folder of torchvision's MNIST. Each run is one line, written as it ends; what is there is not run again.
`figures` tests on the test pictures. `choices` changes one constant at a time and tests on 10,000 training pictures
that are held out from training; it never looks at a test picture.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fedpriv
from fedpriv.data import gradients, maps
from fedpriv.studies.data import held_out

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "figures"
FIGURES, CHOICES = FOLDER / "private_runs.jsonl", FOLDER / "private_choices.jsonl"
FIRST_SEED = 100
SEEDS = {"figures": 16, "choices": 4}
EPSILONS = (1, 2, 4, 8)
#: Row -> overrides.
MNIST = ("experiment=private_mnist", "dataset.root={data}")
ROWS: dict[str, tuple[str, ...]] = {
    "nothing of digits": ("experiment=private_mnist_plain", "dataset.root={data}"),
    "strokes": MNIST,
    "digits": ("experiment=private_digits",),
    "upright": (*MNIST, "features.map=none", "scale=small"),
}
HELD_OUT = 10_000  # training pictures that `choices` tests on
QUIET = ("operations.report=false", "evaluate.every=0", "checkpoint.every=0")

Constants = dict[Any, dict[str, Any]]
#: What is changed -> (overrides, constants by module). The first is what is used.
VARIANTS: dict[str, tuple[tuple[str, ...], Constants]] = {
    "as it is": ((), {}),
    **{f"tau {value}": ((f"strategy.server.scale={value}",), {}) for value in (24, 96)},
    **{f"rho {value}": ((f"strategy.server.spread={value}",), {}) for value in (0.25, 1.0)},
    **{f"exponent {value}": ((f"features.exponent={value}",), {}) for value in (0.0, 1.0)},
    **{f"RIDGE {value}": ((), {maps: {"STROKE_RIDGE": value}}) for value in (0.1, 1.0)},
    **{f"TALL {value}/28": ((), {gradients: {"TALL": value / 28}}) for value in (4.5, 6.5)},
    **{f"WIDE {value}/28": ((), {gradients: {"WIDE": value / 28}}) for value in (3.0, 5.0)},
    **{f"MOST_STROKES {value}": ((), {maps: {"MOST_STROKES": value}}) for value in (2, 4)},
    **{f"PEN {value}": ((), {maps: {"PEN": tuple(value * width for width in maps.PEN)}}) for value in (0.7, 1.4)},
    **{
        f"writing {value}": (
            (),
            {maps: {name: value * getattr(maps, name) for name in ("TURN", "SHEAR", "STRETCH", "MOVE")}},
        )
        for value in (0.5, 2)
    },
}
CHOICE_EPSILONS = (1, 8)


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of runs; a line that a kill cut short is left out."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def measure(file: Path, row: str, epsilon: float, seed: int, options: list[str]) -> None:
    """Runs what ``file`` does not have, and appends its test accuracy in percent."""
    if any((line["row"], line["epsilon"], line["seed"]) == (row, epsilon, seed) for line in read(file)):
        return
    asked = [*options, f"privacy.target_epsilon={epsilon}", f"seed={seed}", *QUIET]
    with tempfile.TemporaryDirectory() as folder:
        run = fedpriv.run(asked, folder=f"{folder}/run", quiet=True)
        verified = run.verified_epsilon
        accuracy = 100 * run.summary["accuracy"]["final"]
    line = {"row": row, "epsilon": epsilon, "seed": seed, "accuracy": round(accuracy, 2), "verified": verified}
    whole = not file.exists() or file.read_bytes().endswith(b"\n")
    with file.open("a") as out:
        out.write(("" if whole else "\n") + json.dumps(line) + "\n")


def figures(data: str, seeds: int) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for row, options in ROWS.items():
            for epsilon in EPSILONS:
                measure(FIGURES, row, epsilon, seed, [option.format(data=data) for option in options])


@contextlib.contextmanager
def changed(constants: Constants) -> Iterator[None]:
    """Other constants in modules, for as long as it lasts."""
    before = {module: {name: getattr(module, name) for name in values} for module, values in constants.items()}
    try:
        for module, values in constants.items():
            for name, value in values.items():
                setattr(module, name, value)
        yield
    finally:
        for module, values in before.items():
            for name, value in values.items():
                setattr(module, name, value)


def choices(data: str, seeds: int) -> None:
    where = tuple(option.format(data=data) for option in MNIST)
    with tempfile.TemporaryDirectory() as folder:
        split, _ = held_out((f"dataset.root={data}", "dataset=mnist"), "mnist", HELD_OUT, 0, Path(folder))
        for name, (options, constants) in VARIANTS.items():
            # A map of other constants lies in a cache of its own: constants are no part of what names a file there.
            with changed(constants), tempfile.TemporaryDirectory() as cache:
                own = (f"dataset.cache={cache}",) if constants else ()
                for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                    for epsilon in CHOICE_EPSILONS:
                        asked = [*where, *options, *own, f"dataset.split={split}"]
                        measure(CHOICES, name, epsilon, seed, asked)


def main(arguments: list[str]) -> None:
    what, data, *seeds = arguments
    {"figures": figures, "choices": choices}[what](data, int(seeds[0]) if seeds else SEEDS[what])


if __name__ == "__main__":
    main(sys.argv[1:])
