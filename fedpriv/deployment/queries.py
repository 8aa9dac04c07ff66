"""The line `queries:` of a policy: which questions of strategy=ask a node answers.

    queries:
      kinds: [count, mean, histogram]
      columns: [age, sex]
      share: 0.2

A question of another kind or about another column is refused, and without the line every question is. ``share`` is
taken of what a budget's filter adds up: the Renyi divergence at its order, or mu^2 of Gaussians (epsilons do not add
up). Everything in the ledger counts, training too: questions are for the time before it.

``score`` asks about a model that the policy names under ``weights``. That model reads all columns of the schema, and
``columns`` need name the target alone: who approves of its file decides what it may say.
"""

from __future__ import annotations

from pydantic import Field

from fedpriv.common.errors import RunFolderError
from fedpriv.config.options import Options
from fedpriv.config.schema import Config
from fedpriv.data.asked import asks_of
from fedpriv.data.questions import Kind


class Queries(Options):
    """What may be asked."""

    kinds: tuple[Kind, ...] = Field(min_length=1, description="kinds of questions that are answered")
    columns: tuple[str, ...] = Field(default=(), description="columns that may be asked about; none: a count alone")
    share: float = Field(
        gt=0,
        le=1,
        description="part of each budget (of its divergence, or mu^2) within which the whole ledger must stay",
    )


def query_objections(queries: Queries | None, config: Config) -> list[str]:
    """What of a run's questions the line does not allow, in words for the local log; none of a run that asks none."""
    if (asks := asks_of(config)) is None:
        return []
    if queries is None:
        return ["strategy=ask: the policy has no queries"]
    found = []
    for question in asks.questions:
        if question.kind not in queries.kinds:
            found.append(f"{question.text}: queries.kinds allows {', '.join(queries.kinds)}")
        if other := [column for column in question.columns if column not in queries.columns]:
            allowed = ", ".join(queries.columns) or "no column"
            found.append(f"{question.text}: queries.columns does not name {', '.join(other)}; allowed: {allowed}")
    if asks.model is not None and asks.schema is not None:
        from fedpriv.training.trained_model import scorer  # with torch, which a node's gate does without

        try:
            scorer(*asks.model, asks.schema)
        except RunFolderError as error:
            found.append(str(error))
    return found
