"""Generated traffic: kinds of sessions, each a conversation, an agent run or a single request.

A session's prompts consist of the tenant's shared prompt, optionally one of the tenant's documents, and the
session's own text, which grows by every answer and every further turn. When prompt and answer would exceed the
context, the session continues with an empty history, as a client that compacts its context does.

Runs are in a steady state from their first second: sessions that began earlier are in progress.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.pool.contract import SimRequest
from sim.pool.workloads.arrivals import Arrivals, Floats, Steady, poisson
from sim.pool.workloads.hashes import key_of, stream
from sim.pool.workloads.trace import check_run

BLOCK_TOKENS = 64
"""Number of tokens per prefix block of generated prompts."""
ANSWER_S_PER_TOKEN = 0.02
"""Seconds per answer token that the next turn waits; constant, because arrivals do not depend on the pool (open
loop).
"""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tokens:
    """A distribution of token counts: log-normal with this mean where `mean` is given, else uniform; both are
    bounded.
    """

    low: int
    high: int
    mean: float = 0.0
    sigma: float = 0.8

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Return `count` random values."""
        if not self.mean:
            return rng.integers(self.low, self.high, count, endpoint=True)
        values = rng.lognormal(np.log(self.mean) - self.sigma**2 / 2, self.sigma, count)
        return np.clip(values, self.low, self.high).astype(np.int64)


NONE = Tokens(0, 0)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of session."""

    name: str
    tenants: int
    opening: Tokens
    """Tokens that the first turn adds."""
    answer: Tokens
    share: float = 1.0
    """Share of the workload's requests that belong to this kind."""
    skew: float = 0.0
    """Zipf exponent of the tenants' shares."""
    tenant_name: str = "tenant"
    shared: Tokens = NONE
    """Tokens of a tenant's system prompt, tools and examples."""
    documents: int = 0
    """Number of documents per tenant, of which a session uses one; their popularity is Zipf with exponent 1."""
    document: Tokens = NONE
    turn: Tokens = NONE
    """Tokens that each further turn adds besides the previous answer."""
    turns: float = 1.0
    """Mean number of turns of a session (geometric distribution)."""
    max_turns: int = 1
    pause_s: float = 0.0
    """Mean seconds from the end of an answer to the next turn (exponential distribution)."""
    tier: str = "standard"

    @property
    def mean_turns(self) -> float:
        """Mean of the geometric distribution truncated at `max_turns`."""
        if self.turns <= 1:
            return 1.0
        return self.turns * (1 - (1 - 1 / self.turns) ** self.max_turns)

    @property
    def longest_s(self) -> float:
        """Seconds that a session may last, apart from very rare ones."""
        return (self.max_turns - 1) * (2 * self.pause_s + self.answer.high * ANSWER_S_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A generated workload."""

    about: str
    kinds: tuple[Kind, ...]
    arrivals: Arrivals = field(default_factory=Steady)
    models: tuple[str, ...] = ()
    """Models of a workload with several; empty = the models it is run with."""
    model_skew: float = 0.0
    """Zipf exponent of the models' shares."""


@dataclass(slots=True)
class _Turns:
    """All turns of a kind's sessions, session by session."""

    at: Floats
    session: Ints
    last: NDArray[np.bool_]
    adds: Ints
    answers: Ints
    tenant: Ints
    model: Ints
    document: Ints
    """Index of each session's document; `tenant` and `model` have one entry per session too."""
    shared_tokens: Ints
    """Tokens of each tenant's shared prompt."""
    document_tokens: Ints
    """Tokens of each tenant's documents, tenant by tenant."""


class Sessions:
    """A generated workload that can be run."""

    def __init__(self, name: str, recipe: Recipe, models: Sequence[str], context: int) -> None:
        self.name = name
        self.models = tuple(models)
        self._recipe = recipe
        self._context = context

    def requests(self, *, rate: float, seconds: float, seed: int) -> Iterator[SimRequest]:
        """Yield the requests; see Workload.requests."""
        check_run(rate, seconds)
        rng = np.random.default_rng(seed)
        kinds = self._recipe.kinds
        turns = [self._turns(kind, rate * kind.share, seconds, rng) for kind in kinds]
        writers = [
            _Writer(kind, drawn, self.models, self._context) for kind, drawn in zip(kinds, turns, strict=True)
        ]
        at = np.concatenate([drawn.at for drawn in turns])
        which = np.concatenate([np.full(len(drawn.at), number) for number, drawn in enumerate(turns)])
        local = np.concatenate([np.arange(len(drawn.at)) for drawn in turns])
        order = np.argsort(at, kind="stable")
        order = order[at[order] < seconds]
        key = 0
        for number, index in zip(which[order].tolist(), local[order].tolist(), strict=True):
            if (request := writers[number].write(index, key)) is not None:
                yield request
                key += 1

    def _turns(self, kind: Kind, per_s: float, seconds: float, rng: np.random.Generator) -> _Turns:
        steps = self._recipe.arrivals.steps(rng, -kind.longest_s, seconds)
        starts, bursts = poisson(steps, per_s / kind.mean_turns, rng)
        counts = np.minimum(rng.geometric(1 / max(kind.turns, 1.0), len(starts)), kind.max_turns)
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        firsts = ends - counts
        session = np.repeat(np.arange(len(starts)), counts)
        is_first = np.zeros(total, dtype=bool)
        is_first[firsts] = True
        answers = np.minimum(kind.answer.draw(rng, total), self._context // 8)
        pauses = rng.exponential(kind.pause_s or 1.0, total) * (kind.pause_s > 0)
        waits = np.where(is_first, 0.0, pauses + np.roll(answers, 1) * ANSWER_S_PER_TOKEN)
        passed = np.cumsum(waits)
        at = starts[session] + passed - passed[firsts][session] if total else passed
        tenant = rng.choice(kind.tenants, len(starts), p=_zipf(kind.tenants, kind.skew))
        in_burst = bursts >= 0
        tenant[in_burst] = rng.permutation(kind.tenants)[bursts[in_burst] % kind.tenants]
        last = np.zeros(total, dtype=bool)
        last[ends - 1] = True
        documents = max(1, kind.documents)
        return _Turns(
            at,
            session,
            last,
            np.where(is_first, kind.opening.draw(rng, total), kind.turn.draw(rng, total)),
            answers,
            tenant,
            rng.choice(len(self.models), len(starts), p=_zipf(len(self.models), self._recipe.model_skew)),
            rng.choice(documents, len(starts), p=_zipf(documents, 1.0)),
            np.minimum(kind.shared.draw(rng, kind.tenants), self._context // 4),
            np.minimum(kind.document.draw(rng, kind.tenants * documents), self._context * 3 // 8),
        )


class _Writer:
    """Turns one kind's turns, in order of time, into requests, and tracks the history of each open session."""

    def __init__(self, kind: Kind, turns: _Turns, models: Sequence[str], context: int) -> None:
        self._kind, self._turns, self._models, self._context = kind, turns, models, context
        self._open: dict[int, tuple[int, int]] = {}
        """Tokens of history and number of compactions, by session."""
        self._shared: dict[tuple[int, int], tuple[int, ...]] = {}
        """Block hashes of a tenant's shared prompt, by tenant and model."""

    def write(self, index: int, key: int) -> SimRequest | None:
        """Return the request of a turn; None for a turn before the run, which only adds to the history."""
        turns, kind = self._turns, self._kind
        session = int(turns.session[index])
        tenant, document = int(turns.tenant[session]), int(turns.document[session])
        shared = int(turns.shared_tokens[tenant])
        base = shared
        if kind.documents:
            base += int(turns.document_tokens[tenant * kind.documents + document])
        add, answer, last = int(turns.adds[index]), int(turns.answers[index]), bool(turns.last[index])
        history, compactions = self._open.pop(session, (0, 0))
        if history and base + history + add + answer > self._context:
            history, compactions = 0, compactions + 1
        prompt = max(1, base + history + min(add, self._context - base - answer))
        if not last:
            self._open[session] = (prompt - base + answer, compactions)
        at = float(turns.at[index])
        if at < 0:
            return None
        model, name = int(turns.model[session]), f"{kind.tenant_name}-{tenant:02}"
        salt = (name, kind.name, model)
        whole, after = prompt // BLOCK_TOKENS, (prompt + answer) // BLOCK_TOKENS
        in_shared, in_base = shared // BLOCK_TOKENS, base // BLOCK_TOKENS
        own = key_of(*salt, "session", session, compactions)
        blocks = self._shared_blocks(tenant, model, in_shared, salt)[:whole]
        if in_base > in_shared:
            blocks += stream(key_of(*salt, "document", document), in_shared, min(in_base, whole))
        return SimRequest(
            key,
            at,
            name,
            self._models[model],
            prompt,
            answer,
            blocks + stream(own, in_base, whole),
            BLOCK_TOKENS,
            () if last else stream(own, max(whole, in_base), after),
            session=f"{name}/{kind.name}/{session}",
            tier=kind.tier,
        )

    def _shared_blocks(
        self, tenant: int, model: int, count: int, salt: tuple[str | int, ...]
    ) -> tuple[int, ...]:
        known = self._shared.get((tenant, model))
        if known is None:
            known = self._shared[tenant, model] = stream(key_of(*salt, "shared"), 0, count)
        return known


def _zipf(count: int, exponent: float) -> Floats:
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    shares: Floats = weights / weights.sum()
    return shares
