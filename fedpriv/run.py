"""The one place where a run is put together: data, model, method, engine, ledger, folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from fedpriv.compose import read_config
from fedpriv.config import Config
from fedpriv.errors import OptionError, RunFolderError
from fedpriv.files import locked
from fedpriv.planning import make_plan
from fedpriv.preparation import resolve
from fedpriv.run_folder import RunFolder
from fedpriv.session import Session
from fedpriv.worker import Worker


def start_run(config: Config, path: Path) -> dict[str, Any]:
    """A new run in an empty folder; returns its summary. Raises `FedprivError`s; what was computed is kept."""
    began = time.perf_counter()
    if config.dataset.name == "on_nodes":
        words = "the pictures are on other machines: `flwr run` starts a deployment, here plan=true alone works"
        raise OptionError("dataset", "on_nodes", words)
    folder = RunFolder(path)
    with locked(folder.path):
        folder.refuse_used()  # before any work
        return _prepare(config, folder, began).run()


def _prepare(config: Config, folder: RunFolder, began: float) -> Session:
    """Resolves and plans a new run and takes its folder."""
    config, worker, plan = resolve(config, folder.path)
    folder.begin(config)
    if config.dataset.name != "on_nodes":  # whose labels no server knows
        from fedpriv.data.picture import draw_label_distribution  # matplotlib: a second that `plan` need not wait

        draw_label_distribution(worker.data, folder.path / "labels.png")
    return Session(config, folder, worker, plan, began)


def resume_run(path: Path) -> dict[str, Any]:
    """Goes on with an interrupted run from its newest checkpoint (or its start); ends as if nothing had happened."""
    began = time.perf_counter()
    folder = RunFolder(path)
    config = read_config(path)
    with locked(folder.path):
        if folder.finished:
            raise RunFolderError(f"{folder.path}: this run has finished; rerun={folder.path} repeats it")
        config = config.model_copy(update={"run_dir": str(folder.path)})  # the folder may have been moved
        worker = Worker(config)
        return _returned(config, folder, worker, began).run()


def _returned(config: Config, folder: RunFolder, worker: Worker, began: float) -> Session:
    """An interrupted run at its newest checkpoint."""
    return Session(config, folder, worker, make_plan(config, worker), began, folder.load_checkpoint(config), True)


def serve_flwr_run(grid: Grid, context: Context, config: Config) -> None:
    """The server half inside `flwr run`: the grid is Flower's, the folder comes from ``run_dir``.

    A folder that holds an interrupted run with the same options is taken up at its newest checkpoint, so whatever
    restarts a server in mid-run says the same as it said first.
    """
    if config.run_dir is None:
        raise OptionError("run_dir", "null", "inside `flwr run` the overrides name the run's folder, an absolute path")
    began = time.perf_counter()
    folder = RunFolder(Path(config.run_dir))
    with locked(folder.path):
        session = _taken_up(config, folder, began) or _prepare(config, folder, began)
        session.serve_and_finish(grid)


def _taken_up(config: Config, folder: RunFolder, began: float) -> Session | None:
    """The interrupted run in a folder; None where there is none. Raises `RunFolderError` for one of other options."""
    if folder.finished or not (folder.path / "config.yaml").exists():
        return None
    kept = read_config(folder.path)
    resolved, worker, _ = resolve(config, folder.path)
    if kept.digest() != resolved.digest():
        raise RunFolderError(f"{folder.path} holds an interrupted run with other options: name another run_dir")
    return _returned(kept, folder, worker, began)


def config_for_rerun(path: Path) -> Config:
    """The configuration of a run, for a new folder."""
    return read_config(path).model_copy(update={"run_dir": None})
