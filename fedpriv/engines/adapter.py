"""The adapter between messages and clients.

The same two apps run on every engine. The adapter is the only code through which anything leaves a real client (in a
simulation also `fedpriv.engines.cohort`, for many): it catches every exception, attaches diagnostics in
simulation only, and lets planned faults happen there.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedpriv.client.base import Client
from fedpriv.client.contract import BudgetSpent, Charge, UnsafeClipNorm, UnsafeNoise
from fedpriv.client.memory import ContextStore, FileStore, MemoryStore, StaleRequest
from fedpriv.client.one_path import Answered, Asked
from fedpriv.common.errors import LedgerRefused, OptionError, PolicyRefused
from fedpriv.common.messages import (
    STATISTICS,
    TRAIN,
    FloatVector,
    MalformedMessage,
    Refusal,
    Request,
    identity_content,
    outgoing_content,
    read_request,
    refusal,
    shown,
    unpack_vector,
)
from fedpriv.config.schema import Config
from fedpriv.engines.worker import Worker, memory_folder, worker_for
from fedpriv.secure_sum.sum_session import SumRefused

if TYPE_CHECKING:
    from fedpriv.common.identities import Identity
    from fedpriv.deployment.gate import Node


log = logging.getLogger("fedpriv")


#: What leaves a client for each kind of exception; for all others `Refusal.FAILED`.
CODES: dict[type[Exception], Refusal] = {
    BudgetSpent: Refusal.BUDGET_SPENT,
    StaleRequest: Refusal.STALE,
    UnsafeNoise: Refusal.UNSAFE_NOISE,
    UnsafeClipNorm: Refusal.UNSAFE_CLIP_NORM,
    PolicyRefused: Refusal.POLICY,
    LedgerRefused: Refusal.LEDGER,
    SumRefused: Refusal.UNSAFE_SUM,
}


Serve = Callable[[Grid, Context], None]


def make_client_app(config_of: Callable[[Context], Config]) -> ClientApp:
    """A ClientApp whose messages reach the configured method's client half."""
    app = ClientApp()

    @app.query()
    def identify(message: Message, context: Context) -> Message:
        try:
            return Message(identity_content(_partition(context)), reply_to=message)
        except (KeyError, ValueError):  # node-config names no client; its text stays at home
            return refusal(Refusal.FAILED, message)

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
    simulation, node = False, None
    try:
        node = _node(context)
        config = config_of(context)
        simulation = node is None and config.privacy.rng == "seeded"
        return handle(config, message, context)
    except Exception as error:
        code, words = refused_as(error)
        if code == Refusal.FAILED:
            log.debug("client %s: %s", context.node_config.get("partition-id"), traceback.format_exc())
        if node is not None:
            node.note(code, words)
        return refusal(code, message, words if simulation else None)


def refused_as(error: Exception) -> tuple[Refusal, str]:
    """The code for what a client raised, and its words, which leave it in simulation only."""
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), Refusal.FAILED)
    return code, str(error) if code != Refusal.FAILED else f"{type(error).__name__}: {error}"


def _train(config: Config, message: Message, context: Context) -> Message:
    request = read_request(message.content)
    node = _node(context)
    if node is not None:
        with node.answering(config, request) as gate:
            client = _client(gate.config, context, gate, gate.check, gate.policy.limits.min_survivors)
            gate.admit(client)
            reply = _answer(gate.config, message, client, request, simulation=False)
            gate.require_booked(request)
            gate.audit()
            return reply
    if config.dataset.name == "on_nodes":
        raise PolicyRefused("node-config names no policy: this machine answers simulations only")

    if not config.engine.faults:
        worker, asked = worker_for(config), asked_of(config, context, request)
        if request.exchange not in (STATISTICS, TRAIN):
            return _answer(config, message, worker.half([asked]), request, config.privacy.rng == "seeded")
        found = worker.participation.answer([asked], parameters_of(worker, message, request))
        for error in found.refused.values():
            raise error
        return replied(config, found, asked, message)

    def answer(asked: Request, change: Callable[[Client], None]) -> Message:
        client = _client(config, context, _store(config, context))
        change(client)
        return _answer(config, message, client, asked, config.privacy.rng == "seeded")

    from fedpriv.engines.faults import with_faults  # in simulations that plan some

    return with_faults(config, _partition(context), message, request, answer)


def _client(
    config: Config,
    context: Context,
    store: MemoryStore,
    guard: Callable[[Sequence[Charge]], None] | None = None,
    fewest_survivors: int = 1,
) -> Client:
    identity, run_id = _identity(config, context)
    return worker_for(config).client(_partition(context), store, identity, run_id, guard, fewest_survivors)


def _answer(config: Config, message: Message, client: Client, request: Request, simulation: bool) -> Message:
    """The reply of a client's half to one exchange of a round; in simulation with diagnostics beside its release."""
    received = parameters_of(worker_for(config), message, request)
    return Message(outgoing_content(request.exchange, client.answer(request, received), simulation), reply_to=message)


def parameters_of(worker: Worker, message: Message, request: Request) -> FloatVector | None:
    """What came down (float32 [d_down]); None in an exchange that brings no parameters. Raises `MalformedMessage`."""
    method = worker.method
    if request.exchange not in method.traits.exchanges:
        raise MalformedMessage(f"{worker.config.strategy.name} has no exchange {shown(request.exchange)}")
    if request.exchange != method.traits.trains_in:
        return None
    return unpack_vector(message.content, worker.numbers_down(request.round))


def replied(config: Config, found: Answered, asked: Asked, message: Message) -> Message:
    """A simulated client's own reply to its message; with diagnostics, and with the words of what it raised."""
    simulation = config.privacy.rng == "seeded"
    if (error := found.refused.get(asked.client)) is not None:
        code, words = refused_as(error)
        if code == Refusal.FAILED:
            log.debug("client %d", asked.client, exc_info=error)
        return refusal(code, message, words if simulation else None)
    outgoing = found.replies[asked.client]
    return Message(outgoing_content(asked.request.exchange, outgoing, simulation), reply_to=message)


def _node(context: Context) -> Node | None:
    """This machine in a deployment; None in a simulation, whose node-config names neither policy nor data folder."""
    if not {"policy", "data"} & context.node_config.keys():
        return None
    from fedpriv.deployment.gate import Node  # the accountants: seconds that a simulation need not wait

    return Node.of(context)


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
    from fedpriv.common.identities import read_identity  # cryptography: only where it is needed

    return read_identity(*(Path(str(path)) for path in paths)), context.run_id


def asked_of(config: Config, context: Context, request: Request) -> Asked:
    """A simulated client with its memory and what it is asked."""
    return Asked(_partition(context), _store(config, context), request, *_identity(config, context))


def _store(config: Config, context: Context) -> MemoryStore:
    if config.engine.name == "flower":
        return FileStore(memory_folder(config), _partition(context))
    return ContextStore(context)
