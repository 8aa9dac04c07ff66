"""Pictures of a study on the site: small, and one for a light and one for a dark page.

A study leaves PNG files of lines and text on white. Their colours are reduced to a palette, a quarter of the bytes; the
dark picture is the same one with another palette.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from fedpriv.report.pictures import DARK, PAPER
from fedpriv.studies.results import Figure
from fedpriv.studies.site.wording import slug

#: Colours of a picture: its lines, each with the steps of its smooth edges.
COLORS = 96

Rgb = tuple[float, float, float]


@dataclass(frozen=True)
class Shown:
    """A picture as a page shows it; paths are quoted, from the site's root."""

    id: str
    light: str
    dark: str
    alt: str
    caption: str
    width: int
    height: int


def show_pictures(home: Path, study: str, figures: Sequence[Figure], folder: Path) -> dict[str, Shown]:
    """Writes the figures of a study, which lie in ``home``, into the site's ``folder``; by their files' names."""
    shown = {}
    for figure in figures:
        light, dark = (_path(study, figure.file, scheme) for scheme in ("", "-dark"))
        (folder / light).parent.mkdir(parents=True, exist_ok=True)
        size = _write(home / figure.file, folder / light, folder / dark)
        shown[figure.file] = Shown(
            f"figure:{slug(figure.name)}", quote(light), quote(dark), figure.alt, figure.caption, *size
        )
    return shown


def _path(study: str, file: str, scheme: str) -> str:
    """Of a figure's copy; pictures of one name in several folders of a study stay apart."""
    return f"figures/{study}/{slug(file.removesuffix('.png'))}{scheme}.png"


def _write(source: Path, light: Path, dark: Path) -> tuple[int, int]:
    """Both forms of a picture; returns its width and height in pixels."""
    with Image.open(source) as opened:
        whole = opened.convert("RGBA")
    paper = Image.new("RGBA", whole.size, PAPER)
    flat = Image.alpha_composite(paper, whole).convert("RGB")
    few = flat.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(light, "PNG")
    colors = few.getpalette() or []
    few.putpalette([part for i in range(0, len(colors), 3) for part in on_dark(colors[i : i + 3])])
    few.save(dark, "PNG")
    return whole.size


def on_dark(color: Sequence[float]) -> tuple[int, int, int]:
    """The colour that takes another's place on a dark page: red, green and blue from 0 to 255.

    A smooth edge and a transparent band are white with some of a line's colour, so a colour is taken as the nearest
    mixture of white and one of the palette's, and both are replaced (`fedpriv.report.pictures.DARK`).
    """
    nearest, mixed = float("inf"), _DARK_PAPER
    for line, on_paper in _LINES:
        span = [one - 255 for one in line]
        share = sum((one - 255) * step for one, step in zip(color, span, strict=True)) / sum(x * x for x in span)
        share = min(max(share, 0.0), 1.0)
        miss = sum((one - 255 - share * step) ** 2 for one, step in zip(color, span, strict=True))
        if miss < nearest:
            nearest = miss
            mixed = [a + share * (b - a) for a, b in zip(_DARK_PAPER, on_paper, strict=True)]
    red, green, blue = (round(part) for part in mixed)
    return red, green, blue


def _rgb(color: str) -> list[float]:
    return [float(int(color[i : i + 2], 16)) for i in (1, 3, 5)]


_DARK_PAPER = _rgb(DARK[PAPER])
_LINES = [(_rgb(light), _rgb(dark)) for light, dark in DARK.items() if light != PAPER]
