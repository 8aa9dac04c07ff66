"""One-shot moments: what a linear head needs to know of all rows, as one sum, and the model that solves for the head.

R. A. Fisher 1936 (linear discriminant analysis). Y.-X. Wang: Revisiting differentially private linear regression, UAI
2018 (AdaSSP: a ridge as large as the noise). Sums of classes and one shared second moment of public features make a
head in one round: H. Guan et al.: FedCGS, 2025, and others without privacy.

Symbols: x [k] -> a row's numbers, t [o] -> its target (of a class, one in its place; or the number in [-1, 1]), B -> a
row's bound, u [k+1] -> (1, x/B)/sqrt(2) with x clipped to length B, a, b -> `SHARES`, tau -> standard deviation of the
noise in one number of the sum.

A row's vector is phi = (a t (x) u, b v(u u^T)), where v lists an upper triangle with sqrt(2) before what is off the
diagonal, so that |v(A)| is the Frobenius norm of A. |u| <= 1 and |t| <= 1, so |phi|^2 = a^2 |t|^2 |u|^2 + b^2 |u|^4 <=
a^2 + b^2 = 1. (No guarantee rests on that: `clipped_rows` clips what it measures.)

What the noise does. In S = sum u u^T it is a symmetric matrix whose largest eigenvalue is about nu = 2 sqrt(k+1)
tau/(b sqrt(2)) (semicircle law): eigenvalues of S below that are noise. So half of nu is added to all of them, the
whole spectrum being scaled back to the trace that it had; and where nu is `HIDDEN` times the mean eigenvalue of S or
more, auto takes the nearest mean. All of that is post-processing of the sum and of public numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedpriv.config.options import Head

#: auto, lda: what the sums of the classes use up of the vector's squared length; half is best for ridge.
SHARES = {"auto": 0.8, "lda": 0.8, "ridge": 0.5, "mean": 1.0}
#: Chosen on scikit-learn's digits and wine at epsilon 0.5 to 8: a sum where the second moment helps has less.
HIDDEN = 4.0
#: Part of nu that is added to the eigenvalues.
RIDGE = 0.5


def bound_of(given: float | None, inputs: int) -> float:
    """B of rows with so many numbers."""
    return math.sqrt(inputs / 3) if given is None else given


def units(rows: Tensor, bound: float) -> Tensor:
    """u (float64 [n, k+1]) of rows x [n, k]; of a row with a number that is not finite: zeros."""
    rows = rows.double()
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    scaled = rows / lengths.clamp(min=bound)
    found = torch.nn.functional.pad(scaled, (1, 0), value=1.0) / math.sqrt(2)
    return torch.where(torch.isfinite(lengths), found, 0.0)


def vectors(rows: Tensor, targets: Tensor, outputs: int, bound: float, head: Head) -> Tensor:
    """phi (float64 [n, numbers]) of rows [n, k] and their targets: int64 [n] of classes, or float32 [n]."""
    u, share = units(rows, bound), SHARES[head]
    one = nn.functional.one_hot(targets, outputs) if outputs > 1 else targets.clamp(-1, 1).nan_to_num().unsqueeze(1)
    first = (one.double().unsqueeze(2) * u.unsqueeze(1)).flatten(1) * math.sqrt(share)
    if share == 1:
        return first
    places, weights = _triangle(u.shape[1], share, u.device)
    return torch.cat([first, u[:, places[0]] * u[:, places[1]] * weights], dim=1)


def _triangle(size: int, share: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Places (int64 [2, n]) of an upper triangle, and what each is multiplied by in phi (float64 [n])."""
    places = torch.triu_indices(size, size, device=device)
    weights = torch.full((places.shape[1],), math.sqrt(2 * (1 - share)), dtype=torch.float64, device=device)
    weights[places[0] == places[1]] = math.sqrt(1 - share)
    return places, weights


class Moments(nn.Module):
    """Outputs [n, o] of the head that the sum says. first: [o, k+1], second: [(k+1)(k+2)/2], the sum of phi; noise:
    [1], tau. A model of o = 1 gives the number itself (ridge), others what a softmax makes probabilities of.
    """

    def __init__(self, inputs: int, outputs: int, bound: float, head: Head) -> None:
        super().__init__()
        self.inputs, self.bound, self.head = inputs, bound, head if outputs > 1 else "ridge"
        self.share = SHARES[head]
        self.first = nn.Parameter(torch.zeros(outputs, inputs + 1))
        if self.share < 1:
            self.second = nn.Parameter(torch.zeros((inputs + 1) * (inputs + 2) // 2))
        self.noise = nn.Parameter(torch.zeros(1))
        self._solved: tuple[list[Tensor], Tensor] | None = None

    def forward(self, rows: Tensor) -> Tensor:
        outputs = (units(rows.flatten(1), self.bound) @ self.weights().T).float()
        return outputs + 0 * self.noise  # whoever asks for gradients gets zeros: nothing trains it

    @torch.no_grad()
    def weights(self) -> Tensor:
        """W (float64 [o, k+1]) of u."""
        known = [part.detach() for part in self.parameters()]
        if self._solved is None or not all(map(torch.equal, self._solved[0], known)):
            self._solved = [part.clone() for part in known], self._solve()
        return self._solved[1]

    @property
    def hidden(self) -> float:
        """nu: eigenvalues of S below it are noise."""
        return math.sqrt(2 * (self.inputs + 1) / (1 - self.share)) * float(self.noise)

    def _solve(self) -> Tensor:
        sums = self.first.double() / math.sqrt(self.share)
        if self.head == "ridge":
            values, axes = torch.linalg.eigh(self._second())
            values = values.clamp(min=0) + RIDGE * self.hidden + 1e-6
            return sums @ (axes / values) @ axes.T
        counts = (sums[:, 0] * math.sqrt(2)).clamp(min=1)
        total = float(counts.sum())
        means, chances = sums[:, 1:] * math.sqrt(2) / counts.unsqueeze(1), counts / total  # of x/B
        blur = 2 * float(self.noise) ** 2 / self.share / counts.square()  # variance of the noise in a mean's numbers
        if self.head == "mean" or (self.head == "auto" and self.hidden > HIDDEN * total / (2 * (self.inputs + 1))):
            scatter = 1 - float(chances @ (means.square().sum(1) - self.inputs * blur))
            inverse = torch.eye(self.inputs, dtype=torch.float64, device=sums.device)
            inverse *= self.inputs / min(max(scatter, 0.1), 1)
        else:
            within = self._second()[1:, 1:] * 2 / total - (means.T * chances) @ means
            values, axes = torch.linalg.eigh(within)
            raised = values.clamp(min=0) + RIDGE * self.hidden * 2 / total + 1e-6
            raised *= max(float(within.trace()), 0.1) / float(raised.sum())
            inverse = (axes / raised) @ axes.T
        slopes = means @ inverse
        lengths = (slopes * means).sum(1) - blur * inverse.trace()
        bias = chances.log() - lengths / 2
        return torch.cat([bias.unsqueeze(1), slopes], dim=1) * math.sqrt(2)

    def _second(self) -> Tensor:
        """S (float64 [k+1, k+1])."""
        size = self.inputs + 1
        places, weights = _triangle(size, self.share, self.second.device)
        found = torch.zeros(size, size, dtype=torch.float64, device=self.second.device)
        found[places[0], places[1]] = self.second.double() / weights
        return found + found.triu(1).T
