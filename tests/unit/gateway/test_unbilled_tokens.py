"""What is noted of an attempt beyond its usage: nothing for most, a bound where it was cut."""

from typing import Any

import msgspec
import pytest

from core.tokens import TokenUsage
from gateway.schemas.common import PreparedRequest
from gateway.sse import StreamCodec
from gateway.unbilled_tokens import ENGINE_ABORT_S, unbilled_tokens
from scheduler.wire import Placement

PLACEMENT = Placement("r", "e", "host/r0", "http://x", "m", "boot-1")


def prepared(n: int = 1, *, prompts: int = 1, max_tokens: int = 100) -> PreparedRequest:
    return PreparedRequest(
        endpoint="chat",
        model="m",
        stream=True,
        include_usage=False,
        choices=n * prompts,
        max_tokens=max_tokens,
        choices_per_prompt=n,
        prompt_bytes=40,
        body_bytes=80,
        max_input_tokens=60,
        fields={},
    )


def event(index: int, output: int, *, end: bool = False, prompt: int = 17) -> bytes:
    body: dict[str, Any] = {
        "id": "c",
        "choices": [{"index": index, "delta": {"content": "w"}, "finish_reason": "stop" if end else None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output},
    }
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def noted(
    codec: StreamCodec | None, asked: PreparedRequest, *, cause: str = "cancelled_tail", charged: bool = True
) -> Any:
    usage = codec.tracker.usage if codec is not None else TokenUsage()
    return unbilled_tokens(
        cause=cause,
        placement=PLACEMENT,
        codec=codec,
        prepared=asked,
        context_len=2048,
        usage=usage,
        in_row=usage if charged else TokenUsage(),
        silent_s=1.0,
    )


def codec_of(asked: PreparedRequest, *events: bytes) -> StreamCodec:
    codec = StreamCodec(asked.choices, 10_000)
    codec.feed(b"".join(events))
    return codec


def test_a_whole_answer_needs_no_note() -> None:
    asked = prepared()
    assert noted(codec_of(asked, event(0, 1), event(0, 2, end=True), b"data: [DONE]\n\n"), asked) == []


@pytest.mark.parametrize("n", [2, 5])
def test_the_prompt_of_further_choices(n: int) -> None:
    asked = prepared(n)
    codec = codec_of(asked, *(event(i, 3, end=True) for i in range(n)), b"data: [DONE]\n\n")
    (note,) = noted(codec, asked)
    assert (note.cause, note.input, note.output, note.tail_input) == ("choices", 17 * (n - 1), 0, 0)


def test_prompts_times_choices_are_counted_once_per_choice() -> None:
    asked = prepared(2, prompts=3)
    last = {"choices": [], "usage": {"prompt_tokens": 51, "completion_tokens": 6}}
    codec = codec_of(
        asked,
        *(event(i, 1, end=True) for i in range(6)),
        b"data: " + msgspec.json.encode(last) + b"\n\ndata: [DONE]\n\n",
    )
    (note,) = noted(codec, asked)
    assert (note.cause, note.input) == ("choices", 51)


def test_a_cut_stream_has_a_bounded_tail_and_a_known_prompt() -> None:
    asked = prepared(max_tokens=100)
    (note,) = noted(codec_of(asked, event(0, 1), event(0, 30)), asked)
    assert (note.cause, note.input, note.output) == ("cancelled_tail", 0, 0)
    assert (note.tail_input, note.tail_output) == (0, 70)
    (long,) = noted(codec_of(asked, event(0, 30)), prepared(max_tokens=2000))
    assert long.tail_output == (1 + ENGINE_ABORT_S) * 512


def test_a_stream_cut_before_its_first_event_may_have_been_prefilled() -> None:
    (note,) = noted(None, prepared(3))
    assert (note.input, note.tail_input, note.tail_output) == (0, 180, 300)


def test_choices_that_had_not_begun_when_it_was_cut_are_in_the_tail() -> None:
    asked = prepared(3)
    choices, tail = noted(codec_of(asked, event(0, 4), event(1, 2), event(2, 0)), asked)
    assert (choices.cause, choices.input) == ("choices", 17)
    assert tail.tail_input == 180 - 17 - 17
    assert tail.tail_output == 300 - 6


def test_a_failed_attempt_is_noted_with_its_tokens() -> None:
    asked = prepared()
    (note,) = noted(codec_of(asked, event(0, 5)), asked, cause="retried", charged=False)
    assert (note.cause, note.input, note.output, note.tail_output) == ("retried", 17, 5, 95)
