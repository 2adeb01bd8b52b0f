"""The certificate of a joined host's engines, signed by an authority of this host alone, in its data directory.

API processes learn the authority from the scheduler, to which the host has shown its secret: so no other host can pass
for this one. Engines read a renewed certificate while they run (vLLM's --enable-ssl-refresh), for which files are
written in place and the key stays.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from core.addresses import Address, takes_tls
from core.private_tls import (
    CERTIFICATE_LIVES,
    ENGINE_NAME,
    Issued,
    client_context,
    ends_at,
    issue,
    new_authority,
)
from core.settings import Settings
from core.whole_file import replace_file

LOOK_S = 3600.0
"""Seconds between two looks at the age of the certificate."""
KEPT_S = 75
"""Seconds for which engines keep an idle connection, so that requests that are far apart need no handshake."""

log = logging.getLogger(__name__)


class EngineTls:
    """The files of the certificate and its authority."""

    def __init__(self, directory: Path, password: bytes, now: Callable[[], datetime]) -> None:
        """`password` encrypts the authority's key; with another one there is another authority. Raises OSError."""
        self.certificate_file, self.key_file = directory / "certificate.pem", directory / "key.pem"
        self._password, self._now = password, now
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._files = directory / "authority.pem", directory / "authority-key.pem"
        self._authority = self._load()
        if self._authority is None:
            self._authority = new_authority(password, now(), "Penstock host")
            for path, content in zip(
                self._files, (self._authority.certificate, self._authority.key), strict=True
            ):
                replace_file(path, content, mode=0o600)
            self.certificate_file.unlink(missing_ok=True)
        self.renew()

    @property
    def authority(self) -> bytes:
        """Certificate of the host's authority, in PEM."""
        return self._authority.certificate if self._authority is not None else b""

    def client_context(self) -> ssl.SSLContext:
        """For the agent's own requests to the engines."""
        context = client_context(self.authority)
        context.check_hostname = False  # the authority signs nothing but these engines
        return context

    def renew(self) -> bool:
        """Write another certificate when half of the time of the present one is over; whether that was so."""
        if self._authority is None:
            return False
        try:
            left = ends_at(self.certificate_file.read_bytes()) - self._now()
            key = self.key_file.read_bytes()
        except (OSError, ValueError):
            left, key = CERTIFICATE_LIVES * 0, b""
        if key and left > CERTIFICATE_LIVES / 2:
            return False
        issued = issue(self._authority, self._password, self._now(), name=ENGINE_NAME, key_pem=key)
        if not key:
            replace_file(self.key_file, issued.key, mode=0o600)
        self.certificate_file.write_bytes(issued.certificate)
        return True

    async def run(self) -> None:
        """Renew the certificate in time, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if self.renew():
                    log.info("the engines of this host have another certificate")
            except OSError as error:
                log.error("the certificate of the engines cannot be renewed: %s", error)

    def _load(self) -> Issued | None:
        try:
            found = Issued(self._files[0].read_bytes(), self._files[1].read_bytes())
            issue(found, self._password, self._now(), name=ENGINE_NAME)
            return found if ends_at(found.certificate) - self._now() > CERTIFICATE_LIVES else None
        except (OSError, ValueError):
            return None


def engine_tls(
    settings: Settings, engine_key: str, reach: str, now: Callable[[], datetime], *, joined: bool
) -> EngineTls | None:
    """The certificate of the engines of a host that has joined and is reached at `reach`; None = they speak no TLS.

    Engines on loopback need none, and `PENSTOCK_SCHEDULER_TLS=never` stands for a private network.
    """
    if (
        not joined
        or settings.engine == "external"
        or not takes_tls(Address(reach, 0), settings.scheduler_tls)
    ):
        return None
    return EngineTls(settings.data_dir.resolve() / "engine-tls", engine_key.encode(), now)
