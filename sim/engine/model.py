"""The simulated engine's requests: the step model schedules them, this module generates their text.

Batching, KV pool, preemption and step time are those of `sim.engine.step_model`, run one step at a time. Here a
job also has text, and the blocks of its answer become cached as the words are chosen. Pure: no clock, no I/O.
"""

import random
from dataclasses import dataclass, field

from sim.engine.step_model.interface import EventKind, StepConfig
from sim.engine.step_model.job import Job
from sim.engine.step_model.lockstep import step_engine
from sim.engine.text import GIBBERISH, HashSampler, block_hashes, count


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request. `content` is the prompt, followed by the generated text."""

    content: bytearray
    prompt_tokens: int
    max_tokens: int
    natural_length: int | None
    """Number of tokens after which the answer ends by itself; None = never."""
    sampler: HashSampler
    salt: str = ""
    priority: int = 0
    """As in `Job.priority`."""
    rank: int | None = None
    """As in `Job.rank`."""
    counts_prompt: bool = True
    """Whether usage counts the prompt for this choice; False for all but the first choice of a request."""
    generated: int = 0
    finish_reason: str | None = None
    """Reason of the end: stop, length or abort; None while the sequence is not finished."""
    hashes: list[int] = field(default_factory=list)
    """Hashes of the full blocks of `content` so far."""
    job: Job | None = None
    """The sequence's job in the step model; None before `EngineModel.add`."""

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache when the sequence was first scheduled."""
        return self.job.cached_tokens if self.job is not None else 0

    @property
    def max_total_tokens(self) -> int:
        """Number of tokens of the prompt and the longest permitted answer."""
        return self.prompt_tokens + self.max_tokens

    @property
    def total_tokens(self) -> int:
        """Number of prompt tokens and generated tokens."""
        return self.prompt_tokens + self.generated

    @property
    def length(self) -> int:
        """Number of tokens of the answer when only its natural end and its limit apply."""
        return self.max_tokens if self.natural_length is None else min(self.max_tokens, self.natural_length)


@dataclass(frozen=True, slots=True)
class Counters:
    """Cumulative counters as /metrics shows them; they agree with the usage of the answers."""

    prompt_tokens: int
    cached_prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    drafts: int
    accepted_tokens: int
    finished: dict[str, int]


@dataclass(frozen=True, slots=True)
class CacheChange:
    """Blocks of `sequence` that can be found from now on or, without a sequence, no longer."""

    sequence: Sequence | None
    hashes: tuple[int, ...]
    rank: int = 0
    """Rank whose cache changed."""


@dataclass(slots=True)
class Step:
    """The result of one forward pass."""

    seconds: float
    produced: list[tuple[Sequence, bytes]]
    """Bytes of the new tokens by sequence, in whole tokens."""
    prefilled: int
    """Number of uncached prompt tokens computed."""
    cache: list[CacheChange]
    """Cache changes in order; recorded only where the configuration enables KV events."""


@dataclass(slots=True)
class _Tally:
    """What one rank has generated."""

    generated: int = 0
    accepted: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0})


class EngineModel:
    """Requests with text on one engine of the step model, executed one step at a time."""

    def __init__(self, config: StepConfig, seed: int = 0) -> None:
        self.config = config
        self.garbled = False
        """Whether the weights are wrong, so that it generates nonsense."""
        self._engine = step_engine(config, random.Random(seed), on_ending=self._end)  # noqa: S311 - a simulation
        self.ranks = self._engine.ranks
        """The step model's engine of each rank; one where the profile has no ranks."""
        self._sequences: dict[int, Sequence] = {}
        self._keys = 0
        self._said: list[tuple[Sequence, bytes]] = []
        self._embedded = 0
        self._tallies = [_Tally() for _ in self.ranks]

    def count_embedded(self, tokens: int) -> None:
        """Add the tokens of inputs whose embeddings were answered, to the first rank; no step computes them."""
        self._embedded += tokens

    @property
    def busy(self) -> bool:
        """Whether a step would do any work."""
        return self._engine.busy

    @property
    def running(self) -> int:
        """Number of sequences in the batch."""
        return self._engine.running

    @property
    def waiting(self) -> int:
        """Number of queued sequences."""
        return self._engine.waiting

    def counters(self, rank: int = 0) -> Counters:
        """Return all counters of a rank at present."""
        engine, tally = self.ranks[rank].counters, self._tallies[rank]
        return Counters(
            prompt_tokens=engine.prompt_tokens + (0 if rank else self._embedded),
            cached_prompt_tokens=engine.cached_prompt_tokens,
            generation_tokens=tally.generated,
            prefix_queries=engine.prefix_queries,
            prefix_hits=engine.prefix_hits,
            preemptions=engine.preemptions,
            drafts=engine.drafts,
            accepted_tokens=tally.accepted,
            finished=dict(tally.finished),
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ValueError when it can never fit."""
        if sequence.max_total_tokens > self.config.capacity.max_model_len:
            raise ValueError("prompt and answer are longer than the model's context")
        if -(-sequence.max_total_tokens // self.config.block_size) > self.ranks[0].pool.blocks:
            raise ValueError("the sequence is larger than the KV cache")
        self._keys += 1
        block_hashes(bytes(sequence.content), self.config.block_size, sequence.salt, sequence.hashes)
        job = Job(
            self._keys,
            sequence.prompt_tokens,
            sequence.length,
            blocks=sequence.hashes,
            block_tokens=self.config.block_size,
            priority=sequence.priority,
            rank=sequence.rank,
        )
        self._engine.add(job, self._engine.clock)
        sequence.job = job
        self._sequences[job.key] = sequence

    def abort(self, sequence: Sequence) -> None:
        """Abort a queued or running sequence; a finished one is left unchanged."""
        self._drop(sequence, "abort")

    def stop(self, sequence: Sequence) -> None:
        """End a sequence whose text contains a stop string."""
        self._drop(sequence, "stop")

    def step(self) -> Step:
        """Run one forward pass over what fits; its duration includes noise."""
        engine = self._engine
        began, prefilled = engine.clock, engine.counters.prefilled_tokens
        events = engine.step()
        for sequence in self._sequences.values():
            if sequence.job is not None and self._generate(sequence, engine.produced(sequence.job)):
                engine.publish(sequence.job)
        events += engine.advance(engine.clock)  # what `publish` has stored
        cache = [
            CacheChange(
                self._sequences[event.job.key] if event.job is not None else None, event.hashes, event.rank
            )
            for event in events
            if event.hashes
        ]
        for event in events:
            if event.kind is EventKind.FINISHED and event.job is not None:
                del self._sequences[event.job.key]
        said, self._said = self._said, []
        return Step(engine.clock - began, said, engine.counters.prefilled_tokens - prefilled, cache)

    def forget_cache(self) -> None:
        """Clear the prefix cache (sleep, or an operator's reset)."""
        self._engine.forget_cache()

    def _generate(self, sequence: Sequence, tokens: int) -> bool:
        """Choose words up to `tokens` tokens of the answer; return whether they filled a block of the cache."""
        new = tokens - sequence.generated
        if new <= 0:
            return False
        words = GIBBERISH * new if self.garbled else b"".join([sequence.sampler.next() for _ in range(new)])
        sequence.content += words
        sequence.generated = tokens
        tally = self._tallies[self._rank_of(sequence)]
        tally.generated += new
        tally.accepted += new - 1
        self._said.append((sequence, words))
        size = self.config.block_size
        # the newest token enters the cache with the next step only
        filled = (sequence.total_tokens - 1) // size > (sequence.total_tokens - 1 - new) // size
        if filled:
            block_hashes(bytes(sequence.content), size, sequence.salt, sequence.hashes)
        return filled

    def _end(self, job: Job) -> None:
        """Record the end of a job; called by the step engine for each job that ends with this step."""
        sequence = self._sequences[job.key]
        self._generate(sequence, job.output_tokens)
        natural = sequence.natural_length
        reason = "stop" if natural is not None and natural <= sequence.max_tokens else "length"
        sequence.finish_reason = reason
        self._tallies[self._rank_of(sequence)].finished[reason] += 1

    def _rank_of(self, sequence: Sequence) -> int:
        """Return the rank that has a sequence in progress."""
        return self._engine.rank_of(sequence.job) if sequence.job is not None else 0

    def _drop(self, sequence: Sequence, reason: str) -> None:
        job = sequence.job
        if sequence.finish_reason is not None or job is None:
            return
        sequence.finish_reason = reason
        self._tallies[self._rank_of(sequence)].finished[reason] += 1
        del self._sequences[job.key]
        self._engine.abort(job, self._engine.clock)


def new_sequence(
    content: bytes,
    *,
    max_tokens: int,
    seed: int = 0,
    choice: int = 0,
    stops_by_itself: bool = True,
    salt: str = "",
    priority: int = 0,
    rank: int | None = None,
) -> Sequence:
    """Return a sequence for a prompt of whole tokens."""
    speaker = HashSampler(content, seed, choice)
    return Sequence(
        content=bytearray(content),
        prompt_tokens=count(content),
        max_tokens=max_tokens,
        natural_length=speaker.length() if stops_by_itself else None,
        sampler=speaker,
        salt=salt,
        priority=priority,
        rank=rank,
        counts_prompt=choice == 0,
    )
