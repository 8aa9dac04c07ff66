"""`fedpriv leaderboard`: all methods at equal verified epsilon, tuned with equal effort.

    fedpriv leaderboard [board=all] [scale=small] [plan=false] [run=true] [data=FOLDER] [download=false]
                        [workers=0] [out=results/leaderboard]

board     names of files in conf/leaderboard, with commas; all: all of them
scale     small, or literal: with a board's longer setting, where its file has one
plan      true: print how many runs it takes and how long about, run nothing but the plans of methods
run       false: evaluate the runs that are there anew, and compute what needs no run; an error where one is missing
data      folder with the pictures (MNIST/raw below it); by default $FEDPRIV_PICTURES, or ./data
download  true: fetch what is missing
workers   runs at a time; 0: one per core
out       folder; an interrupted call resumes there, and finished runs are not repeated, whatever the code is now
          (a run that runs.parquet marks as superseded is repeated)

Writes README.md, leaderboard.csv, results.json and runs.parquet. Each run has its own folder in OUT/runs.
Beside papers (RESULTS/leaderboard, RESULTS/PAPER) the head of RESULTS/README.md says what all of them found.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fedpriv.common.command_line import command, shown
from fedpriv.common.printing import say
from fedpriv.common.stopping import stop


@command
def main(
    *,
    board: str = "all",
    scale: Literal["small", "literal"] = "small",
    plan: bool = False,
    run: bool = True,
    data: Path | None = None,
    download: bool = False,
    workers: Annotated[int, Field(ge=0, le=1024)] = 0,
    out: Path = Path("results/leaderboard"),
) -> None:
    from fedpriv.studies import boards
    from fedpriv.studies.data import default_folder
    from fedpriv.studies.front_page import LEADERBOARD, refresh_beside
    from fedpriv.studies.leaderboard import carry_out, effort, prepare
    from fedpriv.studies.pages import write_boards
    from fedpriv.studies.results import write_results
    from fedpriv.studies.runner import study_runs

    with stop.handled():
        plans = boards.read_boards(board, boards.BOARDS, scale)
        prepared = [prepare(name, one, data or default_folder(), download, out) for name, one in plans.items()]
        with study_runs(out, workers, run) as runs:
            if plan:
                say("\n".join(effort(prepared, runs)), flush=True)
                return
            results, records = carry_out(prepared, runs)
    write_results(out, results, records)
    write_boards(results, out)
    if out.name == LEADERBOARD:
        refresh_beside(out.parent)
    for one in results.boards:
        bests = ((target, one.at(target)) for target in one.targets)
        say(f"{one.title}: " + "; ".join(f"{entries[0].label} at epsilon {at:g}" for at, entries in bests if entries))
    say(f"folder: {shown(out)}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
