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
is repeated. Writes OUT/PAPER/README.md (verdicts, figures), details.md (also the claims' words and every table),
results.json, runs.parquet, tables/*.csv, figures/*.svg; the runs' folders are in OUT/PAPER/runs. With two studies or
more in OUT, the head of OUT/README.md says what all found.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedpriv.common.command_line import command, shown
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.printing import say
from fedpriv.common.stopping import stop
from fedpriv.studies.papers import MOST_LOOKS


@command
def main(
    *,
    paper: str,
    scale: Literal["small", "literal"] = "small",
    data: Path | None = None,
    download: bool = False,
    workers: Annotated[int, Field(ge=0, le=1024)] = 0,
    seeds: Annotated[int | None, Field(ge=1, le=100)] = None,
    table: str = "all",
    look: Annotated[int, Field(ge=1, le=MOST_LOOKS)] = 1,
    fresh: bool = False,
    plan: bool = False,
    run: bool = True,
    out: Path = Path("results"),
) -> None:
    from fedpriv.studies import papers
    from fedpriv.studies.data import default_folder
    from fedpriv.studies.front_page import refresh_beside
    from fedpriv.studies.pages import counted, write_paper
    from fedpriv.studies.reproduction import evaluate, measure
    from fedpriv.studies.results import write_results
    from fedpriv.studies.runner import Failure, study_runs
    from fedpriv.studies.study_plots import draw_figures

    names = papers.papers() if paper == "all" else [paper]
    chosen = [(papers.load(name), out / name) for name in names]
    if table != "all":
        if paper == "all":
            raise OptionError("table", table, "it is one paper's: paper=NAME table=...")
        tables = table.split(",")
        chosen = [(whole.only(tables), with_runs_of(folder, "+".join(tables))) for whole, folder in chosen]
    data = data or default_folder()
    with stop.handled():
        for one, folder in chosen:  # refuse before any long run starts
            jobs, _ = papers.plan(one, scale, data, folder, download=download, seeds=seeds)
            if plan:
                looks = {place: one.looks(place[0], scale, seeds) for place in jobs}
                some = [job for p, own in jobs.items() for job in own[: looks[p][min(look, len(looks[p])) - 1]]]
                with study_runs(folder, workers=1, may_run=False) as runs:
                    say(f"{one.paper}: {runs.effort(some)}", flush=True)
        if plan:
            return
        failed = []
        for one, folder in chosen:
            began = time.monotonic()
            with study_runs(folder, workers, run) as runs:
                options: dict[str, Any] = {"look": look, "fresh": fresh, "download": download, "seeds": seeds}
                measured = measure(one, scale, data, folder, runs, **options)
            results = evaluate(measured).model_copy(update={"figures": tuple(draw_figures(measured, folder))})
            write_results(folder, results, runs.records(measured.records))
            write_paper(results, folder)
            say("\n".join(f"  {claim.verdict}: {claim.claim} ({claim.words})" for claim in results.listed))
            say(f"{one.paper}: {counted(results.listed)}", flush=True)
            say(f"{one.paper}: {shown(folder / 'README.md')} ({time.monotonic() - began:.0f} s)", flush=True)
            failures = [made for made in runs.made.values() if run and isinstance(made, Failure)]
            failed += [f"{failure.job.name}: {failure.words}" for failure in failures]
        if table == "all":
            refresh_beside(out)
        if failed:
            raise RunFailed(f"{len(failed)} runs failed, first {failed[0]}")


def with_runs_of(whole: Path, name: str) -> Path:
    """The folder of some tables, which begins with the runs that the whole paper's folder holds."""
    folder, runs = whole / name, whole / "runs.parquet"
    if runs.is_file() and not (folder / runs.name).exists():
        folder.mkdir(exist_ok=True)
        shutil.copyfile(runs, folder / runs.name)
    return folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
