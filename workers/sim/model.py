"""The engine as a state machine: one call of `step` is one forward pass. Pure: no clock, no I/O.

A step first gives every running decode its tokens, then spends the rest of the token budget on prefill, first come
first served, in chunks. Out of blocks, the newest running sequence is preempted and recomputed later.

    t_step = alpha + beta * B + gamma * KV + u / R

with B decoding sequences, KV tokens of cache read by them and u uncached prompt tokens computed (DESIGN §6).
A step in which every sequence is decoding yields `accept_per_step` tokens a sequence on average.
"""

import math
import random
from collections import deque
from dataclasses import dataclass, field

from workers.sim.blocks import BlockPool
from workers.sim.text import Speaker, block_hashes, count
from workers.wire import Capacity


@dataclass(frozen=True, slots=True)
class SimConfig:
    """What the simulated engine is."""

    capacity: Capacity
    block_size: int = 64
    """Tokens a KV block."""
    max_batched_tokens: int = 8192
    """Token budget of one step."""
    noise_cv: float = 0.05
    """Coefficient of variation of the step time (lognormal); 0 = none."""
    seed: int = 0

    @property
    def blocks(self) -> int:
        """KV blocks of the pool."""
        return self.capacity.kv_cache_tokens // self.block_size


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request. `content` is the prompt and, after it, what was generated."""

    content: bytearray
    prompt_tokens: int
    max_tokens: int
    natural_length: int | None
    """Tokens after which it stops by itself; None = never."""
    speaker: Speaker
    salt: str = ""
    counts_prompt: bool = True
    """False for the second and further choices of a request: its usage has the prompt once."""
    computed: int = 0
    """Tokens whose KV entries are in blocks."""
    generated: int = 0
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache when it was first scheduled; None before."""
    finish_reason: str | None = None
    """stop | length | abort once it is over."""
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    published: int = 0
    """Blocks already findable in the prefix cache."""
    running: bool = False

    @property
    def most_tokens(self) -> int:
        """Prompt and the longest answer it may have."""
        return self.prompt_tokens + self.max_tokens

    @property
    def total_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class Counters:
    """Cumulative counters, as /metrics shows them; they agree with the usage of the answers."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    accepted_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})


@dataclass(slots=True)
class Step:
    """What one forward pass did."""

    seconds: float
    produced: list[tuple[Sequence, bytes]]
    """New tokens by sequence, in whole tokens."""
    prefilled: int
    """Uncached prompt tokens computed."""


class EngineModel:
    """The engine's scheduler and KV cache."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.counters = Counters()
        self._random = random.Random(config.seed)  # noqa: S311 - a simulation, not a secret

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return self.pool.used / self.pool.blocks

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError when it can never fit."""
        if sequence.most_tokens > self.config.capacity.max_model_len:
            raise ValueError("prompt and answer are longer than the model's context")
        needed = -(-sequence.most_tokens // self.config.block_size)
        if needed > self.pool.blocks:
            raise ValueError("the sequence is larger than the KV cache")
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Stop a sequence now, wherever it is; a finished one is left alone."""
        if sequence.finish_reason is None:
            self._finish(sequence, "abort")

    def stop(self, sequence: Sequence) -> None:
        """End a sequence whose text has hit a stop string."""
        if sequence.finish_reason is None:
            self._finish(sequence, "stop")

    def step(self) -> Step:
        """One forward pass over what fits; its time includes noise."""
        preemptions = self.counters.preemptions
        decoding = [s for s in self.running if s.generated > 0 and s.computed >= s.total_tokens - 1]
        budget = self.config.max_batched_tokens - len(decoding)
        ahead = math.ceil(self.config.capacity.accept_per_step)
        for sequence in decoding:
            self._grow_or_preempt(sequence, min(sequence.total_tokens + ahead, sequence.most_tokens))
        decoding = [sequence for sequence in decoding if sequence.running]
        prefilled, completed = self._prefill(budget, admit=self.counters.preemptions == preemptions)
        decoding = [sequence for sequence in decoding if sequence.running]
        kv_tokens = sum(sequence.computed for sequence in decoding)
        produced = [(sequence, self._produce(sequence, self._accepted())) for sequence in decoding]
        produced += [(sequence, self._produce(sequence, 1)) for sequence in completed]
        return Step(self._time(len(decoding), kv_tokens, prefilled), produced, prefilled)

    def _time(self, decoding: int, kv_tokens: int, prefilled: int) -> float:
        capacity = self.config.capacity
        seconds = (
            capacity.step_base_s
            + capacity.step_per_seq_s * decoding
            + capacity.step_per_kv_token_s * kv_tokens
            + prefilled / capacity.prefill_tokens_per_s
        )
        if self.config.noise_cv <= 0:
            return seconds
        sigma = math.sqrt(math.log1p(self.config.noise_cv**2))
        return seconds * self._random.lognormvariate(-sigma * sigma / 2, sigma)

    def _prefill(self, budget: int, *, admit: bool) -> tuple[int, list[Sequence]]:
        """Spend `budget` on prompts; returns tokens computed and the sequences whose prompt is now complete."""
        started = budget
        completed: list[Sequence] = []
        for sequence in list(self.running):
            if (
                budget > 0
                and sequence.running
                and sequence.computed < sequence.total_tokens - (sequence.generated > 0)
            ):
                chunk = min(budget, sequence.total_tokens - sequence.computed)
                if self._grow_or_preempt(sequence, sequence.computed + chunk):
                    budget -= self._compute(sequence, chunk, completed)
        while admit and budget > 0 and self.waiting and len(self.running) < self.config.capacity.max_num_seqs:
            sequence = self.waiting[0]
            self._reuse_prefix(sequence)
            chunk = min(budget, sequence.total_tokens - sequence.computed)
            if not self._grow(sequence, sequence.computed + chunk):
                self._give_back(sequence)
                break
            self._start(self.waiting.popleft())
            budget -= self._compute(sequence, chunk, completed)
        return started - budget, [sequence for sequence in completed if sequence.running]

    def _compute(self, sequence: Sequence, chunk: int, completed: list[Sequence]) -> int:
        self._advance(sequence, chunk)
        if sequence.computed >= sequence.total_tokens:
            completed.append(sequence)
        return chunk

    def _reuse_prefix(self, sequence: Sequence) -> None:
        """Take the cached blocks of the prompt; at least one token is always left to compute."""
        size = self.config.block_size
        block_hashes(bytes(sequence.content), size, sequence.salt, sequence.hashes)
        hit = self.pool.match(sequence.hashes[: (sequence.total_tokens - 1) // size])
        self.pool.take_cached(hit)
        sequence.blocks = hit
        sequence.published = len(hit)
        sequence.computed = len(hit) * size

    def _start(self, sequence: Sequence) -> None:
        sequence.running = True
        self.running.append(sequence)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.counters.prefix_queries += sequence.prompt_tokens
            self.counters.prefix_hits += sequence.computed

    def _give_back(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0
        sequence.published = 0

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        missing = -(-tokens // self.config.block_size) - len(sequence.blocks)
        if missing <= 0:
            return True
        taken = self.pool.take_new(missing)
        if taken is None:
            return False
        sequence.blocks += taken
        return True

    def _grow_or_preempt(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for `tokens` tokens, preempting the newest sequences; False when it was itself preempted."""
        while sequence.running:
            if self._grow(sequence, tokens):
                return True
            self._preempt(self.running[-1])
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.running = False
        self._give_back(sequence)
        self.waiting.appendleft(sequence)
        self.counters.preemptions += 1

    def _advance(self, sequence: Sequence, tokens: int) -> None:
        sequence.computed += tokens
        full = sequence.computed // self.config.block_size
        if full > sequence.published:
            hashes = block_hashes(
                bytes(sequence.content), self.config.block_size, sequence.salt, sequence.hashes
            )
            for index in range(sequence.published, min(full, len(hashes))):
                self.pool.publish(sequence.blocks[index], hashes[index])
            sequence.published = full

    def _accepted(self) -> int:
        """Tokens this step yields for a decode."""
        mean = self.config.capacity.accept_per_step
        if mean <= 1.0:
            return 1
        whole = int(mean)
        tokens = whole + (1 if self._random.random() < mean - whole else 0)
        self.counters.drafts += 1
        self.counters.accepted_tokens += tokens - 1
        return tokens

    def _produce(self, sequence: Sequence, tokens: int) -> bytes:
        """Generate up to `tokens` tokens; finishes the sequence at its end."""
        if sequence.generated == 0:  # of every choice, as vLLM does
            self.counters.prompt_tokens += sequence.prompt_tokens
            self.counters.cached_prompt_tokens += sequence.cached_tokens or 0
        room = sequence.max_tokens
        natural = sequence.natural_length if sequence.natural_length is not None else room + 1
        tokens = min(tokens, min(room, natural) - sequence.generated)
        new = b"".join([sequence.speaker.next() for _ in range(tokens)])
        sequence.content += new
        sequence.generated += tokens
        self.counters.generation_tokens += tokens
        behind = sequence.total_tokens - 1 - sequence.computed
        if behind > 0:
            self._advance(sequence, behind)
        if sequence.generated >= natural:
            self._finish(sequence, "stop")
        elif sequence.generated >= room:
            self._finish(sequence, "length")
        return new

    def _finish(self, sequence: Sequence, reason: str) -> None:
        sequence.finish_reason = reason
        self.counters.finished[reason] += 1
        if sequence.running:
            sequence.running = False
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []


def new_sequence(
    content: bytes,
    *,
    max_tokens: int,
    seed: int = 0,
    choice: int = 0,
    stops_by_itself: bool = True,
    salt: str = "",
) -> Sequence:
    """A sequence for a prompt of whole tokens."""
    speaker = Speaker(content, seed, choice)
    return Sequence(
        content=bytearray(content),
        prompt_tokens=count(content),
        max_tokens=max_tokens,
        natural_length=speaker.length() if stops_by_itself else None,
        speaker=speaker,
        salt=salt,
        counts_prompt=choice == 0,
    )
