"""`fedpriv reproduce`: a paper's experiments, tables and figures, and which of its claims hold.

    fedpriv reproduce paper=fedcad|adpfl|coqfl|fedags|agn|all scale=small|literal
                      [data=FOLDER] [download=false] [workers=0] [seeds=null] [out=results]
                      [table=all] [core_minutes=null] [fresh=false] [plan=false] [run=true]

data: the folder that holds MNIST/raw and the like in torchvision's layout, or cifar10 and cifar100 as class folders
(default: $FEDPRIV_PICTURES, else data). download=true fetches missing data. workers=0: one per core. seeds: in
place of the looks of the paper's file, one look at so many (who calls it again with more looks again, and nothing
corrects for that). table: one table of the paper, or several (a,b), with the claims that rest on them alone, into
OUT/PAPER/TABLE: minutes in place of hours. core_minutes: what a table may use before it gets no further look (default:
the file's); a verdict is as sure with more or fewer. fresh=true: also the fresh seeds with which
docs/results/protocol.md confirms a verdict of a later rule (hours). plan=true: prints the runs and about how long they
take, and makes none. run=false: evaluates the runs that OUT/PAPER/runs.jsonl holds, and computes what needs no run.

Makes the runs that are missing, several at a time, and resumes after an interruption. Seeds are added look by look, as
the file plans them, to the cells on which an open claim rests, until it is decided or the table's core-minutes are
used; what OUT holds already counts. A finished run is found by the digest of its options, whatever the code is now; one
that runs.jsonl marks as superseded is repeated. Writes OUT/PAPER/README.md (tables, verdicts in words), results.json,
runs.jsonl, tables/*.csv, figures/*.png; the runs' folders are in OUT/PAPER/runs. With two studies or more in OUT, the
head of OUT/README.md says what all of them found.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedpriv.common.command_line import DONE, command, command_options, shown, whole_number
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.printing import say
from fedpriv.common.stopping import stop

OPTIONS = {
    "paper": None,
    "scale": ("small", "literal"),
    "data": "",
    "download": ("false", "true"),
    "workers": "0",
    "seeds": "null",
    "table": "all",
    "core_minutes": "null",
    "fresh": ("false", "true"),
    "plan": ("false", "true"),
    "run": ("true", "false"),
    "out": "results",
}
MOST_WORKERS, MOST_SEEDS, MOST_MINUTES = 1024, 100, 1_000_000


@command(needs_arguments=True)
def main(arguments: Sequence[str]) -> int:
    with stop.handled():
        return _reproduce(arguments)


def _reproduce(arguments: Sequence[str]) -> int:
    given = command_options(arguments, OPTIONS, "fedpriv.reproduce", may_be_empty=("data",))
    workers = whole_number(given, "workers", 0, MOST_WORKERS)
    seeds = None if given["seeds"] == "null" else whole_number(given, "seeds", 1, MOST_SEEDS)
    minutes = None if given["core_minutes"] == "null" else whole_number(given, "core_minutes", 1, MOST_MINUTES)

    from fedpriv.studies.data import default_folder
    from fedpriv.studies.spec import load, papers

    data = Path(given["data"]) if given["data"] else default_folder()
    names = papers() if given["paper"] == "all" else [given["paper"]]
    folders = {name: Path(given["out"]) / name for name in names}
    chosen = [load(name) for name in names]
    if given["table"] != "all":
        tables = given["table"].split(",")
        if given["paper"] == "all":
            raise OptionError("table", given["table"], "it is one paper's: paper=NAME table=...")
        chosen = [chosen[0].only(tables)]
        folders = {names[0]: with_runs_of(folders[names[0]], "+".join(tables))}

    from fedpriv.studies.experiments import plan
    from fedpriv.studies.reproducing import reproduce

    scale: Any = given["scale"]
    download = given["download"] == "true"
    for paper in chosen:  # refuse before any long run starts
        plan(paper, scale, data, folders[paper.paper], download=download, seeds=seeds)
    if given["plan"] == "true":
        from fedpriv.studies.effort import paper_words

        for paper in (paper if minutes is None else paper.with_core_minutes(minutes) for paper in chosen):
            say("\n".join(paper_words(paper, scale, data, folders[paper.paper], seeds)), flush=True)
        return DONE
    failed = []
    for paper in chosen:
        began = time.monotonic()
        folder = folders[paper.paper]
        failures = reproduce(
            paper,
            scale,
            data,
            folder,
            download=download,
            workers=workers,
            seeds=seeds,
            core_minutes=minutes,
            run=given["run"] == "true",
            fresh=given["fresh"] == "true",
        )
        say(f"{paper.paper}: {shown(folder / 'README.md')} ({time.monotonic() - began:.0f} s)", flush=True)
        failed += [f"{failure.job.name}: {failure.words}" for failure in failures]
    if given["table"] == "all":
        from fedpriv.studies.front_page import refresh_beside

        refresh_beside(Path(given["out"]))
    if failed:
        raise RunFailed(f"{len(failed)} runs failed, first {failed[0]}")
    return DONE


def with_runs_of(whole: Path, name: str) -> Path:
    """The folder of some tables, which begins with the runs that the whole paper's folder holds."""
    folder, runs = whole / name, whole / "runs.jsonl"
    if runs.is_file() and not (folder / runs.name).exists():
        folder.mkdir(exist_ok=True)
        shutil.copyfile(runs, folder / runs.name)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
