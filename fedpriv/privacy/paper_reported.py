"""Figures that the papers report for their own experiments, for tables beside our measurements. Not our results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Reported:
    """One published figure. accuracy in percent; epsilon as the paper states it (None: none, or no privacy)."""

    method: str
    dataset: str
    setting: str
    source: str
    epsilon: float | None = None
    accuracy: float | None = None


def paper_reported(paper: str) -> tuple[Reported, ...]:
    """Everything kept of one paper: "fed-cad", "adp-fl", "dp-fedags" or "dpfl-agn" (CoQ-FL's draft reports nothing).

    Raises KeyError for another name.
    """
    return _PAPERS[paper]


def _fed_cad() -> Iterator[Reported]:
    text = "section VII"
    for dataset, rounds, sigma, epsilon in (
        ("mnist", 30, 0.3, 2.72),
        ("mnist", 30, 0.5, 1.5),
        ("fmnist", 60, 0.3, 3.97),
    ):
        setting = f"{rounds} rounds, 10 of 100 clients, sigma={sigma}, delta=1e-5"
        yield Reported("fedcad", dataset, setting, text, epsilon)
        yield Reported("fedldp", dataset, setting, text, epsilon)
    yield Reported("fedldp", "mnist", "2 classes per client, sigma=0.3", text, accuracy=84.7)


_ADP_METHODS = ("fedavg", "fedprox", "fedper", "lgfedavg", "fedvf", "pfl")
_ADP_TABLE_2 = {
    ("cifar100", "resnet18", 0.1): (33.72, 34.11, 54.66, 51.38, 58.26, 63.12),
    ("cifar100", "resnet18", 0.5): (36.74, 35.66, 38.78, 33.59, 44.74, 45.47),
    ("cifar100", "resnet18", 1.0): (36.77, 37.39, 32.99, 27.10, 38.87, 41.44),
    ("cifar100", "resnet34", 0.1): (34.68, 33.92, 54.85, 50.40, 59.14, 61.15),
    ("cifar100", "resnet34", 0.5): (36.50, 36.92, 41.45, 31.45, 42.43, 44.59),
    ("cifar100", "resnet34", 1.0): (37.99, 37.66, 35.63, 26.22, 40.33, 41.00),
    ("cifar10", "resnet18", 0.1): (60.32, 66.30, 87.20, 85.41, 89.05, 91.15),
    ("cifar10", "resnet18", 0.5): (71.11, 68.81, 73.98, 67.61, 80.85, 82.26),
    ("cifar10", "resnet18", 1.0): (70.87, 70.69, 66.71, 61.38, 73.37, 80.16),
    ("cifar10", "resnet34", 0.1): (49.35, 61.67, 86.66, 83.40, 90.43, 90.54),
    ("cifar10", "resnet34", 0.5): (72.66, 72.66, 75.41, 65.33, 77.47, 80.59),
    ("cifar10", "resnet34", 1.0): (73.13, 73.13, 74.41, 56.75, 75.58, 77.54),
    ("cifar10", "cnn", 0.1): (55.70, 53.15, 80.34, 82.88, 78.22, 83.47),
    ("cifar10", "cnn", 0.5): (55.46, 54.71, 64.90, 62.77, 65.80, 65.85),
    ("cifar10", "cnn", 1.0): (57.32, 56.32, 59.21, 59.71, 61.34, 58.76),
    ("mnist", "cnn", 0.1): (98.32, 98.50, 99.54, 99.46, 99.61, 98.80),
    ("mnist", "cnn", 0.5): (98.77, 98.86, 99.25, 98.69, 99.16, 98.90),
    ("mnist", "cnn", 1.0): (98.77, 98.79, 98.99, 98.46, 98.97, 98.26),
}
#: (dataset, model, Dirichlet alpha, epsilon per round) -> (adaptive C, adaptive C with a fixed epsilon)
_ADP_TABLE_3 = {
    ("cifar10", "resnet18", 0.5, 3): (75.99, 75.19),
    ("cifar10", "resnet18", 0.5, 5): (78.95, 76.08),
    ("cifar10", "resnet18", 0.5, 7): (78.99, 76.28),
    ("cifar10", "resnet18", 0.1, 3): (87.11, 84.05),
    ("cifar10", "resnet18", 0.1, 5): (88.43, 87.94),
    ("cifar10", "resnet18", 0.1, 7): (91.82, 91.11),
    ("cifar100", "resnet34", 0.5, 3): (42.55, 41.92),
    ("cifar100", "resnet34", 0.5, 5): (42.84, 42.09),
    ("cifar100", "resnet34", 0.5, 7): (43.56, 43.36),
    ("cifar100", "resnet34", 0.1, 3): (56.13, 52.45),
    ("cifar100", "resnet34", 0.1, 5): (58.66, 58.11),
    ("cifar100", "resnet34", 0.1, 7): (60.25, 58.62),
}


def _adp_fl() -> Iterator[Reported]:
    for (dataset, model, alpha), accuracies in _ADP_TABLE_2.items():
        for method, accuracy in zip(_ADP_METHODS, accuracies, strict=True):
            yield Reported(method, dataset, f"{model}, Dirichlet alpha={alpha}", "Table 2", accuracy=accuracy)
    for (dataset, model, alpha, epsilon), (adaptive, fixed) in _ADP_TABLE_3.items():
        setting = f"{model}, Dirichlet alpha={alpha}, epsilon per round"
        yield Reported("adpfl", dataset, setting, "Table 3", epsilon, adaptive)
        yield Reported("adpfl", dataset, setting + ", the same for every client", "Table 3", epsilon, fixed)


#: epsilon per round -> method -> (MNIST, CIFAR-10, CIFAR-100)
_FEDAGS_TABLE_4 = {
    0.1: {
        "dpfedavg": (88.34, 34.49, 10.36),
        "cpsgd": (85.53, 31.92, 8.92),
        "dpfedsnlc": (90.74, 39.82, 13.94),
        "fedags": (91.16, 40.96, 14.34),
    },
    0.2: {
        "dpfedavg": (91.68, 42.88, 16.17),
        "cpsgd": (89.15, 39.51, 14.89),
        "dpfedsnlc": (92.92, 46.53, 18.91),
        "fedags": (93.24, 46.86, 19.44),
    },
    0.5: {
        "dpfedavg": (93.87, 48.36, 20.21),
        "cpsgd": (90.63, 45.94, 18.31),
        "dpfedsnlc": (94.28, 51.94, 22.15),
        "fedags": (94.75, 51.37, 22.63),
    },
}


def _dp_fedags() -> Iterator[Reported]:
    setting = "10 of 100 clients, Dirichlet alpha=1, epsilon per round, delta=0.001"
    for epsilon, methods in _FEDAGS_TABLE_4.items():
        for method, accuracies in methods.items():
            for dataset, accuracy in zip(("mnist", "cifar10", "cifar100"), accuracies, strict=True):
                yield Reported(method, dataset, setting, "Table IV", epsilon, accuracy)


def _dpfl_agn() -> Iterator[Reported]:
    common = "10 clients, T=1000, delta=1e-5"
    for method, sigma, mnist, cifar10, source in (
        ("dpsgd", 1.0, 92.43, 87.92, "figures 2 and 3"),
        ("agn", 1.0, 94.31, 92.21, "figures 2 and 3"),
        ("dpsgd", 4.0, 92.56, 88.38, "figures 4 and 5"),
        ("anr", 4.0, 93.74, 91.43, "figures 4 and 5"),
        ("agn", 4.0, 94.68, 89.68, "figures 6 and 7"),
        ("dpfl_agn", 4.0, 95.23, 92.78, "figures 6 and 7"),
    ):
        yield Reported(method, "mnist", f"{common}, sigma={sigma}", source, 2.0, mnist)
        yield Reported(method, "cifar10", f"{common}, sigma={sigma}", source, 2.0, cifar10)
    for method, accuracy in (("dpsgd", 88.42), ("nbafl", 92.75), ("dpfl_agn", 94.86)):
        yield Reported(method, "not said", common, "figure 8", 2.0, accuracy)


_PAPERS = {
    "fed-cad": tuple(_fed_cad()),
    "adp-fl": tuple(_adp_fl()),
    "dp-fedags": tuple(_dp_fedags()),
    "dpfl-agn": tuple(_dpfl_agn()),
}
