"""Whose a run's folder is, and what that decides: which code it may name, and which places of this machine.

A folder that this user's own commands wrote carries a tag, HMAC-SHA256 of its config.yaml (a sweep's: of sweep.json)
under a key that lies in the user's configuration folder. Any other folder is data: code that it names is imported only
where the user says its dotted path and the SHA-256 of its file (`trust`), and what this machine reads, writes or
connects to the user says again.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedpriv.common import places
from fedpriv.common.errors import CodeRefused, OptionError, RunFolderError
from fedpriv.common.files import open_regular, write_atomic
from fedpriv.common.run_files import bytes_in
from fedpriv.config.method_pairs import target
from fedpriv.config.schema import Config
from fedpriv.config.strategy_options import HALVES

KEY_BYTES = 32
#: In a run's or a sweep's folder.
OWNER = ".owner"

#: Options whose value is the path of a file or folder, or null.
FILES = (
    *("dataset.root", "dataset.test_root", "dataset.cache", "dataset.split", "dataset.schema_file"),
    *("model.weights", "features.weights", "operations.log_file", "tracking.folder"),
)

#: Options that say what a machine reads, writes or connects to, and their values where they say nothing.
PLACES: dict[str, object] = {
    **dict.fromkeys(FILES),
    **dict.fromkeys(("engine.address", "operations.metrics_port", "tracking.mlflow_address")),
    "operations.metrics_address": "127.0.0.1",
    "tracking.kinds": (),
    "tracking.wandb_mode": "offline",
}

_trusted: set[str] = set()  # PATH@SHA256, as the user of this process said


def trust(said: str) -> None:
    """From now on, this process may import the code that folders of others name as ``said``: PATH@SHA256, the dotted
    path as in the folder's config.yaml and the digest of the file that this machine has of it. Raises `OptionError`.
    """
    for one in said.split(","):
        if not re.fullmatch(r"[\w.]+\.\w+@[0-9a-f]{64}", one):
            words = "must be the dotted path of the code and the SHA-256 of its file: package.module.name@<64 digits>"
            raise OptionError("trust_code", one, words)
        path, _, digest = one.partition("@")
        if (now := _digest(path)) != digest:
            words = "there is no such file here" if now is None else f"that file has the SHA-256 {now} here"
            raise OptionError("trust_code", one, words)
        _trusted.add(one)


def _digest(path: str) -> str | None:
    file = places.file_of(path.rpartition(".")[0])
    return None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def mark_own(folder: Path, name: str) -> None:
    """Says that this user wrote the file ``name`` of a folder. Without a place for the key it stays unmarked."""
    with suppress(OSError, RuntimeError):
        write_atomic(folder / OWNER, _tag(bytes_in(folder, name), name) + "\n", durable=False)


def is_own(folder: Path, name: str) -> bool:
    """Whether this user wrote the file ``name`` of a folder, as it is now."""
    with suppress(OSError, RuntimeError):
        return hmac.compare_digest(bytes_in(folder, OWNER, 100).strip(), _tag(bytes_in(folder, name), name).encode())
    return False


def _tag(content: bytes, name: str) -> str:
    return hmac.new(_key(), name.encode() + b"\0" + content, hashlib.sha256).hexdigest()


def _key() -> bytes:
    """This user's secret, made when it is first needed. Raises OSError, and RuntimeError for a user without a home."""
    place = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "fedpriv"
    if not (place / "owner.key").exists():
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = place / f".owner.{secrets.token_hex(8)}"
        write_atomic(fresh, secrets.token_bytes(KEY_BYTES), mode=0o600)
        try:
            os.link(fresh, place / "owner.key")  # of two at once the first counts
        except FileExistsError:
            pass
        except OSError:  # no hard links here
            os.rename(fresh, place / "owner.key")
        finally:
            fresh.unlink(missing_ok=True)
    with open_regular(place / "owner.key") as file:
        about, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES or (hasattr(os, "getuid") and (about.st_uid != os.getuid() or about.st_mode & 0o022)):
        raise OSError(errno.EPERM, "is not a key that this user alone can have written", str(place / "owner.key"))
    return key


@contextmanager
def own_code_only(folder: Path) -> Iterator[None]:
    """Context in which somebody else's configuration is checked: its methods are the project's, or trusted."""

    def refuse(name: str) -> None:
        if not places.is_ours(name) and not any(said.startswith(f"{name}.") for said in _trusted):
            raise CodeRefused(_names_code(folder, {"strategy": f"{name}.CLASS"}))

    token = places.refusal.set(refuse)
    try:
        yield
    finally:
        places.refusal.reset(token)


def refuse_code(config: Config, folder: Path, said: Collection[str]) -> None:
    """Raises `CodeRefused` where somebody else's configuration names code that the user did not. said: the options
    that the user gave.
    """
    named = {
        **config.code,
        "strategy.server._target_": config.strategy.server,
        "strategy.client._target_": config.strategy.client,
    }
    if (other := config.privacy.mechanism) is not None:
        named |= {f"strategy.{half}._target_ of privacy.mechanism={other}": target(other, half) for half in HALVES}
    found = {
        option: path
        for option, path in named.items()
        if path and "." in path and not is_said(option, said) and f"{path}@{_digest(path)}" not in _trusted
        if not ("_target_" in option and places.is_ours(path.rpartition(".")[0]))
    }
    if found:
        raise CodeRefused(_names_code(folder, found))


def _names_code(folder: Path, found: dict[str, str]) -> str:
    named = ", ".join(f"{option}={path}" for option, path in found.items())
    consent = ",".join(f"{path}@{_digest(path) or 'SHA256 (there is no such file here)'}" for path in found.values())
    words = "this user's commands did not write this folder, so no code that it names is imported"
    return f"{folder}: {words} ({named}); where you have read that code: trust_code={consent}"


def refuse_places(config: Config, folder: Path, said: Collection[str]) -> None:
    """Raises `RunFolderError` where somebody else's configuration says what this machine reads, writes or connects to
    and the user did not say it again.
    """
    raw = config.to_dict()
    found = []
    for option, silent in PLACES.items():
        section, _, name = option.rpartition(".")
        value = (raw.get(section, {}) if section else raw).get(name, silent)
        if (tuple(value) if isinstance(value, list) else value) != silent and not is_said(option, said):
            found.append(f"{option}={value}")
    if found:
        words = "this user's commands did not write this folder, and it names what this machine reads, writes or"
        raise RunFolderError(f"{folder}: {words} connects to ({', '.join(found)}): say each of these again")


def is_said(option: str, said: Collection[str]) -> bool:
    """Whether an option, or the group that it belongs to, is among those that the user gave."""
    return option in said or option.partition(".")[0] in said
