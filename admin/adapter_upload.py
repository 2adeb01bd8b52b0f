"""The form with which the files of a LoRA adapter arrive, at the members' REST and at the console."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from admin.actor import Actor, require
from admin.adapters import AdapterLimits, AdapterView, Upload, create_adapter
from core.db import Database
from core.errors import InvalidRequest, RequestTooLarge, Unavailable
from core.settings import Settings
from tenants.roles import KEY_MANAGERS
from workers.adapter_files import MAX_CONFIG_BYTES

FORM_REST_BYTES = 2**20
FORM_BYTES = 2**30 + FORM_REST_BYTES
"""Largest form: the largest adapter that a setting allows, and the rest of the form."""
UPLOAD_S = 900.0
"""Seconds for a form to arrive."""
AT_A_TIME = 2
"""Uploads and imports of one process at a time: their files lie in its temporary directory."""
RETRY_S = 10.0


class Transfers:
    """The uploads and imports of one process."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_A_TIME)

    @asynccontextmanager
    async def slot(self, settings: Settings) -> AsyncIterator[AdapterLimits]:
        """One of the process's transfers. Raises Unavailable while there is none."""
        if self._slots.locked():
            raise Unavailable(
                "Other adapters are being transferred; try again shortly.",
                code="uploads_busy",
                retry_after_s=RETRY_S,
            )
        async with self._slots:
            yield AdapterLimits.of(settings)

    async def upload(
        self, database: Database, actor: Actor, settings: Settings, *, tenant_id: UUID, request: Request
    ) -> AdapterView:
        """Store the adapter in the form of a request: `model`, `name`, and the files `config` and `weights`.

        The role is checked before the body is read. Raises as `create_adapter`, InvalidRequest for another form, and
        Unavailable.
        """
        require(actor, *KEY_MANAGERS, tenant_id=tenant_id)
        async with self.slot(settings) as limits, _form(request, limits.bytes) as form:
            weights = _file(form, "weights")
            return await create_adapter(
                database,
                actor,
                tenant_id=tenant_id,
                model=_text(form, "model"),
                name=_text(form, "name"),
                upload=Upload(
                    await _file(form, "config").read(MAX_CONFIG_BYTES + 1), weights.file, weights.size or 0
                ),
                limits=limits,
            )


@asynccontextmanager
async def _form(request: Request, most_bytes: int) -> AsyncIterator[FormData]:
    """The form of an upload; its files are kept on disk until the end of the block.

    Raises InvalidRequest, and RequestTooLarge: before it is read when its length is stated, else when it is exceeded.
    """
    most = most_bytes + FORM_REST_BYTES
    too_large = RequestTooLarge(f"The body is larger than {most_bytes:,} bytes; send less.", param="body")
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most:
        raise too_large
    received = 0

    async def receive() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > most:
            raise too_large
        return message

    try:
        form = await Request(request.scope, receive).form(max_files=2, max_fields=8, max_part_size=4096)
    except HTTPException as error:
        raise InvalidRequest(f"the form cannot be read: {error.detail}", param="body") from None
    try:
        yield form
    finally:
        await form.close()


def _file(form: FormData, name: str) -> UploadFile:
    found = form.get(name)
    if not isinstance(found, UploadFile):
        raise InvalidRequest(f"the form needs the file '{name}' (multipart/form-data)", param=name)
    return found


def _text(form: FormData, name: str) -> str:
    found = form.get(name)
    if not isinstance(found, str) or not found or "\x00" in found:
        raise InvalidRequest(f"the form needs the text '{name}' (multipart/form-data)", param=name)
    return found
