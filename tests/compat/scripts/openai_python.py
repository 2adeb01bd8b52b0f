"""The official client of OpenAI for Python, blocking and on an event loop."""

import json
import time
from typing import Literal

import openai
from features import BASE_URL, COLOURS, EMBEDDING_MODEL, KEY, MODEL, are_vectors, feature, is_colours, run
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, timeout=120)
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {
    "type": "function",
    "function": {"name": "paint", "description": "Paint the wall", "parameters": COLOURS, "strict": True},
}
FORCED = {"type": "function", "function": {"name": "paint"}}
FLAT_TOOL = {"type": "function", "name": "paint", "parameters": COLOURS, "strict": True}
FLAT_FORCED = {"type": "function", "name": "paint"}


class Paint(BaseModel):
    """A colour for the wall."""

    colour: Literal["red", "green"]
    count: int = Field(ge=0, le=9)


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
    parsed = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Paint, max_tokens=200)
    assert parsed.choices[0].message.parsed.count <= 9


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


@feature("embeddings")
def embeddings():
    answer = client.embeddings.create(model=EMBEDDING_MODEL, input=["the river", "the sea"])
    are_vectors([each.embedding for each in answer.data], 2)
    assert answer.usage.prompt_tokens > 0
    shorter = client.embeddings.create(
        model=EMBEDDING_MODEL, input="the river", encoding_format="float", dimensions=8
    )
    assert len(shorter.data[0].embedding) == 8


@feature("embeddings, on an event loop")
async def embeddings_async():
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0) as api:
        answer = await api.embeddings.create(model=EMBEDDING_MODEL, input="the river")
    are_vectors([each.embedding for each in answer.data], 1)


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
    answer = client.responses.create(
        model=MODEL, input="Hello", tools=[FLAT_TOOL], tool_choice=FLAT_FORCED, max_output_tokens=200
    )
    [call] = [item for item in answer.output if item.type == "function_call"]
    is_colours(json.loads(call.arguments))


@feature("responses, tools, streamed, with the result sent back by previous_response_id")
def responses_tools_stream():
    with client.responses.stream(
        model=MODEL, input="Hello", tools=[FLAT_TOOL], tool_choice=FLAT_FORCED, max_output_tokens=200
    ) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds, kinds
    [call] = [item for item in first.output if item.type == "function_call"]
    is_colours(json.loads(call.arguments))
    answer = client.responses.create(
        model=MODEL, previous_response_id=first.id, tools=[FLAT_TOOL], tool_choice="none", max_output_tokens=16,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "done"}],
    )  # fmt: skip
    assert answer.previous_response_id == first.id
    assert answer.usage.output_tokens > 0


@feature("responses, structured output")
def responses_structured():
    answer = client.responses.parse(model=MODEL, input="Hello", text_format=Paint, max_output_tokens=200)
    assert answer.output_parsed.colour in ("red", "green")


@feature("responses, continued, retrieved and deleted")
def responses_stored():
    first = client.responses.create(model=MODEL, input="Hello", max_output_tokens=16)
    second = client.responses.create(
        model=MODEL, input="Again", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    assert client.responses.retrieve(second.id).output_text == second.output_text
    [item] = client.responses.input_items.list(first.id).data
    assert item.content[0].text == "Hello"
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
    except openai.NotFoundError:
        return
    raise AssertionError("a deleted response is still there")


def ended(response):
    """The response once it runs no more."""
    until = time.monotonic() + 120
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < until, response.status
        time.sleep(0.2)
        response = client.responses.retrieve(response.id)
    return response


@feature("responses, in the background")
def responses_background():
    queued = client.responses.create(model=MODEL, input="Hello", max_output_tokens=16, background=True)
    assert queued.status in ("queued", "in_progress"), queued.status
    answer = ended(queued)
    assert answer.status in ("completed", "incomplete"), answer.status
    assert answer.usage.output_tokens > 0


@feature("responses, in the background, streamed again and cancelled")
def responses_cancelled():
    asked = {
        "model": MODEL,
        "input": "Hello",
        "max_output_tokens": 20_000,
        "extra_body": {"ignore_eos": True},
    }
    with client.responses.create(**asked, background=True, stream=True) as stream:
        first = next(iter(stream))
        for event in stream:
            if event.type.endswith(".delta"):
                break
    response_id = first.response.id
    with client.responses.retrieve(response_id, stream=True, starting_after=first.sequence_number) as again:
        assert next(iter(again)).sequence_number == first.sequence_number + 1
    cancelled = client.responses.cancel(response_id)
    assert cancelled.status == "cancelled", cancelled.status
    assert cancelled.usage.output_tokens > 0
    assert client.responses.retrieve(response_id).status == "cancelled"


@feature("responses, tokens counted")
def responses_count():
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello")
    answer = client.responses.create(model=MODEL, input="Hello", max_output_tokens=4)
    assert counted.input_tokens == answer.usage.input_tokens


run()
