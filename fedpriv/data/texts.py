"""Texts as numbers, by a public rule: token ids of a fixed length (bytes, hashed words, or the user's own tokenizer
file), or counts of hashed words and groups of letters.

Id 0 is padding, behind the text. Of a long text the first tokens are taken, where nothing else is said. A tokenizer
file is the JSON of the `tokenizers` library: data, and no code of its own. Nothing is learned from anybody's text here;
a tokenizer that was learned from texts must have been learned from public ones.

Hashed text: K. Weinberger, A. Dasgupta, J. Langford, A. Smola, J. Attenberg: Feature Hashing for Large Scale Multitask
Learning. ICML 2009. Every text has length at most 1.

Shapes: n texts, t tokens.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedpriv.common.errors import OptionError

#: Tokens of a text, ids of a vocabulary, and bytes of a tokenizer file are at most so many.
MOST_TOKENS, MOST_IDS, MOST_BYTES = 4096, 1 << 20, 64 << 20
#: A tokenizer file reads at most so many characters of a text for each token that is wanted.
CHARACTERS = 64
#: Rules that need no file.
BYTES, WORDS = "bytes", "words"
OPTION = "dataset.schema_file"
_WORD = re.compile(r"\w+")
T = TypeVar("T", str, bytes)


@dataclass(frozen=True)
class TokenRule:
    """kind: `BYTES`, `WORDS` or the path of a tokenizer file; buckets: of words, how many a hash has; sha256: of the
    file, in hex (None: whatever the file is).
    """

    kind: str
    buckets: int = 0
    sha256: str | None = None

    @property
    def has_file(self) -> bool:
        return self.kind not in (BYTES, WORDS)

    @property
    def vocabulary(self) -> int:
        """Number of ids, padding among them. Raises `OptionError`."""
        if self.has_file:
            return self._file.size + 1
        return 257 if self.kind == BYTES else self.buckets + 1

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every id."""
        if self.kind == WORDS:
            return ("padding", *(f"word {bucket}" for bucket in range(self.buckets)))
        if self.has_file:
            known = self._file.tokenizer
            return ("padding", *(known.id_to_token(one) or f"token {one}" for one in range(self._file.size)))
        return ("padding", *(chr(one) if 32 < one < 127 else f"byte {one}" for one in range(256)))

    def ids(self, texts: Sequence[str], tokens: int, last: bool = False) -> np.ndarray:
        """int32 [n, tokens]: the first tokens of each text, or the ``last``. Raises `OptionError` for the file."""
        found = np.zeros((len(texts), tokens), np.int32)
        read = self._reader(tokens, last)
        for row, text in enumerate(texts):
            own = read(text)
            own = own[-tokens:] if last else own[:tokens]
            found[row, : len(own)] = np.asarray(own, np.int32) + 1
        return found

    def text(self, ids: Sequence[int]) -> str:
        """What a row of ids says, without padding; of hashed words nothing."""
        own = [int(one) - 1 for one in ids if one > 0]
        if self.kind == BYTES:
            return bytes(own).decode("utf-8", "replace")
        return str(self._file.tokenizer.decode(own, skip_special_tokens=False)) if self.has_file else ""

    def _reader(self, tokens: int, last: bool) -> Callable[[str], Sequence[int]]:
        """text -> ids from 0 of its first tokens, or its ``last``, and possibly of more."""
        if self.kind == BYTES:
            return lambda text: list(_part(_part(text, tokens, last).encode("utf-8", "replace"), tokens, last))
        if self.kind == WORDS:
            return lambda text: [_bucket(word, self.buckets) for word in _words(text, tokens, last)]
        tokenizer = self._file.tokenizer

        def read(text: str) -> Sequence[int]:
            part = _part(text, CHARACTERS * tokens, last).encode("utf-8", "replace").decode()
            found: Sequence[int] = tokenizer.encode(part, add_special_tokens=False).ids
            return found

        return read

    @property
    def _file(self) -> _Tokenizer:
        found = read_tokenizer(Path(self.kind))
        if self.sha256 not in (None, found.sha256):
            words = f"tokenizer {self.kind} is another file: its SHA-256 is {found.sha256}, and {self.sha256} is named"
            raise OptionError(OPTION, self.kind, words)
        return found


@dataclass(frozen=True)
class _Tokenizer:
    """size: the largest id, plus 1."""

    tokenizer: Any
    sha256: str
    size: int


def read_tokenizer(path: Path) -> _Tokenizer:
    """A tokenizer file. Raises `OptionError` (dataset.schema_file) for what is none, or has too large a vocabulary."""
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise OptionError(OPTION, path, f"the tokenizer cannot be read ({error.strerror})") from None


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> _Tokenizer:
    import tokenizers

    if size > MOST_BYTES:
        raise OptionError(OPTION, path, f"the tokenizer has {size} bytes; at most {MOST_BYTES} are allowed")
    raw = path.read_bytes()
    try:
        found = tokenizers.Tokenizer.from_str(raw.decode())
        most = max(found.get_vocab(with_added_tokens=True).values(), default=-1)
    except Exception as error:  # the library raises plain exceptions
        words = f"is no tokenizer ({' '.join(str(error).split())[:200]}); allowed: bytes, words, or a tokenizer.json"
        raise OptionError(OPTION, path, words) from None
    if not 0 <= most < MOST_IDS:
        raise OptionError(OPTION, path, f"the tokenizer has ids up to {most}; allowed: up to {MOST_IDS - 1}")
    found.no_padding()
    found.no_truncation()
    return _Tokenizer(found, hashlib.sha256(raw).hexdigest(), most + 1)


def _part(whole: T, most: int, last: bool) -> T:
    return whole[-most:] if last else whole[:most]


def _words(text: str, tokens: int, last: bool) -> list[str]:
    """Words in small letters; of a long text no more is read than is needed."""
    if last:
        return _WORD.findall(text.lower())[-tokens:]
    found: list[str] = []
    for match in _WORD.finditer(text):
        found.append(match.group().lower())
        if len(found) == tokens:
            break
    return found


@lru_cache(maxsize=1 << 16)
def _bucket(word: str, buckets: int) -> int:
    """By MurmurHash3 (A. Appleby 2011), a public hash."""
    from sklearn.utils import murmurhash3_32

    return int(murmurhash3_32(word.encode("utf-8", "replace"), seed=0, positive=True)) % buckets


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
