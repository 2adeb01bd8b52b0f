"""LlamaIndex: OpenAILike and OpenAILikeEmbedding, which it offers for servers that speak OpenAI's API."""

from typing import Literal

import openai
from features import BASE_URL, EMBEDDING_MODEL, KEY, MODEL, are_vectors, feature, run
from llama_index.core import Document, PromptTemplate, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

SHARED = {
    "model": MODEL, "api_base": BASE_URL, "is_chat_model": True, "is_function_calling_model": True,
    "context_window": 65536, "max_retries": 0,
}  # fmt: skip
model = OpenAILike(**SHARED, api_key=KEY, max_tokens=200)
brief = OpenAILike(**SHARED, api_key=KEY, max_tokens=16)
embedding = OpenAILikeEmbedding(
    model_name=EMBEDDING_MODEL, api_base=BASE_URL, api_key=KEY, embed_batch_size=8, max_retries=0
)
HELLO = [ChatMessage(role="user", content="Hello")]


class Paint(BaseModel):
    """A colour for the wall."""

    colour: Literal["red", "green"]
    count: int = Field(ge=0, le=9)


@feature("chat")
def chat():
    assert brief.chat(HELLO).raw.usage.completion_tokens > 0


@feature("chat, streamed")
def stream():
    pieces = list(brief.stream_chat(HELLO))
    assert pieces[-1].message.content


@feature("chat, on an event loop")
async def chat_async():
    assert (await brief.achat(HELLO)).raw


@feature("text completion")
def text():
    assert OpenAILike(**{**SHARED, "is_chat_model": False}, api_key=KEY, max_tokens=8).complete("one").raw


@feature("tools, forced")
def tools():
    def paint(colour: Literal["red", "green"]) -> str:
        """Paint the wall."""
        return colour

    answer = model.chat_with_tools(
        [FunctionTool.from_defaults(paint)], user_msg="Paint it", tool_required=True
    )
    [call] = model.get_tool_calls_from_response(answer)
    assert call.tool_name == "paint"


@feature("structured output")
def structured():
    forced = {"type": "function", "function": {"name": "Paint"}}
    made = model.structured_predict(Paint, PromptTemplate("Hello"), llm_kwargs={"tool_choice": forced})
    assert made.colour in ("red", "green")


@feature("embeddings")
def embeddings():
    are_vectors(embedding.get_text_embedding_batch(["the river", "the sea"]), 2)
    are_vectors([embedding.get_query_embedding("the river")], 1)


@feature("an index of documents asked: embeddings and chat together")
def index():
    made = VectorStoreIndex.from_documents(
        [Document(text="the river"), Document(text="the sea")], embed_model=embedding
    )
    answer = made.as_query_engine(llm=brief, similarity_top_k=1).query("Where is the boat?")
    assert len(answer.source_nodes) == 1


@feature("errors")
def errors():
    try:
        OpenAILike(**SHARED, api_key="pen_live_wrong").chat(HELLO)
    except openai.AuthenticationError:
        return
    raise AssertionError("AuthenticationError was not raised")


run()
