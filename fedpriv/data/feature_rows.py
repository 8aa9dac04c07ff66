"""Features of a whole data set: computed at the first use, once per machine, and found again in the cache.

    <cache>/features/<key>/    features.npy float32 [n, d], about.json with a checksum

They are as private as the pictures, and lie beside them.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.common.errors import DataError
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data.axes import Floats
from fedpriv.data.cache import entry
from fedpriv.data.features import Features

#: Examples that are computed before they are written.
CHUNK = 2048
FILE, ABOUT = "features.npy", "about.json"
#: Grows where the same options give other numbers: those of 1 could depend on a picture's place.
FORM = 2

log = logging.getLogger(__name__)


def feature_arrays(
    options: FeaturesConfig | None, images: NDArray[np.uint8], identity: dict[str, Any] | None, folder: Path
) -> FeatureArrays | None:
    """The features of pictures [n, c, h, w]; None without the option. Raises `OptionError` for pictures too small."""
    if options is None or options.name == "none":
        return None
    channels, height, width = images.shape[1:]
    return FeatureArrays(Features(options, (channels, height, width), folder), images, identity, folder)


class FeatureRows:
    """Features [n, d] of pictures [n, c, h, w], read by rows; a part of them shares its arrays with the whole."""

    def __init__(self, whole: FeatureArrays, start: int, stop: int) -> None:
        self._whole, self._start, self._stop = whole, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def nbytes(self) -> int:
        return 4 * len(self) * self._whole.features.dims

    def __getitem__(self, rows: NDArray[np.int64]) -> Floats:
        """float32 [b, d] of these rows (int64 [b])."""
        found: Floats = np.asarray(self._whole.array[self._start : self._stop][rows])
        return found


class FeatureArrays:
    """Made at the first use. identity: of the pictures, as a `Source` has it; None where nothing may be cached."""

    def __init__(
        self, features: Features, images: NDArray[np.uint8], identity: dict[str, Any] | None, folder: Path
    ) -> None:
        self.features, self._images, self._identity, self._folder = features, images, identity, folder / "features"
        self._lock = threading.Lock()  # clients that train side by side ask at the same time

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return self.features.dims, 1, 1

    def rows(self, start: int, stop: int) -> FeatureRows:
        return FeatureRows(self, start, stop)

    @property
    def array(self) -> Floats:
        with self._lock:
            return self._array

    @cached_property
    def _array(self) -> Floats:
        """float32 [n, d], read-only and memory-mapped where it may be cached."""
        if self._identity is None or not len(self._images):
            return self.features(self._images)
        if self.features.is_network:  # another map, or another number of dimensions, does not compute it again
            base = self._kept({"base": True, **self.features.base_identity}, self._images, self.features.base)
            return self._kept(self.features.identity, base, self.features.mapped)
        return self._kept(self.features.identity, self._images, self.features)

    def _kept(self, said: dict[str, Any], inputs: NDArray[Any], compute: Callable[[NDArray[Any]], Floats]) -> Floats:
        """What a function gives for these rows, from the cache. said: all that decides it beside the pictures."""
        identity = {"pictures": self._identity, "form": FORM, **said}
        for _ in range(2):
            found = entry(self._folder, identity, lambda folder: self._write(folder, inputs, compute))
            array = self._read(found)
            if array is not None:
                return array
            log.warning("%s is damaged and is made again", found)
            shutil.rmtree(found, ignore_errors=True)
        raise DataError(f"{self._folder}: features are damaged as soon as they are written")

    def _write(self, folder: Path, inputs: NDArray[Any], compute: Callable[[NDArray[Any]], Floats]) -> None:
        log.info("computing the features of %d pictures into %s", len(inputs), self._folder)
        dims = compute(inputs[:1]).shape[1]
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(inputs), dims)}
        checksum = 0
        # Written and not mapped: on a full disk a write raises an error, a store into a mapped file ends the process.
        with (folder / FILE).open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, len(inputs), CHUNK):
                block = compute(inputs[start : start + CHUNK]).tobytes()
                checksum = zlib.crc32(block, checksum)
                file.write(block)
        (folder / ABOUT).write_text(json.dumps({"crc32": checksum, "dims": dims}))

    def _read(self, folder: Path) -> Floats | None:
        """None where the file is not the one that was written."""
        try:
            about = json.loads((folder / ABOUT).read_text())
            array: Floats = np.load(folder / FILE, mmap_mode="r", allow_pickle=False)
            dims = about.get("dims", self.features.dims)
            whole = array.shape == (len(self._images), dims) and array.dtype == np.float32
            if not whole or zlib.crc32(array.data) != about["crc32"]:
                return None
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None
        return array
