"""What is let through from peers: figures that nothing after them divides by zero with, and no more than that."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.autoscaling import LivePlanner
from scheduler.core.fleet import Fleet
from scheduler.limits import MAX_BYTES, MAX_TOKENS, clamp_client_message, valid_replicas
from scheduler.messages import Announce, AnnouncedRequest, ClientBatch
from scheduler.wire import HostView, QueueView
from tests.support.scheduling import beat, capacity, replica, request
from workers.catalog import load_catalog
from workers.wire import Capacity, ReplicaState, ReplicaStatus, Targets

CATALOG = load_catalog()
TINY = "penstock/tiny"
HOSTS = [HostView("host-of-agent-1", "agent-1", "local-cpu", "local", 0, 0.0)]

figures = st.sampled_from([0.0, 5e-324, 1e-300, 1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e9]) | st.floats(0.0, 4_000.0)
counts = st.sampled_from([0, 1, MAX_TOKENS]) | st.integers(0, 100_000)
capacities = st.builds(
    Capacity,
    prefill_tokens_per_s=figures,
    step_base_s=figures,
    step_per_seq_s=figures,
    step_per_kv_token_s=figures,
    step_experts_s=figures,
    expert_share=st.floats(0.0, 1.0),
    prefill_pair_s=figures,
    request_s=figures,
    accept_per_step=figures,
    max_num_seqs=counts,
    kv_cache_tokens=counts,
)


@given(capacities, st.builds(Targets, figures, figures), counts, counts)
def test_whatever_is_let_through_can_be_planned_with(
    able: Capacity, targets: Targets, running: int, waits: int
) -> None:
    statuses = [replica(model=TINY, capacity=able, targets=targets, running=running)]
    fleet, planner = Fleet(), LivePlanner(CATALOG)
    good, _ = valid_replicas(statuses)
    fleet.heartbeat(beat(*good), 0.0)
    for number in range(4):
        planner.count_arrival(TINY, MAX_TOKENS, 100)
        planner.count_release(TINY, "host/r0", MAX_TOKENS, MAX_TOKENS - 1)
        for each in fleet.replicas.values():
            each.load.unprefilled = waits
        planner.plan(fleet.replicas, HOSTS, [QueueView(TINY, waits)], 30.0 * number)


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ((3, 4), (3, 4)),
        ((5, 4), (4, 4)),
        ((-1, 4), (0, 4)),
        ((3, -4), (0, 0)),
        ((1 << 62, 1 << 62), (MAX_BYTES,) * 2),
    ],
)
def test_how_far_a_prefetch_is_lies_within_the_whole(stated: tuple[int, int], shown: tuple[int, int]) -> None:
    (good,), _ = valid_replicas([replica(weights_done_bytes=stated[0], weights_total_bytes=stated[1])])
    assert (good.weights_done_bytes, good.weights_total_bytes) == shown


@pytest.mark.parametrize(
    "status",
    [
        replica(capacity=msgspec.structs.replace(capacity(), accept_per_step=0.0)),
        replica(capacity=msgspec.structs.replace(capacity(), prefill_tokens_per_s=5e-324)),
        replica(capacity=msgspec.structs.replace(capacity(), step_base_s=math.nan)),
        replica(capacity=msgspec.structs.replace(capacity(), step_experts_s=math.inf)),
        replica(capacity=msgspec.structs.replace(capacity(), expert_share=1.5)),
        replica(capacity=msgspec.structs.replace(capacity(), dp_ranks=0)),
        replica(capacity=msgspec.structs.replace(capacity(), prefill_pair_s=math.nan)),
        replica(capacity=msgspec.structs.replace(capacity(), request_s=-1.0)),
        replica(targets=Targets(ttft_s=0.0)),
        replica(targets=Targets(ttft_s=5e-324)),
        replica(targets=Targets(tpot_s=5e-324)),
    ],
)
def test_a_figure_that_would_be_divided_by_is_refused_when_it_is_none(status: ReplicaStatus) -> None:
    assert valid_replicas([status, replica("host/r1")])[1] == ["host/r0"]


def test_a_replica_that_does_not_know_its_cache_yet_is_heard_and_planned_for_once_it_does() -> None:
    """An engine names the room of its cache when it has loaded."""
    fleet, planner = Fleet(), LivePlanner(CATALOG)
    loading = replica(model=TINY, kv=0, state=ReplicaState.LOADING)
    assert valid_replicas([loading]) == ([loading], [])
    fleet.heartbeat(beat(loading), 0.0)
    assert planner.plan(fleet.replicas, HOSTS, [], 0.0) is None
    fleet.heartbeat(beat(replica(model=TINY)), 2.0)
    planner.count_arrival(TINY, 100, 10)
    plan = planner.plan(fleet.replicas, HOSTS, [], 2.0)
    assert plan is not None
    assert [row.model for row in plan.models] == [TINY]


def test_one_that_does_not_know_its_cache_does_not_speak_for_those_that_do() -> None:
    fleet, planner = Fleet(), LivePlanner(CATALOG)
    fleet.heartbeat(beat(replica("host/a", model=TINY, kv=0), replica("host/b", model=TINY)), 0.0)
    for number in range(3):
        planner.count_arrival(TINY, 100, 10)
        plan = planner.plan(fleet.replicas, HOSTS, [], 30.0 * number)
    assert plan is not None
    assert plan.models[0].awake == 2


@pytest.mark.parametrize(("said", "taken"), [(-16, 0), (16, 16), (2**62, MAX_TOKENS)])
def test_tokens_a_block_are_bounded(said: int, taken: int) -> None:
    placed, queued = request("a", block_tokens=said), request("b", block_tokens=said)
    clamp_client_message(ClientBatch(requests=[placed]))
    clamp_client_message(Announce([], [AnnouncedRequest(queued, 0.0)]))
    assert (placed.block_tokens, queued.block_tokens) == (taken, taken)
