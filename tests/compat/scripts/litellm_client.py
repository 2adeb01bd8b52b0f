"""LiteLLM as a client library: its OpenAI and Anthropic providers with an address of ours."""

import json

import litellm
from features import (
    BASE_URL,
    COLOURS,
    EMBEDDING_MODEL,
    KEY,
    MODEL,
    ROOT_URL,
    are_vectors,
    feature,
    is_colours,
    run,
)

litellm.telemetry = False
HELLO = [{"role": "user", "content": "Hello"}]
OURS = {"api_base": BASE_URL, "api_key": KEY, "model": f"openai/{MODEL}", "messages": HELLO}
TOOL = {"type": "function", "function": {"name": "paint", "description": "Paint", "parameters": COLOURS}}


@feature("chat")
def chat():
    answer = litellm.completion(**OURS, max_tokens=16)
    assert answer.usage.completion_tokens > 0


@feature("chat, streamed, with usage")
def stream():
    pieces = list(
        litellm.completion(**OURS, max_tokens=16, stream=True, stream_options={"include_usage": True})
    )
    assert any(piece.choices and piece.choices[0].delta.content for piece in pieces)
    assert pieces[-1].usage.completion_tokens > 0


@feature("chat, on an event loop")
async def chat_async():
    assert (await litellm.acompletion(**OURS, max_tokens=16)).choices


@feature("tools, forced")
def tools():
    forced = {"type": "function", "function": {"name": "paint"}}
    answer = litellm.completion(**OURS, max_tokens=200, tools=[TOOL], tool_choice=forced)
    is_colours(json.loads(answer.choices[0].message.tool_calls[0].function.arguments))


@feature("structured output")
def structured():
    form = {"type": "json_schema", "json_schema": {"name": "paint", "strict": True, "schema": COLOURS}}
    answer = litellm.completion(**OURS, max_tokens=200, response_format=form)
    is_colours(json.loads(answer.choices[0].message.content))


@feature("text completion")
def text():
    answer = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt="one", api_base=BASE_URL, api_key=KEY, max_tokens=8
    )
    assert answer.usage.completion_tokens > 0


@feature("embeddings")
def embeddings():
    answer = litellm.embedding(
        model=f"openai/{EMBEDDING_MODEL}", input=["the river", "the sea"], api_base=BASE_URL, api_key=KEY
    )
    are_vectors([each["embedding"] for each in answer.data], 2)
    assert answer.usage.prompt_tokens > 0


@feature("provider hosted_vllm")
def hosted_vllm():
    answer = litellm.completion(**{**OURS, "model": f"hosted_vllm/{MODEL}"}, max_tokens=8)
    assert answer.usage.completion_tokens > 0


@feature("errors")
def errors():
    for error, fields in (
        (litellm.AuthenticationError, {"api_key": "pen_live_wrong"}),
        (litellm.NotFoundError, {"model": "openai/no/such-model"}),
        (litellm.BadRequestError, {"temperature": 9}),
    ):
        try:
            litellm.completion(**{**OURS, "max_tokens": 4, "num_retries": 0, **fields})
        except error:
            continue
        raise AssertionError(f"{error.__name__} was not raised")


@feature("context window exceeded")
def context_window():
    try:
        litellm.completion(
            **{**OURS, "messages": [{"role": "user", "content": "word " * 70000}]}, num_retries=0
        )
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("ContextWindowExceededError was not raised")


@feature("responses")
def responses():
    answer = litellm.responses(
        model=f"openai/{MODEL}", input="Hello", api_base=BASE_URL, api_key=KEY, max_output_tokens=16
    )
    assert answer.usage.output_tokens > 0


@feature("responses, tools and previous_response_id")
def responses_continued():
    ours = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": KEY}
    tool = {"type": "function", "name": "paint", "parameters": COLOURS, "strict": True}
    first = litellm.responses(
        **ours, input="Hello", tools=[tool], tool_choice={"type": "function", "name": "paint"},
        max_output_tokens=200,
    )  # fmt: skip
    [call] = [item for item in first.output if item.type == "function_call"]
    is_colours(json.loads(call.arguments))
    second = litellm.responses(
        **ours, previous_response_id=first.id, tools=[tool], tool_choice="none", max_output_tokens=16,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "done"}],
    )  # fmt: skip
    assert second.usage.input_tokens > first.usage.input_tokens


@feature("messages (provider anthropic)")
def messages():
    answer = litellm.completion(
        model=f"anthropic/{MODEL}", messages=HELLO, api_base=ROOT_URL, api_key=KEY, max_tokens=16
    )
    assert answer.usage.completion_tokens > 0


@feature("messages, streamed, with a forced tool")
def messages_tools():
    forced = {"type": "function", "function": {"name": "paint"}}
    pieces = litellm.completion(
        model=f"anthropic/{MODEL}", messages=HELLO, api_base=ROOT_URL, api_key=KEY, max_tokens=200,
        tools=[TOOL], tool_choice=forced, stream=True,
    )  # fmt: skip
    calls = [call for piece in pieces if piece.choices for call in piece.choices[0].delta.tool_calls or []]
    assert calls[0].function.name == "paint", calls
    is_colours(json.loads("".join(call.function.arguments or "" for call in calls)))


run()
