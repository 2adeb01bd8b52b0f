"""Embeddings of the simulated engine: vectors made from a hash of each input."""

import struct
from base64 import b64encode
from hashlib import shake_128

import msgspec

from sim.engine import text

DIMENSIONS = 256
"""Numbers of a vector when the request asks for no other size."""


class EmbeddingsBody(msgspec.Struct, kw_only=True):
    """The body of POST /v1/embeddings."""

    model: str = ""
    input: str | list[int | str | list[int]]
    encoding_format: str = "float"
    dimensions: int | None = None

    def contents(self) -> list[bytes]:
        """Return every input, in whole tokens."""
        if isinstance(self.input, str):
            return [text.encode(self.input)]
        ids = [each for each in self.input if isinstance(each, int)]
        if ids:
            return [text.from_ids(ids)]
        return [
            text.encode(each) if isinstance(each, str) else text.from_ids(each)
            for each in self.input
            if not isinstance(each, int)
        ]


def embeddings_body(model: str, contents: list[bytes], base64: bool, dimensions: int | None) -> bytes:
    """Return vLLM's answer: a vector of length 1 for each of `contents`, in base64 where asked for."""
    tokens = sum(map(text.count, contents))
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": _vector(content, base64, dimensions or DIMENSIONS),
        }
        for index, content in enumerate(contents)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    return msgspec.json.encode({"object": "list", "model": model, "data": data, "usage": usage})


def _vector(content: bytes, base64: bool, size: int) -> str | list[float]:
    numbers = [byte - 127.5 for byte in shake_128(content).digest(size)]
    length = sum(number * number for number in numbers) ** 0.5
    vector = [number / length for number in numbers]
    return b64encode(struct.pack(f"<{size}f", *vector)).decode() if base64 else vector
