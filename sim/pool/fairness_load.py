"""Closed-loop tenants: each keeps a number of requests open and sends the next one when one ends.

The cost of fairness is visible only where every tenant is backlogged and the caches cannot hold all tenants'
documents. Each tenant has documents, and each request is one document with a question.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.pool.contract import Record, SimRequest
from sim.pool.workloads.hashes import key_of, stream
from sim.pool.workloads.sessions import BLOCK_TOKENS, Tokens

SPREAD_S = 1.0
"""Seconds within which the first requests arrive, so that they do not all arrive at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Each tenant's requests and their concurrency."""

    weights: tuple[float, ...]
    """Weight of each tenant; one entry per tenant."""
    concurrency: int
    """Number of requests that every tenant keeps open."""
    documents: int
    """Number of documents per tenant, equally popular."""
    document: Tokens
    question: Tokens
    answer: Tokens


class ClosedLoop:
    """The callers of one run: `initial_requests` is its workload, `next_request` its `RunConfig.next_request`.

    A tenant's n-th request depends on the seed alone, regardless of the order of the answers.
    """

    def __init__(self, backlog: Backlog, model: str, seconds: float, seed: int) -> None:
        self._backlog = backlog
        self._model = model
        self._seconds = seconds
        self._keys = 0
        self._tenants = {
            f"tenant-{number:02}": _Tenant(backlog, weight, np.random.default_rng((seed, number)))
            for number, weight in enumerate(backlog.weights)
        }

    def initial_requests(self) -> Iterator[SimRequest]:
        """Yield the requests that are open from the start, spread over the tenants."""
        count = self._backlog.concurrency * len(self._tenants)
        for number in range(count):
            name = list(self._tenants)[number % len(self._tenants)]
            yield self._request(name, SPREAD_S * number / count)

    def next_request(self, record: Record, now: float) -> SimRequest | None:
        """Return the caller's next request when one ends; None after the run's seconds."""
        return self._request(record.request.tenant, now) if now < self._seconds else None

    def _request(self, name: str, at: float) -> SimRequest:
        tenant, key = self._tenants[name], self._keys
        self._keys += 1
        document, prompt, answer = tenant.draw()
        blocks = stream(key_of(name, "document", document), 0, tenant.sizes[document] // BLOCK_TOKENS)
        own = stream(key_of(name, "question", key), len(blocks), prompt // BLOCK_TOKENS)
        return SimRequest(
            key,
            at,
            name,
            self._model,
            prompt,
            answer,
            blocks + own,
            BLOCK_TOKENS,
            session=f"{name}/{document}",
            weight=tenant.weight,
        )


class _Tenant:
    """One tenant's documents and random generator."""

    def __init__(self, backlog: Backlog, weight: float, rng: np.random.Generator) -> None:
        self.weight = weight
        self._backlog = backlog
        self._rng = rng
        self.sizes: list[int] = backlog.document.draw(rng, backlog.documents).tolist()

    def draw(self) -> tuple[int, int, int]:
        """Return the next request: document, prompt tokens, answer tokens."""
        document = int(self._rng.integers(self._backlog.documents))
        question = int(self._backlog.question.draw(self._rng, 1)[0])
        answer = int(self._backlog.answer.draw(self._rng, 1)[0])
        return document, self.sizes[document] + question, answer
