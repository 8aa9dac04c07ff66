"""One example's gradient as a list of torch's own operations, which none of the user's code can change any more.

**Why examples cannot meet.** The gradient of one example's loss is traced once, on a random example, down to the
operations of ATen (`make_fx`), and only this list is computed from then on: for every example by itself, or for many
by `torch.func.vmap`, which computes the list for each along a dimension that the list does not know of. So what was
state in the user's code (counters, closures, attributes, hooks, clocks, the vmap rule of an autograd.Function) is
frozen. What the list itself could carry from one example to the next is refused here:

- an operation that changes a tensor that is there before and after: with `functionalize`, changes in place of what the
  list made become new tensors, and those of parameters, buffers and tensors kept elsewhere remain as such, or fail;
- an operation that is not ATen's own, whose code is anybody's;
- a tensor of a class of its own, whose code torch would call in every operation (`__torch_function__`);
- memory that nobody has filled, which holds what was there before;
- an operation that reads or writes at places of which torch checks no border, unless torch itself has found them.

What the list reads beside parameters, input and target (buffers, tables) are copies made with it. A view by numbers
(`as_strided`) sees the memory around a tensor: then every example is computed by itself, on a copy of its input.

A step that depends on a value in Python (`if x.max() > 1`, `float(x)`), or whose number of results does
(`x[x > 0]`), is no list: refused. (Packed sequences, whose steps do, are computed at all places:
`fedpriv.mechanisms.traced_functions`.) Where vmap lays examples' tables behind one another and looks a number up in
all of them (`_shared_table`), a number beyond an example's own table names a row of the next one's: then every example
is computed by itself, where torch refuses it. Random numbers (dropout) are drawn for each example by itself, from a
seed that follows from the parameters, its input and its target alone. Drawn from one stream for all, an example would
move the numbers of those after it, and a node's stream begins where everybody's does.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedpriv.mechanisms.bookkeeping import mixed
from fedpriv.mechanisms.device_errors import failed
from fedpriv.mechanisms.quiet_vmap import quiet_vmap, said_to_be_traced
from fedpriv.mechanisms.tasks import CLASSES, Task
from fedpriv.mechanisms.traced_functions import TracedFunctions

#: What a tensor that nobody has filled may be used for: to be overwritten. (`normal` and `copysign` would read it.)
FILLS = (
    *("fill", "zero", "uniform", "normal_functional", "copy", "exponential", "random"),
    *("full_like", "zeros_like", "ones_like"),
)

#: Classes of tensors that run none but torch's code.
PLAIN = (Tensor, nn.Parameter)

#: They change their running statistics (argument 3) in training (argument 5), though their signatures do not say so.
BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
#: They do so whenever they are called.
OF_STATISTICS = ("batch_norm_update_stats", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")

#: They read and write at places that they are given, and torch looks at no border.
UNCHECKED = ("_ctc_loss", "_ctc_loss_backward", "segment_reduce", "_segment_reduce_backward")


class Unfit(Exception):
    """Why a model's per-example gradients cannot be taken, in words."""


@dataclass(frozen=True)
class FrozenGradient:
    """graph: (trained parameters, all other tensors of the model by name, input, target) -> (gradients by name, loss).

    buffers: those of the model when it was frozen. random: whether it draws something. alone: whether it must be
    computed for one example at a time.
    """

    graph: fx.GraphModule
    buffers: dict[str, Tensor]
    random: bool
    alone: bool

    def single(self, module: nn.Module, image: Tensor, label: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """(name -> gradient, loss) of one input [c, h, w] with its target [], at the module's parameters."""
        trained, others = self._tensors(module)
        image = image.clone(memory_format=torch.contiguous_format)  # nothing else is in its memory
        if not self.random:
            return self.graph(trained, others, image, label)  # type: ignore[no-any-return]
        with _drawing_from(_seed(trained, image, label), image.device):
            return self.graph(trained, others, image, label)  # type: ignore[no-any-return]

    def mapped(self) -> Callable[[nn.Module, Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]:
        """As `single`, for inputs [b, c, h, w] and targets [b]: gradients [b, ...], losses [b]."""
        many = quiet_vmap(self.graph.forward, in_dims=(None, None, 0, 0))  # without random numbers
        return lambda module, inputs, targets: many(*self._tensors(module), inputs, targets)

    def singly(self) -> Callable[[nn.Module, Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]:
        """As `mapped`, one example after the other."""

        def gradients(module: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            found = [self.single(module, image, label) for image, label in zip(inputs, targets, strict=True)]
            shapes = {name: value.shape for name, value in tensors_of(module)[0].items()}
            stacked = {
                name: torch.stack([dense(own[name]).view(shape) for own, _ in found]) for name, shape in shapes.items()
            }
            return stacked, torch.stack([loss for _, loss in found])

        return gradients

    def _tensors(self, module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        trained, others = tensors_of(module)
        return trained, others | self.buffers

    @classmethod
    def of(
        cls, module: nn.Module, image: Tensor, label: Tensor, task: Task = CLASSES, precision: str = "float32"
    ) -> FrozenGradient:
        """precision: of the products, whose rounding is in the list. Raises `Unfit`."""
        from torch.fx.experimental.proxy_tensor import make_fx  # a second that only such models need

        def loss_of(
            trained: dict[str, Tensor], others: dict[str, Tensor], image: Tensor, label: Tensor
        ) -> tuple[Tensor, Tensor]:
            values = {place: (others | trained)[name] for place, name in places.items()}
            with mixed(image.device, precision):
                logits = torch.func.functional_call(module, values, (image.unsqueeze(0),), tie_weights=False)
                loss = task.mean_loss(logits, label.unsqueeze(0))
            return loss, loss.detach()

        for name, value in (*module.named_parameters(), *module.named_buffers()):
            if type(value) not in PLAIN:
                raise Unfit(f"{name} is a tensor of a class of its own ({type(value).__name__})")
        places, image = _places(module), image.clone()
        gradient, given = torch.func.grad(loss_of, has_aux=True), (*tensors_of(module), image, label)
        entered = ["the model itself"]  # the last one is where it failed
        hooks = [
            part.register_forward_pre_hook(
                lambda layer, _, name=name: entered.append(f"{name}, {type(layer).__name__}")
            )
            for name, part in module.named_modules()
            if name
        ]
        try:
            # Attention as products, which vmap knows, and without random numbers.
            with sdpa_kernel(SDPBackend.MATH), said_to_be_traced(), TracedFunctions():
                try:
                    graph = make_fx(torch.func.functionalize(gradient))(*given)
                except RuntimeError as error:
                    if "Functionalize rule" not in str(error):
                        raise
                    graph = make_fx(gradient)(*given)  # an autograd.Function: then nothing may be changed in place
        except Exception as error:  # the user's code
            if failed(error):
                raise
            words = f"at {entered[-1]}: {_in_words(error)}"
            raise Unfit(f"one example's gradient is no fixed list of operations ({words})") from None
        finally:
            for hook in hooks:
                hook.remove()
        for node in graph.graph.nodes:
            if (reason := _objection(node)) is not None:
                raise Unfit(reason)
        _keep_constants(graph)
        nodes = [node for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
        random = any(torch.Tag.nondeterministic_seeded in node.target.tags for node in nodes)
        alone = random or any("as_strided" in node.target._schema.name for node in nodes) or _shared_table(graph.graph)
        return cls(graph, {name: value.detach().clone() for name, value in module.named_buffers()}, random, alone)


def dense(gradient: Tensor) -> Tensor:
    """As one vector."""
    return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)


def tensors_of(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(trained parameters, all other parameters and buffers) by name."""
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    trained = {name for name, value in module.named_parameters() if value.requires_grad}
    others = {name: value for name, value in parameters.items() if name not in trained}
    others |= {name: value.detach() for name, value in module.named_buffers()}
    return {name: value for name, value in parameters.items() if name in trained}, others


def _places(module: nn.Module) -> dict[str, str]:
    """Every place where a layer holds a parameter or a buffer -> the name in `tensors_of`."""
    named = [*module.named_parameters(), *module.named_buffers()]
    names = {id(value): name for name, value in named}
    found = {}
    for prefix, layer in module.named_modules():
        own = (layer.named_parameters, layer.named_buffers)
        for name, value in (pair for held in own for pair in held(recurse=False, remove_duplicate=False)):
            found[f"{prefix}.{name}".removeprefix(".")] = names[id(value)]
    return found


def _objection(node: fx.Node) -> str | None:
    if node.op in ("placeholder", "output", "get_attr") or node.target is operator.getitem:
        return None
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return f"{target} is no operation of torch itself"
    name = target._schema.name.removeprefix("aten::")
    moves = name in OF_STATISTICS or (name in BATCH_NORMS and node.args[3] is not None and node.args[5])
    if target._schema.is_mutable or moves:
        return f"it keeps something between examples ({name} changes a buffer, a parameter or a tensor that it holds)"
    if name.startswith("resize") or (name.startswith(("empty", "new_empty")) and not _overwritten(node)):
        return f"it reads memory that nobody has filled ({name})"
    if name in UNCHECKED or ("max_pool" in name and name.endswith("_backward") and not _of_own_pool(node, name)):
        return f"it could read the memory around a tensor, or write there ({name})"
    if _counts_by_values(node, target):
        return f"how many numbers a step gives depends on values ({name})"
    return None


def _of_own_pool(node: fx.Node, name: str) -> bool:
    """Whether the places of the largest numbers are those that pooling the same tensor has found."""
    pool = node.args[-1].args[0] if isinstance(node.args[-1], fx.Node) and node.args[-1].args else None
    schema = getattr(getattr(pool, "target", None), "_schema", None)
    found = getattr(schema, "name", "") == f"aten::{name.removesuffix('_backward')}"
    return found and pool.args[0] is node.args[1]  # type: ignore[union-attr]


def _counts_by_values(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    """Whether the shape of what it gives depends on values: the list has the shapes of the example it was made with."""
    if torch.Tag.dynamic_output_shape not in target.tags:
        return False
    if target is not torch.ops.aten.index.Tensor:
        return True
    kinds = {place.meta["tensor_meta"].dtype for place in node.args[1] if place is not None}  # type: ignore[union-attr]
    return not kinds.isdisjoint({torch.bool, torch.uint8})  # rows by their numbers are as many as there are numbers


def _shared_table(graph: fx.Graph) -> bool:
    """Whether vmap would look up one example's numbers where another's are: it adds an example's place times the size
    of a table to them, and looks at no border between tables. Of a table that all have in common it adds nothing, and
    who looks up the same numbers in it refuses those beyond it before any gradient is added up.
    """
    aten = torch.ops.aten
    own = set([node for node in graph.nodes if node.op == "placeholder"][-2:])  # input, target, what is made of them
    within = set()  # (numbers, rows of a table) that were refused, were one beyond it
    for node in graph.nodes:
        if not own.isdisjoint(node.all_input_nodes):
            own.add(node)
        if node.target is aten.embedding.default:
            if node.args[0] in own:
                return True
            within.add((node.args[1], node.args[0].meta["tensor_meta"].shape[0]))
        if node.target is aten.embedding_dense_backward.default and node.args[1:3] not in within:
            return True
        if node.target in (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor) and node.args[2] in own:
            return True
    return False


def _keep_constants(graph: fx.GraphModule) -> None:
    """Copies tables that the user's code holds too, and could change. Raises `Unfit`."""
    for target in {node.target for node in graph.graph.nodes if node.op == "get_attr"}:
        value = getattr(graph, target)
        if not isinstance(value, Tensor):
            raise Unfit(f"{target} is no operation of torch itself")
        if type(value) not in PLAIN:
            raise Unfit(f"a table is a tensor of a class of its own ({type(value).__name__})")
        setattr(graph, target, value.detach().clone())


def _seed(trained: dict[str, Tensor], image: Tensor, label: Tensor) -> int:
    """Of an example's random numbers: others at other parameters, which a sum of each tensor tells apart."""
    sums = [float(value.double().sum()) for value in trained.values()]
    told = repr((sums, label.tolist())).encode() + image.cpu().numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little") >> 1


@contextmanager
def _drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Within, torch draws from this seed; afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield


def _overwritten(empty: fx.Node) -> bool:
    """Whether nothing but what fills it uses a tensor that nobody has filled, or a view of it."""
    for user in empty.users:
        schema = getattr(user.target, "_schema", None)
        name, overload = getattr(schema, "name", "").removeprefix("aten::"), getattr(schema, "overload_name", "")
        if empty in user.args[1:]:
            return False
        fills = name in FILLS or (name == "bernoulli" and overload != "")  # without one its numbers are probabilities
        if not fills and not (name in ("expand", "view") and _overwritten(user)):
            return False
    return True


def _in_words(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0]
    if "get value out of a tracing tensor" in text:
        return "what it does depends on values read in Python"
    return f"{type(error).__name__}: {text.partition('. ')[0][:200]}"
