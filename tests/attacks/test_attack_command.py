"""`python -m fedpriv.attack` on real (small) runs: results with both controls, the cache, errors, snapshots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import Run, result_of, summary_of
from forked import fork_server
from PIL import Image
from rotation import together
from safetensors.torch import load_file

from fedpriv.attacks import experiment as experiment_module
from fedpriv.attacks import lira, shadows
from fedpriv.attacks.experiment import Experiment
from fedpriv.attacks.shadows import Shelf
from fedpriv.attacks.subject import Scored
from fedpriv.commands.attack import main
from fedpriv.common.errors import OptionError, RunFolderError
from fedpriv.config.compose import compose, read_config
from fedpriv.config.remote import compose_remote
from fedpriv.runs.folder import RunFolder
from fedpriv.runs.start import resume_run, start_run

#: A run that leaves pictures for the attacker, and keeps its global models.
ATTACKED = (
    "strategy=fedavg",
    "engine=inprocess",
    "num_clients=4",
    "clients_per_round=4",
    "num_rounds=12",
    "dataset.train_examples=400",
    "attack.keep_snapshots=true",
    "attack.snapshot_every=4",
)
#: The attacks on models.
ON_MODELS = "confidence_series,ml_leaks,white_box,lira"
#: A cheap attack.
CHEAP = ("shadows=3", "control_models=6", "control_epochs=300")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked") / "run"
    start_run(compose(ATTACKED), folder)
    return folder


@pytest.fixture(scope="module")
def attacked(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run after four attacks; those on updates are in test_seen_updates.py."""
    folder = tmp_path_factory.mktemp("attacked") / "copy"
    shutil.copytree(finished, folder)
    assert main([f"run={folder}", f"attack={ON_MODELS}", *CHEAP]) == 0
    return folder


# --- results ---------------------------------------------------------------------------------------------


def test_every_attack_knows_an_overfitted_model_and_is_at_chance_on_another(attacked: Path) -> None:
    attacks = summary_of(attacked)["attacks"]
    assert list(attacks) == ["confidence_series", "ml_leaks", "white_box", "lira"]
    for found in attacks.values():
        positive, negative = (found["controls"][name]["balanced_accuracy"] for name in ("positive", "negative"))
        assert found["shown"] and positive["low"] > 0.5 and positive["value"] > 0.58
        assert negative["low"] <= 0.5 and negative["value"] < 0.58
        assert found["setting"]["shadow_examples"] == 400
        assert found["figures"]["members"] == found["figures"]["non_members"] >= 200
        assert found["figures"]["tpr_at_fpr_0.01"] == "too few"
    assert attacks["confidence_series"]["setting"]["models_in_series"] == 3  # rounds 4 and 8, and the last
    assert attacks["lira"]["setting"]["shadow_models"] == 3


def test_results_are_in_the_report_beside_the_epsilons(attacked: Path) -> None:
    page = (attacked / "private" / "report.html").read_text()
    figures = summary_of(attacked)["attacks"]["lira"]["figures"]["balanced_accuracy"]
    assert "Membership inference" in page and 'alt="ROC curves of the membership' in page
    assert f"{figures['value']:.3f} [{figures['low']:.3f}, {figures['high']:.3f}]" in page
    assert "positive control passed" in page and "no finite verified epsilon" in page
    assert (attacked / "private" / "attack-roc.png").stat().st_size > 10_000
    curve = json.loads((attacked / "private" / "attacks" / "lira.json").read_text())["roc"]
    assert curve["false_positive_rate"][0] == 0 and curve["true_positive_rate"][-1] == 1


def test_a_second_attack_trains_nothing_and_says_the_same(attacked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = summary_of(attacked)["attacks"]
    assert main([f"run={attacked}", "attack=lira,ml_leaks", *CHEAP]) == 0
    said = capsys.readouterr()
    assert "trained" not in said.err and "lira" in said.out and "white_box" not in said.out
    assert summary_of(attacked)["attacks"] == before


def test_a_broken_shadow_model_is_trained_again_and_is_the_same(attacked: Path) -> None:
    work = Experiment(RunFolder(attacked), read_config(attacked))
    jobs = work.shadow_jobs("lira")[:2]
    files = [work.shelf.folder / f"{job.key}.safetensors" for job in jobs]
    whole, others = files[0].read_bytes(), files[1].stat().st_mtime_ns
    files[0].write_bytes(whole[:100])
    trained: list[tuple[int, int]] = []
    found = work.shelf.models(jobs, lambda ready, of: trained.append((ready, of)))
    assert trained == [(0, 1), (1, 1)] and files[0].read_bytes() == whole and files[1].stat().st_mtime_ns == others
    assert (found[0].theta != found[1].theta).any()
    assert not list(work.shelf.folder.glob("*.npz"))


def test_processes_train_the_same_shadow_models(
    attacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of their own, here forks, which have torch."""
    monkeypatch.setattr(shadows, "multiprocessing", SimpleNamespace(get_context=lambda method: fork_server()))
    work = Experiment(RunFolder(attacked), read_config(attacked))
    jobs = work.shadow_jobs("lira")[:2]
    apart = Shelf(tmp_path, workers=2).models(jobs)
    for job, model in zip(jobs, apart, strict=True):
        assert (tmp_path / f"{job.key}.safetensors").read_bytes() == (
            work.shelf.folder / f"{job.key}.safetensors"
        ).read_bytes()
        assert model.rows is job.rows


def test_members_are_what_clients_train_on_and_non_members_are_not(finished: Path) -> None:
    """Against the run's own partition, read anew. Shadow models have one of every pair, by coins of their own."""
    work = Experiment(RunFolder(finished), read_config(finished))
    data = work.worker.data
    trained = np.concatenate([data.train_indices(client) for client in range(4)])
    assert len(trained) == 400
    targets = work.targets
    assert targets.by_coin and len(targets.pairs) == 400
    for sides in (targets.evaluated, targets.known):
        assert np.isin(sides.members, trained).all() and not np.isin(sides.others, trained).any()
        assert sides.others.max() < 1437  # no test picture
    for row in targets.evaluated.members[:5]:  # a row means the same picture on both sides
        assert (work.pool.train.inputs[row] == data.dataset.train.inputs[row]).all()
    jobs = [*work.shadow_jobs("lira")[:4], work.negative_job()]
    assert len({job.config.seed for job in jobs} | {work.config.seed}) == len(jobs) + 1  # noise is never the run's own
    pairs = np.stack([targets.pairs.members, targets.pairs.others])
    inside = np.stack([np.isin(pairs, job.rows) for job in jobs])  # [jobs, side, pairs]
    assert (inside.sum(1) == 1).all() and all(len(job.rows) == 400 for job in jobs)
    assert (inside[0] != inside[1]).all() and (inside[2] != inside[3]).all()  # every picture is in half of them
    shares = inside[[0, 2, 4], 0].mean(1)
    assert (np.abs(shares - 0.5) < 0.1).all()  # members and non-members alike
    assert not any(np.isin(job.tested, trained).any() or job.tested.min() < 1437 for job in jobs)
    parts, models, beside = work.control_jobs("lira")
    assert all(np.isin(part.pairs.members, job.rows).all() for part, job in zip(parts, models, strict=True))
    assert len({job.rows.tobytes() for job in [*models, *beside]}) == len(models) + len(beside)


def test_clients_that_never_took_part_have_no_members(run: Run) -> None:
    folder = run(
        "strategy=fedavg", "num_clients=6", "clients_per_round=2", "num_rounds=1", "dataset.train_examples=600"
    )
    work = Experiment(RunFolder(folder), read_config(folder))
    asked = work._participants()
    assert len(asked) == 2
    allowed = np.concatenate([work.worker.data.train_indices(client) for client in asked])
    assert np.isin(np.concatenate([work.targets.evaluated.members, work.targets.known.members]), allowed).all()


def test_shadow_models_of_a_small_pool_are_smaller_and_stay_alike(run: Run) -> None:
    """All training examples in use: test examples are partners, so shadows have fewer clients, not fewer pictures."""
    folder = run("strategy=dpsgd", "num_clients=20", "clients_per_round=10", "num_rounds=1", "local.batch_size=30")
    work = Experiment(RunFolder(folder), read_config(folder))
    job = work.shadow_jobs("ml_leaks")[0]
    size = len(job.rows) / job.config.num_clients
    assert not work.targets.by_coin and not np.isin(job.tested, job.rows).any()
    assert 300 < len(job.rows) <= 360 and job.config.num_clients == 5 and 0.5 < size / 72 < 2
    assert job.config.local.batch_size == 30 and job.config.clients_per_round in (2, 3)
    assert job.config.strategy.options.noise_multiplier == work.config.strategy.options.noise_multiplier


# --- controls --------------------------------------------------------------------------------------------


def test_where_the_positive_control_fails_nothing_is_shown(
    attacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A LiRA whose sign is wrong: worse than chance on a model that gives everything away."""
    folder = tmp_path / "run"
    shutil.copytree(attacked, folder)
    real = lira.likelihood_ratio
    monkeypatch.setattr(lira, "likelihood_ratio", lambda *given: -real(*given))
    assert main([f"run={folder}", "attack=lira", *CHEAP]) == 1
    said = capsys.readouterr()
    assert "lira is not shown: positive control failed: balanced accuracy 0." in said.err
    found = summary_of(folder)["attacks"]["lira"]
    assert not found["shown"] and "figures" not in found and "roc" not in found
    page = (folder / "private" / "report.html").read_text()
    assert "not shown: a control failed" in page and "lira, positive control failed" in page


def test_where_the_negative_control_fails_nothing_is_shown(
    attacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An attack that looks up the answer succeeds on a model that has nothing to do with it."""
    folder = tmp_path / "run"
    shutil.copytree(attacked, folder)

    def cheat(view: Any, subject: Any, targets: Any) -> Scored:
        return Scored(np.ones(len(targets.evaluated.members)), np.zeros(len(targets.evaluated.others)), 0.5)

    monkeypatch.setitem(experiment_module.ATTACKS, "white_box", cheat)
    assert main([f"run={folder}", "attack=white_box", *CHEAP]) == 1
    assert "white_box is not shown: negative control failed: balanced accuracy 1.000" in capsys.readouterr().err


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (
            "attack=whitebox",
            "attack=whitebox: allowed: confidence_series, ml_leaks, white_box, lira, rmia, update_product",
        ),
        ("members=3", "attack.members=3: must be at least 20"),
        ("shadows=many", "attack.shadows=many: must be a whole number"),
        ("known_share=1", "attack.known_share=1: must be less than 1"),
        ("attack.workers=0", "attack.workers=0: must be at least 1"),
        ("strategy=fedavg", "strategy=fedavg: there is no such option here"),
        ("keep_snapshots=true", "keep_snapshots=true: there is no such option here"),
    ],
)
def test_wrong_options_are_one_line(
    finished: Path, argument: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"run={finished}", argument]) == 2
    assert capsys.readouterr().err.startswith(f"fedpriv: {words}")


def test_what_a_run_must_have(finished: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str) -> str:
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    capsys.readouterr()
    assert "there is no such run folder" in said(f"run={tmp_path / 'nowhere'}")
    assert "run=RUN_FOLDER" in said("attack=lira")
    copy = tmp_path / "unfinished"
    shutil.copytree(finished, copy)
    (copy / "summary.json").unlink()
    assert "has not finished; resume=" in said(f"run={copy}")
    plain = run("strategy=fedavg", "num_rounds=1", "dataset.train_examples=400")
    assert "attack.keep_snapshots=true" in said(f"run={plain}", "attack=confidence_series")
    few = run("strategy=fedavg", "num_rounds=1", "dataset.train_examples=40")
    assert "at least 20 are needed" in said(f"run={few}", "attack=white_box")


def test_clients_that_share_pictures_have_no_members_of_their_own(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """What is verified for one client is not for a picture that several hold."""
    folder = run("partition=resampled", "partition.examples_per_client=30", "num_rounds=1")
    assert main([f"run={folder}"]) == 2
    error = capsys.readouterr().err
    assert "partition=resampled: clients share examples" in error and len(error.strip().splitlines()) == 1


def test_an_attack_on_pictures_that_are_gone_names_their_folder(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(12):
            picture = rng.integers(0, 255, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(picture).save(tmp_path / "pictures" / label / f"{number}.png")
    data = ("dataset=image_folder", f"dataset.root={tmp_path / 'pictures'}", "dataset.size=8", "model=linear")
    folder = run("strategy=fedavg", *data, "num_rounds=1")
    shutil.rmtree(tmp_path / "pictures")
    capsys.readouterr()
    assert main([f"run={folder}"]) == 2
    assert str(tmp_path / "pictures") in capsys.readouterr().err


def test_all_leaves_out_what_the_run_does_not_allow(
    attacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(attacked, folder)
    shutil.rmtree(folder / "snapshots")
    monkeypatch.setattr("fedpriv.attacks.run._attack", lambda experiment, name: kept.pop(name))
    kept = {path.stem: json.loads(path.read_text()) for path in (folder / "private" / "attacks").glob("*.json")}
    kept["rmia"] = kept["lira"] | {"attack": "rmia"}
    assert main([f"run={folder}"]) == 0
    assert "confidence_series: left out" in capsys.readouterr().out and list(kept) == ["confidence_series"]


def test_help_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (main([]), main(["--help"])) == (2, 0)
    asked: list[Any] = []
    monkeypatch.setattr("fedpriv.commands.attack.attack_run", lambda *given: asked.append(given) or 0)
    assert main(["run=x", "attack=lira", "attack.members=100", "workers=null", "dataset.root=here"]) == 0
    assert asked == [("x", "lira", {"members": 100, "workers": None}, ["dataset.root=here"])]
    assert main(["attack=lira"]) == 2


# --- what a run keeps ------------------------------------------------------------------------------------

KEPT = ("attack.keep_snapshots=true", "attack.snapshot_every=2", "num_rounds=7", "checkpoint.every=3")


def test_a_run_keeps_global_models_only_where_asked(run: Run) -> None:
    folder = run("strategy=fedcad", *KEPT)
    assert [path.name for path in sorted((folder / "snapshots").iterdir())] == [
        f"round-{number:06d}.safetensors" for number in (2, 4, 6)
    ]
    final, kept = (load_file(folder / name) for name in ("model.safetensors", "snapshots/round-000006.safetensors"))
    assert {k: v.shape for k, v in final.items()} == {k: v.shape for k, v in kept.items()}
    assert any((final[name] != kept[name]).any() for name in final)
    shorter = run("strategy=fedcad", *KEPT, "num_rounds=6", "attack.snapshot_every=6")
    assert not (shorter / "snapshots").exists()  # the last one is model.safetensors
    plain = run("strategy=fedcad", "num_rounds=7", "checkpoint.every=3")
    assert not (plain / "snapshots").exists()
    assert result_of(plain)["model"] == result_of(folder)["model"]


def test_snapshots_are_the_same_after_a_crash(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("strategy=fedcad", *KEPT)
    real = RunFolder.save_snapshot

    def crash(self: RunFolder, number: int, *rest: Any) -> None:
        real(self, number, *rest)
        if number == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunFolder, "save_snapshot", crash)
    folder = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        run("strategy=fedcad", *KEPT, folder=folder)
    monkeypatch.undo()
    assert sorted(RunFolder(folder).snapshots()) == [2, 4]
    seen: list[list[int]] = []
    monkeypatch.setattr(
        RunFolder, "save_snapshot", lambda self, *rest: (seen.append(list(self.snapshots())), real(self, *rest))[1]
    )
    resume_run(folder)
    assert seen[0] == [2]  # round 4 lies behind the checkpoint of round 3 and is computed again
    names = [f"snapshots/round-{number:06d}.safetensors" for number in (2, 4, 6)]
    assert [(folder / name).read_bytes() for name in names] == [(whole / name).read_bytes() for name in names]
    assert result_of(folder) == result_of(whole)


def test_run_folders_from_before_can_be_read(finished: Path, tmp_path: Path) -> None:
    raw = yaml.safe_load((finished / "config.yaml").read_text())
    del raw["attack"], raw["dataset"]["train_examples"], raw["dataset"]["split"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    config = read_config(tmp_path)
    assert (config.attack.keep_snapshots, config.attack.members, config.dataset.split) == (False, 2000, None)


def test_from_outside_a_run_may_be_told_to_keep_snapshots() -> None:
    config = compose_remote(["attack.keep_snapshots=true", "attack.snapshot_every=3", "dataset.train_examples=100"])
    assert config.attack.snapshot_every == 3
    for refused in ("attack.workers=9", "dataset.split=/etc/passwd"):
        with pytest.raises(OptionError):
            compose_remote([refused])


def test_a_broken_snapshot_is_named(attacked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    shutil.copytree(attacked, folder)
    (folder / "snapshots" / "round-000004.safetensors").write_bytes(b"torn")
    with pytest.raises(RunFolderError, match=r"round-000004\.safetensors: the model cannot be read"):
        _ = Experiment(RunFolder(folder), read_config(folder)).model


@pytest.mark.pictures
@pytest.mark.rotates(3, together(1))
def test_a_network_that_overfits_real_pictures_gives_them_away(pictures: Path, tmp_path: Path, run: Run) -> None:
    """Of CIFAR-10, 200 pictures by heart: every control of the white-box attack passes, and it succeeds on the run."""
    for folder in (pictures / "cifar10").glob("*/*/"):
        own = tmp_path / "pictures" / folder.relative_to(pictures)
        own.mkdir(parents=True)
        for picture in sorted(folder.iterdir())[: 150 if own.parent.name == "train" else 50]:  # all are 24,000
            (own / picture.name).symlink_to(picture)
    data = ("dataset=image_folder", f"dataset.root={tmp_path / 'pictures/cifar10'}", "dataset.size=32", "model=cnn")
    size = ("num_clients=2", "clients_per_round=2", "num_rounds=5", "dataset.train_examples=200")
    local = ("local.epochs=8", "local.lr=0.02", "local.momentum=0.9", "local.batch_size=10")
    folder = run("strategy=fedavg", *data, *size, *local)
    cheap = ("known_share=0.5", "control_models=1", "control_examples=100", "control_epochs=40")
    assert main([f"run={folder}", "attack=white_box", *cheap]) == 0
    found = summary_of(folder)["attacks"]["white_box"]["figures"]
    assert found["members"] == 100 and found["balanced_accuracy"]["low"] > 0.6
