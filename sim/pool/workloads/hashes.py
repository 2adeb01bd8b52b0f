"""Block hashes of synthetic prompts: 63-bit, salted by tenant, equal only where prefixes are equal.

A *stream* is a text identified by a key. The hash of block `i` stands for the stream's first `i + 1` blocks, so
block hashes are chained without a sequential computation.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

Hashes = NDArray[np.uint64]


def key_of(*parts: str | int) -> int:
    """Return a 64-bit key of names and numbers; the same on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def mixed(values: Hashes) -> Hashes:
    """Apply SplitMix64's finaliser (Steele et al., OOPSLA 2014) without the top bit: values fit signed 64-bit
    columns.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values >> np.uint64(1)


def stream(key: int, first: int, last: int) -> tuple[int, ...]:
    """Return the hashes of blocks `first` to `last` (exclusive) of a stream."""
    if last <= first:
        return ()
    index = np.arange(first + 1, last + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return tuple(mixed(index + np.uint64(key & _MASK)).tolist())


def salted(chain: Hashes, salt: int) -> tuple[int, ...]:
    """Return a chain of hashes as another tenant, or another pass over a trace, would have it."""
    if not len(chain):
        return ()
    return tuple(mixed(chain * np.uint64(_GOLDEN) + np.uint64(salt & _MASK)).tolist())


def chained(ids: Iterable[int]) -> list[int]:
    """Return one 64-bit hash per id that stands for the id and all ids before it."""
    out, above = [], _GOLDEN
    for block in ids:
        above = ((above ^ block) * 0xFF51AFD7ED558CCD) & _MASK
        above ^= above >> 32
        out.append(above)
    return out
