"""The server half of a method as a strategy of Flower's: any initial arrays, any grid, any number of nodes.

`AppStrategy.start` is a run like any other (`fedpriv.runs.session`): planned before its first round, with a ledger, a
folder and a report. Between the half and Flower's grid stands `AppGrid`, which knows the nodes by number and writes the
messages in the form that their apps read. The server books what a client's release costs before it is asked; what binds
is each client's own ledger.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedpriv.apps.client import options_of, refuse_outside, refuse_seed
from fedpriv.apps.form import Form
from fedpriv.apps.wire import EXAMPLES, PARTITION, Terms, down, from_app, hello, to_app
from fedpriv.client.build import make_client
from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.common.files import locked, write_atomic
from fedpriv.common.messages import MOST_ROUND, STATISTICS, FloatVector, Refusal, most_bytes, read_request, shown
from fedpriv.common.replies import reason_of, refusal_name
from fedpriv.common.run_files import mapping_in
from fedpriv.config.compose import compose, read_config
from fedpriv.config.halves import method_options
from fedpriv.config.method_pairs import target
from fedpriv.config.schema import Config, LocalConfig
from fedpriv.config.strategy_options import HALVES, check_named, spelled
from fedpriv.config.sum_checks import release_digest
from fedpriv.engines.worker import Worker
from fedpriv.report.live.monitor import watched
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.planning import make_plan, with_target
from fedpriv.runs.session import Session
from fedpriv.server.nodes import PATIENCE, as_they_come
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.training.evaluation import Score

#: Of a run's folder: the client that each node is.
NODES = "nodes.json"
#: How often a node that answers with an error is asked who it is.
MOST_ASKED = 3


@dataclass(frozen=True)
class Privacy:
    """What an app's run cost a client, of those that cost most.

    unit, neighbours, observer: who must not learn what. claimed: epsilon of the paper's formula, None where it has
    none. verified: epsilon of a sound analysis of all that was asked for, at ``delta``. reasons: why it is infinite,
    and what a reader must know. folder: the run's, None where none was asked for.
    """

    unit: str
    neighbours: str
    observer: str
    delta: float
    claimed: float | None
    verified: float
    reasons: tuple[str, ...]
    folder: Path | None


@dataclass(frozen=True)
class _Settings:
    """What an app said, under one name, since a method's half has names of its own."""

    run_dir: Path | None
    fraction: float
    least: int
    available: int
    num_clients: int | None
    public_loss: Callable[[ArrayRecord], float] | None
    distil: Callable[[ArrayRecord, ArrayRecord, int], ArrayRecord] | None
    overrides: tuple[str, ...]


class AppStrategy(FederatedStrategy):
    """Base of the methods' server halves in `fedpriv.flower`.

    Args:
        run_dir: folder for config, ledger, metrics, model, summary and report; one that holds an interrupted run with
            the same options goes on with it. None: none is kept.
        fraction_train, min_train_nodes, min_available_nodes: as of Flower's FedAvg: the share of the nodes that a round
            asks, how many at least, and how many must be there before the first round.
        num_clients: nodes that may take part in the run. None: those that are there when it starts.
        delta: of the epsilons that are reported.
        variant: repaired or published.
        target_epsilon: chooses the method's noise so that the whole run costs this much.
        seed: of cohorts and of a trusted server's noise, for simulations that can be repeated. None: chance.
        secure_sum: who adds up, of methods whose clients send whole numbers: ideal (in simulation), protocol, assumed.
        local: options of the clients' training, for `Trainer`: lr, batch_size, epochs, steps, momentum, sampler.
        public_loss: (arrays) -> loss on public examples, of methods that follow one.
        distil: (teacher, student, round) -> arrays, of methods that distil on public examples; None: they do not.
        overrides: further options as on the command line: ``["privacy.accountant=opacus"]``.
        options: of the method, by name, with the defaults of its YAML file.

    Raises:
        OptionError: for an option that there is not, or a value that is not allowed. What several options must fit
            together for, and the number of nodes and rounds, is seen in `start`.
    """

    method: ClassVar[str]
    #: What the last run cost; None before its end.
    privacy: Privacy | None = None

    def __init__(
        self,
        *,
        run_dir: str | Path | None = None,
        fraction_train: float = 1.0,
        min_train_nodes: int = 2,
        min_available_nodes: int = 2,
        num_clients: int | None = None,
        delta: float = 1e-5,
        variant: str = "repaired",
        target_epsilon: float | None = None,
        seed: int | None = None,
        secure_sum: str | None = None,
        local: Mapping[str, Any] | None = None,
        public_loss: Callable[[ArrayRecord], float] | None = None,
        distil: Callable[[ArrayRecord, ArrayRecord, int], ArrayRecord] | None = None,
        overrides: Sequence[str] = (),
        **options: Any,
    ) -> None:
        refuse_outside(self.method)
        refuse_seed(seed)
        if not 0 < fraction_train <= 1:
            raise OptionError("fraction_train", fraction_train, "more than 0, and at most 1")
        most = {} if num_clients is None else {"num_clients": num_clients}
        least = {"min_train_nodes": min_train_nodes, "min_available_nodes": min_available_nodes}
        for name, number in (least | most).items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise OptionError(name, number, "a whole number of at least 1")
        if self.needs_public_loss and public_loss is None:
            words = f"{self.method} follows a loss on public examples: a function of an ArrayRecord"
            raise OptionError("public_loss", "None", words)
        schema = options_of(self.method)
        check_named(schema, options, self.method)
        check_named(LocalConfig, local or {}, "local")
        if "distillation_epochs" in schema.model_fields and distil is None:
            options.setdefault("distillation_epochs", 0)
        composed = [
            f"strategy={self.method}",
            "dataset=on_nodes",
            "dataset.classes=[app, model]",
            "model=app",
            "engine=flower",
            "engine.trainer=sequential",
            f"seed={secrets.randbelow(2**31) if seed is None else seed}",
            f"privacy.rng={'secure' if seed is None else 'seeded'}",
            f"privacy.variant={variant}",
            f"privacy.delta={delta}",
            f"privacy.target_epsilon={'null' if target_epsilon is None else target_epsilon}",
            *([] if secure_sum is None else [f"strategy.secure_sum={secure_sum}"]),
            *(f"local.{name}={json.dumps(value)}" for name, value in (local or {}).items()),
            *(f"{spelled(schema, name)}={json.dumps(value)}" for name, value in options.items()),
            *overrides,
        ]
        folder = None if run_dir is None else Path(run_dir)
        shares = fraction_train, min_train_nodes, min_available_nodes, num_clients
        self._app = _Settings(folder, *shares, public_loss, distil, tuple(composed))

    def config(self, nodes: int, num_rounds: int, examples: Sequence[int] = ()) -> Config:
        """The run's configuration. examples: declared ones of each client; (): not known."""
        asked = min(nodes, max(self._app.least, round(self._app.fraction * nodes)))
        declared = list(examples) or [1] * nodes
        run = [f"num_clients={nodes}", f"clients_per_round={asked}", f"num_rounds={num_rounds}"]
        found = compose([*self._app.overrides, *run, f"dataset.examples={declared}"])
        halves = (found.strategy.server, found.strategy.client)
        fixed = {
            "strategy": (found.strategy.name, self.method),
            "dataset": (found.dataset.name, "on_nodes"),
            "model": (found.model.name, "app"),
            "privacy.max_epsilon": (found.privacy.max_epsilon, None),  # a client keeps its own
            "privacy.mechanism": (found.privacy.mechanism, None),  # clients would have another release than is priced
            "privacy.across_sites": (found.privacy.across_sites, 1),  # clients price their own rows alone
            "strategy._target_": (halves, tuple(target(self.method, half) for half in HALVES)),
        }
        for option, (value, allowed) in fixed.items():
            if value != allowed:
                raise OptionError(f"overrides: {option}", value, f"in an app it is {allowed or 'null'}")
        return found

    # --- Flower's interface ------------------------------------------------------------------------------------

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """As of Flower's own strategies. Clients are not asked to evaluate: their answers would leave without noise.
        One strategy and one start for a run of Flower's: a client keeps to the options and rounds of its first answer.

        Raises:
            OptionError: for a model, a number of nodes or an ``evaluate_config`` that cannot be.
            RunFailed: where too few nodes answer.
        """
        if evaluate_config is not None:
            words = "clients do not evaluate, since their answers would leave without noise; allowed: None, evaluate_fn"
            raise OptionError("evaluate_config", dict(evaluate_config), words)
        self.privacy = None
        if not isinstance(initial_arrays, ArrayRecord):
            raise OptionError("initial_arrays", type(initial_arrays).__name__, "must be an ArrayRecord")
        form, theta = Form.of(initial_arrays)
        config = dict(train_config or {})
        apps = AppGrid(grid, form, config, timeout, self.method, self._app.run_dir)
        apps.wait_for(self._app.available, self._app.num_clients)
        nodes = self._app.num_clients or len(apps.known)
        with self._folder() as path, locked(path):
            found = _with_form(self.config(nodes, num_rounds, apps.examples(nodes)), form, timeout)
            return self._run(found, path, form, theta, apps, evaluate_fn)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        if self._app.run_dir is not None:
            yield self._app.run_dir
            return
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "run"

    def _run(
        self, config: Config, path: Path, form: Form, theta: FloatVector, apps: AppGrid, evaluate_fn: Any
    ) -> Result:
        folder, began = RunFolder(path), time.perf_counter()
        interrupted = (path / "config.yaml").exists() and not folder.finished
        if not interrupted:
            folder.refuse_used()
        config = with_target(config.model_copy(update={"run_dir": str(folder.path)}))
        if interrupted:
            asked, config = config, read_config(path, Config.model_fields)
            for name in ("num_rounds", "strategy", "model", "local", "privacy"):
                if getattr(asked, name) != getattr(config, name):
                    words = f"holds an interrupted run whose {name} is another; allowed: its own options, a new folder"
                    raise OptionError("run_dir", path, words)
        worker = Worker(config)
        worker.model.load(torch.from_numpy(theta))
        worker._initial = torch.from_numpy(theta.copy())
        result = Result()
        with watched(config, folder.path) as monitor:
            if interrupted:
                checkpoint = folder.load_checkpoint(config)
            else:
                checkpoint = None
                folder.begin(config)
            session = Session(
                config, folder, worker, make_plan(config, worker), began, monitor, checkpoint, interrupted, self
            )
            session.evaluate = Evaluated(form, worker, evaluate_fn, result, lambda: self.current.number)  # type: ignore[assignment]
            self._ask_the_user(form, worker)
            apps.begin(_terms(config, worker), worker)
            if evaluate_fn is not None and not interrupted:
                session.evaluate(theta)
            try:
                session.serve(apps, session.planned)  # type: ignore[arg-type]
                summary = session.finish()
            finally:
                self.let_go()
        result.arrays = form.record(worker.whole_model(session.theta))
        self.privacy = _privacy(summary["privacy"], self._app.run_dir)
        return result

    def _ask_the_user(self, form: Form, worker: Worker) -> None:
        """What the half asks of data is asked of the user's functions."""
        public_loss, distilled = self._app.public_loss, self._app.distil

        def whole(theta: FloatVector) -> ArrayRecord:
            return form.record(worker.whole_model(theta))

        def distil(teacher: FloatVector, student: FloatVector, number: int) -> FloatVector:
            assert distilled is not None
            found = distilled(whole(teacher), whole(student), number)
            return form.flat([array.numpy() for array in found.values()])[worker.shared]

        if public_loss is not None:
            self.hooks = replace(self.hooks, public_loss=lambda theta: float(public_loss(whole(theta))))
        if distilled is not None:
            self.hooks = replace(self.hooks, distil=distil)


def _with_form(config: Config, form: Form, timeout: float) -> Config:
    model = config.model.model_copy(update={"arrays": form.floats})
    engine = config.engine.model_copy(update={"round_timeout": timeout})
    return config.model_copy(update={"model": model, "engine": engine})


def _terms(config: Config, worker: Worker) -> Terms:
    """What every client is told."""
    half = make_client(config)
    facts = asdict(half.facts) if half.traits.needs_facts else {}
    options = method_options(config)
    plain = {"num_rounds": config.num_rounds, "clients_per_round": config.clients_per_round}
    known = {"num_examples": 1, "smallest": 1, "batch_size": config.local.batch_size, "num_clients": config.num_clients}
    return Terms(
        config.method,
        config.privacy.variant,
        half.run.unit,
        json.loads(options.model_dump_json()),
        {**known, **plain, **facts},
        json.loads(config.local.model_dump_json()),
        "",
        release_digest(config).hex(),
        config.clients_asked,
        config.seed if config.privacy.rng == "seeded" else 0,
    )


def _privacy(found: Mapping[str, Any], folder: Path | None) -> Privacy:
    claimed = found["claimed_epsilon"]
    return Privacy(
        found["unit"],
        found["adjacency"],
        found["observer"],
        found["delta"],
        None if claimed is None else float(claimed),
        float(found["verified_epsilon"]),
        tuple(found["reasons"]),
        folder,
    )


class Evaluated:
    """The user's own evaluation in the place of ours."""

    def __init__(
        self, form: Form, worker: Worker, evaluate_fn: Any, result: Result, current: Callable[[], int]
    ) -> None:
        self.form, self.worker, self.evaluate_fn, self.result, self.current = form, worker, evaluate_fn, result, current

    def __call__(self, theta: FloatVector) -> Score:
        number = self.current()
        if self.evaluate_fn is None:
            return Score({}, "loss", False)
        whole = self.form.record(self.worker.whole_model(theta) if theta.size < self.form.size else theta)
        found = self.evaluate_fn(number, whole)
        if found is not None:
            self.result.evaluate_metrics_serverapp[number] = found
        numbers = {name: float(value) for name, value in (found or {}).items() if isinstance(value, int | float)}
        leading = "accuracy" if "accuracy" in numbers else next(iter(numbers), "loss")
        return Score(numbers, leading, leading != "loss")

    def by_site(self, theta: FloatVector) -> list[Any]:
        return []

    def details(self, theta: FloatVector) -> dict[str, Any]:
        return {}


class AppGrid:
    """Any grid of Flower's, whose nodes run an app with the method's client half (`ClientGrid`).

    Each node is asked who it is, `MOST_ASKED` times at most; one that leaves and comes back keeps its number.
    """

    in_order = False
    carries_cohorts = False

    def __init__(
        self,
        grid: Grid,
        form: Form,
        config: Mapping[str, Any],
        timeout: float,
        method: str,
        folder: Path | None = None,
    ) -> None:
        self.grid, self.form, self.config, self.timeout, self.method = grid, form, config, timeout, method
        self.unnamed: Counter[str] = Counter()
        self.file = None if folder is None else folder / NODES
        kept = mapping_in(folder, NODES) if folder is not None and (folder / NODES).exists() else {}
        #: node -> client, of a run that goes on: the account of a number is one node's.
        self.before = {int(node): int(number) for node, number in kept.items()}
        self.known: dict[int, int] = {}  # client -> node
        self._said: dict[int, Mapping[str, float]] = {}  # node -> what it said of itself
        self._refused: dict[int, str] = {}  # node -> why it takes no part
        self._asked_who = Counter[int]()  # node -> how often
        self._most: int | None = None
        self._shared: tuple[Any, ArrayRecord] = (None, ArrayRecord())  # the newest (content, its arrays)

    def begin(self, terms: Terms, worker: Worker) -> None:
        """Before the first round of a run."""
        self.terms = Terms(**{**vars(terms), "parts": self.form.to_json()})
        self.worker, self._most = worker, most_bytes(self.form.size)
        self._keep_numbers()

    def _keep_numbers(self) -> None:
        if self.file is not None and self._most is not None:
            self.before |= {node: client for client, node in self.known.items()}
            write_atomic(self.file, json.dumps(self.before, indent=1) + "\n")

    def wait_for(self, least: int, most: int | None) -> None:
        """Waits until so many nodes have said who they are. Raises `RunFailed`."""
        self.most = most
        deadline = time.monotonic() + min(self.timeout, PATIENCE)
        while True:
            self._meet()
            again = any(node in self._refused for node in self._strangers())
            if len(self.known) >= least and not again:
                return
            if time.monotonic() > deadline or (self._refused and not self.known and not again):
                why = "; ".join(dict.fromkeys(self._refused.values()))
                words = f"{len(self.known)} nodes can take part, min_available_nodes={least} are needed"
                raise RunFailed(f"{words}{f': {why}' if why else ''}")
            time.sleep(0.2)

    def examples(self, nodes: int) -> list[int]:
        """What each client has declared; 1 where it has not, yet."""
        of = {client: int(self._said[node][EXAMPLES]) for client, node in self.known.items()}
        return [max(1, of.get(client, 1)) for client in range(nodes)]

    def _strangers(self) -> list[int]:
        """Nodes to ask who they are: those never asked before the others."""
        there = set(self.grid.get_node_ids()) - set(self.known.values())
        new = [node for node in sorted(there) if self._asked_who[node] < MOST_ASKED]
        return sorted(new, key=self._asked_who.__getitem__)

    def _meet(self) -> None:
        new = self._strangers()
        if self.most is not None:
            new = new[: self.most - len(self.known)]
        if not new:
            return
        self._asked_who.update(new)
        for reply in as_they_come(self.grid, [hello(node) for node in new], min(self.timeout, PATIENCE)):
            node, found = reply.metadata.src_node_id, from_app(reply, 2**16)
            if found.has_error():
                self._refused[node] = f"{reason_of(found)} (its app needs the client half of {self.method})"
                self.unnamed[refusal_name(found.error.code)] += 1
                continue
            said: Any = {PARTITION: -1.0, EXAMPLES: 0.0, **(found.content.metric_records.get(STATISTICS) or {})}
            if not -1 <= said[PARTITION] <= MOST_ROUND or not 0 <= said[EXAMPLES] <= MOST_ROUND:  # nor NaN
                self._refused[node], self._asked_who[node] = f"a node says of itself {shown(said)}", MOST_ASKED
                continue
            self._said[node] = said
            self._refused.pop(node, None)
        self._number([node for node in new if node in self._said])

    def _number(self, nodes: Sequence[int]) -> None:
        """A node keeps its number; a new one is the client of its partition, if that is free, else the first that
        nobody ever was.
        """
        late = []
        total = self.most or len(self.known) + len(nodes)
        self.known |= {self.before[node]: node for node in nodes if node in self.before}
        for node in nodes:
            partition = int(self._said[node][PARTITION])
            if node in self.before:
                continue
            if 0 <= partition < total and partition not in self.known:
                self.known[partition] = node
            else:
                late.append(node)
        taken = {*self.known, *self.before.values()}
        free = (client for client in range(total) if client not in taken)
        self.known.update(zip(list(free), late, strict=False))
        self._keep_numbers()

    # --- ClientGrid ------------------------------------------------------------------------------------------------

    def nodes(self) -> Mapping[int, int]:
        if self.most is not None and len(self.known) < self.most:
            self._meet()
        there = set(self.grid.get_node_ids())
        return {client: node for client, node in self.known.items() if node in there}

    def client_of(self, node: int) -> int:
        return next((client for client, known in self.known.items() if known == node), -1)

    def receive(self, messages: Iterable[Message], timeout: float) -> Iterable[Message]:
        asked = [self._asked(message) for message in messages]
        answered, reasons = 0, Counter[str]()
        for reply in as_they_come(self.grid, asked, timeout):
            found = from_app(reply, self._most or 0)
            failed = found.has_error() and found.error.code == Refusal.FAILED
            reasons.update([reason_of(found)] if failed else [])
            answered += not failed
            yield found
        if reasons and not answered:  # also where a method goes on without replies: these come of no chance
            words = "; ".join(f"{times} x {reason}" for reason, times in reasons.most_common(5))
            raise RunFailed(f"no client has answered: {words}")

    def _asked(self, message: Message) -> Message:
        if self._shared[0] is not message.content.get("arrays"):
            self._shared = message.content.get("arrays"), self._arrays(message)
        client = self.client_of(message.metadata.dst_node_id)
        message.content = to_app(message, self.terms, client, self.config, self._shared[1])
        return message

    def _arrays(self, message: Message) -> ArrayRecord:
        """All of theta comes down, also where a part of it is the clients' own: theirs begin at the initial model's."""
        return down(message, self.form, self._whole(read_request(message.content).round))

    def _whole(self, server_round: int) -> Callable[[FloatVector], FloatVector]:
        half, layout = self.worker.method, self.worker.model.layout
        if not half.traits.keeps_layers:
            return lambda vector: vector

        def whole(vector: FloatVector) -> FloatVector:
            found: FloatVector = self.worker.initial_model.numpy().copy()
            found[half.layers(layout, server_round).down] = vector
            return found

        return whole
