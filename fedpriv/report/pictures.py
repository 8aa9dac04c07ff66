"""Pictures on a page: the page holds them, so that it can be mailed, and they follow light and dark.

A picture is kept twice beside the page, as PNG (for notebooks and slides) and as SVG, which has the colours of both.
The page shows the SVG in an <img>: there no script of a file from elsewhere runs, and no two ids collide.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv.common.files import drawn, save_figure, write_atomic
from fedpriv.common.run_files import bytes_in

#: Okabe and Ito (2008), without yellow, which is too faint on white.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
INK, SOFT, DOTS, FAINT, PAPER = "#33363b", "#5c6169", "#9a9da3", "#d9dadc", "#ffffff"

#: Colour -> the one that takes its place on a dark page.
DARK = {
    BLUE: "#4fa8e0",
    VERMILLION: "#ff9d5c",
    GREEN: "#4fd0a5",
    PURPLE: "#e39ac4",
    ORANGE: "#f0b63c",
    SKY: "#b9e2fa",
    BLACK: "#f2f2ef",
    INK: "#d5d6d3",
    SOFT: "#a2a7af",
    DOTS: "#80858d",
    FAINT: "#41454c",
    PAPER: "#1c1e22",
}
#: Inches of a picture: on a phone's page, 332 pixels wide, letters of 10 points have 11 pixels.
INCHES = 4.1
#: Bytes of an SVG; a larger one (thousands of marks) is shown as PNG.
MOST = 150_000


@dataclass(frozen=True)
class Picture:
    """A picture file beside the page: file name, alternative text, caption; source: in a page, itself as a data URI."""

    file: str
    alt: str
    caption: str
    source: str = ""


def save_picture(figure: Any, folder: Path, picture: Picture) -> Picture:
    """Saves a matplotlib figure as PNG alone."""
    save_figure(figure, folder / picture.file)
    return picture


def save_themed(figure: Any, file: Path, **options: Any) -> None:
    """Saves a matplotlib figure as ``file`` (a PNG) and, for light and dark pages, as SVG beside it.

    Options are those of ``savefig`` for the PNG.
    """
    save_figure(figure, file, **options)
    figure.set_layout_engine("none")  # all has its place by now; to find it again costs as much as to draw
    svg = drawn(figure, "svg", metadata={"Date": None}).decode()
    write_atomic(file.with_suffix(".svg"), themed(svg), durable=False)


def themed(svg: str) -> str:
    """An SVG of matplotlib's with its colours on a dark page; what has none of its own, as black text, gets one."""
    rules = [f"svg {{ fill: {DARK[BLACK]} }}"]
    for light, dark in DARK.items():
        for part in ("fill", "stroke"):
            rules.append(f'[style*="{part}: {light.lower()}"] {{ {part}: {dark} !important }}')
    style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + style, svg, count=1)


def remove_picture(file: Path) -> None:
    """Deletes a picture in both forms."""
    for one in (file, file.with_suffix(".svg")):
        one.unlink(missing_ok=True)


def shown(folder: Path, picture: Picture) -> Picture:
    """The picture with its bytes, for a page that needs no other file. Raises OSError where it is not there."""
    svg = (folder / picture.file).with_suffix(".svg")
    fits = svg.is_file() and svg.stat().st_size <= MOST
    file, kind = (svg, "image/svg+xml") if fits else (folder / picture.file, "image/png")
    return replace(picture, source=f"data:{kind};base64,{b64encode(bytes_in(folder, file.name)).decode()}")
