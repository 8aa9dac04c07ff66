"""What the certificate of one of Flower's own central-DP runs states: of its accountant's folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedpriv.certificates.assumptions import EVERYWHERE
from fedpriv.certificates.statement import check_undivided, ledger_lines, ledger_of, releases
from fedpriv.common.errors import RunFolderError
from fedpriv.common.files import json_number, read_regular
from fedpriv.common.versions import library_versions
from fedpriv.privacy.composition import compose
from fedpriv.privacy.ledger import LedgerFile
from fedpriv.runs.flower_accountant import ABOUT, LEDGER, TO_OUTSIDERS

ASSUMED = (
    "The server is trusted: it sees every update, clips, and adds noise that Flower draws with numpy, not with the "
    "operating system's generator, and that nobody can repeat: no program of it called numpy.random.seed.",
    "The ledger has what Flower told its accountant, which sees no update. In Flower's client-side twin each client "
    "clips, by the mod, and one that does not has no bound. Every update was finite: Flower neither refuses nor clips "
    "one that holds a NaN.",
    "Metrics that the strategy aggregates are not covered: none that tells of clients' data was shown to anybody.",
    "In the other world one client's update counts as zero; how many clients a round has is public.",
)


def of_accounted_run(folder: Path) -> dict[str, Any]:
    """Raises `RunFolderError` for a ledger that is torn or changed, and for one without a release."""
    ledger = LedgerFile(folder / LEDGER, fsync=False)
    content, about = ledger.read(), json.loads(read_regular(folder / ABOUT))
    if content.broken is not None or content.torn:
        words = f"line {content.broken or content.torn[0]} is torn, or does not follow from the lines before it"
        raise RunFolderError(f"{ledger.path}: {words}: what it recorded is not known")
    if not content.entries:
        raise RunFolderError(f"{ledger.path}: nothing was released yet")
    check_undivided(content, ledger.path)
    found = compose([entry.event for entry in content.entries], about["target_delta"])
    lines, rounds = ledger_lines(ledger.path), len(content.entries)
    name = hashlib.sha256(lines[0]).hexdigest()[:32]
    return {
        "kind": "run",
        "subject": {"name": folder.name, "deployed": True, "strategy": "Flower's own", "rounds": rounds},
        "protections": [
            {
                **vars(TO_OUTSIDERS),
                "delta": about["target_delta"],
                "epsilon": json_number(found.epsilon),
                "accountant": found.accountant,
                "limit": about["max_epsilon"],
                "audit": None,
            }
        ],
        "releases": releases([json.loads(line) for line in lines], node=False),
        "assumptions": [*EVERYWHERE, *ASSUMED],
        "digests": {
            "accountant": hashlib.sha256(read_regular(folder / ABOUT)).hexdigest(),
            "versions": library_versions(),
        },
        "ledger": ledger_of(name, lines),
        "heads": [],
    }
