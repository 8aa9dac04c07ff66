"""What holds for every method of `conf/strategy`, in both variants: plan, ledger, budget, target, resume, refusals."""

from __future__ import annotations

import gc
import json
import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conftest import Run, ledger_of, result_of, rows_of

from clients.fedldp import FedLDPClient
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import CONF, compose
from fedpriv.config.methods import NOISE_OPTIONS
from fedpriv.config.own_options import group_choices
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import Worker
from fedpriv.mechanisms.noise import KeyRegistry
from fedpriv.privacy.composition import compose as compose_events
from fedpriv.privacy.events import Event, entry_from_json
from fedpriv.runs.extension import extend_run
from fedpriv.runs.planning import make_plan, with_target
from fedpriv.runs.preparation import resolve
from fedpriv.runs.session import Session
from fedpriv.runs.start import resume_run, start_run
from fedpriv.server.strategy import FederatedStrategy

METHODS = group_choices(CONF / "strategy")
CASES = [
    (f"strategy={name}", f"privacy.variant={variant}") for name in METHODS for variant in ("repaired", "published")
]
SIZE = (
    *("num_clients=4", "clients_per_round=4", "num_rounds=4", "engine=inprocess", "operations.report=false"),
    "dataset.train_examples=200",
)
#: Without noise, or published with a release that has no price.
WITHOUT_NOISE = ("fedavg", "fedprox", "fedper", "lgfedavg", "fedvf", "pfl", "corrquant")
LEAKING = [(f"strategy={name}", "privacy.variant=published") for name in ("adpfl", "coqfl", "dpfedsnlc", "fedags")]
PRICED = [case for case in CASES if case[0].partition("=")[2] not in WITHOUT_NOISE and case not in LEAKING]
#: Forms with a state of their own: of cohorts, thresholds, steps, noise or masks.
SOME, CENTRAL = ("num_clients=5", "clients_per_round=3"), ("strategy=dpfedavg", "strategy.client.form=central")
FORMS: tuple[tuple[str, ...], ...] = (
    ("strategy=adpfl", "privacy.variant=repaired", "strategy.server.window=2", "partition=dirichlet"),
    ("strategy=adpfl", "privacy.variant=published", "strategy.server.window=2", "partition=dirichlet"),
    ("strategy=coqfl", "strategy.client.encode=weights", "strategy.client.radius=0.3"),
    ("strategy=fedags", "strategy.client.selection=gumbel", "strategy.client.loss_weights=true"),
    ("strategy=dpfl_agn", "strategy.client.decay=0.7", "strategy.server.threshold=9"),
    (*CENTRAL, *SOME, "strategy.server.client_sampling=poisson"),
    (*CENTRAL, *SOME, "strategy.server.client_sampling=poisson", "strategy.server.clipping=quantile"),
    (*CENTRAL, "num_clients=20", "clients_per_round=5", "strategy.server.client_sampling=allocated"),
    ("strategy=dpftrl", *SOME, "strategy.client.factor=blt", "strategy.server.optimizer=momentum"),
    ("strategy=dpftrl", *SOME, "strategy.client.factor=sqrt"),
    ("strategy=dpftrl", "num_clients=21", "strategy.server.client_sampling=poisson", "strategy.client.bandwidth=3"),
    ("strategy=fedldp", *SOME, "strategy.server.clipping=quantile"),
    ("strategy=fedldp", *SOME, "strategy.server.clipping=adp", "strategy.server.window=2"),
    ("strategy=fedcad", *SOME, "strategy.server.clipping=quantile", "strategy.client.obsolete_factor=0.4"),
    ("strategy=fedcad", "privacy.variant=published", "strategy.server.clipping=adp", "strategy.server.window=2"),
    ("strategy=fedcad", *SOME, "strategy.server.clipping=quantile", "strategy.server.optimizer=momentum"),
    ("strategy=fedcad", "num_clients=12", "strategy.server.participation=balanced"),
    ("strategy=fedcad", *SOME, "engine.trainer=vectorised"),
    ("strategy=fedavg", "strategy.server.optimizer=yogi"),
    (
        "strategy=fedvf",
        *SOME,
        "partition=pathological",
        "strategy.client.head_period=2",
        "strategy.server.optimizer=adam",
    ),
    ("strategy=skellam", "strategy.server.clipping=adp", "strategy.server.window=2"),
    ("strategy=ddgauss", "strategy.secure_sum=protocol", "strategy.client.noise_multiplier=1"),
)
FURTHER = [pytest.param(form, marks=pytest.mark.rotates(12)) for form in FORMS]
CHECKPOINTS = ("num_rounds=4", "checkpoint.every=2", "dataset.train_examples=200")
DELTA = 1e-5
#: Case -> what of its run was left when it had ended.
LEFT: dict[tuple[str, ...], list[str]] = {}
TARGET = 20.0

Case = tuple[str, ...]
Whole = Callable[[Case], Path]


def where(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["round"], line["client"], line["sequence"]


def place(case: Case | str) -> int:
    """In a rotation of two parts: every method has a run in one of its variants, the other with the next part."""
    strategy, variant = (f"strategy={case}", "privacy.variant=repaired") if isinstance(case, str) else case[:2]
    return METHODS.index(strategy.partition("=")[2]) + (variant == "privacy.variant=published")


in_turn = pytest.mark.rotates(2, place)


def privacy_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())["privacy"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Folder of an uninterrupted run of a case, made once. No two of its draws may have one noise key."""

    @cache
    def made(case: Case) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        with KeyRegistry(), without_a_collector() as left:
            start_run(compose([*SIZE, *CHECKPOINTS, *case]), folder)
            LEFT[case] = left()
        return folder

    return made


@contextmanager
def without_a_collector() -> Iterator[Callable[[], list[str]]]:
    """Gives what tells which sessions, strategies and grids that were made inside are left, though nobody uses them."""
    made: list[Any] = []

    def noted(kind: type) -> Any:
        real = kind.__init__

        def init(self: Any, *arguments: Any, **named: Any) -> None:
            made.append(weakref.ref(self))
            real(self, *arguments, **named)

        return patch.object(kind, "__init__", init)

    with noted(Session), noted(FederatedStrategy), noted(InProcessGrid):
        gc.disable()
        try:
            yield lambda: [type(one).__name__ for ref in made if (one := ref()) is not None]
        finally:
            gc.enable()
    assert len(made) == 3


@in_turn
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_run_that_has_ended_takes_its_memory_with_it(case: Case, whole: Whole) -> None:
    """Clients' memories and pictures are gigabytes after some hundred runs of a study in one process."""
    whole(case)
    assert LEFT[case] == []


@cache
def planned(case: Case, *more: str) -> Any:
    """Made once: three tests ask."""
    config = with_target(compose([*SIZE, *case, *more]))
    return make_plan(config, Worker(config))


@in_turn
@pytest.mark.parametrize("case", [*CASES, *FURTHER], ids=" ".join)
def test_the_ledger_costs_what_was_planned_and_not_more(case: Case, whole: Whole) -> None:
    """Composed from the ledger's lines alone, for each client or, where the server books, for the sum."""
    privacy, plan = privacy_of(whole(case)), planned(case)
    assert privacy["verified_epsilon"] == pytest.approx(
        "inf" if math.isinf(plan.verified_epsilon) else plan.verified_epsilon
    )
    booked: dict[int, list[Event]] = {}
    for entry in map(entry_from_json, ledger_of(whole(case))):
        if entry.event.threat == plan.threat:
            booked.setdefault(entry.client, []).append(entry.event)
    assert booked
    for events in booked.values():
        assert compose_events(events, DELTA).epsilon <= plan.verified_epsilon * (1 + 1e-9)


@in_turn
@pytest.mark.parametrize("case", METHODS)
def test_its_summary_names_it_and_says_whether_it_has_a_guarantee(case: str, whole: Whole) -> None:
    summary = json.loads((whole((f"strategy={case}", "privacy.variant=repaired")) / "summary.json").read_text())
    assert summary["strategy"] == case and summary["rounds"] == 4
    if case == "ask":  # it answers, and predicts nothing
        assert summary["accuracy"]["final"] is None and summary["answers"][0]["question"] == "count"
    else:
        assert 0 < summary["accuracy"]["final"] <= 1  # a few noisy steps of the example-level methods teach nothing yet
    infinite = case in WITHOUT_NOISE
    assert (summary["privacy"]["verified_epsilon"] == "inf") == infinite
    assert any("without noise" in reason for reason in summary["privacy"]["reasons"]) == infinite


@in_turn
@pytest.mark.parametrize("case", [*CASES, *FURTHER], ids=" ".join)
def test_interrupted_and_resumed_it_is_the_same_run(case: Case, whole: Whole, resumed: Callable[..., Path]) -> None:
    """After a round behind the last checkpoint, which is repeated with the noise that it had."""
    assert result_of(resumed(*CHECKPOINTS, *case, after=3)) == result_of(whole(case))


@in_turn
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_reply_that_is_lost_is_spent_all_the_same(case: Case, whole: Whole, run: Run) -> None:
    """Its release had left: the ledger holds as many lines as if it had arrived, and the mean is over the others."""
    folder = run(*CHECKPOINTS, *case, "engine.faults=[{round:4,client:1,kind:drop}]", "strategy.server.min_replies=1")
    assert [row["participants"] for row in rows_of(folder)] == [4, 4, 4, 3]
    assert Counter(map(where, ledger_of(folder))) == Counter(map(where, ledger_of(whole(case))))
    assert result_of(folder)["model"] != result_of(whole(case))["model"]


@in_turn
@pytest.mark.parametrize("case", PRICED, ids=" ".join)
def test_a_budget_is_never_exceeded(case: Case, run: Run) -> None:
    """Too little for four rounds."""
    limit = 0.7 * planned(case).verified_epsilon
    folder = run(*CHECKPOINTS, *case, f"privacy.max_epsilon={limit}")
    privacy, decays = privacy_of(folder), case[0] in ("strategy=anr", "strategy=dpfl_agn")
    assert privacy["spent_so_far"] <= limit and privacy["verified_epsilon"] <= limit
    rounds = len(rows_of(folder)) if (folder / "metrics.jsonl").exists() else 0
    assert rounds < 4 or decays  # their plan is at the least noise, which a run need not reach
    sampled = decays or case[0] in ("strategy=agn", "strategy=dpsgd")  # a filter may admit nothing of these
    assert privacy["spent_so_far"] > 0 or sampled


#: Beside a release without noise: what its own noise cannot make up for.
FURTHER_NOISELESS = (
    ("strategy=fedldp", "strategy.server.clipping=quantile", "strategy.client.count_noise=3"),
    ("strategy=fedldp", "strategy.server.clipping=adp", "strategy.client.norm_noise=3"),
    ("strategy=fedldp", "strategy.secure_sum=assumed"),
    ("strategy=fedcad", "strategy.client.obsolete_factor=0.5", "strategy.client.sigma_diff=3"),
    ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
    ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=allocated"),
    ("strategy=dpftrl", "strategy.server.client_sampling=poisson", "strategy.client.bandwidth=1"),
    ("strategy=dpftrl", "strategy.server.client_sampling=balls"),
    ("strategy=dpfedexp", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
    ("strategy=scaffold", "strategy.client.form=central", "strategy.server.client_sampling=poisson"),
    ("strategy=agn", "strategy.client.clipping=adaptive"),
)


@pytest.mark.rotates(2)
@pytest.mark.parametrize("case", [*CASES, *FURTHER_NOISELESS], ids=" ".join)
def test_a_budget_without_noise_is_refused_at_the_start(case: Case) -> None:
    """A filter that admits nothing gives no round, and nothing released would read as "verified 0"."""
    options = compose([*SIZE, *case]).strategy.options
    for name in [name for name in NOISE_OPTIONS if hasattr(options, name)] or [None]:
        noise = [] if name is None else [f"strategy.client.{name}=0"]
        with pytest.raises(OptionError) as refused:
            resolve(compose([*SIZE, *case, *noise, "privacy.max_epsilon=8"]), None)
        assert re.match(rf"(privacy\.max_epsilon=8|strategy\.\w+\.{name}=0).*: .*(allowed|must be)", str(refused.value))


class SaysItKeepsTo(FedLDPClient):
    """A method of one's own that is wrong about its own price."""

    keeps_budget = True  # type: ignore[misc, assignment]


def test_a_method_of_ones_own_is_not_taken_at_its_word() -> None:
    own = ("strategy=fedldp", "strategy.client._target_=test_every_method.SaysItKeepsTo")
    with pytest.raises(OptionError, match="SaysItKeepsTo has its own `keeps_budget`"):
        resolve(compose([*SIZE, *own, "privacy.max_epsilon=8"]), None)


def test_a_run_without_noise_is_not_extended_under_a_budget(run: Run) -> None:
    folder = run("strategy=fedldp", "strategy.client.noise_multiplier=0", "num_rounds=1")
    with pytest.raises(OptionError, match=r"privacy\.max_epsilon=8"):
        extend_run(folder, ["num_rounds=2", "privacy.max_epsilon=8"])


@in_turn
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_target_is_met_by_the_whole_plan_or_refused(case: Case) -> None:
    if case in PRICED:
        config = with_target(compose([*SIZE, *case, f"privacy.target_epsilon={TARGET}"]))
        assert 0.9 * TARGET < make_plan(config, Worker(config)).verified_epsilon <= TARGET
    else:
        with pytest.raises(OptionError, match=r"privacy\.target_epsilon"):
            planned(case, f"privacy.target_epsilon={TARGET}")


#: Their releases are made for a run of one length.
BOUND_TO_ROUNDS = ("cpsgd", "skellam", "nbafl", "fedags", "dpftrl", "dpsum", "ask")


@in_turn
@pytest.mark.parametrize("case", METHODS)
def test_extended_it_is_the_run_that_was_that_long_from_the_start(case: str, whole: Whole, run: Run) -> None:
    """Or it is refused by name, with the reason, and stays as it is."""
    repaired = (f"strategy={case}", "privacy.variant=repaired")
    longer, folder = result_of(whole(repaired)), run(*CHECKPOINTS, *repaired, "num_rounds=2")
    if case in BOUND_TO_ROUNDS:
        before = result_of(folder)
        with pytest.raises(OptionError, match=rf"num_rounds=4: {case} cannot be extended: .*num_rounds"):
            extend_run(folder, ["num_rounds=4"])
        assert result_of(folder) == before
        return
    extend_run(folder, ["num_rounds=4"])
    resume_run(folder)
    found = result_of(folder)
    for rows in (found["metrics"], longer["metrics"]):
        rows[1].pop("epsilon_so_far")  # of the round that was the last: exact there, a bound of it elsewhere
    assert found == longer
