"""What the real vLLM refuses is the customer's 400, in our words, for nothing, and the replicas stay in service."""

from typing import Any
from uuid import UUID

import aiohttp
import msgspec
import pytest

from tests.e2e.conftest import MODEL
from tests.support.log_search import PROMPT
from tests.support.stack import Stack
from tests.support.waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
RAW = ("Grammar error", "validation error", "BadRequestError", "parameter=", "Lark", "--")


def schema(**members: Any) -> dict[str, Any]:
    """The fields of a chat that demands JSON of this schema."""
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": members}}}


def requiring(value: Any) -> dict[str, Any]:
    """The same for an object with the property `a`."""
    return schema(type="object", properties={"a": value}, required=["a"])


CHATS: list[tuple[dict[str, Any], str, str]] = [
    (schema(type="array", items={"type": "string"}, uniqueItems=True), "invalid_schema", "response_format"),
    (requiring({"enum": []}), "invalid_schema", "response_format"),
    (requiring(False), "invalid_schema", "response_format"),
    (schema(type="string", pattern=f"{PROMPT}(["), "invalid_schema", "response_format"),
    (schema(**{"$ref": f"#/$defs/{PROMPT}"}), "invalid_schema", "response_format"),
    (schema(type="strin"), "invalid_schema", "response_format"),
    ({"logit_bias": {"999999": 5}}, "invalid_request", "logit_bias"),
    (
        {"messages": [{"role": "user", "content": f"hello {PROMPT} there " * 20_000}]},
        "context_length_exceeded",
        "messages",
    ),
]


async def test_what_the_engine_refuses_is_the_customers_mistake(stacks: dict[str, Stack]) -> None:
    stack = stacks["mirrored"]
    tenant = stack.make_tenant("Quarry")
    refused: list[UUID] = []
    headers = {"authorization": f"Bearer {tenant.key}"}
    async with aiohttp.ClientSession(headers=headers) as client:

        async def refuse(
            route: str, body: dict[str, Any], code: str, param: str, *, admitted: bool = True
        ) -> None:
            async with client.post(f"{stack.base_url}/{route}", json={"model": MODEL, **body}) as answer:
                text = await answer.read()
                assert answer.status == 400, (body, text)
                if admitted:
                    refused.append(UUID(answer.headers["x-request-id"]))
            error = msgspec.json.decode(text)["error"]
            assert (error["code"], error["param"]) == (code, param), (body, error)
            assert not any(raw in error["message"] for raw in RAW), error

        for fields, code, param in CHATS:
            for stream in (False, True):
                chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "stream": stream}
                await refuse("chat/completions", {**chat, **fields}, code, param)
        hello = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        await refuse(
            "chat/completions", {**hello, "stop": list("abcde")}, "request_too_large", "stop", admitted=False
        )
        await refuse("completions", {"prompt": [1, 2, 99_999_999]}, "invalid_request", "prompt")
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        async with client.post(f"{stack.base_url}/chat/completions", json=body) as answer:
            assert answer.status == 200  # both replicas are still in service
            usage = msgspec.json.decode(await answer.read())["usage"]
            assert isinstance(usage["cost"], float)

    database = await stack.connect()
    try:

        async def settled() -> bool:
            rows = await database.fetch(
                "SELECT cost, attempts, outcome FROM usage WHERE request_id = ANY($1::uuid[])", refused
            )
            assert all(
                (row["cost"], row["attempts"], row["outcome"]) == (0, 1, "zero_output") for row in rows
            )
            return len(rows) == len(refused)

        await until(settled, timeout_s=30)
    finally:
        await database.close()
