"""`fedpriv.ask`: statistics of a table, with differential privacy, as objects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from fedpriv.api.arguments import checked
from fedpriv.api.calls import run
from fedpriv.api.run_object import Run
from fedpriv.common.run_files import bytes_in
from fedpriv.config.question_words import ask_options, quoted
from fedpriv.data.table_schema import TableSchema


@dataclass(frozen=True)
class Answer:
    """values, low, high: float64 [k]; ``of`` says what each is of. low and high: 95 % interval for the noise, of a
    quantile for its bin's edges too. remarks: of quantiles, how finely values are told apart.
    """

    question: str
    of: tuple[str, ...]
    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    remarks: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """Of an answer that is one number."""
        return float(self.values.item())


@dataclass(frozen=True)
class Answers(Mapping[str, Answer]):
    """Question -> answer, in the order that was asked. run: with ledger, epsilons and report."""

    run: Run
    answers: tuple[Answer, ...]

    def __getitem__(self, question: str) -> Answer:
        for one in self.answers:
            if one.question == question:
                return one
        raise KeyError(question)

    def __iter__(self) -> Iterator[str]:
        return iter([one.question for one in self.answers])

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def table(self) -> Any:
        """A pandas DataFrame with a row for each number: question, of, answer, low, high."""
        import pandas

        return pandas.read_csv(BytesIO(bytes_in(self.run.folder, "answers.csv")))


@checked
def ask(
    table: Any,
    questions: Sequence[str],
    schema: TableSchema | Mapping[str, Any] | str | Path,
    epsilon: float,
    *,
    delta: float = 1e-5,
    options: Sequence[str] = (),
    folder: str | Path | None = None,
    quiet: bool = True,
) -> Answers:
    """Asks a table that lies in one place; whoever gets the answers sees them alone. Costs epsilon at delta, once for
    the whole list, of a row or, where the schema names a unit, of a person.

    table: a pandas DataFrame, a mapping of columns, or the path of a CSV or Parquet file. questions: as docs/
    statistics.md has them, ``["count", "mean:age"]``. schema: its file, or the same as a mapping. options: of the run,
    as on the command line; ``num_clients=5`` and ``strategy.client.form=ddgauss`` make simulated sites of the rows.
    The noise comes from the operating system, unless they say ``privacy.rng=seeded``. folder: as in `run`.

    Raises `OptionError` for a wrong question, schema or option, `DataError` for a table that cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="fedpriv-") as place:
        own = [
            "dataset=table",
            f"dataset.root={quoted(str(_file_of(table, Path(place))))}",
            f"dataset.schema_file={quoted(str(_schema_file(schema, Path(place))))}",
            f"privacy.target_epsilon={epsilon}",
            f"privacy.delta={delta}",
        ]
        if not isinstance(table, str | Path):  # no copy of the rows stays
            own.append(f"dataset.cache={quoted(place)}")
        names = {option.partition("=")[0] for option in options}
        defaults = ("num_clients=1", "strategy.client.form=central", "engine=inprocess")
        own += [option for option in defaults if option.partition("=")[0] not in names]
        found = run(ask_options([*questions, *own, *options]), folder=folder, quiet=quiet)
    read = list[Answer]()
    for one in found.summary["answers"]:
        values, low, high = (np.array(one[name], np.float64) for name in ("values", "low", "high"))
        read.append(Answer(one["question"], tuple(one["of"]), values, low, high, tuple(one.get("remarks", ()))))
    return Answers(found, tuple(read))


def _file_of(table: Any, place: Path) -> Path:
    """The file that holds a table; of one in memory a file in ``place``."""
    if isinstance(table, str | Path):
        return Path(table).expanduser().absolute()
    from pyarrow import parquet

    from fedpriv.data.table_files import frame_columns

    parquet.write_table(frame_columns(table), place / "table.parquet")
    return place / "table.parquet"


def _schema_file(schema: Any, place: Path) -> Path:
    if isinstance(schema, str | Path):
        return Path(schema).expanduser().absolute()
    said = schema.model_dump(mode="json", exclude_none=True) if isinstance(schema, TableSchema) else dict(schema)
    (place / "schema.yaml").write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    return place / "schema.yaml"
