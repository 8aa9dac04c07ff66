"""Per-example gradients by Opacus' formulas (`local.clipping=opacus`), for models of which independence is proved.

Opacus' `GradSampleModule` runs the user's code under hooks, which proves nothing about examples that meet. Here the
pass is the one that `fedpriv.mechanisms.rowwise` has proved to keep rows apart; the inputs and output gradients of its
layers go to Opacus' functions for these layers (`opacus.grad_sample`), whose products all keep the first dimension.
What they give are float32 tensors that are measured and summed as they are, in float64: item 1 of the proof in
`fedpriv.mechanisms.per_example`, which holds however badly an example's tensor was computed.

Opacus' ghost clipping is not used. It measures norms in float32 from Gram matrices and clips a second backward pass,
whose gradients are other numbers than those that were measured, summed in float32: both can exceed the bound by more
than is kept back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.mechanisms.bookkeeping import Trace
from fedpriv.mechanisms.rowwise import NotRowwise, Rowwise
from fedpriv.mechanisms.tasks import CLASSES, Task


class OpacusGradients:
    """Gradients of single examples of one model. Raises `NotRowwise` where its layers are not proved independent."""

    def __init__(self, module: nn.Module, task: Task = CLASSES) -> None:
        self._steps, self._task = Rowwise(module), task
        from opacus import grad_sample  # seconds to import

        self._formulas: dict[type[nn.Module], Any] = {
            nn.Linear: grad_sample.compute_linear_grad_sample,
            nn.Conv2d: grad_sample.compute_conv_grad_sample,
            nn.GroupNorm: grad_sample.compute_group_norm_grad_sample,
            nn.LayerNorm: grad_sample.compute_layer_norm_grad_sample,
            nn.Embedding: grad_sample.compute_embedding_grad_sample,
        }
        for layer in self._steps.layers:
            if type(layer) not in self._formulas:
                raise NotRowwise(f"it has no formula for {type(layer).__name__}")
            if type(layer) is nn.LayerNorm and layer.bias is None:
                raise NotRowwise("it has no formula for a LayerNorm without a bias")

    def __call__(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """As `FrozenGradient.mapped`: name of a parameter -> gradients [b, ...]; losses [b]."""
        trace = Trace(module, len(targets), self._steps, self._task)
        losses, found = trace.run(inputs, targets), dict[str, Tensor]()
        with torch.no_grad():
            for layer_name, seen in zip(self._steps.names, trace.seen, strict=True):
                own = self._formulas[type(seen.layer)](seen.layer, [seen.inputs], seen.gradient)
                if (padding := getattr(seen.layer, "padding_idx", None)) is not None:  # Opacus does not leave it out
                    own[seen.layer.weight][:, padding] = 0
                for name, parameter in seen.layer.named_parameters(recurse=False):
                    found[f"{layer_name}.{name}".removeprefix(".")] = own[parameter]
        return found, losses
