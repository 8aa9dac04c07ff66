"""A run as an object: `Run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.run_files import mapping_in
from fedpriv.config.compose import read_config
from fedpriv.config.schema import Config
from fedpriv.report.views import PRIVATE

if TYPE_CHECKING:
    from fedpriv.runs.trained_model import TableModel, TrainedModel


@dataclass(frozen=True)
class Figure:
    """A picture of the report; a notebook shows it. alt: what can be seen on it, in words."""

    path: Path
    alt: str = ""

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


class Run:
    """A run's folder as an object: finished, interrupted or still going on.

    Everything is read from the folder when it is asked for; `summary`, `metrics`, `ledger` and `figures` each time
    anew, so that an object of a running run follows it. In a notebook it is the head of its report.
    """

    def __init__(self, folder: str | Path) -> None:
        """Raises `RunFolderError` where there is no run, `OptionError` where ``folder`` is no path."""
        if not isinstance(folder, str | Path):
            raise OptionError("folder", repr(folder), "must be a str or a Path")
        self.folder = Path(folder).absolute()
        self.config: Config = read_config(self.folder)

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").is_file()

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json: accuracy, privacy (the epsilons and their threat model), traffic, timing, versions; with what
        the folder has in private/ beside it.

        Raises `RunFolderError` for a run that has not finished.
        """
        try:
            found = mapping_in(self.folder, "summary.json")
        except FileNotFoundError:
            words = f"the run has not finished, fedpriv.resume_run({str(self.folder)!r}) goes on with it"
            raise RunFolderError(f"{self.folder}: {words}") from None
        except ValueError as error:
            raise RunFolderError(f"{self.folder / 'summary.json'}: cannot be read ({error})") from None
        from fedpriv.report.reading import read_run

        return dict(read_run(self.folder).summary or found)

    @property
    def claimed_epsilon(self) -> float | None:
        """Of the paper's own formula, with the scope that ``summary["privacy"]`` names; None: nothing is claimed."""
        return self._epsilon("claimed_epsilon")

    @property
    def verified_epsilon(self) -> float | None:
        """The upper bound for everything that was sent, over the whole run, for the client that sent most."""
        return self._epsilon("verified_epsilon")

    @property
    def audited_epsilon(self) -> float | None:
        """The lower bound that an audit measured; None until `fedpriv.audit_run`."""
        return self._epsilon("audited_epsilon")

    def _epsilon(self, name: str) -> float | None:
        value = (self.summary.get("privacy") or {}).get(name)
        return None if value is None else float(value)

    @property
    def metrics(self) -> Any:
        """metrics.jsonl, a row for each round, with what the folder has in private/ beside it: a pandas DataFrame, or a
        list of dicts where pandas is not installed.
        """
        from fedpriv.report.reading import read_run

        return _table([dict(row) for row in read_run(self.folder).rounds])

    @property
    def ledger(self) -> Any:
        """Every release: round, client, mechanism with its parameters, and what it may be seen by. A DataFrame, or a
        list of dicts.
        """
        from fedpriv.privacy.event_json import entry_to_json
        from fedpriv.privacy.ledger import LedgerFile

        entries = LedgerFile(self.folder / "ledger.jsonl", fsync=False).read().entries
        return _table([entry_to_json(entry) for entry in entries])

    @property
    def figures(self) -> Mapping[str, Figure]:
        """The report's pictures by name (``accuracy``, ``epsilon``, ``noise``, ...), as far as there are any."""
        found = {path.stem: path for folder in (self.folder, self.folder / PRIVATE) for path in folder.glob("*.png")}
        pictures = [found[name] for name in sorted(found)]
        return {path.stem: Figure(path, f"{path.stem} of {self.folder.name}") for path in pictures}

    @property
    def report(self) -> Path:
        """report.html, written now if it is not there."""
        page = self.folder / "report.html"
        if not page.is_file():
            from fedpriv.report.page import write_report

            write_report(self.folder)
        return page

    @cached_property
    def model(self) -> TrainedModel | TableModel:
        """The trained model: of pictures ``probabilities``, and ``read_picture`` of a file; of tables ``predict`` and
        ``probabilities`` of a DataFrame, columns or a file. Raises `RunFolderError` for a run that has not finished, or
        whose model is damaged.
        """
        from fedpriv.runs.trained_model import load_model

        return load_model(self.folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    def _repr_html_(self) -> str:
        from fedpriv.report.overview import head_of

        return head_of(self.folder, self.report.as_uri() if self.finished else "")


def folder_of(run: Run | str | Path) -> Path:
    if isinstance(run, Run):
        return run.folder
    if not str(run).strip():
        raise OptionError("folder", str(run), "is empty; it must be a folder's name")
    return Path(run).expanduser().absolute()


def _table(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)
