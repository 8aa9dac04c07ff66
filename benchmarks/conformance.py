"""The gallery of known faults as one JSON: programs, claims and right verdicts, for any checker of private code.

    python -m benchmarks.conformance out=conformance.json

A checker takes each program's ``source``, calls its ``target`` as ``about`` says of its ``form``, and is told the
``claim``. It conforms where it says "faulty" or "sound" as ``verdict`` does. ``loss`` is the epsilon of the worst pair
at the claim's delta (None: no finite one), ``bound`` what kind of figure that is.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.check_gallery import claim_of, loaded

GALLERY = Path("tests/checking/gallery")


def suite(gallery: Path = GALLERY) -> dict[str, Any]:
    """All that the JSON says.

    Args:
        gallery: The folder of the gallery, with its manifest.
    """
    known, patches = loaded(gallery / "manifest.py"), loaded(gallery / "patches.py")
    kind_of = {name: kind for kind, names in known.KINDS.items() for name in names.split()}
    texts = patches.programs()
    programs = [
        {
            "name": row.file,
            "verdict": "faulty" if row.faulty else "sound",
            "kind": kind_of.get(row.file),
            "form": row.form,
            "inputs": row.inputs,
            "claim": {"scope": "call", **claim_of(patches.file_of(row.file))},
            "loss": row.loss if math.isfinite(row.loss) else None,
            "bound": row.bound,
            "why": row.words,
            "reported": None if row.source == "own" else row.source,
            "source": texts[row.file],
        }
        for row in known.ROWS
    ]
    return {"name": "gallery of private releases", "version": 1, "about": known.__doc__, "programs": programs}


def main(arguments: Sequence[str]) -> None:
    given = dict(one.split("=", 1) for one in arguments)
    if set(given) != {"out"}:
        raise SystemExit(f"one option is needed, out=FILE.json; given: {', '.join(arguments) or 'none'}")
    Path(given["out"]).write_text(json.dumps(suite(), indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
