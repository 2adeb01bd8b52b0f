"""The agent's connections to schedulers: by TLS, except over loopback.

A host that joins knows the fingerprint of the schedulers' authority from its token. It asks any scheduler for the
certificate, on a connection that trusts none and carries nothing else, and keeps the one that has this fingerprint.
"""

import asyncio
import ssl

import msgspec

from core.addresses import Address, takes_tls
from core.errors import InvalidRequest
from core.framing import pack, read_frame
from core.private_tls import (
    NAME,
    blind_context,
    certificates_alone,
    client_context,
    fingerprint,
    read_authority,
)
from core.settings import Settings
from workers.own_credentials import AgentCredentials
from workers.scheduler_link import Untrusted
from workers.wire import AuthorityAnswer, AuthorityRequest

_MAX_ANSWER_BYTES = 64 * 1024
_answer = msgspec.msgpack.Decoder(AuthorityAnswer)


class SchedulerDialer:
    """Makes connections. Raises OSError and TimeoutError for schedulers that do not answer, and Untrusted."""

    def __init__(self, settings: Settings, credentials: AgentCredentials) -> None:
        self._setting, self._file = settings.scheduler_tls, settings.scheduler_ca
        self._credentials = credentials

    async def __call__(self, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the scheduler at `address`."""
        if not takes_tls(address, self._setting):
            return await asyncio.open_connection(*address)
        context = await self._context(address)
        return await asyncio.open_connection(*address, ssl=context, server_hostname=NAME)

    async def _context(self, address: Address) -> ssl.SSLContext:
        if self._file.name:
            try:
                return client_context(read_authority(self._file))
            except InvalidRequest as error:
                raise Untrusted(error.message) from None
        if not self._credentials.authority:
            self._credentials.trust(await self._ask(address))
        return client_context(self._credentials.authority)

    async def _ask(self, address: Address) -> bytes:
        token = self._credentials.join_token
        if token is None or not token.authority:
            raise Untrusted(
                f"nothing says whom to trust at {address}: `penstock hosts invite` prints a join token with the "
                "authority's fingerprint once a scheduler speaks TLS, or PENSTOCK_SCHEDULER_CA names its certificate"
            )
        reader, writer = await asyncio.open_connection(*address, ssl=blind_context())
        try:
            writer.write(pack(msgspec.msgpack.encode(AuthorityRequest())))
            answer = _answer.decode(await read_frame(reader, _MAX_ANSWER_BYTES))
            found = certificates_alone(answer.certificate)  # never bytes that the fingerprint does not cover
            known = fingerprint(found)
        except (EOFError, ValueError) as error:
            raise Untrusted(f"the scheduler at {address} shows no authority: {error}") from None
        finally:
            writer.close()
        if known != token.authority:
            raise Untrusted(
                f"what answers at {address} is not the scheduler of the join token: its authority has the fingerprint "
                f"{known[:16]}..., not {token.authority[:16]}..."
            )
        return found
