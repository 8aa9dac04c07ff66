"""Synthetic run folders with every file and key that a run writes, for the tests of the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

THREAT = {"unit": "client", "adjacency": "replace-one", "observer": "server", "delta": 1e-5}


def privacy(**changes: Any) -> dict[str, Any]:
    return {
        **THREAT,
        "variant": "repaired",
        "claimed_epsilon": 12.3,
        "claimed_scope": "run",
        "claimed_equation": "Theorem VI.1, composed by RDP",
        "verified_epsilon": 31.5,
        "verified_median": 22.0,
        "verified_at_claimed_scope": 31.5,
        "accountant": "gaussian",
        "spent_so_far": 31.5,
        "audited_epsilon": None,
        "audited_confidence": None,
        "audited_trials": None,
        "clients_stopped": 0,
        "reasons": [],
        "others": [],
        **changes,
    }


LEAKS = privacy(
    variant="published",
    verified_epsilon="inf",
    verified_median="inf",
    verified_at_claimed_scope="inf",
    spent_so_far="inf",
    reasons=["Diff follows the norm of the update without noise (Algorithm 1, line 25)"],
)
NO_PRIVACY = privacy(
    claimed_epsilon=None,
    claimed_scope=None,
    claimed_equation=None,
    verified_epsilon="inf",
    verified_median="inf",
    verified_at_claimed_scope=None,
    spent_so_far="inf",
    reasons=["updates are sent without noise"],
)


def config(strategy: str = "fedcad", noise: float | None = 0.1, seed: int = 0, rounds: int = 30, **client: Any) -> Any:
    options = (
        {"_target_": f"clients.{strategy}.Client"} | ({} if noise is None else {"noise_multiplier": noise}) | client
    )
    return {
        "seed": seed,
        "num_clients": 100,
        "clients_per_round": 10,
        "num_rounds": rounds,
        "strategy": {
            "name": strategy,
            "server": {"_target_": f"strategies.{strategy}.Server", "min_replies": 1},
            "client": options,
        },
        "dataset": {"name": "mnist", "root": None},
        "partition": {"name": "iid", "test_fraction": 0.0},
        "model": {"name": "cnn"},
        "engine": {"name": "inprocess", "workers": None, "trainer": "vectorised"},
        "privacy": {"variant": "repaired", "delta": 1e-5, "max_epsilon": None, "rng": "seeded"},
        "run_dir": None,
    }


def metrics(rounds: int, accuracy: float, *, seed: int = 0, noise: float | None = 0.1, every: int = 1) -> list[Any]:
    """A learning curve that ends at exactly ``accuracy``; nulls in rounds without evaluation."""
    draw = np.random.default_rng(seed)
    lines = []
    for i in range(1, rounds + 1):
        evaluated = i % every == 0 or i == rounds
        now = (
            0.1
            + (accuracy - 0.1) * (1 - np.exp(-5 * i / rounds)) / (1 - np.exp(-5))
            + 0.02 * draw.normal() * (i < rounds)
        )
        lines.append(
            {
                "round": i,
                "accuracy": float(now) if evaluated else None,
                "loss": float(2.3 * (1.05 - now)) if evaluated else None,
                "train_loss": float(2.2 * (1 - now) + 0.03 * draw.normal()),
                "participants": 10,
                "dropped": int(i == 3),
                "refused": {"stale": 2, "wrong_shape": 1} if i == 3 else {},
                "stopped": 0,
                "seconds": 0.9,
                "bytes_up": 3208080,
                "bytes_down": 3208080,
                "update_norm": float(1.4 + 0.1 * draw.normal()),
                "clipped_norm": 1.0,
                "noise_norm": None if noise is None else float(283 * noise * (1 + 0.002 * draw.normal())),
                "epsilon_so_far": "inf" if noise is None else float(31.5 * np.sqrt(i / rounds)),
                "figures": {"diff_mean": 0.5 - 0.005 * i, "participants": [3, 5, 7]},
            }
        )
    return lines


def summary(cfg: Mapping[str, Any], accuracy: float, total_s: float, record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "strategy": cfg["strategy"]["name"],
        "dataset": cfg["dataset"]["name"],
        "model": "cnn",
        "seed": cfg["seed"],
        "rounds": cfg["num_rounds"],
        "num_clients": 100,
        "clients_per_round": 10,
        "num_parameters": 80202,
        "accuracy": {"final": accuracy, "best_on_test": accuracy + 0.01, "personalised": None},
        "loss": {"final": 0.41},
        "privacy": dict(record),
        "timing": {"total_s": total_s, "setup_s": 2.1, "rounds_s": 28.0, "median_round_s": 0.9, "ledger_s": 0.1},
        "traffic": {"bytes_up": 96242400, "bytes_down": 96242400},
        "peak_memory_mib": 900,
        "versions": {"flwr": "1.41.0", "torch": "2.15.0"},
    }


def ledger(rounds: int, mechanism: str = "gaussian") -> list[dict[str, Any]]:
    """Ten of the hundred clients a round; client 0 takes part in every one."""
    entry = {"sequence": 0, "attempt": 0, "mechanism": mechanism, "multiplier": 0.05, "count": 1, **THREAT}
    del entry["delta"]
    return [
        {"round": i, "client": client, **entry}
        for i in range(1, rounds + 1)
        for client in (0, *range(1 + (9 * i) % 90, 10 + (9 * i) % 90))
    ]


def make_run(
    folder: Path,
    *,
    seed: int = 0,
    accuracy: float = 0.88,
    total_s: float = 31.0,
    rounds: int = 30,
    record: Mapping[str, Any] | None = None,
    noise: float | None = 0.1,
    strategy: str = "fedcad",
    finished: bool = True,
    every: int = 1,
    **client: Any,
) -> Path:
    (folder / "private").mkdir(parents=True)
    record = privacy() if record is None else record
    cfg = config(strategy, noise, seed, rounds, **client)
    cfg["privacy"]["variant"] = record["variant"]
    cfg["privacy"]["delta"] = record["delta"]
    (folder / "config.yaml").write_text(yaml.safe_dump(cfg, sort_keys=False))
    done = rounds if finished else rounds // 2
    lines = metrics(rounds, accuracy, seed=seed, noise=noise, every=every)[:done]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "ledger.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in ledger(done)))
    if finished:
        (folder / "summary.json").write_text(json.dumps(summary(cfg, accuracy, total_s, record)))
    return folder


def change_summary(folder: Path, **parts: Any) -> Path:
    """Sets parts of a run's summary; of a mapping those that are given."""
    content = json.loads((folder / "summary.json").read_text())
    for name, part in parts.items():
        content[name] = {**content.get(name, {}), **part} if isinstance(part, dict) else part
    (folder / "summary.json").write_text(json.dumps(content))
    return folder


def sweep_of(folder: Path, options: list[str] | None, targets: tuple[float, ...] = (2.0, 8.0)) -> Path:
    """Two methods at each target: what a target makes of the noise differs with it, and with a seed's cohorts."""
    for strategy, slope in (("fedldp", 0.05), ("fedcad", 0.08)):
        for target in targets:
            for seed in (1, 2):
                noise, accuracy = 1 / target / 3 + slope + 0.01 * seed, 0.3 + slope * target + 0.01 * seed
                one = folder / f"{strategy}-{target:g}-{seed}"
                record = privacy(verified_epsilon=target - 0.01)
                make_run(one, strategy=strategy, seed=seed, accuracy=accuracy, rounds=2, noise=noise, record=record)
                options_of = yaml.safe_load((one / "config.yaml").read_text())
                options_of["privacy"]["target_epsilon"] = target
                (one / "config.yaml").write_text(yaml.safe_dump(options_of))
    if options is not None:
        (folder / "sweep.json").write_text(json.dumps({"jobs": 8, "options": options}))
    return folder


def whole_page(folder: Path) -> Path:
    """The page with all that the experimenter may see, written now."""
    from fedpriv.report.page import write_report

    public, whole = write_report(folder), folder / "private" / "report.html"
    return whole if whole.exists() else public


def full_run(folder: Path, rounds: int = 30, clients: int = 30, epsilon: float = 12_660.0) -> Path:
    """A finished run that has every section and every picture."""
    record = privacy(
        verified_epsilon=epsilon, verified_median=epsilon, spent_so_far=epsilon, claimed_epsilon=8.0,
        claimed_scope="round", verified_at_claimed_scope=30.0, audited_epsilon=7.4, audited_confidence=0.95,
        audited_trials=1000,
    )  # fmt: skip
    make_run(folder, rounds=rounds, record=record)
    draw = np.random.default_rng(1)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        own = {str(client): float(draw.uniform(0.6, 1)) for client in range(clients)}
        norms = {client: float(draw.uniform(0.1, 3)) for client in own}
        line["figures"] |= {"clip_norm": 1 / line["round"], "reported_norms": norms}
        line["figures"] |= {"share_perturbed": 0.5, "scheduled_share": 0.6}
        line["personal_accuracy"] = {"mean": 0.8, "worst_decile": 0.6, "std": 0.1, "clients": own}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    _attacked(folder, epsilon)
    _drawn_by_others(folder)
    return folder


def _attacked(folder: Path, epsilon: float) -> None:
    from fedpriv.report.attacks import draw_attacks

    rates = np.linspace(0, 1, 500)
    estimate = {"value": 0.52, "low": 0.5, "high": 0.54}
    found: dict[str, Any] = {
        "attack": "yeom",
        "shown": True,
        "figures": {
            "balanced_accuracy": estimate, "auc": estimate, "tpr_at_fpr_0.01": estimate, "members": 900,
            "non_members": 900,
        },
        "guarantee": {"epsilon": epsilon, "delta": 1e-5, "unit": "client"},
        "verdict": f"consistent with the guarantee: verified epsilon {epsilon:,.0f}",
        "controls": {"hard": {"name": "hard", "passed": True, "balanced_accuracy": estimate, "auc": estimate}},
    }  # fmt: skip
    content = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(content | {"attacks": {"yeom": found}}))
    curve = {"false_positive_rate": list(rates), "true_positive_rate": list(rates**0.8)}
    (folder / "private" / "attacks").mkdir()
    (folder / "private" / "attacks" / "yeom.json").write_text(json.dumps(found | {"roc": curve}))
    draw_attacks(folder / "private")


def _drawn_by_others(folder: Path) -> None:
    """Who holds what, as much as bars can show, and an audit."""
    from fedpriv.data.types import Dataset, Examples, FederatedData, Partition
    from fedpriv.mechanisms.tasks import of_classes
    from fedpriv.privacy.auditor import Audit
    from fedpriv.report.attacks import AuditRow, draw_audit
    from fedpriv.report.label_plot import draw_label_distribution

    labels = np.arange(2000) % 20
    pictures = Examples(np.zeros((2000, 1, 1, 1), dtype=np.uint8), labels)
    dataset = Dataset("mnist", pictures, pictures, of_classes(tuple(map(str, range(20)))), (0.5,), (1.0,))
    partition = Partition(np.arange(2000), np.arange(0, 2001, 20), np.full(100, 19))
    data = FederatedData(dataset, partition, np.arange(0), np.arange(1))
    draw_label_distribution(data, folder / "private" / "labels.png")
    audit = Audit(7.4, 0.95, 1000, 1e-5, 0.0, 1.0, "linear", 7.4)
    draw_audit([AuditRow("one release", audit, 8.0, 8.0)], folder / "audit.png", threat="unit client")
