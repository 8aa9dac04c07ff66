"""The auditor against the project's own release code: sound everywhere, and not blind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import making
import numpy as np
import pytest
import torch
from conftest import Run
from reference.federation import NEVER_EMPTY, FixedUpdates

import fedpriv.client.method
from clients.dpsgd import DPSGDClient
from clients.fedcad import FedCADClient
from clients.fedldp import FedLDPClient
from fedpriv.attacks import release_audit
from fedpriv.attacks.client_canaries import audit_training
from fedpriv.attacks.release_audit import ALL_NUMBERS, DIMENSION, audit_config, audit_mechanism, planned_looks
from fedpriv.attacks.release_views import low_bits
from fedpriv.client.base import Client
from fedpriv.client.build import make_client
from fedpriv.client.contract import Neighbours, PublicFacts, Site
from fedpriv.client.memory import ClientMemory
from fedpriv.commands import audit as audit_command
from fedpriv.commands.audit import main
from fedpriv.common.command_line import read_arguments
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF, compose
from fedpriv.config.methods import ExampleLevelOptions
from fedpriv.config.own_options import group_choices
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import MANY, SeededNoise, add_normal_finely, add_normal_to_sum, clip, grid_step
from fedpriv.privacy.auditor import audit, verdict
from fedpriv.privacy.claimed import Claim
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.runs.planning import make_plan
from fedpriv.runs.start import start_run
from fedpriv.training.sequential import LocalData

DELTA = 1e-5
STRATEGIES = group_choices(CONF / "strategy")
TINY = ["num_clients=20", "clients_per_round=10", "num_rounds=2"]


def cases() -> list[tuple[str, ...]]:
    """Every method, both variants, and the options that change what is released."""
    variants = ("repaired", "published")
    found = [(f"strategy={name}", f"privacy.variant={variant}") for name in STRATEGIES for variant in variants]
    for variant in variants:
        for source in ("clipped", "unclipped"):
            adaptive = ("strategy.client.obsolete_factor=0.4", f"strategy.client.diff_source={source}")
            found.append(("strategy=fedcad", f"privacy.variant={variant}", *adaptive))
        found.append(
            (
                "strategy=fedcad",
                f"privacy.variant={variant}",
                "strategy.client.obsolete_factor=1",
                "strategy.client.sigma_diff=5",
            )
        )
        for rule in ("quantile", "geometric", "adp"):
            clipping = (f"privacy.variant={variant}", f"strategy.server.clipping={rule}")
            found.append(("strategy=fedldp", *clipping))
            found.append(("strategy=fedcad", *clipping, "strategy.client.obsolete_factor=0.4"))
        for name in ("agn", "dpfl_agn"):
            found.append((f"strategy={name}", f"privacy.variant={variant}", "strategy.client.clipping=adaptive"))
    for noise in (("quantile", "count_noise=0.7"), ("adp", "norm_noise=0.7")):  # the statistic tells most
        found.append(("strategy=fedldp", f"strategy.server.clipping={noise[0]}", f"strategy.client.{noise[1]}"))
    return found


#: Noise at which an auditor of 8,000 trials can see something: a sampled batch hides more than a whole client.
QUIET = ["strategy.client.noise_multiplier=2"]
#: One of sixty participations, of which the noise hides all.
OF_MANY = ["strategy.client.noise_multiplier=0.15"]
SAMPLED = ["strategy.client.noise_multiplier=0.7", "local.batch_size=60"]


def noise_for(case: tuple[str, ...]) -> list[str]:
    options = compose([case[0]]).strategy.options
    if isinstance(options, ExampleLevelOptions):
        return SAMPLED
    if case[0] in ("strategy=dpftrl", "strategy=dpsum", "strategy=ask", "strategy=moments"):
        return OF_MANY
    return QUIET if hasattr(options, "noise_multiplier") else []


@pytest.mark.rotates(3)
@pytest.mark.parametrize("case", cases(), ids=" ".join)
@pytest.mark.parametrize("participations", [1, 3])
def test_audited_is_at_most_verified(case: tuple[str, ...], participations: int) -> None:
    noisy = noise_for(case)
    client = make_client(compose([*case, *noisy]))
    found = audit_mechanism(client, participations, delta=DELTA, trials=8_000, confidence=0.999, seed=7)
    assert found.audit.epsilon_lower <= found.verified
    if noisy and math.isfinite(found.verified):
        assert found.audit.epsilon_lower > min(0.2 * found.verified, 4)  # a blind auditor would pass the line above


def test_claims_of_local_noise_are_refuted_under_replace_one() -> None:
    """The paper charges sensitivity C; any update against any other moves a clipped update by 2C."""
    client = make_client(compose(["strategy=fedldp", "strategy.client.noise_multiplier=4"]))
    found = audit_mechanism(client, 1, delta=DELTA, trials=400_000, confidence=0.999, seed=1)
    assert found.claimed is not None and found.claimed < 1.1
    assert found.verdict == "refutes the claim"
    elsewhere = verdict(found.audit, found.claimed, same_scope=False, verified=found.verified, expected=found.expected)
    assert elsewhere == "cannot tell"


def test_release_without_noise_is_an_infinite_lower_bound() -> None:
    found = audit_mechanism(
        make_client(compose(["strategy=fedavg"])), 1, delta=DELTA, trials=1000, confidence=0.95, seed=0
    )
    assert math.isinf(found.audit.epsilon_lower) and found.audit.structural == "updates are sent without noise"


# --- faults planted in the real client code --------------------------------------------------------------


class MemoryOnly:
    """A store in a variable."""

    blob: bytes | None = None

    def read(self) -> bytes | None:
        return self.blob

    def keep(self, memory: ClientMemory) -> None:
        self.blob = memory.to_bytes()


def participate(client: Client, number: int, updates: list[torch.Tensor], seed: int) -> list[np.ndarray]:
    """Real participations (`fit`) of client ``number`` with given updates in rounds 1, 2, ..."""
    site = Site(
        number, 1, lambda: LocalData(torch.zeros(0), torch.zeros(0)), None, MemoryOnly(), seed, "seeded", DELTA, None
    )  # type: ignore[arg-type]
    releases = []
    for server_round, update in enumerate(updates, 1):
        client.site = replace(site, trainer=FixedUpdates(lambda _, update=update: update, NEVER_EMPTY))  # type: ignore[arg-type]
        (release,), _, _ = client.fit([np.zeros(2, np.float32)], {"round": server_round, "attempt": 0})
        releases.append(release)
    return releases


def audit_fits(view: Callable[[bool, int], np.ndarray], trials: int = 1000) -> Any:
    """Audits what ``view(world, seed)`` shows of real participations, one call a trial; an attack without an error
    shows 4.1.
    """

    def sample(world: bool, n: int, seed: int) -> np.ndarray:
        return np.stack([view(world, 1_000_000 * seed % 2**40 + trial) for trial in range(n)])

    return audit(sample, delta=DELTA, trials=trials, confidence=0.999, seed=3)


def along_first_axis(length: float) -> torch.Tensor:
    return torch.tensor([length, 0.0])


def quiet_client() -> FedLDPClient:
    return making.client(FedLDPClient, noise_multiplier=8.0, clip_norm=1.0)


@cache
def truth() -> float:
    """Below 1.5."""
    return compose_events(quiet_client().planned_events(2), DELTA).epsilon


def two_rounds(world: bool, seed: int) -> np.ndarray:
    sign = -1.0 if world else 1.0
    first, second = participate(quiet_client(), 0, [along_first_axis(sign), along_first_axis(-sign)], seed)
    return np.concatenate([first, second, first - second])


def two_clients(world: bool, seed: int) -> np.ndarray:
    sign = -1.0 if world else 1.0
    (mine,) = participate(quiet_client(), 0, [along_first_axis(sign)], seed)
    (other,) = participate(quiet_client(), 1, [along_first_axis(0.0)], seed)
    return np.concatenate([mine, other, mine - other])


@pytest.mark.parametrize("view", [two_rounds, two_clients])
def test_sound_participations_pass(view: Callable[[bool, int], np.ndarray]) -> None:
    assert audit_fits(view).epsilon_lower <= truth()


def test_noise_reused_between_rounds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpriv.client.method, "SeededNoise", lambda seed, client, *rest: SeededNoise(seed, client))
    assert audit_fits(two_rounds).epsilon_lower > 2 * truth()


def test_generator_seeded_alike_for_two_clients_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedpriv.client.method, "SeededNoise", lambda seed, client, *rest: SeededNoise(seed, *rest))
    assert audit_fits(two_clients).epsilon_lower > 2 * truth()


class HalfTheNoise(FedLDPClient):
    def release(self, update: torch.Tensor, state: Any, noise: Any) -> Any:
        honest = making.client(FedLDPClient, noise_multiplier=self.noise_multiplier / 2, clip_norm=self.clip_norm)
        return honest.release(update, state, noise)


class BareCoordinate(FedLDPClient):
    def release(self, update: torch.Tensor, state: Any, noise: Any) -> Any:
        release = super().release(update, state, noise)
        release.value[..., 0] = update[..., 0]
        return release


class LongUpdates(FedLDPClient):
    """Audited with updates five times the clip norm, which clipping must undo."""

    def worst_case_pairs(self, participations: int) -> list[Neighbours]:
        return [Neighbours("long", (5.0,) * participations, (-5.0,) * participations)]


@pytest.mark.parametrize("faulty", [HalfTheNoise, BareCoordinate])
def test_planted_fault_in_the_release_is_found(faulty: type[FedLDPClient]) -> None:
    found = audit_mechanism(
        making.client(faulty, noise_multiplier=4.0, clip_norm=1.0),
        1,
        delta=DELTA,
        trials=200_000,
        confidence=0.999,
        seed=5,
    )
    assert found.audit.epsilon_lower > found.verified


def test_skipped_clipping_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    client = making.client(LongUpdates, noise_multiplier=4.0, clip_norm=1.0)
    sound = audit_mechanism(client, 1, delta=DELTA, trials=60_000, confidence=0.999, seed=5)
    assert sound.audit.epsilon_lower <= sound.verified
    monkeypatch.setattr("clients.fedldp.clip", lambda x, bound: x)
    found = audit_mechanism(client, 1, delta=DELTA, trials=60_000, confidence=0.999, seed=5)
    assert found.audit.epsilon_lower > found.verified


@dataclass(frozen=True)
class Sent:
    total: torch.Tensor


class FeedbackAfterClipping(FedLDPClient):
    """Error feedback whose difference, and not its first part alone, had to be clipped: opposite signs add up."""

    traits = replace(FedLDPClient.traits, State=Sent)

    def perturb(self, update: torch.Tensor, state: Sent | None, noise: Any) -> Any:
        release = super().perturb(update, None, noise)
        clipped = clip(update, self.clip_norm)
        before = torch.zeros_like(update) if state is None else state.total
        return replace(release, value=release.value - before, state=Sent(clipped))


class SlowMomentum(FedLDPClient):
    """Sound: an update as long as the clip norm moves what is clipped by a hundredth of it."""

    traits = replace(FedLDPClient.traits, State=Sent)

    def perturb(self, update: torch.Tensor, state: Sent | None, noise: Any) -> Any:
        before = torch.zeros_like(update) if state is None else state.total
        momentum = 0.99 * before + 0.01 * update
        return replace(super().perturb(momentum, None, noise), state=Sent(momentum))


@pytest.mark.parametrize(("kind", "sound"), [(FeedbackAfterClipping, False), (SlowMomentum, True)])
def test_what_a_state_lets_through_is_found_without_pairs_of_its_own(kind: type[FedLDPClient], sound: bool) -> None:
    client = making.client(kind, noise_multiplier=12.0, clip_norm=1.0)
    found = audit_mechanism(client, 8, delta=DELTA, trials=60_000, confidence=0.999, seed=5, own=DIMENSION)
    assert found.audit.epsilon_lower > 0.25 * found.verified
    assert (found.audit.epsilon_lower <= found.verified) == sound


# --- canaries in a real run ------------------------------------------------------------------------------


def canary_config(*more: str) -> Any:
    return compose(
        ["strategy=fedldp", "num_clients=400", "clients_per_round=200", "num_rounds=2", "local.batch_size=2", *more]
    )


def test_canary_clients_in_a_real_run() -> None:
    config = canary_config("strategy.client.noise_multiplier=2")
    found = audit_training(config, confidence=0.999, seed=0)
    assert 0.2 < found.epsilon_lower <= make_plan(config, Worker(config)).verified_epsilon


def test_canaries_find_skipped_clipping(monkeypatch: pytest.MonkeyPatch) -> None:
    config = canary_config("strategy.client.noise_multiplier=16")
    verified = make_plan(config, Worker(config)).verified_epsilon
    assert audit_training(config, confidence=0.999, seed=0).epsilon_lower <= verified
    monkeypatch.setattr("clients.fedldp.clip", lambda x, bound: x)
    assert audit_training(config, confidence=0.999, seed=0).epsilon_lower > verified


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=dpfedavg", "strategy.client.noise_multiplier=2"),
        ("strategy=fedags", "strategy.client.noise_multiplier=1"),
        ("strategy=dpfedsnlc", "strategy.client.selection=gumbel", "strategy.client.noise_multiplier=0.3"),
        ("strategy=cpsgd", "strategy.client.epsilon=20"),
        ("strategy=ddgauss", "strategy.client.noise_multiplier=0.2", "strategy.server.min_replies=200"),
    ],
)
def test_canary_gradients_in_a_real_run(overrides: tuple[str, ...]) -> None:
    config = canary_config(*overrides)
    found = audit_training(config, confidence=0.999, seed=0)
    assert 0.1 < found.epsilon_lower <= make_plan(config, Worker(config)).verified_epsilon


def test_canaries_that_a_trusted_server_hears_are_refused() -> None:
    central = ("strategy.client.form=central", "strategy.server.client_sampling=poisson")
    with pytest.raises(OptionError, match=r"level=training: .*trusted-server: mechanism"):
        audit_training(canary_config("strategy=dpfedavg", *central), confidence=0.999, seed=0)


def example_canaries(sigma: float, rounds: int) -> Any:
    """Six clients with some 200 pictures each; a tenth of them are canaries."""
    size = ("num_clients=6", "clients_per_round=6", f"num_rounds={rounds}", "local.batch_size=40")
    return compose(["strategy=dpsgd", *size, "local.lr=0.5", f"strategy.client.noise_multiplier={sigma}"])


def test_canary_examples_in_a_real_run() -> None:
    config = example_canaries(0.3, 40)
    found = audit_training(config, confidence=0.999, seed=0)
    assert found.canaries > 100 and found.epsilon_lower > 0.1
    assert found.epsilon_lower <= make_plan(config, Worker(config)).verified_epsilon


def test_canary_examples_find_noise_that_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    config = example_canaries(30.0, 10)
    verified = make_plan(config, Worker(config)).verified_epsilon
    assert audit_training(config, confidence=0.999, seed=0).epsilon_lower <= verified
    monkeypatch.setattr("clients.dpfl_agn.add_normal_finely", lambda value, sigma, noise: value)
    assert audit_training(config, confidence=0.999, seed=0).epsilon_lower > verified


def test_a_training_audit_goes_into_the_runs_summary_and_report(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("strategy=dpsgd", "num_rounds=1")
    assert main([f"run={folder}", "level=training", "trials=1000"]) == 0
    found = json.loads((folder / "summary.json").read_text())["privacy"]["training_audit"]
    assert 0 <= found["audited_epsilon"] <= found["verified_epsilon"] and found["canaries"] > 100
    shown = f"{found['correct']} of {found['guesses']} guesses right"
    assert shown in capsys.readouterr().out and shown in (folder / "report.html").read_text()


class NoSampling(DPSGDClient):
    """Takes every example into every batch and is charged for a sample."""

    def audit_release(self, *arguments: Any) -> Any:
        whole = replace(self.facts, num_examples=self.facts.batch_size)
        honest, self.run = self.run, replace(self.run, facts=whole)
        try:
            return super().audit_release(*arguments)
        finally:
            self.run = honest


class HalfTheStepNoise(DPSGDClient):
    def noisy_step(self, total: Any, within: Any, sigma: float, *others: Any) -> Any:
        return super().noisy_step(total, within, sigma / 2, *others)


class QuietCount(DPSGDClient):
    """The adaptive threshold's count has a tenth of its noise."""

    def noisy_step(self, total: Any, within: Any, sigma: float, *others: Any) -> Any:
        honest = self.options
        self.options = honest.model_copy(update={"count_noise": honest.count_noise / 10})
        step = super().noisy_step(total, within, sigma, *others)
        self.options = honest
        return step


def example_level(
    kind: type[DPSGDClient] = DPSGDClient, examples: int = 60, noise_multiplier: float = 2.0, **options: Any
) -> DPSGDClient:
    facts = PublicFacts(num_examples=examples, smallest=examples, batch_size=60, num_rounds=5, clients_per_round=4)
    return making.client(kind, noise_multiplier=noise_multiplier, clip_norm=1.0, facts=facts, **options)


@pytest.mark.parametrize(
    ("faulty", "options"),
    [
        (NoSampling, {"examples": 6000}),
        (HalfTheStepNoise, {}),
        (QuietCount, {"clipping": "adaptive", "count_noise": 1.0}),
    ],
)
def test_planted_faults_in_the_noisy_step_are_found(faulty: type[DPSGDClient], options: dict[str, Any]) -> None:
    settings: Any = {"delta": DELTA, "trials": 200_000, "confidence": 0.999, "seed": 5}
    sound = audit_mechanism(example_level(**options), 1, **settings)
    assert sound.audit.epsilon_lower <= sound.verified
    found = audit_mechanism(example_level(faulty, **options), 1, **settings)
    assert found.audit.epsilon_lower > found.verified


def test_skipped_clipping_of_examples_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.client.example_level.clip_factors", lambda norms, bound: torch.ones_like(norms))
    found = audit_mechanism(example_level(), 3, delta=DELTA, trials=60_000, confidence=0.999, seed=5)
    assert found.audit.epsilon_lower > found.verified


# --- the command -----------------------------------------------------------------------------------------


def test_command_writes_into_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    start_run(compose(["strategy=fedcad", *TINY, "strategy.client.noise_multiplier=4", "engine=inprocess"]), folder)
    assert json.loads((folder / "summary.json").read_text())["privacy"]["audited_epsilon"] is None
    assert main([f"run={folder}", "trials=4000"]) == 0
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert 0 < privacy["audited_epsilon"] <= privacy["verified_epsilon"]
    assert 2000 < privacy["audited_trials"] <= 4000 and privacy["audited_confidence"] == 0.95
    assert privacy["audited_dimension"] in (650, 8) and privacy["audited_code"] == "release()"
    assert {row["audited_dimension"] for row in privacy["audits"]} & {650}
    assert [row["scope"] for row in privacy["audits"]] == ["whole run", "one release"]
    report = (folder / "report.html").read_text()
    assert (folder / "audit.png").stat().st_size > 0 and "not audited" not in report
    assert privacy["audit_verdict"] in report
    assert "whole run" in capsys.readouterr().out


@pytest.mark.parametrize("argument", ["trials=10", "confidence=1", "level=deep", "participations=0", "trials=many"])
def test_wrong_options_are_refused(argument: str) -> None:
    with pytest.raises(OptionError, match=f"^{argument}: (must be|allowed: mechanism, training)"):
        read_arguments(audit_command.audit, [argument])


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"run={tmp_path / 'nowhere'}"]) == 2
    assert main([f"run={tmp_path}", "strategy=fedavg"]) == 2
    assert main(["strategy=fedcadd"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 3


def test_worst_case_pairs_of_fedcad_stay_within_its_bounds() -> None:
    """The pairs are neighbours that the client's own clipping leaves alone, or the audit would be of something else."""
    client = making.client(FedCADClient, noise_multiplier=1.0, clip_norm=1.0, diff=0.3, obsolete_factor=0.4)
    for pair in client.worst_case_pairs(5):
        for world in (pair.world0, pair.world1):
            assert len(world) == 5 and max(map(abs, world)) <= 1
            assert all(abs(b - a) <= 0.3 + 1e-9 for a, b in pairwise(world))


def test_audit_of_a_run_whose_clients_stopped_counts_what_was_released(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    budget = ["strategy.client.noise_multiplier=2", "privacy.max_epsilon=5", "num_clients=4", "clients_per_round=4"]
    start_run(compose(["strategy=fedldp", *budget, "num_rounds=10", "engine=inprocess"]), folder)
    assert main([f"run={folder}", "trials=4000"]) == 0
    privacy = json.loads((folder / "summary.json").read_text())["privacy"]
    assert privacy["audits"][0]["participations"] == 1
    assert privacy["audited_epsilon"] <= privacy["verified_epsilon"] <= 5


@pytest.mark.parametrize("mechanism", ["privunit", "projunit", "sqkr"])
def test_directions_are_audited_at_the_runs_own_dimension(mechanism: str) -> None:
    """A release without any noise above 64 coordinates: of few it is the real mechanism."""
    client = make_client(compose(["strategy=privunit", f"strategy.client.mechanism={mechanism}"]))
    settings: Any = {"delta": DELTA, "trials": 1500, "confidence": 0.95, "seed": 2, "own": 650}
    found = audit_mechanism(client, 1, **settings)
    assert found.dimension == 650 and found.audit.epsilon_lower <= min(found.verified, found.attainable)
    assert found.audit.looks == 4  # three pairs beside the method's own


@pytest.mark.parametrize(
    ("delta", "words"), [(1e-5, "refutes the claim"), (1e-7, "refutes the claim"), (1e-3, "cannot tell")]
)
def test_a_claim_at_a_larger_delta_is_not_refuted(delta: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its own delta it may hold: epsilon falls with delta."""
    client = making.client(FedLDPClient, noise_multiplier=1.0)
    monkeypatch.setattr(client, "claim", lambda participations, at: Claim(0.1, "run", "a formula", delta))
    found = audit_mechanism(client, 1, delta=DELTA, trials=4000, confidence=0.95, seed=0)
    assert found.audit.epsilon_lower > 0.1 and found.verdict == words


def test_all_looks_at_a_run_share_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every scope, every pair and every dimension: the largest bound of all is what is printed."""
    errors, real = list[float](), release_audit.audit

    def counted(*given: Any, **settings: Any) -> Any:
        errors.append((1 - settings["confidence"]) / settings["looks"])
        return real(*given, **settings)

    monkeypatch.setattr(release_audit, "audit", counted)
    config = compose(["strategy=ldpfl", "model=linear", "dataset=digits"])
    scopes = audit_config(config, trials=400, confidence=0.95, seed=0, participations=2)
    assert len(errors) > len(scopes) == 3 and sum(errors) == pytest.approx(0.05)


def test_long_releases_get_the_trials_that_there_is_time_for_and_many_of_a_short_one() -> None:
    client = make_client(compose(["strategy=fedldp"]))
    looks = planned_looks(client, 10, 200_000, 100_000)
    own = [look for look in looks if look.dimension == 100_000]
    assert [look.trials for look in looks if look.dimension == DIMENSION] == [200_000]
    assert not own  # 400 trials of ten such releases are too many
    looks = planned_looks(client, 1, 200_000, 100_000)
    assert sum(2 * look.trials * look.dimension for look in looks if look.dimension > DIMENSION) <= ALL_NUMBERS
    one = planned_looks(make_client(compose(["strategy=privunit"])), 1, 200_000, 650)
    assert {look.dimension for look in one} == {650} and one[0].trials == 200_000


@pytest.mark.parametrize("add", ["sum", "finely"])
def test_the_auditors_noise_tells_nothing_between_float32_numbers(add: str) -> None:
    """How many numbers of a sum end in zeros, with and without a client; by plain seeded noise it is told."""

    def apart(source: type[SeededNoise]) -> float:
        worlds = []
        for length in (0.0, 1.0):
            part, noise = torch.full((1500, 650), length / math.sqrt(650)), source(0, int(length))
            if add == "sum":
                total = add_normal_to_sum([part], part.shape, 1.0, noise)
            else:
                total = add_normal_finely(part, 1.0, noise).float()
            worlds.append((low_bits(total) == 0).sum(1).double())
        spread = torch.stack([world.var() / len(world) for world in worlds]).sum().sqrt()
        return float((worlds[1].mean() - worlds[0].mean()) / spread)

    assert abs(apart(release_audit._SmoothNoise)) < 4 and abs(apart(SeededNoise)) > 8
    for length in (7, MANY):  # a run's own draws, also of vectors that are long enough to be drawn elsewhere
        smooth, plain = (source(3, "key") for source in (release_audit._SmoothNoise, SeededNoise))
        for draw in ("normal", "fine_normal"):
            apart_from_it = getattr(smooth, draw)((1, length), 2.0) - getattr(plain, draw)((1, length), 2.0)
            assert 0 < apart_from_it.abs().max() <= 2 * grid_step(2.0)
