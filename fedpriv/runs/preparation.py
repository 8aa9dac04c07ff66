"""From a checked configuration to what a run works with: its plan, its trainer and engine, its server half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedpriv.client.build import client_class, exchanges_of, flat_inputs, make_client, person_word, risk_classes
from fedpriv.common.doing import doing
from fedpriv.common.errors import OptionError
from fedpriv.common.systems import cores
from fedpriv.config.halves import half_class, method_options
from fedpriv.config.methods import PFLOptions
from fedpriv.config.schema import Config, FaultPlan
from fedpriv.data import FederatedData, ResampledPartition
from fedpriv.data.onnx_graphs import read_graph
from fedpriv.data.weights import ONNX, beside, read_weights
from fedpriv.deployment.policy import Policy
from fedpriv.engines.worker import Worker
from fedpriv.report.live.progress import figure
from fedpriv.report.words import often
from fedpriv.runs.planning import Elsewhere, Plan, make_plan, plan_elsewhere, with_target
from fedpriv.runs.round_updates import refuse_unseen
from fedpriv.server.optimizers import Optimizer
from fedpriv.server.round import NO_HOOKS, Distil, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.training.distillation import DistillationOptions, Distiller
from fedpriv.training.evaluation import Evaluator
from fedpriv.training.language_models import text_of
from fedpriv.training.models import build_model, resolve_model
from fedpriv.training.trained_part import frozen_tensors, trained_words


def resolve(config: Config, folder: Path | None) -> tuple[Config, Worker, Plan]:
    """Replaces every ``auto`` and the noise of `privacy.target_epsilon`, and plans the run. Trains on no examples."""
    import torch

    server_class(config)  # refused before anything is written
    config = with_weights(config)
    doing("reading and dividing the examples")
    worker = Worker(config)
    dataset = worker.data.dataset
    model = resolve_model(config.model, dataset.shape, client_class(config).traits.keeps_layers, text_of(dataset))
    doing("choosing the noise" if config.privacy.target_epsilon else "checking the options")
    config = with_target(config.model_copy(update={"model": model, "run_dir": str(folder) if folder else None}))
    check_sampler(config, worker.data)
    check_budget(config)
    refuse_unseen(config)
    check_faults(config)
    doing("choosing the trainer")
    choice = choose_trainer(config, worker)
    engine = config.engine.model_copy(update={"trainer": choice.trainer})
    config = config.model_copy(update={"engine": engine})
    worker = Worker(config)
    check_model(config, worker)
    if worker.foreign and config.dataset.name != "on_nodes":
        _ = worker.trainer  # which tries the code
    doing("planning: what the run will cost")
    plan = make_plan(config, worker)
    gain = GAIN if choice.trainer == "vectorised" else 1
    plan = replace(plan, seconds=plan.seconds / gain, trainer=f"{choice.trainer}: {choice.reason}{_together(worker)}")
    workers = max(1, min(config.engine.workers or cores(), config.clients_per_round))
    name = resolve_engine(config, plan.seconds, workers, seconds_of_carrying(config, plan, workers))
    device = str(worker.model.theta.device.type)
    engine = config.engine.model_copy(update={"name": name, "device": device})
    config = config.model_copy(update={"engine": engine})
    torch.set_num_threads(config.engine.threads_per_client)
    return config, worker, plan


def with_weights(config: Config) -> Config:
    """With the SHA-256 of `model.weights` and `features.weights`, so that a run that goes on, or is repeated, has the
    same. Raises `OptionError`.
    """
    changed = {"model": _named_weights("model", config.model, config.model.weights is not None)}
    changed["features"] = _named_weights("features", config.features, config.features.name == "backbone")
    return config.model_copy(update=changed)


def _named_weights(group: str, options: Any, needed: bool) -> Any:
    if not needed:
        for name in ("weights", "weights_sha256", "trained_on"):
            if (value := getattr(options, name)) is not None:
                raise OptionError(f"{group}.{name}", value, f"needs {group}.weights; allowed: null")
        return options
    if options.weights is None:
        raise OptionError(f"{group}.weights", "null", "backbone needs the file of a state dict; allowed: a path")
    if not options.trained_on:
        words = "say what the weights were trained on: reports repeat it as public knowledge; allowed: a text"
        raise OptionError(f"{group}.trained_on", "null", words)
    option, architecture = f"{group}.weights", getattr(options, "architecture", "")
    if architecture == ONNX:
        digest = read_graph(options.weights, option, options.weights_sha256).sha256
    else:
        config = beside(architecture, options.weights)
        digest = read_weights(options.weights, option, options.weights_sha256, config).sha256
    return options.model_copy(update={"weights_sha256": digest})


def _together(worker: Worker) -> str:
    """How a cohort's releases are computed, where clients train together."""
    if worker.config.engine.trainer != "vectorised":
        return ""
    reason = worker.why_apart or worker.why_single_messages
    return "; clients release as rows" if reason is None else f"; clients release one after the other: {reason}"


def server_class(config: Config) -> type[FederatedStrategy]:
    """The server half of the configured method. Raises `OptionError`, also for options that it does not take."""
    found = half_class(config, "server")
    if not issubclass(found, FederatedStrategy):
        raise OptionError("strategy.server._target_", found.__name__, "must be a subclass of FederatedStrategy")
    method_options(config)
    return found


def make_strategy(
    config: Config,
    worker: Worker,
    attempt: int = 0,
    run: str = "",
    hooks: Hooks = NO_HOOKS,
    made: FederatedStrategy | None = None,
) -> FederatedStrategy:
    """The method's server half with its options, and what it needs of data. made: an app's, set up in place of a new
    one; its user has functions of data for it.
    """
    client, layout = make_client(config), worker.model.layout
    start = client.layers(layout, 1).held.start
    population = Population(
        config.seed,
        config.num_clients,
        config.clients_per_round,
        worker.num_examples,
        config.engine.round_timeout,
        config.privacy.rng,
        attempt,
        (lambda number: client.layers(layout, number).seen_from(start)) if client.traits.keeps_layers else None,
        tuple(slice(block.start, block.stop) for block in layout.blocks),
        config.clients_asked,
        run,
        len(worker.data.dataset.classes) + worker.data.dataset.task.baseline,
        worker.options_digest,
        flat_inputs(config, layout),
        layout.shapes[0][0],
        client.threat,
        config.num_rounds,
        config.privacy.across_sites,
        config.model.name == "app",
        risk_classes(config, layout),
    )
    kind = server_class(config)
    options = method_options(config)
    if kind.needs_public_loss and made is None:
        public = Evaluator(worker, auxiliary=True)
        hooks = replace(hooks, public_loss=lambda theta: public(worker.whole_model(theta)).loss)
    if isinstance(options, PFLOptions) and options.distillation_epochs and made is None:
        hooks = replace(hooks, distil=_distil(options, worker))
    strategy: FederatedStrategy = kind.__new__(kind) if made is None else made
    kind.__init__(strategy, population, options, hooks)
    if strategy.secret_cohorts and population.over_selects:
        words = "the guarantee rests on who is drawn, and the first to reply are no random sample: 1"
        raise OptionError("over_selection", config.over_selection, words)
    return strategy


def _distil(options: PFLOptions, worker: Worker) -> Distil:
    """Distillation of the layers that the server holds; all others are its own copy of the initial ones."""
    chosen = DistillationOptions(
        options.distillation_epochs,
        options.distillation_batch_size,
        options.distillation_lr,
        options.distillation_loss,
        options.temperature,
    )
    distiller, whole, shared = Distiller(worker, chosen), worker.whole_model, worker.shared
    return lambda teacher, student, number: distiller(whole(teacher), whole(student), shared, number)[shared]


def check_faults(config: Config) -> None:
    """A fault planned for an exchange that the method does not have would never happen."""
    known, faults = exchanges_of(config), config.engine.faults
    for number, fault in enumerate(() if isinstance(faults, FaultPlan) else faults):
        if fault.exchange not in known:
            words = f"{config.strategy.name} has: {', '.join(known)}"
            raise OptionError(f"engine.faults.{number}.exchange", fault.exchange, words)


def check_budget(config: Config) -> None:
    """A budget is refused where no release has a finite price: nobody would ever release anything."""
    limit, client = config.privacy.max_epsilon, make_client(config)
    if limit is None:
        return
    first = [charge.realised or charge.event for charge in client.all_charges()]
    own = [event for event in first if event.threat == client.threat]
    reasons = [why for event in own if (why := event.why_unbounded())]
    if reasons or not client.keeps_budget:
        words = f"no budget can be kept: {reasons[0] if reasons else 'no noise'}; allowed: null, or a method with noise"
        raise OptionError("privacy.max_epsilon", limit, words)


def check_model(config: Config, worker: Worker) -> None:
    """Raises `OptionError` for Opacus' formulas where no examples' gradients are clipped, and for a model of one's own
    whose frozen part is not the same in every process, or whose examples' gradients cannot be told apart for certain,
    where they are clipped one by one.
    """
    clips = client_class(config).traits.clips_examples
    if config.local.clipping == "opacus" and not clips:
        words = f"{config.strategy.name} clips no gradients of single examples; allowed: fedpriv"
        raise OptionError("local.clipping", "opacus", words)
    if config.model.name == "custom" and (frozen := frozen_tensors(worker.model.module)):
        data = worker.data.dataset
        statistics, text = worker.model.statistics is not None, text_of(data)
        again = frozen_tensors(
            build_model(
                config.model, data.shape, len(data.classes), config.seed, text, True, statistics, data.task.baseline
            )
        )
        changed = [name for name, value in frozen.items() if not value.equal(again[name])]
        if changed:
            words = f"{changed[0]} is not trained, and is another each time that the model is built; draw it by torch"
            raise OptionError("model.path", config.model.path or "null", words)
    optimizer = Optimizer(config.strategy.options)
    if worker.model.statistics is not None and not optimizer.plain:
        option, value = ("optimizer", optimizer.name) if optimizer.name != "sgd" else ("lr", optimizer.lr)
        words = "moves running statistics (BatchNorm) by more than their mean, a variance below 0 may come of it"
        raise OptionError(f"strategy.server.{option}", value, f"{words}; allowed: optimizer=sgd lr=1")
    if config.model.buffers == "local" and worker.model.statistics is None:
        words = "the model has no BatchNorm, whose layers would stay with their client; allowed: averaged"
        raise OptionError("model.buffers", "local", words)
    if config.model.name == "custom" and clips:
        worker.trainer.per_example(worker.data.dataset.shape, units=worker.by_person)


def check_sampler(config: Config, data: FederatedData) -> None:
    """A Poisson rate batch_size / n_k is at most 1."""
    if config.local.sampler == "poisson":
        fewest = int(data.partition.num_train.min())
        if config.local.batch_size > fewest:
            raise OptionError(
                "local.batch_size",
                config.local.batch_size,
                f"local.sampler=poisson: the smallest client has {fewest} examples; local.sampler=shuffle needs none",
            )


def resolve_engine(config: Config, seconds_of_work: float, workers: int, seconds_of_carrying: float) -> str:
    """What ``engine=auto`` means here: ``ray`` where several GPUs are there or where ``workers``
    save more than Ray's start-up and messages cost; ``inprocess`` otherwise.

    seconds_of_work: estimated time of all local training in one process.
    """
    if config.engine.name != "auto":
        return config.engine.name
    import torch

    if torch.cuda.device_count() > 1:
        return "ray"
    if torch.cuda.is_available() or config.engine.device == "cuda":
        return "inprocess"
    saved = seconds_of_work * (1 - 1 / workers) - seconds_of_carrying
    return "ray" if saved > 2 * RAY_STARTUP_SECONDS else "inprocess"


def why_on_gpus() -> str:
    """Why ``engine=auto`` took what it did on this machine's GPUs, in words; empty where it has none."""
    import torch

    if torch.cuda.device_count() > 1:
        return f"ray: it has {torch.cuda.device_count()} GPUs, one or a share of one for each worker"
    if not torch.cuda.is_available():
        return ""
    return "inprocess: one GPU trains a cohort as one batch in one process (engine=ray shares it among several)"


#: Starting Ray and its workers, importing torch in each: seen 8 to 15 s on two cores.
RAY_STARTUP_SECONDS = 15.0
#: What Ray's messages take, at most, on busy cores: a round, each worker's message in it, each client's memory in that,
#: and a byte of what leaves or comes (a client's state travels beside its release, both ways).
PER_ROUND, PER_MESSAGE, PER_CLIENT, PER_BYTE = 0.01, 0.003, 2e-4, 1e-8


def seconds_of_carrying(config: Config, plan: Plan, workers: int) -> float:
    """What a run's messages take on Ray beside the same work in this process."""
    clients = config.num_rounds * config.clients_asked
    messages = config.num_rounds * (PER_ROUND + workers * PER_MESSAGE)
    return messages + clients * PER_CLIENT + (plan.bytes_up + plan.bytes_down) * PER_BYTE


# --- engine.trainer=auto: a rule from measurements of cohorts of 32 clients (docs/engines.md) -------------------------
#
# Clients side by side share the fixed cost of a step, which is most of a small one. A run's config.yaml holds what was
# chosen.

#: Cohorts below this have nothing to share.
FEWEST_CLIENTS = 8
#: Largest batch of a client on a CPU, and most parameters on a GPU, with which the vectorised trainer was faster.
MOST_EXAMPLES, MOST_PARAMETERS = 100, 10**6
#: Most parameters times examples of a batch, on a CPU: a step's products beyond fill a core whoever is beside them. Of
#: MLPs, sequential over vectorised was 1.0 to 1.1 at 1e7 (batches of 100), 0.8 to 1.1 at 1.2e7 (30, 60), 0.5 to 0.8 at
#: 2.4e7 and above, and 1.1 to 1.3 at 8e6 (10); pairs of 8 to 16 clients, one thread.
MOST_PRODUCTS = 10**7
#: How many times faster it is, for a plan's seconds: about the middle of that table.
GAIN = 2.0


class Choice(NamedTuple):
    trainer: str
    reason: str


def choose_trainer(config: Config, worker: Worker) -> Choice:
    """What `engine.trainer` means here. Raises `OptionError` where ``vectorised`` is asked for and impossible, naming
    the layer.
    """
    from fedpriv.training.vectorisable import obstacle

    asked = config.engine.trainer
    if asked == "sequential":
        return Choice(asked, "as asked")
    reason = _why_not(config, worker) or (_why_not_faster(config, worker) if asked == "auto" else None)
    reason = reason or obstacle(worker.model, worker.data.dataset.shape)
    if asked == "auto":
        return Choice("sequential", reason) if reason else Choice("vectorised", "small steps, which clients share")
    if reason is not None:
        raise OptionError("engine.trainer", asked, f"{reason}; allowed: auto, sequential")
    return Choice(asked, "as asked")


def _by_hand(config: Config, worker: Worker) -> bool:
    from fedpriv.training.stacked_gradients import Chain

    return config.engine.precision == "float32" and Chain.of(worker.model.module, worker.model.task) is not None


def _why_not(config: Config, worker: Worker) -> str | None:
    """What besides the model forbids vectorised training, in words."""
    if config.engine.name == "flower":
        return "engine=flower gives every client a message of its own, one at a time"
    if config.local.train is not None:
        return "local.train trains one client at a time"
    if config.local.clipping == "opacus":
        return "local.clipping=opacus clips client by client: its formulas know one set of parameters"
    if client_class(config).traits.clips_examples and not _by_hand(config, worker):
        return f"per-example gradients of model={config.model.name} are clipped client by client"
    return None


def _why_not_faster(config: Config, worker: Worker) -> str | None:
    """Why the sequential trainer is taken to be as fast, in words."""
    if config.clients_per_round < FEWEST_CLIENTS:
        return f"fewer than {FEWEST_CLIENTS} clients a round"
    if worker.model.theta.device.type != "cpu":
        large = len(worker.model.theta) > MOST_PARAMETERS
        return f"more than {MOST_PARAMETERS:,} parameters" if large else None
    if not _by_hand(config, worker):
        return f"model={config.model.name} is no chain of linear layers in float32"
    partition = worker.data.partition
    share = len(worker.data.dataset.train) // config.num_clients  # the same whichever seed divides them
    if isinstance(partition, ResampledPartition):
        share = int(partition.num_train[0])
    batch = min(share, config.local.batch_size)
    if batch > MOST_EXAMPLES:
        return f"batches of more than {MOST_EXAMPLES}"
    if batch * len(worker.model.theta) > MOST_PRODUCTS:
        return f"more than {MOST_PRODUCTS:,} parameters times examples of a batch"
    return None


#: How the name of a line begins that says what a node would refuse.
REFUSED = "the policy refuses"


def _parameters(worker: Worker) -> str:
    size, shared = worker.model.layout.num_parameters, worker.shared
    held = shared.stop - shared.start
    return str(size) if held == size else f"{size}, of which {held} are shared"


def _public_knowledge(config: Config) -> dict[str, str]:
    from fedpriv.data.features import known_beforehand

    known, part = known_beforehand(config), config.model.train
    trained = {} if part == "all" else {"trained": f"{trained_words(config.model)}; the rest is no coordinate"}
    return trained if known == "none" else {"public knowledge": known, **trained}


def _beside(plan: Plan | Elsewhere) -> str:
    return "" if plan.other is None else f"; {plan.other[0]} {figure(plan.other[1])}"


def plan_rows(config: Config, policy: Policy | None = None) -> dict[str, str]:
    """Name -> value of every line, the last about what a node with this policy would do. Trains nothing."""
    from fedpriv.deployment.gate import would_refuse

    config, worker, plan = resolve(config, None)
    claim = plan.claim
    claimed = f"{figure(claim.epsilon)} (scope {claim.scope}; {claim.equation})" if claim else "nothing is claimed"
    person = "".join(f" (all rows of one {word})" for word in person_word(config).values())
    across = f" at up to {config.privacy.across_sites} clients" if config.privacy.across_sites > 1 else ""
    threat = f"unit {plan.threat.unit}{person}{across}, {plan.threat.adjacency}, observer {plan.threat.observer}"
    rows = {
        "method": f"{config.method} ({config.privacy.variant}), {config.model.name}, {config.dataset.name}",
        **_public_knowledge(config),
        "rounds": f"{config.num_rounds}, {config.clients_asked} of {config.num_clients} clients each; "
        f"a client takes part {often(*plan.participations)}",
        "parameters": _parameters(worker),
        "claimed epsilon": claimed,
        "verified epsilon": f"{figure(plan.verified_epsilon)} (median {figure(plan.verified_median)}; "
        f"{plan.accountant}){_beside(plan)}",
        **({} if plan.by_opacus is None else {"Opacus' epsilon": plan.by_opacus.words}),
        "threat model": f"{threat}, delta {config.privacy.delta:g}",
        **{
            f"and against {other.threat.observer}": f"{figure(other.verified_epsilon)} (median "
            f"{figure(other.verified_median)}; {other.accountant}){_beside(other)}"
            for other in plan_elsewhere(config)
        },
        "bytes up / down": f"{plan.bytes_up:,} / {plan.bytes_down:,}",
        "estimated time": f"{plan.seconds:.0f} s of local training on one worker; engine {config.engine.name}",
        "trainer": plan.trainer,
    }
    client = make_client(config)
    options: Any = client.options  # these have a schema, also of a method of one's own
    chosen = getattr(client, "noise_multiplier", None)
    if hasattr(options, "noise_multiplier") and chosen is not None:
        rows["noise multiplier"] = f"{chosen:.6g} (standard deviation / clip_norm)"
    if (field := type(options).model_fields.get("clip_norm")) is not None:
        what, update = field.description, options.clip_norm * config.local.lr
        own = f": {update:g} of the update" if str(what).endswith("/ local.lr") else ""
        rows["clip norm"] = f"{options.clip_norm:g} ({what}{own})"
    rows |= {f"reason {number}": reason for number, reason in enumerate(plan.reasons, 1)}
    if policy is not None:
        wrong = would_refuse(policy, config, plan.participations[1])
        rows |= {f"{REFUSED} {number}": words for number, words in enumerate(wrong, 1)}
        rows |= {} if wrong else {"policy": "admits this run, on a ledger without releases"}
    return rows
