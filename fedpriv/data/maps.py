"""Maps of features onto directions that public knowledge names: made once per machine from pictures that formulas draw,
and kept with a checksum. With mu a mean and T a matrix, a picture with features x becomes z = unit(T'(x - mu)).

**The stroke map**: the directions in which random glyphs differ, and one glyph's writings do not. As in discriminant
analysis (Fisher 1936), with random glyphs for classes in place of anybody's data. With Cw and Cb the covariance of
features within and between glyphs, P = (Cw + 0.3 tr(Cw)/d I)^(-1/2), and U, b the k leading eigenvectors and
eigenvalues of P Cb P, T = P U diag(b / (1 + b))^h: b / (1 + b) is the share of a direction's variance that tells glyphs
apart. Glyphs are random pen strokes. They know one thing of handwriting: that a character is a few smooth strokes of a
pen, scaled to a box and centred, as the digits of MNIST are. What a digit looks like they do not know.

**The pink map**: features are whitened, in part, by what they are of coloured noise with a natural spectrum. Amplitudes
of natural pictures fall about as 1/frequency (Field 1987), and most of their variance is brightness, less of it
opponent colours (Ruderman, Cronin and Chiao 1998). Noise drawn by these two rules stands for pictures of the world.
With mu and C the mean and covariance of its features, v_i and w_i the eigenvectors and eigenvalues of C, the largest
first, r = 0.2 tr(C)/d and an exponent p, T = [v_1 (w_1 + r)^-p, ..., v_k (w_k + r)^-p]. p = 1/2 whitens entirely (up to
the ridge r), p = 1/4 half, p = 0 projects onto the leading directions alone.

Shapes: n pictures, c channels, h x w pixels, d features, k dimensions of the map, s strokes of a glyph, p points of a
stroke.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.cache import remade
from fedpriv.data.gradients import Floats, row_products, unit
from fedpriv.data.types import generator

#: Directions that are kept.
MOST_DIRECTIONS = 599
#: Of the generator of glyphs and of noise.
SEED = 0

log = logging.getLogger(__name__)

Doubles = NDArray[np.float64]
Compute = Callable[[NDArray[np.uint8]], Floats]  # of pictures [n, c, h, w], any n


@dataclass(frozen=True)
class Directions:
    """mean: mu, float64 [d]; vectors: float64 [d, up to 599]; values: one of each vector, the largest first."""

    mean: Doubles
    vectors: Doubles
    values: Doubles


@dataclass(frozen=True)
class FeatureMap:
    """mean: mu, float32 [d]; matrix: T, float32 [d, k]."""

    mean: Floats
    matrix: Floats

    def __call__(self, features: Floats) -> Floats:
        """z = unit(T'(x - mu)) [n, k] of features x [n, d]."""
        return unit(row_products(features - self.mean, self.matrix))


def weighted(directions: Directions, weights: Doubles) -> FeatureMap:
    """The map onto the leading directions, each times its weight [k]."""
    matrix = directions.vectors[:, : len(weights)] * weights
    return FeatureMap(directions.mean.astype(np.float32), matrix.astype(np.float32))


def with_signs(vectors: Doubles) -> Doubles:
    """Eigenvectors [d, k] whose sign is nobody's choice: the largest component of each is made positive."""
    largest = vectors[np.abs(vectors).argmax(0), np.arange(vectors.shape[1])]
    signed: Doubles = vectors * np.sign(largest)
    return signed


def _kept(folder: Path, identity: dict[str, Any], what: str, make: Callable[[], Directions]) -> Directions:
    """From ``folder``, where they are made at first. identity: everything that decides what ``make`` gives.

    Raises `DataError` where the folder cannot be written to.
    """

    def write(fresh: Path) -> None:
        log.info("making the %s, once per machine", what)
        np.savez(fresh / "directions.npz", **vars(make()))

    def read(path: Path) -> Directions:
        with np.load(path / "directions.npz", allow_pickle=False) as arrays:
            return Directions(**arrays)

    return remade(folder, identity, write, read)


# --- the stroke map --------------------------------------------------------------------------------------

STROKE_RIDGE = 0.3
#: Random characters, and how often each is written.
GLYPHS, DEFORMATIONS = 3000, 8
MOST_STROKES, POINTS_A_STROKE = 3, 32
#: Side of the box that a glyph is scaled to, as a share of the picture's: MNIST's 20 of 28 pixels.
BOX = 20 / 28
#: Half a pen's width (standard deviation of its ink) as shares of the picture's side, least and most.
PEN = (0.022, 0.045)
LEAST_RADIUS = 0.45  # pixels
DARKNESS = 1.6
#: How a glyph is written differently: turned (radians), sheared, stretched (logarithm), its control points moved.
TURN, SHEAR, STRETCH, MOVE = 0.2, 0.25, 0.12, 0.07


def stroke_map(directions: Directions, dims: int, exponent: float) -> FeatureMap:
    """The map onto the ``dims`` leading directions, at most as many as there are; exponent: h."""
    values = directions.values[:dims]
    return weighted(directions, (values / (1 + values)) ** exponent)


def stroke_directions(
    compute: Compute, shape: tuple[int, int, int], identity: dict[str, Any], cache: Path
) -> Directions:
    """From ``cache``, where they are made at first of glyphs, in grey in every channel. identity: everything that
    decides what ``compute`` gives. Raises `DataError` where the cache cannot be written to.
    """

    def make() -> Directions:
        pictures = np.repeat(draw_glyphs(*shape[1:]), shape[0], axis=1)
        return glyph_directions(compute(pictures).astype(np.float64), GLYPHS)

    identity = {"stroke map": [GLYPHS, DEFORMATIONS, STROKE_RIDGE], "shape": list(shape), **identity}
    return _kept(cache / "stroke_maps", identity, f"stroke map of {GLYPHS * DEFORMATIONS} pictures", make)


def glyph_directions(features: Doubles, glyphs: int) -> Directions:
    """Of the features [glyphs * writings, d], glyph after glyph."""
    mean = features.mean(0)
    centred = (features - mean).reshape(glyphs, -1, features.shape[1])
    means = centred.mean(1)
    within_glyphs = (centred - means[:, None]).reshape(-1, features.shape[1])
    within = within_glyphs.T @ within_glyphs / len(within_glyphs)
    between = means.T @ means / glyphs
    ridge = STROKE_RIDGE * np.trace(within) / len(within)
    variances, axes = np.linalg.eigh(within)
    whitening = (axes / np.sqrt(np.maximum(variances, 0) + ridge)) @ axes.T
    values, vectors = np.linalg.eigh(whitening @ between @ whitening)
    kept = min(len(values), glyphs - 1, MOST_DIRECTIONS)
    values, vectors = np.maximum(values[::-1][:kept], 0), vectors[:, ::-1][:, :kept]
    return Directions(mean, whitening @ with_signs(vectors), values)


def draw_glyphs(height: int, width: int, glyphs: int = GLYPHS, deformations: int = DEFORMATIONS) -> NDArray[np.uint8]:
    """Pictures [glyphs * deformations, 1, height, width], glyph after glyph."""
    random = generator(SEED, "stroke glyphs")
    pictures = np.empty((glyphs * deformations, 1, height, width), np.uint8)
    for glyph in range(glyphs):
        control = random_strokes(random)
        curves = np.stack([place(deform(control, random)) for _ in range(deformations)])
        pens = random.uniform(*PEN, deformations)
        pictures[glyph * deformations : (glyph + 1) * deformations, 0] = ink(curves, pens, height, width)
    return pictures


def random_strokes(random: np.random.Generator) -> Doubles:
    """Control points [s, 4, 2] of one to three cubic Bezier curves; a stroke often begins where the last one ended."""
    strokes = int(random.integers(1, MOST_STROKES + 1))
    control = random.uniform(0, 1, (strokes, 4, 2))
    for stroke in range(1, strokes):
        if random.uniform() < 0.5:
            control[stroke, 0] = control[stroke - 1, 3]
    return control


def deform(control: Doubles, random: np.random.Generator) -> Doubles:
    """The same strokes, written once more."""
    turn, shear = random.normal(0, TURN), random.normal(0, SHEAR)
    stretch = np.exp(random.normal(0, STRETCH, 2))
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    matrix = matrix @ np.array([[1, shear], [0, 1]]) * stretch
    moved: Doubles = (control + random.normal(0, MOVE, control.shape)) @ matrix.T
    return moved


def place(control: Doubles) -> Doubles:
    """Points (x, y) [s, p, 2] along the curves, in a box of `BOX` with their mean in the middle of the unit square."""
    t = np.linspace(0, 1, POINTS_A_STROKE)[:, None]
    bernstein = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    curves = bernstein @ control
    lengths = steps(curves)
    curves = curves * (0.9 * BOX / max(np.ptp(curves.reshape(-1, 2), axis=0).max(), 1e-9))  # the pen fills the rest
    middle = (curves * lengths[..., None]).sum((0, 1)) / max(lengths.sum(), 1e-9)
    centred: Doubles = curves - middle + 0.5
    return centred


def steps(curves: Doubles) -> Doubles:
    """Length of the curve around each point [..., p]: half of the way to either neighbour."""
    way = np.linalg.norm(np.diff(curves, axis=-2), axis=-1) / 2
    nothing = np.zeros_like(way[..., :1])
    return np.concatenate([nothing, way], axis=-1) + np.concatenate([way, nothing], axis=-1)


def ink(curves: Doubles, pens: Doubles, height: int, width: int) -> NDArray[np.uint8]:
    """Pictures [n, height, width] of curves [n, s, p, 2] drawn with round pens [n]: ink adds up and saturates."""
    side = max(height, width)
    radius = np.maximum(pens * side, LEAST_RADIUS)[:, None, None]
    amount = (steps(curves) * side).reshape(len(curves), -1, 1) / radius
    points = (curves * side + np.array([width - side, height - side]) / 2).reshape(len(curves), -1, 2)
    down, across = (
        np.exp(-0.5 * ((np.arange(length) + 0.5 - points[:, :, axis, None]) / radius) ** 2)
        for length, axis in ((height, 1), (width, 0))
    )
    darkness = 1 - np.exp(-DARKNESS * ((amount * down).transpose(0, 2, 1) @ across))
    return np.round(255 * darkness).astype(np.uint8)


# --- the pink map ----------------------------------------------------------------------------------------

PICTURES, PINK_RIDGE = 4000, 0.2
#: Amplitudes fall as frequency^-FALL.
FALL = 1.2
#: Brightness, red against blue, green against both: orthonormal columns; and their standard deviations.
COLOURS = np.array([[1, 1, 1], [1, 0, -2], [1, -1, 1]]) / np.sqrt([3, 2, 6])
STRENGTHS = (1.0, 0.3, 0.15)
#: A picture's standard deviation, least and most; mean and standard deviation of the light added. Pixels: 0..1.
CONTRAST, LIGHT = (0.12, 0.3), (0.47, 0.1)


def pink_map(directions: Directions, dims: int, exponent: float) -> FeatureMap:
    """The map onto the ``dims`` leading directions, at most as many as there are; exponent: p."""
    return weighted(directions, directions.values[:dims] ** -exponent)


def pink_directions(compute: Compute, shape: tuple[int, int, int], identity: dict[str, Any], cache: Path) -> Directions:
    """As `stroke_directions`, of noise."""
    numbers = [PICTURES, PINK_RIDGE, SEED, FALL, *STRENGTHS, *CONTRAST, *LIGHT]
    return _kept(
        cache / "pink_maps",
        {"pink map": numbers, "shape": list(shape), **identity},
        f"pink map of {PICTURES} pictures of noise",
        lambda: noise_directions(compute(draw_noise(shape)).astype(np.float64)),
    )


def draw_noise(shape: tuple[int, int, int], pictures: int = PICTURES) -> NDArray[np.uint8]:
    """Pictures [n, c, h, w] of coloured noise; with one channel, of its brightness."""
    channels, height, width = shape
    random = generator(SEED, "pink noise")
    down, across = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    frequency = np.maximum(np.hypot(down, across), 1 / max(height, width))
    drawn = np.empty((pictures, *shape), np.uint8)
    for number in range(pictures):
        white = random.standard_normal((channels, height, width))
        noise = np.fft.ifft2(np.fft.fft2(white) * frequency**-FALL).real
        if channels == 3:
            noise = np.tensordot(COLOURS * STRENGTHS, noise, axes=1)
        contrast, light = random.uniform(*CONTRAST), random.normal(*LIGHT)
        drawn[number] = np.rint(255 * np.clip(light + contrast * noise / noise.std(), 0, 1))
    return drawn


def noise_directions(features: Doubles) -> Directions:
    """Of the features [n, d] of noise; values: w + r."""
    mean = features.mean(0)
    centred = features - mean
    variances, vectors = np.linalg.eigh(centred.T @ centred / len(features))
    ridge = PINK_RIDGE * variances.mean()
    kept = min(len(variances), MOST_DIRECTIONS)
    values = np.maximum(variances[::-1][:kept], 0) + ridge
    return Directions(mean, with_signs(vectors[:, ::-1][:, :kept]), values)
