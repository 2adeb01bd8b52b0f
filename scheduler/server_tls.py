"""The certificate with which a scheduler shows who it is: issued by the authority or read from files, renewed in time.

Connections that exist keep the certificate with which they began; later ones see the new one.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from datetime import datetime

from core.db import Database
from core.errors import InvalidRequest
from core.private_tls import CERTIFICATE_LIVES, Issued, issue, load, read_authority, server_context
from core.settings import Settings
from core.supervise import supervise
from scheduler.authority import obtain

LOOK_S = 60.0
"""Seconds between two looks at files, and at the age of an issued certificate."""
RETRY_S = 5.0
"""Seconds until the next attempt while there is no certificate."""
FIRST_S = 5.0
"""Seconds that a start waits for a certificate."""

log = logging.getLogger(__name__)


class ServerTls:
    """The context for connections by TLS, once there is a certificate."""

    def __init__(self, database: Database, settings: Settings, now: Callable[[], datetime]) -> None:
        """Raises InvalidRequest when some of the files are set and others are not."""
        self.context: ssl.SSLContext | None = None
        self.authority = b""
        """In PEM, for hosts that know its fingerprint."""
        self._database, self._now = database, now
        self._password = settings.internal_token.get_secret_value().encode()
        self._directory = settings.data_dir
        files = (settings.scheduler_ca, settings.scheduler_cert, settings.scheduler_key)
        self._files = files if any(path.name for path in files) else None
        if self._files is not None and not all(path.name for path in files):
            raise InvalidRequest(
                "PENSTOCK_SCHEDULER_CA, PENSTOCK_SCHEDULER_CERT and PENSTOCK_SCHEDULER_KEY go together: set all or none"
            )
        self._made_at: datetime | None = None
        self._seen: tuple[int, ...] = ()
        """When the files were changed last."""
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Get a certificate, and renew it in the background. Without PostgreSQL there is one later."""
        try:
            async with asyncio.timeout(FIRST_S):
                await self._attempt()
        except TimeoutError:
            log.warning("there is no certificate for TLS yet: PostgreSQL does not answer")
        self._task = supervise("scheduler-tls", self._run)

    async def close(self) -> None:
        """Stop renewing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def refresh(self) -> None:
        """Use a new certificate where the files have changed, or half of the issued one's time is over."""
        if self._files is not None:
            seen = tuple(path.stat().st_mtime_ns for path in self._files)
            if seen != self._seen:
                ca, certificate, key = self._files
                self._use(Issued(certificate.read_bytes(), key.read_bytes()), read_authority(ca))
                self._seen = seen
        elif self._made_at is None or self._now() - self._made_at > CERTIFICATE_LIVES / 2:
            now = self._now()
            authority = await obtain(self._database, self._password, now)
            try:
                issued = issue(authority, self._password, now)
            except ValueError:
                raise InvalidRequest(
                    "the authority's key was encrypted with another PENSTOCK_INTERNAL_TOKEN; docs/joining.md says how "
                    "to make a new authority"
                ) from None
            self._use(issued, authority.certificate)
            self._made_at = now

    def _use(self, issued: Issued, authority: bytes) -> None:
        # A pair that does not match would spoil a context that is in use.
        context = server_context()
        load(context, issued, self._directory)
        self.context, self.authority = context, authority

    async def _attempt(self) -> None:
        try:
            await self.refresh()
        except Exception as error:  # noqa: BLE001 - files and PostgreSQL may come back; the last certificate serves on
            if str(error) != self._problem:
                self._problem = str(error)
                log.error("no new certificate for TLS: %s", error)
            return
        self._problem = ""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S if self.context is None else LOOK_S)
            await self._attempt()
