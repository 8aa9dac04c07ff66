"""A job of a study: one run, plan, audit or attack, named by what decides its result, and what is done for each kind.

The name is the method and a digest of the composed options, without the seed (which stands beside it), without those
that only the operator or a person who looks on needs, and without paths: of pictures and of a split, their contents
count. No line of code is in it, so code can move; that today's code gives what it gave before is for tests to hold
(``tests/studies/test_committed_runs.py``).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.common.command_line import guarded
from fedpriv.common.errors import RunFailed, RunFolderError
from fedpriv.common.stopping import stop
from fedpriv.config.data_schema import KNOWN_SETS
from fedpriv.report.views import PRIVATE

if TYPE_CHECKING:
    from fedpriv.config.schema import Config
    from fedpriv.privacy.events import Event
    from fedpriv.privacy.private_selection import Trials

#: Of every job: nothing that only a person who looks at one run needs, and one core each.
QUIET = ("engine=inprocess", "engine.threads_per_client=1", "operations.report=false")

#: Kinds whose options are their own, and not those of `python -m fedpriv`.
WITHOUT_CONFIG = ("dme", "computed")
#: Kinds that take a second and train nothing: made also where nothing is to be run.
NO_RUNS = ("plan", "tuning", "computed")
#: What a person types for a job of a kind, where it is not `python -m fedpriv`.
MODULES = {
    "plan": "fedpriv plan=true",
    "tuning": "fedpriv plan=true",
    "audit": "fedpriv.audit",
    "dme": "fedpriv.dme",
    "computed": "fedpriv.studies.computations",
}


@dataclass(frozen=True, eq=False)
class Job:
    """``kind``: a training run (train), what one would cost (plan) and what choosing its options would (tuning), an
    audit of its release code (audit), a run and an attack on its model (attack), mean estimation by all quantisers
    (dme), or a figure without any run (computed).

    options: overrides of `python -m fedpriv` (`WITHOUT_CONFIG`: its own options), without the seed. extra: options of
    the audit or of the price of tuning, or the attack's name. Two jobs are the same where their names are, however
    their options were written.
    """

    kind: str
    options: tuple[str, ...]
    seed: int
    extra: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def name(self) -> str:
        """A folder name: the method, and a digest of everything that decides the result."""
        chosen = dict(option.split("=", 1) for option in self.options if "=" in option)
        what = self.kind if self.kind in WITHOUT_CONFIG else f"{self.kind}-{chosen.get('strategy', 'default')}"
        return f"{what}-{_digest(self.kind, self.options, self.extra)}-s{self.seed}"

    @property
    def overrides(self) -> list[str]:
        return [*self.without_seed, f"seed={self.seed}"]

    @property
    def without_seed(self) -> tuple[str, ...]:
        return (*self.options, *_quiet(self.options))

    @property
    def command(self) -> str:
        """What a person types for the same result."""
        words = [f"'{option}'" if set(option) & set("{}[]$ ") else option for option in portable(self.options)]
        module = MODULES.get(self.kind, "fedpriv")
        if self.kind == "computed":
            return " ".join(["python -m", module, *words])
        extra = self.extra if self.kind == "audit" else ()
        return " ".join(["python -m", module, *words, f"seed={self.seed}", *extra])


@lru_cache(maxsize=4096)
def _digest(kind: str, options: tuple[str, ...], extra: tuple[str, ...]) -> str:
    """Of all that decides a result but the seed: the composed options (composing takes a fifth of a second)."""
    if kind in WITHOUT_CONFIG:
        content: Any = portable(options) if kind == "computed" else options
    else:
        from fedpriv.config.compose import compose

        config = compose([*options, *_quiet(options)])
        content = config.deciding()
        content.pop("seed")
        if config.dataset.name not in KNOWN_SETS:  # which pictures these are, only the folder says
            content["dataset"]["pictures"] = _contents(str(config.dataset.root))
        if (split := config.dataset.split) is not None:  # its rows count, wherever the file is
            with suppress(OSError):
                stat = os.stat(split)
                content["dataset"]["split"] = _rows(split, stat.st_mtime_ns, stat.st_size)
    text = json.dumps([kind, extra, content], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


@lru_cache(maxsize=64)
def _rows(split: str, changed: int, size: int) -> str:
    """A digest of a split's file as it was then."""
    return hashlib.sha256(Path(split).read_bytes()).hexdigest()


@lru_cache(maxsize=64)
def _contents(root: str) -> str:
    """A digest of a folder's files: their names and sizes, wherever the folder is."""
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(root).rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def _quiet(options: Sequence[str]) -> list[str]:
    given = {option.split("=")[0] for option in options}
    return [option for option in QUIET if option.split("=")[0] not in given]


#: Options that say where something is on this machine, and decide nothing.
PLACES = ("dataset.root", "dataset.cache", "dataset.download")


def portable(options: Sequence[str]) -> tuple[str, ...]:
    """The options without those that are true on one machine only; of a split's file, its name."""
    split = "dataset.split="
    named = (f"{split}{Path(o.removeprefix(split)).name}" if o.startswith(split) else o for o in options)
    return tuple(option for option in named if option.split("=")[0] not in PLACES)


# --- what is done for a job ---------------------------------------------------------------------------------

#: What a record of each kind holds; raised where `WORK` writes something new, or a figure that means something else, so
#: that older records are made again.
FORMS = {"train": 1, "plan": 1, "dme": 1, "computed": 1, "audit": 3, "attack": 2, "tuning": 1}


def _train(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.config.compose import compose
    from fedpriv.runs.start import resume_run, start_run

    if (path / "summary.json").exists():  # finished, whichever commit made it: its summary says which
        return lengths(path)
    if (path / "config.yaml").exists():
        try:
            resume_run(path)
            return lengths(path)
        except RunFolderError:  # begun by other code or with other libraries: its rounds cannot be repeated
            shutil.rmtree(path)
    start_run(compose(job.overrides), path)
    return lengths(path)


def lengths(path: Path) -> dict[str, float]:
    """Of a run that kept its clients' updates (`attack.keep_updates`): the mean length of a client's updates in the
    last third of the kept rounds over that in the first third, of the client in whom it is largest; infinite where a
    length is not finite, or the first ones are 0. Of another run, or where nobody was in every kept round: {}.
    """
    from safetensors.numpy import load_file

    from fedpriv.runs.folder import RunFolder

    files = RunFolder(path).updates().values()
    kept = [{k: float(np.linalg.norm(u)) for k, u in load_file(file).items() if k != "before"} for file in files]
    always, third = set(kept[0]).intersection(*kept) if kept else set(), max(1, len(kept) // 3)
    if not always:
        return {}
    lines = np.array([[one[client] for client in always] for one in kept])
    first, last = lines[:third].mean(0), lines[-third:].mean(0)
    good = np.isfinite(lines).all(0) & (first > 0)
    return {"length_left": float(np.where(good, last / np.where(good, first, 1), math.inf).max())}


def _attack(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.attacks.run import attack_run

    _train(job, path)
    (name,) = job.extra
    file = path / PRIVATE / "attacks" / f"{name}.json"
    file.unlink(missing_ok=True)  # of an earlier call, which this one's failure must not be taken for
    code = guarded(lambda: attack_run(str(path), name, {}))
    stop.check()
    if not file.exists():
        raise RunFailed(f"the attack {name} ended with exit code {code}")
    return attack_figures(json.loads(file.read_text(encoding="utf-8")))


def attack_figures(kept: Mapping[str, Any]) -> dict[str, float]:
    """Of a file of ``attacks/``: the balanced accuracy in percent with its interval, where the controls passed."""
    if not kept["shown"]:
        return {"shown": 0.0}
    ends, accuracy = {"": "value", "_low": "low", "_high": "high"}, kept["figures"]["balanced_accuracy"]
    found = {f"attack_accuracy{end}": 100 * accuracy[key] for end, key in ends.items()}
    return {"shown": 1.0, **found, "attack_auc": kept["figures"]["auc"]["value"]}


def _plan(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.common.files import json_number
    from fedpriv.config.compose import compose
    from fedpriv.report.words import THREAT_KEYS
    from fedpriv.runs.planning import plan_elsewhere
    from fedpriv.runs.preparation import resolve

    config, _, plan = resolve(compose(job.overrides), None)

    def verified(of: Any) -> dict[str, Any]:
        bounds = {name: json_number(getattr(of, name)) for name in ("verified_epsilon", "verified_median")}
        return bounds | {"accountant": of.accountant, "reasons": list(of.reasons)}

    privacy = {key: getattr(plan.threat, key, None) for key in THREAT_KEYS} | {
        "delta": config.privacy.delta,
        "variant": config.privacy.variant,
        "claimed_epsilon": json_number(plan.claim.epsilon) if plan.claim else None,
        "claimed_scope": plan.claim.scope if plan.claim else None,
        "claimed_equation": plan.claim.equation if plan.claim else None,
        **verified(plan),
        "others": [
            {key: getattr(other.threat, key, config.privacy.delta) for key in THREAT_KEYS} | verified(other)
            for other in plan_elsewhere(config)
        ],
    }
    summary = {
        "strategy": config.method,
        "dataset": config.dataset.name,
        "model": config.model.name,
        "rounds": config.num_rounds,
        "num_clients": config.num_clients,
        "clients_per_round": config.clients_per_round,
        "privacy": privacy,
        "traffic": {"bytes_up": plan.bytes_up, "bytes_down": plan.bytes_down},
    }
    return {"summary": summary}


def _audit(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.attacks.release_audit import audit_config
    from fedpriv.common.files import json_number
    from fedpriv.config.compose import compose

    given = dict(option.split("=", 1) for option in job.extra)
    config = compose(job.overrides)
    participations = int(given["participations"]) if "participations" in given else None
    scopes = audit_config(
        config,
        trials=int(given.get("trials", 200_000)),
        confidence=float(given.get("confidence", 0.99)),
        seed=job.seed,
        participations=participations,
    )
    figures: dict[str, Any] = {}
    words = []
    for scope in scopes:
        short = scope.name.replace(" ", "_")
        figures |= {f"audited_{short}": scope.audit.epsilon_lower, f"verified_{short}": scope.verified}
        figures |= {} if scope.claimed is None else {f"claimed_{short}": scope.claimed}
        words.append(f"{scope.name}: {scope.verdict}")
    largest = max(scopes, key=lambda scope: scope.audit.epsilon_lower)
    privacy = {
        "delta": config.privacy.delta,
        "variant": config.privacy.variant,
        "claimed_epsilon": None if largest.claimed is None else json_number(largest.claimed),
        "verified_epsilon": json_number(largest.verified),
        "audited_epsilon": json_number(largest.audit.epsilon_lower),
        "audited_confidence": largest.audit.confidence,
        "audited_trials": largest.audit.trials,
        "reasons": words,
    }
    summary = {"strategy": config.method, "dataset": config.dataset.name, "privacy": privacy}
    refuted = any(scope.verdict.startswith("refutes") for scope in scopes)
    return {"summary": summary, "refuted": float(refuted), **figures}


def _dme(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.common.command_line import read_options
    from fedpriv.studies.mean_estimation import Options, table

    given = dict(option.split("=", 1) for option in job.options)
    options = read_options(Options, given | {"seed": job.seed, "out": path / "dme"})
    figures: dict[str, Any] = {}
    for row in table(options):
        figures |= {f"{row.quantiser} error": row.error, f"{row.quantiser} epsilon": row.epsilon_server}
    return {"summary": {"strategy": "dme", "privacy": {}}, **figures}


def _computed(job: Job, path: Path) -> dict[str, Any]:
    from fedpriv.studies.computations import compute

    return {"summary": {"strategy": "computed", "privacy": {}}, **compute(job.options)}


WORK: dict[str, Callable[[Job, Path], dict[str, Any]]] = {
    "train": _train,
    "plan": _plan,
    "audit": _audit,
    "attack": _attack,
    "dme": _dme,
    "tuning": lambda job, path: price(job.overrides, job.extra),
    "computed": _computed,
}


# --- the price of choosing options --------------------------------------------------------------------------

#: Laws of the number of trials; which of them is cheapest follows from the options alone.
LAWS = ("poisson", "geometric", "logarithmic")
#: How close the epsilon of one run is brought to what the choice leaves for it.
_CLOSE = 1e-3


def price(options: Sequence[str], extra: Iterable[str]) -> dict[str, object]:
    """Figures of a job of this kind. trials alone: what that many trials and the last run cost composed, and what the
    best of a random number with that mean. With a law: which epsilon one of its trials may have for the choice to meet
    privacy.target_epsilon. end=OPTION=VALUE: the ends of the ranges that trials draw from. An option may change what a
    run of the same epsilon releases, and so what the choice costs: the dearest end counts, and what lies between two
    ends is taken to cost no more than one of them.
    """
    from fedpriv.config.compose import compose
    from fedpriv.privacy.private_selection import composed_epsilon, selection_epsilon, with_mean
    from fedpriv.runs.preparation import resolve

    given = [option.split("=", 1) for option in extra]
    asked, ends = dict(given), [value for name, value in given if name == "end"]
    config, trials = compose(list(options)), int(asked["trials"])
    delta, target = config.privacy.delta, config.privacy.target_epsilon
    assert target is not None, "a job of a target"
    if "law" not in asked:
        events = run_events(resolve(config, None)[0])
        priced = {law: max(selection_epsilon(one, delta, with_mean(law, trials)) for one in events) for law in LAWS}
        law = min(priced, key=lambda name: priced[name])
        composed = max(composed_epsilon(one, delta, trials + 1) for one in events)
        return {"summary": {"law": law}, "composed": composed, "random": priced[law]}
    law_of_trials, kinds = with_mean(asked["law"], trials), [config]
    plain = run_events(resolve(config, None)[0])
    for end in ends:
        other = compose([*options, end])
        if run_events(resolve(other, None)[0]) != plain:
            kinds.append(other)

    def chosen(one: float) -> float:
        return max(_of_choice(kind, one, law_of_trials) for kind in kinds)

    low, high, found = 0.0, target, 0.0
    while high - low > _CLOSE * target:
        middle = (low + high) / 2
        if (cost := chosen(middle)) <= target:
            low, found = middle, cost
        else:
            high = middle
    one = float(f"{low:.4g}")
    while one > 0 and (found := chosen(one)) > target:  # rounding may have gone up
        one = float(f"{one * (1 - _CLOSE):.4g}")
    return {"summary": {"law": asked["law"]}, "one": one, "chosen": found if one > 0 else None}


def _of_choice(config: Config, epsilon: float, trials: Trials) -> float:
    from fedpriv.privacy.private_selection import selection_epsilon
    from fedpriv.runs.preparation import resolve

    with_epsilon = config.model_copy(update={"privacy": config.privacy.model_copy(update={"target_epsilon": epsilon})})
    resolved = resolve(with_epsilon, None)[0]
    return max(selection_epsilon(events, config.privacy.delta, trials) for events in run_events(resolved))


def run_events(config: Config) -> list[list[Event]]:
    """All that a client releases in a run against `privacy.target_observer`, for each kind of client."""
    from fedpriv.client.build import make_client
    from fedpriv.runs.planning import most_participations, planned_histories, schedule, target_threat

    client = make_client(config)
    threat = target_threat(config, client)
    if threat != client.threat:
        return [client.planned_events(most_participations(config), threat)]
    return list(planned_histories(config, schedule(config))[0].values())
