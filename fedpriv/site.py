"""`fedpriv site [results=docs/results] [out=site]`: the static site of a folder of results.

    results   folder with <paper>/results.json (fedcad, adpfl, coqfl, fedags, agn; any of them) and leaderboard/
    out       folder of the site; replaced as a whole, if it is empty or an earlier site

The site has at most 300 pages and 5 MB: the first run of each entry and cell has a page as far as that goes, every run
has a line in its study's list, with the words that repeat it.

Open index.html in a browser: the pages need no server and no network.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedpriv.common.command_line import DONE, command_options, guarded
from fedpriv.common.doing import doing
from fedpriv.report.live.task import task
from fedpriv.studies.site.inputs import read_all
from fedpriv.studies.site.pages import write_pages
from fedpriv.studies.site.publishing import check_target, replace_site

OPTIONS: dict[str, str | None] = {"results": "docs/results", "out": "site"}


def build(results: Path, out: Path) -> int:
    """Makes the site and returns its number of pages. Raises `OptionError`, `RunFolderError`."""
    check_target(results, out)
    found = read_all(results)
    with replace_site(out) as folder:
        return write_pages(found, folder)


def main(arguments: Sequence[str]) -> int:
    return guarded(lambda: _main(list(arguments)))


def _main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return DONE
    options = command_options(arguments, OPTIONS, "fedpriv.site")
    out = Path(options["out"]).expanduser()
    with task("site"):
        doing("reading the results")
        count = build(Path(options["results"]).expanduser(), out)
    print(f"{count} page{'s' * (count != 1)}: open {out / 'index.html'}")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
