"""The server side of one run, from its first (or first repeated) round to its report."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from flwr.serverapp import Grid

from fedpriv.client.build import exchanges_of
from fedpriv.client.memories import Book, ClientMemories, between_rounds, charged
from fedpriv.common.doing import counted, doing
from fedpriv.common.errors import ClusterLost, FedprivError, OptionError, RunFailed
from fedpriv.common.files import write_atomic
from fedpriv.common.messages import ATTEMPTS_PER_START, FloatVector, pack_vector
from fedpriv.common.stopping import stop
from fedpriv.common.systems import peak_memory_mib
from fedpriv.common.versions import commit, library_versions
from fedpriv.config.schema import Config
from fedpriv.data.asked import Asks
from fedpriv.data.features import known_beforehand
from fedpriv.engines.grid import LocalGrid
from fedpriv.engines.worker import Worker, adopt, make_apps
from fedpriv.report.client_accuracy import summary_figures
from fedpriv.report.live.live_page import LivePage
from fedpriv.report.live.monitor import Monitor
from fedpriv.report.live.progress import RunProgress
from fedpriv.report.live.task import task
from fedpriv.report.views import private_folder, secret_cohorts
from fedpriv.runs.accounts import Accounts, PlannedAccounts
from fedpriv.runs.folder import Checkpoint, RunFolder
from fedpriv.runs.planning import Plan
from fedpriv.runs.preparation import make_strategy
from fedpriv.runs.round_updates import UpdateRecorder, every
from fedpriv.runs.summary import (
    answered,
    as_csv,
    coefficients,
    divergence,
    lost_cells,
    metrics_figures,
    metrics_row,
    miscalibration,
    privacy_figures,
    untrained,
)
from fedpriv.server.nodes import ClientGrid, FlowerGrid
from fedpriv.server.round import BudgetsSpent, Hooks, Round
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.training.evaluation import Evaluator, Score
from fedpriv.training.trained_part import frozen_tensors, trained_words

if TYPE_CHECKING:
    from fedpriv.runs.in_run_canaries import InRunAudit


def _in_run_audit(worker: Worker) -> InRunAudit:
    from fedpriv.runs.in_run_canaries import InRunAudit  # scipy, which no first round waits for

    return InRunAudit(worker)


class Settled(FedprivError):
    """Nothing got better for a while: the run ends here, as it was asked to."""


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
        strategy: FederatedStrategy | None = None,
    ) -> None:
        """strategy: of an app, which is set up here; None: one of the configuration's class is made."""
        if config.operations.report and find_spec("matplotlib") is None:  # before the first round, not after it
            raise ModuleNotFoundError(name="matplotlib")
        self.config, self.folder, self.worker, self.plan, self.began = config, folder, worker, plan, began
        self.monitor = monitor
        folder.metrics.secret = self.secret = secret_cohorts(config)
        self.checkpoint = checkpoint
        self.evaluate = Evaluator(worker)
        self.score: Score | None = None
        self.best = checkpoint.run["best"] if checkpoint else None
        self.best_round = checkpoint.run.get("best_round") if checkpoint else None
        self.in_vain = checkpoint.run.get("in_vain", 0) if checkpoint else 0  # evaluations since the best
        if config.evaluate.patience is not None and math.isfinite(plan.verified_epsilon):
            words = "results would decide how many rounds are sent, and a guarantee is one of num_rounds, fixed before"
            words += "; allowed: null (checkpoint.best=true keeps the best model)"
            raise OptionError("evaluate.patience", config.evaluate.patience, words)
        self.accounts = Accounts(config, folder)
        self.accounts.plan(plan.costliest, plan.verified_epsilon, plan.accountant == "filter")
        self.note = folder.remark
        self.stopped: set[int] = set()
        self.overdue: set[int] = set()  # clients that have not been heard of since they were asked
        self.live = LivePage(folder.path, config.operations.live_report)
        self.attempt = 0
        if resumed:
            self._return_to(checkpoint)
        deployed = config.dataset.name == "on_nodes"
        self.planned = PlannedAccounts(config, folder.ledger.read().entries) if deployed else None
        hooks = Hooks(folder.mark_disturbed, self._book_the_asked, monitor.heard, self.accounts.admits)
        self.recorder = UpdateRecorder(every(config.attack.update_every), folder.save_updates)
        if config.attack.keep_updates:
            hooks = replace(hooks, on_release=self.recorder.heard)
        run = folder.run_name() if deployed else ""
        self.strategy = make_strategy(config, self.worker, self.attempt, run, hooks, strategy)
        self.in_run = _in_run_audit(self.worker) if config.audit.in_run else None
        if self.checkpoint:
            self.strategy.load_state_dict(self.checkpoint.strategy)
            self.strategy.load_vectors(self.checkpoint.vectors)

    def remark(self, words: str) -> None:
        """What the summary's note is to say."""
        self.note = "; ".join(filter(None, (self.note, words)))

    # --- preparation -------------------------------------------------------------------------------------

    def _return_to(self, checkpoint: Checkpoint | None) -> None:
        """Rounds after the checkpoint are repeated bit for bit, so their lines are dropped; where they cannot
        be repeated (secure noise, a GPU) they are new releases: the ledger keeps the old entries, noise is fresh.
        """
        last, engine = checkpoint.round if checkpoint else 0, self.config.engine
        self.folder.mark_extended(last)
        repeatable = self.config.privacy.rng == "seeded" and engine.device == "cpu"
        repeatable &= self.config.dataset.name != "on_nodes"  # whose clients no server takes back
        if repeatable and not self.folder.disturbed:
            self.folder.cut_back(last)
        else:
            self.attempt = ATTEMPTS_PER_START * self.folder.next_attempt()
            self.folder.metrics.keep(last)
        self.folder.cut_back_snapshots(last)
        self.accounts.take_up()
        self.stopped = set(checkpoint.run["stopped"]) if checkpoint else set()

    # --- running -----------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Runs on the configured engine and returns the summary. Raises `Stopped` after a round with a checkpoint
        where a signal asked for it.
        """
        name = self.config.engine.name
        with stop.graceful(self.config.operations.stop_grace):
            if name == "flower":
                from fedpriv.engines.flower import run_on_flower

                run_on_flower(self.config, lambda grid, context: self.serve_flower(grid))
                return self.folder.read_summary() or {}
            with self._own_grid(name) as grid:
                server_app, _ = make_apps(self.config, lambda _, context: self.serve(grid, grid))
                try:
                    server_app(grid, grid.server_context())
                finally:
                    self.strategy.let_go()
            return self.finish()

    def _own_grid(self, name: str) -> LocalGrid:
        adopt(self.config, self.worker)
        if name == "ray":
            from fedpriv.engines.ray import RayGrid

            return RayGrid(self.config, self.folder.mark_disturbed)
        from fedpriv.engines.inprocess import InProcessGrid

        _, client_app = make_apps(self.config)
        return InProcessGrid(self.config, client_app, self.folder.mark_disturbed)

    def serve_flower(self, grid: Grid) -> dict[str, Any]:
        """As `serve`, on a grid of Flower's, and the end of the run; returns its summary."""
        from fedpriv.engines.flower import FileMemories

        self.serve(FlowerGrid(grid, self.strategy.population), self.planned or FileMemories(self.config))
        return self.finish()

    def serve(self, grid: ClientGrid, memories_of: ClientMemories) -> None:
        """All rounds on a grid. An interruption leaves a folder that `resume` takes up."""
        self.memories = memories_of
        first = self.checkpoint.round + 1 if self.checkpoint else 1
        memories: Mapping[int, bytes] = self.checkpoint.memories if self.checkpoint else {}
        with task("resume", RESUME_SHOWN) if self.checkpoint else nullcontext():
            if self.attempt:  # releases after the checkpoint have left: ledger and clients' budgets must know them
                clients = counted("reading clients", sorted(self.memories.memories()))
                self.memories.collect_entries(clients, self.accounts.book_what_is_new)
                later = [entry for entry in self.folder.ledger.read().entries if entry.round >= first]
                memories = charged(memories, later)
            doing(f"putting back clients: {len(memories):,}")
            self.memories.restore(memories)
        theta = self.checkpoint.theta if self.checkpoint else self.worker.initial_parameters()
        self.theta = theta
        self.setup_seconds = time.perf_counter() - self.began
        stop.check()
        self.pace = CheckpointPace(self.config)
        self.monitor.running(self.config, first - 1, self.accounts.epsilon_so_far())
        progress = RunProgress(self.config.method, self.config.num_rounds, first - 1)
        with self.live, progress as self.progress:
            try:
                heard = self._with_faults(grid)
                self.strategy.run_rounds(
                    self.in_run.listening(heard, self.strategy) if self.in_run else heard,
                    pack_vector(theta),
                    self.config.num_rounds,
                    timeout=self.config.engine.round_timeout,
                    first_round=first,
                    on_round=self._end_round,
                )
                self.memories.collect_entries(sorted(self.overdue), self.accounts.book)
            except Settled as settled:
                self.remark(str(settled))
            except BudgetsSpent as spent:
                self.remark(str(spent))
                self._collect(self.strategy.current)
                self.stopped |= set(self.strategy.current.stopped)
            except (KeyboardInterrupt, ClusterLost):  # what has left is booked; what can be repeated forgets it again
                self._collect(self.strategy.current, self.accounts.book_what_is_new)
                raise
            except RunFailed:
                self._collect(self.strategy.current)
                self._save_model()
                self._report()
                raise
        self.monitor.finishing()

    def _with_faults(self, grid: ClientGrid) -> ClientGrid:
        if not self.config.engine.faults:
            return grid
        from fedpriv.engines.faults import doubling  # in simulations that plan some

        return doubling(grid, self.config, exchanges_of(self.config))

    def _collect(self, current: Round, book: Book | None = None) -> None:
        """Merges the round's ledger entries, also those of clients whose reply was lost; and of earlier rounds, of
        clients that were still at work when these were closed.
        """
        with self.accounts.timed():
            entries, current.entries = current.entries, []  # an interruption collects once more
            if entries:
                self.accounts.book(entries)
            self.memories.collect_entries(sorted({*current.cohort, *self.overdue}), book or self.accounts.book)
        self.overdue = (self.overdue | set(current.lost)) - {reply.client for reply in current.replies}

    def _book_the_asked(self, clients: Sequence[int]) -> None:
        """In a deployment, charge selected clients before sending; the server cannot read their ledgers."""
        if self.planned is not None:
            self.accounts.book(self.planned.ask(clients, self.strategy.current.number, self.attempt))

    def _end_round(self, current: Round) -> None:
        self.monitor.heard()
        self.theta = current.theta
        self.recorder.ended(current)
        self.stopped |= set(current.stopped)
        self._collect(current)
        config, last = self.config, current.number == self.config.num_rounds
        every = config.evaluate.every
        score = self._evaluate(current.theta) if last or (every and current.number % every == 0) else None
        self.score = score  # None: what finish() reports belongs to the last round and to no earlier one
        if score:
            self._note_best(score, current)
        epsilon = self.accounts.verified().maximum if last else self.accounts.epsilon_so_far()
        row = metrics_row(current, score, epsilon, self.accounts.by_opacus(tight=False))
        shown = self.folder.metrics.append(row)
        ignored = sum(current.refused[kind] for kind in ("stale", "duplicate", "unasked"))
        codes = {} if self.secret else current.codes
        self.monitor.round_ended(row if config.tracking.private else shown, shown, codes, ignored, epsilon)
        if not self.secret:
            self.monitor.metrics.clients_stopped(len(self.stopped))
        self.progress.round(current.number, score.shown if score else {}, epsilon, shown["seconds"])
        if config.attack.keep_snapshots and current.number % config.attack.snapshot_every == 0 and not last:
            self.folder.save_snapshot(current.number, self.worker.whole_model(current.theta), self.worker.model.layout)
        if self.pace.due(current.number) or (stop.requested and not last):  # after the last too: `extend` goes on there
            with self.pace.writing(current.number), stop.resting():
                self._save_checkpoint(current)
        if not last:
            stop.check()
        self._draw_labels()
        if not last:
            self.live.round_ended(current.number)
        if not last and self.in_vain >= (config.evaluate.patience or math.inf):
            words = f"ended after round {current.number}: {self.in_vain} evaluations without a better one than that of"
            raise Settled(f"{words} round {self.best_round} (evaluate.patience)")

    def _note_best(self, score: Score, current: Round) -> None:
        """Whether this evaluation is the best so far, whose model is kept where the user asked for it."""
        before, self.best = self.best, score.best_of(self.best)
        self.in_vain += 1
        if self.best != before:
            self.best_round, self.in_vain = current.number, 0
            if self.config.checkpoint.best:
                self.folder.save_best(self.worker.whole_model(current.theta), self.worker.model.layout)

    def _draw_labels(self) -> None:
        """Who holds what, once, after a first round: importing matplotlib would delay it by as much as a model's
        training takes.
        """
        path = private_folder(self.folder.path) / "labels.png"
        if not self.config.operations.report or path.exists():
            return
        if self.config.dataset.name == "on_nodes":  # whose labels no server knows
            return
        if self.worker.data.dataset.task.name != "classification":
            return
        from fedpriv.report.label_plot import draw_label_distribution

        draw_label_distribution(self.worker.data, path)

    def _evaluate(self, theta: FloatVector) -> Score:
        return self.evaluate(self.worker.whole_model(theta))

    def _save_checkpoint(self, current: Round) -> None:
        run = {"best": self.best, "stopped": sorted(self.stopped)}
        run |= {"best_round": self.best_round, "in_vain": self.in_vain}
        checkpoint = Checkpoint(
            current.number,
            current.theta,
            self.strategy.state_dict(),
            between_rounds(self.memories.memories()),
            run,
            self.strategy.vectors(),
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
        self._settle_last_line(summary["privacy"]["verified_epsilon"])
        if "answers" in summary:
            write_atomic(self.folder.path / "answers.csv", as_csv(summary["answers"]))
        self.folder.write_summary(summary)  # from here on the run counts as finished
        self._report()
        return summary

    def _settle_last_line(self, epsilon: float | str) -> None:
        """A run that budgets ended, or that late entries came to, learns only here which line was its last."""
        rows = self.folder.metrics.read()
        if rows:
            self.folder.metrics.settle(epsilon)
        if rows and rows[-1]["epsilon_so_far"] != epsilon:
            self.monitor.settled(float(epsilon))

    def _save_model(self) -> None:
        model = self.worker.model
        whole = self.config.model.train == "all" and self.config.model.name != "custom"
        kept = {} if whole else frozen_tensors(model.module)
        self.folder.save_model(self.worker.whole_model(self.theta), model.layout, kept)
        self.folder.save_facts(self.worker.data.dataset)

    def _answers(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Of strategy=ask: what was asked and answered."""
        task = self.worker.data.dataset.task
        if not isinstance(task, Asks):
            return {}
        replied = min((row["participants"] or 0 for row in rows), default=0)
        return {"asked": {"replied": replied}, "answers": answered(self.config, task, self.theta, rows)}

    def _report(self) -> None:
        if not self.config.operations.report:
            return
        from fedpriv.report.page import write_report  # matplotlib and jinja2: only now

        self.live.close()
        self._draw_labels()
        write_report(self.folder.path)

    def _privacy(self, rounds_seconds: float) -> dict[str, Any]:
        figures = privacy_figures(self.config, self.plan, self.accounts, len(self.stopped))
        if self.in_run is None:
            from fedpriv.runs.in_run_canaries import audit_offer  # as above

            return figures | audit_offer(self.worker, float(figures["verified_epsilon"]))
        return figures | self.in_run.figures(figures, rounds_seconds)

    def _summary(self, score: Score) -> dict[str, Any]:
        config, rows, best = self.config, self.folder.metrics.read(), score.best_of(self.best)
        stages, whole, data = self.folder.stages(), self.worker.whole_model(self.theta), self.worker.data.dataset
        effects = coefficients(data.task, data.schema, self.worker.model.layout.shapes, whole)
        lost, many = lost_cells(self.worker.data.dataset.schema, getattr(self.strategy, "input_sums", None))
        seconds = [row["seconds"] or 0.0 for row in rows]  # None: the private file is gone
        return {
            "strategy": config.method,
            "dataset": "a Flower app" if config.model.name == "app" else config.dataset.name,
            "model": config.model.name,
            "public_knowledge": known_beforehand(config),
            "seed": config.seed,
            "rounds": len(rows),
            "num_clients": config.num_clients,
            "clients_per_round": config.clients_per_round,
            **({} if config.model.train == "all" else {"trained": trained_words(config.model)}),
            "num_parameters": self.worker.model.layout.num_parameters,
            "num_shared": int(self.theta.size),
            "accuracy": {
                "final": score.accuracy,
                "best_on_test": best if score.leading == "accuracy" else score.accuracy,
                **summary_figures(rows),
            },
            "loss": {"final": score.metrics.get("loss")},
            **({"best_round": self.best_round} if config.checkpoint.best else {}),
            **(divergence(score) if self.worker.data.dataset.task.name != "ask" else {}),
            **miscalibration(score),
            **metrics_figures(score, best, self.evaluate.by_site(whole), self.evaluate.details(whole)),
            **({"coefficients": effects} if effects else {}),
            **self._answers(rows),
            "privacy": self._privacy(sum(seconds)),
            "timing": {
                "total_s": time.perf_counter() - self.began,
                "setup_s": self.setup_seconds,
                "rounds_s": sum(seconds),
                "median_round_s": statistics.median(seconds) if seconds else 0.0,
                "ledger_s": self.accounts.seconds,
            },
            "traffic": {key: sum(row[key] or 0 for row in rows) for key in ("bytes_up", "bytes_down")},
            "peak_memory_mib": peak_memory_mib(),
            "versions": library_versions(),
            "commit": commit(),
            "note": "; ".join(filter(None, (self.note, many))) or None,
            "untrained": untrained(self.worker),
            **({"lost": lost} if lost else {}),
            **({"stages": stages} if stages else {}),
        }


#: Seconds after which a resume shows what it is doing.
RESUME_SHOWN = 2.0

#: Of a run's time, at most, with `checkpoint.every=auto`.
SHARE = 0.1
#: What the first checkpoint is taken to cost in seconds: it tells what the others will.
FIRST = 0.1


class CheckpointPace:
    """When one process writes a run's checkpoints: every n rounds, or as often as a tenth of its time allows.

    `checkpoint.every=auto` keeps this rule: what was spent on checkpoints, the one that would be written now and the
    one after the last round together take at most a tenth of the time that will then have passed. A checkpoint holds
    the memory of every client that ever took part, so its price is taken to grow as their number does.

    clock: seconds that only grow.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.perf_counter) -> None:
        self.every, self.last = config.checkpoint.every, config.num_rounds
        self._clients, self._asked = config.num_clients, config.clients_asked
        self._clock, self._began = clock, clock()
        self._spent, self._took, self._at = 0.0, 0.0, 0  # in all; by the newest, after which round

    def due(self, number: int) -> bool:
        """Whether the state after this round is to be kept; that after the last one always is, unless every is 0."""
        if self.every == 0:
            return False
        if number == self.last:
            return True
        if self.every != "auto":
            return number % self.every == 0
        ahead = self._price(number) + self._price(self.last) if self._at else FIRST
        return self._spent + ahead <= SHARE * (self._clock() - self._began + ahead)

    @contextmanager
    def writing(self, number: int) -> Iterator[None]:
        """Around the writing of a checkpoint: what it takes decides about the next ones."""
        began = self._clock()
        yield
        self._took, self._at = self._clock() - began, number
        self._spent += self._took

    def _price(self, number: int) -> float:
        """Of a checkpoint after this round, in seconds, at most: the newest's, times the most clients that can have
        taken part by then over the number that had, which is least where every round drew among all.
        """
        most = min(self._clients, self._asked * number)
        had = self._clients * (1 - (1 - self._asked / self._clients) ** self._at)
        return self._took * most / had
