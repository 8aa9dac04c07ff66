"""The tracking tools. Each imports its package only when a run uses it, and writes files unless configured
otherwise.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from fedpriv.config.options import TrackingConfig
from fedpriv.report.live.tracking.tracked_figures import Figures, Texts

State = Literal["finished", "stopped", "failed"]

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


class Backend(Protocol):
    """A tool. Any method may raise: `Tracker` then stops using the tool."""

    def start(self, facts: RunFacts) -> str:
        """Starts a run, or continues a known one; returns its id in this tool."""

    def round(self, number: int, figures: Figures, texts: Texts) -> None: ...

    def finish(self, state: State, number: int, figures: Figures, texts: Texts) -> None:
        """Ends the run after round ``number``; the figures are the whole run's, empty unless it has finished."""


class TensorBoard:
    """Event files in ``folder/tensorboard/NAME``; a resumed run hides the rounds that are replayed."""

    def start(self, facts: RunFacts) -> str:
        from torch.utils.tensorboard import SummaryWriter

        place = facts.known or _new_folder(facts.folder / "tensorboard", facts.name)
        purge = facts.done + 1 if facts.known else None
        self._writer = SummaryWriter(facts.folder / "tensorboard" / place, purge_step=purge)
        if not facts.known:
            lines = (f"    {name}: {value}" for name, value in facts.options.items())  # a Markdown code block
            self._writer.add_text("config", "\n".join(lines), 0)
        return place

    def round(self, number: int, figures: Figures, texts: Texts) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        for name, text in texts.items():
            self._writer.add_text(name, text, number)
        self._writer.flush()

    def finish(self, state: State, number: int, figures: Figures, texts: Texts) -> None:
        self.round(number, figures, {**texts, "state": state})
        self._writer.close()


class MLflow:
    """A file store in ``folder/mlflow``, or a server. Client and run belong to this object: no global state is set."""

    STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}  # noqa: RUF012

    def __init__(self, address: str | None) -> None:
        self._address = address

    def start(self, facts: RunFacts) -> str:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(self._address or (facts.folder / "mlflow").as_uri())
        if facts.known:
            self._run = facts.known
            self._client.update_run(self._run, status="RUNNING")
            return self._run
        self._run = self._client.create_run(self._experiment(facts.experiment), run_name=facts.name).info.run_id
        params = [Param(name, value) for name, value in facts.options.items()]
        for first in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run, params=params[first : first + MOST_PARAMS])
        return self._run

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another job of a sweep created it first
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def round(self, number: int, figures: Figures, texts: Texts) -> None:
        from mlflow.entities import Metric, RunTag

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, number) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics, tags=[RunTag(name, text) for name, text in texts.items()])

    def finish(self, state: State, number: int, figures: Figures, texts: Texts) -> None:
        self.round(number, figures, texts)
        self._client.set_terminated(self._run, self.STATUS[state])


class WandB:
    """Offline: a folder ``folder/wandb/offline-run-*``, which its owner may send with ``wandb sync``. Each
    start of a resumed run has its own folder, with the same run id.
    """

    def __init__(self, mode: Literal["offline", "online"]) -> None:
        self._mode = mode

    def start(self, facts: RunFacts) -> str:
        import wandb

        facts.folder.mkdir(parents=True, exist_ok=True)
        run_id = facts.known or secrets.token_hex(4)
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_meta=True,
            x_save_requirements=False,
            x_disable_stats=True,
            x_disable_machine_info=True,
            init_timeout=SECONDS_TO_CONNECT,
            login_timeout=SECONDS_TO_CONNECT,
            finish_timeout=SECONDS_TO_FINISH,
        )
        self._run: Any = wandb.init(
            project=facts.experiment,
            name=facts.name,
            id=run_id,
            dir=str(facts.folder),
            mode=self._mode,
            config=dict(facts.options),
            resume="allow" if self._mode == "online" else None,
            reinit="create_new",
            settings=settings,
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        return run_id

    def round(self, number: int, figures: Figures, texts: Texts) -> None:
        self._run.log({"round": number, **figures})
        self._run.summary.update(texts)

    def finish(self, state: State, number: int, figures: Figures, texts: Texts) -> None:
        self._run.summary.update({**figures, **texts, "state": state})
        self._run.finish(exit_code=0 if state == "finished" else 1)


def make_backend(kind: str, options: TrackingConfig) -> Backend:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if kind == "tensorboard":
        return TensorBoard()
    return MLflow(options.mlflow_address) if kind == "mlflow" else WandB(options.wandb_mode)


def _new_folder(parent: Path, name: str) -> str:
    """Makes a new folder ``name``, or ``name-2`` and so on; returns its name."""
    parent.mkdir(parents=True, exist_ok=True)
    number, found = 1, name
    while True:
        try:
            (parent / found).mkdir()
            return found
        except FileExistsError:
            number += 1
            found = f"{name}-{number}"
