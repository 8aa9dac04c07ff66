"""Public features: fixed functions of one picture, between pictures and model.

They are built from formulas, public seeds and a few constants of a kind of picture (docs/features.md names them): a
picture's features depend on that picture and on nobody else's, so they cost no privacy and need no account. For the
same reason pixels are only divided by 255 here; not even the data set's public mean and deviation are used.

Shapes: n pictures, c channels, h x w pixels, d features.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedpriv.common.errors import OptionError
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.config.methods import AskOptions
from fedpriv.config.schema import Config
from fedpriv.data.cache import remade, write_rows
from fedpriv.data.gradients import Floats, normalised, oriented_gradients, unit
from fedpriv.data.gradients import dims_of as gradient_dims
from fedpriv.data.maps import MOST_DIRECTIONS, pink_directions, pink_map, stroke_directions, stroke_map
from fedpriv.data.types import generator

Shape = tuple[int, int, int]  # channels, height, width
Function = Callable[[Floats], Floats]

#: Sides of pictures that features are made for.
SMALLEST, LARGEST = 8, 64
#: Of `fedpriv.data.networks`, which needs torch: a node's own process does without. Features, and directions of
#: the map.
PROCESS_DIMS, MOST_DRAWN = 1536, 360
#: Examples that are computed together. The last block is filled up with black ones, so that every product has the same
#: size whoever asks; `row_products` adds a row's sum in one order. So a picture's features are the same bit for bit
#: whichever pictures are beside it.
BLOCK = 64
#: Examples that are computed before they are written.
CHUNK = 2048

log = logging.getLogger(__name__)

WORDS = {
    "gradients": "oriented gradients",
    "processes": "a network trained on pictures of random processes: knows shapes that hide each other, noise, shading",
}
MOMENTS = "pictures are deskewed and scaled by their own moments: knows upright ink, of the size of MNIST's digits"
MIRROR = "a picture and its mirror image count as one: knows that things look alike mirrored"
MAPS = {
    "strokes": "a stroke map: knows that digits are strokes",
    "pink": "a pink map: knows natural pictures' 1/f spectrum",
    "drawings": "a map of the same drawings",
}


def public_knowledge(options: FeaturesConfig) -> str:
    """Which public knowledge is in the features, for reports; "none" where the model reads pixels."""
    if options.name == "none":
        return "none"
    if options.name == "backbone":
        digest = str(options.weights_sha256)[:12]
        words = f"a network ({options.architecture}, weights with SHA-256 {digest}) trained on: {options.trained_on}"
        known = [words]
    else:
        known = [WORDS[options.name]]
    if options.normalise == "moments":
        known.append(MOMENTS)
    if options.mirror:
        known.append(MIRROR)
    if options.map != "none":
        known.append(MAPS[options.map])
    return "; ".join(known)


def known_beforehand(config: Config) -> str:
    """Which public knowledge a run begins with, for reports: of its features, and of the weights it starts from."""
    of_features, model = public_knowledge(config.features), config.model
    known = [] if of_features == "none" else [of_features]
    if model.weights is not None:
        digest = str(model.weights_sha256)[:12]
        does = "asks about" if isinstance(config.strategy.options, AskOptions) else "starts from"
        known.append(f"it {does} weights with SHA-256 {digest}, trained on: {model.trained_on}")
    if config.dataset.is_table:
        from fedpriv.data.table_rows import schema_of_dataset  # pyarrow's friends: not of a node's own process

        for name, column in schema_of_dataset(config.dataset).inputs:
            if column.text == "encoder":
                what = f"a text encoder (files with SHA-256 {str(column.sha256)[:12]})"
                known.append(f"column {name}: {what} trained on: {column.trained_on}")
    return "; ".join(known) or "none"


def base_dims(options: FeaturesConfig, shape: Shape) -> int:
    """Numbers of one picture before a map. Raises `OptionError` for pictures that are too small or too large."""
    channels, height, width = shape
    if options.name == "backbone":
        from fedpriv.data.networks import backbone_dims  # torch, as below

        return backbone_dims(options, shape)
    if min(height, width) < SMALLEST or max(height, width) > LARGEST:
        words = f"needs pictures of {SMALLEST}x{SMALLEST} to {LARGEST}x{LARGEST}, these are {height}x{width}"
        raise OptionError("features", options.name, f"{words}; allowed: none, or another dataset.size")
    if options.name == "processes":
        return PROCESS_DIMS
    return gradient_dims(channels, height, width)


def model_input(options: FeaturesConfig, shape: Shape) -> Shape:
    """What a model reads of pictures of this shape: [d, 1, 1], or the pictures themselves. Raises `OptionError`."""
    if options.name == "none":
        return shape
    dims = base_dims(options, shape)
    if options.map == "none":
        return dims, 1, 1
    most = min(dims, MOST_DRAWN if options.map == "drawings" else MOST_DIRECTIONS)
    if int(options.dims) > most:
        words = f"at most {most} of features={options.name} for pictures of {shape[1]}x{shape[2]}"
        raise OptionError("features.dims", options.dims, words)
    return int(options.dims), 1, 1


def centred(vectors: Floats) -> Floats:
    """Each row less its own mean, at unit length."""
    return unit(vectors - vectors.mean(1, keepdims=True))


@dataclass
class Features:
    """The features of an option group for pictures of one shape.

    cache: folder where a map is kept once it has been made.
    """

    options: FeaturesConfig
    shape: Shape
    cache: Path
    dims: int = field(init=False)

    def __post_init__(self) -> None:
        self.dims = model_input(self.options, self.shape)[0]
        self._map: Function | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers."""
        names = ("map",) if self.options.map == "none" else ("map", "dims", "exponent")
        return {name: getattr(self.options, name) for name in names} | self.base_identity

    @property
    def base_identity(self) -> dict[str, Any]:
        names, network = ["name", "normalise", "mirror"], {}
        if self.options.name == "backbone":
            names += ["architecture", "layer", "size", "mean", "std", "weights_sha256"]
            network = {"torch": version("torch")}
            if library := {"onnx": "onnxruntime", "huggingface": "transformers"}.get(self.options.architecture):
                network[library] = version(library)
            if self.options.architecture.startswith("timm/"):
                network["timm"] = version("timm")
        if self.options.name == "processes":
            from fedpriv.data.networks import weights_digest

            network = {"weights": weights_digest(), "torch": version("torch")}
        return {name: getattr(self.options, name) for name in names} | network | {"shape": list(self.shape)}

    def __call__(self, images: NDArray[np.uint8]) -> Floats:
        """float32 [n, d] at unit length (zeros for a picture without any contrast), of uint8 [n, c, h, w]."""
        if not len(images):
            return np.zeros((0, self.dims), np.float32)
        return self.mapped(self.base(images))

    @property
    def is_network(self) -> bool:
        """Whether what lies before the map takes so long that it is kept by itself."""
        return self.options.name in ("processes", "backbone") and self.options.map != "none"

    def base(self, images: NDArray[np.uint8]) -> Floats:
        """What the map is applied to, float32 [n, more], of uint8 [n, c, h, w] with n > 0."""
        with threadpool_limits(limits=1):  # more threads would add in another order
            return in_blocks(self._base, images)

    def mapped(self, values: Floats) -> Floats:
        """The features [n, d] of base values [n, more], n > 0."""
        with threadpool_limits(limits=1):
            if self._map is None:
                self._map = self._build_map()
            return in_blocks(self._map, values)

    @cached_property
    def _base(self) -> Function:
        return base_function(self.options, self.shape)

    def _build_map(self) -> Function:
        if self.options.map == "none":
            return centred
        if self.options.map == "drawings":
            from fedpriv.data.networks import drawings_map

            return drawings_map(self.dims, self.options.exponent)
        pink = self.options.map == "pink"
        load, weigh = (pink_directions, pink_map) if pink else (stroke_directions, stroke_map)
        directions = load(lambda images: in_blocks(self._base, images), self.shape, self.base_identity, self.cache)
        return weigh(directions, self.dims, self.options.exponent)


def in_blocks(function: Function, values: NDArray[Any]) -> Floats:
    """A function's values [n, d] of uint8 pictures [n, c, h, w], or of vectors [n, more], n > 0, `BLOCK` at a time."""
    starts = range(0, len(values), BLOCK)
    return np.concatenate([whole_block(function, values[start : start + BLOCK]) for start in starts])[: len(values)]


def whole_block(function: Function, values: NDArray[Any]) -> Floats:
    """A function's values [BLOCK, d] of at most `BLOCK` pictures and black ones, or vectors and zeros."""
    block = np.zeros((BLOCK, *values.shape[1:]), np.float32)
    np.divide(values, np.float32(255 if values.dtype == np.uint8 else 1), out=block[: len(values)])
    return function(block)


def apart(function: Function, shape: Shape) -> Function:
    """A network's function, of one picture at a time if equal pictures of a block do not have equal bits: another place
    has another kernel then, and a picture more would change the features of all behind it.
    """
    picture = generator(0, "places in a block").random((1, *shape), np.float32)
    values = function(picture.repeat(BLOCK, 0))
    if np.array_equal(values, values[:1].repeat(BLOCK, 0)):
        return function
    return lambda images: np.concatenate([function(image[None].copy()) for image in images])


def base_function(options: FeaturesConfig, shape: Shape) -> Function:
    """Pictures in 0..1 [n, c, h, w] -> [n, d] before any map."""
    function: Function = oriented_gradients
    if options.name in ("backbone", "processes"):
        from fedpriv.data.networks import backbone_features, process_features

        function = apart(backbone_features(options, shape) if options.name == "backbone" else process_features(), shape)
    whole = function if options.normalise == "none" else lambda images: function(normalised(images))
    return mirrored(whole) if options.mirror else whole


def mirrored(function: Function) -> Function:
    """The mean of a function's values of a picture and of its mirror image: the same for both, bit for bit."""
    return lambda images: (function(images) + function(np.ascontiguousarray(images[..., ::-1]))) / np.float32(2)


# --- of a whole data set ---------------------------------------------------------------------------------


def feature_rows(
    options: FeaturesConfig | None, images: NDArray[np.uint8], identity: dict[str, Any] | None, folder: Path
) -> FeatureRows | None:
    """The features of pictures [n, c, h, w]; None without the option. Raises `OptionError` for pictures too small."""
    if options is None or options.name == "none":
        return None
    channels, height, width = images.shape[1:]
    features = Features(options, (channels, height, width), folder)
    return FeatureRows(FeatureArrays(features, images, identity, folder), 0, len(images))


@dataclass(frozen=True)
class FeatureRows:
    """Features [n, d] of the pictures from ``start`` to ``stop``, read by rows; all parts share the arrays."""

    whole: FeatureArrays
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, rows: NDArray[np.int64]) -> Floats:
        """float32 [b, d] of these rows (int64 [b])."""
        values: Floats = np.asarray(self.whole.array[self.start : self.stop][rows])
        return values

    def between(self, start: int, stop: int) -> FeatureRows:
        return FeatureRows(self.whole, self.start + start, self.start + stop)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.whole.features.dims, 1, 1

    @property
    def nbytes(self) -> int:
        return 4 * len(self) * self.whole.features.dims


class FeatureArrays:
    """Made at the first use, once per machine, and found again in the cache: as private as the pictures beside them.

    identity: of the pictures, as a `Source` has it; None where nothing may be cached.
    """

    def __init__(
        self, features: Features, images: NDArray[np.uint8], identity: dict[str, Any] | None, folder: Path
    ) -> None:
        self.features, self._images, self._identity, self._folder = features, images, identity, folder / "features"
        self._lock = threading.Lock()  # clients that train side by side ask at the same time

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

    def _kept(self, rule: dict[str, Any], inputs: NDArray[Any], compute: Callable[[NDArray[Any]], Floats]) -> Floats:
        """What a function gives for these rows, from the cache. rule: all that decides it beside the pictures."""

        def write(fresh: Path) -> None:
            log.info("computing the features of %d pictures into %s", len(inputs), self._folder)
            blocks = (compute(inputs[start : start + CHUNK]) for start in range(0, len(inputs), CHUNK))
            write_rows(fresh / "features.npy", len(inputs), "<f4", blocks)

        def read(path: Path) -> Floats:
            array: Floats = np.load(path / "features.npy", mmap_mode="r", allow_pickle=False)
            return array

        return remade(self._folder, {"pictures": self._identity, **rule}, write, read)
