"""Moment normalisation: against moments written out, on pictures that were sheared and scaled on purpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data.features import MOMENTS, Features, public_knowledge
from fedpriv.data.moments import LEAST, TALL, WIDE, moments, normalised, read_at, sheared


def blob(slope: float = 0.0, tall: float = 5.0, wide: float = 2.0, at: tuple[float, float] = (14, 13)) -> np.ndarray:
    """A smooth spot [1, 1, 28, 28], its columns moved by ``slope`` for each row."""
    y, x = np.mgrid[:28, :28].astype(float)
    y, x = y - at[0], x - at[1]
    picture = np.exp(-0.5 * ((y / tall) ** 2 + ((x - slope * y) / wide) ** 2))
    return picture.astype(np.float32)[None, None]


def by_hand(picture: np.ndarray) -> tuple[float, float, float, float, float]:
    """(row, column, deviations, covariance) of one picture [h, w], pixel by pixel."""
    total = row = column = 0.0
    for y in range(picture.shape[0]):
        for x in range(picture.shape[1]):
            total, row, column = total + picture[y, x], row + y * picture[y, x], column + x * picture[y, x]
    row, column = row / total, column / total
    yy = xx = xy = 0.0
    for y in range(picture.shape[0]):
        for x in range(picture.shape[1]):
            share = picture[y, x] / total
            yy, xx, xy = (
                yy + share * (y - row) ** 2,
                xx + share * (x - column) ** 2,
                xy + share * (y - row) * (x - column),
            )
    return row, column, yy**0.5, xx**0.5, xy


def test_moments_are_the_definition() -> None:
    pictures = np.random.default_rng(1).random((3, 1, 7, 5)).astype(np.float32)
    (down, across), (tall, wide), covariance = moments(pictures)
    for number in range(3):
        found = [float(part[number]) for part in (down, across, tall, wide, covariance)]
        assert found == pytest.approx(by_hand(pictures[number, 0].astype(float)), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("slope", [-0.6, -0.2, 0.3, 0.7])
def test_a_sheared_picture_is_set_upright(slope: float) -> None:
    before, after = by_hand(blob(slope)[0, 0]), by_hand(sheared(blob(slope))[0, 0])
    assert abs(before[4]) > 4 and abs(after[4]) < 0.05 * abs(before[4])
    np.testing.assert_allclose(sheared(blob(slope)), blob(), atol=0.12)


@pytest.mark.parametrize(("tall", "wide"), [(2.5, 2.0), (4.0, 5.0), (5.0, 1.5)])
def test_it_is_moved_to_the_middle_and_half_of_the_way_to_the_size(tall: float, wide: float) -> None:
    picture = blob(0.3, tall, wide, at=(12.0, 15.0))
    before = by_hand(sheared(picture)[0, 0])
    row, column, down, across, _ = by_hand(normalised(picture)[0, 0])
    assert (row, column) == pytest.approx((13.5, 13.5), abs=0.15)
    for was, now, share in ((before[2], down, TALL), (before[3], across, WIDE)):
        factor = ((was + 28 * LEAST) / (28 * share)) ** 0.5
        assert now == pytest.approx(was / factor, rel=0.05)


def test_reading_between_pixels() -> None:
    picture = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    places = np.array([[-0.5, 0.0, 1.25, 3.0, 3.5, 9.0]], np.float32)
    expected = [0.5 * row[0] for row in picture[0, 0]], [row[1] + 0.25 for row in picture[0, 0]]
    found = read_at(picture, places, 3)[0, 0]
    np.testing.assert_allclose(found[:, 0], expected[0])
    np.testing.assert_allclose(found[:, 2], expected[1])
    np.testing.assert_allclose(found[:, 3:], [[row[3], row[3] / 2, 0] for row in picture[0, 0]])
    down = read_at(picture, np.array([[0.5, 2.0]], np.float32), 2)[0, 0]
    np.testing.assert_allclose(down, [(picture[0, 0, 0] + picture[0, 0, 1]) / 2, picture[0, 0, 2]])


def test_a_picture_without_ink_or_with_one_dot_stays_sound() -> None:
    assert not normalised(np.zeros((2, 3, 9, 8), np.float32)).any()
    dot = np.zeros((1, 1, 28, 28), np.float32)
    dot[0, 0, 3, 20] = 1
    found = normalised(dot)
    assert np.isfinite(found).all() and found.sum() > 0.2
    assert by_hand(found[0, 0])[:2] == pytest.approx((13.5, 13.5), abs=0.6)
    full = np.ones((1, 1, 8, 8), np.float32)
    assert np.isfinite(normalised(full)).all() and normalised(full).max() <= 1 + 1e-6


def test_colours_move_together() -> None:
    grey = blob(0.4)
    colour = np.concatenate([grey, 0.5 * grey, 0.25 * grey], axis=1)
    found = normalised(colour)
    np.testing.assert_allclose(found[:, 1], 0.5 * found[:, 0], atol=1e-6)
    np.testing.assert_allclose(found[:, :1], normalised(grey), atol=2e-3)


def test_a_picture_is_the_same_in_any_company() -> None:
    pictures = np.concatenate([blob(0.3), blob(-0.5, 3.0, 3.0), blob(0.0, 2.0, 6.0)])
    together = normalised(pictures)
    for number in range(3):
        np.testing.assert_array_equal(normalised(pictures[number : number + 1])[0], together[number])


def test_features_use_it_name_it_and_keep_it_apart(tmp_path: Path) -> None:
    plain, upright = (FeaturesConfig(name="gradients", normalise=word) for word in ("none", "moments"))  # type: ignore[arg-type]
    images = np.round(255 * np.concatenate([blob(0.5), blob()])).astype(np.uint8)
    one, other = (Features(options, (1, 28, 28), tmp_path) for options in (plain, upright))
    assert one.identity != other.identity and "normalise" not in one.identity
    before, after = one(images), other(images)
    assert float(after[0] @ after[1]) > 0.98 > 0.9 > float(before[0] @ before[1])
    assert MOMENTS in public_knowledge(upright) and MOMENTS not in public_knowledge(plain)


def test_without_features_there_is_nothing_to_normalise() -> None:
    with pytest.raises(OptionError, match=r"features\.normalise=moments: features=none"):
        compose(["features=none", "+features.normalise=moments"])
    with pytest.raises(OptionError, match=r"features\.normalise=size"):
        compose(["features=gradients", "features.normalise=size"])
