"""One example's gradient as a list of torch's own operations, which none of the user's code can change any more.

**Why examples cannot meet.** The gradient of one example's loss is traced once, on a random picture, down to the
operations of ATen (`make_fx`), and only this list is computed from then on: for every example by itself, or for many
by `torch.func.vmap`, which computes the list for each along a dimension that the list does not know of. So what was
state in the user's code (counters, closures, attributes, hooks, clocks, the vmap rule of an autograd.Function) is
frozen. What the list itself could carry from one example to the next is refused here:

- an operation that changes a tensor that is there before and after: with `functionalize`, changes in place of what the
  list made become new tensors, and those of parameters, buffers and tensors kept elsewhere remain as such, or fail;
- an operation that is not ATen's own, whose code is anybody's;
- memory that nobody has filled, which holds what was there before.

A step that depends on a value in Python (`if x.max() > 1`, `float(x)`) is no list: refused. Random numbers (dropout)
are drawn anew for each example, from none of the data: given any such numbers, one each, an example moves the sum by
its own part alone, and their law does not change with who else is in the batch.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

#: What a tensor that nobody has filled may be used for: to be overwritten.
FILLS = ("fill", "bernoulli", "zero", "uniform", "normal", "copy", "full", "exponential", "random")

#: They change their running statistics (argument 3) in training (argument 5), though their signatures do not say so.
BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")


class Unfit(Exception):
    """Why a model's per-example gradients cannot be taken, in words."""


@dataclass(frozen=True)
class FrozenGradient:
    """graph: (trained parameters, all other tensors of the model by name, picture, label) -> (gradients by name, loss).

    random: whether it draws something.
    """

    graph: fx.GraphModule
    random: bool

    @classmethod
    def of(cls, module: nn.Module, image: Tensor, label: Tensor) -> FrozenGradient:
        """Raises `Unfit`."""
        from torch.fx.experimental.proxy_tensor import make_fx  # a second that only such models need

        def loss_of(
            trained: dict[str, Tensor], others: dict[str, Tensor], image: Tensor, label: Tensor
        ) -> tuple[Tensor, Tensor]:
            values = {place: (others | trained)[name] for place, name in places.items()}
            logits = torch.func.functional_call(module, values, (image.unsqueeze(0),), tie_weights=False)
            loss = functional.cross_entropy(logits, label.unsqueeze(0))
            return loss, loss.detach()

        places = _places(module)
        gradient, given = torch.func.grad(loss_of, has_aux=True), (*tensors_of(module), image, label)
        try:
            try:
                graph = make_fx(torch.func.functionalize(gradient))(*given)
            except RuntimeError as error:
                if "Functionalize rule" not in str(error):
                    raise
                graph = make_fx(gradient)(*given)  # an autograd.Function: then nothing may be changed in place at all
        except Exception as error:  # the user's code
            raise Unfit(f"one picture's gradient is no fixed list of operations ({_in_words(error)})") from None
        for node in graph.graph.nodes:
            if (reason := _objection(node)) is not None:
                raise Unfit(reason)
        nodes = [node for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        return cls(graph, any(torch.Tag.nondeterministic_seeded in node.target.tags for node in nodes))


def tensors_of(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(trained parameters, all other parameters and buffers) by name."""
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    trained = {name for name, value in module.named_parameters() if value.requires_grad}
    others = {name: value for name, value in parameters.items() if name not in trained}
    others |= {name: value.detach() for name, value in module.named_buffers()}
    return {name: value for name, value in parameters.items() if name in trained}, others


def _places(module: nn.Module) -> dict[str, str]:
    """Every place where a layer holds a parameter or a buffer, once for each layer -> the name in `tensors_of`."""
    named = [*module.named_parameters(), *module.named_buffers()]
    names = {id(value): name for name, value in named}
    found = {}
    for prefix, layer in module.named_modules():
        for name, value in (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)):
            found[f"{prefix}.{name}".removeprefix(".")] = names[id(value)]
    return found


def _objection(node: fx.Node) -> str | None:
    if node.op in ("placeholder", "output", "get_attr") or node.target is operator.getitem:
        return None
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return f"{target} is no operation of torch itself"
    name = target._schema.name.removeprefix("aten::")
    if target._schema.is_mutable or (name in BATCH_NORMS and node.args[3] is not None and node.args[5]):
        return f"it keeps something between pictures ({name} changes a buffer, a parameter or a tensor that it holds)"
    if name.startswith(("empty", "new_empty")) and not _overwritten(node):
        return f"it reads memory that nobody has filled ({name})"
    return None


def _overwritten(empty: fx.Node) -> bool:
    """Whether nothing but what fills it uses a tensor that nobody has filled, or a view of it."""
    for user in empty.users:
        name = getattr(getattr(user.target, "_schema", None), "name", "").removeprefix("aten::")
        if empty in user.args[1:]:
            return False
        if not name.startswith(FILLS) and not (name in ("expand", "view") and _overwritten(user)):
            return False
    return True


def _in_words(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0]
    if "get value out of a tracing tensor" in text:
        return "what it does depends on values read in Python"
    return f"{type(error).__name__}: {text[:160]}"
