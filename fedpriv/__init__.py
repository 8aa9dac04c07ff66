"""Differentially private federated learning whose privacy claims are checked.

    import fedpriv

    plan = fedpriv.plan_run(["strategy=fedcad", "privacy.target_epsilon=50"])  # what it would cost; trains nothing
    run = fedpriv.run(["strategy=fedcad", "privacy.target_epsilon=50"])
    run.summary, run.metrics, run.ledger, run.figures, run.model
    fedpriv.audit_run(run), fedpriv.attack_run(run), fedpriv.certify_run(run), fedpriv.compare_runs([run, ...])
    fedpriv.load("outputs/..."), fedpriv.resume_run("outputs/...")
    fedpriv.extend_run(run, ["num_rounds=120"]), fedpriv.rerun(run, ["local.lr=0.05"])
    fedpriv.check("my_app.privacy:release", epsilon=8)  # other people's code (docs/check.md)
    fedpriv.flower: every method as a strategy and a client for any Flower app (docs/tutorial.md)
    fedpriv.accountant(population=100)  # for Flower's own central-DP strategies: accountant=
    fedpriv.guarded(FedAvg())  # one of Flower's strategies over machines that guard any app (docs/guard.md)

Options are those of the command line. What a user can mend is a `FedprivError`: `OptionError` names the option, its
value and what is allowed. Everything is imported when it is first used. docs/python.md is the guide.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpriv.api.calls import (
        Answer,
        Answers,
        Attacks,
        Audit,
        CheckResult,
        Comparison,
        Figure,
        Plan,
        Run,
        ask,
        attack_run,
        audit_run,
        certify_node,
        certify_run,
        check,
        compare_runs,
        extend_run,
        load,
        plan_run,
        rerun,
        resume_run,
        run,
    )
    from fedpriv.common.errors import DataError, FedprivError, OptionError, RunFailed, RunFolderError
    from fedpriv.guard.guarded_strategy import guarded
    from fedpriv.guard.simulation import simulate_guard
    from fedpriv.runs.flower_accountant import accountant
    from fedpriv.training.trained_model import TrainedModel

__version__ = "1.0.0"


def _keep_to_this_machine() -> None:
    """Switches off what Flower and Ray report to their makers, and keeps connections to this machine from proxies.

    This holds for this process and those that it starts. What the user has set stays. Libraries read either spelling of
    NO_PROXY; gRPC reads ``no_grpc_proxy`` before it.
    """
    silent = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    for name, value in silent.items():
        os.environ.setdefault(name, value)
    here = (
        "localhost,127.0.0.1,::1,169.254.169.254,metadata.google.internal"  # the last two: Ray asks a cloud's machine
    )
    given = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    for name in ("no_proxy", "NO_PROXY", *(["no_grpc_proxy"] if "no_grpc_proxy" in os.environ else [])):
        hosts = [host.strip() for host in os.environ.get(name, given).split(",") if host.strip()]
        os.environ[name] = "*" if hosts == ["*"] else ",".join(dict.fromkeys([*hosts, *here.split(",")]))


_keep_to_this_machine()
__all__ = [
    "Answer",
    "Answers",
    "Attacks",
    "Audit",
    "CheckResult",
    "Comparison",
    "DataError",
    "FedprivError",
    "Figure",
    "OptionError",
    "Plan",
    "Run",
    "RunFailed",
    "RunFolderError",
    "TrainedModel",
    "__version__",
    "accountant",
    "ask",
    "attack_run",
    "audit_run",
    "certify_node",
    "certify_run",
    "check",
    "compare_runs",
    "extend_run",
    "guarded",
    "load",
    "plan_run",
    "rerun",
    "resume_run",
    "run",
    "simulate_guard",
]

#: Where a name is defined that `fedpriv.api.calls` does not; imported when it is first asked for: torch takes seconds.
_ELSEWHERE = {
    **dict.fromkeys(
        ("DataError", "FedprivError", "OptionError", "RunFailed", "RunFolderError"), "fedpriv.common.errors"
    ),
    "TrainedModel": "fedpriv.training.trained_model",
    "accountant": "fedpriv.runs.flower_accountant",
    "guarded": "fedpriv.guard.guarded_strategy",
    "simulate_guard": "fedpriv.guard.simulation",
}


# `python -m fedpriv` looks into the working directory first, and would take a user's datasets.py for the library.
_called = sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")[0] == __name__
if _called and sys.path[0] == os.getcwd():
    sys.path.append(sys.path.pop(0))

#: `python -m fedpriv.audit` finds commands/audit.py here. Code imports it by its own name, `fedpriv.commands.audit`.
__path__.append(f"{__path__[0]}/commands")


def __getattr__(name: str) -> Any:
    if name.startswith("__") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_ELSEWHERE.get(name, "fedpriv.api.calls")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
