"""Members of an answer that customers get only when they ask for them, and all that engines add of their own."""

from typing import TypeGuard

import msgspec

from gateway.merge_chunks import REASONING_NAMES
from gateway.schemas.common import Extras
from gateway.tool_calls import CallStream

_NULL = msgspec.Raw(b"null")


class _RelayedChoice(msgspec.Struct, gc=False):
    """The members of an event's choice that customers get."""

    index: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    delta: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    logprobs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    finish_reason: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    stop_reason: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _RelayedChunk(msgspec.Struct, gc=False):
    """The members of an event that customers get: all but the usage and what engines add of their own."""

    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    object: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    created: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    model: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    choices: list[_RelayedChoice] = []
    service_tier: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_relayed_decoder = msgspec.json.Decoder(_RelayedChunk)
_relayed_encoder = msgspec.json.Encoder()
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_choices_decoder = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def strip_extras(payload: bytes, extras: Extras, calls: CallStream | None = None) -> bytes:
    """Return an event with the members that customers get, and of `extras` those that were asked for.

    `calls` changes the form of tool calls; None = it is the engine's.
    """
    chunk = _relayed_decoder.decode(payload)
    chunk.prompt_token_ids = _told(chunk.prompt_token_ids, extras.token_ids)
    for choice in chunk.choices:
        choice.prompt_token_ids = _told(choice.prompt_token_ids, extras.token_ids)
        choice.token_ids = _told(choice.token_ids, extras.token_ids)
        if calls is not None:
            calls.apply(choice)
        if not extras.stop_reason:
            choice.stop_reason = msgspec.UNSET
        if not extras.logprobs and choice.logprobs is not msgspec.UNSET:
            choice.logprobs = _NULL
        elif choice.delta is not msgspec.UNSET and is_there(choice.logprobs):
            choice.logprobs = _with_refusal(choice.logprobs)
        if choice.delta is not msgspec.UNSET and b'"reasoning' in bytes(choice.delta):
            choice.delta = _both_names(choice.delta)
    return _relayed_encoder.encode(chunk)


def _with_refusal(logprobs: msgspec.Raw) -> msgspec.Raw:
    """Return a chat's log-probabilities with those of a refusal, which engines leave out and OpenAI demands."""
    members = _members_decoder.decode(logprobs)
    members.setdefault("refusal", _NULL)
    return msgspec.Raw(_relayed_encoder.encode(members))


def of_batch(payload: bytes, first: int, event_id: str, created: int) -> bytes:
    """Return an event of a later batch of prompts as a part of the stream that the first batch began.

    `first`: index of the batch's first choice. `event_id` and `created` are those of the stream.
    """
    event = _members_decoder.decode(payload)
    choices = _choices_decoder.decode(event["choices"])
    for choice in choices:
        choice["index"] = msgspec.Raw(b"%d" % (first + int(bytes(choice.get("index", b"0")))))
    changed = {"id": event_id, "created": created, "choices": choices}
    return _relayed_encoder.encode({**event, **changed})


def _told(value: msgspec.Raw | msgspec.UnsetType, asked: bool) -> msgspec.Raw | msgspec.UnsetType:
    """The value of a member that is there only when it was `asked` for; nothing for null."""
    return value if asked and is_there(value) else msgspec.UNSET


def is_there(value: msgspec.Raw | msgspec.UnsetType) -> TypeGuard[msgspec.Raw]:
    """Whether a member is set and not null."""
    return value is not msgspec.UNSET and bytes(value) != b"null"


def _both_names(delta: msgspec.Raw) -> msgspec.Raw:
    """Return a delta with its reasoning under both of its names."""
    members = _members_decoder.decode(delta)
    for name, other in REASONING_NAMES:
        value = members.get(name)
        if value is not None and bytes(value) != b"null":
            members.setdefault(other, value)
    return msgspec.Raw(_relayed_encoder.encode(members))


def carries_extras(
    extras: Extras,
    logprobs: msgspec.Raw | msgspec.UnsetType,
    finish_reason: str | None,
    stop_reason: int | str | msgspec.UnsetType | None,
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
) -> bool:
    """Whether a choice without text has log-probabilities, tokens, or its stop string, that were asked for.

    A `stop_reason` of null or a number stands for the model's own end. An engine that sends none at all does not tell
    the two ends apart; the answer then counts as ended by a stop string.
    """
    if extras.stop_reason and finish_reason == "stop" and isinstance(stop_reason, str | msgspec.UnsetType):
        return True
    if extras.token_ids and is_there(token_ids) and bytes(token_ids) != b"[]":
        return True
    if not extras.logprobs or logprobs is msgspec.UNSET:
        return False
    found = msgspec.json.decode(logprobs)
    return isinstance(found, dict) and any(found.values())
