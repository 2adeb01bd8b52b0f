"""Stored responses in PostgreSQL: what `previous_response_id`, item references and the routes of responses read.

A response belongs to the project of the key that made it; for keys of other projects it does not exist.
"""

import asyncio
import logging
import re
import zlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text

from core.db import Database
from core.errors import InvalidRequest, NotFound, RequestTooLarge, Unavailable
from gateway.dialects.responses.state import STATE, document_of
from gateway.dialects.responses.stored import StoredContext
from gateway.dialects.responses.unbroken import FAILURES, UnbrokenWork
from gateway.limits import MAX_BODY_BYTES
from tenants.principal import Principal

SAVE_TIMEOUT_S = 2.0
"""Seconds that the end of an answer waits for its storage at most."""
READ_TIMEOUT_S = 5.0
"""Seconds that a request waits for stored responses at most."""
MAX_CHAIN = 1000
"""Responses that one chain of `previous_response_id` has at most."""
MAX_NAMED = 256
"""Items that one request may name by reference."""
_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})")
_ITEM_ID = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})[0-9a-f]{4,8}")
_CHAIN = text(
    "WITH RECURSIVE chain AS ("
    "SELECT id, previous_id, input, response, 1 AS depth, octet_length(input) + octet_length(response) AS bytes "
    "FROM stored_responses WHERE id = :id AND tenant_id = :tenant AND project_id = :project AND expires_at > now() "
    "AND (runs_until IS NULL OR runs_until <= now()) "
    "UNION ALL SELECT s.id, s.previous_id, s.input, s.response, c.depth + 1, "
    "c.bytes + octet_length(s.input) + octet_length(s.response) "
    "FROM chain c JOIN stored_responses s ON s.id = c.previous_id "
    "WHERE s.tenant_id = :tenant AND s.project_id = :project AND s.expires_at > now() "
    "AND c.depth < :depth AND c.bytes < :bytes) "
    "SELECT id, previous_id, input, response, bytes FROM chain ORDER BY depth DESC"
)
_SAVE = text(
    "INSERT INTO stored_responses (id, tenant_id, project_id, previous_id, expires_at, input, response) "
    "VALUES (:id, :tenant, :project, :previous, now() + make_interval(days => :days), :input, :response)"
)
_OWN = "FROM stored_responses WHERE id = :id AND tenant_id = :tenant AND project_id = :project AND expires_at > now()"

log = logging.getLogger(__name__)


class Kept(msgspec.Struct):
    """A response to store."""

    previous: str
    """The id of the response that it continues; empty = none."""
    input: bytes
    """The items of its request, packed."""


class _Mention(msgspec.Struct):
    type: str = ""
    id: str | None = None


class _Mentions(msgspec.Struct):
    """What of a body refers to stored items."""

    previous_response_id: str | None = None
    input: str | list[_Mention] | None = None


class _Output(msgspec.Struct):
    output: list[msgspec.Raw] = []


class _Id(msgspec.Struct):
    id: str = ""


_mentions_decoder = msgspec.json.Decoder(_Mentions)
_items_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_output_decoder = msgspec.json.Decoder(_Output)
_id_decoder = msgspec.json.Decoder(_Id)


def request_id_of(response: str) -> UUID | None:
    """Return the request's id in the id of a response; None for what is not an id of a response here."""
    found = _RESPONSE_ID.fullmatch(response)
    return UUID(found.group(1)) if found is not None else None


def not_found(response: str) -> NotFound:
    """The error for a response that is not stored."""
    return NotFound(
        f"There is no response '{response[:80]}': it was not stored, has been deleted or has expired, or belongs to "
        "another project.",
        code="response_not_found",
    )


def _previous_not_found(response: str) -> NotFound:
    return NotFound(
        f"The previous response '{response[:80]}', or one before it, is not stored: it was sent with 'store': false, "
        "has been deleted or has expired, belongs to another project, or still runs in the background. Send the whole "
        "conversation as 'input'.",
        code="previous_response_not_found",
        param="previous_response_id",
    )


def unavailable() -> Unavailable:
    """The error while PostgreSQL does not answer."""
    return Unavailable(
        "Stored responses cannot be read or written at the moment; try again in a second.",
        code="responses_unavailable",
        retry_after_s=1.0,
    )


def pack(document: bytes) -> bytes:
    """Return JSON as it is stored."""
    return zlib.compress(document, 1)


class ResponseStore:
    """Reads and writes stored responses. One per process."""

    def __init__(self, database: Database, days: int) -> None:
        """`days`: how long responses are kept where their project keeps them no shorter; 0 = nothing is stored."""
        self._database = database
        self._days = days
        self._work = UnbrokenWork()

    async def close(self) -> None:
        """Wait for writes in progress."""
        await self._work.close(SAVE_TIMEOUT_S)

    async def save(self, principal: Principal, request_id: UUID, kept: Kept, document: bytes) -> bool:
        """Store a response. False when it is not stored: too large, switched off, or PostgreSQL does not answer.

        The write goes on when the caller is cancelled or its time is over; it may then be stored although the answer
        says that it is not.
        """
        if not principal.responses_kept(self._days) or len(document) > MAX_BODY_BYTES:
            return False
        try:
            await self._work.within(SAVE_TIMEOUT_S, self._save(principal, request_id, kept, document))
        except FAILURES as error:
            log.warning("response %s could not be stored: %r", request_id, error)
            return False
        return True

    async def _save(self, principal: Principal, request_id: UUID, kept: Kept, document: bytes) -> None:
        row = {
            "id": request_id,
            "tenant": principal.tenant_id,
            "project": principal.project_id,
            "previous": request_id_of(kept.previous),
            "days": principal.responses_kept(self._days),
            "input": kept.input,
            "response": await asyncio.to_thread(pack, document),
        }
        async with self._database.tenant(principal.tenant_id) as connection:
            await connection.execute(_SAVE, row)

    async def context_of(self, principal: Principal, body: bytes) -> StoredContext | None:
        """Return the stored items that a body refers to; None when it refers to none.

        Raises NotFound, RequestTooLarge, InvalidRequest for too many references, and Unavailable. A body that is not
        valid refers to nothing: its parser says what is wrong.
        """
        if b"previous_response_id" not in body and b"item_reference" not in body:
            return None
        try:
            mentions = _mentions_decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        context = StoredContext()
        if mentions.previous_response_id:
            context.chain = await self._chain(principal, mentions.previous_response_id)
        items = mentions.input if isinstance(mentions.input, list) else []
        named = {item.id for item in items if item.type == "item_reference" and item.id}
        if len(named) > MAX_NAMED:
            raise InvalidRequest(f"A request may refer to {MAX_NAMED} items at most.", param="input")
        if named:
            context.named = await self._named(principal, named)
        return context if context.chain or context.named else None

    async def _chain(self, principal: Principal, response: str) -> list[msgspec.Raw]:
        request_id = request_id_of(response)
        if request_id is None:
            raise _previous_not_found(response)
        bounds = {"depth": MAX_CHAIN, "bytes": MAX_BODY_BYTES}
        rows = await self._read(_CHAIN, principal, {"id": request_id, **bounds})
        if (
            rows
            and rows[0].previous_id is not None
            and (len(rows) == MAX_CHAIN or rows[0].bytes >= MAX_BODY_BYTES)
        ):
            raise _too_long()
        if not rows or rows[0].previous_id is not None:
            raise _previous_not_found(response)
        return await asyncio.to_thread(_unpack_chain, rows)

    async def _named(self, principal: Principal, ids: set[str]) -> dict[str, msgspec.Raw]:
        """The items that are stored, by their ids."""
        requests = {UUID(found.group(1)) for each in ids if (found := _ITEM_ID.fullmatch(each)) is not None}
        rows = await self._read(
            text(
                "SELECT response FROM stored_responses WHERE id = ANY(:ids) AND tenant_id = :tenant "
                "AND project_id = :project AND expires_at > now() LIMIT :count"
            ),
            principal,
            {"ids": sorted(requests), "count": MAX_NAMED},
        )
        items = await asyncio.to_thread(_unpack_outputs, rows)
        return {name: item for item in items if (name := _id_decoder.decode(item).id) in ids}

    async def _read(self, statement: Any, principal: Principal, values: dict[str, Any]) -> Sequence[Any]:
        """Rows of the key's own project. Raises Unavailable."""
        scope = {"tenant": principal.tenant_id, "project": principal.project_id}

        async def rows() -> Sequence[Any]:
            async with self._database.read(principal.tenant_id) as connection:
                return (await connection.execute(statement, {**scope, **values})).all()

        try:
            return await self._work.within(READ_TIMEOUT_S, rows())
        except FAILURES as error:
            log.warning("stored responses cannot be read: %r", error)
            raise unavailable() from None

    async def get(self, principal: Principal, response: str) -> bytes:
        """Return a response object as it is now. Raises NotFound or Unavailable."""
        return document_of(await self._own(principal, response, STATE))

    async def runs(self, principal: Principal, response: str) -> bool:
        """Whether a response still runs in the background. Raises NotFound or Unavailable."""
        return bool((await self._own(principal, response, "coalesce(runs_until > now(), false)"))[0])

    async def input_items(self, principal: Principal, response: str) -> list[dict[str, Any]]:
        """Return the items that the request of a response brought, with ids. Raises NotFound or Unavailable."""
        packed, request_id = await self._own(principal, response, "input, id")
        items: list[dict[str, Any]] = msgspec.json.decode(zlib.decompress(packed))
        return [
            {"status": "completed", **item, "id": item.get("id") or f"item_{request_id.hex}{number:04x}"}
            for number, item in enumerate(items)
        ]

    async def _own(self, principal: Principal, response: str, columns: str) -> Any:
        request_id = request_id_of(response)
        rows = (
            await self._read(text(f"SELECT {columns} {_OWN}"), principal, {"id": request_id})
            if request_id is not None
            else ()
        )
        if not rows:
            raise not_found(response)
        return rows[0]

    async def delete(self, principal: Principal, response: str) -> None:
        """Delete a response. Those that continue it cannot be continued any more. Raises NotFound."""
        request_id = request_id_of(response)
        if request_id is None:
            raise not_found(response)
        scope = {"id": request_id, "tenant": principal.tenant_id, "project": principal.project_id}
        async with self._database.tenant(principal.tenant_id) as connection:
            if not (await connection.execute(text(f"DELETE {_OWN}"), scope)).rowcount:
                raise not_found(response)


def _unpack_chain(rows: Sequence[Any]) -> list[msgspec.Raw]:
    """The items of responses in their order: input, then output of each. Raises RequestTooLarge."""
    items: list[msgspec.Raw] = []
    size = 0
    for row in rows:
        before, document = zlib.decompress(row.input), zlib.decompress(row.response)
        size += len(before) + len(document)
        if size > 2 * MAX_BODY_BYTES:
            raise _too_long()
        items += _items_decoder.decode(before)
        items += _output_decoder.decode(document).output
    return items


def _unpack_outputs(rows: Sequence[Any]) -> list[msgspec.Raw]:
    """The output items of responses. Raises RequestTooLarge."""
    items: list[msgspec.Raw] = []
    size = 0
    for row in rows:
        document = zlib.decompress(row.response)
        size += len(document)
        if size > 2 * MAX_BODY_BYTES:
            raise RequestTooLarge("The items that are referred to are too large together.", param="input")
        items += _output_decoder.decode(document).output
    return items


def _too_long() -> RequestTooLarge:
    return RequestTooLarge(
        "The conversation before this request is too long to be continued; send the part that matters as 'input'.",
        code="previous_response_too_long",
        param="previous_response_id",
    )
