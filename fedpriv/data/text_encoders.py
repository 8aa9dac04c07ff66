"""Texts as vectors of a text encoder that somebody else has trained: a folder as Hugging Face publishes it.

Read are config.json, model.safetensors and tokenizer.json: data, and no code of their own (`fedpriv.data.encoders`).
A text's vector depends on that text alone: each is encoded by itself, on one thread. What the encoder was trained on is
the user's word (``trained_on`` of the column), and every report repeats it.

Shapes: n texts, d numbers of the encoder's last layer, averaged over the tokens and scaled to length 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.common.errors import OptionError
from fedpriv.data.texts import CHARACTERS, OPTION

#: What is read, in the order of the digest: `cat model.safetensors config.json tokenizer.json | sha256sum`.
FILES = ("model.safetensors", "config.json", "tokenizer.json")


@dataclass(frozen=True)
class TextEncoder:
    """folder: that holds `FILES`; length: of a text at most so many tokens are read."""

    folder: str
    length: int

    @property
    def _state(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [(Path(self.folder) / name).stat() for name in FILES]
        except OSError as error:
            words = f"the text encoder's {error.filename} cannot be read ({error.strerror}); needed: {', '.join(FILES)}"
            raise OptionError(OPTION, self.folder, words) from None
        return tuple((one.st_mtime_ns, one.st_size) for one in found)

    @property
    def dims(self) -> int:
        """d. Raises `OptionError`."""
        return _facts(self.folder, self.length, self._state)[1]

    @property
    def sha256(self) -> str:
        """Of `FILES`, one behind the other, in hex. Raises `OptionError`."""
        return _facts(self.folder, self.length, self._state)[0]

    def vectors(self, texts: Sequence[str], sha256: str | None) -> np.ndarray:
        """float32 [n, d]; an empty text is 0. sha256: what the digest must be. Raises `OptionError`."""
        import torch

        found = np.zeros((len(texts), self.dims), np.float32)
        network, tokenizer = _loaded(self.folder, self.length, self._state, sha256)
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # the same bits on every machine of a kind
        try:
            with torch.inference_mode():
                for row, text in enumerate(texts):
                    part = text[: CHARACTERS * self.length].encode("utf-8", "replace").decode()
                    if part.strip():
                        vector = network(torch.tensor([tokenizer.encode(part).ids]))[0].mean(0)
                        found[row] = torch.nn.functional.normalize(vector, dim=0).numpy()
        finally:
            torch.set_num_threads(before)
        return found


@lru_cache(maxsize=4)
def _facts(folder: str, length: int, state: Any) -> tuple[str, int]:
    """(digest, d), from the files alone."""
    from fedpriv.data.encoders import encoder_config  # torch, as below
    from fedpriv.data.weights import read_file

    digest, place = hashlib.sha256(), Path(folder)
    contents = {name: read_file(str(place / name), OPTION) for name in FILES}
    for name in FILES:
        digest.update(contents[name])
    said = encoder_config(contents["config.json"], OPTION, str(place / "model.safetensors"), "text")
    dims, most = said.get("hidden_size", said.get("dim")), said.get("max_position_embeddings", length + 2)
    if type(dims) is not int or dims < 1:
        raise OptionError(OPTION, folder, "config.json names no hidden_size")
    if length > most - 2:  # some families number positions from 2
        raise OptionError(OPTION, length, f"length of a column is more than the encoder reads; at most {most - 2}")
    return digest.hexdigest(), dims


@lru_cache(maxsize=2)
def _loaded(folder: str, length: int, state: Any, sha256: str | None) -> tuple[Any, Any]:
    """(network, tokenizer)."""
    import tokenizers

    from fedpriv.data.encoders import transformers_network
    from fedpriv.data.weights import read_file, read_weights

    place, weights = Path(folder), str(Path(folder) / FILES[0])
    config, rules = (read_file(str(place / name), OPTION) for name in FILES[1:])
    found = read_weights(weights, OPTION, sha256, config + rules)
    network = transformers_network(config, found.tensors, OPTION, weights, None, "text")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(rules.decode())
        most = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    except Exception as error:  # the library raises plain exceptions
        reason = " ".join(str(error).split())[:160]
        raise OptionError(OPTION, folder, f"tokenizer.json is no tokenizer ({reason})") from None
    size = int(json.loads(config).get("vocab_size", 0))
    if most >= size:
        raise OptionError(OPTION, folder, f"tokenizer.json has ids up to {most}, and the encoder reads {size}")
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    return network, tokenizer
