"""Replays: what is taken from the record, what pools answer, and what it costs."""

from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from core.errors import InvalidRequest
from scheduler.request_trace import TracedRequest
from sim.pool import replay as replays
from sim.pool.replay import Plan, export, measured, profile_on, replay, rows_of
from sim.pool.workloads.mooncake import Row, read_rows
from sim.pool.workloads.registry import workload
from workers.catalog import load_catalog

MODEL = "llama-3.3-70b"
KIND = "gpu-h100x8-640gb"
CATALOG = load_catalog()


def _traced(at_ms: int, outcome: str = "done", **fields) -> TracedRequest:
    made = TracedRequest(
        at_ms, "acme", "standard", 2048, 1024, 101, [1, 2, 3, at_ms], 512, 5, 500, 2500, outcome
    )  # fmt: skip
    return msgspec.structs.replace(made, **fields)


def _rows(count: int = 200, gap_ms: int = 250) -> list[Row]:
    return rows_of((MODEL, _traced(1_000_000 + number * gap_ms)) for number in range(count))


def test_rows_are_in_order_and_an_attempt_that_failed_is_not_counted_twice() -> None:
    rows = rows_of([(MODEL, _traced(5_000)), ("b", _traced(3_000, "failed")), ("b", _traced(4_000))])
    assert [(row.timestamp, row.model) for row in rows] == [(0, "b"), (1_000, MODEL)]


def test_hashes_never_cover_more_than_the_prompt() -> None:
    [row] = rows_of([(MODEL, _traced(0, prompt_tokens=1100))])
    assert list(row.hash_ids) == [1, 2]


def test_what_was_measured_is_told() -> None:
    requests = [
        _traced(number, ttft_ms=number * 100, total_ms=number * 100 + 1000) for number in range(1, 101)
    ]
    requests += [_traced(200, "refused:tenant_share", ttft_ms=-1), _traced(201, "cancelled", ttft_ms=-1)]
    real = measured(rows_of((MODEL, request) for request in requests))
    assert real is not None
    assert (real.requests, real.refused) == (102, 1)
    assert real.ttft_p50_s == pytest.approx(5.05)
    assert real.ttft_p95_s == pytest.approx(9.505)
    assert real.tpot_p50_s == pytest.approx(0.01)
    assert real.hit_rate == pytest.approx(0.5)
    assert (real.gpu_hours, real.usd_per_mtok) == (None, None)
    assert measured([Row(0, 10, 1)]) is None, "a trace of others measures nothing"


def test_an_export_is_read_back_and_is_a_workload(tmp_path: Path) -> None:
    rows = _rows(20)
    path = tmp_path / "trace.jsonl"
    export(rows, path)
    assert read_rows(path) == rows
    export(read_rows(path), tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text().replace(".0", "") == path.read_text().replace(".0", "")
    source = workload(str(path))
    assert source.models == (MODEL,)
    [first, *_] = source.requests(rate=1.0, seconds=20.0, seed=1)
    assert (first.tenant, len(first.blocks)) == ("acme", 4)
    with pytest.raises(InvalidRequest, match="cannot be written"):
        export(rows, tmp_path / "no" / "such" / "place")


def test_more_hosts_wait_less_and_cost_more() -> None:
    rows = _rows(400, gap_ms=20)
    one, four = (replay(rows, CATALOG, Plan(hosts)) for hosts in (1, 4))
    assert one.figures.requests == four.figures.requests == 400
    assert one.figures.ttft_p95_s > four.figures.ttft_p95_s
    assert one.figures.gpu_hours < four.figures.gpu_hours
    assert Decimal(one.figures.usd_per_mtok) < Decimal(four.figures.usd_per_mtok)
    assert one.host_kinds == {MODEL: KIND}
    assert four.replicas == 4 * one.replicas


def test_shared_prefixes_are_found_again() -> None:
    shared = replay(_rows(), CATALOG, Plan(1)).figures
    apart = rows_of((MODEL, _traced(number * 250, blocks=[number])) for number in range(200))
    assert shared.hit_rate > 0.5
    assert replay(apart, CATALOG, Plan(1)).figures.hit_rate == 0.0


def test_cost_is_the_hosts_price_for_the_time_over_the_tokens() -> None:
    answer = replay(_rows(), CATALOG, Plan(2))
    gpus = CATALOG.hosts[KIND].gpus
    per_hour = Decimal(CATALOG.hosts[KIND].price.usd_per_hour)
    hours = Decimal(answer.figures.gpu_hours) / gpus
    tokens = Decimal(200 * (2048 + 101)) / 1_000_000
    assert Decimal(answer.figures.usd_per_mtok) == pytest.approx(
        per_hour * hours / tokens, rel=Decimal("0.01")
    )


def test_a_host_without_a_price_costs_what_nobody_knows() -> None:
    rows = rows_of(("deepseek-v3.2", _traced(number * 250)) for number in range(20))
    assert replay(rows, CATALOG, Plan(1, "gb200-nvl4")).figures.usd_per_mtok is None


def test_more_traffic_is_the_same_in_less_time() -> None:
    plain, dense = (replay(_rows(), CATALOG, Plan(1, scale=scale)).figures for scale in (1.0, 4.0))
    assert plain.requests == dense.requests
    assert dense.gpu_hours < plain.gpu_hours


def test_the_warm_up_is_left_out() -> None:
    assert replay(_rows(), CATALOG, Plan(1, warmup_s=25.0)).figures.requests == pytest.approx(100, abs=2)


def test_blocks_of_any_size_fit_the_engines() -> None:
    rows = rows_of((MODEL, _traced(number * 250, block_tokens=528)) for number in range(50))
    assert replay(rows, CATALOG, Plan(1)).figures.hit_rate > 0.3
    tiny = rows_of((MODEL, _traced(number * 250, block_tokens=7)) for number in range(50))
    assert replay(tiny, CATALOG, Plan(1)).figures.hit_rate == 0.0


def test_a_pool_that_is_too_small_refuses() -> None:
    figures = replay(_rows(600, gap_ms=2), CATALOG, Plan(1, deadline_s=0.5)).figures
    assert 0 < figures.refused < 600


def test_errors_name_what_there_is() -> None:
    with pytest.raises(InvalidRequest, match=r"no host of kind 'abacus'; it has: .*gpu-h100x8"):
        profile_on(CATALOG, MODEL, "abacus")
    with pytest.raises(InvalidRequest, match=f"no profile for local-cpu; it has for: {KIND}"):
        profile_on(CATALOG, MODEL, "local-cpu")
    with pytest.raises(InvalidRequest, match="no model 'nobody'"):
        replay(rows_of([("nobody", _traced(0))]), CATALOG, Plan(1))
    with pytest.raises(InvalidRequest, match="no policy"):
        replay(_rows(2), CATALOG, Plan(1, policy="nobody"))


def test_a_replay_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "MAX_REQUESTS", 10)
    with pytest.raises(InvalidRequest, match="more than 10 requests were recorded"):
        _rows(11)
