"""Sums of per-example gradients, each clipped to a bound, by the fastest method that is exact for the model.

Book-keeping (Bu, Wang, Zha and Karypis, "Differentially private optimization on large model at small cost", ICML
2023): one forward pass, one backward pass that stops at the layers' outputs. A layer's per-example gradient is a
product of its input and its output's gradient, so norms and the weighted sum follow from those two:
- Linear: the norm is a product of two norms (Goodfellow 2015), the sum is the matrix product of a plain step.
- Conv2d: per-example gradients as batched matrix products of unfolded inputs, or, where the kernel is large relative
  to the example, the norm from Gram matrices (ghost clipping) and one more matrix product for the sum.
- Linear over the positions of a sequence, and any layer that is called several times (each call a position): as Conv2d.
- GroupNorm, LayerNorm, RMSNorm, FiLM: two sums over positions.
- Embedding: one row for each token of the example, the sum of its positions' gradients; the other rows are zero and are
  never formed, so it costs what the tokens cost.
It is used for models that are proved to treat a batch's examples one by one (`fedpriv.mechanisms.rowwise`). Any other
model's gradient of one example is frozen as a list of torch's operations (`fedpriv.mechanisms.frozen_gradient`), which
`torch.func.vmap` computes for several examples, or, where it cannot, one after the other. Models for which neither can
be done are refused.

Shapes: b examples, d parameters, p positions of an example, i (times the kernel) and o input and output channels.

**How much one example moves the sum, rounding included.** Theta may be adversarial: it can make terms cancel that are
far larger than their sum, so no error may be assumed relative to a norm. Let S(D) be the exact sum over D of
w_k c_k, where c_k is made of the float32 numbers x (inputs) and g (output gradients) of example k as they are, and
fl(S) the computed one. Then |fl S(D+e) - fl S(D)| <= w_e |c_e| + err(D+e) + err(D). u = 2^-53 and
gamma(n) = n u/(1 - n u) bound a float64 sum of n products, in any order (Higham 2002, section 3.1): by gamma(n)
times the sum of their absolute values. Lengths are Euclidean.

1. Gradients that are formed (GroupNorm, LayerNorm, RMSNorm, FiLM, Embedding, biases, explicit Conv2d, vmap): c_k is
   the float32 tensor itself, however badly it was computed, and the same tensor is measured and summed. Norm and sum
   are float64: the norm is right within gamma(d), the sum within gamma(b) sum_k w_k |c_k|. (An Embedding's c_k is kept
   as p rows, no two of one token that are not zero: a row of the sum has one term of each example. Its other rows are
   zero exactly.)
2. Linear: c_k = g x^T, |c_k| = |g| |x|, and its terms do not cancel within an example: as 1.
3. Conv2d, and Linear of several positions, by ghost clipping: c_k = sum_p g_p x_p^T. With the mass
   A = sum_p |g_p| |x_p|, every entry of the Gram matrices X^T X and G^T G is right within gamma(i) |x_p| |x_q| and
   gamma(o) |g_p| |g_q|, so the sum of their products is |c_k|^2 within gamma(i + o + p^2 + 2) A^2. The sum over the
   m p products of a physical batch is right within gamma(m p + 2) sum_k w_k A_k. Both are held by measuring too long:
   length^2 = computed |c_k|^2 + slack A^2, slack = 2 gamma(i + o + p^2 + 8) + (gamma(m p + 8) / DRIFT)^2,
   which is at least |c_k|^2 and at least (gamma A / DRIFT)^2, so that gamma w_k A_k <= DRIFT bound. Squares add up
   over the layers. (The factor 2 and the 8 cover the rounding of A and of the slack.)

So w_e |c_e| <= bound (1 - KEPT_BACK)(1 + 2^-20), and err(D) <= b (DRIFT + 2^-33) bound for m p, d < 2^33, the
2^-33 for 1, 2 and the addition of physical batches (b u each). With KEPT_BACK = 2^-10 one example moves the sum by less
than (1 - 2^-12) bound for every b <= LARGEST_BATCH, 2 b (DRIFT + 2^-33) being below 0.55 2^-10; `excess` says by
how much more for a larger data set. A float32 product forms c_k itself, so TF32 does not matter.

4. x and g of an example must not depend on the rest of the batch: libraries choose a different kernel for a different
number of rows, of products in a batch, or of threads, and for a row's place in a block; theta can amplify a last bit
until it turns a gradient round, and then one example redirects those of all others. Relied upon is this:

a. Every computation of a run has one shape, fixed before the data are seen: blocks of ``physical`` rows (of a cohort,
   of as many clients as are asked), filled up with a row of theirs, of weight 0: a blank one may raise where none of
   theirs does. A batch of n examples is ceil(n / physical) such computations one after the other, so n selects no
   kernel. Each reads memory of its own (`filled` copies), in as many threads as when the way was chosen, and on a GPU
   with kernels that repeat (`repeatable`).
b. In that shape a row's bits follow from its own example, wherever it stands. No theorem says so of a library's
   kernels. `computes_apart` looks before the first sum, by the code, the shapes and the device of the run, on made-up
   examples: rows in turn at other places, beside others and beside equal ones, bit for bit; then sums over 1, b and
   b + 1 examples as a run computes them, which have to add up. A block that fails is replaced by a smaller one, down to
   single rows, and a model of which single rows fail is refused. The numbers in other rows are assumed to select no
   kernel: products and elementwise steps take the same path whatever they multiply.

tests/training/test_bit_invariance.py looks at every way, around the borders of blocks, under thetas that cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.bookkeeping import KINDS, Trace, add_rows, filled, mixed, squared_lengths, without
from fedpriv.mechanisms.clipped_sums import (
    NUMBERS_ON_GPU,
    PHYSICAL_NUMBERS,
    ClippedSum,
    computes_apart,
    made_up,
    not_apart,
    sum_of_units,
)
from fedpriv.mechanisms.device_errors import failed, out_of_memory
from fedpriv.mechanisms.frozen_gradient import FrozenGradient, Unfit, dense
from fedpriv.mechanisms.noise import clip_factors, in_threads
from fedpriv.mechanisms.rowwise import NotRowwise, Rowwise, first_line
from fedpriv.mechanisms.tasks import CLASSES, Task

#: The most examples computed at a time.
BLOCK = 32

#: The same where an example is a row of token ids, whose gradients take little memory.
BLOCK_OF_TEXT = 128

#: Rows of a block for which libraries have few kernels: tried before blocks of less than half of a smaller one.
COMMON = 16

#: How closely a way must agree with the model's own gradients of single examples before it is used.
TOLERANCE = {"float32": 1e-3, "bfloat16": 2.0**-4}


def block_for(expected: int, most: int = BLOCK) -> int:
    """Rows of a block for batches of a public expected size, such that few rows stay blank."""
    return min(most, 1 << max(2, (expected - 1).bit_length() - 1))


@contextmanager
def repeatable(threads: int) -> Iterator[None]:
    """Convolutions of a GPU by kernels that give the same bits each time: others add up in the order of their threads,
    so that equal examples of a block would differ. On a CPU the same number of threads, which divide a block's rows.
    """
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with in_threads(threads):
            yield
    finally:
        torch.backends.cudnn.deterministic = before


class _Differs(Exception):
    """A way of computing gradients that does not give the model's own."""


class PerExampleGradients:
    """Clipped sums of the per-example gradients of a task's loss for one model.

    mode: ``bookkeeping``, ``vmap``, ``singly``, or None: the first of these that the model admits; or ``opacus``
    (`fedpriv.mechanisms.opacus_gradients`), for models that admit book-keeping. That it gives the
    model's own gradients is looked at on random examples (never on the client's) at random parameters; that no example
    moves the sum by more than the bound is proved, and rests on no look. physical: number of
    examples computed at a time, None: ``block``, or as many as `PHYSICAL_NUMBERS` hold. block: public, from the
    expected batch size; never from the batch drawn. precision: of the products of forward and backward passes.
    """

    def __init__(
        self,
        module: nn.Module,
        mode: str | None = None,
        physical: int | None = None,
        block: int = BLOCK,
        task: Task = CLASSES,
        vocabulary: int | None = None,
        precision: str = "float32",
    ) -> None:
        self.precision = precision
        self.module, self.mode, self.physical, self.block, self.task = module, mode, physical, block, task
        self.vocabulary = vocabulary
        self._settled = False
        self._parameters = list(module.parameters())
        self._size = sum(parameter.numel() for parameter in self._parameters)
        self._steps: Rowwise | None = None
        self._many: Callable[..., Any] | None = None  # gradients of several examples, formed

    def settle(self, shape: Sequence[int], device: torch.device) -> None:
        """Chooses the method, at the module's present parameters rather than at ones that the server chose.

        Raises `OptionError` for a model whose examples' gradients cannot be told apart for certain.
        """
        if not self._settled:
            self.module.train()
            self._threads = torch.get_num_threads()
            with repeatable(self._threads):
                try:
                    self._settle(shape, device)
                except (OptionError, NotRowwise, _Differs):
                    raise
                except Exception as error:  # the user's code
                    if failed(error) or out_of_memory(error):
                        raise
                    words = f"raises {type(error).__name__} for made-up examples ({first_line(error)})"
                    raise OptionError(
                        "model", type(self.module).__name__, f"{words}; allowed: one that reads all"
                    ) from None
            self._settled = True

    def clipped_sum(
        self, inputs: Tensor, targets: Tensor, bound: float, chosen: str = "given", unit: Tensor | None = None
    ) -> ClippedSum:
        """The clipped sum for examples [b, c, h, w] and targets [b]; an empty batch gives zeros. unit: `sum_of_units`.

        chosen="median": the bound is the median of this batch's own norms (and ``bound`` for an empty batch), which
        has no useful sensitivity: for the published method only.
        """
        if not len(targets):
            return ClippedSum(self._zeros(targets.device), torch.zeros(0, dtype=torch.float64), 0.0)
        self.settle(inputs.shape[1:], targets.device)
        if chosen == "median":
            bound = self._median_norm(inputs, targets, unit)
        with repeatable(self._threads):
            if unit is None:
                return self._sum(inputs, targets, bound, self.physical or 1)
            assert self.mode != "bookkeeping", "a person's rows need gradients that are formed"
            return sum_of_units(self._gradients, inputs, targets, bound, unit, self._size, self.physical or 1)

    def _sum(self, inputs: Tensor, targets: Tensor, bound: float, size: int) -> ClippedSum:
        """In blocks of ``size``."""
        total, norms, loss = self._zeros(targets.device), [], 0.0
        add = self._add_by_bookkeeping if self.mode == "bookkeeping" else self._add_formed
        for start in range(0, len(targets), size):
            some, of = inputs[start : start + size], targets[start : start + size]
            part_norms, part_loss = add(filled(some, size), filled(of, size), len(of), bound, total)
            norms.append(part_norms)
            loss += part_loss
        return ClippedSum(total, torch.cat(norms).cpu(), loss / len(targets))

    def _zeros(self, device: torch.device) -> Tensor:
        return torch.zeros(self._size, dtype=torch.float64, device=device)

    def block_norms(self, inputs: Tensor, targets: Tensor) -> tuple[list[str], Tensor, Tensor]:
        """Names of the model's blocks (its named children with parameters), norms of each example's gradient within
        each of them (float64 [b, blocks]), and losses [b].
        """
        self.settle(inputs.shape[1:], targets.device)
        names = list(dict.fromkeys(name.partition(".")[0] for name, _ in self.module.named_parameters()))
        norms, losses = [], []
        for some, of in zip(inputs.split(self.physical or 1), targets.split(self.physical or 1), strict=True):
            squares, loss = self._squares_by_name(some, of)
            blocks = [sum(value for name, value in squares if name.partition(".")[0] == block) for block in names]
            norms.append(torch.sqrt(torch.stack(blocks, 1)))  # type: ignore[arg-type]
            losses.append(loss)
        return names, torch.cat(norms), torch.cat(losses)

    def _squares_by_name(self, inputs: Tensor, targets: Tensor) -> tuple[list[tuple[str, Tensor]], Tensor]:
        """(a layer's or a parameter's name, squared norms [b]) one by one; losses [b]."""
        if self.mode != "bookkeeping":
            gradients, losses = self._gradients(inputs, targets)
            return [(name, squared_lengths(gradient)) for name, gradient in gradients.items()], losses
        trace = self._trace(self.physical or 1)
        losses = trace.run(inputs, targets)
        names = trace.steps.names
        return [(name, KINDS[type(seen.layer)][0](seen)) for name, seen in zip(names, trace.seen, strict=True)], losses

    def _trace(self, most: int, steps: Rowwise | None = None) -> Trace:
        return Trace(self.module, most, steps or self._steps, self.task, self.precision)

    def _median_norm(self, inputs: Tensor, targets: Tensor, unit: Tensor | None) -> float:
        norms = self.clipped_sum(inputs, targets, 1.0, unit=unit).norms
        return max(float(norms.nan_to_num(0.0, 0.0).median()), 1e-6)

    # --- choice of method ---------------------------------------------------------------------------------------

    def _settle(self, shape: Sequence[int], device: torch.device) -> None:
        """Chooses the mode and the physical batch once, from public facts and random examples."""
        random = torch.Generator().manual_seed(0)
        inputs = made_up(3, *shape, vocabulary=self.vocabulary, random=random).to(device)
        if self.vocabulary is not None:
            inputs[1, ..., (inputs.shape[-1] + 1) // 2 :] = 0  # texts of several lengths
        targets = self.task.blank(3).to(device)
        if self.mode == "opacus":
            return self._settle_opacus(inputs, targets)
        if self.mode in (None, "bookkeeping"):
            try:
                return self._settle_bookkeeping(inputs, targets)
            except (NotRowwise, _Differs):
                if self.mode is not None:
                    raise
        try:
            self._settle_frozen(inputs, targets)
        except (Unfit, _Differs) as reason:
            words = f"one example's gradient cannot be told from another's for certain: {reason}"
            allowed = "a model that keeps nothing between examples and takes no step by values read in Python"
            raise OptionError("model", type(self.module).__name__, f"{words}; allowed: {allowed}") from None

    def _settle_bookkeeping(self, inputs: Tensor, targets: Tensor) -> None:
        """Raises `NotRowwise`, or `_Differs` where the steps are not the model's."""
        steps, before = Rowwise(self.module), self.physical
        trace = self._trace(len(targets), steps)
        trace.run(inputs, targets)
        trace.squared_norms()
        given, self._steps, self.mode = self.mode, steps, "bookkeeping"
        try:
            self._choose_block(inputs, targets, trace.numbers() // len(targets))
            if given is None:
                self._compare_block(inputs, targets, self.physical or 1)
        except (NotRowwise, _Differs):
            self.mode, self.physical = given, before
            raise

    def _compare_block(self, inputs: Tensor, targets: Tensor, size: int) -> None:
        """With a block's own number of rows, on which a model's numbers may depend. Raises `_Differs`."""
        rows = torch.arange(size, device=targets.device) % len(targets)
        with self._elsewhere():
            trace = self._trace(size)
            trace.run(inputs[rows], targets[rows])
            norms, total = torch.sqrt(trace.squared_norms()), self._zeros(targets.device)
            trace.add_weighted_sum(torch.ones_like(norms), total)
            self._compare(norms, total, self._single_gradients(inputs[:size], targets[:size]))

    def _settle_opacus(self, inputs: Tensor, targets: Tensor) -> None:
        """Raises `OptionError` for a model of which independence is not proved."""
        from fedpriv.mechanisms.opacus_gradients import OpacusGradients

        try:
            self._many = OpacusGradients(self.module, self.task)
            self._compare_formed(inputs, targets)
            self._choose_block(inputs, targets, self._size)
        except (NotRowwise, _Differs) as reason:
            words = f"Opacus' formulas need layers that keep a batch's examples apart for certain: {reason}"
            raise OptionError("local.clipping", "opacus", f"{words}; allowed: fedpriv") from None

    def _settle_frozen(self, inputs: Tensor, targets: Tensor) -> None:
        """Raises `Unfit`, or `_Differs` where the model gives other gradients than it gave when it was frozen."""
        frozen = FrozenGradient.of(self.module, inputs[0], targets[0], self.task, self.precision)
        self._many, alone = frozen.singly(), self.mode == "singly" or frozen.alone
        try:
            self._compare_formed(inputs, targets, frozen.random)
        except RuntimeError as error:  # an operation that fails on another example
            if failed(error):
                raise
            raise Unfit(f"its steps fail on another example ({type(error).__name__})") from None
        if not alone:
            singly, self._many = self._many, frozen.mapped()
            try:
                self._compare_formed(inputs, targets, frozen.random)
            except Exception as error:  # an operation that vmap does not know
                if failed(error):
                    raise
                self._many, alone = singly, True
        self.mode = "singly" if alone else "vmap"
        self.physical = 1 if alone else self.physical
        self._choose_block(inputs, targets, self._size)

    def _compare_formed(self, inputs: Tensor, targets: Tensor, random: bool = False) -> None:
        """Raises `_Differs`; where random numbers are drawn, there is nothing to compare with."""
        with self._elsewhere():
            rows = [part.flatten(1) for part in self._gradients(inputs, targets)[0].values()]
            found = torch.cat(rows, 1).double()
            if not random:
                self._compare(found.norm(dim=1), found.sum(0), self._single_gradients(inputs, targets))

    def _choose_block(self, inputs: Tensor, targets: Tensor, numbers: int) -> None:
        """numbers: held for one example."""
        most = NUMBERS_ON_GPU if inputs.is_cuda else PHYSICAL_NUMBERS
        fits = max(1, most // max(1, 3 * numbers))
        size = self.physical or min(self.block, fits)
        sizes = [size >> halved for halved in range(size.bit_length())]
        if self.physical is None and size < COMMON <= fits:  # heads of two outputs have other kernels for few rows
            sizes.insert(1, COMMON)
        with self._elsewhere():
            alike = (size for size in sizes if self._computes_apart(inputs, targets, size, size * numbers))
            self.physical = next(alike, None)
        if self.physical is None:
            raise not_apart(type(self.module).__name__, inputs.device)

    def _computes_apart(self, inputs: Tensor, targets: Tensor, size: int, numbers: int) -> bool:
        random = torch.Generator().manual_seed(2)

        def draw() -> tuple[Tensor, Tensor]:
            rows = made_up(size + 1, *inputs.shape[1:], vocabulary=self.vocabulary, random=random).to(inputs.device)
            return rows, targets[:1].expand(size + 1, *targets.shape[1:]).contiguous()

        def parts(some: Tensor, of: Tensor) -> list[Tensor]:
            some, of = filled(some, size), filled(of, size)
            if self.mode != "bookkeeping":
                gradients, losses = self._gradients(some, of)
                return [losses, *gradients.values()]
            trace = self._trace(size)
            losses = trace.run(some, of)
            trace.squared_norms()
            return [losses, *(part for seen in trace.seen for part in (seen.inputs, seen.gradient, *seen.kept))]

        def total(some: Tensor, of: Tensor) -> Tensor:
            return self._sum(some, of, 1.0, size).total

        return computes_apart(draw, parts, total, numbers)

    @contextmanager
    def _elsewhere(self) -> Iterator[None]:
        """At parameters where nothing hides (behind a layer of zeros) and nothing cancels. Afterwards they are as they
        were, to the last bit.
        """
        before = [parameter.detach().clone() for parameter in self._parameters]
        random = torch.Generator().manual_seed(1)
        try:
            for parameter in self._parameters:
                inputs = parameter[:1].numel() if parameter.ndim else 1
                drawn = torch.randn(parameter.shape, generator=random) / math.sqrt(max(1, inputs))
                parameter.data.copy_(drawn)
            yield
        finally:
            for parameter, value in zip(self._parameters, before, strict=True):
                parameter.data.copy_(value)

    def _single_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The model's own gradients [b, d] of single examples; zeros of what is not trained."""
        found = []
        for image, label in zip(inputs, targets, strict=True):
            with mixed(inputs.device, self.precision):
                loss = self.task.mean_loss(self.module(image.clone().unsqueeze(0)), label.unsqueeze(0))
            trained = [parameter for parameter in self._parameters if parameter.requires_grad]
            own = dict(zip(map(id, trained), torch.autograd.grad(loss, trained, allow_unused=True), strict=True))
            parts = [(parameter, own.get(id(parameter))) for parameter in self._parameters]
            found.append(torch.cat([torch.zeros_like(p).reshape(-1) if g is None else dense(g) for p, g in parts]))
        return torch.stack(found)

    def _compare(self, norms: Tensor, total: Tensor, gradients: Tensor) -> None:
        """Raises `_Differs` where norms [b] or the sum [d] are not those of ``gradients`` [k, d], rows in turn."""
        expected, rows = gradients.double(), torch.arange(len(norms), device=norms.device) % len(gradients)
        lengths, apart = expected.norm(dim=1)[rows], (total - rows.bincount().double() @ expected).norm()
        within = TOLERANCE[self.precision]
        close = torch.allclose(norms, lengths, rtol=within, atol=1e-6, equal_nan=True)
        if not close or apart > within * (lengths.sum() + 1e-6):
            raise _Differs("its gradients are other ones when it is asked again")

    # --- book-keeping ------------------------------------------------------------------------------------

    def _add_by_bookkeeping(
        self, inputs: Tensor, targets: Tensor, real: int, bound: float, total: Tensor
    ) -> tuple[Tensor, float]:
        trace = self._trace(self.physical or 1)
        losses = trace.run(inputs, targets)
        norms = torch.sqrt(trace.squared_norms())
        broken = ~torch.isfinite(norms)
        if broken.any():
            trace.forget(broken)
            losses = torch.where(broken, torch.zeros_like(losses), losses)
        trace.add_weighted_sum(_of_real(clip_factors(norms, bound), real), total)
        return norms[:real], float(losses[:real].sum())

    # --- gradients that are formed -----------------------------------------------------------------------

    def _gradients(self, inputs: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Parameter -> gradients of the examples [b, ...], in the model's order; losses [b]."""
        assert self._many is not None, "`settle` came first"
        gradients, losses = self._many(self.module, inputs, targets)
        zeros = {n: p.new_zeros(len(inputs), *p.shape) for n, p in self.module.named_parameters() if n not in gradients}
        return {name: (gradients | zeros)[name] for name, _ in self.module.named_parameters()}, losses

    def _add_formed(
        self, inputs: Tensor, targets: Tensor, real: int, bound: float, total: Tensor
    ) -> tuple[Tensor, float]:
        gradients, losses = self._gradients(inputs, targets)
        norms = torch.sqrt(sum(squared_lengths(gradient) for gradient in gradients.values()))  # type: ignore[arg-type]
        broken, factors, start = ~torch.isfinite(norms), _of_real(clip_factors(norms, bound), real), 0
        if broken.any():
            losses = torch.where(broken, torch.zeros_like(losses), losses)
        for gradient in gradients.values():
            stop = start + gradient[0].numel()
            add_rows(total[start:stop], factors, without(gradient, broken) if broken.any() else gradient)
            start = stop
        return norms[:real], float(losses[:real].sum())


def _of_real(factors: Tensor, real: int) -> Tensor:
    """factors [b] with zeros for the block's padding."""
    factors[real:] = 0.0
    return factors
