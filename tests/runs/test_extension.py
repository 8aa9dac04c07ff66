"""More rounds for a finished run, and a run repeated with other options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, Run, ledger_of, result_of, rows_of, summary_of

from fedpriv.client.method import Method
from fedpriv.common.errors import FedprivError, OptionError, RunFolderError
from fedpriv.config.compose import compose, read_config
from fedpriv.config.own_options import CONF, group_choices
from fedpriv.privacy.events import CLIENT_TO_SERVER, Entry, Gaussian
from fedpriv.runs import extension
from fedpriv.runs.extension import extend_run
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.other_options import config_for_rerun
from fedpriv.runs.planning import target_price
from fedpriv.runs.start import resume_run, start_run

SMALL = ("strategy=fedcad", "num_clients=4", "clients_per_round=2", "checkpoint.every=2", "operations.report=false")


def extended(folder: Path, *options: str) -> dict[str, Any]:
    extend_run(folder, options)
    return resume_run(folder)


def test_earlier_ends_stay_in_folder_and_summary(run: Run) -> None:
    """Twice; the price is that of all rounds, and the old lines of the ledger stand as they did."""
    folder = run(*SMALL, "num_rounds=3")
    first, lines = summary_of(folder), (folder / "ledger.jsonl").read_text()
    extended(folder, "num_rounds=4")
    last = extended(folder, "num_rounds=6")
    assert (folder / "ledger.jsonl").read_text().startswith(lines)
    assert [row["round"] for row in rows_of(folder)] == [1, 2, 3, 4, 5, 6]
    assert [stage["rounds"] for stage in last["stages"]] == [3, 4]
    assert last["stages"][0]["verified_epsilon"] == first["privacy"]["verified_epsilon"]
    assert last["privacy"]["verified_epsilon"] > last["stages"][1]["verified_epsilon"]
    assert json.loads((folder / "summary-000003.json").read_text()) == first
    whole = run(*SMALL, "num_rounds=6")
    assert result_of(folder)["ledger"] == result_of(whole)["ledger"]
    assert result_of(folder)["model"] == result_of(whole)["model"]


def test_a_run_that_stops_while_it_is_extended_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first of two files, and after both: what is there is resumed, or extended again."""
    folder, whole = run(*SMALL, "num_rounds=2"), run(*SMALL, "num_rounds=4")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_config", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extend_run(folder, ["num_rounds=4"])
    assert resume_run(folder)["rounds"] == 2  # as it was
    extend_run(folder, ["num_rounds=4"])
    resume_run(folder)
    assert result_of(folder)["model"] == result_of(whole)["model"]


def test_secure_noise_goes_on_too(run: Run) -> None:
    folder = run(*SMALL, "num_rounds=2", "privacy.rng=secure")
    before = ledger_of(folder)
    extended(folder, "num_rounds=4")
    found = ledger_of(folder)
    assert found[: len(before)] == before and len(found) == 2 * len(before) == 8


def test_a_larger_budget_lets_clients_go_on(run: Run) -> None:
    """What they spent before counts; with the old budget they stop."""
    options = (*SMALL, "clients_per_round=4", "num_rounds=2")
    price = summary_of(run(*options))["privacy"]["verified_epsilon"]
    folder, same = (run(*options, f"privacy.max_epsilon={1.01 * price}") for _ in range(2))
    found = extended(folder, "num_rounds=4", f"privacy.max_epsilon={3 * price}")
    assert found["rounds"] == 4 and price < found["privacy"]["spent_so_far"] <= 3 * price
    found = extended(same, "num_rounds=4")
    assert found["rounds"] < 4 and found["privacy"]["spent_so_far"] == pytest.approx(price)
    with pytest.raises(RunFolderError, match=r"budgets were spent: rerun="):
        extend_run(same, ["num_rounds=9"])


def test_a_run_that_got_no_better_is_not_said_to_have_spent_its_budget(run: Run) -> None:
    folder = run(*SMALL, "strategy=fedavg", "num_rounds=5", "local.lr=1e-9", "evaluate.patience=1")
    with pytest.raises(RunFolderError, match=r"got no better: rerun=\S+ evaluate\.patience="):
        extend_run(folder, ["num_rounds=9"])


def test_what_adaptive_noise_happened_to_spend_is_not_made_a_guarantee(run: Run) -> None:
    """By a budget that is set, or lowered, to what was spent."""
    own = "strategy.client"
    adaptive = (*SMALL, "privacy.variant=published", f"{own}.sigma_diff=1", f"{own}.obsolete_factor=1")
    free, held = (run(*adaptive, "num_rounds=4", f"privacy.max_epsilon={limit}") for limit in ("null", 1e5))
    assert summary_of(free)["privacy"]["verified_epsilon"] in ("inf", "infinite")
    for folder, words in ((free, "allowed: null"), (held, r"allowed: null, or 100000\.0 and more")):
        spent = summary_of(folder)["privacy"]["spent_so_far"]
        with pytest.raises(OptionError, match=rf"privacy\.max_epsilon=\S+: .* followed earlier outputs .*{words}"):
            extend_run(folder, ["num_rounds=5", f"privacy.max_epsilon={1.01 * spent}"])
        assert (folder / "summary.json").exists()
    assert extended(held, "num_rounds=5", "privacy.max_epsilon=2e5")["privacy"]["verified_epsilon"] == 2e5


@pytest.mark.parametrize(("realised", "adaptive"), [(None, False), (None, True), (2.0, False)])
def test_no_budget_is_set_after_noise_that_followed_outputs(
    realised: float | None, adaptive: bool, tmp_path: Path
) -> None:
    """Also where a bound was fixed before: what was spent below it hangs on earlier outputs."""
    before = compose(["strategy=fedldp"])
    after, folder = (compose(["strategy=fedldp", "privacy.max_epsilon=9"]), RunFolder(tmp_path))
    spent = None if realised is None else Gaussian(threat=CLIENT_TO_SERVER, multiplier=realised)
    bound = Gaussian(threat=CLIENT_TO_SERVER, multiplier=1.0)
    folder.append_entries([Entry(1, 0, 0, 0, bound, spent, adaptive)], together=False)
    if realised is None and not adaptive:
        extension._check_budget(before, after, folder)
    else:
        with pytest.raises(OptionError, match="followed earlier outputs"):
            extension._check_budget(before, after, folder)
    extension._check_budget(after, before, folder)


def test_rounds_of_another_budget_are_not_repeated_with_their_noise(run: Run) -> None:
    """Rounds 3 and 4, in which a client had stopped, are made again with it: new releases beside those of before."""
    options = (*SMALL, "num_clients=3", "num_rounds=4", "seed=1", "checkpoint.keep=2", "checkpoint.every=2")
    once = summary_of(run(*SMALL, "num_rounds=1"))["privacy"]["verified_epsilon"]
    folder = run(*options, f"privacy.max_epsilon={2 * once}")
    before, stopped = ledger_of(folder), summary_of(folder)["privacy"]["clients_stopped"]
    assert stopped and any(entry["round"] == 4 for entry in before)
    extend_run(folder, ["num_rounds=5", f"privacy.max_epsilon={9 * once}"])
    newest = folder / "checkpoints" / "round-000004" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    resume_run(folder)
    found = ledger_of(folder)
    assert [entry for entry in found if entry["attempt"] == 0] == before
    assert {entry["round"] for entry in found if entry["attempt"]} == {3, 4, 5}


def test_rounds_whose_models_follow_num_rounds_are_not_repeated_with_their_noise(run: Run) -> None:
    """Round 4 of a longer run begins from another model: under the noise of before, two sums would differ by theirs."""
    central = ("strategy.client.form=central", "strategy.server.client_sampling=poisson")
    options = (*SMALL[1:3], "strategy=dpfedavg", *central, "strategy.server.learning_rate=noise")
    folder = run(*options, "num_rounds=4", "checkpoint.keep=2", *SMALL[3:])
    before = ledger_of(folder)
    extend_run(folder, ["num_rounds=5"])
    newest = folder / "checkpoints" / "round-000004" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert "round-000004 is damaged" in resume_run(folder)["note"]
    found = ledger_of(folder)
    assert [entry for entry in found if entry["attempt"] == 0] == before
    assert {entry["round"] for entry in found if entry["attempt"]} == {3, 4, 5}


def test_a_schedule_of_the_learning_rate_is_not_extended() -> None:
    """Its rounds had the learning rates of a run of their number: a longer run has none of their models."""
    with pytest.raises(OptionError, match=r"num_rounds=6: fedldp cannot be extended: local\.schedule=linear .*of 4"):
        extension.extended(compose(["strategy=fedldp", "local.schedule=linear", "num_rounds=4"]), ["num_rounds=6"])


def test_a_target_is_not_passed_in_silence(run: Run) -> None:
    folder = run(*SMALL, "num_rounds=2", "privacy.target_epsilon=30")
    before = result_of(folder)
    with pytest.raises(OptionError, match=r"privacy\.target_epsilon=30\.0: .* 4 rounds cost (\S+); ") as refused:
        extend_run(folder, ["num_rounds=4"])
    assert result_of(folder) == before
    found = extended(folder, "num_rounds=4", "privacy.target_epsilon=null")
    said = float(re.search(r"cost (\S+);", str(refused.value)).group(1))  # type: ignore[union-attr]
    assert found["privacy"]["verified_epsilon"] == pytest.approx(said, rel=1e-3) and said > 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["num_rounds=2"], "num_rounds=2: the run has 2 rounds already"),
        ([], r"extend: how far\?"),
        (["num_rounds=4", "local.lr=1"], r"local\.lr=1: extend= changes num_rounds, .*rerun="),
        (["num_rounds=4", "strategy=fedldp"], r"strategy=fedldp: extend= changes"),
        (["num_rounds=1e3"], r"num_rounds=1e3|num_rounds=1000\.0"),
        (["num_rounds=4,5"], r"num_rounds=4,5: several values need a sweep"),
    ],
)
def test_what_cannot_be_changed_says_so_and_changes_nothing(finished: Path, options: list[str], words: str) -> None:
    before = result_of(finished)
    with pytest.raises(OptionError, match=words):
        extend_run(finished, options)
    assert result_of(finished) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    start_run(compose([*SMALL, "num_rounds=2", "engine=inprocess"]), folder)
    return folder


#: As docs/operations.md names the methods that have no more rounds, by their options.
REFUSED = {
    "strategy=cpsgd": "cpSGD",
    "strategy=skellam": "Skellam",
    "strategy=nbafl": "NbAFL",
    "strategy=fedags": "DP-FedAGS",
    "strategy=dpftrl": "DP-FTRL",
    "strategy=dpsum": "dpsum",
    "strategy=ask": "ask",
    "strategy=ldpfl strategy.client.shuffle=true": "LDP-FL shuffled",
    "strategy=anr privacy.variant=published": "published ANR",
    "strategy=dpfl_agn privacy.variant=published": "DPFL-AGN",
}


def test_the_page_lists_what_is_refused() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (words,) = re.findall(r"Refused are methods (.*?)unless `privacy.target_epsilon=null`", page, re.DOTALL)
    for options, said in REFUSED.items():
        assert said in " ".join(words.split())
        with pytest.raises(OptionError, match="cannot be extended"):
            extension.extended(compose([*options.split(), "num_rounds=4"]), ["num_rounds=6"])
    for name in group_choices(CONF / "strategy"):
        for variant in ("repaired", "published"):
            alone, both = f"strategy={name}", f"strategy={name} privacy.variant={variant}"
            if alone not in REFUSED and both not in REFUSED:
                config = compose([*both.split(), "num_rounds=4"])
                assert extension.extended(config, ["num_rounds=6"]).num_rounds == 6


def test_a_sum_that_is_told_in_every_round_may_be_told_in_more(run: Run) -> None:
    """A Poisson cohort's sum counts in every round, whoever was in it: a round's price is the same in a longer run."""
    central = ("strategy=dpfedavg", "strategy.client.form=central", "strategy.server.client_sampling=poisson")
    folder, whole = run(*SMALL, *central, "num_rounds=2"), run(*SMALL, *central, "num_rounds=3")
    extend_run(folder, ["num_rounds=3"])
    resume_run(folder)
    longer, expected = result_of(folder), result_of(whole)
    assert longer["model"] == expected["model"] and longer["ledger"] == expected["ledger"]
    told = [found["summary"]["privacy"]["verified_epsilon"] for found in (longer, expected)]
    assert told[0] == told[1] > 0


def test_what_has_no_state_to_go_on_from_is_refused(run: Run, tmp_path: Path) -> None:
    folder = run(*SMALL, "num_rounds=2", "checkpoint.every=0")
    with pytest.raises(RunFolderError, match=r"state after round 2 was not kept .*rerun="):
        extend_run(folder, ["num_rounds=4"])
    assert (folder / "summary.json").exists()
    (folder / "summary.json").unlink()
    with pytest.raises(RunFolderError, match=r"has not finished: resume="):
        extend_run(folder, ["num_rounds=4"])
    with pytest.raises(FedprivError, match="no such run folder"):
        extend_run(tmp_path / "nowhere", ["num_rounds=4"])


def test_a_method_of_ones_own_whose_price_depends_on_the_rounds_is_found(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it does not say so."""
    real, asked = Method.planned_events, iter(range(9))
    monkeypatch.setattr(Method, "planned_events", lambda *args: [*real(*args), next(asked)])
    with pytest.raises(OptionError, match="fedcad cannot be extended: the price of its releases depends on num_rounds"):
        extend_run(finished, ["num_rounds=4"])


# --- the command line ------------------------------------------------------------------------------------


def test_commands_say_which_of_them_does_what(run: Run, cli: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = run(*SMALL, "num_rounds=2")
    outcome = cli(f"resume={folder}", "num_rounds=4")
    assert outcome.code == 2 and f"extend={folder.name} num_rounds=..." in outcome.err and "rerun=" in outcome.err
    outcome = cli(f"resume={folder}")
    assert outcome.code == 2 and f"extend={folder} num_rounds=..." in outcome.err
    outcome = cli(f"extend={folder}", "num_rounds=4", "operations.report=true")
    assert outcome.code == 0, outcome.err
    assert summary_of(folder)["rounds"] == 4
    page = (folder / "report.html").read_text()
    assert "This run was extended." in page and "after round 2" in page


def test_a_rerun_takes_other_options(run: Run, cli: Callable[..., Outcome], tmp_path: Path) -> None:
    """Single ones, whole groups, and what follows from num_rounds."""
    folder = run(*SMALL, "num_rounds=2", "strategy.client.clip_norm=0.2")
    outcome = cli(f"rerun={folder}", "seed=3", "local.lr=0.2", f"hydra.run.dir={tmp_path / 'again'}")
    assert outcome.code == 0, outcome.err
    fresh = run(*SMALL, "num_rounds=2", "strategy.client.clip_norm=0.2", "seed=3", "local.lr=0.2")
    assert result_of(tmp_path / "again") == result_of(fresh)
    other = config_for_rerun(folder, ["strategy=fedldp", "num_rounds=3"])
    assert other.strategy.name == "fedldp" and other.num_rounds == 3
    counted = run(*SMALL, "strategy=cpsgd", "num_rounds=2")
    assert config_for_rerun(counted, ["num_rounds=3"]).strategy.options.rounds == 3
    for options, words in (
        (["no.such=1"], r"no"),
        (["local.lr=-1"], r"local\.lr=-1"),
        (["seed=1,2"], r"seed=1,2: several values need a sweep"),
    ):
        with pytest.raises(OptionError, match=words):
            config_for_rerun(folder, options)


def test_a_target_is_what_the_plan_says(run: Run) -> None:
    folder = run(*SMALL, "num_rounds=2", "privacy.target_epsilon=30")
    assert target_price(read_config(folder)) == pytest.approx(30, rel=0.02)


def test_the_servers_optimizer_goes_on_with_what_it_kept(run: Run) -> None:
    options = (*SMALL, "strategy.server.optimizer=adam", "strategy.server.lr=0.03")
    folder, whole = run(*options, "num_rounds=2"), run(*options, "num_rounds=4")
    extended(folder, "num_rounds=4")
    assert result_of(folder)["model"] == result_of(whole)["model"]
