"""An algorithm with another method's mechanism: every pair that there is, and every one that there is not."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.attacks.contract_check import check_contract
from fedpriv.attacks.release_audit import audit_config
from fedpriv.client.build import client_class, make_client
from fedpriv.commands.node import TEMPLATE
from fedpriv.commands.runs import _dispatch
from fedpriv.common.errors import OptionError
from fedpriv.common.messages import pack_vector
from fedpriv.config.compose import at_home, compose, from_dict, read_config
from fedpriv.config.method_pairs import ALGORITHMS, MECHANISMS, check_pair, schema_for, table, why_not
from fedpriv.config.methods import METHODS
from fedpriv.config.remote import compose_remote
from fedpriv.config.source_files import source_files
from fedpriv.deployment.policy import objections, read_policy
from fedpriv.engines.inprocess import InProcessGrid
from fedpriv.engines.worker import adopt, make_apps
from fedpriv.mechanisms.noise import clip
from fedpriv.privacy.auditor import BROKEN
from fedpriv.report.page import write_report
from fedpriv.runs.other_options import with_options
from fedpriv.runs.preparation import make_strategy, resolve
from fedpriv.runs.start import start_run

PAIRS = [(alg, mech) for mech in MECHANISMS for alg in ALGORITHMS if why_not(alg, mech) is None]
NO_PAIRS = [(alg, mech) for mech in METHODS for alg in METHODS if why_not(alg, mech) is not None]
KEEP_LAYERS = ("fedper", "lgfedavg", "fedvf", "pfl")
#: Mechanisms whose events depend on the number of coordinates.
GRIDS = ("privunit", "ddgauss", "skellam", "cpsgd")
SIZE = (
    *("num_clients=6", "clients_per_round=4", "num_rounds=2", "engine=inprocess", "engine.trainer=sequential"),
    *("dataset.train_examples=120", "dataset.auxiliary=40", "operations.report=false", "evaluate.every=0"),
    *("partition.test_fraction=0.4", "local.sampler=shuffle", "local.steps=3", "local.batch_size=6"),
    *("model=mlp", "model.hidden=7", "strategy.server.min_replies=3"),
)
#: 64 * 7 + 7 of the first named block, 7 * 10 + 10 of the second: grids pad to 1024 and to 512.
WHOLE, FIRST, LAST = 535, 455, 80
Found = tuple[list[np.ndarray], list[Any]]


def options(algorithm: str, mechanism: str | None) -> tuple[str, ...]:
    return *SIZE, f"strategy={algorithm}", *([f"privacy.mechanism={mechanism}"] if mechanism else [])


@cache
def trained(algorithm: str, mechanism: str | None, *more: str) -> Found:
    """(global models, ledgers) of the rounds."""
    config, worker, _ = resolve(compose([*options(algorithm, mechanism), *more]), None)
    adopt(config, worker)
    grid, strategy = InProcessGrid(config, make_apps(config)[1]), make_strategy(config, worker)
    models, entries = list[np.ndarray](), list[Any]()

    def note(current: Any) -> None:
        models.append(current.theta.copy())
        entries.extend([*current.entries, *grid.collect_entries(current.cohort)])

    strategy.run_rounds(grid, pack_vector(worker.initial_parameters()), config.num_rounds, on_round=note)
    return models, entries


every_pair = pytest.mark.parametrize(("algorithm", "mechanism"), PAIRS, ids=str)


@pytest.mark.rotates(3)
@every_pair
def test_the_ledger_is_that_of_the_mechanism_alone(algorithm: str, mechanism: str) -> None:
    models, entries = trained(algorithm, mechanism)
    assert entries and len(models) == 2 and all(np.isfinite(model).all() for model in models)
    if mechanism in GRIDS and algorithm in KEEP_LAYERS:  # alone it would release the whole model
        alone = make_client(compose(options(mechanism, None)))
        facts = replace(alone.facts, num_parameters=models[0].size)
        smaller = type(alone)(alone.options, replace(alone.run, facts=facts))
        expected = [charge.event for charge in smaller.all_charges()]
        assert [entry.event for entry in entries] == expected * 8
        assert expected != [charge.event for charge in alone.all_charges()]
    else:
        assert entries == trained(mechanism, None)[1]


RELEASES = (
    *("release", "perturb", "charges", "statistics", "releasing", "steps", "further", "release_bytes", "chosen_for"),
    *("prepare", "remarks", "worst_case_pairs", "audit_release", "threat", "noise_multiplier", "noises", "clip_norm"),
)


@every_pair
def test_all_that_leaves_is_the_mechanisms(algorithm: str, mechanism: str) -> None:
    pair, own, other = (
        client_class(compose(options(*of))) for of in ((algorithm, mechanism), (algorithm, None), (mechanism, None))
    )
    for place in RELEASES:
        ours, theirs = (getattr(kind, place, None) for kind in (pair, other))
        assert getattr(ours, "__func__", ours) is getattr(theirs, "__func__", theirs), place
    assert pair.local is own.local and (pair.layers is own.layers or not own.traits.keeps_layers)
    assert pair.traits == replace(other.traits, keeps_layers=algorithm in KEEP_LAYERS)


def test_what_is_compared_with_the_mechanism_alone_has_another_model() -> None:
    """FedAvg with a mechanism is that mechanism's own method; FedProx is not."""
    alone = trained("fedldp", None)[0]
    for algorithm, same in (("fedavg", True), ("fedprox", False)):
        models = trained(algorithm, "fedldp", *(["strategy.client.proximal_mu=1"] if not same else []))[0]
        assert [np.array_equal(one, other) for one, other in zip(models, alone, strict=True)] == [same] * 2


#: Mechanisms that can be without noise, and how they neither clip nor add any.
QUIET = {
    "fedldp": ("strategy.client.noise_multiplier=0", "strategy.client.clip_norm=1e6"),
    "fedcad": ("strategy.client.noise_multiplier=0", "strategy.client.clip_norm=1e6", "strategy.client.diff=0.999"),
    "dpfedavg": ("strategy.client.noise_multiplier=0", "strategy.client.clip_norm=1e6"),
}


@pytest.mark.rotates(3)
@pytest.mark.parametrize(("algorithm", "mechanism"), [pair for pair in PAIRS if pair[1] in QUIET], ids=str)
def test_without_noise_the_model_is_the_algorithms_own(algorithm: str, mechanism: str) -> None:
    own = {"fedprox": ("strategy.client.proximal_mu=1",), "fedvf": ("strategy.client.head_period=2",)}
    more = (*own.get(algorithm, ()), "strategy.server.weighting=uniform", "local.lr=0.1")
    alone = trained(algorithm, None, *more)[0]
    found = trained(algorithm, mechanism, *more, *QUIET[mechanism])[0]
    bits = mechanism == "fedldp" or (mechanism == "fedcad" and algorithm != "pfl")
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=0 if bits else 2e-6)
    assert not np.array_equal(alone[-1], trained("fedavg", None, *more[-2:])[0][-1]) or algorithm == "fedavg"


SIZES = [("fedprox", WHOLE), ("fedper", FIRST), ("pfl", FIRST), ("lgfedavg", LAST)]


@pytest.mark.parametrize(("algorithm", "size"), SIZES)
def test_a_mechanisms_dimension_is_that_of_what_travels(algorithm: str, size: int) -> None:
    for mechanism in GRIDS:
        assert make_client(compose(options(algorithm, mechanism))).facts.num_parameters == size
    assert trained(algorithm, "skellam")[0][0].size == size


def test_what_is_no_pair_is_refused_with_its_reason() -> None:
    raw = {name: compose([f"strategy={name}"]).to_dict() for name in METHODS}
    for algorithm, mechanism in NO_PAIRS:
        with pytest.raises(OptionError) as caught:
            from_dict(raw[algorithm] | {"privacy": raw[algorithm]["privacy"] | {"mechanism": mechanism}})
        error, reason = caught.value, why_not(algorithm if mechanism in MECHANISMS else "fedavg", mechanism)
        assert (error.option, error.value) == ("privacy.mechanism", mechanism)
        assert reason and len(reason.split()) > 6 and error.allowed.startswith(reason)
    assert len(NO_PAIRS) + len(PAIRS) == len(METHODS) ** 2 and len(PAIRS) == 40


def test_options_of_a_pair_are_both_methods_and_are_checked() -> None:
    pair = ("strategy=fedprox", "privacy.mechanism=fedldp")
    found = compose([*pair, "strategy.client.proximal_mu=2", "strategy.server.noise_multiplier=3"])
    assert (found.strategy.options.proximal_mu, found.strategy.options.noise_multiplier) == (2, 3)  # type: ignore[attr-defined]
    usual = compose(pair)  # the mechanism's where both files have one, but what is asked for stays
    assert (usual.strategy.options.weighting, usual.local.sampler) == ("uniform", "poisson")
    asked = compose([*pair, "strategy.server.weighting=examples", "local.sampler=shuffle"])
    assert (asked.strategy.options.weighting, asked.local.sampler) == ("examples", "shuffle")
    assert usual.method == "fedprox with fedldp's mechanism" and compose(pair[:1]).method == "fedprox"
    for wrong, words in (
        ("strategy.client.noise_multiplier=-1", "at least 0"),
        ("strategy.client.nois=1", "there is no such option"),
        ("strategy.client._target_=clients.fedavg.FedAvgClient", "must be the method's own class"),
        ("privacy.mechanism=nix", "allowed: fedldp"),
    ):
        with pytest.raises(OptionError, match=words):
            config = compose([*pair, wrong])
            client_class(config)
    with pytest.raises(OptionError, match="of methods of one's own no pairs are made"):
        check_pair("mine", "fedldp")


def test_a_pair_has_a_digest_of_its_own() -> None:
    plain, pair = compose(["strategy=fedprox"]), compose(["strategy=fedprox", "privacy.mechanism=fedldp"])
    assert len({plain.digest(), pair.digest(), compose(["strategy=fedldp"]).digest()}) == 3
    assert from_dict(pair.to_dict()).digest() == pair.digest()


def test_a_record_goes_on_as_another_pair_and_as_none() -> None:
    pair = compose(["strategy=fedprox", "privacy.mechanism=fedldp", "strategy.client.noise_multiplier=3"])
    louder = with_options(pair, ["strategy.server.noise_multiplier=5"])
    assert louder.strategy.options.noise_multiplier == 5 and louder.method == pair.method  # type: ignore[attr-defined]
    for changes, method in (
        (["privacy.mechanism=privunit"], "fedprox with privunit's mechanism"),
        (["strategy=fedper"], "fedper with fedldp's mechanism"),
        (["strategy=fedper", "privacy.mechanism=skellam"], "fedper with skellam's mechanism"),
        (["privacy.mechanism=null"], "fedprox"),
    ):
        found = with_options(pair, changes)
        assert found.method == method and type(found.strategy.options) is schema_for(*method_of(found))
    assert with_options(compose(["strategy=fedprox"]), ["privacy.mechanism=fedldp"]).method == pair.method


def method_of(config: Any) -> tuple[str, str | None]:
    return config.strategy.name, config.privacy.mechanism


def test_hydra_composes_what_a_sweep_passes_on() -> None:
    """The command line's words go to Hydra itself, which knows the algorithm's file alone."""
    words = ["strategy=fedprox", "privacy.mechanism=fedldp,fedcad", "strategy.client.noise_multiplier=1,2"]
    assert at_home(words)[2] == "++strategy.client.noise_multiplier=1,2"
    job = ["strategy=fedprox", "privacy.mechanism=fedcad", "++strategy.client.noise_multiplier=2"]
    assert compose(job).digest() == compose([*job[:2], "strategy.client.noise_multiplier=2"]).digest()
    assert compose([*job[:2], "strategy.client.sigma_diff=${strategy.client.diff}"]).strategy.options.sigma_diff == 0.5  # type: ignore[attr-defined]


def test_a_machine_of_a_deployment_must_allow_both(tmp_path: Path) -> None:
    config = compose_remote(["strategy=fedprox", "privacy.mechanism=fedldp"])
    assert config.method == "fedprox with fedldp's mechanism"
    (tmp_path / "policy.yaml").write_text(TEMPLATE)
    policy = read_policy(tmp_path / "policy.yaml")
    for names, found in (
        (("fedprox",), ["privacy.mechanism=fedldp: allowed: fedprox"]),
        (("fedldp",), ["strategy=fedprox: allowed: fedldp"]),
        (("fedldp", "fedprox"), []),
    ):
        said = objections(policy.model_copy(update={"strategies": names}), config, 100)
        assert [line for line in said if "allowed: fed" in line] == found


def test_hydra_does_not_show_half_of_a_pair() -> None:
    with pytest.raises(OptionError, match="would not show them; allowed: plan=true"):
        _dispatch(["--cfg", "job", "strategy=fedprox", "privacy.mechanism=fedldp"])


def test_the_docs_have_the_table() -> None:
    assert table() in (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")


def test_a_run_names_the_pair_and_claims_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    start_run(compose([*options("fedper", "fedldp"), "privacy.max_epsilon=1e5"]), folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["strategy"] == "fedper with fedldp's mechanism"
    assert "fedper with fedldp&#" in write_report(folder).read_text(encoding="utf-8")
    assert summary["privacy"]["claimed_epsilon"] is None and summary["privacy"]["verified_epsilon"] > 0
    named = source_files(read_config(folder))
    assert {"clients/fedper.py", "clients/fedldp.py", "strategies/fedldp.py"} <= named.keys()


def test_rows_of_a_pair_are_its_clients_one_by_one() -> None:
    one = trained("fedprox", "fedldp", "strategy.client.proximal_mu=1")
    rows = trained("fedprox", "fedldp", "strategy.client.proximal_mu=1", "engine.trainer=vectorised")
    assert rows[1] == one[1]
    np.testing.assert_allclose(rows[0][-1], one[0][-1], atol=1e-5)
    assert client_class(compose(options("fedprox", "fedldp"))).in_rows
    assert not client_class(compose(options("fedper", "fedldp"))).in_rows


LOUD = ("strategy.client.noise_multiplier=2", "num_rounds=2")


@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_an_audit_runs_the_pairs_code(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the noise that the ledger counts on is found."""
    config, seen = compose([*options("fedper", "fedldp"), *LOUD]), set[str]()
    # The class that this pair is made of: another test of this process may have loaded the file anew.
    (mechanism,) = [kind for kind in client_class(config).__mro__ if kind.__name__ == "FedLDPClient"]
    real = mechanism.perturb

    def perturb(self: Any, update: Any, state: Any, noise: Any) -> Any:
        seen.add(type(self).__name__)
        release = real(self, update, state, noise)
        clipped = clip(update, self.clip_norm)
        return replace(release, value=clipped + factor * (release.value - clipped))

    monkeypatch.setattr(mechanism, "perturb", perturb)
    scopes = audit_config(config, trials=5_000, confidence=0.99, seed=1, participations=1)
    assert seen == {"FedPerClientWithFedLDPClient"} and not check_contract(config).findings
    assert (BROKEN in [scope.verdict for scope in scopes]) == (factor < 1)
