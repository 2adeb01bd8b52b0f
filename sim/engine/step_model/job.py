"""One request as an engine sees it: counts and block hashes, no text."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Job:
    """A request on one replica. The first group is given; the engine fills in the rest."""

    key: int
    prompt_tokens: int
    output_tokens: int
    """Tokens after which it ends (the true length: the scheduler only ever has an estimate)."""
    blocks: Sequence[int] = ()
    """Chained, salted hashes of the prompt's leading whole blocks of `block_tokens` tokens each."""
    block_tokens: int = 64
    output_blocks: Sequence[int] = ()
    """Hashes under which prompt and answer together can be found afterwards (they continue `blocks`)."""

    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first scheduled."""
    first_token_at: float = -1.0
    finished_at: float = -1.0
    produced: int = 0
    preemptions: int = 0
