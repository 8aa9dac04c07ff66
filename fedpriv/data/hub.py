"""huggingface: a set of the Hugging Face hub, by name, or from a folder in its format: pictures with classes, or a
table or texts, of which a schema says which columns are read.

    <folder>/README.md                              names the columns, the classes, the splits (optional)
    <folder>/data/train-00000-of-00001.parquet      pictures as bytes, labels beside them
    <folder>/data/train-00000-of-00001.parquet      of a table also .arrow, .csv, .json, .jsonl

Parquet, Arrow, and pictures in folders are read; a data set's code is neither fetched nor run. The hub is not contacted
unless dataset.download=true: a set is fetched once, completely, into its own folder, and read from there afterwards.

The files are read by `datasets`, as flwr-datasets does; its `FederatedDataset` would only add a report of the set's
name to Flower's telemetry. Clients' shares come from its partitioners, as for every source.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.errors import DataError, FedprivError, OptionError
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.cache import UNFINISHED, cache_folder, stored
from fedpriv.data.decoding import Encoded, decoded, drawing
from fedpriv.data.partition import divide_by_class
from fedpriv.data.table_files import check_names
from fedpriv.data.types import PictureStream, Source

if TYPE_CHECKING:
    import pyarrow as pa

_PICTURES = [f"*.{suffix}" for suffix in ("png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "gif")]
#: Files that are fetched, of a table and of pictures: never code, never pickles.
FETCHED = {
    True: ["README.md", "*.parquet", "*.arrow", "*.csv", "*.json", "*.jsonl"],
    False: ["README.md", "*.parquet", "*.arrow", "*.zip", "metadata.csv", "metadata.jsonl", *_PICTURES],
}
#: Names that splits may have; the first one present is used.
TRAIN, TEST = ("train", "training"), ("test", "validation", "valid", "val")
#: Types of a column that says whose a picture is.
OWNERS = ("string", "large_string", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
ROWS = 256  # rows read from the table at a time


@dataclass(frozen=True)
class _Layout:
    """Where the pictures are: columns and splits. test: None where the training split is to be divided; owner: a column
    that divides them among clients.
    """

    image: str
    label: str
    owner: str | None
    train: str
    test: str | None


def huggingface(config: DatasetConfig, seed: int, owner: str | None = None) -> Source:
    """Finds the set, after fetching it if requested. Raises `DataError`, `OptionError`."""
    root = _set_folder(config)
    files = _found_files(config, root)
    identity: dict[str, Any] = {
        "name": "huggingface",
        "files": files,
        "wanted": [
            config.subset,
            config.image_column,
            config.label_column,
            owner,
            config.train_split,
            config.test_split,
        ],
        "datasets": version("datasets"),
    }

    def write(folder: Path) -> None:
        (folder / "layout.json").write_text(json.dumps(asdict(_look_up(config, root, owner))))

    def read(folder: Path) -> _Layout:
        return _Layout(**json.loads((folder / "layout.json").read_text()))

    layout = stored(cache_folder(config) / "layouts", identity, write, read)
    identity |= drawing(config) | {"split": (seed, config.test_fraction) if layout.test is None else None}
    return Source(identity, lambda: _read(config, root, layout, seed))


def _found_files(config: DatasetConfig, root: Path) -> list[tuple[str, int, int]]:
    """The set's files (`hub_files`), after fetching it if requested. Raises `DataError`, `OptionError`."""
    if config.download and not _hub_files(config, root):
        _fetch_set(config, root)
    if files := _hub_files(config, root):
        return files
    if config.root is not None:
        kinds = "parquet, csv nor json files" if config.is_table else "parquet files nor pictures"
        words = f"dataset.root={config.root}: there are no {kinds} in this folder"
    else:
        words = f"dataset.hub_name={config.hub_name}: this set has not been fetched (it would be in {root})"
    fetch = "fetch it with dataset.download=true"
    raise DataError(f"{words}; {fetch if config.hub_name else f'name it by dataset.hub_name and {fetch}'}")


def _set_folder(config: DatasetConfig) -> Path:
    """dataset.root, otherwise a folder for this set and revision beside the other downloads."""
    if config.root is not None:
        return Path(config.root).expanduser().resolve()
    name = f"{config.hub_name}@{config.revision}" if config.revision else str(config.hub_name)
    return (cache_folder(config) / "downloads" / "hub" / name.replace("/", "--")).resolve()


def _hub_files(config: DatasetConfig, root: Path) -> list[tuple[str, int, int]]:
    """(path, size, time of change) of every file that may belong to a set; empty if there is no data."""
    found = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    data = tuple(pattern.lstrip("*") for pattern in FETCHED[config.is_table] if pattern.startswith("*"))
    if not any(path.name.lower().endswith(data) for path in found):
        return []
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in found]


# --- the hub ---------------------------------------------------------------------------------------------


def _fetch_set(config: DatasetConfig, root: Path) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    if config.hub_name is None:
        raise OptionError("dataset.hub_name", "null", "dataset.download=true needs the name of a set of the hub")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when complete, so that an interrupted download is never taken for a set.
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root.parent) as folder:
            fresh = Path(folder) / "set"
            huggingface_hub.snapshot_download(
                config.hub_name,
                repo_type="dataset",
                revision=config.revision,
                local_dir=fresh,
                allow_patterns=FETCHED[config.is_table],
            )
            if not _hub_files(config, fresh):
                words = "the hub has no parquet files nor pictures of this set; sets that are made by code have them in"
                raise OptionError("dataset.hub_name", config.hub_name, f"{words} dataset.revision=refs/convert/parquet")
            os.rename(fresh, root)  # target is missing or an empty folder
    except RevisionNotFoundError:
        words = f"{config.hub_name} has no such revision"
        raise OptionError("dataset.revision", config.revision or "null", words) from None
    except (RepositoryNotFoundError, HFValidationError):
        words = "the hub has no such set, or it is not public (then log in with `hf auth login`)"
        raise OptionError("dataset.hub_name", config.hub_name, words) from None
    except FedprivError:
        raise
    except Exception as error:  # the network libraries raise many types of their own
        if _hub_files(config, root):
            return  # another process was first
        raise DataError(
            f"dataset.download=true: {config.hub_name} could not be fetched into {root}: {_in_short(error)}"
        ) from error


# --- what the set holds ----------------------------------------------------------------------------------


def _look_up(config: DatasetConfig, root: Path, owner: str | None) -> _Layout:
    """Reads the set's metadata, no picture."""
    (train, test), features = _splits(config, root)
    if owner is not None and getattr(features.get(owner), "dtype", "") not in OWNERS:
        columns = ", ".join(
            f"{name} ({getattr(kind, 'dtype', type(kind).__name__)})" for name, kind in features.items()
        )
        raise OptionError(
            "partition.column", owner, f"must be a column of whole numbers or strings; there are {columns}"
        )
    return _Layout(_column(config, features, "pictures"), _column(config, features, "labels"), owner, train, test)


def _splits(config: DatasetConfig, root: Path) -> tuple[tuple[str, str | None], dict[str, Any]]:
    """((train, test), columns): test is None where the training split is to be divided."""
    with tempfile.TemporaryDirectory() as scratch, _reading(config, root):
        builder = _set_builder(config, root, scratch)
        splits = [str(name) for name in builder.as_streaming_dataset()]
        return _chosen_splits(config, splits), builder.info.features


def _set_builder(config: DatasetConfig, root: Path, scratch: str) -> Any:
    """The reader that `datasets` chooses, provided that it runs no code and reads nothing outside the folder."""
    import datasets
    from datasets.packaged_modules.arrow.arrow import Arrow
    from datasets.packaged_modules.csv.csv import Csv
    from datasets.packaged_modules.imagefolder.imagefolder import ImageFolder
    from datasets.packaged_modules.json.json import Json
    from datasets.packaged_modules.parquet.parquet import Parquet

    try:
        builder = datasets.load_dataset_builder(str(root), name=config.subset, cache_dir=scratch)
    except ValueError as error:
        if "onfig" in str(error) and "vailable" in str(error):  # "Config name is missing", "BuilderConfig x not found"
            raise OptionError("dataset.subset", config.subset or "null", _in_short(error)) from None
        raise
    allowed = (Parquet, Arrow, Csv, Json) if config.is_table else (Parquet, Arrow, ImageFolder)
    if not isinstance(builder, allowed):
        form = type(builder).__module__.rpartition(".")[2]
        known = "parquet, arrow, csv or json" if config.is_table else "parquet, arrow or pictures"
        raise DataError(f"{root}: sets are read from {known}, this one is {form}")
    for path in (path for paths in (builder.config.data_files or {}).values() for path in paths):
        if not Path(os.path.normpath(path)).is_relative_to(root):
            raise DataError(f"{root / 'README.md'}: points at data outside of the folder, {path}")
    return builder


def _chosen_splits(config: DatasetConfig, splits: list[str]) -> tuple[str, str | None]:
    """(train, test): as named or found; test is None where the training split is to be divided."""
    for option, name in (("train_split", config.train_split), ("test_split", config.test_split)):
        if name is not None and name not in splits:
            raise OptionError(f"dataset.{option}", name, f"the splits of this set are {', '.join(splits)}")
    train = config.train_split or next((name for name in TRAIN if name in splits), None)
    if train is None:
        if len(splits) > 1:
            raise OptionError("dataset.train_split", "null", f"choose one of the splits {', '.join(splits)}")
        train = splits[0]
    test = config.test_split or next((name for name in TEST if name in splits and name != train), None)
    return train, None if test == train else test


def _column(config: DatasetConfig, features: dict[str, Any], kind: str) -> str:
    """The named column of pictures or labels, or the only one that the set declares as such. A named one may also hold
    encoded pictures (bytes or paths), or whole numbers or strings for labels.
    """
    import datasets

    pictures = kind == "pictures"
    option, named = ("image_column", config.image_column) if pictures else ("label_column", config.label_column)

    def is_plain(feature: Any) -> bool:
        if pictures:
            return isinstance(feature, dict) and "bytes" in feature
        kinds = ("int", "uint", "string", "large_string")
        return isinstance(feature, datasets.Value) and feature.dtype.startswith(kinds)

    def words(feature: Any) -> str:
        if isinstance(feature, dict):
            return "/".join(feature)
        return str(feature.dtype) if isinstance(feature, datasets.Value) else type(feature).__name__

    declared = datasets.Image if pictures else datasets.ClassLabel
    own = [name for name, feature in features.items() if isinstance(feature, declared)]
    allowed = [*own, *(name for name, feature in features.items() if is_plain(feature))]
    columns = ", ".join(f"{name} ({words(feature)})" for name, feature in features.items())
    if named is not None:
        if named not in allowed:
            raise OptionError(f"dataset.{option}", named, f"is no column of {kind}; the columns are {columns}")
        return named
    if len(own) > 1:
        raise OptionError(f"dataset.{option}", "null", f"{' and '.join(own)} are {kind}: choose one")
    if not own:
        other = "; choose the one that holds them" if allowed else ", so this is no set for image classification"
        raise OptionError(f"dataset.{option}", "null", f"no column of {kind} among {columns}{other}")
    return own[0]


# --- pictures and labels ---------------------------------------------------------------------------------


def _read(config: DatasetConfig, root: Path, layout: _Layout, seed: int) -> PictureStream:
    with ExitStack() as stack:
        builder, scratch = stack.enter_context(_prepared(config, root, "pictures"))
        names = [layout.train] if layout.test is None else [layout.train, layout.test]
        with _reading(config, root):
            tables = {split: builder.as_dataset(split=split) for split in names}
        train = tables[layout.train]
        classes, place = _classes(layout, train.data.column(layout.label), train.features[layout.label])
        parts = [_labels(split, tables[split].data.column(layout.label), place) for split in names]
        rows = [np.arange(len(labels)) for labels in parts]
        whose = [_owners(split, tables[split], layout.owner) for split in names] if layout.owner else []
        if layout.test is None:
            names, rows = names * 2, [*divide_by_class(parts[0], config.test_fraction, seed)]
            parts, whose = ([some[0][chosen] for chosen in rows] if some else [] for some in (parts, whose))
        kept = stack.pop_all()

    def pictures() -> Iterator[Encoded]:
        for split, chosen in zip(names, rows, strict=True):
            yield from _encoded(tables[split], split, layout.image, chosen, (str(root), scratch))

    def blocks() -> Iterator[np.ndarray]:
        with kept:
            yield from decoded(pictures, config, f"pictures of {config.hub_name or root}")

    owners = np.concatenate(whose) if whose else None
    return PictureStream(classes, np.concatenate(parts), len(rows[0]), blocks(), owners)


def _owners(split: str, table: Any, column: str) -> np.ndarray:
    """str [n]: whose each picture is. Raises `DataError` where one is missing."""
    values, names = table.data.column(column).to_pylist(), getattr(table.features[column], "names", None)
    if missing := sum(value is None for value in values):
        raise DataError(f"split {split}: {missing} of {len(values)} pictures have no {column}, which divides them")
    return np.array([names[value] if names else str(value) for value in values])


def _classes(layout: _Layout, column: Any, feature: Any) -> tuple[tuple[str, ...], dict[Any, int]]:
    """(names of the classes, value in the table -> label): the set's own, or the training split's values in order."""
    values = _values(layout.train, column)
    own = getattr(feature, "names", None)
    found = list(range(len(own))) if own else sorted(set(values))
    if len(found) < 2:
        raise OptionError("dataset.label_column", layout.label, "holds a single class: at least 2 are needed")
    return tuple(own or map(str, found)), {value: label for label, value in enumerate(found)}


def _labels(split: str, column: Any, place: dict[Any, int]) -> np.ndarray:
    """int64 [n]. Raises `DataError` for labels that are missing or not among the classes."""
    values = _values(split, column)
    unknown = next((value for value in values if value not in place), None)
    if unknown is not None:
        raise DataError(f"split {split}: the label {unknown} is none of the {len(place)} classes of the training split")
    return np.array([place[value] for value in values], dtype=np.int64)


def _values(split: str, column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if not values:
        raise DataError(f"split {split}: is empty")
    missing = sum(value is None or (isinstance(value, int) and value < 0) for value in values)
    if missing:
        raise DataError(
            f"split {split}: {missing} of {len(values)} labels are missing (-1 or null); choose a split that has them "
            "by dataset.train_split and dataset.test_split (both the same: it is divided by seed)"
        )
    return values


def _encoded(table: Any, split: str, column: str, rows: np.ndarray, places: Iterable[str]) -> Iterator[Encoded]:
    """The pictures of these rows, named ``split[row]`` in errors."""
    chosen = table.select_columns([column]).with_format("arrow").select(rows, keep_in_memory=True)
    names = iter(rows)
    for part in chosen.iter(batch_size=ROWS):
        for picture in part.column(column).to_pylist():
            yield Encoded(f"{split}[{next(names)}]", _content(picture, places))


def _content(picture: dict[str, Any] | None, places: Iterable[str]) -> str | bytes | None:
    """A picture's bytes, or its path: one inside the set's own folder, as in sets of plain pictures."""
    content, path = (picture or {}).get("bytes"), (picture or {}).get("path")
    if content is not None or path is None:
        return content
    return path if any(Path(os.path.normpath(path)).is_relative_to(place) for place in places) else None


# --- tables ----------------------------------------------------------------------------------------------


def hub_identity(config: DatasetConfig) -> dict[str, Any]:
    """What the rows of a set follow from, for the cache. Fetches the set if that is asked for. Raises `DataError`."""
    files = _found_files(config, _set_folder(config))
    return {"files": files, "subset": config.subset, "datasets": version("datasets")}


def table_splits(config: DatasetConfig) -> tuple[str, str | None]:
    """(train, test): names of the splits; test is None where the training split is to be divided."""
    root = _set_folder(config)
    _found_files(config, root)
    return _splits(config, root)[0]


def read_split(config: DatasetConfig, names: Sequence[str], split: str) -> pa.Table:
    """These columns of a split. Raises `DataError` for a column that is not there."""
    root = _set_folder(config)
    with _prepared(config, root, "tables", texts=names) as (builder, _), _reading(config, root):
        rows = builder.as_dataset(split=split)
        check_names(f"{config.hub_name or root}, split {split}", rows.column_names, names)
        return _with_names(rows.select_columns(list(names)))


def _with_names(rows: Any) -> pa.Table:
    """A set as a table in memory, apart from the file it was mapped from; with the names of classes for their numbers
    (-1: missing).
    """
    import datasets
    import pyarrow as pa

    columns = {}
    for name, feature in rows.features.items():
        column = rows.data.column(name)
        if isinstance(feature, datasets.ClassLabel):
            texts = [feature.names[label] if label is not None and label >= 0 else None for label in column.to_pylist()]
            columns[name] = pa.array(texts, pa.string())
        else:
            copies = [chunk.take(pa.array(range(len(chunk)), pa.int64())) for chunk in column.chunks]
            columns[name] = pa.concat_arrays(copies)
    return pa.table(columns)


# --- the library -----------------------------------------------------------------------------------------


@contextmanager
def _prepared(config: DatasetConfig, root: Path, kind: str, texts: Sequence[str] = ()) -> Iterator[tuple[Any, str]]:
    """(the set's reader, folder of a copy of its tables, which `datasets` maps into memory). texts: columns that are
    read as they are written.
    """
    folder = cache_folder(config) / kind
    folder.mkdir(parents=True, exist_ok=True)
    # With this name the cache removes the copy, too, where a process died.
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=folder) as scratch:
        with _reading(config, root):
            builder = _set_builder(config, root, scratch)
            if texts and hasattr(builder.config, "converters"):  # of a CSV file: no guess of pandas
                builder.config.converters = dict.fromkeys(texts, str)
            builder.download_and_prepare()
        yield builder, scratch


@contextmanager
def _reading(config: DatasetConfig, root: Path) -> Iterator[None]:
    """Keeps `datasets` quiet, and turns its errors into a `DataError` that names the set."""
    from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars, logging

    level, hidden = logging.get_verbosity(), are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    disable_progress_bars()
    try:
        yield
    except FedprivError:
        raise
    except Exception as error:
        reason = error.__cause__ or error  # "An error occurred while generating the dataset" says nothing
        name = f"{config.hub_name} in {root}" if config.hub_name else str(root)
        raise DataError(f"{name}: cannot be read as a set of the hub: {_in_short(reason)}") from error
    finally:
        logging.set_verbosity(level)
        if not hidden:
            enable_progress_bars()


def _in_short(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
