"""A finished model reads a picture file to the bytes that training, and a node, read of it."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run
from PIL import Image
from torch import nn

from fedpriv.common.errors import DataError, OptionError
from fedpriv.config.compose import compose, read_config
from fedpriv.config.data_schema import DatasetConfig
from fedpriv.data.decoding import Encoded, read_picture
from fedpriv.data.load import load_federated
from fedpriv.data.sources import class_folders, image_folder
from fedpriv.training.trained_model import TrainedModel, load_model

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


# --- modes x formats -------------------------------------------------------------------------------------

GROUNDS = {"white": 255, "black": 0}
#: The formats that write each mode, and how: what is lost is small.
WRITTEN: dict[str, dict[str, Any]] = {
    "png": {},
    "tiff": {},
    "webp": {"lossless": True, "exact": True},
    "jpg": {"quality": 98, "subsampling": 0},
    "gif": {},
    "bmp": {},
    "jp2": {},
    "ppm": {},
    "tga": {},
    "ico": {"sizes": [(16, 16)]},
    "avif": {"quality": 98, "subsampling": "4:4:4"},
}
OF_MODES = {
    "1": "png tiff webp gif bmp ppm tga avif",
    "L": "png tiff webp jpg gif bmp jp2 ppm tga avif",
    "LA": "png tiff webp jp2 tga avif",
    "P": "png tiff gif tga",
    "PA": "tiff",
    "RGB": "png tiff webp jpg bmp jp2 ppm tga avif",
    "RGBA": "png tiff webp jp2 tga ico avif",
    "CMYK": "tiff jpg",
    "YCbCr": "tiff jpg",
    "I;16": "png tiff jp2",
    "I;16B": "png tiff",
    "I": "tiff ppm",
    "F": "tiff",
}


def png_chunks(depth: int, kind: int, samples: Any, key: tuple[int, ...] = ()) -> bytes:
    """A PNG by hand: samples [h, w, bands] of so many bits, kind its colour type, key the transparent colour."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width, bands = samples.shape
    bits = (samples.reshape(height, width * bands, 1) >> np.arange(depth)[::-1] & 1).reshape(height, -1)
    rows = b"".join(b"\0" + np.packbits(row.astype(np.uint8)).tobytes() for row in bits)
    transparent = chunk(b"tRNS", struct.pack(f">{len(key)}H", *key)) if key else b""
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + transparent
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def tiff_of_twelve_bits(samples: Any) -> bytes:
    """A grey TIFF of 12 bits, by hand."""
    height, width = samples.shape
    bits = (samples[:, :, None] >> np.arange(12)[::-1] & 1).reshape(height, -1)
    content = np.packbits(bits.astype(np.uint8), axis=1).tobytes()
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: height, 279: len(content)}
    entries = b"".join(
        struct.pack("<HHII", tag, 4 if tag in (273, 279) else 3, 1, value) for tag, value in tags.items()
    )
    return b"II*\0" + struct.pack("<I", 8 + len(content)) + content + struct.pack("<H", len(tags)) + entries + bytes(4)


def drawn() -> tuple[Any, Any]:
    """Smooth colours [16, 16, 3] and an alpha [16, 16] of 0 and 255, so that formats that lose lose little."""
    down, across = np.mgrid[0:16, 0:16] * 16
    colours = np.stack([down, across, 255 - down], -1).astype(np.uint8)
    return colours, np.where(down < across, 0, 255).astype(np.uint8)


def written(mode: str, kind: str) -> tuple[bytes, Any, dict[str, Any]]:
    """(a file, what is to be seen: colours [16, 16, 3] and alpha, options): by arithmetic, without Pillow's."""
    (colours, alpha), options = drawn(), dict[str, Any]()
    opaque = np.full_like(alpha, 255)
    grey = colours[:, :, 1]
    twelve = grey.astype(np.uint16) << 4
    options = {"white_level": 4095} if mode in ("I", "I;16", "I;16B", "F") and kind not in ("jp2", "ppm") else {}
    if mode == "1":
        grey, picture = np.where(grey > 127, 255, 0).astype(np.uint8), Image.fromarray(grey > 127)
    elif mode in ("L", "P"):
        picture = Image.fromarray(grey)
        if mode == "P":
            picture = Image.fromarray(colours).quantize(256)
    elif mode in ("LA", "PA"):
        picture = Image.fromarray(grey).convert(mode[0])
        picture.putalpha(Image.fromarray(alpha))
    elif mode in ("I;16", "I;16B", "I", "F"):
        sixteen = (grey.astype(np.uint16) << 8) if kind in ("jp2", "ppm") else twelve
        kinds = {"I;16": "<u2", "I;16B": ">u2", "I": np.int32, "F": np.float32}
        picture = Image.fromarray(sixteen.astype(kinds[mode]))
    elif mode == "CMYK":
        colours = colours.copy()
        picture = Image.merge(
            "CMYK", [*map(Image.fromarray, np.moveaxis(255 - colours, -1, 0)), Image.new("L", (16, 16))]
        )
    else:
        picture = (
            Image.fromarray(np.dstack([colours, alpha])) if mode == "RGBA" else Image.fromarray(colours).convert(mode)
        )
    assert picture.mode == mode
    saved, name = io.BytesIO(), {"jpg": "jpeg", "jp2": "jpeg2000"}.get(kind, kind)
    picture.save(saved, name, **WRITTEN[kind])
    seen = colours if mode in ("P", "RGB", "RGBA", "CMYK", "YCbCr") else np.dstack([grey] * 3)
    return saved.getvalue(), (seen, alpha if mode.endswith("A") else opaque), options


def by_hand(case: str) -> tuple[bytes, Any, dict[str, Any]]:
    """Files that Pillow reads and does not write."""
    colours, alpha = drawn()
    grey, opaque = colours[:, :, 1], np.full_like(alpha, 255)
    greys, wide = np.dstack([grey] * 3), colours.astype(np.uint16) * 257
    one = np.where(grey == 160, 0, 255).astype(np.uint8)  # transparent: a single grey, or colour
    if case == "1 key":
        return png_chunks(1, 0, (greys[:, :, :1] > 127) * 1, (1,)), (greys * 0, np.where(grey > 127, 0, 255)), {}
    if case == "L;2 key":
        return png_chunks(2, 0, greys[:, :, :1] >> 6, (2,)), ((greys >> 6) * 85, np.where(grey >> 6 == 2, 0, 255)), {}
    if case == "L;4 key":
        return png_chunks(4, 0, greys[:, :, :1] >> 4, (10,)), ((greys >> 4) * 17, np.where(grey >> 4 == 10, 0, 255)), {}
    if case == "L key":
        return png_chunks(8, 0, greys[:, :, :1], (160,)), (greys, one), {}
    if case == "RGB key":
        found = (colours == colours[3, 5]).all(-1)
        return png_chunks(8, 2, colours, tuple(map(int, colours[3, 5]))), (colours, np.where(found, 0, 255)), {}
    if case == "RGB 16 key":
        found = (colours == colours[3, 5]).all(-1)
        return png_chunks(16, 2, wide, tuple(map(int, wide[3, 5]))), (colours, np.where(found, 0, 255)), {}
    if case == "I;16 key":
        return png_chunks(16, 0, wide[:, :, 1:2], (160 * 257,)), (greys, one), {}
    if case == "RGB 16":
        return png_chunks(16, 2, wide), (colours, opaque), {}
    if case == "RGBA 16":
        return png_chunks(16, 6, np.dstack([wide, alpha.astype(np.uint16) * 257])), (colours, alpha), {}
    if case == "LA 16":
        return png_chunks(16, 4, np.dstack([wide[:, :, 1], alpha.astype(np.uint16) * 257])), (greys, alpha), {}
    if case == "TIFF 12":
        return tiff_of_twelve_bits(grey.astype(np.uint16) << 4), (greys, opaque), {}
    if case == "PGM 4095":
        numbers = np.rint(grey.astype(np.float64) / 255 * 4095).astype(">u2")
        return b"P5 16 16 4095\n" + numbers.tobytes(), (greys, opaque), {}
    saved, picture = io.BytesIO(), Image.fromarray(colours).quantize(256)
    if case == "TIFF 16 white is 0":
        Image.fromarray(65535 - wide[:, :, 1]).save(saved, "tiff", tiffinfo={262: 0})
        return saved.getvalue(), (greys, opaque), {}
    if case == "P alphas":  # an alpha for each colour of the palette
        indices = np.asarray(picture)
        picture.save(saved, "png", transparency=bytes(range(256)))
        return saved.getvalue(), (colours, indices), {}
    index = int(np.asarray(picture)[3, 5])
    picture.save(saved, case.split()[1], transparency=index)
    return saved.getvalue(), (colours, np.where(np.asarray(picture) == index, 0, 255)), {}


BY_HAND = ("1 key", "L;2 key", "L;4 key", "L key", "RGB key", "RGB 16 key", "I;16 key", "RGB 16", "RGBA 16", "LA 16")
BY_HAND += ("TIFF 12", "PGM 4095", "TIFF 16 white is 0", "P alphas", "P png", "P gif")
CASES = [f"{mode}.{kind}" for mode, kinds in OF_MODES.items() for kind in kinds.split()] + list(BY_HAND)


@pytest.mark.parametrize("case", CASES)
def test_every_mode_of_every_format_is_read_as_it_is_seen(case: str) -> None:
    content, (colours, alpha), options = by_hand(case) if case in BY_HAND else written(*case.split("."))
    lossy = case.split(".")[-1] in ("jpg", "avif", "jp2") or case.startswith("YCbCr")
    for background, ground in GROUNDS.items():
        share = alpha[:, :, None] / 255
        seen = colours * share + ground * (1 - share)
        grey = seen @ [0.299, 0.587, 0.114]
        for channels, expected in ((3, seen.transpose(2, 0, 1)), (1, grey[None])):
            found = read_picture(Encoded(case, content), channels, None, background, options.get("white_level"))
            assert not isinstance(found, str), found
            off = np.abs(found - expected)
            assert off.mean() < 3 if lossy else off.max() <= 2, (background, channels, off.max(), off.mean())


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_once(orientation: int, kind: str, tmp_path: Path) -> None:
    """As a camera stores it: the picture turned back, and how to turn it."""
    stored = {1: np.array, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud, 5: np.transpose}
    stored |= {6: np.rot90, 7: lambda x: np.rot90(np.transpose(x), 2), 8: lambda x: np.rot90(x, -1)}
    upright = np.outer(np.arange(12) * 20, np.linspace(0.2, 1, 16)).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / f"a.{kind}"
    Image.fromarray(np.ascontiguousarray(stored[orientation](upright))).save(file, exif=exif, **WRITTEN[kind])
    found = model(1, 12, 16).read_picture(file)[0]
    assert np.abs(found.astype(int) - upright).max() <= 6


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


def test_white_of_the_run_is_that_of_training_nodes_and_its_model(tmp_path: Path) -> None:
    """A picture of 12 bits in 16, drawn up to half of white."""

    def half(folder: Path) -> Path:
        Image.fromarray(np.full((SIDE, SIDE), 2048, np.uint16)).save(folder / "a.png")
        return folder / "a.png"

    file = folders(tmp_path, half)
    found = [trained(tmp_path, node, size=SIDE, channels=1, white_level=4095) for node in (False, True)]
    found.append(replace(model(1), drawn_on=("white", 4095)).read_picture(file))
    assert [np.unique(picture).tolist() for picture in found] == [[128]] * 3


def test_without_a_size_too(tmp_path: Path) -> None:
    file = folders(tmp_path, turned(6, "RGB", 6, 9))
    found = model(3, 9, 6).read_picture(file)
    np.testing.assert_array_equal(found, trained(tmp_path, False, size=None, channels=3))


def test_what_is_beyond_the_declared_white_is_refused_and_so_are_colours_that_lost_their_depth() -> None:
    """Clipped, a picture would be another one without a word."""
    (content, _, _), sixteen_bits = written("I;16", "png"), by_hand("RGB 16")[0]
    reasons = [
        read_picture(Encoded("a", content), 1, None, white=2047),
        read_picture(Encoded("a", sixteen_bits), 3, None, white=4095),
    ]
    assert "its pixels go from 0 to 3840, beyond white, dataset.white_level=2047" in str(reasons[0])
    assert "colours of 16 bits cannot be read with dataset.white_level=4095" in str(reasons[1])
    assert isinstance(read_picture(Encoded("a", sixteen_bits), 3, None), np.ndarray)
    with pytest.raises(OptionError, match=r"dataset.white_level=100: .*255"):
        compose(["dataset=image_folder", "dataset.root=x", "dataset.white_level=100"])


def drawings(root: Path) -> Path:
    """root/{train,test}/{a,b}/: six drawings each, black on transparent ground, of which a program sees the alpha."""
    for place in ("train", "test"):
        for label, shift in (("a", 0), ("b", 6)):
            (root / place / label).mkdir(parents=True)
            for number in range(6):
                alpha = np.zeros((12, 12), np.uint8)
                alpha[number : number + 3, shift : shift + 5] = 255
                picture = Image.fromarray(np.dstack([np.zeros((12, 12, 3), np.uint8), alpha]))
                picture.save(root / place / label / f"{number}.png")
    return root


def test_a_run_reads_drawings_on_the_ground_that_it_names_and_so_does_its_model(tmp_path: Path, run: Run) -> None:
    root = drawings(tmp_path / "drawings")
    own = ("dataset=image_folder", f"dataset.root={root}", "dataset.auxiliary=0", "model=linear", "num_rounds=1")
    cache = f"dataset.cache={tmp_path / 'cache'}"
    notes, means = [], []
    for ground in ("white", "black", "white"):
        folder = run(*own, cache, "strategy=fedavg", f"dataset.background={ground}")
        notes.append(json.loads((folder / "summary.json").read_text())["note"])
        read = load_model(folder).read_picture(root / "test" / "a" / "0.png")
        data = load_federated(read_config(folder)).dataset.test.inputs
        assert any((read == one).all() for one in data)
        means.append(read.mean())
    assert means == [255 * (1 - 15 / 144), 0, means[0]]
    assert notes[0] is None and notes[0] == notes[2]
    assert notes[1] is not None and "of 12 test pictures, 12 are equal to another, 12 are of one grey" in notes[1]
    assert "12 are nearly black" in notes[1] and "set dataset.white_level" in notes[1]
    assert len(list((tmp_path / "cache" / "pictures").iterdir())) == 2


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
