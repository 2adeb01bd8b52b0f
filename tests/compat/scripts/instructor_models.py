"""Instructor: answers as Pydantic models, in each mode that a server has to support."""

from typing import Literal

import instructor
import openai
from features import BASE_URL, KEY, MODEL, feature, run
from pydantic import BaseModel, Field

HELLO = [{"role": "user", "content": "Hello"}]
api = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)


class Paint(BaseModel):
    """A colour for the wall."""

    colour: Literal["red", "green"]
    count: int = Field(ge=0, le=9)


def _make(mode):
    client = instructor.from_openai(api, mode=mode)
    made = client.chat.completions.create(
        model=MODEL, messages=HELLO, response_model=Paint, max_tokens=200, max_retries=0
    )
    assert made.colour in ("red", "green")


@feature("by tool")
def by_tool():
    _make(instructor.Mode.TOOLS)


@feature("by strict tool")
def by_strict_tool():
    _make(instructor.Mode.TOOLS_STRICT)


@feature("by schema")
def by_schema():
    _make(instructor.Mode.JSON_SCHEMA)


@feature("by tool, over responses")
def by_responses():
    client = instructor.from_openai(api, mode=instructor.Mode.RESPONSES_TOOLS)
    made = client.responses.create(
        model=MODEL, input="Hello", response_model=Paint, max_output_tokens=200, max_retries=0
    )
    assert made.colour in ("red", "green")


@feature("parts of an answer, streamed")
def partial():
    client = instructor.from_openai(api, mode=instructor.Mode.TOOLS)
    parts = list(
        client.chat.completions.create_partial(
            model=MODEL, messages=HELLO, response_model=Paint, max_tokens=200, max_retries=0
        )
    )
    assert parts[-1].colour in ("red", "green")


@feature("on an event loop, with usage")
async def on_loop():
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0))
    made, raw = await client.chat.completions.create_with_completion(
        model=MODEL, messages=HELLO, response_model=Paint, max_tokens=200, max_retries=0
    )
    assert made.count <= 9
    assert raw.usage.completion_tokens > 0


run()
