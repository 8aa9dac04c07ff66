"""The server side of one run, from its first (or first repeated) round to its report."""

from __future__ import annotations

import resource
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedpriv.app import make_apps
from fedpriv.client_accuracy import PERSONAL, round_figures, summary_figures
from fedpriv.config import Config
from fedpriv.errors import RunFailed
from fedpriv.evaluation import Evaluator, Score
from fedpriv.operations.monitor import Monitor
from fedpriv.operations.stopping import stop
from fedpriv.planned_accounts import PlannedAccounts
from fedpriv.planning import Plan
from fedpriv.preparation import make_strategy
from fedpriv.privacy.claimed import Claim
from fedpriv.privacy.composition import Budget, Verified, compose_clients, threats, verify
from fedpriv.privacy.events import EVERY_CLIENT, Entry, Event, Threat
from fedpriv.privacy.histories import History, make_history
from fedpriv.progress import RunProgress
from fedpriv.records import ATTEMPTS_PER_START, LOCAL_ACCURACY, FloatVector, pack_vector
from fedpriv.run_folder import Checkpoint, RunFolder, json_number, versions
from fedpriv.server import BudgetsSpent, Round
from fedpriv.state import Book, between_rounds, charged
from fedpriv.worker import Worker, adopt, client_class, make_client, partition_remarks


class Session:
    """The server side of one run, from its first (or first repeated) round to its report."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        worker: Worker,
        plan: Plan,
        began: float,
        monitor: Monitor,
        checkpoint: Checkpoint | None = None,
        resumed: bool = False,
    ) -> None:
        self.config, self.folder, self.worker, self.plan, self.began = config, folder, worker, plan, began
        self.monitor = monitor
        self.checkpoint = checkpoint
        self.memories: Any = None
        self.evaluate = Evaluator(worker)
        self.score: Score | None = None
        self.best = checkpoint.run["best"] if checkpoint else None
        self.ledger_seconds = 0.0
        self.note: str | None = None
        self.stopped: set[int] = set()
        self.overdue: set[int] = set()  # clients that have not been heard of since they were asked
        self.history: dict[int, list[Event]] = defaultdict(list)
        self.threat = make_client(config).threat
        self.totals: dict[int, History] = {}
        # Clients with the same releases are one account: a round's price does not grow with all who ever took part.
        self.sharing: Counter[History] = Counter()
        self.distinct: dict[History, tuple[Event, ...]] = {}
        self.attempt = 0
        if resumed:
            self._return_to(checkpoint)
        deployed = config.dataset.name == "on_nodes"
        self.strategy = make_strategy(config, self.worker, self.attempt, folder.run_name() if deployed else "")
        if deployed:
            self.memories = PlannedAccounts(config, folder.ledger.read().entries)
            self.strategy.on_asking = self._book_the_asked
        self.strategy.admits = self._admits
        if self.checkpoint:
            self.strategy.load_state_dict(self.checkpoint.strategy)

    # --- preparation -------------------------------------------------------------------------------------

    def _return_to(self, checkpoint: Checkpoint | None) -> None:
        """Rounds behind the checkpoint are repeated bit for bit, so ledger and metrics forget them; where they cannot
        be repeated (secure noise, a GPU, slices that depend on how many workers there are) they are new releases: the
        ledger keeps the old entries, noise is fresh.
        """
        last, engine = checkpoint.round if checkpoint else 0, self.config.engine
        sliced = engine.name == "ray" and engine.trainer == "vectorised"
        repeatable = self.config.privacy.rng == "seeded" and engine.device == "cpu" and not sliced
        if repeatable and not self.folder.disturbed:
            self.folder.cut_back(last)
        else:
            self.attempt = ATTEMPTS_PER_START * self.folder.next_attempt()
            self.folder.metrics.keep(lambda row: row["round"] <= last)
        self.folder.cut_back_snapshots(last)
        self._remember(self.folder.ledger.read().entries)
        self.stopped = set(checkpoint.run["stopped"]) if checkpoint else set()

    # --- running -----------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Runs on the configured engine and returns the summary. Raises `Stopped` behind a round with a checkpoint
        where a signal asked for it.
        """
        name = self.config.engine.name
        with stop.graceful(self.config.operations.stop_grace):
            if name == "flower":
                from fedpriv.engines.flower import run_on_flower

                run_on_flower(self.config, lambda grid, context: self.serve_and_finish(grid))
                return self.folder.read_summary() or {}
            with self._own_grid(name) as grid:
                server_app, _ = make_apps(self.config, lambda grid, context: self.serve(grid))
                server_app(grid, grid.server_context())
            return self.finish()

    def _own_grid(self, name: str) -> Any:
        adopt(self.config, self.worker)
        if name == "ray":
            from fedpriv.engines.ray import RayGrid

            return RayGrid(self.config)
        from fedpriv.engines.inprocess import InProcessGrid

        _, client_app = make_apps(self.config)
        return InProcessGrid(self.config, client_app)

    def serve_and_finish(self, grid: Grid) -> None:
        self.serve(grid)
        self.finish()

    def serve(self, grid: Grid) -> None:
        """All rounds on a grid. An interruption leaves a folder that `resume` takes up."""
        if hasattr(grid, "collect_entries"):
            self.memories = grid
        elif self.memories is None:
            from fedpriv.engines.flower import FileMemories

            self.memories = FileMemories(self.config)
        self.strategy.on_disturbance, self.strategy.on_progress = self.folder.mark_disturbed, self.monitor.heard
        if hasattr(grid, "on_disturbance"):
            grid.on_disturbance = self.folder.mark_disturbed
        first = self.checkpoint.round + 1 if self.checkpoint else 1
        memories: Mapping[int, bytes] = self.checkpoint.memories if self.checkpoint else {}
        if self.attempt:  # releases behind the checkpoint have left: ledger and clients' budgets must know them
            self.memories.collect_entries(sorted(self.memories.memories()), self._book_what_is_new)
            behind = [entry for entry in self.folder.ledger.read().entries if entry.round >= first]
            memories = charged(memories, behind)
        self.memories.restore(memories)
        theta = self.checkpoint.theta if self.checkpoint else self.worker.initial_parameters()
        self.theta = theta
        self.setup_seconds = time.perf_counter() - self.began
        stop.check()
        self.monitor.running(self.config, first - 1, self._epsilon_so_far())
        with RunProgress(self.config.strategy.name, self.config.num_rounds, first - 1) as self.progress:
            try:
                self.strategy.start(
                    self._with_faults(grid),
                    pack_vector(theta),
                    self.config.num_rounds,
                    timeout=self.config.engine.round_timeout,
                    first_round=first,
                    on_round=self._end_round,
                )
                self.memories.collect_entries(sorted(self.overdue), self._book)
            except BudgetsSpent as spent:
                self.note = str(spent)
                self._collect(self.strategy.current)
                self.stopped |= set(self.strategy.current.stopped)
            except RunFailed:
                self._collect(self.strategy.current)
                self._save_model()
                self._report()
                raise
            except KeyboardInterrupt:  # what has left in this round is booked; what can be repeated forgets it again
                self._collect(self.strategy.current, self._book_what_is_new)
                raise
        self.monitor.finishing()

    def _with_faults(self, grid: Grid) -> Grid:
        if not self.config.engine.faults:
            return grid
        from fedpriv.faults import doubling  # in simulations that plan some

        return doubling(grid, self.config, client_class(self.config).exchanges)

    def _collect(self, current: Round, book: Book | None = None) -> None:
        """Merges the round's ledger entries, also those of clients whose reply was lost; and of earlier rounds, of
        clients that were still at work when these were closed.
        """
        began = time.perf_counter()
        entries, current.entries = current.entries, []  # an interruption collects once more
        if entries:
            self._book(entries)
        self.memories.collect_entries(sorted({*current.cohort, *self.overdue}), book or self._book)
        self.overdue = (self.overdue | set(current.lost)) - {reply.client for reply in current.replies}
        self.ledger_seconds += time.perf_counter() - began

    def _book_the_asked(self, clients: Sequence[int]) -> None:
        """In a deployment, before the messages go out."""
        self._book(self.memories.ask(clients, self.strategy.current.number, self.attempt))

    def _book_what_is_new(self, entries: list[Entry]) -> None:
        """After a crash or an interruption an entry can be in the ledger and still wait in its client's memory."""
        known = {(entry.client, entry.sequence, entry.attempt) for entry in self.folder.ledger.read().entries}
        self._book([entry for entry in entries if (entry.client, entry.sequence, entry.attempt) not in known])

    def _book(self, entries: list[Entry]) -> None:
        self.folder.append_entries(entries)
        self._remember(entries)

    def _remember(self, entries: Iterable[Entry]) -> None:
        """For epsilon_so_far, which is of the method's own threat."""
        entries = [entry for entry in entries if entry.event.threat == self.threat]
        for entry in entries:
            self.history[entry.client].append(entry.event)
        for client in {entry.client for entry in entries}:
            if (before := self.totals.get(client)) is not None:
                self.sharing[before] -= 1
                if not self.sharing[before]:
                    del self.sharing[before], self.distinct[before]
            self.totals[client] = now = make_history(self.history[client])
            self.sharing[now] += 1
            self.distinct.setdefault(now, tuple(self.history[client]))

    def _admits(self, event: Event) -> bool:
        """Whether one more release of a trusted server keeps to `privacy.max_epsilon`."""
        privacy = self.config.privacy
        if privacy.max_epsilon is None:
            return True
        budget = Budget(privacy.max_epsilon, privacy.delta, plan=tuple(make_client(self.config).budget_plan()))
        return budget.admits(self.history[EVERY_CLIENT], [event])

    def _end_round(self, current: Round) -> None:
        self.monitor.heard()
        self.theta = current.theta
        self.stopped |= set(current.stopped)
        self._collect(current)
        config, last = self.config, current.number == self.config.num_rounds
        every = config.evaluate.every
        score = self._evaluate(current.theta) if last or (every and current.number % every == 0) else None
        self.score = score  # None: what finish() reports belongs to the last round and to no earlier one
        if score:
            self.best = max(score.accuracy, self.best or 0.0)
        epsilon = self._epsilon_so_far()
        row = metrics_row(current, score, epsilon)
        self.folder.metrics.append(row)
        self.monitor.metrics.clients_stopped(len(self.stopped))
        ignored = sum(current.refused[kind] for kind in ("stale", "duplicate", "unasked"))
        self.monitor.round_ended(row, current.codes, ignored, epsilon)
        self.progress.round(current.number, score.accuracy if score else None, epsilon, current.seconds)
        if config.attack.keep_snapshots and current.number % config.attack.snapshot_every == 0 and not last:
            self.folder.save_snapshot(current.number, self.worker.whole_model(current.theta), self.worker.model.layout)
        due = config.checkpoint.every and current.number % config.checkpoint.every == 0
        if not last and (due or stop.requested):
            self._save_checkpoint(current)
            stop.check()

    def _evaluate(self, theta: FloatVector) -> Score:
        return self.evaluate(self.worker.whole_model(theta))

    def _epsilon_so_far(self) -> float:
        began = time.perf_counter()
        delta = self.config.privacy.delta
        # Without PLD, which costs seconds for sampled Gaussians: an upper bound, so it may end above verified_epsilon.
        accounts = dict(enumerate(self.distinct.values()))
        epsilon = compose_clients(accounts, delta, refined=False).maximum if accounts else 0.0
        self.ledger_seconds += time.perf_counter() - began
        return epsilon

    def _save_checkpoint(self, current: Round) -> None:
        run = {"best": self.best, "stopped": sorted(self.stopped)}
        checkpoint = Checkpoint(
            current.number, current.theta, self.strategy.state_dict(), between_rounds(self.memories.memories()), run
        )
        self.folder.save_checkpoint(checkpoint, self.config, self.config.checkpoint.keep)
        self.monitor.checkpoint(current.number)

    # --- the end -----------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Any]:
        """Model, summary and report."""
        if self.score is None:
            self.score = self._evaluate(self.theta)
        self._save_model()
        summary = self._summary(self.score)
        self.folder.write_summary(summary)  # from here on the run counts as finished
        self._report()
        return summary

    def _save_model(self) -> None:
        self.folder.save_model(self.worker.whole_model(self.theta), self.worker.model.layout)
        self.folder.save_facts(self.worker.data.dataset)

    def _report(self) -> None:
        if not self.config.operations.report:
            return
        from fedpriv.report.page import write_report  # matplotlib and jinja2: only now

        write_report(self.folder.path)

    def _summary(self, score: Score) -> dict[str, Any]:
        config, rows = self.config, self.folder.metrics.read()
        seconds = [row["seconds"] for row in rows]
        return {
            "strategy": config.strategy.name,
            "dataset": config.dataset.name,
            "model": config.model.name,
            "seed": config.seed,
            "rounds": len(rows),
            "num_clients": config.num_clients,
            "clients_per_round": config.clients_per_round,
            "num_parameters": self.worker.model.layout.num_parameters,
            "num_shared": int(self.theta.size),
            "accuracy": {
                "final": score.accuracy,
                "best_on_test": self.best or score.accuracy,
                **summary_figures(rows),
            },
            "loss": {"final": score.loss},
            "privacy": self._privacy(),
            "timing": {
                "total_s": time.perf_counter() - self.began,
                "setup_s": self.setup_seconds,
                "rounds_s": sum(seconds),
                "median_round_s": statistics.median(seconds) if seconds else 0.0,
                "ledger_s": self.ledger_seconds,
            },
            "traffic": {key: sum(row[key] for row in rows) for key in ("bytes_up", "bytes_down")},
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "versions": versions(),
            "note": self.note,
        }

    def _privacy(self) -> dict[str, Any]:
        """The three figures; the verified one comes from the ledger, as it was written."""
        began = time.perf_counter()
        privacy, ledger = self.config.privacy, self.folder.ledger.read()
        accounts: dict[int, list[Entry]] = defaultdict(list)
        for entry in ledger.entries:
            accounts[entry.client].append(entry)
        if of_all := accounts.pop(EVERY_CLIENT, None):  # whoever released nothing has this account alone
            accounts = {client: of_all + own for client, own in accounts.items()} | {EVERY_CLIENT: of_all}
        client = make_client(self.config)
        idle = self._idle(accounts)
        found = verify(accounts, privacy.delta, privacy.max_epsilon, client.threat, idle)
        claim = client.claim(max(self.plan.participations), privacy.delta)
        self.ledger_seconds += time.perf_counter() - began
        return {
            "unit": client.threat.unit,
            "adjacency": client.threat.adjacency,
            "observer": client.threat.observer,
            "delta": privacy.delta,
            "variant": privacy.variant,
            "claimed_epsilon": json_number(claim.epsilon) if claim else None,
            "claimed_scope": claim.scope if claim else None,
            "claimed_equation": claim.equation if claim else None,
            "verified_epsilon": json_number(found.maximum),
            "verified_median": json_number(found.median),
            "verified_at_claimed_scope": json_number(at_scope(found, claim)) if claim else None,
            "accountant": found.accountant,
            "spent_so_far": json_number(found.spent_so_far),
            "audited_epsilon": None,
            "audited_confidence": None,
            "audited_trials": None,
            "clients_stopped": len(self.stopped),
            "reasons": [*found.reasons, *client.remarks(), *partition_remarks(self.config)],
            "others": self._further_threats(accounts, client.threat),
        }

    def _idle(self, accounts: dict[int, list[Entry]]) -> int:
        """Clients without an account."""
        return 0 if EVERY_CLIENT in accounts else self.config.num_clients - sum(client >= 0 for client in accounts)

    def _further_threats(self, accounts: dict[int, list[Entry]], own: Threat) -> list[dict[str, Any]]:
        """The verified figures under every other threat that the ledger holds."""
        found = []
        for threat in threats(accounts):
            if threat != own:
                verified = verify(accounts, self.config.privacy.delta, None, threat, self._idle(accounts))
                found.append(
                    {
                        "unit": threat.unit,
                        "adjacency": threat.adjacency,
                        "observer": threat.observer,
                        "delta": self.config.privacy.delta,
                        "verified_epsilon": json_number(verified.maximum),
                        "verified_median": json_number(verified.median),
                        "spent_so_far": json_number(verified.spent_so_far),
                        "accountant": verified.accountant,
                        "reasons": list(verified.reasons),
                    }
                )
        return found


def at_scope(found: Verified, claim: Claim) -> float:
    """What is verified at a claim's own scope and delta."""
    return found.at_scope(claim.scope, claim.delta).epsilon


def metrics_row(current: Round, score: Score | None, epsilon: float) -> dict[str, Any]:
    """One line of metrics.jsonl."""

    def mean(name: str) -> float | None:
        values = [reply.diagnostics[name] for reply in current.replies if name in reply.diagnostics]
        value = float(np.mean(values)) if values else None
        return value if value is None or np.isfinite(value) else None

    return {
        "round": current.number,
        "accuracy": score.accuracy if score else None,
        "loss": score.loss if score else None,
        "train_loss": mean("train_loss"),
        PERSONAL: round_figures(
            {
                reply.client: reply.diagnostics[LOCAL_ACCURACY]
                for reply in current.replies
                if LOCAL_ACCURACY in reply.diagnostics
            }
        ),
        "participants": len(current.replies),
        "dropped": len(current.lost),
        "late": len(current.late),
        "refused": dict(sorted(current.refused.items())),
        "stopped": len(current.stopped),
        "seconds": current.seconds,
        "timings": current.timings,
        "bytes_up": current.bytes_up,
        "bytes_down": current.bytes_down,
        "update_norm": mean("update_norm"),
        "clipped_norm": mean("clipped_norm"),
        "noise_norm": mean("noise_norm"),
        "epsilon_so_far": json_number(epsilon),
        "figures": current.figures,
        "errors": {str(client): text for client, text in sorted(current.errors.items())},
    }
