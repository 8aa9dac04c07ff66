"""`fedpriv certificate RUN_FOLDER` or `fedpriv certificate DATA_FOLDER policy=FILE credentials=FOLDER`: a signed file
from which anybody can compute the epsilon of a finished run, or of a node, again (docs/certificates.md).

    out=FOLDER          where certificate.json and certificate.html go; a run's own folder, a node's: `certificate`
    verifier=false      true: verify_certificate.py goes there too, which needs Python, numpy, scipy and mpmath alone
    key=FILE            of a run: the Ed25519 key that signs; without it the user's own, ~/.fedpriv/certificate.key,
                        made at its first use (FEDPRIV_HOME names another folder)
    policy=FILE         of a node: its policy, which names the ledger's counter
    credentials=FOLDER  of a node: its folder of credentials, whose identity.key signs

A certificate of a simulation is signed by whoever carried it out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedpriv.common.command_line import DONE, command, command_options, path_of, shown
from fedpriv.common.errors import OptionError
from fedpriv.common.printing import say

OPTIONS: dict[str, str | tuple[str, ...] | None] = {
    "out": "",
    "verifier": ("false", "true"),
    "key": "",
    "policy": "",
    "credentials": "",
}


@command(needs_arguments=True)
def main(arguments: Sequence[str]) -> int:
    place, *given = arguments
    if "=" in place:
        raise OptionError("FOLDER", place, "comes first: a run's folder, or a node's data folder")
    options = command_options(given, OPTIONS, "certificate", may_be_empty=tuple(OPTIONS))
    from fedpriv.certificates.making import of_any

    made = of_any(
        Path(path_of(place)),
        policy=path_of(options["policy"]),
        credentials=path_of(options["credentials"]),
        key=path_of(options["key"]),
        out=path_of(options["out"]),
        verifier=options["verifier"] == "true",
    )
    for path in made.files:
        say(shown(path))
    say(f"signed by the key {made.key}: tell it whoever is to check, on another way")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
