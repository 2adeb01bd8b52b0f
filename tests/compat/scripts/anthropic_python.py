"""The official client of Anthropic for Python against /v1/messages."""

import json

import anthropic
from features import COLOURS, KEY, MODEL, ROOT_URL, feature, is_colours, run

client = anthropic.Anthropic(base_url=ROOT_URL, api_key=KEY, max_retries=0, timeout=120)
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "paint", "description": "Paint the wall", "input_schema": COLOURS}
FORCED = {"type": "tool", "name": "paint"}


@feature("messages")
def messages():
    answer = client.messages.create(model=MODEL, messages=HELLO, max_tokens=16, system="Be brief")
    assert answer.role == "assistant"
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.output_tokens > 0


@feature("messages, streamed")
def stream():
    with client.messages.stream(model=MODEL, messages=HELLO, max_tokens=16) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert kinds[0] == "message_start", kinds
    assert kinds[-1] == "message_stop", kinds
    assert "text" in kinds, kinds
    assert final.usage.output_tokens > 0


@feature("messages, on an event loop")
async def messages_async():
    async with anthropic.AsyncAnthropic(base_url=ROOT_URL, api_key=KEY, max_retries=0) as api:
        answer = await api.messages.create(model=MODEL, messages=HELLO, max_tokens=16)
    assert answer.content


@feature("bearer token instead of x-api-key")
def bearer():
    api = anthropic.Anthropic(base_url=ROOT_URL, auth_token=KEY, api_key=None, max_retries=0)
    assert api.messages.create(model=MODEL, messages=HELLO, max_tokens=4).id


@feature("tools, forced, with the result sent back")
def tools():
    answer = client.messages.create(
        model=MODEL, messages=HELLO, max_tokens=200, tools=[TOOL], tool_choice=FORCED
    )
    [call] = [block for block in answer.content if block.type == "tool_use"]
    is_colours(call.input)
    assert answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "done"}
    again = client.messages.create(
        model=MODEL, max_tokens=16, tools=[TOOL], tool_choice={"type": "none"},
        messages=[
            *HELLO, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}
        ],
    )  # fmt: skip
    assert again.usage.output_tokens > 0


@feature("tools, streamed")
def tools_stream():
    with client.messages.stream(
        model=MODEL, messages=HELLO, max_tokens=200, tools=[TOOL], tool_choice={"type": "any"}
    ) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert "input_json" in kinds, kinds
    call, *_ = [block for block in final.content if block.type == "tool_use"]  # as many as the model likes
    is_colours(call.input)


@feature("structured output")
def structured():
    answer = client.messages.create(
        model=MODEL, messages=HELLO, max_tokens=200,
        output_config={"format": {"type": "json_schema", "schema": COLOURS}},
    )  # fmt: skip
    is_colours(json.loads(answer.content[0].text))


@feature("thinking, streamed")
def thinking():
    with client.messages.stream(
        model=MODEL, messages=HELLO, max_tokens=1500, thinking={"type": "enabled", "budget_tokens": 1024}
    ) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    assert "thinking" in kinds, kinds
    assert final.content[0].type == "thinking", final.content


@feature("tokens counted")
def count():
    for fields in ({}, {"system": "Be brief"}, {"tools": [TOOL]}):
        counted = client.messages.count_tokens(model=MODEL, messages=HELLO, **fields)
        usage = client.messages.create(model=MODEL, messages=HELLO, max_tokens=4, **fields).usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


@feature("models")
def models():
    assert MODEL in [model.id for model in client.models.list()]


@feature("errors")
def errors():
    stranger = anthropic.Anthropic(base_url=ROOT_URL, api_key="pen_live_wrong", max_retries=0)
    for api, error, fields in (
        (stranger, anthropic.AuthenticationError, {}),
        (client, anthropic.NotFoundError, {"model": "no/such-model"}),
        (client, anthropic.BadRequestError, {"max_tokens": 0}),
    ):
        try:
            api.messages.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 4, **fields})
        except error as raised:
            message = raised.body["error"]["message"]
        else:
            raise AssertionError(f"{error.__name__} was not raised")
        assert message


run()
