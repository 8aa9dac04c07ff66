"""Weights that somebody else has trained: names and tensors from a file, and never code."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from fedpriv.common.errors import OptionError
from fedpriv.common.files import open_regular

#: Architectures that a file beside the weights, or the file itself, has; and the beginning of timm's names.
HUGGING_FACE, ONNX, TIMM = "huggingface", "onnx", "timm/"
#: Bytes of a configuration, and of a file of weights.
MOST_CONFIG, MOST_BYTES = 1 << 20, 4 << 30
SUFFIXES = (".safetensors", ".pt", ".pth")
#: Types of tensors that are no code for other numbers.
PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)
#: What `DataParallel` and `torch.compile` write before every name.
PREFIXES = ("module.", "_orig_mod.")


@dataclass(frozen=True)
class Weights:
    """A state dict with the SHA-256 of the file that it was read from."""

    tensors: dict[str, Tensor]
    sha256: str


def read_file(path: str, option: str, most: int | None = None) -> bytes:
    """A regular file of at most ``most`` bytes. Raises `OptionError`."""
    most = most or MOST_BYTES
    try:
        with open_regular(Path(path)) as file:
            if (size := os.fstat(file.fileno()).st_size) > most:
                raise OptionError(option, path, f"has {size} bytes; at most {most} are allowed")
            content = file.read()
    except OSError as error:
        raise OptionError(option, path, f"cannot be read ({error.strerror})") from None
    if content.startswith(b"version https://git-lfs"):
        raise OptionError(option, path, "is a pointer of Git LFS; allowed: the file that `git lfs pull` fetches")
    return content


def checked_digest(content: bytes, path: str, option: str, sha256: str | None) -> str:
    """Of the content. Raises `OptionError` where another is named."""
    digest = hashlib.sha256(content).hexdigest()
    if sha256 not in (None, digest):
        raise OptionError(option, path, f"is another file: its SHA-256 is {digest}, and {sha256} is named")
    return digest


def read_weights(path: str, option: str, sha256: str | None = None, beside: bytes = b"") -> Weights:
    """The tensors of a safetensors file, or of a state dict that `torch.save` wrote, on the CPU.

    sha256: what the file's digest must be, with the content of files ``beside`` it behind its own. The bytes that are
    read are those of which the digest is taken. A TorchScript archive and a pickle of anything but tensors hold code:
    they are refused, and none of it runs.

    Raises `OptionError` for ``option``: no such file, another file, no weights, numbers that are not finite.
    """
    if Path(path).suffix not in SUFFIXES:
        graph = " (of a graph: features.architecture=onnx)" if path.endswith(".onnx") else ""
        raise OptionError(option, path, f"is no file of weights; allowed: {', '.join(SUFFIXES)}{graph}")
    content = read_file(path, option)
    digest = checked_digest(content + beside if beside else content, path, option, sha256)
    tensors = _tensors(content, path, option)
    if not tensors:
        raise OptionError(option, path, "holds no tensors")
    for name, value in tensors.items():
        if value.layout != torch.strided or value.dtype not in PLAIN:
            words = f"{name} is quantised or sparse ({value.dtype}); allowed: the network in plain numbers, as trained"
            raise OptionError(option, path, words)
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise OptionError(option, path, f"{name} claims {value.numel()} numbers, which the file does not hold")
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
    given = unwrapped(given, wanted)
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


def unwrapped(given: dict[str, Tensor], wanted: Iterable[str] = ()) -> dict[str, Tensor]:
    """By names without the `PREFIXES` of all of them, unless a name that is ``wanted`` has the prefix too."""
    while prefix := next((one for one in PREFIXES if given and all(name.startswith(one) for name in given)), None):
        if any(name.startswith(prefix) for name in wanted):
            break
        given = {name.removeprefix(prefix): value for name, value in given.items()}
    return given


def head_of(model: nn.Module) -> tuple[str, nn.Module]:
    """Name and module of the last block that has parameters."""
    return [(name, block) for name, block in model.named_children() if any(True for _ in block.parameters())][-1]


def _tensors(content: bytes, path: str, option: str) -> dict[str, Tensor]:
    if path.endswith(".safetensors"):
        try:
            json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")], object_pairs_hook=once)
            return load(content)
        except (SafetensorError, ValueError, RecursionError) as error:
            raise OptionError(option, path, f"is no safetensors file ({error})") from None
    allowed = "allowed: a state dict of tensors, best as safetensors"
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            if any("/code/" in name for name in names):
                raise OptionError(option, path, f"is a TorchScript archive, which is code; {allowed}")
            if sum(one.file_size for one in archive.infolist()) > len(content) or len({*names}) < len(names):
                raise OptionError(option, path, f"is compressed, or has a part twice; {allowed}")
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of a file that anybody may have made
        reason = (str(error).splitlines() or [""])[0][:120]
        raise OptionError(option, path, f"holds more than tensors, or is damaged ({reason}); {allowed}") from None
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        inside = [str(name) for name, one in found.items() if isinstance(one, dict)] if isinstance(found, dict) else []
        more = f", torch.save(torch.load(FILE)[{inside[0]!r}], NEW), say" if inside else ""
        raise OptionError(option, path, f"is no state dict; {allowed}{more}")
    return {str(name): value.detach() for name, value in found.items()}


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON. Raises ValueError for a name that stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} stands twice")
    return found


def beside(architecture: str, weights: str | None) -> bytes:
    """The configuration that lies beside Hugging Face's weights; of other architectures nothing."""
    if architecture != HUGGING_FACE:
        return b""
    return read_file(str(Path(str(weights)).parent / "config.json"), "features.weights", MOST_CONFIG)


def of_extra(package: str, option: str, value: object) -> Any:
    """A package that only public weights need. Raises `OptionError`."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise OptionError(option, value, f"needs {package}: pip install 'fedpriv[public]'") from None


def pooled(found: Tensor) -> Tensor:
    """[n, d] of maps [n, d, h, w] and of positions [n, p, d], their mean."""
    if found.ndim == 4:
        return found.mean((2, 3))
    return found.mean(1) if found.ndim == 3 else found.flatten(1)
