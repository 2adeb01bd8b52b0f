"""Recorded requests: what is noted, what is not, and how much of it is kept."""

import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Unavailable
from scheduler import request_trace
from scheduler.messages import PlaceRefused
from scheduler.request_trace import RequestTrace, TracedRequest, pack, sampled_blocks, unpack
from scheduler.wire import Placement, Released
from tests.support.scheduling import MODEL, request

CLIENT = "api-1"


def _placement(name: str) -> Placement:
    return Placement(name, "epoch", "host/r0", "http://127.0.0.1:1", MODEL, "boot")


def _book(**options) -> RequestTrace:
    return RequestTrace(wall_offset_s=1_000_000.0, **options)


def test_a_request_that_ran_has_its_times_and_the_engines_counts() -> None:
    trace = _book()
    trace.on_submit(CLIENT, request("r", tenant="acme", tier="priority"), 10.0, announced=False)
    trace.on_place(CLIENT, _placement("r"), "standard", 10.5)
    trace.on_first_token(CLIENT, "r", None, 11.0)
    trace.on_first_token(CLIENT, "r", None, 12.0)
    trace.on_release(CLIENT, Released("r", "host/r0", 120, 64, 33), None, 14.0)
    [traced] = trace.take_ended(15.0)[MODEL]
    assert (traced.at_ms, traced.queue_ms, traced.ttft_ms, traced.total_ms) == (
        1_000_010_000,
        500,
        1000,
        4000,
    )
    assert (traced.prompt_tokens, traced.cached_tokens, traced.output_tokens) == (120, 64, 33)
    assert (traced.tenant_id, traced.tier, traced.outcome) == ("acme", "priority", "done")
    assert trace.take_ended(16.0) == {}


def test_refused_cancelled_and_failed_ones_say_so_and_keep_their_estimates() -> None:
    trace = _book()
    for name in ("refused", "cancelled", "failed"):
        trace.on_submit(CLIENT, request(name), 1.0, announced=False)
    trace.on_refuse(CLIENT, "m", PlaceRefused("refused", 503, "queue_deadline", "no room", 1.0), 3.0)
    trace.on_cancel(CLIENT, "cancelled", 2.0)
    trace.on_place(CLIENT, _placement("failed"), "standard", 1.2)
    trace.on_release(CLIENT, Released("failed", "host/r0", failed=True), None, 2.0)
    trace.on_submit(CLIENT, request("failed", exclude=["host/r0"]), 2.1, announced=False)
    trace.on_release(CLIENT, Released("failed", "host/r1", 100, 0, 7), None, 3.0)
    found = {traced.outcome: traced for traced in trace.take_ended(5.0)[MODEL]}
    assert found.keys() == {"refused:queue_deadline", "cancelled", "failed", "done"}
    assert found["refused:queue_deadline"].queue_ms == 2000
    assert (found["cancelled"].queue_ms, found["cancelled"].ttft_ms) == (-1, -1)
    assert (found["cancelled"].prompt_tokens, found["cancelled"].output_tokens) == (100, 50)
    assert found["done"].at_ms == 1_000_002_100


def test_the_same_id_of_two_clients_is_two_requests() -> None:
    trace = _book()
    trace.on_submit("a", request("r", tenant="one"), 1.0, announced=False)
    trace.on_submit("b", request("r", tenant="two"), 1.0, announced=False)
    trace.on_release("b", Released("r", "host/r0"), None, 2.0)
    assert [traced.tenant_id for traced in trace.take_ended(3.0)[MODEL]] == ["two"]


def test_what_is_not_known_or_not_wanted_is_not_noted() -> None:
    trace = _book()
    trace.on_release(CLIENT, Released("placed by another scheduler", "host/r0"), None, 2.0)
    off = _book(recording=False)
    off.on_submit(CLIENT, request("r"), 1.0, announced=False)
    off.on_release(CLIENT, Released("r", "host/r0"), None, 2.0)
    assert trace.take_ended(3.0) == off.take_ended(3.0) == {}
    assert trace.dropped == off.dropped == 0


def test_memory_is_bounded_and_what_is_dropped_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_trace, "MAX_ACTIVE", 5)
    monkeypatch.setattr(request_trace, "MAX_ENDED", 3)
    trace = _book()
    for number in range(8):
        trace.on_submit(CLIENT, request(str(number)), 1.0, announced=False)
    for number in range(8):
        trace.on_release(CLIENT, Released(str(number), "host/r0"), None, 2.0)
    assert len(trace.take_ended(3.0)[MODEL]) == 3
    assert trace.dropped == 5


def test_a_request_under_way_does_not_keep_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_trace, "MAX_ACTIVE_HASHES", 20)
    trace = _book()
    asked = request("0", blocks=list(range(2**63, 2**63 + 64)), block_tokens=64)
    held_before = sys.getrefcount(asked), sys.getrefcount(asked.blocks), sys.getrefcount(asked.blocks[7])
    trace.on_submit(CLIENT, asked, 1.0, announced=False)
    held = sys.getrefcount(asked), sys.getrefcount(asked.blocks), sys.getrefcount(asked.blocks[7])
    assert held == held_before
    for number in range(1, 4):
        trace.on_submit(
            CLIENT, request(str(number), blocks=list(range(64)), block_tokens=64), 1.0, announced=False
        )
    assert trace.dropped == 2, "eight hashes of each: two fit into twenty"
    trace.on_release(CLIENT, Released("0", "host/r0"), None, 2.0)
    trace.on_submit(
        CLIENT, request("room again", blocks=list(range(64)), block_tokens=64), 3.0, announced=False
    )
    assert trace.dropped == 2
    assert trace.take_ended(4.0)[MODEL][0].blocks == list(range(2**63 + 7, 2**63 + 64, 8))
    assert trace.take_ended(4.0 + request_trace.ACTIVE_TTL_S) == {}
    assert trace._active_hashes == 0


def test_hashes_that_are_none_are_left_out() -> None:
    trace = _book()
    trace.on_submit(CLIENT, request("r", blocks=[-1], block_tokens=512), 1.0, announced=False)
    trace.on_release(CLIENT, Released("r", "host/r0"), None, 2.0)
    assert trace.take_ended(3.0)[MODEL][0].blocks == []


def test_hashes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_trace, "MAX_ENDED_HASHES", 10)
    trace = _book()
    for number in range(4):
        trace.on_submit(
            CLIENT, request(str(number), blocks=list(range(64)), block_tokens=64), 1.0, announced=False
        )
        trace.on_release(CLIENT, Released(str(number), "host/r0"), None, 2.0)
    assert [len(traced.blocks) for traced in trace.take_ended(3.0)[MODEL]] == [8]
    assert trace.dropped == 3


def test_a_request_whose_end_never_comes_is_forgotten() -> None:
    trace = _book()
    trace.on_submit(CLIENT, request("lost"), 0.0, announced=False)
    trace.on_submit(CLIENT, request("young"), 100.0, announced=False)
    assert trace.take_ended(request_trace.ACTIVE_TTL_S + 1) == {}
    trace.on_release(CLIENT, Released("lost", "host/r0"), None, request_trace.ACTIVE_TTL_S + 2)
    trace.on_release(CLIENT, Released("young", "host/r0"), None, request_trace.ACTIVE_TTL_S + 2)
    assert len(trace.take_ended(request_trace.ACTIVE_TTL_S + 3)[MODEL]) == 1
    assert trace.dropped == 1


@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=600, unique=True),
    st.integers(0, 600),
    st.sampled_from([0, 16, 64, 128, 512, 1024]),
)
def test_thinning_keeps_common_prefixes(blocks: list[int], shared: int, block_tokens: int) -> None:
    """The hashes that two prompts share are the leading ones after thinning as before."""
    other = [*blocks[:shared], *(block ^ 1 for block in blocks[shared:])]
    mine, size = sampled_blocks(blocks, block_tokens)
    theirs, _ = sampled_blocks(other, block_tokens)
    common = sum(a == b for a, b in zip(mine, theirs, strict=True))
    whole = min(shared, len(blocks)) * (block_tokens or request_trace.TEXT_BLOCK_TOKENS) // size
    assert common == min(whole, request_trace.MAX_HASHES)
    assert size >= min(request_trace.SAMPLE_TOKENS, block_tokens or request_trace.SAMPLE_TOKENS)


def test_batches_survive_packing_and_say_when_they_are_damaged() -> None:
    made = [TracedRequest(1, "t", "standard", 10, 5, 3, [2**64 - 1, 7], 512, 1, 2, 3, "done", 1.5)] * 3
    packed = pack(made)
    assert unpack(packed) == made
    for broken in (packed[:-3], b"x" + packed, pack([])[:2], packed[:10] + b"\x00" + packed[11:]):
        with pytest.raises(Unavailable, match="batch of recorded requests"):
            unpack(broken)


def test_a_shape_without_later_fields_can_still_be_read() -> None:
    old = msgspec.to_builtins(TracedRequest(1, "t", "standard", 10, 5, 3, [], 512, 1, 2, 3, "done"))[:-1]
    assert msgspec.convert(old, TracedRequest).weight == 1.0
