"""The batch of a client: what leaves in one frame, and what never leaves."""

import msgspec

from scheduler.messages import ClientBatch, FromClient
from scheduler.outbox import PART_BYTES, Outbox
from scheduler.wire import Released
from tests.support.scheduling import request


def test_everything_since_the_last_flush_is_one_batch_that_survives_the_wire() -> None:
    outbox, asked, done = Outbox(), request("a", blocks=[1, 2**64 - 1]), Released("b", "host/r0", 3, 2, 1)
    outbox.place(asked)
    outbox.prefill_done("b", "host/r0")
    outbox.progress("c", "host/r1", 17)
    outbox.progress("d", "host/r1", 18)
    outbox.release(done)
    outbox.cancel("e")
    (batch,) = outbox.take()
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=FromClient)
    assert isinstance(decoded, ClientBatch)
    assert decoded == batch
    assert (decoded.requests, decoded.released, decoded.cancelled) == ([asked], [done], ["e"])
    assert decoded.progress is not None
    assert decoded.progress.output_tokens == [17, 18]
    assert outbox.take() == []


def test_a_request_that_is_cancelled_before_it_left_never_leaves() -> None:
    outbox = Outbox()
    outbox.place(request("a"))
    outbox.place(request("b"))
    outbox.cancel("a")
    (batch,) = outbox.take()
    assert ([each.request_id for each in batch.requests], batch.cancelled) == (["b"], [])


def test_a_batch_of_long_prompts_is_full_before_a_frame_is() -> None:
    outbox, count = Outbox(), 0
    while not outbox.full:
        outbox.place(request(f"r{count}", blocks=[2**64 - 1 - n for n in range(4096)]))
        count += 1
    (batch,) = outbox.take()
    assert len(msgspec.msgpack.encode(batch)) < PART_BYTES + 64 * 1024
    assert not outbox.full
