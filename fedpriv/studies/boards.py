"""conf/leaderboard/*.yaml: one board for each threat model, with its setting, methods, and what is tried for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from pydantic import Field, ValidationError

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF, parse
from fedpriv.config.explain import first_option_error
from fedpriv.config.options import Options
from fedpriv.privacy.events import Threat

BOARDS = CONF / "leaderboard"

#: Set by the study itself.
RESERVED = (
    *("seed", "dataset", "dataset.split", "privacy.delta"),
    *("privacy.target_epsilon", "privacy.target_observer", "privacy.variant"),
)


class Method(Options):
    """overrides: what the method adds to the board's setting. search: sweeps that replace the board's own of the same
    option, or stand beside them.
    """

    name: str = Field(pattern="[a-z0-9-]+")
    label: str = Field(min_length=1)
    paper: str
    idea: Literal["plain", "paper", "rival"]
    overrides: tuple[str, ...] = Field(min_length=1)
    search: tuple[str, ...]


class Tuning(Options):
    """seed: of the runs among which is chosen. pictures: training pictures that they are tested on."""

    seed: int = Field(ge=0, lt=2**31)
    pictures: int = Field(ge=1)


class BoardPlan(Options):
    """A file of conf/leaderboard. words: the setting for readers. setting: overrides of every run. reference: the same
    setting without privacy. measure: the accuracy by which is ranked: of the server's model on the test set (final), or
    the mean of the clients' own models on their own test pictures (personalised).
    """

    title: str = Field(min_length=1)
    unit: Literal["client", "example"]
    adjacency: Literal["replace-one", "zero-out", "add-or-remove-one"]
    observer: Literal["server", "server+members", "secure-sum", "trusted-server", "public"]
    dataset: Literal["digits", "mnist", "fashion_mnist", "cifar10", "cifar100"]
    measure: Literal["final", "personalised"] = "final"
    delta: float = Field(gt=0, lt=1)
    words: str
    setting: tuple[str, ...]
    targets: tuple[float, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field(min_length=1)
    tuning: Tuning
    search: tuple[str, ...]
    reference: Method
    methods: tuple[Method, ...] = Field(min_length=1)

    @property
    def threat(self) -> Threat:
        return Threat(self.unit, self.adjacency, self.observer)

    def sweeps(self, method: Method) -> tuple[str, ...]:
        """The method's search space: the board's, with the method's own values where it has some."""
        own = {option_of(sweep): sweep for sweep in method.search}
        common = {option_of(sweep): sweep for sweep in self.search}
        return tuple({**common, **own}.values())

    def trials(self, method: Method) -> list[tuple[str, ...]]:
        """Every combination of the search space, as overrides."""
        return expand(self.sweeps(method))


def option_of(override: str) -> str:
    return override.partition("=")[0]


def expand(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """All jobs of a sweep, by Hydra's own sweeper. Raises `OptionError` for what is no sweep."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    parsed = parse(sweeps)
    for override in parsed:
        if not override.is_sweep_override():
            words = "names one value: a search takes several, value,value"
            raise OptionError(f"search {override.key_or_group}", override.get_value_string(), words)
    (jobs,) = BasicSweeper.split_arguments(parsed, max_batch_size=None) or [[[]]]
    return [tuple(job) for job in jobs]


# --- the files ---------------------------------------------------------------------------------------------


def read_boards(wanted: str, folder: Path = BOARDS) -> dict[str, BoardPlan]:
    """The boards named (with commas, or ``all``). Raises `OptionError` for unknown ones and for broken files."""
    known = sorted(file.stem for file in folder.glob("*.yaml"))
    names = known if wanted == "all" else [name.strip() for name in wanted.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise OptionError("board", unknown[0], f"allowed: all, {', '.join(known)}")
    return {name: read_board(folder / f"{name}.yaml") for name in dict.fromkeys(names)}


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
        board = BoardPlan.model_validate(_tuples(raw))
        _check(board)
    except ValidationError as error:
        wrong = first_option_error(error)
    except OptionError as error:
        wrong = error
    else:
        return board
    raise OptionError(f"{path}: {wrong.option}", wrong.value, wrong.allowed)


def _check(board: BoardPlan) -> None:
    """What no single key can show: no target, seed or name twice, equal effort for everybody, nothing reserved."""
    names = [method.name for method in board.methods]
    for key, values in (("targets", board.targets), ("seeds", board.seeds), ("methods", names)):
        if len(set(values)) < len(values):  # type: ignore[arg-type]
            raise OptionError(key, ", ".join(map(str, values)), "one of them is there twice")
    if min(board.targets) <= 0:
        raise OptionError("targets", min(board.targets), "must be more than 0")
    if board.tuning.seed in board.seeds:
        raise OptionError("tuning.seed", board.tuning.seed, "is also one of seeds: the choice must not see these runs")
    _no_reserved("setting", board.setting)
    most = len(board.trials(board.reference))
    for method in (board.reference, *board.methods):
        _no_reserved(f"{method.name}.overrides", method.overrides)
        _no_reserved(f"{method.name}.search", method.search)
        found = len(board.trials(method))
        if found != most:
            words = f"{found} trials, but {most} for {board.reference.name}: equal effort for all"
            raise OptionError(f"{method.name}.search", "; ".join(board.sweeps(method)), words)


def _no_reserved(key: str, overrides: Sequence[str]) -> None:
    for override in overrides:
        if option_of(override) in RESERVED:
            raise OptionError(key, override, "is set by the leaderboard itself")


def _tuples(value: Any) -> Any:
    """YAML knows lists, the schema tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
