"""Measures the cost of hashing a prompt in an API process: by text, and by tokens uncached, cached and extended
by a turn.
"""

import itertools
import json
import pydoc_data.topics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gateway.prefix import BLOCK_BYTES, MAX_BLOCKS, block_hashes
from gateway.schemas.chat import parse_chat
from gateway.schemas.common import PreparedRequest
from gateway.tokenization.model_tokenizer import ModelTokenizer
from gateway.tokenization.text_encoder import TokenCache
from workers.token_blocks import TOKEN_BYTES, token_block_hashes

BLOCK_TOKENS = 64
"""Number of tokens per hashed block."""
ROUNDS = 7
"""Number of rounds, of which the fastest counts."""
_TEXT = " ".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
_PROMPTS = {
    "short": ["Tell me of the river."],
    "2k": [_TEXT[:8_300]],
    "30k": [_TEXT[:124_000]],
    "30k in 40 turns": [_TEXT[start : start + 3_100] for start in range(0, 124_000, 3_100)],
}


def costs(tokenizer_dir: Path) -> list[dict[str, float | str]]:
    """Return CPU microseconds per prompt, the best of several rounds each."""
    model = ModelTokenizer(tokenizer_dir, "bench", TokenCache(), lambda: datetime.now(UTC))
    return [_row(model, name, turns) for name, turns in _PROMPTS.items()]


def _row(model: ModelTokenizer, name: str, turns: list[str]) -> dict[str, float | str]:
    prompt = _chat(turns)
    salts = (f"cold {number}" for number in itertools.count())
    grown = iter([_chat([*turns, "And this?", f"What of it? {number}"]) for number in range(ROUNDS)])

    def tokens(prepared: PreparedRequest, salt: str) -> int:
        packed = model.tokenize(prepared, salt, reasoning=False)
        token_block_hashes(packed, BLOCK_TOKENS, salt)
        return len(packed) // TOKEN_BYTES

    return {
        "prompt": name,
        "tokens": tokens(prompt, "warm"),
        "bytes": prompt.prompt_bytes,
        "text_us": _best(lambda: block_hashes(prompt.prompt_prefix(MAX_BLOCKS * BLOCK_BYTES), b"salt")),
        "tokens_cold_us": _best(lambda: tokens(prompt, next(salts))),
        "tokens_cached_us": _best(lambda: tokens(prompt, "warm")),
        "tokens_grown_us": _best(lambda: tokens(next(grown), "warm")),
    }


def _chat(turns: list[str]) -> PreparedRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(turns)]
    return parse_chat(json.dumps({"model": "bench", "messages": messages}).encode())


def _best(work: Callable[[], object]) -> float:
    """Return the CPU microseconds of all threads in the fastest round."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return round(min(taken) * 1e6, 1)
