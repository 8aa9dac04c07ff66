"""The head of README.md in a folder of studies: what they found in a few sentences, totals, and one picture.

    python -m fedpriv.studies.front_page [results=docs/results]

Writes README.md between two marks, so that what a person wrote around them stays, and overview.png and .svg. All of it
is made from every STUDY/results.json in the folder; `fedpriv.reproduce` and `fedpriv.leaderboard` call it too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedpriv.common.command_line import DONE, command_options, guarded, shown
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.common.files import write_atomic
from fedpriv.common.printing import say
from fedpriv.studies.results import RESULTS_FILE
from fedpriv.studies.what_was_found import read, words

BEGIN = "<!-- found: begin; written by python -m fedpriv.studies.front_page, from every results.json below -->"
END = "<!-- found: end -->"


def refresh(root: Path) -> Path | None:
    """Writes the head of ``root``/README.md; None, and nothing is written, where fewer than two studies are there."""
    if len(list(root.glob(f"*/{RESULTS_FILE}"))) < 2:
        return None
    from fedpriv.studies.found_plot import draw  # matplotlib takes a second

    found, readme = read(root), root / "README.md"
    picture = draw(found.boards, root)
    shown = [f"![{picture.alt}]({picture.file})", "", picture.caption, ""] if picture else []
    old = readme.read_text(encoding="utf-8") if readme.is_file() else "# Results\n"
    write_atomic(readme, with_head(old, [*shown, *words(found)]))
    return readme


def refresh_beside(root: Path) -> None:
    """`refresh` as the last step of a study, whose own results are written: says what became of it."""
    try:
        if (written := refresh(root)) is not None:
            say(f"all studies: {shown(written)}", flush=True)
    except RunFolderError as error:
        say(f"{shown(root / 'README.md')} stays as it was: {error}", flush=True)


def with_head(page: str, lines: Sequence[str]) -> str:
    """The page with these lines between the marks: where they are, else below its title."""
    head = "\n".join([BEGIN, "", *lines, END])
    before, mark, rest = page.partition(BEGIN)
    if mark:
        return before + head + rest.partition(END)[2]
    title, _, rest = page.partition("\n")
    return f"{title}\n\n{head}\n{rest}"


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        say(__doc__)
        return DONE
    return guarded(lambda: _write(arguments))


def _write(arguments: Sequence[str]) -> int:
    root = Path(command_options(arguments, {"results": "docs/results"}, "fedpriv.studies.front_page")["results"])
    if (written := refresh(root)) is None:
        raise OptionError("results", root, f"a folder with two studies or more (STUDY/{RESULTS_FILE})")
    say(shown(written), flush=True)
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
