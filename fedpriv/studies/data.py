"""Where a study's pictures are: one folder with torchvision's sets, or with the same pictures as class folders."""

from __future__ import annotations

import os
from pathlib import Path

#: Of torchvision's own layout: the folder that a set's files lie in below dataset.root.
TORCHVISION = {
    "mnist": "MNIST/raw",
    "fashion_mnist": "FashionMNIST/raw",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
}
#: Side of the pictures of a set that may lie as class folders.
SIDES = {"cifar10": 32, "cifar100": 32}


def default_folder() -> Path:
    return Path(os.environ.get("FEDPRIV_PICTURES", "data"))


def where(dataset: str, folder: Path, download: bool = False) -> tuple[str, ...] | None:
    """Overrides by which a run finds a set's pictures below ``folder``; None where they are not there."""
    if dataset == "digits":
        return ("dataset=digits",)
    root = folder.absolute()
    if download or (root / TORCHVISION[dataset]).is_dir():
        return (f"dataset={dataset}", f"dataset.root={root}", *(("dataset.download=true",) if download else ()))
    side, classes = SIDES.get(dataset), root / dataset
    if side is not None and (classes / "train").is_dir():
        return ("dataset=image_folder", f"dataset.root={classes}", f"dataset.size={side}")
    return None
