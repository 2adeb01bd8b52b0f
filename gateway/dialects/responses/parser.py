"""Parses the bodies of POST /v1/responses into prepared chat requests."""

import zlib
from typing import Any

import msgspec

from core.errors import InvalidRequest, UnsupportedField
from gateway.dialects.responses.fields import NAMES
from gateway.dialects.responses.items import InputText, Item, MessageItem, chat_messages, read_items
from gateway.dialects.responses.request import (
    NAMESPACE,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponsesRequest,
    ToolSpec,
    chat_choice,
    chat_tools,
    namespaces,
)
from gateway.dialects.responses.stored import StoredContext
from gateway.schemas import structured
from gateway.schemas.chat import ChatRequest, prepare_chat
from gateway.schemas.common import PreparedRequest
from gateway.schemas.decoding import RequestDecoder
from gateway.schemas.fields import OPENAI
from gateway.schemas.tools import FreeText

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_INCLUDABLE = (LOGPROBS, ENCRYPTED_REASONING)
"""Values of `include`. Reasoning is returned as it is, so that nothing is encrypted."""
_context_decoder = msgspec.json.Decoder(StoredContext)
_decoder = RequestDecoder(ResponsesRequest, OPENAI["responses"])


def parse_responses(body: bytes) -> PreparedRequest:
    """Validate a body. Raises InvalidRequest, RequestTooLarge or UnsupportedField."""
    return _parse(body, StoredContext())


def parse_continued(framed: bytes) -> PreparedRequest:
    """Validate a body with stored items in front of it (gateway/dialects/responses/stored.py, `framed`)."""
    size = int.from_bytes(framed[:4], "big") + 4
    return _parse(framed[size:], _context_decoder.decode(memoryview(framed)[4:size]))


def _parse(body: bytes, stored: StoredContext) -> PreparedRequest:
    request, unknown = _decoder.decode(body)
    _check_available(request)
    named = dict(zip(stored.named, read_items(list(stored.named.values()), {}), strict=True))
    chain = read_items(stored.chain, {})
    items = _own_items(request, named)
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        unknown = (*unknown, "text.verbosity")
    unused = (f"tools[{place}]" for place, spec in enumerate(request.tools or ()) if spec.has_no_effect)
    unknown = (*unknown, *unused)
    try:
        prepared = prepare_chat(_chat_request(request, [*chain, *items]), len(body), unknown)
    except InvalidRequest as error:
        raise NAMES.in_invalid(error) from None
    prepared.include_usage = True
    prepared.needs = tuple((ability, NAMES.of(field)) for ability, field in prepared.needs)
    prepared.dialect_fields = {
        "namespaces": namespaces(request.tools or []),
        "echo": msgspec.json.encode(_echo(request)),
        "store": request.store is not False,
        "background": bool(request.background),
        "previous": request.previous_response_id or "",
        "input": zlib.compress(msgspec.json.encode(items), 1) if request.store is not False else b"",
    }
    return prepared


def _check_available(request: ResponsesRequest) -> None:
    """Raise UnsupportedField for what the platform does not have."""
    for name, value, instead in (
        ("conversation", _is_set(request.conversation), "send the earlier items as 'input'"),
        ("prompt", _is_set(request.prompt), "send the text of the template as 'instructions' and 'input'"),
        ("truncation", request.truncation == "auto", "a prompt is never cut; leave out items in the client"),
    ):
        if value:
            raise UnsupportedField(
                f"'{name}' is not available here: {instead}.", code="not_available", param=name
            )
    if request.background and request.store is False:
        raise UnsupportedField(
            "A response in the background is stored until it is read: leave out 'store', or ask for it without "
            "'background'.",
            param="background",
        )
    for each in request.include or ():
        if each not in _INCLUDABLE:
            raise UnsupportedField(
                f"'include' may name {' and '.join(map(repr, _INCLUDABLE))}, not '{each}'.", param="include"
            )


def _is_set(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(raw) != b"null"


def _own_items(request: ResponsesRequest, named: dict[str, Item]) -> list[Item]:
    """The items that the request itself brings. Raises InvalidRequest or UnsupportedField."""
    if request.input is None and request.previous_response_id:
        return []
    if request.input is None:
        raise InvalidRequest("'input' is missing: send a text or a list of items.", param="input")
    if isinstance(request.input, str):
        return [MessageItem("user", [InputText(request.input)])]
    return read_items(request.input, named)


def _chat_request(request: ResponsesRequest, items: list[Item]) -> ChatRequest:
    logprobs = bool(request.top_logprobs) or LOGPROBS in (request.include or ())
    reasoning, tools = request.reasoning, chat_tools(request.tools or [])
    return ChatRequest(
        model=request.model,
        messages=chat_messages(request.instructions, items),
        stream=request.stream,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        logprobs=logprobs or None,
        top_logprobs=request.top_logprobs if logprobs else None,
        reasoning_effort=reasoning.effort if reasoning is not None else None,
        response_format=_response_format(request),
        tools=tools or None,
        tool_choice=chat_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls if tools else None,
        service_tier=request.service_tier,
        user=request.user,
        safety_identifier=request.safety_identifier,
        metadata={
            name: msgspec.Raw(msgspec.json.encode(value)) for name, value in (request.metadata or {}).items()
        },
    )


def _response_format(
    request: ResponsesRequest,
) -> structured.JsonObjectFormat | structured.JsonSchemaFormat | None:
    chosen = request.text.format if request.text is not None else None
    if isinstance(chosen, JsonSchemaFormat):
        schema = structured.JsonSchema(chosen.name, chosen.description, chosen.schema, chosen.strict)
        return structured.JsonSchemaFormat(schema)
    return structured.JsonObjectFormat() if isinstance(chosen, JsonObjectFormat) else None


def _echo(request: ResponsesRequest) -> dict[str, Any]:
    """The request's settings as the response repeats them, with their defaults."""
    reasoning, text = request.reasoning, request.text
    echo = {
        "background": bool(request.background),
        "frequency_penalty": request.frequency_penalty or 0.0,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning is not None else None,
            "summary": reasoning.summary if reasoning is not None else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": request.service_tier or "auto",
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {
            "format": _format_echo(request),
            "verbosity": (text.verbosity if text else None) or "medium",
        },
        "tool_choice": request.tool_choice or "auto",
        "tools": [_tool_echo(spec) for spec in request.tools or () if not spec.has_no_effect],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
    }
    if request.user is not None:
        echo["user"] = request.user
    return echo


def _format_echo(request: ResponsesRequest) -> dict[str, Any]:
    chosen = request.text.format if request.text is not None else None
    if not isinstance(chosen, JsonSchemaFormat):
        return {"type": "json_object" if isinstance(chosen, JsonObjectFormat) else "text"}
    return {
        "type": "json_schema",
        "name": chosen.name,
        "description": chosen.description,
        "schema": None if chosen.schema is msgspec.UNSET else chosen.schema,
        "strict": bool(chosen.strict),
    }


def _tool_echo(spec: ToolSpec) -> dict[str, Any]:
    if spec.type == NAMESPACE:
        members = [_tool_echo(each) for each in spec.tools or ()]
        return {
            "type": NAMESPACE, "name": spec.name, "description": spec.description or "", "tools": members,
        }  # fmt: skip
    if spec.type == "custom":
        return {
            "type": "custom",
            "name": spec.name,
            "description": spec.description or "",
            "format": spec.format or FreeText(),
        }
    parameters = None if spec.parameters is msgspec.UNSET else spec.parameters
    return {
        "type": "function",
        "name": spec.name,
        "description": spec.description,
        "parameters": parameters,
        "strict": spec.strict,
    }
