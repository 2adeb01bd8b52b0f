"""The official client of OpenAI for Python, blocking and on an event loop."""

import json

import openai
from features import BASE_URL, COLOURS, KEY, MODEL, feature, is_colours, run

client = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, timeout=120)
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {"name": "paint", "description": "Paint the wall", "parameters": COLOURS, "strict": True},
}
FORCED = {"type": "function", "function": {"name": "paint"}}


@feature("models")
def models():
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@feature("chat")
def chat():
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16)
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@feature("chat, streamed, with usage")
def chat_stream():
    usage, finish, pieces = None, None, 0
    with client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=16, stream=True, stream_options={"include_usage": True}
    ) as events:
        for event in events:
            usage = event.usage or usage
            for choice in event.choices:
                pieces += bool(choice.delta.content)
                finish = choice.finish_reason or finish
    assert finish in ("length", "stop"), finish
    assert pieces > 0
    assert usage.completion_tokens > 0


@feature("chat, on an event loop")
async def chat_async():
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as api:
        answer = await api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16)
        stream = await api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, stream=True)
        events = [event async for event in stream]
    assert answer.usage.completion_tokens > 0
    assert events[-1].choices[0].finish_reason in ("length", "stop")


@feature("tools, forced")
def tools():
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[TOOL], tool_choice=FORCED, max_tokens=200
    )
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "paint"
    is_colours(json.loads(call.function.arguments))


@feature("tools, streamed, with the result sent back")
def tools_stream():
    with client.chat.completions.stream(
        model=MODEL, messages=HELLO, tools=[TOOL], tool_choice=FORCED, max_tokens=200
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    [call] = message.tool_calls
    is_colours(call.function.parsed_arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
    answer = client.chat.completions.create(
        model=MODEL, tools=[TOOL], max_tokens=16, tool_choice="none",
        messages=[*HELLO, message.model_dump(exclude_none=True, exclude={"parsed"}), result],
    )  # fmt: skip
    assert answer.usage.prompt_tokens > 20


@feature("structured output")
def structured():
    form = {"type": "json_schema", "json_schema": {"name": "paint", "strict": True, "schema": COLOURS}}
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, response_format=form, max_tokens=200)
    is_colours(json.loads(answer.choices[0].message.content))


@feature("log-probabilities")
def logprobs():
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=2
    )
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


@feature("text completion")
def completion():
    answer = client.completions.create(model=MODEL, prompt=["one", "two"], max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1]


@feature("raw answer with headers")
def raw():
    answer = client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=4)
    assert answer.headers["x-request-id"]
    assert answer.parse().id


@feature("errors")
def errors():
    stranger = openai.OpenAI(base_url=BASE_URL, api_key="pen_live_wrong", max_retries=0)
    for api, error, fields in (
        (stranger, openai.AuthenticationError, {}),
        (client, openai.NotFoundError, {"model": "no/such-model"}),
        (client, openai.BadRequestError, {"temperature": 9}),
    ):
        try:
            api.chat.completions.create(**{"model": MODEL, "messages": HELLO, "max_tokens": 4, **fields})
        except error as raised:
            message = raised.body["message"]
        else:
            raise AssertionError(f"{error.__name__} was not raised")
        assert message


@feature("responses")
def responses():
    answer = client.responses.create(model=MODEL, input="Hello", max_output_tokens=16)
    assert answer.usage.output_tokens > 0
    assert answer.status in ("completed", "incomplete")


@feature("responses, streamed")
def responses_stream():
    with client.responses.stream(model=MODEL, input="Hello", max_output_tokens=16) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created", kinds
    assert "response.output_text.delta" in kinds, kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds


@feature("responses, tools")
def responses_tools():
    tool = {"type": "function", "name": "paint", "parameters": COLOURS, "strict": True}
    answer = client.responses.create(
        model=MODEL, input="Hello", tools=[tool], tool_choice={"type": "function", "name": "paint"},
        max_output_tokens=200,
    )  # fmt: skip
    [call] = [item for item in answer.output if item.type == "function_call"]
    is_colours(json.loads(call.arguments))


run()
