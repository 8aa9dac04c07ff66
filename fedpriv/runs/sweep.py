"""What a sweep says at its end. A module of its own: Hydra makes the callback by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from fedpriv.cli import DONE, FAILED, FAILURE_FILE, job_ended, shown


class SweepOutcome(Callback):
    """Hydra's callback: which jobs failed, whichever process they ran in, and what to do with the others."""

    def on_multirun_end(self, config: Any, **_: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        failures = {path.parent.name: path.read_text().strip() for path in sorted(folder.glob(f"*/{FAILURE_FILE}"))}
        finished = list(folder.glob("*/summary.json"))
        job_ended(FAILED if failures else DONE)
        print(f"sweep: {len(finished)} runs finished, {len(failures)} failed")
        for name, reason in failures.items():
            print(f"  {name}: {reason}")
        if finished:
            print(f"compare: python -m fedpriv.report {shown(folder)}", flush=True)
