"""Attacks on what the server sees: kept updates, their scores, likelihood ratios, inversion; RMIA."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Run, summary_of
from safetensors.torch import load_file

from fedpriv.attacks import lira, rmia, update_scores
from fedpriv.attacks.attack_records import guarantee
from fedpriv.attacks.experiment import Experiment
from fedpriv.attacks.gradient_inversion import Known, distances, labels_in, quotients, searched
from fedpriv.attacks.metrics import auc
from fedpriv.attacks.subject import Subject, Trained
from fedpriv.attacks.targets import Sides, Targets
from fedpriv.attacks.view import View
from fedpriv.commands.attack import main
from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose, read_config
from fedpriv.config.schema import ModelConfig
from fedpriv.data import Dataset, Examples
from fedpriv.mechanisms.tasks import of_classes
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.round_updates import RoundUpdates, refuse_unseen
from fedpriv.training.models import build_model
from fedpriv.training.sequential import FlatModel

SMALL = ("num_clients=16", "clients_per_round=16", "num_rounds=3", "dataset.train_examples=128", "model=mlp")
KEPT = ("strategy=fedavg", "engine=inprocess", *SMALL, "local.batch_size=8", "attack.keep_updates=true")


@pytest.fixture
def view() -> View:
    rng = np.random.default_rng(0)
    pictures = Examples(rng.integers(0, 255, (400, 1, 8, 8)).astype(np.uint8), rng.integers(0, 3, 400))
    pool = Dataset("noise", pictures, pictures, of_classes(("a", "b", "c")), (0.5,), (0.5,))
    return View(FlatModel(build_model(ModelConfig(name="linear"), (1, 8, 8), 3, 0)), pool)


def flat(view: View, rows: np.ndarray) -> np.ndarray:
    return torch.cat(list(view.gradients(view.model.theta.clone().numpy(), rows))).numpy()


def test_gradients_of_single_examples_add_up_to_autograds(view: View) -> None:
    rows, theta = np.arange(5, 12), view.model.theta.clone()
    found = flat(view, rows)
    for row, own in zip(rows, found, strict=True):
        view.model.load(theta)
        images, labels = next(view._batches(np.array([row])))
        loss = view.model.task.mean_loss(view.model(images), labels)
        parts = torch.autograd.grad(loss, list(view.model.module.parameters()))
        assert own == pytest.approx(torch.cat([part.reshape(-1) for part in parts]).numpy(), abs=1e-6)


def game(view: View, clients: int = 4, each: int = 30, noise: float = 0.0) -> tuple[Subject, Targets]:
    """One step of clients with ``each`` members, the first of which is the attacker's."""
    pairs = Sides(np.arange(clients * each), 150 + np.arange(clients * each), np.repeat(np.arange(clients), each))
    mine = pairs.homes == 0
    targets = Targets(pairs.of(~mine), pairs.of(mine), by_coin=True)
    theta, rng = view.model.theta.clone().numpy(), np.random.default_rng(1)
    updates = {
        client: (-flat(view, pairs.members[pairs.homes == client]).mean(0)).astype(np.float32)
        for client in range(clients)
    }
    updates = {
        client: update + noise * rng.normal(size=update.shape).astype(np.float32) for client, update in updates.items()
    }
    return Subject(Trained(theta, seen={1: RoundUpdates(theta, updates)}), public=np.arange(300, 400)), targets


def test_scores_of_updates_know_who_is_in_them_and_noise_hides_it(view: View) -> None:
    subject, targets = game(view)
    found = {work.__name__: work(view, subject, targets) for work in (update_scores.product, update_scores.cosine)}
    found["likelihood"] = update_scores.likelihood(view, subject, targets)
    areas = {name: auc(one.members, one.others).value for name, one in found.items()}
    assert areas["likelihood"] > 0.9 and areas["cosine"] > 0.6 and areas["product"] > 0.6
    hidden = update_scores.likelihood(view, *game(view, noise=1.0))
    assert 0.35 < auc(hidden.members, hidden.others).value < 0.65


def test_a_score_is_about_the_examples_own_client(view: View) -> None:
    """Another client's update says nothing of an example."""
    subject, targets = game(view)
    moved = {(client + 1) % 4: update for client, update in subject.model.seen[1].updates.items()}
    wrong = Subject(
        Trained(subject.model.theta, seen={1: RoundUpdates(subject.model.theta, moved)}), public=subject.public
    )
    found = update_scores.likelihood(view, wrong, targets)
    assert auc(found.members, found.others).value < 0.62


def test_a_client_that_took_no_part_says_nothing_and_an_unknown_one_is_the_mean(view: View) -> None:
    seen = RoundUpdates(np.zeros(2, np.float32), {3: np.array([1, 0], np.float32), 5: np.array([0, 1], np.float32)})
    moves, place = update_scores.directions(seen, np.array([5, 4, 9]), {3, 4, 5})
    assert place.tolist() == [1, -1, 2]
    assert moves.numpy() == pytest.approx(np.array([[1, -1], [-1, 1], [0.5, 0.5]]))


def test_a_rounds_likelihood_ratio_by_hand() -> None:
    asked = update_scores.Asked(np.arange(6), np.zeros(6, np.int64), np.array([2, 4, 5]))
    s, q = np.array([3.0, 5.0, 1.0, -1.0, 4.0, 0.0]), np.full(6, 2.0)
    # level 0, amount (3 + 5) / 4 = 2, c = mean(1 / 2, 1 / 2) = 1/2; (2 s - 4 q / 2) / c
    assert update_scores.log_ratio(s, q, np.ones(6, bool), asked) == pytest.approx(2 * (2 * s - 4))
    assert not update_scores.log_ratio(-s, q, np.ones(6, bool), asked).any()  # known members below known others


def test_rmia_compares_with_the_population() -> None:
    population, rows = np.log(np.array([1.0, 2.0, 4.0, 8.0])), np.array([7, 8, 9])
    of = np.log(np.array([4.0, 16.0, 0.5]))
    others = np.array([1, 2, 3, 4])
    assert rmia.share_ahead(of, rows, population, others, 1.0).tolist() == [0.75, 1.0, 0.0]
    assert rmia.share_ahead(of, rows, population, others, 2.0).tolist() == [0.5, 1.0, 0.0]
    assert rmia.share_ahead(of[:1], np.array([3]), population, others, 1.0).tolist() == [2 / 3]  # not with itself
    assert rmia.log_mean(np.log([[1.0, 2.0], [3.0, 4.0]])) == pytest.approx(np.log([2.0, 3.0]))
    assert rmia.log_probability(np.array([0.0])) == pytest.approx(np.log(0.5))


def test_lira_with_64_shadows_has_an_examples_own_variances() -> None:
    rng = np.random.default_rng(0)
    inside = np.arange(64)[:, None] % 2 == np.zeros((1, 2))
    seen = rng.normal(size=(64, 2)) * np.array([0.1, 10.0]) + 2 * inside
    found = lira.likelihood_ratio(np.array([2.0, 2.0]), seen, inside)
    assert found[0] > 50 and abs(found[1]) < 2
    (one,) = (seen[inside[:, 0], 0],)
    other = seen[~inside[:, 0], 0]
    expected = [-0.5 * ((2 - part.mean()) ** 2 / part.var(ddof=1) + np.log(part.var(ddof=1))) for part in (one, other)]
    assert found[0] == pytest.approx(expected[0] - expected[1])


# --- inversion -------------------------------------------------------------------------------------------


def step_of(view: View, rows: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(-0.1 * flat(view, rows).mean(0))


def test_quotients_of_one_example_are_the_example_and_labels_are_read_off(view: View) -> None:
    known = Known((1, 8, 8), torch.tensor(-1.0), torch.tensor(1.0), 0.0)
    update = step_of(view, np.array([11]))
    true = next(view._batches(np.array([11])))[0]
    assert quotients(view.model, update, known, 4)[0].numpy() == pytest.approx(true[0].numpy(), abs=1e-3)
    assert labels_in(view.model, update, 1, 3).tolist() == view.labels(np.array([11])).tolist()
    two = np.array([np.flatnonzero(view.labels(np.arange(400)) == label)[0] for label in (0, 2)])
    assert labels_in(view.model, step_of(view, two), 2, 3).tolist() == [0, 2]


def test_the_search_finds_two_examples(view: View) -> None:
    rows = np.array([np.flatnonzero(view.labels(np.arange(400)) == label)[0] for label in range(2)])
    theta, update = view.model.theta.clone(), step_of(view, rows)
    known = Known((1, 8, 8), torch.tensor(-1.0), torch.tensor(1.0), 0.0)
    found = searched(view.model, theta, update, torch.tensor([0, 1]), known, 200, 0)
    true = next(view._batches(rows))[0]
    apart = distances(true.flatten(1).double().numpy(), found.flatten(1).double().numpy())
    assert np.diag(apart).max() < 0.35 < 0.6 < apart[0, 1]


# --- the command -----------------------------------------------------------------------------------------


def test_updates_that_a_run_kept_are_attacked_and_shown(run: Run) -> None:
    folder = run(*KEPT)
    assert sorted(RunFolder(folder).updates()) == [1, 2, 3]
    kept = load_file(folder / "private" / "updates" / "round-000001.safetensors")
    assert len(kept) == 17 and torch.isfinite(kept["0"]).all()
    after = load_file(folder / "private" / "updates" / "round-000002.safetensors")["before"]
    mean = torch.stack([kept[str(client)] for client in range(16)]).mean(0)
    assert torch.allclose(kept["before"] + mean, after, atol=1e-5)
    cheap = ("inverted_steps=30", "inverted_clients=6", "control_models=5", "control_examples=40", "workers=1")
    assert main([f"run={folder}", "attack=update_likelihood,inversion", *cheap]) == 0
    attacks = summary_of(folder)["attacks"]
    for name in ("update_likelihood", "inversion"):
        found = attacks[name]
        assert found["shown"] and found["setting"]["rounds_seen"] == 3
        assert found["figures"]["auc"]["low"] > 0.6 and found["controls"]["negative"]["auc"]["low"] <= 0.5
    inverted = attacks["inversion"]["inversion"]
    assert inverted["found"][1] > inverted["public"][1] + 3 and inverted["clients"] == 6
    page = (folder / "private" / "report.html").read_text()
    assert "Examples found in updates" in page and 'alt="Training examples, what gradient inversion found' in page
    work = Experiment(RunFolder(folder), read_config(folder))
    data, pairs = work.worker.data, work.targets.pairs
    owner = {int(row): client for client in range(16) for row in data.train_indices(client)}
    assert [owner[int(row)] for row in pairs.members] == pairs.homes.tolist()


def test_what_a_run_without_updates_and_a_blind_server_say(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("strategy=fedavg", "num_rounds=1", "dataset.train_examples=400")
    capsys.readouterr()
    assert main([f"run={folder}", "attack=inversion"]) == 2
    assert "attack=inversion needs the clients' updates" in capsys.readouterr().err
    for options, words in (
        (("strategy=ddgauss",), "sees no single client"),
        (("strategy=fedper",), "a part of the model"),
    ):
        with pytest.raises(OptionError, match=rf"attack\.keep_updates=true: .*{words}.*allowed: false"):
            refuse_unseen(compose([*options, "attack.keep_updates=true", "model=mlp"]))


def test_an_attack_on_updates_is_held_against_who_sees_updates() -> None:
    threat = {"adjacency": "replace-one", "delta": 1e-5, "unit": "example", "verified_epsilon": 1.0}
    privacy = threat | {"observer": "public", "others": [threat | {"observer": "server", "verified_epsilon": 4.0}]}
    for attack, epsilon in (("lira", 1.0), ("update_likelihood", 4.0), ("inversion", 4.0)):
        found = guarantee(privacy, attack)
        assert found is not None and found.epsilon == epsilon
    assert guarantee(threat | {"observer": "secure-sum"}, "update_cosine") is None


def test_rows_of_a_table_are_found_in_updates_and_shown_in_the_report(run: Run, tmp_path: Path) -> None:
    """From the command to the page: what 16 clients with eight rows each sent gives their rows away."""
    rng = np.random.default_rng(1)
    names = ["age", "mood", "income", *(f"test {number}" for number in range(5))]
    low, high = np.array([0, -5, 100, 0, 0, 0, 0, 0]), np.array([100, 5, 900, 1, 2, 3, 4, 5])
    rows = np.round(rng.uniform(low, high, (600, 8)), 3)
    ill = np.where(rows[:, 0] + 8 * rows[:, 1] > 50, "yes", "no")
    lines = [",".join([*map(str, row), said]) for row, said in zip(rows.tolist(), ill, strict=True)]
    (tmp_path / "table.csv").write_text(",".join([*names, "ill"]) + "\n" + "\n".join(lines) + "\n")
    ranges = ", ".join(f"{name}: {{range: [{a}, {b}]}}" for name, a, b in zip(names, low, high, strict=True))
    target = "{column: ill, task: classification, classes: [no, yes]}"
    (tmp_path / "schema.yaml").write_text(f"target: {target}\ncolumns: {{{ranges}}}\n")
    table = ("dataset=table", f"dataset.root={tmp_path}/table.csv", f"dataset.schema_file={tmp_path}/schema.yaml")
    folder = run(*KEPT, *table, "num_rounds=1")
    cheap = ("inverted_steps=60", "inverted_clients=16", "control_models=6", "control_examples=40", "workers=1")
    assert main([f"run={folder}", "attack=inversion", *cheap]) == 0
    found = summary_of(folder)["attacks"]["inversion"]
    assert found["shown"], found["reason"]
    inverted = found["inversion"]
    assert inverted["measure"] == "error in standard deviations" and inverted["sought"] == 16  # two ways
    assert inverted["found"][1] < 0.8 * inverted["public"][1] and inverted["nearer"]["low"] > 0.4
    kept = json.loads((folder / "private" / "attacks" / "inversion.json").read_text())["samples"]
    assert kept["names"][::2] == names and kept["shape"] == [16]  # each beside whether it is missing
    best = kept["examples"][0]
    apart, public = (np.abs(np.array(best["true"]) - best[other]).max() for other in ("found", "public"))
    assert apart < 0.02 < 0.3 < public  # the row itself
    page = (folder / "private" / "report.html").read_text()
    assert "Rows found in updates" in page and "found in the update" in page and "income" in page
    for value in best["found"][:8]:
        assert f"{value:.2f}" in page
    assert not (folder / "private" / "attack-inversion.png").exists()
