"""A client's own machine in a deployment: policy, data folder and ledger are checked around every message.

A simulated client has none of this. On a node, node-config (written by its operator, not the server) names the policy
and the data folder; every request must pass both or is answered with a refusal code.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from flwr.app import Context
from torch import nn

from fedpriv.client.base import Client
from fedpriv.client.build import ClientMaker, client_class, may_keep_statistics
from fedpriv.client.contract import BudgetSpent, Charge
from fedpriv.client.masked_sum import kept, make_room
from fedpriv.client.memory import ClientMemory, read_memory
from fedpriv.common.errors import OptionError, PolicyRefused
from fedpriv.common.files import fsync_folder, staged
from fedpriv.common.messages import STATISTICS, TRAIN, Refusal, Request, run_name
from fedpriv.config.methods import AskOptions
from fedpriv.config.schema import Config
from fedpriv.config.sum_checks import release_digest
from fedpriv.data.asked import num_outputs_of
from fedpriv.data.features import model_input
from fedpriv.data.networks import network_size
from fedpriv.data.table_rows import schema_of_dataset, task_of
from fedpriv.deployment.approved_weights import with_own_weights
from fedpriv.deployment.data_ledger import PRIVATE, DataLedger, Signer, note_refusal, signer_of
from fedpriv.deployment.declaration import Declared, DeclaredTable
from fedpriv.deployment.node_audit import hear
from fedpriv.deployment.policy import Booked, Policy, Spent, objections, one_participation, read_policy, too_dear
from fedpriv.privacy.events import Entry
from fedpriv.training.language_models import Text, text_for
from fedpriv.training.models import build_model, resolve_model

POLICY, DATA = "policy", "data"  # keys of node-config
MOST_STATES = 32  # runs whose state is kept


@dataclass(frozen=True)
class Node:
    """What node-config names: this client's number, its policy file, its data folder, and its identity's key."""

    client: int
    policy_file: Path
    data: Path
    identity: Path | None = None

    @classmethod
    def of(cls, context: Context) -> Node:
        """Raises `OptionError` where node-config does not name both as absolute paths."""
        named = {name: context.node_config.get(name) for name in (POLICY, DATA)}
        for name, value in named.items():
            if not isinstance(value, str) or not Path(value).is_absolute():
                raise OptionError(f"node-config {name}", value, "must be an absolute path; policy and data go together")
        client = int(context.node_config["partition-id"])
        key = context.node_config.get("identity-key")
        return cls(client, Path(str(named[POLICY])), Path(str(named[DATA])), None if key is None else Path(str(key)))

    @property
    def signer(self) -> Signer | None:
        """Who signs the heads of this node's ledger. Raises `OptionError` for a key that cannot be read."""
        return None if self.identity is None else signer_of(self.identity, "node-config identity-key")

    @contextmanager
    def answering(self, config: Config, request: Request) -> Iterator[Gate]:
        """Context for one message: the data folder is locked, and the run's options are checked against the policy.

        Raises `PolicyRefused`, `LedgerRefused`, `OptionError`, `MalformedMessage`.
        """
        policy = read_policy(self.policy_file)
        require_on_nodes(config)
        if not 1 <= request.round <= config.num_rounds:
            raise PolicyRefused(f"round {request.round} of num_rounds={config.num_rounds}")
        with DataLedger(self.data, Path(policy.counter), self.signer).held() as ledger:
            ledger.sign_on()
            declared = ledger.declared()
            if wrong := declared.objections(config.dataset, policy):
                raise PolicyRefused("; ".join(wrong))
            own = self.effective(with_own_weights(policy.weights, config), declared)
            gate = Gate(self, policy, ledger, own, run_name(request), request.round)
            gate.admit_options()
            yield gate

    def effective(self, config: Config, declared: Declared | DeclaredTable) -> Config:
        """A run's configuration on this machine: own examples, own cache, secure noise and sampling, and the trainer of
        one client, whatever a server says.
        """
        own = {"cache": str(self.data / PRIVATE / "cache"), "test_root": None, **declared.own_options(self.data)}
        dataset = config.dataset.model_copy(update=own)
        privacy = config.privacy.model_copy(update={"rng": "secure"})
        engine = config.engine.model_copy(update={"trainer": "sequential"})
        return config.model_copy(update={"dataset": dataset, "privacy": privacy, "engine": engine, "run_dir": None})

    def note(self, code: Refusal, reason: str) -> None:
        """For the operator: see `note_refusal`."""
        note_refusal(self.data, code, reason)


def require_on_nodes(config: Config) -> None:
    """Raises `PolicyRefused` for a run that brings its own data."""
    if config.dataset.name != "on_nodes":
        raise PolicyRefused(f"dataset={config.dataset.name}: this machine trains on its own examples, on_nodes")


def run_objections(policy: Policy, config: Config, examples: int) -> list[str]:
    """What a node of so many examples refuses of a run's options, its own files of weights among them."""
    if policy.limits.max_parameters < (size := numbers_held(config)):
        words = "parameters, frozen ones and a backbone's among them"
        return [f"model: {size} {words}: limits.max_parameters is {policy.limits.max_parameters}"]
    return objections(policy, config, examples)


def would_refuse(policy: Policy, config: Config, turns: int, own: tuple[int, DataLedger] | None = None) -> list[str]:
    """What a node with this policy, no spent budget and the data that the run declares would refuse, by its own checks.

    config: of the whole run, its noise chosen. turns: how often a client takes part at most. own: of one node, its
    client's number and its ledger, whose declaration and releases count. Each entry names the clients, the option or
    price, and the bound.
    """
    dataset = config.dataset
    try:
        require_on_nodes(config)
        config = with_own_weights(policy.weights, config)
    except PolicyRefused as refused:
        return [str(refused)]
    wrong = [] if policy.bundles or policy.guard else ["bundles: []: this policy approves of no app"]
    if own is not None:
        declared = own[1].declared()
        wrong += [*declared.objections(dataset, policy), *_other_count(config, own[0], declared.examples)]
    elif dataset.is_table:
        declared = DeclaredTable(0, "", str(dataset.schema_file))
        digest = dataset.schema_digest or declared.digest
        wrong += declared.objections(dataset.model_copy(update={"schema_digest": digest}), policy)
    maker = ClientMaker(config)
    counts: dict[str, list[str]] = {}
    for examples in dict.fromkeys(dataset.examples if own is None else [own[1].declared().examples]):
        client = maker.make(examples=examples)
        found = [*run_objections(policy, config, examples), *too_dear(policy, client)]
        for words in found or over_budget(policy, config, client, turns, own[1] if own else None):
            counts.setdefault(words, []).append(str(examples))
    return wrong + [f"of clients with {', '.join(numbers)} examples: {words}" for words, numbers in counts.items()]


def _other_count(config: Config, client: int, declared: int) -> list[str]:
    counts = list(config.dataset.examples)
    if client < len(counts) and counts[client] == declared:
        return []
    return [f"dataset.examples={counts}: client {client} has declared {declared}"]


def over_budget(
    policy: Policy, config: Config, client: Client, turns: int, ledger: DataLedger | None = None
) -> list[str]:
    """Which participation of ``turns`` a node refuses first, and why. ledger: None is an empty one."""
    before, fixed = (ledger.spent(), ledger.accounting()) if ledger else (Spent(), None)
    booked, fixed, part = one_participation(client), policy.accounting(fixed, before), query_share(policy, config)

    def why(turn: int) -> str | None:
        spent = Spent()
        spent.times.update(before.times)
        if turn:
            spent.add(booked, turn)
        return policy.refusal(spent, booked, (), fixed, part)

    first = bisect_left(range(turns), True, key=lambda turn: why(turn) is not None)
    return [] if first == turns else [f"participation {first + 1} of {turns}: {why(first)}"]


def query_share(policy: Policy, config: Config) -> float:
    """The part of each budget that a run may spend: that of questions, for a run that asks."""
    asks = isinstance(config.strategy.options, AskOptions)
    return policy.queries.share if asks and policy.queries is not None else 1.0


def model_size(config: Config) -> int:
    """Number of parameters of a run's model that are trained, without allocating them."""
    return sum(parameter.numel() for parameter in _model_form(config).parameters())


def numbers_held(config: Config) -> int:
    """All numbers of a run's model and of the network that computes its features, frozen ones too, without allocating
    them.
    """
    return sum(value.numel() for value in _model_form(config).state_dict().values()) + network_size(config.features)


def _model_form(config: Config) -> nn.Module:
    """A run's model without its numbers."""
    dataset, schema = config.dataset, None
    shape: tuple[int, ...]
    text: Text | None = None
    baseline = 0
    if dataset.is_table:
        schema = schema_of_dataset(dataset)
        task = task_of(schema)
        shape, text, baseline = (schema.num_inputs,), text_for(schema.vocabulary, task), task.baseline
    else:
        assert dataset.size is not None, "on_nodes says the size"
        shape = model_input(config.features, (dataset.channels, dataset.size, dataset.size))
    with torch.device("meta"):
        chosen = resolve_model(config.model, shape, client_class(config).traits.keeps_layers, text)
        outputs, statistics = num_outputs_of(config, schema), may_keep_statistics(config)
        return build_model(chosen, shape, outputs, 0, text, False, statistics, baseline)


class Gate:
    """The only way out of a node while a message is answered: the client's store, and the check before its work."""

    def __init__(
        self, node: Node, policy: Policy, ledger: DataLedger, config: Config, run: str, server_round: int
    ) -> None:
        self.node, self.policy, self.ledger, self.config, self.run = node, policy, ledger, config, run
        self._accounting, self._same_round = ledger.settle(policy), ledger.of_round(run, server_round)
        self._part = query_share(policy, config)
        # A run's state is used only with the same options: its noise is in units of their noise multiplier. Options
        # that members of a sum do not sign make no second state, which would have a second set of keys.
        key = hashlib.sha256(run.encode() + b"/" + release_digest(config)).hexdigest()[:32]
        self._path = ledger.folder / "runs" / f"{key}.safetensors"
        self._before = read_memory(self)
        self._client: Client | None = None
        self._booked = False

    def admit_options(self) -> None:
        """Checks the run's options against the policy and the declaration. Raises `PolicyRefused`."""
        self.ledger.require_client(self.run, self.node.client)
        examples = self.ledger.declared().examples
        wrong = run_objections(self.policy, self.config, examples)
        if wrong := wrong + _other_count(self.config, self.node.client, examples):
            raise PolicyRefused("; ".join(wrong))

    def admit(self, client: Client) -> None:
        """Checks the method against the policy; from now on this client is the one that releases. Raises
        `PolicyRefused`.
        """
        if client.traits.needs_identity and (client.site is None or client.site.identity is None):
            words = "clients share secrets, and without identity-key and peer-keys a server in the middle knows them"
            raise PolicyRefused(f"strategy={self.config.strategy.name}: {words}")
        if wrong := too_dear(self.policy, client):
            raise PolicyRefused(f"strategy={self.config.strategy.name}: {'; '.join(wrong)}")
        self._client = client

    # --- before the work: the client's guard ---------------------------------------------------------------

    def check(self, charges: Sequence[Charge]) -> None:
        """Raises `BudgetSpent` unless these charges may leave. `write` checks again what is actually booked."""
        entries = [Entry(0, 0, 0, 0, charge.event, charge.realised, bool(charge.adaptive)) for charge in charges]
        self._refuse_beyond_policy(entries)

    def _refuse_beyond_policy(self, entries: Sequence[Entry]) -> Booked:
        assert self._client is not None, "admit comes first"
        booked = Booked(tuple(entries), self._client.threat, self._client.traits.shares_secrets)
        why = self.policy.refusal(self.ledger.spent(), booked, self._same_round, self._accounting, self._part)
        if why is not None:
            raise BudgetSpent(why)
        return booked

    # --- the client's store ----------------------------------------------------------------------------------

    def read(self) -> bytes | None:
        return kept(self._path)

    def keep(self, memory: ClientMemory) -> None:
        """Ledger, then state, then counter, each on the disk before the next; the message leaves after all of them.

        The state's bytes are written first, and become the state after the ledger's line: where the disk is full,
        nothing is booked of which nothing can leave.
        Raises `BudgetSpent`, OSError: then nothing may leave.
        """
        entries = memory.uncollected  # by this message alone: what is stored here holds none
        booked = self._refuse_beyond_policy(entries) if entries else None
        self._make_room()
        with staged(self._path, replace(memory, uncollected=()).to_bytes(), mode=0o600):
            if booked is not None:
                self.ledger.append(booked, self.run)
        if booked is not None:
            self._same_round.append(booked)
            self.ledger.confirm()
            self._booked = True

    def _make_room(self) -> None:
        """Keeps only the newest runs' states: a run whose state was dropped restarts and is charged again."""
        folder = self._path.parent
        if not folder.exists():
            folder.mkdir(mode=0o700)
            fsync_folder(folder.parent)
        make_room(self._path, MOST_STATES)

    def audit(self) -> None:
        """Canaries beside what was booked, where the policy names `in_run_audit`; nothing of them leaves."""
        if self.policy.in_run_audit is not None and self._booked and self._client is not None:
            hear(self.ledger.folder, self._path.stem, self.policy.in_run_audit, self._client)

    def require_booked(self, request: Request) -> None:
        """Raises `PolicyRefused` for a reply that is neither booked nor a repetition of a booked one."""
        assert self._client is not None, "admit comes first"
        exchange = request.exchange
        releases = exchange == TRAIN or (exchange == STATISTICS and self._client.statistics.names)
        if self._booked or not releases:  # neither keys nor empty statistics are a release
            return
        earlier = self._before.answer if exchange == TRAIN else self._before.waiting
        if earlier is None or (earlier.round, earlier.attempt) != (request.round, request.attempt):
            raise PolicyRefused("the method released something that it did not book")
