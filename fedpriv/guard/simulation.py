"""Guarded machines in one process, for research: the guard's own shards, clipping, noise and account, and no network.

The app runs in a sandbox, as on a node, or (confined=False, for code that one trusts) in this process, where a start
takes milliseconds. A secure sum is added up in the open: it gives the same numbers. Noise comes from the seed: what
leaves a simulation is nobody's secret.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from numpy.typing import NDArray

from fedpriv.common.errors import OptionError, RunFailed
from fedpriv.deployment.guard_policy import GuardPolicy
from fedpriv.guard.arrays import Model, fit_content, model_of
from fedpriv.guard.record import reply_arrays, request_bytes
from fedpriv.guard.release import Terms, claimed_epsilon, with_epsilon
from fedpriv.guard.sandbox import Answer, Limits, Sandbox
from fedpriv.guard.shards import Shards, Starts
from fedpriv.guard.trial import message_of
from fedpriv.mechanisms.integer_noise import as_residues, centred, to_residues
from fedpriv.mechanisms.noise import SeededNoise, encode_key

#: Numbers of a model at most.
LARGEST = 10**8


@dataclass(frozen=True)
class Simulated:
    """What a simulation gives. arrays: the last model; terms: with the noise that was used; epsilon: of all rounds."""

    arrays: ArrayRecord
    terms: Terms
    epsilon: float


def simulate_guard(
    app: str | Path,
    tables: Sequence[str | Path],
    rules: Mapping[str, Any],
    arrays: ArrayRecord,
    rounds: int = 1,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    run_config: Mapping[str, Any] | None = None,
    train_config: Mapping[str, Any] | None = None,
    seed: int = 0,
    confined: bool = True,
    server_learning_rate: float = 1.0,
    each_round: Callable[[int, ArrayRecord], None] | None = None,
) -> Simulated:
    """FedAvg of a Flower app on guarded machines, one for each table (a CSV or Parquet file, or a folder).

    app: the unpacked app's folder. rules: a policy's section ``guard`` without ``apps`` and ``table``; with epsilon its
    noise_multiplier is chosen, and epsilon=inf simulates without noise. run_config: beside what the app's
    pyproject.toml says. train_config: what a server's strategy tells the app beside the round. server_learning_rate:
    what the mean answer is multiplied by, as in Flower's FedAvgM. each_round: called with every round's model. Raises
    `OptionError`; `RunFailed` where fewer of the first round's starts answer than the rules' min_answered (0.9).
    """
    place, files = Path(app).resolve(), [Path(table).resolve() for table in tables]
    given = {"noise_multiplier": 1.0, "sites": len(files), **rules, "apps": ()}
    if given.get("noise", "own") != "own":
        given = {"min_replies": len(files), **given}
    policies = [GuardPolicy.model_validate({**given, "table": file.name}) for file in files]
    model = model_of(RecordDict({"arrays": arrays}), LARGEST)
    terms = Terms.of(policies[0])
    noiseless = epsilon == float("inf")
    if epsilon is not None and not noiseless:
        terms = with_epsilon(terms, model.size, rounds, delta, epsilon)
    config = _config(place) | dict(run_config or {})
    with ExitStack() as stack:
        copies = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedpriv-guard-")))
        salt = encode_key("guard salt", seed).ljust(32, b"\0")[:32]
        parts = [_divided(copies / str(n), file, policies[n], salt) for n, file in enumerate(files)]
        ask = stack.enter_context(
            _sandboxed(place, parts, policies[0], model) if confined else in_process(place, policies[0].node_config)
        )
        for number in range(1, rounds + 1):
            releases, starts = [], Starts()
            told = {"server-round": number, **(train_config or {})}
            for client, (shards, seen) in enumerate(parts):
                source = SeededNoise(seed, client, number, 0, "guard")
                content = RecordDict({"arrays": model.record(model.vector), "config": ConfigRecord(told)})
                if policies[0].api == "numpy":
                    content = fit_content(model, told)
                found = []
                for shard in terms.drawn(source):
                    place_of = shards[shard]
                    answer = None if place_of is None else ask(client, place_of, seen, content, config)
                    starts.add(model, answer)
                    found.append(model.answer(None if answer is None else answer.arrays, terms.reply))
                if noiseless:
                    clipped = [terms.clipped(one).numpy() / terms.clip for one in found]
                    releases.append(np.sum(clipped, axis=0) if clipped else np.zeros(model.size))
                else:
                    releases.append(terms.release(found, model.size, source).numpy())
            if number == 1 and not starts.enough(policies[0]):
                raise RunFailed(f"min_answered={policies[0].min_answered:g} asks for more: {starts}")
            mean = server_learning_rate * mean_of(terms, model.size, releases, noiseless)
            vector = model.vector + mean if terms.reply == "difference" else mean
            model = Model(model.key, {name: array.numpy() for name, array in model.record(vector).items()})
            if each_round is not None:
                each_round(number, model.record(model.vector))
    spent = float("inf") if noiseless else claimed_epsilon(terms, model.size, rounds, delta)
    return Simulated(model.record(model.vector), terms, spent)


def mean_of(terms: Terms, size: int, releases: Sequence[NDArray[Any]], noiseless: bool) -> NDArray[np.float64]:
    """Over all machines' shards (float64 [d])."""
    if terms.in_sum and not noiseless:
        total = np.zeros(size, np.uint64)
        for part in releases:
            total += to_residues(part, terms.bits)
        summed = terms.grid(size).decode(centred(as_residues(total, terms.bits), terms.bits))
    else:
        summed = np.sum(releases, axis=0, dtype=np.float64)
    found: NDArray[np.float64] = summed * (terms.clip / (terms.expected * len(releases)))
    return found


def _divided(copy: Path, file: Path, policy: GuardPolicy, salt: bytes) -> tuple[list[Path | None], Path]:
    """A machine's shards that are asked, and where an app finds its data."""
    (copy / ".fedpriv").mkdir(parents=True)
    if not file.exists():
        raise OptionError("tables", file, "there is no such file or folder")
    (copy / file.name).symlink_to(file)
    shards = Shards(copy, policy, salt)
    return shards.asked(), shards.place


def _config(app: Path) -> dict[str, Any]:
    from flwr.common.config import get_fused_config_from_dir

    try:
        return dict(get_fused_config_from_dir(app, {}))
    except (OSError, ValueError, KeyError) as error:
        raise OptionError("app", app, f"must be a Flower app's folder ({' '.join(str(error).split())[:200]})") from None


Ask = Callable[[int, Path, Path, RecordDict, dict[str, Any]], Answer]


def _context(client: int, place: Path, config: dict[str, Any], told: Mapping[str, Any]) -> Context:
    """told: a policy's node_config."""
    return Context(1, client + 2, {"partition-id": client, "data-path": str(place), **told}, RecordDict(), config)


@contextmanager
def _sandboxed(
    app: Path, parts: Sequence[tuple[list[Path | None], Path]], policy: GuardPolicy, model: Model
) -> Iterator[Ask]:
    limits = Limits.of(policy, 2 * model.num_bytes + 2**16)
    with ExitStack() as stack:
        boxes = [stack.enter_context(Sandbox(app, place, limits)) for _, place in parts]

        def ask(client: int, shard: Path, place: Path, content: RecordDict, config: dict[str, Any]) -> Answer:
            request = request_bytes(
                message_of(content, node=client + 2), _context(client, place, config, policy.node_config)
            )
            return boxes[client].ask(request, shard)

        yield ask


@contextmanager
def in_process(app: Path, told: Mapping[str, Any]) -> Iterator[Ask]:
    """The app's own code, imported here: no sandbox, no fresh state, and its shard under its real name. told: a
    policy's node_config.
    """
    from flwr.common.config import get_project_config

    reference = get_project_config(app)["tool"]["flwr"]["app"]["components"]["clientapp"]
    module, _, name = reference.partition(":")
    package = module.partition(".")[0]
    before = {key: found for key, found in sys.modules.items() if key.partition(".")[0] == package}
    for key in before:  # of another app of this name
        del sys.modules[key]
    importlib.invalidate_caches()
    sys.path.insert(0, str(app))
    try:
        client_app = getattr(importlib.import_module(module), name)

        def ask(client: int, shard: Path, place: Path, content: RecordDict, config: dict[str, Any]) -> Answer:
            message = message_of(content, node=client + 2)
            try:
                found = tuple(reply_arrays(client_app(message, _context(client, shard, config, told)), message))
            except Exception as error:  # as in a sandbox: an answer like any other
                return Answer(None, 0.0, f"{type(error).__name__}: {error}")
            return Answer(found, 0.0, None)

        yield ask
    finally:
        sys.path.remove(str(app))
        for key in [key for key in sys.modules if key.partition(".")[0] == package]:
            del sys.modules[key]
        sys.modules.update(before)
