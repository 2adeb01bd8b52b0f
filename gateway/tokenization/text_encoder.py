"""Text to token ids with a model's own tokenizer, cached so that a growing conversation only encodes its tail.

Special tokens such as `<|im_start|>` are cut out of a text before anything else happens to it, and what lies between
two of them is encoded by itself. So the pieces between special tokens are the units that may be cached: the tokens of
a text are those of its pieces, joined. Nothing smaller is safe with a byte-pair encoding, whose merges may reach
across any other boundary.
"""

import re
import threading
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from workers.token_blocks import packed

MAX_CACHE_BYTES = 64 * 2**20
"""Packed token ids kept per process: 16 million tokens."""
_DIGEST_BYTES = 16
_ENTRY_BYTES = 200
"""What an entry costs beside its tokens."""


class TokenCache:
    """An LRU of encoded pieces, bounded in bytes, for several threads.

    Keys are keyed digests: a tenant whose prompt another has encoded before cannot tell by its speed.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> bytes | None:
        """Packed tokens, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: bytes, tokens: bytes) -> None:
        """Keep packed tokens; the least recently used go first."""
        with self._lock:
            if key in self._entries or len(tokens) > self.max_bytes // 8:
                return
            self._entries[key] = tokens
            self.bytes += len(tokens) + _ENTRY_BYTES
            while self.bytes > self.max_bytes:
                self.bytes -= len(self._entries.popitem(last=False)[1]) + _ENTRY_BYTES


class TextEncoder:
    """A tokenizer.json with its cache."""

    def __init__(self, path: Path, name: str, cache: TokenCache) -> None:
        """`name` tells tokenizers apart in a shared cache. Raises ValueError when the file is not a tokenizer's."""
        raw = path.read_text(encoding="utf-8")
        try:
            self._tokenizer = Tokenizer.from_str(raw)
            facts = msgspec.json.decode(raw)
        except Exception as error:  # noqa: BLE001 - tokenizers raises nothing more precise
            raise ValueError(f"{path} is not a tokenizer: {error}") from None
        self._name = name.encode()
        self._cache = cache
        borders = _split_tokens(facts)
        self._splitter = re.compile("(" + "|".join(map(re.escape, borders)) + ")") if borders else None
        self._split_token_ids = {
            token["content"]: packed([token["id"]])
            for token in facts.get("added_tokens") or ()
            if token["content"] in borders
        }

    def chat(self, text: str, salt: str) -> bytes:
        """Packed tokens of a rendered chat, which brings its own special tokens."""
        return self._pieces(self._splitter.split(text) if self._splitter else [text], salt)

    def plain(self, text: str, salt: str) -> bytes:
        """Packed tokens of a bare prompt, with the special tokens that the tokenizer adds by itself."""
        key = self._key(b"plain", text, salt)
        found = self._cache.get(key)
        if found is None:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=True)
            found = packed(encoding.ids)
            self._cache.put(key, found)
        return found

    def _pieces(self, pieces: list[str], salt: str) -> bytes:
        """Encode what is not cached, in one call: unlike `encode`, it releases the interpreter's lock."""
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
            for (position, key, _), encoding in zip(missing, encodings, strict=True):
                tokens = parts[position] = packed(encoding.ids)
                self._cache.put(key, tokens)
        return b"".join(part for part in parts if part is not None)

    def _key(self, kind: bytes, text: str, salt: str) -> bytes:
        digest = blake2b(kind, digest_size=_DIGEST_BYTES, key=blake2b(salt.encode(), digest_size=32).digest())
        digest.update(self._name + b"\0" + text.encode())
        return digest.digest()


def _split_tokens(facts: dict[str, Any]) -> list[str]:
    """Special tokens at which a text may be cut, longest first; none when pieces depend on where they stand.

    They must be matched in the raw text, alone and without the blanks around them, and overlap with no other added
    token. Metaspace that marks only the first piece of a text makes pieces depend on their place.
    """
    if _prepends_to_first(facts.get("pre_tokenizer")):
        return []
    added = facts.get("added_tokens") or []
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
