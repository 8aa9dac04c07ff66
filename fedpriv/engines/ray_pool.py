"""Ray itself and a pool of client actors, apart from the grid that uses them.

Light on purpose: starting Ray and importing torch in every actor takes longer than anything else before the first
round, so `prestart` lets it happen while the driver still imports, reads data and plans.
"""

from __future__ import annotations

import copyreg
import io
import logging
import os
import pickle
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import ray
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from fedpriv.common.command_line import importing
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.places import import_path, use_own_methods
from fedpriv.common.systems import cores
from fedpriv.config.schema import EngineConfig
from fedpriv.engines.keeping import keep, keeping, take_kept

#: On a loaded machine Ray's own time limit for its start can be too short.
TRIES = 2
#: Bytes up to which Ray sends arguments and results in its calls. Beyond, they go through the object stores of both
#: machines, which takes several milliseconds a piece.
INLINE = 2**22
#: Seconds without an answer after which a cluster's head is lost.
SILENT = 4.0


@ray.remote(max_restarts=0)
class ClientActor:
    """A process that answers messages for any client of any run; it keeps the newest run's data and model."""

    def __init__(self) -> None:
        with importing():  # torch and the rest, once per process, while the driver reads data and plans
            import fedpriv.engines.agreement
            import fedpriv.engines.inprocess
            import fedpriv.engines.worker  # noqa: F401

        self.app: Any = None
        self.config: Any = None

    def configure(self, raw_config: dict[str, Any], expected: dict[str, str], own: Path | None = None) -> Any:
        """Binds the actor to a run; returns its process id and `kind_of_processor`. own: the user's folder, if its
        methods count. Raises `RunFailed` where this machine's code or data are not what is ``expected``.
        """
        if own is not None:
            use_own_methods(own, at_once=True)
        from fedpriv.common.versions import kind_of_processor
        from fedpriv.config.compose import validate
        from fedpriv.engines.agreement import agree
        from fedpriv.engines.worker import make_apps

        self.config = validate(raw_config)
        agree(self.config, expected)
        _, self.app = make_apps(self.config)
        return os.getpid(), kind_of_processor()

    def handle(self, parcel: bytes, arrays: Any, turn: float) -> bytes:
        """Lets clients answer, slice by slice: packed (message, contexts) become packed (replies, contexts). ``arrays``
        come from the object store.

        After ``turn`` seconds no further slice of single messages begins: the answers so far go back, and the rest
        waits for any idle actor. A message for many clients is answered as a whole.
        """
        from fedpriv.client.memory import Shelf
        from fedpriv.common.cohort_messages import cohort_of_message
        from fedpriv.engines.grid import client_of
        from fedpriv.engines.inprocess import answer_for_all, answers, slices

        began = time.monotonic()
        done: list[Any] = []
        asked = pickle.loads(parcel)
        messages = [message for message, _ in asked]
        for message in messages if arrays is not None else ():
            message.content["arrays"] = arrays
        if (clients := cohort_of_message(messages[0])) is not None:
            contexts, shelf = asked[0][1], Shelf()
            for client, context in zip(clients, contexts, strict=True):
                if (memory := context.shelf.load(client)) is not None:
                    shelf.keep((client,), memory)
                context.shelf = shelf
            parts = slices(self.config, clients, int)
            return packed([([answer_for_all(self.config, messages[0], part, shelf) for part in parts], contexts)])
        for some in slices(self.config, messages, client_of):
            pairs = list(zip(some, [context for _, (context,) in asked[len(done) :]], strict=False))
            replies = answers(self.config, pairs, self.app)
            done += [([reply], [context]) for reply, (_, context) in zip(replies, pairs, strict=True)]
            if time.monotonic() - began > turn:
                break
        return packed(done)


def packed(value: object) -> bytes:
    """Messages and contexts, for a worker of ours or from one. `pickle.loads` is the inverse."""
    import torch

    pickler = pickle.Pickler(file := io.BytesIO(), pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table | {torch.Tensor: _parts}
    pickler.dump(value)
    return file.getvalue()


def _parts(tensor: Any) -> tuple[Any, tuple[Any, ...]]:
    """What makes a tensor again, bit for bit: torch's own way takes five times as long."""
    if tensor.dim() == 0:
        return _tensor, (None, tensor.dtype, tensor.item())
    array = tensor.numpy()
    return _tensor, (bytearray(array), array.dtype.char) if array.ndim == 1 else (array, None)


def _tensor(content: Any, kind: Any, number: float | None = None) -> Any:
    import numpy as np
    import torch

    if number is not None:
        return torch.tensor(number, dtype=kind)
    return torch.from_numpy(content if kind is None else np.frombuffer(content, kind))


class Pool:
    """Actors that wait for messages. ``start`` is called once, ``ready`` waits for it."""

    def __init__(self, engine: EngineConfig, most: int) -> None:
        self.engine, self.most = engine, most
        self.idle: deque[Any] = deque()
        self.spare: list[Any] = []  # workers of earlier runs that this one does not need
        self.started_ray = self.lost = False
        self.cluster = ""  # the address of the Ray that this pool started
        self.workers = 0
        self._error: BaseException | None = None
        self._ready, self._closed = threading.Event(), threading.Event()

    def start(self) -> Pool:
        threading.Thread(target=self._start, daemon=True).start()
        return self

    def ready(self) -> None:
        """Returns when Ray runs and the actors are on their way; raises what went wrong."""
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _start(self) -> None:
        try:
            while _leaving:
                _leaving.pop().join()
            if not ray.is_initialized():
                _start_ray(self.engine)
                self.started_ray = True
                self.cluster = _cluster()
            self._fill()
        except BaseException as error:  # handed to the thread that waits in `ready`
            self._error = error
        self._ready.set()
        # Ray asks the kernel to end its processes with the thread that started them, so this one stays.
        self._closed.wait()

    def _fill(self) -> None:
        self.workers = self.engine.workers or self._default_workers()
        while len(self.idle) > self.workers:
            self.spare.append(self.idle.pop())
        while len(self.idle) < self.workers:
            self.idle.append(self.new_actor())

    def new_actor(self) -> Any:
        if self.spare:
            return self.spare.pop()
        gpus = self.engine.gpus_per_worker if self._on_gpus() else 0
        actor: Any = ClientActor
        return actor.options(num_cpus=self.engine.threads_per_client, num_gpus=gpus).remote()

    def _on_gpus(self) -> bool:
        return self.engine.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0

    def _default_workers(self) -> int:
        """One worker per GPU slice, or per core, and never more than a round has clients."""
        found = slots(
            ray.nodes(), self.engine.threads_per_client, self.engine.gpus_per_worker if self._on_gpus() else 0
        )
        return max(1, min(found, self.most))

    def why_lost(self, nobody: bool) -> str | None:
        """Why no worker will answer any more, in words; None while the cluster's head answers and, where ``nobody`` is
        at work any more, there are machines for workers. Waits for a head that is silent.
        """
        address, began = self.engine.address or "", time.monotonic()
        where = f"engine.address={address}: " if address else ""
        head = address.removeprefix("ray://") if address.startswith("ray://") else _cluster()
        while not _answers(head):
            if time.monotonic() - began > SILENT:
                self.lost = True
                return f"{where}the head of the Ray cluster ({head}) does not answer any more"
            time.sleep(0.2)
        if nobody and not slots(ray.nodes(), self.engine.threads_per_client, 0):
            return f"{where}no machine of the Ray cluster ({head}) is left for a worker"
        return None

    def kill(self, actor: Any) -> None:
        """Ends a worker; without a head nobody could."""
        if not self.lost:
            ray.kill(actor)

    def suits(self, engine: EngineConfig) -> bool:
        """Whether the Ray that this pool started is still there and has workers such as ``engine`` wants, or room."""
        if not self.started_ray or _worker_options(self.engine) != _worker_options(engine):
            return False
        if not ray.is_initialized() or _cluster() != self.cluster:
            return False
        return (engine.workers or 1) * engine.threads_per_client <= ray.cluster_resources().get("CPU", 0)

    def serve_again(self, engine: EngineConfig, most: int) -> Pool:
        """For another run."""
        self.engine, self.most = engine, most
        self._fill()
        return self

    def close(self) -> None:
        """At the end of a run: the pool ends, or waits for the next run (`kept_between_runs`)."""
        if keeping() and self.started_ray:
            keep(self)
        else:
            self.end()

    def end(self) -> None:
        """Without the Ray that it started there is nothing left to end, and another's is left alone."""
        if self.lost:  # leaving takes seconds; the process waits for it at its end
            _leaving.append(threading.Thread(target=ray.shutdown))
            _leaving[-1].start()
        elif ray.is_initialized() and self.cluster in ("", _cluster()):
            for actor in (*self.idle, *self.spare):
                ray.kill(actor)
            if self.started_ray:
                ray.shutdown()
                read_token()
        self.idle.clear()
        self.spare.clear()
        self._closed.set()


def slots(nodes: Sequence[Mapping[str, Any]], threads: int, gpus: float) -> int:
    """How many workers of ``threads`` cores and a share ``gpus`` of one GPU (0: none) fit on the machines that
    `ray.nodes` lists. No worker spans two machines or two GPUs.
    """
    found = 0
    for node in nodes:
        if not node["Alive"]:
            continue
        fitting = int(node["Resources"].get("CPU", 0) // threads)
        if gpus:
            fitting = min(fitting, int(node["Resources"].get("GPU", 0)) * int(1 / gpus + 1e-9))
        found += fitting
    return found


def _cluster() -> str:
    return str(ray.get_runtime_context().gcs_address)


def _answers(address: str) -> bool:
    """Whether a cluster's head takes a connection at ``host:port``."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=SILENT / 2).close()
    except OSError:
        return False
    return True


_prestarted: list[Pool] = []
_leaving: list[threading.Thread] = []  # a cluster whose head is lost


def _kept_or_new(engine: EngineConfig, most: int) -> Pool:
    kept = take_kept()
    if isinstance(kept, Pool) and kept.suits(engine):
        return kept.serve_again(engine, most)
    if kept is not None:
        kept.end()
    return Pool(engine, most).start()


def prestart(engine: EngineConfig, most: int) -> None:
    """Starts a pool in the background; the next `take_pool` gets it."""
    _prestarted.append(_kept_or_new(engine, most))


def _worker_options(engine: EngineConfig) -> tuple[object, ...]:
    return engine.address, engine.device, engine.threads_per_client, engine.gpus_per_worker


def _start_options(engine: EngineConfig) -> tuple[object, ...]:
    return engine.address, engine.workers, engine.threads_per_client, engine.gpus_per_worker


def start_pool(engine: EngineConfig, most: int) -> None:
    """As `prestart`, but returns when Ray runs. Raises `RunFailed` where it does not start."""
    pool = _kept_or_new(engine, most)
    pool.ready()
    _prestarted.append(pool)


def take_pool(engine: EngineConfig, most: int) -> Pool:
    """A pool that is ready: the prestarted one if it was started as this engine wants it."""
    early = _prestarted.pop() if _prestarted else None
    pool = early if early and _start_options(early.engine) == _start_options(engine) else _kept_or_new(engine, most)
    pool.ready()
    return pool


def _start_ray(engine: EngineConfig) -> None:
    """Starts Ray on this machine, or joins the cluster at `engine.address`."""
    path = os.pathsep.join(import_path())
    variables = {"PYTHONPATH": path, "RAY_max_direct_call_object_size": str(INLINE)}
    options: dict[str, Any] = {
        "job_config": job_config(),
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
    }
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future behaviour; silences a tip
    if engine.address:
        options |= {"address": engine.address, "runtime_env": {"env_vars": dict(variables)}}
        # Here alone: Ray would end this process a minute after the head is lost; `Pool.why_lost` says so before.
        variables |= {"RAY_gcs_rpc_server_reconnect_timeout_s": str(10**6)}
        del variables["PYTHONPATH"]
    else:  # "local": without an address Ray joins, or waits for, whatever cluster was last started on this machine
        number = max(cores(), (engine.workers or 1) * engine.threads_per_client)
        options |= {"address": "local", "num_cpus": number}
    for last in [False] * (TRIES - 1) + [True]:
        try:
            if engine.address:
                _refuse_dead_address(engine.address)
            with _inherited(**variables), nullcontext() if engine.address else for_this_run_alone():
                started = ray.init(**options)
            if not engine.address:
                _private(started)
            return
        except ConnectionError as error:
            if engine.address:
                raise OptionError("engine.address", engine.address, f"no Ray cluster answers ({error})") from None
            failure: Exception = error
        except Exception as error:
            failure = error
        ray.shutdown()  # what had started of it
        if last:
            reason = next(iter(str(failure).splitlines()), "") or type(failure).__name__
            words = f"engine=ray: Ray did not start, tried {TRIES} times ({reason}); engine=inprocess works without Ray"
            raise RunFailed(words) from failure


def _private(started: Any) -> Any:
    """What ``ray.init`` has started; to its folder of logs and sockets Ray admits every user of the machine."""
    with suppress(OSError):
        os.chmod(started.address_info["session_dir"], 0o700)
    return started


@contextmanager
def for_this_run_alone() -> Iterator[None]:
    """Context in which Ray is started for this process alone. Its processes listen on all addresses of the machine, and
    run the code of whoever connects: with a new token in the environment that they inherit, of nobody else.
    """
    with _inherited(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32)):
        read_token()
        yield


def read_token() -> None:
    """Ray reads the variables when it is imported: it is to read them again."""
    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")


class _NoPlaces(list[str]):
    def extend(self, places: Iterable[str]) -> None:
        pass


def job_config() -> Any:
    """Of workers whose import path is as given: Ray would put the working directory before all libraries."""
    job = ray.job_config.JobConfig()
    job._py_driver_sys_path = _NoPlaces()
    return job


@contextmanager
def path_as_given() -> Iterator[None]:
    """Context in which others, as Flower, start Ray with `job_config`."""
    init = ray.init
    ray.init = lambda *given, **named: _private(init(*given, job_config=job_config(), **named))
    try:
        with nullcontext() if ray.is_initialized() else for_this_run_alone():
            yield
    finally:
        ray.init = init
        if not ray.is_initialized():
            read_token()


@contextmanager
def _inherited(**variables: str) -> Iterator[None]:
    """Variables that processes started meanwhile inherit, and theirs. A worker that inherits its path is started with
    Ray; one that gets it from a ``runtime_env`` waits for the agent that makes such an environment.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _refuse_dead_address(address: str) -> None:
    """Raises ConnectionError at once where nothing listens at ``host:port``; Ray would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address)
    if found:
        try:
            socket.create_connection((found[1], int(found[2])), timeout=10).close()
        except OSError as error:
            raise ConnectionError(error.strerror or str(error)) from None
