"""Encoders of pictures and texts by a config.json of Hugging Face: data, of which the library makes a network.

A configuration can name code, kernels and other networks to be fetched: of what is named in `FOREIGN` none is followed.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.common.errors import OptionError
from fedpriv.data.weights import of_extra, once

#: Families of transformers that are read: their code alone decides what a configuration does.
FAMILIES = {
    "text": "albert bert camembert deberta-v2 distilbert electra modernbert mpnet nomic_bert roberta xlm-roberta",
    "pictures": "beit convnext convnextv2 deit dinov2 dinov2_with_registers mobilenet_v2 resnet swin swinv2 vit",
}
#: Names by which a configuration brings code, another network or another form of numbers.
FOREIGN = ("auto_map", "implementation", "quantization", "backbone", "kernels")


class Encoder(nn.Module):
    """A network of transformers: pictures, or token ids [1, t], to its last layer's positions or maps."""

    def __init__(self, network: nn.Module, text: bool) -> None:
        super().__init__()
        self.network, self.end, self.text = network, nn.Identity(), text

    def forward(self, given: Tensor) -> Tensor:
        named = {"input_ids": given, "attention_mask": torch.ones_like(given)} if self.text else {"pixel_values": given}
        found: Tensor = self.end(self.network(**named).last_hidden_state)
        return found


def encoder_config(content: bytes, option: str, path: str, kind: str) -> dict[str, Any]:
    """A config.json of a family of this ``kind``. Raises `OptionError` for what brings code or is of another family."""
    try:
        said = json.loads(content, object_pairs_hook=once)
        family = str(said["model_type"])
    except (ValueError, TypeError, KeyError) as error:
        raise OptionError(option, path, f"config.json beside it is no configuration ({error})") from None
    if family not in FAMILIES[kind].split():
        other = ", which is for texts (docs/text.md)" if family in FAMILIES["text"].split() else ""
        words = f"config.json beside it is of the family {family}{other}; allowed for {kind}: {FAMILIES[kind]}"
        raise OptionError(option, path, words)
    said.pop("_attn_implementation_autoset", None)  # a note of earlier versions
    if foreign := next((name for name in _names(said) if any(one in name for one in FOREIGN)), None):
        raise OptionError(
            option, path, f"config.json beside it says {foreign}, which fedpriv does not follow; remove it"
        )
    return dict(said)


def _names(said: Any) -> list[str]:
    """All names of a configuration with a value that is not false."""
    if isinstance(said, dict):
        return [name for key, value in said.items() if value for name in (str(key), *_names(value))]
    return [name for one in said for name in _names(one)] if isinstance(said, list) else []


def transformers_network(
    config: bytes,
    tensors: dict[str, Tensor] | None = None,
    option: str = "features.weights",
    path: str = "config.json",
    layer: str | None = None,
    kind: str = "pictures",
) -> Encoder:
    """The encoder of a configuration, with these weights if any are given. A head is left away; a pooler that the file
    lacks is initialised where no ``layer`` is asked for, and never read. Raises `OptionError`.
    """
    said = encoder_config(config, option, path, kind)
    transformers: Any = of_extra("transformers", option, path)
    try:
        made = transformers.CONFIG_MAPPING[said["model_type"]].from_dict(said)
        maker = transformers.MODEL_MAPPING[type(made)]
        if tensors is None:
            return Encoder(maker._from_config(made, attn_implementation="eager"), kind == "text").eval()
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        how = {"attn_implementation": "eager", "dtype": torch.float32, "output_loading_info": True}
        network, told = maker.from_pretrained(None, config=made, state_dict=tensors, **how)
    except Exception as error:  # of a configuration that anybody may have made
        words = f"cannot be built from config.json beside it ({' '.join(str(error).split())[:160]})"
        raise OptionError(option, path, words) from None
    if any("dynamic" in str(getattr(part, "rope_type", "")) for part in network.modules()):
        words = "rope_type dynamic of config.json beside it reads a text by the longest one before it; allowed: another"
        raise OptionError(option, path, words)
    lacking = {name for name in told["missing_keys"] if layer is not None or not name.startswith("pooler.")}
    if wrong := sorted([*lacking, *(str(one[0]) for one in told["mismatched_keys"])]):
        words = (
            f"is of another model than config.json beside it: lacks, or has in another shape, {', '.join(wrong[:3])}"
        )
        raise OptionError(option, path, words)
    return Encoder(network, kind == "text").eval()
