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
from pathlib import Path

from fedpriv.common.command_line import command, path_of, shown
from fedpriv.common.printing import say


@command
def main(
    folder: Path, *, out: str = "", verifier: bool = False, key: str = "", policy: str = "", credentials: str = ""
) -> None:
    from fedpriv.certificates.making import of_any

    places = {"policy": policy, "credentials": credentials, "key": key, "out": out}
    made = of_any(folder, **{name: path_of(place) for name, place in places.items()}, verifier=verifier)
    for path in made.files:
        say(shown(path))
    say(f"signed by the key {made.key}: tell it whoever is to check, on another way")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
