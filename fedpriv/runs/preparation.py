"""From a checked configuration to what a run works with: its plan, its trainer and engine, its server half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.client.build import client_class, exchanges_of, flat_inputs, make_client
from fedpriv.common.doing import doing
from fedpriv.common.errors import OptionError
from fedpriv.common.systems import cores
from fedpriv.config.halves import half_class, method_options
from fedpriv.config.methods import PFLOptions
from fedpriv.config.schema import Config, FaultPlan
from fedpriv.data import FederatedData
from fedpriv.data.networks import read_weights
from fedpriv.engines.choice import resolve_engine
from fedpriv.engines.worker import Worker
from fedpriv.runs.planning import Plan, make_plan, with_target
from fedpriv.runs.round_updates import refuse_unseen
from fedpriv.runs.trainer_choice import GAIN, choose_trainer
from fedpriv.server.optimizers import Optimizer
from fedpriv.server.round import NO_HOOKS, Distil, Hooks, Population
from fedpriv.server.strategy import FederatedStrategy
from fedpriv.training.distillation import DistillationOptions, Distiller
from fedpriv.training.evaluation import Evaluator
from fedpriv.training.language_models import text_of
from fedpriv.training.models import build_model, resolve_model
from fedpriv.training.trained_part import frozen_tensors


def resolve(config: Config, folder: Path | None) -> tuple[Config, Worker, Plan]:
    """Replaces every ``auto`` and the noise of `privacy.target_epsilon`, and plans the run. Trains nothing."""
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
    check_precision(config)
    check_budget(config)
    refuse_unseen(config)
    check_faults(config)
    doing("choosing the trainer")
    choice = choose_trainer(config, worker)
    engine = config.engine.model_copy(update={"trainer": choice.trainer})
    config = config.model_copy(update={"engine": engine})
    worker = Worker(config)
    check_model(config, worker)
    doing("planning: what the run will cost")
    plan = make_plan(config, worker)
    gain = GAIN if choice.trainer == "vectorised" else 1
    plan = replace(plan, seconds=plan.seconds / gain, trainer=f"{choice.trainer}: {choice.reason}{_together(worker)}")
    name = resolve_engine(config, plan.seconds, config.engine.workers or cores())
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
    found = read_weights(options.weights, f"{group}.weights", options.weights_sha256)
    return options.model_copy(update={"weights_sha256": found.sha256})


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
        len(worker.data.dataset.classes),
        worker.options_digest,
        getattr(config.strategy.options, "colluders", 0),
        flat_inputs(config, layout),
        layout.shapes[0][0],
        client.threat,
        config.num_rounds,
        config.model.name == "app",
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
            build_model(config.model, data.shape, len(data.classes), config.seed, text, statistics=statistics)
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
    if config.model.name == "custom" and clips:
        worker.trainer.per_example(worker.data.dataset.shape, units=worker.by_person)


def check_precision(config: Config) -> None:
    """Raises `OptionError` for mixed precision where per-example gradients are clipped: the norm that is compared with
    the bound and the gradient that is summed would be rounded apart.
    """
    asked = config.engine.precision
    if asked != "float32" and client_class(config).traits.clips_examples:
        words = f"{config.strategy.name} clips the gradients of single examples, and their norms must be exact"
        raise OptionError("engine.precision", asked, f"{words}; allowed: float32")


def check_sampler(config: Config, data: FederatedData) -> None:
    """A Poisson rate batch_size / n_k is at most 1."""
    if config.local.sampler == "poisson":
        fewest = int(data.partition.num_train.min())
        if config.local.batch_size > fewest:
            raise OptionError(
                "local.batch_size",
                config.local.batch_size,
                f"local.sampler=poisson: the smallest client has {fewest} examples",
            )
