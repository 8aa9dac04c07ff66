"""Flower's own Simulation Runtime: conformity with the ecosystem.

Contexts do not come back from it, so clients keep their memory in files of the run's folder, which a checkpoint
copies and a resumed run puts back.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from fedpriv.client.memories import Book, Memories, collect_entries
from fedpriv.client.memory import FileStore
from fedpriv.common.doing import counted
from fedpriv.common.places import ROOT
from fedpriv.common.systems import cores
from fedpriv.config.schema import Config
from fedpriv.engines.grid import memory_folder
from fedpriv.engines.keeping import end_kept
from fedpriv.engines.worker import Serve, make_apps
from fedpriv.privacy.events import Entries


class FileMemories:
    """The memories of all clients of a run, as files: what an own grid does with contexts."""

    def __init__(self, config: Config) -> None:
        self.folder = memory_folder(config)

    def collect_entries(self, clients: Iterable[int], book: Book = lambda entries: None) -> Entries:
        """As `LocalGrid.collect_entries`."""
        return collect_entries((FileStore(self.folder, client) for client in clients), book)

    def memories(self) -> Memories:
        clients = sorted(int(path.stem) for path in self.folder.glob("*.safetensors"))
        return Memories(clients, lambda client: self._file(client).read_bytes())

    def restore(self, memories: Mapping[int, bytes]) -> None:
        for path in self.folder.glob("*.safetensors"):
            if int(path.stem) not in memories:
                path.unlink()
        for client in counted("putting back clients", list(memories)):
            FileStore(self.folder, client).write(memories[client])

    def _file(self, client: int) -> Path:
        return self.folder / f"{client}.safetensors"


def run_on_flower(config: Config, serve: Serve) -> None:
    """Runs the app on Flower's Simulation Runtime; returns when the server half has finished.

    An exception or an interruption of the server half is raised here.
    """
    interruptions: list[KeyboardInterrupt] = []

    def guarded(grid: Grid, context: Context) -> None:
        try:
            serve(grid, context)
        except KeyboardInterrupt as stop:  # the runtime's thread would print it and say that all is well
            interruptions.append(stop)

    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from flwr.simulation import run_simulation

    from fedpriv.engines.ray_pool import path_as_given

    end_kept()  # the runtime would join that Ray, with its number of cores
    workers = config.engine.workers or cores()
    threads = config.engine.threads_per_client
    gpus = config.engine.gpus_per_worker if config.engine.device == "cuda" else 0.0  # none: Ray hides them
    backend: dict[str, Any] = {
        "client_resources": {"num_cpus": threads, "num_gpus": gpus},
        "init_args": {
            "address": "local",  # otherwise Ray joins whatever cluster runs on this machine, and refuses num_cpus
            "num_cpus": workers * threads,
            "include_dashboard": False,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        },
    }
    server_app, client_app = make_apps(config, guarded)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), path_as_given():
        warnings.simplefilter("ignore")
        run_simulation(server_app, client_app, config.num_clients, backend_config=backend)
    if interruptions:
        raise interruptions[0]
