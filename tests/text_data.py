"""A small data set of text, made up: the class, and the next token, follow from the tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fedpriv.data.types import Dataset, Examples
from fedpriv.mechanisms.tasks import PADDING, NextToken, of_classes

TOKENS, VOCABULARY = 12, 20


def text_dataset(each: bool = False, n: int = 300, seed: int = 0) -> Dataset:
    """Texts of 3 to 12 tokens; a token is followed by the next number, or, one in ten, by any other."""
    rng = np.random.default_rng(seed)
    ids = np.zeros((n, TOKENS), np.int64)
    ids[:, 0] = rng.integers(1, VOCABULARY, n)
    for place in range(1, TOKENS):
        anything = rng.integers(1, VOCABULARY, n)
        ids[:, place] = np.where(rng.random(n) < 0.1, anything, ids[:, place - 1] % (VOCABULARY - 1) + 1)
    ids[np.arange(TOKENS) >= rng.integers(3, TOKENS + 1, n)[:, None]] = 0
    if each:
        targets = np.full_like(ids, PADDING)
        targets[:, :-1] = np.where(ids[:, 1:] > 0, ids[:, 1:], PADDING)
        task = NextToken(tuple(map(str, range(VOCABULARY))), TOKENS)
    else:
        targets, task = (ids[:, 0] > VOCABULARY // 2).astype(np.int64), of_classes(("low", "high"))  # type: ignore[assignment]
    stored = ids.astype(np.uint16)
    train, test = slice(0, 2 * n // 3), slice(2 * n // 3, n)
    return Dataset(
        "text",
        Examples(stored[train], targets[train]),
        Examples(stored[test], targets[test]),
        task,
        input_shape=(TOKENS,),
        vocabulary=VOCABULARY,
    )


def tokenizer_json(folder: Path) -> Path:
    """A file of the `tokenizers` library: words by number, `?` for others."""
    vocab = {word: number for number, word in enumerate(("?", "the", "cat", "dog", "sat"))}
    said = {"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}
    (folder / "tokenizer.json").write_text(json.dumps(said | {"model": model}))
    return folder / "tokenizer.json"
