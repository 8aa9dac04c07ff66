"""The Flower app: ServerApp, ClientApp, and the adapter between messages and NumPyClient calls.

The same two apps run on every engine. The adapter is the only code through which anything leaves a client: it
catches every exception, attaches diagnostics in simulation only, and lets planned faults happen there.
"""

from __future__ import annotations

import logging
import shlex
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedpriv.client import BudgetSpent, Client, StaleRequest, UnsafeClipNorm, UnsafeNoise
from fedpriv.config import Config
from fedpriv.errors import OptionError
from fedpriv.records import (
    ATTEMPT,
    EXCHANGE,
    ROUND,
    STATISTICS,
    TRAIN,
    Instructions,
    Refusal,
    blobs_content,
    identity_content,
    read_instructions,
    refusal,
    reply_content,
    statistics_content,
    unpack_vector,
)
from fedpriv.state import ContextStore, FileStore, MemoryStore
from fedpriv.worker import memory_folder, worker_for

if TYPE_CHECKING:
    from fedpriv.shared_bits import Identity

log = logging.getLogger("fedpriv")

Serve = Callable[[Grid, Context], None]


def make_client_app(config_of: Callable[[Context], Config]) -> ClientApp:
    """A ClientApp whose messages reach the configured method's client half."""
    app = ClientApp()

    @app.query()
    def identify(message: Message, context: Context) -> Message:
        return Message(identity_content(_partition(context)), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _guarded(_train, config_of, message, context)

    return app


def make_apps(config: Config, serve: Serve | None = None) -> tuple[ServerApp, ClientApp]:
    """Both halves for one configuration. ``serve`` is what the ServerApp does with its grid (session.py gives it)."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        if serve is None:
            raise RuntimeError("this process runs clients only")
        serve(grid, context)

    return server, make_client_app(lambda _: config)


def _guarded(
    handle: Callable[[Config, Message, Context], Message],
    config_of: Callable[[Context], Config],
    message: Message,
    context: Context,
) -> Message:
    """A client that raises becomes one error reply. Its text travels in simulation only, where the experimenter owns
    both sides; otherwise a code from a fixed list leaves, and the text goes to the client's own log.
    """
    simulation = False
    try:
        config = config_of(context)
        simulation = config.privacy.rng == "seeded"
        return handle(config, message, context)
    except BudgetSpent as spent:
        return refusal(Refusal.BUDGET_SPENT, message, str(spent) if simulation else None)
    except StaleRequest as stale:
        return refusal(Refusal.STALE, message, str(stale) if simulation else None)
    except UnsafeNoise as unsafe:
        return refusal(Refusal.UNSAFE_NOISE, message, str(unsafe) if simulation else None)
    except UnsafeClipNorm as unsafe:
        return refusal(Refusal.UNSAFE_CLIP_NORM, message, str(unsafe) if simulation else None)
    except Exception as error:
        log.debug("client %s: %s", context.node_config.get("partition-id"), traceback.format_exc())
        return refusal(Refusal.FAILED, message, f"{type(error).__name__}: {error}" if simulation else None)


def _train(config: Config, message: Message, context: Context) -> Message:
    client, instructions = _partition(context), read_instructions(message.content)
    exchange = str(instructions.options.get(EXCHANGE, TRAIN))

    def answer(asked: Instructions, change: Callable[[Client], None]) -> Message:
        identity, run_id = _identity(config, context)
        numpy_client = worker_for(config).client(client, _store(config, context), identity, run_id)
        change(numpy_client)
        return _answer(config, message, numpy_client, asked, exchange)

    if not config.engine.faults:
        return answer(instructions, lambda client: None)
    from fedpriv.faults import with_faults  # in simulations that plan some

    return with_faults(config, client, exchange, message, instructions, answer)


def _answer(config: Config, message: Message, client: Client, instructions: Instructions, exchange: str) -> Message:
    """The reply of a client's half to one exchange of a round."""
    if exchange not in client.exchanges:
        raise ValueError(f"{config.strategy.name} has no exchange {exchange!r}")
    parameters = [unpack_vector(message.content)] if exchange == client.trains_in else []
    call: dict[str, Any] = {ROUND: instructions.round, ATTEMPT: instructions.attempt, **instructions.options}
    answer, num_examples, diagnostics = client.fit(parameters, call)
    names = client.statistic_names
    if exchange == STATISTICS:
        return Message(statistics_content(dict(zip(names, answer[0].tolist(), strict=True))), reply_to=message)
    if exchange != TRAIN:
        return Message(blobs_content(exchange, [array.tobytes() for array in answer]), reply_to=message)
    release, *beside = answer
    statistics = dict(zip(names, beside[0].tolist(), strict=True)) if beside else {}
    simulation = config.privacy.rng == "seeded"
    shown = diagnostics if simulation else None
    return Message(reply_content(release, num_examples, shown, statistics), reply_to=message)


def _partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


def _identity(config: Config, context: Context) -> tuple[Identity | None, int]:
    """(the client's long-lived key and its peers', Flower's run id), if its own machine names both files in
    node-config, whatever the run says. A simulation has neither: its runs are to be the same on every engine.

    Raises `OptionError` where only one file is named: nobody meant to go without the other.
    """
    names = ("identity-key", "peer-keys")
    paths = [context.node_config.get(name) for name in names]
    if paths == [None, None]:
        return None, 0 if config.privacy.rng == "seeded" else context.run_id
    if None in paths:
        missing, given = names if paths[0] is None else reversed(names)
        raise OptionError(f"node-config {missing}", "", f"must be given with {given}")
    from fedpriv.shared_bits import read_identity  # cryptography: only where it is needed

    return read_identity(*(Path(str(path)) for path in paths)), context.run_id


def _store(config: Config, context: Context) -> MemoryStore:
    if config.engine.name == "flower":
        return FileStore(memory_folder(config), _partition(context))
    return ContextStore(context)


# --- `flwr run .`: the configuration comes from the run's own options -------------------------------------


@lru_cache(maxsize=4)
def _composed(overrides: str) -> Config:
    from fedpriv.compose import compose_remote

    config = compose_remote(shlex.split(overrides))
    engine = config.engine.model_copy(update={"name": "flower"})
    return config.model_copy(update={"engine": engine})


def _config_of(context: Context) -> Config:
    return _composed(str(context.run_config.get("overrides", "")))


client_app = make_client_app(_config_of)
server_app = ServerApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    from fedpriv.run import serve_flwr_run

    serve_flwr_run(grid, context, _config_of(context))


def empty_context(run_id: int, node_id: int, partition: int, num_partitions: int) -> Context:
    """A simulated client's context, with an empty state."""
    node_config: dict[str, Any] = {"partition-id": partition, "num-partitions": num_partitions}
    return Context(run_id=run_id, node_id=node_id, node_config=node_config, state=RecordDict(), run_config={})
