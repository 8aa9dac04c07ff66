"""`fedpriv leaf`: a data set of LEAF (S. Caldas et al. 2018) as a set of the hub's form, with its users.

    fedpriv leaf leaf/data/femnist/data out=femnist
    fedpriv leaf leaf/data/celeba/data out=celeba images=leaf/data/celeba/data/raw/img_align_celeba

FOLDER holds train/*.json and test/*.json, as LEAF's preprocess.sh makes them (or all_data/*.json: then a run divides
the rows by its seed). Read are FEMNIST (pictures), CelebA (names of pictures), Shakespeare (80 letters and the next)
and Sent140 (tweets); which of them it is, the rows say.

out=     folder of the set, which must not exist
images=  of CelebA: the folder with its pictures

The last line printed is a run in which every user is a client.
"""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedpriv.common.command_line import command
from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.printing import say
from fedpriv.config.own_options import CONF

if TYPE_CHECKING:
    import pyarrow as pa

SIDE = 28
#: FEMNIST's classes in LEAF's order.
CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SPLITS = ("train", "test")


class Kind(NamedTuple):
    """owner: column of the users. cells: of x and y of one row, columns and their values. classes: of a picture's
    label. options: of a run.
    """

    owner: str
    cells: Callable[[Any, Any], dict[str, Any]]
    options: str
    classes: tuple[str, ...] = ()


@command
def main(folder: Path, *, out: Path, images: Path | None = None) -> None:
    if out.exists():
        raise OptionError("out", out, "exists; allowed: a folder that does not")
    files = {split: sorted((folder / split).glob("*.json")) for split in SPLITS}
    if not files["train"]:
        files = {"train": sorted((folder / "all_data").glob("*.json")), "test": []}
    if not files["train"]:
        words = "there is no train/*.json and no all_data/*.json; allowed: a data folder of LEAF after preprocess.sh"
        raise OptionError("folder", folder, words)
    kind, users = kind_of(next(rows_of(files["train"][0])), images), set()
    try:
        for split in SPLITS:
            for number, file in enumerate(files[split]):
                users |= write(file, kind, out / f"data/{split}-{number:05d}-of-{len(files[split]):05d}.parquet", split)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    few = min(10, len(users))
    each = "each is a client" if files["test"] else "each that keeps training rows is a client (it says how many do)"
    say(f"{out}: {len(users)} users with training rows. A run in which {each}:")
    say(
        f"python -m fedpriv dataset=huggingface dataset.root={shlex.quote(str(out))} {kind.options} partition=column "
        f"partition.column={kind.owner} num_clients={len(users)} clients_per_round={few} local.sampler=shuffle"
    )


def write(file: Path, kind: Kind, target: Path, split: str) -> set[str]:
    """One file of LEAF as a parquet file. Returns the users of training rows. Raises `DataError`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {}
    for user, number, x, y in rows_of(file):
        try:
            cells = kind.cells(x, y) | {kind.owner: user}
        except (ValueError, TypeError, IndexError, KeyError, OverflowError, OSError) as error:
            raise DataError(f"{file}: {user}, row {number}: {error}") from None
        for name, cell in cells.items():
            columns.setdefault(name, []).append(cell)
    target.parent.mkdir(parents=True, exist_ok=True)
    images = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    known = {"image": images} if kind.classes else {}
    table = pa.table({name: pa.array(cells, known.get(name)) for name, cells in columns.items()})
    pq.write_table(table.replace_schema_metadata(_declared(table, kind)), target)
    return set(columns[kind.owner]) if split == "train" else set()


def _declared(table: pa.Table, kind: Kind) -> dict[str, str] | None:
    """The hub's description of the columns of pictures and labels."""
    if not kind.classes:
        return None
    features = {name: {"dtype": "string", "_type": "Value"} for name in table.column_names}
    features |= {"image": {"_type": "Image"}, "label": {"names": kind.classes, "_type": "ClassLabel"}}  # type: ignore[dict-item]
    return {"huggingface": json.dumps({"info": {"features": features}})}


def rows_of(file: Path) -> Iterator[tuple[str, int, Any, Any]]:
    """(user, number of the row, x, y). Raises `DataError` for what LEAF does not write."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        data = {str(user): (part["x"], part["y"]) for user, part in content["user_data"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: is no file of LEAF ({type(error).__name__}: {error})") from None
    if missing := set(map(str, content.get("users", data))) - set(data):
        raise DataError(f"{file}: truncated or changed, there are no rows of user {min(missing)}")
    for user, (xs, ys) in data.items():
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys):
            raise DataError(f"{file}: {user}: x and y are not lists of one length")
        for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
            yield user, number, x, y
    if not any(xs for xs, _ in data.values()):
        raise DataError(f"{file}: no user has a row")


def kind_of(row: tuple[str, int, Any, Any], images: Path | None) -> Kind:
    """Which set of LEAF a row is of. Raises `OptionError`."""
    _, _, x, y = row
    pictures = "dataset.channels=1" if isinstance(x, list) else "dataset.size=84"
    if isinstance(x, str) and x.lower().endswith((".jpg", ".png")):
        if images is None or not images.is_dir():
            words = "the rows name pictures; allowed: the folder that holds them, as data/raw/img_align_celeba"
            raise OptionError("images", images or "null", words)
        smiles = ("no smile", "smile")
        return Kind("user", lambda x, y: _picture(_file(images, x), y, smiles), f"{pictures} model=cnn", smiles)
    if isinstance(x, str) and isinstance(y, str):
        return Kind("character_id", lambda x, y: {"x": _text(x), "y": _text(y)}, f"{_schema('shakespeare')} model=gru")
    if isinstance(x, list) and len(x) == SIDE * SIDE:
        return Kind("user", lambda x, y: _picture(_drawn(x), y, CHARACTERS), f"{pictures} model=cnn", CHARACTERS)
    if isinstance(x, list) and len(x) > 4 and isinstance(x[4], str):  # id, date, query, user, text
        moods = ("negative", "positive")
        cells = lambda x, y: {"text": _text(x[4]), "label": moods[_class(y, moods)]}  # noqa: E731
        return Kind("user", cells, f"{_schema('sent140')} model=linear")
    words = "the rows are of none of FEMNIST, CelebA, Shakespeare and Sent140, which are allowed"
    raise OptionError("folder", f"x={str(x)[:40]}", words)


def _schema(name: str) -> str:
    """An option that holds in every folder."""
    return f"dataset.schema_file={shlex.quote(str(CONF / 'schema' / f'{name}.yaml'))}"


def _picture(content: bytes, y: Any, classes: tuple[str, ...]) -> dict[str, Any]:
    return {"image": {"bytes": content, "path": None}, "label": _class(y, classes)}


def _class(y: Any, classes: tuple[str, ...]) -> int:
    if int(y) != float(y) or not 0 <= int(y) < len(classes):
        raise ValueError(f"y={y} is no class; allowed: 0 to {len(classes) - 1}")
    return int(y)


def _text(cell: Any) -> str:
    if not isinstance(cell, str):
        raise ValueError(f"{str(cell)[:40]} is no text")
    return cell


def _file(images: Path, name: Any) -> bytes:
    """A picture of the folder, and of no other place."""
    path = images / Path(_text(name)).name
    if path.name != name or path.is_symlink() or not path.is_file():
        raise ValueError(f"there is no picture {name} in {images}")
    return path.read_bytes()


def _drawn(pixels: Any) -> bytes:
    """A PNG of 28 x 28 numbers, 0 black and 1 white."""
    from PIL import Image

    values = np.asarray(pixels, np.float64)
    if values.shape != (SIDE * SIDE,) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"a picture must be {SIDE * SIDE} numbers from 0 to 1")
    file = io.BytesIO()
    Image.fromarray(np.rint(255 * values.reshape(SIDE, SIDE)).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
