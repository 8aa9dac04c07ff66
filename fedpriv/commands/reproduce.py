"""`fedpriv reproduce`: a paper's experiments, tables and figures, and which of its claims hold.

    fedpriv reproduce paper=fedcad|adpfl|coqfl|fedags|agn|all scale=small|literal
                      [data=FOLDER] [download=false] [workers=0] [look=1] [seeds=null] [out=results]
                      [table=all] [fresh=false] [plan=false] [run=true]

data: the folder that holds MNIST/raw and the like in torchvision's layout, or cifar10 and cifar100 as class folders
(default: $FEDPRIV_PICTURES, else data). download=true fetches missing data. workers=0: one per core. look: the paper's
file plans seeds in blocks (3, 6, 12 and 24 in all, say), and with look=2 every cell gets the second one too; a verdict
is as sure at any of them, since p counts all that are planned. seeds: in place of these one look at so many (who calls
it again with more looks again, and nothing corrects for that). table: one table of the paper, or several (a,b), with
the claims that rest on them alone, into OUT/PAPER/TABLE: minutes in place of hours. fresh=true: also the fresh seeds
with which docs/results/protocol.md confirms a verdict of a later rule (hours). plan=true: prints how many runs there
are and about how long they take, and makes none. run=false: evaluates the runs that OUT/PAPER/runs.parquet holds, and
computes what needs no run.

Makes the runs that are missing, several at a time, and resumes after an interruption. What OUT holds already counts. A
finished run is found by the digest of its options, whatever the code is now; one that runs.parquet marks as superseded
is repeated. Writes OUT/PAPER/README.md (tables, verdicts), results.json, runs.parquet, tables/*.csv, figures/*.svg; the
runs' folders are in OUT/PAPER/runs. With two studies or more in OUT, the head of OUT/README.md says what all found.
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
    "look": "1",
    "fresh": ("false", "true"),
    "plan": ("false", "true"),
    "run": ("true", "false"),
    "out": "results",
}
MOST_WORKERS, MOST_SEEDS = 1024, 100


@command(needs_arguments=True)
def main(arguments: Sequence[str]) -> int:
    with stop.handled():
        return _reproduce(arguments)


def _reproduce(arguments: Sequence[str]) -> int:
    given = command_options(arguments, OPTIONS, "fedpriv.reproduce", may_be_empty=("data",))
    workers = whole_number(given, "workers", 0, MOST_WORKERS)
    seeds = None if given["seeds"] == "null" else whole_number(given, "seeds", 1, MOST_SEEDS)

    from fedpriv.studies.data import default_folder
    from fedpriv.studies.front_page import refresh_beside
    from fedpriv.studies.pages import counted, write_paper
    from fedpriv.studies.papers import MOST_LOOKS, load, papers, plan
    from fedpriv.studies.reproduction import evaluate, measure
    from fedpriv.studies.results import write_results
    from fedpriv.studies.runner import Failure, study_runs
    from fedpriv.studies.study_plots import draw_figures

    look = whole_number(given, "look", 1, MOST_LOOKS)
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
    scale: Any = given["scale"]
    options: dict[str, Any] = {"download": given["download"] == "true", "seeds": seeds}
    may_run = given["run"] == "true"
    for paper in chosen:  # refuse before any long run starts
        jobs, _ = plan(paper, scale, data, folders[paper.paper], **options)
        if given["plan"] == "true":
            looks = {place: paper.looks(place[0], scale, seeds) for place in jobs}
            some = [job for p, own in jobs.items() for job in own[: looks[p][min(look, len(looks[p])) - 1]]]
            with study_runs(folders[paper.paper], workers=1, may_run=False) as runs:
                say(f"{paper.paper}: {runs.effort(some)}", flush=True)
    if given["plan"] == "true":
        return DONE
    failed = []
    for paper in chosen:
        began = time.monotonic()
        folder = folders[paper.paper]
        with study_runs(folder, workers, may_run) as runs:
            found = measure(paper, scale, data, folder, runs, look=look, fresh=given["fresh"] == "true", **options)
        results = evaluate(found).model_copy(update={"figures": tuple(draw_figures(found, folder))})
        write_results(folder, results, runs.records(found.records))
        write_paper(results, folder)
        say("\n".join(f"  {claim.verdict}: {claim.claim} ({claim.words})" for claim in results.listed))
        say(f"{paper.paper}: {counted(results.listed)}", flush=True)
        failures = [one for one in runs.made.values() if may_run and isinstance(one, Failure)]
        say(f"{paper.paper}: {shown(folder / 'README.md')} ({time.monotonic() - began:.0f} s)", flush=True)
        failed += [f"{failure.job.name}: {failure.words}" for failure in failures]
    if given["table"] == "all":
        refresh_beside(Path(given["out"]))
    if failed:
        raise RunFailed(f"{len(failed)} runs failed, first {failed[0]}")
    return DONE


def with_runs_of(whole: Path, name: str) -> Path:
    """The folder of some tables, which begins with the runs that the whole paper's folder holds."""
    folder, runs = whole / name, whole / "runs.parquet"
    if runs.is_file() and not (folder / runs.name).exists():
        folder.mkdir(exist_ok=True)
        shutil.copyfile(runs, folder / runs.name)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
