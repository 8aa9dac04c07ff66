"""ADP-FL, server half: adaptive clipping by a trusted server, then an aggregation server that distils.

Federated Learning Based on Adaptive Differential Privacy, Algorithms 1 to 3. The client adds the noise; the aggregation
server sees each noisy update; published, a clipping server is trusted with exact norms, repaired with nothing.

Symbols: C^t -> clip_norm, Ens -> the teacher, W -> theta (the base layers; the personal layers that the server uses for
distillation are its own copy at W^0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedpriv.common.messages import EXCHANGE, STATISTICS, Options
from fedpriv.common.replies import Reply
from fedpriv.config.methods import ADPFLOptions
from fedpriv.server.clip_rules import make_rule
from fedpriv.server.distilling import DistillingServer
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.trusted_clipping import TrustedClippingServer


class ADPFL(DistillingServer):
    """Two exchanges a round: theta down and statistics up, C^t down and releases up.

    allocation: adaptive | fixed. clipping: adp, or one of its rivals (`fedpriv.server.clip_rules.make_rule`).
    """

    options: ADPFLOptions

    def __init__(self, population: Population, options: Any, hooks: Hooks = NO_HOOKS) -> None:
        super().__init__(population, options, hooks)
        self.clipping_server = TrustedClippingServer(
            make_rule(self.options),
            reports_norm=self.options.allocation == "adaptive",
            noisy=self.options.variant != "published",
            simulation=population.rng == "seeded",
        )

    def train_options(self, server_round: int) -> Options:
        """Of the first exchange."""
        return super().train_options(server_round) | {
            EXCHANGE: STATISTICS,
            **self.clipping_server.before(server_round),
        }

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: ClientGrid
    ) -> Iterable[Message]:
        """The whole first exchange, and the messages of the second for those who reported. Too few reports end the
        run before any release is asked for.
        """
        asked = list(super().configure_train(server_round, arrays, config, grid))
        announced = self.clipping_server.exchange(partial(self.ask, grid, asked))
        self.current.bytes_up += announced.num_bytes
        self.current.figures |= announced.figures
        self.require(len(announced.reporters))
        return self.messages(grid, announced.reporters, None, announced.options())

    def figures(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """eps_i of every participant: in simulation, where clients say what they took."""
        taken = {reply.client: reply.diagnostics.get("round_epsilon") for reply in replies}
        return {"round_epsilon": {str(client): value for client, value in taken.items() if value is not None}}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"clipping": self.clipping_server.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.clipping_server.load_state_dict(state["clipping"])
