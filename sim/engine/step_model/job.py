"""One request as an engine processes it: counts and block hashes, no text."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Job:
    """A request on one replica. The caller sets the first group of fields, the engine the others."""

    key: int
    prompt_tokens: int
    output_tokens: int
    """Number of tokens after which the request ends (the true length; the scheduler only has an estimate)."""
    blocks: Sequence[int] = ()
    """Chained, salted hashes of the prompt's leading whole blocks of `block_tokens` tokens each."""
    block_tokens: int = 64
    output_blocks: Sequence[int] = ()
    """Hashes that continue `blocks`, under which prompt and answer together are cached afterwards."""
    priority: int = 0
    """The lowest goes first; only engines that order by it (`Capacity.by_priority`) read it."""
    rank: int | None = None
    """Rank of the engine that is to compute it; None = the engine chooses."""
    loaded_tokens: int = 0
    """Number of prompt tokens whose KV comes from elsewhere: it needs blocks here, but no computation."""

    cached_tokens: int = 0
    """Number of prompt tokens found in the prefix cache when the request was first scheduled."""
    first_token_at: float = -1.0
    finished_at: float = -1.0
    produced: int = 0
    preemptions: int = 0
