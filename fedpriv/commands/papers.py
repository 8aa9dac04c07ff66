"""Lists where each equation of the papers is in the code: `fedpriv papers`, or `make papers`.

A tag is a comment such as ``# [Fed-CAD, Alg. 1 line 14]``, or ``lines 1 to 6, 20``, beside the code that computes it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedpriv.common.command_line import DONE, FAILED, command
from fedpriv.common.printing import say


def _all(algorithm: int, lines: int) -> tuple[str, ...]:
    """Every line of a listing."""
    return tuple(f"Alg. {algorithm} line {line}" for line in range(1, lines + 1))


#: Every equation that must be found, by paper; one that is missing fails a test. Of the listings every line is in the
#: method's own two files.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "Fed-CAD": (
        *_all(1, 26),
        *_all(2, 10),
        "III-C (3)",
        "V-B",
        "Theorem VI.2",
    ),
    "FedProx": ("eq. 2",),
    "ADP-FL": (
        *(f"eq. {number}" for number in (9, 10, 11, 12, 13, 16)),
        *_all(1, 27),
        *_all(2, 19),
        *_all(3, 7),
    ),
    "CoQ-FL": ("eq. 2", "Lemma 2", *(f"Alg. 1 step {step}" for step in (1, 2, 3, 4))),
    "DP-FedAGS": (
        *(f"eq. {number}" for number in (1, 2, 3, 35, 37)),
        *_all(1, 31)[2:],  # lines 1 and 2 are input and output
        "IV-A",
    ),
    "DPFL-AGN": (*(f"eq. {number}" for number in (6, 7, 8, 9, 10, 11, 12, 13, 17)), *_all(1, 29)),
    "NbAFL": ("Alg. 1", "Theorem 1"),
    "FedOpt": ("Alg. 2",),
    "SCAFFOLD": tuple(f"Alg. 1 line {line}" for line in (10, 12, 17)),
}

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("strategies", "clients", "fedpriv")

_TAG = re.compile(r"\[(?P<paper>[A-Z][A-Za-z]*(?:-[A-Za-z]+)*), (?P<place>[A-Z][^\]]*|eq\. [^\]]*)\]")
_LINES = re.compile(r"(?P<before>.*\bline)s (?P<numbers>\d+(?:(?:,| to) \d+)+)$")


@dataclass(frozen=True)
class Tag:
    """An equation and where it is computed; file is relative to the project's folder."""

    paper: str
    place: str
    file: str
    line: int


def tags_in(text: str, file: str) -> Iterator[Tag]:
    """The tags of one file, in order; ``lines 13, 20`` are two, ``lines 1 to 3`` three."""
    for number, line in enumerate(text.splitlines(), 1):
        _, _, comment = line.partition("#")
        for found in _TAG.finditer(comment):
            several = _LINES.match(found["place"])
            places = [found["place"]]
            if several:
                ends = [[int(end) for end in part.split(" to ")] for part in several["numbers"].split(", ")]
                places = [f"{several['before']} {one}" for part in ends for one in range(part[0], part[-1] + 1)]
            for place in places:
                yield Tag(found["paper"], place, file, number)


def find_tags(root: Path = ROOT) -> list[Tag]:
    """All tags of the project, by paper and place (numbers in their order)."""
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py")) if file != Path(__file__)]
    found = [tag for file in files for tag in tags_in(file.read_text(), file.relative_to(root).as_posix())]
    return sorted(found, key=lambda tag: (tag.paper, _natural(tag.place), tag.file, tag.line))


def missing(tags: list[Tag]) -> list[str]:
    """Required equations without a tag."""
    present = {(tag.paper, tag.place) for tag in tags}
    return [
        f"[{paper}, {place}]" for paper, places in REQUIRED.items() for place in places if (paper, place) not in present
    ]


@command
def main() -> int:
    tags = find_tags()
    for tag in tags:
        say(f"[{tag.paper}, {tag.place}]".ljust(34), f"{tag.file}:{tag.line}")
    lost = missing(tags)
    for name in lost:
        say(f"{name.ljust(34)} is nowhere in the code", file=sys.stderr)
    return FAILED if lost else DONE


def _natural(place: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", place)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
