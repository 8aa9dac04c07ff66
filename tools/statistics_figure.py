"""The table of docs/statistics.md: errors of answers in a secure sum of five sites, over those of the exact
Gaussian that one trusted server would add at the same epsilon and delta (B. Balle, Y.-X. Wang 2018).

    python -m tools.statistics_figure

breast_cancer, delta 1e-4, a list of four questions, all sites reply and nobody colludes. Each site's numbers pass
through the client's own rounding and noise; `DRAWS` lists of answers are drawn for each epsilon, and as many from the
Gaussian. An interval is one of 95 % of the ratio of two root mean squares, by resampling draws.
"""

from __future__ import annotations

import numpy as np
import torch

from fedpriv.client.build import make_client
from fedpriv.config.compose import compose
from fedpriv.data.asked import KEPT, Asks
from fedpriv.data.load import load_federated
from fedpriv.data.questions import weights
from fedpriv.mechanisms.noise import SeededNoise
from fedpriv.privacy.gaussian_dp import gaussian_mu
from fedpriv.runs.planning import with_target

QUESTIONS = ("sum:mean area", "mean:mean radius", "histogram:diagnosis", "histogram:mean radius:20")
DRAWS, SITES, DELTA = 8000, 5, 1e-4


def errors(asks: Asks, totals: np.ndarray, true: np.ndarray) -> list[np.ndarray]:
    """For each question squared errors [draws] of answers, mean over its numbers; totals: [draws, numbers]."""
    found, start = [], 0
    for question, weight in zip(asks.questions, weights(asks.questions), strict=True):
        part = slice(start, start + question.size)
        start += question.size
        answers, exact = (question.decode(total[..., part] / weight) for total in (totals, true))
        found.append(((answers - exact) ** 2).mean(axis=-1))
    return found


def ratio(squares: np.ndarray, others: np.ndarray) -> str:
    """Of the roots of the means, with its interval."""
    rng, found = np.random.default_rng(0), []
    for _ in range(1000):
        one, other = (part[rng.integers(0, len(part), len(part))].mean() for part in (squares, others))
        found.append((one / other) ** 0.5)
    low, high = np.quantile(found, (0.025, 0.975))
    return f"{(squares.mean() / others.mean()) ** 0.5:.3f} ({low:.3f} to {high:.3f})"


def row(form: str, epsilon: float) -> list[str]:
    """One line of the table."""
    asked = f"strategy.client.questions=[{','.join(map(repr, QUESTIONS))}]"
    options = ["strategy=ask", asked, "dataset=breast_cancer", f"num_clients={SITES}", f"strategy.client.form={form}"]
    options += [f"strategy.server.min_replies={SITES}", f"privacy.target_epsilon={epsilon}", f"privacy.delta={DELTA}"]
    config = with_target(compose(options))
    data, client = load_federated(config), make_client(config)
    asks = client.facts.asks
    assert asks is not None
    rows, totals = data.dataset.train, np.zeros((DRAWS, asks.num_outputs))
    true = np.zeros(asks.num_outputs)
    for site in range(SITES):
        chosen = data.train_indices(site)
        own = asks.total(np.asarray(rows.inputs)[chosen], rows.targets[chosen], None)
        noise = SeededNoise(0, site, 1, 0, "release")
        numbers = client.leaving(torch.from_numpy(own).expand(DRAWS, -1), noise)  # type: ignore[attr-defined]
        totals += client.grid.decode(numbers.numpy())  # type: ignore[attr-defined]
        true += own
    exact = true + np.random.default_rng(0).normal(0, 1 / gaussian_mu(epsilon, DELTA), totals.shape)
    pairs = zip(errors(asks, totals / KEPT, true / KEPT), errors(asks, exact, true), strict=True)
    return [form, f"{epsilon:g}", *(ratio(ours, theirs) for ours, theirs in pairs)]


if __name__ == "__main__":
    print("| form | epsilon | " + " | ".join(f"`{question}`" for question in QUESTIONS) + " |")
    print("|---" * (len(QUESTIONS) + 2) + "|")
    for form in ("ddgauss", "skellam"):
        for epsilon in (0.5, 1.0, 2.0, 8.0):
            print("| " + " | ".join(row(form, epsilon)) + " |", flush=True)
