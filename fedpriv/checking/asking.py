"""The options of a check, their ranges, and how they become a `Question`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedpriv.checking.child import Limits
from fedpriv.checking.subject import Claim, Question, Scope
from fedpriv.common.command_line import Existing
from fedpriv.common.errors import OptionError

Length = Annotated[int, Field(ge=1, le=10**6)]


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


@dataclass(frozen=True)
class CheckOptions:
    """Of `fedpriv.check` and `fedpriv check`; None: not said."""

    epsilon: Annotated[float | None, Field(ge=0, description="a number of at least 0, or inf")] = None
    delta: Annotated[float | None, Field(ge=0, lt=1)] = None
    scope: Scope | None = None
    calls: Annotated[int | None, Field(ge=1, le=10**9)] = None
    adjacency: Literal["replace-one", "zero-out", "add-or-remove-one"] | None = None
    unit: Literal["client", "example"] | None = None
    bound: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    form: Literal["update", "data", "clients", "rows"] | None = None
    also: Annotated[
        tuple[Literal["printed", "files"], ...], BeforeValidator(_split), Field(description="printed, files or both")
    ] = ()
    dims: Annotated[
        tuple[Length, ...], BeforeValidator(_split), Field(description="lengths from 1 to 1,000,000 with commas")
    ] = Question.dims
    trials: Annotated[int, Field(ge=400, le=10**7)] = Question.trials
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = Question.confidence
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Question.seed
    seconds: Annotated[float, Field(ge=5, le=86400)] = Limits.seconds
    memory: Annotated[float, Field(ge=0.5, le=4096)] = Limits.memory

    python: Existing | None = None
    show: str | None = None

    def __post_init__(self) -> None:
        """Raises `OptionError` for an option that needs another."""
        about = {name: value for name in ("scope", "adjacency", "unit") if (value := getattr(self, name)) is not None}
        if self.epsilon is None and about:
            raise OptionError(*next(iter(about.items())), "says what a claim is about, and epsilon= is not given")
        if self.scope == "run" and self.calls is None:
            raise OptionError("scope", "run", "needs calls=N, the calls of a run")

    @property
    def question(self) -> Question:
        claim = None
        if self.epsilon is not None:
            delta, scope = 1e-5 if self.delta is None else self.delta, self.scope or "call"
            claim = Claim(self.epsilon, delta, scope, adjacency=self.adjacency, unit=self.unit)
        same = ("delta", "calls", "dims", "trials", "confidence", "seed", "bound", "form", "also", "show")
        return Question(claim, **{name: getattr(self, name) for name in same})

    @property
    def limits(self) -> Limits:
        return Limits(self.seconds, self.memory, python=self.python)
