"""A run's folder: everything that a run writes and that a resumed run reads back.

Order at the end of a round: ledger, metrics, checkpoint. A resumed run cuts ledger and metrics back to its
checkpoint, together with the clients' memories, and repeats the rounds after it bit for bit.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save

from fedpriv.client.memories import Memories, once
from fedpriv.common.checksums import MODEL_FILES, TOKENIZER, damage, read_sums, write_sums
from fedpriv.common.doing import doing
from fedpriv.common.errors import RunFolderError
from fedpriv.common.files import JsonLines, write_atomic
from fedpriv.common.messages import FloatVector
from fedpriv.common.run_files import json_in, mapping_in, tensors_in, text_in
from fedpriv.common.versions import library_versions
from fedpriv.config.owner import mark_own
from fedpriv.config.schema import Config
from fedpriv.config.source_files import difference, source_files
from fedpriv.config.yaml_text import yaml_of
from fedpriv.data import Dataset
from fedpriv.privacy.events import Entry
from fedpriv.privacy.ledger import LedgerFile
from fedpriv.report.views import PRIVATE, ROUND, SUMMARY, joined, private_folder, seal, secret_cohorts, split
from fedpriv.runs.round_updates import RoundUpdates
from fedpriv.training.flat_model import Layout

#: Written with the first file of a run: what a resumed run without a checkpoint is checked against.
START = ".start.json"
#: Where an extended run has its earlier ends.
STAGES = "stages.json"
#: A folder that holds one of these has been used by a run.
RUN_FILES = ("config.yaml", "metrics.jsonl", "ledger.jsonl", "summary.json", "checkpoints", "snapshots", PRIVATE)

#: A checkpoint's; beside them the digests of all three.
CHECKPOINT_FILES = ("model.safetensors", "clients.safetensors", "checkpoint.json")


def remove_if_unused(path: Path) -> None:
    """A refused run leaves no folder."""
    if path.is_dir() and {inside.name for inside in path.iterdir()} == {".lock"}:
        (path / ".lock").unlink(missing_ok=True)
        path.rmdir()


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after ``round``: the global parameters, the strategy's and every client's memory."""

    round: int
    theta: FloatVector
    strategy: dict[str, Any]
    memories: Mapping[int, bytes]
    run: dict[str, Any]  # what session.py keeps: seconds so far, best accuracy
    vectors: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # of the strategy


class RoundLines:
    """metrics.jsonl, and in `PRIVATE` a file of that name with what outsiders may not see of a round."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._shown = folder, JsonLines(folder / "metrics.jsonl")
        self._rest = JsonLines(folder / PRIVATE / "metrics.jsonl", mode=0o600)

    @cached_property
    def secret(self) -> bool:
        """Whether the run's cohorts are."""
        from fedpriv.config.compose import read_config  # Hydra: a run sets ``secret`` itself

        return secret_cohorts(read_config(self._folder))

    def append(self, row: dict[str, Any]) -> dict[str, Any]:
        """Adds a round; returns its public line, the only one that monitors may be given."""
        shown, rest = split(row, ROUND, self.secret)
        private_folder(self._folder)
        self._rest.append({"round": row["round"], **rest})
        self._shown.append(shown)
        return shown

    def read(self) -> list[dict[str, Any]]:
        """Whole rows, as far as the private file is there."""
        rest = {row["round"]: row for row in self._rest.read()}
        return [joined(row, rest.get(row["round"], {})) for row in self._shown.read()]

    def keep(self, last_round: int) -> None:
        """Forgets the rounds after one."""
        private_folder(self._folder)
        for file in (self._shown, self._rest):
            file.keep(lambda row: row["round"] <= last_round)

    def settle(self, epsilon: float | str) -> None:
        """Gives the last round the epsilon of the whole run, which bounds that of every round before."""
        rows = self._shown.read()
        for row in rows:
            if float(row["epsilon_so_far"]) > float(epsilon):
                row["epsilon_so_far"] = epsilon
        self._shown.write([*rows[:-1], rows[-1] | {"epsilon_so_far": epsilon}])


class RunFolder:
    """Paths and formats of one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.metrics = RoundLines(self.path)
        self.ledger = LedgerFile(self.path / "ledger.jsonl", fsync=False)
        self._written: Written | None = None  # the last checkpoint of this process
        self.damaged: list[str] = []  # checkpoints that `load_checkpoint` passed over, in words

    # --- start -------------------------------------------------------------------------------------------

    def refuse_used(self) -> None:
        """Raises `RunFolderError` if a run's files are there already."""
        used = [name for name in RUN_FILES if (self.path / name).exists()]
        if used:
            raise RunFolderError(
                f"{self.path} holds a run already ({used[0]}): resume={self.path} goes on, rerun={self.path} repeats it"
            )

    def begin(self, config: Config, remark: str | None = None) -> None:
        """Takes an empty folder for a new run; `RunFolderError` if a run's files are there already.

        remark: what the summary's note is to say of the start.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.refuse_used()
        # First, so that a config.yaml without it cannot be: what the rounds before the first checkpoint stand on.
        write_atomic(self.path / START, json.dumps(self._basis(config) | {"remark": remark}, indent=1) + "\n")
        self.write_config(config)

    @property
    def remark(self) -> str | None:
        """What `begin` was told."""
        try:
            found = mapping_in(self.path, START).get("remark")
        except (OSError, ValueError, AttributeError):
            return None
        return found if isinstance(found, str) else None

    @staticmethod
    def _basis(config: Config) -> dict[str, Any]:
        """What a resumed run must have in common with its beginning to repeat rounds bit for bit: changed code would
        give other updates under the same noise keys.
        """
        return {"config": config.digest(), "versions": library_versions(), "files": source_files(config)}

    def _check_basis(self, found: dict[str, Any], file: Path, config: Config) -> None:
        """Raises `RunFolderError`: the rounds could not be repeated, and their noise would serve different updates."""
        then, now = found["versions"], library_versions()
        if then != now:
            changed = ", ".join(f"{k} {then.get(k)} -> {now.get(k)}" for k in then | now if then.get(k) != now.get(k))
            raise RunFolderError(f"{file} was made with other versions ({changed}): install those, or rerun")
        if changed := difference(found.get("files", {}), source_files(config)):
            raise RunFolderError(f"{file} was made by other code ({changed}): put that back, or rerun")
        before = {stage["config"] for stage in self.stages() if found.get("round", 0) <= stage["rounds"]}
        if found["config"] not in {config.digest(), *before}:
            raise RunFolderError(f"{file} was made with another configuration than {self.path / 'config.yaml'}")

    def write_config(self, config: Config) -> None:
        write_atomic(self.path / "config.yaml", yaml_of(config.to_dict()))
        mark_own(self.path, "config.yaml")

    # --- a finished run that goes on ---------------------------------------------------------------------

    def stages(self) -> list[dict[str, Any]]:
        """The run's earlier ends, oldest first: how many rounds it had then (rounds), the digest of its configuration
        (config), and what was claimed and verified (claimed_epsilon, verified_epsilon).
        """
        file = self.path / STAGES
        try:
            found = [dict(stage) for stage in json_in(self.path, STAGES)] if file.exists() else []
        except (OSError, TypeError, ValueError) as error:
            raise RunFolderError(f"{file}: cannot be read ({error})") from None
        return found

    def refuse_unrepeatable(self, config: Config) -> None:
        """Raises `RunFolderError` if the state after the last round is not there: the rounds before it would have to be
        done again.
        """
        checkpoint = self.load_checkpoint(config) if self.checkpoints() else None
        if checkpoint is None or checkpoint.round != config.num_rounds:
            have = (
                "no checkpoint" if checkpoint is None else f"its newest whole checkpoint is of round {checkpoint.round}"
            )
            words = f"the state after round {config.num_rounds} was not kept ({have}; checkpoint.every=0 keeps none)"
            raise RunFolderError(f"{self.path}: {words}: rerun={self.path} num_rounds=... begins anew")

    def add_stage(self, config: Config, summary: dict[str, Any]) -> None:
        """Notes this end of the run, and makes it an unfinished one. The summary stays, under another name."""
        figures = {name: summary["privacy"][name] for name in ("claimed_epsilon", "verified_epsilon")}
        stage = {"rounds": config.num_rounds, "config": config.digest(), **figures}
        earlier = [known for known in self.stages() if known["rounds"] < config.num_rounds]
        write_atomic(self.path / STAGES, json.dumps([*earlier, stage], indent=1) + "\n")
        (self.path / "summary.json").rename(self.path / f"summary-{config.num_rounds:06d}.json")

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").exists()

    # --- rounds ------------------------------------------------------------------------------------------

    def append_entries(self, entries: Iterable[Entry], together: bool) -> None:
        """together: a simulation's, where equal charges of one round share a line of the ledger."""
        self.ledger.append(entries, together)

    def save_checkpoint(self, checkpoint: Checkpoint, config: Config, keep: int) -> None:
        """Writes a checkpoint beside its place and moves it there as a whole; older ones beyond ``keep`` go."""
        folder = self.path / "checkpoints"
        temporary, final = folder / ".writing", folder / f"round-{checkpoint.round:06d}"
        shutil.rmtree(temporary, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        temporary.mkdir()
        try:
            vectors = {**checkpoint.vectors, "theta": checkpoint.theta}
            tensors = {name: torch.from_numpy(vector) for name, vector in vectors.items()}
            write_atomic(temporary / "model.safetensors", save(tensors))
            known = {} if self._written is None else digests(self._written)
            written = write_clients(temporary, f"{checkpoint.round:06d}", checkpoint.memories, self._written)
            rest = {
                "round": checkpoint.round,
                "strategy": checkpoint.strategy,
                "run": checkpoint.run,
                "ledger": self.ledger.mark(),
                **self._basis(config),
            }
            write_atomic(temporary / "checkpoint.json", json.dumps(rest, indent=1))
            names = (*CHECKPOINT_FILES, *earlier_files(temporary))
            write_sums(temporary, names, {name: known[name] for name in earlier_files(temporary) if name in known})
        except BaseException:
            self._written = None  # the next one holds everything
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        seal(folder)
        self._written = written
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        folder = self.path / "checkpoints"
        found = folder.iterdir() if folder.is_dir() else []
        return sorted(path for path in found if re.fullmatch(r"round-\d{6}", path.name))

    def load_checkpoint(self, config: Config) -> Checkpoint | None:
        """The newest whole checkpoint, or None where there is none at all; `damaged` names newer ones that are not.

        Raises `RunFolderError` if every one is damaged, or if it belongs to another configuration or other versions:
        the rounds after it could not be repeated bit for bit, and their noise would be used for different updates.
        """
        self.damaged = []
        if not self.checkpoints():
            self._check_start(config)
            return None
        for path in reversed(self.checkpoints()):
            doing(f"checking and reading the checkpoint {path.name}")
            if (wrong := damage(path, (*CHECKPOINT_FILES, *earlier_files(path)))) is None:
                return self._read_checkpoint(path, config)
            self.damaged.append(f"{path.name} is damaged ({wrong})")
        raise RunFolderError(f"{self.path / 'checkpoints'}: no checkpoint is whole: {'; '.join(self.damaged)}")

    def _read_checkpoint(self, path: Path, config: Config) -> Checkpoint:
        try:
            rest = mapping_in(path, "checkpoint.json")
            self._check_basis(rest, path, config)
            vectors = {name: found.numpy() for name, found in tensors_in(path, "model.safetensors").items()}
            theta = vectors.pop("theta")
            memories = read_clients(path)
        except RunFolderError:
            raise
        except Exception as error:
            raise RunFolderError(f"{path}: the checkpoint cannot be read ({error})") from None
        if "ledger" in rest and not self.ledger.agrees(rest["ledger"]):  # older checkpoints have none
            raise RunFolderError(
                f"{self.ledger.path}: damaged: it does not begin with what it held at {path.name}, so what the clients "
                f"have spent is not known; put the file back, or rerun={self.path}"
            )
        return Checkpoint(rest["round"], theta, rest["strategy"], memories, rest["run"], vectors)

    def _check_start(self, config: Config) -> None:
        file = self.path / START
        try:
            found = mapping_in(self.path, START)
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{file}: cannot be read ({error})") from None
        self._check_basis(found, file, config)

    @property
    def disturbed(self) -> bool:
        """A deadline or a lost worker shaped a round: the rounds after a checkpoint cannot be repeated bit for bit."""
        return (self.path / PRIVATE / "disturbed").exists()

    def mark_disturbed(self, why: str = "a deadline or a lost worker shaped a round") -> None:
        """Called before any reply of such a round is used."""
        if not self.disturbed:
            write_atomic(private_folder(self.path) / "disturbed", f"{why}\n", mode=0o600)

    def mark_other_basis(self, **found: str) -> None:
        """Disturbed is also a run that has something else than when it began: its clients' examples (`Examples.digest`)
        or the kind of processor, so that the same noise would hide other updates. Both are private: a digest of
        examples tells whoever guesses them whether they are right.
        """
        for name, value in found.items():
            file = f"{PRIVATE}/{name}"
            if (self.path / file).exists() and text_in(self.path, file, 1000).strip() != value:
                self.mark_disturbed(f"rounds of before are made again, with another: {name}")
            write_atomic(private_folder(self.path) / name, f"{value}\n", mode=0o600)

    def mark_extended(self, last_round: int) -> None:
        """Disturbed is also a run whose rounds after a checkpoint were made before it was extended: a budget, a
        schedule or code of the user's may follow num_rounds, so the same noise would hide other updates.
        """
        if any(stage["rounds"] > last_round for stage in self.stages()):
            self.mark_disturbed("rounds of before the extension are made again")

    def next_attempt(self) -> int:
        """A number that no earlier start of this run has used, written down before it is used: two crashes in the same
        round must not share a noise key.
        """
        path = self.path / "attempt"
        attempt = 1 + (int(text_in(self.path, path.name, 30)) if path.exists() else 0)
        write_atomic(path, f"{attempt}\n")
        return attempt

    def run_name(self) -> str:
        """This run's own name, the same after every restart: 32 hexadecimal digits."""
        path = self.path / "run-name"
        if not path.exists():
            write_atomic(path, secrets.token_hex(16) + "\n")
        return text_in(self.path, path.name, 100).strip()

    def cut_back(self, last_round: int) -> None:
        """Forgets metrics and ledger entries of rounds that will be repeated bit for bit."""
        self.metrics.keep(last_round)
        self.ledger.cut_back(last_round)

    # --- snapshots ---------------------------------------------------------------------------------------

    def save_snapshot(self, number: int, theta: FloatVector, layout: Layout) -> None:
        """snapshots/round-000005.safetensors: the global model [d] after a round, as model.safetensors has it."""
        (self.path / "snapshots").mkdir(exist_ok=True)
        write_atomic(self.path / "snapshots" / f"round-{number:06d}.safetensors", _named(theta, layout))

    def snapshots(self) -> dict[int, Path]:
        """Round -> file, in order of rounds."""
        found = sorted((self.path / "snapshots").glob("round-??????.safetensors"))
        return {int(path.stem.removeprefix("round-")): path for path in found}

    def cut_back_snapshots(self, last_round: int) -> None:
        """Forgets global models and clients' updates of rounds that will be computed again."""
        for number, path in [*self.snapshots().items(), *self.updates().items()]:
            if number > last_round:
                path.unlink()

    def save_updates(self, number: int, seen: RoundUpdates) -> None:
        """private/updates/round-000005.safetensors: what the server sent and received in a round, each [d]."""
        (private_folder(self.path) / "updates").mkdir(mode=0o700, exist_ok=True)
        tensors = {str(client): torch.from_numpy(update) for client, update in seen.updates.items()}
        content = save({"before": torch.from_numpy(np.ascontiguousarray(seen.before)), **tensors})
        write_atomic(self.path / PRIVATE / "updates" / f"round-{number:06d}.safetensors", content, mode=0o600)

    def updates(self) -> dict[int, Path]:
        """Round -> file, in order of rounds."""
        found = sorted((self.path / PRIVATE / "updates").glob("round-??????.safetensors"))
        return {int(path.stem.removeprefix("round-")): path for path in found}

    # --- end ---------------------------------------------------------------------------------------------

    def save_model(self, theta: FloatVector, layout: Layout, frozen: dict[str, torch.Tensor] | None = None) -> None:
        """model.safetensors: the parameters under the model's own names, and what is frozen of it."""
        write_atomic(self.path / "model.safetensors", _named(theta, layout, frozen))

    def save_best(self, theta: FloatVector, layout: Layout) -> None:
        """best.safetensors: the global model of the best evaluation so far, as a snapshot has it."""
        write_atomic(self.path / "best.safetensors", _named(theta, layout))

    def save_facts(self, dataset: Dataset) -> None:
        """classes.json: what using the model needs besides its parameters; public facts only. After `save_model`: the
        digests of both are written with it.
        """
        facts: dict[str, Any] = {
            "classes": dataset.classes,
            "shape": dataset.picture_shape,
            "mean": dataset.mean,
            "std": dataset.std,
        }
        if dataset.schema is not None:
            facts["schema"] = dataset.schema.model_dump(mode="json", exclude_none=True)
            if (said := dataset.schema.tokens) is not None and said.rule.has_file:
                write_atomic(self.path / TOKENIZER, Path(said.rule.kind).read_text(encoding="utf-8"))
        write_atomic(self.path / "classes.json", json.dumps(facts) + "\n")
        write_sums(self.path, MODEL_FILES)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """summary.json, and in `PRIVATE` a file of that name with what outsiders may not see."""
        shown, rest = split(summary, SUMMARY, self.metrics.secret)
        private = private_folder(self.path) / "summary.json"
        write_atomic(private, json.dumps(rest, indent=1, allow_nan=False) + "\n", mode=0o600)
        write_atomic(self.path / "summary.json", json.dumps(shown, indent=1, allow_nan=False) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """The whole summary, as far as the private file is there; None of a run that has not finished."""
        path, private = self.path / "summary.json", self.path / PRIVATE / "summary.json"
        if not path.exists():
            return None
        try:
            withheld = mapping_in(self.path, f"{PRIVATE}/summary.json") if private.exists() else {}
            return joined(mapping_in(self.path, path.name), withheld)
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path}: cannot be read ({error})") from None


def _named(theta: FloatVector, layout: Layout, frozen: dict[str, torch.Tensor] | None = None) -> bytes:
    flat = torch.from_numpy(np.ascontiguousarray(theta))
    return save({name: view.clone() for name, view in layout.split(flat)} | (frozen or {}))


# --- the memories of all clients in a checkpoint: what changed since the one before, and that one's own files ---------
#
# `clients.safetensors` holds the clients that took part since the last checkpoint; files of earlier ones
# (`clients-000010.safetensors`, by their round) are in the folder under a second name, as hard links: nothing is
# copied, and an older checkpoint may go. Of a client that is in several the newest counts. Where 1.2 times as many
# bytes would be kept as clients have, everything is written anew.

NEWEST = "clients.safetensors"
#: So many times the bytes of all clients may lie in the files together.
MOST_TIMES = 1.2
#: Bytes of a client in a file of memories beside its memory.
INDEX = 16
#: Bytes before the tensors of a file of memories: the header's length, and the header with spaces behind it.
ROOM = 512


class Written:
    """What the last checkpoint of this process holds.

    clock: of `Memories.changes`; places: client -> (number of the checkpoint whose file is its newest, bytes of its
    memory); files: number of a checkpoint -> bytes of its file, as long as it is somebody's newest; live: bytes of all
    memories.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.live = folder, 0, 0
        self.places: dict[int, tuple[str, int]] = {}
        self.files: dict[str, int] = {}
        self._clients: Counter[str] = Counter()

    def name(self, number: str) -> str:
        """Of a file in this checkpoint's folder."""
        return NEWEST if number == self.number else f"clients-{number}.safetensors"

    @property
    def number(self) -> str:
        return self.folder.name.removeprefix("round-")

    def take(self, number: str, sizes: Mapping[int, int], clock: int) -> None:
        """A further file, of the checkpoint ``number``, with memories of these sizes."""
        for client, size in sizes.items():
            before, old = self.places.get(client, ("", 0))
            self.places[client] = number, size
            self.live += size - old
            self._clients.update({number: 1, before: -1})
        self.files[number] = sum(sizes.values())
        self.files = {known: size for known, size in self.files.items() if self._clients[known] > 0 or known == number}
        self.clock = clock


def digests(last: Written) -> dict[str, str]:
    """Of the files of a checkpoint, under the names that they have in later ones; no file is read for it."""
    known = read_sums(last.folder)
    found = {number: known.get(last.name(number)) for number in last.files}
    return {f"clients-{number}.safetensors": digest for number, digest in found.items() if digest is not None}


def earlier_files(folder: Path) -> list[str]:
    """Names of the files of earlier checkpoints in a folder, oldest first."""
    return sorted(path.name for path in folder.glob("clients-*.safetensors"))


def write_clients(folder: Path, number: str, memories: Mapping[int, bytes], last: Written | None) -> Written:
    """Writes the files of the checkpoint ``number`` into a folder. last: what this process wrote before, which is
    changed to what it is now; None where that is unknown.

    Raises OSError that names the file where the disk is full.
    """
    changes = memories.changes(last.clock if last else 0) if isinstance(memories, Memories) else None
    if last is None or changes is None or not all((last.folder / last.name(one)).exists() for one in last.files):
        return _everything(folder, number, memories, changes[0] if changes else 0)
    clock, changed = changes
    superseded = (
        sum(last.files.values()) - last.live + sum(last.places[one][1] for one in changed if one in last.places)
    )
    if superseded > (MOST_TIMES - 1) * last.live:
        return _everything(folder, number, memories, clock)
    sizes = write_blobs(folder / NEWEST, Memories(changed, memories.__getitem__))
    before = {known: last.folder / last.name(known) for known in last.files}
    last.take(number, sizes, clock)
    last.folder = folder.parent / f"round-{number}"
    for known in last.files:
        if known == number:
            continue
        try:
            os.link(before[known], folder / last.name(known))
        except OSError:  # a file system without links
            shutil.copyfile(before[known], folder / last.name(known))
    return last


def _everything(folder: Path, number: str, memories: Mapping[int, bytes], clock: int) -> Written:
    written = Written(folder.parent / f"round-{number}")
    written.take(number, write_blobs(folder / NEWEST, memories), clock)
    return written


def read_clients(folder: Path) -> Memories:
    """What `write_clients` wrote, each read when it is asked for."""
    of: dict[int, Memories] = {}
    for name in (*earlier_files(folder), NEWEST):
        found = read_blobs(folder / name)
        of |= dict.fromkeys(found, found)
    return Memories(sorted(of), lambda client: of[client][client])


def write_blobs(path: Path, blobs: Mapping[int, bytes]) -> dict[int, int]:
    """A safetensors file of byte strings, of which one at a time is in memory; returns what each client takes of it. An
    object that several clients in a row have is written once.

    memories: uint8, of all after one another; clients: int64 [n]; places: int64 [n], which of the byte strings is
    whose; ends: int64 [m], where each of them ends. Raises OSError that names ``path`` where the disk is full.
    """
    sizes, places, ends, last = dict[int, int](), list[int](), [0], None
    try:
        with path.open("wb") as file:
            file.seek(ROOM)
            for client in blobs:
                blob = blobs[client]
                if blob is not last:
                    ends.append(ends[-1] + file.write(blob))
                sizes[client] = INDEX + (0 if blob is last else len(blob))
                places.append(len(ends) - 2)
                last = blob
            header, start = {"memories": {"dtype": "U8", "shape": [ends[-1]], "data_offsets": [0, ends[-1]]}}, ends[-1]
            for name, values in (("clients", list(sizes)), ("places", places), ("ends", ends[1:])):
                end = start + file.write(np.array(values, np.int64).tobytes())
                header[name] = {"dtype": "I64", "shape": [len(values)], "data_offsets": [start, end]}
                start = end
            file.seek(0)
            file.write((ROOM - 8).to_bytes(8, "little") + json.dumps(header).encode().ljust(ROOM - 8))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    return sizes


def read_blobs(path: Path) -> Memories:
    """What `write_blobs` wrote, each read when it is asked for. Raises ValueError for what it never writes."""
    file = safe_open(path, "numpy")
    clients, ends, content = file.get_tensor("clients"), file.get_tensor("ends"), file.get_slice("memories")
    whose = file.get_tensor("places")
    lengths, (total,) = np.diff(ends, prepend=0), content.get_shape()
    sound = clients.dtype == whose.dtype == ends.dtype == np.int64
    sound &= clients.shape == whose.shape == (len(set(clients.tolist())),) and ends.ndim == 1
    if not sound or (lengths < 0).any() or lengths.sum() != total or not np.isin(whose, np.arange(len(ends))).all():
        raise ValueError(f"{path}: its index is not that of its memories")
    parts = [slice(*place) for place in np.stack([ends - lengths, ends], axis=1).tolist()]
    places = {client: parts[place] for client, place in zip(clients.tolist(), whose.tolist(), strict=True)}

    @once
    def part(place: slice) -> bytes:
        return bytes(content[place].tobytes())

    return Memories(clients.tolist(), lambda client: part(places[client]))
