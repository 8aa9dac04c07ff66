"""Full-batch training of softmax regression, in the smaller of two forms.

One step on all n inputs z_i with targets y_i adds (lr/n) sum_i (e(y_i) - softmax(W z_i)) z_i' to the weights W [C, d].
So the update stays A'Z with Z [n, d] and coefficients A [n, C], and with the kernel K = ZZ' [n, n] each step is

    A <- A + (lr/n) (onehot(y) - softmax(Z W' + K A)).

That costs n^2 C in place of n d C: where a client has fewer examples than features it is cheaper, and the update is the
same. With more examples the steps are taken in the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.mechanisms.tasks import Classification
from fedpriv.training.sequential import LocalResult, SequentialTrainer, Training
from fedpriv.training.stacked_gradients import Chain


def softmax_update(weights: Tensor, inputs: Tensor, targets: Tensor, lr: float, steps: int) -> tuple[Tensor, float]:
    """(update [C, d], mean of the steps' losses) of full-batch gradient descent on inputs [n, d], targets int64 [n]."""
    examples, dims = inputs.shape
    wanted = functional.one_hot(targets, len(weights)).to(inputs.dtype)
    start = inputs @ weights.T
    dual = examples <= dims
    kernel = inputs @ inputs.T if dual else inputs
    coefficients, moved = torch.zeros_like(wanted), torch.zeros_like(weights.T)
    loss = 0.0
    for _ in range(steps):
        log_shares = torch.log_softmax(start + kernel @ (coefficients if dual else moved), dim=1)
        loss += float(functional.nll_loss(log_shares, targets))
        change = (lr / examples) * (wanted - log_shares.exp())
        if dual:
            coefficients += change
        else:
            moved += inputs.T @ change
    return (coefficients.T @ inputs if dual else moved.T), loss / max(1, steps)


class FullBatchTrainer(SequentialTrainer):
    """Trains as ``inner`` does; softmax regression without bias whose batches hold all examples, as above."""

    def __init__(self, inner: SequentialTrainer) -> None:
        super().__init__(inner.model, inner.config, inner.precision)
        self.inner = inner
        chain = Chain.of(self.model.module)
        self._known = self._linear if chain is not None and chain.layers == [(False, False)] else None

    def train(self, asked: Training) -> LocalResult:
        """As `SequentialTrainer.train`, up to the last digits."""
        if not self._takes_whole(asked):
            return self.train_all([asked])[0]
        config, device = self.config, self.model.theta.device
        inputs, targets = asked.data.inputs.to(device).flatten(1), asked.data.targets.to(device)
        weights = asked.theta.to(device).view(-1, inputs.shape[1])
        update, loss = softmax_update(weights, inputs, targets, self.lr, config.steps or config.epochs)
        return LocalResult(update.flatten(), loss)

    def train_all(self, requests: Sequence[Training]) -> list[LocalResult]:
        """Several clients' `train`; those that ``inner`` trains, as one computation if it does so."""
        self.inner.round, self.inner.num_rounds = self.round, self.num_rounds
        whole = [self._takes_whole(one) for one in requests]
        left = [one for one, here in zip(requests, whole, strict=True) if not here]
        others = iter(self.inner.train_all(left) if left else ())
        return [self.train(one) if here else next(others) for one, here in zip(requests, whole, strict=True)]

    def _takes_whole(self, asked: Training) -> bool:
        """Whether each step is one on all examples, of a model that this file knows."""
        config = self.config
        plain = config.sampler == "shuffle" and not config.momentum and self.precision == "float32"
        plain = plain and config.train is None
        if not plain or asked.proximal_mu or asked.drift is not None or asked.gradient is not None:
            return False
        if not 0 < len(asked.data) <= config.batch_size:
            return False
        if type(self.model.task) is not Classification:
            return False
        return self._known is not None and self._known.holds
