"""The mock engine sends chunks as vLLM does: the first and the last at once, one for every interval between."""

import json

import pytest

from bench.gateway.mock_engine import EACH, Answer, schema, whole


def answer(*, honour_interval: bool = True, chat: bool = True, **asked: object) -> Answer:
    return Answer(asked, b"r1", chat=chat, honour_interval=honour_interval)


def chunks(one: Answer) -> list[dict]:
    """Every event of the answer but [DONE], token by token as a paced stream sends them."""
    data = one.begin() + b"".join(one.advance(1) for _ in range(one.count))
    lines = [line for line in data.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line.removeprefix(b"data: ")) for line in lines]


def positions(one: Answer) -> list[int]:
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks(one)]
    return [int(text.split()[-1].partition("@")[0]) for text in texts if text]


@pytest.mark.parametrize(
    ("count", "interval", "expected"),
    [(1, 5, [1]), (4, 1, [1, 2, 3, 4]), (10, 4, [1, 5, 9, 10]), (9, 4, [1, 5, 9]), (3, 100, [1, 3])],
)
def test_a_chunk_holds_the_tokens_of_an_interval(count: int, interval: int, expected: list[int]) -> None:
    assert positions(answer(max_tokens=count, stream_interval=interval)) == expected


def test_every_token_is_a_chunk_where_the_seed_or_the_engine_says_so() -> None:
    assert positions(answer(max_tokens=3, stream_interval=3, seed=EACH + 10)) == [1, 2, 3]
    assert positions(answer(max_tokens=3, stream_interval=3, honour_interval=False)) == [1, 2, 3]


def test_usage_comes_with_every_chunk_or_at_the_end_or_never() -> None:
    running = chunks(
        answer(max_tokens=2, stream_options={"continuous_usage_stats": True, "include_usage": True})
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in running] == [0, 1, 2, 2]
    last = chunks(answer(max_tokens=2, stream_options={"include_usage": True}))
    assert [chunk.get("usage", {}).get("completion_tokens") for chunk in last] == [None, None, None, 2]
    assert not any("usage" in chunk for chunk in chunks(answer(max_tokens=2)))


def test_the_stream_at_once_is_the_paced_stream() -> None:
    at_once = answer(max_tokens=7, stream_interval=3).at_once()
    assert at_once.count(b"data: {") == len(chunks(answer(max_tokens=7, stream_interval=3)))
    assert at_once.endswith(b"0\r\n\r\n")


def test_text_completions_have_text() -> None:
    found = chunks(answer(max_tokens=1, chat=False))
    assert found[0]["choices"][0]["text"].startswith(" 1@")


def test_a_whole_answer_calls_the_tool_of_the_request() -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
    body = json.loads(whole({"max_tokens": 4, "tools": tools}, chat=True).partition(b"\r\n\r\n")[2])
    call = body["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "look_up"
    assert json.loads(call["arguments"])
    assert body["usage"]["completion_tokens"] == 4


def test_the_schema_tells_whether_requests_have_an_interval() -> None:
    for interval in (True, False):
        schemas = json.loads(schema(interval=interval))["components"]["schemas"]
        assert all(("stream_interval" in each["properties"]) is interval for each in schemas.values())
