"""A model as a list of steps that treat every row of a batch by itself, or the reason why it is not one.

Book-keeping takes an example's gradient from a pass over a whole batch. That is its gradient only if the examples do
not meet, whatever the parameters and the examples are. A look at some examples cannot show it: a guard by the batch's
largest activation or a layer of zeros hides the meeting until a server or an example reveals it. So it is proved.

**Proof.** The user's code runs once, before any data are seen, on a stand-in without numbers (`torch.fx`), and gives a
graph. What is computed ever after is that graph, step by step, by `Rowwise.run`, and none of the user's code: state,
counters, closures, hooks and clocks have no further say. A layer's settings are copied with it, and its parameters are
of torch's own class: torch would call the code of another one. Call a value *public* where it is no tensor: it was
fixed with the graph or follows from shapes, and shapes follow from the one shape [b, ...] that all batches have. Call a
tensor *rowwise* if its first dimension is b and its row k is a function of row k of the examples, the same function for
all k. The examples are rowwise. Every step below maps rowwise tensors and public values to a rowwise tensor:

- elementwise functions of one tensor, or of several of one rank: broadcasting aligns first dimension with first
  dimension, and each is b. (Of unequal ranks it would align rows with something else: refused.)
- Conv2d, GroupNorm, pooling on inputs of the rank at which torch calls the first dimension the batch, Linear on at
  least two dimensions (it acts on the last alone), LayerNorm and RMSNorm on more dimensions than they normalise (the
  last ones, each vector of them by its own mean and deviation, or root mean square), Embedding on numbers [b, ...]
  (each is replaced by the row of the table that it names), FiLM (a factor and a summand for each channel); their
  parameters, trained or not, are the same for all rows. An Embedding that scales by how often a number occurs in the
  batch, or shortens rows of its table when they are read, is refused.
- attention (`scaled_dot_product_attention`, without dropout) on tensors [b, ..., t, i] of one rank, the mask too: for
  each index of all dimensions but the last two it is softmax(Q K' / sqrt(i) + M) V of the matrices there, and the
  first of these dimensions is b in each of them, so row k of the result is made of row k alone.
- flatten, reshape, view, squeeze, unsqueeze keep the row-major order of the elements, so if the first dimension is b
  before and after, row k keeps its own elements.
- reductions, running sums and softmax over named dimensions, none of them the first; transpose and permute that leave
  it in place; cat along another, stack before another; indexing that takes all of it, with numbers and slices only.
- tensors of zeros as large as one: a function of its shape.

A step that is not on the list is refused, as is a tensor from elsewhere (a parameter or a buffer used on its own, a
table, something drawn). By induction logits are rowwise, so the loss of example k is a function of example k where the
task has one loss for each (logits of another form could meet all targets, as could a loss of the user's: refused), and
the gradient of the sum of all losses with respect to row k of a layer's output is that of loss k alone. If besides
every trained parameter belongs to one layer, the inputs of all calls of the layer and those gradients at row k give all
of example k's gradient with respect to it: by the chain rule it is the sum over the calls of what each gives with its
input held (`fedpriv.mechanisms.per_example`). So the steps of a recurrent layer are calls like the places of a
sequence. A layer is trained as a whole, or its tensors are constants of torch's own class and it is a step like any
other. A tied weight has a second use, which this would forget: refused.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedpriv.mechanisms.film import Film

Rule = Callable[[tuple[Any, ...], dict[str, Any]], bool]


class NotRowwise(Exception):
    """Why a model is not proved to treat the examples of a batch one by one, in words."""


# --- what a step's arguments must be -----------------------------------------------------------------------


def _public(*values: Any) -> bool:
    """Whether these are numbers, names or sequences of them."""
    return all(
        _public(*value) if isinstance(value, tuple | list) else value is None or isinstance(value, int | float | str)
        for value in values
    )


def _elementwise(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    ranks = {value.ndim for value in args if isinstance(value, Tensor)}
    others = [*(value for value in args if not isinstance(value, Tensor)), *options.values()]
    return len(ranks) == 1 and _public(*others) and not any(other is True for other in others)  # in place


def _reshaping(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    sizes = [*args[1:], *options.values()]
    return _public(*sizes) and not any(isinstance(size, str) for size in sizes)


def _pooling(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return args[0].ndim == 4 and _public(*args[1:], *options.values())


def _over_dimensions(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Over the dimensions named in the first place after the tensor, or as ``dim``."""
    value, *rest = args
    named = options.get("dim", rest[0] if rest else None)
    dims = list(named) if isinstance(named, tuple | list) else [named]
    whole = bool(dims) and all(isinstance(dim, int) and not isinstance(dim, bool) for dim in dims)
    return whole and _public(*rest, *options.values()) and all(dim % value.ndim for dim in dims)


def _transposing(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return not options and len(args) == 3 and _public(*args[1:]) and all(dim % args[0].ndim for dim in args[1:])


def _permuting(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    order = args[1] if len(args) == 2 and isinstance(args[1], tuple | list) else args[1:]
    return not options and _public(*order) and bool(order) and order[0] % args[0].ndim == 0


def _joining(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    parts, dim = args[0], options.get("dim", args[1] if len(args) == 2 else 0)
    tensors = (
        isinstance(parts, tuple | list) and all(isinstance(part, Tensor) for part in parts) and {"dim"} >= {*options}
    )
    return tensors and isinstance(dim, int) and dim % parts[0].ndim != 0 and len({part.ndim for part in parts}) == 1


def _stacking(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """A new dimension, which is not the first."""
    parts, dim = args[0], options.get("dim", args[1] if len(args) == 2 else 0)
    tensors = (
        isinstance(parts, tuple | list) and all(isinstance(part, Tensor) for part in parts) and {"dim"} >= {*options}
    )
    return tensors and isinstance(dim, int) and dim % (parts[0].ndim + 1) != 0


def _attending(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    known = {"query", "key", "value", "attn_mask", "is_causal", "scale"}
    mask = options.get("attn_mask", args[3] if len(args) > 3 else None)
    tensors = [*args[:3], *([] if mask is None else [mask])]
    others = [value for name, value in options.items() if name != "attn_mask"]
    alike = all(isinstance(part, Tensor) and part.ndim == args[0].ndim > 2 for part in tensors)
    return (
        3 <= len(args) <= 4
        and {*options} <= known
        and alike
        and len({len(x) for x in tensors}) == 1
        and _public(*others)
    )


def _like(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return len(args) == 1 and not options


def _indexing(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    value, index = args
    index = index if isinstance(index, tuple) else (index,)
    bounds = [bound for part in index if isinstance(part, slice) for bound in (part.start, part.stop, part.step)]
    known = all(part is None or part is ... or type(part) in (int, slice) for part in index) and _public(*bounds)
    if not index or not known:
        return False
    taken = sum(part is not None and part is not ... for part in index)  # dimensions from the last, after an ellipsis
    return index[0] == slice(None) or (index[0] is ... and taken < value.ndim)


def _unary(*names: str) -> dict[Any, Rule]:
    """A function of torch or of `functional` and the method of this name."""
    homes = (torch, functional)
    found: dict[Any, Rule] = {
        getattr(home, name): _elementwise for home in homes for name in names if hasattr(home, name)
    }
    return found | dict.fromkeys(names, _elementwise)


def _both(rule: Rule, *names: str) -> dict[Any, Rule]:
    """A function of torch and the method of this name."""
    return {getattr(torch, name): rule for name in names if hasattr(torch, name)} | dict.fromkeys(names, rule)


#: Functions, and methods by their names, with what their arguments must be.
STEPS: dict[Any, Rule] = {
    **_unary("relu", "relu6", "tanh", "sigmoid", "gelu", "silu", "elu", "selu", "leaky_relu", "softplus", "hardtanh"),
    **_unary("abs", "neg", "exp", "square", "sqrt", "clamp", "add", "sub", "mul", "div", "pow"),
    **dict.fromkeys((operator.add, operator.sub, operator.mul, operator.truediv, operator.neg), _elementwise),
    **dict.fromkeys((operator.ne, operator.eq), _elementwise),
    **dict.fromkeys(("contiguous", "float"), _elementwise),
    **_both(_reshaping, "flatten", "reshape", "view", "squeeze", "unsqueeze"),
    **_both(_over_dimensions, "mean", "sum", "amax", "amin", "softmax", "log_softmax", "logsumexp", "cumsum"),
    **dict.fromkeys((functional.softmax, functional.log_softmax), _over_dimensions),
    **dict.fromkeys((functional.max_pool2d, functional.avg_pool2d, functional.adaptive_avg_pool2d), _pooling),
    **_both(_transposing, "transpose"),
    **_both(_permuting, "permute"),
    torch.cat: _joining,
    torch.stack: _stacking,
    torch.zeros_like: _like,
    functional.scaled_dot_product_attention: _attending,
    operator.getitem: _indexing,
}

#: What follows from shapes alone.
OF_SHAPES = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg, operator.getitem)

POINTWISE = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Hardtanh),
)
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
#: Layers with parameters, and the rank of their inputs; of sequences, any that the layer leaves a first dimension.
WITH_PARAMETERS: dict[type[nn.Module], int | None] = {nn.Conv2d: 4, nn.GroupNorm: 4}
WITH_PARAMETERS |= dict.fromkeys((nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding, Film))
#: Those that may be called several times.
OF_SEQUENCES = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.Embedding)
LEAVES = (*POINTWISE, *POOLS, nn.Flatten, *WITH_PARAMETERS)
#: What these layers call their tensors.
TENSORS = ("weight", "bias", "scale", "shift")


# --- the graph ---------------------------------------------------------------------------------------------


class _Tracer(fx.Tracer):
    """Leaves are the layers on the list, by their exact type; all else is looked into."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LEAVES


class Rowwise:
    """The steps of a model. layers: those with parameters (a frozen layer has none: `fedpriv.training.trained_part`),
    in the order of the model's parameters, as copies with parameters in common; names: theirs in the model.
    """

    def __init__(self, module: nn.Module) -> None:
        """Raises `NotRowwise`."""
        named = [(name, layer) for name, layer in module.named_modules() if list(layer.parameters(recurse=False))]
        self.names, layers = [name for name, _ in named], [layer for _, layer in named]
        for reason in _objections(module, layers):
            raise NotRowwise(reason)
        try:
            graph = _Tracer().trace(module)
        except Exception as error:  # the user's code, on a stand-in
            raise NotRowwise(f"its steps cannot be listed ({first_line(error)})") from None
        self._nodes = list(graph.nodes)
        self._modules = {name: copy(part) for name, part in module.named_modules() if type(part) in LEAVES}
        self.layers = [self._modules[name] for name in self.names]
        called = [self._modules[node.target] for node in self._nodes if node.op == "call_module"]
        if sum(node.op == "placeholder" for node in self._nodes) != 1:
            raise NotRowwise("it takes more than examples")
        self._trained = {id(layer) for layer in self.layers}
        calls = Counter(id(layer) for layer in called if id(layer) in self._trained)
        once = [calls[id(layer)] for layer in self.layers]
        if not all(n == 1 or (n and type(layer) in OF_SEQUENCES) for n, layer in zip(once, self.layers, strict=True)):
            raise NotRowwise("a layer with parameters is not used, or a convolution or GroupNorm is used twice")
        for node in self._nodes:
            if node.op == "get_attr":
                raise NotRowwise(f"{node.target} is used outside a layer of its own")
            known = node.target in STEPS or node.target in OF_SHAPES or node.target in (getattr, "size", "dim")
            if node.op in ("call_function", "call_method") and not known:
                raise NotRowwise(f"{getattr(node.target, '__name__', node.target)} is not known to keep to its rows")

    def run(self, inputs: Tensor, note: Callable[[nn.Module, Tensor, Tensor], None]) -> Tensor:
        """Logits of examples [b, ...]; ``note`` is told each layer with parameters, its input and its output.

        Raises `NotRowwise`, which depends on the examples' shape alone.
        """
        rows, values = len(inputs), dict[fx.Node, Any]()
        for node in self._nodes:
            if node.op == "placeholder":
                values[node] = inputs
                continue
            args = fx.map_arg(node.args, values.__getitem__)
            if node.op == "output":
                if not isinstance(args[0], Tensor):
                    raise NotRowwise("it does not give logits alone")
                return args[0]
            options = fx.map_arg(node.kwargs, values.__getitem__) if node.kwargs else {}
            if node.op == "call_module":
                values[node] = self._layer(self._modules[node.target], rows, args, options, note)
            else:
                values[node] = _step(node.target, rows, args, options)
        raise NotRowwise("it gives nothing")

    def _layer(
        self, layer: nn.Module, rows: int, args: tuple[Any, ...], options: dict[str, Any], note: Callable[..., None]
    ) -> Tensor:
        kind = type(layer)
        if options or len(args) != 1 or not isinstance(args[0], Tensor):
            raise NotRowwise(f"{kind.__name__} is called with more than its input")
        (inputs,) = args
        rank = WITH_PARAMETERS.get(kind, 4 if kind in POOLS else None)
        least = 1 + {nn.Linear: 1, Film: 1}.get(kind, len(getattr(layer, "normalized_shape", ())))
        if inputs.ndim < least or rank not in (None, inputs.ndim):
            raise NotRowwise(f"{kind.__name__} has an input of {inputs.ndim} dimensions")
        if isinstance(layer, Film) and layer.dim % inputs.ndim == 0:  # a factor by an example's place in the batch
            raise NotRowwise("Film has its channels along the batch")
        if isinstance(layer, nn.MaxPool2d) and inputs.device.type == "cpu" and not layer.return_indices:
            outputs = _MaxPool.apply(inputs, layer)
        else:
            outputs = kind.forward(layer, inputs)  # not the object's own `forward`, nor its hooks
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != (rows,):
            raise NotRowwise(f"{kind.__name__} gives something else than a row for each example")
        if id(layer) in self._trained:
            note(layer, inputs, outputs)
        return outputs


class _MaxPool(torch.autograd.Function):
    """nn.MaxPool2d on a processor, to the last bit: forwards with channels last, five times as fast in torch, and
    backwards in the order of the inputs.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: nn.MaxPool2d) -> Tensor:
        last = inputs.contiguous(memory_format=torch.channels_last)
        sizes = [layer.kernel_size, layer.stride, layer.padding, layer.dilation]
        ctx.sizes = [*(size if isinstance(size, tuple) else (size, size) for size in sizes), layer.ceil_mode]
        found, places = functional.max_pool2d(last, *ctx.sizes, return_indices=True)
        ctx.save_for_backward(inputs, places.contiguous())
        return found.contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        inputs, places = ctx.saved_tensors
        of_inputs = torch.ops.aten.max_pool2d_with_indices_backward
        return of_inputs(gradient.contiguous(), inputs.contiguous(), *ctx.sizes, places), None


def _step(target: Any, rows: int, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    name = getattr(target, "__name__", str(target))
    call = (lambda: getattr(args[0], target)(*args[1:], **options)) if isinstance(target, str) else None
    if not args:
        raise NotRowwise(f"{name} is called by names alone")
    given = isinstance(args[0], Tensor)
    if not given and not any(isinstance(value, Tensor) for value in _flat((args, tuple(options.values())))):
        if target not in OF_SHAPES:
            raise NotRowwise(f"{name} of what is no tensor")
        return target(*args, **options)
    if target is getattr and args[1:] in (("shape",), ("ndim",)):
        return getattr(args[0], args[1])
    if call is not None and target in ("size", "dim"):
        return call()
    rule = STEPS.get(target)
    on_tensor = given or rule in (_joining, _stacking) or (rule is _elementwise and call is None)
    if rule is None or not on_tensor or not rule(args, options):
        raise NotRowwise(f"{name}, as it is used, is not known to keep to its rows")
    found = target(*args, **options) if call is None else call()
    if not isinstance(found, Tensor) or found.shape[:1] != (rows,):
        raise NotRowwise(f"{name} gives something else than a row for each example")
    return found


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        for part in value:
            yield from _flat(part)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def _objections(module: nn.Module, layers: list[nn.Module]) -> Iterator[str]:
    """What can be seen without a graph."""
    names = {id(part): name or "the model" for name, part in module.named_modules()}
    for part in module.modules():
        if hooked(part):
            yield f"{names[id(part)]} has hooks, or a forward of its own"
        if getattr(part, "inplace", False):
            yield f"{names[id(part)]} changes its input in place"
        if type(part) in WITH_PARAMETERS and (reason := _doubt_of_tensors(part)) is not None:
            yield f"{names[id(part)]} {reason}"
        if isinstance(part, nn.Embedding) and (part.max_norm is not None or part.scale_grad_by_freq):
            yield f"{names[id(part)]} is an embedding that changes rows as they are read, or scales by how often"
    for layer in layers:
        if type(layer) not in WITH_PARAMETERS:
            yield f"{names[id(layer)]} is {type(layer).__name__}"
        if isinstance(layer, nn.Conv2d) and (
            layer.groups != 1 or layer.padding_mode != "zeros" or isinstance(layer.padding, str)
        ):
            yield f"{names[id(layer)]} is a convolution with groups or padding of another kind"
        if any(not parameter.requires_grad or parameter._backward_hooks for parameter in layer.parameters()):
            yield f"{names[id(layer)]} has parameters that are not trained, or have hooks"
    if len({id(p) for p in module.parameters()}) != sum(len(list(layer.parameters(recurse=False))) for layer in layers):
        yield "parameters are shared by several layers"


def _doubt_of_tensors(layer: nn.Module) -> str | None:
    """Why a layer's tensors might run code of their own, or are neither all parameters nor all constants."""
    trained, constant = layer._parameters, layer._buffers
    own = [name for name in TENSORS if getattr(layer, name, None) is not None]
    if any(type(trained[name]) is not nn.Parameter for name in own if name in trained):
        return "has parameters of a class of their own"
    if any(type(constant[name]) is not Tensor for name in own if name in constant):
        return "has constants of a class of their own"
    if not (all(name in trained for name in own) or all(name in constant for name in own)):
        return "is trained in part, or has tensors that it does not name as parameters"
    return None


def hooked(module: nn.Module) -> bool:
    """Whether something beside its class's code sees or changes what passes through a module."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or "forward" in vars(module)


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
