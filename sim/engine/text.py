"""Tokens and words of the simulated engine: four bytes of UTF-8 are one token, and every word it says is one token.

So a prompt that carries an earlier answer tokenises to the tokens that were generated, and prefix caching works
over several turns as it does with a real tokenizer.
"""

from hashlib import blake2b

BYTES_PER_TOKEN = 4
_PAD = b" "
_WORDS = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two "
    "way who boy did its let put say she too use sun sky sea run red big box car cat dog egg eye far few fly fun gas "
    "hat hot ice job key law leg lie lot low map mix net oil own pay pen pie pot raw row sad set six son tax tea ten "
    "tie top toy try war wet win yes yet zoo air arm art ask bad bag bar bay bed bit bow bus buy"
)
VOCABULARY = tuple(f"{word} ".encode() for word in _WORDS.split())
"""Everything the simulated engine can say; each entry is exactly one token."""

_STEP = 6364136223846793005
_INCREMENT = 1442695040888963407
_MASK = (1 << 64) - 1


def encode(text: str) -> bytes:
    """UTF-8 of `text`, padded with blanks to whole tokens."""
    raw = text.encode("utf-8", "replace")
    rest = len(raw) % BYTES_PER_TOKEN
    return raw + _PAD * (BYTES_PER_TOKEN - rest) if rest else raw


def count(content: bytes) -> int:
    """Tokens in padded content."""
    return len(content) // BYTES_PER_TOKEN


def token_ids(content: bytes) -> list[int]:
    """Token ids of padded content: its four bytes as a number."""
    return [
        int.from_bytes(content[start : start + BYTES_PER_TOKEN], "big")
        for start in range(0, len(content), BYTES_PER_TOKEN)
    ]


def from_ids(ids: list[int]) -> bytes:
    """Content of token ids."""
    return b"".join((token & 0xFFFFFFFF).to_bytes(BYTES_PER_TOKEN, "big") for token in ids)


def block_hashes(content: bytes, block_size: int, salt: str, known: list[int]) -> list[int]:
    """Chained hashes of the full blocks of `content`; `known` (hashes of its first blocks) is extended and returned.

    The salt enters the first hash and so all of them: tenants with different salts never share a block.
    """
    width = block_size * BYTES_PER_TOKEN
    previous = known[-1].to_bytes(8, "big") if known else blake2b(salt.encode(), digest_size=8).digest()
    for start in range(len(known) * width, len(content) - width + 1, width):
        previous = blake2b(previous + content[start : start + width], digest_size=8).digest()
        known.append(int.from_bytes(previous, "big"))
    return known


def chat_prompt(messages: list[tuple[str, str]]) -> bytes:
    """The chat template: every message in whole tokens, then the assistant's opening."""
    parts = [encode(f"<|{role}|>") + encode(content) for role, content in messages]
    return b"".join([*parts, encode("<|assistant|>")])


class HashSampler:
    """Words chosen by a hash of prompt, seed and choice number: the same question, the same answer."""

    def __init__(self, content: bytes, seed: int, choice: int) -> None:
        digest = blake2b(
            content, digest_size=8, salt=choice.to_bytes(8, "big"), key=(seed & _MASK).to_bytes(8, "big")
        )
        self._state = int.from_bytes(digest.digest(), "big")

    def length(self) -> int:
        """How many tokens the answer has when nothing limits it: 16 to 271, by the hash."""
        return 16 + (self._state >> 40) % 256

    def next(self) -> bytes:
        """The next token's bytes."""
        self._state = (self._state * _STEP + _INCREMENT) & _MASK
        return VOCABULARY[(self._state >> 33) % len(VOCABULARY)]
