"""The parts of an answer in Anthropic's form: a message, its usage and why it stopped."""

import base64
from typing import Any
from uuid import UUID

import msgspec

from gateway.dialects.chat_events import ChatEvent, Choice, Usage
from gateway.dialects.messages.request import HIDDEN, OMITTED

_TIERS = {"default": "standard", "flex": "batch", "priority": "priority"}
"""By OpenAI's name for a tier: Anthropic's."""
_INVALID_INPUT = "INVALID_JSON"
"""The member of a call's input with the text of arguments that are no JSON object, as Anthropic advises."""
_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def signature_of(request_id: UUID) -> str:
    """Return the signature of an answer's thoughts. It is opaque; requests may carry any."""
    return base64.b64encode(request_id.bytes).decode()


def usage_object(usage: Usage, service_tier: str | None = None) -> dict[str, Any]:
    """Return Anthropic's usage: the tokens read from a cache do not count as input tokens. `cost` is ours."""
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.completion_tokens_details.reasoning_tokens},
        "server_tool_use": None,
        "service_tier": _TIERS.get(service_tier or ""),
        "inference_geo": None,
        "cost": usage.cost,
    }


def message_object(request_id: UUID, model: str, content: list[Any], usage: dict[str, Any]) -> dict[str, Any]:
    """Return a message that has not stopped."""
    return {
        "id": f"msg_{request_id.hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **stopped(None, None),
        "usage": usage,
    }


def stopped(reason: str | None, sequence: str | None) -> dict[str, Any]:
    """Return the members that say why a message stopped."""
    return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None, "container": None}


def stop_of(
    finish: str | None, sequence: int | str | None, output_tokens: int, max_tokens: int, *, called: bool
) -> dict[str, Any]:
    """Return why a message stopped, for chat's finish_reason and stop_reason.

    `max_tokens`: the request's; an answer that ended at a limit with fewer ended where its context did. `called`:
    whether it has tool calls; of a forced call some engines say that it stopped by itself.
    """
    if finish == "length":
        reached = output_tokens >= max_tokens
        return stopped("max_tokens" if reached else "model_context_window_exceeded", None)
    if isinstance(sequence, str) and finish == "stop":
        return stopped("stop_sequence", sequence)
    if finish == "content_filter":
        return stopped("refusal", None)
    return stopped("tool_use" if called else "end_turn", None)


def text_block(text: str) -> dict[str, Any]:
    """Return a block of text."""
    return {"type": "text", "text": text, "citations": None}


def tool_block(call_id: str, name: str, given: Any) -> dict[str, Any]:
    """Return a block of a tool's call with the input `given`."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": given, "caller": {"type": "direct"}}


def input_of(arguments: str) -> Any:
    """Return the input of a call whose arguments are complete."""
    text = arguments.strip()
    if text in ("", "null"):
        return {}
    try:
        _object_decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return {_INVALID_INPUT: arguments}
    return msgspec.Raw(text.encode())


def _content(choice: Choice, request_id: UUID, thinking: str) -> list[Any]:
    """The blocks of a whole answer: thoughts, text, calls."""
    message = choice.message
    blocks: list[Any] = []
    if message.reasoning_content and thinking != HIDDEN:
        shown = "" if thinking == OMITTED else message.reasoning_content
        blocks.append({"type": "thinking", "thinking": shown, "signature": signature_of(request_id)})
    if text := (message.content or "") + (message.refusal or ""):
        blocks.append(text_block(text))
    for number, call in enumerate(message.tool_calls or ()):
        function = call.function
        if function is not None and function.name:
            call_id = call.id or call_id_of(request_id, number)
            blocks.append(tool_block(call_id, function.name, input_of(function.arguments or "")))
    return blocks


def call_id_of(request_id: UUID, number: int) -> str:
    """Return the id of a call to which the engine gave none."""
    return f"toolu_{request_id.hex}_{number}"


def whole_message(request_id: UUID, answer: ChatEvent, thinking: str, max_tokens: int) -> dict[str, Any]:
    """Return the message of a chat answer in one piece. `thinking`: what it has of the model's thoughts."""
    choice, usage = answer.choices[0], answer.usage or Usage()
    content = _content(choice, request_id, thinking)
    message = message_object(request_id, answer.model, content, usage_object(usage, answer.service_tier))
    called = any(block["type"] == "tool_use" for block in content)
    finish, sequence = choice.finish_reason, choice.stop_reason
    message |= stop_of(finish, sequence, usage.completion_tokens, max_tokens, called=called)
    return {**message, "penstock": answer.penstock}
