"""One round's row of metrics.jsonl, and what summary.json says of privacy and of the questions of strategy=ask."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from fedpriv.client.build import make_client, partition_remarks, person_word, unit_remarks
from fedpriv.common.files import json_number
from fedpriv.common.messages import LOCAL_ACCURACY, FloatVector
from fedpriv.config.methods import AskOptions
from fedpriv.config.schema import Config
from fedpriv.data.asked import KEPT, Asks, answers
from fedpriv.data.table_rows import MOST_LOST, schema_of_dataset
from fedpriv.data.table_schema import TableSchema
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.tasks import Classification, Regression, Task
from fedpriv.privacy.claimed import Claim
from fedpriv.privacy.composition import Verified
from fedpriv.privacy.opacus_accounts import OpacusFigure
from fedpriv.report.client_accuracy import PERSONAL, round_figures, spread_over_clients
from fedpriv.runs.accounts import Accounts
from fedpriv.runs.planning import Plan, of_the_model
from fedpriv.server.round import Round
from fedpriv.training.evaluation import Score, SiteScore


def at_scope(found: Verified, claim: Claim | None) -> float | str | None:
    """What is verified at a claim's own scope and delta, for JSON."""
    if claim is None:
        return None
    return json_number(found.at_scope(claim.scope, claim.delta).epsilon)


def privacy_figures(config: Config, plan: Plan, accounts: Accounts, stopped: int) -> dict[str, Any]:
    """Claimed and verified epsilon, and room for the audited one; the verified one comes from the ledger, as it was
    written. stopped: clients whose budget is spent.
    """
    privacy, client, found = config.privacy, make_client(config), accounts.verified()
    with accounts.timed():
        claim = client.claim(plan.participations[1], privacy.delta)
    by_opacus = accounts.by_opacus()
    added = {} if config.strategy.secure_sum == "assumed" else {"secure_sum": config.strategy.secure_sum}
    across = {"across_sites": privacy.across_sites} if privacy.across_sites > 1 else {}
    return {
        **vars(client.threat),
        **added,
        **(protected := person_word(config) | across),
        **({} if by_opacus is None else {"opacus": by_opacus.to_json()}),
        **spent_before(config),
        "delta": privacy.delta,
        "variant": privacy.variant,
        "claimed_epsilon": json_number(claim.epsilon) if claim else None,
        "claimed_scope": claim.scope if claim else None,
        "claimed_equation": claim.equation if claim else None,
        "verified_epsilon": json_number(found.maximum),
        "verified_median": json_number(found.median),
        **accounts.at_other_adjacency(client.threat),
        "verified_at_claimed_scope": at_scope(found, claim),
        "accountant": found.accountant,
        "spent_so_far": json_number(found.spent_so_far),
        "audited_epsilon": None,
        "audited_confidence": None,
        "audited_trials": None,
        "clients_stopped": stopped,
        "reasons": [*found.reasons, *client.remarks(), *partition_remarks(config), *unit_remarks(config)],
        "others": [
            {
                **vars(threat),
                **(protected if threat.unit == client.threat.unit else {}),
                "delta": privacy.delta,
                "verified_epsilon": json_number(verified.maximum),
                "verified_median": json_number(verified.median),
                **accounts.at_other_adjacency(threat),
                "spent_so_far": json_number(verified.spent_so_far),
                "accountant": verified.accountant,
                "reasons": list(verified.reasons),
            }
            for threat, verified in accounts.under_further_threats().items()
        ],
    }


def untrained(worker: Worker) -> str | None:
    """What the accuracy is to be read with; exact, so not for outsiders. Of nodes nobody knows their classes."""
    missing = [] if worker.config.dataset.name == "on_nodes" else worker.data.untrained_classes()
    if not missing:
        return None
    names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
    return f"the test examples of {names} count as errors: no training example is of that class"


def spent_before(config: Config) -> dict[str, Any]:
    """{spent_before: what the schema's ranges cost}, where private answers gave some."""
    schema = schema_of_dataset(config.dataset) if config.dataset.is_table else None
    if schema is None or not schema.answered:
        return {}
    return {"spent_before": [one.model_dump(mode="json") for one in schema.answered]}


#: Final test loss above which a run diverged. Of 8,762 committed runs 165 are above, of which one has half of the test
#: examples right. A loss that is not a number is told as 1e30.
DIVERGED = 1000.0


def divergence(score: Score) -> dict[str, str]:
    """{diverged: in words}, from the published test loss alone; empty of a run that did not."""
    loss = score.metrics.get("loss", 0.0)
    if not loss > DIVERGED:
        return {}
    remedy = "a smaller learning rate (local.lr) or clip norm, fewer local steps, or less noise may help"
    return {"diverged": f"the run diverged: its test loss is {loss:.3g}, above {DIVERGED:,.0f}; {remedy}"}


def miscalibration(score: Score) -> dict[str, str]:
    """{miscalibrated: in words}, from the published metrics alone; empty of a model whose probabilities are of use."""
    brier, base = score.metrics.get("brier"), score.metrics.get("base_brier")
    if base == 0:
        return {"miscalibrated": "all test rows are of one class: no metric says how well the other is told from it"}
    if brier is None or base is None or brier <= base:
        return {}
    words = f"the Brier score {brier:.3g} is worse than {base:.3g}, that of the base rate for everyone"
    return {"miscalibrated": f"the model's probabilities are no risks: {words}"}


def metrics_figures(
    score: Score, best: float | None, sites: Sequence[SiteScore] = (), details: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Entries of summary.json on metrics beside accuracy and loss, on sites (the worst first) and on the test examples
    (`Evaluator.details`); none where the task has no other metrics and no site has test examples.
    """
    if not score.further and not sites and not details:
        return {}
    better = {"more_is_better": score.more_is_better, "best_on_test": best}
    by_site: dict[str, Any] = {"sites": [vars(site) for site in sites]} if sites else {}
    if sites:
        sign = 1 if score.more_is_better else -1
        spread = spread_over_clients({number: sign * site.value for number, site in enumerate(sites)})
        by_site["spread"] = {name: value if name == "std" else sign * value for name, value in spread.items()}
    return {"metrics": {"leading": score.leading, **better, "final": score.further, **by_site, **details}}


def coefficients(
    task: Task, schema: TableSchema | None, shapes: Sequence[tuple[int, ...]], theta: FloatVector
) -> list[dict[str, Any]]:
    """Of a linear model of a table's row, for summary.json: what a change of one column does, all others as they are.

    Of two classes value is the odds ratio of the positive one, of a regression the difference in the target's units.
    The change is a tenth of a range, or another value in place of the schema's first. Empty for other models; texts
    are left out. Post-processing of the model.
    """
    if schema is None or not isinstance(task, Classification | Regression):
        return []
    outputs, inputs = task.num_outputs, schema.num_inputs
    if outputs > 2 or tuple(shapes) != ((outputs, inputs), (outputs,)):
        return []
    weights = theta[: outputs * inputs].astype(np.float64).reshape(outputs, inputs)
    if isinstance(task, Regression):
        effect = weights[0] * (task.high - task.low) / 2
    else:
        place = 1 if task.positive is None else task.labels.index(task.positive)
        effect = weights[place] - weights[1 - place]
    changes, start = list[tuple[str, str, float]](), 0
    for name, column in schema.inputs:
        own = effect[start : start + schema.width(column)]
        if isinstance(column.range, tuple):
            low, high = column.range
            changes.append((name, f"+ {(high - low) / 10:g}", own[0] / 5))  # inputs are 2 long
        elif isinstance(column.values, tuple):
            first, *others = column.values
            changes += [(name, f"{value} for {first}", own[i + 1] - own[0]) for i, value in enumerate(others)]
        start += schema.width(column)
    if isinstance(task, Regression):
        kind, values = "difference", [float(value) for *_, value in changes]
    else:
        kind, values = "odds ratio", [math.exp(min(float(value), 700.0)) for *_, value in changes]
    rows = zip(changes, values, strict=True)
    return [{"column": name, "change": change, "kind": kind, "value": value} for (name, change, _), value in rows]


def metrics_row(
    current: Round, score: Score | None, epsilon: float, by_opacus: OpacusFigure | None = None
) -> dict[str, Any]:
    """One line of metrics.jsonl."""

    def mean(name: str) -> float | None:
        values = [reply.diagnostics[name] for reply in current.replies if name in reply.diagnostics]
        value = float(np.mean(values)) if values else None
        return value if value is None or np.isfinite(value) else None

    return {
        "round": current.number,
        "accuracy": score.accuracy if score else None,
        "loss": score.metrics.get("loss") if score else None,
        **({"metrics": score.further} if score and score.further else {}),
        **({"leading": score.leading} if score and score.accuracy is not None and score.leading != "accuracy" else {}),
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
        **({} if by_opacus is None else {"opacus_rdp_so_far": by_opacus.to_json()["rdp"]}),
        "figures": current.figures,
        "errors": {str(client): text for client, text in sorted(current.errors.items())},
    }


COLUMNS = ("question", "of", "answer", "low", "high")
#: Of a regression's answer there are more, and they are columns of answers.csv where one is asked.
FURTHER = ("remarks", "errors", "p_values")


def noise_in_sums(options: AskOptions, rounds: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Standard deviation of the noise in a coordinate of each round's sum, or of the mean of these sums where they have
    one section, in units of a row's longest vector. rounds: lines of metrics.jsonl.
    """
    noises = np.array([1 if options.form == "central" else int(row["participants"]) for row in rounds])
    stds = options.noise_multiplier * np.sqrt(noises)
    return stds if options.sections > 1 else np.array([np.linalg.norm(stds) / len(stds)])


def answered(
    config: Config, asks: Asks, theta: FloatVector, rounds: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One entry for each question, for summary.json: what each number is of, the numbers, and the ends of 95 %
    intervals for what the noise did. Post-processing of what was released.
    """
    if not rounds:
        return []
    options = config.strategy.options
    assert isinstance(options, AskOptions)
    numbers = [int(row["round"]) for row in rounds]
    totals = asks.rounds(theta)[[number - 1 for number in numbers] if asks.sections > 1 else [0]]
    questions, stds = asks.at_round(numbers[-1], theta), noise_in_sums(options, rounds) / KEPT
    found = answers(questions, totals, stds, asks.rows_per_unit, config.seed, config.privacy.across_sites)
    model = of_the_model(config, asks)
    found = [
        replace(one, remarks=(*one.remarks, *model)) if question.scored else one
        for one, question in zip(found, questions, strict=True)
    ]
    return [
        {
            "question": one.question,
            "of": list(one.names),
            "values": one.values.tolist(),
            "low": one.low.tolist(),
            "high": one.high.tolist(),
            **{name: list(given) for name in FURTHER if (given := getattr(one, name)) is not None and len(given)},
        }
        for one in found
    ]


def lost_cells(
    schema: TableSchema | None, sums: tuple[np.ndarray, float, float] | None
) -> tuple[list[dict[str, Any]], str]:
    """(of each column of categories, for summary.json, how many cells the schema does not name, with a 95 % interval
    for the noise; a warning where that is certainly more than `MOST_LOST` of the rows, or nothing).

    sums: the noisy sum of all inputs [k] that a method released, its noise's standard deviation, and the rows in it.
    Rows that were clipped count for less, so a count is rather too small. Post-processing of what was released.
    """
    counts, start, many = [], 0, []
    for name, column in () if schema is None or sums is None else schema.inputs:
        assert schema is not None and sums is not None
        (total, std, rows), place = sums, start + len(column.values or ())
        if column.kind == "values":
            low, high = (float(np.clip(total[place] + side * 1.96 * std, 0, rows)) for side in (-1, 1))
            counts.append({"column": name, "cells": float(total[place]), "low": low, "high": high})
            many += [name] if low > MOST_LOST * rows else []
        start += schema.width(column)
    words = "by the first rounds more than a fifth of the cells are lost (of a value that the schema does not name)"
    return counts, f"WARNING: {', '.join(many)}: {words}" if many else ""


def as_csv(found: Sequence[Mapping[str, Any]]) -> str:
    """answers.csv: a line for each number."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    further = [name for name in FURTHER[1:] if any(name in one for one in found)]
    writer.writerow((*COLUMNS, *further))
    for one in found:
        parts = [one[name] for name in ("of", "values", "low", "high")]
        parts += [one.get(name, [""] * len(one["of"])) for name in further]
        writer.writerows((one["question"], *row) for row in zip(*parts, strict=True))
    return out.getvalue()
