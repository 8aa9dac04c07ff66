"""Pictures in files or in memory, in any format that Pillow reads (PNG, JPEG, WebP, TIFF, BMP, ...), to arrays."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.files import open_regular
from fedpriv.config.data_schema import DatasetConfig

BLOCK_BYTES = 64 * 2**20  # decoded at a time
PICTURES_PER_TASK = 32  # handing single small pictures to threads costs more than decoding them
MAX_THREADS = 4  # Pillow holds the GIL for much of the work: more threads only wait
SHOWN = 5  # broken pictures listed by name


class Encoded(NamedTuple):
    """A picture that is still a file: what to call it in an error, and its path or its bytes (None: it has none)."""

    name: str
    content: str | bytes | None


def shape_of(pictures: Iterable[Encoded], config: DatasetConfig, what: str) -> tuple[int, int, int]:
    """(c, h, w) of every picture: from dataset.size if set, otherwise from the first readable picture.

    what: description of the pictures, for `DataError`.
    """
    if config.size is not None:
        return config.channels, config.size, config.size
    broken = []
    for encoded in pictures:
        picture = _read(encoded, config)
        if not isinstance(picture, str):
            channels, height, width = picture.shape
            return channels, height, width
        broken.append((encoded.name, picture))
    raise _broken_pictures(broken, what)


def decode_pictures(
    pictures: Iterable[Encoded], shape: tuple[int, int, int], config: DatasetConfig, what: str
) -> Iterator[np.ndarray]:
    """uint8 [some, c, h, w], block by block. Goes through all pictures before it reports broken ones.

    Raises `DataError`, or `OptionError` for dataset.size where a picture has another shape.
    """
    broken: list[tuple[str, str]] = []
    block_length = max(1, BLOCK_BYTES // int(np.prod(shape)))
    remaining = iter(pictures)

    def read_task(task: list[Encoded]) -> list[np.ndarray | str]:
        return [_read(encoded, config) for encoded in task]

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        while block := list(itertools.islice(remaining, block_length)):
            results = itertools.chain.from_iterable(pool.map(read_task, _cut(block, PICTURES_PER_TASK)))
            decoded = []
            for encoded, result in zip(block, results, strict=True):
                if isinstance(result, str):
                    broken.append((encoded.name, result))
                elif result.shape != shape:
                    raise _sizes_differ(encoded.name, result.shape, shape)
                else:
                    decoded.append(result)
            if decoded:
                yield np.stack(decoded)
    if broken:
        raise _broken_pictures(broken, what)


def _cut(pictures: list[Encoded], length: int) -> Iterator[list[Encoded]]:
    return (pictures[start : start + length] for start in range(0, len(pictures), length))


def _read(encoded: Encoded, config: DatasetConfig) -> np.ndarray | str:
    side = config.size
    return read_picture(encoded, config.channels, None if side is None else (side, side))


def read_picture(encoded: Encoded, channels: int, size: tuple[int, int] | None) -> np.ndarray | str:
    """One picture, uint8 [c, h, w]; or the reason, in words, why it cannot be read. The only decoder: what a model is
    trained on, what a node reads, and what `predict` is given are equal bit for bit. Of an animation, the first frame.

    size: (height, width) that the picture is scaled to, and cropped to around its middle; None: it stays as it is.
    """
    if encoded.content is None:
        return "there is no picture"
    if channels not in (1, 3):
        return f"a file is read with 1 or 3 channels, not {channels}"
    try:
        content = encoded.content
        with (
            open_regular(content) if isinstance(content, str) else io.BytesIO(content) as file,
            Image.open(file) as opened,
        ):
            picture = _in_eight_bits(ImageOps.exif_transpose(opened), opened.format)
            picture = picture.convert("L" if channels == 1 else "RGB")
            if size is not None:
                # Cropped, so that nothing is stretched.
                picture = ImageOps.fit(picture, (size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture)
    except UnidentifiedImageError:
        return "not a picture"
    except Exception as error:  # decoders raise anything on a damaged file; the user is told which file it is
        return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)


def _in_eight_bits(picture: Image.Image, form: str | None) -> Image.Image:
    """Pillow's own conversion would turn everything above 255 of 65,535 into white. Raises `ValueError` for larger
    numbers of a kind that does not say what is white."""
    if picture.mode.startswith("I;16") or (picture.mode == "I" and form == "PPM"):  # Pillow scales PPM to 65,535
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        numbers = np.asarray(picture)
        least, most = float(numbers.min()), float(numbers.max())
        shares = picture.mode == "F" and 0 < most <= 1  # of white, or of 255: nobody says
        if not (least >= 0 and most <= 255) or shares:  # not a number: neither
            raise ValueError(f"its pixels go from {least:g} to {most:g}; what is white is known of 8 and 16 bits alone")
    return picture


def _broken_pictures(broken: list[tuple[str, str]], what: str) -> DataError:
    shown = "; ".join(f"{name} ({reason})" for name, reason in broken[:SHOWN])
    more = f"; and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
    return DataError(f"{len(broken)} of the {what} cannot be read as pictures: {shown}{more}")


def _sizes_differ(name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> OptionError:
    one, other = (f"{height} x {width}" for _, height, width in (found, shape))
    return OptionError(
        "dataset.size",
        "null",
        f"{name} has {one} pixels, others {other}; set the side that all get, as in dataset.size=32",
    )
