"""What fairness costs: callers that never stop asking, the bound on the gap, and the gain over plain VTC."""

from dataclasses import replace

import pytest

from sim.pool.contract import Record, SimRequest
from sim.pool.fairness_load import Backlog, ClosedLoop
from sim.pool.fairness_runs import BASE, CASES, OURS, FairnessCase, gap_bound, most_in_flight, play, queues
from sim.pool.workloads.sessions import Tokens
from workers.catalog import load_catalog

MODEL = "llama-3.3-70b"
SMALL = Backlog(
    weights=(1.0, 2.0),
    concurrency=3,
    documents=4,
    document=Tokens(1_000, 2_000),
    question=Tokens(16, 64),
    answer=Tokens(8, 16),
)


def record(prompt: int, cached: int, answer: int, dispatched_at: float, finished_at: float) -> Record:
    made = Record(SimRequest(0, 0.0, "t", MODEL, prompt, answer), 0)
    made.dispatched_at, made.finished_at, made.cached_tokens = dispatched_at, finished_at, cached
    return made


def test_every_tenant_keeps_its_number_of_requests_open_until_the_end() -> None:
    loop = ClosedLoop(SMALL, MODEL, 10.0, 1)
    first = list(loop.initial_requests())
    assert [request.at for request in first] == sorted(request.at for request in first)
    assert {name: [each.tenant for each in first].count(name) for name in ("tenant-00", "tenant-01")} == {
        "tenant-00": 3,
        "tenant-01": 3,
    }
    following = loop.next_request(Record(first[1], 0), 5.0)
    assert following is not None
    assert (following.tenant, following.at, following.weight) == (first[1].tenant, 5.0, first[1].weight)
    assert following.key not in {each.key for each in first}
    assert loop.next_request(Record(following, 0), 10.0) is None


def test_what_a_tenant_asks_depends_on_the_seed_and_not_on_who_is_answered_first() -> None:
    def asked(order: tuple[int, int]) -> list[tuple[int, int]]:
        loop = ClosedLoop(SMALL, MODEL, 10.0, 7)
        first = list(loop.initial_requests())
        later = [loop.next_request(Record(first[index], 0), 1.0) for index in order]
        return sorted((each.prompt_tokens, each.output_tokens) for each in later if each is not None)

    assert asked((0, 1)) == asked((1, 0))


def test_two_requests_share_blocks_only_where_tenant_and_document_are_the_same() -> None:
    by_document: dict[str, SimRequest] = {}
    for request in ClosedLoop(replace(SMALL, concurrency=20), MODEL, 10.0, 3).initial_requests():
        other = by_document.setdefault(request.session, request)
        assert other is request or other.blocks[:15] == request.blocks[:15]
        assert all(
            not set(request.blocks) & set(each.blocks)
            for each in by_document.values()
            if each.session != request.session
        )
    assert len(by_document) > 4


def test_in_flight_is_what_ran_at_the_same_time() -> None:
    runs = [record(100, 40, 10, 0.0, 2.0), record(50, 0, 5, 1.0, 3.0), record(500, 400, 20, 3.0, 4.0)]
    assert most_in_flight(runs) == 125.0
    assert gap_bound(runs, 1_000.0, 0.5) == 2 * max(500, 2 * 125) / 0.5 + 1_000
    assert most_in_flight([]) == 0.0


def test_ours_serves_half_as_much_again_as_plain_vtc_and_stays_within_the_bound() -> None:
    scene, catalog = CASES[0], load_catalog()
    options = queues()
    plain, ours = (play(scene, options[name], catalog, MODEL, 45.0, 1) for name in (BASE, OURS))
    assert ours.tokens_per_s >= 1.5 * plain.tokens_per_s
    assert ours.hit_rate > plain.hit_rate
    assert ours.max_gap <= ours.bound
    assert ours.max_gap <= 1.5 * plain.max_gap


def test_the_same_seed_gives_the_same_figures_and_a_run_too_short_says_so() -> None:
    scene, catalog, options = FairnessCase("small", "", 1, SMALL), load_catalog(), queues()[OURS]
    assert play(scene, options, catalog, MODEL, 6.0, 1) == play(scene, options, catalog, MODEL, 6.0, 1)
    with pytest.raises(ValueError, match="too short"):
        play(scene, options, catalog, MODEL, 0.01, 1)
