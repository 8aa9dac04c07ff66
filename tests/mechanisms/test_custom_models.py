"""Custom models that examples do not meet in: their clipped sums are those of single examples, by whatever way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedpriv.common.errors import OptionError
from fedpriv.config.compose import compose
from fedpriv.mechanisms.noise import KEPT_BACK
from fedpriv.mechanisms.per_example import PerExampleGradients
from fedpriv.mechanisms.rowwise import NotRowwise, Rowwise
from fedpriv.runs.preparation import resolve
from fedpriv.training.stacked_gradients import Chain

SHAPE = (1, 8, 8)


class Of(nn.Module):
    """Named layers and a function of them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.calculated = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, images: Tensor) -> Tensor:
        return self.calculated(self, images)


def head(inputs: int = 16) -> nn.Module:
    return nn.Linear(inputs, 3)


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def last(net: Any, x: Tensor) -> Tensor:
    return net.head(net.rnn(x[:, 0])[0][:, -1])


def packed(kind: type[nn.Module], padded: bool, **options: Any) -> nn.Module:
    """Reads as many rows of a picture as its first column has positive numbers, one at least."""

    def ends(net: Any, x: Tensor) -> Tensor:
        rows = x[:, 0]
        lengths = (rows[..., 0] > 0).sum(1).clamp(min=1).cpu()
        sequence = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        outputs, last = net.rnn(sequence)
        if padded:
            return net.head(pad_packed_sequence(outputs, batch_first=True, total_length=8)[0].sum(1))
        last = last[0] if isinstance(last, tuple) else last
        return net.head(torch.cat([last[-2], last[-1]], 1) if net.rnn.bidirectional else last[-1])

    rnn = kind(8, 16, batch_first=True, **options)
    return Of(ends, rnn=rnn, head=head(16 * (1 + rnn.bidirectional)))


def mean_of_steps(net: Any, x: Tensor) -> Tensor:
    """Depends on the longest example beside it: the places behind the end are as many as that one has."""
    rows = x[:, 0]
    lengths = (rows[..., 0] > 0).sum(1).clamp(min=1).cpu()
    outputs, _ = net.rnn(pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False))
    return net.head(pad_packed_sequence(outputs, batch_first=True)[0].mean(1))


def recurrent(kind: type[nn.Module]) -> nn.Module:
    return Of(last, rnn=kind(8, 16, batch_first=True), head=head())


def with_body(body: nn.Module, forward: Callable[[Any, Tensor], Tensor] | None = None) -> nn.Module:
    return Of(forward or simple, body=body, head=head())


def tied(net: Any, x: Tensor) -> Tensor:
    return net.head(
        torch.tanh(functional.linear(torch.tanh(net.body(x.flatten(1))), net.body.weight.t()[:16].t()[:16]))
    )


def steep(kind: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        layer = kind()
        layer.register_forward_hook(lambda layer, inputs, outputs: 3 * outputs)
        return layer

    return made


class Tripled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Squared(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight**2


class Table(nn.Module):
    """A Linear on a fixed table: its input is no picture."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(64, 8))
        self.keys, self.head = nn.Linear(8, 16), head()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x.flatten(1) @ self.keys(self.table)))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Embedding(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), head(64)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, 0] + self.place(torch.arange(8))
        return self.head(self.norm(rows + self.attention(rows, rows, rows, need_weights=False)[0]).flatten(1))


def codes(net: Any, x: Tensor) -> Tensor:
    return net.head(net.words((x.flatten(1).abs() * 3).long().clamp(0, 9)).mean(1))


def instance_forward() -> nn.Module:
    layer = nn.Linear(64, 16)
    layer.forward = lambda x: 3 * nn.Linear.forward(layer, x)  # type: ignore[method-assign]
    return layer


def spectral() -> nn.Module:
    layer = nn.Linear(64, 16)
    parametrize.register_parametrization(layer, "weight", Squared())
    return layer


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Parameter(torch.randn(64, 16) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x.flatten(1) @ self.first) + torch.sin(x.flatten(1) @ self.second)


def simple(net: Any, x: Tensor) -> Tensor:
    return net.head(torch.tanh(net.body(x.flatten(1))))


def detached(net: Any, x: Tensor) -> Tensor:
    return net.head(torch.tanh(net.body(x.flatten(1)).detach()))


def relu_in_place(net: Any, x: Tensor) -> Tensor:
    return net.head(functional.relu(net.body(x.flatten(1)), True))


def picture_net(net: Any, x: Tensor) -> Tensor:
    h = functional.max_pool2d(functional.relu(net.first(x)), 2)
    h = h + torch.sigmoid(net.norm(h)) * 0.5
    h = torch.cat([h.mean((2, 3)), h.amax(dim=(2, 3))], dim=1)
    return net.head((1 - h) * functional.softmax(h, dim=1))


def shapes(net: Any, x: Tensor) -> Tensor:
    h = net.first(x)[..., 1:, :-1]
    h = (
        h.reshape(x.size(0), h.shape[1], -1)
        .contiguous()
        .transpose(1, 2)
        .permute(0, 2, 1)[:, :, :40]
        .reshape(len_of(x), -1)
    )
    return net.head(h.squeeze().unsqueeze(1).view(x.shape[0], -1))


def len_of(x: Tensor) -> int:
    return x.shape[0]


def shared() -> nn.Module:
    layer = nn.Linear(16, 16)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sequential(layer, nn.Tanh(), layer), head())


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind][0]()


Made = Callable[[], nn.Module]
MODELS: dict[str, tuple[Made, str]] = {
    "plain": (lambda: Of(simple, body=nn.Linear(64, 16), head=head()), "bookkeeping"),
    "functions of pictures": (
        lambda: Of(picture_net, first=nn.Conv2d(1, 4, 3), norm=nn.GroupNorm(2, 4), head=head(8)),
        "bookkeeping",
    ),
    "shapes": (lambda: Of(shapes, first=nn.Conv2d(1, 4, 1), head=head(160)), "bookkeeping"),
    "fixed table": (Table, "vmap"),
    "positions and attention": (Positions, "vmap"),
    "frozen layer": (lambda: Of(simple, body=frozen(nn.Linear(64, 16)), head=head()), "vmap"),
    "frozen at the end": (lambda: Of(simple, body=nn.Linear(64, 16), head=frozen(head())), "vmap"),
    "layer norm": (lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(64), head(64)), "bookkeeping"),
    "gru": (lambda: recurrent(nn.GRU), "vmap"),
    "lstm": (lambda: recurrent(nn.LSTM), "vmap"),
    "rnn": (lambda: recurrent(nn.RNN), "vmap"),
    "embedding": (lambda: Of(codes, words=nn.Embedding(10, 16), head=head()), "vmap"),
    "sparse embedding": (lambda: Of(codes, words=nn.Embedding(10, 16, sparse=True), head=head()), "singly"),
    "unused layer": (lambda: Of(simple, body=nn.Linear(64, 16), idle=nn.Linear(4, 4), head=head()), "vmap"),
    "layer without a part": (lambda: with_body(nn.Linear(64, 16), detached), "vmap"),
    "tied": (lambda: Of(tied, body=nn.Linear(64, 16), head=head()), "vmap"),
    "in-place relu": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(inplace=True), head()),
        "vmap",
    ),
    "relu in place": (lambda: with_body(nn.Linear(64, 16), relu_in_place), "vmap"),
    "own forward": (lambda: Of(simple, body=Tripled(64, 16), head=head()), "vmap"),
    "forward of an object": (lambda: Of(simple, body=instance_forward(), head=head()), "vmap"),
    "hooked": (lambda: Of(simple, body=steep(lambda: nn.Linear(64, 16))(), head=head()), "vmap"),
    "parametrised": (lambda: Of(simple, body=spectral(), head=head()), "vmap"),
    "weight norm": (lambda: with_body(nn.utils.parametrizations.weight_norm(nn.Linear(64, 16))), "vmap"),
    "packed lstm": (lambda: packed(nn.LSTM, False), "vmap"),
    "packed lstm, two layers": (lambda: packed(nn.LSTM, False, num_layers=2), "vmap"),
    "packed lstm, without bias, padded": (lambda: packed(nn.LSTM, True, bias=False, bidirectional=True), "vmap"),
    "packed gru": (lambda: packed(nn.GRU, True, bidirectional=True), "vmap"),
    "packed rnn": (lambda: packed(nn.RNN, False, nonlinearity="relu"), "vmap"),
    "rms norm": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.RMSNorm(16), nn.Tanh(), head()),
        "bookkeeping",
    ),
    "rms norm of places": (lambda: nn.Sequential(nn.RMSNorm((8, 8)), nn.Flatten(), head(64)), "bookkeeping"),
    "groups": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), head(64)), "vmap"),
    "same padding": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), head(128)), "vmap"),
    "one layer under two names": (shared, "bookkeeping"),
    "one weight under two names": (lambda: nn.Sequential(TwoNames(), head()), "vmap"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_custom_models_give_the_sums_of_single_examples(kind: str) -> None:
    labels = torch.tensor([0, 1, 2, 1, 0])
    module, images = build(kind), torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    way = PerExampleGradients(module, block=4)
    way.settle(torch.Size(SHAPE), torch.device("cpu"))
    with torch.no_grad():  # not where it was settled
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    singles = torch.stack(
        [gradient_with_zeros(module, image, label) for image, label in zip(images, labels, strict=True)]
    )
    norms = singles.norm(dim=1)
    bound = float(norms.median())
    expected = (singles * torch.clamp(bound * (1 - KEPT_BACK) / norms, max=1.0).unsqueeze(1)).sum(0)
    found = way.clipped_sum(images, labels, bound)
    assert way.mode == MODELS[kind][1]
    assert torch.allclose(found.norms, norms, rtol=1e-4)
    assert float((found.total - expected).norm()) <= 1e-4 * float(expected.norm())


def gradient_with_zeros(module: nn.Module, image: Tensor, label: Tensor) -> Tensor:
    loss = functional.cross_entropy(module(image[None]), label[None])
    parameters = list(module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    found = dict(zip(map(id, trained), torch.autograd.grad(loss, trained, allow_unused=True), strict=True))
    parts = [found.get(id(parameter)) for parameter in parameters]
    return torch.cat(
        [
            torch.zeros(p.numel()) if g is None else g.to_dense().reshape(-1)
            for p, g in zip(parameters, parts, strict=True)
        ]
    ).double()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Of(mean_of_steps, rnn=nn.LSTM(8, 16, batch_first=True), head=head()), "other ones when it is asked"),
        (lambda: packed(nn.LSTM, False, proj_size=4), r"at rnn, LSTM: ValueError: a packed LSTM with projections"),
    ],
)
def test_packed_sequences_that_have_no_gradient_of_one_example_alone(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        PerExampleGradients(make()).settle(torch.Size(SHAPE), torch.device("cpu"))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.5), head())


@pytest.mark.parametrize("place", [0, 3, 11])
def test_an_example_moves_no_other_example_s_random_numbers(place: int) -> None:
    """Every process of torch begins with the same stream, which a server knows: from one stream for all examples, the
    first one of twelve moved the sum by 3.9 bounds.
    """
    torch.manual_seed(0)
    way, seed = PerExampleGradients(dropping(), block=4), 67280421310721  # of a fresh process
    images, labels = 5 * torch.randn(12, *SHAPE), torch.arange(12) % 3
    others = torch.arange(12) != place
    way.settle(torch.Size(SHAPE), torch.device("cpu"))
    found = []
    for chosen in (torch.ones(12, dtype=torch.bool), others):
        torch.manual_seed(seed)
        found.append(way.clipped_sum(images[chosen], labels[chosen], 1e-2).total)
        assert torch.initial_seed() == seed and torch.equal(torch.rand(1), torch.rand(1, generator=fresh(seed)))
    assert 0 < float((found[0] - found[1]).norm()) <= 1e-2


def fresh(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_dropout_draws_for_every_example_and_anew_at_other_parameters() -> None:
    torch.manual_seed(0)
    module, label = dropping(), torch.zeros(8, dtype=torch.long)
    way, images = (
        PerExampleGradients(module, block=4),
        torch.randn(1, *SHAPE) * torch.linspace(1, 1.001, 8)[:, None, None, None],
    )
    norms = way.clipped_sum(images, label, 1.0).norms
    assert float(norms.std()) > 0.02 * float(norms.mean())  # nearly equal pictures, other masks
    assert torch.equal(way.clipped_sum(images, label, 1.0).norms, norms)
    with torch.no_grad():
        module[5].bias.add_(1e-6)
    later = way.clipped_sum(images, label, 1.0).norms
    assert float((later - norms).abs().min()) > 1e-3 * float(norms.mean())
    module.eval()  # trained, not evaluated
    assert PerExampleGradients(module).clipped_sum(images, label, 1.0).norms.std() > 0.02 * float(norms.mean())


attention = functional.scaled_dot_product_attention

#: Steps that are refused, with the reason's words, though nothing of the numbers shows it at the start.
REFUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "ranks": (lambda net, x: net.head(x.flatten(1) + x.flatten(1)[:, None]), "add"),
    "first dimension": (lambda net, x: net.head(x.flatten(1).softmax(0)), "softmax"),
    "named first": (lambda net, x: net.head(functional.softmax(x.flatten(1), dim=-2)), "softmax"),
    "no dimension": (lambda net, x: net.head(x.flatten(1) - x.mean()), "mean"),
    "all dimensions": (lambda net, x: net.head(x.flatten(1) - x.sum((0, 1, 2, 3))), "sum"),
    "turned": (lambda net, x: net.head(x.flatten(1).transpose(0, 1).transpose(0, 1)), "transpose"),
    "permuted": (lambda net, x: net.head(x.permute(2, 1, 0, 3).permute(2, 1, 0, 3).flatten(1)), "permute"),
    "regrouped": (lambda net, x: net.head(x.reshape(-1, 32).reshape(-1, 64)), "row for each example"),
    "flattened": (lambda net, x: net.head(torch.flatten(x).view(x.shape[0], -1)), "row for each example"),
    "joined": (lambda net, x: net.head(torch.cat([x, x]).flatten(1)[:3]), "cat"),
    "joined by name": (lambda net, x: net.head(torch.cat(tensors=[x, x], dim=0).flatten(1)), "names alone"),
    "joined without a dimension": (lambda net, x: net.head(torch.cat((x, -x)).flatten(1)), "cat"),
    "a slice by values": (lambda net, x: net.head(x[:, : x.amax((1, 2, 3))].flatten(1)), "getitem"),
    "clamped by another rank": (lambda net, x: net.head(x.flatten(1).clamp(max=x.mean((1, 2, 3)))), "clamp"),
    "by another type": (lambda net, x: net.head(x.view(torch.int32).flatten(1)), "view"),
    "turned whole": (lambda net, x: net.head(x.flatten(1).T.T), "getattr|not known"),
    "a row": (lambda net, x: net.head(x.flatten(1) - x.flatten(1)[0:1]), "getitem"),
    "rows turned": (lambda net, x: net.head(x.flatten(1)[torch.arange(3)]), "used outside|getitem|listed"),
    "rows by an ellipsis": (lambda net, x: net.head(x.flatten(1)[..., 0:1, :]), "getitem"),
    "product": (lambda net, x: net.head(x.flatten(1) @ x.flatten(1).t() @ x.flatten(1)), "matmul|not known"),
    "rolled": (lambda net, x: net.head(x.roll(1, 0).flatten(1)), "roll"),
    "in place": (lambda net, x: net.head(x.flatten(1).mul_(2)), "mul_"),
    "random": (lambda net, x: net.head(functional.dropout(x.flatten(1))), "dropout"),
    "a weight": (lambda net, x: functional.linear(x.flatten(1), net.head.weight), "outside a layer|is not used"),
    "the weight besides": (lambda net, x: net.head(x.flatten(1)) + net.head.weight.sum(), "outside a layer"),
    "a number of a tensor": (lambda net, x: net.head(x.flatten(1)) * x.max().item(), "not known"),
    "stacked first": (lambda net, x: net.head(torch.stack([x, x]).flatten(1)), "stack"),
    "a running sum of rows": (lambda net, x: net.head(x.flatten(1).cumsum(0)), "cumsum"),
    "attention over rows": (lambda net, x: net.head(attention(*3 * [x.flatten(1)])), "scaled_dot"),
    "attention of other ranks": (lambda net, x: net.head(attention(x, x[:, 0], x).flatten(1)), "scaled_dot"),
    "a mask of other rank": (lambda net, x: net.head(attention(x, x, x, x[:, 0]).flatten(1)), "scaled_dot"),
    "attention with dropout": (lambda net, x: net.head(attention(x, x, x, dropout_p=0.5).flatten(1)), "scaled_dot"),
    "of one dimension": (lambda net, x: net.head(x.sum((1, 2, 3))), "dimensions"),
    "branch": (lambda net, x: net.head(x.flatten(1)) if x.max() > 1 else net.head(-x.flatten(1)), "listed"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_step_that_could_leave_its_row_is_no_step(kind: str) -> None:
    forward, words = REFUSED[kind]
    with pytest.raises(NotRowwise, match=words):
        Rowwise(Of(forward, head=nn.Linear(64, 3))).run(torch.zeros(3, *SHAPE), lambda *_: None)


# --- where else they are asked -----------------------------------------------------------------------------


def chain(change: Callable[[nn.Sequential], object] = lambda net: None) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    change(net)
    return net


CHANGES: dict[str, Callable[[Any], object]] = {
    "tied weights": lambda net: setattr(net[5], "weight", net[3].weight),
    "tied bias": lambda net: setattr(net[5], "bias", net[1].bias),
    "frozen": lambda net: net[1].requires_grad_(False),
    "hook": lambda net: net[3].register_forward_hook(lambda layer, inputs, outputs: outputs - outputs.mean(0)),
    "hook of a weight": lambda net: net[3].weight.register_hook(lambda gradient: 2 * gradient),
    "own forward": lambda net: setattr(net[3], "forward", lambda x: x - x.mean(0)),
    "own forward of all": lambda net: setattr(net, "forward", lambda x: x.flatten(1)[:, :16]),
    "parametrised": lambda net: parametrize.register_parametrization(net[3], "weight", Squared()),
    "another class": lambda net: setattr(net, "3", Tripled(16, 16)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_many_clients_at_once_do_by_hand_what_is_a_chain_and_no_more(change: str) -> None:
    """`Chain` computes layers, not the module: what the module does besides would be left out."""
    assert Chain.of(chain()) is not None
    assert Chain.of(chain(CHANGES[change])) is None
    with pytest.raises(NotRowwise):
        Rowwise(chain(CHANGES[change]))


def guarded(shape: Any, classes: int) -> nn.Module:
    """Its batches are turned by their largest picture; a step by a value in Python."""
    return Of(
        lambda net, x: net.out(-x.flatten(1) if x.max() > 40 else x.flatten(1)), out=nn.Linear(shape[1] ** 2, classes)
    )


def with_norm(shape: Any, classes: int) -> nn.Module:
    return nn.Sequential(nn.InstanceNorm2d(1, affine=True), nn.Flatten(), nn.Linear(shape[1] ** 2, classes))


@pytest.mark.parametrize("strategy", ["dpsgd", "agn", "anr", "dpfl_agn"])
def test_a_run_says_so_at_its_start(strategy: str) -> None:
    options = (f"strategy={strategy}", "num_clients=4", "clients_per_round=4", "num_rounds=1", "engine=inprocess")
    custom = "model.path=test_custom_models."
    with pytest.raises(OptionError, match=r"^model=Of: one example's gradient .* values read in Python\).*; allowed: "):
        resolve(compose([*options, "model=custom", f"{custom}guarded"]), None)
    _, worker, _ = resolve(compose([*options, "model=custom", f"{custom}with_norm"]), None)
    assert worker.trainer.per_example(worker.data.dataset.shape).mode == "vmap"
