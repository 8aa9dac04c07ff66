"""Weights that somebody else has trained: names and tensors from a file, and never code."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from fedpriv.common.errors import OptionError
from fedpriv.common.files import open_regular

SUFFIXES = (".safetensors", ".pt", ".pth")


@dataclass(frozen=True)
class Weights:
    """A state dict with the SHA-256 of the file that it was read from."""

    tensors: dict[str, Tensor]
    sha256: str


def read_weights(path: str, option: str, sha256: str | None = None) -> Weights:
    """The tensors of a safetensors file, or of a state dict that `torch.save` wrote, on the CPU.

    sha256: what the file's digest must be. The bytes that are read are those of which the digest is taken. A
    TorchScript archive and a pickle of anything but tensors hold code: they are refused, and none of it runs.

    Raises `OptionError` for ``option``: no such file, another file, no weights, numbers that are not finite.
    """
    if Path(path).suffix not in SUFFIXES:
        raise OptionError(option, path, f"is no file of weights; allowed: {', '.join(SUFFIXES)}")
    try:
        with open_regular(Path(path)) as file:
            content = file.read()
    except OSError as error:
        raise OptionError(option, path, f"cannot be read ({error.strerror})") from None
    digest = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, digest):
        raise OptionError(option, path, f"is another file: its SHA-256 is {digest}, and {sha256} is named")
    tensors = _tensors(content, path, option)
    if not tensors:
        raise OptionError(option, path, "holds no tensors")
    for name, value in tensors.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise OptionError(option, path, f"{name} has numbers that are not finite")
    return Weights(tensors, digest)


def set_weights(model: nn.Module, given: dict[str, Tensor], free: str, option: str, path: str, kind: str) -> None:
    """Sets a model's parameters and running statistics to those of a state dict of the same form.

    free: beginning of the names of a part that may be missing or of another shape; then all of this part stays as it
    was initialised. Raises `OptionError` for ``option`` with the file's ``path``, naming what does not belong to a
    model of this ``kind``.
    """
    given = {name: value for name, value in given.items() if not name.endswith("num_batches_tracked")}
    wanted = {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    fits = {name for name in wanted.keys() & given.keys() if wanted[name].shape == given[name].shape}
    for fault, names in (
        ("lacks", wanted.keys() - given.keys()),
        ("has too much", given.keys() - wanted.keys()),
        ("has in another shape", (wanted.keys() & given.keys()) - fits),
    ):
        if body := sorted(name for name in names if not name.startswith(free)):
            words = f"{', '.join(body[:3])}{', ...' if len(body) > 3 else ''} ({len(body)} tensors)"
            raise OptionError(option, path, f"is of another model than {kind}: what it {fault}: {words}")
    if not fits >= {name for name in wanted if name.startswith(free)}:
        fits = {name for name in fits if not name.startswith(free)}
    model.load_state_dict({name: given[name].to(wanted[name].dtype) for name in fits}, strict=False)


def head_of(model: nn.Module) -> tuple[str, nn.Module]:
    """Name and module of the last block that has parameters."""
    return [(name, block) for name, block in model.named_children() if any(True for _ in block.parameters())][-1]


def _tensors(content: bytes, path: str, option: str) -> dict[str, Tensor]:
    if path.endswith(".safetensors"):
        try:
            return load(content)
        except SafetensorError as error:
            raise OptionError(option, path, f"is no safetensors file ({error})") from None
    allowed = "allowed: a state dict of tensors, best as safetensors"
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if any("/code/" in name for name in archive.namelist()):
                raise OptionError(option, path, f"is a TorchScript archive, which is code; {allowed}")
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of a file that anybody may have made
        reason = (str(error).splitlines() or [""])[0][:120]
        raise OptionError(option, path, f"holds more than tensors, or is damaged ({reason}); {allowed}") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise OptionError(option, path, f"is no state dict; {allowed}")
    return {str(name): value.detach() for name, value in found.items()}
