"""The bases of all schemas of options, and the groups that decide nothing of a run's result."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedpriv.common.errors import OptionError

#: Whose code computes something that two libraries can.
Library = Literal["fedpriv", "opacus"]

#: Bounds below this could be rounded in float32 to something longer than they are.
SMALLEST = 1e-6


class Options(BaseModel):
    """A group of options: unknown keys are refused, values are never converted silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


def on_server(description: str, **limits: Any) -> Any:
    """An option that is spelled ``strategy.server.NAME``; all others of a method are ``strategy.client.NAME``."""
    return Field(description=description, json_schema_extra={"half": "server"}, **limits)


#: `model.head` of model=moments.
Head = Literal["auto", "lda", "ridge", "mean"]


def follows(option: str) -> Any:
    """No option of its own: the value of another one, which the method's halves read under this name."""
    return Field(description=f"as {option}", json_schema_extra={"half": "server", "follows": option})


class MethodOptions(Options):
    """The options of a method: one class, which both halves read. These are those that every method has."""

    min_replies: int = on_server("fewer usable replies than this end the run", ge=1)
    client_sampling: Literal["fixed", "poisson", "allocated"] = on_server(
        "cohort of exactly clients_per_round; Poisson; or one secret round of each pass for every client (form=central)"
    )
    participation: Literal["sampled", "once", "balanced", "cyclic"] = on_server("how often a client may take part")
    participations: int | None = on_server("at most so often; null: as the rounds need", ge=1)
    cohorts: str | None = on_server(
        "package.module.NAME of a function (round, num_clients, size, seed) -> ids of the round's clients; with "
        "client_sampling=fixed, which no guarantee rests on",
        default=None,
    )
    weighting: Literal["uniform", "examples"] = on_server("weights of the mean over the replies")
    optimizer: Literal["sgd", "momentum", "adam", "yogi"] = on_server(
        "how a round's update moves the global model", default="sgd"
    )
    lr: float | None = on_server(
        "of that optimizer; null: 1, with adam and yogi 0.01 (sgd at 1: the update)", default=None, gt=0
    )
    momentum: float = on_server("optimizer=momentum: beta, FedAvgM's 0.9", default=0.9, ge=0, lt=1)
    beta1: float = on_server("optimizer=adam, yogi: of the mean update, FedOpt's 0.9", default=0.9, ge=0, lt=1)
    beta2: float = on_server("optimizer=adam, yogi: of its squares, FedOpt's 0.99", default=0.99, ge=0, lt=1)
    tau: float = on_server("optimizer=adam, yogi: adaptivity, FedOpt's 0.001", default=0.001, gt=0)
    bias_correction: bool = on_server(
        "optimizer=adam, yogi: moments start at 0 and are divided by 1 - beta^t, as Flower's FedAdam has it",
        default=False,
    )

    @property
    def groups(self) -> int:
        """b: into how many fixed groups the clients are divided, of which a round draws from one."""
        return 1


class AttackConfig(Options):
    """What a run keeps for `python -m fedpriv.attack`, and that command's own options."""

    keep_snapshots: bool = Field(
        default=False, description="keep global models of rounds, for attack=confidence_series"
    )
    snapshot_every: int = Field(default=5, ge=1, description="keep the global model every n rounds")
    keep_updates: bool = Field(
        default=False, description="keep each client's update in private/updates/, for attack=update_product and others"
    )
    update_every: int = Field(default=1, ge=1, description="keep the updates of every n-th round, the first included")
    members: int = Field(default=2000, ge=20, description="evaluated members at most, and as many non-members")
    known_share: float = Field(
        default=0.25, gt=0, lt=1, description="share of the clients that the attacker is, and whose examples it knows"
    )
    shadows: int = Field(
        default=16,
        ge=2,
        description="lira, rmia: shadow models of the run's own size, half with an example (odd: one more or less)",
    )
    rmia_gamma: float = Field(
        default=1.0, gt=0, description="rmia: an example counts as ahead of another from this ratio of likelihoods on"
    )
    references: int = Field(
        default=256,
        ge=8,
        description="update_likelihood: known examples whose gradients say how updates vary by other examples",
    )
    inverted_examples: int = Field(
        default=8, ge=1, le=64, description="inversion: examples sought in an update; those of a smaller client at most"
    )
    inverted_clients: int = Field(default=8, ge=1, description="inversion: clients attacked")
    inverted_steps: int = Field(default=300, ge=1, description="inversion: steps of the search")
    inverted_smoothness: float = Field(
        default=0.01, ge=0, description="inversion: weight of total variation; of examples that are no table's rows"
    )
    control_models: int = Field(default=10, ge=1, description="overfitted models of the positive control")
    control_examples: int = Field(default=60, ge=40, description="examples that each of these is trained on")
    control_epochs: int = Field(default=300, ge=10, description="epochs of each of these")
    workers: int | None = Field(
        default=None, ge=1, description="processes that train shadow models (null: half of the cores)"
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="draws targets and shadow models")


class AuditConfig(Options):
    """An audit within the run, by canaries. Decides nothing of the result."""

    in_run: bool = Field(
        default=False, description="extra canary clients answer the run's own requests; gives audited epsilons"
    )
    canaries: int | None = Field(
        default=None, ge=8, le=100_000, description="coins of the canaries (null: as many as 4 % of the time allow)"
    )
    confidence: float = Field(default=0.95, ge=0.5, lt=1, description="of the bounds that they give")


class OperationsConfig(Options):
    """Operator options: what is shown of a run, and how it stops. No effect on results."""

    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="serve /metrics, /healthz and /readyz here (null: no; 0: a free port)"
    )
    metrics_address: str = Field(default="127.0.0.1", min_length=1, description="address that these are served on")
    log_format: Literal["plain", "json"] | None = Field(
        default=None, description="events as lines of text or of JSON (null: progress only)"
    )
    log_file: str | None = Field(
        default=None,
        min_length=1,
        description="append lines here, plain ones unless log_format says json (null: to stderr)",
    )
    log_level: Literal["info", "warning", "error"] = Field(default="info", description="least level of these lines")
    stop_grace: float = Field(
        default=20.0,
        ge=0,
        description="seconds that the first SIGTERM or Ctrl-C leaves a round to end; then a checkpoint is written, "
        "also where checkpoint.every=0",
    )
    report: bool = Field(default=True, description="write report.html and its pictures at the end")
    live_report: int = Field(
        default=0, ge=0, description="rewrite report.html every n rounds while the run goes on (0: at the end only)"
    )

    @model_validator(mode="after")
    def _a_live_report_is_a_report(self) -> OperationsConfig:
        if self.live_report and not self.report:
            raise OptionError("operations.live_report", self.live_report, "needs operations.report=true")
        return self


#: Tools that can show a run.
TrackingKind = Literal["tensorboard", "mlflow", "wandb"]


class TrackingConfig(Options):
    """Which tools show a run beside its own report. Decides nothing of the result."""

    kinds: tuple[TrackingKind, ...] = Field(
        default=(), description=f"track the run with these: {', '.join(get_args(TrackingKind))}"
    )
    folder: str | None = Field(
        default=None, min_length=1, description="where their files go (null: tracking/ in the run's folder)"
    )
    experiment: str = Field(default="fedpriv", min_length=1, description="mlflow's experiment, wandb's project")
    run_name: str | None = Field(
        default=None, min_length=1, description="the run's name there (null: its folder's name)"
    )
    mlflow_address: str | None = Field(
        default=None, min_length=1, description="mlflow: address of a server (null: files, no network)"
    )
    wandb_mode: Literal["offline", "online"] = Field(
        default="offline", description="wandb: files for `wandb sync`, or its server"
    )
    private: bool = Field(default=False, description="show them private/ too: for tools that you alone may read")

    @field_validator("kinds", mode="before")
    @classmethod
    def _one_or_several(cls, kinds: Any) -> Any:
        """A list, one name, or names with commas between them (the host's environment)."""
        if isinstance(kinds, str):
            kinds = [name.strip() for name in kinds.split(",") if name.strip()]
        return tuple(dict.fromkeys(kinds)) if isinstance(kinds, list | tuple) else () if kinds is None else kinds

    @field_validator("run_name", mode="after")
    @classmethod
    def _no_path(cls, name: str | None) -> str | None:
        """It becomes the name of a folder."""
        if name is not None and "/" in name:
            raise OptionError("tracking.run_name", name, "must be a name without slashes")
        return name
