"""Merging the events of a stream into one answer, event by event."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import EngineFailed
from gateway import merge_chunks
from gateway.limits import AnswerTooLarge
from gateway.merge_chunks import AnswerMerger
from gateway.schemas.common import Extras


def merged(*parts: bytes, endpoint: str = "chat") -> dict[str, Any]:
    """The answer as a client reads it."""
    merger = AnswerMerger(endpoint, Extras(True, True))
    for part in parts:
        merger.add(part)
    return msgspec.json.decode(msgspec.json.encode(merger.answer()))


def events(*deltas: dict[str, object]) -> bytes:
    lines = []
    for delta in deltas:
        finish = delta.pop("finish", None)
        choice = {"index": delta.pop("index", 0), "delta": delta, "finish_reason": finish}
        lines.append(
            b"data: " + json.dumps({"id": "x", "created": 1, "model": "m", "choices": [choice]}).encode()
        )
    return b"\n\n".join(lines) + b"\n\n"


def test_chunks_of_tool_calls_are_merged() -> None:
    def piece(index: int, **call: object) -> dict[str, object]:
        return {"tool_calls": [{"index": index, **call}]}

    answer = merged(
        events(
            {"role": "assistant", "content": ""},
            {"reasoning": "hm"},
            piece(0, id="a", type="function", function={"name": "f", "arguments": ""}),
            piece(0, function={"arguments": '{"x"'}),
            piece(1, id="b", type="function", function={"name": "g", "arguments": "{}"}),
            piece(0, function={"arguments": ":1}"}),
            {"finish": "tool_calls"},
        )
    )
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert message["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def test_chunks_of_several_choices_are_kept_apart() -> None:
    answer = merged(
        events(
            {"index": 1, "content": "b"},
            {"index": 0, "content": "a"},
            {"index": 1, "content": "B", "finish": "stop"},
        )
    )
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "bB"]


@pytest.mark.parametrize("endpoint", ["chat", "text"])
def test_ids_of_tokens_are_joined_when_they_are_asked_for(endpoint: str) -> None:
    def event(text: str, ids: list[int] | None, prompt: list[int] | None = None) -> bytes:
        said = {"delta": {"content": text}} if endpoint == "chat" else {"text": text}
        choice = {"index": 0, **said, "token_ids": ids}
        whole: dict[str, Any] = {"id": "x", "created": 1, "model": "m", "choices": [choice]}
        (whole if endpoint == "chat" else choice)["prompt_token_ids"] = prompt
        return b"data: " + msgspec.json.encode(whole) + b"\n\n"

    parts = event("a", [3, 4], [1, 2]) + event("b", None) + event("", []) + event("c", [5])
    told = {}
    for asked in (True, False):
        merger = AnswerMerger(endpoint, Extras(token_ids=asked))
        merger.add(parts)
        answer = msgspec.json.decode(msgspec.json.encode(merger.answer()))
        assert ("token_ids" in answer["choices"][0]) is asked
        told[asked] = answer
    choice = told[True]["choices"][0]
    assert choice["token_ids"] == [3, 4, 5]
    assert (told[True] if endpoint == "chat" else choice)["prompt_token_ids"] == [1, 2]
    assert b"token_ids" not in msgspec.json.encode(told[False])


LOGPROB = {"token": "a]", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "[", "logprob": -1.0}]}


def pieces() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Deltas of two choices: text, reasoning, tool calls and logprobs in any order."""
    text = st.text(max_size=6)
    call = st.builds(
        lambda index, arguments: {
            "tool_calls": [
                {"index": index, "id": f"c{index}", "function": {"name": "f", "arguments": arguments}}
            ]
        },
        st.integers(0, 2),
        text,
    )
    delta = st.one_of(
        text.map(lambda value: {"content": value}), text.map(lambda value: {"reasoning": value}), call
    )
    part = st.builds(
        lambda index, delta, logprobs: {"index": index, "delta": delta, "logprobs": logprobs},
        st.integers(0, 1),
        delta,
        st.sampled_from([None, {"content": []}, {"content": [LOGPROB]}, {"content": [LOGPROB, LOGPROB]}]),
    )
    return st.lists(part, min_size=1, max_size=12)


def encoded(parts: list[dict[str, Any]]) -> bytes:
    body = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": parts}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What an engine sends instead when its interval is longer: neighbouring texts of a choice in one delta."""
    out: list[dict[str, Any]] = []
    for part in parts:
        last = out[-1] if out else None
        [(name, value)] = part["delta"].items()
        if last and last["index"] == part["index"] and name != "tool_calls" and name in last["delta"]:
            both = [
                *((last["logprobs"] or {}).get("content", [])),
                *((part["logprobs"] or {}).get("content", [])),
            ]
            known = last["logprobs"] is not None or part["logprobs"] is not None
            out[-1] = {
                "index": part["index"],
                "delta": {name: last["delta"][name] + value},
                "logprobs": {"content": both, "refusal": None} if known else None,
            }
        else:
            out.append(part)
    return out


@given(parts=pieces(), cuts=st.sets(st.integers(1, 11)))
def test_any_division_into_events_and_reads_gives_the_same_answer(
    parts: list[dict[str, Any]], cuts: set[int]
) -> None:
    one_by_one = [encoded([part]) for part in parts]
    expected = merged(b"".join(one_by_one))
    groups, start = [], 0
    for end in [*sorted(cut for cut in cuts if cut < len(parts)), len(parts)]:
        groups.append(b"".join(one_by_one[start:end]))
        start = end
    assert merged(*groups) == expected
    assert merged(*[encoded([part]) for part in joined(parts)]) == expected


def test_logprobs_are_kept_as_the_engine_wrote_them() -> None:
    part = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [LOGPROB], "refusal": None}}
    choice = merged(encoded([part]), encoded([part]))["choices"][0]
    assert choice["logprobs"] == {"content": [LOGPROB, LOGPROB], "refusal": None}


def test_text_completions() -> None:
    lists = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [None], "text_offset": [0]}
    parts = [
        {"index": 0, "text": "a", "logprobs": lists, "finish_reason": None},
        {"index": 0, "text": "b", "logprobs": None, "finish_reason": "stop", "stop_reason": "."},
    ]
    answer = merged(*(encoded([part]) for part in parts), endpoint="text")
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"index": 0, "text": "ab", "logprobs": lists, "finish_reason": "stop", "stop_reason": "."}
    ]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_chunks, "MAX_ANSWER_BYTES", 1000 + 10 * merge_chunks.PART_BYTES)
    merger = AnswerMerger("chat", Extras())
    for _ in range(10):
        merger.add(encoded([{"index": 0, "delta": {"content": "x" * 100}}]))
    with pytest.raises(AnswerTooLarge):
        merger.add(encoded([{"index": 0, "delta": {"content": "x"}}]))


def test_no_event_is_no_answer() -> None:
    with pytest.raises(EngineFailed):
        AnswerMerger("chat", Extras()).answer()
