"""A certificate of a run or a node, from the options of the command and of Python's call."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.certificates.accounted_run import of_accounted_run
from fedpriv.certificates.guarded_run import of_guarded_run
from fedpriv.certificates.signing import OF_NODE, OF_RUN, OF_SERVER, signer_of_node, signer_of_run
from fedpriv.certificates.statement import of_node, of_run, signed
from fedpriv.certificates.writing import write
from fedpriv.common.command_line import check_place
from fedpriv.common.errors import OptionError
from fedpriv.common.run_files import fitting, refuse_links
from fedpriv.config.owner import is_own
from fedpriv.deployment.data_ledger import PRIVATE
from fedpriv.runs.flower_accountant import ABOUT


@dataclass(frozen=True)
class Certificate:
    """content: what certificate.json holds; files: what was written."""

    content: dict[str, Any]
    files: tuple[Path, ...]

    @property
    def key(self) -> str:
        """The public key that signed, in hexadecimal digits."""
        return str(self.content["signer"]["key"])


def of_any(
    folder: Path,
    policy: str = "",
    credentials: str = "",
    key: str = "",
    out: str = "",
    verifier: bool = False,
) -> Certificate:
    """Raises `OptionError`, `RunFolderError`, `LedgerRefused`."""
    if (folder / PRIVATE).is_dir() and not (folder / "config.yaml").exists():
        return _of_node(folder, policy, credentials, key, out or "certificate", verifier)
    if wrong := next((name for name, value in (("policy", policy), ("credentials", credentials)) if value), None):
        words = f"is of a node, and {folder} is no data folder with a ledger: leave it out"
        raise OptionError(wrong, policy or credentials, words)
    guarded = not (folder / "config.yaml").is_file() and (folder / "plan.json").is_file()
    accounted = not (folder / "config.yaml").is_file() and (folder / ABOUT).is_file()
    if not guarded and not accounted and not (folder / "config.yaml").is_file():
        raise OptionError("FOLDER", str(folder), "must be a run's folder, or a node's data folder after `init`")
    if out:
        check_place("out", out)
    with fitting(folder):
        if not is_own(folder, "config.yaml"):
            refuse_links(folder)
        make = of_guarded_run if guarded else of_accounted_run if accounted else of_run
        made = signed(make(folder), signer_of_run(key), OF_SERVER if guarded or accounted else OF_RUN)
        return Certificate(made, tuple(write(made, Path(out) if out else folder, verifier)))


def _of_node(data: Path, policy: str, credentials: str, key: str, out: str, verifier: bool) -> Certificate:
    for name, value in (("policy", policy), ("credentials", credentials)):
        if not value or not Path(value).expanduser().exists():
            raise OptionError(name, value, "must name what this node was run with")
    if key:
        raise OptionError("key", key, "is of a run: a node's certificate is signed by its identity, in credentials=")
    check_place("out", out)
    if data.resolve() in (Path(out).resolve(), *Path(out).resolve().parents):
        raise OptionError("out", out, "must lie outside the data folder")
    made = signed(of_node(Path(policy).expanduser(), data), signer_of_node(credentials), OF_NODE)
    return Certificate(made, tuple(write(made, Path(out), verifier)))
