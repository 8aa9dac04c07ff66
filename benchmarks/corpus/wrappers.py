"""One wrapper for each target of targets.yaml: the smallest input that its code takes. No code of theirs is here."""

from __future__ import annotations

import copy
import math
import runpy
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.corpus.public import batches, classes, code, folder, lend, line, on_the_cpu, pair, parts, scratch

Update = np.ndarray[Any, Any]


def _vector(update: Any) -> Update:
    if not isinstance(update, np.ndarray) or update.ndim != 1:
        raise TypeError("an update must be an array of one axis")
    return update


# -- training loops ------------------------------------------------------------------------------------------------


def _client(data: Any, seed: int) -> Any:
    rows, targets = pair(data)
    with scratch("here") as place:
        for name, part in (("X", rows), ("y", (targets > 0).float())):
            for half in ("train", "test"):
                np.save(place / "here" / f"{name}_{half}.npy", part.numpy())
        made = code("Adrianljh/Federated-DP-SGD", "src.client_dp").DPClient(
            place / "here", batch_size=math.ceil(len(rows) / 4), noise_multiplier=1.0, seed=seed
        )
        start = [np.full_like(part, 0.01) for part in made.get_parameters({})]
        return made.fit(start, {})


def client_seed_in_code(data: Any) -> Any:
    return _client(data, 42)


def client_seed_drawn(data: Any) -> Any:
    return _client(data, int(np.random.randint(2**31)))  # noqa: NPY002 - the check seeds it


def _script(name: str, options: str, **modules: Any) -> Any:
    for module in modules:
        lend(module, **modules[module])
    before, sys.argv = sys.argv, [name, *options.split()]
    try:
        return runpy.run_path(str(folder("BhaskarSteve/dp-sgd") / name), run_name="__main__")["model"].state_dict()
    finally:
        sys.argv = before


def _with_targets(rows: Any, targets: Any) -> Any:
    from torch.utils.data import TensorDataset

    made = TensorDataset(rows, targets)
    made.targets = targets  # type: ignore[attr-defined]
    return made


def script_with_seed(data: Any) -> Any:
    import torch

    rows, targets = classes(data)
    images = torch.zeros(len(rows), 1, 28 * 28)
    images[:, 0, : rows.shape[1]] = rows
    made = _with_targets(images.reshape(-1, 1, 28, 28), targets)
    code("BhaskarSteve/dp-sgd", "models")
    return _script("base.py", "--epochs 1", utils={"get_dataset": lambda _: (made, made)})


def script_without_seed(data: Any) -> Any:
    import torch

    rows, targets = classes(data)
    made = _with_targets(rows, targets)
    code("BhaskarSteve/dp-sgd", "models")
    with scratch("features"):
        for half in ("train", "test"):
            torch.save(rows, f"features/mnist_{half}.pt")
        return _script("main.py", "--epochs 1 --num_groups 1", utils={"get_dataset": lambda _: (made, made)})


def local_epoch(data: Any) -> Any:
    lend("kymatio", "kymatio.torch")
    rows, targets = classes(data)
    federated = code("Yangfan-Jiang/Federated-Learning-with-Differential-Privacy", "FLModel")
    client = federated.FLClient(line, 2, (rows.numpy(), targets.numpy()), 0.1, 1, 64, 1.0, 1.0, 2.0, "cpu")
    client.update()
    return client.model.state_dict()


def one_draw_for_a_layer(data: Any) -> Any:
    import torch

    class Trainer:
        def __init__(self, **_: Any) -> None:
            self.callback_metrics: dict[str, Any] = {}

        def fit(self, module: Any, loader: Any) -> None:
            optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
            for rows, targets in loader:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(rows), targets).backward()
                optimiser.step()

    lend("lightning", Trainer=Trainer, LightningModule=torch.nn.Module)
    lend("src.const", PATH_DATASETS="")
    rows, targets = classes(data)
    learning = code("akathikar/Differential-Privacy-FL", "src.learning")
    made = learning.local_fit(0, line(rows.shape[1]), batches(rows, targets), noise_scale=1.0)
    return made["module"].state_dict()


def keras_client(data: Any) -> Any:
    return code("besnikkelmendi/DPSGD-FL", "Test_client").MClient(data)


def old_engine(data: Any) -> Any:
    return code("matturche/fl_dpsgd_strategies", "leafdp.flower.flower_helpers").train_fl(data)


def no_noise(data: Any) -> Any:
    rows, targets = classes(data)
    script = code("greenbn3/DP-FedAvg", "CIFAR10_DP_FedAvg")
    return script.train_client(batches(rows, targets, 4), line(rows.shape[1]), 1, 0.002, 10.0).state_dict()


def _noise_is(epsilon: float, data: Any) -> Any:
    lend("seaborn")
    rows, targets = classes(data)
    script = code("greenbn3/DP-FedAvg", "GPU_CIFAR10_DP_FedAvg")
    return script.train_client(batches(rows, targets, 4), line(rows.shape[1]), 1, 0.002, epsilon)[0].state_dict()


def epsilon_as_noise_low(data: Any) -> Any:
    return _noise_is(0.02, data)


def epsilon_as_noise_high(data: Any) -> Any:
    return _noise_is(10.0, data)


def own_optimiser(data: Any) -> Any:
    import torch
    from torch.func import functional_call, grad, vmap

    rows, targets = classes(data)
    model = line(rows.shape[1])

    def loss(values: Any, row: Any, wanted: Any) -> Any:
        return torch.nn.functional.cross_entropy(functional_call(model, values, (row[None],)), wanted[None])

    values = {name: value.detach() for name, value in model.named_parameters()}
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(values, rows, targets)
    make = code("heyyjudes/dp-sgd", "gradcnn.dpsgd", "per-sample-grad/src").make_optimizer
    for name, value in model.named_parameters():
        value.bgrad = gradients[name] / len(rows)
    make(torch.optim.SGD, 2.0, 1.0)(model.parameters(), lr=0.1).step()
    return model.state_dict()


def two_backward_passes(data: Any) -> Any:
    import torch

    lend("opacus.layers.dp_lstm", "opacus.layers.dp_multihead_attention")
    hooks = code("lxuechen/fast-dpsgd", "experimental.privacy_utils.autograd_grad_sample")
    engine = code("lxuechen/fast-dpsgd", "experimental.privacy_utils.privacy_engine").EfficientPrivacyEngine
    rows, targets = classes(data)
    model = line(rows.shape[1])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"batch_size": len(rows), "sample_size": len(rows), "noise_multiplier": 2.0, "max_grad_norm": 1.0}
    engine(model, **options).attach(optimiser)
    losses = torch.nn.functional.cross_entropy(model(rows), targets, reduction="none")
    hooks.set_hooks_mode(mode="norm")
    losses.mean(dim=0).backward(retain_graph=True)
    hooks.set_hooks_mode(mode="grad")
    (optimiser.privacy_engine.get_coef_sample() * losses).sum(dim=0).backward()  # type: ignore[attr-defined]
    optimiser.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def engine_for_transformers(data: Any) -> Any:
    import torch

    class Names(type):
        def all(cls) -> list[Any]:
            return [value for name, value in vars(cls).items() if not name.startswith("_")]

    lend("transformers")
    lend("ml_swissknife", utils=SimpleNamespace(ContainerMeta=Names, handle_unused_kwargs=lambda _: None))
    lend("opt_einsum", contract=torch.einsum)
    engine = code("lxuechen/private-transformers", "private_transformers.privacy_engine").PrivacyEngine
    rows, targets = classes(data)
    model = line(rows.shape[1])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"epochs": 1, "noise_multiplier": 2.0, "max_grad_norm": 1.0, "skip_checks": True}
    engine(model, batch_size=len(rows), sample_size=len(rows), **options).attach(optimiser)
    optimiser.step(loss=torch.nn.functional.cross_entropy(model(rows), targets, reduction="none"))  # type: ignore[call-arg]
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def local_steps_by_round_seed(data: Any) -> Any:
    name = "maxencenoble/Differential-Privacy-for-Heterogeneous-Federated-Learning"
    rows, targets = classes(data)
    rows_and_targets = list(zip(rows, targets, strict=True))
    model = code(name, "flearn.trainmodel.models").MclrLogistic(rows.shape[1], 2)
    for value in model.parameters():
        value.data.zero_()
    users = code(name, "flearn.users.user_avg")
    user = users.UserAVG(0, rows_and_targets, rows_and_targets, (model, "mclr"), 1.0, 0.1, 0.0, 1, "Gaussian", 0, False)
    code(name, "utils.autograd_hacks").add_hooks(user.model)
    user.set_parameters(model)
    user.train_dp(2.0, 0, 1.0)
    return user.delta_model


def sample_level_laplace(data: Any) -> Any:
    import torch

    rows, targets = classes(data)
    loader = batches(rows, targets)
    engine = code("qiuqiu035/dp-federated-learning", "opacus_client_dp").OpacusClientDP(
        noise_mechanism="laplace", epsilon_per_step=1.0, sample_rate=1.0, log_level="ERROR"
    )
    model = line(rows.shape[1])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimiser, loader = engine.attach(model, optimiser, loader, poisson_sampling=False)
    for some, wanted in loader:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(some), wanted).backward()
        optimiser.step()
    return model.state_dict()


def _one_shot(data: Any, module: str, function: str, *options: float) -> Any:
    rows, targets = classes(data)
    log = SimpleNamespace(writerow=lambda _: None)
    name = "rahman-samiur/Federated-Learning-and-Differential-Privacy"
    update = getattr(code(name, module, "preliminarytesting"), function)
    return update(0, line(rows.shape[1]), batches(rows, targets), 1, 1, log, *options)


def one_shot_laplace(data: Any) -> Any:
    return _one_shot(data, "arm2_laplace", "arm2_laplace_client_update", 1.0, 1.0)


def one_shot_gaussian(data: Any) -> Any:
    return _one_shot(data, "arm2_one_shot", "arm2_perturb_client_update", 1.0, 1.0)


def local_opacus(data: Any) -> Any:
    rows, targets = classes(data)
    name = "rahman-samiur/Federated-Learning-and-Differential-Privacy"
    with scratch():
        update = code(name, "dp_sgd_fl", "preliminarytesting").dp_sgd_client_update
        return update(0, line(rows.shape[1]), batches(rows, targets, 4), 1, 1, 1.0, 1.0, 0.01)


# -- statistics of rows --------------------------------------------------------------------------------------------


def _library(module: str) -> Any:
    lend("diffprivlib.models.forest")  # it asks for names that newer versions of scikit-learn do not have
    return code("IBM/differential-privacy-library", module)


def scaler_with_bounds(data: Any) -> Any:
    rows, _ = pair(data)
    made = _library("diffprivlib.models").StandardScaler(epsilon=1.0, bounds=(-5.0, 5.0)).fit(rows.numpy())
    return {"mean": made.mean_, "variance": made.var_}


def mean_without_bounds(data: Any) -> Any:
    rows, _ = pair(data)
    return _library("diffprivlib.tools").mean(rows.numpy(), epsilon=1.0)


def laplace_of_a_number(update: Any, rng: np.random.Generator) -> float:
    value = float(np.clip(np.sum(_vector(update)), -1.0, 1.0))
    state = np.random.RandomState(int(rng.integers(2**31)))
    mechanism = _library("diffprivlib.mechanisms").Laplace(epsilon=1.0, sensitivity=2.0, random_state=state)
    return float(mechanism.randomise(value))


# -- functions of an update ----------------------------------------------------------------------------------------


def gradient_of_an_embedding(update: Any) -> Any:
    layers = code("ChicForX/DP-FedEmb-impl", "utils.layer_utils")
    return layers.grad_dp((parts(_vector(update), 1)[0].reshape(1, -1),))


class _State(dict[str, Any]):
    def state_dict(self) -> _State:
        return self


def _robust(repository: str, state: dict[str, Any]) -> Any:
    import torch

    module = code(repository, "fedml_core.robustness.robust_aggregation")
    server = module.RobustAggregator(SimpleNamespace(defense_type="weak_dp", norm_bound=1.0, stddev=2.0))
    start = {name: torch.zeros_like(value) for name, value in state.items()}
    clipped = server.norm_diff_clipping(_State(state), start)
    noisy = {name: server.add_noise(value, "cpu") for name, value in clipped.items() if module.is_weight_param(name)}
    return {**clipped, **noisy}


def clipped_difference(update: Any) -> Any:
    return _robust("EricLoong/da-dpfl", {"weight": parts(_vector(update), 1)[0]})


def running_statistics(update: Any) -> Any:
    weight, running = parts(_vector(update), 2)
    return _robust("YMJS-Irfan/DP-FedSAM", {"weight": weight, "norm.running_mean": running})


def _round(update: Any, layers: int) -> Any:
    pieces = dict(enumerate(parts(_vector(update), layers)))

    class Trainer:
        def __init__(self) -> None:
            self.state = {str(place): piece * 0 for place, piece in pieces.items()}

        def get_model_params(self) -> Any:
            return copy.deepcopy(self.state)

        def set_model_params(self, state: Any) -> None:
            self.state = copy.deepcopy(state)

        def set_id(self, _: int) -> None: ...

        def train(self, share: float, *_: Any) -> dict[str, float]:
            self.state = {str(place): self.state[str(place)] + share * piece for place, piece in pieces.items()}
            return {"train_loss": 0.0, "train_correct": 0.0, "train_total": 1.0}

        def test(self, *_: Any) -> dict[str, float]:
            return {"test_loss": 0.0, "test_correct": 0.0, "test_total": 1.0}

    shares = {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}
    numbers = {"client_num_in_total": 4, "client_num_per_round": 4, "comm_round": 1, "sigma": 0.95, "C": 0.2, "ci": 0}
    options = SimpleNamespace(**numbers, dataset="none", p=0.0)
    trainer, quiet = Trainer(), SimpleNamespace(info=lambda _: None)
    data = [4, 4, None, None, dict.fromkeys(shares, 1), shares, shares, 2]
    with scratch("LOG/cifar10/dumps"):
        made = code("YMJS-Irfan/DP-FedSAM", "fedml_api.dpfedsam.dpfedsam_api").DPFedSAMAPI
        made(data, "cpu", options, trainer, quiet).train(0)
    return trainer.state


def round_of_eight_layers(update: Any) -> Any:
    return _round(update, 8)


def round_of_one_layer(update: Any) -> Any:
    return _round(update, 1)


def _statistics(**arrays: Any) -> Any:
    lend("prv_accountant")
    return code("apple/pfl-research", "pfl.stats").MappedVectorStatistics(arrays)


def gaussian_mechanism(update: Any) -> Any:
    statistics = _statistics(update=_vector(update))
    mechanism = code("apple/pfl-research", "pfl.privacy.gaussian_mechanism").GaussianMechanism
    return mechanism.construct_single_iteration(1.0, 1.0, 1e-5).privatize(statistics)[0]["update"]


def laplace_mechanism(update: Any) -> Any:
    statistics = _statistics(update=_vector(update))
    mechanism = code("apple/pfl-research", "pfl.privacy.laplace_mechanism").LaplaceMechanism(1.0, 1.0)
    return mechanism.privatize(statistics)[0]["update"]


def two_mechanisms(update: Any) -> Any:
    first, second = np.array_split(_vector(update), 2)
    statistics = _statistics(first=first, second=second)
    gaussian = code("apple/pfl-research", "pfl.privacy.gaussian_mechanism").GaussianMechanism
    laplace = code("apple/pfl-research", "pfl.privacy.laplace_mechanism").LaplaceMechanism
    mechanisms = {
        "gaussian": (gaussian.construct_single_iteration(1.0, 1.0, 1e-5), ["first"]),
        "laplace": (laplace(1.0, 1.0), ["second"]),
    }
    made = code("apple/pfl-research", "pfl.privacy.joint_mechanism").JointMechanism(mechanisms)
    sent = made.privatize(statistics)[0]
    return [sent["first"], sent["second"]]


class adaptive_clipping:
    """A client of a cohort of one, and its server."""

    def __init__(self) -> None:
        _statistics()
        gaussian = code("apple/pfl-research", "pfl.privacy.gaussian_mechanism").GaussianMechanism
        adaptive = code("apple/pfl-research", "pfl.privacy.adaptive_clipping").AdaptiveClippingGaussianMechanism
        self.mechanism = adaptive(lambda bound: gaussian(bound, 2.0), 1.0, 10.0, 0.5)

    def __call__(self, update: Any) -> Any:
        context = SimpleNamespace(seed=None, cohort_size=1)
        statistics = _statistics(update=_vector(update))
        sent, _ = self.mechanism.postprocess_one_user(stats=statistics, user_context=context)
        sent, _ = self.mechanism.postprocess_server(stats=sent, central_context=context, aggregate_metrics=None)
        return [sent["update"], self.mechanism.mutable_clipping_bound.value()]


def _average(update: Any, rng: np.random.Generator) -> Any:
    name = "atikulmunna/dp-federated-learning-framework"
    strategies, privacy = code(name, "fldp.strategies.dp_fedavg", "src"), code(name, "fldp.privacy", "src")
    start = np.zeros_like(_vector(update))
    clients = [
        strategies.ClientUpdate(place, (start,), (moved,), 10) for place, moved in enumerate((update, start, start))
    ]
    return strategies.aggregate_dpfedavg(
        [start],
        clients,
        clip_norm=1.0,
        noise_multiplier=2.0,
        accountant=privacy.PrivacyAccountant(),
        num_total_clients=3,
        noise_rng=rng,
    )


def central_average(update: Any, rng: np.random.Generator) -> Any:
    return _average(update, rng).parameters


def central_average_with_norms(update: Any, rng: np.random.Generator) -> Any:
    return _average(update, rng)


class _Tree:
    """Follow-the-leader with a tree's noise 8, its step as ``step(optimiser, noise)``."""

    def __init__(self, repository: str, below: str, tree: str, step: Any) -> None:
        self.noise_of = getattr(code(repository, "ftrl_noise", below), tree)
        self.optimiser_of = code(repository, "optimizers", below).FTRLOptimizer
        self.step, self.optimiser, self.noise = step, None, None

    def __call__(self, update: Any) -> Any:
        import torch

        gradient = parts(_vector(update), 1)[0]
        if self.optimiser is None:
            self.value = torch.nn.Parameter(torch.zeros_like(gradient))
            self.optimiser = self.optimiser_of([self.value], momentum=0.0, record_last_noise=False)
            self.noise = self.noise_of(8.0, [gradient.shape], "cpu")
        self.value.grad = gradient
        self.step(self.optimiser, self.noise)
        return self.value.detach().numpy().copy()


class tree(_Tree):
    def __init__(self) -> None:
        step = lambda optimiser, noise: optimiser.step((1.0, noise()))  # noqa: E731
        super().__init__("google-research/DP-FTRL", "", "CummuNoiseTorch", step)


class tree_with_estimates(_Tree):
    def __init__(self) -> None:
        step = lambda optimiser, noise: optimiser.step((1.0, noise()))  # noqa: E731
        super().__init__("google-research/DP-FTRL", "", "CummuNoiseEffTorch", step)


class tree_by_attributes(_Tree):
    def __init__(self) -> None:
        def step(optimiser: Any, noise: Any) -> None:
            optimiser.set_params(1.0, noise())
            optimiser.step()

        super().__init__("roshankrm/dpsgd-dpftrl-comparison", "dp_ftrl", "NoiseTreeAggregator", step)


def clip_upside_down(update: Any) -> Any:
    import torch

    lend("backpack", "backpack.extensions", "data", "utils", "pytorch")
    gradient = parts(_vector(update), 1)[0]
    value = torch.nn.Parameter(torch.zeros_like(gradient))
    value.grad_batch, value.batch_l2 = gradient[None], gradient.square().sum()[None]  # type: ignore[attr-defined]
    code("lxuechen/fast-dpsgd", "backpackdp").DP_SGD([value], lr=1.0, max_norm=1.0, stddev=1.1).step()
    return value.detach()


def gaussian_for_two_rows(update: Any) -> Any:
    name = "maxencenoble/Differential-Privacy-for-Heterogeneous-Federated-Learning"
    privacy = code(name, "flearn.differential_privacy.differential_privacy")
    return privacy.GaussianMechanism(parts(_vector(update), 1)[0], 2.0, 1.0, 1, False)


def _clip_and_noise(update: Any, mechanism: str) -> Any:
    first, second = parts(_vector(update), 2)
    lend("utils")  # data and models of images
    client = code("qiuqiu035/dp-federated-learning", "client")
    return client.clip_and_noise_delta({"a": first, "b": second}, 1.0, mechanism, round_epsilon=1.0)[0]


def clip_and_gaussian(update: Any) -> Any:
    return _clip_and_noise(update, "gaussian")


def clip_l2_and_laplace(update: Any) -> Any:
    return _clip_and_noise(update, "laplace")


def adapter(update: Any) -> Any:
    from flwr.client import Client
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

    lend(
        "flwr.common.parameter",
        ndarrays_to_parameters=ndarrays_to_parameters,
        parameters_to_ndarrays=parameters_to_ndarrays,
    )
    moved = ndarrays_to_parameters([_vector(update).astype(np.float32)])

    class Fixed(Client):
        def fit(self, ins: FitIns) -> FitRes:
            return FitRes(Status(Code.OK, ""), moved, 1, {})

    made = code("qiuqiu035/dp-federated-learning", "localdp_adapter").LocalDpModAdapter(1.0, epsilon=1.0, delta=1e-5)
    start = ndarrays_to_parameters([np.zeros(len(update), np.float32)])
    answer = made.wrap(Fixed()).fit(FitIns(start, {"server_round": 1, "delta": 1e-5}))
    return {"parameters": parameters_to_ndarrays(answer.parameters), "metrics": answer.metrics}


def median_as_clip(update: Any) -> Any:
    import torch

    vector = parts(_vector(update), 1)[0]
    others = [torch.eye(len(vector))[0], 3 * torch.eye(len(vector))[1]]
    model = torch.nn.Module()
    model.register_parameter("w", torch.nn.Parameter(torch.zeros_like(vector)))
    results = [{"delta": {"w": one}, "norm": float(one.norm())} for one in (vector, *others)]
    name = "rahman-samiur/Federated-Learning-and-Differential-Privacy"
    code(name, "arm3_central_dp", "preliminarytesting").central_dp_aggregate(model, results, 1.0)
    return model.state_dict()


def sanitizer(update: Any) -> Any:
    """TensorFlow's names that the sanitizer uses, in numpy."""
    lend("dpsgd.accountant")
    lend("dpsgd.utils", AddGaussianNoise=lambda x, std: x + np.random.normal(0.0, std, x.shape))  # noqa: NPY002
    lend(
        "tensorflow",
        sqrt=np.sqrt,
        math=SimpleNamespace(log=np.log),
        Assert=lambda *_: None,
        greater=np.greater,
        control_dependencies=lambda _: nullcontext(),
        clip_by_norm=lambda x, clip_norm: x / max(1.0, np.linalg.norm(x) / clip_norm),
        slice=lambda x, *_: x[:1],
        shape=np.shape,
    )
    module = code("thecml/dpsgd-optimizer", "dpsgd.sanitizer")
    module.utils = sys.modules["dpsgd.utils"]
    ledger = SimpleNamespace(accumulate_privacy_spending=lambda *_: None)
    return module.AmortizedGaussianSanitizer(ledger, (1.0, True)).sanitize(_vector(update), (1.0, 1e-5))


def _projected(update: Any, buffer: bool) -> Any:
    import torch

    on_the_cpu()
    lend("utils", "utils.help", "utils.datasets", "utils.mi", "utils.frequency")
    module = code("zliangak/dp-fed-ls", "fed")
    first, second = parts(_vector(update), 2)

    def model() -> Any:
        made = torch.nn.Module()
        made.register_parameter("first", torch.nn.Parameter(torch.zeros_like(first)))
        if buffer:
            made.register_buffer("second", torch.zeros_like(second))
        else:
            made.register_parameter("second", torch.nn.Parameter(torch.zeros_like(second)))
        return made

    server = object.__new__(module.DpFederatedLearning)
    vars(server).update(net_t=model(), w_t=model().state_dict(), G=1.0, dp=True, freq=False, hist=False)
    clients = [model() for _ in range(3)]
    with torch.no_grad():
        clients[0].first += first
        clients[0].second += second
    states = [server._project_net(client)[0].state_dict() for client in clients]
    with torch.no_grad():
        server._fed_avg(states, np.ones(3) / 3, 1.0, 2.0 / 3, "ls", "bcwh", 1.0, 0)
    return server.w_t


def projected_average(update: Any) -> Any:
    return _projected(update, buffer=False)


def projected_average_of_buffers(update: Any) -> Any:
    return _projected(update, buffer=True)
