"""Inside one tenant requests wait about as long as in order of arrival, in a pool of half as many slots as callers."""

import dataclasses

import msgspec
import numpy as np
import pytest

from scheduler.core.rules import AdmissionRules, SchedulerConfig, fifo
from sim.pool.fairness_load import Backlog, ClosedLoop
from sim.pool.penstock_routing import PenstockOptions, penstock
from sim.pool.pool import pool_of
from sim.pool.run import simulate
from sim.pool.settings import RunConfig
from sim.pool.workloads.sessions import Tokens
from workers.catalog import load_catalog

SECONDS = 40.0
MODEL = "llama-3.3-70b"


def ttft_percentiles(rules: SchedulerConfig, documents: int, document: Tokens, answer: int) -> np.ndarray:
    """The median and the 99th percentile of the TTFT of 128 callers on one replica of 64 slots, in seconds."""
    (spec, *_) = pool_of(load_catalog(), [MODEL], 1)
    capacity = msgspec.structs.replace(spec.capacity, max_num_seqs=64)
    pool = [dataclasses.replace(spec, engine=dataclasses.replace(spec.engine, capacity=capacity))]
    backlog = Backlog(
        weights=(1.0,), concurrency=128, documents=documents, document=document, question=Tokens(32, 32),
        answer=Tokens(answer, answer),
    )  # fmt: skip
    callers = ClosedLoop(backlog, MODEL, SECONDS, 1)
    options = PenstockOptions(
        deadline_s=3600.0,
        state=dataclasses.replace(rules, admission=AdmissionRules(enabled=False)),
    )
    config = RunConfig(seed=1, warmup_s=0.0, drain_s=60.0, next_request=callers.next_request)
    records = simulate(penstock(options), callers.initial_requests(), pool, config, workload="closed").records
    return np.percentile([record.ttft_s for record in records if record.request.at < SECONDS], [50, 99])


@pytest.mark.parametrize(("answer", "spread"), [(40, 1.5), (100, 1.3), (400, 1.3)])
def test_equal_requests_of_one_tenant_wait_as_long_as_in_order_of_arrival(answer: int, spread: float) -> None:
    """From the first request on: neither the burst at the start nor the constant queue afterwards is an overload.

    The fixed time of a request before its first token is the same for all; beside answers of 40 tokens it keeps slots
    empty for so long that waits spread further in order of arrival, too.
    """
    ours = ttft_percentiles(SchedulerConfig(), 1, Tokens(64, 64), answer)
    in_order = ttft_percentiles(fifo(), 1, Tokens(64, 64), answer)
    assert ours == pytest.approx(in_order, rel=0.02)
    assert ours[1] <= spread * ours[0]


def test_shared_prefixes_delay_no_request_much_longer() -> None:
    ours = ttft_percentiles(SchedulerConfig(), 32, Tokens(1000, 8000), 40)
    in_order = ttft_percentiles(fifo(), 32, Tokens(1000, 8000), 40)
    assert ours[0] <= 1.1 * in_order[0]
    assert ours[1] <= 1.3 * in_order[1]
