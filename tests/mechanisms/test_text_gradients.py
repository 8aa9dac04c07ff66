"""Per-example gradients of layers of sequences: equal to explicit gradients of one example after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference.per_example import clipped_sum
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.common.errors import OptionError
from fedpriv.mechanisms.bookkeeping import Trace
from fedpriv.mechanisms.clipped_sums import made_up
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import COMMON, PerExampleGradients
from fedpriv.mechanisms.rowwise import NotRowwise, Rowwise

TOKENS, VOCABULARY, WIDTH = 6, 11, 8


class Of(nn.Module):
    """A function of token ids and named layers."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.calculated = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, ids: Tensor) -> Tensor:
        return self.calculated(self, ids)


def words(**options: Any) -> nn.Embedding:
    return nn.Embedding(VOCABULARY, WIDTH, **options)


def twice(net: Any, ids: Tensor) -> Tensor:
    """A layer called three times, its last call without a part in the outputs."""
    state = torch.tanh(net.body(net.body(net.words(ids).mean(1))))
    net.body(state)
    return net.head(state)


def attending(net: Any, ids: Tensor) -> Tensor:
    found = net.norm(net.words(ids))
    query, key, value = (net.asked(found)[:, :, part * WIDTH : (part + 1) * WIDTH].unsqueeze(1) for part in range(3))
    return net.head(functional.scaled_dot_product_attention(query, key, value, is_causal=True).squeeze(1).mean(1))


def head() -> nn.Linear:
    return nn.Linear(WIDTH, 3)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "embedding": lambda: Of(lambda net, ids: net.head(net.words(ids).mean(1)), words=words(), head=head()),
    "embedding with padding": lambda: Of(
        lambda net, ids: net.head(torch.tanh(net.words(ids)).sum(1)), words=words(padding_idx=0), head=head()
    ),
    "embedding of one": lambda: Of(lambda net, ids: net.head(net.words(ids[:, 0])), words=words(), head=head()),
    "table used twice": lambda: Of(
        lambda net, ids: net.head(net.words(ids).sum(1) - torch.tanh(net.words(ids[:, 1:3])).sum(1)),
        words=words(),
        head=head(),
    ),
    "linear, formed": lambda: Of(
        lambda net, ids: net.head(torch.tanh(net.body(net.words(ids))).sum(1)),
        words=words(),
        body=nn.Linear(WIDTH, 40),
        head=nn.Linear(40, 3),
    ),
    "linear, by Gram matrices": lambda: Of(
        lambda net, ids: net.head(torch.tanh(net.wide(net.body(net.words(ids)))).sum(1)),
        words=words(),
        body=nn.Linear(WIDTH, 40, bias=False),
        wide=nn.Linear(40, 40),
        head=nn.Linear(40, 3),
    ),
    "layer norm": lambda: Of(
        lambda net, ids: net.head(net.last(net.norm(net.words(ids)).sum(1))),
        words=words(),
        norm=nn.LayerNorm([TOKENS, WIDTH]),
        last=nn.LayerNorm(WIDTH, bias=False),
        head=head(),
    ),
    "called several times": lambda: Of(twice, words=words(), body=nn.Linear(WIDTH, WIDTH), head=head()),
    "attention": lambda: Of(
        attending, words=words(), norm=nn.LayerNorm(WIDTH), asked=nn.Linear(WIDTH, 3 * WIDTH), head=head()
    ),
}


#: No formula: a LayerNorm without a bias.
UNKNOWN_TO_OPACUS = ("layer norm",)


def texts(n: int) -> tuple[Tensor, Tensor]:
    ids = made_up(n, TOKENS, vocabulary=VOCABULARY, random=torch.Generator().manual_seed(3))
    ids[0], ids[1] = 0, 4  # nothing but padding, one token throughout
    return ids, torch.arange(n) % 3


@pytest.mark.parametrize("mode", ["bookkeeping", "opacus"])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_are_those_of_explicit_gradients(name: str, mode: str) -> None:
    torch.manual_seed(0)
    model, (ids, targets) = MODELS[name](), texts(7)
    way = PerExampleGradients(model, mode, block=4, vocabulary=VOCABULARY)
    if mode == "opacus" and name in UNKNOWN_TO_OPACUS:
        with pytest.raises(OptionError, match=r"local.clipping=opacus: .*allowed: fedpriv"):
            way.settle((TOKENS,), torch.device("cpu"))
        return
    way.settle((TOKENS,), torch.device("cpu"))
    with torch.no_grad():  # not where it was settled
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    _, norms = clipped_sum(model, ids, targets, 1.0)
    bound = sorted(norms)[3]
    expected, _ = clipped_sum(model, ids, targets, bound * (1 - KEPT_BACK))
    found = way.clipped_sum(ids, targets, bound)
    assert way.physical in (4, COMMON)  # rows of one block are alike
    assert torch.allclose(found.norms, torch.tensor(norms, dtype=torch.float64), rtol=1e-5)
    assert float((found.total - expected).norm()) <= 1e-5 * float(expected.norm())
    for k in range(7):
        assert float(way.clipped_sum(ids[k : k + 1], targets[k : k + 1], 1e-3).total.norm()) <= 1e-3


def test_an_embedding_costs_its_tokens() -> None:
    """What is held for it does not grow with the vocabulary."""
    held = []
    for vocabulary in (50, 5000):
        model = Of(lambda net, ids: net.head(net.words(ids).sum(1)), words=nn.Embedding(vocabulary, WIDTH), head=head())
        trace = Trace(model, 4)
        trace.run(torch.arange(4 * TOKENS).view(4, TOKENS), torch.zeros(4, dtype=torch.int64))
        trace.squared_norms()
        held.append(trace.numbers())
    assert held[0] == held[1] < 5000


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"max_norm": 1.0}, "changes rows"), ({"scale_grad_by_freq": True}, "how often")],
    ids=["shortened rows", "scaled by the batch"],
)
def test_embeddings_by_which_examples_meet_are_refused(options: dict[str, Any], reason: str) -> None:
    """The gradient of one is divided by how often its tokens occur in the whole batch."""
    model = Of(lambda net, ids: net.head(net.words(ids).sum(1)), words=words(**options), head=head())
    with pytest.raises(NotRowwise, match=reason):
        Rowwise(model)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e17, 1e30, 1e38])
def test_no_parameters_make_a_text_longer_than_the_bound(scale: float) -> None:
    """Terms of many positions that cancel, from a server that chooses theta."""
    torch.manual_seed(1)
    model = MODELS["linear, by Gram matrices"]()
    way = PerExampleGradients(model, "bookkeeping", physical=4)
    ids, targets = texts(4)
    way.vocabulary = VOCABULARY
    way.settle((TOKENS,), torch.device("cpu"))
    with torch.no_grad():
        model.wide.weight.mul_(scale)  # type: ignore[union-attr, operator]
        model.words.weight[1::2] = -model.words.weight[2::2]  # type: ignore[index, union-attr]
        model.head.weight.div_(scale)  # type: ignore[union-attr, operator]
    for k in range(4):
        assert float(way.clipped_sum(ids[k : k + 1], targets[k : k + 1], 1e-2).total.norm()) <= 1e-2
