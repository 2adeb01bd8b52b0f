"""Pydantic AI: agents with typed outputs over chat completions, responses and messages, and embeddings."""

from typing import Literal

from anthropic import AsyncAnthropic
from features import BASE_URL, EMBEDDING_MODEL, KEY, MODEL, ROOT_URL, are_vectors, feature, run
from pydantic import BaseModel, Field
from pydantic_ai import Agent, Embedder, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
BRIEF = {"max_tokens": 16}
LONG = {"max_tokens": 200}


class Paint(BaseModel):
    """A colour for the wall."""

    colour: Literal["red", "green"]
    count: int = Field(ge=0, le=9)


def _chat():
    return OpenAIChatModel(MODEL, provider=PROVIDER)


@feature("run")
async def plain():
    answer = await Agent(_chat(), instructions="Be brief", model_settings=BRIEF).run("Hello")
    assert answer.usage.output_tokens > 0


@feature("run, streamed")
async def stream():
    async with Agent(_chat(), model_settings=BRIEF).run_stream("Hello") as answer:
        pieces = [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]
        assert pieces
        assert answer.usage.output_tokens > 0


@feature("conversation")
async def conversation():
    agent = Agent(_chat(), model_settings=BRIEF)
    first = await agent.run("Hello")
    assert len((await agent.run("Again", message_history=first.all_messages())).all_messages()) == 4


@feature("typed output, by tool")
async def by_tool():
    made = await Agent(_chat(), output_type=ToolOutput(Paint), model_settings=LONG).run("Hello")
    assert made.output.colour in ("red", "green")


@feature("typed output, by schema")
async def by_schema():
    made = await Agent(_chat(), output_type=NativeOutput(Paint), model_settings=LONG).run("Hello")
    assert made.output.count <= 9


@feature("embeddings")
async def embeddings():
    embedder = Embedder(OpenAIEmbeddingModel(EMBEDDING_MODEL, provider=PROVIDER))
    made = await embedder.embed_documents(["the river", "the sea"])
    are_vectors(made.embeddings, 2)
    assert made.usage.input_tokens > 0


@feature("errors")
async def errors():
    model = OpenAIChatModel("no/such-model", provider=PROVIDER)
    try:
        await Agent(model).run("Hello")
    except ModelHTTPError as error:
        status = error.status_code
    else:
        raise AssertionError("ModelHTTPError was not raised")
    assert status == 404


@feature("responses")
async def responses():
    agent = Agent(OpenAIResponsesModel(MODEL, provider=PROVIDER), model_settings=BRIEF)
    assert (await agent.run("Hello")).usage.output_tokens > 0


@feature("responses, streamed")
async def responses_stream():
    async with Agent(OpenAIResponsesModel(MODEL, provider=PROVIDER), model_settings=BRIEF).run_stream(
        "Hello"
    ) as answer:
        assert [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]


@feature("responses, typed output by tool and by schema")
async def responses_typed():
    model = OpenAIResponsesModel(MODEL, provider=PROVIDER)
    for kind in (ToolOutput, NativeOutput):
        made = await Agent(model, output_type=kind(Paint), model_settings=LONG).run("Hello")
        assert made.output.count <= 9


@feature("responses, continued by previous_response_id")
async def responses_continued():
    settings = {**BRIEF, "openai_previous_response_id": "auto"}
    agent = Agent(OpenAIResponsesModel(MODEL, provider=PROVIDER), model_settings=settings)
    first = await agent.run("Hello")
    second = await agent.run("Again", message_history=first.all_messages())
    assert second.usage.input_tokens > first.usage.input_tokens


def _messages():
    client = AsyncAnthropic(base_url=ROOT_URL, api_key=KEY, max_retries=0)
    return AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))


@feature("messages (AnthropicModel)")
async def messages():
    assert (await Agent(_messages(), model_settings=BRIEF).run("Hello")).usage.output_tokens > 0


@feature("messages, streamed")
async def messages_stream():
    async with Agent(_messages(), model_settings=BRIEF).run_stream("Hello") as answer:
        assert [piece async for piece in answer.stream_text(delta=True, debounce_by=None)]


@feature("messages, typed output by tool")
async def messages_typed():
    made = await Agent(_messages(), output_type=ToolOutput(Paint), model_settings=LONG).run("Hello")
    assert made.output.colour in ("red", "green")


run()
