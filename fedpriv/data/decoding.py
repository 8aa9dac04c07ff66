"""Pictures in files or in memory, in any format that Pillow reads (PNG, JPEG, WebP, TIFF, BMP, ...), to arrays."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from fedpriv.common.errors import DataError, OptionError
from fedpriv.common.files import open_regular
from fedpriv.common.systems import cores
from fedpriv.config.data_schema import DatasetConfig

BLOCK_BYTES = 64 * 2**20  # decoded at a time
PICTURES_PER_TASK = 32  # handing single small pictures to threads costs more than decoding them
MAX_THREADS = 4  # Pillow holds the GIL for much of the work: more threads only wait
SHOWN = 5  # broken pictures listed by name


class Encoded(NamedTuple):
    """A picture that is still a file: what to call it in an error, and its path or its bytes (None: it has none)."""

    name: str
    content: str | bytes | None


def drawing(config: DatasetConfig) -> dict[str, Any]:
    """What the pixels of a picture follow from beside its file, for the cache."""
    drawn_on = (config.background, config.white_level)
    return {"size": config.size, "channels": config.channels, "drawn_on": drawn_on, "pillow": PIL.__version__}


def decoded(pictures: Callable[[], Iterable[Encoded]], config: DatasetConfig, what: str) -> Iterator[np.ndarray]:
    """uint8 [some, c, h, w], block by block, of one size: dataset.size if set, else that of the first readable picture.
    Goes through all ``pictures`` before it reports broken ones. what: description of the pictures, for `DataError`.

    Raises `DataError`, or `OptionError` for dataset.size where a picture has another shape.
    """
    size = None if config.size is None else (config.size, config.size)

    def read(encoded: Encoded) -> np.ndarray | str:
        return read_picture(encoded, config.channels, size, config.background, config.white_level)

    shape, broken = None if size is None else (config.channels, *size), list[str]()
    for encoded in () if shape is not None else pictures():
        picture = read(encoded)
        if not isinstance(picture, str):
            shape = picture.shape
            break
        broken.append(f"{encoded.name} ({picture})")
    if shape is None:
        raise _broken_pictures(broken, what)
    broken, remaining = [], iter(pictures())
    with ThreadPoolExecutor(min(MAX_THREADS, cores())) as pool:
        while block := list(itertools.islice(remaining, max(1, BLOCK_BYTES // int(np.prod(shape))))):
            tasks = (block[start : start + PICTURES_PER_TASK] for start in range(0, len(block), PICTURES_PER_TASK))
            results = itertools.chain.from_iterable(pool.map(lambda task: [*map(read, task)], tasks))
            arrays = []
            for encoded, result in zip(block, results, strict=True):
                if isinstance(result, str):
                    broken.append(f"{encoded.name} ({result})")
                elif result.shape != shape:
                    one, other = (f"{height} x {width}" for _, height, width in (result.shape, shape))
                    words = f"{encoded.name} has {one} pixels, others {other}; set the side that all get"
                    raise OptionError("dataset.size", "null", f"{words}, as in dataset.size=32")
                else:
                    arrays.append(result)
            if arrays:
                yield np.stack(arrays)
    if broken:
        raise _broken_pictures(broken, what)


def _broken_pictures(broken: list[str], what: str) -> DataError:
    more = f"; and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
    return DataError(f"{len(broken)} of the {what} cannot be read as pictures: {'; '.join(broken[:SHOWN])}{more}")


def read_picture(
    encoded: Encoded, channels: int, size: tuple[int, int] | None, background: str = "white", white: int | None = None
) -> np.ndarray | str:
    """One picture, uint8 [c, h, w]; or the reason, in words, why it cannot be read. The only decoder: what a model is
    trained on, what a node reads, and what `predict` is given are equal bit for bit. Of an animation, the first frame.

    Args:
        encoded: The picture's file.
        channels: 1 (grey) or 3 (red, green, blue).
        size: (height, width) that the picture is scaled to, and cropped to around its middle; None: it stays as it is.
        background: Name of the colour behind transparent pixels.
        white: Value of white in pictures of more than 8 bits that do not declare it; None: 65,535.
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
            picture = _in_eight_bits(opened, background, white).convert("L" if channels == 1 else "RGB")
            if size is not None:
                # Cropped, so that nothing is stretched.
                picture = ImageOps.fit(picture, (size[1], size[0]), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture)
    except UnidentifiedImageError:
        return "not a picture"
    except Exception as error:  # decoders raise anything on a damaged file; the user is told which file it is
        return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)


def _in_eight_bits(opened: ImageFile.ImageFile, background: str, white: int | None) -> Image.Image:
    """The picture upright, in 8 bits and without transparent pixels. Raises `ValueError` for numbers whose white
    nobody declares, or that exceed the declared one.

    Pillow's own conversions drop transparency, and turn everything above 255 of 65,535 into white.
    """
    tags = getattr(opened, "tag_v2", {})
    raw = "".join(str(tile.args) for tile in opened.tile)  # how the file's bytes are read: 'RGB;16B'
    depth = 16 if re.search(";16[BLN]", raw) else {"L;2": 2, "L;4": 4}.get(raw, 8)
    picture = ImageOps.exif_transpose(opened)
    key = picture.info.get("transparency")  # the colour that is transparent, in the file's own depth
    if picture.mode.startswith("I") or picture.mode == "F":
        numbers = np.asarray(picture)
        white = _white(opened.format, picture.mode, tags, white)
        grey = Image.fromarray(_scaled(numbers, picture.mode, white, tags.get(262) == 0))
        if key is None:
            return grey
        picture, key = grey, None
        picture.putalpha(Image.fromarray(numbers != opened.info["transparency"]))
    elif white is not None and depth == 16:
        raise ValueError(f"colours of 16 bits cannot be read with dataset.white_level={white}; save them in 8 bits")
    elif not picture.has_transparency_data:
        return picture
    if picture.mode in ("1", "L", "RGB"):
        scaled = tuple(value * 255 // (2**depth - 1) for value in (key if isinstance(key, tuple) else (key,)))
        picture.info["transparency"] = scaled if picture.mode == "RGB" else scaled[0]
    ground = Image.new("RGBA", picture.size, background)
    return Image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")


def _white(form: str | None, mode: str, tags: Mapping[int, Any], declared: int | None) -> int | None:
    """The value of white; None: 65,535 of 16 bits, unknown of others. Pillow scales PGM and JPEG 2000 to 65,535.

    TIFF's MaxSampleValue is not used: it is the largest value of the picture, and "not to be used to affect the visual
    appearance" (TIFF 6.0, page 30).
    """
    if form in ("PPM", "JPEG2000") and mode != "F":
        return 65535
    bits = tags.get(258, (16,))[0]
    return 2**bits - 1 if declared is None and 8 < bits < 16 else declared


def _scaled(numbers: np.ndarray, mode: str, white: int | None, inverted: bool) -> np.ndarray:
    """uint8 of the same shape. inverted: 0 is white. Raises `ValueError`."""
    least, most = float(numbers.min()), float(numbers.max())
    if white is None and not mode.startswith("I;16"):
        shares = mode == "F" and 0 < most <= 1  # of white, or of 255: nobody says
        if not (least >= 0 and most <= 255) or shares:  # not a number: neither
            words = "set dataset.white_level, or save them in 8 or 16 bits"
            raise ValueError(f"its pixels go from {least:g} to {most:g}, and nobody declares what is white; {words}")
        white = 255
    white = white or 65535
    if not (least >= 0 and most <= white):
        raise ValueError(f"its pixels go from {least:g} to {most:g}, beyond white, dataset.white_level={white}")
    eight = (numbers.astype(np.float64) * 256 // (white + 1)).astype(np.uint8)  # of 16 bits the 8 highest
    return 255 - eight if inverted else eight
