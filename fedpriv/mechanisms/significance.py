"""Selection of a gradient's significant coordinates: without noise, by a noisy comparison, or privately.

Symbols (DP-FedAGS): g' -> values, k_t -> rank, lambda_t -> threshold, q -> selected, d -> dimension, T -> num_rounds.
Shapes: values [..., d]; leading dimensions are independent trials.
"""

from __future__ import annotations

from torch import Tensor


def scheduled_rank(server_round: int, num_rounds: int, dimension: int) -> int:
    """k_t in 1..d, in whole numbers; from t = 0.9 T on it stays at ceil(9 d/10), also beyond T.

    Raises ValueError for a round below 1, or no rounds or coordinates.
    """
    if min(server_round, num_rounds, dimension) < 1:
        raise ValueError(f"round {server_round} of {num_rounds}, {dimension} coordinates: each must be at least 1")
    # [DP-FedAGS, eq. 35]
    return min(-(-server_round * dimension // num_rounds), -(-9 * dimension // 10))


def scheduled_count(server_round: int, num_rounds: int, dimension: int, threshold: str) -> int:
    """How many coordinates are significant without noise and ties: d - k_t + 1 from the k_t-th smallest on, or k_t from
    the k_t-th largest on (threshold: equation | text).
    """
    rank = scheduled_rank(server_round, num_rounds, dimension)
    return rank if threshold == "text" else dimension - rank + 1


def top_count(share: float, dimension: int) -> int:
    """The number of coordinates in the top ``share`` in (0, 1]: at least one."""
    return min(dimension, max(1, round(share * dimension)))


def kth_smallest(values: Tensor, rank: int) -> Tensor:
    """lambda [...]: the ``rank``-th smallest coordinate, counted from 1. Raises ValueError for a rank outside 1..d."""
    dimension = values.shape[-1]
    if not 1 <= rank <= dimension:
        raise ValueError(f"rank {rank}: must be from 1 to {dimension}")
    return values.kthvalue(rank, dim=-1).values


def kth_largest(values: Tensor, rank: int) -> Tensor:
    """The ``rank``-th largest coordinate [...], counted from 1."""
    return kth_smallest(values, values.shape[-1] - rank + 1)


def noisy_comparison(values: Tensor, threshold: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """bool [..., d]: g'_j + alpha_j >= lambda + beta, with noise alpha [..., d] of each coordinate, beta [...]."""
    # [DP-FedAGS, Alg. 1 line 25]
    return values + alpha >= (threshold + beta).unsqueeze(-1)


def split_epsilon(epsilon: float, selected: int, values_share: float) -> tuple[float, float, float]:
    """(eps1, eps2, eps3): eps3 = values_share * eps for the values, the rest as eps1 : eps2 = q^(2/3) : 1."""
    rest, weight = epsilon * (1 - values_share), selected ** (2 / 3)
    eps1 = rest * weight / (weight + 1)  # [DP-FedAGS, IV-A]
    return eps1, rest - eps1, epsilon * values_share


def largest(scores: Tensor, count: int) -> Tensor:
    """bool [..., d]: the ``count`` largest scores of each vector. Raises ValueError for a count outside 1..d."""
    chosen = scores >= kth_largest(scores, count).unsqueeze(-1)
    if int(chosen.sum()) == count * chosen[..., 0].numel():
        return chosen
    chosen.fill_(False)  # with ties at the threshold, any count of them
    return chosen.scatter_(-1, scores.topk(count, dim=-1, sorted=False).indices, True)
