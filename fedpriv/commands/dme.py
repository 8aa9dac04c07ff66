"""`fedpriv dme`: distributed mean estimation with every quantiser of the project, without training.

    fedpriv dme [n=10] [dimension=1000] [epsilon=1] [bits=8] [group_size=4,8] [private_share=0.134]
                [radius=1] [inputs=uniform] [trials=100] [seed=0] [figure=all] [out=FOLDER]

n clients hold vectors of `dimension` coordinates and send one bit for each; the server estimates the mean. Prints
the measured mean squared error per coordinate beside its closed form and the joint epsilon of a coordinate; writes
these and the figures' numbers into dme.json, and the figures as SVG.

n              clients; the time that corrquant takes grows with n^2
epsilon        per coordinate, a number or inf (sq and corrquant always have inf)
bits           M, shared random bits of a pair per coordinate
group_size     sizes of the permutation groups, with commas; the pair is always included
private_share  mu of the repaired quantisers: the probability of a private uniform in place of the shared one
radius         values lie in [-radius, radius]
inputs         uniform; gaussian (standard deviation radius/2, clamped); same (one uniform vector for all clients);
               half (every value at the centre, a high bit has probability 1/2)
figure         1 error against epsilon, 2 against n, all also against bits and group size
out            folder, by default outputs/dme/<date-time>
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict

import torch

from fedpriv.common.command_line import command, shown
from fedpriv.common.files import json_number, write_atomic
from fedpriv.common.printing import say
from fedpriv.report.live.task import task
from fedpriv.studies.mean_estimation import FIGURES, Options, Row, setting_in_words, sweep, table
from fedpriv.studies.study_plots import draw_sweep


def _print(rows: Sequence[Row]) -> None:
    lines = [
        ("quantiser", "error", "+-", "closed form", "ratio", "of ldpfl", "epsilon: server", "server+members"),
        *((row.quantiser, *map(_shown, list(asdict(row).values())[1:])) for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        rest = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        say("  ".join([f"{first:<{widths[0]}}", *rest]))


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return "infinite" if math.isinf(value) else f"{value:.4g}"


@command
def main(*, options: Options) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    with task("dme"):
        rows = table(options)
    _print(rows)
    figures = []
    for axis in FIGURES[options.figure]:
        with task("dme"):
            curves = sweep(options, axis)
        picture = draw_sweep(axis, curves, setting_in_words(options, axis), options.out)
        say(f"figure: {shown(options.out / picture.file)}", flush=True)
        figures.append({"axis": axis, **asdict(picture), "curves": [asdict(curve) for curve in curves]})
    found = {
        "options": asdict(options) | {"epsilon": json_number(options.epsilon), "out": str(options.out)},
        "table": [{k: json_number(v) if isinstance(v, float) else v for k, v in asdict(row).items()} for row in rows],
        "figures": figures,
    }
    write_atomic(options.out / "dme.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    say(f"numbers: {shown(options.out / 'dme.json')}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the chunks are small: on a busy machine threads would wait for each other
    sys.exit(main(sys.argv[1:]))
