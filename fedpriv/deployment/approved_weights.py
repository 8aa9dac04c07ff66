"""The lines `weights:` of a policy: which files of public weights a run may start from or compute features with.

    weights:
      - {sha256: 5c106cde..., file: /srv/weights/resnet18.pth, trained_on: ImageNet, max_size: 224}

The SHA-256 in a run's options chooses the file. Paths in the server's message are never opened: this machine reads its
own file, and checks the digest of the bytes that it reads.

A node's main process and `python -m fedpriv.node status` import this, and nothing that imports torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fedpriv.common.errors import OptionError, PolicyRefused
from fedpriv.common.files import open_regular
from fedpriv.config.options import Options
from fedpriv.config.schema import Config
from fedpriv.deployment.guard_policy import Sha256


class ApprovedWeights(Options):
    """A file of weights that this machine's operator has approved."""

    sha256: Sha256 = Field(description="SHA-256 of the file, which a run's weights_sha256 must name")
    file: str = Field(
        pattern=r"^/.*\.(safetensors|pt|pth)$",
        description="where it lies on this machine; an absolute path that ends in .safetensors, .pt or .pth",
    )
    trained_on: str = Field(
        min_length=1, max_length=500, description="what the weights were trained on, for certificates"
    )
    max_size: int = Field(
        default=224, ge=8, le=1024, description="largest side in pixels of the pictures that a network is given"
    )

    def fault(self) -> str | None:
        """What is wrong with the file as it now is, in words; None for the file that was approved."""
        try:
            with open_regular(Path(self.file)) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        return None if found == self.sha256 else f"is another file: its SHA-256 is {found}, and {self.sha256} is named"


def _once_each(weights: tuple[ApprovedWeights, ...]) -> tuple[ApprovedWeights, ...]:
    """A digest chooses one file. Raises `OptionError`."""
    seen: set[str] = set()
    for number, one in enumerate(weights):
        if one.sha256 in seen:
            words = "is named twice: allowed: one entry for each digest"
            raise OptionError(f"weights.{number}.sha256", one.sha256, words)
        seen.add(one.sha256)
    return weights


#: Of a policy: a digest stands in it once.
AllApproved = Annotated[tuple[ApprovedWeights, ...], AfterValidator(_once_each)]


def check_files(weights: Sequence[ApprovedWeights], policy_file: Path) -> None:
    """Before a node starts. Raises `OptionError` for the first file that is not the approved one."""
    for number, one in enumerate(weights):
        if fault := one.fault():
            raise OptionError(f"{policy_file}: weights.{number}.file", one.file, fault)


def weights_in_words(weights: Sequence[ApprovedWeights]) -> list[str]:
    """A line for each, for `node status`."""
    return [
        f"{one.sha256}, {one.file}, trained on: {one.trained_on}{'; ' + fault if (fault := one.fault()) else ''}"
        for one in weights
    ]


def with_own_weights(weights: Sequence[ApprovedWeights], config: Config) -> Config:
    """A run's options with this machine's own files, which the run's digests choose. What names weights and needs none
    names none afterwards.

    Raises `PolicyRefused` for a digest that is missing or not approved, a file that is no longer the approved one,
    pictures larger than max_size, and a network of the user's own class.
    """
    features, model = config.features, config.model
    changed: dict[str, Any] = {}
    for group, options, needed in (
        ("features", features, features.name == "backbone"),
        ("model", model, (model.weights, model.weights_sha256) != (None, None)),
    ):
        own = _approved(weights, group, options.weights_sha256) if needed else None
        if own is not None and group == "features":
            _check_network(own, config)
        changed[group] = options.model_copy(update={"weights": None if own is None else own.file})
    return config.model_copy(update=changed)


def _approved(weights: Sequence[ApprovedWeights], group: str, digest: str | None) -> ApprovedWeights:
    found = next((one for one in weights if one.sha256 == digest), None)
    if found is None:
        allowed = ", ".join(one.sha256 for one in weights) or "none: the policy has no weights"
        raise PolicyRefused(f"{group}.weights_sha256={digest or 'null'}: allowed: {allowed}")
    if fault := found.fault():
        raise PolicyRefused(f"{group}.weights_sha256={digest}: {found.file} {fault}")
    return found


def _check_network(approved: ApprovedWeights, config: Config) -> None:
    features, dataset = config.features, config.dataset
    if features.architecture in ("onnx", "huggingface") or {".", "/"} & set(features.architecture):
        what = "a class is code" if "." in features.architecture else "is a network"
        words = f"{what} that no policy names; allowed: a network of torchvision"
        raise PolicyRefused(f"features.architecture={features.architecture}: {words}")
    option, side = "features.size", features.size
    if side is None:
        option, side = "dataset.size", dataset.size
    if side is not None and side > approved.max_size:
        raise PolicyRefused(f"{option}={side}: at most {approved.max_size}, max_size of {approved.sha256}")
