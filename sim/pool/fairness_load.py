"""Tenants that always want more: each keeps a number of requests open, and asks its next when one is over.

What fairness costs shows only where every tenant is backlogged and caches cannot hold what all of them ask about: a
tenant has documents, and each of its requests is one document with a question about it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sim.pool.contract import Record, SimRequest
from sim.pool.workloads.hashes import key_of, stream
from sim.pool.workloads.sessions import BLOCK_TOKENS, Tokens

SPREAD_S = 1.0
"""The first requests come within this, so that they do not all come at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What every tenant asks, and how much of it at once."""

    weights: tuple[float, ...]
    """One tenant each."""
    concurrency: int
    """Requests that every tenant keeps open."""
    documents: int
    """Of each tenant, equally popular."""
    document: Tokens
    question: Tokens
    answer: Tokens


class ClosedLoop:
    """The callers of one run: `first` is its workload, `following` its `RunConfig.next_request`.

    What a tenant asks n-th depends on the seed alone, whatever the order in which answers come.
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
        """What is open from the start, spread over the tenants."""
        count = self._backlog.concurrency * len(self._tenants)
        for number in range(count):
            name = list(self._tenants)[number % len(self._tenants)]
            yield self._request(name, SPREAD_S * number / count)

    def next_request(self, record: Record, now: float) -> SimRequest | None:
        """The caller of a request that is over asks again at once; none after the run's seconds."""
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
    """One tenant's documents, and its generator."""

    def __init__(self, backlog: Backlog, weight: float, rng: np.random.Generator) -> None:
        self.weight = weight
        self._backlog = backlog
        self._rng = rng
        self.sizes: list[int] = backlog.document.draw(rng, backlog.documents).tolist()

    def draw(self) -> tuple[int, int, int]:
        """The next request: document, prompt tokens, answer tokens."""
        document = int(self._rng.integers(self._backlog.documents))
        question = int(self._backlog.question.draw(self._rng, 1)[0])
        answer = int(self._backlog.answer.draw(self._rng, 1)[0])
        return document, self.sizes[document] + question, answer
