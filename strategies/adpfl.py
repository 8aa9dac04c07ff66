"""ADP-FL, server half: adaptive clipping by a trusted server, then an aggregation server that distils.

Federated Learning Based on Adaptive Differential Privacy, Algorithms 1 to 3. The client adds the noise; the aggregation
server sees each noisy update; published, a clipping server is trusted with exact norms, repaired with nothing.

The clipping server sees what clients report of the lengths of their updates, and nothing else. Towards the clients it
needs the first exchange of a round alone, whose replies hold statistics and no parameters; towards the aggregation
server it says one `Announcement` a round, which every client may read: what is built on its first three fields never
depends on what anybody reported otherwise. Here both servers run in one process, so its figures and state go into the
run's record and checkpoints too.

Symbols: C^t -> clip_norm, C^0 -> first, B -> most, S_w -> window, min_j ||Delta_j|| -> least_norm, s_i and norms -> the
reports, Ens -> the teacher, W -> theta (the base layers; the personal layers that the server uses for distillation are
its own copy at W^0).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from fedpriv.common.messages import (
    CLIP_BIT,
    CLIP_CHANGE,
    CLIP_NORM,
    CLIP_REPORTED_NORM,
    EXCHANGE,
    LEAST_NORM,
    STATISTICS,
    FloatVector,
    MalformedMessage,
    Options,
)
from fedpriv.common.replies import Reply, Report, Reported, read_report
from fedpriv.config.methods import ADPFLOptions, PFLOptions
from fedpriv.mechanisms.clip_thresholds import push, window_spread
from fedpriv.server.clip_rules import ClipRule, make_rule
from fedpriv.server.nodes import ClientGrid
from fedpriv.server.round import NO_HOOKS, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy

#: Statistics in the run's record, as they were reported.
IN_FIGURES = {CLIP_REPORTED_NORM: "reported_norms", CLIP_BIT: "reported_bits", CLIP_CHANGE: "norm_changes"}

#: Asks the clients of the round for their reports; ``read`` turns a reply into one or refuses it.
AskForReports = Callable[[Callable[[Any, int], Report]], Sequence[Report]]


@dataclass(frozen=True)
class Announcement:
    """What the clipping server tells after the first exchange: to everybody, except for the figures.

    reporters: clients whose release is worth asking for. figures: for the run's record, of what it saw.
    """

    clip_norm: float
    least_norm: float
    reporters: tuple[int, ...]
    num_bytes: int
    figures: dict[str, Any] = field(default_factory=dict)

    def options(self) -> Options:
        """As the clients read it in the second exchange."""
        return {CLIP_NORM: self.clip_norm, LEAST_NORM: self.least_norm}


class TrustedClippingServer:
    """Moves C by ``rule`` and finds the shortest reported update.

    reports_norm: whatever the rule needs. noisy: norms carry noise. simulation: the record may hold exact reports.
    """

    def __init__(self, rule: ClipRule, *, reports_norm: bool, noisy: bool, simulation: bool) -> None:
        self.rule, self.noisy, self.records = rule, noisy, noisy or simulation
        extra = (CLIP_REPORTED_NORM,) if reports_norm and CLIP_REPORTED_NORM not in rule.statistics else ()
        self.names = (*rule.statistics, *extra)

    def before(self, server_round: int) -> Options:
        """What clients must know in the first exchange: C^(t-1), which published clients hold their norms against."""
        self.rule.begin(server_round)
        return {CLIP_NORM: self.rule.clip_norm} if self.rule.moves else {}

    def exchange(self, ask: AskForReports) -> Announcement:
        """The first exchange of a round, and what comes of it."""
        reports = ask(self.read)
        learnt = self.rule.learn(reports) if reports else {}
        norms = [self.norm(report) for report in reports] if CLIP_REPORTED_NORM in self.names else []
        figures: dict[str, Any] = {"clip_norm": self.rule.clip_norm, "clip_floor_held": self.rule.floor_held}
        if self.records:
            figures |= learnt | {
                words: {str(report.client): report.statistics[name] for report in reports}
                for name, words in IN_FIGURES.items()
                if name in self.names
            }
        return Announcement(
            self.rule.clip_norm,
            min(norms, default=0.0),
            tuple(report.client for report in reports),
            sum(report.num_bytes for report in reports),
            figures,
        )

    def read(self, message: Any, client: int) -> Report:
        """A client's report. Raises `MalformedMessage` for anything that cannot be one."""
        report = read_report(message, client, self.names)
        self.norm(report)
        return report

    def norm(self, report: Report) -> float:
        """||Delta_j|| as reported. Repaired, it carries noise: it is clamped, not refused."""
        norm = report.statistics.get(CLIP_REPORTED_NORM, 0.0)
        if self.noisy:
            return min(self.rule.most, max(0.0, norm))
        if norm < 0:
            raise MalformedMessage(f"{CLIP_REPORTED_NORM}: a norm is at least 0, got {norm:g}")
        return norm

    def state_dict(self) -> dict[str, Any]:
        return self.rule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rule.load_state_dict(state)


def adp_step(clip_norm: float, changes: Sequence[float]) -> float:
    """C^t = C^(t-1) - mean_i(s_i) over the clients that reported; may be negative, so the caller applies a floor."""
    average = math.fsum(change / len(changes) for change in changes)  # [ADP-FL, Alg. 2 lines 13 to 17]
    return clip_norm - average  # [ADP-FL, Alg. 2 lines 18, 19] [ADP-FL, eq. 11]


class AdaptiveWindow(ClipRule):
    """ADP-FL's rule on what clients report of their norms: C falls by the mean of s_i over those who reported.

    Here the server keeps the last S_w noisy norms of each client, clamped to [0, B].
    """

    statistics = (CLIP_REPORTED_NORM,)
    moves = True

    def __init__(self, first: float, floor: float, most: float, *, window: int) -> None:
        super().__init__(first, floor, most)
        self.window = window
        self.norms: dict[int, list[float]] = {}

    def learn(self, replies: Sequence[Reported]) -> dict[str, Any]:
        changes = {str(reply.client): self.change(reply) for reply in replies}
        self.set(adp_step(self.clip_norm, list(changes.values())))
        return {"norm_changes": changes}

    def change(self, reply: Reported) -> float:
        """s_i of one client, whose window takes in what it just reported."""
        reported = min(self.most, max(0.0, reply.statistics[CLIP_REPORTED_NORM]))
        earlier = torch.tensor(self.norms.get(reply.client, []), dtype=torch.float64)
        norms = push(earlier, torch.tensor(reported, dtype=torch.float64), self.window)
        self.norms[reply.client] = norms.tolist()
        mean, spread = window_spread(norms, self.window)
        return float(spread if mean < self.clip_norm else -spread)  # as published clients do

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "norms": {str(client): norms for client, norms in self.norms.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.norms = {int(client): list(norms) for client, norms in state["norms"].items()}


class PublishedWindow(AdaptiveWindow):
    """As printed: clients keep their windows of raw norms themselves and send s_i as it is."""

    statistics = (CLIP_CHANGE,)

    def change(self, reply: Reported) -> float:
        return reply.statistics[CLIP_CHANGE]


# --- the aggregation server ------------------------------------------------------------------------------------


class Distilling(FederatedStrategy):
    """Ens = theta + mean of the releases that arrived; theta <- distil(teacher Ens, student theta).

    distillation_epochs: over the auxiliary examples; 0: theta <- Ens. distillation_loss: kl | mse; temperature of the
    softened logits.
    """

    options: PFLOptions

    def aggregate(self, theta: FloatVector, replies: Sequence[Reply]) -> FloatVector:
        ensemble = super().aggregate(theta, replies)  # [ADP-FL, Alg. 1 lines 21 to 23]
        if self.options.distillation_epochs == 0:
            return ensemble
        assert self.hooks.distil is not None, "preparation.py gives it to every strategy that distils"
        began = time.perf_counter()
        student = self.hooks.distil(ensemble, theta, self.current.number)  # L_d, SGD  [ADP-FL, Alg. 1 lines 24, 25]
        self.current.timings["distillation"] = time.perf_counter() - began
        return student


class ADPFL(Distilling):
    """Two exchanges a round: theta down and statistics up, C^t down and releases up.

    allocation: adaptive | fixed. clipping: adp, or one of its rivals (`fedpriv.server.clip_rules.make_rule`).
    """

    options: ADPFLOptions

    # W^0, C^0 and the rounds are the base's.  [ADP-FL, Alg. 1 lines 1, 3, 27]
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
        # beside W_b  [ADP-FL, Alg. 1 lines 2, 26]
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
