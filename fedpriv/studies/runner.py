"""The jobs of a study carried out: each one once, several at a time, taken up where they were left."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedpriv.common.errors import FedprivError, OptionError, RunFailed, RunFolderError
from fedpriv.common.files import locked, write_atomic
from fedpriv.common.printing import say
from fedpriv.common.stopping import end_with_parent, stop
from fedpriv.common.systems import cores
from fedpriv.common.verbosity import VARIABLE
from fedpriv.report.reading import read_run
from fedpriv.report.words import number, percent, pick
from fedpriv.studies.jobs import FORMS, NO_RUNS, WORK, Job, portable
from fedpriv.studies.results import RunRecord, arithmetic, here, read_runs

RECORD_FILE = "record.json"
#: Of the summary of a plan that is refused: why, in words.
REFUSED = "refused"
NOT_RUN = "it has not been run yet"
#: What is computed for each round, and drawn over them.
ROUND = "round "
#: Where the jobs' own folders are, below the study's.
RUNS = "runs"


@dataclass(frozen=True)
class Failure:
    """A job that cannot be done, in words. record: of a plan whose options are refused, which no repetition mends."""

    job: Job
    words: str
    record: RunRecord | None = None


#: Of jobs: their records, or why there is none.
Found = Mapping[Job, RunRecord | Failure]
#: A job, what became of it, how many are done, of how many.
Told = Callable[[Job, RunRecord | Failure, int, int], None]


def find(job: Job, folder: Path) -> RunRecord | None:
    """The record of a finished job, whichever commit made it; the job's name is the digest of its options.
    None if missing or in an old format.
    """
    record = _read(folder / job.name / RECORD_FILE)
    return record if record is not None and record.form == FORMS[job.kind] else None


def _read(file: Path) -> RunRecord | None:
    try:
        return RunRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _write(record: RunRecord, folder: Path) -> None:
    (folder / record.name).mkdir(parents=True, exist_ok=True)
    write_atomic(folder / record.name / RECORD_FILE, record.model_dump_json() + "\n")


def carry_out(job: Job, folder: Path) -> RunRecord:
    """The record of a job, which is done now if it was not before; what `find` reads is written last.

    Raises what the job raises: `FedprivError`s, and KeyboardInterrupt after a checkpoint.
    """
    if (done := find(job, folder)) is not None:
        return done
    began, place = time.perf_counter(), here()
    path = folder / job.name
    figures = WORK[job.kind](job, path)
    run = read_run(path) if job.kind in ("train", "attack") else None
    summary = dict(run.summary or {}) if run else figures.pop("summary", {})
    if job.kind == "train":  # which may have been finished by an earlier commit
        place["commit"] = str(summary.get("commit", ""))
    seconds = max(time.perf_counter() - began, number(pick(summary, "timing", "rounds_s")) or 0.0)
    curve = [
        (row["round"], number(row.get("accuracy")), number(row.get("loss"))) for row in (run.rounds if run else ())
    ]
    norms = [(row["round"], number(row.get("update_norm"))) for row in (run.rounds if run else ())]
    rounds = [name for name in figures if name.startswith(ROUND)]
    norms += [(int(name.removeprefix(ROUND)), number(figures.pop(name))) for name in rounds]
    record = _record(
        job,
        summary,
        round(seconds, 3),
        place,
        figures={name: number(value) for name, value in figures.items()},
        curve=tuple(row for row in curve if row[1:] != (None, None)),
        norms=tuple((i, float(f"{x:.4g}")) for i, x in norms if x is not None and math.isfinite(x)),
    )
    _write(record, folder)
    return record


def _record(job: Job, summary: Mapping[str, Any], seconds: float, place: Mapping[str, Any], **found: Any) -> RunRecord:
    return RunRecord(
        name=job.name,
        kind=job.kind,  # type: ignore[arg-type]
        options=portable(job.options),
        seed=job.seed,
        command=job.command,
        summary=summary,
        seconds=seconds,
        form=FORMS[job.kind],
        arithmetic=arithmetic(),
        **place,
        **found,
    )


def carry_out_all(
    jobs: Sequence[Job],
    folder: Path,
    pool: ProcessPoolExecutor | None = None,
    told: Told = lambda job, result, done, of: None,
) -> dict[Job, RunRecord | Failure]:
    """Every job's record, or why there is none; several at a time in the processes of a `process_pool`, which several
    calls may share (a process takes seconds to start), or one after another in this one.

    ``told`` is called for each. A failure stops nothing else. An interruption (KeyboardInterrupt) lets the jobs at work
    write their checkpoints and is raised again; a later call goes on.
    """
    jobs = list(dict.fromkeys(jobs))
    results: dict[Job, RunRecord | Failure] = {}

    def done(job: Job, result: RunRecord | Failure) -> None:
        results[job] = result
        told(job, result, len(results), len(jobs))

    for job in jobs:
        if (record := find(job, folder)) is not None:
            done(job, _result(job, record))
    waiting = [job for job in jobs if job not in results]
    if pool is None:
        for job in waiting:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                result = _attempt(job, folder)
            done(job, result)
        return results
    with _no_ctrl_c():
        futures = {pool.submit(_attempt_here, job, folder): job for job in waiting}
    for future in as_completed(futures):
        try:
            done(futures[future], future.result())
        except BrokenProcessPool as error:
            raise RunFailed("a worker process died (out of memory?); the same command goes on") from error
    return results


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with an interruption: `stop.forwarded` lets each end its round, and it is waited for."""
    with stop.forwarded():
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_quieten)
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        pool.shutdown(wait=True)


def _quieten() -> None:
    """What runs print is for somebody who looks at one run. Libraries' warnings too were seen by then."""
    import sys
    import warnings

    warnings.simplefilter("ignore")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    os.environ["OMP_NUM_THREADS"], os.environ[VARIABLE] = "1", "quiet"
    end_with_parent()  # a worker whose parent was killed would wait for its next job for ever
    global _stops_by_keyboard
    _stops_by_keyboard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # a script's background
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """Where workers start: they begin with SIGINT blocked, until `_quieten` says what becomes of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


#: Of a worker: whether Ctrl-C ends its job.
_stops_by_keyboard = False


def _attempt_here(job: Job, folder: Path) -> RunRecord | Failure:
    """`_attempt` in a worker. Ctrl-C in a terminal reaches it too, and it must outlive that between jobs: a pool that
    loses a worker terminates the others, and these, who take that for a request, wait for their next job.
    """
    if _stops_by_keyboard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _attempt(job, folder)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _result(job: Job, record: RunRecord) -> RunRecord | Failure:
    refused = record.summary.get(REFUSED)
    return record if refused is None else Failure(job, str(refused), record)


def _attempt(job: Job, folder: Path) -> RunRecord | Failure:
    with stop.handled():
        try:
            return _result(job, carry_out(job, folder))
        except OptionError as error:
            if job.kind != "plan":
                return Failure(job, str(error))
            record = _record(job, {REFUSED: str(error)}, 0.0, here())
            _write(record, folder)
            return _result(job, record)
        except FedprivError as error:
            return Failure(job, str(error))
        except Exception as error:  # a mistake of ours in one job: the other hundred go on
            return Failure(job, f"{type(error).__name__}: {error}")


class Runs:
    """The jobs of a paper or of boards. What runs.parquet holds is done, also where the jobs' own folders are gone, as
    in a fresh checkout; what is marked there as superseded is not: its folder goes, and the job is carried out again.

    may_run=False: no run is made. What runs.parquet holds counts, also what is marked there (without that file: what
    the folders hold), and what needs no run is computed.
    made: what each job that was asked for gave; it is tried once. lines: what runs.parquet held.
    """

    def __init__(self, study: Path, may_run: bool = True, pool: ProcessPoolExecutor | None = None) -> None:
        self.folder, self.may_run, self.pool = study / RUNS, may_run, pool
        self.made: dict[Job, RunRecord | Failure] = {}
        self._said = 0.0
        try:
            self.lines = read_runs(study)
        except RunFolderError:  # none, or not to be read: the jobs are carried out
            self.lines = []
        self._known = {record.name: record for record in self.lines}
        for record in self.lines if may_run else ():
            there = _read(self.folder / record.name / RECORD_FILE)
            if record.superseded is None and there is None:
                _write(record, self.folder)
            elif record.superseded is not None and there == record.model_copy(update={"superseded": None}):
                shutil.rmtree(self.folder / record.name)

    def find(self, job: Job) -> RunRecord | None:
        if self.may_run or not self._known:
            return find(job, self.folder)
        record = self._known.get(job.name)
        return record if record is not None and record.form == FORMS[job.kind] else None

    def done(self, job: Job) -> bool:
        """Whether its record is there, or it is what a call without runs computes."""
        return isinstance(self.made.get(job), RunRecord) or self.find(job) is not None

    def do(self, stage: str, jobs: Sequence[Job]) -> Found:
        new = [job for job in dict.fromkeys(jobs) if job not in self.made]
        if not self.may_run:
            there = {job: self.find(job) for job in new}
            self.made |= {
                job: Failure(job, NOT_RUN) if one is None else _result(job, one) for job, one in there.items()
            }
            new = [job for job, one in there.items() if one is None and job.kind in NO_RUNS]
        self.made |= carry_out_all(new, self.folder, self.pool, lambda *what: self._say(stage, *what))
        return {job: self.made[job] for job in jobs}

    def _say(self, stage: str, job: Job, result: RunRecord | Failure, done: int, of: int) -> None:
        """A line, at most one in a second."""
        if done < of and time.monotonic() - self._said < 1.0:
            return
        self._said = time.monotonic()
        accuracy = None if isinstance(result, Failure) else number(pick(result.summary, "accuracy", "final"))
        words = result.words if isinstance(result, Failure) else percent(accuracy, absent="planned")
        say(f"{stage} {done}/{of}  {job.name}  {words}", flush=True)

    def records(self, used: Sequence[RunRecord]) -> list[RunRecord]:
        """What runs.parquet is to hold: without may_run also the lines that nothing rests on."""
        names = {record.name for record in used}
        return [*used, *(record for record in self.lines if not self.may_run and record.name not in names)]

    def effort(self, jobs: Sequence[Job], more: int = 0) -> str:
        """How many runs jobs are, and about how long those that are not done take, at the mean time of the study's
        training runs. more: runs whose options are not known yet.
        """
        trained = [one.seconds for one in self.lines if one.kind in ("train", "attack")]
        all_jobs, mean = set(jobs), fmean(trained) if trained else None
        left = more + sum(not self.done(job) for job in all_jobs)
        time_left = (
            "time unknown before the first run" if mean is None else f"about {left * mean / 60:.1f} core-minutes"
        )
        return f"{len(all_jobs) + more:,} runs, {left:,} of them to be made ({time_left})"


@contextmanager
def study_runs(study: Path, workers: int = 0, may_run: bool = True) -> Iterator[Runs]:
    """workers: processes (0: one per core; 1: this one). No two calls work in a folder at once."""
    pool = nullcontext() if workers == 1 else process_pool(workers or cores())
    with locked(study / RUNS), pool as processes:
        yield Runs(study, may_run, processes)
