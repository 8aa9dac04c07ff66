"""A finished model reads a picture file to the bytes that training, and a node, read of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

from fedpriv.common.errors import DataError
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.folders import class_folders, image_folder
from fedpriv.runs.trained_model import TrainedModel

SIDE = 8


def pixels(height: int, width: int, bands: int, most: int = 255) -> Any:
    """Bands that differ, none of them symmetric."""
    drawn = np.random.default_rng(height * width + bands).integers(0, most + 1, (height, width, bands))
    drawn[0] = 0
    return drawn[:, :, 0] if bands == 1 else drawn


def plain(mode: str, height: int = 8, width: int = 8, kind: str = "png", **saved: Any) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        bands = len(Image.new(mode, (1, 1)).getbands())
        picture = Image.fromarray(pixels(height, width, bands).astype(np.uint8), mode)
        picture.save(folder / f"a.{kind}", **saved)
        return folder / f"a.{kind}"

    return save


def sixteen(kind: str) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        drawn = pixels(8, 8, 1, 65535).astype(np.uint16)
        if kind == "pgm":
            (folder / "a.pgm").write_bytes(b"P5 8 8 65535\n" + drawn.astype(">u2").tobytes())
        else:
            Image.fromarray(drawn).save(folder / f"a.{kind}")
        return folder / f"a.{kind}"

    return save


def turned(orientation: int, mode: str = "RGB", height: int = 8, width: int = 8) -> Callable[[Path], Path]:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return plain(mode, height, width, exif=exif)


def palette(folder: Path) -> Path:
    Image.fromarray(pixels(8, 8, 3).astype(np.uint8)).quantize(7).save(folder / "a.png", transparency=2)
    return folder / "a.png"


def one_bit(folder: Path) -> Path:
    Image.fromarray(pixels(8, 8, 1).astype(np.uint8)).convert("1").save(folder / "a.png")
    return folder / "a.png"


def animated(folder: Path) -> Path:
    frames = [Image.fromarray(np.full((8, 8), level, np.uint8)) for level in (40, 200)]
    frames[0].save(folder / "a.gif", save_all=True, append_images=frames[1:])
    return folder / "a.gif"


FILES: dict[str, Callable[[Path], Path]] = {
    **{f"sixteen-{kind}": sixteen(kind) for kind in ("png", "tiff", "pgm")},
    **{f"turned-{orientation}": turned(orientation) for orientation in (3, 5, 6, 8)},
    "turned-wide": turned(6, "L", 8, 20),
    "wide": plain("RGB", 8, 24),
    "tall": plain("L", 30, 11),
    "smaller": plain("RGB", 5, 4),
    "rgba": plain("RGBA"),
    "grey-alpha": plain("LA"),
    "cmyk": plain("CMYK", kind="tiff"),
    "cmyk-jpeg": plain("CMYK", kind="jpg"),
    "palette": palette,
    "one-bit": one_bit,
    "animated": animated,
    "plain": plain("RGB"),
}


def model(channels: int, height: int = SIDE, width: int = SIDE) -> TrainedModel:
    return TrainedModel(nn.Identity(), ("a", "b"), (channels, height, width), (0.5,), (0.5,))


def trained(root: Path, node: bool, **options: Any) -> Any:
    """The first picture of class a as training has it, or a node."""
    name, classes = ("on_nodes", ("a", "b")) if node else ("image_folder", ())
    config = DatasetConfig.model_construct(root=str(root), classes=classes, test_fraction=0.5, **options, name=name)
    source = class_folders(config, root) if node else image_folder(config, 0)
    return next(iter(source.decode().blocks))[0]


def folders(root: Path, save: Callable[[Path], Path]) -> Path:
    """root/{a,b}/ with the picture in both, twice in training: (the picture's path)."""
    for label in "ab":
        (root / label).mkdir(parents=True)
        found = save(root / label)
        (root / label / f"z{found.suffix}").write_bytes(found.read_bytes())
    return root / "a" / found.name


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", FILES)
def test_a_model_reads_the_bytes_that_training_and_nodes_read(kind: str, channels: int, tmp_path: Path) -> None:
    file = folders(tmp_path, FILES[kind])
    found = model(channels).read_picture(file)
    assert found.dtype == np.uint8 and found.shape == (channels, SIDE, SIDE)
    for node in (False, True):
        np.testing.assert_array_equal(found, trained(tmp_path, node, size=SIDE, channels=channels))


def test_without_a_size_too(tmp_path: Path) -> None:
    file = folders(tmp_path, turned(6, "RGB", 6, 9))
    found = model(3, 9, 6).read_picture(file)
    np.testing.assert_array_equal(found, trained(tmp_path, False, size=None, channels=3))


@pytest.mark.parametrize("kind", ["png", "tiff", "pgm"])
def test_sixteen_bits_keep_their_eight_highest(kind: str, tmp_path: Path) -> None:
    expected = pixels(8, 8, 1, 65535) >> 8
    np.testing.assert_array_equal(model(1).read_picture(sixteen(kind)(tmp_path))[0], expected)


def test_a_wide_picture_is_cropped_and_an_animation_is_its_first_frame(tmp_path: Path) -> None:
    file = plain("L", 8, 24)(tmp_path)
    np.testing.assert_array_equal(model(1).read_picture(file)[0], pixels(8, 24, 1)[:, 8:16])
    assert abs(int(model(1).read_picture(animated(tmp_path)).mean()) - 40) < 8


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_which_nobody_knows_what_is_white_are_refused_not_cut_off(mode: str, tmp_path: Path) -> None:
    """Up to 255 they are what they are; beyond, all would be white."""
    for most, readable in ((255, True), (256, False)):
        drawn = np.linspace(0, most, 64).reshape(8, 8).astype(np.int32 if mode == "I" else np.float32)
        Image.fromarray(drawn).save(tmp_path / "a.tiff")
        if readable:
            assert model(1).read_picture(tmp_path / "a.tiff").max() == 255
        else:
            with pytest.raises(DataError, match="256"):
                model(1).read_picture(tmp_path / "a.tiff")


def test_shares_of_white_and_two_channels_are_named(tmp_path: Path) -> None:
    Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)).save(tmp_path / "a.tiff")
    with pytest.raises(DataError, match="what is white"):
        model(1).read_picture(tmp_path / "a.tiff")
    with pytest.raises(DataError, match="1 or 3 channels, not 2"):
        model(2).read_picture(plain("L", 8, 8)(tmp_path))


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"a\.png: not a picture"):
        model(1).read_picture(tmp_path / "a.png")
    with pytest.raises(DataError, match="No such file"):
        model(1).read_picture(tmp_path / "b.png")
    whole = io.BytesIO()
    Image.new("L", (64, 64), 9).save(whole, "png")
    (tmp_path / "c.png").write_bytes(whole.getvalue()[:-30])
    with pytest.raises(DataError, match=r"c\.png"):
        model(1).read_picture(tmp_path / "c.png")
