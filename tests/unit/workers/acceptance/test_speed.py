"""One user's requests are compared with what the profile states."""

import msgspec
import pytest

from workers.acceptance.readings import SpeedReading
from workers.acceptance.speed import SHARE_MAX, accepted, compare, measured_capacity, shortest
from workers.engine_speed import Timings
from workers.step_time import decode_step_s, own_prefill_s, prefill_s
from workers.wire import Capacity, EngineCounters

STATED = Capacity(
    prefill_tokens_per_s=50_000.0,
    step_base_s=0.012,
    step_per_seq_s=0.0001,
    step_per_kv_token_s=1e-8,
    step_experts_s=0.008,
    expert_share=8 / 256,
    prefill_pair_s=2e-10,
    dp_ranks=8,
    request_s=0.03,
    accept_per_step=1.8,
    draft_tokens=1,
    sweep="a sweep",
)


def timings(prefill: float = 1.0, decode: float = 1.0) -> Timings:
    """The times of an engine that is slower than stated by these factors."""
    few, many, tokens = 15, 8_000, 33
    step = decode * decode_step_s(STATED, 1, few) / STATED.accept_per_step
    first = prefill * own_prefill_s(STATED, few)
    prompt = prefill * (own_prefill_s(STATED, many) - STATED.request_s) + STATED.request_s
    return Timings(first, few, first + (tokens - 1) * step, tokens, prompt, many)


def test_an_engine_as_stated_has_both_shares_whole() -> None:
    prefill, decode = compare(timings(), STATED, 1.8)
    assert (prefill, decode) == (pytest.approx(1.0), pytest.approx(1.0))


def test_prefill_and_decode_are_told_apart() -> None:
    assert compare(timings(prefill=2.0), STATED, 1.8) == (pytest.approx(0.5, rel=0.05), pytest.approx(1.0))
    assert compare(timings(decode=4.0), STATED, 1.8) == (pytest.approx(1.0), pytest.approx(0.25))


def test_a_prefill_that_noise_hides_is_as_fast_as_can_be_shown() -> None:
    times = msgspec.structs.replace(timings(), prompt_s=0.0)
    assert compare(times, STATED, 1.8)[0] == SHARE_MAX


@pytest.mark.parametrize(("prefill", "decode"), [(0.5, 1.2), (0.9, 0.6)])
def test_a_slow_host_has_the_capacity_that_was_measured(prefill: float, decode: float) -> None:
    slower = measured_capacity(STATED, SpeedReading("h/m-0", prefill, decode, validated=True))
    assert slower.prefill_tokens_per_s == pytest.approx(STATED.prefill_tokens_per_s * prefill)
    step, stated = decode_step_s(slower, 4, 1000), decode_step_s(STATED, 4, 1000)
    assert step == pytest.approx(stated / min(1.0, decode))


def test_a_host_that_is_fast_enough_keeps_validated_figures() -> None:
    assert measured_capacity(STATED, SpeedReading("h/m-0", 0.9, 1.3, validated=True)) is STATED


@pytest.mark.parametrize(("prefill", "decode"), [(0.3, 0.3), (1.8, 0.7), (1.2, SHARE_MAX)])
def test_figures_that_are_not_validated_start_from_what_was_measured(prefill: float, decode: float) -> None:
    found = measured_capacity(STATED, SpeedReading("h/m-0", prefill, decode, validated=False))
    assert prefill_s(found, 4_000, 4_000) == pytest.approx(prefill_s(STATED, 4_000, 4_000) / prefill)
    assert decode_step_s(found, 4, 1_000) == pytest.approx(decode_step_s(STATED, 4, 1_000) / decode)


def test_one_slow_request_hides_no_slow_engine_and_makes_no_fast_one_slow() -> None:
    even = timings()
    late_first = msgspec.structs.replace(
        even, first_s=even.first_s + 1.0
    )  # alone it would show a fast engine
    late_prompt = msgspec.structs.replace(even, prompt_s=even.prompt_s + 1.0)
    late_answer = msgspec.structs.replace(even, answer_s=even.answer_s + 1.0)
    assert shortest([late_first, late_prompt, late_answer]) == even


def test_the_accepted_tokens_are_those_that_the_engine_counts() -> None:
    before = EngineCounters(drafts=10, accepted_tokens=5)
    assert accepted(before, EngineCounters(drafts=30, accepted_tokens=15), STATED) == pytest.approx(1.5)
    assert accepted(before, before, STATED) == STATED.accept_per_step
