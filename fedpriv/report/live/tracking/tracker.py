"""The tracking interface of a run, whichever tools are used."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.common.errors import OptionError
from fedpriv.common.files import write_atomic
from fedpriv.common.run_files import mapping_in
from fedpriv.config.options import TrackingConfig
from fedpriv.config.schema import Config
from fedpriv.report.live.tracking.backends import PACKAGES, Backend, RunFacts, State, make_backend
from fedpriv.report.live.tracking.tracked_figures import Texts, of_round, of_summary, options
from fedpriv.report.reading import read_run
from fedpriv.report.views import private_folder

#: File in a run's folder: tool -> the run's id in it.
IDS = "tracking.json"

#: (kind, what went wrong)
Warn = Callable[[str, str], None]


class Tracker:
    """The tools of one run. A tool that fails is no longer used, after one warning."""

    def __init__(self, wanted: TrackingConfig, folder: Path, warn: Warn) -> None:
        """folder: the run's. Raises `OptionError` where the package of a tool is not installed."""
        for kind in wanted.kinds:
            module, package = PACKAGES[kind]
            found = importlib.util.find_spec(module)
            if found is None or found.origin is None:  # None: a mere folder of that name
                words = f"needs the package {package}: make install, or pip install {package}"
                raise OptionError("tracking.kinds", kind, words)
        self._wanted, self._folder, self._warn = wanted, folder.absolute(), warn
        self._backends: dict[str, Backend] = {}
        self._said: Texts = {}
        self._last = 0

    def start(self, config: Config, done: int) -> None:
        """Rounds start after round ``done``. A run that was tracked before is continued by its id; a tool added only
        now gets the earlier rounds too.
        """
        self._last = done
        for kind in self._wanted.kinds:
            self._backends[kind] = make_backend(kind, self._wanted)
            self._guarded(kind, partial(self._begin, kind, config, done))

    def _begin(self, kind: str, config: Config, done: int, backend: Backend) -> None:
        file = self._folder / IDS
        ids = mapping_in(self._folder, IDS) if file.exists() else {}
        inside = private_folder(self._folder) if self._wanted.private else self._folder
        place = Path(self._wanted.folder).absolute() if self._wanted.folder else inside / "tracking"
        name = self._wanted.run_name or self._folder.name
        facts = RunFacts(self._wanted.experiment, name, place, options(config), done, ids.get(kind))
        found = backend.start(facts)
        if facts.known is None:
            write_atomic(file, json.dumps({**ids, kind: found}) + "\n")
            for row in read_run(self._folder, self._wanted.private).rounds if done else ():
                if row["round"] <= done:
                    backend.round(row["round"], *of_round(row))

    def round(self, row: Mapping[str, Any]) -> None:
        """row: the round's line of metrics.jsonl."""
        self._last = row["round"]
        figures, texts = of_round(row)
        news = {name: text for name, text in texts.items() if self._said.get(name) != text}
        self._said |= news
        self._all(lambda backend: backend.round(self._last, figures, news))

    def finish(self, state: State) -> None:
        """The run ended, as recorded in its folder. The model is tracked by its path, not copied."""
        self._all(lambda backend: self._end(backend, state))
        self._backends.clear()

    def _end(self, backend: Backend, state: State) -> None:
        model = self._folder / "model.safetensors"
        summary = read_run(self._folder, self._wanted.private).summary if state == "finished" else None
        figures, texts = of_summary(summary) if summary else ({}, {})
        if model.exists():
            texts = {**texts, "model": model.as_uri()}
        backend.finish(state, self._last, figures, texts)

    def _all(self, work: Callable[[Backend], None]) -> None:
        for kind in list(self._backends):
            self._guarded(kind, work)

    def _guarded(self, kind: str, work: Callable[[Backend], None]) -> None:
        try:
            work(self._backends[kind])
        except Exception as error:
            del self._backends[kind]
            self._warn(kind, " ".join(f"{type(error).__name__}: {error}".split())[:300])
