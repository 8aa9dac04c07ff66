"""ADP-FL's trusted clipping server: it sees what clients report of the lengths of their updates, and nothing else.

It is a part of its own. Towards the clients it needs the first exchange of a round alone, whose replies hold
statistics and no parameters; towards the aggregation server it says one `Announcement` a round, which every client may
read. What is built on the announcement's first three fields never depends on what anybody reported otherwise. Here both
servers run in one process, so the clipping server's figures and state go into the run's record and checkpoints too.

Symbols: C^t -> clip_norm, min_j ||Delta_j|| -> least_norm, s_i and norms -> the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedpriv.common.messages import (
    CLIP_BIT,
    CLIP_CHANGE,
    CLIP_NORM,
    CLIP_REPORTED_NORM,
    LEAST_NORM,
    MalformedMessage,
    Options,
)
from fedpriv.common.replies import Report, read_report
from fedpriv.server.clip_rules import ClipRule

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

    reports_norm: norms are reported whatever the rule needs. noisy: reported norms carry noise, so they are clamped to
    [0, rule.most]; otherwise a negative one is refused. simulation: whether the run's record may hold exact reports.
    """

    def __init__(self, rule: ClipRule, *, reports_norm: bool, noisy: bool, simulation: bool) -> None:
        self.rule, self.noisy, self.simulation = rule, noisy, simulation
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
        norms = {report.client: self._norm(report) for report in reports} if CLIP_REPORTED_NORM in self.names else {}
        figures: dict[str, Any] = {"clip_norm": self.rule.clip_norm, "clip_floor_held": self.rule.floor_held}
        if self.noisy or self.simulation:
            figures |= learnt | {
                words: {str(report.client): report.statistics[name] for report in reports}
                for name, words in IN_FIGURES.items()
                if name in self.names
            }
        return Announcement(
            self.rule.clip_norm,
            min(norms.values(), default=0.0),
            tuple(report.client for report in reports),
            sum(report.num_bytes for report in reports),
            figures,
        )

    def read(self, message: Any, client: int) -> Report:
        """A client's report. Raises `MalformedMessage` for anything that cannot be one."""
        report = read_report(message, client, self.names)
        norm = report.statistics.get(CLIP_REPORTED_NORM, 0.0)
        if norm < 0 and not self.noisy:
            raise MalformedMessage(f"{CLIP_REPORTED_NORM}: a norm is at least 0, got {norm:g}")
        return report

    def _norm(self, report: Report) -> float:
        norm = report.statistics[CLIP_REPORTED_NORM]
        return min(self.rule.most, max(0.0, norm)) if self.noisy else norm

    def state_dict(self) -> dict[str, Any]:
        return self.rule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rule.load_state_dict(state)
