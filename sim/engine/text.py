"""Tokens and words of the simulated engine: four bytes of UTF-8 are one token, and so is every word it
generates.

A prompt that contains an earlier answer is therefore tokenised to the generated tokens, and prefix caching
works over several turns as with a real tokenizer.
"""

from hashlib import blake2b

BYTES_PER_TOKEN = 4
"""Number of bytes per token of the simulated tokenizer."""
_PAD = b" "
_WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two "
    "way who boy did its let put say she too use sun sky sea run red big box car cat dog egg eye far few fly fun gas "
    "hat hot ice job key law leg lie lot low map mix net oil own pay pen pie pot raw row sad set six son tax tea ten "
    "tie top toy try war wet win yes yet zoo air arm art ask bad bag bar bay bed bit bow bus buy"
)
VOCABULARY = tuple(f"{word} ".encode() for word in _WORDS.split())
"""All words that the simulated engine generates; each entry is exactly one token."""
GIBBERISH = b"!?! "
"""The token that an engine with wrong weights repeats."""

_STEP = 6364136223846793005
_INCREMENT = 1442695040888963407
_MASK = (1 << 64) - 1


def encode(text: str) -> bytes:
    """Return `text` as UTF-8, padded with blanks to whole tokens."""
    raw = text.encode("utf-8", "replace")
    rest = len(raw) % BYTES_PER_TOKEN
    return raw + _PAD * (BYTES_PER_TOKEN - rest) if rest else raw


def count(content: bytes) -> int:
    """Return the number of tokens in padded content."""
    return len(content) // BYTES_PER_TOKEN


def token_ids(content: bytes) -> list[int]:
    """Return the token ids of padded content: each token's four bytes as a number."""
    return [
        int.from_bytes(content[start : start + BYTES_PER_TOKEN], "big")
        for start in range(0, len(content), BYTES_PER_TOKEN)
    ]


def from_ids(ids: list[int]) -> bytes:
    """Return the content of token ids."""
    return b"".join((token & 0xFFFFFFFF).to_bytes(BYTES_PER_TOKEN, "big") for token in ids)


def block_hashes(content: bytes, block_size: int, salt: str, known: list[int]) -> list[int]:
    """Return chained hashes of the full blocks of `content`, extending `known` (the hashes of its first
    blocks).

    The salt is part of the first hash and so of all: tenants with different salts never share a block.
    """
    width = block_size * BYTES_PER_TOKEN
    previous = known[-1].to_bytes(8, "big") if known else blake2b(salt.encode(), digest_size=8).digest()
    for start in range(len(known) * width, len(content) - width + 1, width):
        previous = blake2b(previous + content[start : start + width], digest_size=8).digest()
        known.append(int.from_bytes(previous, "big"))
    return known


def chat_prompt(messages: list[tuple[str, str]], *, answer: bool = True) -> bytes:
    """Apply the chat template: every message in whole tokens, then with `answer` the assistant's opening."""
    parts = [encode(f"<|{role}|>") + encode(content) for role, content in messages]
    return b"".join([*parts, encode("<|assistant|>") if answer else b""])


class HashSampler:
    """Chooses words by a hash of prompt, seed and choice number; equal requests have equal answers."""

    def __init__(self, content: bytes, seed: int, choice: int) -> None:
        digest = blake2b(
            content, digest_size=8, salt=choice.to_bytes(8, "big"), key=(seed & _MASK).to_bytes(8, "big")
        )
        self._state = int.from_bytes(digest.digest(), "big")

    def length(self) -> int:
        """Return the tokens of an unlimited answer: 16 to 271, by the hash."""
        return 16 + (self._state >> 40) % 256

    def next(self) -> bytes:
        """Return the next token's bytes."""
        self._state = (self._state * _STEP + _INCREMENT) & _MASK
        return VOCABULARY[(self._state >> 33) % len(VOCABULARY)]
