"""Hashed text: words and groups of letters, counted in buckets that a public hash chooses.

K. Weinberger, A. Dasgupta, J. Langford, A. Smola, J. Attenberg:
Feature Hashing for Large Scale Multitask Learning. ICML 2009.

No vocabulary is learned, so nothing of anybody's text is in the function; every text has length at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

#: Groups of so many letters, within words.
LETTERS = (3, 4)


def hashed(texts: Sequence[str], dims: int) -> Any:
    """Sparse matrix (scipy CSR, float32) [n, dims]: of each text its words, pairs of words and groups of letters, each
    in a bucket with a sign by its hash, scaled to length 1 (an empty text is 0).
    """
    from scipy.sparse import hstack
    from sklearn.preprocessing import normalize

    words, letters = _vectorizers(dims)
    if dims < 4:
        raise ValueError(f"{dims} buckets; at least 4 are needed")
    return normalize(hstack([words.transform(texts), letters.transform(texts)], format="csr"), copy=False)


@lru_cache
def _vectorizers(dims: int) -> tuple[Any, Any]:
    """Half of the buckets for words and pairs of words, half for groups of letters."""
    import numpy as np
    from sklearn.feature_extraction.text import HashingVectorizer

    shared = {"alternate_sign": True, "dtype": np.float32, "norm": "l2", "lowercase": True}
    words = HashingVectorizer(n_features=dims - dims // 2, ngram_range=(1, 2), **shared)
    letters = HashingVectorizer(n_features=dims // 2, analyzer="char_wb", ngram_range=LETTERS, **shared)
    return words, letters
