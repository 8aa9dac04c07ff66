"""Small Opacus loops, sound ones and ones with one fault each, as a user would write them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset

warnings.simplefilter("ignore")

EXAMPLES, BATCH, FEATURES = 64, 16, 6


def data(examples: int = EXAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(examples, FEATURES, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def net(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 5), *middle, nn.ReLU(), nn.Linear(5, 2))


def made(model: nn.Module | None = None, loader: DataLoader | None = None, **options: Any) -> tuple[Any, ...]:
    """(engine, model, optimiser, [criterion,] loader) as make_private returns them."""
    model = net() if model is None else model
    engine = PrivacyEngine(accountant="rdp")
    loader = DataLoader(data(), batch_size=BATCH, shuffle=True) if loader is None else loader
    options = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options
    return engine, *engine.make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=loader, **options
    )


def step(model: Any, optimiser: Any, batch: Any, criterion: Any = nn.functional.cross_entropy) -> float:
    optimiser.zero_grad()
    loss = criterion(model(batch[0]), batch[1])
    loss.backward()
    optimiser.step()
    return float(loss.item())


def epochs(
    model: Any, optimiser: Any, loader: Any, number: int = 2, criterion: Any = nn.functional.cross_entropy
) -> None:
    for _ in range(number):
        for batch in loader:
            step(model, optimiser, batch, criterion)


def private(*made_with: Any, times: int = 2, **options: Any) -> Any:
    """A whole loop: the model, and what its accountant says."""
    engine, model, optimiser, loader = made(*made_with, **options)
    epochs(model, optimiser, loader, times)
    return model, engine.get_epsilon(1e-5)


# --- sound ------------------------------------------------------------


def poisson() -> Any:
    return private()


def with_epsilon() -> Any:
    model = net()
    engine = PrivacyEngine()
    model, optimiser, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.Adam(model.parameters()),
        data_loader=DataLoader(data(), batch_size=BATCH),
        target_epsilon=4.0,
        target_delta=1e-5,
        epochs=2,
        max_grad_norm=1.0,
    )
    epochs(model, optimiser, loader)
    return model


def ghost() -> Any:
    engine, model, optimiser, criterion, loader = made(criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost")
    epochs(model, optimiser, loader, criterion=criterion)
    return model, engine.get_epsilon(1e-5)


def in_pieces() -> Any:
    engine, model, optimiser, loader = made()
    for _ in range(2):
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=5, optimizer=optimiser) as pieces:
            epochs(model, optimiser, pieces, 1)
    return model, engine.get_epsilon(1e-5)


def with_dropout() -> Any:
    return private(net(nn.Dropout(0.3)))


def per_layer() -> Any:
    return private(clipping="per_layer", max_grad_norm=[0.5] * 4)


def falling_noise() -> Any:
    engine, model, optimiser, loader = made()
    scheduler = ExponentialNoise(optimiser, gamma=0.9)
    for _ in range(2):
        epochs(model, optimiser, loader, 1)
        scheduler.step()
    return model, engine.get_epsilon(1e-5)


def public_accuracy() -> Any:
    _engine, model, optimiser, loader = made()
    epochs(model, optimiser, loader)
    held_out = torch.randn(20, FEATURES, generator=torch.Generator().manual_seed(9))
    model.eval()
    return model, float((model(held_out).argmax(1) == (held_out[:, 0] > 0).long()).float().mean())


class Trained:
    """What a loop returns: an object of its own, with what it is given as attributes."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def an_object_returned() -> Any:
    engine, model, optimiser, loader = made()
    epochs(model, optimiser, loader)
    return Trained(model=model, optimiser=optimiser, loader=loader, engine=engine, epsilon=engine.get_epsilon(1e-5))


SOUND = (
    poisson,
    with_epsilon,
    ghost,
    in_pieces,
    with_dropout,
    per_layer,
    falling_noise,
    public_accuracy,
    an_object_returned,
)

# --- sampling ------------------------------------------------------------


def fixed_batches() -> Any:
    return private(poisson_sampling=False)


def rate_understated() -> Any:
    model = GradSampleModule(net())
    from opacus.data_loader import DPDataLoader

    loader = DPDataLoader(data(), sample_rate=0.25)
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16
    )
    accountant = RDPAccountant()
    for batch in loader:
        step(model, optimiser, batch)
        accountant.step(noise_multiplier=1.0, sample_rate=0.025)
    return model, accountant.get_epsilon(1e-5)


def with_replacement() -> Any:
    source = data()
    loader = DataLoader(source, batch_size=BATCH, sampler=RandomSampler(source, replacement=True, num_samples=64))
    return private(loader=loader, poisson_sampling=False)


class Coins(Sampler):
    """A user's own sampler."""

    def __iter__(self) -> Any:
        for _ in range(4):
            yield (torch.rand(EXAMPLES) < 0.25).nonzero().reshape(-1).tolist() or [0]

    def __len__(self) -> int:
        return 4


def own_sampler() -> Any:
    return private(loader=DataLoader(data(), batch_sampler=Coins()), poisson_sampling=False)


def summed_batches() -> Any:
    engine, model, optimiser, loader = made()
    model.allow_grad_accumulation()
    for _ in range(2):
        for number, batch in enumerate(loader):
            nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
            if number % 2:
                optimiser.step()
                optimiser.zero_grad()
    return model, engine.get_epsilon(1e-5)


# --- accounting ------------------------------------------------------------


def forgotten_history() -> Any:
    engine, model, optimiser, loader = made()
    for _ in range(3):
        engine.accountant.history = []
        epochs(model, optimiser, loader, 1)
    return model, engine.get_epsilon(1e-5)


def two_engines() -> Any:
    first, model, optimiser, loader = made()
    epochs(model, optimiser, loader, 1)
    second, model, optimiser, loader = made(model.to_standard_module())
    epochs(model, optimiser, loader, 1)
    return model, max(first.get_epsilon(1e-5), second.get_epsilon(1e-5))


def accounted_before_change() -> Any:
    model = GradSampleModule(net())
    engine, model, optimiser, loader = made()
    optimiser.attach_step_hook(lambda one: engine.accountant.step(noise_multiplier=3.0, sample_rate=0.25))
    epochs(model, optimiser, loader)
    return model, engine.get_epsilon(1e-5)


# --- noise ------------------------------------------------------------


class Quiet(DPOptimizer):
    """Adds half of the noise that it is set to."""

    def add_noise(self) -> None:
        real, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / 2
        super().add_noise()
        self.noise_multiplier = real


def _with(kind: type, **options: Any) -> Any:
    engine, model, optimiser, loader = made()
    hook = optimiser.step_hook
    optimiser = kind(
        optimiser.original_optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16, **options
    )
    optimiser.attach_step_hook(hook)
    return engine, model, optimiser, loader


def half_noise() -> Any:
    engine, model, optimiser, loader = _with(Quiet)
    epochs(model, optimiser, loader, 6)
    return model, engine.get_epsilon(1e-5)


def noise_again() -> Any:
    engine, model, optimiser, loader = made(noise_generator=torch.Generator())
    for _ in range(2):
        for batch in loader:
            optimiser.generator.manual_seed(1)
            step(model, optimiser, batch)
    return model, engine.get_epsilon(1e-5)


def constant_seed() -> Any:
    return private(noise_generator=torch.Generator().manual_seed(42))


def past_the_noise() -> Any:
    engine, model, optimiser, loader = made()
    for number, batch in enumerate(loader):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        (optimiser.original_optimizer if number == 2 else optimiser).step()
    return model, engine.get_epsilon(1e-5)


def by_drawn_size() -> Any:
    engine, model, optimiser, loader = made()
    for _ in range(2):
        for batch in loader:
            optimiser.expected_batch_size = max(1, len(batch[0]))
            step(model, optimiser, batch)
    return model, engine.get_epsilon(1e-5)


# --- clipping ------------------------------------------------------------


class Unclipped(DPOptimizer):
    """Sums gradients as they are."""

    def clip_and_accumulate(self) -> None:
        norm, self.max_grad_norm = self.max_grad_norm, 1e9
        super().clip_and_accumulate()
        self.max_grad_norm = norm


class EachAlone(DPOptimizer):
    """Clips every parameter's gradient to the whole norm."""

    def clip_and_accumulate(self) -> None:
        for p in self.params:
            sample = self._get_flat_grad_sample(p)
            lengths = sample.reshape(len(sample), -1).norm(dim=1)
            p.summed_grad = torch.einsum("i,i...", (self.max_grad_norm / (lengths + 1e-6)).clamp(max=1), sample)


def unclipped() -> Any:
    engine, model, optimiser, loader = _with(Unclipped)
    epochs(model, optimiser, loader)
    return model, engine.get_epsilon(1e-5)


def clipped_alone() -> Any:
    engine, model, optimiser, loader = _with(EachAlone)
    epochs(model, optimiser, loader)
    return model, engine.get_epsilon(1e-5)


def falling_clip_of_noise() -> Any:
    engine, model, optimiser, criterion, loader = made(criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost")
    scheduler = ExponentialGradClip(optimiser, gamma=0.5)
    for _ in range(3):
        epochs(model, optimiser, loader, 1, criterion)
        scheduler.step()
    return model, engine.get_epsilon(1e-5)


def adaptive_clip() -> Any:
    return private(
        clipping="adaptive",
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=10.0,
        min_clipbound=0.01,
        unclipped_num_std=4.0,
    )


# --- what leaves beside the noisy sums ------------------------------------------------------------


def loss_returned() -> Any:
    _engine, model, optimiser, loader = made()
    losses = [step(model, optimiser, batch) for batch in loader]
    return model, sum(losses) / len(losses)


def accuracy_on_training() -> Any:
    _engine, model, optimiser, loader = made()
    epochs(model, optimiser, loader)
    x, y = loader.dataset.tensors
    model.eval()
    return {"model": model, "score": float(nn.functional.cross_entropy(model(x), y))}


class Averaged(nn.Module):
    """Keeps an average of what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Buffer(torch.zeros(5)) if hasattr(nn, "Buffer") else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x):
            self.seen.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x


def average_kept() -> Any:
    model = GradSampleModule(net(Averaged()), strict=False)
    return private(model)


def batch_norm() -> Any:
    model = GradSampleModule(net(nn.BatchNorm1d(5, affine=False, track_running_stats=False)))
    optimiser = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=16
    )
    from opacus.data_loader import DPDataLoader

    accountant = RDPAccountant()
    optimiser.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=0.25))
    epochs(model, optimiser, DPDataLoader(data(), sample_rate=0.25))
    return model, accountant.get_epsilon(1e-5)


class Centred(nn.Module):
    """Takes off the batch's mean."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True) if len(x) else x


def batch_mean() -> Any:
    return private(net(Centred()))


def raw_after_noise() -> Any:
    engine, model, optimiser, loader = made()
    for batch in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        kept = [p.grad.clone() for p in model.parameters()]
        if optimiser.pre_step():
            for p, grad in zip(model.parameters(), kept, strict=True):
                p.grad = 0.5 * p.grad + 0.5 * grad
            optimiser.original_optimizer.step()
    return model, engine.get_epsilon(1e-5)


def logistic() -> nn.Module:
    """For which an example and its mirror image with the other label are the same."""
    return nn.Linear(FEATURES, 2, bias=False)


def last_loss_of_a_linear_model() -> Any:
    source = data()
    _engine, model, optimiser, loader = made(logistic(), DataLoader(source, batch_size=BATCH))
    epochs(model, optimiser, loader)
    return model, float(nn.functional.cross_entropy(model(source.tensors[0]), source.tensors[1]))


def accuracy_of_a_linear_model() -> Any:
    source = data()
    _engine, model, optimiser, loader = made(logistic(), DataLoader(source, batch_size=BATCH))
    epochs(model, optimiser, loader)
    return model, float((model(source.tensors[0]).argmax(1) == source.tensors[1]).float().mean())


def losses_in_an_object() -> Any:
    _engine, model, optimiser, loader = made()
    return Trained(model=model, losses=[step(model, optimiser, batch) for batch in loader])


def stops_on_loss() -> Any:
    _engine, model, optimiser, loader = made()
    for _ in range(3):
        for batch in loader:
            if step(model, optimiser, batch) > 0.8:
                return model
    return model


def second_optimiser() -> Any:
    _engine, model, optimiser, loader = made()
    head = nn.Linear(2, 2)
    other = torch.optim.SGD(head.parameters(), lr=0.1)
    for batch in loader:
        optimiser.zero_grad()
        other.zero_grad()
        nn.functional.cross_entropy(head(model(batch[0])), batch[1]).backward()
        optimiser.step()
        other.step()
    return model, head


#: Fault -> the finding that the check must have, as a fault.
FAULTY = {
    fixed_batches: "fixed-batches-priced-as-poisson",
    with_replacement: "fixed-batches-priced-as-poisson",
    rate_understated: "account-below-what-ran",
    summed_batches: "account-below-what-ran",
    forgotten_history: "account-below-what-ran",
    accounted_before_change: "account-below-what-ran",
    half_noise: "account-below-what-ran",
    falling_clip_of_noise: "account-below-what-ran",
    noise_again: "noise-repeats",
    constant_seed: "noise-repeats",
    unclipped: "unbounded-sensitivity",
    clipped_alone: "unbounded-sensitivity",
    batch_norm: "unbounded-sensitivity",
    batch_mean: "unbounded-sensitivity",
    by_drawn_size: "number-without-noise",
    past_the_noise: "number-without-noise",
    loss_returned: "number-without-noise",
    losses_in_an_object: "number-without-noise",
    last_loss_of_a_linear_model: "number-without-noise",
    accuracy_of_a_linear_model: "number-without-noise",
    accuracy_on_training: "number-without-noise",
    average_kept: "number-without-noise",
    raw_after_noise: "number-without-noise",
    second_optimiser: "number-without-noise",
    stops_on_loss: "form-depends-on-data",
    adaptive_clip: "noise-depends-on-data",
}
