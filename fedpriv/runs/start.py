"""The one place where a run is put together: data, model, method, engine, ledger, folder."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid
from flwr.supercore.exit import add_exit_handler

from fedpriv.common.doing import doing
from fedpriv.common.errors import OptionError, RunFailed, RunFolderError
from fedpriv.common.files import locked
from fedpriv.common.printing import say
from fedpriv.common.run_files import fitting
from fedpriv.common.stopping import Stopped, end_with_parent, stop
from fedpriv.common.versions import commit, kind_of_processor
from fedpriv.config.checks import doubts
from fedpriv.config.compose import read_config
from fedpriv.config.schema import Config
from fedpriv.engines.worker import Worker
from fedpriv.report.live.monitor import Monitor, watched
from fedpriv.report.live.task import task
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.other_options import said, with_operations
from fedpriv.runs.planning import make_plan
from fedpriv.runs.preparation import resolve, why_on_gpus
from fedpriv.runs.session import RESUME_SHOWN, Session


def start_run(config: Config, path: Path) -> dict[str, Any]:
    """A new run in an empty folder; returns its summary. Raises `FedprivError`s; what was computed is kept."""
    began = time.perf_counter()
    if config.dataset.name == "on_nodes":
        words = "the examples are on other machines: `flwr run` starts a deployment, here plan=true alone works"
        raise OptionError("dataset", "on_nodes", words)
    folder = RunFolder(path)
    if path.is_file():
        raise RunFolderError(f"{path}: is a file; allowed: a new folder, or an empty one")
    with locked(folder.path):
        folder.refuse_used()  # before any work
        with watched(config, folder.path) as monitor:
            return _prepare(config, folder, began, monitor, own_engine=True).run()


def _prepare(config: Config, folder: RunFolder, began: float, monitor: Monitor, own_engine: bool = False) -> Session:
    """Resolves and plans a new run and takes its folder. own_engine: the messages go through `config.engine`."""
    commit()  # now, not at the end of a long run: the checkout may move on
    chosen_here = own_engine and config.engine.name == "auto"
    with task("set-up"):
        config, worker, plan = resolve(config, folder.path)
    remark = None
    if chosen_here and config.engine.name == "ray":
        config, remark = _with_ray_or_without(config)
    if chosen_here and remark is None and (words := why_on_gpus()):
        remark = f"engine=auto took {words}"
    elif chosen_here and config.engine.name != "ray" and (address := os.environ.get("RAY_ADDRESS")):
        words = f"ignored RAY_ADDRESS={address}: engine=ray engine.address=... joins a cluster"
        remark = f"engine=auto took {config.engine.name} and {words}"
    for words in worker.data.dataset.remarks:  # exact counts of rows: for whoever holds them, and not for the report
        say(f"fedpriv: {words}", file=sys.stderr, flush=True)
    folder.begin(config, "; ".join(filter(None, (remark, *doubts(config), _alike(worker), _of_others(worker)))) or None)
    _know_examples(config, folder, worker)
    return Session(config, folder, worker, plan, began, monitor)


def _know_examples(config: Config, folder: RunFolder, worker: Worker) -> None:
    """Before a session: rounds that are to be repeated bit for bit need the same examples and kind of processor."""
    if config.privacy.rng == "seeded" and config.dataset.name != "on_nodes":
        kind = json.dumps(kind_of_processor())
        folder.mark_other_basis(examples=worker.data.dataset.train.digest(), processor=kind)


def _of_others(worker: Worker) -> str | None:
    """Of a model of the user's: whether its outputs for an example depend on those beside it."""
    if worker.config.model.name != "custom":
        return None
    model, random = worker.model, torch.Generator().manual_seed(0)
    examples = model.made_up(4, *worker.data.dataset.shape, random=random).to(model.theta.device)
    model.module.eval()
    with torch.no_grad():
        once, again = (model(examples) for _ in range(2))
        try:
            alone = torch.cat([model(row) for row in examples.split(1)])
            if not once.equal(again) or torch.allclose(once, alone, rtol=1e-3, atol=1e-3 * float(alone.abs().max())):
                return None
            found = "of an example depends on those beside it"
        except Exception as error:  # the user's code
            found = f"of an example alone raises {type(error).__name__}"
    words = f"what the model says {found}; where single examples are protected each is alone"
    return f"model.path={worker.config.model.path}: {words}"


def _alike(worker: Worker) -> str | None:
    """Of test pictures, which are public, how many hold little that could be learned; None under one in a hundred."""
    pictures = worker.data.dataset.test.inputs[worker.data.test]
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or not len(pictures):
        return None
    rows = pictures.reshape(len(pictures), -1)
    _, number = np.unique([hashlib.sha256(row.tobytes()).hexdigest() for row in rows], return_counts=True)
    least, most = rows.min(1), rows.max(1)
    counts = {
        "are equal to another": number[number > 1].sum(),
        "are of one grey": (least == most).sum(),
        "are nearly black (if they hold fewer bits than their files, set dataset.white_level)": (most < 16).sum(),
    }
    found = [f"{count} {words}" for words, count in counts.items() if 100 * count >= len(rows)]
    return f"of {len(rows)} test pictures, {', '.join(found)}" if found else None


def _with_ray_or_without(config: Config) -> tuple[Config, str | None]:
    """Starts Ray, which ``engine=auto`` chose; where it does not start, the engine that needs nothing, and a remark."""
    from fedpriv.engines.ray_pool import start_pool

    try:
        start_pool(config.engine, config.clients_per_round)
    except RunFailed as failure:
        engine = config.engine.model_copy(update={"name": "inprocess"})
        return config.model_copy(update={"engine": engine}), f"engine=auto took inprocess ({failure})"
    return config, None


def resume_run(path: Path, operations: Sequence[str] = ()) -> dict[str, Any]:
    """Goes on with an interrupted run from its newest checkpoint (or its start); ends as if nothing had happened.

    operations: overrides ``operations.*=...``, ``tracking.*=...``, of places, and ``engine=inprocess|ray`` with
    ``engine.workers=...``, which decide nothing of the result.
    """
    began = time.perf_counter()
    folder = RunFolder(path)
    before = read_config(path, said(operations))
    config = with_operations(before, operations, moves=True)
    with locked(folder.path):
        if folder.finished:
            words = f"extend={folder.path} num_rounds=... goes on, rerun={folder.path} repeats it"
            raise RunFolderError(f"{folder.path}: this run has finished; {words}")
        config = config.model_copy(update={"run_dir": str(folder.path)})  # the folder may have been moved
        with watched(config, folder.path) as monitor:
            with fitting(folder.path):
                session = _returned(config, folder, Worker(config), began, monitor)
            if config.engine.name != before.engine.name:
                session.remark(f"resumed on engine={config.engine.name}, after {before.engine.name}")
            return session.run()


def _returned(config: Config, folder: RunFolder, worker: Worker, began: float, monitor: Monitor) -> Session:
    """An interrupted run at its newest checkpoint."""
    commit()
    with task("resume", RESUME_SHOWN):
        checkpoint = folder.load_checkpoint(config)
        doing("planning: what the run will cost")
        plan = make_plan(config, worker)
        _know_examples(config, folder, worker)
        session = Session(config, folder, worker, plan, began, monitor, checkpoint, resumed=True)
    if folder.damaged and checkpoint:
        words = f"{'; '.join(folder.damaged)}: resumed from round {checkpoint.round}"
        say(f"fedpriv: {words}", file=sys.stderr, flush=True)
        session.remark(words)
    return session


def serve_flwr_run(grid: Grid, context: Context, config: Config) -> dict[str, Any]:
    """The server half inside `flwr run`: the grid is Flower's, the folder comes from ``run_dir``. Returns the summary.

    A folder that holds an interrupted run with the same options is taken up at its newest checkpoint, so whatever
    restarts a server in mid-run says the same as it said first. A signal first lets the round end, as anywhere; then
    Flower ends the process as it does.
    """
    if config.run_dir is None:
        raise OptionError("run_dir", "null", "inside `flwr run` the overrides name the run's folder, an absolute path")
    began = time.perf_counter()
    folder = RunFolder(Path(config.run_dir))
    with ended_by_flower(config.operations.stop_grace), locked(folder.path), watched(config, folder.path) as monitor:
        session = _taken_up(config, folder, began, monitor) or _prepare(config, folder, began, monitor)
        return session.serve_flower(grid)


def _taken_up(config: Config, folder: RunFolder, began: float, monitor: Monitor) -> Session | None:
    """The interrupted run in a folder; None where there is none. Raises `RunFolderError` for one of other options."""
    if folder.finished or not (folder.path / "config.yaml").exists():
        return None
    kept = read_config(folder.path, Config.model_fields).model_copy(
        update={"operations": config.operations, "tracking": config.tracking}
    )
    here = {name: getattr(config.dataset, name) for name in ("root", "cache", "download")}  # that the digest leaves out
    kept = kept.model_copy(update={"dataset": kept.dataset.model_copy(update=here)})
    resolved, worker, _ = resolve(config, folder.path)
    if kept.digest() != resolved.digest():
        raise RunFolderError(f"{folder.path} holds an interrupted run with other options: name another run_dir")
    return _returned(kept, folder, worker, began, monitor)


@contextmanager
def ended_by_flower(grace: float) -> Iterator[None]:
    """Work that a signal may stop gracefully within ``grace`` seconds, in a process whose handlers are Flower's.

    On the main thread our handlers take their place, and theirs get the signal afterwards. Elsewhere theirs are called
    first, and wait for us before anything is closed. Without the SuperLink's SuperExec, which started the process,
    Flower would ask a server that is gone for ever.
    """
    end_with_parent(grace)
    done = threading.Event()

    def wait() -> None:
        stop.request()
        stop.wait(done, grace)

    if threading.current_thread() is not threading.main_thread():
        add_exit_handler(wait, run_before_force_exit=True)
    try:
        with stop.handled(), stop.graceful(grace):
            yield
    except Stopped as stopped:
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(stopped.signum)
        raise
    finally:
        done.set()
