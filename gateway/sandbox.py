"""Answers to test keys: written here, the same for the same request, without engine, hold, usage row or charge.

The name of the model chooses the outcome. The name of an offered model gives a complete answer, so that a customer's
tests run unchanged.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, Generic
from uuid import UUID

import msgspec

from core.errors import (
    EngineFailed,
    InsufficientCredit,
    InvalidRequest,
    PenstockError,
    RateLimited,
    Refused,
)
from core.ids import uuid7_unix_ms
from core.tokens import TokenUsage
from gateway.answers import usage_object
from gateway.embeddings import embeddings_document, embeddings_usage, sample_vectors
from gateway.ports import GrantT, Headers, Models, Rates, Reply
from gateway.schemas.common import PreparedRequest
from gateway.service_tier import ECHOED, TIERS, tier_of
from gateway.sse import DONE
from scheduler.availability import OFFLINE
from tenants.principal import Principal

OK, SLOW, BROKEN, TOOL_CALL = "test/ok", "test/slow", "test/stream_error", "test/tool_call"
FIRST_TOKEN_S = 5.0
"""Seconds to the first token of `test/slow`."""
TOKEN_S = 0.25
"""Seconds between its tokens."""
BYTES_PER_TOKEN = 4
"""Bytes of a prompt that count as a token."""
TEXT = "This answer was written without a model because the request came with a test key."
"""Every answer."""
WORDS = tuple(re.findall(r"\s*\S+", TEXT))
"""Its tokens."""
TOOL = "get_weather"
"""The function that is called when the request names none."""
FREE = "0"


def _errors() -> dict[str, Callable[[], PenstockError]]:
    """By model: the error that it answers."""
    share = {"reason": "tenant_share", "position": 1, "warm_replicas": 1, "predicted_wait_s": 1.0}
    return {
        "test/rate_limited": lambda: RateLimited(
            "A test of a rate limit.", details={"scope": "key", "kind": "requests_per_min"}, retry_after_s=1.0
        ),
        "test/tenant_share": lambda: Refused(
            "A test of a busy pool.", status=429, code="tenant_share", retry_after_s=1.0, details=share
        ),
        "test/no_capacity": lambda: Refused(
            "A test of a full pool.", retry_after_s=1.0, details={**share, "reason": "queue_deadline"}
        ),
        "test/offline": lambda: Refused(
            "A test of an offline model.", code=OFFLINE, retry_after_s=120.0, details={"reason": OFFLINE}
        ),
        "test/insufficient_credit": lambda: InsufficientCredit("A test of used-up credit."),
        "test/invalid_request": lambda: InvalidRequest("A test of an invalid request.", param="messages"),
        "test/engine_failed": lambda: EngineFailed("A test of a failed engine; nothing is charged."),
    }


class Sandbox(Generic[GrantT]):
    """Answers the requests of test keys. One per process; keeps no state of a request."""

    def __init__(
        self,
        models: Models,
        rates: Rates[GrantT],
        first_token_s: float = FIRST_TOKEN_S,
        token_s: float = TOKEN_S,
    ) -> None:
        """`first_token_s` and `token_s`: the pace of `test/slow`."""
        self._models = models
        self._rates = rates
        self._first_token_s = first_token_s
        self._token_s = token_s
        self._errors = _errors()

    async def handle(
        self, request_id: UUID, principal: Principal, prepared: PreparedRequest, reply: Reply
    ) -> None:
        """Write the answer that the model's name asks for. Raises the PenstockError that it asks for.

        The key's own limits hold, those of project and organisation do not. Raises RateLimited above them, and
        ModelNotFound for a name that is neither a test's nor a model's. Every tier counts as priced.
        """
        grant = await self._rates.acquire(str(request_id), principal, 0, 0)
        try:
            self._check_name(principal, prepared.model)
            if prepared.endpoint == "embeddings":
                await self._embed(request_id, prepared, reply, grant.headers)
                return
            tier = tier_of(prepared.service_tier, principal.tier, lambda: TIERS, principal.highest_tier)
            answer = _Answer(request_id, prepared, tier)
            if prepared.stream:
                await self._stream(answer, reply, grant.headers)
            else:
                await self._whole(answer, reply, grant.headers)
        finally:
            self._rates.settle(grant, 0, 0)

    async def count_tokens(self, request_id: UUID, principal: Principal, prepared: PreparedRequest) -> int:
        """Return the tokens of a prompt as the answer to it would have them. Raises what `handle` raises."""
        grant = await self._rates.acquire(str(request_id), principal, 0, 0)
        self._rates.settle(grant, 0, 0)
        self._check_name(principal, prepared.model)
        return _prompt_tokens(prepared)

    def _check_name(self, principal: Principal, name: str) -> None:
        """Raise the error that a test's name asks for, and ModelNotFound for one that is no model's either."""
        if name in self._errors:
            raise self._errors[name]()
        if name not in (OK, SLOW, BROKEN, TOOL_CALL):
            self._models.resolve_for(name, principal.tenant_id, principal.allowed_models)

    async def _embed(
        self, request_id: UUID, prepared: PreparedRequest, reply: Reply, headers: Headers
    ) -> None:
        if prepared.model == SLOW:
            await asyncio.sleep(self._first_token_s)
        if prepared.model == BROKEN:
            raise _broken()
        usage = TokenUsage(max(1, prepared.prompt_bytes // BYTES_PER_TOKEN))
        told = {"request_id": str(request_id), "outcome": "completed", "cost_usd": FREE, "test": True}
        document = embeddings_document(sample_vectors(prepared)) | {
            "model": prepared.model,
            "usage": embeddings_usage(usage, FREE),
            "penstock": told,
        }
        await reply.respond(msgspec.json.encode(document), [*headers, *_free_headers("completed", usage)])

    async def _whole(self, answer: "_Answer", reply: Reply, headers: Headers) -> None:
        if answer.model == SLOW:
            await asyncio.sleep(self._first_token_s)
        if answer.model == BROKEN:
            raise _broken()
        body, more = answer.whole()
        await reply.respond(body, [*headers, *more])

    async def _stream(self, answer: "_Answer", reply: Reply, headers: Headers) -> None:
        await reply.start(headers, answer.prompt_tokens)
        parts = answer.parts()
        for number, (part, ids) in enumerate(parts):
            if answer.model == SLOW:
                await asyncio.sleep(self._token_s if number else self._first_token_s)
            if answer.model == BROKEN and number == len(parts) // 2:
                raise _broken()
            events = (answer.event(index, part, ids, first=not number) for index in range(answer.choices))
            await reply.write(b"".join(events))
        await reply.end(answer.last_events())


def _free_headers(outcome: str, usage: TokenUsage) -> Headers:
    return [
        (b"x-penstock-cost-usd", FREE.encode()),
        (b"x-penstock-outcome", outcome.encode()),
        (b"x-penstock-input-tokens", b"%d" % usage.input),
        (b"x-penstock-cached-input-tokens", b"0"),
        (b"x-penstock-output-tokens", b"%d" % usage.output),
    ]


def _broken() -> EngineFailed:
    return EngineFailed("A test of an engine that fails in the middle of an answer; nothing is charged.")


def _prompt_tokens(prepared: PreparedRequest) -> int:
    return max(1, prepared.prompt_bytes // BYTES_PER_TOKEN)


class _Answer:
    """What one request is answered."""

    def __init__(self, request_id: UUID, prepared: PreparedRequest, tier: str) -> None:
        self._service_tier = ECHOED.get(tier)
        self.model = prepared.model
        self.choices = prepared.choices
        self._id = request_id
        self._chat = prepared.endpoint == "chat"
        self._include_usage = prepared.include_usage
        self._with_ids = prepared.extras.token_ids
        kept = WORDS[: prepared.max_tokens or len(WORDS)]
        self._tool = _tool_of(prepared) if self._chat and prepared.model == TOOL_CALL else ""
        self._words = () if self._tool else kept
        cut = len(kept) < len(WORDS)
        self._finish = "tool_calls" if self._tool else "length" if cut else "stop"
        tokens = 1 if self._tool else len(self._words)
        self.prompt_tokens = _prompt_tokens(prepared)
        self._usage = TokenUsage(self.prompt_tokens, output=tokens * prepared.choices)

    def whole(self) -> tuple[bytes, Headers]:
        """Body and headers of an answer in one piece."""
        document = self._shell("chat.completion" if self._chat else "text_completion")
        document["service_tier"] = self._service_tier
        document["choices"] = [self._choice(index) for index in range(self.choices)]
        document |= self._prompt_ids(of_choice=False)
        document |= self._billing()
        return msgspec.json.encode(document), _free_headers(self._outcome, self._usage)

    def parts(self) -> list[tuple[dict[str, Any], list[int]]]:
        """The parts of a streamed choice, each with the ids of its tokens."""
        parts = self._parts()
        before = len(parts) - len(self._words)
        return [
            (part, [number - before] if self._words and number >= before else [])
            for number, part in enumerate(parts)
        ]

    def _prompt_ids(self, *, of_choice: bool) -> dict[str, Any]:
        """The ids of the prompt where they were asked for: chats have them beside the choices, texts in them."""
        if not self._with_ids or of_choice is self._chat:
            return {}
        return {"prompt_token_ids": list(range(self.prompt_tokens))}

    def _parts(self) -> list[dict[str, Any]]:
        """Deltas of a chat, members of a text completion."""
        if not self._chat:
            return [{"text": word} for word in self._words]
        begin: dict[str, Any] = {"role": "assistant", "content": None if self._tool else ""}
        if not self._tool:
            return [begin, *({"content": word} for word in self._words)]
        call = self._tool_call()
        arguments = call["function"].pop("arguments")
        opened = {"index": 0, **call, "function": {**call["function"], "arguments": ""}}
        filled = {"index": 0, "function": {"arguments": arguments}}
        return [begin, {"tool_calls": [opened]}, {"tool_calls": [filled]}]

    def event(
        self,
        index: int,
        part: dict[str, Any],
        ids: Sequence[int] = (),
        finish: str | None = None,
        *,
        first: bool = False,
    ) -> bytes:
        """One event of a stream; the first one of a choice tells the prompt."""
        inner = {"delta": part} if self._chat else part
        choice: dict[str, Any] = {"index": index, **inner, "logprobs": None, "finish_reason": finish}
        if self._with_ids:
            choice["token_ids"] = ids
        prompt = self._prompt_ids(of_choice=False) if first else {}
        if first:
            choice |= self._prompt_ids(of_choice=True)
        return _event({**self._chunk_shell(), "choices": [choice], **prompt})

    def last_events(self) -> bytes:
        """The end of each choice, the usage if it was asked for, and [DONE]."""
        part: dict[str, Any] = {} if self._chat else {"text": ""}
        events = [self.event(index, part, finish=self._finish) for index in range(self.choices)]
        if self._include_usage:
            events.append(
                _event(
                    {
                        **self._chunk_shell(),
                        "service_tier": self._service_tier,
                        "choices": [],
                        **self._billing(),
                    }
                )
            )
        return b"".join([*events, DONE])

    @property
    def _outcome(self) -> str:
        return "length" if self._finish == "length" else "completed"

    def _shell(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self._chat else "cmpl"
        created = uuid7_unix_ms(self._id) // 1000
        return {"id": f"{prefix}-{self._id.hex}", "object": kind, "created": created, "model": self.model}

    def _chunk_shell(self) -> dict[str, Any]:
        return self._shell("chat.completion.chunk" if self._chat else "text_completion")

    def _choice(self, index: int) -> dict[str, Any]:
        text = "".join(self._words)
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": self._finish}
        if self._with_ids:
            choice |= {**self._prompt_ids(of_choice=True), "token_ids": list(range(len(self._words)))}
        if not self._chat:
            return {**choice, "text": text}
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._tool:
            message |= {"content": None, "tool_calls": [self._tool_call()]}
        return {**choice, "message": message}

    def _tool_call(self) -> dict[str, Any]:
        function = {"name": self._tool, "arguments": "{}"}
        return {"id": f"call_{self._id.hex[:24]}", "type": "function", "function": function}

    def _billing(self) -> dict[str, Any]:
        told = {"request_id": str(self._id), "outcome": self._outcome, "cost_usd": FREE, "test": True}
        return {"usage": usage_object(self._usage, FREE), "penstock": told}


class _Function(msgspec.Struct):
    name: str = TOOL


class _Tool(msgspec.Struct):
    function: _Function = msgspec.field(default_factory=_Function)


def _tool_of(prepared: PreparedRequest) -> str:
    """The name of the request's first function."""
    tools = prepared.fields.get("tools")
    if tools is None:
        return TOOL
    found = msgspec.json.decode(msgspec.json.encode(tools), type=list[_Tool])
    return found[0].function.name if found else TOOL


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(document) + b"\n\n"
