"""Scenarios of overload: greedy tenants, backlogs that cannot be served, unbounded prefixes."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sim.pool.contract import Dispatch, Record, ReplicaView, RunResult
from sim.pool.estimates import Estimates
from sim.pool.network import stream as generator
from sim.pool.pool import ReplicaSpec
from sim.pool.registry import Policy, Variant
from sim.pool.scenarios.figures import arrived, of_tenant, ttft
from sim.pool.scenarios.scenario import Finding, RunOutcome, Scenario, Setup, at_least, at_most
from sim.pool.scenarios.traffic import BLOCK, CAPACITY, make_request, merged, poisson, pool, rng_of
from sim.pool.settings import RoutingSetup, RunConfig

# A greedy tenant


def _greedy(seed: int) -> Setup:
    rng = rng_of("greedy-tenant", seed)
    steady = [
        make_request(
            at, f"steady-{rng.randrange(12):02}", rng.randrange(400, 1_600), rng.randrange(60, 240), number
        )
        for number, at in enumerate(poisson(rng, 4.0, 0.0, 60.0))
    ]
    greedy = [
        make_request(at, "greedy", rng.randrange(2_000, 6_000), rng.randrange(60, 240), number)
        for number, at in enumerate(poisson(rng, 9.0, 10.0, 40.0))
    ]
    return Setup(pool(4), merged(steady, greedy), RunConfig(seed=seed))


def _greedy_check(ran: RunOutcome) -> list[Finding]:
    steady = arrived(of_tenant(ran.result.records, "steady"), 10.0, 60.0)
    return [
        at_most("the others' TTFT p50", ttft(steady, 0.5), 2.0, "s"),
        at_most("the others' TTFT p99", ttft(steady, 0.99), 5.0, "s"),
        at_most("without an answer", ran.unanswered, 0),
    ]


# More than can ever be served

_DEADLINE_S = 10.0


def _hopeless(seed: int) -> Setup:
    rng = rng_of("hopeless-backlog", seed)
    requests = [
        make_request(at, f"t{number % 8}", rng.randrange(2_000, 6_000), rng.randrange(60, 240), number)
        for number, at in enumerate(poisson(rng, 15.0, 0.0, 60.0))
    ]
    config = RunConfig(seed=seed, drain_s=300.0)
    return Setup(pool(4), merged(requests), config, Variant(admission=True, deadline_s=_DEADLINE_S))


def _hopeless_check(ran: RunOutcome) -> list[Finding]:
    records = arrived(ran.result.records, 15.0, 60.0)
    answered = [record for record in records if record.finished_at >= 0]
    kept = [record for record in answered if record.ttft_s <= _DEADLINE_S + 2.0]
    refused = [record for record in records if record.refused]
    tokens = sum(record.request.prompt_tokens for record in kept)
    possible = 45.0 * 4 * CAPACITY.prefill_tokens_per_s
    honest = sum(record.retry_after_s >= 1.0 for record in refused) / len(refused) if refused else 0.0
    return [
        at_least(
            "prompts answered within the deadline, of what 4 replicas can prefill",
            tokens / possible,
            0.6,
            "%",
        ),
        at_least("of the answers, within the deadline", len(kept) / max(1, len(answered)), 0.98, "%"),
        at_most("refused only at the deadline", _late_refusals(refused), 0.25, "%"),
        at_least("refusals that say when to come back", honest, 1.0, "%"),
    ]


def _late_refusals(refused: Sequence[Record]) -> float:
    late = sum(record.refused == "queue_deadline" for record in refused)
    return late / len(refused) if refused else 0.0


# Prefixes without end


@runtime_checkable
class CountsPrefixEntries(Protocol):
    """A routing system that reports the size of its prefix knowledge."""

    def prefix_entries(self) -> int:
        """Return the number of prefix blocks held, or of sampled hashes that stand for several blocks."""


_REQUESTS, _BLOCKS = 1_000, 2_000
_EVERY_S = 0.5


def _trie(seed: int) -> Setup:
    rng = rng_of("unbounded-trie", seed)
    tokens = _BLOCKS * BLOCK
    requests = [
        make_request(
            _EVERY_S * number,
            f"t{rng.randrange(400)}",
            tokens,
            10,
            number,
            shared="same",
            shared_tokens=2_048,
        )
        for number in range(_REQUESTS)
    ]
    return Setup(pool(4), merged(requests), RunConfig(seed=seed))


def _trie_play(setup: Setup, policy: Policy) -> RunOutcome:
    """Run the routing system without engines: each request is placed and completed before the next one arrives."""
    seed = setup.config.seed
    routing = policy.make(RoutingSetup(generator(seed, "routing"), 1, Estimates(seed)))
    records = []
    for request in setup.requests:
        now = request.at
        views = [_idle_view(spec, now) for spec in setup.pool]
        routing.metrics(views, now)
        routing.arrive(request, 0, now)
        record = Record(request, 0)
        records.append(record)
        for decision in routing.decide(now):
            if isinstance(decision, Dispatch):
                record.replica_id = decision.replica_id
                record.first_token_at = record.finished_at = now + 0.4 * _EVERY_S
                routing.first_token(request.key, decision.replica_id, record.first_token_at)
                routing.finished(
                    request.key, decision.replica_id, prompt_tokens=request.prompt_tokens, cached_tokens=0,
                    output_tokens=request.output_tokens, failed=False, now=record.finished_at,
                )  # fmt: skip
    result = RunResult(policy.name, "scenario", 1.0, seed, records, setup.requests[-1].at, 0.0)
    return RunOutcome(setup, result, routing)


def _idle_view(spec: ReplicaSpec, now: float) -> ReplicaView:
    name = spec.replica_id
    return ReplicaView(name, spec.model, name, spec.state, spec.capacity, spec.targets, 0, 0, 0.0, now)


def _trie_check(ran: RunOutcome) -> list[Finding]:
    held = ran.routing.prefix_entries() if isinstance(ran.routing, CountsPrefixEntries) else 0
    cached = sum(spec.capacity.kv_cache_tokens // BLOCK for spec in ran.setup.pool)
    return [
        at_most("prefixes remembered after 2,000,000 distinct blocks", held, cached),
        at_most("without an answer", ran.unanswered, 0),
    ]


OVERLOAD = (
    Scenario(
        "greedy-tenant",
        "ours",
        "One tenant asks for more than the whole pool can do, for 30 s, in large prompts. Routers without a fair queue "
        "hand its requests to the engines first come first served, and all others wait behind them.",
        _greedy,
        _greedy_check,
        ("fifo", "least_request", "llmd_sticky"),
    ),
    Scenario(
        "hopeless-backlog",
        "ours",
        "For a minute twice as much arrives as the pool can prefill, and no request may wait longer than 10 s. Without "
        "refusals the backlog grows until every answer is too late; a queue with a deadline alone lets all requests "
        "wait it out. What cannot be served in time is to be refused at once, saying when to come back.",
        _hopeless,
        _hopeless_check,
        ("fifo", "least_request"),
    ),
    Scenario(
        "unbounded-trie",
        "vllm-project/production-stack #687",
        "The prefix-aware router's trie had no bound; two hours of long documents filled 16 GB and the router was "
        "killed. Here 1,000 prompts of 2,000 blocks pass, hardly any alike, and what is remembered may not exceed what "
        "the engines themselves can cache.",
        _trie,
        _trie_check,
        ("longest_match",),
        _trie_play,
    ),
)
