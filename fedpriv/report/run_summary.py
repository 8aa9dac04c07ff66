"""summary.json as types: what pages, tables, comparisons and trackers read of a run's result.

A folder may be anybody's. What is not of its kind counts as not there: a number that is a text is None, a list that
is a number is empty. Infinity is the string "inf".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

T = TypeVar("T")


def number(value: Any) -> float | None:
    """A number of a summary (infinite is the string "inf"), or None where there is none."""
    if isinstance(value, str):
        return math.inf if value == "inf" else None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def pick(mapping: Any, *keys: str) -> Any:
    """The value below nested keys, None where any of them is missing."""
    for key in keys:
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return mapping


def mapping_of(value: Any) -> dict[str, Any]:
    """A mapping with its keys as text, empty in place of what is none."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _parts(value: Any) -> list[Any]:
    return [part for part in _list(value) if isinstance(part, Mapping)]


def estimate(value: Any) -> str:
    """An attack's figure in words: "0.520 [0.500, 0.540]" of a value with its interval."""
    if not isinstance(value, Mapping):
        return "–" if value is None else str(value)
    known = [known for key in ("value", "low", "high") if (known := number(value.get(key))) is not None]
    return "{:.3f} [{:.3f}, {:.3f}]".format(*known) if len(known) == 3 else "–"


Number = Annotated[float | None, BeforeValidator(number)]
#: A text, or a count as it stands in the file.
Text = Annotated[str | None, BeforeValidator(lambda value: None if value is None else str(value))]
Scalar = Annotated[Any, BeforeValidator(lambda value: value if isinstance(value, str | int | float) else None)]
Floats = Annotated[
    list[float],
    BeforeValidator(lambda value: [math.nan if (known := number(one)) is None else known for one in _list(value)]),
]
Table = Annotated[list[Floats], BeforeValidator(_list)]
Flag = Annotated[bool, BeforeValidator(bool)]
Texts = Annotated[list[str], BeforeValidator(lambda value: [str(part) for part in _list(value)])]
Numbers = Annotated[dict[str, Number], BeforeValidator(mapping_of)]
Estimate = Annotated[str, BeforeValidator(estimate)]
Listed = Annotated[list[T], BeforeValidator(_parts)]
Named = Annotated[
    dict[str, T],
    BeforeValidator(lambda value: {key: part for key, part in mapping_of(value).items() if isinstance(part, Mapping)}),
]


class Part(BaseModel):
    """A mapping of the file. False where none of its keys is there."""

    model_config = ConfigDict(frozen=True, defer_build=True)  # built with the first folder that is read, not at a start

    @model_validator(mode="before")
    @classmethod
    def _of_any_kind(cls, value: Any) -> Any:
        return value if isinstance(value, cls | Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self.model_fields_set)


# --- privacy ---------------------------------------------------------------------------------------------


class Assuming(Part):
    """An audit's lower bound under an assumption, with the most that a perfect attack would have shown; or an estimate
    ``epsilon`` from canaries, which bounds nothing.
    """

    assumes: Text = None
    source: Text = None
    epsilon: Number = None
    epsilon_lower: Number = None
    attainable: Number = None
    confidence: Number = None


class Audited(Part):
    """An audit: its lower bound, what it would have shown at the verified epsilon, and what it can show at most."""

    audited_epsilon: Number = None
    audited_confidence: Number = None
    audited_trials: Number = None
    audited_expected: Number = None
    audited_at_most: Number = None
    claimed_epsilon: Number = None
    verified_epsilon: Number = None
    verdict: Text = None
    scope: Text = None
    audited_on: Text = None
    reason: Text = None
    correct: Text = None
    guesses: Text = None
    canaries: Text = None
    share_of_rounds: Number = None
    sharper: Listed[Assuming] = []
    estimated: Assuming = Field(default_factory=Assuming)


class Offer(Part):
    """What an audit within the run would have taken and shown, or the reason why there can be none."""

    cheap: Flag = False
    would_show: Number = None
    would_show_if_gaussian: Number = None
    at_most: Number = None
    share: Number = None
    coins: Text = None
    reason: Text = None


class ByOpacus(Part):
    """Epsilons by Opacus' accountants."""

    rdp: Number = None
    prv: Number = None
    library: Text = None
    adjacency: Text = None
    remarks: Texts = []


class Privacy(Audited):
    """The epsilons of a run under one threat model; others: under further ones."""

    verdict: Text = Field(default=None, validation_alias="audit_verdict")
    unit: Text = None
    person: Text = None
    across_sites: Number = None  # None: one client
    adjacency: Text = None
    observer: Text = None
    delta: Number = None
    variant: Text = None
    secure_sum: Text = None
    claimed_scope: Text = None
    claimed_equation: Text = None
    verified_median: Number = None
    verified_at_claimed_scope: Number = None
    other_adjacency: Text = None
    other_epsilon: Number = None
    accountant: Text = None
    spent_so_far: Number = None
    clients_stopped: Number = None
    reasons: Texts = []
    others: Listed[Privacy] = []
    audits: Listed[Audited] = []
    training_audit: Audited = Field(default_factory=Audited)
    fit_audit: Audited = Field(default_factory=Audited)
    in_run_audit: Audited = Field(default_factory=Audited)
    in_run_offer: Offer = Field(default_factory=Offer)
    opacus: ByOpacus = Field(default_factory=ByOpacus)

    @property
    def threat(self) -> tuple[Any, ...]:
        """What two epsilons must share to be comparable: (unit, adjacency, observer, delta)."""
        across = f" at up to {self.across_sites:g} clients" if self.across_sites else ""
        return self.unit and f"{self.unit}{across}", self.adjacency, self.observer, self.delta


# --- results ---------------------------------------------------------------------------------------------


class Site(Part):
    """The leading metric of the global model on one site's test examples."""

    site: Text = None
    value: Number = None
    examples: Number = None


class Risks(Part):
    """Of two classes: rows by class and by whether their risk is at least the threshold [2][2], corners of the ROC
    curve (false, true positive rate), and tenths of the rows by risk (rows, mean risk, share of the positive class).
    """

    threshold: Number = None
    confusion: Table = []
    roc: Table = []
    calibration: Table = []

    @property
    def known(self) -> bool:
        """Whether all of it is there, in a form that can be shown."""
        parts = ((self.confusion, 2), (self.roc, 2), (self.calibration, 3))
        rows = all(len(row) == width and all(map(math.isfinite, row)) for part, width in parts for row in part)
        return self.threshold is not None and len(self.confusion) == 2 and rows


class Coefficient(Part):
    """What a change of one column does to a linear model's answer: an odds ratio, or a difference."""

    column: Text = None
    change: Text = None
    kind: Text = None
    value: Number = None


class Metrics(Part):
    """Metrics of a task beside accuracy and loss; sites and groups: the worst first."""

    leading: Text = None
    more_is_better: Flag = False
    final: Numbers = {}
    sites: Listed[Site] = []
    spread: Numbers = {}
    risks: Risks = Risks()
    groups: Annotated[list[dict[str, Any]], BeforeValidator(_parts)] = []


class Stage(Part):
    """An earlier end of a run that was extended."""

    rounds: Scalar = None
    verified_epsilon: Number = None


class Answer(Part):
    """One question's numbers, ``of`` what each is, and the ends of their intervals."""

    question: Annotated[str, BeforeValidator(str)] = ""
    of: Texts = []
    values: Floats = []
    low: Floats = []
    high: Floats = []
    errors: Floats = []
    p_values: Floats = []
    remarks: Texts = []


class Control(Part):
    """A control of an attack: what must, or must not, be told apart."""

    name: Text = None
    passed: Flag = False
    balanced_accuracy: Estimate = "–"
    auc: Estimate = "–"
    members: Text = None
    others: Text = None


class Inverted(Part):
    """What gradient inversion found. found, public: quartiles of the measure."""

    found: Floats = []
    public: Floats = []
    nearer: Estimate = "–"
    clients: Text = None
    sought: Text = None
    examples: Text = None
    measure: Text = None


class Attack(Part):
    """An attack's record; its figures are shown only if its controls passed."""

    attack: Text = None
    shown: Flag = False
    verdict: Text = None
    reason: Text = None
    figures: Annotated[dict[str, Estimate], BeforeValidator(mapping_of)] = {}
    guarantee: Numbers = {}
    controls: Named[Control] = {}
    inversion: Inverted = Field(default_factory=Inverted)


class Summary(Part):
    """A run's result. Empty for a run that has none yet."""

    strategy: Text = None
    dataset: Text = None
    model: Text = None
    public_knowledge: Text = None
    trained: Text = None
    seed: Scalar = None
    rounds: Scalar = None
    num_clients: Scalar = None
    clients_per_round: Scalar = None
    num_parameters: Scalar = None
    num_shared: Number = None
    accuracy: Numbers = {}
    metrics: Metrics = Field(default_factory=Metrics)
    privacy: Privacy = Field(default_factory=Privacy)
    timing: Numbers = {}
    traffic: Numbers = {}
    peak_memory_mib: Number = None
    versions: Annotated[dict[str, Text], BeforeValidator(mapping_of)] = {}
    commit: Text = None
    note: Text = None
    untrained: Text = None
    diverged: Text = None
    miscalibrated: Text = None
    stages: Listed[Stage] = []
    attacks: Named[Attack] = {}
    asked: Numbers = {}
    coefficients: Listed[Coefficient] = []
    answers: Annotated[list[Answer] | None, BeforeValidator(lambda value: None if value is None else _parts(value))] = (
        None
    )

    @property
    def leading(self) -> tuple[str, float | None, bool]:
        """(name, final value, whether more is better) of the metric by which runs are ranked: of classes accuracy."""
        name = self.metrics.leading or "accuracy"
        if name == "accuracy":
            return name, self.accuracy.get("final"), True
        return name, self.metrics.final.get(name), self.metrics.more_is_better

    @property
    def further_metrics(self) -> dict[str, str]:
        """Metrics of the run's task beside accuracy and loss, the leading one first; empty where it has none."""
        found = {name: value for name, value in self.metrics.final.items() if value is not None}
        names = sorted(found, key=lambda name: (name != self.metrics.leading, name != "auc"))
        return {name.replace("_", " "): f"{found[name]:.4g}" for name in names}

    @property
    def worst_site(self) -> tuple[str, float] | None:
        """(site, leading metric of the global model on its test examples), where sites are told apart."""
        return next(((str(one.site), one.value) for one in self.metrics.sites if one.value is not None), None)

    @property
    def contradictions(self) -> list[str]:
        """Verdicts of attacks that no mechanism with the run's guarantee allows."""
        said = [f"{one.attack} {one.verdict}" for one in self.attacks.values()]
        return [words for words in said if " contradicts the guarantee" in words]

    @property
    def untrained_layers(self) -> str | None:
        """What is missing from a run's saved model, where clients keep layers that the server never sees; else None."""
        size = number(self.num_parameters)
        if self.num_shared is None or size is None or self.num_shared >= size:
            return None
        return (
            f"The server has {self.num_shared:,.0f} of the model's {size:,.0f} parameters. model.safetensors, and the "
            "accuracy on the test set, are of this global part with untrained personal layers, those of the initial "
            "model. The method's result is the personalised accuracy."
        )


def leading_metric(summary: Any) -> tuple[str, float | None, bool]:
    """`Summary.leading` of a summary that was not read yet."""
    return Summary.model_validate(summary).leading


def worst_site(summary: Any) -> tuple[str, float] | None:
    """`Summary.worst_site` of a summary that was not read yet."""
    return Summary.model_validate(summary).worst_site
