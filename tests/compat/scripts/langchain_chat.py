"""LangChain: ChatOpenAI over chat completions and over responses, OpenAIEmbeddings, and ChatAnthropic over messages."""

from typing import Literal

import openai
from features import BASE_URL, EMBEDDING_MODEL, KEY, MODEL, ROOT_URL, are_vectors, feature, run
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

SHARED = {"base_url": BASE_URL, "api_key": KEY, "model": MODEL, "max_retries": 0}
model = ChatOpenAI(**SHARED, max_tokens=200)


class Paint(BaseModel):
    """A colour for the wall."""

    colour: Literal["red", "green"]
    count: int = Field(ge=0, le=9)


@tool
def paint(colour: Literal["red", "green"]) -> str:
    """Paint the wall."""
    return f"painted {colour}"


@feature("chat")
def chat():
    answer = model.bind(max_tokens=16).invoke("Hello")
    assert answer.usage_metadata["output_tokens"] > 0


@feature("chat, streamed, with usage")
def stream():
    whole = None
    for piece in ChatOpenAI(**SHARED, max_tokens=16, stream_usage=True).stream("Hello"):
        whole = piece if whole is None else whole + piece
    assert whole.content
    assert whole.usage_metadata["output_tokens"] > 0


@feature("chain, in batches, on an event loop")
async def chain():
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief"), ("human", "{word}")])
    answers = await (prompt | model.bind(max_tokens=8)).abatch([{"word": "one"}, {"word": "two"}])
    assert len(answers) == 2


@feature("tools, forced, with the result sent back")
def tools():
    bound = model.bind_tools([paint], tool_choice="paint")
    asked = HumanMessage("Paint it")
    answer = bound.invoke([asked])
    [call] = answer.tool_calls
    result = ToolMessage(paint.invoke(call["args"]), tool_call_id=call["id"])
    assert model.bind_tools([paint]).bind(max_tokens=16, tool_choice="none").invoke([asked, answer, result])


@feature("tools, streamed")
def tools_stream():
    whole = None
    for piece in model.bind_tools([paint], tool_choice="paint").stream("Paint it"):
        whole = piece if whole is None else whole + piece
    [call] = whole.tool_calls
    assert call["args"]["colour"] in ("red", "green")


@feature("structured output, by schema")
def structured():
    assert model.with_structured_output(Paint, method="json_schema").invoke("Hello").colour in (
        "red",
        "green",
    )


@feature("structured output, by function")
def structured_call():
    assert model.with_structured_output(Paint, method="function_calling").invoke("Hello").count <= 9


@feature("text completion")
def text():
    assert isinstance(OpenAI(**SHARED, max_tokens=8).invoke("one"), str)


@feature("embeddings")
def embeddings():
    # The switch is LangChain's for servers whose tokens are not OpenAI's: texts are sent, and no token ids.
    api = OpenAIEmbeddings(
        **{**SHARED, "model": EMBEDDING_MODEL}, check_embedding_ctx_length=False, dimensions=8
    )
    are_vectors(api.embed_documents(["the river", "the sea"]), 2)
    assert len(api.embed_query("the river")) == 8


@feature("errors")
def errors():
    try:
        ChatOpenAI(**{**SHARED, "api_key": "pen_live_wrong"}).invoke("Hello")
    except openai.AuthenticationError:
        return
    raise AssertionError("AuthenticationError was not raised")


@feature("responses")
def responses():
    api = ChatOpenAI(**SHARED, use_responses_api=True, max_tokens=16)
    assert api.invoke("Hello").usage_metadata["output_tokens"] > 0
    assert list(api.stream("Hello"))


@feature("responses, tools and structured output")
def responses_tools():
    api = ChatOpenAI(**SHARED, use_responses_api=True, max_tokens=200)
    [call] = api.bind_tools([paint], tool_choice="paint").invoke("Paint it").tool_calls
    assert call["name"] == "paint"
    assert api.with_structured_output(Paint, method="json_schema").invoke("Hello").count <= 9


@feature("responses, continued by previous_response_id")
def responses_continued():
    api = ChatOpenAI(**SHARED, use_responses_api=True, use_previous_response_id=True, max_tokens=16)
    asked = HumanMessage("Hello")
    first = api.invoke([asked])
    second = api.invoke([asked, first, HumanMessage("Again")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["input_tokens"]


@feature("messages (ChatAnthropic)")
def messages():
    api = ChatAnthropic(base_url=ROOT_URL, api_key=KEY, model=MODEL, max_tokens=200, max_retries=0)
    assert api.bind(max_tokens=16).invoke("Hello").usage_metadata["output_tokens"] > 0
    assert api.bind_tools([paint], tool_choice="paint").invoke("Paint it").tool_calls[0]["name"] == "paint"


@feature("messages, streamed, with tools, and tokens counted")
def messages_stream():
    api = ChatAnthropic(base_url=ROOT_URL, api_key=KEY, model=MODEL, max_tokens=200, max_retries=0)
    whole = None
    for piece in api.bind_tools([paint], tool_choice="paint").stream("Paint it"):
        whole = piece if whole is None else whole + piece
    assert whole.tool_calls[0]["args"]["colour"] in ("red", "green")
    assert api.get_num_tokens_from_messages([HumanMessage("Hello")]) > 0


run()
