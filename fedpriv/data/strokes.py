"""Procedural glyphs: pictures of random pen strokes, drawn by formulas and by no data.

They know one thing of handwriting: that a character is a few smooth strokes of a pen, scaled to a box and centred, as
the digits of MNIST are. What a digit looks like they do not know. Every number comes from a public seed.

Shapes: s strokes of a glyph, p points of a stroke, n pictures.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedpriv.data.draws import generator

Floats = NDArray[np.float64]

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
SEED = 0


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


def random_strokes(random: np.random.Generator) -> Floats:
    """Control points [s, 4, 2] of one to three cubic Bezier curves; a stroke often begins where the last one ended."""
    strokes = int(random.integers(1, MOST_STROKES + 1))
    control = random.uniform(0, 1, (strokes, 4, 2))
    for stroke in range(1, strokes):
        if random.uniform() < 0.5:
            control[stroke, 0] = control[stroke - 1, 3]
    return control


def deform(control: Floats, random: np.random.Generator) -> Floats:
    """The same strokes, written once more."""
    turn, shear = random.normal(0, TURN), random.normal(0, SHEAR)
    stretch = np.exp(random.normal(0, STRETCH, 2))
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    matrix = matrix @ np.array([[1, shear], [0, 1]]) * stretch
    moved: Floats = (control + random.normal(0, MOVE, control.shape)) @ matrix.T
    return moved


def place(control: Floats) -> Floats:
    """Points (x, y) [s, p, 2] along the curves, in a box of `BOX` with their mean in the middle of the unit square."""
    t = np.linspace(0, 1, POINTS_A_STROKE)[:, None]
    bernstein = np.concatenate([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], axis=1)
    curves = bernstein @ control
    lengths = steps(curves)
    curves = curves * (0.9 * BOX / max(np.ptp(curves.reshape(-1, 2), axis=0).max(), 1e-9))  # the pen fills the rest
    middle = (curves * lengths[..., None]).sum((0, 1)) / max(lengths.sum(), 1e-9)
    centred: Floats = curves - middle + 0.5
    return centred


def steps(curves: Floats) -> Floats:
    """Length of the curve around each point [..., p]: half of the way to either neighbour."""
    way = np.linalg.norm(np.diff(curves, axis=-2), axis=-1) / 2
    nothing = np.zeros_like(way[..., :1])
    return np.concatenate([nothing, way], axis=-1) + np.concatenate([way, nothing], axis=-1)


def ink(curves: Floats, pens: Floats, height: int, width: int) -> NDArray[np.uint8]:
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
