"""policy.yaml: what a client's own machine allows, regardless of what a server asks for.

A policy is checked twice: against a run's effective parameters before anything is computed (`objections`), and against
every release before it leaves (`Policy.refusal`). Its budgets bound the composition of everything that the data
folder's ledger holds, across runs, strategies and servers. SECURITY.md says what a policy cannot bind.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from omegaconf import OmegaConf
from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from fedpriv.common.errors import LedgerRefused, OptionError
from fedpriv.common.files import read_regular
from fedpriv.config.explain import first_option_error
from fedpriv.config.methods import CLIP_RANGE, METHODS, RowSumOptions
from fedpriv.config.options import Options
from fedpriv.config.own_options import CONF, group_choices
from fedpriv.config.schema import Config
from fedpriv.config.strategy_options import spelled
from fedpriv.config.yaml_text import with_tuples
from fedpriv.deployment.accounting import RESERVED, Accounting
from fedpriv.deployment.approved_weights import AllApproved
from fedpriv.deployment.guard_policy import CountsKind, CountsPolicy, GuardPolicy, Sha256
from fedpriv.deployment.queries import Queries, query_objections
from fedpriv.mechanisms.laws import ORDERS
from fedpriv.privacy.composition import Budget, compose
from fedpriv.privacy.events import SECURE_SUM, Entry, Event, NoBound, Threat

if TYPE_CHECKING:
    from fedpriv.client.base import Client

NOT_COVERED = "this release promises nothing under the policy's threat model"


class UnitBudget(Options):
    """The largest total epsilon of one unit of protection, over everything that the ledger holds."""

    unit: Literal["client", "example", "person"] = Field(
        description="whose data: all of this client's, one record, or all records of one person"
    )
    delta: float = Field(gt=0, lt=1, description="delta at which max_epsilon is stated")
    max_epsilon: float = Field(gt=0, description="largest epsilon of everything in the ledger")
    adjacency: Literal["replace-one", "zero-out", "add-or-remove-one"] = Field(
        default="replace-one", description="what neighbouring data sets differ in"
    )
    observer: Literal["server", "server+members", "secure-sum"] = Field(
        default="server", description="the server alone, or with all other clients; secure-sum: sums under masks alone"
    )

    @property
    def threat(self) -> Threat:
        return Threat(self.unit, self.adjacency, self.observer)

    @property
    def name(self) -> str:
        return f"{self.unit}, {self.adjacency}, {self.observer}, delta {self.delta:g}"


class Limits(Options):
    """Bounds on the effective parameters of every release and of the local training that produces it."""

    min_noise_multiplier: float = Field(
        gt=0,
        description="noise standard deviation / sensitivity of every release under its own adjacency "
        "(half of strategy.client.noise_multiplier where that is replace-one)",
    )
    max_round_epsilon: float = Field(
        gt=0, description="epsilon of all that leaves in one round of a run, all its attempts, at each budget's delta"
    )
    max_clip_norm: float = Field(gt=0, description="largest clip norm that a run may use or move to")
    max_sampling_rate: float = Field(gt=0, le=1, description="Poisson rate q of the batches")
    max_batch_size: int = Field(ge=1, description="local.batch_size")
    max_local_steps: int = Field(ge=1, description="batches of one participation")
    max_rounds: int = Field(ge=1, description="num_rounds of a run")
    min_survivors: int = Field(
        default=1, ge=1, description="clients whose vectors are in a secure sum before this machine helps to open it"
    )
    min_colluders: int = Field(default=0, ge=0, description="of these, helpers of the server that a run must assume")
    min_across_sites: int = Field(
        default=1, ge=1, description="clients with rows of one person that a run must count (privacy.across_sites)"
    )
    max_messages: int = Field(default=10_000, ge=1, description="messages in the ledger, over all runs")
    max_parameters: int = Field(default=50_000_000, ge=1, description="numbers of model and backbone, frozen or not")


class GuardInForce(Options):
    """Of a policy's section `guard`: what a certificate's words follow from."""

    apps: Literal["any"] | list[Sha256]
    sandbox: Literal["namespaces", "none"]
    pad_seconds: Annotated[float, Field(gt=0)] | None
    counts: dict[CountsKind, CountsPolicy]


class InForce(Options):
    """What a line of the ledger says of the policy under which messages leave from there on. sha256: of its file."""

    sha256: Sha256
    budgets: list[UnitBudget] = Field(min_length=1)
    bundles: list[Sha256]
    schemas: list[Sha256]
    weights: list[dict[Literal["sha256", "trained_on"], str]]
    guard: GuardInForce | None


class Policy(Options):
    """A policy file. accountant: gaussian admits Gaussian releases only, by their exact filter; renyi admits every
    mechanism, by a filter at one Renyi order that is fixed before the first release.
    """

    counter: str = Field(
        pattern="^/", description="file outside the data folder that vouches for the ledger's length; an absolute path"
    )
    budgets: tuple[UnitBudget, ...] = Field(min_length=1, description="every release must keep to all of them")
    accountant: Literal["gaussian", "renyi"] = Field(default="gaussian", description="how releases add up")
    order: float | None = Field(default=None, description="renyi: the order; null: the best one for Gaussians")
    strategies: tuple[str, ...] = Field(default=(), description="methods of fedpriv that may run")
    variants: tuple[Literal["repaired", "published"], ...] = Field(default=("repaired",), min_length=1)
    bundles: tuple[Sha256, ...] = Field(default=(), description="SHA-256 of every bundle that may run without a guard")
    schemas: tuple[Sha256, ...] = Field(default=(), description="of tables: SHA-256 of every schema that may be used")
    weights: AllApproved = Field(default=(), description="files of public weights that runs may use")
    queries: Queries | None = Field(default=None, description="questions of strategy=ask that are answered; null: none")
    in_run_audit: int | None = Field(default=None, ge=100, le=100_000, description="canaries that stay; null: none")
    limits: Limits
    guard: GuardPolicy | None = Field(default=None, description="foreign apps: what of their answers may leave")
    _sha256: str = PrivateAttr(default="")

    @property
    def in_force(self) -> dict[str, Any]:
        """What the ledger says of this policy."""
        weights = [{"sha256": one.sha256, "trained_on": one.trained_on} for one in self.weights]
        guard = None if self.guard is None else self.guard.model_dump(include={*GuardInForce.model_fields}, mode="json")
        found = self.model_dump(include={"budgets", "bundles", "schemas"}, mode="json")
        digest = self._sha256 or hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return {"sha256": digest, **found, "weights": weights, "guard": guard}

    @field_validator("strategies")
    @classmethod
    def _methods_exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in (known := {*METHODS, *group_choices(CONF / "strategy")}):
                raise OptionError("strategies", name, f"allowed: {', '.join(sorted(known))}")
        return names

    @field_validator("order")
    @classmethod
    def _order_is_known(cls, order: float | None) -> float | None:
        if order is not None and order not in ORDERS:
            raise OptionError("order", order, "allowed: 1.1 to 2 by 0.1, 2.5 to 11 by 0.5, whole numbers to 31, 64")
        return order

    @model_validator(mode="after")
    def _guard_keeps_to_limits(self) -> Self:
        """What a run must count, a guard must count too: its answers are booked for one machine, by its own numbers."""
        limits, guard = self.limits, self.guard
        if guard is not None and limits.min_across_sites > 1:
            words = "1 with a guard, whose noise counts a person's rows at this machine alone"
            raise OptionError("limits.min_across_sites", limits.min_across_sites, words)
        if guard is not None and guard.in_sum and guard.colluders < limits.min_colluders:
            words = f"at least {limits.min_colluders} (limits.min_colluders)"
            raise OptionError("guard.colluders", guard.colluders, words)
        return self

    def refusal(
        self,
        spent: Iterable[Booked] | Spent,
        further: Booked,
        same_round: Sequence[Booked] = (),
        fixed: Accounting | None = None,
        part: float = 1.0,
    ) -> str | None:
        """Why ``further`` must not leave after ``spent``, in words for the local log; None where it may. same_round:
        the part of ``spent`` in the same round of the same run. fixed: the ledger's `accounting`. part: as `Budget`.
        """
        earlier = spent if isinstance(spent, Spent) else Spent(spent)
        if earlier.messages >= self.limits.max_messages:
            return f"{earlier.messages} messages have left, limits.max_messages is {self.limits.max_messages}"
        for budget in self.budgets:
            events = further.under(budget.threat)
            in_round = [event for booked in same_round for event in booked.under(budget.threat)]
            if wrong := self.limit_broken([*in_round, *events], budget):
                return wrong
            if not self._filter(budget, fixed, part).admits(earlier.totals(budget.threat), events):
                words = "" if part == 1 else f"{part:g} (queries.share) of "
                known = compose(earlier.totals(budget.threat), budget.delta).epsilon
                words += f"the budget of {budget.max_epsilon:g} ({budget.name}) would be exceeded"
                return f"{words}: epsilon {known:.4g} of its max_epsilon is spent"
        return None

    def _filter(self, budget: UnitBudget, fixed: Accounting | None = None, part: float = 1.0) -> Budget:
        delta = budget.delta * (fixed.share if fixed else 1.0)
        if self.accountant == "gaussian":
            return Budget(budget.max_epsilon, delta, rule="gaussian", part=part)
        order = fixed.orders.get(budget.name) if fixed else self.order
        return Budget(budget.max_epsilon, delta, rule="rdp", order=order or "gaussian", part=part)

    def _orders(self, share: float, known: Mapping[str, float]) -> dict[str, float]:
        """The Renyi order of each budget, by its name; ``known`` ones stay."""
        found = dict(known)
        for budget in self.budgets:
            order = self.order or Budget(budget.max_epsilon, budget.delta * share, order="gaussian").fixed_order()
            found.setdefault(budget.name, order)
        return found

    def accounting(self, fixed: Accounting | None, spent: Spent) -> Accounting:
        """How a ledger's releases are composed under this policy; ``fixed``: how they were so far. A new budget gets
        its order here.

        Before the first release any policy may choose. Afterwards raises `LedgerRefused` where the policy names another
        accountant or order, with one exception: ``gaussian`` may become ``renyi`` (why: `accounting.py`).

        fixed=None is a ledger that names none. With releases its accountant must be one whose filter admitted all of
        them, whichever accountant the policy named then: otherwise it would be chosen after seeing outputs.

        - Gaussians alone: ``gaussian``. It is the larger of the two filters. The Renyi filter of order a admits a sum
          of mu^2 only if a mu^2 / 2 <= R(a), and R(a) is such that this implies (max_epsilon, delta / 2)-DP for every
          mechanism with that curve, the Gaussian among them; so its exact epsilon at delta is at most max_epsilon,
          which is all that the exact filter asks.
        - others among them: ``renyi``, since the filter ``gaussian`` has never admitted one.
        """
        if not spent.messages:
            if self.accountant == "gaussian":
                return Accounting("gaussian", self._orders(RESERVED, {}), 1 - RESERVED)
            return Accounting("renyi", self._orders(1.0, {}))
        if fixed is None:
            events = (event for budget in self.budgets for event in spent.totals(budget.threat))
            gaussian = all(event.gaussian_multiplier is not None for event in events)
            fixed = Accounting("gaussian" if gaussian else "renyi")
        if self.accountant == "gaussian" == fixed.accountant:
            orders = self._orders(RESERVED, fixed.orders) if fixed.share < 1 else fixed.orders
            return Accounting("gaussian", orders, fixed.share)
        if self.accountant == "gaussian" or (fixed.accountant == "gaussian" and fixed.share == 1):
            words = f"the ledger adds up by {fixed.accountant}, which was fixed before its first release"
            raise LedgerRefused(f"accountant={self.accountant}: {words}")
        for name, order in fixed.orders.items():
            if self.order is not None and order != self.order and name in {budget.name for budget in self.budgets}:
                words = f"the ledger has fixed {order:g} for the budget {name}; null keeps to it"
                raise LedgerRefused(f"order={self.order:g}: {words}")
        share = fixed.share if fixed.accountant == "renyi" else 1 - fixed.share
        return Accounting("renyi", self._orders(share, fixed.orders), share)

    def limit_broken(self, events: Sequence[Event], budget: UnitBudget) -> str | None:
        """The bound on a single round that these events (under the budget's threat) break, in words."""
        limits = self.limits
        for event in events:
            multiplier, rate = getattr(event, "multiplier", math.inf), getattr(event, "sampling_rate", 0.0)
            if multiplier < limits.min_noise_multiplier:
                return (
                    f"noise multiplier {multiplier:g}, limits.min_noise_multiplier is {limits.min_noise_multiplier:g}"
                )
            if rate > limits.max_sampling_rate:
                return f"sampling rate {rate:g}, limits.max_sampling_rate is {limits.max_sampling_rate:g}"
        found = compose(events, budget.delta)
        if found.epsilon > limits.max_round_epsilon:
            why = f" ({'; '.join(found.reasons)})" if found.reasons else ""
            return (
                f"a round of epsilon {found.epsilon:g}, limits.max_round_epsilon is {limits.max_round_epsilon:g}{why}"
            )
        return None

    def spent(self, releases: Iterable[Booked] | Spent) -> dict[str, float]:
        """Epsilon of everything in the ledger, by budget."""
        known = releases if isinstance(releases, Spent) else Spent(releases)
        return {budget.name: compose(known.totals(budget.threat), budget.delta).epsilon for budget in self.budgets}


@dataclass(frozen=True)
class Booked:
    """One message's releases. own: the threat under which the method books every release; shares_secrets: whether other
    clients know a part of its randomness.
    """

    entries: tuple[Entry, ...]
    own: Threat
    shares_secrets: bool = False

    @property
    def anywhere(self) -> Booked:
        """The same price without round, client and sequence."""
        entries = tuple(Entry(0, 0, 0, 0, one.event, one.realised, one.adaptive) for one in self.entries)
        return replace(self, entries=entries)

    def under(self, threat: Threat) -> list[Event]:
        """The message's price under a threat of a policy's budget, each event an upper bound there.

        A message that was booked under no threat that covers this one has infinite cost.
        """
        wanted = self.own
        if self.shares_secrets and threat.observer == "server+members":
            wanted = replace(self.own, observer="server+members")
        elif self.own.observer == SECURE_SUM.observer != threat.observer:
            wanted = replace(self.own, observer="server")  # what it would cost if the masks came off
        priced = [entry.spent for entry in self.entries if entry.event.threat == wanted]
        if not priced or not _covers(wanted, threat, self.shares_secrets):
            return [NoBound(threat=threat, reason=NOT_COVERED)]
        return [_restated(event, threat) for event in priced]


def _covers(known: Threat, asked: Threat, shares_secrets: bool) -> bool:
    """Whether a bound under ``known`` is one under ``asked``.

    Under (client, replace-one) any two updates of a client are indistinguishable, and so is any change of its records.
    What other clients know helps the server only where they share randomness.
    """
    same_data = (known.unit, known.adjacency) == (asked.unit, asked.adjacency)
    whole_client = (known.unit, known.adjacency) == ("client", "replace-one")
    sees_no_more = known.observer == asked.observer or (
        (known.observer, asked.observer) == ("server+members", "server")
        or ((known.observer, asked.observer) == ("server", "server+members") and not shares_secrets)
        or (known.observer, asked.observer) == ("server", "secure-sum")  # a sum is made of what the server sees
    )
    return (same_data or whole_client) and sees_no_more


def _restated(event: Event, threat: Threat) -> Event:
    try:
        return replace(event, threat=threat)
    except ValueError:  # a mechanism without an analysis under that threat
        return NoBound(threat=threat, reason=NOT_COVERED)


class Spent:
    """All releases, message by message: equal costs are counted, in the order of their first appearance."""

    def __init__(self, releases: Iterable[Booked] = ()) -> None:
        self.times: Counter[Booked] = Counter()
        for release in releases:
            self.add(release)

    @property
    def messages(self) -> int:
        return self.times.total()

    def add(self, booked: Booked, times: int = 1) -> None:
        """Counts ``times`` messages of this cost."""
        self.times[booked.anywhere] += times

    def totals(self, threat: Threat) -> list[Event]:
        """Everything under one threat in the order of first appearance, equal events as one with a count."""
        counts: Counter[Event] = Counter()
        for booked, times in self.times.items():
            for event in booked.under(threat):
                counts[replace(event, count=1)] += event.count * times
        return [replace(event, count=count) for event, count in counts.items()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spent) and self.times == other.times

    __hash__ = None  # type: ignore[assignment]


# --- a run's options against a policy ------------------------------------------------------------------------


def objections(policy: Policy, config: Config, declared: int) -> list[str]:
    """The run's options that the policy does not allow, in words for the local log. declared: number of examples."""
    local, limits, found = config.local, policy.limits, list[str]()
    for option, name in (("strategy", config.strategy.name), ("privacy.mechanism", config.privacy.mechanism)):
        if name is not None and name not in policy.strategies:
            found.append(f"{option}={name}: allowed: {', '.join(policy.strategies)}")
    if config.privacy.variant not in policy.variants:
        found.append(f"privacy.variant={config.privacy.variant}: allowed: {', '.join(policy.variants)}")
    if (across := config.privacy.across_sites) < (least := limits.min_across_sites):
        found.append(f"privacy.across_sites={across}: at least {least} (limits.min_across_sites)")
    found += [*_about_sums(policy, config), *query_objections(policy.queries, config)]
    for option, value, limit in _measured(config, declared):
        if not value <= (most := getattr(limits, limit)):
            found.append(
                f"{option}={value:g}: at most {most:g} (limits.{limit}){_remedy(option, config, declared, limits)}"
            )
    if local.sampler == "poisson" and not local.batch_size / declared <= (most := limits.max_sampling_rate):
        words = f"q at most {most:g} (limits.max_sampling_rate)"
        found.append(f"local.batch_size={local.batch_size} of {declared}: {words}")
    return found


def _about_sums(policy: Policy, config: Config) -> Iterator[str]:
    """A sum in the open shows a server every number of this machine, whatever observer its account names."""
    options, limits = config.strategy.options, policy.limits
    noisy = getattr(options, "form", None) == "local"  # each number has this machine's own, accounted for
    if config.strategy.secure_sum == "ideal" and not noisy:
        yield "strategy.secure_sum=ideal: the server would see this client's own numbers: allowed: protocol"
    if config.strategy.secure_sum == "protocol":
        for option, least in (("min_replies", limits.min_survivors), ("colluders", limits.min_colluders)):
            if (value := getattr(options, option)) < least:
                yield f"{spelled(type(options), option)}={value}: at least {least}"


BATCHES = "local.batch_size={} local.epochs={}: batches in a round"


def _measured(config: Config, declared: int) -> Iterator[tuple[str, float, str]]:
    """(option, its effective value in the run, the entry of `Limits` that bounds it)."""
    options: Any = config.strategy.options
    local = config.local
    yield "num_rounds", config.num_rounds, "max_rounds"
    if not isinstance(options, RowSumOptions):  # which add up each row once, without batches
        yield "local.batch_size", local.batch_size, "max_batch_size"
        if hasattr(options, "local_steps"):
            yield spelled(type(options), "local_steps"), options.local_steps, "max_local_steps"
        elif local.steps:
            yield "local.steps", local.steps, "max_local_steps"
        else:
            batches = local.epochs * -(-declared // local.batch_size)
            yield BATCHES.format(local.batch_size, local.epochs), batches, "max_local_steps"
    if hasattr(options, "clip_norm"):
        yield "strategy.client.clip_norm", options.clip_norm, "max_clip_norm"
    if getattr(options, "clipping", "fixed") != "fixed":
        largest = options.norm_bound if hasattr(options, "norm_bound") else CLIP_RANGE * options.clip_norm
        yield "the clip norm that a rule may move to", largest, "max_clip_norm"
    if hasattr(options, "radius"):  # of one coordinate's interval
        radius = options.radius
        yield "strategy.client.radius", max(radius) if isinstance(radius, list) else radius, "max_clip_norm"


def _remedy(option: str, config: Config, declared: int, limits: Limits) -> str:
    """Of too many batches: the smallest batch that keeps to the limits, or else a number of steps."""
    if option != BATCHES.format(config.local.batch_size, config.local.epochs):
        return ""
    passes = limits.max_local_steps // config.local.epochs
    least = -(-declared // passes) if passes else math.inf
    words = f"batch_size={least}" if least <= limits.max_batch_size else f"steps={limits.max_local_steps}"
    return f"; local.{words} keeps to it"


def one_participation(client: Client) -> Booked:
    """What a participation of this client books, under each threat model that the method has an account for."""
    planned = [event for threat in client.accounts() for event in client.planned_events(1, threat)]
    return Booked(tuple(Entry(1, 0, 0, 0, event) for event in planned), client.threat, client.traits.shares_secrets)


def too_dear(policy: Policy, client: Client) -> list[str]:
    """Why one participation of this client violates the policy, regardless of what was spent before."""
    if not client.books_itself:
        return ["clients send what only a trusted server protects, and do not book it"]
    found, own = [], one_participation(client)
    for budget in policy.budgets:
        if client.traits.shares_secrets and budget.observer == "server+members":
            continue  # checked when it is released
        if wrong := policy.limit_broken(own.under(budget.threat), budget):
            found.append(wrong)
    return found


# --- the file ------------------------------------------------------------------------------------------------


def read_policy(path: Path) -> Policy:
    """Raises `OptionError` that names the file, the entry, its value and what is allowed."""
    try:  # OmegaConf reads 1e-5 as a number, YAML 1.1 does not
        content = read_regular(path)
        raw = OmegaConf.to_container(OmegaConf.create(content.decode()), resolve=False)
    except Exception as error:  # any error of the parser on a broken file
        why = getattr(error, "strerror", None) or " ".join(str(error).split())[:300]
        raise OptionError("policy", str(path), f"cannot be read ({why})") from None
    if not isinstance(raw, dict):
        raise OptionError("policy", str(path), "must be a mapping, option: value")
    try:
        policy = Policy.model_validate(with_tuples(raw))
        policy._sha256 = hashlib.sha256(content).hexdigest()
        return policy
    except ValidationError as error:
        wrong = first_option_error(error, model=Policy)
    except OptionError as error:
        wrong = error
    raise OptionError(f"{path}: {wrong.option}", wrong.value, wrong.allowed)
