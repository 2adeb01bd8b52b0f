"""The formula of a step's time: its terms one by one, against values worked out beside it."""

import math

import msgspec
import pytest

from workers.step_time import (
    context_pairs,
    decode_step_s,
    drafts_of,
    experts_touched,
    own_prefill_s,
    prefill_s,
    sequence_s,
)
from workers.wire import Capacity, basis_of

DENSE = Capacity(10_000.0, 0.008, 0.0004, 1e-8)
MIXTURE = msgspec.structs.replace(DENSE, step_experts_s=0.012, expert_share=8 / 256, prefill_pair_s=1e-9)


def test_a_dense_step_is_a_line() -> None:
    assert decode_step_s(DENSE, 10, 100_000) == pytest.approx(0.008 + 0.004 + 0.001)
    assert sequence_s(DENSE, 50) == pytest.approx(0.0004)


def test_experts_are_read_as_tokens_need_them() -> None:
    assert decode_step_s(MIXTURE, 0, 0) == pytest.approx(0.008)
    assert decode_step_s(MIXTURE, 1, 0) == pytest.approx(0.008 + 0.0004 + 0.012 / 32)
    two = 1 - (248 / 256) ** 2
    assert decode_step_s(MIXTURE, 2, 0) == pytest.approx(0.008 + 0.0008 + 0.012 * two)
    assert decode_step_s(MIXTURE, 2000, 0) == pytest.approx(0.008 + 0.8 + 0.012)
    assert sequence_s(MIXTURE, 1) == pytest.approx(0.0004 + 0.012 * (two - 1 / 32))


def test_drafts_use_experts_as_sequences_do() -> None:
    drafting = msgspec.structs.replace(MIXTURE, accept_per_step=1.9, draft_tokens=1)
    more = decode_step_s(drafting, 4, 0) - decode_step_s(DENSE, 4, 0)
    assert more == pytest.approx(0.012 * (1 - (248 / 256) ** 8))
    assert drafts_of(Capacity(1, 1, 1, accept_per_step=1.9)) == 1
    assert drafts_of(Capacity(1, 1, 1, accept_per_step=1.9, draft_tokens=3)) == 3
    assert drafts_of(DENSE) == 0


def test_share_of_experts_that_a_batch_touches() -> None:
    assert experts_touched(8 / 256, 0) == 0
    assert experts_touched(8 / 256, 1) == pytest.approx(8 / 256)
    assert experts_touched(8 / 256, 1000) == pytest.approx(1, abs=1e-6)


def test_attention_over_a_cached_context_costs_as_much_as_over_a_new_one() -> None:
    """Two halves of a prompt, one after the other, take as long as the whole."""
    whole = prefill_s(MIXTURE, 8_000, 8_000)
    assert whole == pytest.approx(0.8 + 1e-9 * 8_000**2 / 2)
    assert prefill_s(MIXTURE, 4_000, 4_000) + prefill_s(MIXTURE, 4_000, 8_000) == pytest.approx(whole)
    assert prefill_s(MIXTURE, 8_000, 72_000) == pytest.approx(0.8 + 1e-9 * (8_000 * 64_000 + 8_000**2 / 2))
    assert context_pairs(0, 5_000) == 0


def test_a_request_alone_pays_what_is_beside_the_steps() -> None:
    slow = msgspec.structs.replace(DENSE, request_s=0.2)
    assert own_prefill_s(slow, 1_000) == pytest.approx(0.3)
    assert decode_step_s(slow, 1, 0) == decode_step_s(DENSE, 1, 0)


def test_an_agent_of_before_and_one_of_after_understand_each_other() -> None:
    """Fields come by name: missing ones have no effect, unknown ones are ignored."""
    old = msgspec.msgpack.encode(
        {
            "prefill_tokens_per_s": 1e4,
            "step_base_s": 0.01,
            "step_per_seq_s": 0.0,
            "roofline": {"experts": 256},
        }
    )
    read = msgspec.msgpack.decode(old, type=Capacity)
    assert decode_step_s(read, 4, 0) == pytest.approx(0.01)
    assert own_prefill_s(read, 1_000) == pytest.approx(0.1)
    new = msgspec.msgpack.decode(msgspec.msgpack.encode(MIXTURE))
    assert new["step_experts_s"] == 0.012
    assert math.isclose(new["expert_share"], 8 / 256)


def test_a_prompt_alone_on_one_of_many_ranks_takes_as_many_times_as_long() -> None:
    ranks = msgspec.structs.replace(MIXTURE, dp_ranks=8)
    assert own_prefill_s(ranks, 4_000) == pytest.approx(8 * own_prefill_s(MIXTURE, 4_000))
    assert prefill_s(ranks, 4_000, 4_000) == prefill_s(MIXTURE, 4_000, 4_000)


def test_what_figures_rest_on() -> None:
    assert basis_of(DENSE) == "unvalidated"
    assert basis_of(msgspec.structs.replace(DENSE, learnt=True)) == "learnt"
    assert basis_of(msgspec.structs.replace(DENSE, sweep="mine", learnt=True)) == "validated"
    assert basis_of(msgspec.structs.replace(DENSE, sweep="mine", assumed=True)) == "learnt"
