"""Experiment trackers: TensorBoard, MLflow and Weights & Biases, all used through `Tracker`.

Off by default. Nothing here decides anything of a result, and nothing that fails here ends a run. Each tool imports its
package only when a run uses it, and writes files unless configured otherwise. A number that is not finite is tracked as
the text "inf": none of the tools displays it correctly as a number.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedpriv.common.errors import OptionError
from fedpriv.common.files import write_atomic
from fedpriv.common.run_files import mapping_in
from fedpriv.config import owner
from fedpriv.config.options import TrackingConfig
from fedpriv.config.schema import Config
from fedpriv.report.client_accuracy import PERSONAL
from fedpriv.report.reading import leaves, read_run
from fedpriv.report.views import private_folder

Figures = dict[str, float]
Texts = dict[str, str]
State = Literal["finished", "stopped", "failed"]

#: File in a run's folder: tool -> the run's id in it.
IDS = "tracking.json"
#: kind -> (module, what to install)
PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow", "mlflow-skinny"),
    "wandb": ("wandb", "wandb"),
}
#: Defaults that the user's environment overrides: no telemetry to the tools' makers, and an unresponsive server delays
#: a round by seconds, not minutes.
ENVIRONMENT = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "WANDB_ERROR_REPORTING": "false",
}
SECONDS_TO_CONNECT, SECONDS_TO_FINISH = 30.0, 60.0
MOST_PARAMS = 100  # most parameters that mlflow accepts in one call
#: Options about paths on this machine, or about monitoring.
PLACES = ("run_dir", "operations", "tracking", "model.path", "dataset.path", *owner.PLACES)
#: Of a round's line of metrics.jsonl; and means over the clients, known only in simulation: no real server sees them.
ROUND = ("accuracy", "loss", "participants", "dropped", "late", "stopped", "seconds", "bytes_up", "bytes_down")
DIAGNOSTICS = ("train_loss", "update_norm", "clipped_norm", "noise_norm")


@dataclass(frozen=True)
class RunFacts:
    """What a tool needs to know about a run.

    known: the run's id in this tool if it was tracked before (a resumed run), None otherwise.
    done: completed rounds; later ones that were tracked are replayed.
    """

    experiment: str
    name: str
    folder: Path
    options: Mapping[str, str]
    done: int = 0
    known: str | None = None


class Tool(NamedTuple):
    """A tool with a run that was started, or continued, in it. Any call may raise: `Tracker` then stops using it.

    id: of the run in this tool. round(number, figures, texts). finish(state, number, figures, texts): ends the run
    after round ``number``; the figures are the whole run's, empty unless it has finished.
    """

    id: str
    round: Callable[[int, Figures, Texts], None]
    finish: Callable[[State, int, Figures, Texts], None]


def tensorboard(facts: RunFacts, _: TrackingConfig) -> Tool:
    """Event files in ``folder/tensorboard/NAME``; a resumed run hides the rounds that are replayed."""
    from torch.utils.tensorboard import SummaryWriter

    parent = facts.folder / "tensorboard"
    parent.mkdir(parents=True, exist_ok=True)
    place, number = facts.known or facts.name, 1
    while not facts.known:
        try:
            (parent / place).mkdir()
            break
        except FileExistsError:
            number += 1
            place = f"{facts.name}-{number}"
    writer = SummaryWriter(parent / place, purge_step=facts.done + 1 if facts.known else None)
    if not facts.known:  # a Markdown code block
        writer.add_text("config", "\n".join(f"    {name}: {value}" for name, value in facts.options.items()), 0)

    def round_ended(number: int, figures: Figures, texts: Texts) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, number)
        for name, text in texts.items():
            writer.add_text(name, text, number)
        writer.flush()

    def finish(state: State, number: int, figures: Figures, texts: Texts) -> None:
        round_ended(number, figures, {**texts, "state": state})
        writer.close()

    return Tool(place, round_ended, finish)


def mlflow(facts: RunFacts, wanted: TrackingConfig) -> Tool:
    """A file store in ``folder/mlflow``, or a server. The client belongs to this call: no global state is set."""
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    client = MlflowClient(wanted.mlflow_address or (facts.folder / "mlflow").as_uri())
    if facts.known:
        run = facts.known
        client.update_run(run, status="RUNNING")
    else:
        experiment = client.get_experiment_by_name(facts.experiment)
        try:
            place = experiment.experiment_id if experiment else client.create_experiment(facts.experiment)
        except MlflowException:  # another job of a sweep created it first
            if (experiment := client.get_experiment_by_name(facts.experiment)) is None:
                raise
            place = experiment.experiment_id
        run = client.create_run(str(place), run_name=facts.name).info.run_id
        params = [Param(name, value) for name, value in facts.options.items()]
        for first in range(0, len(params), MOST_PARAMS):
            client.log_batch(run, params=params[first : first + MOST_PARAMS])

    def round_ended(number: int, figures: Figures, texts: Texts) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, number) for name, value in figures.items()]
        client.log_batch(run, metrics, tags=[RunTag(name, text) for name, text in texts.items()])

    def finish(state: State, number: int, figures: Figures, texts: Texts) -> None:
        round_ended(number, figures, texts)
        client.set_terminated(run, {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}[state])

    return Tool(run, round_ended, finish)


def wandb(facts: RunFacts, wanted: TrackingConfig) -> Tool:
    """Offline: a folder ``folder/wandb/offline-run-*``, which its owner may send with ``wandb sync``. Each start of a
    resumed run has its own folder, with the same run id.
    """
    import wandb

    facts.folder.mkdir(parents=True, exist_ok=True)
    run_id = facts.known or secrets.token_hex(4)
    nothing_of_the_machine: dict[str, Any] = {
        **dict.fromkeys(("silent", "disable_git", "disable_code", "x_disable_meta", "x_disable_stats"), True),
        "x_disable_machine_info": True,
        "host": "",
        "save_code": False,
        "x_save_requirements": False,
        "console": "off",
    }
    settings = wandb.Settings(
        init_timeout=SECONDS_TO_CONNECT,
        login_timeout=SECONDS_TO_CONNECT,
        finish_timeout=SECONDS_TO_FINISH,
        **nothing_of_the_machine,
    )
    run: Any = wandb.init(
        project=facts.experiment,
        name=facts.name,
        id=run_id,
        dir=str(facts.folder),
        mode=wanted.wandb_mode,
        config=dict(facts.options),
        resume="allow" if wanted.wandb_mode == "online" else None,
        reinit="create_new",
        settings=settings,
    )
    run.define_metric("round")
    run.define_metric("*", step_metric="round")

    def round_ended(number: int, figures: Figures, texts: Texts) -> None:
        run.log({"round": number, **figures})
        run.summary.update(texts)

    def finish(state: State, number: int, figures: Figures, texts: Texts) -> None:
        run.summary.update({**figures, **texts, "state": state})
        run.finish(exit_code=0 if state == "finished" else 1)

    return Tool(run_id, round_ended, finish)


TOOLS: dict[str, Callable[[RunFacts, TrackingConfig], Tool]]
TOOLS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


class Tracker:
    """The tools of one run. A tool that fails is no longer used, after one warning: warn(kind, what went wrong)."""

    def __init__(self, wanted: TrackingConfig, folder: Path, warn: Callable[[str, str], None]) -> None:
        """folder: the run's. Raises `OptionError` where the package of a tool is not installed."""
        for kind in wanted.kinds:
            module, package = PACKAGES[kind]
            found = importlib.util.find_spec(module)
            if found is None or found.origin is None:  # None: a mere folder of that name
                words = f"needs the package {package}: make install, or pip install {package}"
                raise OptionError("tracking.kinds", kind, words)
        self._wanted, self._folder, self._warn = wanted, folder.absolute(), warn
        self._tools: dict[str, Tool] = {}
        self._said: Texts = {}
        self._last = 0

    def start(self, config: Config, done: int) -> None:
        """Rounds start after round ``done``. A run that was tracked before is continued by its id; a tool added only
        now gets the earlier rounds too.
        """
        self._last = done
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        for kind in self._wanted.kinds:
            self._guarded(kind, lambda kind=kind: self._begin(kind, config, done))  # type: ignore[misc]

    def _begin(self, kind: str, config: Config, done: int) -> None:
        file = self._folder / IDS
        ids = mapping_in(self._folder, IDS) if file.exists() else {}
        inside = private_folder(self._folder) if self._wanted.private else self._folder
        place = Path(self._wanted.folder).absolute() if self._wanted.folder else inside / "tracking"
        name = self._wanted.run_name or self._folder.name
        facts = RunFacts(self._wanted.experiment, name, place, options(config), done, ids.get(kind))
        tool = self._tools[kind] = TOOLS[kind](facts, self._wanted)
        if facts.known is None:
            write_atomic(file, json.dumps({**ids, kind: tool.id}) + "\n")
            for row in read_run(self._folder, self._wanted.private).rounds if done else ():
                if row["round"] <= done:
                    tool.round(row["round"], *of_round(row))

    def round(self, row: Mapping[str, Any]) -> None:
        """row: the round's line of metrics.jsonl."""
        self._last = row["round"]
        figures, texts = of_round(row)
        news = {name: text for name, text in texts.items() if self._said.get(name) != text}
        self._said |= news
        for kind, tool in list(self._tools.items()):
            self._guarded(kind, lambda tool=tool: tool.round(self._last, figures, news))  # type: ignore[misc]

    def finish(self, state: State) -> None:
        """The run ended, as recorded in its folder. The model is tracked by its path, not copied."""
        for kind, tool in list(self._tools.items()):
            self._guarded(kind, lambda tool=tool: tool.finish(state, self._last, *self._end(state)))  # type: ignore[misc]
        self._tools.clear()

    def _end(self, state: State) -> tuple[Figures, Texts]:
        model = self._folder / "model.safetensors"
        summary = read_run(self._folder, self._wanted.private).summary if state == "finished" else None
        figures, texts = of_summary(summary) if summary else ({}, {})
        return figures, {**texts, "model": model.as_uri()} if model.exists() else texts

    def _guarded(self, kind: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._tools.pop(kind, None)
            self._warn(kind, " ".join(f"{type(error).__name__}: {error}".split())[:300])


# --- what is tracked -------------------------------------------------------------------------------------


def options(config: Config) -> Texts:
    """The resolved configuration by dotted names, without `PLACES` and targets."""
    shown = {
        name: value
        for name, value in leaves(config.to_dict())
        if not any(f"{name}.".startswith(f"{place}.") for place in PLACES) and "_target_" not in name
    }
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in shown.items()}


def of_round(row: Mapping[str, Any]) -> tuple[Figures, Texts]:
    """A line of metrics.jsonl. Single clients are left out, and so are lists, which a tool cannot plot."""
    personal = row[PERSONAL] or {}
    return _divided(
        {
            **{name: row[name] for name in ROUND},
            "epsilon": row["epsilon_so_far"],
            "refused": None if row["refused"] is None else sum(row["refused"].values()),
            **{f"figures/{name}": value for name, value in row["figures"].items()},
            **{f"diagnostics/{name}": row[name] for name in DIAGNOSTICS},
            **{f"diagnostics/{PERSONAL}.{name}": value for name, value in personal.items() if name != "clients"},
        }
    )


def of_summary(summary: Mapping[str, Any]) -> tuple[Figures, Texts]:
    """summary.json by dotted names, always including the three epsilons."""
    from fedpriv.report.epsilon_figures import unaudited
    from fedpriv.report.run_summary import Privacy  # as in `reading`

    figures, texts = _divided({f"summary/{name}": value for name, value in leaves(summary)})
    privacy = Privacy.model_validate(summary["privacy"])
    for name, words in (("claimed_epsilon", "nothing is claimed"), ("audited_epsilon", unaudited(privacy))):
        if getattr(privacy, name) is None:
            texts[f"summary/privacy.{name}"] = words
    return figures, texts


def _divided(values: Mapping[str, Any]) -> tuple[Figures, Texts]:
    """Separates finite numbers and texts; other values are dropped."""
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    numbers = {name: float(value) for name, value in values.items() if type(value) in (int, float)}
    texts |= {name: str(value) for name, value in numbers.items() if not math.isfinite(value)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}, texts
