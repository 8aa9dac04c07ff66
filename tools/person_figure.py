"""What a person's epsilon costs beside a row's, on made-up repeated measurements: the table of docs/tables.md.

    python tools/person_figure.py [splits=8] [folder=outputs/persons]

The generator (seed 0): 600 persons, each with 1 to 20 rows (uniform) and a middle z ~ N(0, I_5). A row measures x = z +
N(0, 0.5^2 I), cut to [-4, 4], and has the outcome 1 with probability 1/(1 + e^-(w x - 1)); w = 1.75 v/|v|, v = (3, -2,
2, 1, 0).
Settings are those of `experiment=hospitals`, fixed beforehand, with 30 rounds; a split is a seed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from scipy.stats import t

from fedpriv.client.build import make_client
from fedpriv.config.compose import compose
from fedpriv.runs.planning import with_target
from fedpriv.runs.start import start_run

PERSONS, MOST, COLUMNS = 600, 20, "abcde"
SCHEMA = (
    "target: {column: ill, task: classification, classes: [no, yes]}\nunit: patient\nmissing: refuse\ncolumns:\n"
    + "".join(f"  {name}: {{range: [-4, 4]}}\n" for name in COLUMNS)
)


def write_table(folder: Path) -> list[str]:
    """The table and its schema; the options of a run on them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, lines = np.random.default_rng(0), [",".join(["patient", *COLUMNS, "ill"])]
    direction = np.array([3.0, -2.0, 2.0, 1.0, 0.0])
    direction *= 1.75 / np.linalg.norm(direction)
    for person in range(PERSONS):
        middle = rng.normal(size=5)
        for _ in range(rng.integers(1, MOST + 1)):
            row = np.clip(middle + rng.normal(0, 0.5, 5), -4, 4)
            ill = rng.random() < 1 / (1 + np.exp(1 - direction @ row))
            lines.append(",".join([f"p{person}", *(f"{value:.4f}" for value in row), "yes" if ill else "no"]))
    (folder / "people.csv").write_text("\n".join(lines) + "\n")
    (folder / "schema.yaml").write_text(SCHEMA)
    files = (f"dataset.root={folder}/people.csv", f"dataset.schema_file={folder}/schema.yaml")
    return [
        "experiment=hospitals",
        "dataset=table",
        *files,
        "num_rounds=30",
        "evaluate.every=0",
        "operations.report=false",
    ]


def rows_of(options: list[str]) -> dict[str, list[str]]:
    """Line of the table -> further options."""
    found = {"person, no noise": ["privacy.target_epsilon=null", "strategy.client.noise_multiplier=0"]}
    for epsilon in (1, 8):
        target = [f"privacy.target_epsilon={epsilon}"]
        found[f"person, epsilon {epsilon}"] = [*target]
        found[f"row, epsilon {epsilon}"] = [*target, "privacy.unit=row"]
        # A person of 20 rows moves a row's sum 20 times as far: with 20 times the noise it has the row's epsilon.
        client = make_client(with_target(compose([*options, *target, "privacy.unit=row"])))
        noise = f"strategy.client.noise_multiplier={MOST * client.noise_multiplier}"  # type: ignore[attr-defined]
        name = f"row, noise for epsilon {epsilon} of {MOST} rows"
        found[name] = ["privacy.unit=row", "privacy.target_epsilon=null", noise]
    return found


def main(splits: int, folder: Path) -> None:
    """Prints the mean AUC, and the mean difference to no noise on the same splits with its 95 % interval."""
    options, plain = write_table(folder), np.zeros(splits)
    for name, more in rows_of(options).items():
        found = []
        for seed in range(splits):
            place = folder / name.replace(" ", "_").replace(",", "") / str(seed)
            if not (place / "summary.json").exists():
                start_run(compose([*options, *more, f"seed={seed}"]), place)
            found.append(json.loads((place / "summary.json").read_text())["metrics"]["final"]["auc"])
        plain = plain if plain.any() else np.array(found)
        apart = np.array(found) - plain
        half = t.ppf(0.975, splits - 1) * np.std(apart, ddof=1) / np.sqrt(splits)
        print(f"| {name} | {np.mean(found):.3f} | {apart.mean():+.4f} ± {half:.4f} |", flush=True)


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(int(given.get("splits", 8)), Path(given.get("folder", "outputs/persons")))
