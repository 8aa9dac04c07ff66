"""A job of a study: one run, plan, audit or attack, named by what decides its result.

The name is the method and a digest of the composed options, without the seed (which stands beside it), without those
that only the operator or a person who looks on needs, and without paths: of pictures and of a split, their contents
count. No line of code is in it, so code can move; that today's code gives what it gave before is for tests to hold
(``tests/studies/test_committed_runs.py``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedpriv.config.data_schema import KNOWN_SETS

#: Of every job: nothing that only a person who looks at one run needs, and one core each.
QUIET = ("engine=inprocess", "engine.threads_per_client=1", "operations.report=false")

#: Kinds whose options are their own, and not those of `python -m fedpriv`.
WITHOUT_CONFIG = ("dme", "computed")
#: Kinds that take a second and train nothing: made also where nothing is to be run.
NO_RUNS = ("plan", "tuning", "computed")
#: What a person types for a job of a kind, where it is not `python -m fedpriv`.
MODULES = {
    "plan": "fedpriv plan=true",
    "tuning": "fedpriv plan=true",
    "audit": "fedpriv.audit",
    "dme": "fedpriv.dme",
    "computed": "fedpriv.studies.computations",
}


@dataclass(frozen=True, eq=False)
class Job:
    """``kind``: a training run (train), what one would cost (plan) and what choosing its options would (tuning), an
    audit of its release code (audit), a run and an attack on its model (attack), mean estimation by all quantisers
    (dme), or a figure without any run (computed).

    options: overrides of `python -m fedpriv` (`WITHOUT_CONFIG`: its own options), without the seed. extra: options of
    the audit or of the price of tuning, or the attack's name. Two jobs are the same where their names are, however
    their options were written.
    """

    kind: str
    options: tuple[str, ...]
    seed: int
    extra: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def name(self) -> str:
        """A folder name: the method, and a digest of everything that decides the result."""
        chosen = dict(option.split("=", 1) for option in self.options if "=" in option)
        what = self.kind if self.kind in WITHOUT_CONFIG else f"{self.kind}-{chosen.get('strategy', 'default')}"
        return f"{what}-{_digest(self.kind, self.options, self.extra)}-s{self.seed}"

    @property
    def overrides(self) -> list[str]:
        return [*self.without_seed, f"seed={self.seed}"]

    @property
    def without_seed(self) -> tuple[str, ...]:
        return (*self.options, *_quiet(self.options))

    @property
    def command(self) -> str:
        """What a person types for the same result."""
        words = [f"'{option}'" if set(option) & set("{}[]$ ") else option for option in portable(self.options)]
        module = MODULES.get(self.kind, "fedpriv")
        if self.kind == "computed":
            return " ".join(["python -m", module, *words])
        extra = self.extra if self.kind == "audit" else ()
        return " ".join(["python -m", module, *words, f"seed={self.seed}", *extra])


@lru_cache(maxsize=4096)
def _digest(kind: str, options: tuple[str, ...], extra: tuple[str, ...]) -> str:
    """Of all that decides a result but the seed: the composed options (composing takes a fifth of a second)."""
    if kind in WITHOUT_CONFIG:
        content: Any = portable(options) if kind == "computed" else options
    else:
        from fedpriv.config.compose import compose

        config = compose([*options, *_quiet(options)]).identity()
        if config["dataset"]["name"] not in KNOWN_SETS:  # which pictures these are, only the folder says
            config["dataset"]["pictures"] = _contents(str(config["dataset"]["root"]))
        for place in ("root", "cache", "download"):
            config["dataset"].pop(place)
        if (split := config["dataset"]["split"]) is not None:  # its rows count, wherever the file is
            with suppress(OSError):
                stat = os.stat(split)
                config["dataset"]["split"] = _rows(str(split), stat.st_mtime_ns, stat.st_size)
        content = {name: value for name, value in config.items() if name not in ("operations", "tracking", "seed")}
    text = json.dumps([kind, extra, content], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@lru_cache(maxsize=64)
def _rows(split: str, changed: int, size: int) -> str:
    """A digest of a split's file as it was then."""
    return hashlib.sha256(Path(split).read_bytes()).hexdigest()


@lru_cache(maxsize=64)
def _contents(root: str) -> str:
    """A digest of a folder's files: their names and sizes, wherever the folder is."""
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(root).rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def _quiet(options: Sequence[str]) -> list[str]:
    given = {option.split("=")[0] for option in options}
    return [option for option in QUIET if option.split("=")[0] not in given]


#: Options that say where something is on this machine, and decide nothing.
PLACES = ("dataset.root", "dataset.cache", "dataset.download")


def portable(options: Sequence[str]) -> tuple[str, ...]:
    """The options without those that are true on one machine only; of a split's file, its name."""
    split = "dataset.split="
    named = (f"{split}{Path(o.removeprefix(split)).name}" if o.startswith(split) else o for o in options)
    return tuple(option for option in named if option.split("=")[0] not in PLACES)
