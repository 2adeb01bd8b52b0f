"""The streams of responses in the background: to the client that asked for one, and again to those that come later.

All of them read the same events, whichever process runs the response, so a broken connection is resumed anywhere.
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from api import errors
from api.read_pace import ReadPace
from core.errors import InvalidRequest, PenstockError, Unavailable
from gateway.context import AbortReason
from gateway.dialects.responses.events import ResponseEvents
from gateway.dialects.responses.store import ResponseStore, not_found, request_id_of
from gateway.dialects.responses.translation import last_event
from gateway.open_requests import KEEP_ALIVE, KEEP_ALIVE_EVERY_S, StreamTimeouts
from gateway.ports import Headers
from gateway.sse import DONE
from tenants.principal import Principal

MAX_READERS = 512
"""Streams of responses in the background that one process serves at a time."""
LAST_WAIT_S = 1.0
"""Seconds for which the last events of a response that has ended are waited for: they are written right after it."""
_BUSY = Unavailable(
    "Too many streams of responses in the background are open; read the response without 'stream', or try again.",
    code="streams_busy",
    retry_after_s=1.0,
)
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class _Reader:
    """One open stream."""

    def __init__(self, principal: Principal) -> None:
        self.principal = principal
        self.revoked = False


class ResponseStreams:
    """Streams responses in the background. One per process."""

    def __init__(self, store: ResponseStore, events: ResponseEvents) -> None:
        self._store = store
        self._events = events
        self._readers: set[_Reader] = set()

    def abort_keys(self, key_ids: frozenset[Any]) -> None:
        """End the streams of these keys, which were revoked, with their next event."""
        for reader in self._readers:
            reader.revoked |= reader.principal.key_id in key_ids

    async def open(self, principal: Principal, response: str, after: int = -1) -> StreamingResponse:
        """Return the stream of the events after the number `after`.

        Raises NotFound, InvalidRequest for a response that does not run in the background, and Unavailable.
        """
        document = msgspec.json.decode(await self._store.get(principal, response))
        if not document["background"]:
            raise InvalidRequest(
                "Only responses in the background can be streamed again; leave out 'stream'.",
                code="not_streamable",
                param="stream",
            )
        return self.stream(principal, response, after)

    def stream(self, principal: Principal, response: str, after: int = -1) -> StreamingResponse:
        """Return the stream of a response that is known to run in the background. Raises Unavailable."""
        if len(self._readers) >= MAX_READERS:
            raise _BUSY
        events = self._follow(_Reader(principal), response, after)
        return StreamingResponse(events, media_type="text/event-stream", headers=_HEADERS)

    async def _follow(self, reader: _Reader, response: str, after: int) -> AsyncIterator[bytes]:
        """The events of a response until its end, with comments while it is silent."""
        self._readers.add(reader)
        try:
            async for events in self._events_of(reader, response, after):
                yield events
        except PenstockError as error:
            yield errors.to_event(error)
        finally:
            self._readers.discard(reader)

    async def _events_of(self, reader: _Reader, response: str, after: int) -> AsyncIterator[bytes]:
        request_id = request_id_of(response)
        if request_id is None:
            raise not_found(response)
        runs = await self._store.runs(reader.principal, response)
        while True:
            entries = await self._events.read(request_id, after, KEEP_ALIVE_EVERY_S if runs else LAST_WAIT_S)
            if reader.revoked:
                raise AbortReason.REVOKED.error()
            for entry in entries:
                events = entry.after(after)
                missing = entry.last > after and not events
                if missing and entry.ends:
                    events = await self._last(reader, response, entry.last)
                after = max(after, entry.last)
                if events:
                    yield events
                if entry.ends:
                    yield DONE
                    return
            if entries:
                continue
            if not runs:  # its events have expired, or its process has died
                yield await self._last(reader, response, after + 1) + DONE
                return
            yield KEEP_ALIVE
            runs = await self._store.runs(reader.principal, response)

    async def _last(self, reader: _Reader, response: str, number: int) -> bytes:
        """The last event, made from the stored response. Raises NotFound and Unavailable."""
        return last_event(msgspec.json.decode(await self._store.get(reader.principal, response)), number)


async def send_stream(
    stream: StreamingResponse, headers: Headers, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a request of the hot path with a stream, at the pace of its client. `headers` are added to its own."""
    stream.raw_headers = [*stream.raw_headers, *headers]
    await ReadPace(stream, StreamTimeouts())(scope, receive, send)
