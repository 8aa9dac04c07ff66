"""The stored record of an attack, for scripts, and the guarantee that it is compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedpriv.attacks.experiment import ATTACKS, OF_UPDATES, Experiment, Result
from fedpriv.attacks.inversion import Found, quality, samples
from fedpriv.attacks.member_inputs import DIFFER, Inputs
from fedpriv.attacks.metrics import FALSE_POSITIVES, RATES, Judgement, judge, roc
from fedpriv.attacks.subject import Scored
from fedpriv.privacy.canaries import audit_pairs
from fedpriv.runs.round_updates import SEE_EACH

#: Steps of a stored ROC curve.
STEPS = 1000


@dataclass(frozen=True)
class Guarantee:
    """A verified epsilon that covers one example."""

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    observer: str

    @property
    def turned(self) -> tuple[float, float]:
        """(epsilon, delta) for replacing one example by another, which is what turning a coin of `Targets` does.

        Under replace-one it is the same. Otherwise one example leaves and another comes, two steps:
        Pr[A] <= e^eps Pr[B] + delta <= e^eps (e^eps Pr[C] + delta) + delta.
        """
        if self.adjacency == "replace-one":
            return self.epsilon, self.delta
        return 2 * self.epsilon, min(1.0, (1 + math.exp(min(self.epsilon, 700.0))) * self.delta)

    def __str__(self) -> str:
        unit = "one example" if self.unit == "example" else "one client, and so each of its examples"
        return f"verified epsilon {self.epsilon:.3g} at delta {self.delta:g} for {unit} (seen by {self.observer})"


def guarantee(privacy: Mapping[str, Any], attack: str = "") -> Guarantee | None:
    """The verified epsilon of a run's summary that is smallest for replacing one example; None where none is finite.
    Under every threat model here the observer sees the global models; an attack on single clients' updates is held
    against a guarantee only where its observer sees these as well.
    """
    found = []
    for threat in (privacy, *privacy.get("others", ())):
        if attack in OF_UPDATES and threat.get("observer") not in SEE_EACH:
            continue
        epsilon = threat.get("verified_epsilon")
        if isinstance(epsilon, int | float) and threat.get("unit") in ("example", "client"):
            found.append(Guarantee(epsilon, threat["delta"], threat["unit"], threat["adjacency"], threat["observer"]))
    return min(found, key=lambda one: one.turned[0], default=None)


def record(experiment: Experiment, result: Result, promised: Guarantee | None) -> dict[str, Any]:
    """The content of ``attacks/<attack>.json``. Where a control failed, it has the controls and no figures."""
    options, targets = experiment.options, experiment.targets
    kept: dict[str, Any] = {
        "attack": result.attack,
        "shown": result.shown,
        "controls": {control.name: asdict(control) for control in result.controls},
        "setting": {
            "seed": options.seed,
            "known_examples": 2 * len(targets.known),
            "known_share": options.known_share,
            "shadow_models": result.shadows,
            "shadow_examples": result.shadow_examples,
            "run_examples": experiment.trained_on,
            "by_coin": targets.by_coin,
            "inputs": str(experiment.inputs),
            "inputs_p_value": experiment.inputs.p_value,
            "models_in_series": len(experiment.model.series) if result.attack == "confidence_series" else 1,
            "rounds_seen": len(experiment.model.seen) if result.attack in OF_UPDATES else 0,
        },
    }
    if not result.shown:
        return kept | {"reason": f"{reason(result)}; {experiment.inputs}"}
    scored = result.scored
    judged = judge(scored.members, scored.others, scored.threshold)
    false, true = roc(scored.members, scored.others)
    steps = np.unique(np.linspace(0, len(false) - 1, STEPS).round().astype(int))
    return kept | {
        "figures": figures(judged),
        "guarantee": None if promised is None else asdict(promised),
        **held_against(scored, promised, targets.by_coin, experiment.inputs),
        **_found(experiment, scored),
        "roc": {"false_positive_rate": false[steps].tolist(), "true_positive_rate": true[steps].tolist()},
    }


def _found(experiment: Experiment, scored: Scored) -> dict[str, Any]:
    """Of `inversion`: how good what it found is, and some of it."""
    if not isinstance(scored.found, Found):
        return {}
    inputs, schema = experiment.pool.train.inputs, experiment.pool.schema
    names = [] if schema is None else schema.input_names
    return {
        "inversion": quality(scored.found, inputs.dtype == np.uint8),
        "samples": {"shape": list(scored.found.shape), "names": names, "examples": samples(scored.found)},
    }


def figures(judged: Judgement) -> dict[str, Any]:
    """Figures as plain numbers, with their 95 % intervals."""
    return {
        "members": judged.members,
        "non_members": judged.others,
        "balanced_accuracy": asdict(judged.balanced_accuracy),
        "auc": asdict(judged.auc),
        **{
            f"tpr_at_fpr_{rate:g}": "too few" if point is None else asdict(point.true_positives)
            for rate, point in judged.at_rates.items()
        },
    }


def reason(result: Result) -> str:
    """Which control failed, with its figures."""
    return "; ".join(str(control) for control in result.controls if not control.passed)


def held_against(scored: Scored, promised: Guarantee | None, by_coin: bool, inputs: Inputs) -> dict[str, Any]:
    """verdict: contradicts, consistent, or cannot tell, in words; bound: what it is based on, where it is on anything.

    Only coins make an attack a test: elsewhere members and non-members may differ in themselves, and any model tells
    them apart. The scores of one model's examples depend on each other, so they are not counted as trials: see
    `one_run_p_value`. The error probability of 5 % is divided among all attacks, whichever are run.
    """
    if promised is None:
        return {"verdict": "cannot tell: the run has no finite verified epsilon to hold it against"}
    if not by_coin:
        words = (
            f"cannot tell: no coins chose the members ({inputs}), so an attack may tell examples apart rather than "
            "membership; they do with dataset.train_examples=N, at most half of the training examples, where no code "
            "of yours divides the rows and no person has several"
        )
        return {"verdict": words}
    if inputs.differ:
        return {"verdict": f"cannot tell: {inputs}, which coins do once in {1 / DIFFER:,.0f} runs"}
    epsilon, delta = promised.turned
    found = audit_pairs(scored.members, scored.others, delta=delta, confidence=1 - 0.05 / len(ATTACKS))
    said = f"{found}; replacing an example may cost {epsilon:.3g}: {promised}"
    return {
        "verdict": f"{IN_WORDS[found.verdict(epsilon)]}: {said}",
        "bound": asdict(found) | {"allowed": epsilon},
    }


#: Verdicts on a guarantee as the report reads them.
IN_WORDS = {
    "contradicts": "contradicts the guarantee",
    "consistent": "consistent with the guarantee",
    "cannot tell": "cannot tell",
}


def too_few(rate: float) -> str:
    return f"too few (needs {FALSE_POSITIVES / rate:,.0f} non-members)"


def short(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a record that goes into the run's summary."""
    return {key: value for key, value in kept.items() if key not in ("roc", "samples")}


def row(kept: Mapping[str, Any]) -> list[str]:
    """attack, balanced accuracy, AUC, true positive rates at `RATES`, examples: for display."""
    if not kept["shown"]:
        return [str(kept["attack"]), "not shown", *[""] * (1 + len(RATES)), ""]
    found = kept["figures"]

    def interval(value: Any, rate: float | None = None) -> str:
        if not isinstance(value, Mapping):
            return too_few(rate or 1)
        return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"

    return [
        str(kept["attack"]),
        interval(found["balanced_accuracy"]),
        interval(found["auc"]),
        *(interval(found[f"tpr_at_fpr_{rate:g}"], rate) for rate in RATES),
        f"{found['members']} + {found['non_members']}",
    ]


HEADER = ["attack", "balanced accuracy", "AUC", *(f"TPR at {100 * rate:g} % FPR" for rate in RATES), "examples"]
