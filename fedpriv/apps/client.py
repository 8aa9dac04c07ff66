"""The client half of a method around an app's own training, in Flower's three forms over one code: a `NumPyClient`, an
object that answers messages, and a mod before a ClientApp that knows nothing of this project.

What binds is decided here: noise is the operating system's unless this client's own code names a seed; options that it
names are the only ones it takes; a budget is kept by a ledger in a folder of the client's, which outlives Flower's
contexts, and a line is on the disk before its release leaves.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedpriv.apps.form import Form
from fedpriv.apps.trainer import FunctionTrainer, Trained, Trainer
from fedpriv.apps.wire import (
    ANSWER_METRICS,
    ANSWER_PARAMETERS,
    EXAMPLES,
    FIT_CONFIG,
    FIT_PARAMETERS,
    HELLO,
    OURS,
    PARTITION,
    Told,
    answer,
    refused,
    said_in,
    told,
)
from fedpriv.client.base import Client, OneNumPyClient
from fedpriv.client.contract import PublicFacts, RunFacts, Site
from fedpriv.client.memory import ClientMemory, ContextStore, read_memory
from fedpriv.common.errors import OptionError, PolicyRefused, WrongForm
from fedpriv.common.identities import named_identity
from fedpriv.common.messages import RUN, STATISTICS, MalformedMessage, Outgoing, Refusal, shown
from fedpriv.config.halves import locate, schema_of
from fedpriv.config.method_pairs import target
from fedpriv.config.methods import METHODS, NOISE_OPTIONS
from fedpriv.config.options import MethodOptions
from fedpriv.config.schema import CODE, LocalConfig
from fedpriv.config.strategy_options import HALVES, OwnOptions, check_named, checked
from fedpriv.deployment.data_ledger import private_file, wait_for_lock
from fedpriv.engines.worker import refused_as
from fedpriv.privacy.events import Account
from fedpriv.privacy.ledger import LedgerFile
from fedpriv.training.flat_model import Layout, layout_of
from fedpriv.training.models import declared_model
from fedpriv.training.sequential import LocalData

log = logging.getLogger("fedpriv")

#: A user's own training: (arrays, config) -> (arrays, number of examples) or (arrays, number, metrics).
Train = Callable[[list[NDArray[Any]], dict[str, Any]], Trained]
#: A mod of Flower's.
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
#: Programs of Flower's that run an app's halves on real machines.
DEPLOYED = ("flwr-clientapp", "flwr-serverapp")
#: Of a function's own data, which only it reads.
NO_ROWS = LocalData(torch.zeros(0), torch.zeros(0))
_TERMS = "fedpriv-terms"  # in Context.state: digest of the terms that the client's state belongs to


#: Methods that no app can use, and why.
NOT_IN_APPS = {
    "ask": "trains no model: it sums what rows say; allowed: fedpriv.ask (docs/statistics.md)",
    "moments": "trains no model: it sums what rows say; allowed: python -m fedpriv (docs/features.md)",
    "fedonce": "trains a linear model on public features of its own; allowed: python -m fedpriv (docs/fedonce.md)",
}


@cache
def options_of(method: str) -> type[MethodOptions]:
    """The schema of a method's options; one of a user's own names it by an annotation of its classes."""
    if method in METHODS:
        return METHODS[method]
    server, client = (locate(target(method, half), f"strategy.{half}._target_") for half in HALVES)
    return schema_of(server, client, OwnOptions.model_construct(written={}))


def refuse_outside(method: str) -> None:
    """Raises `OptionError` for a method that no app can use."""
    if (why := NOT_IN_APPS.get(method)) is not None:
        raise OptionError("strategy", method, why)


def is_deployed() -> bool:
    """Whether Flower runs this process for an app on real machines."""
    return Path(sys.argv[0]).name in DEPLOYED


def refuse_seed(seed: int | None) -> None:
    """Raises `OptionError` for a seed where Flower runs an app on real machines."""
    if seed is not None and is_deployed():
        words = "whoever knows a seed knows the noise: in a deployment it is the operating system's; allowed: None"
        raise OptionError("seed", seed, words)


def needs_a_trainer(kind: type[Client]) -> str | None:
    """Why an app's own training is not enough for a method, in words; None where it is."""
    if kind.traits.clips_examples:
        return "clips the gradient of each example"
    return "takes local steps of its own" if kind.traits.own_steps else None


class AppClient(OneNumPyClient):
    """Base of the methods' client halves in `fedpriv.flower`.

    Args:
        train: the app's own training, `Train`, or a `Trainer` around a module and its data.
        context: Flower's, whose state holds the method's. None: that of the message that is answered.
        folder: of this client's own: ledger.jsonl says there what left. Needed for ``max_epsilon``. Whoever deletes it
            forgets what was spent.
        max_epsilon: what all releases in that ledger may cost together, at ``delta``; what would exceed it is refused.
        delta: of that epsilon.
        seed: for simulations whose noise can be repeated; None: the operating system's noise.
        variant: repaired or published; a server that asks for the other one is refused.
        num_examples: this client's declared count, which is public. None: a `Trainer`'s own, or that of ``train``.
        trusts_server: whether the server may have updates as they are: where it adds the noise, or nobody does. Only
            of methods with noise; those without any, such as FedAvg, have it anyway.
        options: of the method, by name: a server that asks for other values is refused. What is not named here is the
            server's choice, and the ledger says what it was.

    Raises:
        OptionError: for an option that the method has not, or a value that is not allowed.
    """

    method: ClassVar[str]

    def __init__(
        self,
        train: Train | Trainer,
        *,
        context: Context | None = None,
        folder: str | Path | None = None,
        max_epsilon: float | None = None,
        delta: float = 1e-5,
        seed: int | None = None,
        variant: str = "repaired",
        num_examples: int | None = None,
        trusts_server: bool = False,
        **options: Any,
    ) -> None:
        refuse_seed(seed)
        refuse_outside(self.method)
        check_named(options_of(self.method), options, self.method)
        if not callable(train) and not isinstance(train, Trainer):
            raise OptionError("train", type(train).__name__, "a function of (arrays, config), or a Trainer")
        if (why := needs_a_trainer(self.kind())) and not isinstance(train, Trainer):
            words = f"{self.method} {why}; allowed: Trainer(model, loss, data)"
            raise OptionError("train", getattr(train, "__name__", type(train).__name__), words)
        if max_epsilon is not None and folder is None:
            words = "a budget needs folder=, where its ledger outlives this process; allowed: None"
            raise OptionError("max_epsilon", max_epsilon, words)
        for option, limit in (("max_epsilon", max_epsilon), ("delta", delta)):
            if limit is not None and not 0 < limit < (1 if option == "delta" else math.inf):
                raise OptionError(option, limit, "more than 0" + (" and less than 1" if option == "delta" else ""))
        if variant not in ("repaired", "published"):
            raise OptionError("variant", variant, "allowed: repaired, published")
        self.work, self.context, self.folder = train, context, None if folder is None else Path(folder)
        self.max_epsilon, self.delta, self.seed, self.variant = max_epsilon, delta, seed, variant
        self.num_examples, self.trusts_server, self.options = num_examples, trusts_server, options

    @classmethod
    def kind(cls) -> type[Client]:
        """The method's own class."""
        return cast(type[Client], locate(target(cls.method, "client"), "strategy.client._target_"))

    # --- Flower's three forms --------------------------------------------------------------------------------

    def fit(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> Any:
        """As of every `NumPyClient`."""
        context = self.context or _context_of_flower()
        if context is None:  # outside Flower: this object is the client
            context = self.context = Context(0, 0, {}, RecordDict(), {})
        return self.answered(parameters, config, context)

    def train(self, message: Message, context: Context) -> Message:
        """The answer to a train message: for ``@app.train()``."""
        return self.message_answered(message, context)

    @classmethod
    def mod(cls, **given: Any) -> Mod:
        """A mod before a ClientApp of anybody's: ``ClientApp(mods=[fedcad_mod()])``. What the app answers to a train
        message is released by the method; other messages it does not see. given: as of the class, without ``train``.
        """
        cls(lambda arrays, config: (arrays, 1), **given)  # its errors now, not at the first message

        def private(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
            if message.metadata.message_type != "train":
                words = f"{message.metadata.message_type}: the app's answer would leave without noise"
                return _as_message(refused(Refusal.POLICY, words), message)
            client = cls(lambda arrays, config: (arrays, 1), **given)
            client.work = _App(message, context, call_next)
            return client.message_answered(message, context)

        private.method = cls.method  # type: ignore[attr-defined]  # `fedpriv check` sends it to the method's audit
        return private

    def message_answered(self, message: Message, context: Context) -> Message:
        content = message.content
        record = content.array_records.get(FIT_PARAMETERS) or ArrayRecord()
        config = dict(content.config_records.get(FIT_CONFIG) or {})
        arrays = [array.numpy() for name, array in record.items() if not name.startswith("_")]
        return _as_message(self.answered(arrays, config, context), message)

    # --- the one code below ----------------------------------------------------------------------------------

    def answered(self, arrays: list[NDArray[Any]], config: Mapping[str, Any], context: Context) -> Any:
        """What leaves in one exchange; a refusal where nothing does. The reason of a failure stays in this client's own
        log: it may tell of data.
        """
        try:
            if HELLO in said_in(config):
                partition = context.node_config.get(PARTITION, -1)
                told_of = {PARTITION: float(partition), EXAMPLES: float(self.declared or 0)}
                return answer(Outgoing(1, statistics=told_of), STATISTICS)
            return self._trained(told(config, arrays), context)
        except (MalformedMessage, OptionError, PolicyRefused) as error:  # of the message and of this client's options
            return refused(Refusal.FAILED, str(error))
        except Exception as error:
            code, words = refused_as(error)
            if code == Refusal.FAILED:
                log.exception("%s: no answer leaves", type(self).__name__)
                words = "its own log says why"
            return refused(code, words)

    @property
    def declared(self) -> int | None:
        """The declared number of examples; None: not known before training."""
        return self.work.num_examples if isinstance(self.work, Trainer) else self.num_examples

    def _trained(self, asked: Told, context: Context) -> Any:
        terms, options = asked.terms, self._options(asked)
        form = Form.from_json(terms.parts, asked.arrays[1:])
        local = LocalConfig.model_validate(dict(terms.local))
        _refuse_code(local)
        layout = _layout(form)
        facts = self._facts(terms.facts, layout)
        trainer = self._trainer(form, local, asked)
        with self._store(context) as store:
            _same_terms(context, store, asked)
            site = Site(
                client=asked.client,
                num_examples=facts.num_examples,
                load_data=self._rows,
                trainer=trainer,
                store=store,
                seed=self.seed if self.seed is not None else terms.seed,
                rng="secure" if self.seed is None else "seeded",
                delta=self.delta,
                max_epsilon=self.max_epsilon,
                layout=layout,
                initial=torch.from_numpy(asked.arrays[0].copy()) if asked.arrays else None,
                identity=named_identity(context.node_config),
                run_id=context.run_id if self.seed is None else 0,
                options_digest=bytes.fromhex(terms.digest),
                most_members=terms.members,
                population=facts.num_clients,
                clients=(asked.client,),
            )
            half = self.kind()(options, RunFacts(self.variant, facts, site))  # an app's rows have no persons
            _refuse_in_the_open(half, options, self.max_epsilon is not None and self.seed is None)
            self._refuse_without_noise(half, options)
            self._refuse_two_budgets(half, store)
            if asked.request.exchange not in half.traits.exchanges:
                raise MalformedMessage(f"{self.method} has no exchange {shown(asked.request.exchange)}")
            received = self._received(half, layout, asked)
            found = half.answer(asked.request, received)
        if self.seed is None:
            found = replace(found, figures={})  # they are for an experimenter who owns both sides
        if options.weighting == "examples":
            found = replace(found, num_examples=self.declared or int(getattr(trainer, "examples", 1)))
        else:
            found = replace(found, num_examples=1)  # nobody weighs by it, so nobody is told
        return answer(found, asked.request.exchange)

    def _refuse_without_noise(self, half: Client, options: MethodOptions) -> None:
        """Raises `PolicyRefused` where the server's options leave this client's update without noise of its own."""
        if not half.books_itself and self.max_epsilon is not None:
            raise PolicyRefused("the server adds the noise, so no budget is kept here: max_epsilon=None")
        private = any(name in type(options).model_fields for name in NOISE_OPTIONS)
        why = "the server adds the noise" if not half.books_itself else half.exact_leak()
        if private and why is not None and not self.trusts_server:
            raise PolicyRefused(f"{why}, and this client does not say trusts_server=True")
        if private and why is None and options.weighting == "examples" and self.declared is None:
            words = "a count that training returns may tell of data"
            raise PolicyRefused(f"weighting=examples needs a declared count: num_examples=, since {words}")

    def _refuse_two_budgets(self, half: Client, store: AppStore) -> None:
        """Raises `PolicyRefused` where a budget would leave out what the ledger holds under another threat model: every
        release is booked under its method's own first, so the ledger's first line tells.
        """
        if self.max_epsilon is None:
            return
        memory = read_memory(store)
        first = next(iter(memory.account.counts), None)
        if half.traits.clips_examples and first is not None and memory.account.participations == 0:
            words = "the ledger of folder= holds another run, and a run's samples of examples are priced as a whole"
            raise PolicyRefused(f"{words}: max_epsilon= keeps one run, and this is a further one")
        if first is not None and first[0].threat != half.threat:
            words = "holds releases under another threat model, whose epsilons are never added up"
            raise PolicyRefused(f"the ledger of folder= {words}: max_epsilon= needs a folder for each")

    def _facts(self, told: Mapping[str, Any], layout: Layout) -> PublicFacts:
        """The run's public facts, where this client does not know better than the server."""
        examples = self.declared or int(told["num_examples"])
        own = {"num_examples": examples, "smallest": min(examples, int(told["smallest"]))}
        of_tables = {"flat_inputs": 0, "risk_classes": 0}
        return PublicFacts(**{**told, **own, "num_parameters": layout.num_parameters, **of_tables})

    def _rows(self, rows: NDArray[np.int64] | None = None) -> LocalData:
        return self.work.rows(rows) if isinstance(self.work, Trainer) else NO_ROWS

    def _options(self, asked: Told) -> MethodOptions:
        """The server's options, where they are this client's too. Raises `PolicyRefused`, `OptionError`."""
        terms = asked.terms
        if terms.method != self.method:
            raise PolicyRefused(f"the server runs {shown(terms.method)}, and this client is {type(self).__name__}")
        if terms.variant != self.variant:
            raise PolicyRefused(f"the server asks for variant={shown(terms.variant)}, this client is {self.variant}")
        options = checked(options_of(self.method), dict(terms.options), {})
        for name, value in self.options.items():
            if (said := getattr(options, name)) != value:
                raise PolicyRefused(f"the server asks for {name}={shown(said)}, this client takes {value} alone")
        return options

    def _trainer(self, form: Form, local: LocalConfig, asked: Told) -> Any:
        if isinstance(self.work, Trainer):
            return self.work.of(form, local)
        if isinstance(self.work, _App):
            self.work.form = form
        config = {**asked.config, "server-round": asked.request.round}
        return FunctionTrainer(self.work, form, local, config)

    @staticmethod
    def _received(half: Client, layout: Layout, asked: Told) -> NDArray[np.float32] | None:
        """What came down of theta (float32 [d_down]); the message brings all of it, whatever travels."""
        if not asked.arrays:
            return None
        vector = np.asarray(asked.arrays[0], np.float32)
        whole = layout.num_parameters * half.traits.vectors_down
        if vector.shape != (whole,):
            raise MalformedMessage(f"{vector.size} numbers came down, expected {whole}", "wrong_shape")
        return vector[half.layers(layout, asked.request.round).down] if half.traits.keeps_layers else vector

    @contextmanager
    def _store(self, context: Context) -> Iterator[AppStore]:
        if self.folder is None:
            yield AppStore(context, None)
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with private_file(self.folder / "lock") as file:
            wait_for_lock(file, self.folder)
            yield AppStore(context, LedgerFile(self.folder / "ledger.jsonl", fsync=True))


class AppStore(ContextStore):
    """The method's state in ``Context.state``; with a ledger, what was spent is what that says, of every run, whatever
    became of the contexts.
    """

    def __init__(self, context: Context, ledger: LedgerFile | None) -> None:
        super().__init__(context)
        self.ledger = ledger

    def load(self) -> ClientMemory | None:
        found = super().load()
        if self.ledger is None:
            return found
        account = Account(self.ledger.read().entries)
        of_this_run = (found or ClientMemory()).account
        account.participations, account.last = of_this_run.participations, of_this_run.last
        return replace(found or ClientMemory(), account=account, uncollected=())

    def keep(self, memory: ClientMemory) -> None:
        if self.ledger is not None:
            self.ledger.append(memory.uncollected)
            memory = replace(memory, uncollected=())
        super().keep(memory)


def _same_terms(context: Context, store: AppStore, asked: Told) -> None:
    """Raises `PolicyRefused` where a run's terms have changed since this client's first answer: its state and its
    price are of the earlier ones.
    """
    told = [vars(asked.terms), asked.client, asked.request.options.get(RUN)]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    before, memory = context.state.get(_TERMS), read_memory(store)
    begun = memory.answer is not None or memory.waiting is not None
    if begun and isinstance(before, ConfigRecord) and before["digest"] != digest:
        words = "a second start of a strategy needs a run of its own, by `flwr run`"
        raise PolicyRefused(f"the server's run or options are others than at this client's first answer: {words}")
    context.state[_TERMS] = ConfigRecord({"digest": digest})


def _refuse_code(local: LocalConfig) -> None:
    """Raises `PolicyRefused` where the server names a function: it would be called here with the examples as they are,
    whatever function of this machine it is.
    """
    for room, _, name in (option.partition(".") for option in CODE):
        if room == "local" and (path := getattr(local, name)) is not None:
            raise PolicyRefused(f"the server names code, local.{name}={shown(path)}: this client runs its own alone")


def _refuse_in_the_open(half: Client, options: MethodOptions, keeps_budget: bool) -> None:
    """Raises `PolicyRefused` on a real machine for what rests on other clients, if a server in the middle could be all
    of them, or sees what it adds up; the latter also for a budget, which is of sums then.
    """
    if getattr(options, "secure_sum", "") == "ideal" and (is_deployed() or keeps_budget):
        raise PolicyRefused("the server would see what it is to see in sums alone; allowed: secure_sum=protocol")
    if not is_deployed():
        return
    if (half.traits.needs_identity or getattr(options, "secure_sum", "") == "protocol") and half.site.identity is None:  # type: ignore[union-attr]
        raise PolicyRefused("needs identity keys: node-config identity-key and peer-keys (docs/deploy.md)")


_layouts: dict[str, Layout] = {}  # the newest, by the form's text


def _layout(form: Form) -> Layout:
    if (text := form.to_json()) not in _layouts:
        _layouts.clear()
        with torch.device("meta"):  # of a server's sizes: nothing is allocated
            _layouts[text] = layout_of(declared_model(form.floats))
    return _layouts[text]


def _context_of_flower() -> Context | None:
    """The context of the message that Flower's handler of older clients is answering: it does not hand it on."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "handle_legacy_message_from_msgtype":
            return cast(Context, frame.f_locals["context"])
        frame = frame.f_back
    return None


def _is_older(call_next: Any) -> bool:
    """Whether a `NumPyClient` stands behind the mods: Flower's own function around ``client_fn`` ends their chain. To
    try both forms would make the client twice, with its data.
    """
    held = inspect.getclosurevars(call_next).nonlocals if inspect.isfunction(call_next) else {}
    return "client_fn" in held or ("_ffn" in held and _is_older(held["_ffn"]))


def _as_message(answer: tuple[list[NDArray[Any]], int, dict[str, Any]], message: Message) -> Message:
    arrays, _, metrics = answer
    content = {ANSWER_PARAMETERS: ArrayRecord(arrays), ANSWER_METRICS: ConfigRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]


class _App:
    """An app behind a mod, as a `Train` function: it gets the arrays under their own names in both of Flower's forms,
    and what it answers is read by names.
    """

    def __init__(self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> None:
        self.message, self.context, self.call_next = message, context, call_next
        self.form: Form | None = None

    def __call__(self, arrays: list[NDArray[Any]], config: dict[str, Any]) -> Trained:
        assert self.form is not None, "the trainer says which arrays these are"
        record = ArrayRecord(dict(zip([name for name, _, _ in self.form.parts], map(Array, arrays), strict=True)))
        own = ConfigRecord({name: value for name, value in config.items() if name != OURS})
        if _is_older(self.call_next):
            reply = self._asked({FIT_PARAMETERS: record, FIT_CONFIG: own})
        else:
            reply = self._asked({"arrays": record, "config": own})
        if reply.has_error():
            raise RuntimeError(f"the app answers with an error: {reply.error.reason}")
        return self._read(reply)

    def _asked(self, content: dict[str, Any]) -> Message:
        asked = Message(RecordDict(content), reply_to=self.message)  # a client may begin no message of its own
        asked.metadata.__dict__.update(self.message.metadata.__dict__)
        return self.call_next(asked, self.context)

    def _read(self, reply: Message) -> Trained:
        if OURS in (reply.content.config_records.get(ANSWER_METRICS) or {}):
            raise WrongForm("behind the mod stands another client half: is the mod there twice?")
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise RuntimeError(f"the app answers with {len(records)} records of arrays, expected one")
        assert self.form is not None
        names, found = [name for name, _, _ in self.form.parts], records[0]
        if set(names) <= set(found):  # by name, in whatever order
            arrays = [found[name].numpy() for name in names]
        elif set(found) == {str(place) for place in range(len(names))}:  # a NumPyClient has no names
            arrays = [found[str(place)].numpy() for place in range(len(names))]
        else:
            raise WrongForm(f"the app answers with the arrays {list(found)}, expected {names}")
        content = reply.content
        beside: list[Mapping[str, Any]] = [*content.metric_records.values(), *content.config_records.values()]
        numbers = {name.replace("_", "-"): value for record in beside for name, value in record.items()}
        metrics = {"train_loss": numbers["train-loss"]} if isinstance(numbers.get("train-loss"), float) else {}
        return arrays, int(numbers.get("num-examples", 1)), metrics
