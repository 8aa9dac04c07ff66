"""The runs of a study: each one once, several at a time, taken up where they were left.

A job is named by what decides its result, so a study that is called again finds what is done, resumes what was
broken off, and runs what is new or was changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedpriv.common.command_line import guarded
from fedpriv.common.errors import FedprivError, RunFailed, RunFolderError
from fedpriv.common.files import write_atomic
from fedpriv.common.stopping import stop
from fedpriv.common.versions import code_digest
from fedpriv.config.schema import KNOWN_SETS
from fedpriv.report.reading import read_run
from fedpriv.report.words import number, pick
from fedpriv.studies.provenance import here
from fedpriv.studies.results import RunRecord

#: Of every job: nothing that only a person who looks at one run needs, and one core each.
QUIET = ("engine=inprocess", "engine.threads_per_client=1", "operations.report=false")

RECORD_FILE = "record.json"

#: What a record of each kind holds; raised where `_WORK` writes something new, so that older records are made again.
FORMS = {"train": 1, "plan": 1, "dme": 1, "audit": 2, "attack": 2}


@dataclass(frozen=True, eq=False)
class Job:
    """``kind``: a training run (train), what one would cost (plan), an audit of its release code (audit), a run and an
    attack on its model (attack), or mean estimation by all quantisers (dme).

    options: overrides of `python -m fedpriv` (dme: its own options), without the seed. extra: options of the audit, or
    the attack's name. Two jobs are the same where their names are, however their options were written.
    """

    kind: str
    options: tuple[str, ...]
    seed: int
    extra: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def name(self) -> str:
        """A folder name: the method, and a digest of everything that decides the result."""
        chosen = dict(option.split("=", 1) for option in self.options if "=" in option)
        what = self.kind if self.kind == "dme" else f"{self.kind}-{chosen.get('strategy', 'default')}"
        return f"{what}-{_digest(self.kind, self.options, self.extra)}-s{self.seed}"

    @property
    def overrides(self) -> list[str]:
        return [*self.without_seed, f"seed={self.seed}"]

    @property
    def without_seed(self) -> tuple[str, ...]:
        return (*self.options, *_quiet(self.options))

    @property
    def command(self) -> str:
        """What a person types for the same result."""
        words = [f"'{option}'" if set(option) & set("{}[]$ ") else option for option in portable(self.options)]
        module = {"plan": "fedpriv plan=true", "audit": "fedpriv.audit", "dme": "fedpriv.dme"}.get(self.kind, "fedpriv")
        extra = self.extra if self.kind == "audit" else ()
        return " ".join(["python -m", module, *words, f"seed={self.seed}", *extra])


@lru_cache(maxsize=4096)
def _digest(kind: str, options: tuple[str, ...], extra: tuple[str, ...]) -> str:
    """Of all that decides a result but the seed: the composed options (composing takes a fifth of a second)."""
    if kind == "dme":
        content: Any = options
    else:
        from fedpriv.config.compose import compose

        config = compose([*options, *_quiet(options)]).to_dict()
        if config["dataset"]["name"] not in KNOWN_SETS:  # which pictures these are, only the folder says
            config["dataset"]["pictures"] = _contents(str(config["dataset"]["root"]))
        for place in ("root", "cache", "download"):
            config["dataset"].pop(place)
        if (split := config["dataset"]["split"]) is not None:  # its rows count, wherever the file is
            with suppress(OSError):
                config["dataset"]["split"] = hashlib.sha256(Path(split).read_bytes()).hexdigest()
        content = {name: value for name, value in config.items() if name not in ("operations", "tracking", "seed")}
    text = json.dumps([kind, extra, content], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@lru_cache(maxsize=64)
def _contents(root: str) -> str:
    """A digest of a folder's files: their names and sizes, wherever the folder is."""
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(root).rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def _quiet(options: Sequence[str]) -> list[str]:
    given = {option.split("=")[0] for option in options}
    return [option for option in QUIET if option.split("=")[0] not in given]


#: Options that say where something is on this machine, and decide nothing.
PLACES = ("dataset.root", "dataset.cache", "dataset.download")


def portable(options: Sequence[str]) -> tuple[str, ...]:
    """The options without those that are true on one machine only; of a split's file, its name."""
    split = "dataset.split="
    named = (f"{split}{Path(o.removeprefix(split)).name}" if o.startswith(split) else o for o in options)
    return tuple(option for option in named if option.split("=")[0] not in PLACES)


# --- one job -----------------------------------------------------------------------------------------------


def find(job: Job, folder: Path) -> RunRecord | None:
    """The record of a job that is done. One that other code made is none: a result of today's code is asked for."""
    file = folder / job.name / RECORD_FILE
    try:
        record = RunRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    current = record.versions.get("code") == code_digest() and record.form == FORMS[job.kind]
    return record if current else None


def carry_out(job: Job, folder: Path) -> RunRecord:
    """The record of a job, which is done now if it was not before; what `find` reads is written last.

    Raises what the job raises: `FedprivError`s, and KeyboardInterrupt after a checkpoint.
    """
    done = find(job, folder)
    if done is not None:
        return done
    began, place = time.perf_counter(), here()  # of the code that is loaded: the checkout may move on meanwhile
    path = folder / job.name
    figures = _WORK[job.kind](job, path)
    run = read_run(path) if job.kind in ("train", "attack") else None
    summary = dict(run.summary or {}) if run else figures.pop("summary", {})
    record = RunRecord(
        name=job.name,
        kind=job.kind,  # type: ignore[arg-type]
        options=portable(job.options),
        seed=job.seed,
        command=job.command,
        summary=summary,
        figures={name: number(value) for name, value in figures.items()},
        curve=tuple(_curve(run.rounds)) if run else (),
        norms=tuple(_norms(run.rounds)) if run else (),
        seconds=round(max(time.perf_counter() - began, number(pick(summary, "timing", "rounds_s")) or 0.0), 3),
        form=FORMS[job.kind],
        **place,
    )
    path.mkdir(parents=True, exist_ok=True)
    write_atomic(path / RECORD_FILE, record.model_dump_json() + "\n")
    return record


def _curve(rounds: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float | None, float | None]]:
    for row in rounds:
        accuracy, loss = number(row.get("accuracy")), number(row.get("loss"))
        if accuracy is not None or loss is not None:
            yield row["round"], accuracy, loss


def _norms(rounds: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float]]:
    for row in rounds:
        if (length := number(row.get("update_norm"))) is not None and math.isfinite(length):
            yield row["round"], float(f"{length:.4g}")


def _train(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.config.compose import compose
    from fedpriv.runs.start import resume_run, start_run

    if (path / "summary.json").exists() and pick(read_run(path).summary, "versions", "code") == code_digest():
        return {}
    if (path / "summary.json").exists():  # of other code
        shutil.rmtree(path)
    elif (path / "config.yaml").exists():
        try:
            resume_run(path)
            return {}
        except RunFolderError:  # begun by other code or with other libraries: its rounds cannot be repeated
            shutil.rmtree(path)
    start_run(compose(job.overrides), path)
    return {}


def _attack(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.attacks.run import attack_run

    _train(job, path)
    (name,) = job.extra
    file = path / "attacks" / f"{name}.json"
    file.unlink(missing_ok=True)  # of an earlier call, which this one's failure must not be taken for
    code = guarded(lambda: attack_run(str(path), name, {}))
    stop.check()
    if not file.exists():
        raise RunFailed(f"the attack {name} ended with exit code {code}")
    return attack_figures(json.loads(file.read_text(encoding="utf-8")))


def attack_figures(kept: Mapping[str, Any]) -> dict[str, float]:
    """Of a file of ``attacks/``: the balanced accuracy in percent with its interval, where the controls passed."""
    figures = {"shown": float(bool(kept["shown"]))}
    if kept["shown"]:
        accuracy = kept["figures"]["balanced_accuracy"]
        figures |= {f"attack_accuracy{end}": 100 * accuracy[key] for end, key in ENDS.items()}
        figures["attack_auc"] = kept["figures"]["auc"]["value"]
    return figures


ENDS = {"": "value", "_low": "low", "_high": "high"}


def _plan(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.common.files import json_number
    from fedpriv.config.compose import compose
    from fedpriv.report.words import THREAT_KEYS
    from fedpriv.runs.planning import plan_elsewhere
    from fedpriv.runs.preparation import resolve

    config, _, plan = resolve(compose(job.overrides), None)
    privacy = {key: getattr(plan.threat, key, None) for key in THREAT_KEYS} | {
        "delta": config.privacy.delta,
        "variant": config.privacy.variant,
        "claimed_epsilon": json_number(plan.claim.epsilon) if plan.claim else None,
        "claimed_scope": plan.claim.scope if plan.claim else None,
        "claimed_equation": plan.claim.equation if plan.claim else None,
        "verified_epsilon": json_number(plan.verified_epsilon),
        "verified_median": json_number(plan.verified_median),
        "accountant": plan.accountant,
        "reasons": list(plan.reasons),
        "others": [
            {key: getattr(other.threat, key, config.privacy.delta) for key in THREAT_KEYS}
            | {
                "verified_epsilon": json_number(other.verified_epsilon),
                "verified_median": json_number(other.verified_median),
                "accountant": other.accountant,
                "reasons": list(other.reasons),
            }
            for other in plan_elsewhere(config)
        ],
    }
    summary = {
        "strategy": config.strategy.name,
        "dataset": config.dataset.name,
        "model": config.model.name,
        "rounds": config.num_rounds,
        "num_clients": config.num_clients,
        "clients_per_round": config.clients_per_round,
        "privacy": privacy,
        "traffic": {"bytes_up": plan.bytes_up, "bytes_down": plan.bytes_down},
    }
    return {"summary": summary}


def _audit(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.attacks.release_audit import audit_config
    from fedpriv.common.files import json_number
    from fedpriv.config.compose import compose

    given = dict(option.split("=", 1) for option in job.extra)
    config = compose(job.overrides)
    participations = int(given["participations"]) if "participations" in given else None
    scopes = audit_config(
        config,
        trials=int(given.get("trials", 200_000)),
        confidence=float(given.get("confidence", 0.99)),
        seed=job.seed,
        participations=participations,
    )
    figures: dict[str, Any] = {}
    words = []
    for scope in scopes:
        short = scope.name.replace(" ", "_")
        figures |= {f"audited_{short}": scope.audit.epsilon_lower, f"verified_{short}": scope.verified}
        figures |= {} if scope.claimed is None else {f"claimed_{short}": scope.claimed}
        words.append(f"{scope.name}: {scope.verdict}")
    largest = max(scopes, key=lambda scope: scope.audit.epsilon_lower)
    privacy = {
        "delta": config.privacy.delta,
        "variant": config.privacy.variant,
        "claimed_epsilon": None if largest.claimed is None else json_number(largest.claimed),
        "verified_epsilon": json_number(largest.verified),
        "audited_epsilon": json_number(largest.audit.epsilon_lower),
        "audited_confidence": largest.audit.confidence,
        "audited_trials": largest.audit.trials,
        "reasons": words,
    }
    summary = {"strategy": config.strategy.name, "dataset": config.dataset.name, "privacy": privacy}
    refuted = any(scope.verdict.startswith("refutes") for scope in scopes)
    return {"summary": summary, "refuted": float(refuted), **figures}


def _dme(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.studies.mean_estimation import parse_options, table

    options = parse_options([*job.options, f"seed={job.seed}", f"out={path / 'dme'}"])
    figures: dict[str, Any] = {}
    for row in table(options):
        figures |= {f"{row.quantiser} error": row.error, f"{row.quantiser} epsilon": row.epsilon_server}
    return {"summary": {"strategy": "dme", "privacy": {}}, **figures}


_WORK: dict[str, Callable[[Job, Path], dict[str, Any]]] = {
    "train": _train,
    "plan": _plan,
    "audit": _audit,
    "attack": _attack,
    "dme": _dme,
}


# --- many jobs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """A job that cannot be done, in words. wrong: an option of it is refused, which no repetition mends."""

    job: Job
    words: str


def carry_out_all(
    jobs: Sequence[Job],
    folder: Path,
    workers: int = 0,
    told: Callable[[Job, RunRecord | Failure, int, int], None] = lambda job, result, done, of: None,
    pool: ProcessPoolExecutor | None = None,
) -> dict[Job, RunRecord | Failure]:
    """Every job's record, or why there is none; several at a time in processes of their own (workers=0: one per core;
    1: in this process), or in those of ``pool`` (`process_pool`), which several calls may share: a process takes
    seconds to start.

    told(job, result, how many are done, of how many) is called for each. A failure stops nothing else. An interruption
    (KeyboardInterrupt) lets the jobs at work write their checkpoints and is raised again; a later call goes on.
    """
    jobs = list(dict.fromkeys(jobs))
    results: dict[Job, RunRecord | Failure] = {}
    for job in jobs:
        if (done := find(job, folder)) is not None:
            results[job] = done
            told(job, done, len(results), len(jobs))
    waiting = [job for job in jobs if job not in results]
    if not waiting:
        return results
    if workers == 1 and pool is None:
        for job in waiting:
            with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
                results[job] = _attempt(job, folder)
            told(job, results[job], len(results), len(jobs))
        return results
    own = nullcontext(pool) if pool else process_pool(min(workers or os.cpu_count() or 1, len(waiting)))
    with own as pool:
        futures: dict[Future[RunRecord | Failure], Job] = {pool.submit(_attempt, job, folder): job for job in waiting}
        while futures:
            for future in wait(futures, return_when=FIRST_COMPLETED).done:
                job = futures.pop(future)
                try:
                    results[job] = future.result()
                except BrokenProcessPool as error:
                    raise RunFailed("a worker process died (out of memory?); the same command goes on") from error
                told(job, results[job], len(results), len(jobs))
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
    os.environ["OMP_NUM_THREADS"] = "1"
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """A worker whose parent was killed would wait for its next job for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _attempt(job: Job, folder: Path) -> RunRecord | Failure:
    with stop.handled():
        try:
            return carry_out(job, folder)
        except FedprivError as error:
            return Failure(job, str(error))
        except Exception as error:  # a mistake of ours in one job: the other hundred go on
            return Failure(job, f"{type(error).__name__}: {error}")
