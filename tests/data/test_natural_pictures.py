"""What is known of natural pictures: mirror images count alike, and the pink map whitens by 1/f noise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data import pink
from fedpriv.data.axes import unit
from fedpriv.data.features import Features, base_function, public_knowledge
from fedpriv.data.oriented import oriented_gradients

SHAPE = (3, 12, 16)


def options(name: str, **more: object) -> FeaturesConfig:
    return FeaturesConfig.model_validate({"name": name, **more})


def random_pictures(count: int = 9, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pink map of 50 pictures."""
    draw = pink.draw_noise
    monkeypatch.setattr(pink, "draw_noise", lambda shape: draw(shape, 50))


# --- mirror images ---------------------------------------------------------------------------------------


def test_mirrored_features_are_the_mean_of_two(tmp_path: Path):
    images = random_pictures()
    flipped = np.ascontiguousarray(images[..., ::-1])
    plain = base_function(options("gradients"), SHAPE)
    mean = (plain(images / np.float32(255)) + plain(flipped / np.float32(255))) / 2
    features = Features(options("gradients", mirror=True), SHAPE, tmp_path)
    found = features(images)
    np.testing.assert_allclose(found, unit(mean - mean.mean(1, keepdims=True)), atol=1e-5)
    np.testing.assert_array_equal(features(flipped), found)
    alone = Features(options("gradients"), SHAPE, tmp_path)
    assert np.abs(alone(flipped) - alone(images)).max() > 0.01  # which without it differ


def test_with_a_pink_map_mirror_images_still_count_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    little_noise(monkeypatch)
    images = random_pictures()
    features = Features(options("gradients", mirror=True, map="pink", dims=20, exponent=0.25), SHAPE, tmp_path)
    np.testing.assert_array_equal(features(np.ascontiguousarray(images[..., ::-1])), features(images))
    assert (
        features.identity
        != Features(options("gradients", map="pink", dims=20, exponent=0.25), SHAPE, tmp_path).identity
    )


# --- the pink map ----------------------------------------------------------------------------------------


def test_noise_falls_as_natural_pictures_do_and_is_mostly_brightness():
    """The amplitude's slope over frequency, by least squares on logarithms, in pictures that are seldom clipped."""
    noise = pink.draw_noise((3, 32, 32), 400).astype(np.float64)
    brightness = noise.mean(1)
    amplitude = np.abs(np.fft.fft2(brightness)).mean(0)
    frequency = np.hypot(np.fft.fftfreq(32)[:, None], np.fft.fftfreq(32))
    chosen = (frequency > 0.05) & (frequency < 0.3)
    slope = np.polyfit(np.log(frequency[chosen]), np.log(amplitude[chosen]), 1)[0]
    assert -1.3 < slope < -1.0
    opponents = [(noise[:, 0] - noise[:, 2]) / math.sqrt(2), (noise[:, 0] - 2 * noise[:, 1] + noise[:, 2]) / 6**0.5]
    ratios = [part.std((1, 2)).mean() / (brightness * math.sqrt(3)).std((1, 2)).mean() for part in opponents]
    np.testing.assert_allclose(ratios, [0.3, 0.15], rtol=0.15)
    np.testing.assert_allclose(pink.COLOURS.T @ pink.COLOURS, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("exponent", [0.0, 0.25, 0.5])
def test_the_map_whitens_by_the_exponent(exponent: float):
    """The covariance of the map's features is diag(w (w + r)^(-2 p)), against eigenvalues known beforehand."""
    random = np.random.default_rng(2)
    axes, _ = np.linalg.qr(random.normal(size=(5, 5)))
    variances = np.array([8.0, 4.0, 2.0, 1.0, 0.0])
    raw = random.normal(size=(400, 5))
    raw -= raw.mean(0)
    white = raw @ np.linalg.inv(np.linalg.cholesky(raw.T @ raw / 400)).T
    features = white * np.sqrt(variances) @ axes.T + 3
    chosen = pink.pink_map(pink.find_directions(features), 3, exponent)
    mapped = (features - chosen.mean) @ chosen.matrix
    expected = variances[:3] * (variances[:3] + 0.2 * 3) ** (-2 * exponent)
    np.testing.assert_allclose(mapped.T @ mapped / 400, np.diag(expected), atol=1e-5)
    np.testing.assert_allclose(chosen(features[:7].astype(np.float32)), unit(mapped[:7]), atol=1e-5)


def test_the_pink_map_is_made_once_and_of_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    little_noise(monkeypatch)
    chosen = options("gradients", map="pink", dims=9, exponent=0.25)
    first = Features(chosen, SHAPE, tmp_path / "first")
    first(random_pictures(seed=5))  # others come first
    found = first(random_pictures())
    np.testing.assert_array_equal(Features(chosen, SHAPE, tmp_path / "second")(random_pictures()), found)
    files = [next((tmp_path / part).glob("pink_maps/*/directions.npz")) for part in ("first", "second")]
    for name in ("mean", "vectors", "values"):
        np.testing.assert_array_equal(*(np.load(file)[name] for file in files))
    monkeypatch.setattr(pink, "draw_noise", lambda shape: pytest.fail("made again"))
    np.testing.assert_array_equal(Features(chosen, SHAPE, tmp_path / "first")(random_pictures()), found)
    directions = np.load(files[0])
    x = oriented_gradients(random_pictures() / np.float32(255)) - directions["mean"]
    expected = unit((x @ directions["vectors"][:, :9] * directions["values"][:9] ** -0.25).astype(np.float32))
    np.testing.assert_allclose(found, expected, atol=1e-4)


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["features=gradients", "features.map=strokes", "features.mirror=true"],
            "characters do not look alike mirrored",
        ),
        (["features=none", "+features.mirror=true"], "features=none leaves pictures as they are"),
    ],
)
def test_pictures_that_have_no_mirror_images_are_refused(overrides: list[str], words: str):
    with pytest.raises(OptionError) as caught:
        compose(overrides)
    assert caught.value.option == "features.mirror" and words in str(caught.value)


def test_what_is_known_is_said_and_counts():
    known = public_knowledge(compose(["experiment=private_cifar", "features.map=pink"]).features)
    assert "look alike mirrored" in known and "1/f spectrum" in known and "strokes" not in known
    plain, mirrored = (compose(["features=gradients", f"features.mirror={value}"]) for value in ("false", "true"))
    assert plain.digest() != mirrored.digest()
