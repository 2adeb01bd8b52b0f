"""Answers in Anthropic's form on the routes beside inference, for clients that speak it."""

from collections.abc import Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any

from core.errors import InvalidRequest, PenstockError
from gateway.dialects.messages.errors import error_document, status_of

_VERSION = b"anthropic-version"
_PREFIX = "/v1/messages"
MAX_PAGE = 1000
"""Models of a page, and those of one that names no limit."""


def speaks(scope: MutableMapping[str, Any]) -> bool:
    """Whether the client of a request expects Anthropic's form: it says so, or asks for a route of Anthropic's."""
    path = scope["path"]
    return (
        path == _PREFIX
        or path.startswith(_PREFIX + "/")
        or any(name == _VERSION for name, _ in scope["headers"])
    )


def error_answer(
    scope: MutableMapping[str, Any], status: int, error: PenstockError
) -> tuple[int, dict[str, Any]]:
    """Return status and document of an error that has `status` in OpenAI's form."""
    status = status_of(status, error)
    return status, error_document(scope.get("state", {}).get("request_id"), status, error)


def model_object(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return Anthropic's model object for ours, with the members of ours that it does not have."""
    own = {
        name: entry[name]
        for name in ("status", "deprecation", "aliases", "pricing", "tiers")
        if name in entry
    }
    created = datetime.fromtimestamp(entry["created"], UTC)
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["title"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": entry["context_length"],
        "max_tokens": entry["max_output_tokens"],
        "capabilities": None,
        **own,
    }


def model_page(entries: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of Anthropic's list of models. `query` may have limit, after_id and before_id.

    Raises InvalidRequest for a limit that is no number from 1 to MAX_PAGE and for an id that is no model's.
    """
    limit = query.get("limit", str(MAX_PAGE))
    if not limit.isdecimal() or not 1 <= int(limit) <= MAX_PAGE:
        raise InvalidRequest(f"'limit' is {limit[:40]!r}; it has to be 1 to {MAX_PAGE:,}.", param="limit")
    ids = [entry["id"] for entry in entries]
    begin = _position(ids, query, "after_id") + 1 if "after_id" in query else 0
    end = _position(ids, query, "before_id") if "before_id" in query else len(ids)
    if "before_id" in query:
        begin = max(begin, end - int(limit))
    page = [model_object(entry) for entry in entries[begin : min(end, begin + int(limit))]]
    more = begin > 0 if "before_id" in query else begin + len(page) < len(ids)
    return {
        "data": page,
        "has_more": more,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _position(ids: list[str], query: Mapping[str, str], name: str) -> int:
    if query[name] not in ids:
        raise InvalidRequest(
            f"'{name}' is {query[name][:200]!r}, which is no model of this list.", param=name
        )
    return ids.index(query[name])
