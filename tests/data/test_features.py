"""Public features: what they compute, that they depend on one picture alone, and what happens to their files."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from rotation import together
from threadpoolctl import threadpool_limits

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose, from_dict
from fedpriv.config.data_schema import FeaturesConfig
from fedpriv.data import gradients, maps
from fedpriv.data.features import (
    BLOCK,
    MOMENTS,
    FeatureArrays,
    FeatureRows,
    Features,
    base_function,
    model_input,
    public_knowledge,
)
from fedpriv.data.gradients import LEAST, TALL, WIDE, moments, normalised, oriented_gradients, read_at, sheared, unit
from fedpriv.data.load import load_dataset, load_federated
from fedpriv.data.maps import Directions, draw_glyphs, glyph_directions, stroke_map

SHAPES = ((1, 8, 8), (3, 8, 8), (1, 12, 20), (1, 28, 28), (3, 32, 32), (1, 64, 64), (3, 64, 40))


def options(name: str, **more: object) -> FeaturesConfig:
    return FeaturesConfig.model_validate({"name": name, **more})


def smooth(shape: tuple[int, int, int], count: int = 5, seed: int = 0) -> np.ndarray:
    """Smooth random pictures, the first black and the second white."""
    random = np.random.default_rng(seed)
    channels, height, width = shape
    waves = random.normal(0, 1, (count, channels, 3, 3))
    rows, columns = (np.cos(math.pi * np.arange(3)[:, None] * np.arange(n) / n) for n in (height, width))
    images = np.einsum("ncab,ah,bw->nchw", waves, rows, columns)
    found = np.clip(128 + 50 * images, 0, 255).astype(np.uint8)
    found[0], found[1] = 0, 255
    return found


# --- what they compute -----------------------------------------------------------------------------------


def slow_gradients(image: np.ndarray, stride: int) -> np.ndarray:
    """Oriented gradients of a grey picture [h, w] in 0..1, pixel by pixel from their definition."""
    height, width = image.shape
    sigma, pool = 0.7 * stride / 4, 2.0 * stride / 4
    radius = max(1, math.ceil(4 * sigma))
    weights = {o: math.exp(-0.5 * (o / sigma) ** 2) for o in range(-radius, radius + 1)}
    total = sum(weights.values())

    def inside(index: int, length: int) -> int:
        return min(max(index, 0), length - 1)

    blurred = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            blurred[y, x] = sum(
                wy * wx * image[inside(y + oy, height), inside(x + ox, width)] / total**2
                for oy, wy in weights.items()
                for ox, wx in weights.items()
            )
    energies = np.zeros((12, height, width))
    for y in range(height):
        for x in range(width):
            across = (blurred[y, inside(x + 1, width)] - blurred[y, inside(x - 1, width)]) / 2
            along = (blurred[inside(y + 1, height), x] - blurred[inside(y - 1, height), x]) / 2
            magnitude, angle = math.hypot(across, along), math.atan2(along, across)
            for number in range(12):
                energies[number, y, x] = magnitude * max(0.0, math.cos(angle - 2 * math.pi * number / 12)) ** 4
    cells = (height // stride, width // stride)
    found = np.zeros((12, *cells))
    for row in range(cells[0]):
        for column in range(cells[1]):
            middle = [stride * (cell + 0.5) - 0.5 for cell in (row, column)]
            middle = [m + (n - stride * c) / 2 for m, n, c in zip(middle, (height, width), cells, strict=True)]
            shares = np.array(
                [
                    [math.exp(-0.5 * ((y - middle[0]) ** 2 + (x - middle[1]) ** 2) / pool**2) for x in range(width)]
                    for y in range(height)
                ]
            )
            found[:, row, column] = (energies * shares).sum((1, 2)) / shares.sum()
    vector = np.sqrt(found).ravel()
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(("shape", "stride"), [((28, 28), 4), ((12, 17), 2)])
def test_oriented_gradients_are_what_they_are_defined_as(shape: tuple[int, int], stride: int):
    images = smooth((1, *shape), 3)[2:].astype(np.float32) / 255
    np.testing.assert_allclose(oriented_gradients(images)[0], slow_gradients(images[0, 0], stride), atol=2e-5)


def test_a_turned_picture_turns_its_orientations():
    """A quarter turn moves the cells and shifts the 12 orientations by three."""
    image = smooth((1, 28, 28), 3)[2:].astype(np.float32) / 255
    plain, turned = (oriented_gradients(part).reshape(12, 7, 7) for part in (image, np.rot90(image, axes=(2, 3))))
    np.testing.assert_allclose(turned, np.roll(np.rot90(plain, axes=(1, 2)), -3, axis=0), atol=1e-5)
    assert np.abs(turned - np.rot90(plain, axes=(1, 2))).max() > 0.01


# --- one picture alone -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "more"), [*((shape, {}) for shape in SHAPES), ((1, 12, 12), {"map": "strokes", "dims": 9})]
)
def test_a_pictures_features_depend_on_no_other_picture(
    shape: tuple[int, int, int], more: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    few_glyphs(monkeypatch)
    chosen = options("gradients", **more)
    features, images = Features(chosen, shape, tmp_path), smooth(shape, BLOCK + 7)
    found = features(images)
    assert found.shape == (len(images), model_input(chosen, shape)[0]) and found.dtype == np.float32
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1)[2:], 1, atol=1e-5)
    order = np.random.default_rng(1).permutation(len(images))
    np.testing.assert_array_equal(features(images[order]), found[order])
    np.testing.assert_array_equal(features(images[3:4])[0], found[3])
    assert len(np.unique(found[2:], axis=0)) == len(images) - 2
    assert more or not list(tmp_path.iterdir())  # nothing is remembered of any picture


@pytest.mark.parametrize("together", [True, False])
def test_row_products_are_matrix_products(together: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gradients, "alike_everywhere", lambda *sizes: together)
    random = np.random.default_rng(4)
    rows, matrix = random.standard_normal((5, 40), np.float32), random.standard_normal((40, 7), np.float32)
    found = gradients.row_products(rows, matrix)
    np.testing.assert_allclose(found, rows.astype(float) @ matrix, atol=1e-4)
    assert found.dtype == np.float32


@pytest.mark.parametrize(("odd", "alike"), [(0, True), (1, False)])
def test_a_product_that_depends_on_the_place_is_noticed(odd: int, alike: bool):
    """Sums that are rounded in another way at the sixth place, as some libraries do."""

    def product(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        found = np.matmul(rows[:, None], matrix)[:, 0]
        found[5] *= 1 + odd * 1e-6
        return found

    assert gradients.alike_everywhere(8, 12, 3, product) is alike


def test_the_map_depends_on_no_picture_and_on_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few_glyphs(monkeypatch)
    images, chosen = smooth((1, 12, 12)), options("gradients", map="strokes", dims=9)
    found = []
    for number, threads in enumerate((1, 2)):
        with threadpool_limits(limits=threads):
            features = Features(chosen, (1, 12, 12), tmp_path / str(number))
            if number:
                features(smooth((1, 12, 12), seed=5))  # others come first
            found.append(features(images))
    np.testing.assert_array_equal(*found)
    assert found[0].shape == (5, 9)
    np.testing.assert_allclose(np.linalg.norm(found[0], axis=1), 1, atol=1e-5)


def few_glyphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "GLYPHS", 40)
    monkeypatch.setattr(maps, "draw_glyphs", lambda height, width: draw_glyphs(height, width, 40, 4))


# --- the stroke map --------------------------------------------------------------------------------------


def test_the_directions_are_those_of_discriminant_analysis():
    """V'(Cw + ridge)V = I and V'Cb V = diag(b), b falling: against covariances written out one vector at a time."""
    random = np.random.default_rng(3)
    classes = random.normal(0, 1, (30, 6)) * [3, 2, 1, 1, 0.5, 0.1]
    features = np.repeat(classes, 5, axis=0) + random.normal(0, 1, (150, 6)) @ random.normal(0, 1, (6, 6))
    found, mean = glyph_directions(features, 30), features.mean(0)
    within, between = np.zeros((6, 6)), np.zeros((6, 6))
    for glyph in range(30):
        own = features[5 * glyph : 5 * glyph + 5]
        between += np.outer(own.mean(0) - mean, own.mean(0) - mean) / 30
        for vector in own:
            within += np.outer(vector - own.mean(0), vector - own.mean(0)) / 150
    within += 0.3 * np.trace(within) / 6 * np.eye(6)
    np.testing.assert_allclose(found.vectors.T @ within @ found.vectors, np.eye(6), atol=1e-8)
    np.testing.assert_allclose(found.vectors.T @ between @ found.vectors, np.diag(found.values), atol=1e-8)
    assert (np.diff(found.values) <= 0).all() and found.values[0] > 1.5 * found.values[-1]
    np.testing.assert_allclose(found.mean, mean)
    again = glyph_directions(np.ascontiguousarray(features[::-1]), 30)  # no order, no sign is chosen by chance
    np.testing.assert_allclose(again.vectors, found.vectors, atol=1e-8)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_the_map_weighs_directions_by_their_share_of_signal(exponent: float):
    directions = Directions(np.array([1.0, 2.0, 3.0]), np.eye(3), np.array([4.0, 1.0, 0.25]))
    chosen = stroke_map(directions, 2, exponent)
    vector = np.array([3.0, 5.0, 9.0])
    expected = np.array([2.0 * 0.8**exponent, 3.0 * 0.5**exponent])
    found = chosen(vector[None].astype(np.float32))[0]
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), rtol=1e-6)


def test_glyphs_are_framed_as_handwriting_is():
    """Inside a box of 20 of 28 pixels around the middle, dark on nothing, and no two alike."""
    images = draw_glyphs(28, 28, 60, 3).reshape(60, 3, 28, 28)
    assert images.shape == (60, 3, 28, 28) and len(np.unique(images.reshape(180, -1), axis=0)) == 180
    ink = images / images.sum((2, 3), keepdims=True)
    middle = np.stack([(ink.sum(3) * np.arange(28)).sum(2), (ink.sum(2) * np.arange(28)).sum(2)])
    assert np.abs(middle - 13.5).max() < 1.5
    assert images.max((2, 3)).min() > 150 and 20 < images.mean() < 60
    means = images.mean(1, keepdims=True)
    between, within = means.reshape(60, -1).var(0).sum(), (images - means).reshape(60, 3, -1).var(1).sum(1).mean()
    assert between > within  # a glyph is written again as something like itself
    np.testing.assert_array_equal(draw_glyphs(28, 28, 4, 3), images[:4].reshape(12, 1, 28, 28))


# --- files -----------------------------------------------------------------------------------------------


def spoil(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "gone":
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        content[-200] ^= 1
        file.write_bytes(content)


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("what", ["features", "stroke_maps"])
def test_what_is_damaged_is_made_again(what: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    few_glyphs(monkeypatch)
    images, chosen = smooth((1, 12, 12), 9), options("gradients", map="strokes", dims=9)

    def rows() -> np.ndarray:
        whole = FeatureArrays(Features(chosen, (1, 12, 12), tmp_path), images, {"name": "some"}, tmp_path)
        return np.array(FeatureRows(whole, 2, 9)[np.arange(7)])

    first = rows()
    (file,) = tmp_path.glob(f"{what}/*/*.np[yz]")
    size = file.stat().st_size
    spoil(file, how)
    if what == "stroke_maps":
        shutil.rmtree(tmp_path / "features")
    np.testing.assert_array_equal(rows(), first)
    assert file.stat().st_size == size
    if what == "features":
        np.testing.assert_array_equal(np.load(file)[2:], first)


def test_features_are_computed_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = compose(["features=gradients", f"dataset.cache={tmp_path}"])
    rows = np.arange(5)
    first = load_dataset(config.dataset, 0, config.features).train.features
    assert first is not None and not (tmp_path / "features").exists()  # a plan needs none
    values = first[rows]
    monkeypatch.setattr(Features, "__call__", lambda self, images: pytest.fail("computed again"))
    second = load_dataset(config.dataset, 0, config.features)
    assert second.train.features is not None and second.shape == (192, 1, 1) and second.picture_shape == (1, 8, 8)
    np.testing.assert_array_equal(second.train.features[rows], values)
    assert len(list((tmp_path / "features").iterdir())) == 1
    other = compose(["features=gradients", "features.map=strokes", f"dataset.cache={tmp_path}"])
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        load_dataset(other.dataset, 0, other.features).train.features[rows]  # type: ignore[index]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "features").write_text("a file in the folder's place")
    config = compose(["features=gradients", f"dataset.cache={tmp_path}"])
    rows = load_dataset(config.dataset, 0, config.features).train.features
    assert rows is not None
    with pytest.raises(DataError, match=r"features cannot be written"):
        rows[np.arange(2)]


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "option", "words"),
    [
        (["features.map=strokes"], "features.map", "features=none leaves nothing to map"),
        (["features=scattering"], "features", "allowed: backbone, gradients, none, processes"),
        (["features=gradients", "features.dims=0"], "features.dims", "from 1 to 599, or auto"),
        (["features=gradients", "features.dims=600"], "features.dims", "from 1 to 599, or auto"),
        (["features=gradients", "features.exponent=-1"], "features.exponent", "at least 0"),
        (["features=gradients", "features.map=digits"], "features.map", "none, strokes, pink or drawings"),
        (["features.map=pink"], "features.map", "features=none leaves nothing to map"),
        (["features=gradients", "features.waves=3"], "features.waves", "no such option"),
        (["features=dct"], "features", "allowed: backbone, gradients, none, processes"),
        (["features=gradients", "model=cnn"], "model", "a vector and no picture"),
        (["features=gradients", "model=resnet18"], "model", "auto, linear, softmax, mlp, custom"),
        (
            ["features=gradients", "features.map=strokes", "features.mirror=true"],
            "features.mirror",
            "characters do not look alike mirrored",
        ),
        (["features=none", "+features.mirror=true"], "features.mirror", "features=none leaves pictures as they are"),
        (["features=none", "+features.normalise=moments"], "features.normalise", "features=none"),
        (["features=gradients", "features.normalise=size"], "features.normalise", "=size"),
        (["features=gradients", "features.map=drawings"], "features.map", "is of features=processes"),
        (["features=processes", "features.map=drawings", "features.dims=auto"], "features.dims", "strokes and pink"),
    ],
)
def test_wrong_options_are_named(overrides: list[str], option: str, words: str):
    with pytest.raises(OptionError) as caught:
        compose(overrides)
    assert caught.value.option == option and words in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 7, 5), (3, 8, 7), (1, 65, 64)])
def test_pictures_of_another_size_are_refused(shape: tuple[int, int, int], tmp_path: Path):
    with pytest.raises(
        OptionError, match=rf"features=gradients: needs pictures of 8x8 to 64x64, these are {shape[1]}x"
    ):
        Features(options("gradients"), shape, tmp_path)


def test_a_map_has_at_most_as_many_dimensions_as_there_are_features(tmp_path: Path):
    with pytest.raises(OptionError, match=r"features.dims=193: at most 192 of features=gradients .* 8x8"):
        Features(options("gradients", map="strokes", dims=193), (1, 8, 8), tmp_path)
    assert Features(options("gradients", map="strokes", dims=192), (1, 8, 8), tmp_path).dims == 192


def test_without_features_nothing_is_as_it_was_not():
    config = compose(["features=none"])
    assert config == compose([])
    data = load_federated(config)
    assert data.dataset.train.features is None and data.dataset.shape == data.dataset.picture_shape == (1, 8, 8)
    used = compose(["features=gradients"])
    assert used.digest() != config.digest() and used.to_dict()["features"]["name"] == "gradients"


def test_a_configuration_of_an_earlier_version_is_read():
    """Random waves had two options, which every feature had with them."""
    config = compose(["features=gradients", "features.map=none", "features.normalise=none", "model=linear"])
    raw = config.to_dict()
    raw["privacy"] |= {"extrapolated_cohort": None, "extrapolated_population": None}  # claims for a larger population
    assert from_dict(raw | {"features": raw["features"] | {"waves": 1000, "width": 1.0}}) == config
    with pytest.raises(OptionError, match=r"features\.waves=300"):
        from_dict(raw | {"features": raw["features"] | {"waves": 300, "width": 1.0}})
    with pytest.raises(OptionError, match=r"privacy\.extrapolated_cohort=500"):
        from_dict(raw | {"privacy": raw["privacy"] | {"extrapolated_cohort": 500}})


def test_what_is_known_is_said():
    assert public_knowledge(options("none")) == "none"
    assert public_knowledge(options("gradients", map="strokes")) == (
        "oriented gradients; a stroke map: knows that digits are strokes"
    )


# --- worth -----------------------------------------------------------------------------------------------


def ridge_accuracy(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray) -> float:
    """Of least squares onto the classes, with a small ridge."""
    onehot = np.eye(10)[labels] - 0.1
    gram = train.T.astype(np.float64) @ train
    weights = np.linalg.solve(gram + 3e-3 * np.trace(gram) / len(gram) * np.eye(len(gram)), train.T @ onehot)
    return float((test @ weights).argmax(1).__eq__(truth).mean())


@pytest.mark.rotates(3, together(0))
def test_features_are_worth_more_than_pixels_on_real_digits(pictures: Path, tmp_path: Path):
    """6,000 training pictures of MNIST, tested on 4,000 other training pictures, by least squares."""
    config = compose(["dataset=mnist", f"dataset.root={pictures}"])
    train = load_dataset(config.dataset, 0).train
    images, labels = np.asarray(train.inputs[:10_000]), np.asarray(train.targets[:10_000])
    found = {"pixels": (images.reshape(len(images), -1) / 255).astype(np.float32)}
    for name, more in (("gradients", {}), ("map", {"map": "strokes", "dims": 150})):
        chosen = options("gradients" if name == "map" else name, **more)
        found[name] = Features(chosen, (1, 28, 28), tmp_path)(images)
    score = {n: ridge_accuracy(x[:6000], labels[:6000], x[6000:], labels[6000:]) for n, x in found.items()}
    assert score["pixels"] < 0.85 and score["gradients"] > 0.968 and score["map"] > 0.967


# --- What is known of natural pictures: mirror images count alike, and the pink map whitens by 1/f n


SHAPE = (3, 12, 16)


def random_pictures(count: int = 9, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pink map of 50 pictures."""
    draw = maps.draw_noise
    monkeypatch.setattr(maps, "draw_noise", lambda shape: draw(shape, 50))


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
    noise = maps.draw_noise((3, 32, 32), 400).astype(np.float64)
    brightness = noise.mean(1)
    amplitude = np.abs(np.fft.fft2(brightness)).mean(0)
    frequency = np.hypot(np.fft.fftfreq(32)[:, None], np.fft.fftfreq(32))
    chosen = (frequency > 0.05) & (frequency < 0.3)
    slope = np.polyfit(np.log(frequency[chosen]), np.log(amplitude[chosen]), 1)[0]
    assert -1.3 < slope < -1.0
    opponents = [(noise[:, 0] - noise[:, 2]) / math.sqrt(2), (noise[:, 0] - 2 * noise[:, 1] + noise[:, 2]) / 6**0.5]
    ratios = [part.std((1, 2)).mean() / (brightness * math.sqrt(3)).std((1, 2)).mean() for part in opponents]
    np.testing.assert_allclose(ratios, [0.3, 0.15], rtol=0.15)
    np.testing.assert_allclose(maps.COLOURS.T @ maps.COLOURS, np.eye(3), atol=1e-12)


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
    chosen = maps.pink_map(maps.noise_directions(features), 3, exponent)
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
    monkeypatch.setattr(maps, "draw_noise", lambda shape: pytest.fail("made again"))
    np.testing.assert_array_equal(Features(chosen, SHAPE, tmp_path / "first")(random_pictures()), found)
    directions = np.load(files[0])
    x = oriented_gradients(random_pictures() / np.float32(255)) - directions["mean"]
    expected = unit((x @ directions["vectors"][:, :9] * directions["values"][:9] ** -0.25).astype(np.float32))
    np.testing.assert_allclose(found, expected, atol=1e-4)


# --- options ---------------------------------------------------------------------------------------------


def test_what_is_known_is_said_and_counts():
    known = public_knowledge(compose(["experiment=private_cifar", "features.map=pink"]).features)
    assert "look alike mirrored" in known and "1/f spectrum" in known and "strokes" not in known
    plain, mirrored = (compose(["features=gradients", f"features.mirror={value}"]) for value in ("false", "true"))
    assert plain.digest() != mirrored.digest()


# --- Moment normalisation: against moments written out, on pictures that were sheared and scaled on


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
    assert one.identity != other.identity
    before, after = one(images), other(images)
    assert float(after[0] @ after[1]) > 0.98 > 0.9 > float(before[0] @ before[1])
    assert MOMENTS in public_knowledge(upright) and MOMENTS not in public_knowledge(plain)
