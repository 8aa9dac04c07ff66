"""conf/leaderboard/*.yaml: one board for each threat model, with its setting, methods, and what is tried for each.

How often, where and when a client takes part, and how its batches are drawn, is the board's (``plan``), for all methods
alike: otherwise a difference between two methods might be one between two plans. A method that has a plan of its own
in its paper is a second row, which says so (``plan`` of a method).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from omegaconf import OmegaConf
from pydantic import BeforeValidator, Field, ValidationError

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF
from fedpriv.config.explain import first_option_error
from fedpriv.config.options import Options
from fedpriv.config.yaml_text import with_tuples
from fedpriv.privacy.events import Threat
from fedpriv.studies.results import Measure
from fedpriv.studies.search import Range

BOARDS = CONF / "leaderboard"

#: Set by the study itself.
RESERVED = (
    *("seed", "dataset", "dataset.split", "privacy.delta"),
    *("privacy.target_epsilon", "privacy.target_observer", "privacy.variant"),
)


#: What a plan decides, and no row's overrides.
PLANNED = (
    *("num_clients", "clients_per_round", "num_rounds", "over_selection", "local.sampler"),
    *("strategy.server.participation", "strategy.server.participations", "strategy.server.client_sampling"),
)


def _no_list(search: Any) -> Any:
    if isinstance(search, tuple):
        raise ValueError("a list of values has edges chosen by hand; allowed: option: {low: L, high: H}")
    return search


#: Option -> the range that is searched.
Ranges = Annotated[dict[str, Range], BeforeValidator(_no_list)]


class Method(Options):
    """overrides: what the method adds to the board's setting. search: what replaces the board's own of the same option,
    or stands beside it. plan: in place of the board's, where the method has one of its own. targets: of the board's, if
    not all. against: an idea's opponents in place of the plain methods: rows that read what it reads. why: why it
    stands where it does, for the list of what is not ranked.
    """

    name: str = Field(pattern="[a-z0-9-]+")
    label: str = Field(min_length=1)
    paper: str
    idea: Literal["plain", "paper", "rival"]
    overrides: tuple[str, ...] = Field(min_length=1)
    search: Ranges = Field(default={})
    plan: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()
    against: tuple[str, ...] = ()
    why: str = ""


class Tuning(Options):
    """seed: of the runs among which is chosen, and of the search's points. pictures: training pictures that they are
    tested on. trials: how many at first; further: of each widening; widenings: at most; factor: by
    which a range grows. private: how often is tried is drawn from ``law`` with ``trials`` as its mean, and the choice
    is part of the guarantee (`fedpriv.privacy.private_selection`).
    """

    seed: int = Field(ge=0, lt=2**31)
    pictures: int = Field(ge=1)
    trials: int = Field(ge=2, le=1024)
    further: int = Field(default=4, ge=1, le=1024)
    widenings: int = Field(default=2, ge=0, le=5)
    factor: float = Field(default=4.0, gt=1)
    private: bool = False
    law: Literal["geometric", "logarithmic"] = "geometric"


class Longer(Options):
    """What scale=literal puts in place of a board's own."""

    words: str | None = None
    setting: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()


class BoardPlan(Options):
    """A file of conf/leaderboard. words: the setting for readers. setting: overrides of every run; plan: those that say
    who takes part when, which no method's overrides change. reference: the same setting without privacy; on_features:
    the same on the features that rows of the board read; alone: a line of epsilon 0, where every client trains by
    itself. measure: by which is ranked: the accuracy of the server's model
    on the test set (final), the mean accuracy of the clients' own models on their own test examples (personalised), the
    leading metric of the data's task, or another one of its metrics, both of the server's model; of metrics between 0
    and 1 of which more is better. literal: the longer setting.
    """

    title: str = Field(min_length=1)
    unit: Literal["client", "example", "person"]
    adjacency: Literal["replace-one", "zero-out", "add-or-remove-one"]
    observer: Literal["server", "server+members", "secure-sum", "trusted-server", "public"]
    dataset: Literal["digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "breast_cancer", "practices"]
    measure: Measure = "final"
    delta: float = Field(gt=0, lt=1)
    words: str
    setting: tuple[str, ...]
    plan: tuple[str, ...] = ()
    targets: tuple[float, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    tuning: Tuning
    search: Ranges
    reference: Method
    on_features: Method | None = None
    alone: Method | None = None
    methods: tuple[Method, ...] = Field(min_length=1)
    literal: Longer | None = None

    @property
    def threat(self) -> Threat:
        return Threat(self.unit, self.adjacency, self.observer)

    @property
    def lines(self) -> tuple[Method, ...]:
        """What has no target."""
        return tuple(line for line in (self.reference, self.on_features, self.alone) if line is not None)

    def at_scale(self, scale: str) -> BoardPlan:
        """small: as the file says; literal: with its longer setting, where it has one."""
        if scale == "small" or self.literal is None:
            return self
        new = self.literal
        return self.model_copy(
            update={
                "words": new.words or self.words,
                "setting": (*self.setting, *new.setting),
                "plan": (*self.plan, *new.plan),
                "targets": new.targets or self.targets,
                "seeds": new.seeds or self.seeds,
            }
        )


def option_of(override: str) -> str:
    return override.partition("=")[0]


# --- the files ---------------------------------------------------------------------------------------------


def read_boards(wanted: str, folder: Path = BOARDS, scale: str = "small") -> dict[str, BoardPlan]:
    """The boards named (with commas, or ``all``) at a scale (`BoardPlan.at_scale`). Raises `OptionError` for unknown
    ones and for broken files.
    """
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    names = known if wanted == "all" else [name.strip() for name in wanted.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise OptionError("board", unknown[0], f"allowed: all, {', '.join(known)}")
    found = {name: read_board(folder / f"{name}.yaml").at_scale(scale) for name in dict.fromkeys(names)}
    for name, board in found.items():
        try:
            _check(board)
        except OptionError as error:
            words = f"{folder / name}.yaml at scale={scale}: {error.option}"
            raise OptionError(words, error.value, error.allowed) from None
    return found


def read_board(path: Path) -> BoardPlan:
    """Raises `OptionError` that names the file, the key, its value and what is allowed."""
    try:
        raw = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except Exception as error:  # whatever a broken file makes a parser say
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise OptionError("board", str(path), f"cannot be read ({why})") from None
    if not isinstance(raw, dict):
        raise OptionError("board", str(path), "must be a mapping, key: value")
    try:
        board = BoardPlan.model_validate(with_tuples(raw))
        _check(board)
    except ValidationError as error:
        wrong = first_option_error(error)
    except OptionError as error:
        wrong = error
    else:
        return board
    raise OptionError(f"{path}: {wrong.option}", wrong.value, wrong.allowed)


def _check(board: BoardPlan) -> None:
    """What no single key can show: no target, seed or name twice, nothing reserved, a range for everybody."""
    names = [method.name for method in board.methods]
    for key, values in (("targets", board.targets), ("seeds", board.seeds), ("methods", names)):
        if len(set(values)) < len(values):  # type: ignore[arg-type]
            raise OptionError(key, ", ".join(map(str, values)), "one of them is there twice")
    if min(board.targets) <= 0:
        raise OptionError("targets", min(board.targets), "must be more than 0")
    if board.tuning.seed in board.seeds:
        raise OptionError("tuning.seed", board.tuning.seed, "is also one of seeds: the choice must not see these runs")
    _no_reserved("setting", (*board.setting, *board.plan))
    for method in (*board.lines, *board.methods):
        _no_reserved(f"{method.name}.overrides", (*method.overrides, *method.plan))
        for key, own, known in (("targets", method.targets, board.targets), ("against", method.against, names)):
            if unknown := [value for value in own if value not in known]:
                words = f"allowed: those of the board, {', '.join(map(str, known))}"
                raise OptionError(f"{method.name}.{key}", unknown[0], words)
        _check_search(board, method)
        if board.plan:
            _check_planned(method)


def _check_search(board: BoardPlan, method: Method) -> None:
    key = f"{method.name}.search"
    _no_reserved(key, (*board.search, *method.search))
    if all(one.own for one in (board.search | method.search).values()):
        raise OptionError(key, "", "names no range of an option that rivals have")


def _check_planned(method: Method) -> None:
    for override in method.overrides:
        if option_of(override) in PLANNED:
            words = "is the board's plan, the same for all rows; a row with a plan of its own names it under plan"
            raise OptionError(f"{method.name}.overrides", override, words)


def _no_reserved(key: str, overrides: Sequence[str]) -> None:
    for override in overrides:
        if option_of(override) in RESERVED:
            raise OptionError(key, override, "is set by the leaderboard itself")
