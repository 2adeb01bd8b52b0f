"""Encodes text with a model's tokenizer, with a cache, so that a growing conversation encodes only its new part.

A tokenizer splits a text at special tokens such as `<|im_start|>` first and encodes each piece between two of them
separately. The tokens of a text are therefore those of its pieces, joined, and a piece can be cached. Smaller units
cannot: the merges of a byte-pair encoding may cross any other boundary.
"""

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from gateway.limits import MAX_DETOKENIZED_CHARS
from workers.token_blocks import packed

MAX_CACHE_BYTES = 64 * 2**20
"""Bytes of packed token ids cached per process: 16 million tokens."""
MAX_TOKENS = 2**18
"""Tokens of the longest text that is encoded for its blocks, the largest context of the catalog.

The conversion to Python holds the interpreter's lock: 1.7 ms for so many tokens.
"""
_DIGEST_BYTES = 16
"""Bytes of a cache key."""
_MOST_CHARS = 2**16 - 1
"""Characters up to which the length of a token's name is kept."""
_ENTRY_BYTES = 200
"""Approximate bytes of an entry beside its tokens."""


class TokenizationError(Exception):
    """The tokens of a request cannot be computed. The text is the reason, a label of a metric."""


class UnknownToken(TokenizationError):
    """A token id is not in the vocabulary, which has `size` ids."""

    def __init__(self, token: int, size: int) -> None:
        super().__init__("unknown_token")
        self.token = token
        self.size = size


class TokenCache:
    """A thread-safe LRU cache of encoded pieces, bounded by `max_bytes`.

    Keys are digests keyed by the tenant's salt, so that no tenant can find out by timing what another has encoded.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> bytes | None:
        """Return the packed tokens of `key`, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: bytes, tokens: bytes) -> None:
        """Add packed tokens and evict the least recently used. A piece above an eighth of the cache is not kept."""
        with self._lock:
            if key in self._entries or len(tokens) > self.max_bytes // 8:
                return
            self._entries[key] = tokens
            self.bytes += len(tokens) + _ENTRY_BYTES
            while self.bytes > self.max_bytes:
                self.bytes -= len(self._entries.popitem(last=False)[1]) + _ENTRY_BYTES


class TextEncoder:
    """Encodes text with one tokenizer.json, through a cache. Safe for several threads."""

    def __init__(self, path: Path, name: str, cache: TokenCache) -> None:
        """`name` identifies the tokenizer in a shared cache. Raises ValueError when the file is not a tokenizer."""
        raw = path.read_text(encoding="utf-8")
        try:
            self._tokenizer = Tokenizer.from_str(raw)
            document = msgspec.json.decode(raw)
        except Exception as error:  # noqa: BLE001 - tokenizers raises nothing more precise
            raise ValueError(f"{path} is not a tokenizer: {error}") from None
        self._name = name.encode()
        self._cache = cache
        split_tokens = _split_tokens(document)
        self._splitter = (
            re.compile("(" + "|".join(map(re.escape, split_tokens)) + ")") if split_tokens else None
        )
        self._split_token_ids = {
            token["content"]: packed([token["id"]])
            for token in document.get("added_tokens") or ()
            if token["content"] in split_tokens
        }

    def chat(self, text: str, salt: str) -> bytes:
        """Return the packed tokens of a rendered chat, whose text contains its special tokens.

        Raises TokenizationError when more than MAX_TOKENS are not cached.
        """
        return self._pieces(self._splitter.split(text) if self._splitter else [text], salt)

    def plain(self, text: str, salt: str) -> bytes:
        """Return the packed tokens of a plain prompt, with the special tokens that the tokenizer adds.

        Raises TokenizationError above MAX_TOKENS.
        """
        key = self._key(b"plain", text, salt)
        found = self._cache.get(key)
        if found is None:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=True)
            if len(encoding) > MAX_TOKENS:
                raise TokenizationError("too_long")
            found = packed(encoding.ids)
            self._cache.put(key, found)
        return found

    def names(self, tokens: Sequence[int]) -> list[str]:
        """Return the entries of the vocabulary, as the tokenizer writes them. Raises UnknownToken."""
        self._check_known(tokens)
        name_of = self._tokenizer.id_to_token
        return [name_of(token) or "" for token in tokens]

    def text(self, tokens: list[int]) -> str:
        """Return the text of token ids, special tokens included.

        Raises UnknownToken, and TokenizationError for a text of more than MAX_DETOKENIZED_CHARS.
        """
        if self._check_known(tokens) > MAX_DETOKENIZED_CHARS:
            raise TokenizationError("too_long")
        # Of a batch, decoding releases the interpreter's lock.
        (text,) = self._tokenizer.decode_batch([tokens], skip_special_tokens=False)
        return str(text)

    def _check_known(self, tokens: Sequence[int]) -> int:
        """Return the characters of the tokens' entries in the vocabulary. Raises UnknownToken."""
        lengths, size = self._lengths, len(self._lengths)
        chars = 0
        for token in tokens:
            length = lengths[token] if token < size else 0
            if not length:
                raise UnknownToken(token, size)
            chars += length
        return chars

    @cached_property
    def _lengths(self) -> "array[int]":
        """By token id: the characters of its entry; 0 = there is none. A vocabulary of 150,000 takes 0.1 s."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        lengths = array("H", bytes(2 * (max(vocabulary.values(), default=-1) + 1)))
        for name, token in vocabulary.items():
            lengths[token] = min(len(name), _MOST_CHARS) or 1
        return lengths

    def _pieces(self, pieces: list[str], salt: str) -> bytes:
        """Return the packed tokens of all pieces. What is not cached is encoded in one call that releases the GIL."""
        parts: list[bytes | None] = []
        missing: list[tuple[int, bytes, str]] = []
        for position, piece in enumerate(pieces):
            known = self._split_token_ids.get(piece) if position % 2 else b"" if not piece else None
            if known is None:
                key = self._key(b"piece", piece, salt)
                known = self._cache.get(key)
                if known is None:
                    missing.append((position, key, piece))
            parts.append(known)
        if missing:
            texts = [piece for _, _, piece in missing]
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            if sum(map(len, encodings)) > MAX_TOKENS:
                raise TokenizationError("too_long")
            for (position, key, _), encoding in zip(missing, encodings, strict=True):
                tokens = parts[position] = packed(encoding.ids)
                self._cache.put(key, tokens)
        return b"".join(part for part in parts if part is not None)

    def _key(self, kind: bytes, text: str, salt: str) -> bytes:
        digest = blake2b(kind, digest_size=_DIGEST_BYTES, key=blake2b(salt.encode(), digest_size=32).digest())
        digest.update(self._name + b"\0" + text.encode())
        return digest.digest()


def _split_tokens(document: dict[str, Any]) -> list[str]:
    """Special tokens at which a text may be split, longest first; none when a piece's tokens depend on its position.

    A special token qualifies when the tokenizer matches it in the raw text, without the blanks around it, and when it
    overlaps with no other added token. Tokens depend on the position with a Metaspace that marks only the first piece.
    """
    if _prepends_to_first(document.get("pre_tokenizer")):
        return []
    added = document.get("added_tokens") or []
    texts = [token["content"] for token in added]
    plain = [
        token["content"]
        for token in added
        if token.get("special")
        and not any(token.get(flag) for flag in ("lstrip", "rstrip", "single_word", "normalized"))
    ]
    free = [text for text in plain if not any(_overlap(text, other) for other in texts if other is not text)]
    return sorted(free, key=len, reverse=True)


def _prepends_to_first(pre_tokenizer: Any) -> bool:
    if not isinstance(pre_tokenizer, dict):
        return False
    if pre_tokenizer.get("type") == "Metaspace":
        return bool(pre_tokenizer.get("prepend_scheme", "always") == "first")
    return any(_prepends_to_first(each) for each in pre_tokenizer.get("pretokenizers") or ())


def _overlap(one: str, other: str) -> bool:
    if one in other or other in one:
        return True
    sizes = range(1, min(len(one), len(other)))
    return any(one.endswith(other[:size]) or other.endswith(one[:size]) for size in sizes)
